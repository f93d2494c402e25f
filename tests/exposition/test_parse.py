"""The parser's rules one by one: what it reads, what it refuses and where, what it remembers."""

from __future__ import annotations

import math

import pytest

from upstream import bodies
from vllmeter.exposition.parse import ParseError, Parser

TEXT = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def error(body: bytes | str, content_type: str | None = TEXT) -> ParseError:
    with pytest.raises(ParseError) as caught:
        Parser().parse(body, content_type)
    return caught.value


# --------------------------------------------------------------------------- grammar


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1.0),
        ("-0", 0.0),
        ("+1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1.25E-3", 0.00125),
        ("+Inf", math.inf),
        ("-Inf", -math.inf),
        ("inf", math.inf),
        ("Infinity", math.inf),
        ("1.79612907488e+09", 1796129074.88),
    ],
)
def test_numbers(written: str, value: float) -> None:
    """Numbers are read in every spelling that Prometheus knows."""
    assert Parser().parse(f"a {written}\n").values == [value]


def test_nan() -> None:
    """NaN is a value, not an error."""
    (value,) = Parser().parse("a NaN\n").values
    assert math.isnan(value)


@pytest.mark.parametrize("written", ["", "x", "0x10", "1_000", "١", "1,5", "--1", "e5", ".", "+nan", "1e", "1.0\r"])
def test_words_that_are_no_number(written: str) -> None:
    """Spellings that only Python would take for a number, or nobody, are refused with the line."""
    assert error(f"a 1\nb {written}\n").line_number == 2


def test_label_escapes() -> None:
    """Backslash, quote and line feed are unescaped; braces, commas, blanks and '#' in a value are plain text."""
    body = 'a{x="\\\\n\\n\\"",y="}, # {=",z="\\q"} 1\n'
    (series,) = Parser().parse(body, TEXT).series
    assert series.labels == (("x", '\\n\n"'), ("y", "}, # {="), ("z", "\\q"))


def test_blanks_between_tokens() -> None:
    """Text format allows blanks and tabs around every token and a comma after the last label."""
    exposition = Parser().parse('  a\t{ x = "1" , y="2", }\t 3  1600000000000 \n', TEXT)
    assert exposition.series[0].labels == (("x", "1"), ("y", "2"))
    assert exposition.values == [3.0]


def test_quoted_names() -> None:
    """Format 1.0.0 writes names that are not plain in quotes inside the braces."""
    exposition = Parser().parse('# TYPE "my.metric" gauge\n{"my.metric","la.bel"="x",b="y"} 1\n', TEXT)
    (series,) = exposition.series
    assert (series.name, series.kind) == ("my.metric", "gauge")
    assert series.labels == (("b", "y"), ("la.bel", "x"))


def test_exemplars_and_timestamps_of_openmetrics() -> None:
    """Exemplars and timestamps are checked and dropped."""
    body = 'a_bucket{le="+Inf"} 1 1600000000.5 # {id="x y"} 0.3 1600000000\na_total 2 # {} 1\n# EOF\n'
    exposition = Parser().parse(body, OPENMETRICS)
    assert exposition.values == [1.0, 2.0]
    assert exposition.series[0].labels == (("le", "+Inf"),)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ",
        "1a 1",
        "a{ 1",
        'a{x="1 1',
        'a{x="1"',
        "a{x=1} 1",
        "a{x} 1",
        'a{x="1" y="2"} 1',
        'a{1x="1"} 1',
        'a{x="1",x="2"} 1',
        'a{"b"} 1',
        "a{,} 1",
        "a-b 1",
        "{} 1",
        "a 1 2 3",
        "a 1 x",
        "a 1 NaN",
        'a 1 # {x="1"} 1',
        '{"a","b"} 1',
        "# TYPE a",
        "# TYPE a gauge counter",
        "# TYPE 1a gauge",
        "# HELP",
        "<html>",
    ],
)
def test_lines_that_break_the_grammar(line: str) -> None:
    """A broken line fails the body and is named by its number."""
    found = error(f"good 1\n{line}\n")
    assert found.line_number == 2
    assert str(found).startswith("line 2: ")


@pytest.mark.parametrize(
    "line", ["a 1 # x 1", 'a 1 # {x="1"}', 'a 1 # {x="1"} y', "a 1 # {} 1 2 3", 'a 1 # {"b"} 1', "a {count:1} 2"]
)
def test_broken_exemplars(line: str) -> None:
    """An exemplar that is not complete fails the body."""
    assert error(f"{line}\n# EOF\n", OPENMETRICS).line_number == 1


# --------------------------------------------------------------------------- families


def test_samples_find_their_family_in_both_formats() -> None:
    """Text declares ``x_total counter``, OpenMetrics ``x counter``; both say counter."""
    text = Parser().parse("# TYPE x_total counter\nx_total 1\n# TYPE x_created gauge\nx_created 2\n", TEXT)
    assert [(s.family, s.kind) for s in text.series] == [("x_total", "counter"), ("x_created", "gauge")]
    other = Parser().parse("# TYPE x counter\nx_total 1\nx_created 2\n# EOF\n", OPENMETRICS)
    assert [(s.family, s.kind) for s in other.series] == [("x", "counter"), ("x", "counter")]


def test_histogram_whose_name_ends_in_total() -> None:
    """vLLM's iteration_tokens_total is a histogram; its samples belong to it and are no counters."""
    body = '# TYPE i_total histogram\ni_total_bucket{le="+Inf"} 1\ni_total_sum 2\ni_total_count 1\n# EOF\n'
    for content_type in (TEXT, OPENMETRICS):
        assert {(s.family, s.kind) for s in Parser().parse(body, content_type).series} == {("i_total", "histogram")}


def test_suffix_of_another_type_does_not_count() -> None:
    """``x_sum`` beside a gauge ``x`` is a metric of its own."""
    exposition = Parser().parse("# TYPE x gauge\nx 1\nx_sum 2\n", TEXT)
    assert [(s.family, s.kind) for s in exposition.series] == [("x", "gauge"), ("x_sum", "unknown")]


def test_families_without_samples_are_kept() -> None:
    """A declared family without a sample is listed: it tells "not yet" from "never"."""
    families = Parser().parse("# HELP a Some\\nhelp.\n# TYPE a gauge\n", TEXT).families
    assert (families["a"].kind, families["a"].help) == ("gauge", "Some\nhelp.")


def test_unit_lines() -> None:
    """OpenMetrics UNIT lines are read."""
    families = Parser().parse("# TYPE a_seconds gauge\n# UNIT a_seconds seconds\n# EOF\n", OPENMETRICS).families
    assert families["a_seconds"].unit == "seconds"


def test_unknown_type_words_do_not_fail() -> None:
    """A type that only a newer format knows makes the family unknown; its samples count."""
    exposition = Parser().parse("# TYPE a hologram\na 1\n# EOF\n", OPENMETRICS)
    assert (exposition.series[0].kind, list(exposition.values)) == ("unknown", [1.0])


# --------------------------------------------------------------------------- refused bodies


def test_duplicate_series() -> None:
    """The same series twice is refused at its second line, also with its labels in another order."""
    assert error('a{x="1",y="2"} 1\nb 1\na{y="2",x="1"} 2\n').line_number == 3
    assert error("a 1\n\n# comment\na 1\n").line_number == 4


def test_types_that_disagree() -> None:
    """Two types for one family are refused; the same type twice is not."""
    assert error("# TYPE a gauge\na 1\n# TYPE a counter\n").line_number == 3
    assert Parser().parse("# TYPE a gauge\na 1\n# TYPE a gauge\n", TEXT).values == [1.0]


@pytest.mark.parametrize("body", ["a 1\n# TYPE a gauge\n", 'a_bucket{le="1"} 1\n# TYPE a histogram\n'])
def test_type_after_its_samples(body: str) -> None:
    """A type that comes after samples of its family is refused: they were read without it."""
    assert error(body).line_number == 2


def test_text_that_was_cut_off() -> None:
    """A last line without line feed may be a number cut in half."""
    found = error("a 1\nb 123")
    assert found.line_number == 2
    assert "cut off" in found.message


@pytest.mark.parametrize("body", ["a 1\n", "a 1\n# EO", "", "a 1\n# EOF\nb 2\n", "a 1\n# EOF\nb 2", "# EOF\n# EOF\n"])
def test_openmetrics_needs_its_end(body: str) -> None:
    """OpenMetrics without ``# EOF``, or with anything after it, is refused."""
    assert error(body, OPENMETRICS).line_number >= 1


def test_openmetrics_end_without_line_feed() -> None:
    """The line feed after ``# EOF`` may be missing."""
    assert Parser().parse("a 1\n# EOF", OPENMETRICS).values == [1.0]


def test_bytes_that_are_not_utf8() -> None:
    """Bytes that are not UTF-8 are refused with the line they stand in."""
    found = error(b'a 1\nb{x="\xff"} 1\n')
    assert found.line_number == 2
    assert "UTF-8" in found.message


def test_too_many_lines() -> None:
    """A body with more lines than allowed is refused before it costs anything."""
    with pytest.raises(ParseError, match="more than 3 lines"):
        Parser(max_lines=3).parse("a 1\nb 1\nc 1\n", TEXT)


def test_empty_body_is_an_empty_reading() -> None:
    """No line is no error in text: a registry may be empty."""
    assert Parser().parse(b"", TEXT).series == ()


@pytest.mark.parametrize("line", ["# TYPE c_total counter\nc_total -1\n", "# TYPE c_total counter\nc_total NaN\n"])
def test_negative_and_missing_counters_pass(line: str) -> None:
    """A counter that is negative or NaN is a broken series, not a broken body: the normaliser leaves it out."""
    assert len(Parser().parse(line, TEXT).values) == 1


# --------------------------------------------------------------------------- which format


def test_format_by_content_type_or_by_the_end() -> None:
    """The Content-Type decides; where it tells nothing (0.8.5 says JSON), ``# EOF`` does."""
    openmetrics = "# TYPE x counter\nx_total 1\n# EOF\n"
    assert not Parser().parse(openmetrics, TEXT).shape.openmetrics
    assert Parser().parse(openmetrics, "Application/OpenMetrics-Text;charset=utf-8").shape.openmetrics
    assert Parser().parse(openmetrics, None).shape.openmetrics
    assert Parser().parse(openmetrics, "application/json").shape.openmetrics
    assert not Parser().parse("a 1\n", "application/json").shape.openmetrics


# --------------------------------------------------------------------------- memory between bodies


def test_same_shape_is_the_same_object() -> None:
    """Bodies that differ only in values share one shape, also when a line has a timestamp."""
    parser = Parser()
    first = parser.parse('# HELP a x\na{x="1"} 1\nb 2 1600000000000\n', TEXT)
    second = parser.parse('# HELP a x\na{x="1"} 5\nb 2 1600000000000\n', TEXT)
    third = parser.parse('# HELP a x\na{x="1"} 5\nb 3 1600000001000\n', TEXT)
    assert first.shape is second.shape is third.shape
    assert (first.values, second.values, third.values) == ([1.0, 2.0], [5.0, 2.0], [5.0, 3.0])


def test_new_series_make_a_new_shape() -> None:
    """A line more, a line less or another type is another shape."""
    parser = Parser()
    shapes = [
        parser.parse(body, TEXT).shape
        for body in ("a 1\n", "a 1\nb 1\n", "b 1\n", "# TYPE b gauge\nb 1\n", "# TYPE b counter\nb 1\n")
    ]
    assert len({id(shape) for shape in shapes}) == len(shapes)
    assert [series.kind for series in shapes[-1].series] == ["counter"]


def test_values_of_earlier_bodies_stay() -> None:
    """An exposition that was handed out is not changed by the next body."""
    parser = Parser()
    first = parser.parse("a 1\nb 1\n", TEXT)
    parser.parse("a 2\nb 1\n", TEXT)
    assert first.values == [1.0, 1.0]


def test_timestamp_that_appears_is_read_as_such() -> None:
    """A known series that suddenly has a timestamp keeps its value and does not take the timestamp for it."""
    parser = Parser()
    parser.parse("a 1\n", TEXT)
    assert parser.parse("a 2 1600000000000\n", TEXT).values == [2.0]


def test_error_drops_what_was_known_and_the_next_body_is_read() -> None:
    """After a broken body the next good one is read in full."""
    parser = Parser()
    parser.parse("a 1\nb 1\n", TEXT)
    with pytest.raises(ParseError):
        parser.parse("a x\nb 1\n", TEXT)
    assert parser.parse("a 3\nb 4\n", TEXT).values == [3.0, 4.0]


def test_format_change_is_a_new_shape() -> None:
    """A server that changes its format is read by the rules of the new one."""
    parser = Parser()
    text = parser.parse("a 1\n# EOF\n", TEXT)
    openmetrics = parser.parse("a 1\n# EOF\n", OPENMETRICS)
    assert openmetrics.shape is not text.shape
    assert openmetrics.shape.openmetrics


def test_large_bodies_leave_nothing_behind() -> None:
    """What is remembered is bounded: a body over the limit is read anew each time, with the same result."""
    parser = Parser(max_remembered_lines=3)
    first = parser.parse("a 1\nb 1\nc 1\n", TEXT)
    second = parser.parse("a 2\nb 1\nc 1\n", TEXT)
    assert first.shape is not second.shape
    assert second.values == [2.0, 1.0, 1.0]


def test_successive_captures_share_a_shape() -> None:
    """Two real bodies of one server state differ only in values and are recognised as one shape."""
    body = bodies.load("vllm-0.32.0-cpu-generate-under-load.prom")
    parser = Parser()
    first = parser.parse(body.text.encode(), body.content_type)
    moved = body.text.replace("\nprocess_cpu_seconds_total ", "\nprocess_cpu_seconds_total 1")
    second = parser.parse(moved.encode(), body.content_type)
    assert first.shape is second.shape
    assert sum(a != b for a, b in zip(first.values, second.values, strict=True)) == 1
