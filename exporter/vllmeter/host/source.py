"""What the sampler asks of anything that reads processes: ``/proc`` itself, a replayed recording or a test's fake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vllmeter.snapshot import ProcessTable


class ProcessSource(Protocol):
    """A source of process tables.  It never raises for what it may not read: absence comes with a reason."""

    def read(self, at: float, pids: Sequence[int]) -> ProcessTable:
        """The processes ``pids`` (GPU users), their ancestors and every vLLM process tree, at monotonic ``at``."""
        ...
