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

from probe import cooling, cpu, gpu, kernel_log, memory, pcie, power, rdma, software, storage, system, ups
from probe.fact import Missing, Unavailable
from probe.host import Host
from probe.snapshot import Cpu, Driver, Memory, Power, Site, Snapshot, Software, Storage, System

T = TypeVar("T")

SLOW_SECONDS = 1.0
"""After this long `progress` is told which probe is waited for."""


Sources = list[tuple[str, str]]

PROBES: dict[str, Callable[[Host, Site, Sources], Any]] = {
    "nvml": lambda host, site, sources: gpu.probe(host),
    "system": lambda host, site, sources: system.probe(host),
    "pci": lambda host, site, sources: pcie.devices(host),
    "cpu": lambda host, site, sources: cpu.probe(host),
    "memory": lambda host, site, sources: memory.probe(host),
    "network": lambda host, site, sources: rdma.probe(host, site),
    "storage": lambda host, site, sources: storage.probe(host, site),
    "power": lambda host, site, sources: power.probe(host, [name for kind, name in sources if kind == "redfish"]),
    "ups": lambda host, site, sources: ups.probe(host, [source for source in sources if source[0] != "redfish"]),
    "cooling": lambda host, site, sources: cooling.probe(host, [name for kind, name in sources if kind == "redfish"]),
    "kernel log": lambda host, site, sources: kernel_log.probe(host),
    "software": lambda host, site, sources: software.probe(host, site),
}


def all_missing(kind: type[T], missing: Missing) -> T:
    """A fact of which nothing is known."""
    return kind(**{field.name: missing for field in msgspec.structs.fields(kind)})  # type: ignore[arg-type]


def collect(host: Host, *, deadline_seconds: float = 12.0, progress: Callable[[str], None] = lambda name: None) -> Snapshot:
    """Ask the machine everything. Always returns, at the latest shortly after the deadline."""
    answers: dict[str, Any] = {}
    site, sources = site_of(host)

    def ask(name: str) -> None:
        try:
            answers[name] = PROBES[name](host, site, sources)
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
    return put_together(dict(answers), site)


def site_of(host: Host) -> tuple[Site, Sources]:
    """What the site's configuration says of the machine, and the UPSs and BMCs it names."""
    try:
        site = msgspec.convert(host.ask("site", "") or {}, Site)
    except (Unavailable, msgspec.ValidationError):
        site = Site()
    try:
        sources = msgspec.convert(host.ask("sources", ""), Sources)
    except (Unavailable, msgspec.ValidationError):
        sources = []
    return site, sources


def put_together(answers: dict[str, Any], site: Site) -> Snapshot:
    """The probes' answers, by name, as one snapshot; a probe whose answer is Missing leaves its facts Missing."""

    def known(name: str, kind: type[T]) -> T:
        answer = answers[name]
        return all_missing(kind, answer) if isinstance(answer, Missing) else answer

    nvml = answers["nvml"]
    if isinstance(nvml, Missing):
        hung = str(nvml) if nvml.reason == "timeout" else None
        nvml = gpu.Probed(gpus=[], pairs=[], driver=msgspec.structs.replace(all_missing(Driver, nvml), init_error=None, broken_off=hung))
    return Snapshot(
        system=known("system", System),
        driver=nvml.driver,
        gpus=nvml.gpus,
        gpu_pairs=nvml.pairs,
        pci=answers["pci"],
        cpu=known("cpu", Cpu),
        memory=known("memory", Memory),
        rdma=answers["network"] if isinstance(answers["network"], Missing) else answers["network"][0],
        interfaces=answers["network"] if isinstance(answers["network"], Missing) else answers["network"][1],
        storage=known("storage", Storage),
        power=known("power", Power),
        upses=answers["ups"],
        sensors=answers["cooling"],
        kernel_log=answers["kernel log"],
        software=known("software", Software),
        site=site,
    )
