"""Hypothesis strategies for whole exposition documents, with the samples that they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import strategies as st

Sample = tuple[str, dict[str, str], float]


@dataclass(frozen=True)
class Document:
    """Text of a body and what it says, in order."""

    text: str
    samples: tuple[Sample, ...]
    types: dict[str, str]


_NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True).filter(
    # Suffixes decide about families; they are put on by the generator where they belong.
    lambda name: not name.endswith(("_total", "_created", "_sum", "_count", "_bucket", "_info", "_gsum", "_gcount"))
)
_LABEL_NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: name not in ("le", "quantile")
)
_CHARACTERS = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))
_VALUES = st.text(st.one_of(st.sampled_from('\\\n"{}=, #é'), _CHARACTERS), max_size=8)
_HELP = st.text(st.one_of(st.sampled_from('\\\n" #'), _CHARACTERS), max_size=12).map(
    # Blanks at the ends are not part of a help text, and prometheus_client also folds what Unicode calls blank.
    lambda text: "".join(c for c in text if c in " \n" or not c.isspace()).strip()
)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str, *, openmetrics: bool) -> str:
    return _escape(text) if openmetrics else text.replace("\\", "\\\\").replace("\n", "\\n")


@st.composite
def _number(draw: st.DrawFn, *, natural: bool = False) -> tuple[str, float]:
    """A number as text and as value, in one of the spellings that both formats allow."""
    if natural:
        value = float(draw(st.integers(0, 10**9)))
    else:
        value = draw(st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-(10**6), 10**6).map(float)))
    if math.isnan(value):
        return "NaN", value
    if math.isinf(value):
        return ("+Inf" if value > 0 else "-Inf"), value
    spellings = [repr(value), f"{value:.17e}", f"{value:.17E}", f"{value:.17g}"]
    if value.is_integer() and abs(value) < 1e15:
        spellings += [str(int(value)), f"{int(value)}.", f"{int(value):+d}"]
    return draw(st.sampled_from(spellings)), value


@st.composite
def _labels(draw: st.DrawFn) -> dict[str, str]:
    return draw(st.dictionaries(_LABEL_NAMES, _VALUES, max_size=3))


@st.composite
def documents(draw: st.DrawFn, *, openmetrics: bool) -> Document:
    """A valid document: families with and without TYPE and HELP, every kind of sample, odd but legal spellings."""
    lines: list[str] = []
    samples: list[Sample] = []
    types: dict[str, str] = {}
    kinds = ["counter", "gauge", "histogram", "summary", "untyped"]
    if openmetrics:
        kinds = ["counter", "gauge", "histogram", "summary", "unknown", "info"]
    # In OpenMetrics all samples of a metric have a timestamp or none has.
    stamp = draw(st.sampled_from(["", " 1600000000", " 1600000000.123"]))
    bases = draw(st.lists(_NAMES, max_size=5, unique_by=str.lower))
    for base in bases:
        kind = draw(st.sampled_from(kinds))
        family = base + "_total" if kind == "counter" and not openmetrics else base
        if draw(st.booleans()):
            lines.append(f"# HELP {family} {_escape_help(draw(_HELP), openmetrics=openmetrics)}")
        lines.append(f"# TYPE {family} {kind}")
        types[family] = kind
        children = draw(st.lists(_labels(), max_size=3, unique_by=lambda labels: frozenset(labels.items())))
        for labels in children:
            for name, extra, natural in _members(draw, kind, base, openmetrics=openmetrics):
                text, value = draw(_number(natural=natural))
                if kind == "info":
                    text, value = "1", 1.0
                together = {**labels, **extra}
                lines.append(_line(draw, name, together, text, stamp=stamp if openmetrics else None))
                samples.append((name, together, value))
        if not openmetrics and draw(st.booleans()):
            lines.append(draw(st.sampled_from(["", "# a comment", "#", "  "])))
    lines.append("# EOF" if openmetrics else "# the end")
    return Document("\n".join(lines) + "\n", tuple(samples), types)


def _members(draw: st.DrawFn, kind: str, base: str, *, openmetrics: bool) -> list[tuple[str, dict[str, str], bool]]:
    """Sample names, their own labels, and whether the value must be a natural number, of one child of a family."""
    if kind == "counter":
        return [(base + "_total", {}, True)]
    if kind == "info":
        return [(base + "_info", {}, True)]
    if kind == "summary":
        return [(base, {"quantile": "0.5"}, True), (base + "_sum", {}, True), (base + "_count", {}, True)]
    if kind == "histogram":
        bounds = sorted(draw(st.lists(st.sampled_from([0.1, 0.25, 1.0, 2.5, 10.0]), max_size=3, unique=True)))
        out = [(base + "_bucket", {"le": repr(bound)}, True) for bound in bounds]
        if openmetrics:
            # Here the parser of prometheus_client checks the numbers against each other, so there is one bucket.
            out = []
        return [*out, (base + "_bucket", {"le": "+Inf"}, True)]
    return [(base, {}, False)]


def _coin(draw: st.DrawFn) -> bool:
    return draw(st.booleans())


def _line(draw: st.DrawFn, name: str, labels: dict[str, str], value: str, *, stamp: str | None) -> str:
    """One sample line; ``stamp`` is OpenMetrics's timestamp, None writes text format with its odd blanks."""
    pairs = [f'{label}="{_escape(text)}"' for label, text in labels.items()]
    if stamp is not None:
        line = name + ("{" + ",".join(pairs) + "}" if pairs or _coin(draw) else "") + " " + value + stamp
        if "_bucket" in name and draw(st.booleans()):
            line += ' # {trace="a b#}"} 0.5' + draw(st.sampled_from(["", " 1600000000.5"]))
        return line
    blank = st.sampled_from(["", " ", "\t", "  "]) if draw(st.booleans()) else st.just("")
    text = draw(blank) + name + draw(blank)
    if pairs or _coin(draw):
        comma = draw(st.sampled_from(["", ","])) if pairs else ""
        text += "{" + (draw(blank) + "," + draw(blank)).join(pairs) + comma + "}"
    line = text + draw(st.sampled_from([" ", "  ", "\t"])) + value
    if draw(st.booleans()):
        line += " " + draw(st.sampled_from(["1600000000000", "-5", "0"]))
    return line + draw(blank)
