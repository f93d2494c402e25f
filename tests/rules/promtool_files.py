"""Cases -> promtool's test files, and the parts of rule files that a test needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rules.cases import Case, Firing, all_cases
from rules.world import write_series

ROOT = Path(__file__).resolve().parents[2]
RULE_FILES = (*sorted((ROOT / "prometheus/rules").glob("*.rules.yaml")), *sorted((ROOT / "alerts").glob("*.alerts.yaml")))
RUNBOOKS = "https://github.com/vllmeter/vllmeter/blob/main/docs/runbooks"
GRAFANA = "http://127.0.0.1:3000"
NAME = re.compile(r"[a-zA-Z_][\w]*:[\w:]+")

Rule = dict[str, Any]


def rule_name(rule: Mapping[str, Any]) -> str:
    return str(rule.get("record") or rule["alert"])


def load_rules(files: Iterable[Path] = RULE_FILES) -> list[Rule]:
    """All rules in the order in which Prometheus reads them; ``file`` and ``group`` say where."""
    out = []
    for path in files:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            out += [{**rule, "file": path.name, "group": group["name"]} for rule in group["rules"]]
    return out


def closure(rules: Sequence[Rule], names: Iterable[str]) -> list[Rule]:
    """The rules with these names and every recording rule that they rest on, in dependency order."""
    by_name: dict[str, list[Rule]] = {}
    for rule in rules:
        by_name.setdefault(rule_name(rule), []).append(rule)
    done: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        for rule in by_name.get(name, ()):
            for used in NAME.findall(rule["expr"]):
                if used != name:
                    visit(used)
        if name in by_name:
            done.append(name)

    for name in names:
        visit(name)
    return [rule for name in done for rule in by_name[name]]


def one_group(rules: Sequence[Rule]) -> dict[str, Any]:
    """A rule file with one group: recordings and alerts in this order, so that nothing lags behind."""
    kept = ("record", "alert", "expr", "for", "labels", "annotations")
    return {"groups": [{"name": "all", "rules": [{k: r[k] for k in kept if k in r} for r in rules]}]}


def links(alert: str, firing: Firing) -> dict[str, str]:
    """The two links as a person gets them: variables for the labels that the alert has."""
    labels = firing.labels
    if alert in ("VllmeterWatchdog", "VllmeterExporterAbsent"):
        query = ""
    else:
        known = [name for name in ("host", "server", "gpu") if name in labels]
        query = "?" + "&".join(f"var-{name}={labels[name]}" for name in known)
    return {
        "runbook_url": f"{RUNBOOKS}/{alert}.md",
        "dashboard_url": f"{GRAFANA}/d/{firing.dashboard}{query}",
    }


def expected(alert: str, firings: Sequence[Firing]) -> list[dict[str, Any]]:
    return [
        {
            "exp_labels": dict(one.labels),
            "exp_annotations": {
                "summary": one.summary,
                "description": one.description,
                **links(alert, one),
            },
        }
        for one in firings
    ]


def promtool_test(case: Case) -> dict[str, Any]:
    """One entry of ``tests:``."""
    checks = [
        {"eval_time": f"{at}s", "alertname": case.alert, "exp_alerts": []} for at in case.silent
    ] + [
        {"eval_time": f"{at}s", "alertname": case.alert, "exp_alerts": expected(case.alert, firings)}
        for at, firings in case.fires
    ]
    last = max([*case.silent, *(at for at, _ in case.fires)])
    samples = int(last * 1000 / case.step_ms) + 2
    return {
        "name": f"{case.alert}: {case.name}",
        "interval": f"{case.step_ms}ms",
        "input_series": write_series(case.series, samples),
        "alert_rule_test": checks,
    }


def by_evaluation(cases: Iterable[Case]) -> dict[str, list[Case]]:
    out: dict[str, list[Case]] = {}
    for case in cases:
        out.setdefault(case.evaluation, []).append(case)
    return out


def test_file(rule_files: Sequence[str], evaluation: str, tests: Sequence[Mapping[str, Any]]) -> str:
    data = {"rule_files": list(rule_files), "evaluation_interval": evaluation, "tests": list(tests)}
    return yaml.dump(data, sort_keys=False, width=100000, Dumper=yaml.CSafeDumper)


