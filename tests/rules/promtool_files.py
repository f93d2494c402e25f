"""Cases -> promtool's test files, and the parts of rule files that a test needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rules.cases import Case, Firing, all_cases
from rules.quiet import Quiet, quiet_worlds
from rules.recorded import World, worlds
from rules.world import Series, write_series

ROOT = Path(__file__).resolve().parents[2]
RULE_FILES = (
    *sorted((ROOT / "prometheus/rules").glob("*.rules.yaml")),
    *sorted((ROOT / "alerts").glob("*.alerts.yaml")),
)
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
            place = {"file": path.name, "group": group["name"], "interval": group.get("interval")}
            out += [{**rule, **place} for rule in group["rules"]]
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


def in_groups(rules: Sequence[Rule]) -> dict[str, Any]:
    """A rule file that holds exactly these rules, each run of the same interval as one group, in this order."""
    kept = ("record", "alert", "expr", "for", "labels", "annotations")
    groups: list[dict[str, Any]] = []
    for rule in rules:
        interval = rule.get("interval")
        if not groups or groups[-1].get("interval") != interval:
            groups.append({"name": f"group-{len(groups)}", "rules": [], **({"interval": interval} if interval else {})})
        groups[-1]["rules"].append({k: rule[k] for k in kept if k in rule})
    return {"groups": groups}


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


RAW = re.compile(r"(?<![\w:])(?:vllmeter_[a-zA-Z0-9_]+|up)(?![\w:])")


def read_by(rules: Iterable[Rule], series: Series) -> Series:
    """The series that these rules read: the rest of the world only costs time."""
    names = {name for rule in rules for name in RAW.findall(rule["expr"])}
    return {one: values for one, values in series.items() if one[0] in names}


def promtool_test(case: Case, rules: Sequence[Rule]) -> dict[str, Any]:
    """One entry of ``tests:``; ``rules`` are all that the alert rests on."""
    checks = [{"eval_time": f"{at}s", "alertname": case.alert, "exp_alerts": []} for at in case.silent] + [
        {"eval_time": f"{at}s", "alertname": case.alert, "exp_alerts": expected(case.alert, firings)}
        for at, firings in case.fires
    ]
    last = max([*case.silent, *(at for at, _ in case.fires)])
    samples = int(last * 1000 / case.step_ms) + 2
    return {
        "name": f"{case.alert}: {case.name}",
        "interval": f"{case.step_ms}ms",
        "input_series": write_series(read_by(rules, case.series), samples),
        "alert_rule_test": checks,
    }


def record_test(world: World, rules: Sequence[Rule]) -> dict[str, Any]:
    """Recorded values: one expression each, rounded."""
    last = max(question.at for question in world.questions)
    return {
        "name": world.name,
        "interval": f"{world.step_ms}ms",
        "input_series": write_series(read_by(rules, world.series), int(last * 1000 / world.step_ms) + 2),
        "promql_expr_test": [
            {
                "expr": f"round({question.name}, {question.to:g})",
                "eval_time": f"{question.at}s",
                "exp_samples": [
                    {
                        "labels": "{" + ", ".join(f'{k}="{v}"' for k, v in labels.items()) + "}",
                        "value": value,
                    }
                    for labels, value in question.answer
                ],
            }
            for question in world.questions
        ],
    }


def quiet_test(world: Quiet, alerts: Iterable[str], rules: Sequence[Rule]) -> dict[str, Any]:
    """Every alert, at each of the world's moments: silent, but for those that the world allows."""
    return {
        "name": f"quiet: {world.name}",
        "interval": "5001ms",
        "input_series": write_series(read_by(rules, world.series), int(max(world.at) / 5.001) + 2),
        "alert_rule_test": [
            {"eval_time": f"{at}s", "alertname": alert, "exp_alerts": []}
            for at in world.at
            for alert in alerts
            if alert not in world.allowed
        ],
    }


def as_test_file(rules: Sequence[Rule], evaluation: str, tests: Sequence[Mapping[str, Any]], folder: str) -> str:
    """A test file that loads the rule files in which ``rules`` stand, their groups in dependency order."""
    first = sorted(rules, key=lambda rule: "alert" in rule)  # recordings before alerts, else as they come
    groups = list(dict.fromkeys((rule["file"], rule["group"]) for rule in first))
    files = list(dict.fromkeys(file for file, _ in groups))
    data = {
        "rule_files": [
            f"{folder}/{'alerts' if file.endswith('.alerts.yaml') else 'prometheus/rules'}/{file}" for file in files
        ],
        "group_eval_order": [group for _, group in groups],
        "evaluation_interval": evaluation,
        "tests": list(tests),
    }
    return yaml.dump(data, sort_keys=False, width=100000, Dumper=yaml.CSafeDumper)


def alert_files(rules: Sequence[Rule]) -> dict[str, list[str]]:
    """Alert file -> names of its alerts."""
    out: dict[str, list[str]] = {}
    for rule in rules:
        if "alert" in rule:
            names = out.setdefault(rule["file"], [])
            if rule["alert"] not in names:
                names.append(rule["alert"])
    return out


def committed() -> dict[str, str]:
    """File name below tests/rules/promtool -> text: what ``scripts/rules-tests`` writes."""
    rules = load_rules()
    cases = all_cases()
    out: dict[str, str] = {}
    for file, alerts in alert_files(rules).items():
        subject = file.removesuffix(".alerts.yaml")
        by_evaluation: dict[str, list[Case]] = {}
        for case in cases:
            if case.alert in alerts:
                by_evaluation.setdefault(case.evaluation, []).append(case)
        for evaluation, some in by_evaluation.items():
            needed = closure(rules, dict.fromkeys(case.alert for case in some))
            suffix = "" if evaluation == "15s" else f"-{evaluation}"
            tests = [promtool_test(case, closure(rules, [case.alert])) for case in some]
            out[f"{subject}{suffix}.promtest.yaml"] = HEADER + as_test_file(needed, evaluation, tests, "../../..")
    by_eval: dict[str, list[World]] = {}
    for world in worlds():
        by_eval.setdefault(world.evaluation, []).append(world)
    for evaluation, some_worlds in by_eval.items():
        names = [q.name for world in some_worlds for q in world.questions]
        needed = closure(rules, dict.fromkeys(one for name in names for one in NAME.findall(name)))
        suffix = "" if evaluation == "15s" else f"-{evaluation}"
        out[f"recordings{suffix}.promtest.yaml"] = HEADER + as_test_file(
            needed, evaluation, [record_test(world, needed) for world in some_worlds], "../../.."
        )
    alerts_of = [name for names in alert_files(rules).values() for name in names]
    in_order = closure(rules, alerts_of)
    out["quiet.promtest.yaml"] = HEADER + as_test_file(
        in_order, "30s", [quiet_test(world, alerts_of, in_order) for world in quiet_worlds()], "../../.."
    )
    return out


HEADER = "# Written by scripts/rules-tests from tests/rules/*.py; promtool test rules FILE runs it.\n"
