"""What the sampler asks of anything that reads GPUs: NVML itself, a replayed recording or a test's fake."""

from __future__ import annotations

from typing import Protocol

from vllmeter.snapshot import NvmlReading


class GpuSource(Protocol):
    """A source of GPU readings.

    A source never raises for something that the GPU, the driver or the peer did: it returns a reading with
    ``up=False`` and a reason, because "no value" is a state that must be shown.
    """

    def read(self, at: float, wall: float) -> NvmlReading:
        """All GPUs now.

        ``at`` (monotonic seconds) and ``wall`` (Unix time) of the tick are copied into the reading.
        """
        ...

    def close(self) -> None:
        """Let go of the driver or the connection.  May be called more than once."""
        ...
