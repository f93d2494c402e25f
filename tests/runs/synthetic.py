"""Runs made in memory: what a test needs of a store, without servers and without load tests."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from vllmeter.runs.model import FINISHED, Run, ServerConfig
from vllmeter.runs.results import ClientResult, RequestRecord
from vllmeter.runs.samples import HistogramSample, Sample, SampleWriter, ServerSample
from vllmeter.runs.store import RunStore

BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
START = 1_796_000_000.0
GIB = float(1 << 30)


def lockstep_requests(
    seed: int, n: int = 400, *, batch: int = 4, icc: float = 0.7, median: float = 0.08, sigma: float = 0.3
) -> tuple[RequestRecord, ...]:
    """Requests of a closed-loop client: batches every 3 s whose TTFTs go together."""
    generator = random.Random(seed)
    records = []
    for first in range(0, n, batch):
        common = generator.gauss(0, 1)
        for number in range(min(batch, n - first)):
            noise = math.sqrt(icc) * common + math.sqrt(1 - icc) * generator.gauss(0, 1)
            ttft = median * math.exp(sigma * noise)
            started = 100.0 + 3.0 * (first // batch) + 0.001 * number
            records.append(RequestRecord(started, ttft, ttft + 1.27, 0.01, 0.02, prompt_tokens=128, output_tokens=128))
    return tuple(records)


def result_of(records: Sequence[RequestRecord], **changes: Any) -> ClientResult:
    """A client result as an importer would give it."""
    ok = [each for each in records if each.ok]
    values: dict[str, Any] = {
        "tool": "vllm bench serve",
        "model": "chat",
        "completed": len(ok),
        "failed": len(records) - len(ok),
        "requests": tuple(records),
        "load": {"max_concurrency": "4", "mean_input_tokens": "128"},
    }
    return ClientResult(**{**values, **changes})


def histogram(values: Sequence[float]) -> HistogramSample:
    """Cumulative counts of ``values``."""
    counts = [0] * (len(BOUNDS) + 1)
    for value in values:
        counts[bisect.bisect_left(BOUNDS, value)] += 1
    total = 0.0
    cumulated = []
    for count in counts:
        total += count
        cumulated.append(total)
    return HistogramSample(BOUNDS, tuple(cumulated), math.fsum(values))


def samples_of(
    records: Sequence[RequestRecord],
    config: ServerConfig,
    started: float,
    *,
    neighbour_rate: float = 0.0,
    seconds: int | None = None,
) -> list[Sample]:
    """One sample a second of a server that serves ``records``, beside a neighbour with constant load."""
    zero = min(each.started or 0.0 for each in records) if records else 0.0
    events = sorted(
        (each.started - zero + each.ttft, each) for each in records if each.started is not None and each.ttft
    )
    ends = sorted((each.started - zero + each.e2e, each) for each in records if each.started is not None and each.e2e)
    length = seconds if seconds is not None else (int(ends[-1][0]) + 3 if ends else 3)
    found = []
    for second in range(-2, length):
        firsts = [each.ttft or 0.0 for when, each in events if when <= second]
        done = [each for when, each in ends if when <= second]
        running = sum(1 for each in records if (each.started or 0) - zero <= second) - len(done)
        key = (("engine", "0"),)
        server = ServerSample(
            wall=started + second,
            state="busy" if running else "ready",
            scalars={
                ("requests_running", key): float(running),
                ("requests_waiting", key): 0.0,
                ("kv_cache_usage_ratio", key): min(1.0, running / 50),
                ("preemptions_total", key): 2.0 if second > 5 else 0.0,
                ("generation_tokens_total", key): float(sum(each.output_tokens or 0 for each in done)),
                ("prompt_tokens_total", key): float(128 * len(firsts)),
                ("prefix_cache_queries_tokens_total", key): float(128 * len(firsts)),
                ("prefix_cache_hits_tokens_total", key): 0.0,
                ("requests_finished_total", (*key, ("reason", "length"))): float(len(done)),
            },
            histograms={
                ("ttft_seconds", key): histogram(firsts),
                ("e2e_latency_seconds", key): histogram([each.e2e or 0.0 for each in done]),
            },
            memory={"GPU-1": (5 * GIB, 6 * GIB)},
            config=config,
        )
        beside = ServerSample(
            wall=started + second,
            state="ready",
            scalars={
                ("prompt_tokens_total", key): neighbour_rate * (second + 2),
                ("requests_running", key): 1.0 if neighbour_rate else 0.0,
            },
            config=ServerConfig("embed"),
        )
        found.append(Sample(started + second, {"chat": server, "embed": beside}, {"GPU-1": 8 * GIB}, {"driver": "580"}))
    return found


def add_run(
    store: RunStore,
    name: str,
    records: Sequence[RequestRecord],
    *,
    scenario: str = "short",
    started: float = START,
    settings: Mapping[str, str] | None = None,
    neighbour_rate: float = 0.0,
    with_samples: bool = True,
    result: ClientResult | None = None,
    **changes: Any,
) -> Run:
    """Stores a finished run with samples and client result."""
    config = ServerConfig(
        "chat",
        "chat-model",
        "0.26.0",
        started - 300,
        dict(settings or {"max_num_batched_tokens": "2048"}),
        {"GPU-1": 6 * GIB},
    )
    samples = samples_of(records, config, started, neighbour_rate=neighbour_rate)
    values: dict[str, Any] = {
        "id": "",
        "name": name,
        "scenario": scenario,
        "server": "chat",
        "state": FINISHED,
        "started": started,
        "ended": samples[-1].wall,
        "exit_code": 0,
        "command": ("vllm", "bench", "serve"),
        "before": {"chat": config, "embed": ServerConfig("embed")},
        "after": {"chat": config, "embed": ServerConfig("embed")},
        "software": {"driver": "580"},
        "host": "gpu-host",
    }
    run = store.create(Run(**{**values, **changes}))
    if with_samples:
        with SampleWriter(store.samples_path(run.id)) as writer:
            for sample in samples:
                writer.write(sample)
    store.save_results(run.id, (result if result is not None else result_of(records),))
    store.save(run)
    return run


def add_sweep(
    store: RunStore,
    effects: Mapping[str, Mapping[str, float]],
    *,
    repeat: int = 3,
    n: int = 400,
    batch: int = 4,
    icc: float = 0.7,
    sigma: float = 0.3,
) -> None:
    """Interleaved repetitions: ``effects[candidate][scenario]`` is the factor on the median TTFT."""
    position = 0
    for repetition in range(1, repeat + 1):
        order = list(effects) if repetition % 2 else list(effects)[::-1]
        for name in order:
            for scenario, factor in effects[name].items():
                base = {"short": 0.08, "medium": 0.15, "long": 0.4}.get(scenario, 0.1)
                add_run(
                    store,
                    name,
                    lockstep_requests(
                        hash_seed(name, scenario, repetition),
                        n,
                        batch=batch,
                        icc=icc,
                        median=base * factor,
                        sigma=sigma,
                    ),
                    scenario=scenario,
                    started=START + 1000.0 * position,
                    settings={"max_num_batched_tokens": name},
                    repetition=repetition,
                    session="s",
                    position=position,
                )
                position += 1


def hash_seed(*parts: object) -> int:
    """The same number in every process (``hash`` of text is not)."""
    return sum(ord(letter) * (index + 1) for index, letter in enumerate(" ".join(map(str, parts))))
