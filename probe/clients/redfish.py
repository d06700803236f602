"""A BMC over Redfish (DMTF DSP0266): the power and thermal resources of its chassis, by plain GETs.

A wrong password is said and not tried again: BMCs lock accounts after a few attempts.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from probe.clients import Source
from probe.fact import Unavailable

BODY_CAP_BYTES = 4 << 20
REQUESTS_CAP = 100


class _Bmc:
    """One conversation, all of it within one deadline."""

    def __init__(self, source: Source, deadline_seconds: float) -> None:
        self.end = time.monotonic() + deadline_seconds
        self.requests = 0
        url = urlsplit(source.address if "//" in source.address else f"https://{source.address}")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise Unavailable("error", "the address is no http(s) URL")
        context = ssl.create_default_context(cafile=source.ca_file or None)
        if source.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self.connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection(url.hostname, url.port, timeout=deadline_seconds, context=context)
            if url.scheme == "https"
            else http.client.HTTPConnection(url.hostname, url.port, timeout=deadline_seconds)
        )
        self.headers = {"Accept": "application/json"}
        if source.user:
            token = base64.b64encode(f"{source.user}:{source.password}".encode()).decode()
            self.headers["Authorization"] = f"Basic {token}"

    def get(self, path: str) -> dict[str, Any] | None:
        """A resource; None where there is none. Links lead nowhere but into the BMC's own tree."""
        self.requests += 1
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not path.startswith("/redfish/") or self.requests > REQUESTS_CAP:
            return None
        self.connection.timeout = left
        if self.connection.sock is not None:
            self.connection.sock.settimeout(left)
        self.connection.request("GET", path, headers=self.headers)
        response = self.connection.getresponse()
        body = response.read(BODY_CAP_BYTES + 1)
        if response.status in (401, 403):
            raise Unavailable("no_permission", f"HTTP {response.status}: wrong user or password, or no right to read; not tried again")
        if response.status == 404:
            return None
        if response.status != 200 or len(body) > BODY_CAP_BYTES:
            raise Unavailable("error", f"HTTP {response.status} for {path}" if response.status != 200 else f"{path} is too large")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            raise Unavailable("error", f"{path} is no JSON") from None
        return said if isinstance(said, dict) else None

    def linked(self, resource: dict[str, Any], key: str) -> dict[str, Any] | None:
        link = resource.get(key)
        target = link.get("@odata.id") if isinstance(link, dict) else None
        return self.get(target) if isinstance(target, str) else None

    def members(self, collection: dict[str, Any] | None) -> list[dict[str, Any]]:
        links = collection.get("Members") if collection else None
        found = (
            [self.get(one["@odata.id"]) for one in links if isinstance(one, dict) and isinstance(one.get("@odata.id"), str)]
            if isinstance(links, list)
            else []
        )
        return [one for one in found if one is not None]


def ask(source: Source, deadline_seconds: float) -> dict[str, Any]:
    """`{"power": [...], "subsystems": [...], "supplies": [...], "thermal": [...]}` of all chassis."""
    found: dict[str, list[dict[str, Any]]] = {"power": [], "subsystems": [], "supplies": [], "thermal": []}
    try:
        bmc = _Bmc(source, deadline_seconds)
        try:
            for chassis in bmc.members(bmc.get("/redfish/v1/Chassis")):
                for key, place in (("Power", "power"), ("Thermal", "thermal")):
                    resource = bmc.linked(chassis, key)
                    found[place] += [resource] if resource else []
                subsystem = bmc.linked(chassis, "PowerSubsystem")
                if subsystem:
                    found["subsystems"].append(subsystem)
                    found["supplies"] += bmc.members(bmc.linked(subsystem, "PowerSupplies"))
        finally:
            bmc.connection.close()
    except TimeoutError:
        raise Unavailable("timeout", f"no answer within {deadline_seconds:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise Unavailable("error", f"the certificate is not trusted ({error.verify_message}): name its CA in ca_file") from None
    except ssl.SSLError as error:
        raise Unavailable("error", f"TLS: {error.reason or error}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable("error", str(getattr(error, "strerror", None) or error) or type(error).__name__) from None
    return found
