"""The gate in front of every handler, request by request."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from vllmeter.web import security as gate
from vllmeter.web.security import FAILED_BURST, MOST_BODY, Guard, Policy

TOKEN = "0123456789abcdef-token"


class Body(BaseModel):
    name: str


class World:
    """An application behind the gate, with a clock of its own."""

    def __init__(self, policy: Policy | None = None, *, loopback: bool = True) -> None:
        self.now = 0.0
        app = FastAPI()

        @app.get("/metrics")
        def metrics() -> str:
            return "m"

        @app.get("/")
        def page() -> str:
            return "page"

        @app.post("/api/runs")
        def runs(body: Body) -> str:
            return body.name

        self.policy = policy or Policy()
        self.app = Guard(app, self.policy, loopback=loopback, clock=lambda: self.now, own_names=["gpu1.example.com"])

    def ask(self, method: str = "GET", path: str = "/", *, host: str = "127.0.0.1:9877", **more: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9877") as client:
                headers = {"host": host, **more.pop("headers", {})}
                return await client.request(method, path, headers=headers, **more)

        return asyncio.run(go())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9877", 200),
        ("[::1]:9877", 200),
        ("10.1.2.3", 200),
        ("localhost:9877", 200),
        ("vllmeter:9877", 200),
        ("vllmeter.monitoring.svc.cluster.local:9877", 200),
        ("box.local", 200),
        ("gpu1.example.com:9877", 200),
        ("evil.example.net", 421),
        ("evil.example.net:9877", 421),
        ("gpu1.example.com.evil.net", 421),
        ("gpu1.example.com@evil.net", 421),
        ("localhost.evil.net", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
def test_a_page_under_a_foreign_name_gets_nothing(host: str, status: int) -> None:
    """DNS rebinding: the browser asks us, but under the attacker's name."""
    assert World().ask(host=host).status_code == status


def test_scrapers_may_use_any_name_where_the_network_reaches_us() -> None:
    """Prometheus asks gpu7.example.com:9877 without any set-up; the page and POST routes stay closed under it."""
    world = World(loopback=False)
    assert world.ask(path="/metrics", host="gpu7.example.com:9877").status_code == 200
    assert world.ask(path="/", host="gpu7.example.com:9877").status_code == 421
    assert World().ask(path="/metrics", host="gpu7.example.com:9877").status_code == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:9877", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://evil.example.net"}, 403),
        ({"origin": "http://127.0.0.1:80"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_another_site_cannot_change_anything(headers: dict[str, str], status: int) -> None:
    """A form or script of another page in the user's browser."""
    assert World().ask("POST", "/api/runs", json={"name": "x"}, headers=headers).status_code == status


def test_large_requests_are_refused_declared_or_not() -> None:
    """A body beyond the limit ends with 413, also in chunks without a length."""
    world = World()
    assert world.ask("POST", "/api/runs", content=b"x" * (MOST_BODY + 1)).status_code == 413

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 8192

    assert world.ask("POST", "/api/runs", content=chunks()).status_code == 413
    assert world.ask("POST", "/api/runs", headers={"content-length": "-1"}).status_code == 413


def test_a_flood_from_one_address_is_limited_and_ends() -> None:
    """429 beyond the burst; a second later it goes on."""
    world = World()
    seen = [world.ask().status_code for _ in range(int(gate.BURST) + 3)]
    assert seen.count(429) == 3
    world.now += 1
    assert world.ask().status_code == 200


def test_buckets_of_many_addresses_stay_bounded() -> None:
    """Made-up addresses cannot fill the memory."""
    buckets = gate.Buckets(1, 1)
    for number in range(3 * gate.MOST_CLIENTS):
        buckets.take(str(number), 0.0)
    assert len(buckets._levels) == gate.MOST_CLIENTS


def test_answers_carry_headers_that_keep_a_browser_in_check() -> None:
    """Also refusals."""
    for answer in (World().ask(), World().ask(host="evil.example.net")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers


# ---------------------------------------------------------------------------- credentials


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """One user, one token."""
    hashed = bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode()
    (tmp_path / "token").write_text(TOKEN + "\n")
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users: {{alice: '{hashed}'}}\nbearer_token_files: [token]\n")
    return Policy(path)


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (basic("alice", "hunter2"), 200),
        ({"authorization": f"Bearer {TOKEN}"}, 200),
        ({"authorization": f"bearer {TOKEN}"}, 200),
        ({}, 401),
        (basic("alice", "hunter3"), 401),
        (basic("bob", "hunter2"), 401),
        (basic("", ""), 401),
        (basic("alice", "x" * 5000), 401),
        (basic("alice", "\0"), 401),
        ({"authorization": "Basic"}, 401),
        ({"authorization": "Basic !!"}, 401),
        ({"authorization": "Basic " + base64.b64encode(b"alice").decode()}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"authorization": "Digest x"}, 401),
    ],
)
def test_every_path_needs_a_credential_when_authentication_is_on(
    policy: Policy, headers: dict[str, str], status: int
) -> None:
    """Reading and changing alike; a refusal says what is accepted and nothing of what was given."""
    world = World(policy)
    for method, path, body in (("GET", "/", None), ("GET", "/metrics", None), ("POST", "/api/runs", {"name": "x"})):
        answer = world.ask(method, path, json=body, headers=headers)
        assert answer.status_code == status
        if status == 401:
            assert "Basic" in answer.headers["www-authenticate"]
            assert "hunter" not in answer.text


def test_a_password_is_computed_once_and_an_unknown_user_costs_the_same(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of an answer tells neither users nor passwords; a scraper every second costs no bcrypt each."""
    computed: list[bytes] = []
    real = bcrypt.checkpw

    def counted(password: bytes, stored: bytes) -> bool:
        computed.append(stored)
        return real(password, stored)

    monkeypatch.setattr(bcrypt, "checkpw", counted)
    world = World(policy)
    for _ in range(5):
        assert world.ask(headers=basic("alice", "hunter2")).status_code == 200
    assert len(computed) == 1
    assert world.ask(headers=basic("nobody", "hunter2")).status_code == 401
    assert len(computed) == 2
    assert computed[1].split(b"$")[2] == computed[0].split(b"$")[2]


def test_guessing_is_slowed_down(policy: Policy) -> None:
    """Beyond a burst of wrong passwords an address gets 429, while who has the password goes on."""
    world = World(policy)
    assert world.ask(headers=basic("alice", "hunter2")).status_code == 200
    seen = [world.ask(headers=basic("alice", f"guess{number}")).status_code for number in range(int(FAILED_BURST) + 5)]
    assert seen.count(429) == 5
    assert world.ask(headers=basic("alice", "hunter2")).status_code == 200
    assert world.ask(headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_host_names_do_not_matter_where_credentials_do(policy: Policy) -> None:
    """A foreign page has no credentials for us; whoever scrapes with them may use any name."""
    world = World(policy, loopback=False)
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert world.ask(host="gpu7.example.com", headers=headers).status_code == 200
    assert world.ask(host="gpu7.example.com").status_code == 401


def test_changed_files_are_taken_over_and_broken_ones_are_not(
    policy: Policy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rotated token works without a restart; a mistake keeps what was, is logged once and shows no value."""
    world = World(policy)
    path = tmp_path / "web.yml"
    old = path.read_text()
    path.write_text("basic_auth_users: {alice: oops-in-clear}\n")
    assert policy.refresh() is False
    assert policy.refresh() is False
    assert world.ask(headers=basic("alice", "hunter2")).status_code == 200
    assert sum("web_config=kept" in record.message for record in caplog.records) == 1
    assert "oops" not in caplog.text
    path.write_text(old.replace("alice", "carol"))
    assert policy.refresh() is True
    assert world.ask(headers=basic("alice", "hunter2")).status_code == 401
    assert world.ask(headers=basic("carol", "hunter2")).status_code == 200
