"""Which processes belong to which configured server.  Pure.

Evidence is used strongest first, and a process has one owner:

1. the configured ``match`` (container, unit, port, command, pod): overrides everything;
2. who listens on the URL's port, in the network namespace that the URL's host means; through docker-proxy and conmon
   to the container behind a published port;
3. the container engine: published ports and container addresses;
4. names: Compose service, container, pod, systemd unit equal to the server's name or the URL's host;
5. ``--port`` in a command line, where sockets may not be read;
6. a ``--served-model-name`` that one local server process has and one configured server answers with.

A model name alone never decides: 6 only applies where both sides are unique and the URL means this host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from vllmeter.memory.argv import is_interpreter, is_server, title_role
from vllmeter.memory.flags import ServeCommand, parse_command
from vllmeter.snapshot import ContainerFacts, ContainerTable, HostProcess, ProcessTable, Quantity

ProcessKey = tuple[int, int]
"""(pid, start_ticks): a process for good, since PIDs are reused."""

INITS: Final = frozenset(
    {
        "systemd",
        "init",
        "tini",
        "docker-init",
        "dumb-init",
        "catatonit",
        "s6-svscan",
        "runit",
        "pause",
        "containerd-shim",
        "conmon",
        "crun",
        "launchd",
    }
)
SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "tmux", "screen", "sleep", "tail"})


@dataclass(frozen=True, slots=True)
class MatchRule:
    """A configured match; it overrides everything else, and all given parts must hold."""

    container: str | None = None
    """name, id (12 or more hex digits), or Compose service"""
    unit: str | None = None
    port: int | None = None
    command: str | None = None
    """regular expression searched in the command line of the server's process"""
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known about one configured server before its processes are looked for.

    ``addresses``: IP addresses that the URL's host stands for (the peer of our own connection), so that a
    container's name in a URL can be found; without them only a literal address or localhost is understood.
    ``estimate``: bytes per GPU that its log or its parts add up to, for platforms without per-process memory.
    """

    name: str
    host: str
    port: int
    match: MatchRule | None = None
    addresses: tuple[str, ...] = ()
    model_names: tuple[str, ...] = ()
    estimate: Quantity | None = None


def signature(server: ServerFacts) -> tuple[object, ...]:
    """What of the configuration decides whose process it is; another one makes what was remembered void."""
    return (server.host, server.port, server.match)


@dataclass(frozen=True, slots=True)
class KnownRoot:
    """The process of a server at an earlier tick."""

    key: ProcessKey
    method: str
    signature: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The processes of one server: all of them (``pids``), the server process (``root``) and how they were found."""

    method: str
    root: int | None
    pids: frozenset[int]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Claims by server name; for the others the reason in ``missing``."""

    claims: Mapping[str, Claim]
    missing: Mapping[str, str]
    orphans: frozenset[int]
    findings: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def command_of(argv: tuple[str, ...]) -> ServeCommand | None:
    """The server's command line as vLLM reads it (command lines repeat every tick)."""
    return parse_command(argv)


class HostView:
    """Processes with the questions that attribution asks about them."""

    def __init__(self, table: ProcessTable, containers: ContainerTable | None) -> None:
        self.table = table
        self.processes = table.processes
        self.engine = containers
        self.containers: Mapping[str, ContainerFacts] = containers.containers if containers else {}
        self.children: dict[int, list[int]] = {}
        self.servers: dict[int, HostProcess] = {}
        for pid, process in self.processes.items():
            self.children.setdefault(process.ppid, []).append(pid)
            if is_server(process.argv):
                self.servers[pid] = process
        self.roots = frozenset(pid for pid in self.servers if self.root_of(pid) == pid)
        self.orphans = frozenset(pid for pid in self.processes if self._is_orphan(pid))
        self._roots_in_container: dict[str, list[int]] = {}
        self._roots_in_unit: dict[str, list[int]] = {}
        for pid in self.roots:
            process = self.processes[pid]
            if process.container_id:
                self._roots_in_container.setdefault(process.container_id, []).append(pid)
            if process.unit:
                self._roots_in_unit.setdefault(process.unit, []).append(pid)

    # ------------------------------------------------------------------ trees

    def parent(self, process: HostProcess) -> HostProcess | None:
        """The parent in the same container; None at its border, and where it is not known."""
        parent = self.processes.get(process.ppid)
        if parent is None or parent.pid == process.pid or parent.container_id != process.container_id:
            return None
        return parent

    def chain(self, pid: int) -> list[HostProcess]:
        """The process and its ancestors up to the container's border."""
        out: list[HostProcess] = []
        current = self.processes.get(pid)
        while current is not None and len(out) < 64:
            out.append(current)
            current = self.parent(current)
        return out

    def root_of(self, pid: int) -> int | None:
        """The topmost vLLM server process at or above ``pid`` (children of old releases carry the same arguments)."""
        root = None
        for process in self.chain(pid):
            if process.pid in self.servers:
                root = process.pid
        return root

    def descendants(self, pid: int) -> set[int]:
        """``pid`` and everything below it in the same container."""
        home = self.processes[pid].container_id
        found: set[int] = set()
        pending = [pid]
        while pending:
            current = pending.pop()
            if current in found or self.processes[current].container_id != home:
                continue
            found.add(current)
            pending.extend(self.children.get(current, ()))
        return found

    def _is_reaper(self, process: HostProcess) -> bool:
        """True for what adopts processes: an init, a shim, a shell; never a Python process or a server."""
        if process.pid in self.servers or is_interpreter(process.argv) or "::" in process.comm:
            return False
        if title_role(process.argv, process.comm) is not None:
            return False
        first = process.namespace_pids[-1] if len(process.namespace_pids) > 1 else None
        return process.pid == 1 or first == 1 or process.comm in INITS or process.comm in SHELLS

    def _is_orphan(self, pid: int, depth: int = 0) -> bool:
        """An engine or worker by title whose creator is dead: its parent is now an init or a shell (or an orphan)."""
        process = self.processes[pid]
        title = process.argv[0] if process.argv else process.comm
        role = title_role(process.argv, process.comm)
        if role not in ("engine_core", "worker") or title.startswith("ray::"):
            return False
        parent = self.processes.get(process.ppid)
        if parent is None:
            return process.ppid == 1
        if self._is_reaper(parent):
            return True
        return depth < 8 and self._is_orphan(parent.pid, depth + 1)

    # ------------------------------------------------------------------ members of a server

    def is_main(self, root: int) -> bool:
        """True when the container (or unit) exists for this server: only inits and shells are above it."""
        above = self.chain(root)[1:]
        if not all(self._is_reaper(process) for process in above):
            return False
        process = self.processes[root]
        if process.container_id:
            top = above[-1] if above else process
            # `docker exec` into a running container: not its first process
            return not top.namespace_pids or top.namespace_pids[-1] == 1
        return True

    def members(self, root: int) -> frozenset[int]:
        """All processes of the server ``root``: its container or unit where that is its own, else its tree."""
        process = self.processes[root]
        container, unit = process.container_id, process.unit
        if container and self._roots_in_container.get(container) == [root] and self.is_main(root):
            found = {pid for pid, other in self.processes.items() if other.container_id == container}
        elif (
            not container
            and unit is not None
            and unit.endswith(".service")
            and self._roots_in_unit.get(unit) == [root]
            and process.ppid == 1
        ):
            found = {pid for pid, other in self.processes.items() if other.unit == unit and not other.container_id}
        else:
            found = self.descendants(root)
        return frozenset(found - self.orphans)

    def top_of(self, pid: int) -> int:
        """Where a process without a vLLM server above it begins: the highest ancestor that is no init and no shell."""
        top = pid
        for process in self.chain(pid):
            if self._is_reaper(process) or process.comm in ("sshd", "login", "su", "sudo"):
                break
            top = process.pid
        return top

    # ------------------------------------------------------------------ containers

    def container_roots(self, container: str) -> list[int]:
        """Server processes in a container."""
        return self._roots_in_container.get(container, [])

    def in_container(self, container: str) -> frozenset[int]:
        """All known processes of a container but orphans."""
        found = {pid for pid, process in self.processes.items() if process.container_id == container}
        facts = self.containers.get(container)
        if not found and facts is not None and facts.pid is not None and facts.pid in self.processes:
            found = self.descendants(facts.pid)
        return frozenset(found - self.orphans)

    def container_name(self, container: str | None) -> str | None:
        """Name where the engine told it, else the short id."""
        if container is None:
            return None
        facts = self.containers.get(container)
        return facts.name if facts is not None and facts.name else container[:12]

    def find_containers(self, wanted: str) -> list[str]:
        """Ids of the containers that ``wanted`` (name, Compose service, id prefix) means; an exact name wins."""
        named = [container.id for container in self.containers.values() if container.name == wanted]
        if named:
            return named
        served = [container.id for container in self.containers.values() if container.service == wanted]
        if served:
            return served
        if re.fullmatch(r"[0-9a-f]{12,64}", wanted):
            known = {process.container_id for process in self.processes.values() if process.container_id}
            return sorted(one for one in known | set(self.containers) if one.startswith(wanted))
        return []

    # ------------------------------------------------------------------ network

    def namespaces_of(self, server: ServerFacts) -> frozenset[int] | None:
        """Network namespaces that the URL's host means; None when it means none that is known here."""
        own = self.table.net_namespace
        if server.host in ("localhost", "0.0.0.0", "::", "localhost.localdomain"):  # noqa: S104  # compared, not bound
            return frozenset() if own is None else frozenset({own})
        found: set[int] = set()
        loopback = False
        for text in (server.host, *server.addresses):
            address = _ip(text)
            if address is None:
                continue
            if address.is_loopback:
                loopback = True
                continue
            found.update(
                inode for inode, addresses in self.table.namespace_addresses.items() if str(address) in addresses
            )
        if loopback:
            if own is None:
                return frozenset()
            found.add(own)
        return frozenset(found) if found else None

    def is_host(self, server: ServerFacts) -> bool:
        """True when the URL means our own network or the host's (loopback or one of the addresses)."""
        spaces = self.namespaces_of(server)
        if spaces is None:
            return False
        first = self.processes.get(1)
        host = first.net_namespace if first is not None else None
        return not spaces or self.table.net_namespace in spaces or host in spaces

    def listeners(self, port: int, namespaces: Iterable[int | None] | None) -> list[int]:
        """Processes that listen on ``port`` in one of the namespaces (None: in any)."""
        wanted = None if namespaces is None else set(namespaces)
        return [
            pid
            for pid, process in self.processes.items()
            if process.listening_ports
            and port in process.listening_ports
            and (wanted is None or process.net_namespace in wanted)
        ]

    def describe(self, pid: int) -> str:
        """Words for a process."""
        return self.processes[pid].comm


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


# --------------------------------------------------------------------------- evidence for one server


@dataclass(frozen=True, slots=True)
class _Found:
    """A server process or a set of processes; or a reason why not."""

    root: int | None = None
    pids: frozenset[int] = frozenset()
    why: str = ""
    method: str = ""

    def __bool__(self) -> bool:
        return bool(self.pids)


def _whole(view: HostView, root: int, method: str, why: str = "") -> _Found:
    return _Found(root, view.members(root), why, method)


def _best_root(view: HostView, pids: Iterable[int]) -> int | None:
    """The one server process among ``pids``; else the highest process that is no init and no shell."""
    known = sorted(pids)
    roots = [pid for pid in known if pid in view.roots]
    if len(roots) == 1:
        return roots[0]
    if roots:
        return None
    tops = {view.top_of(pid) for pid in known if title_role(view.processes[pid].argv, "") is None}
    inside = sorted(pid for pid in tops if pid in known)
    return inside[0] if inside else None


def _from_listeners(view: HostView, listeners: Sequence[int], port: int, method: str) -> _Found:
    """The server behind the processes that hold a listening socket (parent and children share it)."""
    roots = {root for root in (view.root_of(pid) for pid in listeners) if root is not None}
    if len(roots) == 1:
        return _whole(view, roots.pop(), method)
    if len(roots) > 1:
        return _Found(why=f"port {port} is held by {len(roots)} servers")
    for pid in listeners:
        behind = _behind_proxy(view, view.processes[pid])
        if behind is not None:
            return behind
    # Something that embeds vLLM: its whole tree
    for pid in listeners:
        process = view.processes[pid]
        if is_interpreter(process.argv) or any(
            title_role(view.processes[below].argv, view.processes[below].comm) for below in view.descendants(pid)
        ):
            top = min(listeners, key=lambda one: len(view.chain(one)))
            return _Found(top, frozenset(view.descendants(top) - view.orphans), "", method)
    return _Found(why=f"port {port} is held by {view.describe(listeners[0])}, which is no vLLM server (a proxy?)")


def _option(argv: Sequence[str], *names: str) -> str | None:
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            if equals:
                return value
            return argv[place + 1] if place + 1 < len(argv) else None
    return None


def _behind_proxy(view: HostView, process: HostProcess) -> _Found | None:
    """The container behind docker-proxy (its arguments name address and port) or conmon (its arguments name the id)."""
    argv = process.argv or ()
    if process.comm == "docker-proxy":
        address, port = _option(argv, "-container-ip"), _option(argv, "-container-port")
        if address is None or port is None or not port.isdigit():
            return None
        return _at_address(view, address, int(port), "published_port") or _Found(
            why=f"docker-proxy leads to {address}:{port}, but no process that listens there can be seen"
        )
    if process.comm == "conmon":
        container = _option(argv, "-c", "--cid")
        if container is None:
            return None
        return _from_container(view, container, None, "published_port")
    return None


def _at_address(view: HostView, address: str, port: int, method: str) -> _Found:
    spaces = {inode for inode, held in view.table.namespace_addresses.items() if address in held}
    listeners = view.listeners(port, spaces)
    if listeners:
        return _from_listeners(view, listeners, port, method)
    for container in view.containers.values():
        if address in container.addresses:
            return _from_container(view, container.id, port, method)
    # Sockets are hidden from us, but the namespace is known: the one server in it with that port
    roots = [pid for pid in view.roots if view.processes[pid].net_namespace in spaces and spaces]
    with_port = [pid for pid in roots if _argv_port(view, pid) == port]
    return _whole(view, with_port[0], method) if len(with_port) == 1 else _Found()


def _from_container(view: HostView, container: str, port: int | None, method: str) -> _Found:
    """A container as a whole; of several servers in it the one with the container port."""
    roots = view.container_roots(container)
    if len(roots) == 1:
        # A configured container counts as a whole, even when the server is not its first process
        whole = view.in_container(container) if method == "match_container" else view.members(roots[0])
        return _Found(roots[0], whole, "", method)
    if len(roots) > 1:
        if port is not None:
            listeners = [pid for pid in view.listeners(port, None) if view.processes[pid].container_id == container]
            if listeners:
                return _from_listeners(view, listeners, port, method)
            with_port = [pid for pid in roots if _argv_port(view, pid) == port]
            if len(with_port) == 1:
                return _whole(view, with_port[0], method)
        return _Found(why=f"container {view.container_name(container)} runs {len(roots)} servers; match them by port")
    pids = view.in_container(container)
    if not pids:
        return _Found(why=f"container {view.container_name(container)} has no process that can be seen")
    return _Found(_best_root(view, pids), pids, "", method)


def _argv_port(view: HostView, pid: int) -> int | None:
    """``--port`` of a server process (8000 when not given); None without HTTP port (``--uds``, ``--headless``)."""
    argv = view.processes[pid].argv
    command = command_of(argv) if argv else None
    if command is None or command.text("uds") or command.switch("headless"):
        return None
    return command.port


def _served_names(view: HostView, pid: int) -> tuple[str, ...]:
    argv = view.processes[pid].argv
    command = command_of(argv) if argv else None
    return command.served_names if command is not None else ()


# --------------------------------------------------------------------------- the configured match


def _static(view: HostView, server: ServerFacts, rule: MatchRule) -> _Found:
    """All parts of the rule must hold; ``why`` names the part that does not."""
    parts: list[_Found] = []
    unknown = ""
    if rule.container is not None:
        found = _static_container(view, rule.container, rule.port)
        if found is None:
            reason = view.engine.reason if view.engine is not None and view.engine.reason else "no Docker API is set up"
            unknown = f"match.container {rule.container!r} cannot be checked: {reason}"
        else:
            parts.append(found)
    if rule.unit is not None:
        parts.append(_static_unit(view, rule.unit))
    if rule.pod is not None:
        pids = frozenset(pid for pid, process in view.processes.items() if process.pod_uid == rule.pod)
        pids -= view.orphans
        parts.append(
            _Found(_best_root(view, pids), pids, "", "match_pod")
            if pids
            else _Found(why=f"no process of pod {rule.pod} can be seen")
        )
    if rule.command is not None:
        parts.append(_static_command(view, rule.command))
    for part in parts:
        if not part:
            return part
    if rule.port is not None:
        # Inside what was named so far: equal ports are common in containers
        inside = frozenset.intersection(*(part.pids for part in parts)) if parts else None
        part = _static_port(view, server, rule.port, inside)
        if not part:
            return part
        parts.append(part)
    if not parts:
        return _Found(why=unknown)
    pids = frozenset.intersection(*(part.pids for part in parts))
    if not pids:
        return _Found(why="the parts of its match rule lead to different processes")
    root = next((part.root for part in parts if part.root in pids), None)
    return _Found(root if root is not None else _best_root(view, pids), pids, unknown, parts[0].method)


def _static_container(view: HostView, wanted: str, port: int | None) -> _Found | None:
    """None when nothing here can tell containers by name."""
    found = view.find_containers(wanted)
    if len(found) == 1:
        return _from_container(view, found[0], port, "match_container")
    if len(found) > 1:
        names = ", ".join(sorted(view.container_name(one) or one for one in found))
        return _Found(why=f"match.container {wanted!r} means {len(found)} containers: {names}")
    by_host_name = {
        process.container_id
        for process in view.processes.values()
        if process.container_id and (process.environ or {}).get("HOSTNAME") == wanted
    }
    if len(by_host_name) == 1:
        return _from_container(view, by_host_name.pop(), port, "match_container")
    if view.engine is None or (view.engine.reason and not view.containers):
        return None
    return _Found(why=f"no running container is called {wanted!r}")


def _static_unit(view: HostView, wanted: str) -> _Found:
    names = {wanted, f"{wanted}.service"}
    pids = frozenset(pid for pid, process in view.processes.items() if process.unit in names) - view.orphans
    if not pids:
        return _Found(why=f"no process of unit {wanted} can be seen")
    return _Found(_best_root(view, pids), pids, "", "match_unit")


def _static_port(view: HostView, server: ServerFacts, port: int, inside: frozenset[int] | None) -> _Found:
    spaces = view.namespaces_of(server) if inside is None else None
    for where in (spaces, None):
        listeners = view.listeners(port, where) if where is None or where else []
        if inside is not None:
            listeners = [pid for pid in listeners if pid in inside]
        if listeners:
            found = _from_listeners(view, listeners, port, "match_port")
            return _Found(found.root, found.pids, found.why, "match_port")
    roots = [pid for pid in view.roots if _argv_port(view, pid) == port and (inside is None or pid in inside)]
    if len(roots) == 1:
        return _whole(view, roots[0], "match_port")
    return _Found(why=f"no process that listens on port {port} can be seen")


def _static_command(view: HostView, pattern: str) -> _Found:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        return _Found(why=f"match.command {pattern!r}: {error}")
    matching = [
        pid
        for pid, process in view.processes.items()
        if process.argv and process.comm not in SHELLS and expression.search(" ".join(process.argv))
    ]
    roots = sorted({root for root in (view.root_of(pid) for pid in matching) if root in matching})
    if not roots:
        tops = {pid for pid in matching if not any(above.pid in matching for above in view.chain(pid)[1:])}
        roots = sorted(tops)
    if len(roots) > 1:
        return _Found(why=f"match.command {pattern!r} fits {len(roots)} servers; make it narrower")
    if not roots:
        return _Found(why=f"no command line fits match.command {pattern!r}")
    root = roots[0]
    pids = view.members(root) if root in view.roots else frozenset(view.descendants(root) - view.orphans)
    return _Found(root, pids, "", "match_command")


# --------------------------------------------------------------------------- automatic evidence, strongest first


def _by_port(view: HostView, server: ServerFacts) -> _Found:
    spaces = view.namespaces_of(server)
    if spaces is None:
        return _Found(why=f"{server.host} is no address of a network on this host that can be seen")
    # Our own namespace may be unknown (old recordings): then processes whose namespace is unknown too are taken as ours
    listeners = view.listeners(server.port, spaces or {None})
    if listeners:
        return _from_listeners(view, listeners, server.port, "listening_port")
    hidden = [pid for pid in view.roots if view.processes[pid].listening_ports is None]
    if hidden:
        return _Found(
            why=f"open sockets of {len(hidden)} server process(es) may not be read (run as root or with CAP_SYS_PTRACE)"
        )
    return _Found(why=f"no process that can be seen listens on {server.host}:{server.port}")


def _by_engine(view: HostView, server: ServerFacts) -> _Found:
    """Published ports and container addresses as the container engine tells them."""
    wanted = {text for text in (server.host, *server.addresses) if _ip(text) is not None}
    local = view.is_host(server)
    found: list[tuple[str, int]] = []
    for container in view.containers.values():
        for _, outside, inside in container.published_ports:
            if local and outside == server.port:
                found.append((container.id, inside))
        if wanted & set(container.addresses):
            found.append((container.id, server.port))
    chosen = dict.fromkeys(found)
    if len(chosen) == 1:
        container_id, port = next(iter(chosen))
        return _from_container(view, container_id, port, "published_port")
    return _Found()


def _by_name(view: HostView, server: ServerFacts) -> _Found:
    names = {server.name, server.host}
    containers = [
        (container.id, "compose_service" if container.service in names else "container_name")
        for container in view.containers.values()
        if container.service in names or container.name in names
    ]
    if len(containers) == 1:
        return _from_container(view, containers[0][0], server.port, containers[0][1])
    if containers:
        return _Found(why=f"{len(containers)} containers are called {server.name} or {server.host}")
    pods = {
        process.container_id
        for pid, process in view.processes.items()
        if pid in view.roots and process.container_id and (process.environ or {}).get("HOSTNAME") in names
    }
    if len(pods) == 1:
        return _from_container(view, pods.pop(), server.port, "pod_name")
    units = {f"{name}.service" for name in names}
    pids = frozenset(pid for pid, process in view.processes.items() if process.unit in units) - view.orphans
    if pids and len({view.processes[pid].unit for pid in pids}) == 1:
        return _Found(_best_root(view, pids), pids, "", "unit")
    return _Found()


def _by_argument(view: HostView, server: ServerFacts, taken: frozenset[int]) -> _Found:
    """``--port`` of a server process whose sockets we may not read, in our own network as far as one can tell."""
    spaces = view.namespaces_of(server)
    if spaces is None:
        return _Found()
    fitting = []
    for pid in view.roots - taken:
        process = view.processes[pid]
        if _argv_port(view, pid) != server.port:
            continue
        if process.net_namespace is None:
            # Not readable: outside containers it is almost always ours; inside it may be a bridge
            if process.container_id is not None:
                continue
        elif process.net_namespace not in spaces or process.listening_ports is not None:
            continue
        fitting.append(pid)
    return _whole(view, fitting[0], "port_argument") if len(fitting) == 1 else _Found()


_LOW_PORTS: Final = 32768
"""Ports from here on are handed out by the kernel: ZMQ and torch listen there before the server does."""


def _not_listening_yet(view: HostView, server: ServerFacts, taken: frozenset[int]) -> _Found:
    """``--port`` of a server process that listens nowhere yet, while nobody listens at the URL.

    vLLM opens its port last: weights are loaded and memory is held for minutes before.
    """
    spaces = view.namespaces_of(server)
    if spaces is None or view.listeners(server.port, spaces or {None}):
        return _Found()
    fitting = [
        pid
        for pid in view.roots - taken
        if (ports := view.processes[pid].listening_ports) is not None
        and all(port >= _LOW_PORTS for port in ports)
        and view.processes[pid].net_namespace in (spaces or {None})
        and _argv_port(view, pid) == server.port
    ]
    why = f"it does not listen on port {server.port} yet"
    return _whole(view, fitting[0], "port_argument", why) if len(fitting) == 1 else _Found()


def _by_model_name(
    view: HostView, server: ServerFacts, servers: Sequence[ServerFacts], taken: frozenset[int]
) -> _Found:
    names = set(server.model_names)
    if not names or not view.is_host(server):
        return _Found()
    if sum(bool(names & set(other.model_names)) for other in servers) != 1:
        return _Found()
    fitting = [pid for pid in view.roots if names & set(_served_names(view, pid))]
    if len(fitting) != 1 or fitting[0] in taken:
        return _Found()
    return _whole(view, fitting[0], "served_model_name")


def own(
    view: HostView,
    servers: Sequence[ServerFacts],
    remembered: Mapping[str, KnownRoot] | None = None,
) -> Ownership:
    """Find the processes of every server; each process has at most one owner.

    ``remembered``: server -> its process at an earlier tick; kept while that process lives and nothing else was found
    (a process that is shutting down closes its sockets before its memory is free).
    """
    claims: dict[str, Claim] = {}
    missing: dict[str, str] = {}
    findings: list[str] = []
    owner: dict[int, str] = {}
    open_servers = list(servers)

    def claim(server: ServerFacts, found: _Found) -> bool:
        mine = frozenset(pid for pid in found.pids if pid not in owner)
        # Of a shared tree the root decides: aliases of one server are told, never counted twice
        rivals = sorted({owner[pid] for pid in found.pids if pid in owner})
        if rivals and (not mine or found.root in owner):
            missing[server.name] = f"its processes are those of server {rivals[0]} (one instance configured twice?)"
            findings.append(f"{server.name}: {missing[server.name]}")
            return False
        claims[server.name] = Claim(found.method, found.root, mine, found.why)
        missing.pop(server.name, None)
        owner.update(dict.fromkeys(mine, server.name))
        return True

    def settle(server: ServerFacts, found: _Found) -> bool:
        """True when this server is done with."""
        if found:
            claim(server, found)
            return True
        if found.why:
            missing.setdefault(server.name, found.why)
        return False

    remaining: list[ServerFacts] = []
    for server in open_servers:
        if server.match is None:
            remaining.append(server)
            continue
        found = _static(view, server, server.match)
        if settle(server, found):
            continue
        if server.match.container is not None and "cannot be checked" in found.why:
            # Names are unknown without the engine: other evidence may still find it
            remaining.append(server)
    open_servers = remaining

    def automatic(step: int, server: ServerFacts) -> _Found:
        taken = frozenset(owner)
        if step == 0:
            return _by_port(view, server)
        if step == 1:
            return _by_engine(view, server)
        if step == 2:
            return _by_name(view, server)
        if step == 3:
            return _by_argument(view, server, taken)
        return _by_model_name(view, server, servers, taken)

    for step in range(5):
        open_servers = [server for server in open_servers if not settle(server, automatic(step, server))]

    for server in servers:
        before = remembered.get(server.name) if remembered is not None else None
        if server.name in claims or before is None or before.signature != signature(server):
            continue
        pid, start = before.key
        process = view.processes.get(pid)
        if process is not None and process.start_ticks == start and pid not in owner:
            pids = view.members(pid) if pid in view.roots else frozenset(view.descendants(pid) - view.orphans)
            claim(server, _Found(pid, pids, "kept from earlier: its process lives", before.method))
    for server in servers:
        # Last, so that a process that is shutting down keeps its name for what it is
        if server.name not in claims and server.match is None:
            settle(server, _not_listening_yet(view, server, frozenset(owner)))
    _add_ray(view, claims, owner)
    for server in servers:
        if server.name not in claims:
            missing.setdefault(server.name, "no process of it was found")
    return Ownership(claims, missing, view.orphans, tuple(findings))


def uses_ray(argv: Sequence[str] | None) -> bool:
    """True for a server whose workers run under Ray, outside its process tree."""
    words = [word.replace("_", "-") for word in argv or ()]
    if "--worker-use-ray" in words or "--distributed-executor-backend=ray" in words:
        return True
    return any(
        word == "--distributed-executor-backend" and words[place + 1 : place + 2] == ["ray"]
        for place, word in enumerate(words)
    )


def _add_ray(view: HostView, claims: dict[str, Claim], owner: dict[int, str]) -> None:
    """Ray starts vLLM's workers below its own daemon: they go to the only Ray server of their container or host.

    With several Ray servers nothing tells whose they are: they stay other programs.
    """
    workers = [
        pid
        for pid, process in view.processes.items()
        if pid not in owner and (process.argv[0] if process.argv else process.comm).startswith("ray::RayWorker")
    ]
    if not workers:
        return
    ray_servers = [
        (name, view.processes[claim.root])
        for name, claim in claims.items()
        if claim.root is not None and uses_ray(view.processes[claim.root].argv)
    ]
    strangers = [pid for pid in view.roots if pid not in owner and uses_ray(view.processes[pid].argv)]
    added: dict[str, set[int]] = {}
    for pid in workers:
        home = view.processes[pid].container_id
        near = [name for name, root in ray_servers if root.container_id == home]
        rivals = [one for one in strangers if view.processes[one].container_id == home]
        if len(near) != 1 or rivals:
            near = [name for name, _ in ray_servers] if not strangers else []
        if len(near) == 1:
            added.setdefault(near[0], set()).add(pid)
            owner[pid] = near[0]
    for name, pids in added.items():
        claim = claims[name]
        note = f"{len(pids)} worker(s) under Ray; it is the only Ray server here"
        claims[name] = Claim(claim.method, claim.root, claim.pids | pids, "; ".join(filter(None, (claim.note, note))))


@dataclass(frozen=True, slots=True)
class Roles:
    """Process role -> its processes."""

    by_role: Mapping[str, tuple[HostProcess, ...]] = field(default_factory=dict)


def roles_of(view: HostView, claim: Claim, gpu_pids: frozenset[int]) -> Roles:
    """Sort a server's processes into api_server, engine_core, worker and other.

    Releases before 0.10.1 give no titles: there the first GPU user below the server is its engine core, others workers.
    """
    out: dict[str, list[HostProcess]] = {}
    for pid in sorted(claim.pids):
        process = view.processes.get(pid)
        if process is None:
            continue
        role = title_role(process.argv, process.comm)
        if role is None and pid == claim.root:
            role = "api_server"
        if role is None and pid in gpu_pids:
            role = "engine_core" if process.ppid == claim.root else "worker"
        out.setdefault(role or "other", []).append(process)
    # In-process engine: the server itself holds the GPU memory; it stays api_server
    return Roles({role: tuple(processes) for role, processes in out.items()})
