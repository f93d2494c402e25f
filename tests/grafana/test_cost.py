"""What a page costs Prometheus on a day of three servers at 15 s."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from grafana import day, stores
from grafana.boards import NAMES, board
from grafana.from_source import fill_in
from grafana.servers import Prometheus

pytestmark = [pytest.mark.promtool, pytest.mark.xdist_group("grafana-prometheus")]

LIMIT = 6_000_000
"""Samples that the queries of one panel may read"""
STEP = 60
"""Seconds between points: what Grafana takes for a day on a panel of the full width of a 1,400-pixel screen"""


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    """Debian's Prometheus on the day."""
    blocks = day.blocks()
    program = stores.needed("prometheus", stores.OLD)
    with stores.copied(blocks) as data, Prometheus(program, data, data / "scratch", "16s") as running:
        yield running


@pytest.mark.parametrize("name", NAMES)
def test_cost_of_a_day(server: Prometheus, name: str) -> None:
    """No panel and no variable reads more than 6 million samples; the dearest are printed with their time."""
    begin = day.END - day.HOURS * 3600
    view = fill_in.View(begin, day.END - day.STEP, STEP, day.STEP)
    chosen = {"run_a": "base-2048-short", "run_b": "cand-8192-short"} if name == "load-test" else {}
    filled = fill_in.fill(board(name), server, view, chosen)
    costs = []
    for placed in fill_in.unrolled(board(name), filled):
        samples, spent, points = 0, 0.0, 0
        for target in placed.panel.get("targets", []):
            expr = filled.into(target["expr"], placed.scoped)
            started = time.perf_counter()
            if target.get("instant"):
                data = server.get("query", query=expr, time=view.end, stats="all")
            else:
                data = server.get("query_range", query=expr, start=begin, end=view.end, step=STEP, stats="all")
            spent += time.perf_counter() - started
            samples += data["stats"]["samples"]["totalQueryableSamples"]
            points += len(data["result"])
        costs.append((samples, spent * 1000, placed.panel["title"], points))
    for variable, query in filled.queries:
        if query.startswith("query_result("):
            started = time.perf_counter()
            data = server.get("query", query=query[len("query_result(") : -1], time=view.end, stats="all")
            spent = (time.perf_counter() - started) * 1000
            costs.append((data["stats"]["samples"]["totalQueryableSamples"], spent, f"variable {variable}", 1))
    costs.sort(reverse=True)
    total = sum(cost[0] for cost in costs)
    print(f"\n{name}: {total:,} samples, {sum(cost[1] for cost in costs):,.0f} ms in all panels")
    for samples, spent, title, _ in costs[:3]:
        print(f"  {samples:>10,} samples {spent:>7,.0f} ms  {title}")
    assert total > 10_000, "the day is empty"
    assert [cost for cost in costs if cost[0] >= LIMIT] == []
