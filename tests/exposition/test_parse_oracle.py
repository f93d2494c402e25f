"""Our parser against prometheus_client's on generated documents and on damaged real ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from exposition.documents import Document, Sample, documents
from upstream import bodies
from vllmeter.exposition.parse import Exposition, ParseError, Parser

TEXT = "text/plain; version=1.0.0; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

bounded = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _said(exposition: Exposition) -> list[Sample]:
    return [
        (series.name, dict(series.labels), value)
        for series, value in zip(exposition.series, exposition.values, strict=True)
    ]


def _same(left: list[Sample], right: list[Sample]) -> bool:
    return len(left) == len(right) and all(
        a[0] == b[0] and a[1] == b[1] and (a[2] == b[2] or (math.isnan(a[2]) and math.isnan(b[2])))
        for a, b in zip(left, right, strict=True)
    )


def _oracle(document: Document, *, openmetrics: bool) -> list[Sample]:
    families = openmetrics_families(document.text) if openmetrics else text_families(document.text)
    return [(s.name, dict(s.labels), float(s.value)) for family in families for s in family.samples]


@bounded
@given(documents(openmetrics=False))
def test_text_agrees_with_prometheus_client(document: Document) -> None:
    """Names, labels and values of a text document are those of prometheus_client and those it was made from."""
    said = _said(Parser().parse(document.text.encode(), TEXT))
    assert _same(said, list(document.samples))
    assert _same(said, _oracle(document, openmetrics=False))


@bounded
@given(documents(openmetrics=True))
def test_openmetrics_agrees_with_prometheus_client(document: Document) -> None:
    """Names, labels and values of an OpenMetrics document are those of prometheus_client and those it was made from."""
    said = _said(Parser().parse(document.text.encode(), OPENMETRICS))
    assert _same(said, list(document.samples))
    assert _same(said, _oracle(document, openmetrics=True))


@bounded
@given(st.one_of(documents(openmetrics=False), documents(openmetrics=True)))
def test_families_and_types(document: Document) -> None:
    """Samples have their declared family and type; help texts are unescaped as prometheus_client does."""
    openmetrics = document.text.endswith("# EOF\n")
    exposition = Parser().parse(document.text, OPENMETRICS if openmetrics else TEXT)
    assert {name: meta.kind for name, meta in exposition.families.items()} == {
        name: "unknown" if kind == "untyped" else kind for name, kind in document.types.items()
    }
    for series in exposition.series:
        assert series.family in document.types
        assert series.name.startswith(series.family)
        assert series.kind == exposition.families[series.family].kind
    families = (openmetrics_families if openmetrics else text_families)(document.text)
    helps = {family.name: family.documentation for family in families}
    for name, meta in exposition.families.items():
        base = name.removesuffix("_total") if meta.kind == "counter" else name
        assert meta.help == helps[base]


@st.composite
def _scrapes(draw: st.DrawFn) -> list[str]:
    """Successive bodies: new values, new and lost lines, damage, other documents."""
    text = draw(documents(openmetrics=False)).text
    out = [text]
    for _ in range(draw(st.integers(1, 5))):
        lines = text.split("\n")
        at = draw(st.integers(0, max(0, len(lines) - 2)))
        step = draw(st.sampled_from(["value", "value", "value", "drop", "twice", "damage", "other", "swap"]))
        if step == "value":
            head, _, _ = lines[at].rpartition(" ")
            lines[at] = f"{head} {draw(st.sampled_from(['1', '2.5', 'NaN', '1 2', 'x', '0x1', '1_0', '1e3 ']))}"
        elif step == "drop":
            del lines[at]
        elif step == "twice":
            lines.insert(at, lines[at])
        elif step == "damage":
            cut = draw(st.integers(0, len(lines[at])))
            lines[at] = (
                lines[at][:cut] + draw(st.sampled_from(['"', "{", "}", " ", "\\", "#", "é", "1"])) + lines[at][cut:]
            )
        elif step == "swap" and len(lines) > 2:
            lines[0], lines[at] = lines[at], lines[0]
        else:
            lines = draw(documents(openmetrics=False)).text.split("\n")
        text = "\n".join(lines)
        out.append(text)
    return out


def _outcome(parser: Parser, text: str) -> Exposition | str:
    try:
        return parser.parse(text, TEXT)
    except ParseError as error:
        return str(error)


@bounded
@given(_scrapes())
def test_what_was_parsed_before_changes_nothing(scrapes: list[str]) -> None:
    """A parser that has seen earlier bodies says exactly what a new one says, errors included."""
    parser = Parser()
    for text in scrapes:
        warm = _outcome(parser, text)
        cold = _outcome(Parser(), text)
        if isinstance(warm, str) or isinstance(cold, str):
            assert warm == cold
        else:
            assert _same(_said(warm), _said(cold))
            assert warm.series == cold.series
            assert warm.families == cold.families


_BODY = bodies.load("vllm-0.26.0-h200-rerank-under-pressure.prom").text


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, len(_BODY) - 1), st.integers(0, 12), st.sampled_from(["", "\x00", '"', "}", " 5", "\n", "é", "\\"])
)
def test_damaged_bodies_raise_nothing_else(at: int, cut: int, put: str) -> None:
    """Whatever happens to a body, the answer is a reading or a ParseError; warm and cold agree about it."""
    damaged = _BODY[:at] + put + _BODY[at + cut :]
    warm = Parser()
    warm.parse(_BODY, TEXT)
    first, second = _outcome(warm, damaged), _outcome(Parser(), damaged)
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
    else:
        assert _same(_said(first), _said(second))


@pytest.mark.parametrize("name", [name for name in bodies.names() if name.endswith(".prom")])
def test_captured_bodies_agree_with_prometheus_client(name: str) -> None:
    """Every sample of every captured text body is the same through both parsers."""
    body = bodies.load(name)
    document = Document(body.text, (), {})
    assert _same(_said(Parser().parse(body.text.encode(), body.content_type)), _oracle(document, openmetrics=False))
