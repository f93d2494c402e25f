"""Quantiles of a window with guaranteed bounds, and exact shares of requests over each bucket bound.

A quantile p is the order statistic ⌈pN⌉: the request of that rank, not an interpolation.  Each cell says more than its
buckets, because its sum is exact.  Sort the ``c`` requests of one bucket of one cell; for the j-th smallest,

* the ``c − j + 1`` largest are all at least as large, so x_j ≤ lo + (S − Σ lo) / (c − j + 1);
* the ``j`` smallest are all at most as large, so x_j ≥ hi − (Σ hi − S) / j;

and of course lo ≤ x_j ≤ hi.  The k-th smallest of all lower limits is then a lower bound of the k-th smallest request,
and the same holds above.  Buckets with many requests are cut into blocks of ranks, each with the loosest limit in it:
the work per cell stays bounded and the bounds stay true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vllmeter.windows.cells import Bounds, Cell, boxes

QUANTILES: Final[Mapping[str, tuple[int, int]]] = {"0.5": (50, 10), "0.95": (95, 20), "0.99": (99, 100)}
"""Label -> (percent, fewest requests).  With fewer than 20 (100) requests p95 (p99) is the maximum under another name;
p50 needs 10, below which one request more or less moves the rank by over a twentieth of all requests."""

_BLOCKS: Final = 8

Weighted = tuple[float, int]
"""(limit in seconds, number of requests it holds for)"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Lower and upper limits of a cell's requests, each sorted; worked out once when the cell is closed."""

    lows: tuple[Weighted, ...]
    highs: tuple[Weighted, ...]


def limits_of(cell: Cell) -> Limits:
    """The limits that buckets and sum put on the requests of a cell."""
    parts = boxes(cell)
    surplus = max(cell.sum - sum(part.count * part.lo for part in parts), 0.0)
    slack = max(sum(part.count * part.hi for part in parts) - cell.sum, 0.0)
    lows: list[Weighted] = []
    highs: list[Weighted] = []
    for part in parts:
        for first, last in _blocks(part.count):
            size = last - first + 1
            lows.append((max(part.lo, part.hi - slack / first), size))
            highs.append((min(part.hi, part.lo + surplus / (part.count - last + 1)), size))
    return Limits(tuple(sorted(lows)), tuple(sorted(highs)))


def _blocks(count: int) -> list[tuple[int, int]]:
    """Ranks 1..count in at most eight blocks (first, last)."""
    if count <= _BLOCKS:
        return [(rank, rank) for rank in range(1, count + 1)]
    edges = [count * block // _BLOCKS for block in range(_BLOCKS + 1)]
    return [(edges[i] + 1, edges[i + 1]) for i in range(_BLOCKS)]


def quantiles(cells: Sequence[Limits]) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """({"0.95": (lower, upper), …}, {"0.99": reason, …}): bounds in seconds, and why the others are absent."""
    lows = sorted([entry for cell in cells for entry in cell.lows])
    highs = sorted([entry for cell in cells for entry in cell.highs])
    total = sum(size for _, size in lows)
    found: dict[str, tuple[float, float]] = {}
    absent: dict[str, str] = {}
    ranks = []
    for label, (percent, fewest) in QUANTILES.items():
        if total < fewest:
            absent[label] = "too_few_requests" if total else "no_requests"
        else:
            ranks.append((label, -(-percent * total // 100)))
    if ranks:
        below = _at_ranks(lows, [rank for _, rank in ranks])
        above = _at_ranks(highs, [rank for _, rank in ranks])
        for (label, _), low, high in zip(ranks, below, above, strict=True):
            found[label] = (low, max(low, high))
    return found, absent


def _at_ranks(entries: Sequence[Weighted], ranks: Sequence[int]) -> list[float]:
    """The entries at ascending ranks (1 = smallest)."""
    found = []
    seen = 0
    wanted = iter(ranks)
    rank = next(wanted)
    for limit, size in entries:
        seen += size
        while seen >= rank:
            found.append(limit)
            following = next(wanted, None)
            if following is None:
                return found
            rank = following
    raise AssertionError("rank beyond the number of requests")


def shares_over(cells: Iterable[Cell]) -> dict[float, float]:
    """Share (0-1) of requests above each bound that all cells of the window have; {} without requests.  Exact."""
    totals: dict[Bounds, list[int]] = {}
    requests = 0
    bounds: Bounds = ()
    counts: list[int] = []
    for cell in cells:
        if cell.bounds is not bounds or not counts:
            bounds = cell.bounds
            counts = totals.setdefault(bounds, [0] * (len(bounds) + 1))
        requests += cell.count
        for index, count in cell.buckets:
            counts[index] += count
    if not requests:
        return {}
    common = set.intersection(*map(set, totals))
    over = dict.fromkeys(sorted(common), 0)
    for bounds, counts in totals.items():
        above = 0
        for bound, count in zip(reversed(bounds), reversed(counts), strict=False):
            above += count
            if bound in over:
                over[bound] += above
    return {bound: count / requests for bound, count in over.items()}
