"""GPUs, their pairs and the driver: pure functions of the NVML log, and of what `/proc` and `/sys` say of the kernel module.

Architecture, fabric and recovery names: NVML API reference, `nvml.h` (driver 570 and later).
"""

from __future__ import annotations

import re
from typing import Any

from probe import nvlink
from probe.fact import Missing, Unavailable, parsed, text
from probe.host import Host
from probe.nvml import NvmlLog, call_words, taken
from probe.nvml_sweep import COMPUTE_PROCESSES, GRAPHICS_PROCESSES, REASONS
from probe.snapshot import Driver, Fabric, Fact, Gpu, GpuPair, GpuProcess

ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
RECOVERY_ACTIONS = {
    0: "none", 1: "GPU reset", 2: "node reboot", 3: "drain P2P", 4: "drain and reset",
    5: "recover IMEX domain", 6: "bus reset", 7: "system reboot",
}  # fmt: skip
FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
P2P_STATES = {
    0: "ok", 1: "chipset not supported", 2: "GPU not supported", 3: "topology not supported", 4: "disabled by registry key",
    5: "not supported", 6: "unknown",
}  # fmt: skip
ANCESTORS = {0: "internal", 10: "single", 20: "multiple", 30: "host bridge", 40: "node", 50: "system"}
FABRIC_HEALTH = (  # words, shift, width, the values that are faults (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*)
    ("degraded bandwidth", 0, 0x3, (1,)),
    ("route recovery", 2, 0x3, (1,)),
    ("route unhealthy", 4, 0x3, (1,)),
    ("access timeout recovery", 6, 0x3, (1,)),
    ("incorrect configuration", 8, 0xF, range(2, 9)),
)
VALUE_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF


def kernel_address(bus_id: str) -> str:
    """A bus id as NVML writes it (`00000000:19:00.0`) in the kernel's form (`0000:19:00.0`)."""
    domain, rest = bus_id.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def pci_id(info: dict[str, Any]) -> str:
    """Vendor and device of `nvmlPciInfo_t`: 0x233010DE → `10de:2330`."""
    number = info["pciDeviceId"]
    return f"{number & 0xFFFF:04x}:{number >> 16:04x}"


def _stated(value: Any) -> str:
    """A text that is one: NVML leaves some empty or `N/A`."""
    if not isinstance(value, str) or value.strip() in ("", "N/A", "[N/A]"):
        raise ValueError
    return value


def _watts(milliwatts: Any) -> float:
    return float(milliwatts) / 1000


def _named(table: dict[int, str]) -> Any:
    return lambda value: table.get(value, f"unknown ({value})")


class Probed(Fact, frozen=True, kw_only=True):
    """Everything that comes of the NVML sweep."""

    gpus: list[Gpu]
    pairs: list[GpuPair]
    driver: Driver


def probe(host: Host) -> Probed:
    """The sweep, and the facts made of it."""
    try:
        log = NvmlLog(host.nvml())
    except Unavailable as error:
        log = NvmlLog(unavailable=error)
    return Probed(gpus=gpus(log, host), pairs=pairs(log), driver=driver(log, host))


def gpus(log: NvmlLog, host: Host) -> list[Gpu]:
    """Every GPU that NVML counts, also the ones that no longer answer."""
    return [_gpu(log, host, index) for index in log.devices()]


def _gpu(log: NvmlLog, host: Host, i: int) -> Gpu:
    ecc = "nvmlDeviceGetEccMode"
    total = "nvmlDeviceGetTotalEccErrors"
    counter = "nvmlDeviceGetMemoryErrorCounter"
    sram = "nvmlDeviceGetSramEccErrorStatus"
    rows = "nvmlDeviceGetRemappedRows"
    histogram = "nvmlDeviceGetRowRemapperHistogram"
    memory = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
    limits = "nvmlDeviceGetPowerManagementLimitConstraints"
    violation = "nvmlDeviceGetViolationStatus"
    handle = log.get("nvmlDeviceGetHandleByIndex_v2", i, take=bool)
    return Gpu(
        index=i,
        lost=i in log.lost or (isinstance(handle, Missing) and handle.detail not in ("NO_PERMISSION", "NOT_RETURNED")),
        address=log.get("nvmlDeviceGetPciInfo_v3", i, take=lambda v: kernel_address(v["busId"])),
        pci_id=log.get("nvmlDeviceGetPciInfo_v3", i, take=pci_id),
        name=log.get("nvmlDeviceGetName", i, take=_stated),
        uuid=log.get("nvmlDeviceGetUUID", i, take=_stated),
        serial=log.get("nvmlDeviceGetSerial", i, take=_stated),
        board_part_number=log.get("nvmlDeviceGetBoardPartNumber", i, take=_stated),
        vbios_version=log.get("nvmlDeviceGetVbiosVersion", i, take=_stated),
        inforom_version=log.get("nvmlDeviceGetInforomImageVersion", i, take=_stated),
        gsp_firmware_version=log.get("nvmlDeviceGetGspFirmwareVersion", i, take=_stated),
        architecture=log.get("nvmlDeviceGetArchitecture", i, take=_named(ARCHITECTURES)),
        compute_capability=log.get("nvmlDeviceGetCudaComputeCapability", i, take=lambda v: f"{v[0]}.{v[1]}"),
        memory_total_bytes=log.get(memory, i, take=lambda v: int(v["total"])),
        memory_used_bytes=log.get(memory, i, take=lambda v: int(v["used"])),
        bar1_total_bytes=log.get("nvmlDeviceGetBAR1MemoryInfo", i, take=lambda v: int(v["bar1Total"])),
        ecc_enabled=log.get(ecc, i, take=lambda v: bool(v[0])),
        ecc_pending=log.get(ecc, i, take=lambda v: bool(v[1])),
        ecc_volatile_corrected=log.get(total, i, (0, 0), int),
        ecc_volatile_uncorrected=log.get(total, i, (1, 0), int),
        ecc_aggregate_corrected=log.get(total, i, (0, 1), int),
        ecc_aggregate_uncorrected=log.get(total, i, (1, 1), int),
        dram_volatile_corrected=log.get(counter, i, (0, 0, 2), int),
        dram_volatile_uncorrected=log.get(counter, i, (1, 0, 2), int),
        sram_volatile_uncorrected=log.get(sram, i, take=lambda v: v["volatileUncParity"] + v["volatileUncSecDed"]),
        sram_aggregate_corrected=log.get(sram, i, take=lambda v: int(v["aggregateCor"])),
        sram_aggregate_uncorrected=log.get(sram, i, take=lambda v: v["aggregateUncParity"] + v["aggregateUncSecDed"]),
        sram_threshold_exceeded=log.get(sram, i, take=lambda v: bool(v["bThresholdExceeded"])),
        remapped_rows_corrected=log.get(rows, i, take=lambda v: int(v[0])),
        remapped_rows_uncorrected=log.get(rows, i, take=lambda v: int(v[1])),
        row_remap_pending=log.get(rows, i, take=lambda v: bool(v[2])),
        row_remap_failure=log.get(rows, i, take=lambda v: bool(v[3])),
        remap_banks_exhausted=log.get(histogram, i, take=lambda v: int(v["none"])),
        remap_banks_total=log.get(histogram, i, take=lambda v: sum(v.values())),
        retired_pages_single_bit=log.get("nvmlDeviceGetRetiredPages", i, (0,), len),
        retired_pages_double_bit=log.get("nvmlDeviceGetRetiredPages", i, (1,), len),
        retired_pages_pending=log.get("nvmlDeviceGetRetiredPagesPendingStatus", i, take=bool),
        recovery_action=log.field(i, 230, take=_named(RECOVERY_ACTIONS)),
        temperature_celsius=log.get("nvmlDeviceGetTemperature", i, (0,), int),
        temperature_margin_celsius=log.get("nvmlDeviceGetMarginTemperature", i, take=int),
        slowdown_margin_celsius=log.field(i, 194, take=_signed),
        slowdown_celsius=log.get("nvmlDeviceGetTemperatureThreshold", i, (1,), int),
        gpu_max_celsius=log.get("nvmlDeviceGetTemperatureThreshold", i, (3,), int),
        memory_temperature_celsius=log.field(i, 82, take=int),
        memory_max_celsius=log.get("nvmlDeviceGetTemperatureThreshold", i, (2,), int),
        power_usage_watts=log.get("nvmlDeviceGetPowerUsage", i, take=_watts),
        power_limit_watts=log.get("nvmlDeviceGetEnforcedPowerLimit", i, take=_watts),
        power_limit_default_watts=log.get("nvmlDeviceGetPowerManagementDefaultLimit", i, take=_watts),
        power_limit_min_watts=log.get(limits, i, take=lambda v: _watts(v[0])),
        power_limit_max_watts=log.get(limits, i, take=lambda v: _watts(v[1])),
        performance_state=log.get("nvmlDeviceGetPerformanceState", i, take=_performance_state),
        clock_sm_mhz=log.get("nvmlDeviceGetClockInfo", i, (1,), int),
        clock_sm_max_mhz=log.get("nvmlDeviceGetMaxClockInfo", i, (1,), int),
        clock_memory_mhz=log.get("nvmlDeviceGetClockInfo", i, (2,), int),
        clock_memory_max_mhz=log.get("nvmlDeviceGetMaxClockInfo", i, (2,), int),
        application_clock_mhz=log.get("nvmlDeviceGetApplicationsClock", i, (0,), int),
        application_clock_default_mhz=log.get("nvmlDeviceGetDefaultApplicationsClock", i, (0,), int),
        event_reasons=_event_reasons(log, i),
        power_violation_seconds=log.get(violation, i, (0,), lambda v: v["violationTime"] / 1e9),
        thermal_violation_seconds=log.get(violation, i, (1,), lambda v: v["violationTime"] / 1e9),
        utilization_ratio=log.get("nvmlDeviceGetUtilizationRates", i, take=lambda v: v["gpu"] / 100),
        persistence_mode=log.get("nvmlDeviceGetPersistenceMode", i, take=bool),
        compute_mode=log.get("nvmlDeviceGetComputeMode", i, take=_named(COMPUTE_MODES)),
        mig_enabled=log.get("nvmlDeviceGetMigMode", i, take=lambda v: bool(v[0])),
        pcie_generation=log.get("nvmlDeviceGetCurrPcieLinkGeneration", i, take=int),
        pcie_generation_max=log.get("nvmlDeviceGetMaxPcieLinkGeneration", i, take=int),
        pcie_width_lanes=log.get("nvmlDeviceGetCurrPcieLinkWidth", i, take=int),
        pcie_width_max_lanes=log.get("nvmlDeviceGetMaxPcieLinkWidth", i, take=int),
        pcie_replays=log.get("nvmlDeviceGetPcieReplayCounter", i, take=int),
        numa_node=log.get("nvmlDeviceGetNumaNodeId", i, take=int),
        cpu_affinity=log.get("nvmlDeviceGetCpuAffinity", i, (16,), cpu_list),
        nvlinks=nvlink.links(log, i),
        fabric=_fabric(log, i),
        processes=_processes(log, host, i),
    )


def _event_reasons(log: NvmlLog, i: int) -> list[int] | Missing:
    """Every sample of the sweep."""
    samples = log.samples(REASONS, i)
    if not samples:
        return log.get(REASONS, i, take=lambda v: [int(v)])
    return taken(samples, "NVML " + REASONS[0], lambda values: [int(value) for value in values])


def _signed(value: Any) -> int:
    """T.Limit offsets come as unsigned from some drivers."""
    number = int(value)
    return number - (1 << 32) if number > (1 << 31) else number


def _performance_state(value: Any) -> int:
    if not 0 <= value <= 15:  # NVML_PSTATE_UNKNOWN is 32
        raise ValueError
    return int(value)


def cpu_list(words: Any) -> str:
    """A CPU mask of 64-bit words in the kernel's list form: [0xF, 0x3] → `0-3,64-65`."""
    cpus = [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in runs)


def fabric_degraded(mask: int) -> list[str]:
    """The faults in a fabric health mask, in words."""
    return [words for words, shift, width, faults in FABRIC_HEALTH if (mask >> shift) & width in faults]


def _fabric(log: NvmlLog, i: int) -> Fabric:
    info = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo")
    return Fabric(
        state=log.get(info, i, take=lambda v: _named(FABRIC_STATES)(v["state"])),
        status=log.get(info, i, take=lambda v: "success" if v["status"] == 0 else f"error {v['status']}"),
        clique_id=log.get(info, i, take=lambda v: int(v["cliqueId"])),
        cluster_uuid=log.get(info, i, take=lambda v: bytes(list(v["clusterUuid"])).hex()),
        degraded=log.get(info[0], i, take=lambda v: fabric_degraded(v["healthMask"])),
    )


def _processes(log: NvmlLog, host: Host, i: int) -> list[GpuProcess] | Missing:
    found: dict[int, Any] = {}
    answer: Any = Missing("not_supported", "not asked", "NVML processes")
    for call in (COMPUTE_PROCESSES, GRAPHICS_PROCESSES):
        answer = log.get(call, i, take=list)
        if isinstance(answer, Missing):
            continue
        for process in answer:
            if isinstance(process, dict) and isinstance(process.get("pid"), int):
                found.setdefault(process["pid"], process.get("usedGpuMemory"))
    if isinstance(answer, Missing) and not found:
        return answer
    return [
        GpuProcess(
            pid=pid,
            name=text(host, f"/proc/{pid}/comm"),
            memory_bytes=used
            if isinstance(used, int) and used != VALUE_NOT_AVAILABLE
            else Missing("not_supported", "", "NVML process memory"),
        )
        for pid, used in sorted(found.items())
    ]


def pairs(log: NvmlLog) -> list[GpuPair]:
    """Every two GPUs that were asked about each other."""
    devices = log.devices()
    return [
        GpuPair(
            one=one,
            other=other,
            common_ancestor=log.get("nvmlDeviceGetTopologyCommonAncestor", one, (other,), _named(ANCESTORS)),
            p2p_read=log.get("nvmlDeviceGetP2PStatus", one, (other, 0), _named(P2P_STATES)),
            p2p_nvlink=log.get("nvmlDeviceGetP2PStatus", one, (other, 2), _named(P2P_STATES)),
        )
        for one in devices
        for other in devices
        if one < other
    ]


MODULE_VERSION = "/sys/module/nvidia/version"
NVRM_VERSION = "/proc/driver/nvidia/version"


def module_license(nvrm: str) -> str:
    """`open` or `proprietary`, from the banner line of `/proc/driver/nvidia/version`:

    `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...`
    """
    if "Kernel Module" not in nvrm:
        raise ValueError
    return "open" if "Open Kernel Module" in nvrm else "proprietary"


def module_version(nvrm: str) -> str:
    """The version in the banner line of `/proc/driver/nvidia/version`."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", nvrm)
    if not found:
        raise ValueError
    return found[1]


def cuda_version(number: int) -> str:
    """12040 → `12.4`."""
    return f"{number // 1000}.{number % 1000 // 10}"


def driver(log: NvmlLog, host: Host) -> Driver:
    """The driver as the kernel and NVML tell of it."""
    nvrm = text(host, NVRM_VERSION)
    version = text(host, MODULE_VERSION)
    return Driver(
        module_version=parsed(nvrm, NVRM_VERSION, module_version) if isinstance(version, Missing) else version,
        module_license=parsed(nvrm, NVRM_VERSION, module_license),
        library_version=log.get("nvmlSystemGetNVMLVersion", take=lambda v: str(v).split(".", 1)[1]),
        driver_version=log.get("nvmlSystemGetDriverVersion", take=_stated),
        cuda_version=log.get("nvmlSystemGetCudaDriverVersion_v2", take=cuda_version),
        confidential_compute=log.get("nvmlSystemGetConfComputeState", take=lambda v: bool(v["ccFeature"])),
        init_error=log.init_error,
        sweep_seconds=log.get("end", take=lambda v: float(v["seconds"])),
        broken_off=call_words(log.broken_off) + _why(log.broken_off.value) if log.broken_off else None,
    )


def _why(value: Any) -> str:
    return f" ({value['why']})" if isinstance(value, dict) and "why" in value else ""
