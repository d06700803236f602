"""The uninterruptible power supply: its state, and whether it lasts for a checkpoint and a clean end."""

from __future__ import annotations

from checks.catalog import workloads
from checks.finding import Verdict, check, failed, known, or_none, passed, unknown, warned
from checks.node import Node
from checks.power import peak_watts
from checks.workload.memory import ASSUMED_STORAGE_GBPS, checkpoint_bytes
from probe.fact import Missing
from probe.snapshot import Ups

FAILING = {
    "OB": "on battery",
    "LB": "battery low",
    "FSD": "shutting down",
    "OFF": "off",
    "OVER": "overloaded",
    "COMMLOST": "lost by its driver",
}
WARNING = {
    "RB": "wants a new battery",
    "NOBATT": "has no battery",
    "OVERHEAT": "too hot",
    "NOCOMM": "does not talk to its driver",
    "BYPASS": "in bypass: nothing is protected",
    "CAL": "calibrating",
    "ALARM": "raises an alarm",
    "TRIM": "trimming a high voltage",
    "BOOST": "boosting a low voltage",
}


def each_ups(node: Node) -> list[tuple[str, Ups | Missing]]:
    """The UPSs that the site names."""
    upses = node.snapshot.upses
    return [("ups", upses)] if isinstance(upses, Missing) else [(one.name, one) for one in upses]


@check(
    "ups.status",
    component="ups",
    title="UPS on line, battery good",
    per=each_ups,
    weight=3,
    source="NUT developer guide, ups.status; apcupsd STATUS; UPS-MIB (RFC 1628) upsOutputSource, upsBatteryStatus",
)
def status(ups: Ups, node: Node) -> Verdict:
    """The UPS must be on line. On battery, low, overloaded, off or lost by its driver fails; a worn battery, bypass or an alarm warns."""
    words = known(ups.status)
    evidence = [
        f"{ups.protocol}: {' '.join(words)}",
        f"charge {or_none(ups.charge_ratio)}, battery of {or_none(ups.battery_date) or 'unknown date'}",
    ]
    bad = [text for word, text in FAILING.items() if word in words]
    if bad:
        return failed(", ".join(bad), evidence=evidence, fix="look at the mains and the UPS; save checkpoints now")
    doubtful = [text for word, text in WARNING.items() if word in words]
    if doubtful:
        return warned(", ".join(doubtful), evidence=evidence, fix="see to the UPS before a long run")
    if "OL" not in words:
        return unknown(Missing("not_supported", f"neither on line nor on battery by its own word: {' '.join(words)}", ups.protocol))
    return passed(f"on line{f', {ups.load_ratio:.0%} load' if isinstance(ups.load_ratio, float) else ''}", evidence=evidence)


@check(
    "ups.capacity",
    component="ups",
    title="UPS carries the node's peak",
    per=each_ups,
    weight=2,
    source="field practice: at most 80 % load; the peak as in power.headroom",
    not_supported="the UPS does not tell its rated power",
)
def capacity(ups: Ups, node: Node) -> Verdict:
    """The UPS's rated real power must exceed the node's peak, and should not be loaded above 80 % by it."""
    nominal = known(ups.real_power_nominal_watts)
    peak = peak_watts(node)
    evidence = [f"rated {nominal:.0f} W, now {or_none(ups.real_power_watts)} W; the node's peak {peak:.0f} W"]
    if peak > nominal:
        return failed(
            f"the peak of {peak / 1000:.1f} kW exceeds its {nominal / 1000:.1f} kW",
            measured=nominal,
            required=peak,
            unit="W",
            evidence=evidence,
            fix="a larger UPS, or lower power limits",
        )
    if peak > node.thresholds.ups_load_share * nominal:
        return warned(
            f"the peak of {peak / 1000:.1f} kW loads it to {peak / nominal:.0%}",
            measured=nominal,
            required=peak / node.thresholds.ups_load_share,
            unit="W",
            evidence=evidence,
            fix="a larger UPS, or lower power limits",
        )
    return passed(
        f"{nominal / 1000:.1f} kW for a peak of {peak / 1000:.1f} kW", measured=nominal, required=peak, unit="W", evidence=evidence
    )


def seconds_needed(node: Node, workload: str) -> tuple[float, str]:
    """How long a UPS must last for one checkpoint of a workload and a clean end, and the sum in words."""
    chosen = workloads()[workload]
    size = checkpoint_bytes(chosen.shape, chosen, "full" if chosen.lora_rank == 0 else "lora")
    site = node.snapshot.site
    return seconds_to_end(size, site.storage_write_gbps, node.thresholds.ups_detect_seconds, site.shutdown_seconds)


def seconds_to_end(checkpoint: int, write_gbps: float | None, detect_seconds: float, shutdown_seconds: float) -> tuple[float, str]:
    """Noticing the power cut, writing a checkpoint (at 2 GB/s where the rate is not known) and shutting down, and the sum in words."""
    rate = write_gbps or ASSUMED_STORAGE_GBPS
    seconds = detect_seconds + checkpoint / (rate * 1e9) + shutdown_seconds
    writing = f"{checkpoint / 1e9:.0f} GB at {rate:g} GB/s{'' if write_gbps else ' (assumed)'} {checkpoint / (rate * 1e9):.0f} s"
    return seconds, f"{detect_seconds:.0f} s to notice + {writing} + {shutdown_seconds:.0f} s to shut down = {seconds:.0f} s"


@check(
    "ups.runtime",
    component="ups",
    title="UPS outlasts a checkpoint",
    per=each_ups,
    weight=2,
    source="checkpoint bytes over the storage's write rate (storage_write_gbps in the configuration, else 2 GB/s)",
    not_supported="the UPS does not tell its runtime",
)
def runtime(ups: Ups, node: Node) -> Verdict:
    """The runtime at the node's peak must exceed the time to write a checkpoint and shut down.

    Read: the runtime that the UPS gives for its present load, scaled down to the node's peak where that is more. Shorter than a LoRA run
    needs fails; shorter than a full 70B fine-tune needs (847 GB with optimizer states) warns.
    """
    told = known(ups.runtime_seconds)
    now = or_none(ups.real_power_watts)
    peak = peak_watts(node)
    at_peak = told * min(1.0, now / peak) if now is not None and peak else told
    full, full_words = seconds_needed(node, "full-70b")
    least, _ = seconds_needed(node, "lora-70b")
    evidence = [
        f"{told:.0f} s at the present {f'{now:.0f} W' if now is not None else 'load'}, {at_peak:.0f} s at the peak of {peak:.0f} W",
        f"needed: {full_words}",
    ]
    if at_peak < least:
        return failed(
            f"{at_peak:.0f} s at the peak, a LoRA checkpoint and a clean end need {least:.0f} s",
            measured=at_peak,
            required=least,
            unit="s",
            evidence=evidence,
            fix="more battery, or a checkpoint more often and a script that ends the run at once",
        )
    if now is None:
        words = f"real power: {told:.0f} s at the present load, which is not known; the peak needs {full:.0f} s at {peak / 1000:.1f} kW"
        return unknown(Missing("not_supported", words, ups.protocol))
    if at_peak < full:
        return warned(
            f"{at_peak:.0f} s at the peak, a full 70B checkpoint and a clean end need {full:.0f} s",
            measured=at_peak,
            required=full,
            unit="s",
            evidence=evidence,
            fix="more battery, or faster storage (storage_write_gbps tells of it)",
        )
    return passed(f"{at_peak:.0f} s at the peak, {full:.0f} s needed", measured=at_peak, required=full, unit="s", evidence=evidence)


CHECKS = [status, capacity, runtime]
