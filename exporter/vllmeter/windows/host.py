"""What happened on the GPUs of one host in the last 15 minutes: VRAM and utilisation peaks, and who computed when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from vllmeter.snapshot import Contention, Windowed
from vllmeter.windows import contention as axis
from vllmeter.windows.peaks import peak
from vllmeter.windows.ring import RING_SECONDS, SampleRing

if TYPE_CHECKING:
    from vllmeter.windows.tracker import ServerTracker

TENANT_SECONDS: Final = 60.0
"""How long a server stays a tenant of a GPU after it was last seen there."""

LAG_SECONDS: Final = 2.5
"""Contention waits this long for the samples of slower servers before it looks without them."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What the windows keep of one GPU at one NVML tick; None = not known."""

    used_bytes: float | None = None
    utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GpuWindowed:
    """Peaks of one GPU in one window; None = absent, ``reason`` says why."""

    used_peak: float | None = None
    utilization_peak: float | None = None
    reason: str | None = None


class _Tenant:
    """One server on one GPU: its memory and SM time."""

    __slots__ = ("computed", "ring", "seen")

    def __init__(self) -> None:
        self.ring = SampleRing(("memory_used_bytes", "sm_utilization"))
        self.computed = axis.SlotMask()
        self.seen = -inf


class HostTracker:
    """What happened on the GPUs of one host in the last 15 minutes, and who computed when."""

    def __init__(self, windows: Sequence[float] = (15.0, 60.0)) -> None:
        self.windows = tuple(windows)
        self._lock = RLock()
        self._servers: dict[str, ServerTracker] = {}
        self._gpus: dict[str, SampleRing] = {}
        self._tenants: dict[str, dict[str, _Tenant]] = {}
        """GPU uuid -> server -> what it does there"""
        self._homes: dict[str, dict[str, _Tenant]] = {}
        """the same by server -> GPU uuid"""
        self._now: float | None = None
        self._tick = 0
        self._contention: dict[tuple[str, float], tuple[int, dict[str, Contention]]] = {}
        self._cache: dict[tuple[str, float], tuple[int, int, Windowed]] = {}

    def add(self, tracker: ServerTracker) -> None:
        """Look at this server too (replaces one of the same name)."""
        with self._lock:
            self._servers[tracker.name] = tracker

    def remove(self, name: str) -> None:
        """Forget a server."""
        with self._lock:
            self._servers.pop(name, None)
            for uuid in self._homes.pop(name, {}):
                del self._tenants[uuid][name]
            for cached in [key for key in self._cache if key[0] == name]:
                del self._cache[cached]

    def observe(
        self,
        now: float,
        *,
        gpus: Mapping[str, GpuSample] = MappingProxyType({}),
        memory: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
        sm: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    ) -> None:
        """One tick of the host (call it every second, also without NVML).

        ``memory``: server -> GPU uuid -> bytes it holds there; None = it is there, how much is not known.  A server
        counts as a tenant of a GPU for :data:`TENANT_SECONDS` after it was last named there.  ``sm``: share of SM time
        of the server's processes, 0-1, only where NVML has a sample newer than the last tick.
        """
        with self._lock:
            before = self._now
            if before is not None and now <= before:
                return
            start = now if before is None else before
            self._now = now
            self._tick += 1
            for uuid, sample in gpus.items():
                ring = self._gpus.get(uuid)
                if ring is None:
                    ring = self._gpus[uuid] = SampleRing(("memory_used_bytes", "utilization"))
                ring.push(start, now, (_or_nan(sample.used_bytes), _or_nan(sample.utilization_ratio)))
            named = {(uuid, server) for server, held in memory.items() for uuid in held}
            named |= {(uuid, server) for server, used in sm.items() for uuid in used}
            for uuid, server in named:
                tenant = self._homes.setdefault(server, {}).get(uuid)
                if tenant is None:
                    tenant = self._homes[server][uuid] = _Tenant()
                    self._tenants.setdefault(uuid, {})[server] = tenant
                share = sm.get(server, {}).get(uuid)
                held = memory.get(server, {}).get(uuid)
                tenant.ring.push(start, now, (_or_nan(held), _or_nan(share)))
                tenant.seen = now
                if share is not None and share > axis.SM_COMPUTES and now - start <= axis.LONGEST_STRETCH:
                    tenant.computed.mark(start, now)
            if self._tick % 64 == 0:
                self._forget(now - RING_SECONDS)

    def windowed(self, server: str, seconds: float) -> Windowed:
        """The server's window completed with its VRAM peaks and contention; KeyError for an unknown server.

        The same object for every reader until the server or the host ticks again.
        """
        with self._lock:
            tracker = self._servers[server]
            cached = self._cache.get((server, seconds))
            tick = tracker.tick
            if cached is not None and cached[0] == tick and cached[1] == self._tick:
                return cached[2]
            base = tracker.windowed(seconds)
            made = self._complete(base, server, seconds)
            self._cache[server, seconds] = (tick, self._tick, made)
            return made

    def gpu_windowed(self, uuid: str, seconds: float) -> GpuWindowed:
        """Peaks of a GPU in the window."""
        with self._lock:
            ring = self._gpus.get(uuid)
            if ring is None or self._now is None:
                return GpuWindowed(reason="no_samples")
            begin, end = ring.since(self._now - seconds), len(ring)
            if begin == end:
                return GpuWindowed(reason="no_samples")
            return GpuWindowed(
                peak(ring["memory_used_bytes"], begin, end),
                peak(ring["utilization"], begin, end),
            )

    def gpu_history(self, uuid: str, column: str, seconds: float = RING_SECONDS) -> list[tuple[float, float]]:
        """(monotonic time, value) of ``memory_used_bytes`` or ``utilization`` of a GPU."""
        with self._lock:
            ring = self._gpus.get(uuid)
            return [] if ring is None or self._now is None else ring.history(column, self._now - seconds)

    def memory_history(self, server: str, uuid: str, seconds: float = RING_SECONDS) -> list[tuple[float, float]]:
        """(monotonic time, bytes) that a server held on a GPU."""
        with self._lock:
            tenant = self._homes.get(server, {}).get(uuid)
            if tenant is None or self._now is None:
                return []
            return tenant.ring.history("memory_used_bytes", self._now - seconds)

    def between(self, server: str, begin: float, end: float) -> Windowed:
        """The server's :meth:`ServerTracker.between` with its VRAM peaks (contention is not kept for the past).

        :raises KeyError: for an unknown server
        """
        with self._lock:
            base = self._servers[server].between(begin, end)
            peaks = {}
            for uuid, tenant in self._homes.get(server, {}).items():
                most = peak(tenant.ring["memory_used_bytes"], tenant.ring.since(begin), tenant.ring.since(end))
                if most is not None:
                    peaks[uuid] = most
            absent = {} if peaks else {"gpu_memory_peak": "no_samples"}
            return replace(base, gpu_memory_peak=peaks, absent=MappingProxyType({**base.absent, **absent}))

    def homes(self, server: str) -> tuple[str, ...]:
        """UUIDs of the GPUs on which the server was seen in the last 15 minutes."""
        with self._lock:
            return tuple(self._homes.get(server, {}))

    def memory_table(self, server: str, uuid: str, since: float) -> tuple[Sequence[float], Sequence[float]]:
        """(times, bytes) of the NVML ticks after ``since``; NaN = not known."""
        with self._lock:
            tenant = self._homes.get(server, {}).get(uuid)
            if tenant is None:
                return (), ()
            _, times, (values,) = tenant.ring.table(("memory_used_bytes",), since)
            return times, values

    def size(self) -> int:
        """Bytes of the packed history of GPUs and tenants (servers count their own)."""
        tenants = (tenant for there in self._tenants.values() for tenant in there.values())
        return sum(ring.size() for ring in self._gpus.values()) + sum(tenant.ring.size() for tenant in tenants)

    def _forget(self, before: float) -> None:
        """Drop tenants that were last seen before the ring's reach."""
        for uuid, there in self._tenants.items():
            for server in [server for server, tenant in there.items() if tenant.seen < before]:
                del there[server]
                del self._homes[server][uuid]

    def _complete(self, base: Windowed, server: str, seconds: float) -> Windowed:
        now = self._now
        if now is None:
            return base
        peaks: dict[str, float] = {}
        shared: dict[str, Contention] = {}
        absent: dict[str, str] = {}
        for uuid, tenant in self._homes.get(server, {}).items():
            begin, end = tenant.ring.since(now - seconds), len(tenant.ring)
            most = peak(tenant.ring["memory_used_bytes"], begin, end)
            if most is None:
                absent[f"gpu_memory_peak[{uuid}]"] = "no_samples" if begin == end else "not_known"
            else:
                peaks[uuid] = most
            if tenant.seen > now - TENANT_SECONDS:
                found = self._shared(uuid, seconds, now).get(server)
                if found is not None:
                    shared[uuid] = found
        if not peaks and not absent:
            absent["gpu_memory_peak"] = "not_attributed"
        return replace(
            base,
            gpu_memory_peak=peaks,
            contention=shared,
            absent=MappingProxyType({**base.absent, **absent}),
        )

    def _shared(self, uuid: str, seconds: float, now: float) -> dict[str, Contention]:
        """Contention of all servers on a GPU, worked out once per tick of the host."""
        cached = self._contention.get((uuid, seconds))
        if cached is not None and cached[0] == self._tick:
            return cached[1]
        tenants = [
            (name, self._servers[name], tenant)
            for name, tenant in self._tenants[uuid].items()
            if name in self._servers and tenant.seen > now - TENANT_SECONDS
        ]
        # Samples of different servers come at different moments: everybody is known up to the oldest of the newest.
        newest = [tracker.sampled for _, tracker, _ in tenants if tracker.sampled is not None]
        horizon = min([at for at in newest if at > now - LAG_SECONDS], default=now)
        first, stop = axis.slot_after(now - seconds), axis.slot_after(horizon)
        busy = []
        computed = []
        cells = []
        for _, tracker, tenant in tenants:
            its_busy, its_computed, its_cells = tracker.slots(first, stop)
            busy.append(its_busy)
            computed.append(its_computed | tenant.computed.window(first, stop))
            cells.append(its_cells)
        found = {
            name: axis.contention(its_busy, other, its_cells, first, stop)
            for (name, _, _), its_busy, other, its_cells in zip(
                tenants, busy, axis.others(computed), cells, strict=True
            )
        }
        if len(found) == 1:
            found = {name: Contention(ratio=None, reason="alone_on_gpu") for name in found}
        self._contention[uuid, seconds] = (self._tick, found)
        return found


def _or_nan(value: float | None) -> float:
    return nan if value is None else float(value)
