"""From a snapshot to a report, as the command line and the configuration want it: one way for `check` and for the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from checks.catalog import workloads as catalog
from checks.finding import Check, Finding
from checks.score import CHECKS, COMPONENTS, EXIT_CODES, GATE_CODES, FailOn, assess, overall
from checks.thresholds import Thresholds
from probe.snapshot import Snapshot
from readiness import __version__
from readiness.config import Config, near
from reports.document import Report, Source

DEFAULT_REQUIRE = "qlora-70b"


class UnknownName(LookupError):  # noqa: N818
    """A workload, check or component that there is not: one line, with the nearest that there is."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be judged, and how."""

    workloads: list[str]
    required: list[str]
    checks: Sequence[Check]
    skipped: list[str]
    accepted: dict[str, str]
    fail_on: FailOn
    gate: bool = False
    nodes: int | None = None
    thresholds: Thresholds = Thresholds()


def known(name: str, names: Iterable[str], what: str) -> str:
    """The name, if it is one. Raises `UnknownName`."""
    names = list(names)
    if name not in names:
        raise UnknownName(f"unknown {what} {name!r}: {near(name, names)}")
    return name


def wanted(
    config: Config,
    *,
    workloads: Sequence[str] = (),
    require: Sequence[str] = (),
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    accept: dict[str, str] | None = None,
    fail_on: FailOn | None = None,
    gate: bool = False,
    nodes: int | None = None,
) -> Wanted:
    """The configuration, with the command line before it. What is chosen and not the default is what is required, where nothing else is said.
    Raises `UnknownName`."""
    chosen = list(workloads) or config.workloads or list(catalog())
    required = list(dict.fromkeys(require or config.require or ([DEFAULT_REQUIRE] if DEFAULT_REQUIRE in chosen else chosen)))
    for name in (*chosen, *required):
        known(name, catalog(), "workload")
    skip = (*skip, *config.skip)
    for name in (*only, *skip):
        known(name, (*COMPONENTS, *(one.id for one in CHECKS)), "check or component")
    checks = [
        one for one in CHECKS if (not only or one.id in only or one.component in only) and one.id not in skip and one.component not in skip
    ]
    accepted = {**config.accept, **(accept or {})}
    for name in accepted:
        check, bracket, device = name.partition("[")
        known(check, (one.id for one in CHECKS), "check")
        if bracket and not (device.endswith("]") and len(device) > 1):
            raise UnknownName(f"{name!r}: a device stands in brackets, as in {check}[gpu3]")
    return Wanted(
        workloads=chosen,
        required=required,
        checks=checks,
        skipped=[one.id for one in CHECKS if one not in checks],
        accepted=accepted,
        fail_on=fail_on or config.fail_on,
        gate=gate,
        nodes=nodes,
        thresholds=config.thresholds,
    )


def judge(
    snapshot: Snapshot, want: Wanted, source: Source, standing: Callable[[list[Finding]], list[Finding]] = lambda findings: findings
) -> Report:
    """The report on a snapshot."""
    if want.nodes:
        snapshot = msgspec.structs.replace(snapshot, site=msgspec.structs.replace(snapshot.site, nodes=want.nodes))
    assessment = assess(
        snapshot,
        [workload for name, workload in catalog().items() if name in want.workloads or name in want.required],
        checks=want.checks,
        accepted=want.accepted,
        nodes=snapshot.site.nodes,
        standing=standing,
        thresholds=want.thresholds,
    )
    verdict = overall(assessment.workloads, want.required, want.fail_on)
    return Report(
        tool_version=__version__,
        source=source,
        required=want.required,
        verdict=verdict,
        exit_code=(GATE_CODES if want.gate else EXIT_CODES)[verdict],
        workloads=assessment.workloads,
        findings=assessment.findings,
        skipped=want.skipped,
        thresholds=want.thresholds.changed(),
        facts=snapshot,
    )
