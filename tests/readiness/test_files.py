"""Files are written whole or not at all, and what is no file stays what it is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from readiness.files import write_whole


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".readiness.{os.getpid()}.{threading.get_ident()}.partial").symlink_to(victim)
    write_whole(tmp_path / "report", b"new")
    assert victim.read_text() == "mine"
    assert (tmp_path / "report").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["report", "victim"]


def test_what_was_there_stays_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "report", b"new")
    assert (tmp_path / "report").read_text() == "old"
    assert os.listdir(tmp_path) == ["report"]


def test_the_mode_counts_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "open", b"", mode=0o644)
        write_whole(tmp_path / "closed", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o600
