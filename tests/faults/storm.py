"""All faults at once against one exporter with its real threads; what the test and scripts/faults look at."""

from __future__ import annotations

import collections
import contextlib
import logging
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import requests
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from fakes import fault_server as f
from faults import hostile
from vllmeter.config.settings import Server, Settings
from vllmeter.gpu.source import GpuSource
from vllmeter.sampler import HostSources
from vllmeter.scrape.target import Target
from vllmeter.snapshot import ProcessTable, ServerReading
from vllmeter.web.app import create_app
from vllmeter.web.server import build_server
from vllmeter.wiring import Exporter

GOOD = 5
QUICK = {"connect": 0.5, "read": 0.8, "total": 1.5}
LIMIT = 16 * 2**20


class NoProcesses:
    """A host without processes."""

    def read(self, at: float, pids: object) -> ProcessTable:
        """An empty table."""
        return ProcessTable(at, {})


@dataclass
class Report:
    """What happened."""

    seconds: float
    late: list[float] = field(default_factory=list)
    """seconds by which samples of good servers came after their time"""
    good_failures: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, dict[str, int]] = field(default_factory=dict)
    """server -> failures by reason, as exposed"""
    up: dict[str, float] = field(default_factory=dict)
    logged: dict[str, list[str]] = field(default_factory=dict)
    """server -> states as logged, one per line"""
    exceptions: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """bytes at several moments"""
    threads: tuple[int, int] = (0, 0)
    body: str = ""

    def lateness(self, share: float) -> float:
        """Quantile of the lateness in seconds."""
        ordered = sorted(self.late)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Log(logging.Handler):
    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            self._report.exceptions.append(f"{text}: {record.exc_info[1]!r}")
        if text.startswith("server=") and "scrape=" in text:
            name = text.split()[0].removeprefix("server=")
            state = "ok" if "scrape=ok" in text else text.partition("reason=")[2].split()[0]
            self._report.logged.setdefault(name, []).append(state)


@contextlib.contextmanager
def endpoints(cases: dict[str, f.Behaviour]) -> Iterator[dict[str, str]]:
    """Name -> URL."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(f.FaultServer(behaviour)).url for name, behaviour in cases.items()}


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def storm(seconds: float, gpu: GpuSource | None = None, cases: dict[str, f.Behaviour] | None = None) -> Report:
    """Runs the exporter over all faulty endpoints and some good ones, and asks it for /metrics all the time."""
    report = Report(seconds)
    behaviours = cases if cases is not None else {name: case[0] for name, case in hostile.CASES.items()}
    wanted = {**{f"good-{number}": hostile.healthy for number in range(GOOD)}, **behaviours}
    handler = _Log(report)
    root = logging.getLogger("vllmeter")
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.INFO)
    before = threading.active_count()
    try:
        with endpoints(wanted) as urls:
            servers = tuple(
                Server.model_validate({"name": name, "url": url, "timeout": QUICK, "max_body": LIMIT})
                for name, url in urls.items()
            )
            exporter = Exporter(Settings(servers=servers), sources=HostSources(gpu, NoProcesses()))
            _watch(exporter, report)
            with _served(exporter) as url:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(1.0)
                    answer = requests.get(url + "/metrics", timeout=20)
                    assert answer.status_code == 200
                    report.memory.append(_memory())
                report.body = answer.text
        deadline = time.monotonic() + 20
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    report.threads = (before, threading.active_count())
    for family in text_string_to_metric_families(report.body):
        for sample in family.samples:
            if sample.name == "vllmeter_scrape_failures_total":
                report.reasons.setdefault(sample.labels["server"], {})[sample.labels["reason"]] = int(sample.value)
            elif sample.name == "vllmeter_server_up":
                report.up[sample.labels["server"]] = sample.value
    return report


def _watch(exporter: Exporter, report: Report) -> None:
    """Notes when samples of the good servers come."""
    last: dict[str, float] = {}
    failures: collections.Counter[str] = collections.Counter()
    real = exporter.store.observed

    def observed(target: Target, reading: ServerReading | None, at: float, wall: float) -> None:
        name = target.server.name
        if name.startswith("good-"):
            if name in last:
                report.late.append(max(0.0, at - last[name] - target.interval(hold=False)))
            last[name] = at
            if reading is None:
                failures[name] += 1
                report.good_failures = dict(failures)
        real(target, reading, at, wall)

    exporter.store.observed = observed  # type: ignore[method-assign]


@contextlib.contextmanager
def _served(exporter: Exporter) -> Iterator[str]:
    server: uvicorn.Server = build_server(create_app(exporter))
    sock = f.socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    exporter.start()
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        exporter.stop()
        sock.close()
