"""Processes of interest from ``/proc`` (or a bind mount of the host's).

Of interest are GPU users, every vLLM process tree, their ancestors, and the proxies of published container ports.  The
rest is looked at rarely: a tick on a host with 500 processes costs about a millisecond beside what is of interest.

What another user's process does not show (``environ``, open sockets and the network namespace need the same user or
CAP_SYS_PTRACE) is None with a reason in ``absent``; nothing here raises for that.
"""

# os calls on strings: these are hundreds of small reads a second, and Path objects would cost more than the reads.
# ruff: noqa: PTH115, PTH118, PTH208

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vllmeter.host.cgroup import CgroupFacts, parse_cgroup
from vllmeter.host.sockets import SocketTable, parse_fib_trie, parse_if_inet6, parse_tcp
from vllmeter.memory.argv import is_interpreter, is_server, kept_environment, mask_argv, title_role
from vllmeter.snapshot import HostProcess, ProcessTable

INITIAL_PID_NAMESPACE: Final = 4026531836
"""Inode of the kernel's first PID namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""

YOUNG: Final = 120.0
"""Seconds in which a process may still rename itself, exec or be moved to its cgroup."""
REREAD: Final = 30.0
"""Seconds after which facts that hardly change are read again."""
SOCKETS_EVERY: Final = 10.0
"""Seconds between two readings of open sockets.  ``net/tcp`` walks a hash table whose size goes with the machine's
memory: 3 ms of CPU for eight sockets with 128 GiB."""
SOCKETS_EVERY_YOUNG: Final = 5.0
"""The same while there is a young server: it may open its port any moment."""
ADDRESSES_EVERY: Final = 60.0
MOST_FDS: Final = 4096
MOST_BYTES: Final = 4 << 20
PROXIES: Final = frozenset({"docker-proxy", "conmon", "rootlessport"})
KTHREADD: Final = 2

_PRIVILEGE: Final = "needs the same user or CAP_SYS_PTRACE"
_SOCKET: Final = re.compile(r"^socket:\[(\d+)\]$")
_STATUS: Final = re.compile(r"^(Uid|NSpid|VmRSS|RssShmem):\t[ \t]*(\S.*)$", re.MULTILINE)
_NAMESPACE: Final = re.compile(r"^\w+:\[(\d+)\]$")


@dataclass(slots=True)
class _Stat:
    comm: str
    state: str
    ppid: int
    cpu_ticks: int
    threads: int
    start_ticks: int


def parse_stat(text: str) -> _Stat | None:
    """Fields of ``/proc/PID/stat``; the name may hold spaces and parentheses.  None when the text is cut off."""
    opening, closing = text.find("("), text.rfind(")")
    if opening < 0 or closing < opening:
        return None
    words = text[closing + 2 :].split()
    try:
        # words[0] is field 3 (state)
        return _Stat(
            comm=text[opening + 1 : closing],
            state=words[0],
            ppid=int(words[1]),
            cpu_ticks=int(words[11]) + int(words[12]),
            threads=int(words[17]),
            start_ticks=int(words[19]),
        )
    except (IndexError, ValueError):
        return None


@dataclass(slots=True)
class _Facts:
    """What hardly changes in a process's life."""

    argv: tuple[str, ...] | None
    cgroup: CgroupFacts
    net_namespace: int | None
    environ: Mapping[str, str] | None
    absent: dict[str, str]
    read_at: float
    relevant: bool
    """may be part of a server; for other ancestors the arguments are dropped and sockets are not looked at"""


@dataclass(slots=True)
class _Sockets:
    """What a process listens on."""

    ports: tuple[int, ...] | None
    connections: int | None
    absent: dict[str, str]


@dataclass(slots=True)
class _Seen:
    """A process that was met; ``interesting`` by itself (not through relatives)."""

    stat: _Stat
    first_at: float
    looked_at: float
    interesting: bool
    server: bool
    facts: _Facts | None = None
    sockets: _Sockets | None = None


@dataclass(slots=True)
class _Namespace:
    """One network namespace."""

    table: SocketTable
    read_at: float
    addresses: tuple[str, ...] = ()
    addresses_at: float = float("-inf")
    problem: str | None = None


@dataclass(slots=True)
class _Own:
    """What is known of this exporter's own process."""

    host_pid_namespace: bool | None = None
    same_pid_namespace: bool = True
    net_namespace: int | None = None
    pid: int | None = None
    wsl: bool = False


@dataclass(slots=True)
class _Tick:
    at: float
    sockets: bool
    namespaces: dict[int, _Namespace] = field(default_factory=dict)


class ProcReader:
    """Reads the processes of interest; never raises for what it may not read.

    ``root``: "/proc", or where the host's is mounted ("/host/proc").  ``own_pid`` is for tests.
    """

    def __init__(
        self, root: str | Path = "/proc", *, own_pid: int | None = None, ticks_per_second: float | None = None
    ) -> None:
        self._root = Path(root)
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._hertz = ticks_per_second or float(os.sysconf("SC_CLK_TCK"))
        self._seen: dict[int, _Seen] = {}
        self._namespaces: dict[int, _Namespace] = {}
        self._sockets_at = float("-inf")
        self._own: _Own | None = None

    # ------------------------------------------------------------------ one tick

    def read(self, at: float, pids: Sequence[int]) -> ProcessTable:
        """The processes ``pids`` (GPU users), their ancestors and every vLLM tree, at monotonic time ``at``."""
        if self._own is None:
            self._own = self._look_at_self()
        own = self._own
        try:
            present = {int(name) for name in os.listdir(self._root) if name.isdigit()}
        except OSError as error:
            words = f"{self._root} cannot be read: {error.strerror or error}"
            return ProcessTable(at, {}, reason=words, wsl=own.wsl)
        self._scan(at, present, pids)
        chosen = self._choose(at, pids)
        starting = any(self._seen[pid].server and at - self._seen[pid].first_at <= YOUNG for pid in chosen)
        every = SOCKETS_EVERY_YOUNG if starting else SOCKETS_EVERY
        tick = _Tick(at, sockets=at - self._sockets_at >= every)
        if tick.sockets:
            self._sockets_at = at
        users = frozenset(pids)
        facts = {pid: self._facts(pid, self._seen[pid], at, pid in users) for pid in chosen}
        self._read_sockets(tick, chosen, facts)
        processes = {}
        for pid in chosen:
            process = self._process(pid, self._seen[pid], facts[pid])
            if process is not None:
                processes[pid] = process
        reason: str | None = None
        if 1 not in present:
            reason = f"{self._root} hides other users' processes (hidepid); run as root or join the exempt group"
        wanted = {fact.net_namespace for fact in facts.values()} | {own.net_namespace}
        return ProcessTable(
            at,
            processes,
            host_pid_namespace=own.host_pid_namespace,
            wsl=own.wsl,
            reason=reason,
            same_pid_namespace=own.same_pid_namespace,
            net_namespace=own.net_namespace,
            namespace_addresses={
                inode: space.addresses
                for inode, space in self._namespaces.items()
                if inode in wanted and space.addresses
            },
        )

    # ------------------------------------------------------------------ files

    def _text(self, *parts: str) -> str:
        """A file below the root, at most MOST_BYTES; OSError as it comes."""
        descriptor = os.open(os.path.join(self._root, *parts), os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunks = []
            size = 0
            while size < MOST_BYTES:
                chunk = os.read(descriptor, 1 << 16)
                if not chunk:
                    break
                chunks.append(chunk)
                size += len(chunk)
        finally:
            os.close(descriptor)
        return b"".join(chunks).decode("utf-8", "replace")

    def _stat(self, pid: int) -> _Stat | None:
        try:
            return parse_stat(self._text(str(pid), "stat"))
        except OSError:
            return None

    def _link(self, *parts: str) -> str | None:
        try:
            return os.readlink(os.path.join(self._root, *parts))
        except OSError:
            return None

    def _inode(self, *parts: str) -> int | None:
        match = _NAMESPACE.match(self._link(*parts) or "")
        return int(match[1]) if match else None

    # ------------------------------------------------------------------ which processes

    def _scan(self, at: float, present: set[int], pids: Iterable[int]) -> None:
        """Meet new processes, forget ended ones, look at boring ones again now and then."""
        for pid in [pid for pid in self._seen if pid not in present]:
            del self._seen[pid]
        users = set(pids)
        for pid in present:
            known = self._seen.get(pid)
            if known is None:
                self._meet(pid, at)
                continue
            # A young process is looked at often (it execs and renames itself), an old one rarely
            age = known.looked_at - known.first_at
            due = at - known.looked_at >= min(REREAD, max(1.0, age))
            if due and not known.interesting and pid not in users:
                self._meet(pid, at)

    def _meet(self, pid: int, at: float) -> _Seen | None:
        """Read a process's ``stat`` and what it is; None when it is gone."""
        stat = self._stat(pid)
        if stat is None:
            self._seen.pop(pid, None)
            return None
        known = self._seen.get(pid)
        if known is None or known.stat.start_ticks != stat.start_ticks:
            known = _Seen(stat, at, at, interesting=False, server=False)
            self._seen[pid] = known
        known.stat, known.looked_at = stat, at
        kernel = KTHREADD in (pid, stat.ppid)
        argv = None if kernel else self._argv(pid)
        known.server = is_server(argv)
        known.interesting = known.server or title_role(argv, stat.comm) is not None or stat.comm in PROXIES
        return known

    def _choose(self, at: float, pids: Sequence[int]) -> list[int]:
        """GPU users and vLLM processes with all their ancestors, and the descendants of servers; refreshed stats."""
        chosen: dict[int, None] = {}
        fresh: set[int] = set()

        def refresh(pid: int) -> _Seen | None:
            if pid in fresh:
                return self._seen.get(pid)
            fresh.add(pid)
            known = self._seen.get(pid)
            if known is None or at - known.first_at <= YOUNG or at - known.looked_at >= REREAD:
                return self._meet(pid, at)
            stat = self._stat(pid)
            if stat is None:
                del self._seen[pid]
                return None
            if stat.start_ticks != known.stat.start_ticks:
                return self._meet(pid, at)
            known.stat = stat
            return known

        queue = list(pids) + [pid for pid, known in self._seen.items() if known.interesting]
        for pid in queue:
            current = pid
            while current > 0 and current not in chosen:
                known = refresh(current)
                if known is None:
                    break
                chosen[current] = None
                current = known.stat.ppid
        children: dict[int, list[int]] = {}
        for pid, known in self._seen.items():
            children.setdefault(known.stat.ppid, []).append(pid)
        pending = [pid for pid in chosen if pid in self._seen and self._seen[pid].server]
        below = set(pending)
        while pending:
            for child in children.get(pending.pop(), ()):
                if child not in below and refresh(child) is not None:
                    below.add(child)
                    chosen[child] = None
                    pending.append(child)
        return [pid for pid in chosen if pid in self._seen]

    # ------------------------------------------------------------------ one process

    def _argv(self, pid: int) -> tuple[str, ...] | None:
        """The command line, masked; without the NUL padding that a renamed process has."""
        try:
            text = self._text(str(pid), "cmdline")
        except OSError:
            return None
        return mask_argv(text.rstrip("\0").split("\0")) if text.strip("\0") else ()

    def _facts(self, pid: int, seen: _Seen, at: float, gpu_user: bool) -> _Facts:
        known = seen.facts
        if known is not None:
            age = at - seen.first_at
            if age > YOUNG and at - known.read_at < REREAD and (known.relevant or not gpu_user):
                return known
        absent: dict[str, str] = {}
        argv = self._argv(pid)
        if argv is None:
            absent["argv"] = "not readable"
        relevant = gpu_user or seen.interesting or is_interpreter(argv)
        if argv and not relevant:
            argv = argv[:1]
            absent["argv"] = "only the program: it is no part of a server"
        try:
            cgroup = parse_cgroup(self._text(str(pid), "cgroup"))
        except OSError as error:
            cgroup = CgroupFacts()
            absent["cgroup"] = error.strerror or "not readable"
        namespace = self._inode(str(pid), "ns", "net")
        if namespace is None:
            absent["net_namespace"] = _PRIVILEGE
        environ = self._environ(pid, absent) if seen.server else None
        if not seen.server:
            absent["environ"] = "read of the server's own process only"
        seen.facts = _Facts(argv, cgroup, namespace, environ, absent, at, relevant)
        return seen.facts

    def _environ(self, pid: int, absent: dict[str, str]) -> Mapping[str, str] | None:
        try:
            text = self._text(str(pid), "environ")
        except OSError:
            absent["environ"] = _PRIVILEGE
            return None
        if not text.strip("\0"):
            absent["environ"] = "empty, or wiped when the process renamed itself (SPT_NOENV=1 keeps it)"
            return None
        pairs = {}
        for item in text.split("\0"):
            name, equals, value = item.partition("=")
            if equals:
                pairs[name] = value
        return kept_environment(pairs)

    def _process(self, pid: int, seen: _Seen, facts: _Facts) -> HostProcess | None:
        stat = seen.stat
        absent = dict(facts.absent)
        uid = rss = shared = None
        namespace_pids: tuple[int, ...] = ()
        try:
            status = self._text(str(pid), "status")
        except OSError as error:
            if not (self._root / str(pid)).exists():
                return None
            absent["rss_bytes"] = absent["shared_bytes"] = error.strerror or "not readable"
        else:
            uid, namespace_pids, rss, shared = _parse_status(status)
            if rss is None:
                absent["rss_bytes"] = absent["shared_bytes"] = "no memory of its own (zombie or kernel thread)"
        sockets = seen.sockets
        if sockets is None:
            absent["listening_ports"] = absent["connections"] = "not looked at"
        else:
            absent.update(sockets.absent)
        return HostProcess(
            pid=pid,
            ppid=stat.ppid,
            start_ticks=stat.start_ticks,
            comm=stat.comm,
            argv=facts.argv,
            uid=uid,
            state=stat.state,
            namespace_pids=namespace_pids,
            cgroup=facts.cgroup.path or None,
            container_id=facts.cgroup.container_id,
            container_runtime=facts.cgroup.runtime,
            pod_uid=facts.cgroup.pod_uid,
            unit=facts.cgroup.unit,
            listening_ports=sockets.ports if sockets else None,
            connections=sockets.connections if sockets else None,
            environ=facts.environ,
            cpu_seconds=stat.cpu_ticks / self._hertz,
            rss_bytes=rss,
            shared_bytes=shared,
            threads=stat.threads,
            absent=absent,
            net_namespace=facts.net_namespace,
        )

    # ------------------------------------------------------------------ sockets

    def _read_sockets(self, tick: _Tick, chosen: Sequence[int], facts: Mapping[int, _Facts]) -> None:
        """Listening ports of the chosen processes, now and then (``tick.sockets``) and at once for new ones."""
        assert self._own is not None
        due = [pid for pid in chosen if facts[pid].relevant and (tick.sockets or self._seen[pid].sockets is None)]
        if not due and not tick.sockets:
            return
        # Our own namespace too: its addresses say which URLs mean this host
        if tick.sockets and self._own.net_namespace is not None:
            self._namespace(tick, self._own.net_namespace, str(self._own.pid))
        for pid in due:
            seen, fact = self._seen[pid], facts[pid]
            seen.sockets = self._sockets_of(tick, pid, fact)
        used = {fact.net_namespace for fact in facts.values()} | {self._own.net_namespace}
        for inode in [inode for inode in self._namespaces if inode not in used]:
            del self._namespaces[inode]

    def _namespace(self, tick: _Tick, inode: int, pid: str) -> _Namespace:
        """The sockets of the network namespace ``inode``, read through one of its processes, once a tick."""
        fresh = tick.namespaces.get(inode)
        if fresh is not None:
            return fresh
        texts = []
        problem = None
        for name in ("tcp", "tcp6"):
            try:
                texts.append(self._text(pid, "net", name))
            except OSError as error:
                if name == "tcp":
                    problem = error.strerror or "not readable"
        space = self._namespaces.get(inode) or _Namespace(SocketTable(), tick.at)
        space.table, space.read_at, space.problem = parse_tcp(*texts), tick.at, problem
        if tick.at - space.addresses_at >= ADDRESSES_EVERY:
            space.addresses, space.addresses_at = self._addresses(pid), tick.at
        self._namespaces[inode] = tick.namespaces[inode] = space
        return space

    def _addresses(self, pid: str) -> tuple[str, ...]:
        found: list[str] = []
        for name, parse in (("fib_trie", parse_fib_trie), ("if_inet6", parse_if_inet6)):
            try:
                found.extend(parse(self._text(pid, "net", name)))
            except OSError:
                continue
        return tuple(dict.fromkeys(found))

    def _inodes(self, pid: str) -> set[int] | None:
        """Socket inodes that a process holds; None when that may not be read."""
        try:
            names = os.listdir(os.path.join(self._root, pid, "fd"))
        except OSError:
            return None
        found = set()
        for name in names[:MOST_FDS]:
            match = _SOCKET.match(self._link(pid, "fd", name) or "")
            if match:
                found.add(int(match[1]))
        return found

    def _sockets_of(self, tick: _Tick, pid: int, fact: _Facts) -> _Sockets:
        if fact.net_namespace is None:
            words = f"its network namespace cannot be read: {_PRIVILEGE}"
            return _Sockets(None, None, {"listening_ports": words, "connections": words})
        space = self._namespace(tick, fact.net_namespace, str(pid))
        if space.problem is not None:
            words = f"net/tcp: {space.problem}"
            return _Sockets(None, None, {"listening_ports": words, "connections": words})
        inodes = self._inodes(str(pid))
        if inodes is None:
            words = f"its open files cannot be read: {_PRIVILEGE}"
            return _Sockets(None, None, {"listening_ports": words, "connections": words})
        ports = sorted({port for inode, (_, port) in space.table.listening.items() if inode in inodes})
        connections = sum(space.table.established.get(port, 0) for port in ports)
        return _Sockets(tuple(ports), connections, {})

    # ------------------------------------------------------------------ ourselves

    def _look_at_self(self) -> _Own:
        """Namespaces of this process, and whether this is WSL (where the first PID namespace is not ours)."""
        own = _Own()
        release = ""
        for parts in (("sys", "kernel", "osrelease"), ("version",)):
            try:
                release += self._text(*parts).lower()
            except OSError:
                continue
        own.wsl = "microsoft" in release or "wsl" in release
        link = self._link("self")
        own.pid = int(link) if link is not None and link.isdigit() else None
        if own.pid is None and (self._root / str(self._own_pid)).exists():
            own.pid = self._own_pid
        # A bind-mounted host /proc shows us under our host PID
        own.same_pid_namespace = own.pid is None or own.pid == self._own_pid
        own.net_namespace = self._inode(str(own.pid), "ns", "net") if own.pid is not None else None
        inode = self._inode(str(own.pid), "ns", "pid") if own.pid is not None else None
        if inode is not None and not own.wsl:
            own.host_pid_namespace = inode == INITIAL_PID_NAMESPACE
        return own


def _parse_status(text: str) -> tuple[int | None, tuple[int, ...], int | None, int | None]:
    """(uid, NSpid, resident bytes, shared bytes) of ``/proc/PID/status``.

    Shared is RssShmem: shared memory and pinned buffers on /dev/shm (KV offload) count there, mapped files do not.
    """
    found = dict(_STATUS.findall(text))

    def kilobytes(name: str) -> int | None:
        return int(found[name].split()[0]) * 1024 if name in found else None

    uid = int(found["Uid"].split()[0]) if "Uid" in found else None
    namespace_pids = tuple(int(word) for word in found.get("NSpid", "").split())
    return uid, namespace_pids, kilobytes("VmRSS"), kilobytes("RssShmem")
