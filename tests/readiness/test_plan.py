"""`readiness plan` and `readiness explain score`, as their users run them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.plan import NotFound, find_card, find_nic
from tests.readiness.test_cli import one_line

Run = Callable[..., subprocess.CompletedProcess[str]]
NODE = ("--gpu", "H100 SXM", "--gpus", "8", "--ram", "2TB", "--nvme", "30TB", "--nic", "ConnectX-7 NDR", "--nics", "8", "--psu", "6x3300")


def planned(run: Run, *argv: str) -> Any:
    done = run("plan", *argv, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_machine_that_is_not_bought_yet_is_judged_as_one_that_is(run: Run) -> None:
    plan = planned(run, *NODE)
    real = json.loads(run("check", "--fixture", "hgx-h100", "--format", "json").stdout)
    fits = {one["workload"]: one["fit"] for one in plan["fits"]}
    for one in real["workloads"]:
        if one["workload"] in fits:
            planned_fit = fits[one["workload"]]
            assert planned_fit["strategy"] == one["fit"]["strategy"]
            tried = zip(planned_fit["strategies"], one["fit"]["strategies"], strict=True)
            assert all(mine["terms"] == its["terms"] and mine["outcome"] == its["outcome"] for mine, its in tried)
    assert sum(plan["peak_terms"].values()) == pytest.approx(9300, rel=0.05)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ("--nodes", "2", "--cooling", "rear-door"),
            ["no switch: each port by a cable", "opensm", "18.2 kW of heat", "step time by network: 25 GbE"],
        ),
        (("--nodes", "3", "--cooling", "air"), ["a switch with 24 ports", "RoCE v2", "SHORT: 27.3 kW of heat"]),
        (("--psu", "2x3300"), ["SHORT: 2 × 3300 W", "too little, even with all"]),
        (("--psu", "3x3300"), ["SHORT: 3 × 3300 W", "holds only without redundancy"]),
        (("--redundancy", "N+N"), ["N+N leaves 9.9 kW"]),
        (("--ram", "128GB", "--method", "full"), ["full-70b", "needs 158 GB of RAM"]),
        (("--nvme", "1TB", "--method", "full"), ["storage: 1 TB, needs 3.8"]),
        (("--write", "10", "--method", "full"), ["checkpoint 282 GB in 28 s"]),
        (("--method", "lora", "--dataset", "1000000000"), ["1,000,000,000 tokens in"]),
        (("--method", "lora", "--dataset", "2.5B"), ["2,500,000,000 tokens in"]),
        (("--nodes", "3", "--nic", "Thor2", "--nics", "1"), ["a switch with 3 ports: lossless Ethernet"]),
        (("--nodes", "2", "--cooling", "rear-door"), ["rear-door cooling carries it", "2 nodes, each with 8 ×"]),
        (("--nodes", "2", "--nics", "1", "--nic", "cx4lx", "--method", "lora"), ["FITS lora-70b", "hybrid shard", "bound by compute"]),
        (("--nodes", "2", "--nics", "1", "--nic", "cx4lx", "--method", "full"), ["network between nodes: 50 Gb/s, needs 400"]),
        (("--method", "full"), ["tight: FSDP, everything in bf16"]),
        (("--method", "full", "--recipe"), ["fsdp_version: 2", "num_processes: 8", "torchao"]),
        (
            ("--method", "full", "--recipe", "--nodes", "2"),
            ["--module llama3 --config llama3_70b", "--checkpoint.initial_load_in_hf", "activation-checkpoint:full"],
        ),
        (("--method", "lora", "--recipe", "--nodes", "2"), ["main_process_ip: FIRST_NODE", "machine_rank: 0"]),
        (("--model", "qwen2.5-72b", "--method", "lora"), ["lora-qwen2.5-72b"]),
        (("--sequence", "65536", "--method", "lora"), ["does not fit"]),
    ],
)
def test_what_a_plan_says(argv: tuple[str, ...], words: list[str], run: Run) -> None:
    done = run("plan", *NODE, *argv)
    said = " ".join(done.stdout.split())
    assert (done.returncode, done.stderr) == (2 if any("need" in one or "does not fit" in one for one in words) else 0, "")
    for one in words:
        assert one in said, done.stdout
    assert "--recipe" in argv or max(map(len, done.stdout.splitlines())) <= 80


def test_a_method_spans_all_nodes_of_the_plan(run: Run) -> None:
    plan = planned(run, *NODE, "--nodes", "2", "--method", "full")
    fitted = plan["fits"][0]["fit"]
    assert fitted["nodes"] == 2
    assert fitted["strategy"] == "tensor-fsdp-adamw-fp32"
    assert (
        fitted["strategy"]
        == next(one["fit"] for one in planned(run, *NODE, "--nodes", "2")["fits"] if one["workload"] == "full-70b-cluster")["strategy"]
    )
    alone = [one["workload"] for one in planned(run, *NODE)["fits"]]
    together = {one["workload"]: one["fit"]["nodes"] for one in planned(run, *NODE, "--nodes", "4")["fits"]}
    assert "full-70b-cluster" not in alone
    assert (together["full-70b-cluster"], together["lora-70b"]) == (4, 1)


def test_a_card_without_bf16_trains_nothing(run: Run) -> None:
    fits = {
        one["workload"]: one["fit"]["status"]
        for one in planned(run, "--gpu", "V100", "--gpus", "8", "--ram", "1TB", "--nvme", "8TB")["fits"]
    }
    assert {status for name, status in fits.items() if not name.startswith("inference")} == {"failed"}
    assert fits["inference-70b-4bit"] != "failed"


def test_the_smallest_machines(run: Run) -> None:
    found = planned(run, "--model", "llama-3-70b", "--method", "qlora")
    least = {one["card"]: (one["gpus"], one["recommended"]) for one in reversed(found)}
    assert least["NVIDIA H100 80GB HBM3"] == (1, True)
    assert least["NVIDIA L40S"][0] <= 2
    with_offload = [one for one in found if "4090" in one["card"] and not one["recommended"]]
    assert "offloaded" in with_offload[0]["strategy"]
    assert with_offload[0]["host_need_bytes"] > 100e9
    full = planned(run, "--model", "llama-3-70b", "--method", "full")
    best = {one["card"]: one["gpus"] * one["nodes"] for one in full if one["recommended"]}
    assert (best["NVIDIA H200"], best["NVIDIA H100 80GB HBM3"], best["NVIDIA B200"]) == (8, 16, 8)
    assert len(planned(run, "--method", "qlora", "-v")) > len(planned(run, "--method", "qlora"))
    said = run("plan", "--method", "qlora").stdout
    assert "recommended" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_superchip_brings_its_processor_and_its_link_to_it(run: Run) -> None:
    machine = ("--gpus", "1", "--ram", "480GB", "--method", "qlora", "--sequence", "1024")
    grace = planned(run, "--gpu", "GH200", *machine)
    assert "processors" not in grace["peak_terms"]
    by_pcie = planned(run, "--gpu", "H100 SXM", *machine)
    pace = [
        next(one["tokens_per_second"] for one in plan["fits"][0]["fit"]["strategies"] if one["strategy"] == "qlora-fsdp-offload")
        for plan in (grace, by_pcie)
    ]
    assert pace[0] >= pace[1]


def test_experts_are_not_quantised(run: Run) -> None:
    machine = ("--gpus", "1", "--ram", "512GB", "--model", "mixtral-8x7b")
    lacks = planned(run, "--gpu", "A100 80GB", *machine, "--method", "qlora")["fits"][0]["fit"]["strategies"][0]["terms"]["weights"]
    served = planned(run, "--gpu", "A100 80GB", *machine, "--method", "serve")["fits"][0]["fit"]["strategies"][0]["terms"]["weights"]
    assert lacks > 85e9
    assert served < 30e9


def test_a_server_spreads_over_as_many_gpus_as_divide_the_heads(run: Run) -> None:
    done = run("plan", "--gpu", "RTX 4090", "--gpus", "6", "--ram", "256GB", "--method", "serve", "--recipe")
    assert "--tensor-parallel-size 4" in done.stdout


def test_the_weights_are_loaded_whole_on_every_node(run: Run) -> None:
    fit = planned(run, *NODE, "--nodes", "8", "--method", "full")["fits"][0]["fit"]
    first = next(one for one in fit["strategies"] if one["strategy"] == "fsdp-adamw-fp32")
    assert first["host_need_bytes"] > 282e9


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ((), 64, "--gpu"),
        (("--gpu", "0"), 64, "unknown card"),
        (("--gpu", "RTX 5000"), 64, "unknown card"),
        (("--method", "qlora", "--ram", "1TB"), 64, "--ram describes a machine"),
        (("--method", "qlora", "--dataset", "1e9"), 64, "--dataset describes a machine"),
        (("--gpu", "H100", "--dataset", "many"), 64, "tokens"),
        (("--gpu", "H100", "--nics", "4"), 64, "--nics needs --nic"),
        (("--gpu", "H100", "--redundancy", "N+N"), 64, "--redundancy needs --psu"),
        (("--gpu", "H100", "--nodes", "2", "--method", "serve"), 64, "one node"),
        (("--gpu", "H100", "--dataset", "1e9", "--format", "json"), 64, "--dataset"),
        (("--gpu", "Voodoo 2"), 64, "unknown card"),
        (("--gpu", ""), 64, "unknown card"),
        (("--gpu", "H100", "--ram", "lots"), 64, "--ram"),
        (("--gpu", "H100", "--ram", "0GB"), 64, "--ram"),
        (("--gpu", "H100", "--nvme", "-1TB"), 64, "--nvme"),
        (("--gpu", "H100", "--psu", "six"), 64, "--psu"),
        (("--gpu", "H100", "--psu", "0x3300"), 64, "--psu"),
        (("--gpu", "H100", "--nic", "tin cans"), 64, "network adapter"),
        (("--gpu", "H100", "--write", "nan"), 64, "nan"),
        (("--gpu", "H100", "--gpus", "0"), 64, "--gpus"),
        (("--method", "full", "--model", "llama-9"), 64, "did you mean"),
        (("--method", "full", "--model", "/nonexistent/config.json"), 65, "No such file"),
        (("--method", "full", "--model", "/dev/null/x.json"), 65, "Not a directory"),
    ],
)
def test_a_plan_that_is_none(argv: tuple[str, ...], code: int, words: str, run: Run) -> None:
    done = run("plan", *argv)
    assert done.returncode == code
    assert words in one_line(done)


def test_a_model_file(run: Run, tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True})
    )
    plan = planned(run, "--gpu", "RTX 4090", "--gpus", "1", "--ram", "64GB", "--model", str(tmp_path / "config.json"), "--method", "full")
    assert plan["fits"][0]["fit"]["status"] in ("passed", "warned")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H100 SXM", "h100-sxm-80"),
        ("H100-SXM5-80GB", "h100-sxm-80"),
        ("H100SXM", "h100-sxm-80"),
        ("rtx4090", "rtx4090"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80"),
        ("H100 PCIe", "h100-pcie-80"),
        ("h200", "h200-sxm-141"),
        ("GeForce RTX 4090", "rtx4090"),
        ("A100 40GB", "a100-sxm-40"),
        ("L40S", "l40s-48"),
        ("L4", "l4-24"),
        ("L40", "l40-48"),
        ("A10", "a10-24"),
        ("A100", "a100-sxm-80"),
        ("rtx 6000 ada", "rtx6000ada-48"),
        ("RTX 3090", "rtx3090"),
        ("b200-180", "b200-180"),
    ],
)
def test_cards_by_the_names_people_use(name: str, key: str) -> None:
    assert find_card(name).key == key


@pytest.mark.parametrize(("name", "key"), [("ConnectX-7 NDR", "cx7"), ("connectx6", "cx6"), ("BlueField-3", "bf3"), ("thor2", "thor2")])
def test_adapters_by_the_names_people_use(name: str, key: str) -> None:
    assert find_nic(name).key == key
    with pytest.raises(NotFound):
        find_nic("")


@pytest.mark.parametrize("fixture", ["hgx-h100", "hgx-h100+nvlink-down", "quad-4090+no-permission", "cpu-only"])
def test_the_score_adds_up(fixture: str, run: Run) -> None:
    done = run("explain", "score", "--fixture", fixture, "--workload", "full-70b")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(run("check", "--fixture", fixture, "--workload", "full-70b", "--format", "json").stdout)
    verdict = report["workloads"][0]
    counted = [term for term in verdict["terms"] if term["credit"] is not None]
    weights = sum(term["weight"] * term["judged"] for term in counted)
    points = sum(term["weight"] * term["judged"] * term["credit"] for term in counted)
    assert verdict["score"] == pytest.approx(points / weights if weights else 0.0)
    shown = re.search(r"score +([\d.]+) / ([\d.]+) = ([\d.]+)", done.stdout)
    assert shown is not None
    assert float(shown[3]) == pytest.approx(verdict["score"] * 100, abs=0.06)
    assert [line.split()[0] for line in done.stdout.splitlines()[3 : 3 + len(verdict["terms"])]] == [
        term["component"] for term in verdict["terms"]
    ]


def test_explain_score_with_a_wrong_name(run: Run) -> None:
    for argv in (("score", "--workload", "full-71b", "--fixture", "hgx-h100"), ("gpu.present", "--workload", "full-70b")):
        done = run("explain", *argv)
        assert done.returncode == 64
        one_line(done)


def test_ram_that_is_not_stated_changes_no_strategy(run: Run) -> None:
    without = tuple(word for word in NODE if word not in ("--ram", "2TB"))
    known, unknown = (planned(run, *machine, "--method", "full")["fits"][0]["fit"] for machine in (NODE, without))
    assert known["strategy"] == unknown["strategy"] == "fsdp-adamw-8bit"
    assert (known["status"], unknown["status"]) == ("warned", "unknown")


def test_the_links_decide_which_way_is_fast(run: Run) -> None:
    """Over a slow network tensor parallelism in the node beats FSDP over all nodes."""
    machine = ("--gpu", "H200", "--nodes", "2", "--ram", "2TB", "--nvme", "30TB", "--method", "full", "--nic", "ConnectX-6", "--nics", "2")
    fit = planned(run, *machine)["fits"][0]["fit"]
    pace = {one["strategy"]: one["tokens_per_second"] for one in fit["strategies"]}
    assert fit["strategy"] == "tensor-fsdp-adamw-fp32"
    assert pace["tensor-fsdp-adamw-fp32"] > pace["fsdp-adamw-fp32"]


def test_the_ways_of_small_models_are_tried_for_a_named_one(run: Run) -> None:
    machine = ("--gpu", "RTX 4090", "--gpus", "1", "--ram", "64GB", "--nvme", "4TB")
    named = planned(run, *machine, "--model", "llama-3-8b", "--method", "full")["fits"][0]["fit"]["strategy"]
    assert named == "one-gpu-adamw-8bit-paged"
    assert named == next(one["fit"]["strategy"] for one in planned(run, *machine)["fits"] if one["workload"] == "full-8b")


def test_4_bit_weights_are_sharded_by_the_way_that_can(run: Run) -> None:
    said = run("plan", "--gpu", "RTX 4090", "--gpus", "4", "--ram", "256GB", "--nvme", "4TB", "--method", "qlora", "--recipe").stdout
    assert "fsdp_version: 1" in said
    assert "transformers<5" in said
    assert "146 GB of 275 GB of RAM" in " ".join(said.split())


def test_several_sequences_are_served_together(run: Run) -> None:
    machine = ("--gpu", "RTX 4090", "--gpus", "4", "--ram", "256GB", "--method", "serve")
    one, many = (
        planned(run, *machine, "--micro-batch", size)["fits"][0]["fit"]["strategies"][0]["terms"]["key-value cache"] for size in ("1", "16")
    )
    assert many == 16 * one
