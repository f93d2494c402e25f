"""Every fault at once against a whole exporter: it lives, counts, logs once, and the other servers stay on time."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from faults.hostile import CASES
from faults.storm import GOOD, Report, storm

SECONDS = float(os.environ.get("FAULT_SECONDS", "25"))
"""scripts/faults sets minutes"""


@pytest.fixture(scope="module")
def report() -> Report:
    """One storm for all tests."""
    return storm(SECONDS)


def test_nothing_crashes(report: Report) -> None:
    """No exception anywhere, every request answered (storm() asserts it), all threads end afterwards."""
    assert not report.exceptions
    assert report.threads[1] <= report.threads[0]


def test_the_other_servers_stay_on_time(report: Report) -> None:
    """Samples of healthy servers neither fail nor come late, whatever the others do."""
    late = report.lateness(0.99)
    print(f"\n{len(report.late)} samples of {GOOD} healthy servers beside {len(CASES)} faulty ones:", end=" ")
    print(f"lateness p50 {1e3 * report.lateness(0.5):.0f} ms, p99 {1e3 * late:.0f} ms, {report.seconds:.0f} s")
    assert not report.good_failures
    assert len(report.late) > 0.7 * GOOD * (SECONDS - 2)
    assert late < 1.0  # CI machines are busy; a lost second would show as more


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_counted_under_its_reason_and_logged_once_per_change(report: Report, name: str) -> None:
    """What scrape_failures_total says is what happened; a fault that stays the same is one line in the log."""
    allowed = CASES[name][1]
    seen = set(report.reasons.get(name, {}))
    # A machine that is busy enough can be slow with anything.
    assert seen <= {reason for reason in allowed if reason} | {"timeout"}
    if None not in allowed:
        assert seen & allowed
        assert report.up[name] == 0
    elif len(allowed) == 1:
        assert report.up[name] == 1
    states = report.logged[name]
    assert all(before != after for before, after in pairwise(states))
    if name != "flapping":
        assert len(states) <= 1 + 2 * len(seen)


def test_memory_is_bounded(report: Report) -> None:
    """After the first third nothing grows beyond the histories of a few servers; huge bodies leave nothing behind."""
    third = len(report.memory) // 3
    print(f"\nmemory {max(report.memory[:third]) >> 20} -> {max(report.memory[-third:]) >> 20} MB")
    assert max(report.memory[-third:]) < max(report.memory[:third]) + (64 << 20)


def test_values_of_lying_servers_are_absent_or_as_they_said(report: Report) -> None:
    """A wrong number is the worst: what cannot be true has no series, and nothing becomes 0."""
    lines = [line for line in report.body.splitlines() if not line.startswith("#")]

    def values(family: str, server: str) -> list[str]:
        start = f'vllmeter_{family}{{server="{server}"'
        return [line.rpartition(" ")[2] for line in lines if line.startswith(start)]

    for server in ("duplicates", "conflicting-types", "nan", "infinite", "negative"):
        for value in values("requests_running", server) + values("requests_running_peak", server):
            assert value not in ("0", "2", "NaN", "+Inf"), (server, value)
    assert values("requests_running", "frozen")
    assert not any(line.rpartition(" ")[2].startswith("-") for line in lines if "_total{" in line)
    for server in ("html", "503", "truncated", "million"):
        assert not values("requests_running", server)
        assert not values("ttft_window_mean_seconds", server)
