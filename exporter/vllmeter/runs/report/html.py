"""A comparison as one HTML file: style and plots inside, no script, nothing loaded from anywhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from vllmeter import __version__
from vllmeter.runs.compare import Column, Comparison, Conclusion, Section, Table
from vllmeter.runs.report import svg
from vllmeter.runs.report.values import NOTHING, difference, effective_text, number, tick, value_text, word_text
from vllmeter.runs.verdict import Word

COLOURS = 6

_CSS = {Word.BETTER: "better", Word.WORSE: "worse", Word.NO_DIFFERENCE: "none"}


def html(comparison: Comparison, *, now: float | None = None) -> str:
    """The whole page; ``now`` (Unix seconds) is printed as the time of the report."""
    base, *candidates = comparison.names
    title = f"{base} against {', '.join(candidates)}"
    stamp = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() if now is None else now))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_style()}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>"
        f'<p class="sub">Baseline {escape(base)}. Intervals are 95 %; differences below {comparison.relevant:.0%} do '
        "not count. Better or worse is said only with an effective n of at least 100 a side and known run-to-run "
        "noise.</p>"
        + "".join(_body(comparison))
        + f"<footer>vllmeter {escape(__version__)}, {stamp}</footer></main></body></html>\n"
    )


def _style() -> str:
    """The style sheet that lies beside this module."""
    return Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def _body(comparison: Comparison) -> Iterator[str]:
    for problem in comparison.problems:
        yield f'<p class="unsure">{escape(problem)}</p>'
    if comparison.tables:
        yield '<h2>Candidates by scenario</h2><div class="plots">'
        for table in comparison.tables:
            yield _table(table)
        yield "</div>"
    for section in comparison.sections:
        yield from _section(section, comparison.relevant)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.scenarios)
    body = []
    for candidate in table.candidates:
        cells = []
        for scenario in table.scenarios:
            cell = table.cells.get((candidate, scenario))
            text = NOTHING if cell is None or cell.value is None else number(cell.value, table.metric.unit)
            cells.append(
                f'<td class="best">★ {escape(text)}</td>'
                if cell is not None and cell.best
                else f"<td>{escape(text)}</td>"
            )
        body.append(f'<tr><td class="l">{escape(candidate)}</td>{"".join(cells)}</tr>')
    notes = "".join(f'<li class="dim">No best for {escape(note)}</li>' for note in table.notes)
    where = f", {table.server}" if table.server else ""
    title = escape(f"{table.metric.title} ({table.metric.side}{where})")
    return (
        f'<div class="card"><h3>{title}</h3><div class="scroll">'
        f'<table><tr><th class="l"></th>{head}</tr>{"".join(body)}</table></div><ul>{notes}</ul></div>'
    )


def _section(section: Section, relevant: float) -> Iterator[str]:
    title = " · ".join(part for part in (section.server, section.scenario) if part)
    yield f"<h2>{escape(title)}</h2>"
    for index, conclusion in enumerate(section.conclusions, start=1):
        yield _conclusion(conclusion)
        plot = _intervals(section, index, relevant)
        if plot:
            yield f'<div class="card"><h3>{escape(conclusion.candidate)}: differences with 95 % intervals</h3>{plot}'
            if not any(
                verdict.between_runs for row in section.rows if (verdict := row.verdicts[index - 1]) is not None
            ):
                yield '<p class="sub" style="margin:6px 0 0">These intervals do not contain run-to-run noise.</p>'
            yield "</div>"
    plots = [plot for plot in _plots(section) if plot]
    if plots:
        yield f'<div class="plots">{"".join(plots)}</div>'
    yield f'<div class="card" style="margin-top:16px"><div class="scroll">{_numbers(section)}</div>'
    notes = "".join(f'<li class="dim">{escape(note)}</li>' for note in section.notes)
    spread = f"<li>Run-to-run spread: that of the baseline {escape(section.spread)}</li>" if section.spread else ""
    yield f"<ul>{spread}{notes}</ul></div>"


def _conclusion(conclusion: Conclusion) -> str:
    css = {"better": "better", "worse": "worse", "failed": "worse", "mixed": "unsure", "not enough evidence": "unsure"}
    items = [f"<li>{escape(reason)}</li>" for reason in conclusion.reasons]
    word = "unsure" if conclusion.attribution.word == "confounded" else ""
    items.append(f'<li class="{word}">{escape(conclusion.attribution.text())}</li>')
    items += [
        f'<li class="dim">also differs, not counted: {escape(each.text())}</li>'
        for each in conclusion.attribution.differences
        if not each.counts
    ]
    items += [
        f'<li class="dim">not known, so not compared: {escape(name)}</li>' for name in conclusion.attribution.unknown
    ]
    badge = f'<span class="word {css.get(conclusion.word, "none")}">{escape(conclusion.word)}</span>'
    return f'<div class="card"><strong>{escape(conclusion.candidate)}</strong>{badge}<ul>{"".join(items)}</ul></div>'


def _intervals(section: Section, index: int, relevant: float) -> str:
    rows = []
    for row in section.rows:
        verdict = row.verdicts[index - 1]
        if verdict is None or verdict.ratio is None:
            continue
        css = _CSS.get(verdict.word, "unsure")
        rows.append(
            (f"{row.metric.side} {row.metric.title}", verdict.ratio, verdict.low, verdict.high, css, verdict.word.value)
        )
    return svg.intervals(f"Differences of {section.columns[index].name}", rows, relevant=relevant)


def _numbers(section: Section) -> str:
    head = ['<th class="l">metric</th>', f"<th>{escape(_head(section.columns[0]))}</th>"]
    for column in section.columns[1:]:
        head.append(
            f"<th>{escape(_head(column))}</th><th>difference</th><th>effective n</th><th class='l'>verdict</th>"
        )
    body = []
    side = ""
    for row in section.rows:
        if row.metric.side != side:
            side = row.metric.side
            title = (
                "client: what the load-test tool measured"
                if side == "client"
                else "server: from its own metrics, 1 s samples"
            )
            body.append(f'<tr class="side"><td colspan="{2 + 4 * (len(section.columns) - 1)}">{title}</td></tr>')
        cells = [
            f'<td class="l">{escape(row.metric.title)}</td><td>{escape(value_text(row.metric, row.values[0]))}</td>'
        ]
        for index in range(1, len(section.columns)):
            verdict = row.verdicts[index - 1]
            css = "" if verdict is None else _CSS.get(verdict.word, "unsure")
            title = "" if verdict is None else f' title="{escape(verdict.reason, quote=True)}"'
            cells.append(
                f"<td>{escape(value_text(row.metric, row.values[index]))}</td><td>{escape(difference(row, index))}</td>"
                f"<td>{escape(effective_text(verdict))}</td>"
                f'<td class="l {css}"{title}>{escape(word_text(verdict))}</td>'
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{''.join(head)}</tr>{''.join(body)}</table>"


def _head(column: Column) -> str:
    runs = len(column.subjects)
    return f"{column.name} ({runs} run{'' if runs == 1 else 's'})"


def _plots(section: Section) -> Iterator[str]:
    keys = "".join(
        f'<span class="key s{index % COLOURS}">{escape(column.name)}</span>'
        for index, column in enumerate(section.columns)
    )
    clouds, distributions = [], []
    for index, column in enumerate(section.columns):
        css = f"s{index % COLOURS}"
        points = [point for subject in column.subjects for point in subject.client.points]
        clouds.append(svg.Series(column.name, css, points))
        early = [point for subject in column.subjects for point in subject.client.early]
        clouds.append(svg.Series(f"{column.name}, warm-up", css, early, hollow=True))
        distributions.append((column.name, css, [ttft for _, ttft in points]))
    yield _card(
        "TTFT of each request (client), by start; rings: warm-up",
        keys,
        svg.cloud("TTFT of each request", clouds, x_name="seconds since the first request", format_y=_seconds),
    )
    yield _card(
        "Distribution of TTFT (client), p95 marked",
        keys,
        svg.steps("Distribution of TTFT", distributions, format_x=_seconds),
    )
    for title, attribute, format_y in (
        ("TTFT at the server, mean of each second", "ttft_mean", _seconds),
        ("Waiting requests", "waiting", _count),
        ("Generated tokens per second", "tokens_per_second", _count),
        ("KV cache usage", "kv_usage", _percent),
        ("Other servers on the host, tokens per second", "neighbour_tokens_per_second", _count),
    ):
        series = []
        for index, column in enumerate(section.columns):
            for subject in column.subjects:
                timeline = subject.server.timeline
                points = list(zip(timeline.t, getattr(timeline, attribute), strict=True))
                series.append(svg.Series(column.name, f"s{index % COLOURS}", points))
        if attribute in ("waiting", "neighbour_tokens_per_second") and not _moves(series):
            continue
        draw = svg.cloud if attribute == "ttft_mean" else svg.lines
        yield _card(title, keys, draw(title, series, x_name="seconds since the start of the run", format_y=format_y))


def _moves(series: Sequence[svg.Series]) -> bool:
    return any(value for each in series for _, value in each.points)


def _card(title: str, keys: str, plot: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3><div>{keys}</div>{plot}</div>' if plot else ""


def _seconds(value: float) -> str:
    return tick(value, "s")


def _count(value: float) -> str:
    return f"{value:g}"


def _percent(value: float) -> str:
    return f"{value:.0%}"
