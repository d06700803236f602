"""NVLinks of a GPU: a pure function of the NVML log. Field numbers: `NVML_FI_DEV_NVLINK_*` in `nvml.h`."""

from __future__ import annotations

from typing import Any

from probe.fact import Missing
from probe.nvml import NOT_ASKED, NvmlLog
from probe.snapshot import NvLink

MAX_LINKS = 18
REMOTE_TYPES = {0: "GPU", 1: "IBM NPU", 2: "switch", 255: "unknown"}


def bit_error_rate(encoded: Any) -> float:
    """NVLink 5 bit error rates pack a mantissa (bits 8-11) and a negative exponent (bits 0-7): 0x10F → 1e-15."""
    number = int(encoded)
    return float(number >> 8 & 0xF) * 10.0 ** -(number & 0xFF)


def links(log: NvmlLog, device: int) -> list[NvLink] | Missing:
    """The links of a GPU, also those that are down; none where link 0 is not supported (a card without NVLink)."""
    from probe.gpu import kernel_address

    first = log.get("nvmlDeviceGetNvLinkState", device, (0,), bool)
    if isinstance(first, Missing):
        return [] if first.detail in ("NOT_SUPPORTED", "INVALID_ARGUMENT") else first
    found = []
    for link in range(MAX_LINKS):
        state = log.get("nvmlDeviceGetNvLinkState", device, (link,), bool)
        if isinstance(state, Missing) and (state.reason == "not_supported" or state.detail == NOT_ASKED):
            break
        crc = log.field(device, 163, link, int)
        found.append(
            NvLink(
                link=link,
                active=state,
                version=log.get("nvmlDeviceGetNvLinkVersion", device, (link,), int),
                remote_address=log.get(
                    "nvmlDeviceGetNvLinkRemotePciInfo", device, (link,), lambda v: kernel_address(v["busId"] or v["busIdLegacy"])
                ),
                remote_type=log.get("nvmlDeviceGetNvLinkRemoteDeviceType", device, (link,), lambda v: REMOTE_TYPES.get(v, "unknown")),
                speed_mbps=log.field(device, 164, link, int),
                p2p_supported=log.get("nvmlDeviceGetNvLinkCapability", device, (link, 0), bool),
                replay_errors=_either(
                    log.field(device, 161, link, int), log.get("nvmlDeviceGetNvLinkErrorCounter", device, (link, 0), int)
                ),
                recovery_errors=_either(
                    log.field(device, 162, link, int), log.get("nvmlDeviceGetNvLinkErrorCounter", device, (link, 1), int)
                ),
                crc_errors=_either(crc, log.get("nvmlDeviceGetNvLinkErrorCounter", device, (link, 2), int)),
                failed_recoveries=log.field(device, 214, link, int),
                effective_bit_error_rate=log.field(device, 220, link, bit_error_rate),
            )
        )
    return found


def _either(one: int | Missing, other: int | Missing) -> int | Missing:
    return other if isinstance(one, Missing) else one
