"""NVMe drives, software RAID, and the file systems that stand on them.

Read: `/sys/class/nvme` (kernel documentation: `sysfs-nvme`), SMART logs through `smartctl -j` or `nvme smart-log -o json` (root), md in
`/sys/block`, `/proc/1/mountinfo` or `/proc/self/mountinfo` (proc(5)), and the health files of parallel file systems.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from probe.fact import Missing, Unavailable, integer, names, parsed, text
from probe.host import Host
from probe.rdma import pci_address
from probe.snapshot import Array, Drive, FileSystem, Site, Storage

CONTROLLERS = "/sys/class/nvme"
POOLS = "/proc/spl/kstat/zfs"
BTRFS = "/sys/fs/btrfs"
BLOCKS = "/sys/class/block"
MOUNTS = ("/proc/1/mountinfo", "/proc/self/mountinfo")
"""The machine's own view first: a hardened service sees the whole tree bound read-only, a container its own."""
SECTOR_BYTES = 512  # the unit of `size` in sysfs, whatever the drive's own sector is
SHARED_KINDS = frozenset(
    {"lustre", "gpfs", "beegfs", "beegfs_nodev", "wekafs", "ceph", "fuse.ceph", "nfs", "nfs4", "cifs", "smb3", "panfs", "glusterfs", "fuse.glusterfs"}
)  # fmt: skip
LOCAL_KINDS = frozenset({"ext4", "ext3", "xfs", "btrfs", "zfs", "f2fs", "bcachefs"})
MOUNTS_ASKED = 24
"""No more file systems are asked for their size: a node with thousands of mounts (containers) has few that matter."""
DRIVES_ASKED = 64
BLOCK_LAYERS = 8


def smartctl(output: str) -> dict[str, Any]:
    """The NVMe health log of `smartctl -j -a`; raises ValueError where the answer holds none."""
    said = _object(output)
    log = said.get("nvme_smart_health_information_log")
    if not isinstance(log, dict):
        raise ValueError
    user = said.get("user_capacity")
    return {
        "size": said.get("nvme_total_capacity") or (user.get("bytes") if isinstance(user, dict) else None),
        "temperature": log.get("temperature"),
        "critical_warning": log.get("critical_warning"),
        "spare": log.get("available_spare"),
        "threshold": log.get("available_spare_threshold"),
        "used": log.get("percentage_used"),
        "media_errors": log.get("media_errors"),
    }


def nvme_smart_log(output: str) -> dict[str, Any]:
    """`nvme smart-log -o json`: versions 1 and 2 name the fields differently, count in strings or numbers, and give kelvin or Celsius."""
    log = _object(output)
    if "critical_warning" not in log:
        raise ValueError
    temperature = _number(log.get("temperature"))
    if temperature is not None and temperature > 200:  # kelvin
        temperature -= 273
    warning = log["critical_warning"]
    return {
        "size": None,
        "temperature": temperature,
        "critical_warning": warning.get("value") if isinstance(warning, dict) else warning,  # nvme-cli 2.11 and later
        "spare": log.get("avail_spare", log.get("available_spare")),
        "threshold": log.get("spare_thresh", log.get("available_spare_threshold")),
        "used": log.get("percent_used", log.get("percentage_used")),
        "media_errors": log.get("media_errors"),
    }


def _object(output: str) -> dict[str, Any]:
    try:
        said = json.loads(output)
    except RecursionError:
        raise ValueError from None
    if not isinstance(said, dict):
        raise ValueError
    return said


def _number(value: Any) -> float | None:
    """A number, or a string that is one (nvme-cli writes 128-bit counters so)."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value.replace(",", "") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _smart(host: Host, name: str) -> dict[str, Any] | Missing:
    """The health log of a controller, by the first tool that gives one."""
    reasons: list[Missing] = []
    for argv, parse in (
        (["smartctl", "-j", "-a", f"/dev/{name}"], smartctl),
        (["nvme", "smart-log", f"/dev/{name}", "-o", "json"], nvme_smart_log),
    ):
        source = " ".join(argv)
        try:
            said = host.run(argv)
        except Unavailable as error:
            reasons.append(Missing(error.reason, error.detail, source))
            continue
        answer = parsed(said.stdout, source, parse)
        if not isinstance(answer, Missing):
            return answer
        denied = "ermission denied" in said.stdout + said.stderr
        reasons.append(Missing("no_permission" if denied else "error", (said.stderr or said.stdout).strip()[:120], source))
    return next((one for one in reasons if one.reason != "absent"), reasons[0])


def _drives(host: Host) -> list[Drive]:
    return [_drive(host, name) for name in names(host, CONTROLLERS)[:DRIVES_ASKED] if re.fullmatch(r"nvme\d+", name)]


def _drive(host: Host, name: str) -> Drive:
    folder = f"{CONTROLLERS}/{name}"
    spaces = [entry for entry in names(host, folder) if re.fullmatch(rf"{name}(c\d+)?n\d+", entry)]
    sizes = [integer(host, f"{folder}/{space}/size") for space in spaces]
    known = [size for size in sizes if not isinstance(size, Missing)]
    smart = _smart(host, name)

    def fact(key: str) -> float | Missing:
        if isinstance(smart, Missing):
            return smart
        number = _number(smart[key])
        return Missing("not_supported", f"no {key}", f"SMART of {name}") if number is None else number

    warning, errors, told = fact("critical_warning"), fact("media_errors"), fact("size")
    return Drive(
        name=name,
        model=text(host, f"{folder}/model"),
        firmware_version=text(host, f"{folder}/firmware_rev"),
        serial=text(host, f"{folder}/serial"),
        transport=text(host, f"{folder}/transport"),
        state=text(host, f"{folder}/state"),
        pci_address=pci_address(host, folder),
        namespaces=spaces,
        size_bytes=sum(known) * SECTOR_BYTES
        if known
        else Missing("absent", "no namespace", folder)
        if isinstance(told, Missing) or not spaces
        else int(told),
        temperature_celsius=fact("temperature"),
        critical_warning=warning if isinstance(warning, Missing) else int(warning),
        available_spare_percent=fact("spare"),
        spare_threshold_percent=fact("threshold"),
        used_percent=fact("used"),
        media_errors=errors if isinstance(errors, Missing) else int(errors),
    )


def _arrays(host: Host) -> list[Array]:
    return [
        Array(
            name=name,
            level=text(host, f"{BLOCKS}/{name}/md/level"),
            disks=integer(host, f"{BLOCKS}/{name}/md/raid_disks"),
            degraded=integer(host, f"{BLOCKS}/{name}/md/degraded"),
            state=text(host, f"{BLOCKS}/{name}/md/array_state"),
        )
        for name in names(host, BLOCKS)
        if re.fullmatch(r"md(\d+|_.+)", name)
    ]


def _pools(host: Host) -> list[Array]:
    """The ZFS pools, with the state that the kernel gives each (`ONLINE`, `DEGRADED`, `SUSPENDED`)."""
    unknown = Missing("not_supported", "the kernel gives a pool's state alone", POOLS)
    states = {name: text(host, f"{POOLS}/{name}/state") for name in names(host, POOLS)}
    return [
        Array(name=name, level="zpool", disks=unknown, degraded=unknown, state=state.lower())
        for name, state in states.items()
        if isinstance(state, str)
    ]


def zpool_members(output: str) -> dict[str, list[str]]:
    """The block devices of each pool, from `zpool list -vHPL`: members stand below their pool, behind a tab."""
    found: dict[str, list[str]] = {}
    pool = ""
    for line in output.splitlines():
        if not line.startswith("\t"):
            pool = line.split("\t", 1)[0]
        elif line.split("\t")[1].startswith("/dev/"):
            found.setdefault(pool, []).append(line.split("\t")[1].rsplit("/", 1)[-1])
    return found


class Mount:
    """A line of mountinfo: `36 35 98:0 / /mnt/a\\040b rw,noatime shared:1 - ext4 /dev/root rw,errors=continue`."""

    def __init__(self, line: str) -> None:
        before, after = line.split(" - ", 1)
        first, second = before.split(" "), after.split(" ")
        self.number = first[2]
        self.path = _unescaped(first[4])
        self.kind = second[0]
        self.device = _unescaped(second[1])
        self.options = first[5].split(",")
        self.super_options = second[2].split(",") if len(second) > 2 else []

    @property
    def read_only(self) -> bool:
        """Whether the file system is, as the kernel makes it after an error; one that is only bound read-only here is not."""
        return "ro" in (self.super_options or self.options)


NOT_FOR_DATA = (
    "/boot",
    "/usr",
    "/nix",
    "/sysroot",
    "/snap",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/containers",
    "/run/",
    "/etc/",
    "/dev/",
    "/proc/",
    "/sys/",
)
"""Where no data goes: an image-based system has its /usr read-only; a container has single files bound below /etc (`/etc/resolv.conf`)."""


def _unescaped(field: str) -> str:
    r"""The kernel writes space, tab, newline and backslash in octal (`\040`)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def mounts(content: str) -> list[Mount]:
    """The mounted file systems, the last one on each path: it covers the others."""
    found: dict[str, Mount] = {}
    for line in content.splitlines():
        try:
            mount = Mount(line)
        except (ValueError, IndexError):
            continue
        found[mount.path] = mount
    return list(found.values())


def covering(path: str, of: list[Mount]) -> Mount | None:
    """The file system that a path is on."""
    best = None
    for mount in of:
        prefix = mount.path.rstrip("/") + "/"
        if (path.rstrip("/") + "/").startswith(prefix) and (best is None or len(mount.path) > len(best.path)):
            best = mount
    return best


def _block_names(host: Host) -> dict[str, str]:
    """Block devices by their number, `259:1` → `nvme0n1p1`: a device may go by many names (by-uuid, mapper)."""
    found = {}
    for name in names(host, BLOCKS):
        if name.startswith(("loop", "ram", "zram", "sr", "nbd")):
            continue
        number = text(host, f"{BLOCKS}/{name}/dev")
        if isinstance(number, str):
            found[number] = name
    return found


def _drives_below(host: Host, block: str, layers: int = BLOCK_LAYERS) -> set[str]:
    """The NVMe controllers that a block device stands on: through partitions, device mapper (LVM, crypt) and md."""
    nvme = re.match(r"(nvme\d+)(c\d+)?n\d+", block)
    if nvme:
        return {nvme[1]}
    if not layers:
        return set()
    return {drive for slave in names(host, f"{BLOCKS}/{block}/slaves") for drive in _drives_below(host, slave, layers - 1)}


def _members_of_pools(host: Host) -> dict[str, list[str]]:
    try:
        return zpool_members(host.run(["zpool", "list", "-vHPL"]).stdout)
    except Unavailable:
        return {}


def _blocks_of(host: Host, mount: Mount, blocks: dict[str, str], pools: dict[str, list[str]]) -> list[str]:
    """The block devices that a file system is on: one; all members of a ZFS pool, or of a btrfs."""
    if mount.kind == "zfs":
        return pools.get(mount.device.split("/", 1)[0], [])
    block = blocks.get(mount.number) or mount.device.rsplit("/", 1)[-1]
    if mount.kind == "btrfs":
        block = _named_by_kernel(host, mount.device) or block
        for volume in names(host, BTRFS):
            members_of = names(host, f"{BTRFS}/{volume}/devices")
            if block in members_of:
                return members_of
    return [block]


def _named_by_kernel(host: Host, device: str) -> str | None:
    """`/dev/mapper/vg-lv` → `dm-3`: a btrfs has no number of its own in mountinfo."""
    name = device.rsplit("/", 1)[-1]
    if not device.startswith("/dev/mapper/"):
        return name
    return next(
        (block for block in names(host, BLOCKS) if block.startswith("dm-") and text(host, f"{BLOCKS}/{block}/dm/name") == name), None
    )


def _file_systems(host: Host, site: Site) -> list[FileSystem] | Missing:
    content = text(host, MOUNTS[0])
    if isinstance(content, Missing):
        content = text(host, MOUNTS[1])
    if isinstance(content, Missing):
        return content
    every = mounts(content)
    named = [mount for path in (site.checkpoint_path, site.dataset_path) if path and (mount := covering(path, every)) is not None]
    matters = [*named, *(mount for mount in every if mount.path == "/"), *(mount for mount in every if mount.kind in SHARED_KINDS)]
    matters += [mount for mount in every if mount.kind in LOCAL_KINDS and not mount.path.startswith(NOT_FOR_DATA)]
    chosen = list({mount.path: mount for mount in matters}.values())[:MOUNTS_ASKED]
    blocks = _block_names(host) if any(mount.kind in LOCAL_KINDS for mount in chosen) else {}
    pools = _members_of_pools(host) if any(mount.kind == "zfs" for mount in chosen) else {}
    return [_file_system(host, mount, blocks, pools) for mount in chosen]


def _file_system(host: Host, mount: Mount, blocks: dict[str, str], pools: dict[str, list[str]]) -> FileSystem:
    try:
        usage = host.usage(mount.path)
        size: int | Missing = usage.size_bytes
        free: int | Missing = usage.free_bytes
        files: int | Missing = usage.files_free
    except Unavailable as error:
        size = free = files = Missing(error.reason, error.detail, f"statvfs {mount.path}")
    below = [] if mount.kind in SHARED_KINDS else _blocks_of(host, mount, blocks, pools)
    return FileSystem(
        path=mount.path,
        device=mount.device,
        kind=mount.kind,
        options=mount.options,
        read_only=mount.read_only,
        shared=mount.kind in SHARED_KINDS,
        drives=sorted({drive for block in below for drive in _drives_below(host, block)}),
        size_bytes=size,
        free_bytes=free,
        files_free=files,
        health=_health(host, mount),
    )


def _health(host: Host, mount: Mount) -> str | Missing:
    """A parallel file system's own word: Lustre has a health file."""
    if mount.kind != "lustre":
        return Missing("not_supported", f"{mount.kind} has no health file", mount.path)
    said = text(host, "/sys/fs/lustre/health_check")
    return said if isinstance(said, str) else text(host, "/proc/fs/lustre/health_check")


def probe(host: Host, site: Site) -> Storage:
    """The facts about storage."""
    return Storage(
        drives=_drives(host),
        arrays=_arrays(host) + _pools(host),
        file_systems=_file_systems(host, site),
        gpudirect_storage=bool(names(host, "/sys/module/nvidia_fs")),
    )
