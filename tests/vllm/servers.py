"""``vllm serve`` processes for tests: started, looked into, hurt in chosen ways, and gone for certain at the end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import requests

API_KEY = "sk-real-vllm-secret-0123456789"
"""Given to one server: it must appear in nothing that vllmeter writes."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Two servers and the load share two cores: more threads only wait for each other.
    "OMP_NUM_THREADS": "1",
}


def vllm_environment(env: Path) -> dict[str, str]:
    """The environment of ``vllm`` commands; nothing of it asks the network."""
    return {**os.environ, **ENVIRONMENT, "PATH": f"{env / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(env)}


@dataclass(frozen=True)
class Process:
    """A process by pid and start time: a pid alone may be another's by now."""

    pid: int
    started: str
    title: str

    def fields(self) -> list[str]:
        """``/proc/PID/stat`` from field 3 (state) on; empty when it is gone or another process."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return []
        found = text.rpartition(")")[2].split()
        return found if found[19] == self.started else []

    @property
    def state(self) -> str:
        """State letter; "" when it is gone."""
        return (self.fields() or [""])[0]

    @property
    def alive(self) -> bool:
        """Neither gone nor a zombie."""
        return self.state not in ("", "Z", "X")

    @property
    def parent(self) -> int:
        """Pid of its parent, 0 when it is gone."""
        found = self.fields()
        return int(found[1]) if found else 0

    def send(self, number: int) -> None:
        """A signal to this very process, if it is still there."""
        if self.fields():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def shared_memory(self) -> set[Path]:
        """Files in /dev/shm that it maps: nobody else removes them when it is killed."""
        try:
            text = Path(f"/proc/{self.pid}/maps").read_text()
        except OSError:
            return set()
        return {Path(name) for name in re.findall(r"(/dev/shm/(?:psm_|sem\.mp-)\w+)", text)}


def process(pid: int) -> Process | None:
    """What runs under a pid now."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    return Process(pid, stat.rpartition(")")[2].split()[19], title)


def tree(root: int) -> list[Process]:
    """A process and all that descend from it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found: list[Process] = []
    queue = [root]
    while queue:
        pid = queue.pop(0)
        one = process(pid)
        if one is not None:
            found.append(one)
            queue.extend(children.get(pid, []))
    return found


@dataclass
class Vllm:
    """One ``vllm serve`` on the CPU, at one port for life; it may be started again with other flags."""

    name: str
    env: Path
    model: Path
    port: int
    log: Path
    flags: tuple[str, ...] = ()
    key: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    _child: subprocess.Popen[bytes] | None = None
    _seen: dict[int, Process] = field(default_factory=dict)
    _shared: set[Path] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """What its clients must send."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def start(self, *more: str) -> None:
        """Starts it; it is ready half a minute later (see :meth:`ready`)."""
        command = [str(self.env / "bin" / "vllm"), "serve", str(self.model), "--served-model-name", self.name]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager", *self.flags, *more]
        if self.key:
            command += ["--api-key", self.key]
        # In the process group of the tests: whoever ends that ends the servers too.
        with self.log.open("ab") as out:
            self._child = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**vllm_environment(self.env), **self.environment},
            )

    def ready(self) -> bool:
        """Whether it answers; fails when it has ended instead."""
        assert self._child is not None
        code = self._child.poll()
        assert code is None, f"vllm serve ({self.name}) ended with {code}:\n{self.tail()}"
        try:
            return requests.get(f"{self.url}/health", timeout=2).status_code == 200
        except requests.RequestException:
            return False

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def api_server(self) -> Process:
        """The process that was started."""
        assert self._child is not None
        return self._look()[0]

    def engine(self) -> Process:
        """Its EngineCore."""
        return next(p for p in self._look() if p.title.startswith("VLLM::EngineCore"))

    def _look(self) -> list[Process]:
        assert self._child is not None
        found = tree(self._child.pid)
        for one in found:
            self._seen[one.pid] = one
            self._shared |= one.shared_memory()
        return found

    def wait(self, patience: float) -> int | None:
        """Reaps it; None when it is still there."""
        assert self._child is not None
        try:
            return self._child.wait(patience)
        except subprocess.TimeoutExpired:
            return None

    def kill_api_server(self) -> list[Process]:
        """SIGKILL to the API server alone; what is left of its tree."""
        before = self._look()
        before[0].send(signal.SIGKILL)
        self.wait(10)
        return [one for one in before[1:] if one.alive]

    def stop(self, patience: float = 40.0) -> None:
        """SIGTERM as a user would; then whatever of it is left is killed, and its shared memory removed."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._look()
            for one in self._seen.values():
                one.send(signal.SIGCONT)
            self._child.terminate()
            self.wait(patience)
        for one in self._seen.values():
            one.send(signal.SIGKILL)
        self.wait(5)
        deadline = time.monotonic() + 5
        while any(one.alive for one in self._seen.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for path in self._shared:
            path.unlink(missing_ok=True)
        self._child = None
        self._seen.clear()
        self._shared.clear()


@contextlib.contextmanager
def serving(servers: Sequence[Vllm]) -> Iterator[None]:
    """Starts all of them side by side; ends all of them, whatever happens."""
    # Short, since their sockets lie there too, and removed: killed servers leave their files behind.
    with tempfile.TemporaryDirectory(prefix="vllm.", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        try:
            for server in servers:
                server.environment["TMPDIR"] = scratch
                server.start()
            yield
        finally:
            for server in servers:
                server.stop(patience=15)
