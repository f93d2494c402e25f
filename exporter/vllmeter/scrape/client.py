"""HTTP towards one server: bounded in time, size and trust.  The only module that makes requests to servers."""

from __future__ import annotations

import base64
import errno
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

from vllmeter import __version__
from vllmeter.config.settings import Auth, Server
from vllmeter.scrape.connection import Sockets, open_connection
from vllmeter.scrape.outcome import Fetch

ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5"
"""Classic text first: asked for OpenMetrics without an escaping, newer client libraries turn ``vllm:`` into
``vllm_`` in samples only.  The Rust frontend answers OpenMetrics whatever is asked."""

_PIECE = 65536
_REDIRECTS = 3
_MOVED = frozenset({301, 302, 303, 307, 308})
_AS_IT_IS = "%!#$&'()*+,/:;=?@[]~"
"""what a path in a URL may hold unquoted (RFC 3986), and what is quoted already"""
_METRICS_TYPES = ("text/plain", "application/openmetrics-text", "application/json", "")
"""vLLM 0.8.5 may say application/json for metrics text; the body decides then."""


class ScrapeClient:
    """Fetches from one server with one kept connection.  Used by one thread; :meth:`abort` by any other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sockets = Sockets()
        self._connection: http.client.HTTPConnection | None = None
        parts = urlsplit(server.url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._base = parts.path
        self._headers = {"Accept-Encoding": "identity", "User-Agent": f"vllmeter/{__version__}"}
        self._deadline: float | None = None
        self._closed = False

    def metrics(self) -> Fetch:
        """One GET of the metrics path."""
        return self._get(self._base + self._server.metrics_path, self._server.max_body, metrics=True)

    def health(self) -> int | str:
        """HTTP status of ``/health``; without an answer why, a key of ``FAILURE_REASONS``."""
        fetch = self._get(self._base + "/health", 65536, metrics=False)
        return fetch.status if fetch.status is not None else fetch.reason or "internal"

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
        """Closes the connection; an exchange under way fails at once, and none leaves a connection behind."""
        self._closed = True
        self._sockets.shutdown()
        self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

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
                if fetch.reason == "reset" and attempt == 1 and quick and not self._closed:
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
        connection = self._connection  # close() may come from another thread at any moment
        try:
            if connection is None:
                connection = self._connection = open_connection(self._server, self._sockets)
        except OSError as error:
            return failed("tls", f"certificate files: {error}"[:200])
        connecting = True
        done = False
        status: int | None = None
        try:
            for _ in range(_REDIRECTS + 1):
                connecting = True
                if connection.sock is None:
                    connection.connect()
                connecting = False
                connection.request("GET", quote(path, safe=_AS_IT_IS), headers=headers)
                response = connection.getresponse()
                status = response.status
                with response:
                    location = response.getheader("location") if response.status in _MOVED else None
                    if not location:
                        fetch = self._read(response, limit, started, metrics=metrics)
                        done = response.isclosed() or response.length == 0  # to its end: the connection can be kept
                        return fetch
                connection.close()  # whatever body a redirect has is not waited for
                # http.client reads headers as Latin-1: the bytes as they came are what is to be quoted
                target = urljoin(self._origin + path, quote(location.encode("latin-1"), safe=_AS_IT_IS))
                parts = urlsplit(target)
                if f"{parts.scheme}://{parts.netloc}" != self._origin:
                    return failed("redirect", f"to {parts.netloc or target!r}", response.status)
                path = target[len(self._origin) :] or "/"
            return failed("redirect", f"more than {_REDIRECTS} redirects")
        except (http.client.HTTPException, OSError, ValueError) as error:
            reason, detail = _classify(error, connecting=connecting)
            if time.monotonic() - started > self._server.timeout.total:
                reason, detail = "timeout", f"no complete answer within {self._server.timeout.total:g} s"
            return failed(reason, detail, status if reason == "truncated" else None)
        finally:
            if not done or self._closed:  # close() may have come while we connected
                connection.close()
                self._drop_connection()  # the next one reads certificates that may have been renewed

    def _read(self, response: http.client.HTTPResponse, limit: int, started: float, *, metrics: bool) -> Fetch:
        status = response.status
        content_type = response.headers.get("content-type", "")
        encoding = response.headers.get("content-encoding", "identity").strip().lower()

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
        # read1 returns what one receive gave, so that the time limit is looked at between pieces and a compressed bomb
        # is cut while it unpacks.
        read1: Callable[[int], bytes] = response.read1
        undecodable: tuple[type[Exception], ...] = ()
        if encoding not in ("identity", ""):  # not asked for, but a proxy may do it
            from vllmeter.scrape.unpack import UnpackError, unpacked  # rare, and megabytes of memory

            try:
                read1, undecodable = unpacked(response), (UnpackError,)
            except UnpackError as error:
                return failed("encoding", str(error)[:200])
            declared = ""  # counts what travels, not what comes out
        pieces: list[bytes] = []
        size = 0
        while True:
            try:
                piece = read1(_PIECE)
            except undecodable as error:
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
        if time.monotonic() - started > self._server.timeout.total:
            # The end may be our own abort: without a length it looks like the end of the body.
            return failed("timeout", f"{size} bytes after {self._server.timeout.total:g} s")
        if declared.isdigit() and size < int(declared):
            return failed("truncated", f"{size} of {declared} bytes")
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


def _classify(error: BaseException, *, connecting: bool) -> tuple[str, str]:
    """Reason and short detail of an exception; ``connecting``: no request was sent yet."""
    text = str(error)[:200]
    if isinstance(error, ssl.SSLError):
        return "tls", text
    if isinstance(error, socket.gaierror):
        return "dns", text
    if isinstance(error, ConnectionRefusedError):
        return "refused", "connection refused"
    if isinstance(error, TimeoutError):
        return "timeout", "connecting" if connecting else "waiting for the answer"
    if isinstance(error, http.client.IncompleteRead):
        return "truncated", text
    if isinstance(error, ConnectionResetError | BrokenPipeError | http.client.HTTPException):
        return "reset", text or type(error).__name__
    if isinstance(error, UnicodeError):  # a host name that cannot be one
        return "dns", text
    if isinstance(error, OSError) and error.errno is not None:
        unreachable = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH) or connecting
        return ("unreachable" if unreachable else "reset"), os.strerror(error.errno)
    return "reset", text or type(error).__name__
