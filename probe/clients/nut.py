"""Network UPS Tools: what `upsd` says of its UPSs (Network UPS Tools, RFC 9271).

    LIST UPS                          → UPS name "description"
    LIST VAR name                     → VAR name variable "value"

Values are quoted, with `\\"` and `\\\\` for quote and backslash inside. Errors are `ERR WORD`.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from typing import Any

from probe.clients import Source, host_and_port
from probe.fact import Unavailable

PORT = 3493
LINE_CAP_BYTES = 4096
LINES_CAP = 2000
UPSES_CAP = 16
WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')


def words(line: str) -> list[str]:
    """The words of a line, unquoted."""
    return [re.sub(r"\\(.)", r"\1", quoted) if plain == "" else plain for quoted, plain in WORD.findall(line)]


class _Connection:
    """A conversation line by line, all of it within one deadline."""

    def __init__(self, source: Source, deadline_seconds: float) -> None:
        self.end = time.monotonic() + deadline_seconds
        host, port = host_and_port(source.address, PORT)
        self.socket: socket.socket = socket.create_connection((host, port), timeout=deadline_seconds)
        self.buffer = b""

    def say(self, line: str) -> None:
        self.socket.settimeout(max(0.01, self.end - time.monotonic()))
        self.socket.sendall(line.encode() + b"\n")

    def line(self) -> str:
        while b"\n" not in self.buffer:
            if len(self.buffer) > LINE_CAP_BYTES:
                raise Unavailable("error", "a line without end: is this upsd?")
            left = self.end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            piece = self.socket.recv(4096)
            if not piece:
                raise Unavailable("error", "the connection was closed in the middle of an answer")
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.decode("utf-8", "replace")

    def answer(self, question: str) -> str:
        """One line; an `ERR ...` raises."""
        self.say(question)
        line = self.line()
        if line.startswith("ERR "):
            raise _Refused(line[4:].strip())
        return line

    def listing(self, question: str) -> list[list[str]]:
        """The lines between `BEGIN LIST ...` and `END LIST ...`, in words."""
        if not self.answer(question).startswith("BEGIN LIST"):
            raise Unavailable("error", "an answer that is not upsd's")
        found: list[list[str]] = []
        for _ in range(LINES_CAP):
            line = self.line()
            if line.startswith("END LIST"):
                return found
            found.append(words(line))
        raise Unavailable("error", f"more than {LINES_CAP} lines")


class _Refused(Exception):  # noqa: N818
    """`ERR ...`."""


def ask(source: Source, deadline_seconds: float) -> dict[str, Any]:
    """`{ups: {variable: value}}` of the named UPS, or of all; a UPS that cannot be read has `{"error": "DATA-STALE"}`."""
    try:
        connection = _Connection(source, deadline_seconds)
        with connection.socket as plain:
            if source.tls:
                connection.answer("STARTTLS")
                context = ssl.create_default_context(cafile=source.ca_file or None)
                if source.insecure:
                    context.check_hostname = False
                    context.verify_mode = ssl.CERT_NONE
                connection.socket = context.wrap_socket(plain, server_hostname=host_and_port(source.address, PORT)[0])
            if source.user:
                connection.answer(f"USERNAME {source.user}")
                connection.answer(f"PASSWORD {source.password}")
            wanted = (
                [source.ups] if source.ups else [row[1] for row in connection.listing("LIST UPS") if row[:1] == ["UPS"] and len(row) > 1]
            )
            found: dict[str, Any] = {}
            for name in wanted[:UPSES_CAP]:
                try:
                    rows = connection.listing(f"LIST VAR {name}")
                    found[name] = {row[2]: row[3] for row in rows if row[:1] == ["VAR"] and len(row) >= 4}
                except _Refused as refused:
                    found[name] = {"error": str(refused)}
            connection.say("LOGOUT")
            return found
    except _Refused as refused:
        denied = str(refused).split()[0] in (
            "ACCESS-DENIED",
            "INVALID-PASSWORD",
            "INVALID-USERNAME",
            "PASSWORD-REQUIRED",
            "USERNAME-REQUIRED",
        )
        raise Unavailable("no_permission" if denied else "error", f"upsd says {refused}") from None
    except TimeoutError:
        raise Unavailable("timeout", f"no answer within {deadline_seconds:g} s") from None
    except ssl.SSLError as error:
        raise Unavailable("error", f"TLS: {error.reason or error}") from None
    except (OSError, ValueError) as error:
        raise Unavailable("error", str(getattr(error, "strerror", None) or error)) from None
