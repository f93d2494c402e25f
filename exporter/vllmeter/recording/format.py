"""The recording format: endpoint bodies, NVML readings and processes over time, in one compressed file.

A ``.vmrec`` file is one or more xz streams, one after the other, of JSON lines (``xzcat FILE.vmrec`` shows them).
The first line is the header, every further line a record with the time ``t`` in seconds since the header's
``recorded``.  ``docs/recordings.md`` describes every field.  The writer ends an xz stream on every flush, so all that
was flushed can be read after a ``kill -9``; the reader reports a cut tail and goes on with what is there.
Both work in bounded memory: one body per server is kept, never the file.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

from vllmeter.recording.delta import DeltaError, apply_body_delta, apply_json_delta, body_delta, json_delta
from vllmeter.recording.documents import (
    DocumentError,
    nvml_from_json,
    nvml_to_json,
    processes_from_json,
    processes_to_json,
)
from vllmeter.snapshot import NvmlReading, ProcessTable

Json = Any

VERSION: Final = 1
"""Grows only when old readers would read a file wrongly; unknown keys and record kinds are skipped."""
SUFFIX: Final = ".vmrec"
KEYFRAME_EVERY: Final = 300
"""A full body at least this often, so that one damaged record cannot spoil a long recording."""
FLUSH_EVERY_SECONDS: Final = 10.0
FLUSH_BYTES: Final = 1 << 20
SMALL_FILE_BYTES: Final = 4 << 20
"""Files up to this size are read at once, so that no file stays open while a player waits."""
MAX_LINE_BYTES: Final = 64 << 20
MAX_DECODER_BYTES: Final = 128 << 20
_XZ_MAGIC: Final = b"\xfd7zXZ\0"
_CHUNK: Final = 1 << 16

_LIVE_FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20},)
"""While recording: about 12 MB of memory instead of preset 6's 94 MB."""
_SMALL_FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 22},)


class RecordingError(Exception):
    """A recording cannot be read.  The message names the file, the record and what to do."""


@dataclass(frozen=True, slots=True)
class RecordedServer:
    """One vLLM server of a recording.  ``flags``: vLLM flags by name with underscores, as far as known."""

    name: str
    port: int
    model: str | None = None
    version: str | None = None
    kind: str | None = None
    """generate, embed, rerank"""
    flags: Mapping[str, str] = field(default_factory=dict)
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """What a recording is about.  ``recorded`` is the Unix time of ``t`` = 0, ``boot`` of process start tick 0."""

    recorded: float
    servers: tuple[RecordedServer, ...]
    interval: float = 1.0
    boot: float | None = None
    tick_hertz: int = 100
    software: str = ""
    vllm: str | None = None
    gpus: tuple[str, ...] = ()
    """names of the GPUs"""
    driver: str | None = None
    state: str = ""
    """what went on, in words"""
    masked: tuple[str, ...] = ()
    """what was replaced before it was written"""
    notes: tuple[str, ...] = ()
    """what is not as the machine gave it (synthesised, filled in)"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a server's ``/metrics``.  ``took``: seconds, where known."""

    t: float
    server: str
    body: bytes
    content_type: str = "text/plain; version=1.0.0; charset=utf-8"
    status: int = 200
    took: float | None = None


@dataclass(frozen=True, slots=True)
class Down:
    """A server did not answer.  ``why``: refused, reset, timeout, …"""

    t: float
    server: str
    why: str


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of ``/health`` changed; ``status`` None = no answer."""

    t: float
    server: str
    status: int | None


@dataclass(frozen=True, slots=True)
class Phase:
    """A named part of the recording begins."""

    t: float
    name: str


@dataclass(frozen=True, slots=True)
class Gpus:
    """An NVML reading; its ``at`` is ``t``."""

    t: float
    reading: NvmlReading


@dataclass(frozen=True, slots=True)
class Processes:
    """A process table; its ``at`` is ``t``."""

    t: float
    table: ProcessTable


@dataclass(frozen=True, slots=True)
class End:
    """The recording was closed in good order."""

    t: float


Record = Answer | Down | Health | Phase | Gpus | Processes | End


# --------------------------------------------------------------------------- header


def _header_json(header: Header) -> dict[str, Json]:
    def plain(value: Any) -> Json:
        out: dict[str, Json] = {}
        for spec in fields(value):
            item = getattr(value, spec.name)
            default = spec.default_factory() if spec.default_factory is not MISSING else spec.default
            if item != default:
                out[spec.name] = (
                    [plain(part) if isinstance(part, RecordedServer) else part for part in item]
                    if isinstance(item, tuple)
                    else dict(item)
                    if isinstance(item, Mapping)
                    else item
                )
        return out

    return {"vmrec": VERSION, **plain(header)}


def _header_from_json(document: Json, where: str) -> Header:
    if not isinstance(document, dict) or "vmrec" not in document:
        raise RecordingError(f"{where}: the first line is not a recording header; this is not a vllmeter recording")
    if document["vmrec"] != VERSION:
        raise RecordingError(
            f"{where}: format version {document['vmrec']!r}, this vllmeter reads {VERSION}; use a newer vllmeter"
        )
    try:
        known = {spec.name for spec in fields(Header)}
        values = {key: value for key, value in document.items() if key in known}
        names = {spec.name for spec in fields(RecordedServer)}
        servers = []
        for item in values.pop("servers"):
            server = RecordedServer(**{key: value for key, value in item.items() if key in names})
            servers.append(replace(server, name=str(server.name), port=int(server.port)))
        for name in ("gpus", "masked", "notes"):
            if name in values:
                values[name] = tuple(values[name])
        header = Header(servers=tuple(servers), **values)
        float(header.recorded), float(header.interval)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise RecordingError(f"{where}: damaged header ({exc}); record it again") from exc
    return header


# --------------------------------------------------------------------------- writer


class RecordingWriter:
    """Writes a recording.  Safe to call from several threads.

    :param live: True while recording (small xz streams, little memory); False for one small file written at once
    :raises FileExistsError: ``path`` exists and ``overwrite`` is False
    """

    def __init__(
        self,
        path: Path | str,
        header: Header,
        *,
        live: bool = True,
        overwrite: bool = False,
        keyframe_every: int = KEYFRAME_EVERY,
    ) -> None:
        self.path = Path(path)
        self.header = header
        self.records = 0
        self._live = live
        self._keyframe_every = keyframe_every
        self._lock = threading.Lock()
        self._bodies: dict[str, tuple[list[str], str, int]] = {}
        self._nvml: Json = None
        self._processes: Json = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._flushed_at = 0.0
        self._last = 0.0
        self._closed = False
        self._failed = False
        self._good_bytes = 0
        # Unbuffered: what a failed write left behind can be cut off again.
        self._file = self.path.open("wb" if overwrite else "xb", buffering=0)
        try:
            self._put(_header_json(header))
            if live:
                self._flush()
        except BaseException:
            self._file.close()
            raise

    def write(self, record: Record) -> None:
        """Add a record.  Times should not go back; one that does is written at the time of the last.

        :raises OSError: the disk is full or gone; what was written before stays readable, further records are refused
        :raises ValueError: the recording is closed
        """
        with self._lock:
            if self._closed or self._failed:
                raise ValueError(f"{self.path}: the recording is closed")
            self._write(record)
            if self._live and (
                self._last - self._flushed_at >= FLUSH_EVERY_SECONDS or self._pending_bytes >= FLUSH_BYTES
            ):
                self._flush()

    def flush(self) -> None:
        """Make everything written so far readable, whatever happens to this process."""
        with self._lock:
            if not self._closed and not self._failed:
                self._flush()

    def close(self) -> None:
        """Write what is left and the end mark."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if not self._failed:
                    self._write(End(self._last))
                    self._flush()
            finally:
                self._file.close()

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, record: Record) -> None:
        self._last = max(self._last, round(record.t, 3))
        line: dict[str, Json] = {"t": self._last}
        match record:
            case Answer():
                line |= {"k": "body", "s": record.server, **self._answer(record)}
            case Down():
                line |= {"k": "down", "s": record.server, "why": record.why}
            case Health():
                line |= {"k": "health", "s": record.server, "status": record.status}
            case Phase():
                line |= {"k": "phase", "name": record.name}
            case Gpus():
                new = nvml_to_json(record.reading)
                line |= {"k": "nvml", "d": json_delta(self._nvml, new)}
                self._nvml = new
            case Processes():
                new = processes_to_json(record.table)
                line |= {"k": "proc", "d": json_delta(self._processes, new)}
                self._processes = new
            case End():
                line |= {"k": "end", "records": self.records}
        self._put(line)
        self.records += 1

    def _answer(self, record: Answer) -> dict[str, Json]:
        text = record.body.decode("utf-8", "surrogateescape")
        if record.status != 200:
            # An error page is no body to take differences from or to.
            return {"full": text, "type": record.content_type, "status": record.status, **_took(record)}
        new = text.split("\n")
        old, content_type, age = self._bodies.get(record.server, ([], "", self._keyframe_every))
        delta = body_delta(old, new) if age + 1 < self._keyframe_every else None
        out: dict[str, Json] = {"full": text} if delta is None else delta
        self._bodies[record.server] = (new, record.content_type, 0 if delta is None else age + 1)
        if record.content_type != content_type:
            out["type"] = record.content_type
        return {**out, **_took(record)}

    def _put(self, line: dict[str, Json]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._pending.append(data)
        self._pending_bytes += len(data)

    def _flush(self) -> None:
        if self._pending:
            filters: Sequence[Mapping[str, int]] = _LIVE_FILTERS if self._live else _SMALL_FILTERS
            data = lzma.compress(b"".join(self._pending), check=lzma.CHECK_CRC64, filters=[dict(f) for f in filters])
            self._pending.clear()
            self._pending_bytes = 0
            self._append(data)
        self._flushed_at = self._last

    def _append(self, data: bytes) -> None:
        """All of ``data``, or nothing and an error: half a block would spoil what comes after it."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError:
            self._failed = True
            with contextlib.suppress(OSError):
                self._file.truncate(self._good_bytes)
            raise
        self._good_bytes += len(data)


def _took(record: Answer) -> dict[str, Json]:
    return {} if record.took is None else {"took": round(record.took, 4)}


# --------------------------------------------------------------------------- reader


class RecordingReader:
    """Reads a recording from the beginning, record by record.

    ``truncated`` holds, once all records were read, why the end is missing (None when the file is whole).

    :raises RecordingError: not a recording, or damaged
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.truncated: str | None = None
        self.records = 0
        try:
            self._file: IO[bytes] = self._open()
        except OSError as exc:
            raise RecordingError(f"{self.path}: cannot be opened ({exc.strerror}); check the path") from exc
        self._lines = self._read_lines()
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._lines.close()
        self._file.close()

    def _open(self) -> IO[bytes]:
        file = self.path.open("rb")
        if os.fstat(file.fileno()).st_size > SMALL_FILE_BYTES:
            return file
        with file:
            return io.BytesIO(file.read())

    def _read_header(self) -> Header:
        magic = self._file.read(len(_XZ_MAGIC))
        self._file.seek(0)
        if not _XZ_MAGIC.startswith(magic):
            raise RecordingError(f"{self.path}: this is not a vllmeter recording ({SUFFIX}); check the path")
        first = next(self._lines, None)
        if first is None:
            raise RecordingError(f"{self.path}: holds no header (empty, or cut at the start); record it again")
        return _header_from_json(self._json(first), str(self.path))

    def __enter__(self) -> RecordingReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lines(self) -> Iterator[dict[str, Json]]:
        """The records as JSON objects, differences not applied (what :class:`Decoder` takes)."""
        ended = False
        for line in self._lines:
            self.records += 1
            document = self._json(line)
            if not isinstance(document, dict) or not isinstance(document.get("t"), (int, float)):
                raise self._error("has no time")
            ended = document.get("k") == "end"
            yield document
        if not ended and self.truncated is None:
            self.truncated = "the end mark is missing: recording was stopped the hard way"

    def __iter__(self) -> Iterator[Record]:
        decoder = Decoder(self)
        for line in self.lines():
            record = decoder.record(line)
            if record is not None:
                yield record

    def _error(self, what: str) -> RecordingError:
        return RecordingError(
            f"{self.path}: record {self.records} {what}; the file is damaged there. Copy it again from its source, "
            f"or keep the part before it: vllmeter record --copy {self.path} NEW{SUFFIX}"
        )

    def _json(self, line: bytes) -> Json:
        try:
            return json.loads(line)
        except ValueError as exc:
            raise self._error(f"is not JSON ({exc})") from exc

    def _read_lines(self) -> Generator[bytes, None, None]:
        decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_DECODER_BYTES)
        fresh = True
        rest = b""
        chunk = b""
        while True:
            if decoder.needs_input and not chunk:
                chunk = self._file.read(_CHUNK)
            if fresh:
                # Zero bytes between streams are padding; a file system may leave more of them after a crash.
                chunk = chunk.lstrip(b"\0")
                if not chunk:
                    if self._file.read(1) == b"":
                        break
                    self._file.seek(-1, io.SEEK_CUR)
                    continue
            ended = not chunk and decoder.needs_input
            if ended:
                break
            try:
                data = decoder.decompress(chunk, max_length=_CHUNK)
            except (lzma.LZMAError, EOFError) as exc:
                raise self._error(f"cannot be decompressed ({exc})") from exc
            chunk = b""
            fresh = False
            rest += data
            if b"\n" in data:
                *whole, rest = rest.split(b"\n")
                yield from whole
            elif len(rest) > MAX_LINE_BYTES:
                raise self._error(f"is longer than {MAX_LINE_BYTES} bytes")
            if decoder.eof:
                chunk = decoder.unused_data
                decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MAX_DECODER_BYTES)
                fresh = True
        if not fresh or rest:
            self.truncated = "the file ends in the middle of a block: what came before it was read"


@dataclass(slots=True)
class BodyState:
    """The newest body of one server as lines.  ``version`` grows with every change."""

    lines: list[str] = field(default_factory=list)
    content_type: str = "text/plain; version=1.0.0; charset=utf-8"
    status: int = 200
    took: float | None = None
    version: int = 0
    layout: int = 0
    """grows when lines were added, removed or replaced as a whole"""
    error: tuple[str, str] | None = None
    """text and content type of an answer other than 200; the lines stay as they were"""

    def body(self) -> bytes:
        """The body, byte for byte."""
        if self.error is not None:
            return self.error[0].encode("utf-8", "surrogateescape")
        return "\n".join(self.lines).encode("utf-8", "surrogateescape")


class Decoder:
    """Turns record lines into records; keeps one body per server and the newest documents."""

    def __init__(self, reader: RecordingReader) -> None:
        self._reader = reader
        self.bodies: dict[str, BodyState] = {}
        self.nvml: Json = None
        self.processes: Json = None

    def apply(self, line: Mapping[str, Json]) -> str:
        """Take a record line in; returns its kind ("body", "down", …; unknown kinds are left alone)."""
        kind = line.get("k")
        try:
            if kind == "body":
                self._body(line)
            elif kind == "nvml":
                self.nvml = apply_json_delta(self.nvml, line["d"])
            elif kind == "proc":
                self.processes = apply_json_delta(self.processes, line["d"])
        except (DeltaError, KeyError, TypeError) as exc:
            raise self._reader._error(f"({kind}) does not fit what came before ({exc})") from exc
        return str(kind)

    def record(self, line: Mapping[str, Json]) -> Record | None:
        """Take a record line in and return the record; None for a kind that this version does not know."""
        kind = self.apply(line)
        t = float(line["t"])
        try:
            if kind == "body":
                state = self.bodies[line["s"]]
                content_type = state.content_type if state.error is None else state.error[1]
                return Answer(t, line["s"], state.body(), content_type, state.status, state.took)
            if kind == "down":
                return Down(t, line["s"], line["why"])
            if kind == "health":
                return Health(t, line["s"], line["status"])
            if kind == "phase":
                return Phase(t, line["name"])
            if kind == "nvml":
                return Gpus(t, nvml_from_json(self.nvml, at=t, wall=self._reader.header.recorded + t))
            if kind == "proc":
                return Processes(t, processes_from_json(self.processes, at=t))
        except (DocumentError, KeyError, TypeError) as exc:
            raise self._reader._error(f"({kind}) is incomplete ({exc})") from exc
        return End(t) if kind == "end" else None

    def _body(self, line: Mapping[str, Json]) -> None:
        server = line["s"]
        state = self.bodies.get(server)
        status = line.get("status", 200)
        if "full" in line and state is None:
            state = self.bodies[server] = BodyState()
        if "full" in line and status != 200:
            assert state is not None
            state.error = (line["full"], line.get("type", ""))
        elif "full" in line:
            assert state is not None
            state.error = None
            state.lines = line["full"].split("\n")
            state.layout += 1
        elif state is None:
            raise DeltaError(f"a difference for {server!r} without a full body before it")
        else:
            state.error = None
            if apply_body_delta(state.lines, line) is None:
                state.layout += 1
        if status == 200:
            state.content_type = line.get("type", state.content_type)
        state.status = status
        state.took = line.get("took")
        state.version += 1


# --------------------------------------------------------------------------- what is in it


@dataclass(frozen=True, slots=True)
class Summary:
    """What one pass over a recording found.  ``duration`` is one interval past the last record."""

    header: Header
    duration: float
    records: int
    answers: Mapping[str, int]
    phases: tuple[tuple[float, str], ...]
    truncated: str | None
    bytes: int


def summarise(path: Path | str) -> Summary:
    """Read a recording once, checking every record.

    :raises RecordingError: not a recording, or damaged
    """
    answers: dict[str, int] = {}
    phases: list[tuple[float, str]] = []
    last = 0.0
    with RecordingReader(path) as reader:
        decoder = Decoder(reader)
        for line in reader.lines():
            last = max(last, float(line["t"]))
            kind = decoder.apply(line)
            if kind == "body":
                answers[line["s"]] = answers.get(line["s"], 0) + 1
            elif kind == "phase":
                phases.append((float(line["t"]), str(line.get("name", ""))))
        size = Path(path).stat().st_size
        return Summary(
            header=reader.header,
            duration=last + reader.header.interval,
            records=reader.records,
            answers=answers,
            phases=tuple(phases),
            truncated=reader.truncated,
            bytes=size,
        )


def copy(source: Path | str, target: Path | str, *, start: float = 0.0, stop: float | None = None) -> str | None:
    """Write a recording (or the slice ``start`` <= t < ``stop``) again as one small file.

    Of a damaged or cut file, what is readable is kept.  Returns why it is not whole, None when it is.
    A slice begins with the state that held at ``start``: the last answer, reading, table and phase before it.
    """
    with RecordingReader(source) as reader:
        header = replace(reader.header, recorded=reader.header.recorded + start)
        problem: str | None = None
        before: dict[tuple[str, str], Record] = {}
        with RecordingWriter(target, header, live=False) as writer:
            try:
                for record in reader:
                    if stop is not None and record.t >= stop:
                        break
                    if isinstance(record, End):
                        continue
                    if record.t < start:
                        server = getattr(record, "server", "")
                        kind = "answer" if isinstance(record, (Answer, Down)) else type(record).__name__
                        before[kind, server] = record
                        continue
                    for held in before.values():
                        writer.write(replace(held, t=0.0))
                    before.clear()
                    writer.write(replace(record, t=record.t - start))
                else:
                    problem = reader.truncated
            except RecordingError as exc:
                problem = str(exc)
            for held in before.values():
                writer.write(replace(held, t=0.0))
        return problem
