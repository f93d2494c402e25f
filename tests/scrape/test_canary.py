"""The opt-in canary: when it is sent, how it asks, what its answer does."""

from __future__ import annotations

import threading
import time

import pytest

from fakes import fault_server as f
from fakes.programs import wait_until
from vllmeter.config.settings import Server
from vllmeter.scrape.canary import EVERY, Canary


def canary(url: str, proved: threading.Event, **more: object) -> Canary:
    return Canary(Server.model_validate({"name": "s", "url": url, "canary": True, **more}), proved.set)


def test_it_asks_for_one_token_and_reports_the_answer() -> None:
    """A chat model answers the first form."""
    proved = threading.Event()
    with f.FaultServer(f.status("200 OK", b"{}")) as server:
        c = canary(server.url, proved)
        assert c.consider("unknown_progress", "qwen3", 1000.0)
        assert proved.wait(5)
    assert [path for path, _ in server.requests] == ["/v1/completions"]


def test_other_kinds_of_models_are_asked_in_their_own_way() -> None:
    """404 and 400 mean: not this kind of model; the next form is tried."""

    def only_scores(sock: object, path: str) -> bool:
        return f.status("200 OK" if path == "/score" else "404 Not Found", b"{}")(sock, path)  # type: ignore[arg-type]

    proved = threading.Event()
    with f.FaultServer(only_scores) as server:
        assert canary(server.url, proved).consider("unknown_progress", "bge", 0.0)
        assert proved.wait(5)
    assert [path for path, _ in server.requests] == ["/v1/completions", "/v1/embeddings", "/score"]


@pytest.mark.parametrize(
    ("state", "model", "on"),
    [("ready", "m", True), ("stuck", "m", True), ("unknown_progress", None, True), ("unknown_progress", "m", False)],
)
def test_it_is_sent_only_when_wanted_and_allowed(state: str, model: str | None, on: bool) -> None:
    """Never without the setting, never while the state is known, never without a model name."""
    with f.FaultServer() as server:
        c = canary(server.url, threading.Event(), canary=on)
        assert not c.consider(state, model, 0.0)
        time.sleep(0.1)
    assert server.requests == []


def test_at_most_one_a_minute_and_never_two_at_once() -> None:
    """A hung server holds one request, not a growing pile."""
    proved = threading.Event()
    with f.FaultServer(f.silent) as server:
        c = canary(server.url, proved)
        assert c.consider("unknown_progress", "m", 0.0)
        wait_until(lambda: len(server.requests) == 1, 5, "the canary")
        assert not c.consider("unknown_progress", "m", EVERY - 1)
        assert not c.consider("unknown_progress", "m", 10 * EVERY)
    assert len(server.requests) == 1
    assert not proved.is_set()


def test_a_refusal_proves_nothing() -> None:
    """401 or 503: the engine may or may not work."""
    proved = threading.Event()
    with f.FaultServer(f.status("503 Service Unavailable")) as server:
        c = canary(server.url, proved)
        assert c.consider("unknown_progress", "m", 0.0)
        wait_until(lambda: len(server.requests) == 1, 5, "the canary")
        time.sleep(0.2)
    assert not proved.is_set()
