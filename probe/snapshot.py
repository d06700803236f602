"""The facts about one machine, as types.

Units are in the names. `T | Missing` is a fact that may not have been readable; a list that is `Missing` could not be listed, an
empty one was listed and is empty. Every device carries its PCI address, in the kernel's form (`0000:19:00.0`).
"""

from __future__ import annotations

import msgspec

from probe.fact import Missing


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all facts: immutable, fields by name only."""


# --- GPU and driver --------------------------------------------------------------------------------------------------------------


class NvLink(Fact, frozen=True, kw_only=True):
    """One NVLink of a GPU. The error counters are totals since the driver was loaded; the bit error rate is NVLink 5 only."""

    link: int
    active: bool | Missing
    version: int | Missing
    remote_address: str | Missing
    remote_type: str | Missing
    speed_mbps: int | Missing
    p2p_supported: bool | Missing
    replay_errors: int | Missing
    recovery_errors: int | Missing
    crc_errors: int | Missing
    failed_recoveries: int | Missing
    effective_bit_error_rate: float | Missing


class Fabric(Fact, frozen=True, kw_only=True):
    """What a GPU says of the NVSwitch fabric it belongs to, in NVML's own words."""

    state: str | Missing
    status: str | Missing
    clique_id: int | Missing
    cluster_uuid: str | Missing
    degraded: list[str] | Missing


class GpuProcess(Fact, frozen=True, kw_only=True):
    """A process that holds a GPU. `name` is the kernel's short name (`comm`)."""

    pid: int
    name: str | Missing
    memory_bytes: int | Missing


class Gpu(Fact, frozen=True, kw_only=True):
    """One GPU, as NVML tells of it; `address` is its place in the PCI tree."""

    index: int
    address: str | Missing
    pci_id: str | Missing
    lost: bool
    name: str | Missing
    uuid: str | Missing
    serial: str | Missing
    board_part_number: str | Missing
    vbios_version: str | Missing
    inforom_version: str | Missing
    gsp_firmware_version: str | Missing
    architecture: str | Missing
    compute_capability: str | Missing
    memory_total_bytes: int | Missing
    memory_used_bytes: int | Missing
    bar1_total_bytes: int | Missing
    ecc_enabled: bool | Missing
    ecc_pending: bool | Missing
    ecc_volatile_corrected: int | Missing
    ecc_volatile_uncorrected: int | Missing
    ecc_aggregate_corrected: int | Missing
    ecc_aggregate_uncorrected: int | Missing
    dram_volatile_corrected: int | Missing
    dram_volatile_uncorrected: int | Missing
    sram_volatile_uncorrected: int | Missing
    sram_aggregate_corrected: int | Missing
    sram_aggregate_uncorrected: int | Missing
    sram_threshold_exceeded: bool | Missing
    remapped_rows_corrected: int | Missing
    remapped_rows_uncorrected: int | Missing
    row_remap_pending: bool | Missing
    row_remap_failure: bool | Missing
    remap_banks_exhausted: int | Missing
    remap_banks_total: int | Missing
    retired_pages_single_bit: int | Missing
    retired_pages_double_bit: int | Missing
    retired_pages_pending: bool | Missing
    recovery_action: str | Missing
    temperature_celsius: int | Missing
    temperature_margin_celsius: int | Missing
    slowdown_margin_celsius: int | Missing
    slowdown_celsius: int | Missing
    gpu_max_celsius: int | Missing
    memory_temperature_celsius: int | Missing
    memory_max_celsius: int | Missing
    power_usage_watts: float | Missing
    power_limit_watts: float | Missing
    power_limit_default_watts: float | Missing
    power_limit_min_watts: float | Missing
    power_limit_max_watts: float | Missing
    performance_state: int | Missing
    clock_sm_mhz: int | Missing
    clock_sm_max_mhz: int | Missing
    clock_memory_mhz: int | Missing
    clock_memory_max_mhz: int | Missing
    application_clock_mhz: int | Missing
    application_clock_default_mhz: int | Missing
    event_reasons: list[int] | Missing
    power_violation_seconds: float | Missing
    thermal_violation_seconds: float | Missing
    utilization_ratio: float | Missing
    persistence_mode: bool | Missing
    compute_mode: str | Missing
    mig_enabled: bool | Missing
    pcie_generation: int | Missing
    pcie_generation_max: int | Missing
    pcie_width_lanes: int | Missing
    pcie_width_max_lanes: int | Missing
    pcie_replays: int | Missing
    numa_node: int | Missing
    cpu_affinity: str | Missing
    nvlinks: list[NvLink] | Missing
    fabric: Fabric
    processes: list[GpuProcess] | Missing


class GpuPair(Fact, frozen=True, kw_only=True):
    """Two GPUs by their indices: the nearest common point in the PCI tree, and whether they reach each other's memory."""

    one: int
    other: int
    common_ancestor: str | Missing
    p2p_read: str | Missing
    p2p_nvlink: str | Missing


class Driver(Fact, frozen=True, kw_only=True):
    """The NVIDIA driver: what the kernel has loaded, what the library is, and how the sweep went."""

    module_version: str | Missing
    module_license: str | Missing
    library_version: str | Missing
    driver_version: str | Missing
    cuda_version: str | Missing
    confidential_compute: bool | Missing
    init_error: str | None
    sweep_seconds: float | Missing
    broken_off: str | None


# --- PCI -------------------------------------------------------------------------------------------------------------------------


class PciLink(Fact, frozen=True, kw_only=True):
    """A PCI Express link as one of its ends sees it. Speeds in GT/s, widths in lanes."""

    speed_gtps: float | Missing
    speed_max_gtps: float | Missing
    width_lanes: int | Missing
    width_max_lanes: int | Missing


class PciDevice(Fact, frozen=True, kw_only=True):
    """A PCI function. `path` is the bridges from the root port down to its parent; `role` is what we take it for."""

    address: str
    vendor_id: int | Missing
    device_id: int | Missing
    class_code: int | Missing
    role: str
    driver: str | Missing
    path: list[str]
    root: str
    numa_node: int | Missing
    link: PciLink
    virtual_function: bool
    aer_correctable: int | Missing
    aer_nonfatal: int | Missing
    aer_fatal: int | Missing
    acs_redirect: bool | Missing
    iommu_type: str | Missing


# --- CPU and memory --------------------------------------------------------------------------------------------------------------


class NumaNode(Fact, frozen=True, kw_only=True):
    """A NUMA node; `distances` in the order of the nodes, 10 is local."""

    node: int
    cpus: str | Missing
    memory_bytes: int | Missing
    distances: list[int] | Missing


class Cpu(Fact, frozen=True, kw_only=True):
    """The processors. `governors` and `energy_preferences` are those in use, each once."""

    model: str | Missing
    architecture: str | Missing
    sockets: int | Missing
    cores: int | Missing
    threads: int | Missing
    numa_nodes: list[NumaNode] | Missing
    governors: list[str] | Missing
    frequency_driver: str | Missing
    energy_preferences: list[str] | Missing
    virtualization: str | Missing
    iommu_active: bool | Missing


class MemoryController(Fact, frozen=True, kw_only=True):
    """An EDAC memory controller; error counts since boot."""

    name: str
    corrected_errors: int | Missing
    uncorrected_errors: int | Missing


class Memory(Fact, frozen=True, kw_only=True):
    """Main memory and the limits on it. A limit of -1 is unlimited."""

    total_bytes: int | Missing
    available_bytes: int | Missing
    cgroup_limit_bytes: int | Missing
    swap_total_bytes: int | Missing
    hugepages_total: int | Missing
    hugepage_size_bytes: int | Missing
    shm_size_bytes: int | Missing
    memlock_process_bytes: int | Missing
    memlock_login_bytes: int | Missing
    controllers: list[MemoryController] | Missing


class System(Fact, frozen=True, kw_only=True):
    """The machine as a whole."""

    host_name: str | Missing
    vendor: str | Missing
    product: str | Missing
    kernel_release: str | Missing
    operating_system: str | Missing
    uptime_seconds: float | Missing
    boot_id: str | Missing
    kernel_command_line: str | Missing


class Snapshot(Fact, frozen=True, kw_only=True):
    """Everything known about one machine at one time."""

    system: System
    driver: Driver
    gpus: list[Gpu]
    gpu_pairs: list[GpuPair]
    pci: list[PciDevice] | Missing
    cpu: Cpu
    memory: Memory
