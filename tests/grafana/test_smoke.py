"""scripts/grafana-smoke against a stub of Grafana's HTTP API: what it sends, what it says, what it leaves behind.

No Grafana could be run where this was written; the stub answers as Grafana's API reference says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from grafana.boards import NAMES, ROOT, board

GPU = {
    "__name__": "vllmeter_gpu_info",
    "shown": "h · 0 · card",
    "uuid": "GPU-1",
}


class Stub(ThreadingHTTPServer):
    """Grafana, as far as the script uses it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.dashboards: dict[str, Any] = {}
        self.folders: set[str] = set()
        self.datasources = {"vllmeter-prometheus"}
        self.queries: list[dict[str, Any]] = []
        self.refuse = ""
        self.authorization = ""
        self.drop_panels = False


class Answer(BaseHTTPRequestHandler):
    """Its answers."""

    server: Stub

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _send(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self) -> None:
        """Health, read back, and Prometheus behind the proxy."""
        stub, path = self.server, self.path.partition("?")[0]
        if path == "/api/health":
            self._send(200, {"version": "12.2.0", "database": "ok"})
        elif path.startswith("/api/dashboards/uid/"):
            found = stub.dashboards.get(path.rpartition("/")[2])
            if found is None:
                self._send(404, {"message": "Dashboard not found"})
                return
            back = {**found, "panels": found["panels"][:-1]} if stub.drop_panels else found
            self._send(200, {"dashboard": back, "meta": {}})
        elif path.startswith("/api/datasources/uid/"):
            known = path.rpartition("/")[2] in stub.datasources
            self._send(200 if known else 404, {} if known else {"message": "Data source not found"})
        elif path.startswith("/api/folders/"):
            known = path.rpartition("/")[2] in stub.folders
            self._send(200 if known else 404, {} if known else {"message": "folder not found"})
        elif "/api/v1/label/" in path:
            self._send(200, {"status": "success", "data": ["1.0", "2.5"] if "/bound/" in path else ["one"]})
        else:
            vector = [{"metric": GPU, "value": [1, "1"]}]
            self._send(200, {"status": "success", "data": {"resultType": "vector", "result": vector}})

    def do_POST(self) -> None:
        """Uploads and queries."""
        stub, body = self.server, self._body()
        stub.authorization = self.headers.get("Authorization", "")
        if self.path == "/api/dashboards/db":
            stub.dashboards[body["dashboard"]["uid"]] = body["dashboard"]
            self._send(200, {"uid": body["dashboard"]["uid"], "status": "success"})
        elif self.path == "/api/folders":
            stub.folders.add(body["uid"])
            self._send(200, body)
        elif self.path == "/api/datasources":
            stub.datasources.add(body["uid"])
            self._send(200, body)
        else:
            (query,) = body["queries"]
            stub.queries.append({**query, "from": body["from"], "to": body["to"]})
            if stub.refuse and stub.refuse in query["expr"]:
                self._send(400, {"results": {query["refId"]: {"error": "parse error: refused", "status": 400}}})
                return
            values = [] if "kv_offload" in query["expr"] else [[1], [2.0]]
            self._send(200, {"results": {query["refId"]: {"frames": [{"data": {"values": values}}], "status": 200}}})

    def do_DELETE(self) -> None:
        """Cleaning up."""
        name = self.path.rpartition("/")[2]
        self.server.dashboards.pop(name, None)
        self.server.folders.discard(name)
        self.server.datasources.discard(name)
        self._send(200, {})


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Running for one test."""
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def smoke(stub: Stub, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs the script."""
    url = f"http://127.0.0.1:{stub.server_address[1]}"
    environment = {**os.environ, "GRAFANA_TOKEN": "secret", "no_proxy": "*"}
    command = [sys.executable, str(ROOT / "scripts" / "grafana-smoke"), url, *more]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


def test_every_query_of_every_dashboard_is_asked(stub: Stub) -> None:
    """All seven come up, each target is asked with its variables filled in, and nothing is left behind."""
    done = smoke(stub)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Grafana 12.2.0" in done.stdout
    expected = sum(len(panel.get("targets", [])) for name in NAMES for panel in board(name)["panels"])
    assert len(stub.queries) >= expected
    assert all('job=~".+"' in query["expr"] for query in stub.queries if "vllmeter_" in query["expr"])
    assert any("$__rate_interval" in query["expr"] for query in stub.queries), "Grafana fills this in itself"
    assert not any("$server" in query["expr"] or "${" in query["expr"] for query in stub.queries)
    assert {query["datasource"]["uid"] for query in stub.queries} == {"vllmeter-prometheus"}
    assert any("no data: Offloading: bytes per second" in line for line in done.stdout.splitlines())
    assert stub.authorization == "Bearer secret"
    assert (stub.dashboards, stub.folders) == ({}, set())
    assert stub.datasources == {"vllmeter-prometheus"}


def test_a_refused_query_fails_and_is_named(stub: Stub) -> None:
    """Grafana's error is printed with panel and query, and the exit code is 1."""
    stub.refuse = "vllmeter_ttft_window_mean_seconds"
    done = smoke(stub)
    assert done.returncode == 1
    assert "ERROR TTFT, mean / A: parse error: refused" in done.stdout


def test_a_data_source_is_made_and_removed(stub: Stub) -> None:
    """--prometheus makes a data source for the test; copies stay only with --keep."""
    done = smoke(stub, "--prometheus", "http://prometheus:9090", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(stub.dashboards) == 7
    assert {query["datasource"]["uid"] for query in stub.queries} == {"vllmeter-smoke"}
    assert all(uid.endswith("-smoke") for uid in stub.dashboards)


def test_an_unknown_data_source_is_told(stub: Stub) -> None:
    """Before anything is uploaded."""
    done = smoke(stub, "--datasource", "nowhere")
    assert done.returncode == 1
    assert "nowhere" in done.stderr
    assert "Data source not found" in done.stderr
    assert stub.queries == []


def test_lost_panels_are_noticed(stub: Stub) -> None:
    """What Grafana gives back is compared with what was sent."""
    stub.drop_panels = True
    done = smoke(stub)
    assert done.returncode == 1
    assert "came back" in done.stderr
