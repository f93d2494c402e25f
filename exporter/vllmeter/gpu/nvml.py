"""NVML: the only module that imports pynvml.  Runs it in one thread of its own, under a watchdog.

Never creates a CUDA context (one costs several hundred MiB per process) and never imports torch.
A driver call that hangs cannot be cancelled from outside, so the reading is down with reason ``hung`` until the call
returns; shutting NVML down under a thread that is inside a call crashes, so a hung thread is left alone at the end.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from vllmeter.gpu import reasons
from vllmeter.gpu.reader import NvmlReader
from vllmeter.gpu.reasons import explain
from vllmeter.snapshot import NvmlReading

__all__ = ["NvmlUnusable", "WatchedGpuSource", "explain", "load_pynvml"]

log = logging.getLogger(__name__)

COST_LIMIT: Final = 0.005
"""Seconds that a tick may cost before ticks become rarer."""


class NvmlUnusable(Exception):  # noqa: N818  # tells a state; the caller shows it as a reason
    """The binding cannot be used; ``reason`` is a key of :data:`vllmeter.gpu.reasons.WORDS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(explain(reason))
        self.reason = reason


def load_pynvml(load: Callable[[str], ModuleType] = importlib.import_module) -> ModuleType:
    """Import NVIDIA's own binding (distribution nvidia-ml-py, one file ``pynvml.py``).

    Raises :class:`NvmlUnusable` when it is missing (``no_pynvml``) or when the old unofficial fork, a package of
    the same name, shadows it (``wrong_pynvml``): its structures do not fit today's drivers.
    """
    try:
        module = load("pynvml")
    except ImportError:
        raise NvmlUnusable("no_pynvml") from None
    path = getattr(module, "__file__", None)
    if path is not None and Path(path).name == "__init__.py":
        raise NvmlUnusable("wrong_pynvml")
    if not hasattr(module, "NVMLError") or not hasattr(module, "nvmlInit"):
        raise NvmlUnusable("wrong_pynvml")
    return module


class Reader(Protocol):
    """What the watched thread runs (:class:`NvmlReader`, or a fake in tests)."""

    def read(self, at: float, wall: float) -> NvmlReading:
        """One tick."""
        ...

    def close(self) -> None:
        """Shut down."""
        ...


def _host_meminfo() -> str:
    return Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")


class _Unusable:
    """Stands in for a reader where the binding cannot be loaded."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def read(self, at: float, wall: float) -> NvmlReading:
        return NvmlReading(at, wall, up=False, reason=self._reason)

    def close(self) -> None:
        pass


class WatchedGpuSource:
    """NVML in one thread with a watchdog; works (``up=False`` with a reason) on machines without the NVIDIA library.

    ``read`` waits up to ``patience`` seconds for its tick; until it comes the reading is down with reason ``hung``, or
    ``starting`` while the very first tick is under way.  A late tick is handed out by the next ``read`` that gets no
    newer one (its ``at`` says how old it is).  ``make_reader`` is for tests.
    """

    def __init__(
        self,
        *,
        patience: float = 1.0,
        graphics: bool = True,
        make_reader: Callable[[], Reader] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience
        self._graphics = graphics
        self._make_reader = make_reader or self._real_reader
        self._clock = clock
        self._wake = threading.Condition()
        self._request: tuple[float, float] | None = None
        self._result: NvmlReading | None = None
        self._busy_since: float | None = None
        self._reader: Reader | None = None
        self._closing = False
        self._finished = False
        self._said_hung = False
        self._first_done = False
        self._last_reason: str | None = None
        self._costs: deque[float] = deque(maxlen=15)
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ the caller's side

    def read(self, at: float, wall: float) -> NvmlReading:
        """One tick (see :class:`vllmeter.gpu.source.GpuSource`)."""
        with self._wake:
            if self._closing:
                return NvmlReading(at, wall, up=False, reason="closed")
            late = self._take()
            if self._busy_since is None and self._request is None:
                self._request = (at, wall)
                self._wake.notify_all()
            self._wake.wait_for(lambda: self._result is not None or self._closing, timeout=self._patience)
            result = self._take() or late
            if result is not None:
                return result
            reason = "hung" if self._first_done else "starting"
            waited = self._clock() - (self._busy_since if self._busy_since is not None else self._clock())
            if reason == "starting" and waited > 30.0:
                reason = "hung"
            if reason == "hung" and not self._said_hung:
                self._said_hung = True
                log.warning("NVML: %s", explain("hung"))
            self._last_reason = reason
            return NvmlReading(at, wall, up=False, reason=reason, duration_seconds=max(0.0, waited))

    def close(self) -> None:
        """Shut NVML down from its own thread.  A thread inside a hung call is left alone.  May be called again."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(timeout=min(2.0, max(0.2, self._patience)))

    @property
    def restart_advice(self) -> str | None:
        """Why only a restart of this process (or a new container) helps; None when none is needed.  For /-/healthy."""
        reason = self._last_reason
        return explain(reason) if reason in reasons.RESTART_NEEDED else None

    @property
    def interval_hint(self) -> float:
        """Seconds between ticks that keep the cost low: 1 while a tick costs at most 5 ms, else longer (at most 15)."""
        costs = sorted(self._costs)
        if len(costs) < 5:
            return 1.0
        median = costs[len(costs) // 2]
        return min(15.0, max(1.0, median / COST_LIMIT))

    # ------------------------------------------------------------------ the NVML thread

    def _take(self) -> NvmlReading | None:
        """The finished tick, once.  The lock is held."""
        result, self._result = self._result, None
        if result is not None:
            self._last_reason = result.reason if not result.up else None
        return result

    def _real_reader(self) -> Reader:
        try:
            api: Any = load_pynvml()
        except NvmlUnusable as problem:
            log.warning("NVML cannot be used: %s", problem)
            return _Unusable(problem.reason)
        return NvmlReader(api, graphics=self._graphics, meminfo=_host_meminfo)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._request is not None or self._closing)
                if self._closing:
                    break
                assert self._request is not None
                at, wall = self._request
                self._request = None
                self._busy_since = self._clock()
            result = self._tick(at, wall)
            with self._wake:
                if self._said_hung:
                    self._said_hung = False
                    log.info("NVML: the call returned after %.1f s", self._clock() - (self._busy_since or 0.0))
                self._busy_since = None
                self._first_done = True
                self._result = result
                if result.up and result.duration_seconds is not None:
                    self._costs.append(result.duration_seconds)
                self._wake.notify_all()
        if self._reader is not None:
            self._reader.close()

    def _tick(self, at: float, wall: float) -> NvmlReading:
        try:
            if self._reader is None:
                self._reader = self._make_reader()
            return self._reader.read(at, wall)
        except Exception:  # the thread must live: a bug here may cost a reading, never the watch
            if self._last_reason != "internal_error":
                log.exception("reading NVML failed")
            return NvmlReading(at, wall, up=False, reason="internal_error")
