"""What the README shows is what the program does."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_output_is_real(run: Run) -> None:
    command = re.search(r"^    \$ readiness (.+)$", README, re.MULTILINE)
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert command
    assert shown
    real = run(*command[1].split()).stdout
    if os.environ.get("UPDATE_GOLDEN"):
        (ROOT / "README.md").write_text(README.replace(shown[1], real))
        return
    assert real == shown[1]


@pytest.mark.parametrize("argv", sorted(set(re.findall(r"readiness (check --fixture [a-z][\w+-]+)(?=\n|`)", README))))
def test_the_commands_work(argv: str, run: Run) -> None:
    assert run(*argv.split()).returncode in (0, 1, 2, 3)


def test_the_configuration_is_valid(run: Run, tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    assert example
    (tmp_path / "site.toml").write_text(example[1].replace('password_file = "/etc/readiness/bmc.password"', ""))
    assert run("check", "-q", "--fixture", "hgx-h100", "--config", str(tmp_path / "site.toml")).returncode == 0
