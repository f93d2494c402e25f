"""When two sets of runs may be called different (design: "Regression").

A difference is called only when

1. each side has an effective n of at least 100 requests (500 for a p99: five requests beyond the quantile),
2. the 95 % interval of the ratio excludes 1,
3. the ratio is at least the smallest relevant effect (5 %) away from 1, and
4. run-to-run noise is known: at least three runs a side that were interleaved in time, or a stored spread.

The interval is that of Student's t on ln(statistic) of whole runs; the error is never taken smaller than what the
resampled blocks within the runs give.  Without known run-to-run noise the interval is that of the blocks alone, is
labelled so, and no better or worse is given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from vllmeter.runs.student import t_quantile

CONFIDENCE: Final = 0.95
RELEVANT: Final = 0.05
"""Smallest relevant effect, as a ratio minus one."""
MINIMUM_EFFECTIVE: Final = 100
MINIMUM_RUNS: Final = 3
BEYOND_QUANTILE: Final = 5
"""Independent requests that must lie beyond a quantile: 100 for p95 (and below), 500 for p99."""
OTHER_DAY: Final = 1.15
"""A stored spread is taken this much larger: it was measured in another session, and today's noise is unknown."""
ASSUMED_DESIGN: Final = 16.0
"""Design effect taken where a tool wrote no per-request times: the H200 recording has 2.4 to 13.9."""


class Word(str, Enum):
    """The verdict in words."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"
    NOT_ENOUGH_REQUESTS = "not enough requests"
    NOT_ENOUGH_RUNS = "not enough runs"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class RunValue:
    """One statistic of one run, as the verdict needs it.

    ``error``: standard error of ln(value) from the blocks of this run, None when unknown; ``blocks`` behind it.
    ``effective`` None = unknown (no per-request times).  ``started``: Unix time, for the order of the runs.
    """

    value: float
    requests: int
    effective: float | None
    error: float | None
    blocks: int
    started: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Run-to-run spread of ln(statistic) known from earlier repetitions, with its degrees of freedom."""

    deviation: float
    freedom: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be said about B against A for one statistic.

    ``ratio`` is B/A; ``low`` and ``high`` its 95 % interval (None when nothing is known about the error).
    ``between_runs`` says whether the interval contains run-to-run noise.  ``effective_a/b``: effective n per side.
    ``needed_requests``/``needed_runs``: what a side would need, None when enough or unknown.
    """

    word: Word
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    between_runs: bool = False
    effective_a: float | None = None
    effective_b: float | None = None
    needed_requests: int | None = None
    needed_runs: int | None = None


def interleaved(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether the runs of two sides took turns: in order of start, at least min(len) changes of side."""
    order = [side for _, side in sorted([(when, 0) for when in a] + [(when, 1) for when in b])]
    changes = sum(1 for left, right in itertools.pairwise(order) if left != right)
    return changes >= min(len(a), len(b))


def required_effective(q: float | None) -> int:
    """Effective n that a side needs for a mean (None) or a quantile."""
    if q is None:
        return MINIMUM_EFFECTIVE
    return max(MINIMUM_EFFECTIVE, math.ceil(BEYOND_QUANTILE / (1.0 - q) - 1e-9))


def judge(
    a: Sequence[RunValue],
    b: Sequence[RunValue],
    *,
    q: float | None = None,
    lower_is_better: bool = True,
    spread: Spread | None = None,
    relevant: float = RELEVANT,
) -> Verdict:
    """The verdict for candidate runs ``b`` against baseline runs ``a``; see the module's text for the rules."""
    if not a or not b:
        return Verdict(Word.NOT_MEASURED, "one side has no value")
    if any(run.value <= 0 for run in (*a, *b)):
        return Verdict(Word.NOT_MEASURED, "a value is zero or negative, so there is no ratio")
    logs_a, logs_b = [math.log(run.value) for run in a], [math.log(run.value) for run in b]
    delta = sum(logs_b) / len(b) - sum(logs_a) / len(a)
    ratio = math.exp(delta)
    within = _within(a, b)
    known, variance, freedom = _between(logs_a, logs_b, a, b, spread, within)
    low = high = half = None
    if variance is not None and freedom > 0:
        # degrees of freedom rounded down to a tenth: on the safe side, and few different ones to work out
        rounded = max(1.0, math.floor(min(freedom, 1000.0) * 10) / 10)
        half = t_quantile(0.5 + CONFIDENCE / 2, rounded) * math.sqrt(variance)
        low, high = math.exp(delta - half), math.exp(delta + half)

    def verdict(word: Word, reason: str, requests: int | None = None, runs: int | None = None) -> Verdict:
        return Verdict(word, reason, ratio, low, high, known, effective_a, effective_b, requests, runs)

    effective_a, effective_b = _effective(a), _effective(b)
    required = required_effective(q)
    short = [
        (side, runs) for side, runs in ((effective_a, a), (effective_b, b)) if side is not None and side < required
    ]
    if short:
        needed = max(math.ceil(required * sum(run.requests for run in runs) / side) for side, runs in short if side)
        counts = [sum(run.requests for run in runs) for runs in (a, b)]
        worth = ["unknown" if side is None else f"{side:.0f}" for side in (effective_a, effective_b)]
        return verdict(
            Word.NOT_ENOUGH_REQUESTS,
            f"{counts[0]} and {counts[1]} requests are worth an effective n of {worth[0]} and {worth[1]}, {required} "
            f"are needed: about {_round_up(needed)} requests a side at this load",
            requests=_round_up(needed),
        )
    if any(side is None for side in (effective_a, effective_b)):
        fewest = min(sum(run.requests for run in a), sum(run.requests for run in b))
        needed = math.ceil(required * ASSUMED_DESIGN)
        if fewest < needed:
            return verdict(
                Word.NOT_ENOUGH_REQUESTS,
                f"without per-request times the effective n is unknown; {needed} requests a side are asked for",
                requests=needed,
            )
    if low is None or high is None or half is None:
        return verdict(Word.NOT_ENOUGH_RUNS, _runs_reason(a, b), runs=MINIMUM_RUNS)
    span = f"{_percent(low)} to {_percent(high)}"
    if low <= 1.0 <= high or abs(ratio - 1.0) < relevant:
        if low > 1 - relevant and high < 1 + relevant:
            limit = f"any difference is within {span}, below the {relevant * 100:.0f} % that matter"
            return verdict(Word.NO_DIFFERENCE, limit + ("" if known else " (within these runs)"))
        if low <= 1.0 <= high:
            needed_runs = _needed_runs(a, b, variance or 0.0, relevant) if known else MINIMUM_RUNS
            return verdict(
                Word.NO_DIFFERENCE,
                f"the interval {span} includes 0: under {(math.exp(half) - 1) * 100:.0f} % nothing could be seen",
                runs=needed_runs,
            )
        return verdict(
            Word.NO_DIFFERENCE, f"{_percent(ratio)} is below the smallest relevant effect of {relevant * 100:.0f} %"
        )
    if not known:
        return verdict(
            Word.NOT_ENOUGH_RUNS, f"{_percent(ratio)} within these runs, but {_runs_reason(a, b)}", runs=MINIMUM_RUNS
        )
    good = (ratio < 1.0) == lower_is_better
    return verdict(Word.BETTER if good else Word.WORSE, f"{_percent(ratio)}, interval {span}")


def _percent(ratio: float) -> str:
    """A ratio as a signed difference; +0.0 below the last digit."""
    return f"{round((ratio - 1.0) * 100, 1) + 0.0:+.1f} %"


def _round_up(count: int) -> int:
    """Two significant digits, upwards: a plan, not a measurement."""
    if count < 100:
        return count
    unit = int(10 ** (len(str(count)) - 2))
    return math.ceil(count / unit) * unit


def _effective(runs: Sequence[RunValue]) -> float | None:
    found = [run.effective for run in runs]
    return None if any(each is None for each in found) else sum(each for each in found if each is not None)


def _runs_reason(a: Sequence[RunValue], b: Sequence[RunValue]) -> str:
    if len(a) >= MINIMUM_RUNS and len(b) >= MINIMUM_RUNS:
        return (
            "the runs of the two sides did not take turns, so drift over time looks like a difference: interleave them"
        )
    count = min(len(a), len(b))
    one = "one run a side" if count == 1 else f"{count} runs a side"
    needed = f"at least {MINIMUM_RUNS} interleaved runs a side are needed (--repeat {MINIMUM_RUNS})"
    return f"{one} cannot show run-to-run noise: {needed}"


def _within(a: Sequence[RunValue], b: Sequence[RunValue]) -> tuple[float, float] | None:
    """(variance of the difference from the blocks within the runs, its degrees of freedom); None when unknown."""
    total = 0.0
    shares = []
    for runs in (a, b):
        for run in runs:
            if run.error is None or run.blocks < 2:
                return None
            part = run.error**2 / len(runs) ** 2
            total += part
            shares.append((part, run.blocks - 1))
    bottom = sum(part**2 / freedom for part, freedom in shares)
    return total, (total**2 / bottom if bottom > 0 else 1e6)


def _between(
    logs_a: Sequence[float],
    logs_b: Sequence[float],
    a: Sequence[RunValue],
    b: Sequence[RunValue],
    spread: Spread | None,
    within: tuple[float, float] | None,
) -> tuple[bool, float | None, float]:
    """(run-to-run noise known, variance of the difference, degrees of freedom)."""
    squares = sum(sum((each - sum(logs) / len(logs)) ** 2 for each in logs) for logs in (logs_a, logs_b))
    freedom = len(logs_a) + len(logs_b) - 2
    repeated = len(a) >= MINIMUM_RUNS and len(b) >= MINIMUM_RUNS
    if repeated and not interleaved([run.started for run in a], [run.started for run in b]):
        repeated = False
    if not repeated and spread is None:
        return (False, *within) if within else (False, None, 0.0)
    if not repeated and spread is not None:
        # repeated runs speak for themselves: they may be the very ones that the spread was taken from
        squares += spread.freedom * (OTHER_DAY * spread.deviation) ** 2
        freedom += spread.freedom
    variance = squares / freedom * (1 / len(a) + 1 / len(b))
    # Few runs can agree by luck; the blocks within them bound the error from below.  The degrees of freedom stay
    # those of the runs: the blocks say nothing about what they have in common.
    return True, max(variance, within[0] if within else 0.0), float(freedom)


def _needed_runs(a: Sequence[RunValue], b: Sequence[RunValue], variance: float, relevant: float) -> int | None:
    """Runs a side until a difference of the smallest relevant size would show; None when more than 100."""
    one = variance / (1 / len(a) + 1 / len(b))
    for runs in range(max(MINIMUM_RUNS, min(len(a), len(b))), 101):
        if t_quantile(0.5 + CONFIDENCE / 2, 2 * runs - 2) * math.sqrt(2 * one / runs) <= math.log1p(relevant):
            return runs
    return None
