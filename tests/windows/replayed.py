"""Feeds recordings of real servers to the trackers, sample by sample, as the exporter would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vllmeter.exposition.parse import Parser
from vllmeter.recording.format import Answer, Down, Gpus, Phase, RecordingReader
from vllmeter.snapshot import NvmlReading, ServerReading
from vllmeter.upstream.normalise import Normaliser
from vllmeter.windows.tracker import GpuSample, HostTracker, ServerTracker

CAPTURES = Path(__file__).parents[1] / "captures"
GPU_CAPTURE = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
CPU_CAPTURE = CAPTURES / "vllm-0.32.0-cpu-chat.vmrec"


@dataclass(frozen=True)
class Step:
    """One sample of one server (``reading``) or why there is none (``why``), or an NVML tick."""

    t: float
    wall: float
    phase: str
    server: str = ""
    reading: ServerReading | None = None
    why: str = ""
    nvml: NvmlReading | None = None


@lru_cache(maxsize=4)
def steps(path: Path) -> tuple[Step, ...]:
    """The whole recording, read once per test session."""
    return tuple(_steps(path))


def _steps(path: Path) -> Iterator[Step]:
    with RecordingReader(path) as reader:
        recorded = reader.header.recorded
        parsers = {server.name: (Parser(), Normaliser()) for server in reader.header.servers}
        phase = ""
        for record in reader:
            if isinstance(record, Phase):
                phase = record.name
            elif isinstance(record, Answer):
                parser, normaliser = parsers[record.server]
                reading = normaliser.normalise(parser.parse(record.body, record.content_type))
                yield Step(record.t, recorded + record.t, phase, record.server, reading)
            elif isinstance(record, Down):
                yield Step(record.t, recorded + record.t, phase, record.server, why=record.why)
            elif isinstance(record, Gpus):
                yield Step(record.t, recorded + record.t, phase, nvml=record.reading)


class Replay:
    """A host with all servers of a recording; :meth:`play` yields after each step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.host = HostTracker()
        self.trackers: dict[str, ServerTracker] = {}

    def play(self, since: float = float("-inf")) -> Iterator[Step]:
        """Steps from ``since`` on: starting later is what a restarted exporter sees."""
        for step in steps(self.path):
            if step.t < since:
                continue
            if step.nvml is not None:
                gpus = {gpu.uuid: GpuSample(gpu.memory_used_bytes, gpu.utilization_ratio) for gpu in step.nvml.gpus}
                uuids: Mapping[str, float | None] = dict.fromkeys(gpus)
                self.host.observe(step.t, gpus=gpus, memory=dict.fromkeys(self.trackers, uuids))
            else:
                tracker = self.trackers.get(step.server)
                if tracker is None:
                    tracker = self.trackers[step.server] = ServerTracker(step.server)
                    self.host.add(tracker)
                if step.reading is not None:
                    tracker.observe(step.reading, step.t, wall=step.wall)
                else:
                    tracker.fail(step.why, step.t, wall=step.wall)
            yield step
