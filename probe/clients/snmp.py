"""UPS-MIB over SNMP v2c (RFC 1628), through pysnmp (the extra `readiness[snmp]`)."""

from __future__ import annotations

import asyncio
from typing import Any

from probe.clients import Source, host_and_port
from probe.fact import Unavailable

PORT = 161
OBJECTS = {
    "upsIdentManufacturer": "1.3.6.1.2.1.33.1.1.1.0",
    "upsIdentModel": "1.3.6.1.2.1.33.1.1.2.0",
    "upsBatteryStatus": "1.3.6.1.2.1.33.1.2.1.0",
    "upsSecondsOnBattery": "1.3.6.1.2.1.33.1.2.2.0",
    "upsEstimatedMinutesRemaining": "1.3.6.1.2.1.33.1.2.3.0",
    "upsEstimatedChargeRemaining": "1.3.6.1.2.1.33.1.2.4.0",
    "upsOutputSource": "1.3.6.1.2.1.33.1.4.1.0",
    "upsOutputPower": "1.3.6.1.2.1.33.1.4.4.1.4.1",
    "upsOutputPercentLoad": "1.3.6.1.2.1.33.1.4.4.1.5.1",
    "upsConfigOutputPower": "1.3.6.1.2.1.33.1.9.6.0",
}


def ask(source: Source, deadline_seconds: float) -> dict[str, Any]:
    """The UPS-MIB's objects by name, those that the agent has."""
    try:
        import pysnmp.hlapi.v3arch.asyncio as hlapi
    except ImportError:
        raise Unavailable("not_supported", "pysnmp is not installed: pip install 'readiness[snmp]'") from None

    async def get() -> dict[str, Any]:
        engine = hlapi.SnmpEngine()
        try:
            target = await hlapi.UdpTransportTarget.create(host_and_port(source.address, PORT), timeout=deadline_seconds / 2, retries=1)
            wanted = [hlapi.ObjectType(hlapi.ObjectIdentity(oid)) for oid in OBJECTS.values()]
            failure, status, _, bound = await hlapi.get_cmd(
                engine, hlapi.CommunityData(source.community, mpModel=1), target, hlapi.ContextData(), *wanted, lookupMib=False
            )
        finally:
            engine.close_dispatcher()
        if failure:
            raise Unavailable("timeout" if "before timeout" in str(failure) else "error", str(failure))
        if status:
            raise Unavailable("error", status.prettyPrint())
        return {name: _plain(value) for name, (_, value) in zip(OBJECTS, bound, strict=True) if _plain(value) is not None}

    async def within() -> dict[str, Any]:
        return await asyncio.wait_for(get(), deadline_seconds)

    try:
        return asyncio.run(within())
    except TimeoutError:
        raise Unavailable("timeout", f"no answer within {deadline_seconds:g} s") from None
    except (OSError, ValueError) as error:
        raise Unavailable("error", str(error)) from None


def _plain(value: Any) -> int | str | None:
    """A number or a text; None for `noSuchObject` and its like."""
    kind = type(value).__name__
    if kind.startswith("NoSuch") or kind == "EndOfMibView":
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return bytes(value).decode("utf-8", "replace")
