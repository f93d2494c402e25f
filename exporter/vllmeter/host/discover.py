"""Find the vLLM servers of this host from its processes: for ``serve`` without configuration and ``init``.  Pure.

Every server process that is seen is either found (with a URL to try) or skipped with the reason, so that "nothing was
found" never leaves a user guessing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from vllmeter.memory.argv import is_server
from vllmeter.memory.flags import ServeCommand, parse_command
from vllmeter.snapshot import ContainerFacts, ContainerTable, HostProcess, ProcessTable

_LABEL: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Discovered:
    """A server that can be scraped from here.

    ``method`` says where the port comes from: listening, published, argument, container.
    """

    name: str
    url: str
    pid: int
    method: str
    model: str | None
    container: str | None
    unit: str | None
    command: ServeCommand
    note: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A server process that cannot be used, with the reason and what to do."""

    pid: int
    title: str
    reason: str

    def __str__(self) -> str:
        return f"{self.title} (pid {self.pid}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found and what was skipped; ``notes`` are about the look itself (hidden processes, own namespace)."""

    servers: tuple[Discovered, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The result in sentences, for the log and the terminal."""
        out = []
        for server in self.servers:
            where = f" ({server.unit})" if server.unit else ""
            if server.container:
                where = f" in container {server.container}"
            note = f"; {server.note}" if server.note else ""
            out.append(f"found {server.name} at {server.url}: pid {server.pid}{where}, port by {server.method}{note}")
        out.extend(f"skipped {one}" for one in self.skipped)
        out.extend(self.notes)
        if not self.servers and not self.skipped:
            out.append("no `vllm serve` process was found on this host")
        return out


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a server answers; or why it cannot be reached."""

    host: str = ""
    port: int = 0
    method: str = ""
    note: str = ""
    why: str = ""


def discover(table: ProcessTable, containers: ContainerTable | None = None) -> Discovery:
    """Look through the processes for vLLM servers and say where their ``/metrics`` should be.

    Nothing is connected to and nothing executed.  A server in another network namespace is reached by its published
    port or its address; one on a unix socket only, a headless data-parallel part, and one whose port cannot be told
    are skipped with a reason.
    """
    known = containers.containers if containers is not None else {}
    found: list[Discovered] = []
    skipped: list[Skipped] = []
    for pid in sorted(table.processes):
        process = table.processes[pid]
        if not is_server(process.argv) or _has_server_above(table, process):
            continue
        assert process.argv is not None
        command = parse_command(process.argv, environment=process.environ)
        if command is None:
            continue
        facts = known.get(process.container_id) if process.container_id else None
        title = " ".join(("vllm serve", *command.served_names[:1]))
        if command.switch("headless"):
            skipped.append(Skipped(pid, title, "--headless: it serves no HTTP; its data-parallel head does"))
            continue
        place = _place(table, process, command, facts)
        if place.why:
            skipped.append(Skipped(pid, title, place.why))
            continue
        scheme = "https" if command.text("ssl_certfile") or command.text("ssl_keyfile") else "http"
        found.append(
            Discovered(
                name=_name(command, facts, process),
                url=f"{scheme}://{place.host}:{place.port}",
                pid=pid,
                method=place.method,
                model=command.served_names[0] if command.served_names else None,
                container=(facts.name or facts.id[:12]) if facts else (process.container_id or "")[:12] or None,
                unit=process.unit,
                command=command,
                note=place.note,
            )
        )
    unique, doubles = _unique_urls(found)
    skipped.extend(doubles)
    return Discovery(tuple(_unique_names(unique)), tuple(skipped), _notes(table, containers))


def _has_server_above(table: ProcessTable, process: HostProcess) -> bool:
    """Children of old releases carry their parent's arguments; the topmost is the server."""
    current, steps = process, 0
    while steps < 64:
        parent = table.processes.get(current.ppid)
        if parent is None or parent.pid == current.pid or parent.container_id != process.container_id:
            return False
        if is_server(parent.argv):
            return True
        current, steps = parent, steps + 1
    return False


# --------------------------------------------------------------------------- where it answers


def _connectable(host: str | None) -> str:
    """The host part of a URL for an address that a server binds: a wildcard is reached by loopback."""
    if not host or host in ("0.0.0.0", "localhost"):  # noqa: S104  # compared, not bound
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return f"[{address}]" if address.version == 6 else str(address)


def _place(table: ProcessTable, process: HostProcess, command: ServeCommand, facts: ContainerFacts | None) -> _Place:
    if command.text("uds"):
        return _Place(why=f"--uds {command.text('uds')}: it listens on a unix socket only; give it a port")
    port, method, note = _port(process, command)
    if port is None:
        return _Place(why=note)
    other_network = (
        process.net_namespace is not None
        and table.net_namespace is not None
        and process.net_namespace != table.net_namespace
    )
    unknown_network = process.net_namespace is None and process.container_id is not None
    if other_network or unknown_network:
        return _in_container(table, process, facts, port, method, note)
    return _Place(_connectable(command.text("host")), port, method, note)


def _port(process: HostProcess, command: ServeCommand) -> tuple[int | None, str, str]:
    """(port, where it comes from, note or reason).  What it really listens on outweighs the command line."""
    said = command.port
    ports = process.listening_ports
    if ports is None:
        why = process.absent.get("listening_ports", "not readable")
        return said, "argument", f"its open sockets are hidden ({why})"
    if said in ports:
        return said, "listening", ""
    if not ports:
        return None, "", f"it does not listen yet (port {said} expected); start vllmeter again when it is up"
    # --port may come from --config FILE or from the environment; small ports first: others are ZMQ and torch
    low = [port for port in ports if port < 32768]
    if len(low) == 1:
        return low[0], "listening", f"it listens on {low[0]}, not on the {said} of its command line"
    listed = ", ".join(map(str, ports[:8]))
    return None, "", f"it listens on {listed} but not on {said}; name the port in vllmeter.yaml"


def _in_container(
    table: ProcessTable, process: HostProcess, facts: ContainerFacts | None, port: int, method: str, note: str
) -> _Place:
    """A server in another network namespace: by its published port, else by its address."""
    if facts is not None:
        for bound, outside, inside in facts.published_ports:
            if inside == port:
                return _Place(_connectable(bound), outside, "published", note)
    proxy = _proxied(table, process, port)
    if proxy is not None:
        return _Place(_connectable(proxy[0]), proxy[1], "published", note)
    addresses = list(facts.addresses) if facts is not None else []
    if process.net_namespace is not None:
        addresses += table.namespace_addresses.get(process.net_namespace, ())
    for text in addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        if not address.is_loopback and not address.is_link_local:
            return _Place(
                f"[{address}]" if address.version == 6 else str(address),
                port,
                "container",
                note or "its port is not published; the container's address changes when it is recreated",
            )
    return _Place(
        why=f"it listens on port {port} in another network namespace, and its published port is not known; "
        "set docker.socket, or name its URL in vllmeter.yaml"
    )


def _proxied(table: ProcessTable, process: HostProcess, port: int) -> tuple[str, int] | None:
    """Host address and port of a published port, from docker-proxy's command line or from what conmon holds open."""
    addresses = table.namespace_addresses.get(process.net_namespace, ()) if process.net_namespace is not None else ()
    for other in table.processes.values():
        if other.comm == "conmon" and other.argv and process.container_id in other.argv:
            # Podman's monitor keeps the published ports; with several it does not say which is which
            held = other.listening_ports or ()
            return ("", held[0]) if len(held) == 1 else None
        if other.comm != "docker-proxy" or not other.argv:
            continue
        options = dict(zip(other.argv[1::2], other.argv[2::2], strict=False))
        if options.get("-container-ip") in addresses and options.get("-container-port") == str(port):
            outside = options.get("-host-port", "")
            if outside.isdigit():
                return options.get("-host-ip", ""), int(outside)
    return None


# --------------------------------------------------------------------------- names


def _slug(text: str) -> str:
    """A server name as the configuration accepts it: letters, digits, ``_ . -``."""
    return _LABEL.sub("-", text).strip("-._")[:60]


def _name(command: ServeCommand, facts: ContainerFacts | None, process: HostProcess) -> str:
    """Compose service, container, unit (not a generic one), model name: the first that there is."""
    candidates = [facts.service, facts.name] if facts is not None else []
    if process.unit and process.unit.endswith(".service") and "vllm" in process.unit:
        candidates.append(process.unit.removesuffix(".service"))
    candidates += [name.rstrip("/").rsplit("/", 1)[-1] for name in command.served_names[:1]]
    for candidate in candidates:
        slug = _slug(candidate or "")
        if slug:
            return slug
    return "vllm"


def _unique_names(servers: Sequence[Discovered]) -> list[Discovered]:
    """Equal names get their port, then a number."""
    counts: dict[str, int] = {}
    for server in servers:
        counts[server.name] = counts.get(server.name, 0) + 1
    used: set[str] = set()
    out = []
    for server in servers:
        name = server.name
        if counts[name] > 1:
            name = f"{name}-{server.url.rpartition(':')[2]}"
        base, number = name, 2
        while name in used:
            name, number = f"{base}-{number}", number + 1
        used.add(name)
        out.append(replace(server, name=name))
    return out


def _unique_urls(servers: Sequence[Discovered]) -> tuple[list[Discovered], list[Skipped]]:
    """Two processes cannot answer at one URL: the one that is seen listening is kept."""
    best: dict[str, Discovered] = {}
    skipped = []
    for server in servers:
        rival = best.get(server.url)
        if rival is None:
            best[server.url] = server
            continue
        keep, drop = (server, rival) if rival.method == "argument" != server.method else (rival, server)
        best[server.url] = keep
        title = f"vllm serve {drop.model or ''}".strip()
        skipped.append(Skipped(drop.pid, title, f"pid {keep.pid} has {keep.url} too"))
    return list(best.values()), skipped


def _notes(table: ProcessTable, containers: ContainerTable | None) -> tuple[str, ...]:
    notes = []
    if table.reason:
        notes.append(table.reason)
    if table.host_pid_namespace is False:
        notes.append("only processes of this container can be seen; run with `pid: host` to find others")
    if containers is not None and containers.reason:
        notes.append(f"container engine: {containers.reason}")
    return tuple(notes)
