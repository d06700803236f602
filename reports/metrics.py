"""The report as Prometheus metrics: families made of a report, and the daemon's own of what it knows of its probes.

Names follow the Prometheus guides (base units, `_total` on counters, ratios 0 to 1); a value that could not be read has no series.
Labels are few: a GPU carries `gpu` and `gpu_uuid`, everything else about it is on `readiness_gpu_info`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric, StateSetMetricFamily

from checks.score import VERDICT_ORDER
from probe.cooling import INLET
from probe.fact import Missing, mapped
from probe.snapshot import Gpu, Snapshot
from reports.document import Report

T = TypeVar("T")

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
STATUS_NUMBERS = {"passed": 0, "warned": 1, "failed": 2, "unknown": 3}
DEVICES_CAP = 256
"""No more devices of a kind get series, whatever the machine offers."""


class ProbeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon knows of one of its probes; times are Unix seconds."""

    name: str
    success: bool
    stuck: bool
    duration_seconds: float
    last_success: float | None


class _Gauges:
    """A gauge family that leaves out what is missing."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily
    ) -> None:
        self.family = kind(f"readiness_{name}", text, labels=list(labels))

    def add(self, labels: Sequence[str], value: float | bool | Missing | None) -> None:
        if not isinstance(value, Missing) and value is not None:
            self.family.add_metric(list(labels), float(value))


def families(report: Report) -> Iterator[Metric]:
    """Everything that a report says, as metric families; those without a sample are left out."""
    for family in (
        *_verdicts(report),
        *_checks(report),
        *_gpus(report.facts),
        *_nvlinks(report.facts),
        *_network(report.facts),
        *_storage(report),
        *_power(report.facts),
    ):
        if family.samples:
            yield family


def _verdicts(report: Report) -> Iterator[Metric]:
    verdict = StateSetMetricFamily("readiness_verdict", "What the node is for a workload; one of the states is 1.", labels=["workload"])
    score = _Gauges("score_ratio", "Score for a workload, 0 to 1.", ["workload"])
    confidence = _Gauges("confidence_ratio", "How much of the score's weight could be judged, 0 to 1.", ["workload"])
    headroom = _Gauges(
        "gpu_memory_headroom_bytes",
        "Memory left on each GPU by the chosen strategy of a workload; negative where nothing fits.",
        ["workload"],
    )
    pace = _Gauges("tokens_per_second", "Estimated tokens a second of the chosen strategy of a workload, all nodes together.", ["workload"])
    for one in report.workloads:
        verdict.add_metric([one.workload], {word: word == one.verdict for word in VERDICT_ORDER})
        score.add([one.workload], one.score)
        confidence.add([one.workload], one.confidence)
        tried = [strategy for strategy in one.fit.strategies if strategy.strategy == one.fit.strategy] or one.fit.strategies
        if one.fit.strategy and tried:
            pace.add([one.workload], tried[0].tokens_per_second)
        if tried:
            headroom.add([one.workload], max(strategy.gpu_usable_bytes - strategy.gpu_need_bytes for strategy in tried))
    ready = _Gauges("node_ready", "1 where the required workloads may run (with or without warnings).", [])
    ready.add([], report.verdict in ("READY", "READY_WITH_WARNINGS"))
    overall = StateSetMetricFamily("readiness_node_verdict", "What the node is for the required workloads; one of the states is 1.")
    overall.add_metric([], {word: word == report.verdict for word in VERDICT_ORDER})
    yield from (verdict, score.family, confidence.family, headroom.family, pace.family, ready.family, overall)


def _checks(report: Report) -> Iterator[Metric]:
    status = _Gauges(
        "check_status",
        "0 passed, 1 warned, 2 failed, 3 not known; a check that does not apply has no series.",
        ["check", "component", "device"],
    )
    devices: dict[str, int] = {}
    for finding in report.findings:
        devices[finding.check] = devices.get(finding.check, 0) + 1
        if finding.status in STATUS_NUMBERS and devices[finding.check] <= DEVICES_CAP:
            status.add([finding.check, finding.component, finding.device], 0 if finding.accepted else STATUS_NUMBERS[finding.status])
    yield status.family


def _text(value: str | Missing) -> str:
    return "" if isinstance(value, Missing) else value


def labels_of(gpu: Gpu) -> list[str]:
    """The labels by which exporters join: NVML's index and the UUID."""
    return [str(gpu.index), _text(gpu.uuid)]


GPU_GAUGES = (
    ("gpu_memory_total_bytes", "Memory of the GPU.", "memory_total_bytes", 1.0),
    ("gpu_memory_used_bytes", "Memory in use.", "memory_used_bytes", 1.0),
    ("gpu_power_watts", "Power drawn now.", "power_usage_watts", 1.0),
    ("gpu_power_limit_watts", "Enforced power limit.", "power_limit_watts", 1.0),
    ("gpu_power_limit_default_watts", "Power limit that the card ships with.", "power_limit_default_watts", 1.0),
    ("gpu_temperature_celsius", "Temperature of the GPU.", "temperature_celsius", 1.0),
    ("gpu_temperature_margin_celsius", "Degrees below the thermal limit (T.Limit).", "temperature_margin_celsius", 1.0),
    ("gpu_memory_temperature_celsius", "Temperature of the GPU's memory.", "memory_temperature_celsius", 1.0),
    ("gpu_sm_clock_hertz", "Clock of the multiprocessors.", "clock_sm_mhz", 1e6),
    ("gpu_utilization_ratio", "Share of time in which a kernel ran, 0 to 1.", "utilization_ratio", 1.0),
    ("gpu_pcie_width_lanes", "PCIe lanes in use.", "pcie_width_lanes", 1.0),
    ("gpu_pcie_generation", "PCIe generation in use; lower while idle.", "pcie_generation", 1.0),
    ("gpu_row_remap_pending", "1 where a memory row waits for a reset to be remapped.", "row_remap_pending", 1.0),
    ("gpu_row_remap_failed", "1 where a memory row could not be remapped.", "row_remap_failure", 1.0),
    ("gpu_ecc_enabled", "1 where ECC is on.", "ecc_enabled", 1.0),
    ("gpu_persistence_enabled", "1 where persistence mode is on.", "persistence_mode", 1.0),
)
GPU_COUNTERS = (
    ("gpu_ecc_corrected_errors", "Corrected memory errors since the driver was loaded.", "ecc_volatile_corrected"),
    ("gpu_ecc_uncorrected_errors", "Uncorrectable memory errors since the driver was loaded.", "ecc_volatile_uncorrected"),
    ("gpu_remapped_rows_corrected", "Memory rows remapped after corrected errors.", "remapped_rows_corrected"),
    ("gpu_remapped_rows_uncorrected", "Memory rows remapped after uncorrectable errors.", "remapped_rows_uncorrected"),
    ("gpu_power_throttle_seconds", "Time in which the power limit held the clocks down.", "power_violation_seconds"),
    ("gpu_thermal_throttle_seconds", "Time in which heat held the clocks down.", "thermal_violation_seconds"),
    ("gpu_pcie_replays", "PCIe packets sent again.", "pcie_replays"),
)


def _gpus(facts: Snapshot) -> Iterator[Metric]:
    gpus = facts.gpus[:DEVICES_CAP]
    keys = ["gpu", "gpu_uuid"]
    on_bus = _Gauges("gpus_on_bus", "NVIDIA GPUs on the PCI bus, whether a driver has them or not; 0 on a machine without.", [])
    on_bus.add([], mapped(facts.pci, lambda devices: sum(device.role == "gpu" and not device.virtual_function for device in devices)))
    info = InfoMetricFamily("readiness_gpu", "What a GPU is.", labels=keys)
    present = _Gauges("gpu_present", "1 where the GPU answers, 0 where it is lost.", keys)
    driver = _text(facts.driver.driver_version)
    for gpu in gpus:
        known = {"pci_address": gpu.address, "model_name": gpu.name, "vbios_version": gpu.vbios_version, "driver_version": driver}
        info.add_metric(labels_of(gpu), {name: _text(value) for name, value in known.items()})
        present.add(labels_of(gpu), not gpu.lost)
    yield from (on_bus.family, info, present.family)
    for name, text, fact, factor in GPU_GAUGES:
        gauge = _Gauges(name, text, keys)
        for gpu in gpus:
            value = getattr(gpu, fact)
            gauge.add(labels_of(gpu), value if isinstance(value, Missing) else value * factor)
        yield gauge.family
    for name, text, fact in GPU_COUNTERS:
        counter = _Gauges(name, text, keys, CounterMetricFamily)
        for gpu in gpus:
            counter.add(labels_of(gpu), getattr(gpu, fact))
        yield counter.family


def _nvlinks(facts: Snapshot) -> Iterator[Metric]:
    up = _Gauges("nvlink_up", "1 where an NVLink is up.", ["gpu", "gpu_uuid", "link"])
    speed = _Gauges(
        "nvlink_speed_bytes_per_second", "Line rate of a GPU's NVLinks that are up, added, in each direction.", ["gpu", "gpu_uuid"]
    )
    counters = {
        "replay_errors": _Gauges("nvlink_replays", "Packets sent again on all NVLinks of a GPU.", ["gpu", "gpu_uuid"], CounterMetricFamily),
        "recovery_errors": _Gauges("nvlink_recoveries", "Recoveries of all NVLinks of a GPU.", ["gpu", "gpu_uuid"], CounterMetricFamily),
        "crc_errors": _Gauges("nvlink_crc_errors", "Checksum errors on all NVLinks of a GPU.", ["gpu", "gpu_uuid"], CounterMetricFamily),
    }
    for gpu in facts.gpus[:DEVICES_CAP]:
        links = gpu.nvlinks
        if isinstance(links, Missing) or not links:
            continue
        for link in links:
            up.add([*labels_of(gpu), str(link.link)], link.active)
        speed.add(
            labels_of(gpu), sum(link.speed_mbps for link in links if link.active is True and isinstance(link.speed_mbps, int)) * 125_000
        )
        for fact, family in counters.items():
            known = [value for link in links if isinstance(value := getattr(link, fact), int)]
            family.add(labels_of(gpu), sum(known) if known else None)
    yield from (up.family, speed.family, *(family.family for family in counters.values()))


def _network(facts: Snapshot) -> Iterator[Metric]:
    keys = ["device", "port"]
    info = InfoMetricFamily("readiness_rdma_port", "What an RDMA port is, and what it is taken for.", labels=keys)
    up = _Gauges("rdma_port_up", "1 where the port is active.", keys)
    rate = _Gauges("rdma_port_rate_bytes_per_second", "Rate of the port.", keys)
    errors = _Gauges("rdma_port_errors", "Error counters of the port, by the kernel's name.", [*keys, "counter"], CounterMetricFamily)
    for port in [] if isinstance(facts.rdma, Missing) else facts.rdma[:DEVICES_CAP]:
        labels = [port.device, str(port.port)]
        known = {"role": port.role, "firmware_version": port.firmware_version, "link_layer": port.link_layer, "board": port.board_id}
        info.add_metric(labels, {name: _text(value) for name, value in known.items()})
        up.add(labels, port.state if isinstance(port.state, Missing) else port.state == "ACTIVE")
        rate.add(labels, port.rate_gbps if isinstance(port.rate_gbps, Missing) else port.rate_gbps * 125e6)
        for one in port.counters:
            errors.add([*labels, one.name], one.value)
    yield from (info, up.family, rate.family, errors.family)


def _storage(report: Report) -> Iterator[Metric]:
    storage = report.facts.storage
    size = _Gauges("nvme_size_bytes", "Size of the drive.", ["device"])
    used = _Gauges("nvme_wear_ratio", "Share of the rated wear used up; may exceed 1.", ["device"])
    spare = _Gauges("nvme_spare_ratio", "Spare blocks left, 0 to 1.", ["device"])
    warning = _Gauges("nvme_critical_warning", "The drive's critical warning bits.", ["device"])
    temperature = _Gauges("nvme_temperature_celsius", "Temperature of the drive.", ["device"])
    media = _Gauges("nvme_media_errors", "Media errors in the drive's life.", ["device"], CounterMetricFamily)
    for drive in [] if isinstance(storage.drives, Missing) else storage.drives[:DEVICES_CAP]:
        labels = [drive.name]
        size.add(labels, drive.size_bytes)
        for family, value in ((used, drive.used_percent), (spare, drive.available_spare_percent)):
            family.add(labels, value if isinstance(value, Missing) else value / 100)
        warning.add(labels, drive.critical_warning)
        temperature.add(labels, drive.temperature_celsius)
        media.add(labels, drive.media_errors)
    free = _Gauges("filesystem_free_bytes", "Free space of a file system that matters.", ["mountpoint"])
    total = _Gauges("filesystem_size_bytes", "Size of a file system that matters.", ["mountpoint"])
    for one in [] if isinstance(storage.file_systems, Missing) else storage.file_systems[:DEVICES_CAP]:
        free.add([one.path], one.free_bytes)
        total.add([one.path], one.size_bytes)
    room = _Gauges(
        "checkpoint_room_ratio",
        "Free space where checkpoints go, over what the workload's kept checkpoints and base model take.",
        ["workload"],
    )
    for verdict in report.workloads:
        for need in verdict.fit.requirements:
            if need.name.startswith("room for checkpoints") and need.measured is not None and need.wanted:
                room.add([verdict.workload], need.measured / need.wanted)
    for part in (size, used, spare, warning, temperature, media, free, total, room):
        yield part.family


def _power(facts: Snapshot) -> Iterator[Metric]:
    ok = _Gauges("power_supply_ok", "1 where the supply has its input and is healthy.", ["device"])
    rating = _Gauges("power_supply_rating_watts", "Rating of the supply.", ["device"])
    drawn = _Gauges("power_supply_input_watts", "Power that the supply takes in.", ["device"])
    supplies = facts.power.supplies
    for supply in [] if isinstance(supplies, Missing) else supplies[:DEVICES_CAP]:
        if supply.present:
            unread = isinstance(supply.healthy, Missing) and isinstance(supply.input_lost, Missing)
            ok.add([supply.name], None if unread else supply.healthy is not False and supply.input_lost is not True)
            rating.add([supply.name], supply.rating_watts)
            drawn.add([supply.name], supply.input_watts)
    node = _Gauges("node_power_watts", "Power that the node draws now.", [])
    node.add([], facts.power.draw_watts)
    redundant = _Gauges("power_redundant", "1 where the BMC calls the supplies fully redundant.", [])
    redundant.add([], facts.power.redundancy if isinstance(facts.power.redundancy, Missing) else facts.power.redundancy == "full")
    ups = {
        "on_line": _Gauges("ups_on_line", "1 where the UPS says that it runs on the mains.", ["device"]),
        "on_battery": _Gauges("ups_on_battery", "1 where the UPS says that it runs on its battery.", ["device"]),
        "load_ratio": _Gauges("ups_load_ratio", "Load of the UPS, 0 to 1.", ["device"]),
        "charge_ratio": _Gauges("ups_charge_ratio", "Charge of the battery, 0 to 1.", ["device"]),
        "runtime_seconds": _Gauges("ups_runtime_seconds", "Runtime at the present load.", ["device"]),
        "real_power_watts": _Gauges("ups_power_watts", "Real power that the UPS gives.", ["device"]),
    }
    for one in [] if isinstance(facts.upses, Missing) else facts.upses[:DEVICES_CAP]:
        ups["on_line"].add([one.name], mapped(one.status, lambda words: "OL" in words))
        ups["on_battery"].add([one.name], mapped(one.status, lambda words: "OB" in words))
        for fact, family in list(ups.items())[2:]:
            family.add([one.name], getattr(one, fact))
    inlet = _Gauges("inlet_celsius", "Temperature of the air that comes in.", ["device"])
    for sensor in [] if isinstance(facts.sensors, Missing) else facts.sensors[:DEVICES_CAP]:
        if sensor.kind == "temperature" and INLET.search(sensor.name):
            inlet.add([sensor.name], sensor.value)
    for part in (ok, rating, drawn, node, redundant, *ups.values(), inlet):
        yield part.family


def own_families(probes: Iterable[ProbeHealth], version: str, python: str, published: float) -> Iterator[Metric]:
    """What the daemon says of itself."""
    build = InfoMetricFamily("readiness_build", "The version of readiness.")
    build.add_metric([], {"version": version, "pythonversion": python})
    at = _Gauges("report_timestamp_seconds", "When the report was made that these metrics are of.", [])
    at.add([], published)
    success = _Gauges("probe_success", "1 where the probe's last run got an answer, even if it is that there is nothing.", ["probe"])
    stuck = _Gauges("probe_stuck", "1 while a run of the probe is past its deadline and has not ended.", ["probe"])
    duration = _Gauges("probe_duration_seconds", "How long the probe's last run took.", ["probe"])
    last = _Gauges("probe_last_success_timestamp_seconds", "When the probe last ended well.", ["probe"])
    for probe in probes:
        success.add([probe.name], probe.success)
        stuck.add([probe.name], probe.stuck)
        duration.add([probe.name], probe.duration_seconds)
        last.add([probe.name], probe.last_success)
    yield from (build, at.family, success.family, stuck.family, duration.family, last.family)


class _Families:
    """What prometheus_client renders: anything with `collect`."""

    def __init__(self, found: Sequence[Metric]) -> None:
        self.found = found

    def collect(self) -> Sequence[Metric]:
        return self.found


def text(found: Sequence[Metric]) -> bytes:
    """The families in Prometheus' text format 0.0.4."""
    from prometheus_client.exposition import generate_latest

    return generate_latest(_Families(found))


def openmetrics(found: Sequence[Metric]) -> bytes:
    """The families in OpenMetrics 1.0."""
    from prometheus_client.openmetrics.exposition import generate_latest

    return generate_latest(_Families(found))  # type: ignore[no-untyped-call, no-any-return]
