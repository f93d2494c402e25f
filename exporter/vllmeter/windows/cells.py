"""Cells: what one engine's histogram says about the requests recorded between two scrapes.

A cell has a count ``n``, an exact sum ``S`` and the count per bucket.  Everything that is said about a window (jitter,
quantiles, means) is worked out from cells, so a cell is made only from numbers that can be true together:

* ``n`` equals the difference of the +Inf bucket and no bucket lost requests,
* ``Σ lo ≤ S ≤ Σ hi`` over the buckets the requests fell into (beyond the last bound: the age of the process).

Two scrapes that do not fit (``_sum`` and buckets taken at different moments, a negative or uptime-sized interval that
vLLM recorded) are merged with the next scrape; what still does not fit after :data:`MERGE_SECONDS` becomes a
:class:`Broken` stretch, and every window that touches it is absent with reason ``inconsistent``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

MERGE_SECONDS: Final = 5.0
"""How long a difference that cannot be true is merged with the following scrapes before it is given up."""

_EPSILON: Final = 2.0**-52

_ABSURD: Final = 1e15
"""No sum of latencies reaches this many seconds (squares must stay finite)."""

Bounds = tuple[float, ...]
"""Finite upper bounds of a histogram, ascending, without +Inf."""

SparseCounts = tuple[tuple[int, int], ...]
"""(bucket index, requests), ascending, only where requests > 0; index ``len(bounds)`` is the +Inf bucket."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests that one engine recorded in (start, end] (monotonic seconds).  ``sum`` in the histogram's unit."""

    engine: str
    start: float
    end: float
    count: int
    sum: float
    buckets: SparseCounts
    bounds: Bounds

    @property
    def mean(self) -> float:
        """Exact mean of the requests in the cell (never empty)."""
        return self.sum / self.count


@dataclass(frozen=True, slots=True)
class Broken:
    """A stretch of time in which count, sum and buckets contradict each other."""

    engine: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Box:
    """``count`` requests of one cell that all lie in [lo, hi], hi finite."""

    count: int
    lo: float
    hi: float


def bounds_usable(bounds: Bounds) -> bool:
    """Whether latencies can be boxed by these bounds: ascending, finite, and no bucket that reaches below 0."""
    previous = -inf
    for bound in bounds:
        if not isfinite(bound) or bound <= previous:
            return False
        previous = bound
    return not bounds or bounds[0] >= 0.0


def limits(buckets: SparseCounts, bounds: Bounds) -> tuple[float, float]:
    """(Σ lo, Σ hi) of the requests; Σ hi is infinite as soon as one request is in the +Inf bucket."""
    low = high = 0.0
    last = len(bounds)
    for index, count in buckets:
        if index:
            low += count * bounds[index - 1]
        high = high + count * bounds[index] if index < last else inf
    return low, high


def boxes(cell: Cell) -> list[Box]:
    """The boxes of a cell's requests, one per bucket, lowest first, tightened by the exact sum.

    No request can exceed ``S − Σ lo of the others`` nor fall below ``S − Σ hi of the others``; the first limit makes
    the +Inf bucket finite.  Tightening removes nothing that is possible, so minima and maxima over the boxes do not
    change by it.
    """
    bounds = cell.bounds
    last = len(bounds)
    low, high = limits(cell.buckets, bounds)
    surplus = max(cell.sum - low, 0.0)
    slack = max(high - cell.sum, 0.0)
    found = []
    for index, count in cell.buckets:
        lo = bounds[index - 1] if index else 0.0
        hi = lo + surplus
        if index < last:
            hi = min(hi, bounds[index])
            lo = max(lo, bounds[index] - slack)
        elif count == 1:
            # The only request beyond the last bound: the others cannot take more than their hi.
            lo = max(lo, cell.sum - limits(cell.buckets[:-1], bounds)[1])
        found.append(Box(count, min(lo, hi), hi))
    return found


def check(buckets: SparseCounts, total: float, bounds: Bounds, tolerance: float, longest: float = inf) -> float | None:
    """The sum to use when the requests can have it, else None.

    ``tolerance`` is the float resolution of ``_sum`` (two large numbers are subtracted); a sum that misses the
    possible range by less is moved onto it.  ``longest`` limits requests beyond the last bound: nothing takes longer
    than its process has been running.
    """
    low, high = limits(buckets, bounds)
    if high == inf:
        high = limits(buckets[:-1], bounds)[1] + buckets[-1][1] * longest
    if low <= total <= high:
        return total
    if low - tolerance <= total < low:
        return low
    if high < total <= high + tolerance:
        return high
    return None


class CellBuilder:
    """Turns the cumulative histograms of one engine into cells.

    ``baseline`` or ``zero`` sets the starting point; each ``add`` then yields a :class:`Cell`, a :class:`Broken`
    stretch, or None (no request, or merged with the next scrape).
    """

    __slots__ = ("_base", "_base_at", "_base_sum", "_bounds", "_odd_since", "_usable", "engine")

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self._bounds: Bounds = ()
        self._base: Sequence[float] | None = None
        self._base_sum = 0.0
        self._base_at = 0.0
        self._odd_since: float | None = None
        self._usable = True

    @property
    def pending(self) -> bool:
        """Whether a contradiction waits for the next scrape."""
        return self._odd_since is not None

    @property
    def usable(self) -> bool:
        """False when the bounds themselves cannot box latencies."""
        return self._usable

    @property
    def empty(self) -> bool:
        """Whether no request had been recorded at the last accepted scrape."""
        return not self._base or self._base[-1] == 0.0

    def baseline(self, bounds: Bounds, cumulative: Sequence[float], total: float, at: float) -> None:
        """Start counting from these values: what happened before ``at`` is not known."""
        self._usable = bounds_usable(bounds) and len(cumulative) == len(bounds) + 1
        self._bounds = bounds
        self._base = cumulative
        self._base_sum = total
        self._base_at = at
        self._odd_since = None

    def zero(self, bounds: Bounds, at: float) -> None:
        """Start counting from 0 at ``at``: the process started, or the series came into being, after that."""
        self.baseline(bounds, (0.0,) * (len(bounds) + 1), 0.0, at)

    def dropped(self, cumulative: Sequence[float]) -> bool:
        """Whether the count went down against the last accepted scrape (the mark of a counter reset)."""
        base = self._base
        return base is not None and len(base) > 0 and len(cumulative) > 0 and 0.0 <= cumulative[-1] < base[-1]

    def add(
        self, bounds: Bounds, cumulative: Sequence[float], total: float, at: float, longest: float = inf
    ) -> Cell | Broken | None:
        """Take the next scrape; ``cumulative`` has one entry per bound and one for +Inf.

        ``longest``: no request can have taken longer (seconds that the process has been running, if known).
        """
        base = self._base
        if base is None or (bounds is not self._bounds and bounds != self._bounds):
            # Bounds never change within a process; without a reset nothing can be said about the difference.
            before = self._base_at
            self.baseline(bounds, cumulative, total, at)
            return None if base is None else Broken(self.engine, before, at)
        if cumulative[-1] == base[-1] and total == self._base_sum and self._odd_since is None:
            self._base_at = at
            return None
        start = self._base_at
        cell = self._cell(base, cumulative, total, at, longest) if self._usable else None
        if cell is None:
            if self._odd_since is None:
                self._odd_since = at
            if at - self._odd_since < MERGE_SECONDS and self._usable:
                return None
            self.baseline(bounds, cumulative, total, at)
            return Broken(self.engine, start, at)
        self._base = cumulative
        self._base_sum = total
        self._base_at = at
        self._odd_since = None
        return cell if cell.count else None

    def _cell(
        self, base: Sequence[float], cumulative: Sequence[float], total: float, at: float, longest: float
    ) -> Cell | None:
        """The cell since the base, None when it cannot be true."""
        if len(cumulative) != len(base):
            return None
        sparse = []
        below = 0.0
        for index, (new, old) in enumerate(zip(cumulative, base, strict=True)):
            difference = new - old
            if difference != below:
                count = difference - below
                # NaN fails every comparison, so it ends here as well.
                if not (0.0 < count < 2.0**53) or count != int(count):
                    return None
                sparse.append((index, int(count)))
                below = difference
        n = int(below)
        tolerance = (n + 2) * _EPSILON * max(abs(total), abs(self._base_sum))
        buckets = tuple(sparse)
        if not abs(total) < _ABSURD:
            return None
        checked = check(buckets, total - self._base_sum, self._bounds, tolerance, longest)
        if checked is None:
            return None
        return Cell(self.engine, self._base_at, at, n, checked, buckets, self._bounds)


def bucket_of(value: float, bounds: Bounds) -> int:
    """Index of the bucket that counts ``value`` (upper bounds are inclusive, as in Prometheus)."""
    return bisect_left(bounds, value)


def cell_of(
    values: Sequence[float], bounds: Bounds, *, engine: str = "0", start: float = 0.0, end: float = 1.0
) -> Cell:
    """The cell that a server would show for these per-request values (simulations and tests)."""
    counts: dict[int, int] = {}
    for value in values:
        index = bucket_of(value, bounds)
        counts[index] = counts.get(index, 0) + 1
    return Cell(engine, start, end, len(values), sum(values), tuple(sorted(counts.items())), bounds)
