"""Tuning levers: what each flag of vLLM does, and whether it does it here."""

# ruff: noqa: E501 - a text of a panel is one line

from __future__ import annotations

import variables as v
from house import STATE_COLOURS
from layout import Board, Section
from panels import Column, Item, Look, Query, series, state_mapping, states, table, words
from queries import KEYS, LEGEND, SERVER_GPU, by_server, of, quantile, rate, ratio, setting, state_number, window
from shared_panels import FROM_EXPORTER, itl_mean, kv_peak, offload_bytes, offload_time

_HEIGHT = 8
_LIMIT = Look("/ limit$/", dotted=True, width=2)
_COMPUTED = 'source="local_compute"'
_NO_BLOCKS = 'reason="capacity"'
_GRAPHS = 'part="cuda_graphs"'
_WEIGHTS = 'part="weights"'
_CAPACITY = f"max without (source) ({of('kv_cache_capacity_tokens')})"


def _lever(title: str, text: str, settings: str, panels: list[Item], extra: list[list[Item]] | None = None) -> Section:
    """A row: what the lever does, where it stands, and what to look at."""
    names = 'setting=~"' + settings + '"'
    where = table(
        "Set to",
        "Effective value now, and where it was read (label = the server says it, command = its command line, log = its start-up log).",
        [Query(by_server(of("server_setting_info", names), "setting", "value"))],
        [Column("server", "Server", width=88), Column("setting", "Setting"), Column("value", "Value", width=66)],
        no_data="the flag is at vLLM's default, which the server does not report, or its command line is not visible.",
        width=6,
        height=_HEIGHT,
        sort="Server",
    )
    return Section(title, [[words("What it does", text, width=4, height=_HEIGHT), where, *panels], *(extra or [])])


def _changed() -> list[Item]:
    numbers = of("server_setting_value")
    moved = f"(changes({numbers}[$__range]) > 0)"
    keys = f"{KEYS}, setting"

    def of_moved(expression: str) -> str:
        return f"max by ({keys}) ({expression} and {moved})"

    return [
        table(
            "Changed in this time range",
            "Settings that are numbers and had more than one value in the time range of this page. More than one line at a time: no one can say which of them "
            "made the difference. Switches are 1 and 0.",
            [
                Query(f"max by ({keys}) {moved}", ref="A"),
                Query(of_moved(f"min_over_time({numbers}[$__range])"), ref="B"),
                Query(of_moved(f"max_over_time({numbers}[$__range])"), ref="C"),
                Query(of_moved(numbers), ref="D"),
            ],
            [
                Column("server", "Server"),
                Column("host", "Host"),
                Column("setting", "Setting", width=190),
                Column("Value #A", "Changes", "none", 0),
                Column("Value #B", "Lowest", "none"),
                Column("Value #C", "Highest", "none"),
                Column("Value #D", "Now", "none"),
            ],
            no_data="no setting changed, or the command lines of the servers are not visible. Widen the time range.",
            width=14,
            height=6,
            sort="Server",
        ),
        series(
            "$setting over time",
            "The setting chosen above, in vLLM's own unit. A gap: the server was down, or did not say.",
            [Query(of("server_setting_value", 'setting="$setting"'), LEGEND)],
            unit="none",
            no_data="No server says this setting as a number now.",
            width=10,
            height=6,
            line=2,
        ),
    ]


def _batched_tokens() -> Section:
    return _lever(
        "Batch of a step: --max-num-batched-tokens",
        "Most tokens that one engine step computes. **Larger**: prompts are prefilled in fewer steps (TTFT falls), but each step takes longer, and "
        "running answers wait for it (ITL rises). Look: do steps fill up, and does ITL follow the prefill work?",
        "max_num_batched_tokens|enable_chunked_prefill|long_prefill_token_threshold",
        [
            series(
                "Tokens per step",
                "Mean tokens of an engine step, the 95th percentile (dashed, interpolated inside vLLM's buckets), and --max-num-batched-tokens where it is known "
                "(dotted). The percentile at the limit: steps are full, and the limit decides.",
                [
                    Query(
                        ratio(rate("iteration_tokens_sum"), rate("iteration_tokens_count")),
                        LEGEND,
                    ),
                    Query(quantile(0.95, "iteration_tokens"), LEGEND + " p95"),
                    Query(setting("max_num_batched_tokens"), LEGEND + " limit"),
                ],
                unit="short",
                no_data="The engine made no step in the interval, or vLLM gives no iteration_tokens.",
                log=True,
                width=7,
                height=_HEIGHT,
                looks=(Look("/ p95$/", dashed=True, width=1), _LIMIT),
            ),
            series(
                "ITL beside prefill work",
                "Mean ITL (left, seconds) and prompt tokens computed per second (right, dashed): does one follow the other?",
                [
                    Query(window("inter_token_latency_window_mean_seconds"), LEGEND),
                    Query(rate("prompt_tokens_by_source_total", _COMPUTED, drop="engine, source"), LEGEND + " prefill"),
                ],
                unit="s",
                no_data="No token was generated in the window, and no prompt computed (vLLM before 0.16 does not split prompts by source).",
                width=7,
                height=_HEIGHT,
                looks=(Look("/ prefill$/", dashed=True, width=1, unit="short", right="tokens/s"),),
            ),
        ],
    )


def _num_seqs() -> Section:
    return _lever(
        "Requests at once: --max-num-seqs",
        "Most requests in the running batch. **Larger**: more throughput, slower single streams, more KV cache in use. If running is flat at the limit "
        "while requests wait, the limit holds them back; if they wait for capacity, the KV cache does.",
        "max_num_seqs|max_num_partial_prefills",
        [
            series(
                "Running, 1 s peak",
                "Most running requests in any second of the window, and --max-num-seqs where it is known (dotted). At the limit while requests wait: it holds them back.",
                [
                    Query(window("requests_running_peak"), LEGEND),
                    Query(setting("max_num_seqs"), LEGEND + " limit"),
                ],
                unit="short",
                decimals=0,
                no_data=FROM_EXPORTER,
                width=7,
                height=_HEIGHT,
                looks=(_LIMIT,),
            ),
            series(
                "Waiting, by reason",
                "Solid: requests that wait because no KV blocks are free (capacity). Dashed: all waiting requests; what lies between waits for other reasons, the limit first of all.",
                [
                    Query(
                        f"sum without (engine, reason) ({of('requests_waiting_by_reason', _NO_BLOCKS)})",
                        LEGEND + " capacity",
                    ),
                    Query(f"sum without (engine) ({of('requests_waiting')})", LEGEND + " all"),
                ],
                unit="short",
                decimals=0,
                no_data="vLLM before 0.20 does not say why a request waits.",
                width=7,
                height=_HEIGHT,
                looks=(Look("/ all$/", dashed=True, width=1),),
            ),
        ],
    )


def _capacity() -> Section:
    def length(name: str) -> str:
        total, count = (f"sum without (engine) (rate({of(name + end)}[5m]))" for end in ("_sum", "_count"))
        return f"({total} / ({count} > 0))"

    fits = f"({length('request_prompt_tokens')} + {length('request_generation_tokens')})"
    return _lever(
        "Room for KV: memory, length, type",
        "--gpu-memory-utilization (or --kv-cache-memory-bytes), --max-model-len and --kv-cache-dtype decide how many tokens the KV cache holds, and with the "
        "length of the requests how many fit at once. fp8 doubles it. Look: does the peak reach 100 %, and then preemptions?",
        "gpu_memory_utilization|kv_cache_memory_bytes|max_model_len|kv_cache_dtype|num_gpu_blocks_override",
        [
            series(
                "Requests that fit",
                "Capacity in tokens over the mean length of the requests that finished in 5 minutes. Solid: fit; dashed: running, peak.",
                [
                    Query(f"{_CAPACITY} / on (job, instance, host, server) ({fits} > 0)", LEGEND),
                    Query(window("requests_running_peak"), LEGEND + " running"),
                ],
                unit="short",
                decimals=0,
                no_data="Needs the capacity (vLLM 0.24, or its start-up log: log: in vllmeter.yaml) and finished requests.",
                log=True,
                width=7,
                height=_HEIGHT,
                looks=(Look("/ running$/", dashed=True, width=1),),
            ),
            kv_peak(width=7, height=_HEIGHT),
        ],
    )


def _prefix() -> Section:
    return _lever(
        "Prefix caching: --enable-prefix-caching",
        "Prompts that begin alike are computed once. It costs nothing when nothing is shared, and saves prefill work (TTFT, not ITL) when it hits. Only "
        "whole blocks are shared: short prompts never hit.",
        "enable_prefix_caching|block_size|prefix_caching_hash_algo",
        [
            series(
                "Prompt tokens in the window",
                "Tokens found in a cache (solid) and tokens computed (dashed), per server.",
                [
                    Query(window("prompt_tokens_cached_window"), LEGEND + " cached"),
                    Query(window("prompt_tokens_computed_window"), LEGEND + " computed"),
                ],
                unit="short",
                no_data="vLLM before 0.16 does not split prompt tokens by source.",
                width=7,
                height=_HEIGHT,
                looks=(Look("/ cached$/", fill=20), Look("/ computed$/", dashed=True, width=1)),
            ),
            series(
                "Hit ratio and TTFT",
                "Share of looked-up tokens that hit (left) and mean TTFT (right, dashed): TTFT should fall where hits rise.",
                [
                    Query(window("prefix_cache_hit_window_ratio"), LEGEND),
                    Query(window("ttft_window_mean_seconds"), LEGEND + " TTFT"),
                ],
                unit="percentunit",
                maximum=None,
                no_data="Nothing was looked up in the window, or prefix caching is off.",
                width=7,
                height=_HEIGHT,
                looks=(Look("/ TTFT$/", dashed=True, width=1, unit="s", right="TTFT"),),
            ),
        ],
    )


def _offloading() -> Section:
    return _lever(
        "KV offloading",
        "Blocks that would be thrown out go to host memory and come back instead of being computed again. It helps when the bus is faster than the prefill "
        "and prompts return. Look: bytes come **back** (load), and loading takes less time than computing.",
        "kv_offloading_size|kv_transfer_config|cpu_offload_gb|swap_space",
        [
            offload_bytes(width=7, height=_HEIGHT),
            offload_time(width=7, height=_HEIGHT),
        ],
    )


def _host_overhead() -> Section:
    return _lever(
        "Stream interval and host overhead",
        "--stream-interval N sends every N-th token: less work for the API server, choppier streams. If a process of the server is at one full core "
        "while the card idles, the host is the limit: raise the interval, or --api-server-count.",
        "stream_interval|api_server_count|disable_log_requests|async_scheduling",
        [
            series(
                "Cores used, by role",
                "CPU seconds per second of the server's processes. A role at 1.0 with one process cannot go faster.",
                [Query(rate("server_cpu_seconds_total"), LEGEND + " {{role}}")],
                unit="short",
                decimals=2,
                no_data="The exporter does not see the server's processes: run it on the host, or its container with pid: host.",
                width=7,
                height=_HEIGHT,
                looks=(Look("/ api_server$/", dashed=True),),
            ),
            itl_mean(width=7, height=_HEIGHT),
        ],
    )


def _graphs() -> Section:
    return _lever(
        "Optimisation level: -O, --enforce-eager",
        "CUDA graphs and compilation make decoding faster (ITL falls), and cost start-up time and some memory per server. --enforce-eager turns them off: on a "
        "crowded card that may be what makes the third server fit.",
        "enforce_eager|optimization_level|compilation_config|cudagraph_capture_sizes",
        [
            states(
                "Start-up: time in state starting",
                "State over time: how long the server was starting after its last start. Compilation and graph capture are part of it.",
                [Query(state_number(tuple(STATE_COLOURS)), LEGEND)],
                mappings=state_mapping(),
                no_data=FROM_EXPORTER,
                width=7,
                height=_HEIGHT,
            ),
            series(
                "Graph memory, and decode ITL",
                "GPU memory of CUDA graphs (right, dashed) and mean ITL (left).",
                [
                    Query(window("inter_token_latency_window_mean_seconds"), LEGEND),
                    Query(
                        f"max without (gpu, uuid, part, source) ({of('server_gpu_memory_part_bytes', _GRAPHS, by=SERVER_GPU)})",
                        LEGEND + " graphs",
                    ),
                ],
                unit="s",
                no_data="Graph memory stands in vLLM's start-up log: give log: for this server in vllmeter.yaml.",
                width=7,
                height=_HEIGHT,
                looks=(Look("/ graphs$/", dashed=True, width=1, unit="bytes", right="graphs"),),
            ),
        ],
    )


def _speculation() -> Section:
    return _lever(
        "Speculation: --speculative-config",
        "A draft proposes tokens, the model verifies several at once. It pays when most are accepted and the card has time to spare; under full load it can cost. "
        "Look: acceptance above about one half, and ITL lower than without.",
        "speculative_config|num_speculative_tokens|speculative_model",
        [
            series(
                "Accepted of proposed",
                "Share of the draft's tokens that the model accepted.",
                [
                    Query(
                        ratio(rate("spec_decode_accepted_tokens_total"), rate("spec_decode_draft_tokens_total")), LEGEND
                    )
                ],
                unit="percentunit",
                maximum=1,
                no_data="Speculation is off (--speculative-config), or nothing was decoded.",
                width=7,
                height=_HEIGHT,
            ),
            series(
                "Tokens per verify step",
                "1 + accepted tokens per step: how many tokens one step of the model gives.",
                [
                    Query(
                        "1 + " + ratio(rate("spec_decode_accepted_tokens_total"), rate("spec_decode_drafts_total")),
                        LEGEND,
                    )
                ],
                unit="short",
                decimals=2,
                no_data="Speculation is off (--speculative-config), or nothing was decoded.",
                width=7,
                height=_HEIGHT,
            ),
        ],
    )


def _quantization() -> Section:
    return _lever(
        "Quantization: --quantization, --kv-cache-dtype",
        "Smaller weights leave more room for KV cache and are read faster (ITL). Smaller KV (fp8) holds more tokens in the same bytes. Look: weights in bytes, and bytes per "
        "token of KV cache.",
        "quantization|dtype|kv_cache_dtype|load_format",
        [
            series(
                "Weights",
                "GPU memory of the model's weights.",
                [
                    Query(
                        f"sum without (gpu, uuid, part, source) ({of('server_gpu_memory_part_bytes', _WEIGHTS, by=SERVER_GPU)})",
                        LEGEND,
                    )
                ],
                unit="bytes",
                no_data="The size of the weights stands in vLLM's start-up log: give log: for this server in vllmeter.yaml.",
                width=7,
                height=_HEIGHT,
            ),
            series(
                "KV bytes per token",
                "Bytes of KV cache per GPU over the tokens that it holds.",
                [
                    Query(
                        f"max without (source) ({of('kv_cache_capacity_bytes')}) / on (job, instance, host, server) ({_CAPACITY} > 0)",
                        LEGEND,
                    )
                ],
                unit="bytes",
                no_data="Capacity in bytes stands in vLLM's start-up log: give log: in vllmeter.yaml. Pooling models have none.",
                width=7,
                height=_HEIGHT,
            ),
        ],
    )


def board() -> Board:
    """The dashboard."""
    return Board(
        name="tuning-levers",
        uid="levers",
        title="Tuning levers",
        description="One row per lever of vLLM: what it does, where it stands, and whether it does that here. Change one at a time.",
        variables=[v.datasource(), v.job(), v.host(), v.server(), v.gpu(), v.window(), v.setting()],
        sections=[
            Section("What was changed", [_changed()]),
            _batched_tokens(),
            _num_seqs(),
            _capacity(),
            _prefix(),
            _offloading(),
            _host_overhead(),
            _graphs(),
            _speculation(),
            _quantization(),
        ],
    )
