"""Brute force against which jitter and quantile bounds are tested: enumerate the corners of what a cell allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf

from vllmeter.windows.cells import Bounds, Cell


def request_boxes(cell: Cell) -> list[tuple[float, float]]:
    """(lo, hi) of every single request straight from its bucket, +Inf left infinite."""
    found = []
    for index, count in cell.buckets:
        lo = cell.bounds[index - 1] if index else 0.0
        hi = cell.bounds[index] if index < len(cell.bounds) else inf
        found += [(lo, hi)] * count
    return found


def vertices(cell: Cell) -> Iterator[list[float]]:
    """All corner points of {x: lo ≤ x ≤ hi, Σx = S}: all values but one at an end, the free one takes the rest."""
    limits = request_boxes(cell)
    for free in range(len(limits)):
        others = [limits[i] for i in range(len(limits)) if i != free]
        lo, hi = limits[free]
        for ends in product((0, 1), repeat=len(others)):
            chosen = [limit[end] for limit, end in zip(others, ends, strict=True)]
            if inf in chosen:
                continue
            rest = cell.sum - sum(chosen)
            if lo - 1e-12 <= rest <= hi + 1e-12:
                yield [*chosen[:free], rest, *chosen[free:]]


def greatest(cell: Cell) -> float:
    """Greatest Σ(x − m)² (a convex function has its maximum in a corner)."""
    mean = cell.sum / cell.count
    return max(sum((x - mean) ** 2 for x in point) for point in vertices(cell))


def least(cell: Cell) -> float:
    """Least Σ(x − m)² by active sets: every assignment of low end, high end, free, with the free ones equal."""
    limits = request_boxes(cell)
    mean = cell.sum / cell.count
    best = inf
    for ends in product((0, 1, 2), repeat=len(limits)):
        fixed = [limit[end] for limit, end in zip(limits, ends, strict=True) if end < 2]
        free = [limit for limit, end in zip(limits, ends, strict=True) if end == 2]
        if inf in fixed:
            continue
        rest = cell.sum - sum(fixed)
        if not free:
            if abs(rest) > 1e-9:
                continue
            value = sum((x - mean) ** 2 for x in fixed)
        else:
            level = rest / len(free)
            if any(level < lo - 1e-12 or level > hi + 1e-12 for lo, hi in free):
                continue
            value = sum((x - mean) ** 2 for x in fixed) + len(free) * (level - mean) ** 2
        best = min(best, value)
    return best


def population_sd(values: Sequence[float]) -> float:
    """Population standard deviation, two passes."""
    mean = sum(values) / len(values)
    return (sum((x - mean) ** 2 for x in values) / len(values)) ** 0.5


TTFT: Bounds = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
