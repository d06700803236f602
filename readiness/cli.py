"""The command line. Each command imports what it uses when it runs, so that `--help` and completion stay quick.

Exit codes of `check`: 0 ready, 1 ready with warnings, 2 not ready, 3 unknown (or with `--exit-code gate`: 0 may run, 1 must not, 2 could
not tell); of every command: 64 wrong usage, 65 bad input, 70 a fault of this tool, 130 interrupted.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from readiness import __version__

if TYPE_CHECKING:
    from checks.catalog import Architecture
    from checks.plan import Planned
    from probe.dump import Dump
    from probe.host import Host
    from readiness.config import Config
    from readiness.judge import Wanted
    from reports.document import Report, Source

NOT_READY = 2
USAGE, BAD_INPUT, INTERNAL, INTERRUPTED = 64, 65, 70, 130
CACHED_OPTIONS = ("cached", "max_age", "report_file", "form", "codes", "quiet", "color", "verbose")
"""What may go with --cached: everything else would change the question, which the daemon has answered already."""
SMALLEST_OPTIONS = ("model", "method", "sequence", "micro_batch", "form", "verbose")
"""What `plan` without a card may be told: everything else describes a machine."""
DEFAULT_TIMEOUT_SECONDS = 10.0
HANDED_OVER = Path("/run/readiness-root/root.tar.gz")
CACHED_REPORT = Path("/run/readiness/report.json")
AFTER_DEADLINE_SECONDS = 0.7
"""What the probes get beyond the deadline of each child, to kill it and to say so."""


class Wrong(click.ClickException):
    """An end with one line on stderr and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click documents it as an attribute


class Seconds(click.FloatRange):
    """A time: a number in a range, and not `nan`, which is in none and outside none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Tokens(click.ParamType[int]):
    """A number of tokens: 1000000000, 1e9, 2.5B."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)(?:e(\d{1,2}))?\s*([kmbt]?)", str(value).strip().lower().replace(",", ""))
        number = float(match[1]) * 10 ** int(match[2] or 0) * 1000 ** " kmbt".index(match[3] or " ") if match else 0
        if not 1 <= number < 1e18:
            self.fail(f"{value!r} is not a number of tokens, as 1e9 or 2.5B.", param, ctx)
        return int(number)


ROOT = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="readiness")
def cli() -> None:
    """Is this GPU server ready to fine-tune a 70B model?"""


@cli.command()
@click.option(
    "--fixture",
    metavar="DUMP",
    help="Judge a recorded machine instead: a dump's folder or .tar.gz, or a bundled machine (see: readiness fixtures).",
)
@click.option("--workload", "workloads", multiple=True, metavar="ID", help="Judge only these workloads (repeatable).")
@click.option(
    "--require", multiple=True, metavar="ID", help="What the exit code speaks of (repeatable; default qlora-70b, or what --workload names)."
)
@click.option("--nodes", type=click.IntRange(1, 10_000), metavar="N", help="How many such nodes a cluster workload has.")
@click.option("--format", "form", type=click.Choice(["terminal", "json"]), default="terminal", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the report there instead of to stdout.")
@click.option(
    "--timeout",
    type=Seconds(0.1, 3600),
    metavar="SECONDS",
    help=f"How long each source may take (default {DEFAULT_TIMEOUT_SECONDS:g}).",
)
@click.option("--root", type=ROOT, metavar="DIR", help="Where the machine's / is mounted (in a container).")
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="The site's configuration (default /etc/readiness/readiness.toml)."
)
@click.option("--only", multiple=True, metavar="CHECK", help="Run only these checks or components (repeatable).")
@click.option("--skip", multiple=True, metavar="CHECK", help="Leave out these checks or components (repeatable).")
@click.option("--accept", multiple=True, metavar="CHECK=REASON", help="Live with a fault; the reason stays in the report (repeatable).")
@click.option("--fail-on", type=click.Choice(["fail", "unknown", "warn"]), help="What makes a node not ready (default: fail).")
@click.option(
    "--exit-code",
    "codes",
    type=click.Choice(["verdict", "gate"]),
    default="verdict",
    show_default=True,
    help="verdict: 0/1/2/3; gate: 0 may run, 1 must not, 2 could not tell.",
)
@click.option("--record", type=click.Path(path_type=Path), metavar="DUMP", help="Also record what this check saw.")
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write readiness.prom there, for node_exporter's textfile collector.",
)
@click.option("--cached", is_flag=True, help="Answer from the daemon's last report, without asking the machine (Slurm prologs).")
@click.option(
    "--max-age",
    type=Seconds(0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How old a cached report may be; an older one is unknown.",
)
@click.option(
    "--report-file",
    type=click.Path(path_type=Path),
    default=CACHED_REPORT,
    show_default=True,
    metavar="FILE",
    help="Where the daemon keeps it.",
)
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code tells.")
@click.option("-v", "--verbose", count=True, help="Show every check (-vv: with its evidence).")
def check(**given: Any) -> None:
    """Judge this machine, or a recorded one, and print the report."""
    if given["cached"]:
        asked = click.get_current_context().get_parameter_source
        foreign = [name for name in given if name not in CACHED_OPTIONS and asked(name) == ParameterSource.COMMANDLINE]
        if foreign:
            raise Wrong(f"--cached gives the daemon's report as it stands; it has no use with --{foreign[0].replace('_', '-')}", USAGE)
        _cached(given)
    config = _config(given["config"])
    want = _wanted(config, given)
    timeout = given["timeout"] or config.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    if given["fixture"] is not None and (given["record"] is not None or given["root"] is not None):
        raise Wrong("--record and --root are for a machine that is asked; they have no use with --fixture", USAGE)
    if given["record"] is not None:
        _recordable(given["record"])

    host, source = _host(given["fixture"], given["root"], timeout, config, given["config"])
    recording = _recording(host, source) if given["record"] is not None else None
    from readiness.judge import judge

    report = judge(_collect(recording or host, timeout), want, source)
    if recording is not None:
        _write_dump(recording.dump, given["record"], redacted=True)
    if given["textfile"] is not None:
        _write_textfile(report, given["textfile"])
    elif not given["quiet"] or given["output"] is not None:
        _show(report, given)
    _leave(report.exit_code)


@cli.command()
@click.argument("dump", type=click.Path(path_type=Path))
@click.option("--no-redact", is_flag=True, help="Keep serial numbers, UUIDs, addresses and names.")
@click.option("--root", type=ROOT, metavar="DIR", help="Where the machine's / is mounted (in a container).")
@click.option("--timeout", type=Seconds(0.1, 3600), default=DEFAULT_TIMEOUT_SECONDS, show_default=True, metavar="SECONDS")
@click.option("--config", "config_path", type=click.Path(path_type=Path), metavar="FILE", help="The site's configuration: UPSs, BMC, site.")
def record(dump: Path, no_redact: bool, root: Path | None, timeout: float, config_path: Path | None) -> None:
    """Record this machine into DUMP: a folder, or an archive if its name ends in .tar.gz. Redacted unless told otherwise."""
    _recordable(dump)
    config = _config(config_path)
    host, source = _host(None, root, timeout, config, config_path)
    recording = _recording(host, source)
    _collect(recording, timeout)
    _write_dump(recording.dump, dump, redacted=not no_redact)
    kept = "not redacted: it holds serial numbers, UUIDs, addresses and names" if no_redact else "redacted"
    click.echo(f"{dump}: recorded, {kept}; replay it with: readiness check --fixture {dump}", err=True)
    _leave(0)


@cli.command()
@click.argument("check", required=False)
@click.option("--fixture", metavar="DUMP", help="With `score`: of a recorded or bundled machine.")
@click.option("--workload", metavar="ID", help="With `score`: of this workload (default: the required ones).")
@click.option("--config", "config_path", type=click.Path(path_type=Path), metavar="FILE", help="With `score`: the site's configuration.")
def explain(check: str | None, fixture: str | None, workload: str | None, config_path: Path | None) -> None:
    """Explain a check: what is read, the threshold and its source, and why it matters. Without a name: list them all. `score`: how the score
    of this machine (or of a recorded one) came about, term by term."""
    from checks.score import CHECKS

    if check == "score":
        _explain_score(fixture, workload, config_path)
        return
    if fixture is not None or workload is not None or config_path is not None:
        raise Wrong("--fixture, --workload and --config belong to `readiness explain score`", USAGE)
    if check is None:
        _print("".join(f"{one.id:22} {one.title}\n" for one in CHECKS) + f"{'score':22} How the score of a machine came about\n")
        return
    known = {one.id: one for one in CHECKS}
    found = known[_known(check, known, "check")]
    paragraphs = [
        f"{found.id}: {found.title}",
        *found.text.split("\n\n"),
        f"Component: {found.component}, weight {found.weight:g} in it",
        f"Source: {found.source}",
        *([f"Not applicable where: {found.not_supported}"] if found.not_supported else []),
    ]
    width = min(100, max(40, shutil.get_terminal_size((80, 24)).columns))
    _print("\n\n".join(textwrap.fill(one, width, break_long_words=False, break_on_hyphens=False) for one in paragraphs) + "\n")


def _explain_score(fixture: str | None, workload: str | None, config_path: Path | None) -> None:
    from readiness import judge
    from reports import score

    config = _config(config_path)
    try:
        want = judge.wanted(config, workloads=(workload,) if workload else ())
    except judge.UnknownName as error:
        raise Wrong(str(error), USAGE) from None
    timeout = config.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    host, source = _host(fixture, None, timeout, config, config_path)
    report = judge.judge(_collect(host, timeout), want, source)
    _print("\n".join(score.explained(report, [workload] if workload else report.required)))


@cli.command()
@click.option("--gpu", metavar="NAME", help="The card, as in 'H100 SXM' or 'RTX 4090'. Without it: the smallest machines for --method.")
@click.option("--gpus", type=click.IntRange(1, 64), default=8, show_default=True, metavar="N", help="How many in each node.")
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N")
@click.option("--ram", metavar="SIZE", help="Main memory of each node (2TB).")
@click.option("--nvme", metavar="SIZE", help="NVMe of each node (30TB).")
@click.option("--nic", metavar="NAME", help="The network adapter between nodes ('ConnectX-7').")
@click.option("--nics", type=click.IntRange(0, 64), default=0, metavar="N", help="How many in each node.")
@click.option("--psu", metavar="NxWATTS", help="The power supplies of each node (6x3300).")
@click.option("--redundancy", type=click.Choice(["N", "N+1", "N+N"]), help="How the supplies are meant (default N+1).")
@click.option("--cooling", type=click.Choice(["air", "rear-door", "direct-to-chip"]))
@click.option(
    "--write", "write_gbps", type=Seconds(0.01, 10_000), metavar="GB/S", help="At which rate checkpoints are written (assumed: 2)."
)
@click.option("--model", metavar="ID|FILE", help="A model of the catalog (llama-3-70b), or a Hugging Face config.json.")
@click.option("--method", type=click.Choice(["full", "lora", "qlora", "serve"]))
@click.option("--sequence", type=click.IntRange(1, 1 << 24), metavar="TOKENS")
@click.option("--micro-batch", type=click.IntRange(1, 1 << 16), metavar="N")
@click.option("--dataset", type=Tokens(), metavar="TOKENS", help="How long would so many tokens take (1e9, 2.5B)?")
@click.option("--recipe", is_flag=True, help="Print the configuration of each chosen strategy.")
@click.option("--format", "form", type=click.Choice(["terminal", "json"]), default="terminal", show_default=True)
@click.option("-v", "--verbose", count=True, help="All cards of the catalog, where no --gpu is named.")
def plan(**given: Any) -> None:
    """What a machine that is not bought yet would fine-tune, and what it asks for; or the smallest machines for a model and method. Exits
    with 2 where nothing fits."""
    from checks import plan as planning
    from checks.catalog import cards
    from reports import plan as report

    chosen = planning.chosen_workloads(_model(given["model"]), given["method"], given["sequence"], given["micro_batch"], given["nodes"])
    if given["gpu"] is None:
        asked = click.get_current_context().get_parameter_source
        foreign = [name for name in given if name not in SMALLEST_OPTIONS and asked(name) == ParameterSource.COMMANDLINE]
        if foreign:
            raise Wrong(f"--{foreign[0].replace('_', '-').removesuffix('-gbps')} describes a machine: name its card with --gpu", USAGE)
        if given["method"] is None:
            raise Wrong("name a card with --gpu, or a method with --method (full, lora, qlora, serve)", USAGE)
        found = planning.smallest(chosen[0], cards() if given["verbose"] else planning.USUAL_CARDS)
        _print(report.to_json(found) if given["form"] == "json" else report.smallest(chosen[0], found))
        _leave(0 if found else NOT_READY)
    for name, without in (("nics", "nic"), ("redundancy", "psu")):
        if given[name] and not given[without]:
            raise Wrong(f"--{name} needs --{without}", USAGE)
    if given["dataset"] and given["form"] == "json":
        raise Wrong("--dataset is for the report in words; JSON has tokens_per_second", USAGE)
    if given["nodes"] > 1 and given["method"] == "serve":
        raise Wrong("--method serve judges one node: a server does not span several", USAGE)
    answer = planning.plan(_planned(given), chosen)
    _print(
        report.to_json(answer)
        if given["form"] == "json"
        else report.terminal(answer, dataset_tokens=given["dataset"], recipes=given["recipe"])
    )
    _leave(0 if any(one.fit.status != "failed" for one in answer.fits) else NOT_READY)


def _model(name: str | None) -> Architecture | None:
    """A model of the catalog, or of a `config.json`."""
    from checks.catalog import architectures
    from checks.workload.architecture import ConfigError, from_config_json

    if name is None:
        return None
    if name in architectures():
        return architectures()[name]
    if not (name.endswith(".json") or os.sep in name):
        _known(name, architectures(), "model")
    try:
        return from_config_json(Path(name))
    except ConfigError as error:
        raise Wrong(str(error), BAD_INPUT) from None


def _planned(given: dict[str, Any]) -> Planned:
    """The machine of the command line."""
    from checks import plan as planning
    from checks.catalog import cards

    try:
        card = planning.find_card(given["gpu"])
    except planning.NotFound:
        raise Wrong(f"unknown card {given['gpu']!r}: known: {', '.join(cards())}", USAGE) from None
    try:
        nic = planning.find_nic(given["nic"]) if given["nic"] else None
    except planning.NotFound:
        raise Wrong(f"unknown network adapter {given['nic']!r}: as in ConnectX-7, ConnectX-6, BlueField-3, Thor2, E810", USAGE) from None
    supplies = None
    if given["psu"]:
        match = re.fullmatch(r"(\d{1,3})\s*[x×*]\s*(\d{2,6})\s*W?", given["psu"].strip(), re.IGNORECASE)
        if not match or not int(match[1]):
            raise Wrong(f"--psu {given['psu']!r}: a number and watts, as in 6x3300", USAGE)
        supplies = int(match[1]), int(match[2])
    return planning.Planned(
        card=card,
        gpus=given["gpus"],
        nodes=given["nodes"],
        ram_bytes=_size(given["ram"], "--ram", 1024),
        nvme_bytes=_size(given["nvme"], "--nvme", 1000),
        nic=nic,
        nics=given["nics"] or (1 if nic else 0),
        supplies=supplies,
        redundancy=given["redundancy"],
        cooling=given["cooling"],
        write_gbps=given["write_gbps"],
    )


def _size(text: str | None, option: str, base: int) -> int | None:
    """Bytes: memory is sold by 1024, storage by 1000; an `i` in the unit says 1024 anyhow."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([GT])(i?)B?", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        raise Wrong(f"{option} {text!r}: a size, as in 512GB or 2TB", USAGE)
    return int(float(match[1]) * (1024 if match[3] else base) ** (3 if match[2].upper() == "G" else 4))


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the report."""
    import json

    from reports import document

    _print(json.dumps(document.schema(), indent=2) + "\n")


@cli.command()
@click.argument("machine", required=False)
@click.argument("dump", required=False, type=click.Path(path_type=Path))
def fixtures(machine: str | None, dump: Path | None) -> None:
    """List the bundled machines, and the faults that can be laid over them (hgx-h100+nvlink-down). With a MACHINE and DUMP: write it there, a
    folder or .tar.gz, to look at and to change."""
    if machine is not None:
        if dump is None:
            raise Wrong(f"where to? as in: readiness fixtures {machine} DUMP", USAGE)
        _recordable(dump)
        _write_dump(_dump(machine), dump, redacted=False)
        click.echo(f"{dump}: written; judge it with: readiness check --fixture {dump}", err=True)
        return
    from readiness.fixtures import machines
    from readiness.fixtures.faults import FAULTS

    lines = [textwrap.fill(f"{one.id:22} {one.title}", 80, subsequent_indent=" " * 23) for one in machines().values()]
    lines += ["", "Faults, as in: readiness check --fixture hgx-h100+nvlink-down"]
    lines += [textwrap.fill(f"  +{fault.id:22} {fault.title}", 80, subsequent_indent=" " * 26) for fault in FAULTS.values()]
    _print("\n".join(lines) + "\n")


@cli.command()
@click.option("--listen", default="127.0.0.1:9852", show_default=True, metavar="ADDRESS:PORT", help="Where to serve.")
@click.option(
    "--web-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TLS and basic auth, as exporter-toolkit's web configuration file.",
)
@click.option("--config", "path", type=click.Path(path_type=Path), metavar="FILE", help="The site's configuration (read again on SIGHUP).")
@click.option("--fixture", metavar="DUMP", help="Replay a recorded machine, read anew for each pass.")
@click.option("--root", type=ROOT, metavar="DIR", help="Where the machine's / is mounted (in a container).")
@click.option("--timeout", type=Seconds(0.1, 3600), default=DEFAULT_TIMEOUT_SECONDS, show_default=True, metavar="SECONDS")
@click.option("--interval", type=Seconds(0.1), metavar="SECONDS", help="Of the quick probes (default 15; the slow ones 20 times that).")
@click.option(
    "--raise-after", type=click.IntRange(1), default=2, show_default=True, metavar="N", help="Bad passes before a finding is raised."
)
@click.option("--clear-after", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Good passes before it is cleared.")
@click.option(
    "--state-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where findings are remembered (default $STATE_DIRECTORY/findings.json).",
)
@click.option(
    "--report-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where the report is left for check --cached (default $RUNTIME_DIRECTORY/report.json).",
)
@click.option(
    "--handover",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What `readiness handover` read as root (default /run/readiness-root/root.tar.gz in a systemd service).",
)
def serve(path: Path | None, **given: Any) -> None:
    """Serve metrics and the report, probing on a schedule: the daemon that Prometheus scrapes."""
    import logging

    from readiness import daemon, judge, web

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    address, _, port = given["listen"].rpartition(":")
    if not address or not port.isdigit() or int(port) > 65535:
        raise Wrong(f"--listen {given['listen']!r}: ADDRESS:PORT is wanted, as in 127.0.0.1:9852", USAGE)
    address = address.strip("[]")

    def setup() -> daemon.Setup:
        made: daemon.Setup = _setup(given, path)
        return made

    state, runtime = os.environ.get("STATE_DIRECTORY"), os.environ.get("RUNTIME_DIRECTORY")
    quick = given["interval"]
    options = daemon.Options(
        listen_host=address,
        listen_port=int(port),
        web_config=given["web_config"],
        state_file=given["state_file"] or (Path(state) / "findings.json" if state else None),
        report_file=given["report_file"] or (Path(runtime) / "report.json" if runtime else None),
        deadline_seconds=given["timeout"],
        intervals=_intervals(quick) if quick else {},
        raise_after=given["raise_after"],
        clear_after=given["clear_after"],
    )
    try:
        made = daemon.Daemon(setup(), options, setup)
        if address not in ("127.0.0.1", "::1", "localhost") and (made.access.tls is None or not made.access.config.basic_auth_users):
            logging.getLogger("readiness").warning("%s is open to others without TLS and a password: see --web-config", given["listen"])
        daemon.serve(made)
    except web.WebConfigError as error:
        raise Wrong(str(error), BAD_INPUT) from None
    except OSError as error:
        raise Wrong(f"cannot listen on {given['listen']}: {error.strerror or error}", USAGE) from None
    except judge.UnknownName as error:
        raise Wrong(str(error), USAGE) from None


def _intervals(quick: float) -> dict[str, float]:
    from probe.collect import PROBES
    from readiness.scheduler import FAST_SECONDS, SLOW, SLOW_SECONDS

    return {name: quick * (SLOW_SECONDS / FAST_SECONDS if name in SLOW else 1) for name in PROBES}


class _Replayed:
    """A recording that a daemon replays; a dump on disk is read anew at most once a second, so that it can be changed under the daemon."""

    def __init__(self, fixture: str) -> None:
        self.fixture = fixture
        self.bundled = not os.path.lexists(fixture)
        self._read: tuple[float, Dump] | None = None

    def dump(self) -> Dump:
        import time

        if self._read is None or (not self.bundled and time.monotonic() - self._read[0] > 1):
            self._read = (time.monotonic(), _dump(self.fixture))
        return self._read[1]

    def host(self) -> Host:
        from probe.dump import ReplayHost

        return ReplayHost(self.dump())

    def source(self) -> Source:
        from reports.document import Source

        manifest = self._read[1].manifest if self._read is not None else self.dump().manifest
        return Source(kind="replay", name=self.fixture, recorded_at=manifest.recorded_at, redacted=bool(manifest.redacted))


def _setup(given: dict[str, Any], path: Path | None) -> Any:
    """What a (re)load of the configuration gives the daemon."""
    from readiness import config as configuration
    from readiness import daemon, judge
    from reports.document import Source

    config = _config(path)
    want = judge.wanted(config)
    if given["fixture"] is not None:
        replayed = _Replayed(given["fixture"])
        replayed.dump()
        return daemon.Setup(want=want, make_host=replayed.host, source=replayed.source)
    try:
        sources = configuration.sources(config, path or configuration.DEFAULT_PATH)
    except configuration.ConfigError as error:
        raise Wrong(str(error), BAD_INPUT) from None
    root = str(given["root"].absolute()) if given["root"] else "/"
    handed = given["handover"] or (HANDED_OVER if os.environ.get("RUNTIME_DIRECTORY") else None)

    def live() -> Host:
        from probe.host import LiveHost
        from readiness.handover import HandoverHost

        host = LiveHost(root, deadline_seconds=given["timeout"], sources=sources, site=config.site)
        return host if handed is None else HandoverHost(host, handed)

    return daemon.Setup(
        want=want, make_host=live, source=lambda: Source(kind="live", name="", recorded_at=daemon.utc_now(), redacted=False)
    )


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--timeout", type=Seconds(0.1, 3600), default=DEFAULT_TIMEOUT_SECONDS, show_default=True, metavar="SECONDS")
@click.option("--group", metavar="NAME", help="The group that may read it (the daemon's).")
def handover(file: Path, timeout: float, group: str | None) -> None:
    """Read what only root may (SMART, IPMI, DMI, kernel log) into FILE, for the unprivileged daemon."""
    import datetime
    import shutil

    from probe.host import LiveHost
    from readiness.handover import record_privileged

    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        record_privileged(LiveHost(deadline_seconds=timeout), file, now)
        if group:
            shutil.chown(file, group=group)
    except (OSError, LookupError) as error:
        raise Wrong(f"cannot write {file}: {getattr(error, 'strerror', None) or error}", USAGE) from None


@cli.command(name="config")
@click.option(
    "--config", "path", type=click.Path(path_type=Path), metavar="FILE", help="The file to read (default /etc/readiness/readiness.toml)."
)
@click.option("--template", is_flag=True, help="Print a commented template instead.")
def show_config(path: Path | None, template: bool) -> None:
    """Print the configuration in force, or a commented template."""
    from readiness import config, judge

    if template:
        _print(config.TEMPLATE)
        return
    read = _config(path)
    try:
        judge.wanted(read)
    except judge.UnknownName as error:
        raise Wrong(f"{path or config.DEFAULT_PATH}: {error}", USAGE) from None
    _print(config.effective(read) + "\n")


# --- what the commands share -------------------------------------------------------------------------------------------------------


def _config(path: Path | None) -> Config:
    from readiness import config

    try:
        return config.load(path)
    except config.ConfigError as error:
        raise Wrong(str(error), USAGE if error.usage else BAD_INPUT) from None


def _known(name: str, known: Iterable[str], what: str) -> str:
    from readiness import judge

    try:
        return judge.known(name, known, what)
    except judge.UnknownName as error:
        raise Wrong(str(error), USAGE) from None


def _wanted(config: Config, given: dict[str, Any]) -> Wanted:
    """What is to be judged, from the command line and the configuration."""
    from readiness import judge

    try:
        return judge.wanted(
            config,
            workloads=given["workloads"],
            require=given["require"],
            only=given["only"],
            skip=given["skip"],
            accept=_accepted(given["accept"]),
            fail_on=given["fail_on"],
            gate=given["codes"] == "gate",
            nodes=given["nodes"],
        )
    except judge.UnknownName as error:
        raise Wrong(str(error), USAGE) from None


def _cached(given: dict[str, Any]) -> None:
    """The daemon's last report: its verdict as exit code, and the report as it stands. One that is too old, or none, is unknown."""
    import json

    from readiness.files import age_seconds

    path: Path = given["report_file"]
    gate = given["codes"] == "gate"
    unknown = 2 if gate else 3
    try:
        age = age_seconds(path)
        content = path.read_bytes()
        report = json.loads(content)
        verdict = report["verdict"]
        code = {"READY": 0, "READY_WITH_WARNINGS": 0 if gate else 1, "NOT_READY": 1 if gate else 2}.get(verdict, unknown)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it cannot be understood"
        click.echo(f"readiness: no cached report: {path}: {why} (is readiness serve running?)", err=True)
        sys.exit(unknown)
    if age == float("inf"):
        click.echo("readiness: the cached report is from the future: the clock was set back", err=True)
        sys.exit(unknown)
    if age > given["max_age"]:
        click.echo(f"readiness: the cached report is {age:.0f} s old, more than {given['max_age']:g} s", err=True)
        sys.exit(unknown)
    if not given["quiet"]:
        if given["form"] == "json":
            sys.stdout.buffer.write(content)
        else:
            reasons = sorted({reason for one in report["workloads"] if one["workload"] in report["required"] for reason in one["reasons"]})
            click.echo(
                f"{verdict.replace('_', ' ')} for {', '.join(report['required'])}, {max(0.0, age):.0f} s ago"
                + (f": {', '.join(reasons[:6])}" if reasons else "")
            )
    sys.exit(code)


def _write_textfile(report: Report, folder: Path) -> None:
    """`readiness.prom` in a folder of node_exporter's textfile collector, beside itself first."""
    import time

    from prometheus_client.core import GaugeMetricFamily

    from reports import metrics

    made = GaugeMetricFamily("readiness_report_timestamp_seconds", "When the report was made that these metrics are of.", value=time.time())
    _write_file(folder / "readiness.prom", metrics.text([*metrics.families(report), made]).decode())


def _accepted(given: tuple[str, ...]) -> dict[str, str]:
    accepted = {}
    for text in given:
        name, _, reason = text.partition("=")
        if not reason.strip():
            raise Wrong(f"--accept {text!r}: a reason is needed, as in --accept {name or 'gpu.power_limit'}='the rack has 6 kW'", USAGE)
        accepted[name.strip()] = reason.strip()
    return accepted


def _host(fixture: str | None, root: Path | None, timeout: float, config: Config, path: Path | None) -> tuple[Host, Source]:
    """The machine to ask, and where its facts are from."""
    from readiness import config as configuration
    from reports.document import Source

    if fixture is not None:
        from probe.dump import ReplayHost

        dump = _dump(fixture)
        if path is not None:  # what a configuration that was named says of the place goes before the recording
            dump.answers["site", ""] = {**(dump.answers.get(("site", "")) or {}), **configuration.said(config.site)}
        manifest = dump.manifest
        return ReplayHost(dump), Source(kind="replay", name=fixture, recorded_at=manifest.recorded_at, redacted=bool(manifest.redacted))
    import datetime

    from probe.host import LiveHost

    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        sources = configuration.sources(config, path or configuration.DEFAULT_PATH)
    except configuration.ConfigError as error:
        raise Wrong(str(error), BAD_INPUT) from None
    host = LiveHost(str(root.absolute()) if root else "/", deadline_seconds=timeout, sources=sources, site=config.site)
    return host, Source(kind="live", name="", recorded_at=now, redacted=False)


def _dump(fixture: str) -> Dump:
    """A dump by its path, or a bundled machine by its name."""
    from probe import dump
    from readiness.fixtures import FaultNotPossible, UnknownFixture, load

    path = Path(fixture)
    try:
        if os.path.lexists(path):
            return dump.read(path)
        return load(fixture)
    except dump.DumpError as error:
        raise Wrong(str(error), BAD_INPUT) from None
    except FaultNotPossible as error:
        raise Wrong(str(error), USAGE) from None
    except UnknownFixture as error:
        from readiness.config import near

        if "/" in fixture or fixture.endswith((".tar.gz", ".tgz")):
            raise Wrong(f"{fixture}: no such dump", BAD_INPUT) from None
        raise Wrong(f"{error.name!r} is neither a dump nor a bundled machine or fault: {near(error.name, error.known)}", USAGE) from None


def _recording(host: Host, source: Source) -> Any:
    from probe.dump import FORMAT, Dump, Manifest, RecordingHost

    return RecordingHost(host, Dump(Manifest(format=FORMAT, tool_version=__version__, recorded_at=source.recorded_at, redacted=[])))


def _recordable(target: Path) -> None:
    """Say at once that a dump cannot be written there, and not after the machine was asked."""
    if target.name in ("", ".tar.gz", ".tgz"):
        raise Wrong(f"{target}: a dump needs a name", USAGE)
    if os.path.lexists(target):
        raise Wrong(f"{target} exists already", USAGE)
    if not os.access(target.absolute().parent, os.W_OK | os.X_OK):
        raise Wrong(f"cannot write {target}: no such folder, or no permission to write there", USAGE)


def _write_dump(dump: Dump, target: Path, *, redacted: bool) -> None:
    from probe.dump import write
    from probe.redact import redact

    try:
        write(redact(dump) if redacted else dump, target)
    except FileExistsError as error:
        raise Wrong(str(error), USAGE) from None
    except OSError as error:
        raise Wrong(f"cannot write {target}: {error.strerror}", USAGE) from None


def _collect(host: Host, timeout: float) -> Any:
    from probe.collect import collect

    def progress(name: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"waiting for {name} ...", err=True)

    return collect(host, deadline_seconds=timeout + AFTER_DEADLINE_SECONDS, progress=progress)


def _show(report: Report, given: dict[str, Any]) -> None:
    """Write the report where it is wanted; a reader that went away is no fault."""
    import io

    text = io.StringIO()
    to_stdout = given["output"] is None or str(given["output"]) == "-"
    if given["form"] == "json":
        from reports.document import to_json

        text.write(to_json(report))
    else:
        from reports import terminal

        to_terminal = to_stdout and sys.stdout.isatty()
        color = {"always": True, "never": False, "auto": to_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"}
        terminal.render(report, text, width=_width() if to_terminal else 80, color=color[given["color"]], verbose=given["verbose"])
    if not to_stdout:
        _write_file(given["output"], text.getvalue())
        return
    _print(text.getvalue())


def _print(text: str) -> None:
    """Onto stdout, in UTF-8 whatever the locale; a reader that went away is no fault, a full disk is told."""
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        _silence_stdout()
        raise Wrong(f"cannot write to stdout: {error.strerror}", USAGE) from None


def _width() -> int:
    import shutil

    return max(40, min(100, shutil.get_terminal_size().columns))


def _write_file(path: Path, text: str) -> None:
    from readiness.files import write_whole

    try:
        write_whole(path, text.encode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise Wrong(f"cannot write {path}: {getattr(error, 'strerror', None) or error}", USAGE) from None


def _silence_stdout() -> None:
    """Python flushes stdout once more when it ends; into nothing, so that it does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _standard_streams() -> None:
    """Open what was closed (`>&-`): the next file that is opened would become stdout, and Python has None for it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def _leave(code: int) -> None:
    """End at once: a probe's thread that waits for a dead driver would hold the interpreter back."""
    import threading

    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread.name.startswith("probe ") for thread in threading.enumerate()):
        if "probe.process" in sys.modules:
            sys.modules["probe.process"].end_all()
        os._exit(code)
    sys.exit(code)


def main() -> None:
    """The program: turns every end into a line and an exit code."""
    _standard_streams()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # an orderly end, which takes the children along
    try:
        cli.main(prog_name="readiness", standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(USAGE)
    except click.ClickException as error:
        code = error.exit_code if isinstance(error, Wrong) else USAGE
        _complain(error.format_message(), code)
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        sys.exit(0)
    except Exception as error:
        if os.environ.get("READINESS_DEBUG"):
            raise
        _complain(f"a fault of this tool ({type(error).__name__}: {error}); READINESS_DEBUG=1 shows where; please report it", INTERNAL)


def _complain(message: str, code: int) -> None:
    """One line on stderr; where JSON was asked for, an object on stdout too."""
    line = " ".join(message.split())
    try:
        click.echo(f"readiness: {line}", err=True)
    except OSError:  # the exit code must still tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if ("json" in sys.argv and "--format" in sys.argv) or "--format=json" in sys.argv:
        import json

        click.echo(json.dumps({"schema": "readiness.error/v1", "error": line, "exit_code": code}))
    sys.exit(code)
