"""The NVML sweep: a fixed table of calls, made in a short-lived child, one JSON line a call on stdout.

Run as a script by `probe.nvml` (`python -I probe/nvml_sweep.py`), it imports pynvml and nothing of this project, so that a driver that
hangs or crashes takes only this child along. The head of a line (`{"call": ..., "device": 3, "args": []`) is written *before* the call
and its tail (`, "value": ...}` or `, "error": "NOT_SUPPORTED"}`) after it: a line without a tail names the call that never returned.

The stages run over all devices one after the other, the plain facts first: what is known when a later call hangs is as much as possible.
Values keep NVML's own names and units.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

Args = tuple[int, ...]
Alternatives = tuple[str, ...]
"""Names of one question: the later ones are asked where a driver does not know the earlier."""

SYSTEM: tuple[tuple[str, Args], ...] = (
    ("nvmlSystemGetDriverVersion", ()),
    ("nvmlSystemGetNVMLVersion", ()),
    ("nvmlSystemGetCudaDriverVersion_v2", ()),
    ("nvmlSystemGetDriverBranch", ()),
    ("nvmlSystemGetConfComputeState", ()),
    ("nvmlDeviceGetCount", ()),
)

REASONS: Alternatives = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""Asked once a stage, so that a report rests on several samples and not on one."""

COMPUTE_PROCESSES: Alternatives = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
GRAPHICS_PROCESSES: Alternatives = ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2")

IDENTITY: tuple[tuple[Alternatives, Args], ...] = (
    (("nvmlDeviceGetName",), ()),
    (("nvmlDeviceGetUUID",), ()),
    (("nvmlDeviceGetPciInfo_v3",), ()),
    (("nvmlDeviceGetSerial",), ()),
    (("nvmlDeviceGetBoardPartNumber",), ()),
    (("nvmlDeviceGetVbiosVersion",), ()),
    (("nvmlDeviceGetInforomImageVersion",), ()),
    (("nvmlDeviceGetArchitecture",), ()),
    (("nvmlDeviceGetCudaComputeCapability",), ()),
    (("nvmlDeviceGetMinorNumber",), ()),
    (("nvmlDeviceGetModuleId",), ()),
    (("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), ()),
    (("nvmlDeviceGetMigMode",), ()),
    (("nvmlDeviceGetPersistenceMode",), ()),
    (("nvmlDeviceGetComputeMode",), ()),
    (REASONS, ()),
)

HEALTH: tuple[tuple[Alternatives, Args], ...] = (
    (("nvmlDeviceGetEccMode",), ()),
    *(((("nvmlDeviceGetTotalEccErrors",), (kind, counter))) for kind in (0, 1) for counter in (0, 1)),
    *(
        ((("nvmlDeviceGetMemoryErrorCounter",), (kind, counter, location)))
        for location in (2, 7)  # DRAM (the device memory), SRAM
        for kind in (0, 1)  # corrected, uncorrected
        for counter in (0, 1)  # volatile (since the driver loaded), aggregate (for life)
    ),
    (("nvmlDeviceGetSramEccErrorStatus",), ()),
    (("nvmlDeviceGetRemappedRows",), ()),
    (("nvmlDeviceGetRowRemapperHistogram",), ()),
    (("nvmlDeviceGetRetiredPages",), (0,)),  # 0: several single-bit errors
    (("nvmlDeviceGetRetiredPages",), (1,)),  # 1: a double-bit error
    (("nvmlDeviceGetRetiredPagesPendingStatus",), ()),
    (("nvmlDeviceGetRepairStatus",), ()),
    (("nvmlDeviceGetTemperature",), (0,)),
    (("nvmlDeviceGetMarginTemperature",), ()),
    *((("nvmlDeviceGetTemperatureThreshold",), (threshold,)) for threshold in (0, 1, 2, 3)),
    (("nvmlDeviceGetPowerUsage",), ()),
    (("nvmlDeviceGetEnforcedPowerLimit",), ()),
    (("nvmlDeviceGetPowerManagementLimit",), ()),
    (("nvmlDeviceGetPowerManagementDefaultLimit",), ()),
    (("nvmlDeviceGetPowerManagementLimitConstraints",), ()),
    (("nvmlDeviceGetPerformanceState",), ()),
    *((("nvmlDeviceGetClockInfo",), (clock,)) for clock in (0, 1, 2)),  # graphics, SM, memory
    *((("nvmlDeviceGetMaxClockInfo",), (clock,)) for clock in (0, 1, 2)),
    *((("nvmlDeviceGetApplicationsClock",), (clock,)) for clock in (0, 2)),
    *((("nvmlDeviceGetDefaultApplicationsClock",), (clock,)) for clock in (0, 2)),
    *((("nvmlDeviceGetViolationStatus",), (policy,)) for policy in (0, 1, 2, 3, 5)),
    (REASONS, ()),
    (("nvmlDeviceGetUtilizationRates",), ()),
    (("nvmlDeviceGetBAR1MemoryInfo",), ()),
    (("nvmlDeviceGetCurrPcieLinkGeneration",), ()),
    (("nvmlDeviceGetMaxPcieLinkGeneration",), ()),
    (("nvmlDeviceGetGpuMaxPcieLinkGeneration",), ()),
    (("nvmlDeviceGetCurrPcieLinkWidth",), ()),
    (("nvmlDeviceGetMaxPcieLinkWidth",), ()),
    (("nvmlDeviceGetPcieReplayCounter",), ()),
    (("nvmlDeviceGetNumaNodeId",), ()),
    (("nvmlDeviceGetCpuAffinity",), (16,)),
    (("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"), ()),
    (("nvmlDeviceGetGspFirmwareVersion",), ()),
    (COMPUTE_PROCESSES, ()),
    (GRAPHICS_PROCESSES, ()),
)

FIELDS: tuple[int, ...] = (
    82,  # memory temperature
    90,  # NVLink speed, common to all links, Mb/s
    91,  # NVLink link count
    142, 143, 144, 145,  # remapped rows: corrected, uncorrected, pending, failure
    169, 173, 178, 179, 180,  # PCIe: to-recovery, correctable, bad DLLP, non-fatal, fatal
    186,  # instant power
    193, 194, 195, 196,  # T.Limit offsets: shutdown, slowdown, memory max, GPU max
    230,  # recovery action
    74, 75, 269, 270, 271,  # time lost to: power cap, thermal; SW thermal, HW thermal, power brake slowdown (ns)
)  # fmt: skip
LINK_FIELDS: tuple[int, ...] = (
    146,  # the link's number at the other end
    161, 162, 163,  # NVLink 4 and older: replay, recovery, CRC
    164, 166,  # speed in Mb/s, version
    208, 211, 213, 214, 215,  # NVLink 5: receive errors, integrity errors, recoveries (ok, failed, all)
    218, 219, 220, 222,  # NVLink 5: raw BER, effective errors, effective BER, symbol BER
)  # fmt: skip
LINK_CAPABILITIES = (0, 1, 2)
P2P_INDICES = (0, 2)  # read, NVLink


def _plain(pynvml: Any, value: Any) -> Any:
    """A ctypes value as plain data, under NVML's own names."""
    import ctypes

    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    if isinstance(value, ctypes.Structure):
        return {name: _plain(pynvml, getattr(value, name)) for name, *_ in value._fields_ if name != "version"}
    if isinstance(value, ctypes.Array):
        return [_plain(pynvml, item) for item in value]
    if isinstance(value, (list, tuple)):
        return [_plain(pynvml, item) for item in value]
    if hasattr(value, "__dict__"):  # pynvml's friendly objects
        return {name: _plain(pynvml, item) for name, item in vars(value).items()}
    return value


def _field_values(pynvml: Any, handle: Any, wanted: list[tuple[int, int]]) -> list[list[Any]]:
    """`[[field, scope, value or error name], ...]`; the union is read as its `valueType` says."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    rows = []
    for value in pynvml.nvmlDeviceGetFieldValues(handle, wanted):
        if value.nvmlReturn == pynvml.NVML_SUCCESS:
            member = members[value.valueType] if value.valueType < len(members) else "ullVal"
            got: Any = getattr(value.value, member)
        else:
            got = _error_name(pynvml, value.nvmlReturn)
        rows.append([value.fieldId, value.scopeId, got])
    return rows


def _filled(pynvml: Any, function: str, structure: str) -> Callable[..., Any]:
    """A call that fills a structure it is handed."""

    def call(handle: Any) -> Any:
        import ctypes

        holder = getattr(pynvml, structure)()
        getattr(pynvml, function)(handle, ctypes.byref(holder))
        return holder

    return call


def _calls(pynvml: Any) -> dict[str, Callable[..., Any]]:
    """The calls whose Python form differs from `function(handle, *args)`."""
    return {
        "nvmlDeviceGetMemoryInfo_v2": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2),
        "nvmlDeviceGetSramEccErrorStatus": _filled(pynvml, "nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t"),
        "nvmlDeviceGetGpuFabricInfoV": _filled(pynvml, "nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
        "nvmlDeviceGetGpuFabricInfo": _filled(pynvml, "nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
        "nvmlDeviceGetModuleId": lambda handle: _module_id(pynvml, handle),
    }


def _module_id(pynvml: Any, handle: Any) -> int:
    import ctypes

    module = ctypes.c_uint()  # pynvml's own default argument is shared by all calls
    pynvml.nvmlDeviceGetModuleId(handle, module)
    return module.value


def _error_name(pynvml: Any, code: int) -> str:
    """`NVML_ERROR_GPU_IS_LOST` (15) → `GPU_IS_LOST`; a code this pynvml does not know → its number."""
    for name, value in vars(pynvml).items():
        if name.startswith("NVML_ERROR_") and value == code:
            return str(name).removeprefix("NVML_ERROR_")
    return f"CODE_{code}"


class Sweep:
    """One pass over the table. `handles` holds what answered; a GPU that is lost is asked nothing more."""

    def __init__(self, pynvml: Any, out: int) -> None:
        self.pynvml = pynvml
        self.out = out
        self.special = _calls(pynvml)
        self.handles: dict[int, Any] = {}

    def call(self, name: str, device: int | None, args: Args, function: Callable[[], Any]) -> tuple[Any, str | None]:
        """Make one call and write its line; returns its value, or the name of its error."""
        head = json.dumps({"call": name, "device": device, "args": list(args)})
        os.write(self.out, head[:-1].encode())
        started = time.monotonic()
        value: Any = None
        error: str | None = None
        try:
            value = _plain(self.pynvml, function())
        except self.pynvml.NVMLError as failure:
            error = _error_name(self.pynvml, failure.value)
        except (AttributeError, self.pynvml.NVMLLibraryMismatchError):  # this pynvml, or this library, does not have the function
            error = "FUNCTION_NOT_FOUND"
        except Exception as failure:  # one answer that pynvml cannot take must not end the sweep
            error = f"PYNVML_{type(failure).__name__}"
        seconds = time.monotonic() - started
        tail: dict[str, Any] = {"value": value} if error is None else {"error": error}
        if seconds >= 0.1:
            tail["seconds"] = round(seconds, 3)
        os.write(self.out, (", " + json.dumps(tail)[1:] + "\n").encode())
        return value, error

    def ask(self, names: Alternatives, device: int, args: Args) -> tuple[Any, str | None]:
        """Ask a device one question, under its older names where the driver does not know the newer."""
        value: Any = None
        error: str | None = "FUNCTION_NOT_FOUND"
        handle = self.handles[device]
        for name in names:
            function = self.special.get(name) or (lambda *rest, _name=name: getattr(self.pynvml, _name)(*rest))
            value, error = self.call(name, device, args, lambda f=function: f(handle, *args))  # type: ignore[misc]
            if error not in ("FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "INVALID_ARGUMENT"):
                break
        if error == "GPU_IS_LOST":
            del self.handles[device]
        return value, error

    def stage(self, table: tuple[tuple[Alternatives, Args], ...]) -> None:
        for device in list(self.handles):
            for names, args in table:
                if device in self.handles:
                    self.ask(names, device, args)

    def fields(self, device: int, wanted: list[tuple[int, int]]) -> None:
        if device in self.handles:
            handle = self.handles[device]
            self.call("nvmlDeviceGetFieldValues", device, (), lambda: _field_values(self.pynvml, handle, wanted))

    def links(self, device: int) -> None:
        """NVLink by NVLink; a card whose link 0 is not supported has none."""
        active = []
        for link in range(self.pynvml.NVML_NVLINK_MAX_LINKS):
            if device not in self.handles:
                return
            state, error = self.ask(("nvmlDeviceGetNvLinkState",), device, (link,))
            if error in ("NOT_SUPPORTED", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND"):
                break
            if state == 1:
                active.append(link)
        for link in active:
            for name in ("nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetNvLinkRemoteDeviceType"):
                if device in self.handles:
                    self.ask((name,), device, (link,))
            for capability in LINK_CAPABILITIES:
                if device in self.handles:
                    self.ask(("nvmlDeviceGetNvLinkCapability",), device, (link, capability))
            for counter in (0, 1, 2):
                if device in self.handles:
                    self.ask(("nvmlDeviceGetNvLinkErrorCounter",), device, (link, counter))
        if active:
            self.fields(device, [(field, link) for link in active for field in LINK_FIELDS])

    def pairs(self) -> Iterator[tuple[int, int]]:
        for one in list(self.handles):
            for other in list(self.handles):
                if one < other:
                    yield one, other

    def take_handle(self, device: int) -> None:
        """Handles stay here: they are no data."""
        self.handles[device] = self.pynvml.nvmlDeviceGetHandleByIndex(device)

    def run(self) -> None:
        """The whole sweep, in the order of the stages."""
        pynvml = self.pynvml
        started = time.monotonic()
        _, error = self.call("nvmlInit_v2", None, (), pynvml.nvmlInit)
        if error is None:
            count = 0
            for name, args in SYSTEM:
                value, _ = self.call(name, None, args, lambda n=name: getattr(pynvml, n)())  # type: ignore[misc]
                count = value if name == "nvmlDeviceGetCount" and value is not None else count
            for device in range(count):
                self.call("nvmlDeviceGetHandleByIndex_v2", device, (), partial(self.take_handle, device))
            self.stage(IDENTITY)
            self.stage(HEALTH)
            for device in list(self.handles):
                self.fields(device, [(field, 0) for field in FIELDS])
            for device in list(self.handles):
                self.links(device)
            for one, other in self.pairs():
                if one in self.handles and other in self.handles:
                    pair = (self.handles[one], self.handles[other])
                    self.call(
                        "nvmlDeviceGetTopologyCommonAncestor", one, (other,),
                        lambda p=pair: pynvml.nvmlDeviceGetTopologyCommonAncestor(*p),  # type: ignore[misc]
                    )  # fmt: skip
                    for index in P2P_INDICES:
                        self.call(
                            "nvmlDeviceGetP2PStatus", one, (other, index),
                            lambda p=pair, i=index: pynvml.nvmlDeviceGetP2PStatus(*p, i),  # type: ignore[misc]
                        )  # fmt: skip
            self.stage(((REASONS, ()),))
            self.call("nvmlShutdown", None, (), pynvml.nvmlShutdown)
        seconds = round(time.monotonic() - started, 3)
        os.write(self.out, (json.dumps({"call": "end", "device": None, "args": [], "value": {"seconds": seconds}}) + "\n").encode())


def main() -> None:
    """Sweep, with stdout kept for the log alone."""
    out = os.dup(1)
    os.dup2(2, 1)  # whatever the library prints is not ours
    import pynvml

    Sweep(pynvml, out).run()


if __name__ == "__main__":
    main()
