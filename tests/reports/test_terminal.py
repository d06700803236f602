"""The terminal report: a golden for each machine, 80 columns, no colour where none is wanted, nothing that steers the terminal."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest

from checks.catalog import workloads
from checks.score import CHECKS, EXIT_CODES, assess, overall
from probe.collect import collect
from probe.dump import Dump, ReplayHost
from probe.nvml_sweep import COMPUTE_PROCESSES
from readiness.fixtures import load, machines
from readiness.fixtures.faults import answer
from reports import html, terminal, wording
from reports.document import Report, Source

GOLDEN = Path(__file__).parent / "golden"
FAULTY = [
    "hgx-h100+row-remap-pending+power-limit",
    "hgx-h100+nvml-hung",
    "hgx-h100+no-permission",
    "quad-h100+driver-missing",
    "hgx-h100+persistence-off",
]


def report_of(dump: Dump, name: str, only: str = "") -> Report:
    snapshot = collect(ReplayHost(dump))
    assessment = assess(snapshot, workloads().values(), checks=[check for check in CHECKS if not only or check.id == only])
    verdict = overall(assessment.workloads, ["qlora-70b"])
    return Report(
        tool_version="test",
        source=Source(kind="replay", name=name, recorded_at="2026-12-01T00:00:00Z", redacted=False),
        required=["qlora-70b"],
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        workloads=assessment.workloads,
        findings=assessment.findings,
        skipped=[],
        facts=snapshot,
    )


def rendered(report: Report, **options: object) -> str:
    out = io.StringIO()
    terminal.render(report, out, **options)  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("name", [*machines(), *FAULTY])
def test_golden(name: str) -> None:
    """To accept a change: UPDATE_GOLDEN=1 pytest tests/reports, and read the diff."""
    text = rendered(report_of(load(name), name))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", [*machines(), *FAULTY])
@pytest.mark.parametrize("verbose", [0, 1, 2])
@pytest.mark.parametrize("width", [80, 60])
def test_width(name: str, verbose: int, width: int) -> None:
    lines = rendered(report_of(load(name), name), verbose=verbose, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_the_verdict_comes_first() -> None:
    assert rendered(report_of(load("hgx-h100+gpu-lost"), "x")).startswith("NOT READY  for qlora-70b\n")


def test_colour_only_where_wanted() -> None:
    report = report_of(load("hgx-h100"), "x")
    assert "\x1b[" not in rendered(report)
    assert "\x1b[" in rendered(report, color=True)


def test_a_machine_cannot_steer_the_terminal() -> None:
    dump = load("dual-l40s")
    answer(dump, "nvmlDeviceGetName", [0, 1], "\x1b]0;pwned\x07[red]bold[/red]\u202e\x9b2J")
    dump.files["/proc/sys/kernel/hostname"] = "evil\x1b[2Jhost\n"
    text = rendered(report_of(dump, "\x1bname"), verbose=2)
    assert not any(wording.CONTROL.search(line) for line in text.splitlines())
    assert "[red]bold[/red]" in text


def test_a_machine_cannot_forge_a_line() -> None:
    dump = load("dual-l40s")
    answer(dump, "nvmlDeviceGetName", [0, 1], "L40S\nREADY  for full-70b")
    answer(dump, COMPUTE_PROCESSES[0], [0], [{"pid": 7, "usedGpuMemory": 1 << 30}])
    dump.files["/proc/7/comm"] = "python\n  FAIL gpu7  RMA it\n"
    lines = [line.strip() for line in rendered(report_of(dump, "x\nREADY"), verbose=2).splitlines()]
    assert lines.count("READY  for full-70b") == 0
    assert not [line for line in lines if line.startswith(("FAIL gpu7", "READY")) and line != lines[0]]


def test_what_was_not_run_is_named() -> None:
    text = " ".join(rendered(report_of(load("hgx-h100"), "x", only="pcie.width")).split())
    assert "UNKNOWN for qlora-70b" in text
    assert "Not run, and needed for a verdict: driver.loaded, driver.responsive, gpu.ecc_errors" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [("hgx-h100", "Nothing."), ("quad-4090", "does not fit"), ("hgx-h100+row-remap-pending", "a bad memory row waits for a reset")],
)
def test_the_page_tells_what_stands_in_the_way(name: str, words: str) -> None:
    page = html.render(report_of(load(name), name))
    section = page.split("What stands in the way", 1)[1].split("<h2>", 1)[0]
    assert words in section
    assert ("Nothing." in section) == (words == "Nothing.")


def test_every_state_of_a_report_can_be_shown() -> None:
    """A report with no facts at all."""
    from probe.collect import all_missing
    from probe.fact import Missing
    from probe.snapshot import Cpu, Driver, Memory, Power, Site, Snapshot, Software, Storage, System

    gone = Missing("timeout", "x", "y")
    driver = msgspec.structs.replace(all_missing(Driver, gone), init_error=None, broken_off="gone")
    empty = Snapshot(
        system=all_missing(System, gone),
        driver=driver,
        gpus=[],
        gpu_pairs=[],
        pci=gone,
        cpu=all_missing(Cpu, gone),
        memory=all_missing(Memory, gone),
        rdma=gone,
        interfaces=gone,
        storage=all_missing(Storage, gone),
        power=all_missing(Power, gone),
        upses=gone,
        sensors=gone,
        kernel_log=gone,
        software=all_missing(Software, gone),
        site=Site(),
    )
    assessment = assess(empty, workloads().values())
    assert {one.verdict for one in assessment.workloads} == {"NOT_READY"}  # the driver hangs
    report = msgspec.structs.replace(
        report_of(load("cpu-only"), "x"), facts=empty, findings=assessment.findings, workloads=assessment.workloads, skipped=["gpu.mig"]
    )
    assert "this node" in rendered(report, verbose=2)
    assert "not run: gpu.mig" in rendered(report)


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (["gpu0"], "gpu0"),
        (["gpu0", "gpu1", "gpu2", "gpu5"], "gpu0-2, gpu5"),
        (["node"], "node"),
        (["0000:01:00.0", "0000:02:00.0"], "0000:01:00.0, 0000:02:00.0"),
        ([f"0000:0{n}:00.0" for n in range(6)], "0000:00:00.0, 0000:01:00.0, 0000:02:00.0 and 3 more"),
    ],
)
def test_device_lists(devices: list[str], words: str) -> None:
    assert wording.device_list(devices) == words
