"""The last 15 minutes of one server (or GPU) in packed arrays.

A row is one usable sample: its time, the start of the stretch that its deltas cover, and one number per column (gauges
as they were, counters as exact deltas, NaN = not known).  A failed scrape writes no row, so gaps stay gaps.  Histogram
deltas are sparse and kept apart in a :class:`CellLog`.

Memory is bounded by the capacity, not by uptime.  A column that never changed costs nothing: most of the columns of an
idle server, or of a pooling model that never generates, stay one number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import isnan, nan
from sys import getsizeof
from typing import Final

from vllmeter.windows.cells import Bounds, Cell

RING_SECONDS: Final = 900.0
"""How far the ring reaches back at one sample per second."""

RING_ROWS: Final = 900
"""Rows kept per server or GPU; at shorter intervals the ring reaches back less far."""

_MOST_KEYS: Final = 256
"""Pairs of engine and bounds that a cell log tells apart."""

_SLACK: Final = 128
"""Rows above the capacity before the oldest are cut off (one memmove per column every so many samples)."""


class Column:
    """One series of a ring: a number while it never changes, an array of doubles after that."""

    __slots__ = ("_constant", "_values")

    def __init__(self) -> None:
        self._constant = nan
        self._values: array[float] | None = None

    def push(self, value: float, rows: int) -> None:
        """Append ``value``; ``rows`` is the number of rows before it."""
        values = self._values
        if values is not None:
            values.append(value)
        elif value != self._constant and (value == value or self._constant == self._constant):  # noqa: PLR0124 NaN
            if rows:
                self._values = values = array("d", [self._constant]) * rows
                values.append(value)
            else:
                self._constant = value

    def cut(self, rows: int) -> None:
        """Drop the oldest rows."""
        values = self._values
        if values is not None:
            del values[:rows]
            first = values[0]
            if values.count(first) == len(values):
                self._constant = first
                self._values = None

    def slice(self, begin: int, end: int) -> Sequence[float]:
        """Values of rows begin..end-1."""
        if self._values is None:
            return [self._constant] * (end - begin)
        return self._values[begin:end]

    def last(self) -> float:
        """The newest value, NaN when not known."""
        return self._constant if self._values is None else self._values[-1]

    def peak(self, begin: int, end: int) -> float:
        """Largest known value of the rows, NaN when none is known."""
        values = self._values
        if values is None:
            return self._constant if begin < end else nan
        largest = max(values[begin:end], default=nan)
        if isnan(largest):
            # max() passes over a NaN except at the front, where it stays.
            return max((value for value in values[begin:end] if not isnan(value)), default=nan)
        return largest

    def sum(self, begin: int, end: int) -> float:
        """Sum of the known values of the rows, NaN when none is known."""
        values = self._values
        if values is None:
            return self._constant * (end - begin) if begin < end else nan
        part = values[begin:end]
        total = sum(part) if part else nan
        if isnan(total):
            known = [value for value in part if not isnan(value)]
            return sum(known) if known else nan
        return total

    def size(self) -> int:
        """Bytes held."""
        return getsizeof(self) + (0 if self._values is None else getsizeof(self._values))


class SampleRing:
    """Rows of samples with named columns."""

    __slots__ = ("_capacity", "_columns", "_list", "_starts", "_times", "names")

    def __init__(self, names: Sequence[str], capacity: int = RING_ROWS) -> None:
        self.names = tuple(names)
        self._capacity = capacity
        self._times = array("d")
        self._starts = array("d")
        self._list = [Column() for _ in self.names]
        self._columns = dict(zip(self.names, self._list, strict=True))

    def __len__(self) -> int:
        return len(self._times)

    def push(self, start: float, end: float, values: Sequence[float]) -> None:
        """Append a row whose deltas cover (start, end]; ``end`` must be later than the last row's."""
        rows = len(self._times)
        for column, value in zip(self._list, values, strict=True):
            column.push(value, rows)
        self._times.append(end)
        self._starts.append(start)
        if rows >= self._capacity + _SLACK:
            surplus = rows + 1 - self._capacity
            del self._times[:surplus]
            del self._starts[:surplus]
            for column in self._list:
                column.cut(surplus)

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def since(self, at: float) -> int:
        """Index of the first row that ended after ``at``."""
        return bisect_right(self._times, at)

    def window(self, now: float, seconds: float) -> tuple[int, int]:
        """Rows that ended in (now − seconds, now] and whose deltas belong there (begin, end).

        The first row may begin before the window; one that reaches back by more than half a window (the exporter or the
        server was away) is left out: what happened in that gap did not happen in this window.
        """
        begin = bisect_right(self._times, now - seconds)
        end = bisect_right(self._times, now)
        if begin < end and self._starts[begin] < now - 1.5 * seconds:
            begin += 1
        return begin, end

    def span(self, begin: int, end: int) -> float:
        """Seconds that the deltas of the rows cover."""
        return self._times[end - 1] - self._starts[begin] if begin < end else 0.0

    def stretches(self, begin: int, end: int) -> list[tuple[float, float]]:
        """(start, end) of the rows."""
        return list(zip(self._starts[begin:end], self._times[begin:end], strict=True))

    def history(self, name: str, since: float) -> list[tuple[float, float]]:
        """(time, value) of the known values after ``since``, oldest first."""
        begin = self.since(since)
        values = self._columns[name].slice(begin, len(self._times))
        return [(at, value) for at, value in zip(self._times[begin:], values, strict=True) if not isnan(value)]

    def table(
        self, names: Sequence[str], since: float
    ) -> tuple[Sequence[float], Sequence[float], list[Sequence[float]]]:
        """(starts, ends, one sequence per name) of the rows that ended after ``since``; NaN = not known."""
        begin, end = self.since(since), len(self._times)
        return self._starts[begin:], self._times[begin:], [self._columns[name].slice(begin, end) for name in names]

    def size(self) -> int:
        """Bytes held."""
        return sum(column.size() for column in self._list) + getsizeof(self._times) + getsizeof(self._starts)


class CellLog:
    """Histogram deltas of one family over the ring's reach, sparse and packed."""

    __slots__ = (
        "_bounds",
        "_buckets",
        "_capacity",
        "_counts",
        "_ends",
        "_engines",
        "_keys",
        "_requests",
        "_starts",
        "_stops",
        "_sums",
    )

    def __init__(self, capacity: int = 4 * RING_ROWS) -> None:
        self._capacity = capacity
        self._ends = array("d")
        self._starts = array("d")
        self._sums = array("d")
        self._requests = array("I")
        self._keys = array("H")
        """index into ``_engines`` and ``_bounds`` (one pair per engine and process life)"""
        self._stops = array("L")
        """end of the cell's pairs in ``_buckets`` and ``_counts``"""
        self._buckets = array("H")
        self._counts = array("I")
        self._engines: list[str] = []
        self._bounds: list[Bounds] = []

    def __len__(self) -> int:
        return len(self._ends)

    def push(self, cell: Cell) -> None:
        """Append a cell (cells come in the order of their ends)."""
        key = self._key(cell.engine, cell.bounds)
        self._ends.append(cell.end)
        self._starts.append(cell.start)
        self._sums.append(cell.sum)
        self._requests.append(min(cell.count, 0xFFFFFFFF))
        self._keys.append(key)
        for index, count in cell.buckets:
            self._buckets.append(index)
            self._counts.append(min(count, 0xFFFFFFFF))
        self._stops.append(len(self._buckets))
        if len(self._ends) >= self._capacity + _SLACK:
            self._cut(len(self._ends) - self._capacity)

    def trim(self, before: float) -> None:
        """Drop cells that ended at or before ``before`` (called now and then, so that old load does not stay)."""
        surplus = bisect_right(self._ends, before)
        if surplus >= _SLACK or surplus == len(self._ends):
            self._cut(surplus)

    def totals(self, now: float, seconds: float) -> tuple[int, float]:
        """(requests, exact sum) of the cells in the window, same rule as :meth:`SampleRing.window`."""
        begin, end = self._window(now, seconds)
        return sum(self._requests[begin:end]), sum(self._sums[begin:end])

    def cells(self, since: float) -> Iterator[Cell]:
        """The cells that ended after ``since``, oldest first."""
        for i in range(bisect_right(self._ends, since), len(self._ends)):
            first = self._stops[i - 1] if i else 0
            pairs = tuple(zip(self._buckets[first : self._stops[i]], self._counts[first : self._stops[i]], strict=True))
            key = self._keys[i]
            yield Cell(
                self._engines[key],
                self._starts[i],
                self._ends[i],
                self._requests[i],
                self._sums[i],
                pairs,
                self._bounds[key],
            )

    def size(self) -> int:
        """Bytes held (bounds are shared with the reading's layout and not counted)."""
        arrays = (self._ends, self._starts, self._sums, self._requests, self._keys, self._stops)
        return sum(map(getsizeof, arrays)) + getsizeof(self._buckets) + getsizeof(self._counts)

    def _window(self, now: float, seconds: float) -> tuple[int, int]:
        begin = bisect_right(self._ends, now - seconds)
        end = bisect_right(self._ends, now)
        while begin < end and self._starts[begin] < now - 1.5 * seconds:
            begin += 1
        return begin, end

    def _key(self, engine: str, bounds: Bounds) -> int:
        for index in range(len(self._engines) - 1, -1, -1):
            if self._engines[index] == engine and (self._bounds[index] is bounds or self._bounds[index] == bounds):
                return index
        if len(self._engines) >= _MOST_KEYS:
            # A body whose bounds change all the time: what lies before cannot be compared with the rest anyway.
            self._cut(len(self._ends))
        self._engines.append(engine)
        self._bounds.append(bounds)
        return len(self._engines) - 1

    def _cut(self, surplus: int) -> None:
        if not surplus:
            return
        pairs = self._stops[surplus - 1]
        for column in (self._ends, self._starts, self._sums):
            del column[:surplus]
        del self._requests[:surplus]
        del self._keys[:surplus]
        del self._buckets[:pairs]
        del self._counts[:pairs]
        self._stops = array("L", [stop - pairs for stop in self._stops[surplus:]])
        if not self._ends:
            self._engines.clear()
            self._bounds.clear()
