"""docs/user-needs.md answers every topic, and what it names exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from vllmeter.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "user-needs.md").read_text(encoding="utf-8")
FLAT = re.sub(r"\s+", " ", TEXT)
TOPICS = re.findall(r"^### (\d+)\. .+\n((?:(?!^##).*\n)*)", TEXT, re.MULTILINE)


def in_rules(folder: str, key: str) -> set[str]:
    """All values of ``record`` or ``alert`` in the rule files of a folder."""
    return {
        rule[key]
        for path in (ROOT / folder).glob("*.yaml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8")).get("groups", [])
        for rule in group["rules"]
        if key in rule
    }


def test_all_25_topics_are_answered() -> None:
    """Each topic stands once, in order, with its issues, the gap, the place, a proof and what is not given."""
    assert [int(number) for number, _ in TOPICS] == list(range(1, 26))
    for number, body in TOPICS:
        assert re.search(r"[\w.-]#\d+", body), f"topic {number} names no issue"
        for part in ("Not visible", "Here", "Proof", "Not given"):
            assert f"- **{part}:**" in body, f"topic {number} has no {part!r}"
        assert "`tests/" in body.split("**Proof:**")[1].split("**Not given:**")[0], f"topic {number} has no test"


def test_metrics_and_recordings_exist() -> None:
    """Every vllmeter_… name is in the catalogue or recorded by a rule."""
    known = {family.exposed for family in CATALOGUE} | in_rules("prometheus/rules", "record")
    named = set(re.findall(r"(?:\w+:)?\bvllmeter_\w+(?::\w+)?", TEXT))
    assert len(named) > 50
    assert named - known == set()


def test_alerts_exist_and_have_a_runbook() -> None:
    """Every Vllmeter… name is an alert with a page, also within the names of cases."""
    named = set(re.findall(r"\bVllmeter\w+", TEXT))
    assert len(named) > 20
    assert named - in_rules("alerts", "alert") == set()
    assert {name for name in named if not (ROOT / "docs" / "runbooks" / f"{name}.md").exists()} == set()


def test_proofs_exist() -> None:
    """Every `file::name` is a test function of that file, or a case of that promtool file."""
    named = re.findall(r"`(tests/[\w./-]+)::([^`]+)`", FLAT)
    assert len(named) == FLAT.count("`tests/") - FLAT.count("`tests/rules/promtool/`")
    missing = []
    for path, name in named:
        file = ROOT / path
        if not file.is_file():
            missing.append(f"{path} (no such file)")
        elif file.suffix == ".py":
            if not re.search(rf"^def {re.escape(name)}\(", file.read_text(encoding="utf-8"), re.MULTILINE):
                missing.append(f"{path}::{name}")
        elif f"- name: {name}\n" not in (cases := file.read_text(encoding="utf-8")) and (
            f"- name: '{name}'\n" not in cases
        ):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_findings_and_panels_exist() -> None:
    """Every finding has a row in docs/budgets.md; every *dashboard › panel* is in a dashboard of that title."""
    rows = "\n".join(
        line.split("|")[1]
        for line in (ROOT / "docs" / "budgets.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    )
    lists = re.findall(r"Findings? ((?:`[a-z-]+`(?:, )?)+)", FLAT)
    findings = {name for found in lists for name in re.findall(r"`([a-z-]+)`", found)}
    assert len(findings) > 10
    assert {name for name in findings if f"`{name}`" not in rows} == set()

    panels = set()
    for path in (ROOT / "grafana" / "dashboards").glob("*.json"):
        board = json.loads(path.read_text(encoding="utf-8"))
        title = board["title"].removeprefix("vllmeter / ")
        for panel in board["panels"]:
            panels |= {(title, inner.get("title")) for inner in (panel, *panel.get("panels", ()))}
    named = set(re.findall(r"\*([A-Z][^*›]+) › ([^*]+)\*", FLAT)) - {("Dashboard", "panel")}
    assert len(named) > 10
    assert named - panels == set()
