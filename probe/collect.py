"""Runs every probe and puts their facts together.

The probes run side by side in threads, each bounded by the deadline: one whose file never answers is left behind, its facts are
`Missing`, and the others stand. This is one of the two places where an unexpected exception is evidence and not an end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from probe import cpu, gpu, memory, pcie, system
from probe.fact import Missing
from probe.host import Host
from probe.snapshot import Cpu, Driver, Memory, Snapshot, System

T = TypeVar("T")

SLOW_SECONDS = 1.0
"""After this long `progress` is told which probe is waited for."""


PROBES: dict[str, Callable[[Host], Any]] = {
    "nvml": gpu.probe,
    "system": system.probe,
    "pci": pcie.devices,
    "cpu": cpu.probe,
    "memory": memory.probe,
}


def all_missing(kind: type[T], missing: Missing) -> T:
    """A fact of which nothing is known."""
    return kind(**{field.name: missing for field in msgspec.structs.fields(kind)})  # type: ignore[arg-type]


def collect(host: Host, *, deadline_seconds: float = 12.0, progress: Callable[[str], None] = lambda name: None) -> Snapshot:
    """Ask the machine everything. Always returns, at the latest shortly after the deadline."""
    answers: dict[str, Any] = {}

    def ask(name: str) -> None:
        try:
            answers[name] = PROBES[name](host)
        except Exception as error:  # a fault of ours becomes evidence; the other probes stand
            answers[name] = Missing("error", f"{type(error).__name__}: {error}", f"{name} probe")

    threads = {name: threading.Thread(target=ask, args=(name,), name=f"probe {name}", daemon=True) for name in PROBES}
    end = time.monotonic() + deadline_seconds
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(min(SLOW_SECONDS, max(0.0, end - time.monotonic())))
        if thread.is_alive():
            progress(name)
            thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            answers.setdefault(name, Missing("timeout", f"no end within {deadline_seconds:g} s", f"{name} probe"))
    return _put_together(dict(answers))


def _put_together(answers: dict[str, Any]) -> Snapshot:
    def known(name: str, kind: type[T]) -> T:
        answer = answers[name]
        return all_missing(kind, answer) if isinstance(answer, Missing) else answer

    nvml = answers["nvml"]
    if isinstance(nvml, Missing):
        unknown = all_missing(Driver, nvml)
        nvml = gpu.Probed(gpus=[], pairs=[], driver=msgspec.structs.replace(unknown, init_error=None, broken_off=str(nvml)))
    return Snapshot(
        system=known("system", System),
        driver=nvml.driver,
        gpus=nvml.gpus,
        gpu_pairs=nvml.pairs,
        pci=answers["pci"],
        cpu=known("cpu", Cpu),
        memory=known("memory", Memory),
    )
