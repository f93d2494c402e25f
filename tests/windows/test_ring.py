"""The ring keeps exact values over any sequence of rows, and its memory does not grow."""

from __future__ import annotations

from math import isnan, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.windows.cells import cell_of
from vllmeter.windows.peaks import burst, peak, ratio, total
from vllmeter.windows.ring import CellLog, Column, SampleRing
from windows.bounds_brute import TTFT

VALUES = st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.5, nan]), min_size=1, max_size=80)


def same(a: float, b: float) -> bool:
    """Equal, or both not known."""
    return a == b or (isnan(a) and isnan(b))


@settings(max_examples=200, deadline=None)
@given(VALUES, st.integers(0, 80), st.integers(0, 80), st.integers(0, 30))
def test_column_is_a_list(values: list[float], begin: int, end: int, cut: int) -> None:
    """A column behaves like a plain list, also while it is still one constant and after its oldest rows are cut."""
    column = Column()
    for rows, value in enumerate(values):
        column.push(value, rows)
    cut = min(cut, len(values) - 1)
    if cut:
        column.cut(cut)
    rest = values[cut:]
    begin, end = sorted((min(begin, len(rest)), min(end, len(rest))))
    part = rest[begin:end]
    known = [value for value in part if not isnan(value)]
    assert all(map(same, column.slice(begin, end), part))
    assert same(column.peak(begin, end), max(known, default=nan))
    assert same(column.sum(begin, end), sum(known) if known else nan)
    assert same(column.last(), rest[-1])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 8.0), st.integers(0, 3)), min_size=1, max_size=60), st.sampled_from([3, 15]))
def test_window_holds_each_event_once(steps: list[tuple[float, int]], seconds: int) -> None:
    """Windows one after the other hold every delta exactly once, but for samples that were away for half a window."""
    ring = SampleRing(["events"], capacity=1000)
    now = 0.0
    rows = []
    for step, events in steps:
        ring.push(now, now + step, [float(events)])
        rows.append((now, now + step, events))
        now += step
    counted = 0.0
    at = 0.0
    while at < now + seconds:
        at += seconds
        begin, end = ring.window(at, seconds)
        counted += total(ring["events"], begin, end) or 0.0
    kept = 0
    at = 0.0
    while at < now + seconds:
        at += seconds
        inside = [row for row in rows if at - seconds < row[1] <= at]
        if inside and inside[0][0] < at - 1.5 * seconds:
            inside = inside[1:]
        kept += sum(row[2] for row in inside)
    assert counted == kept
    if all(step <= seconds / 2 for step, _ in steps):
        assert counted == sum(events for _, events in steps)


def test_capacity_bounds_the_memory() -> None:
    """After 5,000 samples of ever-changing columns the ring holds no more than after 1,100, and keeps the newest."""
    ring = SampleRing([f"c{i}" for i in range(5)], capacity=900)
    sizes = []
    for row in range(5000):
        ring.push(float(row), row + 1.0, [float(row + i) for i in range(5)])
        sizes.append(ring.size())
    assert max(sizes[1100:]) <= max(sizes[:1100]) * 1.1
    assert len(ring) <= 900 + 128
    assert ring.history("c2", 4999.0) == [(5000.0, 5001.0)]


def test_constant_columns_cost_nothing_and_come_back() -> None:
    """A column that moved once is one number again after its movement has left the ring."""
    ring = SampleRing(["quiet"], capacity=100)
    for row in range(10):
        ring.push(float(row), row + 1.0, [1.0 if row == 5 else 0.0])
    moved = ring["quiet"].size()
    for row in range(10, 800):
        ring.push(float(row), row + 1.0, [0.0])
    assert ring["quiet"].size() < moved


def test_cell_log_gives_cells_back_unchanged() -> None:
    """Cells survive packing, the cut of old ones and a change of bounds."""
    log = CellLog(capacity=50)
    cells = []
    for second in range(400):
        bounds = TTFT if second < 300 else (0.5, 1.0)
        cell = cell_of([0.01 * (second % 7), 0.3], bounds, engine=str(second % 2), start=second, end=second + 1.0)
        log.push(cell)
        cells.append(cell)
    assert list(log.cells(since=390.0)) == cells[-10:]
    assert len(log) < 180
    assert log.totals(400.0, 10.0) == (20, pytest.approx(sum(cell.sum for cell in cells[-10:])))
    log.trim(before=1000.0)
    assert len(log) == 0
    log.push(cells[0])
    assert list(log.cells(since=-1.0)) == cells[:1]


def test_many_different_bounds_do_not_fill_the_memory() -> None:
    """A body that changes its bounds all the time cannot make the log grow."""
    log = CellLog(capacity=100000)
    for second in range(1000):
        log.push(cell_of([0.3], (0.5, 1.0 + second), start=second, end=second + 1.0))
    assert len(log) <= 256


def test_a_late_sample_is_not_a_burst() -> None:
    """Nine preemptions over a 4.4 s gap are at least two in one second and not nine."""
    assert burst([1.0, 9.0, nan], [(0.0, 1.0), (1.0, 5.4), (5.4, 6.4)], 1.0) == 2.0
    assert burst([1.0, 3.0], [(0.0, 1.0), (1.0, 2.1)], 1.0) == 3.0
    assert burst([nan], [(0.0, 1.0)], 1.0) is None


def test_ratio_without_queries_is_absent() -> None:
    """No lookup gives no ratio; more hits than lookups is a contradiction, not 100 %."""
    assert ratio(5.0, 10.0) == (0.5, None)
    assert ratio(0.0, 0.0) == (None, "no_queries")
    assert ratio(None, 1.0) == (None, "not_offered")
    assert ratio(2.0, 1.0) == (None, "inconsistent")


def test_gauge_peak_passes_over_what_is_not_known() -> None:
    """Samples without the series do not hide the others."""
    column = Column()
    for rows, value in enumerate([nan, 3.0, nan, 2.0]):
        column.push(value, rows)
    assert peak(column, 0, 4) == 3.0
    assert peak(column, 0, 1) is None
