"""The bytes a strategy needs on each GPU and in main memory, term by term.

The terms add up at two moments of a step: after the forward pass, when checkpoints and logits are there and gradients are not, and after
the backward pass, when it is the other way round; the larger counts. Without gradient accumulation the two never meet.

Constants and where they come from:

- a 4-bit weight (NF4 with double quantisation) is 4 + 8/64 + 32/(64·256) = 4.127 bits (QLoRA paper, section 3);
- activations saved for one Llama layer with flash attention: 12·hidden + 4·kv + 8·feed-forward bytes a token, times 1.37 for eager
  PyTorch (ml-engineering measured 28 copies of the hidden state where counting gives 20.5);
- logits: 16 bytes a token and word: bf16, fp32 copy, its gradient, and the loss's own copies in Hugging Face's eager path;
- allocator slack: 10 % of all that comes and goes (PyTorch's caching allocator);
- CUDA context and kernels 0.9 GiB, NCCL 1.0 GiB with more than one GPU (measured on A100 and H100 with PyTorch 2);
- NVML's total is 0.6 GiB more than PyTorch may have.
"""

from __future__ import annotations

import msgspec

from checks.catalog import Architecture, Strategy, Workload
from checks.workload.architecture import (
    embedding_parameters,
    layer_parameters,
    linear_parameters,
    lora_parameters,
    parameters,
)

GIB = 1 << 30
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
EAGER_COPIES = 1.37
LOGITS_BYTES = 16
ALLOCATOR_SLACK = 0.10
CUDA_CONTEXT_BYTES = int(0.9 * GIB)
NCCL_BYTES = GIB
RESERVED_BY_DRIVER_BYTES = int(0.6 * GIB)
LOADING_BYTES_FLOOR = 16 * GIB
SERVING_SHARE = 0.90
SERVING_OVERHEAD_BYTES = int(1.5 * GIB)


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy needs: bytes on each GPU by term, and bytes of main memory on each node."""

    terms: dict[str, int]
    host_bytes: int

    @property
    def gpu_bytes(self) -> int:
        return sum(self.terms.values())


def usable_bytes(memory_total_bytes: int) -> int:
    """What a process can have of a GPU's memory as NVML reports it."""
    return max(0, memory_total_bytes - RESERVED_BY_DRIVER_BYTES)


def weight_bytes(model: Architecture, bits: int) -> int:
    """All weights. In 4 bit only the linear layers are quantised; embeddings, head and norms stay 16-bit (Llama 3 70B: 39.5 GB, not 35)."""
    if bits == 4:
        linear = linear_parameters(model)
        return int(linear * NF4_BITS / 8) + 2 * (parameters(model) - linear)
    return parameters(model) * bits // 8


def need(model: Architecture, workload: Workload, strategy: Strategy, gpus: int, nodes: int = 1) -> Need:
    """The need of a strategy on `gpus` GPUs in all, spread over `nodes` nodes."""
    if strategy.method == "inference":
        return _serving(model, workload, strategy, gpus)
    frozen = strategy.method in ("lora", "qlora")
    shards = gpus if strategy.sharded else 1
    trained = lora_parameters(model, workload.lora_rank) if frozen else parameters(model)
    weights = weight_bytes(model, strategy.weight_bits)
    gradients = trained * strategy.gradient_bytes
    optimizer = trained * strategy.optimizer_bytes
    adapters = trained * 4 if frozen else 0
    tokens = workload.sequence_tokens * workload.micro_batch

    host = 0
    on_gpu = {"weights": weights // shards, "adapters": adapters // shards, "optimizer": optimizer // shards}
    resident_gradients = gradients // shards
    if strategy.offload == "optimizer":
        host = int((optimizer + gradients) * strategy.host_factor) // nodes
        on_gpu["optimizer"] = 0
        resident_gradients = 0
    elif strategy.offload == "all":
        host = int((weights + gradients + optimizer if not frozen else weights) * strategy.host_factor) // nodes
        on_gpu = dict.fromkeys(on_gpu, 0)
        resident_gradients = 0
    host += max(LOADING_BYTES_FLOOR, 0 if host else weights // nodes)  # one shared copy while loading, or what is left for everything else

    checkpoints = 2 * model.hidden * model.layers * tokens
    key_value = model.kv_heads * model.head_size
    layer = int((12 * model.hidden + 4 * key_value + 8 * model.feed_forward) * tokens * EAGER_COPIES)
    logits = LOGITS_BYTES * model.vocabulary * tokens
    gathered = _gathered(model, strategy, frozen) if shards > 1 or strategy.offload != "none" else 0
    fixed = CUDA_CONTEXT_BYTES + (NCCL_BYTES if gpus > 1 else 0)
    passing = {"checkpoints": checkpoints, "logits": logits}
    peak = passing if checkpoints + logits > resident_gradients else {"gradients": resident_gradients}
    dynamic = {"gathered layers": gathered, "layer at work": layer, **{k: v for k, v in peak.items() if k != "gradients"}}
    slack = int(ALLOCATOR_SLACK * sum(dynamic.values()))
    terms = {**on_gpu, **peak, **dynamic, "allocator slack": slack, "CUDA and NCCL": fixed}
    return Need(terms={name: size for name, size in terms.items() if size}, host_bytes=host)


def _gathered(model: Architecture, strategy: Strategy, frozen: bool) -> int:
    """Whole layers that are there while they are used: the current and the prefetched one, embedding and head, and a layer's gradients."""
    bits = NF4_BITS if strategy.weight_bits == 4 else 16
    layer = layer_parameters(model)
    return int(2 * layer * bits / 8) + 2 * embedding_parameters(model) + (0 if frozen else 2 * layer)


def _serving(model: Architecture, workload: Workload, strategy: Strategy, gpus: int) -> Need:
    """Weights and the key-value cache of one sequence, over all GPUs; servers leave 10 % of the card and 1.5 GiB to others."""
    weights = weight_bytes(model, strategy.weight_bits)
    cache = 2 * model.layers * model.kv_heads * model.head_size * 2 * workload.sequence_tokens
    terms = {"weights": weights // gpus, "key-value cache": cache // gpus}
    terms["server's reserve"] = int(sum(terms.values()) * (1 / SERVING_SHARE - 1)) + SERVING_OVERHEAD_BYTES
    return Need(terms=terms, host_bytes=weights + LOADING_BYTES_FLOOR)


def checkpoint_bytes(model: Architecture, workload: Workload, method: str) -> int:
    """One resumable checkpoint: fp32 weights and both AdamW moments (12 bytes a parameter), or the adapters with theirs."""
    if method == "inference":
        return 0
    return 12 * (parameters(model) if method == "full" else lora_parameters(model, workload.lora_rank))
