"""`readiness serve`: the scheduler, the publisher that makes the pages, and the server that sends them.

One loop publishes: it assembles the last answers, judges them, lets findings live their life, renders every page once, and swaps them in. The
watchdog is told by that loop and by nothing else, so that systemd sees real progress; a probe that hangs does not stop it.
"""

from __future__ import annotations

import asyncio
import datetime
import gzip
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from probe.host import Host
from readiness import __version__
from readiness.files import write_whole
from readiness.judge import Wanted, judge
from readiness.lifecycle import Lifecycle
from readiness.notify import notify
from readiness.scheduler import SLOW, Scheduler
from readiness.web import Access, Page, Pages, Server
from reports import metrics
from reports.document import Report, Source, to_json

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 15.0
SETTLE_SECONDS = 1.0
"""Several probes that end together are published together; the very first report waits for nobody."""
WATCHDOG_SECONDS = 10.0


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a reload may change: what is to be judged, and how a host is had."""

    want: Wanted
    make_host: Callable[[], Host]
    source: Callable[[], Source]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says, and a reload does not change."""

    listen_host: str
    listen_port: int
    web_config: Path | None
    state_file: Path | None
    report_file: Path | None
    deadline_seconds: float
    intervals: Mapping[str, float]
    raise_after: int
    clear_after: int


class Daemon:
    """The service. `reload` makes a new setup, or raises an exception whose text says why not."""

    def __init__(self, setup: Setup, options: Options, reload: Callable[[], Setup]) -> None:
        self.setup = setup
        self.options = options
        self.reload = reload
        self.access = Access(options.web_config)
        self.lifecycle = Lifecycle(options.state_file, raise_after=options.raise_after, clear_after=options.clear_after)
        self.server = Server(self.access, ready=lambda: bool(self.server.pages))
        self.scheduler = Scheduler(
            self._make_host,
            deadline_seconds=options.deadline_seconds,
            intervals=options.intervals,
            published=self._wake,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._ending = asyncio.Event()
        self._warned_probes: set[str] = set()
        self._counted: dict[str, int] = {}

    def _make_host(self) -> Host:
        return self.setup.make_host()

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    async def run(self, listening: Callable[[int], None] = lambda port: None) -> None:
        """Serve until SIGTERM or SIGINT."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ending.set)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        port = await self.server.listen(self.options.listen_host, self.options.listen_port)
        listening(port)
        notify("READY=1", "STATUS=waiting for the first report")
        self.scheduler.start()
        publisher = asyncio.create_task(self._publish_for_ever())
        await self._ending.wait()
        notify("STOPPING=1")
        publisher.cancel()
        self.scheduler.stop()
        await self.server.close()

    def _reload(self) -> None:
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            self.setup = self.reload()
            log.info("configuration read again")
        except Exception as error:
            log.error("%s; the old configuration stays in force", error)
        self.access.refresh()
        self.scheduler.run_now()
        notify("READY=1")

    async def _publish_for_ever(self) -> None:
        last = 0.0
        while True:
            try:
                await asyncio.wait_for(self._news.wait(), WATCHDOG_SECONDS)
                await asyncio.sleep(SETTLE_SECONDS if self.server.pages else 0.05)
            except TimeoutError:
                pass
            due = self._news.is_set() or time.monotonic() - last >= PUBLISH_SECONDS
            self._news.clear()
            self.access.refresh()
            if due and self._worth_publishing():
                try:
                    report, pages = await asyncio.to_thread(self._make)
                    self.server.pages = pages
                    last = time.monotonic()
                    notify("WATCHDOG=1", f"STATUS={report.verdict} for {', '.join(report.required)}")
                except Exception as error:  # one bad pass must not end the service; the pages stay, and grow stale
                    log.error("the report could not be made: %s: %s", type(error).__name__, error)
            else:
                notify("WATCHDOG=1")

    def _worth_publishing(self) -> bool:
        """The first report waits for the quick probes; the slow ones may come later."""
        if self.server.pages:
            return True
        return self.scheduler.complete() or all(run.ended is not None for run in self.scheduler.runs.values() if run.name not in SLOW)

    def _make(self) -> tuple[Report, Pages]:
        """The report of now, and every page of it."""
        setup = self.setup
        answers = {name: run.answers for name, run in self.scheduler.runs.items()}
        snapshot = self.scheduler.snapshot()
        boot = snapshot.system.boot_id if isinstance(snapshot.system.boot_id, str) else ""

        def renewed(component: str) -> bool:
            return answers.get(probe_of(component)) != self._counted.get(probe_of(component))

        report = judge(snapshot, setup.want, setup.source(), lambda findings: self.lifecycle.standing(findings, boot, renewed))
        self._counted = answers
        self.scheduler.ask_again({probe_of(component) for component in self.lifecycle.unsettled})
        health = self.scheduler.health()
        self._tell(health)
        found = [*metrics.families(report), *metrics.own_families(health, __version__, platform.python_version(), time.time())]
        from reports import html

        document = to_json(report).encode()
        pages = {
            "/metrics": _page(metrics.TEXT, metrics.text(found)),
            "/metrics openmetrics": _page(metrics.OPENMETRICS, metrics.openmetrics(found)),
            "/report.json": Page("application/json", document, b""),
            "/": Page("text/html; charset=utf-8", html.render(report).encode("utf-8", "replace"), b""),
        }
        pages["/report.html"] = pages["/"]
        pages["/checks"] = _page_of_checks()
        self._keep(document)
        return report, pages

    def _tell(self, health: list[metrics.ProbeHealth]) -> None:
        """Log a probe that fails or hangs once, and once more when it works again."""
        for probe in health:
            bad = probe.stuck or (not probe.success and probe.duration_seconds > 0)
            if bad and probe.name not in self._warned_probes:
                log.warning("probe %s %s", probe.name, "hangs" if probe.stuck else "failed")
                self._warned_probes.add(probe.name)
            elif not bad and probe.name in self._warned_probes:
                log.info("probe %s works again", probe.name)
                self._warned_probes.discard(probe.name)

    def _keep(self, document: bytes) -> None:
        """Leave the report for `readiness check --cached`."""
        path = self.options.report_file
        if path is None:
            return
        try:
            write_whole(path, document, mode=0o644)  # who may enter the folder may read it, whatever the service's umask
        except OSError as error:
            if "report file" not in self._warned_probes:
                log.warning("%s cannot be written: %s", path, error.strerror)
                self._warned_probes.add("report file")


def probe_of(component: str) -> str:
    """The probe whose answer a component's checks read."""
    return {"gpu": "nvml", "driver": "nvml", "nvlink": "nvml", "pcie": "pci", "kernel": "kernel log"}.get(component, component)


@cache
def _page_of_checks() -> Page:
    from reports import html

    return _page("text/html; charset=utf-8", html.checks().encode())


def _page(content_type: str, body: bytes) -> Page:
    return Page(content_type, body, gzip.compress(body, compresslevel=1, mtime=0))


def utc_now() -> str:
    """ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def serve(daemon: Daemon) -> None:
    """Run the service to its end; returns at the latest two seconds after SIGTERM, whatever hangs."""

    def listening(port: int) -> None:
        scheme = "https" if daemon.access.tls is not None else "http"
        log.info("listening on %s://%s:%d", scheme, daemon.options.listen_host, port)

    asyncio.run(daemon.run(listening))
    if "probe.process" in sys.modules:
        sys.modules["probe.process"].end_all()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(0)  # a probe's thread that waits for a dead driver would hold the interpreter back
