"""Redaction: no identity of the machine is left in a finished dump, and what belonged together still does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import dump as dumps
from probe.dump import Dump
from probe.host import Completed
from probe.redact import _Pseudonyms, redact
from readiness.fixtures import load
from readiness.fixtures.machine import put
from tests.conftest import judged

SECRETS = {
    "host": "gpu-node-17",
    "domain host": "gpu-node-17.lab.example.org",
    "serial": "S6CKNT0W700123",
    "board serial": "1652823012345",
    "mac": "0c:42:a1:9e:33:7f",
    "port guid": "ec0d:9a03:0078:c2e2",
    "gid": "fe80:0000:0000:0000:ec0d:9a03:0078:c2e2",
    "wwid": "eui.00253885b1508f3c",
    "machine id": "4f1d3c2b1a0918273645abcdefabcdef",
    "boot id": "3b8f5e7a-90b1-4c2d-8e3f-1a2b3c4d5e6f",
    "ip": "192.0.2.77",
    "ip6": "2001:db8:12:34:56:78:9a:bc",
    "user": "m.mustermann",
    "nvidia uuid": "GPU-8ad2a5e1-77aa-4f1b-93f2-1b3c5d7e9f10",
    "infiniband address": "80:00:00:66:fe:80:00:00:00:00:00:00:ec:0d:9a:03:00:78:c2:e2",
    "token": "s3cr3t-token",
}


def identified() -> Dump:
    """A machine with every kind of identity in places where they are found."""
    dump = load("hgx-h100")
    put(dump, "/proc/sys/kernel/hostname", SECRETS["host"] + "\n")
    put(dump, "/etc/hostname", SECRETS["domain host"] + "\n")
    put(dump, "/sys/class/nvme/nvme0/serial", SECRETS["serial"] + "   \n")
    put(dump, "/sys/class/dmi/id/board_serial", SECRETS["board serial"] + "\n")
    put(dump, "/sys/class/net/eth0/address", SECRETS["mac"] + "\n")
    put(dump, "/sys/class/net/ib0/address", SECRETS["infiniband address"] + "\n")
    put(dump, "/sys/class/infiniband/mlx5_0/node_guid", SECRETS["port guid"] + "\n")
    put(dump, "/sys/class/infiniband/mlx5_0/ports/1/gids/0", SECRETS["gid"] + "\n")
    put(dump, "/sys/block/nvme0n1/wwid", SECRETS["wwid"] + "\n")
    put(dump, "/etc/machine-id", SECRETS["machine id"] + "\n")
    put(dump, "/proc/sys/kernel/random/boot_id", SECRETS["boot id"] + "\n")
    put(dump, "/proc/cmdline", f"root=UUID={SECRETS['boot id']} iommu=pt token={SECRETS['token']}\n")
    put(dump, f"/sys/class/hwmon/{SECRETS['serial']}/name", "x\n")
    put(dump, "/proc/mounts", f"{SECRETS['ip']}:/export /home/{SECRETS['user']} nfs addr={SECRETS['ip6']} 0 0\n")
    dump.links["/dev/disk/by-id/x"] = f"nvme-SAMSUNG_{SECRETS['serial']}"
    dump.commands["dmesg",] = Completed(
        0, f"{SECRETS['host']} kernel: {SECRETS['mac']} [{SECRETS['serial']}] {SECRETS['nvidia uuid']}\n", ""
    )
    dump.answers["nut", SECRETS["ip"]] = {"ups.serial": SECRETS["serial"], "by": [SECRETS["domain host"]]}
    assert isinstance(dump.nvml, list)
    for call in dump.nvml:
        if call.call == "nvmlDeviceGetUUID" and call.device == 0:
            dump.nvml[dump.nvml.index(call)] = type(call)(call.call, 0, [], SECRETS["nvidia uuid"])
    return dump


def test_no_identity_is_left(tmp_path: Path) -> None:
    dumps.write(redact(identified()), tmp_path / "dump")
    written = "\n".join(f"{path}\n{path.read_text()}" for path in (tmp_path / "dump").rglob("*") if path.is_file())
    for name, secret in SECRETS.items():
        assert secret not in written, name
        assert secret.removeprefix("GPU-").removeprefix("eui.") not in written, name


def test_the_same_stays_the_same() -> None:
    dump = redact(identified())
    serial = str(dump.files["/sys/class/nvme/nvme0/serial"]).strip()
    assert len(serial) == len(SECRETS["serial"])
    assert serial != SECRETS["serial"]
    assert serial in str(dump.links["/dev/disk/by-id/x"])
    assert f"[{serial}]" in dump.commands["dmesg",].stdout  # type: ignore[union-attr]
    assert f"/sys/class/hwmon/{serial}/name" in dump.files
    guid = str(dump.files["/sys/class/infiniband/mlx5_0/node_guid"]).strip()
    assert str(dump.files["/sys/class/infiniband/mlx5_0/ports/1/gids/0"]).strip() == f"fe80:0000:0000:0000:{guid}"


def test_two_dumps_have_other_pseudonyms() -> None:
    one, other = redact(identified()), redact(identified())
    assert one.files["/sys/class/nvme/nvme0/serial"] != other.files["/sys/class/nvme/nvme0/serial"]


def test_the_manifest_says_so() -> None:
    assert "serial numbers" in redact(identified()).manifest.redacted


@pytest.mark.parametrize("name", ["hgx-h100", "quad-4090", "hgx-h100+gpu-lost", "hgx-h100+nvml-hung"])
def test_the_judgement_stays_the_same(name: str) -> None:
    assert judged(redact(load(name))) == judged(name)


def test_what_matters_stays() -> None:
    dump = redact(identified())
    assert "iommu=pt" in str(dump.files["/proc/cmdline"])
    assert dump.files["/sys/module/nvidia/version"] == "570.86.15\n"
    assert "/sys/bus/pci/devices/0000:13:00.0/numa_node" in dump.files
    versions = [call.value for call in dump.nvml or [] if call.call == "nvmlDeviceGetVbiosVersion"]  # type: ignore[union-attr]
    assert set(versions) == {"96.00.89.00.01"}


@pytest.mark.parametrize("host", ["node", "gpu", "vm", "0000", "a.b"])
def test_a_host_named_like_a_part_of_the_system(host: str) -> None:
    dump = load("hgx-h100")
    put(dump, "/proc/sys/kernel/hostname", host + "\n")
    assert "/sys/devices/system/node/node0/cpulist" in redact(dump).files
    assert str(redact(dump).files["/proc/sys/kernel/hostname"]).strip() != host


@pytest.mark.parametrize("name", ["a", "7", "a.b", "vm", "0000"])
def test_a_short_name_never_comes_out_as_itself(name: str) -> None:
    assert name not in {_Pseudonyms().of(name) for _ in range(300)}


MAC = (
    st.lists(st.integers(0, 255), min_size=6, max_size=6)
    .filter(lambda octets: len(set(octets)) > 1)
    .map(lambda octets: ":".join(f"{octet:02x}" for octet in octets))
)


@settings(max_examples=60, deadline=None)
@given(mac=MAC, before=st.sampled_from(["", " ", "[", "addr=", "\n"]), after=st.sampled_from(["", " ", "]", ",", "\n"]))
def test_any_mac_address_is_found(mac: str, before: str, after: str) -> None:
    dump = load("cpu-only")
    put(dump, "/proc/net/arp", before + mac + after)
    assert mac not in str(redact(dump).files["/proc/net/arp"])


@settings(max_examples=60, deadline=None)
@given(octets=st.lists(st.integers(0, 255), min_size=4, max_size=4).filter(lambda octets: octets[0] not in (0, 10, 127, 255)))
def test_any_ipv4_address_is_found(octets: list[int]) -> None:
    address = ".".join(map(str, octets))
    dump = load("cpu-only")
    put(dump, "/etc/hosts", f"{address}\tx\n({address}:22)\n")
    assert address not in str(redact(dump).files["/etc/hosts"])
