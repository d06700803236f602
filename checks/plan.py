"""A machine that does not exist yet: what it would hold, what it is short of, and what power, cooling and network it asks for.

The verdict is the same as on a machine that is there: the same memory and step time, the same needs beside them, the same sum of watts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from checks.catalog import Architecture, GpuModel, NicModel, Workload, cards, nic_models, workloads
from checks.power import given_watts, spare_supplies, sum_of_parts
from checks.thresholds import Thresholds
from checks.ups import seconds_to_end
from checks.workload.architecture import parameters
from checks.workload.fit import Fit, Hardware, first_that_fits, fit_on, method_of
from checks.workload.memory import ASSUMED_STORAGE_GBPS
from checks.workload.requirements import Requirement, judged, room_for_checkpoints

DRIVE_BYTES = 3.84e12
SHUTDOWN_SECONDS = 120.0
FEEDS = (("230 V, one phase", 230.0), ("400 V, three phases", 400.0 * 3**0.5))
OTHER_NETWORKS = (("25 GbE", 25.0), ("100 Gb/s RoCE", 100.0), ("one 400 Gb/s port", 400.0), ("400 Gb/s a GPU", 0.0))
USUAL_CARDS = (
    "rtx4090", "rtx5090", "rtxpro6000-srv", "l40s-48", "a100-sxm-40", "a100-sxm-80", "h100-pcie-80", "h100-nvl-94", "h100-sxm-80",
    "h200-sxm-141", "b200-180", "b300-270",
)  # fmt: skip
COUNTS = (1, 2, 4, 8)
NODES = (1, 2, 4, 8, 16, 32)
BASES = {"full": "full-70b", "lora": "lora-70b", "qlora": "qlora-70b", "serve": "inference-70b-4bit"}
TITLES = {"full": "Full fine-tune", "lora": "LoRA fine-tune", "qlora": "QLoRA fine-tune", "serve": "Serving in 4 bit"}
Cooling = Literal["air", "rear-door", "direct-to-chip"]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, as one would order it. `nvme_bytes` is a node's; supplies are their number and watts."""

    card: GpuModel
    gpus: int
    nodes: int = 1
    ram_bytes: int | None = None
    nvme_bytes: int | None = None
    nic: NicModel | None = None
    nics: int = 0
    supplies: tuple[int, int] | None = None
    redundancy: Literal["N", "N+1", "N+N"] | None = None
    cooling: Cooling | None = None
    write_gbps: float | None = None
    sockets: int = 2

    @property
    def network_gbps(self) -> float:
        """One node's rate to the others."""
        return self.nic.port_gbps * self.nics if self.nic else 0.0


class PlannedFit(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on it; `networks` are tokens/s over other networks, where it spans nodes."""

    workload: str
    title: str
    fit: Fit
    networks: dict[str, float]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One line about the place: power, UPS, cooling, network. `short` where the plan does not do."""

    subject: str
    summary: str
    short: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Watts are at the wall."""

    machine: Planned
    fits: list[PlannedFit]
    peak_terms: dict[str, float]
    advice: list[Advice]


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest machine with a card that holds a workload."""

    card: str
    gpus: int
    nodes: int
    strategy: str
    gpu_need_bytes: int
    gpu_usable_bytes: int
    host_need_bytes: int
    tokens_per_second: float | None
    peak_watts: float
    recommended: bool


class NotFound(LookupError):  # noqa: N818
    """No card or adapter of that name."""


def find_card(name: str) -> GpuModel:
    """The first card of the catalog with all words of `name`, else with them written together: `H100 SXM`, `RTX4090`, `a100-sxm-80`.
    Raises `NotFound`."""
    named = [(card, f"{card.key} {card.name}") for card in cards().values()]
    words = _words(name)
    whole = (card for card, text in named if words and words <= _words(text))
    joined = "".join(_word_list(name))
    part = (card for card, text in named if len(joined) > 2 and _begins(joined, _word_list(text)))
    found = cards().get(name.lower()) or next(whole, None) or next(part, None)
    if found is None:
        raise NotFound(name)
    return found


def find_nic(name: str) -> NicModel:
    """The adapter: `ConnectX-7 NDR`, `cx6`, `thor2`. Raises `NotFound`."""
    plain = re.sub(r"connect-?x-?\s*", "cx", name.lower())
    plain = re.sub(r"bluefield-?\s*", "bf", plain)
    words = [word for word in re.split(r"[^a-z0-9]+", plain) if word]
    models = {model.key: model for model in nic_models().values()}
    if words and words[0] in models:
        return models[words[0]]
    raise NotFound(name)


def _words(text: str) -> set[str]:
    return set(_word_list(text))


def _word_list(text: str) -> list[str]:
    """The words of a card's name, without those that all cards share: `NVIDIA A100-SXM4-80GB` is a100, sxm and 80."""
    words = (re.sub(r"^sxm\d$", "sxm", word.removesuffix("gb")) for word in re.split(r"[^a-z0-9]+", text.lower()))
    return [word for word in words if word not in ("", "nvidia", "geforce", "tesla", "tensor", "core", "gpu")]


def _begins(joined: str, words: list[str]) -> bool:
    """Whether some words in a row, written together, begin so: `rtx4090` in rtx, 4090; not `rtx5000` in rtx, a5000."""
    return any("".join(words[start:]).startswith(joined) for start in range(len(words)))


def chosen_workloads(
    model: Architecture | None, method: str | None, sequence: int | None, batch: int | None, nodes: int = 1
) -> list[Workload]:
    """The catalog's workloads (those over several nodes where there are several); or with a model or a method those of that kind, over all
    nodes, with the model put in."""
    if model is None and method is None:
        picked = [
            msgspec.structs.replace(one, nodes=nodes if one.nodes > 1 else 1) for one in workloads().values() if one.nodes == 1 or nodes > 1
        ]
    else:
        kinds = {kind: _base(kind, 1 if kind == "serve" else nodes) for kind in BASES if method in (None, kind)}
        picked = [_of_model(kind, base, model) if model else base for kind, base in kinds.items()]
    if method == "qlora":  # on its own it may be slow too
        picked = [
            msgspec.structs.replace(one, strategies=[*one.strategies, *workloads()["qlora-70b-offload"].strategies]) for one in picked
        ]
    return [
        msgspec.structs.replace(one, sequence_tokens=sequence or one.sequence_tokens, micro_batch=batch or one.micro_batch)
        for one in picked
    ]


def _base(kind: str, nodes: int) -> Workload:
    """The catalog's workload of a kind; a full fine-tune also by the ways of small models, and over several nodes by those of a cluster."""
    found = workloads()[BASES[kind]]
    if kind == "full" and nodes > 1:
        found = workloads()["full-70b-cluster"]
    elif kind == "full":
        both = [*workloads()["full-8b"].strategies, *found.strategies]
        found = msgspec.structs.replace(found, strategies=list(dict.fromkeys(both)))
    return msgspec.structs.replace(found, nodes=nodes)


def _of_model(kind: str, workload: Workload, model: Architecture) -> Workload:
    """The workload with another model; the storage it wants grows and shrinks with the model."""
    share = parameters(model) / parameters(workload.shape)
    return msgspec.structs.replace(
        workload,
        id=f"{kind}-{model.id}",
        title=f"{TITLES[kind]} of {model.name}",
        architecture=model,
        minimum={**workload.minimum, "nvme_bytes": workload.minimum["nvme_bytes"] * share},
        wanted={**workload.wanted, "nvme_bytes": workload.wanted["nvme_bytes"] * share},
    )


def plan(machine: Planned, chosen: Iterable[Workload]) -> Plan:
    """What the machine holds and asks for."""
    thresholds = Thresholds()
    hardware = _hardware(machine)
    terms = peak_terms(machine)
    fits = [_fit(machine, hardware, workload) for workload in chosen]
    advice = [*_power(machine, sum(terms.values()), thresholds), _cooling(machine, sum(terms.values()), thresholds)]
    advice += [_ups(machine, sum(terms.values()), fits, thresholds), *_network(machine)]
    return Plan(machine=machine, fits=fits, peak_terms=terms, advice=advice)


def _hardware(machine: Planned, network_gbps: float | None = None) -> Hardware:
    return Hardware(
        gpus=machine.gpus,
        gpu_memory_bytes=machine.card.memory_bytes,
        host_bytes=machine.ram_bytes,
        nvme_bytes=machine.nvme_bytes,
        storage_gbps=machine.write_gbps or ASSUMED_STORAGE_GBPS,
        card=machine.card,
        network_gbps=machine.network_gbps if network_gbps is None else network_gbps,
    )


def peak_terms(machine: Planned) -> dict[str, float]:
    """The sum of watts of one node."""
    switches = 4 if machine.card.nvlink == "switch" and machine.gpus >= 8 else 0
    return sum_of_parts(
        gpu_watts=float(machine.gpus * machine.card.power_watts),
        processors=0 if machine.card.processor_included else machine.sockets,
        nvswitches=switches,
        nics=machine.nics,
        drives=max(1, round((machine.nvme_bytes or DRIVE_BYTES) / DRIVE_BYTES)),
        ram_bytes=machine.ram_bytes or 0,
        liquid=machine.cooling == "direct-to-chip",
    )


def _fit(machine: Planned, hardware: Hardware, workload: Workload) -> PlannedFit:
    """On as many nodes as the workload spans."""
    nodes = workload.nodes
    needs = _needs(machine, workload, nodes)
    fitted = fit_on(hardware, workload, nodes, needs)
    networks: dict[str, float] = {}
    if nodes > 1:
        for name, rate in OTHER_NETWORKS:
            other = fit_on(_hardware(machine, rate or 400.0 * machine.gpus), workload, nodes, [])
            speeds = [one.tokens_per_second for one in other.strategies if one.strategy == other.strategy and one.tokens_per_second]
            networks |= {name: speeds[0]} if speeds else {}
    return PlannedFit(workload=workload.id, title=workload.title, fit=fitted, networks=networks)


def _needs(machine: Planned, workload: Workload, nodes: int) -> list[Requirement]:
    found = []
    method = method_of(workload)
    size = None if machine.nvme_bytes is None else float(machine.nvme_bytes)
    if "nvme_bytes" in workload.wanted:
        found.append(
            judged("storage", size, workload.minimum.get("nvme_bytes", 0.0), workload.wanted["nvme_bytes"], "TB", 1e12, "no --nvme")
        )
    if method != "inference":
        one, wanted = room_for_checkpoints(workload, method, 3)
        found.append(judged("room for checkpoints", size, one, wanted, "TB", 1e12, "no --nvme"))
    if nodes > 1:
        least, wish = _network_needs(workload, method)
        found.append(judged("network between nodes", machine.network_gbps, least, wish, "Gb/s", 1))
    return found


def _network_needs(workload: Workload, method: str) -> tuple[float, float]:
    """The least rate between nodes in Gb/s, and the one that is wanted: a full fine-tune moves every weight and gradient in each step, and
    needs what the 70B cluster needs, by its size; adapters are small: any network does, and the estimate tells what it costs."""
    cluster = workloads()["full-70b-cluster"]
    if method != "full":
        return 1.0, 1.0
    share = min(1.0, parameters(workload.shape) / parameters(cluster.shape))
    return cluster.minimum["network_gbps"] * share, cluster.wanted["network_gbps"] * share


def _power(machine: Planned, peak: float, thresholds: Thresholds) -> list[Advice]:
    found = []
    if machine.supplies is not None:
        number, watts = machine.supplies
        scheme = machine.redundancy or ("N+1" if number > 1 else "N")
        left = (number - spare_supplies(scheme, number)) * watts
        given = given_watts(peak)
        words = f"{number} × {watts} W, {scheme} leaves {left / 1000:.1f} kW for the {given / 1000:.1f} kW that they have to give"
        words += ": too little, even with all" if given > number * watts else ": holds only without redundancy" if given > left else ""
        found.append(Advice(subject="supplies", summary=words, short=given > left))
    amps = "; ".join(f"{name}: {math.ceil(peak / volts / thresholds.pdu_continuous_share)} A of breaker" for name, volts in FEEDS)
    return [*found, Advice(subject="PDU", summary=f"each feed of each node, at {thresholds.pdu_continuous_share:.0%} load: {amps}")]


def _cooling(machine: Planned, peak: float, thresholds: Thresholds) -> Advice:
    heat = peak * machine.nodes
    words = f"{heat / 1000:.1f} kW of heat ({heat * 3.412 / 1000:.0f} kBTU/h)"
    if heat > thresholds.air_limit_watts:
        cure = (
            f"{machine.cooling} cooling carries it"
            if machine.cooling not in (None, "air")
            else "a rear-door heat exchanger or direct-to-chip cooling"
        )
        words += f", more than the {thresholds.air_limit_watts / 1000:g} kW that air carries: {cure}"
    return Advice(subject="cooling", summary=words, short=heat > thresholds.air_limit_watts and machine.cooling in (None, "air"))


def _ups(machine: Planned, peak: float, fits: list[PlannedFit], thresholds: Thresholds) -> Advice:
    held = [one.fit.checkpoint_bytes for one in fits if one.fit.strategy]
    seconds, words = seconds_to_end(max(held, default=0), machine.write_gbps, thresholds.ups_detect_seconds, SHUTDOWN_SECONDS)
    size = peak * machine.nodes / thresholds.ups_load_share
    return Advice(
        subject="UPS", summary=f"{math.ceil(size / 100) / 10:g} kW at {thresholds.ups_load_share:.0%} load, for {seconds:.0f} s: {words}"
    )


def _network(machine: Planned) -> list[Advice]:
    if machine.nodes == 1:
        return []
    rate = machine.network_gbps
    ethernet = machine.nic is not None and (machine.nic.driver != "mlx5" or machine.nic.key == "cx4lx")
    if not rate:
        return [
            Advice(
                subject="network", summary="the nodes have no network adapter for each other: name one with --nic and --nics", short=True
            )
        ]
    if machine.nodes == 2:
        words = "no switch: each port by a cable to its like on the other node"
        words += "" if ethernet else "; InfiniBand needs a subnet manager (opensm) on one of them"
    else:
        lossless = "lossless Ethernet (RoCE v2 with PFC and ECN)"
        words = (
            f"a switch with {machine.nodes * machine.nics} ports: {lossless if ethernet else f'InfiniBand; or {lossless}, the budget way'}"
        )
    return [Advice(subject="network", summary=f"{rate:g} Gb/s a node; {words}")]


def smallest(workload: Workload, keys: Iterable[str] = USUAL_CARDS) -> list[Configuration]:
    """For each of the cards the smallest machine that holds the workload, and where that is another the smallest that runs it as recommended."""
    found: list[Configuration] = []
    names = list(workload.strategies)
    for card in (cards()[key] for key in keys if cards()[key].bf16_tflops):
        least: Configuration | None = None
        for nodes, gpus in sorted(
            ((nodes, gpus) for nodes in NODES for gpus in COUNTS if nodes == 1 or gpus == 8), key=lambda one: one[0] * one[1]
        ):
            machine = Planned(
                card=card, gpus=gpus, nodes=nodes, ram_bytes=1 << 50, nvme_bytes=1 << 50, nic=nic_models()["15b3:1021"], nics=gpus
            )
            chosen = first_that_fits(_hardware(machine), workload, nodes)
            if chosen is None or (least is not None and names.index(chosen.strategy) > names.index(workload.recommended)):
                continue
            recommended = names.index(chosen.strategy) <= names.index(workload.recommended)
            least = Configuration(
                card=card.name,
                gpus=gpus,
                nodes=nodes,
                strategy=chosen.title,
                gpu_need_bytes=chosen.gpu_need_bytes,
                gpu_usable_bytes=chosen.gpu_usable_bytes,
                host_need_bytes=chosen.host_need_bytes,
                tokens_per_second=chosen.tokens_per_second,
                peak_watts=sum(
                    peak_terms(
                        msgspec.structs.replace(machine, ram_bytes=chosen.host_need_bytes, nvme_bytes=chosen.nvme_need_bytes or None)
                    ).values()
                )
                * nodes,
                recommended=recommended,
            )
            found.append(least)
            if recommended:
                break
    return found
