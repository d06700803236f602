"""Debian's Prometheus scrapes the daemon over TLS with a password; rules, alerts and every query of the dashboard against it."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from checks.score import CHECKS
from probe.dump import write
from readiness.fixtures import load
from tests.peers.conftest import Start, free_port, wait_for_port

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/readiness.json").read_text())

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")


def targets() -> list[tuple[str, str]]:
    """Every query of the dashboard, with its panel's title."""
    return [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def test_the_rules_and_their_tests() -> None:
    for argv in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(["promtool", *argv], cwd=RULES.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_runbook_exists() -> None:
    checks = {check.id for check in CHECKS}
    for name in re.findall(r"runbook: \"readiness explain ([\w.]+)\"", RULES.read_text()):
        assert name in checks, name
    for name in re.findall(r'check="([\w.]+)"', RULES.read_text()):
        assert name in checks, name


def test_the_dashboard_keeps_the_rules_of_dashboards() -> None:
    assert not DASHBOARD["editable"]
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} >= {"datasource", "job", "instance"}
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert "$job" in target["expr"], target["expr"]
            if "_total" in target["expr"]:
                assert "rate(" in target["expr"]
                assert "$__rate_interval" in target["expr"]


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self.port = port

    def api(self, path: str, **query: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
        return json.loads(connection.getresponse().read())

    def ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/-/ready")
        return connection.getresponse().status == 200

    def value(self, expression: str) -> float | None:
        result = self.api("query", query=expression)["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def firing(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self.api("alerts")["data"]["alerts"] if alert["state"] == "firing"}

    def until(self, condition: Callable[[], bool], seconds: float = 40) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, json.dumps(self.api("targets")["data"]["activeTargets"], indent=1)[:2000]
            time.sleep(0.3)


def test_scraped_over_tls_with_a_password(start: Start, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "1"]
    subprocess.run([*command, "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"], cwd=tmp_path, check=True, capture_output=True)
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(
        f"tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\nbasic_auth_users:\n  prometheus: {hashed}\n"
    )
    dump = tmp_path / "dump.tar.gz"
    write(load("hgx-h100"), dump)
    port, own = free_port(), free_port()
    start(
        sys.executable, "-m", "readiness", "serve", "--listen", f"127.0.0.1:{port}", "--fixture", str(dump), "--interval", "0.5",
        "--raise-after", "1", "--clear-after", "1", "--web-config", str(tmp_path / "web.yml"),
    )  # fmt: skip
    wait_for_port(port)
    rules = re.sub(r"for: \d+[ms]+", "for: 1s", RULES.read_text())
    (tmp_path / "rules.yml").write_text(rules)
    (tmp_path / "prometheus.yml").write_text(
        f"""global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: readiness
    scheme: https
    tls_config: {{ca_file: {tmp_path}/cert.pem}}
    basic_auth: {{username: prometheus, password: right}}
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
    )
    start(
        "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{own}", "--log.level=warn",
    )  # fmt: skip
    wait_for_port(own)
    prometheus = Prometheus(own)
    end = time.monotonic() + 20
    while not prometheus.ready():
        assert time.monotonic() < end
        time.sleep(0.2)

    prometheus.until(lambda: prometheus.value("readiness_node_ready") == 1)
    prometheus.until(lambda: prometheus.value("count(readiness_nvme_wear_ratio)") == 10)
    assert prometheus.value("count(readiness_gpu_present == 1)") == 8
    assert prometheus.value('readiness_score_ratio{workload="qlora-70b"}') == 1
    assert prometheus.value('sum(readiness_rdma_port_rate_bytes_per_second{device="mlx5_0"})') == 50e9
    assert prometheus.value('readiness_ups_runtime_seconds{device="feed-a"}') == 900
    assert prometheus.api("targets")["data"]["activeTargets"][0]["lastError"] == ""
    # every query of the dashboard is understood, and returns data
    time.sleep(3)
    for title, expression in targets():
        query = expression.replace("$job", ".+").replace("$instance", ".+").replace("$__rate_interval", "10s")
        answer = prometheus.api("query", query=query)
        assert answer["status"] == "success", (title, answer)
        assert answer["data"]["result"], (title, query)
    assert not prometheus.firing()

    dump.unlink()
    write(load("hgx-h100+gpu-lost+ups-on-battery"), dump)
    prometheus.until(lambda: prometheus.firing() >= {"GpuNodeNotReady", "GpuLost", "UpsOnBattery"})
    dump.unlink()
    write(load("hgx-h100"), dump)
    prometheus.until(lambda: not prometheus.firing() & {"GpuNodeNotReady", "GpuLost", "UpsOnBattery"})
    prometheus.until(lambda: prometheus.value("readiness:nodes_ready:count") == 1)  # rules of one group run after one another
