"""Words that every face of the report says alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from checks.finding import Finding
from checks.score import WorkloadVerdict
from checks.workload.fit import LONGEST_TOKENS, Fit
from checks.workload.fit import gigabytes as gigabytes
from probe.fact import Missing
from probe.snapshot import Snapshot
from reports.document import Report

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text from a machine, without what could steer a terminal or pass for a line of ours: control characters, line ends, and marks that turn
    the direction of writing."""
    return CONTROL.sub("\ufffd", text)


def verdict_words(verdict: str) -> str:
    """READY_WITH_WARNINGS → READY WITH WARNINGS."""
    return verdict.replace("_", " ")


def machine(facts: Snapshot) -> str:
    """The machine in a line: GPUs, driver, RAM."""
    names = Counter(gpu.name if isinstance(gpu.name, str) else "GPU (unnamed)" for gpu in facts.gpus)
    version, module = facts.driver.driver_version, facts.driver.module_version
    told = isinstance(version, str) or version.reason == "absent"
    parts = [f"{count} × {name}" for name, count in names.items()] or ["no GPU seen by the driver" if told else "GPUs not known"]
    if isinstance(version, str):
        parts.append(f"driver {version}")
    elif isinstance(module, str):
        parts.append(f"kernel module {module}")
    else:
        parts.append("no driver" if version.reason == "absent" else "driver not known")
    total = facts.memory.total_bytes
    parts.append("RAM not known" if isinstance(total, Missing) else f"{gigabytes(total)} RAM")
    return printable(", ".join(parts))


def unfit(report: Report) -> list[WorkloadVerdict]:
    """The required workloads that do not fit, fit only with a condition, or of which that cannot be told."""
    return [one for one in report.workloads if one.workload in report.required and one.fit.status in ("failed", "warned", "unknown")]


def host(report: Report) -> str:
    """The node's name, and of what make it is."""
    system = report.facts.system
    name = system.host_name if isinstance(system.host_name, str) else "this node"
    make = " ".join(word for word in (system.vendor, system.product) if isinstance(word, str))
    return printable(f"{name} ({make})" if make else name)


def origin(report: Report) -> str:
    """Whether this is the machine itself or a recording, of when and what."""
    if report.source.kind == "live":
        return f"this machine, {report.source.recorded_at}"
    redacted = ", redacted" if report.source.redacted else ""
    return printable(f"REPLAY of {report.source.name}, recorded {report.source.recorded_at}{redacted}")


def grouped(findings: Sequence[Finding]) -> list[tuple[list[str], Finding]]:
    """Findings that say the same of several devices, as one with the devices' names."""
    groups: dict[tuple[str, str, str, str], tuple[list[str], Finding]] = {}
    for finding in findings:
        devices, _ = groups.setdefault((finding.check, finding.status, finding.summary, finding.accepted), ([], finding))
        devices.append(finding.device)
    return list(groups.values())


def by_cause(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that could not be judged, by what kept them from it."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.cause or finding.summary, finding.fix), []).append(finding)
    return list(groups.values())


def ports(facts: Snapshot) -> list[str]:
    """The RDMA ports by what they are taken for, and why: `compute: 8 × 400 Gb/s NDR (mlx5_0, ...): fast port`."""
    if isinstance(facts.rdma, Missing):
        return []
    groups: dict[tuple[str, str, str], list[str]] = {}
    for port in facts.rdma:
        rate = f"{port.rate_gbps:g} Gb/s" if isinstance(port.rate_gbps, float) else "rate not known"
        speed = port.speed_name if isinstance(port.speed_name, str) and port.link_layer == "InfiniBand" else port.link_layer
        kind = f"{rate} {speed}" if isinstance(speed, str) else rate
        groups.setdefault((port.role, kind, port.role_reason), []).append(port.device if port.port == 1 else f"{port.device}/{port.port}")
    order = ("compute", "storage", "management", "unused")
    return [
        printable(f"{role}: {len(names)} × {kind} ({', '.join(names[:2])}{', ...' if len(names) > 2 else ''}): {why}")
        for (role, kind, why), names in sorted(groups.items(), key=lambda item: order.index(item[0][0]))
    ]


def device_list(devices: Sequence[str]) -> str:
    """gpu0, gpu1, gpu2, gpu5 → gpu0-2, gpu5; more than four names are counted."""
    numbers = [int(name[3:]) for name in devices if re.fullmatch(r"gpu\d+", name)]
    if len(numbers) != len(devices):
        return printable(", ".join(devices) if len(devices) <= 4 else f"{', '.join(devices[:3])} and {len(devices) - 3} more")
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"gpu{first}-{last}" if first != last else f"gpu{first}" for first, last in runs)


def pace(fitted: Fit) -> str:
    """How fast the chosen strategy would run and what binds it, how far it can be stretched, and how long a checkpoint takes."""
    chosen = next((one for one in fitted.strategies if one.strategy == fitted.strategy), None)
    if chosen is None:
        return ""
    said = []
    if chosen.tokens_per_second:
        slower = f", {fitted.network_slowdown:.1f} × slower than over 400 Gb/s a GPU" if (fitted.network_slowdown or 1) > 1.05 else ""
        said.append(f"about {two_digits(chosen.tokens_per_second)} tokens/s, bound by {chosen.limit}{slower}")
    if fitted.longest_sequence_tokens:
        least = "at least " if fitted.longest_sequence_tokens >= LONGEST_TOKENS else ""
        said.append(f"memory for {least}{fitted.longest_sequence_tokens:,} tokens a sequence")
    if fitted.largest_micro_batch and chosen.tokens_per_second:
        said[-1] += f" or a micro-batch of {fitted.largest_micro_batch}"
    if fitted.checkpoint_bytes > 1e11:
        said.append(f"checkpoint {gigabytes(fitted.checkpoint_bytes)} in {duration(fitted.checkpoint_seconds)}")
    return "; ".join(said)


def bytes_beside(fitted: Fit) -> str:
    """What the chosen strategy takes in main memory and on drives: while it loads, and for a checkpoint, whole and by its parts."""
    chosen = next((one for one in fitted.strategies if one.strategy == fitted.strategy), None)
    if chosen is None or not fitted.checkpoint_bytes:
        return ""
    naive = f" ({gigabytes(fitted.naive_loading_bytes)} where every process loads its own)" if fitted.gpus > 1 else ""
    said = f"RAM {gigabytes(chosen.host_need_bytes)} with one copy while loading{naive}"
    if fitted.checkpoint_bytes > 1e11:
        shard = gigabytes(fitted.checkpoint_bytes // (fitted.gpus * fitted.nodes))
        said += f"; checkpoint by shards {shard} from each GPU; weights alone {gigabytes(fitted.export_bytes)}"
    return said


def two_digits(value: float) -> str:
    """An estimate with no more digits than it has: 3,437 as 3,400."""
    scale = 10 ** max(0, len(str(int(value))) - 2)
    return f"{round(value / scale) * scale:,}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 40 s, 7 min, 3.5 h, 12 days."""
    for limit, unit, words in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {words}"
    return f"{seconds / 86_400:.0f} days"
