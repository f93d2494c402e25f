"""HTTP towards one server: bounded in time, size and trust.  The only module that makes requests to servers."""

from __future__ import annotations

import base64
import errno
import http.client
import json
import os
import socket
import ssl
import threading
import time
from functools import lru_cache
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from vllmeter import __version__
from vllmeter.config.settings import Auth, Server, Tls
from vllmeter.scrape.outcome import Fetch

ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5"
"""Classic text first: asked for OpenMetrics without an escaping, newer client libraries turn ``vllm:`` into
``vllm_`` in samples only.  The Rust frontend answers OpenMetrics whatever is asked."""

_PIECE = 65536
_REDIRECTS = 3
_METRICS_TYPES = ("text/plain", "application/openmetrics-text", "application/json", "")
"""vLLM 0.8.5 may say application/json for metrics text; the body decides then."""


class _Sockets:
    """The open sockets of one client, so that a watchdog can end an exchange that drips for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.peer: str | None = None

    def add(self, sock: socket.socket) -> None:
        with self._lock:
            self._open = [s for s in self._open if s.fileno() >= 0]
            self._open.append(sock)
        try:
            self.peer = str(sock.getpeername()[0])
        except (OSError, IndexError):
            self.peer = None  # closed at once, or no IP socket

    def shutdown(self) -> None:
        with self._lock:
            for sock in self._open:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # already closed
            self._open.clear()


def _pool(server: Server, sockets: _Sockets) -> HTTPConnectionPool:
    """One kept connection to a server whose socket is known to us.

    urllib3 without requests on top: a session merges cookies, hooks, proxies and headers anew for every request, which
    cost more than parsing the answer did.
    """

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            sockets.add(self.sock)

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            sockets.add(self.sock)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    parts = urlsplit(server.url)
    assert parts.hostname is not None, "settings refuse a URL without a host"
    timeout = urllib3.Timeout(connect=server.timeout.connect, read=server.timeout.read)
    if parts.scheme != "https":
        return PlainPool(parts.hostname, parts.port, timeout=timeout, maxsize=1)
    return SecurePool(parts.hostname, parts.port, timeout=timeout, maxsize=1, ssl_context=_context(server.tls))


def _context(tls: Tls | None) -> ssl.SSLContext:
    """TLS towards a server: its own CA, else those of the system; OSError when a file cannot be used."""
    tls = tls if tls is not None else Tls()
    files = tuple(str(path) if path is not None else None for path in (tls.ca_file, tls.cert_file, tls.key_file))
    changed = tuple(Path(path).stat().st_mtime_ns for path in files if path is not None)
    return _cached_context(files, tls.insecure_skip_verify, changed)


@lru_cache(maxsize=16)
def _cached_context(files: tuple[str | None, ...], insecure: bool, _changed: tuple[int, ...]) -> ssl.SSLContext:
    """One context for all servers with the same files: each holds the system's CAs, more than a megabyte."""
    ca_file, cert_file, key_file = files
    context = ssl.create_default_context(cafile=ca_file)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context


class ScrapeClient:
    """Fetches from one server with one kept connection.  Used by one thread; :meth:`abort` by any other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sockets = _Sockets()
        self._pool: HTTPConnectionPool | None = None
        parts = urlsplit(server.url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._base = parts.path
        self._headers = {"Accept-Encoding": "identity", "User-Agent": f"vllmeter/{__version__}"}
        self._deadline: float | None = None

    def metrics(self) -> Fetch:
        """One GET of the metrics path."""
        return self._get(self._base + self._server.metrics_path, self._server.max_body, metrics=True)

    def health(self) -> bool | None:
        """True on 200, False on any other answer, None without an answer."""
        fetch = self._get(self._base + "/health", 65536, metrics=False)
        return None if fetch.status is None else fetch.status == 200

    def version(self) -> str | None:
        """What ``GET /version`` says, or None."""
        fetch = self._get(self._base + "/version", 65536, metrics=False)
        if fetch.body is None or fetch.status != 200:
            return None
        try:
            version = json.loads(fetch.body).get("version")
        except (ValueError, AttributeError):
            return None
        return version if isinstance(version, str) and len(version) < 64 else None

    @property
    def peer(self) -> str | None:
        """IP address that the connection really went to: what a name in the URL stands for."""
        return self._sockets.peer

    def abort(self) -> None:
        """Ends an exchange whose total time is over.  Safe from any thread, at any moment."""
        deadline = self._deadline
        if deadline is not None and time.monotonic() > deadline:
            self._sockets.shutdown()

    def close(self) -> None:
        """Closes the connection; an exchange under way fails at once."""
        self._sockets.shutdown()
        self._drop_pool()

    def _drop_pool(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    # ------------------------------------------------------------------ one exchange

    def _get(self, path: str, limit: int, *, metrics: bool) -> Fetch:
        started = time.monotonic()
        self._deadline = started + self._server.timeout.total
        try:
            for attempt in (1, 2):
                fetch = self._exchange(path, limit, started, metrics=metrics)
                # vLLM's server closes idle connections after 5 s: a kept connection that turns out to be closed
                # is no failure of the server.  A fresh one decides.
                quick = time.monotonic() - started < 0.5
                if fetch.reason == "reset" and attempt == 1 and quick:
                    continue
                return fetch
        finally:
            self._deadline = None
        raise AssertionError("unreachable")

    def _exchange(self, path: str, limit: int, started: float, *, metrics: bool) -> Fetch:
        def failed(reason: str, detail: str, status: int | None = None) -> Fetch:
            return Fetch(time.monotonic() - started, reason=reason, detail=detail, status=status)

        headers = {"Accept": ACCEPT if metrics else "*/*", **self._headers}
        if self._server.auth is not None:
            try:
                headers["Authorization"] = authorization(self._server.auth)
            except SecretError as error:
                return failed("secret", str(error))
        pool = self._pool  # close() may come from another thread at any moment
        if pool is None:
            try:
                pool = self._pool = _pool(self._server, self._sockets)
            except OSError as error:
                return failed("tls", f"certificate files: {error}"[:200])
        try:
            for _ in range(_REDIRECTS + 1):
                response = pool.urlopen(
                    "GET", path, headers=headers, retries=False, redirect=False, preload_content=False
                )
                try:
                    location = response.get_redirect_location()
                    if not location:
                        return self._read(response, limit, started, metrics=metrics)
                finally:
                    response.close()  # what was read to its end keeps the connection
                target = urljoin(self._origin + path, location)
                parts = urlsplit(target)
                if f"{parts.scheme}://{parts.netloc}" != self._origin:
                    return failed("redirect", f"to {parts.netloc or target!r}", response.status)
                path = target[len(self._origin) :] or "/"
            return failed("redirect", f"more than {_REDIRECTS} redirects")
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
            reason, detail = _classify(error)
            if reason == "tls":
                self._drop_pool()  # certificates may be renewed: read the files again
            if time.monotonic() - started > self._server.timeout.total:
                reason, detail = "timeout", f"no complete answer within {self._server.timeout.total:g} s"
            return failed(reason, detail)

    def _read(self, response: BaseHTTPResponse, limit: int, started: float, *, metrics: bool) -> Fetch:
        status = response.status
        content_type = response.headers.get("content-type", "")

        def failed(reason: str, detail: str) -> Fetch:
            return Fetch(time.monotonic() - started, reason=reason, detail=detail, status=status)

        if metrics:
            if status in (401, 403):
                return failed("auth", f"HTTP {status}")
            if status != 200:
                return failed("http_5xx" if status >= 500 else "http_4xx", f"HTTP {status}")
            if content_type.partition(";")[0].strip().lower() not in _METRICS_TYPES:
                return failed("content_type", f"Content-Type {content_type[:80]!r}")
        declared = response.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            return failed("too_large", f"{declared} bytes, limit {limit}")
        pieces: list[bytes] = []
        size = 0
        while True:
            try:
                # read1 returns what one receive gave, so that the time limit is looked at between pieces and a
                # compressed bomb is cut while it unpacks.
                piece = response.read1(_PIECE, decode_content=True)
            except urllib3.exceptions.DecodeError as error:
                return failed("encoding", str(error)[:200])
            if not piece:
                break
            size += len(piece)
            if size > limit:
                return failed("too_large", f"more than {limit} bytes")
            pieces.append(piece)
            if time.monotonic() - started > self._server.timeout.total:
                return failed("timeout", f"body still coming after {self._server.timeout.total:g} s")
        body = b"".join(pieces)
        if declared.isdigit() and size < int(declared) and "content-encoding" not in response.headers:
            return failed("reset", f"{size} of {declared} bytes")
        if metrics and not body:
            return failed("empty", "HTTP 200 without a body")
        return Fetch(time.monotonic() - started, body=body, content_type=content_type, status=status)


class SecretError(Exception):
    """A credential that cannot be read; the text names where it was looked for, never its value."""


def authorization(auth: Auth) -> str:
    """Value of the Authorization header; SecretError when a secret cannot be read."""
    if auth.username is not None:
        password = _secret(auth.password_env, auth.password_file)
        return _basic(auth.username, password)
    return "Bearer " + _secret(auth.bearer_token_env, auth.bearer_token_file)


def _basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")


def _secret(variable: str | None, path: Path | None) -> str:
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            raise SecretError(f"environment variable {variable} is not set")
        return value.strip()
    assert path is not None
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretError(f"{path} cannot be read: {type(error).__name__}") from error
    if not value:
        raise SecretError(f"{path} is empty")
    return value


def _classify(error: BaseException) -> tuple[str, str]:
    """Reason and short detail of an exception from the HTTP stack, found along its causes."""
    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and len(chain) < 10:
        chain.append(seen)
        inner = seen.args[0] if seen.args and isinstance(seen.args[0], BaseException) else None
        reason = getattr(seen, "reason", None)
        seen = inner or (reason if isinstance(reason, BaseException) else None) or seen.__cause__ or seen.__context__
    # Specific causes first: urllib3 calls a refused connection a kind of connect timeout.
    for item in chain:
        if isinstance(item, urllib3.exceptions.SSLError | ssl.SSLError):
            return "tls", str(chain[-1])[:200]
        if isinstance(item, urllib3.exceptions.NameResolutionError | socket.gaierror):
            return "dns", str(chain[-1])[:200]
        if isinstance(item, ConnectionRefusedError):
            return "refused", "connection refused"
        if isinstance(item, OSError) and item.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return "unreachable", os.strerror(item.errno)
    for item in chain:
        if isinstance(item, urllib3.exceptions.TimeoutError | TimeoutError):
            connecting = isinstance(item, urllib3.exceptions.ConnectTimeoutError)
            return "timeout", "connecting" if connecting else "waiting for the answer"
    for item in chain:
        if isinstance(item, ConnectionResetError | BrokenPipeError | urllib3.exceptions.ProtocolError):
            return "reset", str(chain[-1])[:200]
        if isinstance(item, urllib3.exceptions.DecodeError):
            return "encoding", str(item)[:200]
    for item in chain:
        if isinstance(item, OSError) and item.errno is not None:
            return "unreachable", os.strerror(item.errno)
    return "reset", str(error)[:200]
