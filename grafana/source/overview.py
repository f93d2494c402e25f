"""Overview: the shared card."""

# ruff: noqa: E501 - a text of a panel is one line

from __future__ import annotations

import house
import variables as v
from house import ORANGE, VERMILLION
from layout import Board, Section
from panels import Column, Item, Look, Query, series, stat, table
from queries import CARD, EXPORTER, LEGEND, MINUTE, SERVER_GPU, WINDOW, by_server, of, rate, window
from shared_panels import (
    FROM_EXPORTER,
    NEEDS_NVML,
    RUNBOOKS,
    card_budgets,
    card_compute,
    card_memory,
    contention,
    itl_mean,
    kv_peak,
    preemptions,
    ttft_mean,
    waiting_peak,
)

_ALERTS = f'ALERTS{{{EXPORTER},alertname=~"Vllmeter.+",alertname!="VllmeterWatchdog",alertstate="firing"}}'
_WATCHDOG = 'ALERTS{alertname="VllmeterWatchdog",alertstate="firing"}'
"""Fires as long as the rules are evaluated; it is about Prometheus itself and has no job and host."""
COMPUTED = 'source="local_compute"'
_FAILED, _5XX = 'reason=~"error|abort"', 'status="5xx"'
_LIMIT = (
    f"(sum by (job, instance, host, server) (max without (source) ({of('server_gpu_memory_budget_bytes', by=SERVER_GPU)})"
    f" + max without (source) ({of('server_gpu_memory_allowance_bytes', by=SERVER_GPU)})) > 0)"
)
_USED = (
    f"sum by (job, instance, host, server) (max without (source) ({of('server_gpu_memory_used_bytes', by=SERVER_GPU)}))"
)
_GOOD_BELOW_1 = ((None, house.GREEN), (1, VERMILLION))


def _firing(severity: str) -> str:
    """Alerts of one severity; 0 only where the rules are evaluated (the watchdog fires), else absent."""
    mine = _ALERTS.replace("ALERTS{", f'ALERTS{{severity="{severity}",')
    return f"count ({mine}) or 0 * count ({_WATCHDOG})"


def _strip() -> list[Item]:
    return [
        stat(
            "Down",
            "Servers whose last /metrics could not be read, and exporters that Prometheus cannot scrape: of their servers and cards nothing is known.",
            [
                Query(f"sum ({of('server_up')} == bool 0)", "servers"),
                Query(f"sum (up{{{EXPORTER}}} == bool 0)", "exporters"),
            ],
            unit="short",
            no_data=FROM_EXPORTER,
            steps=_GOOD_BELOW_1,
            names=True,
        ),
        stat(
            "Alerts firing",
            "Alerts of vllmeter that fire in Prometheus; they are listed below with their runbooks. Those of severity info are only in the list.",
            [Query(_firing("critical"), "critical"), Query(_firing("warning"), "warning")],
            unit="short",
            no_data="alerts/*.alerts.yaml are not loaded in Prometheus, so nothing can fire.",
            steps=((None, house.GREEN), (1, VERMILLION)),
            names=True,
        ),
        stat(
            "Longest queue",
            "The server with the most waiting requests in any one-second sample of the window.",
            [Query(f"topk (1, {by_server(of('requests_waiting_peak', WINDOW))})", LEGEND)],
            unit="short",
            no_data=FROM_EXPORTER,
            names=True,
            decimals=0,
        ),
        stat(
            "Slowest TTFT, mean",
            "The server with the largest mean time to first token in the window.",
            [Query(f"topk (1, {by_server(of('ttft_window_mean_seconds', WINDOW))})", LEGEND)],
            unit="s",
            no_data="no requests in the window",
            names=True,
        ),
        stat(
            "Preempted in the window",
            "The server that preempted most in the window. 0: nobody was thrown out.",
            [Query(f"topk (1, {by_server(of('preemptions_window', WINDOW))})", LEGEND)],
            unit="short",
            no_data=FROM_EXPORTER,
            steps=((None, house.GREEN), (1, ORANGE)),
            names=True,
            decimals=0,
        ),
        stat(
            "Fullest against its limit",
            "The server whose memory is nearest to what it may take (budget and what normally comes on top). Above 100 %: out of budget.",
            [Query(f"topk (1, {_USED} / {_LIMIT})", LEGEND)],
            unit="percentunit",
            no_data=NEEDS_NVML,
            steps=((None, house.GREEN), (1.0, VERMILLION)),
            names=True,
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
            Query(f"{_USED} / {_LIMIT}", ref="C"),
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
                "Requests finished per second",
                "All finished requests of a server, whatever their end. vLLM never counts requests whose client went away.",
                [Query(rate("requests_finished_total", drop="engine, reason"), LEGEND)],
                unit="reqps",
                no_data=FROM_EXPORTER,
                height=7,
            ),
            series(
                "Failed requests per second",
                "Answers with status 5xx (solid), requests that the engine ended with an error or aborted (dashed), and requests that a queue limit refused "
                "(dotted). A request can be in more than one line. 5xx appears with the first such answer.",
                [
                    Query(rate("http_requests_total", _5XX, drop="handler, method, status"), LEGEND + " 5xx"),
                    Query(rate("requests_finished_total", _FAILED, drop="engine, reason"), LEGEND + " ended"),
                    Query(rate("requests_rejected_total", drop="reason"), LEGEND + " refused"),
                ],
                unit="reqps",
                no_data=FROM_EXPORTER,
                height=7,
                looks=(Look("/ ended$/", dashed=True), Look("/ refused$/", dotted=True)),
            ),
            preemptions(height=7),
        ],
        [
            series(
                "Tokens computed per second",
                "Prompt tokens that were really computed (not cached) plus generated tokens: the work on the card. Dashed: the generated ones.",
                [
                    Query(f"{computed} + {rate('generation_tokens_total')} or {computed}", LEGEND),
                    Query(rate("generation_tokens_total"), LEGEND + " generated"),
                ],
                unit="short",
                no_data="vLLM before 0.16 does not split prompt tokens by source.",
                height=7,
                looks=(Look("/ generated$/", dashed=True),),
            ),
            itl_mean(height=7),
            contention(height=7),
        ],
    ]


def _alerts() -> Item:
    return table(
        "Alerts that fire",
        "Alerts of alerts/*.alerts.yaml that fire now, of every severity. The name opens its runbook: meaning, impact, diagnosis, mitigation.",
        [Query(f"max by (alertname, severity, server, host) ({_ALERTS})")],
        [
            Column("alertname", "Alert", link=("Runbook", RUNBOOKS + "${__value.raw}.md")),
            Column("severity", "Severity", words={"critical": VERMILLION, "warning": ORANGE, "info": house.SKY}),
            Column("server", "Server"),
            Column("host", "Host"),
        ],
        no_data="nothing fires, or the rules are not loaded: the number above says which.",
        height=5,
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
            Section("Alerts", [[_alerts()]]),
            Section("Load", _load()),
        ],
    )
