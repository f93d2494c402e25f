"""Finds ``vllm serve`` processes of this host and the ports they listen on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from vllmeter.config.settings import Match, Server

log = logging.getLogger("vllmeter.discovery")


class ProcessDiscovery:
    """Servers of this host from their command lines and listening sockets; what was skipped is logged once."""

    name = "processes"
    every = 5.0

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._skipped: frozenset[str] = frozenset()

    def find(self) -> Sequence[Server]:
        """All servers found now."""
        from vllmeter.host.discover import discover

        found = discover(self._proc)
        skipped = frozenset(found.skipped)
        for reason in sorted(skipped - self._skipped):
            log.info("source=processes skipped: %s", reason)
        self._skipped = skipped
        return [Server(name=s.name, url=s.url, match=Match(port=s.port)) for s in found.servers]
