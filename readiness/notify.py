"""Tells systemd how the service is (sd_notify(3)): a datagram to the socket that NOTIFY_SOCKET names. Without one nothing happens."""

from __future__ import annotations

import os
import socket


def notify(*words: str) -> None:
    """Send `READY=1`, `WATCHDOG=1`, `STATUS=...` and the like."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.connect("\0" + address[1:] if address.startswith("@") else address)
            channel.sendall("\n".join(words).encode())
        except OSError:
            return
