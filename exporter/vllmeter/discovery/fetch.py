"""One bounded GET of a JSON document for discovery: size, time and where it may lead are limited."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from vllmeter import __version__
from vllmeter.discovery.source import DiscoveryError

CONNECT_SECONDS = 2.0
READ_SECONDS = 5.0
TOTAL_SECONDS = 10.0
_REDIRECTS = 3


class StatusError(DiscoveryError):
    """An answer that is not 200; ``status`` tells which."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def fetch_json(
    session: requests.Session,
    url: str,
    *,
    most_bytes: int,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
    verify: str | bool = True,
    total: float = TOTAL_SECONDS,
) -> Any:
    """The document at ``url``.  Redirects are followed on the same host and port only, and never from https to http.

    :raises DiscoveryError: no answer in time, another status, too large, no JSON
    """
    deadline = time.monotonic() + total
    where = url
    query: Mapping[str, str] | None = params
    for _ in range(_REDIRECTS + 1):
        answer = _get(session, where, headers or {}, query, verify)
        try:
            if answer.is_redirect:
                target = urljoin(where, answer.headers.get("location", ""))
                if urlsplit(target)[:2] != urlsplit(where)[:2]:
                    raise DiscoveryError(f"{url}: leads to {target[:100]}; only the same host is followed")
                where, query = target, None
                continue
            if answer.status_code != 200:
                raise StatusError(f"{url}: answers HTTP {answer.status_code}", answer.status_code)
            return _document(url, _body(url, answer, deadline, most_bytes))
        finally:
            answer.close()
    raise DiscoveryError(f"{url}: more than {_REDIRECTS} redirects")


def _get(
    session: requests.Session,
    url: str,
    headers: Mapping[str, str],
    params: Mapping[str, str] | None,
    verify: str | bool,
) -> requests.Response:
    try:
        return session.get(
            url,
            headers={"Accept": "application/json", "User-Agent": f"vllmeter/{__version__}", **headers},
            params=params,
            timeout=(CONNECT_SECONDS, READ_SECONDS),
            allow_redirects=False,
            stream=True,
            verify=verify,
        )
    except requests.Timeout:
        raise DiscoveryError(f"{url}: no answer in time") from None
    except (requests.RequestException, OSError, ValueError) as error:
        raise DiscoveryError(f"{url}: {_reason(error)}") from None


def _body(url: str, answer: requests.Response, deadline: float, most: int) -> bytes:
    """The whole body; a watch ends an answer that drips, since each piece starts the read timeout anew."""
    body = bytearray()
    watch = threading.Timer(max(0.0, deadline - time.monotonic()), answer.raw.close)
    watch.daemon = True
    watch.start()
    try:
        for piece in answer.iter_content(65536):
            body += piece
            if len(body) > most:
                raise DiscoveryError(f"{url}: the answer is larger than {most >> 20} MiB")
            if time.monotonic() > deadline:
                raise DiscoveryError(f"{url}: the answer is not complete in time")
    except (requests.RequestException, OSError, ValueError, AttributeError) as error:
        late = time.monotonic() >= deadline
        raise DiscoveryError(f"{url}: {'the answer is not complete in time' if late else _reason(error)}") from None
    finally:
        watch.cancel()
    return bytes(body)


def _document(url: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise DiscoveryError(f"{url}: the answer is no JSON") from None


def _reason(error: Exception) -> str:
    text = str(error)
    for sign, words in (
        ("Connection refused", "connection refused"),
        ("Name or service not known", "the name does not resolve"),
        ("Temporary failure in name resolution", "the name cannot be resolved now"),
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
    ):
        if sign in text:
            return words
    return type(error).__name__
