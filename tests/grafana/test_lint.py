"""The rules of Grafana's dashboard-linter, and the query mistakes that other vLLM dashboards make, as tests.

Every exclusion stands in a table with its reason, and fails when it is no longer needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import promql_parser
import pytest
import yaml

from grafana.boards import (
    NAMES,
    ROOT,
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
_EITHER: Any = promql_parser.parse("a or b")
OR = str(_EITHER.op)
RATES = frozenset({"rate", "increase", "irate"})

FIXED_WINDOWS = {
    "tuning-levers / Requests that fit": "the mean length of requests needs several of them: 5 minutes at any zoom",
    "exporter-health / Restarts and changed settings": "counted over 5 minutes, so that one event is seen at any zoom",
    "exporter-health / NVML ticks dropped": "the same",
    "load-test / Difference, whole runs": "the window is the run",
    "load-test / Settings that differ": "the same",
    "load-test / Run A": "looks for the run in the last 7 days, and for its end in the 12 hours after its start",
    "load-test / Run B": "the same",
    "load-test / Runs of the last 7d": "the same",
    "tuning-levers / Changed in this time range": "changes are looked for in the range that is shown",
}
"""Where a range is not ``$__rate_interval``."""

NO_RATE = {
    "load-test / Difference, whole runs": "largest minus smallest value over the run, where no reset fell into it: "
    "exact, while increase() extrapolates",
}
"""Where a counter is read without rate() or increase()."""

NO_JOB = {"overview / Alerts firing": ("VllmeterWatchdog", "it is about Prometheus itself and has no job and host")}
"""(alert, reason): selectors of ``ALERTS`` without job and host."""

ZERO = {
    "overview / Alerts firing": "0 only while the watchdog fires, that is, while the rules are evaluated; else absent",
}
"""Where a constant is put in the place of what is absent."""

ALL_TOGETHER = {
    "latency-and-jitter / TTFT quantiles: what is certain": "repeated for one server name; widest bounds",
    "latency-and-jitter / TTFT jitter: estimate and bounds": "the same",
    "latency-and-jitter / Requests in the window": "repeated for one server name; requests add up over hosts",
    "latency-and-jitter / Where the time goes": "repeated for one server name; requests are pooled over hosts",
    "memory-and-budgets / What $server's memory is": "repeated for one server name; bytes add up over hosts",
}
"""Lines over time that are one for all chosen servers."""

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


def ungrouped(expr: str) -> list[str]:
    """Aggregations of everything that was chosen: no `by` and no `without`."""
    return [
        node.prettify()
        for node, _ in nodes(parsed(expr))
        if type(node).__name__ == "AggregateExpr" and node.modifier is None
    ]


def filled_with_zero(expr: str) -> list[str]:
    """Right sides of `or` that are 0 whatever was measured: absent is not zero."""
    out = []
    for node, _ in nodes(parsed(expr)):
        if type(node).__name__ == "BinaryExpr" and str(node.op) == OR:
            right = node.rhs.prettify()
            flat = re.sub(r"[\s()]", "", right)
            half = len(flat) // 2
            zero = re.search(r"(^|[^\w.])0\s*\*|\*\s*0($|[^\w.])|\bvector\b", right)
            if zero or (flat[:half] == flat[half + 1 :] and flat[half] == "-"):
                out.append(right)
    return out


_STATISTIC = re.compile(r"_(peak|jitter|quantile|mean)(_|$)")


def summed_statistics(expr: str) -> list[str]:
    """Peaks, means, jitter and quantiles under sum, avg or count."""
    return [
        s.name
        for s, above in selectors(expr)
        if _STATISTIC.search(s.name or "")
        and any(
            type(node).__name__ == "AggregateExpr" and node.prettify().startswith(("sum", "avg", "stddev"))
            for node in above
        )
    ]


def rated_sums(expr: str) -> list[str]:
    """rate() and increase() of a subquery."""
    return [
        node.prettify()
        for node, _ in nodes(parsed(expr))
        if type(node).__name__ == "Call"
        and node.func.name in RATES
        and any(type(one).__name__ == "SubqueryExpr" for one in node.args)
    ]


def unequal_sides(expr: str) -> list[str]:
    """Histograms whose `_sum` and `_count` are filtered in different ways."""
    found: dict[str, dict[str, set[str]]] = {}
    for selector, _ in selectors(expr):
        match = re.fullmatch(r"(.+)(_sum|_count)", selector.name or "")
        if match:
            text = str(sorted(matchers(selector).items()))
            found.setdefault(match[1], {}).setdefault(match[2], set()).add(text)
    return [name for name, sides in found.items() if len(sides) == 2 and sides["_sum"] != sides["_count"]]


def joins_with_values(expr: str) -> list[str]:
    """Joins on labels that say which part of a server it is: there the two sides need not have the same parts."""
    known = KEYS | {"scenario", "setting", "value", "measure", "uuid", "gpu"}
    out = []
    for labels in re.findall(r"\bon \(([^)]*)\)", expr):
        found = {label.strip() for label in labels.split(",")} - {""}
        if not found <= known:
            out.append(labels)
    return out


def seconds(text: str) -> float:
    """A duration such as 15s or 7d."""
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[text[-1]]


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
            if key(target) in NO_JOB and found.get("alertname") == NO_JOB[key(target)][0]:
                continue
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


@each
def test_absence_is_not_filled_in(name: str) -> None:
    """`or vector(0)` and `or 0 * x` make a number out of what is not known."""
    for target in targets(name):
        if key(target) not in ZERO:
            assert filled_with_zero(target.expr) == [], target.where


@each
def test_statistics_are_never_added(name: str) -> None:
    """Quantiles, means, jitter and peaks of several servers have no sum and no average; the largest may be taken."""
    for target in targets(name):
        assert summed_statistics(target.expr) == [], target.where


@each
def test_lines_are_told_apart(name: str) -> None:
    """Over time, one slow or full server must not vanish in a sum or a maximum of all: aggregations say by what."""
    for target in targets(name):
        if target.panel["type"] == "timeseries" and key(target) not in ALL_TOGETHER:
            assert ungrouped(target.expr) == [], target.where


@each
def test_counters_are_rated_before_they_are_summed(name: str) -> None:
    """rate(sum(x)[5m:]) takes the reset of one server for a reset of all."""
    for target in targets(name):
        assert rated_sums(target.expr) == [], target.where


@each
def test_both_sides_of_a_mean_read_the_same(name: str) -> None:
    """The sum and the count of a histogram are filtered alike; else the mean is of other requests."""
    for target in targets(name):
        assert unequal_sides(target.expr) == [], target.where


@each
def test_joins_say_which_side_has_more(name: str) -> None:
    """What is divided by something per server has one series per server, or says group_left."""
    for target in targets(name):
        assert joins_with_values(target.expr) == [], target.where


@each
def test_buckets_are_never_picked_by_their_bound(name: str) -> None:
    """`le="0.5"` finds nothing where the server prints 0.5 in another way, or has other buckets."""
    for target in targets(name):
        assert [s.name for s, _ in selectors(target.expr) if "le" in matchers(s)] == [], target.where


@each
def test_topk_only_where_one_moment_is_asked(name: str) -> None:
    """Over a time range topk gives another choice at each step: lines that come and go."""
    for target in targets(name):
        if re.search(r"\b(topk|bottomk|limitk)\b", target.expr):
            assert target.target.get("instant") is True, target.where


@each
def test_fixed_windows_hold_four_scrapes(name: str) -> None:
    """A fixed window is at least four times the interval that Grafana is told, and 60 s for a scrape every 15 s."""
    source = yaml.safe_load((ROOT / "grafana/provisioning/datasources/vllmeter.yaml").read_text(encoding="utf-8"))
    scrape = seconds(source["datasources"][0]["jsonData"]["timeInterval"])
    for target in targets(name):
        for text in re.findall(r"\[(\d+[smhd])(?::\d+[smhd])?\]", target.expr):
            assert seconds(text) >= max(60, 4 * scrape), target.where
    for query in (*variable_queries(name).values(), *(one["expr"] for one in annotation_queries(name))):
        assert raw_counters(query) == []
        assert rated_gauges(query) == []


UNITS = {
    "_seconds": "s",
    "_bytes": "bytes",
    "_ratio": "percentunit",
    "_celsius": "celsius",
    "_watts": "watt",
}
"""end of a family's name -> Grafana's unit"""


@each
def test_units_follow_the_names(name: str) -> None:
    """A family in seconds is shown in seconds, bytes in bytes, shares in percent: nothing is 1000 times itself.

    Judged where a query reads one family without arithmetic.
    """
    for target in targets(name):
        names = {s.name for s, _ in selectors(target.expr)}
        if len(names) != 1 or re.search(r"[*/]|\b(rate|increase|changes|timestamp|count)\b", target.expr):
            continue
        (family,) = names
        end = next((end for end in UNITS if family.endswith(end)), None)
        if end is None or "timestamp" in family:
            continue
        assert UNITS[end] in shown_units(target), f"{target.where}: {family} in {shown_units(target)}"


def shown_units(target: Target) -> set[str]:
    """Units that a target's series may have: its column's, an override's that fits its legend, else the panel's."""
    fields = target.panel["fieldConfig"]
    legend = re.sub(r"\{\{\w+\}\}", "x", str(target.target.get("legendFormat", "")))
    if target.panel["type"] == "heatmap":
        return set(UNITS.values())
    if target.panel["type"] == "table":
        several = len(target.panel["targets"]) > 1
        column = f"Value #{target.target['refId']}" if several else "Value"
        organize = next(t["options"] for t in target.panel["transformations"] if t["id"] == "organize")
        title = organize["renameByName"].get(column)
        if title is None:
            return set(UNITS.values())  # only its labels are shown
        hits = [one for one in fields["overrides"] if one["matcher"]["options"] == title]
    else:
        hits = [one for one in fields["overrides"] if re.search(one["matcher"]["options"].strip("/"), legend)]
    found = [p["value"] for one in hits for p in one["properties"] if p["id"] == "unit"]
    return {found[-1]} if found else {fields["defaults"]["unit"]}


MISTAKES = (
    (raw_counters, "delta(vllmeter_preemptions_total[5m])"),
    (raw_counters, "irate(vllmeter_unknown[5m]) + vllmeter_generation_tokens_total"),
    (rated_gauges, "rate(server:vllmeter_generation_tokens:rate1m[5m])"),
    (wrong_quantiles, "histogram_quantile(0.9, sum by (job) (rate(vllmeter_ttft_seconds_bucket[5m])))"),
    (wrong_quantiles, "histogram_quantile(0.9, rate(vllmeter_ttft_seconds_bucket[5m]))"),
    (filled_with_zero, "vllmeter_requests_waiting or vector(0)"),
    (filled_with_zero, "vllmeter_requests_waiting or on () vector(0)"),
    (filled_with_zero, "vllmeter_requests_waiting or 0 * vllmeter_server_up"),
    (filled_with_zero, "vllmeter_requests_waiting or vllmeter_server_up * 0"),
    (filled_with_zero, "vllmeter_requests_waiting or (vllmeter_server_up - vllmeter_server_up)"),
    (summed_statistics, "sum(vllmeter_ttft_window_quantile_upper_seconds)"),
    (summed_statistics, "sum by (job) (vllmeter_ttft_jitter_seconds)"),
    (summed_statistics, "sum(max without (window) (vllmeter_requests_waiting_peak))"),
    (rated_sums, "rate(sum(vllmeter_preemptions_total)[5m:])"),
    (
        unequal_sides,
        'rate(vllmeter_ttft_seconds_sum{server="a"}[5m]) / (rate(vllmeter_ttft_seconds_count[5m]) > 0)',
    ),
    (ungrouped, "sum(rate(vllmeter_generation_tokens_total[5m]))"),
    (ungrouped, "max(vllmeter_ttft_window_mean_seconds)"),
    (joins_with_values, "a / on (job, instance, server, engine) (b > 0)"),
    (joins_with_values, "a / on (job, instance, server, window) (b > 0)"),
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
        (filled_with_zero, "a or b"),
        (filled_with_zero, "a + b or 10 * a"),
        (filled_with_zero, "a or 0.5 * a"),
        (summed_statistics, "max without (window) (vllmeter_requests_waiting_peak)"),
        (summed_statistics, "sum(vllmeter_requests_waiting)"),
        (rated_sums, "max_over_time(a[1h:5s])"),
        (ungrouped, "sum without (engine) (a) / sum by (job, instance, host, server) (b)"),
        (unequal_sides, 'rate(a_sum{x="1"}[5m]) / (rate(a_count{x="1"}[5m]) > 0)'),
        (joins_with_values, "a / on (job, instance, host, server) (b > 0)"),
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
    for where in ZERO:
        assert any(filled_with_zero(target.expr) for target in targets() if key(target) == where), where
    for where in ALL_TOGETHER:
        assert any(ungrouped(target.expr) for target in targets() if key(target) == where), where
    for table in (FIXED_WINDOWS, NO_RATE, NO_SERVER_KEYS, NO_JOB, ZERO, ALL_TOGETHER):
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
