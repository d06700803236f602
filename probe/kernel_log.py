"""The kernel log: what it says of GPUs, PCIe, memory, NICs, drives and tasks, by device and kind, with counts and times.

Read: `/dev/kmsg` (kernel documentation: `dev-kmsg`), else `journalctl -k -b`. Both hold this boot alone. The lines of dmesg and of the
journal are understood too, so that a file can be judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from probe.fact import Missing, Unavailable, text
from probe.host import Host
from probe.snapshot import KernelEvent

KMSG = "/dev/kmsg"
TEXT_CAP = 300
PCI = r"(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"


REMOVABLE = r"(?:sr|fd|loop|nbd|zram|ram)\d"
"""Block devices that are no drives: a BMC's virtual CD complains when it is taken away."""


class Pattern(NamedTuple):
    """A kind of event: how its line looks, and which device and code it names."""

    kind: str
    form: re.Pattern[str]
    device: Callable[[re.Match[str]], str]
    code: Callable[[re.Match[str]], str]


def address(found: str) -> str:
    """A PCI address as drivers write it (`0000:9b:00`, `00000000:9b:00.0`) in the kernel's form."""
    domain, rest = found.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}" + ("" if "." in rest else ".0")


def _pattern(kind: str, form: str, device: int | str = "", code: int | str = "", *, pci: bool = True) -> Pattern:
    """Groups by number, or fixed words; a device group is a PCI address unless told otherwise."""

    def device_of(found: re.Match[str]) -> str:
        if isinstance(device, str):
            return device
        return (address(found[device]) if pci else found[device]) if found[device] else ""

    return Pattern(kind, re.compile(form), device_of, lambda found: code if isinstance(code, str) else (found[code] or ""))


PATTERNS = (
    _pattern("xid", rf"NVRM: Xid \(?{PCI}(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\)?: (\d+)", 1, 2),
    _pattern("sxid_fatal", rf"SXid \(?{PCI}\)?: (\d+), Fatal", 1, 2),
    _pattern("sxid", rf"SXid \(?{PCI}\)?: (\d+), Non-fatal", 1, 2),
    _pattern("off_bus", rf"NVRM: GPU {PCI}: GPU has fallen off the bus", 1),
    _pattern("gpu_probe_failed", rf"NVRM: The NVIDIA GPU {PCI}", 1),
    _pattern("gpu_probe_failed", r"NVRM: The NVIDIA probe routine failed", "driver"),
    _pattern("reset_required", r"NVRM: .*NV_ERR_RESET_REQUIRED", "driver"),
    _pattern("nvlink_training", r"NVRM: .*knvlinkDiscoverPostRxDetLinks\S* .*fail", "driver"),
    _pattern("version_mismatch", r"NVRM: API mismatch: the client has the version ([\d.]+)", "driver", 1),
    _pattern("peermem", r"nvidia-peermem nv_get_p2p_free_callback:\d+ ERROR detected invalid context", "nvidia-peermem"),
    _pattern("aer_fatal", rf"{PCI}: PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)", 1),
    _pattern("aer_fatal", rf"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\) error (?:message )?received(?: from|:) {PCI}", 1),
    _pattern("aer_nonfatal", rf"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Non-Fatal\) error (?:message )?received(?: from|:) {PCI}", 1),
    _pattern("aer_corrected", rf"AER: (?:Multiple )?Correct(?:ed|able) error (?:message )?received(?: from|:) {PCI}", 1),
    _pattern("mce", r"mce: \[Hardware Error\]: CPU (\d+): Machine Check", 1, pci=False),
    _pattern("firmware_fatal", r"\{\d+\}\[Hardware Error\]: +event severity: (fatal)", "firmware", 1),
    _pattern("firmware_error", r"\{\d+\}\[Hardware Error\]: +event severity: (recoverable)", "firmware", 1),
    _pattern("aer_fatal", rf"pcieport {PCI}: DPC: containment event", 1),
    _pattern("edac_uncorrected", r"Memory failure: (0x[0-9a-f]+): recovery action", 1, pci=False),
    _pattern("edac_uncorrected", r"mce: Uncorrected hardware memory error in user-access at ([0-9a-f]+)", 1, pci=False),
    _pattern("edac_uncorrected", r"EDAC (MC\d+): \d+ UE ", 1, pci=False),
    _pattern("edac_corrected", r"EDAC (MC\d+): \d+ CE ", 1, pci=False),
    _pattern("nic_power", rf"mlx5_core {PCI}: .*insufficient power on the PCIe slot", 1),
    _pattern("nic_health", rf"mlx5_core {PCI}: .*(?:health compromised|miss count|unrecoverable|in error state|Fatal error)", 1),
    _pattern("nic_health", rf"mlx5_core {PCI}: .*(?:Health issue observed|handling bad device|mlx5_error_sw_reset\S* .*start)", 1),
    _pattern("nic_health", rf"mlx5_core {PCI}: .*\) timeout\. Will cause a leak", 1),
    _pattern("nic_temperature", rf"mlx5_core {PCI}: .*High Temperature", 1),
    _pattern("nic_cable", rf"mlx5_core {PCI}: Port module event\[error\]|mlx5_core {PCI}: .*Cable error", 1),
    _pattern("nic_register", rf"mlx5_core {PCI}: .*ACCESS_REG\S* .*failed", 1),
    _pattern("pcie_bandwidth", rf"{PCI}: ([\d.]+) Gb/s available PCIe bandwidth, limited by", 1, 2),
    _pattern("nvme_timeout", r"nvme (nvme\d+): (?:I/O (?:tag )?\d+.*timeout|.*controller is down|Abort status|Device not ready)", 1, pci=False),
    _pattern("nvme_removed", r"nvme (nvme\d+): (?:Removing after probe failure|Disabling device after reset failure)", 1, pci=False),
    _pattern("io_error", rf"(?:I/O error|critical (?:medium|target|space allocation) error), dev (?!{REMOVABLE})(\w+)", 1, pci=False),
    _pattern("io_error", rf"Buffer I/O error on dev(?:ice)? (?!{REMOVABLE})([\w-]+)", 1, pci=False),
    _pattern("fs_error", r"EXT4-fs error \(device ([\w-]+)\)", 1, pci=False),
    _pattern("fs_error", r"XFS \(([\w-]+)\): .*(?:[Ss]hutting down|[Cc]orruption|[Ss]hut down due to)", 1, pci=False),
    _pattern("fs_error", r"BTRFS: error \(device ([\w-]+)[^)]*\)", 1, pci=False),
    _pattern("fs_read_only", r"BTRFS \w+ \(device ([\w-]+)[^)]*\): forced readonly", 1, pci=False),
    _pattern("fs_read_only", r"(?:EXT4-fs|BTRFS)[^(:]*\((?:device )?([\w-]+)\).*[Rr]emounting filesystem read-only", 1, pci=False),
    _pattern("oom", r"Out of memory: Killed process \d+ \(([^)]+)\)", 1, pci=False),
    _pattern("oom", r"Memory cgroup out of memory: Killed process \d+ \(([^)]+)\)", 1, "cgroup", pci=False),
    _pattern("hung_task", r"BUG: soft lockup - CPU#\d+ stuck for \d+s! \[([^:\]]+)", 1, pci=False),
    _pattern("hung_task", r"INFO: task (\S+):\d+ blocked for more than \d+ seconds", 1, pci=False),
)  # fmt: skip
RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to (0x[0-9a-fA-F]+) \(([^)]*)")

KMSG_LINE = re.compile(r"\d+,\d+,(\d+),[^;]*;(.*)")
DMESG_LINE = re.compile(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(.*)")
DMESG_TIME_LINE = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [^]]+\] (.*)")
JOURNAL_LINE = re.compile(
    r"\S+ (?:\S+ )?kernel: (?:\[\s*(\d+\.\d+)\] )?(.*)|[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S+ kernel: (?:\[\s*(\d+\.\d+)\] )?(.*)"
)


def lines(content: str) -> Iterator[tuple[float | None, str]]:
    """Each message with its time in seconds since boot, where the line tells it; kmsg's continuation lines are left out."""
    for line in content.splitlines():
        kmsg = KMSG_LINE.match(line)
        if kmsg:
            yield int(kmsg[1]) / 1e6, kmsg[2]
            continue
        dmesg = DMESG_LINE.match(line)
        if dmesg:
            yield float(dmesg[1]), dmesg[2]
            continue
        dated = DMESG_TIME_LINE.match(line)
        if dated:
            yield None, dated[1]
            continue
        journal = JOURNAL_LINE.match(line)
        if journal:
            seconds = journal[1] or journal[3]
            yield float(seconds) if seconds else None, journal[2] if journal[2] is not None else journal[4]
            continue
        if line and not line.startswith(" "):
            yield None, line


def events(content: str) -> list[KernelEvent]:
    """What the log says, by kind, code and device. An Xid 154 that says `None` ends the Xids of its GPU so far: it was reset."""
    found: dict[tuple[str, str, str], KernelEvent] = {}
    for seconds, message in lines(content):
        for pattern in PATTERNS:
            match = pattern.form.search(message)
            if match is None:
                continue
            device, code = pattern.device(match), pattern.code(match)
            if pattern.kind == "xid" and code == "154":
                recovery = RECOVERY.search(message)
                if recovery and int(recovery[1], 16) == 0:
                    found = {key: event for key, event in found.items() if key[2] != device or key[0] not in ("xid", "off_bus")}
                    break
            _count(found, pattern.kind, code, device, seconds, message)
            break
    return list(found.values())


def _count(found: dict[tuple[str, str, str], KernelEvent], kind: str, code: str, device: str, seconds: float | None, message: str) -> None:
    key = (kind, code, device)
    before = found.get(key)
    # One PCIe error has two lines: that it was received, and what it was.
    same = before is not None and kind.startswith("aer") and "PCIe Bus Error" in message and "received" in before.text
    at: float | Missing = Missing("not_supported", "the line has no time since boot", "kernel log") if seconds is None else seconds
    found[key] = KernelEvent(
        kind=kind,
        code=code,
        device=device,
        count=before.count + (not same) if before else 1,
        first_seconds=before.first_seconds if before else at,
        last_seconds=at,
        text=message[:TEXT_CAP],
    )


def probe(host: Host) -> list[KernelEvent] | Missing:
    """The events of this boot; Missing where neither the ring nor the journal may be read."""
    ring = text(host, KMSG)
    if isinstance(ring, str) and ring:
        return events(ring)
    try:
        said = host.run(["journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic"])
    except Unavailable as error:
        return ring if isinstance(ring, Missing) else Missing(error.reason, error.detail, "journalctl -k")
    if said.exit_code == 0 and said.stdout.count("\n") > 1:
        return events(re.sub(r"^(\[[^]]+\]) \S+ kernel: ", r"\1 ", said.stdout, flags=re.MULTILINE))
    if isinstance(ring, Missing):
        return ring
    return Missing("no_permission", (said.stderr.strip() or "an empty log")[:120], "journalctl -k")
