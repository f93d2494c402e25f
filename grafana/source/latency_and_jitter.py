"""Latency & jitter."""

# ruff: noqa: E501 - a text of a panel is one line

from __future__ import annotations

import house
import variables as v
from layout import Board, Section
from panels import Item, Look, Query, heat, series, words
from queries import LEGEND, SERVER_GPU, of, pooled_mean, window
from shared_panels import NO_REQUESTS, contention, itl_mean, ttft_mean, waiting_peak

_TOO_FEW = "No request in the window, or too few: p50 needs 10, p95 20, p99 100 requests. A longer window helps."


def _all_servers() -> list[list[Item]]:
    return [
        [
            ttft_mean(),
            series(
                "TTFT jitter",
                "Standard deviation of the requests' TTFT in the window, as the server recorded them: the point estimate. Its "
                "guaranteed bounds are drawn per server below; where they are more than a factor of 3 apart there is no estimate.",
                [Query(window("ttft_jitter_seconds"), LEGEND)],
                unit="s",
                no_data="Fewer than 2 requests in the window, or bounds too wide for an estimate (see the rows below).",
            ),
            series(
                "Requests over $objective s",
                "Share of requests in the window whose TTFT was over the objective. Exact: the objective is a bucket bound.",
                [Query(window("ttft_window_share_over_ratio", 'bound="$objective"'), LEGEND)],
                unit="percentunit",
                maximum=1,
                no_data="No request in the window, or the server has no bucket bound at the chosen objective.",
            ),
        ],
        [
            itl_mean(),
            series(
                "Whole request, mean",
                "Mean of arrival to finish, of the requests that finished in the window.",
                [Query(window("e2e_latency_window_mean_seconds"), LEGEND)],
                unit="s",
                no_data="No request finished in the window.",
            ),
            waiting_peak(),
        ],
    ]


def _neighbours() -> list[list[Item]]:
    return [
        [
            series(
                "What the others do",
                "SM time of every server on the chosen cards, on the same time axis as the latencies above.",
                [Query(of("server_gpu_sm_utilization_ratio", by=SERVER_GPU.replace(',server=~"$server"', "")), LEGEND)],
                unit="percentunit",
                no_data="No SM utilisation: NVML gives it per process on Linux only (not under WSL2), and not inside MIG.",
                stacked=True,
            ),
            series(
                "TTFT with and without a busy neighbour",
                "Mean TTFT in the seconds in which another server on the card computed (solid) and in the others (dashed). Both "
                "need 10 requests. Association, not cause: both may be busy because one user sends to both.",
                [
                    Query(f"max without (gpu, uuid) ({window('ttft_contended_mean_seconds')})", LEGEND + " contended"),
                    Query(f"max without (gpu, uuid) ({window('ttft_clear_mean_seconds')})", LEGEND + " clear"),
                ],
                unit="s",
                no_data="Fewer than 10 requests on one of the two sides, or the server is alone on its card. A longer window helps.",
                looks=(Look("/ clear$/", dashed=True),),
            ),
            contention(),
        ]
    ]


def _quantile(quantile: str, word: str) -> list[Query]:
    label = f'q="{quantile}"'
    return [
        Query(f"max ({window('ttft_window_quantile_upper_seconds', label)})", f"{word} at most"),
        Query(f"min ({window('ttft_window_quantile_lower_seconds', label)})", f"{word} at least"),
    ]


def _one_server() -> list[list[Item]]:
    bands = []
    for word, colour in house.QUANTILE_COLOURS.items():
        bands += [
            Look(f"/^{word} at most$/", colour, below_to=f"{word} at least", fill=25, width=1),
            Look(f"/^{word} at least$/", colour, width=1),
        ]
    return [
        [
            heat(
                "TTFT of $server",
                "Requests per second by time to first token: every row is one bucket of vLLM. Two bands mean two kinds of requests.",
                f"sum by (le) (rate({of('ttft_seconds_bucket')}[$__rate_interval]))",
                no_data=NO_REQUESTS,
            ),
            series(
                "TTFT quantiles: what is certain",
                "The quantile lies inside its band: guaranteed bounds from 1 s samples, not an interpolated line. Wide bands mean that "
                "vLLM's buckets cannot tell (they can be changed from vLLM 0.32 on). Several hosts: lowest and highest bound.",
                [*_quantile("0.5", "p50"), *_quantile("0.95", "p95"), *_quantile("0.99", "p99")],
                unit="s",
                no_data=_TOO_FEW,
                width=12,
                looks=bands,
                by_server=False,
                legend_values=(),
            ),
        ],
        [
            series(
                "TTFT jitter: estimate and bounds",
                "Standard deviation of TTFT in the window. The truth lies inside the band, whatever the distribution is. "
                "Several hosts: lowest and highest bound, largest estimate.",
                [
                    Query(f"max ({window('ttft_jitter_upper_seconds')})", "at most"),
                    Query(f"min ({window('ttft_jitter_lower_seconds')})", "at least"),
                    Query(f"max ({window('ttft_jitter_seconds')})", "estimate"),
                ],
                unit="s",
                no_data="Fewer than 2 requests in the window.",
                by_server=False,
                looks=(
                    Look("/^at most$/", house.SKY, below_to="at least", fill=25, width=1),
                    Look("/^at least$/", house.SKY, width=1),
                    Look("/^estimate$/", house.ORANGE, width=2),
                ),
                legend_values=("lastNotNull",),
            ),
            series(
                "Requests in the window",
                "How many requests the numbers beside rest on. Below some 30, do not read much into them.",
                [
                    Query(f"sum ({window('ttft_window_requests')})", "first tokens"),
                    Query(f"sum ({window('e2e_latency_window_requests')})", "finished"),
                ],
                unit="short",
                decimals=0,
                no_data="No request in the window.",
                by_server=False,
                looks=(Look("/^first tokens$/", house.SKY, fill=20), Look("/^finished$/", "text", dashed=True)),
            ),
            series(
                "Where the time goes",
                "Mean seconds per finished request: waiting in the queue, prefill (first scheduled to first token), decode. Recorded "
                "when a request finishes, so a long answer shows late.",
                [
                    Query(pooled_mean("queue_time_seconds"), "queue"),
                    Query(pooled_mean("prefill_time_seconds"), "prefill"),
                    Query(pooled_mean("decode_time_seconds"), "decode"),
                ],
                unit="s",
                no_data="No request finished in the interval.",
                by_server=False,
                looks=[Look(f"/^{name}$/", colour) for name, colour in house.PHASE_COLOURS.items()],
                stacked=True,
            ),
        ],
    ]


def _reading() -> Item:
    return words(
        "How to read this page",
        "**Mean and shares are exact**, jitter and quantiles have **bounds that hold** (bands). "
        "A band is never an average of averages. No line = no requests in the window, or too few for the statistic; "
        "vLLM's own buckets are too coarse for an honest single p95 line.",
        width=24,
        height=3,
    )


def board() -> Board:
    """The dashboard."""
    return Board(
        name="latency-and-jitter",
        uid="latency",
        title="Latency & jitter",
        description="Time to first token, its spread with bounds, inter-token latency, and what the neighbours did meanwhile.",
        variables=[v.datasource(), v.job(), v.host(), v.server(), v.gpu(), v.window(), v.objective()],
        sections=[
            Section("", [[_reading()]]),
            Section("All servers", _all_servers()),
            Section("Neighbours on the card", _neighbours()),
            Section("$server", _one_server(), repeat="server"),
        ],
    )
