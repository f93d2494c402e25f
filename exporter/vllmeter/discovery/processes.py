"""Finds ``vllm serve`` processes of this host and the ports they listen on."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from vllmeter.config.settings import Server
from vllmeter.host.discover import discover
from vllmeter.host.proc import ProcReader

log = logging.getLogger("vllmeter.discovery")


class ProcessDiscovery:
    """Servers of this host from their command lines and listening sockets; what was skipped is logged once."""

    name = "processes"
    every = 5.0

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._reader = ProcReader(proc)
        self._skipped: frozenset[str] = frozenset()

    def find(self) -> Sequence[Server]:
        """All servers found now."""
        found = discover(self._reader.read(time.monotonic(), ()))
        skipped = frozenset(map(str, (*found.skipped, *found.notes)))
        for reason in sorted(skipped - self._skipped):
            log.info("source=processes skipped: %s", reason)
        self._skipped = skipped
        # Its processes are found again by the URL's port, through a container's published port too: no match is needed
        return [Server(name=server.name, url=server.url) for server in found.servers]
