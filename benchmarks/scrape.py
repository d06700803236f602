"""Scrapes side by side: readiness, Debian's prometheus-node-exporter, and a plain prometheus-client server with as many series.

    python benchmarks/scrape.py [seconds]

Each server runs on loopback in a process of its own; scrapes are what Prometheus sends (gzip accepted), closed loop, at 1 and 16 clients, a
few seconds a point, interleaved. CPU and memory are those of the server's process over `seconds` (default 60) in which it is scraped every
15 s. Compare the columns: the figures depend on the machine.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HEADERS = {"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"}
POINT_SECONDS = 3.0
PLAIN = """
import sys, time
from prometheus_client import start_http_server, CollectorRegistry, Gauge
registry = CollectorRegistry()
for family in range(10):
    gauge = Gauge(f"plain_family_{family}", "text", ["gpu", "gpu_uuid", "device"], registry=registry)
    for number in range(int(sys.argv[2]) // 10):
        gauge.labels(str(number % 8), f"GPU-{number:032x}", f"device{number}").set(number)
start_http_server(int(sys.argv[1]), addr="127.0.0.1", registry=registry)
time.sleep(10**6)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server under test, and what its process has used."""

    def __init__(self, name: str, argv: list[str], port: int) -> None:
        self.name, self.port = name, port
        started = time.monotonic()
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                if scrape(self.port) == 200:
                    break
            except OSError:
                pass
            time.sleep(0.005)
        self.first_seconds = time.monotonic() - started

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # children that were waited for count too

    def resident_mib(self) -> float:
        return (
            int(
                next(
                    line.split()[1]
                    for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
                    if line.startswith("VmRSS")
                )
            )
            / 1024
        )


def scrape(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers=HEADERS)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def point(port: int, clients: int) -> tuple[float, float, float]:
    """Median and 99th percentile in milliseconds, and scrapes a second, of a closed loop over kept connections."""
    times: list[list[float]] = [[] for _ in range(clients)]
    end = time.monotonic() + POINT_SECONDS

    def client(mine: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while time.monotonic() < end:
            started = time.perf_counter()
            connection.request("GET", "/metrics", headers=HEADERS)
            connection.getresponse().read()
            mine.append(time.perf_counter() - started)

    threads = [threading.Thread(target=client, args=(mine,)) for mine in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = sorted(one for mine in times for one in mine)
    return statistics.median(every) * 1000, every[int(len(every) * 0.99)] * 1000, len(every) / POINT_SECONDS


def series(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    return sum(not line.startswith(b"#") for line in connection.getresponse().read().splitlines())


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    ports = [free_port() for _ in range(3)]
    servers = [
        Server(
            "readiness",
            [sys.executable, "-m", "readiness", "serve", "--fixture", "hgx-h100", "--listen", f"127.0.0.1:{ports[0]}"],
            ports[0],
        )
    ]
    servers.append(Server("plain prometheus-client", [sys.executable, "-c", PLAIN, str(ports[1]), str(series(ports[0]))], ports[1]))
    exporter = shutil.which("prometheus-node-exporter")
    if exporter:
        servers.append(Server("node_exporter", [exporter, f"--web.listen-address=127.0.0.1:{ports[2]}"], ports[2]))
    before = [server.cpu_seconds() for server in servers]
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        for server in servers:
            scrape(server.port)
        time.sleep(min(15.0, max(0.0, seconds - (time.monotonic() - started))))
    elapsed = time.monotonic() - started
    used = [(server.cpu_seconds() - spent) / elapsed * 100 for server, spent in zip(servers, before, strict=True)]
    resident = [server.resident_mib() for server in servers]
    print(
        f"{'':24} {'series':>7} {'first':>7} {'RSS':>8} {'CPU':>7} | "
        f"{'p50':>7} {'p99':>7} {'1/s':>7} (1 client) | {'p50':>7} {'p99':>7} {'1/s':>7} (16 clients)"
    )
    for server, share, memory in zip(servers, used, resident, strict=True):
        one, many = point(server.port, 1), point(server.port, 16)
        print(
            f"{server.name:24} {series(server.port):7} {server.first_seconds:6.2f}s {memory:5.1f}MiB {share:6.2f}% | "
            f"{one[0]:7.2f} {one[1]:7.2f} {one[2]:7.0f}            | {many[0]:7.2f} {many[1]:7.2f} {many[2]:7.0f}"
        )
        server.process.kill()


if __name__ == "__main__":
    main()
