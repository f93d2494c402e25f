"""The player gives back what was recorded, with start times that are true for whoever listens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.utils import floatToGoString

from vllmeter.recording.format import (
    Answer,
    Down,
    Gpus,
    Header,
    Health,
    Processes,
    RecordedServer,
    RecordingReader,
    RecordingWriter,
    copy,
)
from vllmeter.recording.player import Moment, Player, go_float
from vllmeter.recording.sources import PlayerGpuSource, PlayerProcessSource
from vllmeter.snapshot import HostProcess, NvmlReading, ProcessTable

CAPTURES = Path(__file__).parent.parent / "captures"
H200 = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
CPU = CAPTURES / "vllm-0.32.0-cpu-chat.vmrec"
RESTART_GONE, RESTART_BACK = 162.0, 208.0
"""Seconds at which the chat model stops and answers again."""
WALL = 2_000_000_000.0


@pytest.fixture
def player() -> Iterator[Player]:
    """The three-instance recording, played from a made-up wall time."""
    made = Player(H200, wall=WALL)
    yield made
    made.close()


def start_of(moment: Moment, server: str) -> float:
    """``process_start_time_seconds`` of a server."""
    body = moment.servers[server].body
    assert body is not None
    found = re.search(rb"(?m)^process_start_time_seconds (\S+)$", body)
    assert found is not None
    return float(found[1])


def created_of(body: bytes) -> list[float]:
    """All ``_created`` values."""
    return [float(value) for value in re.findall(rb"(?m)^[a-z0-9_:]+_created(?:\{.*\})? (\S+)$", body)]


def test_unshifted_bodies_are_byte_exact() -> None:
    """Without a wall time, the first round gives every body as recorded."""
    player = Player(H200)
    with RecordingReader(H200) as reader:
        for record in reader:
            if isinstance(record, Answer) and record.t < 30:
                player.advance(record.t)
                moment = player.server(record.server)
                assert moment.body == record.body
                assert moment.recorded == record.t
    player.close()


def test_shifted_bodies_differ_in_start_times_only(player: Player) -> None:
    """Everything but process start and _created is byte-exact; these move by the same amount."""
    with RecordingReader(H200) as reader:
        for record in reader:
            if not isinstance(record, Answer) or not 100 <= record.t < 103:
                continue
            shifted = player.at(record.t).servers[record.server].body
            assert shifted is not None
            old, new = record.body.split(b"\n"), shifted.split(b"\n")
            assert len(old) == len(new)
            moved = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
            assert len(moved) == len(created_of(record.body)) + 1
            shift = WALL - player.header.recorded
            for a, b in moved:
                name, _, before = a.rpartition(b" ")
                same, _, after = b.rpartition(b" ")
                assert name == same
                assert float(after) - float(before) == pytest.approx(shift, abs=0.006)


def test_the_recorded_restart(player: Player) -> None:
    """The chat model refuses for 46 s, its engine's PID goes from 1137 to 1851 and its start times are new."""
    before = player.at(RESTART_GONE - 1)
    gone = player.at(RESTART_GONE + 1)
    back = player.at(RESTART_BACK + 1)

    def engines(moment: Moment) -> list[int]:
        assert moment.nvml is not None
        return [process.pid for process in moment.nvml.gpus[0].processes or ()]

    assert engines(before) == [734, 795, 1137]
    assert engines(gone) == [734, 795]
    assert engines(back) == [734, 795, 1851]
    assert gone.servers["vllm-qwen3"].body is None
    assert gone.servers["vllm-qwen3"].why == "refused"
    assert gone.servers["vllm-embed"].up
    assert start_of(back, "vllm-qwen3") == pytest.approx(WALL + 161.2, abs=0.5)
    assert before.processes is not None
    assert back.processes is not None
    assert 1137 in before.processes.processes
    assert 1137 not in back.processes.processes
    assert back.processes.processes[1851].ppid == 1786
    assert player.header.boot is not None
    ticks = back.processes.processes[1786].start_ticks
    assert player.header.boot + ticks / 100 == pytest.approx(start_of(back, "vllm-qwen3"), abs=0.02)


def test_a_loop_is_a_restart_of_every_server(player: Player) -> None:
    """At the end it begins again: every process start and _created value is the moment of the new round or later."""
    first = player.at(1.0)
    again = player.at(player.duration + 1.0)
    assert (first.loop, again.loop) == (0, 1)
    assert again.position == pytest.approx(1.0)
    assert again.phase == first.phase
    for server in first.servers:
        assert start_of(first, server) < WALL
        assert start_of(again, server) == pytest.approx(WALL + player.duration)
        body = again.servers[server].body
        assert body is not None
        assert min(created_of(body)) == pytest.approx(WALL + player.duration, abs=1e-3)
    assert first.processes is not None
    assert again.processes is not None
    assert first.processes.processes.keys() == again.processes.processes.keys()
    for pid, item in first.processes.processes.items():
        assert again.processes.processes[pid].start_ticks > item.start_ticks


def test_many_rounds_at_once(player: Player) -> None:
    """A listener that was away for several rounds finds the right position and one more restart per round."""
    moment = player.at(3 * player.duration + 20.0)
    assert moment.loop == 3
    assert moment.position == pytest.approx(20.0)
    assert start_of(moment, "vllm-embed") == pytest.approx(WALL + 3 * player.duration)


def test_without_looping_it_stays_at_the_end() -> None:
    """The last moment is held and says that it is the end."""
    player = Player(CPU, loop=False)
    last = player.at(10_000.0)
    assert last.ended
    assert last.loop == 0
    assert last.position == player.duration
    assert last.servers["vllm-qwen3"].up
    assert not player.at(10.0).ended
    player.close()


def test_speed_scales_positions_and_later_starts() -> None:
    """At ten times the speed the restart comes ten times earlier and its start time fits the listener's clock."""
    player = Player(H200, wall=WALL, speed=10)
    moment = player.at((RESTART_BACK + 1) / 10)
    assert moment.position == pytest.approx(RESTART_BACK + 1)
    assert start_of(moment, "vllm-qwen3") == pytest.approx(WALL + 16.12, abs=0.05)
    assert start_of(moment, "vllm-embed") == pytest.approx(WALL - 172.5, abs=0.5)
    player.close()


def test_seeking_looks_like_a_restart(player: Player) -> None:
    """After a seek (either way) the position goes on from there and every server started at that moment."""
    player.at(100.0)
    player.seek(100.0, 20.0)
    moment = player.at(101.0)
    assert moment.position == pytest.approx(21.0)
    assert moment.loop == 1
    assert start_of(moment, "vllm-qwen3") == pytest.approx(WALL + 100.0)
    player.seek(101.0, player.phase_start("pressure-64"))
    moment = player.at(102.5)
    assert moment.phase == "pressure-64"
    assert start_of(moment, "vllm-qwen3") == pytest.approx(WALL + 101.0)
    with pytest.raises(ValueError, match="outside the recording"):
        player.seek(103.0, 1e6)
    with pytest.raises(KeyError):
        player.phase_start("no such phase")


def test_going_back_in_time_gives_the_same_moment(player: Player) -> None:
    """Asking for an earlier moment reads the file again and gives the same bytes."""
    first = player.at(40.0)
    player.at(90.0)
    again = player.at(40.0)
    assert first.servers == again.servers
    assert first.nvml == again.nvml
    assert first.processes == again.processes


def test_starting_in_the_middle() -> None:
    """``start`` begins at that position; ages are those of that moment."""
    player = Player(H200, wall=WALL, start=RESTART_BACK + 40)
    moment = player.at(0.0)
    assert moment.position == pytest.approx(RESTART_BACK + 40)
    assert start_of(moment, "vllm-qwen3") == pytest.approx(WALL - 40 - 46.8, abs=0.5)
    player.close()


def small(path: Path, records: list[object]) -> Path:
    """A recording of one server "a" on port 1."""
    with RecordingWriter(path, Header(1000.0, (RecordedServer("a", 1),))) as writer:
        for record in records:
            writer.write(record)  # type: ignore[arg-type]
    return path


def test_health_and_failures_are_played(tmp_path: Path) -> None:
    """Recorded health, error answers and ways of not answering come back as they were."""
    path = small(
        tmp_path / "x.vmrec",
        [
            Answer(1.0, "a", b"x 1\n"),
            Health(2.0, "a", 503),
            Answer(3.0, "a", b"oops", "text/html", 500),
            Answer(4.0, "a", b"x 2\n"),
            Down(5.0, "a", "timeout"),
            Down(6.0, "a", "refused"),
            Answer(7.0, "a", b"x 1\n"),
        ],
    )
    player = Player(path)

    def at(t: float) -> tuple[object, ...]:
        server = player.at(t).servers["a"]
        return server.body, server.status, server.health, server.why, player.is_listening("a")

    assert at(0.5) == (None, 200, None, "not recorded yet", False)
    assert at(1.5)[:3] == (b"x 1\n", 200, 200)
    assert at(2.5)[:3] == (b"x 1\n", 200, 503)
    assert at(3.5)[:2] == (b"oops", 500)
    assert at(4.5)[:2] == (b"x 2\n", 200)
    assert at(5.5)[3:] == ("timeout", True)
    assert at(6.5)[3:] == ("refused", False)
    assert at(7.5)[:3] == (b"x 1\n", 200, 200)
    assert player.nvml(0.0, 0.0) is None
    assert player.processes(0.0) is None
    player.close()


def test_series_that_come_and_go_keep_start_times_right(tmp_path: Path) -> None:
    """Which lines are start times is worked out anew whenever lines move; odd values are left alone."""
    first = b'process_start_time_seconds 900.0\na_created{x="y z"} 950.5\nb 1.0\n'
    second = (
        b'b 1.0\nc_created 1001.0\nprocess_start_time_seconds 900.0\na_created{x="y z"} 950.5 123\n'
        b"d_created NaN\ne_created x\n"
    )
    path = small(tmp_path / "x.vmrec", [Answer(0.0, "a", first), Answer(1.0, "a", second)])
    player = Player(path, wall=5000.0)
    assert player.at(0.0).servers["a"].body == b'process_start_time_seconds 4900.0\na_created{x="y z"} 4950.5\nb 1.0\n'
    assert player.at(1.0).servers["a"].body == (
        b'b 1.0\nc_created 5001.0\nprocess_start_time_seconds 4900.0\na_created{x="y z"} 4950.5 123\n'
        b"d_created NaN\ne_created x\n"
    )
    player.close()


def test_ticks_without_a_boot_time_still_change_with_every_round(tmp_path: Path) -> None:
    """A recording that does not know the boot time keeps ticks in the first round and changes them in the next."""
    table = ProcessTable(0.0, {7: HostProcess(7, 1, 500, "x")})
    path = small(tmp_path / "x.vmrec", [Processes(0.0, table), Answer(4.0, "a", b"x 1\n")])
    player = Player(path, wall=5000.0)
    first = player.at(0.0).processes
    again = player.at(5.0).processes
    assert first is not None
    assert again is not None
    assert first.processes[7].start_ticks == 500
    assert again.processes[7].start_ticks == 1000
    player.close()


@pytest.mark.parametrize(
    "value",
    [0.0, 1.0, 999999.5, 1796129420.55, 1796129466.41589, 2e9, 1e16, 1e21, 1234567.0, -5.0, math.nan, math.inf],
)
def test_numbers_are_written_as_upstream_writes_them(value: float) -> None:
    """Start times keep the form of prometheus_client."""
    assert go_float(value) == floatToGoString(value)


def test_in_process_sources_follow_the_caller_clock(player: Player) -> None:
    """GPU and process sources for tests read the moment that the caller's clock says, stamped with it."""
    gpus = PlayerGpuSource(player, lambda at: at - 1000.0)
    processes = PlayerProcessSource(player, lambda at: at - 1000.0)
    reading = gpus.read(1000.0 + RESTART_BACK, 77.0)
    assert (reading.at, reading.wall, reading.up) == (1000.0 + RESTART_BACK, 77.0, True)
    assert [p.pid for p in reading.gpus[0].processes or ()] == [734, 795, 1851]
    table = processes.read(1000.0 + RESTART_BACK, [1851])
    assert table.at == 1000.0 + RESTART_BACK
    assert 1851 in table.processes
    gpus.close()


def test_a_recording_without_gpus_says_so() -> None:
    """What was not recorded is down with a reason, never zero."""
    player = Player(CPU)
    assert PlayerGpuSource(player).read(1.0, 2.0) == NvmlReading(1.0, 2.0, up=False, reason="not_recorded")
    assert PlayerProcessSource(player).read(1.0, []).reason == "not recorded"
    player.close()


def test_a_sliced_recording_plays_like_the_whole(tmp_path: Path) -> None:
    """A slice gives the same bodies and readings as the whole recording at that position."""
    target = tmp_path / "slice.vmrec"
    copy(H200, target, start=150.0, stop=170.0)
    whole, part = Player(H200), Player(target)
    for t in (0.0, 5.0, 11.5, 15.0):
        a, b = whole.at(150.0 + t), part.at(t)
        assert {n: s.body for n, s in a.servers.items()} == {n: s.body for n, s in b.servers.items()}
        assert a.nvml is not None
        assert b.nvml is not None
        assert a.nvml.gpus == b.nvml.gpus
    whole.close()
    part.close()


def test_bad_arguments_are_refused() -> None:
    """A speed of 0 would never end."""
    with pytest.raises(ValueError, match="speed"):
        Player(CPU, speed=0)


def test_readings_keep_the_source_documents(tmp_path: Path) -> None:
    """Reading a moment twice does not share state between the two answers."""
    reading = NvmlReading(0.0, 0.0, True)
    path = small(tmp_path / "x.vmrec", [Gpus(0.0, reading), Answer(1.0, "a", b"x 1\n")])
    player = Player(path)
    assert player.nvml(1.0, 2.0) is None
    player.advance(0.5)
    assert player.nvml(1.0, 2.0) == NvmlReading(1.0, 2.0, True)
    player.close()
