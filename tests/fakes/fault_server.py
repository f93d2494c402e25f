"""A raw HTTP endpoint that misbehaves as told: one thread per connection, plain sockets, bounded in time."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable

BODY = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 1.0\n'

_BOMB = gzip.compress(b"#" * 40_000_000, 1)

Behaviour = Callable[[socket.socket, str], bool]
"""Handles one request (socket, path); True keeps the connection."""


def respond(
    sock: socket.socket, body: bytes, *, status: str = "200 OK", kind: str = "text/plain", extra: str = ""
) -> None:
    """A complete answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    sock.sendall(head.encode() + body)


def good(sock: socket.socket, _path: str) -> bool:
    """A healthy server."""
    respond(sock, BODY)
    return True


def closes_after_answer(sock: socket.socket, _path: str) -> bool:
    """Announces keep-alive and closes all the same, as vLLM's server does after 5 s of rest."""
    respond(sock, BODY)
    return False


def status(line: str, body: bytes = b"x") -> Behaviour:
    """Answers with a status."""

    def act(sock: socket.socket, _path: str) -> bool:
        respond(sock, body, status=line)
        return True

    return act


def content_type(kind: str, body: bytes = BODY) -> Behaviour:
    """Answers with another Content-Type."""

    def act(sock: socket.socket, _path: str) -> bool:
        respond(sock, body, kind=kind)
        return True

    return act


def redirect(target: str) -> Behaviour:
    """Redirects /metrics; answers elsewhere."""

    def act(sock: socket.socket, path: str) -> bool:
        if path == "/metrics":
            respond(sock, b"", status="307 Temporary Redirect", extra=f"Location: {target}\r\n")
        else:
            respond(sock, BODY)
        return True

    return act


def chunked(sock: socket.socket, _path: str) -> bool:
    """A healthy body without a length, in two pieces."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in (BODY[:7], BODY[7:], b""):
        sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    return True


def chunked_and_cut_off(sock: socket.socket, _path: str) -> bool:
    """A body without a length that ends before its last piece."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    sock.sendall(b"%x\r\n%s\r\n" % (len(BODY), BODY))
    return False


def packed(sock: socket.socket, _path: str) -> bool:
    """Compressed although nobody asked, as some proxies do."""
    respond(sock, gzip.compress(BODY), extra="Content-Encoding: gzip\r\n")
    return True


def strange_encoding(sock: socket.socket, _path: str) -> bool:
    """An encoding that nobody asked for and nobody knows."""
    respond(sock, BODY, extra="Content-Encoding: gzip, rot13\r\n")
    return True


def closing(sock: socket.socket, _path: str) -> bool:
    """Says that it closes, and does."""
    respond(sock, BODY, extra="Connection: close\r\n")
    return False


def old_protocol(sock: socket.socket, _path: str) -> bool:
    """HTTP/1.0: the end of the connection ends the body."""
    sock.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + BODY)
    return False


def slow_headers(sock: socket.socket, _path: str) -> bool:
    """One byte of the head at a time, for ever."""
    with contextlib.suppress(OSError):
        for _ in range(600):
            sock.sendall(b"H")
            time.sleep(0.05)
    return False


def slow_body(sock: socket.socket, _path: str) -> bool:
    """A head, then one byte at a time."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n")
    with contextlib.suppress(OSError):
        for _ in range(600):
            sock.sendall(b"#")
            time.sleep(0.05)
    return False


def slow_lines(sock: socket.socket, _path: str) -> bool:
    """A body without a length, one good line at a time, for ever: cut off anywhere it looks complete."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
    with contextlib.suppress(OSError):
        for number in range(600):
            sock.sendall(b"vllm:x%d 1\n" % number)
            time.sleep(0.3)
    return False


def endless_body(sock: socket.socket, _path: str) -> bool:
    """A chunked body without an end."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(OSError):
        for _ in range(4000):
            sock.sendall(b"10000\r\n" + b"#" * 65536 + b"\r\n")
    return False


def truncated(sock: socket.socket, _path: str) -> bool:
    """Half of what was announced."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n" + BODY)
    return False


def reset(sock: socket.socket, _path: str) -> bool:
    """Closes without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    return False


def gzip_bomb(sock: socket.socket, _path: str) -> bool:
    """A few kilobytes that unpack to 40 MB, compressed although nobody asked for it."""
    respond(sock, _BOMB, extra="Content-Encoding: gzip\r\n")
    return True


def bad_gzip(sock: socket.socket, _path: str) -> bool:
    """Says gzip and sends something else."""
    respond(sock, b"this is no gzip" * 10, extra="Content-Encoding: gzip\r\n")
    return True


def silent(sock: socket.socket, _path: str) -> bool:
    """Never answers."""
    with contextlib.suppress(OSError):
        sock.settimeout(30)
        sock.recv(1)
    return False


class FaultServer:
    """Listens on a loopback port; ``behaviour`` may be changed at any time."""

    def __init__(self, behaviour: Behaviour = good) -> None:
        self.behaviour = behaviour
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._sock.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        self.accepted = 0
        """connections so far"""
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> FaultServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening and ends every connection."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(2)
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            self._open.append(sock)
            self.accepted += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            pending = b""
            while True:
                while b"\r\n\r\n" not in pending:
                    data = sock.recv(65536)
                    if not data:
                        return
                    pending += data
                head, _, pending = pending.partition(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                path = lines[0].split(" ")[1]
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
                missing = int(headers.get("content-length", "0")) - len(pending)
                while missing > 0:
                    data = sock.recv(min(missing, 65536))
                    if not data:
                        return
                    pending += data
                    missing -= len(data)
                pending = pending[int(headers.get("content-length", "0")) :]
                self.requests.append((path, headers))
                if not self.behaviour(sock, path):
                    break
        with contextlib.suppress(OSError):
            sock.close()
