"""``vllmeter compare A B…``: sides by side, verdicts, what changed, and which candidate is best.

A is the baseline, every other name a candidate; a name stands for all its runs (repetitions).  The comparison is
plain frozen data; ``vllmeter.runs.report`` turns it into text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllmeter.runs.baseline import StoredBaseline, load_stored, servers_of
from vllmeter.runs.differences import Attribution, Subject, check
from vllmeter.runs.measures import Measure, Side, client_side, server_side
from vllmeter.runs.metrics import BY_ID, METRICS, TABLE, Metric
from vllmeter.runs.model import FINISHED, RUNNING, Run
from vllmeter.runs.store import RunStore, StoreError
from vllmeter.runs.verdict import MINIMUM_RUNS, RELEVANT, RunValue, Spread, Verdict, Word, judge

LOWER_SUCCESS: Final = 0.01
"""A candidate whose success rate falls by more than this is not called good: failed requests have no latency."""


IDLE_RATIO: Final = 0.05
"""A server that worked in less than this share of the seconds was not under load."""


@dataclass(frozen=True, slots=True)
class Column:
    """One name in one scenario: its usable runs and what was left out, with reasons."""

    name: str
    subjects: tuple[Subject, ...]
    left_out: tuple[str, ...] = ()

    def side(self, name: str) -> list[Side]:
        """The ``client`` or ``server`` sides of its runs."""
        return [each.client if name == "client" else each.server for each in self.subjects]


@dataclass(frozen=True, slots=True)
class Value:
    """A metric of a column: the mean over its runs, bounds where only bounds are known, and each run's value."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    runs: tuple[float | None, ...] = ()
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: the value of each column, and the verdict of each candidate against the baseline."""

    metric: Metric
    values: tuple[Value, ...]
    verdicts: tuple[Verdict | None, ...]
    """one per candidate; None where no verdict is meant"""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What may be said about one candidate in one scenario.

    ``word``: better, worse, mixed, no difference shown, not enough evidence, failed.  ``reasons`` in words.
    """

    candidate: str
    word: str
    reasons: tuple[str, ...]
    attribution: Attribution
    regression: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """All columns of one server and scenario."""

    server: str
    scenario: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    conclusions: tuple[Conclusion, ...]
    notes: tuple[str, ...] = ()
    spread: str = ""
    """where the run-to-run spread came from, when it was a stored one"""


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell of the table candidates × scenarios."""

    value: float | None
    best: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One metric: rows are candidates, columns scenarios."""

    metric: Metric
    server: str
    candidates: tuple[str, ...]
    scenarios: tuple[str, ...]
    cells: Mapping[tuple[str, str], TableCell] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """per scenario, why no best is marked"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a report shows."""

    names: tuple[str, ...]
    sections: tuple[Section, ...]
    tables: tuple[Table, ...] = ()
    problems: tuple[str, ...] = ()
    relevant: float = RELEVANT

    @property
    def regression(self) -> bool:
        """Whether a headline metric of a candidate is worse, or a functional run of a candidate failed."""
        return any(each.regression for section in self.sections for each in section.conclusions)


@dataclass(slots=True)
class _Collected:
    runs: list[Run] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed_functional: list[Run] = field(default_factory=list)


def compare(
    store: RunStore,
    names: Sequence[str],
    *,
    server: str | None = None,
    scenario: str | None = None,
    relevant: float = RELEVANT,
    metrics: Sequence[str] = (),
) -> Comparison:
    """Compares the runs named; the first name is the baseline.

    ``metrics`` (ids) replaces the headline metrics that decide the conclusion.
    Raises :class:`StoreError` when a name is unknown or there is nothing to compare.
    """
    if len(names) < 2:
        raise StoreError("compare needs at least two names: the baseline and a candidate")
    unknown = [each for each in metrics if each not in BY_ID]
    if unknown:
        raise StoreError(f"no metric {unknown[0]!r}; known: {', '.join(BY_ID)}")
    collected = {name: _collect(store.find(name)) for name in names}
    problems: list[str] = []
    scenarios = sorted({run.scenario for each in collected.values() for run in each.runs}, key=_scenario_order)
    if scenario is not None:
        scenarios = [each for each in scenarios if each == scenario]
    sections = []
    spreads = {(each.baseline.server, each.baseline.scenario): each for each in load_stored(store.state)}
    for each in scenarios:
        picked = {name: [run for run in collected[name].runs if run.scenario == each] for name in names}
        missing = [name for name in names if not picked[name]]
        if names[0] in missing or len(missing) > len(names) - 2:
            problems.append(f"scenario {each}: no usable run of {', '.join(missing)}")
            continue
        servers = [server] if server else _servers(picked)
        for one in servers:
            made = _section(store, one, each, picked, collected, spreads.get((one, each)), relevant, metrics)
            if made is not None:
                sections.append(made)
    if not sections:
        left = [reason for each in collected.values() for reason in each.left_out]
        raise StoreError("nothing to compare: " + "; ".join([*problems, *left] or ["the names share no scenario"]))
    return Comparison(tuple(names), tuple(sections), tuple(_tables(sections, relevant)), tuple(problems), relevant)


def _scenario_order(name: str) -> tuple[int, str]:
    order = ("short", "medium", "long")
    return (order.index(name) if name in order else len(order), name)


def _collect(runs: Sequence[Run]) -> _Collected:
    found = _Collected()
    for run in runs:
        if run.level == "L3" and run.passed is False:
            found.failed_functional.append(run)
            found.left_out.append(f"{run.id}: functional run (L3) failed with exit code {run.exit_code}")
        elif run.state == RUNNING:
            found.left_out.append(f"{run.id}: still running")
        elif run.state != FINISHED:
            found.left_out.append(f"{run.id}: {run.state}, its end is missing")
        elif run.invalid:
            found.left_out.append(f"{run.id}: invalid, {'; '.join(run.invalid)}")
        elif run.exit_code not in (None, 0):
            found.left_out.append(f"{run.id}: its command failed with exit code {run.exit_code}")
        elif run.level == "L3":
            found.left_out.append(f"{run.id}: functional run (L3) passed; it measures no speed")
        else:
            found.runs.append(run)
    return found


def _servers(picked: Mapping[str, Sequence[Run]]) -> list[str]:
    """Servers that all columns with runs have in common."""
    sets = [set(servers_of(runs)) for runs in picked.values() if runs]
    common = sorted(set.intersection(*sets)) if sets else []
    return common or [""]


def _section(
    store: RunStore,
    server: str,
    scenario: str,
    picked: Mapping[str, Sequence[Run]],
    collected: Mapping[str, _Collected],
    stored: StoredBaseline | None,
    relevant: float,
    headline: Sequence[str],
) -> Section | None:
    spreads: Mapping[str, Spread] = stored.spreads if stored else {}
    columns = []
    notes: list[str] = []
    for name, runs in picked.items():
        subjects = tuple(_subject(store, run, server, notes) for run in runs)
        columns.append(Column(name, subjects, tuple(collected[name].left_out)))
    if not any(side.requests for column in columns for kind in ("client", "server") for side in column.side(kind)):
        return None  # a neighbour that served nothing
    rows = [_row(metric, columns, spreads.get(metric.id), relevant) for metric in METRICS]
    rows = [row for row in rows if any(value.value is not None or value.low is not None for value in row.values)]
    conclusions = tuple(
        _conclusion(columns, index, rows, collected[column.name], server, headline)
        for index, column in enumerate(columns[1:], start=1)
    )
    used = any(
        verdict is not None
        and verdict.between_runs
        and row.metric.id in spreads
        and min(len(columns[0].subjects), len(columns[index].subjects)) < MINIMUM_RUNS
        for row in rows
        for index, verdict in enumerate(row.verdicts, start=1)
    )
    for column in columns:
        for kind in ("client", "server"):
            for subject, side in zip(column.subjects, column.side(kind), strict=True):
                who = column.name if len(column.subjects) == 1 else f"{column.name} run {subject.run.repetition}"
                notes.extend(f"{who}, {kind}: {note}" for note in side.notes)
        notes.extend(f"left out: {each}" for each in column.left_out)
    return Section(
        server,
        scenario,
        tuple(columns),
        tuple(rows),
        conclusions,
        tuple(dict.fromkeys(notes)),
        stored.baseline.run if used and stored else "",
    )


def _subject(store: RunStore, run: Run, server: str, notes: list[str]) -> Subject:
    samples, problem = store.samples(run.id)
    if problem:
        notes.append(f"{run.name}: {problem}")
    try:
        results = store.results(run.id)
    except StoreError as error:
        notes.append(str(error))
        results = ()
    measured = server_side(run, samples, server) if server else Side(absent={"server": "no server was sampled"})
    if _is_under_load(run, server, measured):
        client = client_side(run, results)
    else:
        client = Side(absent={"client": "the client's results belong to another server"})
        if results and not run.server and measured.requests:
            notes.append(f"{run.name}: client results are left out, several servers were busy: name one with --server")
    return Subject(run, measured, client, results)


def _is_under_load(run: Run, server: str, measured: Side) -> bool:
    """Whether the client's results are about ``server``: it is named, or it is the only one that worked."""
    if run.server or not server:
        return run.server in ("", server) if not server else run.server == server
    return measured.requests > 0 and all(each.busy_ratio < IDLE_RATIO for each in measured.neighbours.values())


def _row(metric: Metric, columns: Sequence[Column], spread: Spread | None, relevant: float) -> Row:
    values = tuple(_value(metric, column) for column in columns)
    verdicts: list[Verdict | None] = []
    for column in columns[1:]:
        if metric.lower is None:
            verdicts.append(None)
            continue
        a, b = _judged(metric, columns[0]), _judged(metric, column)
        verdicts.append(
            judge(a, b, q=metric.q, lower_is_better=metric.lower, spread=spread, relevant=relevant) if a and b else None
        )
    return Row(metric, values, tuple(verdicts))


def _measures(metric: Metric, column: Column) -> list[Measure | None]:
    return [side.measures.get(metric.key) for side in column.side(metric.side)]


def _judged(metric: Metric, column: Column) -> list[RunValue]:
    """The runs' values, [] unless every run has one."""
    found = [each.judged for each in _measures(metric, column) if each is not None and each.judged is not None]
    return found if len(found) == len(column.subjects) else []


def _value(metric: Metric, column: Column) -> Value:
    measures = _measures(metric, column)
    known = [each for each in measures if each is not None]
    if not known:
        reasons = [side.absent.get(metric.key) or side.absent.get(metric.side) for side in column.side(metric.side)]
        return Value(absent=next((reason for reason in reasons if reason), "not measured"))
    runs = tuple(None if each is None else each.value for each in measures)
    exact = [each.value for each in known if each.value is not None]
    lows = [each.low for each in known if each.low is not None]
    highs = [each.high for each in known if each.high is not None]
    return Value(
        value=sum(exact) / len(exact) if len(exact) == len(known) else None,
        low=min(lows) if lows else None,
        high=max(highs) if highs else None,
        runs=runs,
    )


def _conclusion(
    columns: Sequence[Column],
    index: int,
    rows: Sequence[Row],
    collected: _Collected,
    server: str,
    headline: Sequence[str],
) -> Conclusion:
    base, column = columns[0], columns[index]
    attribution = check(base.subjects, column.subjects, server)
    if collected.failed_functional:
        failed = collected.failed_functional[-1]
        reason = (
            f"functional run {failed.id} (L3) failed with exit code {failed.exit_code}: no change can be called good"
        )
        return Conclusion(column.name, "failed", (reason,), attribution, regression=True)
    if not column.subjects:
        return Conclusion(column.name, "not enough evidence", ("no usable run", *column.left_out), attribution)
    words: dict[Word, list[str]] = {}
    wanted = [row for row in rows if (row.metric.id in headline if headline else row.metric.headline)]
    for row in wanted:
        verdict = row.verdicts[index - 1]
        if verdict is not None:
            words.setdefault(verdict.word, []).append(f"{row.metric.side} {row.metric.title}: {verdict.reason}")
    reasons = [text for word in (Word.WORSE, Word.BETTER) for text in words.get(word, [])]
    regression = bool(words.get(Word.WORSE))
    if words.get(Word.WORSE):
        word = "mixed" if words.get(Word.BETTER) else "worse"
    elif words.get(Word.BETTER):
        word = "better"
    elif (
        words.get(Word.NO_DIFFERENCE)
        and not words.get(Word.NOT_ENOUGH_REQUESTS)
        and not words.get(Word.NOT_ENOUGH_RUNS)
    ):
        word = "no difference shown"
        reasons = words[Word.NO_DIFFERENCE]
    else:
        word = "not enough evidence"
        reasons = _shortage(wanted, index, columns)
    drop, certain = _success_drop(rows, index, columns)
    if drop:
        reasons.append(drop)
    if certain:
        word = "mixed" if word == "better" else word if word in ("worse", "mixed") else "worse"
        regression = True
    return Conclusion(column.name, word, tuple(reasons), attribution, regression)


def _shortage(rows: Sequence[Row], index: int, columns: Sequence[Column]) -> list[str]:
    """Why there is no verdict: once per cause, with the metric that needs most."""
    verdicts = [(row, verdict) for row in rows if (verdict := row.verdicts[index - 1]) is not None]
    if not verdicts:
        return ["no metric has values on both sides"]
    reasons = []
    for word in (Word.NOT_ENOUGH_REQUESTS, Word.NOT_ENOUGH_RUNS, Word.NO_DIFFERENCE):
        found = [(row, verdict) for row, verdict in verdicts if verdict.word is word]
        if not found:
            continue
        # the p95 first where it is among them: it is what people look at
        row, verdict = max(found, key=lambda each: (each[1].needed_requests or 0, each[0].metric.q or 0.0))
        row, verdict = next(((r, v) for r, v in found if r.metric.id == "client.ttft_p95"), (row, verdict))
        reasons.append(f"{row.metric.side} {row.metric.title}, {word.value}: {verdict.reason}")
        others = [f"{r.metric.side} {r.metric.title}" for r, _ in found if r is not row]
        if others:
            reasons.append(f"the same holds for {', '.join(others)}")
    runs = min(len(columns[0].subjects), len(columns[index].subjects))
    if runs < MINIMUM_RUNS and not any(verdict.between_runs for _, verdict in verdicts):
        count = "one run" if runs == 1 else f"{runs} runs"
        reasons.append(
            f"{count} a side cannot show run-to-run noise: repeat with --repeat {MINIMUM_RUNS}, taking turns"
        )
    return reasons


def _success_drop(rows: Sequence[Row], index: int, columns: Sequence[Column]) -> tuple[str, bool]:
    """(a fall of the success rate in words, whether chance is ruled out: three standard errors of two shares)."""
    for row in rows:
        if row.metric.key != "success":
            continue
        before, after = row.values[0].value, row.values[index].value
        if before is None or after is None or after >= before - LOWER_SUCCESS:
            continue
        n_a, n_b = _tried(columns[0], row.metric.side), _tried(columns[index], row.metric.side)
        together = (before * n_a + after * n_b) / max(1.0, n_a + n_b)
        error = math.sqrt(together * (1 - together) * (1 / max(1.0, n_a) + 1 / max(1.0, n_b)))
        text = f"{row.metric.side} success rate fell from {before:.1%} to {after:.1%}; failures have no latency"
        return text, before - after > 3 * error
    return "", False


def _tried(column: Column, side: str) -> float:
    """Requests that ended, well or not, over all runs of a column."""
    if side == "client":
        return float(sum((each.completed or 0) + (each.failed or 0) for s in column.subjects for each in s.results))
    found = [each.server.measures.get("finished") for each in column.subjects]
    return sum(each.value or 0.0 for each in found if each is not None)


def _tables(sections: Sequence[Section], relevant: float) -> list[Table]:
    """Candidates × scenarios, when there are at least three names or two scenarios."""
    found = []
    for server in sorted({section.server for section in sections}):
        mine = [section for section in sections if section.server == server]
        if len(mine) < 2 and len(mine[0].columns) < 3:
            continue
        for key in TABLE:
            metric = BY_ID[key]
            if not _has_values(metric, mine):
                metric = BY_ID.get(key.replace("client.", "server."), metric)
            found.append(_table(metric, server, mine, relevant))
    return [table for table in found if any(cell.value is not None for cell in table.cells.values())]


def _has_values(metric: Metric, sections: Sequence[Section]) -> bool:
    rows = [row for section in sections for row in section.rows if row.metric.id == metric.id]
    return any(value.value is not None for row in rows for value in row.values)


def _table(metric: Metric, server: str, sections: Sequence[Section], relevant: float) -> Table:
    names = tuple(dict.fromkeys(column.name for section in sections for column in section.columns))
    cells: dict[tuple[str, str], TableCell] = {}
    notes = []
    for section in sections:
        row = next((row for row in section.rows if row.metric.id == metric.id), None)
        best, why = _best(metric, section, relevant)
        if not best:
            notes.append(f"{section.scenario}: {why}")
        for position, column in enumerate(section.columns):
            value = row.values[position].value if row else None
            cells[(column.name, section.scenario)] = TableCell(value, column.name == best)
    return Table(metric, server, names, tuple(section.scenario for section in sections), cells, tuple(notes))


def _best(metric: Metric, section: Section, relevant: float) -> tuple[str, str]:
    """(name of the column that is better than every other one, "" and the reason when there is none)."""
    judged = {column.name: _judged(metric, column) for column in section.columns}
    judged = {name: values for name, values in judged.items() if values}
    if len(judged) < 2:
        return "", "fewer than two candidates have values"

    def mean(name: str) -> float:
        return sum(each.value for each in judged[name]) / len(judged[name])

    leader = (min if metric.lower else max)(judged, key=mean)
    words = {conclusion.candidate: conclusion.word for conclusion in section.conclusions}
    if words.get(leader) in ("failed", "mixed"):
        return "", f"{leader} leads, but its conclusion is: {words[leader]}"
    for name, values in judged.items():
        if name == leader:
            continue
        verdict = judge(values, judged[leader], q=metric.q, lower_is_better=bool(metric.lower), relevant=relevant)
        if verdict.word is not Word.BETTER:
            return "", f"{leader} leads, but against {name}: {verdict.word.value} ({verdict.reason})"
    return leader, ""
