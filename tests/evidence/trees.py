"""Unpacks the trees of the evidence folder: tar archives, `.ttar` texts of node_exporter and procfs, and `/sys` kept as JSON."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any


def from_tar(archive: Path, into: Path) -> Path:
    """Unpack regular files and links; hwloc's archives have one folder at the top, which is returned."""
    with tarfile.open(archive) as opened:
        opened.extraction_filter = lambda member, path: member  # as they are: an argument for that came with Python 3.11.4
        for member in opened:
            if member.isreg() or member.isdir() or member.issym():
                member.mode = 0o755 if member.isdir() else 0o644
                try:
                    opened.extract(member, into)
                except OSError:
                    continue
    tops = list(into.iterdir())
    return tops[0] if len(tops) == 1 and tops[0].is_dir() else into


def from_ttar(text: Path, into: Path) -> Path:
    """ttar: `Directory:`, `Path:` with `Lines:` or `SymlinkTo:`, `Mode:`; `NULLBYTE` and `EOF` are escapes in the content."""
    lines = iter(text.read_text(errors="replace").splitlines())
    path = ""
    for line in lines:
        word, _, rest = line.partition(": ")
        if word == "Directory":
            (into / rest).mkdir(parents=True, exist_ok=True)
        elif word == "Path":
            path = rest
        elif word == "SymlinkTo":
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).symlink_to(rest)
        elif word == "Lines":
            content = "\n".join(next(lines) for _ in range(int(rest))) + "\n"
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_text(content.replace("NULLBYTE", "\0").removesuffix("EOF\n"))
    return into


def from_json(packed: Path, into: Path) -> Path:
    """`/sys` as `{path: text, {"link": target} or {"errno": number}}`."""
    kept: dict[str, Any] = json.loads(gzip.decompress(packed.read_bytes()))
    for path, content in sorted(kept.items()):
        file = into / path.lstrip("/")
        if isinstance(content, dict) and "link" not in content:
            continue
        if file.exists() or file.is_symlink():
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, dict):
                file.symlink_to(content["link"])
            elif isinstance(content, str):
                file.write_text(content)
        except (OSError, NotADirectoryError):
            continue
    return into
