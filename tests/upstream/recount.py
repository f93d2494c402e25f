"""A second way from a body to our families, written without the code under test.

Samples come from prometheus_client's parsers and the names are written out here once more, so a slip in the name
table or in the normaliser shows up as a difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from upstream.bodies import Body

# our family -> upstream sample name without prefix, and our label -> upstream label
SCALARS: dict[str, tuple[str, dict[str, str]]] = {
    "requests_running": ("num_requests_running", {"engine": "engine"}),
    "requests_waiting": ("num_requests_waiting", {"engine": "engine"}),
    "requests_waiting_by_reason": ("num_requests_waiting_by_reason", {"engine": "engine", "reason": "reason"}),
    "requests_finished_total": ("request_success_total", {"engine": "engine", "reason": "finished_reason"}),
    "requests_rejected_total": ("admission_rejections_total", {"reason": "reason"}),
    "prompt_tokens_total": ("prompt_tokens_total", {"engine": "engine"}),
    "prompt_tokens_by_source_total": ("prompt_tokens_by_source_total", {"engine": "engine", "source": "source"}),
    "generation_tokens_total": ("generation_tokens_total", {"engine": "engine"}),
    "kv_cache_usage_ratio": ("kv_cache_usage_perc", {"engine": "engine"}),
    "prefix_cache_queries_tokens_total": ("prefix_cache_queries_total", {"engine": "engine"}),
    "prefix_cache_hits_tokens_total": ("prefix_cache_hits_total", {"engine": "engine"}),
    "external_prefix_cache_queries_tokens_total": ("external_prefix_cache_queries_total", {"engine": "engine"}),
    "external_prefix_cache_hits_tokens_total": ("external_prefix_cache_hits_total", {"engine": "engine"}),
    "multimodal_cache_queries_total": ("mm_cache_queries_total", {"engine": "engine"}),
    "multimodal_cache_hits_total": ("mm_cache_hits_total", {"engine": "engine"}),
    "preemptions_total": ("num_preemptions_total", {"engine": "engine"}),
    "server_sleep_state": ("engine_sleep_state", {"engine": "engine", "state": "sleep_state"}),
    "kv_offload_load_bytes_total": ("kv_offload_load_bytes_total", {"engine": "engine"}),
    "kv_offload_store_bytes_total": ("kv_offload_store_bytes_total", {"engine": "engine"}),
    "kv_offload_load_time_seconds_total": ("kv_offload_load_time_total", {"engine": "engine"}),
    "kv_offload_store_time_seconds_total": ("kv_offload_store_time_total", {"engine": "engine"}),
    "kv_offload_allocation_failures_total": ("kv_offload_allocation_failure_total", {"engine": "engine"}),
    "kv_offload_cpu_pinned_ratio": ("kv_offload_cpu_cache_usage_perc", {"engine": "engine"}),
    "estimated_flops_total": ("estimated_flops_per_gpu_total", {"engine": "engine"}),
    "estimated_read_bytes_total": ("estimated_read_bytes_per_gpu_total", {"engine": "engine"}),
    "estimated_write_bytes_total": ("estimated_write_bytes_per_gpu_total", {"engine": "engine"}),
}

# older name with the same content, used only while the newer one has no sample
OLDER: dict[str, tuple[str, str]] = {
    "kv_offload_load_bytes_total": ("kv_offload_total_bytes_total", "CPU_to_GPU"),
    "kv_offload_store_bytes_total": ("kv_offload_total_bytes_total", "GPU_to_CPU"),
    "kv_offload_load_time_seconds_total": ("kv_offload_total_time_total", "CPU_to_GPU"),
    "kv_offload_store_time_seconds_total": ("kv_offload_total_time_total", "GPU_to_CPU"),
}

HISTOGRAMS: dict[str, str] = {
    "iteration_tokens": "iteration_tokens_total",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_generation_tokens": "request_generation_tokens",
    "request_prefill_computed_tokens": "request_prefill_kv_computed_tokens",
    "ttft_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "e2e_latency_seconds": "e2e_request_latency_seconds",
    "queue_time_seconds": "request_queue_time_seconds",
    "prefill_time_seconds": "request_prefill_time_seconds",
    "decode_time_seconds": "request_decode_time_seconds",
    "inference_time_seconds": "request_inference_time_seconds",
    "request_preemptions": "request_num_preemptions",
    "kv_block_lifetime_seconds": "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds": "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds": "kv_block_reuse_gap_seconds",
}

# label pairs of a series, sorted by name
Key = tuple[tuple[str, str], ...]


@dataclass
class Recount:
    """What a body says, by our names."""

    scalars: dict[tuple[str, Key], float]
    histograms: dict[tuple[str, Key], tuple[dict[float, float], float]]
    """(family, labels) -> cumulative count by bound (with infinity), sum"""


def samples_of(body: Body) -> list[tuple[str, dict[str, str], float]]:
    """All samples of a body through prometheus_client's parser."""
    if body.openmetrics:
        # prometheus_client refuses what its own escaping wrote (two samples of an undeclared `vllm_x` "clash"), so
        # the samples get the spelling of their TYPE lines first.
        families = openmetrics_families(re.sub(r"^vllm_", "vllm:", body.text, flags=re.MULTILINE))
    else:
        families = text_families(body.text)
    return [(sample.name, dict(sample.labels), float(sample.value)) for family in families for sample in family.samples]


def recount(body: Body) -> Recount:
    """Work out our families from a body in the slow and obvious way."""
    by_name: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in samples_of(body):
        for prefix in ("vllm:", "vllm_"):
            if name.startswith(prefix):
                by_name.setdefault(name[len(prefix) :], []).append((labels, value))
                break
        else:
            by_name.setdefault("/" + name, []).append((labels, value))
    scalars: dict[tuple[str, Key], float] = {}
    for family, (name, wanted) in SCALARS.items():
        for labels, value in by_name.get(name, ()):
            key = tuple(sorted((ours, labels[theirs]) for ours, theirs in wanted.items()))
            assert (family, key) not in scalars
            scalars[family, key] = value
    for family, (name, direction) in OLDER.items():
        for labels, value in by_name.get(name, ()):
            if labels["transfer_type"] == direction:
                scalars.setdefault((family, (("engine", labels["engine"]),)), value)
    for labels, value in by_name.get("/http_requests_total", ()):
        scalars["http_requests_total", tuple(sorted(labels.items()))] = value
    histograms: dict[tuple[str, Key], tuple[dict[float, float], float]] = {}
    for family, name in HISTOGRAMS.items():
        for labels, value in by_name.get(name + "_sum", ()):
            engine = labels["engine"]
            buckets = {float(le["le"]): n for le, n in by_name[name + "_bucket"] if le["engine"] == engine}
            histograms[family, (("engine", engine),)] = (buckets, value)
    return Recount(scalars, histograms)
