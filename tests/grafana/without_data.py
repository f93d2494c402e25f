"""Queries that the recording cannot answer, each with the reason.  One that does answer must leave this table."""

from __future__ import annotations

from typing import Final

_OFFLOAD = "the recorded servers ran without KV offloading"
_SPECULATION = "the recorded model ran without speculation"
_POOLING = "a pooling model has no KV cache in use, no decode, no prefix cache"
_DEFAULT = "the flag was left at vLLM's default, which is not reported"

NO_DATA: Final = {
    ("overview", "Who holds the card", "B"): "no other program was on the card",
    ("overview", "Failed requests per second", "A"): "no request was answered with 5xx",
    ("overview", "Failed requests per second", "C"): "vLLM 0.26 has no queue limit to refuse with",
    ("load-test", "Run A", "B"): "the end of the run is known, so the length is",
    ("load-test", "Run B", "B"): "the same",
    ("memory-and-budgets", "Who holds the card", "B"): "no other program was on the card",
    ("memory-and-budgets", "Budgets not compared now", "A"): "no server slept; while starting there is no memory yet",
    ("cache-and-evictions", "Offloading: bytes per second", "*"): _OFFLOAD,
    ("cache-and-evictions", "Offloading: time spent", "*"): _OFFLOAD,
    ("cache-and-evictions", "Hits in the outer tier", "A"): _OFFLOAD,
    ("tuning-levers", "Offloading: bytes per second", "*"): _OFFLOAD,
    ("tuning-levers", "Offloading: time spent", "*"): _OFFLOAD,
    ("tuning-levers", "Accepted of proposed", "A"): _SPECULATION,
    ("tuning-levers", "Tokens per verify step", "A"): _SPECULATION,
    ("tuning-levers", "Cores used, by role", "A"): "CPU times of processes were not recorded",
    ("exporter-health", "Time of an NVML tick", "A"): "the time of a tick was not recorded",
    ("exporter-health", "NVML: what it says", "A"): "NVML gave everything",
}
"""(dashboard, panel, refId or ``*`` for all) -> reason"""

NO_DATA_IN_ROW: Final = {
    ("tuning-levers", "KV offloading", "Set to", "A"): _OFFLOAD,
    ("tuning-levers", "Stream interval and host overhead", "Set to", "A"): _DEFAULT,
    ("tuning-levers", "Speculation: --speculative-config", "Set to", "A"): _SPECULATION,
}
"""(dashboard, row, panel, refId), where several panels have one title"""

NO_DATA_FOR_SERVER: Final = {
    ("latency-and-jitter", "Where the time goes", "C"): _POOLING,
    ("memory-and-budgets", "KV cache", "A"): _POOLING,
    ("memory-and-budgets", "KV cache", "B"): _POOLING,
    ("memory-and-budgets", "KV cache", "C"): _POOLING,
}
"""(dashboard, panel, refId) of rows repeated by server -> why ``vllm-embed`` and ``vllm-reranker`` have none"""

OUTSIDE: Final = {
    ("load-test", "Difference, whole runs", "C"): (-1.0, 10.0, "a difference, not a share"),
    ("load-test", "Difference, whole runs", "A"): (0.0, 1e6, "measures of several units in one column"),
    ("load-test", "Difference, whole runs", "B"): (0.0, 1e6, "measures of several units in one column"),
    ("load-test", "Run A", "C"): (1.5e12, 2.5e12, "a moment in milliseconds"),
    ("load-test", "Run B", "C"): (1.5e12, 2.5e12, "a moment in milliseconds"),
}
"""(dashboard, panel, refId) -> lowest, highest, reason why the unit's range does not hold"""
