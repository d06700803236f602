"""Processors, NUMA nodes, frequency policy and virtualisation, from `/proc/cpuinfo` and `/sys/devices/system`."""

from __future__ import annotations

import json
import re

from probe.fact import Missing, Unavailable, names, parsed, text
from probe.host import Host
from probe.snapshot import Cpu, NumaNode

CPUINFO = "/proc/cpuinfo"
POLICIES = "/sys/devices/system/cpu/cpufreq"
NODES = "/sys/devices/system/node"
IOMMUS = "/sys/class/iommu"
HYPERVISORS = (  # what DMI says of the maker, and the hypervisor's usual name
    ("QEMU", "kvm"), ("KVM", "kvm"), ("Amazon EC2", "kvm"), ("Google", "kvm"), ("OpenStack", "kvm"), ("VMware", "vmware"),
    ("Microsoft", "microsoft"), ("Xen", "xen"), ("innotek", "virtualbox"), ("Parallels", "parallels"), ("Oracle", "kvm"),
)  # fmt: skip


class Processors:
    """What `/proc/cpuinfo` tells: blocks of `key : value`, one a logical CPU.

    x86 names the model, the socket (`physical id`) and the core; arm64 names none of them.
    """

    def __init__(self, cpuinfo: str) -> None:
        blocks = [
            {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
            for block in cpuinfo.split("\n\n")
        ]
        cpus = [block for block in blocks if "processor" in block]
        if not cpus:
            raise ValueError
        self.threads = len(cpus)
        self.model = cpus[0].get("model name")
        self.sockets = len({block["physical id"] for block in cpus if "physical id" in block})
        self.cores = len({(block["physical id"], block["core id"]) for block in cpus if "physical id" in block and "core id" in block})
        self.hypervisor = "hypervisor" in cpus[0].get("flags", "").split()
        self.x86 = "flags" in cpus[0]


def probe(host: Host) -> Cpu:
    """The processors' facts."""
    processors = parsed(text(host, CPUINFO), CPUINFO, Processors)
    unsaid = Missing("not_supported", "not named", CPUINFO)
    if isinstance(processors, Missing):
        model: str | Missing = processors
        sockets: int | Missing = processors
        cores: int | Missing = processors
        threads: int | Missing = processors
    else:
        model = processors.model or _model_by_py_cpuinfo(host)
        sockets, cores, threads = processors.sockets or unsaid, processors.cores or unsaid, processors.threads
    policies = [name for name in names(host, POLICIES) if name.startswith("policy")]
    governors = _in_use(host, policies, "scaling_governor")
    return Cpu(
        model=model,
        architecture=text(host, "/proc/sys/kernel/arch"),
        sockets=sockets,
        cores=cores,
        threads=threads,
        numa_nodes=numa_nodes(host),
        governors=governors,
        frequency_driver=text(host, f"{POLICIES}/{policies[0]}/scaling_driver") if policies else _no_policies(),
        energy_preferences=_in_use(host, policies, "energy_performance_preference")
        if not isinstance(governors, Missing) and governors != ["performance"]
        else Missing("not_supported", "only read where the governor is not performance", POLICIES),
        virtualization=_virtualization(host, processors),
        iommu_active=bool(names(host, IOMMUS)),
    )


def _no_policies() -> Missing:
    return Missing("absent", "no frequency policies", POLICIES)


def _in_use(host: Host, policies: list[str], name: str) -> list[str] | Missing:
    """The values of a file over all frequency policies, each once."""
    if not policies:
        return _no_policies()
    values = [text(host, f"{POLICIES}/{policy}/{name}") for policy in policies]
    found = sorted({value for value in values if not isinstance(value, Missing)})
    return found or next(value for value in values if isinstance(value, Missing))


def _model_by_py_cpuinfo(host: Host) -> str | Missing:
    """Asked only where `/proc/cpuinfo` does not name the processor (arm64): py-cpuinfo takes more than a second."""
    try:
        said = host.run(["cpuinfo", "--json"])
    except Unavailable as error:
        return Missing(error.reason, error.detail, "py-cpuinfo")
    return parsed(said.stdout, "py-cpuinfo", lambda output: str(json.loads(output)["brand_raw"]))


def _virtualization(host: Host, processors: Processors | Missing) -> str | Missing:
    """`none`, or the hypervisor's name: x86 has a CPU flag for it, elsewhere the machine's maker tells."""
    maker = text(host, "/sys/class/dmi/id/sys_vendor")
    product = text(host, "/sys/class/dmi/id/product_name")
    words = " ".join(word for word in (maker, product) if not isinstance(word, Missing))
    hypervisor = next((name for start, name in HYPERVISORS if start in words), None)
    if isinstance(processors, Missing):
        return processors
    if processors.x86:
        return (hypervisor or "unnamed") if processors.hypervisor else "none"
    if not words:
        return Missing("absent", "no CPU flag and no DMI tell", "/sys/class/dmi/id")
    return hypervisor or "none"


def node_memory(meminfo: str) -> int:
    """Bytes, from `Node 0 MemTotal:       1056523456 kB`."""
    found = re.search(r"MemTotal:\s+(\d+) kB", meminfo)
    if not found:
        raise ValueError
    return int(found[1]) * 1024


def numa_nodes(host: Host) -> list[NumaNode] | Missing:
    """The NUMA nodes, also those without CPUs or memory (CXL, GPU memory)."""
    found = sorted(int(name[4:]) for name in names(host, NODES) if re.fullmatch(r"node\d+", name))
    if not found:
        return Missing("absent", "no NUMA nodes", NODES)
    return [
        NumaNode(
            node=node,
            cpus=text(host, f"{NODES}/node{node}/cpulist"),
            memory_bytes=parsed(text(host, f"{NODES}/node{node}/meminfo"), f"{NODES}/node{node}/meminfo", node_memory),
            distances=parsed(
                text(host, f"{NODES}/node{node}/distance"),
                f"{NODES}/node{node}/distance",
                lambda value: [int(distance) for distance in value.split()],
            ),
        )
        for node in found
    ]
