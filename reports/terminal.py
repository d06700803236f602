"""The report for a person at a terminal: the verdict first, then what stands in the way, then the rest. Fits 80 columns."""

from __future__ import annotations

import io
from collections import Counter
from typing import IO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from checks.finding import Finding
from checks.score import WorkloadVerdict
from reports import wording
from reports.document import Report

STYLES = {"READY": "bold green", "READY_WITH_WARNINGS": "bold yellow", "NOT_READY": "bold red", "UNKNOWN": "bold magenta"}
MARKS = {
    "failed": ("FAIL", "bold red"),
    "warned": ("WARN", "yellow"),
    "unknown": ("????", "magenta"),
    "passed": ("ok", "green"),
    "not_applicable": ("n/a", "dim"),
}


def render(report: Report, out: IO[str], *, width: int = 80, color: bool | None = None, verbose: int = 0) -> None:
    """Write the report. `color` None: as the terminal and NO_COLOR have it."""
    drawn = io.StringIO()
    console = Console(
        file=drawn, width=width, highlight=False, markup=False, emoji=False, force_terminal=color, no_color=True if color is False else None
    )
    _headline(console, report)
    _hindrances(console, report, verbose)
    _workloads(console, report, verbose)
    _checks(console, report, verbose)
    out.write("".join(line.rstrip() + "\n" for line in drawn.getvalue().splitlines()))


def _headline(console: Console, report: Report) -> None:
    required = [one for one in report.workloads if one.workload in report.required]
    console.print(
        Text.assemble((f"{wording.verdict_words(report.verdict)}", STYLES[report.verdict]), "  for ", (", ".join(report.required), "bold"))
    )
    if report.verdict == "NOT_READY" and all(one.verdict != "NOT_READY" for one in required):
        console.print("(what warns or is not known counts as not ready here: --fail-on)")
    for one in required:
        console.print(f"score {one.score * 100:.0f}/100, confidence {one.confidence * 100:.0f} %: {one.title}", soft_wrap=False)
    console.print(f"{wording.host(report)}: {wording.machine(report.facts)}")
    console.print(Text(wording.origin(report), style="bold" if report.source.kind == "replay" else "dim"))


def _hindrances(console: Console, report: Report, verbose: int) -> None:
    """Everything that is not as it should be, the gravest first."""
    order = ("failed", "warned", "unknown")
    shown = sorted(
        (finding for finding in report.findings if finding.status in order and not finding.accepted), key=lambda f: order.index(f.status)
    )
    unfit = wording.unfit(report)
    console.print()
    not_run = sorted(
        {
            reason.removesuffix(" (not run)")
            for one in report.workloads
            if one.workload in report.required
            for reason in one.reasons
            if reason.endswith(" (not run)")
        }
    )
    if not_run:
        console.print(f"Not run, and needed for a verdict: {', '.join(not_run)}")
    if not shown and not unfit:
        console.print("Nothing of what was judged stands in the way." if not_run else "Nothing stands in the way.")
    else:
        console.print(Text("What stands in the way", style="bold"))
        for one in unfit:
            _entry(console, one.fit.status, one.workload, "What the workload needs", "", one.fit.summary, one.fit.fix, [])
        judged = [finding for finding in shown if verbose or finding.status != "unknown"]
        for devices, finding in wording.grouped(judged):
            _finding(console, devices, finding, verbose)
        for cause in wording.by_cause([] if verbose else [finding for finding in shown if finding.status == "unknown"]):
            _cause(console, cause)
    accepted = [finding for finding in report.findings if finding.accepted]
    if accepted:
        console.print()
        console.print(Text("Accepted by the site", style="bold"))
        for devices, finding in wording.grouped(accepted):
            _finding(console, devices, finding, verbose)


def _cause(console: Console, findings: list[Finding]) -> None:
    """What one cause keeps from being judged."""
    first = findings[0]
    checks = list(dict.fromkeys(finding.check for finding in findings))
    devices = wording.device_list(list(dict.fromkeys(finding.device for finding in findings)))
    if len(checks) == 1:
        _entry(console, "unknown", devices, first.title, first.check, first.summary, first.fix, [])
        return
    summary = f"{first.cause}: {', '.join(checks)}"
    _entry(console, "unknown", devices, f"{len(checks)} checks could not be made", "", summary, first.fix, [])


def _finding(console: Console, devices: list[str], finding: Finding, verbose: int) -> None:
    summary = finding.summary + (f" (accepted: {finding.accepted})" if finding.accepted else "")
    evidence = [line for line in finding.evidence if line not in finding.summary] if verbose or finding.status == "failed" else []
    _entry(console, finding.status, wording.device_list(devices), finding.title, finding.check, summary, finding.fix, evidence)


def _entry(console: Console, status: str, device: str, title: str, check: str, summary: str, fix: str, evidence: list[str]) -> None:
    mark, style = MARKS[status]
    head = Text.assemble((f"{mark:4}", style), " ", (device, "bold"), f"  {title}", (f"  [{check}]" if check else "", "dim"))
    console.print(Padding(head, (0, 0, 0, 2)))
    console.print(Padding(Text(wording.printable(summary)), (0, 0, 0, 7)))
    for label, line in (*(("seen:", line) for line in evidence[:4]), *((("fix:", fix),) if fix else ())):
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(width=5, no_wrap=True)
        row.add_column(overflow="fold")
        row.add_row(Text(label, style="dim"), Text(wording.printable(line)))
        console.print(Padding(row, (0, 0, 0, 7)))


def _workloads(console: Console, report: Report, verbose: int) -> None:
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("Workload", no_wrap=True)
    table.add_column("Verdict", no_wrap=True)
    table.add_column("Score", justify="right", no_wrap=True)
    table.add_column("Conf.", justify="right", no_wrap=True)
    for one in report.workloads:
        table.add_row(
            Text(one.workload + (" *" if one.workload in report.required else "")),
            Text(wording.verdict_words(one.verdict), style=STYLES[one.verdict]),
            f"{one.score * 100:.0f}",
            f"{one.confidence * 100:.0f} %",
        )
    console.print(table)
    console.print(Text("* what the exit code speaks of", style="dim"))
    console.print()
    console.print(
        Text("How each would run", style="bold")
        + Text(f"  (GB = 10^9 bytes; {_assumed(report) or 'GPU memory as NVML reports it'})", style="dim")
    )
    for one in report.workloads:
        _fit(console, one, verbose)


def _assumed(report: Report) -> str:
    return next((one.fit.assumed for one in report.workloads if one.fit.assumed), "")


def _fit(console: Console, one: WorkloadVerdict, verbose: int) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=18, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(one.workload), Text(wording.printable(one.fit.summary)))
    pace = wording.pace(one.fit)
    if pace:
        grid.add_row("", Text(pace))
    beside = wording.bytes_beside(one.fit) if verbose else ""
    if beside:
        grid.add_row("", Text(beside))
    if one.fit.rule_of_thumb:
        grid.add_row("", Text(f"the rule {one.fit.rule_of_thumb}", style="dim"))
    chosen = one.fit.strategy
    for tried in one.fit.strategies:
        if tried.strategy == chosen and not verbose:
            break
        if tried.lacks and (chosen is not None or verbose):
            nodes = f"; {tried.nodes_needed} such nodes" if tried.nodes_needed else ""
            lacks = tried.lacks if one.fit.nodes > 1 else f"{wording.gigabytes(tried.states_bytes)} of states; {tried.lacks}"
            grid.add_row("", Text(f"- not {tried.title}: {lacks}{nodes}", style="dim"))
        elif tried.outcome == "tight" and tried.strategy != chosen and not verbose:
            need, usable = wording.gigabytes(tried.gpu_need_bytes), wording.gigabytes(tried.gpu_usable_bytes)
            grid.add_row("", Text(f"- tight: {tried.title}: {need} of {usable}", style="dim"))
        elif verbose:
            terms = ", ".join(f"{name} {wording.gigabytes(size)}" for name, size in tried.terms.items())
            rate = f"; about {wording.two_digits(tried.tokens_per_second)} tokens/s" if tried.tokens_per_second else ""
            grid.add_row(
                "", Text(f"- {tried.outcome}: {tried.title}: {terms}; RAM {wording.gigabytes(tried.host_need_bytes)}{rate}", style="dim")
            )
    console.print(Padding(grid, (0, 0, 0, 2)))


def _checks(console: Console, report: Report, verbose: int) -> None:
    console.print()
    console.print(Text("Checks", style="bold"))
    components: dict[str, Counter[str]] = {}
    for finding in report.findings:
        components.setdefault(finding.component, Counter())[finding.status] += 1
    words = {"passed": "passed", "warned": "warned", "failed": "failed", "unknown": "not known", "not_applicable": "not applicable"}
    for component, counted in components.items():
        said = ", ".join(f"{counted[status]} {word}" for status, word in words.items() if counted[status])
        console.print(f"  {component:10} {said}")
    ports = wording.ports(report.facts)
    if ports:
        console.print()
        console.print(Text("What the RDMA ports are taken for", style="bold"))
        for line in ports:
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    if report.skipped:
        console.print(f"  not run: {', '.join(report.skipped)}")
    if report.thresholds:
        console.print(f"  the site's own thresholds: {', '.join(f'{name} {words}' for name, words in report.thresholds.items())}")
    if verbose:
        for devices, finding in wording.grouped(report.findings):
            if finding.status in ("passed", "not_applicable"):
                _entry(
                    console,
                    finding.status,
                    wording.device_list(devices),
                    finding.title,
                    finding.check,
                    finding.summary,
                    "",
                    finding.evidence if verbose > 1 else [],
                )
    console.print()
    console.print(Text("More: readiness explain CHECK, readiness check -v", style="dim"))
