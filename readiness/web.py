"""The HTTP server of the daemon: sends bytes that were made before, to clients that may be slow, many or hostile.

h11 parses; a connection has a few seconds for its request head, no body, and its answer; there are never more than a fixed number of them,
and where a new one finds no place the oldest that has not asked anything yet must go. A scrape starts no probe.

TLS and basic auth are configured as Prometheus users know it from exporter-toolkit's web configuration file, and read again when it changes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal

import h11
import msgspec

log = logging.getLogger(__name__)

HEAD_SECONDS = 5.0
IDLE_SECONDS = 60.0
WRITE_SECONDS = 15.0
CONNECTIONS_CAP = 128
HEAD_CAP_BYTES = 16 << 10
TLS_HANDSHAKE_SECONDS = 5.0
NOBODY = b"$2b$10$K6.MnRI/qbeuEJEFaQDTkuFhOs1xVzL0IxZCv.TjRCe5iD/JJB1a."
"""A hash that no password has: an unknown user costs as much time as a wrong password."""


NEW_LINE = "\r\n"
COMMON_HEADERS = (
    "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\nVary: Accept, Accept-Encoding\r\n"
)
GZIPPED = "Content-Encoding: gzip\r\n"


class Page(msgspec.Struct, frozen=True):
    """A body with its type, as it is and gzipped."""

    content_type: str
    body: bytes
    packed: bytes


Pages = dict[str, Page]
"""Pages by path; `/metrics` and `/metrics openmetrics` for the two formats."""


# --- the web configuration -----------------------------------------------------------------------------------------------------------


class TlsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tls_server_config` of exporter-toolkit."""

    cert_file: str
    key_file: str
    client_auth_type: Literal[
        "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
    ] = "NoClientCert"
    client_ca_file: str = ""
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class WebConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """exporter-toolkit's web configuration file, as far as it is about TLS and basic auth; passwords are bcrypt hashes."""

    tls_server_config: TlsSection | None = None
    basic_auth_users: dict[str, Annotated[str, msgspec.Meta(pattern=r"^\$2[aby]\$")]] = {}


class WebConfigError(Exception):
    """One line: the file, and what is wrong with it."""


def load_web_config(path: Path) -> tuple[WebConfig, ssl.SSLContext | None]:
    """Read and check a web configuration and its certificates. Raises `WebConfigError`."""
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        config = msgspec.convert(raw, WebConfig)
        return config, _context(config.tls_server_config, path.parent) if config.tls_server_config else None
    except OSError as error:
        raise WebConfigError(f"{path}: {error.filename or ''} {error.strerror or error}") from None
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise WebConfigError(f"{path}: {' '.join(str(error).split())}") from None


def _context(tls: TlsSection, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    for name in (tls.cert_file, tls.key_file, tls.client_ca_file):
        if name:
            (folder / name).open("rb").close()  # ssl does not say which file it lacks
    context.load_cert_chain(folder / tls.cert_file, folder / tls.key_file)
    if tls.client_ca_file:
        context.load_verify_locations(folder / tls.client_ca_file)
    if tls.client_auth_type in ("RequireAndVerifyClientCert", "RequireAnyClientCert"):
        context.verify_mode = ssl.CERT_REQUIRED
    elif tls.client_auth_type in ("VerifyClientCertIfGiven", "RequestClientCert"):
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


class Access:
    """The web configuration in force. It is read again when the file or a certificate changes; a broken one is said, and the old one stays."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.config = WebConfig()
        self.tls: ssl.SSLContext | None = None
        self._stamp: tuple[int, ...] = ()
        self._secret = secrets.token_bytes(32)
        self._verified: dict[bytes, float] = {}
        if path is not None:
            self._stamp = self._stamps()
            self.config, self.tls = load_web_config(path)
        self.listening_tls = self._listening()

    def _listening(self) -> ssl.SSLContext | None:
        """The context to listen with: each handshake is handed the one in force, so that certificates are renewed without a restart."""
        if self.tls is None:
            return None
        listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls = self.config.tls_server_config
        assert tls is not None
        assert self.path is not None
        listening.minimum_version, listening.verify_mode = self.tls.minimum_version, self.tls.verify_mode
        listening.load_cert_chain(self.path.parent / tls.cert_file, self.path.parent / tls.key_file)
        if tls.client_ca_file:
            listening.load_verify_locations(self.path.parent / tls.client_ca_file)

        def hand_over(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            if self.tls is not None:
                connection.context = self.tls

        listening.sni_callback = hand_over
        return listening

    def _stamps(self) -> tuple[int, ...]:
        assert self.path is not None
        tls = self.config.tls_server_config
        files = [self.path, *([self.path.parent / tls.cert_file, self.path.parent / tls.key_file] if tls else [])]
        return tuple(os.stat(file).st_mtime_ns if file.exists() else 0 for file in files)

    def refresh(self) -> bool:
        """Read the configuration again if it has changed; False where it is broken."""
        if self.path is None or self._stamps() == self._stamp:
            return True
        self._stamp = self._stamps()
        try:
            config, tls = load_web_config(self.path)
        except WebConfigError as error:
            log.warning("%s; the old one stays in force", error)
            return False
        if (tls is None) != (self.tls is None):
            log.warning("%s: TLS was switched on or off, which needs a restart; the old one stays in force", self.path)
            return False
        self.config, self.tls = config, tls
        self._verified.clear()
        self._stamp = self._stamps()
        return True

    def remembers(self, header: bytes | None) -> bool | None:
        """Whether an Authorization header is a user's, where that can be told at once; None where bcrypt must be asked."""
        if not self.config.basic_auth_users:
            return True
        asked = self._asked(header)
        if asked is None:
            return False
        return True if self._key(*asked) in self._verified else None

    def _asked(self, header: bytes | None) -> tuple[bytes, bytes, bytes] | None:
        """User, the hash that counts, and password; None where the header holds none."""
        if header is None or not header.lower().startswith(b"basic "):
            return None
        try:
            user, colon, password = base64.b64decode(header[6:].strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        if not colon or len(password) > 256:
            return None
        return user, self.config.basic_auth_users.get(user.decode("utf-8", "replace"), "").encode() or NOBODY, password

    def _key(self, *parts: bytes) -> bytes:
        """A keyed hash of the parts, each with its length before it, so that none can be mistaken for another."""
        return hmac.new(self._secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), hashlib.sha256).digest()

    async def allows(self, header: bytes | None) -> bool:
        """Whether an Authorization header is a user's. bcrypt takes long, so what was verified is remembered."""
        asked = self._asked(header)
        if not self.config.basic_auth_users or asked is None:
            return not self.config.basic_auth_users
        _, hashed, password = asked
        if not await asyncio.to_thread(_bcrypt_matches, password, hashed) or hashed == NOBODY:
            return False
        if len(self._verified) > 1000:
            self._verified.clear()
        self._verified[self._key(*asked)] = time.monotonic()
        return True


def _bcrypt_matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password[:72], hashed)
    except ValueError:
        return False


# --- the server ------------------------------------------------------------------------------------------------------------------------


class Server:
    """Serves `pages`, which whoever makes them replaces as a whole."""

    def __init__(self, access: Access, *, ready: Callable[[], bool]) -> None:
        self.access = access
        self.ready = ready
        self.pages: Pages = {}
        self.connections: dict[_Connection, None] = {}
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Start to listen; returns the port."""
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self.access.listening_tls is not None:
            tls = {"ssl": self.access.listening_tls, "ssl_handshake_timeout": TLS_HANDSHAKE_SECONDS}
        server = await loop.create_server(lambda: _Connection(self), host, port, backlog=256, reuse_address=True, **tls)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and end every connection."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.abort()

    def make_room(self) -> None:
        """Where there are too many connections, end the oldest one that is not being answered."""
        while len(self.connections) > CONNECTIONS_CAP:
            idle = next((connection for connection in self.connections if not connection.answering), None)
            (idle or next(iter(self.connections))).abort()

    def find(self, path: str, accept: str) -> tuple[int, Page]:
        """The status and page of a path."""
        if path == "/-/healthy":
            return 200, _note("readiness is healthy\n")
        if path == "/-/ready":
            return (200, _note("readiness is ready\n")) if self.ready() else (503, _note("no report yet\n"))
        if path == "/metrics" and "application/openmetrics-text" in accept and "/metrics openmetrics" in self.pages:
            return 200, self.pages["/metrics openmetrics"]
        page = self.pages.get(path)
        if page is not None:
            return 200, page
        if path in ("/", "/metrics", "/report.json", "/report.html"):
            return 503, _note("no report yet\n")
        return 404, _note("not found\n")


def _note(text: str) -> Page:
    return Page("text/plain; charset=utf-8", text.encode(), b"")


class _Connection(asyncio.Protocol):
    """One client: h11 parses what it sends, a new parser for each request; the answers were made before."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.parser = _parser()
        self.request: h11.Request | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.answering = False
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 20)
        self.server.connections[self] = None
        self.server.make_room()
        self._limit(HEAD_SECONDS)

    def _limit(self, seconds: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self.server.connections.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self.server.connections.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.receive_data(data)
            self._next()
        except h11.RemoteProtocolError as error:
            self._respond(error.error_status_hint or 400, _note("bad request\n"), close=True)

    def _next(self) -> None:
        """Take what the parser has, unless an answer is on its way: requests are answered one after the other."""
        while not self.answering and self.transport is not None and not self.transport.is_closing():
            event = self.parser.next_event()
            if isinstance(event, h11.Request):
                self.request = event
            elif isinstance(event, h11.Data):  # nobody has a reason to send a body
                self._respond(413, _note("no body, please\n"), close=True)
            elif isinstance(event, h11.EndOfMessage) and self.request is not None:
                self._serve(self.request)
            elif isinstance(event, h11.ConnectionClosed):
                self.transport.close()
            else:
                return

    def _serve(self, request: h11.Request) -> None:
        if request.method not in (b"GET", b"HEAD"):
            self._respond(405, _note("GET or HEAD\n"), close=True, extra=b"Allow: GET, HEAD\r\n")
            return
        headers = dict(request.headers)  # h11 gives the names in lower case
        path = request.target.decode("latin-1").split("?", 1)[0]
        allowed = True if path.startswith("/-/") else self.server.access.remembers(headers.get(b"authorization"))
        if allowed is None:
            self.answering = True
            self.task = asyncio.get_running_loop().create_task(self._verify(path, headers))
        else:
            self._answer(path, headers, allowed)

    async def _verify(self, path: str, headers: dict[bytes, bytes]) -> None:
        """bcrypt takes long: it runs beside, and the connection waits."""
        allowed = await self.server.access.allows(headers.get(b"authorization"))
        self.answering = False
        self._answer(path, headers, allowed)
        try:
            self._next()
        except h11.RemoteProtocolError:
            self.abort()

    def _answer(self, path: str, headers: dict[bytes, bytes], allowed: bool) -> None:
        if not allowed:
            self._respond(401, _note("who are you?\n"), extra=b'WWW-Authenticate: Basic realm="readiness"\r\n')
            return
        status, page = self.server.find(path, headers.get(b"accept", b"").decode("latin-1"))
        self._respond(status, page, packed=b"gzip" in headers.get(b"accept-encoding", b"") and bool(page.packed))

    def _respond(self, status: int, page: Page, *, packed: bool = False, close: bool = False, extra: bytes = b"") -> None:
        """One write: head and body; then the next request, or the end."""
        if self.transport is None or self.transport.is_closing():
            return
        request, self.request = self.request, None
        body = page.packed if packed else page.body
        keep = not close and request is not None and request.http_version >= b"1.1" and (b"connection", b"close") not in request.headers
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {page.content_type}\r\nContent-Length: {len(body)}\r\n"
            f"{COMMON_HEADERS}{GZIPPED if packed else ''}{'' if keep else 'Connection: close' + NEW_LINE}"
        ).encode("latin-1")
        only_head = request is not None and request.method == b"HEAD"
        self.transport.write(head + extra + b"\r\n" + (b"" if only_head else body))
        if not keep:
            self.transport.close()
            self._limit(WRITE_SECONDS)
            return
        self._limit(IDLE_SECONDS)
        more, _ = self.parser.trailing_data
        self.parser = _parser()
        if more:
            self.parser.receive_data(more)


def _parser() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_CAP_BYTES)
