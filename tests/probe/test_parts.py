"""Parsers of the node's parts: a table of what they read and what it means, and what they do with nonsense."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import cooling, cpu, gpu, kernel_log, memory, nvlink, pcie, power, rdma, software, storage, system, ups
from probe.collect import collect
from probe.dump import ReplayHost
from probe.fact import Missing, Unavailable
from probe.host import Completed, Usage
from probe.snapshot import Site
from readiness.fixtures import load
from readiness.fixtures.machine import configuration_space, put
from tests.conftest import judged


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("400 Gb/sec (4X NDR)", (400.0, 4, "NDR")),
        ("800 Gb/sec (4X XDR)", (800.0, 4, "XDR")),
        ("200 Gb/sec (2X NDR)", (200.0, 2, "NDR")),
        ("200 Gb/sec (4X HDR)", (200.0, 4, "HDR")),
        ("100 Gb/sec (4X EDR)", (100.0, 4, "EDR")),
        ("56 Gb/sec (4X FDR)", (56.0, 4, "FDR")),
        ("40 Gb/sec (4X FDR10)", (40.0, 4, "FDR10")),
        ("40 Gb/sec (4X QDR)", (40.0, 4, "QDR")),
        ("20 Gb/sec (4X DDR)", (20.0, 4, "DDR")),
        ("2.5 Gb/sec (1X SDR)", (2.5, 1, "SDR")),
        ("10 Gb/sec (4X)", (10.0, 4, "")),
        ("4X NDR", None),
        ("", None),
    ],
)
def test_port_rates(line: str, answer: tuple[float, int, str] | None) -> None:
    if answer is None:
        with pytest.raises(ValueError, match=""):
            rdma.rate(line)
    else:
        assert rdma.rate(line) == answer


@pytest.mark.parametrize(
    ("setting", "device", "port", "used"),
    [
        ("mlx5_0,mlx5_1", "mlx5_0", 1, True),
        ("mlx5_0", "mlx5_10", 1, False),
        ("mlx5", "mlx5_7", 1, True),
        ("=mlx5_1", "mlx5_10", 1, False),
        ("=mlx5_1", "mlx5_1", 1, True),
        ("^mlx5_bond", "mlx5_bond_0", 1, False),
        ("^mlx5_bond", "mlx5_0", 1, True),
        ("=mlx5_0:2", "mlx5_0", 1, False),
        ("=mlx5_0:2", "mlx5_0", 2, True),
        ("^=mlx5_3,mlx5_8", "mlx5_3", 1, False),
    ],
)
def test_nccl_ib_hca(setting: str, device: str, port: int, used: bool) -> None:
    assert rdma.chosen_by_nccl(setting, device, port) is used


def test_roles() -> None:
    ports, _ = rdma.probe(ReplayHost(load("hgx-h100")), Site())
    assert {port.device: port.role for port in ports} == {**{f"mlx5_{n}": "compute" for n in range(8)}, "mlx5_bond_0": "storage"}
    ports, _ = rdma.probe(ReplayHost(load("hgx-h100")), Site(nccl_ib_hca="=mlx5_0,mlx5_1"))
    assert [port.device for port in ports if port.role == "compute"] == ["mlx5_0", "mlx5_1"]
    dump = load("hgx-h100")
    dump.links["/sys/class/infiniband/mlx5_2/device/physfn"] = "../0000:34:00.0"
    put(dump, "/sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n")
    put(dump, "/sys/class/infiniband/mlx5_3/ports/1/phys_state", "3: Disabled\n")
    ports, _ = rdma.probe(ReplayHost(dump), Site())
    roles = {port.device: (port.role, port.role_reason) for port in ports}
    assert roles["mlx5_2"] == ("unused", "virtual function")
    assert roles["mlx5_3"] == ("unused", "disabled")


def test_an_ethernet_port_is_switched_off_only_by_its_interface() -> None:
    """Drivers call every Ethernet port without a carrier disabled."""
    for flags, role in (("0x1003", "compute"), ("0x1002", "unused")):
        dump = load("hgx-h100-roce+roce-port-down")
        put(dump, "/sys/class/net/enp3/flags", flags + "\n")
        ports, _ = rdma.probe(ReplayHost(dump), Site())
        assert next(port.role for port in ports if port.device == "mlx5_3") == role


def test_a_whole_dark_fabric_that_never_was_up_is_no_fault_of_a_port() -> None:
    dump = load("hgx-h100")
    for index in range(8):
        put(dump, f"/sys/class/infiniband/mlx5_{index}/ports/1/state", "1: DOWN\n")
        put(dump, f"/sys/class/infiniband/mlx5_{index}/ports/1/phys_state", "2: Polling\n")
    assessment = judged(dump)
    assert not [one for one in assessment.findings if one.status == "failed"]
    cluster = next(one for one in assessment.workloads if one.workload == "full-70b-cluster")
    assert cluster.verdict == "NOT_READY"
    assert "network between nodes: 0 Gb/s, needs 400" in cluster.fit.summary


@pytest.mark.parametrize("answer", ["N/A (no PMA)", "", "x", "-"])
def test_a_counter_that_is_none(answer: str) -> None:
    dump = load("hgx-h100")
    for counter in rdma.COUNTERS:
        put(dump, f"/sys/class/infiniband/mlx5_0/ports/1/counters/{counter}", answer)
    assert {one.status for one in judged(dump).findings if one.check == "network.errors"} == {"passed"}


@pytest.mark.parametrize("driver", ["efa", "irdma", "bnxt_en"])
def test_other_makers(driver: str) -> None:
    dump = load("hgx-h100-roce")
    for index in range(8):
        put(dump, f"/sys/class/infiniband/mlx5_{index}/device/uevent", f"DRIVER={driver}\n")
        for name in ("hca_type", "fw_ver", "board_id"):
            dump.files.pop(f"/sys/class/infiniband/mlx5_{index}/{name}")
    assert not [one for one in judged(dump).findings if one.status in ("failed", "warned")]


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ('{"prio_pfc": [false, false, false, true]}', [3]),
        ('[{"prio_pfc": {"0": "off", "3": "on"}}]', [3]),
        ('{"prio_pfc": {"0": false, "4": true}}', [4]),
        ("{}", None),
        ("[]", None),
        ("not json", None),
        ("[" * 100_000, None),
    ],
)
def test_pfc(output: str, answer: list[int] | None) -> None:
    if answer is None:
        with pytest.raises((ValueError, IndexError, KeyError)):
            rdma.pfc_priorities(output)
    else:
        assert rdma.pfc_priorities(output) == answer


# --- storage -------------------------------------------------------------------------------------------------------------------------

SMART = [
    ('{"critical_warning":0,"temperature":323,"avail_spare":100,"spare_thresh":10,"percent_used":3,"media_errors":"0"}', (0, 50.0, 3.0)),  # 2.3
    ('{"critical_warning":4,"temperature":310,"avail_spare":99,"spare_thresh":5,"percent_used":101,"media_errors":7}', (4, 37.0, 101.0)),  # 1.x
    ('{"critical_warning":{"value":1,"available_spare":1},"temperature":41,"avail_spare":2,"spare_thresh":5,"percent_used":9,"media_errors":0}', (1, 41.0, 9.0)),
]  # fmt: skip


@pytest.mark.parametrize(("output", "answer"), SMART)
def test_nvme_cli_of_three_versions(output: str, answer: tuple[int, float, float]) -> None:
    dump = load("hgx-h100")
    for index in range(10):
        dump.commands.pop(("smartctl", "-j", "-a", f"/dev/nvme{index}"))
    from readiness.fixtures.parts import say

    say(dump, ["nvme", "smart-log", "/dev/nvme0", "-o", "json"], output)
    drives = storage.probe(ReplayHost(dump), Site()).drives
    assert isinstance(drives, list)
    assert (drives[0].critical_warning, drives[0].temperature_celsius, drives[0].used_percent) == answer
    assert isinstance(drives[1].critical_warning, Missing)


@pytest.mark.parametrize(
    "output", ["", "{}", "[]", "null", "no json", '{"critical_warning": null}', "[" * 100_000, '{"nvme_smart_health_information_log": 7}']
)
def test_smart_output_that_is_none(output: str) -> None:
    from readiness.fixtures.parts import say

    dump = load("dual-l40s")
    say(dump, ["smartctl", "-j", "-a", "/dev/nvme0"], output)
    say(dump, ["nvme", "smart-log", "/dev/nvme0", "-o", "json"], output)
    findings = [one for one in judged(dump).findings if one.check == "storage.smart" and one.device == "nvme0"]
    assert [one.status for one in findings] == ["unknown"]


MOUNT = "36 25 259:1 / {path} rw,noatime shared:1 - {kind} {device} rw\n"


def with_mounts(*lines: str) -> ReplayHost:
    dump = load("dual-l40s")
    dump.files["/proc/self/mountinfo"] = str(dump.files["/proc/self/mountinfo"]) + "".join(lines)
    return ReplayHost(dump)


def test_mount_paths_with_spaces_and_newlines() -> None:
    host = with_mounts(MOUNT.format(path="/mnt/my\\040data\\012x\\134y", kind="ext4", device="/dev/nvme1n1"))
    systems = storage.probe(host, Site()).file_systems
    assert isinstance(systems, list)
    assert "/mnt/my data\nx\\y" in [one.path for one in systems]


def test_a_dead_nfs_mount() -> None:
    host = with_mounts(MOUNT.format(path="/nfs", kind="nfs4", device="server:/export"))
    ask = host.usage

    def usage(path: str) -> Usage:
        if path == "/nfs":
            raise Unavailable("timeout", "no end within 10 s")
        return ask(path)

    host.usage = usage  # type: ignore[method-assign]
    from checks.catalog import workloads
    from checks.score import assess

    findings = assess(collect(host), workloads().values()).findings
    assert [(one.check, one.device) for one in findings if one.status == "failed"] == [("storage.shared", "/nfs")]


@pytest.mark.parametrize("content", ["", "garbage\n", "1 2 3\n", "36 25 259:1 / /x rw - \n", "\x00\xff - - -\n", " - \n" * 10])
def test_mountinfo_that_is_none(content: str) -> None:
    storage.mounts(content)


def test_four_thousand_block_devices() -> None:
    dump = load("dual-l40s")
    for number in range(4000):
        put(dump, f"/sys/class/block/sd{number}/dev", f"8:{number}\n") if number < 50 else None
    names = dump.listings["/sys/class/block"]
    assert isinstance(names, list)
    dump.listings["/sys/class/block"] = [*names, *(f"loop{number}" for number in range(2000)), *(f"sdx{number}" for number in range(2000))]
    started = time.process_time()
    assert isinstance(storage.probe(ReplayHost(dump), Site()).file_systems, list)
    assert time.process_time() - started < 1


def test_what_is_bound_read_only_is_not_a_read_only_file_system() -> None:
    """A hardened service sees the whole tree so; an error makes the file system itself read-only."""
    bound = storage.mounts("36 25 259:1 / /scratch ro,noatime - xfs /dev/md1 rw,inode64\n")
    broken = storage.mounts("36 25 259:1 / /scratch rw,noatime - xfs /dev/md1 ro,inode64\n")
    assert [one.read_only for one in (*bound, *broken)] == [False, True]


def test_a_containers_single_files_are_no_place_for_data() -> None:
    host = with_mounts("90 80 259:1 /docker/x/resolv.conf /etc/resolv.conf rw - ext4 /dev/nvme9n1p2 rw\n")
    found = storage.probe(host, Site()).file_systems
    assert not isinstance(found, Missing)
    assert "/etc/resolv.conf" not in [one.path for one in found]


def test_the_read_only_system_of_an_image_is_no_broken_scratch() -> None:
    dump = load("hgx-h100")
    dump.files["/proc/self/mountinfo"] = "30 1 259:1 / / rw - ext4 /dev/nvme8n1p9 rw\n31 30 259:2 / /usr ro - ext4 /dev/nvme0n1 ro\n"
    found = {one.check: one.status for one in judged(dump).findings}
    assert found["storage.scratch"] == "warned"  # the root alone


def test_the_machines_own_mounts_go_before_those_of_the_process() -> None:
    dump = load("hgx-h100")
    dump.files["/proc/1/mountinfo"] = "36 25 259:1 / /elsewhere rw - xfs /dev/md1 rw\n"
    found = storage.probe(ReplayHost(dump), Site()).file_systems
    assert not isinstance(found, Missing)
    assert [one.path for one in found] == ["/elsewhere"]


SDR = "PSU1 Status | 11h | ok | 10.1 | Presence detected\n"


@pytest.mark.parametrize(
    ("lines", "supplies", "redundancy"),
    [
        (SDR, [("PSU1", True, False)], None),
        (SDR + "PS3_Status | ECh | ok | 10.3 |\n", [("PSU1", True, False), ("PS3", False, None)], None),  # an empty bay
        ("PS3_Status | ECh | ok | 10.3 |\n", [("PS3", True, None)], None),  # a board that never tells
        (
            "Status | 85h | ok | 10.1 | Presence detected\nStatus | 86h | ok | 10.2 | Presence detected, Power Supply AC lost\n",
            [("PSU 1", True, False), ("PSU 2", True, True)],
            None,
        ),
        ("Fan Redundancy | 75h | ok | 7.1 | Fully Redundant\nPS Redundancy | 77h | ok | 7.1 | Redundancy Lost\n", [], "lost"),
        ("Fan Redundancy | 75h | ok | 7.1 | Redundancy Lost\n", [], None),
        ("Redundancy | 75h | ok | 7.1 | Fully Redundant\n", [], "full"),
    ],
)
def test_supplies_by_ipmi(lines: str, supplies: list[tuple[str, bool, bool | None]], redundancy: str | None) -> None:
    read = power.sensor_lines(lines)
    found = [(one.name, one.present, one.input_lost if isinstance(one.input_lost, bool) else None) for one in power.ipmi_supplies(read, {})]
    assert (found, power.ipmi_redundancy(read)) == (supplies, redundancy)


def test_a_supply_that_cannot_be_used_is_no_empty_bay() -> None:
    for state, present in (("Absent", False), ("UnavailableOffline", True)):
        supply = power.redfish_supply({"Name": "PSU1", "LineInputVoltage": 0, "Status": {"State": state, "Health": "Critical"}})
        assert supply is not None
        assert supply.present is present


def test_what_a_mount_stands_on() -> None:
    systems = storage.probe(ReplayHost(load("hgx-h100")), Site()).file_systems
    assert isinstance(systems, list)
    assert {one.path: one.drives for one in systems} == {"/": ["nvme8", "nvme9"], "/scratch": [f"nvme{n}" for n in range(8)]}


# --- kernel log ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("3,1,7200000000,-;NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x, Timeout", ("xid", "119", "0000:9b:00.0", 7200.0)),
        ("[  12.500000] NVRM: Xid (PCI:00000000:9b:00.0): 79, GPU has fallen off the bus.", ("xid", "79", "0000:9b:00.0", 12.5)),
        ("2026-12-01T03:04:05+0000 host kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1", ("xid", "48", "0000:3b:00.0", None)),
        (
            "Dec  1 03:04:05 host kernel: [   99.000001] NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
            ("off_bus", "", "0000:18:00.0", 99.000001),
        ),
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", ("sxid_fatal", "20034", "0000:06:00.0", None)),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", ("edac_uncorrected", "", "MC0", None)),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 6", ("mce", "", "3", None)),
        ("nvme nvme3: I/O 12 QID 3 timeout, aborting", ("nvme_timeout", "", "nvme3", None)),
        ("nvme nvme3: I/O tag 12 (100c) opcode 0x2 (I/O Cmd) QID 3 timeout, aborting", ("nvme_timeout", "", "nvme3", None)),
        ("blk_update_request: I/O error, dev nvme0n1, sector 0", ("io_error", "", "nvme0n1", None)),
        ("EXT4-fs error (device sda1): ext4_lookup:1855: inode #2", ("fs_error", "", "sda1", None)),
        ("EXT4-fs (sda1): Remounting filesystem read-only", ("fs_read_only", "", "sda1", None)),
        ("XFS (md1): Filesystem has been shut down due to log error (0x2).", ("fs_error", "", "md1", None)),
        ("BTRFS: error (device nvme0n1p2: state A) in btrfs_commit:2011: errno=-5 IO failure", ("fs_error", "", "nvme0n1p2", None)),
        ("BTRFS info (device nvme0n1p2: state EA): forced readonly", ("fs_read_only", "", "nvme0n1p2", None)),
        ("pcieport 0000:15:01.0: DPC: containment event, status:0x1f01 source:0x0000", ("aer_fatal", "", "0000:15:01.0", None)),
        (
            "mlx5_core 0000:14:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
            ("nic_health", "", "0000:14:00.0", None),
        ),
        ("mlx5_core 0000:14:00.0: mlx5_error_sw_reset:277:(pid 1): start", ("nic_health", "", "0000:14:00.0", None)),
        (
            "mlx5_core 0000:14:00.0: wait_func:1151:(pid 1): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource",
            ("nic_health", "", "0000:14:00.0", None),
        ),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [python3:4711]", ("hung_task", "", "python3", None)),
        ("{1}[Hardware Error]: event severity: fatal", ("firmware_fatal", "fatal", "firmware", None)),
        ("Out of memory: Killed process 12 (python3) total-vm:1kB", ("oom", "", "python3", None)),
        ("INFO: task nvidia-smi:4711 blocked for more than 120 seconds.", ("hung_task", "", "nvidia-smi", None)),
        (
            "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 1): Detected insufficient power on the PCIe slot (27W).",
            ("nic_power", "", "0000:5c:00.0", None),
        ),
        (
            "mlx5_core 0000:9c:00.0: 252.056 Gb/s available PCIe bandwidth, limited by 32.0 GT/s",
            ("pcie_bandwidth", "252.056", "0000:9c:00.0", None),
        ),
        ("mlx5_core 0000:41:00.1: 63.008 Gb/s available PCIe bandwidth (8.0 GT/s PCIe x8 link)", None),
        (
            "pcieport 0000:80:00.0: AER: Uncorrected (Non-Fatal) error message received from 0000:81:00.0",
            ("aer_nonfatal", "", "0000:81:00.0", None),
        ),
        ("NVRM: Xid (PCI:0000:43:00 GPU-I:05): 95, pid=1, Uncontained", ("xid", "95", "0000:43:00.0", None)),
        ("NVRM: Xid (PCI:0000:43:00 GPU-I:05 GPU-CI:01): 94, pid=1", ("xid", "94", "0000:43:00.0", None)),
        ("Memory failure: 0x12f4a3: recovery action for dirty page: Recovered", ("edac_uncorrected", "", "0x12f4a3", None)),
        ("mce: Uncorrected hardware memory error in user-access at 7f3c00", ("edac_uncorrected", "", "7f3c00", None)),
        ("{1}[Hardware Error]: event severity: recoverable", ("firmware_error", "recoverable", "firmware", None)),
        ("{1}[Hardware Error]: event severity: corrected", None),
        ("I/O error, dev sr0, sector 0 op 0x0:(READ)", None),
        ("Buffer I/O error on dev loop0, logical block 0", None),
        ("NVRM: Xid (invalid): some error", None),
        ("usb 1-1: new high-speed USB device", None),
        (" SUBSYSTEM=pci", None),
        ("", None),
    ],
)
def test_lines_of_the_kernel_log(line: str, answer: tuple[str, str, str, float | None] | None) -> None:
    found = [
        (one.kind, one.code, one.device, one.last_seconds if isinstance(one.last_seconds, float) else None)
        for one in kernel_log.events(line)
    ]
    assert found == ([answer] if answer else [])


def test_counts_and_times() -> None:
    text = "".join(f"3,{n},{n}000000,-;NVRM: Xid (PCI:0000:9b:00): 31, pid=1\n" for n in range(5, 9))
    (event,) = kernel_log.events(text)
    assert (event.count, event.first_seconds, event.last_seconds) == (4, 5.0, 8.0)


def test_one_pcie_error_has_two_lines() -> None:
    received = "pcieport 0000:15:01.0: AER: Uncorrectable (Fatal) error message received from 0000:19:00.0\n"
    (event,) = kernel_log.events(2 * (received + "nvme 0000:19:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction\n"))
    assert (event.kind, event.device, event.count) == ("aer_fatal", "0000:19:00.0", 2)


def test_a_reset_ends_the_xids_before_it() -> None:
    text = (
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=1\nNVRM: Xid (PCI:0000:1b:00): 48, pid=1\n"
        "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
        "NVRM: Xid (PCI:0000:9b:00): 31, pid=1\n"
    )
    assert [(one.code, one.device) for one in kernel_log.events(text)] == [("48", "0000:1b:00.0"), ("31", "0000:9b:00.0")]


def test_live_state_goes_before_the_log() -> None:
    dump = load("hgx-h100")
    from readiness.fixtures.parts import log

    log(dump, "NVRM: Xid (PCI:0000:43:00): 119, pid=1")  # the driver says that no recovery is needed
    assert [(one.check, one.status) for one in judged(dump).findings if one.status in ("failed", "warned")] == [("kernel.xids", "warned")]


def test_a_kernel_log_that_may_not_be_read() -> None:
    dump = load("hgx-h100")
    from probe.dump import Failure

    dump.files["/dev/kmsg"] = Failure("no_permission", "Operation not permitted")
    findings = {one.check: one.status for one in judged(dump).findings if one.component == "kernel"}
    assert set(findings.values()) == {"unknown"}


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_any_text_in_any_parser(text: str) -> None:
    """Parsers refuse with ValueError, KeyError or IndexError, or answer; nothing else."""
    for parse in (
        rdma.rate, rdma.state, rdma.pfc_priorities, rdma.ethtool_link, rdma.mlxlink_recommendation, rdma.reporters_in_error, storage.smartctl, storage.nvme_smart_log, storage.mounts, power.sensor_lines, power.dcmi_watts,
        power.fru_ratings, power.sel_events, power.dmi_supplies, cooling.ipmi_sensors, kernel_log.events, software.services, software.version_in,
        software.chosen, storage.zpool_members, cpu.Processors, cpu.node_memory, memory.meminfo, memory.locked_memory, pcie.speed, pcie.width, pcie.aer_total, pcie.uevent,
        gpu.module_license, gpu.module_version, system.pretty_name,
    ):  # fmt: skip
        try:
            parse(text)  # type: ignore[operator]
        except (ValueError, KeyError, IndexError):
            continue


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["ups.status", "ups.load", "battery.runtime", "ups.realpower.nominal", "STATUS", "TIMELEFT", "upsOutputSource"]),
        st.one_of(st.text(), st.integers(), st.none()),
    )
)
def test_any_answer_of_a_ups(variables: dict[str, object]) -> None:
    for make in (ups.from_nut, ups.from_apcupsd, ups.from_snmp):
        assert make("x", variables).name == "x"


# --- small parsers by value ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parse", "text", "answer"),
    [
        (pcie.speed, "32.0 GT/s PCIe", 32.0),
        (pcie.speed, "2.5 GT/s", 2.5),
        (pcie.width, "16", 16),
        (pcie.aer_total, "Undefined 0\nTLP 3\nTOTAL_ERR_FATAL 3", 3),
        (gpu.kernel_address, "00000000:9B:00.0", "0000:9b:00.0"),
        (gpu.kernel_address, "00010000:01:00.0", "10000:01:00.0"),
        (gpu.cuda_version, 12040, "12.4"),
        (gpu.module_version, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", "570.86.15"),
        (gpu.module_version, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19", "535.129.03"),
        (gpu.module_license, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03", "proprietary"),
        (gpu.cpu_list, [0xF, 0x3], "0-3,64-65"),
        (gpu.cpu_list, [0, 0], ""),
        (gpu.fabric_degraded, 1 | 1 << 4, ["degraded bandwidth", "route unhealthy"]),
        (gpu.fabric_degraded, 2 | 1 << 8, []),
        (nvlink.bit_error_rate, 0x10F, 1e-15),
        (memory.locked_memory, "Max locked memory         unlimited            unlimited            bytes", -1),
        (memory.login_memlock, ["* soft memlock 1024\n", "# * soft memlock 1\n* - memlock unlimited\n"], -1),
        (memory.login_memlock, ["root soft memlock unlimited\n"], None),
        (
            rdma.ethtool_link,
            "Settings for eth0:\n\tSpeed: Unknown!\n\tLink detected: no (Autoneg, No partner detected)\n",
            "Autoneg, No partner detected",
        ),
        (
            rdma.mlxlink_recommendation,
            '{"result": {"output": {"Troubleshooting Info": {"Status Opcode": "1024", "Recommendation": "Cable is unplugged."}}}, "status": {"code": 0}}',
            "Cable is unplugged",
        ),
        (
            rdma.reporters_in_error,
            '{"health": {"pci/0000:14:00.0": [{"reporter": "fw", "state": "error", "error": 2}, {"reporter": "fw_fatal", "state": "healthy"}],'
            ' "pci/0000:14:00.0/1": [{"reporter": "tx", "state": "healthy"}], "auxiliary/mlx5_core.eth.0": []}}',
            {"0000:14:00.0": ["fw"]},
        ),
        (software.version_in, "Fabric Manager version is : 570.86.15", "570.86.15"),
        (software.version_in, "MLNX_OFED_LINUX-24.10-0.7.0.0:", "24.10-0.7.0.0"),
        (software.chosen, "always [madvise] never", "madvise"),
        (power.dcmi_watts, "    Instantaneous power reading:                   1234 Watts", 1234.0),
    ],
)
def test_small_parsers(parse, text, answer) -> None:  # type: ignore[no-untyped-def]
    assert parse(text) == answer


@pytest.mark.parametrize(("parse", "text"), [(pcie.speed, "Unknown"), (pcie.width, "0"), (pcie.width, "255"), (pcie.width, "63")])
def test_what_a_link_does_not_know(parse, text) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=""):
        parse(text)


def test_acs() -> None:
    assert pcie.acs_redirect(configuration_space(0x1D))
    assert not pcie.acs_redirect(configuration_space(0x01))
    assert not pcie.acs_redirect(bytes(4096))
    assert not pcie.acs_redirect(b"\xff" * 4096)
    assert not pcie.acs_redirect(b"")
    loop = bytearray(4096)
    loop[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert not pcie.acs_redirect(bytes(loop))


def test_arm_has_its_processor_named_by_py_cpuinfo() -> None:
    from readiness.fixtures.parts import say

    dump = load("cpu-only")
    put(dump, "/proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n\nprocessor\t: 1\nBogoMIPS\t: 2000.00\n")
    say(dump, ["cpuinfo", "--json"], '{"brand_raw": "Neoverse-V2", "arch": "ARM_8"}')
    found = cpu.probe(ReplayHost(dump))
    assert (found.model, found.threads) == ("Neoverse-V2", 2)
    assert isinstance(found.sockets, Missing)


def test_the_probes_of_a_node_are_quick() -> None:
    host = ReplayHost(load("hgx-h100"))
    collect(host)
    started = time.process_time()
    collect(host)
    assert time.process_time() - started < 0.150 * 4  # the budget is 150 ms; four times that is a fault on any machine


def test_fans_by_revolutions_percent_and_word() -> None:
    said = """\
Fan 1            | 41h | ok  |  7.1 | 5200 RPM
Fan 2            | 42h | cr  |  7.2 | 80 percent
Fan 3            | 43h | ok  | 29.3 | Device Present, Failure Detected
CPU Utilization  | 44h | ok  |  3.1 | 7 percent
Fan 4            | 45h | ns  |  7.4 | No Reading
"""
    assert [(one.kind, one.name, one.value, one.state) for one in cooling.ipmi_sensors(said)] == [
        ("fan", "Fan 1", 5200.0, "ok"),
        ("fan", "Fan 2", 80.0, "critical"),
        ("fan", "Fan 3", 0.0, "ok"),
    ]


@pytest.mark.parametrize(
    ("name", "room"),
    [("Inlet Temp", True), ("01-Inlet Ambient", True), ("Ambient Temp", True), ("Front Air Temp", True), ("System Air Inlet", True)]
    + [
        (name, False)
        for name in ("PSU1 Inlet Temp", "PS2 Inlet", "Coolant Inlet", "CDU Water Inlet", "Front Panel Board", "NIC Ambient", "Exhaust Temp")
    ],
)
def test_which_air_is_the_rooms(name: str, room: bool) -> None:
    assert bool(cooling.INLET.search(name)) is room


SEL = """\
   1 | 11/20/2026 | 10:00:00 | Power Supply #0x51 | Presence detected | Asserted
   2 | 11/20/2026 | 10:01:00 | Power Unit #0x01 | Power off/down | Asserted
   3 | 11/20/2026 | 10:02:00 | Power Supply #0x52 | Fully Redundant | Asserted
   4 | 11/20/2026 | 10:03:00 | Power Supply #0x53 | Power Supply AC lost | Asserted
   5 | 11/20/2026 | 10:04:00 | Power Supply #0x53 | Power Supply AC lost | Deasserted
   6 | 11/20/2026 | 10:05:00 | Memory #0x51 | Correctable ECC logging limit reached | Asserted
   7 | 11/20/2026 | 10:06:00 | Processor #0x61 | Thermal Trip | Asserted
   8 | 11/20/2026 | 10:07:00 | Processor #0x61 | IERR | Asserted
   9 | 11/20/2026 | 10:08:00 | Power Supply #0x54 | Power Supply AC lost | Asserted
"""


def test_which_events_of_the_bmc_matter() -> None:
    assert [line.split(" ", 1)[0] for line in power.sel_events(SEL)] == ["6", "7", "8", "9"]


@pytest.mark.parametrize(
    ("reading", "present", "healthy", "lost"),
    [
        ("Power Supply AC lost", True, True, True),
        ("Failure detected", True, False, False),
        ("Presence detected", True, True, False),
        ("", False, None, None),
    ],
)
def test_a_supply_that_complains_is_there(reading: str, present: bool, healthy: bool | None, lost: bool | None) -> None:
    lines = power.sensor_lines(f"PSU1 Status | 11h | ok | 10.1 | Presence detected\nPSU2 Status | 12h | ok | 10.2 | {reading}\n")
    one = power.ipmi_supplies(lines, {})[1]
    told = [value if isinstance(value, bool) else None for value in (one.healthy, one.input_lost)]
    assert [one.present, *told] == [present, healthy, lost]


def test_hpe_tells_of_redundancy_under_another_name() -> None:
    said = "Power Supply 1 | 01h | ok | 10.1 | 105 Watts, Presence detected\nPower Supplies | 09h | ok | 10.9 | Redundancy Lost\n"
    assert power.ipmi_redundancy(power.sensor_lines(said)) == "lost"


@pytest.mark.parametrize(
    ("mount", "drives"),
    [
        ("zfs tank/data rw", ["nvme0", "nvme1"]),
        ("btrfs /dev/nvme2n1p1 rw", ["nvme2", "nvme3"]),
        ("btrfs /dev/mapper/vg-lv rw", ["nvme4"]),
        ("btrfs /dev/nvme5n1 rw", ["nvme5"]),
    ],
)
def test_what_zfs_and_btrfs_stand_on(mount: str, drives: list[str]) -> None:
    dump = load("hgx-h100")
    dump.files["/proc/self/mountinfo"] = f"30 1 259:8 / / rw - ext4 /dev/nvme8n1 rw\n40 30 0:44 / /data rw - {mount}\n"
    dump.usages["/data"] = dump.usages["/scratch"]
    dump.commands["zpool", "list", "-vHPL"] = Completed(
        0, "tank\t7T\t1T\n\tmirror-0\t7T\t1T\n\t/dev/nvme0n1p1\t7T\t-\n\t/dev/nvme1n1p1\t7T\t-\nother\t1T\n\t/dev/nvme7n1\t1T\n", ""
    )
    for volume, members in (("1111", ["nvme2n1p1", "nvme3n1p1"]), ("2222", ["dm-3"]), ("features", [])):
        put(dump, f"/sys/fs/btrfs/{volume}/x", "")
        dump.listings[f"/sys/fs/btrfs/{volume}/devices"] = members
    put(dump, "/sys/class/block/dm-3/dm/name", "vg-lv\n")
    dump.listings["/sys/class/block/dm-3/slaves"] = ["nvme4n1"]
    found = storage.probe(ReplayHost(dump), Site()).file_systems
    assert not isinstance(found, Missing)
    assert next(one.drives for one in found if one.path == "/data") == drives


@pytest.mark.parametrize(("state", "status"), [("ONLINE", "passed"), ("DEGRADED", "warned"), ("SUSPENDED", "failed")])
def test_the_state_of_a_pool(state: str, status: str) -> None:
    dump = load("hgx-h100")
    put(dump, "/proc/spl/kstat/zfs/tank/state", state + "\n")
    put(dump, "/proc/spl/kstat/zfs/arcstats", "1\n")
    assert [one.status for one in judged(dump).findings if one.check == "storage.raid" and one.device == "tank"] == [status]
