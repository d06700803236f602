"""A plan in words: what a machine would hold and ask for, and the smallest machines for a workload."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

import msgspec

from checks.catalog import Workload
from checks.plan import Configuration, Plan, PlannedFit
from checks.workload.fit import gigabytes
from reports import wording

TEXT_COLUMN, SUBJECT_COLUMN = 27, 13
MARKS = {"passed": "FITS", "warned": "COND", "unknown": "?", "failed": "NO", "not_applicable": ""}


def terminal(plan: Plan, *, dataset_tokens: int | None, recipes: bool) -> str:
    """The plan as text."""
    lines = [wrapped for line in _lines(plan, dataset_tokens) for wrapped in _wrapped(line, _width())]
    if recipes:  # as they are, to be copied
        lines += [f"\n{one.workload}:\n\n{one.fit.recipe.rstrip()}" for one in plan.fits if one.fit.recipe]
    return "\n".join(lines) + "\n"


def _width() -> int:
    """The terminal's columns, 80 where there is none; no line is longer than can be read well."""
    return min(120, max(60, shutil.get_terminal_size((80, 24)).columns))


def _wrapped(line: str, width: int) -> list[str]:
    """A line, broken at words; its continuation stands below its text."""
    indent = len(line) - len(line.lstrip()) or (TEXT_COLUMN if line.startswith(tuple(MARKS.values())[:4]) else SUBJECT_COLUMN)
    return textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False) or [""]


def _lines(plan: Plan, dataset_tokens: int | None) -> Iterator[str]:
    machine = plan.machine
    ram = gigabytes(machine.ram_bytes) + " of RAM" if machine.ram_bytes else "RAM not stated"
    disk = gigabytes(machine.nvme_bytes) + " of NVMe" if machine.nvme_bytes else "NVMe not stated"
    network = f"{machine.network_gbps:g} Gb/s between nodes" if machine.network_gbps else "no network between nodes"
    nodes = f"{machine.nodes} nodes, each with " if machine.nodes > 1 else ""
    yield f"{nodes}{machine.gpus} × {machine.card.name} ({gigabytes(machine.card.memory_bytes)} each), {ram}, {disk}, {network}"
    yield ""
    for one in plan.fits:
        yield from _fit(one, dataset_tokens)
    yield ""
    peak = sum(plan.peak_terms.values())
    terms = " + ".join(f"{name} {watts:.0f}" for name, watts in plan.peak_terms.items())
    yield f"power        {peak / 1000:.1f} kW at the peak of each node: {terms}"
    for advice in plan.advice:
        yield f"{advice.subject:12} {'SHORT: ' if advice.short else ''}{advice.summary}"


def _fit(one: PlannedFit, dataset_tokens: int | None) -> Iterator[str]:
    fitted = one.fit
    yield f"{MARKS[fitted.status]:4}  {one.workload:20} {fitted.summary}"
    indent = " " * TEXT_COLUMN
    pace = wording.pace(fitted)
    if pace:
        yield indent + pace
    beside = wording.bytes_beside(fitted)
    if beside:
        yield indent + beside
    chosen = next((tried for tried in fitted.strategies if tried.strategy == fitted.strategy), None)
    if chosen and chosen.tokens_per_second and dataset_tokens:
        yield f"{indent}{dataset_tokens:,} tokens in {wording.duration(dataset_tokens / chosen.tokens_per_second)}"
    if one.networks:
        best = max(one.networks.values())
        slower = ", ".join(
            f"{name} {best / rate:.1f} ×" if best / rate < 10 else f"{name} {best / rate:.0f} ×" for name, rate in one.networks.items()
        )
        yield f"{indent}step time by network: {slower}"
    if fitted.rule_of_thumb:
        yield f"{indent}the rule {fitted.rule_of_thumb}"
    for tried in fitted.strategies:
        if chosen is not None and tried.strategy == chosen.strategy:
            break
        if tried.outcome == "tight":
            yield f"{indent}- tight: {tried.title}: {gigabytes(tried.gpu_need_bytes)} of {gigabytes(tried.gpu_usable_bytes)}"
        if tried.lacks:
            more = f"; {tried.nodes_needed} such nodes" if tried.nodes_needed else ""
            yield f"{indent}- not {tried.title}: {tried.lacks}{more}"


def smallest(workload: Workload, found: list[Configuration]) -> str:
    """The table of the smallest machines: the least that works, and the least that runs as recommended."""
    width = _width()
    lines = textwrap.wrap(
        f"{workload.title}: {workload.sequence_tokens} tokens a sequence, micro-batch {workload.micro_batch}. The smallest machines:", width
    )
    for one in found:
        nodes = f"{one.nodes} nodes, each with " if one.nodes > 1 else ""
        memory = f"{gigabytes(one.gpu_need_bytes)} of {gigabytes(one.gpu_usable_bytes)} on each GPU"
        pace = f"about {wording.two_digits(one.tokens_per_second)} tokens/s" if one.tokens_per_second else "tokens/s not known"
        mark = "recommended" if one.recommended else "minimum"
        lines += ["", f"{mark:12} {nodes}{one.gpus} × {one.card}"]
        told = f"{memory}, {gigabytes(one.host_need_bytes)} of RAM a node, {pace}, {one.peak_watts / 1000:.1f} kW; {one.strategy}"
        lines += textwrap.wrap(told, width, initial_indent=" " * SUBJECT_COLUMN, subsequent_indent=" " * SUBJECT_COLUMN)
    if not found:
        lines.append("none of up to 32 nodes")
    return "\n".join(lines) + "\n"


def to_json(plan: Plan | list[Configuration]) -> str:
    """The plan, or the smallest machines, as JSON."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"
