"""The units: understood by systemd, and as closed as they say. The program's place is replaced by one that exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[1] / "systemd"

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.timer")):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/readiness/bin/readiness", "/bin/true"))
    return tmp_path


def test_systemd_understands_them(units: Path) -> None:
    names = sorted(str(path) for path in units.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", *names], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if any(Path(name).name in line for name in names)]
    assert not said


@pytest.mark.parametrize(("unit", "tenths"), [("readiness.service", 20), ("readiness-root.service", 30)])
def test_exposure(unit: str, tenths: int, units: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={tenths}", "--no-pager", str(units / unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_each_capability_is_explained() -> None:
    content = (UNITS / "readiness-root.service").read_text()
    granted = re.search(r"^CapabilityBoundingSet=(.*)$", content, re.MULTILINE)
    assert granted
    for name in granted[1].split():
        assert re.search(rf"^# .*{name}: ", content, re.MULTILINE), name


def test_the_daemon_needs_none() -> None:
    content = (UNITS / "readiness.service").read_text()
    assert "CapabilityBoundingSet=\n" in content
    assert "\nPrivateDevices=" not in content
    assert "Type=notify" in content
    assert "WatchdogSec=" in content
