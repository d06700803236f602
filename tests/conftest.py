"""What tests share: a bundled machine judged, the program run as a user runs it, and the evidence folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checks.catalog import workloads
from checks.score import Assessment, assess
from probe.collect import collect
from probe.dump import Dump, ReplayHost
from readiness.fixtures import load


def judged(dump: Dump | str) -> Assessment:
    """A dump, or a bundled machine by name, through the whole way of the data."""
    host = ReplayHost(load(dump) if isinstance(dump, str) else dump)
    return assess(collect(host), workloads().values())


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run("check", "--fixture", ...)`: the program in a process of its own."""

    def start(*argv: str, env: dict[str, str] | None = None, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "readiness", *argv]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **(env or {})},
            **options,  # type: ignore[call-overload]
        )

    return start


@pytest.fixture(scope="session")
def evidence() -> Path:
    """Real captures, where READINESS_EVIDENCE says they are."""
    folder = os.environ.get("READINESS_EVIDENCE")
    if not folder:
        pytest.skip("READINESS_EVIDENCE is not set")
    return Path(folder)
