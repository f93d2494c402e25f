"""Per-server and per-host memory of the last 15 minutes: what happens between scrapes.

Interface (what :mod:`vllmeter.sampler` calls; all times are *monotonic* seconds, ``wall`` is Unix time)::

    tracker = ServerTracker("vllm-qwen3", interval=1.0, windows=(15.0, 60.0))
    tracker.observe(reading, now, wall=wall, health=200, evidence=Evidence(...), settings={...})
    tracker.fail("refused", now, wall=wall, health=None, evidence=...)      # a finished scrape without a usable body
    tracker.pending(now, in_flight=3.4, wall=wall, evidence=...)             # a scrape still waits for its answer
    tracker.proved(now)                                                      # the opt-in canary got its token
    tracker.windowed(60.0)            -> snapshot.Windowed   (contention and gpu_memory_peak filled by HostTracker)
    tracker.status()                  -> state.ServerStatus  (state, reason, since, restarts, changes, last events)
    tracker.history("requests_waiting", 900.0) -> list[(monotonic, value)]   (live page)

    host = HostTracker(windows=(15.0, 60.0))
    host.add(tracker) / host.remove("vllm-qwen3")
    host.observe(now, gpus={uuid: GpuSample(used_bytes, utilization_ratio)},
                 memory={"vllm-qwen3": {uuid: bytes}}, sm={"vllm-qwen3": {uuid: ratio}})    # one NVML tick
    host.windowed("vllm-qwen3", 60.0) -> snapshot.Windowed   (the server's, completed with contention and VRAM peaks)
    host.gpu_windowed(uuid, 60.0)     -> GpuWindowed(used_peak, utilization_peak)

``observe``/``fail``/``pending`` are calls of the sampling thread of that server; ``windowed``/``status`` only read, are
cached per tick, and give every reader of one tick the identical object.  Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from threading import RLock
from types import MappingProxyType
from typing import Final

from vllmeter.snapshot import Layout, ServerReading, Windowed
from vllmeter.windows import contention as axis
from vllmeter.windows.cells import Broken, Cell, CellBuilder
from vllmeter.windows.columns import (
    COLUMNS,
    ENGINE_COLUMNS,
    EVENT_COLUMNS,
    LATENCIES,
    PROGRESS_COLUMNS,
    STEPS_COLUMN,
    Key,
    Plan,
    plan_of,
    same_setting,
    settings_of,
)
from vllmeter.windows.host import GpuSample, GpuWindowed, HostTracker
from vllmeter.windows.jitter import Part, jitter, part_of
from vllmeter.windows.peaks import burst, peak, ratio, total
from vllmeter.windows.quantile import Limits, limits_of, quantiles, shares_over
from vllmeter.windows.ring import RING_SECONDS, CellLog, SampleRing
from vllmeter.windows.state import NOTHING, Evidence, Observation, ServerStatus, StateMachine, same_life

__all__ = ["GpuSample", "GpuWindowed", "HostTracker", "ServerTracker"]

_TTFT_FIELDS: Final = (
    "ttft_requests",
    "ttft_span_seconds",
    "ttft_mean",
    "ttft_jitter_lower",
    "ttft_jitter_upper",
    "ttft_jitter",
    "ttft_jitter_error_ratio",
    "ttft_jitter_ratio",
    "ttft_quantiles",
    "ttft_share_over",
)
_DELTA_FIELDS: Final = (
    *_TTFT_FIELDS,
    "itl_mean",
    "itl_count",
    "e2e_mean",
    "e2e_requests",
    "preemptions",
    "preemptions_burst_peak",
    "prefix_hit_ratio",
    "prompt_tokens_computed",
    "prompt_tokens_cached",
    "generation_tokens",
    "prompt_tokens",
    "requests_finished",
)
_GAUGE_FIELDS: Final = ("requests_waiting_peak", "requests_running_peak", "kv_cache_usage_peak")

START_TOLERANCE: Final = 0.5
"""Seconds by which two readings of one process's start time may differ."""

WALL_TOLERANCE: Final = 5.0
"""Seconds by which clocks may disagree before a "restart" that began before our last sample is not believed."""

_MOST_BROKEN: Final = 1024
"""Broken stretches kept per family: at most one every five seconds and engine, for as long as the ring reaches."""

MOST_RESETS: Final = 2
"""More counter resets than this in one window: the counters are not those of one server."""


@dataclass(frozen=True, slots=True)
class _TtftCell:
    """A closed TTFT cell with everything that windows need of it."""

    cell: Cell
    part: Part
    limits: Limits
    slots: axis.Slotted


def _ttft_cell(cell: Cell) -> _TtftCell:
    slots = (axis.slot_after(cell.start), axis.slot_after(cell.end), cell.count, cell.sum)
    return _TtftCell(cell, part_of(cell), limits_of(cell), slots)


class ServerTracker:
    """What one server did in the last 15 minutes.  See the module for the interface."""

    def __init__(self, name: str, interval: float = 1.0, windows: Sequence[float] = (15.0, 60.0)) -> None:
        self.name = name
        self.windows = tuple(windows)
        self._interval = interval
        self._keep = 1.5 * max(windows)
        self._lock = RLock()
        self._ring = SampleRing(COLUMNS)
        self._logs = {family: CellLog() for family in LATENCIES}
        self._machine = StateMachine(interval)
        self.busy = axis.SlotMask()
        self.computed = axis.SlotMask()
        self._ttft: deque[_TtftCell] = deque()
        self._broken: dict[str, deque[Broken]] = {}
        self._builders: dict[tuple[str, str], CellBuilder] = {}
        self._of_family: dict[str, list[CellBuilder]] = {}
        self._plan: Plan | None = None
        self._previous: list[float] = []
        self._steps: float | None = None
        self._series: dict[Key, float] = {}
        """last values of all series that earlier bodies of this process had"""
        self._now: float | None = None
        self._tick = 0
        self._sampled: float | None = None
        """time of the last usable reading"""
        self._sampled_wall: float | None = None
        self._watched_since: float | None = None
        """time of the first call: a process that is younger counted from 0 before our eyes"""
        self._refused: float | None = None
        self._process_start: float | None = None
        self._created: float | None = None
        self._ticks: tuple[tuple[int, int], ...] | None = None
        self._resets: deque[float] = deque()
        self._unclear: deque[tuple[float, str]] = deque()
        self._withheld: deque[float] = deque()
        """times of samples whose gauges were those of a dead engine"""
        self._frozen = False
        self._settings: Mapping[str, str] = {}
        self._config_layout: Layout | None = None
        self._restarts = 0
        self._last_restart: float | None = None
        self._changes = 0
        self._last_change_at: float | None = None
        self._last_change = ""
        self._events: dict[str, float] = {}
        self._sleep_state: str | None = None
        self._asleep: bool | None = None
        self._cache: dict[float, tuple[int, Windowed]] = {}

    # ------------------------------------------------------------------ input

    def observe(
        self,
        reading: ServerReading,
        now: float,
        *,
        wall: float | None = None,
        health: int | str | None = None,
        evidence: Evidence = NOTHING,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Take a usable reading.  A reading that is not later than the last one is ignored."""
        with self._lock:
            if self._sampled is not None and now <= self._sampled:
                return
            self._begin(now, wall)
            plan = self._plan
            if plan is None or plan.layout is not reading.layout:
                plan = self._adopt(reading)
            kind = self._continuity(plan, reading, now, wall, evidence)
            start = self._start(kind, reading, now, wall)
            row = self._row(plan, reading, self._deltas(plan, reading, kind))
            recorded = self._cells(plan, reading, kind, start, now, _age(reading, wall))
            self._note(kind, reading, now, wall, evidence)
            self._config(reading.layout, settings, wall)
            if wall is not None:
                for column, event in EVENT_COLUMNS:
                    if row[column] > 0.0:
                        self._events[event] = wall
            progressed = any(row[column] > 0.0 for column in PROGRESS_COLUMNS)
            moved = recorded or any(row[column] > 0.0 for column in ENGINE_COLUMNS)
            self._step(
                Observation(
                    at=now,
                    wall=wall,
                    outcome="ok",
                    health=health,
                    running=_number(row[0]),
                    waiting=_number(row[1]),
                    asleep=self._asleep,
                    moved=moved,
                    progressed=progressed,
                    engine_metrics=reading.layout.engine_metrics,
                    evidence=evidence,
                )
            )
            self._frozen = self._machine.state == "engine_dead"
            if self._frozen:
                self._withhold(plan, row, now)
            self._ring.push(start, now, row)
            self._activity(start, now, row, moved=moved, progressed=progressed)

    def fail(
        self,
        reason: str,
        now: float,
        *,
        wall: float | None = None,
        health: int | str | None = None,
        evidence: Evidence = NOTHING,
    ) -> None:
        """A scrape ended without a usable body; ``reason`` as in ``scrape_failures_total``."""
        with self._lock:
            self._begin(now, wall)
            if reason == "refused":
                self._refused = now
            self._step(Observation(at=now, wall=wall, outcome=reason, health=health, evidence=evidence))

    def pending(
        self,
        now: float,
        in_flight: float,
        *,
        wall: float | None = None,
        health: int | str | None = None,
        evidence: Evidence = NOTHING,
    ) -> None:
        """The answer to a scrape has been outstanding for ``in_flight`` seconds."""
        with self._lock:
            self._begin(now, wall)
            self._step(
                Observation(at=now, wall=wall, outcome="pending", in_flight=in_flight, health=health, evidence=evidence)
            )

    def proved(self, now: float) -> None:
        """The opt-in canary request got its token: a quiet engine is known to work."""
        with self._lock:
            self._machine.proved(now)

    # ------------------------------------------------------------------ output

    def windowed(self, seconds: float) -> Windowed:
        """Everything about the last ``seconds`` seconds, as of the last tick.  The same object until the next tick."""
        with self._lock:
            cached = self._cache.get(seconds)
            if cached is not None and cached[0] == self._tick:
                return cached[1]
            made = self._windowed(seconds)
            self._cache[seconds] = (self._tick, made)
            return made

    def between(self, begin: float, end: float) -> Windowed:
        """Everything about (begin, end], by the same rules as :meth:`windowed`, as far back as the ring reaches.

        Exact in the same sense: made of the cells and deltas themselves, not of what was shown at the time.
        """
        with self._lock:
            return self._windowed(end - begin, end)

    def status(self) -> ServerStatus:
        """State, restarts, changes and last events."""
        with self._lock:
            return ServerStatus(
                state=self._machine.state,
                reason=self._machine.reason,
                since=self._machine.since,
                restarts=self._restarts,
                last_restart=self._last_restart,
                config_changes=self._changes,
                last_config_change=self._last_change_at,
                last_change=self._last_change,
                start_timestamp=self._process_start,
                sleep_state=self._sleep_state,
                frozen=self._frozen,
                last_preemption=self._events.get("preemption"),
                last_events=dict(self._events),
            )

    def history(self, column: str, seconds: float = RING_SECONDS) -> list[tuple[float, float]]:
        """(monotonic time, value) of a column of :data:`COLUMNS` over the last ``seconds``: gauges as sampled, counters
        as deltas since the sample before."""
        with self._lock:
            return [] if self._now is None else self._ring.history(column, self._now - seconds)

    def table(
        self, names: Sequence[str], since: float
    ) -> tuple[Sequence[float], Sequence[float], list[Sequence[float]]]:
        """(starts, ends, one sequence per column of ``names``) of the samples after ``since``; NaN = not known."""
        with self._lock:
            return self._ring.table(names, since)

    def trouble(self, family: str | None, begin: float, end: float) -> str | None:
        """Why no delta of (begin, end] can be trusted (``family``: or no cell of it); None when they can."""
        with self._lock:
            reason = self._trouble(begin, end)
            if reason is None and family is not None:
                reason = self._histogram_trouble(family, begin, end)
            return reason

    def cells(self, family: str = "ttft_seconds", seconds: float = RING_SECONDS) -> list[Cell]:
        """Cells of one of :data:`LATENCIES` that ended in the last ``seconds``, oldest first."""
        with self._lock:
            return [] if self._now is None else list(self._logs[family].cells(self._now - seconds))

    def cells_after(self, family: str, at: float) -> list[Cell]:
        """Cells of one of :data:`LATENCIES` that ended after ``at``, oldest first."""
        with self._lock:
            return list(self._logs[family].cells(at))

    @property
    def rows(self) -> int:
        """Samples in the ring; below :data:`RING_ROWS` none has been dropped yet."""
        return len(self._ring)

    @property
    def tick(self) -> int:
        """Number of calls so far; what :meth:`windowed` says changes only with it."""
        return self._tick

    @property
    def sampled(self) -> float | None:
        """Monotonic time of the last usable reading."""
        return self._sampled

    def slots(self, first: int, stop: int) -> tuple[int, int, list[axis.Slotted]]:
        """(busy, computed, TTFT cells) on the slots first..stop-1, for :class:`HostTracker`."""
        with self._lock:
            busy = self.busy.window(first, stop)
            computed = self.computed.window(first, stop)
            return busy, computed, [entry.slots for entry in self._ttft if entry.slots[1] > first]

    def size(self) -> int:
        """Bytes of the packed history."""
        return self._ring.size() + sum(log.size() for log in self._logs.values())

    # ------------------------------------------------------------------ one tick

    def _begin(self, now: float, wall: float | None) -> None:
        self._now = now if self._now is None else max(now, self._now)
        self._tick += 1
        if self._watched_since is None:
            self._watched_since = now
        before = self._now - self._keep
        while self._ttft and self._ttft[0].cell.end <= before:
            self._ttft.popleft()
        # What forbids a delta is kept as long as the rows, so that a window of the past is judged as it was then.
        before = self._now - RING_SECONDS
        for broken in self._broken.values():
            while broken and broken[0].end <= before:
                broken.popleft()
        while self._resets and self._resets[0] <= before:
            self._resets.popleft()
        while self._unclear and self._unclear[0][0] <= before:
            self._unclear.popleft()
        while self._withheld and self._withheld[0] <= before:
            self._withheld.popleft()
        if self._tick % 256 == 0:
            for log in self._logs.values():
                log.trim(self._now - RING_SECONDS)

    def _step(self, seen: Observation) -> None:
        self._machine.step(seen)

    def _adopt(self, reading: ServerReading) -> Plan:
        """A body of another shape: find the columns again and keep the last value of every series."""
        if self._plan is not None:
            self._series.update(zip(self._plan.keys, self._previous, strict=True))
        plan = plan_of(reading.layout)
        # vLLM creates some series with their first event: one that this process did not show before was 0.
        missing = nan if self._sampled is None else 0.0
        self._previous = [self._series.get(key, missing) for key in plan.keys]
        self._plan = plan
        return plan

    def _continuity(
        self, plan: Plan, reading: ServerReading, now: float, wall: float | None, evidence: Evidence
    ) -> str:
        """How this reading follows the last one.

        ``first``: nothing before it.  ``born``: first, but the process started after we began to watch, so it counted
        from 0.  ``same``: same process.  ``reset``: counters started again from 0.  ``ambiguous``: another process, but
        no counter fell and vLLM does not say when it started (multiprocess mode, whose files may be kept across
        restarts).  ``other``: another process than before that did not start since, e.g. behind a load balancer.
        """
        start = reading.process_start
        age = wall - start if wall is not None and start is not None else None
        if self._sampled is None:
            watched = now - (self._watched_since if self._watched_since is not None else now)
            return "born" if age is not None and age < watched else "first"
        before = self._process_start
        if start is not None and before is not None:
            if abs(start - before) > START_TOLERANCE:
                # Two clocks, either of which may have been set since: one witness for a start after our last sample is
                # enough.
                old = self._sampled_wall
                young = age is not None and age <= now - self._sampled + WALL_TOLERANCE
                later = start > (before if old is None else old - WALL_TOLERANCE)
                return "reset" if young or later else "other"
            return "reset" if self._dropped(plan, reading) else "same"
        if self._dropped(plan, reading):
            return "reset"
        if self._ticks is not None and not same_life(evidence.start_ticks, self._ticks):
            return "ambiguous"
        if reading.created is not None and self._created is not None and reading.created != self._created:
            return "ambiguous"
        return "same"

    def _dropped(self, plan: Plan, reading: ServerReading) -> bool:
        """Whether any counter, or the count of any histogram, went down."""
        values = reading.values
        for (index, _), previous in zip(plan.counters, self._previous, strict=True):
            if 0.0 <= values[index] < previous:
                return True
        for index, family, engine in plan.histograms:
            builder = self._builders.get((family, engine))
            if builder is not None and builder.dropped(reading.buckets[index]):
                return True
        return False

    def _start(self, kind: str, reading: ServerReading, now: float, wall: float | None) -> float:
        """When the stretch begins that the deltas of this reading cover."""
        if kind in ("first", "other"):
            return now
        if kind == "same":
            return now if self._sampled is None else self._sampled
        earliest = [at for at in (self._sampled, self._refused, self._watched_since) if at is not None]
        if kind != "ambiguous" and reading.process_start is not None and wall is not None:
            earliest.append(now - max(wall - reading.process_start, 0.0))
        return min(max(earliest, default=now), now)

    def _deltas(self, plan: Plan, reading: ServerReading, kind: str) -> list[float]:
        """Deltas by counter column; NaN = not known."""
        sums = [nan] * len(COLUMNS)
        for column in plan.offered:
            sums[column] = 0.0
        values = reading.values
        previous = self._previous
        if kind in ("born", "reset"):
            self._series.clear()
            previous = self._previous = [0.0] * len(previous)
        elif kind == "other":
            self._series.clear()
            previous = self._previous = [nan] * len(previous)
        elif kind == "ambiguous":
            self._series.clear()
            previous = self._previous = [0.0 if value == 0.0 else nan for value in previous]
        for position, (index, columns) in enumerate(plan.counters):
            value = values[index]
            difference = value - previous[position]
            if difference != 0.0:
                if 0.0 <= value < inf:
                    previous[position] = value
                else:
                    difference = nan
                for column in columns:
                    sums[column] += difference
        steps = [reading.buckets[index][-1] for index in plan.steps]
        if steps:
            count = sum(steps)
            before = 0.0 if kind in ("born", "reset") else self._steps
            if before is not None and kind not in ("first", "other"):
                sums[STEPS_COLUMN] = count - before if before <= count < inf else nan
            self._steps = count
        return sums

    def _row(self, plan: Plan, reading: ServerReading, sums: list[float]) -> list[float]:
        """The ring's row: gauges combined over engines, counters as deltas."""
        values = reading.values
        for column, indices, largest in plan.gauges:
            if len(indices) == 1:
                value = values[indices[0]]
            else:
                several = [values[index] for index in indices]
                value = max(several) if largest else sum(several)
            sums[column] = value if 0.0 <= value < inf else nan
        if plan.sleep:
            asleep = [state for index, state in plan.sleep if values[index] == 1.0]
            self._sleep_state = next((state for state in asleep if state != "awake"), "awake" if asleep else None)
            self._asleep = self._sleep_state not in (None, "awake")
        else:
            self._sleep_state = self._asleep = None
        return sums

    def _cells(self, plan: Plan, reading: ServerReading, kind: str, start: float, now: float, longest: float) -> bool:
        """Close the cells of this reading; whether any request was recorded."""
        if kind in ("born", "reset", "other", "ambiguous", "first"):
            for (family, _), builder in self._builders.items():
                if builder.pending:
                    self._break(family, Broken(builder.engine, start, now))
        if kind in ("born", "reset", "other", "first"):
            self._builders.clear()
            self._of_family.clear()
        recorded = False
        for index, family, engine in plan.histograms:
            bounds = plan.layout.histograms[index].bounds
            cumulative = reading.buckets[index]
            total_ = reading.sums[index]
            known = self._builders.get((family, engine))
            if known is None:
                builder = self._builders[family, engine] = CellBuilder(engine)
                self._of_family.setdefault(family, []).append(builder)
                if kind in ("first", "other"):
                    builder.baseline(bounds, cumulative, total_, now)
                    continue
                builder.zero(bounds, start)
            else:
                builder = known
                if kind == "ambiguous" and not builder.empty:
                    builder.baseline(bounds, cumulative, total_, now)
                    continue
            made = builder.add(bounds, cumulative, total_, now, longest)
            if made is None:
                continue
            if isinstance(made, Broken):
                self._break(family, made)
                continue
            recorded = True
            self._logs[family].push(made)
            if family == "ttft_seconds":
                self._ttft.append(_ttft_cell(made))
        return recorded

    def _break(self, family: str, broken: Broken) -> None:
        self._broken.setdefault(family, deque(maxlen=_MOST_BROKEN)).append(broken)

    def _note(self, kind: str, reading: ServerReading, now: float, wall: float | None, evidence: Evidence) -> None:
        """Remember what identifies the process, and count restarts."""
        if kind == "reset":
            self._resets.append(now)
        elif kind == "ambiguous":
            self._unclear.append((now, "restart_without_reset"))
        elif kind == "other":
            self._unclear.append((now, "several_processes"))
        known = reading.process_start is not None and self._process_start is not None
        same = known and abs((reading.process_start or 0.0) - (self._process_start or 0.0)) <= START_TOLERANCE
        if kind in ("reset", "ambiguous") and not same:
            self._restarts += 1
            self._last_restart = reading.process_start if reading.process_start is not None else wall
            if self._last_restart is not None:
                self._events["restart"] = self._last_restart
            self._machine.restarted(now)
        elif kind in ("born", "other"):
            self._machine.restarted(now)
        self._process_start = reading.process_start
        self._created = reading.created
        if evidence.start_ticks is not None:
            self._ticks = evidence.start_ticks
        self._sampled = now
        self._sampled_wall = wall

    def _config(self, layout: Layout, settings: Mapping[str, str] | None, wall: float | None) -> None:
        """Count changes of settings, and say in words what changed."""
        if settings is None:
            if self._config_layout is layout:
                return
            self._config_layout = layout
            settings = settings_of(layout)
        elif settings is self._settings:
            return
        changed = [
            f"{key} {old} -> {settings[key]}"
            for key, old in self._settings.items()
            if key in settings and not same_setting(old, settings[key])
        ]
        if changed:
            self._changes += 1
            self._last_change = "; ".join(changed)
            self._last_change_at = wall
            if wall is not None:
                self._events["config_change"] = wall
        # What is missing now may come back (a log that was not read yet): it is compared again then.
        self._settings = settings if settings.keys() >= self._settings.keys() else {**self._settings, **settings}

    def _withhold(self, plan: Plan, row: list[float], now: float) -> None:
        """A dead engine's gauges keep their last values for ever: they are no longer known."""
        for column, _, _ in plan.gauges:
            row[column] = nan
        self._sleep_state = self._asleep = None
        self._withheld.append(now)

    def _activity(self, start: float, now: float, row: Sequence[float], *, moved: bool, progressed: bool) -> None:
        if now - start > axis.LONGEST_STRETCH:
            return
        if progressed:
            self.computed.mark(start, now)
        if moved or progressed or row[0] > 0.0 or row[1] > 0.0:
            self.busy.mark(start, now)

    # ------------------------------------------------------------------ one window

    def _windowed(self, seconds: float, until: float | None = None) -> Windowed:
        now = self._now if until is None else until
        if now is None:
            return _nothing(seconds, "no_samples")
        ring = self._ring
        first = ring.since(now - seconds)
        begin, end = ring.window(now, seconds)
        if first >= end:
            return _nothing(seconds, "no_samples")
        absent: dict[str, str] = {}
        out: dict[str, object] = {"seconds": seconds, "absent": MappingProxyType(absent)}

        def put(name: str, value: object, reason: str | None) -> None:
            if value is None:
                absent[name] = reason or "unknown"
            else:
                out[name] = value

        withheld = any(now - seconds < at <= now for at in reversed(self._withheld))
        dead = {COLUMNS[column] for column, _, _ in self._plan.gauges} if withheld and self._plan is not None else ()
        for name, column in (
            ("requests_waiting_peak", "requests_waiting"),
            ("requests_running_peak", "requests_running"),
            ("kv_cache_usage_peak", "kv_cache_usage"),
        ):
            # A gauge is as it was sampled, however long the stretch before it.
            put(name, peak(ring[column], first, end), "engine_dead" if column in dead else "not_offered")
        trouble = "gap" if begin == end else self._trouble(now - seconds, now)
        if trouble is not None:
            absent.update(dict.fromkeys(_DELTA_FIELDS, trouble))
            return Windowed(**out)  # type: ignore[arg-type]
        self._counted(begin, end, put)
        self._ttft_values(now, seconds, begin, end, out, absent, put)
        for family, mean, count in (
            ("inter_token_latency_seconds", "itl_mean", "itl_count"),
            ("e2e_latency_seconds", "e2e_mean", "e2e_requests"),
        ):
            reason = self._histogram_trouble(family, now - seconds, now)
            if reason is not None:
                absent[mean] = absent[count] = reason
                continue
            if ring.span(begin, end) <= 0.0:
                absent[mean] = absent[count] = "no_earlier_sample"
                continue
            requests, sum_ = self._logs[family].totals(now, seconds)
            out[count] = requests
            put(mean, sum_ / requests if requests else None, "no_requests")
        return Windowed(**out)  # type: ignore[arg-type]

    def _counted(self, begin: int, end: int, put: Callable[[str, object, str | None], None]) -> None:
        """Counters of the window."""
        ring = self._ring
        sums: dict[str, float | None] = {}
        for column in (
            "preemptions",
            "prompt_tokens",
            "prompt_tokens_computed",
            "prompt_tokens_cached",
            "prompt_tokens_external",
            "generation_tokens",
            "finished",
            "prefix_queries",
            "prefix_hits",
        ):
            sums[column] = total(ring[column], begin, end)
        for name, column in (
            ("preemptions", "preemptions"),
            ("prompt_tokens", "prompt_tokens"),
            ("prompt_tokens_computed", "prompt_tokens_computed"),
            ("generation_tokens", "generation_tokens"),
            ("requests_finished", "finished"),
        ):
            put(name, sums[column], self._why(column))
        cached = sums["prompt_tokens_cached"]
        if cached is not None:
            cached += sums["prompt_tokens_external"] or 0.0
        put("prompt_tokens_cached", cached, self._why("prompt_tokens_cached"))
        if sums["preemptions"]:
            deltas = ring["preemptions"].slice(begin, end)
            most = burst(deltas, ring.stretches(begin, end), self._interval)
        else:
            most = sums["preemptions"]
        put("preemptions_burst_peak", most, self._why("preemptions"))
        hit, reason = ratio(sums["prefix_hits"], sums["prefix_queries"])
        put("prefix_hit_ratio", hit, self._why("prefix_queries") if reason == "not_offered" else reason)

    def _ttft_values(
        self,
        now: float,
        seconds: float,
        begin: int,
        end: int,
        out: dict[str, object],
        absent: dict[str, str],
        put: Callable[[str, object, str | None], None],
    ) -> None:
        """TTFT: requests, mean, jitter, quantiles, shares."""
        reason = self._histogram_trouble("ttft_seconds", now - seconds, now)
        if reason is not None:
            absent.update(dict.fromkeys(_TTFT_FIELDS, reason))
            return
        entries = self._ttft_in(now, seconds)
        span = self._ring.span(begin, end)
        if span <= 0.0:
            absent.update(dict.fromkeys(_TTFT_FIELDS, "no_earlier_sample"))
            return
        out["ttft_span_seconds"] = span
        spread = jitter(entry.part for entry in entries)
        out["ttft_requests"] = spread.requests
        put("ttft_mean", spread.mean, spread.reason)
        put("ttft_jitter_lower", spread.lower, spread.reason)
        put("ttft_jitter_upper", spread.upper, spread.reason)
        put("ttft_jitter", spread.estimate, spread.reason)
        put("ttft_jitter_error_ratio", spread.error_ratio, spread.reason)
        put("ttft_jitter_ratio", spread.ratio, spread.reason)
        found, missing = quantiles([entry.limits for entry in entries])
        out["ttft_quantiles"] = found
        for label, why in missing.items():
            absent[f"ttft_quantiles[{label}]"] = why
        shares = shares_over(entry.cell for entry in entries)
        out["ttft_share_over"] = {le(bound): share for bound, share in shares.items()}
        if not shares:
            absent["ttft_share_over"] = "no_requests"

    def _ttft_in(self, now: float, seconds: float) -> Sequence[_TtftCell]:
        oldest = now - 1.5 * seconds
        newest = self._now is None or now >= self._now
        if not newest or 1.5 * seconds > self._keep:
            cells = self._logs["ttft_seconds"].cells(now - seconds)
            return [_ttft_cell(cell) for cell in cells if cell.start >= oldest and cell.end <= now]
        after = now - seconds
        return [entry for entry in self._ttft if entry.cell.end > after and entry.cell.start >= oldest]

    def _trouble(self, after: float, until: float) -> str | None:
        """Why no delta of the window can be trusted."""
        for at, reason in self._unclear:
            if after < at <= until:
                return reason
        if sum(after < at <= until for at in self._resets) > MOST_RESETS:
            return "unstable_counters"
        return None

    def _histogram_trouble(self, family: str, after: float, until: float) -> str | None:
        builders = self._of_family.get(family)
        if not builders:
            return "not_offered"
        if not all(builder.usable for builder in builders):
            return "unusable_bounds"
        if any(b.end > after and (b.start < until or b.end <= until) for b in self._broken.get(family, ())):
            return "inconsistent"
        return None

    def _why(self, column: str) -> str:
        """Why a counter has no value in the window."""
        if self._plan is None or COLUMNS.index(column) not in self._plan.offered:
            return "not_offered"
        return "no_earlier_sample"


def le(bound: float) -> str:
    """A bucket bound as it is printed on the wire (``0.25``, ``1.0``)."""
    return repr(float(bound))


def _age(reading: ServerReading, wall: float | None) -> float:
    """Seconds that the process can have been running at most (a minute's allowance for clocks); inf = not known."""
    if wall is None or reading.process_start is None or not wall > reading.process_start:
        return inf
    return wall - reading.process_start + 60.0


def _number(value: float) -> float | None:
    return None if isnan(value) else value


def _nothing(seconds: float, reason: str) -> Windowed:
    return Windowed(seconds, absent=MappingProxyType(dict.fromkeys((*_DELTA_FIELDS, *_GAUGE_FIELDS), reason)))
