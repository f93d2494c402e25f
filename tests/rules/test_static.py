"""Checks over the text of all rules: names, labels, windows, links, and nothing that only looks right."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import promql_parser as pq
import pytest
import yaml

from rules.labels import COUNTER_FUNCTIONS, LEVELS, Labels, kind_of, matchers, ranges, selectors, walk
from rules.promtool_files import ROOT, RULE_FILES, load_rules, rule_name
from vllmeter.catalogue import BY_NAME
from vllmeter.snapshot import SERVER_STATES

RULES = load_rules()
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
LABELS = Labels(RECORDED)
SCRAPE_INTERVAL = timedelta(seconds=5)
BOUNDS = {
    # Bounds of vLLM's TTFT histogram in every release, as vllmeter prints them.
    "vllmeter_ttft_seconds_bucket": (
        "0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0",
        "7.5", "10.0",
    ),
}  # fmt: skip
BOUNDS["vllmeter_ttft_window_share_over_ratio"] = BOUNDS["vllmeter_ttft_seconds_bucket"]


def ids(rule: dict[str, Any]) -> str:
    return f"{rule_name(rule)}-{rule.get('labels', {}).get('severity', '')}".rstrip("-")


every_rule = pytest.mark.parametrize("rule", RULES, ids=ids)


@every_rule
def test_names_are_in_the_catalogue_or_recorded(rule: dict[str, Any]) -> None:
    """A rule reads only families that vllmeter exposes, names that a rule records, and up."""
    for selector, _ in selectors(pq.parse(rule["expr"])):
        if kind_of(selector.name) == "recorded":
            assert selector.name in RECORDED


@every_rule
def test_labels_match(rule: dict[str, Any]) -> None:
    """Every aggregation, join and matcher names labels that are there, and recorded names keep their level's labels."""
    labels = LABELS.of(pq.parse(rule["expr"]))
    assert labels is not None
    if "record" in rule:
        level, metric, operations = rule["record"].split(":")
        extra = {"le"} if operations.startswith("share_over") else set()
        assert labels == LEVELS[level] | extra
        assert re.fullmatch(r"vllmeter_[a-z0-9_]+", metric)
        assert re.fullmatch(r"[a-z0-9_]+", operations)
        assert not metric.endswith("_total")


@every_rule
def test_annotations_use_labels_that_the_alert_has(rule: dict[str, Any]) -> None:
    """A template that names a missing label would print nothing where a person needs the name."""
    if "alert" not in rule:
        return
    have = (LABELS.of(pq.parse(rule["expr"])) or frozenset()) | set(rule["labels"])
    text = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= have


@every_rule
def test_counters_only_under_rates(rule: dict[str, Any]) -> None:
    """A raw counter means nothing, except where a series that is new counts whole (x unless x offset …)."""
    for selector, above in selectors(pq.parse(rule["expr"])):
        if kind_of(selector.name) not in ("counter", "bucket"):
            continue
        calls = [one.func.name for one in above if isinstance(one, pq.Call)]
        if COUNTER_FUNCTIONS & set(calls):
            continue
        operators = [str(one.op) for one in above if isinstance(one, pq.BinaryExpr)]
        is_presence = "unless" in operators or selector.offset is not None
        assert is_presence, f"{selector.name} is used raw"


@every_rule
def test_no_rate_of_a_gauge(rule: dict[str, Any]) -> None:
    """rate() and increase() of a gauge take every fall for a reset."""
    for call, _ in walk(pq.parse(rule["expr"])):
        if isinstance(call, pq.Call) and call.func.name in COUNTER_FUNCTIONS:
            for selector, _ in selectors(call):
                assert kind_of(selector.name) in ("counter", "bucket")


@every_rule
def test_windows_hold_at_least_four_scrapes(rule: dict[str, Any]) -> None:
    """A window with fewer samples loses values when one scrape fails; 4 x 15 s is allowed for, too."""
    for window in ranges(pq.parse(rule["expr"])):
        assert window >= 4 * SCRAPE_INTERVAL
        assert window >= timedelta(minutes=1)


@every_rule
def test_bounds_exist_in_vllm(rule: dict[str, Any]) -> None:
    """A le that vLLM does not have, or that is printed in another way, matches nothing."""
    for selector, _ in selectors(pq.parse(rule["expr"])):
        for matcher in matchers(selector):
            if matcher.name in ("le", "bound") and matcher.value != "+Inf":
                assert matcher.value in BOUNDS[selector.name]


@every_rule
def test_values_of_closed_labels_exist(rule: dict[str, Any]) -> None:
    """States, windows and statuses are closed lists; a typing error would match nothing for ever."""
    closed = {
        ("vllmeter_server_state", "state"): set(SERVER_STATES),
        ("vllmeter_server_sleep_state", "state"): {"awake", "weights_offloaded", "discard_all"},
        ("vllmeter_attribution_info", "state"): {"measured", "estimated", "unavailable"},
    }
    for selector, _ in selectors(pq.parse(rule["expr"])):
        for matcher in matchers(selector):
            if matcher.name == "window":
                assert matcher.value in ("15s", "60s")
            if (selector.name, matcher.name) in closed:
                assert matcher.value in closed[(selector.name, matcher.name)]


@every_rule
def test_no_aggregation_by(rule: dict[str, Any]) -> None:
    """by (server) would add up servers of the same name on different hosts and lose labels of the user."""
    for node, _ in walk(pq.parse(rule["expr"])):
        if isinstance(node, pq.AggregateExpr):
            assert node.modifier is not None
            assert "Without" in str(node.modifier.type)


@every_rule
def test_joins_name_the_instance(rule: dict[str, Any]) -> None:
    """A join on server alone mixes hosts up."""
    for node, _ in walk(pq.parse(rule["expr"])):
        matching = getattr(getattr(node, "modifier", None), "matching", None)
        if isinstance(node, pq.BinaryExpr) and matching is not None and "Include" in str(matching.type):
            assert {"job", "instance"} <= set(matching.labels)


def test_differences_are_of_one_moment() -> None:
    """Groups are evaluated up to an interval apart: a difference of their recordings is a burst that never was."""
    groups = {rule["record"]: rule["group"] for rule in RULES if "record" in rule}
    for rule in RULES:
        if "record" not in rule:
            continue
        for node, _ in walk(pq.parse(rule["expr"])):
            if isinstance(node, pq.BinaryExpr) and str(node.op) == "-":
                used = {selector.name for selector, _ in selectors(node)}
                foreign = {name for name in used if name in groups and groups[name] != rule["group"]}
                assert not foreign, f"{rule['record']}: {foreign}"


@every_rule
def test_divisions_are_guarded(rule: dict[str, Any]) -> None:
    """A divisor is compared with 0, so that "no traffic" is absent and never NaN or infinite."""
    for node, _ in walk(pq.parse(rule["expr"])):
        if isinstance(node, pq.BinaryExpr) and str(node.op) == "/":
            if isinstance(node.rhs, pq.NumberLiteral) and node.rhs.val > 0:
                continue
            text = node.rhs.prettify()
            assert "> 0" in text, text


@every_rule
def test_ratios_and_quantiles_are_never_averaged(rule: dict[str, Any]) -> None:
    """Means of ratios, quantiles or means are wrong when load is uneven; sums of their parts are right."""
    averages = ("avg", "sum")
    for node, _ in walk(pq.parse(rule["expr"])):
        averaged = isinstance(node, pq.AggregateExpr) and str(node.op) in averages
        averaged |= isinstance(node, pq.Call) and node.func.name in ("avg_over_time", "sum_over_time")
        if not averaged:
            continue
        for selector, above in selectors(node):
            name = selector.name
            if "kv_cache_usage_ratio" in name and str(getattr(node, "op", "")) == "avg":
                continue  # engines of one server have equally large caches, so the mean of shares is the share
            assert not re.search(r":(p50|p95|p99|mean|ratio|share)", name), name
            family = BY_NAME.get(name.removeprefix("vllmeter_"))
            if family is not None and str(getattr(node, "op", "")) == "sum":
                assert not family.name.endswith("_ratio"), name
            assert above is not None


def test_no_alert_rests_on_a_bucket_quantile() -> None:
    """A 20 % slower service moves a bucket p95 by 1 %: quantiles may be shown, never compared."""
    reach: dict[str, set[str]] = {}

    def quantiles(expr: str) -> set[str]:
        found = set()
        for node, _ in walk(pq.parse(expr)):
            if isinstance(node, pq.Call) and node.func.name == "histogram_quantile":
                found.add("histogram_quantile")
            if isinstance(node, pq.VectorSelector) and node.name is not None and node.name in RECORDED:
                found |= reach.setdefault(node.name, quantiles(RECORDED[node.name]))
        return found

    for rule in RULES:
        if "alert" in rule:
            assert not quantiles(rule["expr"]), rule["alert"]


def test_every_alert_compares_or_waits() -> None:
    """An expression without comparison fires on mere existence: allowed only where existence is the event."""
    existence = {
        "VllmeterWatchdog",
        "VllmeterExporterAbsent",
        "VllmeterExporterGoneFromDiscovery",
        "VllmeterAttributionLost",
        "VllmeterTtftObjectiveNotMeasurable",
        "VllmeterGpuVanished",
    }
    for rule in RULES:
        if "alert" in rule:
            compares = any(
                isinstance(node, pq.BinaryExpr) and str(node.op) in ("==", "!=", ">", "<", ">=", "<=")
                for node, _ in walk(pq.parse(rule["expr"]))
            )
            assert compares or rule["alert"] in existence, rule["alert"]


def test_severity_type_and_links() -> None:
    """Every alert says how urgent it is, whether it is symptom or cause, what to read and where to look."""
    for rule in RULES:
        if "alert" not in rule:
            continue
        assert re.fullmatch(r"Vllmeter[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["labels"]["type"] in ("symptom", "cause", "meta")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
        assert rule["annotations"]["runbook_url"].endswith(f"/docs/runbooks/{rule['alert']}.md")


def test_no_name_is_recorded_twice() -> None:
    """Two rules of one name would write over each other."""
    names = [rule["record"] for rule in RULES if "record" in rule]
    assert len(names) == len(set(names))


def test_severities_of_one_alert_differ() -> None:
    """An alert that is written twice differs in severity, else the two could not be told apart."""
    seen: set[tuple[str, str]] = set()
    for rule in RULES:
        if "alert" in rule:
            key = (rule["alert"], rule["labels"]["severity"])
            assert key not in seen
            seen.add(key)


def test_files_are_current() -> None:
    """Committed rules, alerts and tables are what the generator writes."""
    done = subprocess.run(
        [sys.executable, "alerts/source/build.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_another_job_and_other_links(tmp_path: Path) -> None:
    """Inside an existing Prometheus the job, the links and the thresholds are the user's."""
    thresholds = yaml.safe_load((ROOT / "alerts/source/thresholds.yaml").read_text(encoding="utf-8"))
    thresholds["queue_floor"]["value"] = 77
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(thresholds), encoding="utf-8")
    subprocess.run(
        [
            sys.executable, "alerts/source/build.py", "--job", "llm", "--grafana", "https://g.example/",
            "--runbooks", "https://r.example/docs/runbooks", "--thresholds", str(tmp_path / "mine.yaml"),
            "--output", str(tmp_path),
        ],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    text = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "alerts").glob("*.alerts.yaml"))
    assert 'up{job="llm"}' in text
    assert 'job="vllmeter"' not in text
    assert "https://g.example/d/vllmeter-overview" in text
    assert "https://r.example/docs/runbooks/VllmeterQueueGrowing.md" in text
    assert "(server:vllmeter_requests_waiting:sum[5m]) >= 77" in text
    assert len(list((tmp_path / "rules").glob("*.rules.yaml"))) + len(
        list((tmp_path / "alerts").glob("*.alerts.yaml"))
    ) == len(RULE_FILES)


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("sum without (engin) (vllmeter_requests_waiting)", "has no engin"),
        ('vllmeter_requests_waiting{reason="capacity"}', "has no label reason"),
        ("vllmeter_requests_waiting > vllmeter_server_up", "without on or ignoring"),
        ("vllmeter_requests_waiting and on (gpu) vllmeter_server_up", "the left side has only"),
        ("histogram_quantile(0.9, sum without (le) (rate(vllmeter_ttft_seconds_bucket[1m])))", "without le"),
    ],
)
def test_the_label_check_notices(expr: str, message: str) -> None:
    """The checker itself refuses wrong grouping, matchers and joins."""
    with pytest.raises(ValueError, match=message):
        LABELS.of(pq.parse(expr))
