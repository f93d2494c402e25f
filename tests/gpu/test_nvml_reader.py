"""One NVML tick against every quirk of drivers and bindings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.fake_pynvml import (
    H200_RESERVED,
    H200_TOTAL,
    H200_UUID,
    SENTINEL,
    FakeDevice,
    FakeMig,
    FakePynvml,
    entry,
    sample,
)
from vllmeter.gpu.reader import NvmlReader
from vllmeter.snapshot import GpuReading, NvmlReading

GIB = 1 << 30


def three_servers() -> FakeDevice:
    """The H200 of the real recording at its first second: 20,971,520 bytes belong to no process."""
    return FakeDevice(
        used=9_130_999_808,
        compute=[entry(734, 1_356_857_344), entry(795, 1_954_545_664), entry(1137, 5_798_625_280)],
    )


def one(reading: NvmlReading) -> GpuReading:
    """The only row of a reading that must be up."""
    assert reading.up, reading.reason
    assert len(reading.gpus) == 1
    return reading.gpus[0]


def used(gpu: GpuReading) -> dict[int, int | None]:
    """pid -> bytes."""
    assert gpu.processes is not None
    return {process.pid: process.used_bytes for process in gpu.processes}


# --------------------------------------------------------------------------- the normal tick


def test_h200_with_three_servers_reads_every_family() -> None:
    """The readings of the real H200 come out in base units."""
    device = three_servers()
    device.gpu_percent, device.memory_percent, device.clock_reasons, device.ecc = 80, 11, 0x4 | 0x1, (3, 1)
    reading = NvmlReader(FakePynvml([device])).read(1.0, 1796129259.35)
    gpu = one(reading)
    assert (reading.at, reading.wall, reading.reason) == (1.0, 1796129259.35, None)
    assert (reading.driver_version, reading.cuda_version) == ("580.159.04", "13.0")
    assert (gpu.index, gpu.gpu, gpu.uuid, gpu.name) == (0, "0", H200_UUID, "NVIDIA H200")
    assert (gpu.memory_total_bytes, gpu.memory_reserved_bytes) == (H200_TOTAL, H200_RESERVED)
    assert gpu.memory_used_bytes == 9_130_999_808
    assert gpu.memory_free_bytes == 140_978_880_512
    assert used(gpu) == {734: 1_356_857_344, 795: 1_954_545_664, 1137: 5_798_625_280}
    assert (gpu.utilization_ratio, gpu.memory_bandwidth_utilization_ratio) == (0.8, 0.11)
    assert gpu.power_watts == pytest.approx(119.127)
    assert gpu.power_limit_watts == 700.0
    assert gpu.temperature_celsius == 37.0
    assert gpu.clock_hertz == {"sm": 1.98e9, "memory": 3.201e9}
    assert {name for name, active in gpu.throttle.items() if active} == {"sw_power_cap"}
    assert "gpu_idle" not in gpu.throttle
    assert gpu.ecc_errors == {"corrected": 3, "uncorrected": 1}
    assert (gpu.mig_mode, gpu.unified_memory, gpu.bus_id) == (False, False, "00000000:00:06.0")
    assert gpu.xid_last is None
    assert "no XID" in gpu.absent["xid_last"]


def test_memory_and_process_list_are_read_back_to_back() -> None:
    """Nothing is asked between used memory and the compute list, so that their sums belong together."""
    fake = FakePynvml([three_servers()])
    reader = NvmlReader(fake)
    reader.read(1.0, 1.0)
    fake.calls.clear()
    reader.read(2.0, 2.0)
    place = fake.calls.index("nvmlDeviceGetMemoryInfo_v2")
    assert fake.calls[place + 1] == "nvmlDeviceGetComputeRunningProcesses_v3"
    assert "nvmlDeviceGetPcieThroughput" not in fake.calls


def test_bytes_from_old_bindings_are_decoded() -> None:
    """Old bindings return names as bytes."""
    assert one(NvmlReader(FakePynvml([FakeDevice(name=b"Tesla T4")])).read(1.0, 1.0)).name == "Tesla T4"


def test_an_idle_gpu_has_an_empty_list_and_zero_used() -> None:
    """A read, empty list is () and never None; zero used is a real zero."""
    gpu = one(NvmlReader(FakePynvml([FakeDevice()])).read(1.0, 1.0))
    assert gpu.processes == ()
    assert gpu.memory_used_bytes == 0


# --------------------------------------------------------------------------- memory


def test_without_memory_v2_the_old_call_is_used_and_marked() -> None:
    """On an old driver used includes reserved; that is said, and v2 is not asked again."""
    fake = FakePynvml([three_servers()], memory_v2=False)
    reader = NvmlReader(fake)
    gpu = one(reader.read(1.0, 1.0))
    assert gpu.memory_used_bytes == 9_130_999_808 + H200_RESERVED
    assert gpu.memory_reserved_bytes is None
    assert "used includes" in gpu.absent["memory_reserved_bytes"]
    reader.read(2.0, 2.0)
    assert fake.calls.count("nvmlDeviceGetMemoryInfo_v2") == 1


def test_a_binding_without_the_v2_constant_still_works() -> None:
    """nvidia-ml-py 11 knows no nvmlMemory_v2."""
    fake = FakePynvml([three_servers()])
    fake.nvmlMemory_v2 = None  # type: ignore[assignment]
    assert one(NvmlReader(fake).read(1.0, 1.0)).memory_total_bytes == H200_TOTAL


MEMINFO = "MemTotal:       125000000 kB\nMemFree:  1000 kB\nMemAvailable:    60000000 kB\n"


@pytest.mark.parametrize("how", ["not supported", "total 0"])
def test_unified_memory_comes_from_meminfo_and_is_marked(how: str) -> None:
    """GB10 and Jetson say NOT_SUPPORTED or success with total 0; the process list there is real."""
    device = FakeDevice(name="NVIDIA GB10", compute=[entry(7, 3 * GIB)])
    if how == "not supported":
        device.errors = {"nvmlDeviceGetMemoryInfo": 3, "nvmlDeviceGetMemoryInfo_v2": 3}
    else:
        device.total = device.reserved = 0
    gpu = one(NvmlReader(FakePynvml([device]), meminfo=lambda: MEMINFO).read(1.0, 1.0))
    assert gpu.unified_memory
    assert gpu.memory_total_bytes == 125_000_000 * 1024
    assert gpu.memory_used_bytes == 65_000_000 * 1024
    assert gpu.memory_reserved_bytes is None
    assert used(gpu) == {7: 3 * GIB}


def test_unified_memory_without_meminfo_is_absent() -> None:
    """No meminfo, no number: absent with a reason."""
    device = FakeDevice(errors={"nvmlDeviceGetMemoryInfo": 3, "nvmlDeviceGetMemoryInfo_v2": 3})

    def refuse() -> str:
        raise PermissionError("no")

    gpu = one(NvmlReader(FakePynvml([device]), meminfo=refuse).read(1.0, 1.0))
    assert gpu.memory_used_bytes is None
    assert "meminfo" in gpu.absent["memory_used_bytes"]


def test_a_total_that_does_not_add_up_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The v2 identity total = used + free + reserved is checked."""
    fake = FakePynvml([three_servers()])
    real = fake.nvmlDeviceGetMemoryInfo

    def off(handle: FakeDevice, version: int | None = None) -> SimpleNamespace:
        info = real(handle, version)
        info.free -= 64 << 20
        return info

    fake.nvmlDeviceGetMemoryInfo = off  # type: ignore[method-assign]
    reader = NvmlReader(fake)
    reader.read(1.0, 1.0)
    reader.read(2.0, 2.0)
    assert [record.message for record in caplog.records if "is not used" in record.message] != []
    assert sum("is not used" in record.message for record in caplog.records) == 1


# --------------------------------------------------------------------------- process lists


@pytest.mark.parametrize("value", [None, SENTINEL, SENTINEL + 1])
def test_no_value_is_none_and_never_a_number(value: int | None) -> None:
    """WDDM and WSL2: None, 2^64-1 and 2^64 all mean "the driver does not say"."""
    device = FakeDevice(used=7 * GIB, compute=[entry(79, value)])
    reading = NvmlReader(FakePynvml([device])).read(1.0, 1.0)
    assert used(one(reading)) == {79: None}
    assert reading.reason == "process_memory_unavailable"


def test_zero_bytes_of_a_fresh_context_stay_zero() -> None:
    """0 is a value, None is not."""
    assert used(one(NvmlReader(FakePynvml([FakeDevice(compute=[entry(5, 0)])])).read(1.0, 1.0))) == {5: 0}


def test_a_process_in_two_lists_counts_once() -> None:
    """C+G (desktop) and M+C (MPS clients, as the H200 probe shows) are one process each."""
    device = FakeDevice(
        used=2_772_172_800,
        compute=[entry(583, 69_206_016), entry(562, 1_614_807_040), entry(592, 1_077_936_128), entry(9, 500)],
        mps=[entry(562, 1_614_807_040), entry(592, 1_077_936_128)],
        graphics=[entry(9, None), entry(10, 700)],
    )
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
    assert used(gpu) == {9: 500, 10: 700, 562: 1_614_807_040, 583: 69_206_016, 592: 1_077_936_128}
    kinds = {process.pid: process.kinds for process in gpu.processes or ()}
    assert kinds[562] == {"compute", "mps"}
    assert kinds[583] == {"compute"}
    assert kinds[9] == {"compute", "graphics"}


def test_the_graphics_list_can_be_left_out() -> None:
    """It is the slow one on some desktops."""
    fake = FakePynvml([FakeDevice(graphics=[entry(10, 700)])])
    assert one(NvmlReader(fake, graphics=False).read(1.0, 1.0)).processes == ()
    assert not any("Graphics" in call for call in fake.calls)


def test_mismatch_error_is_no_nvml_error_and_falls_back() -> None:
    """NVMLLibraryMismatchError is a plain Exception; _v2 is used and remembered."""
    fake = FakePynvml([three_servers()], mismatch=True)
    reader = NvmlReader(fake)
    assert len(used(one(reader.read(1.0, 1.0)))) == 3
    fake.calls.clear()
    assert len(used(one(reader.read(2.0, 2.0)))) == 3
    assert "nvmlDeviceGetComputeRunningProcesses_v3" not in fake.calls


@pytest.mark.parametrize("lists", [("_v2", ""), ("",)])
def test_older_lists_are_used_where_newer_are_missing(lists: tuple[str, ...]) -> None:
    """_v3, then _v2, then the unversioned call."""
    device = three_servers()
    device.lists = lists
    assert used(one(NvmlReader(FakePynvml([device])).read(1.0, 1.0)))[1137] == 5_798_625_280


def wrong_stride(rows: list[SimpleNamespace]) -> list[SimpleNamespace]:
    """A 32-byte list read as 24-byte entries: the second is made of the first one's protected memory (0)."""
    return [*rows[:1], *(entry(0, row.pid, 0, 0) for row in rows[1:])]


def other_stride(rows: list[SimpleNamespace]) -> list[SimpleNamespace]:
    """A 24-byte list read as 32-byte entries: sizes turn up as pids."""
    return [*rows[:1], *(entry((row.usedGpuMemory or 0) & 0xFFFFFFFF, row.pid, 0, 0) for row in rows[1:])]


@pytest.mark.parametrize("layout", [wrong_stride, other_stride])
def test_a_wrong_layout_is_noticed_and_v2_is_used(layout: object) -> None:
    """Early 535 drivers: every second entry is garbage; the list with the stable layout is right."""
    device = three_servers()
    device.v3_layout = layout  # type: ignore[assignment]
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
    assert used(gpu) == {734: 1_356_857_344, 795: 1_954_545_664, 1137: 5_798_625_280}


def test_a_wrong_layout_without_v2_gives_no_list() -> None:
    """Half a list would be a wrong number; absent with the remedy instead."""
    device = three_servers()
    device.v3_layout, device.lists = other_stride, ("_v3",)
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
    assert gpu.processes is None
    assert "nvidia-ml-py" in gpu.absent["processes"]


def test_an_entry_without_pid_is_dropped() -> None:
    """Where even _v2 lists pid 0 the entry is nobody's."""
    device = FakeDevice(compute=[entry(0, 5), entry(7, 6)])
    assert used(one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))) == {7: 6}


def test_a_list_that_grew_is_asked_again() -> None:
    """INSUFFICIENT_SIZE between the two calls inside the wrapper is a race, not a fault."""
    device = three_servers()
    fake = FakePynvml([device])
    tries = iter([7, None])

    def race(name: str) -> None:
        if name == "nvmlDeviceGetComputeRunningProcesses_v3":
            code = next(tries)
            device.errors.pop(name, None)
            if code:
                device.errors[name] = code

    fake.before_call = race
    assert len(used(one(NvmlReader(fake).read(1.0, 1.0)))) == 3


def test_an_unreadable_list_is_none_with_a_reason() -> None:
    """None is "not readable", () is "empty"."""
    device = FakeDevice(used=5 * GIB, errors={"nvmlDeviceGetComputeRunningProcesses_v3": 4})
    reading = NvmlReader(FakePynvml([device])).read(1.0, 1.0)
    gpu = one(reading)
    assert gpu.processes is None
    assert "MIG_MONITOR" in gpu.absent["processes"]
    assert reading.reason == "processes_unreadable"


# --------------------------------------------------------------------------- SM use per process


def test_sm_use_is_the_newest_sample_and_idle_is_zero() -> None:
    """A listed process without a sample in the window ran nothing; the newest of several samples counts."""
    wall = 1796129300.0
    stamp = int(wall * 1e6)
    device = three_servers()
    device.samples = [
        sample(1137, stamp - 900_000, 11),
        sample(1137, stamp - 150_000, 48),
        sample(734, stamp - 350_000, 7),
        sample(795, stamp - 3_000_000, 99),
    ]
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, wall))
    ratios = {process.pid: process.sm_utilization_ratio for process in gpu.processes or ()}
    assert ratios == {734: 0.07, 795: 0.0, 1137: 0.48}


def test_no_samples_at_all_is_idle_and_not_supported_is_unknown() -> None:
    """NOT_FOUND means no samples; NOT_SUPPORTED (MIG, WSL2) means that nobody knows."""
    device = three_servers()
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
    assert {process.sm_utilization_ratio for process in gpu.processes or ()} == {0.0}
    device.errors["nvmlDeviceGetProcessUtilization"] = 3
    gpu = one(NvmlReader(FakePynvml([device])).read(4.0, 4.0))
    assert {process.sm_utilization_ratio for process in gpu.processes or ()} == {None}
    assert "sm_utilization_ratio" in gpu.absent


def test_sm_use_is_asked_for_every_two_seconds_and_at_once_for_a_new_process() -> None:
    """The dearest question of all; in between its last answer stands, but never as "idle" for who was not asked for."""
    device = FakeDevice(compute=[entry(5, 1)], samples=[sample(5, 10_000_000, 40)])
    reader = NvmlReader(FakePynvml([device]))

    def use(at: float) -> dict[int, float | None]:
        return {p.pid: p.sm_utilization_ratio for p in one(reader.read(at, 10.0 + at)).processes or ()}

    assert use(0.0) == {5: 0.4}
    device.samples = [sample(5, 10_900_000, 70), sample(6, 10_900_000, 20)]
    assert use(1.0) == {5: 0.4}
    device.compute = [entry(5, 1), entry(6, 1)]
    assert use(1.5) == {5: 0.7, 6: 0.2}
    device.samples = [sample(5, 12_900_000, 10)]
    assert use(2.5) == {5: 0.7, 6: 0.2}
    assert use(3.5) == {5: 0.1, 6: 0.0}


def test_success_raised_as_an_error_means_no_samples() -> None:
    """The wrapper raises NVMLError with value 0 when the sizing call succeeds with nothing."""
    device = three_servers()
    device.errors["nvmlDeviceGetProcessUtilization"] = 0
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
    assert {process.sm_utilization_ratio for process in gpu.processes or ()} == {0.0}


def test_a_sample_that_never_changes_grows_old() -> None:
    """When the wall clock was set back the driver keeps handing out the same sample; it does not stay 90 % for ever."""
    wall = 1000.0
    device = FakeDevice(compute=[entry(5, 1)], samples=[sample(5, int((wall + 0.9) * 1e6), 90)])
    reader = NvmlReader(FakePynvml([device]))
    first = one(reader.read(1.0, wall)).processes
    later = one(reader.read(9.0, wall)).processes
    assert first is not None
    assert later is not None
    assert (first[0].sm_utilization_ratio, later[0].sm_utilization_ratio) == (0.9, 0.0)


# --------------------------------------------------------------------------- MIG


def mig_gpu() -> FakeDevice:
    """Two GPU instances; the first is shared by two compute instances."""
    return FakeDevice(
        mig_mode=1,
        used=30 * GIB,
        compute=[entry(1, None), entry(2, None)],
        migs=[
            FakeMig("MIG-a", 3, 0, 17 * GIB, 9 * GIB, [entry(1, 4 * GIB, 3, 0)]),
            FakeMig("MIG-b", 3, 1, 17 * GIB, 9 * GIB, [entry(2, 5 * GIB, 3, 1), entry(1, 4 * GIB, 3, 0)]),
            FakeMig("MIG-c", 5, 0, 17 * GIB, 2 * GIB, [entry(3, 1 * GIB, 5, 0)]),
        ],
    )


def test_mig_memory_is_per_gpu_instance_and_never_counted_twice() -> None:
    """One row per GPU instance with the processes of all its compute instances, none for the parent's memory."""
    reading = NvmlReader(FakePynvml([mig_gpu()])).read(1.0, 1.0)
    parent, first, second = reading.gpus
    assert reading.up
    assert reading.reason is None
    assert (parent.gpu, parent.mig_mode, parent.memory_used_bytes, parent.processes) == ("0", True, None, None)
    assert "per GPU instance" in parent.absent["memory_used_bytes"]
    assert parent.power_watts is not None
    assert (first.gpu, first.uuid, first.mig_parent_uuid) == ("0:3", "MIG-a", H200_UUID)
    assert (first.memory_total_bytes, first.memory_used_bytes) == (17 * GIB, 9 * GIB)
    assert used(first) == {1: 4 * GIB, 2: 5 * GIB}
    assert (second.gpu, second.memory_used_bytes, used(second)) == ("0:5", 2 * GIB, {3: GIB})
    assert second.power_watts is None
    assert "power_watts" in second.absent


def test_mig_without_permission_says_so() -> None:
    """The instance's list is refused: None, reason with the remedy."""
    device = mig_gpu()
    for mig in device.migs:
        mig.errors["nvmlDeviceGetComputeRunningProcesses_v3"] = 4
    reading = NvmlReader(FakePynvml([device])).read(1.0, 1.0)
    assert reading.gpus[1].processes is None
    assert "NVIDIA_MIG_MONITOR_DEVICES" in reading.gpus[1].absent["processes"]
    assert reading.reason == "processes_unreadable"


def test_a_destroyed_mig_instance_is_looked_up_again_in_the_same_tick() -> None:
    """Handles go stale when instances change; nobody waits for the next enumeration."""
    device = mig_gpu()
    reader = NvmlReader(FakePynvml([device]))
    assert len(reader.read(1.0, 1.0).gpus) == 3
    del device.migs[:2]
    reading = reader.read(2.0, 2.0)
    assert reading.up
    assert [gpu.gpu for gpu in reading.gpus] == ["0", "0:5"]


# --------------------------------------------------------------------------- faults


def test_a_lost_gpu_is_absent_and_the_others_still_work() -> None:
    """XID 79: its row keeps its identity, has no values, and says why; the neighbour is untouched."""
    lost, good = FakeDevice(uuid="GPU-0"), three_servers()
    fake = FakePynvml([lost, good])
    reader = NvmlReader(fake)
    assert reader.read(1.0, 1.0).reason is None
    lost.lost = True
    reading = reader.read(2.0, 2.0)
    assert reading.up
    assert reading.reason == "gpu_lost"
    first, second = reading.gpus
    assert (first.uuid, first.name, first.memory_used_bytes, first.processes) == ("GPU-0", "NVIDIA H200", None, None)
    assert "fell off the bus" in first.absent["memory_used_bytes"]
    assert first.power_watts is None
    assert len(used(second)) == 3
    # Looked up anew by index it still is the same GPU
    later = reader.read(60.0, 60.0)
    assert [gpu.uuid for gpu in later.gpus] == ["GPU-0", H200_UUID]
    lost.lost = False
    healed = reader.read(120.0, 120.0)
    assert healed.reason is None
    assert healed.gpus[0].memory_used_bytes == 0


def test_not_supported_is_remembered_and_not_asked_again() -> None:
    """Permanent for the device: one call, an absent value with a reason, no log line."""
    device = three_servers()
    device.errors["nvmlDeviceGetPowerUsage"] = 3
    fake = FakePynvml([device])
    reader = NvmlReader(fake)
    for tick in range(5):
        gpu = one(reader.read(float(tick), 1.0))
    assert gpu.power_watts is None
    assert "does not give it" in gpu.absent["power_watts"]
    assert fake.calls.count("nvmlDeviceGetPowerUsage") == 1


def test_no_permission_is_asked_again_rarely() -> None:
    """A refusal may end (capability granted), so it is not for ever."""
    device = three_servers()
    device.errors["nvmlDeviceGetEnforcedPowerLimit"] = 4
    fake = FakePynvml([device])
    reader = NvmlReader(fake)
    reader.read(0.0, 1.0)
    reader.read(20.0, 1.0)
    assert fake.calls.count("nvmlDeviceGetEnforcedPowerLimit") == 1
    reader.read(400.0, 1.0)
    assert fake.calls.count("nvmlDeviceGetEnforcedPowerLimit") == 2


def test_a_timeout_loses_one_value_only() -> None:
    """A busy driver costs the value that was asked for."""
    device = three_servers()
    device.errors["nvmlDeviceGetTemperature"] = 10
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
    assert gpu.temperature_celsius is None
    assert gpu.power_watts is not None


def test_uninitialized_is_initialised_once_more() -> None:
    """Somebody else in the process shut NVML down: nobody notices."""
    fake = FakePynvml([three_servers()])
    reader = NvmlReader(fake)
    reader.read(1.0, 1.0)
    fake.references = 0
    assert len(used(one(reader.read(2.0, 2.0)))) == 3


def test_no_library_backs_off_and_recovers() -> None:
    """Without a driver the reading is down with a reason; attempts get rarer; it comes up when the library does."""
    fake = FakePynvml([three_servers()])
    fake.errors["nvmlInit"] = 12
    reader = NvmlReader(fake)
    for tick in range(60):
        reading = reader.read(float(tick), 1.0)
        assert (reading.up, reading.reason, reading.gpus) == (False, "library_not_found", ())
    assert 3 <= fake.calls.count("nvmlInit") <= 8
    del fake.errors["nvmlInit"]
    assert reader.read(200.0, 1.0).up


@pytest.mark.parametrize(("code", "reason"), [(9, "driver_not_loaded"), (18, "driver_upgraded")])
def test_a_driver_wide_error_shuts_down_and_starts_again(code: int, reason: str) -> None:
    """The driver goes away under us: down with its reason, NVML released, tried again later."""
    fake = FakePynvml([three_servers()])
    reader = NvmlReader(fake)
    reader.read(1.0, 1.0)
    fake.devices[0].errors["*"] = code
    reading = reader.read(2.0, 2.0)
    assert (reading.up, reading.reason) == (False, reason)
    assert fake.references == 0
    assert reader.read(2.5, 2.5).reason == reason
    fake.devices[0].errors.clear()
    assert reader.read(10.0, 10.0).up


def test_unknown_error_of_all_devices_is_down() -> None:
    """999 on everything: the container's device cgroup was reset."""
    fake = FakePynvml([three_servers()])
    reader = NvmlReader(fake)
    reader.read(1.0, 1.0)
    fake.devices[0].errors["*"] = 999
    assert reader.read(2.0, 2.0).reason == "unknown_error"


def test_a_blocked_device_keeps_its_row() -> None:
    """Code 17: the operating system blocks one device."""
    fake = FakePynvml([three_servers(), FakeDevice(uuid="GPU-1")])
    reader = NvmlReader(fake)
    reader.read(1.0, 1.0)
    fake.devices[1].errors["*"] = 17
    reading = reader.read(2.0, 2.0)
    assert reading.reason == "device_blocked"
    assert reading.gpus[0].memory_used_bytes is not None
    assert "restart the container" in reading.gpus[1].absent["memory_used_bytes"]


def test_no_gpu_is_up_with_a_reason() -> None:
    """NVML works, nothing is there."""
    reading = NvmlReader(FakePynvml([])).read(1.0, 1.0)
    assert (reading.up, reading.reason, reading.gpus) == (True, "no_gpu", ())


def test_a_gpu_that_appears_is_found() -> None:
    """Devices are looked up again every half minute."""
    fake = FakePynvml([three_servers()])
    reader = NvmlReader(fake)
    assert len(reader.read(0.0, 1.0).gpus) == 1
    fake.devices.append(FakeDevice(uuid="GPU-new"))
    assert len(reader.read(31.0, 1.0).gpus) == 2


def test_a_call_that_always_says_invalid_argument_does_not_stop_the_reading() -> None:
    """Some drivers answer INVALID_ARGUMENT for what they do not have."""
    device = three_servers()
    device.errors["nvmlDeviceGetClockInfo"] = 2
    reader = NvmlReader(FakePynvml([device]))
    for tick in range(3):
        gpu = one(reader.read(float(tick), 1.0))
        assert gpu.memory_used_bytes == 9_130_999_808
        assert gpu.clock_hertz == {}


def test_xid_is_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The last XID stays until another comes; it survives that the GPU is lost."""
    device = three_servers()
    fake = FakePynvml([device])
    reader = NvmlReader(fake)
    reader.read(1.0, 1.0)
    fake.xids = [(device, 13), (device, 79)]
    assert one(reader.read(2.0, 2.0)).xid_last == 79
    assert "XID 79" in caplog.text
    device.lost = True
    assert one(reader.read(3.0, 3.0)).xid_last == 79
    assert one(reader.read(60.0, 60.0)).xid_last == 79
    assert one(reader.read(61.0, 61.0)).xid_last_at == 2.0


def test_the_same_xid_again_has_another_time() -> None:
    """A second error of the same kind changes no code: only its time tells it."""
    device = three_servers()
    fake = FakePynvml([device])
    reader = NvmlReader(fake)
    assert one(reader.read(1.0, 1001.0)).xid_last_at is None
    for at in (2.0, 9.0):
        fake.xids = [(device, 31)]
        gpu = one(reader.read(at, 1000.0 + at))
        assert (gpu.xid_last, gpu.xid_last_at) == (31, 1000.0 + at)
    gpu = one(reader.read(10.0, 1010.0))
    assert (gpu.xid_last, gpu.xid_last_at) == (31, 1009.0)


def test_events_not_supported_is_a_reason() -> None:
    """WSL2 has no events; that is said instead of "none seen"."""
    device = three_servers()
    device.errors["nvmlDeviceRegisterEvents"] = 3
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
    assert gpu.xid_last is None
    assert "does not give it" in gpu.absent["xid_last"]


def test_throttle_falls_back_to_the_older_name() -> None:
    """nvmlDeviceGetCurrentClocksEventReasons exists since 12.2 only."""
    device = FakeDevice(clock_reasons=0x60)
    device.errors["nvmlDeviceGetCurrentClocksEventReasons"] = 13
    gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
    assert gpu.throttle["sw_thermal_slowdown"]
    assert gpu.throttle["hw_thermal_slowdown"]
    assert not gpu.throttle["sw_power_cap"]


def test_a_bug_in_the_binding_costs_one_value() -> None:
    """Old wrappers assign None to a C integer: TypeError, caught and named."""
    fake = FakePynvml([three_servers()])

    def broken(handle: FakeDevice) -> int:
        raise TypeError("an integer is required")

    fake.nvmlDeviceGetPowerUsage = broken  # type: ignore[method-assign]
    gpu = one(NvmlReader(fake).read(1.0, 1.0))
    assert gpu.power_watts is None
    assert "binding" in gpu.absent["power_watts"]


def test_close_releases_the_driver() -> None:
    """One init, one shutdown; a second close does nothing."""
    fake = FakePynvml([three_servers()])
    reader = NvmlReader(fake)
    reader.read(1.0, 1.0)
    assert fake.references == 1
    reader.close()
    reader.close()
    assert fake.references == 0


# --------------------------------------------------------------------------- the probe on real hardware


def test_probe_numbers_of_the_real_h200() -> None:
    """The identities measured on the H200 hold through the reader, for each state of the probe."""
    path = Path(__file__).parent / "nvml_h200_probe.json"
    states = json.loads(path.read_text(encoding="utf-8"))
    seen = 0
    for title, state in states.items():
        device = FakeDevice(
            used=state["used2"],
            compute=[entry(*row) for row in state["compute"]],
            mps=[entry(*row) for row in state["mps"]],
            graphics=[entry(*row) for row in state["gfx"]],
        )
        gpu = one(NvmlReader(FakePynvml([device])).read(1.0, 1.0))
        assert gpu.memory_free_bytes == state["free2"], title
        assert gpu.memory_used_bytes is not None
        remainder = gpu.memory_used_bytes - sum(value or 0 for value in used(gpu).values())
        count = len(used(gpu))
        # "v2 used is 9.2 MB per process above the sum"; with MPS the context is shared
        assert 0 <= remainder <= 12_000_000 * max(count, 1), title
        seen += 1
    assert seen >= 9
