"""A container engine's API over a unix socket, served by the test."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


def container(
    identity: str,
    name: str,
    *,
    pid: int = 1000,
    service: str | None = None,
    ports: dict[str, list[dict[str, str]] | None] | None = None,
    address: str = "",
    command: list[str] | None = None,
    running: bool = True,
    status: str = "Up 2 hours",
) -> dict[str, Any]:
    """One document of GET /containers/ID/json, with an environment that nobody may keep."""
    labels = {"maintainer": "somebody"}
    if service is not None:
        labels |= {"com.docker.compose.project": "demo", "com.docker.compose.service": service}
    return {
        "Id": identity,
        "Name": f"/{name}",
        "State": {"Running": running, "Pid": pid, "StartedAt": "2026-12-01T12:00:00.5Z"},
        "Config": {
            "Image": "vllm/vllm-openai:v0.26.0",
            "Entrypoint": ["vllm", "serve"],
            "Cmd": command or ["/models/m"],
            "Env": ["HF_TOKEN=s3cret", "VLLM_API_KEY=s3cret"],
            "Labels": labels,
        },
        "HostConfig": {"PidMode": ""},
        "NetworkSettings": {
            "Ports": ports or {},
            "IPAddress": "",
            "Networks": {"demo_default": {"IPAddress": address, "GlobalIPv6Address": ""}},
        },
        "_status": status,
    }


class FakeDocker:
    """Serves documents; ``handle`` may answer instead with (status, body), ``delay`` makes it slow."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "docker.sock")
        self.documents: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.delay = 0.0
        self.handle: Callable[[str], tuple[int, bytes] | None] = lambda path: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append(self.path)
                time.sleep(outer.delay)
                status, body = outer.handle(self.path) or outer._answer(self.path)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *args: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            block_on_close = False

            def get_request(self) -> tuple[socket.socket, Any]:
                connection, _ = super().get_request()
                return connection, ("unix", 0)

        self._server = Server(self.path, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _answer(self, path: str) -> tuple[int, bytes]:
        if path == "/containers/json":
            rows = [
                {"Id": one["Id"], "Names": [one["Name"]], "Status": one["_status"]}
                for one in self.documents
                if one["State"]["Running"]
            ]
            return 200, json.dumps(rows).encode()
        for one in self.documents:
            if path == f"/containers/{one['Id']}/json":
                return 200, json.dumps(one).encode()
        return 404, b'{"message":"no such container"}'

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
