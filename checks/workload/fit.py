"""Whether a node holds a workload: its strategies tried from fast to slow, the first that fits is the answer."""

from __future__ import annotations

from typing import Literal

import msgspec

from checks.catalog import Strategy, Workload, architectures, strategies
from checks.finding import Status
from checks.host import usable_memory
from checks.node import Node
from checks.workload.architecture import lora_parameters, parameters
from checks.workload.memory import need, usable_bytes, weight_bytes
from checks.workload.requirements import Requirement, requirements
from probe.fact import Missing

COMFORTABLE = 0.92
"""Up to this share of the usable memory published runs ran; above it some ran and some ran out of memory."""

MORE_NODES = (2, 3, 4, 6, 8, 12, 16, 32)

GRAVITY: dict[Status, int] = {"passed": 0, "not_applicable": 0, "warned": 1, "unknown": 2, "failed": 3}

Outcome = Literal["fits", "tight", "too_small", "unknown"]


class StrategyFit(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy on this node: what it needs on each GPU and in RAM, what is there, and what is lacking."""

    strategy: str
    title: str
    outcome: Outcome
    gpu_need_bytes: int
    gpu_usable_bytes: int
    terms: dict[str, int]
    host_need_bytes: int
    host_usable_bytes: int | None
    states_bytes: int
    nodes_needed: int | None
    lacks: str


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on this node: the strategy that is the answer, and all that were tried.

    `credit` is what it gives to the score: 1 for the recommended strategy or a faster one, else how much of its need is there; 0 where
    nothing fits, None where it cannot be told.
    """

    status: Status
    summary: str
    credit: float | None
    strategy: str | None
    gpus: int
    nodes: int
    strategies: list[StrategyFit]
    requirements: list[Requirement]
    assumed: str = ""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What a fit is computed on: GPUs alike (the smallest counts), and the RAM that can be used."""

    gpus: int
    gpu_memory_bytes: int
    host_bytes: int | None
    assumed: str = ""


def hardware(node: Node) -> Hardware | Missing:
    """The node's GPUs as NVML tells of them; where it does not, those on the PCI bus with their catalog memory, and this is said."""
    ram = usable_memory(node)
    host = None if isinstance(ram, Missing) else ram
    sizes = [gpu.memory_total_bytes for gpu in node.gpus if not isinstance(gpu.memory_total_bytes, Missing)]
    if sizes:
        return Hardware(gpus=len(sizes), gpu_memory_bytes=min(sizes), host_bytes=host)
    if isinstance(node.snapshot.pci, Missing):
        return node.snapshot.pci
    models = [node.model_on_bus(device) for device in node.pci_gpus]
    known = [model for model in models if model is not None]
    if not models:
        return Hardware(gpus=0, gpu_memory_bytes=0, host_bytes=host)
    if len(known) < len(models):
        return Missing("error", "NVML tells of no GPU memory, and a card is not in the catalog", "fit")
    smallest = min(known, key=lambda model: model.memory_bytes)
    words = f"{len(known)} × {smallest.name}, from the PCI bus and the catalog: the driver tells of none"
    return Hardware(gpus=len(known), gpu_memory_bytes=smallest.memory_bytes, host_bytes=host, assumed=words)


def fit(node: Node, workload: Workload, nodes: int | None = None) -> Fit:
    """Try the strategies of a workload on this node (or on `nodes` such nodes)."""
    count = nodes if nodes is not None and workload.nodes > 1 else workload.nodes
    machine = hardware(node)
    if isinstance(machine, Missing):
        return Fit(
            status="unknown",
            summary=f"cannot tell: {machine}",
            credit=None,
            strategy=None,
            gpus=0,
            nodes=count,
            strategies=[],
            requirements=[],
        )
    if not machine.gpus:
        return Fit(
            status="failed",
            summary="there is no GPU to hold it",
            credit=0.0,
            strategy=None,
            gpus=0,
            nodes=count,
            strategies=[],
            requirements=[],
        )
    tried = [_try(machine, workload, strategies()[name], count) for name in workload.strategies]
    method = strategies()[workload.strategies[0]].method
    return _with_requirements(_answer(machine, workload, tried, count), requirements(node, workload, method))


def _try(machine: Hardware, workload: Workload, strategy: Strategy, nodes: int) -> StrategyFit:
    model = architectures()[workload.model]
    wanted = need(model, workload, strategy, machine.gpus * nodes, nodes)
    usable = usable_bytes(machine.gpu_memory_bytes)
    lacks = []
    if wanted.gpu_bytes > usable:
        lacks.append(f"needs {gigabytes(wanted.gpu_bytes)} on each GPU, {gigabytes(usable)} usable")
    if machine.host_bytes is not None and wanted.host_bytes > machine.host_bytes:
        lacks.append(f"needs {gigabytes(wanted.host_bytes)} of RAM, this node has {gigabytes(machine.host_bytes)}")
    outcome: Outcome
    if lacks:
        outcome = "too_small"
    elif machine.host_bytes is None:
        outcome = "unknown"
    else:
        outcome = "fits" if wanted.gpu_bytes <= COMFORTABLE * usable else "tight"
    return StrategyFit(
        strategy=strategy.id,
        title=strategy.title,
        outcome=outcome,
        gpu_need_bytes=wanted.gpu_bytes,
        gpu_usable_bytes=usable,
        terms=wanted.terms,
        host_need_bytes=wanted.host_bytes,
        host_usable_bytes=machine.host_bytes,
        states_bytes=_states(workload, strategy),
        nodes_needed=_nodes_needed(machine, workload, strategy, nodes) if lacks else nodes,
        lacks="; ".join(lacks),
    )


def _states(workload: Workload, strategy: Strategy) -> int:
    """Weights, gradients and optimizer states in all, wherever they are: 1.13 TB for AdamW in fp32 on Llama 3 70B."""
    model = architectures()[workload.model]
    trained = parameters(model) if strategy.method == "full" else lora_parameters(model, workload.lora_rank)
    return weight_bytes(model, strategy.weight_bits) + trained * (strategy.gradient_bytes + strategy.optimizer_bytes)


def _nodes_needed(machine: Hardware, workload: Workload, strategy: Strategy, nodes: int) -> int | None:
    """How many such nodes hold it; None where more nodes do not help (nothing is sharded) or more than 32 were needed."""
    if not strategy.sharded:
        return None
    model = architectures()[workload.model]
    for more in MORE_NODES:
        if more <= nodes:
            continue
        wanted = need(model, workload, strategy, machine.gpus * more, more)
        if wanted.gpu_bytes <= usable_bytes(machine.gpu_memory_bytes) and (
            machine.host_bytes is None or wanted.host_bytes <= machine.host_bytes
        ):
            return more
    return None


def _answer(machine: Hardware, workload: Workload, tried: list[StrategyFit], nodes: int) -> Fit:
    """The first that fits; else the first that is tight; else the first that could not be judged; else none."""
    chosen = next((one for outcome in ("fits", "tight", "unknown") for one in tried if one.outcome == outcome), None)
    recommended = next(one for one in tried if one.strategy == workload.recommended)
    on = f" on {nodes} such nodes" if nodes > 1 else ""
    status: Status
    credit: float | None
    if chosen is None:
        nearest = min(tried, key=lambda one: one.gpu_need_bytes)
        status, credit, summary = "failed", 0.0, f"does not fit{on}. {nearest.title}: {nearest.lacks}{_more(nearest)}"
    elif chosen.outcome == "unknown":
        status, credit, summary = "unknown", None, f"{chosen.title}: fits the GPUs{on}, the RAM is not known"
    else:
        conditional = tried.index(chosen) > tried.index(recommended)
        tight = chosen.outcome == "tight"
        status = "warned" if conditional or tight else "passed"
        credit = min(0.9, recommended.gpu_usable_bytes / recommended.gpu_need_bytes) if conditional else 0.9 if tight else 1.0
        share = f"{gigabytes(chosen.gpu_need_bytes)} of {gigabytes(chosen.gpu_usable_bytes)} on each GPU"
        summary = f"{'only ' if conditional else ''}{chosen.title}{on}: {'tight, ' if tight else ''}{share}"
    return Fit(
        status=status,
        summary=summary,
        credit=credit,
        strategy=chosen.strategy if chosen else None,
        gpus=machine.gpus,
        nodes=nodes,
        strategies=tried,
        requirements=[],
        assumed=machine.assumed,
    )


def _with_requirements(memory: Fit, needs: list[Requirement]) -> Fit:
    """The fit of the memory, with the other needs: the gravest status counts, and each that is not met is named. A need that could not be read
    lowers the confidence of the storage or network checks; it decides nothing here."""
    unmet = [need for need in needs if need.status in ("failed", "warned")]
    status = max([memory.status, *(need.status for need in unmet)], key=lambda one: GRAVITY[one])
    credited = [credit for need in needs if (credit := need.credit) is not None]
    credit = (
        None if memory.credit is None else 0.0 if status == "failed" else min(1.0, memory.credit) * (0.5 + 0.5 * min(credited, default=1.0))
    )
    summary = "; ".join([memory.summary, *(need.summary for need in unmet)])
    return msgspec.structs.replace(memory, status=status, credit=credit, summary=summary, requirements=needs)


def _more(strategy: StrategyFit) -> str:
    return f"; {strategy.nodes_needed} such nodes would hold it" if strategy.nodes_needed else ""


def gigabytes(size: int) -> str:
    """Decimal, as cards and drives are sold: 85.5 GB, 1.13 TB."""
    return f"{size / 1e9:.1f} GB" if size < 1e11 else f"{size / 1e9:.0f} GB" if size < 1e12 else f"{size / 1e12:.2f} TB"
