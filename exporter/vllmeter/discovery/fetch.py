"""Bounded GETs of JSON documents for discovery: size, time and where they may lead are limited."""

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


class JsonClient:
    """Asks one place.  An exchange that drips (each byte starts a read timeout anew) is left after the total time."""

    def __init__(self) -> None:
        self._session = requests.Session()
        # Lists and API servers of this host's network: never through a proxy, never with credentials of a netrc.
        self._session.trust_env = False
        self._pending: threading.Thread | None = None

    def get(
        self,
        url: str,
        *,
        most_bytes: int,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        verify: str | bool = True,
    ) -> Any:
        """The document at ``url``.  Redirects are followed on the same scheme, host and port only.

        :raises DiscoveryError: no answer in time, another status, too large, no JSON
        """
        if self._pending is not None and self._pending.is_alive():
            raise DiscoveryError(f"{url}: the last answer is still not complete")
        exchange = _Exchange(self._session, url, most_bytes, headers or {}, params, verify)
        self._pending = threading.Thread(target=exchange.run, name="discovery-fetch", daemon=True)
        self._pending.start()
        self._pending.join(TOTAL_SECONDS)
        if self._pending.is_alive():
            exchange.end()
            raise DiscoveryError(f"{url}: the answer is not complete in time")
        if exchange.error is not None:
            raise exchange.error
        return exchange.document


class _Exchange:
    """One GET with its redirects, in a thread of its own."""

    def __init__(
        self,
        session: requests.Session,
        url: str,
        most: int,
        headers: Mapping[str, str],
        params: Mapping[str, str] | None,
        verify: str | bool,
    ) -> None:
        self._session = session
        self._url = url
        self._most = most
        self._headers = {"Accept": "application/json", "User-Agent": f"vllmeter/{__version__}", **headers}
        self._params = params
        self._verify = verify
        self._late = False
        self.document: Any = None
        self.error: DiscoveryError | None = None

    def run(self) -> None:
        try:
            self.document = self._follow()
        except DiscoveryError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - whatever an odd answer does, it is told as a reason
            self.error = DiscoveryError(f"{self._url}: {_reason(error)}")

    def end(self) -> None:
        """Nobody waits any more: the loop over the body sees it with its next piece."""
        self._late = True

    def _follow(self) -> Any:
        where, params = self._url, self._params
        for _ in range(_REDIRECTS + 1):
            answer = self._ask(where, params)
            try:
                if answer.is_redirect:
                    target = urljoin(where, answer.headers.get("location", ""))
                    if urlsplit(target)[:2] != urlsplit(where)[:2]:
                        raise DiscoveryError(f"{self._url}: leads to {target[:100]}; only the same host is followed")
                    where, params = target, None
                    continue
                if answer.status_code != 200:
                    raise StatusError(f"{self._url}: answers HTTP {answer.status_code}", answer.status_code)
                return self._parse(self._body(answer))
            finally:
                answer.close()
        raise DiscoveryError(f"{self._url}: more than {_REDIRECTS} redirects")

    def _ask(self, url: str, params: Mapping[str, str] | None) -> requests.Response:
        try:
            return self._session.get(
                url,
                headers=self._headers,
                params=params,
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                allow_redirects=False,
                stream=True,
                verify=self._verify,
            )
        except requests.Timeout:
            raise DiscoveryError(f"{self._url}: no answer in time") from None

    def _body(self, answer: requests.Response) -> bytes:
        body = bytearray()
        begun = time.monotonic()
        # Small pieces: a piece is waited for until it is full, and only between two of them the time is looked at.
        for piece in answer.iter_content(4096):
            body += piece
            if len(body) > self._most:
                raise DiscoveryError(f"{self._url}: the answer is larger than {self._most >> 20} MiB")
            if self._late or time.monotonic() - begun > TOTAL_SECONDS:
                raise DiscoveryError(f"{self._url}: the answer is not complete in time")
        return bytes(body)

    def _parse(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise DiscoveryError(f"{self._url}: the answer is no JSON") from None


def _reason(error: Exception) -> str:
    text = str(error)
    for sign, words in (
        ("Connection refused", "connection refused"),
        ("Name or service not known", "the name does not resolve"),
        ("Temporary failure in name resolution", "the name cannot be resolved now"),
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
        ("timed out", "no answer in time"),
    ):
        if sign in text:
            return words
    return type(error).__name__
