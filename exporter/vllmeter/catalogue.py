"""Every family that ``/metrics`` can hold, once: name, type, labels, help, where it comes from.

The names are a contract once released (docs/metrics.md is checked against this table, and so are rules, alerts
and dashboards).  A new family is one entry here and one line where its value is made.

Names are written without the prefix ``vllmeter_`` and, for counters, with their ``_total``.
Labels: ``server`` is the configured name; ``engine`` the data-parallel rank; ``gpu`` the NVML index; ``uuid`` the
GPU's (or GPU instance's) UUID; ``window`` "15s", "60s" and what the configuration adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "vllmeter_"

Kind = Literal["gauge", "counter", "histogram", "info", "stateset"]
"""``info`` and ``stateset`` are exposed as gauges; the word says how to read them."""

Origin = Literal["engine", "exporter", "window", "memory", "gpu", "host", "run"]
"""Who makes the value: the server's own body, or one of our steps."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family of ``/metrics``."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    origin: Origin
    group: str

    @property
    def exposed(self) -> str:
        """The name on the wire."""
        return PREFIX + self.name

    @property
    def exposed_type(self) -> str:
        """The type on the wire (Prometheus knows no info and no stateset in text 0.0.4)."""
        return "gauge" if self.kind in ("info", "stateset") else self.kind


_S: Final = ("server",)
_E: Final = ("server", "engine")
_W: Final = ("server", "window")
_G: Final = ("gpu", "uuid")
_SG: Final = ("server", "gpu", "uuid")
_SGW: Final = ("server", "gpu", "uuid", "window")


def _families() -> tuple[Family, ...]:
    out: list[Family] = []

    def add(group: str, origin: Origin, kind: Kind, name: str, labels: tuple[str, ...], help: str) -> None:
        out.append(Family(name, kind, labels, help, origin, group))

    # One family a line: the formatter would make ten of each.
    # fmt: off
    # ---------------------------------------------------------------- health of servers and of the sampling
    g = "health"
    add(g, "exporter", "gauge", "server_up", _S, "1 if the last finished scrape of the server's /metrics was read and parsed.")
    add(g, "exporter", "gauge", "server_healthy", _S, "1 if the server's /health answers 200, 0 if it answers otherwise; absent without an answer.")
    add(g, "exporter", "stateset", "server_state", ("server", "state"), "State of the server; exactly one state is 1.")
    add(g, "exporter", "info", "server_info", ("server", "model_name", "version", "url"), "Facts of the server; value 1.")
    add(g, "exporter", "info", "server_setting_info", ("server", "setting", "value", "source"), "Effective setting of the server (vLLM flag name with underscores); value 1.")
    add(g, "exporter", "gauge", "server_setting_value", ("server", "setting"), "Effective setting of the server as a number in vLLM's own unit (tokens, requests, bytes, shares; switches 1 or 0); absent for settings that are words.")
    add(g, "exporter", "gauge", "server_engine_metrics", _S, "0 if /metrics answers but holds no engine metric (--disable-log-stats), else 1.")
    add(g, "exporter", "counter", "server_restarts_total", _S, "Restarts of the server seen since this exporter started.")
    add(g, "exporter", "counter", "server_config_changes_total", _S, "Changes of the server's settings, model or version seen since this exporter started.")
    add(g, "exporter", "gauge", "server_start_timestamp_seconds", _S, "Unix time at which the server's process started, as it says itself or as /proc says.")
    add(g, "exporter", "gauge", "server_last_restart_timestamp_seconds", _S, "Unix time at which the process of the last restart began (where not known: at which it was seen); absent before the first.")
    add(g, "exporter", "gauge", "server_last_config_change_timestamp_seconds", _S, "Unix time at which the last change of settings was seen; absent before the first.")
    add(g, "engine", "stateset", "server_sleep_state", ("server", "engine", "state"), "Sleep state of the engine (awake, weights_offloaded, discard_all), from vllm:engine_sleep_state.")
    add(g, "exporter", "gauge", "scrape_duration_seconds", _S, "Duration of the last finished scrape of the server.")
    add(g, "exporter", "gauge", "scrape_in_flight_seconds", _S, "How long the scrape now under way has been waiting for its answer; 0 when none is.")
    add(g, "exporter", "gauge", "scrape_body_bytes", _S, "Size of the last body after decompression.")
    add(g, "exporter", "counter", "scrape_failures_total", ("server", "reason"), "Failed scrapes of the server by reason.")
    add(g, "exporter", "gauge", "sample_age_seconds", _S, "Age of the newest usable sample of the server.")
    add(g, "exporter", "gauge", "sample_interval_seconds", _S, "Interval at which the server is sampled now (longer while backing off).")
    add(g, "exporter", "gauge", "unmapped_families", _S, "Engine metric families in the server's body that this version does not know.")
    add(g, "exporter", "info", "family_source_info", ("server", "family", "source"), "Upstream family that a family of this exporter was taken from; value 1.")
    add(g, "exporter", "gauge", "exposed_series", _S, "Series that this exporter exposes for the server's own metrics.")
    add(g, "exporter", "gauge", "nvml_up", (), "1 if the last NVML tick succeeded.")
    add(g, "exporter", "info", "nvml_status_info", ("reason",), "Why NVML gives no or partial readings; value 1.")
    add(g, "exporter", "gauge", "nvml_collection_duration_seconds", (), "Duration of the last NVML tick.")
    add(g, "exporter", "gauge", "nvml_sample_age_seconds", (), "Age of the newest NVML tick, failed ones included.")
    add(g, "exporter", "counter", "nvml_ticks_dropped_total", (), "NVML ticks dropped because memory and process list did not fit together.")
    add(g, "exporter", "info", "build_info", ("version", "python"), "Version of this exporter; value 1.")
    add(g, "exporter", "gauge", "config_last_reload_successful", (), "1 if the last load of the configuration succeeded.")
    add(g, "exporter", "gauge", "config_last_reload_success_timestamp_seconds", (), "Unix time of the last successful load of the configuration.")

    # ---------------------------------------------------------------- load, from the engine
    g = "load"
    add(g, "engine", "gauge", "requests_running", _E, "Requests in the execution batch, from vllm:num_requests_running.")
    add(g, "engine", "gauge", "requests_waiting", _E, "Requests waiting to be processed, from vllm:num_requests_waiting.")
    add(g, "engine", "gauge", "requests_waiting_by_reason", (*_E, "reason"), "Waiting requests by reason (capacity, deferred), vLLM >= 0.20.")
    add(g, "engine", "gauge", "requests_swapped", _E, "Requests swapped to host memory, from vllm:num_requests_swapped (V0 only).")
    add(g, "engine", "counter", "requests_finished_total", (*_E, "reason"), "Finished requests by reason, from vllm:request_success_total. Client aborts are never counted by vLLM V1.")
    add(g, "engine", "counter", "requests_rejected_total", ("server", "reason"), "Requests refused by a queue limit, from vllm:admission_rejections_total.")
    add(g, "engine", "counter", "requests_corrupted_total", _E, "Requests with NaN logits, from vllm:corrupted_requests_total (only with VLLM_COMPUTE_NANS_IN_LOGITS).")
    add(g, "engine", "counter", "http_requests_total", ("server", "handler", "method", "status"), "HTTP requests by handler and status group: the only 4xx/5xx signal.")
    add(g, "engine", "counter", "prompt_tokens_total", _E, "Prompt tokens including cached ones, added when a prefill ends.")
    add(g, "engine", "counter", "prompt_tokens_by_source_total", (*_E, "source"), "Prompt tokens by source (local_compute, local_cache_hit, external_kv_transfer), vLLM >= 0.16.")
    add(g, "engine", "counter", "generation_tokens_total", _E, "Generated tokens.")
    add(g, "engine", "histogram", "iteration_tokens", _E, "Tokens per engine step, from vllm:iteration_tokens_total.")
    add(g, "engine", "histogram", "request_prompt_tokens", _E, "Prompt length of finished requests.")
    add(g, "engine", "histogram", "request_generation_tokens", _E, "Output length of finished requests.")
    add(g, "engine", "histogram", "request_prefill_computed_tokens", _E, "Prompt tokens really computed per finished request (prompt minus cached), vLLM >= 0.13.")

    # ---------------------------------------------------------------- latency histograms, from the engine
    g = "latency"
    add(g, "engine", "histogram", "ttft_seconds", _E, "Time to first token, queue included, from vllm:time_to_first_token_seconds.")
    add(g, "engine", "histogram", "inter_token_latency_seconds", _E, "Time between successive outputs of a request (ITL).")
    add(g, "engine", "histogram", "time_per_output_token_seconds", _E, "Decode time per output token of finished requests (TPOT), vLLM >= 0.11.")
    add(g, "engine", "histogram", "e2e_latency_seconds", _E, "Arrival to finish of finished requests.")
    add(g, "engine", "histogram", "queue_time_seconds", _E, "Queued to first scheduled, recorded at finish.")
    add(g, "engine", "histogram", "prefill_time_seconds", _E, "First scheduled to first token, recorded at finish.")
    add(g, "engine", "histogram", "decode_time_seconds", _E, "First to last token, recorded at finish.")
    add(g, "engine", "histogram", "inference_time_seconds", _E, "First scheduled to last token, recorded at finish.")

    # ---------------------------------------------------------------- cache and evictions, from the engine
    g = "cache"
    add(g, "engine", "gauge", "kv_cache_usage_ratio", _E, "KV-cache blocks held by live requests, 0-1. Reusable cached blocks count as free: 0 when idle.")
    add(g, "memory", "gauge", "kv_cache_capacity_tokens", ("server", "source"), "Tokens that the KV cache of the server holds, all engines.")
    add(g, "memory", "gauge", "kv_cache_capacity_bytes", ("server", "source"), "Bytes of KV cache per GPU of the server.")
    add(g, "engine", "counter", "prefix_cache_queries_tokens_total", _E, "Tokens looked up in the prefix cache.")
    add(g, "engine", "counter", "prefix_cache_hits_tokens_total", _E, "Tokens found in the prefix cache.")
    add(g, "engine", "counter", "external_prefix_cache_queries_tokens_total", _E, "Tokens looked up in the KV connector's tier.")
    add(g, "engine", "counter", "external_prefix_cache_hits_tokens_total", _E, "Tokens found in the KV connector's tier.")
    add(g, "engine", "counter", "multimodal_cache_queries_total", _E, "Items looked up in the multimodal processor cache.")
    add(g, "engine", "counter", "multimodal_cache_hits_total", _E, "Items found in the multimodal processor cache.")
    add(g, "engine", "counter", "preemptions_total", _E, "Preempted requests; in V1 each is recomputed.")
    add(g, "engine", "histogram", "request_preemptions", _E, "Preemptions per finished request, vLLM >= 0.30.")
    add(g, "window", "gauge", "last_preemption_timestamp_seconds", _S, "Unix time of the sample that showed the last preemption; absent before the first.")
    add(g, "engine", "histogram", "kv_block_lifetime_seconds", _E, "Allocation to eviction of sampled KV blocks (--kv-cache-metrics).")
    add(g, "engine", "histogram", "kv_block_idle_before_evict_seconds", _E, "Last touch to eviction of sampled KV blocks (--kv-cache-metrics).")
    add(g, "engine", "histogram", "kv_block_reuse_gap_seconds", _E, "Gaps between touches of sampled KV blocks (--kv-cache-metrics).")
    add(g, "engine", "counter", "kv_offload_load_bytes_total", _E, "Bytes from the offload tier to the GPU. 0 before the first transfer: vLLM then announces the new family without series, its older one has them from the start.")
    add(g, "engine", "counter", "kv_offload_store_bytes_total", _E, "Bytes from the GPU to the offload tier. 0 before the first transfer, as for kv_offload_load_bytes_total.")
    add(g, "engine", "counter", "kv_offload_load_time_seconds_total", _E, "Seconds spent loading from the offload tier. 0 before the first transfer, as for kv_offload_load_bytes_total.")
    add(g, "engine", "counter", "kv_offload_store_time_seconds_total", _E, "Seconds spent storing to the offload tier. 0 before the first transfer, as for kv_offload_load_bytes_total.")
    add(g, "engine", "counter", "kv_offload_allocation_failures_total", _E, "Failed allocations in the offload tier, vLLM >= 0.26; absent before the first, since vLLM announces it without series.")
    add(g, "engine", "gauge", "kv_offload_cpu_pinned_ratio", _E, "Share of the host KV pool pinned by transfers in flight (not occupancy).")
    add(g, "engine", "counter", "spec_decode_drafts_total", _E, "Speculative decoding: verify steps.")
    add(g, "engine", "counter", "spec_decode_draft_tokens_total", _E, "Speculative decoding: proposed tokens.")
    add(g, "engine", "counter", "spec_decode_accepted_tokens_total", _E, "Speculative decoding: accepted tokens.")
    add(g, "engine", "counter", "estimated_flops_total", _E, "vLLM's own estimate of floating point operations per GPU (--enable-mfu-metrics).")
    add(g, "engine", "counter", "estimated_read_bytes_total", _E, "vLLM's own estimate of bytes read from GPU memory (--enable-mfu-metrics).")
    add(g, "engine", "counter", "estimated_write_bytes_total", _E, "vLLM's own estimate of bytes written to GPU memory (--enable-mfu-metrics).")

    # ---------------------------------------------------------------- windowed, from 1 s samples
    g = "windowed"
    add(g, "window", "gauge", "ttft_jitter_lower_seconds", _W, "Guaranteed lower bound of the standard deviation of TTFT in the window.")
    add(g, "window", "gauge", "ttft_jitter_upper_seconds", _W, "Guaranteed upper bound of the standard deviation of TTFT in the window.")
    add(g, "window", "gauge", "ttft_jitter_seconds", _W, "Point estimate of the standard deviation of TTFT in the window; absent where the bounds are too far apart.")
    add(g, "window", "gauge", "ttft_jitter_error_ratio", _W, "Guaranteed relative error of the point estimate.")
    add(g, "window", "gauge", "ttft_jitter_ratio", _W, "Point estimate of TTFT jitter over mean TTFT.")
    add(g, "window", "gauge", "ttft_window_mean_seconds", _W, "Mean TTFT in the window, exact.")
    add(g, "window", "gauge", "ttft_window_requests", _W, "Requests whose first token fell in the window.")
    add(g, "window", "gauge", "ttft_window_span_seconds", _W, "Seconds that the samples in the window really cover.")
    add(g, "window", "gauge", "ttft_window_quantile_lower_seconds", (*_W, "q"), "Guaranteed lower bound of a TTFT quantile; absent with too few requests.")
    add(g, "window", "gauge", "ttft_window_quantile_upper_seconds", (*_W, "q"), "Guaranteed upper bound of a TTFT quantile; absent with too few requests.")
    add(g, "window", "gauge", "ttft_window_share_over_ratio", (*_W, "bound"), "Share of requests in the window with a TTFT over the bound, exact.")
    add(g, "window", "info", "ttft_window_absent_info", (*_W, "reason"), "Why windowed TTFT values are absent; value 1.")
    add(g, "window", "gauge", "inter_token_latency_window_mean_seconds", _W, "Mean ITL in the window, exact.")
    add(g, "window", "gauge", "e2e_latency_window_mean_seconds", _W, "Mean end-to-end latency of requests finished in the window, exact.")
    add(g, "window", "gauge", "e2e_latency_window_requests", _W, "Requests finished in the window.")
    add(g, "window", "gauge", "requests_waiting_peak", _W, "Largest number of waiting requests in any 1 s sample of the window.")
    add(g, "window", "gauge", "requests_running_peak", _W, "Largest number of running requests in any 1 s sample of the window.")
    add(g, "window", "gauge", "kv_cache_usage_peak_ratio", _W, "Largest KV-cache usage in any 1 s sample of the window.")
    add(g, "window", "gauge", "preemptions_window", _W, "Preemptions in the window.")
    add(g, "window", "gauge", "preemptions_burst_peak", _W, "Most preemptions between two successive samples of the window.")
    add(g, "window", "gauge", "prefix_cache_hit_window_ratio", _W, "Prefix-cache hit ratio in the window, in tokens; absent without queries.")
    add(g, "window", "gauge", "prompt_tokens_computed_window", _W, "Prompt tokens really computed in the window.")
    add(g, "window", "gauge", "prompt_tokens_cached_window", _W, "Prompt tokens taken from a cache in the window.")
    add(g, "window", "gauge", "server_gpu_memory_peak_bytes", _SGW, "Largest GPU memory of the server in any sample of the window.")
    add(g, "window", "gauge", "gpu_memory_used_peak_bytes", (*_G, "window"), "Largest used memory of the GPU in any sample of the window.")
    add(g, "window", "gauge", "gpu_utilization_peak_ratio", (*_G, "window"), "Largest utilisation of the GPU in any sample of the window.")
    add(g, "window", "gauge", "gpu_contention_ratio", _SGW, "Share of the server's busy seconds in which another server on the same GPU computed too (association, not cause).")
    add(g, "window", "gauge", "ttft_contended_mean_seconds", _SGW, "Mean TTFT in the seconds in which another server on the GPU computed too.")
    add(g, "window", "gauge", "ttft_contended_requests", _SGW, "Requests behind ttft_contended_mean_seconds.")
    add(g, "window", "gauge", "ttft_clear_mean_seconds", _SGW, "Mean TTFT in the seconds in which no other server on the GPU computed.")
    add(g, "window", "gauge", "ttft_clear_requests", _SGW, "Requests behind ttft_clear_mean_seconds.")

    # ---------------------------------------------------------------- budgets and attribution
    g = "budgets"
    add(g, "memory", "gauge", "server_gpu_memory_budget_bytes", (*_SG, "source"), "What the server may take on the GPU by its configuration.")
    add(g, "memory", "gauge", "server_gpu_memory_expected_bytes", (*_SG, "source"), "What the server will really hold: weights, KV cache as allocated, graphs, context.")
    add(g, "memory", "gauge", "server_gpu_memory_allowance_bytes", (*_SG, "source"), "What normally comes on top of the budget (CUDA context, graphs where outside).")
    add(g, "memory", "gauge", "server_gpu_memory_used_bytes", (*_SG, "source"), "GPU memory of the server's processes; source nvml or estimate.")
    add(g, "memory", "gauge", "server_gpu_memory_high_water_bytes", _SG, "Largest GPU memory of the server that this exporter measured; counts from the start of the server's processes or of the exporter, whichever is later.")
    add(g, "memory", "gauge", "server_gpu_memory_part_bytes", (*_SG, "part", "source"), "Part of the server's GPU memory: weights, kv_cache, activation_peak, non_torch, cuda_graphs, context.")
    add(g, "memory", "info", "server_budget_suspended_info", (*_SG, "reason"), "The budget is not compared now (asleep, starting); value 1.")
    add(g, "memory", "info", "attribution_info", ("server", "state", "method", "reason"), "How the server's processes were found and whether its memory is measured, estimated or unavailable; value 1.")
    add(g, "memory", "gauge", "gpu_memory_cuda_total_bytes", (*_G, "source"), "Memory that CUDA can use: what budgets are a fraction of.")
    add(g, "memory", "gauge", "gpu_memory_committed_bytes", _G, "Sum of budgets and allowances of the servers on the GPU.")
    add(g, "memory", "gauge", "gpu_memory_unattributed_bytes", _G, "Used memory that no listed process accounts for.")
    add(g, "memory", "gauge", "gpu_memory_other_bytes", (*_G, "program", "orphan"), "GPU memory of programs that are no configured server; orphan is true for an engine whose parent died.")

    # ---------------------------------------------------------------- GPU
    g = "gpu"
    add(g, "gpu", "info", "gpu_info", (*_G, "name", "driver_version", "cuda_version", "mig_parent_uuid"), "Facts of the GPU; value 1.")
    add(g, "gpu", "gauge", "gpu_memory_total_bytes", _G, "Total memory as NVML says.")
    add(g, "gpu", "gauge", "gpu_memory_used_bytes", _G, "Allocated memory (NVML v2: without what the driver reserves).")
    add(g, "gpu", "gauge", "gpu_memory_free_bytes", _G, "Free memory.")
    add(g, "gpu", "gauge", "gpu_memory_reserved_bytes", _G, "Memory reserved by driver and firmware.")
    add(g, "gpu", "gauge", "gpu_utilization_ratio", _G, "Share of the last sample period in which a kernel ran.")
    add(g, "gpu", "gauge", "gpu_memory_bandwidth_utilization_ratio", _G, "Share of the last sample period in which memory was read or written.")
    add(g, "gpu", "gauge", "gpu_power_watts", _G, "Power draw.")
    add(g, "gpu", "gauge", "gpu_power_limit_watts", _G, "Enforced power limit.")
    add(g, "gpu", "gauge", "gpu_temperature_celsius", _G, "Core temperature.")
    add(g, "gpu", "gauge", "gpu_clock_hertz", (*_G, "domain"), "Clock by domain (sm, memory).")
    add(g, "gpu", "gauge", "gpu_throttle", (*_G, "reason"), "1 while the clock is held down for the reason.")
    add(g, "gpu", "counter", "gpu_ecc_errors_total", (*_G, "kind"), "ECC errors since the driver was loaded, by kind (corrected, uncorrected).")
    add(g, "gpu", "gauge", "gpu_xid_last", _G, "Last XID error seen by this exporter; absent before the first.")
    add(g, "gpu", "gauge", "gpu_last_xid_timestamp_seconds", _G, "Unix time at which this exporter read the last XID error, also when it had the same code as the one before; absent before the first.")
    add(g, "gpu", "gauge", "server_gpu_sm_utilization_ratio", _SG, "Share of SM time that the server's processes used in their newest NVML sample.")

    # ---------------------------------------------------------------- host
    g = "host"
    add(g, "host", "counter", "server_cpu_seconds_total", ("server", "role"), "CPU time of the server's processes by role (api_server, engine_core, worker).")
    add(g, "host", "gauge", "server_host_memory_bytes", ("server", "role", "kind"), "Host memory of the server's processes by kind (resident, shared).")
    add(g, "host", "gauge", "server_processes", ("server", "role"), "Processes of the server by role.")
    add(g, "host", "gauge", "server_threads", ("server", "role"), "Threads of the server's processes by role.")

    # ---------------------------------------------------------------- runs and baselines
    g = "runs"
    add(g, "run", "gauge", "run_active", ("server", "scenario", "run"), "1 while a load-test run is active.")
    add(g, "run", "gauge", "run_start_timestamp_seconds", ("server", "scenario", "run"), "Unix time at which the active run started.")
    add(g, "run", "gauge", "run_end_timestamp_seconds", ("server", "scenario", "run"), "Unix time at which the run ended, for 15 minutes after its end; absent while it is active. The 10 newest runs.")
    add(g, "run", "gauge", "baseline_ttft_seconds", ("server", "scenario", "stat"), "Stored baseline of TTFT.")
    add(g, "run", "gauge", "baseline_e2e_seconds", ("server", "scenario", "stat"), "Stored baseline of end-to-end latency.")
    add(g, "run", "gauge", "baseline_throughput_tokens_per_second", ("server", "scenario"), "Stored baseline of generated tokens per second.")
    add(g, "run", "info", "baseline_info", ("server", "scenario", "run"), "Run that the baseline was taken from; value 1.")
    # fmt: on
    return tuple(out)


CATALOGUE: Final[tuple[Family, ...]] = _families()
BY_NAME: Final[dict[str, Family]] = {family.name: family for family in CATALOGUE}
ENGINE_GAUGES: Final = frozenset(f.name for f in CATALOGUE if f.origin == "engine" and f.kind in ("gauge", "stateset"))
"""What the engine says of this moment.  Its counters and histograms are sums, which stay true when it is dead."""
