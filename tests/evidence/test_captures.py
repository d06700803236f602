"""Real captures of other people's machines, judged by value. They stand outside the project: READINESS_EVIDENCE names the folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from checks.catalog import workloads, xids
from checks.score import assess
from probe import kernel_log, power, storage
from probe.collect import collect
from probe.cooling import ipmi_sensors, redfish_sensors
from probe.fact import Missing
from probe.host import LiveHost
from probe.rdma import probe as rdma_probe
from probe.snapshot import RdmaPort, Site, Snapshot
from tests.evidence.trees import from_json, from_tar, from_ttar


class TreeHost(LiveHost):
    """A tree of files as a machine: no tools, no NVML."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), tool_folders=())

    def nvml(self) -> list:  # type: ignore[type-arg]
        return []


def ports_of(root: Path) -> list[RdmaPort]:
    return rdma_probe(TreeHost(root), Site())[0]


def test_an_h100_nodes_infiniband(evidence: Path, tmp_path: Path) -> None:
    found = evidence / "sysfs/leptonai+gpud/components/accelerator/nvidia/infiniband/class/testdata/sys-class-infiniband-h100.0"
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(found)

    class Host(TreeHost):
        def _at(self, path: str) -> str:
            return path.replace("/sys/class/infiniband", str(found)) if path.startswith("/sys/class/infiniband") else super()._at(path)

    ports = rdma_probe(Host(tmp_path), Site())[0]
    assert len(ports) == 9
    fast = [port for port in ports if port.rate_gbps == 400.0]
    assert len(fast) == 8
    assert {(port.speed_name, port.lanes, port.link_layer, port.state, port.role) for port in fast} == {
        ("NDR", 4, "InfiniBand", "ACTIVE", "compute")
    }
    assert {(port.device_name, port.firmware_version) for port in fast} == {("MT4129", "28.41.1000")}
    bond = next(port for port in ports if port.device == "mlx5_bond_0")
    assert (bond.link_layer, bond.rate_gbps, bond.role) == ("Ethernet", 200.0, "storage")
    assert all(isinstance(one.value, int) for port in fast for one in port.counters if one.name == "symbol_error")


@pytest.mark.parametrize("name", ["sysfs/prometheus+node_exporter/sys.ttar", "sysfs/prometheus+procfs/testdata/fixtures.ttar"])
def test_exporters_trees(name: str, evidence: Path, tmp_path: Path) -> None:
    root = from_ttar(evidence / name, tmp_path)
    root = root / "fixtures" if (root / "fixtures").is_dir() else root
    snapshot = collect(TreeHost(root))
    assert no_fault(snapshot)
    assert isinstance(snapshot.rdma, list)
    ports = {(port.device, port.port): port for port in snapshot.rdma}
    other = "i40iw0" if "node_exporter" in name else "hfi1_0"
    assert {device for device, _ in ports} >= {"mlx4_0", other}
    assert ports["mlx4_0", 1].rate_gbps == 40.0
    missing = [one for one in ports[other, 1].counters if isinstance(one.value, Missing)]
    assert missing, "a counter that says N/A (no PMA), or is not there, is missing and not zero"
    assert isinstance(ports[other, 1].rate_gbps, float)


def no_fault(snapshot: Snapshot) -> bool:
    """No probe and no check ended in an exception of ours."""
    findings = assess(snapshot, workloads().values()).findings
    return b" probe" not in _encoded(snapshot) and not [one for one in findings if "fault of readiness" in one.fix]


def _encoded(snapshot: Snapshot) -> bytes:
    import msgspec

    return (
        re.sub(rb'"source":"[a-z ]+ probe"', b" probe", msgspec.json.encode(snapshot))
        if b' probe"' in msgspec.json.encode(snapshot)
        else b""
    )


def test_every_hwloc_tree(evidence: Path, tmp_path: Path) -> None:
    archives = sorted((evidence / "sysfs/open-mpi+hwloc").rglob("*.tar.bz2"))
    assert len(archives) > 35
    for number, archive in enumerate(archives):
        (tmp_path / str(number)).mkdir()
        snapshot = collect(TreeHost(from_tar(archive, tmp_path / str(number))))
        assert no_fault(snapshot), archive.name
        if archive.name.startswith("40intel64-2g2n4c+pcilocality"):
            assert isinstance(snapshot.pci, list)
            assert {device.role for device in snapshot.pci} >= {"bridge", "nic"}


@pytest.mark.parametrize(
    ("name", "nodes", "threads", "sockets"),
    [
        ("16em64t-4s2c2t.tar.bz2", None, 16, 4),
        ("32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2", 2, 16, 2),
        ("96em64t-4no4pa3ca2co.tar.bz2", 4, 96, 16),
    ],
)
def test_hwloc_trees_by_value(name: str, nodes: int | None, threads: int, sockets: int, evidence: Path, tmp_path: Path) -> None:
    cpu = collect(TreeHost(from_tar(evidence / "sysfs/open-mpi+hwloc" / name, tmp_path))).cpu
    assert (cpu.threads, cpu.sockets) == (threads, sockets)
    if nodes is not None:
        assert isinstance(cpu.numa_nodes, list)
        assert len(cpu.numa_nodes) == nodes


def test_every_nvme_drive_gives_capacity_and_wear(evidence: Path) -> None:
    files = sorted((evidence / "nvme/prometheus-community+smartctl_exporter").glob("*.json"))
    seen = 0
    for file in files:
        said = file.read_text()
        if "nvme_smart_health_information_log" not in said:
            with pytest.raises(ValueError, match=""):
                storage.smartctl(said)
            continue
        log = storage.smartctl(said)
        raw = json.loads(said)
        seen += 1
        assert log["size"] == (raw.get("nvme_total_capacity") or raw["user_capacity"]["bytes"])
        assert 0 <= log["used"] <= 255
        assert log["critical_warning"] == raw["nvme_smart_health_information_log"]["critical_warning"]
        assert log["media_errors"] is not None
    assert seen == 55


def test_libnvme_trees(evidence: Path, tmp_path: Path) -> None:
    archives = sorted((evidence / "nvme/linux-nvme+nvme-cli").rglob("*.tar.xz"))
    assert archives
    for number, archive in enumerate(archives):
        (tmp_path / str(number)).mkdir()
        root = from_tar(archive, tmp_path / str(number))
        drives = storage.probe(TreeHost(root if (root / "sys").exists() else root.parent), Site()).drives
        assert isinstance(drives, list)


# --- BMCs ----------------------------------------------------------------------------------------------------------------------------


def loaded(path: Path) -> dict[str, object]:
    said: dict[str, object] = json.loads(path.read_text())
    return said


def test_dell(evidence: Path) -> None:
    told = power.redfish({"power": [loaded(evidence / "psu/influxdata+telegraf/dell/dell_power.json")]})
    assert isinstance(told.supplies, list)
    assert [(one.rating_watts, one.healthy, one.input_lost) for one in told.supplies] == [(750.0, True, False)] * len(told.supplies)
    assert told.draw_watts == 429.0
    sensors = redfish_sensors({"thermal": [loaded(evidence / "psu/influxdata+telegraf/dell/dell_thermal.json")]})
    assert Counter(sensor.kind for sensor in sensors)["fan"] >= 6


def test_hpe(evidence: Path) -> None:
    folder = evidence / "psu/influxdata+telegraf/hp"
    told = power.redfish({"power": [loaded(folder / "hp_power.json")]})
    assert isinstance(told.supplies, list)
    assert len(told.supplies) == 2
    assert all(isinstance(one.rating_watts, float) and one.rating_watts >= 400 for one in told.supplies)
    newer = power.redfish(
        {
            "subsystems": [loaded(folder / "power_subsys/hp_power_subsys.json")],
            "supplies": [loaded(folder / "power_subsys/hp_power_subsys_psu_1.json")],
        }
    )
    assert isinstance(newer.supplies, list)
    assert [(one.rating_watts, one.healthy, one.input_lost) for one in newer.supplies] == [(400.0, False, False)]
    assert newer.capacity_watts == 2000.0


def test_dmtf_mockup(evidence: Path) -> None:
    chassis = evidence / "psu/DMTF+Redfish-Mockup-Server/public-rackmount1/Chassis/1U"
    supplies = [loaded(chassis / f"PowerSubsystem/PowerSupplies/Bay{n}/index.json") for n in (1, 2)]
    told = power.redfish(
        {
            "power": [loaded(chassis / "Power/index.json")],
            "subsystems": [loaded(chassis / "PowerSubsystem/index.json")],
            "supplies": supplies,
        }
    )
    assert isinstance(told.supplies, list)
    assert [(one.name, one.rating_watts) for one in told.supplies if one.present][:1] == [("Power Supply Bay 1", 400.0)]
    assert isinstance(told.draw_watts, float)


def test_every_redfish_document(evidence: Path) -> None:
    """Any document in any place: facts or a reason, no exception."""
    files = [path for path in (evidence / "psu").rglob("*.json") if path.stat().st_size < 200_000]
    assert len(files) > 300
    for path in files:
        try:
            said = json.loads(path.read_text())
        except ValueError:
            continue
        power.parsed_answer({"power": [said], "supplies": [said], "subsystems": [said]}, str(path))
        redfish_sensors({"thermal": [said]})


# --- logs ----------------------------------------------------------------------------------------------------------------------------


def test_every_logs_xids(evidence: Path) -> None:
    """What a plain search for Xids finds in a log, the parser finds too."""
    seen: Counter[str] = Counter()
    for path in sorted((evidence / "kmsg").rglob("*")):
        if not path.is_file() or path.suffix == ".md":
            continue
        content = path.read_text(errors="replace")
        if path.suffix == ".tsv":
            content = "\n".join(line.split("\t")[-1] for line in content.splitlines())
        content = "\n".join(line for line in content.splitlines() if ": 154, " not in line)
        plain = Counter(re.findall(r"NVRM: Xid \(PCI:[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\): (\d+)", content))
        found = Counter({event.code: 0 for event in ()})
        for event in kernel_log.events(content):
            if event.kind == "xid":
                found[event.code] += event.count
        assert all(found[code] >= count for code, count in plain.items()), path
        seen += plain
    assert seen["119"] > 3
    assert {"13", "31", "63", "64", "79", "94", "145", "149"} <= set(seen)
    assert all(int(code) in xids() for code in ("13", "31", "43", "48", "63", "64", "74", "79", "94", "119", "149"))


def test_lines_by_value(evidence: Path) -> None:
    lines = [line.split("\t")[-1] for line in (evidence / "kmsg/driver_log_lines.tsv").read_text().splitlines()[1:]]
    kinds = Counter(event.kind for line in lines for event in kernel_log.events(line))
    for kind, least in (
        ("xid", 60),
        ("sxid", 5),
        ("sxid_fatal", 3),
        ("off_bus", 2),
        ("nic_power", 1),
        ("nic_register", 3),
        ("pcie_bandwidth", 1),
        ("peermem", 2),
    ):
        assert kinds[kind] >= least, kind
    limited = next(event for line in lines if "limited by" in line for event in kernel_log.events(line))
    assert (limited.kind, limited.device, limited.code) == ("pcie_bandwidth", "0000:9c:00.0", "252.056")


# --- the recorded virtual machine ---------------------------------------------------------------------------------------------------


def section(log: str, command: str, occurrence: int = 0) -> str:
    """What the n-th run of a command printed in the guest's log."""
    blocks = re.split(r"^\+ ", log, flags=re.MULTILINE)
    said = [
        block.split("\n", 1)[1]
        for place, block in enumerate(blocks)
        if block.split("\n", 1)[0] == command or (block.startswith("head") and blocks[place - 1].strip() == command)
    ]
    return [text for text in said if text.strip()][occurrence]


def test_the_guests_power(evidence: Path) -> None:
    log = (evidence / "vm/guest.log").read_text(errors="replace")
    before = section(log, "ipmitool sdr elist")
    supplies = power.ipmi_supplies(power.sensor_lines(before), power.fru_ratings(section(log, "ipmitool fru print")))
    assert [(one.name, one.healthy, one.input_lost, one.input_watts) for one in supplies] == [
        (f"PSU{n}", True, False, 1840.0) for n in range(1, 7)
    ]
    assert power.ipmi_redundancy(power.sensor_lines(before)) == "full"
    assert {sensor.name: sensor.value for sensor in ipmi_sensors(before)}["Inlet Temp"] == 24.0
    after = log[log.index("Presence detected, Failure detected") - 60 :]
    lost = power.ipmi_supplies(power.sensor_lines(after), {})
    assert [(one.name, one.healthy, one.input_lost) for one in lost] == [("PSU2", False, True)]
    assert power.ipmi_redundancy(power.sensor_lines(after)) == "lost"
    assert len(power.sel_events(after[after.index("   1 |") :])) == 3
    records = power.dmi_supplies(section(log, "dmidecode -t 39"))
    assert [one.rating_watts for one in records] == [3000.0] * len(records)
    assert len(records) >= 5


def test_the_guests_failed_drive(evidence: Path) -> None:
    log = (evidence / "vm/guest.log").read_text(errors="replace")
    good = storage.nvme_smart_log(section(log, "nvme smart-log /dev/nvme0 -o json"))
    assert (good["critical_warning"], good["temperature"], good["media_errors"]) == (0, 50.0, "0")
    bad = storage.nvme_smart_log(section(log, "nvme smart-log /dev/nvme0 -o json", 1))
    assert bad["critical_warning"] == 5


def test_the_guests_kernel_log(evidence: Path) -> None:
    found = {
        (event.kind, event.device): event.count for event in kernel_log.events((evidence / "vm/dmesg2.txt").read_text(errors="replace"))
    }
    assert found["aer_corrected", "0000:00:04.0"] >= 1
    assert found["aer_nonfatal", "0000:80:00.0"] == 1
    quiet = kernel_log.events((evidence / "vm/dmesg1.txt").read_text(errors="replace"))
    assert not [event for event in quiet if event.kind.startswith(("aer", "xid", "nvme", "io"))]


def test_the_guests_sys(evidence: Path, tmp_path: Path) -> None:
    snapshot = collect(TreeHost(from_json(evidence / "vm/sysdump.json.gz", tmp_path)))
    assert isinstance(snapshot.rdma, list)
    states = {port.device: (port.state, port.physical_state) for port in snapshot.rdma}
    assert states == {
        "rxe_0": ("DOWN", "Polling"),
        "rxe_1": ("DOWN", "Disabled"),
        "rxe_2": ("DOWN", "Polling"),
        "rxe_3": ("ACTIVE", "LinkUp"),
    }
    assert {port.role for port in snapshot.rdma} == {"unused"}
    drives = snapshot.storage.drives
    assert isinstance(drives, list)
    assert {drive.name: drive.state for drive in drives}["nvme0"] == "live"
    assert isinstance(snapshot.pci, list)
    errors = {device.address: device.aer_correctable for device in snapshot.pci}
    assert isinstance(errors["0000:00:04.0"], int)
    assert errors["0000:00:04.0"] > 0
