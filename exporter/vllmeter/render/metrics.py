"""Snapshot -> ``/metrics``: the samples that are not the servers' own (those come ready from ServerText).  Pure.

One function per group of the catalogue; each yields ``(family, label values, value)`` in catalogue label order.
What is None in the snapshot yields nothing: an absent value has no series.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence

from vllmeter.catalogue import BY_NAME, ENGINE_GAUGES
from vllmeter.render.text import Blocks, bound, document, number, series
from vllmeter.snapshot import SERVER_STATES, GpuMemory, GpuView, Quantity, ServerView, Snapshot, Windowed

Sample = tuple[str, tuple[str, ...], float | None]

_REASON_LIMIT = 200
"""Reasons stand in labels: they are cut, so that no text from outside makes labels without limit."""


def render_metrics(
    snapshot: Snapshot, server_blocks: Mapping[str, Blocks], *, openmetrics: bool = False, extra: bytes = b""
) -> bytes:
    """The ``/metrics`` body.

    ``server_blocks`` are the servers' own lines as :class:`~vllmeter.render.text.ServerText` made them; only those of
    servers whose reading is still valid in ``snapshot`` are used.  ``extra`` (this process's own families, already in
    the right format, without ``# EOF``) goes to the front.
    """
    fresh = [
        _without_gauges(server_blocks[s.name]) if s.gauges_withheld else server_blocks[s.name]
        for s in snapshot.servers
        if s.reading is not None and s.name in server_blocks
    ]
    return extra + document([*fresh, write(samples(snapshot))], openmetrics=openmetrics)


def _without_gauges(blocks: Blocks) -> Blocks:
    """The lines of a server whose engine is dead: the text is made of its sample, which knows nothing of that."""
    return {family: lines for family, lines in blocks.items() if family not in ENGINE_GAUGES}


_LINES: dict[tuple[str, tuple[str, ...]], tuple[str, float, str]] = {}
"""series -> its line prefix, the value last written and that line: most values stay from one body to the next"""
_LINE_LIMIT = 200_000


def write(stream: Iterator[Sample]) -> Blocks:
    """Lines per family from samples; prefixes and lines are kept between calls."""
    lines: dict[str, list[str]] = {}
    for family, values, value in stream:
        if value is None:
            continue
        key = (family, values)
        known = _LINES.get(key)
        if known is None or known[1] != value:
            if known is not None:
                prefix = known[0]
            else:
                if len(_LINES) > _LINE_LIMIT:
                    _LINES.clear()
                prefix = series(family, zip(BY_NAME[family].labels, values, strict=True))
            known = _LINES[key] = (prefix, value, f"{prefix}{number(value)}\n")
        place = lines.get(family)
        if place is None:
            place = lines[family] = []
        place.append(known[2])
    return {family: "".join(parts).encode() for family, parts in lines.items()}


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """Every sample that the exporter itself makes."""
    yield from _exporter(snapshot)
    for server in snapshot.servers:
        yield from _health(server)
        yield from _windowed(server)
        yield from _budgets(server)
        yield from _host(server)
    for gpu in snapshot.gpus:
        yield from _gpu(gpu, snapshot)
    yield from _runs(snapshot)


def _flag(value: bool | None) -> float | None:
    return None if value is None else float(value)


def _text(value: str) -> str:
    return value[:_REASON_LIMIT]


def _exporter(s: Snapshot) -> Iterator[Sample]:
    yield "build_info", (s.version, platform.python_version()), 1
    yield "config_last_reload_successful", (), float(s.config.last_reload_ok)
    yield "config_last_reload_success_timestamp_seconds", (), s.config.last_success
    nvml = s.nvml
    yield "nvml_up", (), float(nvml is not None and nvml.up)
    reason = s.nvml_reason or (nvml.reason if nvml is not None else None)
    if reason:
        yield "nvml_status_info", (_text(reason),), 1
    if nvml is not None:
        yield "nvml_collection_duration_seconds", (), nvml.duration_seconds
    yield "nvml_sample_age_seconds", (), s.nvml_age
    yield "nvml_ticks_dropped_total", (), float(s.nvml_ticks_dropped)


def _health(v: ServerView) -> Iterator[Sample]:
    name, scrape = (v.name,), v.scrape
    yield "server_up", name, float(scrape.up)
    yield "server_healthy", name, _flag(scrape.healthy)
    for state in SERVER_STATES:
        yield "server_state", (v.name, state), float(state == v.state)
    yield "server_info", (v.name, v.model_name or "", v.version or "", v.url), 1
    for setting, value in v.settings.items():
        yield "server_setting_info", (v.name, setting, _text(value), v.settings_source.get(setting, "")), 1
        yield "server_setting_value", (v.name, setting), v.setting_values.get(setting)
    yield "server_restarts_total", name, float(v.restarts)
    yield "server_config_changes_total", name, float(v.config_changes)
    yield "server_start_timestamp_seconds", name, v.start_timestamp
    yield "server_last_restart_timestamp_seconds", name, v.last_restart
    yield "server_last_config_change_timestamp_seconds", name, v.last_config_change
    yield "last_preemption_timestamp_seconds", name, v.last_preemption
    yield "scrape_duration_seconds", name, scrape.duration
    yield "scrape_in_flight_seconds", name, scrape.in_flight or 0.0
    yield "scrape_body_bytes", name, scrape.body_bytes
    for reason, count in scrape.failures.items():
        yield "scrape_failures_total", (v.name, reason), float(count)
    yield "sample_age_seconds", name, scrape.sample_age
    yield "sample_interval_seconds", name, scrape.interval
    if v.reading is not None:
        layout = v.reading.layout
        yield "server_engine_metrics", name, float(layout.engine_metrics)
        yield "unmapped_families", name, float(len(layout.unmapped))
        for family, source in layout.sources.items():
            yield "family_source_info", (v.name, family, source), 1
        yield "exposed_series", name, float(v.exposed_series)


_WINDOWED: Sequence[tuple[str, str]] = (
    ("ttft_jitter_lower_seconds", "ttft_jitter_lower"),
    ("ttft_jitter_upper_seconds", "ttft_jitter_upper"),
    ("ttft_jitter_seconds", "ttft_jitter"),
    ("ttft_jitter_error_ratio", "ttft_jitter_error_ratio"),
    ("ttft_jitter_ratio", "ttft_jitter_ratio"),
    ("ttft_window_mean_seconds", "ttft_mean"),
    ("ttft_window_requests", "ttft_requests"),
    ("ttft_window_span_seconds", "ttft_span_seconds"),
    ("inter_token_latency_window_mean_seconds", "itl_mean"),
    ("e2e_latency_window_mean_seconds", "e2e_mean"),
    ("e2e_latency_window_requests", "e2e_requests"),
    ("requests_waiting_peak", "requests_waiting_peak"),
    ("requests_running_peak", "requests_running_peak"),
    ("kv_cache_usage_peak_ratio", "kv_cache_usage_peak"),
    ("preemptions_window", "preemptions"),
    ("preemptions_burst_peak", "preemptions_burst_peak"),
    ("prefix_cache_hit_window_ratio", "prefix_hit_ratio"),
    ("prompt_tokens_computed_window", "prompt_tokens_computed"),
    ("prompt_tokens_cached_window", "prompt_tokens_cached"),
)
"""family, field of Windowed"""


def _windowed(v: ServerView) -> Iterator[Sample]:
    indexes = {row.uuid: row.gpu for row in v.memory}
    for label, w in v.windows.items():
        key = (v.name, label)
        for family, attribute in _WINDOWED:
            yield family, key, getattr(w, attribute)
        for quantile, (lower, upper) in w.ttft_quantiles.items():
            yield "ttft_window_quantile_lower_seconds", (*key, quantile), lower
            yield "ttft_window_quantile_upper_seconds", (*key, quantile), upper
        for le, share in w.ttft_share_over.items():
            yield "ttft_window_share_over_ratio", (*key, bound(float(le))), share
        reason = _ttft_reason(w)
        if reason:
            yield "ttft_window_absent_info", (*key, _text(reason)), 1
        for uuid, peak in w.gpu_memory_peak.items():
            yield "server_gpu_memory_peak_bytes", (v.name, indexes.get(uuid, ""), uuid, label), peak
        for uuid, c in w.contention.items():
            where = (v.name, indexes.get(uuid, ""), uuid, label)
            yield "gpu_contention_ratio", where, c.ratio
            yield "ttft_contended_mean_seconds", where, c.contended_mean
            yield "ttft_contended_requests", where, c.contended_requests
            yield "ttft_clear_mean_seconds", where, c.clear_mean
            yield "ttft_clear_requests", where, c.clear_requests


def _ttft_reason(w: Windowed) -> str:
    return w.absent.get("ttft_jitter_lower") or w.absent.get("ttft_jitter") or ""


def _budgets(v: ServerView) -> Iterator[Sample]:
    a = v.attribution
    yield "attribution_info", (v.name, a.state, a.method, _text(a.reason)), 1
    for row in v.memory:
        where = (v.name, row.gpu, row.uuid)
        yield from _quantity("server_gpu_memory_budget_bytes", where, row.budget)
        yield from _quantity("server_gpu_memory_expected_bytes", where, row.expected)
        yield from _quantity("server_gpu_memory_allowance_bytes", where, row.allowance)
        yield from _quantity("server_gpu_memory_used_bytes", where, row.used)
        yield "server_gpu_memory_high_water_bytes", where, row.high_water.value
        for part, quantity in row.parts.items():
            yield "server_gpu_memory_part_bytes", (*where, part, _source(quantity)), quantity.value
        if row.budget_suspended:
            yield "server_budget_suspended_info", (*where, _text(row.budget_suspended)), 1
        yield "server_gpu_sm_utilization_ratio", where, _sm(row)
    for family, capacity in (
        ("kv_cache_capacity_tokens", v.kv_capacity_tokens),
        ("kv_cache_capacity_bytes", v.kv_capacity_bytes),
    ):
        yield from _quantity(family, (v.name,), capacity)


def _sm(row: GpuMemory) -> float | None:
    return row.sm_utilization_ratio


def _source(q: Quantity) -> str:
    return "estimate" if q.estimate else q.source


def _quantity(family: str, where: tuple[str, ...], q: Quantity) -> Iterator[Sample]:
    yield family, (*where, _source(q)), q.value


def _host(v: ServerView) -> Iterator[Sample]:
    for usage in v.host:
        key = (v.name, usage.role)
        yield "server_cpu_seconds_total", key, usage.cpu_seconds
        yield "server_host_memory_bytes", (*key, "resident"), usage.rss_bytes
        yield "server_host_memory_bytes", (*key, "shared"), usage.shared_bytes
        yield "server_processes", key, float(usage.processes)
        yield "server_threads", key, usage.threads


def _gpu(view: GpuView, s: Snapshot) -> Iterator[Sample]:
    r = view.reading
    where = (view.gpu, r.uuid)
    nvml = s.nvml
    driver = (nvml.driver_version if nvml else None) or ""
    cuda = (nvml.cuda_version if nvml else None) or ""
    yield "gpu_info", (*where, r.name, driver, cuda, r.mig_parent_uuid or ""), 1
    yield "gpu_memory_total_bytes", where, r.memory_total_bytes
    yield "gpu_memory_used_bytes", where, r.memory_used_bytes
    yield "gpu_memory_free_bytes", where, r.memory_free_bytes
    yield "gpu_memory_reserved_bytes", where, r.memory_reserved_bytes
    yield "gpu_utilization_ratio", where, r.utilization_ratio
    yield "gpu_memory_bandwidth_utilization_ratio", where, r.memory_bandwidth_utilization_ratio
    yield "gpu_power_watts", where, r.power_watts
    yield "gpu_power_limit_watts", where, r.power_limit_watts
    yield "gpu_temperature_celsius", where, r.temperature_celsius
    for domain, hertz in r.clock_hertz.items():
        yield "gpu_clock_hertz", (*where, domain), hertz
    for reason, active in r.throttle.items():
        yield "gpu_throttle", (*where, reason), float(active)
    for kind, count in r.ecc_errors.items():
        yield "gpu_ecc_errors_total", (*where, kind), float(count)
    yield "gpu_xid_last", where, r.xid_last
    yield "gpu_last_xid_timestamp_seconds", where, r.xid_last_at
    yield from _quantity("gpu_memory_cuda_total_bytes", where, view.cuda_total)
    yield "gpu_memory_committed_bytes", where, view.committed.value
    yield "gpu_memory_unattributed_bytes", where, view.unattributed_bytes
    for (program, orphan), used in _by_program(view).items():
        yield "gpu_memory_other_bytes", (*where, program, orphan), used
    for label, peak in view.used_peak.items():
        yield "gpu_memory_used_peak_bytes", (*where, label), peak
    for label, peak in view.utilization_peak.items():
        yield "gpu_utilization_peak_ratio", (*where, label), peak


def _by_program(view: GpuView) -> dict[tuple[str, str], float]:
    """Two processes of one program are one series; an unknown size (None) adds nothing."""
    sums: dict[tuple[str, str], float] = {}
    for other in view.other:
        if other.used_bytes is not None:
            key = (_text(other.program), "true" if other.orphan else "false")
            sums[key] = sums.get(key, 0.0) + other.used_bytes
    return sums


def _runs(s: Snapshot) -> Iterator[Sample]:
    for mark in s.runs:
        for name in [mark.server] if mark.server else [v.name for v in s.servers]:
            yield "run_active", (name, mark.scenario, mark.run), 1
            yield "run_start_timestamp_seconds", (name, mark.scenario, mark.run), mark.started
    # A name may be used again: its newest end counts, and none while it is active.
    ends: dict[tuple[str, str, str], float] = {}
    for mark, ended in s.ended_runs:
        for name in [mark.server] if mark.server else [v.name for v in s.servers]:
            ends[(name, mark.scenario, mark.run)] = ended
    active = {(m.server or v.name, m.scenario, m.run) for m in s.runs for v in s.servers}
    for key, ended in ends.items():
        if key not in active:
            yield "run_end_timestamp_seconds", key, ended
    for b in s.baselines:
        for stat, seconds in b.ttft.items():
            yield "baseline_ttft_seconds", (b.server, b.scenario, stat), seconds
        for stat, seconds in b.e2e.items():
            yield "baseline_e2e_seconds", (b.server, b.scenario, stat), seconds
        yield "baseline_throughput_tokens_per_second", (b.server, b.scenario), b.throughput
        yield "baseline_info", (b.server, b.scenario, b.run), 1
