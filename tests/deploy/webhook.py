"""Takes Alertmanager's notifications and prints one line per alert: path, status, alert name, server."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Receiver(BaseHTTPRequestHandler):
    """Answers 200 to everything."""

    def do_POST(self) -> None:
        """Prints the alerts of one notification."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for alert in body["alerts"]:
            labels = alert["labels"]
            sys.stdout.write(f"{self.path} {alert['status']} {labels['alertname']} {labels.get('server', '-')}\n")
        sys.stdout.flush()
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        """Health."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


HTTPServer(("0.0.0.0", 9099), Receiver).serve_forever()
