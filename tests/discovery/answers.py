"""A local HTTP server whose answers a test sets: status, body, headers, or a behaviour of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Behaviour = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Answers:
    """What is served, and what was asked for."""

    url: str = ""
    status: int = 200
    body: bytes = b"[]"
    headers: dict[str, str] = field(default_factory=dict)
    behaviour: Behaviour | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@contextlib.contextmanager
def served() -> Iterator[Answers]:
    """A server on a free port of 127.0.0.1."""
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.asked.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
            if answers.behaviour is not None:
                answers.behaviour(self)
                return
            self.send_response(answers.status)
            for name, value in answers.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answers.body)))
            self.end_headers()
            self.wfile.write(answers.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    answers.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
