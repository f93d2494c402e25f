"""Fills variables and macros into a dashboard's queries as Grafana does: for preview.py and for the tests.

What is imitated: order of variables, ``label_values`` and ``query_result``, the regular expression of a variable with
its named groups, All, escaping for regular expressions, rows repeated by a variable, ``$__rate_interval``,
``$__interval`` and ``$__range``.  Not imitated: ad-hoc filters, nested variables inside names, data links.
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Source(Protocol):
    """What answers: anything with Prometheus' HTTP API behind it."""

    def get(self, path: str, **parameters: Any) -> Any:
        """``data`` of ``/api/v1/<path>``."""

    def instant(self, expr: str, at: float) -> list[dict[str, Any]]:
        """Vector of an instant query."""

    def range(self, expr: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """Matrix of a range query."""


class Remote:
    """A Prometheus by its URL."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def get(self, path: str, **parameters: Any) -> Any:
        query = urllib.parse.urlencode(parameters, doseq=True)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=60) as answer:
            return json.load(answer)["data"]

    def instant(self, expr: str, at: float) -> list[dict[str, Any]]:
        data = self.get("query", query=expr, time=at)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        result: list[dict[str, Any]] = data["result"]
        return result

    def range(self, expr: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query_range", query=expr, start=begin, end=end, step=step)["result"]
        return result


@dataclass(frozen=True, slots=True)
class View:
    """What is looked at: time range, step of range queries, scrape interval of the data source (all in seconds)."""

    begin: float
    end: float
    step: float
    scrape: float = 5.0

    @property
    def macros(self) -> dict[str, str]:
        """Grafana's: the rate interval is the larger of step + scrape interval and 4 scrape intervals."""
        span = max(1, round(self.end - self.begin))
        return {
            "__rate_interval": f"{max(self.step + self.scrape, 4 * self.scrape):g}s",
            "__interval": f"{self.step:g}s",
            "__range": f"{span}s",
            "__range_s": str(span),
        }


@dataclass(frozen=True, slots=True)
class Value:
    """Value of a variable: ``raw`` goes into queries, ``options`` (text, value) are what a row is repeated over."""

    raw: str
    text: str
    options: Sequence[tuple[str, str]] = ()


@dataclass(slots=True)
class Filled:
    """All variables of a dashboard with their values, and how to put them into text."""

    view: View
    values: dict[str, Value] = field(default_factory=dict)
    queries: list[tuple[str, str]] = field(default_factory=list)
    """variable, query as it was sent"""

    def into(
        self, text: str, scoped: Mapping[str, Value] | None = None, *, words: bool = False, macros: bool = True
    ) -> str:
        """``text`` with every variable replaced; unknown names stay.

        :param words: texts instead of values, for titles
        :param macros: also ``$__rate_interval`` and the like (Grafana's own query endpoint fills them in itself)
        """
        known = {**self.values, **(scoped or {})}
        times = self.view.macros if macros else {}

        def one(match: re.Match[str]) -> str:
            name = match[1] or match[2] or match[4]
            if name in times:
                return times[name]
            if name not in known:
                return match[0]
            return known[name].text if words else known[name].raw

        return re.sub(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)|(\[\[(\w+)\]\])", one, text)


_LABEL_VALUES = re.compile(r"label_values\((?:(.*),\s*)?(\w+)\)", re.DOTALL)
_QUERY_RESULT = re.compile(r"query_result\((.*)\)", re.DOTALL)


def escaped(value: str) -> str:
    """A value inside a regular expression of PromQL, as Grafana escapes it."""
    return re.sub(r"[\\^$*+?.()|{}\[\]]", lambda match: "\\\\" + match[0], value)


def _javascript(pattern: str) -> re.Pattern[str]:
    body = re.fullmatch(r"/(.*)/\w*", pattern, re.DOTALL)
    return re.compile((body[1] if body else pattern).replace("(?<", "(?P<"))


def _options(source: Source, query: str, view: View, regex: str) -> list[tuple[str, str]]:
    """(text, value) of every option."""
    if match := _LABEL_VALUES.fullmatch(query):
        parameters: dict[str, Any] = {"start": view.begin, "end": view.end}
        if match[1]:
            parameters["match[]"] = match[1]
        found = [(value, value) for value in source.get(f"label/{match[2]}/values", **parameters)]
    elif match := _QUERY_RESULT.fullmatch(query):
        found = []
        for series in source.instant(match[1], view.end):
            metric = dict(series["metric"])
            name = metric.pop("__name__", "")
            labels = ",".join(f'{key}="{value}"' for key, value in metric.items())
            at, value = series["value"]
            text = f"{name}{{{labels}}} {value} {float(at) * 1000:.0f}"
            found.append((text, text))
    else:
        raise ValueError(f"variable query {query!r} is neither label_values nor query_result")
    if not regex:
        return found
    out: list[tuple[str, str]] = []
    for text, _ in found:
        hit = _javascript(regex).search(text)
        if hit is None:
            continue
        groups = hit.groupdict()
        if "value" in groups or "text" in groups:
            value = groups.get("value") or groups.get("text") or ""
            option = (groups.get("text") or value, value)
        else:
            option = (hit[1],) * 2 if hit.groups() else (text, text)
        if option not in out:
            out.append(option)
    return out


def _sorted(options: list[tuple[str, str]], how: int) -> list[tuple[str, str]]:
    if how in (1, 2):
        return sorted(options, reverse=how == 2)
    if how in (3, 4):
        return sorted(options, key=_numeric, reverse=how == 4)
    return options


def _numeric(option: tuple[str, str]) -> float:
    """As Grafana sorts: by the first number in the text; without one, last."""
    match = re.search(r"-?\d+(?:\.\d+)?", option[0])
    return float(match[0]) if match else float("inf")


def fill(dashboard: Mapping[str, Any], source: Source, view: View, chosen: Mapping[str, str] | None = None) -> Filled:
    """Values of all variables, in their order.  ``chosen``: what a user has picked (values)."""
    out = Filled(view)
    for variable in dashboard["templating"]["list"]:
        name, kind = variable["name"], variable["type"]
        picked = (chosen or {}).get(name)
        if kind == "datasource":
            out.values[name] = Value("prometheus", "Prometheus")
            continue
        if kind == "custom":
            raw = picked or variable["current"]["value"]
            out.values[name] = Value(raw, raw)
            continue
        query = out.into(variable["query"])
        out.queries.append((name, query))
        found = _sorted(_options(source, query, view, variable.get("regex", "")), variable.get("sort", 0))
        if variable.get("multi"):
            if picked is not None:
                options = [option for option in found if option[1] == picked] or [(picked, picked)]
                out.values[name] = Value(escaped(picked), options[0][0], options)
            else:
                everything = variable.get("allValue") or "(" + "|".join(escaped(value) for _, value in found) + ")"
                out.values[name] = Value(everything, "All", found)
            continue
        current = (variable.get("current") or {}).get("value")
        values = [value for _, value in found]
        raw = picked or (current if current in values else (values[0] if values else ""))
        text = next((text for text, value in found if value == raw), raw)
        out.values[name] = Value(raw, text, found)
    return out


@dataclass(frozen=True, slots=True)
class Placed:
    """A panel as it is shown: repeated rows unrolled, with the value that its row is repeated for."""

    panel: Mapping[str, Any]
    x: int
    y: int
    w: int
    h: int
    scoped: Mapping[str, Value]


def unrolled(dashboard: Mapping[str, Any], filled: Filled) -> Iterator[Placed]:
    """Every panel in reading order; a row with ``repeat`` comes once per value of its variable."""
    rows: list[list[Mapping[str, Any]]] = [[]]
    for panel in sorted(dashboard["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"])):
        if panel["type"] == "row":
            rows.append([panel])
        else:
            rows[-1].append(panel)
    shift = 0
    for panels in rows:
        if not panels:
            continue
        top = panels[0]["gridPos"]["y"]
        height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) - top
        repeat = panels[0].get("repeat") if panels[0]["type"] == "row" else None
        scopes: list[dict[str, Value]] = [{}]
        if repeat:
            scopes = [
                {repeat: Value(escaped(value), text, [(text, value)])} for text, value in filled.values[repeat].options
            ]
        for number, scope in enumerate(scopes):
            for panel in panels:
                place = panel["gridPos"]
                yield Placed(panel, place["x"], place["y"] + shift + number * height, place["w"], place["h"], scope)
        shift += (len(scopes) - 1) * height
