"""NVML goes wrong in every way while the exporter runs: the servers' samples go on, the reason shows, it comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fakes import fake_pynvml as n
from fakes import fault_server as f
from faults.hostile import healthy
from faults.storm import NoProcesses
from vllmeter.config.settings import Settings
from vllmeter.gpu.nvml import WatchedGpuSource
from vllmeter.gpu.reader import NvmlReader
from vllmeter.sampler import HostSources
from vllmeter.wiring import Exporter


class World:
    """A running exporter over one healthy server and a fake driver."""

    def __init__(self) -> None:
        self.device = n.FakeDevice(used=5_000_000_000, compute=[n.entry(100, 4_500_000_000)])
        self.nvml = n.FakePynvml([self.device])
        self.server = f.FaultServer(healthy)
        settings = Settings.model_validate(
            {"servers": [{"name": "a", "url": self.server.url, "interval": "300ms"}], "nvml": {"interval": "200ms"}}
        )
        gpu = WatchedGpuSource(patience=0.3, make_reader=lambda: NvmlReader(self.nvml))
        self.exporter = Exporter(settings, sources=HostSources(gpu, NoProcesses()))
        self.exporter.start()

    def close(self) -> None:
        self.nvml.before_call = None
        self.exporter.stop()
        self.server.close()

    def lines(self, start: str) -> list[str]:
        text = self.exporter.metrics(openmetrics=False).decode()
        return [line for line in text.splitlines() if line.startswith(f"vllmeter_{start}")]

    def until(self, what: Callable[[], bool], seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, self.lines("nvml")
            time.sleep(0.05)

    @property
    def up(self) -> bool:
        return self.lines("nvml_up") == ["vllmeter_nvml_up 1"]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.until(lambda: made.up and bool(made.lines("sample_age_seconds")))
    yield made
    made.close()


def hang(world: World) -> Callable[[], None]:
    stuck = threading.Event()

    def wait(_name: str) -> None:
        stuck.wait(60)

    world.nvml.before_call = wait
    return stuck.set


def lost(world: World) -> Callable[[], None]:
    world.device.lost = True

    def undo() -> None:
        world.device.lost = False

    return undo


def failing(call: str, code: int) -> Callable[[World], Callable[[], None]]:
    def act(world: World) -> Callable[[], None]:
        world.nvml.errors[call] = code
        world.device.errors[call] = code

        def undo() -> None:
            world.nvml.errors.clear()
            world.device.errors.clear()

        return undo

    return act


@pytest.mark.parametrize(
    ("fault", "down"),
    [
        pytest.param(hang, True, id="hung call"),
        pytest.param(lost, True, id="lost GPU"),
        pytest.param(failing("*", 18), True, id="driver and library mismatch"),
        pytest.param(failing("*", 999), True, id="unknown error"),
        pytest.param(failing("nvmlDeviceGetMemoryInfo_v2", 4), False, id="no permission for memory"),
        pytest.param(failing("nvmlDeviceGetUtilizationRates", 3), False, id="utilisation not supported"),
    ],
)
def test_a_fault_shows_no_old_value_and_servers_go_on(
    world: World, fault: Callable[[World], Callable[[], None]], down: bool
) -> None:
    """GPU values vanish with a reason within seconds, the server's samples stay on time, and everything comes back."""
    undo = fault(world)
    try:
        if down:
            world.until(lambda: not world.lines("gpu_memory_used_bytes"))
            world.until(lambda: bool(world.lines("nvml_status_info{")))
        ages = []
        for _ in range(10):
            time.sleep(0.1)
            ages += [float(line.rpartition(" ")[2]) for line in world.lines("sample_age_seconds")]
        assert len(ages) == 10
        assert max(ages) < 2.0
        assert world.lines("server_up") == ['vllmeter_server_up{server="a"} 1']
    finally:
        undo()
    if down:  # what a card does not support is asked once, what is refused rarely again
        world.until(lambda: world.up and bool(world.lines("gpu_memory_used_bytes")), 60)


def test_processes_that_come_and_go_never_break_the_sum(world: World) -> None:
    """PID churn: what was read in one tick adds up, in every body, or is absent."""
    stop = threading.Event()

    def churn() -> None:
        number = 1000
        while not stop.is_set():
            number += 1
            rows = [n.entry(number + k, 1_000_000_000) for k in range(number % 4)]
            world.device.compute = rows
            world.device.used = 500_000_000 + 1_000_000_000 * len(rows)
            time.sleep(0.003)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            time.sleep(0.1)
            assert world.lines("server_up")
            for line in world.lines("gpu_memory_unattributed_bytes"):
                assert float(line.rpartition(" ")[2]) > -(64 << 20), line
    finally:
        stop.set()
        thread.join()
