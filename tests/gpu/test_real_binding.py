"""NVIDIA's own binding (its ctypes wrappers) over a fake library: sentinels, versions and errors as they come."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from vllmeter.gpu.nvml import WatchedGpuSource, load_pynvml
from vllmeter.gpu.reader import NvmlReader

SENTINEL = (1 << 64) - 1
GIB = 1 << 30


def private_copy() -> ModuleType:
    """A second instance of the module, so that its global library handle stays ours."""
    path = load_pynvml().__file__
    assert path is not None
    spec = importlib.util.spec_from_file_location("pynvml_private", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pynvml_private"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["pynvml_private"]
    return module


class FakeLibrary:
    """libnvidia-ml.so.1 as Python functions; arguments arrive as ctypes ``byref`` objects."""

    def __init__(self, rows: list[tuple[int, int]], *, missing: tuple[str, ...] = ()) -> None:
        self.rows = rows
        self.missing = missing

    def __getattr__(self, name: str) -> Any:
        if name in self.missing or name.startswith("__"):
            raise AttributeError(name)
        known = {
            "nvmlInitWithFlags": lambda flags: 0,
            "nvmlShutdown": lambda: 0,
            "nvmlDeviceGetCount_v2": self.count,
            "nvmlDeviceGetHandleByIndex_v2": lambda index, handle: 0,
            "nvmlDeviceGetMemoryInfo_v2": self.memory_v2,
            "nvmlDeviceGetMemoryInfo": self.memory_v1,
            "nvmlDeviceGetComputeRunningProcesses_v3": self.processes,
            "nvmlDeviceGetComputeRunningProcesses_v2": self.processes,
            "nvmlDeviceGetUUID": self.text("GPU-x"),
            "nvmlDeviceGetName": self.text("NVIDIA Fake"),
            "nvmlDeviceGetProcessUtilization": lambda handle, samples, count, since: 0,
        }
        return known.get(name, lambda *arguments: 3)

    @staticmethod
    def count(target: Any) -> int:
        target._obj.value = 1
        return 0

    @staticmethod
    def text(value: str) -> Any:
        def fill(handle: Any, buffer: Any, size: Any) -> int:
            buffer.value = value.encode()
            return 0

        return fill

    @staticmethod
    def memory_v2(handle: Any, target: Any) -> int:
        info = target._obj
        if info.version != 0x02000028:
            return 25
        info.total, info.reserved, info.used, info.free = 8 * GIB, GIB // 4, GIB, 8 * GIB - GIB - GIB // 4
        return 0

    @staticmethod
    def memory_v1(handle: Any, target: Any) -> int:
        info = target._obj
        info.total, info.used, info.free = 8 * GIB, GIB + GIB // 4, 8 * GIB - GIB - GIB // 4
        return 0

    def processes(self, handle: Any, count: Any, rows: Any) -> int:
        if rows is None:
            count._obj.value = len(self.rows)
            return 7 if self.rows else 0
        count._obj.value = len(self.rows)
        for place, (pid, used) in enumerate(self.rows):
            rows[place].pid, rows[place].usedGpuMemory = pid, used
            rows[place].gpuInstanceId = rows[place].computeInstanceId = 0xFFFFFFFF
        return 0


def reader(library: FakeLibrary) -> NvmlReader:
    """A reader over the real wrappers."""
    module = private_copy()
    module.nvmlLib = library  # type: ignore[attr-defined]
    return NvmlReader(module)


def test_real_wrappers_give_memory_v2_and_sentinels() -> None:
    """2^64-1 arrives as None, memory v2 with the right version word, MIG ids as absent."""
    gpu = reader(FakeLibrary([(5, 700), (6, SENTINEL)])).read(1.0, 1.0).gpus[0]
    assert (gpu.uuid, gpu.name) == ("GPU-x", "NVIDIA Fake")
    assert (gpu.memory_used_bytes, gpu.memory_reserved_bytes) == (GIB, GIB // 4)
    assert gpu.processes is not None
    assert [(process.pid, process.used_bytes, process.gpu_instance) for process in gpu.processes] == [
        (5, 700, None),
        (6, None, None),
    ]
    # the real wrapper raises SUCCESS as an error here
    assert {process.sm_utilization_ratio for process in gpu.processes} == {0.0}


def test_real_wrappers_on_an_old_library_fall_back() -> None:
    """Without _v3 the unversioned wrapper raises NVMLLibraryMismatchError; _v2 and memory v1 still work."""
    library = FakeLibrary([(5, 700)], missing=("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2"))
    gpu = reader(library).read(1.0, 1.0).gpus[0]
    assert gpu.processes is not None
    assert [(process.pid, process.used_bytes) for process in gpu.processes] == [(5, 700)]
    assert gpu.memory_used_bytes == GIB + GIB // 4
    assert gpu.memory_reserved_bytes is None


def test_this_machine_starts_with_or_without_the_library() -> None:
    """The real source answers in time and never raises, whatever this machine has."""
    source = WatchedGpuSource(patience=20.0)
    reading = source.read(1.0, 1.0)
    source.close()
    if not reading.up:
        assert reading.reason
        assert reading.gpus == ()


@pytest.mark.gpu
def test_a_real_gpu_reads_within_its_identity() -> None:
    """On a machine with a GPU: total = used + free + reserved."""
    source = WatchedGpuSource(patience=20.0)
    reading = source.read(1.0, 1.0)
    source.close()
    if not reading.up or not reading.gpus:
        pytest.skip(f"no GPU here: {reading.reason}")
    for gpu in reading.gpus:
        if gpu.memory_reserved_bytes is not None:
            assert gpu.memory_total_bytes is not None
            assert gpu.memory_used_bytes is not None
            assert gpu.memory_free_bytes is not None
            total = gpu.memory_used_bytes + gpu.memory_free_bytes + gpu.memory_reserved_bytes
            assert abs(total - gpu.memory_total_bytes) < 4 << 20
