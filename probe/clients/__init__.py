"""How UPSs and BMCs are asked over the network. Each client returns plain data, or raises `Unavailable`; none tries a second time."""

from __future__ import annotations

import msgspec


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A UPS or BMC to ask, from the site's configuration. `password` never leaves this object."""

    kind: str
    name: str
    address: str
    ups: str = ""
    user: str = ""
    password: str = ""
    community: str = "public"
    tls: bool = False
    ca_file: str = ""
    insecure: bool = False

    def __repr__(self) -> str:
        return f"Source({self.kind} {self.name})"


def host_and_port(address: str, default: int) -> tuple[str, int]:
    """`ups1:3493`, `[fe80::1]:3493`, `ups1` → host and port; raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or (address.startswith("[") and address.endswith("]")) or (":" in host and not host.startswith("[")):
        return address.strip("[]"), default
    return host.strip("[]"), int(port)
