"""Asks the discovery sources on their timers and hands every change to the exporter."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from vllmeter.config.settings import Server
from vllmeter.discovery.source import DiscoveryError, DiscoverySource

log = logging.getLogger("vllmeter.discovery")

Adopt = Callable[[Sequence[tuple[str, Sequence[Server]]]], None]


class Discoverer:
    """One thread over all sources.  A source that fails keeps the servers it gave before; changes are logged once."""

    def __init__(self, sources: Sequence[DiscoverySource], adopt: Adopt) -> None:
        self._sources = list(sources)
        self._adopt = adopt
        self._found: dict[str, Sequence[Server]] = {}
        self._errors: dict[str, str | None] = {}
        self._due: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)

    def start(self) -> None:
        """Starts the thread, if there is a source at all."""
        if self._sources:
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self.poll(time.monotonic()):
                self._adopt([(s.name, self._found.get(s.name, ())) for s in self._sources])
            if self._stop.wait(0.5):
                return

    def poll(self, now: float) -> bool:
        """Asks every source that is due; True when the list of servers changed."""
        changed = False
        for source in self._sources:
            if now < self._due.get(source.name, float("-inf")):
                continue
            self._due[source.name] = now + source.every
            try:
                servers = tuple(source.find())
            except DiscoveryError as error:
                self._note(source.name, str(error))
                continue
            except Exception as error:  # a fault in one source must not end the others
                log.exception("source=%s fault", source.name)
                self._note(source.name, f"fault: {type(error).__name__}")
                continue
            self._note(source.name, None)
            if servers != self._found.get(source.name):
                self._found[source.name] = servers
                log.info("source=%s servers=%s", source.name, ",".join(s.name for s in servers) or "none")
                changed = True
        return changed

    def _note(self, name: str, error: str | None) -> None:
        if error != self._errors.get(name):
            self._errors[name] = error
            if error is not None:
                log.warning("source=%s kept the servers known before: %s", name, error)
