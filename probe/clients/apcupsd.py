"""apcupsd's network information server: two bytes of length, big-endian, before each message; an empty one ends the answer.

apcupsd User's Manual, "NIS network server protocol"
"""

from __future__ import annotations

import socket
import time

from probe.clients import Source, host_and_port
from probe.fact import Unavailable

PORT = 3551
RECORDS_CAP = 500


def ask(source: Source, deadline_seconds: float) -> dict[str, str]:
    """The `KEY      : value` records of `status`."""
    end = time.monotonic() + deadline_seconds
    found: dict[str, str] = {}
    try:
        with socket.create_connection(host_and_port(source.address, PORT), timeout=deadline_seconds) as connection:
            connection.sendall(len(b"status").to_bytes(2, "big") + b"status")
            for _ in range(RECORDS_CAP):
                length = int.from_bytes(_exactly(connection, 2, end), "big")
                if not length:
                    return found
                key, colon, value = _exactly(connection, length, end).decode("utf-8", "replace").partition(":")
                if not colon:
                    raise Unavailable("error", "an answer that is not apcupsd's")
                found[key.strip()] = value.strip()
    except TimeoutError:
        raise Unavailable("timeout", f"no answer within {deadline_seconds:g} s") from None
    except (OSError, ValueError) as error:
        raise Unavailable("error", str(getattr(error, "strerror", None) or error)) from None
    raise Unavailable("error", f"more than {RECORDS_CAP} records")


def _exactly(connection: socket.socket, size: int, end: float) -> bytes:
    received = b""
    while len(received) < size:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        piece = connection.recv(size - len(received))
        if not piece:
            raise Unavailable("error", "the connection was closed in the middle of an answer")
        received += piece
    return received
