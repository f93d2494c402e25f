"""One thread per server: scrapes on its own timer, probes health, asks the version.  At most one scrape in flight."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from vllmeter.scrape.client import ScrapeClient
from vllmeter.scrape.target import HEALTH_EVERY, Observe, Target

log = logging.getLogger("vllmeter.scrape")

_VERSION_EVERY = 300.0
_GONE_EVERY = 1.0


class TargetLoop:
    """Runs a target until :meth:`stop`.

    ``hold`` says whether backing off is forbidden now; ``observe`` gets every finished scrape.  A late answer delays
    only this server's next scrape: the schedule then goes on from now, missed beats are not made up.
    """

    def __init__(self, target: Target, observe: Observe, hold: Callable[[Target], bool]) -> None:
        self.target = target
        self._observe = observe
        self._hold = hold
        self._client = ScrapeClient(target.server)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"scrape-{target.server.name}", daemon=True)
        self._health_at = float("-inf")
        self._version_at = float("-inf")
        self._was_up = False

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, wait: float = 0.0) -> None:
        """Ends the loop and its connection; waits up to ``wait`` seconds for the thread."""
        self._stop.set()
        self._client.close()
        if wait and self._thread.is_alive():
            self._thread.join(wait)

    def watch(self) -> None:
        """Ends an exchange that is over its total time (called about once a second by the sampler)."""
        self._client.abort()

    def _run(self) -> None:
        # Servers of one exporter, and exporters started together, must not all ask in the same instant.
        if self._stop.wait(random.uniform(0, min(0.5, self.target.base_interval / 2))):  # noqa: S311 - no secret
            return
        # The first answer is wanted soon; from the second on the servers are spread over the whole interval.
        due = time.monotonic() + random.uniform(0, self.target.base_interval / 2)  # noqa: S311
        while not self._stop.is_set():
            try:
                self._once()
            except Exception:
                if self._stop.is_set():
                    return
                log.exception("server=%s fault in the sampling loop", self.target.server.name)
            due += self.target.interval(hold=self._hold(self.target))
            now = time.monotonic()
            if due <= now:
                due = now + 0.05  # late: go on from now, but leave the server a breath
            if self._stop.wait(due - now):
                return

    def _once(self) -> None:
        target, client = self.target, self._client
        target.begin(time.monotonic())
        fetch = client.metrics()
        if self._stop.is_set():
            return
        at, wall = time.monotonic(), time.time()
        target.peer = client.peer
        reading = target.finish(fetch, at, wall)
        up = reading is not None
        # whoever does not answer /metrics in time may answer /health all the same: then nobody is unreachable
        somebody = fetch.status is not None or fetch.reason == "timeout"
        if somebody and (at - self._health_at >= HEALTH_EVERY or up != self._was_up):
            self._health_at = at
            target.probing(at)
            health = client.health()
            target.probed(health, time.monotonic())
        elif not somebody:
            target.probed(None, at)
        if up and (at - self._version_at >= _VERSION_EVERY or not self._was_up):
            self._version_at = at
            target.versioned(client.version())
        self._was_up = up
        self._observe(target, reading, at, wall)
