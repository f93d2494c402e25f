"""What one run measured: at the server from its 1 s samples, at the client from the tool's result.

Both sides come out as :class:`Measure` per metric, so that reports can show them side by side.  Seconds, ratios,
tokens, bytes.  A missing value has a reason in ``absent``; nothing is ever 0 because it is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllmeter.runs.model import Run
from vllmeter.runs.results import ClientResult, RequestRecord
from vllmeter.runs.samples import Key, Sample, ServerSample
from vllmeter.runs.verdict import RunValue
from vllmeter.runs.warmup import ColdStart, cold_start
from vllmeter.windows.cells import Cell, CellBuilder
from vllmeter.windows.jitter import jitter, part_of
from vllmeter.windows.quantile import limits_of, quantiles

TOKEN_FAMILIES: Final = ("generation_tokens_total", "prompt_tokens_total")


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric of one run.

    ``value`` is exact or the best estimate; ``low``/``high`` are bounds that hold (buckets), not a confidence interval.
    ``judged`` is what a verdict may rest on, None when no verdict is possible.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    judged: RunValue | None = None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another server during the run: share of seconds in which it worked; its prompt and output tokens per second."""

    busy_ratio: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Per-second series for plots; ``t`` is seconds since the start of the run.  None = no value in that second."""

    t: tuple[float, ...] = ()
    ttft_mean: tuple[float | None, ...] = ()
    running: tuple[float | None, ...] = ()
    waiting: tuple[float | None, ...] = ()
    kv_usage: tuple[float | None, ...] = ()
    tokens_per_second: tuple[float | None, ...] = ()
    neighbour_tokens_per_second: tuple[float | None, ...] = ()


NO_COLD_START: Final = ColdStart()
NO_TIMELINE: Final = Timeline()


@dataclass(frozen=True, slots=True)
class Side:
    """Everything measured on one side (server or client) of one run."""

    measures: Mapping[str, Measure] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    requests: int = 0
    cold: ColdStart = NO_COLD_START
    notes: tuple[str, ...] = ()
    neighbours: Mapping[str, Neighbour] = field(default_factory=dict)
    timeline: Timeline = NO_TIMELINE
    points: tuple[tuple[float, float], ...] = ()
    """client only: (start in seconds since the first request, TTFT) of the requests that were kept"""
    early: tuple[tuple[float, float], ...] = ()
    """the same of those that were left out as warm-up"""


# --------------------------------------------------------------------------- server side


def server_side(run: Run, samples: Sequence[Sample], server: str) -> Side:
    """What ``server`` recorded between the start (after warm-up) and the end of the run."""
    end = run.ended if run.ended is not None else math.inf
    mine = _answers(samples, server, run.started - 5.0, end + 2.0)
    if len(mine) < 2:
        return Side(absent={"server": "fewer than two samples of this server in the run"})
    notes: list[str] = []
    # the answer that was the newest when the run started: it is a little older than the start itself
    origin = max((at for at, _ in mine if at <= run.started + 1e-6), default=mine[0][0])
    begin = run.started + run.warmup_seconds if run.warmup_seconds else origin
    ttft = _cells(mine, "ttft_seconds", begin)
    cold = ColdStart()
    if run.warmup_requests:
        begin = _after_requests(ttft, run.warmup_requests, begin)
        ttft = [cell for cell in ttft if cell.start >= begin - 1e-6]
    if run.warmup_seconds is None and run.warmup_requests is None:
        cold = cold_start([(cell.mean, cell.count, cell.mean) for cell in ttft])
        if cold.groups:
            begin = ttft[cold.groups - 1].end
            ttft = ttft[cold.groups :]
            notes.append(cold.text())
    # counters count from the last answer before the beginning
    part = [pair for pair in mine if pair[0] > begin + 1e-6]
    kept = [*[pair for pair in mine if pair[0] <= begin + 1e-6][-1:], *part]
    if len(kept) < 2:
        return Side(absent={"server": "no samples are left after the warm-up"}, notes=tuple(notes))
    found: dict[str, Measure] = {}
    absent: dict[str, str] = {}
    _latencies(found, absent, ttft, run)
    effective = found["ttft_mean"].judged.effective if "ttft_mean" in found and found["ttft_mean"].judged else None
    requests = sum(cell.count for cell in ttft)
    skipped = cold.requests or run.warmup_requests or 0
    for family, key, at_finish in (
        ("inter_token_latency_seconds", "itl_mean", False),
        ("e2e_latency_seconds", "e2e_mean", True),
        ("queue_time_seconds", "queue_mean", True),
        ("prefill_time_seconds", "prefill_mean", True),
    ):
        cells = _cells(mine, family, origin if at_finish and skipped else begin)
        if at_finish and skipped:
            # recorded when a request ends: the warm-up requests end after their first tokens
            finished_at = _after_requests(cells, skipped, origin)
            cells = [cell for cell in cells if cell.start >= finished_at - 1e-6]
        if cells:
            found[key] = _mean_measure(cells, run.started, requests, effective)
        else:
            absent[key] = "not recorded in this run"
    _counters(found, absent, kept, run.started, requests, effective)
    _gauges(found, absent, kept)
    return Side(
        found,
        absent,
        requests,
        cold,
        tuple(notes),
        {name: neighbour for name in _others(samples, server) if (neighbour := _neighbour(samples, name, begin, end))},
        _timeline(mine, samples, server, run),
    )


def _answers(samples: Sequence[Sample], server: str, begin: float, end: float) -> list[tuple[float, ServerSample]]:
    """(time of answer, sample) of each new answer of the server, in order."""
    found: list[tuple[float, ServerSample]] = []
    for sample in samples:
        mine = sample.servers.get(server)
        if mine is None or mine.wall is None or not begin <= mine.wall <= end:
            continue
        if not found or mine.wall > found[-1][0]:
            found.append((mine.wall, mine))
    return found


def _cells(answers: Sequence[tuple[float, ServerSample]], family: str, begin: float) -> list[Cell]:
    """Cells of a histogram, all engines, in order of time, from ``begin`` on."""
    builders: dict[Key, CellBuilder] = {}
    cells = []
    for at, sample in answers:
        for key, histogram in sample.histograms.items():
            if key[0] != family:
                continue
            builder = builders.get(key)
            if builder is None:
                builder = builders[key] = CellBuilder(dict(key[1]).get("engine", ""))
                if at > answers[0][0]:
                    builder.zero(histogram.bounds, answers[0][0])  # the series came into being during the run
                else:
                    builder.baseline(histogram.bounds, histogram.counts, histogram.sum, at)
                    continue
            elif builder.dropped(histogram.counts):
                builder.zero(histogram.bounds, at - 1.0)  # a restart: counted from 0 (the run is marked invalid)
            made = builder.add(histogram.bounds, histogram.counts, histogram.sum, at)
            if isinstance(made, Cell):
                cells.append(made)
    return sorted((cell for cell in cells if cell.start >= begin - 1e-6), key=lambda cell: (cell.end, cell.engine))


def _after_requests(cells: Sequence[Cell], count: int, begin: float) -> float:
    """Time at which ``count`` requests have had their first token."""
    seen = 0
    for cell in cells:
        seen += cell.count
        begin = cell.end
        if seen >= count:
            break
    return begin


def _latencies(found: dict[str, Measure], absent: dict[str, str], cells: Sequence[Cell], run: Run) -> None:
    if not cells:
        for key in ("ttft_mean", "ttft_p50", "ttft_p95", "ttft_p99", "ttft_jitter"):
            absent[key] = "no first token in the run"
        return
    spread = jitter([part_of(cell) for cell in cells])
    requests = spread.requests
    variance = (spread.lower or 0.0) ** 2
    found["ttft_mean"] = _mean_measure(cells, run.started, requests, None, variance)
    if spread.lower is not None:
        found["ttft_jitter"] = Measure(spread.estimate, spread.lower, spread.upper)
    else:
        absent["ttft_jitter"] = spread.reason or "unknown"
    bounds, missing = quantiles([limits_of(cell) for cell in cells])
    for label, key in (("0.5", "ttft_p50"), ("0.95", "ttft_p95"), ("0.99", "ttft_p99")):
        if label in bounds:
            low, high = bounds[label]
            found[key] = Measure(low if low == high else None, low, high)
        else:
            absent[key] = f"{missing.get(label, 'unknown')} ({requests})"


def _mean_measure(
    cells: Sequence[Cell], started: float, requests: int, effective: float | None, variance: float | None = None
) -> Measure:
    """The exact mean, with its error from blocks of seconds."""
    counts, sums = [cell.count for cell in cells], [cell.sum for cell in cells]
    mean = sum(sums) / sum(counts)
    error, blocks = ratio_error(sums, [float(count) for count in counts])
    if variance is not None:
        # variance of one request (its guaranteed lower bound) over the variance of the mean
        absolute = None if error is None else (error * mean) ** 2
        n = sum(counts)
        if absolute and variance > 0:
            effective = min(float(n), variance / absolute)
        else:
            effective = float(len(cells)) if variance == 0 or absolute == 0 else min(float(n), 1.0)
    return Measure(mean, judged=RunValue(mean, requests, effective, error, blocks, started) if mean > 0 else None)


def ratio_error(tops: Sequence[float], bottoms: Sequence[float]) -> tuple[float | None, int]:
    """(standard error of ln(Σ tops / Σ bottoms), blocks): blocks of consecutive entries, of the worst length."""
    total_top, total = sum(tops), sum(bottoms)
    if len(tops) < 3 or total <= 0 or total_top <= 0:
        return None, len(tops)
    ratio = total_top / total
    best, blocks = 0.0, len(tops)
    size = 1
    while True:
        residuals = [sum(tops[i : i + size]) - ratio * sum(bottoms[i : i + size]) for i in range(0, len(tops), size)]
        count = len(residuals)
        variance = sum(each**2 for each in residuals) / total**2 * count / (count - 1)
        if variance > best:
            best, blocks = variance, count
        size *= 2
        if len(tops) // size < 10:
            break
    return math.sqrt(best) / ratio, blocks


def _growth(answers: Sequence[tuple[float, ServerSample]], family: str, **labels: str) -> list[float] | None:
    """Growth of a counter between successive answers; a drop counts as a restart from 0; None when it is absent."""
    values = [sample.total(family, **labels) for _, sample in answers]
    if all(value is None for value in values):
        return None
    grown = []
    last = values[0] or 0.0
    for value in values[1:]:
        if value is None:
            grown.append(0.0)
            continue
        grown.append(value - last if value >= last else value)
        last = value
    return grown


def _counters(
    found: dict[str, Measure],
    absent: dict[str, str],
    answers: Sequence[tuple[float, ServerSample]],
    started: float,
    requests: int,
    effective: float | None,
) -> None:
    active = _active(answers)
    seconds = [answers[i + 1][0] - answers[i][0] for i in range(len(answers) - 1)]
    span = sum(seconds[i] for i in active)
    for family, key in (("generation_tokens_total", "output_rate"), ("prompt_tokens_total", "prompt_rate")):
        grown = _growth(answers, family)
        if grown is None or not span:
            absent[key] = "not given by this server" if grown is None else "the server did no work in the run"
            continue
        tokens = [grown[i] for i in active]
        rate = sum(tokens) / span
        error, blocks = ratio_error(tokens, [seconds[i] for i in active])
        judged = RunValue(rate, requests, effective, error, blocks, started) if rate > 0 else None
        found[key] = Measure(rate, judged=judged)
    grown = _growth(answers, "preemptions_total")
    if grown is None:
        absent["preemptions"] = "not given by this server"
    else:
        found["preemptions"] = Measure(sum(grown))
    finished = _growth(answers, "requests_finished_total")
    if finished is None:
        absent["finished"] = absent["success"] = "not given by this server"
    else:
        done = sum(finished)
        found["finished"] = Measure(done)
        bad = sum(
            sum(_growth(answers, "requests_finished_total", reason=reason) or [0.0]) for reason in ("error", "abort")
        )
        if done:
            found["success"] = Measure(1.0 - bad / done)
        else:
            absent["success"] = "no request finished"
    queries, hits = (
        _growth(answers, "prefix_cache_queries_tokens_total"),
        _growth(answers, "prefix_cache_hits_tokens_total"),
    )
    if queries and hits is not None and sum(queries) > 0:
        found["prefix_hit"] = Measure(sum(hits) / sum(queries))
    else:
        absent["prefix_hit"] = "no lookups in the prefix cache"


def _active(answers: Sequence[tuple[float, ServerSample]]) -> list[int]:
    """Intervals between answers in which the server worked: rates are over these, so that idle ends do not count."""
    busy = []
    for index in range(len(answers) - 1):
        old, new = answers[index][1], answers[index + 1][1]
        moved = any((new.total(family) or 0.0) != (old.total(family) or 0.0) for family in TOKEN_FAMILIES)
        if moved or (new.total("requests_running") or 0.0) > 0 or (new.total("requests_waiting") or 0.0) > 0:
            busy.append(index)
    return busy


def _gauges(found: dict[str, Measure], absent: dict[str, str], answers: Sequence[tuple[float, ServerSample]]) -> None:
    for family, key in (
        ("requests_waiting", "waiting_peak"),
        ("requests_running", "running_peak"),
        ("kv_cache_usage_ratio", "kv_peak"),
    ):
        values = [
            value
            for _, sample in answers[1:]
            if (value := sample.largest(family) if key == "kv_peak" else sample.total(family)) is not None
        ]
        if values:
            found[key] = Measure(max(values))
        else:
            absent[key] = "not given by this server"
    peaks: dict[str, float] = {}
    budgets: dict[str, float] = {}
    for _, sample in answers:
        for uuid, (used, budget) in sample.memory.items():
            if used is not None:
                peaks[uuid] = max(peaks.get(uuid, 0.0), used)
            if budget is not None:
                budgets[uuid] = budget
    if not peaks:
        absent["memory_peak"] = absent["memory_of_budget"] = "GPU memory of this server is not known"
        return
    found["memory_peak"] = Measure(sum(peaks.values()))
    known = [uuid for uuid in peaks if budgets.get(uuid)]
    if known:
        found["memory_of_budget"] = Measure(max(peaks[uuid] / budgets[uuid] for uuid in known))
    else:
        absent["memory_of_budget"] = "no budget is known"


def _others(samples: Sequence[Sample], server: str) -> list[str]:
    return sorted({name for sample in samples for name in sample.servers} - {server})


def _neighbour(samples: Sequence[Sample], name: str, begin: float, end: float) -> Neighbour | None:
    answers = _answers(samples, name, begin, end)
    if len(answers) < 2:
        return None
    span = answers[-1][0] - answers[0][0]
    moved = [0.0] * (len(answers) - 1)
    for family in TOKEN_FAMILIES:
        for index, grown in enumerate(_growth(answers, family) or []):
            moved[index] += grown
    busy = sum(
        1
        for index, tokens in enumerate(moved)
        if tokens > 0 or (answers[index + 1][1].total("requests_running") or 0.0) > 0
    )
    return Neighbour(busy / len(moved), sum(moved) / span if span > 0 else 0.0)


def _timeline(
    answers: Sequence[tuple[float, ServerSample]], samples: Sequence[Sample], server: str, run: Run
) -> Timeline:
    means: dict[float, tuple[float, int]] = {}
    for cell in _cells(answers, "ttft_seconds", -math.inf):
        total, count = means.get(cell.end, (0.0, 0))
        means[cell.end] = (total + cell.sum, count + cell.count)
    others = {
        name: dict(_rates(_answers(samples, name, answers[0][0] - 2, answers[-1][0] + 2)))
        for name in _others(samples, server)
    }
    beside: dict[int, float] = {}
    for rates in others.values():
        for at, rate in rates.items():
            beside[round(at)] = beside.get(round(at), 0.0) + rate
    own = dict(_rates(answers, ("generation_tokens_total",)))
    rows = [(at, sample) for at, sample in answers if at > run.started + 1e-6]
    return Timeline(
        t=tuple(round(at - run.started, 2) for at, _ in rows),
        ttft_mean=tuple(means[at][0] / means[at][1] if at in means else None for at, _ in rows),
        running=tuple(sample.total("requests_running") for _, sample in rows),
        waiting=tuple(sample.total("requests_waiting") for _, sample in rows),
        kv_usage=tuple(sample.largest("kv_cache_usage_ratio") for _, sample in rows),
        tokens_per_second=tuple(own.get(at) for at, _ in rows),
        neighbour_tokens_per_second=tuple(beside.get(round(at)) for at, _ in rows),
    )


def _rates(
    answers: Sequence[tuple[float, ServerSample]], families: Iterable[str] = TOKEN_FAMILIES
) -> list[tuple[float, float]]:
    """(time, tokens per second since the answer before)."""
    totals = [0.0] * max(0, len(answers) - 1)
    for family in families:
        for index, grown in enumerate(_growth(answers, family) or []):
            totals[index] += grown
    return [
        (answers[index + 1][0], tokens / max(1e-6, answers[index + 1][0] - answers[index][0]))
        for index, tokens in enumerate(totals)
    ]


# --------------------------------------------------------------------------- client side


def client_side(run: Run, results: Sequence[ClientResult]) -> Side:
    """What the load-test tool measured, warm-up cut.  Several benchmarks in one run cannot be told apart: no values."""
    if not results:
        return Side(absent={"client": "no result file of the load-test tool was imported"})
    if len(results) > 1:
        return Side(
            absent={
                "client": f"the run holds {len(results)} benchmarks: import each as a run of its own to compare them"
            }
        )
    result = results[0]
    notes = [f"{result.tool}: {note}" for note in result.notes]
    if result.requests:
        return _from_requests(run, result, notes)
    if run.warmup_seconds or run.warmup_requests:
        notes.append("the tool wrote no per-request times: warm-up cannot be cut on the client side")
    return _from_summaries(run, result, notes)


def _from_summaries(run: Run, result: ClientResult, notes: Sequence[str]) -> Side:
    count = result.completed or 0
    found: dict[str, Measure] = {}

    def put(key: str, value: float | None, judged: bool = True) -> None:
        if value is not None:
            found[key] = Measure(
                value, judged=RunValue(value, count, None, None, 0, run.started) if judged and value > 0 else None
            )

    for name, summary in result.summaries.items():
        put(f"{name}_mean", summary.mean)
        for q, suffix in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
            put(f"{name}_{suffix}", summary.quantile(q))
        if name == "ttft":
            put("ttft_jitter", summary.deviation, judged=False)
    put("output_rate", result.output_token_rate)
    put("request_rate", result.request_rate)
    put("success", result.success_ratio, judged=False)
    return Side(found, {}, count, notes=tuple(notes))


def _from_requests(run: Run, result: ClientResult, notes: list[str]) -> Side:
    from vllmeter.runs.resample import Estimate, as_arrays, clusters, estimate

    records = [each for each in result.requests if each.ok]
    placed = all(each.started is not None for each in records) and bool(records)
    cold = ColdStart()
    if placed:
        records.sort(key=lambda each: each.started or 0.0)
        records, cold = _cut(run, records, notes)
    elif run.warmup_seconds or run.warmup_requests:
        notes.append("the tool wrote no start times: warm-up cannot be cut on the client side")
    found: dict[str, Measure] = {}
    effective: float | None = None
    for name in ("ttft", "itl", "e2e"):
        having = [each for each in records if getattr(each, name) is not None]
        values = [float(getattr(each, name)) for each in having]
        if not values or min(values) < 0:
            continue
        if not placed:
            for suffix, value in (
                ("mean", sum(values) / len(values)),
                ("p50", _rank(values, 0.5)),
                ("p95", _rank(values, 0.95)),
                ("p99", _rank(values, 0.99)),
            ):
                found[f"{name}_{suffix}"] = Measure(
                    value, judged=RunValue(value, len(values), None, None, 0, run.started) if value > 0 else None
                )
            continue
        starts = [each.started or 0.0 for each in having]
        firsts = [
            start + (each.ttft if each.ttft is not None else 0.0) for start, each in zip(starts, having, strict=True)
        ]
        labels = clusters(starts, firsts)
        order = sorted(range(len(labels)), key=labels.__getitem__)
        array, groups = as_arrays([values[i] for i in order], [labels[i] for i in order])
        for suffix, q in (("mean", None), ("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            one: Estimate = estimate(array, groups, q)
            judged = RunValue(one.value, one.requests, one.effective, one.error, one.blocks, run.started)
            found[f"{name}_{suffix}"] = Measure(one.value, judged=judged if one.value > 0 else None)
            if effective is None:
                effective = one.effective
                if one.icc is not None:
                    notes.append(
                        f"{one.requests} requests came in {one.clusters} lockstep batches: correlation within a batch "
                        f"{one.icc:.2f}, design effect {one.design:.1f}, effective n {one.effective:.0f}"
                    )
    ttfts = [each.ttft for each in records if each.ttft is not None]
    if len(ttfts) > 1:
        mean = sum(ttfts) / len(ttfts)
        found["ttft_jitter"] = Measure(math.sqrt(sum((each - mean) ** 2 for each in ttfts) / len(ttfts)))
    _client_rates(found, run, result, records, placed, effective)
    if result.success_ratio is not None:
        found["success"] = Measure(result.success_ratio)
    points: tuple[tuple[float, float], ...] = ()
    early: tuple[tuple[float, float], ...] = ()
    if placed and records:
        first = min(each.started or 0.0 for each in result.requests)
        points = tuple(((each.started or 0.0) - first, each.ttft) for each in records if each.ttft is not None)
        kept = {id(each) for each in records}
        rest = [each for each in result.requests if each.ok and id(each) not in kept]
        early = tuple(((each.started or 0.0) - first, each.ttft) for each in rest if each.ttft is not None)
    return Side(found, {}, len(records), cold, tuple(notes), points=points, early=early)


def _cut(run: Run, records: list[RequestRecord], notes: list[str]) -> tuple[list[RequestRecord], ColdStart]:
    """Without the warm-up that was asked for; without any asked for, without a cold start that can be seen."""
    from vllmeter.runs.resample import clusters

    if run.warmup_seconds is not None:
        limit = (records[0].started or 0.0) + run.warmup_seconds
        records = [each for each in records if (each.started or 0.0) >= limit]
    if run.warmup_requests is not None:
        records = records[run.warmup_requests :]
    if run.warmup_seconds is not None or run.warmup_requests is not None:
        if not records:
            notes.append("the whole run lies in the warm-up")
        return records, ColdStart()
    timed = [each for each in records if each.ttft is not None]
    if not timed:
        return records, ColdStart()
    labels = clusters([each.started or 0.0 for each in timed], [each.first_token or 0.0 for each in timed])
    groups: dict[int, list[RequestRecord]] = {}
    for label, each in zip(labels, timed, strict=True):
        groups.setdefault(label, []).append(each)
    ordered = [groups[label] for label in sorted(groups)]
    cold = cold_start(
        [
            (sum(each.ttft or 0.0 for each in group) / len(group), len(group), max(each.ttft or 0.0 for each in group))
            for group in ordered
        ]
    )
    if cold.groups:
        left_out = {id(each) for group in ordered[: cold.groups] for each in group}
        records = [each for each in records if id(each) not in left_out]
        notes.append(cold.text())
    return records, cold


def _rank(values: Sequence[float], q: float) -> float:
    return sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]


def _client_rates(
    found: dict[str, Measure],
    run: Run,
    result: ClientResult,
    records: Sequence[RequestRecord],
    placed: bool,
    effective: float | None,
) -> None:
    """Rates over the kept part where start and end of every request are known, else the tool's own."""
    tokens = [each.output_tokens for each in records]
    ends = [each.started + each.e2e for each in records if each.started is not None and each.e2e is not None]
    rate, requests = result.output_token_rate, result.request_rate
    if placed and len(ends) == len(records) and len(records) > 1:
        span = max(ends) - min(each.started or 0.0 for each in records)
        if span > 0:
            requests = len(records) / span
            if all(each is not None for each in tokens):
                rate = sum(each or 0 for each in tokens) / span
    for key, value in (("output_rate", rate), ("request_rate", requests)):
        if value is not None:
            judged = RunValue(value, len(records), effective, None, 0, run.started) if value > 0 else None
            found[key] = Measure(value, judged=judged)
