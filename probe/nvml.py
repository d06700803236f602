"""The log of the NVML sweep: how it is made (by a child, `probe.nvml_sweep`) and how facts look things up in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from probe.fact import Missing, Reason, Unavailable

T = TypeVar("T")

OUTPUT_CAP_BYTES = 32 << 20
SCRIPT = Path(__file__).with_name("nvml_sweep.py")

ABSENT = frozenset({"LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "GPU_NOT_FOUND", "NOT_FOUND", "NO_DATA"})
UNSUPPORTED = frozenset({"NOT_SUPPORTED", "INVALID_ARGUMENT"})
"""The card has no such thing. A library that lacks the call (FUNCTION_NOT_FOUND) or knows another version of it says nothing of the card."""
NOT_ASKED = "not asked"
NOT_RETURNED = "NOT_RETURNED"
"""The call was made and never came back; the child was stopped at its deadline."""
CRASHED = "CRASHED"
"""The child died inside the call."""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of the sweep: its NVML name, the device index, what it returned or the name of its error.

    `seconds` is there where the call took a tenth of a second or more.
    """

    call: str
    device: int | None
    args: list[int] = []
    value: Any = None
    error: str | None = None
    seconds: float | None = None


def reason_of(error: str) -> Reason:
    """Which of our reasons an NVML error is."""
    if error in ABSENT:
        return "absent"
    if error in UNSUPPORTED:
        return "not_supported"
    if error in ("NO_PERMISSION", "INSUFFICIENT_PERMISSION"):
        return "no_permission"
    if error in (NOT_RETURNED, "TIMEOUT"):
        return "timeout"
    return "error"


def sweep(deadline_seconds: float, env: Mapping[str, str]) -> list[Call]:
    """Run the sweep in a child and return its log.

    A call that never returned, or in which the child died, ends the log with the error `NOT_RETURNED` or `CRASHED`.
    """
    from probe import process

    argv = [sys.executable, "-I", str(SCRIPT)]
    answer = process.stream(argv, deadline_seconds=deadline_seconds, output_cap_bytes=OUTPUT_CAP_BYTES, env=env)
    if isinstance(answer, process.Interrupted):
        error = NOT_RETURNED
        why = answer.why + (", in uninterruptible sleep" if answer.state == "D" else "")
        return parse_log(answer.stdout, error, {"why": why, "seconds": deadline_seconds})
    code, stdout, stderr = answer
    why = f"the child ended with {_exit_words(code)}"
    if code and stderr:
        why += f": {stderr.decode('utf-8', 'replace').strip().splitlines()[-1][:200]}"
    return parse_log(stdout, CRASHED, {"why": why} if code else {})


def _exit_words(code: int) -> str:
    import signal

    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def parse_log(output: bytes, broken_off: str, why: dict[str, Any]) -> list[Call]:
    """The lines of a sweep; a last line that lacks its tail becomes a call with the error `broken_off`."""
    lines = output.split(b"\n")
    log = []
    for line in lines[:-1]:
        try:
            log.append(msgspec.json.decode(line, type=Call))
        except msgspec.DecodeError:
            log.append(Call("unreadable", None, error="UNKNOWN", value=line[:200].decode("utf-8", "replace")))
    rest = lines[-1]
    if rest:
        try:
            log.append(msgspec.json.decode(rest + b"}", type=Call))
        except msgspec.DecodeError:
            log.append(Call("unreadable", None))
        log[-1] = msgspec.structs.replace(log[-1], error=broken_off, value=why)
    elif why and not (log and log[-1].call == "end"):
        log.append(Call("between calls", None, error=broken_off, value=why))
    return log


class NvmlLog:
    """Look-ups in the log of a sweep. `unavailable` stands for the whole sweep where it could not be made."""

    def __init__(self, calls: Iterable[Call] = (), unavailable: Unavailable | None = None) -> None:
        self.unavailable = unavailable
        self._calls: dict[tuple[str, int | None, tuple[int, ...]], list[Call]] = {}
        self._fields: dict[int, dict[tuple[int, int], Any]] = {}
        self.broken_off: Call | None = None
        self.lost: dict[int, Call] = {}
        for call in calls:
            self._calls.setdefault((call.call, call.device, tuple(call.args)), []).append(call)
            if call.error in (NOT_RETURNED, CRASHED):
                self.broken_off = call
            if call.error == "GPU_IS_LOST" and call.device is not None:
                self.lost.setdefault(call.device, call)

    def devices(self) -> list[int]:
        """The indices of the devices for which a handle was asked."""
        return sorted({device for name, device, _ in self._calls if name == "nvmlDeviceGetHandleByIndex_v2" and device is not None})

    @property
    def init_error(self) -> str | None:
        """The error that nvmlInit returned; None where it returned none, or was not asked."""
        return next((call.error for call in self._calls.get(("nvmlInit_v2", None, ()), ()) if call.error), None)

    def samples(self, names: tuple[str, ...], device: int | None = None, args: tuple[int, ...] = ()) -> list[Any]:
        """Every value that was returned for this question, in the order of the sweep."""
        return [call.value for name in names for call in self._calls.get((name, device, args), []) if call.error is None]

    def get(
        self,
        names: str | tuple[str, ...],
        device: int | None = None,
        args: tuple[int, ...] = (),
        take: Callable[[Any], T] | None = None,
    ) -> T | Missing:
        """The value of a call, through `take`; under the first of `names` that has one. Missing says why there is none."""
        asked = (names,) if isinstance(names, str) else names
        source = "NVML " + asked[0] + (f"({', '.join(map(str, args))})" if args else "")
        last: Call | None = None
        for name in asked:
            for call in self._calls.get((name, device, args), ()):
                if call.error is None:
                    return taken(call.value, source, take)
                last = call
        if last is not None and last.error is not None:
            return Missing(reason_of(last.error), last.error, source)
        return self._not_asked(source, device)

    def _not_asked(self, source: str, device: int | None) -> Missing:
        """Why a question is not in the log at all."""
        if self.unavailable is not None:
            return Missing(self.unavailable.reason, self.unavailable.detail, source)
        started = next(iter(self._calls.get(("nvmlInit_v2", None, ()), ())), None)
        if started is not None and started.error is not None:
            return Missing(reason_of(started.error), started.error, source)
        if device is not None and device in self.lost:
            return Missing("error", "GPU_IS_LOST", source)
        handle = next(iter(self._calls.get(("nvmlDeviceGetHandleByIndex_v2", device, ()), ())), None)
        if handle is not None and handle.error is not None:
            return Missing(reason_of(handle.error), handle.error, source)
        if self.broken_off is not None:
            return Missing(
                "timeout" if self.broken_off.error == NOT_RETURNED else "error", f"not asked: {call_words(self.broken_off)}", source
            )
        return Missing("error", NOT_ASKED, source)

    def field(self, device: int, field: int, scope: int = 0, take: Callable[[Any], T] | None = None) -> T | Missing:
        """An NVML field value (`NVML_FI_...`) of a device, or of its link `scope`."""
        source = f"NVML field {field}" + (f" link {scope}" if scope else "")
        if device not in self._fields:
            self._fields[device] = self._fields_of(device)
        if (field, scope) in self._fields[device]:
            value = self._fields[device][field, scope]
            return Missing(reason_of(value), value, source) if isinstance(value, str) else taken(value, source, take)
        answer = self.get("nvmlDeviceGetFieldValues", device, take=list)
        return Missing(answer.reason, answer.detail, source) if isinstance(answer, Missing) else Missing("error", NOT_ASKED, source)

    def _fields_of(self, device: int) -> dict[tuple[int, int], Any]:
        """All field values of a device by field and scope; the first answer counts."""
        found: dict[tuple[int, int], Any] = {}
        for rows in self.samples(("nvmlDeviceGetFieldValues",), device):
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, list) and len(row) == 3 and isinstance(row[0], int) and isinstance(row[1], int):
                    found.setdefault((row[0], row[1]), row[2])
        return found


def taken(value: Any, source: str, take: Callable[[Any], T] | None) -> T | Missing:
    """A value of the log through `take`; one of another shape than NVML's is Missing, and shown."""
    try:
        return take(value) if take else value
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
        return Missing("error", f"unexpected value {str(value)[:80]}", source)


def call_words(call: Call) -> str:
    """A call that broke off, in words: which, on which GPU, and how."""
    where = f" on GPU {call.device}" if call.device is not None else ""
    how = "never returned" if call.error == NOT_RETURNED else "ended the process"
    return f"{call.call}{where} {how}"
