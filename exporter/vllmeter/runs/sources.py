"""Where a run's samples come from, and who is told that it runs: the exporter over HTTP, this process, Grafana."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from vllmeter.memory.argv import mask_text
from vllmeter.remote import RemoteError, RemoteExporter, certificate_problem, trusting
from vllmeter.render.document import snapshot_document
from vllmeter.runs.samples import Sample, sample_of
from vllmeter.snapshot import Snapshot

log = logging.getLogger("vllmeter.runs")

TIMEOUT_SECONDS = 5.0


class SourceError(Exception):
    """No sample now; the message says why."""


class SampleSource(Protocol):
    """Gives the present second of all servers."""

    name: str

    def sample(self) -> Sample:
        """Raises :class:`SourceError` when there is none."""


class Announcer(Protocol):
    """Is told when a run starts and ends.  Never raises: a run does not depend on it."""

    def started(self, run: str, scenario: str, server: str, at: float) -> str | None:
        """Returns what went wrong in words, None when nothing did."""

    def stopped(self, run: str, scenario: str, server: str, at: float) -> str | None:
        """Returns what went wrong in words, None when nothing did."""


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # Grafana is named by the user: no proxy in between
    return session


class _Trusting(HTTPAdapter):
    """HTTPS with a context of our own: requests alone would make one that is strict on Python 3.13."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__()

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **more)


class ExporterSource:
    """A running exporter: ``GET /snapshot.json`` and ``POST /api/runs``."""

    def __init__(self, remote: RemoteExporter) -> None:
        self._remote = remote
        self.url = remote.url
        self.name = f"exporter {remote.url}"

    def sample(self) -> Sample:
        """One snapshot.  Raises :class:`SourceError` (its cause is the :class:`RemoteError`, if there was one)."""
        try:
            return sample_of(self._remote.get("/snapshot.json"))
        except RemoteError as error:
            raise SourceError(str(error)) from error
        except ValueError as error:
            raise SourceError(f"{self.url}/snapshot.json is no snapshot ({error}): check the port") from error

    def started(self, run: str, scenario: str, server: str, at: float) -> str | None:
        """Marks the run in ``/metrics`` and on the live page."""
        return self._mark(run, scenario, server, "start")

    def stopped(self, run: str, scenario: str, server: str, at: float) -> str | None:
        """Ends the mark."""
        return self._mark(run, scenario, server, "stop")

    def _mark(self, run: str, scenario: str, server: str, action: str) -> str | None:
        try:
            self._remote.post("/api/runs", {"run": run, "scenario": scenario, "server": server, "action": action})
        except RemoteError as error:
            return f"the exporter did not take the {action} mark: {error}"
        return None


class SnapshotSource:
    """This process samples: ``snapshot`` is the exporter's own function."""

    def __init__(self, snapshot: Callable[[], Snapshot], name: str = "vllmeter run") -> None:
        self._snapshot = snapshot
        self.name = name

    def sample(self) -> Sample:
        """The newest snapshot."""
        return sample_of(snapshot_document(self._snapshot()))


class GrafanaAnnouncer:
    """One region annotation per run.

    ``token``: a service account token with annotations:write.  ``ca_file``: the CA that signed Grafana's certificate,
    instead of the public ones.
    """

    def __init__(self, url: str, token: str, ca_file: Path | None = None) -> None:
        """:raises AccessError: the CA file cannot be used"""
        self._base = url.rstrip("/")
        self.url = mask_text(self._base)
        """fit for messages"""
        self._ca_file = ca_file
        self._session = _session()
        if ca_file is not None:
            self._session.mount("https://", _Trusting(trusting(ca_file, "--grafana-ca-file")))
            self._session.verify = str(ca_file)  # the same again: requests would add the public ones to it
        self._session.headers["Authorization"] = f"Bearer {token}"
        self._ids: dict[str, Any] = {}
        self._begun: dict[str, float] = {}

    def started(self, run: str, scenario: str, server: str, at: float) -> str | None:
        """Adds an annotation at ``at``; its end follows with :meth:`stopped`."""
        self._begun[run] = at
        answer, problem = self._send("POST", "/api/annotations", self._body(run, scenario, server, at, None))
        if answer is not None:
            self._ids[run] = answer.get("id")
        return problem

    def stopped(self, run: str, scenario: str, server: str, at: float) -> str | None:
        """Turns it into a region that ends at ``at``; adds the region when there was no start."""
        known = self._ids.pop(run, None)
        begun = self._begun.pop(run, at)
        if known is not None:
            _, problem = self._send("PATCH", f"/api/annotations/{known}", {"timeEnd": round(at * 1000)})
            if problem is None:
                return None
        _, problem = self._send("POST", "/api/annotations", self._body(run, scenario, server, begun, at))
        return problem

    def _body(self, run: str, scenario: str, server: str, begun: float, ended: float | None) -> dict[str, Any]:
        tags = ["vllmeter", "run", f"run:{run}", f"scenario:{scenario}"]
        if server:
            tags.append(f"server:{server}")
        body: dict[str, Any] = {"time": round(begun * 1000), "tags": tags, "text": f"run {run} ({scenario})"}
        if ended is not None:
            body["timeEnd"] = round(ended * 1000)
        return body

    def _send(self, method: str, path: str, body: dict[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
        try:
            answer = self._session.request(method, self._base + path, json=body, timeout=TIMEOUT_SECONDS)
        except OSError as error:  # requests' own errors, and a CA file that went away meanwhile
            trusted = "a public CA" if self._ca_file is None else f"the CA in {self._ca_file}"
            refused = certificate_problem(error, trusted, urlsplit(self._base).hostname, "--grafana-ca-file")
            if refused is not None:
                return None, f"Grafana at {self.url}: {refused[0]}: no annotation. {refused[1]}"
            return None, f"Grafana at {self.url} did not answer ({type(error).__name__}): no annotation"
        if answer.status_code in (401, 403):
            return None, f"Grafana at {self.url} refused the token ({answer.status_code}): it needs annotations:write"
        if answer.status_code >= 400:
            return None, f"Grafana at {self.url} answered {answer.status_code}: no annotation"
        try:
            found = answer.json()
        except ValueError:
            found = {}
        return (found if isinstance(found, dict) else {}), None
