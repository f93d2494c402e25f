"""One NVML tick: all GPUs and MIG instances to a :class:`NvmlReading`.  Synchronous; one thread at a time.

The NVML binding comes in as an argument (``api``: the module ``pynvml`` or a fake of it), so this module imports none.
Facts that the code relies on:

* memory v2: total = reserved + used + free (used is allocated memory only); v1: total = used + free;
* the unversioned process calls are ``_v3`` and raise NVMLLibraryMismatchError (a plain Exception) on older libraries;
* early 535 drivers have 32-byte process entries, all others 24: with the wrong pair every second entry is garbage;
* "no value" for a process's memory is None, 2^64-1 or 2^64, never 0;
* MIG memory belongs to the GPU instance and is shared by its compute instances.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from vllmeter.gpu import reasons
from vllmeter.snapshot import GpuProcess, GpuReading, NvmlReading

log = logging.getLogger(__name__)

NO_INSTANCE: Final = 0xFFFFFFFF
SENTINELS: Final = frozenset({(1 << 64) - 1, 1 << 64})
PID_LIMIT: Final = 1 << 22
"""Largest value of the kernel's pid_max; a larger "pid" comes from a wrong structure layout."""

ENUMERATE_EVERY: Final = 30.0
SLOW_EVERY: Final = 10.0
"""Seconds between readings of what changes rarely or may be slow (ECC counts, power limit)."""

BACK_OFF: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
UTILIZATION_WINDOW: Final = 2.0
"""Seconds back that samples of SM use are asked for; the driver samples several times a second."""
UTILIZATION_EVERY: Final = 2.0
"""Seconds between two of these questions.  With three processes on an H200 one costs the driver 1.4 ms of CPU, as much
as everything else of NVML together; a new process is asked for at once."""

RETRY_REFUSED: Final = 300.0
"""Seconds after which a refused call (no permission) is tried again."""

THROTTLE: Final[Mapping[str, int]] = MappingProxyType(
    {
        "applications_clocks_setting": 0x2,
        "sw_power_cap": 0x4,
        "hw_slowdown": 0x8,
        "sync_boost": 0x10,
        "sw_thermal_slowdown": 0x20,
        "hw_thermal_slowdown": 0x40,
        "hw_power_brake_slowdown": 0x80,
        "display_clock_setting": 0x100,
    }
)
"""Bits of nvmlClocksEventReasons; GpuIdle (0x1) holds nothing down and is left out."""

_CLOCKS: Final = (("sm", "NVML_CLOCK_SM", 1), ("memory", "NVML_CLOCK_MEM", 2))
_LISTS: Final = (("compute", "Compute"), ("graphics", "Graphics"), ("mps", "MPSCompute"))
_REMEMBERED: Final = frozenset({reasons.NOT_SUPPORTED, reasons.FUNCTION_NOT_FOUND})
_DRIVER_WIDE: Final = frozenset({reasons.DRIVER_NOT_LOADED, reasons.LIB_RM_VERSION_MISMATCH})
_DEVICE_DOWN: Final = frozenset({reasons.GPU_IS_LOST, reasons.RESET_REQUIRED, reasons.OPERATING_SYSTEM})


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that gave no value."""

    code: int

    @property
    def words(self) -> str:
        """For ``absent``."""
        return reasons.explain(reasons.slug(self.code))


class DriverDown(Exception):  # noqa: N818  # a state of the driver, told to the caller
    """NVML as a whole cannot be used now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Uninitialized(Exception):  # noqa: N818
    pass


class _Stale(Exception):  # noqa: N818
    pass


@dataclass(slots=True)
class _Slow:
    """Values read every SLOW_EVERY seconds."""

    at: float
    power_limit: float | None = None
    ecc: Mapping[str, int] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _SmUse:
    """SM use by process as it was last asked for, or why it is not known."""

    at: float
    pids: frozenset[int]
    ratios: Mapping[int, float]
    unknown: str | None = None

    def stands(self, at: float, pids: frozenset[int]) -> bool:
        """Whether it need not be asked for again; ticks come a little early or late."""
        return at - self.at < UTILIZATION_EVERY - 0.1 and pids <= self.pids


@dataclass(slots=True)
class _Device:
    index: int
    handle: Any
    uuid: str
    name: str = ""
    bus_id: str | None = None
    failure: Failure | None = None
    mig: bool | None = None
    instances: list[_Instance] = field(default_factory=list)
    permanent: dict[str, Failure] = field(default_factory=dict)
    refused: dict[str, tuple[float, Failure]] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    list_version: dict[str, str] = field(default_factory=dict)
    memory_v1: bool = False
    slow: _Slow | None = None
    xid: tuple[int, float] | None = None
    """the last XID, and the Unix time of the tick that read it"""
    xid_failure: Failure | None = None
    newest_sample: dict[int, tuple[int, float]] = field(default_factory=dict)
    sm_use: _SmUse | None = None
    """pid -> (timestamp of its newest sample, monotonic time when it was first seen)"""


@dataclass(slots=True)
class _Instance:
    """One MIG GPU instance with the handles of its compute instances."""

    gi: int
    uuid: str
    handles: list[Any]
    names: list[str] = field(default_factory=list)


class NvmlReader:
    """Reads NVML through ``api``.  Not thread-safe: use it from one thread (see :mod:`vllmeter.gpu.nvml`)."""

    def __init__(
        self,
        api: Any,
        *,
        graphics: bool = True,
        meminfo: Callable[[], str] | None = None,
        perf_counter: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._api = api
        self._graphics = graphics
        self._meminfo = meminfo
        self._perf_counter = perf_counter
        self._ready = False
        self._failures = 0
        self._next_try = float("-inf")
        self._down_reason = "starting"
        self._devices: list[_Device] = []
        self._xids: dict[str, tuple[int, float]] = {}
        self._enumerated = float("-inf")
        self._driver_version: str | None = None
        self._cuda_version: str | None = None
        self._events: Any = None
        self._said: set[tuple[str, str]] = set()
        self._at = 0.0
        mismatch = getattr(api, "NVMLLibraryMismatchError", None)
        self._mismatch: tuple[type[BaseException], ...] = (mismatch,) if mismatch else ()

    # ------------------------------------------------------------------ one tick

    def read(self, at: float, wall: float) -> NvmlReading:
        """All GPUs now.  Never raises for what NVML does; ``up=False`` with a reason instead."""
        begun = self._perf_counter()
        self._at = at
        try:
            if not self._ready:
                self._start()
            gpus = self._all(at, wall)
        except DriverDown as down:
            return NvmlReading(at, wall, up=False, reason=down.reason, duration_seconds=self._perf_counter() - begun)
        except (_Uninitialized, _Stale):
            reason = self._down("uninitialized").reason
            return NvmlReading(at, wall, up=False, reason=reason, duration_seconds=self._perf_counter() - begun)
        return NvmlReading(
            at,
            wall,
            up=True,
            reason=self._partial_reason(gpus),
            gpus=tuple(gpus),
            driver_version=self._driver_version,
            cuda_version=self._cuda_version,
            duration_seconds=self._perf_counter() - begun,
        )

    def close(self) -> None:
        """Shut NVML down (the driver stays free for module unload, GPU reset and MIG changes)."""
        if not self._ready:
            return
        self._ready = False
        self._free_events()
        self._devices = []
        self._try("nvmlShutdown")

    @property
    def down_reason(self) -> str | None:
        """Why NVML is down now; None while it works."""
        return None if self._ready else self._down_reason

    # ------------------------------------------------------------------ calls

    def _try(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call ``name``; its value, or a :class:`Failure`.  Bindings differ: a missing function is code 13."""
        function = getattr(self._api, name, None)
        if function is None:
            return Failure(reasons.FUNCTION_NOT_FOUND)
        try:
            return function(*args, **kwargs)
        except self._api.NVMLError as error:
            code = getattr(error, "value", None)
            return Failure(code if isinstance(code, int) else reasons.UNKNOWN)
        except self._mismatch:
            return Failure(reasons.FUNCTION_NOT_FOUND)
        except (TypeError, ValueError, AttributeError, UnicodeError) as error:
            # Bugs of old wrappers (None assigned to a C integer, undecodable names): no value, and no crash
            log.debug("%s: %r", name, error)
            return Failure(reasons.BINDING_BUG)

    def _ask(self, device: _Device, name: str, *args: Any, key: str = "", **kwargs: Any) -> Any:
        """As :meth:`_try` for one device: what it never supports is asked once, what is refused rarely again."""
        memo = name + key
        known = device.permanent.get(memo)
        if known is not None:
            return known
        refused = device.refused.get(memo)
        if refused is not None and self._at - refused[0] < RETRY_REFUSED:
            return refused[1]
        result = self._try(name, *args, **kwargs)
        if not isinstance(result, Failure):
            device.stale.discard(memo)
        else:
            if result.code == reasons.UNINITIALIZED:
                raise _Uninitialized
            if result.code == reasons.INVALID_ARGUMENT and memo not in device.stale and self._enumerated != self._at:
                # Handles go stale when MIG instances or GPUs change: look everything up again, once per call
                device.stale.add(memo)
                raise _Stale
            if result.code in _DRIVER_WIDE:
                raise self._down(reasons.slug(result.code))
            if result.code in _REMEMBERED:
                device.permanent[memo] = result
            elif result.code == reasons.NO_PERMISSION:
                device.refused[memo] = (self._at, result)
            elif result.code not in (0, reasons.NOT_FOUND, reasons.TIMEOUT):
                self._say_once(device.uuid, memo, result)
        return result

    def _say_once(self, uuid: str, call: str, failure: Failure) -> None:
        if (uuid, call) not in self._said:
            self._said.add((uuid, call))
            log.warning("NVML %s on %s: %s", call, uuid, failure.words)

    # ------------------------------------------------------------------ start, failure, recovery

    def _start(self) -> None:
        if self._at < self._next_try:
            raise DriverDown(self._down_reason)
        result = self._try("nvmlInit")
        if isinstance(result, Failure):
            raise self._down(reasons.slug(result.code))
        self._ready = True
        self._read_system()
        self._enumerate()
        if self._failures or self._down_reason != "starting":
            log.info("NVML works again")
        self._failures = 0
        self._down_reason = "starting"

    def _read_system(self) -> None:
        driver = self._try("nvmlSystemGetDriverVersion")
        self._driver_version = None if isinstance(driver, Failure) else _text(driver)
        cuda = self._try("nvmlSystemGetCudaDriverVersion_v2")
        if isinstance(cuda, Failure):
            cuda = self._try("nvmlSystemGetCudaDriverVersion")
        # 13000 = 13.0, 12040 = 12.4
        self._cuda_version = None if isinstance(cuda, Failure) else f"{cuda // 1000}.{cuda % 1000 // 10}"

    def _down(self, reason: str) -> DriverDown:
        """Leave NVML and set the time of the next attempt; growing pauses, logged once per reason."""
        if self._ready:
            self._ready = False
            self._free_events()
            self._devices = []
            self._try("nvmlShutdown")
        if reason != self._down_reason or self._failures == 0:
            log.warning("NVML is down: %s", reasons.explain(reason))
        self._down_reason = reason
        self._next_try = self._at + BACK_OFF[min(self._failures, len(BACK_OFF) - 1)]
        self._failures += 1
        return DriverDown(reason)

    def _all(self, at: float, wall: float) -> list[GpuReading]:
        for attempt in (1, 2):
            try:
                if at - self._enumerated >= ENUMERATE_EVERY:
                    self._enumerate()
                gpus: list[GpuReading] = []
                self._read_events(wall)
                for device in self._devices:
                    gpus.extend(self._read_device(device, at, wall))
            except _Uninitialized:
                # Somebody in this process shut NVML down: once more
                if attempt == 2:
                    raise self._down("uninitialized") from None
                self._ready = False
                self._start()
            except _Stale:
                if attempt == 2:
                    raise self._down("stale_handle") from None
                self._enumerate()
            else:
                if self._devices and all(
                    device.failure is not None and device.failure.code == reasons.UNKNOWN for device in self._devices
                ):
                    raise self._down("unknown_error")
                return gpus
        raise AssertionError("unreachable")

    def _partial_reason(self, gpus: list[GpuReading]) -> str | None:
        if not self._devices:
            return "no_gpu"
        for device in self._devices:
            if device.failure is not None:
                return reasons.slug(device.failure.code)
        for gpu in gpus:
            if gpu.processes is None and not (gpu.mig_mode and gpu.gpu_instance is None):
                return "processes_unreadable"
            if gpu.processes and all(process.used_bytes is None for process in gpu.processes):
                return "process_memory_unavailable"
        return None

    # ------------------------------------------------------------------ enumeration

    def _enumerate(self) -> None:
        """Look all devices up again; what is remembered about a device survives when its UUID is the same."""
        count = self._try("nvmlDeviceGetCount")
        if isinstance(count, Failure):
            if count.code == reasons.UNINITIALIZED:
                raise _Uninitialized
            if count.code != reasons.GPU_NOT_FOUND:
                raise self._down(reasons.slug(count.code))
            count = 0
        before = {device.uuid: device for device in self._devices}
        by_index = {device.index: device for device in self._devices}
        devices: list[_Device] = []
        for index in range(count):
            devices.append(self._look_up(index, before, by_index.get(index)))
        self._devices = devices
        self._enumerated = self._at
        if {device.uuid for device in devices} != set(before) or self._events is None:
            self._register_events()

    def _look_up(self, index: int, before: Mapping[str, _Device], last: _Device | None) -> _Device:
        handle = self._try("nvmlDeviceGetHandleByIndex", index)
        uuid = Failure(reasons.UNKNOWN) if isinstance(handle, Failure) else self._try("nvmlDeviceGetUUID", handle)
        failure = handle if isinstance(handle, Failure) else uuid if isinstance(uuid, Failure) else None
        if failure is not None:
            if failure.code == reasons.UNINITIALIZED:
                raise _Uninitialized
            if failure.code in _DRIVER_WIDE:
                raise self._down(reasons.slug(failure.code))
            # This one GPU only; its identity stays where it was known
            lost = _Device(index, None, last.uuid if last else f"index-{index}", last.name if last else "")
            lost.bus_id = last.bus_id if last else None
            lost.failure = failure
            lost.xid = self._xids.get(lost.uuid)
            self._say_once(lost.uuid, "nvmlDeviceGetHandleByIndex", failure)
            return lost
        text = _text(uuid)
        device = before.get(text)
        if device is None or device.failure is not None:
            device = _Device(index, handle, text)
            device.xid = self._xids.get(text)
        device.index, device.handle = index, handle
        name = self._ask(device, "nvmlDeviceGetName", handle)
        device.name = "" if isinstance(name, Failure) else _text(name)
        pci = self._ask(device, "nvmlDeviceGetPciInfo", handle)
        device.bus_id = None if isinstance(pci, Failure) else _text(pci.busId)
        mode = self._ask(device, "nvmlDeviceGetMigMode", handle)
        device.mig = None if isinstance(mode, Failure) else bool(mode[0])
        device.instances = self._instances(device) if device.mig else []
        return device

    def _instances(self, device: _Device) -> list[_Instance]:
        """The GPU instances of a MIG GPU; destroyed ones answer NOT_FOUND or INVALID_ARGUMENT and are skipped."""
        limit = self._ask(device, "nvmlDeviceGetMaxMigDeviceCount", device.handle)
        found: dict[int, _Instance] = {}
        for index in range(0 if isinstance(limit, Failure) else limit):
            handle = self._try("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, index)
            if isinstance(handle, Failure):
                continue
            gi = self._try("nvmlDeviceGetGpuInstanceId", handle)
            uuid = self._try("nvmlDeviceGetUUID", handle)
            if isinstance(gi, Failure) or isinstance(uuid, Failure):
                continue
            instance = found.setdefault(gi, _Instance(gi, _text(uuid), []))
            instance.handles.append(handle)
            name = self._try("nvmlDeviceGetName", handle)
            if not isinstance(name, Failure):
                instance.names.append(_text(name))
        return [found[gi] for gi in sorted(found)]

    # ------------------------------------------------------------------ XID events

    def _register_events(self) -> None:
        self._free_events()
        events = self._try("nvmlEventSetCreate")
        if isinstance(events, Failure):
            for device in self._devices:
                device.xid_failure = events
            return
        kind = getattr(self._api, "nvmlEventTypeXidCriticalError", 0x8)
        for device in self._devices:
            if device.handle is not None:
                done = self._ask(device, "nvmlDeviceRegisterEvents", device.handle, kind, events)
                device.xid_failure = done if isinstance(done, Failure) else None
        self._events = events

    def _free_events(self) -> None:
        if self._events is not None:
            self._try("nvmlEventSetFree", self._events)
            self._events = None

    def _read_events(self, wall: float) -> None:
        """Take what has come since the last tick; never waits."""
        if self._events is None:
            return
        for _ in range(32):
            event = self._try("nvmlEventSetWait_v2", self._events, 0)
            if isinstance(event, Failure):
                if event.code == reasons.UNINITIALIZED:
                    raise _Uninitialized
                return
            uuid = self._try("nvmlDeviceGetUUID", event.device)
            if isinstance(uuid, Failure):
                continue
            text = _text(uuid)
            self._xids[text] = (int(event.eventData), wall)
            for device in self._devices:
                if device.uuid == text:
                    device.xid = self._xids[text]
                    log.warning("XID %d on GPU %d (%s)", device.xid[0], device.index, device.uuid)

    # ------------------------------------------------------------------ one device

    def _read_device(self, device: _Device, at: float, wall: float) -> list[GpuReading]:
        """The rows of one GPU: itself and its MIG instances.  A GPU that is lost half-way has no values at all."""
        rows = [] if device.handle is None or device.failure is not None else self._rows(device, at, wall)
        if device.failure is not None or not rows:
            return [self._nothing(device, device.failure.words if device.failure else "not there")]
        return rows

    def _rows(self, device: _Device, at: float, wall: float) -> list[GpuReading]:
        absent: dict[str, str] = {}
        if device.mig:
            memory = _Memory(None, None, None, None, unified=False)
            words = "MIG is on: memory and processes are read per GPU instance"
            for name in _MEMORY_FIELDS:
                absent[name] = words
            absent["processes"] = words
            processes: tuple[GpuProcess, ...] | None = None
        else:
            # Back to back, so that Σ processes and used belong to one moment
            memory = self._memory(device, device.handle, absent, unify=True)
            processes = self._processes(device, [device.handle], memory.total, absent)
        if processes:
            processes = self._with_utilization(device, processes, at, wall, absent)
        rows = [self._gpu(device, memory, processes, absent, at)]
        rows.extend(self._read_instance(device, instance) for instance in device.instances)
        return rows

    def _nothing(self, device: _Device, words: str) -> GpuReading:
        fields = (*_MEMORY_FIELDS, *_DEVICE_FIELDS, "processes")
        absent = dict.fromkeys(fields, words)
        code, seen = device.xid or (None, None)
        return GpuReading(
            device.index,
            device.uuid,
            device.name,
            bus_id=device.bus_id,
            xid_last=code,
            xid_last_at=seen,
            absent=absent,
        )

    def _read_instance(self, device: _Device, instance: _Instance) -> GpuReading:
        absent = dict.fromkeys(_DEVICE_FIELDS, "not given per MIG instance; see the whole GPU")
        memory = self._memory(device, instance.handles[0], absent, unify=False, key=f"@{instance.gi}")
        processes = self._processes(device, instance.handles, memory.total, absent, key=f"@{instance.gi}")
        return GpuReading(
            device.index,
            instance.uuid,
            instance.names[0] if instance.names else device.name,
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            memory_free_bytes=memory.free,
            memory_reserved_bytes=memory.reserved,
            processes=processes,
            mig_parent_uuid=device.uuid,
            mig_mode=True,
            bus_id=device.bus_id,
            absent=absent,
            gpu_instance=instance.gi,
        )

    def _gpu(
        self,
        device: _Device,
        memory: _Memory,
        processes: tuple[GpuProcess, ...] | None,
        absent: dict[str, str],
        at: float,
    ) -> GpuReading:
        handle = device.handle

        def value(field_name: str, call: str, *args: Any, factor: float = 1.0) -> float | None:
            result = self._ask(device, call, handle, *args, key=str(args))
            if isinstance(result, Failure):
                self._device_failure(device, result)
                absent[field_name] = result.words
                return None
            return float(result) * factor

        rates = self._ask(device, "nvmlDeviceGetUtilizationRates", handle)
        utilization = bandwidth = None
        if isinstance(rates, Failure):
            absent["utilization_ratio"] = absent["memory_bandwidth_utilization_ratio"] = rates.words
        else:
            utilization, bandwidth = rates.gpu / 100, rates.memory / 100
        power = value("power_watts", "nvmlDeviceGetPowerUsage", factor=1e-3)
        temperature = value(
            "temperature_celsius", "nvmlDeviceGetTemperature", getattr(self._api, "NVML_TEMPERATURE_GPU", 0)
        )
        clocks: dict[str, float] = {}
        for domain, constant, default in _CLOCKS:
            hertz = value("clock_hertz", "nvmlDeviceGetClockInfo", getattr(self._api, constant, default), factor=1e6)
            if hertz is not None:
                clocks[domain] = hertz
        throttle = self._throttle(device, absent)
        slow = self._slow(device, at)
        absent.update(slow.absent)
        if device.xid is None:
            absent["xid_last"] = (
                device.xid_failure.words if device.xid_failure else "no XID error since this exporter started"
            )
        return GpuReading(
            device.index,
            device.uuid,
            device.name,
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            memory_free_bytes=memory.free,
            memory_reserved_bytes=memory.reserved,
            processes=processes,
            utilization_ratio=utilization,
            memory_bandwidth_utilization_ratio=bandwidth,
            power_watts=power,
            power_limit_watts=slow.power_limit,
            temperature_celsius=temperature,
            clock_hertz=clocks,
            throttle=throttle,
            ecc_errors=slow.ecc,
            xid_last=device.xid[0] if device.xid else None,
            xid_last_at=device.xid[1] if device.xid else None,
            mig_mode=device.mig,
            unified_memory=memory.unified,
            bus_id=device.bus_id,
            absent=absent,
        )

    def _device_failure(self, device: _Device, failure: Failure) -> None:
        """A lost GPU is lost for every call, until it is looked up again."""
        if failure.code in _DEVICE_DOWN:
            device.failure = failure

    def _throttle(self, device: _Device, absent: dict[str, str]) -> dict[str, bool]:
        bits = self._ask(device, "nvmlDeviceGetCurrentClocksEventReasons", device.handle)
        if isinstance(bits, Failure):
            bits = self._ask(device, "nvmlDeviceGetCurrentClocksThrottleReasons", device.handle)
        if isinstance(bits, Failure):
            absent["throttle"] = bits.words
            return {}
        return {name: bool(bits & bit) for name, bit in THROTTLE.items()}

    def _slow(self, device: _Device, at: float) -> _Slow:
        if device.slow is not None and at - device.slow.at < SLOW_EVERY:
            return device.slow
        slow = _Slow(at)
        limit = self._ask(device, "nvmlDeviceGetEnforcedPowerLimit", device.handle)
        if isinstance(limit, Failure):
            slow.absent["power_limit_watts"] = limit.words
        else:
            slow.power_limit = limit / 1000
        counts: dict[str, int] = {}
        for kind, error_type in (("corrected", 0), ("uncorrected", 1)):
            count = self._ask(device, "nvmlDeviceGetTotalEccErrors", device.handle, error_type, 0, key=kind)
            if isinstance(count, Failure):
                slow.absent["ecc_errors"] = count.words
            else:
                counts[kind] = int(count)
        slow.ecc = counts
        device.slow = slow
        return slow

    # ------------------------------------------------------------------ memory

    def _memory(self, device: _Device, handle: Any, absent: dict[str, str], *, unify: bool, key: str = "") -> _Memory:
        if not device.memory_v1:
            version = getattr(self._api, "nvmlMemory_v2", None)
            result: Any = Failure(reasons.FUNCTION_NOT_FOUND)
            if version is not None:
                result = self._ask(device, "nvmlDeviceGetMemoryInfo", handle, version=version, key="v2" + key)
            if not isinstance(result, Failure) and result.total > 0:
                return self._memory_v2(device, result, absent)
            if isinstance(result, Failure):
                self._device_failure(device, result)
                if result.code in (reasons.FUNCTION_NOT_FOUND, reasons.ARGUMENT_VERSION_MISMATCH):
                    device.memory_v1 = True
                    log.info("GPU %d: NVML has no memory v2; used includes what the driver reserves", device.index)
        result = self._ask(device, "nvmlDeviceGetMemoryInfo", handle, key="v1" + key)
        if not isinstance(result, Failure) and result.total > 0:
            absent["memory_reserved_bytes"] = "only memory v1 here: used includes what the driver reserves"
            return _Memory(int(result.total), int(result.used), int(result.free), None, unified=False)
        if isinstance(result, Failure):
            self._device_failure(device, result)
            if result.code != reasons.NOT_SUPPORTED or not unify:
                if result.code == reasons.UNKNOWN and unify:
                    device.failure = result
                for name in _MEMORY_FIELDS:
                    absent[name] = result.words
                return _Memory(None, None, None, None, unified=False)
        return self._unified(absent)

    def _memory_v2(self, device: _Device, result: Any, absent: dict[str, str]) -> _Memory:
        total, used, free, reserved = int(result.total), int(result.used), int(result.free), int(result.reserved)
        if abs(total - used - free - reserved) > 2 * 1024 * 1024 and (device.uuid, "identity") not in self._said:
            self._said.add((device.uuid, "identity"))
            log.warning(
                "GPU %d: total %d is not used %d + free %d + reserved %d", device.index, total, used, free, reserved
            )
        return _Memory(total, used, free, reserved, unified=False)

    def _unified(self, absent: dict[str, str]) -> _Memory:
        """Integrated GPUs (GB10, Jetson) share the host's memory: /proc/meminfo stands in, and the row is marked."""
        absent["memory_reserved_bytes"] = "unified memory: taken from /proc/meminfo"
        try:
            text = self._meminfo() if self._meminfo is not None else ""
        except OSError:
            text = ""
        facts = {}
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                facts[name] = int(words[0]) * 1024
        total, free = facts.get("MemTotal"), facts.get("MemAvailable")
        if total is None or free is None:
            for name in _MEMORY_FIELDS:
                absent[name] = "unified memory, and /proc/meminfo could not be read"
            return _Memory(None, None, None, None, unified=True)
        return _Memory(total, total - free, free, None, unified=True)

    # ------------------------------------------------------------------ processes

    def _processes(
        self, device: _Device, handles: list[Any], total: int | None, absent: dict[str, str], key: str = ""
    ) -> tuple[GpuProcess, ...] | None:
        """Union of the compute, graphics and MPS lists, each process once per (pid, GPU and compute instance).

        The compute list must be readable; the others may be missing (old drivers, MIG).
        """
        merged: dict[tuple[int, int | None, int | None], GpuProcess] = {}
        for kind, word in _LISTS:
            if kind == "graphics" and not self._graphics:
                continue
            for handle in handles:
                entries = self._list(device, handle, word, total, key)
                if isinstance(entries, Failure):
                    if kind == "compute":
                        absent["processes"] = entries.words
                        return None
                    continue
                if entries is None:
                    absent["processes"] = "the list has a layout that this nvidia-ml-py does not know; update it"
                    return None
                for pid, used, gi, ci in entries:
                    known = merged.get((pid, gi, ci))
                    if known is None:
                        merged[pid, gi, ci] = GpuProcess(pid, used, frozenset({kind}), gi, ci)
                    else:
                        # The lists describe one process twice (C+G, M+C): never add them
                        best = known.used_bytes if used is None else max(used, known.used_bytes or 0)
                        merged[pid, gi, ci] = GpuProcess(pid, best, known.kinds | {kind}, gi, ci)
        return tuple(merged[place] for place in sorted(merged, key=lambda place: (place[0], str(place[1:]))))

    def _list(
        self, device: _Device, handle: Any, word: str, total: int | None, key: str
    ) -> list[tuple[int, int | None, int | None, int | None]] | Failure | None:
        """One list by the newest call that works: _v3, _v2, v1.  None = the layout is garbage whatever is asked."""
        base = f"nvmlDeviceGet{word}RunningProcesses"
        versions = ("_v3", "_v2", "")
        start = device.list_version.get(word + key, "_v3")
        result: Any = Failure(reasons.FUNCTION_NOT_FOUND)
        garbage = False
        for version in versions[versions.index(start) :]:
            result = self._ask(device, base + version, handle, key=key)
            if isinstance(result, Failure) and result.code == reasons.INSUFFICIENT_SIZE:
                result = self._try(base + version, handle)  # the list grew between the two calls inside
            if isinstance(result, Failure):
                if result.code in (reasons.FUNCTION_NOT_FOUND, reasons.ARGUMENT_VERSION_MISMATCH):
                    continue
                if result.code == 0:
                    # Some wrappers raise SUCCESS for "no processes"
                    return []
                if result.code == reasons.NOT_FOUND:
                    return []
                self._device_failure(device, result)
                return result
            # Only _v3 ever had two layouts; an entry without pid in the others is just dropped
            if _is_garbage(result, total, zero_pid=version == "_v3"):
                garbage = True
                continue
            device.list_version[word + key] = version
            return [_entry(item) for item in result if item.pid]
        if garbage:
            return None
        return result if isinstance(result, Failure) else Failure(reasons.FUNCTION_NOT_FOUND)

    def _with_utilization(
        self,
        device: _Device,
        processes: tuple[GpuProcess, ...],
        at: float,
        wall: float,
        absent: dict[str, str],
    ) -> tuple[GpuProcess, ...]:
        """Add SM use per process.  A process without a sample in the window ran nothing there: 0, not unknown."""
        pids = frozenset(process.pid for process in processes)
        use = device.sm_use
        if use is None or not use.stands(at, pids):
            use = device.sm_use = self._sm_use(device, pids, at, wall)
        if use.unknown is not None:
            absent["sm_utilization_ratio"] = use.unknown
            return processes
        return tuple(
            GpuProcess(
                process.pid,
                process.used_bytes,
                process.kinds,
                process.gpu_instance,
                process.compute_instance,
                use.ratios.get(process.pid, 0.0),
            )
            for process in processes
        )

    def _sm_use(self, device: _Device, pids: frozenset[int], at: float, wall: float) -> _SmUse:
        since = max(0, int((wall - UTILIZATION_WINDOW) * 1e6))
        samples = self._ask(device, "nvmlDeviceGetProcessUtilization", device.handle, since)
        if isinstance(samples, Failure):
            if samples.code not in (reasons.NOT_FOUND, 0):
                return _SmUse(at, pids, {}, samples.words)
            samples = []
        newest: dict[int, tuple[int, int]] = {}
        for sample in samples:
            stamp, sm = int(sample.timeStamp), int(sample.smUtil)
            if sm > 100 or stamp > (wall + 1.0) * 1e6:
                continue  # garbage, or the clock was set back
            if sample.pid not in newest or stamp > newest[sample.pid][0]:
                newest[sample.pid] = (stamp, sm)
        seen: dict[int, tuple[int, float]] = {}
        ratios: dict[int, float] = {}
        for pid, (stamp, sm) in newest.items():
            known = device.newest_sample.get(pid)
            first = known[1] if known is not None and known[0] == stamp else at
            seen[pid] = (stamp, first)
            if at - first <= UTILIZATION_WINDOW:
                ratios[pid] = sm / 100
        device.newest_sample = seen
        return _SmUse(at, pids, ratios)


@dataclass(frozen=True, slots=True)
class _Memory:
    total: int | None
    used: int | None
    free: int | None
    reserved: int | None
    unified: bool


_MEMORY_FIELDS: Final = (
    "memory_total_bytes",
    "memory_used_bytes",
    "memory_free_bytes",
    "memory_reserved_bytes",
)
_DEVICE_FIELDS: Final = (
    "utilization_ratio",
    "memory_bandwidth_utilization_ratio",
    "power_watts",
    "power_limit_watts",
    "temperature_celsius",
    "clock_hertz",
    "throttle",
    "ecc_errors",
)


def _text(value: Any) -> str:
    """Older bindings return bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _instance_id(item: Any, name: str) -> int | None:
    value = getattr(item, name, None)
    return None if value is None or value == NO_INSTANCE else int(value)


def _entry(item: Any) -> tuple[int, int | None, int | None, int | None]:
    used = item.usedGpuMemory
    if used is None or used in SENTINELS:
        used = None
    return int(item.pid), used, _instance_id(item, "gpuInstanceId"), _instance_id(item, "computeInstanceId")


def _is_garbage(items: Any, total: int | None, *, zero_pid: bool) -> bool:
    """True when a list was read with the wrong entry size (32 against 24 bytes): impossible pids or sizes."""
    for item in items:
        used = item.usedGpuMemory
        if item.pid > PID_LIMIT or (item.pid == 0 and zero_pid):
            return True
        if used is None or used in SENTINELS:
            continue
        # Twice the card: under WDDM a process may hold more than the card through system memory
        if total is not None and used > 2 * total:
            return True
    return False
