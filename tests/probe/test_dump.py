"""Dumps: written and read back the same; hostile and broken ones end with one line."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from checks.catalog import workloads
from checks.score import assess
from probe import dump as dumps
from probe.collect import collect
from probe.dump import Dump, DumpError, Manifest, RecordingHost, ReplayHost
from probe.fact import Unavailable
from probe.host import LiveHost
from readiness.fixtures import load, machines


def empty() -> Dump:
    return Dump(Manifest(format=1, tool_version="0", recorded_at="2026-12-01T00:00:00Z", redacted=[]))


def assessment(dump: Dump) -> bytes:
    return msgspec.json.encode(assess(collect(ReplayHost(dump)), workloads().values()))


@pytest.mark.parametrize("name", machines())
@pytest.mark.parametrize("form", ["dump", "dump.tar.gz", "dump.tgz"])
def test_a_dump_comes_back_as_it_was(name: str, form: str, tmp_path: Path) -> None:
    dump = load(name)
    dumps.write(dump, tmp_path / form)
    back = dumps.read(tmp_path / form)
    for part in ("files", "blobs", "listings", "links", "usages", "commands", "answers", "nvml", "manifest"):
        assert getattr(back, part) == getattr(dump, part), part
    assert assessment(back) == assessment(dump)


def test_this_machine_recorded_and_replayed_is_judged_alike(tmp_path: Path) -> None:
    recording = RecordingHost(LiveHost(), empty())
    live = assess(collect(recording), workloads().values())
    for form in ("dump", "dump.tar.gz"):
        dumps.write(recording.dump, tmp_path / form)
        assert assessment(dumps.read(tmp_path / form)) == msgspec.json.encode(live)


def test_failures_are_recorded_too() -> None:
    recording = RecordingHost(LiveHost(), empty())
    for ask in (
        lambda host: host.read("/proc/nothing"),
        lambda host: host.listing("/proc/nothing"),
        lambda host: host.link("/proc/nothing"),
        lambda host: host.read_bytes("/proc/nothing"),
        lambda host: host.usage("/proc/nothing"),
    ):
        with pytest.raises(Unavailable) as live:
            ask(recording)
        with pytest.raises(Unavailable) as replayed:
            ask(ReplayHost(recording.dump))
        assert (live.value.reason, live.value.detail) == (replayed.value.reason, replayed.value.detail)
        assert live.value.reason == "absent"


def test_what_was_not_recorded_is_not_absent() -> None:
    with pytest.raises(Unavailable) as answer:
        ReplayHost(empty()).read("/proc/cpuinfo")
    assert answer.value.reason == "error"
    assert answer.value.detail == "not in this recording"


def test_texts_that_cannot_stand_at_their_own_path(tmp_path: Path) -> None:
    dump = empty()
    dump.files = {
        "/a": "is a file",
        "/a/b": "and a folder",
        "/": "root",
        "/x/../y": "dots",
        "/" + "n" * 300: "long",
        "/new\nline": "\udcff?",
    }
    for form in ("dump", "dump.tar.gz"):
        dumps.write(dump, tmp_path / form)
        assert dumps.read(tmp_path / form).files == {**dump.files, "/new\nline": "??"}


def test_an_existing_dump_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    with pytest.raises(FileExistsError):
        dumps.write(empty(), tmp_path / "dump")


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for form in ("dump", "dump.tar.gz"):
        with pytest.raises(OSError, match="No space"):
            dumps.write(empty(), tmp_path / form)
    assert list(tmp_path.iterdir()) == []


def test_a_dump_is_its_owners_alone(tmp_path: Path) -> None:
    dumps.write(empty(), tmp_path / "dump")
    dumps.write(empty(), tmp_path / "dump.tar.gz")
    assert (tmp_path / "dump").stat().st_mode & 0o077 == 0
    assert (tmp_path / "dump.tar.gz").stat().st_mode & 0o077 == 0


# --- hostile and broken ------------------------------------------------------------------------------------------------------------

MANIFEST = {"format": 1, "tool_version": "0", "recorded_at": "2026-12-01T00:00:00Z", "redacted": []}


def archive(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in {"d/manifest.json": json.dumps(MANIFEST).encode(), **members}.items():
            if isinstance(content, tarfile.TarInfo):
                out.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"d/../../etc/passwd": b"x"}, "points out of the archive"),
        ({"/etc/passwd": b"x"}, "points out of the archive"),
        ({"d/files/link": special("d/files/link", tarfile.SYMTYPE, "/etc/shadow")}, "a link or a device"),
        ({"d/files/hard": special("d/files/hard", tarfile.LNKTYPE, "d/manifest.json")}, "a link or a device"),
        ({"d/files/dev": special("d/files/dev", tarfile.CHRTYPE)}, "a link or a device"),
        ({"d/files/fifo": special("d/files/fifo", tarfile.FIFOTYPE)}, "a link or a device"),
        ({"d/index.jsonl": b'{"op":"read","path":"/x","text":"ok"}\n{"op":'}, "index.jsonl line 2"),
        ({"d/index.jsonl": b'{"op":"steal","path":"/x","text":""}\n'}, "unknown operation"),
        ({"d/index.jsonl": b'{"op":"read","path":"relative","text":""}\n'}, "no absolute path"),
        ({"d/index.jsonl": b'{"op":"read","path":"/x"}\n'}, "neither an answer nor a reason"),
        ({"d/index.jsonl": b'{"op":"bytes","path":"/x","hex":"zz"}\n'}, "line 1"),
        ({"d/index.jsonl": b'{"op":"read","path":"/x","reason":"bored"}\n'}, "line 1"),
        ({"d/index.jsonl": b'{"op":"read","path":"/x","text":"y","extra":1}\n'}, "extra"),
        ({"d/index.jsonl": b'["' + b"[" * 100_000 + b"\n"}, "line 1"),
        ({"d/commands.jsonl": b'{"argv":["lspci"]}\n'}, "neither exit_code nor reason"),
        ({"d/nvml.jsonl": b'{"call":1}\n'}, "nvml.jsonl line 1"),
        ({"d/nvml.jsonl": b"\xff\xfe\x00\n"}, "nvml.jsonl line 1"),
        ({"d/manifest.json": b'{"format": 99, "from": "the future"}'}, "format 99 is newer"),
        ({"d/manifest.json": b"[]"}, "manifest.json"),
        ({"d/manifest.json": b'{"format": "one"}'}, "manifest.json"),
        ({"d/manifest.json": b""}, "manifest.json"),
    ],
)
def test_a_hostile_or_broken_archive(members: dict[str, bytes | tarfile.TarInfo], words: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "dump.tar.gz", members)
    with pytest.raises(DumpError) as error:
        dumps.read(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_no_manifest(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as out:
        info = tarfile.TarInfo("readme.txt")
        out.addfile(info, io.BytesIO())
    for path in (tmp_path / "other.tar.gz", tmp_path):
        with pytest.raises(DumpError, match=r"no manifest\.json"):
            dumps.read(path)


def test_a_truncated_archive(tmp_path: Path) -> None:
    dumps.write(load("dual-l40s"), tmp_path / "dump.tar.gz")
    whole = (tmp_path / "dump.tar.gz").read_bytes()
    for length in (0, 1, 10, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.tar.gz").write_bytes(whole[:length])
        with pytest.raises(DumpError):
            dumps.read(tmp_path / "cut.tar.gz")


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "gzip").write_bytes(gzip.compress(b"hello" * 1000))
    os.mkfifo(tmp_path / "fifo")
    for name in ("text", "gzip", "fifo", "nothing"):
        with pytest.raises(DumpError):
            dumps.read(tmp_path / name)


def bomb(path: Path, pad: Callable[[gzip.GzipFile], None]) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as out:
        pad(out)
    return path


def test_a_bomb_does_not_explode(tmp_path: Path) -> None:
    def announced(out: gzip.GzipFile) -> None:  # a member that says it is huge, and is
        info = tarfile.TarInfo("d/files/zeros")
        info.size = 1 << 30
        out.write(info.tobuf())
        out.write(bytes(1 << 20))

    def hidden(out: gzip.GzipFile) -> None:  # an extended header of half a GiB, which tarfile reads into memory
        info = tarfile.TarInfo("d/pax")
        info.type, info.size = tarfile.XHDTYPE, 512 << 20
        out.write(info.tobuf())
        for _ in range(512):
            out.write(bytes(1 << 20))

    for name, pad in (("announced", announced), ("hidden", hidden)):
        started = time.monotonic()
        with pytest.raises(DumpError):
            dumps.read(bomb(tmp_path / f"{name}.tar.gz", pad))
        assert time.monotonic() - started < 20


def test_a_folder_with_a_link_in_it(tmp_path: Path) -> None:
    dumps.write(empty(), tmp_path / "dump")
    (tmp_path / "dump" / "files").mkdir(exist_ok=True)
    (tmp_path / "dump" / "files" / "etc").symlink_to("/etc")
    with pytest.raises(DumpError, match="no links, pipes or devices"):
        dumps.read(tmp_path / "dump")


def test_a_dump_edited_by_hand(tmp_path: Path) -> None:
    """A dump is a folder that a person can change."""
    dumps.write(load("hgx-h100"), tmp_path / "dump")
    width = tmp_path / "dump/files/sys/bus/pci/devices/0000:13:00.0/current_link_width"
    assert width.read_text() == "16\n"
    width.write_text("4\n")
    found = assess(collect(ReplayHost(dumps.read(tmp_path / "dump"))), workloads().values()).findings
    assert [(one.check, one.device) for one in found if one.status == "failed"] == [("pcie.width", "gpu0")]
    shutil.rmtree(tmp_path / "dump/files")
    assert dumps.read(tmp_path / "dump").files == {}
