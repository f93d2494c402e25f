"""Runs in `/metrics`: active, ended, and a name that is used again."""

from __future__ import annotations

from fakes.stepper import Stepper, settings_of
from test_golden import CAPTURES
from vllmeter.recording.player import Player

RECORDING = CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec"
END = "vllmeter_run_end_timestamp_seconds"


def stepped() -> Stepper:
    """Some seconds of the recording."""
    player = Player(RECORDING, loop=False)
    stepper = Stepper(settings_of(player), {s.name: "0.26.0" for s in player.header.servers})
    for position in range(4):
        moment = player.at(float(position))
        stepper.wall_zero = moment.wall - stepper.at
        stepper.moment(moment)
        stepper.at += 1
    player.close()
    return stepper


def shown(stepper: Stepper, family: str) -> dict[str, float]:
    """Labels -> value of a family in `/metrics`; fails where a series stands twice."""
    out: dict[str, float] = {}
    stepper.at += 1  # a snapshot is kept for a moment
    for line in stepper.metrics(openmetrics=False).decode().splitlines():
        if line.startswith(family + "{"):
            labels, value = line[len(family) :].rsplit(" ", 1)
            assert labels not in out
            out[labels] = float(value)
    return out


def test_an_ended_run_says_when_and_is_forgotten_later() -> None:
    """While a run is active it has no end; then its end stands in /metrics for 15 minutes, and not for ever."""
    stepper = stepped()
    stepper.mark_run("r", "short", "vllm-qwen3", start=True)
    assert shown(stepper, END) == {}
    ended = stepper.wall
    stepper.mark_run("r", "short", "vllm-qwen3", start=False)
    assert shown(stepper, "vllmeter_run_active") == {}
    (value,) = shown(stepper, END).values()
    assert abs(value - ended) <= 1
    stepper.at += 890
    assert len(shown(stepper, END)) == 1
    stepper.at += 20
    assert shown(stepper, END) == {}


def test_a_name_used_again_has_one_end() -> None:
    """No series stands twice: the newest end counts, and none while a run of that name is active again."""
    stepper = stepped()
    for _ in range(2):
        stepper.mark_run("r", "short", "", start=True)
        assert shown(stepper, END) == {}
        stepper.at += 5
        stepper.mark_run("r", "short", "", start=False)
        ended = stepper.wall
        ends = shown(stepper, END)
        assert len(ends) == 3  # a run on all servers is one series per server
        assert all(abs(value - ended) <= 1 for value in ends.values())


def test_ends_do_not_grow_without_limit() -> None:
    """Of many runs in a quarter of an hour the ten newest are shown."""
    stepper = stepped()
    for number in range(30):
        stepper.mark_run(f"r{number}", "short", "vllm-qwen3", start=True)
        stepper.mark_run(f"r{number}", "short", "vllm-qwen3", start=False)
    assert sorted(shown(stepper, END)) == sorted(
        f'{{server="vllm-qwen3",scenario="short",run="r{number}"}}' for number in range(20, 30)
    )
