"""The whole exporter without threads and clocks: bodies and readings go in at given times, the real app answers.

Only what makes requests is left out (ScrapeClient, TargetLoop, NVML, /proc); parsing, normalising, windows,
attribution, budgets, joining, rendering and the web side are the real ones.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI

from vllmeter.config.settings import Server, Settings
from vllmeter.recording.player import Moment, Player
from vllmeter.render.metrics import render_metrics
from vllmeter.scrape.outcome import Fetch
from vllmeter.scrape.target import Target
from vllmeter.snapshot import ConfigStatus, NvmlReading, ProcessTable, RunMark, Snapshot
from vllmeter.store import Store
from vllmeter.web.app import create_app

WALL = 1_800_000_000.0
"""Unix time of ``at`` = 0 where no recording gives one"""


class Stepper:
    """An exporter that is stepped by hand.  It is also the service behind the app."""

    def __init__(self, settings: Settings, versions: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self.store = Store(settings)
        self.store.config = ConfigStatus(True, WALL)
        self.at = 0.0
        self.wall_zero = WALL
        self._table: ProcessTable | None = None
        self.targets: dict[str, Target] = {}
        for server in settings.servers:
            target = Target(server, settings.interval)
            target.versioned((versions or {}).get(server.name))
            self.targets[server.name] = target
            self.store.add(target)

    # ------------------------------------------------------------------ what comes in

    @property
    def wall(self) -> float:
        """Unix time of the present moment."""
        return self.wall_zero + self.at

    def fetch(self, name: str, fetch: Fetch, *, health: int | str | None = 200) -> None:
        """A finished scrape of a server at the present moment."""
        target = self.targets[name]
        target.begin(self.at - fetch.duration)
        target.probed(health, self.at)
        reading = target.finish(fetch, self.at, self.wall)
        self.store.observed(target, reading, self.at, self.wall)

    def body(self, name: str, body: bytes, content_type: str = "text/plain; version=0.0.4") -> None:
        """A good answer."""
        self.fetch(name, Fetch(0.01, body=body, content_type=content_type, status=200))

    def snapshot_table(self) -> ProcessTable | None:
        """The process table of the last tick."""
        return self._table

    def gpu(self, nvml: NvmlReading, table: ProcessTable | None) -> None:
        """A tick of NVML and /proc."""
        self._table = table
        self.store.gpu_tick(nvml, table, None, self.at, self.wall)

    def moment(self, moment: Moment, names: Mapping[str, str] | None = None) -> None:
        """Everything that a recording holds at a moment, as the exporter would meet it."""
        if moment.nvml is not None:
            self.gpu(moment.nvml, moment.processes)
        for recorded, server in moment.servers.items():
            name = (names or {}).get(recorded, recorded)
            if name not in self.targets:
                continue
            if server.body is None:
                self.fetch(name, Fetch(0.001, reason=server.why or "refused"), health=None)
            else:
                self.fetch(
                    name,
                    Fetch(0.01, body=server.body, content_type=server.content_type, status=server.status),
                    health=server.health,
                )

    def play(self, player: Player, begin: float, end: float, step: float = 1.0) -> None:
        """Plays a recording from position ``begin`` to ``end``, one sample every ``step`` seconds."""
        player.seek(self.at, begin)
        position = begin
        while position <= end:
            moment = player.at(self.at)
            # The bodies hold absolute start times: our clock must be the recording's.
            self.wall_zero = moment.wall - self.at
            self.moment(moment)
            position += step
            self.at += step
        self.at -= step

    # ------------------------------------------------------------------ web.app.Service

    def snapshot(self) -> Snapshot:
        """The snapshot of the present moment."""
        return self.store.snapshot(self.at, self.wall, max_age=0.0)

    def metrics(self, *, openmetrics: bool, packed: bool = False) -> bytes:
        """The body, without this process's own families."""
        body = render_metrics(self.snapshot(), self.store.blocks(), openmetrics=openmetrics)
        return gzip.compress(body, 1, mtime=0) if packed else body

    def metrics_at_once(self, *, openmetrics: bool, packed: bool = False) -> bytes | None:
        """Nothing lies ready."""
        return None

    def settings(self) -> Settings:
        """As given."""
        return self._settings

    def config_text(self) -> str:
        """Not used."""
        return ""

    def reload(self) -> None:
        """Not used."""

    def healthy(self) -> tuple[bool, str]:
        """Always."""
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """Always."""
        return True, "ok"

    def mark_run(self, run: str, scenario: str, server: str, *, start: bool) -> None:
        """As the exporter does it."""
        self.store.mark_run(RunMark(run, scenario, server, self.wall), start=start)

    def app(self) -> FastAPI:
        """The real application over this service."""
        return create_app(self)

    def get(self, path: str, **headers: str) -> str:
        """Text of a GET through the real app; fails the test unless it is a 200."""
        response = request(self.app(), "GET", path, headers=headers)
        assert response.status_code == 200, response.text
        return response.text


def request(app: FastAPI, method: str, path: str, **more: Any) -> httpx.Response:
    """One request to an app without a server (a JSON body as ``json=``)."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **more)

    return asyncio.run(ask())


def settings_for(*names: str, first_port: int = 8000) -> Settings:
    """Settings with servers of these names on successive local ports."""
    return Settings(
        servers=tuple(
            Server(name=name, url=f"http://127.0.0.1:{first_port + number}") for number, name in enumerate(names)
        )
    )


def settings_of(player: Player) -> Settings:
    """Settings for the servers of a recording, found by their recorded ports."""
    return Settings(servers=tuple(Server(name=s.name, url=f"http://127.0.0.1:{s.port}") for s in player.header.servers))
