"""A small vLLM that exists only as counters: what its /metrics would say after any sequence of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from vllmeter.snapshot import HistogramRef, Layout, ScalarRef, ServerReading
from vllmeter.windows.cells import Bounds, bucket_of
from windows.bounds_brute import TTFT

ITL: Bounds = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
E2E: Bounds = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)

COUNTERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "preemptions_total": (),
    "prompt_tokens_total": (),
    "generation_tokens_total": (),
    "prefix_cache_queries_tokens_total": (),
    "prefix_cache_hits_tokens_total": (),
    "requests_finished_total": (("reason", "stop"),),
}
GAUGES = ("requests_running", "requests_waiting", "kv_cache_usage_ratio")


def layout_of(engines: Sequence[str], bounds: Bounds = TTFT, **cache_config: str) -> Layout:
    """The shape of a body with these engines."""
    scalars = []
    histograms = []
    for engine in engines:
        label = ("engine", engine)
        scalars += [ScalarRef(name, (label,), f"vllm:{name}") for name in GAUGES]
        scalars += [ScalarRef(name, (label, *more), f"vllm:{name}") for name, more in COUNTERS.items()]
        for name, its in (("ttft_seconds", bounds), ("inter_token_latency_seconds", ITL), ("e2e_latency_seconds", E2E)):
            histograms.append(HistogramRef(name, (label,), f"vllm:{name}", its))
    return Layout(tuple(scalars), tuple(histograms), ("sim",), tuple(engines), dict.fromkeys(engines, cache_config))


@dataclass
class Engine:
    """Counters of one engine since its process started."""

    bounds: Bounds
    gauges: dict[str, float] = field(default_factory=lambda: dict.fromkeys(GAUGES, 0.0))
    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0.0))
    counts: dict[str, list[int]] = field(init=False)
    sums: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        sizes = {"ttft_seconds": self.bounds, "inter_token_latency_seconds": ITL, "e2e_latency_seconds": E2E}
        self.counts = {name: [0] * (len(bounds) + 1) for name, bounds in sizes.items()}
        self.sums = dict.fromkeys(sizes, 0.0)

    def record(self, name: str, value: float) -> None:
        """One observation of a histogram."""
        bounds = {"ttft_seconds": self.bounds, "inter_token_latency_seconds": ITL, "e2e_latency_seconds": E2E}[name]
        self.counts[name][bucket_of(value, bounds)] += 1
        self.sums[name] += value


class Server:
    """A server process (or several, one after the other) with one or more engines."""

    def __init__(self, start: float = 1000.0, engines: Sequence[str] = ("0",), bounds: Bounds = TTFT) -> None:
        self.names = tuple(engines)
        self.bounds = bounds
        self.layout = layout_of(self.names, bounds)
        self.says_start = True
        self.restart(start)

    def restart(self, start: float) -> None:
        """A new process: everything from 0."""
        self.start = start
        self.engines = {name: Engine(self.bounds) for name in self.names}

    def request(self, ttft: float, engine: str = "0", tokens: int = 10) -> None:
        """A request got its first token and finished."""
        one = self.engines[engine]
        one.record("ttft_seconds", ttft)
        one.record("e2e_latency_seconds", ttft + 0.01 * tokens)
        one.counters["prompt_tokens_total"] += 100
        one.counters["generation_tokens_total"] += tokens
        one.counters["requests_finished_total"] += 1

    def reading(self) -> ServerReading:
        """What /metrics says now."""
        values = []
        buckets = []
        sums = []
        for name in self.names:
            one = self.engines[name]
            values += [*one.gauges.values(), *one.counters.values()]
            for family, counts in one.counts.items():
                buckets.append(tuple(float(n) for n in accumulate(counts)))
                sums.append(one.sums[family])
        return ServerReading(
            self.layout, tuple(values), tuple(buckets), tuple(sums), self.start if self.says_start else None
        )
