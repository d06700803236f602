"""What needs root is read by a small service of its own, and handed to the unprivileged daemon in a file: a recording.

The daemon reads it as it reads any recording, as if it were hostile, and takes from it only what it could not have itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from probe import cooling, kernel_log, pcie, power, storage
from probe.dump import FORMAT, Dump, DumpError, Manifest, RecordingHost, ReplayHost, read, write
from probe.fact import Unavailable
from probe.host import Completed, Host, Usage
from probe.nvml import Call
from probe.snapshot import Site
from readiness import __version__
from readiness.files import age_seconds

T = TypeVar("T")

MAX_AGE_SECONDS = 900.0
REFUSED = ("no_permission", "absent", "error")


def record_privileged(host: Host, target: Path, recorded_at: str) -> None:
    """Record what only root may read into an archive, which replaces the last one at once; its group may read it.

    Raises `OSError` where it cannot be written.
    """
    dump = Dump(Manifest(format=FORMAT, tool_version=__version__, recorded_at=recorded_at, redacted=[]))
    recording = RecordingHost(host, dump)
    for probe in (
        lambda: pcie.devices(recording),
        lambda: storage.probe(recording, Site()),
        lambda: power.probe(recording, []),
        lambda: cooling.probe(recording, []),
        lambda: kernel_log.probe(recording),
    ):
        probe()
    dump.usages.clear()  # sizes are anybody's to ask, and change
    beside = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        write(dump, beside)
        beside.chmod(0o640)
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


class HandoverHost:
    """A host that takes from a recording what the machine itself does not give."""

    def __init__(self, host: Host, path: Path, *, max_age_seconds: float = MAX_AGE_SECONDS) -> None:
        self.host = host
        self.recorded: ReplayHost | None = None
        try:
            if age_seconds(path) <= max_age_seconds:
                self.recorded = ReplayHost(read(path))
        except (OSError, DumpError):
            return

    def _either(self, ask: Callable[[Host], T]) -> T:
        try:
            return ask(self.host)
        except Unavailable as refusal:
            if self.recorded is None or refusal.reason not in REFUSED:
                raise
            try:
                return ask(self.recorded)
            except Unavailable:
                raise refusal from None

    def read(self, path: str) -> str:
        return self._either(lambda host: host.read(path))

    def read_bytes(self, path: str) -> bytes:
        content = b""
        try:
            content = self.host.read_bytes(path)
        except Unavailable:
            if self.recorded is None:
                raise
        if self.recorded is not None and len(content) <= 64:  # what an unprivileged reader gets of configuration space
            try:
                return self.recorded.read_bytes(path)
            except Unavailable:
                pass
        return content

    def listing(self, path: str) -> list[str]:
        return self._either(lambda host: host.listing(path))

    def link(self, path: str) -> str:
        return self._either(lambda host: host.link(path))

    def usage(self, path: str) -> Usage:
        return self.host.usage(path)

    def run(self, argv: Sequence[str]) -> Completed:
        """A tool that runs but is refused by the kernel says so with its exit code: then root's answer counts."""
        said = self._either(lambda host: host.run(argv))
        if said.exit_code and self.recorded is not None:
            try:
                return self.recorded.run(argv)
            except Unavailable:
                return said
        return said

    def nvml(self) -> list[Call]:
        return self.host.nvml()

    def ask(self, kind: str, address: str) -> Any:
        return self.host.ask(kind, address)
