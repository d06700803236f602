"""UPSs: the answers of NUT, apcupsd and UPS-MIB agents as the same facts. A power of nothing, with a machine behind it, is not measured.

NUT's variables and status words: NUT developer guide, "Variables", "Status data". UPS-MIB: RFC 1628.
"""

from __future__ import annotations

import re
from typing import Any

from probe.fact import Missing, Unavailable
from probe.host import Host
from probe.snapshot import Ups

APC_WORDS = {
    "ONLINE": "OL",
    "ONBATT": "OB",
    "LOWBATT": "LB",
    "REPLACEBATT": "RB",
    "OVERLOAD": "OVER",
    "COMMLOST": "COMMLOST",
    "SHUTTING": "FSD",
}
SNMP_OUTPUT = {3: "OL", 4: "BYPASS", 5: "OB", 6: "OL", 7: "OL", 2: "OFF"}
SNMP_BATTERY = {3: "LB", 4: "LB"}


def _number(value: Any) -> float | None:
    """The number at the start of a value: `62`, `18600`, `15.2 Minutes`."""
    found = re.match(r"\s*(\d+(?:\.\d+)?)", str(value)) if value is not None else None  # a negative one stands for none
    return float(found[1]) if found else None


def _ups(name: str, protocol: str, **known: Any) -> Ups:
    """A UPS with what is known of it; None becomes Missing."""
    unknown = Missing("not_supported", "the UPS does not tell", f"{protocol} {name}")
    return Ups(name=name, protocol=protocol, **{key: unknown if value is None else value for key, value in known.items()})


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def from_nut(name: str, variables: dict[str, Any]) -> Ups:
    """A UPS from `LIST VAR`; one whose driver has lost it has only an error."""
    get = variables.get
    if "error" in variables:
        gone = Missing("error", f"upsd says {variables['error']}", f"NUT {name}")
        return Ups(
            name=name, protocol="NUT", model=gone, status=gone, load_ratio=gone, real_power_watts=gone, real_power_nominal_watts=gone,
            runtime_seconds=gone, charge_ratio=gone, battery_date=gone,
        )  # fmt: skip
    nominal = _number(get("ups.realpower.nominal")) or None
    load = _scaled(_number(get("ups.load")), 0.01)
    real = _number(get("ups.realpower")) or None
    model = " ".join(str(part) for part in (get("ups.mfr") or get("device.mfr"), get("ups.model") or get("device.model")) if part)
    return _ups(
        name,
        "NUT",
        model=model or None,
        status=str(get("ups.status")).split() if get("ups.status") else None,
        load_ratio=load,
        real_power_watts=real or (nominal * load if nominal and load else None),
        real_power_nominal_watts=nominal,
        runtime_seconds=_number(get("battery.runtime")),
        charge_ratio=_scaled(_number(get("battery.charge")), 0.01),
        battery_date=get("battery.date") or get("battery.mfr.date"),
    )


def from_apcupsd(name: str, records: dict[str, Any]) -> Ups:
    """A UPS from apcupsd's status records."""
    get = records.get
    status = [APC_WORDS.get(word, word) for word in str(get("STATUS", "")).split()]
    nominal = _number(get("NOMPOWER")) or None
    load = _scaled(_number(get("LOADPCT")), 0.01)
    return _ups(
        name,
        "apcupsd",
        model=get("MODEL"),
        status=status or None,
        load_ratio=load,
        real_power_watts=nominal * load if nominal and load else None,
        real_power_nominal_watts=nominal,
        runtime_seconds=_scaled(_number(get("TIMELEFT")), 60),
        charge_ratio=_scaled(_number(get("BCHARGE")), 0.01),
        battery_date=get("BATTDATE"),
    )


def from_snmp(name: str, objects: dict[str, Any]) -> Ups:
    """A UPS from UPS-MIB objects."""
    get = objects.get
    status = [word for word in (SNMP_OUTPUT.get(get("upsOutputSource", 0)), SNMP_BATTERY.get(get("upsBatteryStatus", 0))) if word]
    model = " ".join(str(part).strip() for part in (get("upsIdentManufacturer"), get("upsIdentModel")) if part)
    return _ups(
        name,
        "SNMP",
        model=model or None,
        status=status or None,
        load_ratio=_scaled(_number(get("upsOutputPercentLoad")), 0.01),
        real_power_watts=_number(get("upsOutputPower")) or None,
        real_power_nominal_watts=_number(get("upsConfigOutputPower")) or None,
        runtime_seconds=_scaled(_number(get("upsEstimatedMinutesRemaining")), 60),
        charge_ratio=_scaled(_number(get("upsEstimatedChargeRemaining")), 0.01),
        battery_date=None,
    )


def probe(host: Host, sources: list[tuple[str, str]]) -> list[Ups]:
    """Every UPS that the site names; one that does not answer is there too, with nothing known."""
    found: list[Ups] = []
    for kind, name in sources:
        try:
            answer = host.ask(kind, name)
        except Unavailable as error:
            gone = Missing(error.reason, error.detail, f"{kind} {name}")
            found.append(_gone(name, kind, gone))
            continue
        found += _taken(kind, name, answer)
    return found


def _taken(kind: str, name: str, answer: Any) -> list[Ups]:
    try:
        if kind == "nut":
            upses = [from_nut(name if len(answer) == 1 else f"{name}/{ups}", variables) for ups, variables in answer.items()]
            return upses or [_gone(name, kind, Missing("absent", "upsd knows of no UPS", f"NUT {name}"))]
        return [from_apcupsd(name, answer) if kind == "apcupsd" else from_snmp(name, answer)]
    except (AttributeError, TypeError, ValueError, KeyError):
        return [_gone(name, kind, Missing("error", "an answer that cannot be understood", f"{kind} {name}"))]


def _gone(name: str, kind: str, why: Missing) -> Ups:
    return Ups(
        name=name, protocol=kind, model=why, status=why, load_ratio=why, real_power_watts=why, real_power_nominal_watts=why, runtime_seconds=why,
        charge_ratio=why, battery_date=why,
    )  # fmt: skip
