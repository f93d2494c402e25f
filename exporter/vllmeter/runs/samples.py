"""The 1 s samples of a run: what is kept of ``/snapshot.json``, and the file it is kept in.

The file (``samples.jsonl.gz``) holds JSON lines.  A ``layout`` line names the series of one server once; each further
line is one second::

    {"layout": 3, "server": "chat", "scalars": [["requests_running", {"engine": "0"}], …],
     "histograms": [["ttft_seconds", {"engine": "0"}, [0.001, …]], …]}
    {"t": 1796129270.4, "servers": {"chat": {"layout": 3, "wall": …, "state": "busy", "values": […],
     "histograms": [[cumulative counts…, sum], …], "memory": {"GPU-…": [used, budget]}, …}}, "gpus": {"GPU-…": used}}

It is flushed every few seconds as a gzip stream of its own, so that a killed process loses only those.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from vllmeter.runs.model import ServerConfig

FLUSH_LINES: Final = 10

Key = tuple[str, tuple[tuple[str, str], ...]]
"""(family without prefix, sorted label pairs)"""


@dataclass(frozen=True, slots=True)
class HistogramSample:
    """Cumulative counts, one per bound plus +Inf, and the sum."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One server in one second.  ``wall``: when its answer came; None and empty mappings when there is none."""

    wall: float | None
    state: str = ""
    scalars: Mapping[Key, float] = field(default_factory=dict)
    histograms: Mapping[Key, HistogramSample] = field(default_factory=dict)
    memory: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """GPU uuid -> (used, budget) in bytes"""
    config: ServerConfig | None = None

    def total(self, family: str, **labels: str) -> float | None:
        """Sum over the series of ``family`` with these labels; None when there is none."""
        found = [
            v for (name, pairs), v in self.scalars.items() if name == family and labels.items() <= dict(pairs).items()
        ]
        return sum(found) if found else None

    def largest(self, family: str) -> float | None:
        """Largest over the series of ``family``; None when there is none."""
        return max((v for (name, _), v in self.scalars.items() if name == family), default=None)


@dataclass(frozen=True, slots=True)
class Sample:
    """All servers in one second; ``gpus`` maps uuid to used bytes."""

    wall: float
    servers: Mapping[str, ServerSample] = field(default_factory=dict)
    gpus: Mapping[str, float] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)


# --------------------------------------------------------------------------- from /snapshot.json


def sample_of(document: Mapping[str, Any]) -> Sample:
    """One second, from the document of :func:`vllmeter.render.document.snapshot_document`.

    Raises ValueError when the document is not one.
    """
    if not isinstance(document.get("servers"), list) or not isinstance(document.get("wall"), (int, float)):
        raise ValueError("not a snapshot document: servers or wall is missing")
    gpus = {}
    for view in document.get("gpus") or []:
        reading = view.get("reading") or {}
        used = reading.get("memory_used_bytes")
        if reading.get("uuid") and used is not None:
            gpus[str(reading["uuid"])] = float(used)
    nvml = document.get("nvml") or {}
    software = {"vllmeter": str(document.get("version", ""))}
    for name, key in (("driver", "driver_version"), ("cuda", "cuda_version")):
        if nvml.get(key):
            software[name] = str(nvml[key])
    for view in document.get("gpus") or []:
        reading = view.get("reading") or {}
        if reading.get("name"):
            software[f"gpu {view.get('gpu', reading.get('index', ''))}"] = str(reading["name"])
    servers = {str(view["name"]): _server(view) for view in document["servers"]}
    return Sample(float(document["wall"]), servers, gpus, software)


def _server(view: Mapping[str, Any]) -> ServerSample:
    memory: dict[str, tuple[float | None, float | None]] = {}
    for each in view.get("memory") or []:
        used, budget = (each.get("used") or {}).get("value"), (each.get("budget") or {}).get("value")
        memory[str(each.get("uuid", ""))] = (used, budget)
    config = ServerConfig(
        name=str(view["name"]),
        model=view.get("model_name"),
        version=view.get("version"),
        start_timestamp=view.get("start_timestamp"),
        settings={str(key): str(value) for key, value in (view.get("settings") or {}).items()},
        budgets={uuid: budget for uuid, (_, budget) in memory.items() if budget is not None},
        restarts=int(view.get("restarts") or 0),
        config_changes=int(view.get("config_changes") or 0),
    )
    reading = view.get("reading")
    if not reading:
        return ServerSample(None, str(view.get("state", "")), memory=memory, config=config)
    scalars: dict[Key, float] = {}
    for family, entries in reading.get("scalars", {}).items():
        for each in entries:
            if each.get("value") is not None:
                scalars[_key(family, each.get("labels"))] = float(each["value"])
    histograms = {}
    for family, entries in reading.get("histograms", {}).items():
        for each in entries:
            if each.get("sum") is not None and None not in each.get("buckets", [None]):
                histograms[_key(family, each.get("labels"))] = HistogramSample(
                    tuple(float(bound) for bound in each["bounds"]),
                    tuple(map(float, each["buckets"])),
                    float(each["sum"]),
                )
    wall = view.get("reading_wall")
    return ServerSample(
        float(wall) if wall is not None else None, str(view.get("state", "")), scalars, histograms, memory, config
    )


def _key(family: str, labels: Mapping[str, Any] | None) -> Key:
    return family, tuple(sorted((str(k), str(v)) for k, v in (labels or {}).items()))


# --------------------------------------------------------------------------- the file


class SampleWriter:
    """Appends samples to ``path``.  OSError (disk full) is passed on; what was flushed before stays readable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._layouts: dict[str, tuple[int, tuple[Any, ...]]] = {}
        self._configs: dict[str, ServerConfig | None] = {}
        self._pending: list[str] = []
        path.touch()

    def write(self, sample: Sample) -> None:
        """Adds one second."""
        servers = {name: self._server(name, each) for name, each in sample.servers.items()}
        line: dict[str, Any] = {"t": sample.wall, "servers": servers}
        if sample.gpus:
            line["gpus"] = sample.gpus
        self._pending.append(json.dumps(line, separators=(",", ":")))
        self.count += 1
        if len(self._pending) >= FLUSH_LINES:
            self.flush()

    def _server(self, name: str, sample: ServerSample) -> dict[str, Any]:
        found: dict[str, Any] = {"state": sample.state}
        if sample.memory:
            found["memory"] = {uuid: list(pair) for uuid, pair in sample.memory.items()}
        if sample.config != self._configs.get(name):
            # a change of configuration is kept where it happened
            self._configs[name] = sample.config
            if sample.config is not None:
                found["config"] = {
                    "restarts": sample.config.restarts,
                    "config_changes": sample.config.config_changes,
                    "start_timestamp": sample.config.start_timestamp,
                }
        if sample.wall is None:
            return found
        shape = (tuple(sample.scalars), tuple((key, each.bounds) for key, each in sample.histograms.items()))
        number, known = self._layouts.get(name, (0, ()))
        if known != shape:
            number = max((each for each, _ in self._layouts.values()), default=0) + 1
            self._layouts[name] = (number, shape)
            layout = {
                "layout": number,
                "server": name,
                "scalars": [[family, dict(labels)] for family, labels in sample.scalars],
                "histograms": [[key[0], dict(key[1]), list(each.bounds)] for key, each in sample.histograms.items()],
            }
            self._pending.append(json.dumps(layout, separators=(",", ":")))
        found["wall"] = sample.wall
        found["layout"] = number
        found["values"] = [_short(value) for value in sample.scalars.values()]
        found["histograms"] = [[*map(_short, each.counts), each.sum] for each in sample.histograms.values()]
        return found

    def flush(self) -> None:
        """Makes everything written so far survive this process."""
        if self._pending:
            data = gzip.compress(("\n".join(self._pending) + "\n").encode(), 6, mtime=0)
            before = self.path.stat().st_size
            try:
                with self.path.open("ab") as file:
                    file.write(data)
            except OSError:
                # a part of a gzip stream would hide everything after it
                os.truncate(self.path, before)
                raise
            self._pending.clear()

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()


def _short(value: float) -> float | int:
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def read_samples(path: Path) -> tuple[list[Sample], str | None]:
    """(samples, why the end is missing).  A damaged or cut file gives what is readable before the damage."""
    samples: list[Sample] = []
    layouts: dict[int, tuple[list[Key], list[tuple[Key, tuple[float, ...]]]]] = {}
    try:
        for line in _lines(path):
            data = json.loads(line)
            if "layout" in data and "t" not in data:
                layouts[data["layout"]] = (
                    [_key(family, labels) for family, labels in data["scalars"]],
                    [(_key(family, labels), tuple(bounds)) for family, labels, bounds in data["histograms"]],
                )
                continue
            servers = {name: _stored(name, each, layouts) for name, each in data["servers"].items()}
            samples.append(Sample(float(data["t"]), servers, data.get("gpus", {})))
    except FileNotFoundError:
        return [], "no samples were stored"
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        return samples, f"the sample file is damaged after {len(samples)} samples ({type(error).__name__}: {error})"
    return samples, None


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from file


def _stored(
    name: str,
    data: Mapping[str, Any],
    layouts: Mapping[int, tuple[list[Key], list[tuple[Key, tuple[float, ...]]]]],
) -> ServerSample:
    memory = {uuid: (pair[0], pair[1]) for uuid, pair in data.get("memory", {}).items()}
    config = None
    if "config" in data:
        config = ServerConfig(name, **data["config"])
    if "layout" not in data:
        return ServerSample(None, data.get("state", ""), memory=memory, config=config)
    scalars, histograms = layouts[data["layout"]]
    return ServerSample(
        wall=data["wall"],
        state=data.get("state", ""),
        scalars=dict(zip(scalars, map(float, data["values"]), strict=True)),
        histograms={
            key: HistogramSample(bounds, tuple(map(float, values[:-1])), float(values[-1]))
            for (key, bounds), values in zip(histograms, data["histograms"], strict=True)
        },
        memory=memory,
        config=config,
    )
