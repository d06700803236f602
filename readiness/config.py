"""The site's configuration: `/etc/readiness/readiness.toml`, or the file given with `--config`.

Strict: a key that is not known is an error, and not a setting that silently does nothing.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
import types
import typing
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from checks.score import FailOn
from checks.thresholds import Thresholds
from probe.clients import Source

DEFAULT_PATH = Path("/etc/readiness/readiness.toml")


class ConfigError(Exception):
    """One line: the file, the key's path, and what is wrong. `usage` for a name that is not known, else the file itself is broken."""

    def __init__(self, message: str, *, usage: bool) -> None:
        super().__init__(message)
        self.usage = usage


class PduSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node's feed: `volts` between phases where there are three, `amps` of the breaker, independent `feeds`."""

    volts: Annotated[float, msgspec.Meta(gt=0)]
    amps: Annotated[float, msgspec.Meta(gt=0)]
    phases: Literal[1, 3] = 1
    feeds: Annotated[int, msgspec.Meta(ge=1)] = 1


class SiteSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What no probe can see of the machine and its place."""

    nodes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    interconnect: Literal["direct", "infiniband-switch", "roce-switch"] | None = None
    cooling: Literal["air", "rear-door", "direct-to-chip"] | None = None
    power_redundancy: Literal["N", "N+1", "N+N"] | None = None
    pdu: PduSection | None = None
    checkpoint_path: str | None = None
    dataset_path: str | None = None
    checkpoints_kept: Annotated[int, msgspec.Meta(ge=1)] = 3
    storage_write_gbps: Annotated[float, msgspec.Meta(gt=0)] | None = None
    shutdown_seconds: Annotated[float, msgspec.Meta(ge=0)] = 120.0
    nccl_ib_hca: str | None = None
    python_environment: str | None = None


class UpsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A UPS to ask. `ups` names one of several on a NUT server; secrets are named by file or systemd credential, never written here."""

    name: str
    protocol: Literal["nut", "apcupsd", "snmp"]
    address: str
    ups: str = ""
    user: str = ""
    password_file: str = ""
    password_credential: str = ""
    community_file: str = ""
    tls: bool = False
    ca_file: str = ""
    insecure: bool = False


class BmcSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A BMC to ask over Redfish."""

    name: str
    address: str
    user: str = ""
    password_file: str = ""
    password_credential: str = ""
    ca_file: str = ""
    insecure: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site may set; the command line goes before it."""

    workloads: list[str] = []
    require: list[str] = []
    skip: list[str] = []
    accept: dict[str, Annotated[str, msgspec.Meta(min_length=1)]] = {}
    fail_on: FailOn = "fail"
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    site: SiteSection = SiteSection()
    thresholds: Thresholds = Thresholds()
    ups: list[UpsSection] = []
    bmc: list[BmcSection] = []


CONFIG_CAP_BYTES = 1 << 20
SECRET_CAP_BYTES = 4096


def secret(section: UpsSection | BmcSection, path: Path) -> str:
    """A section's password, from its file or systemd credential. A file that others may read is refused. Raises `ConfigError`."""
    if section.password_credential:
        folder = os.environ.get("CREDENTIALS_DIRECTORY")
        if not folder:
            raise ConfigError(f"{path}: {section.name}: password_credential works in a systemd service only (LoadCredential=)", usage=False)
        return _secret_file(Path(folder) / Path(section.password_credential).name, section.name, path, checked=False)
    return _secret_file(Path(section.password_file), section.name, path) if section.password_file else ""


def _secret_file(file: Path, name: str, path: Path, *, checked: bool = True) -> str:
    try:
        with file.open("rb") as opened:
            if checked and os.fstat(opened.fileno()).st_mode & 0o007:
                raise ConfigError(f"{path}: {name}: {file} may be read by everybody: chmod 600 {file}", usage=False)
            return opened.read(SECRET_CAP_BYTES).decode("utf-8", "replace").rstrip("\n")
    except OSError as error:
        raise ConfigError(f"{path}: {name}: {file}: {error.strerror}", usage=False) from None


def sources(config: Config, path: Path) -> list[Source]:
    """The UPSs and BMCs to ask, with their secrets. Raises `ConfigError`."""
    found = [
        Source(
            kind=one.protocol,
            name=one.name,
            address=one.address,
            ups=one.ups,
            user=one.user,
            password=secret(one, path),
            community=_secret_file(Path(one.community_file), one.name, path) if one.community_file else "public",
            tls=one.tls,
            ca_file=one.ca_file,
            insecure=one.insecure,
        )
        for one in config.ups
    ]
    found += [
        Source(
            kind="redfish",
            name=one.name,
            address=one.address,
            user=one.user,
            password=secret(one, path),
            ca_file=one.ca_file,
            insecure=one.insecure,
        )
        for one in config.bmc
    ]
    names = [source.name for source in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path}: two sources are called {twice}", usage=False)
    return found


def near(name: str, known: typing.Iterable[str]) -> str:
    """The end of a message on a name that is not known: the nearest, or all."""
    known = sorted(known)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"


def load(path: Path | None) -> Config:
    """Read the configuration; without a path the default one, if it is there. Raises `ConfigError`."""
    chosen = path or DEFAULT_PATH
    try:
        content = _content(chosen)
    except FileNotFoundError as error:
        if path is None:
            return Config()
        raise ConfigError(f"{path}: {error.strerror}", usage=False) from None
    except OSError as error:
        raise ConfigError(f"{chosen}: {error.strerror}", usage=False) from None
    path = chosen
    try:
        raw = tomllib.loads(content.decode())
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply", usage=False) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", usage=False) from None
    _known_keys(raw, Config, "", path)
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {str(error).replace('`', '').replace('$.', '')}", usage=False) from None
    for name, address in [(one.name, one.address) for one in config.bmc] + [(one.name, one.address) for one in config.ups]:
        if "@" in address:
            raise ConfigError(f"{path}: {name}: a name and a password do not belong into the address: user, password_file", usage=False)
    upside_down = config.thresholds.upside_down()
    if upside_down:
        raise ConfigError(f"{path}: thresholds.{upside_down[0]} is above thresholds.{upside_down[1]}: nothing would ever warn", usage=False)
    return config


def _content(path: Path) -> bytes:
    """A regular file's content: a pipe may never answer, and a device never end. Raises OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = opened.read(CONFIG_CAP_BYTES + 1)
    if len(content) > CONFIG_CAP_BYTES:
        raise OSError(errno.EFBIG, f"larger than {CONFIG_CAP_BYTES >> 20} MiB")
    return content


def _known_keys(raw: Any, kind: Any, prefix: str, path: Path) -> None:
    """Name the first key that is not known, by its whole path, and the nearest that is."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next((one for one in typing.get_args(kind) if isinstance(one, type) and issubclass(one, msgspec.Struct)), None)
    if typing.get_origin(kind) is list and isinstance(raw, list):
        for item in raw:
            _known_keys(item, typing.get_args(kind)[0], prefix, path)
        return
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(raw, dict)):
        return
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        if key not in fields:
            raise ConfigError(f"{path}: unknown key {prefix}{key}: {near(key, fields)}", usage=True)
        _known_keys(value, fields[key], f"{prefix}{key}.", path)


THRESHOLDS = "\n".join(f"# {name} = {getattr(Thresholds(), name)}" for name in Thresholds.__struct_fields__)

TEMPLATE = f"""\
# /etc/readiness/readiness.toml: what this site wants, and what no probe can see. Every key is optional; one that is not known is an error.

# workloads = ["full-70b", "lora-70b"]     # what to show (default: all)
# require = ["qlora-70b"]                  # what the exit code speaks of
# skip = ["cpu.governor"]                  # checks or components to leave out
# fail_on = "fail"                         # or "unknown", or "warn": what makes a node not ready
# timeout_seconds = 10                     # how long each source may take

# [accept]                                 # faults to live with; the reason stays in the report
# "gpu.power_limit" = "the rack has 6 kW"

[site]
# nodes = 2                                # how many such nodes train together
# interconnect = "direct"                  # or "infiniband-switch", "roce-switch"
# cooling = "air"                          # or "rear-door", "direct-to-chip"
# power_redundancy = "N+N"                 # or "N+1", "N": how the supplies are meant
# checkpoint_path = "/scratch"             # where checkpoints go (default: the largest file system on NVMe)
# dataset_path = "/data"
# checkpoints_kept = 3
# storage_write_gbps = 5.0                 # GB/s, measured (default: 2 is assumed)
# shutdown_seconds = 120
# nccl_ib_hca = "mlx5_0,mlx5_1"            # which ports train, as NCCL_IB_HCA
# python_environment = "/opt/train"

# [site.pdu]
# volts = 400                              # between phases, where there are three
# amps = 32
# phases = 3
# feeds = 2

# [thresholds]                             # where a check warns or fails; the source of each default: readiness explain CHECK
{THRESHOLDS}

# [[ups]]
# name = "feed-a"
# protocol = "nut"                         # or "apcupsd", "snmp"
# address = "ups-server:3493"
# ups = "eaton"                            # which of the server's (default: all)
# user = "monitor"
# password_file = "/etc/readiness/ups.password"     # readable by its owner and group alone
# tls = true
# ca_file = "/etc/ssl/certs/site-ca.pem"

# [[bmc]]
# name = "bmc"
# address = "https://10.0.0.5"
# user = "readonly"
# password_credential = "bmc"              # systemd: LoadCredential=bmc:/etc/readiness/bmc.password
"""


def said(site: SiteSection) -> dict[str, Any]:
    """What the section says, without what it leaves to the defaults."""
    return {
        field.encode_name: msgspec.to_builtins(value)
        for field in msgspec.structs.fields(SiteSection)
        if (value := getattr(site, field.name)) != field.default
    }


def effective(config: Config) -> str:
    """The configuration in force, as JSON: secrets are only named in it, so none can be shown."""
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()
