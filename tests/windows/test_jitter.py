"""Jitter bounds: exact against brute force, and the truth is always inside."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.windows.cells import cell_of
from vllmeter.windows.jitter import jitter, part_of, within
from windows.bounds_brute import TTFT, greatest, least, population_sd

BOUNDS = st.sampled_from(
    [
        TTFT,
        (0.25, 0.5, 0.75, 1.0),  # equal-width neighbours
        (0.1,),  # one finite bucket and +Inf
        (),  # +Inf only
        (0.0, 0.5, 3.0),  # a bucket that holds zeros only
        (0.3, 0.30000001, 7.0),  # custom, one very narrow
    ]
)


def values_for(bounds: tuple[float, ...]) -> st.SearchStrategy[float]:
    """Latencies with values exactly on bucket edges and beyond the last bound mixed in."""
    top = (bounds[-1] if bounds else 1.0) * 1.5
    free = st.floats(0.0, top, allow_nan=False)
    return st.one_of(free, st.sampled_from(bounds)) if bounds else free


@st.composite
def latencies(draw: st.DrawFn, most: int) -> tuple[tuple[float, ...], list[float]]:
    """Bounds and the per-request values of one cell."""
    bounds = draw(BOUNDS)
    return bounds, draw(st.lists(values_for(bounds), min_size=1, max_size=most))


@settings(max_examples=150, deadline=None)
@given(latencies(8))
def test_greatest_spread_is_the_best_corner(case: tuple[tuple[float, ...], list[float]]) -> None:
    """The upper bound equals the largest value over all corner points that the buckets and the sum allow."""
    bounds, values = case
    cell = cell_of(values, bounds)
    assert within(cell)[1] == pytest.approx(greatest(cell), rel=1e-6, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(latencies(6))
def test_least_spread_is_the_best_active_set(case: tuple[tuple[float, ...], list[float]]) -> None:
    """The lower bound equals the smallest value over all ways to hold requests at their bucket's ends."""
    bounds, values = case
    cell = cell_of(values, bounds)
    assert within(cell)[0] == pytest.approx(least(cell), rel=1e-6, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.lists(latencies(30), min_size=1, max_size=6))
def test_truth_is_inside_over_many_cells(cases: list[tuple[tuple[float, ...], list[float]]]) -> None:
    """Whatever the requests were, the standard deviation of the window lies between the bounds."""
    values = [value for _, part in cases for value in part]
    result = jitter([part_of(cell_of(part, bounds)) for bounds, part in cases])
    assert result.requests == len(values)
    if len(values) == 1:
        assert result.lower is None
        assert result.reason == "too_few_requests"
        return
    truth = population_sd(values)
    room = 1e-9 + 1e-7 * max(values)
    assert result.lower is not None
    assert result.upper is not None
    assert result.lower - room <= truth <= result.upper + room
    if result.estimate is not None and result.error_ratio is not None:
        assert abs(result.estimate - truth) <= result.error_ratio * truth + room


def test_surplus_goes_to_the_highest_bucket_first() -> None:
    """0.26 and 0.99 in neighbouring buckets of equal width: filling the widest first would miss the truth."""
    values = [0.26, 0.99]
    result = jitter([part_of(cell_of(values, (0.25, 0.5, 0.75, 1.0)))])
    assert result.upper is not None
    assert result.upper >= population_sd(values) - 1e-12
    assert result.upper == pytest.approx(0.375)  # 0.25 and 1.0


def test_single_requests_are_exact() -> None:
    """Cells with one request each leave nothing unknown: both bounds and the estimate are the truth."""
    values = [0.11, 0.24, 3000.0]
    result = jitter([part_of(cell_of([value], TTFT)) for value in values])
    truth = population_sd(values)
    assert result.lower == pytest.approx(truth)
    assert result.upper == pytest.approx(truth)
    assert result.estimate == pytest.approx(truth)
    assert result.error_ratio == pytest.approx(0.0)


def test_equal_requests_have_zero_jitter_and_say_so() -> None:
    """Two identical exact requests have a jitter of 0, which is a measurement and not an absence."""
    result = jitter([part_of(cell_of([0.2], TTFT)), part_of(cell_of([0.2], TTFT))])
    assert (result.lower, result.upper, result.estimate, result.reason) == (0.0, 0.0, 0.0, None)


def test_wide_bounds_keep_no_point_estimate() -> None:
    """Two requests in one bucket: the spread may be 0, so there are bounds but no point estimate."""
    result = jitter([part_of(cell_of([0.15, 0.2], TTFT))])
    assert result.lower == pytest.approx(0.0, abs=1e-12)
    assert result.upper == pytest.approx(0.075)
    assert result.estimate is None
    assert result.ratio is None
    assert result.reason == "bounds_too_wide"


def test_no_requests_is_absent_with_reason() -> None:
    """A window without requests has no jitter."""
    result = jitter([])
    assert (result.requests, result.mean, result.lower, result.reason) == (0, None, None, "no_requests")
