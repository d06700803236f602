"""Runs a child that may hang, flood, or refuse to die, and always comes back.

`subprocess.run(timeout=...)` is no help here: after its deadline it kills the child and waits for it without a limit, and a child in
uninterruptible sleep (a hung driver, a dead NFS server) never ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

import msgspec

from probe.fact import Unavailable
from probe.host import Completed

DYING_SECONDS = 0.5
"""How long a killed child may take to end before it is left to itself."""

_PIPE_GRACE_SECONDS = 0.2
"""How long a pipe is still read after its child has ended: a grandchild may hold it open for ever."""


_running: set[subprocess.Popen[bytes]] = set()


@atexit.register
def end_all() -> None:
    """Kill every child that still runs, for when the program ends before they do (Ctrl-C, SIGTERM, a probe left behind)."""
    for child in list(_running):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


class Interrupted(msgspec.Struct, frozen=True):
    """What a child had written when it was stopped, and in which state the kernel held it (`D`: uninterruptible sleep)."""

    stdout: bytes
    stderr: bytes
    why: str
    state: str


def stream(
    argv: Sequence[str], *, deadline_seconds: float, output_cap_bytes: int, env: Mapping[str, str]
) -> tuple[int, bytes, bytes] | Interrupted:
    """Run `argv` to its end, or until the deadline or the output cap, and return what it wrote.

    The child leads a process group of its own, which is killed whole. Raises `Unavailable` if it cannot be started.
    """
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
            cwd="/",
        )
    except PermissionError as error:
        raise Unavailable("no_permission", f"{argv[0]}: {error.strerror}") from None
    except OSError as error:
        raise Unavailable("error", f"{argv[0]}: {error.strerror}") from None
    assert child.stdout is not None
    assert child.stderr is not None
    _running.add(child)
    pipes = {child.stdout: bytearray(), child.stderr: bytearray()}
    end = time.monotonic() + deadline_seconds
    why = ""
    try:
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                left = end - time.monotonic()
                if left <= 0:
                    why = f"no end within {deadline_seconds:g} s"
                    break
                ready = selector.select(min(left, _PIPE_GRACE_SECONDS))
                if not ready and child.poll() is not None:
                    break
                for key, _ in ready:
                    received = os.read(key.fd, 1 << 16)
                    if received:
                        pipes[key.fileobj].extend(received)  # type: ignore[index]
                    else:
                        selector.unregister(key.fileobj)
                if sum(map(len, pipes.values())) > output_cap_bytes:
                    why = f"more than {output_cap_bytes} bytes of output"
                    break
        if not why:
            try:
                code = child.wait(max(0.05, end - time.monotonic()))
                return code, bytes(pipes[child.stdout]), bytes(pipes[child.stderr])
            except subprocess.TimeoutExpired:
                why = f"no end within {deadline_seconds:g} s"
        return Interrupted(bytes(pipes[child.stdout]), bytes(pipes[child.stderr]), why, _kill(child))
    except BaseException:  # Ctrl-C above all: the child must not outlive us
        _kill(child)
        raise
    finally:
        _running.discard(child)
        child.stdout.close()
        child.stderr.close()


def run(argv: Sequence[str], *, deadline_seconds: float, output_cap_bytes: int, env: Mapping[str, str]) -> Completed:
    """Run a command and return what it said; raises `Unavailable` (`timeout`, or `error` for too much output)."""
    answer = stream(argv, deadline_seconds=deadline_seconds, output_cap_bytes=output_cap_bytes, env=env)
    if isinstance(answer, Interrupted):
        detail = answer.why + (", and it cannot be killed (uninterruptible sleep)" if answer.state == "D" else "")
        raise Unavailable("timeout" if answer.why.startswith("no end") else "error", detail)
    code, stdout, stderr = answer
    return Completed(code, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))


def _kill(child: subprocess.Popen[bytes]) -> str:
    """End the child, its group and whatever left the group; returns the state it was in, as `/proc/PID/stat` names it."""
    import psutil

    family = []
    state = ""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(child.pid)
        state = {psutil.STATUS_DISK_SLEEP: "D"}.get(process.status(), process.status())
        family = process.children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(DYING_SECONDS)
    return state
