"""Follows the start-up logs of servers: plain files, container logs, the journal.  All I/O of log reading is here.

One thread polls all sources once a second; a source hands out complete lines and never raises for what the host
does (missing file, no right to read, rotation, a Docker engine that hangs): it has a ``reason`` instead.  Lines go
through :class:`vllmeter.memory.startup_log.StartupLog`, which keeps facts, never text.
"""

from __future__ import annotations

import calendar
import contextlib
import http.client
import json
import logging
import os
import re
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, urlencode

from vllmeter.memory.startup_log import Failure, StartupFacts, StartupLog

log = logging.getLogger("vllmeter.logs")

_CHUNK: Final = 4 << 20
"""Bytes read from one source per poll: a long log is caught up over several seconds."""
_NEWEST: Final = 256 << 20
"""Of a longer file only this much from its end is read."""
_LONGEST: Final = 1 << 20
"""A line without an end beyond this is dropped."""
_DOCKER_ROOT: Final = Path("/var/lib/docker/containers")
_CRI: Final = re.compile(r"^\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) ([FP]) ?(.*)$")


class LogSetting(Protocol):
    """``log:`` of a server: exactly one of the three is set."""

    @property
    def docker(self) -> str | None:
        """Container name, id or Compose service."""
        ...

    @property
    def file(self) -> Path | None:
        """Path of a log file."""
        ...

    @property
    def journal(self) -> str | None:
        """systemd unit."""
        ...


class LineSource(Protocol):
    """Where lines come from.  ``reason``: why nothing can be read now; None while it works."""

    reason: str | None

    def poll(self, now: float) -> list[str]:
        """The complete lines that are new since the last call, at most a few MiB.  Never raises."""
        ...

    def close(self) -> None:
        """Let go of files and processes.  May be called more than once."""
        ...


class _Lines:
    """Bytes -> complete lines; unwraps Docker's JSON and the CRI text form, and joins their partial lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._partial = ""

    def reset(self) -> None:
        """Forget an unfinished line (the file was replaced)."""
        self._rest, self._partial = b"", ""

    def feed(self, data: bytes) -> list[str]:
        """All lines that end in ``data``."""
        data = self._rest + data
        *complete, self._rest = data.split(b"\n")
        if len(self._rest) > _LONGEST:
            self._rest = b""
        lines = []
        for raw in complete:
            text = self._unwrap(raw.decode("utf-8", "replace").rstrip("\r"))
            if text is not None:
                lines.append(text)
        return lines

    def _unwrap(self, line: str) -> str | None:
        if line.startswith('{"log":'):
            try:
                text = json.loads(line)["log"]
            except (ValueError, KeyError, TypeError):
                return line
            if not isinstance(text, str):
                return line
            return self._join(text, complete=text.endswith("\n"))
        match = _CRI.match(line)
        if match is not None:
            return self._join(match.group(2), complete=match.group(1) == "F")
        return line

    def _join(self, text: str, *, complete: bool) -> str | None:
        self._partial += text
        if not complete and len(self._partial) < _LONGEST:
            return None
        text, self._partial = self._partial.rstrip("\r\n"), ""
        return text


class FileSource:
    """A log file, followed through rotation (renamed or copied and truncated) and recreation.

    On the first look a rotated predecessor ``PATH.1`` is read before it, since the start may stand there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reason: str | None = "not read yet"
        self._lines = _Lines()
        self._file: Any = None
        self._key: tuple[int, int] | None = None
        self._first = True

    def poll(self, now: float) -> list[str]:
        """New lines of the file; after a rotation the old file is read to its end first."""
        lines: list[str] = []
        try:
            if self._first and self._file is None:
                self._first = False
                with contextlib.suppress(OSError):
                    self._open(self.path.with_name(self.path.name + ".1"))
            if self._file is not None:
                lines = self._read()
                if self._file is not None and self._at_end() and self._replaced():
                    self.close()
            if self._file is None:
                self._open(self.path)
                lines += self._read()
        except OSError as error:
            self.close()
            self.reason = f"{self.path}: {error.strerror or error}"
        return lines

    def _open(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise OSError(0, "is no regular file")
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._key = (status.st_dev, status.st_ino)
        self._lines.reset()
        if status.st_size > _NEWEST:
            self._file.seek(status.st_size - _NEWEST)
        self.reason = None

    def _read(self) -> list[str]:
        position = self._file.tell()
        if os.fstat(self._file.fileno()).st_size < position:
            self._file.seek(0)  # copied and truncated
            self._lines.reset()
        return self._lines.feed(self._file.read(_CHUNK) or b"")

    def _at_end(self) -> bool:
        return bool(self._file.tell() >= os.fstat(self._file.fileno()).st_size)

    def _replaced(self) -> bool:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False  # between rename and recreation: keep the old one
        return (status.st_dev, status.st_ino) != self._key

    def close(self) -> None:
        """Close the file; the next poll opens it anew from its beginning."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._key = None


class DockerFileSource:
    """A container's JSON log on disk, found by container name, id or Compose service.

    A recreated container has another id and so another file: it is looked for again every ten seconds.
    """

    def __init__(self, name: str, root: Path = _DOCKER_ROOT, *, every: float = 10.0) -> None:
        self.name = name
        self.reason: str | None = "not read yet"
        self._root = root
        self._every = every
        self._due = float("-inf")
        self._id: str | None = None
        self._file: FileSource | None = None

    def poll(self, now: float) -> list[str]:
        """New lines of the container's newest log."""
        if now >= self._due:
            self._due = now + self._every
            self._look()
        if self._file is None:
            return []
        lines = self._file.poll(now)
        self.reason = self._file.reason
        return lines

    def _look(self) -> None:
        found: list[tuple[str, str, str]] = []
        try:
            folders = [entry.name for entry in os.scandir(self._root) if entry.is_dir()]
        except OSError as error:
            self.reason = (
                f"{self._root}: {error.strerror or error}; mount it read-only, run as root, or set docker.socket"
            )
            return
        for folder in folders:
            try:
                data = json.loads((self._root / folder / "config.v2.json").read_text(encoding="utf-8"))
                labels = (data.get("Config") or {}).get("Labels") or {}
                names = (str(data.get("Name", "")).lstrip("/"), labels.get("com.docker.compose.service"))
                started = str((data.get("State") or {}).get("StartedAt", ""))
                driver = _log_driver(self._root / folder / "hostconfig.json")
            except (OSError, ValueError, AttributeError):
                continue
            if self.name in names or (len(self.name) >= 12 and folder.startswith(self.name)):
                found.append((started, folder, driver))
        if not found:
            self.close()
            self._id = None
            self.reason = f"no container {self.name!r} in {self._root}"
            return
        _, identity, driver = max(found)
        if driver not in ("json-file", ""):
            self.close()
            self.reason = f"container {self.name!r} logs with driver {driver}; use log: {{journal: …}} or {{file: …}}"
            return
        if identity != self._id:
            self.close()
            self._id = identity
            self._file = FileSource(self._root / identity / f"{identity}-json.log")

    def close(self) -> None:
        """Close the log file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _log_driver(path: Path) -> str:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    config = data.get("LogConfig") if isinstance(data, dict) else None
    return str(config.get("Type", "")) if isinstance(config, dict) else ""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self.timeout)
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        self.sock = sock


class DockerApiSource:
    """A container's log through the Docker (or Podman) API: only ``GET`` of its state and its log.

    Reads from the container's newest start on, and goes on after the newest time stamp it has seen.
    """

    def __init__(self, name: str, socket_path: str, *, every: float = 3.0, timeout: float = 2.0) -> None:
        self.name = name
        self.reason: str | None = "not read yet"
        self._socket = socket_path
        self._every = every
        self._timeout = timeout
        self._due = float("-inf")
        self._of: tuple[str, str] | None = None
        self._read_until = 0
        self._lines = _Lines()

    def poll(self, now: float) -> list[str]:
        """New lines, asked for every few seconds."""
        if now < self._due:
            return []
        self._due = now + self._every
        try:
            return self._fetch()
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.reason = f"Docker API at {self._socket}: {error}"
            return []

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = _UnixConnection(self._socket, self._timeout)
        try:
            connection.request("GET", path, headers={"Host": "docker"})
            response = connection.getresponse()
            return response.status, response.read(_CHUNK)
        finally:
            connection.close()

    def _container(self) -> dict[str, Any]:
        status, body = self._get(f"/containers/{quote(self.name, safe='')}/json")
        if status == 404:
            filters = json.dumps({"label": [f"com.docker.compose.service={self.name}"]})
            status, body = self._get("/containers/json?" + urlencode({"filters": filters}))
            listed = json.loads(body) if status == 200 else []
            if not listed:
                raise ValueError(f"no container or Compose service {self.name!r}")
            status, body = self._get(f"/containers/{quote(str(listed[0]['Id']), safe='')}/json")
        if status != 200:
            raise ValueError(f"status {status} for container {self.name!r}")
        data = json.loads(body)
        if not isinstance(data, dict):
            raise TypeError("unexpected answer")
        return data

    def _fetch(self) -> list[str]:
        data = self._container()
        identity, started = str(data["Id"]), str((data.get("State") or {}).get("StartedAt") or "")
        if (identity, started) != self._of:
            self._of = (identity, started)
            self._read_until = _nanoseconds(started) - 1
        since = f"{max(0, self._read_until) // 10**9}.{max(0, self._read_until) % 10**9:09}"
        query = urlencode({"stdout": "1", "stderr": "1", "timestamps": "1", "since": since})
        status, body = self._get(f"/containers/{quote(identity, safe='')}/logs?{query}")
        if status != 200:
            raise ValueError(f"status {status} for the log of {self.name!r}")
        self.reason = None
        tty = bool((data.get("Config") or {}).get("Tty"))
        out = []
        newest = self._read_until
        for line in self._lines.feed(body if tty else _frames(body)):
            stamp, _, text = line.partition(" ")
            at = _nanoseconds(stamp)
            if at > self._read_until:
                newest = max(newest, at)
                out.append(text)
        self._lines.reset()  # a cut last line comes again with the next answer
        self._read_until = newest
        return out

    def close(self) -> None:
        """Nothing is kept open."""


def _frames(body: bytes) -> bytes:
    """Payload of Docker's multiplexed stream: 8 byte headers (stream, 0, 0, 0, length) before each frame."""
    out = bytearray()
    position = 0
    while position + 8 <= len(body):
        if body[position] > 2 or body[position + 1 : position + 4] != b"\0\0\0":
            return body  # not multiplexed after all
        length = int.from_bytes(body[position + 4 : position + 8], "big")
        out += body[position + 8 : position + 8 + length]
        position += 8 + length
    return bytes(out)


def _nanoseconds(stamp: str) -> int:
    """Unix nanoseconds of an RFC 3339 time stamp; 0 when it is none."""
    match = re.match(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?", stamp)
    if match is None:
        return 0
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    seconds = calendar.timegm((year, month, day, hour, minute, second, 0, 0, 0))
    zone = match.group(8)
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return max(0, seconds * 10**9 + int((match.group(7) or "0").ljust(9, "0")[:9]))


class JournalSource:
    """The journal of a systemd unit since boot, from ``journalctl -f -o json``; started again when it ends."""

    def __init__(self, unit: str, *, command: str = "journalctl", every: float = 10.0) -> None:
        self.unit = unit
        self.reason: str | None = "not read yet"
        self._command = command
        self._every = every
        self._due = float("-inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._cursor: str | None = None

    def poll(self, now: float) -> list[str]:
        """New messages of the unit."""
        if self._process is None:
            if now < self._due:
                return []
            self._due = now + self._every
            if not self._start():
                return []
        assert self._process is not None
        assert self._process.stdout is not None
        data = b""
        try:
            while len(data) < _CHUNK:
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                data += piece
        except BlockingIOError:
            pass
        except OSError as error:
            self.reason = f"journalctl: {error.strerror or error}"
        lines = self._messages(data)
        status = self._process.poll()
        if status is not None and not data:
            self.close()
            self.reason = f"journalctl ended with status {status}: may this user read the journal of {self.unit}?"
        return lines

    def _start(self) -> bool:
        path = shutil.which(self._command)
        if path is None:
            self.reason = f"{self._command} is not installed here: run the exporter on the host"
            return False
        arguments = [path, "--follow", "--output=json", "--no-pager", f"--unit={self.unit}", "--boot"]
        # after journalctl ended, go on behind the last entry that was read
        arguments += [f"--after-cursor={self._cursor}"] if self._cursor else ["--lines=all"]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - fixed program, the unit is one argument
                arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            self.reason = f"journalctl: {error.strerror or error}"
            return False
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._rest = b""
        self.reason = None
        return True

    def _messages(self, data: bytes) -> list[str]:
        *complete, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            self._rest = b""
        lines = []
        for raw in complete:
            try:
                entry = json.loads(raw)
            except ValueError:
                continue
            if not isinstance(entry, dict):
                continue
            cursor = entry.get("__CURSOR")
            self._cursor = cursor if isinstance(cursor, str) else self._cursor
            message = entry.get("MESSAGE")
            if isinstance(message, list):  # not valid UTF-8: the journal gives numbers
                with contextlib.suppress(ValueError, TypeError):
                    message = bytes(message).decode("utf-8", "replace")
            if isinstance(message, str):
                lines.extend(message.splitlines())
        return lines

    def close(self) -> None:
        """End journalctl."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def source_of(
    settings: LogSetting, *, docker_socket: Path | None = None, docker_root: Path = _DOCKER_ROOT
) -> LineSource:
    """The source that a server's ``log:`` stands for; a container is read through the API when a socket is set."""
    if settings.file is not None:
        return FileSource(settings.file)
    if settings.journal is not None:
        return JournalSource(settings.journal)
    assert settings.docker is not None
    if docker_socket is not None:
        return DockerApiSource(settings.docker, str(docker_socket))
    return DockerFileSource(settings.docker, docker_root)


OnFacts = Callable[[str, StartupFacts, Failure | None], None]
"""(server, facts of its newest start, newest reason of death in any start)"""


class LogWatch:
    """Polls the logs of all servers in one thread and reports facts when they change."""

    def __init__(self, on_facts: OnFacts, *, every: float = 1.0) -> None:
        self._on_facts = on_facts
        self._every = every
        self._lock = threading.Lock()
        self._sources: dict[str, tuple[object, LineSource, StartupLog]] = {}
        self._reasons: dict[str, str | None] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def apply(self, logs: Mapping[str, LogSetting | None], *, docker_socket: Path | None = None) -> None:
        """Follow these logs (server -> setting) from now on; unchanged ones are kept."""
        with self._lock:
            for name in list(self._sources):
                if self._sources[name][0] != (logs.get(name), docker_socket):
                    self._sources.pop(name)[1].close()
                    self._reasons.pop(name, None)
            for name, settings in logs.items():
                if settings is not None and name not in self._sources:
                    source = source_of(settings, docker_socket=docker_socket)
                    self._sources[name] = ((settings, docker_socket), source, StartupLog())

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def stop(self, wait: float = 2.0) -> None:
        """Stop the thread and close all sources."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(wait)
        with self._lock:
            for _, source, _ in self._sources.values():
                source.close()
            self._sources.clear()

    def reason(self, name: str) -> str | None:
        """Why a server's log cannot be read now; None while it is read (or not configured)."""
        with self._lock:
            entry = self._sources.get(name)
        return entry[1].reason if entry is not None else None

    def poll(self, now: float) -> None:
        """One round over all sources (the thread does this)."""
        with self._lock:
            sources = list(self._sources.items())
        for name, (_, source, parser) in sources:
            changed = False
            for line in source.poll(now):
                changed = parser.feed(line) or changed
            if changed:
                self._on_facts(name, parser.facts, parser.last_failure)
            if source.reason != self._reasons.get(name):
                self._reasons[name] = source.reason
                if source.reason is not None and source.reason != "not read yet":
                    log.warning("server=%s log=unreadable reason=%s", name, source.reason)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll(time.monotonic())
            except Exception:  # a fault here must not end the following of all logs
                log.exception("fault while following logs")
            self._stop.wait(self._every)
