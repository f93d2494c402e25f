"""Plays a recording on any clock: for a moment in, the bodies, NVML reading and process table of that moment out.

Time.  ``elapsed`` is seconds of the listener's clock since playing began, the *position* is seconds of the
recording.  Position = anchor + (elapsed - anchor time) × speed; at the end it goes back to 0 when looping, else it
stays at the end.

What is changed on the way.  Everything is byte-exact but the start times of servers, so that they are true for
whoever listens: the values of ``process_start_time_seconds`` and of every ``…_created`` series, and ``start_ticks``
of processes.  A start before the first position keeps its age; one during the recording comes when it is played.
After a loop or a seek every server starts anew at that moment (its counters drop too), so a loop looks like a restart
of every server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from vllmeter.recording.documents import nvml_from_json, processes_from_json
from vllmeter.recording.format import BodyState, Decoder, Header, RecordingReader, Summary, summarise
from vllmeter.snapshot import HostProcess, NvmlReading, ProcessTable

NOT_RECORDED: Final = "not recorded yet"
NOT_LISTENING: Final = frozenset({"refused", "dns", "unreachable", NOT_RECORDED})
"""Reasons of no answer that mean a closed port.  The others (timeout, reset, …) are played on an open one."""
_START_SERIES: Final = re.compile(r"(?:process_start_time_seconds|[a-zA-Z_:][a-zA-Z0-9_:]*_created)(?:\{.*\})? ")


def go_float(value: float) -> str:
    """A number as prometheus_client writes it in an exposition (``1.79612942055e+09``)."""
    if math.isnan(value):
        return "NaN"
    if value in (math.inf, -math.inf):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}"
    return text


@dataclass(frozen=True, slots=True)
class ServerMoment:
    """One server at one moment.  ``body`` None: it did not answer, ``why`` says how (refused, timeout, …).

    ``recorded`` is the position at which the answer was recorded, ``health`` the status of ``/health`` (None: no
    answer).
    """

    up: bool
    body: bytes | None
    content_type: str = ""
    status: int = 200
    why: str = ""
    health: int | None = 200
    recorded: float = 0.0
    took: float | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """The recording at one moment.  ``loop`` counts how often it began again (loops and seeks)."""

    position: float
    loop: int
    phase: str
    wall: float
    servers: Mapping[str, ServerMoment]
    nvml: NvmlReading | None
    processes: ProcessTable | None
    ended: bool = False


@dataclass(slots=True)
class _Server:
    """State of one server while playing."""

    up: bool = False
    why: str = NOT_RECORDED
    health: int | None = None
    health_recorded: bool = False
    recorded: float = 0.0
    start_lines: list[int] = field(default_factory=list)
    layout: int = -1
    rendered: tuple[int, int, bytes] | None = None
    """body version, epoch, bytes"""


class Player:
    """Steps through a recording.  Not thread-safe.

    Reads the file as it goes (bounded memory); going back reads it again from the start.

    :param wall: Unix time at ``elapsed`` = 0.  None = leave all start times as recorded until the first loop or seek.
    :param start: position to begin at, in seconds
    :raises RecordingError: not a recording, or damaged
    """

    def __init__(
        self,
        recording: Path | str,
        *,
        wall: float | None = None,
        speed: float = 1.0,
        loop: bool = True,
        start: float = 0.0,
    ) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be above 0, not {speed}")
        self.path = Path(recording)
        self.summary: Summary = summarise(self.path)
        self.header: Header = self.summary.header
        self.loop = loop
        self._speed = speed
        self._wall_zero = self.header.recorded + start if wall is None else wall
        self._exact = wall is None
        self._anchor = (0.0, min(max(start, 0.0), self.summary.duration))
        self._cycle = 0
        self._seeks = 0
        self._position = 0.0
        self._phase = ""
        self._servers: dict[str, _Server] = {}
        self._next: dict[str, Any] | None = None
        self._reader: RecordingReader | None = None
        self._rewind()

    # ------------------------------------------------------------------ time

    @property
    def duration(self) -> float:
        """Seconds of recording."""
        return self.summary.duration

    @property
    def speed(self) -> float:
        """Seconds of recording per second of the listener's clock."""
        return self._speed

    @property
    def restarts(self) -> int:
        """How often everything began again: loops and seeks."""
        return self._cycle + self._seeks

    def wall(self, elapsed: float) -> float:
        """Unix time of the listener at ``elapsed``."""
        return self._wall_zero + elapsed

    def position(self, elapsed: float) -> float:
        """Where in the recording ``elapsed`` falls (loops taken into account, state left alone)."""
        at, begun = self._anchor
        position = begun + (elapsed - at) * self._speed
        if position < self.duration:
            return max(position, 0.0)
        return position % self.duration if self.loop else self.duration

    def seek(self, elapsed: float, position: float) -> None:
        """Go on from ``position`` at ``elapsed``; every server looks restarted at that moment."""
        if not 0 <= position <= self.duration:
            raise ValueError(f"position {position} is outside the recording (0 to {self.duration:.1f} s)")
        self._anchor = (elapsed, position)
        self._seeks += 1
        if position < self._position:
            self._rewind()

    def phase_start(self, name: str) -> float:
        """When the phase ``name`` begins.

        :raises KeyError: there is none of that name
        """
        for t, phase in self.summary.phases:
            if phase == name:
                return t
        raise KeyError(name)

    # ------------------------------------------------------------------ playing

    def at(self, elapsed: float) -> Moment:
        """The moment at ``elapsed`` seconds of the listener's clock."""
        self.advance(elapsed)
        wall = self.wall(elapsed)
        return Moment(
            position=self._position,
            loop=self.restarts,
            phase=self._phase,
            wall=wall,
            servers={server.name: self.server(server.name) for server in self.header.servers},
            nvml=self.nvml(elapsed, wall),
            processes=self.processes(elapsed),
            ended=self._position >= self.duration,
        )

    def advance(self, elapsed: float) -> bool:
        """Move to ``elapsed`` without building anything.  True when some server went up or down on the way."""
        at, begun = self._anchor
        target = begun + (elapsed - at) * self._speed
        if self.loop and target >= self.duration:
            # The moment at which the newest round began becomes the anchor, so start times refer to it.
            rounds = int(target // self.duration)
            self._cycle += rounds
            self._anchor = (at + (rounds * self.duration - begun) / self._speed, 0.0)
            target -= rounds * self.duration
            self._rewind()
        target = min(max(target, 0.0), self.duration)
        if target < self._position:
            self._rewind()
        before = {name: state.up for name, state in self._servers.items()}
        while self._next is not None and float(self._next["t"]) <= target:
            self._take(self._next)
            self._next = next(self._lines, None)
        self._position = target
        return any(state.up != before[name] for name, state in self._servers.items())

    def server(self, name: str) -> ServerMoment:
        """The server ``name`` at the current position."""
        state = self._servers[name]
        if not state.up:
            return ServerMoment(False, None, why=state.why, health=state.health)
        body = self._decoder.bodies[name]
        return ServerMoment(
            up=True,
            body=self._render(state, body),
            content_type=body.content_type if body.error is None else body.error[1],
            status=body.status,
            health=state.health,
            recorded=state.recorded,
            took=body.took,
        )

    def is_up(self, name: str) -> bool:
        """Whether the server ``name`` answers at the current position."""
        return self._servers[name].up

    def is_listening(self, name: str) -> bool:
        """Whether connections to the server ``name`` are accepted at the current position."""
        state = self._servers[name]
        return state.up or state.why not in NOT_LISTENING

    @property
    def phase(self) -> str:
        """Phase at the current position ("" before the first)."""
        return self._phase

    def nvml(self, at: float, wall: float) -> NvmlReading | None:
        """The NVML reading at the current position; None when none was recorded (yet)."""
        if self._decoder.nvml is None:
            return None
        return nvml_from_json(self._decoder.nvml, at=at, wall=wall)

    def processes(self, at: float) -> ProcessTable | None:
        """The process table at the current position; None when none was recorded (yet)."""
        if self._decoder.processes is None:
            return None
        table = processes_from_json(self._decoder.processes, at=at)
        return replace(table, processes={pid: self._shift_process(item) for pid, item in table.processes.items()})

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ inside

    def _rewind(self) -> None:
        self.close()
        self._reader = RecordingReader(self.path)
        self._decoder = Decoder(self._reader)
        self._lines: Iterator[dict[str, Any]] = self._reader.lines()
        self._next = next(self._lines, None)
        self._position = 0.0
        self._phase = ""
        self._servers = {server.name: _Server() for server in self.header.servers}

    def _take(self, line: Mapping[str, Any]) -> None:
        kind = self._decoder.apply(line)
        if kind == "phase":
            self._phase = str(line.get("name", ""))
            return
        state = self._servers.get(str(line.get("s")))
        if state is None:
            return
        if kind == "body":
            state.up = True
            state.recorded = float(line["t"])
            if not state.health_recorded:
                state.health = 200
        elif kind == "down":
            state.up = False
            state.why = str(line.get("why", ""))
            state.health = None
            state.health_recorded = False
        elif kind == "health":
            state.health = line.get("status")
            state.health_recorded = True

    def shift(self, start: float) -> float:
        """A recorded Unix time at which something started, as it is for the listener."""
        if self._exact and not self.restarts:
            return start
        at, begun = self._anchor
        since = start - (self.header.recorded + begun)
        anchor = self._wall_zero + at
        if since >= 0:
            return anchor + since / self._speed
        return anchor if self.restarts else anchor + since

    def _render(self, state: _Server, body: BodyState) -> bytes:
        epoch = self.restarts
        if state.rendered is not None and state.rendered[:2] == (body.version, epoch):
            return state.rendered[2]
        if body.error is not None or (self._exact and not epoch):
            data = body.body()
        else:
            if state.layout != body.layout:
                state.layout = body.layout
                state.start_lines = [i for i, line in enumerate(body.lines) if _START_SERIES.match(line)]
            lines = list(body.lines)
            for number in state.start_lines:
                lines[number] = self._shift_line(lines[number])
            data = "\n".join(lines).encode("utf-8", "surrogateescape")
        state.rendered = (body.version, epoch, data)
        return data

    def _shift_line(self, line: str) -> str:
        found = _START_SERIES.match(line)
        if found is None:
            return line
        value, space, rest = line[found.end() :].partition(" ")
        # The process start has the kernel's resolution of 10 ms, as upstream's has.
        digits = 2 if line.startswith("process_start") else 6
        try:
            start = float(value)
        except ValueError:
            return line
        if not math.isfinite(start):
            return line
        moved = go_float(round(self.shift(start), digits))
        return f"{line[: found.end()]}{moved}{space}{rest}"

    def _shift_process(self, item: HostProcess) -> HostProcess:
        if self._exact and not self.restarts:
            return item
        boot, hertz = self.header.boot, self.header.tick_hertz
        if boot is None:
            # Without the boot time the age is unknown; what matters is that a new round shows new ticks.
            return replace(item, start_ticks=item.start_ticks + round(self.restarts * self.duration * hertz))
        return replace(item, start_ticks=max(0, round((self.shift(boot + item.start_ticks / hertz) - boot) * hertz)))
