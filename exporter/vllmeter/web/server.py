"""The HTTP server under the application: uvicorn with few wake-ups, a clean end, and no patience for slow requests."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final
from weakref import WeakKeyDictionary

import uvicorn
from fastapi import FastAPI

from vllmeter.config.load import ConfigError
from vllmeter.web.security import Guard, Policy
from vllmeter.web.web_config import tls_context

REQUEST_SECONDS: Final = 10.0
"""How long a client may take to send the head of a request."""
MOST_CONNECTIONS: Final = 1000


class QuietServer(uvicorn.Server):
    """uvicorn's server for a process that mostly waits and is ended by signals.

    It wakes up once a second (for the Date header) instead of ten times: at three servers the ten were a third of the
    CPU of the whole exporter.  SIGTERM and SIGINT end it at once and are not raised again, so that a clean stop exits
    with 0; a second Ctrl-C does not wait for open requests.
    """

    def __init__(self, config: uvicorn.Config, each_second: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._wake: Callable[[], object] = lambda: None
        self._each_second = each_second
        self._unasked: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        """connections that wait for the head of a request -> since when"""

    async def main_loop(self) -> None:
        """Waits for the end."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(ended.set)
        while not await self.on_tick(0):
            self._each_second()
            self.end_slow(time.monotonic())
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

    def end_slow(self, now: float) -> None:
        """Closes connections that take too long to ask: uvicorn itself waits for ever, and files are few.

        A connection that rests between requests has a timer of uvicorn's own.
        """
        for connection in list(self.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            asking = cycle is None or getattr(cycle, "response_complete", False)
            resting = getattr(connection, "timeout_keep_alive_task", None) is not None
            if not asking or resting:
                self._unasked.pop(connection, None)
            elif now - self._unasked.setdefault(connection, now) > REQUEST_SECONDS:
                connection.transport.close()


def build_server(app: FastAPI, policy: Policy | None = None, *, loopback: bool = True) -> QuietServer:
    """The server for an application behind its gate; ``run(sockets=[...])`` serves until a signal ends it."""
    policy = policy if policy is not None else Policy()
    config = uvicorn.Config(
        Guarded(app, policy, loopback=loopback),
        loop="asyncio",  # uvloop, where it happens to be installed, costs memory and gains nothing here
        ws="none",
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the client's address is the connection's: no header may change who is limited
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=32 * 1024,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=65,
    )
    config.load()
    tls = policy.security.tls
    context = None if tls is None else tls_context(tls, "web.yml")
    config.ssl = context

    def each_second() -> None:
        if policy.refresh() and context is not None:
            renew(context, policy)

    return QuietServer(config, each_second)


def renew(context: ssl.SSLContext, policy: Policy) -> None:
    """New connections get the certificate that the files hold now."""
    tls = policy.security.tls
    if tls is not None:
        with contextlib.suppress(ConfigError, OSError, ssl.SSLError):
            context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")


class Guarded(Guard):
    """The gate with the application's ``state`` in sight."""

    def __init__(self, app: FastAPI, policy: Policy, *, loopback: bool) -> None:
        super().__init__(app, policy, loopback=loopback)
        self.state = app.state
