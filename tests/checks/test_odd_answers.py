"""A healthy machine with one odd answer: what is only not known is never a fault and never fine, and one odd value costs one fact."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checks.score import Assessment, WorkloadVerdict
from probe.collect import collect
from probe.dump import Dump, Failure, ReplayHost
from probe.fact import Missing
from probe.host import Completed
from probe.nvml import Call
from probe.nvml_sweep import REASONS
from readiness.fixtures import load
from readiness.fixtures.faults import address_of, answer, log_of, pci, site, ups
from readiness.fixtures.machine import put
from tests.conftest import judged

DEVICES = "/sys/bus/pci/devices"


def status(assessment: Assessment, check: str) -> set[str]:
    return {finding.status for finding in assessment.findings if finding.check == check}


def workload(assessment: Assessment, name: str) -> WorkloadVerdict:
    return next(one for one in assessment.workloads if one.workload == name)


def error(dump: Dump, name: str, code: str) -> None:
    dump.nvml = [Call(call.call, call.device, call.args, error=code) if call.call == name else call for call in log_of(dump)]


def without(dump: Dump, name: str) -> None:
    dump.nvml = [call for call in log_of(dump) if call.call != name]


def no_nvml(dump: Dump) -> None:
    dump.nvml = Failure("error", "not in this recording")


def empty_nvml(dump: Dump) -> None:
    dump.nvml = []


def no_pci(dump: Dump) -> None:
    dump.listings[DEVICES] = Failure("no_permission", "Permission denied")


def one_unreadable_gpu(dump: Dump) -> None:
    folder = f"{DEVICES}/{address_of(dump, 3)}"
    for path in [path for path in dump.files if path.startswith(folder + "/")]:
        dump.files[path] = Failure("error", "Input/output error")


NOT_KNOWN: dict[str, tuple[Callable[[Dump], None], list[str]]] = {
    "the sweep is not in the recording": (no_nvml, ["driver.loaded", "driver.responsive", "gpu.inventory", "gpu.row_remap"]),
    "the log of the sweep is empty": (empty_nvml, ["driver.loaded", "driver.responsive", "gpu.inventory", "gpu.row_remap"]),
    "the library lacks row remapping": (lambda d: error(d, "nvmlDeviceGetRemappedRows", "FUNCTION_NOT_FOUND"), ["gpu.row_remap"]),
    "row remapping was not asked": (lambda d: without(d, "nvmlDeviceGetRemappedRows"), ["gpu.row_remap"]),
    "the library has another ECC structure": (
        lambda d: error(d, "nvmlDeviceGetTotalEccErrors", "ARGUMENT_VERSION_MISMATCH"),
        ["gpu.ecc_errors"],
    ),
    "the PCI bus may not be read": (no_pci, ["gpu.inventory", "pcie.width", "pcie.speed"]),
    "one GPU's PCI files cannot be read": (one_unreadable_gpu, ["gpu.inventory"]),
}


@pytest.mark.parametrize(("change", "checks"), NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_what_could_not_be_read_is_unknown(change: Callable[[Dump], None], checks: list[str]) -> None:
    dump = load("hgx-h100")
    change(dump)
    assessment = judged(dump)
    assert {check: status(assessment, check) for check in checks} == {check: {"unknown"} for check in checks}
    assert not [finding for finding in assessment.findings if finding.status == "failed"]
    assert workload(assessment, "qlora-70b").verdict == "UNKNOWN"
    assert workload(assessment, "qlora-70b").confidence < 1


ODD: dict[str, tuple[Callable[[Dump], None], str]] = {
    "clocks event reasons in words": (lambda d: answer(d, REASONS[0], [3], "N/A"), "gpu.throttle"),
    "clocks event reasons of nothing": (lambda d: answer(d, REASONS[0], [3], None), "gpu.throttle"),
    "a field that is a list": (
        lambda d: next(c for c in log_of(d) if c.call == "nvmlDeviceGetFieldValues" and c.device == 3).value.insert(0, [230, 0, []]),
        "gpu.recovery_action",
    ),
    "a link speed that is no number": (lambda d: pci(d, address_of(d, 3), "current_link_speed", "nan GT/s"), ""),
    "a default power limit of nothing": (
        lambda d: answer(d, "nvmlDeviceGetPowerManagementDefaultLimit", range(8), 0),
        "gpu.power_limit",
    ),
    "a link speed in words": (lambda d: pci(d, address_of(d, 3), "current_link_speed", "fast"), ""),
    "an empty AER file": (lambda d: pci(d, address_of(d, 3), "aer_dev_fatal", ""), "pcie.errors"),
}


@pytest.mark.parametrize(("change", "check"), ODD.values(), ids=ODD)
def test_an_odd_value_costs_its_own_fact_only(change: Callable[[Dump], None], check: str) -> None:
    dump = load("hgx-h100")
    change(dump)
    bad = {finding.check for finding in judged(dump).findings if finding.status not in ("passed", "not_applicable")}
    assert bad == ({check} if check else set())


def test_a_huge_cluster_uuid_is_not_built() -> None:
    dump = load("hgx-h100")
    for call in log_of(dump):
        if call.call == "nvmlDeviceGetGpuFabricInfoV":
            call.value.update(clusterUuid=20_000_000_000)
    assert status(judged(dump), "nvlink.fabric") == {"passed"}


def test_memory_that_is_taken_is_told_also_where_nobody_is_listed() -> None:
    dump = load("hgx-h100")
    for call in log_of(dump):
        if call.call.startswith("nvmlDeviceGetMemoryInfo"):
            call.value.update(used=80_000_000_000)
    assessment = judged(dump)
    assert status(assessment, "gpu.processes") == {"warned"}
    assert workload(assessment, "qlora-70b").verdict == "READY_WITH_WARNINGS"


def test_without_its_fabric_no_workload_starts() -> None:
    assert {one.verdict for one in judged("hgx-h100+fabric-manager-dead").workloads} == {"NOT_READY"}


@pytest.mark.parametrize(("role", "lanes", "verdict"), [("0x010802", "2", "READY_WITH_WARNINGS"), ("0x020700", "8", "READY_WITH_WARNINGS")])
def test_a_narrow_drive_or_nic_slows_and_does_not_stop(role: str, lanes: str, verdict: str) -> None:
    dump = load("hgx-h100")
    names = dump.listings[DEVICES]
    assert isinstance(names, list)
    kind = role.removeprefix("0x").lstrip("0").upper()
    address = next(name for name in names if f"PCI_CLASS={kind}" in str(dump.files.get(f"{DEVICES}/{name}/uevent")))
    pci(dump, address, "current_link_width", lanes)
    assessment = judged(dump)
    assert "warned" in status(assessment, "pcie.width")
    assert workload(assessment, "qlora-70b").verdict == verdict


UPS_WORDS = {
    "OL": "passed",
    "OL CHRG": "passed",
    "OB DISCHRG": "failed",
    "OL BYPASS": "warned",
    "BYPASS": "warned",
    "WAIT": "unknown",
    "HE": "unknown",
}


@pytest.mark.parametrize("words", UPS_WORDS)
def test_a_ups_is_on_line_by_its_own_word_alone(words: str) -> None:
    dump = load("hgx-h100")
    ups(dump, ups_status=words)
    assert status(judged(dump), "ups.status") == {UPS_WORDS[words]}


@pytest.mark.parametrize(
    ("group", "found"), [("/user.slice/user-0.slice/session-1.scope", "warned"), ("/system.slice/readiness.service", "unknown")]
)
def test_the_limit_of_our_own_service_is_not_a_jobs(group: str, found: str) -> None:
    dump = load("hgx-h100")
    for path in [path for path in dump.files if path.startswith("/etc/security/")]:
        del dump.files[path]
    dump.files["/proc/self/cgroup"] = f"0::{group}\n"
    dump.files["/proc/self/limits"] = "Max locked memory         8388608              8388608              bytes\n"
    assert status(judged(dump), "memory.locked") == {found}


def test_no_nvlink_at_all_is_no_design() -> None:
    dump = load("hgx-h100")
    answer(dump, "nvmlDeviceGetNvLinkState", range(8), 0)
    assert status(judged(dump), "nvlink.links") == {"failed"}


@pytest.mark.parametrize("pending", [0, 1])
def test_hbm_without_ecc_is_a_fault_whatever_the_next_boot_brings(pending: int) -> None:
    dump = load("hgx-h100")
    answer(dump, "nvmlDeviceGetEccMode", range(8), [0, pending])
    assert status(judged(dump), "gpu.ecc_mode") == {"failed"}


def test_more_huge_pages_than_memory() -> None:
    dump = load("hgx-h100")
    dump.files["/proc/meminfo"] = str(dump.files["/proc/meminfo"]).replace("HugePages_Total:       0", "HugePages_Total: 9999999")
    assert "failed" in status(judged(dump), "memory.size") | {one.fit.status for one in judged(dump).workloads}


def second_ports(dump: Dump) -> None:
    """Each adapter has a second function whose port has never had a cable."""
    for index in range(8):
        old, new = f"/sys/class/infiniband/mlx5_{index}/", f"/sys/class/infiniband/mlx5_{index + 20}/"
        for path in [path for path in dump.files if path.startswith(old)]:
            put(dump, path.replace(old, new), str(dump.files[path]))
        address = dump.links[f"{old}device"]
        assert isinstance(address, str)
        dump.links[f"{new}device"] = address.removesuffix(".0") + ".1"
        for name, text in (("state", "1: DOWN"), ("phys_state", "2: Polling")):
            put(dump, f"{new}ports/1/{name}", text + "\n")


def ipoib_bond(dump: Dump) -> None:
    put(dump, "/sys/class/net/bond1/bonding/slaves", "ib0 ib1 ib2 ib3 ib4 ib5 ib6 ib7\n")
    put(dump, "/sys/class/net/bond1/operstate", "up\n")


def unused_nic(dump: Dump) -> None:
    for name, text in (("state", "1: DOWN"), ("phys_state", "3: Disabled"), ("link_layer", "Ethernet"), ("rate", "100 Gb/sec (4X EDR)")):
        put(dump, f"/sys/class/infiniband/mlx5_30/ports/1/{name}", text + "\n")
    put(dump, "/sys/class/infiniband/mlx5_30/hca_type", "MT4125\n")


@pytest.mark.parametrize("hca", [None, "^mlx5_bond_0", "=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7"])
@pytest.mark.parametrize("change", [second_ports, ipoib_bond, unused_nic])
def test_a_healthy_fabric_with_ports_that_nobody_uses(change: Callable[[Dump], None], hca: str | None) -> None:
    dump = load("hgx-h100")
    change(dump)
    if hca:
        site(dump, nccl_ib_hca=hca)
    found = judged(dump)
    assert {one.check for one in found.findings if one.component == "network" and one.status not in ("passed", "not_applicable")} == set()
    rdma = collect(ReplayHost(dump)).rdma
    assert not isinstance(rdma, Missing)
    assert [port.device for port in rdma if port.role == "compute" and not port.device.startswith("mlx5_bond")] == [
        f"mlx5_{i}" for i in range(8)
    ]


def test_a_bond_and_a_way_out_by_other_names() -> None:
    dump = load("hgx-h100-roce")
    for path in [path for path in dump.files if path.startswith("/sys/class/net/bond0/")]:
        put(dump, path.replace("bond0", "lan0"), str(dump.files.pop(path)))
    for path in [path for path in dump.files if "/mlx5_bond_0/ports/1/gid_attrs/ndevs/" in path]:
        dump.files[path] = "lan0\n"
    dump.listings.pop("/sys/class/net/bond0", None)
    names = dump.listings["/sys/class/net"]
    assert isinstance(names, list)
    names.remove("bond0")
    put(dump, "/sys/class/net/br0/lower_lan0/x", "")
    dump.files["/proc/net/route"] = "Iface\tDestination\tGateway\nbr0\t00000000\t0101A8C0\n"
    rdma = collect(ReplayHost(dump)).rdma
    assert not isinstance(rdma, Missing)
    assert {port.device: port.role for port in rdma}["mlx5_bond_0"] == "management"


@pytest.mark.parametrize(
    ("said", "check", "found"),
    [
        ({"ups.realpower": "0", "ups.realpower.nominal": "0", "ups.load": "20"}, "ups.runtime", "unknown"),
        ({"battery.runtime": "-1"}, "ups.runtime", "unknown"),
        ({"ups.realpower.nominal": "0"}, "ups.capacity", "unknown"),
        ({"ups.realpower": "0", "ups.load": "0"}, "ups.runtime", "unknown"),
        ({"ups.status": "OL NOBATT"}, "ups.status", "warned"),
    ],
)
def test_what_a_ups_does_not_measure(said: dict[str, str], check: str, found: str) -> None:
    dump = load("hgx-h100")
    next(iter(next(answer for (kind, _), answer in dump.answers.items() if kind == "nut").values())).update(said)
    assert status(judged(dump), check) <= {found, "not_applicable"}


def test_one_bad_number_of_a_drive_hides_no_other() -> None:
    dump = load("hgx-h100")
    argv = next(argv for argv in dump.commands if argv[0] == "smartctl")
    said = dump.commands[argv]
    assert isinstance(said, Completed)
    dump.commands[argv] = Completed(0, said.stdout.replace('"critical_warning": 0', '"critical_warning": NaN'), "")
    assessment = judged(dump)
    assert sorted(one.status for one in assessment.findings if one.check == "storage.smart").count("unknown") <= 1
    assert status(assessment, "storage.scratch") == {"passed"}


def test_a_home_beside_the_root_is_no_scratch() -> None:
    dump = load("hgx-h100")
    mounts = str(dump.files["/proc/self/mountinfo"]).splitlines(keepends=True)
    root = next(line for line in mounts if " / / " in line)
    home = root.replace("25 1 ", "50 25 ").replace(" / / ", " / /home ")
    lustre = "60 25 0:60 / /lustre rw - lustre mgs@tcp:/fs rw\n"
    dump.files["/proc/self/mountinfo"] = "".join([*(line for line in mounts if "/scratch" not in line), home, lustre])
    dump.usages["/home"] = dump.usages["/"]
    dump.usages["/lustre"] = dump.usages["/scratch"]
    finding = next(one for one in judged(dump).findings if one.check == "storage.scratch")
    assert (finding.status, finding.summary.split()[0]) == ("passed", "/lustre")
