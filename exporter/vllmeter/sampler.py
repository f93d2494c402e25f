"""Threads and timers: one loop per server, one thread for NVML and ``/proc``, one watch.  Feeds the store."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vllmeter.config.settings import Server, Settings
from vllmeter.gpu.source import GpuSource
from vllmeter.host.source import ProcessSource
from vllmeter.scrape.canary import Canary
from vllmeter.scrape.loop import TargetLoop
from vllmeter.scrape.target import Target
from vllmeter.snapshot import ContainerTable, NvmlReading, ProcessTable
from vllmeter.store import Store

log = logging.getLogger("vllmeter.sampler")

_LOAD_CHECK = 1.0


@dataclass(frozen=True, slots=True)
class HostSources:
    """Where GPU and process readings come from.  ``containers`` returns at once (it caches)."""

    gpu: GpuSource | None
    processes: ProcessSource
    containers: Callable[[float], ContainerTable] | None = None


class Sampler:
    """Runs everything that samples, until :meth:`stop`."""

    def __init__(self, settings: Settings, store: Store, sources: HostSources) -> None:
        self._settings = settings
        self._store = store
        self._sources = sources
        self._loops: dict[str, TargetLoop] = {}
        self._canaries: dict[str, tuple[Server, Canary]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._table: ProcessTable | None = None
        self._table_at = float("-inf")
        self._table_pids: frozenset[int] = frozenset()
        self._gpu_logged: str | None = ""
        self._threads = [
            threading.Thread(target=self._gpu_loop, name="gpu", daemon=True),
            threading.Thread(target=self._watch_loop, name="watch", daemon=True),
        ]

    def start(self) -> None:
        """Starts all threads; servers of the settings first."""
        self.apply(self._settings)
        for thread in self._threads:
            thread.start()

    def stop(self, wait: float = 2.0) -> None:
        """Stops all threads; returns after ``wait`` seconds at the latest."""
        self._stop.set()
        with self._lock:
            loops = list(self._loops.values())
            self._loops.clear()
        for loop in loops:
            loop.stop()
        deadline = time.monotonic() + wait
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._sources.gpu is not None:
            self._sources.gpu.close()

    def apply(self, settings: Settings) -> None:
        """Goes over to other settings: unchanged servers keep everything, changed ones begin anew."""
        with self._lock:
            self._settings = settings
            self._store.nvml_interval = settings.nvml.interval
            wanted = {server.name: server for server in settings.servers}
            for name, loop in list(self._loops.items()):
                if wanted.get(name) != loop.target.server or loop.target.base_interval != self._interval(wanted[name]):
                    loop.stop()
                    del self._loops[name]
                    self._store.remove(name)
            for name, server in wanted.items():
                if name not in self._loops:
                    target = Target(server, settings.interval)
                    self._store.add(target)
                    loop = TargetLoop(target, self._store.observed, self._store.hold)
                    self._loops[name] = loop
                    loop.start()

    def _interval(self, server: Server) -> float:
        return server.interval or self._settings.interval

    def _consider_canary(self, loop: TargetLoop) -> None:
        server = loop.target.server
        if not server.canary:
            return
        canary = self._canaries.get(server.name)
        if canary is None or canary[0] is not server:
            canary = (server, Canary(server, lambda: self._store.proved(server.name)))
            self._canaries[server.name] = canary
        state, model = self._store.doubtful(server.name)
        canary[1].consider(state, model, time.monotonic())

    # ------------------------------------------------------------------ GPU and processes

    def _gpu_loop(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                self._gpu_tick(time.monotonic(), time.time())
            except Exception:  # a fault here must not end the readings of the other sources
                log.exception("fault in the GPU tick")
            # NVML asks for a slower pace where a tick is expensive (many busy processes on many cards).
            due += max(self._settings.nvml.interval, getattr(self._sources.gpu, "interval_hint", 0.0))
            now = time.monotonic()
            if due <= now:
                due = now + 0.05
            if self._stop.wait(due - now):
                return

    def _gpu_tick(self, at: float, wall: float) -> None:
        source = self._sources.gpu
        nvml = NvmlReading(at, wall, up=False, reason="switched off (nvml.enabled)") if source is None else None
        if source is not None:
            nvml = source.read(at, wall)
        assert nvml is not None
        self._log_gpu(nvml)
        pids = frozenset(p.pid for gpu in nvml.gpus for p in gpu.processes or ())
        now = time.monotonic()
        if pids - self._table_pids or now - self._table_at >= self._settings.nvml.processes_every:
            self._table = self._sources.processes.read(now, sorted(pids))
            self._table_at, self._table_pids = now, pids
        containers = self._sources.containers(now) if self._sources.containers is not None else None
        self._store.gpu_tick(nvml, self._table, containers, time.monotonic(), wall)

    def _log_gpu(self, nvml: NvmlReading) -> None:
        reason = None if nvml.up else nvml.reason or "unknown"
        if reason != self._gpu_logged:
            self._gpu_logged = reason
            if reason is None:
                names = ", ".join(f"{gpu.gpu}={gpu.name}" for gpu in nvml.gpus)
                log.info("nvml=up gpus=%d %s", len(nvml.gpus), names)
            else:
                log.warning("nvml=down reason=%s", reason)

    # ------------------------------------------------------------------ watch

    def _watch_loop(self) -> None:
        while not self._stop.wait(_LOAD_CHECK):
            with self._lock:
                loops: Iterable[TargetLoop] = list(self._loops.values())
            for loop in loops:
                loop.watch()
                self._consider_canary(loop)
            self._store.pending(time.monotonic(), time.time())
