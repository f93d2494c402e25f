"""Memory & budgets."""

# ruff: noqa: E501 - a text of a panel is one line

from __future__ import annotations

import house
import variables as v
from house import GREEN, ORANGE, VERMILLION
from layout import Board, Section
from panels import Column, Item, Look, Query, series, stat, table
from queries import CARD, MINUTE, SERVER_GPU, by_server, of, rule, window
from shared_panels import FROM_EXPORTER, NEEDS_NVML, card_budgets, card_memory

_ON_CARD = ("gpu", "uuid")


def _budgets() -> Item:
    def one(name: str) -> str:
        return by_server(of(name, by=SERVER_GPU), *_ON_CARD)

    limit = f"({one('server_gpu_memory_budget_bytes')} + {one('server_gpu_memory_allowance_bytes')})"
    return table(
        "Budgets",
        "What each server may take, will take and takes. Limit = budget + what normally comes on top (CUDA context, graphs where that "
        "vLLM version leaves them outside). Head room is measured from the high-water mark. Restart room: what would be left "
        "if the server restarted now; below 0 its start would fail.",
        [
            Query(one("server_gpu_memory_budget_bytes"), ref="A"),
            Query(limit, ref="B"),
            Query(one("server_gpu_memory_expected_bytes"), ref="C"),
            Query(one("server_gpu_memory_used_bytes"), ref="D"),
            Query(one("server_gpu_memory_high_water_bytes"), ref="E"),
            Query(f"{limit} - {one('server_gpu_memory_high_water_bytes')}", ref="F"),
            Query(f"{one('server_gpu_memory_used_bytes')} / ({limit} > 0)", ref="G"),
            Query(
                by_server(rule("gpu_memory_restart_room_bytes:diff", by=SERVER_GPU, level="server_gpu"), *_ON_CARD),
                ref="H",
            ),
        ],
        [
            Column("server", "Server"),
            Column("host", "Host"),
            Column("gpu", "GPU", width=60),
            Column("Value #A", "Budget", "bytes", 2),
            Column("Value #B", "Limit", "bytes", 2),
            Column("Value #C", "Will hold", "bytes", 2),
            Column("Value #D", "Used", "bytes", 2),
            Column("Value #E", "High water", "bytes", 2),
            Column("Value #F", "Head room", "bytes", 2, steps=((None, VERMILLION), (0, "text"))),
            Column(
                "Value #G",
                "Used of limit",
                "percentunit",
                1,
                gauge=True,
                maximum=1,
                steps=((None, GREEN), (1.0, VERMILLION)),
                width=170,
            ),
            Column("Value #H", "Restart room", "bytes", 2, steps=((None, VERMILLION), (0, "text"))),
        ],
        no_data=NEEDS_NVML + " Restart room also needs prometheus/rules.",
        height=7,
        sort="Server",
    )


def _found() -> Item:
    return table(
        "How the memory was found",
        "measured = read from NVML by process; estimated = from budget and log, because the driver hides processes; unavailable = the "
        "reason says why. An estimate is never shown as a measurement.",
        [
            Query(by_server(of("attribution_info"), "state", "method", "reason"), ref="A"),
            Query(by_server(of("server_processes"), how="sum"), ref="B"),
        ],
        [
            Column("server", "Server"),
            Column("host", "Host"),
            Column("state", "Memory is", words={"measured": GREEN, "estimated": ORANGE, "unavailable": VERMILLION}),
            Column("method", "Processes found by"),
            Column("reason", "Reason"),
            Column("Value #B", "Processes", "short", 0),
        ],
        no_data=FROM_EXPORTER,
        width=12,
        height=7,
        sort="Server",
    )


def _suspended() -> Item:
    return table(
        "Budgets not compared now",
        "Servers whose budget is not compared at the moment, and why (asleep, starting).",
        [Query(by_server(of("server_budget_suspended_info", by=SERVER_GPU), "gpu", "reason"))],
        [
            Column("server", "Server"),
            Column("host", "Host"),
            Column("gpu", "GPU", width=60),
            Column("reason", "Reason"),
        ],
        no_data="every budget is compared.",
        width=12,
        height=7,
        sort="Server",
    )


def _card() -> list[list[Item]]:
    cuda = f"max without (source) ({of('gpu_memory_cuda_total_bytes', by=CARD)})"
    return [
        [
            card_memory(),
            card_budgets(),
            series(
                "Promised to servers, against the card",
                "Sum of all budgets and allowances on the card, and what CUDA can use. Promised above there: the servers cannot all be "
                "started, even if they run now.",
                [
                    Query(of("gpu_memory_committed_bytes", by=CARD), "promised"),
                    Query(cuda, "there (CUDA)"),
                    Query(window("gpu_memory_used_peak_bytes", by=CARD, seconds=MINUTE), "used, peak"),
                ],
                unit="bytes",
                no_data="NVML is missing, or the budget of a server is unknown (give budget: in vllmeter.yaml).",
                by_server=False,
                looks=(
                    Look("/^promised/", ORANGE, width=2),
                    Look("/^there/", house.GPU_TOTAL, dashed=True),
                    Look("/^used/", house.SKY),
                ),
            ),
        ]
    ]


def _one_server() -> list[list[Item]]:
    parts = [Look(f"/^{part}$/", colour) for part, colour in house.PART_COLOURS.items()]
    return [
        [
            series(
                "What $server's memory is",
                "Parts of the memory (those above 0) as the server's start-up log and configuration say, stacked; context is what the parts leave of the "
                "measured memory. Solid line: measured. Dashed: limit.",
                [
                    Query(f"sum by (part) ({of('server_gpu_memory_part_bytes', by=SERVER_GPU)}) > 0", "{{part}}"),
                    Query(
                        f"sum (max without (source) ({of('server_gpu_memory_used_bytes', by=SERVER_GPU)}))", "measured"
                    ),
                    Query(
                        f"sum (max without (source) ({of('server_gpu_memory_budget_bytes', by=SERVER_GPU)})"
                        f" + max without (source) ({of('server_gpu_memory_allowance_bytes', by=SERVER_GPU)}))",
                        "limit",
                    ),
                ],
                unit="bytes",
                no_data="The parts stand in vLLM's start-up log: give log: (docker, file or journal) for this server in vllmeter.yaml.",
                width=12,
                height=9,
                by_server=False,
                stacked=True,
                looks=(
                    *parts,
                    Look("/^measured$/", "text", stacked=False, fill=0, width=2),
                    Look("/^limit$/", VERMILLION, stacked=False, fill=0, dashed=True),
                ),
                legend_values=("lastNotNull",),
            ),
            stat(
                "KV cache",
                "What the KV cache of this server holds: tokens (all engines) and bytes per GPU.",
                [
                    Query(f"min (max without (source) ({of('kv_cache_capacity_tokens')}))", "tokens"),
                    Query(f"min (max without (source) ({of('kv_cache_capacity_bytes')}))", "bytes"),
                    Query(
                        f"min (max without (source) ({of('kv_cache_capacity_bytes')})"
                        f" / (max without (source) ({of('kv_cache_capacity_tokens')}) > 0))",
                        "bytes per token",
                    ),
                ],
                unit="short",
                no_data="Tokens: vLLM 0.24 or its log. Bytes: its log. Pooling models: none.",
                width=4,
                height=9,
                names=True,
                decimals=1,
                looks=(Look("/^bytes/", unit="bytes"),),
            ),
            table(
                "Settings of $server",
                "Effective settings that decide about memory and scheduling, and where each was read: label = from the server itself, command = its "
                "command line, log = its start-up log.",
                [Query(by_server(of("server_setting_info"), "setting", "value", "source"))],
                [
                    Column("setting", "Setting"),
                    Column("value", "Value"),
                    Column("source", "Read from", width=90),
                ],
                no_data="No setting could be read: the server is down, or its processes are not visible.",
                width=8,
                height=9,
                sort="Setting",
            ),
        ]
    ]


def board() -> Board:
    """The dashboard."""
    return Board(
        name="memory-and-budgets",
        uid="memory",
        title="Memory & budgets",
        description="Who holds which part of the card's memory, against what it may take, and what is left.",
        variables=[v.datasource(), v.job(), v.host(), v.server(), v.gpu(), v.card()],
        sections=[
            Section("Budgets", [[_budgets()], [_found(), _suspended()]]),
            Section("Card $card", _card(), repeat="card"),
            Section("$server", _one_server(), repeat="server"),
        ],
    )
