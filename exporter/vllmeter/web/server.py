"""The HTTP server under the application: uvicorn with few wake-ups and a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI


class QuietServer(uvicorn.Server):
    """uvicorn's server for a process that mostly waits and is ended by signals.

    It wakes up once a second (for the Date header) instead of ten times: at three servers the ten were a third of the
    CPU of the whole exporter.  SIGTERM and SIGINT end it at once and are not raised again, so that a clean stop exits
    with 0; a second Ctrl-C does not wait for open requests.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wake: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        """Waits for the end."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(ended.set)
        while not await self.on_tick(0):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), 1.0)
        live = getattr(getattr(self.config.app, "state", None), "live", None)
        if live is not None:
            live.end()  # open pages would hold up the end until they are cancelled

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT came."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self._wake()


def build_server(app: FastAPI) -> QuietServer:
    """The server for an application; ``run(sockets=[...])`` serves until a signal ends it."""
    return QuietServer(
        uvicorn.Config(
            app,
            loop="asyncio",  # uvloop, where it happens to be installed, costs memory and gains nothing here
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=65,
        )
    )
