"""Which series of a server the ring keeps, and where they lie in the values of a reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from vllmeter.snapshot import Layout

Key = tuple[str, tuple[tuple[str, str], ...]]
"""Identity of a series: family and labels."""

GAUGES: Final[Mapping[str, tuple[str, tuple[tuple[str, str], ...], bool]]] = MappingProxyType(
    {
        # column: family, labels, whether engines are combined by the largest (else by the sum)
        "requests_running": ("requests_running", (), False),
        "requests_waiting": ("requests_waiting", (), False),
        "requests_waiting_capacity": ("requests_waiting_by_reason", (("reason", "capacity"),), False),
        "requests_waiting_deferred": ("requests_waiting_by_reason", (("reason", "deferred"),), False),
        "kv_cache_usage": ("kv_cache_usage_ratio", (), True),
    }
)

COUNTERS: Final[Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]] = MappingProxyType(
    {
        # column: family, labels.  Columns of the same family may overlap ("all" and one reason).
        "preemptions": ("preemptions_total", ()),
        "prompt_tokens": ("prompt_tokens_total", ()),
        "prompt_tokens_computed": ("prompt_tokens_by_source_total", (("source", "local_compute"),)),
        "prompt_tokens_cached": ("prompt_tokens_by_source_total", (("source", "local_cache_hit"),)),
        "prompt_tokens_external": ("prompt_tokens_by_source_total", (("source", "external_kv_transfer"),)),
        "generation_tokens": ("generation_tokens_total", ()),
        "prefix_queries": ("prefix_cache_queries_tokens_total", ()),
        "prefix_hits": ("prefix_cache_hits_tokens_total", ()),
        "external_prefix_queries": ("external_prefix_cache_queries_tokens_total", ()),
        "external_prefix_hits": ("external_prefix_cache_hits_tokens_total", ()),
        "finished": ("requests_finished_total", ()),
        "finished_stop": ("requests_finished_total", (("reason", "stop"),)),
        "finished_length": ("requests_finished_total", (("reason", "length"),)),
        "finished_abort": ("requests_finished_total", (("reason", "abort"),)),
        "finished_error": ("requests_finished_total", (("reason", "error"),)),
        "rejected": ("requests_rejected_total", ()),
        "corrupted": ("requests_corrupted_total", ()),
        "http_2xx": ("http_requests_total", (("status", "2xx"),)),
        "http_4xx": ("http_requests_total", (("status", "4xx"),)),
        "http_5xx": ("http_requests_total", (("status", "5xx"),)),
        "kv_offload_load_bytes": ("kv_offload_load_bytes_total", ()),
        "kv_offload_store_bytes": ("kv_offload_store_bytes_total", ()),
        "kv_offload_failures": ("kv_offload_allocation_failures_total", ()),
        "spec_decode_drafts": ("spec_decode_drafts_total", ()),
        "spec_decode_draft_tokens": ("spec_decode_draft_tokens_total", ()),
        "spec_decode_accepted_tokens": ("spec_decode_accepted_tokens_total", ()),
    }
)

STEPS: Final = "engine_steps"
"""Column: engine steps with outputs (count of the iteration_tokens histogram)."""

LATENCIES: Final = (
    "ttft_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "e2e_latency_seconds",
    "queue_time_seconds",
    "prefill_time_seconds",
    "decode_time_seconds",
    "inference_time_seconds",
)
"""Histograms kept as cells."""

COLUMNS: Final = (*GAUGES, *COUNTERS, STEPS)

FIRST_COUNTER: Final = len(GAUGES)
STEPS_COLUMN: Final = len(COLUMNS) - 1

_PROGRESS: Final = ("prompt_tokens", "generation_tokens", "finished")
_EVENTS: Final = {
    "preemptions": "preemption",
    "finished_error": "error",
    "rejected": "rejection",
    "http_5xx": "http_5xx",
    "kv_offload_failures": "kv_offload_failure",
}
"""Counter column -> kind of event whose last sighting is kept."""

PROGRESS_COLUMNS: Final = tuple(COLUMNS.index(name) for name in _PROGRESS)
EVENT_COLUMNS: Final = tuple((COLUMNS.index(name), event) for name, event in _EVENTS.items())
ENGINE_COLUMNS: Final = tuple(
    index for index, name in enumerate(COLUMNS) if index >= FIRST_COUNTER and not name.startswith("http_")
)
"""Counters that only the engine moves (HTTP counters move without it)."""

_SLEEP: Final = "server_sleep_state"

_DERIVED: Final = frozenset(
    {
        "num_gpu_blocks",
        "num_cpu_blocks",
        "kv_cache_size_tokens",
        "kv_cache_max_concurrency",
        "engine",
    }
)
"""Labels of cache_config_info that vLLM measures at start: they vary without any setting having changed."""


@dataclass(slots=True)
class Plan:
    """Where the columns lie in the values of one layout."""

    layout: Layout
    gauges: list[tuple[int, tuple[int, ...], bool]]
    """(column, value indices, largest instead of sum)"""
    counters: list[tuple[int, tuple[int, ...]]]
    """(value index, columns)"""
    keys: list[Key]
    """series identity of ``counters``"""
    offered: frozenset[int]
    """counter columns that have a series"""
    histograms: list[tuple[int, str, str]]
    """(histogram index, family, engine)"""
    steps: list[int]
    awake: list[int]
    sleep: list[tuple[int, str]]
    """(value index, sleep state)"""


def plan_of(layout: Layout) -> Plan:
    """Find the columns in a layout (once per body shape)."""
    gauges: dict[int, list[int]] = {}
    counters: list[tuple[int, tuple[int, ...]]] = []
    keys = []
    awake = []
    sleep = []
    wanted: dict[str, list[tuple[int, tuple[tuple[str, str], ...]]]] = {}
    for column, (family, labels, _) in enumerate(GAUGES.values()):
        wanted.setdefault(family, []).append((column, labels))
    for column, (family, labels) in enumerate(COUNTERS.values(), FIRST_COUNTER):
        wanted.setdefault(family, []).append((column, labels))
    offered = set()
    for index, ref in enumerate(layout.scalars):
        if ref.family == _SLEEP:
            state = dict(ref.labels).get("state", "")
            sleep.append((index, state))
            if state == "awake":
                awake.append(index)
            continue
        columns = [
            column for column, labels in wanted.get(ref.family, ()) if all(label in ref.labels for label in labels)
        ]
        if not columns:
            continue
        if columns[0] < FIRST_COUNTER:
            gauges.setdefault(columns[0], []).append(index)
        else:
            counters.append((index, tuple(columns)))
            keys.append((ref.family, ref.labels))
            offered.update(columns)
    largest = [spec[2] for spec in GAUGES.values()]
    histograms = []
    steps = []
    for index, histogram in enumerate(layout.histograms):
        if histogram.family in LATENCIES:
            histograms.append((index, histogram.family, dict(histogram.labels).get("engine", "")))
        elif histogram.family == "iteration_tokens":
            steps.append(index)
    return Plan(
        layout,
        [(column, tuple(indices), largest[column]) for column, indices in gauges.items()],
        counters,
        keys,
        frozenset(offered),
        histograms,
        steps,
        awake,
        sleep,
    )


def settings_of(layout: Layout) -> dict[str, str]:
    """Settings that the server's own body tells: labels of cache_config_info that are settings, and its models."""
    labels = next(iter(layout.cache_config.values()), {})
    found = {key: value for key, value in labels.items() if key not in _DERIVED and not key.startswith("_")}
    if layout.model_names:
        found["model"] = ", ".join(layout.model_names)
    return found


def same_setting(old: str, new: str) -> bool:
    """Whether two spellings of a setting mean the same ("0.90" and "0.9", "True" and "true")."""
    if old == new or old.lower() == new.lower():
        return True
    try:
        return float(old) == float(new)
    except ValueError:
        return False
