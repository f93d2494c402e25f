"""Processes of interest from ``/proc`` (or a bind mount of the host's)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllmeter.snapshot import ProcessTable


class ProcReader:
    """Reads GPU users, their ancestors and every vLLM process tree; never raises for what it may not read."""

    def __init__(self, root: str | Path = "/proc") -> None:
        raise NotImplementedError

    def read(self, at: float, pids: Sequence[int]) -> ProcessTable:
        """See :class:`vllmeter.host.source.ProcessSource`."""
        raise NotImplementedError
