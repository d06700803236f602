"""The directions of imports, and what a command may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "probe": {"probe"},
    "checks": {"checks", "probe"},
    "reports": {"reports", "checks", "probe"},
    "readiness": {"readiness", "reports", "checks", "probe"},
}
MAY_CATCH_EVERYTHING = {
    "readiness/daemon.py",
    "readiness/scheduler.py",
    "probe/collect.py",
    "probe/nvml_sweep.py",
    "checks/finding.py",
    "readiness/cli.py",
}
MODULES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_directions(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for name in names:
            top = name.split(".")[0]
            assert top not in ALLOWED or top in ALLOWED[package], f"{path}:{node.lineno} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_seams_catch_everything(path: Path) -> None:
    broad = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
        and not any(isinstance(inside, ast.Raise) and inside.exc is None for inside in node.body)
    ]
    assert not broad or str(path.relative_to(ROOT)) in MAY_CATCH_EVERYTHING, broad


def test_the_sweep_imports_nothing_of_ours() -> None:
    tree = ast.parse((ROOT / "probe/nvml_sweep.py").read_text())
    imported = {name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in [node.module or ""]}
    assert not imported & set(ALLOWED)


def loaded(*argv: str) -> str:
    """The names of all modules that a command has loaded at its end."""
    code = (
        f"import sys; sys.argv = ['readiness', *{argv!r}]\n"
        "from readiness.cli import main\ntry: main()\nexcept SystemExit: pass\nprint(sorted(sys.modules), file=sys.stderr)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["check", "--help"]])
def test_help_loads_little(argv: list[str]) -> None:
    modules = loaded(*argv)
    for heavy in ("'rich.console'", "'msgspec'", "'probe.host'", "'checks.score'", "'pynvml'", "'psutil'", "'tomllib'"):
        assert heavy not in modules, heavy


def test_a_replay_loads_neither_psutil_nor_subprocess_nor_pynvml() -> None:
    modules = loaded("check", "--fixture", "hgx-h100", "--format", "json", "-q")
    for heavy in ("'rich.console'", "'pynvml'", "'psutil'", "'subprocess'", "'asyncio'", "'prometheus_client'", "'cpuinfo'"):
        assert heavy not in modules, heavy
