"""Snapshot -> what the live page and ``vllmeter top`` get.  Pure.

A server is split in two: what moves every second (:func:`server_now`) and what hardly ever changes
(:func:`server_facts`: models, budgets, settings, findings), so that a push holds only what is new.  All numbers are
those of the snapshot, unrounded, in base units; ``null`` stands with a reason.  Only the rows of charts are rounded, to
six digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final

from vllmeter.snapshot import GpuMemory, GpuView, Quantity, ServerReading, ServerView, Snapshot, Windowed

SCHEMA: Final = 1

WINDOW: Final = "60s"
"""Window of the figures beside the charts."""

_FROM_WINDOW: Final = (
    "ttft_requests",
    "ttft_mean",
    "ttft_jitter_lower",
    "ttft_jitter_upper",
    "ttft_jitter",
    "ttft_jitter_error_ratio",
    "itl_mean",
    "itl_count",
    "e2e_mean",
    "e2e_requests",
    "requests_waiting_peak",
    "requests_running_peak",
    "kv_cache_usage_peak",
    "preemptions",
    "preemptions_burst_peak",
    "prefix_hit_ratio",
    "prompt_tokens",
    "prompt_tokens_computed",
    "prompt_tokens_cached",
    "generation_tokens",
    "requests_finished",
)

ALARMING: Final = frozenset({"stuck", "engine_dead", "gone", "failing"})
"""States in which a server does not serve."""


def live_document(snapshot: Snapshot, *, zero: float | None = None) -> dict[str, Any]:
    """Everything of one moment but the rows of charts.

    ``zero``: Unix time of monotonic 0; rows carry monotonic times.
    """
    return {
        "schema": SCHEMA,
        "version": snapshot.version,
        "wall": snapshot.wall,
        "at": snapshot.at,
        "zero": snapshot.wall - snapshot.at if zero is None else zero,
        "window": WINDOW,
        "host": host_document(snapshot),
        "servers": [
            {"name": view.name, "now": server_now(view), "facts": server_facts(view)} for view in snapshot.servers
        ],
        "gpus": [gpu_document(card, snapshot.servers) for card in snapshot.gpus],
        "runs": runs_document(snapshot),
    }


def host_document(snapshot: Snapshot) -> dict[str, Any]:
    """What is known about the sampling of the host itself."""
    return {
        "nvml_up": snapshot.nvml is not None and snapshot.nvml.up,
        "nvml_reason": snapshot.nvml_reason,
        "nvml_wall": None if snapshot.nvml is None else snapshot.nvml.wall,
        "host_pid_namespace": snapshot.host_pid_namespace,
        "config_ok": snapshot.config.last_reload_ok,
        "config_error": snapshot.config.error,
    }


def runs_document(snapshot: Snapshot, past: Iterable[tuple[Any, float]] = ()) -> list[dict[str, Any]]:
    """Runs that are active and, with ``past``, that ended: ``ended`` null = active."""
    marks = [(mark, None) for mark in snapshot.runs] + [(mark, ended) for mark, ended in past]
    return [
        {"run": mark.run, "scenario": mark.scenario, "server": mark.server, "started": mark.started, "ended": ended}
        for mark, ended in marks
    ]


# --------------------------------------------------------------------------- servers


def server_now(view: ServerView) -> dict[str, Any]:
    """What moves every second."""
    running, waiting, usage = _gauges(view.reading)
    window = view.windows.get(WINDOW)
    return {
        "state": view.state,
        "reason": view.state_reason,
        "since": view.state_since,
        "up": view.scrape.up,
        "scrape_reason": view.scrape.reason,
        "healthy": view.scrape.healthy,
        "sample_age": view.scrape.sample_age,
        "in_flight": view.scrape.in_flight,
        "interval": view.scrape.interval,
        "reading_wall": view.reading_wall,
        "last_preemption": view.last_preemption,
        "running": running,
        "waiting": waiting,
        "kv_cache_usage": usage,
        "gauges_withheld": view.gauges_withheld,
        "window": None if window is None else window_document(window),
        "used": {row.uuid: _quantity(row.used) for row in view.memory},
        "contention": {} if window is None else {uuid: c.ratio for uuid, c in window.contention.items()},
    }


def _gauges(reading: ServerReading | None) -> tuple[float | None, float | None, float | None]:
    """(running, waiting, KV usage) over all engines: sums, and the fullest cache."""
    if reading is None:
        return None, None, None
    found: dict[str, float] = {}
    for ref, value in zip(reading.layout.scalars, reading.values, strict=True):
        family = ref.family
        if family in ("requests_running", "requests_waiting"):
            found[family] = found.get(family, 0.0) + value
        elif family == "kv_cache_usage_ratio":
            found[family] = max(found.get(family, value), value)
    names = ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
    running, waiting, usage = (
        value if value is not None and isfinite(value) else None for value in map(found.get, names)
    )
    return running, waiting, usage


def window_document(window: Windowed) -> dict[str, Any]:
    """One window of one server: its figures, interval bounds as [lower, upper], rates, and why others are absent."""
    data: dict[str, Any] = {name: getattr(window, name) for name in _FROM_WINDOW}
    data["seconds"] = window.seconds
    data["span"] = window.ttft_span_seconds
    data["ttft_quantiles"] = {label: list(bounds) for label, bounds in window.ttft_quantiles.items()}
    data["absent"] = dict(window.absent)
    span = window.ttft_span_seconds or window.seconds
    for name in ("generation_tokens", "prompt_tokens"):
        value = data[name]
        data[f"{name}_per_second"] = None if value is None or span <= 0.0 else value / span
    data["gpu_memory_peak"] = dict(window.gpu_memory_peak)
    return data


def server_facts(view: ServerView) -> dict[str, Any]:
    """What hardly ever changes: identity, budgets (the numbers of ``vllmeter check``), settings, findings."""
    return {
        "url": view.url,
        "model": view.model_name,
        "version": view.version,
        "started": view.start_timestamp,
        "restarts": view.restarts,
        "last_restart": view.last_restart,
        "config_changes": view.config_changes,
        "last_config_change": view.last_config_change,
        "last_change": view.last_change,
        "sleep_state": view.sleep_state,
        "attribution": {
            "state": view.attribution.state,
            "method": view.attribution.method,
            "reason": view.attribution.reason,
        },
        "kv_tokens": _quantity(view.kv_capacity_tokens),
        "max_concurrency": max_concurrency(view),
        "memory": [_memory(row) for row in view.memory],
        "settings": dict(view.settings),
        "startup": dict(view.startup),
        "findings": list(view.findings),
        "notes": [] if view.reading is None else list(view.reading.layout.notes),
        "unmapped": 0 if view.reading is None else len(view.reading.layout.unmapped),
    }


def max_concurrency(view: ServerView) -> float | None:
    """Requests of full length that the KV cache holds at once: vLLM's own figure (label, else start-up log)."""
    if view.reading is not None:
        said = view.reading.layout.max_concurrency
        if said is not None:
            return said
    words = view.startup.get("max concurrency", "").split(" ")[0]
    try:
        return float(words)
    except ValueError:
        return None


def _memory(row: GpuMemory) -> dict[str, Any]:
    return {
        "gpu": row.gpu,
        "uuid": row.uuid,
        "budget": _quantity(row.budget),
        "allowance": _quantity(row.allowance),
        "expected": _quantity(row.expected),
        "high_water": _quantity(row.high_water),
        "suspended": row.budget_suspended,
        "parts": {name: _quantity(quantity) for name, quantity in row.parts.items()},
        "over": _over(row),
    }


def _over(row: GpuMemory) -> bool | None:
    """Whether the high water is above budget and allowance; None when that cannot or must not be compared now."""
    high, budget, allowance = row.high_water, row.budget, row.allowance
    if row.budget_suspended is not None or high.value is None or high.estimate:
        return None
    if budget.value is None or allowance.value is None:
        return None
    return high.value > budget.value + allowance.value


def _quantity(quantity: Quantity) -> dict[str, Any]:
    return {
        "value": quantity.value,
        "source": quantity.source,
        "estimate": quantity.estimate,
        "reason": quantity.reason,
    }


# --------------------------------------------------------------------------- GPUs


def gpu_document(card: GpuView, servers: Sequence[ServerView]) -> dict[str, Any]:
    """One GPU: the memory bar (servers, other programs, unattributed, reserved, free) and the sum against the card."""
    reading = card.reading
    rows = [(view.name, row) for view in servers for row in view.memory if row.uuid == reading.uuid]
    return {
        "gpu": card.gpu,
        "uuid": reading.uuid,
        "name": reading.name,
        "total": reading.memory_total_bytes,
        "used": reading.memory_used_bytes,
        "free": reading.memory_free_bytes,
        "reserved": reading.memory_reserved_bytes,
        "utilization": reading.utilization_ratio,
        "power": reading.power_watts,
        "temperature": reading.temperature_celsius,
        "unified": reading.unified_memory,
        "cuda_total": _quantity(card.cuda_total),
        "unattributed": card.unattributed_bytes,
        "servers": [
            {
                "name": name,
                "used": _quantity(row.used),
                "budget": _quantity(row.budget),
                "allowance": _quantity(row.allowance),
                "sm": row.sm_utilization_ratio,
            }
            for name, row in rows
        ],
        "other": [
            {"program": o.program, "used": o.used_bytes, "orphan": o.orphan, "detail": o.detail} for o in card.other
        ],
        "sum": _sum(card, [row for _, row in rows]),
        "absent": dict(reading.absent),
    }


def _sum(card: GpuView, rows: Sequence[GpuMemory]) -> dict[str, Any] | None:
    """Σ budgets and what comes on top of them against CUDA total; None when no budget or no total is known."""
    budgets = [row.budget for row in rows if row.budget.value is not None]
    if not budgets or card.cuda_total.value is None:
        return None
    on_top = [row.allowance for row in rows if row.budget.value is not None]
    foreign = sum(other.used_bytes or 0 for other in card.other)
    committed = sum(budget.value or 0.0 for budget in budgets)
    above = sum(allowance.value or 0.0 for allowance in on_top)
    return {
        "budgets": committed,
        "on_top": above,
        "other": foreign,
        "total": card.cuda_total.value,
        "head_room": card.cuda_total.value - committed - above - foreign,
        "estimate": any(q.estimate for q in (*budgets, *on_top)),
        "without": len(rows) - len(budgets),
    }


# --------------------------------------------------------------------------- rows of charts


def compact(value: float | None) -> float | int | None:
    """Six digits for a chart; whole numbers without a point."""
    if value is None:
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.6g}")


def rows_document(rows: Iterable[tuple[float, Sequence[float | None]]]) -> list[list[float | int | None]]:
    """Rows as [monotonic time, values …]."""
    return [[round(at, 3), *map(compact, values)] for at, values in rows]


def history_csv(
    fields: Sequence[str], servers: Mapping[str, Sequence[tuple[float, Sequence[float | None]]]], zero: float
) -> str:
    """Rows of servers as CSV with Unix times; what is not known is empty, not 0."""
    lines = [",".join(("time", "server", *fields))]
    for name, rows in servers.items():
        for at, values in rows:
            cells = ["" if value is None else repr(compact(value)) for value in values]
            lines.append(",".join((f"{at + zero:.3f}", name, *cells)))
    return "\n".join(lines) + "\n"
