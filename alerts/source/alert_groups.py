# ruff: noqa: INP001
"""The alerts, by file.  Numbers are placeholders from thresholds.yaml; links and severities of pairs come from model.

Rules of thumb that every expression follows:

* an absent or NaN value fires nothing, except where absence is the event (exporter gone, server gone);
* an event is caught by a timestamp, a windowed count or a state, never by ``increase()`` of a series that may be new;
* joins name ``job, instance, server``: server names repeat across hosts;
* what load alone can cause is ``load_caused``: during a run of that server it is written as ``info``.
"""

from __future__ import annotations

from model import Alert, Group

OVERVIEW = "vllmeter-overview"
LATENCY = "vllmeter-latency"
MEMORY = "vllmeter-memory"
CACHE = "vllmeter-cache"
LOAD_TEST = "vllmeter-load-test"
EXPORTER = "vllmeter-exporter"

ON = "on (job, instance, server)"


def state(name: str) -> str:
    """The servers in this state, without the label ``state``."""
    return f'max without (state) (vllmeter_server_state{{state="{name}"}}) == 1'


def window(family: str, seconds: str = "60s") -> str:
    """A windowed gauge of the exporter without its ``window`` label."""
    return f'max without (window) (vllmeter_{family}{{window="{seconds}"}})'


def over_bound(seconds: str) -> str:
    """Share of requests over the objective in a window of the exporter."""
    matchers = f'window="{seconds}", bound="<<objective_ttft_bound>>"'
    return f"max without (window, bound) (vllmeter_ttft_window_share_over_ratio{{{matchers}}})"


SERVERS = [
    Alert(
        "VllmeterServerUnreachable",
        "critical",
        "symptom",
        "1m",
        f"""
vllmeter_server_up == 0
unless {ON} (vllmeter_server_healthy >= 0)
unless {ON} ({state("starting")})
unless {ON} ({state("engine_dead")})
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} is unreachable",
        """Neither /metrics nor /health of {{ $labels.server }} has answered for a minute, and no start-up is in
        progress. Its clients get connection errors, or wait for an answer that does not come.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterServerStartsSlowly",
        "warning",
        "symptom",
        "15m",
        state("starting"),
        "vLLM server {{ $labels.server }} on {{ $labels.host }} has been starting for 15 minutes",
        """The process of {{ $labels.server }} exists but does not answer yet. Loading weights and compiling takes
        half a minute to a few minutes; longer means a slow download or a start that hangs.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterServerMetricsBroken",
        "warning",
        "cause",
        "2m",
        f"vllmeter_server_up == 0 and {ON} (vllmeter_server_healthy == 1)",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} is healthy, but its /metrics cannot be read",
        """/health of {{ $labels.server }} answers 200 while /metrics fails or hangs. Its API server works; whether its
        engine does, and latency, queue and cache, is not known.""",
        EXPORTER,
    ),
    Alert(
        "VllmeterEngineDead",
        "critical",
        "symptom",
        "15s",
        state("engine_dead"),
        "The engine of vLLM server {{ $labels.server }} on {{ $labels.host }} is dead",
        """The API server of {{ $labels.server }} still answers, its EngineCore process does not exist any more.
        Every request fails until the server is restarted. Its gauges are frozen, so vllmeter does not show them.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterServerUnhealthy",
        "critical",
        "symptom",
        "1m",
        f"vllmeter_server_healthy == 0 unless {ON} ({state('engine_dead')})",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} answers its health check with an error",
        "/health of {{ $labels.server }} has answered with something else than 200 for a minute.",
        OVERVIEW,
    ),
    Alert(
        "VllmeterServerStuck",
        "critical",
        "symptom",
        "15s",
        # whoever answers neither /metrics nor /health is unreachable: one page, not two
        f"{state('stuck')} unless {ON} (vllmeter_server_up == 0)",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} has requests and makes no progress",
        """{{ $labels.server }} holds running or waiting requests, but no token was produced, no request finished and
        no engine activity was seen. It will not recover by itself.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterServerProgressUnknown",
        "info",
        "cause",
        "5m",
        # a /metrics that hangs beside a good /health has an alert of its own
        f"{state('unknown_progress')} unless {ON} (vllmeter_server_up == 0)",
        "Whether vLLM server {{ $labels.server }} on {{ $labels.host }} makes progress cannot be told",
        """The counters of {{ $labels.server }} stand still and its processes cannot be seen, so an idle server and a
        hung one look the same. Let the exporter see the host's processes, or switch the canary on.""",
        EXPORTER,
    ),
    Alert(
        "VllmeterServerGaugesStale",
        "info",
        "cause",
        "10m",
        state("stale_gauges"),
        "vLLM server {{ $labels.server }} on {{ $labels.host }} shows old queue and cache gauges",
        """{{ $labels.server }} still reports requests although no client is connected and nothing is computed: vLLM
        keeps the last values after all clients left. Routers that read these gauges avoid an idle server.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterServerRestarted",
        "info",
        "cause",
        "0s",
        # the time stamp is the new process's start: after a start of more than ten minutes only the counter is fresh
        """
        time() - vllmeter_server_last_restart_timestamp_seconds < 600
        or
        (time() - vllmeter_server_last_restart_timestamp_seconds)
        and on (job, instance, server) (increase(vllmeter_server_restarts_total[10m]) > 0)""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} restarted",
        """{{ $labels.server }} restarted {{ $value | humanizeDuration }} ago. Its counters began again at 0, and its
        prefix cache is empty.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterServerRestartedRepeatedly",
        "warning",
        "symptom",
        "0s",
        "increase(vllmeter_server_restarts_total[30m]) > <<restarts_limit>>",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} restarts again and again",
        """{{ $labels.server }} restarted {{ $value | printf "%.0f" }} times within 30 minutes. Each start loads the
        weights again and drops every request in flight.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterEngineMetricsOff",
        "warning",
        "cause",
        "2m",
        "vllmeter_server_engine_metrics == 0",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} answers without engine metrics",
        """/metrics of {{ $labels.server }} answers 200 but holds no engine metric, so queue, cache, latency and their
        alerts are blind. The usual causes are --disable-log-stats and a broken PROMETHEUS_MULTIPROC_DIR.""",
        EXPORTER,
    ),
    Alert(
        "VllmeterUnknownMetricFamilies",
        "info",
        "cause",
        "15m",
        "vllmeter_unmapped_families > 0",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} has metrics that vllmeter does not know",
        """{{ $labels.server }} exposes {{ $value }} engine metric families that this version of vllmeter does not
        map. They are left out, not guessed; the server is probably newer than vllmeter.""",
        EXPORTER,
    ),
]

EXPORTERS = [
    Alert(
        "VllmeterWatchdog",
        "info",
        "meta",
        "0s",
        "vector(1)",
        "Alerts of vllmeter reach this receiver",
        """This alert always fires. When it stops arriving, Prometheus, Alertmanager or the way between them is
        broken: have somebody be told by a dead man's switch.""",
        EXPORTER,
        level="none",
    ),
    Alert(
        "VllmeterExporterDown",
        "critical",
        "symptom",
        "1m",
        'up{job="<job>"} == 0',
        "vllmeter on {{ $labels.instance }} cannot be scraped",
        """Prometheus has not reached the exporter at {{ $labels.instance }} for a minute. Nothing is known about the
        servers and GPUs of that host, and none of their alerts can fire.""",
        EXPORTER,
        level="host",
    ),
    Alert(
        "VllmeterExporterAbsent",
        "critical",
        "symptom",
        "5m",
        'absent(up{job="<job>"})',
        "Prometheus knows no vllmeter at all",
        """No target of the job <job> exists: discovery finds nothing, or the job was removed or renamed. All other
        alerts of vllmeter are silent for that reason.""",
        EXPORTER,
        level="none",
    ),
    Alert(
        "VllmeterExporterGoneFromDiscovery",
        "warning",
        "symptom",
        "5m",
        # An hour of memory; a host that was taken away on purpose stops alerting after it.
        'max_over_time(up{job="<job>"}[1h]) unless up',
        "vllmeter on {{ $labels.instance }} is no longer a target",
        """{{ $labels.instance }} was a target within the last hour and is none now, while Prometheus itself runs. If
        the host was removed on purpose this resolves by itself after an hour.""",
        EXPORTER,
        level="host",
    ),
    Alert(
        "VllmeterNoServers",
        "warning",
        "cause",
        "5m",
        'up{job="<job>"} == 1 unless on (job, instance) vllmeter_server_up',
        "vllmeter on {{ $labels.instance }} watches no server",
        """The exporter at {{ $labels.instance }} answers but shows no vLLM server: its list is empty, or discovery
        found no `vllm serve` process.""",
        EXPORTER,
        level="host",
    ),
    Alert(
        "VllmeterConfigReloadFailed",
        "warning",
        "cause",
        "1m",
        "vllmeter_config_last_reload_successful == 0",
        "vllmeter on {{ $labels.instance }} could not load its configuration",
        """The exporter at {{ $labels.instance }} runs on with the configuration it had before; the new file has an
        error that its log names.""",
        EXPORTER,
        level="host",
    ),
    Alert(
        "VllmeterSamplingLate",
        "warning",
        "cause",
        "30s",
        f"""
(
  vllmeter_sample_age_seconds > <<sample_age_limit>>
  or
  vllmeter_scrape_in_flight_seconds > <<sample_age_limit>>
)
and {ON} ({state("late")})
""",
        "Samples of vLLM server {{ $labels.server }} on {{ $labels.host }} come late",
        """The newest sample of {{ $labels.server }} is {{ $value | humanizeDuration }} old, or a scrape has been
        waiting that long. Its API server is too busy to answer; values are withheld instead of repeated.""",
        EXPORTER,
        load_caused=True,
    ),
    Alert(
        "VllmeterNvmlUnavailable",
        "warning",
        "cause",
        "2m",
        """
vllmeter_nvml_up == 0
unless on (job, instance) vllmeter_nvml_status_info{reason=~"switched off.*|hung|late.*"}
""",
        "vllmeter on {{ $labels.instance }} gets no readings from NVML",
        """GPU memory, budgets and attribution are absent on {{ $labels.instance }}. vllmeter_nvml_status_info says
        why; on a host without a GPU switch NVML off in the configuration.""",
        EXPORTER,
        level="host",
    ),
    Alert(
        "VllmeterNvmlSamplesOld",
        "warning",
        "cause",
        "1m",
        # While a call hangs the exporter says so every second, with nvml_up 0: the age alone would never show it.
        """
        max without (reason) (vllmeter_nvml_status_info{reason="hung"}) == 1
        or
        vllmeter_nvml_sample_age_seconds > <<nvml_age_limit>>
        """,
        "NVML on {{ $labels.instance }} does not return",
        """A driver call of the exporter at {{ $labels.instance }} hangs. GPU values are withheld until it returns.""",
        EXPORTER,
        level="host",
    ),
    Alert(
        "VllmeterAttributionLost",
        "warning",
        "cause",
        "2m",
        f"""
max without (method, reason) (vllmeter_attribution_info{{state!="measured"}})
and {ON} max_over_time(vllmeter_attribution_info{{state="measured"}}[1h])
and {ON} (vllmeter_server_up == 1)
and on (job, instance) (vllmeter_nvml_up == 1)
""",
        "The GPU memory of vLLM server {{ $labels.server }} on {{ $labels.host }} is not measured any more",
        """The processes of {{ $labels.server }} were found on the GPU within the last hour and are not found now
        (attribution is {{ $labels.state }}). Its budget is not watched.""",
        MEMORY,
    ),
]

MEMORIES = [
    Alert(
        "VllmeterServerOverBudget",
        "warning",
        "cause",
        "1m",
        f"""
server_gpu:vllmeter_gpu_memory_over_limit_bytes:diff > <<over_budget_tolerance>>
unless on (job, instance, server, gpu, uuid) vllmeter_server_budget_suspended_info
and {ON} vllmeter_attribution_info{{state="measured"}}
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} took more GPU memory than its budget",
        """{{ $labels.server }} has held {{ $value | humanize1024 }}B more on GPU {{ $labels.gpu }} than its budget and
        what normally comes on top of it (context, graphs where outside). Neighbours lose that memory.""",
        MEMORY,
        level="server_gpu",
    ),
    Alert(
        "VllmeterCardOvercommitted",
        "warning",
        "cause",
        "5m",
        "gpu:vllmeter_gpu_memory_committed_per_capacity:ratio > 1",
        "The budgets on GPU {{ $labels.gpu }} of {{ $labels.host }} exceed the card",
        """The budgets of the servers on GPU {{ $labels.gpu }}, with what comes on top of them, add up to
        {{ $value | humanizePercentage }} of what CUDA can use. Whoever starts or grows last fails.""",
        MEMORY,
        level="gpu",
    ),
    Alert(
        "VllmeterCardNearlyFull",
        "warning",
        "cause",
        "1m",
        "gpu:vllmeter_gpu_memory_headroom_bytes:min < <<card_headroom_floor>>",
        "GPU {{ $labels.gpu }} of {{ $labels.host }} has almost no free memory",
        """At its fullest within the last minute GPU {{ $labels.gpu }} had {{ $value | humanize1024 }}B free. Late
        allocations (workspaces, NCCL, kernels compiled on first use) can fail in any server on it.""",
        MEMORY,
        level="gpu",
    ),
    Alert(
        "VllmeterUnattributedMemoryGrows",
        "warning",
        "cause",
        "5m",
        """
vllmeter_gpu_memory_unattributed_bytes - min_over_time(vllmeter_gpu_memory_unattributed_bytes[1h])
> <<unattributed_growth>>
""",
        "Memory that no process accounts for grows on GPU {{ $labels.gpu }} of {{ $labels.host }}",
        """On GPU {{ $labels.gpu }} {{ $value | humanize1024 }}B more are in use than at the lowest point of the last
        hour without a process that holds them: a process in another namespace, or one that died badly.""",
        MEMORY,
        level="gpu",
    ),
    Alert(
        "VllmeterOrphanedEngine",
        "warning",
        "cause",
        "1m",
        'vllmeter_gpu_memory_other_bytes{orphan="true"} > 0',
        "An orphaned engine holds memory on GPU {{ $labels.gpu }} of {{ $labels.host }}",
        """{{ $labels.program }} holds {{ $value | humanize1024 }}B on GPU {{ $labels.gpu }} although its API server is
        gone. It serves nobody and will not leave by itself.""",
        MEMORY,
        level="gpu",
    ),
    Alert(
        "VllmeterRestartWouldFail",
        "warning",
        "cause",
        "5m",
        f"""
server_gpu:vllmeter_gpu_memory_restart_room_bytes:diff < 0
unless {ON} (max without (engine, state) (vllmeter_server_sleep_state{{state!="awake"}}) == 1)
unless {ON} ({state("starting")})
""",
        "A restart of vLLM server {{ $labels.server }} on {{ $labels.host }} would fail now",
        """On GPU {{ $labels.gpu }} {{ $value | humanize1024 | reReplaceAll "-" "" }}B are missing for a start of
        {{ $labels.server }}: free memory and what it would give back itself are less than its budget. vLLM refuses to
        start below its share.""",
        MEMORY,
        level="server_gpu",
    ),
    Alert(
        "VllmeterWakeUpWouldFail",
        "warning",
        "cause",
        "5m",
        f"""
server_gpu:vllmeter_gpu_memory_restart_room_bytes:diff < 0
and {ON} (max without (engine, state) (vllmeter_server_sleep_state{{state!="awake"}}) == 1)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} could not wake up now",
        """{{ $labels.server }} sleeps, and on GPU {{ $labels.gpu }} {{ $value | humanize1024 | reReplaceAll "-" "" }}B
        are missing for its budget: its neighbours took the room. A wake-up would run out of memory.""",
        MEMORY,
        level="server_gpu",
    ),
    Alert(
        "VllmeterSleepingServerHoldsMemory",
        "warning",
        "cause",
        "2m",
        f"""
server_gpu:vllmeter_gpu_memory_used_per_budget:ratio > <<sleeping_share>>
and {ON} (max without (engine, state) (vllmeter_server_sleep_state{{state!="awake"}}) == 1)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} sleeps but keeps its GPU memory",
        """{{ $labels.server }} says that it sleeps and still holds {{ $value | humanizePercentage }} of its budget on
        GPU {{ $labels.gpu }}. Its neighbours cannot use that memory.""",
        MEMORY,
        level="server_gpu",
    ),
]

CACHES = [
    Alert(
        "VllmeterKvCachePressure",
        "warning",
        "cause",
        "2m",
        f"""
(
  server:vllmeter_requests_waiting_capacity:sum > 0
  or
  (server:vllmeter_requests_waiting:sum > 0 unless server:vllmeter_requests_waiting_capacity:sum)
)
and (server:vllmeter_kv_cache_usage_peak_ratio:max >= <<kv_pressure_usage>>)
unless {ON} ({state("stale_gauges")})
""",
        "Requests wait for KV cache of vLLM server {{ $labels.server }} on {{ $labels.host }}",
        """{{ $value | printf "%.0f" }} requests of {{ $labels.server }} wait for room while its KV cache is at
        <<kv_pressure_usage|percent>> or more. TTFT grows with the queue, and preemptions come next.""",
        CACHE,
        load_caused=True,
    ),
    Alert(
        "VllmeterPreemptionsSeen",
        "info",
        "cause",
        "0s",
        "time() - vllmeter_last_preemption_timestamp_seconds < <<first_preemption_window>>",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} preempted requests",
        """{{ $labels.server }} preempted a request {{ $value | humanizeDuration }} ago. Preempted requests lose their
        KV blocks and are computed again.""",
        CACHE,
    ),
    Alert(
        "VllmeterPreemptionStorm",
        "warning",
        "cause",
        "15s",
        f"""
server:vllmeter_preemptions_window:max >= <<preemption_storm_floor>>
unless (
  server:vllmeter_preemptions_window:max
  <= <<preemption_storm_factor>> * avg_over_time(server:vllmeter_preemptions_window:max[15m] offset 2m)
)
and ({window("requests_waiting_peak")} > 0)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} preempts many requests at once",
        """{{ $value | printf "%.0f" }} requests of {{ $labels.server }} were preempted in the last minute, more than
        <<preemption_storm_factor>> times its mean of the 15 minutes before, while others wait. Each is computed again
        from its first token.""",
        CACHE,
        load_caused=True,
    ),
    Alert(
        "VllmeterPreemptionThrashing",
        "warning",
        "cause",
        "5m",
        """
server:vllmeter_preemptions:rate5m > <<preemption_thrashing_floor>>
and (
  server:vllmeter_preemptions:rate5m
  > <<preemption_thrashing_share>> * server:vllmeter_requests_finished:rate5m
)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} evicts requests faster than it finishes them",
        """{{ $labels.server }} preempts {{ $value | printf "%.2f" }} requests a second, more than
        <<preemption_thrashing_share>> per finished request, for minutes. Much of its work is done twice.""",
        CACHE,
        load_caused=True,
    ),
    Alert(
        "VllmeterPrefixCacheCollapse",
        "warning",
        "cause",
        "10m",
        """
server:vllmeter_prefix_cache_hits_per_query:ratio_rate5m
< <<prefix_collapse_factor>> * (server:vllmeter_prefix_cache_hits_per_query:ratio_rate5m offset 1h)
and (
  (server:vllmeter_prefix_cache_hits_per_query:ratio_rate5m offset 1h) > <<prefix_collapse_earlier>>
)
and (
  sum without (engine) (rate(vllmeter_prefix_cache_queries_tokens_total[5m])) > <<prefix_collapse_traffic>>
)
and (
  sum without (engine) (rate(vllmeter_prefix_cache_queries_tokens_total[5m] offset 1h))
  > <<prefix_collapse_traffic>>
)
""",
        "The prefix cache of vLLM server {{ $labels.server }} on {{ $labels.host }} hits much less than before",
        """{{ $value | humanizePercentage }} of the looked-up tokens of {{ $labels.server }} are found in its prefix
        cache, less than half of an hour ago. Prompts are computed again, and TTFT grows.""",
        CACHE,
        load_caused=True,
    ),
]

LATENCIES = [
    Alert(
        "VllmeterQueueGrowing",
        "warning",
        "symptom",
        "2m",
        f"""
min_over_time(server:vllmeter_requests_waiting:sum[5m]) >= <<queue_floor>>
and (deriv(server:vllmeter_requests_waiting:sum[5m]) > <<queue_growth>>)
unless {ON} ({state("stale_gauges")})
""",
        "The queue of vLLM server {{ $labels.server }} on {{ $labels.host }} keeps growing",
        """Never fewer than {{ $value | printf "%.0f" }} requests of {{ $labels.server }} waited in the
        last 5 minutes, and the queue grows: more arrives than is served. This also shows prefill saturation, at any KV
        usage.""",
        OVERVIEW,
        load_caused=True,
    ),
    Alert(
        "VllmeterTtftJitterHigh",
        "warning",
        "symptom",
        "2m",
        f"""
{window("ttft_jitter_lower_seconds")} > <<jitter_floor>>
and ({window("ttft_jitter_lower_seconds")} > <<jitter_share>> * {window("ttft_window_mean_seconds")})
and ({window("ttft_window_requests")} >= <<jitter_requests>>)
""",
        "First tokens of vLLM server {{ $labels.server }} on {{ $labels.host }} come unevenly",
        """The standard deviation of TTFT of {{ $labels.server }} over the last minute is at least
        {{ $value | humanizeDuration }} (guaranteed lower bound, <<jitter_requests>> requests or more) and over
        <<jitter_share|percent>> of the mean.""",
        LATENCY,
        load_caused=True,
    ),
    Alert(
        "VllmeterTtftObjectiveBurnFast",
        "critical",
        "symptom",
        "2m",
        """
(
  server:vllmeter_ttft_over_objective_per_request:ratio_rate1h > (1 - <<objective_target>>) * <<burn_page_1h>>
  and server:vllmeter_ttft_over_objective_per_request:ratio_rate5m > (1 - <<objective_target>>) * <<burn_page_1h>>
  or
  server:vllmeter_ttft_over_objective_per_request:ratio_rate6h > (1 - <<objective_target>>) * <<burn_page_6h>>
  and server:vllmeter_ttft_over_objective_per_request:ratio_rate30m > (1 - <<objective_target>>) * <<burn_page_6h>>
)
and (server:vllmeter_ttft_objective_requests:rate5m * 300 >= <<objective_requests>>)
and (server:vllmeter_ttft_seconds_count:increase1h >= <<objective_requests_hour>>)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} misses its TTFT objective by far",
        """{{ $value | humanizePercentage }} of the requests of {{ $labels.server }} waited longer than
        <<objective_ttft_bound>> s for their first token. At this pace the error budget of 30 days is gone in days.""",
        LATENCY,
        load_caused=True,
    ),
    Alert(
        "VllmeterTtftObjectiveBurnSlow",
        "warning",
        "symptom",
        "15m",
        """
(
  server:vllmeter_ttft_over_objective_per_request:ratio_rate1d > (1 - <<objective_target>>) * <<burn_ticket_1d>>
  and server:vllmeter_ttft_over_objective_per_request:ratio_rate2h > (1 - <<objective_target>>) * <<burn_ticket_1d>>
  or
  server:vllmeter_ttft_over_objective_per_request:ratio_rate3d > (1 - <<objective_target>>) * <<burn_ticket_3d>>
  and server:vllmeter_ttft_over_objective_per_request:ratio_rate6h > (1 - <<objective_target>>) * <<burn_ticket_3d>>
)
and (server:vllmeter_ttft_objective_requests:rate5m * 300 >= <<objective_requests>>)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} slowly uses up its TTFT error budget",
        """{{ $value | humanizePercentage }} of the requests of {{ $labels.server }} waited longer than
        <<objective_ttft_bound>> s for their first token over a day or more. The error budget of 30 days will not
        last.""",
        LATENCY,
        load_caused=True,
    ),
    Alert(
        "VllmeterTtftObjectiveMissedInRun",
        "info",
        "symptom",
        "15s",
        f"""
{over_bound("60s")} > <<run_objective_share>>
and ({over_bound("15s")} > <<run_objective_share>>)
and ({window("ttft_window_requests")} >= <<objective_requests>>)
and {ON} (server:vllmeter_run_active:max == 1)
""",
        "This run pushes vLLM server {{ $labels.server }} on {{ $labels.host }} over its TTFT objective",
        """{{ $value | humanizePercentage }} of the last minute's requests of {{ $labels.server }} waited longer than
        <<objective_ttft_bound>> s for their first token, and so did those of the last 15 s.""",
        LOAD_TEST,
    ),
    Alert(
        "VllmeterTtftObjectiveNotMeasurable",
        "info",
        "cause",
        "10m",
        "server:vllmeter_ttft_seconds_count:rate5m unless server:vllmeter_ttft_objective_requests:rate5m",
        "The TTFT objective of vLLM server {{ $labels.server }} on {{ $labels.host }} cannot be measured",
        """The TTFT histogram of {{ $labels.server }} has no bound at <<objective_ttft_bound>> s, so the share of
        requests above it is not known and its burn alerts cannot fire.""",
        LATENCY,
    ),
    Alert(
        "VllmeterDecodeStarvation",
        "warning",
        "symptom",
        "15s",
        f"""
{window("inter_token_latency_window_mean_seconds")} > <<starvation_floor>>
and (
  {window("inter_token_latency_window_mean_seconds")}
  > <<starvation_factor>> * (server:vllmeter_inter_token_latency_seconds:mean_rate5m offset 5m)
)
and ({window("prompt_tokens_computed_window")} >= <<starvation_prompt_tokens>>)
and (server:vllmeter_requests_running:sum > 0)
and (server:vllmeter_requests_waiting:sum == 0)
""",
        "Long prefills stall the output of vLLM server {{ $labels.server }} on {{ $labels.host }}",
        """Tokens of {{ $labels.server }} come {{ $value | humanizeDuration }} apart, over <<starvation_factor>> times
        its usual, with an empty queue and much prompt work: running requests wait for other requests' prefills.""",
        LATENCY,
        load_caused=True,
    ),
    Alert(
        "VllmeterNeighbourInterference",
        "info",
        "cause",
        "2m",
        """
server_gpu:vllmeter_ttft_contended_per_clear:ratio > <<neighbour_factor>>
and (server_gpu:vllmeter_ttft_compared_requests:min >= <<neighbour_requests>>)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} is slower while its neighbours compute",
        """In seconds in which another server on GPU {{ $labels.gpu }} computed, the mean TTFT of
        {{ $labels.server }} was {{ $value | printf "%.1f" }} times that of its other seconds. This is association, not
        proof of cause.""",
        LATENCY,
        level="server_gpu",
    ),
]

ERRORS = [
    Alert(
        "VllmeterRequestErrors",
        "critical",
        "symptom",
        "1m",
        """
server:vllmeter_http_server_errors:increase5m >= <<error_floor>>
and (
  server:vllmeter_http_server_errors:increase5m
  > <<error_share>> * server:vllmeter_http_requests:increase5m
)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} answers requests with errors",
        """{{ $value | printf "%.0f" }} requests to {{ $labels.server }} got a 5xx answer within 5 minutes, more than
        <<error_share|percent>> of all.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterRequestsFinishedWithError",
        "warning",
        "symptom",
        "1m",
        """
server:vllmeter_requests_finished_error:increase5m >= <<error_floor>>
and (
  server:vllmeter_requests_finished_error:increase5m
  > <<error_share>> * server:vllmeter_requests_finished:increase5m
)
""",
        "Requests end with an error inside vLLM server {{ $labels.server }} on {{ $labels.host }}",
        """{{ $value | printf "%.0f" }} requests of {{ $labels.server }} finished with the reason "error" within
        5 minutes, more than <<error_share|percent>> of all: the engine gave up on them after they were accepted.""",
        OVERVIEW,
    ),
    Alert(
        "VllmeterRequestsRejected",
        "warning",
        "symptom",
        "0s",
        "server:vllmeter_requests_rejected:increase5m >= 1",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} rejects requests",
        """{{ $value | printf "%.0f" }} requests were refused within 5 minutes because the queue limit of
        {{ $labels.server }} was reached.""",
        OVERVIEW,
        load_caused=True,
    ),
    Alert(
        "VllmeterCorruptedOutputs",
        "warning",
        "symptom",
        "0s",
        "server:vllmeter_requests_corrupted:increase5m >= 1",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} computed NaN",
        """{{ $value | printf "%.0f" }} requests of {{ $labels.server }} had NaN logits within 5 minutes: their
        output is wrong.""",
        OVERVIEW,
    ),
]


def baseline(what: str) -> str:
    """Joins that every comparison with a baseline needs: enough requests, and the warm-up is over."""
    return f"""
and {ON} (server:vllmeter_{what}_count:rate1m * 60 >= <<baseline_requests>>)
and on (job, instance, server, scenario)
(time() - vllmeter_run_start_timestamp_seconds > <<baseline_warm_up>>)
"""


REGRESSIONS = [
    Alert(
        "VllmeterTtftAboveBaseline",
        "warning",
        "symptom",
        "1m",
        "server_scenario:vllmeter_ttft_seconds:mean_per_baseline_ratio_rate1m > <<baseline_factor>>"
        + baseline("ttft_seconds"),
        "TTFT of vLLM server {{ $labels.server }} on {{ $labels.host }} is above its baseline",
        """In the active run of {{ $labels.scenario }} the mean TTFT of {{ $labels.server }} is
        {{ $value | humanizePercentage }} of its stored baseline. `vllmeter compare` tells whether the difference is
        real.""",
        LOAD_TEST,
    ),
    Alert(
        "VllmeterE2eAboveBaseline",
        "warning",
        "symptom",
        "1m",
        "server_scenario:vllmeter_e2e_latency_seconds:mean_per_baseline_ratio_rate1m > <<baseline_factor>>"
        + baseline("e2e_latency_seconds"),
        "End-to-end latency of vLLM server {{ $labels.server }} on {{ $labels.host }} is above its baseline",
        """In the active run of {{ $labels.scenario }} the mean end-to-end latency of {{ $labels.server }} is
        {{ $value | humanizePercentage }} of its stored baseline. `vllmeter compare` tells whether the difference is
        real.""",
        LOAD_TEST,
    ),
    Alert(
        "VllmeterThroughputBelowBaseline",
        "warning",
        "symptom",
        "1m",
        "server_scenario:vllmeter_generation_tokens:per_baseline_ratio_rate1m < <<baseline_throughput_factor>>"
        + baseline("ttft_seconds"),
        "Throughput of vLLM server {{ $labels.server }} on {{ $labels.host }} is below its baseline",
        """In the active run of {{ $labels.scenario }} {{ $labels.server }} generates
        {{ $value | humanizePercentage }} of the tokens per second of its stored baseline. `vllmeter compare` tells
        whether the difference is real.""",
        LOAD_TEST,
    ),
    Alert(
        "VllmeterTtftAboveOwnPast",
        "warning",
        "symptom",
        "15m",
        f"""
server:vllmeter_ttft_seconds_per_prompt_token:ratio_rate1h
> <<past_factor>> * (server:vllmeter_ttft_seconds_per_prompt_token:ratio_rate1h offset 1d)
and (
  server:vllmeter_ttft_seconds_per_prompt_token:ratio_rate1h
  > <<past_factor>> * (server:vllmeter_ttft_seconds_per_prompt_token:ratio_rate1h offset 1w)
)
and (server:vllmeter_prompt_tokens:rate1h > <<past_tokens>>)
and ((server:vllmeter_prompt_tokens:rate1h offset 1d) > <<past_tokens>>)
and ((server:vllmeter_prompt_tokens:rate1h offset 1w) > <<past_tokens>>)
unless {ON} (server:vllmeter_run_active:max == 1)
""",
        "TTFT per prompt token of vLLM server {{ $labels.server }} on {{ $labels.host }} is above its own past",
        """Over the last hour {{ $labels.server }} needed {{ $value | humanizeDuration }} of TTFT per prompt token, over
        <<past_factor>> times the same hour of yesterday and of a week ago.""",
        LATENCY,
    ),
    Alert(
        "VllmeterE2eAboveOwnPast",
        "warning",
        "symptom",
        "15m",
        f"""
server:vllmeter_e2e_latency_seconds_per_generation_token:ratio_rate1h
> <<past_factor>> * (server:vllmeter_e2e_latency_seconds_per_generation_token:ratio_rate1h offset 1d)
and (
  server:vllmeter_e2e_latency_seconds_per_generation_token:ratio_rate1h
  > <<past_factor>> * (server:vllmeter_e2e_latency_seconds_per_generation_token:ratio_rate1h offset 1w)
)
and (server:vllmeter_generation_tokens:rate1h > <<past_tokens>>)
and ((server:vllmeter_generation_tokens:rate1h offset 1d) > <<past_tokens>>)
and ((server:vllmeter_generation_tokens:rate1h offset 1w) > <<past_tokens>>)
unless {ON} (server:vllmeter_run_active:max == 1)
""",
        "Latency per token of vLLM server {{ $labels.server }} on {{ $labels.host }} is above its own past",
        """Over the last hour {{ $labels.server }} needed {{ $value | humanizeDuration }} of end-to-end latency per
        generated token, over <<past_factor>> times the same hour of yesterday and of a week ago.""",
        LATENCY,
    ),
    Alert(
        "VllmeterThroughputBelowOwnPast",
        "warning",
        "symptom",
        "15m",
        f"""
server:vllmeter_generation_tokens:rate1h
< <<past_throughput_factor>> * (server:vllmeter_generation_tokens:rate1h offset 1d)
and (
  server:vllmeter_generation_tokens:rate1h
  < <<past_throughput_factor>> * (server:vllmeter_generation_tokens:rate1h offset 1w)
)
and ((server:vllmeter_generation_tokens:rate1h offset 1d) > <<past_tokens>>)
and ((server:vllmeter_generation_tokens:rate1h offset 1w) > <<past_tokens>>)
and (min_over_time(server:vllmeter_requests_waiting:sum[15m]) > 0)
unless {ON} (server:vllmeter_run_active:max == 1)
""",
        "vLLM server {{ $labels.server }} on {{ $labels.host }} is saturated at a lower throughput than before",
        """Over the last hour {{ $labels.server }} generated {{ $value | printf "%.0f" }} tokens a second while requests
        waited all the time, less than <<past_throughput_factor|percent>> of the same hour of yesterday and of a week
        ago.""",
        OVERVIEW,
    ),
]

GPUS = [
    Alert(
        "VllmeterGpuThrottled",
        "warning",
        "cause",
        "2m",
        'avg_over_time(vllmeter_gpu_throttle{reason=~"hw_.*|.*thermal.*"}[5m]) > <<throttle_share>>',
        "GPU {{ $labels.gpu }} of {{ $labels.host }} holds its clock down",
        """For {{ $value | humanizePercentage }} of the last 5 minutes the clock of GPU {{ $labels.gpu }} was held
        down ({{ $labels.reason }}). Every server on it is slower.""",
        OVERVIEW,
        level="gpu",
    ),
    Alert(
        "VllmeterGpuXid",
        "warning",
        "cause",
        "0s",
        "vllmeter_gpu_xid_last and (time() - vllmeter_gpu_last_xid_timestamp_seconds < 600)",
        "GPU {{ $labels.gpu }} of {{ $labels.host }} reported XID {{ $value }}",
        """The driver reported XID {{ $value }} for GPU {{ $labels.gpu }} within the last 10 minutes. Some codes are an
        application's fault (13, 31, 43), others mean that the card needs a reset (48, 79, 95).""",
        OVERVIEW,
        level="gpu",
    ),
    Alert(
        "VllmeterGpuEccErrors",
        "warning",
        "cause",
        "0s",
        'increase(vllmeter_gpu_ecc_errors_total{kind="uncorrected"}[1h]) > 0',
        "GPU {{ $labels.gpu }} of {{ $labels.host }} has uncorrectable memory errors",
        """GPU {{ $labels.gpu }} counted {{ $value | printf "%.0f" }} uncorrectable ECC errors within an hour. The
        process that held the page is killed, and the page is retired at the next reset.""",
        OVERVIEW,
        level="gpu",
    ),
    Alert(
        "VllmeterGpuVanished",
        "critical",
        "symptom",
        "1m",
        """
last_over_time(vllmeter_gpu_memory_total_bytes[30m]) unless vllmeter_gpu_memory_total_bytes
and on (job, instance) (vllmeter_nvml_up == 1)
""",
        "GPU {{ $labels.gpu }} of {{ $labels.host }} is not there any more",
        """GPU {{ $labels.gpu }} was read within the last 30 minutes and is not now, while NVML works. It fell
        off the bus, or the exporter lost the device.""",
        OVERVIEW,
        level="gpu",
    ),
]


def groups() -> dict[str, tuple[str, list[Group]]]:
    """File name -> (what it holds, its groups)."""
    return {
        "exporter": (
            "Is anything watched at all: the exporter, its sources, and the way of alerts.",
            [Group("vllmeter-alerts-exporter", EXPORTERS)],
        ),
        "server": ("Is each vLLM server there, and does it work.", [Group("vllmeter-alerts-server", SERVERS)]),
        "memory": ("Who holds the GPU memory, against which budget.", [Group("vllmeter-alerts-memory", MEMORIES)]),
        "cache": ("KV cache, preemptions, prefix cache.", [Group("vllmeter-alerts-cache", CACHES)]),
        "latency": ("Queue, TTFT, objective, interference.", [Group("vllmeter-alerts-latency", LATENCIES)]),
        "errors": ("Requests that fail.", [Group("vllmeter-alerts-errors", ERRORS)]),
        "regression": (
            "Worse than a stored baseline (only during a run) or than the server's own past (only without one).",
            [Group("vllmeter-alerts-regression", REGRESSIONS)],
        ),
        "gpu": ("The cards themselves.", [Group("vllmeter-alerts-gpu", GPUS)]),
    }
