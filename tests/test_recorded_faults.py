"""An orphaned, a stopped and a killed EngineCore, recorded on a real GPU: what the exporter says at each moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.stepper import Stepper, settings_of
from vllmeter.recording.player import Player
from vllmeter.snapshot import ServerView, Snapshot

CAPTURE = Path(__file__).parent / "captures" / "vllm-0.26.0-h200-orphan-and-hang.vmrec"

# Seconds of the recording, read from its bodies and process table: the embedder refuses from 122 on and its API server
# is reaped at 125; the chat model's EngineCore (pid 1100) is in state T from 129 to 166, gone from the GPU at 170, and
# /health answers 503 at 171; the port closes at 173.
LOADED, ORPHANED, STOPPED, KILLED, ENDED = 110, 127, 150, 172, 176

ENGINE_OF_EMBED = 760
HELD_BY_ORPHAN = 2_277_507_072


@pytest.fixture(scope="module")
def moments() -> dict[int, Snapshot]:
    """Snapshots at the named seconds of one pass through the recording."""
    player = Player(CAPTURE, loop=False)
    stepper = Stepper(settings_of(player), {s.name: "0.26.0" for s in player.header.servers})
    found: dict[int, Snapshot] = {}

    def steps() -> Iterator[int]:
        yield from range(int(player.duration) + 1)

    for second in steps():
        stepper.at = float(second)
        moment = player.at(stepper.at)
        stepper.wall_zero = moment.wall - stepper.at
        stepper.moment(moment)
        if second in (LOADED, ORPHANED, STOPPED, KILLED, ENDED):
            found[second] = stepper.snapshot()
    player.close()
    return found


def view(snapshot: Snapshot, name: str) -> ServerView:
    return next(s for s in snapshot.servers if s.name == name)


def test_under_load_every_byte_has_an_owner(moments: dict[int, Snapshot]) -> None:
    """Three servers, each found by its listening port, measured; 20 MiB of page tables belong to nobody."""
    snapshot = moments[LOADED]
    for server in snapshot.servers:
        assert (server.attribution.state, server.attribution.method) == ("measured", "listening_port")
    (gpu,) = snapshot.gpus
    held = sum(int(row.used.value or 0) for s in snapshot.servers for row in s.memory)
    assert gpu.other == ()
    assert gpu.reading.memory_used_bytes is not None
    assert gpu.unattributed_bytes == gpu.reading.memory_used_bytes - held == 20 * 2**20


def test_the_orphan_is_named_with_its_memory_and_no_longer_counted_for_its_server(moments: dict[int, Snapshot]) -> None:
    """The API server was killed with SIGKILL: the port refuses, the EngineCore keeps 2.1 GiB."""
    snapshot = moments[ORPHANED]
    embed = view(snapshot, "embed")
    assert embed.state == "gone"
    assert embed.reading is None
    assert embed.memory == ()
    (orphan,) = snapshot.gpus[0].other
    assert orphan.orphan
    assert orphan.used_bytes == HELD_BY_ORPHAN
    assert f"pid {ENGINE_OF_EMBED}" in orphan.detail
    assert "was part of embed" in orphan.detail


def test_a_stopped_engine_is_seen_although_its_metrics_answer(moments: dict[int, Snapshot]) -> None:
    """running 0, waiting 0, HTTP 200, /health 200: only /proc shows that nobody works on the request.

    The exporter beside the recorder also saw the open connection and said ``stuck``; connections were not recorded.
    """
    chat = view(moments[STOPPED], "chat")
    assert chat.scrape.up
    assert chat.scrape.healthy is True
    assert chat.reading is not None
    assert chat.reading.total("requests_running") == 0
    assert chat.state == "unknown_progress"
    assert chat.state_reason == "the engine process is stopped: the next request will hang"


def test_a_killed_engine_is_dead_while_its_metrics_are_frozen(moments: dict[int, Snapshot]) -> None:
    """/metrics goes on with 200 for seconds; the memory is given back at once."""
    snapshot = moments[KILLED]
    chat = view(snapshot, "chat")
    assert chat.state == "engine_dead"
    assert chat.memory == ()
    assert chat.reading is not None
    assert chat.reading.total("requests_running") is None
    assert chat.reading.total("generation_tokens_total")
    assert view(moments[ENDED], "chat").state == "gone"


def test_the_neighbour_is_not_touched_by_any_of_it(moments: dict[int, Snapshot]) -> None:
    """No restart, no change, ready, its own memory."""
    for second in (ORPHANED, STOPPED, KILLED, ENDED):
        rerank = view(moments[second], "rerank")
        assert rerank.state == "ready"
        assert rerank.restarts == 0
        assert [row.used.value for row in rerank.memory] == [1_627_389_952]
