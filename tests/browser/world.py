"""A replay of a real recording, the real exporter on it as a process of its own, and Debian's Chromium."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
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
def replayed(
    folder: Path, *, recording: Path = THREE, start: float = 0.0, copies: int = 1, more: str = ""
) -> Iterator[tuple[ReplayServer, Exporter]]:
    """A replay and an exporter that watches it."""
    with ReplayServer(recording, copies=copies, start=start) as replay:
        exporter = Exporter(folder, replay.config() + more)
        try:
            yield replay, exporter
        finally:
            exporter.stop()


class Watched:
    """Opens pages and notes what goes wrong in them."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.problems: list[str] = []
        self.elsewhere: list[str] = []
        self.expected: tuple[str, ...] = ()
        """words of console errors that a test provokes"""

    def open(self, url: str, *, wait: bool = True, **options: Any) -> Any:
        """A page in a context of its own."""
        context = self._browser.new_context(**{"viewport": {"width": 1500, "height": 1300}, **options})
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("request", self._asked)
        page.goto(url)
        if wait:
            page.wait_for_selector(".card canvas", timeout=20_000)
        return page

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(word in message.text for word in self.expected):
            self.problems.append(f"console {message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.elsewhere.append(request.url)

    def close(self) -> None:
        """Closes every page."""
        while self._contexts:
            self._contexts.pop().close()


class Cable:
    """A TCP forwarder whose connections can be cut and that can refuse new ones."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._open: list[socket.socket] = []
        self._cut = False
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends every connection and every new one at once, until :meth:`mend`."""
        self._cut = True
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Lets connections through again."""
        self._cut = False

    def close(self) -> None:
        """Ends everything."""
        self._ended = True
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        source.close()


class OneServer:
    """A vLLM server whose ``/metrics`` a test writes by hand."""

    def __init__(self, model: str = "m") -> None:
        self.running = 0
        self.closed = False
        self.model = model
        self.alerts: list[dict[str, Any]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if outer.closed:  # what came over a connection from before is not answered any more
                    self.close_connection = True
                    return
                body = outer.body() if self.path == "/metrics" else b'{"version": "0.26.0"}'
                if self.path == "/api/v1/alerts":  # it plays Prometheus, too
                    body = json.dumps({"status": "success", "data": {"alerts": outer.alerts}}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def body(self) -> bytes:
        """The exposition."""
        labels = f'engine="0",model_name="{self.model}"'
        return (
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{labels}}} {self.running}\n"
            f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{{labels}}} 0\n"
            f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{{{labels}}} 5\n"
        ).encode()

    def close(self) -> None:
        """Stops."""
        self.closed = True
        self._server.shutdown()
        self._server.server_close()


def until(page: Any, expression: str, argument: Any = None, seconds: float = 10.0) -> float:
    """Waits until a JavaScript expression is true in the page; returns how many seconds that took."""
    began = time.monotonic()
    page.wait_for_function(expression, arg=argument, timeout=seconds * 1000, polling=20)
    return time.monotonic() - began
