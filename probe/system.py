"""The machine as a whole: names, kernel, time since boot."""

from __future__ import annotations

import re

from probe.fact import parsed, text
from probe.host import Host
from probe.snapshot import System


def pretty_name(os_release: str) -> str:
    """`PRETTY_NAME` of `/etc/os-release`."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', os_release, re.MULTILINE)
    if not found:
        raise ValueError
    return found[1]


def probe(host: Host) -> System:
    """The machine's facts."""
    return System(
        host_name=text(host, "/proc/sys/kernel/hostname"),
        vendor=text(host, "/sys/class/dmi/id/sys_vendor"),
        product=text(host, "/sys/class/dmi/id/product_name"),
        kernel_release=text(host, "/proc/sys/kernel/osrelease"),
        operating_system=parsed(text(host, "/etc/os-release"), "/etc/os-release", pretty_name),
        uptime_seconds=parsed(text(host, "/proc/uptime"), "/proc/uptime", lambda value: float(value.split()[0])),
        boot_id=text(host, "/proc/sys/kernel/random/boot_id"),
        kernel_command_line=text(host, "/proc/cmdline"),
    )
