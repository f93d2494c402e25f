"""Ready ``/metrics`` bodies, so that many scrapers cost few renderings and nobody waits for a dear one."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FRESH: Final = 0.2
"""Seconds for which a body is handed out again."""
OLDEST: Final = 1.0
"""Age in seconds (one default sampling interval) up to which a body is handed out while its successor is begun."""
MOST: Final = 3.0
"""Age up to which it is handed out while its successor takes its time, on a machine that cannot keep up (values of a
server are withheld after three intervals, too)."""
DEAR: Final = 0.02
"""A rendering that takes longer than this many seconds (some fifty servers) is made beside the requests."""


LEVEL: Final = 1
"""zlib level: a body becomes some fifteen times smaller; higher levels gain little and cost several times as much."""


@dataclass(slots=True)
class _Body:
    at: float
    took: float
    text: bytes
    packed: bytes | None = None
    """the text as gzip, once somebody wanted it"""


class Bodies:
    """Bodies by format.  ``render`` makes one; it is never called twice at a time.

    A body younger than :data:`FRESH` (or five times what making it took, 0.75 s at most) is handed out again.
    Beyond that a cheap one is made anew at once.  A dear one is made by another thread while requests get the last one,
    as long as that is younger than :data:`OLDEST`; so a single scraper always gets a new body, and one of many a body
    of about this second.
    """

    def __init__(self, render: Callable[[bool], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._render = render
        self._clock = clock
        self._lock = threading.Lock()
        self._ready: dict[bool, _Body] = {}
        self._successor: dict[bool, threading.Thread] = {}

    def get(self, openmetrics: bool, *, packed: bool = False) -> bytes:
        """The body in one of the two formats, ``packed``: as gzip."""
        body = self._current(openmetrics, packed)
        if not packed:
            return body.text
        if body.packed is None:
            with self._lock:
                if body.packed is None:
                    body.packed = _gzip(body.text)
        return body.packed

    def at_once(self, openmetrics: bool, *, packed: bool = False) -> bytes | None:
        """The body that :meth:`get` would give, when that takes no time; else None."""
        body = self._handed_out(openmetrics)
        if body is None:
            return None
        return body.packed if packed else body.text

    def _handed_out(self, openmetrics: bool) -> _Body | None:
        """A body that is there and young enough; its successor is begun where it is time."""
        body = self._ready.get(openmetrics)
        if body is None:
            return None
        age = self._clock() - body.at
        if age < min(max(FRESH, 5 * body.took), 0.75 * OLDEST):
            return body
        if body.took > DEAR and (age < OLDEST or (self._renewing(openmetrics) and age < MOST)):
            self._renew(openmetrics)
            return body
        return None

    def _current(self, openmetrics: bool, packed: bool) -> _Body:
        return self._handed_out(openmetrics) or self._make(openmetrics, self._clock(), packed)

    def _renewing(self, openmetrics: bool) -> bool:
        running = self._successor.get(openmetrics)
        return running is not None and running.is_alive()

    def _renew(self, openmetrics: bool) -> None:
        if not self._renewing(openmetrics):
            packed = self._ready[openmetrics].packed is not None
            made = threading.Thread(
                target=self._make, args=(openmetrics, self._clock(), packed), name="render", daemon=True
            )
            self._successor[openmetrics] = made
            made.start()

    def _make(self, openmetrics: bool, asked: float, packed: bool) -> _Body:
        with self._lock:
            ready = self._ready.get(openmetrics)
            if ready is not None and ready.at >= asked:
                return ready  # made while we waited
            begun = self._clock()
            text = self._render(openmetrics)
            zipped = _gzip(text) if packed else None
            made = self._ready[openmetrics] = _Body(begun, self._clock() - begun, text, zipped)
            return made


def _gzip(text: bytes) -> bytes:
    """One gzip member without a time: equal texts give equal bytes."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)
    return packer.compress(text) + packer.flush()
