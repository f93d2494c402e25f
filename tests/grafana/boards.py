"""The committed dashboards, and ways to walk through them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import promql_parser

from grafana.recorded import ROOT, recorded_names
from vllmeter.catalogue import CATALOGUE

FOLDER = ROOT / "grafana" / "dashboards"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))

OF_PROMETHEUS = frozenset({"up", "scrape_samples_scraped", "process_cpu_seconds_total", "ALERTS"})
"""Names that Prometheus or the exporter's own process gives."""


@lru_cache(maxsize=16)
def board(name: str) -> dict[str, Any]:
    """A dashboard's document."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return document


def panels(name: str) -> list[dict[str, Any]]:
    """Everything but rows."""
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


@dataclass(frozen=True)
class Target:
    """One query of one panel."""

    board: str
    panel: dict[str, Any]
    target: dict[str, Any]

    @property
    def where(self) -> str:
        return f"{self.board} / {self.panel['title']} / {self.target['refId']}"

    @property
    def expr(self) -> str:
        return str(self.target["expr"])


def targets(name: str | None = None) -> Iterator[Target]:
    """All targets of one dashboard, or of all."""
    for one in (name,) if name else NAMES:
        for panel in panels(one):
            for target in panel.get("targets", []):
                yield Target(one, panel, target)


def annotation_queries(name: str) -> list[dict[str, Any]]:
    """The annotations with a query."""
    return [query for query in board(name)["annotations"]["list"] if query.get("expr")]


def variable_queries(name: str) -> dict[str, str]:
    """Variable -> PromQL inside its query."""
    out = {}
    for variable in board(name)["templating"]["list"]:
        if variable["type"] == "query":
            text = variable["query"]
            match = re.fullmatch(r"label_values\((.*),\s*\w+\)|query_result\((.*)\)", text, re.DOTALL)
            assert match is not None, text
            out[variable["name"]] = match[1] or match[2]
    return out


def plain(expr: str) -> str:
    """PromQL with every variable replaced by something that parses, for static checks."""
    expr = expr.replace("$__rate_interval", "3m").replace("$__range", "1h").replace("$__interval", "1m")
    expr = re.sub(r"\[\$\{(?:span|length)_\w\}s", "[60s", expr)
    return re.sub(r"\$\{?(?:start|end|until|length|span|shift)(?:_\w)?\}?", "1", expr)


@lru_cache(maxsize=1024)
def parsed(expr: str) -> Any:
    """The parser's tree."""
    return promql_parser.parse(plain(expr))


def nodes(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node with its ancestors, outermost first."""
    yield tree, above
    kind = type(tree).__name__
    inner: list[Any] = []
    if kind == "BinaryExpr":
        inner = [tree.lhs, tree.rhs]
    elif kind in ("AggregateExpr", "ParenExpr", "SubqueryExpr", "UnaryExpr"):
        inner = [tree.expr]
    elif kind == "Call":
        inner = list(tree.args)
    elif kind == "MatrixSelector":
        inner = [tree.vector_selector]
    for one in inner:
        yield from nodes(one, (*above, tree))


@lru_cache(maxsize=1024)
def selectors(expr: str) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    """Vector selectors with their ancestors."""
    return tuple((node, above) for node, above in nodes(parsed(expr)) if type(node).__name__ == "VectorSelector")


def matchers(selector: Any) -> dict[str, str]:
    """Label -> value of the selector's matchers."""
    return {matcher.name: matcher.value for matcher in selector.matchers.matchers}


@lru_cache(maxsize=1024)
def known_names() -> frozenset[str]:
    """Every name that a query may use."""
    out = set(OF_PROMETHEUS) | set(recorded_names())
    for family in CATALOGUE:
        if family.kind == "histogram":
            out |= {family.exposed + end for end in ("_bucket", "_sum", "_count")}
        else:
            out.add(family.exposed)
    return frozenset(out)


@lru_cache(maxsize=1024)
def counters() -> frozenset[str]:
    """Names that only make sense as a rate or a difference."""
    out = {"process_cpu_seconds_total"}
    for family in CATALOGUE:
        if family.kind == "counter":
            out.add(family.exposed)
        elif family.kind == "histogram":
            out |= {family.exposed + end for end in ("_bucket", "_sum", "_count")}
    return frozenset(out)


def pictures() -> Path:
    """Where the pictures of the dashboards lie."""
    return ROOT / "docs" / "pictures"
