"""Who may ask what: the gate in front of every handler.

In this order, cheapest first: rate per client, Host (against DNS rebinding), origin (against other sites in a browser),
size, credentials.  Whatever passes gets headers that keep a browser from misusing the answer.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import bcrypt
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllmeter.config.load import ConfigError
from vllmeter.web.web_config import OPEN, WebSecurity, load_web_config

log = logging.getLogger("vllmeter.web")

MOST_BODY: Final = 64 * 1024
"""Bytes of a request's body; the largest that a handler wants has a few hundred."""
RATE: Final = 200.0
BURST: Final = 400.0
"""Requests per second and client address: far above any number of scrapers and pages, far below a flood."""
FAILED_RATE: Final = 2.0
FAILED_BURST: Final = 20.0
"""Wrong credentials per second and client address: each costs a bcrypt."""
MOST_CLIENTS: Final = 4096
MOST_CACHED: Final = 256

PRIVATE_SUFFIXES: Final = (".localhost", ".local", ".internal", ".svc", ".home.arpa", ".lan")
"""Names that nobody on the internet can point somewhere, so no foreign page can come under them."""

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Added where the answer does not have its own (the live page has a policy of its own)."""


class Buckets:
    """Token buckets by client address."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """address -> (tokens left, when)"""

    def left(self, client: str, now: float) -> float:
        """Tokens of a client at ``now`` (monotonic seconds)."""
        level, at = self._levels.get(client, (self._burst, now))
        return min(self._burst, level + (now - at) * self._rate)

    def take(self, client: str, now: float) -> bool:
        """Takes one; False when there is none."""
        left = self.left(client, now)
        self._levels[client] = (left - 1 if left >= 1 else left, now)
        self._levels.move_to_end(client)
        if len(self._levels) > MOST_CLIENTS:
            self._levels.popitem(last=False)
        return left >= 1


class Credentials:
    """Checks Authorization headers.  Every way takes the same time, and a bcrypt is computed once per password."""

    def __init__(self, security: WebSecurity) -> None:
        self._security = security
        self._key = os.urandom(32)
        self._known: OrderedDict[bytes, bool] = OrderedDict()
        self._one = threading.Lock()

    def quick(self, header: str) -> bool | None:
        """The answer when it needs no bcrypt, else None."""
        scheme, _, value = header.partition(" ")
        if scheme.lower() == "bearer":
            given = value.strip().encode("utf-8", "surrogateescape")
            # No early end: the time must not tell which token, or how much of it, was right.
            return sum(hmac.compare_digest(given, token) for token in self._security.tokens) > 0
        if scheme.lower() != "basic" or not self._security.users:
            return False
        pair = _decoded(value)
        return False if pair is None else self._known.get(self._digest(*pair))

    def slow(self, header: str) -> bool:
        """The answer for a basic header; one bcrypt at a time, whatever comes in."""
        pair = _decoded(header.partition(" ")[2])
        if pair is None:
            return False
        user, password = pair
        digest = self._digest(user, password)
        with self._one:
            known = self._known.get(digest)
            if known is not None:
                return known
            stored = self._security.users.get(user.decode("utf-8", "replace"))
            right = _bcrypt(password, stored if stored is not None else self._security.decoy) and stored is not None
            self._known[digest] = right
            if len(self._known) > MOST_CACHED:
                self._known.popitem(last=False)
            return right

    def _digest(self, user: bytes, password: bytes) -> bytes:
        """What the result is kept under: no password stays in memory."""
        return hmac.new(self._key, len(user).to_bytes(4, "big") + user + password, hashlib.sha256).digest()


def _decoded(value: str) -> tuple[bytes, bytes] | None:
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


def _bcrypt(password: bytes, stored: bytes) -> bool:
    try:
        return bcrypt.checkpw(password[:72], stored)  # bcrypt looks at no more than 72 bytes
    except ValueError:
        return False


class Policy:
    """The security in force: read at the start, read again when one of its files changes."""

    def __init__(self, path: Path | None = None) -> None:
        """:raises ConfigError: ``path`` cannot be used"""
        self._path = path
        self._seen: tuple[int, ...] = ()
        self.security: WebSecurity = OPEN
        self.credentials = Credentials(OPEN)
        if path is not None:
            self._take(load_web_config(path))

    def refresh(self) -> bool:
        """Looks at the files (about once a second); True when something new is in force.

        A change that cannot be used keeps what was, and is logged once.  TLS cannot be switched on or off meanwhile.
        """
        if self._path is None or self._stamps() == self._seen:
            return False
        try:
            security = load_web_config(self._path)
            if (security.tls is None) != (self.security.tls is None):
                raise ConfigError([f"{self._path}:1: tls_server_config: needs a restart of the exporter"])
        except ConfigError as error:
            self._seen = self._stamps()
            log.error("web_config=kept %s", str(error).replace("\n", " | "))
            return False
        self._take(security)
        log.info("web_config=loaded file=%s", self._path)
        return True

    def _take(self, security: WebSecurity) -> None:
        self.security, self.credentials = security, Credentials(security)
        self._seen = self._stamps()

    def _stamps(self) -> tuple[int, ...]:
        assert self._path is not None
        tls = self.security.tls
        files = [self._path] if tls is None else [self._path, tls.cert_file, tls.key_file]
        stamps = []
        for file in files:
            with contextlib.suppress(OSError):
                stamps.append(file.stat().st_mtime_ns)
        return tuple(stamps)


class Guard:
    """ASGI middleware: the gate.  ``loopback`` = we listen on this host only."""

    def __init__(
        self,
        app: ASGIApp,
        policy: Policy,
        *,
        loopback: bool = True,
        clock: Callable[[], float] = time.monotonic,
        own_names: Iterable[str] | None = None,
    ) -> None:
        self._app = app
        self._policy = policy
        self._loopback = loopback
        self._clock = clock
        self._own = frozenset(name.lower() for name in (own_names if own_names is not None else _own_names()))
        self._requests = Buckets(RATE, BURST)
        self._failures = Buckets(FAILED_RATE, FAILED_BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        refusal = self._refusal(scope, headers) or await self._unauthorized(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        await self._app(scope, _Limited(receive), _hardened(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        client = _client(scope)
        if not self._requests.take(client, self._clock()):
            return 429, "too many requests from this address", (("retry-after", "1"),)
        host = headers.get("host", "")
        if not self._host_allowed(host, scope["path"]):
            shown = _hostname(host)[:100] or "none"
            return (
                421,
                f"host name {shown!r} is not one of this exporter's; list it under allowed_hosts in web.yml",
                (),
            )
        origin = headers.get("origin")
        if origin is not None and origin != "null" and urlsplit(origin).netloc.lower() == host.lower():
            origin = None
        if origin is not None or (scope["method"] not in _SAFE and headers.get("sec-fetch-site") in _FOREIGN):
            return 403, "requests from other sites are refused", ()
        declared = headers.get("content-length", "0")
        if not declared.isdigit() or int(declared) > MOST_BODY:
            return 413, f"a request holds at most {MOST_BODY} bytes", ()
        return None

    def _host_allowed(self, host: str, path: str) -> bool:
        """Whether a browser that shows a foreign page cannot have been led here by a name of that page's owner.

        With TLS or credentials such a page gets nowhere anyway.  Scrapers use whatever name a machine has: where the
        network may reach us at all, ``/metrics`` and the probes answer under any.
        """
        security = self._policy.security
        if security.authenticates or security.tls is not None:
            return True
        name = _hostname(host)
        if not name:
            return False
        if "." not in name or name.endswith(PRIVATE_SUFFIXES) or ".svc." in name or name in self._own:
            return True
        try:
            ip_address(name)
        except ValueError:
            return name in security.allowed_hosts or (not self._loopback and path in _OPEN_PATHS)
        return True

    async def _unauthorized(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        security, credentials = self._policy.security, self._policy.credentials
        if not security.authenticates:
            return None
        client, now = _client(scope), self._clock()
        challenges = [("www-authenticate", 'Basic realm="vllmeter", charset="UTF-8"')] if security.users else []
        challenges += [("www-authenticate", 'Bearer realm="vllmeter"')] if security.tokens else []
        header = headers.get("authorization")
        if header is None:
            return 401, "credentials are needed", tuple(challenges)
        right = credentials.quick(header)
        if right:
            return None
        if self._failures.left(client, now) < 1:
            return 429, "too many wrong credentials from this address", (("retry-after", "1"),)
        if right is None and await asyncio.to_thread(credentials.slow, header):
            return None
        self._failures.take(client, now)
        return 401, "wrong credentials", tuple(challenges)


Refusal = tuple[int, str, tuple[tuple[str, str], ...]]

_SAFE: Final = ("GET", "HEAD")
_FOREIGN: Final = ("cross-site", "same-site")
_OPEN_PATHS: Final = ("/metrics", "/sd", "/-/healthy", "/-/ready")


class _Limited:
    """``receive`` that ends a request whose body grows beyond the limit."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > MOST_BODY:
                raise HTTPException(413, f"a request holds at most {MOST_BODY} bytes")
        return message


def _hardened(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            message = {
                **message,
                "headers": [*message["headers"], *(pair for pair in HEADERS if pair[0] not in there)],
            }
        await send(message)

    return sent


async def _answer(send: Send, status: int, text: str, extra: tuple[tuple[str, str], ...] = ()) -> None:
    body = (text + "\n").encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *((name.encode(), value.encode()) for name, value in extra),
        *HEADERS,
    ]
    if status == 413:
        headers.append((b"connection", b"close"))  # what is still coming is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _headers(scope: Scope) -> dict[str, str]:
    """Header by name; of one that stands twice the first (a second Host or Authorization gains nothing)."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return found


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _hostname(host: str) -> str:
    """Name in a Host header, without port and brackets, lower case; "" when it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _own_names() -> set[str]:
    name = socket.gethostname()
    return {name, socket.getfqdn(name)}
