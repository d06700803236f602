"""What a workload needs beside the GPUs' memory: local storage, room for checkpoints, and the rate to other nodes."""

from __future__ import annotations

import msgspec

from checks.catalog import Workload
from checks.finding import Status
from checks.node import Node
from checks.workload.memory import checkpoint_bytes, weight_bytes
from probe.fact import Missing

FIXES = {
    "storage": "fit more NVMe, or name the file system for checkpoints (checkpoint_path in the configuration)",
    "room for checkpoints": "delete old checkpoints, or name a larger file system (checkpoint_path in the configuration)",
    "network between nodes": "bring the compute ports up (network.port_state), or name them (nccl_ib_hca in the configuration)",
}


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One need: what there is, what is the least, and what is wanted. `measured` None: it could not be read, and `summary` says why."""

    name: str
    measured: float | None
    minimum: float
    wanted: float
    unit: str
    status: Status
    summary: str

    @property
    def fix(self) -> str:
        """What to do where it is not met."""
        return next((words for name, words in FIXES.items() if self.name.startswith(name)), "")

    @property
    def credit(self) -> float | None:
        """How much of the wanted is there, at most 1."""
        return None if self.measured is None else min(1.0, self.measured / self.wanted) if self.wanted else 1.0


def requirements(node: Node, workload: Workload, method: str) -> list[Requirement]:
    """The needs of a workload, judged on this node."""
    found = [_storage(node, workload)] if workload.wanted.get("nvme_bytes") else []
    if method != "inference":
        found.append(_room(node, workload, method))
    if workload.nodes > 1:
        found.append(_network(node, workload))
    return found


def judged(name: str, measured: float | None, minimum: float, wanted: float, unit: str, scale: float, why: str = "") -> Requirement:
    """Below the minimum fails, below wanted warns; `scale` and `unit` are for the words."""
    status: Status
    if measured is None:
        status, summary = "unknown", f"{name}: not known ({why})"
    else:
        status = "failed" if measured < minimum else "warned" if measured < wanted else "passed"
        least = f"needs {_short(minimum / scale)}" if status == "failed" else f"{_short(wanted / scale)} wanted"
        summary = f"{name}: {_short(measured / scale)} {unit}, {least}"
    return Requirement(name=name, measured=measured, minimum=minimum, wanted=wanted, unit=unit, status=status, summary=summary)


def _short(value: float) -> str:
    """Three digits, and no exponent: 0.3, 3.84, 3,200."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _storage(node: Node, workload: Workload) -> Requirement:
    """Local NVMe that does not hold the root alone, or the file system of the checkpoints, whichever is larger (`storage.scratch` warns
    where that is the root's)."""
    minimum, wanted = workload.minimum.get("nvme_bytes", 0.0), workload.wanted["nvme_bytes"]
    local = local_nvme_bytes(node)
    if isinstance(local, Missing):
        return judged("storage", None, minimum, wanted, "TB", 1e12, str(local))
    scratch = node.scratch
    chosen = scratch.size_bytes if scratch is not None and isinstance(scratch.size_bytes, int) else 0
    return judged("storage", float(max(local, chosen)), minimum, wanted, "TB", 1e12)


def local_nvme_bytes(node: Node) -> int | Missing:
    """The size of the local NVMe drives that do not hold the root alone."""
    drives = node.snapshot.storage.drives
    systems = node.snapshot.storage.file_systems
    if isinstance(drives, Missing):
        return drives
    known = [] if isinstance(systems, Missing) else systems
    roots = {drive for one in known if one.path == "/" for drive in one.drives}
    others = {drive for one in known if one.path != "/" for drive in one.drives}
    return sum(
        drive.size_bytes
        for drive in drives
        if isinstance(drive.size_bytes, int) and drive.transport == "pcie" and (drive.name not in roots or drive.name in others)
    )


def _room(node: Node, workload: Workload, method: str) -> Requirement:
    """Free space for one checkpoint at least, and for as many as are kept beside the base model."""
    one, wanted = room_for_checkpoints(workload, method, node.snapshot.site.checkpoints_kept)
    scratch = node.scratch
    if scratch is None:
        return judged("room for checkpoints", None, one, wanted, "TB", 1e12, "no file system is known")
    free = scratch.free_bytes
    where = f"room for checkpoints on {scratch.path}"
    if isinstance(free, Missing):
        return judged(where, None, one, wanted, "TB", 1e12, str(free))
    return judged(where, float(free), one, wanted, "TB", 1e12)


def room_for_checkpoints(workload: Workload, method: str, kept: int) -> tuple[int, int]:
    """Bytes of one checkpoint, and of as many as are kept beside the base model."""
    one = checkpoint_bytes(workload.shape, workload, "full" if method == "full" else "lora")
    return one, weight_bytes(workload.shape, 16) + kept * one


def network_gbps(node: Node) -> float | None:
    """The rates of all compute ports that are up, added; None where they could not be read."""
    if isinstance(node.snapshot.rdma, Missing):
        return None
    return float(sum(port.rate_gbps for port in node.compute_ports if port.state == "ACTIVE" and isinstance(port.rate_gbps, float)))


def _network(node: Node, workload: Workload) -> Requirement:
    """The rate to other nodes."""
    minimum, wanted = workload.minimum.get("network_gbps", 0.0), workload.wanted.get("network_gbps", 0.0)
    rdma = node.snapshot.rdma
    why = str(rdma) if isinstance(rdma, Missing) else ""
    return judged("network between nodes", network_gbps(node), minimum, wanted, "Gb/s", 1, why)
