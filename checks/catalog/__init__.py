"""The catalog: cards, models, strategies and workloads, as data with their sources; validated when it is loaded."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

FOLDER = Path(__file__).parent
T = TypeVar("T")


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the entries: an unknown key is an error, not a typo that goes unnoticed."""


class GpuModel(CatalogEntry, frozen=True, kw_only=True):
    """A card as its maker describes it; units in the names, NVLink per direction and card.
    `hidden_nvswitches`: its board's are no PCI devices of their own (HGX B200 and B300: behind NICs). `chip_to_chip_gbps`: GB/s in each
    direction to a processor on the same module (NVLink-C2C), whose power `power_watts` has in it where `processor_included`."""

    key: str
    name: str
    architecture: str
    pci_ids: list[str]
    memory_mib: int
    memory_source: str = ""
    memory_ecc_off_mib: int | None = None
    bf16_tflops: float
    matmul_tflops: float | None = None
    memory_gbps: float
    nvlink: Literal["switch", "bridge", "none"]
    nvlinks: int | None = None
    hidden_nvswitches: bool = False
    nvlink_gbps: float = 0
    pcie_generation: int
    pcie_lanes: int
    power_watts: int
    processor_included: bool = False
    chip_to_chip_gbps: float = 0
    ecc: Literal["always", "on", "off", "none"]

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20


class Architecture(CatalogEntry, frozen=True, kw_only=True):
    """A decoder of the Llama kind: grouped-query attention, feed-forward (gated where `gated`, of several experts where there are), RMS
    norms. With an
    `attention_window` a token sees no more tokens before it. `aliases` are models of the same shape."""

    id: str
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    tied_embeddings: bool = False
    gated: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    norms: int = 2
    attention_window: int | None = None
    experts: int = 1
    active_experts: int = 1
    aliases: list[str] = msgspec.field(default_factory=list, name="as")


class Strategy(CatalogEntry, frozen=True, kw_only=True):
    """A way to run a workload: where the bytes of each state are. Bytes and bits are a parameter.

    `host_factor` multiplies the offloaded bytes: pinned staging buffers and the loading peak. `launcher` names the recipe that configures it.
    `tensor_parallel`: each node's GPUs share every layer, and only whole nodes are sharded over. `most_gpus`: the program knows no more.
    `optimizer_copies`: 32-bit copies of the largest matrix that the optimizer works on.
    """

    id: str
    title: str
    method: Literal["full", "lora", "qlora", "inference"]
    weight_bits: Literal[4, 16, 32]
    adapter_bytes: int = 0
    gradient_bytes: int
    optimizer_bytes: int
    sharding: Literal["none", "full", "hybrid"] = "none"
    offload: Literal["none", "optimizer", "all", "paged", "nvme"] = "none"
    offload_activations: bool = False
    optimizer_in_backward: bool = False
    optimizer_copies: int = 0
    tensor_parallel: bool = False
    most_gpus: int | None = None
    host_factor: float = 1.0
    launcher: Literal["fsdp", "deepspeed", "torchtitan", "torchtune", "unsloth", "ddp", "vllm"]
    optimizer: str = ""


class Workload(CatalogEntry, frozen=True, kw_only=True):
    """What is to run: the model, the sequence, the strategies from fast to slow, and what counts how much in its score.

    `minimum` and `wanted` are hardware beside the GPUs: `nvme_bytes` of local NVMe (or of the checkpoints' file system), and `network_gbps`
    to other nodes, all compute ports added up. Less than the minimum does not do; less than wanted warns. `rule_of_thumb`: what is
    commonly said, and where it holds.
    """

    id: str
    title: str
    model: str
    sequence_tokens: int
    micro_batch: int = 1
    lora_rank: int = 0
    nodes: int = 1
    strategies: list[str]
    recommended: str
    weights: dict[str, float]
    must_judge: list[str]
    minimum: dict[str, float]
    wanted: dict[str, float]
    rule_of_thumb: str = ""
    architecture: Architecture | None = None

    @property
    def shape(self) -> Architecture:
        """The model's architecture: its own, or the catalog's."""
        return self.architecture or architectures()[self.model]


class NicModel(CatalogEntry, frozen=True, kw_only=True):
    """A network adapter: its fastest port in Gb/s, and the PCIe link that carries it."""

    key: str
    pci_ids: list[str]
    port_gbps: float
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    driver: str


class Xid(CatalogEntry, frozen=True, kw_only=True):
    """What an Xid means, what NVIDIA says to do, how grave we take it, and the fix."""

    number: int
    meaning: str
    resolution: str
    severity: Literal["fail", "warn", "note"]
    fix: str


class _Nics(CatalogEntry, frozen=True, kw_only=True):
    nic: list[NicModel]


class _Xids(CatalogEntry, frozen=True, kw_only=True):
    xid: list[Xid]


class _Gpus(CatalogEntry, frozen=True, kw_only=True):
    gpu: list[GpuModel]


class _Models(CatalogEntry, frozen=True, kw_only=True):
    model: list[Architecture]


class _Workloads(CatalogEntry, frozen=True, kw_only=True):
    strategy: list[Strategy]
    workload: list[Workload]


def _load(name: str, kind: type[T]) -> T:
    return msgspec.convert(tomllib.loads((FOLDER / name).read_text(encoding="utf-8")), kind)


@cache
def gpu_models() -> dict[str, GpuModel]:
    """The cards by PCI id (`10de:2330`)."""
    return {pci_id: gpu for gpu in _load("gpus.toml", _Gpus).gpu for pci_id in gpu.pci_ids}


@cache
def cards() -> dict[str, GpuModel]:
    """The cards by key, in the order of the catalog: the usual of a kind first."""
    return {gpu.key: gpu for gpu in _load("gpus.toml", _Gpus).gpu}


@cache
def nic_models() -> dict[str, NicModel]:
    """The network adapters by PCI id."""
    return {pci_id: nic for nic in _load("nics.toml", _Nics).nic for pci_id in nic.pci_ids}


@cache
def xids() -> dict[int, Xid]:
    """The Xid policy by number."""
    return {xid.number: xid for xid in _load("xids.toml", _Xids).xid}


@cache
def architectures() -> dict[str, Architecture]:
    """The language models by id, and by the ids of models of the same shape."""
    return {name: model for model in _load("models.toml", _Models).model for name in (model.id, *model.aliases)}


@cache
def _workloads_file() -> _Workloads:
    return _load("workloads.toml", _Workloads)


@cache
def strategies() -> dict[str, Strategy]:
    """The strategies by id."""
    return {strategy.id: strategy for strategy in _workloads_file().strategy}


@cache
def workloads() -> dict[str, Workload]:
    """The workloads by id, in the order of the catalog."""
    return {workload.id: workload for workload in _workloads_file().workload}
