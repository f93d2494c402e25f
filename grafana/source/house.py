"""House defaults: every choice that all dashboards share, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UID_PREFIX: Final = "vllmeter-"
TAG: Final = "vllmeter"
"""The link menu of every dashboard lists what has this tag."""

DATASOURCE: Final = "${datasource}"
TIME_FROM: Final = "now-30m"
TIME_TO: Final = "now"
REFRESH: Final = "10s"
REFRESH_CHOICES: Final = ("5s", "10s", "30s", "1m", "5m", "15m")
SCHEMA_VERSION: Final = 39
"""Grafana 10.4 and newer open this schema without a migration that drops anything we use."""

GRID: Final = 24
MIN_WIDTH: Final = 4
"""Narrower panels cannot be read at 1366 px, where a grid column has about 54 px."""

SPAN_NULLS: Final = False
"""A gap is a gap: absent must look absent."""

# Okabe and Ito's palette, lightened where it must stand on Grafana's dark background.  tests/grafana measures the
# distance of every pair under protanopia, deuteranopia and tritanopia.
SKY: Final = "#56B4E9"
ORANGE: Final = "#E69F00"
PURPLE: Final = "#CC79A7"
GREEN: Final = "#009E73"
BLUE: Final = "#3274D9"
VIOLET: Final = "#9050DD"
VERMILLION: Final = "#D55E00"
YELLOW: Final = "#F0E442"
GREY: Final = "#8E8E8E"
PALE: Final = "#C4C4C4"

SERVER_PALETTE: Final = (SKY, ORANGE, PURPLE, GREEN, VIOLET, VERMILLION, YELLOW)
DEFAULT_SERVERS: Final = ("vllm-qwen3", "vllm-embed", "vllm-reranker", "vllm-chat", "vllm-m3")
"""Names of compose.yaml, of the demo and of the examples; ``build.py --servers`` takes others.

A name that is not listed gets Grafana's colour by name: the same in every panel, but not chosen for contrast.
"""

OTHER_PROGRAMS: Final = "#8B6F47"
UNATTRIBUTED: Final = GREY
LIMIT: Final = VERMILLION
GPU_TOTAL: Final = "text"
"""The theme's own: visible on dark and on light"""

# What a part of GPU memory, a phase of a request or a state is drawn in, everywhere.
PART_COLOURS: Final[Mapping[str, str]] = {
    "weights": BLUE,
    "kv_cache": GREEN,
    "activation_peak": ORANGE,
    "non_torch": PURPLE,
    "cuda_graphs": YELLOW,
    "context": GREY,
}
PHASE_COLOURS: Final[Mapping[str, str]] = {"queue": VERMILLION, "prefill": ORANGE, "decode": SKY}
SOURCE_COLOURS: Final[Mapping[str, str]] = {
    "computed": ORANGE,
    "cached": GREEN,
    "local_compute": ORANGE,
    "local_cache_hit": GREEN,
    "external_kv_transfer": PURPLE,
}
QUANTILE_COLOURS: Final[Mapping[str, str]] = {"p50": GREEN, "p95": ORANGE, "p99": VERMILLION}
ROLE_COLOURS: Final[Mapping[str, str]] = {"api_server": SKY, "engine_core": ORANGE, "worker": PURPLE}
RUN_COLOURS: Final[Mapping[str, str]] = {"A": SKY, "B": ORANGE}

STATE_COLOURS: Final[Mapping[str, str]] = {
    "ready": GREEN,
    "busy": SKY,
    "starting": PURPLE,
    "sleeping": BLUE,
    "late": YELLOW,
    "stale_gauges": PALE,
    "unknown_progress": GREY,
    "stuck": ORANGE,
    "failing": ORANGE,
    "engine_dead": VERMILLION,
    "gone": VERMILLION,
}
"""States of a server, best first; the numbers that panels map to these words are the positions in this table."""


def server_colours(servers: tuple[str, ...]) -> dict[str, str]:
    """Colour of each listed server; the palette begins again after its last colour."""
    return {name: SERVER_PALETTE[number % len(SERVER_PALETTE)] for number, name in enumerate(servers)}
