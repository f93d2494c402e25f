"""The four forms of a report."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from runs.synthetic import add_sweep
from vllmeter.runs.compare import Comparison, Value, compare
from vllmeter.runs.metrics import BY_ID
from vllmeter.runs.report import svg
from vllmeter.runs.report.document import document
from vllmeter.runs.report.html import html
from vllmeter.runs.report.markdown import markdown
from vllmeter.runs.report.terminal import show
from vllmeter.runs.report.values import number, value_text
from vllmeter.runs.store import RunStore


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    store = RunStore(tmp_path_factory.mktemp("state"))
    effects = {"2048": {"short": 1.0, "long": 1.0}, "a|<b>": {"short": 1.0, "long": 0.5}}
    names = iter(("2048", "cand"))
    add_sweep(store, {next(names): each for each in effects.values()}, n=300, sigma=0.15, icc=0.3)
    return compare(store, ["2048", "cand"])


def test_terminal_is_aligned_and_says_the_verdict_first(comparison: Comparison) -> None:
    """Conclusion above the numbers; no line is wider than the terminal."""
    out = io.StringIO()
    show(comparison, Console(file=out, width=150))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 150
    text = out.getvalue()
    assert text.index("cand: better") < text.index("TTFT mean", text.index("cand: better") + 200)
    assert "single change: max_num_batched_tokens: 2048 -> cand" in text
    assert re.search(r"cand +\S+ ms +\d+ ms ★", text)


def test_markdown_tables_have_equal_columns(comparison: Comparison) -> None:
    """Every row of a table has as many cells as its head."""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", markdown(comparison), re.M)
    assert len(blocks) >= 4
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().splitlines()}
        assert len(widths) == 1
    assert "(best)" in markdown(comparison)


def test_json_is_strict_and_complete(comparison: Comparison) -> None:
    """No NaN; numbers, verdicts, differences and the flag for CI are there."""
    data = json.loads(json.dumps(document(comparison), allow_nan=False))
    assert data["regression"] is False
    (long,) = [each for each in data["sections"] if each["scenario"] == "long"]
    (row,) = [each for each in long["metrics"] if each["metric"] == "client.ttft_p95"]
    assert row["verdicts"]["cand"]["word"] == "better"
    assert row["verdicts"]["cand"]["ratio"] == pytest.approx(0.5, rel=0.1)
    assert len(row["values"]["cand"]["runs"]) == 3
    assert long["conclusions"][0]["differences"][0]["name"] == "max_num_batched_tokens"


class _Balance(HTMLParser):
    """Checks that every element is closed."""

    VOID = frozenset({"meta", "circle", "line", "path", "rect", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID


def test_html_is_one_closed_file_without_scripts_or_links(comparison: Comparison) -> None:
    """Nothing is loaded from anywhere, and every element is closed."""
    page = html(comparison, now=1796129259.0)
    parser = _Balance()
    parser.feed(page)
    assert parser.stack == []
    assert parser.links == []
    assert "<script" not in page
    assert "url(" not in page
    assert "@import" not in page
    assert "2026-12-01" in page
    plots = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(plots) >= 10
    for plot in plots:
        ET.fromstring(plot)
        assert "nan" not in plot.lower().replace("tenan", "")
        assert "None" not in plot


def test_names_are_escaped(tmp_path: Path) -> None:
    """A scenario name with markup characters stays text."""
    store = RunStore(tmp_path)
    add_sweep(store, {"a": {"x/y": 1.0}, "b": {"x/y": 1.0}}, repeat=1, n=40)
    comparison = compare(store, ["a", "b"])
    for column in comparison.sections[0].columns:
        object.__setattr__(column, "name", "<i>|x")
    page = html(comparison)
    assert "<i>|x" not in page
    assert "&lt;i&gt;|x" in page
    assert "<i>\\|x" in markdown(comparison)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (1.7e-5, "s", "17.0 µs"),
        (0.0734, "s", "73.4 ms"),
        (0.17, "s", "170 ms"),
        (3.0, "s", "3.00 s"),
        (0.4567, "ratio", "45.7%"),
        (5.5 * 2**30, "bytes", "5.50 GiB"),
        (19.0, "count", "19"),
        (4.333, "count", "4.3"),
        (2601.6, "tokens/s", "2602 tok/s"),
        (1.2, "requests/s", "1.20 req/s"),
    ],
)
def test_numbers_have_units_and_three_digits(value: float, unit: str, text: str) -> None:
    """The same text in all reports."""
    assert number(value, unit) == text


def test_absent_looks_absent_and_bounds_look_like_bounds() -> None:
    """A missing value is a dash, never 0; bounds are a range."""
    metric = BY_ID["server.ttft_p95"]
    assert value_text(metric, Value()) == "–"
    assert value_text(metric, Value(low=0.08, high=0.0923)) == "80.0 ms to 92.3 ms"
    assert value_text(metric, Value(0.02, 0.017, 0.03)) == "20.0 ms (17.0 ms to 30.0 ms)"


def test_plots_of_nothing_are_nothing() -> None:
    """No points, no picture; a gap breaks the line."""
    assert svg.lines("t", [], x_name="x", format_y=str) == ""
    assert svg.cloud("t", [svg.Series("a", "s0", [(0, None)])], x_name="x", format_y=str) == ""
    assert svg.steps("t", [("a", "s0", [])], format_x=str) == ""
    assert svg.intervals("t", [], relevant=0.05) == ""
    broken = svg.lines(
        "t", [svg.Series("a", "s0", [(0, 1.0), (1, 1.0), (2, None), (3, 1.0), (4, 1.0)])], x_name="x", format_y=str
    )
    (path,) = re.findall(r'class="line s0" d="([^"]*)"', broken)
    assert path.count("M") == 2


def test_large_runs_stay_small_files() -> None:
    """Of very many points only some are drawn."""
    points = [(float(i), 0.1 + (i % 7) / 100) for i in range(100_000)]
    assert len(svg.cloud("t", [svg.Series("a", "s0", points)], x_name="x", format_y=str)) < 200_000
    assert len(svg.steps("t", [("a", "s0", [y for _, y in points])], format_x=str)) < 60_000
