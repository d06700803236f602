"""The program as its users run it: exit codes, one-line errors, bad input, interrupts, pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from checks.thresholds import Thresholds
from readiness import cli as program
from readiness.fixtures import machines

Run = Callable[..., subprocess.CompletedProcess[str]]


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Errors are one line on stderr, and never a traceback."""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("readiness: ")
    return done.stderr


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["hgx-h100"], 0),
        (["hgx-h100", "--require", "full-70b"], 1),
        (["hgx-h100", "--require", "full-70b", "--fail-on", "warn"], 2),
        (["hgx-h100+power-limit"], 1),
        (["hgx-h100+gpu-lost"], 2),
        (["hgx-h100+no-permission"], 3),
        (["hgx-h100+no-permission", "--fail-on", "unknown"], 2),
        (["quad-4090"], 2),
        (["quad-4090", "--require", "qlora-70b-offload"], 0),
        (["quad-4090", "--workload", "qlora-70b-offload"], 0),
        (["quad-4090", "--workload", "qlora-70b-offload", "--workload", "qlora-70b"], 2),
        (["quad-4090", "--workload", "lora-8b", "--require", "qlora-70b"], 2),
        (["quad-4090", "--require", "qlora-70b-offload", "--require", "full-70b"], 2),
        (["cpu-only"], 2),
        (["hgx-h100+driver-missing"], 2),
        (["hgx-h100+ecc-off", "--accept", "gpu.ecc_mode=known, RMA on its way"], 0),
        (["hgx-h100+power-limit", "--exit-code", "gate"], 0),
        (["hgx-h100+power-limit", "--exit-code", "gate", "--fail-on", "warn"], 1),
        (["hgx-h100+gpu-lost", "--exit-code", "gate"], 1),
        (["hgx-h100+no-permission", "--exit-code", "gate"], 2),
        (["hgx-h100+pcie-x8", "--skip", "pcie.width"], 0),
        (["hgx-h100", "--skip", "gpu"], 3),
        (["hgx-h100+gpu-lost", "--only", "pcie"], 3),
        (["hgx-h100+pcie-x8", "--only", "pcie"], 2),
    ],
)
def test_exit_codes(argv: list[str], code: int, run: Run) -> None:
    done = run("check", "-q", "--fixture", *argv)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["check", "--workload", "qlora-7b"], 64, "did you mean qlora-70b"),
        (["check", "--require", "chess"], 64, "known: full-70b"),
        (["check", "--only", "gpu.row_remp"], 64, "did you mean gpu.row_remap"),
        (["check", "--skip", "gpuu"], 64, "did you mean gpu"),
        (["check", "--accept", "gpu.ecc_mode"], 64, "a reason is needed"),
        (["check", "--accept", "gpu.ecc=x"], 64, "did you mean gpu.ecc"),
        (["check", "--nodes", "0"], 64, "--nodes"),
        (["check", "--timeout", "-1"], 64, "--timeout"),
        (["check", "--format", "pdf"], 64, "--format"),
        (["check", "--no-such-option"], 64, "--no-such-option"),
        (["check", "--root", "/no/such/folder"], 64, "does not exist"),
        (["check", "--root", ""], 64, "does not exist"),
        (["check", "--fixture", "cpu-only", "--root", "/"], 64, "--root"),
        (["check", "--timeout", "nan"], 64, "is not a number"),
        (["check", "--accept", "gpu.power_limit[gpu3=x"], 64, "in brackets"),
        (["check", "--record", "/no/such/folder/dump"], 64, "cannot write"),
        (["check", "--config", "/dev/zero"], 65, "not a regular file"),
        (["record", ".tar.gz"], 64, "needs a name"),
        (["record", "/no/such/folder/dump"], 64, "cannot write"),
        (["check", "--fixture", "hgx-h10"], 64, "did you mean hgx-h100"),
        (["check", "--fixture", "hgx-h100+nvlink-dwn"], 64, "did you mean nvlink-down"),
        (["check", "--fixture", "/no/such/dump"], 65, "no such dump"),
        (["check", "--fixture", "no-such.tar.gz"], 65, "no such dump"),
        (["check", "--fixture", "/dev/null"], 65, "/dev/null"),
        (["check", "--fixture", "/etc"], 65, "manifest.json"),
        (["check", "--config", "/no/such/file"], 65, "/no/such/file"),
        (["check", "--fixture", "cpu-only", "--record", "x"], 64, "--record"),
        (["check", "--fixture", "cpu-only", "--output", "/no/such/folder/report"], 64, "cannot write"),
        (["explain", "gpu.rowremap"], 64, "did you mean gpu.row_remap"),
        (["frobnicate"], 64, "frobnicate"),
        (["record"], 64, "DUMP"),
        (["record", "/tmp"], 64, "exists already"),
    ],
)
def test_wrong_usage_and_bad_input(argv: list[str], code: int, words: str, run: Run) -> None:
    done = run(*argv)
    assert done.returncode == code
    assert words in one_line(done)


@pytest.mark.parametrize(
    ("toml", "code", "words"),
    [
        ("workload = ['full-70b']", 64, "unknown key workload: did you mean workloads?"),
        ("workloads = ['full-70x']", 64, "did you mean full-70b"),
        ("workloads = 'full-70b'", 65, "workloads"),
        ("nodes = 2", 64, "unknown key nodes"),
        ("[site]\nnodes = 'two'", 65, "site.nodes"),
        ("[site]\nnodes = 0", 65, "site.nodes"),
        ("[site.pdu]\nvolt = 230", 64, "unknown key site.pdu.volt: did you mean volts?"),
        ("[site]\ncooling = 'ice'", 65, "site.cooling"),
        ("[[ups]]\nname = 'a'\nprotocol = 'telepathy'\naddress = 'x'", 65, "ups"),
        ("[[bmc]]\nname = 'a'\naddress = 'x'\npassword = 'secret'", 64, "unknown key bmc.password"),
        ("fail_on = 'sometimes'", 65, "fail_on"),
        ("[thresholds]\ninlet_warning = 30", 64, "unknown key thresholds.inlet_warning: did you mean inlet_warning_celsius"),
        ("[thresholds]\nups_load_share = 80", 65, "thresholds.ups_load_share"),
        ("[thresholds]\nlink_flaps = 'many'", 65, "thresholds.link_flaps"),
        ("[thresholds]\ninlet_limit_celsius = nan", 65, "thresholds.inlet_limit_celsius"),
        ("[[bmc]]\nname = 'b'\naddress = 'https://root:secret@10.0.0.5'", 65, "do not belong into the address"),
        ("[thresholds]\nair_limit_watts = inf", 65, "thresholds.air_limit_watts"),
        ("[thresholds]\ninlet_warning_celsius = 40", 65, "inlet_warning_celsius is above thresholds.inlet_limit_celsius"),
        ("accept = {'gpu.nothing' = 'x'}", 64, "unknown check"),
        ("workloads = [", 65, "Invalid value"),
        ("a = " + "[" * 5000, 65, "nested too deeply"),
        ("timeout_seconds = nan", 65, "timeout_seconds"),
        ("accept = {'gpu.ecc_mode' = ''}", 65, "accept"),
        ("\xff\xfe", 65, ""),
    ],
)
def test_a_wrong_configuration(toml: str, code: int, words: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_bytes(toml.encode("latin-1"))
    done = run("check", "--fixture", "hgx-h100", "--config", str(path))
    assert done.returncode == code
    line = one_line(done)
    assert words in line
    if code == 65:
        assert str(path) in line


@pytest.mark.parametrize(
    ("fixture", "override", "check", "before", "after"),
    [
        ("hgx-h100", "inlet_warning_celsius = 10", "cooling.inlet", "passed", "warned"),
        ("hgx-h100", "inlet_warning_celsius = 5\ninlet_limit_celsius = 10", "cooling.inlet", "passed", "failed"),
        ("hgx-h100", "supply_headroom_share = 1.0", "power.headroom", "passed", "warned"),
        ("hgx-h100", "root_free_share = 1.0", "storage.root", "passed", "warned"),
        ("hgx-h100", "nvml_sweep_seconds = 0.0001", "driver.responsive", "passed", "warned"),
        ("hgx-h100", "shm_bytes = 9000000000000", "memory.shm", "passed", "warned"),
    ],
)
def test_a_site_sets_its_own_thresholds(fixture: str, override: str, check: str, before: str, after: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f"[thresholds]\n{override}\n")
    plain = json.loads(run("check", "--fixture", fixture, "--format", "json").stdout)
    own = json.loads(run("check", "--fixture", fixture, "--format", "json", "--config", str(path)).stdout)
    statuses = [[one["status"] for one in report["findings"] if one["check"] == check] for report in (plain, own)]
    assert statuses == [[before], [after]]
    assert plain["thresholds"] == {}
    name = override.split(" =")[0]
    assert "(default " in own["thresholds"][name]
    words = " ".join(run("check", "--fixture", fixture, "--config", str(path)).stdout.split())
    assert f"{name} {own['thresholds'][name]}" in words


def test_every_threshold_is_used_by_a_check_and_stands_in_the_template(run: Run) -> None:
    code = "".join(path.read_text() for path in Path("checks").glob("*.py"))
    template = run("config", "--template").stdout
    for name in Thresholds.__struct_fields__:
        assert f"node.thresholds.{name}" in code
        assert f"# {name} = {getattr(Thresholds(), name)}\n" in template


def test_the_configuration_counts_and_the_command_line_goes_before_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        "require = ['full-70b']\nworkloads = ['full-70b', 'lora-8b']\naccept = {'gpu.ecc_mode' = 'site rule 7'}\nfail_on = 'warn'\n"
    )
    done = run("check", "--fixture", "hgx-h100+ecc-off", "--config", str(path), "--format", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["required"]) == (2, ["full-70b"])
    assert [one["workload"] for one in report["workloads"]] == ["full-70b", "lora-8b"]
    assert [one["accepted"] for one in report["findings"] if one["accepted"]] == ["site rule 7"]
    assert run("check", "-q", "--fixture", "hgx-h100", "--config", str(path), "--require", "lora-8b").returncode == 0


@pytest.mark.parametrize("name", machines())
def test_the_json_report_keeps_its_schema(name: str, run: Run) -> None:
    schema = json.loads(run("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    done = run("check", "--fixture", name, "--format", "json")
    report = json.loads(done.stdout)
    jsonschema.validate(report, schema)
    assert report["exit_code"] == done.returncode
    assert report["schema"] == "readiness.report/v1"


def test_a_dump_of_this_machine(run: Run, tmp_path: Path) -> None:
    for form in ("dump", "dump.tar.gz"):
        recorded = run("record", str(tmp_path / form))
        assert recorded.returncode == 0, recorded.stderr
        assert "redacted" in recorded.stderr
        done = run("check", "--fixture", str(tmp_path / form))
        assert "REPLAY of" in done.stdout
        assert done.returncode in (0, 1, 2, 3)
        host = os.uname().nodename
        assert host not in done.stdout.splitlines()[2].split()


def test_check_and_record_in_one(run: Run, tmp_path: Path) -> None:
    live = json.loads(run("check", "--format", "json", "--record", str(tmp_path / "dump")).stdout)
    replayed = json.loads(run("check", "--format", "json", "--fixture", str(tmp_path / "dump")).stdout)
    assert replayed["findings"] == live["findings"]
    assert replayed["workloads"] == live["workloads"]
    assert (live["source"]["kind"], replayed["source"]["kind"]) == ("live", "replay")
    assert replayed["source"]["recorded_at"] == live["source"]["recorded_at"]
    assert replayed["source"]["redacted"]


def test_output_follows_a_link_and_never_replaces_a_device(run: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("report.txt")
    (tmp_path / "report.txt").write_text("old")
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("link", "device"):
        assert run("check", "--fixture", "hgx-h100", "--output", str(tmp_path / name)).returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert "READY" in (tmp_path / "report.txt").read_text()
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("check --fixture hgx-h100 >&-", 0),
        ("check --fixture hgx-h100 2>&- >/dev/null", 0),
        ("check --fixture hgx-h100+nvlink-down 0<&- >&- 2>&-", 2),
        ("check --fixture hgx-h100 >/dev/full", 64),
        ("explain >/dev/full", 64),
        ("check --fixture nope 2>/dev/full", 64),
        ("check --fixture nope 2>&-", 64),
        ("schema | true", 0),
        ("check --fixture hgx-h100 --only driver --accept gpu.power_limit=x -q", 3),
    ],
)
def test_streams_that_are_closed_or_full(command: str, code: int) -> None:
    script = f"{sys.executable} -m readiness {command}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_pipe_for_a_configuration_does_not_hang(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = run("check", "--fixture", "hgx-h100", "--config", str(tmp_path / "pipe"))
    assert done.returncode == 65
    assert "not a regular file" in one_line(done)


def test_a_narrow_locale(run: Run) -> None:
    done = run("fixtures", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"})
    assert done.returncode == 0


def test_output_goes_into_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    done = run("check", "--fixture", "hgx-h100", "--format", "json", "--output", str(path))
    assert done.stdout == ""
    assert json.loads(path.read_text())["verdict"] == "READY"
    assert os.listdir(tmp_path) == ["report.json"]


def test_an_error_is_json_where_json_was_asked_for(run: Run) -> None:
    done = run("check", "--fixture", "/no/such/dump", "--format", "json")
    assert json.loads(done.stdout)["exit_code"] == 65


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m readiness check --fixture hgx-h100 -vv; echo $? >&2"
    done = subprocess.run(["bash", "-c", f"({command}) | head -n 1"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("READY")
    assert done.stderr == "0\n"


@pytest.mark.parametrize(("number", "code", "words"), [(signal.SIGINT, 130, "\nreadiness: interrupted\n"), (signal.SIGTERM, 143, "")])
def test_interrupt_ends_the_children(number: signal.Signals, code: int, words: str, tmp_path: Path) -> None:
    """Ctrl-C or SIGTERM while the library hangs: no traceback, and the child is gone."""
    import shutil

    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source = Path(__file__).parents[1] / "nvml_standin" / "standin.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "NVML_STANDIN": "hang:0"}
    child = subprocess.Popen(
        [sys.executable, "-m", "readiness", "check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a shell ignores it in the background
    )
    time.sleep(2)
    sweeps = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _parent(int(pid)) == child.pid]
    assert sweeps
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (code, "", words)
    time.sleep(0.3)
    assert not [pid for pid in sweeps if _parent(pid) is not None]


def _parent(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[1])


def test_a_fault_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["readiness", "check", "--fixture", "hgx-h100"])
    monkeypatch.setattr("checks.score.overall", lambda *_: 1 / 0)
    with pytest.raises(SystemExit) as end:
        program.main()
    assert end.value.code == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.fixture
def invoke() -> Callable[..., Result]:
    return lambda *argv: CliRunner().invoke(program.cli, argv)


def test_explain(invoke: Callable[..., Result]) -> None:
    listed = invoke("explain").output
    assert "gpu.row_remap" in listed
    told = invoke("explain", "gpu.row_remap").output
    for words in ("nvmlDeviceGetRemappedRows", "512", "Source: ", "RMA"):
        assert words in told


def test_fixtures(invoke: Callable[..., Result]) -> None:
    listed = invoke("fixtures").output
    assert "hgx-h100 " in listed
    assert "+nvlink-down " in listed


def test_completion(run: Run) -> None:
    done = run(env={"_READINESS_COMPLETE": "bash_source"})
    assert "complete" in done.stdout


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("workloads = ['full-7b']", "unknown workload"),
        ("skip = ['gpu.tea']", "unknown check"),
        ("[accept]\n'gpu.tea' = 'x'", "unknown check"),
    ],
)
def test_the_configuration_is_shown_only_if_it_can_be_in_force(toml: str, words: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "readiness.toml").write_text(toml)
    done = run("config", "--config", str(tmp_path / "readiness.toml"))
    assert (done.returncode, done.stdout) == (64, "")
    assert words in one_line(done)


def test_what_is_said_of_the_place_goes_before_the_recording(run: Run, tmp_path: Path) -> None:
    (tmp_path / "readiness.toml").write_text("[site]\ncooling = 'air'\nnodes = 2\n")
    argv = ("check", "--fixture", "dgx-pair-a", "--only", "cooling.design", "--format", "json")
    found = [
        {one["check"]: one["status"] for one in json.loads(run(*argv, *more).stdout)["findings"]}["cooling.design"]
        for more in ((), ("--config", str(tmp_path / "readiness.toml")))
    ]
    assert found == ["passed", "warned"]
    alone = json.loads(run("check", "--fixture", "hgx-h100", "--only", "cooling", "--format", "json").stdout)
    two = json.loads(run("check", "--fixture", "hgx-h100", "--only", "cooling", "--nodes", "2", "--format", "json").stdout)
    summaries = [next(one["summary"] for one in report["findings"] if one["check"] == "cooling.design") for report in (alone, two)]
    assert summaries[0] != summaries[1]


@pytest.mark.parametrize(
    ("fixture", "words"),
    [
        ("quad-4090+ups-on-battery", "quad-4090 has nothing that ups-on-battery could befall: lay it over hgx-h100"),
        ("cpu-only+row-remap-pending", "lay it over hgx-h100"),
        ("dual-l40s+fabric-manager-dead", "lay it over hgx-h100"),
        ("hgx-h100-roce+ib-port-down+ib-port-down", "ib-port-down changes nothing"),
    ],
)
def test_a_fault_needs_its_part(fixture: str, words: str, run: Run) -> None:
    done = run("check", "--fixture", fixture)
    assert (done.returncode, done.stdout) == (64, "")
    assert words in one_line(done)


def test_a_bundled_machine_can_be_written_out_and_changed(run: Run, tmp_path: Path) -> None:
    dump = tmp_path / "mine"
    done = run("fixtures", "quad-4090+gpu-lost", str(dump))
    assert (done.returncode, done.stdout) == (0, "")
    mine, bundled = (json.loads(run("check", "--fixture", name, "--format", "json").stdout) for name in (str(dump), "quad-4090+gpu-lost"))
    assert mine["findings"] == bundled["findings"]
    assert run("fixtures", "quad-4090", str(dump)).returncode == 64
    assert run("fixtures", "quad-4090").returncode == 64
    assert run("fixtures", "quad-4091", str(tmp_path / "other")).returncode == 64
