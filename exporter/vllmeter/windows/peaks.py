"""Peaks, bursts and ratios of one window, from the rows of a ring.

All functions take the rows' values as they are (NaN = not known) and return None where nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isnan
from typing import Final

from vllmeter.windows.ring import Column

LONG_SAMPLE: Final = 1.5
"""A sample that took more than this many nominal intervals is not taken for one burst."""


def known(value: float) -> float | None:
    """The value, None for NaN."""
    return None if isnan(value) else value


def peak(column: Column, begin: int, end: int) -> float | None:
    """Largest value of a gauge in any sample of the window."""
    return known(column.peak(begin, end))


def total(column: Column, begin: int, end: int) -> float | None:
    """Sum of a counter's deltas in the window."""
    return known(column.sum(begin, end))


def burst(deltas: Sequence[float], stretches: Sequence[tuple[float, float]], interval: float) -> float | None:
    """Most events between two successive samples, never more than really fell into one interval.

    Where a sample came late (a gap), its delta covers several intervals.  By the pigeonhole principle one of them holds
    at least delta / intervals events; that many are reported, so that a gap never looks like a burst.
    """
    largest: float | None = None
    for delta, (start, end) in zip(deltas, stretches, strict=True):
        if isnan(delta):
            continue
        intervals = (end - start) / interval
        size = delta if intervals <= LONG_SAMPLE else float(ceil(delta / ceil(intervals)))
        if largest is None or size > largest:
            largest = size
    return largest


def ratio(part: float | None, whole: float | None) -> tuple[float | None, str | None]:
    """(part / whole, None), or (None, reason): never 0 for "nothing happened"."""
    if part is None or whole is None:
        return None, "not_offered"
    if whole <= 0.0:
        return None, "no_queries"
    if part > whole:
        return None, "inconsistent"
    return part / whole, None
