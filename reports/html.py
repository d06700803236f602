"""The report as one page of HTML, and what is checked as another: no script, no network, everything from a machine escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, Template

from checks.score import CHECKS
from reports import wording
from reports.document import Report


@cache
def _template(name: str) -> Template:
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["printable"] = wording.printable
    environment.filters["pace"] = wording.pace
    return environment.get_template(name)


def render(report: Report) -> str:
    """The page."""
    order = ("failed", "warned", "unknown", "passed", "not_applicable")
    findings = sorted(report.findings, key=lambda finding: order.index(finding.status))
    open_ones = [finding for finding in findings if finding.status in order[:3] and not finding.accepted]
    rest = [finding for finding in findings if finding not in open_ones]
    return _template("report.html.j2").render(
        report=report,
        words=wording.verdict_words,
        host=wording.host(report),
        machine=wording.machine(report.facts),
        origin=wording.origin(report),
        ports=wording.ports(report.facts),
        unfit=wording.unfit(report),
        hindrances=[(wording.device_list(devices), finding) for devices, finding in wording.grouped(open_ones)],
        rest=[(wording.device_list(devices), finding) for devices, finding in wording.grouped(rest)],
        gigabytes=wording.gigabytes,
    )


def checks() -> str:
    """The page that alerts link to: the text of every check."""
    return _template("checks.html.j2").render(checks=CHECKS)
