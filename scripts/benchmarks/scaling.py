"""What one more server costs: the same exporter with 5 to 200 servers."""

from __future__ import annotations

from benchmarks import live
from benchmarks.registry import Figure

TITLE = "cost per added server"
ORDER = 45

COUNTS = (5, 25, 100, 200)
CURVE = 1.5
"""The dearest step may cost this many times the cheapest one; quadratic work would show as a factor of ten."""


def run(quick: bool) -> list[Figure]:
    """CPU and memory per added server between successive sizes."""
    counts = COUNTS[:3] if quick else COUNTS
    measured = []
    with live.replayed(counts[-1]) as replay:
        for servers in counts:
            with live.exporter(replay, servers) as running:
                live.costs([running], 3 if quick else 10)
                measured.append(live.costs([running], 10 if quick else 40)[0])
    figures = []
    steps = []
    for (fewer, before), (more, after) in zip(
        zip(counts, measured, strict=True), zip(counts[1:], measured[1:], strict=False), strict=False
    ):
        step = (after.share - before.share) / (more - fewer)
        steps.append(step)
        figures += [
            Figure(f"{fewer} to {more} servers: CPU per added server", 1e3 * step, "ms/s"),
            Figure(
                f"{fewer} to {more} servers: memory per added server",
                (after.memory - before.memory) / (more - fewer) / 1e3,
                "kB",
            ),
        ]
    ratio = steps[-1] / steps[0]
    figures.append(
        Figure("last step against first", ratio, "x", f"under {CURVE} (linear)", ratio < CURVE, live.load_note())
    )
    return figures
