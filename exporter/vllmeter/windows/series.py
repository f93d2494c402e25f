"""Time series of one server for people to look at: one row per sample, worked out once per sample.

A row is what the sample itself shows (gauges, deltas, the mean of the requests recorded since the sample before) and,
beside it, what the 60 s window ending there says.  The window's values are those of
:meth:`vllmeter.windows.tracker.ServerTracker.windowed` at that tick, worked out from the same cells in the same order.

Nothing is kept here while nobody looks: a :class:`ServerSeries` is made when the first page opens and reads the
15 minutes before it from the tracker's ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf, isnan
from typing import Final

from vllmeter.windows.jitter import Part, jitter, part_of
from vllmeter.windows.ring import RING_ROWS, RING_SECONDS
from vllmeter.windows.tracker import ServerTracker

WINDOW_SECONDS: Final = 60.0
"""Window of the values that are not of a single sample."""

FIELDS: Final = (
    "covers_seconds",
    "running",
    "waiting",
    "kv_cache_usage",
    "ttft_mean",
    "ttft_requests",
    "ttft_mean_60s",
    "ttft_jitter_lower_60s",
    "ttft_jitter_upper_60s",
    "itl_mean",
    "itl_count",
    "preemptions",
    "prefix_hit_ratio_60s",
    "generation_tokens_per_second",
    "prompt_tokens_per_second",
    "requests_finished",
)
"""Values of a row after its time.  ``covers_seconds``: time since the sample before, which deltas and means cover."""

_COLUMNS: Final = (
    "requests_running",
    "requests_waiting",
    "kv_cache_usage",
    "preemptions",
    "generation_tokens",
    "prompt_tokens",
    "prefix_queries",
    "prefix_hits",
    "finished",
)

Row = tuple[float, tuple[float | None, ...]]
"""(monotonic time of the sample, values in the order of :data:`FIELDS`; None = not known)"""


class ServerSeries:
    """Rows of one server.  :meth:`update` takes what the tracker has got since; one caller at a time.

    ``reach``: seconds before the newest sample at which the rows begin.
    """

    def __init__(self, tracker: ServerTracker, reach: float = RING_SECONDS) -> None:
        self.tracker = tracker
        self.rows: deque[Row] = deque()
        newest = tracker.sampled
        self._from = -inf if newest is None else newest - reach
        self._seen = self._from - 1.5 * WINDOW_SECONDS
        self._whole_from: float | None = None
        self._parts: deque[tuple[float, float, Part]] = deque()
        self._prefix: deque[tuple[float, float, float, float]] = deque()

    def update(self) -> int:
        """Appends rows for the samples since the last call and returns how many."""
        starts, ends, columns = self.tracker.table(_COLUMNS, self._seen)
        if not ends:
            return 0
        before = len(self.rows)
        newest = ends[-1]
        if self._whole_from is None:
            # Where the ring was cut, the first windows would lack what came before.
            self._whole_from = -inf if self.tracker.rows < RING_ROWS else ends[0]
        ttft = self._cells("ttft_seconds", self._seen)
        itl = self._cells("inter_token_latency_seconds", self._seen)
        steady = self.tracker.trouble("ttft_seconds", ends[0] - WINDOW_SECONDS, newest) is None
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            values = [_known(column[i]) for column in columns]
            covers = end - start
            here = ttft.get(end, [])
            for cell_start, part in here:
                self._parts.append((cell_start, end, part))
            self._prefix.append((start, end, columns[6][i], columns[7][i]))
            mean, lower, upper = self._ttft_window(end, covers, steady)
            hit_ratio = self._hit_ratio(end)
            if end <= self._from:
                continue
            if end - WINDOW_SECONDS < self._whole_from:
                mean = lower = upper = hit_ratio = None
            self.rows.append(
                (
                    end,
                    (
                        covers,
                        values[0],
                        values[1],
                        values[2],
                        *_mean([part for _, part in here]),
                        mean,
                        lower,
                        upper,
                        *_mean([part for _, part in itl.get(end, [])]),
                        values[3],
                        hit_ratio,
                        _rate(values[4], covers),
                        _rate(values[5], covers),
                        values[8],
                    ),
                )
            )
        self._seen = newest
        added = len(self.rows) - before
        while self.rows and self.rows[0][0] <= newest - RING_SECONDS:
            self.rows.popleft()
        return added

    def since(self, at: float) -> list[Row]:
        """Rows later than ``at``, oldest first."""
        count = 0
        for row in reversed(self.rows):
            if row[0] <= at:
                break
            count += 1
        return list(islice(self.rows, len(self.rows) - count, None))

    def _cells(self, family: str, after: float) -> dict[float, list[tuple[float, Part]]]:
        """Cells by the time of the sample that closed them; those of several engines share one."""
        found: dict[float, list[tuple[float, Part]]] = {}
        ttft = family == "ttft_seconds"
        for cell in self.tracker.cells_after(family, after):
            part = part_of(cell) if ttft else Part(cell.count, cell.sum, 0.0, 0.0)
            found.setdefault(cell.end, []).append((cell.start, part))
        return found

    def _ttft_window(self, at: float, covers: float, steady: bool) -> tuple[float | None, float | None, float | None]:
        """(mean, jitter lower, jitter upper) of the window that ends here."""
        parts = self._parts
        while parts and parts[0][1] <= at - WINDOW_SECONDS:
            parts.popleft()
        if not parts or covers > 1.5 * WINDOW_SECONDS:
            return None, None, None
        if not steady and self.tracker.trouble("ttft_seconds", at - WINDOW_SECONDS, at) is not None:
            return None, None, None
        oldest = at - 1.5 * WINDOW_SECONDS
        found = jitter(part for start, _, part in parts if start >= oldest)
        return found.mean, found.lower, found.upper

    def _hit_ratio(self, at: float) -> float | None:
        """Hit tokens over looked-up tokens in the window that ends here; None without lookups."""
        rows = self._prefix
        while rows and rows[0][1] <= at - WINDOW_SECONDS:
            rows.popleft()
        oldest = at - 1.5 * WINDOW_SECONDS
        queries = [row[2] for row in rows if row[0] >= oldest and not isnan(row[2])]
        hits = [row[3] for row in rows if row[0] >= oldest and not isnan(row[3])]
        whole, part = sum(queries), sum(hits)
        if not queries or not hits or whole <= 0.0 or part > whole:
            return None
        return part / whole


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _mean(parts: Sequence[Part]) -> tuple[float | None, float]:
    count = sum(part.count for part in parts)
    return (sum(part.sum for part in parts) / count if count else None), float(count)


def _rate(delta: float | None, covers: float) -> float | None:
    return delta / covers if delta is not None and covers > 0.0 else None
