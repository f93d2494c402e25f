"""The live page: its files, a stream of server-sent events, the last 15 minutes, and windows picked on the page.

Nothing here runs while nobody looks.  With the first open page a :class:`Hub` starts to build one event per tick, for
all pages together; with the last one it ends and gives its memory back.  An event holds what is new: the rows of charts
since the event before, what moves of every server, and of what hardly ever moves only what changed.

``GET /api/stream`` begins with one event ``hello`` that holds everything.  A page that was cut off names the last event
it has (``Last-Event-ID``, or ``?since=``); its ``hello`` then holds the rows that it missed, up to 15 minutes of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any, Final, Protocol

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from vllmeter.config.settings import Settings
from vllmeter.render.live import (
    history_csv,
    live_document,
    rows_document,
    runs_document,
    window_document,
)
from vllmeter.snapshot import Snapshot
from vllmeter.store import Store
from vllmeter.web.alerts import AlertSource
from vllmeter.web.pages import mount_pages
from vllmeter.web.recording import mount_recording
from vllmeter.windows.ring import RING_SECONDS
from vllmeter.windows.series import FIELDS, Row, ServerSeries

log = logging.getLogger("vllmeter.live")

FASTEST: Final = 0.5
SLOWEST: Final = 2.0
SHARE: Final = 0.1
"""Ticks come every 0.5 s, or so much less often that building them takes a tenth of a core, but every 2 s at least."""
KEPT_EVENTS: Final = 40
"""Events that a slow page may lie behind before it gets a new ``hello``."""
OVERLAP: Final = 5.0
"""Seconds of rows that a resumed page gets twice: a row may be taken up a moment after its time.  It knows them."""
SHORT: Final = 10.0
"""Seconds of rows that are kept of every server while somebody looks."""
MOST_RESUMED: Final = 40
"""With more servers than this a page that was away for more than :data:`SHORT` reads again what it shows."""
MOST_PAGES: Final = 64
MOST_WINDOW: Final = RING_SECONDS


class LiveService(Protocol):
    """What the live page needs from the rest."""

    store: Store

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""

    def settings(self) -> Settings:
        """The settings in force."""


@dataclass(frozen=True, slots=True)
class Event:
    """One pushed event, ready to be sent."""

    number: int
    at: float
    data: bytes


def _json(document: Any) -> str:
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except ValueError:  # a number that is none, from a lying source: not known
        return json.dumps(_finite(document), separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


class Clock:
    """Unix time of monotonic 0, held still: it moves only when the wall clock was set."""

    def __init__(self) -> None:
        self.zero: float | None = None

    def of(self, snapshot: Snapshot) -> float:
        """Unix time minus monotonic time, the same number until the clocks part by more than half a second."""
        now = snapshot.wall - snapshot.at
        if self.zero is None or abs(now - self.zero) > 0.5:
            self.zero = now
        return self.zero


class Hub:
    """Builds events for all open pages."""

    def __init__(self, service: LiveService) -> None:
        self.service = service
        self.epoch = secrets.token_hex(4)
        self.alerts = AlertSource()
        self.built = 0
        """ticks that were built so far (the tests count them)"""
        self.pages = 0
        self._clock = Clock()
        self._lock = threading.Lock()
        self._series: dict[str, ServerSeries] = {}
        self._sent: dict[str, float] = {}
        self._memory_sent: dict[str, float] = {}
        self._facts: dict[str, Any] = {}
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._fresh: asyncio.Event | None = None
        self.ended = False
        self._cost = 0.0
        """seconds of CPU that the last tick took"""

    def end(self) -> None:
        """Ends all streams (called in the event loop when the server stops)."""
        self.ended = True
        if self._fresh is not None:
            self._fresh.set()

    # ------------------------------------------------------------------ pages

    async def events(self, since: str) -> AsyncGenerator[bytes, None]:
        """The stream of one page.  ``since``: id of the last event that it has, "" = none."""
        self.pages += 1
        try:
            self._start()
            hello = await asyncio.to_thread(self._hello, since)
            number = hello.number
            yield b"retry: 1000\n\n" + hello.data
            while not self.ended:
                fresh = self._fresh
                if fresh is None:
                    return
                waiting = [event for event in list(self._events) if event.number > number]
                if not waiting:
                    await fresh.wait()
                    continue
                if waiting[0].number > number + 1:
                    # Too far behind: one event with everything instead of many that are lost.
                    hello = await asyncio.to_thread(self._hello, f"{self.epoch}:{number}:{self._at_of(number)}")
                    number = hello.number
                    yield hello.data
                    continue
                number = waiting[-1].number
                yield b"".join(event.data for event in waiting)
        finally:
            self.pages -= 1

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._fresh = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        alerts: asyncio.Task[None] | None = None
        try:
            while self.pages and not self.ended:
                try:
                    event = await asyncio.to_thread(self._tick)
                except Exception:  # a fault here must not end what pages show later, and never the sampling
                    log.exception("fault while building an event of the live page")
                    await asyncio.sleep(SLOWEST)
                    continue
                self._events.append(event)
                fresh, self._fresh = self._fresh, asyncio.Event()
                if fresh is not None:
                    fresh.set()
                if alerts is None or alerts.done():
                    link = self.service.settings().prometheus
                    url = None if link is None else link.url
                    if self.alerts.due(url, time.monotonic()) and url is not None:
                        alerts = asyncio.create_task(asyncio.to_thread(self.alerts.ask, url, time.monotonic()))
                await asyncio.sleep(max(FASTEST, min(SLOWEST, self._cost / SHARE)))
        finally:
            if alerts is not None:
                alerts.cancel()
            fresh, self._fresh = self._fresh, None
            if fresh is not None:
                fresh.set()
            self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._series.clear()
            self._sent.clear()
            self._memory_sent.clear()
            self._facts.clear()
            self._events.clear()

    def _at_of(self, number: int) -> float:
        return next((event.at for event in list(self._events) if event.number == number), 0.0)

    # ------------------------------------------------------------------ building

    def _tick(self) -> Event:
        """What is new since the tick before."""
        began = time.thread_time()
        snapshot = self.service.snapshot()
        with self._lock:
            document = live_document(snapshot, zero=self._clock.of(snapshot))
            self._add_runs(document, snapshot)
            document["alerts"] = self.alerts.document()
            rows, memory = self._new_rows(snapshot, self._sent, self._memory_sent)
            for server in document["servers"]:
                name = server["name"]
                if self._facts.get(name) == server["facts"]:
                    del server["facts"]
                else:
                    self._facts[name] = server["facts"]
                server["rows"] = rows.get(name, [])
                server["memory"] = memory.get(name, [])
            for gone in self._facts.keys() - {server["name"] for server in document["servers"]}:
                del self._facts[gone]
            self.built += 1
            self._number += 1
            event = self._event("tick", document, snapshot.at)
            self._cost = time.thread_time() - began
            return event

    def _hello(self, since: str) -> Event:
        """Everything of this moment, and the rows that a page which has ``since`` lacks."""
        snapshot = self.service.snapshot()
        resumed = self._resume(since, snapshot.at)
        with self._lock:
            document = live_document(snapshot, zero=self._clock.of(snapshot))
            self._add_runs(document, snapshot)
            document["alerts"] = self.alerts.document()
            document["fields"] = FIELDS
            document["reach"] = RING_SECONDS
            document["epoch"] = self.epoch
            document["resumed"] = resumed is not None
            document["gap"] = None if resumed is None else snapshot.at - resumed
            if resumed is not None:
                for server in document["servers"]:
                    name = server["name"]
                    server["rows"] = rows_document(self._rows(name, resumed - OVERLAP))
                    server["memory"] = self._memory_rows(name, resumed - OVERLAP)
            return self._event("hello", document, snapshot.at)

    def _resume(self, since: str, now: float) -> float | None:
        """Monotonic time up to which the page has everything; None: it begins anew."""
        epoch, _, rest = since.partition(":")
        _, _, text = rest.partition(":")
        if epoch != self.epoch:
            return None
        try:
            at = float(text)
        except ValueError:
            return None
        away = now - at
        if away > SHORT and len(self.service.store.names()) > MOST_RESUMED:
            return None
        return at if 0 <= away <= RING_SECONDS else None

    def _event(self, kind: str, document: dict[str, Any], at: float) -> Event:
        identity = f"{self.epoch}:{self._number}:{at:.3f}"
        document["id"] = identity
        text = f"id: {identity}\nevent: {kind}\ndata: {_json(document)}\n\n"
        return Event(self._number, at, text.encode())

    def _add_runs(self, document: dict[str, Any], snapshot: Snapshot) -> None:
        after = snapshot.wall - RING_SECONDS
        past = [(mark, ended) for mark, ended in self.service.store.past_runs() if ended > after]
        document["runs"] = runs_document(snapshot, past)

    def _new_rows(
        self, snapshot: Snapshot, sent: dict[str, float], memory_sent: dict[str, float]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        rows: dict[str, Any] = {}
        memory: dict[str, Any] = {}
        for view in snapshot.servers:
            series = self._of(view.name)
            if series is None:
                continue
            after = sent.get(view.name, snapshot.at - SHORT)
            new = series.since(after)
            if new:
                sent[view.name] = new[-1][0]
                rows[view.name] = rows_document(new)
            held = self._memory_rows(view.name, memory_sent.get(view.name, snapshot.at - SHORT))
            if held:
                memory_sent[view.name] = (held[-1][0] or 0.0) + 0.001  # its time was rounded
                memory[view.name] = held
        return rows, memory

    # ------------------------------------------------------------------ history

    def _of(self, name: str) -> ServerSeries | None:
        """The up-to-date series of a server: its last seconds."""
        entry = self.service.store.entry(name)
        if entry is None:
            self._series.pop(name, None)
            return None
        series = self._series.get(name)
        if series is None or series.tracker is not entry.tracker:
            series = self._series[name] = ServerSeries(entry.tracker, SHORT)
        series.update()
        return series

    def _rows(self, name: str, after: float) -> list[Row]:
        """Rows of a server after a monotonic time, read from its ring for this once: pages keep what they got."""
        entry = self.service.store.entry(name)
        newest = None if entry is None else entry.tracker.sampled
        if entry is None or newest is None or newest <= after:
            return []
        series = ServerSeries(entry.tracker, min(RING_SECONDS, newest - after))
        series.update()
        return series.since(after)

    def _memory_rows(self, name: str, after: float) -> list[list[float | None]]:
        """[monotonic time, bytes on all its GPUs] of NVML ticks; null where a part is not known."""
        host = self.service.store.host
        totals: dict[float, float] = {}
        for uuid in host.homes(name):
            for at, value in zip(*host.memory_table(name, uuid, after), strict=True):
                totals[at] = totals.get(at, 0.0) + value  # NaN stays NaN
        return [[round(at, 3), None if isnan(value) else value] for at, value in sorted(totals.items())]

    def history(self, names: Sequence[str], begin: float, end: float) -> dict[str, list[Row]]:
        """Rows of servers in (begin, end] (Unix time)."""
        zero = self._clock.of(self.service.snapshot())
        found = {}
        for name in names:
            found[name] = [row for row in self._rows(name, begin - zero) if row[0] <= end - zero]
        return found

    def history_document(self, names: Sequence[str], begin: float, end: float) -> dict[str, Any]:
        """The same as JSON-ready data, with memory."""
        rows = self.history(names, begin, end)
        zero = self.zero()
        servers = {}
        for name, found in rows.items():
            held = [row for row in self._memory_rows(name, begin - zero) if (row[0] or 0.0) <= end - zero]
            servers[name] = {"rows": rows_document(found), "memory": held}
        return {"zero": zero, "fields": FIELDS, "servers": servers}

    def zero(self) -> float:
        """Unix time of monotonic 0."""
        return self._clock.of(self.service.snapshot())

    def document(self) -> dict[str, Any]:
        """Everything of this moment without rows (``/api/live``)."""
        snapshot = self.service.snapshot()
        document = live_document(snapshot, zero=self._clock.of(snapshot))
        self._add_runs(document, snapshot)
        document["alerts"] = self.alerts.document()
        document["epoch"] = self.epoch
        return document

    def window(self, name: str, begin: float, end: float) -> dict[str, Any]:
        """What one server did in (begin, end] (Unix time), from the ring's own cells."""
        snapshot = self.service.snapshot()
        zero = self._clock.of(snapshot)
        found = window_document(self.service.store.host.between(name, begin - zero, end - zero))
        entry = self.service.store.entry(name)
        assert entry is not None
        starts, ends, _ = entry.tracker.table((), begin - zero)
        inside = [(start, stop) for start, stop in zip(starts, ends, strict=True) if stop <= end - zero]
        if inside and inside[0][0] < begin - zero - (end - begin) / 2:
            del inside[0]  # a gap before the window: the figures leave it out as well (Ring.window)
        return {
            "server": name,
            "from": begin,
            "to": end,
            "samples": len(inside),
            "covered_from": inside[0][0] + zero if inside else None,
            "covered_to": inside[-1][1] + zero if inside else None,
            "figures": found,
        }


# --------------------------------------------------------------------------- routes


class SameOriginPosts:
    """Refuses POST requests that a page of another site makes a browser send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on but cross-site posts."""
        if scope["type"] == "http" and scope["method"] == "POST":
            for name, value in scope["headers"]:
                if name == b"sec-fetch-site" and value in (b"cross-site", b"same-site"):
                    await Response("not for pages of other sites\n", 403, media_type="text/plain")(scope, receive, send)
                    return
        await self._app(scope, receive, send)


def mount_live(app: FastAPI, service: LiveService) -> Hub:
    """Adds the page and its endpoints to the application."""
    hub = Hub(service)
    app.state.live = hub
    app.add_middleware(SameOriginPosts)
    mount_pages(app)
    mount_recording(app, service.store, service.settings, lambda: hub.ended)
    no_store = {"Cache-Control": "no-store"}

    def known(names: Iterable[str]) -> list[str]:
        there = service.store.names()
        wanted = [name for name in names if name]
        for name in wanted:
            if name not in there:
                raise HTTPException(404, f"no server {name!r}; known: {', '.join(there) or 'none'}")
        return wanted or list(there)

    def span(begin: float | None, end: float | None) -> tuple[float, float]:
        now = service.snapshot().wall
        last = now if end is None else end
        first = last - MOST_WINDOW if begin is None else begin
        if not first < last:
            raise HTTPException(400, "`to` must be later than `from` (Unix seconds)")
        return first, last

    @app.get("/api/live", response_class=Response)
    def live() -> Response:
        """Everything of this moment as the page and ``vllmeter top`` show it."""
        return Response(_json(hub.document()), media_type="application/json", headers=no_store)

    @app.get("/api/stream", response_class=Response)
    async def stream(request: Request, since: str = "") -> Response:
        """Server-sent events: one ``hello`` with everything, then a ``tick`` with what is new, about twice a second."""
        if hub.pages >= MOST_PAGES:
            return Response(f"{MOST_PAGES} pages are open already\n", 503, media_type="text/plain")
        last = request.headers.get("last-event-id") or since
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(hub.events(last[:100]), media_type="text/event-stream", headers=headers)

    @app.get("/api/history", response_class=Response)
    def history(
        server: list[str] = Query(default=[]),  # noqa: B008
        begin: float | None = Query(None, alias="from"),
        end: float | None = Query(None, alias="to"),
        format: str = "json",
    ) -> Response:
        """One row per second and server of the last 15 minutes; ``format``: json or csv."""
        first, last = span(begin, end)
        names = known(server)
        if format == "csv":
            text = history_csv(FIELDS, hub.history(names, first, last), hub.zero())
            more = {**no_store, "Content-Disposition": 'attachment; filename="vllmeter-history.csv"'}
            return Response(text, media_type="text/csv; charset=utf-8", headers=more)
        if format != "json":
            raise HTTPException(400, f"format {format!r}: use json or csv")
        return Response(
            _json(hub.history_document(names, first, last)), media_type="application/json", headers=no_store
        )

    @app.get("/api/window", response_class=Response)
    def window(
        server: list[str] = Query(default=[]),  # noqa: B008
        begin: float | None = Query(None, alias="from"),
        end: float | None = Query(None, alias="to"),
    ) -> Response:
        """What servers did between ``from`` and ``to`` (Unix seconds): exact, from the cells of the last 15 minutes."""
        first, last = span(begin, end)
        names = known(server)
        found = []
        for name in names:
            with contextlib.suppress(KeyError):  # removed meanwhile
                found.append(hub.window(name, first, last))
        return Response(
            _json({"from": first, "to": last, "windows": found}), media_type="application/json", headers=no_store
        )

    return hub
