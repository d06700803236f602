"""Writes the configuration of a simulated BMC for OpenIPMI's ipmi_sim: six 3 kW supplies, redundancy, inlet and fans."""

from __future__ import annotations

from pathlib import Path

SUPPLIES = 6
LAN = """name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {lan}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  startnow false
  user 1 true  ""        "test" user  10 none md2 md5 straight
  user 2 true  "ipmiusr" "test" admin 10 none md2 md5 straight
console 127.0.0.1 {console}
"""
SENSOR = """sdr type {kind}
\tsensor_owner_id\t\t0x20
\tsensor_owner_lun\t0
\tchannel_number\t\t0
\tsensor_number\t\t{number}
\tentity_id\t\t{entity}
\tentity_instance\t\t{instance}
\tsensor_type\t\t{type}
{rest}\tid_string\t\t"{name}"
endsdr
"""
ANALOG = """\tinit_scanning\t\ttrue
\tinit_sensor_type\ttrue
\tdefault_sensor_scan_on\ttrue
\tevent_reading_type_code\t1
\tanalog_data_format\tunsigned
\trate_unit\t\tnone
\tmodifier_unit\t\tnone
\tpercentage\t\tfalse
\tbase_unit\t\t{unit}
\tmodifier_unit_code\tunspecified
\tlinearization\t\tlinear
\tm\t\t\t{factor}
\ttolerance\t\t0
\tb\t\t\t0
\taccuracy\t\t1
\taccuracy_exp\t\t0
\tsensor_direction\tinput
\tr_exp\t\t\t0
\tb_exp\t\t\t0
\tsensor_maximum\t\t255
\tsensor_minimum\t\t0
"""


def _area(fields: list[str]) -> bytes:
    """A FRU product area (IPMI Platform Management FRU Information Storage Definition)."""
    body = b"\0" + b"".join(bytes([0xC0 | len(field)]) + field.encode() for field in fields) + b"\xc0\xc0\xc1"
    length = (len(body) + 10) // 8 * 8
    area = bytes([1, length // 8]) + body
    area += bytes(length - 1 - len(area))
    return area + bytes([-sum(area) & 255])


def _fru(fields: list[str]) -> bytes:
    header = bytes([1, 0, 0, 0, 1, 0, 0])
    return header + bytes([-sum(header) & 255]) + _area(fields)


def write_bmc(folder: Path, lan: int, console: int) -> None:
    """`lan.conf`, `bmc.emu` and the sensor records; the values that sensors poll are files in `sensors/`."""
    (folder / "sensors").mkdir()
    records: list[str] = []
    emulator = ["mc_setbmc 0x20", "mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x2a7c 0x1b0f persist_sdr", "sel_enable 0x20 1000 0x0a"]

    def analog(number: int, name: str, kind: str, code: str, unit: str, factor: int, entity: str, instance: int, raw: int) -> None:
        rest = ANALOG.format(unit=unit, factor=factor)
        records.append(SENSOR.format(kind=1, number=number, entity=entity, instance=instance, type=kind, rest=rest, name=name))
        file = folder / "sensors" / name.replace(" ", "_")
        file.write_text(f"{raw}\n")
        emulator.append(f'sensor_add 0x20 0 {number} {code} 0x01 poll 1000 file "{file}"')
        emulator.append(f"sensor_set_value 0x20 0 {number} {raw} 0")

    def discrete(number: int, name: str, code: str, instance: int, bits: tuple[int, ...]) -> None:
        events = "".join(f"\tevent{bit}_state_ret\ttrue\n\tassert_event{bit}\t\ttrue\n\tdeassert_event{bit}\ttrue\n" for bit in bits)
        rest = f"\tevent_reading_type_code\t{code}\n{events}"
        records.append(
            SENSOR.format(kind=2, number=number, entity="power_supply", instance=instance, type="Power_Supply", rest=rest, name=name)
        )
        emulator.append(f"sensor_add 0x20 0 {number} 0x08 {code}")
        emulator.append(f"sensor_set_bit 0x20 0 {number} 0 1 0")
        mask = "".join("1" if bit in bits else "0" for bit in reversed(range(15)))
        emulator.append(f"sensor_set_event_support 0x20 0 {number} enable scanning per-state {mask} {mask} {mask} {mask}")

    for supply in range(1, SUPPLIES + 1):
        discrete(0x10 + supply, f"PSU{supply} Status", "0x6f", supply, (0, 1, 2, 3))
        analog(0x20 + supply, f"PSU{supply} Pin", "Other_Units_Based_Sensor", "0x0b", "Watts", 16, "power_supply", supply, 1840 // 16)
        analog(0x30 + supply, f"PSU{supply} Temp", "Temperature", "0x01", "degrees_C", 1, "power_supply", supply, 41)
        image = _fru(["Delta", "HAKO-3000W", "DPST-3000HB A", "S1F", f"SN{supply:06d}"])
        emulator.append(f"mc_add_fru_data 0x20 {supply} 256 data " + " ".join(f"0x{byte:02x}" for byte in image))
        records.append(
            "sdr type 0x11\n\tdevice_access_address\t0x20\n\tfru_device_address\t"
            f"{supply}\n\tlogical_fru\t\t1\n\tlun\t\t\t0\n\tdevice_type\t\t0x10\n\tdevice_type_modifier\t0\n\tfru_entity_id\t\tpower_supply\n"
            f'\tfru_entity_instance\t{supply}\n\tid_string\t\t"PSU{supply}"\nendsdr\n'
        )
    discrete(0x50, "PS Redundancy", "0x0b", 100, (0, 1, 2, 3, 5))
    analog(0x51, "Inlet Temp", "Temperature", "0x01", "degrees_C", 1, "system_board", 1, 24)
    for fan in range(1, 5):
        analog(0x70 + fan, f"Fan {fan}", "Fan", "0x04", "RPM", 100, "system_board", 20 + fan, 84)
    emulator.append("mc_enable 0x20")
    (folder / "lan.conf").write_text(LAN.format(lan=lan, console=console))
    (folder / "bmc.emu").write_text("\n".join(emulator) + "\n")
    (folder / "bmc.sdrs").write_text("\n".join(records))
    compile_sdrs(folder)


def compile_sdrs(folder: Path) -> None:
    """The records in the binary form in which ipmi_sim keeps its state."""
    import subprocess

    state = folder / "state" / "ipmi_sim" / "bmc"
    state.mkdir(parents=True)
    binary = subprocess.run(["sdrcomp", "bmc.sdrs"], cwd=folder, capture_output=True, check=True).stdout
    (state / "sdr.20.main").write_bytes(binary)
