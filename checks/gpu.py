"""The GPUs: all there, healthy, and set up for training."""

from __future__ import annotations

from collections import Counter

from checks.finding import Verdict, amount, check, failed, known, not_applicable, or_none, passed, unknown, warned
from checks.node import Node, each_gpu, each_gpu_counted, name_of, once
from probe.fact import Missing
from probe.snapshot import Gpu

FABRIC_GPU_COUNTS = (4, 8, 16)
MEMORY_TOLERANCE = 0.91
IDLE_REASON = 0x1
HARDWARE_REASONS = {0x40: "hardware thermal slowdown", 0x80: "hardware power brake"}
SOFT_REASONS = {0x20: "software thermal slowdown", 0x8: "hardware slowdown"}
WARM_CELSIUS = 60
"""Of the card. What the driver keeps for itself is 0.5 to 2 %."""
NO_ECC = "the card has no ECC"


@check(
    "gpu.inventory",
    component="gpu",
    title="Every GPU on the PCI bus is driven",
    per=once,
    weight=3,
    source="PCI class codes; HGX and DGX boards carry 4, 8 or 16 GPUs",
)
def inventory(_: Node, node: Node) -> Verdict:
    """NVML must count as many GPUs as the PCI bus has, and a board with NVSwitches must have 4, 8 or 16.

    Read: nvmlDeviceGetCount, and the functions of class 0300 and 0302 of vendor 10de in `/sys/bus/pci/devices`; GPUs bound to vfio-pci and
    virtual functions do not count, and a virtual machine may have any number. A GPU that fell off the bus before the driver loaded is on
    neither list: then the odd number tells.
    """
    seen = len(node.snapshot.gpus)
    known(node.snapshot.pci)
    on_bus = len(node.pci_gpus)
    if not on_bus and not seen:
        return failed(
            "there is no NVIDIA GPU on the PCI bus",
            measured=0,
            required=1,
            unit="GPUs",
            evidence=["/sys/bus/pci/devices: no function of class 0300 or 0302 and vendor 10de"],
            fix="if a card is fitted: lspci | grep -i nvidia, then its seating and power; in a virtual machine: pass it through",
        )
    if not seen:
        return unknown(node.no_gpu_seen)
    missing = sorted({device.address for device in node.pci_gpus} - set(node.gpu_at))
    evidence = [f"NVML counts {seen}", f"PCI bus has {on_bus}"]
    if seen < on_bus:
        return failed(
            f"NVML drives {seen} of {on_bus} GPUs" + (f"; not driven: {', '.join(missing)}" if missing else ""),
            measured=seen,
            required=on_bus,
            unit="GPUs",
            evidence=evidence,
            fix="sudo dmesg | grep -iE 'nvrm|xid|fallen off' for the address; reboot, and reseat or replace the GPU if it stays away",
        )
    strange = sorted(set(node.gpu_at) - set(node.pci))
    if seen > on_bus:
        why = f"NVML counts {seen} GPUs, {on_bus} are seen on the PCI bus" + (f"; not there: {', '.join(strange)}" if strange else "")
        return unknown(Missing("error", why, "/sys/bus/pci/devices"))
    if node.has_nvswitch and not node.is_virtual and seen not in FABRIC_GPU_COUNTS:
        required = next(count for count in (*FABRIC_GPU_COUNTS, seen) if count >= seen)
        return failed(
            f"{seen} GPUs on an NVSwitch board, which carries {required}",
            measured=seen,
            required=required,
            unit="GPUs",
            evidence=[*evidence, "the board has NVSwitches"],
            fix="a GPU has fallen off the bus: cold power cycle; if it stays away, call the vendor",
        )
    names = Counter(or_none(gpu.name) or "unnamed GPU" for gpu in node.snapshot.gpus)
    return passed(", ".join(f"{count} × {name}" for name, count in names.items()), measured=seen, unit="GPUs", evidence=evidence)


@check(
    "gpu.present",
    component="gpu",
    title="GPU on the bus",
    per=each_gpu_counted,
    weight=3,
    source="NVML_ERROR_GPU_IS_LOST (NVML API reference); Xid 79",
)
def present(gpu: Gpu, node: Node) -> Verdict:
    """Every GPU that NVML counts must answer.

    Read: the handle and the first calls of the sweep. GPU_IS_LOST means that the GPU no longer answers on the PCI bus (Xid 79): power, heat, a
    loose riser, or the GPU itself. The other GPUs are judged all the same.
    """
    if not gpu.lost:
        return passed("answers")
    where = "" if isinstance(gpu.address, Missing) else f" ({gpu.address})"
    why = gpu.performance_state.detail if isinstance(gpu.performance_state, Missing) else "no answer"
    return failed(
        f"the GPU is lost{where}: it no longer answers",
        evidence=[f"NVML: {why}"],
        fix="drain the node and reboot it; if the GPU is lost again, check power cables and seating, then call the vendor (RMA)",
    )


@check(
    "gpu.recovery_action",
    component="gpu",
    title="No reset or reboot asked for",
    per=each_gpu,
    weight=3,
    source="NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (field 230, driver 570)",
    not_supported="this driver does not tell (needs 570 or later)",
)
def recovery_action(gpu: Gpu, node: Node) -> Verdict:
    """The driver's own word on what the GPU needs to become healthy again.

    Read: NVML field 230. None passes; "drain P2P" warns; a reset, a drain and reset, or a reboot fails. Xids are evidence beside it, not more.
    """
    action = known(gpu.recovery_action)
    if action == "none":
        return passed("none needed")
    if action == "drain P2P":
        return warned(
            "the driver asks for peer-to-peer traffic to be drained",
            evidence=["NVML field 230: drain P2P"],
            fix="let running jobs end, then reset the GPU",
        )
    if action.startswith("unknown"):
        return unknown(Missing("error", action, "NVML field 230"))
    reboot = "reboot" in action
    return failed(
        f"the driver asks for: {action}",
        evidence=[f"NVML field 230: {action}"],
        fix="drain the node and reboot it" if reboot else f"stop the jobs on it, then sudo nvidia-smi --gpu-reset -i {gpu.index}",
    )


@check(
    "gpu.row_remap",
    component="gpu",
    title="Memory rows: none failed, none waiting",
    per=each_gpu,
    weight=3,
    source="NVIDIA GPU Memory Error Management; DCGM (512 rows); retired pages: NVIDIA Dynamic Page Retirement (63)",
)
def row_remap(gpu: Gpu, node: Node) -> Verdict:
    """Bad rows of GPU memory are replaced by spare ones at the next reset (Ampere and later); older cards retire pages.

    Read: nvmlDeviceGetRemappedRows, nvmlDeviceGetRowRemapperHistogram, else nvmlDeviceGetRetiredPages. A failed remap, or 512 rows remapped for
    uncorrectable errors, fails (RMA). A pending one fails until the GPU is reset. Rows that were remapped, and banks without spare rows, warn.
    """
    if isinstance(gpu.row_remap_pending, Missing) and gpu.row_remap_pending.reason == "not_supported":
        return _retired_pages(gpu, node)
    rows = known(gpu.remapped_rows_uncorrected)
    evidence = [f"remapped rows: {rows} uncorrectable, {or_none(gpu.remapped_rows_corrected)} correctable"]
    if known(gpu.row_remap_failure):
        return failed(
            "a row could not be remapped: the GPU's memory is failing",
            evidence=evidence,
            fix="replace the GPU (RMA): no spare row is left in that bank",
        )
    if known(gpu.row_remap_pending):
        return failed(
            "a bad memory row waits for a reset to be replaced",
            evidence=[*evidence, "remap pending: yes"],
            fix=f"stop the jobs on it, then sudo nvidia-smi --gpu-reset -i {gpu.index} (or reboot)",
        )
    if rows >= node.thresholds.remapped_rows:
        return failed(
            f"{rows} rows remapped, the limit is {node.thresholds.remapped_rows}",
            measured=rows,
            unit="rows",
            evidence=evidence,
            fix="replace the GPU (RMA)",
        )
    exhausted = or_none(gpu.remap_banks_exhausted) or 0
    if rows or exhausted:
        return warned(
            f"{amount(rows, 'row')} remapped after uncorrectable errors"
            + (f"; {amount(exhausted, 'bank')} without a spare row" if exhausted else ""),
            measured=rows,
            unit="rows",
            evidence=evidence,
            fix="usable as it is; watch it, and ask for a replacement if the number grows",
        )
    return passed("none remapped, none pending", evidence=evidence)


def _retired_pages(gpu: Gpu, node: Node) -> Verdict:
    """The predecessor of row remapping (Volta, Turing)."""
    if isinstance(gpu.retired_pages_double_bit, Missing) and gpu.retired_pages_double_bit.reason == "not_supported":
        return not_applicable("the card neither remaps rows nor retires pages")
    double = known(gpu.retired_pages_double_bit)
    pages = double + known(gpu.retired_pages_single_bit)
    evidence = [f"retired pages: {pages}, of these {double} after double-bit errors"]
    if or_none(gpu.retired_pages_pending):
        return failed(
            "a bad memory page waits for a reset to be retired",
            evidence=evidence,
            fix=f"stop the jobs on it, then sudo nvidia-smi --gpu-reset -i {gpu.index}",
        )
    if pages >= node.thresholds.retired_pages:
        return failed(
            f"{pages} pages retired, the limit is {node.thresholds.retired_pages}",
            measured=pages,
            unit="pages",
            evidence=evidence,
            fix="replace the GPU (RMA)",
        )
    if double > node.thresholds.retired_pages_double_bit:
        return warned(
            f"{amount(double, 'page')} retired after double-bit errors",
            measured=double,
            unit="pages",
            evidence=evidence,
            fix="watch it; ask for a replacement if the number grows",
        )
    return passed(f"{amount(pages, 'page')} retired", evidence=evidence)


@check(
    "gpu.ecc_mode",
    component="gpu",
    title="ECC on",
    per=each_gpu,
    weight=2,
    source="NVIDIA data sheets: HBM cards ship with ECC on; of the others each as the catalog says",
    not_supported=NO_ECC,
)
def ecc_mode(gpu: Gpu, node: Node) -> Verdict:
    """Error-correcting memory must be on where the card ships with it on.

    Read: nvmlDeviceGetEccMode. Off fails on a card with HBM, warns on one that ships with ECC on, and is noted on one that ships with it off.
    A switch that waits for a reboot warns. A week of training is long enough for a flipped bit to matter.
    """
    enabled = known(gpu.ecc_enabled)
    pending = known(gpu.ecc_pending)
    model = node.model(gpu)
    fix = f"sudo nvidia-smi -e 1 -i {gpu.index}, then reboot"
    if not enabled and model is not None and model.ecc == "always":
        return failed(
            "off on a card whose memory has ECC: a flipped bit corrupts the training unseen" + (" (on after a reboot)" if pending else ""),
            evidence=[f"ECC current off, pending {'on' if pending else 'off'}"],
            fix="reboot" if pending else fix,
        )
    if enabled != pending:
        state = "on" if pending else "off"
        return warned(
            f"will be {state} after the next reboot",
            evidence=[f"ECC current {enabled}, pending {pending}"],
            fix="reboot, or undo it with nvidia-smi -e",
        )
    if enabled:
        return passed("on")
    if model is None or model.ecc == "on":
        return warned("off", evidence=["ECC current off"], fix=fix)
    return passed("off, as the card ships")


@check(
    "gpu.ecc_errors",
    component="gpu",
    title="No uncorrectable memory errors",
    per=each_gpu,
    weight=3,
    source="DCGM and NVIDIA Xid 48/94/95 policy: an uncorrectable error since the driver loaded needs a reset",
    not_supported=NO_ECC,
)
def ecc_errors(gpu: Gpu, node: Node) -> Verdict:
    """No uncorrectable ECC error since the driver was loaded (volatile counter); earlier ones (aggregate counter) warn.

    Read: nvmlDeviceGetTotalEccErrors. Correctable errors are corrected: their total alone says nothing.
    """
    if or_none(gpu.ecc_enabled) is False:
        return not_applicable("ECC is off")
    since_load = known(gpu.ecc_volatile_uncorrected)
    for_life = or_none(gpu.ecc_aggregate_uncorrected) or 0
    evidence = [
        f"uncorrectable: {since_load} since driver load, {for_life} for life",
        f"correctable: {or_none(gpu.ecc_volatile_corrected)} since driver load",
    ]
    if since_load:
        return failed(
            f"{amount(since_load, 'uncorrectable error')} since the driver was loaded",
            measured=since_load,
            required=0,
            unit="errors",
            evidence=evidence,
            fix=f"stop the jobs on it, sudo nvidia-smi --gpu-reset -i {gpu.index}; if they return, replace the GPU",
        )
    if for_life:
        return warned(
            f"{amount(for_life, 'uncorrectable error')} in its life, none since the driver was loaded",
            measured=for_life,
            unit="errors",
            evidence=evidence,
            fix="usable; watch whether more come",
        )
    return passed("none", evidence=evidence)


@check(
    "gpu.sram",
    component="gpu",
    title="On-chip memory (SRAM) below its error threshold",
    per=each_gpu,
    weight=2,
    source="nvmlEccSramErrorStatus.bThresholdExceeded (NVML API reference); more than 4 uncorrectable: field practice",
    not_supported="the card does not count SRAM errors apart",
)
def sram(gpu: Gpu, node: Node) -> Verdict:
    """The SRAM error threshold flag must be clear, and the card must not have more than 4 uncorrectable SRAM errors in its life.

    Read: nvmlDeviceGetSramEccErrorStatus. SRAM has no spare rows: a card over the threshold is to be replaced.
    """
    errors = known(gpu.sram_aggregate_uncorrected)
    evidence = [f"SRAM uncorrectable for life: {errors}", f"threshold exceeded: {or_none(gpu.sram_threshold_exceeded)}"]
    if known(gpu.sram_threshold_exceeded) or errors > node.thresholds.sram_uncorrected_errors:
        return failed(
            f"{errors} uncorrectable SRAM errors: over the threshold",
            measured=errors,
            required=node.thresholds.sram_uncorrected_errors,
            unit="errors",
            evidence=evidence,
            fix="replace the GPU (RMA)",
        )
    return passed(f"{errors} uncorrectable" if errors else "none", evidence=evidence)


@check(
    "gpu.memory",
    component="gpu",
    title="GPU memory is the model's",
    per=each_gpu,
    weight=2,
    source="the catalog's memory as NVML reports it; ECC takes 6.25 % on cards without HBM, hence the tolerance of 9 %",
)
def memory(gpu: Gpu, node: Node) -> Verdict:
    """The card must report the memory of its model, within 9 %.

    Read: nvmlDeviceGetMemoryInfo. Less means a partitioned, virtual or faulty card.
    """
    total = known(gpu.memory_total_bytes)
    model = node.model(gpu)
    if or_none(gpu.mig_enabled):
        return not_applicable("MIG is on")
    if model is None:
        return passed(f"{total / 1e9:.1f} GB (the card is not in the catalog)", measured=total, unit="bytes")
    if total < model.memory_bytes * MEMORY_TOLERANCE:
        return failed(
            f"{total / 1e9:.1f} GB instead of {model.memory_bytes / 1e9:.1f} GB",
            measured=total,
            required=model.memory_bytes,
            unit="bytes",
            evidence=[f"NVML total {total} bytes; {model.name}: {model.memory_mib} MiB"],
            fix="is it a vGPU or a partition? Otherwise reset the GPU and compare again",
        )
    return passed(f"{total / 1e9:.1f} GB", measured=total, required=model.memory_bytes, unit="bytes")


@check(
    "gpu.throttle",
    component="gpu",
    title="Clocks not held down",
    per=each_gpu,
    weight=2,
    source="nvmlClocksEventReasons (NVML API reference): 0x40, 0x80 hardware; idle, application clocks and sync boost are no faults",
)
def throttle(gpu: Gpu, node: Node) -> Verdict:
    """The hardware must not hold the clocks down.

    Read: the clocks event reasons, sampled three times over the sweep. Hardware thermal slowdown (0x40) or power brake (0x80) in every sample
    fails, in some of them warns; software thermal slowdown (0x20) and hardware slowdown alone (0x8) warn. Idle (0x1), application clocks (0x2),
    power cap (0x4), sync boost (0x10) and display clocks (0x100) are not faults.
    """
    samples = known(gpu.event_reasons)
    evidence = ["clocks event reasons: " + ", ".join(f"{sample:#x}" for sample in samples)]
    always = samples[0]
    ever = 0
    for sample in samples:
        always &= sample
        ever |= sample
    temperature = or_none(gpu.temperature_celsius)
    hot = f" at {temperature} °C" if temperature is not None else ""
    fix = "0x20, 0x40: check fans, airflow and inlet temperature; 0x80: check power supplies, cables and the power cap of the chassis (BMC)"
    for bit, words in HARDWARE_REASONS.items():
        if always & bit and len(samples) >= 3:
            return failed(f"{words}{hot}, in all {len(samples)} samples", evidence=evidence, fix=fix)
    for bit, words in {**HARDWARE_REASONS, **SOFT_REASONS}.items():
        if ever & bit:
            return warned(f"{words}{hot}", evidence=evidence, fix=fix)
    return passed("idle" if always & IDLE_REASON else "no slowdown", evidence=evidence)


@check(
    "gpu.temperature",
    component="gpu",
    title="Temperature with margin",
    per=each_gpu,
    weight=2,
    source="T.Limit margin and its slowdown offset (nvmlDeviceGetMarginTemperature, field 194); else the slowdown threshold",
)
def temperature(gpu: Gpu, node: Node) -> Verdict:
    """The GPU must be below the temperature at which it slows down, with room to spare while at rest.

    Read: the margin to T.Limit and the offset at which slowdown sets in (Hopper and later: -2 to -3 °C), else the temperature against the
    slowdown threshold. At or beyond slowdown fails; an idle GPU above 60 °C with less than 5 °C left warns: under load it will not hold.
    """
    now = or_none(gpu.temperature_celsius)
    margin = or_none(gpu.temperature_margin_celsius)
    if margin is not None:
        left = margin - (or_none(gpu.slowdown_margin_celsius) or 0)
        evidence = [f"margin {margin} °C, slowdown at {or_none(gpu.slowdown_margin_celsius)}, temperature {now} °C"]
    else:
        slowdown = known(gpu.slowdown_celsius)
        left = slowdown - known(gpu.temperature_celsius)
        evidence = [f"temperature {now} °C, slowdown at {slowdown} °C"]
    fix = "check fans, filters, airflow and inlet temperature; clean or reseat the heat sink"
    words = f"{now} °C, {left} °C below slowdown" if now is not None else f"{left} °C below slowdown"
    if left <= 0:
        return failed(f"at its slowdown temperature ({now} °C)", measured=now, unit="°C", evidence=evidence, fix=fix)
    idle = bool((or_none(gpu.event_reasons) or [0])[-1] & IDLE_REASON)
    if left < node.thresholds.gpu_margin_celsius and (now is None or now > WARM_CELSIUS) and idle:
        return warned(f"{words}, while idle", measured=now, unit="°C", evidence=evidence, fix=fix)
    return passed(words, measured=now, unit="°C", evidence=evidence)


@check(
    "gpu.power_limit",
    component="gpu",
    title="Power limit at its default",
    per=each_gpu,
    weight=1,
    source="nvmlDeviceGetEnforcedPowerLimit against nvmlDeviceGetPowerManagementDefaultLimit",
    not_supported="the card has no power limit",
)
def power_limit(gpu: Gpu, node: Node) -> Verdict:
    """The enforced power limit must not be below 95 % of the card's default.

    A lowered limit slows every step, unseen, and one slow GPU slows all the others. It may be meant: a site that lacks power or cooling does it.
    """
    limit = known(gpu.power_limit_watts)
    default = known(gpu.power_limit_default_watts)
    if not default:
        return unknown(Missing("error", "a default limit of 0 W", "nvmlDeviceGetPowerManagementDefaultLimit"))
    if limit < node.thresholds.gpu_power_limit_share * default:
        return warned(
            f"{limit:.0f} W instead of {default:.0f} W",
            measured=limit,
            required=default,
            unit="W",
            evidence=[f"enforced {limit:.0f} W, default {default:.0f} W"],
            fix=f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f} (if it comes back: the BMC or a service sets it)",
        )
    return passed(f"{limit:.0f} W", measured=limit, required=default, unit="W")


@check(
    "gpu.persistence",
    component="gpu",
    title="Persistence mode on",
    per=each_gpu,
    weight=1,
    source="NVIDIA Driver Persistence",
    not_supported="the driver has no persistence mode here",
)
def persistence(gpu: Gpu, node: Node) -> Verdict:
    """With persistence mode the driver keeps the GPU ready; without it every start of a job waits seconds, and settings are lost between."""
    if known(gpu.persistence_mode):
        return passed("on")
    return warned("off", evidence=["nvmlDeviceGetPersistenceMode: 0"], fix="sudo systemctl enable --now nvidia-persistenced")


@check(
    "gpu.mig",
    component="gpu",
    title="Not cut into MIG instances",
    per=each_gpu,
    weight=2,
    source="NVIDIA MIG User Guide: no peer-to-peer or NVLink between instances",
    not_supported="the card has no MIG",
)
def mig(gpu: Gpu, node: Node) -> Verdict:
    """MIG must be off: instances reach neither each other nor NVLink, so a sharded 70B model cannot run on them."""
    if known(gpu.mig_enabled):
        return failed(
            "MIG is on", evidence=["nvmlDeviceGetMigMode: 1"], fix=f"stop the jobs on it, then sudo nvidia-smi -i {gpu.index} -mig 0"
        )
    return passed("off")


@check(
    "gpu.compute_mode",
    component="gpu",
    title="Compute mode lets jobs in",
    per=each_gpu,
    weight=1,
    source="nvmlComputeMode_t (NVML API reference)",
    not_supported="the card has no compute mode",
)
def compute_mode(gpu: Gpu, node: Node) -> Verdict:
    """Compute mode "prohibited" refuses every CUDA context; the exclusive modes refuse a second one, which is what some schedulers want."""
    mode = known(gpu.compute_mode)
    if mode == "prohibited":
        return failed(
            "prohibited: no CUDA job can start", evidence=["nvmlDeviceGetComputeMode: 2"], fix=f"sudo nvidia-smi -i {gpu.index} -c 0"
        )
    return passed(mode)


@check(
    "gpu.processes",
    component="gpu",
    title="No foreign process on the GPU",
    per=each_gpu,
    weight=1,
    source="nvmlDeviceGetComputeRunningProcesses",
    not_supported="the driver does not list processes",
)
def processes(gpu: Gpu, node: Node) -> Verdict:
    """A process that holds GPU memory takes it from the run: a job of somebody else, or one that was left behind.

    Read: NVML's process lists, nvmlDeviceGetMemoryInfo and `/proc/PID/comm`. Warns; in a container the names cannot be told, and of processes
    outside it only the memory: more than 5 % in use with nobody listed warns too. The memory fit counts the whole card.
    """
    found = known(gpu.processes)
    if not found:
        return _held_by_nobody(gpu, node)
    used = sum(or_none(process.memory_bytes) or 0 for process in found)
    who = ", ".join(f"{or_none(process.name) or 'unnamed'} ({process.pid})" for process in found[:4])
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return warned(
        f"{len(found)} {'processes hold' if len(found) > 1 else 'process holds'} {used / 1e9:.1f} GB: {who}{more}",
        measured=len(found),
        unit="processes",
        evidence=[f"pid {process.pid}: {or_none(process.name) or 'unnamed'}" for process in found[:16]],
        fix="if it is not the run itself: let it end, or stop it (kill PID)",
    )


def _held_by_nobody(gpu: Gpu, node: Node) -> Verdict:
    """Memory in use with no process listed: its process is out of sight, or has left it behind."""
    used, total = or_none(gpu.memory_used_bytes), or_none(gpu.memory_total_bytes)
    if used is None or not total or used <= node.thresholds.gpu_unseen_memory_share * total:
        return passed("none")
    return warned(
        f"{used / 1e9:.1f} GB of {total / 1e9:.1f} GB are in use, by no process that can be seen from here",
        measured=used,
        unit="bytes",
        evidence=[f"NVML memory used: {used} bytes; no process listed"],
        fix="sudo fuser -v /dev/nvidia* on the machine itself (outside containers) names it; with nobody there: reset the GPU",
    )


@check(
    "gpu.uniform",
    component="gpu",
    title="All GPUs alike",
    per=once,
    weight=1,
    source="the majority of the node's own GPUs",
)
def uniform(_: Node, node: Node) -> Verdict:
    """Model, memory, VBIOS and InfoROM of all GPUs should be the same: the slowest and the smallest sets the pace of a sharded run."""
    if len(node.gpus) < 2:
        return not_applicable("fewer than two GPUs")
    odd: list[str] = []
    for what, fact in (
        ("model", "name"),
        ("memory", "memory_total_bytes"),
        ("VBIOS", "vbios_version"),
        ("InfoROM", "inforom_version"),
        ("default power limit", "power_limit_default_watts"),
    ):
        values = {name_of(gpu): value for gpu in node.gpus if not isinstance(value := getattr(gpu, fact), Missing)}
        usual = Counter(values.values()).most_common(1)
        odd += [f"{name}: {what} {value}, the others {usual[0][0]}" for name, value in values.items() if value != usual[0][0]]
    if odd:
        return warned(
            "; ".join(odd[:3]) + (f" and {len(odd) - 3} more" if len(odd) > 3 else ""),
            evidence=odd,
            fix="bring the firmware to one version (vendor's update tool), or leave the odd card out of the run",
        )
    return passed(f"{len(node.gpus)} alike")


CHECKS = [
    inventory,
    present,
    recovery_action,
    row_remap,
    ecc_mode,
    ecc_errors,
    sram,
    memory,
    throttle,
    temperature,
    power_limit,
    persistence,
    mig,
    compute_mode,
    processes,
    uniform,
]
