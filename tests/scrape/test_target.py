"""State of one server's sampling: what is shown when, lateness, back-off, counting of failures."""

from __future__ import annotations

import logging

import pytest

from vllmeter.config.settings import Server, Timeouts
from vllmeter.render.text import Blocks, ServerText
from vllmeter.scrape.outcome import Fetch
from vllmeter.scrape.target import Target, limit_age
from vllmeter.snapshot import ServerReading

BODY = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 3\n'


def target(**more: object) -> Target:
    server = Server.model_validate({"name": "s", "url": "http://127.0.0.1:1", "timeout": Timeouts(read=2.0), **more})
    return Target(server, 1.0)


def good(duration: float = 0.01, body: bytes = BODY) -> Fetch:
    return Fetch(duration, body=body, content_type="text/plain", status=200)


def test_a_good_scrape_is_fresh_and_counts_no_failure() -> None:
    """After one good scrape the reading is shown with its age."""
    t = target()
    t.begin(0.0)
    reading = t.finish(good(), 0.5, 1000.5)
    assert reading is not None
    assert reading.scalar("requests_running") == 3
    status = t.status(1.0)
    assert status.up
    assert status.sample_age == 0.5
    assert status.in_flight is None
    assert status.failures == {}
    assert t.fresh(1.0) is not None


def test_a_failed_scrape_withdraws_the_last_good_values_at_once() -> None:
    """A failed source never shows its last good value."""
    t = target()
    t.finish(good(), 0.0, 0.0)
    t.finish(Fetch(0.0, reason="refused"), 1.0, 1.0)
    assert t.fresh(1.0) is None
    assert not t.status(1.0).up
    t.finish(good(), 2.0, 2.0)
    assert t.fresh(2.0) is not None
    assert t.status(2.0).failures == {"refused": 1}


def test_a_pending_answer_keeps_the_last_sample_until_the_limit() -> None:
    """A busy vLLM answers 3-4 s late: server_up stays 1, values go when too old, the wait is shown."""
    t = target()
    t.finish(good(), 0.0, 0.0)
    t.begin(1.0)
    assert limit_age(1.0, 2.0) == 3.0
    assert t.fresh(2.9) is not None
    assert t.fresh(3.1) is None
    status = t.status(3.1)
    assert status.up
    assert status.in_flight == pytest.approx(2.1)


def test_a_body_that_does_not_parse_is_a_failure_with_its_line() -> None:
    """Reason parse, with the line in the detail."""
    t = target()
    assert t.finish(good(body=b"x 1\nnot a line\n"), 0.0, 0.0) is None
    status = t.status(0.0)
    assert status.reason == "parse"
    assert "line 2" in (status.detail or "")
    assert status.failures == {"parse": 1}


def test_each_change_of_outcome_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is down for an hour writes one line, not 3,600."""
    t = target()
    with caplog.at_level(logging.INFO, logger="vllmeter.scrape"):
        for second in range(5):
            t.finish(Fetch(0.0, reason="refused", detail="connection refused"), float(second), 0.0)
        for second in range(5, 8):
            t.finish(good(), float(second), 0.0)
        t.finish(Fetch(0.0, reason="timeout"), 9.0, 0.0)
    assert [r.message.split(" scrape=")[1].split(" ")[0] for r in caplog.records] == ["failed", "ok", "failed"]


def test_back_off_follows_only_our_cost_and_never_while_held() -> None:
    """A 30 MB body costs the server's event loop seconds: the interval grows to 5 s at most, unless it matters now."""
    t = target(max_body=64 * 2**20)
    padding = b"# " + b"x" * 4_000_000 + b"\n"
    for second in range(9):
        t.finish(good(body=BODY + padding), float(second), 0.0)
    assert t.interval(hold=False) == 1.0  # a few answers prove nothing
    t.finish(good(body=BODY + padding), 9.0, 0.0)
    assert t.interval(hold=False) == 5.0
    assert t.interval(hold=True) == 1.0
    for second in range(40):
        t.finish(good(duration=3.0), float(second), 0.0)  # slow answers of a busy server are no cost of ours
    assert t.interval(hold=False) == 1.0


def test_a_fault_of_ours_costs_one_sample_and_not_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens inside is caught, counted as internal and logged with its traceback."""
    t = target()
    monkeypatch.setattr("vllmeter.exposition.parse.Parser.parse", lambda *_: 1 / 0)
    assert t.finish(good(), 0.0, 0.0) is None
    assert t.status(0.0).failures == {"internal": 1}


def test_lines_are_written_when_asked_for_and_once_for_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads most samples: only the one that is asked for costs its writing, and it is always the newest."""
    written: list[float] = []
    real = ServerText.render

    def render(text: ServerText, reading: ServerReading) -> Blocks:
        written.append(reading.scalar("requests_running") or 0.0)
        return real(text, reading)

    monkeypatch.setattr(ServerText, "render", render)
    t = target()
    assert t.blocks() is None
    for second in range(3):
        t.finish(good(body=BODY.replace(b" 3", f" {second}".encode())), float(second), 0.0)
    assert written == []
    first = t.blocks()
    assert first == t.blocks()
    assert written == [2.0]
    assert first is not None
    assert first["requests_running"].endswith(b" 2\n")


def test_a_fault_while_writing_costs_one_server_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body of all servers is still made, and the fault is counted."""

    def broken(_: ServerText, _reading: ServerReading) -> Blocks:
        raise RuntimeError("a fault of ours")

    t = target()
    t.finish(good(), 0.0, 0.0)
    monkeypatch.setattr(ServerText, "render", broken)
    assert t.blocks() == {}
    assert t.status(0.0).failures == {"internal": 1}


def test_an_old_answer_of_health_does_not_stand_while_it_is_asked_again() -> None:
    """Older than 3 intervals when the question goes out: withdrawn, with a word for why; younger: it stands."""
    t = target()
    t.probed(200, 10.0)
    t.probing(11.0)
    assert t.status(11.0).healthy is True
    t.probing(13.5)
    assert (t.status(13.5).healthy, t.status(13.5).health) == (None, "pending")
    t.probed("timeout", 20.0)
    assert (t.status(20.0).healthy, t.status(20.0).health) == (None, "timeout")
    t.probed(503, 21.0)
    assert t.status(21.0).healthy is False


def test_a_short_interval_does_not_withdraw_health_between_two_regular_questions() -> None:
    """/health is asked every half second at most, however short the interval."""
    t = target(interval=0.2)
    t.probed(200, 10.0)
    t.probing(11.4)
    assert t.status(11.4).healthy is True
