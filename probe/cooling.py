"""Temperatures and fans of the chassis, from IPMI, Redfish or hwmon."""

from __future__ import annotations

import re
from typing import Any

from probe.fact import Missing, Unavailable, integer, names, text
from probe.host import Host
from probe.power import dicts, number, said_by, sensor_lines
from probe.snapshot import Sensor

HWMON = "/sys/class/hwmon"
IPMI_STATES = {"ok": "ok", "nc": "warning", "cr": "critical", "nr": "critical"}
REDFISH_STATES = {"OK": "ok", "Warning": "warning", "Critical": "critical"}
INLET = re.compile(
    r"^(?!.*(?:\bpsu?\b|\bpsu?\d|power supply|coolant|liquid|water|cdu|\bnic|ocp|gpu|dimm|cpu|outlet|exhaust)).*"
    r"(?:inlet|ambient|intake|front (?:air|inlet|temp)|\bair in\b)",
    re.IGNORECASE,
)
"""The air of the room; supplies and coolant have inlets too, and are judged by the BMC's thresholds."""


def ipmi_sensors(output: str) -> list[Sensor]:
    """Temperatures and fans of `ipmitool sdr elist`; fans in revolutions, in percent, or with nothing but a word on their health. A sensor
    without a reading (`ns`) is no sensor now."""
    found = []
    for line in sensor_lines(output):
        is_fan = bool(re.match(r"(?:29|30)\.", line.entity) or re.search(r"\bfan", line.name, re.IGNORECASE))
        for kind, unit in (("temperature", "degrees C"), ("fan", "RPM"), ("fan", "percent")):
            value = line.value(unit) if unit != "percent" or is_fan else None
            if unit == "percent" and value is None and is_fan and re.search(r"failure detected|device fault", line.reading, re.IGNORECASE):
                value = 0.0
            if value is not None:
                found.append(
                    Sensor(
                        name=line.name,
                        kind=kind,
                        value=value,
                        critical=Missing("not_supported", "sdr elist has no thresholds", "ipmitool"),
                        state=IPMI_STATES.get(line.status, Missing("not_supported", line.status, "ipmitool")),
                        source="IPMI",
                    )
                )
    return found


def redfish_sensors(answer: Any) -> list[Sensor]:
    """Temperatures and fans of Thermal and ThermalSubsystem resources."""
    found = []
    for thermal in dicts(answer.get("thermal") if isinstance(answer, dict) else None):
        for kind, key, reading, critical in (
            ("temperature", "Temperatures", "ReadingCelsius", "UpperThresholdCritical"),
            ("fan", "Fans", "Reading", "LowerThresholdCritical"),
        ):
            for one in dicts(thermal.get(key)):
                value = number(one.get(reading, one.get("CurrentReading")))
                status = one.get("Status") if isinstance(one.get("Status"), dict) else {}
                assert isinstance(status, dict)
                if value is None or status.get("State") == "Absent":
                    continue
                limit = number(one.get(critical))
                found.append(
                    Sensor(
                        name=str(one.get("Name") or one.get("FanName") or one.get("MemberId") or kind),
                        kind=kind,
                        value=value,
                        critical=Missing("not_supported", "no threshold", "Redfish") if limit is None else limit,
                        state=REDFISH_STATES.get(str(status.get("Health")), Missing("not_supported", "no health", "Redfish")),
                        source="Redfish",
                    )
                )
    return found


def probe(host: Host, bmc: list[str]) -> list[Sensor] | Missing:
    """The chassis' sensors, from the first source that has some."""
    reason: Missing | None = None
    for name in bmc:
        try:
            found = redfish_sensors(host.ask("redfish", name))
        except Unavailable as error:
            reason = Missing(error.reason, error.detail, f"Redfish {name}")
            continue
        if found:
            return found
    said = said_by(host, ["ipmitool", "sdr", "elist"])
    if isinstance(said, str) and (found := ipmi_sensors(said)):
        return found
    found = _hwmon(host)
    if found:
        return found
    return reason or (said if isinstance(said, Missing) else Missing("absent", "no sensor", "ipmitool sdr elist"))


def _hwmon(host: Host) -> list[Sensor]:
    """Fans and board temperatures of hwmon chips; those of CPUs, drives and NICs have places of their own."""
    found = []
    for chip in names(host, HWMON):
        name = text(host, f"{HWMON}/{chip}/name")
        if not isinstance(name, str) or name in ("nvme", "coretemp", "k10temp", "zenpower", "mlx5", "acpitz", "iwlwifi_1"):
            continue
        for entry in names(host, f"{HWMON}/{chip}"):
            kind = re.fullmatch(r"(temp|fan)(\d+)_input", entry)
            if not kind:
                continue
            raw = integer(host, f"{HWMON}/{chip}/{entry}")
            if isinstance(raw, Missing) or (kind[1] == "fan" and raw == 0):
                continue  # an unused header reads 0
            label = text(host, f"{HWMON}/{chip}/{kind[1]}{kind[2]}_label")
            critical = integer(host, f"{HWMON}/{chip}/{kind[1]}{kind[2]}_crit")
            found.append(
                Sensor(
                    name=label if isinstance(label, str) else f"{name} {kind[1]}{kind[2]}",
                    kind="temperature" if kind[1] == "temp" else "fan",
                    value=raw / 1000 if kind[1] == "temp" else float(raw),
                    critical=critical if isinstance(critical, Missing) else critical / 1000,
                    state=Missing("not_supported", "hwmon does not judge", chip),
                    source="hwmon",
                )
            )
    return found
