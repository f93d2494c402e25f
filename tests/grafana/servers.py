"""A Prometheus on ready blocks, asked over HTTP; started and ended here."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from vllmeter.demo.stack import free_port


class QueryError(Exception):
    """Prometheus refuses a query."""


class Prometheus:
    """Prometheus without targets, over the blocks in ``data``.  A context manager.

    :param lookback: how long a sample stands; blocks written by promtool hold no stale markers
    """

    def __init__(self, program: Path | str, data: Path, scratch: Path, lookback: str) -> None:
        self._program = str(program)
        self._data = data
        self._scratch = scratch
        self._lookback = lookback
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Prometheus:
        self._scratch.mkdir(parents=True, exist_ok=True)
        config = self._scratch / "prometheus.yml"
        config.write_text("global: {scrape_interval: 1h}\n", encoding="utf-8")
        shutil.rmtree(self._data / "wal", ignore_errors=True)
        port = free_port(0)
        self.url = f"http://127.0.0.1:{port}"
        log = (self._scratch / f"prometheus-{port}.log").open("wb")
        command = [
            self._program,
            f"--config.file={config}",
            f"--storage.tsdb.path={self._data}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--query.lookback-delta={self._lookback}",
            "--query.timeout=60s",
            "--log.level=warn",
        ]
        self._process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        log.close()
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                    if answer.status == 200:
                        return self
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = Path(log.name).read_text(encoding="utf-8", errors="replace")
                self.stop()
                raise RuntimeError(f"{self._program} did not start:\n{text[-2000:]}")
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    # ------------------------------------------------------------------ asking

    def get(self, path: str, **parameters: Any) -> Any:
        """``data`` of an API answer.

        :raises QueryError: with Prometheus' message
        """
        body = urllib.parse.urlencode({k: v for k, v in parameters.items() if v is not None}, doseq=True).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data=body)
        if path.startswith(("label/", "metadata")):
            request = urllib.request.Request(f"{self.url}/api/v1/{path}?{body.decode()}")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            raise QueryError(json.loads(error.read()).get("error", str(error))) from None
        return document["data"]

    def range(self, expr: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """Matrix of a range query."""
        data = self.get("query_range", query=expr, start=begin, end=end, step=step)
        result: list[dict[str, Any]] = data["result"]
        return result

    def instant(self, expr: str, at: float) -> list[dict[str, Any]]:
        """Vector of an instant query (a scalar becomes one series without labels)."""
        data = self.get("query", query=expr, time=at)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        result: list[dict[str, Any]] = data["result"]
        return result
