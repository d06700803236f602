"""The node as checks see it: the snapshot, and what follows from it for more than one check."""

from __future__ import annotations

from functools import cached_property

from checks.catalog import GpuModel, gpu_models
from probe.fact import Missing
from probe.snapshot import Gpu, PciDevice, Snapshot


class Node:
    """A snapshot with its devices by address, the cards' models, and what kind of machine it is."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    @cached_property
    def pci(self) -> dict[str, PciDevice]:
        """The PCI functions by address; empty where they could not be listed."""
        return {} if isinstance(self.snapshot.pci, Missing) else {device.address: device for device in self.snapshot.pci}

    @cached_property
    def gpus(self) -> list[Gpu]:
        """The GPUs that answer."""
        return [gpu for gpu in self.snapshot.gpus if not gpu.lost]

    @cached_property
    def pci_gpus(self) -> list[PciDevice]:
        """The NVIDIA GPUs on the PCI bus that are this system's own: not handed to a virtual machine, no virtual function."""
        return [
            device for device in self.pci.values() if device.role == "gpu" and device.driver != "vfio-pci" and not device.virtual_function
        ]

    @cached_property
    def has_nvswitch(self) -> bool:
        """Whether NVSwitches are on the PCI bus, so that the GPUs need a running fabric manager."""
        return any(device.role == "nvswitch" for device in self.pci.values())

    @cached_property
    def is_virtual(self) -> bool:
        return not isinstance(self.snapshot.cpu.virtualization, Missing) and self.snapshot.cpu.virtualization != "none"

    def model(self, gpu: Gpu) -> GpuModel | None:
        """The card's catalog entry."""
        return None if isinstance(gpu.pci_id, Missing) else gpu_models().get(gpu.pci_id)

    def model_on_bus(self, device: PciDevice) -> GpuModel | None:
        """The catalog entry of a card that only the PCI bus tells of."""
        if isinstance(device.vendor_id, Missing) or isinstance(device.device_id, Missing):
            return None
        return gpu_models().get(f"{device.vendor_id:04x}:{device.device_id:04x}")

    def device_of(self, gpu: Gpu) -> PciDevice | None:
        """Where the GPU is in the PCI tree."""
        return None if isinstance(gpu.address, Missing) else self.pci.get(gpu.address)

    @cached_property
    def gpu_at(self) -> dict[str, Gpu]:
        """GPUs by their PCI address."""
        return {gpu.address: gpu for gpu in self.snapshot.gpus if not isinstance(gpu.address, Missing)}


def name_of(gpu: Gpu) -> str:
    """How a GPU is called in reports and metrics: by NVML's index."""
    return f"gpu{gpu.index}"


def once(node: Node) -> list[tuple[str, Node]]:
    """For checks of the node as a whole."""
    return [("node", node)]


def each_gpu(node: Node) -> list[tuple[str, Gpu | Missing]]:
    """The GPUs that answer; the ones that do not are `gpu.present`'s to tell."""
    return [(name_of(gpu), gpu) for gpu in node.gpus] or _unseen_gpus(node)


def each_gpu_counted(node: Node) -> list[tuple[str, Gpu | Missing]]:
    """Every GPU that NVML counts, also a lost one."""
    return [(name_of(gpu), gpu) for gpu in node.snapshot.gpus] or _unseen_gpus(node)


def _unseen_gpus(node: Node) -> list[tuple[str, Gpu | Missing]]:
    """What stands for the GPUs where NVML tells of none: nothing if there are none, else that nothing is known of them."""
    if isinstance(node.snapshot.pci, Missing):
        return [("gpus", node.snapshot.pci)]
    if not node.pci_gpus:
        return []
    driver = node.snapshot.driver
    why = driver.init_error or driver.broken_off or "NVML counts none"
    return [("gpus", Missing("error", why, "NVML"))]


def each_endpoint(node: Node) -> list[tuple[str, PciDevice]]:
    """GPUs, NICs and NVMe drives in the PCI tree; a GPU under its index, which every other check uses for it too."""
    return [
        (name_of(node.gpu_at[device.address]) if device.address in node.gpu_at else device.address, device)
        for device in node.pci.values()
        if device.role in ("gpu", "nic", "nvme") and not device.virtual_function
    ]
