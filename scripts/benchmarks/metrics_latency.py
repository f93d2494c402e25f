"""Latency of ``/metrics`` at 50 requests a second while sampling goes on."""

from __future__ import annotations

from benchmarks import live
from benchmarks.registry import Figure

TITLE = "/metrics under 50 requests a second, while sampling at 1 Hz"
ORDER = 50

TARGETS = {3: 0.010, 200: 0.150}


def run(quick: bool) -> list[Figure]:
    """p50, p90, p99 and the largest of 3 and of 200 servers."""
    figures = []
    for servers, target in TARGETS.items():
        with live.replayed(servers) as replay, live.exporter(replay, servers) as running:
            live.costs([running], 5 if quick else 60)  # windows fill
            live.get(running.port, "/metrics")  # the first body is made while its scraper waits
            taken = live.latencies(running.port, "/metrics", 50, 10 if quick else 60)
        for share, label in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (1.0, "largest")):
            value = live.percentile(taken, share)
            promised = label == "p99"
            figures.append(
                Figure(
                    f"{servers} servers, {len(taken)} requests: {label}",
                    1e3 * value,
                    "ms",
                    f"under {1e3 * target:.0f} ms" if promised else "",
                    value < target if promised else None,
                    live.load_note() if promised else "",
                )
            )
    return figures
