"""Power supplies and what the node draws, from whatever the machine offers: Redfish, IPMI, DMI type 39, hwmon, `/sys/class/power_supply`.

Each source is optional; what the first leaves open the next may tell. Sources: DMTF Redfish Power and PowerSubsystem schemas; IPMI 2.0
table 42-3 (power supply sensor, type 08h) as `ipmitool sdr elist` words it; SMBIOS 3.x, 7.40 (type 39).
"""

from __future__ import annotations

import re
from typing import Any

from probe.fact import Missing, Unavailable, integer, names, parsed, text
from probe.host import Host
from probe.snapshot import Power, PowerSupply

REDFISH_LOST = ("LossOfInput", "OutOfRange")
EVENTS_OF_INTEREST = re.compile(
    r"AC lost|Failure detected|Predictive failure|Config Error|control failure|Redundancy (?:Lost|Degraded)|Non-redundant|Throttl"
    r"|PCI (?:SERR|PERR|Fatal)|Uncorrectable|logging limit|Critical Interrupt|Bus Fatal|Thermal Trip|IERR",
    re.IGNORECASE,
)
WATTS_IN_NAME = re.compile(r"(?<!\d)(\d{3,5}) ?W(?:atts)?\b|[-, ](\d{3,5})W", re.IGNORECASE)


# --- Redfish -----------------------------------------------------------------------------------------------------------------------


def number(value: Any) -> float | None:
    """A JSON number; null, text and booleans are none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or abs(value) > 1e15 or value != value:
        return None
    return float(value)


def redfish_supply(entry: dict[str, Any]) -> PowerSupply | None:
    """A member of `PowerSupplies`, of the older Power resource or the newer PowerSubsystem."""
    status = entry.get("Status") if isinstance(entry.get("Status"), dict) else {}
    assert isinstance(status, dict)
    state, health = status.get("State"), status.get("Health")
    name = str(entry.get("Name") or entry.get("MemberId") or entry.get("Id") or "power supply")
    source = "Redfish"
    ranges = entry.get("InputRanges")
    outputs = (
        [number(one.get("OutputWattage", one.get("CapacityWatts"))) for one in ranges if isinstance(one, dict)]
        if isinstance(ranges, list)
        else []
    )
    rating = number(entry.get("PowerCapacityWatts")) or max((watts for watts in outputs if watts), default=None)
    line = entry.get("LineInputStatus")
    volts = number(entry.get("LineInputVoltage"))
    lost: bool | Missing = Missing("not_supported", "the BMC does not tell", source)
    if isinstance(line, str):
        lost = line in REDFISH_LOST
    elif volts is not None:
        lost = volts < 1
    model = entry.get("Model")
    watts = number(entry.get("PowerInputWatts"))
    return PowerSupply(
        name=name,
        model=model.strip() if isinstance(model, str) and model.strip() else Missing("not_supported", "not named", source),
        rating_watts=Missing("not_supported", "no rating", source) if rating is None else rating,
        present=state != "Absent",
        healthy=health == "OK" if isinstance(health, str) else Missing("not_supported", "no health", source),
        input_lost=lost,
        input_watts=Missing("not_supported", "no reading", source) if watts is None else watts,
        source=source,
    )


def redfish(answer: Any) -> Power:
    """The power part of a Redfish answer: `{"power": [...], "subsystems": [...], "supplies": [...]}` as `probe.redfish` gathers it."""
    if not isinstance(answer, dict):
        raise ValueError
    controls = [one for power in dicts(answer.get("power")) for one in dicts(power.get("PowerControl"))]
    entries = dicts(answer.get("supplies")) or [one for power in dicts(answer.get("power")) for one in dicts(power.get("PowerSupplies"))]
    groups = [
        group
        for resource, key in (("power", "Redundancy"), ("subsystems", "PowerSupplyRedundancy"))
        for one in dicts(answer.get(resource))
        for group in dicts(one.get(key))
    ]
    draw = next((watts for one in controls if (watts := number(one.get("PowerConsumedWatts"))) is not None), None)
    capacity = next((watts for one in controls if (watts := number(one.get("PowerCapacityWatts")))), None)
    if capacity is None:
        capacity = next((watts for one in dicts(answer.get("subsystems")) if (watts := number(one.get("CapacityWatts")))), None)
    redundancy = next(
        (str(status["Health"]) for group in groups if isinstance(status := group.get("Status"), dict) and status.get("Health")), None
    )
    source = "Redfish"
    return Power(
        supplies=[supply for entry in entries if (supply := redfish_supply(entry)) is not None],
        redundancy={"OK": "full", "Warning": "degraded", "Critical": "lost"}.get(
            redundancy or "", Missing("not_supported", "not told", source)
        ),
        draw_watts=Missing("not_supported", "no reading", source) if draw is None else draw,
        capacity_watts=Missing("not_supported", "not told", source) if capacity is None else capacity,
        events=Missing("not_supported", "read through IPMI only", source),
    )


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in a JSON array; anything else holds none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# --- IPMI --------------------------------------------------------------------------------------------------------------------------


class SensorLine:
    """A line of `ipmitool sdr elist`: `PSU2 Status      | 12h | ok  | 10.2 | Presence detected, Power Supply AC lost`."""

    def __init__(self, line: str) -> None:
        self.name, self.id, self.status, self.entity, self.reading = (part.strip() for part in line.split("|", 4))

    def value(self, unit: str) -> float | None:
        found = re.fullmatch(rf"(-?[0-9.]+) {unit}", self.reading)
        return float(found[1]) if found else None


def sensor_lines(output: str) -> list[SensorLine]:
    """The lines that are sensors; what ipmitool complains between them is none."""
    return [SensorLine(line) for line in output.splitlines() if line.count("|") >= 4]


SUPPLY_STATUS = re.compile(r"^(?P<name>(?:PSU?|PS|Power Supply|PWR ?SUPPLY)[ _#]?\d+)(?![0-9A-Za-z]).*?(?:status)?$", re.IGNORECASE)
REDUNDANCY_NAME = re.compile(r"(?:PS|Power).*Redun", re.IGNORECASE)
OTHER_REDUNDANCY = re.compile(r"fan|cool|mem|dimm|sd|idsdm|vsan|nic|raid", re.IGNORECASE)
SUPPLY_ENTITY = re.compile(r"10\.(\d+)")
"""The entity of a power supply (IPMI 2.0, table 43-13); Dell calls each sensor `Status`."""
SUPPLY_FAULT = r"Failure|Predictive|Config Error|out-of-range"
SUPPLY_TROUBLE = rf"{SUPPLY_FAULT}|AC lost"
"""Only a supply that is fitted can say so, whether its BMC still sets the presence bit or not."""
REDUNDANCY = (("Fully Redundant", "full"), ("Redundancy Lost", "lost"), ("Degraded", "degraded"), ("Non-Redundant", "lost"))


def ipmi_supplies(lines: list[SensorLine], ratings: dict[int, float]) -> list[PowerSupply]:
    """The supplies that have a discrete sensor; `ratings` by number, from FRU or DMI."""
    found = []
    others_tell = any("Presence detected" in line.reading for line in lines)
    for line in lines:
        entity = SUPPLY_ENTITY.fullmatch(line.entity)
        named = SUPPLY_STATUS.match(line.name)
        name = named["name"] if named else f"PSU {entity[1]}" if entity and line.name == "Status" else ""
        if (
            not name
            or not re.search(r"Presence|Failure|AC lost|Predictive|Config|^$|0x|ok|Standby", line.reading)
            or line.value("Watts") is not None
        ):
            continue
        if re.search(r"(?:Temp|Fan|Vin|Vout|Pin|Pout|Iout|Iin|Curr|Volt|Power In)", line.name, re.IGNORECASE):
            continue
        place = int(re.findall(r"\d+", name)[-1])
        watts = next((w for other in lines if other.name.startswith(name) and (w := other.value("Watts")) is not None), None)
        source = f"ipmitool sdr: {line.name}"
        told = line.reading not in ("", "No Reading", "Disabled")
        found.append(
            PowerSupply(
                name=name,
                model=Missing("not_supported", "not named", source),
                rating_watts=ratings.get(place, Missing("not_supported", "no rating", source)),
                present=bool(re.search(rf"Presence detected|{SUPPLY_TROUBLE}", line.reading)) or (not told and not others_tell),
                healthy=not re.search(SUPPLY_FAULT, line.reading) if told else Missing("not_supported", "no reading", source),
                input_lost=bool(re.search(r"AC lost", line.reading)) if told else Missing("not_supported", "no reading", source),
                input_watts=Missing("not_supported", "no reading", source) if watts is None else watts,
                source="IPMI",
            )
        )
    return found


def ipmi_redundancy(lines: list[SensorLine]) -> str | None:
    """`full`, `degraded` or `lost`, as the redundancy sensor says."""
    named = [line for line in lines if REDUNDANCY_NAME.search(line.name)]
    named += [line for line in lines if re.match(r"(?:10|19)\.", line.entity) and "Redun" in line.reading]  # HPE's `Power Supplies`
    general = [line for line in lines if "redundancy" in line.name.lower() and not OTHER_REDUNDANCY.search(line.name)]
    for line in named or general:
        for words, state in REDUNDANCY:
            if words in line.reading:
                return state
    return None


def dcmi_watts(output: str) -> float:
    """`Instantaneous power reading:   1234 Watts` of `ipmitool dcmi power reading`."""
    found = re.search(r"Instantaneous power reading:\s+(\d+) Watts", output)
    if not found:
        raise ValueError
    return float(found[1])


def fru_ratings(output: str) -> dict[int, float]:
    """Ratings by supply number, from product names such as `HAKO-3000W` in `ipmitool fru print`, or its own capacity record."""
    ratings: dict[int, float] = {}
    place = 0
    for block in output.split("\n\n"):
        capacity = re.search(r"Capacity\s*:\s*(\d+) W", block)
        product = re.search(r"Product Name\s*:\s*(.+)", block)
        watts = float(capacity[1]) if capacity else _watts_in(product[1]) if product else None
        if watts is None:
            continue
        described = re.search(r"FRU Device Description : .*?(?:PSU?|PS|Power Supply)[ _#]?(\d+)", block, re.IGNORECASE)
        place = int(described[1]) if described else place + 1
        ratings[place] = watts
    return ratings


def _watts_in(name: str) -> float | None:
    found = WATTS_IN_NAME.search(name)
    return float(found[1] or found[2]) if found else None


def sel_events(output: str) -> list[str]:
    """The entries of `ipmitool sel elist` that matter, by what they say: lost power, throttling, memory, PCI, processors; without those that
    a later entry takes back. The latest last."""
    found: list[tuple[list[str], str]] = []
    for line in output.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) < 4 or not EVENTS_OF_INTEREST.search(line):
            continue
        if parts[-1] != "Deasserted":
            found.append((parts[3:5], re.sub(r"\s+", " ", line.strip())))
            continue
        taken_back = next((one for one in reversed(found) if one[0] == parts[3:5]), None)
        if taken_back is not None:
            found.remove(taken_back)
    return [text for _, text in found]


# --- DMI type 39 --------------------------------------------------------------------------------------------------------------------


def dmi_supplies(output: str) -> list[PowerSupply]:
    """The records of `dmidecode -t 39`; empty bays have an unknown capacity or say `Not Present`."""
    found: list[PowerSupply] = []
    for block in output.split("\n\n"):
        if "System Power Supply" not in block:
            continue
        values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        capacity = re.match(r"(\d+) W", values.get("Max Power Capacity", ""))
        status = values.get("Status", "")
        source = "DMI type 39"
        health: bool | Missing = Missing("not_supported", "not told", source)
        if "OK" in status:
            health = True
        elif re.search(r"Critical|Non-critical", status):
            health = False
        plugged = values.get("Plugged")
        found.append(
            PowerSupply(
                name=values.get("Location") or f"PSU {len(found) + 1}",
                model=values.get("Model Part Number") or Missing("not_supported", "not named", source),
                rating_watts=float(capacity[1]) if capacity and float(capacity[1]) > 0 else Missing("not_supported", "no rating", source),
                present="Not Present" not in status,
                healthy=health,
                input_lost=plugged == "No" if plugged in ("Yes", "No") else Missing("not_supported", "not told", source),
                input_watts=Missing("not_supported", "no reading", source),
                source=source,
            )
        )
    return found


# --- all together --------------------------------------------------------------------------------------------------------------------


def probe(host: Host, bmc: list[str]) -> Power:
    """The node's power, from the first source that tells of supplies; what it leaves open is filled from the others."""
    parts: list[Power] = []
    reasons: list[Missing] = []
    for name in bmc:
        try:
            answer = host.ask("redfish", name)
        except Unavailable as error:
            reasons.append(Missing(error.reason, error.detail, f"Redfish {name}"))
            continue
        told = parsed_answer(answer, f"Redfish {name}")
        (reasons if isinstance(told, Missing) else parts).append(told)  # type: ignore[arg-type]
    dmi = said_by(host, ["dmidecode", "-t", "39"])
    from_dmi = [] if isinstance(dmi, Missing) else dmi_supplies(dmi)
    ratings = {place: supply.rating_watts for place, supply in enumerate(from_dmi, 1) if isinstance(supply.rating_watts, float)}
    ipmi = _ipmi(host, ratings)
    (reasons if isinstance(ipmi, Missing) else parts).append(ipmi)  # type: ignore[arg-type]
    if from_dmi:
        unknown = Missing("not_supported", "DMI does not tell", "DMI type 39")
        parts.append(Power(supplies=from_dmi, redundancy=unknown, draw_watts=unknown, capacity_watts=unknown, events=unknown))
    elif isinstance(dmi, Missing):
        reasons.append(dmi)
    parts.append(_kernel(host))
    gaps = [*reasons, *(part.supplies for part in parts if isinstance(part.supplies, Missing))]
    nothing = next((one for one in gaps if one.reason != "absent"), gaps[0])
    return Power(
        supplies=next((part.supplies for part in parts if not isinstance(part.supplies, Missing) and part.supplies), nothing),
        redundancy=next((part.redundancy for part in parts if not isinstance(part.redundancy, Missing)), nothing),
        draw_watts=next((part.draw_watts for part in parts if not isinstance(part.draw_watts, Missing)), nothing),
        capacity_watts=next((part.capacity_watts for part in parts if not isinstance(part.capacity_watts, Missing)), nothing),
        events=next((part.events for part in parts if not isinstance(part.events, Missing)), nothing),
    )


def parsed_answer(answer: Any, source: str) -> Power | Missing:
    """A Redfish answer as facts, or why it is none."""
    try:
        return redfish(answer)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        return Missing("error", "an answer that cannot be understood", source)


def said_by(host: Host, argv: list[str]) -> str | Missing:
    """What a tool says on stdout; its complaint where it says nothing."""
    source = " ".join(argv)
    try:
        said = host.run(argv)
    except Unavailable as error:
        return Missing(error.reason, error.detail, source)
    if (said.exit_code and not said.stdout.strip()) or "Could not open device" in said.stderr:
        complaint = said.stderr.strip().splitlines()[-1][:160] if said.stderr.strip() else f"exit code {said.exit_code}"
        denied = re.search(r"ermission denied|Operation not permitted", said.stderr)
        absent = re.search(r"No such file or directory|No such device", said.stderr)
        return Missing("no_permission" if denied else "absent" if absent else "error", complaint, source)
    return said.stdout


def _ipmi(host: Host, ratings: dict[int, float]) -> Power | Missing:
    elist = said_by(host, ["ipmitool", "sdr", "elist"])
    if isinstance(elist, Missing):
        return elist
    lines = sensor_lines(elist)
    if not ratings:
        fru = said_by(host, ["ipmitool", "fru", "print"])
        ratings = {} if isinstance(fru, Missing) else fru_ratings(fru)
    supplies = ipmi_supplies(lines, ratings)
    dcmi = said_by(host, ["ipmitool", "dcmi", "power", "reading"])
    draw = parsed(dcmi, "ipmitool dcmi power reading", dcmi_watts)
    if isinstance(draw, Missing):
        inputs = [supply.input_watts for supply in supplies if isinstance(supply.input_watts, float)]
        draw = sum(inputs) if inputs else draw
    sel = said_by(host, ["ipmitool", "sel", "elist"])
    unknown = Missing("not_supported", "no redundancy sensor", "ipmitool sdr elist")
    return Power(
        supplies=supplies or Missing("not_supported", "no power supply sensor", "ipmitool sdr elist"),
        redundancy=ipmi_redundancy(lines) or unknown,
        draw_watts=draw,
        capacity_watts=unknown,
        events=sel if isinstance(sel, Missing) else sel_events(sel),
    )


def _kernel(host: Host) -> Power:
    """hwmon's power meters (ACPI, some PMBus supplies) and `/sys/class/power_supply` (mains and UPS on small machines)."""
    source = "/sys/class/hwmon"
    draw: float | Missing = Missing("absent", "no power meter", source)
    for name in names(host, source):
        if text(host, f"{source}/{name}/name") == "power_meter":
            microwatts = integer(host, f"{source}/{name}/power1_average")
            draw = microwatts if isinstance(microwatts, Missing) else microwatts / 1e6
            break
    supplies = []
    of_kernel = [f"/sys/class/power_supply/{name}" for name in names(host, "/sys/class/power_supply")]
    batteries = [folder for folder in of_kernel if text(host, f"{folder}/type") == "Battery" and text(host, f"{folder}/scope") != "Device"]
    for folder in [] if batteries else of_kernel:  # a machine with a battery of its own may be unplugged
        name = folder.rsplit("/", 1)[-1]
        online = integer(host, f"{folder}/online")
        if text(host, f"{folder}/type") == "Mains" and not isinstance(online, Missing):
            unknown = Missing("not_supported", "the kernel does not tell", folder)
            supplies.append(
                PowerSupply(
                    name=name,
                    model=unknown,
                    rating_watts=unknown,
                    present=True,
                    healthy=unknown,
                    input_lost=not online,
                    input_watts=unknown,
                    source=folder,
                )
            )
    unknown = Missing("absent", "no kernel driver for power supplies", "/sys/class/power_supply")
    return Power(supplies=supplies or unknown, redundancy=unknown, draw_watts=draw, capacity_watts=unknown, events=unknown)
