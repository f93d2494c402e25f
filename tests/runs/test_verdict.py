"""The verdict rules, one at a time."""

from __future__ import annotations

import math

import pytest

from vllmeter.runs.verdict import RunValue, Spread, Verdict, Word, interleaved, judge, required_effective

A_TIMES, B_TIMES = (0.0, 3.0, 4.0), (1.0, 2.0, 5.0)


def side(
    values: tuple[float, ...],
    times: tuple[float, ...],
    *,
    effective: float | None = 200.0,
    error: float | None = 0.01,
    requests: int = 400,
) -> list[RunValue]:
    return [RunValue(v, requests, effective, error, 20, t) for v, t in zip(values, times, strict=True)]


def three(factor: float, noise: float = 0.01, error: float = 0.01) -> Verdict:
    a = side((0.1, 0.1 * (1 + noise), 0.1 * (1 - noise)), A_TIMES, error=error)
    b = side((0.1 * factor, 0.1 * factor * (1 + noise), 0.1 * factor * (1 - noise)), B_TIMES, error=error)
    return judge(a, b)


def test_three_interleaved_runs_a_side_give_better_and_worse() -> None:
    """A clear difference over repeated runs is called, in the right direction."""
    assert three(1.2).word is Word.WORSE
    assert three(0.8).word is Word.BETTER
    found = three(1.2)
    assert found.between_runs
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.2 < found.high


def test_for_a_rate_more_is_better() -> None:
    """The direction follows the metric."""
    a, b = side((100.0, 101.0, 99.0), A_TIMES), side((130.0, 131.0, 129.0), B_TIMES)
    assert judge(a, b, lower_is_better=False).word is Word.BETTER


def test_below_the_relevant_effect_nothing_is_called() -> None:
    """A certain difference of 3 % is no difference that matters, and the text says so."""
    found = three(1.03, noise=0.001, error=0.001)
    assert found.word is Word.NO_DIFFERENCE
    assert "below the 5 % that matter" in found.reason


def test_noise_between_runs_widens_the_interval() -> None:
    """Runs that differ by 10 % among themselves cannot show 8 %; the text says how many runs would."""
    found = three(1.08, noise=0.1)
    assert found.word is Word.NO_DIFFERENCE
    assert "includes 0" in found.reason
    assert found.needed_runs is not None
    assert found.needed_runs > 3


def test_the_error_is_never_below_that_of_the_blocks() -> None:
    """Three runs that agree by luck are not surer than the requests in them allow."""
    a = side((0.1, 0.1, 0.1), A_TIMES, error=0.2)
    b = side((0.12, 0.12, 0.12), B_TIMES, error=0.2)
    assert judge(a, b).word is Word.NO_DIFFERENCE


def test_one_run_a_side_gives_no_better_or_worse() -> None:
    """However large the difference: run-to-run noise is unknown."""
    found = judge(side((0.1,), (0.0,)), side((0.3,), (1.0,)))
    assert found.word is Word.NOT_ENOUGH_RUNS
    assert not found.between_runs
    assert "--repeat 3" in found.reason
    assert found.needed_runs == 3


def test_runs_that_did_not_take_turns_give_no_verdict() -> None:
    """A A A B B B cannot tell a change from a drift over time."""
    a = side((0.1, 0.101, 0.099), (0.0, 1.0, 2.0))
    b = side((0.13, 0.131, 0.129), (3.0, 4.0, 5.0))
    found = judge(a, b)
    assert found.word is Word.NOT_ENOUGH_RUNS
    assert "take turns" in found.reason


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 3, 4), (1, 2, 5), True),
        ((0, 2, 4), (1, 3, 5), True),
        ((0, 1, 2), (3, 4, 5), False),
        ((0, 4, 5), (1, 2, 3), False),
        ((0, 1), (2, 3), False),
        ((0, 3), (1, 2), True),
    ],
)
def test_interleaving(a: tuple[float, ...], b: tuple[float, ...], expected: bool) -> None:
    """At least as many changes of side as runs a side."""
    assert interleaved(a, b) is expected


def test_a_stored_spread_lets_single_runs_be_judged() -> None:
    """With a known spread of 2 % a 20 % difference of single runs is called, a 6 % one is not."""
    spread = Spread(0.02, 4)
    assert judge(side((0.1,), (0.0,)), side((0.12,), (1.0,)), spread=spread).word is Word.WORSE
    assert judge(side((0.1,), (0.0,)), side((0.106,), (1.0,)), spread=spread).word is Word.NO_DIFFERENCE


def test_too_few_independent_requests_come_first() -> None:
    """Neither runs nor intervals matter while the requests are too few; the number needed follows the design effect."""
    a = side((0.1, 0.1, 0.1), A_TIMES, effective=10.0, requests=40)
    b = side((0.2, 0.2, 0.2), B_TIMES, effective=10.0, requests=40)
    found = judge(a, b)
    assert found.word is Word.NOT_ENOUGH_REQUESTS
    assert found.needed_requests == 400
    assert "120 and 120 requests are worth an effective n of 30 and 30, 100 are needed" in found.reason


def test_p99_needs_five_times_the_requests_of_p95() -> None:
    """Five independent requests must lie beyond the quantile."""
    assert required_effective(None) == required_effective(0.5) == required_effective(0.95) == 100
    assert required_effective(0.99) == 500
    a, b = side((0.1, 0.1, 0.101), A_TIMES), side((0.2, 0.2, 0.201), B_TIMES)
    assert judge(a, b, q=0.99, lower_is_better=True).word is Word.WORSE
    a, b = side((0.1, 0.1, 0.1), A_TIMES, effective=150.0), side((0.2, 0.2, 0.2), B_TIMES, effective=150.0)
    assert judge(a, b, q=0.99).word is Word.NOT_ENOUGH_REQUESTS


def test_without_request_times_a_large_number_is_asked_for() -> None:
    """Statistics alone (locust, k6 summary) need 16 times the requests: the largest design effects of the capture."""
    few = judge(
        side((0.1, 0.1, 0.1), A_TIMES, effective=None, error=None),
        side((0.2, 0.2, 0.2), B_TIMES, effective=None, error=None),
    )
    assert few.word is Word.NOT_ENOUGH_REQUESTS
    assert few.needed_requests == 1600
    many = judge(
        side((0.1, 0.101, 0.099), A_TIMES, effective=None, error=None, requests=1000),
        side((0.2, 0.201, 0.199), B_TIMES, effective=None, error=None, requests=1000),
    )
    assert many.word is Word.WORSE


def test_zero_and_missing_values_are_not_measured() -> None:
    """No ratio is made up."""
    assert judge([], side((0.1,), (0.0,))).word is Word.NOT_MEASURED
    assert judge(side((0.0,), (0.0,)), side((0.1,), (1.0,))).word is Word.NOT_MEASURED


def test_the_interval_covers_the_truth() -> None:
    """Over many simulated sessions the 95 % interval of three runs a side holds the true ratio in 95 %."""
    import numpy as np

    generator = np.random.default_rng(5)
    hits = 0
    for _ in range(2000):
        logs = generator.normal(scale=0.03, size=6)
        a = side(tuple(float(math.exp(x)) for x in logs[:3]), A_TIMES, error=0.001)
        b = side(tuple(float(1.1 * math.exp(x)) for x in logs[3:]), B_TIMES, error=0.001)
        found = judge(a, b)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1.1 <= found.high
    assert 0.93 < hits / 2000 < 0.97
