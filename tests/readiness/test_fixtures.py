"""The bundled machines are healthy, each fault raises the one finding it names, and each check has a fault that trips it."""

from __future__ import annotations

import pytest

from checks.score import CHECKS
from readiness.fixtures import UnknownFixture, load, machines
from readiness.fixtures.faults import FAULTS
from tests.conftest import judged

NOT_HEALTHY = {"cpu-only": {("gpu.inventory", "failed")}}


@pytest.mark.parametrize("name", machines())
def test_a_bundled_machine_is_healthy(name: str) -> None:
    bad = {(finding.check, finding.status) for finding in judged(name).findings if finding.status not in ("passed", "not_applicable")}
    assert bad == NOT_HEALTHY.get(name, set())


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_a_fault_raises_its_finding_and_no_other_fail(fault) -> None:  # type: ignore[no-untyped-def]
    findings = judged(f"{fault.base}+{fault.id}").findings
    raised = {finding.check for finding in findings if finding.status == fault.status}
    failed = {finding.check for finding in findings if finding.status == "failed"}
    warned = {finding.check for finding in findings if finding.status == "warned"}
    assert fault.check in raised
    assert failed == ({fault.check} if fault.status == "failed" else set())
    if fault.status == "warned":
        assert warned == {fault.check}
    told = [finding for finding in findings if finding.check == fault.check and finding.status == fault.status]
    assert all(finding.summary and finding.evidence and finding.fix for finding in told), "a fault is told with evidence and a fix"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_each_check_has_a_fault_that_trips_it(check) -> None:  # type: ignore[no-untyped-def]
    assert any(fault.check == check.id and fault.status in ("failed", "warned") for fault in FAULTS.values())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_each_check_explains_itself(check) -> None:  # type: ignore[no-untyped-def]
    assert len(check.text) > 60
    assert check.source
    assert check.id.split(".")[0] == check.component


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [
        ("hgx-h100+gpu-lost", "gpu3", "no longer answers"),
        ("hgx-h100+row-remap-pending", "gpu3", "waits for a reset"),
        ("hgx-h100+nvlink-down", "gpu3", "17 links up, the other GPUs have 18 (down: 7)"),
        ("hgx-h100+pcie-x8", "gpu3", "x8 instead of x16"),
        ("hgx-h100+nvml-hung", "node", "nvmlDeviceGetTemperature on GPU 3 never returned"),
        ("hgx-h100+gpu-off-bus", "node", "7 GPUs on an NVSwitch board, which carries 8"),
        ("hgx-h100+gpu-undriven", "node", "NVML drives 7 of 8 GPUs; not driven: 0000:83:00.0"),
        ("quad-4090+pcie-x8", "gpu3", "x8 instead of x16"),
        ("dual-l40s+ecc-off", "gpu1", "off"),
        ("quad-4090+driver-missing", "node", "4 NVIDIA GPUs on the PCI bus, but no driver is loaded"),
        ("hgx-h100+power-limit", "gpu3", "350 W instead of 700 W"),
    ],
)
def test_what_is_said(name: str, device: str, words: str) -> None:
    findings = judged(name).findings
    failed = [finding for finding in findings if finding.status == "failed"]
    said = failed or [finding for finding in findings if finding.status == "warned"]
    assert [(finding.device, words in finding.summary) for finding in said] == [(device, True)]


def test_names_that_are_not_known() -> None:
    for name in ("hgx-h1000", "hgx-h100+nvlink-dwon"):
        with pytest.raises(UnknownFixture):
            load(name)
