"""Starts and stops what the demo shows: replay, exporter, Prometheus, Alertmanager.  Ends only what it started."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

PROMETHEUS_NAMES = ("prometheus",)
ALERTMANAGER_NAMES = ("prometheus-alertmanager", "alertmanager")


class DemoError(Exception):
    """Something of the demo did not start; the text says what, why and what to do."""


@dataclass(slots=True)
class Started:
    """A process of the demo with its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self, lines: int = 8) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


class Stack:
    """Processes of the demo in their folder; :meth:`stop` ends them in reverse order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Started] = []
        folder.mkdir(parents=True, exist_ok=True)

    def start(
        self, name: str, command: Sequence[str], ready: str | Callable[[], bool], patience: float = 30.0
    ) -> Started:
        """Starts a program and waits until ``ready`` (a URL, or a question of its own) answers 200.

        :raises DemoError: it ended or did not get ready; with the end of its log.
        """
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own commands
                list(command), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
        item = Started(name, process, log)
        self.started.append(item)
        deadline = time.monotonic() + patience
        while not (_answers(ready) if isinstance(ready, str) else ready()):
            if process.poll() is not None:
                raise DemoError(f"{name} ended with {process.returncode}; its log {log} ends with:\n{item.tail()}")
            if time.monotonic() > deadline:
                raise DemoError(f"{name} is not ready after {patience:.0f} s; its log {log} ends with:\n{item.tail()}")
            time.sleep(0.1)
        return item

    def ended(self) -> Started | None:
        """A process that ended by itself, if any."""
        return next((item for item in self.started if item.process.poll() is not None), None)

    def stop(self) -> None:
        """Ends everything that was started here; a process that does not end in 5 s is killed."""
        for item in reversed(self.started):
            if item.process.poll() is None:
                item.process.terminate()
        deadline = time.monotonic() + 5
        for item in reversed(self.started):
            try:
                item.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                item.process.kill()
                item.process.wait()
        self.started.clear()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - our own loopback URL
            return int(response.status) == 200
    except (OSError, urllib.error.URLError, ValueError):
        return False


def alerts_page(prometheus: str) -> str:
    """Address of the page with all alerts: Debian's Prometheus 2.42 has only the classic pages, a 3.x none of them."""
    classic = f"{prometheus}/classic/alerts"
    return classic if not _answers(f"{prometheus}/alerts") and _answers(classic) else f"{prometheus}/alerts"


def find_program(names: Sequence[str]) -> str | None:
    """Path of the first of the programs that is installed."""
    return next((path for name in names if (path := shutil.which(name))), None)


def free_port(preferred: int) -> int:
    """``preferred`` when nothing listens there, else any free port of the loopback address."""
    for port in (preferred, 0):
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            return int(sock.getsockname()[1])
    raise DemoError("no free port on 127.0.0.1")


def exporter_command(config: Path) -> list[str]:
    """``vllmeter serve`` with this Python."""
    return [sys.executable, "-m", "vllmeter", "serve", "--config", str(config)]


def prometheus_config(
    source: Path,
    folder: Path,
    exporter_port: int,
    alertmanager_port: int,
    *,
    host: str = "127.0.0.1",
    scrape: Mapping[str, object] | None = None,
) -> Path:
    """prometheus.yml as it is shipped, when it fits; else a copy with the other addresses.

    ``scrape``: further keys of the exporter's job (scheme, TLS, credentials).
    """
    if (exporter_port, alertmanager_port, host) == (9877, 9093, "127.0.0.1") and not scrape:
        return source
    data = yaml.safe_load(source.read_text(encoding="utf-8"))
    data["rule_files"] = [str((source.parent / pattern).resolve()) for pattern in data.get("rule_files", [])]
    data["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]
    job = next(job for job in data["scrape_configs"] if job["job_name"] == "vllmeter")
    job["static_configs"] = [{"targets": [f"{f'[{host}]' if ':' in host else host}:{exporter_port}"]}]
    job.update(scrape or {})
    target = folder / "prometheus.yml"
    target.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return target


def prometheus_command(program: str, config: Path, folder: Path, port: int) -> list[str]:
    """Prometheus with its data in the demo's folder."""
    return [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.retention.time=1d",
    ]


def alertmanager_command(program: str, config: Path, folder: Path, port: int) -> list[str]:
    """Alertmanager alone (no cluster)."""
    return [
        program,
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]


def wait_for(condition: Callable[[], bool], patience: float, pause: float = 0.2) -> bool:
    """True once the condition holds, False when ``patience`` seconds are over."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(pause)
    return condition()
