"""The PCI tree from `/sys/bus/pci/devices`: what hangs where, at what width and speed, with what errors.

Kernel documentation: `Documentation/ABI/testing/sysfs-bus-pci`, `sysfs-bus-pci-devices-aer_stats`. Extended capability 0x000D
(Access Control Services): PCI Express Base Specification 5.0, 7.7.8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from probe.fact import Missing, Unavailable, integer, parsed, text
from probe.host import Host
from probe.snapshot import PciDevice, PciLink

T = TypeVar("T")

DEVICES = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
NVIDIA = 0x10DE
UNKNOWN_LINK_WIDTHS = (0, 63, 255)


def role_of(class_code: int, vendor_id: int | Missing) -> str | None:
    """What a function is to us, by its class code (PCI Code and ID Assignment, base class and subclass); None for all else."""
    kind = class_code >> 8
    if kind in (0x0300, 0x0302):
        return "gpu" if vendor_id == NVIDIA else "display"
    if kind == 0x0680 and vendor_id == NVIDIA:
        return "nvswitch"
    if kind == 0x1200 or kind == 0x0380:
        return "accelerator"
    return {0x0200: "nic", 0x0207: "nic", 0x0108: "nvme", 0x0604: "bridge"}.get(kind)


def speed(value: str) -> float:
    """`32.0 GT/s PCIe` → 32.0; raises ValueError for `Unknown`."""
    found = re.match(r"(\d+(?:\.\d+)?) GT/s", value)
    if not found:
        raise ValueError
    return float(found[1])


def width(value: str) -> int:
    """Lanes; raises ValueError where the device says that it does not know."""
    lanes = int(value)
    if lanes in UNKNOWN_LINK_WIDTHS:
        raise ValueError
    return lanes


def aer_total(value: str) -> int:
    """The last word of the `TOTAL_ERR_...` line of an `aer_dev_*` file."""
    return [int(line.split()[1]) for line in value.splitlines() if line.startswith("TOTAL_ERR")][-1]


def acs_redirect(config: bytes) -> bool:
    """Whether a bridge's ACS sends peer-to-peer requests or completions up to the root (P2P Request/Completion Redirect, bits 2, 3)."""
    offset = 0x100
    for _ in range(96):  # there is room for no more capabilities
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return False
        if header & 0xFFFF == 0x000D:
            return bool(int.from_bytes(config[offset + 6 : offset + 8], "little") & 0b1100)
        offset = header >> 20
        if offset < 0x100:
            return False
    return False


def uevent(value: str) -> dict[str, str]:
    """`KEY=value` lines."""
    return dict(line.split("=", 1) for line in value.splitlines() if "=" in line)


def devices(host: Host) -> list[PciDevice] | Missing:
    """The PCI functions that matter to us: GPUs, NICs, NVMe drives, NVSwitches and every bridge."""
    try:
        addresses = [name for name in host.listing(DEVICES) if ADDRESS.fullmatch(name)]
    except Unavailable as error:
        return Missing(error.reason, error.detail, DEVICES)
    found = (_device(host, address) for address in addresses)
    return _with_acs(host, [device for device in found if device is not None])


def _device(host: Host, address: str) -> PciDevice | None:
    folder = f"{DEVICES}/{address}"
    said = parsed(text(host, f"{folder}/uevent"), f"{folder}/uevent", uevent)
    event = {} if isinstance(said, Missing) else said
    vendor: int | Missing
    kind: int | Missing
    if re.fullmatch(r"[0-9A-F]{4}:[0-9A-F]{4}", event.get("PCI_ID", "")) and re.fullmatch(r"[0-9A-F]+", event.get("PCI_CLASS", "")):
        vendor, device = (int(part, 16) for part in event["PCI_ID"].split(":"))
        kind = int(event["PCI_CLASS"], 16)
    else:
        vendor, device, kind = (integer(host, f"{folder}/{name}") for name in ("vendor", "device", "class"))  # type: ignore[assignment]
    role = None if isinstance(kind, Missing) else role_of(kind, vendor)
    if role is None:
        return None
    path, root = _place(host, folder, address)
    unread = Missing("not_supported", "not read for this kind of device", folder)
    peer = role in ("gpu", "nic")
    return PciDevice(
        address=address,
        vendor_id=vendor,
        device_id=device,
        class_code=kind,
        role=role,
        driver=event["DRIVER"] if "DRIVER" in event else Missing("absent", "no driver is bound", f"{folder}/uevent"),
        path=path,
        root=root,
        numa_node=integer(host, f"{folder}/numa_node"),
        link=PciLink(
            speed_gtps=_link(host, folder, "current_link_speed", speed),
            speed_max_gtps=_link(host, folder, "max_link_speed", speed),
            width_lanes=_link(host, folder, "current_link_width", width),
            width_max_lanes=_link(host, folder, "max_link_width", width),
        ),
        virtual_function=peer and _is_virtual(host, folder),
        aer_correctable=_aer(host, folder, "correctable"),
        aer_nonfatal=_aer(host, folder, "nonfatal"),
        aer_fatal=_aer(host, folder, "fatal"),
        acs_redirect=unread,
        iommu_type=_iommu_type(host, folder) if peer else unread,
    )


def _place(host: Host, folder: str, address: str) -> tuple[list[str], str]:
    """The bridges above a device and its root, from the link in `/sys/bus/pci/devices`:

    `../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:19:00.0`
    """
    try:
        parts = host.link(folder).split("/")
    except Unavailable:
        return [], ""
    return [part for part in parts if ADDRESS.fullmatch(part) and part != address], next(
        (part for part in parts if part.startswith("pci")), ""
    )


def _link(host: Host, folder: str, name: str, parse: Callable[[str], T]) -> T | Missing:
    return parsed(text(host, f"{folder}/{name}"), f"{folder}/{name}", parse)


def _aer(host: Host, folder: str, kind: str) -> int | Missing:
    path = f"{folder}/aer_dev_{kind}"
    return parsed(text(host, path), path, aer_total)


def _is_virtual(host: Host, folder: str) -> bool:
    try:
        return bool(host.link(f"{folder}/physfn"))
    except Unavailable:
        return False


def _iommu_type(host: Host, folder: str) -> str | Missing:
    try:
        group = host.link(f"{folder}/iommu_group").rsplit("/", 1)[-1]
    except Unavailable as error:
        return Missing(error.reason, error.detail, f"{folder}/iommu_group")
    return text(host, f"/sys/kernel/iommu_groups/{group}/type")


def _with_acs(host: Host, found: list[PciDevice]) -> list[PciDevice]:
    """The devices with `acs_redirect` filled in for the bridges above GPUs and NICs (configuration space is root's to read)."""
    above = {bridge for device in found if device.role in ("gpu", "nic") for bridge in device.path}
    return [
        msgspec.structs.replace(device, acs_redirect=_acs(host, device.address)) if device.address in above else device for device in found
    ]


def _acs(host: Host, address: str) -> bool | Missing:
    path = f"{DEVICES}/{address}/config"
    try:
        config = host.read_bytes(path)
    except Unavailable as error:
        return Missing(error.reason, error.detail, path)
    if len(config) <= 64:
        return Missing("no_permission", "only root may read extended configuration space", path)
    return acs_redirect(config)
