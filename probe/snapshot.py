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


class Counter(Fact, frozen=True, kw_only=True):
    """A counter of a port, by its kernel name; `source` is `counters` or `hw_counters`."""

    name: str
    value: int | Missing


class RdmaPort(Fact, frozen=True, kw_only=True):
    """A port of an RDMA device. `rate_gbps` and `lanes` and `speed_name` are of the line `400 Gb/sec (4X NDR)`.

    `down_reason`: why the port is down, in its firmware's or driver's words. `health_errors`: the health reporters (devlink) of its PCI
    function that are in error. `link_local_only`: no GID but those that the kernel makes of the MAC. `role` is what we take the port for:
    compute, storage, management or unused; `role_reason` says why.
    """

    device: str
    port: int
    pci_address: str | Missing
    device_name: str | Missing
    firmware_version: str | Missing
    board_id: str | Missing
    driver: str | Missing
    virtual_function: bool
    state: str | Missing
    physical_state: str | Missing
    down_reason: str | Missing
    health_errors: list[str] | Missing
    rate_gbps: float | Missing
    lanes: int | Missing
    speed_name: str | Missing
    link_layer: str | Missing
    lid: int | Missing
    sm_lid: int | Missing
    gid_types: list[str] | Missing
    link_local_only: bool
    interfaces: list[str]
    mtu: int | Missing
    numa_node: int | Missing
    counters: list[Counter]
    ecn_enabled: bool | Missing
    pfc_priorities: list[int] | Missing
    role: str
    role_reason: str


class NetworkInterface(Fact, frozen=True, kw_only=True):
    """A network interface with a device behind it, or a bond. `switched_on`: an administrator has it up, with or without a cable."""

    name: str
    state: str | Missing
    switched_on: bool | Missing
    speed_mbps: int | Missing
    mtu: int | Missing
    carrier_changes: int | Missing
    pci_address: str | Missing
    members: list[str]
    default_route: bool


class Drive(Fact, frozen=True, kw_only=True):
    """An NVMe controller: sizes of its namespaces added up, and its SMART log where root read it."""

    name: str
    model: str | Missing
    firmware_version: str | Missing
    serial: str | Missing
    transport: str | Missing
    state: str | Missing
    pci_address: str | Missing
    namespaces: list[str]
    size_bytes: int | Missing
    temperature_celsius: float | Missing
    critical_warning: int | Missing
    available_spare_percent: float | Missing
    spare_threshold_percent: float | Missing
    used_percent: float | Missing
    media_errors: int | Missing


class Array(Fact, frozen=True, kw_only=True):
    """A Linux software RAID (md)."""

    name: str
    level: str | Missing
    disks: int | Missing
    degraded: int | Missing
    state: str | Missing


class FileSystem(Fact, frozen=True, kw_only=True):
    """A mounted file system that matters: where checkpoints or data may go, the root, and shared ones.

    `drives` are the NVMe controllers it stands on, found through partitions, device mapper and md.
    """

    path: str
    device: str
    kind: str
    options: list[str]
    read_only: bool
    shared: bool
    drives: list[str]
    size_bytes: int | Missing
    free_bytes: int | Missing
    files_free: int | Missing
    health: str | Missing


class Storage(Fact, frozen=True, kw_only=True):
    """Drives, arrays, file systems, and whether GPUDirect Storage is there."""

    drives: list[Drive] | Missing
    arrays: list[Array] | Missing
    file_systems: list[FileSystem] | Missing
    gpudirect_storage: bool | Missing


class PowerSupply(Fact, frozen=True, kw_only=True):
    """One power supply, as far as one source (or several together) tell of it."""

    name: str
    model: str | Missing
    rating_watts: float | Missing
    present: bool
    healthy: bool | Missing
    input_lost: bool | Missing
    input_watts: float | Missing
    source: str


class Power(Fact, frozen=True, kw_only=True):
    """The node's supplies, what it draws now, and what the BMC's event log says of them."""

    supplies: list[PowerSupply] | Missing
    redundancy: str | Missing
    draw_watts: float | Missing
    capacity_watts: float | Missing
    events: list[str] | Missing


class Ups(Fact, frozen=True, kw_only=True):
    """An uninterruptible power supply. `status` are NUT's words (OL, OB, LB, RB, OVER, ...) whatever the protocol."""

    name: str
    protocol: str
    model: str | Missing
    status: list[str] | Missing
    load_ratio: float | Missing
    real_power_watts: float | Missing
    real_power_nominal_watts: float | Missing
    runtime_seconds: float | Missing
    charge_ratio: float | Missing
    battery_date: str | Missing


class Sensor(Fact, frozen=True, kw_only=True):
    """A temperature (°C) or fan (RPM) of the chassis. `state` is the BMC's own word: `ok`, `warning` (non-critical) or `critical`."""

    name: str
    kind: str
    value: float | Missing
    critical: float | Missing
    state: str | Missing
    source: str


class KernelEvent(Fact, frozen=True, kw_only=True):
    """What the kernel log says of one device in one way: how often, first and last time (seconds since boot, where known)."""

    kind: str
    code: str
    device: str
    count: int
    first_seconds: float | Missing
    last_seconds: float | Missing
    text: str


class Package(Fact, frozen=True, kw_only=True):
    """A piece of software and its version."""

    name: str
    version: str | Missing


class Service(Fact, frozen=True, kw_only=True):
    """A systemd unit: `active`, `inactive`, `failed`, ... as `systemctl` has it; Missing where there is no such unit."""

    name: str
    state: str | Missing


class Software(Fact, frozen=True, kw_only=True):
    """What is installed, loaded and set: modules, services, versions, clocks and kernel settings."""

    modules: list[str] | Missing
    services: list[Service] | Missing
    packages: list[Package] | Missing
    clock_source: str | Missing
    clock_synchronized: bool | Missing
    transparent_hugepages: str | Missing
    numa_balancing: bool | Missing
    dmabuf_supported: bool | Missing


class Pdu(Fact, frozen=True, kw_only=True):
    """The feed of the node's rack place: a PDU or a circuit. `feeds` are independent ones, of which one may fail."""

    volts: float
    amps: float
    phases: int = 1
    feeds: int = 1


class Site(Fact, frozen=True, kw_only=True):
    """What no probe can see, from the site's configuration."""

    nodes: int | None = None
    interconnect: str | None = None
    cooling: str | None = None
    power_redundancy: str | None = None
    pdu: Pdu | None = None
    checkpoint_path: str | None = None
    dataset_path: str | None = None
    checkpoints_kept: int = 3
    storage_write_gbps: float | None = None
    shutdown_seconds: float = 120.0
    nccl_ib_hca: str | None = None
    python_environment: str | None = None


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
    rdma: list[RdmaPort] | Missing
    interfaces: list[NetworkInterface] | Missing
    storage: Storage
    power: Power
    upses: list[Ups] | Missing
    sensors: list[Sensor] | Missing
    kernel_log: list[KernelEvent] | Missing
    software: Software
    site: Site
