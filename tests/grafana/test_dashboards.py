"""The committed dashboards: current, valid, complete, and without holes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk needs Python 3.11")

with warnings.catch_warnings():
    # The SDK points at Grafana 12's second schema; ours is the one that 10, 11 and 12 all read.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models import dashboard as model

from grafana.boards import (
    FOLDER,
    NAMES,
    ROOT,
    annotation_queries,
    board,
    known_names,
    matchers,
    panels,
    selectors,
    targets,
    variable_queries,
)
from grafana.from_source import SOURCE
from vllmeter.catalogue import CATALOGUE

READING_ORDER = (
    "overview",
    "latency-and-jitter",
    "memory-and-budgets",
    "cache-and-evictions",
    "load-test",
    "tuning-levers",
    "exporter-health",
)
each = pytest.mark.parametrize("name", NAMES)


def test_all_seven_are_there() -> None:
    """The dashboards of the plan, each in a kebab-case file."""
    assert set(NAMES) == set(READING_ORDER)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in NAMES)


def test_committed_files_are_current() -> None:
    """What is committed is what the source makes."""
    done = subprocess.run(
        [sys.executable, str(SOURCE / "build.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_changed_file_is_noticed(tmp_path: Any) -> None:
    """--check names a dashboard that was edited by hand; the build repairs it and leaves other files alone."""
    build = [sys.executable, str(SOURCE / "build.py"), "--out", str(tmp_path)]
    assert subprocess.run(build, capture_output=True, check=False).returncode == 0
    (tmp_path / "mine.json").write_text("{}")
    edited = tmp_path / "overview.json"
    edited.write_text(edited.read_text().replace("Who holds the card", "Edited"))
    done = subprocess.run([*build, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "overview.json" in done.stderr
    assert subprocess.run(build, capture_output=True, check=False).returncode == 0
    assert edited.read_text() == (FOLDER / "overview.json").read_text()
    assert (tmp_path / "mine.json").read_text() == "{}"


def test_own_server_names_get_fixed_colours(tmp_path: Any) -> None:
    """--servers writes an override for each given name and none for others."""
    build = [sys.executable, str(SOURCE / "build.py"), "--out", str(tmp_path), "--servers", "alpha,be.ta"]
    assert subprocess.run(build, capture_output=True, check=False).returncode == 0
    text = (tmp_path / "overview.json").read_text()
    assert '"options": "/^alpha( |$)/"' in text
    assert '"options": "/^be\\\\.ta( |$)/"' in text
    assert "vllm-qwen3" not in text


@each
def test_valid_against_the_sdk(name: str) -> None:
    """The SDK's types read the document and write the same one: no unknown field, no wrong type of panel or query."""
    register_default_plugins()
    document = board(name)
    again = json.loads(json.dumps(model.Dashboard.from_json(document), cls=JSONEncoder))
    assert again == document


def test_uids_are_stable_and_unique() -> None:
    """Alerts and bookmarks link to these: they are written down here, and a change breaks them."""
    assert {name: board(name)["uid"] for name in NAMES} == {
        "overview": "vllmeter-overview",
        "latency-and-jitter": "vllmeter-latency",
        "memory-and-budgets": "vllmeter-memory",
        "cache-and-evictions": "vllmeter-cache",
        "load-test": "vllmeter-load-test",
        "tuning-levers": "vllmeter-levers",
        "exporter-health": "vllmeter-exporter",
    }


def test_links_to_dashboards_lead_somewhere() -> None:
    """Every /d/UID in a dashboard or in an alert is the uid of one of ours, and sets only variables that it has."""
    known = {board(name)["uid"]: name for name in NAMES}
    texts = [
        path.read_text(encoding="utf-8") for path in (*FOLDER.glob("*.json"), *(ROOT / "alerts").glob("*.alerts.yaml"))
    ]
    found = 0
    for text in texts:
        for uid, rest in re.findall(r"/d/([a-z0-9-]+)([^\"\s)]*(?:\{\{[^}]*\}\}[^\"\s)]*)*)", text):
            found += 1
            assert uid in known, uid
            variables = {variable["name"] for variable in board(known[uid])["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", rest)) <= variables, rest
    assert found > 10


@each
def test_house_defaults(name: str) -> None:
    """Tag, link menu by tag, not editable in the page, shared cross-hair, refresh and time zone of the viewer."""
    document = board(name)
    assert document["tags"] == ["vllmeter"]
    assert document["editable"] is False
    assert document["graphTooltip"] == 1
    assert document["timezone"] == "browser"
    assert document["refresh"]
    assert document["description"]
    (link,) = document["links"]
    assert (link["type"], link["tags"], link["asDropdown"], link["includeVars"], link["keepTime"]) == (
        "dashboards",
        ["vllmeter"],
        True,
        True,
        True,
    )


@each
def test_variables(name: str) -> None:
    """The five variables that every dashboard has, in this order; filters take several values, and All."""
    variables = board(name)["templating"]["list"]
    assert [variable["name"] for variable in variables[:5]] == ["datasource", "job", "host", "server", "gpu"]
    for variable in variables[1:5]:
        assert variable["multi"] is True
        assert variable["includeAll"] is True
        assert variable["allValue"] == (".+" if variable["name"] == "job" else ".*")
    for variable in variables:
        assert variable["description" if variable["type"] != "datasource" else "label"]


@each
def test_annotations(name: str) -> None:
    """Runs, restarts, changed settings, XID errors and firing alerts are marked on every dashboard."""
    queries = annotation_queries(name)
    assert [query["name"] for query in queries] == ["Runs", "Restarts", "Config changes", "XID errors", "Alerts"]
    assert all(query["enable"] for query in queries)
    assert len({query["iconColor"] for query in queries}) == 5


@each
def test_every_panel_explains_itself(name: str) -> None:
    """Title, description and unit; and when nothing comes back, a text that says what would make it appear."""
    for panel in panels(name):
        assert panel["title"], panel["id"]
        assert panel["description"], panel["title"]
        if panel["type"] == "text":
            assert len(panel["options"]["content"]) > 60
            continue
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        said = panel["description"].partition("\n\nEmpty: ")[2]
        assert len(said) > 3, panel["title"]
        if panel["type"] != "table":
            assert defaults["noValue"] == said, panel["title"]


@each
def test_titles_within_a_row_differ(name: str) -> None:
    """Two panels of one row that are called the same cannot be talked about."""
    row = ""
    seen: Counter[tuple[str, str]] = Counter()
    for panel in board(name)["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
        else:
            seen[row, panel["title"]] += 1
    assert [key for key, count in seen.items() if count > 1] == []


@each
def test_grid_without_overlaps_and_holes(name: str) -> None:
    """Panels lie inside 24 columns, none on another, and every line is filled from edge to edge."""
    taken: dict[tuple[int, int], int] = {}
    bottom = 0
    for panel in board(name)["panels"]:
        place = panel["gridPos"]
        assert place["w"] >= 4, f"{panel['title']}: too narrow for 1366 pixels"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert 0 <= x < 24
                assert (x, y) not in taken, f"{panel['title']} lies on panel {taken[x, y]}"
                taken[x, y] = panel["id"]
        bottom = max(bottom, place["y"] + place["h"])
    assert len(taken) == 24 * bottom


@each
def test_ids_and_refs_are_unique(name: str) -> None:
    """Panel ids in a dashboard, refIds in a panel."""
    ids = [panel["id"] for panel in board(name)["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(name):
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(refs)) == len(refs), panel["title"]


@each
def test_gaps_stay_gaps(name: str) -> None:
    """Missing points are never bridged or drawn as 0."""
    for panel in panels(name):
        if panel["type"] == "timeseries":
            assert panel["fieldConfig"]["defaults"]["custom"]["spanNulls"] is False, panel["title"]
        for target in panel.get("targets", []):
            assert not re.search(r"or\s+vector\s*\(", target["expr"]), panel["title"]


@each
def test_thresholds_only_where_they_mean_something(name: str) -> None:
    """No panel keeps a template's thresholds: one step in the colour of text, or steps that the panel set itself."""
    for panel in panels(name):
        steps = panel.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
        assert not any(step.get("value") == 80 for step in steps), panel["title"]
        if len(steps) == 1 and panel["type"] != "stat":
            assert steps[0]["color"] == "text", panel["title"]


def test_colours_of_a_server_are_the_same_everywhere() -> None:
    """One name, one colour, in every panel of every dashboard."""
    colours: dict[str, set[str]] = {}
    for name in NAMES:
        for panel in panels(name):
            for override in panel.get("fieldConfig", {}).get("overrides", []):
                match = re.fullmatch(r"/\^(vllm-[\w-]+)\( \|\$\)/", str(override["matcher"]["options"]))
                for setting in override["properties"]:
                    if match and setting["id"] == "color":
                        colours.setdefault(match[1], set()).add(setting["value"]["fixedColor"])
    assert len(colours) >= 3
    assert {name: len(found) for name, found in colours.items()} == dict.fromkeys(colours, 1)


def test_only_known_names() -> None:
    """Every metric of every target, annotation and variable is one that the exporter, the rules or Prometheus give."""
    unknown = set()
    for target in targets():
        unknown |= {(target.where, s.name) for s, _ in selectors(target.expr) if s.name not in known_names()}
    for name in NAMES:
        for text in (*variable_queries(name).values(), *(query["expr"] for query in annotation_queries(name))):
            unknown |= {(name, s.name) for s, _ in selectors(text) if s.name not in known_names()}
    assert unknown == set()


def test_only_labels_that_the_family_has() -> None:
    """A matcher on a label that the family does not have never matches; `pid` and the like do not creep in."""
    labels = {}
    for family in CATALOGUE:
        for end in ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",):
            labels[family.exposed + end] = {*family.labels, "job", "host", "instance", "le"}
    for target in targets():
        for selector, _ in selectors(target.expr):
            if selector.name in labels:
                assert matchers(selector).keys() <= labels[selector.name], target.where
