"""InfiniBand and RoCE ports, and the network interfaces beside them.

Read: `/sys/class/infiniband` (kernel documentation: `Documentation/ABI/stable/sysfs-class-infiniband`), `/sys/class/net`, `/proc/net/route`,
and where they are installed `devlink health` (what the driver's health reporters say), `dcb` (flow control), and for a port that is down
`mlxlink` and `ethtool`, which know why. `ibstat` has nothing that sysfs has not.
A counter that answers EINVAL or `N/A (no PMA)` is Missing, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from probe.fact import Missing, Reason, Unavailable, integer, names, parsed, text
from probe.host import Host
from probe.pcie import ADDRESS
from probe.snapshot import Counter, NetworkInterface, RdmaPort, Site

DEVICES = "/sys/class/infiniband"
INTERFACES = "/sys/class/net"
NCCL_CONF = "/etc/nccl.conf"
GIDS_READ = 16
"""A port has up to a thousand places for GIDs; the first ones are filled."""

COUNTERS = (  # those that say something of the link's health
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_xmit_discards",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped",
)  # fmt: skip
HARDWARE_COUNTERS = ("local_ack_timeout_err", "rnr_nak_retry_err", "roce_slow_restart", "out_of_sequence", "packet_seq_err")
COMPUTE_RATE_GBPS = 100
ROUTE_DEPTH = 3
LEFT_OUT = "NCCL_IB_HCA leaves it out"
ACTIVE = "ACTIVE"
LINK_UP = "LinkUp"
IFF_UP = 1


def rate(value: str) -> tuple[float, int, str]:
    """`400 Gb/sec (4X NDR)` → (400.0, 4, "NDR"); older kernels leave the speed's name out."""
    found = re.match(r"([0-9.]+) Gb/sec \(([0-9]+)X ?([A-Z0-9]*)\)", value)
    if not found:
        raise ValueError
    return float(found[1]), int(found[2]), found[3]


def state(value: str) -> str:
    """`4: ACTIVE` → `ACTIVE`."""
    return value.split(":", 1)[1].strip()


def counter(value: str) -> int:
    """A counter's value; raises ValueError for `N/A (no PMA)`."""
    return int(value)


def hca_filter(value: str) -> tuple[bool, bool, list[str]]:
    """NCCL_IB_HCA: (excluded?, exact?, names); `^` excludes, `=` is exact, else names are prefixes; each may end in `:port`."""
    exclude = value.startswith("^")
    rest = value.lstrip("^")
    exact = rest.startswith("=")
    return exclude, exact, [name.strip() for name in rest.lstrip("=").split(",") if name.strip()]


def chosen_by_nccl(value: str, device: str, port: int) -> bool:
    """Whether NCCL would use this port with this NCCL_IB_HCA."""
    exclude, exact, wanted = hca_filter(value)

    def matches(one: str) -> bool:
        name, _, number = one.partition(":")
        if number and number != str(port):
            return False
        return device == name if exact else device.startswith(name)

    return any(map(matches, wanted)) != exclude


def interfaces(host: Host) -> list[NetworkInterface]:
    """The interfaces that are hardware, and bonds."""
    routes = text(host, "/proc/net/route")
    default = (
        {line.split()[0] for line in routes.splitlines()[1:] if line.split()[1:2] == ["00000000"]} if isinstance(routes, str) else set()
    )
    for _ in range(ROUTE_DEPTH):  # from a VLAN or a bridge down to the hardware
        default |= {
            entry.removeprefix("lower_") for name in default for entry in names(host, f"{INTERFACES}/{name}") if entry.startswith("lower_")
        }
    address_only = Missing("absent", "no bond", INTERFACES)
    found = []
    for name in names(host, INTERFACES):
        folder = f"{INTERFACES}/{name}"
        address = pci_address(host, folder)
        members = text(host, f"{folder}/bonding/slaves") if isinstance(address, Missing) else address_only
        if isinstance(address, Missing) and isinstance(members, Missing):
            continue
        found.append(
            NetworkInterface(
                name=name,
                state=text(host, f"{folder}/operstate"),
                switched_on=parsed(text(host, f"{folder}/flags"), f"{folder}/flags", lambda value: bool(int(value, 16) & IFF_UP)),
                speed_mbps=integer(host, f"{folder}/speed"),
                mtu=integer(host, f"{folder}/mtu"),
                carrier_changes=integer(host, f"{folder}/carrier_changes"),
                pci_address=address,
                members=members.split() if isinstance(members, str) else [],
                default_route=name in default,
            )
        )
    return found


def pci_address(host: Host, folder: str) -> str | Missing:
    """The PCI function behind a class device, from its `device` link."""
    try:
        last = host.link(f"{folder}/device").rsplit("/", 1)[-1]
    except Unavailable as error:
        return Missing(error.reason, error.detail, f"{folder}/device")
    return last if ADDRESS.fullmatch(last) else Missing("absent", "no PCI device", f"{folder}/device")


def probe(host: Host, site: Site) -> tuple[list[RdmaPort], list[NetworkInterface]]:
    """The RDMA ports with their roles, and the interfaces."""
    nets = interfaces(host)
    devices = names(host, DEVICES)
    health = _health(host) if devices else {}
    ports = [port for device in devices for port in _ports(host, device, nets, health)]
    hca = site.nccl_ib_hca or _nccl_ib_hca(host)
    return [_with_role(port, ports, nets, hca) for port in ports], nets


def _nccl_ib_hca(host: Host) -> str | None:
    """NCCL_IB_HCA as `/etc/nccl.conf` sets it for every job."""
    said = text(host, NCCL_CONF)
    found = re.search(r"^\s*NCCL_IB_HCA\s*=\s*(\S+)", said, re.MULTILINE) if isinstance(said, str) else None
    return found[1] if found else None


def _health(host: Host) -> dict[str, list[str]] | Missing:
    try:
        said = host.run(["devlink", "-j", "health", "show"])
    except Unavailable as error:
        reason: Reason = "not_supported" if error.reason == "absent" else error.reason
        return Missing(reason, error.detail, "devlink health")
    return parsed(said.stdout, "devlink health", reporters_in_error)


def reporters_in_error(output: str) -> dict[str, list[str]]:
    """The health reporters in state `error`, by PCI address; a function whose reporters are all healthy has an empty list.

    `{"health": {"pci/0000:14:00.0": [{"reporter": "fw", "state": "healthy", "error": 0, "recover": 0}]}}`; those of a port are
    under `pci/0000:14:00.0/1`.
    """
    import json

    try:
        handles = json.loads(output)["health"]
        found: dict[str, list[str]] = {}
        for handle, reporters in handles.items():
            address = ADDRESS.search(handle)
            if address:
                bad = [str(one["reporter"]) for one in reporters if one["state"] == "error"]
                found.setdefault(address[0], []).extend(bad)
    except (RecursionError, TypeError, AttributeError):
        raise ValueError from None
    return found


def _why_down(host: Host, device: str, number: int, nets: list[NetworkInterface]) -> str | Missing:
    """Why a port is down, in the words of its firmware or its driver."""
    asked: list[tuple[list[str], Callable[[str], str]]] = [
        (["mlxlink", "-d", device, "-p", str(number), "--json"], mlxlink_recommendation),
        *((["ethtool", net.name], ethtool_link) for net in nets[:1] if not net.name.startswith("-")),
    ]
    for argv, read in asked:
        try:
            said = parsed(host.run(argv).stdout, argv[0], read)
        except Unavailable:
            continue
        if isinstance(said, str):
            return f"{argv[0]}: {said}"
    return Missing("not_supported", "neither mlxlink nor ethtool tells", device)


def mlxlink_recommendation(output: str) -> str:
    """What mlxlink advises: `{"result": {"output": {"Troubleshooting Info": {"Recommendation": "..."}}}}`. Raises ValueError for none."""
    import json

    try:
        said = json.loads(output)["result"]["output"]["Troubleshooting Info"]["Recommendation"]
    except (RecursionError, TypeError):
        raise ValueError from None
    if not isinstance(said, str) or not said.strip(" ."):
        raise ValueError
    return said.strip(" .")


def ethtool_link(output: str) -> str:
    """`Link detected: no (No cable)` → `No cable`; older kernels give no reason, which raises ValueError."""
    found = re.search(r"^\s*Link detected: no \((.+)\)", output, re.MULTILINE)
    if not found:
        raise ValueError
    return found[1]


def _ports(host: Host, device: str, nets: list[NetworkInterface], health: dict[str, list[str]] | Missing) -> list[RdmaPort]:
    folder = f"{DEVICES}/{device}"
    address = pci_address(host, folder)
    event = text(host, f"{folder}/device/uevent")
    driver = re.search(r"^DRIVER=(\S+)", event, re.MULTILINE) if isinstance(event, str) else None
    try:
        virtual = bool(host.link(f"{folder}/device/physfn"))
    except Unavailable:
        virtual = False
    of_device = {
        "device": device,
        "pci_address": address,
        "device_name": text(host, f"{folder}/hca_type"),
        "firmware_version": _stated(text(host, f"{folder}/fw_ver"), f"{folder}/fw_ver"),
        "board_id": text(host, f"{folder}/board_id"),
        "driver": driver[1] if driver else Missing("absent", "no driver is named", f"{folder}/device/uevent"),
        "virtual_function": virtual,
        "numa_node": integer(host, f"{folder}/device/numa_node"),
        "health_errors": health
        if isinstance(health, Missing)
        else health.get(str(address), Missing("not_supported", "the driver has no health reporters", "devlink health")),
    }
    return [
        _port(host, f"{folder}/ports/{number}", int(number), of_device, nets)
        for number in names(host, f"{folder}/ports")
        if number.isdigit()
    ]


def _stated(value: str | Missing, source: str) -> str | Missing:
    return Missing("not_supported", "empty", source) if value == "" else value


def _port(host: Host, folder: str, number: int, of_device: dict[str, object], nets: list[NetworkInterface]) -> RdmaPort:
    line = parsed(text(host, f"{folder}/rate"), f"{folder}/rate", rate)
    gigabits, lanes, speed = line if not isinstance(line, Missing) else (line, line, line)
    types, devices, link_local = _gids(host, folder)
    own = [net for net in nets if net.name in devices or (net.pci_address == of_device["pci_address"] and isinstance(net.pci_address, str))]
    now = parsed(text(host, f"{folder}/state"), f"{folder}/state", state)
    return RdmaPort(
        **of_device,  # type: ignore[arg-type]
        port=number,
        state=now,
        down_reason=_why_down(host, str(of_device["device"]), number, own)
        if now == "DOWN"
        else Missing("not_supported", "the port is not down", folder),
        physical_state=parsed(text(host, f"{folder}/phys_state"), f"{folder}/phys_state", state),
        rate_gbps=gigabits,
        lanes=lanes,
        speed_name=speed or Missing("not_supported", "the kernel does not name it", f"{folder}/rate"),
        link_layer=text(host, f"{folder}/link_layer"),
        lid=integer(host, f"{folder}/lid"),
        sm_lid=integer(host, f"{folder}/sm_lid"),
        gid_types=types,
        link_local_only=link_local,
        interfaces=[net.name for net in own],
        mtu=next((net.mtu for net in own), Missing("absent", "no network interface", folder)),
        counters=[
            Counter(name=name, value=parsed(text(host, f"{folder}/{kind}/{name}"), f"{folder}/{kind}/{name}", counter))
            for kind, wanted in (("counters", COUNTERS), ("hw_counters", HARDWARE_COUNTERS))
            for name in wanted
        ],
        ecn_enabled=_ecn(host, own),
        pfc_priorities=_pfc(host, own),
        role="",
        role_reason="",
    )


def _gids(host: Host, folder: str) -> tuple[list[str] | Missing, set[str], bool]:
    """The types of the port's GIDs (`IB/RoCE v1`, `RoCE v2`), the interfaces they belong to, and whether all are link-local (fe80)."""
    types: list[str] = []
    devices: set[str] = set()
    routed = False
    empty = 0
    for index in range(GIDS_READ):
        gid = text(host, f"{folder}/gids/{index}")
        if isinstance(gid, Missing):
            if index == 0:
                return gid, devices, False
            break
        if not gid.replace(":", "").strip("0"):
            empty += 1
            if empty > 1:
                break
            continue
        kind = text(host, f"{folder}/gid_attrs/types/{index}")
        device = text(host, f"{folder}/gid_attrs/ndevs/{index}")
        types.append(kind if isinstance(kind, str) else "not named")
        if isinstance(device, str):
            devices.add(device)
        routed = routed or not gid.startswith("fe80")
    return sorted(set(types)), devices, bool(types) and not routed


def _ecn(host: Host, nets: list[NetworkInterface]) -> bool | Missing:
    """Whether the NIC reacts to congestion marks (ECN) on any priority: mlx5's `ecn/roce_rp/enable`."""
    if not nets:
        return Missing("absent", "no network interface", INTERFACES)
    folder = f"{INTERFACES}/{nets[0].name}/ecn/roce_rp/enable"
    values = [integer(host, f"{folder}/{priority}") for priority in names(host, folder)]
    known = [value for value in values if not isinstance(value, Missing)]
    return any(known) if known else Missing("not_supported", "the driver does not tell", folder)


def _pfc(host: Host, nets: list[NetworkInterface]) -> list[int] | Missing:
    """The priorities with flow control, from `dcb -j pfc show dev NAME` (iproute2)."""
    if not nets:
        return Missing("absent", "no network interface", INTERFACES)
    try:
        said = host.run(["dcb", "-j", "pfc", "show", "dev", nets[0].name])
    except Unavailable as error:
        return Missing(error.reason, error.detail, "dcb pfc show")
    return parsed(said.stdout, "dcb pfc show", pfc_priorities)


def pfc_priorities(output: str) -> list[int]:
    """`{"prio_pfc": [false, false, false, true, ...]}`, also wrapped in a list or with names 0..7."""
    import json

    try:
        said = json.loads(output)
    except RecursionError:
        raise ValueError from None
    said = said[0] if isinstance(said, list) else said
    flags = said["prio_pfc"] if isinstance(said, dict) else None
    if isinstance(flags, dict):
        return sorted(int(name) for name, on in flags.items() if on in (True, "on", 1))
    if not isinstance(flags, list):
        raise ValueError
    return [place for place, on in enumerate(flags) if on in (True, "on", 1)]


def _with_role(port: RdmaPort, ports: list[RdmaPort], nets: list[NetworkInterface], hca: str | None) -> RdmaPort:
    import msgspec

    role, why = role_of(port, ports, nets, hca)
    return msgspec.structs.replace(port, role=role, role_reason=why)


def role_of(port: RdmaPort, ports: list[RdmaPort], nets: list[NetworkInterface], hca: str | None) -> tuple[str, str]:
    """What a port is for, and why we think so.

    A port is for compute if NCCL_IB_HCA names it (or lets it be used, and it is up), else if it is none of these: a virtual function, software
    RDMA, the way to the rest of the world (default route), a bond of Ethernet (storage), one that is down and unlike the others, or slower
    than the node's fast ones.
    """
    if hca:
        exclude, _, named = hca_filter(hca)
        if not chosen_by_nccl(hca, port.device, port.port):
            return "unused", LEFT_OUT
        if not exclude and {port.device, f"{port.device}:{port.port}"} & set(named):
            return "compute", "NCCL_IB_HCA names it"
        if port.state == ACTIVE:  # a prefix or an exclusion promises nothing of a port that is down: NCCL skips it
            return "compute", "NCCL_IB_HCA lets NCCL use it"
    if port.virtual_function:
        return "unused", "virtual function"
    if port.device.startswith(("rxe", "siw")):
        return "unused", "software RDMA"
    own = [net for net in nets if net.name in port.interfaces]
    bonds = [net for net in nets if set(net.members) & set(port.interfaces)]
    if port.link_layer == "Ethernet":  # what IP does over InfiniBand does not touch its verbs
        if any(net.default_route for net in (*own, *bonds)):
            return "management", "carries the default route"
        if "bond" in port.device or any(net.members for net in own) or bonds:
            return "storage", "part of a bond"
    fastest = max(
        (
            other.rate_gbps
            for other in ports
            if other.physical_state == LINK_UP and isinstance(other.rate_gbps, float) and not other.virtual_function
        ),
        default=0.0,
    )
    alike = [other for other in ports if other.device_name == port.device_name and other.board_id == port.board_id and other is not port]
    if port.state != ACTIVE and port.physical_state != LINK_UP:
        if port.link_layer == "Ethernet":  # without a carrier drivers say Disabled; the interface tells whether somebody wants it
            if own and all(net.switched_on is False for net in own):
                return "unused", "its interface is switched off"
        elif port.physical_state in ("Disabled", "Sleep"):
            return "unused", "disabled"
        alike = [other for other in alike if _place(other) == _place(port)]
        working = [other for other in alike if other.state == ACTIVE]
        fabric_up = any(other.physical_state == LINK_UP and other.link_layer == port.link_layer for other in ports)
        if _has_been_up(port, own) and (working or not fabric_up):
            return "compute", "down, and was up since boot"
        if working and len(working) >= len(alike) / 2 and not isinstance(port.board_id, Missing):
            return "compute", "down, while its siblings are up"
        return "unused", "no cable"
    speed = port.rate_gbps if isinstance(port.rate_gbps, float) else 0.0
    if speed < min(fastest, COMPUTE_RATE_GBPS) and not any(
        isinstance(other.rate_gbps, float) and other.rate_gbps > speed for other in alike
    ):
        return "management", f"{speed:g} Gb/s, the fast ports have {fastest:g}"
    layer = port.link_layer
    infiniband = any(other.link_layer == "InfiniBand" and other.physical_state == LINK_UP for other in ports)
    if layer == "Ethernet" and infiniband:
        return "storage", "Ethernet on a node whose fabric is InfiniBand"
    return "compute", "fast port"


def _place(port: RdmaPort) -> tuple[str, int]:
    """Which port of its card it is: many cards have their second ports empty."""
    return ("" if isinstance(port.pci_address, Missing) else port.pci_address.rsplit(".", 1)[-1], port.port)


def _has_been_up(port: RdmaPort, own: list[NetworkInterface]) -> bool:
    """Whether a port that is down has had its link since boot: it has lost one, or its carrier has changed."""
    lost = any(counter.name == "link_downed" and isinstance(counter.value, int) and counter.value > 0 for counter in port.counters)
    if port.link_layer == "Ethernet":
        lost = any(isinstance(net.carrier_changes, int) and net.carrier_changes > 1 for net in own)
    return lost and not isinstance(port.board_id, Missing)
