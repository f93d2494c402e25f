"""Every alert has a runbook that can be followed: its queries run, its flags exist, its pages are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as pq
import pytest

from rules.labels import Labels
from rules.promtool_files import ROOT, load_rules
from vllmeter.memory.serve_flags import OPTIONS

RULES = load_rules()
ALERTS = sorted({rule["alert"] for rule in RULES if "alert" in rule})
PAGES = sorted((ROOT / "docs/runbooks").glob("*.md"))
LABELS = Labels({rule["record"]: rule["expr"] for rule in RULES if "record" in rule})
FLAGS = {name for names, _ in OPTIONS for name in names}
OTHER_FLAGS = {
    # docker, py-spy, nvidia-smi, vllmeter and the generator of rules
    "--tail", "--gpu-reset", "--pid", "--verbose", "--duration", "--from-compose", "--job", "--output",
}  # fmt: skip


def panels(nodes: list[dict[str, Any]]) -> Iterator[str]:
    for node in nodes:
        yield str(node.get("title"))
        yield from panels(node.get("panels", []))


DASHBOARDS = {
    board["uid"]: board
    for board in (json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "grafana/dashboards").glob("*.json"))
}


def test_one_page_per_alert_and_one_alert_per_page() -> None:
    """A page without alert is never opened; an alert without page helps nobody at night."""
    assert [page.stem for page in PAGES] == ALERTS


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@every_page
def test_sections(page: Path) -> None:
    """All pages have the same four sections, none of them empty."""
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.stem}\n")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    assert parts[1::2] == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert all(part.strip() for part in parts[2::2])


@every_page
def test_diagnosis_names_query_panel_and_command(page: Path) -> None:
    """Diagnosis starts from PromQL, from a panel of the dashboard that the alert links to, and from our own command."""
    diagnosis = page.read_text(encoding="utf-8").split("## Diagnosis")[1].split("## Mitigation")[0]
    assert "```promql" in diagnosis
    assert "vllmeter check" in diagnosis
    match = re.search(r"^Panel: \*(.+)\* on the dashboard \*(.+)\*\.$", diagnosis, flags=re.MULTILINE)
    assert match is not None
    rule = next(rule for rule in RULES if rule.get("alert") == page.stem)
    board = DASHBOARDS[rule["annotations"]["dashboard_url"].split("/d/")[1].split("?")[0]]
    assert board["title"].endswith(f"/ {match[2]}")
    assert match[1] in list(panels(board["panels"]))


def test_links_fill_variables_that_the_dashboards_have() -> None:
    """A link with a variable that the dashboard lacks would show everything instead of the one server."""
    for rule in RULES:
        if "alert" not in rule:
            continue
        uid, _, query = rule["annotations"]["dashboard_url"].split("/d/")[1].partition("?")
        names = {variable["name"] for variable in DASHBOARDS[uid]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", query)) <= names


@every_page
def test_queries_are_valid(page: Path) -> None:
    """Every query parses, and names families, recorded names and labels that exist."""
    queries = re.findall(r"```promql\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for query in queries:
        if query.startswith(("ALERTS", "topk", "count by")):
            pq.parse(query)
        else:
            LABELS.of(pq.parse(query))


@every_page
def test_flags_exist_in_vllm(page: Path) -> None:
    """A flag that vLLM does not have is no mitigation."""
    text = page.read_text(encoding="utf-8")
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))
    assert flags <= FLAGS | OTHER_FLAGS


@every_page
def test_named_alerts_exist(page: Path) -> None:
    """Runbooks point to each other; a renamed alert must not leave a dead pointer."""
    assert set(re.findall(r"\bVllmeter\w+", page.read_text(encoding="utf-8"))) <= set(ALERTS)
