"""The configuration that runs a chosen strategy: a stub for the training program that is named in its first line."""

from __future__ import annotations

import json

from checks.catalog import Strategy, Workload
from checks.workload.memory import tensor_parallel_size, weight_bytes

TORCHTITAN_SIZES = {"llama-3-8b": "8b", "llama-3-70b": "70b", "llama-3.1-405b": "405b"}


def recipe(strategy: Strategy, workload: Workload, gpus: int, nodes: int) -> str:
    """A stub to start from: accelerate with FSDP2 or several processes, DeepSpeed ZeRO-3, torchtitan, torchtune, Unsloth or vLLM. `gpus` are
    a node's."""
    lines = {
        "fsdp": _fsdp,
        "deepspeed": _deepspeed,
        "torchtitan": _torchtitan,
        "torchtune": _torchtune,
        "unsloth": _unsloth,
        "ddp": _processes,
        "vllm": _serving,
    }
    return "\n".join(lines[strategy.launcher](strategy, workload, gpus, nodes)) + "\n"


def _trainer(strategy: Strategy, workload: Workload) -> list[str]:
    """What the training script sets beside it (transformers, TRL and PEFT)."""
    said = [
        f"optim={strategy.optimizer}{' (pip install torchao)' if strategy.optimizer == 'adamw_torch_8bit' else ''}",
        f"per_device_train_batch_size={workload.micro_batch}",
        f"max_length={workload.sequence_tokens}",
    ]
    said.append(
        "gradient_checkpointing=True" if strategy.launcher != "fsdp" else "gradient_checkpointing=False (the configuration does it)"
    )
    said.append("model in float32" if strategy.weight_bits == 32 else "model in bfloat16")
    if strategy.launcher == "fsdp" and strategy.weight_bits == 16 and strategy.method == "full":
        said.append("bf16=False (TRL's default would make the weights 32-bit)")
    if workload.lora_rank:
        said.append(f"LoraConfig(r={workload.lora_rank}, target_modules='all-linear')")
    if strategy.weight_bits == 4:
        said.append(
            "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True, "
            "bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.bfloat16)"
        )
    lines = ["# TRL's SFTConfig, and the model: " + "; ".join(said)]
    if strategy.launcher == "ddp":
        lines.append("# load the model with device_map={'': PartialState().process_index}: else every process holds it in RAM first")
    if strategy.launcher == "fsdp" and strategy.weight_bits == 4:
        whole = f"{weight_bytes(workload.shape, 4) / 1e9:.0f} GB"
        lines.append(
            f"# pip install 'transformers<5': 4.57 loads the 4-bit weights ({whole}) once, in RAM; 5 loads all of them on every GPU first"
        )
    return lines


def _fsdp(strategy: Strategy, workload: Workload, gpus: int, nodes: int) -> list[str]:
    mixed = "bf16" if strategy.weight_bits == 32 or strategy.method != "full" else '"no"'
    hybrid = strategy.sharding == "hybrid"
    return [
        "# accelerate launch --config_file fsdp.yaml train.py",
        "distributed_type: FSDP",
        "fsdp_config:",
        *(_fsdp1_for_bitsandbytes(hybrid) if strategy.weight_bits == 4 else ["  fsdp_version: 2", "  fsdp_reshard_after_forward: true"]),
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        f"  fsdp_offload_params: {'true' if strategy.offload == 'all' else 'false'}",
        "  fsdp_cpu_ram_efficient_loading: true",
        "  fsdp_activation_checkpointing: true",
        "  fsdp_state_dict_type: SHARDED_STATE_DICT",
        *(
            ["parallelism_config:", f"  parallelism_config_dp_replicate_size: {nodes}", f"  parallelism_config_dp_shard_size: {gpus}"]
            if hybrid and strategy.weight_bits != 4
            else []
        ),
        f"mixed_precision: {mixed}",
        f"num_machines: {nodes}",
        *(["machine_rank: 0  # each node its own", "main_process_ip: FIRST_NODE", "main_process_port: 29500"] if nodes > 1 else []),
        f"num_processes: {gpus * nodes}",
        *_trainer(strategy, workload),
    ]


def _fsdp1_for_bitsandbytes(hybrid: bool) -> list[str]:
    """FSDP 1 sends 4-bit weights from the first process to the others, which FSDP 2 does not (accelerate 1.16, fsdp2_prepare_model)."""
    return [
        "  fsdp_version: 1",
        f"  fsdp_sharding_strategy: {'HYBRID_SHARD' if hybrid else 'FULL_SHARD'}",
        "  fsdp_sync_module_states: true",
        "  fsdp_use_orig_params: false",
        "  fsdp_backward_prefetch: BACKWARD_PRE",
    ]


def _deepspeed(strategy: Strategy, workload: Workload, gpus: int, nodes: int) -> list[str]:
    zero: dict[str, object] = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True}
    if strategy.offload == "nvme":
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True, "buffer_count": 4}
    elif strategy.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if strategy.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    zero["stage3_gather_16bit_weights_on_model_save"] = True
    configuration = {
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": workload.micro_batch,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }
    hosts = f" --hostfile HOSTS --num_nodes {nodes}" if nodes > 1 else ""
    return [
        f"# deepspeed --num_gpus {gpus}{hosts} train.py --deepspeed zero3.json",
        *json.dumps(configuration, indent=2).splitlines(),
        *_trainer(strategy, workload),
    ]


def _torchtitan(strategy: Strategy, workload: Workload, gpus: int, nodes: int) -> list[str]:
    """The model's own configuration (torchtitan 0.3), with overrides; the checkpointing of activations is a subcommand, and comes last."""
    together = gpus if strategy.tensor_parallel else 1
    copies = nodes if strategy.sharding == "hybrid" else 1
    hosts = " --rdzv_backend c10d --rdzv_endpoint FIRST_NODE:29500" if nodes > 1 else ""
    size = TORCHTITAN_SIZES.get(workload.shape.id)
    named = f"--module llama3 --config llama3_{size}" if size else "--module MODULE --config CONFIG"
    return [
        *(
            []
            if size
            else [f"# torchtitan has no configuration for {workload.shape.name}: MODULE and CONFIG are yours to write, after llama3's"]
        ),
        "# torchtitan 0.3, on each node; WEIGHTS is a folder in Hugging Face's format, by its whole path",
        f"torchrun --nnodes {nodes} --nproc_per_node {gpus}{hosts} -m torchtitan.train {named} \\",
        "  --checkpoint.enable --checkpoint.initial_load_in_hf --checkpoint.initial_load_path WEIGHTS --hf_assets_path WEIGHTS \\",
        f"  --optimizer.implementation {strategy.optimizer} \\",
        f"  --training.local_batch_size {workload.micro_batch * together} --training.seq_len {workload.sequence_tokens} \\",
        f"  --parallelism.data_parallel_replicate_degree {copies} --parallelism.tensor_parallel_degree {together} \\",
        f"  --parallelism.data_parallel_shard_degree {gpus * nodes // together // copies} \\",
        "  --compile.enable activation-checkpoint:full",
    ]


def _torchtune(strategy: Strategy, workload: Workload, gpus: int, nodes: int) -> list[str]:
    """Overrides of the model's own single-device configuration."""
    del gpus, nodes
    return [
        "# torchtune: the model's *_full_single_device configuration, with these overrides",
        "tune run full_finetune_single_device --config llama3/8B_full_single_device \\",
        f"  optimizer._component_={strategy.optimizer} optimizer_in_bwd={strategy.optimizer_in_backward} \\",
        f"  batch_size={workload.micro_batch} gradient_accumulation_steps=1 tokenizer.max_seq_len={workload.sequence_tokens} \\",
        "  dtype=bf16 compile=True enable_activation_checkpointing=True",
    ]


def _unsloth(strategy: Strategy, workload: Workload, gpus: int, nodes: int) -> list[str]:
    del gpus, nodes
    return [
        "# Unsloth, in the training script; then TRL's SFTTrainer",
        f"model, tokenizer = FastLanguageModel.from_pretrained(MODEL, max_seq_length={workload.sequence_tokens}, load_in_4bit=True)",
        f'model = FastLanguageModel.get_peft_model(model, r={workload.lora_rank}, use_gradient_checkpointing="unsloth")',
        f"# SFTConfig(optim={strategy.optimizer!r}, per_device_train_batch_size={workload.micro_batch}, max_length={workload.sequence_tokens})",
    ]


def _processes(strategy: Strategy, workload: Workload, gpus: int, nodes: int) -> list[str]:
    several = " --multi_gpu" if gpus * nodes > 1 else ""
    first = f" --num_machines {nodes} --machine_rank RANK --main_process_ip FIRST_NODE --main_process_port 29500"
    hosts = first if nodes > 1 else ""
    return [
        f"# accelerate launch{several}{hosts} --num_processes {gpus * nodes} --mixed_precision bf16 train.py",
        *_trainer(strategy, workload),
    ]


def _serving(strategy: Strategy, workload: Workload, gpus: int, nodes: int) -> list[str]:
    del strategy, nodes
    together = tensor_parallel_size(workload.shape, gpus)
    return [f"# vllm serve MODEL-AWQ --tensor-parallel-size {together} --max-model-len {workload.sequence_tokens}"]
