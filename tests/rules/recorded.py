"""What each recording rule must give, worked out by hand from the numbers of :mod:`rules.world`.

Values are rounded where the rule extrapolates (``rate``); promtool compares floats exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rules.cases import RUN
from rules.world import GIB, MIB, Series, change, fleet, host_labels, key_of, per_second, server, steps

SERVERS = (("a", "chat"), ("a", "embed"), ("b", "chat"))
NOTHING: tuple[tuple[Mapping[str, str], float], ...] = ()


@dataclass(frozen=True)
class Question:
    """``name`` at ``at`` seconds must be exactly these series, rounded to ``to``."""

    name: str
    at: int
    answer: Sequence[tuple[Mapping[str, str], float]]
    to: float = 0.0001


@dataclass(frozen=True)
class World:
    """One input and the questions about it."""

    name: str
    series: Series
    questions: Sequence[Question]
    step_ms: int = 5001
    evaluation: str = "15s"


def of(host: str, name: str, **extra: str) -> dict[str, str]:
    return {**host_labels(host), "server": name, **extra}


def card(host: str, name: str = "", **extra: str) -> dict[str, str]:
    own = {"server": name} if name else {}
    return {**host_labels(host), **own, "gpu": "0", "uuid": f"GPU-{host}0", **extra}


def every(value: float, **extra: str) -> list[tuple[dict[str, str], float]]:
    """The same value for each of the three servers."""
    return [(of(host, name, **extra), value) for host, name in SERVERS]


def every_bound(shares: Mapping[str, float]) -> list[tuple[dict[str, str], float]]:
    return [one for le, share in shares.items() for one in every(share, le=le)]


def hosts(a: float, b: float) -> list[tuple[dict[str, str], float]]:
    return [(host_labels("a"), a), (host_labels("b"), b)]


def cards(a: float, b: float) -> list[tuple[dict[str, str], float]]:
    return [(card("a"), a), (card("b"), b)]


def models(chat: float, embed: float) -> list[tuple[dict[str, str], float]]:
    return [
        ({"job": "vllmeter", "model_name": "org/chat"}, chat),
        ({"job": "vllmeter", "model_name": "org/embed"}, embed),
    ]


def busy() -> World:
    """Two requests a second on every server for twelve minutes."""
    at = 720
    out: list[Question] = []

    def ask(name: str, answer: Sequence[tuple[Mapping[str, str], float]], to: float = 0.0001) -> None:
        out.append(Question(name, at, answer, to))

    latencies = {
        # family: (requests a second, mean, p50, p95, p99, share over each bound)
        "ttft_seconds": (
            2,
            0.25,
            0.1,
            0.8125,  # 0.5 + 0.5 * (0.95 - 0.9) / 0.08
            1.7895,  # 1 + 1.5 * (0.99 - 0.98) / 0.019
            {"0.1": 0.5, "0.5": 0.1, "1.0": 0.02, "2.5": 0.001, "10.0": 0},
        ),
        "inter_token_latency_seconds": (98, 0.02, 0.01, 0.05, 0.09, {"0.01": 0.5, "0.05": 0.05, "0.1": 0}),
        "e2e_latency_seconds": (
            2,
            1.5,
            0.825,  # 0.3 + 0.7 * 0.3 / 0.4
            4.7838,  # 1 + 4 * 0.35 / 0.37
            41.6667,  # 5 + 55 * 0.02 / 0.03
            {"0.3": 0.8, "1.0": 0.4, "5.0": 0.03, "60.0": 0},
        ),
        "queue_time_seconds": (2, 0.05, 0.1667, 0.65, 0.93, {"0.3": 0.1, "1.0": 0}),
    }
    for window in ("1m", "5m"):
        for family, (rate, mean, p50, p95, p99, over) in latencies.items():
            name = f"server:vllmeter_{family}"
            ask(f"{name}_count:rate{window}", every(rate))
            ask(f"{name}_sum:rate{window}", every(round(rate * mean, 4)))
            ask(f"{name}:mean_rate{window}", every(mean))
            ask(f"{name}:p50_rate{window}", every(p50))
            ask(f"{name}:p95_rate{window}", every(p95))
            ask(f"{name}:p99_rate{window}", every(p99))
            ask(f"{name}:share_over_rate{window}", every_bound(over))
        ask(f"server:vllmeter_prefill_time_seconds:mean_rate{window}", every(0.2))
        ask(f"server:vllmeter_decode_time_seconds:mean_rate{window}", every(1.25))
        ask(f"server:vllmeter_time_per_output_token_seconds:mean_rate{window}", every(0.021))
        ask(f"server:vllmeter_generation_tokens:rate{window}", every(100))
        ask(f"server:vllmeter_prompt_tokens:rate{window}", every(200))
        ask(f"server:vllmeter_prompt_tokens_computed:rate{window}", every(80))
        ask(f"server:vllmeter_requests_finished:rate{window}", every(2))
        ask(f"server:vllmeter_preemptions:rate{window}", every(0.02))
        ask(f"server:vllmeter_prefix_cache_hits_per_query:ratio_rate{window}", every(0.6))
    ask("server:vllmeter_external_prefix_cache_hits_per_query:ratio_rate5m", every(0.25))
    ask("server:vllmeter_preemptions_per_finished_request:ratio_rate5m", every(0.01))
    ask("server:vllmeter_preemptions_window:max", every(0))
    ask("server:vllmeter_kv_cache_usage_ratio:max", every(0.3))
    ask("server:vllmeter_kv_cache_usage_peak_ratio:max", every(0.35))
    ask("server:vllmeter_kv_cache_free_tokens:sum", every(28000))
    running = [(of("a", "chat"), 6), (of("a", "embed"), 3), (of("b", "chat"), 6)]
    ask("server:vllmeter_requests_running:sum", running)
    ask("server:vllmeter_requests_waiting:sum", every(0))
    ask("server:vllmeter_requests_waiting_capacity:sum", every(0))
    ask("server:vllmeter_requests_abandoned:rate5m", every(0), 0.01)
    ask("server:vllmeter_http_requests:rate5m", every(2.1))
    ask("server:vllmeter_http_requests:increase5m", every(630), 0.01)
    ask("server:vllmeter_http_server_errors:increase5m", NOTHING)
    ask("server:vllmeter_requests_finished:increase5m", every(600), 0.01)
    ask("server:vllmeter_requests_finished_error:increase5m", every(0))
    ask("server:vllmeter_requests_rejected:increase5m", NOTHING)
    ask("server:vllmeter_requests_corrupted:increase5m", every(0))

    def servers_on_card(value: float) -> list[tuple[dict[str, str], float]]:
        return [(card(host, name), value) for host, name in SERVERS]

    free = 24 * GIB - 500 * MIB - 20 * GIB
    ask("server_gpu:vllmeter_gpu_memory_used_bytes:max", servers_on_card(5 * GIB), 1)
    ask("server_gpu:vllmeter_gpu_memory_budget_bytes:max", servers_on_card(6 * GIB), 1)
    ask("server_gpu:vllmeter_gpu_memory_limit_bytes:sum", servers_on_card(6 * GIB + 600 * MIB), 1)
    ask("server_gpu:vllmeter_gpu_memory_used_per_budget:ratio", servers_on_card(0.8333))
    ask("server_gpu:vllmeter_gpu_memory_over_limit_bytes:diff", servers_on_card(-GIB - 600 * MIB), 1)
    room = 5 * GIB + free - 6 * GIB - 600 * MIB
    ask("server_gpu:vllmeter_gpu_memory_restart_room_bytes:diff", servers_on_card(room), 1)
    ask("gpu:vllmeter_gpu_memory_headroom_bytes:min", cards(free - GIB, free - GIB), 1)
    ask("gpu:vllmeter_gpu_memory_committed_per_capacity:ratio", cards(0.8506, 0.8506))
    ask("gpu:vllmeter_gpu_memory_attributed_bytes:sum", cards(10 * GIB, 5 * GIB), 1)
    ask("server_gpu:vllmeter_gpu_contention_ratio:max", servers_on_card(0.3))
    ask("server_gpu:vllmeter_ttft_contended_per_clear:ratio", servers_on_card(1.08))
    ask("server_gpu:vllmeter_ttft_compared_requests:min", servers_on_card(50))

    ask("server:vllmeter_run_active:max", NOTHING)
    ask("server:vllmeter_ttft_objective_requests:rate5m", every(2))
    ask("server:vllmeter_ttft_over_objective:rate5m", every(0.002))
    ask("server:vllmeter_ttft_seconds_count:increase1h", every(1430), 10)  # 2 a second from 5 s to 720 s
    for window in ("5m", "30m", "1h", "2h", "6h", "1d", "3d"):
        ask(f"server:vllmeter_ttft_over_objective_per_request:ratio_rate{window}", every(0.001))

    ask("host:vllmeter_server_up:sum", hosts(2, 1))
    ask("host:vllmeter_server_up:count", hosts(2, 1))
    ask("host:vllmeter_generation_tokens:rate5m", hosts(200, 100))
    ask("host:vllmeter_prompt_tokens:rate5m", hosts(400, 200))
    ask("host:vllmeter_requests_finished:rate5m", hosts(4, 2))
    ask("host:vllmeter_preemptions:rate5m", hosts(0.04, 0.02))
    ask("host:vllmeter_requests_running:sum", hosts(9, 6))
    ask("host:vllmeter_requests_waiting:sum", hosts(0, 0))
    ask("host:vllmeter_kv_cache_usage_ratio:max", hosts(0.3, 0.3))
    ask("host:vllmeter_gpu_memory_headroom_bytes:min", hosts(free - GIB, free - GIB), 1)
    ask("model:vllmeter_generation_tokens:rate5m", models(200, 100))
    ask("model:vllmeter_prompt_tokens:rate5m", models(400, 200))
    ask("model:vllmeter_requests_finished:rate5m", models(4, 2))
    ask("model:vllmeter_preemptions:rate5m", models(0.04, 0.02))
    ask("model:vllmeter_requests_running:sum", models(12, 3))
    ask("model:vllmeter_requests_waiting:sum", models(0, 0))
    ask("model:vllmeter_ttft_seconds_count:rate5m", models(4, 2))
    ask("model:vllmeter_ttft_seconds_sum:rate5m", models(1, 0.5))
    ask("model:vllmeter_e2e_latency_seconds_count:rate5m", models(4, 2))
    ask("model:vllmeter_ttft_seconds:mean_rate5m", models(0.25, 0.25))
    for family in ("ttft_seconds", "e2e_latency_seconds"):
        _, _, p50, p95, p99, _ = latencies[family]
        for label, value in (("p50", p50), ("p95", p95), ("p99", p99)):
            ask(f"model:vllmeter_{family}:{label}_rate5m", models(value, value))
    return World("two requests a second everywhere", fleet(busy=True), out)


IDLE_ABSENT = (
    "server:vllmeter_{family}:{stat}_rate{window}",
    "server:vllmeter_prefix_cache_hits_per_query:ratio_rate1m",
    "server:vllmeter_prefix_cache_hits_per_query:ratio_rate5m",
    "server:vllmeter_external_prefix_cache_hits_per_query:ratio_rate5m",
    "server:vllmeter_preemptions_per_finished_request:ratio_rate5m",
    "server:vllmeter_prefill_time_seconds:mean_rate1m",
    "server:vllmeter_prefill_time_seconds:mean_rate5m",
    "server:vllmeter_decode_time_seconds:mean_rate1m",
    "server:vllmeter_decode_time_seconds:mean_rate5m",
    "server:vllmeter_time_per_output_token_seconds:mean_rate1m",
    "server:vllmeter_time_per_output_token_seconds:mean_rate5m",
    "server_gpu:vllmeter_ttft_contended_per_clear:ratio",
    "model:vllmeter_ttft_seconds:mean_rate5m",
    "model:vllmeter_ttft_seconds:p95_rate5m",
    "model:vllmeter_e2e_latency_seconds:p95_rate5m",
    "server:vllmeter_ttft_over_objective_per_request:ratio_rate5m",
    "server:vllmeter_ttft_over_objective_per_request:ratio_rate30m",
    "server:vllmeter_ttft_over_objective_per_request:ratio_rate1h",
    "server:vllmeter_ttft_over_objective_per_request:ratio_rate2h",
    "server:vllmeter_ttft_over_objective_per_request:ratio_rate6h",
    "server:vllmeter_ttft_over_objective_per_request:ratio_rate1d",
    "server:vllmeter_ttft_over_objective_per_request:ratio_rate3d",
)


def idle() -> World:
    """No request at all: ratios, means and quantiles are absent, never NaN; rates are 0."""
    names: list[str] = []
    for pattern in IDLE_ABSENT:
        if "{" not in pattern:
            names.append(pattern)
            continue
        names += [
            pattern.format(family=family, stat=stat, window=window)
            for family in ("ttft_seconds", "inter_token_latency_seconds", "e2e_latency_seconds", "queue_time_seconds")
            for stat in ("mean", "p50", "p95", "p99", "share_over")
            for window in ("1m", "5m")
        ]
    questions = [Question(name, 720, NOTHING) for name in names]
    questions += [
        Question("server:vllmeter_generation_tokens:rate1m", 720, every(0)),
        Question("server:vllmeter_requests_finished:rate5m", 720, every(0)),
        Question("server:vllmeter_ttft_over_objective:rate5m", 720, every(0)),
    ]
    return World("no request at all", fleet(busy=False), questions)


def odd() -> World:
    """One server with everything that the healthy fleet lacks; the others must not change."""
    changes: dict[str, str | None] = {
        **RUN,
        'run_active{server="chat", scenario="other", run="r2"}': "0",
        'baseline_ttft_seconds{server="chat", scenario="short", stat="mean"}': "0.2",
        'baseline_ttft_seconds{server="chat", scenario="short", stat="p95"}': "0.65",
        'baseline_ttft_seconds{server="chat", scenario="short", stat="p50"}': "99",
        'baseline_e2e_seconds{server="chat", scenario="short", stat="mean"}': "1.2",
        'baseline_e2e_seconds{server="chat", scenario="short", stat="p95"}': "99",
        'baseline_throughput_tokens_per_second{server="chat", scenario="short"}': "80",
        # Another scenario has a baseline, and its run is over.
        'baseline_ttft_seconds{server="chat", scenario="other", stat="mean"}': "0.1",
        'baseline_ttft_seconds{server="chat", scenario="other", stat="p95"}': "0.1",
        'baseline_e2e_seconds{server="chat", scenario="other", stat="mean"}': "0.1",
        'baseline_throughput_tokens_per_second{server="chat", scenario="other"}': "1",
        # A baseline of 0 is no baseline.
        'baseline_ttft_seconds{server="embed", scenario="short", stat="mean"}': "0",
        'baseline_ttft_seconds{server="embed", scenario="short", stat="p95"}': "0",
        'baseline_e2e_seconds{server="embed", scenario="short", stat="mean"}': "0",
        'baseline_throughput_tokens_per_second{server="embed", scenario="short"}': "0",
        'run_active{server="embed", scenario="short", run="r3"}': "1",
        'requests_waiting{engine="0"}': "7",
        'requests_waiting{engine="1"}': "4",
        'requests_waiting_by_reason{engine="0", reason="capacity"}': "5",
        'requests_waiting_by_reason{engine="1", reason="capacity"}': "1",
        'requests_waiting_by_reason{reason="deferred"}': "50",
        'kv_cache_usage_ratio{engine="1"}': "0.9",
        'preemptions_window{window="60s"}': "12",
        'requests_finished_total{reason="stop"}': per_second(0.5),
        'requests_finished_total{engine="0", reason="error"}': per_second(0.01),
        'http_requests_total{server="chat", handler="/v1/completions", method="POST", status="5xx"}': (
            f"_x{steps(500)} 4"
        ),
        # New series that are no errors: they count as requests, and only there.
        'http_requests_total{server="chat", handler="/v1/embeddings", method="POST", status="2xx"}': (
            f"_x{steps(500)} 7"
        ),
        'requests_finished_total{server="chat", engine="0", reason="repetition"}': f"_x{steps(500)} 5",
        'requests_rejected_total{server="chat", reason="max_num_queued_reqs"}': f"_x{steps(500)} 3",
        'requests_rejected_total{server="chat", reason="max_num_queued_tokens"}': f"_x{steps(600)} 2",
        'requests_corrupted_total{engine="1"}': f"0x{steps(500)} 1",
        # The mean of e2e is uptime-sized: a negative interval was observed (vLLM issue 49135).
        'e2e_latency_seconds_sum{engine="0"}': per_second(20000),
        "prefill_time_seconds_sum": per_second(20000),
        "decode_time_seconds_sum": per_second(20000),
        "time_per_output_token_seconds_sum": per_second(20000),
        "inter_token_latency_seconds_sum": per_second(20000 * 49),
        "queue_time_seconds_sum": per_second(20000),
        # Buckets and count disagree for a moment: never a negative share.
        'ttft_seconds_bucket{le="10.0"}': per_second(1.1),
        'ttft_seconds_bucket{le="2.5"}': per_second(1.1),
        # Memory: one source too many, no context known, budget of 0.
        'server_gpu_memory_used_bytes{server="chat", gpu="0", uuid="GPU-a0", source="estimate"}': f"{4 * GIB}",
        'server_gpu_memory_part_bytes{part="context"}': None,
        'server_gpu_memory_budget_bytes{server="embed"}': "0",
        'gpu_memory_cuda_total_bytes{host="b"}': "0",
        'ttft_clear_mean_seconds{window="60s"}': "0",
        'ttft_clear_requests{window="60s"}': "11",
        'kv_cache_capacity_tokens{server="chat", source="log"}': "50000",
    }
    at = 720
    chat, embed, far = of("a", "chat"), of("a", "embed"), of("b", "chat")
    others = [(embed, 0.0), (far, 0.0)]

    def scenario(value: float) -> list[tuple[dict[str, str], float]]:
        return [(of("a", "chat", scenario="short"), value)]

    questions = [
        Question("server:vllmeter_run_active:max", at, [(of("a", "chat"), 1), (of("a", "embed"), 1)]),
        Question("server_scenario:vllmeter_ttft_seconds:mean_per_baseline_ratio_rate1m", at, scenario(1.25)),
        Question("server_scenario:vllmeter_generation_tokens:per_baseline_ratio_rate1m", at, scenario(1.25)),
        Question("server_scenario:vllmeter_e2e_latency_seconds:mean_per_baseline_ratio_rate1m", at, NOTHING),
        Question("server:vllmeter_requests_waiting:sum", at, [(chat, 11), *others]),
        Question("server:vllmeter_requests_waiting_capacity:sum", at, [(chat, 6), *others]),
        Question("host:vllmeter_requests_waiting:sum", at, hosts(11, 0)),
        Question("model:vllmeter_requests_waiting:sum", at, models(11, 0)),
        Question("server:vllmeter_kv_cache_usage_ratio:max", at, [(chat, 0.9), (embed, 0.3), (far, 0.3)]),
        Question("host:vllmeter_kv_cache_usage_ratio:max", at, hosts(0.9, 0.3)),
        # 50000 tokens over both engines, of which 0.6 are used on average.
        Question("server:vllmeter_kv_cache_free_tokens:sum", at, [(chat, 20000), (embed, 28000), (far, 28000)]),
        Question("server:vllmeter_preemptions_window:max", at, [(chat, 12), *others]),
        # 2 first tokens a second, 1.01 finished.
        Question("server:vllmeter_requests_abandoned:rate5m", at, [(chat, 0.99), *others], 0.01),
        Question("server:vllmeter_http_server_errors:increase5m", at, [(chat, 4)]),
        Question("server:vllmeter_http_requests:increase5m", at, [(chat, 641), (embed, 630), (far, 630)], 0.01),
        Question("server:vllmeter_requests_finished_error:increase5m", at, [(chat, 3), *others], 0.01),
        Question("server:vllmeter_requests_finished:increase5m", at, [(chat, 308), (embed, 600), (far, 600)], 0.01),
        Question("server:vllmeter_requests_rejected:increase5m", at, [(chat, 5)]),
        Question("server:vllmeter_requests_corrupted:increase5m", at, [(chat, 1), *others], 0.1),
        *(
            Question(f"server:vllmeter_{family}:mean_rate{window}", at, [(embed, mean), (far, mean)])
            for window in ("1m", "5m")
            for family, mean in (
                ("e2e_latency_seconds", 1.5),
                ("inter_token_latency_seconds", 0.02),
                ("queue_time_seconds", 0.05),
                ("prefill_time_seconds", 0.2),
                ("decode_time_seconds", 1.25),
                ("time_per_output_token_seconds", 0.021),
            )
        ),
        Question('server:vllmeter_ttft_seconds:share_over_rate1m{le="10.0"}', at, every(0, le="10.0")),
        Question("server:vllmeter_ttft_over_objective:rate5m", at, [(chat, 0), (embed, 0.002), (far, 0.002)]),
        Question(
            "server_gpu:vllmeter_gpu_memory_used_bytes:max",
            at,
            [(card("a", "chat"), 5 * GIB), (card("a", "embed"), 5 * GIB), (card("b", "chat"), 5 * GIB)],
            1,
        ),
        Question(
            "server_gpu:vllmeter_gpu_memory_used_per_budget:ratio",
            at,
            [(card("a", "chat"), 0.8333), (card("b", "chat"), 0.8333)],
        ),
        # Without a known context the room is 600 MiB larger; embed has no budget to need.
        Question(
            "server_gpu:vllmeter_gpu_memory_restart_room_bytes:diff",
            at,
            [
                (card("a", "chat"), 3 * GIB - 500 * MIB),
                (card("a", "embed"), 9 * GIB - 1100 * MIB),
                (card("b", "chat"), 3 * GIB - 1100 * MIB),
            ],
            1,
        ),
        Question("gpu:vllmeter_gpu_memory_committed_per_capacity:ratio", at, [(card("a"), 0.8506)]),
        Question(
            "server_gpu:vllmeter_ttft_contended_per_clear:ratio",
            at,
            [(card("a", "embed"), 1.08), (card("b", "chat"), 1.08)],
        ),
        Question(
            "server_gpu:vllmeter_ttft_compared_requests:min",
            at,
            [(card("a", "chat"), 11), (card("a", "embed"), 50), (card("b", "chat"), 50)],
        ),
    ]
    return World("one server with everything odd", change(fleet(), changes), questions)


def under_way() -> World:
    """2 first tokens and 1.6 ends a second; 60 requests more than five minutes ago run now and are not abandoned."""
    changes: dict[str, str | None] = {
        'requests_finished_total{reason="stop"}': per_second(0.8),
        'requests_running{engine="0"}': f"3x{steps(600)} 63",
    }
    left = [(of("a", "chat"), 0.2), (of("a", "embed"), 0.0), (of("b", "chat"), 0.0)]
    return World(
        "a burst under way",
        change(fleet(), changes),
        [Question("server:vllmeter_requests_abandoned:rate5m", 720, left, 0.01)],
    )


def e2e_in_run() -> World:
    """The ratio of end-to-end latency, which :func:`odd` cannot show."""
    changes = {**RUN, 'baseline_e2e_seconds{server="chat", scenario="short", stat="mean"}': "1.2"}
    wrong = {
        'baseline_e2e_seconds{server="chat", scenario="short", stat="p50"}': "9",
        'baseline_ttft_seconds{server="chat", scenario="short", stat="p95"}': "0.65",
        'baseline_ttft_seconds{server="chat", scenario="short", stat="mean"}': "7",
    }
    # One model is served by an uptime-sized mean; the other is fine.
    broken = {
        'ttft_seconds_sum{server="embed"}': per_second(40000),
        # Its buckets are its own: none at the bound of the objective.
        'ttft_seconds_bucket{server="chat", le="2.5"}': None,
    }
    return World(
        "end-to-end latency against its baseline",
        change(fleet(), {**changes, **wrong, **broken}),
        [
            Question(
                "server_scenario:vllmeter_e2e_latency_seconds:mean_per_baseline_ratio_rate1m",
                720,
                [(of("a", "chat", scenario="short"), 1.25)],
            ),
            Question(
                "server_scenario:vllmeter_ttft_seconds:p95_per_baseline_ratio_rate1m",
                720,
                [(of("a", "chat", scenario="short"), 1.25)],
            ),
            Question("model:vllmeter_ttft_seconds:mean_rate5m", 720, models(0.25, 0)[:1]),
            Question(
                "server:vllmeter_ttft_objective_requests:rate5m", 720, [(of("a", "embed"), 2), (of("b", "chat"), 2)]
            ),
            Question(
                "server:vllmeter_ttft_seconds:mean_rate5m", 720, [(of("a", "chat"), 0.25), (of("b", "chat"), 0.25)]
            ),
            Question(
                "server:vllmeter_ttft_seconds:mean_rate1m", 720, [(of("a", "chat"), 0.25), (of("b", "chat"), 0.25)]
            ),
        ],
    )


def restart() -> World:
    """Counters that fall to 0 in the window: a rate is never negative and loses at most the gap."""
    series = {
        key_of("generation_tokens_total", of("a", "chat", engine="0")): (
            f"{per_second(100)}x{steps(600)} _x7 {per_second(100)}"
        )
    }
    return World(
        "a restart inside the window",
        series,
        [
            Question("round(server:vllmeter_generation_tokens:rate5m / 10)", 780, [(of("a", "chat"), 9)], 1),
            Question("server:vllmeter_generation_tokens:rate1m > bool 0", 780, [(of("a", "chat"), 1)]),
        ],
    )


def down() -> World:
    """A server that is down counts with its budget and gives nothing back; one of unknown size is left out."""
    series = change(
        fleet(),
        {
            "server_up": "0",
            "server_gpu_memory_used_bytes": None,
            # without a process there is no row of its card any more, and the last budget and context count
            "server_gpu_memory_budget_bytes": f"{6 * GIB}x{steps(300)} stale",
            'server_gpu_memory_part_bytes{part="context"}': f"{600 * MIB}x{steps(300)} stale",
            'server_gpu_memory_used_bytes{server="embed"}': None,
        },
    )
    free = 24 * GIB - 500 * MIB - 20 * GIB
    return World(
        "a server that is down",
        series,
        [
            Question(
                "server_gpu:vllmeter_gpu_memory_restart_room_bytes:diff",
                720,
                [
                    (card("a", "chat"), free - 6 * GIB - 600 * MIB),
                    (card("b", "chat"), 5 * GIB + free - 6 * GIB - 600 * MIB),
                ],
                1,
            ),
            Question("host:vllmeter_server_up:sum", 720, hosts(1, 1)),
            Question("host:vllmeter_server_up:count", 720, hosts(2, 1)),
        ],
    )


def hour() -> World:
    """The one-hour figures of service use, sampled for 75 minutes; the second server generates nothing."""
    series: Series = {}
    server(series, "a", "chat", busy=True, engines=("0", "1"))
    server(series, "a", "embed", busy=False, engines=("0",))
    wanted = ("prompt_tokens_total", "generation_tokens_total", "ttft_seconds_sum", "e2e_latency_seconds_sum")
    series = {one: values for one, values in series.items() if one[0].removeprefix("vllmeter_") in wanted}
    at = 4500
    chat, embed = of("a", "chat"), of("a", "embed")
    return World(
        "an hour of service",
        series,
        [
            Question("server:vllmeter_generation_tokens:rate1h", at, [(chat, 100), (embed, 0)]),
            Question("server:vllmeter_prompt_tokens:rate1h", at, [(chat, 200), (embed, 0)]),
            Question("server:vllmeter_ttft_seconds_per_prompt_token:ratio_rate1h", at, [(chat, 0.0025)]),
            Question("server:vllmeter_e2e_latency_seconds_per_generation_token:ratio_rate1h", at, [(chat, 0.03)]),
        ],
        evaluation="1m",
    )


def worlds() -> list[World]:
    return [busy(), idle(), odd(), under_way(), e2e_in_run(), restart(), down(), hour()]
