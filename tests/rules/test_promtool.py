"""promtool runs the rules' tests; none of the rules escapes them, and planted mistakes are noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest

from rules.cases import all_cases
from rules.mutation import ACCEPTED, Judge, Mutant, all_mutants, of_expression
from rules.promtool_files import NAME, ROOT, closure, in_groups, load_rules, rule_name
from rules.quiet import quiet_worlds
from rules.recorded import worlds

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
RULES = load_rules()
FILES = sorted((ROOT / "tests/rules/promtool").glob("*.promtest.yaml"))

needs_promtool = [
    pytest.mark.promtool,
    pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on the PATH (Debian package prometheus)"),
]


def with_marks(values: Sequence[object], ids: Sequence[str]) -> list[object]:
    return [pytest.param(value, id=name, marks=needs_promtool) for value, name in zip(values, ids, strict=True)]


@pytest.mark.parametrize("path", with_marks(FILES, [path.name for path in FILES]))
def test_promtool_accepts_the_rules(path: object) -> None:
    """Every test file passes under the promtool of this machine (both major versions run in scripts/test)."""
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


def test_files_are_current() -> None:
    """Committed test files are what the cases say now."""
    done = subprocess.run(
        [sys.executable, "scripts/rules-tests", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_alert_fires_somewhere_with_each_of_its_severities() -> None:
    """A new alert, or a new variant of one, needs a case in which it fires."""
    fired = {
        (case.alert, firing.labels["severity"])
        for case in all_cases()
        for _, firings in case.fires
        for firing in firings
    }
    assert fired == {(rule["alert"], rule["labels"]["severity"]) for rule in RULES if "alert" in rule}


def test_every_alert_is_silent_before_its_time() -> None:
    """Cases that fire check the moment before `for` has passed, too; only what has no `for` may start at once."""
    for rule in RULES:
        if "alert" not in rule or rule["alert"] == "VllmeterWatchdog":
            continue
        firing = [case for case in all_cases() if case.alert == rule["alert"] and case.fires]
        assert firing
        if "for" in rule:
            assert any(case.silent for case in firing), rule["alert"]


def test_every_alert_is_asked_for_in_every_quiet_world() -> None:
    """Idle, restart, gap, removed server: the quiet file asks for each alert that the world does not allow."""
    text = (ROOT / "tests/rules/promtool/quiet.promtest.yaml").read_text(encoding="utf-8")
    alerts = {rule["alert"] for rule in RULES if "alert" in rule}
    for alert in alerts:
        expected = sum(len(world.at) for world in quiet_worlds() if alert not in world.allowed)
        assert text.count(f"alertname: {alert}\n") == expected
    allowed = set().union(*(world.allowed for world in quiet_worlds()))
    assert allowed <= {"VllmeterWatchdog", "VllmeterServerRestarted"}


def test_every_recording_rule_has_worked_out_values() -> None:
    """A new recording rule needs an answer with at least one series, worked out by hand."""
    asked = {
        name
        for world in worlds()
        for question in world.questions
        if question.answer
        for name in NAME.findall(question.name)
    }
    assert {rule["record"] for rule in RULES if "record" in rule} <= asked


def test_two_hosts_with_equal_server_names_are_in_every_input() -> None:
    """Except for the inputs that span days, both hosts' server `chat` takes part."""
    for case in all_cases():
        if case.evaluation != "15s" or case.alert == "VllmeterExporterAbsent":
            continue
        hosts = {dict(labels).get("host") for _, labels in case.series}
        assert {"a", "b"} <= hosts, case.name


def test_no_sample_lies_on_an_edge() -> None:
    """Ranges are open on the left in Prometheus 3 and closed in 2: no sample lies where a range may begin."""
    # Ranges and evaluations are multiples of these; 15m and 20m belong to rules with ranges of 5m at least.
    grid = {"15s": 15_000, "1m": 60_000, "15m": 300_000, "20m": 300_000}
    for case in all_cases():
        last = max([*case.silent, *(at for at, _ in case.fires)])
        for index in range(1, int(last * 1000 / case.step_ms) + 2):
            assert (index * case.step_ms) % grid[case.evaluation] != 0, (case.alert, case.name, index)


def test_mutants_of_an_expression() -> None:
    """Comparisons flip, numbers grow tenfold, matchers go; durations and zeros stay."""
    found = dict(of_expression('a{x="1", y=~"2"} > 0.5 and b[5m] == 0 offset 30m'))
    assert found == {
        'line 1: without x="1"': 'a{y=~"2"} > 0.5 and b[5m] == 0 offset 30m',
        'line 1: without y=~"2"': 'a{x="1"} > 0.5 and b[5m] == 0 offset 30m',
        "line 1: > -> <": 'a{x="1", y=~"2"} < 0.5 and b[5m] == 0 offset 30m',
        "line 1: 0.5 -> 5": 'a{x="1", y=~"2"} > 5.0 and b[5m] == 0 offset 30m',
        "line 1: == -> !=": 'a{x="1", y=~"2"} > 0.5 and b[5m] != 0 offset 30m',
    }


@pytest.mark.parametrize("_", with_marks([0], ["sample"]))
def test_planted_mistakes_are_noticed(_: object) -> None:
    """An evenly spread sample of all mutants; scripts/rules-mutate runs the rest."""
    judge = Judge(str(PROMTOOL))
    mutants = all_mutants(judge.rules)
    quick = [one for one in mutants if all(interval in ("15s", "1m") for interval, _ in judge.tests(one.rule))]
    sample = quick[:: max(1, len(quick) // 40)]
    survivors = [one for one in sample if judge.survives(one) and (one.rule, one.what) not in ACCEPTED]
    assert survivors == []


@pytest.mark.parametrize("_", with_marks([0], ["unchanged"]))
def test_unchanged_rules_pass_the_judge(_: object) -> None:
    """Without a mistake the judge has nothing to say, so that a noticed mutant was noticed for its change."""
    judge = Judge(str(PROMTOOL))
    for name in ("VllmeterTtftJitterHigh", "server:vllmeter_ttft_seconds:p95_rate5m"):
        rule = next(one for one in judge.rules if rule_name(one) == name)
        index = judge.rules.index(rule)
        assert judge.survives(Mutant(index, name, "nothing", rule["expr"]))


def test_closure_is_in_order() -> None:
    """What a rule rests on comes before it."""
    names = [rule_name(rule) for rule in closure(RULES, ["VllmeterTtftAboveBaseline"])]
    assert names.index("server:vllmeter_ttft_seconds_count:rate1m") < names.index(
        "server:vllmeter_ttft_seconds:mean_rate1m"
    )
    assert names[-1] == "VllmeterTtftAboveBaseline"
    intervals = [
        group.get("interval") for group in in_groups(closure(RULES, ["VllmeterTtftObjectiveBurnFast"]))["groups"]
    ]
    assert "1m" in intervals
