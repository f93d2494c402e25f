"""One exchange with a server that behaves in every way a server can misbehave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import fault_server as f
from vllmeter.config.settings import Auth, Server, Timeouts
from vllmeter.scrape.client import ScrapeClient
from vllmeter.scrape.connection import Sockets
from vllmeter.scrape.outcome import FAILURE_REASONS, GONE

QUICK = Timeouts(connect=0.5, read=0.4, total=1.0)


made: list[ScrapeClient] = []


@pytest.fixture(autouse=True)
def _closed_at_the_end() -> Iterator[None]:
    yield
    while made:
        made.pop().close()


def client(url: str, **more: object) -> ScrapeClient:
    made.append(ScrapeClient(Server.model_validate({"name": "s", "url": url, "timeout": QUICK, **more})))
    return made[-1]


def test_a_body_comes_back_with_its_type_and_headers_ask_for_classic_text() -> None:
    """Accept prefers 0.0.4 (newer client libraries rename samples otherwise); nothing compressed is asked for."""
    with f.FaultServer() as server:
        c = client(server.url)
        got = c.metrics()
    assert got.ok
    assert got.body == f.BODY
    assert got.content_type == "text/plain"
    path, headers = server.requests[0]
    assert path == "/metrics"
    assert headers["accept"].startswith("text/plain;version=0.0.4")
    assert headers["accept-encoding"] == "identity"
    assert headers["user-agent"].startswith("vllmeter/")


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (f.status("500 Internal Server Error"), "http_5xx"),
        (f.status("503 Service Unavailable"), "http_5xx"),
        (f.status("404 Not Found"), "http_4xx"),
        (f.status("401 Unauthorized"), "auth"),
        (f.status("403 Forbidden"), "auth"),
        (f.status("200 OK", b""), "empty"),
        (f.content_type("text/html", b"<html>"), "content_type"),
        (f.content_type("application/octet-stream"), "content_type"),
        (f.redirect("http://example.invalid/metrics"), "redirect"),
        (f.redirect("https://127.0.0.1:1/metrics"), "redirect"),
        (f.redirect("/metrics"), "redirect"),
        (f.truncated, "truncated"),
        (f.chunked_and_cut_off, "truncated"),
        (f.reset, "reset"),
        (f.bad_gzip, "encoding"),
        (f.strange_encoding, "encoding"),
        (f.gzip_bomb, "too_large"),
        (f.endless_body, "too_large"),
        (f.silent, "timeout"),
        (f.slow_body, "timeout"),
    ],
)
def test_each_fault_has_its_reason(behaviour: f.Behaviour, reason: str) -> None:
    """Every fault ends within the time limits, under one reason of the documented list."""
    with f.FaultServer(behaviour) as server:
        c = client(server.url, max_body=1_000_000)
        started = time.monotonic()
        got = c.metrics()
        took = time.monotonic() - started
    assert got.reason == reason, got
    assert got.body is None
    assert reason in FAILURE_REASONS
    assert took < 3


def test_every_reason_is_documented() -> None:
    """Whoever reads the label finds its meaning, in the words of the code."""
    page = (Path(__file__).resolve().parents[2] / "docs/signals.md").read_text(encoding="utf-8")
    for name, meaning in FAILURE_REASONS.items():
        assert f"| `{name}` | {meaning} |" in page


@pytest.mark.parametrize("behaviour", [f.truncated, f.chunked_and_cut_off])
def test_an_answer_that_ends_early_is_an_answer(behaviour: f.Behaviour) -> None:
    """The status tells that somebody is there: /health is asked, and nobody says that the server is gone."""
    with f.FaultServer(behaviour) as server:
        got = client(server.url).metrics()
    assert got.status == 200
    assert got.reason not in GONE
    with f.FaultServer(f.reset) as server:
        assert client(server.url).metrics().status is None


def test_a_redirect_on_the_same_host_is_followed() -> None:
    """/metrics -> /metrics/ is common behind proxies."""
    with f.FaultServer(f.redirect("/metrics/")) as server:
        c = client(server.url)
        got = c.metrics()
    assert got.ok


def test_a_redirect_target_is_quoted() -> None:
    """A Location with spaces and other letters is asked for, not refused by our own client."""
    with f.FaultServer(f.redirect("/m\u00e4 trics?a=1&b=%20")) as server:
        assert client(server.url).metrics().ok
        assert [path for path, _ in server.requests] == ["/metrics", "/m%C3%A4%20trics?a=1&b=%20"]


@pytest.mark.parametrize(
    ("behaviour", "connections"),
    [(f.good, 1), (f.chunked, 1), (f.packed, 1), (f.closing, 3), (f.old_protocol, 3)],
)
def test_every_way_to_frame_a_body_is_read(behaviour: f.Behaviour, connections: int) -> None:
    """Length, chunks, compression and the end of the connection; the connection is kept where the server keeps it."""
    with f.FaultServer(behaviour) as server:
        c = client(server.url)
        for _ in range(3):
            assert c.metrics().body == f.BODY
        assert server.accepted == connections


def test_nothing_listening_is_refused() -> None:
    """Connection refused is told apart from slow: it means gone."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    got = client(f"http://127.0.0.1:{port}").metrics()
    assert got.reason == "refused"


def test_an_unknown_name_is_dns() -> None:
    """A typo in a host name is named as such."""
    assert client("http://no-such-host.invalid:8000").metrics().reason == "dns"


def test_a_plain_server_behind_https_is_tls() -> None:
    """http and https mixed up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        got = client(f"https://127.0.0.1:{listener.getsockname()[1]}").metrics()
    assert got.reason == "tls"


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure() -> None:
    """vLLM closes idle connections after 5 s: the next scrape goes on with a fresh one."""
    with f.FaultServer(f.closes_after_answer) as server:
        c = client(server.url)
        results = []
        for _ in range(3):
            results.append(c.metrics().ok)
            time.sleep(0.05)
    assert results == [True, True, True]


def test_one_connection_is_kept() -> None:
    """A scrape a second must not cost a connection a second."""
    with f.FaultServer() as server:
        c = client(server.url)
        for _ in range(3):
            assert c.metrics().ok
        connections = server.accepted
    assert connections == 1


def test_the_watchdog_ends_headers_that_drip_for_ever() -> None:
    """Each byte resets the read timeout: only the total time ends it, from another thread."""
    with f.FaultServer(f.slow_headers) as server:
        c = client(server.url)
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.1):
                c.abort()

        threading.Thread(target=watch, daemon=True).start()
        started = time.monotonic()
        got = c.metrics()
        stop.set()
    assert got.reason == "timeout"
    assert time.monotonic() - started < 3


def test_credentials_come_from_environment_and_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bearer token and basic authentication; a secret that cannot be read is a reason, and its value never shows."""
    monkeypatch.setenv("TOKEN_A", "s3cret")
    secret = tmp_path / "pw"
    secret.write_text("hunter2\n")
    with f.FaultServer() as server:
        assert client(server.url, auth=Auth(bearer_token_env="TOKEN_A")).metrics().ok
        assert client(server.url, auth=Auth(username="me", password_file=secret)).metrics().ok
        missing = client(server.url, auth=Auth(bearer_token_env="TOKEN_B")).metrics()
        sent = [headers.get("authorization") for _, headers in server.requests]
    assert sent == ["Bearer s3cret", "Basic bWU6aHVudGVyMg=="]
    assert missing.reason == "secret"
    assert missing.detail == "environment variable TOKEN_B is not set"


@pytest.mark.parametrize("behaviour", [f.slow_lines, f.slow_body])
def test_what_our_own_watchdog_cut_off_is_no_answer(behaviour: f.Behaviour) -> None:
    """Whoever notices first that the time is over: a timeout, never a body that looks whole, nor "truncated"."""
    with f.FaultServer(behaviour) as server:
        c = client(server.url, timeout=Timeouts(connect=0.5, read=5.0, total=0.7))
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.002):
                c.abort()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for _ in range(3):
                got = c.metrics()
                assert (got.body, got.reason) == (None, "timeout"), got
        finally:
            over.set()
            watcher.join()


def test_a_closed_client_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed in the middle of an exchange, which would be tried once more, or while it connects."""
    opened: list[socket.socket] = []
    real = Sockets.add

    def add(self: Sockets, sock: socket.socket) -> None:
        opened.append(sock)
        real(self, sock)
        if len(opened) == 2:  # the second client, as soon as it is connected
            clients[1].close()

    monkeypatch.setattr(Sockets, "add", add)
    with f.FaultServer(f.silent) as silent, f.FaultServer() as good:
        clients = [client(silent.url), client(good.url)]
        timer = threading.Timer(0.2, clients[0].close)
        timer.start()
        assert clients[0].metrics().reason == "reset"
        timer.join()
        assert len(opened) == 1
        clients[1].metrics()
        assert len(opened) > 1
        assert {sock.fileno() for sock in opened} == {-1}


def test_health_and_version() -> None:
    """/health tells its status, or why there was no answer; /version is read as JSON and nothing else."""
    with f.FaultServer(f.status("200 OK", b'{"version":"0.26.0"}')) as server:
        c = client(server.url)
        assert c.health() == 200
        assert c.version() == "0.26.0"
        server.behaviour = f.status("503 Service Unavailable")
        assert c.health() == 503
        assert c.version() is None
        server.behaviour = f.status("200 OK", b"[1]")
        assert c.version() is None
    assert client(server.url).health() == "refused"


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape goes where the configuration says, whatever the environment holds."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with f.FaultServer() as server:
        assert client(server.url).metrics().ok
