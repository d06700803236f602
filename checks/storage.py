"""NVMe drives, arrays and file systems."""

from __future__ import annotations

from checks.finding import Verdict, amount, check, failed, known, not_applicable, or_none, passed, unknown, warned
from checks.node import Node, once
from probe.fact import Missing
from probe.snapshot import Array, Drive, FileSystem

COUNTS_INODES = ("ext4", "ext3", "xfs")
"""Those that say how many files they still hold; others (btrfs) say 0."""
WARNING_BITS = ("spare below threshold", "temperature", "reliability degraded", "read-only", "backup failed", "persistent memory read-only")


TOO_HOT = 1 << 1


def each_drive(node: Node) -> list[tuple[str, Drive | Missing]]:
    """The NVMe drives of this machine; those over a network have their own machine's checks."""
    drives = node.snapshot.storage.drives
    if isinstance(drives, Missing):
        return [("drives", drives)]
    return [(drive.name, drive) for drive in drives if drive.transport in ("pcie", "") or isinstance(drive.transport, Missing)]


def each_array(node: Node) -> list[tuple[str, Array | Missing]]:
    """The software RAIDs."""
    arrays = node.snapshot.storage.arrays
    return [("arrays", arrays)] if isinstance(arrays, Missing) else [(array.name, array) for array in arrays]


def each_shared(node: Node) -> list[tuple[str, FileSystem | Missing]]:
    """The shared file systems (parallel ones and NFS)."""
    known_ = node.snapshot.storage.file_systems
    return [("mounts", known_)] if isinstance(known_, Missing) else [(one.path, one) for one in known_ if one.shared]


def warning_words(bits: int) -> str:
    """The critical warning byte of the SMART log in words (NVM Express Base Specification, figure 207)."""
    return ", ".join(words for place, words in enumerate(WARNING_BITS) if bits >> place & 1)


@check(
    "storage.smart",
    component="storage",
    title="Drive healthy and not worn out",
    per=each_drive,
    weight=2,
    source="NVM Express Base Specification, SMART / Health Information log",
)
def smart(drive: Drive, node: Node) -> Verdict:
    """The drive must not warn of itself, must have spare blocks left, and must not be worn out.

    Read: `smartctl -j -a` or `nvme smart-log -o json` (root). A critical warning, spare below its threshold, or more than 100 % of the rated
    wear fail; more than 80 %, media errors, or heat alone, warn.
    """
    warning = known(drive.critical_warning)
    used, spare, threshold = or_none(drive.used_percent), or_none(drive.available_spare_percent), or_none(drive.spare_threshold_percent)
    media = or_none(drive.media_errors) or 0
    evidence = [
        f"{or_none(drive.model)}: critical warning {warning:#04x}, used {used} %, spare {spare} % (threshold {threshold} %), media errors {media}"
    ]
    if warning == TOO_HOT:
        return warned(
            f"too hot{f', {drive.temperature_celsius:g} °C' if isinstance(drive.temperature_celsius, (int, float)) else ''}",
            evidence=evidence,
            fix="check its airflow and heat sink: it slows itself down",
        )
    if warning:
        return failed(
            f"the drive warns of itself: {warning_words(warning) or hex(warning)}",
            evidence=evidence,
            fix="save its data and replace the drive",
        )
    if spare is not None and threshold and spare < threshold:
        return failed(
            f"{spare:g} % spare blocks left, the threshold is {threshold:g} %",
            measured=spare,
            required=threshold,
            unit="%",
            evidence=evidence,
            fix="replace the drive",
        )
    if used is not None and used > node.thresholds.drive_used_limit_percent:
        return failed(
            f"{used:g} % of its rated wear",
            measured=used,
            required=node.thresholds.drive_used_limit_percent,
            unit="%",
            evidence=evidence,
            fix="replace the drive",
        )
    if used is not None and used > node.thresholds.drive_used_warning_percent:
        return warned(
            f"{used:g} % of its rated wear", measured=used, unit="%", evidence=evidence, fix="plan its replacement; checkpoints write much"
        )
    if media:
        return warned(
            amount(media, "media error"), measured=media, unit="errors", evidence=evidence, fix="watch it; replace it if the number grows"
        )
    temperature = or_none(drive.temperature_celsius)
    return passed(
        f"{used:g} % worn" + (f", {temperature:g} °C" if temperature is not None else "") if used is not None else "healthy",
        evidence=evidence,
    )


@check(
    "storage.drive_state",
    component="storage",
    title="Drive answers",
    per=each_drive,
    weight=1,
    source="kernel, nvme host core: live, resetting, connecting, deleting, dead",
)
def drive_state(drive: Drive, node: Node) -> Verdict:
    """The kernel must have the controller as live, with a namespace on it. Read: `/sys/class/nvme/*/state`."""
    state = known(drive.state)
    if state != "live":
        return failed(
            f"{state}", evidence=[f"/sys/class/nvme/{drive.name}/state: {state}"], fix="sudo dmesg | grep nvme; reseat or replace the drive"
        )
    if not drive.namespaces:
        return warned(
            "no namespace",
            evidence=[f"/sys/class/nvme/{drive.name}: no {drive.name}nN"],
            fix="sudo nvme list-ns; create and attach one, or look at the drive's health",
        )
    size = or_none(drive.size_bytes)
    return passed(f"live, {size / 1e12:.2f} TB" if size else "live")


def _pool(array: Array) -> Verdict:
    """A ZFS pool by its state."""
    state = known(array.state)
    evidence = [f"/proc/spl/kstat/zfs/{array.name}/state: {state}"]
    fix = f"zpool status {array.name}; replace the drive and: sudo zpool replace"
    if state == "online":
        return passed("zpool online", evidence=evidence)
    return (
        warned(f"the pool is {state}", evidence=evidence, fix=fix)
        if state == "degraded"
        else failed(f"the pool is {state}", evidence=evidence, fix=fix)
    )


@check(
    "storage.raid",
    component="storage",
    title="RAID complete",
    per=each_array,
    weight=1,
    source="kernel documentation, md: degraded, array_state; OpenZFS, zpoolconcepts(7): device states",
)
def raid(array: Array, node: Node) -> Verdict:
    """A software RAID or ZFS pool must run, and have all its members. Read: `array_state` and `degraded` in `/sys/block/md*/md`, and
    `/proc/spl/kstat/zfs`. A RAID 0 cannot be degraded:
    it is lost."""
    if or_none(array.state) in ("broken", "inactive", "clear") and or_none(array.level) != "container":
        return failed(
            f"{or_none(array.level) or 'the array'} is {or_none(array.state)}",
            evidence=[f"/sys/block/{array.name}/md/array_state: {or_none(array.state)}"],
            fix="cat /proc/mdstat; sudo mdadm --detail names the missing member; reseat it, then: sudo mdadm --assemble --scan",
        )
    if array.level == "zpool":
        return _pool(array)
    if isinstance(array.degraded, Missing) and array.degraded.reason == "absent":
        return not_applicable(f"{or_none(array.level) or 'this level'} has no spare member")
    lacking = known(array.degraded)
    if lacking:
        return warned(
            f"{lacking} of {or_none(array.disks)} members are missing ({or_none(array.level)})",
            measured=lacking,
            required=0,
            unit="members",
            evidence=[f"/sys/block/{array.name}/md/degraded: {lacking}"],
            fix=f"cat /proc/mdstat; replace the drive and: sudo mdadm /dev/{array.name} --add DEVICE",
        )
    return passed(f"{or_none(array.level)} of {or_none(array.disks)}")


@check(
    "storage.scratch",
    component="storage",
    title="A file system for checkpoints",
    per=once,
    weight=2,
    source="the site's configuration (checkpoint_path), else the largest file system on NVMe",
)
def scratch(_: Node, node: Node) -> Verdict:
    """There should be a writable file system on NVMe, or a shared one, for checkpoints and data; the root disk does not count.

    Read: `/proc/1/mountinfo`, and what each mount stands on (partitions, LVM, md). A read-only one fails: the kernel remounts a broken file
    system so.
    """
    known(node.snapshot.storage.file_systems)
    found = node.scratch
    fix = "make a file system on the NVMe drives and mount it; name it in the configuration: [site] checkpoint_path"
    if found is None:
        return warned("none found", evidence=["no file system on NVMe, none shared"], fix=fix)
    size = f"{found.size_bytes / 1e12:.2f} TB" if isinstance(found.size_bytes, int) else "size not known"
    words = f"{found.path} ({found.kind}, {size}{', ' + '+'.join(found.drives) if found.drives else ''})"
    evidence = [f"{found.device} on {found.path} type {found.kind} ({','.join(found.options)})"]
    if found.read_only:
        return failed(
            f"{words} is read-only",
            evidence=evidence,
            fix="sudo dmesg | grep -iE 'remount|error'; repair the file system (fsck, xfs_repair) and mount it again",
        )
    if isinstance(found.free_bytes, Missing):
        return (
            failed(
                f"{words} does not answer",
                evidence=[*evidence, str(found.free_bytes)],
                fix="see what it stands on: findmnt, dmesg; a hung network mount: its server",
            )
            if found.free_bytes.reason == "timeout"
            else unknown(found.free_bytes)
        )
    if found.kind in COUNTS_INODES and found.files_free == 0:
        return failed(
            f"{words} has no inode left",
            evidence=[*evidence, "statvfs: 0 files free"],
            fix=f"sudo du --inodes -x {found.path} | sort -n | tail",
        )
    if found.path == "/" and not node.snapshot.site.checkpoint_path:
        return warned(f"only the root disk: {words}", evidence=evidence, fix=fix)
    return passed(words, evidence=evidence)


@check(
    "storage.root",
    component="storage",
    title="Room on the root disk",
    per=once,
    weight=1,
    source="field practice: 10 %",
)
def root(_: Node, node: Node) -> Verdict:
    """At least 10 % of the root file system should be free: logs, caches and core files go there, and a full one stops services. An ext4 or
    XFS that is read-only, or has no inode left, fails.
    """
    found = next((one for one in known(node.snapshot.storage.file_systems) if one.path == "/"), None)
    if found is None:
        return not_applicable("no root file system is listed")
    size, free = known(found.size_bytes), known(found.free_bytes)
    if found.read_only and found.kind in COUNTS_INODES:
        return failed(
            f"the root file system ({found.kind}) is read-only",
            evidence=[f"{found.device} on / type {found.kind} ({','.join(found.options)})"],
            fix="sudo dmesg | grep -iE 'remount|error': the kernel does that after an error; check the disk and the file system",
        )
    if found.kind in COUNTS_INODES and found.files_free == 0:
        return failed("no inode left", evidence=["/: 0 files free"], fix="sudo du --inodes -x / | sort -n | tail")
    if not size or found.kind in ("overlay", "squashfs", "tmpfs"):
        return not_applicable(f"the root is {found.kind}")
    if free < node.thresholds.root_free_share * size:
        return warned(
            f"{free / 1e9:.0f} of {size / 1e9:.0f} GB free",
            measured=free,
            required=node.thresholds.root_free_share * size,
            unit="bytes",
            evidence=[f"/: {free} bytes free"],
            fix="sudo du -xh / --max-depth 2 | sort -h | tail; clear caches and old logs",
        )
    return passed(
        f"{free / 1e9:.0f} of {size / 1e9:.0f} GB free", measured=free, required=node.thresholds.root_free_share * size, unit="bytes"
    )


@check(
    "storage.shared",
    component="storage",
    title="Shared file system answers",
    per=each_shared,
    weight=2,
    source="statvfs in a child of its own; Lustre: health_check",
)
def shared(one: FileSystem, node: Node) -> Verdict:
    """A mounted Lustre, GPFS, BeeGFS, Weka, Ceph or NFS file system must answer, and be healthy where it says so.

    Read: its size, asked in a child that is given up after the deadline (a dead server hangs whoever asks), and Lustre's health file. BeeGFS is
    weak on many small files: pack data sets into shards.
    """
    if isinstance(one.free_bytes, Missing):
        if one.free_bytes.reason == "timeout":
            return failed(
                "does not answer",
                evidence=[str(one.free_bytes)],
                fix=f"the server or the network to it: mount | grep {one.path}; umount -l {one.path} frees what hangs on it",
            )
        return unknown(one.free_bytes)
    health = or_none(one.health)
    if health is not None and "NOT HEALTHY" in health.upper():
        return failed(
            f"{one.kind} says: {health.splitlines()[0][:80]}",
            evidence=[health[:200]],
            fix="lctl get_param -n health_check; lfs check servers",
        )
    note = "; weak on many small files" if one.kind.startswith("beegfs") else ""
    return passed(f"{one.kind}, {one.free_bytes / 1e12:.2f} TB free{note}", evidence=[f"{one.device} on {one.path}"])


CHECKS = [smart, drive_state, raid, scratch, root, shared]
