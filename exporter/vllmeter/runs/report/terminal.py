"""A comparison in the terminal: what may be said first, numbers after it."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from vllmeter.runs.compare import Comparison, Conclusion, Section, Table
from vllmeter.runs.report.values import NOTHING, difference, effective_text, number, value_text, word_text

STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "failed": "bold red",
    "mixed": "bold yellow",
    "no difference shown": "bold",
    "not enough evidence": "bold yellow",
    "not enough requests": "yellow",
    "not enough runs": "yellow",
}


def show(comparison: Comparison, console: Console) -> None:
    """Writes the comparison to ``console``."""
    for problem in comparison.problems:
        console.print(Text(problem, style="yellow"))
    for section in comparison.sections:
        _section(section, console)
    for table in comparison.tables:
        console.print()
        where = f", {table.server}" if table.server else ""
        console.print(Text(f"{table.metric.title} ({table.metric.side}{where})", style="bold"))
        console.print(_grid_of(table))
        for note in table.notes:
            console.print(Text(f"  no best for {note}", style="dim"))
    console.print()
    console.print(
        Text(
            f"Intervals are 95 %. A difference is called from {comparison.relevant:.0%} on, with an effective n of at "
            "least 100 and known run-to-run noise.",
            style="dim",
        )
    )


def _section(section: Section, console: Console) -> None:
    console.print()
    title = " · ".join(part for part in (section.server, section.scenario) if part)
    console.rule(Text(title, style="bold"), align="left")
    for conclusion in section.conclusions:
        _conclusion(conclusion, console)
    many = len(section.columns) > 2
    if many:
        for index in range(1, len(section.columns)):
            console.print(_grid(section, index))
    else:
        console.print(_grid(section, 1))
    if section.spread:
        console.print(Text(f"run-to-run spread: that of the baseline {section.spread}", style="dim"))
    for note in section.notes:
        console.print(Padding(Text(f"• {note}", style="dim"), (0, 0, 0, 2)))


def _conclusion(conclusion: Conclusion, console: Console) -> None:
    line = Text()
    line.append(f"{conclusion.candidate}: ", style="bold")
    line.append(conclusion.word, style=STYLES.get(conclusion.word, ""))
    console.print(line)
    for reason in conclusion.reasons:
        console.print(Padding(Text(f"• {reason}"), (0, 0, 0, 2)))
    confounded = conclusion.attribution.word == "confounded"
    console.print(
        Padding(Text(f"• {conclusion.attribution.text()}", style="yellow" if confounded else ""), (0, 0, 0, 2))
    )
    for each in conclusion.attribution.differences:
        if not each.counts:
            console.print(Padding(Text(f"• also differs, not counted: {each.text()}", style="dim"), (0, 0, 0, 2)))
    for name in conclusion.attribution.unknown:
        console.print(Padding(Text(f"• not known, so not compared: {name}", style="dim"), (0, 0, 0, 2)))


def _grid(section: Section, index: int) -> Grid:
    base, column = section.columns[0], section.columns[index]
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    grid.add_column("", style="dim", no_wrap=True)
    grid.add_column("metric", no_wrap=True)
    grid.add_column(_head(base.name, len(base.subjects)), justify="right")
    grid.add_column(_head(column.name, len(column.subjects)), justify="right")
    grid.add_column("difference", justify="right")
    grid.add_column("effective n", justify="right")
    grid.add_column("verdict")
    side = ""
    for row in section.rows:
        verdict = row.verdicts[index - 1]
        word = word_text(verdict)
        grid.add_row(
            row.metric.side if row.metric.side != side else "",
            row.metric.title,
            value_text(row.metric, row.values[0]),
            value_text(row.metric, row.values[index]),
            difference(row, index),
            effective_text(verdict),
            Text(word, style=STYLES.get(word, "")),
        )
        side = row.metric.side
    return grid


def _head(name: str, runs: int) -> str:
    return f"{name} ({runs} run{'' if runs == 1 else 's'})"


def _grid_of(table: Table) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("")
    for scenario in table.scenarios:
        grid.add_column(scenario, justify="right")
    for candidate in table.candidates:
        cells = []
        for scenario in table.scenarios:
            cell = table.cells.get((candidate, scenario))
            if cell is None or cell.value is None:
                cells.append(Text(NOTHING))
            else:
                text = number(cell.value, table.metric.unit)
                cells.append(Text(f"{text} ★", style="bold green") if cell.best else Text(text))
        grid.add_row(candidate, *cells)
    return grid
