"""``vllmeter serve`` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Served:
    """A running exporter."""

    process: subprocess.Popen[bytes]
    log_path: Path
    url: str = ""

    @property
    def log(self) -> str:
        """Everything it wrote."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.url.rpartition(":")[2])

    def wait_for(self, text: str, seconds: float = 20.0) -> None:
        """Waits until the log holds ``text``."""
        deadline = time.monotonic() + seconds
        while text not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.log}"
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(15)


def launch(folder: Path, config: str, *arguments: str, env: dict[str, str] | None = None) -> Served:
    """Starts it with a configuration; does not wait."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "vllmeter.yaml"
    path.write_text(config, encoding="utf-8")
    log = folder / "serve.log"
    command = [sys.executable, "-m", "vllmeter", "serve", "--config", str(path), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter"), **(env or {})}
    with log.open("wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    return Served(started, log)


@contextlib.contextmanager
def serving(folder: Path, config: str, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """An exporter that listens; ended on leaving."""
    served = launch(folder, config, *arguments, env=env)
    try:
        served.wait_for("listening=")
        found = re.search(r"listening=(\S+)", served.log)
        assert found is not None
        served.url = found[1]
        yield served
    finally:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait(10)
