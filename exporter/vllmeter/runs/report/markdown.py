"""A comparison as Markdown, for pull requests and notes."""

from __future__ import annotations

from collections.abc import Iterator

from vllmeter.runs.compare import Comparison, Section, Table
from vllmeter.runs.report.values import NOTHING, difference, effective_text, number, value_text, word_text


def markdown(comparison: Comparison) -> str:
    """The whole comparison."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    base, *candidates = comparison.names
    yield f"# {base} against {', '.join(candidates)}"
    yield ""
    yield f"Baseline: {base}. Smallest relevant effect: {comparison.relevant:.0%}. Intervals are 95 %."
    for problem in comparison.problems:
        yield f"\n> {problem}"
    for table in comparison.tables:
        yield ""
        yield from _table(table)
    for section in comparison.sections:
        yield ""
        yield from _section(section)


def _table(table: Table) -> Iterator[str]:
    where = f" ({table.server})" if table.server else ""
    yield f"## {table.metric.title}, {table.metric.side}{where}"
    yield ""
    yield "| | " + " | ".join(_cell(name) for name in table.scenarios) + " |"
    yield "|---|" + "---:|" * len(table.scenarios)
    for candidate in table.candidates:
        cells = []
        for scenario in table.scenarios:
            cell = table.cells.get((candidate, scenario))
            text = NOTHING if cell is None or cell.value is None else number(cell.value, table.metric.unit)
            cells.append(f"**{text}** (best)" if cell is not None and cell.best else text)
        yield f"| {_cell(candidate)} | " + " | ".join(cells) + " |"
    for note in table.notes:
        yield f"\nNo best for {note}."


def _section(section: Section) -> Iterator[str]:
    where = f"{section.server}, " if section.server else ""
    yield f"## {where}{section.scenario}"
    yield ""
    for conclusion in section.conclusions:
        yield f"**{conclusion.candidate}: {conclusion.word}**"
        yield ""
        for reason in conclusion.reasons:
            yield f"- {reason}"
        yield f"- {conclusion.attribution.text()}"
        for each in conclusion.attribution.differences:
            if not each.counts:
                yield f"- also differs, without counting as a change: {each.text()}"
        for name in conclusion.attribution.unknown:
            yield f"- not known, so not compared: {name}"
        yield ""
    base, *candidates = section.columns
    head = ["side", "metric", f"{base.name} (n={len(base.subjects)})"]
    for column in candidates:
        head += [f"{column.name} (n={len(column.subjects)})", "difference", "effective n", "verdict"]
    yield "| " + " | ".join(_cell(each) for each in head) + " |"
    yield "|" + "---|" * 2 + "---:|" + "---:|---:|---:|---|" * len(candidates)
    for row in section.rows:
        cells = [row.metric.side, row.metric.title, value_text(row.metric, row.values[0])]
        for index in range(1, len(section.columns)):
            verdict = row.verdicts[index - 1]
            cells += [
                value_text(row.metric, row.values[index]),
                difference(row, index),
                effective_text(verdict),
                word_text(verdict),
            ]
        yield "| " + " | ".join(_cell(each) for each in cells) + " |"
    yield ""
    yield "n is the number of runs." + (
        f" Run-to-run spread: that of the baseline {section.spread}." if section.spread else ""
    )
    for note in section.notes:
        yield f"- {note}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
