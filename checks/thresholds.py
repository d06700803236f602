"""The thresholds a site may set for itself, with their defaults."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Units are in the names; a share is of 1. Each check names the source of its default (`readiness explain CHECK`)."""

    inlet_warning_celsius: Positive = 27
    inlet_limit_celsius: Positive = 35
    air_limit_watts: Positive = 12_000
    nvml_sweep_seconds: Positive = 3.0
    remapped_rows: Count = 512
    retired_pages: Count = 63
    retired_pages_double_bit: Count = 15
    sram_uncorrected_errors: Count = 4
    gpu_power_limit_share: Share = 0.95
    gpu_margin_celsius: Positive = 5
    gpu_unseen_memory_share: Share = 0.05
    symbol_errors_an_hour: Count = 120
    link_flaps: Count = 10
    roce_mtu_bytes: Count = 4200
    drive_used_warning_percent: Count = 80
    drive_used_limit_percent: Count = 100
    root_free_share: Share = 0.10
    memlock_bytes: Count = 32 << 30
    shm_bytes: Count = 8 << 30
    supply_headroom_share: Share = 0.10
    pdu_continuous_share: Share = 0.80
    ups_load_share: Share = 0.80
    ups_detect_seconds: Count = 60

    def upside_down(self) -> tuple[str, str] | None:
        """A warning that stands above its limit, and the limit."""
        pairs = (("inlet_warning_celsius", "inlet_limit_celsius"), ("drive_used_warning_percent", "drive_used_limit_percent"))
        return next((pair for pair in pairs if getattr(self, pair[0]) > getattr(self, pair[1])), None)

    def changed(self) -> dict[str, str]:
        """What a site has set otherwise, in words: `30 (default 27)`."""
        default = Thresholds()
        return {
            name: f"{getattr(self, name)} (default {getattr(default, name)})"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(default, name)
        }
