"""The live page's server side: files and their policy, events, history, windows, alerts."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.stepper import Stepper, request, settings_of
from vllmeter.cli.check_table import check_document
from vllmeter.config.settings import PrometheusLink
from vllmeter.recording.player import Player
from vllmeter.render.live import live_document, max_concurrency
from vllmeter.web.alerts import AlertSource, firing
from vllmeter.web.live import MOST_PAGES, Hub
from vllmeter.web.pages import FOLDER, files
from vllmeter.windows.series import FIELDS

PRESSURE = Path(__file__).resolve().parents[1] / "captures" / "vllm-0.26.0-h200-pressure.vmrec"


class Played:
    """A stepped exporter on a recording that can go on."""

    def __init__(self, seconds: float = 45.0) -> None:
        self.player = Player(PRESSURE, loop=False)
        self.stepper = Stepper(settings_of(self.player))
        self.at = 0.0
        self.go(seconds)

    def go(self, seconds: float) -> None:
        """Plays on."""
        end = self.at + seconds
        while self.at < end:
            moment = self.player.at(self.at)
            self.stepper.at = self.at
            self.stepper.wall_zero = moment.wall - self.at
            self.stepper.moment(moment)
            self.at += 1.0


@pytest.fixture(scope="module")
def played() -> Played:
    return Played()


def parse(block: bytes) -> list[tuple[str, str, dict[str, Any]]]:
    """(event, id, data) of the events in a piece of the stream."""
    found = []
    for part in block.decode().split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in part.splitlines() if line)
        if "data" in fields:
            found.append((fields["event"], fields["id"], json.loads(fields["data"], parse_constant=pytest.fail)))
    return found


async def first(stream: AsyncIterator[bytes]) -> tuple[str, str, dict[str, Any]]:
    return parse(await asyncio.wait_for(anext(stream), 10))[0]


# --------------------------------------------------------------------------- files


def test_the_page_is_served_with_a_strict_policy(played: Played) -> None:
    """No inline code, nothing from elsewhere, in nobody's frame; unchanged files cost a 304."""
    app = played.stepper.app()
    response = request(app, "GET", "/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    again = request(app, "GET", "/", headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/js", "/page/", "/page/x.js"]
)
def test_only_listed_files_are_served(played: Played, path: str) -> None:
    """The list is fixed: no path leads out of the folder."""
    assert request(played.stepper.app(), "GET", path).status_code == 404


def test_everything_the_page_refers_to_is_there_and_nothing_is_elsewhere() -> None:
    """Works offline: no address of another host in any file but licences and comments of uPlot; no inline code."""
    html = files()["index.html"][0].decode()
    for target in re.findall(r'(?:src|href)="([^"#]+)"', html):
        assert target.removeprefix("page/") in files() or target.partition("?")[0] in (
            "metrics",
            "snapshot.json",
            "config",
            "api/history",
        ), target
    assert not re.search(r"<script(?![^>]* src=)|<style|\son[a-z]+=|style=", html)
    for name, (content, _, _) in files().items():
        if name.startswith("vendor/"):
            continue
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), name
        assert "innerHTML" not in text, name
        assert "eval(" not in text, name
        for imported in re.findall(r'^import .* from "([^"]+)"', text, re.M):
            assert ((FOLDER / name).parent / imported).resolve().is_file(), (name, imported)


def test_the_charts_library_is_vendored_with_its_licence() -> None:
    """uPlot's MIT licence travels with it."""
    assert b"Permission is hereby granted" in files()["vendor/uplot/LICENSE.txt"][0]
    assert b"uPlot" in files()["vendor/uplot/uPlot.esm.js"][0][:400]


# --------------------------------------------------------------------------- the document


def test_the_live_document_has_the_numbers_of_check(played: Played) -> None:
    """Budget, used, high water, expected, parts, KV tokens, concurrency and method are those of `check`."""
    snapshot = played.stepper.snapshot()
    checked = {server["name"]: server for server in check_document(snapshot, [])["servers"]}
    document = live_document(snapshot)
    assert len(document["servers"]) == 3
    for server in document["servers"]:
        expected = checked[server["name"]]
        facts, now = server["facts"], server["now"]
        assert facts["max_concurrency"] == expected["max_concurrency"]
        assert facts["kv_tokens"]["value"] == expected["kv_cache_capacity_tokens"]["value"]
        assert facts["attribution"]["method"] == expected["attribution"]["method"]
        for row, memory in zip(facts["memory"], expected["memory"], strict=True):
            for ours, theirs in (
                ("budget", "budget_bytes"),
                ("expected", "expected_bytes"),
                ("high_water", "high_water_bytes"),
            ):
                assert row[ours]["value"] == memory[theirs]["value"]
            assert now["used"][row["uuid"]]["value"] == memory["used_bytes"]["value"]
            assert {name: q["value"] for name, q in row["parts"].items()} == {
                name: q["value"] for name, q in memory["parts"].items()
            }
    assert max_concurrency(snapshot.servers[-1]) is not None


def test_the_bar_of_a_gpu_adds_up(played: Played) -> None:
    """Servers, others, unattributed, reserved and free make the card."""
    card = live_document(played.stepper.snapshot())["gpus"][0]
    known = sum(server["used"]["value"] for server in card["servers"]) + sum(o["used"] for o in card["other"])
    assert known + card["unattributed"] == card["used"]
    assert card["used"] + card["reserved"] + card["free"] == card["total"]


# --------------------------------------------------------------------------- the stream


def test_a_page_gets_everything_once_and_then_what_is_new() -> None:
    """hello, then ticks: new rows once each, facts only when they changed, ids that go on."""
    played = Played(30)

    async def look() -> None:
        hub = Hub(played.stepper)
        stream = hub.events("")
        kind, _, hello = await first(stream)
        assert kind == "hello"
        assert hello["resumed"] is False
        assert hello["fields"] == list(FIELDS)
        rows: dict[str, list[float]] = {}
        facts = 0
        for _ in range(4):
            for event, _, data in parse(await asyncio.wait_for(anext(stream), 10)):
                assert event == "tick"
                for server in data["servers"]:
                    rows.setdefault(server["name"], []).extend(row[0] for row in server["rows"])
                    facts += "facts" in server
                    assert server["now"]["window"] is not None
            played.go(2)
        assert 3 <= facts <= 5  # a high-water mark may rise
        for name, times in rows.items():
            assert times == sorted(set(times)), name
            assert times[-1] >= 33.0
        await stream.aclose()

    asyncio.run(look())


def test_ten_pages_cost_one_rendering_and_none_costs_nothing() -> None:
    """Every page gets the same bytes; when the last one closes, the work and the memory end."""
    played = Played(20)

    async def look() -> None:
        hub = Hub(played.stepper)
        assert hub._task is None
        streams = [hub.events("") for _ in range(10)]
        await asyncio.gather(*(first(stream) for stream in streams))
        before = hub.built
        blocks = await asyncio.gather(*(asyncio.wait_for(anext(stream), 10) for stream in streams))
        ids = {event[1] for block in blocks for event in parse(block)}
        assert len(ids) <= hub.built - before + 2
        assert len(ids) < 5
        for stream in streams:
            await stream.aclose()
        assert hub.pages == 0
        assert hub._task is not None
        await asyncio.wait_for(hub._task, 10)
        built = hub.built
        await asyncio.sleep(1.2)
        assert hub.built == built
        assert not hub._series
        assert not hub._events

    asyncio.run(look())


def test_a_page_that_was_away_gets_what_it_missed() -> None:
    """The rows since the last event it had, nothing less; after another start of the exporter it begins anew."""
    played = Played(30)

    async def look() -> None:
        hub = Hub(played.stepper)
        stream = hub.events("")
        await first(stream)
        last = parse(await asyncio.wait_for(anext(stream), 10))[-1][1]
        await stream.aclose()
        assert hub._task is not None
        await asyncio.wait_for(hub._task, 10)
        played.go(17)
        again = hub.events(last)
        _, _, hello = await first(again)
        assert hello["resumed"] is True
        assert hello["gap"] == pytest.approx(17, abs=0.1)
        for server in hello["servers"]:
            times = [row[0] for row in server["rows"]]
            assert times == [float(t) for t in range(int(times[0]), 47)]
            assert times[0] <= 30.0
        await again.aclose()
        for strange in (
            "",
            "00000000:3:30.0",
            "nonsense",
            f"{hub.epoch}:1:nan",
            f"{hub.epoch}:1:-5000",
            f"{hub.epoch}::",
        ):
            other = hub.events(strange)
            _, _, hello = await first(other)
            assert hello["resumed"] is False, strange
            await other.aclose()
        if hub._task is not None:
            await asyncio.wait_for(hub._task, 10)

    asyncio.run(look())


def test_a_slow_page_gets_one_event_instead_of_a_queue() -> None:
    """Whoever does not read for long gets a hello with the rows that it missed; nothing piles up for it."""
    played = Played(20)

    async def look() -> None:
        hub = Hub(played.stepper)
        stream = hub.events("")
        await first(stream)
        await asyncio.wait_for(anext(stream), 10)
        for _ in range(60):  # as if a minute went by
            played.go(0.5)
            hub._events.append(hub._tick())
        event, _, data = parse(await asyncio.wait_for(anext(stream), 10))[0]
        assert event == "hello"
        assert len(hub._events) <= 41
        assert data["servers"][0]["name"]
        await stream.aclose()
        if hub._task is not None:
            await asyncio.wait_for(hub._task, 10)

    asyncio.run(look())


def test_the_server_ends_streams_when_it_stops() -> None:
    """Open pages do not hold up a stop."""
    played = Played(5)

    async def look() -> None:
        hub = Hub(played.stepper)
        stream = hub.events("")
        await first(stream)
        hub.end()
        left = [block async for block in stream]
        assert len(left) <= 3
        if hub._task is not None:
            await asyncio.wait_for(hub._task, 10)

    asyncio.run(look())


def test_too_many_pages_are_refused(played: Played) -> None:
    """The exporter's first duty is sampling."""
    app = played.stepper.app()
    app.state.live.pages = MOST_PAGES
    assert request(app, "GET", "/api/stream").status_code == 503


# --------------------------------------------------------------------------- history and windows


def test_history_as_json_and_csv_agree_and_absent_is_empty(played: Played) -> None:
    """Unix times, one row per sample; what is not known is null or empty, never 0."""
    app = played.stepper.app()
    document = request(app, "GET", "/api/history").json()
    assert set(document["servers"]) == set(played.stepper.targets)
    text = request(app, "GET", "/api/history", params={"format": "csv"}).text
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == sum(len(server["rows"]) for server in document["servers"].values())
    for name, server in document["servers"].items():
        mine = [line for line in lines if line["server"] == name]
        for line, row in zip(mine, server["rows"], strict=True):
            assert float(line["time"]) == pytest.approx(row[0] + document["zero"], abs=0.002)
            for field, value in zip(document["fields"], row[1:], strict=True):
                assert (float(line[field]) if line[field] else None) == value
        assert all(bytes_ for _, bytes_ in server["memory"])
    assert any(line["itl_mean"] == "" for line in lines)


def test_history_keeps_to_the_asked_span(played: Played) -> None:
    """Only rows in (from, to]."""
    begin = played.stepper.wall_zero + 10.0
    document = request(
        played.stepper.app(), "GET", "/api/history", params={"from": begin, "to": begin + 5.0, "server": "vllm-qwen3"}
    ).json()
    assert [row[0] for row in document["servers"]["vllm-qwen3"]["rows"]] == [11.0, 12.0, 13.0, 14.0, 15.0]


def test_a_window_is_exact(played: Played) -> None:
    """The picked window's requests and preemptions are the server's own counters' differences."""
    zero = played.stepper.wall_zero
    answer = request(
        played.stepper.app(), "GET", "/api/window", params={"from": zero + 5, "to": zero + 40, "server": "vllm-qwen3"}
    ).json()
    found = answer["windows"][0]
    bodies = {}
    player = Player(PRESSURE, loop=False)
    for at in range(41):
        moment = player.at(float(at))
        if at in (5, 40):
            body = moment.servers["vllm-qwen3"].body
            assert body is not None
            bodies[at] = body.decode()

    def count(at: int, name: str) -> float:
        return sum(float(line.rpartition(" ")[2]) for line in bodies[at].splitlines() if line.startswith(name))

    requests = "vllm:time_to_first_token_seconds_count"
    assert found["figures"]["ttft_requests"] == count(40, requests) - count(5, requests)
    assert found["figures"]["preemptions"] == count(40, "vllm:num_preemptions_total") - count(
        5, "vllm:num_preemptions_total"
    )
    assert found["figures"]["preemptions"] > 0
    assert found["samples"] == 35
    assert found["covered_from"] == pytest.approx(zero + 5)
    low, high = found["figures"]["ttft_jitter_lower"], found["figures"]["ttft_jitter_upper"]
    assert 0 < low <= high


def test_a_gap_before_a_window_is_not_covered(played: Played) -> None:
    """What the figures leave out is not called covered: the server was away for most of a minute."""
    zero, entry = played.stepper.wall_zero, played.stepper.store.entry("vllm-qwen3")
    assert entry is not None
    starts, ends, _ = entry.tracker.table((), 20.0)
    assert (starts[0], ends[0]) == pytest.approx((20.0, 21.0))

    def window(begin: float) -> Any:
        span = {"from": zero + begin, "to": zero + 21.5, "server": "vllm-qwen3"}
        (found,) = request(played.stepper.app(), "GET", "/api/window", params=span).json()["windows"]
        return found

    kept, left_out = window(20.4), window(20.9)
    assert kept["covered_from"] - zero == pytest.approx(20.0)
    assert kept["figures"]["span"] == pytest.approx(1.0)
    assert (left_out["covered_from"], left_out["samples"], left_out["figures"]["span"]) == (None, 0, None)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/window?server=nobody", 404, "known: "),
        ("/api/window?from=5&to=4", 400, "later than"),
        ("/api/window?from=nan&to=4", 400, "later than"),
        ("/api/history?server=nobody", 404, "no server"),
        ("/api/history?format=xml", 400, "json or csv"),
        ("/api/window?from=x", 422, "from"),
    ],
)
def test_wrong_questions_get_one_clear_answer(played: Played, path: str, status: int, words: str) -> None:
    """Place, cause, remedy."""
    response = request(played.stepper.app(), "GET", path)
    assert response.status_code == status
    assert words in response.text


def test_a_window_without_samples_says_so(played: Played) -> None:
    """Before the exporter began to watch there is nothing, with a reason; not 0."""
    zero = played.stepper.wall_zero
    answer = request(played.stepper.app(), "GET", "/api/window", params={"from": zero - 500, "to": zero - 400}).json()
    for window in answer["windows"]:
        assert window["samples"] == 0
        assert window["figures"]["ttft_requests"] is None
        assert window["figures"]["absent"]["ttft_requests"] == "no_samples"


def test_runs_of_the_last_minutes_are_remembered() -> None:
    """An ended run stays shaded."""
    played = Played(5)
    played.stepper.mark_run("r", "short", "vllm-qwen3", start=True)
    played.go(3)
    played.stepper.mark_run("r", "short", "vllm-qwen3", start=False)
    runs = json.loads(played.stepper.get("/api/live"))["runs"]
    assert [run["run"] for run in runs] == ["r"]
    assert runs[0]["ended"] - runs[0]["started"] == pytest.approx(3.0, abs=0.1)


def test_posts_of_other_sites_are_refused(played: Played) -> None:
    """A page of another site cannot mark runs through the browser of somebody who runs an exporter."""
    app = played.stepper.app()
    body = {"run": "x", "action": "start"}
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        assert request(app, "POST", "/api/runs", json=body, headers={"sec-fetch-site": site}).status_code == status
    played.stepper.mark_run("x", "default", "", start=False)


# --------------------------------------------------------------------------- alerts


def test_firing_alerts_are_sorted_cut_and_counted() -> None:
    """Critical first; pending ones are counted only; strange entries do no harm."""
    alerts = [
        {
            "state": "firing",
            "labels": {"alertname": "B", "severity": "warning", "server": "s"},
            "annotations": {"summary": "x" * 999},
        },
        {"state": "firing", "labels": {"alertname": "A", "severity": "critical"}, "activeAt": "2026-01-01T00:00:00Z"},
        {"state": "pending", "labels": {"alertname": "C"}},
        {"state": "firing", "labels": None, "annotations": None},
        "nonsense",
    ]
    found = firing({"data": {"alerts": alerts}})
    assert [alert["name"] for alert in found["firing"]] == ["A", "", "B"]
    assert found["pending"] == 1
    assert len(found["firing"][2]["summary"]) == 400
    many = firing({"data": {"alerts": [alerts[0]] * 70}})
    assert (len(many["firing"]), many["more"]) == (50, 20)


def test_a_watchdog_is_no_alert_and_runbooks_are_links() -> None:
    """What always fires would hide what just began to; only addresses of pages are handed on."""
    alerts = [
        {"state": "firing", "labels": {"alertname": "VllmeterWatchdog"}},
        {"state": "firing", "labels": {"alertname": "Watchdog"}},
        {
            "state": "firing",
            "labels": {"alertname": "A"},
            "annotations": {"runbook_url": "https://example.org/runbooks/A.md"},
        },
        {"state": "firing", "labels": {"alertname": "B"}, "annotations": {"runbook_url": "javascript:alert(1)"}},
        {"state": "firing", "labels": {"alertname": "C"}, "annotations": {"runbook_url": 7}},
    ]
    found = firing({"data": {"alerts": alerts}})
    assert {alert["name"]: alert["runbook"] for alert in found["firing"]} == {
        "A": "https://example.org/runbooks/A.md",
        "B": "",
        "C": "",
    }
    assert (found["pending"], found["more"]) == (0, 0)


@pytest.mark.parametrize("answer", [None, [], {}, {"data": None}, {"data": {"alerts": "x"}}, "text"])
def test_what_is_no_list_of_alerts_is_said(answer: Any) -> None:
    """Not silently "no alerts"."""
    with pytest.raises((ValueError, AttributeError)):
        firing(answer)


def test_an_unreachable_prometheus_is_said_on_the_page(played: Played) -> None:
    """Alerts that are not known are not shown as none; the exporter does not wait for them."""
    source = AlertSource()
    assert not source.due(None, 0.0)
    assert source.due("http://127.0.0.1:9", 0.0)
    source.ask("http://127.0.0.1:9", 0.0)
    assert not source.due("http://127.0.0.1:9", 10.0)
    assert source.due("http://127.0.0.1:9", 20.0)
    document = source.document()
    assert document is not None
    assert document["reachable"] is False
    assert "does not answer" in document["reason"]
    assert source.due("http://127.0.0.1:10", 20.5)
    assert PrometheusLink(url="http://127.0.0.1:9").url
