"""Cache & evictions."""

# ruff: noqa: E501 - a text of a panel is one line

from __future__ import annotations

import house
import variables as v
from layout import Board, Section
from panels import Item, Look, Query, series
from queries import LEGEND, of, quantile, rate, ratio, rule, window
from shared_panels import FROM_EXPORTER, itl_mean, kv_peak, offload_bytes, offload_time, preemptions, ttft_mean

_BLOCKS = (
    "Needs vLLM's --kv-cache-metrics (a sample of the blocks: --kv-cache-metrics-sample) and evictions to measure."
)


def _pressure() -> list[list[Item]]:
    return [
        [
            kv_peak(),
            series(
                "Waiting, by reason",
                "Requests that wait because no KV blocks are free (capacity), and those that wait for other reasons (deferred).",
                [Query(f"sum without (engine) ({of('requests_waiting_by_reason')})", LEGEND + " {{reason}}")],
                unit="short",
                decimals=0,
                no_data="vLLM before 0.20 does not say why a request waits.",
                looks=(Look("/ deferred$/", dashed=True, width=1),),
            ),
            series(
                "Free KV cache",
                "Tokens that fit into the blocks that no live request holds (blocks of cached prefixes count as free).",
                [Query(rule("kv_cache_free_tokens:sum"), LEGEND)],
                unit="short",
                no_data="Needs prometheus/rules, and vLLM 0.24 or its start-up log for the capacity.",
            ),
        ],
        [
            preemptions(),
            series(
                "Largest burst",
                "Most preemptions between two successive one-second samples of the window: a storm, where the total is a drizzle.",
                [Query(window("preemptions_burst_peak"), LEGEND)],
                unit="short",
                decimals=0,
                no_data=FROM_EXPORTER,
            ),
            series(
                "Preemptions per finished request",
                "How much work is done twice. Above 0 for long: fewer sequences (max-num-seqs), more KV cache, or a shorter max-model-len.",
                [Query(rule("preemptions_per_finished_request:ratio_rate5m"), LEGEND)],
                unit="percentunit",
                no_data="No request finished in 5 minutes, or prometheus/rules are not loaded.",
            ),
        ],
    ]


def _cost() -> list[list[Item]]:
    return [
        [
            series(
                "Prompts looked up again",
                "Tokens looked up in the prefix cache per prompt token. Near 1: every prompt once. Above: requests that wait for room, or were "
                "preempted, are looked up again and again. How many tokens are computed twice, no vLLM version counts.",
                [
                    Query(
                        ratio(rate("prefix_cache_queries_tokens_total"), rate("prompt_tokens_total")),
                        LEGEND,
                    )
                ],
                unit="none",
                decimals=1,
                no_data="No prompt in the interval, or prefix caching is off (--enable-prefix-caching).",
            ),
            ttft_mean(),
            itl_mean(),
        ]
    ]


def _prefix() -> list[list[Item]]:
    return [
        [
            series(
                "Prefix-cache hits, in tokens",
                "Share of looked-up prompt tokens that were in the cache. Under pressure vLLM looks a waiting request up again and again: "
                "then this is too low, and the panel beside is right. Prompts shorter than one block never hit; 0 is no fault.",
                [Query(window("prefix_cache_hit_window_ratio"), LEGEND)],
                unit="percentunit",
                maximum=1,
                no_data="Nothing was looked up in the window, or prefix caching is off (--enable-prefix-caching).",
            ),
            series(
                "Prompt tokens: cached of all",
                "Share of prompt tokens that did not have to be computed.",
                [
                    Query(
                        ratio(
                            window("prompt_tokens_cached_window"),
                            f"({window('prompt_tokens_cached_window')} + {window('prompt_tokens_computed_window')})",
                        ),
                        LEGEND,
                    )
                ],
                unit="percentunit",
                maximum=1,
                no_data="No prompt in the window, or vLLM before 0.16 (no split by source).",
            ),
            series(
                "Prompt tokens per second, by source",
                "Computed here, found in the prefix cache, or fetched by a KV connector; all chosen servers. vLLM counts a prompt when its prefill ends.",
                [
                    Query(
                        f"sum by (source) (rate({of('prompt_tokens_by_source_total')}[$__rate_interval]))", "{{source}}"
                    )
                ],
                unit="short",
                no_data="vLLM before 0.16 does not split prompt tokens by source.",
                by_server=False,
                stacked=True,
                looks=[Look(f"/^{source}$/", colour) for source, colour in house.SOURCE_COLOURS.items()],
            ),
        ]
    ]


def _blocks() -> list[list[Item]]:
    def both(family: str) -> list[Query]:
        return [
            Query(quantile(0.5, family), LEGEND + " p50"),
            Query(quantile(0.95, family), LEGEND + " p95"),
        ]

    dashed = (Look("/ p95$/", dashed=True, width=1),)
    note = " Solid: half of the blocks, dashed: 95 of 100; interpolated inside vLLM's buckets."
    return [
        [
            series(
                "Life of a KV block",
                "Allocation to eviction." + note,
                both("kv_block_lifetime_seconds"),
                unit="s",
                no_data=_BLOCKS,
                looks=dashed,
            ),
            series(
                "Idle before eviction",
                "Last use to eviction. Long: the cache is larger than the reuse. Short: blocks are thrown out that might have been used again."
                + note,
                both("kv_block_idle_before_evict_seconds"),
                unit="s",
                no_data=_BLOCKS,
                looks=dashed,
            ),
            series(
                "Blocks evicted per second",
                "Evictions that vLLM sampled; multiply by 1/sample rate (--kv-cache-metrics-sample) for all.",
                [Query(rate("kv_block_lifetime_seconds_count"), LEGEND)],
                unit="short",
                no_data=_BLOCKS,
            ),
        ]
    ]


def _offload() -> list[list[Item]]:
    return [
        [
            offload_bytes(),
            offload_time(),
            series(
                "Hits in the outer tier",
                "Share of tokens looked up in the KV connector's tier that were there.",
                [
                    Query(
                        ratio(
                            rate("external_prefix_cache_hits_tokens_total"),
                            rate("external_prefix_cache_queries_tokens_total"),
                        ),
                        LEGEND,
                    )
                ],
                unit="percentunit",
                maximum=1,
                no_data="Needs a KV connector (--kv-transfer-config) or KV offloading, and lookups in it.",
            ),
        ]
    ]


def board() -> Board:
    """The dashboard."""
    return Board(
        name="cache-and-evictions",
        uid="cache",
        title="Cache & evictions",
        description="Does the KV cache fill, who is thrown out, what does that cost, and does the prefix cache help.",
        variables=[v.datasource(), v.job(), v.host(), v.server(), v.gpu(), v.window()],
        sections=[
            Section("Pressure", _pressure()),
            Section("What preemptions cost", _cost()),
            Section("Prefix cache", _prefix()),
            Section("KV blocks", _blocks()),
            Section("Offloading", _offload()),
        ],
    )
