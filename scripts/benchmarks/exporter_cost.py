"""CPU and memory of the whole exporter, as a process of its own, for 3 and for 200 servers at 1 Hz.

With a real NVML three processes hold memory on the card: readings of processes are most of what NVML costs.  Judged
once those are no longer young, since processes younger than two minutes are looked at more often.
"""

from __future__ import annotations

import contextlib

from benchmarks import live, nvml_peers
from benchmarks.registry import Figure

TITLE = "whole exporter: CPU and memory at 1 Hz"
ORDER = 40

TARGETS = {3: (0.01, 90e6), 200: (0.50, 400e6)}


def run(quick: bool) -> list[Figure]:
    """Share of a core and resident bytes, with a scrape of /metrics every 15 s as Prometheus makes it."""
    figures = []
    for servers, (cpu, memory) in TARGETS.items():
        with contextlib.ExitStack() as stack:
            replay = stack.enter_context(live.replayed(servers))
            real = live.NVML == "real"
            held = stack.enter_context(nvml_peers.held(replay.folder)) if real else 0
            running = stack.enter_context(live.exporter(replay, servers, live.NVML))
            live.costs([running], 5 if quick else 130)
            with live.scraped(running, every=15.0):
                cost = live.costs([running], 20 if quick else 120)[0]
        note = live.load_note() + (f"; {held} processes on the card" if real else "")
        figures += [
            Figure(
                f"{servers} servers: CPU", 100 * cost.share, "%", f"under {100 * cpu:.0f} %", cost.share < cpu, note
            ),
            Figure(
                f"{servers} servers: memory",
                cost.memory / 1e6,
                "MB",
                f"under {memory / 1e6:.0f} MB",
                cost.memory < memory,
            ),
        ]
    return figures
