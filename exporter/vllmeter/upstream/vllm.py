"""Every metric name that vLLM 0.4 to 0.33 can send, once: what it is, when it lived, what becomes of it here.

This is the only place that knows vLLM's names.  A row either names the family of :mod:`vllmeter.catalogue` that it
feeds, or says why the name is not exposed.  A name that no row knows counts as unmapped.  How to add a version:
docs/adding-a-vllm-version.md.

Names are written without their prefix, as samples on the wire have them: counters with ``_total``, histograms
without ``_bucket``/``_sum``/``_count`` (``iteration_tokens_total`` is a histogram whatever its name says).
Spans are the first and last release in which the name was found; ``0.4.1`` means "0.4.1 or earlier" (the oldest
release read), an open end means "still there in 0.33.0".  0.15.0 was not published as source, so 0.16.0 as a first
release may be 0.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

PREFIXES: Final = ("vllm:", "vllm_", "ray_vllm_")
"""Spellings of one and the same name, the preferred one first.

``vllm_`` comes from a new prometheus_client that escapes for clients without UTF-8 names (then HELP and TYPE still
have the colon), ``ray_vllm_`` from vLLM's Ray Serve logger.
"""

Kind = Literal["gauge", "counter", "histogram", "info"]
Needs = Literal["kv_cache", "prefix_caching", "token_units", "one_api_server", "generates", "estimates"]
"""What must hold for a row's values to mean what its family says; else the family is absent and a note says why.

========================  ==========================================================================================
``kv_cache``              the engine has a KV cache: ``num_gpu_blocks`` above 1 (encoder-only models have 1, a dummy)
``prefix_caching``        ``enable_prefix_caching`` is not ``False``
``token_units``           the counter counts tokens, not blocks (from 0.9.0)
``one_api_server``        not several API servers: each counts its own share of a step as a whole one
``generates``             the server generates tokens: pooling servers record zeros or nothing here
``estimates``             ``--enable-mfu-metrics``: without it the counters exist and stay 0
========================  ==========================================================================================
"""

Scope = Literal["engine", "frontend", "process"]
"""``engine`` rows vanish with ``--disable-log-stats``; the others are made by the API server or its libraries."""


@dataclass(frozen=True, slots=True)
class Row:
    """One upstream name (or one part of it, see ``where``)."""

    name: str
    kind: Kind
    family: str | None
    """catalogue name that it feeds; None = known and not exposed, ``note`` says why"""
    v0: str
    """"first-last" on the V0 engine; "" = never there"""
    v1: str
    note: str
    labels: tuple[str, ...] = ()
    """upstream labels beside model_name and engine"""
    rename: Mapping[str, str] = field(default_factory=dict)
    """our label -> upstream label, where they differ"""
    where: Mapping[str, str] = field(default_factory=dict)
    """only series with these label values"""
    rank: int = 0
    """place in the chain of names with the same meaning; the lowest that has samples is used, never two"""
    merge: Literal["sum", "max"] = "sum"
    """how gauges of several replicas behind one endpoint become one; ``pid`` twins always take the largest"""
    needs: tuple[Needs, ...] = ()
    scope: Scope = "engine"
    prefixed: bool = True
    """False: the name stands without any prefix of PREFIXES"""


_rows: list[Row] = []

_ALIVE0: Final = "-0.11.0"
"""The last V0 metrics module ships in 0.11.0."""


def _feed(
    family: str,
    kind: Kind,
    name: str,
    v0: str,
    v1: str,
    note: str = "",
    *,
    labels: tuple[str, ...] = (),
    rename: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    rank: int = 0,
    merge: Literal["sum", "max"] = "sum",
    needs: tuple[Needs, ...] = (),
    scope: Scope = "engine",
    prefixed: bool = True,
) -> None:
    _rows.append(
        Row(name, kind, family, v0, v1, note, labels, rename or {}, where or {}, rank, merge, needs, scope, prefixed)
    )


def _hide(
    reason: str,
    *names: tuple[Kind, str, str, str] | tuple[Kind, str, str, str, tuple[str, ...]],
    scope: Scope = "engine",
    prefixed: bool = True,
) -> None:
    """Names that are known and not exposed, all for one reason: (kind, name, V0 span, V1 span[, labels])."""
    for item in names:
        kind, name, v0, v1 = item[:4]
        labels = item[4] if len(item) == 5 else ()
        _rows.append(Row(name, kind, None, v0, v1, reason, labels, scope=scope, prefixed=prefixed))


# fmt: off
# --------------------------------------------------------------------------- load
_feed("requests_running", "gauge", "num_requests_running", "0.4.1" + _ALIVE0, "0.7.2-")
_feed("requests_waiting", "gauge", "num_requests_waiting", "0.4.1" + _ALIVE0, "0.7.2-")
_feed(
    "requests_waiting_by_reason", "gauge", "num_requests_waiting_by_reason", "", "0.20.0-", "capacity, deferred",
    labels=("reason",),
)
_feed("requests_swapped", "gauge", "num_requests_swapped", "0.4.1-0.9.0", "", "V1 has no swapping: absent, not 0")
_feed(
    "requests_finished_total", "counter", "request_success_total", "0.4.3" + _ALIVE0, "0.7.2-",
    "includes errors; V1 never counts client aborts", labels=("finished_reason",), rename={"reason": "finished_reason"},
)
_feed(
    "requests_rejected_total", "counter", "admission_rejections_total", "", "0.32.0-", "no engine label",
    labels=("reason",),
)
_feed(
    "requests_corrupted_total", "counter", "corrupted_requests_total", "", "0.11.1-",
    "only with VLLM_COMPUTE_NANS_IN_LOGITS",
)
_feed("prompt_tokens_total", "counter", "prompt_tokens_total", "0.4.1" + _ALIVE0, "0.7.2-", "includes cached tokens")
_feed(
    "prompt_tokens_by_source_total", "counter", "prompt_tokens_by_source_total", "", "0.16.0-",
    "parts of prompt_tokens_total; exact from 0.20, before that prompt_tokens_recomputed_total is missing from the sum",
    labels=("source",),
)
_feed(
    "generation_tokens_total", "counter", "generation_tokens_total", "0.4.1" + _ALIVE0, "0.7.2-",
    "counted live", needs=("generates",),
)
_feed(
    "iteration_tokens", "histogram", "iteration_tokens_total", "0.6.4" + _ALIVE0, "0.7.3-",
    "a histogram; before 0.23 cached prompt tokens are included", needs=("one_api_server",),
)
_feed("request_prompt_tokens", "histogram", "request_prompt_tokens", "0.4.3" + _ALIVE0, "0.7.2-")
_feed(
    "request_generation_tokens", "histogram", "request_generation_tokens", "0.4.3" + _ALIVE0, "0.7.2-",
    needs=("generates",),
)
_feed("request_prefill_computed_tokens", "histogram", "request_prefill_kv_computed_tokens", "", "0.13.0-")
_feed(
    "http_requests_total", "counter", "http_requests_total", "", "0.8.3-", "counts no /metrics and no /health",
    labels=("handler", "method", "status"), scope="process", prefixed=False,
)

# --------------------------------------------------------------------------- latency
_feed(
    "ttft_seconds", "histogram", "time_to_first_token_seconds", "0.4.1" + _ALIVE0, "0.7.2-",
    "queue included; on pooling servers the time to the pooled result",
)
_feed(
    "inter_token_latency_seconds", "histogram", "inter_token_latency_seconds", "0.10.2" + _ALIVE0, "0.10.2-",
    "one observation per output", needs=("generates",),
)
_feed(
    "inter_token_latency_seconds", "histogram", "time_per_output_token_seconds", "0.4.1" + _ALIVE0, "0.7.2-0.14.0",
    "the old name of inter_token_latency_seconds, same content", rank=1, needs=("generates",),
)
_feed(
    "time_per_output_token_seconds", "histogram", "request_time_per_output_token_seconds", "", "0.11.0-",
    "one observation per finished request; one-token requests count as 0", needs=("generates",),
)
_feed("e2e_latency_seconds", "histogram", "e2e_request_latency_seconds", "0.4.1" + _ALIVE0, "0.7.3-")
_feed("queue_time_seconds", "histogram", "request_queue_time_seconds", "0.6.4" + _ALIVE0, "0.7.3-")
_feed(
    "queue_time_seconds", "histogram", "time_in_queue_requests", "0.6.4-0.9.0", "",
    "exact duplicate of request_queue_time_seconds, in seconds despite its name", rank=1,
)
_feed(
    "prefill_time_seconds", "histogram", "request_prefill_time_seconds", "0.6.4" + _ALIVE0, "0.7.3-",
    "0.6.4 swaps it with request_decode_time_seconds",
)
_feed(
    "decode_time_seconds", "histogram", "request_decode_time_seconds", "0.6.4" + _ALIVE0, "0.7.3-",
    "0.6.4 swaps it with request_prefill_time_seconds", needs=("generates",),
)
_feed("inference_time_seconds", "histogram", "request_inference_time_seconds", "0.6.4" + _ALIVE0, "0.7.3-")

# --------------------------------------------------------------------------- cache and evictions
_feed(
    "kv_cache_usage_ratio", "gauge", "kv_cache_usage_perc", "", "0.9.2-",
    "0-1; one series per pid in 0.9.2-0.11.0 with several API servers: the largest", merge="max", needs=("kv_cache",),
)
_feed(
    "kv_cache_usage_ratio", "gauge", "gpu_cache_usage_perc", "0.4.1-0.10.2", "0.7.2-0.11.1",
    "the old name of kv_cache_usage_perc", rank=1, merge="max", needs=("kv_cache",),
)
_feed(
    "prefix_cache_queries_tokens_total", "counter", "prefix_cache_queries_total", "", "0.9.2-",
    needs=("prefix_caching",),
)
_feed(
    "prefix_cache_queries_tokens_total", "counter", "gpu_prefix_cache_queries_total", "", "0.7.3-0.11.1",
    "blocks to 0.8.5 (then absent), tokens from 0.9.0", rank=1, needs=("prefix_caching", "token_units"),
)
_feed(
    "prefix_cache_hits_tokens_total", "counter", "prefix_cache_hits_total", "", "0.9.2-",
    "to 0.11.0 lookups repeated after a preemption count as hits", needs=("prefix_caching",),
)
_feed(
    "prefix_cache_hits_tokens_total", "counter", "gpu_prefix_cache_hits_total", "", "0.7.3-0.11.1",
    "blocks to 0.8.5 (then absent), tokens from 0.9.0", rank=1, needs=("prefix_caching", "token_units"),
)
_feed(
    "external_prefix_cache_queries_tokens_total", "counter", "external_prefix_cache_queries_total", "", "0.11.1-",
    "moves only with a KV connector",
)
_feed(
    "external_prefix_cache_hits_tokens_total", "counter", "external_prefix_cache_hits_total", "", "0.11.1-",
    "moves only with a KV connector",
)
_feed("multimodal_cache_queries_total", "counter", "mm_cache_queries_total", "", "0.11.1-", "items")
_feed("multimodal_cache_hits_total", "counter", "mm_cache_hits_total", "", "0.11.1-", "items")
_feed("preemptions_total", "counter", "num_preemptions_total", "0.4.3" + _ALIVE0, "0.8.0-")
_feed(
    "request_preemptions", "histogram", "request_num_preemptions", "", "0.30.0-",
    "no bucket for 0: never and once preempted share le=1",
)
_feed("kv_block_lifetime_seconds", "histogram", "kv_block_lifetime_seconds", "", "0.12.0-", "sampled, at eviction")
_feed(
    "kv_block_idle_before_evict_seconds", "histogram", "kv_block_idle_before_evict_seconds", "", "0.12.0-",
    "sampled, at eviction",
)
_feed("kv_block_reuse_gap_seconds", "histogram", "kv_block_reuse_gap_seconds", "", "0.12.0-", "sampled, at eviction")
_feed(
    "server_sleep_state", "gauge", "engine_sleep_state", "", "0.11.1-", "awake, weights_offloaded, discard_all",
    labels=("sleep_state",), rename={"state": "sleep_state"}, merge="max",
)

# --------------------------------------------------------------------------- KV offload
_feed("kv_offload_load_bytes_total", "counter", "kv_offload_load_bytes_total", "", "0.24.0-")
_feed(
    "kv_offload_load_bytes_total", "counter", "kv_offload_total_bytes_total", "", "0.16.0-", "the older name",
    labels=("transfer_type",), where={"transfer_type": "CPU_to_GPU"}, rank=1,
)
_feed("kv_offload_store_bytes_total", "counter", "kv_offload_store_bytes_total", "", "0.24.0-")
_feed(
    "kv_offload_store_bytes_total", "counter", "kv_offload_total_bytes_total", "", "0.16.0-", "the older name",
    labels=("transfer_type",), where={"transfer_type": "GPU_to_CPU"}, rank=1,
)
_feed("kv_offload_load_time_seconds_total", "counter", "kv_offload_load_time_total", "", "0.24.0-", "seconds")
_feed(
    "kv_offload_load_time_seconds_total", "counter", "kv_offload_total_time_total", "", "0.16.0-", "the older name",
    labels=("transfer_type",), where={"transfer_type": "CPU_to_GPU"}, rank=1,
)
_feed("kv_offload_store_time_seconds_total", "counter", "kv_offload_store_time_total", "", "0.24.0-", "seconds")
_feed(
    "kv_offload_store_time_seconds_total", "counter", "kv_offload_total_time_total", "", "0.16.0-", "the older name",
    labels=("transfer_type",), where={"transfer_type": "GPU_to_CPU"}, rank=1,
)
_feed("kv_offload_allocation_failures_total", "counter", "kv_offload_allocation_failure_total", "", "0.26.0-")
_feed(
    "kv_offload_cpu_pinned_ratio", "gauge", "kv_offload_cpu_cache_usage_perc", "", "0.24.0-",
    "pinned by transfers in flight, not occupancy", merge="max",
)

# --------------------------------------------------------------------------- speculative decoding, estimates
_feed("spec_decode_drafts_total", "counter", "spec_decode_num_drafts_total", "", "0.8.5-")
_feed("spec_decode_draft_tokens_total", "counter", "spec_decode_num_draft_tokens_total", "0.5.3-0.9.2", "0.8.3-")
_feed("spec_decode_accepted_tokens_total", "counter", "spec_decode_num_accepted_tokens_total", "0.5.3-0.9.2", "0.8.3-")
_feed("estimated_flops_total", "counter", "estimated_flops_per_gpu_total", "", "0.17.0-", needs=("estimates",))
_feed(
    "estimated_read_bytes_total", "counter", "estimated_read_bytes_per_gpu_total", "", "0.17.0-",
    needs=("estimates",),
)
_feed(
    "estimated_write_bytes_total", "counter", "estimated_write_bytes_per_gpu_total", "", "0.17.0-",
    needs=("estimates",),
)

# --------------------------------------------------------------------------- known and not exposed
_hide(
    "read as facts (model, engines, cache configuration), not as a metric of its own",
    ("info", "cache_config_info", "0.4.1" + _ALIVE0, "0.8.0-"),
)
_hide(
    "the whole configuration as labels, nightly builds of June 2026 only: too large to pass on",
    ("info", "vllm_config_info", "", ""),
)
_hide(
    "an average over the last seconds by vLLM's own clock; rates of the token counters say more",
    ("gauge", "avg_prompt_throughput_toks_per_s", "0.4.1-0.6.6", ""),
    ("gauge", "avg_generation_throughput_toks_per_s", "0.4.1-0.6.6", ""),
)
_hide(
    "a lifetime ratio in an unknown window, -1 when off; hits over queries say more where they exist",
    ("gauge", "gpu_prefix_cache_hit_rate", "0.5.5-0.9.0", ""),
    ("gauge", "cpu_prefix_cache_hit_rate", "0.5.5-0.9.0", ""),
)
_hide("V0's swap space on the host; V1 has none", ("gauge", "cpu_cache_usage_perc", "0.4.1-0.9.0", ""))
_hide("never fed by vLLM", ("counter", "tokens_total", "0.6.4-0.7.3", ""))
_hide(
    "milliseconds, only with --collect-detailed-traces; inference and prefill seconds say the same",
    ("histogram", "model_forward_time_milliseconds", "0.6.4-0.9.0", ""),
    ("histogram", "model_execute_time_milliseconds", "0.6.4-0.9.0", ""),
)
_hide(
    "a parameter of requests, not a load or a latency",
    ("histogram", "request_params_best_of", "0.4.3-0.6.2", ""),
    ("histogram", "request_params_n", "0.4.3" + _ALIVE0, "0.8.0-"),
    ("histogram", "request_params_max_tokens", "0.6.4" + _ALIVE0, "0.8.0-"),
    ("histogram", "request_max_num_generation_tokens", "0.6.4" + _ALIVE0, "0.8.0-"),
)
_hide(
    "follows from the spec_decode counters that are exposed",
    ("gauge", "spec_decode_draft_acceptance_rate", "0.5.3-0.9.2", ""),
    ("gauge", "spec_decode_efficiency", "0.5.3-0.9.2", ""),
    ("counter", "spec_decode_num_emitted_tokens_total", "0.5.3-0.9.2", ""),
    ("counter", "spec_decode_num_accepted_tokens_per_pos_total", "", "0.8.5-", ("position",)),
)
_hide(
    "the last token of a fully cached prompt, not recomputation after preemption",
    ("counter", "prompt_tokens_recomputed_total", "", "0.16.0-0.19.0"),
)
_hide(
    "a sum or another split of counters that are exposed",
    ("counter", "prompt_tokens_cached_total", "", "0.16.0-"),
    ("counter", "prompt_tokens_cached_by_source_total", "", "0.32.0-", ("source",)),
)
_hide(
    "only with KV-consumer connectors; no consumer yet",
    ("gauge", "num_requests_kv_fetch_by_stage", "", "0.32.0-", ("stage",)),
)
_hide(
    "Unix time as the value and adapter names as labels: unbounded, and sums of timestamps with several API servers",
    (
        "gauge", "lora_requests_info", "0.6.4" + _ALIVE0, "0.8.0-",
        ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    ),
)
_hide("only with a watermark configuration", ("counter", "watermark_requests_total", "", "0.32.0-", ("status",)))
_hide(
    "only diffusion LLMs",
    ("counter", "diffusion_num_denoising_steps_total", "", "0.24.0-"),
    ("counter", "diffusion_num_canvas_positions_total", "", "0.24.0-"),
    ("counter", "diffusion_num_committed_tokens_total", "", "0.24.0-"),
)
_TIER: Final = ("tier",)
_hide(
    "detail of KV offload: sizes, lookups and tiers; the totals are exposed",
    ("histogram", "kv_offload_size", "", "0.16.0-", ("transfer_type",)),
    ("histogram", "kv_offload_load_size", "", "0.24.0-"),
    ("histogram", "kv_offload_store_size", "", "0.24.0-"),
    ("histogram", "kv_offload_lookup_sync_delay_seconds", "", "0.26.0-"),
    ("histogram", "kv_offload_lookup_async_delay_seconds", "", "0.26.0-"),
    ("counter", "kv_offload_stores_skipped_total", "", "0.24.0-"),
    ("gauge", "kv_offload_cpu_cache_write_usage_perc", "", "0.26.0-"),
    ("gauge", "kv_offload_cpu_cache_read_usage_perc", "", "0.26.0-"),
    ("histogram", "kv_offload_cpu_allocation_size", "", "0.26.0-"),
    (
        "info", "kv_offload_config_info", "", "0.33.0-",
        ("cpu_num_chunks", "cpu_blocks_per_chunk", "cpu_kv_cache_size_bytes", "cpu_kv_cache_size_tokens"),
    ),
    ("counter", "kv_offload_tiering_read_bytes_total", "", "0.28.0-", _TIER),
    ("counter", "kv_offload_tiering_read_time_total", "", "0.28.0-", _TIER),
    ("counter", "kv_offload_tiering_write_bytes_total", "", "0.28.0-", _TIER),
    ("counter", "kv_offload_tiering_write_time_total", "", "0.28.0-", _TIER),
    ("counter", "kv_offload_tiering_chunk_queries_total", "", "0.28.0-", _TIER),
    ("counter", "kv_offload_tiering_chunk_hits_total", "", "0.28.0-", _TIER),
    ("histogram", "kv_offload_tiering_lookup_sync_delay_seconds", "", "0.26.0-", _TIER),
    ("histogram", "kv_offload_tiering_lookup_async_delay_seconds", "", "0.26.0-", _TIER),
    ("counter", "kv_offload_tiering_promotion_job_failures_total", "", "0.28.0-", _TIER),
    ("counter", "kv_offload_tiering_cascade_job_failures_total", "", "0.28.0-", _TIER),
    ("counter", "kv_offload_tiering_promotion_allocation_failures_total", "", "0.28.0-"),
    ("gauge", "kv_offload_tiering_active_promotion_jobs", "", "0.28.0-", _TIER),
    ("gauge", "kv_offload_tiering_active_cascade_jobs", "", "0.28.0-", _TIER),
    ("gauge", "kv_offload_tiering_primary_read_usage_perc", "", "0.28.0-", _TIER),
    ("gauge", "kv_offload_tiering_primary_write_usage_perc", "", "0.28.0-", _TIER),
    ("gauge", "kv_offload_tiering_backpressure_store_latency_ema", "", "0.31.0-", _TIER),
    ("counter", "kv_offload_tiering_backpressure_stores_dropped_total", "", "0.31.0-", _TIER),
    ("counter", "kv_offload_tiering_backpressure_blocks_dropped_total", "", "0.31.0-", _TIER),
    ("histogram", "kv_offload_tiering_promotion_latency_seconds", "", "0.33.0-", ("tier", "result")),
    ("counter", "simple_kv_offload_save_outcomes_total", "", "0.31.0-", ("outcome",)),
    ("counter", "simple_kv_offload_load_blocks_total", "", "0.31.0-"),
    ("gauge", "simple_kv_offload_used_blocks", "", "0.31.0-"),
    ("gauge", "simple_kv_offload_pending_store_blocks", "", "0.31.0-"),
    (
        "info", "simple_kv_offload_info", "", "0.31.0-",
        ("backend", "page_cache", "lazy_offload", "capacity_blocks"),
    ),
)
_STORE: Final = ("operation", "status")
_hide(
    "a KV-transfer connector between machines; no consumer yet",
    ("histogram", "nixl_xfer_time_seconds", "", "0.11.1-"),
    ("histogram", "nixl_post_time_seconds", "", "0.11.1-"),
    ("histogram", "nixl_bytes_transferred", "", "0.11.1-"),
    ("histogram", "nixl_num_descriptors", "", "0.11.1-"),
    ("counter", "nixl_num_failed_transfers_total", "", "0.11.1-"),
    ("counter", "nixl_num_failed_notifications_total", "", "0.11.1-"),
    ("counter", "nixl_num_kv_expired_reqs_total", "", "0.16.0-"),
    ("counter", "nixl_num_notifications_after_expiry_total", "", "0.32.0-"),
    ("histogram", "mooncake_xfer_time_seconds", "", "0.33.0-"),
    ("histogram", "mooncake_bytes_transferred", "", "0.33.0-"),
    ("histogram", "mooncake_num_descriptors", "", "0.33.0-"),
    ("counter", "mooncake_num_failed_transfers_total", "", "0.33.0-"),
    ("counter", "mooncake_num_failed_recvs_total", "", "0.33.0-"),
    ("counter", "mooncake_num_kv_expired_reqs_total", "", "0.33.0-"),
    ("histogram", "mooncake_store_operation_time_seconds", "", "0.22.0-", _STORE),
    ("counter", "mooncake_store_operation_total", "", "0.22.0-", _STORE),
    ("counter", "mooncake_store_operation_keys_total", "", "0.22.0-", _STORE),
    ("counter", "mooncake_store_operation_bytes_total", "", "0.22.0-", _STORE),
    ("counter", "mooncake_store_operation_failed_keys_total", "", "0.22.0-", _STORE),
    ("histogram", "hf3fs_save_duration_seconds", "", "0.20.0-"),
    ("histogram", "hf3fs_load_duration_seconds", "", "0.20.0-"),
    ("counter", "hf3fs_num_failed_save_total", "", "0.20.0-"),
    ("counter", "hf3fs_num_failed_load_total", "", "0.20.0-"),
    ("counter", "hisparse_cache_hits_total", "", "0.32.0-"),
    ("counter", "hisparse_cache_misses_total", "", "0.32.0-"),
    ("counter", "hisparse_host_to_device_bytes_total", "", "0.32.0-"),
    ("gauge", "hisparse_host_cache_usage_perc", "", "0.32.0-"),
    ("gauge", "hisparse_pending_page_transfers", "", "0.32.0-"),
    ("histogram", "hisparse_host_block_lifetime_seconds", "", "0.32.0-"),
    ("histogram", "hisparse_host_block_idle_before_evict_seconds", "", "0.32.0-"),
    ("histogram", "hisparse_host_block_reuse_gap_seconds", "", "0.32.0-"),
    ("counter", "umbp_transfer_submitted_total", "", "0.33.0-", ("operation",)),
    ("counter", "umbp_transfer_completed_total", "", "0.33.0-", ("operation",)),
    ("counter", "umbp_transfer_failed_total", "", "0.33.0-", ("operation",)),
    ("counter", "umbp_transfer_bytes_total", "", "0.33.0-", ("operation",)),
)
_hide(
    "made by the API server for a feature beside text generation; no consumer yet",
    ("gauge", "websocket_connections_active", "", "0.18.0-"),
    ("counter", "websocket_connections_total", "", "0.18.0-"),
    ("histogram", "websocket_connection_duration_seconds", "", "0.18.0-"),
    ("counter", "tool_call_parser_invocations_total", "", "0.24.0-", ("mode", "outcome", "request_type")),
    ("histogram", "sleep_mode_operation_duration_seconds", "", "0.32.0-", ("operation",)),
    ("gauge", "sleep_mode_operations_in_flight", "", "0.32.0-", ("operation",)),
    ("histogram", "rl_weight_update_operation_duration_seconds", "", "0.32.0-", ("operation",)),
    ("gauge", "rl_weight_update_operations_in_flight", "", "0.32.0-", ("operation",)),
    scope="frontend",
)
_hide(
    "times of HTTP answers, streams included: the engine's own latency histograms say more",
    ("histogram", "http_request_duration_seconds", "", "0.8.3-", ("handler", "method")),
    ("histogram", "http_request_duration_highr_seconds", "", "0.8.3-"),
    ("histogram", "http_request_size_bytes", "", "0.8.3-", ("handler",)),
    ("histogram", "http_response_size_bytes", "", "0.8.3-", ("handler",)),
    scope="process",
    prefixed=False,
)
_hide(
    "read to see restarts, not exposed as it is",
    ("gauge", "process_start_time_seconds", "0.4.1" + _ALIVE0, "0.7.2-"),
    scope="process",
    prefixed=False,
)
_hide(
    "the API-server process only; the host families cover all processes of the server",
    ("gauge", "process_virtual_memory_bytes", "0.4.1" + _ALIVE0, "0.7.2-"),
    ("gauge", "process_resident_memory_bytes", "0.4.1" + _ALIVE0, "0.7.2-"),
    ("counter", "process_cpu_seconds_total", "0.4.1" + _ALIVE0, "0.7.2-"),
    ("gauge", "process_open_fds", "0.4.1" + _ALIVE0, "0.7.2-"),
    ("gauge", "process_max_fds", "0.4.1" + _ALIVE0, "0.7.2-"),
    ("counter", "python_gc_objects_collected_total", "0.4.1" + _ALIVE0, "0.7.2-", ("generation",)),
    ("counter", "python_gc_objects_uncollectable_total", "0.4.1" + _ALIVE0, "0.7.2-", ("generation",)),
    ("counter", "python_gc_collections_total", "0.4.1" + _ALIVE0, "0.7.2-", ("generation",)),
    ("info", "python_info", "0.4.1" + _ALIVE0, "0.7.2-"),
    scope="process",
    prefixed=False,
)

# fmt: on
ROWS: Final[tuple[Row, ...]] = tuple(_rows)
"""The table, in the order of the catalogue's groups."""

KNOWN_STEMS: Final[Mapping[str, str]] = MappingProxyType(
    {"kvcr": "KVCR tier (from 0.30): its names come from another package and move between releases"}
)
"""Prefixed names that begin like this are known and not exposed, whatever follows."""

FOREIGN_PREFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "lmcache:": "LMCache: its model_name is the path, and its names still move between releases",
        "lmcache_mp": "LMCache's own server",
    }
)
"""Metrics of other packages that may stand in a vLLM body; they are no engine families and never unmapped."""


def _index(*, prefixed: bool) -> Mapping[str, tuple[Row, ...]]:
    out: dict[str, tuple[Row, ...]] = {}
    for row in ROWS:
        if row.prefixed is prefixed:
            out[row.name] = (*out.get(row.name, ()), row)
    return MappingProxyType(out)


BY_NAME: Final = _index(prefixed=True)
"""Prefixed rows by name; several rows share a name when they take different label values of it."""

PLAIN_BY_NAME: Final = _index(prefixed=False)
"""Rows whose names carry no prefix."""


def split_prefix(name: str) -> tuple[str, str] | None:
    """Split ``vllm:x`` (or another spelling) into prefix and rest; None for names that are not the engine's."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return None


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Read "0.26.0", "0.6.4.post1", "v0.33.0rc1+cu129": the first three numbers; None when there are none.

    >>> parse_version("0.6.4.post1")
    (0, 6, 4)
    """
    numbers: list[int] = []
    for part in text.strip().lstrip("vV").split(".")[:3]:
        digits = ""
        for character in part:
            if not character.isdecimal():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    if len(numbers) < 2:
        return None
    return numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 0


def lived(span: str, version: tuple[int, int, int]) -> bool:
    """Whether a release lies in a span of a row ("0.4.1-0.9.0", "0.9.2-", "" = never).

    0.4.1 is the oldest release read, so such a span holds for everything before it as well.
    """
    if not span:
        return False
    first, _, last = span.partition("-")
    begin = parse_version(first)
    end = parse_version(last) if last else None
    assert begin is not None, span
    return (begin == (0, 4, 1) or version >= begin) and (end is None or version <= end)
