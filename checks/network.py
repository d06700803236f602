"""InfiniBand and RoCE: the ports that carry the training traffic, and their place beside the GPUs."""

from __future__ import annotations

from collections import Counter

from checks.finding import Verdict, amount, check, failed, known, not_applicable, or_none, passed, unknown, warned
from checks.node import Node, each_compute_port, name_of, once, port_name
from probe.fact import Missing
from probe.rdma import LEFT_OUT
from probe.snapshot import PciDevice, RdmaPort

ENCODING = 128 / 130
"""PCIe 3 to 5 send 130 bits for 128; generation 6 has no such loss, and is taken alike."""
RATE_LIMITS = {  # averages a second since boot that tell of a bad link
    "link_error_recovery": (5 / 60, "link recoveries"),
    "port_rcv_errors": (10.0, "receive errors"),
    "local_ack_timeout_err": (1.0, "acknowledge timeouts"),
    "port_xmit_discards": (100.0, "discarded packets"),
    "roce_slow_restart": (10.0, "RoCE slow restarts"),
}
TOTALS = {  # any of these since boot is worth a look
    "excessive_buffer_overrun_errors": "buffer overruns",
    "local_link_integrity_errors": "link integrity errors",
    "rnr_nak_retry_err": "receiver-not-ready retries exceeded",
}
MIN_UPTIME_SECONDS = 600
CABLE_FIX = "reseat or change the cable and its module; look at the switch's end; sudo mlxlink -d DEVICE -c -e shows the link's health"


@check(
    "network.port_state",
    component="network",
    title="Compute port up",
    per=each_compute_port,
    weight=3,
    source="InfiniBand Architecture Specification, PortState and PortPhysicalState; kernel documentation, sysfs-class-infiniband",
)
def port_state(port: RdmaPort, node: Node) -> Verdict:
    """A port that carries training traffic must be ACTIVE, with its link up.

    Read: state and phys_state in `/sys/class/infiniband`. Which ports are for compute: those that NCCL_IB_HCA names (configuration, or
    `/etc/nccl.conf`), else every fast port that is no virtual function, no part of a bond and not the default route; one that is down counts
    if its siblings are up. For one that is down `mlxlink` and `ethtool` are asked for the reason. INIT means that no subnet manager has seen
    the port: it warns.
    """
    state = known(port.state)
    evidence = [f"state {state}, physical {or_none(port.physical_state)}, {or_none(port.link_layer)}, role: {port.role_reason}"]
    if state == "ACTIVE":
        return passed("active", evidence=evidence)
    if state in ("INIT", "ARMED"):
        return warned(
            f"{state}: the link is up, and no subnet manager has set it up",
            evidence=evidence,
            fix="start a subnet manager on the fabric (opensm; on two nodes cabled directly one of them runs it, for each link)",
        )
    why = or_none(port.down_reason)
    return failed(
        f"{state} ({or_none(port.physical_state) or 'physical state not known'}): {why or port.role_reason}",
        evidence=evidence,
        fix=CABLE_FIX,
    )


@check(
    "network.nccl_hca",
    component="network",
    title="NCCL_IB_HCA matches a port",
    per=once,
    weight=2,
    source="NCCL documentation, NCCL_IB_HCA: a list of names or prefixes, `^` excludes, `=` is exact",
)
def nccl_hca(_: Node, node: Node) -> Verdict:
    """Where NCCL_IB_HCA is set (configuration, or `/etc/nccl.conf`), it must leave NCCL a port: with none NCCL falls back to sockets, unseen."""
    ports = known(node.snapshot.rdma)
    if not ports:
        return not_applicable("no RDMA port")
    if all(port.role_reason == LEFT_OUT for port in ports):
        return warned(
            f"it matches none of {', '.join(port_name(port) for port in ports[:4])}{', ...' if len(ports) > 4 else ''}",
            evidence=[f"ports: {', '.join(port_name(port) for port in ports)}"],
            fix="correct NCCL_IB_HCA in /etc/nccl.conf, or nccl_ib_hca in the configuration",
        )
    return passed(f"{amount(len(node.compute_ports), 'compute port')}")


@check(
    "network.port_rate",
    component="network",
    title="Compute port at full rate",
    per=each_compute_port,
    weight=3,
    source="kernel, drivers/infiniband/core/sysfs.c (rate); the catalog's port rates; the node's other ports",
)
def port_rate(port: RdmaPort, node: Node) -> Verdict:
    """A compute port must run as fast as its siblings, and should run as fast as its adapter can.

    Read: `rate` (`400 Gb/sec (4X NDR)`). Slower than another port of the same kind fails; all alike below the adapter's rate warns: the
    switch or the cables may be of an older generation, by design.
    """
    if port.state != "ACTIVE":
        return not_applicable("the port is not up")
    rate = known(port.rate_gbps)
    alike = [other for other in node.compute_ports if other.device_name == port.device_name and other.board_id == port.board_id]
    best = max((other.rate_gbps for other in alike if isinstance(other.rate_gbps, float) and other.state == "ACTIVE"), default=rate)
    name = or_none(port.speed_name) or ""
    evidence = [f"rate {rate:g} Gb/s ({or_none(port.lanes)}X {name}), siblings {best:g} Gb/s"]
    if rate < best:
        return failed(f"{rate:g} Gb/s, its siblings {best:g}", measured=rate, required=best, unit="Gb/s", evidence=evidence, fix=CABLE_FIX)
    model = node.nic_model(port)
    if model is not None and rate < model.port_gbps and name != "SDR":  # a kernel that does not know a speed's name says SDR
        return warned(
            f"{rate:g} Gb/s on every such port, the adapter can {model.port_gbps:g}",
            measured=rate,
            required=model.port_gbps,
            unit="Gb/s",
            evidence=evidence,
            fix="if the switch and the cables are of the adapter's generation: look for a forced speed on the switch, or a split cable",
        )
    return passed(f"{rate:g} Gb/s{f' {name}' if name else ''}", measured=rate, required=best, unit="Gb/s", evidence=evidence)


@check(
    "network.gids",
    component="network",
    title="RoCE v2 address there",
    per=each_compute_port,
    weight=2,
    source="NCCL documentation, NCCL_IB_GID_INDEX; kernel, gid_attrs/types",
)
def gids(port: RdmaPort, node: Node) -> Verdict:
    """An Ethernet port needs a RoCE v2 GID: without one NCCL cannot route.

    Read: `gids` and `gid_attrs/types`. A missing one means that the port does RoCE v1 alone, or its interface is down. Where there is only the
    link-local one, which the kernel makes of the MAC, the interface has no IP address: this warns.
    """
    if port.driver == "efa":
        return not_applicable("EFA has addresses of its own")
    if port.link_layer != "Ethernet":
        return not_applicable("InfiniBand")
    types = known(port.gid_types)
    evidence = [f"GID types: {', '.join(types) or 'none'}; interfaces: {', '.join(port.interfaces) or 'none'}"]
    if "RoCE v2" in types and port.link_local_only:
        return warned(
            "only the link-local address: NCCL cannot leave the subnet",
            evidence=evidence,
            fix=f"give its interface an IP address ({', '.join(port.interfaces) or 'ip -br link'})",
        )
    if "RoCE v2" in types:
        return passed(", ".join(types), evidence=evidence)
    return failed(
        "no RoCE v2 GID",
        evidence=evidence,
        fix=f"give its interface an IP address ({', '.join(port.interfaces) or 'ip -br link'}), and RoCE mode 2 (cma_roce_mode)",
    )


@check(
    "network.roce_lossless",
    component="network",
    title="RoCE without loss",
    per=each_compute_port,
    weight=1,
    source="NVIDIA, RoCE configuration: ECN or PFC; an MTU of 4200 carries RDMA's largest packet of 4096",
)
def roce_lossless(port: RdmaPort, node: Node) -> Verdict:
    """A RoCE port should react to congestion (ECN) or be flow-controlled (PFC), and carry jumbo frames.

    Read: `ecn/roce_rp/enable` (mlx5), `dcb pfc show`, the interface's MTU. Without them packets are lost under load, and RDMA is slow at
    recovering from loss.
    """
    if port.driver == "efa":
        return not_applicable("EFA does not use RoCE")
    if port.link_layer != "Ethernet":
        return not_applicable("InfiniBand")
    mtu = known(port.mtu)
    ecn, pfc = or_none(port.ecn_enabled), or_none(port.pfc_priorities)
    evidence = [f"MTU {mtu}, ECN {'not known' if ecn is None else ecn}, PFC priorities {'not known' if pfc is None else pfc}"]
    if mtu < node.thresholds.roce_mtu_bytes:
        return warned(
            f"MTU {mtu}",
            measured=mtu,
            required=node.thresholds.roce_mtu_bytes,
            unit="bytes",
            evidence=evidence,
            fix=f"ip link set {port.interfaces[0] if port.interfaces else 'DEV'} mtu 9000, on every switch port too",
        )
    if ecn or pfc:
        return passed(f"MTU {mtu}, {'ECN' if ecn else f'PFC on {pfc}'}", evidence=evidence)
    if ecn is None and pfc is None:
        return unknown(port.ecn_enabled if isinstance(port.ecn_enabled, Missing) else Missing("not_supported", "", "ECN and PFC"))
    return warned(
        "neither ECN nor PFC is on",
        evidence=evidence,
        fix="mlnx_qos or dcb: trust DSCP, PFC on the RoCE priority, ECN on it; the same on the switch",
    )


@check(
    "network.errors",
    component="network",
    title="Few errors on the link",
    per=each_compute_port,
    weight=2,
    source="IBTA: 120 symbol errors an hour are a bit error rate of 1e-12; the other limits are those of NVIDIA's NVSentinel",
)
def errors(port: RdmaPort, node: Node) -> Verdict:
    """Errors an hour, on average since boot, must stay below the limits: a worn cable shows here long before the link drops.

    Read: `counters` and `hw_counters`. More than 120 symbol errors an hour fail; recoveries, receive errors, timeouts, discards and slow
    restarts above their rates warn, and so do more than 10 link flaps. A counter that the port does not have is left out.
    """
    uptime = known(node.snapshot.system.uptime_seconds)
    counted = {one.name: one.value for one in port.counters if isinstance(one.value, int)}
    if not counted:
        return unknown(
            next((one.value for one in port.counters if isinstance(one.value, Missing)), Missing("absent", "no counters", port.device))
        )
    shown = [f"{name} {value}" for name, value in counted.items() if value]
    evidence = [f"since boot ({uptime / 3600:.1f} h): {', '.join(shown) or 'no errors'}"]
    if uptime < MIN_UPTIME_SECONDS:
        return passed(f"{uptime:.0f} s after boot it is too early to tell a rate", evidence=evidence)
    symbols = counted.get("symbol_error", 0) / (uptime / 3600)
    if symbols > node.thresholds.symbol_errors_an_hour:
        return failed(
            f"{symbols:.0f} symbol errors an hour",
            measured=symbols,
            required=node.thresholds.symbol_errors_an_hour,
            unit="1/h",
            evidence=evidence,
            fix=CABLE_FIX,
        )
    for name, (limit, words) in RATE_LIMITS.items():
        rate = counted.get(name, 0) / uptime
        if rate > limit:
            return warned(f"{rate:.2g} {words} a second", measured=rate, required=limit, unit="1/s", evidence=evidence, fix=CABLE_FIX)
    flaps = counted.get("link_downed", 0)
    if flaps > node.thresholds.link_flaps:
        return warned(
            f"the link went down {amount(flaps, 'time')} since boot",
            measured=flaps,
            required=node.thresholds.link_flaps,
            unit="times",
            evidence=evidence,
            fix=CABLE_FIX,
        )
    for name, words in TOTALS.items():
        if counted.get(name):
            return warned(f"{counted[name]} {words} since boot", measured=counted[name], required=0, evidence=evidence, fix=CABLE_FIX)
    return passed("none worth a word" if shown else "none", evidence=evidence)


@check(
    "network.health",
    component="network",
    title="Adapter's firmware healthy",
    per=each_compute_port,
    weight=2,
    source="kernel documentation, devlink-health and mlx5: reporters fw (syndromes) and fw_fatal",
    not_supported="devlink is not installed, or the driver has no health reporters",
)
def health(port: RdmaPort, node: Node) -> Verdict:
    """None of the driver's health reporters may be in error: `fw_fatal` there means that the adapter has stopped.

    Read: `devlink health show`. Any other reporter in error (fw, tx, rx) warns: it has seen a fault and not recovered from it.
    """
    bad = known(port.health_errors)
    if not bad:
        return passed("every reporter healthy")
    words = f"{', '.join(bad)} in error"
    evidence = [f"devlink health show pci/{or_none(port.pci_address)}: {words}"]
    fix = f"devlink health diagnose pci/{or_none(port.pci_address)} reporter {bad[0]}; then recover, or reset the adapter; update its firmware"
    return failed(words, evidence=evidence, fix=fix) if "fw_fatal" in bad else warned(words, evidence=evidence, fix=fix)


@check(
    "network.slot",
    component="network",
    title="PCIe slot carries the port's rate",
    per=each_compute_port,
    weight=2,
    source="PCI Express: lanes × GT/s × 128/130 in each direction",
    not_supported="not a PCI Express device",
)
def slot(port: RdmaPort, node: Node) -> Verdict:
    """The PCIe link of the adapter must carry at least the rate of its port: 400 Gb/s need generation 5 with 16 lanes.

    Read: current_link_width, and the highest speed of the link's both ends.
    """
    address = known(port.pci_address)
    device = node.pci.get(address)
    if device is None or node.is_virtual:
        return not_applicable("a virtual machine does not show the real slot" if node.is_virtual else "not in the PCI tree")
    lanes = known(device.link.width_lanes)
    parent = node.pci.get(device.path[-1]) if device.path else None
    speeds = [known(device.link.speed_max_gtps), *([or_none(parent.link.speed_max_gtps)] if parent else [])]
    speed = min(one for one in speeds if one is not None)
    carries = lanes * speed * ENCODING
    rate = known(port.rate_gbps)
    evidence = [f"{address}: x{lanes} at {speed:g} GT/s carries {carries:.0f} Gb/s, the port has {rate:g} Gb/s"]
    if carries < rate:
        return warned(
            f"the slot carries {carries:.0f} Gb/s, the port {rate:g}",
            measured=carries,
            required=rate,
            unit="Gb/s",
            evidence=evidence,
            fix="move the adapter to a slot of its own generation with 16 lanes",
        )
    return passed(f"{carries:.0f} Gb/s for {rate:g}", measured=carries, required=rate, unit="Gb/s", evidence=evidence)


def nearness(gpu: PciDevice, nic: PciDevice) -> str:
    """How a NIC is placed from a GPU: behind the same `switch`, on the same `socket`, or `far`."""
    if gpu.root and gpu.root == nic.root and len(gpu.path) > 1 and gpu.path[:2] == nic.path[:2]:
        return "switch"
    if isinstance(gpu.numa_node, int) and gpu.numa_node >= 0 and gpu.numa_node == nic.numa_node:
        return "socket"
    return "far"


@check(
    "network.affinity",
    component="network",
    title="Each GPU has a NIC near it",
    per=once,
    weight=2,
    source="NVIDIA GPUDirect RDMA: best behind one PCIe switch; then on one socket",
)
def affinity(_: Node, node: Node) -> Verdict:
    """Every GPU should have a compute NIC behind the same PCIe switch, or at least on its socket.

    Read: the PCI tree. Traffic between sockets halves the rate of GPUDirect RDMA, or worse.
    """
    known(node.snapshot.rdma)
    nics = [node.pci[port.pci_address] for port in node.compute_ports if isinstance(port.pci_address, str) and port.pci_address in node.pci]
    gpus = [(name_of(gpu), device) for gpu in node.gpus if (device := node.device_of(gpu)) is not None]
    if not nics or len(gpus) < 2:
        return not_applicable("no compute NIC" if not nics else "fewer than two GPUs")
    if node.is_virtual:
        return not_applicable("a virtual machine does not show the real tree")
    order = ("switch", "socket", "far")
    best = {name: min((nearness(gpu, nic) for nic in nics), key=order.index) for name, gpu in gpus}
    counted = Counter(best.values())
    evidence = [f"{name}: {where}" for name, where in best.items()]
    far = [name for name, where in best.items() if where == "far"]
    if far:
        return warned(
            f"{', '.join(far)}: no compute NIC on the same socket",
            evidence=evidence,
            fix="move a NIC to that socket's slots, or name near ones in NCCL_IB_HCA",
        )
    return passed(
        ", ".join(
            f"{count} behind the same {where}" if where == "switch" else f"{count} on the same socket" for where, count in counted.items()
        ),
        evidence=evidence,
    )


@check(
    "network.firmware",
    component="network",
    title="Compute NICs of one firmware",
    per=once,
    weight=1,
    source="the majority of the node's own adapters of the same board",
)
def firmware(_: Node, node: Node) -> Verdict:
    """Adapters of the same board should have the same firmware: two versions behave as two adapters."""
    known(node.snapshot.rdma)
    boards: dict[str, dict[str, str]] = {}
    for port in node.compute_ports:
        if isinstance(port.board_id, str) and isinstance(port.firmware_version, str):
            boards.setdefault(port.board_id, {})[port.device] = port.firmware_version
    if not boards:
        return not_applicable("no compute NIC")
    odd = []
    for versions in boards.values():
        usual = Counter(versions.values()).most_common(1)[0][0]
        odd += [f"{device}: {version}, the others {usual}" for device, version in versions.items() if version != usual]
    if odd:
        return warned(
            "; ".join(odd[:3]), evidence=odd, fix="sudo mlxfwmanager --online-query-psid, or the vendor's bundle: bring all to one version"
        )
    return passed(", ".join(sorted({version for versions in boards.values() for version in versions.values()})))


@check(
    "network.gpudirect",
    component="network",
    title="GPUDirect RDMA possible",
    per=once,
    weight=2,
    source="NVIDIA GPUDirect RDMA: nvidia_peermem, or open kernel modules with dma-buf (Linux 5.12)",
)
def gpudirect(_: Node, node: Node) -> Verdict:
    """NICs must be able to read GPU memory directly: through the module nvidia_peermem, or dma-buf with the open kernel modules.

    Read: `/proc/modules`, `/proc/driver/nvidia/version`, the kernel's release. Without it everything goes through host memory.
    """
    known(node.snapshot.rdma)
    if not node.compute_ports or not node.pci_gpus:
        return not_applicable("no compute NIC, or no GPU")
    modules = known(node.snapshot.software.modules)
    peermem = [name for name in ("nvidia_peermem", "nv_peer_mem", "efa_nv_peermem") if name in modules]
    if peermem:
        return passed(peermem[0])
    if known(node.snapshot.software.dmabuf_supported):
        return passed("dma-buf, with the open kernel modules")
    return warned(
        "neither nvidia_peermem nor dma-buf",
        evidence=[f"modules: {', '.join(modules)}"],
        fix="sudo modprobe nvidia_peermem (and /etc/modules-load.d), or install the open kernel modules",
    )


@check(
    "network.acs",
    component="network",
    title="Peer-to-peer not sent through the root (ACS off)",
    per=once,
    weight=1,
    source="NCCL troubleshooting, PCI Access Control Services; PCI Express, 7.7.8",
)
def acs(_: Node, node: Node) -> Verdict:
    """On bare metal the bridges above GPUs and NICs should not redirect peer-to-peer traffic to the root complex.

    Read: the ACS capability in the configuration space of the bridges (root's to read). In a virtual machine the host needs ACS.
    """
    if node.is_virtual:
        return not_applicable("a virtual machine: the host needs ACS")
    if not node.compute_ports or not node.pci_gpus:
        return not_applicable("no compute NIC, or no GPU")
    above = {bridge for device in node.pci.values() if device.role in ("gpu", "nic") for bridge in device.path}
    bridges = {address: node.pci[address].acs_redirect for address in above if address in node.pci}
    redirecting = sorted(address for address, on in bridges.items() if on is True)
    if redirecting:
        return warned(
            f"{len(redirecting)} of {len(bridges)} bridges redirect peer-to-peer traffic",
            measured=len(redirecting),
            unit="bridges",
            evidence=[f"ACS redirect on: {', '.join(redirecting[:8])}"],
            fix="switch ACS off in the BIOS, or at boot: sudo setpci -s BRIDGE ECAP_ACS+0x6.w=0000 for each",
        )
    for on in bridges.values():
        known(on)
    return passed(f"off on {len(bridges)} bridges")


CHECKS = [port_state, nccl_hca, port_rate, gids, roce_lossless, errors, health, slot, affinity, firmware, gpudirect, acs]
