"""HTTP side of the exporter: ``/metrics``, ``/snapshot.json``, health, reload, configuration, service discovery.

Handlers only render what :class:`Service` hands out; no handler touches a server, NVML or a file.
"""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from vllmeter import __version__
from vllmeter.config.load import ConfigError
from vllmeter.config.settings import Settings
from vllmeter.render.document import snapshot_document
from vllmeter.render.text import CLASSIC, OPENMETRICS
from vllmeter.snapshot import Snapshot
from vllmeter.store import Store
from vllmeter.web.live import mount_live


class RunRequest(BaseModel):
    """Body of ``POST /api/runs``."""

    model_config = ConfigDict(extra="forbid")

    run: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/ -]*$")
    scenario: str = Field("default", min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/ -]*$")
    server: str = Field("", max_length=64)
    action: str = Field(pattern="^(start|stop)$")


class Service(Protocol):
    """What the web side needs from the rest (wiring provides it)."""

    store: Store
    """samples of the last 15 minutes, for the live page"""

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    def metrics(self, *, openmetrics: bool, packed: bool = False) -> bytes:
        """The ``/metrics`` body, ``packed``: as gzip."""

    def metrics_at_once(self, *, openmetrics: bool, packed: bool = False) -> bytes | None:
        """The same where it lies ready, else None: never waits."""

    def settings(self) -> Settings:
        """The settings in force, discovered servers included."""

    def config_text(self) -> str:
        """The settings in force as YAML, secrets masked."""

    def reload(self) -> None:
        """Loads the configuration again; ConfigError keeps the old one."""

    def healthy(self) -> tuple[bool, str]:
        """Whether the process works, and what is wrong otherwise (then a restart helps)."""

    def ready(self) -> tuple[bool, str]:
        """Whether the first sampling of everything has ended."""

    def mark_run(self, run: str, scenario: str, server: str, *, start: bool) -> None:
        """Marks a load-test run as active or ended; ValueError when that makes no sense."""


def wants_openmetrics(accept: str) -> bool:
    """True when the Accept header prefers OpenMetrics 1.0 over classic text."""
    best = {"openmetrics": 0.0, "plain": 0.0}
    for item in accept.split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if kind == "application/openmetrics-text":
            best["openmetrics"] = max(best["openmetrics"], quality)
        elif kind in ("text/plain", "text/*", "*/*"):
            best["plain"] = max(best["plain"], quality)
    return best["openmetrics"] > best["plain"]


def accepts_gzip(encodings: str) -> bool:
    """True when the Accept-Encoding header allows gzip by name (Prometheus asks so)."""
    for item in encodings.lower().split(","):
        name, _, parameters = item.partition(";")
        if name.strip() == "gzip":
            return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def discovery_targets(settings: Settings, *, same_host: bool) -> list[dict[str, Any]]:
    """Prometheus http_sd list of the raw vLLM endpoints.

    A loopback address means this host: it is handed out only to a caller on this host, unless the server has an
    ``advertise_url``.
    """
    groups: list[dict[str, Any]] = []
    for server in settings.servers:
        parts = urlsplit(server.advertise_url or server.url)
        host = parts.hostname or ""
        if not same_host and server.advertise_url is None and _is_loopback(host):
            continue
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        labels = {
            "server": server.name,
            "__metrics_path__": parts.path.rstrip("/") + server.metrics_path,
            "__scheme__": parts.scheme,
        }
        groups.append({"targets": [address], "labels": labels})
    return groups


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback or ip_address(host).is_unspecified
    except ValueError:
        return False


_REFUSALS: Final[dict[int | str, str]] = {
    400: "The request, or the file that it wants loaded, makes no sense; the text says why.",
    401: "Credentials are needed or wrong.",
    403: "The request came from another site.",
    404: "No such thing.",
    405: "Another method is wanted.",
    409: "It makes no sense now; the text says why.",
    413: "The request is too large.",
    421: "The host name is not one of this exporter's.",
    422: "A parameter or field is not as described.",
    429: "Too many requests from this address.",
    503: "Not now: starting, overloaded, or only a restart helps.",
}
"""What any route may answer beside success (see web.security)."""


def _text(text: str, status: int = 200) -> Response:
    return Response(text + "\n", status_code=status, media_type="text/plain; charset=utf-8")


def create_app(service: Service) -> FastAPI:
    """The application over a service."""
    app = FastAPI(
        title="vllmeter",
        version=__version__,
        description="Observability for vLLM instances that share a GPU.",
        docs_url=None,
        redoc_url=None,
        responses={status: {"description": text} for status, text in _REFUSALS.items()},
    )

    @app.get("/metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        """Prometheus metrics: text 0.0.4, or OpenMetrics 1.0 where the Accept header prefers it."""
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        packed = accepts_gzip(request.headers.get("accept-encoding", ""))
        headers = {"Content-Type": OPENMETRICS if openmetrics else CLASSIC, "Vary": "Accept, Accept-Encoding"}
        if packed:
            headers["Content-Encoding"] = "gzip"
        body = service.metrics_at_once(openmetrics=openmetrics, packed=packed)
        if body is None:
            body = await run_in_threadpool(service.metrics, openmetrics=openmetrics, packed=packed)
        return Response(body, headers=headers)

    @app.get("/snapshot.json", response_class=Response)
    def snapshot(readings: bool = True) -> Response:
        """Everything known now, with states and reasons in words."""
        document = snapshot_document(service.snapshot(), readings=readings)
        return Response(
            json.dumps(document, separators=(",", ":"), allow_nan=False),
            media_type="application/json",
            headers={"Cache-Control": "no-store"},
        )

    @app.get("/-/healthy", response_class=Response)
    def healthy() -> Response:
        """200 while this process works; 503 when only a restart helps."""
        ok, text = service.healthy()
        return _text(text, 200 if ok else 503)

    @app.get("/-/ready", response_class=Response)
    def ready() -> Response:
        """200 once every server and NVML have been looked at once."""
        ok, text = service.ready()
        return _text(text, 200 if ok else 503)

    @app.post("/-/reload", response_class=Response)
    def reload() -> Response:
        """Loads the configuration file again; a bad file keeps the old configuration."""
        try:
            service.reload()
        except ConfigError as error:
            return _text(f"kept the old configuration:\n{error}", 400)
        return _text("configuration loaded")

    @app.get("/config", response_class=Response)
    def config() -> Response:
        """The settings in force, secrets masked."""
        return Response(service.config_text(), media_type="text/yaml; charset=utf-8")

    @app.get("/sd")
    def sd(request: Request) -> list[dict[str, Any]]:
        """Prometheus http_sd: the raw vLLM endpoints."""
        client = request.client.host if request.client else ""
        return discovery_targets(service.settings(), same_host=_is_loopback(client))

    @app.post("/api/runs", response_class=Response)
    def runs(mark: RunRequest) -> Response:
        """Marks the start or the end of a load-test run."""
        try:
            service.mark_run(mark.run, mark.scenario, mark.server, start=mark.action == "start")
        except ValueError as error:
            return _text(str(error), 409)
        return _text(f"run {mark.run} {'started' if mark.action == 'start' else 'stopped'}")

    mount_live(app, service)
    return app
