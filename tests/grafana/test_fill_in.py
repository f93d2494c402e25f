"""Variables and macros are filled in as Grafana does it."""

from __future__ import annotations

from typing import Any

import pytest

from grafana.from_source import fill_in


class Store:
    """Answers from tables."""

    def __init__(self, labels: dict[str, list[str]], vector: list[dict[str, Any]] | None = None) -> None:
        self.labels, self.vector = labels, vector or []
        self.asked: list[tuple[str, Any]] = []

    def get(self, path: str, **parameters: Any) -> Any:
        self.asked.append((path, parameters))
        return self.labels[path.split("/")[1]]

    def instant(self, expr: str, at: float) -> list[dict[str, Any]]:
        self.asked.append((expr, at))
        return self.vector

    def range(self, expr: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        raise AssertionError


VIEW = fill_in.View(1000, 4600, 15, 5)


def variable(name: str, query: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "query", "query": query, **more}


def fill(store: Store, *variables: dict[str, Any], chosen: dict[str, str] | None = None) -> Any:
    return fill_in.fill({"templating": {"list": list(variables)}}, store, VIEW, chosen)


@pytest.mark.parametrize(
    "step, scrape, expected",
    [(15, 5, "20s"), (1, 5, "20s"), (60, 5, "65s"), (15, 15, "60s")],
)
def test_rate_interval(step: float, scrape: float, expected: str) -> None:
    """The larger of step + scrape interval and four scrape intervals."""
    filled = fill_in.Filled(fill_in.View(0, 3600, step, scrape))
    assert filled.into("x[$__rate_interval] y[${__range}] z[$__interval]") == f"x[{expected}] y[3600s] z[{step}s]"


def test_all_and_one() -> None:
    """All gives the value that the variable names for it, one choice gives itself, escaped for a regular expression."""
    multi = variable("server", "label_values(up, server)", multi=True, allValue=".*", sort=1)
    store = Store({"server": ["b.c", "a"]})
    filled = fill(store, multi)
    assert filled.into('{s=~"$server"}') == '{s=~".*"}'
    assert filled.values["server"].options == [("a", "a"), ("b.c", "b.c")]
    assert fill(store, multi, chosen={"server": "b.c"}).into('{s=~"$server"}') == '{s=~"b\\\\.c"}'


def test_all_without_a_value_of_its_own() -> None:
    """All is then the list of the options."""
    multi = variable("card", "label_values(up, card)", multi=True, sort=1)
    assert fill(Store({"card": ["a", "b"]}), multi).into('{c=~"$card"}') == '{c=~"(a|b)"}'


def test_variables_depend_on_earlier_ones() -> None:
    """A variable's query sees the values of those before it."""
    store = Store({"a": ["one"], "b": ["two"]})
    fill(store, variable("first", "label_values(a)"), variable("second", 'label_values(x{f="$first"}, b)'))
    assert store.asked[1][1]["match[]"] == 'x{f="one"}'


def test_current_choice_only_while_it_exists() -> None:
    """A stored choice that is no option any more gives way to the first option."""
    query = variable("le", "label_values(x, le)", sort=3, current={"value": "1.0"})
    assert fill(Store({"le": ["10.0", "1.0", "2.5"]}), query).values["le"].raw == "1.0"
    assert fill(Store({"le": ["10.0", "2.5"]}), query).values["le"].raw == "2.5"
    assert fill(Store({"le": []}), query).values["le"].raw == ""


def test_named_groups_of_a_regular_expression() -> None:
    """query_result lines are taken apart by the groups text and value."""
    vector = [{"metric": {"__name__": "g", "shown": "h · 0", "uuid": "GPU-1"}, "value": [1, "1"]}]
    query = variable(
        "gpu",
        "query_result(g)",
        multi=True,
        allValue=".*",
        regex='/shown="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/',
    )
    assert fill(Store({}, vector), query).values["gpu"].options == [("h · 0", "GPU-1")]


def test_numbers_of_a_query() -> None:
    """A hidden variable reads a number, its sign and no fraction."""
    vector = [{"metric": {}, "value": [1, "-200.75"]}]
    query = variable("shift", "query_result(vector(1))", regex="/} (-?[0-9]+)/")
    assert fill(Store({}, vector), query).values["shift"].raw == "-200"


def test_unknown_names_stay() -> None:
    """What is no variable is left alone, so that it shows."""
    assert fill(Store({})).into("$nothing ${__value.text}") == "$nothing ${__value.text}"
