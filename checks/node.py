"""The node as checks see it: the snapshot, and what follows from it for more than one check."""

from __future__ import annotations

from functools import cached_property

from checks.catalog import GpuModel, NicModel, gpu_models, nic_models
from checks.finding import known
from checks.thresholds import Thresholds
from probe.fact import Missing
from probe.snapshot import FileSystem, Gpu, PciDevice, RdmaPort, Snapshot


class Node:
    """A snapshot with its devices by address, the cards' models, and what kind of machine it is."""

    def __init__(self, snapshot: Snapshot, thresholds: Thresholds | None = None) -> None:
        self.snapshot = snapshot
        self.thresholds = thresholds or Thresholds()

    @cached_property
    def pci(self) -> dict[str, PciDevice]:
        """The PCI functions by address. Where they could not be listed, a check that asks ends with `unknown`."""
        return {device.address: device for device in known(self.snapshot.pci)}

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
        """Whether NVSwitches are on the PCI bus, or the GPUs are of a board that has them, so that they need a running fabric manager."""
        boards = (self.model_on_bus(device) for device in self.pci_gpus)
        return any(device.role == "nvswitch" for device in self.pci.values()) or any(
            model is not None and model.hidden_nvswitches for model in boards
        )

    @cached_property
    def is_virtual(self) -> bool:
        return not isinstance(self.snapshot.cpu.virtualization, Missing) and self.snapshot.cpu.virtualization != "none"

    @property
    def no_gpu_seen(self) -> Missing:
        """Why NVML tells of no GPU, where it tells of none."""
        driver = self.snapshot.driver
        answer = driver.driver_version
        if not isinstance(answer, Missing):
            return Missing("error", driver.broken_off or "NVML counts none", "NVML")
        return Missing(answer.reason, driver.init_error or driver.broken_off or answer.detail, "NVML")

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

    @cached_property
    def compute_ports(self) -> list[RdmaPort]:
        """The ports that NCCL is to use."""
        return [] if isinstance(self.snapshot.rdma, Missing) else [port for port in self.snapshot.rdma if port.role == "compute"]

    def nic_model(self, port: RdmaPort) -> NicModel | None:
        """The catalog entry of the adapter that a port belongs to."""
        device = None if isinstance(port.pci_address, Missing) else self.pci.get(port.pci_address)
        if device is None or isinstance(device.vendor_id, Missing) or isinstance(device.device_id, Missing):
            return None
        return nic_models().get(f"{device.vendor_id:04x}:{device.device_id:04x}")

    @cached_property
    def scratch(self) -> FileSystem | None:
        """Where checkpoints go: the file system that the site names, else the largest writable one on NVMe that is not the root, else one
        there that is read-only (it was meant to be it), else on any other local disk, else the largest shared one, else one beside the root on its
        drives, else the root."""
        known = self.snapshot.storage.file_systems
        if isinstance(known, Missing):
            return None
        path = self.snapshot.site.checkpoint_path
        if path:
            return max((one for one in known if covers(one.path, path)), key=lambda one: len(one.path), default=None)
        candidates = [one for one in known if one.path != "/" and not isinstance(one.size_bytes, Missing)]
        of_root = {drive for one in known if one.path == "/" for drive in one.drives}
        apart = [one for one in candidates if not one.drives or not set(one.drives) <= of_root]
        for kind in (
            [one for one in apart if one.drives and not one.read_only and not one.shared],
            [one for one in apart if one.drives and not one.shared],
            [one for one in apart if not one.read_only and not one.shared],
            [one for one in apart if one.shared and not one.read_only],
            [one for one in candidates if not one.read_only],
            [one for one in known if one.path == "/"],
        ):
            if kind:
                return max(kind, key=lambda one: one.size_bytes if isinstance(one.size_bytes, int) else 0)
        return None


def covers(mount: str, path: str) -> bool:
    """Whether a path is below a mount point."""
    return (path.rstrip("/") + "/").startswith(mount.rstrip("/") + "/")


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
    return [("gpus", node.no_gpu_seen)]


def each_endpoint(node: Node) -> list[tuple[str, PciDevice | Missing]]:
    """GPUs, NICs and NVMe drives in the PCI tree; a GPU under its index, which every other check uses for it too."""
    if isinstance(node.snapshot.pci, Missing):
        return [("devices", node.snapshot.pci)]
    return [
        (name_of(node.gpu_at[device.address]) if device.address in node.gpu_at else device.address, device)
        for device in node.pci.values()
        if device.role in ("gpu", "nic", "nvme") and not device.virtual_function
    ]


def each_compute_port(node: Node) -> list[tuple[str, RdmaPort | Missing]]:
    """The ports that NCCL is to use, by device and port."""
    if isinstance(node.snapshot.rdma, Missing):
        return [("ports", node.snapshot.rdma)]
    return [(port_name(port), port) for port in node.compute_ports]


def port_name(port: RdmaPort) -> str:
    """`mlx5_0`, or `mlx5_0/2` for a second port."""
    return port.device if port.port == 1 else f"{port.device}/{port.port}"
