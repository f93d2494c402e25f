"""The thread around NVML: hung calls, late ticks, start, end, and wrong bindings."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest

from fakes.fake_pynvml import FakeDevice, FakePynvml
from vllmeter.gpu.nvml import NvmlUnusable, WatchedGpuSource, explain, load_pynvml
from vllmeter.gpu.reader import NvmlReader
from vllmeter.gpu.reasons import SLUGS, WORDS
from vllmeter.snapshot import NvmlReading


class Gate:
    """A reader whose ticks wait at a gate, as a hung driver call does."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.reads: list[float] = []
        self.closed = 0
        self.cost = 0.001
        self.answer: NvmlReading | None = None
        self.error: Exception | None = None

    def read(self, at: float, wall: float) -> NvmlReading:
        self.reads.append(at)
        self.entered.set()
        self.open.wait(30)
        if self.error is not None:
            raise self.error
        return self.answer or NvmlReading(at, wall, up=True, duration_seconds=self.cost)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Opened at the end, so that no thread stays behind."""
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def watched(gate: Gate) -> Iterator[WatchedGpuSource]:
    """A source with little patience."""
    source = WatchedGpuSource(patience=0.1, make_reader=lambda: gate)
    yield source
    gate.open.set()
    source.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait at most five seconds."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_hung_call_is_down_until_it_returns(gate: Gate, watched: WatchedGpuSource) -> None:
    """Readings are withheld while the call hangs, one call at a time, and come back by themselves."""
    assert watched.read(1.0, 1.0).up
    gate.open.clear()
    for tick in (2.0, 3.0, 4.0):
        reading = watched.read(tick, tick)
        assert (reading.at, reading.up, reading.reason, reading.gpus) == (tick, False, "hung", ())
    assert gate.reads == [1.0, 2.0]
    gate.open.set()
    reading = watched.read(5.0, 5.0)
    assert reading.up
    until(lambda: watched.read(6.0, 6.0).at == 6.0)


def test_the_first_tick_is_starting_not_hung(gate: Gate, watched: WatchedGpuSource) -> None:
    """nvmlInit takes seconds without persistence mode; that is no fault yet."""
    gate.open.clear()
    assert watched.read(1.0, 1.0).reason == "starting"


def test_a_late_tick_keeps_its_own_time(gate: Gate, watched: WatchedGpuSource) -> None:
    """A late reading says when it was begun, so that its age can be judged; a newer one is preferred."""
    watched.read(1.0, 1.0)
    gate.open.clear()
    assert watched.read(2.0, 2.0).reason == "hung"
    gate.open.set()
    until(lambda: watched._busy_since is None)
    assert watched.read(3.0, 3.0).at == 3.0
    gate.open.clear()
    watched.read(4.0, 4.0)
    gate.open.set()
    until(lambda: watched._busy_since is None)
    gate.open.clear()
    late = watched.read(5.0, 5.0)
    assert (late.up, late.at) == (True, 4.0)


def test_closing_ends_the_thread_and_releases_nvml(gate: Gate, watched: WatchedGpuSource) -> None:
    """Shutdown happens in the NVML thread; afterwards readings are down with reason closed."""
    watched.read(1.0, 1.0)
    watched.close()
    watched.close()
    assert gate.closed == 1
    assert not watched._thread.is_alive()
    assert watched.read(2.0, 2.0).reason == "closed"


def test_closing_a_hung_source_leaves_the_call_alone(gate: Gate, watched: WatchedGpuSource) -> None:
    """nvmlShutdown under a thread inside a call crashes the process: close returns and does not call it."""
    watched.read(1.0, 1.0)
    gate.open.clear()
    watched.read(2.0, 2.0)
    begun = time.monotonic()
    watched.close()
    assert time.monotonic() - begun < 3
    assert gate.closed == 0


def test_a_bug_in_the_reader_is_a_reason_and_the_thread_lives(
    gate: Gate, watched: WatchedGpuSource, caplog: pytest.LogCaptureFixture
) -> None:
    """Unexpected exceptions are logged once and cost a reading each."""
    gate.error = RuntimeError("surprise")
    assert watched.read(1.0, 1.0).reason == "internal_error"
    assert watched.read(2.0, 2.0).reason == "internal_error"
    assert caplog.text.count("surprise") == 1
    gate.error = None
    assert watched.read(3.0, 3.0).up


def test_only_a_restart_helps_after_a_driver_upgrade(gate: Gate, watched: WatchedGpuSource) -> None:
    """Codes 18 and 999 make the health check fail, other reasons do not."""
    watched.read(1.0, 1.0)
    assert watched.restart_advice is None
    gate.answer = NvmlReading(1.0, 1.0, up=False, reason="library_not_found")
    watched.read(1.0, 1.0)
    assert watched.restart_advice is None
    gate.answer = NvmlReading(1.0, 1.0, up=False, reason="driver_upgraded")
    watched.read(1.0, 1.0)
    assert watched.restart_advice is not None
    assert "restart" in watched.restart_advice
    gate.answer = None
    watched.read(1.0, 1.0)
    assert watched.restart_advice is None


def test_costly_ticks_ask_for_a_longer_interval(gate: Gate, watched: WatchedGpuSource) -> None:
    """1 s up to 5 ms a tick, in proportion above, 15 s at most."""
    for _ in range(10):
        watched.read(1.0, 1.0)
    assert watched.interval_hint == 1.0
    gate.cost = 0.02
    for _ in range(20):
        watched.read(1.0, 1.0)
    assert watched.interval_hint == pytest.approx(4.0)
    gate.cost = 1.0
    for _ in range(20):
        watched.read(1.0, 1.0)
    assert watched.interval_hint == 15.0


def test_the_real_reader_runs_in_the_thread() -> None:
    """Watch and reader together on a fake driver that hangs once."""
    fake = FakePynvml([FakeDevice(used=5)])
    hang = threading.Event()
    hang.set()
    threads: set[str] = set()

    def before(name: str) -> None:
        threads.add(threading.current_thread().name)
        if name == "nvmlDeviceGetUtilizationRates":
            hang.wait(30)

    fake.before_call = before
    source = WatchedGpuSource(patience=0.2, make_reader=lambda: NvmlReader(fake))
    assert source.read(1.0, 1.0).gpus[0].memory_used_bytes == 5
    hang.clear()
    assert source.read(2.0, 2.0).reason == "hung"
    hang.set()
    until(lambda: source.read(3.0, 3.0).up)
    source.close()
    assert threads == {"nvml"}
    assert fake.references == 0


# --------------------------------------------------------------------------- which binding


def test_the_old_fork_is_refused_with_the_remedy() -> None:
    """The unofficial pynvml is a package; NVIDIA's is one file."""
    fork = ModuleType("pynvml")
    fork.__file__ = "/site-packages/pynvml/__init__.py"
    fork.NVMLError = Exception  # type: ignore[attr-defined]
    fork.nvmlInit = print  # type: ignore[attr-defined]
    with pytest.raises(NvmlUnusable, match="nvidia-ml-py") as problem:
        load_pynvml(lambda name: fork)
    assert problem.value.reason == "wrong_pynvml"
    with pytest.raises(NvmlUnusable) as problem:
        load_pynvml(lambda name: ModuleType("pynvml"))
    assert problem.value.reason == "wrong_pynvml"


def test_a_missing_binding_is_a_reason() -> None:
    """Without the module the exporter still starts."""

    def missing(name: str) -> ModuleType:
        raise ImportError(name)

    with pytest.raises(NvmlUnusable) as problem:
        load_pynvml(missing)
    assert problem.value.reason == "no_pynvml"


def test_a_wrong_binding_in_the_process_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is down with that reason instead of failing at start."""
    fork = SimpleNamespace(__file__="/x/pynvml/__init__.py", NVMLError=Exception, nvmlInit=print)
    monkeypatch.setitem(sys.modules, "pynvml", fork)  # type: ignore[arg-type]
    source = WatchedGpuSource(patience=5.0)
    assert source.read(1.0, 1.0).reason == "wrong_pynvml"
    source.close()


def test_the_installed_binding_is_the_right_one() -> None:
    """What our own dependency installs passes the check."""
    assert load_pynvml().__name__ == "pynvml"


def test_every_reason_has_words() -> None:
    """Label values are short; each has a sentence, and unknown codes do not fail."""
    for reason in SLUGS.values():
        assert WORDS[reason]
    assert explain("error_77") == "NVML error 77"
    assert explain(None) == ""  # type: ignore[arg-type]
