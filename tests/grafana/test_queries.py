"""Every query of every dashboard, filled in as Grafana does, against a real Prometheus with the recording in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grafana import boards, stores
from grafana.boards import NAMES, board
from grafana.from_source import fill_in, module
from grafana.recorded import CHAT, LOOKBACK, SCRAPE
from grafana.servers import Prometheus, QueryError
from grafana.without_data import NO_DATA, NO_DATA_FOR_SERVER, NO_DATA_IN_ROW, OUTSIDE

pytestmark = [pytest.mark.promtool, pytest.mark.xdist_group("grafana-prometheus")]

RUNS = {"run_a": "base-2048-short", "run_b": "cand-8192-short"}
POOLING = frozenset({"vllm-embed", "vllm-reranker"})
RANGES = {
    # unit -> lowest and highest plausible value
    "percentunit": (0.0, 1.0000001),
    "s": (0.0, 7680.0),
    "bytes": (0.0, 2.0**47),
    "Bps": (0.0, 1e12),
    "reqps": (0.0, 1e5),
    "short": (0.0, 1e7),
    "none": (0.0, 1e7),
    "watt": (1.0, 2000.0),
    "celsius": (5.0, 120.0),
    "dateTimeAsIso": (1.5e12, 2.5e12),
}


class World:
    """A running Prometheus and the times of what it holds."""

    def __init__(self, server: Prometheus, blocks: Path) -> None:
        facts: dict[str, Any] = stores.facts(blocks)
        self.server = server
        self.begin = float(facts["begin"])
        self.end = float(facts["end"])
        pressure = facts["phases"]["pressure-64"]
        self.busy = self.begin + SCRAPE * ((pressure[1] - 3 - self.begin) // SCRAPE)
        self.view = fill_in.View(self.begin, self.end, SCRAPE, SCRAPE)
        self._filled: dict[str, Any] = {}

    def filled(self, name: str) -> Any:
        """Variables of a dashboard, with two runs chosen."""
        if name not in self._filled:
            chosen = RUNS if name == "load-test" else {}
            self._filled[name] = fill_in.fill(board(name), self.server, self.view, chosen)
        return self._filled[name]

    def series(self, target: dict[str, Any], expr: str) -> list[tuple[dict[str, str], list[float]]]:
        """Labels and values: over the whole recording, or under load and at the end for instant queries."""
        if not target.get("instant"):
            found = self.server.range(expr, self.begin, self.end, SCRAPE)
            return [(one["metric"], [float(value) for _, value in one["values"]]) for one in found]
        out = []
        for at in (self.busy, self.end):
            out += [(one["metric"], [float(one["value"][1])]) for one in self.server.instant(expr, at)]
        return out


def _started(version: str, *hosts: str) -> Iterator[World]:
    blocks = stores.recording(*hosts)
    program = stores.needed("prometheus", version)
    with stores.copied(blocks) as data, Prometheus(program, data, data / "scratch", LOOKBACK) as server:
        yield World(server, blocks)


@pytest.fixture(scope="module", params=[stores.OLD, stores.NEW])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The recording on one host, under Debian's Prometheus and under 3.x."""
    yield from _started(request.param, "gpu-1")


@pytest.fixture(scope="module")
def fleet() -> Iterator[World]:
    """Two hosts with equal server names and equal GPU indices."""
    yield from _started(stores.OLD, "gpu-1", "gpu-2")


def _rows(name: str) -> dict[int, str]:
    """Panel id -> title of its row."""
    row, out = "", {}
    for panel in board(name)["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        out[panel["id"]] = row
    return out


def _asked(world: World, name: str) -> Iterator[tuple[Any, dict[str, Any], str]]:
    filled = world.filled(name)
    for placed in fill_in.unrolled(board(name), filled):
        for target in placed.panel.get("targets", []):
            yield placed, target, filled.into(target["expr"], placed.scoped)


@pytest.mark.parametrize("name", NAMES)
def test_every_query_answers(world: World, name: str) -> None:
    """No error, and data wherever the recording has it; what has none is declared with its reason."""
    rows = _rows(name)
    problems = []
    for placed, target, expr in _asked(world, name):
        title, ref = placed.panel["title"], target["refId"]
        server = placed.scoped["server"].text if "server" in placed.scoped else ""
        where = f"{title} {ref} {server}".strip()
        try:
            has = bool(world.series(target, expr))
        except QueryError as error:
            problems.append(f"{where}: {error}\n    {expr}")
            continue
        keys = ((name, title, ref), (name, title, "*"))
        declared = any(key in NO_DATA for key in keys) or (name, rows[placed.panel["id"]], title, ref) in NO_DATA_IN_ROW
        declared = declared or (server in POOLING and (name, title, ref) in NO_DATA_FOR_SERVER)
        if has == declared:
            problems.append(f"{where}: {'has data but is declared to have none' if has else 'no data'}\n    {expr}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", NAMES)
def test_values_fit_their_unit(world: World, name: str) -> None:
    """Shares lie between 0 and 1, latencies below hours, bytes below a card's size; nothing is NaN or infinite."""
    problems = []
    for placed, target, expr in _asked(world, name):
        title, ref = placed.panel["title"], target["refId"]
        for labels, values in world.series(target, expr):
            low, high = _range(name, placed.panel, target, labels, world.filled(name))
            wrong = [value for value in values if not low <= value <= high]
            if wrong:
                problems.append(f"{title} {ref}: {wrong[:3]} outside {low} to {high}, {labels}")
    assert not problems, "\n".join(problems)


def _range(
    name: str, panel: dict[str, Any], target: dict[str, Any], labels: dict[str, str], filled: Any
) -> tuple[float, float]:
    legend = module("preview_panels").legend

    if found := OUTSIDE.get((name, panel["title"], target["refId"])):
        return found[:2]
    unit = panel["fieldConfig"]["defaults"]["unit"]
    shown = legend(target.get("legendFormat", ""), labels)
    if panel["type"] == "table":
        organize = next(t["options"] for t in panel["transformations"] if t["id"] == "organize")
        shown = organize["renameByName"].get(f"Value #{target['refId']}", organize["renameByName"].get("Value", ""))
    for override in panel["fieldConfig"].get("overrides", []):
        matcher = override["matcher"]
        pattern = re.fullmatch(r"/(.*)/", str(matcher["options"]))
        hit = re.search(pattern[1], shown) if pattern else matcher["options"] == shown
        for setting in override["properties"]:
            if hit and setting["id"] == "unit":
                unit = setting["value"]
    del filled
    return RANGES[unit]


@pytest.mark.parametrize("name", NAMES)
def test_variables_have_options(world: World, name: str) -> None:
    """Each variable's own query answers with what a user can choose."""
    filled = world.filled(name)
    for variable in board(name)["templating"]["list"]:
        value = filled.values[variable["name"]]
        if variable["type"] == "query":
            assert value.options, variable["name"]
            assert value.raw, variable["name"]
    assert [text for text, _ in filled.values["server"].options] == ["vllm-embed", "vllm-qwen3", "vllm-reranker"]
    assert filled.values["gpu"].options == [("0", "0")]
    if "card" in filled.values:
        ((text, uuid),) = filled.values["card"].options
        assert text == "gpu-1 · 0 · NVIDIA H200"
        assert uuid.startswith("GPU-")


@pytest.mark.parametrize("name", NAMES)
def test_annotations_show_what_happened(world: World, name: str) -> None:
    """Four runs, one restart, one changed setting and the alerts about preemptions, at their times."""
    events = module("preview_panels").events

    found = events(board(name), world.server, world.filled(name))
    texts = [event.text for event in found]
    assert sorted(text for text in texts if text.startswith("run ")) == [
        "run base-2048-long",
        "run base-2048-short",
        "run cand-8192-long",
        "run cand-8192-short",
    ]
    assert texts.count(f"{CHAT} restarted") == 1
    assert texts.count(f"{CHAT} has other settings") == 1
    assert "VllmeterPreemptionsSeen" in texts


@pytest.mark.parametrize("name", NAMES)
def test_one_server_can_be_chosen(world: World, name: str) -> None:
    """With one server, host and card chosen, every query still answers without error and shows no other server."""
    chosen = {
        "server": "vllm-embed",
        "host": "gpu-1",
        "job": "vllmeter",
        "gpu": "0",
        **(RUNS if name == "load-test" else {}),
    }
    narrow = fill_in.fill(board(name), world.server, world.view, chosen)
    for placed in fill_in.unrolled(board(name), narrow):
        for target in placed.panel.get("targets", []):
            if placed.panel["title"] in ("What the others do", "Alerts that fire"):
                continue  # shows every server on the card on purpose; alerts are of the host
            for labels, _ in world.series(target, narrow.into(target["expr"], placed.scoped)):
                assert labels.get("server", "vllm-embed") == "vllm-embed", placed.panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_two_hosts_with_equal_names(fleet: World, name: str) -> None:
    """Nothing is mixed up or refused: both hosts answer, and every drawn series has its own name."""
    legend = module("preview_panels").legend

    filled = fleet.filled(name)
    if "card" in filled.values:
        assert len(filled.values["card"].options) == 2
    problems = []
    for placed in fill_in.unrolled(board(name), filled):
        drawn: list[str] = []
        for target in placed.panel.get("targets", []):
            expr = filled.into(target["expr"], placed.scoped)
            try:
                found = fleet.series(target, expr)
            except QueryError as error:
                problems.append(f"{placed.panel['title']} {target['refId']}: {error}")
                continue
            hosts = {labels["host"] for labels, _ in found if "host" in labels}
            if hosts and not placed.scoped and hosts != {"gpu-1", "gpu-2"} and "topk (1," not in target["expr"]:
                problems.append(f"{placed.panel['title']} {target['refId']}: only {hosts}")
            if placed.panel["type"] in ("timeseries", "state-timeline"):
                drawn += [legend(target["legendFormat"], labels) for labels, _ in found]
        double = {text for text in drawn if drawn.count(text) > 1}
        if double:
            problems.append(f"{placed.panel['title']}: several series are called {sorted(double)[:3]}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("version", [stores.OLD, stores.NEW])
def test_an_empty_prometheus_gives_no_error(version: str, tmp_path: Path) -> None:
    """Imported where nothing is scraped yet, or where no run was ever made, every panel is empty and none is broken."""
    program = stores.needed("prometheus", version)
    with Prometheus(program, tmp_path / "data", tmp_path / "scratch", LOOKBACK) as server:
        view = fill_in.View(1_800_000_000, 1_800_000_600, SCRAPE, SCRAPE)
        for name in NAMES:
            filled = fill_in.fill(board(name), server, view)
            for placed in fill_in.unrolled(board(name), filled):
                for target in placed.panel.get("targets", []):
                    expr = filled.into(target["expr"], placed.scoped)
                    assert server.range(expr, view.begin, view.end, 60) == [], placed.panel["title"]


def test_repeated_rows_unroll(world: World) -> None:
    """A row repeated by server comes once per server, below each other, without overlap."""
    placed = list(fill_in.unrolled(board("latency-and-jitter"), world.filled("latency-and-jitter")))
    rows = [p.scoped["server"].text for p in placed if p.panel["type"] == "row" and p.scoped]
    assert rows == ["vllm-embed", "vllm-qwen3", "vllm-reranker"]
    cells = [(x, y) for p in placed for x in range(p.x, p.x + p.w) for y in range(p.y, p.y + p.h)]
    assert len(cells) == len(set(cells))


def test_whole_run_difference_is_exact(world: World) -> None:
    """The difference table gives what the counters say: for run A 25 first tokens (one is a warm-up request)."""
    filled = world.filled("load-test")
    panel = next(p for p in boards.panels("load-test") if p["title"] == "Difference, whole runs")
    rows = {
        one["metric"]["measure"]: float(one["value"][1])
        for one in world.server.instant(filled.into(panel["targets"][0]["expr"]), world.end)
    }
    end = float(filled.values["end_a"].raw)
    selector = f'{{server="{CHAT}"}} @ {end}'
    (total,) = world.server.instant(f"vllmeter_ttft_seconds_sum{selector}", world.end)
    (count,) = world.server.instant(f"vllmeter_ttft_seconds_count{selector}", world.end)
    assert float(count["value"][1]) == 25
    assert rows["1 TTFT, mean (ms)"] == pytest.approx(1000 * float(total["value"][1]) / 25)


def test_alerts_are_counted_only_where_rules_are_evaluated(world: World) -> None:
    """0 alerts fire while the watchdog does; where no rule is evaluated there is no number: no false all clear."""
    filled = world.filled("overview")
    panel = next(p for p in boards.panels("overview") if p["title"] == "Alerts firing")
    for target in panel["targets"]:
        expr = filled.into(target["expr"])
        (one,) = world.server.instant(expr, world.busy)
        assert float(one["value"][1]) >= 0
        assert world.server.instant(expr.replace("VllmeterWatchdog", "NotThere"), world.busy) == [] or (
            float(one["value"][1]) > 0
        )


def test_the_largest_is_named(world: World) -> None:
    """Under pressure the tiles of the overview name the server that waits, is slow and preempts: the chat model."""
    filled = world.filled("overview")
    for title in ("Longest queue", "Slowest TTFT, mean", "Preempted in the window"):
        panel = next(p for p in boards.panels("overview") if p["title"] == title)
        (one,) = world.server.instant(filled.into(panel["targets"][0]["expr"]), world.busy)
        assert one["metric"]["server"] == CHAT, title


def test_a_changed_setting_is_listed_with_its_values(world: World) -> None:
    """Over the restart of the recording one number changed, from 2048 to 8192, and the graph shows both."""
    filled = world.filled("tuning-levers")
    panel = next(p for p in boards.panels("tuning-levers") if p["title"] == "Changed in this time range")
    found = {}
    for target in panel["targets"]:
        (one,) = world.server.instant(filled.into(target["expr"]), world.end)
        assert (one["metric"]["server"], one["metric"]["setting"]) == (CHAT, "max_num_batched_tokens")
        found[target["refId"]] = float(one["value"][1])
    assert found == {"A": 1, "B": 2048, "C": 8192, "D": 8192}
    graph = next(p for p in boards.panels("tuning-levers") if p["title"] == "$setting over time")
    (line,) = world.server.range(filled.into(graph["targets"][0]["expr"]), world.begin, world.end, SCRAPE)
    assert {float(value) for _, value in line["values"]} == {2048.0, 8192.0}


def test_runs_are_listed_with_their_length(world: World) -> None:
    """Every run of the recording stands in the table; a length only where the exporter was told of the end."""
    filled = world.filled("load-test")
    panel = next(p for p in boards.panels("load-test") if p["title"].startswith("Runs of the last"))
    starts, lengths = (
        {
            one["metric"]["run"]: float(one["value"][1])
            for one in world.server.instant(filled.into(t["expr"]), world.end)
        }
        for t in panel["targets"]
    )
    phases: dict[str, Any] = stores.facts(stores.recording("gpu-1"))["phases"]  # type: ignore[assignment]
    assert set(starts) == {"base-2048-short", "base-2048-long", "cand-8192-short", "cand-8192-long"}
    assert set(lengths) == set(starts) - {"cand-8192-long"}  # active to the end of the recording
    for run, length in lengths.items():
        begin, end = phases[run]
        assert length == pytest.approx(end - begin, abs=1.5)
        assert starts[run] == pytest.approx(begin * 1000, abs=1500)


def test_setting_that_differs_is_found(world: World) -> None:
    """Between the two chosen runs one setting changed, and only that is listed."""
    filled = world.filled("load-test")
    panel = next(p for p in boards.panels("load-test") if p["title"] == "Settings that differ")
    found = [
        one["metric"]
        for target in panel["targets"]
        for one in world.server.instant(filled.into(target["expr"]), world.end)
    ]
    assert [(one["setting"], one.get("in_a"), one.get("in_b")) for one in found] == [
        ("max_num_batched_tokens", "2048", None),
        ("max_num_batched_tokens", None, "8192"),
    ]


def test_runs_are_aligned_at_their_start(world: World) -> None:
    """Run A, moved by the offset, begins where run B begins, to within one scrape."""
    filled = world.filled("load-test")
    panel = next(p for p in boards.panels("load-test") if p["title"] == "Running and waiting")
    firsts = []
    for target in panel["targets"][:2]:
        (one,) = world.server.range(filled.into(target["expr"]), world.begin, world.end, 1)
        firsts.append(float(one["values"][0][0]))
    assert abs(firsts[0] - firsts[1]) <= SCRAPE
    assert abs(firsts[1] - float(filled.values["start_b"].raw)) <= SCRAPE + 1


def test_the_two_newest_runs_are_compared_at_first(world: World) -> None:
    """Without a choice, B is the newest run and A the one before."""
    filled = fill_in.fill(board("load-test"), world.server, world.view)
    assert (filled.values["run_a"].raw, filled.values["run_b"].raw) == ("cand-8192-short", "cand-8192-long")
    assert {text for text, _ in filled.values["run_a"].options} == {text for text, _ in filled.values["run_b"].options}


def test_absent_looks_absent(world: World) -> None:
    """While the chat model restarts, its lines have a gap: neither 0 nor the last value."""
    lines_of = module("preview_panels").lines_of

    filled = world.filled("overview")
    phases: dict[str, Any] = stores.facts(stores.recording("gpu-1"))["phases"]  # type: ignore[assignment]
    begin, end = phases["restart-8192"]
    checked = 0
    for placed in fill_in.unrolled(board("overview"), filled):
        if placed.panel["title"] not in (
            "Waiting requests, 1 s peak",
            "KV cache in use, 1 s peak",
            "Who holds the card",
        ):
            continue
        for line in lines_of(placed, world.server, filled):
            if line.name.startswith(CHAT):
                checked += 1
                inside = (line.x > begin + 10) & (line.x < end - 15)
                assert inside.sum() >= 3
                assert all(value != value for value in line.y[inside]), placed.panel["title"]
    assert checked == 3
