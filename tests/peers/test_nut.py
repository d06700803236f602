"""NUT: our client against the real upsd with dummy-ups, and against servers that misbehave."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checks.catalog import workloads
from checks.score import assess
from probe.clients import Source, apcupsd, host_and_port, nut
from probe.collect import collect
from probe.fact import Missing, Unavailable
from probe.host import LiveHost
from tests.peers.conftest import Start, free_port, wait_for_port

UPSD, DRIVER = "/lib/nut/upsd", "/lib/nut/dummy-ups"
STEADY = 'ups.mfr: Eaton\nups.model: 93PM \\"B feed\\"\nups.status: OL\nups.realpower.nominal: 30000\nups.realpower: 18600\nups.load: 62\nbattery.charge: 100\nbattery.runtime: 900\n'
OUTAGE = "ups.mfr: Eaton\nups.model: 9PX\nups.status: OB LB DISCHRG\nups.load: 40\nups.realpower.nominal: 5000\nbattery.charge: 12\nbattery.runtime: 60\n"


@pytest.fixture
def upsd(start: Start, tmp_path: Path) -> int:
    """A real upsd with two UPSs; returns its port."""
    if not Path(UPSD).exists():
        pytest.skip("nut-server is not installed")
    port = free_port()
    (tmp_path / "run").mkdir()
    for name, content in {
        "nut.conf": "MODE=standalone\n",
        "ups.conf": "maxretry = 1\n[steady]\ndriver = dummy-ups\nport = steady.dev\nmode = dummy-once\n"
        "[outage]\ndriver = dummy-ups\nport = outage.dev\nmode = dummy-once\n[gone]\ndriver = dummy-ups\nport = gone.dev\n",
        "upsd.conf": f"LISTEN 127.0.0.1 {port}\nMAXAGE 15\n",
        "upsd.users": "[monitor]\npassword = right\nupsmon secondary\n",
        "steady.dev": STEADY,
        "outage.dev": OUTAGE,
    }.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o640)
    env = {"NUT_CONFPATH": str(tmp_path), "NUT_STATEPATH": str(tmp_path / "run"), "NUT_ALTPIDPATH": str(tmp_path / "run")}
    user = getpass.getuser()
    for ups in ("steady", "outage"):
        start(DRIVER, "-a", ups, "-u", user, "-F", env=env)
    end = time.monotonic() + 20
    while len([name for name in os.listdir(tmp_path / "run") if name.startswith("dummy-ups-")]) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    start(UPSD, "-u", user, "-F", env=env)
    wait_for_port(port)
    return port


def test_all_upses_of_a_real_upsd(upsd: int) -> None:
    source = Source(kind="nut", name="room", address=f"127.0.0.1:{upsd}")
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and "battery.runtime" not in nut.ask(source, 5).get("steady", {}):
        time.sleep(0.3)
    answer = nut.ask(source, 5)
    assert set(answer) == {"steady", "outage", "gone"}
    assert answer["steady"]["ups.model"] == '93PM "B feed"'
    assert answer["steady"]["battery.runtime"] == "900"
    assert answer["gone"] == {"error": "DRIVER-NOT-CONNECTED"}

    snapshot = collect(LiveHost(sources=[source]))
    assert isinstance(snapshot.upses, list)
    steady, outage, gone = (next(one for one in snapshot.upses if one.name == f"room/{name}") for name in ("steady", "outage", "gone"))
    assert (steady.status, steady.load_ratio, steady.real_power_watts, steady.runtime_seconds) == (["OL"], 0.62, 18600.0, 900.0)
    assert outage.real_power_watts == 2000.0
    assert isinstance(gone.status, Missing)
    found = {finding.device: finding.status for finding in assess(snapshot, workloads().values()).findings if finding.check == "ups.status"}
    assert found == {"room/steady": "passed", "room/outage": "failed", "room/gone": "unknown"}


def test_one_ups_with_a_password(upsd: int) -> None:
    right = Source(kind="nut", name="a", address=f"127.0.0.1:{upsd}", ups="outage", user="monitor", password="right")
    assert set(nut.ask(right, 5)) == {"outage"}
    unknown = Source(kind="nut", name="a", address=f"127.0.0.1:{upsd}", ups="nothing")
    assert nut.ask(unknown, 5) == {"nothing": {"error": "UNKNOWN-UPS"}}


def test_tls_that_the_server_does_not_have(upsd: int) -> None:
    with pytest.raises(Unavailable, match="FEATURE-NOT-CONFIGURED|TLS"):
        nut.ask(Source(kind="nut", name="a", address=f"127.0.0.1:{upsd}", tls=True), 5)


# --- servers that misbehave ------------------------------------------------------------------------------------------------------------


def misbehaving(say: Callable[[socket.socket], None]) -> int:
    """A server that does `say` with its one visitor; returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, listener, contextlib.suppress(OSError):
            say(connection)

    threading.Thread(target=serve, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def silent(connection: socket.socket) -> None:
    time.sleep(5)


def drip(connection: socket.socket) -> None:
    for _ in range(50):
        connection.sendall(b"B")
        time.sleep(0.1)


def endless(connection: socket.socket) -> None:
    connection.recv(100)
    for _ in range(1000):
        connection.sendall(b"x" * 10_000)


def endless_list(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"BEGIN LIST UPS\n")
    for _ in range(5000):
        connection.sendall(b'UPS a "b"\n')


def garbage(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"\x00\xff\xfe HTTP/1.1 400\n")


def dropped(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"BEGIN LIST UPS\nUPS a")


MISBEHAVIOURS = [
    (silent, "timeout"),
    (drip, "timeout"),
    (endless, "error"),
    (endless_list, "error"),
    (garbage, "error"),
    (dropped, "error"),
]


@pytest.mark.parametrize(("say", "reason"), MISBEHAVIOURS, ids=lambda value: getattr(value, "__name__", value))
def test_a_nut_server_that_misbehaves(say: Callable[[socket.socket], None], reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable) as answer:
        nut.ask(Source(kind="nut", name="a", address=f"127.0.0.1:{misbehaving(say)}"), 1)
    assert answer.value.reason == reason
    assert time.monotonic() - started < 2


def nis(records: list[bytes]) -> Callable[[socket.socket], None]:
    def say(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"".join(len(record).to_bytes(2, "big") + record for record in records) + b"\0\0")

    return say


def test_apcupsd() -> None:
    records = [
        b"APC      : 001,036,0879\n", b"MODEL    : Smart-UPS 3000\n", b"STATUS   : ONBATT LOWBATT \n", b"LOADPCT  : 62.0 Percent\n",
        b"BCHARGE  : 40.0 Percent\n", b"TIMELEFT : 11.5 Minutes\n", b"NOMPOWER : 2700 Watts\n", b"BATTDATE : 2024-03-01\n",
    ]  # fmt: skip
    source = Source(kind="apcupsd", name="rack", address=f"127.0.0.1:{misbehaving(nis(records))}")
    snapshot = collect(LiveHost(sources=[source]))
    assert isinstance(snapshot.upses, list)
    ups = snapshot.upses[0]
    assert (ups.model, ups.status, ups.load_ratio, ups.runtime_seconds) == ("Smart-UPS 3000", ["OB", "LB"], 0.62, 690.0)
    assert ups.real_power_watts == pytest.approx(1674)


@pytest.mark.parametrize(
    ("say", "reason"), [(silent, "timeout"), (drip, "timeout"), (garbage, "error"), (dropped, "error"), (nis([b"no colon"]), "error")]
)
def test_an_apcupsd_that_misbehaves(say: Callable[[socket.socket], None], reason: str) -> None:
    with pytest.raises(Unavailable) as answer:
        apcupsd.ask(Source(kind="apcupsd", name="a", address=f"127.0.0.1:{misbehaving(say)}"), 1)
    assert answer.value.reason == reason


def test_nobody_there() -> None:
    for client in (nut, apcupsd):
        with pytest.raises(Unavailable, match="refused"):
            client.ask(Source(kind="x", name="a", address=f"127.0.0.1:{free_port()}"), 2)


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("ups1", ("ups1", 3493)),
        ("ups1:1234", ("ups1", 1234)),
        ("[fe80::1]:99", ("fe80::1", 99)),
        ("[fe80::1]", ("fe80::1", 3493)),
        ("fe80::1", ("fe80::1", 3493)),
        ("10.0.0.1:3493", ("10.0.0.1", 3493)),
    ],
)
def test_addresses(address: str, answer: tuple[str, int]) -> None:
    assert host_and_port(address, 3493) == answer


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ('VAR a ups.model "x"', ["VAR", "a", "ups.model", "x"]),
        (r'VAR a b "with \"quotes\" and \\"', ["VAR", "a", "b", 'with "quotes" and \\']),
        ('VAR a b ""', ["VAR", "a", "b", ""]),
        ("END LIST UPS", ["END", "LIST", "UPS"]),
        ('UPS a "un', ["UPS", "a", '"un']),
    ],
)
def test_words(line: str, answer: list[str]) -> None:
    assert nut.words(line) == answer
