"""Real programs for tests: where they are, how they are started, and that they end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT / "tests" / "captures"
H200 = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"


def prometheus_programs() -> dict[str, str]:
    """Prometheus releases on this machine: Debian's on the PATH, and 3.x where VLLMETER_PROMETHEUS3 names one."""
    found = {}
    if (path := shutil.which("prometheus")) is not None:
        found["debian"] = path
    if (path := os.environ.get("VLLMETER_PROMETHEUS3")) and Path(path).exists():
        found["3.x"] = path
    return found


def free_port() -> int:
    """A port of the loopback address that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def program(
    command: Sequence[str], log: Path, ready_url: str, patience: float = 30.0
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is ready inside the block and has ended after it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        wait_until(lambda: answers(ready_url) or process.poll() is not None, patience, f"{command[0]} at {ready_url}")
        assert process.poll() is None, f"{command[0]} ended:\n{log.read_text(errors='replace')[-2000:]}"
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def exporter(config: Path, log: Path, port: int) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """``vllmeter serve`` on a configuration that listens on ``port``."""
    command = [sys.executable, "-m", "vllmeter", "serve", "--config", str(config), "--listen", f"127.0.0.1:{port}"]
    return program(command, log, f"http://127.0.0.1:{port}/-/healthy")


def answers(url: str) -> bool:
    """Whether a GET gives 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return int(response.status) == 200
    except (OSError, ValueError):
        return False


def get(url: str, **headers: str) -> str:
    """Text of a GET."""
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(response.read().decode())


def query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    """Instant query."""
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    result: list[dict[str, Any]] = json.loads(get(url))["data"]["result"]
    return result


def wait_until(condition: Callable[[], bool], patience: float, what: str) -> None:
    """Waits for a condition; fails the test with ``what`` when it does not come."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {patience:.0f} s"
        time.sleep(0.1)
