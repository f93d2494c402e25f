# ruff: noqa: INP001
"""Recording rules: ``level:metric:operations``, the newest operation first, ``_total`` stripped under a rate.

Levels are the labels that remain (beside target labels of your own, such as ``cluster``):

=============== ====================================
``server``      job, instance, host, server
``server_gpu``  the same, gpu, uuid
``server_scenario`` the same as server, and scenario
``gpu``         job, instance, host, gpu, uuid
``host``        job, instance, host
``model``       job, model_name
=============== ====================================

Engines are summed before a quantile, mean or ratio is taken; ratios come from summed parts; a denominator of 0
gives no value instead of NaN.  Aggregation is ``without (…)``, so labels of yours survive.
"""

from __future__ import annotations

from model import Group, Recording

WINDOWS = ("1m", "5m")
LATENCIES = {
    # file: (families with everything, families with a mean only, what it is)
    "ttft": (("ttft_seconds",), (), "Time to first token"),
    "tokens": (("inter_token_latency_seconds",), ("time_per_output_token_seconds",), "Time between tokens"),
    "requests": (
        ("e2e_latency_seconds", "queue_time_seconds"),
        ("prefill_time_seconds", "decode_time_seconds"),
        "Whole requests and their phases",
    ),
}
BURN_WINDOWS = ("30m", "1h", "2h", "6h", "1d", "3d")
QUANTILES = (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99"))


def total(family: str, window: str, labels: str = "engine", matcher: str = "") -> str:
    """Rate of a counter, summed over ``labels``."""
    return f"sum without ({labels}) (rate(vllmeter_{family}{matcher}[{window}]))"


def latency(families: tuple[str, ...], means: tuple[str, ...], window: str) -> list[Recording]:
    out: list[Recording] = []
    for family in families:
        name = f"server:vllmeter_{family}"
        buckets = f"rate(vllmeter_{family}_bucket[{window}])"
        finite = f'rate(vllmeter_{family}_bucket{{le!="+Inf"}}[{window}])'
        count = f"{name}_count:rate{window}"
        out += [
            Recording(count, total(f"{family}_count", window)),
            Recording(f"{name}_sum:rate{window}", total(f"{family}_sum", window)),
            Recording(
                f"{name}:mean_rate{window}",
                f"{name}_sum:rate{window} / ({count} > 0) <= <<latency_sane_limit>>",
            ),
        ]
        out += [
            Recording(
                f"{name}:{label}_rate{window}",
                f"histogram_quantile({quantile}, sum without (engine) ({buckets}))\nand ({count} > 0)",
            )
            for label, quantile in QUANTILES
        ]
        out.append(
            Recording(
                f"{name}:share_over_rate{window}",
                "clamp_min(\n"
                f"  1 - sum without (engine) ({finite}) / ignoring (le) group_left () ({count} > 0),\n"
                "  0\n)",
            )
        )
    for family in means:
        out.append(
            Recording(
                f"server:vllmeter_{family}:mean_rate{window}",
                f"{total(f'{family}_sum', window)}\n/ ({total(f'{family}_count', window)} > 0)\n"
                "<= <<latency_sane_limit>>",
            )
        )
    return out


def throughput(window: str) -> list[Recording]:
    return [
        Recording(f"server:vllmeter_generation_tokens:rate{window}", total("generation_tokens_total", window)),
        Recording(f"server:vllmeter_prompt_tokens:rate{window}", total("prompt_tokens_total", window)),
        Recording(
            f"server:vllmeter_prompt_tokens_computed:rate{window}",
            total("prompt_tokens_by_source_total", window, "engine, source", '{source="local_compute"}'),
        ),
        Recording(
            f"server:vllmeter_requests_finished:rate{window}",
            total("requests_finished_total", window, "engine, reason"),
        ),
    ]


def hit_ratio(prefix: str, window: str) -> Recording:
    hits = total(f"{prefix}prefix_cache_hits_tokens_total", window)
    queries = total(f"{prefix}prefix_cache_queries_tokens_total", window)
    return Recording(
        f"server:vllmeter_{prefix}prefix_cache_hits_per_query:ratio_rate{window}", f"{hits}\n/ ({queries} > 0)"
    )


def increase_with_first(family: str, labels: str, matcher: str = "") -> str:
    """Events in 5 minutes, those that created the series included.

    ``increase()`` of a series that was born inside the window misses its first value.  Here a series that was not
    there 5 minutes ago counts with its whole value, provided that the server's body could be read then (else the whole
    server is new to us, and its lifetime totals would look like events).
    """
    series = f"vllmeter_{family}{matcher}"
    return f"""\
sum without ({labels}) (
  (
    ({series} unless vllmeter_{family} offset 5m)
    and on (job, instance, server) (vllmeter_server_engine_metrics offset 5m)
  )
  or
  increase({series}[5m])
)"""


def groups() -> dict[str, tuple[str, list[Group]]]:
    """File name -> (what it holds, its groups)."""
    info = "max without (version, url) (vllmeter_server_info)"

    def model(series: str) -> str:
        return (
            "sum without (instance, host, server) (\n"
            f"  {series}\n  * on (job, instance, server) group_left (model_name) {info}\n)"
        )

    def model_quantile(family: str, quantile: str) -> str:
        return (
            f"histogram_quantile(\n  {quantile},\n  sum without (instance, host, server) (\n"
            f"    {total(f'{family}_bucket', '5m')}\n"
            f"    * on (job, instance, server) group_left (model_name) {info}\n  )\n)\n"
            f"and (model:vllmeter_{family}_count:rate5m > 0)"
        )

    budget = "server_gpu:vllmeter_gpu_memory_budget_bytes:max"
    used = "server_gpu:vllmeter_gpu_memory_used_bytes:max"
    objective = 'vllmeter_ttft_seconds_bucket{le="<<objective_ttft_bound>>"}'
    over = "server:vllmeter_ttft_over_objective:rate5m"
    counted = "server:vllmeter_ttft_objective_requests:rate5m"

    def baseline(name: str, value: str, family: str, stat: str) -> Recording:
        stored = f"vllmeter_baseline_{family}"
        if stat:
            stored = f'max without (stat) ({stored}{{stat="{stat}"}})'
        return Recording(
            name,
            f"{value}\n/ on (job, instance, server) group_right ()\n"
            f"(({stored} > 0) and on (job, instance, server, scenario) (vllmeter_run_active == 1))",
        )

    return {
        **{
            f"latency-{name}": (
                (
                    f"{title} of each server: rates of count and sum, mean, quantiles, share over each bound.\n"
                    "share_over_* keeps the label le: the share above exactly that bound, for whatever bounds exist."
                ),
                [Group(f"vllmeter-latency-{name}-{w}", latency(families, means, w)) for w in WINDOWS],
            )
            for name, (families, means, title) in LATENCIES.items()
        },
        "throughput": (
            "Tokens and requests a second of each server.",
            [
                *(Group(f"vllmeter-throughput-{w}", throughput(w)) for w in WINDOWS),
                Group(
                    "vllmeter-abandoned",
                    [
                        # An estimate: vLLM does not count requests whose client went away. From the counters of one
                        # moment: recorded rates of two groups are up to an interval apart, and a burst between them
                        # would look abandoned. What runs now and did not run then is under way, not abandoned.
                        Recording(
                            "server:vllmeter_requests_abandoned:rate5m",
                            """\
                            clamp_min(
                              sum without (engine) (rate(vllmeter_ttft_seconds_count[5m]))
                              - sum without (engine, reason) (rate(vllmeter_requests_finished_total[5m]))
                              - clamp_min(
                                sum without (engine) (vllmeter_requests_running)
                                - sum without (engine) (vllmeter_requests_running offset 5m),
                                0
                              ) / 300,
                              0
                            )""",
                        ),
                    ],
                ),
            ],
        ),
        "queue": (
            "Running and waiting requests of each server.",
            [
                Group(
                    "vllmeter-queue",
                    [
                        Recording(
                            "server:vllmeter_requests_running:sum",
                            "sum without (engine) (vllmeter_requests_running)",
                        ),
                        Recording(
                            "server:vllmeter_requests_waiting:sum",
                            "sum without (engine) (vllmeter_requests_waiting)",
                        ),
                        Recording(
                            "server:vllmeter_requests_waiting_capacity:sum",
                            'sum without (engine, reason) (vllmeter_requests_waiting_by_reason{reason="capacity"})',
                        ),
                    ],
                )
            ],
        ),
        "errors": (
            "Requests that fail, counted so that the first failure is not missed.",
            [
                Group(
                    "vllmeter-errors",
                    [
                        Recording(
                            "server:vllmeter_http_requests:rate5m",
                            total("http_requests_total", "5m", "handler, method, status"),
                        ),
                        Recording(
                            "server:vllmeter_http_requests:increase5m",
                            increase_with_first("http_requests_total", "handler, method, status"),
                        ),
                        Recording(
                            "server:vllmeter_http_server_errors:increase5m",
                            increase_with_first("http_requests_total", "handler, method, status", '{status=~"5.."}'),
                        ),
                        Recording(
                            "server:vllmeter_requests_finished:increase5m",
                            increase_with_first("requests_finished_total", "engine, reason"),
                        ),
                        Recording(
                            "server:vllmeter_requests_finished_error:increase5m",
                            increase_with_first("requests_finished_total", "engine, reason", '{reason="error"}'),
                        ),
                        Recording(
                            "server:vllmeter_requests_rejected:increase5m",
                            increase_with_first("requests_rejected_total", "reason"),
                        ),
                        Recording(
                            "server:vllmeter_requests_corrupted:increase5m",
                            increase_with_first("requests_corrupted_total", "engine"),
                        ),
                    ],
                ),
            ],
        ),
        "cache": (
            "KV cache, prefix cache and preemptions of each server.",
            [
                Group(
                    "vllmeter-cache",
                    [
                        *(hit_ratio("", w) for w in WINDOWS),
                        hit_ratio("external_", "5m"),
                        *(
                            Recording(f"server:vllmeter_preemptions:rate{w}", total("preemptions_total", w))
                            for w in WINDOWS
                        ),
                        Recording(
                            "server:vllmeter_preemptions_per_finished_request:ratio_rate5m",
                            """\
                            server:vllmeter_preemptions:rate5m
                            / (sum without (engine, reason) (rate(vllmeter_requests_finished_total[5m])) > 0)""",
                        ),
                        Recording(
                            "server:vllmeter_preemptions_window:max",
                            'max without (window) (vllmeter_preemptions_window{window="60s"})',
                        ),
                        Recording(
                            "server:vllmeter_kv_cache_usage_ratio:max",
                            "max without (engine) (vllmeter_kv_cache_usage_ratio)",
                        ),
                        Recording(
                            "server:vllmeter_kv_cache_usage_peak_ratio:max",
                            'max without (window) (vllmeter_kv_cache_usage_peak_ratio{window="60s"})',
                        ),
                        Recording(
                            "server:vllmeter_kv_cache_free_tokens:sum",
                            "max without (source) (vllmeter_kv_cache_capacity_tokens)\n"
                            "* (1 - avg without (engine) (vllmeter_kv_cache_usage_ratio))",
                        ),
                    ],
                )
            ],
        ),
        "memory": (
            "GPU memory: each server against its budget, each card against the sum, and what is left.",
            [
                Group(
                    "vllmeter-memory",
                    [
                        Recording(used, "max without (source) (vllmeter_server_gpu_memory_used_bytes)"),
                        Recording(budget, "max without (source) (vllmeter_server_gpu_memory_budget_bytes)"),
                        Recording(
                            "server_gpu:vllmeter_gpu_memory_limit_bytes:sum",
                            f"{budget}\n+ max without (source) (vllmeter_server_gpu_memory_allowance_bytes)",
                        ),
                        Recording("server_gpu:vllmeter_gpu_memory_used_per_budget:ratio", f"{used} / ({budget} > 0)"),
                        Recording(
                            "server_gpu:vllmeter_gpu_memory_over_limit_bytes:diff",
                            "vllmeter_server_gpu_memory_high_water_bytes"
                            " - server_gpu:vllmeter_gpu_memory_limit_bytes:sum",
                        ),
                        Recording(
                            "server_gpu:vllmeter_gpu_memory_restart_room_bytes:diff",
                            # What the start-up check of vLLM >= 0.9.1 sees: free memory after the context exists.
                            # A server that is up counts with what it would give back; one whose memory is not
                            # known while it runs gives no value. One that is down has no process, so no card and no
                            # budget any more: for an hour the last ones count.
                            f"""\
(
  {used}
  or
  (last_over_time({budget}[1h]) * 0 and on (job, instance, server) (vllmeter_server_up == 0))
)
+ on (job, instance, gpu, uuid) group_left () vllmeter_gpu_memory_free_bytes
- (
  {budget}
  or
  (last_over_time({budget}[1h]) and on (job, instance, server) (vllmeter_server_up == 0))
)
- (
  max without (part, source) (vllmeter_server_gpu_memory_part_bytes{{part="context"}})
  or max without (part, source) (last_over_time(vllmeter_server_gpu_memory_part_bytes{{part="context"}}[1h]))
  or last_over_time({budget}[1h]) * 0
)""",
                        ),
                        Recording(
                            "gpu:vllmeter_gpu_memory_headroom_bytes:min",
                            "vllmeter_gpu_memory_free_bytes + vllmeter_gpu_memory_used_bytes\n"
                            '- max without (window) (vllmeter_gpu_memory_used_peak_bytes{window="60s"})',
                        ),
                        Recording(
                            "gpu:vllmeter_gpu_memory_committed_per_capacity:ratio",
                            "vllmeter_gpu_memory_committed_bytes\n"
                            "/ (max without (source) (vllmeter_gpu_memory_cuda_total_bytes) > 0)",
                        ),
                        Recording("gpu:vllmeter_gpu_memory_attributed_bytes:sum", f"sum without (server) ({used})"),
                    ],
                )
            ],
        ),
        "contention": (
            "What neighbours on the same card cost (association, not cause), from the exporter's 60 s window.",
            [
                Group(
                    "vllmeter-contention",
                    [
                        Recording(
                            "server_gpu:vllmeter_gpu_contention_ratio:max",
                            'max without (window) (vllmeter_gpu_contention_ratio{window="60s"})',
                        ),
                        Recording(
                            "server_gpu:vllmeter_ttft_contended_per_clear:ratio",
                            'max without (window) (vllmeter_ttft_contended_mean_seconds{window="60s"})\n'
                            '/ (max without (window) (vllmeter_ttft_clear_mean_seconds{window="60s"}) > 0)',
                        ),
                        Recording(
                            "server_gpu:vllmeter_ttft_compared_requests:min",
                            # The smaller side of the comparison.
                            """\
min without (side) (
  label_replace(
    max without (window) (vllmeter_ttft_contended_requests{window="60s"}), "side", "contended", "", ""
  )
  or
  label_replace(
    max without (window) (vllmeter_ttft_clear_requests{window="60s"}), "side", "clear", "", ""
  )
)""",
                        ),
                    ],
                )
            ],
        ),
        "runs": (
            (
                "Load-test runs and what they are compared with. The ratios exist only while a run of the same\n"
                "server and scenario is active."
            ),
            [
                Group(
                    "vllmeter-runs",
                    [
                        Recording(
                            "server:vllmeter_run_active:max",
                            "max without (scenario, run) (vllmeter_run_active)",
                        ),
                        baseline(
                            "server_scenario:vllmeter_ttft_seconds:mean_per_baseline_ratio_rate1m",
                            "server:vllmeter_ttft_seconds:mean_rate1m",
                            "ttft_seconds",
                            "mean",
                        ),
                        baseline(
                            "server_scenario:vllmeter_ttft_seconds:p95_per_baseline_ratio_rate1m",
                            "server:vllmeter_ttft_seconds:p95_rate1m",
                            "ttft_seconds",
                            "p95",
                        ),
                        baseline(
                            "server_scenario:vllmeter_e2e_latency_seconds:mean_per_baseline_ratio_rate1m",
                            "server:vllmeter_e2e_latency_seconds:mean_rate1m",
                            "e2e_seconds",
                            "mean",
                        ),
                        baseline(
                            "server_scenario:vllmeter_generation_tokens:per_baseline_ratio_rate1m",
                            "server:vllmeter_generation_tokens:rate1m",
                            "throughput_tokens_per_second",
                            "",
                        ),
                    ],
                )
            ],
        ),
        "objective": (
            (
                "The TTFT objective: requests above the bound, over windows from 5 minutes to 3 days. Long windows\n"
                "are means of recorded rates, numerator and denominator apart: no rule reads days of raw buckets."
            ),
            [
                Group(
                    "vllmeter-objective",
                    [
                        Recording(
                            counted,
                            f"{total('ttft_seconds_count', '5m')}\n"
                            f"and sum without (engine, le) (rate({objective}[5m]))",
                        ),
                        Recording(
                            "server:vllmeter_ttft_seconds_count:increase1h",
                            "sum without (engine) (increase(vllmeter_ttft_seconds_count[1h]))",
                        ),
                        Recording(
                            over,
                            f"clamp_min(\n  {counted}\n  - sum without (engine, le) (rate({objective}[5m])),\n  0\n)",
                        ),
                        Recording(
                            "server:vllmeter_ttft_over_objective_per_request:ratio_rate5m",
                            f"{over} / ({counted} > 0)",
                        ),
                        *(
                            Recording(
                                f"server:vllmeter_ttft_over_objective_per_request:ratio_rate{w}",
                                f"avg_over_time({over}[{w}])\n/ (avg_over_time({counted}[{w}]) > 0)",
                            )
                            for w in BURN_WINDOWS
                        ),
                    ],
                    interval="1m",
                )
            ],
        ),
        "service": (
            "One-hour figures for comparing service use with the same hour of earlier days, per token.",
            [
                Group(
                    "vllmeter-service",
                    [
                        Recording("server:vllmeter_generation_tokens:rate1h", total("generation_tokens_total", "1h")),
                        Recording("server:vllmeter_prompt_tokens:rate1h", total("prompt_tokens_total", "1h")),
                        Recording(
                            "server:vllmeter_ttft_seconds_per_prompt_token:ratio_rate1h",
                            f"{total('ttft_seconds_sum', '1h')}\n/ (server:vllmeter_prompt_tokens:rate1h > 0)",
                        ),
                        Recording(
                            "server:vllmeter_e2e_latency_seconds_per_generation_token:ratio_rate1h",
                            f"{total('e2e_latency_seconds_sum', '1h')}\n"
                            "/ (server:vllmeter_generation_tokens:rate1h > 0)",
                        ),
                    ],
                    interval="1m",
                )
            ],
        ),
        "fleet": (
            "Roll-ups by host and by model. Sums of sums; quantiles from summed buckets, never from quantiles.",
            [
                Group(
                    "vllmeter-fleet-host",
                    [
                        Recording("host:vllmeter_server_up:sum", "sum without (server) (vllmeter_server_up)"),
                        Recording("host:vllmeter_server_up:count", "count without (server) (vllmeter_server_up)"),
                        *(
                            Recording(f"host:{name}", f"sum without (server) (server:{name})")
                            for name in (
                                "vllmeter_generation_tokens:rate5m",
                                "vllmeter_prompt_tokens:rate5m",
                                "vllmeter_requests_finished:rate5m",
                                "vllmeter_preemptions:rate5m",
                                "vllmeter_requests_running:sum",
                                "vllmeter_requests_waiting:sum",
                            )
                        ),
                        Recording(
                            "host:vllmeter_kv_cache_usage_ratio:max",
                            "max without (server) (server:vllmeter_kv_cache_usage_ratio:max)",
                        ),
                        Recording(
                            "host:vllmeter_gpu_memory_headroom_bytes:min",
                            "min without (gpu, uuid) (gpu:vllmeter_gpu_memory_headroom_bytes:min)",
                        ),
                    ],
                ),
                Group(
                    "vllmeter-fleet-model",
                    [
                        *(
                            Recording(f"model:{name}", model(f"server:{name}"))
                            for name in (
                                "vllmeter_generation_tokens:rate5m",
                                "vllmeter_prompt_tokens:rate5m",
                                "vllmeter_requests_finished:rate5m",
                                "vllmeter_preemptions:rate5m",
                                "vllmeter_requests_running:sum",
                                "vllmeter_requests_waiting:sum",
                                "vllmeter_ttft_seconds_count:rate5m",
                                "vllmeter_ttft_seconds_sum:rate5m",
                                "vllmeter_e2e_latency_seconds_count:rate5m",
                            )
                        ),
                        Recording(
                            "model:vllmeter_ttft_seconds:mean_rate5m",
                            "model:vllmeter_ttft_seconds_sum:rate5m / (model:vllmeter_ttft_seconds_count:rate5m > 0)"
                            " <= <<latency_sane_limit>>",
                        ),
                        *(
                            Recording(f"model:vllmeter_{family}:{label}_rate5m", model_quantile(family, quantile))
                            for family in ("ttft_seconds", "e2e_latency_seconds")
                            for label, quantile in QUANTILES
                        ),
                    ],
                ),
            ],
        ),
    }
