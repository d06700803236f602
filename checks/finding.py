"""What a check is, what it says, and the few words checks are made of.

A check is a function from a device's facts and the node to a `Verdict`. What all checks share stands here and only here: the loop over the
devices, what becomes of a fact that is missing, and the wording of the outcomes. An example:

    @check("gpu.persistence", component="gpu", per=each_gpu, title="Persistence mode", weight=1, source="...")
    def persistence(gpu: Gpu, node: Node) -> Verdict:
        '''What is read, the threshold, and why it matters: the text of `readiness explain gpu.persistence`.'''
        return passed("on") if known(gpu.persistence_mode) else warned("off", fix="nvidia-smi -pm 1")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from probe.fact import Missing

T = TypeVar("T")

Status = Literal["passed", "warned", "failed", "unknown", "not_applicable"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a check says of one device: the outcome in a sentence, the measured and the required value, the evidence, and the fix.

    `cause` is why it could not be judged, in words that are the same for all that one cause keeps from being judged.
    """

    status: Status
    summary: str
    measured: float | None = None
    required: float | None = None
    unit: str = ""
    evidence: list[str] = []
    fix: str = ""
    cause: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with the check and the device it belongs to. `accepted` is the reason for which the site lives with it."""

    check: str
    component: str
    title: str
    device: str
    status: Status
    summary: str
    measured: float | None = None
    required: float | None = None
    unit: str = ""
    evidence: list[str] = []
    fix: str = ""
    cause: str = ""
    accepted: str = ""

    @property
    def credit(self) -> float | None:
        """What the finding gives to the score: 1 passed, 0 failed; a warning half, or how much of the required it reaches, if that
        is less than all. None where it could not be judged."""
        if self.accepted:
            return 1.0
        if self.status == "warned":
            reached = self.measured / self.required if self.measured is not None and self.required else None
            return min(0.9, reached) if reached is not None and 0 <= reached < 1 else 0.5
        return {"passed": 1.0, "failed": 0.0}.get(self.status)


def passed(summary: str, **rest: Any) -> Verdict:
    """As it should be."""
    return Verdict(status="passed", summary=summary, **rest)


def warned(summary: str, *, fix: str, **rest: Any) -> Verdict:
    """It runs, but slower, or not for long, or not as one would expect."""
    return Verdict(status="warned", summary=summary, fix=fix, **rest)


def failed(summary: str, *, fix: str, **rest: Any) -> Verdict:
    """A fault that stops a run, or will."""
    return Verdict(status="failed", summary=summary, fix=fix, **rest)


def unknown(missing: Missing, fix: str = "") -> Verdict:
    """Could not be judged: never fine, and never broken."""
    words = f"could not be read: {missing}"
    return Verdict(status="unknown", summary=words, evidence=[str(missing)], fix=fix or _access(missing), cause=missing.why)


def not_applicable(why: str) -> Verdict:
    """There is nothing to judge on this machine."""
    return Verdict(status="not_applicable", summary=why)


def _access(missing: Missing) -> str:
    return "run readiness as root" if missing.reason == "no_permission" else ""


class NotKnown(Exception):  # noqa: N818 - not an error: the framework turns it into `unknown`
    """A check needed a fact that is missing."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(str(missing))
        self.missing = missing


def known(fact: T | Missing) -> T:
    """The fact; where it is missing the check ends here with `unknown` (or, if the device has no such thing, as the check declares)."""
    if isinstance(fact, Missing):
        raise NotKnown(fact)
    return fact


def or_none(fact: T | Missing) -> T | None:
    """The fact, or None: for what only adds to the evidence."""
    return None if isinstance(fact, Missing) else fact


def amount(number: int, what: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


Devices = Callable[[Any], list[tuple[str, Any]]]
"""From the node to (name, facts) of the devices a check is asked about; `Missing` stands for devices of which nothing is known."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A check as it is declared. `not_supported` says what it means when the device has no such thing; without it that is `unknown`."""

    id: str
    component: str
    title: str
    weight: float
    source: str
    devices: Devices
    judge: Callable[..., Verdict]
    not_supported: str = ""

    @property
    def text(self) -> str:
        """What is read, the threshold, why, and the fix, in words."""
        import inspect

        return inspect.cleandoc(self.judge.__doc__ or "")

    def findings(self, node: Any) -> Iterator[Finding]:
        """One finding a device; an unexpected exception in a check is evidence against the check, not an end."""
        for name, device in self.devices(node):
            try:
                verdict = unknown(device) if isinstance(device, Missing) else self.judge(device, node)
            except NotKnown as gap:
                verdict = (
                    not_applicable(self.not_supported)
                    if gap.missing.reason == "not_supported" and self.not_supported
                    else unknown(gap.missing)
                )
            except Exception as error:
                fault = Missing("error", f"{type(error).__name__}: {error}", f"check {self.id}")
                verdict = unknown(fault, fix="this is a fault of readiness: please report it with a recording of the machine")
            yield Finding(check=self.id, component=self.component, title=self.title, device=name, **msgspec.structs.asdict(verdict))


def check(
    id: str, *, component: str, title: str, per: Devices, weight: float, source: str, not_supported: str = ""
) -> Callable[[Callable[..., Verdict]], Check]:
    """Make a check of a function."""

    def declare(judge: Callable[..., Verdict]) -> Check:
        return Check(
            id=id,
            component=component,
            title=title,
            weight=weight,
            source=source,
            devices=per,
            judge=judge,
            not_supported=not_supported,
        )

    return declare
