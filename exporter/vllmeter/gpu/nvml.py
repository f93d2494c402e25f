"""NVML: the only module that imports pynvml.  Never creates a CUDA context."""

from __future__ import annotations

from vllmeter.snapshot import NvmlReading


class WatchedGpuSource:
    """NVML in one thread with a watchdog; works (``up=False`` with a reason) on machines without the NVIDIA library.

    ``read`` waits up to ``patience`` seconds for the tick.  A driver call that hangs cannot be cancelled: then the
    reading is down with reason ``hung`` until the call returns.
    """

    def __init__(self, *, patience: float = 1.0, graphics: bool = True) -> None:
        raise NotImplementedError

    def read(self, at: float, wall: float) -> NvmlReading:
        """One tick (see :class:`vllmeter.gpu.source.GpuSource`)."""
        raise NotImplementedError

    def close(self) -> None:
        """Shut NVML down from its own thread; a hung thread is left alone (shutting down under it would crash)."""
        raise NotImplementedError

    @property
    def restart_advice(self) -> str | None:
        """Why only a restart of this process (or a new container) helps; None when none is needed.  For /-/healthy."""
        raise NotImplementedError

    @property
    def interval_hint(self) -> float:
        """Seconds between ticks that keep the cost low: 1 while a tick costs at most 5 ms, else longer."""
        raise NotImplementedError


def explain(reason: str) -> str:
    """The reason of an :class:`NvmlReading` in words, with the remedy."""
    raise NotImplementedError
