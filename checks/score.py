"""The assessment: every finding, and for each workload its fit, verdict, score and confidence.

Score: the weighted mean of the components, 0 to 100. A component in which something failed scores 0; else it is the weighted mean of its
checks, and a check's is that of its worst device, for a chain is as strong as its weakest link. Confidence: the share of that weight which
could be judged; a check that was left out was not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from checks import cooling, driver, gpu, host, kernel, network, nvlink, pcie, power, software, storage, ups
from checks.catalog import Workload
from checks.finding import Check, Finding
from checks.node import Node
from checks.thresholds import Thresholds
from checks.workload.fit import Fit, fit
from probe.snapshot import Snapshot

CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (driver, gpu, nvlink, pcie, host, network, storage, power, ups, cooling, kernel, software)
    for check in module.CHECKS
)
COMPONENTS = tuple(dict.fromkeys(check.component for check in CHECKS))

VerdictWord = Literal["READY", "READY_WITH_WARNINGS", "NOT_READY", "UNKNOWN"]


class ScoreTerm(msgspec.Struct, frozen=True, kw_only=True):
    """What a component gives to a workload's score: its weight, the share of it that could be judged, and its credit (0 to 1; None where
    nothing of it could be judged)."""

    component: str
    weight: float
    judged: float
    credit: float | None


class WorkloadVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the node is for one workload. `reasons` are the findings (or the fit) that decided it; ratios are 0 to 1. The score is the sum of
    weight × judged × credit over the terms that have a credit, over the sum of their weight × judged; the confidence the judged share of
    all weight."""

    workload: str
    title: str
    verdict: VerdictWord
    score: float
    confidence: float
    terms: list[ScoreTerm]
    reasons: list[str]
    fit: Fit


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was judged of one snapshot."""

    findings: list[Finding]
    workloads: list[WorkloadVerdict]


def assess(
    snapshot: Snapshot,
    workloads: Iterable[Workload],
    *,
    checks: Sequence[Check] = CHECKS,
    accepted: dict[str, str] | None = None,
    nodes: int | None = None,
    standing: Callable[[list[Finding]], list[Finding]] = lambda findings: findings,
    thresholds: Thresholds | None = None,
) -> Assessment:
    """Run the checks and judge each workload. `accepted` gives the reason for which a check's fault is lived with, by check or `check[device]`.

    `standing` may hold findings back or keep them: the daemon's memory of earlier passes.
    """
    node = Node(snapshot, thresholds)
    found = standing([finding for check in checks for finding in check.findings(node)])
    findings = [_accepted(finding, accepted or {}) for finding in found]
    components = {component: _component(component, findings, checks) for component in COMPONENTS}
    return Assessment(
        findings=findings, workloads=[_judge(workload, findings, checks, components, fit(node, workload, nodes)) for workload in workloads]
    )


def _accepted(finding: Finding, accepted: dict[str, str]) -> Finding:
    """The finding with the site's reason to live with it, if it is a bad one."""
    reason = accepted.get(f"{finding.check}[{finding.device}]") or accepted.get(finding.check, "")
    return msgspec.structs.replace(finding, accepted=reason) if reason and finding.status in ("warned", "failed", "unknown") else finding


Credit = tuple[float | None, float]
"""What a component earns, and the share of its weight that could be judged."""


def _judge(
    workload: Workload, findings: Sequence[Finding], checks: Sequence[Check], components: dict[str, Credit], fitted: Fit
) -> WorkloadVerdict:
    scored = {component: credit for component, credit in components.items() if workload.weights.get(component)}
    scored["fit"] = (fitted.credit, 0.0 if fitted.credit is None else 1.0)
    total = sum(workload.weights[component] for component in scored)
    judged = sum(workload.weights[component] * share for component, (_, share) in scored.items())
    known = [(workload.weights[component] * share, credit) for component, (credit, share) in scored.items() if credit is not None]
    weight = sum(share for share, _ in known)
    verdict, reasons = _verdict(workload, findings, checks, fitted)
    return WorkloadVerdict(
        workload=workload.id,
        title=workload.title,
        verdict=verdict,
        score=sum(share * credit for share, credit in known) / weight if weight else 0.0,
        confidence=judged / total if total else 0.0,
        terms=[
            ScoreTerm(component=component, weight=workload.weights[component], judged=share, credit=credit)
            for component, (credit, share) in scored.items()
        ],
        reasons=reasons,
        fit=fitted,
    )


def _component(component: str, findings: Sequence[Finding], selected: Sequence[Check]) -> Credit:
    """A component's credit, and the share of its weight that could be judged (all of it where nothing applies)."""
    credit = judged = total = 0.0
    for check in CHECKS:
        if check.component != component:
            continue
        own = [finding for finding in findings if finding.check == check.id and finding.status != "not_applicable"]
        if not own:
            total += 0.0 if check in selected else check.weight
            continue
        total += check.weight
        credited = [finding.credit for finding in own if finding.credit is not None]
        if credited:
            share = len(credited) / len(own)
            judged += check.weight * share
            credit += check.weight * share * min(credited)
    if not total:
        return None, 1.0
    if any(finding.component == component and finding.status == "failed" and not finding.accepted for finding in findings):
        return 0.0, judged / total
    return (credit / judged if judged else None), judged / total


def _verdict(workload: Workload, findings: Sequence[Finding], selected: Sequence[Check], fitted: Fit) -> tuple[VerdictWord, list[str]]:
    """NOT_READY where a part that the workload needs has failed or it does not fit; UNKNOWN where something that must be judged could not
    be; warnings otherwise lower it to READY_WITH_WARNINGS."""
    open_findings = [finding for finding in findings if not finding.accepted]
    stopping = [
        finding
        for finding in open_findings
        if finding.status == "failed" and (workload.weights.get(finding.component) or finding.check in workload.must_judge)
    ]
    if fitted.status == "failed" or stopping:
        return "NOT_READY", (["fit"] if fitted.status == "failed" else []) + _ids(stopping)
    unjudged = [finding for finding in open_findings if finding.status == "unknown" and finding.check in workload.must_judge]
    left_out = [check for check in workload.must_judge if check not in {one.id for one in selected}]
    if fitted.status == "unknown" or unjudged or left_out:
        return "UNKNOWN", (["fit"] if fitted.status == "unknown" else []) + _ids(unjudged) + [f"{check} (not run)" for check in left_out]
    warnings = [finding for finding in open_findings if finding.status in ("warned", "failed")]
    if fitted.status == "warned" or warnings:
        return "READY_WITH_WARNINGS", (["fit"] if fitted.status == "warned" else []) + _ids(warnings)
    return "READY", []


def _ids(findings: Sequence[Finding]) -> list[str]:
    return [f"{finding.check}[{finding.device}]" for finding in findings]


VERDICT_ORDER: tuple[VerdictWord, ...] = ("READY", "READY_WITH_WARNINGS", "UNKNOWN", "NOT_READY")
EXIT_CODES: dict[VerdictWord, int] = {"READY": 0, "READY_WITH_WARNINGS": 1, "NOT_READY": 2, "UNKNOWN": 3}
"""The monitoring-plugin convention: ok, warning, critical, unknown."""
GATE_CODES: dict[VerdictWord, int] = {"READY": 0, "READY_WITH_WARNINGS": 0, "NOT_READY": 1, "UNKNOWN": 2}
"""For a scheduler: may run, must not run, could not tell."""

FailOn = Literal["fail", "unknown", "warn"]


def overall(verdicts: Iterable[WorkloadVerdict], required: Sequence[str], fail_on: FailOn = "fail") -> VerdictWord:
    """The gravest verdict of the required workloads; `fail_on` makes NOT_READY of what is not known, or of that and of warnings."""
    word = max((one.verdict for one in verdicts if one.workload in required), key=VERDICT_ORDER.index)
    stopping = {"fail": (), "unknown": ("UNKNOWN",), "warn": ("UNKNOWN", "READY_WITH_WARNINGS")}[fail_on]
    return "NOT_READY" if word in stopping else word
