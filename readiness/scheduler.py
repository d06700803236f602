"""Runs every probe on its own interval, in its own thread, and keeps its last answer.

A probe that hangs holds up no other, and is never started a second time while it hangs; past its deadline it is called stuck. An answer that
has not been renewed for three intervals is stale: it becomes `Missing`, it is not frozen.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from probe.collect import PROBES, put_together, site_of
from probe.fact import Missing
from probe.host import Host
from probe.snapshot import Site, Snapshot
from reports.metrics import ProbeHealth

FAST_SECONDS, SLOW_SECONDS = 15.0, 300.0
SLOW = frozenset({"storage", "power", "cooling", "software"})
STALE_INTERVALS = 3
DEADLINE_MARGIN_SECONDS = 5.0

Clock = Callable[[], float]


class Run:
    """A probe's state: what it said last, and how its runs go. Written by its own thread alone."""

    def __init__(self, name: str, interval_seconds: float) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self.answer: Any = Missing("timeout", "not asked yet", f"{name} probe")
        self.started: float | None = None
        self.ended: float | None = None
        self.duration_seconds = 0.0
        self.success = False
        self.last_success_wall: float | None = None
        self.wanted = threading.Event()
        self.in_haste = False
        self.answers = 0


class Scheduler:
    """The probes and their threads. `make_host` gives a fresh host for each run: a driver that was replaced meanwhile is found.

    `published` is called whenever a probe has a new answer.
    """

    def __init__(
        self,
        make_host: Callable[[], Host],
        *,
        deadline_seconds: float,
        intervals: Mapping[str, float] | None = None,
        published: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.make_host = make_host
        self.deadline_seconds = deadline_seconds
        self.published = published
        self.clock = clock
        chosen = intervals or {}
        self.runs = {name: Run(name, chosen.get(name, SLOW_SECONDS if name in SLOW else FAST_SECONDS)) for name in PROBES}
        self.site: Site = Site()
        self._ending = threading.Event()

    def start(self) -> None:
        """Start every probe's thread."""
        for run in self.runs.values():
            threading.Thread(target=self._loop, args=(run,), name=f"probe {run.name}", daemon=True).start()

    def stop(self) -> None:
        """Let the threads end; one that hangs is left to the process's end."""
        self._ending.set()
        for run in self.runs.values():
            run.wanted.set()

    def run_now(self) -> None:
        """Ask every probe that is not running at once."""
        for run in self.runs.values():
            run.wanted.set()

    def ask_again(self, names: Collection[str]) -> None:
        """Ask these as often as the quick ones until told otherwise: a finding waits for another reading."""
        for run in self.runs.values():
            run.in_haste = run.name in names

    def _loop(self, run: Run) -> None:
        while not self._ending.is_set():
            run.wanted.clear()
            self._once(run)
            self.published()
            parts = math.ceil(run.interval_seconds / FAST_SECONDS)
            for _ in range(parts):
                if run.wanted.wait(run.interval_seconds / parts) or run.in_haste:
                    break

    def _once(self, run: Run) -> None:
        run.started, run.ended = self.clock(), None
        try:
            host = self.make_host()
            site, sources = site_of(host)
            self.site = site
            answer: Any = PROBES[run.name](host, site, sources)
        except Exception as error:  # evidence against the probe; the others go on
            answer = Missing("error", f"{type(error).__name__}: {error}", f"{run.name} probe")
        run.ended = self.clock()
        run.duration_seconds = run.ended - run.started
        run.success = not isinstance(answer, Missing) or answer.reason not in ("timeout", "error")  # "there is none" is an answer
        if run.success:
            run.last_success_wall = time.time()
        run.answer = answer
        run.answers += 1

    def complete(self) -> bool:
        """Whether every probe has answered, or is past its deadline."""
        return all(run.ended is not None or self._stuck(run) for run in self.runs.values())

    def _stuck(self, run: Run) -> bool:
        return (
            run.started is not None and run.ended is None and self.clock() - run.started > self.deadline_seconds + DEADLINE_MARGIN_SECONDS
        )

    def snapshot(self) -> Snapshot:
        """The last answers, those that are stale as `Missing`."""
        now = self.clock()
        answers: dict[str, Any] = {}
        for name, run in self.runs.items():
            since = run.ended if run.ended is not None else run.started
            old = since is not None and now - since > STALE_INTERVALS * run.interval_seconds + self.deadline_seconds
            stuck = self._stuck(run)
            answers[name] = (
                Missing("timeout", f"no answer since {now - (since or now):.0f} s", f"{name} probe") if old or stuck else run.answer
            )
        return put_together(answers, self.site)

    def health(self) -> list[ProbeHealth]:
        """How the probes go."""
        return [
            ProbeHealth(
                name=run.name.replace(" ", "_"),
                success=run.success and not self._stuck(run),
                stuck=self._stuck(run),
                duration_seconds=run.duration_seconds,
                last_success=run.last_success_wall,
            )
            for run in self.runs.values()
        ]
