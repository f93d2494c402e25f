"""A run out of a recording (``.vmrec``): the same pipeline as live, fed from the file instead of the network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vllmeter.config.settings import Server, Settings
from vllmeter.recording.format import Answer, Down, End, Gpus, Health, Phase, Processes, RecordingReader
from vllmeter.render.document import snapshot_document
from vllmeter.runs.model import FINISHED, Run, ServerConfig
from vllmeter.runs.results import ClientResult
from vllmeter.runs.samples import Sample, SampleWriter, sample_of
from vllmeter.runs.store import RunStore, StoreError
from vllmeter.scrape.outcome import Fetch
from vllmeter.scrape.target import Target
from vllmeter.snapshot import NvmlReading, ProcessTable
from vllmeter.store import Store


def phases(path: Path) -> list[tuple[str, float, float]]:
    """(name, begin, end) of the named parts of a recording, Unix seconds.

    :raises vllmeter.recording.format.RecordingError: not a recording, or damaged
    """
    found: list[tuple[str, float]] = []
    last = 0.0
    with RecordingReader(path) as reader:
        for record in reader:
            last = max(last, record.t)
            if isinstance(record, Phase):
                found.append((record.name, record.t))
        zero = reader.header.recorded
    ends = [begin for _, begin in found[1:]] + [last]
    return [(name, zero + begin, zero + end) for (name, begin), end in zip(found, ends, strict=True)]


def samples(path: Path) -> Iterator[Sample]:
    """One sample for each second of the recording, made by the exporter's own store.

    :raises vllmeter.recording.format.RecordingError: not a recording, or damaged
    """
    with RecordingReader(path) as reader:
        header = reader.header
        servers = tuple(Server(name=each.name, url=f"http://127.0.0.1:{each.port}") for each in header.servers)
        settings = Settings(servers=servers)
        store = Store(settings)
        targets = {}
        for server, recorded in zip(servers, header.servers, strict=True):
            target = Target(server, header.interval)
            target.versioned(recorded.version)
            store.add(target)
            targets[server.name] = target
        nvml: NvmlReading | None = None
        table: ProcessTable | None = None
        pending = False
        healths: dict[str, int | None] = {}
        now = 0.0
        for record in reader:
            # times in a recording begin at 0, which is no time for "never" values: shifted by a day
            if pending and record.t > now + 0.4:
                yield _sample(store, now, header.recorded)
                pending = False
            now = record.t if not pending else max(now, record.t)
            at, wall = 86_400.0 + record.t, header.recorded + record.t
            match record:
                case Answer():
                    target = targets[record.server]
                    target.probed(healths.get(record.server, 200), at)
                    fetch = Fetch(record.took or 0.01, record.body, record.content_type, record.status)
                    store.observed(target, target.finish(fetch, at, wall), at, wall)
                    pending = True
                case Down():
                    target = targets[record.server]
                    target.probed(None, at)
                    healths.pop(record.server, None)
                    target.finish(Fetch(0.01, reason=record.why), at, wall)
                    store.observed(target, None, at, wall)
                    pending = True
                case Health():
                    healths[record.server] = record.status
                case Gpus():
                    nvml = replace(record.reading, at=at, wall=wall)
                    store.gpu_tick(nvml, table, None, at, wall)
                    pending = True
                case Processes():
                    table = replace(record.table, at=at)
                case Phase() | End():
                    pass
        if pending:
            yield _sample(store, now, header.recorded)


def _sample(store: Store, t: float, zero: float) -> Sample:
    return sample_of(snapshot_document(store.snapshot(86_400.0 + t, zero + t, max_age=0.0)))


def import_phase(
    store: RunStore,
    recorded: Sequence[Sample],
    phase: tuple[str, float, float],
    *,
    name: str,
    scenario: str,
    server: str = "",
    results: Sequence[ClientResult] = (),
    source: str = "recording",
) -> Run:
    """Stores one phase of a recording as a finished run.

    :raises StoreError: the phase holds no sample of the server, or nothing can be written
    """
    _, begin, end = phase
    part = [sample for sample in recorded if begin - 3 <= sample.wall <= end + 1]
    inside = [sample for sample in part if sample.wall >= begin]
    if not inside:
        raise StoreError(
            f"phase {phase[0]!r} holds no samples: `vllmeter replay FILE --list` shows what is in the file"
        )
    names = sorted({each for sample in inside for each in sample.servers})
    if server and server not in names:
        raise StoreError(f"no server {server!r} in the recording; it holds {', '.join(names)}")
    before = {each: config for each in names if (config := _config(inside, each, last=False)) is not None}
    after = {each: config for each in names if (config := _config(inside, each, last=True)) is not None}
    run = store.create(
        Run(
            id="",
            name=name,
            scenario=scenario,
            server=server,
            state=FINISHED,
            started=inside[0].wall,
            ended=end,
            before=before,
            after=after,
            software=inside[-1].software,
            sampled_by=source,
            notes=(f"imported from a recording on {time.strftime('%Y-%m-%d')}",),
        )
    )
    with SampleWriter(store.samples_path(run.id)) as writer:
        for sample in part:
            writer.write(sample)
    if results:
        store.save_results(run.id, results)
    store.save(run)
    return run


def _config(part: Sequence[Sample], name: str, *, last: bool) -> ServerConfig | None:
    found = [
        sample.servers[name].config
        for sample in part
        if name in sample.servers and sample.servers[name].wall is not None
    ]
    return found[-1 if last else 0] if found else None
