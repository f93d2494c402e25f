"""Readings, attribution, budgets and windows -> one Snapshot.  Pure: all derived values of the views are made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllmeter.config.settings import Match, Server
from vllmeter.memory.attribute import AttributionResult, MatchRule, ServerUsage
from vllmeter.memory.flags import ServeCommand
from vllmeter.memory.startup_log import StartupFacts
from vllmeter.scrape.target import Sample
from vllmeter.snapshot import (
    Attribution,
    Baseline,
    ConfigStatus,
    GpuMemory,
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
    baselines: tuple[Baseline, ...],
    config: ConfigStatus,
) -> Snapshot:
    """The snapshot at ``at`` (monotonic) / ``wall`` (Unix), both in seconds."""
    nvml, age, reason = _nvml_now(gpu, at, nvml_interval)
    result = gpu.result if nvml is not None else None
    views = tuple(_server(facts, nvml, result, host, windows, wall, at) for facts in servers)
    gpus = () if nvml is None else tuple(_gpu(r, result, host, windows, views) for r in nvml.gpus)
    return Snapshot(
        at=at,
        wall=wall,
        version=version,
        servers=views,
        gpus=gpus,
        nvml=nvml,
        nvml_reason=reason,
        nvml_age=age,
        nvml_ticks_dropped=gpu.dropped,
        host_pid_namespace=None if gpu.table is None else gpu.table.host_pid_namespace,
        runs=runs,
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
    result: AttributionResult | None,
    host: HostTracker,
    windows: Sequence[tuple[str, float]],
    wall: float,
    at: float,
) -> ServerView:
    name = facts.server.name
    usage = result.servers.get(name) if result is not None else None
    status, sample = facts.status, facts.sample
    layout = sample.reading.layout if sample is not None else None
    return ServerView(
        name=name,
        url=facts.server.url,
        scrape=facts.scrape,
        state=status.state,
        state_reason=status.reason,
        state_since=status.since,
        reading=None if sample is None else sample.reading,
        reading_wall=None if sample is None else sample.wall,
        model_name=layout.model_names[0] if layout is not None and layout.model_names else None,
        version=facts.version,
        settings=facts.settings if sample is not None else {},
        settings_source=facts.settings_source if sample is not None else {},
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
        memory=_memory(facts, usage, nvml),
        host=usage.roles if usage is not None else (),
        exposed_series=sample.series if sample is not None else 0,
    )


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


def _memory(facts: ServerFactsNow, usage: ServerUsage | None, nvml: NvmlReading | None) -> tuple[GpuMemory, ...]:
    if usage is None or nvml is None:
        return ()
    labels = {reading.uuid: reading.gpu for reading in nvml.gpus}
    unknown = Quantity(None, reason="no budget known")
    return tuple(
        GpuMemory(
            gpu=labels.get(uuid, ""),
            uuid=uuid,
            used=used,
            budget=unknown,
            expected=unknown,
            allowance=unknown,
            high_water=Quantity(facts.high_water.get(uuid), "nvml"),
            sm_utilization_ratio=usage.sm_utilization.get(uuid),
        )
        for uuid, used in sorted(usage.used.items())
    )


def _gpu(
    reading: GpuReading,
    result: AttributionResult | None,
    host: HostTracker,
    windows: Sequence[tuple[str, float]],
    servers: Sequence[ServerView],
) -> GpuView:
    split = result.gpus.get(reading.uuid) if result is not None else None
    rows = [row for view in servers for row in view.memory if row.uuid == reading.uuid and row.budget.value is not None]
    committed = (
        Quantity(sum((row.budget.value or 0.0) + (row.allowance.value or 0.0) for row in rows), "computed")
        if rows
        else Quantity(None, reason="no server with a known budget here")
    )
    peaks = {label: host.gpu_windowed(reading.uuid, seconds) for label, seconds in windows}
    return GpuView(
        reading=reading,
        gpu=reading.gpu,
        committed=committed,
        unattributed_bytes=None if split is None else split.unattributed_bytes,
        other=() if split is None else split.other,
        used_peak={k: p.used_peak for k, p in peaks.items() if p.used_peak is not None},
        utilization_peak={k: p.utilization_peak for k, p in peaks.items() if p.utilization_peak is not None},
    )
