"""TTFT jitter: the standard deviation of per-request TTFT over a window, with bounds that hold.

Definition: the *population* standard deviation of TTFT as the server recorded it, in seconds.  vLLM gives no
per-request values, but by the law of total variance, with the cells of :mod:`vllmeter.windows.cells`::

    N × variance = Σ n_i (m_i − M)²  +  Σ_i Σ_x (x − m_i)²
                   between cells: exact   within cells: bounded

The within part of a cell lies between the least and the greatest Σ(x − m)² that ``n`` values in those buckets with that
exact sum can have:

* least: all values as close to each other as their boxes allow, x = clip(λ, lo, hi) with λ such that Σx = S;
* greatest: all values at their lower end and the surplus S − Σ lo given to the buckets from the **highest** down,
  because moving an amount from a smaller to a larger value always raises Σx².

Engines are pooled as cells around one mean.  A cell with one request is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from vllmeter.windows.cells import Box, Cell, boxes

ESTIMATE_MAX_RATIO: Final = 3.0
"""No point estimate where the upper bound is more than this many times the lower one."""

MIN_REQUESTS: Final = 2
"""One request has no spread: jitter is absent, not 0."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a cell gives to the window: count, sum, and the least and greatest Σ(x − m)² inside it."""

    count: int
    sum: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Jitter:
    """Jitter of a window.  ``lower`` ≤ truth ≤ ``upper`` (seconds); None = absent, ``reason`` says why.

    ``estimate`` = 2LU/(L+U) has the guaranteed relative error ``error_ratio`` = (U−L)/(U+L); ``ratio`` = estimate over
    mean (coefficient of variation).
    """

    requests: int
    mean: float | None
    lower: float | None
    upper: float | None
    estimate: float | None
    error_ratio: float | None
    ratio: float | None
    reason: str | None = None


def within(cell: Cell) -> tuple[float, float]:
    """(least, greatest) Σ(x − m)² over all values that the cell allows."""
    if cell.count == 1:
        return 0.0, 0.0
    parts = boxes(cell)
    mean = cell.sum / cell.count
    return _least(parts, cell.sum, mean), _greatest(parts, cell.sum, mean)


def _least(parts: Sequence[Box], total: float, mean: float) -> float:
    """Least Σ(x − mean)² with Σx = total: every value as near to one λ as its box allows."""
    ordered = sorted(parts, key=_by_lo)
    below = 0.0
    above = sum(part.count * part.lo for part in ordered)
    level = ordered[-1].hi
    for part in ordered:
        # Boxes of different buckets do not overlap, so λ lies in one of them, or between two (then both tests below
        # meet at an edge): the lower ones are full, the higher ones empty.
        above -= part.count * part.lo
        level = (total - below - above) / part.count
        if level <= part.hi:
            level = max(level, part.lo)
            break
        below += part.count * part.hi
    return sum(part.count * (min(max(level, part.lo), part.hi) - mean) ** 2 for part in ordered)


def _greatest(parts: Sequence[Box], total: float, mean: float) -> float:
    """Greatest Σ(x − mean)² with Σx = total: all at lo, the surplus to the boxes from the highest down."""
    ordered = sorted(parts, key=_by_lo, reverse=True)
    surplus = total - sum(part.count * part.lo for part in ordered)
    squares = 0.0
    for part in ordered:
        width = part.hi - part.lo
        full = 0
        rest = part.count
        if width > 0.0 and surplus > 0.0:
            full = min(part.count, int(surplus // width))
            surplus -= full * width
            rest -= full
            squares += full * (part.hi - mean) ** 2
            if rest and surplus > 0.0:
                squares += (part.lo + min(surplus, width) - mean) ** 2
                surplus = 0.0
                rest -= 1
        squares += rest * (part.lo - mean) ** 2
    return squares


def _by_lo(part: Box) -> float:
    return part.lo


def part_of(cell: Cell) -> Part:
    """The cell's share of a window, worked out once when the cell is closed."""
    least, greatest = within(cell)
    return Part(cell.count, cell.sum, least, greatest)


def jitter(parts: Iterable[Part]) -> Jitter:
    """Jitter over the cells of one window (any engines).  The reason for an absent value is in ``reason``."""
    cells = list(parts)
    requests = sum(part.count for part in cells)
    if not requests:
        return Jitter(0, None, None, None, None, None, None, "no_requests")
    mean = sum(part.sum for part in cells) / requests
    if requests < MIN_REQUESTS:
        return Jitter(requests, mean, None, None, None, None, None, "too_few_requests")
    between = sum(part.count * (part.sum / part.count - mean) ** 2 for part in cells)
    lower = sqrt((between + sum(part.least for part in cells)) / requests)
    upper = max(lower, sqrt((between + sum(part.greatest for part in cells)) / requests))
    if upper > ESTIMATE_MAX_RATIO * lower:
        return Jitter(requests, mean, lower, upper, None, None, None, "bounds_too_wide")
    if upper == 0.0:
        return Jitter(requests, mean, 0.0, 0.0, 0.0, 0.0, 0.0 if mean else None, None)
    estimate = 2.0 * lower * upper / (lower + upper)
    error = (upper - lower) / (upper + lower)
    return Jitter(requests, mean, lower, upper, estimate, error, estimate / mean if mean > 0.0 else None, None)
