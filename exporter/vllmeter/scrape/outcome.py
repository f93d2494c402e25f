"""What one finished HTTP exchange with a server gave: a body, or a reason from a short fixed list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FAILURE_REASONS: Final[dict[str, str]] = {
    "refused": "nothing listens on the port: the server is not running or not ready yet",
    "reset": "the server closed the connection instead of an answer",
    "truncated": "the answer ended before it was complete",
    "timeout": "no complete answer within the time limits",
    "dns": "the host name cannot be resolved",
    "unreachable": "no route to the host",
    "tls": "the TLS handshake failed",
    "auth": "HTTP 401 or 403: credentials are missing or wrong",
    "redirect": "the server redirects to another host, which is not followed",
    "http_4xx": "another HTTP 4xx answer: probably not a vLLM server or a wrong path",
    "http_5xx": "an HTTP 5xx answer",
    "content_type": "the answer is no metrics text (HTML, JSON, binary)",
    "encoding": "the answer cannot be decompressed or is no UTF-8",
    "too_large": "the body is larger than max_body",
    "empty": "the answer has no body",
    "parse": "the body is no valid exposition text",
    "secret": "a credential cannot be read from the environment or file",
    "internal": "a fault of this exporter; its log has details",
}
"""Every value of the label ``reason`` of scrape_failures_total, with its meaning."""

GONE: Final = frozenset({"refused", "reset", "dns", "unreachable"})
"""Reasons that mean: there is no server now (not: it is slow)."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One exchange.  ``body`` is set exactly when ``reason`` is None.  ``duration`` in seconds."""

    duration: float
    body: bytes | None = None
    content_type: str | None = None
    status: int | None = None
    reason: str | None = None
    detail: str | None = None

    @property
    def ok(self) -> bool:
        """True when there is a body to parse."""
        return self.reason is None
