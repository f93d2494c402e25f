"""Connections to servers: plain or TLS, with two time limits, and with a socket that a watchdog can shut."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from vllmeter.config.settings import Server, Tls


class Sockets:
    """The open sockets of one client, so that a watchdog can end an exchange that drips for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.peer: str | None = None
        """IP address of the newest connection's other end"""

    def add(self, sock: socket.socket) -> None:
        """A connection was made."""
        with self._lock:
            self._open = [s for s in self._open if s.fileno() >= 0]
            self._open.append(sock)
        try:
            self.peer = str(sock.getpeername()[0])
        except (OSError, IndexError):
            self.peer = None  # closed at once, or no IP socket

    def shutdown(self) -> None:
        """Ends what is under way on all of them.  Safe from any thread."""
        with self._lock:
            for sock in self._open:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # already closed
            self._open.clear()


def open_connection(server: Server, sockets: Sockets) -> http.client.HTTPConnection:
    """A connection to a server, still to be connected; OSError when its certificate files cannot be used.

    The standard library's client without urllib3 on top: two exchanges a second with each server are most of what an
    exporter does, and pools, retries and merged headers cost as much again as the exchange itself.
    """
    parts = urlsplit(server.url)
    assert parts.hostname is not None, "settings refuse a URL without a host"

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            _connected(self.sock, server, sockets)

    class Secure(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            _connected(self.sock, server, sockets)

    if parts.scheme != "https":
        return Plain(parts.hostname, parts.port, timeout=server.timeout.connect)
    return Secure(parts.hostname, parts.port, timeout=server.timeout.connect, context=_context(server.tls))


def _connected(sock: socket.socket, server: Server, sockets: Sockets) -> None:
    sock.settimeout(server.timeout.read)
    sockets.add(sock)


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
    # Python 3.13 refuses what curl, Prometheus and older Python take: a CA of one's own without every extension
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context
