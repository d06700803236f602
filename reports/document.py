"""The report as one versioned document: what the JSON says, and what every other face is made of."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from checks.finding import Finding
from checks.score import VerdictWord, WorkloadVerdict
from probe.snapshot import Snapshot

SCHEMA = "readiness.report/v1"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the facts are from: this machine, or a recording of one. `recorded_at` is ISO 8601, UTC."""

    kind: Literal["live", "replay"]
    name: str
    recorded_at: str
    redacted: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report. `verdict` and `exit_code` speak of the required workloads; `skipped` are the checks that were not run, `thresholds`
    those that the site has set otherwise."""

    schema: str = SCHEMA
    tool_version: str
    source: Source
    required: list[str]
    verdict: VerdictWord
    exit_code: int
    workloads: list[WorkloadVerdict]
    findings: list[Finding]
    skipped: list[str]
    thresholds: dict[str, str] = {}
    facts: Snapshot


def to_json(report: Report) -> str:
    """The document, indented, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the document."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "readiness report", **msgspec.json.schema(Report)}
