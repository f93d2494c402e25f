"""Bodies of versions that were not captured, **made from the name table, not recorded from a server**.

They hold the names, labels, bucket bounds and habits (``_created``, ``pid``, no samples before the first request) that
each release has by docs/compatibility.md.  Values are made up and distinct, so that a test sees which one it got.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vllmeter.upstream.vllm import ROWS, Row, lived, parse_version

_LAT_OLD = (1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60)
_LAT_MID = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60)
_LAT = (*_LAT_MID, 120, 240, 480, 960, 1920, 7680)
_TTFT_OLD = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TTFT = (*_TTFT_OLD, 20, 40, 80, 160, 640, 2560)
_ITL_OLD = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_ITL = (*_ITL_OLD, 5, 7.5, 10, 20, 40, 80)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FEW = (1, 2, 5, 10, 20)

_CHILDREN: dict[str, tuple[dict[str, str], ...]] = {
    "num_requests_waiting_by_reason": ({"reason": "capacity"}, {"reason": "deferred"}),
    "prompt_tokens_by_source_total": (
        {"source": "local_compute"},
        {"source": "local_cache_hit"},
        {"source": "external_kv_transfer"},
    ),
    "engine_sleep_state": (
        {"sleep_state": "awake"},
        {"sleep_state": "weights_offloaded"},
        {"sleep_state": "discard_all"},
    ),
    "request_success_total": ({"finished_reason": "stop"}, {"finished_reason": "length"}, {"finished_reason": "abort"}),
    "admission_rejections_total": ({"reason": "max_num_queued_reqs"},),
}

# Rows that a plain server of the version does not have: features and connectors that are off.
_OFF = ("spec_decode_", "kv_offload_", "simple_kv_", "nixl_", "mooncake_", "hf3fs_", "hisparse_", "umbp_", "diffusion_")
_OFF_NAMES = {
    "corrupted_requests_total",
    "watermark_requests_total",
    "lora_requests_info",
    "num_requests_kv_fetch_by_stage",
    "model_forward_time_milliseconds",
    "model_execute_time_milliseconds",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
}

# The Rust frontend lacks these (as stored in autumn 2026).
_NOT_IN_RUST = {
    "cache_config_info",
    "engine_sleep_state",
    "mm_cache_queries_total",
    "mm_cache_hits_total",
    "request_num_preemptions",
    "prompt_tokens_cached_by_source_total",
    "corrupted_requests_total",
    "watermark_requests_total",
    "admission_rejections_total",
}


@dataclass
class Made:
    """A made body and the values in it.

    ``scalars`` maps (upstream name, sorted label pairs without model_name) to the value, ``histograms`` an upstream
    name and engine to (bounds, cumulative counts, sum).
    """

    text: str
    content_type: str
    scalars: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)
    histograms: dict[tuple[str, str], tuple[tuple[float, ...], tuple[float, ...], float]] = field(default_factory=dict)


def bounds(name: str, version: tuple[int, int, int]) -> tuple[float, ...]:
    """Bucket bounds of a histogram in a version (vLLM's own tables, rounded to the examined releases)."""
    wide = version >= (0, 8, 5)
    if "time_to_first_token" in name:
        return _TTFT if wide else _TTFT_OLD
    if "per_output_token" in name or "inter_token" in name:
        return _ITL if wide else _ITL_OLD
    if name == "iteration_tokens_total":
        return _ITERATION
    if "tokens" in name:
        return _TOKENS
    if "time_seconds" in name or "latency_seconds" in name or name == "time_in_queue_requests":
        if wide:
            return _LAT
        return _LAT_MID if version >= (0, 6, 4) else _LAT_OLD
    return _FEW


def rows_of(version: str, engine: str) -> list[Row]:
    """Table rows that a plain server of this version and engine ("v0", "v1") has, without frontend and process."""
    number = parse_version(version)
    assert number is not None
    seen: set[str] = set()
    out = []
    for row in ROWS:
        span = row.v0 if engine == "v0" else row.v1
        if row.scope != "engine" or row.name in seen or row.name in _OFF_NAMES or row.name.startswith(_OFF):
            continue
        if lived(span, number):
            seen.add(row.name)
            out.append(row)
    return out


def make(
    version: str,
    engine: str,
    *,
    engines: tuple[str, ...] = ("0",),
    prefix: str = "vllm:",
    rust: bool = False,
    multiprocess: bool = False,
    idle: bool = False,
    extra: dict[str, str] | None = None,
    without: tuple[str, ...] = (),
) -> Made:
    """Make a body.

    Args:
        version: release, "0.6.4".
        engine: "v0" or "v1".
        engines: data-parallel ranks (V1 from 0.8.3, which brought the label).
        prefix: spelling of the names.
        rust: OpenMetrics as the Rust frontend writes it.
        multiprocess: no process_* and no _created.
        idle: V0 before its first request: declarations without samples.
        extra: labels on every engine series (Ray's ReplicaId).
        without: upstream names to leave out.
    """
    number = parse_version(version)
    assert number is not None
    made = Made("", "application/openmetrics-text; version=1.0.0" if rust else "text/plain; version=0.0.4")
    lines = [f"# HELP python_info made from the name table for vLLM {version} {engine}, not captured"]
    if not multiprocess and not rust:
        lines += [
            "# TYPE python_info gauge",
            'python_info{version="3.12.3"} 1.0',
            "# TYPE process_start_time_seconds gauge",
            "process_start_time_seconds 1.7e+09",
        ]
    has_engine = engine == "v1" and number >= (0, 8, 3)
    value = 0.0
    for row in rows_of(version, engine):
        if row.name in without or (rust and row.name in _NOT_IN_RUST):
            continue
        family = row.name.removesuffix("_total") if rust and row.kind == "counter" else row.name
        lines.append(f"# HELP {prefix}{family} Text of {row.name}.")
        lines.append(f"# TYPE {prefix}{family} {'gauge' if row.kind == 'info' else row.kind}")
        created: list[str] = []
        for rank in () if idle else engines if has_engine else ("",):
            for child in _CHILDREN.get(row.name, ({},)):
                value += 1
                labels = dict(child)
                if has_engine and row.name != "admission_rejections_total":
                    labels["engine"] = rank
                if row.name == "cache_config_info":
                    labels = {"block_size": "16", "num_gpu_blocks": "700", "enable_prefix_caching": "True"}
                    if number >= (0, 9, 0):
                        labels["engine"] = rank
                    lines.append(f"{prefix}{row.name}{_text(labels)} 1.0")
                    continue
                full = {"model_name": "a-model", **labels, **(extra or {})}
                if row.kind == "histogram":
                    _histogram(made, lines, prefix, row.name, labels, full, bounds(row.name, number), value)
                else:
                    number_text = value / 1000 if row.name.endswith("_perc") else value
                    lines.append(f"{prefix}{row.name}{_text(full)} {number_text}")
                    made.scalars[row.name, tuple(sorted(labels.items()))] = number_text
                if engine == "v1" and not multiprocess and not rust and row.kind in ("counter", "histogram"):
                    # prometheus_client keeps a histogram's name as it is, "_total" included.
                    stem = row.name.removesuffix("_total") if row.kind == "counter" else row.name
                    created.append(f"{prefix}{stem}_created{_text(full)} 1.70000001e+09")
        if created and row.kind == "counter":
            lines.append(f"# TYPE {prefix}{row.name.removesuffix('_total')}_created gauge")
        elif created:
            lines.append(f"# TYPE {prefix}{row.name}_created gauge")
        lines += created
    if rust:
        lines.append("# EOF")
    made.text = "\n".join(lines) + "\n"
    return made


def _histogram(
    made: Made,
    lines: list[str],
    prefix: str,
    name: str,
    labels: dict[str, str],
    full: dict[str, str],
    limits: tuple[float, ...],
    value: float,
) -> None:
    counts = tuple(value + min(i, 5) for i in range(len(limits) + 1))
    texts = [*(str(float(limit)) for limit in limits), "+Inf"]
    for text, count in zip(texts, counts, strict=True):
        lines.append(f"{prefix}{name}_bucket{_text({**full, 'le': text})} {count}")
    lines.append(f"{prefix}{name}_count{_text(full)} {counts[-1]}")
    lines.append(f"{prefix}{name}_sum{_text(full)} {value * 2}")
    made.histograms[name, labels.get("engine", "0")] = (tuple(map(float, limits)), counts, value * 2)


def _text(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"
