"""Whole-process time and memory of `readiness check --fixture hgx-h100`, beside the bare interpreter in the same run.

    python benchmarks/check.py [rounds]

The rounds are interleaved, so that a slow moment of the machine hits all alike. Compare the ratios: the seconds depend on the machine.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "readiness --version": [sys.executable, "-m", "readiness", "--version"],
    "check --fixture hgx-h100 -q": [sys.executable, "-m", "readiness", "check", "--fixture", "hgx-h100", "-q"],
    "check --fixture hgx-h100": [sys.executable, "-m", "readiness", "check", "--fixture", "hgx-h100"],
    "check --fixture hgx-h100 --format json": [sys.executable, "-m", "readiness", "check", "--fixture", "hgx-h100", "--format", "json"],
    "check (this machine)": [sys.executable, "-m", "readiness", "check", "-q"],
}


def once(argv: list[str]) -> tuple[float, float, float]:
    """Seconds of wall clock and of CPU (children included), and the largest resident set in MiB."""
    started = time.monotonic()
    null = os.open(os.devnull, os.O_WRONLY)
    child = os.posix_spawn(argv[0], argv, dict(os.environ), file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
    _, _, usage = os.wait4(child, 0)
    os.close(null)
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, argv in COMMANDS.items():
            figures[name].append(once(argv))
    base = statistics.median(wall for wall, _, _ in figures["python -c pass"])
    print(f"{'':40} {'wall p50':>9} {'CPU p50':>9} {'RSS':>8} {'x bare':>7}   ({rounds} rounds)")
    for name, rows in figures.items():
        wall, cpu = (statistics.median(row[column] for row in rows) for column in (0, 1))
        print(f"{name:40} {wall:8.3f}s {cpu:8.3f}s {max(row[2] for row in rows):5.1f}MiB {wall / base:7.1f}")


if __name__ == "__main__":
    main()
