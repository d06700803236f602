"""What a fact is when it could not be had, and the small readers every probe is made of.

A fact that could not be read is a `Missing`: never 0, never None, never an empty string. `T | Missing` says so in the types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

if TYPE_CHECKING:
    from probe.host import Host

Reason = Literal["absent", "not_supported", "no_permission", "timeout", "error"]
"""Why something could not be had: it is not there, the device does not offer it, we may not, it never answered, or it failed."""

T = TypeVar("T")
U = TypeVar("U")


class Unavailable(Exception):  # noqa: N818 - it is an answer of the machine, not an error of ours
    """Raised by a `Host` in place of an answer."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


class Missing(msgspec.Struct, frozen=True):
    """A fact that could not be had: why, in what words, and what was asked."""

    reason: Reason
    detail: str
    source: str

    @property
    def why(self) -> str:
        """The reason in words, without what was asked."""
        words = {
            "absent": "not there",
            "not_supported": "not supported",
            "no_permission": "no permission",
            "timeout": "no answer",
            "error": "failed",
        }[self.reason]
        return words + (f" ({self.detail})" if self.detail else "")

    def __str__(self) -> str:
        return f"{self.source}: {self.why}"


def text(host: Host, path: str) -> str | Missing:
    """The content of a file, without the white space around it."""
    try:
        return host.read(path).strip()
    except Unavailable as error:
        return Missing(error.reason, error.detail, path)


def names(host: Host, path: str) -> list[str]:
    """The names in a folder, sorted; none where the folder is absent or closed to us.

    For folders whose absence means that the machine has no such devices (`/sys/class/...`).
    """
    try:
        return host.listing(path)
    except Unavailable:
        return []


def parsed(value: str | Missing, source: str, parse: Callable[[str], T]) -> T | Missing:
    """`parse(value)`; what the parser refuses (ValueError, IndexError, KeyError) is Missing, with the raw text as evidence."""
    if isinstance(value, Missing):
        return value
    try:
        return parse(value)
    except (ValueError, IndexError, KeyError):
        return Missing("error", f"cannot be understood: {value[:80]!r}", source)


def integer(host: Host, path: str) -> int | Missing:
    """A file that holds one whole number, decimal or with a 0x prefix."""
    return parsed(text(host, path), path, lambda value: int(value, 0))


def mapped(value: T | Missing, change: Callable[[T], U]) -> U | Missing:
    """`change(value)`, where there is a value."""
    return value if isinstance(value, Missing) else change(value)
