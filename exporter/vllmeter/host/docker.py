"""Optional, read-only look at a container engine over its unix socket: Docker, or Podman's compatible service.

Only GET requests to ``/containers/json`` and ``/containers/ID/json`` are made, and of the answers only names, image,
command (keys masked), host PID, published ports, addresses and compose or Kubernetes labels are kept; environments are
never read out.  Access to the socket is as good as root: it is off unless a socket is configured, and a read-only proxy
in front of it is advised.
"""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from vllmeter.memory.argv import mask_argv
from vllmeter.snapshot import ContainerFacts, ContainerTable

log = logging.getLogger(__name__)

SOCKETS: Final = ("/var/run/docker.sock", "/run/podman/podman.sock")
"""Where engines listen by default."""

MOST_CONTAINERS: Final = 1000
MOST_BYTES: Final = 8 << 20
KEPT_LABELS: Final = (
    "com.docker.compose.project",
    "com.docker.compose.service",
    "com.docker.compose.container-number",
    "io.podman.compose.project",
    "io.podman.compose.service",
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.uid",
    "io.kubernetes.container.name",
)
MAX_AGE: Final = 60.0
"""Seconds after which facts that could not be read again are dropped instead of shown."""


class EngineError(Exception):
    """The engine could not be asked; the text says why, for people."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over AF_UNIX."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


def _get(connection: http.client.HTTPConnection, path: str) -> Any:
    """One GET; the decoded JSON.  EngineError with words for everything that can go wrong."""
    try:
        connection.request("GET", path, headers={"Host": "docker", "Accept": "application/json"})
        response = connection.getresponse()
        body = response.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise EngineError("there is no such socket") from None
    except PermissionError:
        raise EngineError("permission denied (run as root or join the engine's group)") from None
    except ConnectionRefusedError:
        raise EngineError("connection refused: the engine is not running") from None
    except TimeoutError:
        raise EngineError("no answer in time") from None
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"{type(error).__name__}: {error}".rstrip(": ")) from None
    if response.status == 403:
        raise EngineError("the proxy in front of it refuses GET /containers (allow CONTAINERS)")
    if response.status == 404:
        raise LookupError(path)
    if response.status != 200:
        raise EngineError(f"it answers HTTP {response.status}")
    if len(body) > MOST_BYTES:
        raise EngineError("its answer is too large")
    try:
        return json.loads(body)
    except ValueError:
        raise EngineError("its answer is no JSON (is this the socket of a container engine?)") from None


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(word) for word in value] if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _ports(network: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
    """``{"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8002"}]}`` -> (("0.0.0.0", 8002, 8000), …)."""
    out: dict[tuple[str, int, int], None] = {}
    for inside, bindings in _mapping(network.get("Ports")).items():
        port, _, protocol = str(inside).partition("/")
        if not port.isdigit() or protocol not in ("", "tcp"):
            continue
        for binding in bindings or ():
            outside = str(_mapping(binding).get("HostPort", ""))
            if outside.isdigit():
                out[(str(binding.get("HostIp") or "0.0.0.0"), int(outside), int(port))] = None  # noqa: S104
    return tuple(sorted(out))


def _addresses(network: Mapping[str, Any]) -> tuple[str, ...]:
    found = [network.get("IPAddress"), network.get("GlobalIPv6Address")]
    for one in _mapping(network.get("Networks")).values():
        found += [_mapping(one).get("IPAddress"), _mapping(one).get("GlobalIPv6Address")]
    return tuple(dict.fromkeys(str(address) for address in found if address))


def _time(text: Any) -> float | None:
    """``2026-12-01T12:00:00.123456789Z`` -> Unix time; None for "0001-01-01…" and odd texts."""
    match = re.match(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$", str(text))
    if match is None or match[1].startswith("0001"):
        return None
    zone = "+00:00" if match[3] == "Z" else match[3]
    try:
        whole = datetime.fromisoformat(match[1] + zone).timestamp()
    except ValueError:
        return None
    return whole + float(match[2] or 0)


def parse_container(document: Any) -> ContainerFacts | None:
    """``GET /containers/ID/json`` -> facts; None when it is not running or no container at all."""
    top = _mapping(document)
    identity = str(top.get("Id", ""))
    state = _mapping(top.get("State"))
    if not re.fullmatch(r"[0-9a-f]{64}", identity) or not state.get("Running", False):
        return None
    config = _mapping(top.get("Config"))
    network = _mapping(top.get("NetworkSettings"))
    pid = state.get("Pid")
    labels = _mapping(config.get("Labels"))
    command = [*_words(config.get("Entrypoint")), *_words(config.get("Cmd"))]
    return ContainerFacts(
        id=identity,
        name=str(top.get("Name", "")).lstrip("/"),
        pid=pid if isinstance(pid, int) and pid > 0 else None,
        image=str(config.get("Image") or top.get("ImageName") or ""),
        command=mask_argv(command),
        labels={name: str(labels[name]) for name in KEPT_LABELS if name in labels},
        published_ports=_ports(network),
        addresses=_addresses(network),
        started=_time(state.get("StartedAt")),
        pid_mode=str(_mapping(top.get("HostConfig")).get("PidMode") or ""),
    )


def fetch_containers(
    path: str, timeout: float, known: Mapping[str, ContainerFacts] | None = None
) -> dict[str, ContainerFacts]:
    """Ask the engine for its running containers; ``known`` ones are asked for again only when they were restarted.

    Raises :class:`EngineError`.  ``timeout`` holds for each request.
    """
    connection = _UnixConnection(path, timeout)
    try:
        listed = _get(connection, "/containers/json")
        if not isinstance(listed, list):
            raise EngineError("its answer is no list of containers")
        out: dict[str, ContainerFacts] = {}
        for row in listed[:MOST_CONTAINERS]:
            identity = str(_mapping(row).get("Id", ""))
            if not re.fullmatch(r"[0-9a-f]{64}", identity):
                continue
            before = (known or {}).get(identity)
            if before is not None and before.pid is not None and _unchanged(before, _mapping(row)):
                out[identity] = before
                continue
            try:
                facts = parse_container(_get(connection, f"/containers/{identity}/json"))
            except LookupError:
                continue  # gone since the list was made
            if facts is not None:
                out[identity] = facts
    except LookupError:
        raise EngineError("it knows no /containers/json (is this the socket of a container engine?)") from None
    finally:
        connection.close()
    return out


def _unchanged(before: ContainerFacts, row: Mapping[str, Any]) -> bool:
    """A container that was restarted keeps its id but "Up 3 seconds" tells; young ones are always asked again."""
    status = str(row.get("Status", ""))
    names = [str(name).lstrip("/") for name in row.get("Names") or ()]
    old = re.match(r"^Up (?:About )?(?:an?|\d+) (?:minute|hour|day|week|month|year)", status) is not None
    return old and before.name in names


class DockerReader:
    """Running containers, cached; an engine that is slow, absent or refuses is a reason and never an exception.

    The engine is asked in a thread of its own every ``every`` seconds, so that ``read`` returns at once.
    """

    def __init__(
        self,
        socket_path: str | Sequence[str] = SOCKETS[0],
        *,
        timeout: float = 2.0,
        every: float = 10.0,
        fetch: Callable[[str, float, Mapping[str, ContainerFacts]], dict[str, ContainerFacts]] = fetch_containers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = [socket_path] if isinstance(socket_path, str) else list(socket_path)
        self._timeout = timeout
        self._every = every
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._facts: dict[str, ContainerFacts] = {}
        self._facts_at: float | None = None
        self._reason: str | None = "not asked yet"
        self._stop = threading.Event()
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self, at: float) -> ContainerTable:
        """The containers as last told; ``at`` (monotonic seconds) decides whether that is too old to be shown."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="containers", daemon=True)
                self._thread.start()
            if self._facts_at is None or at - self._facts_at > max(MAX_AGE, 3 * self._every):
                return ContainerTable({}, self._reason or "its last answer is too old")
            return ContainerTable(dict(self._facts), self._reason)

    def wait(self, timeout: float) -> bool:
        """Wait until the engine was asked once (for ``check``); True when it was."""
        self.read(self._clock())
        return self._asked.wait(timeout)

    def close(self) -> None:
        """Stop the background thread; may be called more than once."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout=self._timeout + 1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._ask()
            self._asked.set()
            self._stop.wait(self._every)

    def _ask(self) -> None:
        with self._lock:
            known = dict(self._facts)
        problems = []
        for path in self._paths:
            try:
                facts = self._fetch(path, self._timeout, known)
            except EngineError as error:
                problems.append(f"{path}: {error}")
                continue
            except Exception as error:  # noqa: BLE001  # an odd answer must not end the thread; it is told as a reason
                problems.append(f"{path}: unexpected answer ({type(error).__name__})")
                continue
            with self._lock:
                self._facts, self._facts_at = facts, self._clock()
                if self._reason is not None and self._reason != "not asked yet":
                    log.info("container engine at %s answers again", path)
                self._reason = None
            return
        reason = "; ".join(problems)
        with self._lock:
            if reason != self._reason:
                log.warning("container engine: %s", reason)
            self._reason = reason
