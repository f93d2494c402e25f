"""Addresses that the demo prints are pages of the Prometheus that is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vllmeter.demo.stack import alerts_page


@contextmanager
def serving(*pages: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in pages else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("pages", "expected"),
    [(("/alerts",), "/alerts"), (("/classic/alerts",), "/classic/alerts"), (("/alerts", "/classic/alerts"), "/alerts")],
)
def test_the_page_of_alerts_is_one_that_this_prometheus_has(pages: tuple[str, ...], expected: str) -> None:
    """Debian's package answers 404 to /alerts and has /classic/alerts; a Prometheus 3 has only /alerts."""
    with serving(*pages) as prometheus:
        assert alerts_page(prometheus) == prometheus + expected
