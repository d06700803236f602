"""BMCs: ipmitool against OpenIPMI's simulator, Redfish against sushy-static with trees of our own and against servers that refuse."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from checks.catalog import workloads
from checks.score import assess
from probe import power
from probe.clients import Source, redfish
from probe.collect import collect
from probe.fact import Missing, Unavailable
from probe.host import LiveHost
from tests.peers.conftest import Start, free_port, wait_for_port
from tests.peers.ipmi_sim import write_bmc


@pytest.fixture
def bmc(start: Start, tmp_path: Path) -> tuple[Path, int]:
    """A simulated BMC with six 3 kW supplies; gives the folder with an ipmitool that speaks to it, and its console's port."""
    if shutil.which("ipmi_sim") is None or shutil.which("ipmitool") is None:
        pytest.skip("openipmi and ipmitool are not installed")
    lan, console = free_port(socket.SOCK_DGRAM), free_port()
    write_bmc(tmp_path, lan, console)
    start("ipmi_sim", "-c", "lan.conf", "-f", "bmc.emu", "-s", str(tmp_path / "state"), "-n", cwd=tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ipmitool").write_text(f'#!/bin/sh\nexec {shutil.which("ipmitool")} -I lan -H 127.0.0.1 -p {lan} -U ipmiusr -P test "$@"\n')
    (tools / "ipmitool").chmod(0o755)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        said = subprocess.run([tools / "ipmitool", "sdr", "elist"], capture_output=True, text=True, check=False)
        if said.stdout.count("Watts") == 6:
            break
        time.sleep(0.5)
    return tools, console


def test_ipmi_supplies_and_a_lost_input(bmc: tuple[Path, int]) -> None:
    tools, console = bmc
    snapshot = collect(LiveHost(tool_folders=[str(tools)], deadline_seconds=30), deadline_seconds=60)
    supplies = snapshot.power.supplies
    assert isinstance(supplies, list)
    assert [(one.name, one.rating_watts, one.healthy, one.input_lost) for one in supplies] == [
        (f"PSU{n}", 3000.0, True, False) for n in range(1, 7)
    ]
    assert snapshot.power.redundancy == "full"
    assert snapshot.power.draw_watts == 6 * 1840
    assert isinstance(snapshot.sensors, list)
    assert {sensor.name: sensor.value for sensor in snapshot.sensors}["Inlet Temp"] == 24.0

    with socket.create_connection(("127.0.0.1", console)) as line:
        for command in (
            "sensor_set_bit 0x20 0 0x12 1 1 1",
            "sensor_set_bit 0x20 0 0x12 3 1 1",
            "sensor_set_bit 0x20 0 0x50 0 0 1",
            "sensor_set_bit 0x20 0 0x50 1 1 1",
        ):
            line.sendall(command.encode() + b"\r\n")
            time.sleep(0.3)
    snapshot = collect(LiveHost(tool_folders=[str(tools)], deadline_seconds=30), deadline_seconds=60)
    assert isinstance(snapshot.power.supplies, list)
    assert [(one.name, one.healthy, one.input_lost) for one in snapshot.power.supplies if one.input_lost] == [("PSU2", False, True)]
    assert snapshot.power.redundancy == "lost"
    assert isinstance(snapshot.power.events, list)
    assert any("AC lost" in event for event in snapshot.power.events)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sleep 60", "timeout"),
        ("echo 'Could not open device at /dev/ipmi0 or /dev/ipmi/0: No such file or directory' >&2; exit 1", "absent"),
        ("echo 'Unable to establish IPMI v2 / RMCP+ session' >&2; exit 1", "error"),
        ("echo 'Could not open device at /dev/ipmi0: Permission denied' >&2; exit 1", "no_permission"),
        ("head -c 20000000 /dev/zero", "error"),
        ("exit 0", "not_supported"),
        ("echo garbage; echo '|||||'; echo 'PSU1 Status | x | | | '", None),
    ],
)
def test_an_ipmitool_that_misbehaves(script: str, reason: str | None, tmp_path: Path) -> None:
    (tmp_path / "ipmitool").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "ipmitool").chmod(0o755)
    started = time.monotonic()
    snapshot = collect(LiveHost(tool_folders=[str(tmp_path)], deadline_seconds=1))
    assert time.monotonic() - started < 5
    if reason is not None:
        assert isinstance(snapshot.power.supplies, Missing)
        assert snapshot.power.supplies.reason == reason


# --- Redfish -------------------------------------------------------------------------------------------------------------------------


def tree(root: Path, resources: dict[str, object]) -> Path:
    """A mockup folder of our own, as sushy-static and DMTF's mockup server serve them."""
    for path, resource in resources.items():
        file = root / path.strip("/") / "index.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(resource))
    return root


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


NEWER = {
    "/redfish/v1/Chassis": {"Members": [link("/redfish/v1/Chassis/gpu")]},
    "/redfish/v1/Chassis/gpu": {"PowerSubsystem": link("/redfish/v1/Chassis/gpu/PowerSubsystem"), "Thermal": link("/redfish/v1/Chassis/gpu/Thermal")},
    "/redfish/v1/Chassis/gpu/PowerSubsystem": {
        "CapacityWatts": 12000,
        "PowerSupplies": link("/redfish/v1/Chassis/gpu/PowerSubsystem/PowerSupplies"),
        "PowerSupplyRedundancy": [{"Status": {"Health": "Warning"}}],
    },
    "/redfish/v1/Chassis/gpu/PowerSubsystem/PowerSupplies": {
        "Members": [link(f"/redfish/v1/Chassis/gpu/PowerSubsystem/PowerSupplies/{n}") for n in (1, 2, 3)]
    },
    "/redfish/v1/Chassis/gpu/PowerSubsystem/PowerSupplies/1": {"Name": "Bay 1", "PowerCapacityWatts": 3000, "Status": {"State": "Enabled", "Health": "OK"}, "LineInputStatus": "Normal"},
    "/redfish/v1/Chassis/gpu/PowerSubsystem/PowerSupplies/2": {"Name": "Bay 2", "PowerCapacityWatts": 3000, "Status": {"State": "Enabled", "Health": "Critical"}, "LineInputStatus": "LossOfInput"},
    "/redfish/v1/Chassis/gpu/PowerSubsystem/PowerSupplies/3": {"Name": "Bay 3", "Status": {"State": "Absent"}},
    "/redfish/v1/Chassis/gpu/Thermal": {
        "Temperatures": [{"Name": "Inlet", "ReadingCelsius": 23, "Status": {"Health": "OK"}}, {"Name": "off", "ReadingCelsius": None}],
        "Fans": [{"Name": "Fan 1", "Reading": 8000, "Status": {"Health": "OK", "State": "Enabled"}}],
    },
}  # fmt: skip


def test_redfish_against_sushy_static(peer: Callable[[str], str], start: Start, tmp_path: Path) -> None:
    port = free_port()
    mockup = tree(tmp_path / "mockup", {path.removeprefix("/redfish/v1"): resource for path, resource in NEWER.items()})
    tree(mockup, {"/": {"Chassis": link("/redfish/v1/Chassis")}})
    start(peer("sushy-static"), "--port", str(port), "--mockup-files", str(mockup))
    wait_for_port(port)
    snapshot = collect(LiveHost(sources=[Source(kind="redfish", name="bmc", address=f"http://127.0.0.1:{port}")]))
    assert isinstance(snapshot.power.supplies, list), snapshot.power.supplies
    assert [(one.name, one.rating_watts, one.present, one.healthy, one.input_lost) for one in snapshot.power.supplies[:2]] == [
        ("Bay 1", 3000.0, True, True, False),
        ("Bay 2", 3000.0, True, False, True),
    ]
    assert not snapshot.power.supplies[2].present
    assert (snapshot.power.redundancy, snapshot.power.capacity_watts) == ("degraded", 12000.0)
    assert isinstance(snapshot.sensors, list)
    assert [(sensor.name, sensor.value) for sensor in snapshot.sensors] == [("Inlet", 23.0), ("Fan 1", 8000.0)]
    findings = {(one.check, one.device): one.status for one in assess(snapshot, workloads().values()).findings}
    assert findings["power.supply", "Bay 2"] == "failed"
    assert findings["power.supply", "Bay 3"] == "not_applicable"


class Handler(BaseHTTPRequestHandler):
    """A BMC that counts its visitors and wants a password."""

    visits: list[str] = []
    status = 200

    def do_GET(self) -> None:
        type(self).visits.append(self.path)
        right = self.headers.get("Authorization") == "Basic " + base64.b64encode(b"admin:right").decode()
        resource = NEWER.get(self.path)
        status = self.status if self.status != 200 else 401 if not right else 200 if resource else 404
        body = json.dumps(resource).encode() if status == 200 else b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[ThreadingHTTPServer, type[Handler]]]:
    kind = type("Once", (Handler,), {"visits": [], "status": 200})
    http = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield http, kind
    http.shutdown()


def test_a_wrong_password_is_offered_once(server: tuple[ThreadingHTTPServer, type[Handler]]) -> None:
    http, kind = server
    source = Source(kind="redfish", name="bmc", address=f"http://127.0.0.1:{http.server_port}", user="admin", password="wrong")
    snapshot = collect(LiveHost(sources=[source]))
    assert isinstance(snapshot.power.supplies, Missing)
    assert snapshot.power.supplies.reason == "no_permission"
    assert "not tried again" in snapshot.power.supplies.detail
    assert len(kind.visits) == 1
    assert "wrong" not in repr(source)


def test_the_right_password(server: tuple[ThreadingHTTPServer, type[Handler]]) -> None:
    http, kind = server
    answer = redfish.ask(
        Source(kind="redfish", name="b", address=f"http://127.0.0.1:{http.server_port}", user="admin", password="right"), 5
    )
    assert [one["Name"] for one in answer["supplies"]] == ["Bay 1", "Bay 2", "Bay 3"]
    assert len(kind.visits) == len(set(kind.visits)), "nothing is asked twice"


@pytest.mark.parametrize("status", [500, 503, 302])
def test_a_bmc_that_fails(status: int, server: tuple[ThreadingHTTPServer, type[Handler]]) -> None:
    http, kind = server
    kind.status = status
    with pytest.raises(Unavailable, match=f"HTTP {status}"):
        redfish.ask(Source(kind="redfish", name="b", address=f"http://127.0.0.1:{http.server_port}"), 5)


def test_a_certificate_that_is_not_trusted(server: tuple[ThreadingHTTPServer, type[Handler]], tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "1"]
    subprocess.run([*command, "-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1"], cwd=tmp_path, check=True, capture_output=True)
    http, _ = server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    http.socket = context.wrap_socket(http.socket, server_side=True)
    url = f"https://127.0.0.1:{http.server_port}"
    with pytest.raises(Unavailable, match="not trusted"):
        redfish.ask(Source(kind="redfish", name="b", address=url, user="admin", password="right"), 5)
    trusted = Source(kind="redfish", name="b", address=url, user="admin", password="right", ca_file=str(tmp_path / "cert.pem"))
    assert redfish.ask(trusted, 5)["supplies"]
    assert redfish.ask(Source(kind="redfish", name="b", address=url, user="admin", password="right", insecure=True), 5)["supplies"]


@pytest.mark.parametrize(
    "answer", [None, [], "x", {"power": 1}, {"power": [{"PowerSupplies": [{"Status": 3, "InputRanges": {}}, 7]}]}, {"supplies": [{}]}]
)
def test_any_answer_of_a_bmc(answer: object) -> None:
    told = power.parsed_answer(answer, "x")
    assert isinstance(told, Missing) or told.supplies is not None


@pytest.mark.parametrize("address", ["ftp://x", "http://", "://", "http://127.0.0.1:99999"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(Unavailable):
        redfish.ask(Source(kind="redfish", name="b", address=address), 2)
