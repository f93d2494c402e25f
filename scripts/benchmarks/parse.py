"""Parse + normalise of successive bodies against prometheus_client's text parser, in one run."""

from __future__ import annotations

import gc
import re
import statistics
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from time import process_time

from benchmarks.registry import CAPTURES, Figure
from prometheus_client.parser import text_string_to_metric_families

from vllmeter.exposition.parse import Parser
from vllmeter.recording.format import Answer, RecordingReader
from vllmeter.upstream.normalise import Normaliser

TITLE = "parse + normalise against prometheus_client's parser"
ORDER = 10

TEXT = "text/plain; version=1.0.0; charset=utf-8"
TARGET = 20.0


def bodies(recording: Path, server: str) -> list[bytes]:
    """Bodies that a server of a recording answered, in order."""
    with RecordingReader(recording) as reader:
        return [r.body for r in reader if isinstance(r, Answer) and r.server == server and r.status == 200]


def changed(body: bytes, rounds: int, share: float) -> list[bytes]:
    """Copies of a body in each of which another ``share`` of the series has a new value."""
    lines = body.decode().split("\n")
    samples = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    each = max(1, round(len(samples) * share))
    turn = cycle(samples)
    out = []
    for number in range(rounds):
        for _ in range(each):
            i = next(turn)
            lines[i] = re.sub(r" \S+$", f" {number + 0.5}", lines[i])
        out.append("\n".join(lines).encode())
    return out


def took(work: Callable[[], object]) -> float:
    """CPU seconds of one call: other programs on the machine do not count."""
    start = process_time()
    work()
    return process_time() - start


def peer(body: bytes) -> list[tuple[str, dict[str, str], float]]:
    """What prometheus_client makes of a body."""
    return [
        (s.name, s.labels, s.value) for family in text_string_to_metric_families(body.decode()) for s in family.samples
    ]


def agree(every: Sequence[bytes]) -> bool:
    """Whether both sides read the same names, labels and values (our parser warm, as in use)."""
    parser = Parser()
    return all(
        [(s.name, dict(s.labels), v) for s, v in zip(e.series, e.values, strict=True)] == peer(body)
        for body in every
        for e in (parser.parse(body, TEXT),)
    )


def measure(every: Sequence[bytes], step: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds per body: ours warm (every body), ours cold and the peer (each ``step``-th body, in turn)."""
    parser, normaliser = Parser(), Normaliser()
    warm, cold, theirs = [], [], []
    # The first body is the cold start; it is measured as such below.
    normaliser.normalise(parser.parse(every[0], TEXT))
    gc.collect()
    for number, body in enumerate(every[1:]):
        warm.append(took(lambda body=body: normaliser.normalise(parser.parse(body, TEXT))))  # type: ignore[misc]
        if number % step == 0:
            theirs.append(took(lambda body=body: peer(body)))  # type: ignore[misc]
            cold.append(took(lambda body=body: Normaliser().normalise(Parser().parse(body, TEXT))))  # type: ignore[misc]
    return warm, cold, theirs


def kept(body: bytes, servers: int) -> float:
    """Bytes that one parser and one normaliser keep, over several servers with the same kind of body."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    held = []
    for _ in range(servers):
        pair = (Parser(), Normaliser())
        pair[1].normalise(pair[0].parse(bytes(body), TEXT))
        held.append(pair)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / len(held)


def run(quick: bool) -> list[Figure]:
    """Ratios over a CPU recording (62 kB), a GPU recording (59 kB) and bodies with 5 % of the series changed."""
    cpu = bodies(CAPTURES / "vllm-0.32.0-cpu-chat.vmrec", "vllm-qwen3")
    gpu = bodies(CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec", "vllm-qwen3")
    largest = max(cpu, key=len)
    cases = [
        (f"recording, {len(largest) / 1000:.0f} kB, under load", cpu, 4 if quick else 1),
        (f"recording, {len(max(gpu, key=len)) / 1000:.0f} kB, idle and load", gpu, 12 if quick else 3),
        ("62 kB with 5 % of the series changed", changed(largest, 40 if quick else 200, 0.05), 4 if quick else 2),
    ]
    figures = []
    for name, every, step in cases:
        warm, cold, theirs = measure(every, step)
        ours, other, first = statistics.fmean(warm), statistics.fmean(theirs), statistics.fmean(cold)
        ratio = other / ours
        figures += [
            Figure(f"{name}: ratio, warm", ratio, "x", f">= {TARGET:.0f}", ratio >= TARGET),
            Figure(f"{name}: ratio, cold", other / first, "x", note="new parser and plan for each body"),
            Figure(f"{name}: ours, warm", ours * 1e6, "us", note=f"median {statistics.median(warm) * 1e6:.0f} us"),
            Figure(f"{name}: ours, cold", first * 1e6, "us"),
            Figure(f"{name}: prometheus_client", other * 1e6, "us"),
        ]
    same = agree(cpu[:: 8 if quick else 1])
    figures.append(Figure("same names, labels and values as prometheus_client", float(same), "", "1", same))
    figures.append(Figure("kept per server", kept(largest, 10) / 1000, "kB"))
    return figures
