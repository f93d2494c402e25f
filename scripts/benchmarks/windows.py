"""Windows of 200 servers at one sample a second: CPU of everything between a reading and its windowed values."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

from benchmarks.registry import CAPTURES, Figure

from vllmeter.exposition.parse import Parser
from vllmeter.recording.format import Answer, RecordingReader
from vllmeter.snapshot import ServerReading
from vllmeter.upstream.normalise import Normaliser
from vllmeter.windows.tracker import GpuSample, HostTracker, ServerTracker

TITLE = "windows of 200 servers at 1 Hz"
ORDER = 30

TARGET_SHARE = 0.20
TARGET_BYTES = 1e6


def loaded() -> list[ServerReading]:
    """Readings of a server under load (queue, preemptions, every histogram moving)."""
    parser, normaliser = Parser(), Normaliser()
    with RecordingReader(CAPTURES / "vllm-0.32.0-cpu-chat.vmrec") as reader:
        bodies = [record for record in reader if isinstance(record, Answer)]
    readings = [normaliser.normalise(parser.parse(one.body, one.content_type)) for one in bodies]
    # New HTTP handlers change the shape on the way: keep one shape, so that rounds can be added up.
    return [reading for reading in readings[25:] if reading.layout is readings[-1].layout]


def endless(readings: list[ServerReading], number: int) -> ServerReading:
    """The recording played round and round without a counter reset: each round starts where the last one ended."""
    rounds, place = divmod(number, len(readings))
    one, first, last = readings[place], readings[0], readings[-1]
    counters = ["_total" in ref.family for ref in one.layout.scalars]
    return replace(
        one,
        values=[
            value + rounds * (end - begin) if counter else value
            for value, begin, end, counter in zip(one.values, first.values, last.values, counters, strict=True)
        ],
        buckets=[
            [n + rounds * (end - begin) for n, begin, end in zip(own, start, stop, strict=True)]
            for own, start, stop in zip(one.buckets, first.buckets, last.buckets, strict=True)
        ],
        sums=[
            total + rounds * (end - begin) for total, begin, end in zip(one.sums, first.sums, last.sums, strict=True)
        ],
    )


def cost(readings: list[ServerReading], servers: int, seconds: int) -> float:
    """CPU seconds per second of sampling, windows and contention, once the 60 s window is full."""
    trackers = [ServerTracker(f"server-{number}") for number in range(servers)]
    host = HostTracker()
    uuids = [f"GPU-{number}" for number in range(max(1, servers // 25))]
    memory: dict[str, dict[str, float | None]] = {}
    for number, tracker in enumerate(trackers):
        host.add(tracker)
        memory[tracker.name] = {uuids[number % len(uuids)]: 1e9}
    gpus = {uuid: GpuSample(5e10, 0.5) for uuid in uuids}
    spent = 0.0
    for second in range(60 + seconds):
        reading = endless(readings, second)
        begin = process_time()
        for number, tracker in enumerate(trackers):
            tracker.observe(reading, second + number / servers * 0.9, wall=1.8e9 + second)
        host.observe(second + 0.95, gpus=gpus, memory=memory)
        for tracker in trackers:
            for seconds_ in (15.0, 60.0):
                host.windowed(tracker.name, seconds_)
        if second >= 60:
            spent += process_time() - begin
    return spent / seconds


def run(quick: bool) -> list[Figure]:
    """CPU of 200 and of 50 servers, and bytes of one server after the ring is full."""
    readings = loaded()
    many, few = (100, 25) if quick else (200, 50)
    seconds = 5 if quick else 20
    large, small = cost(readings, many, seconds), cost(readings, few, seconds)
    tracker = ServerTracker("full")
    for second in range(300 if quick else 1100):
        tracker.observe(endless(readings, second), float(second), wall=1.8e9 + second)
    size = float(tracker.size())
    return [
        Figure(
            f"CPU of {many} servers, both windows",
            100 * large,
            "% of a core",
            "under 20 % for 200",
            large * 200 / many <= TARGET_SHARE,
        ),
        Figure(
            f"cost per server, {many} against {few} servers", (large / many) / (small / few), "x", note="1 = linear"
        ),
        Figure("packed history of one busy server", size / 1e3, "kB", "under 1 MB", size < TARGET_BYTES),
    ]
