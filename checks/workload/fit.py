"""Whether a node holds a workload, and how fast it would run: its strategies tried from fast to slow, the first that fits is the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from checks.catalog import GpuModel, Strategy, Workload, strategies
from checks.finding import Status
from checks.host import usable_memory
from checks.node import Node
from checks.workload.architecture import lora_parameters, parameters
from checks.workload.memory import (
    ASSUMED_STORAGE_GBPS,
    CHUNKED_LOSS,
    COMPILED,
    EAGER,
    FUSED_LOSS,
    LOADING_BYTES_FLOOR,
    Need,
    Run,
    need,
    serving_need,
    usable_bytes,
    weight_bytes,
)
from checks.workload.recipe import recipe
from checks.workload.requirements import Requirement, local_nvme_bytes, network_gbps, requirements
from checks.workload.speed import Links, Speed, links, speed
from probe.fact import Missing

COMFORTABLE = 0.92
"""Up to this share of the usable memory published runs ran; above it some ran and some ran out of memory."""

CLEARLY_FASTER = 1.1

MORE_NODES = (2, 3, 4, 6, 8, 12, 16, 32)

GRAVITY: dict[Status, int] = {"passed": 0, "not_applicable": 0, "warned": 1, "unknown": 2, "failed": 3}

IDEAL_NETWORK_GBPS = 400.0
"""One NDR port a GPU: what a cluster's network is compared with."""
LONGEST_TOKENS = 1 << 20
RUNTIMES = {"torchtitan": COMPILED, "torchtune": CHUNKED_LOSS, "unsloth": FUSED_LOSS}
"""What the programs keep that are not Hugging Face's."""

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
    nvme_need_bytes: int = 0
    nvme_usable_bytes: int | None = None
    states_bytes: int
    nodes_needed: int | None
    lacks: str
    tokens_per_second: float | None = None
    limit: str = ""
    seconds: dict[str, float] = {}


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on this node: the strategy that is the answer, and all that were tried.

    `credit` is what it gives to the score: 1 for the recommended strategy or a faster one, else how much of its need is there; 0 where
    nothing fits, None where it cannot be told. Of the chosen strategy: the longest sequence and the largest micro-batch that fit
    (each with the other as it is), a configuration, and the seconds to write a checkpoint at the site's rate or an assumed 2 GB/s.
    `network_slowdown`: how many times quicker a network of 400 Gb/s a GPU would be. `rule_of_thumb` stands where the arithmetic is not
    what is commonly said. `fix`: what to do where nothing fits, or a need is not met. `export_bytes`: the
    weights or adapters alone; `naive_loading_bytes`: main memory where every process of a node loads its own copy.
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
    longest_sequence_tokens: int | None = None
    largest_micro_batch: int | None = None
    checkpoint_bytes: int = 0
    export_bytes: int = 0
    naive_loading_bytes: int = 0
    checkpoint_seconds: float = 0.0
    network_slowdown: float | None = None
    recipe: str = ""
    rule_of_thumb: str = ""
    fix: str = ""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What a fit is computed on: GPUs alike (the smallest counts), the RAM that can be used, and what the step time follows from; without a
    `card` of the catalog it cannot be told. `power_share`: the allowed power over the card's own."""

    gpus: int
    gpu_memory_bytes: int
    host_bytes: int | None = None
    assumed: str = ""
    card: GpuModel | None = None
    bridged: bool = True
    pcie_gbps: float | None = None
    power_share: float = 1.0
    network_gbps: float = 0.0
    nvme_bytes: float | None = None
    storage_gbps: float = ASSUMED_STORAGE_GBPS

    def links(self, network_gbps: float) -> Links:
        """The links of such a node, with this network."""
        assert self.card is not None
        paired = self.bridged and self.gpus <= 2  # a bridge joins two cards; among more, most of the way is PCIe
        return links(self.card, network_gbps=network_gbps, pcie_gbps=self.pcie_gbps, bridged=paired, storage_gbps=self.storage_gbps)

    def lacks(self, wanted: Need) -> list[str]:
        """What a need finds too little of."""
        usable = usable_bytes(self.gpu_memory_bytes)
        found = []
        if wanted.least_gpu_bytes > usable:
            found.append(f"needs {gigabytes(wanted.least_gpu_bytes)} on each GPU, {gigabytes(usable)} usable")
        if self.host_bytes is not None and wanted.host_bytes > self.host_bytes:
            found.append(f"needs {gigabytes(wanted.host_bytes)} of RAM, this node has {gigabytes(self.host_bytes)}")
        if self.nvme_bytes is not None and wanted.nvme_bytes > self.nvme_bytes:
            found.append(f"needs {gigabytes(wanted.nvme_bytes)} of local NVMe, this node has {gigabytes(int(self.nvme_bytes))}")
        return found


def hardware(node: Node) -> Hardware | Missing:
    """The node's GPUs as NVML tells of them; where it does not, those on the PCI bus with their catalog memory, and this is said."""
    found = _gpus(node)
    if isinstance(found, Missing):
        return found
    ram, drives = usable_memory(node), local_nvme_bytes(node)
    return msgspec.structs.replace(
        found,
        host_bytes=None if isinstance(ram, Missing) else ram,
        network_gbps=network_gbps(node) or 0.0,
        nvme_bytes=None if isinstance(drives, Missing) else drives,
        storage_gbps=node.snapshot.site.storage_write_gbps or ASSUMED_STORAGE_GBPS,
    )


def _gpus(node: Node) -> Hardware | Missing:
    known_gpus = [gpu for gpu in node.gpus if not isinstance(gpu.memory_total_bytes, Missing)]
    if known_gpus:
        sizes = [gpu.memory_total_bytes for gpu in known_gpus if not isinstance(gpu.memory_total_bytes, Missing)]
        cards = [node.model(gpu) for gpu in known_gpus]
        shares = [
            gpu.power_limit_watts / gpu.power_limit_default_watts
            for gpu in known_gpus
            if isinstance(gpu.power_limit_watts, float)
            and isinstance(gpu.power_limit_default_watts, float)
            and gpu.power_limit_default_watts
        ]
        lost = len(node.snapshot.gpus) - len(sizes)
        return Hardware(
            assumed=f"of {len(node.snapshot.gpus)} GPUs {lost} {'does' if lost == 1 else 'do'} not answer, and the rest is counted"
            if lost
            else "",
            gpus=len(sizes),
            gpu_memory_bytes=min(sizes),
            card=min((card for card in cards if card), key=lambda card: card.bf16_tflops, default=None) if all(cards) else None,
            bridged=any(link.active is True for gpu in known_gpus if not isinstance(gpu.nvlinks, Missing) for link in gpu.nvlinks),
            pcie_gbps=_pcie_gbps(node),
            power_share=min(shares, default=1.0),
        )
    if isinstance(node.snapshot.pci, Missing):
        return node.snapshot.pci
    models = [node.model_on_bus(device) for device in node.pci_gpus]
    known = [model for model in models if model is not None]
    if not models:
        return Hardware(gpus=0, gpu_memory_bytes=0)
    if len(known) < len(models):
        return Missing("error", "NVML tells of no GPU memory, and a card is not in the catalog", "fit")
    smallest = min(known, key=lambda model: model.memory_bytes)
    words = f"{len(known)} × {smallest.name}, from the PCI bus and the catalog: the driver tells of none"
    return Hardware(gpus=len(known), gpu_memory_bytes=smallest.memory_bytes, assumed=words, card=smallest)


def _pcie_gbps(node: Node) -> float | None:
    """The slowest GPU's PCIe link in GB/s: the lanes it has at the speed it can have (links slow down at rest)."""
    if isinstance(node.snapshot.pci, Missing):
        return None
    rates = [
        device.link.width_lanes * device.link.speed_max_gtps / 8 * 0.985
        for device in node.pci_gpus
        if isinstance(device.link.width_lanes, int) and isinstance(device.link.speed_max_gtps, float)
    ]
    return min(rates, default=None) or None


def fit(node: Node, workload: Workload, nodes: int | None = None) -> Fit:
    """Try the strategies of a workload on this node (or on `nodes` such nodes)."""
    count = nodes if nodes is not None and workload.nodes > 1 else workload.nodes
    machine = hardware(node)
    if isinstance(machine, Missing):
        return _nothing("unknown", f"cannot tell: {machine}", None, count)
    needs = requirements(node, workload, method_of(workload)) if machine.gpus else []
    return fit_on(machine, workload, count, needs)


def _ways(workload: Workload, nodes: int) -> list[Strategy]:
    """A workload's strategies, without hybrid shard where there is one node: there it is plain FSDP."""
    found = [strategies()[name] for name in workload.strategies]
    return [one for one in found if nodes > 1 or one.sharding != "hybrid"]


def method_of(workload: Workload) -> str:
    """The method of a workload: all its strategies share it."""
    return strategies()[workload.strategies[0]].method


def fit_on(machine: Hardware, workload: Workload, nodes: int, needs: list[Requirement]) -> Fit:
    """The same, on hardware that is only described, with the other needs already judged."""
    if not machine.gpus:
        return msgspec.structs.replace(_nothing("failed", "there is no GPU to hold it", 0.0, nodes), fix=_plan_command(workload))
    tried = [_try(machine, workload, strategy, nodes) for strategy in _ways(workload, nodes)]
    answer = _with_requirements(_answer(machine, workload, tried, nodes), needs)
    said = "" if answer.status == "passed" or workload.architecture else workload.rule_of_thumb
    unmet = [need.fix for need in needs if need.status in ("failed", "warned")]
    fix = "; ".join(unmet) if answer.strategy else _plan_command(workload) if answer.status == "failed" else ""
    return _with_details(msgspec.structs.replace(answer, rule_of_thumb=said, fix=fix), machine, workload)


def _plan_command(workload: Workload) -> str:
    if workload.architecture:  # the plan's own
        return ""
    method = method_of(workload)
    return f"readiness plan --model {workload.shape.id} --method {'serve' if method == 'inference' else method} lists machines that hold it"


def _nothing(status: Status, summary: str, credit: float | None, nodes: int) -> Fit:
    return Fit(status=status, summary=summary, credit=credit, strategy=None, gpus=0, nodes=nodes, strategies=[], requirements=[])


def run_of(workload: Workload, strategy: Strategy, gpus: int, nodes: int, *, sequence: int | None = None, batch: int | None = None) -> Run:
    """A workload by one of its training strategies, on so many GPUs in all. A tensor-parallel group computes as many sequences together as
    its GPUs would each on their own."""
    model = workload.shape
    together = gpus // nodes if strategy.tensor_parallel else 1
    assert strategy.method != "inference"
    return Run(
        model=model,
        method=strategy.method,
        gpus=gpus,
        nodes=nodes,
        sequence_tokens=sequence or workload.sequence_tokens,
        micro_batch=(batch or workload.micro_batch) * together,
        trained=parameters(model) if strategy.method == "full" else lora_parameters(model, workload.lora_rank),
        weight_bits=strategy.weight_bits,
        adapter_bytes=strategy.adapter_bytes,
        gradient_bytes=strategy.gradient_bytes,
        optimizer_bytes=strategy.optimizer_bytes,
        sharding=strategy.sharding,
        offload=strategy.offload,
        offload_activations=strategy.offload_activations,
        optimizer_in_backward=strategy.optimizer_in_backward,
        optimizer_copies=strategy.optimizer_copies,
        tensor_parallel=together,
        host_factor=strategy.host_factor,
        runtime=RUNTIMES.get(strategy.launcher, EAGER),
    )


def _need(workload: Workload, strategy: Strategy, gpus: int, nodes: int, *, sequence: int | None = None, batch: int | None = None) -> Need:
    if strategy.method == "inference":
        longer = msgspec.structs.replace(workload, sequence_tokens=(sequence or workload.sequence_tokens) * (batch or workload.micro_batch))
        return serving_need(workload.shape, longer, strategy, gpus)
    return need(run_of(workload, strategy, gpus, nodes, sequence=sequence, batch=batch))


def _speed(machine: Hardware, workload: Workload, strategy: Strategy, nodes: int, network: float) -> Speed | None:
    """The step time; None where the card is not in the catalog or has no bf16, nothing is trained, or the nodes have no network to each other."""
    if machine.card is None or not machine.card.bf16_tflops or strategy.method == "inference" or (nodes > 1 and not network):
        return None
    run = run_of(workload, strategy, machine.gpus * nodes, nodes)
    return speed(run, machine.card, machine.links(network), power_share=machine.power_share)


def first_that_fits(machine: Hardware, workload: Workload, nodes: int) -> StrategyFit | None:
    """The first strategy that fits with room to spare."""
    tried = (_try(machine, workload, strategy, nodes, ask_further=False) for strategy in _ways(workload, nodes))
    return next((one for one in tried if one.outcome == "fits"), None)


def _try(machine: Hardware, workload: Workload, strategy: Strategy, nodes: int, *, ask_further: bool = True) -> StrategyFit:
    wanted = _need(workload, strategy, machine.gpus * nodes, nodes)
    usable = usable_bytes(machine.gpu_memory_bytes)
    without_bf16 = machine.card is not None and not machine.card.bf16_tflops and strategy.method != "inference"
    too_many = strategy.most_gpus is not None and machine.gpus * nodes > strategy.most_gpus
    never = ["the card has no bf16"] if without_bf16 else [f"is for {strategy.most_gpus} GPU"] if too_many else []
    lacks = [*never, *machine.lacks(wanted)]
    outcome: Outcome
    if lacks:
        outcome = "too_small"
    elif wanted.gpu_bytes > COMFORTABLE * usable:
        outcome = "tight"
    else:
        outcome = "unknown" if machine.host_bytes is None or (wanted.nvme_bytes and machine.nvme_bytes is None) else "fits"
    quick = None if lacks else _speed(machine, workload, strategy, nodes, machine.network_gbps)
    return StrategyFit(
        strategy=strategy.id,
        title=strategy.title,
        outcome=outcome,
        gpu_need_bytes=wanted.expected_bytes(usable),
        gpu_usable_bytes=usable,
        terms=wanted.terms,
        host_need_bytes=wanted.host_bytes,
        host_usable_bytes=machine.host_bytes,
        nvme_need_bytes=wanted.nvme_bytes,
        nvme_usable_bytes=None if machine.nvme_bytes is None else int(machine.nvme_bytes),
        states_bytes=_states(workload, strategy),
        nodes_needed=None
        if lacks and (never or not ask_further)
        else _nodes_needed(machine, workload, strategy, nodes)
        if lacks
        else nodes,
        lacks="; ".join(lacks),
        tokens_per_second=quick.tokens_per_second if quick else None,
        limit=quick.limit if quick else "",
        seconds=quick.seconds if quick else {},
    )


def _with_details(answer: Fit, machine: Hardware, workload: Workload) -> Fit:
    """What only the chosen strategy is asked: how much longer and larger it may be, what the network costs, and how it is configured."""
    if answer.strategy is None:
        return answer
    strategy = strategies()[answer.strategy]
    gpus = machine.gpus * answer.nodes

    def holds(sequence: int, batch: int) -> bool:
        return not machine.lacks(_need(workload, strategy, gpus, answer.nodes, sequence=sequence, batch=batch))

    sequence = _largest(lambda blocks: holds(blocks * 256, workload.micro_batch), LONGEST_TOKENS // 256) * 256
    batch = _largest(lambda size: holds(workload.sequence_tokens, size), 4096)
    own = _speed(machine, workload, strategy, answer.nodes, machine.network_gbps)
    ideal = _speed(machine, workload, strategy, answer.nodes, IDEAL_NETWORK_GBPS * machine.gpus)
    size = 0 if strategy.method == "inference" else _checkpoint_bytes(workload, strategy)
    return msgspec.structs.replace(
        answer,
        longest_sequence_tokens=sequence or None,
        largest_micro_batch=batch or None,
        checkpoint_bytes=size,
        export_bytes=0 if strategy.method == "inference" else _export_bytes(workload, strategy),
        naive_loading_bytes=0
        if strategy.method == "inference"
        else machine.gpus * weight_bytes(workload.shape, max(16, strategy.weight_bits)) + LOADING_BYTES_FLOOR,
        checkpoint_seconds=size / (machine.storage_gbps * 1e9),
        network_slowdown=ideal.tokens_per_second / own.tokens_per_second if answer.nodes > 1 and own and ideal else None,
        recipe=recipe(strategy, workload, machine.gpus, answer.nodes),
    )


def _checkpoint_bytes(workload: Workload, strategy: Strategy) -> int:
    """What it takes to go on: trained weights and optimizer states as the strategy has them (Llama 3 70B: 847 GB with fp32 states)."""
    if strategy.method == "full":
        return int(parameters(workload.shape) * (strategy.weight_bits / 8 + strategy.optimizer_bytes))
    return lora_parameters(workload.shape, workload.lora_rank) * (strategy.adapter_bytes + strategy.optimizer_bytes)


def _export_bytes(workload: Workload, strategy: Strategy) -> int:
    """What a run leaves in the end: the weights in 16 bits, or the adapters."""
    if strategy.method == "full":
        return weight_bytes(workload.shape, 16)
    return int(lora_parameters(workload.shape, workload.lora_rank) * strategy.adapter_bytes)


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` of which it holds, where it holds for all smaller ones; 0 for none."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if holds(middle):
            least = middle
        else:
            most = middle - 1
    return least


def _states(workload: Workload, strategy: Strategy) -> int:
    """Weights, gradients and optimizer states in all, wherever they are: 1.13 TB for AdamW in fp32 on Llama 3 70B."""
    model = workload.shape
    trained = parameters(model) if strategy.method == "full" else lora_parameters(model, workload.lora_rank)
    return weight_bytes(model, strategy.weight_bits) + trained * (strategy.gradient_bytes + strategy.optimizer_bytes)


def _nodes_needed(machine: Hardware, workload: Workload, strategy: Strategy, nodes: int) -> int | None:
    """How many such nodes hold it; None where more nodes do not help (nothing is sharded) or more than 32 were needed."""
    if strategy.sharding == "none":
        return None
    for more in MORE_NODES:
        if more <= nodes:
            continue
        if not machine.lacks(_need(workload, strategy, machine.gpus * more, more)):
            return more
    return None


def _answer(machine: Hardware, workload: Workload, tried: list[StrategyFit], nodes: int) -> Fit:
    """The first that fits, or one as good that is clearly faster; else the first whose RAM or drives are not known; else the first that is tight;
    else none."""
    chosen = next((one for outcome in ("fits", "unknown", "tight") for one in tried if one.outcome == outcome), None)
    if chosen is not None and chosen.outcome == "fits":
        chosen = _fastest(chosen, tried, workload.recommended)
    recommended = next(one for one in tried if one.strategy == workload.recommended)
    on = f" on {nodes} such nodes" if nodes > 1 else ""
    status: Status
    credit: float | None
    if chosen is None:
        nearest = min(tried, key=lambda one: one.gpu_need_bytes)
        status, credit, summary = "failed", 0.0, f"does not fit{on}. {nearest.title}: {nearest.lacks}{_more(nearest)}"
    elif chosen.outcome == "unknown":
        status, credit, summary = (
            "unknown",
            None,
            f"{chosen.title}: fits the GPUs{on}, the {'RAM' if chosen.host_usable_bytes is None else 'local NVMe'} is not known",
        )
    else:
        conditional = tried.index(chosen) > tried.index(recommended)
        tight = chosen.outcome == "tight"
        status = "warned" if conditional or tight else "passed"
        credit = min(0.9, recommended.gpu_usable_bytes / recommended.gpu_need_bytes) if conditional else 0.9 if tight else 1.0
        share = f"{gigabytes(chosen.gpu_need_bytes)} of {gigabytes(chosen.gpu_usable_bytes)} on each GPU"
        if strategies()[chosen.strategy].offload != "none" and chosen.host_usable_bytes is not None:
            share += f", {gigabytes(chosen.host_need_bytes)} of {gigabytes(chosen.host_usable_bytes)} of RAM"
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


def _fastest(first: StrategyFit, tried: list[StrategyFit], recommended: str) -> StrategyFit:
    """The fastest of those that are as good as the recommended one and fit; the links decide, so that no order holds for all machines."""
    names = [one.strategy for one in tried]
    good = [one for one in tried[: names.index(recommended) + 1] if one.outcome == "fits"]
    chosen = first
    for one in good:
        if (one.tokens_per_second or 0) > CLEARLY_FASTER * (chosen.tokens_per_second or 0):
            chosen = one
    return chosen


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
