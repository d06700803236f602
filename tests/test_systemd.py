"""The units: understood by systemd, and as closed as they say. The program's place is replaced by one that exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from readiness.cli import HANDED_OVER

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


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_the_root_service_can_write_its_file_with_its_own_rights_alone(tmp_path: Path) -> None:
    """Without CAP_DAC_OVERRIDE root may not write into a folder of the daemon's."""
    unit = (UNITS / "readiness-root.service").read_text()
    folder = re.search(r"^RuntimeDirectory=(\S+)$", unit, re.MULTILINE)
    command = re.search(r"^ExecStart=.* (/\S+)$", unit, re.MULTILINE)
    rights = re.search(r"^CapabilityBoundingSet=(.+)$", unit, re.MULTILINE)
    daemon = (UNITS / "readiness.service").read_text()
    assert folder
    assert command
    assert rights
    assert command[1] == f"/run/{folder[1]}/root.tar.gz"
    assert Path(command[1]) == HANDED_OVER
    assert f"RuntimeDirectory={folder[1]}\n" not in daemon
    place = tmp_path / folder[1]
    place.mkdir(mode=0o750)
    os.chown(place, 0, 65534)
    bound = ",".join("+" + name.removeprefix("CAP_").lower() for name in rights[1].split())
    argv = ["setpriv", "--regid", "65534", "--clear-groups", f"--bounding-set=-all,{bound}", "--inh-caps=-all"]
    argv += [sys.executable, "-m", "readiness", "handover", "--timeout", "5", "--group", "nogroup", str(place / "root.tar.gz")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, (place / "root.tar.gz").exists()) == (0, True), done.stderr
