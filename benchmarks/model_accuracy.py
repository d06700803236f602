"""The workload model against published runs: predicted and measured, row by row, and beside them what others' formulas say.

    python benchmarks/model_accuracy.py FILE.csv

The file has a run in each row: id, model, params_b, method, states_or_quant, gpus, gpu, nodes, seq, micro_batch, grad_accum, act_ckpt,
offload, parallelism, peak_mem_per_gpu, mem_unit, mem_kind, tok_s_total, outcome, source. A row that cannot be expressed is listed with the
reason. Nothing here is fitted to a row: `PROGRAMS` tells what a training program does, and holds for all of its rows.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from pathlib import Path
from typing import Literal

import msgspec

from checks.catalog import Architecture, GpuModel, architectures, cards
from checks.workload.architecture import embedding_parameters, lora_parameters, parameters
from checks.workload.memory import (
    CHUNKED_LOSS,
    COMPILED,
    EAGER,
    FUSED_LOSS,
    GIB,
    Need,
    Offload,
    Recompute,
    Run,
    Runtime,
    Sharding,
    need,
    usable_bytes,
)
from checks.workload.speed import links, speed

SHORT_SEQUENCE, USUAL_SEQUENCE = 512, 2048
"""Where none is stated: a run that ran did so with some sequence, one that did not would not with a usual one."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What a training program does, as its code says."""

    source: str
    runtime: Runtime
    adapter_state_bytes: tuple[float, float, float] = (4, 4, 8)
    targets: tuple[str, ...] = ("query", "key", "value", "output", "feed-forward")
    rank: int = 16
    accumulates_in_full: bool = False
    reduce_bytes: int = 2


PREPARED = msgspec.structs.replace(EAGER, fp32_embeddings=True)
"""With PEFT's `prepare_model_for_kbit_training`, which makes embeddings, head and norms 32-bit where the rest is quantised."""
PROGRAMS = [
    Program(source="HF + FA2", runtime=PREPARED, rank=32),
    Program(source="torchtune", runtime=CHUNKED_LOSS, adapter_state_bytes=(2, 2, 4), targets=("query", "value", "output", "feed-forward")),
    Program(source="AnswerDotAI", runtime=Runtime(logits_bytes=12), adapter_state_bytes=(2, 2, 4), rank=8),
    Program(source="unsloth", runtime=FUSED_LOSS, rank=32),
    Program(source="QwenLM/Qwen README", runtime=Runtime(logits_bytes=8), rank=64),
    Program(source="ms-swift", runtime=EAGER, rank=8),
    Program(source="torchtitan", runtime=COMPILED),
    Program(source="Kempner", runtime=COMPILED, reduce_bytes=4, accumulates_in_full=True),
    Program(source="litgpt", runtime=Runtime(logits_bytes=10), adapter_state_bytes=(2, 2, 4), targets=("query", "value"), rank=8),
    Program(source="llm-foundry", runtime=COMPILED),
    Program(source="NeMo", runtime=COMPILED),
    Program(source="", runtime=EAGER),
]  # fmt: skip


class Unexpressed(Exception):  # noqa: N818
    """Why a row cannot be expressed."""


def number(text: str) -> float | None:
    """A number, the middle of a range (`72-80`), the larger of two (`73+78`); None for none."""
    found = [float(one) for one in re.findall(r"\d+(?:\.\d+)?", text)]
    if not found:
        return None
    return sum(found[:2]) / 2 if re.fullmatch(r"[\d.]+-[\d.]+", text.strip()) else max(found) if "+" in text else found[0]


def architecture(name: str) -> Architecture:
    """The model of a row."""
    plain = re.sub(r"\s*\(v1\)", "", name.split(" / ")[0]).strip().lower()
    dense = {
        "7b dense": "llama-2-7b",
        "13b dense": "llama-2-13b",
        "33b dense": "llama-33b",
        "175b dense": "gpt-175b",
        "llama-70b": "llama-2-70b",
    }
    key = dense.get(plain, plain)
    if key not in architectures():
        raise Unexpressed(f"no architecture for {name}")
    return architectures()[key]


CARDS = [
    ("H100 96GB", "h100-sxm-96"), ("H100", "h100-sxm-80"), ("H200", "h200-sxm-141"), ("GB200", "gb200-186"), ("GB300", "gb300-279"),
    ("GH200", "gh200-96"), ("A800", "a800-sxm-80"), ("A100 40GB", "a100-sxm-40"), ("A100", "a100-sxm-80"), ("4090", "rtx4090"),
    ("3090", "rtx3090"), ("A5000", "rtxa5000"), ("6000 Ada", "rtx6000ada-48"), ("A6000", "a6000-48"), ("A10G", "a10g-24"),
    ("80 GB class", "a100-sxm-80"), ("48 GB class", "a6000-48"), ("40 GB", "a100-sxm-40"), (">=40GB", "a100-sxm-40"), ("24", "rtx3090"),
]  # fmt: skip


def card(name: str) -> GpuModel:
    """The card of a row."""
    for words, key in CARDS:
        if words in name:
            return cards()[key]
    raise Unexpressed(f"no card for {name}")


def program(row: dict[str, str]) -> Program:
    """The training program of a row, by its source."""
    return next(one for one in PROGRAMS if one.source.lower() in f"{row['source']} {row['parallelism']}".lower())


def states(row: dict[str, str]) -> tuple[float, float, float]:
    """Bits a weight, bytes a gradient and bytes of optimizer states, of a full fine-tune."""
    text = f"{row['states_or_quant']} {row['parallelism']} {row['offload']}".lower()
    if "lomo" in text:
        return 16, 2, 0
    if "8bit" in text or "8-bit" in text:
        return 16, 2, 0 if "paged" in text else 2
    if "paged" in text:
        return 16, 2, 0
    if "pure bf16" in text:
        return 16, 2, 4
    if "fp8" in text and "32" not in text:
        return 16, 2, 12
    if "megatron" in text:
        return 16, 4, 12
    if "zero" in text:
        return 16, 4, 12
    return 32, 4, 8


def degrees(row: dict[str, str], gpus: int) -> dict[str, int]:
    """The degrees of tensor, pipeline, context and sequence parallelism."""
    unstated = {"TP PP": f"TP8 PP{max(1, gpus // 8)}", "TP/CP": "TP4 CP2", "naive PP (device_map)": f"PP{gpus}"}
    words = unstated.get(row["parallelism"], row["parallelism"])
    return {kind: int(found[1]) for kind in ("TP", "PP", "CP", "SP") if (found := re.search(rf"\b{kind}(\d+)", words))}


def sharding_of(row: dict[str, str], gpus: int, degree: dict[str, int]) -> Sharding:
    """What is spread over the data-parallel GPUs."""
    if gpus == 1 or row["parallelism"] == "DDP":
        return "none"
    return "optimizer" if ("TP" in degree or "PP" in degree) and "FSDP" not in row["parallelism"] else "full"


def offload_of(row: dict[str, str], method: str) -> Offload:
    """What lives in main memory. A paged optimizer is not on the GPU by its states' bytes."""
    words = row["offload"].lower()
    if words.startswith("paged") or not re.search("cpu|zero-3 offload|optimizer|param", words):
        return "none"
    optimizer_only = re.search("optimizer_cpu|^optimizer", words) and "param" not in words
    return "optimizer" if method == "full" and optimizer_only else "all"


def runtime_of(row: dict[str, str], used: Program, degree: dict[str, int]) -> Runtime:
    """The program's runtime; torchtune's published ladder switches its parts on one after the other."""
    text = row["states_or_quant"].lower()
    if "liger" in text or "SP" in degree:  # a loss over a split sequence is computed in pieces
        return FUSED_LOSS
    if used.source == "torchtune" and "ladder" in row["note"] and re.search("packed|compile", text):
        return msgspec.structs.replace(used.runtime, logits_bytes=12, layer_copies=1.37 if "packed" in text else 1.0)
    return PREPARED if "bnb" in text and used.runtime == EAGER else used.runtime


def run_of(row: dict[str, str]) -> tuple[Run, int]:
    """The row as a run, and its micro-steps a step. Raises `Unexpressed`."""
    model, used = architecture(row["model"]), program(row)
    text = f"{row['states_or_quant']} {row['parallelism']}".lower()
    methods: dict[str, Literal["full", "lora", "qlora"]] = {"full": "full", "pretrain": "full", "lora": "lora", "qlora": "qlora"}
    method = methods.get(row["method"].split(" ")[0].lower())
    if method is None:
        raise Unexpressed(f"method {row['method']}")
    if "unpacked" in text:
        raise Unexpressed("sequences are not packed: how long they are is not stated")
    if row["act_ckpt"] == "unknown":
        raise Unexpressed("whether activations are computed again is not known")
    gpus = int(row["gpus"])
    degree = degrees(row, gpus)
    sharding = sharding_of(row, gpus, degree)
    targets = ("query", "value") if "qv" in text else PROGRAMS[-1].targets if "all-linear" in text else used.targets
    rank = int(found[1]) if (found := re.search(r"\br(\d+)", row["states_or_quant"])) else used.rank
    if method == "full":
        adapter = 0.0
        bits, gradient, optimizer = states(row)
    else:
        adapter, gradient, optimizer = used.adapter_state_bytes
        bits = 8 if "int8" in text else 4 if method == "qlora" or "quantised" in text else 8 if "fp8" in text else 16
    megatron = "megatron" in f"{text} {row['source']}".lower()
    recompute: Recompute = (
        "selective" if "sac" in row["act_ckpt"].lower() else "none" if row["act_ckpt"].lower() in ("no", "none") else "full"
    )
    if not row["act_ckpt"] and (megatron or "NeMo" in row["source"]):
        recompute = "selective"
    stages, steps, batch = degree.get("PP", 1), int(number(row["grad_accum"]) or 1), int(number(row["micro_batch"]) or 1)
    if stages > 1 and batch > 1:  # a batch for the whole pipeline, which cuts it by its stages
        batch, steps = max(1, batch // stages), steps * min(batch, stages)
    cumulative = row["note"] == "ladder" and bool(re.search("offload|8-bit", text)) and method == "full"  # each rung keeps the ones before
    short = row["outcome"].startswith("ran") and row["seq"].strip() != "-"
    run = Run(
        model=model,
        method=method,
        gpus=gpus,
        nodes=int(row["nodes"] or 1),
        sequence_tokens=int(number(row["seq"]) or (SHORT_SEQUENCE if short else USUAL_SEQUENCE)),
        micro_batch=batch,
        accumulation=steps > 1,
        trained=parameters(model) if method == "full" else lora_parameters(model, rank, targets),
        weight_bits=bits,
        adapter_bytes=adapter,
        gradient_bytes=gradient,
        optimizer_bytes=optimizer,
        sharding=sharding,
        tensor_parallel=degree.get("TP", 1),
        pipeline_parallel=stages,
        context_parallel=degree.get("CP", degree.get("SP", 1)),
        recompute=recompute,
        offload=offload_of(row, method),
        offload_activations="activations" in row["offload"].lower() or (cumulative and "8-bit" in text),
        gradients_stay=megatron,
        optimizer_in_backward=cumulative or bool(re.search("opt.* in |opt-in-bwd|LOMO", row["states_or_quant"])),
        unsharded_accumulation=(stages > 1 and sharding == "full") or "unsharded" in text or (used.accumulates_in_full and steps > 1),
        reduce_bytes=used.reduce_bytes,
        host_factor=1.15,
        runtime=runtime_of(row, used, degree),
    )
    return run, steps


def as_measured(wanted: Need, kind: str, usable: int) -> float:
    """The predicted bytes in the way the row measured them, on a card with so much."""
    if "context that fits" in kind:
        return wanted.least_gpu_bytes
    if "smi" in kind or kind == "reported":
        return wanted.expected_bytes(usable)
    fixed = wanted.terms.get("CUDA and NCCL", 0)
    if "reserved" in kind:
        return wanted.expected_bytes(usable) - fixed
    return wanted.gpu_bytes - fixed - wanted.terms.get("allocator slack", 0)


def peers(run: Run) -> dict[str, float]:
    """Bytes a GPU by others' published formulas."""
    model, count, ranks = run.model, parameters(run.model), run.shards * run.tensor_parallel * run.pipeline_parallel
    full, largest = run.method == "full", embedding_parameters(run.model) / (1 if run.model.tied_embeddings else 2)
    tokens = run.sequence_tokens * run.micro_batch
    static = {"full": 18.0, "lora": 2.0, "qlora": 0.5}[run.method]
    deepspeed = 4 * largest + (18 if run.offload == "none" else 2 if run.offload == "optimizer" else 0) * count / ranks
    if not full:
        deepspeed = 4 * largest + run.weight_bits / 8 * count / ranks + 18 * run.trained / ranks
    kept = 34.0 * tokens * model.hidden * model.layers / (run.tensor_parallel * run.context_parallel)
    eleuther = (2 + 4 + 12 if full else run.weight_bits / 8) * count / ranks + (0 if full else 16 * run.trained / ranks) + kept + 5 * GIB
    accelerate = (8 if full else run.weight_bits / 8) * count / ranks
    factory = {"full": 8.0 if run.weight_bits == 16 and run.optimizer_bytes <= 4 else 18.0}.get(run.method, static) * count / ranks
    return {"DeepSpeed": deepspeed, "EleutherAI": eleuther, "accelerate": accelerate, "LLaMA-Factory": factory}


def report(file: Path, *, quiet: bool = False) -> dict[str, list[float]]:
    """Print all, and return the relative errors by what was compared."""
    errors: dict[str, list[float]] = {}
    left_out, contradicted, rows = [], [], list(csv.DictReader(file.open(newline="", encoding="utf-8")))
    within: list[bool] = []
    decided = 0
    for row in rows:
        name = f"{row['id']:>4} {row['model'][:18]:18} {row['method'][:5]:5} {row['gpus']:>4} × {row['gpu'][:12]:12} {row['parallelism'][:12]:12}"
        try:
            run, steps = run_of(row)
            used = card(row["gpu"]) if number(row["tok_s_total"]) or "class" not in row["gpu"] else None
        except (Unexpressed, ValueError) as why:
            left_out.append(f"{name} {why}")
            continue
        wanted = need(run)
        line = name
        measured, kind = number(row["peak_mem_per_gpu"]), row["mem_kind"]
        stated = number(row["gpu"]) if "class" in row["gpu"] or used is None else None
        size = usable_bytes(int(stated * GIB) if stated else used.memory_bytes if used else 0)
        if measured and not (number(row["seq"]) and number(row["micro_batch"])) and row["seq"].strip() != "-":
            left_out.append(f"{name} sequence or micro-batch is not stated")
            continue
        bound = kind == "reported" and measured == stated  # what the cards have, not what was measured
        if measured and row["outcome"].startswith("ran") and not bound:
            unit = GIB if row["mem_unit"] == "GiB" or "context that fits" in kind else 1e9
            if "context that fits" in kind:
                measured = size / GIB
            predicted = as_measured(wanted, kind, size or wanted.gpu_bytes)
            error = predicted / (measured * unit) - 1
            errors.setdefault("memory", []).append(error)
            within.append(abs(error) <= 0.25 or abs(predicted - measured * unit) <= 2 * GIB)
            line += f" {measured * unit / GIB:7.1f} {predicted / GIB:7.1f} GiB {error:+5.0%}{'' if within[-1] else ' !'}"
            for peer, size_by_peer in peers(run).items():
                errors.setdefault(f"memory {peer}", []).append(size_by_peer / (measured * unit) - 1)
        else:
            line += " " * 29
        if row["outcome"].startswith("ran") or row["outcome"] == "oom":
            decided += 1
            ran = row["outcome"].startswith("ran")
            ratio = wanted.least_gpu_bytes / size
            if (ran and ratio > 1.05 and "context" not in kind) or (not ran and ratio < 0.92):
                contradicted.append(f"{name} {row['outcome']}, predicted {wanted.least_gpu_bytes / GIB:.1f} of {size / GIB:.1f} GiB")
        rate = number(row["tok_s_total"])
        if rate and used and stated is None and "do not calibrate" not in row["note"] and "see A6000" not in row["note"]:
            port = 200.0 if used.architecture == "Ampere" else 400.0  # the network of such a node is not stated: a port a GPU
            link = links(used, network_gbps=port * max(1, run.gpus // run.nodes), bridged=used.nvlink == "switch")
            power = float(found[1]) / used.power_watts if (found := re.search(r"(\d+) ?W\b", row["gpu"])) else 1.0
            estimate = speed(run, used, link, accumulation_steps=steps, power_share=power, fp8="fp8" in row["states_or_quant"].lower())
            error = estimate.tokens_per_second / rate - 1
            errors.setdefault("tokens/s", []).append(error)
            line += f" {rate:9.0f} {estimate.tokens_per_second:9.0f} tok/s {error:+5.0%} {estimate.limit}"
        if not quiet:
            print(line)
    if not quiet:
        print(f"\n{len(rows) - len(left_out)} of {len(rows)} rows expressed; left out:", *left_out, sep="\n  ")
        print(f"\nran or did not, contradicted: {len(contradicted)} of {decided}", *contradicted, sep="\n  ")
        print(f"memory: {sum(within)} of {len(within)} within 25 % or 2 GiB\n")
        print(f"{'':24}{'rows':>5}{'median':>9}{'|median|':>10}{'in 15 %':>9}{'in 40 %':>9}{'worst':>8}")
        for what, all_errors in errors.items():
            absolute = [abs(error) for error in all_errors]
            near = [sum(one <= bound for one in absolute) / len(absolute) for bound in (0.15, 0.40)]
            print(
                f"{what:24}{len(absolute):5}{statistics.median(all_errors):+9.1%}{statistics.median(absolute):10.1%}{near[0]:9.0%}{near[1]:9.0%}{max(absolute):8.0%}"
            )
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    if not report(parser.parse_args().file):
        sys.exit("no row could be compared")
