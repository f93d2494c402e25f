"""Quantile bounds hold the request of that rank, and shares over a bound are exact."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.windows.cells import cell_of
from vllmeter.windows.quantile import QUANTILES, limits_of, quantiles, shares_over
from windows.bounds_brute import TTFT

MANY = st.lists(st.lists(st.one_of(st.floats(0.0, 4000.0), st.sampled_from(TTFT)), min_size=1, max_size=60), max_size=8)


@settings(max_examples=200, deadline=None)
@given(MANY)
def test_the_request_of_that_rank_is_inside(cells: list[list[float]]) -> None:
    """For every quantile that is given, the true order statistic lies between the bounds."""
    values = sorted(value for part in cells for value in part)
    found, absent = quantiles([limits_of(cell_of(part, TTFT)) for part in cells])
    for label, (percent, fewest) in QUANTILES.items():
        assert (label in found) == (len(values) >= fewest)
        assert (label in absent) == (len(values) < fewest)
        if label in found:
            truth = values[-(-percent * len(values) // 100) - 1]
            room = 1e-9 * max(values)
            assert found[label][0] - room <= truth <= found[label][1] + room


@settings(max_examples=100, deadline=None)
@given(MANY)
def test_shares_over_each_bound_are_exact(cells: list[list[float]]) -> None:
    """The share over a bound is the number of requests above it over all requests."""
    values = [value for part in cells for value in part]
    shares = shares_over(cell_of(part, TTFT) for part in cells)
    assert set(shares) == (set(TTFT) if values else set())
    for bound, share in shares.items():
        assert share == pytest.approx(sum(value > bound for value in values) / len(values), abs=1e-12)


def test_sums_tighten_what_buckets_alone_leave_open() -> None:
    """Single-request cells give the exact quantile where the bucket alone would say 0.1 to 0.25 s."""
    found, _ = quantiles([limits_of(cell_of([0.1 + rank / 1000], TTFT)) for rank in range(1, 21)])
    assert found["0.95"] == pytest.approx((0.119, 0.119))


def test_median_inside_one_bucket_is_narrowed_by_the_mean() -> None:
    """Fifty requests near the bottom of a wide bucket: their mean keeps the median from being high."""
    values = [0.105 + 0.0001 * rank for rank in range(50)]
    found, _ = quantiles([limits_of(cell_of(values, TTFT))])
    assert found["0.5"][1] < 0.12


def test_beyond_the_last_bound_the_upper_limit_is_finite() -> None:
    """Requests in the +Inf bucket are limited by the sum of their cell."""
    found, _ = quantiles([limits_of(cell_of([3000.0 + rank], TTFT)) for rank in range(20)])
    assert found["0.95"] == pytest.approx((3018.0, 3018.0))


def test_too_few_requests_have_no_quantile() -> None:
    """19 requests give a median but no p95, and say why."""
    rng = random.Random(1)
    found, absent = quantiles([limits_of(cell_of([rng.random() for _ in range(19)], TTFT))])
    assert set(found) == {"0.5"}
    assert absent == {"0.95": "too_few_requests", "0.99": "too_few_requests"}
    assert quantiles([])[1] == dict.fromkeys(QUANTILES, "no_requests")


def test_shares_use_only_bounds_that_all_cells_have() -> None:
    """After a restart with other buckets, only the bounds common to both lives can be compared."""
    shares = shares_over([cell_of([0.2, 0.6], (0.25, 0.5)), cell_of([0.2], (0.5, 1.0))])
    assert shares == {0.5: pytest.approx(1 / 3)}
