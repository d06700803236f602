"""The site's configuration: `/etc/readiness/readiness.toml`, or the file given with `--config`.

Strict: a key that is not known is an error, and not a setting that silently does nothing.
"""

from __future__ import annotations

import tomllib
import types
import typing
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from checks.score import FailOn

DEFAULT_PATH = Path("/etc/readiness/readiness.toml")


class ConfigError(Exception):
    """One line: the file, the key's path, and what is wrong. `usage` for a name that is not known, else the file itself is broken."""

    def __init__(self, message: str, *, usage: bool) -> None:
        super().__init__(message)
        self.usage = usage


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site may set; the command line goes before it."""

    workloads: list[str] = []
    require: list[str] = []
    skip: list[str] = []
    accept: dict[str, str] = {}
    fail_on: FailOn = "fail"
    nodes: int | None = None
    timeout_seconds: float | None = None


def near(name: str, known: typing.Iterable[str]) -> str:
    """The end of a message on a name that is not known: the nearest, or all."""
    known = sorted(known)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"


def load(path: Path | None) -> Config:
    """Read the configuration; without a path the default one, if it is there. Raises `ConfigError`."""
    if path is None:
        if not DEFAULT_PATH.exists():
            return Config()
        path = DEFAULT_PATH
    try:
        raw = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", usage=False) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", usage=False) from None
    _known_keys(raw, Config, "", path)
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {str(error).replace('`', '').replace('$.', '')}", usage=False) from None


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
