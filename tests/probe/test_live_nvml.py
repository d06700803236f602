"""The live path without a GPU: the real pynvml, in the real child, against a compiled stand-in for libnvidia-ml.so.1."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checks.catalog import workloads
from checks.score import assess
from probe.collect import collect
from probe.fact import Missing
from probe.host import LiveHost
from probe.nvml import Call, NvmlLog

SOURCE = Path(__file__).parents[1] / "nvml_standin" / "standin.c"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles the stand-in; returns the folder that LD_LIBRARY_PATH must name."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in for libnvidia-ml.so.1 with")

    def build(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
        return folder

    return build


@pytest.fixture
def sweep(library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Call]]:
    def run(mode: str, *flags: str, deadline_seconds: float = 20.0) -> list[Call]:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library(*flags)))
        monkeypatch.setenv("NVML_STANDIN", mode)
        return LiveHost(deadline_seconds=deadline_seconds).nvml()

    return run


def test_healthy(sweep: Callable[..., list[Call]]) -> None:
    log = NvmlLog(sweep("healthy"))
    assert log.devices() == [0, 1, 2, 3]
    assert log.broken_off is None
    assert log.get("nvmlDeviceGetName", 2, take=str) == "NVIDIA H100 80GB HBM3"
    assert log.get("nvmlDeviceGetMemoryInfo_v2", 0, take=lambda v: v["total"]) == 81559 << 20
    assert log.get("nvmlDeviceGetPciInfo_v3", 3, take=lambda v: v["busId"]) == "00000000:40:00.0"
    assert log.field(1, 194, take=int) == -2
    assert log.field(1, 164, 5, int) == 26562
    assert log.get("nvmlDeviceGetComputeRunningProcesses_v3", 0, take=lambda v: v[0]["pid"]) == 1
    assert len(log.samples(("nvmlDeviceGetCurrentClocksEventReasons",), 0)) == 3


def test_facts_of_a_healthy_library(sweep: Callable[..., list[Call]]) -> None:
    sweep("healthy")  # sets the environment
    snapshot = collect(LiveHost())
    assert [gpu.name for gpu in snapshot.gpus] == ["NVIDIA H100 80GB HBM3"] * 4
    assert snapshot.gpus[0].fabric.state == "completed"
    assert isinstance(snapshot.gpus[0].nvlinks, list)
    assert len(snapshot.gpus[0].nvlinks) == 18
    assert snapshot.driver.library_version == "570.86.15"
    assert {pair.p2p_nvlink for pair in snapshot.gpu_pairs} == {"ok"}


def test_a_lost_gpu_does_not_hide_the_others(sweep: Callable[..., list[Call]]) -> None:
    sweep("lost:1")
    snapshot = collect(LiveHost())
    assert [gpu.lost for gpu in snapshot.gpus] == [False, True, False, False]
    assert [gpu.temperature_celsius for gpu in snapshot.gpus if not gpu.lost] == [31, 31, 31]
    failed = [finding for finding in assess(snapshot, workloads().values()).findings if finding.status == "failed"]
    assert ("gpu.present", "gpu1") in [(finding.check, finding.device) for finding in failed]


def test_not_supported_everywhere(sweep: Callable[..., list[Call]]) -> None:
    sweep("unsupported")
    snapshot = collect(LiveHost())
    gpu = snapshot.gpus[0]
    assert not gpu.lost
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert isinstance(gpu.ecc_enabled, Missing)
    assert gpu.ecc_enabled.reason == "not_supported"
    assert gpu.nvlinks == []


def test_a_call_that_never_returns(sweep: Callable[..., list[Call]]) -> None:
    started = time.monotonic()
    log = NvmlLog(sweep("hang:2", deadline_seconds=1.5))
    assert time.monotonic() - started < 1.5 + 1
    assert log.broken_off is not None
    assert (log.broken_off.call, log.broken_off.device, log.broken_off.error) == ("nvmlDeviceGetTemperature", 2, "NOT_RETURNED")
    assert log.get("nvmlDeviceGetName", 3, take=str) == "NVIDIA H100 80GB HBM3"  # the plain facts of all GPUs came first


def test_a_hang_in_init(sweep: Callable[..., list[Call]]) -> None:
    log = NvmlLog(sweep("hang-init", deadline_seconds=1.0))
    assert log.broken_off is not None
    assert (log.broken_off.call, log.broken_off.error) == ("nvmlInit_v2", "NOT_RETURNED")
    assert log.devices() == []


def test_a_crash_in_the_library(sweep: Callable[..., list[Call]]) -> None:
    log = NvmlLog(sweep("crash:1"))
    assert log.broken_off is not None
    assert (log.broken_off.call, log.broken_off.device, log.broken_off.error) == ("nvmlDeviceGetTemperature", 1, "CRASHED")
    assert "SIGSEGV" in str(log.broken_off.value)
    assert log.get("nvmlDeviceGetTemperature", 0, (0,), int) == 31


def test_a_library_without_a_symbol(sweep: Callable[..., list[Call]]) -> None:
    log = NvmlLog(sweep("healthy", "-DWITHOUT_MARGIN"))
    margin = log.get("nvmlDeviceGetMarginTemperature", 0, take=int)
    assert isinstance(margin, Missing)
    assert (margin.reason, margin.detail) == ("error", "FUNCTION_NOT_FOUND"), "an old library says nothing of the card"
    assert log.get("nvmlDeviceGetTemperature", 0, (0,), int) == 31


def test_what_the_library_prints_is_not_the_log(sweep: Callable[..., list[Call]]) -> None:
    assert not [call for call in sweep("noise") if call.call == "unreadable"]


@pytest.mark.parametrize(
    ("code", "error", "reason"),
    [
        (4, "NO_PERMISSION", "no_permission"),
        (9, "DRIVER_NOT_LOADED", "absent"),
        (18, "LIB_RM_VERSION_MISMATCH", "error"),
        (15, "GPU_IS_LOST", "error"),
        (16, "RESET_REQUIRED", "error"),
        (10, "TIMEOUT", "timeout"),
        (17, "OPERATING_SYSTEM", "error"),
        (999, "UNKNOWN", "error"),
        (777, "CODE_777", "error"),
    ],
)
def test_init_fails(sweep: Callable[..., list[Call]], code: int, error: str, reason: str) -> None:
    log = sweep(f"init:{code}")
    assert [(call.call, call.error) for call in log] == [("nvmlInit_v2", error), ("end", None)]
    missing = NvmlLog(log).get("nvmlSystemGetDriverVersion", take=str)
    assert isinstance(missing, Missing)
    assert (missing.reason, missing.detail) == (reason, error)


def test_the_program_returns_when_the_library_hangs(
    library: Callable[..., Path], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    env = {"LD_LIBRARY_PATH": str(library()), "NVML_STANDIN": "hang:0"}
    started = time.monotonic()
    done = run("check", "--timeout", "2", env=env)
    assert (
        time.monotonic() - started < 2 + 1 + 5
    )  # a library that hangs does so for ever; the interpreter's own start is not part of the deadline
    assert done.returncode == 2, done.stderr
    assert "nvmlDeviceGetTemperature on GPU 0 never returned" in " ".join(done.stdout.split())
    assert not subprocess.run(["pgrep", "-f", "nvml_sweep.py.*" + str(os.getpid())], capture_output=True, check=False).stdout
