"""The door: what a live host answers, and what becomes of files, folders and children that misbehave."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from probe import process
from probe.collect import collect
from probe.fact import Missing, Unavailable
from probe.host import LiveHost
from probe.snapshot import Snapshot

ENV = {"PATH": "/usr/bin:/bin"}


def tree(root: Path, files: dict[str, str | bytes]) -> LiveHost:
    for path, content in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return LiveHost(str(root))


def test_junk_is_text_with_marks(tmp_path: Path) -> None:
    assert tree(tmp_path, {"/proc/x": b"a\xff\xfeb"}).read("/proc/x") == "a\ufffd\ufffdb"


def test_a_fifo_does_not_hold_us(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert LiveHost(str(tmp_path)).read("/pipe") == ""


def test_a_file_without_end(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="larger than"):
        LiveHost().read("/dev/zero")


@pytest.mark.parametrize(
    ("path", "reason"), [("/nothing", "absent"), ("/proc/self/mem", "error"), ("/proc", "error"), ("/dev/null/x", "absent")]
)
def test_reasons(path: str, reason: str) -> None:
    with pytest.raises(Unavailable) as answer:
        LiveHost().read(path)
    assert answer.value.reason == reason


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    host = tree(tmp_path, {"/secret": "x"})
    (tmp_path / "secret").chmod(0)
    with pytest.raises(Unavailable) as answer:
        host.read("/secret")
    assert answer.value.reason == "no_permission"


def test_links_do_not_lead_out_of_the_root(tmp_path: Path) -> None:
    host = tree(tmp_path / "root", {"/etc/hostname": "inside\n"})
    (tmp_path / "outside").write_text("outside")
    (tmp_path / "root/absolute").symlink_to("/etc/hostname")
    (tmp_path / "root/dots").symlink_to("../../outside")
    (tmp_path / "root/loop").symlink_to("loop")
    (tmp_path / "root/folder").symlink_to("/etc")
    assert host.read("/absolute") == "inside\n"
    assert host.read("/folder/hostname") == "inside\n"
    assert host.link("/absolute") == "/etc/hostname"
    for path in ("/dots", "/../outside", "/loop"):
        with pytest.raises(Unavailable):
            host.read(path)


def test_usage() -> None:
    usage = LiveHost().usage("/")
    assert 0 < usage.free_bytes <= usage.size_bytes
    with pytest.raises(Unavailable) as answer:
        LiveHost().usage("/nothing")
    assert answer.value.reason == "absent"


def test_only_known_tools_are_run() -> None:
    with pytest.raises(ValueError, match="not one of the tools"):
        LiveHost().run(["rm", "-rf", "/"])


def test_py_cpuinfo_names_the_processor_in_a_child() -> None:
    said = LiveHost(deadline_seconds=30).run(["cpuinfo", "--json"])
    assert said.exit_code == 0
    assert "arch" in said.stdout


# --- children ----------------------------------------------------------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(60)", "no end within"),
        ("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)", "no end within"),
        ("while True: print('x' * 65536)", "bytes of output"),
        ("import os, time; os.close(1); os.close(2); time.sleep(60)", "no end within"),
    ],
)
def test_a_child_that_does_not_end(code: str, words: str) -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable, match=words):
        process.run(python(code), deadline_seconds=0.5, output_cap_bytes=1 << 20, env=ENV)
    assert time.monotonic() - started < 0.5 + 1


def test_a_grandchild_that_holds_the_pipe(tmp_path: Path) -> None:
    """The child ends; its own child keeps stdout open."""
    code = "import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(60)\nprint('said')"
    started = time.monotonic()
    said = process.run(python(code), deadline_seconds=5, output_cap_bytes=1 << 20, env=ENV)
    assert said.stdout == "said\n"
    assert time.monotonic() - started < 2


def test_descendants_are_killed_too(tmp_path: Path) -> None:
    code = (
        f"import os, time\nif os.fork() == 0:\n os.setsid()\n open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )
    with pytest.raises(Unavailable):
        process.run(python(code), deadline_seconds=1, output_cap_bytes=1 << 20, env=ENV)
    pid = int((tmp_path / "pid").read_text())
    time.sleep(0.2)
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    with pytest.raises(Unavailable) as answer:
        process.run([str(plain)], deadline_seconds=1, output_cap_bytes=1, env=ENV)
    assert answer.value.reason == "no_permission"
    plain.chmod(plain.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(Unavailable) as answer:
        process.run([str(plain)], deadline_seconds=1, output_cap_bytes=1, env=ENV)
    assert answer.value.reason == "error"


# --- all probes over odd machines -------------------------------------------------------------------------------------------------------


class Stuck(LiveHost):
    """A machine whose files never answer."""

    def read(self, path: str) -> str:
        time.sleep(30)
        return ""

    def nvml(self) -> list:  # type: ignore[type-arg]
        time.sleep(30)
        return []


def test_probes_that_hang_are_left_behind() -> None:
    started = time.monotonic()
    snapshot = collect(Stuck(), deadline_seconds=0.5)
    assert time.monotonic() - started < 1.5
    assert isinstance(snapshot.cpu.model, Missing)
    assert snapshot.cpu.model.reason == "timeout"
    assert snapshot.driver.broken_off


class Faulty(LiveHost):
    """A fault of ours in the door."""

    def read(self, path: str) -> str:
        raise ZeroDivisionError("oops")


def test_a_fault_of_ours_is_evidence() -> None:
    snapshot = collect(Faulty())
    assert isinstance(snapshot.memory.total_bytes, Missing)
    assert "ZeroDivisionError: oops" in snapshot.memory.total_bytes.detail


@pytest.mark.parametrize(
    "content",
    ["", "\n", "junk", "-1", "0x", "9" * 400, "\x00\x01\x02", "a b c\nd e f\n", "TOTAL_ERR_FATAL\n", ":\n:\n", "Node 0 MemTotal: kB"],
)
def test_any_content_in_any_file(content: str) -> None:
    """Every file of a machine holds nonsense: facts are missing, and nothing ends."""
    from probe.dump import ReplayHost
    from readiness.fixtures import load
    from tests.conftest import judged

    dump = load("dual-l40s")
    dump.files = dict.fromkeys(dump.files, content)
    snapshot = collect(ReplayHost(dump))
    assert isinstance(snapshot, Snapshot)
    assert isinstance(snapshot.memory.total_bytes, Missing)
    assert "readiness" not in "".join(
        finding.fix for finding in judged(dump).findings if finding.status == "unknown" and "fault of readiness" in finding.fix
    )
