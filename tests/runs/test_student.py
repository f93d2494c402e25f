"""Student's t against table values."""

from __future__ import annotations

import pytest

from vllmeter.runs.student import t_cdf, t_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (30, 2.04227), (1e6, 1.95997)],
)
def test_two_sided_95_percent_quantiles(freedom: float, expected: float) -> None:
    """The quantiles of the printed tables."""
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("freedom", [1.5, 2.7, 8.3])
def test_fractional_degrees_of_freedom_round_trip(freedom: float) -> None:
    """The quantile inverts the distribution, which is symmetric."""
    for p in (0.6, 0.9, 0.995):
        assert t_cdf(t_quantile(p, freedom), freedom) == pytest.approx(p, abs=1e-9)
        assert t_cdf(-t_quantile(p, freedom), freedom) == pytest.approx(1 - p, abs=1e-9)
