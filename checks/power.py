"""Power: the supplies, what the node can draw at its peak, and the feed behind it."""

from __future__ import annotations

import math
from collections import Counter

from checks.finding import Verdict, amount, check, failed, known, not_applicable, or_none, passed, unknown, warned
from checks.node import Node, once
from probe.fact import Missing
from probe.snapshot import PowerSupply

CPU_WATTS = 350
NIC_WATTS = 25
DRIVE_WATTS = 15
NVSWITCH_WATTS = 120
DIMM_WATTS_A_64_GB = 10
FAN_SHARE = 0.15
SUPPLY_EFFICIENCY = 0.94


def each_supply(node: Node) -> list[tuple[str, PowerSupply | Missing]]:
    """The power supplies that some source tells of."""
    supplies = node.snapshot.power.supplies
    if isinstance(supplies, Missing):
        return [("supplies", supplies)] if not node.is_virtual else []
    return [(supply.name, supply) for supply in supplies]


def sum_of_parts(
    *, gpu_watts: float, processors: int, nvswitches: int, nics: int, drives: int, ram_bytes: float, liquid: bool = False
) -> dict[str, float]:
    """What a node can draw at its peak, in watts at the wall, part by part.

    GPUs count with their power limits; for the rest documented allowances stand: 350 W a processor (its TDP class), 25 W a NIC, 15 W a drive,
    120 W an NVSwitch, 10 W for each 64 GB of RAM, fans 15 % of the sum (air-cooled servers), supplies of 94 % efficiency (80 PLUS Titanium at
    half load). For 8 × H100 that makes 9.3 kW; measured peaks are 8.4 kW, the rating of such a server is 10.2 kW.
    """
    terms = {
        "GPUs": gpu_watts,
        "processors": CPU_WATTS * float(processors),
        "NVSwitches": NVSWITCH_WATTS * float(nvswitches),
        "NICs": NIC_WATTS * float(nics),
        "drives": DRIVE_WATTS * float(drives),
        "RAM": DIMM_WATTS_A_64_GB * ram_bytes / 64e9,
    }
    terms["fans"] = (0.05 if liquid else FAN_SHARE) * sum(terms.values())
    terms["losses of the supplies"] = sum(terms.values()) * (1 / SUPPLY_EFFICIENCY - 1)
    return {name: watts for name, watts in terms.items() if watts}


def peak_terms(node: Node) -> dict[str, float]:
    """The peak of this node: `sum_of_parts` of what it has."""
    gpus = [or_none(gpu.power_limit_watts) or (model.power_watts if (model := node.model(gpu)) else 0.0) for gpu in node.gpus]
    if not gpus:
        gpus = [model.power_watts for device in node.pci_gpus if (model := node.model_on_bus(device)) is not None]
    included = any(model.processor_included for gpu in node.gpus if (model := node.model(gpu)))
    roles = Counter(device.role for device in node.pci.values() if not device.virtual_function)
    return sum_of_parts(
        gpu_watts=float(sum(gpus)),
        processors=0 if included else or_none(node.snapshot.cpu.sockets) or 1,
        nvswitches=roles["nvswitch"],
        nics=roles["nic"],
        drives=roles["nvme"],
        ram_bytes=or_none(node.snapshot.memory.total_bytes) or 0,
        liquid=node.snapshot.site.cooling == "direct-to-chip",
    )


def spare_supplies(scheme: str, fitted: int) -> int:
    """How many supplies a redundancy scheme may lose."""
    return {"N": 0, "N+1": 1, "N+N": fitted // 2}.get(scheme, 1)


def peak_watts(node: Node) -> float:
    """The peak at the wall, in watts."""
    return sum(peak_terms(node).values())


def given_watts(at_the_wall: float) -> float:
    """What the supplies give of what they take; their ratings are of the former."""
    return at_the_wall * SUPPLY_EFFICIENCY


def peak_words(node: Node) -> str:
    """The peak as a sum that can be checked."""
    return " + ".join(f"{name} {watts:.0f}" for name, watts in peak_terms(node).items()) + f" = {peak_watts(node):.0f} W"


@check(
    "power.supply",
    component="power",
    title="Power supply works",
    per=each_supply,
    weight=3,
    source="IPMI 2.0, table 42-3, sensor type 08h; DMTF Redfish PowerSupply; SMBIOS type 39",
)
def supply(one: PowerSupply, node: Node) -> Verdict:
    """Each power supply that is fitted must have its input and be in health.

    Read: Redfish, else `ipmitool sdr elist`, else `dmidecode -t 39`. A lost input (a pulled cord, a dead feed) or a failed supply fails: the rest
    may carry the node now, and not at its peak.
    """
    if not one.present:
        return not_applicable("the bay is empty")
    evidence = [
        f"{one.source}: healthy {or_none(one.healthy)}, input lost {or_none(one.input_lost)}, "
        f"rating {or_none(one.rating_watts)} W, input {or_none(one.input_watts)} W"
    ]
    if or_none(one.input_lost):
        return failed("its input is lost", evidence=evidence, fix="check its cord, the PDU's outlet and breaker, and the feed")
    if or_none(one.healthy) is False:
        return failed("failed", evidence=evidence, fix="reseat it; if it stays so, replace it")
    if isinstance(one.healthy, Missing) and isinstance(one.input_lost, Missing):
        return unknown(one.healthy)
    rating = or_none(one.rating_watts)
    return passed(f"{rating:.0f} W" if rating else "ok", evidence=evidence)


@check(
    "power.redundancy",
    component="power",
    title="Power supplies redundant",
    per=once,
    weight=1,
    source="IPMI 2.0, generic event type 0Bh; DMTF Redfish, PowerSupplyRedundancy",
    not_supported="the machine has no word on it",
)
def redundancy(_: Node, node: Node) -> Verdict:
    """The BMC should call the supplies fully redundant: without redundancy the next failure ends the run."""
    if node.is_virtual:
        return not_applicable("a virtual machine")
    state = known(node.snapshot.power.redundancy)
    if state == "full":
        return passed("full")
    return warned(
        f"redundancy {state}",
        evidence=[f"BMC: redundancy {state}"],
        fix="power.supply names the supply; otherwise look at the BMC's event log: sudo ipmitool sel elist",
    )


@check(
    "power.headroom",
    component="power",
    title="Supplies carry the node's peak",
    per=once,
    weight=3,
    source="power limits from NVML; allowances in checks.power.sum_of_parts; ratings from Redfish, FRU or DMI",
)
def headroom(_: Node, node: Node) -> Verdict:
    """The healthy supplies must carry what the node can draw at its peak; with one of them lost (N+1), or half of them (N+N), they should.

    The peak: the GPUs' power limits, and documented allowances for the rest, shown as a sum; without the supplies' own losses, as their ratings
    are of what they give. The redundancy scheme: power_redundancy in the
    site's configuration, else N+1 where there are several. Less than all of it fails; less than the scheme, or less than 10 % left, warns.
    """
    if node.is_virtual:
        return not_applicable("a virtual machine")
    supplies = [one for one in known(node.snapshot.power.supplies) if one.present]
    working = [one for one in supplies if or_none(one.healthy) is not False and not or_none(one.input_lost)]
    ratings = [known(one.rating_watts) for one in working]
    if not ratings:
        return failed("no supply works", evidence=[one.name for one in supplies], fix="see power.supply")
    peak = given_watts(peak_watts(node))
    scheme = node.snapshot.site.power_redundancy or ("N+1" if len(supplies) > 1 else "N")
    spare = spare_supplies(scheme, len(supplies))
    left = len(working) - max(0, spare - (len(supplies) - len(working)))
    capacity, total = sum(sorted(ratings)[:left]), sum(ratings)
    evidence = [
        f"at the wall: {peak_words(node)}; {peak:.0f} W of it to be given by the supplies",
        f"{len(working)} of {len(supplies)} supplies: {total:.0f} W; {scheme}: {capacity:.0f} W",
    ]
    if peak > total:
        return failed(
            f"the peak of {peak / 1000:.1f} kW exceeds all {len(working)} working supplies ({total / 1000:.1f} kW)",
            measured=total,
            required=peak,
            unit="W",
            evidence=evidence,
            fix="fit or repair supplies, or lower the GPUs' power limits (nvidia-smi -pl)",
        )
    if peak > capacity:
        return warned(
            f"the peak of {peak / 1000:.1f} kW holds only without redundancy: {scheme} leaves {capacity / 1000:.1f} kW",
            measured=capacity,
            required=peak,
            unit="W",
            evidence=evidence,
            fix="fit larger or more supplies, or lower the GPUs' power limits (nvidia-smi -pl)",
        )
    if capacity < peak * (1 + node.thresholds.supply_headroom_share):
        return warned(
            f"{(capacity / peak - 1) * 100:.0f} % headroom over the peak of {peak / 1000:.1f} kW",
            measured=capacity,
            required=peak * (1 + node.thresholds.supply_headroom_share),
            unit="W",
            evidence=evidence,
            fix="lower the GPUs' power limits a little (nvidia-smi -pl)",
        )
    return passed(
        f"peak {peak / 1000:.1f} kW, {scheme} gives {capacity / 1000:.1f} kW", measured=capacity, required=peak, unit="W", evidence=evidence
    )


@check(
    "power.pdu",
    component="power",
    title="The feed carries the node's peak",
    per=once,
    weight=2,
    source="NEC 210.20, 215.3: a circuit carries 80 % of its breaker continuously; three phases: × √3",
)
def pdu(_: Node, node: Node) -> Verdict:
    """The PDU or circuit must carry the node's peak at 80 % of its breaker, and with two feeds one alone should.

    Read: volts, amps, phases and feeds from the site's configuration ([site.pdu]); no probe can see them.
    """
    feed = node.snapshot.site.pdu
    if feed is None:
        return not_applicable("no PDU is named in the configuration ([site.pdu])")
    share = node.thresholds.pdu_continuous_share
    one = feed.volts * feed.amps * (math.sqrt(3) if feed.phases == 3 else 1) * share
    peak = peak_watts(node)
    evidence = [
        f"{feed.volts:g} V × {feed.amps:g} A × {amount(feed.phases, 'phase')} × {share:.0%} = {one:.0f} W a feed, {amount(feed.feeds, 'feed')}",
        f"peak: {peak_words(node)}",
    ]
    if peak > one * feed.feeds:
        return failed(
            f"the peak of {peak / 1000:.1f} kW exceeds the feed's {one * feed.feeds / 1000:.1f} kW",
            measured=one * feed.feeds,
            required=peak,
            unit="W",
            evidence=evidence,
            fix="a larger circuit (e.g. 400 V, 32 A, three phases: 17.7 kW continuous), or lower power limits",
        )
    if peak > one:
        return warned(
            f"one feed carries {one / 1000:.1f} kW, the peak is {peak / 1000:.1f}: losing a feed ends the run",
            measured=one,
            required=peak,
            unit="W",
            evidence=evidence,
            fix="larger feeds, or lower power limits",
        )
    return passed(f"{one / 1000:.1f} kW a feed for {peak / 1000:.1f} kW", measured=one, required=peak, unit="W", evidence=evidence)


@check(
    "power.events",
    component="power",
    title="No power or hardware events logged by the BMC",
    per=once,
    weight=1,
    source="IPMI system event log: power supplies, throttling, uncorrectable memory, PCI",
)
def events(_: Node, node: Node) -> Verdict:
    """The BMC's event log should hold nothing of lost power, throttling, uncorrectable memory or PCI errors.

    Read: `ipmitool sel elist`. Old entries stay until the log is cleared, so they warn and never fail; live state decides.
    """
    if node.is_virtual:
        return not_applicable("a virtual machine")
    found = known(node.snapshot.power.events)
    if found:
        return warned(
            f"{len(found)} entries, the last: {found[-1][:90]}",
            measured=len(found),
            required=0,
            unit="entries",
            evidence=found[-6:],
            fix="sudo ipmitool sel elist; when it is settled: sudo ipmitool sel clear",
        )
    return passed("none")


CHECKS = [supply, redundancy, headroom, pdu, events]
