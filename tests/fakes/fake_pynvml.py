"""A fake of the module ``pynvml`` with the quirks that real drivers and bindings have.

Build devices, hand :class:`FakePynvml` to :class:`vllmeter.gpu.reader.NvmlReader` (or put it into ``sys.modules``),
then change the devices between ticks.  Faults are per call: ``device.errors["nvmlDeviceGetPowerUsage"] = 3`` lets that
call fail with code 3, ``fake.errors["nvmlInit"] = 12`` does so for calls without a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

SENTINEL = (1 << 64) - 1
NO_INSTANCE = 0xFFFFFFFF

H200_TOTAL = 150_754_820_096
H200_RESERVED = 644_939_776
H200_UUID = "GPU-83d0d533-5f46-d5ec-464e-6e4f9819bd47"


class NVMLError(Exception):
    """As in pynvml: the code is in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class NVMLLibraryMismatchError(Exception):
    """As in pynvml: a plain Exception, no NVMLError."""


def entry(pid: int, used: int | None, gi: int = NO_INSTANCE, ci: int = NO_INSTANCE) -> SimpleNamespace:
    """One row of a process list as the wrappers return it (``used`` None = the driver does not say)."""
    return SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=gi, computeInstanceId=ci)


def sample(pid: int, stamp_us: int, sm: int) -> SimpleNamespace:
    """One row of nvmlDeviceGetProcessUtilization."""
    return SimpleNamespace(pid=pid, timeStamp=stamp_us, smUtil=sm, memUtil=0, encUtil=0, decUtil=0)


@dataclass
class FakeMig:
    """One MIG device (a compute instance)."""

    uuid: str
    gi: int
    ci: int
    total: int
    used: int
    processes: list[SimpleNamespace] = field(default_factory=list)
    name: str = "NVIDIA H200 MIG 1g.18gb"
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeDevice:
    """One GPU; the defaults are an idle H200."""

    uuid: str = H200_UUID
    name: str | bytes = "NVIDIA H200"
    total: int = H200_TOTAL
    reserved: int = H200_RESERVED
    used: int = 0
    """v2: allocated only"""
    compute: list[SimpleNamespace] = field(default_factory=list)
    graphics: list[SimpleNamespace] = field(default_factory=list)
    mps: list[SimpleNamespace] = field(default_factory=list)
    samples: list[SimpleNamespace] | None = None
    """None = NOT_FOUND ("no samples")"""
    gpu_percent: int = 0
    memory_percent: int = 0
    milliwatts: int = 119_127
    limit_milliwatts: int = 700_000
    celsius: int = 37
    sm_mhz: int = 1980
    memory_mhz: int = 3201
    clock_reasons: int = 0
    ecc: tuple[int, int] = (0, 0)
    mig_mode: int = 0
    migs: list[FakeMig] = field(default_factory=list)
    bus_id: str = "00000000:00:06.0"
    errors: dict[str, int] = field(default_factory=dict)
    lost: bool = False
    lists: Sequence[str] = ("_v3", "_v2", "")
    """versions of the process calls that this library has"""
    v3_layout: Callable[[list[SimpleNamespace]], list[SimpleNamespace]] | None = None
    """turns a list into what a wrong structure layout makes of it"""


class FakePynvml:
    """Looks like the module ``pynvml`` (nvidia-ml-py)."""

    __file__ = "/site-packages/pynvml.py"
    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    nvmlMemory_v2 = 0x02000028  # noqa: N815
    nvmlEventTypeXidCriticalError = 0x8  # noqa: N815
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __init__(
        self,
        devices: Sequence[FakeDevice] = (),
        *,
        driver: str = "580.159.04",
        cuda: int = 13000,
        memory_v2: bool = True,
        mismatch: bool = False,
    ) -> None:
        self.devices = list(devices)
        self.driver = driver
        self.cuda = cuda
        self.memory_v2 = memory_v2
        self.mismatch = mismatch
        """the unversioned and _v3 process calls raise NVMLLibraryMismatchError, as on an old library"""
        self.errors: dict[str, int] = {}
        self.references = 0
        self.calls: list[str] = []
        self.xids: list[tuple[FakeDevice, int]] = []
        self.before_call: Callable[[str], None] | None = None
        """called with the name of each function first: a test may block or change things here"""
        for word, attribute in (("Compute", "compute"), ("Graphics", "graphics"), ("MPSCompute", "mps")):
            for version in ("_v3", "_v2", ""):
                name = f"nvmlDeviceGet{word}RunningProcesses{version}"
                setattr(self, name, self._list_call(name, attribute, version))

    # ------------------------------------------------------------------ helpers

    def _enter(self, name: str, device: FakeDevice | FakeMig | None = None) -> None:
        if self.before_call is not None:
            self.before_call(name)
        self.calls.append(name)
        if name not in ("nvmlInit",) and self.references == 0:
            raise NVMLError(1)
        if name in self.errors:
            raise NVMLError(self.errors[name])
        if device is not None:
            if isinstance(device, FakeDevice):
                if device.lost:
                    raise NVMLError(15)
                if device not in self.devices:
                    raise NVMLError(2)
            elif not any(device in parent.migs for parent in self.devices):
                raise NVMLError(2)
            code = device.errors.get(name, device.errors.get("*"))
            if code is not None:
                raise NVMLError(code)

    def _list_call(self, name: str, attribute: str, version: str) -> Callable[[Any], list[SimpleNamespace]]:
        def call(handle: Any) -> list[SimpleNamespace]:
            self._enter(name, handle)
            if isinstance(handle, FakeMig):
                return list(handle.processes) if attribute == "compute" else []
            if self.mismatch and version in ("_v3", ""):
                raise NVMLLibraryMismatchError("Unversioned function called and the pyNVML version does not match")
            if version not in handle.lists:
                raise NVMLError(13)
            rows = list(getattr(handle, attribute))
            if version in ("_v3", "") and handle.v3_layout is not None:
                rows = handle.v3_layout(rows)
            return rows

        return call

    # ------------------------------------------------------------------ system

    def nvmlInit(self) -> None:
        self._enter("nvmlInit")
        self.references += 1

    def nvmlShutdown(self) -> None:
        self._enter("nvmlShutdown")
        self.references -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._enter("nvmlSystemGetDriverVersion")
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._enter("nvmlSystemGetCudaDriverVersion_v2")
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        self._enter("nvmlDeviceGetCount")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        self._enter("nvmlDeviceGetHandleByIndex")
        device = self.devices[index]
        if device.lost:
            raise NVMLError(15)
        if "nvmlDeviceGetHandleByIndex" in device.errors:
            raise NVMLError(device.errors["nvmlDeviceGetHandleByIndex"])
        return device

    # ------------------------------------------------------------------ one device

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        self._enter("nvmlDeviceGetUUID", handle)
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Any) -> str | bytes:
        self._enter("nvmlDeviceGetName", handle)
        return handle.name

    def nvmlDeviceGetPciInfo(self, handle: FakeDevice) -> SimpleNamespace:
        self._enter("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(busId=handle.bus_id)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> SimpleNamespace:
        name = "nvmlDeviceGetMemoryInfo" if version is None else "nvmlDeviceGetMemoryInfo_v2"
        self._enter(name, handle)
        if isinstance(handle, FakeMig):
            return SimpleNamespace(total=handle.total, used=handle.used, free=handle.total - handle.used, reserved=0)
        allocated, reserved = handle.used, handle.reserved
        free = handle.total - allocated - reserved
        if version is None:
            return SimpleNamespace(total=handle.total, used=allocated + reserved, free=free)
        if not self.memory_v2:
            raise NVMLError(13)
        return SimpleNamespace(total=handle.total, used=allocated, free=free, reserved=reserved, version=version)

    def nvmlDeviceGetProcessUtilization(self, handle: FakeDevice, since: int) -> list[SimpleNamespace]:
        self._enter("nvmlDeviceGetProcessUtilization", handle)
        found = [] if handle.samples is None else [row for row in handle.samples if row.timeStamp > since]
        if handle.samples is None or not found:
            raise NVMLError(6)
        return found

    def nvmlDeviceGetUtilizationRates(self, handle: FakeDevice) -> SimpleNamespace:
        self._enter("nvmlDeviceGetUtilizationRates", handle)
        return SimpleNamespace(gpu=handle.gpu_percent, memory=handle.memory_percent)

    def nvmlDeviceGetPowerUsage(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetPowerUsage", handle)
        return handle.milliwatts

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetEnforcedPowerLimit", handle)
        return handle.limit_milliwatts

    def nvmlDeviceGetTemperature(self, handle: FakeDevice, sensor: int) -> int:
        self._enter("nvmlDeviceGetTemperature", handle)
        assert sensor == self.NVML_TEMPERATURE_GPU
        return handle.celsius

    def nvmlDeviceGetClockInfo(self, handle: FakeDevice, kind: int) -> int:
        self._enter("nvmlDeviceGetClockInfo", handle)
        return {self.NVML_CLOCK_SM: handle.sm_mhz, self.NVML_CLOCK_MEM: handle.memory_mhz}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetCurrentClocksEventReasons", handle)
        return handle.clock_reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return handle.clock_reasons

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeDevice, kind: int, counter: int) -> int:
        self._enter("nvmlDeviceGetTotalEccErrors", handle)
        assert counter == 0, "volatile counts only"
        return handle.ecc[kind]

    def nvmlDeviceGetPcieThroughput(self, handle: FakeDevice, counter: int) -> int:
        raise AssertionError("takes 20 ms: never in a tick")

    # ------------------------------------------------------------------ MIG

    def nvmlDeviceGetMigMode(self, handle: FakeDevice) -> list[int]:
        self._enter("nvmlDeviceGetMigMode", handle)
        return [handle.mig_mode, handle.mig_mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeDevice) -> int:
        self._enter("nvmlDeviceGetMaxMigDeviceCount", handle)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeDevice, index: int) -> FakeMig:
        self._enter("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        if index >= len(handle.migs):
            raise NVMLError(6 if index % 2 else 2)  # both are seen for empty places
        return handle.migs[index]

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeMig) -> int:
        self._enter("nvmlDeviceGetGpuInstanceId", handle)
        return handle.gi

    # ------------------------------------------------------------------ events

    def nvmlEventSetCreate(self) -> object:
        self._enter("nvmlEventSetCreate")
        return object()

    def nvmlDeviceRegisterEvents(self, handle: FakeDevice, kinds: int, events: object) -> None:
        self._enter("nvmlDeviceRegisterEvents", handle)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:
        self._enter("nvmlEventSetWait_v2")
        assert timeout_ms == 0, "a tick never waits"
        if not self.xids:
            raise NVMLError(10)
        device, xid = self.xids.pop(0)
        return SimpleNamespace(device=device, eventType=8, eventData=xid)

    def nvmlEventSetFree(self, events: object) -> None:
        self._enter("nvmlEventSetFree")
