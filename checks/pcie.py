"""PCI Express: width and speed of every link on the way from a device to the processor."""

from __future__ import annotations

from collections.abc import Callable

from checks.finding import Verdict, amount, check, failed, known, not_applicable, or_none, passed, warned
from checks.node import Node, each_endpoint
from probe.fact import Missing
from probe.snapshot import PciDevice

IDLE_REASON = 0x1
SWITCH_MAKER_FIX = "reseat the card or the riser, try another slot, and look for a slot setting (bifurcation) in the BIOS"


def hops(device: PciDevice, node: Node) -> list[tuple[PciDevice | None, PciDevice]]:
    """The links on the way up, each as (upper end, lower end), from the device to its root port.

    Between the upstream and the downstream port of a switch there is no link: with `path` = root port, (upstream, downstream)*, the links
    are device to last, then every second pair. Where a path has another shape (a PCI bridge, a virtual machine) only the first is taken.
    """
    path = [node.pci[address] for address in device.path if address in node.pci]
    if len(path) != len(device.path) or not path:
        return [(None, device)]
    links: list[tuple[PciDevice | None, PciDevice]] = [(path[-1], device)]
    if len(path) % 2 == 1:
        links += [(path[place - 1], path[place]) for place in range(len(path) - 2, 0, -2)]
    return links


def by_role(device: PciDevice) -> Callable[..., Verdict]:
    """How a slow link is judged: a GPU's stops training, a NIC's or a drive's slows it."""
    return failed if device.role == "gpu" else warned


@check(
    "pcie.width",
    component="pcie",
    title="PCIe links at full width",
    per=each_endpoint,
    weight=3,
    source="PCI Express Base Specification: a link trains to the most lanes that both ends have",
    not_supported="not a PCI Express device",
)
def width(device: PciDevice, node: Node) -> Verdict:
    """Every link from the device to the root port must run with as many lanes as both its ends have.

    Read: current_link_width and max_link_width in `/sys/bus/pci/devices`, along the path. Fewer lanes fail for a GPU and warn for a NIC or a drive
    (`network.slot` tells whether a NIC still carries its rate), at any time: unlike the speed, the width does not change with load. A slot that is
    narrower than the card is a design, and warns for a GPU, and where the node's other cards of that kind have more.
    """
    lanes = device.link.width_lanes
    if isinstance(lanes, Missing) and (node.is_virtual or lanes.reason in ("absent", "error")):
        return not_applicable("no PCI Express link is reported" + (" (virtual machine)" if node.is_virtual else ""))
    narrowest = known(lanes)
    for upper, lower in hops(device, node):
        current = or_none(lower.link.width_lanes)
        own = or_none(lower.link.width_max_lanes)
        slot = or_none(upper.link.width_max_lanes) if upper is not None else None
        if current is None or own is None:
            continue
        able = own if slot is None else min(own, slot)
        if current < able:
            where = "" if lower is device else f" at the bridge {lower.address} above it"
            return by_role(device)(
                f"x{current} instead of x{able}{where}",
                measured=current,
                required=able,
                unit="lanes",
                evidence=[
                    f"{lower.address}: current x{current}, max x{own}"
                    + (f"; {upper.address} above: max x{slot}" if upper is not None else "")
                ],
                fix=SWITCH_MAKER_FIX,
            )
    best = max(
        (
            or_none(other.link.width_lanes) or 0
            for other in node.pci.values()
            if other.role == device.role and other.device_id == device.device_id
        ),
        default=0,
    )
    most = or_none(device.link.width_max_lanes)
    if narrowest < best:
        return warned(
            f"x{narrowest}: its slot has no more, but its siblings run at x{best}",
            measured=narrowest,
            required=best,
            unit="lanes",
            evidence=[f"{device.address}: x{narrowest}"],
            fix="move the card to a slot with all lanes, or enable them in the BIOS",
        )
    if most is not None and narrowest < most and device.role == "gpu":
        return warned(
            f"x{narrowest}: the slot is narrower than the card (x{most})",
            measured=narrowest,
            required=most,
            unit="lanes",
            evidence=[f"{device.address}: current x{narrowest}, max x{most}"],
            fix="use a slot with all lanes, if the board has one",
        )
    return passed(f"x{narrowest}", measured=narrowest, required=narrowest, unit="lanes")


@check(
    "pcie.speed",
    component="pcie",
    title="PCIe links at full speed",
    per=each_endpoint,
    weight=2,
    source="PCI Express Base Specification; GPUs lower the speed while idle (P-state above 0)",
    not_supported="not a PCI Express device",
)
def speed(device: PciDevice, node: Node) -> Verdict:
    """Every link from the device to the root port must run at the highest speed that both its ends have.

    Read: current_link_speed and max_link_speed. A GPU is judged only in P0 and not idle, as it lowers the speed at rest, and fails;
    NICs and drives are judged always, and warn.
    """
    rate = device.link.speed_gtps
    if isinstance(rate, Missing) and (node.is_virtual or rate.reason in ("absent", "error")):
        return not_applicable("no PCI Express link is reported" + (" (virtual machine)" if node.is_virtual else ""))
    gpu = node.gpu_at.get(device.address)
    if device.role == "gpu":
        if gpu is None or gpu.lost:
            return not_applicable("not driven")
        reasons = or_none(gpu.event_reasons) or [IDLE_REASON]
        if or_none(gpu.performance_state) != 0 or reasons[-1] & IDLE_REASON:
            return not_applicable(f"{known(rate):g} GT/s while idle, when a GPU lowers its speed")
    for upper, lower in hops(device, node):
        current = or_none(lower.link.speed_gtps)
        own = or_none(lower.link.speed_max_gtps)
        slot = or_none(upper.link.speed_max_gtps) if upper is not None else None
        if current is None or own is None:
            continue
        able = own if slot is None else min(own, slot)
        if current < able:
            where = "" if lower is device else f" at the bridge {lower.address} above it"
            return by_role(device)(
                f"{current:g} GT/s instead of {able:g}{where}",
                measured=current,
                required=able,
                unit="GT/s",
                evidence=[f"{lower.address}: current {current:g} GT/s, max {own:g}"],
                fix=SWITCH_MAKER_FIX + "; look for AER errors in dmesg",
            )
    return passed(f"{known(rate):g} GT/s", measured=known(rate), unit="GT/s")


@check(
    "pcie.errors",
    component="pcie",
    title="No fatal PCIe errors",
    per=each_endpoint,
    weight=1,
    source="kernel documentation, sysfs-bus-pci-devices-aer_stats; PCI Express, Advanced Error Reporting",
)
def errors(device: PciDevice, node: Node) -> Verdict:
    """A device should not have had a fatal error since it was found on the bus: the link was reset, and what ran on it has died.

    Read: `aer_dev_fatal`; `aer_dev_nonfatal` is shown, and judged by the kernel log's messages alone: enumeration itself raises some.
    """
    fatal = device.aer_fatal
    if isinstance(fatal, Missing) and fatal.reason == "absent":
        return not_applicable("the kernel counts no errors for it")
    count = known(fatal)
    evidence = [f"{device.address}: {count} fatal, {or_none(device.aer_nonfatal)} non-fatal since it was found"]
    if count:
        return warned(
            f"{amount(count, 'fatal error')} since it was found",
            measured=count,
            required=0,
            unit="errors",
            evidence=evidence,
            fix="reseat the card, its riser and cables; if it comes again, have the slot or the card replaced",
        )
    return passed("none", evidence=evidence)


CHECKS = [width, speed, errors]
