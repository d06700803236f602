"""Takes the identities out of a dump: consistently, in the same form, and not reversibly.

The same serial becomes the same pseudonym everywhere in one dump, so that what belonged together still does; the key is random and
thrown away, so that two dumps cannot be compared by it and nobody can try serials out. What is known to be an identity by where it
stands (a serial in `/sys`, an NVML UUID, the host name) is replaced wherever else it occurs; addresses and UUIDs are found by their form.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from probe.dump import Dump, Failure
from probe.host import Completed
from probe.nvml import Call

WHAT = [
    "serial numbers",
    "UUIDs and GUIDs",
    "MAC addresses",
    "IP addresses",
    "host names",
    "user names",
    "command lines",
    "machine and boot ids",
]

IDENTITY_FILES = re.compile(
    r"(/(?:[a-z_]*serial|(?:product|board|chassis)_(?:serial|asset_tag)|asset_tag|wwid|uuid|nguid|eui|hostnqn|hostid|machine-id|node_guid"
    r"|sys_image_guid|product_uuid|boot_id|unique_id|vpd_pg80|vpd_pg83|phys_port_id|phys_switch_id)$)"
    r"|^/proc/sys/kernel/hostname$|^/etc/hostname$|^/proc/sys/kernel/domainname$"
)
IDENTITY_CALLS = frozenset({"nvmlDeviceGetSerial", "nvmlDeviceGetUUID"})
NO_IDENTITY = frozenset(
    {"", "none", "(none)", "0", "unknown", "n/a", "to be filled by o.e.m.", "default string", "localhost", "not specified"}
)
COMMAND_LINE = "/proc/cmdline"
KEPT_PARAMETERS = re.compile(
    r"^(?:(?:intel_|amd_)?iommu|pci|pcie_\w+|nvidia[\w.-]*|hugepages\w*|default_hugepagesz|transparent_hugepage|isolcpus|nohz_full|rcu_nocbs"
    r"|mitigations|numa_balancing|processor\.max_cstate|intel_idle\.max_cstate|intel_pstate|amd_pstate|cgroup\w*|systemd\.unified_cgroup_hierarchy"
    r"|quiet|ro|rw|splash|nomodeset|modprobe\.blacklist|rd\.driver\.blacklist|init_on_alloc|tsc|clocksource|nvme[\w.]*|mce|memmap|crashkernel)(?:=|$)"
)

HEX = "[0-9a-fA-F]"
FORMS = (
    ("uuid", rf"(?<!{HEX}){HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}(?!{HEX})"),
    ("ipv6", rf"(?<![0-9A-Za-z:.])(?:(?:{HEX}{{1,4}}:){{7}}{HEX}{{1,4}}|(?:{HEX}{{1,4}}:){{2,6}}(?::{HEX}{{1,4}}){{1,4}}|fe80::[0-9a-fA-F:]+)"
             r"(?![0-9A-Za-z:.])"),
    ("infiniband", rf"(?<![0-9A-Za-z:])(?:{HEX}{{2}}:){{8,19}}{HEX}{{2}}(?![0-9A-Za-z:])"),
    ("mac", rf"(?<![0-9A-Za-z:.-])(?:{HEX}{{2}}[:-]){{5}}{HEX}{{2}}(?![0-9A-Za-z:-])"),
    ("guid", rf"(?<![0-9a-fA-F:])(?:{HEX}{{4}}:){{3}}{HEX}{{4}}(?![0-9a-fA-F:])"),
    ("hexguid", rf"\b0x{HEX}{{16}}\b"),
    ("user", r"(?<=/home/)[A-Za-z_][\w.-]*"),
    ("ipv4", r"(?<![0-9A-Za-z.])(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![0-9A-Za-z.-])"),
)  # fmt: skip
IPV4_KEPT = re.compile(r"^(?:0\.|127\.|255\.)")


class _Pseudonyms:
    """Replaces each hexadecimal digit, decimal digit and letter of an identity by another of its kind; the same text always alike."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)

    def of(self, identity: str) -> str:
        seed = hmac.new(self.key, identity.lower().encode(), hashlib.sha256).digest()
        stream = seed
        while len(stream) < len(identity):
            stream += hashlib.sha256(stream).digest()
        hexadecimal = re.fullmatch(r"(?:0x|GPU-)?[0-9a-fA-F:.-]+", identity) is not None
        return "".join(self._other(letter, stream[place], hexadecimal) for place, letter in enumerate(identity))

    @staticmethod
    def _other(letter: str, byte: int, hexadecimal: bool) -> str:
        """Always another one: a short name must not come out as itself by chance."""
        if not (letter.isascii() and letter.isalnum()):
            return letter
        kind = "0123456789" if letter.isdigit() else "abcdef" if hexadecimal else "abcdefghijklmnopqrstuvwxyz"
        other = kind[(kind.find(letter.lower()) + 1 + byte % (len(kind) - 1)) % len(kind)]
        return other if letter.islower() else other.upper()

    def address(self, found: re.Match[str]) -> str:
        """An IPv4 address in 10/8."""
        if IPV4_KEPT.match(found[0]):
            return found[0]
        digest = hmac.new(self.key, found[0].encode(), hashlib.sha256).digest()
        return f"10.{digest[0]}.{digest[1]}.{digest[2]}"

    def ipv6(self, found: re.Match[str]) -> str:
        """An IPv6 address or a GID; what its first groups say of its kind (link-local, mapped IPv4) stays."""
        groups = found[0].split(":")
        kept = 0
        while kept < len(groups) and groups[kept].lower() in ("", "0", "0000", "fe80", "ffff"):
            kept += 1
        rest = ":".join(groups[kept:])
        return ":".join([*groups[:kept], self.of(rest)]) if rest else found[0]

    def formed(self, found: re.Match[str]) -> str:
        """An identity that was found by its form; zeros and broadcast are nobody's."""
        digits = re.sub(r"^0x|[^0-9a-fA-F]", "", found[0])
        small = found[0].startswith("0x") and int(digits, 16) < 1 << 32  # a bit mask or an offset
        if small or set(digits) <= {"0"} or set(digits.lower()) == {"f"}:
            return found[0]
        return self.of(found[0])


def redact(dump: Dump) -> Dump:
    """A copy of the dump without identities; its manifest names what was taken out."""
    pseudonyms = _Pseudonyms()
    known = {identity: _prefixed(identity, pseudonyms) for identity in _identities(dump)}
    everywhere = _finder(known)
    in_paths = _finder(name for name in known if len(name) >= 8)  # a host called "node" must not change /sys/devices/system/node

    def replacement(found: re.Match[str]) -> str:
        form = found.lastgroup
        if form == "known":
            return known[found[0]]
        if form == "ipv6":
            return pseudonyms.ipv6(found)
        if form == "ipv4":
            return pseudonyms.address(found)
        return pseudonyms.of(found[0]) if form == "user" else pseudonyms.formed(found)

    def clean(text: str) -> str:
        return everywhere.sub(replacement, text)

    return _rewritten(dump, clean, lambda path: in_paths.sub(replacement, path), pseudonyms)


def _finder(names: Iterable[str]) -> re.Pattern[str]:
    """Finds identities in one pass: each of the names as a word of its own, and everything that has the form of one."""
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    known = [("known", rf"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])")] if either else []
    return re.compile("|".join(f"(?P<{name}>{form})" for name, form in (*known, *FORMS)))


def _prefixed(identity: str, pseudonyms: _Pseudonyms) -> str:
    """`GPU-` and `0x` are no part of an identity."""
    prefix = next((start for start in ("GPU-", "MIG-", "0x", "nqn.", "uuid.", "eui.", "naa.", "nvme.") if identity.startswith(start)), "")
    return prefix + pseudonyms.of(identity.removeprefix(prefix))


def _identities(dump: Dump) -> set[str]:
    """The texts that are identities by where they stand."""
    found: set[str] = set()
    for path, text in dump.files.items():
        if isinstance(text, str) and IDENTITY_FILES.search(path):
            found.add(text.strip())
    for call in dump.nvml if isinstance(dump.nvml, list) else ():
        if call.call in IDENTITY_CALLS and isinstance(call.value, str):
            found.add(call.value)
            found.add(call.value.removeprefix("GPU-"))
    short = {name.split(".", 1)[0] for name in found if "." in name}
    return {name for name in found | short if len(name) >= 3 and name.lower() not in NO_IDENTITY and not set(name) <= set("0- .:")}


def _kept_parameters(command_line: str) -> str:
    """The kernel's command line without what is not known to be harmless."""
    return " ".join(
        word if KEPT_PARAMETERS.match(word) else word.split("=", 1)[0] + "=redacted" if "=" in word else "redacted"
        for word in command_line.split()
    )


def _rewritten(dump: Dump, clean: Callable[[str], str], clean_path: Callable[[str], str], pseudonyms: _Pseudonyms) -> Dump:
    """The dump with every text in it cleaned, also paths and names."""

    def deep(value: Any) -> Any:
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, list):
            return [deep(item) for item in value]
        if isinstance(value, dict):
            return {deep(key): deep(item) for key, item in value.items()}
        return value

    def file(path: str, text: str) -> str:
        identity = text.strip()
        if path == COMMAND_LINE:
            return _kept_parameters(text)
        if IDENTITY_FILES.search(path) and identity.lower() not in NO_IDENTITY:
            return text.replace(identity, _prefixed(identity, pseudonyms))
        return clean(text)

    def unless_failed(value: Any, change: Callable[[Any], Any]) -> Any:
        return Failure(value.reason, clean(value.detail)) if isinstance(value, Failure) else change(value)

    def call(made: Call) -> Call:
        value = deep(made.value)
        if isinstance(value, dict) and any(made.value.get("clusterUuid", ())):
            uuid = pseudonyms.of(bytes(made.value["clusterUuid"]).hex())
            value["clusterUuid"] = list(bytes.fromhex(uuid))
        return msgspec.structs.replace(made, value=value)

    redacted = Dump(msgspec.structs.replace(dump.manifest, redacted=WHAT, machine=clean(dump.manifest.machine)))
    for path, text in dump.files.items():
        redacted.files[clean_path(path)] = unless_failed(text, partial(file, path))
    redacted.blobs = {clean_path(path): value for path, value in dump.blobs.items()}
    redacted.listings = {
        clean_path(path): unless_failed(value, lambda names: [clean_path(name) for name in names]) for path, value in dump.listings.items()
    }
    redacted.links = {clean_path(path): unless_failed(value, clean_path) for path, value in dump.links.items()}
    redacted.usages = {clean_path(path): value for path, value in dump.usages.items()}
    redacted.commands = {
        tuple(map(clean, argv)): unless_failed(value, lambda said: Completed(said.exit_code, clean(said.stdout), clean(said.stderr)))
        for argv, value in dump.commands.items()
    }
    redacted.answers = {(kind, clean(address)): unless_failed(value, deep) for (kind, address), value in dump.answers.items()}
    redacted.nvml = [call(made) for made in dump.nvml] if isinstance(dump.nvml, list) else dump.nvml
    return redacted
