"""How long a step takes: arithmetic, memory traffic and transfers, and which of them binds.

A micro-step: the matrix products run at a share of the card's real matmul rate; weights in 4 bit are unpacked through its memory; layers are
gathered, and gradients reduced, over NVLink or PCIe inside the node and over the network between nodes; offloaded weights and gradients
pass PCIe. Transfers overlap with the arithmetic to a share; the rest is added. Once a step the optimizer runs, where its states are; from
local drives they are read, and written back.

Constants and where they come from:

- a multiplication and an addition a weight and token: forward 2, backward 4 (2 where weights are frozen), recomputation 2 more;
  attention 4·layers·width forward for each token that is seen, on average half of the sequence;
- the real matmul rate where ml-engineering measured it (MAMF), else 80 % of the data sheet's;
- a training program reaches 69 % of that (calibrated; published runs on A100 and H100 lie between 50 and 80 %), attention half of it
  (FlashAttention-2: 35 % of an H100, in the FlashAttention-3 paper); matrix products in 8 bits make it 1.5 times as quick (torchao's float8:
  up to 1.5 from end to end); a lowered power limit slows in proportion;
- ring collectives reach 80 % of NVLink's rate (nccl-tests on H100: 360 to 370 of 450 GB/s), 85 % of the network's; PCIe cards 40 % of
  PCIe's (12 of 31.5 GB/s over generation 4), workstation and GeForce cards 10 %, through main memory (calibrated: FSDP on RTX 3090 and
  RTX 6000 Ada, 2.7 GB/s);
- PCIe copies reach 80 % of lanes × rate; main memory 200 GB/s, of which AdamW in bf16 touches 14 bytes a parameter, in fp32 30;
- 70 % of the arithmetic hides transfers (calibrated).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from checks.catalog import GpuModel
from checks.workload.architecture import active_parameters, parameters
from checks.workload.memory import ASSUMED_STORAGE_GBPS, NF4_BITS, Run, weight_bytes

REAL_SHARE = 0.80
EFFICIENCY = 0.69
ATTENTION_SHARE = 0.5
FP8_GAIN = 1.5
MICRO_STEPS_A_STAGE = 8
NVLINK_SHARE = 0.80
NETWORK_SHARE = 0.85
PEER_TO_PEER_SHARE = 0.40
THROUGH_HOST_SHARE = 0.10
COPY_SHARE = 0.80
OVERLAP = 0.70
HOST_MEMORY_BYTES_S = 200e9
HBM_SHARE = 0.80
LANE_GBPS = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s a lane and direction by PCIe generation."""

Limit = Literal["compute", "GPU memory", "NVLink", "PCIe", "network", "RAM", "storage"]


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's GPUs are connected with, in bytes/s: `peers` one GPU's way to the others of its node and its kind, `host` one GPU's way to
    main memory, `network` one node's way to the others (0: none), `storage` one node's way to its drives."""

    peers: float
    peers_kind: Literal["NVLink", "PCIe"]
    host: float
    network: float = 0.0
    storage: float = ASSUMED_STORAGE_GBPS * 1e9


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate: tokens/s of all GPUs, the seconds of a micro-step by what they are spent on, and what binds."""

    tokens_per_second: float
    seconds: dict[str, float]
    limit: Limit


def links(
    card: GpuModel,
    *,
    network_gbps: float = 0.0,
    pcie_gbps: float | None = None,
    bridged: bool = True,
    storage_gbps: float = ASSUMED_STORAGE_GBPS,
) -> Links:
    """The links of a node with such cards; `pcie_gbps` is one GPU's real link in GB/s, where it is known, `storage_gbps` the drives' GB/s."""
    pcie = (pcie_gbps or card.pcie_lanes * LANE_GBPS.get(card.pcie_generation, 0.985)) * 1e9
    with_nvlink = card.nvlink == "switch" or (card.nvlink == "bridge" and bridged and card.nvlink_gbps > 0)
    between = PEER_TO_PEER_SHARE if card.ecc == "always" else THROUGH_HOST_SHARE
    return Links(
        peers=card.nvlink_gbps * 1e9 * NVLINK_SHARE if with_nvlink else pcie * between,
        peers_kind="NVLink" if with_nvlink else "PCIe",
        host=(card.chip_to_chip_gbps * 1e9 or pcie) * COPY_SHARE,
        network=network_gbps / 8 * 1e9 * NETWORK_SHARE,
        storage=storage_gbps * 1e9,
    )


def flops_a_token(run: Run) -> tuple[float, float]:
    """Forward, backward and recomputation for one token: of the weights, and of the attention between tokens."""
    model = run.model
    tokens = run.sequence_tokens
    window = min(tokens, model.attention_window or tokens)
    seen = window - window**2 / (2 * tokens)  # by a token, on average: half of the sequence, or nearly the window
    forward = 2.0 * active_parameters(model), 4.0 * model.layers * seen * model.heads * model.head_size
    again = {"none": 0.0, "selective": 0.0, "full": 1.0}[run.recompute]
    return forward[0] * ((3.0 if run.method == "full" else 2.0) + again), forward[1] * (3.0 + again)


def matmul_rate(card: GpuModel) -> float:
    """The matrix products a second (FLOP/s) that the card really reaches."""
    return (card.matmul_tflops or card.bf16_tflops * REAL_SHARE) * 1e12


def speed(run: Run, card: GpuModel, link: Links, *, accumulation_steps: int = 1, power_share: float = 1.0, fp8: bool = False) -> Speed:
    """The estimate for a run on such cards with such links, with so many micro-steps to a step; `power_share` of the card's power is allowed."""
    parallel = run.tensor_parallel * run.pipeline_parallel * run.context_parallel
    tokens = run.sequence_tokens * run.micro_batch
    weights, attention = flops_a_token(run)
    work = weights / (FP8_GAIN if fp8 else 1.0) + attention / ATTENTION_SHARE
    compute = tokens / parallel * work / (matmul_rate(card) * EFFICIENCY * min(1.0, power_share))
    unpacked = _unpacking_bytes(run) / (card.memory_gbps * 1e9 * HBM_SHARE)
    tensor = _tensor_parallel_bytes(run) / link.peers
    inside, between = _gathered_bytes(run, accumulation_steps)
    transfers = {"network": 0.0, "PCIe": 0.0, link.peers_kind: inside / link.peers}
    if between:
        transfers["network"] = between / link.network if link.network else float("inf")
    transfers["PCIe"] += _copied_bytes(run, accumulation_steps) / link.host
    optimizer = _host_optimizer_bytes(run) / HOST_MEMORY_BYTES_S / accumulation_steps
    exposed = max(0.0, max(transfers.values()) - OVERLAP * (compute + unpacked))
    swapped = _swapped_bytes(run) / link.storage / accumulation_steps
    stages = run.pipeline_parallel
    bubble = 1 + (stages - 1) / max(accumulation_steps, MICRO_STEPS_A_STAGE * stages)
    total = (compute + unpacked + tensor + exposed) * bubble + optimizer + swapped
    spent = {"compute": compute, "GPU memory": unpacked, **transfers, "RAM": optimizer, "storage": swapped}
    spent[link.peers_kind] += tensor
    return Speed(
        tokens_per_second=tokens * run.replicas / total,
        seconds={name: time for name, time in spent.items() if time},
        limit=max(spent, key=lambda name: spent[name]),  # type: ignore[arg-type]
    )


def _unpacking_bytes(run: Run) -> float:
    """Weights in 4 or 8 bit are read, written in 16 bits, and read again, in each pass."""
    if run.weight_bits >= 16:
        return 0.0
    passes = 3 if run.recompute == "full" else 2
    return passes * parameters(run.model) * (run.weight_bits / 8 + 4) / (run.tensor_parallel * run.pipeline_parallel)


def _tensor_parallel_bytes(run: Run) -> float:
    """Two all-reduces of the hidden state a layer and pass (Megatron-LM)."""
    degree = run.tensor_parallel
    passes = 3 if run.recompute == "full" else 2
    tokens = run.sequence_tokens * run.micro_batch / run.context_parallel
    layers = run.model.layers / run.pipeline_parallel
    return 2 * passes * layers * 2 * (degree - 1) / degree * tokens * run.model.hidden * 2


def _gathered_bytes(run: Run, accumulation_steps: int) -> tuple[float, float]:
    """What a micro-step moves, by one GPU inside the node and by the whole node to the others: weights gathered twice and gradients reduced
    in each micro-step where weights are sharded, else gradients once a step. In a ring a node's links carry the ring's bytes once."""
    model = run.model
    parallel = run.tensor_parallel * run.pipeline_parallel
    bits = NF4_BITS if run.weight_bits == 4 else min(run.weight_bits, 16)
    trained = run.trained / parallel * run.reduce_bytes
    if run.shards > 1:
        weights = 2 * weight_bytes(model, bits) / parallel
        ring = (weights + trained) * (run.shards - 1) / run.shards
        if run.sharding == "hybrid":
            return ring, 2 * trained * parallel * (run.nodes - 1) / run.nodes / accumulation_steps
        return ring, ring * run.tensor_parallel if run.nodes > 1 else 0.0
    replicas = max(1, run.gpus // parallel)
    ring = 2 * trained * (replicas - 1) / replicas / accumulation_steps
    return ring, ring if run.nodes > 1 else 0.0


def _copied_bytes(run: Run, accumulation_steps: int) -> float:
    """What one GPU copies from and to main memory in a micro-step."""
    weights = weight_bytes(run.model, min(run.weight_bits, 16)) / max(1, run.gpus)
    gradients = run.trained * run.gradient_bytes / run.gpus
    copied = 0.0
    if run.offload == "all":
        copied += 2 * weights + gradients
    elif run.offload in ("optimizer", "nvme"):
        copied += (gradients + weights) / accumulation_steps
    elif run.offload == "paged":
        copied += 2 * run.trained * run.optimizer_bytes / run.gpus / accumulation_steps
    if run.offload_activations:
        copied += 2 * 2.0 * run.model.hidden * run.model.layers * run.tokens
    return copied


def _host_optimizer_bytes(run: Run) -> float:
    """What AdamW touches in main memory in a step, on one node."""
    if run.offload not in ("optimizer", "all", "nvme") or run.method != "full":
        return 0.0
    return run.trained * (14 if run.optimizer_bytes <= 4 else 30) / run.nodes


def _swapped_bytes(run: Run) -> float:
    """Optimizer states and gradients that are read from the drives and written to them in a step, on one node."""
    return 2.0 * run.trained * (run.optimizer_bytes + run.gradient_bytes) / run.nodes if run.offload == "nvme" else 0.0
