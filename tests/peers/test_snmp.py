"""UPS-MIB over SNMP: our client against snmpsim, which answers from a record of our own."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probe.clients import Source, snmp
from probe.collect import collect
from probe.fact import Unavailable
from probe.host import LiveHost
from tests.peers.conftest import Start, free_port

pytest.importorskip("pysnmp")

RECORD = """1.3.6.1.2.1.33.1.1.1.0|4|Eaton
1.3.6.1.2.1.33.1.1.2.0|4|9PX 11000
1.3.6.1.2.1.33.1.2.1.0|2|2
1.3.6.1.2.1.33.1.2.2.0|2|0
1.3.6.1.2.1.33.1.2.3.0|2|14
1.3.6.1.2.1.33.1.2.4.0|2|97
1.3.6.1.2.1.33.1.4.1.0|2|3
1.3.6.1.2.1.33.1.4.4.1.4.1|2|6200
1.3.6.1.2.1.33.1.4.4.1.5.1|2|62
1.3.6.1.2.1.33.1.9.6.0|2|10000
"""


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that the simulator may use after it has given up root."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        (path / "cache").mkdir()
        (path / "cache").chmod(0o777)
        yield path


def test_a_ups_by_its_mib(peer: Callable[[str], str], start: Start, shared_folder: Path) -> None:
    port = free_port(socket.SOCK_DGRAM)
    (shared_folder / "data").mkdir()
    (shared_folder / "data" / "public.snmprec").write_text(RECORD)
    start(
        peer("snmpsim-command-responder"), f"--data-dir={shared_folder / 'data'}", f"--agent-udpv4-endpoint=127.0.0.1:{port}",
        f"--cache-dir={shared_folder / 'cache'}", *(["--process-user=root", "--process-group=root"] if os.geteuid() == 0 else []),
    )  # fmt: skip
    source = Source(kind="snmp", name="card", address=f"127.0.0.1:{port}")
    end = time.monotonic() + 20
    while True:
        try:
            snmp.ask(source, 2)
            break
        except Unavailable:
            if time.monotonic() > end:
                raise
    snapshot = collect(LiveHost(sources=[source]))
    assert isinstance(snapshot.upses, list)
    ups = snapshot.upses[0]
    assert (ups.model, ups.status, ups.load_ratio, ups.real_power_watts) == ("Eaton 9PX 11000", ["OL"], 0.62, 6200.0)
    assert (ups.real_power_nominal_watts, ups.runtime_seconds, ups.charge_ratio) == (10000.0, 840.0, 0.97)


def test_an_agent_that_does_not_answer() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        started = time.monotonic()
        with pytest.raises(Unavailable) as answer:
            snmp.ask(Source(kind="snmp", name="a", address=f"127.0.0.1:{deaf.getsockname()[1]}"), 1)
        assert answer.value.reason == "timeout"
        assert time.monotonic() - started < 3
