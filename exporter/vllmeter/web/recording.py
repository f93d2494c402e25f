"""``POST /api/recording``: a recording of the next seconds, for a bug report from the live page.

The 15 minutes that the page shows cannot become a recording: the exporter keeps what it shows of them, not the bodies.
So the page records what comes now.  The servers are asked once more a second meanwhile, on connections of their own;
GPU and process readings are those that the exporter takes anyway.  This is the one handler that touches a server.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from vllmeter.config.settings import Settings
from vllmeter.snapshot import NvmlReading, ProcessTable
from vllmeter.store import Store

if TYPE_CHECKING:
    from vllmeter.recording.record import Recorder

LONGEST: Final = 120.0


class RecordingRequest(BaseModel):
    """Body of ``POST /api/recording``."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(30.0, ge=1.0, le=LONGEST)
    servers: list[str] = Field(default_factory=list, max_length=200)
    """which servers; none = all"""


class _Newest:
    """The exporter's own newest readings as sources of a recorder."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def gpu(self, at: float, wall: float) -> NvmlReading:
        nvml, _ = self._store.readings()
        if nvml is None:
            return NvmlReading(at, wall, up=False, reason="not read yet")
        return replace(nvml, at=at, wall=wall)

    def table(self, at: float) -> ProcessTable:
        _, table = self._store.readings()
        return ProcessTable(at, {}, reason="not read yet") if table is None else replace(table, at=at)


class NewestGpu(_Newest):
    """:class:`vllmeter.gpu.source.GpuSource` without a driver."""

    def read(self, at: float, wall: float) -> NvmlReading:
        """The newest tick."""
        return self.gpu(at, wall)

    def close(self) -> None:
        """Nothing to let go of."""


class NewestProcesses(_Newest):
    """:class:`vllmeter.host.source.ProcessSource` without ``/proc``."""

    def read(self, at: float, pids: Sequence[int]) -> ProcessTable:
        """The newest table."""
        return self.table(at)


def make_recorder(path: Path, settings: Settings, store: Store, names: Sequence[str]) -> Recorder:
    """A recorder of those servers (asks each of them once)."""
    from vllmeter.recording.masking import Masker
    from vllmeter.recording.record import Recorder, Target, boot_time, split_url
    from vllmeter.recording.words import host_names, user_names
    from vllmeter.scrape.client import ScrapeClient

    targets = [
        Target(
            server.name,
            server.match.port if server.match and server.match.port else split_url(server.url)[1],
            ScrapeClient(server),
        )
        for server in settings.servers
        if server.name in names
    ]
    try:
        stat = (settings.nvml.proc / "stat").read_text()
    except OSError:
        stat = ""
    return Recorder(
        path,
        targets,
        gpu=NewestGpu(store),
        processes=NewestProcesses(store),
        masker=Masker(host_names(), user_names()),
        overwrite=True,
        boot=boot_time(stat),
        state="recorded from the live page",
    )


def mount_recording(app: FastAPI, store: Store, settings: Callable[[], Settings], ended: Callable[[], bool]) -> None:
    """Adds the endpoint.  ``ended``: whether the server is about to stop."""
    busy = asyncio.Lock()

    @app.post("/api/recording", response_class=Response)
    async def recording(wanted: RecordingRequest, request: Request) -> Response:
        """Records the next seconds and answers with the file (.vmrec): keys, hosts and home folders are masked."""
        names = wanted.servers or list(store.names())
        for name in names:
            if name not in store.names():
                raise HTTPException(404, f"no server {name!r}; known: {', '.join(store.names()) or 'none'}")
        if not names:
            raise HTTPException(409, "there is no server to record")
        if busy.locked():
            raise HTTPException(409, "a recording is under way already; one at a time")
        async with busy:
            with tempfile.TemporaryDirectory(prefix="vllmeter-") as folder:
                path = Path(folder) / "report.vmrec"
                try:
                    recorder = await asyncio.to_thread(make_recorder, path, settings(), store, names)
                except OSError as error:
                    raise HTTPException(507, f"{folder}: cannot be written: {error.strerror}") from error
                try:
                    recorder.start()
                    until = time.monotonic() + wanted.seconds
                    while time.monotonic() < until and recorder.error is None:
                        if ended() or await request.is_disconnected():
                            break
                        await asyncio.sleep(min(0.5, max(0.0, until - time.monotonic())))
                finally:
                    await asyncio.to_thread(recorder.close)
                if recorder.error is not None:
                    raise HTTPException(507, f"{folder}: writing stopped: {recorder.error.strerror}")
                body = await asyncio.to_thread(path.read_bytes)
        headers = {"Content-Disposition": 'attachment; filename="vllmeter-report.vmrec"', "Cache-Control": "no-store"}
        return Response(body, media_type="application/octet-stream", headers=headers)
