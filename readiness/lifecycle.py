"""The life of a finding in the daemon: raised after several bad passes, cleared after several good ones, kept over a restart.

One odd reading wakes nobody up, and a fault that comes and goes is not forgotten in between. A pass counts for a finding only if its
probe has answered again since the last one: a storage probe that runs every five minutes is not two readings after two publications. The
memory is a small file, keyed by boot, check and device: a reboot starts anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from checks.finding import Finding
from readiness.files import write_whole

VERSION = 1
BAD = ("failed", "warned")
log = logging.getLogger(__name__)


class Life(msgspec.Struct):
    """How a check of a device has gone: passes in a row, and the finding that stands while it is raised."""

    bad: int = 0
    good: int = 0
    raised: Finding | None = None


class Memory(msgspec.Struct):
    """What the file holds."""

    version: int
    boot_id: str
    lives: dict[str, Life]


class Lifecycle:
    """Turns the findings of each pass into those that stand."""

    def __init__(self, path: Path | None, *, raise_after: int = 2, clear_after: int = 3) -> None:
        self.path = path
        self.raise_after = raise_after
        self.clear_after = clear_after
        self.boot_id = ""
        self.lives: dict[str, Life] = {}
        self.unsettled: set[str] = set()
        """The components with a finding that waits for another reading."""
        self._written: bytes = b""
        if path is not None:
            self._load(path)

    def _load(self, path: Path) -> None:
        """Read the memory; a file that cannot be understood is put aside, and this is said."""
        try:
            content = path.read_bytes()
            memory = msgspec.json.decode(content, type=Memory)
            if memory.version != VERSION:
                raise msgspec.ValidationError(f"version {memory.version}")
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be understood (%s); it is kept as %s.corrupt, and findings start anew", path, error, path.name)
            try:
                os.replace(path, path.with_name(path.name + ".corrupt"))
            except OSError as failure:
                log.warning("%s cannot be put aside: %s", path, failure.strerror)
            return
        self.boot_id, self.lives = memory.boot_id, memory.lives

    def standing(
        self, findings: Sequence[Finding], boot_id: str, answered_again: Callable[[str], bool] = lambda component: True
    ) -> list[Finding]:
        """The findings that stand after this pass; `answered_again` tells whether a component's probe has."""
        if boot_id != self.boot_id:
            self.boot_id, self.lives = boot_id, {}
        found = [self._one(finding, int(answered_again(finding.component))) for finding in findings]
        self.unsettled = {
            finding.component
            for finding in findings
            if (life := self.lives.get(_key(finding))) is not None
            and (0 < life.bad < self.raise_after if life.raised is None else 0 < life.good < self.clear_after)
        }
        current = {_key(finding) for finding in findings}
        self.lives = {key: life for key, life in self.lives.items() if key in current and (life.bad or life.raised is not None)}
        self._save()
        return found

    def _one(self, finding: Finding, counts: int) -> Finding:
        life = self.lives.setdefault(_key(finding), Life())
        if finding.status in BAD:
            life.bad, life.good = max(1, life.bad + counts), 0
            if life.raised is not None or life.bad >= self.raise_after:
                life.raised = finding
                return finding
            words = f"seen {life.bad} of {self.raise_after} times: {finding.summary}"
            return msgspec.structs.replace(finding, status="unknown", summary=words, cause="not confirmed yet")
        if finding.status == "unknown" and life.raised is not None:
            return msgspec.structs.replace(life.raised, summary=f"{life.raised.summary} (could not be read since)")
        life.bad, life.good = 0, max(1, life.good + counts)
        if life.raised is not None and life.good < self.clear_after:
            return msgspec.structs.replace(
                life.raised, summary=f"{life.raised.summary} (gone for {life.good} of {self.clear_after} passes)"
            )
        life.raised = None
        return finding

    def _save(self) -> None:
        """Write the memory beside itself and rename it; a full disk is said and does no harm."""
        if self.path is None:
            return
        content = msgspec.json.encode(Memory(VERSION, self.boot_id, self.lives))
        if content == self._written:
            return
        try:
            write_whole(self.path, content)
            self._written = content
        except OSError as error:
            log.warning("%s cannot be written: %s", self.path, error.strerror)


def _key(finding: Finding) -> str:
    return f"{finding.check}[{finding.device}]"
