"""Numbers as text, the same in all reports."""

from __future__ import annotations

from vllmeter.runs.compare import Row, Value
from vllmeter.runs.metrics import Metric
from vllmeter.runs.verdict import Verdict, Word

NOTHING = "–"


def number(value: float, unit: str) -> str:
    """A value with its unit: three significant digits, ms below a second."""
    if unit == "s":
        if value == 0:
            return "0 s"
        if abs(value) < 1e-3:
            return f"{_three(value * 1e6)} µs"
        return f"{_three(value * 1e3)} ms" if abs(value) < 1 else f"{_three(value)} s"
    if unit == "ratio":
        return f"{value:.1%}"
    if unit == "bytes":
        return f"{value / 2**30:.2f} GiB"
    if unit == "count":
        return f"{value:.0f}" if value == round(value) else f"{value:.1f}"
    suffix = {"tokens/s": " tok/s", "requests/s": " req/s"}.get(unit, f" {unit}")
    return _three(value) + suffix


def _three(value: float) -> str:
    """Three significant digits, trailing zeros kept: 3.00, 73.4, 170, 2601."""
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def tick(value: float, unit: str) -> str:
    """A round number of an axis."""
    if unit == "s" and value:
        for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
            if abs(value) * factor >= 0.9995:
                return f"{value * factor:.4g} {name}"
    return number(value, unit)


def value_text(metric: Metric, value: Value) -> str:
    """The value of a column; bounds where only bounds are known; a dash where nothing is."""
    if value.value is None and value.low is not None and value.high is not None:
        return f"{number(value.low, metric.unit)} to {number(value.high, metric.unit)}"
    if value.value is None:
        return NOTHING
    text = number(value.value, metric.unit)
    if value.low is not None and value.high is not None and value.low != value.high:
        text += f" ({number(value.low, metric.unit)} to {number(value.high, metric.unit)})"
    return text


def difference_text(verdict: Verdict | None) -> str:
    """The difference in percent with its 95 % interval."""
    if verdict is None or verdict.ratio is None:
        return NOTHING
    text = f"{(verdict.ratio - 1) * 100:+.1f} %"
    if verdict.low is not None and verdict.high is not None:
        text += f" [{(verdict.low - 1) * 100:+.0f}, {(verdict.high - 1) * 100:+.0f}]"
    return text


def effective_text(verdict: Verdict | None) -> str:
    """Effective n of the two sides."""
    if verdict is None or verdict.word is Word.NOT_MEASURED:
        return NOTHING
    sides = ("?" if each is None else f"{each:.0f}" for each in (verdict.effective_a, verdict.effective_b))
    return " / ".join(sides)


def plain_difference(row: Row, index: int) -> str:
    """The difference in percent of a metric without verdict, as far as two numbers give one."""
    a, b = row.values[0].value, row.values[index].value
    if a is None or b is None or a == b:
        return NOTHING
    if row.metric.unit == "ratio":
        return f"{(b - a) * 100:+.1f} points"
    if row.metric.unit == "count":
        return f"{b - a:+.0f}"
    return f"{(b / a - 1) * 100:+.1f} %" if a > 0 else NOTHING


def difference(row: Row, index: int) -> str:
    """The difference of candidate ``index`` (column number) for any row."""
    verdict = row.verdicts[index - 1]
    return difference_text(verdict) if verdict is not None else plain_difference(row, index)


def word_text(verdict: Verdict | None) -> str:
    """The verdict in words, "" where none is meant."""
    return "" if verdict is None else verdict.word.value
