"""The opt-in canary: one request with one token when nothing else can tell an idle engine from a hung one.

Only for servers with ``canary: true``, only in state ``unknown_progress``, at most once a minute, never two at once.
It has a thread and a connection of its own: a server that does not answer it delays no scrape.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from vllmeter.config.settings import Server
from vllmeter.scrape.client import SecretError, authorization

log = logging.getLogger("vllmeter.scrape")

EVERY = 60.0
"""Least seconds between two canaries of one server."""
PATIENCE = 30.0
"""Seconds after which an unanswered canary is given up; the server may still be working on it."""

_REQUESTS = (
    ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
    ("/v1/embeddings", {"input": "a"}),
    ("/score", {"text_1": "a", "text_2": "a"}),
)
"""Tried in this order: a chat model knows the first, an embedder the second, a reranker the third."""


class Canary:
    """Canaries of one server.  ``proved`` is called from the canary's thread when it got its answer."""

    def __init__(self, server: Server, proved: Callable[[], None]) -> None:
        self._server = server
        self._proved = proved
        self._sent_at = float("-inf")
        self._busy = threading.Event()

    def consider(self, state: str, model: str | None, now: float) -> bool:
        """Sends one when it is wanted, allowed and due (monotonic ``now``); whether it did."""
        if not self._server.canary or state != "unknown_progress" or model is None:
            return False
        if self._busy.is_set() or now - self._sent_at < EVERY:
            return False
        self._sent_at = now
        self._busy.set()
        threading.Thread(target=self._send, args=(model,), name=f"canary-{self._server.name}", daemon=True).start()
        return True

    def _send(self, model: str) -> None:
        try:
            if self._ask(model):
                self._proved()
        finally:
            self._busy.clear()

    def _ask(self, model: str) -> bool:
        import requests  # only where a canary is wanted: megabytes that a plain exporter does without

        tls = self._server.tls
        try:
            headers = {} if self._server.auth is None else {"Authorization": authorization(self._server.auth)}
            with requests.Session() as session:
                session.trust_env = False
                if tls is not None:
                    session.verify = False if tls.insecure_skip_verify else str(tls.ca_file) if tls.ca_file else True
                    if tls.cert_file is not None:
                        session.cert = (str(tls.cert_file), str(tls.key_file or tls.cert_file))
                for path, body in _REQUESTS:
                    answer = session.post(
                        self._server.url + path,
                        json={"model": model, **body},
                        headers=headers,
                        timeout=(self._server.timeout.connect, PATIENCE),
                        allow_redirects=False,
                    )
                    if answer.status_code == 200:
                        return True
                    if answer.status_code not in (400, 404, 405, 422, 501):
                        break  # 401, 503, …: another path would not help
                log.info("server=%s canary=refused status=%d", self._server.name, answer.status_code)
        except (requests.RequestException, SecretError, OSError) as error:
            log.info("server=%s canary=unanswered reason=%s", self._server.name, type(error).__name__)
        return False
