"""The series of the live page and windows of the past: the same numbers as the windows had at the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.stepper import Stepper, settings_of
from vllmeter.recording.player import Player
from vllmeter.snapshot import Windowed
from vllmeter.windows.series import FIELDS, ServerSeries

CAPTURES = Path(__file__).resolve().parents[1] / "captures"
PRESSURE = CAPTURES / "vllm-0.26.0-h200-pressure.vmrec"


def play(step: float = 1.0) -> tuple[Stepper, dict[str, dict[float, Windowed]], dict[str, ServerSeries]]:
    """The recording, the windows of every tick as they were then, and series that were read now and then."""
    player = Player(PRESSURE, loop=False)
    stepper = Stepper(settings_of(player))
    windows: dict[str, dict[float, Windowed]] = {name: {} for name in stepper.targets}
    early = {name: ServerSeries(stepper.store.entry(name).tracker) for name in stepper.targets}  # type: ignore[union-attr]
    at = 0.0
    while at < player.duration:
        moment = player.at(at)
        stepper.at = at
        stepper.wall_zero = moment.wall - at
        stepper.moment(moment)
        for name in stepper.targets:
            tracker = stepper.store.entry(name).tracker  # type: ignore[union-attr]
            windows[name][at] = tracker.windowed(60.0)
            if int(at) % 7 == 0:
                early[name].update()
        at += step
    return stepper, windows, early


@pytest.fixture(scope="module")
def played() -> tuple[Stepper, dict[str, dict[float, Windowed]], dict[str, ServerSeries]]:
    return play()


def test_every_row_says_what_the_window_said_at_the_time(
    played: tuple[Stepper, dict[str, dict[float, Windowed]], dict[str, ServerSeries]],
) -> None:
    """Mean, jitter bounds and hit ratio of the 60 s window, to the last bit; and a reader in pieces reads the same."""
    stepper, windows, early = played
    seen = 0
    for name, by_time in windows.items():
        tracker = stepper.store.entry(name).tracker  # type: ignore[union-attr]
        late = ServerSeries(tracker)
        late.update()
        early[name].update()
        assert list(late.rows) == list(early[name].rows)
        assert [at for at, _ in late.rows] == [at for at in by_time if at > max(by_time) - 900.0]
        for at, values in late.rows:
            row = dict(zip(FIELDS, values, strict=True))
            then = by_time[at]
            assert row["ttft_mean_60s"] == then.ttft_mean
            assert row["ttft_jitter_lower_60s"] == then.ttft_jitter_lower
            assert row["ttft_jitter_upper_60s"] == then.ttft_jitter_upper
            assert row["prefix_hit_ratio_60s"] == pytest.approx(then.prefix_hit_ratio)
            seen += then.ttft_jitter_lower is not None
    assert seen > 50


def test_rows_hold_every_request_token_and_preemption_once(
    played: tuple[Stepper, dict[str, dict[float, Windowed]], dict[str, ServerSeries]],
) -> None:
    """Sums over the rows equal what the server counted between its first and last sample."""
    stepper, _, _ = played
    preempted = 0.0
    for name in stepper.targets:
        entry = stepper.store.entry(name)
        assert entry is not None
        series = ServerSeries(entry.tracker)
        series.update()
        rows = [dict(zip(FIELDS, values, strict=True)) for _, values in series.rows]
        whole = entry.tracker.between(series.rows[0][0], series.rows[-1][0])
        assert sum(row["ttft_requests"] or 0 for row in rows[1:]) == whole.ttft_requests
        assert sum(row["preemptions"] or 0 for row in rows[1:]) == whole.preemptions
        tokens = sum((row["generation_tokens_per_second"] or 0) * (row["covers_seconds"] or 0) for row in rows[1:])
        assert tokens == pytest.approx(whole.generation_tokens or 0.0)
        preempted += whole.preemptions or 0
    assert preempted > 0


def test_a_window_of_the_past_is_the_window_that_was(
    played: tuple[Stepper, dict[str, dict[float, Windowed]], dict[str, ServerSeries]],
) -> None:
    """between() gives, for any past moment, the identical object content."""
    stepper, windows, _ = played
    for name, by_time in windows.items():
        tracker = stepper.store.entry(name).tracker  # type: ignore[union-attr]
        for at, then in by_time.items():
            if int(at) % 5 == 0 and at > 60:
                assert tracker.between(at - 60.0, at) == then


def test_nothing_is_known_before_the_first_sample() -> None:
    """An empty tracker has no rows, and a window of it says why it is empty."""
    stepper = Stepper(settings_of(Player(PRESSURE)))
    entry = next(iter(stepper.targets))
    tracker = stepper.store.entry(entry).tracker  # type: ignore[union-attr]
    assert ServerSeries(tracker).update() == 0
    assert tracker.between(0.0, 5.0).absent["ttft_mean"] == "no_samples"


def test_a_short_series_has_the_end_of_the_long_one(
    played: tuple[Stepper, dict[str, dict[float, Windowed]], dict[str, ServerSeries]],
) -> None:
    """What is read for a page that shows little is no other number."""
    stepper, _, _ = played
    for name in stepper.targets:
        tracker = stepper.store.entry(name).tracker  # type: ignore[union-attr]
        long, short = ServerSeries(tracker), ServerSeries(tracker, reach=20.0)
        long.update()
        short.update()
        assert len(short.rows) == 20
        assert list(short.rows) == long.since(short.rows[0][0] - 0.5)
