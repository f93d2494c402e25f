"""Readings, attribution, budgets and windows -> one Snapshot.  Pure: all derived values of the views are made here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllmeter.catalogue import ENGINE_GAUGES
from vllmeter.config.settings import Match, Server
from vllmeter.gpu.reasons import WORDS, explain
from vllmeter.memory.attribute import AttributionResult, MatchRule, ServerUsage
from vllmeter.memory.budget import BudgetFacts, ConfiguredBudget, ServerBudget, budget_of, committed, cuda_total
from vllmeter.memory.flags import ServeCommand
from vllmeter.memory.startup_log import StartupFacts, describe, foreign_log
from vllmeter.scrape.target import Sample
from vllmeter.snapshot import (
    Attribution,
    Baseline,
    ConfigStatus,
    GpuReading,
    GpuView,
    NvmlReading,
    ProcessTable,
    Quantity,
    RunMark,
    ScrapeStatus,
    ServerView,
    Snapshot,
    Windowed,
)
from vllmeter.windows.state import ServerStatus
from vllmeter.windows.tracker import HostTracker


@dataclass(slots=True)
class GpuState:
    """The newest tick of NVML and ``/proc`` with what was worked out of it."""

    nvml: NvmlReading | None = None
    table: ProcessTable | None = None
    result: AttributionResult | None = None
    at: float | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ServerFactsNow:
    """What is known of one server at the moment of a snapshot."""

    server: Server
    scrape: ScrapeStatus
    sample: Sample | None
    version: str | None
    status: ServerStatus
    settings: Mapping[str, str] = field(default_factory=dict)
    settings_source: Mapping[str, str] = field(default_factory=dict)
    setting_values: Mapping[str, float] = field(default_factory=dict)
    command: ServeCommand | None = None
    startup: StartupFacts | None = None
    high_water: Mapping[str, float] = field(default_factory=dict)
    model_config: Mapping[str, object] | None = None


def match_rule(match: Match | None) -> MatchRule | None:
    """The configured match in the form that attribution takes."""
    if match is None:
        return None
    return MatchRule(container=match.container, unit=match.unit, port=match.port, command=match.command, pod=match.pod)


def join(
    *,
    at: float,
    wall: float,
    version: str,
    servers: Sequence[ServerFactsNow],
    gpu: GpuState,
    host: HostTracker,
    windows: Sequence[tuple[str, float]],
    nvml_interval: float,
    runs: tuple[RunMark, ...],
    ended_runs: tuple[tuple[RunMark, float], ...] = (),
    baselines: tuple[Baseline, ...],
    config: ConfigStatus,
) -> Snapshot:
    """The snapshot at ``at`` (monotonic) / ``wall`` (Unix), both in seconds."""
    nvml, age, reason = _nvml_now(gpu, at, nvml_interval)
    result = gpu.result if nvml is not None else None
    views = tuple(_server(facts, nvml, gpu.table, result, host, windows) for facts in servers)
    wsl = gpu.table is not None and gpu.table.wsl
    gpus = () if nvml is None else tuple(_gpu(r, result, host, windows, views, servers, wsl) for r in nvml.gpus)
    return Snapshot(
        at=at,
        wall=wall,
        version=version,
        servers=views,
        gpus=gpus,
        nvml=nvml,
        nvml_reason=reason,
        nvml_words=explain(reason) if reason in WORDS else reason or "",
        ownership_notes=result.findings if result is not None else (),
        nvml_age=age,
        nvml_ticks_dropped=gpu.dropped,
        host_pid_namespace=None if gpu.table is None else gpu.table.host_pid_namespace,
        runs=runs,
        ended_runs=ended_runs,
        baselines=baselines,
        config=config,
    )


def _nvml_now(gpu: GpuState, at: float, interval: float) -> tuple[NvmlReading | None, float | None, str | None]:
    """The tick while it may be shown; else None with the reason.  A stale tick shows nothing, never old values."""
    if gpu.nvml is None or gpu.at is None:
        return None, None, "not read yet"
    age = max(0.0, at - gpu.at)
    if age > max(3 * interval, 3.0):
        return None, age, "late: the newest tick is too old"
    return gpu.nvml, age, gpu.nvml.reason


def _server(
    facts: ServerFactsNow,
    nvml: NvmlReading | None,
    table: ProcessTable | None,
    result: AttributionResult | None,
    host: HostTracker,
    windows: Sequence[tuple[str, float]],
) -> ServerView:
    name = facts.server.name
    usage = result.servers.get(name) if result is not None else None
    status, sample = facts.status, facts.sample
    budget = _budget(facts, usage, nvml, table)
    layout = sample.reading.layout if sample is not None else None
    reading = None if sample is None else sample.reading.without(ENGINE_GAUGES) if status.frozen else sample.reading
    return ServerView(
        name=name,
        url=facts.server.url,
        scrape=facts.scrape,
        state=status.state,
        state_reason=status.reason,
        state_since=status.since,
        reading=reading,
        reading_wall=None if sample is None else sample.wall,
        model_name=layout.model_names[0] if layout is not None and layout.model_names else None,
        version=facts.version,
        settings=facts.settings if sample is not None else {},
        settings_source=facts.settings_source if sample is not None else {},
        setting_values=facts.setting_values if sample is not None else {},
        start_timestamp=status.start_timestamp if sample is not None else None,
        restarts=status.restarts,
        config_changes=status.config_changes,
        last_restart=status.last_restart,
        last_config_change=status.last_config_change,
        last_change=status.last_change,
        last_preemption=status.last_preemption,
        sleep_state=status.sleep_state,
        windows=_windows(name, facts, host, windows),
        attribution=usage.attribution if usage is not None else _no_attribution(nvml),
        memory=budget.rows,
        kv_capacity_tokens=budget.kv.tokens,
        kv_capacity_bytes=budget.kv.bytes_per_gpu,
        startup=describe(facts.startup) if facts.startup is not None and budget.log_used else {},
        findings=budget.findings,
        host=usage.roles if usage is not None else (),
        exposed_series=_shown(sample, frozen=status.frozen) if sample is not None else 0,
        gauges_withheld=status.frozen,
    )


def _shown(sample: Sample, *, frozen: bool) -> int:
    """How many series of a sample are exposed."""
    gauges = sum(ref.family in ENGINE_GAUGES for ref in sample.reading.layout.scalars) if frozen else 0
    return sample.series - gauges


def _no_attribution(nvml: NvmlReading | None) -> Attribution:
    if nvml is None:
        return Attribution("unavailable", "none", "no GPU reading yet")
    if not nvml.up:
        return Attribution("unavailable", "none", nvml.reason or "NVML is not available")
    return Attribution("unavailable", "none", "processes of this host cannot be read")


def _windows(
    name: str, facts: ServerFactsNow, host: HostTracker, windows: Sequence[tuple[str, float]]
) -> dict[str, Windowed]:
    """Windows of a server that answers; nothing of a server that is gone is shown as if it went on."""
    if facts.sample is None:
        return {}
    return {label: host.windowed(name, seconds) for label, seconds in windows}


def _budget(
    facts: ServerFactsNow, usage: ServerUsage | None, nvml: NvmlReading | None, table: ProcessTable | None
) -> ServerBudget:
    """Budget, parts and KV capacity of one server on the GPUs that its processes are on."""
    configured = facts.server.budget
    layout = facts.sample.reading.layout if facts.sample is not None else None
    budget_facts = BudgetFacts(
        version=facts.version,
        labels=layout.cache_config if layout is not None else {},
        startup=facts.startup,
        command=facts.command,
        configured=None if configured is None else ConfiguredBudget(configured.fraction, configured.bytes),
        model_config=facts.model_config,
        environment=(usage.environ if usage is not None else None) or {},
        sleep_state=facts.status.sleep_state,
        starting=facts.status.state == "starting",
        wsl=table is not None and table.wsl,
        model_names=layout.model_names if layout is not None else (),
    )
    rows = []
    pids: dict[str, frozenset[int]] = {}
    for reading in nvml.gpus if nvml is not None else ():
        if usage is None or reading.uuid not in usage.used:
            continue
        used = usage.used[reading.uuid]
        peak = facts.high_water.get(reading.uuid)
        high = Quantity(peak, "nvml") if peak is not None else Quantity(None, reason=used.reason or "not measured yet")
        rows.append((reading, used, high))
        own = {pid for pid, _ in usage.identity} & {p.pid for p in reading.processes or ()}
        if table is not None:
            found = [table.processes[pid] for pid in own if pid in table.processes]
            pids[reading.uuid] = frozenset(p.namespace_pids[-1] if p.namespace_pids else p.pid for p in found)
    budget = budget_of(budget_facts, rows, namespace_pids=pids)
    if usage is None or not usage.sm_utilization:
        return budget
    return replace(
        budget,
        rows=tuple(replace(row, sm_utilization_ratio=usage.sm_utilization.get(row.uuid)) for row in budget.rows),
    )


def _gpu(
    reading: GpuReading,
    result: AttributionResult | None,
    host: HostTracker,
    windows: Sequence[tuple[str, float]],
    views: Sequence[ServerView],
    servers: Sequence[ServerFactsNow],
    wsl: bool,
) -> GpuView:
    split = result.gpus.get(reading.uuid) if result is not None else None
    here = {view.name for view in views for row in view.memory if row.uuid == reading.uuid}
    peaks = {label: host.gpu_windowed(reading.uuid, seconds) for label, seconds in windows}
    return GpuView(
        reading=reading,
        gpu=reading.gpu,
        cuda_total=cuda_total(reading, logged=_logged_total(servers, here), wsl=wsl),
        committed=committed(row for view in views for row in view.memory if row.uuid == reading.uuid),
        unattributed_bytes=None if split is None else split.unattributed_bytes,
        other=() if split is None else split.other,
        used_peak={k: p.used_peak for k, p in peaks.items() if p.used_peak is not None},
        utilization_peak={k: p.utilization_peak for k, p in peaks.items() if p.utilization_peak is not None},
    )


def _own_log(facts: ServerFactsNow) -> bool:
    """False when the start-up log names other models than the server: it was configured for the wrong one."""
    names = facts.sample.reading.layout.model_names if facts.sample is not None else ()
    return facts.startup is None or foreign_log(facts.startup, names) is None


def _logged_total(servers: Sequence[ServerFactsNow], here: Collection[str]) -> int | None:
    """CUDA total as a server on this GPU logged it; None when none did or they disagree (several cards)."""
    totals = {
        worker.cuda_total
        for facts in servers
        if facts.server.name in here and facts.startup is not None and _own_log(facts)
        for worker in facts.startup.workers
        if worker.cuda_total is not None
    }
    return totals.pop() if len(totals) == 1 else None
