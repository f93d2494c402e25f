"""The sampling state of one server: what its loop feeds in, what the join reads.  No I/O, no clock.

One thread feeds (:meth:`Target.begin`, :meth:`Target.finish`, :meth:`Target.probed`); any thread reads
:meth:`Target.status`.  The last usable reading is kept with its time: whether it is still fit to be shown is decided
where it is shown, by :func:`limit_age`.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from vllmeter.config.settings import Server
from vllmeter.exposition.parse import ParseError, Parser
from vllmeter.render.text import Blocks, ServerText
from vllmeter.scrape.outcome import Fetch
from vllmeter.snapshot import Layout, ScrapeStatus, ServerReading
from vllmeter.upstream.normalise import Normaliser

log = logging.getLogger("vllmeter.scrape")

HEALTH_EVERY = 0.5
"""Seconds between two questions to ``/health`` at least.  With every scrape at 1 s: vLLM exits 0.2 to 4 s after its
engine died, and only /health tells before that."""
BACK_OFF_LIMIT = 5.0
"""Longest interval, in seconds, that backing off on cost may lead to."""
_COST_ANSWERS = 10
"""Answers before a cost is believed: the first ones are dear because nothing is remembered yet."""
_COST_SHARE = 0.05
"""Share of time that sampling a server may cost it and us before the interval grows."""
_SERVER_SECONDS_PER_BYTE = 10e-3 / 62_000
"""vLLM's event loop spends 8-10 ms on a body of 62 kB (measured on 0.32.0, CPU)."""


def limit_age(interval: float, read_timeout: float) -> float:
    """Age in seconds after which a sample is withheld: max(3 intervals, read timeout + 1 interval)."""
    return max(3 * interval, read_timeout + interval)


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest usable reading of a server with its times."""

    reading: ServerReading
    at: float
    wall: float
    series: int
    """how many series of it ``/metrics`` shows"""
    waiting: bool
    """whether requests wait there"""


class Target:
    """One server as the sampler sees it."""

    def __init__(self, server: Server, interval: float) -> None:
        self.server = server
        self.base_interval = server.interval or interval
        self.sample: Sample | None = None
        self.version: str | None = server.version
        self.peer: str | None = None
        """IP address behind the URL, once connected"""
        self._lock = threading.Lock()
        self._parser = Parser()
        self._normaliser = Normaliser()
        self._text = ServerText(server.name, server.expose.without)
        self._text_lock = threading.Lock()
        self._blocks: tuple[ServerReading, Blocks] | None = None
        self._layout: Layout | None = None
        self._waiting: tuple[int, ...] = ()
        """places of ``requests_waiting`` in the values of ``_layout``"""
        self._in_flight_since: float | None = None
        self._failures: dict[str, int] = {}
        self._consecutive = 0
        self._last: Fetch | None = None
        self._reason: str | None = None
        self._detail: str | None = None
        self._up = False
        self._health: int | str | None = None
        self._health_at: float | None = None
        """when ``/health`` was last answered or given up"""
        self._costs: deque[float] = deque(maxlen=30)
        self._cost = 0.0
        """median of ``_costs``, in seconds; 0 before there are enough of them"""
        self._logged: str | None = ""

    def begin(self, at: float) -> None:
        """A scrape starts now."""
        with self._lock:
            self._in_flight_since = at

    def finish(self, fetch: Fetch, at: float, wall: float) -> ServerReading | None:
        """A scrape ended: the reading when the body was usable, else None (then :attr:`reason` says why)."""
        cpu = time.thread_time()
        reading: ServerReading | None = None
        reason, detail = fetch.reason, fetch.detail
        sample: Sample | None = None
        if fetch.body is not None and reason is None:
            try:
                reading = self._normaliser.normalise(self._parser.parse(fetch.body, fetch.content_type), self.version)
                sample = Sample(reading, at, wall, self._text.count(reading.layout), self._waits(reading))
            except ParseError as error:
                reading, reason, detail = None, "parse", str(error)[:200]
            except Exception as error:  # a fault of ours costs this server's sample, never the exporter
                log.exception("server=%s fault while reading its body", self.server.name)
                reading, reason, detail = None, "internal", type(error).__name__
        cost = time.thread_time() - cpu + len(fetch.body or b"") * _SERVER_SECONDS_PER_BYTE
        with self._lock:
            self._in_flight_since = None
            self._last = fetch
            self._reason, self._detail = reason, detail
            self._up = reason is None
            if sample is not None:
                self.sample = sample
                self._consecutive = 0
                self._costs.append(cost)
                if len(self._costs) >= _COST_ANSWERS:
                    self._cost = statistics.median(self._costs)
            else:
                assert reason is not None
                self._failures[reason] = self._failures.get(reason, 0) + 1
                self._consecutive += 1
        self._log_change(reason, detail)
        return reading

    def blocks(self) -> Blocks | None:
        """The ``/metrics`` lines of the newest sample, written when they are first asked for; None without a sample.

        Not when the sample arrives: a Prometheus asks every 15 s, and writing each second would be for nobody.
        """
        sample = self.sample
        if sample is None:
            return None
        with self._text_lock:
            if self._blocks is None or self._blocks[0] is not sample.reading:
                try:
                    blocks = self._text.render(sample.reading)
                except Exception:  # a fault of ours costs this server's lines, never the whole body
                    log.exception("server=%s fault while writing its lines", self.server.name)
                    blocks = {}
                    with self._lock:
                        self._failures["internal"] = self._failures.get("internal", 0) + 1
                self._blocks = (sample.reading, blocks)
            return self._blocks[1]

    def _waits(self, reading: ServerReading) -> bool:
        if reading.layout is not self._layout:
            self._layout = reading.layout
            self._waiting = tuple(
                index for index, ref in enumerate(reading.layout.scalars) if ref.family == "requests_waiting"
            )
        return any(reading.values[index] > 0 for index in self._waiting)

    def probing(self, at: float) -> None:
        """``/health`` is being asked from now on: what it said long ago no longer stands for now."""
        with self._lock:
            limit = 3 * max(self.interval(hold=False), HEALTH_EVERY)
            if self._health_at is not None and at - self._health_at > limit:
                self._health = "pending"

    def probed(self, health: int | str | None, at: float) -> None:
        """What ``/health`` gave at ``at``: a status, or why there was no answer; None = not asked."""
        with self._lock:
            self._health, self._health_at = health, at

    def versioned(self, version: str | None) -> None:
        """Result of ``GET /version``; None leaves what was known."""
        if version is not None and version != self.version:
            self.version = version

    @property
    def reason(self) -> str | None:
        """Why the last finished scrape failed; None when it did not."""
        return self._reason

    def in_flight(self, at: float) -> float | None:
        """Seconds that the scrape under way has been waiting; None when there is none."""
        since = self._in_flight_since
        return None if since is None else max(0.0, at - since)

    def interval(self, *, hold: bool) -> float:
        """The interval to use now.  ``hold``: never back off (requests wait, a run is active)."""
        if hold:
            return self.base_interval
        return max(self.base_interval, min(BACK_OFF_LIMIT, self._cost / _COST_SHARE))

    def status(self, at: float, *, hold: bool = False) -> ScrapeStatus:
        """Health of the sampling at ``at`` (monotonic seconds)."""
        with self._lock:
            sample, last = self.sample, self._last
            return ScrapeStatus(
                up=self._up,
                reason=self._reason,
                detail=self._detail,
                healthy=self._health == 200 if isinstance(self._health, int) else None,
                health=self._health,
                sample_age=None if sample is None else max(0.0, at - sample.at),
                interval=self.interval(hold=hold),
                duration=None if last is None else last.duration,
                in_flight=self.in_flight(at),
                body_bytes=None if last is None or last.body is None else len(last.body),
                failures=dict(self._failures),
                consecutive_failures=self._consecutive,
            )

    def fresh(self, at: float, *, hold: bool = False) -> Sample | None:
        """The newest sample while it may be shown, else None.

        A failed source never shows its last good value: after a finished failed scrape there is nothing to show;
        while an answer is pending the last sample stands until :func:`limit_age`.
        """
        with self._lock:
            sample = self.sample
            if sample is None or not self._up:
                return None
            limit = limit_age(self.interval(hold=hold), self.server.timeout.read)
            return sample if at - sample.at <= limit else None

    def _log_change(self, reason: str | None, detail: str | None) -> None:
        if reason == self._logged:
            return
        self._logged = reason
        if reason is None:
            log.info("server=%s url=%s scrape=ok", self.server.name, self.server.url)
        else:
            log.warning(
                "server=%s url=%s scrape=failed reason=%s detail=%s", self.server.name, self.server.url, reason, detail
            )


Observe = Callable[[Target, ServerReading | None, float, float], None]
"""Called by a target's loop after each finished scrape: target, reading or None, monotonic, wall."""
