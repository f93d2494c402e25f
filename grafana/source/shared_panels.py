"""Panels that more than one dashboard shows."""

# ruff: noqa: E501 - a text of a panel or a query is one line

from __future__ import annotations

import house
from panels import Item, Look, Query, series
from queries import CARD, LEGEND, SERVER_CARD, of, rate, window

FROM_EXPORTER = "No server answers, or none is chosen: see Exporter health."
NEEDS_NVML = (
    "No per-process GPU memory: NVML is missing, or the driver hides it (WSL2), or the exporter does not see the host's "
    "processes (container without pid: host). Exporter health says which."
)
NO_REQUESTS = "No request got its first token in the window."
RUNBOOKS = "https://github.com/vllmeter/vllmeter/blob/main/docs/runbooks/"
"""Where the pages of the alerts are; alerts/source writes the same address (tested)."""

_NO_OFFLOAD = "KV offloading is off (--kv-offloading-size, or a KV connector in --kv-transfer-config), or vLLM is older than 0.14."

CARD_LOOKS = (
    Look("/^other/", house.OTHER_PROGRAMS),
    Look("/^unattributed/", house.UNATTRIBUTED),
    Look("/^card/", house.GPU_TOTAL, dashed=True, fill=0, stacked=False, width=2),
)


def card_memory(*, width: int = 8, height: int = 8) -> Item:
    """Who holds the memory of one card (in a row repeated by card)."""
    return series(
        "Who holds the card",
        "GPU memory per vLLM server (NVML, by process), other programs and what no listed process accounts for, stacked. "
        "The dashed line is the whole card. The stack is exactly the used memory.",
        [
            Query(f"max without (source) ({of('server_gpu_memory_used_bytes', by=SERVER_CARD)})", "{{server}}"),
            Query(of("gpu_memory_other_bytes", by=CARD), "other: {{program}}"),
            Query(of("gpu_memory_unattributed_bytes", by=CARD), "unattributed"),
            Query(of("gpu_memory_total_bytes", by=CARD), "card"),
        ],
        unit="bytes",
        no_data=NEEDS_NVML,
        width=width,
        height=height,
        looks=CARD_LOOKS,
        stacked=True,
        legend_values=("lastNotNull",),
    )


def card_budgets(*, width: int = 8, height: int = 8) -> Item:
    """Each server against its own limit (in a row repeated by card)."""
    budget = f"max without (source) ({of('server_gpu_memory_budget_bytes', by=SERVER_CARD)})"
    allowance = f"max without (source) ({of('server_gpu_memory_allowance_bytes', by=SERVER_CARD)})"
    return series(
        "Against their limits",
        "Used memory (solid) and what the server may take (dashed, same colour): its budget, as "
        "--gpu-memory-utilization or --kv-cache-memory-bytes says, plus what normally comes on top (CUDA context; "
        "graphs in some versions). Solid above dashed: out of budget.",
        [
            Query(f"max without (source) ({of('server_gpu_memory_used_bytes', by=SERVER_CARD)})", "{{server}}"),
            Query(f"{budget} + {allowance}", "{{server}} limit"),
        ],
        unit="bytes",
        no_data=NEEDS_NVML,
        width=width,
        height=height,
        looks=(Look("/ limit$/", dashed=True, fill=0, width=1),),
        legend_values=("lastNotNull",),
    )


def card_compute(*, width: int = 8, height: int = 8) -> Item:
    """Who computes (in a row repeated by card)."""
    return series(
        "Who computes",
        "Share of SM time that each server's processes used (NVML), and the utilisation of the card (share of time in which "
        "any kernel ran; not how full the card was).",
        [
            Query(of("server_gpu_sm_utilization_ratio", by=SERVER_CARD), "{{server}}"),
            Query(of("gpu_utilization_ratio", by=CARD), "card busy"),
        ],
        unit="percentunit",
        no_data="No SM utilisation: NVML gives it per process on Linux only (not under WSL2), and not inside MIG.",
        width=width,
        height=height,
        looks=(Look("/^card/", house.GPU_TOTAL, dashed=True, fill=0, width=1),),
        maximum=1,
        fill=10,
    )


def ttft_mean(*, width: int = 8, height: int = 8) -> Item:
    return series(
        "TTFT, mean",
        "Mean time to first token of the requests in the window, exact, queue included. Pooling models: the whole request.",
        [Query(window("ttft_window_mean_seconds"), LEGEND)],
        unit="s",
        no_data=NO_REQUESTS,
        width=width,
        height=height,
    )


def waiting_peak(*, width: int = 8, height: int = 8) -> Item:
    return series(
        "Waiting requests, 1 s peak",
        "Most requests waiting in any one-second sample of the window: queues that a scrape would miss.",
        [Query(window("requests_waiting_peak"), LEGEND)],
        unit="short",
        no_data=FROM_EXPORTER,
        width=width,
        height=height,
        decimals=0,
    )


def kv_peak(*, width: int = 8, height: int = 8) -> Item:
    return series(
        "KV cache in use, 1 s peak",
        "Largest share of KV blocks held by live requests in any one-second sample of the window, fullest engine. Reusable "
        "cached blocks count as free. Full is normal under load; full and preempting is not.",
        [Query(window("kv_cache_usage_peak_ratio"), LEGEND)],
        unit="percentunit",
        no_data="Pooling models have no KV cache in use; vLLM before 0.4 does not report it.",
        width=width,
        height=height,
        maximum=1,
    )


def preemptions(*, width: int = 8, height: int = 8) -> Item:
    return series(
        "Preemptions in the window",
        "Requests that lost their KV blocks and must be computed again.",
        [Query(window("preemptions_window"), LEGEND)],
        unit="short",
        no_data=FROM_EXPORTER,
        width=width,
        height=height,
        decimals=0,
        fill=20,
    )


def itl_mean(*, width: int = 8, height: int = 8) -> Item:
    return series(
        "Inter-token latency, mean",
        "Mean time between two outputs of a request in the window: what a reader of the stream feels. Long answers weigh more. "
        "It rises while a prefill or a preempted request is computed beside it.",
        [Query(window("inter_token_latency_window_mean_seconds"), LEGEND)],
        unit="s",
        no_data="No token was generated in the window (pooling models never do).",
        width=width,
        height=height,
    )


def contention(*, width: int = 8, height: int = 8) -> Item:
    return series(
        "Seconds with a busy neighbour",
        "Share of the server's busy seconds in which another server on the card computed too. Association, not cause; Latency & "
        "jitter compares the TTFT of both kinds of seconds.",
        [Query(f"max without (gpu, uuid) ({window('gpu_contention_ratio')})", LEGEND)],
        unit="percentunit",
        maximum=1,
        no_data="The server was idle, or alone on its card.",
        width=width,
        height=height,
    )


def offload_bytes(*, width: int = 8, height: int = 8) -> Item:
    return series(
        "Offloading: bytes per second",
        "From the GPU to the offload tier (store, dashed) and back (load, solid).",
        [
            Query(rate("kv_offload_load_bytes_total"), LEGEND + " load"),
            Query(rate("kv_offload_store_bytes_total"), LEGEND + " store"),
        ],
        unit="Bps",
        no_data=_NO_OFFLOAD,
        width=width,
        height=height,
        looks=(Look("/ store$/", dashed=True),),
    )


def offload_time(*, width: int = 8, height: int = 8) -> Item:
    return series(
        "Offloading: time spent",
        "Seconds of transfer per second, store dashed, load solid. Near 1: the bus is the limit.",
        [
            Query(rate("kv_offload_load_time_seconds_total"), LEGEND + " load"),
            Query(rate("kv_offload_store_time_seconds_total"), LEGEND + " store"),
        ],
        unit="percentunit",
        no_data=_NO_OFFLOAD,
        width=width,
        height=height,
        looks=(Look("/ store$/", dashed=True),),
    )
