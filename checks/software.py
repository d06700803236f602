"""Software: drivers that know the card, services that must run, clocks and kernel settings."""

from __future__ import annotations

import re

from checks.finding import Verdict, check, failed, known, not_applicable, or_none, passed, warned
from checks.node import Node, once
from probe.fact import Missing

FIRST_BRANCH = {"Volta": 384, "Turing": 410, "Ampere": 450, "Ada": 520, "Hopper": 525, "Blackwell": 570, "Blackwell Ultra": 570}
"""The first driver branch that knows an architecture (NVIDIA driver release notes)."""


def service(node: Node, *names: str) -> str | Missing:
    """The state of the first of these services that is installed."""
    listed = node.snapshot.software.services
    if isinstance(listed, Missing):
        return listed
    states = [one.state for one in listed if one.name in names]
    return next((state for state in states if not isinstance(state, Missing)), states[0] if states else Missing("absent", "", names[0]))


def package(node: Node, name: str) -> str | Missing:
    """The version of a package."""
    listed = node.snapshot.software.packages
    if isinstance(listed, Missing):
        return listed
    return next((one.version for one in listed if one.name == name), Missing("absent", "", name))


@check(
    "software.driver_branch",
    component="software",
    title="Driver new enough for the card",
    per=once,
    weight=2,
    source="NVIDIA driver release notes: the first branch of each architecture; Blackwell needs the open kernel modules",
)
def driver_branch(_: Node, node: Node) -> Verdict:
    """The driver must know the card: Ampere from 450, Hopper from 525, Blackwell from 570 and only with the open kernel modules."""
    models = [model for device in node.pci_gpus if (model := node.model_on_bus(device)) is not None]
    if not models or node.snapshot.driver.init_error is not None:
        return not_applicable("no known card, or no driver")
    version = known(node.snapshot.driver.driver_version)
    branch = int(version.split(".", 1)[0])
    newest = max(models, key=lambda model: FIRST_BRANCH.get(model.architecture, 0))
    first = FIRST_BRANCH.get(newest.architecture, 0)
    evidence = [f"driver {version}, {newest.name} ({newest.architecture}) needs {first}"]
    if branch < first:
        return failed(
            f"driver {version} is older than {newest.architecture} needs ({first})",
            measured=branch,
            required=first,
            evidence=evidence,
            fix=f"install driver {first} or later",
        )
    if newest.architecture.startswith("Blackwell") and node.snapshot.driver.module_license == "proprietary":
        return failed(
            "Blackwell needs the open kernel modules",
            evidence=evidence,
            fix="install the open variant (nvidia-open, nvidia-driver-NNN-open)",
        )
    license_ = or_none(node.snapshot.driver.module_license)
    return passed(f"driver {version}{f', {license_} kernel modules' if license_ else ''}", evidence=evidence)


@check(
    "software.fabric_manager",
    component="software",
    title="Fabric manager runs, of the driver's version",
    per=once,
    weight=3,
    source="NVIDIA Fabric Manager User Guide: its version must be the driver's",
)
def fabric_manager(_: Node, node: Node) -> Verdict:
    """On a board with NVSwitches the fabric manager must run, and be of exactly the driver's version.

    Read: systemctl, `nv-fabricmanager --version`. Where the GPUs themselves report a completed fabric, the service's state is of no matter
    (in a container, or managed from outside), unless it has failed: then this warns.
    """
    if not node.has_nvswitch:
        return not_applicable("no NVSwitch")
    if any(gpu.fabric.state == "not started" for gpu in node.gpus):
        return not_applicable("see nvlink.fabric")
    driver = or_none(node.snapshot.driver.driver_version)
    version = or_none(package(node, "fabric manager"))
    completed = node.gpus and all(gpu.fabric.state == "completed" for gpu in node.gpus)
    state = service(node, "nvidia-fabricmanager")
    evidence = [f"service {state}, version {version}, driver {driver}"]
    fix = f"install nvidia-fabricmanager {driver} and: sudo systemctl enable --now nvidia-fabricmanager"
    if version is not None and driver is not None and version != driver:
        return failed(f"fabric manager {version}, driver {driver}: it will not start with it", evidence=evidence, fix=fix)
    if completed and state == "failed":
        return warned(
            "the fabric is up, but its manager has failed: the next reset leaves it down", evidence=evidence, fix=fix.split("and: ")[1]
        )
    if completed:
        return passed(f"the fabric is up{f', version {version}' if version else ''}", evidence=evidence)
    if known(state) != "active":
        return failed(f"the service is {state}", evidence=evidence, fix=fix)
    return passed("active", evidence=evidence)


@check(
    "software.nouveau",
    component="software",
    title="nouveau not loaded",
    per=once,
    weight=1,
    source="NVIDIA driver installation guide: nouveau must be disabled",
)
def nouveau(_: Node, node: Node) -> Verdict:
    """The open-source driver nouveau must not be loaded: it holds the GPUs that NVIDIA's driver wants. Read: `/proc/modules`."""
    if not node.pci_gpus:
        return not_applicable("no NVIDIA GPU")
    if "nouveau" in known(node.snapshot.software.modules):
        return failed(
            "nouveau is loaded",
            evidence=["/proc/modules: nouveau"],
            fix="printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/nouveau.conf; sudo update-initramfs -u; reboot",
        )
    return passed("not loaded")


@check(
    "software.clock_source",
    component="software",
    title="Fast clock source",
    per=once,
    weight=1,
    source="kernel documentation, timekeeping: tsc is read without a system call, hpet and acpi_pm are a hundred times slower",
)
def clock_source(_: Node, node: Node) -> Verdict:
    """The clock source should be tsc (x86), arch_sys_counter (arm64), or the hypervisor's: others slow down every time stamp."""
    source = known(node.snapshot.software.clock_source)
    if source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies"):
        return warned(
            source,
            evidence=[f"current_clocksource: {source}"],
            fix="sudo dmesg | grep -i tsc tells why tsc was given up; boot with tsc=reliable if the machine's is good",
        )
    return passed(source)


@check(
    "software.time_sync",
    component="software",
    title="Clock synchronised",
    per=once,
    weight=1,
    source="timedatectl NTPSynchronized",
)
def time_sync(_: Node, node: Node) -> Verdict:
    """The clock should be synchronised: checkpoints, logs and tokens of several nodes are compared by it."""
    if known(node.snapshot.software.clock_synchronized):
        return passed("synchronised")
    return warned(
        "not synchronised", evidence=["timedatectl: NTPSynchronized=no"], fix="sudo systemctl enable --now chrony (or systemd-timesyncd)"
    )


@check(
    "software.numa_balancing",
    component="software",
    title="Automatic NUMA balancing off",
    per=once,
    weight=1,
    source="kernel documentation, numa_balancing; NVIDIA and AMD tuning guides for GPU servers",
)
def numa_balancing(_: Node, node: Node) -> Verdict:
    """Automatic NUMA balancing should be off where GPUs hang on several sockets: its page faults and migrations disturb pinned transfers."""
    nodes = or_none(node.snapshot.cpu.numa_nodes) or []
    if len(nodes) < 2 or not node.pci_gpus:
        return not_applicable("one NUMA node, or no GPU")
    if known(node.snapshot.software.numa_balancing):
        return warned(
            "on", evidence=["/proc/sys/kernel/numa_balancing: 1"], fix="sudo sysctl -w kernel.numa_balancing=0 (and in /etc/sysctl.d)"
        )
    return passed("off")


@check(
    "software.iommu",
    component="software",
    title="IOMMU not translating for the GPUs",
    per=once,
    weight=1,
    source="NVIDIA GPUDirect RDMA, kernel documentation iommu.passthrough: identity (iommu=pt) or off on bare metal",
)
def iommu(_: Node, node: Node) -> Verdict:
    """On bare metal the IOMMU should pass the GPUs' traffic through (iommu=pt) or be off: translating it costs rate and breaks peer-to-peer.

    Read: the type of each GPU's IOMMU group. In a virtual machine, and with confidential computing, it is needed.
    """
    if node.is_virtual or or_none(node.snapshot.driver.confidential_compute):
        return not_applicable("a virtual machine, or confidential computing")
    if not node.pci_gpus:
        return not_applicable("no NVIDIA GPU")
    types = {or_none(gpu.iommu_type) for gpu in node.pci_gpus}
    translating = {kind for kind in types if kind and kind.startswith("DMA")}
    if translating:
        return warned(
            f"translating ({', '.join(sorted(translating))})",
            evidence=[f"kernel command line: {or_none(node.snapshot.system.kernel_command_line)}"],
            fix="add iommu=pt to the kernel command line and reboot",
        )
    return passed("passed through" if types - {None} else "off")


@check(
    "software.stack",
    component="software",
    title="CUDA, NCCL and training libraries",
    per=once,
    weight=1,
    source="PyTorch, bitsandbytes and flash-attention release notes",
)
def stack(_: Node, node: Node) -> Verdict:
    """What is installed of CUDA, NCCL, OFED, DCGM and, where the configuration names a Python environment, of the training libraries.

    Read: version files, tools, and the `.dist-info` folders of the environment. Warns where that environment has no PyTorch; the rest is
    information: jobs usually bring their own in a container.
    """
    packages = known(node.snapshot.software.packages)
    found = [f"{one.name} {one.version}" for one in packages if isinstance(one.version, str)]
    if node.snapshot.site.python_environment and isinstance(package(node, "torch"), Missing):
        return warned(
            f"no PyTorch in {node.snapshot.site.python_environment}",
            evidence=found,
            fix="pip install torch there, or correct python_environment in the configuration",
        )
    return passed(
        "; ".join(found) if found else "none found; jobs bring their own",
        evidence=[f"{one.name}: {one.version}" for one in packages if re.match(r"\w", one.name)],
    )


CHECKS = [driver_branch, fabric_manager, nouveau, clock_source, time_sync, numa_balancing, iommu, stack]
