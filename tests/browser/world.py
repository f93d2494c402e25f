"""A replay of a real recording, the real exporter on it as a process of its own, and Debian's Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllmeter.recording.replay import ReplayServer

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "captures"
THREE = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
]


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Exporter:
    """``vllmeter serve`` as a user starts it."""

    def __init__(self, folder: Path, config: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._file = folder / f"vllmeter-{self.port}.yaml"
        self._file.write_text(f"listen: 127.0.0.1:{self.port}\n{config}", encoding="utf-8")
        self._log = folder / f"exporter-{self.port}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts it and waits until every server was looked at."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter"), "XDG_STATE_HOME": str(self._file.parent)}
        command = [sys.executable, "-m", "vllmeter", "serve", "--config", str(self._file)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).read()
                return
            time.sleep(0.1)
        raise AssertionError(f"the exporter did not start:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Ends it."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
            self.process = None

    def log(self) -> str:
        """What it logged."""
        return self._log.read_text()

    def get(self, path: str) -> Any:
        """A JSON document."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)


@contextlib.contextmanager
def replayed(folder: Path, *, recording: Path = THREE, start: float = 0.0, copies: int = 1, more: str = "") -> Iterator[tuple[ReplayServer, Exporter]]:
    """A replay and an exporter that watches it."""
    with ReplayServer(recording, copies=copies, start=start) as replay:
        exporter = Exporter(folder, replay.config() + more)
        try:
            yield replay, exporter
        finally:
            exporter.stop()
