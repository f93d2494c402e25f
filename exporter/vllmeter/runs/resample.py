"""How sure a run's statistic is, when its requests are not independent.

Load-test clients work in lockstep: a batch of requests starts together, is prefilled together and gets its first
tokens within milliseconds of each other.  Such requests say the same thing several times.  A bootstrap of single
requests then calls chance a difference in 25-67 % of the cases.  So:

* **clusters** are requests whose first tokens came in lockstep (:func:`clusters`); their intra-cluster correlation
  gives the design effect of Kish, ``1 + (m - 1) icc``;
* **blocks** are runs of consecutive clusters.  Block length is chosen from the data (Flyvbjerg and Petersen 1989:
  double it while the variance of the mean still grows), which also covers queueing and drift within a run;
* intervals come from resampled blocks, never from single requests;
* the **effective n** is the number of independent requests that would give the same precision: the smallest that
  clusters, blocks and, for a quantile, blocks of "above or below it" allow.

numpy is imported inside the functions: the exporter's ``serve`` never needs this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

LOCKSTEP_SECONDS: Final = 0.1
"""First tokens (or starts) within this span count as one batch.  In the H200 recording batches of 4 to 16 spread over
at most 91 ms and lie 1.6 s or more apart; the engine's steps there take about 24 ms."""

MINIMUM_BLOCKS: Final = 10
"""Fewest blocks a variance is estimated from: below, its own error is above 50 %."""

MOST_BLOCKS: Final = 256
"""More blocks than this are merged before resampling: the error's own error is then below 5 %."""

RESAMPLES: Final = 400
"""Bootstrap resamples: their own error on a standard error is about 1/sqrt(2 * 400) = 3.5 %."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One statistic of one run.

    ``error`` is the standard error of ln(value), i.e. about the relative error; None when it cannot be estimated (fewer
    than three blocks).  ``blocks`` is the number of resampled blocks (its degrees of freedom plus one).  ``design``
    is the design effect: requests / effective.  ``icc`` is the intra-cluster correlation, None without batches.
    """

    value: float
    requests: int
    effective: float
    error: float | None
    blocks: int
    design: float
    clusters: int
    icc: float | None = None


def clusters(starts: Sequence[float], firsts: Sequence[float], span: float = LOCKSTEP_SECONDS) -> list[int]:
    """Cluster number of each request, in the order given; numbers rise with the time of the first token.

    A cluster opens with the earliest first token left and takes all requests whose first token comes within ``span``
    of it; requests that *started* within ``span`` of its first start and directly follow it join too (a batch whose
    prefill took several steps).
    """
    order = sorted(range(len(firsts)), key=lambda index: (firsts[index], starts[index]))
    found = [0] * len(order)
    number = -1
    opened = started = -math.inf
    for index in order:
        together = firsts[index] - opened <= span or abs(starts[index] - started) <= span / 10
        if number < 0 or not together:
            number += 1
            opened, started = firsts[index], starts[index]
        found[index] = number
    return found


def intra_cluster(values: Floats, labels: Integers) -> tuple[float | None, float]:
    """(ICC by analysis of variance, Kish design effect).  ``labels`` count up from 0 without gaps.

    ICC is None (design effect 1) when no cluster has two requests, and when only one cluster exists it is taken as 1:
    one batch cannot show that its requests are independent.
    """
    import numpy as np

    n = len(values)
    sizes = np.bincount(labels)
    k = len(sizes)
    if k == n:
        return None, 1.0
    weighted = float((sizes**2).sum() / n)
    if k == 1:
        return 1.0, float(n)
    means = np.bincount(labels, weights=values) / sizes
    within = float(((values - means[labels]) ** 2).sum()) / (n - k)
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (k - 1)
    m0 = (n - weighted) / (k - 1)
    denominator = between + (m0 - 1) * within
    icc = 1.0 if denominator <= 0 else min(1.0, max(0.0, (between - within) / denominator))
    if within == 0 and between == 0:
        icc = 1.0
    return icc, 1.0 + (weighted - 1.0) * icc


def block_levels(count: int) -> list[int]:
    """Clusters per block to try: 1, 2, 4, … while at least MINIMUM_BLOCKS blocks remain (always at least [1])."""
    sizes = [1]
    while count // (sizes[-1] * 2) >= MINIMUM_BLOCKS:
        sizes.append(sizes[-1] * 2)
    return sizes


def _block_labels(labels: Integers, size: int) -> Integers:
    """Merges ``size`` consecutive clusters; a short last block joins the one before it."""
    import numpy as np

    blocks = labels // size
    count = int(labels.max()) + 1
    last = (count - 1) // size
    if last and count % size and (count % size) * 2 < size:
        blocks = np.minimum(blocks, last - 1)
    return blocks


def _mean_variance(values: Floats, blocks: Integers) -> float:
    """Variance of the mean from block sums (ratio estimator: blocks may differ in size)."""
    import numpy as np

    count = int(blocks.max()) + 1
    if count < 2:
        return math.inf
    residual = np.bincount(blocks, weights=values - values.mean())
    return float((residual**2).sum() / len(values) ** 2 * count / (count - 1))


def choose_blocks(values: Floats, labels: Integers) -> tuple[Integers, float]:
    """(block of each request, variance of the mean): the block length with the largest variance of the mean."""
    levels = [_block_labels(labels, size) for size in block_levels(int(labels.max()) + 1)]
    variances = [_mean_variance(values, blocks) for blocks in levels]
    best = max(range(len(levels)), key=lambda index: variances[index])
    return levels[best], variances[best]


def _resampled_quantiles(values: Floats, blocks: Integers, drawn: Floats, q: float) -> Floats:
    """The quantile of each resample: the smallest value with a share >= q of the drawn requests at or below it.

    ``drawn[r, k]`` is how often block k is in resample r.  Only values near the quantile are looked at; the rest counts
    as a whole (and all are looked at in the rare case that a resample's quantile lies outside).
    """
    import numpy as np

    order = np.argsort(values, kind="stable")
    n, count = len(values), drawn.shape[1]
    totals = drawn @ np.bincount(blocks, minlength=count).astype(np.float64)
    wanted = q * totals - 1e-9
    reach = max(8, math.ceil(0.1 * n))
    middle = math.ceil(q * n)
    for low, high in ((max(0, middle - reach), min(n, middle + reach)), (0, n)):
        below = drawn @ np.bincount(blocks[order[:low]], minlength=count).astype(np.float64)
        inside = drawn[:, blocks[order[low:high]]]
        cumulated = below[:, None] + np.cumsum(inside, axis=1)
        if (low == 0 or bool((below < wanted).all())) and bool((cumulated[:, -1] >= wanted).all()):
            break
    found: Floats = values[order[low + np.argmax(cumulated >= wanted[:, None], axis=1)]]
    return found


def quantile(values: Floats, q: float) -> float:
    """The order statistic ceil(q n), the definition used throughout (see docs)."""
    import numpy as np

    index = max(0, math.ceil(q * len(values) - 1e-9) - 1)
    return float(np.partition(values, index)[index])


def estimate(
    values: Floats,
    labels: Integers,
    q: float | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The mean (``q`` None) or a quantile of one run, with its error from resampled blocks.

    ``values`` (positive) and ``labels`` (cluster of each, from :func:`clusters`, rising in time) run parallel.
    The resampling is seeded: the same run always gives the same interval.
    """
    import numpy as np

    n = len(values)
    value = float(values.mean()) if q is None else quantile(values, q)
    groups = int(labels.max()) + 1
    if float(values.std()) <= 1e-9 * abs(value):
        # all the same but for rounding: nothing varies, so nothing can be correlated
        return Estimate(value, n, float(n), 0.0, groups, 1.0, groups)
    icc, design = intra_cluster(values, labels)
    blocks, variance = choose_blocks(values, labels)
    spread = float(values.var())
    if spread > 0 and math.isfinite(variance):
        design = max(design, variance * n / spread)
    if q is not None:
        above = (values > value).astype(np.float64)
        share = float(above.mean())
        blocks_q, variance_q = choose_blocks(above, labels)
        if share > 0 and math.isfinite(variance_q):
            design = max(design, variance_q * n / (share * (1 - share)))
            blocks = blocks_q
    count = int(blocks.max()) + 1
    error = None
    if count >= 3 and value > 0:
        error = _resampled_error(values, blocks, count, q, seed, resamples)
    return Estimate(
        value=value,
        requests=n,
        effective=n / design,
        error=error,
        blocks=count,
        design=design,
        clusters=groups,
        icc=icc,
    )


def _resampled_error(values: Floats, blocks: Integers, count: int, q: float | None, seed: int, resamples: int) -> float:
    """Standard deviation of ln(statistic) over resamples of whole blocks, corrected for the number of blocks."""
    import numpy as np

    if count > MOST_BLOCKS:
        # neighbouring blocks together: as good an estimate of the error, and much less work
        blocks, count = blocks * MOST_BLOCKS // count, MOST_BLOCKS
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(count, np.full(count, 1.0 / count), size=resamples).astype(np.float64)
    if q is None:
        sums = drawn @ np.bincount(blocks, weights=values)
        counts = drawn @ np.bincount(blocks).astype(np.float64)
        statistics = sums / np.maximum(counts, 1e-12)
    else:
        statistics = _resampled_quantiles(values, blocks, drawn, q)
    logs = np.log(np.maximum(statistics, 1e-300))
    return float(logs.std() * math.sqrt(count / (count - 1)))


def as_arrays(values: Sequence[float], labels: Sequence[int]) -> tuple[Any, Any]:
    """Plain sequences as the arrays that :func:`estimate` takes."""
    import numpy as np

    return np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=np.int64)
