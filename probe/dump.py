"""A recorded machine: the dump, the host that records one and the host that replays one.

A dump is a folder, or the `.tar.gz` of one, that a person can read and `git diff`:

    manifest.json     format version, tool version, time, what was redacted
    files/            the texts, at their own paths
    index.jsonl       listings, links, sizes, bytes in hex, and everything that could not be had
    commands.jsonl    what tools said
    nvml.jsonl        the log of the NVML sweep
    answers.jsonl     what UPSs and BMCs said

Reading treats a dump as hostile: it is never unpacked to disk, and every line is validated.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from probe.fact import Reason, Unavailable
from probe.host import Completed, Host, Usage
from probe.nvml import Call

if TYPE_CHECKING:
    import gzip

FORMAT = 1

MEMBERS_CAP = 100_000
BYTES_CAP = 256 << 20
LINE_CAP_BYTES = 16 << 20

T = TypeVar("T")


class DumpError(Exception):
    """A dump that cannot be read: one line that names the file, and the line where there is one."""


class Failure(msgspec.Struct, frozen=True):
    """An answer that was not given: the recorded `Unavailable`."""

    reason: Reason
    detail: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a dump says of itself.

    `complete` is for dumps that were made and not recorded: what they do not hold does not exist. In a recorded dump a path that was
    never asked is not known, which is not the same.
    """

    format: int
    tool_version: str
    recorded_at: str
    redacted: list[str]
    complete: bool = False
    machine: str = ""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line of `index.jsonl`: an operation on a path, and its answer or the reason why there was none."""

    op: str
    path: str
    text: str | None = None
    hex: str | None = None
    names: list[str] | None = None
    target: str | None = None
    usage: Usage | None = None
    reason: Reason | None = None
    detail: str = ""


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    argv: list[str]
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    reason: Reason | None = None
    detail: str = ""


class _Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    kind: str
    address: str
    answer: Any = None
    reason: Reason | None = None
    detail: str = ""


class Dump:
    """Everything that a machine answered, in memory."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.files: dict[str, str | Failure] = {}
        self.blobs: dict[str, bytes | Failure] = {}
        self.listings: dict[str, list[str] | Failure] = {}
        self.links: dict[str, str | Failure] = {}
        self.usages: dict[str, Usage | Failure] = {}
        self.commands: dict[tuple[str, ...], Completed | Failure] = {}
        self.answers: dict[tuple[str, str], Any] = {}
        self.nvml: list[Call] | Failure | None = None


def _tried(ask: Callable[[], T]) -> T | Failure:
    try:
        return ask()
    except Unavailable as error:
        return Failure(error.reason, error.detail)


def _given(answer: T | Failure) -> T:
    if isinstance(answer, Failure):
        raise Unavailable(answer.reason, answer.detail)
    return answer


class RecordingHost:
    """Asks another host and keeps every answer, also the failures, in `dump`."""

    def __init__(self, host: Host, dump: Dump) -> None:
        self.host = host
        self.dump = dump

    def read(self, path: str) -> str:
        answer = self.dump.files[path] = _tried(lambda: self.host.read(path))
        return _given(answer)

    def read_bytes(self, path: str) -> bytes:
        answer = self.dump.blobs[path] = _tried(lambda: self.host.read_bytes(path))
        return _given(answer)

    def listing(self, path: str) -> list[str]:
        answer = self.dump.listings[path] = _tried(lambda: self.host.listing(path))
        return _given(answer)

    def link(self, path: str) -> str:
        answer = self.dump.links[path] = _tried(lambda: self.host.link(path))
        return _given(answer)

    def usage(self, path: str) -> Usage:
        answer = self.dump.usages[path] = _tried(lambda: self.host.usage(path))
        return _given(answer)

    def run(self, argv: Sequence[str]) -> Completed:
        answer = self.dump.commands[tuple(argv)] = _tried(lambda: self.host.run(argv))
        return _given(answer)

    def nvml(self) -> list[Call]:
        answer = self.dump.nvml = _tried(self.host.nvml)
        return _given(answer)

    def ask(self, kind: str, address: str) -> Any:
        answer = self.dump.answers[kind, address] = _tried(lambda: self.host.ask(kind, address))
        return _given(answer)


class ReplayHost:
    """Answers as the dump's machine did."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump

    def _recorded(self, answers: dict[Any, Any], key: Any) -> Any:
        try:
            return _given(answers[key])
        except KeyError:
            if self.dump.manifest.complete:
                raise Unavailable("absent", "") from None
            raise Unavailable("error", "not in this recording") from None

    def read(self, path: str) -> str:
        text: str = self._recorded(self.dump.files, path)
        return text

    def read_bytes(self, path: str) -> bytes:
        content: bytes = self._recorded(self.dump.blobs, path)
        return content

    def listing(self, path: str) -> list[str]:
        names: list[str] = self._recorded(self.dump.listings, path)
        return names

    def link(self, path: str) -> str:
        target: str = self._recorded(self.dump.links, path)
        return target

    def usage(self, path: str) -> Usage:
        usage: Usage = self._recorded(self.dump.usages, path)
        return usage

    def run(self, argv: Sequence[str]) -> Completed:
        completed: Completed = self._recorded(self.dump.commands, tuple(argv))
        return completed

    def nvml(self) -> list[Call]:
        log: list[Call] = self._recorded({} if self.dump.nvml is None else {"nvml": self.dump.nvml}, "nvml")
        return log

    def ask(self, kind: str, address: str) -> Any:
        return self._recorded(self.dump.answers, (kind, address))


# --- writing ---------------------------------------------------------------------------------------------------------------------


def _members(dump: Dump) -> Iterator[tuple[str, bytes]]:
    """The files of a dump, by name."""
    yield "manifest.json", msgspec.json.format(msgspec.json.encode(dump.manifest), indent=2) + b"\n"
    folders = {path.rsplit("/", depth)[0] for path in dump.files for depth in range(1, path.count("/") + 1)}
    entries: list[_Entry] = []
    for path, text in sorted(dump.files.items()):
        if isinstance(text, Failure):
            entries.append(_Entry(op="read", path=path, reason=text.reason, detail=text.detail))
        elif path in folders or not _plain_path(path):
            entries.append(_Entry(op="read", path=path, text=text))
        else:
            yield "files" + path, text.encode("utf-8", "replace")
    for op, field, answers in (
        ("bytes", "hex", dump.blobs),
        ("list", "names", dump.listings),
        ("link", "target", dump.links),
        ("usage", "usage", dump.usages),
    ):
        answer: Any
        for path, answer in sorted(answers.items()):
            if isinstance(answer, Failure):
                entries.append(_Entry(op=op, path=path, reason=answer.reason, detail=answer.detail))
            else:
                entries.append(_Entry(op=op, path=path, **{field: answer.hex() if op == "bytes" else answer}))
    if isinstance(dump.nvml, Failure):
        entries.append(_Entry(op="nvml", path="/", reason=dump.nvml.reason, detail=dump.nvml.detail))
    yield "index.jsonl", _lines(entries)
    commands = [
        _Command(argv=list(argv), reason=said.reason, detail=said.detail)
        if isinstance(said, Failure)
        else _Command(argv=list(argv), exit_code=said.exit_code, stdout=said.stdout, stderr=said.stderr)
        for argv, said in sorted(dump.commands.items())
    ]
    yield "commands.jsonl", _lines(commands)
    if isinstance(dump.nvml, list):
        yield "nvml.jsonl", _lines(dump.nvml)
    answers_said = [
        _Answer(kind=kind, address=address, reason=said.reason, detail=said.detail)
        if isinstance(said, Failure)
        else _Answer(kind=kind, address=address, answer=said)
        for (kind, address), said in sorted(dump.answers.items())
    ]
    yield "answers.jsonl", _lines(answers_said)


def _plain_path(path: str) -> bool:
    """Whether a path can be a member of an archive as it stands."""
    parts = path.split("/")[1:]
    return path.startswith("/") and all(0 < len(part.encode()) <= 255 and part not in (".", "..") for part in parts) and "\0" not in path


def _lines(entries: Sequence[Any]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def write(dump: Dump, target: Path) -> None:
    """Write a dump to a folder, or to a `.tar.gz` or `.tgz` by its name; beside it first, then renamed into place.

    Raises `FileExistsError` where there is something already, `OSError` where it cannot be written.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already")
    beside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if target.name.endswith((".tar.gz", ".tgz")):
            _write_archive(dump, beside, target.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz"))
        else:
            _write_folder(dump, beside)
        os.rename(beside, target)
    except BaseException:
        _remove(beside)
        raise


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _write_archive(dump: Dump, target: Path, top: str) -> None:
    import tarfile

    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as archive:
            for name, content in _members(dump):
                member = tarfile.TarInfo(f"{top}/{name}")
                member.size = len(content)
                member.mode = 0o600
                archive.addfile(member, io.BytesIO(content))
        out.flush()
        os.fsync(out.fileno())


def _write_folder(dump: Dump, target: Path) -> None:
    target.mkdir(mode=0o700)
    for name, content in _members(dump):
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


# --- reading ---------------------------------------------------------------------------------------------------------------------


def read(source: Path) -> Dump:
    """Read a dump from a folder or an archive; raises `DumpError`."""
    foreign = DumpError(f"{source}: no manifest.json in it, so it is no dump of this tool, or a truncated one")
    try:
        if source.is_dir() and not (source / "manifest.json").is_file():
            raise foreign
        members = _folder_members(source) if source.is_dir() else _archive_members(source)
    except OSError as error:
        raise DumpError(f"{error.filename or source}: {error.strerror or error}") from None
    if "manifest.json" not in members:
        raise foreign
    return _parse(members, source)


def _folder_members(source: Path) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    size = 0
    folders = [(source, "")]
    while folders:
        folder, prefix = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    folders.append((Path(entry.path), name + "/"))
                    continue
                if not stat.S_ISREG(mode):
                    raise DumpError(f"{entry.path}: a dump holds no links, pipes or devices")
                size += entry.stat(follow_symlinks=False).st_size
                if size > BYTES_CAP or len(members) >= MEMBERS_CAP:
                    raise DumpError(f"{source}: more than {BYTES_CAP >> 20} MiB or {MEMBERS_CAP} files")
                members[name] = Path(entry.path).read_bytes()
    return members


class _Capped:
    """A stream that ends with a DumpError once it has given more than the cap: a bomb does not get to explode."""

    def __init__(self, inner: gzip.GzipFile, source: Path) -> None:
        self.inner = inner
        self.source = source
        self.given = 0

    def tell(self) -> int:
        """Where the stream is; tarfile asks."""
        return self.given

    def read(self, size: int = -1) -> bytes:
        """At most a MiB at once, and never more than the cap in all."""
        piece = self.inner.read(size if 0 <= size <= 1 << 20 else 1 << 20)
        self.given += len(piece)
        if self.given > BYTES_CAP:
            raise DumpError(f"{self.source}: unpacks to more than {BYTES_CAP >> 20} MiB")
        return piece


def _archive_members(source: Path) -> dict[str, bytes]:
    import gzip
    import tarfile
    import zlib

    members: dict[str, bytes] = {}
    with open(source, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as packed:
        if not stat.S_ISREG(os.fstat(packed.fileno()).st_mode):
            raise DumpError(f"{source}: neither a folder nor a file")
        if packed.read(2) != b"\x1f\x8b":
            raise DumpError(f"{source}: neither a folder nor a .tar.gz")
        packed.seek(0)
        try:
            stream = _Capped(gzip.GzipFile(fileobj=packed), source)
            with tarfile.open(fileobj=cast("Any", stream), mode="r|") as archive:
                for member in archive:
                    parts = member.name.split("/")
                    if member.name.startswith("/") or ".." in parts:
                        raise DumpError(f"{source}: member {member.name[:80]!r} points out of the archive")
                    if member.isdir():
                        continue
                    if not member.isreg():
                        raise DumpError(f"{source}: member {member.name[:80]!r} is a link or a device")
                    if member.size > BYTES_CAP or len(members) >= MEMBERS_CAP:
                        raise DumpError(f"{source}: more than {BYTES_CAP >> 20} MiB or {MEMBERS_CAP} members")
                    content = archive.extractfile(member)
                    if content is not None:
                        members[member.name.removeprefix("./")] = content.read()
            while stream.read():  # to its end, where the checksum is
                pass
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, OSError, ValueError, RecursionError) as error:
            raise DumpError(f"{source}: a broken archive ({str(error) or type(error).__name__})") from None
    tops = {name.split("/", 1)[0] for name in members}
    if "manifest.json" not in members and len(tops) == 1:
        members = {name.split("/", 1)[1]: content for name, content in members.items() if "/" in name}
    return members


def _parse(members: dict[str, bytes], source: Path) -> Dump:
    manifest = _manifest(members["manifest.json"], source)
    dump = Dump(manifest)
    for name, content in members.items():
        if name.startswith("files/"):
            dump.files["/" + name.removeprefix("files/")] = content.decode("utf-8", "replace")
    for where, entry in _decoded(members, "index.jsonl", _Entry, source):
        _index(dump, entry, where)
    for where, command in _decoded(members, "commands.jsonl", _Command, source):
        if command.reason is None and command.exit_code is None:
            raise DumpError(f"{where}: neither exit_code nor reason")
        dump.commands[tuple(command.argv)] = (
            Failure(command.reason, command.detail)
            if command.reason is not None
            else Completed(command.exit_code or 0, command.stdout, command.stderr)
        )
    for _, answer in _decoded(members, "answers.jsonl", _Answer, source):
        dump.answers[answer.kind, answer.address] = Failure(answer.reason, answer.detail) if answer.reason is not None else answer.answer
    if "nvml.jsonl" in members:
        dump.nvml = [call for _, call in _decoded(members, "nvml.jsonl", Call, source)]
    return dump


def _manifest(content: bytes, source: Path) -> Manifest:
    try:
        raw = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DumpError(f"{source}: manifest.json: {error}") from None
    version = raw.get("format") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise DumpError(f"{source}: manifest.json: format {version} is newer than this version of readiness reads ({FORMAT})")
    try:
        return msgspec.convert(raw, Manifest)
    except msgspec.ValidationError as error:
        raise DumpError(f"{source}: manifest.json: {error}") from None


def _decoded(members: dict[str, bytes], name: str, kind: type[T], source: Path) -> Iterator[tuple[str, T]]:
    """The lines of a member, each with the words that say where it stands."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(members.get(name, b"").split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{source}: {name} line {number}"
        if len(line) > LINE_CAP_BYTES:
            raise DumpError(f"{where}: longer than {LINE_CAP_BYTES >> 20} MiB")
        try:
            yield where, decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DumpError(f"{where}: {error}") from None


def _index(dump: Dump, entry: _Entry, where: str) -> None:
    """Take one line of the index into the dump."""
    if not entry.path.startswith("/"):
        raise DumpError(f"{where}: {entry.path[:80]!r} is no absolute path")
    failure = Failure(entry.reason, entry.detail) if entry.reason is not None else None
    if entry.op == "nvml" and failure is not None:
        dump.nvml = failure
        return
    answers: dict[str, tuple[dict[str, Any], Any]] = {
        "read": (dump.files, entry.text),
        "bytes": (dump.blobs, entry.hex),
        "list": (dump.listings, entry.names),
        "link": (dump.links, entry.target),
        "usage": (dump.usages, entry.usage),
    }
    if entry.op not in answers:
        raise DumpError(f"{where}: unknown operation {entry.op[:40]!r}")
    into, answer = answers[entry.op]
    if failure is None and answer is None:
        raise DumpError(f"{where}: neither an answer nor a reason")
    if failure is None and entry.op == "bytes":
        try:
            answer = bytes.fromhex(answer)
        except ValueError as error:
            raise DumpError(f"{where}: {error}") from None
    into[entry.path] = failure or answer
