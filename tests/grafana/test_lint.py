"""The rules of Grafana's dashboard-linter, and the query mistakes that other vLLM dashboards make, as tests.

Every exclusion stands in a table with its reason, and fails when it is no longer needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import promql_parser
import pytest

from grafana.boards import (
    NAMES,
    Target,
    annotation_queries,
    board,
    counters,
    matchers,
    nodes,
    panels,
    parsed,
    selectors,
    targets,
    variable_queries,
)
from vllmeter.catalogue import CATALOGUE

each = pytest.mark.parametrize("name", NAMES)
KEYS = frozenset({"job", "instance", "host", "server"})
_DIVIDED: Any = promql_parser.parse("a / b")
DIVISION = str(_DIVIDED.op)
RATES = frozenset({"rate", "increase", "irate"})

FIXED_WINDOWS = {
    "tuning-levers / Requests that fit": "the mean length of requests needs several of them: 5 minutes at any zoom",
    "exporter-health / Restarts and changed settings": "counted over 5 minutes, so that one event is seen at any zoom",
    "exporter-health / NVML ticks dropped": "the same",
    "load-test / Difference, whole runs": "the window is the run",
}
"""Where a range is not ``$__rate_interval``."""

NO_RATE = {
    "load-test / Difference, whole runs": "largest minus smallest value over the run, where no reset fell into it: "
    "exact, while increase() extrapolates",
}
"""Where a counter is read without rate() or increase()."""

NO_SERVER_KEYS = {
    "overview / Alerts that fire": "alerts about an exporter have no server, alerts about absence no host",
    "exporter-health / NVML: what it says": "NVML is a fact of the host",
    "exporter-health / Versions": "the version is a fact of the host",
    "latency-and-jitter / TTFT of $server": "a heatmap counts requests; the row is repeated for one server name",
    "load-test / TTFT, run A": "a heatmap counts requests of the run",
    "load-test / TTFT, run B": "the same",
    "memory-and-budgets / What $server's memory is": "the row is repeated for one server name; parts add up over hosts",
    "cache-and-evictions / Prompt tokens per second, by source": "tokens of all chosen servers by source",
}
"""Aggregations by other labels than the keys of a server."""


def key(target: Target) -> str:
    return f"{target.board} / {target.panel['title']}"


# ---------------------------------------------------------------------------- checks of one expression


def raw_counters(expr: str) -> list[str]:
    """Counters that are read without rate() or increase()."""
    return [s.name for s, above in selectors(expr) if s.name in counters() and not _calls(above) & RATES]


def rated_gauges(expr: str) -> list[str]:
    """Gauges under rate(), increase() or delta()."""
    bad = {*RATES, "deriv", "delta", "idelta"}
    return [s.name for s, above in selectors(expr) if s.name not in counters() and _calls(above) & bad]


def lone_sums(expr: str) -> list[str]:
    """`_sum` of a histogram that is not divided by its `_count`."""
    names = {s.name for s, _ in selectors(expr)}
    sums = [name for name in names if name.endswith("_sum")]
    return [name for name in sums if name.removesuffix("_sum") + "_count" not in names or " / " not in expr]


def averages(expr: str) -> list[str]:
    """`avg` over series."""
    return re.findall(r"\bavg\b(?!_)", expr)


def unguarded(expr: str) -> list[str]:
    """Denominators that may be 0."""
    out = []
    for node, _ in nodes(parsed(expr)):
        if type(node).__name__ == "BinaryExpr" and str(node.op) == DIVISION:
            right = node.rhs.prettify()
            if not re.fullmatch(r"\s*[0-9.]+\s*", right) and not re.search(r">\s*0", right):
                out.append(right)
    return out


def wrong_quantiles(expr: str) -> list[str]:
    """Quantiles of buckets that were not summed over engines only, or that are aggregated afterwards."""
    out = []
    for node, above in nodes(parsed(expr)):
        if type(node).__name__ == "Call" and node.func.name == "histogram_quantile":
            inner = node.args[1].prettify()
            if not inner.startswith("sum without (engine)") or any(type(a).__name__ == "AggregateExpr" for a in above):
                out.append(inner)
    return out


def summed_ratios(expr: str) -> list[str]:
    """Ratios under sum or avg."""
    return [
        s.name
        for s, above in selectors(expr)
        if re.search(r"_ratio$|:ratio", s.name or "")
        and any(type(node).__name__ == "AggregateExpr" and node.prettify().startswith(("sum", "avg")) for node in above)
    ]


def unsafe_for_fleets(expr: str) -> list[str]:
    """Aggregations and joins that mix two hosts with equal server names."""
    out = []
    for word, labels in re.findall(r"\b(by|on|without) \(([^)]*)\)", expr):
        found = {label.strip() for label in labels.split(",")} - {""}
        wrong = {
            "by": not found >= KEYS,
            "on": bool(found) and not KEYS - {"host"} <= found,
            "without": bool(found & KEYS),
        }[word]
        if wrong:
            out.append(f"{word} ({labels})")
    return out


def _calls(above: tuple[Any, ...]) -> set[str]:
    return {node.func.name for node in above if type(node).__name__ == "Call"}


# ---------------------------------------------------------------------------- dashboard-linter


@each
def test_template_datasource(name: str) -> None:
    """template-datasource-rule: one data source variable, of Prometheus."""
    (variable,) = [v for v in board(name)["templating"]["list"] if v["type"] == "datasource"]
    assert (variable["name"], variable["label"], variable["query"]) == ("datasource", "Data source", "prometheus")


@each
def test_template_job(name: str) -> None:
    """template-job-rule: a variable job, with several values, All and the data source variable.

    template-instance-rule is left out: `host` takes its place, since an instance's port says nothing to a reader and
    tables and joins keep `instance` anyway.
    """
    (variable,) = [v for v in board(name)["templating"]["list"] if v["name"] == "job"]
    assert variable["type"] == "query"
    assert variable["datasource"]["uid"] == "${datasource}"
    assert variable["label"] == "Job"
    assert variable["multi"]
    assert variable["allValue"] == ".+"


@each
def test_template_label_promql(name: str) -> None:
    """template-label-promql-rule: what stands inside label_values and query_result is PromQL."""
    for query in variable_queries(name).values():
        parsed(query)


@each
def test_template_on_time_change_reload(name: str) -> None:
    """template-on-time-change-reload-rule: options follow the time range."""
    for variable in board(name)["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["refresh"] == 2, variable["name"]


@each
def test_panel_datasource(name: str) -> None:
    """panel-datasource-rule: panels, targets, variables and annotations use the variable, never a fixed uid."""
    for panel in panels(name):
        if panel["type"] == "text":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
    for query in annotation_queries(name):
        assert query["datasource"]["uid"] == "${datasource}"


@each
def test_panel_has_targets(name: str) -> None:
    """panel-no-targets-rule."""
    for panel in panels(name):
        assert panel["type"] == "text" or panel["targets"], panel["title"]


@each
def test_target_promql(name: str) -> None:
    """target-promql-rule: every query parses."""
    for target in targets(name):
        parsed(target.expr)


@each
def test_target_rate_interval(name: str) -> None:
    """target-rate-interval-rule: ranges of rates are $__rate_interval, and $__interval is used nowhere."""
    for target in targets(name):
        assert "$__interval" not in target.expr, target.where
        ranges = set(re.findall(r"\[([^\]]+)\]", target.expr))
        ranges = {one for one in ranges if not one.startswith(("${length", "${span", "7d"))}
        if key(target) not in FIXED_WINDOWS:
            assert ranges <= {"$__rate_interval"}, target.where


@each
def test_target_job_and_host(name: str) -> None:
    """target-job-rule; and our own host, server and gpu instead of target-instance-rule."""
    families = {}
    for family in CATALOGUE:
        for end in ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",):
            families[family.exposed + end] = family
    for target in targets(name):
        for selector, _ in selectors(target.expr):
            found = matchers(selector)
            assert found.get("job") == "$job", target.where
            assert found.get("host") == "$host", target.where
            known = families.get(selector.name)
            if known is not None and "server" in known.labels and "What the others do" not in target.where:
                by_run = found.get("run") is not None
                assert found.get("server") == "$server" or by_run, target.where
            if known is not None and known.labels[:1] == ("gpu",) and name != "exporter-health":
                assert found.get("gpu") == "$gpu", target.where
                in_card_row = name in ("overview", "memory-and-budgets")
                assert (found.get("uuid") == "$card") == in_card_row, target.where


@each
def test_target_counter_agg(name: str) -> None:
    """target-counter-agg-rule: counters are read through rate() or increase(); gauges never are."""
    for target in targets(name):
        if key(target) not in NO_RATE:
            assert raw_counters(target.expr) == [], target.where
        assert rated_gauges(target.expr) == [], target.where


@each
def test_uneditable_dashboard(name: str) -> None:
    """uneditable-dashboard: provisioned dashboards are not edited in place."""
    assert board(name)["editable"] is False


# ---------------------------------------------------------------------------- mistakes of others


@each
def test_sums_and_counts_are_divided_after_they_are_summed(name: str) -> None:
    """A rate of `_sum` alone is no latency: it stands over the rate of its `_count`; there is no mean of means."""
    for target in targets(name):
        assert lone_sums(target.expr) == [], target.where
        assert averages(target.expr) == [], target.where


@each
def test_no_division_by_zero(name: str) -> None:
    """Every denominator is guarded with `> 0`, so that idle is absent and not NaN."""
    for target in targets(name):
        assert unguarded(target.expr) == [], target.where


@each
def test_quantiles_come_from_summed_buckets(name: str) -> None:
    """histogram_quantile works on buckets summed without the engine; a quantile is never aggregated afterwards."""
    for target in targets(name):
        assert wrong_quantiles(target.expr) == [], target.where


@each
def test_ratios_are_never_summed(name: str) -> None:
    """KV usage of two engines at 40 % is not 80 %."""
    for target in targets(name):
        assert summed_ratios(target.expr) == [], target.where


@each
def test_fleet_safe_aggregations(name: str) -> None:
    """Server names repeat across hosts: `by` names job, instance, host and server; joins job, instance and server."""
    for target in targets(name):
        wrong = unsafe_for_fleets(target.expr)
        if key(target) in NO_SERVER_KEYS:
            wrong = [one for one in wrong if not one.startswith("by ")]
        assert wrong == [], target.where


MISTAKES = (
    (raw_counters, "vllmeter_preemptions_total"),
    (rated_gauges, "rate(vllmeter_requests_waiting[5m])"),
    (rated_gauges, "delta(vllmeter_kv_cache_usage_ratio[5m])"),
    (lone_sums, "rate(vllmeter_queue_time_seconds_sum[5m])"),
    (averages, "avg(vllmeter_ttft_window_mean_seconds)"),
    (unguarded, "rate(vllmeter_ttft_seconds_sum[5m]) / rate(vllmeter_ttft_seconds_count[5m])"),
    (unguarded, "1 - a / sum(b)"),
    (wrong_quantiles, "histogram_quantile(0.9, sum by (le) (rate(vllmeter_ttft_seconds_bucket[5m])))"),
    (
        wrong_quantiles,
        "max(histogram_quantile(0.9, sum without (engine) (rate(vllmeter_ttft_seconds_bucket[5m]))))",
    ),
    (summed_ratios, "sum without (engine) (vllmeter_kv_cache_usage_ratio)"),
    (summed_ratios, "avg(server:vllmeter_prefix_cache_hits_per_query:ratio_rate5m)"),
    (unsafe_for_fleets, "sum by (server) (vllmeter_requests_running)"),
    (unsafe_for_fleets, "vllmeter_requests_running / on (server) (vllmeter_server_up > 0)"),
    (unsafe_for_fleets, "sum without (host) (vllmeter_requests_running)"),
)


@pytest.mark.parametrize("check, expr", MISTAKES)
def test_known_mistakes_are_noticed(check: Callable[[str], list[str]], expr: str) -> None:
    """Each check complains about the mistake that it is there for."""
    assert check(expr)


@pytest.mark.parametrize(
    "check, expr",
    [
        (unguarded, "a / (sum(b) > 0)"),
        (unguarded, "a / 3600"),
        (averages, "avg_over_time(a[5m])"),
        (summed_ratios, "max without (engine) (vllmeter_kv_cache_usage_ratio)"),
        (unsafe_for_fleets, "max by (job, instance, host, server) (a) and on () b"),
    ],
)
def test_right_queries_pass(check: Callable[[str], list[str]], expr: str) -> None:
    """The checks do not complain about what is right."""
    assert check(expr) == []


def test_comparisons_that_count_use_bool() -> None:
    """`sum(x == 0)` gives nothing when all is well; counting comparisons say bool."""
    for target in targets():
        for inner in re.findall(r"\bsum \(([^()]*\{[^}]*\} == [^()]*)\)", target.expr):
            assert "bool" in inner, target.where


@each
def test_series_that_a_panel_draws_are_named(name: str) -> None:
    """Every drawn series has a legend that we chose; without one Grafana prints all labels."""
    for target in targets(name):
        if target.panel["type"] in ("timeseries", "state-timeline", "heatmap"):
            assert target.target.get("legendFormat"), target.where


def test_exclusions_are_needed() -> None:
    """An exclusion that excludes nothing is removed."""
    keys = {key(target) for target in targets()}
    for table in (FIXED_WINDOWS, NO_RATE, NO_SERVER_KEYS):
        assert set(table) <= keys, set(table) - keys
    for where in NO_SERVER_KEYS:
        mine = [target for target in targets() if key(target) == where]
        assert any(
            not {"job", "instance", "host", "server"} <= {label.strip() for label in labels.split(",")}
            for target in mine
            for labels in re.findall(r"\bby \(([^)]*)\)", target.expr)
        ), where
    for where in FIXED_WINDOWS:
        mine = [target for target in targets() if key(target) == where]
        assert any(re.search(r"\[(?!\$__rate_interval)", target.expr) for target in mine), where
