"""Builds a fake ``/proc`` tree in a temporary folder, as the kernel would show it.

>>> tree = FakeProc(tmp_path)
>>> tree.add(100, argv=["vllm", "serve", "m", "--port", "8002"], listen={8002: 9001})
>>> tree.add(101, ppid=100, argv=["VLLM::EngineCore"])
>>> ProcReader(tree.root, own_pid=tree.own).read(0.0, [101])

``docker(…)``, ``kubernetes(…)`` and so on give cgroup texts of real path forms.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

INITIAL_PID_NAMESPACE = 4026531836
HOST_NET = 4026531840
OWN_PID = 4242


def hexid(text: str) -> str:
    """A container id: 64 hex digits that start with the hex form of ``text``."""
    return (text.encode().hex() + "0" * 64)[:64]


def docker(name: str) -> str:
    """cgroup of a Docker container with the systemd driver, cgroup v2."""
    return f"0::/system.slice/docker-{hexid(name)}.scope\n"


def unit(name: str) -> str:
    """cgroup of a systemd service."""
    return f"0::/system.slice/{name}\n"


class FakeProc:
    """A ``/proc`` of a machine; own process and an init are there from the start."""

    def __init__(self, path: Path, *, own_namespace: int = INITIAL_PID_NAMESPACE, wsl: bool = False) -> None:
        self.root = path / "proc"
        self.root.mkdir(parents=True)
        self.own = OWN_PID
        self._tables: dict[int, list[tuple[int, int, int, int, str]]] = {}
        self._spaces: dict[int, int] = {}
        self._addresses: dict[int, Sequence[str]] = {}
        release = "5.15.167.4-microsoft-standard-WSL2" if wsl else "6.18.44-generic"
        (self.root / "sys" / "kernel").mkdir(parents=True)
        (self.root / "sys" / "kernel" / "osrelease").write_text(release + "\n")
        (self.root / "version").write_text(f"Linux version {release}\n")
        self.add(1, ppid=0, argv=["/sbin/init"], comm="systemd", cgroup="0::/init.scope\n", start=1)
        self.add(OWN_PID, ppid=1, argv=["vllmeter", "serve"], start=500, pid_namespace=own_namespace)
        (self.root / "self").symlink_to(str(OWN_PID))

    def addresses(self, net: int, *texts: str) -> None:
        """IPv4 addresses of a network namespace (beside 127.0.0.1)."""
        self._addresses[net] = texts
        for pid, space in self._spaces.items():
            if space == net:
                self._write_net(pid)

    def add(
        self,
        pid: int,
        *,
        ppid: int = 1,
        argv: Sequence[str] = (),
        comm: str | None = None,
        state: str = "S",
        start: int | None = None,
        cpu_ticks: int = 100,
        threads: int = 10,
        cgroup: str = "0::/user.slice/user-1000.slice/session-3.scope\n",
        nspid: Sequence[int] | None = None,
        uid: int = 1000,
        rss_kb: int | None = 1000,
        shmem_kb: int = 12,
        environ: Mapping[str, str] | None = None,
        listen: Mapping[int, int] | Sequence[int] = (),
        established: Mapping[int, int] | None = None,
        net: int = HOST_NET,
        pid_namespace: int = INITIAL_PID_NAMESPACE,
        padding: int = 0,
    ) -> None:
        """One process.

        ``listen``: ports (each gets an inode of its own), or port -> inode to share a socket between processes.
        ``established``: local port -> number of connections.  ``padding``: NUL bytes after a renamed command line.
        """
        home = self.root / str(pid)
        if home.exists():
            shutil.rmtree(home)
        for name in ("ns", "net", "fd"):
            (home / name).mkdir(parents=True)
        if comm is None:
            comm = (argv[0].rsplit("/", 1)[-1] if argv else f"p{pid}")[:15]
        start = 1000 + pid if start is None else start
        self.stat(pid, ppid=ppid, comm=comm, state=state, start=start, cpu_ticks=cpu_ticks, threads=threads)
        pids = "\t".join(str(number) for number in (nspid or [pid]))
        memory = f"VmRSS:\t{rss_kb} kB\nRssAnon:\t1 kB\nRssShmem:\t{shmem_kb} kB\n" if rss_kb is not None else ""
        (home / "status").write_text(
            f"Name:\t{comm}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pids}\n{memory}Threads:\t{threads}\n"
        )
        (home / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv) + b"\0" * padding)
        (home / "cgroup").write_text(cgroup)
        if environ is not None:
            (home / "environ").write_bytes(
                b"".join(f"{name}={value}".encode() + b"\0" for name, value in environ.items())
            )
        else:
            (home / "environ").write_bytes(b"\0" * 40)
        (home / "ns" / "net").symlink_to(f"net:[{net}]")
        (home / "ns" / "pid").symlink_to(f"pid:[{pid_namespace}]")
        self._spaces[pid] = net
        table = self._tables.setdefault(net, [])
        sockets = dict(listen) if isinstance(listen, Mapping) else {port: port * 1000 + pid for port in listen}
        place = 0
        for port, inode in sockets.items():
            if not any(row[0] == port and row[4] == "0A" for row in table):
                table.append((port, 0, inode, 0, "0A"))
            (home / "fd" / str(place)).symlink_to(f"socket:[{inode}]")
            place += 1
        for port, count in (established or {}).items():
            for number in range(count):
                table.append((port, 40000 + number, 0, 0, "01"))
        (home / "fd" / str(place)).symlink_to("/dev/null")
        for other, space in self._spaces.items():
            if space == net:
                self._write_net(other)

    def stat(
        self,
        pid: int,
        *,
        ppid: int,
        comm: str,
        state: str = "S",
        start: int = 1,
        cpu_ticks: int = 100,
        threads: int = 1,
    ) -> None:
        """(Re)write ``stat`` alone: a process that worked, changed its parent or its name."""
        before = f"{pid} ({comm}) {state} {ppid} {pid} {pid} 0 -1 4194560 100 0 0 0 {cpu_ticks - 1} 1 0 0 20 0"
        (self.root / str(pid) / "stat").write_text(f"{before} {threads} 0 {start} 1000000 250 18446744073709551615\n")

    def remove(self, pid: int) -> None:
        """The process has ended."""
        shutil.rmtree(self.root / str(pid))
        self._spaces.pop(pid, None)

    def deny(self, pid: int, *names: str) -> None:
        """Another user's process: these entries cannot be read (works for root too: they are missing)."""
        for name in names:
            target = self.root / str(pid) / name
            if target.is_symlink() or target.is_file():
                target.unlink()
            elif target.is_dir():
                shutil.rmtree(target)

    def _write_net(self, pid: int) -> None:
        net = self._spaces[pid]
        rows = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"]
        for place, (local, remote, inode, uid, state) in enumerate(self._tables.get(net, ())):
            rows.append(
                f"{place:4}: 0100007F:{local:04X} 0100007F:{remote:04X} {state} 00000000:00000000 00:00000000 "
                f"00000000 {uid:5} 0 {inode} 1 0000000000000000 100 0 0 10 0"
            )
        folder = self.root / str(pid) / "net"
        folder.mkdir(exist_ok=True)
        (folder / "tcp").write_text("\n".join(rows) + "\n")
        (folder / "tcp6").write_text(rows[0] + "\n")
        lines = ["Local:"]
        for address in ("127.0.0.1", *self._addresses.get(net, ())):
            lines += [f"           |-- {address}", "              /32 host LOCAL"]
        (folder / "fib_trie").write_text("\n".join(lines) + "\n")
        (folder / "if_inet6").write_text("00000000000000000000000000000001 01 80 10 80       lo\n")
