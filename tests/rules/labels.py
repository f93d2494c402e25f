"""Which labels the result of an expression carries, worked out from the catalogue; wrong matching raises.

Covers what our rules use.  Anything else raises, so that a new construct is thought about here first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import promql_parser as pq

from vllmeter.catalogue import BY_NAME, PREFIX

TARGET = frozenset({"job", "instance", "host"})
"""Labels that the scrape configuration gives to every series."""

LEVELS: Mapping[str, frozenset[str]] = {
    "server": TARGET | {"server"},
    "server_gpu": TARGET | {"server", "gpu", "uuid"},
    "server_scenario": TARGET | {"server", "scenario"},
    "gpu": TARGET | {"gpu", "uuid"},
    "host": TARGET,
    "model": frozenset({"job", "model_name"}),
}

COUNTER_FUNCTIONS = frozenset({"rate", "irate", "increase", "resets"})
SAME = frozenset(
    (
        "rate", "increase", "resets", "changes", "deriv", "clamp_min", "clamp_max", "round", "abs", "floor", "ceil",
        "min_over_time", "max_over_time", "avg_over_time", "sum_over_time", "last_over_time", "count_over_time",
        "timestamp",
    )
)  # fmt: skip
SET_OPERATORS = ("and", "or", "unless")


class LabelError(ValueError):
    """The expression joins or groups by labels that are not there."""


def kind_of(name: str) -> str:
    """``counter``, ``gauge``, ``bucket``, ``recorded`` or ``up``; raises KeyError for an unknown name."""
    if name == "up":
        return "up"
    if ":" in name:
        return "recorded"
    base = name.removeprefix(PREFIX)
    if name == base:
        raise KeyError(name)
    if base in BY_NAME and BY_NAME[base].exposed_type != "histogram":
        return BY_NAME[base].exposed_type
    for suffix in ("_bucket", "_sum", "_count"):
        family = BY_NAME.get(base.removesuffix(suffix))
        if base.endswith(suffix) and family is not None and family.exposed_type == "histogram":
            return "bucket" if suffix == "_bucket" else "counter"
    raise KeyError(name)


def walk(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node with the nodes above it, the nearest last."""
    yield node, above
    deeper = (*above, node)
    if isinstance(node, pq.BinaryExpr):
        children = [node.lhs, node.rhs]
    elif isinstance(node, (pq.AggregateExpr, pq.ParenExpr, pq.UnaryExpr, pq.SubqueryExpr)):
        children = [node.expr]
    elif isinstance(node, pq.Call):
        children = list(node.args)
    elif isinstance(node, pq.MatrixSelector):
        children = [node.vector_selector]
    else:
        children = []
    for child in children:
        yield from walk(child, deeper)


def selectors(node: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    for one, above in walk(node):
        if isinstance(one, pq.VectorSelector):
            yield one, above


def matchers(selector: Any) -> list[Any]:
    return list(selector.matchers.matchers)


def ranges(node: Any) -> list[timedelta]:
    return [
        one.range
        for one, _ in walk(node)
        if isinstance(one, (pq.MatrixSelector, pq.SubqueryExpr)) and one.range is not None
    ]


class Labels:
    """Infers labels; ``recorded`` maps recorded names to their expressions."""

    def __init__(self, recorded: Mapping[str, str]) -> None:
        self._recorded = recorded
        self._known: dict[str, frozenset[str] | None] = {}

    def of_name(self, name: str) -> frozenset[str]:
        kind = kind_of(name)
        if kind == "up":
            return TARGET
        if kind == "recorded":
            if name not in self._recorded:
                raise LabelError(f"{name} is recorded by no rule")
            if name not in self._known:
                self._known[name] = self.of(pq.parse(self._recorded[name]))
            labels = self._known[name]
            assert labels is not None
            return labels
        base = name.removeprefix(PREFIX)
        if base in BY_NAME and BY_NAME[base].exposed_type != "histogram":
            return TARGET | frozenset(BY_NAME[base].labels)
        for suffix in ("_bucket", "_sum", "_count"):
            if base.endswith(suffix) and base.removesuffix(suffix) in BY_NAME:
                extra = frozenset({"le"}) if suffix == "_bucket" else frozenset()
                return TARGET | frozenset(BY_NAME[base.removesuffix(suffix)].labels) | extra
        raise KeyError(name)

    def of(self, node: Any) -> frozenset[str] | None:
        """Labels of a vector; None for a scalar or string."""
        if isinstance(node, (pq.NumberLiteral, pq.StringLiteral)):
            return None
        if isinstance(node, (pq.ParenExpr, pq.UnaryExpr, pq.SubqueryExpr)):
            return self.of(node.expr)
        if isinstance(node, pq.MatrixSelector):
            return self.of(node.vector_selector)
        if isinstance(node, pq.VectorSelector):
            assert node.name is not None
            labels = self.of_name(node.name)
            unknown = {m.name for m in matchers(node)} - labels
            if unknown:
                raise LabelError(f"{node.name} has no label {', '.join(sorted(unknown))}")
            return labels
        if isinstance(node, pq.AggregateExpr):
            return self._aggregate(node)
        if isinstance(node, pq.Call):
            return self._call(node)
        if isinstance(node, pq.BinaryExpr):
            return self._binary(node)
        raise LabelError(f"unknown node {type(node).__name__}")

    def _aggregate(self, node: Any) -> frozenset[str]:
        inner = self.of(node.expr)
        assert inner is not None
        if node.modifier is None:
            return frozenset()
        named = frozenset(node.modifier.labels)
        if named - inner:
            raise LabelError(
                f"{node.modifier}: the operand has no {', '.join(sorted(named - inner))}: {node.expr.prettify()}"
            )
        return inner - named if "Without" in str(node.modifier.type) else named

    def _call(self, node: Any) -> frozenset[str] | None:
        name, args = node.func.name, list(node.args)
        if name in ("time", "vector", "scalar"):
            return None if name != "vector" else frozenset()
        if name in ("absent", "absent_over_time"):
            selector = args[0].vector_selector if isinstance(args[0], pq.MatrixSelector) else args[0]
            return frozenset(m.name for m in matchers(selector) if str(m.op).endswith("Equal"))
        if name == "histogram_quantile":
            inner = self.of(args[1])
            if inner is None or "le" not in inner:
                raise LabelError("histogram_quantile over series without le")
            return inner - {"le"}
        if name == "label_replace":
            inner = self.of(args[0])
            assert inner is not None
            return inner | {args[1].val}
        if name in SAME:
            return self.of(args[0])
        raise LabelError(f"unknown function {name}")

    def _binary(self, node: Any) -> frozenset[str] | None:
        left, right = self.of(node.lhs), self.of(node.rhs)
        if left is None or right is None:
            return left if left is not None else right
        operator, modifier = str(node.op), node.modifier
        matching = modifier.matching if modifier is not None else None
        if matching is None:
            if left != right:
                raise LabelError(
                    f"{operator} between {sorted(left)} and {sorted(right)} without on or ignoring:\n{node.prettify()}"
                )
            return left
        named = frozenset(matching.labels)
        including = "Include" in str(matching.type)
        if including:
            for side, labels in (("left", left), ("right", right)):
                if named - labels:
                    raise LabelError(f"on ({', '.join(sorted(named))}): the {side} side has only {sorted(labels)}")
            key = named
        else:
            if named - (left | right):
                raise LabelError(f"ignoring ({', '.join(sorted(named))}): neither side has it")
            if left - named != right - named:
                raise LabelError(f"ignoring ({', '.join(sorted(named))}) leaves {sorted(left)} and {sorted(right)}")
            key = left - named
        if operator == "or":
            if left != right:
                raise LabelError("or between different labels")
            return left
        if operator in SET_OPERATORS:
            return left
        card = str(modifier.card)
        group = frozenset(modifier.group_labels or ())
        if card.endswith("ManyToOne"):
            if right - key - group and including and not group <= right:
                raise LabelError(f"group_left ({', '.join(sorted(group))}) takes labels that the right side lacks")
            return left | group
        if card.endswith("OneToMany"):
            return right | group
        return key
