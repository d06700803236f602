"""How a workload's score came about, term by term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.score import WorkloadVerdict
from reports import wording
from reports.document import Report


def explained(report: Report, workloads: Sequence[str]) -> list[str]:
    """For each of these workloads a table of its terms, with what took credit from each."""
    return ["\n".join(_table(report, one)) + "\n" for one in report.workloads if one.workload in workloads]


def _table(report: Report, one: WorkloadVerdict) -> Iterator[str]:
    yield f"{one.workload}: {wording.verdict_words(one.verdict)}, score {one.score * 100:.1f}, confidence {one.confidence * 100:.1f} %"
    yield ""
    yield f"{'component':12}{'weight':>8}{'judged':>9}{'credit':>9}{'points':>9}{'of':>9}   taken by"
    counted = 0.0
    points = 0.0
    for term in one.terms:
        share = term.weight * term.judged
        mine = "-" if term.credit is None else f"{share * term.credit:.2f}"
        credit = "-" if term.credit is None else f"{term.credit:.2f}"
        if term.credit is not None:
            counted += share
            points += share * term.credit
        row = f"{term.component:12}{term.weight:8g}{term.judged:9.0%}{credit:>9}{mine:>9}{share:9.2f}"
        yield f"{row}   {_taken(report, one, term.component)}".rstrip()
    total = sum(term.weight for term in one.terms)
    judged = sum(term.weight * term.judged for term in one.terms)
    yield ""
    if counted:
        yield f"score       {points:.2f} / {counted:.2f} = {points / counted * 100:.1f}"
    yield f"confidence  {judged:.2f} / {total:g} = {judged / total * 100:.1f} %"
    yield from (f"verdict     {reason}" for reason in one.reasons)


def _taken(report: Report, one: WorkloadVerdict, component: str) -> str:
    """What lowers a component's credit, or could not be judged."""
    if component == "fit":
        return "" if one.fit.status == "passed" else wording.printable(one.fit.summary)
    words = [
        f"{finding.check}[{finding.device}] {finding.status}{' (accepted)' if finding.accepted else ''}"
        for finding in report.findings
        if finding.component == component and finding.status in ("failed", "warned", "unknown")
    ]
    more = f", and {len(words) - 3} more" if len(words) > 3 else ""
    return wording.printable(", ".join(words[:3])) + more
