"""Starts real servers on loopback for a test, and ends them."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen[bytes]]


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port on loopback that nobody has."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, seconds: float = 20) -> None:
    """Until something listens on a TCP port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start("upsd", "-F", env={...})`: a server that is ended with the test."""
    children: list[subprocess.Popen[bytes]] = []

    def run(*argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        log = (tmp_path / f"server{len(children)}.log").open("wb")
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True
        )
        children.append(child)
        return child

    yield run
    for child in children:
        child.kill()
        child.wait(5)


@pytest.fixture
def peer() -> Callable[[str], str]:
    """The path of a simulator in the peers' environment."""

    def find(name: str) -> str:
        path = Path(os.environ.get("READINESS_PEERS", "/nonexistent")) / name
        if not path.exists():
            pytest.skip(f"{name} is not installed (make test installs it)")
        return str(path)

    return find
