"""Cooling: the air that comes in, the fans, and whether the site's cooling carries the heat."""

from __future__ import annotations

from checks.finding import Verdict, amount, check, failed, known, not_applicable, passed, warned
from checks.node import Node, once
from checks.power import peak_watts
from probe.cooling import INLET
from probe.snapshot import Sensor


def sensors_of(node: Node, kind: str) -> list[Sensor]:
    """The chassis' sensors of a kind."""
    return [sensor for sensor in known(node.snapshot.sensors) if sensor.kind == kind]


@check(
    "cooling.inlet",
    component="cooling",
    title="Inlet air cool enough",
    per=once,
    weight=2,
    source="ASHRAE TC 9.9: 27 °C recommended, 35 °C allowed (class A2)",
)
def inlet(_: Node, node: Node) -> Verdict:
    """The air at the inlet should be at most 27 °C and must be at most 35 °C.

    Read: the inlet or ambient sensor of IPMI, Redfish or hwmon; the warmest counts.
    """
    if node.is_virtual:
        return not_applicable("a virtual machine")
    found = [sensor for sensor in sensors_of(node, "temperature") if INLET.search(sensor.name) and isinstance(sensor.value, float)]
    if not found:
        return not_applicable("no inlet sensor")
    warmest = max(found, key=lambda sensor: sensor.value if isinstance(sensor.value, float) else 0.0)
    value = known(warmest.value)
    evidence = [f"{sensor.source} {sensor.name}: {sensor.value} °C" for sensor in found]
    fix = "check the room's cooling, blanking panels, and hot air coming round"
    if value > node.thresholds.inlet_limit_celsius:
        return failed(f"{value:g} °C", measured=value, required=node.thresholds.inlet_limit_celsius, unit="°C", evidence=evidence, fix=fix)
    if value > node.thresholds.inlet_warning_celsius:
        return warned(
            f"{value:g} °C", measured=value, required=node.thresholds.inlet_warning_celsius, unit="°C", evidence=evidence, fix=fix
        )
    return passed(f"{value:g} °C", measured=value, required=node.thresholds.inlet_warning_celsius, unit="°C", evidence=evidence)


@check(
    "cooling.sensors",
    component="cooling",
    title="Temperatures and fans within their limits",
    per=once,
    weight=2,
    source="the BMC's own thresholds (IPMI sensor state, Redfish Health)",
)
def sensors(_: Node, node: Node) -> Verdict:
    """No temperature or fan may be beyond the BMC's critical thresholds, and no fan may stand still; beyond non-critical ones warns. One
    dead fan of many warns; else it fails.
    """
    if node.is_virtual:
        return not_applicable("a virtual machine")
    temperatures, fans = sensors_of(node, "temperature"), sensors_of(node, "fan")
    hot = [
        sensor
        for sensor in temperatures
        if sensor.state == "critical"
        or (isinstance(sensor.value, float) and isinstance(sensor.critical, float) and 0 < sensor.critical <= sensor.value)
    ]
    dead = [sensor for sensor in fans if sensor.state == "critical" or (sensor.source != "hwmon" and sensor.value == 0)]
    evidence = [f"{sensor.name}: {sensor.value}" for sensor in (*hot, *dead)][:8]
    if hot:
        return failed(
            f"beyond the limit: {', '.join(f'{sensor.name} {sensor.value} °C' for sensor in hot[:3])}",
            evidence=evidence,
            fix="check fans, filters, air ducts and heat sinks",
        )
    if dead:
        words = f"{len(dead)} of {len(fans)} fans: {', '.join(sensor.name for sensor in dead[:3])}"
        fix = "replace the fan (most can be swapped while running)"
        return failed(words, evidence=evidence, fix=fix) if len(dead) > 1 else warned(words, evidence=evidence, fix=fix)
    near = [sensor for sensor in (*temperatures, *fans) if sensor.state == "warning"]
    if near:
        return warned(
            f"beyond the BMC's warning threshold: {', '.join(f'{sensor.name} {sensor.value}' for sensor in near[:3])}",
            evidence=[f"{sensor.name}: {sensor.value}" for sensor in near][:8],
            fix="ipmitool sensor list shows the thresholds; check the room, fans, filters and air ducts",
        )
    return passed(f"{amount(len(temperatures), 'temperature')}, {amount(len(fans), 'fan') if fans else 'no fan tells of itself'}")


@check(
    "cooling.design",
    component="cooling",
    title="The site's cooling carries the heat",
    per=once,
    weight=1,
    source="field practice: air carries one 8-GPU node a rack (about 12 kW); beyond: rear-door heat exchanger or direct-to-chip",
)
def design(_: Node, node: Node) -> Verdict:
    """All that the node draws becomes heat: air is at its limit with one 8-GPU node, and not enough from two on.

    Read: cooling and nodes in the site's configuration, and the node's peak power.
    """
    site = node.snapshot.site
    if site.cooling is None:
        return not_applicable("no cooling is named in the configuration ([site] cooling)")
    nodes = site.nodes or 1
    heat = peak_watts(node) * nodes
    evidence = [f"{nodes} node(s) × {peak_watts(node) / 1000:.1f} kW = {heat / 1000:.1f} kW of heat; cooling: {site.cooling}"]
    if site.cooling == "air" and heat > node.thresholds.air_limit_watts:
        return warned(
            f"{heat / 1000:.1f} kW of heat, air carries about {node.thresholds.air_limit_watts / 1000:.0f} kW",
            measured=node.thresholds.air_limit_watts,
            required=heat,
            unit="W",
            evidence=evidence,
            fix="spread the nodes over racks, or fit a rear-door heat exchanger or direct-to-chip cooling",
        )
    limit = " (air is at its limit)" if site.cooling == "air" and heat > 0.7 * node.thresholds.air_limit_watts else ""
    return passed(f"{heat / 1000:.1f} kW with {site.cooling}{limit}", evidence=evidence)


CHECKS = [inlet, sensors, design]
