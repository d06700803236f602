"""The daemon: what it serves, how findings live, and what it does under fire."""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bcrypt
import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from checks.finding import Finding
from probe.dump import write
from probe.fact import Missing
from readiness.fixtures import load
from readiness.lifecycle import Lifecycle
from readiness.scheduler import Scheduler

Start = Callable[..., "Served"]


class Served:
    """A daemon in a process of its own."""

    def __init__(self, argv: list[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "readiness", "serve", "--listen", "127.0.0.1:0", *argv], stderr=out, env={**os.environ, **env}
            )
        end = time.monotonic() + 20
        while "listening on" not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)
        self.port = int(self.said().split("listening on ")[1].split()[0].rsplit(":", 1)[1])

    def said(self) -> str:
        return self.log.read_text()

    def get(
        self, path: str, headers: dict[str, str] | None = None, method: str = "GET", tls: ssl.SSLContext | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = (
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=tls)
            if tls
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        )
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body

    def until(self, condition: Callable[[], bool], seconds: float = 15) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)

    def ready(self) -> None:
        self.until(lambda: self.get("/-/ready")[0] == 200)

    def metric(self, name: str, **labels: str) -> float | None:
        for family in parse_text(self.get("/metrics")[2].decode()):
            for sample in family.samples:
                if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items()):
                    return float(sample.value)
        return None


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Start]:
    started: list[Served] = []

    def start(*argv: str, env: dict[str, str] | None = None) -> Served:
        started.append(Served(list(argv), env or {}, tmp_path / f"daemon{len(started)}.log"))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait(5)


def test_what_it_serves(serve: Start) -> None:
    daemon = serve("--fixture", "hgx-h100", "--interval", "1")
    daemon.ready()
    assert daemon.get("/-/healthy")[0] == 200
    status, headers, body = daemon.get("/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in parse_text(body.decode())}
    assert len(families["readiness_gpu_present"].samples) == 8
    assert all(family.documentation for family in families.values())
    status, headers, packed = daemon.get(
        "/metrics", {"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    )
    assert headers["content-encoding"] == "gzip"
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert list(parse_openmetrics(gzip.decompress(packed).decode()))
    status, headers, body = daemon.get("/report.json")
    assert json.loads(body)["verdict"] == "READY"
    status, headers, body = daemon.get("/")
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert b"READY" in body
    assert b"<script" not in body
    assert b'href="/checks#gpu.row_remap"' in body
    status, headers, body = daemon.get("/checks")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'id="gpu.row_remap"' in body
    assert daemon.get("/", method="HEAD")[2] == b""
    assert daemon.get("/nothing")[0] == 404
    assert daemon.get("/metrics?name[]=x")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert daemon.get("/metrics", method=method)[0] == 405
    assert daemon.metric("readiness_probe_success", probe="nvml") == 1
    assert daemon.metric("readiness_gpus_on_bus") == 8
    assert daemon.metric("readiness_node_verdict", readiness_node_verdict="READY") == 1


def test_series_are_bounded_and_stable(serve: Start) -> None:
    daemon = serve("--fixture", "hgx-h100", "--interval", "0.5")
    daemon.ready()
    daemon.until(lambda: daemon.metric("readiness_probe_last_success_timestamp_seconds", probe="software") is not None)

    def series() -> set[tuple[str, str]]:
        return {
            (sample.name, str(sorted(sample.labels.items())))
            for family in parse_text(daemon.get("/metrics")[2].decode())
            for sample in family.samples
        }

    time.sleep(1.5)
    first = series()
    time.sleep(2)
    assert series() == first
    assert 900 < len(first) < 1500


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("fixture", ["hgx-h100", "quad-4090", "cpu-only", "hgx-h100-roce", "hgx-h100+gpu-lost", "hgx-h100+driver-missing"])
def test_promtool_finds_nothing_to_say(fixture: str, serve: Start) -> None:
    daemon = serve("--fixture", fixture)
    daemon.ready()
    said = subprocess.run(["promtool", "check", "metrics"], input=daemon.get("/metrics")[2], capture_output=True, check=False)
    assert (said.returncode, said.stdout + said.stderr) == (0, b"")


def test_a_fault_is_raised_and_cleared(serve: Start, tmp_path: Path) -> None:
    dump = tmp_path / "dump.tar.gz"
    write(load("hgx-h100"), dump)
    daemon = serve("--fixture", str(dump), "--interval", "0.5", "--raise-after", "2", "--clear-after", "2")
    daemon.ready()
    daemon.until(lambda: daemon.metric("readiness_node_ready") == 1)
    dump.unlink()
    write(load("hgx-h100+gpu-lost"), dump)
    daemon.until(lambda: daemon.metric("readiness_check_status", check="gpu.present", device="gpu3") == 2)
    assert daemon.metric("readiness_gpu_present", gpu="3") == 0
    daemon.until(lambda: daemon.metric("readiness_node_ready") == 0)
    dump.unlink()
    write(load("hgx-h100"), dump)
    daemon.until(lambda: daemon.metric("readiness_check_status", check="gpu.present", device="gpu3") == 0)
    daemon.until(lambda: daemon.metric("readiness_node_ready") == 1)


def test_a_dump_that_breaks_under_the_daemon(serve: Start, tmp_path: Path) -> None:
    dump = tmp_path / "dump.tar.gz"
    write(load("dual-l40s"), dump)
    daemon = serve("--fixture", str(dump), "--interval", "0.5")
    daemon.ready()
    dump.write_bytes(b"\x1f\x8bgarbage")
    daemon.until(lambda: daemon.metric("readiness_probe_success", probe="nvml") == 0)
    assert daemon.get("/-/healthy")[0] == 200


def test_the_cached_report(serve: Start, tmp_path: Path, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    kept = tmp_path / "report.json"
    daemon = serve("--fixture", "hgx-h100+gpu-lost", "--report-file", str(kept), "--interval", "0.5", "--raise-after", "1")
    daemon.until(kept.exists)
    done = run("check", "--cached", "--report-file", str(kept))
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("NOT READY for qlora-70b")
    assert "gpu.present[gpu3]" in done.stdout
    assert run("check", "--cached", "--report-file", str(kept), "--exit-code", "gate", "-q").returncode == 1
    for option in (("--require", "full-70b-cluster"), ("--fail-on", "warn"), ("--only", "gpu"), ("--fixture", "hgx-h100")):
        refused = run("check", "--cached", "--report-file", str(kept), *option)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (64, "", 1)
        assert option[0] in refused.stderr
    daemon.process.kill()
    daemon.process.wait(5)
    time.sleep(1)
    stale = run("check", "--cached", "--report-file", str(kept), "--max-age", "0.5")
    assert stale.returncode == 3
    assert "s old" in stale.stderr
    assert run("check", "--cached", "--report-file", str(tmp_path / "none")).returncode == 3
    kept.write_text("{broken")
    assert run("check", "--cached", "--report-file", str(kept)).returncode == 3


def test_the_textfile(run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    assert run("check", "--fixture", "hgx-h100", "--textfile", str(tmp_path)).returncode == 0
    assert os.listdir(tmp_path) == ["readiness.prom"]
    names = {family.name for family in parse_text((tmp_path / "readiness.prom").read_text())}
    assert {"readiness_node_ready", "readiness_report_timestamp_seconds"} <= names


# --- TLS and passwords -------------------------------------------------------------------------------------------------------------------


def certificate(folder: Path, name: str = "127.0.0.1") -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "1"]
    subprocess.run(
        [*command, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"], cwd=folder, check=True, capture_output=True
    )


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def test_tls_and_basic_auth_and_their_renewal(serve: Start, tmp_path: Path) -> None:
    certificate(tmp_path)
    web = tmp_path / "web.yml"
    section = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"
    web.write_text(f"{section}basic_auth_users:\n  prometheus: {hashed('right')}\n")
    daemon = serve("--fixture", "cpu-only", "--web-config", str(web), "--interval", "0.5")
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    daemon.until(lambda: daemon.get("/-/ready", tls=trust)[0] == 200)
    assert daemon.get("/metrics", tls=trust)[0] == 401
    assert daemon.get("/metrics", basic("prometheus", "wrong"), tls=trust)[0] == 401
    assert daemon.get("/metrics", basic("nobody", "right"), tls=trust)[0] == 401
    assert daemon.get("/metrics", {"Authorization": "Basic %%%"}, tls=trust)[0] == 401
    assert daemon.get("/metrics", {"Authorization": "Bearer x"}, tls=trust)[0] == 401
    assert daemon.get("/metrics", basic("prometheus", "right"), tls=trust)[0] == 200
    first = ssl.get_server_certificate(("127.0.0.1", daemon.port))
    certificate(tmp_path)
    web.write_text(f"{section}basic_auth_users:\n  prometheus: {hashed('new')}\n")
    daemon.until(lambda: ssl.get_server_certificate(("127.0.0.1", daemon.port)) != first)
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    daemon.until(lambda: daemon.get("/metrics", basic("prometheus", "new"), tls=trust)[0] == 200)
    assert daemon.get("/metrics", basic("prometheus", "right"), tls=trust)[0] == 401
    web.write_text("tls_server_config: [broken")
    daemon.until(lambda: "stays in force" in daemon.said())
    assert daemon.get("/metrics", basic("prometheus", "new"), tls=trust)[0] == 200


def test_client_certificates(serve: Start, tmp_path: Path) -> None:
    certificate(tmp_path)
    web = tmp_path / "web.yml"
    web.write_text(
        "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: cert.pem\n"
    )
    daemon = serve("--fixture", "cpu-only", "--web-config", str(web))
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        daemon.get("/-/healthy", tls=trust)
    trust.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    assert daemon.get("/-/healthy", tls=trust)[0] == 200


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("basic_auth_users:\n  a: plain-password\n", "basic_auth_users"),
        ("tls_server_config:\n  cert_file: none.pem\n  key_file: none.pem\n", "none.pem"),
        ("tls_server_confg: {}\n", "tls_server_confg"),
        ("- a list\n", "web.yml"),
        ("a: [b", "web.yml"),
    ],
)
def test_a_broken_web_configuration(content: str, words: str, tmp_path: Path, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    (tmp_path / "web.yml").write_text(content)
    done = run("serve", "--fixture", "cpu-only", "--web-config", str(tmp_path / "web.yml"))
    assert done.returncode == 65
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--listen", "nowhere"], 64),
        (["--listen", "127.0.0.1:99999"], 64),
        (["--listen", "203.0.113.1:1"], 64),
        (["--fixture", "hgx-h10"], 64),
        (["--fixture", "/none"], 65),
    ],
)
def test_a_wrong_start(argv: list[str], code: int, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run("serve", *argv)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


# --- under fire --------------------------------------------------------------------------------------------------------------------------


def test_slow_clients_do_not_stop_a_scrape(serve: Start) -> None:
    """A thousand connections that send a byte now and then: a scrape is answered in between, and memory stays."""
    daemon = serve("--fixture", "hgx-h100")
    daemon.ready()
    before = memory(daemon.process.pid)
    slow: list[socket.socket] = []
    worst = 0.0
    for number in range(1000):
        with contextlib.suppress(OSError):
            slow.append(socket.create_connection(("127.0.0.1", daemon.port), timeout=2))
            slow[-1].send(b"G")
        if number % 50 == 0:
            started = time.monotonic()
            assert daemon.get("/metrics")[0] == 200
            worst = max(worst, time.monotonic() - started)
    assert worst < 1
    assert memory(daemon.process.pid) < before + 20_000
    for one in slow:
        one.close()


def memory(pid: int) -> int:
    """Resident set in kB."""
    return int(next(line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")))


def test_many_scrapers_at_once(serve: Start) -> None:
    daemon = serve("--fixture", "hgx-h100")
    daemon.ready()
    times: list[float] = []
    bad: list[object] = []

    def scrape() -> None:
        for _ in range(15):
            started = time.monotonic()
            try:
                if daemon.get("/metrics", {"Accept-Encoding": "gzip"})[0] != 200:
                    bad.append("status")
            except OSError as error:
                bad.append(error)
            times.append(time.monotonic() - started)

    threads = [threading.Thread(target=scrape) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad
    assert sorted(times)[int(len(times) * 0.99)] < 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"GET http://evil/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x00" * 1000,
        b"GET " + b"/" * 20_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_requests_that_are_none(sent: bytes, serve: Start) -> None:
    daemon = serve("--fixture", "cpu-only")
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=8) as connection:
        connection.sendall(sent)
        answer = connection.recv(65536)
        assert not answer or int(answer.split()[1]) >= 400
    assert daemon.get("/-/healthy")[0] == 200
    assert "Traceback" not in daemon.said()


def test_several_requests_on_one_connection(serve: Start) -> None:
    daemon = serve("--fixture", "cpu-only")
    daemon.ready()
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=5)
    for path, status in (("/metrics", 200), ("/nothing", 404), ("/-/healthy", 200), ("/metrics", 200)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=5) as pipelined:
        pipelined.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        time.sleep(0.5)
        assert pipelined.recv(65536).count(b"HTTP/1.1 200") == 3


def test_sigterm_while_a_sweep_hangs(serve: Start, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source = Path(__file__).parents[1] / "nvml_standin" / "standin.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    daemon = serve("--timeout", "60", env={"LD_LIBRARY_PATH": str(tmp_path), "NVML_STANDIN": "hang:0"})
    time.sleep(1.5)
    children = [int(pid) for pid in Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()]
    tasks = Path(f"/proc/{daemon.process.pid}/task")
    children = [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    assert children
    assert daemon.get("/-/healthy")[0] == 200, "a hung probe holds up nobody"
    started = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(5) == 0
    assert time.monotonic() - started < 2
    time.sleep(0.3)
    for child in children:
        status = Path(f"/proc/{child}/status")
        assert not status.exists() or "Z (zombie)" in status.read_text()


def test_killing_the_nvml_child_is_survived(serve: Start, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source = Path(__file__).parents[1] / "nvml_standin" / "standin.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    daemon = serve("--interval", "0.5", "--raise-after", "1", env={"LD_LIBRARY_PATH": str(tmp_path), "NVML_STANDIN": "crash:0"})
    daemon.ready()
    daemon.until(lambda: daemon.metric("readiness_check_status", check="driver.responsive") == 2)
    assert daemon.get("/-/healthy")[0] == 200


def test_reload(serve: Start, tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    config.write_text("require = ['lora-8b']\n")
    daemon = serve("--fixture", "quad-4090", "--config", str(config), "--interval", "0.5")
    daemon.ready()
    daemon.until(lambda: json.loads(daemon.get("/report.json")[2])["required"] == ["lora-8b"])
    config.write_text("require = ['qlora-70b']\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: json.loads(daemon.get("/report.json")[2])["required"] == ["qlora-70b"])
    config.write_text("requir = 1\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: "unknown key requir" in daemon.said())
    assert json.loads(daemon.get("/report.json")[2])["required"] == ["qlora-70b"]


def test_systemd_is_told(serve: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(path)
        channel.settimeout(10)
        daemon = serve("--fixture", "cpu-only", "--interval", "0.5", env={"NOTIFY_SOCKET": path})
        assert channel.recv(1000).startswith(b"READY=1")
        words = b""
        while b"WATCHDOG=1" not in words:
            words += channel.recv(1000)
        daemon.process.send_signal(signal.SIGTERM)
        while b"STOPPING=1" not in words:
            words += channel.recv(1000)


# --- the life of a finding ------------------------------------------------------------------------------------------------------------------


def finding(status: str) -> Finding:
    return Finding(check="gpu.x", component="gpu", title="x", device="gpu0", status=status, summary=status)  # type: ignore[arg-type]


def lived(memory: Lifecycle, statuses: str) -> str:
    """What stands after each pass: p passed, f failed, u unknown."""
    words = {"p": "passed", "f": "failed", "u": "unknown"}
    return "".join(memory.standing([finding(words[letter])], "boot")[0].status[0] for letter in statuses)


@pytest.mark.parametrize(
    ("passes", "stands"),
    [
        ("pppp", "pppp"),
        ("pfpfp", "pupup"),
        ("pffff", "pufff"),
        ("ffpppp", "ufffpp"),
        ("ffpfppp", "uffffff"[:5] + "fp"),
        ("ffuup", "uffff"),
        ("upup", "upup"),
    ],
)
def test_raised_after_two_cleared_after_three(passes: str, stands: str) -> None:
    assert lived(Lifecycle(None, raise_after=2, clear_after=3), passes) == stands


def test_a_reading_counts_once_however_often_it_is_published() -> None:
    memory = Lifecycle(None, raise_after=2, clear_after=3)

    def passes(status: str, again: bool) -> str:
        return memory.standing([finding(status)], "boot", lambda component: again)[0].status

    assert [passes("failed", again) for again in (True, False, False, True)] == ["unknown", "unknown", "unknown", "failed"]
    assert memory.unsettled == set()
    assert [passes("passed", again) for again in (True, False, True)] == ["failed", "failed", "failed"]
    assert memory.unsettled == {"gpu"}
    assert passes("passed", True) == "passed"
    assert memory.unsettled == set()


def test_a_finding_survives_a_restart_and_ends_with_the_boot(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    lived(Lifecycle(path), "ff")
    assert lived(Lifecycle(path), "p") == "f"
    assert Lifecycle(path).standing([finding("passed")], "another boot")[0].status == "passed"


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 99, "boot_id": "x", "lives": {}}', b"\xff\xfe", b"[]"])
def test_a_corrupt_memory_is_put_aside(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "findings.json"
    path.write_bytes(content)
    assert lived(Lifecycle(path), "p") == "p"
    assert (tmp_path / "findings.json.corrupt").read_bytes() == content
    assert "put aside" in caplog.text or "kept as" in caplog.text


def test_a_full_disk_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    memory_ = Lifecycle(None)
    memory_.path = Path("/proc/nowhere/findings.json")
    assert lived(memory_, "ff") == "uf"
    assert "cannot be written" in caplog.text


# --- the scheduler -----------------------------------------------------------------------------------------------------------------------


def test_a_hung_probe_is_stuck_then_stale_and_holds_up_nobody() -> None:
    from probe.dump import ReplayHost

    asked = []

    class Hung(ReplayHost):
        def nvml(self) -> list:  # type: ignore[type-arg]
            asked.append(self)
            threading.Event().wait(30)
            return []

    scheduler = Scheduler(lambda: Hung(load("dual-l40s")), deadline_seconds=0.1, intervals=dict.fromkeys(["nvml", "system"], 0.2))
    scheduler.start()
    time.sleep(1)
    health = {one.name: one for one in scheduler.health()}
    assert health["system"].success
    assert not health["nvml"].success
    assert len(asked) == 1, "it is never started a second time"
    now = time.monotonic()
    scheduler.clock = lambda: now + 20
    assert {one.name: one for one in scheduler.health()}["nvml"].stuck
    snapshot = scheduler.snapshot()
    assert snapshot.driver.broken_off
    assert isinstance(snapshot.memory.total_bytes, (int, Missing))
    scheduler.stop()


def test_a_stale_answer_is_dropped_not_frozen() -> None:
    from probe.dump import ReplayHost

    scheduler = Scheduler(lambda: ReplayHost(load("dual-l40s")), deadline_seconds=1, intervals={"system": 5.0})
    scheduler._once(scheduler.runs["system"])
    assert scheduler.snapshot().system.host_name == "dual-l40s"
    now = time.monotonic()
    scheduler.clock = lambda: now + 30
    assert isinstance(scheduler.snapshot().system.host_name, Missing)


def test_a_probe_that_raises_is_evidence() -> None:
    def broken() -> object:
        raise ZeroDivisionError("oops")

    scheduler = Scheduler(broken, deadline_seconds=1)  # type: ignore[arg-type]
    scheduler._once(scheduler.runs["system"])
    name = scheduler.snapshot().system.host_name
    assert isinstance(name, Missing)
    assert "ZeroDivisionError" in name.detail


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0, -1e9, 1e9])
def test_a_clock_that_jumps_changes_no_finding(jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the monotonic clock decides what is stale or stuck."""
    from probe.dump import ReplayHost

    scheduler = Scheduler(lambda: ReplayHost(load("hgx-h100+gpu-hot")), deadline_seconds=1)
    for run in scheduler.runs.values():
        scheduler._once(run)
    before = scheduler.snapshot()
    wall = time.time()
    monkeypatch.setattr(time, "time", lambda: wall + jump)
    assert scheduler.snapshot() == before
    assert scheduler.complete()
    for run in scheduler.runs.values():
        scheduler._once(run)
    assert scheduler.snapshot() == before
    assert all(one.success and not one.stuck for one in scheduler.health())


def test_what_is_from_the_future_is_not_fresh(tmp_path: Path, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A clock that was set back must not make a dead daemon's report, or an old handover, look new."""
    from probe.dump import ReplayHost
    from readiness.handover import HandoverHost, record_privileged

    kept = tmp_path / "report.json"
    kept.write_text(run("check", "--fixture", "hgx-h100", "--format", "json").stdout)
    assert run("check", "--cached", "--report-file", str(kept)).returncode == 0
    os.utime(kept, (time.time() + 3600,) * 2)
    done = run("check", "--cached", "--report-file", str(kept))
    assert done.returncode == 3
    assert "the clock was set back" in done.stderr
    given = tmp_path / "root.tar.gz"
    record_privileged(ReplayHost(load("hgx-h100")), given, "2026-12-01T00:00:00Z")
    assert HandoverHost(ReplayHost(load("hgx-h100")), given).recorded is not None
    os.utime(given, (time.time() + 3600,) * 2)
    assert HandoverHost(ReplayHost(load("hgx-h100")), given).recorded is None


# --- the handover ---------------------------------------------------------------------------------------------------------------------------


def test_what_root_read_is_handed_over(tmp_path: Path) -> None:
    from probe.dump import Failure, ReplayHost
    from readiness.handover import HandoverHost, record_privileged

    machine = load("hgx-h100")
    record_privileged(ReplayHost(machine), tmp_path / "root.tar.gz", "2026-12-01T00:00:00Z")
    record_privileged(ReplayHost(machine), tmp_path / "root.tar.gz", "2026-12-01T00:00:01Z")
    assert (tmp_path / "root.tar.gz").stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["root.tar.gz"]
    poor = load("hgx-h100")
    poor.files["/dev/kmsg"] = Failure("no_permission", "")
    for argv in list(poor.commands):
        if argv[0] in ("ipmitool", "smartctl", "dmidecode"):
            poor.commands[argv] = Failure("no_permission", "")
    from tests.conftest import judged

    assert {one.status for one in judged(poor).findings if one.check == "storage.smart"} == {"unknown"}
    from checks.catalog import workloads
    from checks.score import assess
    from probe.collect import collect

    rich = assess(collect(HandoverHost(ReplayHost(poor), tmp_path / "root.tar.gz")), workloads().values())
    assert msgspec.json.encode(rich) == msgspec.json.encode(judged("hgx-h100"))
    (tmp_path / "root.tar.gz").write_bytes(b"hostile")
    assert HandoverHost(ReplayHost(poor), tmp_path / "root.tar.gz").recorded is None
