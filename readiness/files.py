"""How files are written, whole or not at all, and how old they are."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

CLOCK_SLACK_SECONDS = 2.0


def write_whole(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write a file beside itself and rename it into place; with `mode` whatever the umask is, else as `open` does.

    A link is followed; a device or a pipe is written to, never replaced. Raises OSError, and leaves then what there was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    beside = target.with_name(f".readiness.{os.getpid()}.{threading.get_ident()}.partial")
    beside.unlink(missing_ok=True)  # of a run that was killed, or planted: it is never followed
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666), "wb") as out:
            if mode is not None:
                os.fchmod(out.fileno(), mode)
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, target)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def age_seconds(path: Path) -> float:
    """How old a file is by the wall clock; infinite where it is from the future, which a clock that was set back makes of it. Raises `OSError`."""
    age = time.time() - path.stat().st_mtime
    return age if age > -CLOCK_SLACK_SECONDS else float("inf")
