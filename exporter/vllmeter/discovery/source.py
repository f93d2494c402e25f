"""What a discovery source is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vllmeter.config.settings import Server


class DiscoveryError(Exception):
    """A source could not be asked; the text names place, cause and remedy.  The servers it gave before stay."""


class DiscoverySource(Protocol):
    """Finds servers.  Each call returns the whole list."""

    name: str
    """one word for logs: processes, file, http, dns, kubernetes"""
    every: float
    """seconds between two calls"""

    def find(self) -> Sequence[Server]:
        """All servers that there are now; DiscoveryError when that cannot be known."""
