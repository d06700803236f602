"""The one door to the machine: every byte a probe sees comes through a `Host`.

`LiveHost` asks the machine; `probe.dump` has the hosts that record and replay. A probe cannot tell them apart.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from probe.clients import Source
from probe.fact import Reason, Unavailable
from probe.nvml import Call

READ_CAP_BYTES = 8 << 20
"""No file that a probe reads is larger; the kernel log ring is at most a few MiB."""

OUTPUT_CAP_BYTES = 8 << 20

TOOL_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/mellanox/iproute2/sbin")
"""Where the tools are looked for: a fixed list, and not the PATH of whoever calls."""

TOOLS = frozenset(
    {
        "cpuinfo",
        "dcb",
        "devlink",
        "ethtool",
        "mlxlink",
        "ipmitool",
        "dmidecode",
        "nvme",
        "smartctl",
        "zpool",
        "journalctl",
        "systemctl",
        "timedatectl",
        "modinfo",
        "dcgmi",
        "nvidia-ctk",
        "nv-fabricmanager",
        "ofed_info",
    }
)
"""The read-only tools that may be run. `cpuinfo` is py-cpuinfo, run as a module of our own Python."""


class Usage(msgspec.Struct, frozen=True):
    """A mounted file system: size and what an unprivileged user may still write, in bytes, and its type as the kernel names it."""

    size_bytes: int
    free_bytes: int
    files: int
    files_free: int


class Completed(msgspec.Struct, frozen=True):
    """What a command said: its exit code and both its streams."""

    exit_code: int
    stdout: str
    stderr: str


class Host(Protocol):
    """A machine. Every operation returns plain data or raises `Unavailable`."""

    def read(self, path: str) -> str:
        """The text of a file; bytes that are no UTF-8 become U+FFFD."""

    def read_bytes(self, path: str) -> bytes:
        """The bytes of a file that is no text (PCI configuration space, DMI tables)."""

    def listing(self, path: str) -> list[str]:
        """The names in a folder, sorted."""

    def link(self, path: str) -> str:
        """The target of a symbolic link, as it is written."""

    def usage(self, path: str) -> Usage:
        """Size and free space of the file system at `path`."""

    def run(self, argv: Sequence[str]) -> Completed:
        """What a read-only tool says; `argv[0]` is the bare name of one of `TOOLS`."""

    def nvml(self) -> list[Call]:
        """The log of one NVML sweep."""

    def ask(self, kind: str, address: str) -> Any:
        """What the UPS (`nut`, `apcupsd`, `snmp`) or BMC (`redfish`) says that the site calls `address`, as plain data.

        `sources` gives the (kind, name) of all there are, and `site` what the site's configuration tells of the machine: both are kept
        in a recording, so that it is judged elsewhere as it was here.
        """


def reason_of(error: OSError) -> Reason:
    """Which of our reasons an operating system's error is."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO):
        return "absent"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no_permission"
    if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTSUP):
        return "not_supported"
    return "timeout" if error.errno == errno.ETIMEDOUT else "error"


def unavailable(error: OSError) -> Unavailable:
    """An operating system's error as a host's answer."""
    return Unavailable(reason_of(error), os.strerror(error.errno) if error.errno else str(error))


class LiveHost:
    """The machine we run on. `root` is where its `/` is mounted, for use inside a container.

    `deadline_seconds` bounds each child (NVML sweep, tool, file system) on its own.
    """

    def __init__(
        self,
        root: str = "/",
        *,
        deadline_seconds: float = 10.0,
        tool_folders: Sequence[str] = TOOL_FOLDERS,
        sources: Sequence[Source] = (),
        site: Any = None,
    ) -> None:
        self.root = root
        self.deadline_seconds = deadline_seconds
        self.tool_folders = tool_folders
        self.sources = {(source.kind, source.name): source for source in sources}
        self.site = site
        self._once = _Once()

    def _at(self, path: str) -> str:
        """Where `path` of the machine is for us; links below another root are followed as that machine would."""
        if self.root == "/":
            return path
        return _below(self.root, path)

    def read(self, path: str) -> str:
        return self.read_bytes(path).decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes:
        try:
            # O_NONBLOCK: /dev/kmsg ends instead of waiting for news, a FIFO in a foreign tree does not hold us
            descriptor = os.open(self._at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise unavailable(error) from None
        try:
            content = bytearray()
            while True:
                try:
                    piece = os.read(descriptor, 1 << 16)
                except BlockingIOError:
                    break
                except BrokenPipeError:  # /dev/kmsg: records were overwritten while we read
                    continue
                if not piece:
                    break
                content += piece
                if len(content) > READ_CAP_BYTES:
                    raise Unavailable("error", f"larger than {READ_CAP_BYTES} bytes")
            return bytes(content)
        except OSError as error:
            raise unavailable(error) from None
        finally:
            os.close(descriptor)

    def listing(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except OSError as error:
            raise unavailable(error) from None

    def link(self, path: str) -> str:
        try:
            folder, name = os.path.split(path)
            return os.readlink(os.path.join(self._at(folder), name))
        except OSError as error:
            raise unavailable(error) from None

    def usage(self, path: str) -> Usage:
        """Asked in a child: `statvfs` on a dead NFS or Lustre mount never returns, and cannot be interrupted."""
        import sys

        from probe import process

        code = (
            "import os,sys\n"
            "try: s=os.statvfs(sys.argv[1])\n"
            "except OSError as e: sys.exit(e.errno)\n"
            "print(s.f_blocks*s.f_frsize,s.f_bavail*s.f_frsize,s.f_files,s.f_favail)"
        )
        argv = [sys.executable, "-I", "-S", "-c", code, self._at(path)]
        answer = process.run(argv, deadline_seconds=self.deadline_seconds, output_cap_bytes=4096, env={})
        if answer.exit_code:
            raise unavailable(OSError(answer.exit_code, os.strerror(answer.exit_code)))
        return Usage(*map(int, answer.stdout.split()))

    def run(self, argv: Sequence[str]) -> Completed:
        from probe import process

        env = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/"}
        command = [*self._tool(argv[0]), *argv[1:]]

        def start() -> Completed:
            return process.run(command, deadline_seconds=self.deadline_seconds, output_cap_bytes=OUTPUT_CAP_BYTES, env=env)

        answer: Completed = self._once.answer(tuple(argv), start)
        return answer

    def _tool(self, name: str) -> list[str]:
        if name not in TOOLS:
            raise ValueError(f"{name} is not one of the tools that may be run")
        if name == "cpuinfo":
            import sys

            return [sys.executable, "-I", "-m", "cpuinfo"]
        for folder in self.tool_folders:
            path = f"{folder}/{name}"
            if os.access(path, os.X_OK):
                return [path]
        raise Unavailable("absent", f"{name} is not installed")

    def nvml(self) -> list[Call]:
        from probe import nvml

        return nvml.sweep(self.deadline_seconds, {**os.environ, "LC_ALL": "C"})

    def ask(self, kind: str, address: str) -> Any:
        if kind == "sources":
            return [list(key) for key in self.sources]
        if kind == "site":
            return msgspec.to_builtins(self.site)
        source = self.sources.get((kind, address))
        if source is None:
            raise Unavailable("absent", f"no {kind} {address} is configured")
        import importlib

        client = importlib.import_module(f"probe.clients.{kind}")
        return self._once.answer((kind, address), lambda: client.ask(source, self.deadline_seconds))


class _Once:
    """Answers that are asked for once and then kept, also the failures: two probes that want the same do not ask twice, and a BMC that
    refused a password is not offered it again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._answers: dict[tuple[str, ...], Any] = {}

    def answer(self, key: tuple[str, ...], ask: Callable[[], Any]) -> Any:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._answers:
                try:
                    self._answers[key] = ask()
                except Unavailable as error:
                    self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, Unavailable):
            raise Unavailable(answer.reason, answer.detail)
        return answer


def _below(root: str, path: str) -> str:
    """`path` as the machine whose `/` is `root` would find it: no link leads out of `root`. Raises OSError (ELOOP)."""
    done: list[str] = []
    todo = [part for part in path.split("/") if part]
    links = 0
    while todo:
        part = todo.pop(0)
        if part == "..":
            done = done[:-1]
            continue
        here = os.path.join(root, *done, part)
        try:
            is_link = stat.S_ISLNK(os.lstat(here).st_mode)
        except OSError:
            is_link = False
        if not is_link:
            if part != ".":
                done.append(part)
            continue
        links += 1
        if links > 40:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(here)
        if target.startswith("/"):
            done = []
        todo = [piece for piece in target.split("/") if piece] + todo
    return os.path.join(root, *done)
