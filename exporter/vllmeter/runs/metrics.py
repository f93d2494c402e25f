"""The metrics of a comparison, in the order of the reports: explicit table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a report.

    ``side``: ``client`` (the load-test tool) or ``server`` (1 s samples).  ``unit``: s, ratio, tokens/s, requests/s,
    bytes, count.  ``lower``: smaller is better; None = neither (no verdict).  ``q``: quantile, None for means.
    ``headline``: decides the conclusion and ``--fail-on regression``.
    """

    side: str
    key: str
    title: str
    unit: str
    lower: bool | None = None
    q: float | None = None
    headline: bool = False

    @property
    def id(self) -> str:
        """Unique name, as in JSON and ``--metric``."""
        return f"{self.side}.{self.key}"


METRICS: Final = (
    Metric("client", "ttft_mean", "TTFT mean", "s", True, headline=True),
    Metric("client", "ttft_p50", "TTFT p50", "s", True, 0.5),
    Metric("client", "ttft_p95", "TTFT p95", "s", True, 0.95, headline=True),
    Metric("client", "ttft_p99", "TTFT p99", "s", True, 0.99),
    Metric("client", "ttft_jitter", "TTFT jitter (std dev)", "s"),
    Metric("client", "itl_mean", "ITL mean", "s", True, headline=True),
    Metric("client", "itl_p95", "ITL p95 (of request means)", "s", True, 0.95),
    Metric("client", "e2e_mean", "end-to-end mean", "s", True, headline=True),
    Metric("client", "e2e_p95", "end-to-end p95", "s", True, 0.95),
    Metric("client", "output_rate", "output tokens per second", "tokens/s", False, headline=True),
    Metric("client", "request_rate", "requests per second", "requests/s", False),
    Metric("client", "success", "success rate", "ratio"),
    Metric("server", "ttft_mean", "TTFT mean", "s", True, headline=True),
    Metric("server", "ttft_p50", "TTFT p50 (bounds)", "s"),
    Metric("server", "ttft_p95", "TTFT p95 (bounds)", "s"),
    Metric("server", "ttft_p99", "TTFT p99 (bounds)", "s"),
    Metric("server", "ttft_jitter", "TTFT jitter (std dev)", "s"),
    Metric("server", "itl_mean", "ITL mean", "s", True),
    Metric("server", "e2e_mean", "end-to-end mean", "s", True),
    Metric("server", "queue_mean", "queue time mean", "s", True),
    Metric("server", "output_rate", "generated tokens/s while busy", "tokens/s", False),
    Metric("server", "prompt_rate", "prompt tokens/s while busy", "tokens/s"),
    Metric("server", "finished", "requests finished", "count"),
    Metric("server", "success", "finished without error", "ratio"),
    Metric("server", "waiting_peak", "peak waiting requests", "count"),
    Metric("server", "running_peak", "peak running requests", "count"),
    Metric("server", "preemptions", "preemptions", "count"),
    Metric("server", "prefix_hit", "prefix cache hit ratio", "ratio"),
    Metric("server", "kv_peak", "peak KV cache usage", "ratio"),
    Metric("server", "memory_peak", "peak GPU memory", "bytes"),
    Metric("server", "memory_of_budget", "peak GPU memory / budget", "ratio"),
)
BY_ID: Final = {metric.id: metric for metric in METRICS}

TABLE: Final = ("client.ttft_mean", "client.ttft_p95", "client.e2e_mean", "client.output_rate")
"""Metrics of the table candidates × scenarios; the server's where there is no client result."""
