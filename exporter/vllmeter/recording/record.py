"""Makes a recording from live servers, NVML and the process table, masked before anything is written."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from vllmeter import __version__
from vllmeter.gpu.source import GpuSource
from vllmeter.host.source import ProcessSource
from vllmeter.memory.flags import parse_command
from vllmeter.recording.format import (
    Answer,
    Down,
    Gpus,
    Header,
    Health,
    Phase,
    Processes,
    Record,
    RecordedServer,
    RecordingWriter,
)
from vllmeter.recording.masking import WHAT, Masker
from vllmeter.scrape.outcome import Fetch
from vllmeter.snapshot import NvmlReading, ProcessTable

HEALTH_EVERY: Final = 2.0
PROCESSES_EVERY: Final = 2.0
_MODEL: Final = re.compile(rb'model_name="((?:[^"\\]|\\.)*)"')


class Client(Protocol):
    """What the recorder asks of a server's client (see :class:`vllmeter.scrape.client.ScrapeClient`)."""

    def metrics(self) -> Fetch:
        """One GET of the metrics path."""
        ...

    def health(self) -> int | str:
        """HTTP status of ``/health``, or why there was no answer."""
        ...

    def version(self) -> str | None:
        """What ``/version`` says."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """One server to record.  ``port`` is the port that its process listens on (what replay serves it on)."""

    name: str
    port: int
    client: Client


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the recording is."""

    seconds: float
    answers: int
    failures: int
    up: int
    servers: int
    gpu: str
    """"ok", or why there is no NVML reading"""
    bytes: int


def boot_time(stat: str) -> float | None:
    """Unix time of process start tick 0, from the text of ``/proc/stat``; None when it is not there."""
    for line in stat.splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


def server_flags(table: ProcessTable | None, port: int) -> dict[str, str]:
    """The vLLM flags of the server on ``port``, from its command line; {} when it is not found."""
    if table is None:
        return {}
    for item in table.processes.values():
        command = parse_command(item.argv) if item.argv else None
        if command is None or (command.port != port and port not in (item.listening_ports or ())):
            continue
        options = {}
        for name, value in command.options.items():
            text = value if isinstance(value, str) else ",".join(value) if isinstance(value, tuple) else str(value)
            options[name] = text.lower() if isinstance(value, bool) else text
        return {**({"model": command.model} if command.model else {}), **options}
    return {}


class Recorder:
    """Records ``targets`` into ``path`` until told to stop.

    Every server has a thread of its own, so a late one delays nobody; GPUs and processes have another.

    :param gpu: None = no GPU readings
    :param processes: None = no processes
    :raises FileExistsError: ``path`` is there and ``overwrite`` is False
    """

    def __init__(
        self,
        path: Path | str,
        targets: Sequence[Target],
        *,
        gpu: GpuSource | None = None,
        processes: ProcessSource | None = None,
        masker: Masker | None = None,
        interval: float = 1.0,
        overwrite: bool = False,
        boot: float | None = None,
        state: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if not interval > 0:
            raise ValueError(f"interval must be above 0, not {interval}")
        self._targets = tuple(targets)
        self._gpu = gpu
        self._processes = processes
        self._masker = masker or Masker()
        self._interval = interval
        self._clock = clock
        self._wall = wall
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._up: dict[str, bool] = {}
        self._answers = 0
        self._failures = 0
        self._gpu_state = "not asked" if gpu is None else "starting"
        self.error: OSError | None = None
        """Why writing stopped (disk full); what was written before stays readable"""
        self._zero = clock()
        header = self._header(state, boot)
        self._writer = RecordingWriter(path, header, overwrite=overwrite)
        self.path = self._writer.path
        self._threads: list[threading.Thread] = []

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Begin."""
        for target in self._targets:
            self._spawn(f"record {target.name}", lambda target=target: self._record_server(target))  # type: ignore[misc]
        if self._gpu is not None or self._processes is not None:
            self._spawn("record host", self._record_host)

    def run(
        self,
        seconds: float | None = None,
        progress: Callable[[Progress], None] | None = None,
        every: float = 1.0,
    ) -> None:
        """Record for ``seconds`` (None: until :meth:`stop`), telling ``progress`` on the way."""
        self.start()
        try:
            while not self._stop.is_set():
                left = every if seconds is None else min(every, seconds - (self._clock() - self._zero))
                if left <= 0:
                    break
                self._stop.wait(left)
                if progress is not None:
                    progress(self.progress())
        finally:
            self.close()

    def stop(self) -> None:
        """Make :meth:`run` end (from a signal handler or another thread)."""
        self._stop.set()

    def phase(self, name: str) -> None:
        """Mark that something begins (a load test, a changed setting)."""
        self._write(Phase(self._now(), self._masker.text(name)))

    def progress(self) -> Progress:
        """How far it is."""
        with self._lock:
            return Progress(
                seconds=self._now(),
                answers=self._answers,
                failures=self._failures,
                up=sum(self._up.values()),
                servers=len(self._targets),
                gpu=self._gpu_state,
                bytes=self.path.stat().st_size,
            )

    def close(self) -> None:
        """Stop and finish the file.  May be called more than once."""
        self._stop.set()
        for target in self._targets:
            target.client.close()
        for thread in self._threads:
            thread.join(5)
        try:
            self._writer.close()
        except OSError as exc:
            self.error = self.error or exc

    # ------------------------------------------------------------------ inside

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _now(self) -> float:
        return self._clock() - self._zero

    def _write(self, record: Record) -> None:
        if self.error is not None:
            return
        try:
            self._writer.write(record)
        except OSError as exc:
            self.error = exc
            self._stop.set()
        except ValueError:
            return  # closed meanwhile, or another thread met the full disk a moment earlier

    def _header(self, state: str, boot: float | None) -> Header:
        table = self._processes.read(self._clock(), ()) if self._processes is not None else None
        reading = self._gpu.read(self._clock(), self._wall()) if self._gpu is not None else None
        servers = []
        for target in self._targets:
            fetch = target.client.metrics()
            found = _MODEL.search(fetch.body) if fetch.body is not None else None
            flags = self._masker.settings(server_flags(table, target.port))
            length = flags.get("max_model_len", "")
            servers.append(
                RecordedServer(
                    name=target.name,
                    port=target.port,
                    model=_model(found[1], self._masker) if found else flags.get("served_model_name"),
                    version=target.client.version(),
                    flags=flags,
                    max_model_len=int(length) if length.isdigit() else None,
                )
            )
        versions = sorted({server.version for server in servers if server.version})
        return Header(
            recorded=self._wall() - self._now(),
            servers=tuple(servers),
            interval=self._interval,
            boot=boot,
            software=f"vllmeter {__version__}",
            vllm=", ".join(versions) or None,
            gpus=tuple(gpu.name for gpu in reading.gpus) if reading is not None else (),
            driver=reading.driver_version if reading is not None else None,
            state=state,
            masked=WHAT,
        )

    def _ticks(self, interval: float) -> Callable[[], bool]:
        """A waiter that keeps to multiples of ``interval`` and skips those that were missed; False = stop."""
        begun = self._clock()
        number = 0

        def wait() -> bool:
            nonlocal number
            number = max(number + 1, int((self._clock() - begun) / interval))
            return not self._stop.wait(max(0.0, begun + number * interval - self._clock()))

        return wait

    def _record_server(self, target: Target) -> None:
        wait = self._ticks(self._interval)
        next_health = 0.0
        health: int | None = None
        health_known = False
        while True:
            fetch = target.client.metrics()
            if self._stop.is_set():
                return  # an exchange that was cut short by our own end says nothing about the server
            now = self._now()
            self._take(target.name, now, fetch)
            if fetch.body is not None and now >= next_health:
                next_health = now + HEALTH_EVERY
                found = target.client.health()
                answer = found if isinstance(found, int) else None
                if self._stop.is_set():
                    return
                if answer != health or not health_known:
                    self._write(Health(self._now(), target.name, answer))
                    health, health_known = answer, True
            elif fetch.body is None:
                health_known = False
            if not wait():
                return

    def _take(self, name: str, now: float, fetch: Fetch) -> None:
        record: Record
        if fetch.body is not None:
            body = self._masker.body(fetch.body)
            content_type = fetch.content_type or "text/plain"
            record = Answer(now, name, body, content_type, fetch.status or 200, fetch.duration)
        elif fetch.status is not None and fetch.status != 200:
            record = Answer(now, name, b"", "text/plain", fetch.status, fetch.duration)
        else:
            record = Down(now, name, fetch.reason or "internal")
        with self._lock:
            self._up[name] = fetch.body is not None
            if fetch.body is not None:
                self._answers += 1
            else:
                self._failures += 1
        self._write(record)

    def _record_host(self) -> None:
        wait = self._ticks(self._interval)
        next_processes = 0.0
        while True:
            # One moment for all sources of a sample: a replay gives them together, and the CPU of an engine beside the
            # SM time of its card is then over the same time.
            at, wall = self._clock(), self._wall()
            now = at - self._zero
            pids: tuple[int, ...] = ()
            if self._gpu is not None:
                reading = self._gpu.read(at, wall)
                pids = _pids(reading)
                self._gpu_state = "ok" if reading.up else reading.reason or "down"
                self._write(Gpus(now, _masked_reading(reading, self._masker)))
            if self._processes is not None and now >= next_processes:
                next_processes = now + max(PROCESSES_EVERY, self._interval) - self._interval / 2
                self._write(Processes(now, self._masker.table(self._processes.read(at, pids))))
            if not wait():
                return


def _model(value: bytes, masker: Masker) -> str:
    return masker.text(value.decode("utf-8", "replace"))


def _pids(reading: NvmlReading) -> tuple[int, ...]:
    return tuple(sorted({p.pid for gpu in reading.gpus for p in gpu.processes or ()}))


def _masked_reading(reading: NvmlReading, masker: Masker) -> NvmlReading:
    """Reasons of absent values may quote paths."""
    gpus = tuple(
        replace(gpu, absent={name: masker.text(reason) for name, reason in gpu.absent.items()}) for gpu in reading.gpus
    )
    return replace(reading, gpus=gpus)


def split_url(url: str) -> tuple[str, int]:
    """Base URL and port of what a person gave with ``--url`` (``/metrics`` at its end is taken off).

    :raises ValueError: not an http(s) URL
    """
    base = url.rstrip("/").removesuffix("/metrics").rstrip("/")
    found = re.fullmatch(r"(https?)://(\[[0-9a-fA-F:.]+\]|[^/:\s@]+)(?::(\d{1,5}))?(/.*)?", base)
    if found is None:
        raise ValueError(f"{url!r} is no URL of a vLLM server; write for example http://127.0.0.1:8000")
    port = int(found[3]) if found[3] else 443 if found[1] == "https" else 80
    if not 0 < port < 65536:
        raise ValueError(f"{url!r} has no valid port")
    return base, port


def unique_names(names: Sequence[str]) -> list[str]:
    """The names with ``-2``, ``-3`` … added where one appears again."""
    out: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in out:
            candidate, number = f"{name}-{number}", number + 1
        out.append(candidate)
    return out


def describe(progress: Progress) -> str:
    """One line for a terminal."""
    minutes, seconds = divmod(int(progress.seconds), 60)
    return (
        f"{minutes}:{seconds:02d}  servers up {progress.up}/{progress.servers}  answers {progress.answers}"
        f"  failures {progress.failures}  GPU {progress.gpu}  {progress.bytes / 1024:.0f} kB"
    )


def flags_line(flags: Mapping[str, str]) -> str:
    """Flags as they would be typed."""
    return " ".join(
        f"--{name.replace('_', '-')}" + ("" if value == "true" else f" {value}") for name, value in flags.items()
    )
