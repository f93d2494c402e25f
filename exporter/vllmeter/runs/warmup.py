"""Which requests at the beginning of a run are warm-up and not service.  Pure.

A fresh vLLM process compiles kernels and fills caches while it serves its first requests: in the H200 recording the
first batch had TTFTs of 0.58 to 1.76 s, all later ones 0.05 to 0.09 s.  Such a start says nothing about the setting
under test, and one batch of it makes up the whole p95 of a short run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FACTOR: Final = 1.5
"""A leading batch must be slower than this many times the median of what follows …"""
DEVIATIONS: Final = 5.0
"""… and more than this many robust standard deviations (1.4826 MAD) above it."""
LARGEST_SHARE: Final = 0.25
"""At most this share of the requests is taken for cold start: more is how the server behaves."""
FEWEST_GROUPS: Final = 3
"""Batches that must follow to tell an odd start from an odd run."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Leading requests that look like cold start; ``requests`` 0 = none.  Times in seconds."""

    groups: int = 0
    requests: int = 0
    slowest: float = 0.0
    median_after: float = 0.0

    def text(self) -> str:
        """In words, "" when there was none."""
        if not self.requests:
            return ""
        return (
            f"cold start: the first {self.requests} requests (up to {self.slowest:.2f} s, "
            f"median afterwards {self.median_after:.3f} s) are warm-up and left out"
        )


def cold_start(groups: Sequence[tuple[float, int, float]]) -> ColdStart:
    """``groups``: (mean, requests, slowest) of each batch of first tokens, in order of time."""
    total = sum(count for _, count, _ in groups)
    taken = slowest = 0.0
    number = 0
    for mean, count, worst in groups:
        rest = groups[number + 1 :]
        if len(rest) < FEWEST_GROUPS or taken + count > LARGEST_SHARE * total:
            break
        median, deviation = _centre(rest)
        if mean <= max(FACTOR * median, median + DEVIATIONS * 1.4826 * deviation):
            break
        taken += count
        slowest = max(slowest, worst)
        number += 1
    if not number:
        return ColdStart()
    return ColdStart(number, int(taken), slowest, _centre(groups[number:])[0])


def _centre(groups: Sequence[tuple[float, int, float]]) -> tuple[float, float]:
    """(median, median absolute deviation) of the batch means, each as often as it has requests."""
    values = [mean for mean, count, _ in groups for _ in range(min(count, 64))]
    median = statistics.median(values)
    return median, statistics.median(abs(value - median) for value in values)
