"""The newest of everything, and the snapshot made of it.  Threads feed it; nothing here does I/O or reads a clock.

Server threads call :meth:`Store.observed`, the GPU thread :meth:`Store.gpu_tick`, the watch thread
:meth:`Store.pending`; readers call :meth:`Store.snapshot`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vllmeter import __version__
from vllmeter.config.settings import Settings
from vllmeter.evidence import evidence_of
from vllmeter.join import GpuState, ServerFactsNow, join, match_rule
from vllmeter.memory.attribute import IdentityMemory, ServerFacts, ServerUsage, attribute, misfit
from vllmeter.memory.budget import BudgetFacts, held_estimate
from vllmeter.memory.effective import effective_settings, setting_number
from vllmeter.memory.findings import Evidence as Beside
from vllmeter.memory.flags import ServeCommand, parse_command
from vllmeter.memory.startup_log import Failure, StartupFacts, foreign_log
from vllmeter.render.text import Blocks
from vllmeter.scrape.target import Target
from vllmeter.snapshot import (
    Baseline,
    ConfigStatus,
    ContainerTable,
    NvmlReading,
    ProcessTable,
    RunMark,
    ServerReading,
    Snapshot,
)
from vllmeter.windows.state import NOTHING, Evidence
from vllmeter.windows.tracker import GpuSample, HostTracker, ServerTracker

_IDLE_KEEP_ALIVE = 5.0
"""vLLM closes our idle connection after this many seconds; while younger, one connection to its port is ours."""


_PAST_RUNS = 100
"""Ended runs that the live page can still shade."""

_END_SHOWN = 900.0
"""Seconds for which ``/metrics`` still says when a run ended: many scrapes, so that one that fails loses nothing."""
_MOST_ENDS = 10
"""Ended runs in ``/metrics`` at most: one series per run and server."""


@dataclass(slots=True)
class Entry:
    """Everything that is kept for one server."""

    target: Target
    tracker: ServerTracker
    evidence: Evidence = NOTHING
    command: ServeCommand | None = None
    argv: tuple[str, ...] | None = None
    startup: StartupFacts | None = None
    last_failure: Failure | None = None
    container: str | None = None
    had_engine: tuple[int, int] | None = None
    """(pid, start) of the server process under which an engine process was seen"""
    high_water: dict[str, float] = field(default_factory=dict)
    """uuid -> most bytes measured of ``high_water_of``: from our own first look on, peaks before it are not known"""
    high_water_of: frozenset[tuple[int, int]] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    settings_source: Mapping[str, str] = field(default_factory=dict)
    setting_values: Mapping[str, float] = field(default_factory=dict)
    model_config: Mapping[str, object] | None = None
    first_done: bool = False


def _watched(entry: Entry) -> dict[str, str]:
    """Settings whose change counts.  The list of flags is one of them, so that a flag that comes or goes is seen."""
    watched = dict(entry.settings)
    if entry.target.version:
        watched["version"] = entry.target.version
    if entry.command is not None:
        watched["flags"] = " ".join(sorted(entry.command.options))
    return watched


class Store:
    """Newest samples, trackers and marks of one host."""

    def __init__(self, settings: Settings) -> None:
        self._lock = threading.RLock()
        self._windows = settings.all_windows()
        self._entries: dict[str, Entry] = {}
        self._host = HostTracker(windows=tuple(s for _, s in self._windows))
        self._gpu = GpuState()
        self._identity = IdentityMemory()
        self._runs: dict[tuple[str, str], RunMark] = {}
        self._ended: deque[tuple[RunMark, float]] = deque(maxlen=_PAST_RUNS)
        self.nvml_interval = settings.nvml.interval
        self.config = ConfigStatus()
        self.baselines: tuple[Baseline, ...] = ()
        self._cached: tuple[float, Snapshot] | None = None

    # ------------------------------------------------------------------ servers come and go

    def add(self, target: Target) -> Entry:
        """A server to sample from now on."""
        tracker = ServerTracker(
            target.server.name, interval=target.base_interval, windows=tuple(s for _, s in self._windows)
        )
        entry = Entry(target, tracker)
        with self._lock:
            self._entries[target.server.name] = entry
            self._host.add(tracker)
            self._cached = None
        return entry

    def remove(self, name: str) -> None:
        """A server that is no longer configured: all its series vanish."""
        with self._lock:
            if self._entries.pop(name, None) is not None:
                self._host.remove(name)
            self._cached = None

    def entry(self, name: str) -> Entry | None:
        """What is kept for a server, or None."""
        return self._entries.get(name)

    @property
    def host(self) -> HostTracker:
        """What happened on the GPUs in the last 15 minutes."""
        return self._host

    def readings(self) -> tuple[NvmlReading | None, ProcessTable | None]:
        """The newest tick of NVML and the process table beside it."""
        with self._lock:
            return self._gpu.nvml, self._gpu.table

    def names(self) -> tuple[str, ...]:
        """Names of the servers in the order in which they were added."""
        return tuple(self._entries)

    # ------------------------------------------------------------------ samples

    def observed(self, target: Target, reading: ServerReading | None, at: float, wall: float) -> None:
        """A scrape of a server ended."""
        entry = self._entries.get(target.server.name)
        if entry is None or entry.target is not target:
            return  # removed or replaced while the scrape was under way
        status = target.status(at)
        if reading is not None:
            self._refresh_settings(entry, reading)
            entry.tracker.observe(
                reading,
                at,
                wall=wall,
                health=status.health,
                evidence=entry.evidence,
                settings=_watched(entry),
            )
        else:
            entry.tracker.fail(
                status.reason or "internal", at, wall=wall, health=status.health, evidence=entry.evidence
            )
        entry.first_done = True

    def log_facts(self, name: str, facts: StartupFacts, failure: Failure | None) -> None:
        """The start-up log of a server said something new; ``failure``: newest reason of death in any start."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry.startup, entry.last_failure = facts, failure
                self._cached = None

    def model_config(self, name: str, config: Mapping[str, object] | None) -> None:
        """The model's config.json of a server, read by the caller."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None:
                entry.model_config = config

    def evidence(self) -> Beside:
        """What lies beside a snapshot for findings: command lines, start-up facts, containers, by server."""
        with self._lock:
            entries = dict(self._entries)
        commands = {name: e.command for name, e in entries.items() if e.command is not None}
        startups = {name: e.startup for name, e in entries.items() if e.startup is not None and _is_own_log(e)}
        pooling = {name for name, command in commands.items() if command.pooling}
        pooling |= {name for name, startup in startups.items() if startup.pooling}
        containers = {name: e.container for name, e in entries.items() if e.container is not None}
        return Beside(commands, startups, frozenset(pooling), containers)

    def pending(self, at: float, wall: float) -> None:
        """Tells the trackers about answers that are still awaited (about once a second)."""
        for entry in list(self._entries.values()):
            waited = entry.target.in_flight(at)
            if waited is not None and waited > 1.0:
                health = entry.target.status(at).health
                entry.tracker.pending(at, in_flight=waited, wall=wall, health=health, evidence=entry.evidence)

    def gpu_tick(
        self, nvml: NvmlReading, table: ProcessTable | None, containers: ContainerTable | None, at: float, wall: float
    ) -> None:
        """A tick of NVML with the process table of (about) the same moment."""
        with self._lock:
            entries = dict(self._entries)
            dropped = self._gpu.dropped
        result = None
        if table is not None:
            facts = [self._facts(entry) for entry in entries.values()]
            result = attribute(nvml, table, facts, containers=containers, memory=self._identity)
            if misfit(result) is not None:
                with self._lock:
                    self._gpu.dropped = dropped + 1
                return
            self._identity = result.memory
        with self._lock:
            self._gpu = GpuState(nvml, table, result, at, dropped)
        if result is None:
            return
        gpu_pids = {p.pid for g in nvml.gpus for p in g.processes or ()}
        for name, entry in entries.items():
            self._update_entry(entry, result.servers.get(name), table, gpu_pids, at)
        self._host.observe(
            at,
            gpus={g.uuid: GpuSample(g.memory_used_bytes, g.utilization_ratio) for g in nvml.gpus if nvml.up},
            memory={
                name: {uuid: q.value for uuid, q in usage.used.items() if q.value is not None}
                for name, usage in result.servers.items()
            },
            sm={name: dict(usage.sm_utilization) for name, usage in result.servers.items()},
        )

    def _facts(self, entry: Entry) -> ServerFacts:
        server = entry.target.server
        parts = urlsplit(server.url)
        sample = entry.target.sample
        return ServerFacts(
            name=server.name,
            host=parts.hostname or "",
            port=parts.port or (443 if parts.scheme == "https" else 80),
            match=match_rule(server.match),
            addresses=(entry.target.peer,) if entry.target.peer else (),
            model_names=sample.reading.layout.model_names if sample is not None else (),
            estimate=None if entry.startup is None else held_estimate(_budget_facts(entry)),
        )

    def _update_entry(
        self, entry: Entry, usage: ServerUsage | None, table: ProcessTable | None, gpu_pids: set[int], at: float
    ) -> None:
        if usage is not None and usage.argv is not None and usage.argv != entry.argv:
            entry.argv = usage.argv
            entry.command = parse_command(usage.argv, environment=usage.environ)
        sample = entry.target.sample
        ours = 1 if sample is not None and at - sample.at < _IDLE_KEEP_ALIVE else 0
        entry.evidence = evidence_of(
            usage,
            table,
            gpu_pids=gpu_pids,
            own_connections=ours,
            had_engine=usage is not None and usage.root is not None and usage.root == entry.had_engine,
        )
        if usage is None:
            return
        entry.container = usage.container
        if entry.evidence.engine_states:
            entry.had_engine = usage.root
        if not (usage.identity & entry.high_water_of):
            entry.high_water.clear()  # other processes: a restart begins anew
        if usage.identity:
            entry.high_water_of = usage.identity
        for uuid, quantity in usage.used.items():
            if quantity.value is not None and not quantity.estimate:
                entry.high_water[uuid] = max(entry.high_water.get(uuid, 0.0), quantity.value)

    def _refresh_settings(self, entry: Entry, reading: ServerReading) -> None:
        entry.settings, entry.settings_source = effective_settings(reading.layout.cache_config, entry.command)
        numbers = {name: setting_number(value) for name, value in entry.settings.items()}
        entry.setting_values = {name: number for name, number in numbers.items() if number is not None}

    # ------------------------------------------------------------------ runs

    def mark_run(self, mark: RunMark, *, start: bool) -> None:
        """Marks a run as active or ended; ValueError when it already is (or is not)."""
        key = (mark.run, mark.server)
        with self._lock:
            if mark.server and mark.server not in self._entries:
                raise ValueError(f"no server {mark.server!r}; known: {', '.join(self._entries) or 'none'}")
            if start == (key in self._runs):
                raise ValueError(f"run {mark.run!r} is {'already' if start else 'not'} active")
            if start:
                self._runs[key] = mark
            else:
                self._ended.append((self._runs.pop(key), mark.started))
            self._cached = None

    def past_runs(self) -> tuple[tuple[RunMark, float], ...]:
        """Runs that ended since this exporter started, with the Unix time of their end; the newest last."""
        with self._lock:
            return tuple(self._ended)

    def doubtful(self, name: str) -> tuple[str, str | None]:
        """State and model name of a server, for the canary."""
        entry = self._entries.get(name)
        if entry is None:
            return "gone", None
        sample = entry.target.sample
        names = sample.reading.layout.model_names if sample is not None else ()
        return entry.tracker.status().state, names[0] if names else None

    def proved(self, name: str) -> None:
        """The canary of a server got its answer now."""
        entry = self._entries.get(name)
        if entry is not None and entry.target.sample is not None:
            entry.tracker.proved(entry.target.sample.at)

    def hold(self, target: Target) -> bool:
        """True while sampling of a server must not slow down: requests wait, or a run is active."""
        if self._runs:
            return True
        sample = target.sample
        return sample is not None and sample.waiting

    # ------------------------------------------------------------------ reading

    def snapshot(self, at: float, wall: float, *, max_age: float = 0.2) -> Snapshot:
        """The snapshot at ``at``; one made less than ``max_age`` seconds before is handed out again."""
        with self._lock:
            cached = self._cached
            if cached is not None and 0 <= at - cached[0] < max_age:
                return cached[1]
            snapshot = join(
                at=at,
                wall=wall,
                version=__version__,
                servers=[self._now(entry, at) for entry in self._entries.values()],
                gpu=self._gpu,
                host=self._host,
                windows=self._windows,
                nvml_interval=self.nvml_interval,
                runs=tuple(self._runs.values()),
                ended_runs=tuple((mark, end) for mark, end in self._ended if end > wall - _END_SHOWN)[-_MOST_ENDS:],
                baselines=self.baselines,
                config=self.config,
            )
            self._cached = (at, snapshot)
            return snapshot

    def _now(self, entry: Entry, at: float) -> ServerFactsNow:
        target = entry.target
        hold = self.hold(target)
        return ServerFactsNow(
            server=target.server,
            scrape=target.status(at, hold=hold),
            sample=target.fresh(at, hold=hold),
            version=target.version,
            status=entry.tracker.status(),
            settings=entry.settings,
            settings_source=entry.settings_source,
            setting_values=entry.setting_values,
            command=entry.command,
            startup=entry.startup,
            high_water=dict(entry.high_water),
            model_config=entry.model_config,
        )

    def blocks(self) -> dict[str, Blocks]:
        """``/metrics`` lines of every server that has a sample."""
        written = {name: entry.target.blocks() for name, entry in list(self._entries.items())}
        return {name: blocks for name, blocks in written.items() if blocks is not None}

    def looked_at_all(self) -> Sequence[str]:
        """Names of servers whose first scrape has not ended yet."""
        return [name for name, entry in list(self._entries.items()) if not entry.first_done]


def _is_own_log(entry: Entry) -> bool:
    sample = entry.target.sample
    names = sample.reading.layout.model_names if sample is not None else ()
    return entry.startup is None or foreign_log(entry.startup, names) is None


def _budget_facts(entry: Entry) -> BudgetFacts:
    sample = entry.target.sample
    return BudgetFacts(
        version=entry.target.version,
        labels=sample.reading.layout.cache_config if sample is not None else {},
        startup=entry.startup,
        command=entry.command,
        model_config=entry.model_config,
        model_names=sample.reading.layout.model_names if sample is not None else (),
    )
