"""Overview: the shared card."""

# ruff: noqa: E501 - a text of a panel is one line

from __future__ import annotations

import house
import variables as v
from house import ORANGE, VERMILLION
from layout import Board, Section
from panels import Column, Item, Query, series, stat, table
from queries import CARD, EXPORTER, LEGEND, MINUTE, SERVER_GPU, WINDOW, by_server, of, rate, window
from shared_panels import (
    FROM_EXPORTER,
    card_budgets,
    card_compute,
    card_memory,
    kv_peak,
    preemptions,
    ttft_mean,
    waiting_peak,
)

_ALERTS = f'ALERTS{{{EXPORTER},alertname=~"Vllmeter.+",alertname!="VllmeterWatchdog",alertstate="firing"}}'
COMPUTED = 'source="local_compute"'
_GOOD_BELOW_1 = ((None, house.GREEN), (1, VERMILLION))


def _strip() -> list[Item]:
    return [
        stat(
            "Servers down",
            "Servers whose last /metrics could not be read.",
            [Query(f"sum ({of('server_up')} == bool 0)")],
            unit="short",
            no_data=FROM_EXPORTER,
            steps=_GOOD_BELOW_1,
            height=3,
        ),
        stat(
            "Alerts firing",
            "Alerts of vllmeter that fire in Prometheus; they are listed at the end of this page.",
            [Query(f"count ({_ALERTS})")],
            unit="short",
            no_data="none",
            steps=((None, VERMILLION),),
            height=3,
        ),
        stat(
            "Waiting now",
            "Requests waiting now, all chosen servers.",
            [Query(f"sum ({of('requests_waiting')})")],
            unit="short",
            no_data=FROM_EXPORTER,
            height=3,
        ),
        stat(
            "Slowest TTFT, mean",
            "Largest of the servers' mean times to first token in the window.",
            [Query(f"max ({of('ttft_window_mean_seconds', WINDOW)})")],
            unit="s",
            no_data="no requests",
            height=3,
        ),
        stat(
            "Generated tokens/s",
            "Output tokens per second, all chosen servers.",
            [Query(f"sum (rate({of('generation_tokens_total')}[$__rate_interval]))")],
            unit="short",
            no_data="no generating model",
            height=3,
            decimals=0,
        ),
        stat(
            "Preemptions",
            "Preempted requests in the window, all chosen servers.",
            [Query(f"sum ({of('preemptions_window', WINDOW)})")],
            unit="short",
            no_data=FROM_EXPORTER,
            steps=((None, house.GREEN), (1, ORANGE)),
            height=3,
            decimals=0,
        ),
    ]


def _card_facts() -> list[Item]:
    total = of("gpu_memory_total_bytes", by=CARD)
    return [
        stat(
            "Used of the card",
            "Allocated memory over total memory. vLLM reserves its KV cache at start: this is not load.",
            [Query(f"max ({of('gpu_memory_used_bytes', by=CARD)} / ({total} > 0))")],
            unit="percentunit",
            decimals=1,
            no_data="no NVML",
            height=3,
        ),
        stat(
            "Promised to servers",
            "Sum of all budgets and allowances over what CUDA can use. Above 100 %: not all servers can restart.",
            [
                Query(
                    f"max ({of('gpu_memory_committed_bytes', by=CARD)} / "
                    f"(max without (source) ({of('gpu_memory_cuda_total_bytes', by=CARD)}) > 0))"
                )
            ],
            unit="percentunit",
            decimals=1,
            no_data="a budget is unknown",
            steps=((None, house.GREEN), (1.0, VERMILLION)),
            height=3,
        ),
        stat(
            "Free, least",
            "Free memory at the highest use of the last minute.",
            [
                Query(
                    f"min ({of('gpu_memory_free_bytes', by=CARD)} + {of('gpu_memory_used_bytes', by=CARD)} - "
                    f"{window('gpu_memory_used_peak_bytes', by=CARD, seconds=MINUTE)})"
                )
            ],
            unit="bytes",
            decimals=1,
            no_data="no NVML",
            height=3,
        ),
        stat(
            "Busiest second",
            "Largest utilisation of the card in any sample of the window.",
            [Query(f"max ({window('gpu_utilization_peak_ratio', by=CARD)})")],
            unit="percentunit",
            decimals=0,
            no_data="no NVML",
            height=3,
        ),
        stat(
            "Power",
            "Power draw of the card.",
            [Query(f"max ({of('gpu_power_watts', by=CARD)})")],
            unit="watt",
            decimals=0,
            no_data="not reported",
            height=3,
        ),
        stat(
            "Temperature",
            "Core temperature.",
            [Query(f"max ({of('gpu_temperature_celsius', by=CARD)})")],
            unit="celsius",
            decimals=0,
            no_data="not reported",
            height=3,
        ),
    ]


def _servers() -> Item:
    limit = (
        f"(sum by (job, instance, host, server) (max without (source) ({of('server_gpu_memory_budget_bytes', by=SERVER_GPU)})"
        f" + max without (source) ({of('server_gpu_memory_allowance_bytes', by=SERVER_GPU)})) > 0)"
    )
    used = f"sum by (job, instance, host, server) (max without (source) ({of('server_gpu_memory_used_bytes', by=SERVER_GPU)}))"
    latency = (
        "Latency of ${__value.text}",
        "/d/vllmeter-latency?${__url_time_range}&${datasource:queryparam}&${job:queryparam}&${host:queryparam}&var-server=${__value.raw}",
    )
    memory = (
        "Memory of this server",
        "/d/vllmeter-memory?${__url_time_range}&${datasource:queryparam}&${job:queryparam}&${host:queryparam}&var-server=${__data.fields.Server}",
    )
    cache = (
        "Cache of this server",
        "/d/vllmeter-cache?${__url_time_range}&${datasource:queryparam}&${job:queryparam}&${host:queryparam}&var-server=${__data.fields.Server}",
    )
    return table(
        "Servers",
        "One line per vLLM server. Waiting and KV are 1 s peaks of the window; TTFT, requests, preempted and hits are of the window. Limit = budget + what normally comes on top. Names and cells link to the details.",
        [
            Query(by_server(f"{of('server_state')} == 1", "state"), ref="A"),
            Query(by_server(of("server_info"), "model_name", "version"), ref="B"),
            Query(f"{used} / {limit}", ref="C"),
            Query(by_server(of("requests_running"), how="sum"), ref="D"),
            Query(by_server(window("requests_waiting_peak")), ref="E"),
            Query(by_server(window("kv_cache_usage_peak_ratio")), ref="F"),
            Query(by_server(window("ttft_window_mean_seconds")), ref="G"),
            Query(by_server(window("ttft_jitter_seconds")), ref="H"),
            Query(by_server(window("ttft_window_requests")), ref="I"),
            Query(by_server(window("preemptions_window")), ref="J"),
            Query(by_server(window("prefix_cache_hit_window_ratio")), ref="K"),
        ],
        [
            Column("server", "Server", link=latency),
            Column("host", "Host"),
            Column("model_name", "Model", width=150),
            Column("version", "vLLM", width=70),
            Column("state", "State", width=110, words=dict(house.STATE_COLOURS)),
            Column(
                "Value #C",
                "Used of limit",
                "percentunit",
                1,
                gauge=True,
                maximum=1,
                steps=((None, house.GREEN), (1.0, VERMILLION)),
                link=memory,
                width=150,
            ),
            Column("Value #D", "Running", "short", 0),
            Column("Value #E", "Waiting", "short", 0),
            Column("Value #F", "KV", "percentunit", 0, link=cache),
            Column("Value #G", "TTFT mean", "s", link=latency),
            Column("Value #H", "TTFT jitter", "s", link=latency),
            Column("Value #I", "Requests", "short", 0),
            Column("Value #J", "Preempted", "short", 0, steps=((None, "text"), (1, ORANGE)), link=cache),
            Column("Value #K", "Prefix hits", "percentunit", 0, link=cache),
        ],
        no_data=FROM_EXPORTER,
        height=6,
        sort="Server",
    )


def _load() -> list[list[Item]]:
    computed = rate("prompt_tokens_by_source_total", COMPUTED, drop="engine, source")
    return [
        [ttft_mean(height=7), waiting_peak(height=7), kv_peak(height=7)],
        [
            series(
                "Tokens computed per second",
                "Prompt tokens that were really computed (not cached) plus generated tokens: the work on the card.",
                [Query(f"{computed} + ({rate('generation_tokens_total')} or 0 * {computed})", LEGEND)],
                unit="short",
                no_data="vLLM before 0.16 does not split prompt tokens by source.",
                height=7,
            ),
            preemptions(height=7),
            series(
                "Seconds with a busy neighbour",
                "Share of the server's busy seconds in which another server on the card computed too. Association, not "
                "cause; Latency & jitter compares the TTFT of both kinds of seconds.",
                [Query(f"max without (gpu, uuid) ({window('gpu_contention_ratio')})", LEGEND)],
                unit="percentunit",
                maximum=1,
                no_data="The server was idle, or alone on its card.",
                height=7,
            ),
        ],
    ]


def _alerts() -> Item:
    return table(
        "Alerts that fire",
        "Alerts of alerts/*.alerts.yaml that fire now. Each has a page in docs/runbooks.",
        [Query(f"max by (alertname, severity, server, host) ({_ALERTS})")],
        [
            Column("alertname", "Alert"),
            Column("severity", "Severity", words={"critical": VERMILLION, "warning": ORANGE, "info": house.SKY}),
            Column("server", "Server"),
            Column("host", "Host"),
        ],
        no_data="nothing fires, or alerts/*.alerts.yaml are not loaded in Prometheus.",
        height=6,
        sort="Severity",
    )


def board() -> Board:
    """The dashboard."""
    return Board(
        name="overview",
        uid="overview",
        title="Overview",
        description="Several vLLM servers on shared cards: who holds the memory, who waits, who is slow, and why.",
        variables=[v.datasource(), v.job(), v.host(), v.server(), v.gpu(), v.card(), v.window()],
        sections=[
            Section("", [_strip()]),
            Section(
                "Card $card",
                [[card_memory(height=9), card_budgets(height=9), card_compute(height=9)], _card_facts()],
                repeat="card",
            ),
            Section("Servers", [[_servers()]]),
            Section("Load", _load()),
            Section("Alerts", [[_alerts()]]),
        ],
    )
