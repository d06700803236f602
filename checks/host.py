"""The machine around the GPUs: processors, NUMA, memory and limits."""

from __future__ import annotations

from collections import Counter

from checks.finding import Verdict, amount, check, failed, known, not_applicable, or_none, passed, warned
from checks.node import Node, once
from probe.fact import Missing
from probe.memory import UNLIMITED


def usable_memory(node: Node) -> int | Missing:
    """RAM that a run can use: what the machine has, less what is set aside as huge pages, within the container's limit."""
    memory = node.snapshot.memory
    if isinstance(memory.total_bytes, Missing):
        return memory.total_bytes
    usable = memory.total_bytes - (or_none(memory.hugepages_total) or 0) * (or_none(memory.hugepage_size_bytes) or 0)
    limit = or_none(memory.cgroup_limit_bytes)
    usable = max(0, usable)
    return usable if limit is None or limit == UNLIMITED else min(usable, limit)


@check(
    "cpu.governor",
    component="cpu",
    title="Processors at full clock",
    per=once,
    weight=1,
    source="kernel documentation, cpufreq; intel_pstate and amd_pstate: energy_performance_preference",
)
def governor(_: Node, node: Node) -> Verdict:
    """The frequency governor should be `performance`, or with intel_pstate and amd_pstate the energy preference.

    Read: scaling_governor and energy_performance_preference of every policy. Others let the clock sink between kernel launches and slow down
    data loading. A virtual machine has no governor.
    """
    governors = node.snapshot.cpu.governors
    if isinstance(governors, Missing) and governors.reason == "absent":
        return not_applicable("the clock is not the system's to set (virtual machine or firmware)")
    in_use = known(governors)
    preferences = or_none(node.snapshot.cpu.energy_preferences) or []
    evidence = [f"scaling_governor: {', '.join(in_use)}", f"energy_performance_preference: {', '.join(preferences) or 'not read'}"]
    if in_use == ["performance"]:
        return passed("performance", evidence=evidence)
    if preferences == ["performance"]:
        return passed(f"{', '.join(in_use)}, energy preference performance", evidence=evidence)
    return warned(
        ", ".join(in_use), evidence=evidence, fix="sudo cpupower frequency-set -g performance (or the tuned profile throughput-performance)"
    )


@check(
    "cpu.numa_balance",
    component="cpu",
    title="GPUs spread evenly over the sockets",
    per=once,
    weight=1,
    source="the PCI tree; HGX and DGX boards have as many GPUs on each socket",
)
def numa_balance(_: Node, node: Node) -> Verdict:
    """With more than one NUMA node each that has GPUs should have as many, and every GPU should know its node.

    Read: numa_node of the GPUs in `/sys/bus/pci/devices`. In a virtual machine -1 is normal.
    """
    nodes = [numa for numa in known(node.snapshot.cpu.numa_nodes) if or_none(numa.cpus)]
    gpus = node.pci_gpus
    if len(nodes) < 2 or len(gpus) < 2:
        return not_applicable("one NUMA node, or fewer than two GPUs")
    homes = Counter(known(gpu.numa_node) for gpu in gpus)
    evidence = [f"NUMA node {home}: {count} GPUs" for home, count in sorted(homes.items())]
    if -1 in homes:
        if node.is_virtual:
            return not_applicable("a virtual machine that does not pass the NUMA nodes on")
        return warned(
            "the firmware does not say which socket the GPUs are on",
            evidence=evidence,
            fix="update the BIOS, and enable NUMA in it (no node interleaving)",
        )
    if len(set(homes.values())) > 1:
        return warned(
            ", ".join(f"{count} on node {home}" for home, count in sorted(homes.items())),
            evidence=evidence,
            fix="spread the cards over the slots of both sockets",
        )
    return passed(", ".join(f"{count} on node {home}" for home, count in sorted(homes.items())), evidence=evidence)


@check(
    "memory.size",
    component="memory",
    title="As much RAM as GPU memory",
    per=once,
    weight=2,
    source="ml-engineering (Bekman), CPU memory: at least the sum of the GPU memory, for loading and checkpoints",
)
def size(_: Node, node: Node) -> Verdict:
    """The RAM that a run can use should be at least the sum of the GPU memory.

    Read: MemTotal less huge pages in `/proc/meminfo`, and the container's limit. Less does not stop a run, but loading a model and gathering a
    checkpoint may need it; what a workload really needs is part of its fit.
    """
    usable = known(usable_memory(node))
    on_gpus = sum(or_none(gpu.memory_total_bytes) or 0 for gpu in node.gpus)
    if not on_gpus:
        return not_applicable("no GPU memory to compare with")
    evidence = [f"usable RAM {usable / 1e9:.0f} GB", f"GPU memory {on_gpus / 1e9:.0f} GB"]
    if usable < on_gpus * 0.95:  # what firmware and kernel keep for themselves
        return warned(
            f"{usable / 1e9:.0f} GB of RAM for {on_gpus / 1e9:.0f} GB of GPU memory",
            measured=usable,
            required=on_gpus,
            unit="bytes",
            evidence=evidence,
            fix="add RAM, or load models shard by shard and write sharded checkpoints",
        )
    return passed(
        f"{usable / 1e9:.0f} GB for {on_gpus / 1e9:.0f} GB of GPU memory",
        measured=usable,
        required=on_gpus,
        unit="bytes",
        evidence=evidence,
    )


@check(
    "memory.errors",
    component="memory",
    title="No uncorrectable RAM errors",
    per=once,
    weight=2,
    source="kernel documentation, EDAC: ue_count",
)
def errors(_: Node, node: Node) -> Verdict:
    """No uncorrectable memory error since boot.

    Read: ue_count and ce_count of every controller in `/sys/devices/system/edac/mc`. Corrected errors are shown; their total alone is no fault.
    """
    controllers = node.snapshot.memory.controllers
    if isinstance(controllers, Missing) and node.is_virtual:
        return not_applicable("a virtual machine does not see memory errors")
    counted = known(controllers)
    uncorrected = sum(known(controller.uncorrected_errors) for controller in counted)
    corrected = sum(or_none(controller.corrected_errors) or 0 for controller in counted)
    evidence = [
        f"{controller.name}: {or_none(controller.uncorrected_errors)} uncorrectable, {or_none(controller.corrected_errors)} corrected"
        for controller in counted
        if or_none(controller.corrected_errors) or or_none(controller.uncorrected_errors)
    ]
    if uncorrected:
        return failed(
            f"{amount(uncorrected, 'uncorrectable error')} since boot",
            measured=uncorrected,
            required=0,
            unit="errors",
            evidence=evidence,
            fix="find the DIMM (ras-mc-ctl --errors, BMC event log) and replace it",
        )
    return passed(f"none; {corrected} corrected since boot" if corrected else "none", evidence=evidence)


@check(
    "memory.locked",
    component="memory",
    title="Memory may be locked for RDMA",
    per=once,
    weight=1,
    source="RDMA registers memory against RLIMIT_MEMLOCK (ibv_reg_mr(3)); 32 GiB: field practice for NCCL",
)
def locked(_: Node, node: Node) -> Verdict:
    """Users should be able to lock memory without a limit: InfiniBand and RoCE register their buffers against it.

    Read: memlock for `*` in `/etc/security/limits.conf` and `limits.d`, else the limit of this process. Warns below unlimited where an RDMA port
    is used; without one there is nothing to lock for.
    """
    memory = node.snapshot.memory
    source = "limits.conf" if not isinstance(memory.memlock_login_bytes, Missing) else "this process"
    limit = memory.memlock_login_bytes if not isinstance(memory.memlock_login_bytes, Missing) else memory.memlock_process_bytes
    value = known(limit)
    words = "unlimited" if value == UNLIMITED else f"{value / 2**20:.0f} MiB"
    if value == UNLIMITED:
        return passed(f"unlimited ({source})")
    if not node.compute_ports:
        return not_applicable(f"{words} ({source}), and no RDMA NIC")
    return warned(
        f"{words} ({source})"
        + ("" if value >= node.thresholds.memlock_bytes else ": NCCL over InfiniBand or RoCE will fail to register memory"),
        measured=value,
        required=node.thresholds.memlock_bytes,
        unit="bytes",
        evidence=[f"RLIMIT_MEMLOCK {value}"],
        fix="printf '* - memlock unlimited\\n' | sudo tee /etc/security/limits.d/90-memlock.conf; services: LimitMEMLOCK=infinity",
    )


@check(
    "memory.shm",
    component="memory",
    title="Shared memory for NCCL and data loaders",
    per=once,
    weight=1,
    source="NCCL and PyTorch documentation: /dev/shm; 8 GiB: field practice",
)
def shm(_: Node, node: Node) -> Verdict:
    """`/dev/shm` should have at least 8 GiB: NCCL and PyTorch's data loaders exchange through it (containers start with 64 MiB).

    Read: the size of the file system at `/dev/shm`.
    """
    bytes_ = known(node.snapshot.memory.shm_size_bytes)
    if bytes_ < node.thresholds.shm_bytes:
        return warned(
            f"{bytes_ / 2**30:.1f} GiB",
            measured=bytes_,
            required=node.thresholds.shm_bytes,
            unit="bytes",
            evidence=[f"/dev/shm: {bytes_} bytes"],
            fix="container: --shm-size=64g (or --ipc=host); host: sudo mount -o remount,size=50% /dev/shm",
        )
    return passed(f"{bytes_ / 2**30:.0f} GiB", measured=bytes_, required=node.thresholds.shm_bytes, unit="bytes")


CHECKS = [governor, numa_balance, size, errors, locked, shm]
