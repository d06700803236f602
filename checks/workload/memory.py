"""The bytes a run needs on each GPU, term by term, and in main memory.

The terms add up at three moments of a step: after the forward pass, when checkpoints and logits are there and gradients are not; after
the backward pass, when it is the other way round; and while the optimizer runs. The largest counts. With gradient accumulation
checkpoints and gradients are there at once.

Constants and where they come from:

- a 4-bit weight (NF4 with double quantisation) is 4 + 8/64 + 32/(64·256) = 4.127 bits (QLoRA paper, section 3);
- activations saved for one Llama layer with flash attention: 12·hidden + 4·kv + 8·feed-forward bytes a token (counted), times 1.37 for
  eager PyTorch (ml-engineering measured 28 copies of the hidden state where counting gives 20.5); without flash attention 5 bytes a head
  and pair of tokens more (Korthikanti et al. 2022);
- selective recomputation keeps a layer's input, the output of its attention and of every second matrix product (torchtitan; counted);
- logits, bytes a token and word: 16 in Hugging Face's eager path (bf16, fp32 copy, shifted copy, log-softmax, its gradient), 12 with one
  fp32 copy, 12/8 with head and loss in eight chunks, 0 where they are fused;
- allocator slack: 20 % of all that comes and goes (calibrated). Half of it (calibrated on the longest contexts that
  ran) is cached blocks, which PyTorch gives back before it fails;
- CUDA context and kernels 0.6 GiB (ml-engineering: 0.5 to 0.9 on PyTorch 2), NCCL 0.6 GiB with more than one GPU (0.5 to 1.4 seen);
- adapters keep a copy of their input, after dropout: 2 bytes each (PEFT);
- Adafactor on 16-bit weights works on three 32-bit copies of the matrix at hand (transformers);
- DeepSpeed's swapper keeps four buffers of a gigaparameter in 32 bits pinned for each GPU, at most a GPU's share (its default);
- main memory holds the weights once while they are loaded, whatever the number of nodes (processes share the file's pages; accelerate's
  first process makes 32-bit copies alone), and 16 GiB for everything else;
- NVML's total is 0.6 GiB more than PyTorch may have.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from checks.catalog import Architecture, Strategy, Workload
from checks.workload.architecture import (
    adaptable_parameters,
    embedding_parameters,
    layer_parameters,
    linear_parameters,
    lora_parameters,
    parameters,
)

GIB = 1 << 30
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
ALLOCATOR_SLACK = 0.20
GIVEN_BACK_SHARE = 0.5
SWAP_BUFFERS, SWAP_BUFFER_PARAMETERS = 4, 1_000_000_000
CUDA_CONTEXT_BYTES = int(0.6 * GIB)
NCCL_BYTES = int(0.6 * GIB)
RESERVED_BY_DRIVER_BYTES = int(0.6 * GIB)
LOADING_BYTES_FLOOR = 16 * GIB
ASSUMED_STORAGE_GBPS = 2.0
"""GB/s at which checkpoints are written, and states swapped, where the site does not say: the least of good storage."""
SERVING_SHARE = 0.90
SERVING_OVERHEAD_BYTES = int(1.5 * GIB)

Recompute = Literal["none", "selective", "full"]
Sharding = Literal["none", "optimizer", "gradients", "full", "hybrid"]
Offload = Literal["none", "optimizer", "all", "paged", "nvme"]


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What a training program keeps beyond what the arithmetic asks for: `layer_copies` times the activations of the layer at work, bytes a
    word and token for the logits. `head_apart`: embedding and head are gathered only while they are used; `adapter_copies`: adapters keep
    their inputs once more, after dropout; `fp32_embeddings`: what is not quantised is made 32-bit.
    """

    layer_copies: float = 1.37
    logits_bytes: float = 16
    head_apart: bool = False
    adapter_copies: bool = False
    fp32_embeddings: bool = False


EAGER = Runtime(adapter_copies=True)
"""Hugging Face transformers as it comes."""
COMPILED = Runtime(layer_copies=1.0, logits_bytes=12)
"""torch.compile, or fused kernels of one's own (torchtitan, Megatron)."""
CHUNKED_LOSS = Runtime(layer_copies=1.0, logits_bytes=12 / 8, head_apart=True)
"""Compiled, with head and loss in eight chunks (torchtune)."""
FUSED_LOSS = Runtime(layer_copies=1.0, logits_bytes=0)
"""Liger or Unsloth kernels: the logits never exist as a whole."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A training run as it is configured. Bytes are a trained parameter; `gpus` counts all of them over all `nodes`.

    `sharding`: what is spread over the data-parallel GPUs: nothing (DDP), the optimizer states (ZeRO-1), gradients too (ZeRO-2), weights
    too (ZeRO-3, FSDP), or these within each node (hybrid shard). `offload`: what lives in main memory: optimizer states and gradients
    (`optimizer`; Megatron's gradients stay on the GPU), weights too (`all`), only the states, which the GPU pages in (`paged`); or gradients
    there and states on local drives (`nvme`). `optimizer_copies`: 32-bit copies of the largest matrix that the optimizer works on.
    """

    model: Architecture
    method: Literal["full", "lora", "qlora"]
    gpus: int
    nodes: int = 1
    sequence_tokens: int
    micro_batch: int = 1
    accumulation: bool = False
    trained: int
    weight_bits: float
    adapter_bytes: float = 0
    gradient_bytes: float
    optimizer_bytes: float
    sharding: Sharding = "none"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    recompute: Recompute = "full"
    flash_attention: bool = True
    offload: Offload = "none"
    offload_activations: bool = False
    gradients_stay: bool = False
    optimizer_in_backward: bool = False
    optimizer_copies: int = 0
    unsharded_accumulation: bool = False
    reduce_bytes: int = 2
    host_factor: float = 1.0
    runtime: Runtime = EAGER

    @property
    def shards(self) -> int:
        """Over how many GPUs weights are spread, beside tensor and pipeline parallelism."""
        if self.sharding not in ("full", "hybrid"):
            return 1
        ranks = self.gpus // self.nodes if self.sharding == "hybrid" else self.gpus
        return max(1, ranks // (self.tensor_parallel * self.pipeline_parallel))

    @property
    def replicas(self) -> int:
        """How many GPUs see different tokens at the same time."""
        return max(1, self.gpus // (self.tensor_parallel * self.pipeline_parallel * self.context_parallel))

    @property
    def tokens(self) -> int:
        """The tokens whose activations one GPU holds in a micro-step; sequence parallelism comes with tensor parallelism."""
        return max(1, self.sequence_tokens * self.micro_batch // (self.tensor_parallel * self.context_parallel))


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs: bytes on each GPU by term, and bytes of main memory and of local drives on each node."""

    terms: dict[str, int]
    host_bytes: int
    nvme_bytes: int = 0

    @property
    def gpu_bytes(self) -> int:
        """What it takes where there is room."""
        return sum(self.terms.values())

    @property
    def least_gpu_bytes(self) -> int:
        """What it can do with: the allocator gives its cached blocks back before it fails."""
        return self.gpu_bytes - int(GIVEN_BACK_SHARE * self.terms.get("allocator slack", 0))

    def expected_bytes(self, usable: int) -> int:
        """What it takes on a GPU with so much."""
        return min(self.gpu_bytes, max(self.least_gpu_bytes, usable))


def usable_bytes(memory_total_bytes: int) -> int:
    """What a process can have of a GPU's memory as NVML reports it."""
    return max(0, memory_total_bytes - RESERVED_BY_DRIVER_BYTES)


def weight_bytes(model: Architecture, bits: float, *, fp32_embeddings: bool = False, served: bool = False) -> int:
    """All weights. In 4 and 8 bit only the linear layers are quantised; embeddings, head and norms stay 16-bit (Llama 3 70B in NF4:
    39.5 GB, not 35), or are made 32-bit by PEFT's preparation; experts stay 16-bit too, but where a model was quantised to be `served`."""
    if bits < 16:
        linear = linear_parameters(model) if served else adaptable_parameters(model)
        return int(linear * (NF4_BITS if bits == 4 else bits) / 8) + (4 if fp32_embeddings else 2) * (parameters(model) - linear)
    return int(parameters(model) * bits / 8)


def activation_bytes(model: Architecture) -> int:
    """Saved for one token in one layer, with flash attention and nothing recomputed: counted over the inputs of each operation."""
    wide = model.feed_forward * model.active_experts * (8 if model.gated else 4)
    query, key_value = model.heads * model.head_size, model.kv_heads * model.head_size
    return 8 * model.hidden + 4 * query + 4 * key_value + wide


def need(run: Run) -> Need:
    """The need of a run."""
    model, runtime = run.model, run.runtime
    parallel = run.tensor_parallel * run.pipeline_parallel
    weights = weight_bytes(model, run.weight_bits, fp32_embeddings=runtime.fp32_embeddings)
    gradients, optimizer = run.trained * run.gradient_bytes, run.trained * run.optimizer_bytes
    everybody = max(1, run.gpus // parallel)
    spread = run.gpus // run.nodes // parallel if run.sharding == "hybrid" else everybody
    over_gradients = spread if run.sharding in ("gradients", "full", "hybrid") else 1
    over_optimizer = spread if run.sharding != "none" else 1
    on_gpu = {
        "weights": weights / parallel / run.shards,
        "adapters": run.trained * run.adapter_bytes / parallel / run.shards,
        "optimizer": optimizer / parallel / max(1, over_optimizer),
    }
    resident_gradients = gradients / parallel / max(1, over_gradients)
    if run.unsharded_accumulation:
        resident_gradients += run.trained * 4 / parallel

    host, nvme = 0.0, 0.0
    if run.offload == "optimizer":
        host = (optimizer + (0 if run.gradients_stay else gradients)) * run.host_factor / run.nodes
    elif run.offload == "all":
        host = (weights + gradients + optimizer) * run.host_factor / run.nodes
        on_gpu = dict.fromkeys(on_gpu, 0.0)
    elif run.offload == "paged":
        host = optimizer * run.host_factor / run.nodes
    elif run.offload == "nvme":
        buffer = 4 * min(SWAP_BUFFER_PARAMETERS, run.trained / run.gpus)
        host = (gradients + SWAP_BUFFERS * buffer * run.gpus) / run.nodes
        nvme = (optimizer + gradients) / run.nodes
    if run.offload != "none":
        on_gpu["optimizer"] = 0.0
        resident_gradients *= run.offload == "paged" or run.gradients_stay
    host = max(host, weights) + LOADING_BYTES_FLOOR  # one copy while loading, and what is left for all else

    if run.optimizer_in_backward:
        resident_gradients = _largest_matrix(model) * run.gradient_bytes / parallel / max(1, over_gradients)

    at_work = {"gathered layers": _gathered(run), "layer at work": _layer_at_work(run)}
    passing = {"activations": _kept_activations(run), "logits": runtime.logits_bytes * model.vocabulary * run.tokens}
    held = {"gradients": resident_gradients}
    copies = {"optimizer at work": 4.0 * run.optimizer_copies * _largest_matrix(model) / parallel}
    moments: list[tuple[dict[str, float], dict[str, float]]] = [({}, at_work | passing), (held, at_work), (held, copies)]
    if run.accumulation or run.optimizer_in_backward:  # the head's gradient is there while nothing has gone yet
        moments.append((held, at_work | passing))
    kept, dynamic = max(moments, key=lambda one: sum(one[0].values()) + sum(one[1].values()))
    slack = ALLOCATOR_SLACK * sum(dynamic.values())
    fixed = CUDA_CONTEXT_BYTES + (NCCL_BYTES if run.gpus > 1 else 0)
    terms = {**on_gpu, **dynamic, **kept, "allocator slack": slack, "CUDA and NCCL": fixed}
    return Need(terms={name: int(size) for name, size in terms.items() if size}, host_bytes=int(host), nvme_bytes=int(nvme))


def _largest_matrix(model: Architecture) -> int:
    return model.hidden * max(model.vocabulary, model.feed_forward)


def _kept_activations(run: Run) -> float:
    """What the forward pass leaves for the backward: with full recomputation the inputs of the layers; with selective the input, the output
    of the attention, and every second of the outputs of query, key, value, output, gate, up and down."""
    model = run.model
    if run.recompute == "full":
        inputs = 2 if run.offload_activations else model.layers  # the one at work and the one that is copied
        return 2.0 * model.hidden * inputs * run.tokens
    if run.recompute == "selective":
        query, key_value, wide = model.heads * model.head_size, model.kv_heads * model.head_size, model.feed_forward * model.active_experts
        products = (query + 2 * key_value + 2 * model.hidden + (2 if model.gated else 1) * wide) / 2
        return 2.0 * (model.hidden + query + products) * model.layers * run.tokens
    return model.layers * _one_layer(run)


def _one_layer(run: Run) -> float:
    model = run.model
    scores = 0.0 if run.flash_attention else 5.0 * model.heads * run.sequence_tokens
    adapters = 2.0 * (6 * model.hidden + model.feed_forward) if run.method != "full" and run.runtime.adapter_copies else 0.0
    return (activation_bytes(model) * run.runtime.layer_copies + adapters + scores) * run.tokens


def _layer_at_work(run: Run) -> float:
    """The activations of the layer that is computed again; its quantised weights in 16 bits too; with tensor parallelism and split sequences
    the inputs of its attention and feed-forward, gathered, and an output before it is reduced (PyTorch's sequence parallelism)."""
    model = run.model
    matrices = adaptable_parameters(model) / model.layers if run.runtime.layer_copies > 1 else model.hidden * model.feed_forward
    unpacked = 2.0 * matrices if run.weight_bits < 16 else 0.0
    gathered = 3 * 2.0 * model.hidden * run.tokens * (run.tensor_parallel - 1)
    return (_one_layer(run) if run.recompute == "full" else 0.0) + unpacked + gathered


def _gathered(run: Run) -> float:
    """Whole layers that are there while they are used: the current and the prefetched one, embedding and head, and a layer's gradients."""
    if run.shards == 1 and run.offload != "all":
        return 0.0
    model = run.model
    bits = NF4_BITS if run.weight_bits == 4 else min(run.weight_bits, 16)
    if run.pipeline_parallel > 1:  # a stage keeps its weights gathered while its micro-batches pass
        return parameters(model) / (run.tensor_parallel * run.pipeline_parallel) * bits / 8
    layer = layer_parameters(model) / run.tensor_parallel
    head = 0.0 if run.runtime.head_apart else 2.0 * embedding_parameters(model) / run.tensor_parallel
    return 2 * layer * bits / 8 + head + (run.reduce_bytes * layer if run.method == "full" else 0)


def tensor_parallel_size(model: Architecture, gpus: int) -> int:
    """How many of the GPUs a server can spread a model over: as many as divide its heads."""
    return max(size for size in range(1, gpus + 1) if model.heads % size == 0)


def serving_need(model: Architecture, workload: Workload, strategy: Strategy, gpus: int) -> Need:
    """Weights and the key-value cache of one sequence, over as many GPUs as divide the heads; servers leave 10 % of the card
    and 1.5 GiB to others."""
    weights = weight_bytes(model, strategy.weight_bits, served=True)
    cache = 2 * model.layers * model.kv_heads * model.head_size * 2 * workload.sequence_tokens
    over = tensor_parallel_size(model, gpus)
    terms = {"weights": weights // over, "key-value cache": cache // over}
    terms["server's reserve"] = int(sum(terms.values()) * (1 / SERVING_SHARE - 1)) + SERVING_OVERHEAD_BYTES
    return Need(terms=terms, host_bytes=weights + LOADING_BYTES_FLOOR)


def checkpoint_bytes(model: Architecture, workload: Workload, method: str) -> int:
    """One resumable checkpoint: fp32 weights and both AdamW moments (12 bytes a parameter), or the adapters with theirs."""
    if method == "inference":
        return 0
    return 12 * (parameters(model) if method == "full" else lora_parameters(model, workload.lora_rank))
