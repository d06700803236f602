"""What the kernel log says of this boot. Live state goes before it: the log is evidence."""

from __future__ import annotations

from collections.abc import Sequence

from checks.catalog import xids
from checks.finding import Verdict, check, failed, known, or_none, passed, warned
from checks.node import Node, each_gpu_counted, once
from probe.snapshot import Gpu, KernelEvent

REPEATED = 2


def of_kind(node: Node, *kinds: str) -> list[KernelEvent]:
    """The log's events of these kinds."""
    return [event for event in known(node.snapshot.kernel_log) if event.kind in kinds]


def words(event: KernelEvent) -> str:
    """An event as evidence: count, time, line."""
    when = f" at {event.last_seconds:.0f} s after boot" if isinstance(event.last_seconds, float) else ""
    return f"{event.count}×{when}: {event.text}"


def told(events: Sequence[KernelEvent]) -> str:
    """Devices and counts of events, in short."""
    return ", ".join(f"{event.device or event.kind} ({event.count}×)" for event in events[:4]) + (
        f" and {len(events) - 4} more" if len(events) > 4 else ""
    )


def same_slot(event: KernelEvent, gpu: Gpu) -> bool:
    """Whether an event is a GPU's: drivers leave the function out (`0000:9b:00`)."""
    return isinstance(gpu.address, str) and event.device.rsplit(".", 1)[0] == gpu.address.rsplit(".", 1)[0]


@check(
    "kernel.xids",
    component="kernel",
    title="No grave Xid on the GPU",
    per=each_gpu_counted,
    weight=3,
    source="NVIDIA, Xid Errors; the policy is checks/catalog/xids.toml",
)
def xid_events(gpu: Gpu, node: Node) -> Verdict:
    """No Xid since boot that asks for a reset, unless the GPU has been reset since.

    Read: `/dev/kmsg` or the journal. What each Xid means is data (checks/catalog/xids.toml). An Xid 154 that says "None" ends those before
    it; where the driver itself says that no recovery is needed, a grave Xid only warns. A program's own Xids (13, 31, 43, 45) warn from the
    second on.
    """
    found = [event for event in of_kind(node, "xid") if same_slot(event, gpu)]
    if not found:
        return passed("none")
    evidence = [words(event) for event in found]
    grave: list[KernelEvent] = []
    doubtful: list[KernelEvent] = []
    for event in found:
        policy = xids().get(int(event.code))
        severity = "warn" if policy is None else policy.severity
        if severity == "fail":
            grave.append(event)
        elif severity == "warn" or event.count >= REPEATED:
            doubtful.append(event)
    healthy = gpu.recovery_action == "none" and not gpu.lost
    if grave and not healthy:
        kept = "" if isinstance(gpu.recovery_action, str) else "; this driver tells of no reset (Xid 154): the log keeps it until a reboot"
        return failed(_xid_words(grave), evidence=evidence, fix=_xid_fix(grave[-1]) + kept)
    if grave or doubtful:
        settled = "; the driver says that no recovery is needed" if grave else ""
        return warned(_xid_words(grave or doubtful) + settled, evidence=evidence, fix=_xid_fix((grave or doubtful)[-1]))
    return passed(f"{_xid_words(found)}: a program's own", evidence=evidence)


def _xid_words(events: Sequence[KernelEvent]) -> str:
    return "; ".join(
        f"Xid {event.code} {event.count}× ({policy.meaning if (policy := xids().get(int(event.code))) else 'not in the catalog'})"
        for event in events[:3]
    )


def _xid_fix(event: KernelEvent) -> str:
    policy = xids().get(int(event.code))
    return policy.fix if policy else "look it up in NVIDIA's Xid documentation"


@check(
    "kernel.gpu_driver",
    component="kernel",
    title="GPU driver and NVSwitches without grave messages",
    per=once,
    weight=2,
    source="NVIDIA driver messages; NVIDIA Fabric Manager User Guide (SXid)",
)
def gpu_driver(_: Node, node: Node) -> Verdict:
    """No GPU that fell off the bus without an Xid, no failed start, no reset that is required, no NVLink training failure, no fatal SXid.

    Read: the kernel log. Where every GPU answers and the fabric is up, such messages are history and only warn.
    """
    grave = of_kind(node, "off_bus", "gpu_probe_failed", "reset_required", "nvlink_training", "sxid_fatal", "version_mismatch")
    mild = of_kind(node, "sxid", "peermem")
    if not grave and not mild:
        return passed("none")
    evidence = [words(event) for event in (*grave, *mild)][:8]
    kinds = ", ".join(dict.fromkeys(event.kind.replace("_", " ") for event in grave or mild))
    fix = "sudo dmesg | grep -iE 'nvrm|nvswitch|sxid'; reset the GPUs together, or reboot"
    driven = len(node.gpus) >= len(node.pci_gpus) and not any(gpu.lost for gpu in node.snapshot.gpus)
    up = all(or_none(gpu.fabric.state) in (None, "completed", "not supported") for gpu in node.gpus)
    if grave and not (driven and up):
        return failed(f"{kinds}: {told(grave)}", evidence=evidence, fix=fix)
    return warned(f"{kinds}: {told(grave or mild)}{'; all GPUs answer now' if grave else ''}", evidence=evidence, fix=fix)


@check(
    "kernel.pcie",
    component="kernel",
    title="No PCIe errors",
    per=once,
    weight=2,
    source="kernel documentation, PCI Express Advanced Error Reporting",
)
def pcie(_: Node, node: Node) -> Verdict:
    """No fatal PCIe error since boot. Read: AER messages of the kernel log. Fatal ones fail, uncorrected ones warn, corrected ones are shown."""
    fatal, uncorrected, corrected = (of_kind(node, kind) for kind in ("aer_fatal", "aer_nonfatal", "aer_corrected"))
    evidence = [words(event) for event in (*fatal, *uncorrected, *corrected)][:8]
    fix = "reseat the device and its riser; update BIOS and firmware; replace what keeps failing"
    if fatal:
        return failed(f"fatal: {told(fatal)}", evidence=evidence, fix=fix)
    if uncorrected:
        return warned(f"uncorrected: {told(uncorrected)}", evidence=evidence, fix=fix)
    # GPUs rest at 2.5 GT/s, which the kernel takes for their limit; pcie.speed knows better.
    gpus = {device.address for device in node.pci_gpus}
    limited = [event for event in of_kind(node, "pcie_bandwidth") if event.device not in gpus]
    if limited:
        return warned(
            f"less bandwidth than the device can use: {told(limited)}",
            evidence=[words(event) for event in limited],
            fix="pcie.width and network.slot have the present state; use a wider slot",
        )
    return passed(f"{sum(event.count for event in corrected)} corrected" if corrected else "none", evidence=evidence)


@check(
    "kernel.memory",
    component="kernel",
    title="No machine checks or memory errors",
    per=once,
    weight=2,
    source="kernel documentation, x86 machine check and EDAC",
)
def memory(_: Node, node: Node) -> Verdict:
    """No machine check and no uncorrectable memory error since boot. Read: mce and EDAC messages of the kernel log."""
    uncorrected, checks, corrected = (of_kind(node, kind) for kind in ("edac_uncorrected", "mce", "edac_corrected"))
    evidence = [words(event) for event in (*uncorrected, *checks, *corrected)][:8]
    fix = "ras-mc-ctl --errors names the DIMM; the BMC's event log too; replace it"
    if uncorrected:
        return failed(f"uncorrectable: {told(uncorrected)}", evidence=evidence, fix=fix)
    firmware = of_kind(node, "firmware_fatal", "firmware_error")
    if firmware:
        grave = any(event.kind == "firmware_fatal" for event in firmware)
        words_ = f"hardware errors that the firmware reports: {told(firmware)}"
        where = "the lines after it in dmesg (section_type) name the part: memory, PCIe or processor; the BMC's event log too"
        evidence = [words(event) for event in firmware][:8]
        return failed(words_, evidence=evidence, fix=where) if grave else warned(words_, evidence=evidence, fix=where)
    if checks:
        return warned(f"machine checks: {told(checks)}", evidence=evidence, fix=fix)
    return passed(f"{sum(event.count for event in corrected)} corrected" if corrected else "none", evidence=evidence)


@check(
    "kernel.storage",
    component="kernel",
    title="No drive or file system errors",
    per=once,
    weight=2,
    source="kernel messages of nvme, block layer, ext4, xfs",
)
def storage(_: Node, node: Node) -> Verdict:
    """No drive removed, no file system error or read-only remount since boot; timeouts and I/O errors warn."""
    grave = of_kind(node, "nvme_removed", "fs_error", "fs_read_only")
    mild = of_kind(node, "nvme_timeout", "io_error")
    evidence = [words(event) for event in (*grave, *mild)][:8]
    fix = "storage.smart has the drive's health; reseat or replace it; check the file system"
    if grave:
        return failed(told(grave), evidence=evidence, fix=fix)
    if mild:
        return warned(f"timeouts or I/O errors: {told(mild)}", evidence=evidence, fix=fix)
    return passed("none")


@check(
    "kernel.network",
    component="kernel",
    title="NICs without complaints",
    per=once,
    weight=1,
    source="kernel, mlx5 health and port module events",
)
def network(_: Node, node: Node) -> Verdict:
    """No mlx5 adapter in bad health, short of slot power, hot, or with a bad cable since boot. Bad health fails, the others warn."""
    grave = of_kind(node, "nic_health")
    mild = of_kind(node, "nic_power", "nic_temperature", "nic_cable")
    evidence = [words(event) for event in (*grave, *mild, *of_kind(node, "nic_register"))][:8]
    if grave:
        return failed(
            f"bad health: {told(grave)}",
            evidence=evidence,
            fix="sudo devlink health show; update the firmware; power cycle; replace it if it comes back",
        )
    if mild:
        return warned(
            ", ".join(f"{event.kind.removeprefix('nic_')} {event.device}" for event in mild[:4]),
            evidence=evidence,
            fix="power: use a slot with 75 W or the auxiliary connector; heat: airflow; cable: reseat or change it",
        )
    return passed("none", evidence=evidence)


@check(
    "kernel.tasks",
    component="kernel",
    title="No hung tasks, no out of memory",
    per=once,
    weight=1,
    source="kernel messages: hung_task, oom-killer",
)
def tasks(_: Node, node: Node) -> Verdict:
    """No task was stuck for minutes and none was killed for lack of memory since boot; either warns: something did not fit, or a driver hangs."""
    found = of_kind(node, "hung_task", "oom")
    if not found:
        return passed("none")
    stuck = [event for event in found if event.kind == "hung_task"]
    parts = ([f"hung: {told(stuck)}"] if stuck else []) + (
        [f"killed for lack of memory: {told([e for e in found if e.kind == 'oom'])}"] if len(stuck) < len(found) else []
    )
    return warned(
        "; ".join(parts),
        evidence=[words(event) for event in found][:8],
        fix="hung: which driver or file system it waited for (dmesg); memory: less offload, or more RAM",
    )


CHECKS = [xid_events, gpu_driver, pcie, memory, storage, network, tasks]
