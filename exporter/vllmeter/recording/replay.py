"""Serves a recording over real HTTP, one port per recorded server, with its NVML and process view on a control port.

One thread with one event loop serves all ports, so two hundred copies at 1 Hz stay cheap.  A server that was down in
the recording really refuses connections: its listening socket is closed (a bound socket that never listens keeps the
port).  Idle connections are closed after 5 s, as vLLM's server does.  Faults can be switched on per server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from vllmeter.recording.documents import nvml_to_json, processes_to_json
from vllmeter.recording.format import RecordedServer
from vllmeter.recording.player import Player
from vllmeter.snapshot import HostProcess, NvmlReading, ProcessTable

KEEP_ALIVE_SECONDS: Final = 5.0
"""uvicorn's default, which vLLM keeps: seen in the captures."""
MAX_REQUEST_BYTES: Final = 64 << 10
FAULT_MODES: Final[Mapping[str, str]] = {
    "none": "as recorded",
    "kill": "connections refused, its processes and their GPU memory gone",
    "freeze": "engine hung: /health 200, /metrics keeps its last values, engine processes stopped",
    "health503": "engine dead: /health 503, /metrics keeps its last values, engine processes gone",
    "slow": "every answer after `seconds` (default 4)",
    "hang": "connections accepted, never an answer",
    "reset": "connection reset instead of an answer",
    "500": "/metrics answers 500",
    "401": "/metrics answers 401",
    "truncate": "/metrics ends in the middle, short of its content length",
    "malformed": "/metrics holds a line that is no exposition format",
    "huge": "/metrics answers `bytes` bytes (default 64 MiB)",
}
_REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
                   405: "Method Not Allowed", 413: "Content Too Large", 500: "Internal Server Error",
                   503: "Service Unavailable"}  # fmt: skip
_ACCEPTED: Final = (
    'POST /replay/seek {"position": SECONDS} or {"phase": NAME}; POST /replay/fault {"server": NAME or "*", '
    '"mode": MODE, "seconds": N, "bytes": N, "lasting": SECONDS}'
)
T = TypeVar("T")


class ReplayError(Exception):
    """The replay cannot do what was asked; the message says why and what would work."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that is switched on.  ``body`` holds the frozen answer where the mode needs one."""

    mode: str = "none"
    seconds: float = 4.0
    size: int = 64 << 20
    until: float | None = None
    """clock at which it ends by itself"""
    body: bytes | None = None
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a recorded server is served."""

    name: str
    recorded: RecordedServer
    port: int
    url: str
    copy: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer.  ``delay`` seconds before it; ``cut``: close after that many bytes of body; ``drop``: RST."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    delay: float = 0.0
    cut: int | None = None
    drop: bool = False
    never: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, as far as it matters here."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class _Connection(asyncio.Protocol):
    """HTTP/1.1 on one connection: one request at a time, keep-alive, idle close."""

    def __init__(self, answer: Callable[[Request], Reply], connections: set[_Connection]) -> None:
        self._answer = answer
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._disarm()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._disarm()
        self._next()

    def abort(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                # Linger 0 turns the close into a reset, which is what a killed process leaves behind.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._transport.abort()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_SECONDS, self._idle)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _idle(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _next(self) -> None:
        if self._busy or self._transport is None:
            return
        head, mark, rest = self._buffer.partition(b"\r\n\r\n")
        if not mark:
            if len(self._buffer) > MAX_REQUEST_BYTES:
                self._send(Reply(413), close=True)
            return
        try:
            first, *lines = head.decode("latin-1").split("\r\n")
            method, path, version = first.split(" ")
            headers = {}
            for line in lines:
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
            length = int(headers.get("content-length", "0"))
        except ValueError:
            self._send(Reply(400), close=True)
            return
        if length > MAX_REQUEST_BYTES or length < 0:
            self._send(Reply(413), close=True)
            return
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        close = headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
        reply = self._answer(Request(method, path.partition("?")[0], headers, rest[:length]))
        self._busy = True
        if reply.never:
            return
        if reply.drop:
            self.abort()
        elif reply.delay > 0:
            asyncio.get_running_loop().call_later(reply.delay, self._send, reply, close, method == "HEAD")
        else:
            self._send(reply, close, method == "HEAD")

    def _send(self, reply: Reply, close: bool = False, head_only: bool = False) -> None:
        transport = self._transport
        if transport is None:
            return
        head = (
            f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Unknown')}\r\n"
            f"date: {formatdate(usegmt=True)}\r\nserver: uvicorn\r\n"
            f"content-length: {len(reply.body)}\r\ncontent-type: {reply.content_type}\r\n"
            f"{'connection: close' + chr(13) + chr(10) if close else ''}\r\n"
        ).encode("latin-1")
        body = b"" if head_only else reply.body if reply.cut is None else reply.body[: reply.cut]
        transport.writelines((head, body))
        self._busy = False
        if close or reply.cut is not None:
            transport.close()
        else:
            self._arm()
            if self._buffer:
                self._disarm()
                self._next()


class _Port:
    """One served port: bound all the time, listening only while the server is up."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._holder = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._holder.bind((host, port))
            # A first listener shows whether somebody else listens there already.
            self.port = int(self._holder.getsockname()[1])
            self._socket: socket.socket | None = self._listen()
        except BaseException:
            self._holder.close()
            raise
        self._listening = False
        self._accepted: set[asyncio.Task[Any]] = set()
        self.connections: set[_Connection] = set()

    def _listen(self) -> socket.socket:
        sock = socket.socket(self._holder.family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            sock.listen(128)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    def open(self, answer: Callable[[Request], Reply]) -> None:
        """Listen (nothing happens when it does already).

        Connections are accepted by hand: asyncio's own server loses one that arrives while it is being closed.
        """
        if self._listening:
            return
        if self._socket is None:
            self._socket = self._listen()
        self._listening = True
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept, answer)

    def _accept(self, answer: Callable[[Request], Reply]) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(128):
            if self._socket is None:
                return
            try:
                connection, _address = self._socket.accept()
            except OSError:
                return  # nobody waiting any more, or no file handle left just now
            connection.setblocking(False)
            task = loop.create_task(
                loop.connect_accepted_socket(lambda: _Connection(answer, self.connections), connection)
            )
            self._accepted.add(task)
            task.add_done_callback(self._accepted.discard)

    async def settle(self) -> None:
        """Close, and wait until no connection is left."""
        self.shut()
        await asyncio.gather(*self._accepted, return_exceptions=True)
        self.shut()
        await asyncio.sleep(0)

    def shut(self) -> None:
        """Stop listening and reset every connection."""
        if self._socket is not None:
            if self._listening:
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._listening = False
        for connection in list(self.connections):
            connection.abort()

    def close(self) -> None:
        """Give the port back (after the loop ended, or before it began)."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._holder.close()


def _shown(host: str) -> str:
    """A host for URLs: every address is reached by the loopback one."""
    shown = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host  # noqa: S104
    return f"[{shown}]" if ":" in shown else shown


def _json_reply(document: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(document).encode() + b"\n")


class ReplayServer:
    """Serves a recording.  ``start()`` binds the ports and returns where everything is; ``stop()`` ends it.

    :param copies: serve every server that many times; copy 2 and up are named ``NAME-2``, …
    :param host: address the servers listen on
    :param control_host: address of the control port, which can seek and break things: 127.0.0.1 unless the exporter
        is in another container, in a network of the two
    :param base_port: ports from here on; None = the recorded ones where free, else any
    :param control_port: 0 = any
    :param start: position to begin at, in seconds
    :raises RecordingError: not a recording, or damaged
    """

    def __init__(
        self,
        recording: Path | str,
        *,
        speed: float = 1.0,
        loop: bool = True,
        copies: int = 1,
        host: str = "127.0.0.1",
        base_port: int | None = None,
        control_port: int = 0,
        control_host: str = "127.0.0.1",
        start: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if copies < 1:
            raise ReplayError(f"copies must be at least 1, not {copies}")
        self._clock = clock
        self._zero = clock()
        self._held: float | None = None
        self.player = Player(recording, wall=wall(), speed=speed, loop=loop, start=start)
        self.host = host
        self.endpoints: tuple[Endpoint, ...] = ()
        self.control_url = ""
        self._copies = copies
        self._base_port = base_port
        self._control_port = control_port
        self._control_host = control_host
        self._ports: dict[str, _Port] = {}
        self._faults: dict[str, Fault] = {}
        self._control: _Port | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._wake: asyncio.Event | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> tuple[Endpoint, ...]:
        """Bind, listen and serve in a thread of its own.

        :raises ReplayError: a port that was asked for is taken
        """
        if self._thread is not None:
            raise ReplayError("the replay is running already")
        self._bind()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="replay", daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            self.stop()
            raise ReplayError(f"the replay could not start: {self._failure}")
        return self.endpoints

    def stop(self) -> None:
        """Close every port.  May be called more than once."""
        if self._thread is not None:
            loop, stop = self._loop, self._stop
            if loop is not None and stop is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(stop.set)
            self._thread.join(10)
            self._thread = None
        for port in [*self._ports.values(), *([self._control] if self._control else [])]:
            port.close()
        self._ports.clear()
        self._control = None
        self.player.close()

    def __enter__(self) -> ReplayServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------ what it is asked (any thread)

    def position(self) -> dict[str, Any]:
        """Position, phase, loop count and the state of every server, as ``GET /replay/position`` answers."""
        return self._call(self._position)

    def seek(self, position: float | str) -> dict[str, Any]:
        """Go to a position in seconds or to the start of a phase; every server looks restarted."""
        return self._call(lambda: self._seek(position))

    def hold(self) -> None:
        """Stand still at this moment of the recording: answers go on, nothing in them changes any more."""

        def stand() -> None:
            self._held = self._elapsed()

        self._call(stand)

    def fault(
        self, server: str, mode: str, *, seconds: float = 4.0, size: int = 64 << 20, lasting: float | None = None
    ) -> dict[str, Any]:
        """Switch a fault on ("none": off) for a server ("*": all), for ``lasting`` seconds or until changed."""
        return self._call(lambda: self._fault(server, mode, seconds, size, lasting))

    def nvml(self, at: float, wall: float) -> NvmlReading:
        """The NVML view of this moment."""
        return self._call(lambda: self._nvml(at, wall))

    def processes(self, at: float) -> ProcessTable:
        """The process view of this moment."""
        return self._call(lambda: self._processes(at))

    def config(self) -> str:
        """A ``vllmeter.yaml`` to run the exporter against this replay."""
        lines = ["servers:"]
        for endpoint in self.endpoints:
            lines += [f"  - name: {endpoint.name}", f"    url: {endpoint.url}"]
            fraction = endpoint.recorded.flags.get("gpu_memory_utilization")
            if fraction and not endpoint.copy:
                lines.append(f"    budget: {{fraction: {float(fraction)}}}")
            if not endpoint.copy:
                lines.append(f"    match: {{port: {endpoint.recorded.port}}}")
        lines.append(f"nvml: {{replay: {self.control_url}}}")
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------------ inside

    def _call(self, work: Callable[[], T]) -> T:
        """Run ``work`` where the player lives."""
        if self._loop is None or self._thread is None or threading.current_thread() is self._thread:
            return work()

        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _bind(self) -> None:
        endpoints: list[Endpoint] = []
        shown = _shown(self.host)
        try:
            self._control = self._bind_one(self._control_host, self._control_port)
            self.control_url = f"http://{_shown(self._control_host)}:{self._control.port}"
            for number in range(self._copies):
                for server in self.player.header.servers:
                    name = server.name if number == 0 else f"{server.name}-{number + 1}"
                    if self._base_port is not None:
                        port = self._bind_one(self.host, self._base_port + len(endpoints))
                    elif number == 0:
                        try:
                            port = _Port(self.host, server.port)
                        except OSError:
                            port = self._bind_one(self.host, 0)
                    else:
                        port = self._bind_one(self.host, 0)
                    self._ports[name] = port
                    endpoints.append(Endpoint(name, server, port.port, f"http://{shown}:{port.port}", number))
        except BaseException:
            self.stop()
            raise
        self.endpoints = tuple(endpoints)

    @staticmethod
    def _bind_one(host: str, port: int) -> _Port:
        try:
            return _Port(host, port)
        except (OSError, OverflowError) as exc:
            raise ReplayError(f"cannot listen on {host}:{port} ({exc}); give another port or none") from exc

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as exc:  # noqa: BLE001 - handed to whoever started the thread
            self._failure = exc
        finally:
            self._loop = None
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        assert self._control is not None
        self._control.open(self._control_answer)
        self._sync()
        ready.set()
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            while not stopping.done():
                self._wake.clear()
                waking = asyncio.ensure_future(self._wake.wait())
                pause = min(0.25, max(0.005, 0.25 / self.player.speed))
                await asyncio.wait({stopping, waking}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                self._sync()
        finally:
            stopping.cancel()
            for port in (*self._ports.values(), self._control):
                await port.settle()

    def _elapsed(self) -> float:
        return self._clock() - self._zero if self._held is None else self._held

    def _sync(self) -> None:
        """Bring the listening sockets in line with the recording and the faults."""
        self.player.advance(self._elapsed())
        now = self._clock()
        for name, fault in list(self._faults.items()):
            if fault.until is not None and now >= fault.until:
                del self._faults[name]
        for endpoint in self.endpoints:
            port = self._ports[endpoint.name]
            killed = self._faults.get(endpoint.name, Fault()).mode == "kill"
            if self.player.is_listening(endpoint.recorded.name) and not killed:
                try:
                    port.open(self._answerer(endpoint))
                except OSError:
                    continue  # somebody took the port meanwhile: tried again a moment later
            else:
                port.shut()

    def _answerer(self, endpoint: Endpoint) -> Callable[[Request], Reply]:
        return lambda request: self._answer(endpoint, request)

    def _answer(self, endpoint: Endpoint, request: Request) -> Reply:
        if request.method not in ("GET", "HEAD"):
            return _json_reply({"detail": "Method Not Allowed"}, 405)
        self.player.advance(self._elapsed())
        moment = self.player.server(endpoint.recorded.name)
        fault = self._faults.get(endpoint.name, Fault())
        delay = fault.seconds if fault.mode == "slow" else 0.0
        if fault.mode == "hang" or moment.why == "timeout":
            return Reply(never=True)
        if moment.body is None or fault.mode in ("reset", "kill"):
            return Reply(drop=True)
        if request.path in ("/metrics", "/metrics/"):
            return self._metrics(fault, moment.body, moment.content_type, moment.status, delay)
        if request.path == "/health":
            status = 503 if fault.mode == "health503" else moment.health
            return Reply(never=True) if status is None else Reply(status, delay=delay)
        if request.path == "/version":
            version = endpoint.recorded.version or self.player.header.vllm or "unknown"
            return replace(_json_reply({"version": version}), delay=delay)
        if request.path == "/v1/models":
            model: dict[str, Any] = {"id": endpoint.recorded.model or "unknown", "object": "model", "owned_by": "vllm"}
            if endpoint.recorded.max_model_len is not None:
                model["max_model_len"] = endpoint.recorded.max_model_len
            return replace(_json_reply({"object": "list", "data": [model]}), delay=delay)
        return _json_reply({"detail": "Not Found"}, 404)

    @staticmethod
    def _metrics(fault: Fault, body: bytes, content_type: str, status: int, delay: float) -> Reply:
        if fault.mode in ("500", "401"):
            return Reply(int(fault.mode), b"Internal Server Error" if fault.mode == "500" else b"", "text/plain")
        if fault.body is not None:
            body, content_type = fault.body, fault.content_type
        if fault.mode == "truncate":
            return Reply(status, body, content_type, cut=len(body) // 2)
        if fault.mode == "malformed":
            half = body.index(b"\n", len(body) // 2) + 1 if b"\n" in body[len(body) // 2 :] else 0
            body = body[:half] + b'vllm:broken{engine="0" 1.0 what is this\n' + body[half:]
        elif fault.mode == "huge":
            line = b"# " + b"x" * 997 + b"\n"
            body += line * max(0, (fault.size - len(body)) // len(line))
        return Reply(status, body, content_type, delay=delay)

    # ---- control port

    def _control_answer(self, request: Request) -> Reply:
        if "origin" in request.headers:
            return _json_reply({"error": "not for web pages"}, 403)
        try:
            if request.method in ("GET", "HEAD"):
                if request.path == "/replay/position":
                    return _json_reply(self._position())
                if request.path == "/replay/nvml":
                    return _json_reply(nvml_to_json(self._nvml(0.0, 0.0)))
                if request.path == "/replay/processes":
                    return _json_reply(processes_to_json(self._processes(0.0)))
                if request.path == "/replay/config":
                    return Reply(200, self.config().encode(), "application/yaml")
                return _json_reply({"error": f"no {request.path} here"}, 404)
            if request.method != "POST":
                return _json_reply({"error": "GET or POST"}, 405)
            document = json.loads(request.body or b"{}")
            if request.path == "/replay/seek":
                return _json_reply(self._seek(document["position"] if "position" in document else document["phase"]))
            if request.path == "/replay/fault":
                lasting = document.get("lasting")
                return _json_reply(
                    self._fault(
                        str(document.get("server", "*")),
                        str(document["mode"]),
                        float(document.get("seconds", 4.0)),
                        int(document.get("bytes", 64 << 20)),
                        None if lasting is None else float(lasting),
                    )
                )
        except ReplayError as exc:
            return _json_reply({"error": str(exc)}, 400)
        except (AttributeError, KeyError, TypeError, ValueError):
            return _json_reply({"error": f"not understood; accepted: {_ACCEPTED}"}, 400)
        return _json_reply({"error": f"no {request.path} here"}, 404)

    def _position(self) -> dict[str, Any]:
        elapsed = self._elapsed()
        self.player.advance(elapsed)
        return {
            "position": round(self.player.position(elapsed), 3),
            "duration": self.player.duration,
            "phase": self.player.phase,
            "loop": self.player.restarts,
            "speed": self.player.speed,
            "wall": self.player.wall(elapsed),
            "ended": not self.player.loop and self.player.position(elapsed) >= self.player.duration,
            "servers": {
                endpoint.name: {
                    "url": endpoint.url,
                    "recorded_port": endpoint.recorded.port,
                    "up": self.player.is_up(endpoint.recorded.name),
                    "fault": self._faults.get(endpoint.name, Fault()).mode,
                }
                for endpoint in self.endpoints
            },
        }

    def _seek(self, target: float | str) -> dict[str, Any]:
        try:
            position = self.player.phase_start(target) if isinstance(target, str) else float(target)
        except KeyError as exc:
            names = ", ".join(dict.fromkeys(name for _, name in self.player.summary.phases)) or "none"
            raise ReplayError(f"no phase {target!r}; phases of this recording: {names}") from exc
        try:
            self.player.seek(self._elapsed(), position)
        except ValueError as exc:
            raise ReplayError(str(exc)) from exc
        self._nudge()
        return self._position()

    def _fault(self, server: str, mode: str, seconds: float, size: int, lasting: float | None) -> dict[str, Any]:
        if mode not in FAULT_MODES:
            raise ReplayError(f"no fault mode {mode!r}; modes: {', '.join(FAULT_MODES)}")
        names = [endpoint.name for endpoint in self.endpoints]
        if server != "*" and server not in names:
            raise ReplayError(f"no server {server!r}; servers: {', '.join(names)}")
        self.player.advance(self._elapsed())
        for endpoint in self.endpoints:
            if server not in ("*", endpoint.name):
                continue
            if mode == "none":
                self._faults.pop(endpoint.name, None)
                continue
            frozen: bytes | None = None
            content_type = ""
            if mode in ("freeze", "health503"):
                moment = self.player.server(endpoint.recorded.name)
                frozen, content_type = moment.body, moment.content_type
            until = None if lasting is None else self._clock() + lasting
            self._faults[endpoint.name] = Fault(mode, seconds, size, until, frozen, content_type)
        self._nudge()
        return self._position()

    def _nudge(self) -> None:
        if self._wake is not None:
            self._wake.set()

    # ---- GPU and processes, with the faults worked in

    def _fault_pids(self) -> tuple[set[int], set[int]]:
        """Processes that a fault made disappear, and processes that it stopped."""
        gone: set[int] = set()
        stopped: set[int] = set()
        table = self.player.processes(0.0)
        if table is None:
            return gone, stopped
        for endpoint in self.endpoints:
            fault = self._faults.get(endpoint.name)
            if fault is None or endpoint.copy:
                continue
            roots, children = server_processes(table.processes, endpoint.recorded.port)
            if fault.mode == "kill":
                gone |= roots | children
            elif fault.mode == "health503":
                gone |= children
            elif fault.mode == "freeze":
                stopped |= children
        return gone, stopped

    def _nvml(self, at: float, wall: float) -> NvmlReading:
        self.player.advance(self._elapsed())
        reading = self.player.nvml(at, wall)
        if reading is None:
            return NvmlReading(at=at, wall=wall, up=False, reason="not_recorded")
        gone, stopped = self._fault_pids()
        if not gone and not stopped:
            return reading
        gpus = []
        for gpu in reading.gpus:
            if gpu.processes is None:
                gpus.append(gpu)
                continue
            freed = sum(p.used_bytes or 0 for p in gpu.processes if p.pid in gone)
            kept = tuple(
                replace(p, sm_utilization_ratio=0.0) if p.pid in stopped else p
                for p in gpu.processes
                if p.pid not in gone
            )
            used, free = gpu.memory_used_bytes, gpu.memory_free_bytes
            gpus.append(
                replace(
                    gpu,
                    processes=kept,
                    memory_used_bytes=None if used is None else used - freed,
                    memory_free_bytes=None if free is None else free + freed,
                )
            )
        return replace(reading, gpus=tuple(gpus))

    def _processes(self, at: float) -> ProcessTable:
        self.player.advance(self._elapsed())
        table = self.player.processes(at)
        if table is None:
            return ProcessTable(at=at, processes={}, reason="not recorded")
        gone, stopped = self._fault_pids()
        return replace(
            table,
            processes={
                pid: replace(item, state="T") if pid in stopped else item
                for pid, item in table.processes.items()
                if pid not in gone
            },
        )


def server_processes(processes: Mapping[int, HostProcess], port: int) -> tuple[set[int], set[int]]:
    """The API server processes of the server on ``port`` and all their descendants (two sets of PIDs)."""
    wanted = str(port)
    roots = {
        pid
        for pid, item in processes.items()
        if port in (item.listening_ports or ()) or _asks_for(item.argv or (), wanted)
    }
    children: set[int] = set()
    grew = True
    while grew:
        found = {p for p, item in processes.items() if item.ppid in roots | children} - roots - children
        children |= found
        grew = bool(found)
    return roots, children


def _asks_for(argv: Sequence[str], port: str) -> bool:
    return any(word == "--port" and after == port for word, after in pairwise(argv)) or (f"--port={port}" in argv)
