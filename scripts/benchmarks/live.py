"""Whole processes for the benchmarks: a replay of many servers, an exporter over it, and what a process costs.

No benchmark itself (it has no TITLE).
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from benchmarks.registry import CAPTURES, PROJECT

RECORDING = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
IN_RECORDING = 3
BUSY_PHASE = "pressure-64"
NVML = os.environ.get("BENCH_NVML", "fake")
"""``real`` on a machine with a GPU"""

FAKE_NVML = '''\
"""Stands in for the NVIDIA library: one H200 with the processes named in FAKE_GPU_PIDS."""
import os
import sys

sys.path.insert(0, {fakes!r})
import fake_pynvml

rows = [fake_pynvml.entry(int(pid), 2_000_000_000) for pid in os.environ["FAKE_GPU_PIDS"].split(",")]
module = fake_pynvml.FakePynvml([fake_pynvml.FakeDevice(used=2_000_000_000 * len(rows), compute=rows, samples=[])])
sys.modules["pynvml"] = module
'''


def environment(**more: str) -> dict[str, str]:
    """Environment of the processes: this checkout first."""
    return {**os.environ, "PYTHONPATH": str(PROJECT / "exporter"), **more}


def free_ports(count: int) -> int:
    """The first of ``count`` neighbouring ports that are free now."""
    for first in range(21000 + os.getpid() % 5000, 60000, 250):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise RuntimeError("no free ports")


@contextlib.contextmanager
def process(command: Sequence[str], log: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended (SIGTERM, then SIGKILL) on leaving."""
    with log.open("wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=dict(env))
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def until(what: str, true: Any, seconds: float, log: Path) -> None:
    """Waits until ``true()``; RuntimeError with the end of the log when it does not come."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return
        time.sleep(0.1)
    raise RuntimeError(f"{what}: not within {seconds:g} s\n{log.read_text(errors='replace')[-2000:]}")


@dataclass(frozen=True)
class Replayed:
    """A running replay: its settings file (to be extended), its endpoints and its process."""

    config: dict[str, Any]
    pid: int
    folder: Path

    def targets(self, servers: int) -> list[str]:
        """host:port of the first servers."""
        return [str(server["url"]).removeprefix("http://") for server in self.config["servers"][:servers]]


@contextlib.contextmanager
def replayed(servers: int) -> Iterator[Replayed]:
    """``servers`` replayed vLLM instances under load."""
    copies = -(-servers // IN_RECORDING)
    with tempfile.TemporaryDirectory(prefix="vllmeter-bench-") as name:
        folder = Path(name)
        config, log = folder / "replay.yaml", folder / "replay.log"
        command = [
            *(sys.executable, "-m", "vllmeter", "replay", str(RECORDING), "--copies", str(copies)),
            *("--base-port", str(free_ports(copies * IN_RECORDING)), "--start", BUSY_PHASE),
            *("--write-config", str(config)),
        ]
        with process(command, log, environment()) as running:
            until("replay", lambda: "control:" in log.read_text(errors="replace"), 60, log)
            yield Replayed(yaml.safe_load(config.read_text()), running.pid, folder)


@dataclass(frozen=True)
class Running:
    """A process under measurement."""

    pid: int
    port: int
    log: Path

    def cpu(self) -> float:
        """CPU seconds so far, of all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024.0
        raise RuntimeError(f"process {self.pid} has no VmRSS")

    def descriptors(self) -> int:
        """Open files."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextlib.contextmanager
def exporter(replay: Replayed, servers: int, nvml: str = "fake") -> Iterator[Running]:
    """``vllmeter serve`` over the first servers of a replay.

    ``nvml``: ``fake`` = real ``/proc`` and a fake library with one GPU, ``real``, or ``off``.
    """
    port = free_ports(1)
    config = {**replay.config, "listen": f"127.0.0.1:{port}", "servers": replay.config["servers"][:servers]}
    config["nvml"] = {"enabled": nvml != "off"}
    shim = replay.folder / "shim"
    shim.mkdir(exist_ok=True)
    (shim / "pynvml.py").write_text(FAKE_NVML.format(fakes=str(PROJECT / "tests" / "fakes")))
    env = environment(FAKE_GPU_PIDS=str(replay.pid))
    if nvml == "fake":
        env["PYTHONPATH"] = f"{shim}:{env['PYTHONPATH']}"
    path, log = replay.folder / f"vllmeter-{servers}.yaml", replay.folder / f"vllmeter-{servers}.log"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "vllmeter", "serve", "--config", str(path), "--log-level", "warning"]
    with process(command, log, env) as started:
        until("exporter", lambda: get(port, "/-/ready") == 200, 60, log)
        yield Running(started.pid, port, log)


def get(port: int, path: str) -> int | None:
    """Status of a GET, None without an answer."""
    try:
        return _get(port, path)[0]
    except OSError:
        return None


def body(port: int, path: str) -> str:
    """Body of a GET that succeeds."""
    status, text = _get(port, path)
    assert status == 200, f"{path}: HTTP {status}: {text[:200]}"
    return text


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


@dataclass(frozen=True)
class Cost:
    """What a process took while it was watched."""

    share: float
    """CPU seconds per second"""
    memory: float
    """resident bytes at the end"""


def costs(watched: Sequence[Running], seconds: float) -> list[Cost]:
    """Cost of processes over the same seconds."""
    before, begin = [one.cpu() for one in watched], time.monotonic()
    time.sleep(seconds)
    after, took = [one.cpu() for one in watched], time.monotonic() - begin
    return [Cost((stop - start) / took, one.memory()) for one, start, stop in zip(watched, before, after, strict=True)]


@contextlib.contextmanager
def scraped(running: Running, every: float) -> Iterator[None]:
    """Something asks for /metrics every so many seconds meanwhile, as a Prometheus does."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(every):
            get(running.port, "/metrics")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def latencies(port: int, path: str, rate: float, seconds: float, connections: int = 5) -> list[float]:
    """Seconds per request at a fixed rate over kept connections, from the moment that each request was due.

    Measured from the due time, so that a slow answer also counts for the requests that it delays.
    """
    taken: list[float] = []
    lock = threading.Lock()
    begin = time.monotonic() + 0.2

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.connect()
        turn = number
        while turn / rate < seconds:
            due = begin + turn / rate
            time.sleep(max(0.0, due - time.monotonic()))
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})  # as Prometheus asks
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, f"HTTP {answer.status}"
            with lock:
                taken.append(time.monotonic() - due)
            turn += connections
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(taken)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The order statistic ⌈share·N⌉."""
    return ordered[max(0, -(-int(share * len(ordered) * 1000) // 1000) - 1)]


def load_note() -> str:
    """How busy the machine was: other processes make latencies longer, CPU time only a little."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
