"""Main memory, its errors, and the limits on locked and shared memory."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probe.fact import Missing, Unavailable, integer, mapped, names, parsed, text
from probe.host import Host
from probe.snapshot import Memory, MemoryController

MEMINFO = "/proc/meminfo"
LIMITS = "/proc/self/limits"
LIMITS_CONF = "/etc/security/limits.conf"
LIMITS_FOLDER = "/etc/security/limits.d"
CONTROLLERS = "/sys/devices/system/edac/mc"
UNLIMITED = -1


def meminfo(content: str) -> dict[str, int]:
    """`/proc/meminfo` in bytes; counts (HugePages_Total) as they are."""
    found = re.findall(r"^([^:\s]+):\s+(\d+)( kB)?", content, re.MULTILINE)
    if not found:
        raise ValueError
    return {name: int(number) * (1024 if unit else 1) for name, number, unit in found}


def locked_memory(limits: str) -> int:
    """The soft limit in bytes, from `/proc/PID/limits`:

    `Max locked memory         8388608              8388608              bytes`
    """
    found = re.search(r"^Max locked memory\s+(\S+)", limits, re.MULTILINE)
    if not found:
        raise ValueError
    return UNLIMITED if found[1] == "unlimited" else int(found[1])


def login_memlock(files: Sequence[str]) -> int | None:
    """What pam_limits gives every user (`*`) for `memlock`, in bytes; the last rule wins, as in limits.conf(5)."""
    limit = None
    for line in "\n".join(files).splitlines():
        words = line.split("#", 1)[0].split()
        if len(words) == 4 and words[0] == "*" and words[1] in ("soft", "-") and words[2] == "memlock":
            if words[3] in ("unlimited", "infinity", "-1"):
                limit = UNLIMITED
            elif words[3].isdigit():
                limit = int(words[3]) * 1024
    return limit


def probe(host: Host) -> Memory:
    """The memory's facts."""
    info = parsed(text(host, MEMINFO), MEMINFO, meminfo)

    def item(name: str) -> int | Missing:
        if isinstance(info, Missing):
            return info
        return info.get(name, Missing("absent", name, MEMINFO))

    try:
        shm: int | Missing = host.usage("/dev/shm").size_bytes
    except Unavailable as error:
        shm = Missing(error.reason, error.detail, "/dev/shm")
    return Memory(
        total_bytes=item("MemTotal"),
        available_bytes=item("MemAvailable"),
        cgroup_limit_bytes=_cgroup_limit(host),
        swap_total_bytes=item("SwapTotal"),
        hugepages_total=item("HugePages_Total"),
        hugepage_size_bytes=item("Hugepagesize"),
        shm_size_bytes=shm,
        memlock_process_bytes=_own_memlock(host),
        memlock_login_bytes=_login_memlock(host),
        controllers=_controllers(host),
    )


def _cgroup_limit(host: Host) -> int | Missing:
    """The memory limit of the container we are in. Outside of one we are below the root group, whose limit (a service's own) says
    nothing of the machine."""
    own = text(host, "/proc/self/cgroup")
    if isinstance(own, Missing):
        return own
    if "0::/" not in own.splitlines():
        return Missing("not_supported", "not in a container of its own", "/proc/self/cgroup")
    path = "/sys/fs/cgroup/memory.max"
    limit = text(host, path)
    if limit == "max":
        return UNLIMITED
    return mapped(parsed(limit, path, int), int)


def _own_memlock(host: Host) -> int | Missing:
    """This process' limit, which is also a shell's or a job's that started it; not where it is a service of its own."""
    own = text(host, "/proc/self/cgroup")
    service = None if isinstance(own, Missing) else re.search(r"/(readiness[\w-]*\.service)$", own, re.MULTILINE)
    if service:
        return Missing("not_supported", f"{service[1]} has limits of its own, which say nothing of a job's", LIMITS)
    return parsed(text(host, LIMITS), LIMITS, locked_memory)


def _login_memlock(host: Host) -> int | Missing:
    paths = [LIMITS_CONF, *(f"{LIMITS_FOLDER}/{name}" for name in names(host, LIMITS_FOLDER) if name.endswith(".conf"))]
    contents = [text(host, path) for path in paths]
    limit = login_memlock([content for content in contents if not isinstance(content, Missing)])
    return Missing("absent", "no memlock rule for *", LIMITS_CONF) if limit is None else limit


def _controllers(host: Host) -> list[MemoryController] | Missing:
    found = [name for name in names(host, CONTROLLERS) if re.fullmatch(r"mc\d+", name)]
    if not found:
        return Missing("absent", "no EDAC driver is loaded, or the memory has no ECC", CONTROLLERS)
    return [
        MemoryController(
            name=name,
            corrected_errors=integer(host, f"{CONTROLLERS}/{name}/ce_count"),
            uncorrected_errors=integer(host, f"{CONTROLLERS}/{name}/ue_count"),
        )
        for name in found
    ]
