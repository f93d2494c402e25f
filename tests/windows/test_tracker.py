"""Windows over any sequence of samples, resets and gaps, against brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.snapshot import Layout, ServerReading, Windowed
from vllmeter.windows.contention import SLOT_SECONDS, slot_after
from vllmeter.windows.state import Evidence
from vllmeter.windows.tracker import ServerTracker
from windows.bounds_brute import TTFT, population_sd
from windows.simulated import Server

WALL = 1_800_000_000.0


@dataclass
class Seen:
    """What brute force knows of the stretch between two usable samples."""

    start: float
    end: float
    ttfts: list[float] = field(default_factory=list)
    preemptions: int = 0


EVENTS = st.one_of(
    st.tuples(st.just("requests"), st.lists(st.one_of(st.floats(0.0, 30.0), st.sampled_from(TTFT[:12])), max_size=6)),
    st.tuples(st.just("preempt"), st.integers(1, 9)),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 1.0, 1.0, 1.0, 4.4, 20.0, 70.0])),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("fail"), st.sampled_from(["timeout", "refused", "http_500"])),
)


def in_window(stretches: Sequence[Seen], now: float, seconds: float) -> list[Seen]:
    """Stretches that ended in the window and did not begin half a window before it."""
    return [s for s in stretches if now - seconds < s.end <= now and s.start >= now - 1.5 * seconds]


@settings(max_examples=120, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=50), st.sampled_from([15.0, 60.0]), st.booleans(), st.integers(0, 10))
def test_windows_equal_brute_force(
    events: list[tuple[str, object]], seconds: float, says_start: bool, skip: int
) -> None:
    """Requests, sums and preemptions are exact, jitter and quantiles hold the truth, whatever happens in between.

    ``skip`` samples are missed by an exporter that starts late: it never sees more than happened in front of it.
    """
    server = Server(start=WALL - 500.0)
    server.says_start = says_start
    tracker = ServerTracker("a")
    now = 100.0
    server.request(0.5)  # before anybody watches
    server.engines["0"].counters["preemptions_total"] = 7.0
    sampled: float | None = None
    open_: Seen | None = None
    stretches: list[Seen] = []
    refused_at: float | None = None
    died = watched = False
    born = ticked = now
    for number, (kind, what) in enumerate(events):
        if kind == "requests":
            for value in what:  # type: ignore[attr-defined]
                server.request(value)
                if open_ is not None:
                    open_.ttfts.append(value)
        elif kind == "preempt":
            server.engines["0"].counters["preemptions_total"] += what  # type: ignore[operator]
            if open_ is not None:
                open_.preemptions += what  # type: ignore[operator]
        elif kind == "restart":
            now += 3.0
            server.restart(WALL + now)
            # Without a start time only a fall of the counters shows a restart: make sure that there was something.
            died, born = True, now
            if open_ is not None:
                open_.ttfts, open_.preemptions = [], 0
            elif watched and says_start:
                open_ = Seen(now, inf)  # the process is younger than our watch: it counts from 0 before our eyes
        elif kind == "fail":
            now += 0.5
            if number >= skip:
                watched = True
                ticked = now
                tracker.fail(str(what), now, wall=WALL + now)
                refused_at = now if what == "refused" else refused_at
        else:
            now += what  # type: ignore[operator]
            if number < skip:
                continue
            if died and not says_start and not _fell(server):
                # Nothing tells this restart from more load; vLLM's own counters lose it, and so do we.
                return
            tracker.observe(server.reading(), now, wall=WALL + now)
            if open_ is not None:
                open_.end = now
                if died:
                    starts = [open_.start, *([refused_at] if refused_at is not None else [])]
                    open_.start = max(*starts, born) if says_start else max(starts)
                stretches.append(open_)
            died = False
            sampled = ticked = now
            open_ = Seen(now, inf)
        if sampled is None:
            continue
        # Two samples may be restarts; more in one window are refused as unstable.
        made = tracker.windowed(seconds)
        if "unstable_counters" in made.absent.values():
            assert made.ttft_requests is None
            continue
        compare(made, in_window(stretches, ticked, seconds))


def _fell(server: Server) -> bool:
    """Whether the counters after the restart are all 0 (then every counter that ever moved has fallen)."""
    return not any(server.engines["0"].counts["ttft_seconds"]) and (
        server.engines["0"].counters["preemptions_total"] == 0.0
    )


def compare(made: Windowed, cells: Sequence[Seen]) -> None:
    """The window against the stretches that belong to it."""
    values = [value for cell in cells for value in cell.ttfts]
    if made.ttft_requests is None:
        assert not values
        assert made.absent["ttft_requests"] in ("no_samples", "no_earlier_sample", "gap")
        return
    assert made.ttft_requests == len(values)
    assert made.preemptions == sum(cell.preemptions for cell in cells)
    assert made.requests_finished == len(values)
    assert made.e2e_requests == len(values)
    largest = max((cell.preemptions for cell in cells), default=0)
    assert made.preemptions_burst_peak is not None
    assert made.preemptions_burst_peak <= largest
    if all(cell.end - cell.start <= 1.5 for cell in cells):
        assert made.preemptions_burst_peak == largest
    if not values:
        assert made.ttft_mean is None
        assert made.absent["ttft_mean"] == "no_requests"
        return
    room = 1e-9 + 1e-7 * max(values)
    assert made.ttft_mean == pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e-9)
    if len(values) >= 2:
        assert made.ttft_jitter_lower is not None
        assert made.ttft_jitter_upper is not None
        assert made.ttft_jitter_lower - room <= population_sd(values) <= made.ttft_jitter_upper + room
    for label, (low, high) in made.ttft_quantiles.items():
        rank = -(-round(float(label) * 100) * len(values) // 100)
        assert low - room <= sorted(values)[rank - 1] <= high + room


def test_readers_see_one_object_until_the_next_tick() -> None:
    """Any number of readers of one tick get the identical window; the next sample makes a new one."""
    server = Server()
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 1.0)
    first = tracker.windowed(60.0)
    assert all(tracker.windowed(60.0) is first for _ in range(3))
    server.request(0.2)
    tracker.observe(server.reading(), 2.0)
    second = tracker.windowed(60.0)
    assert second is not first
    assert (first.ttft_requests, second.ttft_requests) == (None, 1)


def test_a_restarted_exporter_shows_no_spike() -> None:
    """An exporter that finds large counters takes them as they are: nothing of them happened in its window."""
    server = Server(start=WALL - 9000.0)
    for _ in range(500):
        server.request(3.0)
    server.engines["0"].counters["preemptions_total"] = 400.0
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 50.0, wall=WALL)
    first = tracker.windowed(15.0)
    assert (first.ttft_requests, first.preemptions) == (None, None)
    assert first.absent["preemptions"] == "no_earlier_sample"
    tracker.observe(server.reading(), 51.0, wall=WALL + 1.0)
    second = tracker.windowed(15.0)
    assert (second.ttft_requests, second.preemptions, second.preemptions_burst_peak) == (0, 0.0, 0.0)


def test_the_first_event_after_a_start_is_not_missed() -> None:
    """A server that was down when we began to look and starts with two requests: both are counted, at their time."""
    server = Server(start=WALL + 30.0)
    tracker = ServerTracker("a")
    for second in range(40):
        tracker.fail("refused", float(second), wall=WALL + second)
    server.request(0.3)
    server.request(0.4)
    server.engines["0"].counters["preemptions_total"] = 1.0
    tracker.observe(server.reading(), 40.0, wall=WALL + 40.0)
    made = tracker.windowed(15.0)
    assert (made.ttft_requests, made.preemptions) == (2, 1.0)
    assert made.ttft_span_seconds == pytest.approx(1.0)
    assert tracker.status().last_preemption == WALL + 40.0


def test_restart_is_counted_once_with_its_time() -> None:
    """A new process start time is a restart even when the counters have already passed the old ones."""
    server = Server(start=WALL - 100.0)
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0, wall=WALL)
    server.restart(WALL + 5.0)
    for _ in range(3):
        server.request(0.2)
    tracker.observe(server.reading(), 10.0, wall=WALL + 10.0)
    tracker.observe(server.reading(), 11.0, wall=WALL + 11.0)
    status = tracker.status()
    assert (status.restarts, status.last_restart, status.start_timestamp) == (1, WALL + 5.0, WALL + 5.0)
    made = tracker.windowed(60.0)
    assert made.ttft_requests == 3


def test_two_servers_behind_one_address_are_not_a_spike() -> None:
    """A load balancer that shows two processes in turn gives no windowed counts, and says why; gauges remain."""
    one, two = Server(start=WALL - 5000.0), Server(start=WALL - 3000.0)
    for _ in range(100):
        two.request(1.0)
    tracker = ServerTracker("a")
    for second in range(20):
        tracker.observe((one, two)[second % 2].reading(), float(second), wall=WALL + second)
        made = tracker.windowed(15.0)
        assert not made.ttft_requests
    assert made.absent["ttft_requests"] == "several_processes"
    assert made.requests_waiting_peak == 0.0
    assert tracker.status().restarts == 0


def test_counters_that_fall_all_the_time_are_refused() -> None:
    """Without a start time two replicas look like a restart every other second: three in a window are too many."""
    one, two = Server(), Server()
    one.says_start = two.says_start = False
    for _ in range(100):
        two.request(1.0)
    tracker = ServerTracker("a")
    for second in range(20):
        tracker.observe((one, two)[second % 2].reading(), float(second), wall=WALL + second)
    assert tracker.windowed(15.0).absent["preemptions"] == "unstable_counters"


def test_multiprocess_restart_with_kept_files_is_no_spike() -> None:
    """PROMETHEUS_MULTIPROC_DIR kept across a restart: the process is new, the counters go on, nothing is added."""
    server = Server()
    server.says_start = False
    for _ in range(200):
        server.request(1.0)
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0, wall=WALL, evidence=Evidence(start_ticks=((10, 5),)))
    tracker.observe(server.reading(), 1.0, wall=WALL + 1, evidence=Evidence(start_ticks=((77, 900),)))
    made = tracker.windowed(15.0)
    assert tracker.status().restarts == 1
    assert made.ttft_requests is None
    assert made.absent["ttft_requests"] == "restart_without_reset"


def test_a_child_process_that_comes_is_no_restart() -> None:
    """In multiprocess mode only the processes tell a restart; one that stays means that it is the same life."""
    server = Server()
    server.says_start = False
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0, evidence=Evidence(start_ticks=((10, 5),)))
    server.request(0.2)
    tracker.observe(server.reading(), 1.0, evidence=Evidence(start_ticks=((10, 5), (11, 7))))
    assert tracker.status().restarts == 0
    assert tracker.windowed(15.0).ttft_requests == 1


def test_series_that_appear_with_their_first_event_count_it() -> None:
    """V0 creates a series with its first event: it was 0 before."""
    server = Server()
    empty = Layout((), (), engine_metrics=True)
    tracker = ServerTracker("a")
    tracker.observe(ServerReading(empty, (), (), (), server.start), 0.0)
    server.request(0.2)
    tracker.observe(server.reading(), 1.0)
    made = tracker.windowed(15.0)
    assert (made.ttft_requests, made.generation_tokens) == (1, 10.0)


def test_series_that_vanish_for_a_sample_go_on_where_they_were() -> None:
    """A body without the engine's series in between neither resets nor repeats anything."""
    server = Server()
    for _ in range(50):
        server.request(0.2)
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0)
    tracker.observe(ServerReading(Layout((), ()), (), (), (), server.start), 1.0)
    server.request(0.2)
    tracker.observe(server.reading(), 2.0)
    made = tracker.windowed(15.0)
    assert (made.ttft_requests, made.requests_finished) == (1, 1.0)
    assert tracker.status().restarts == 0


def test_engines_are_pooled() -> None:
    """Two data-parallel ranks: queues and counts are summed, KV usage is the larger, jitter is around one mean."""
    server = Server(engines=("0", "1"))
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0)
    server.request(0.2, "0")
    server.request(0.8, "1")
    for engine, usage in (("0", 0.4), ("1", 0.9)):
        server.engines[engine].gauges.update(requests_waiting=3.0, kv_cache_usage_ratio=usage)
    tracker.observe(server.reading(), 1.0)
    made = tracker.windowed(15.0)
    assert (made.requests_waiting_peak, made.kv_cache_usage_peak, made.ttft_requests) == (6.0, 0.9, 2)
    assert made.ttft_jitter == pytest.approx(0.3)


@pytest.mark.parametrize("wrong", [-5.0, 1.7e9, nan])
def test_impossible_sums_make_the_window_absent(wrong: float) -> None:
    """A negative or uptime-sized interval in the sum: merged for five seconds, then the window is inconsistent."""
    server = Server()
    tracker = ServerTracker("a", windows=(15.0, 60.0))
    tracker.observe(server.reading(), 0.0)
    reasons = []
    for second in range(1, 30):
        server.request(0.2)
        if second == 3:
            server.engines["0"].sums["ttft_seconds"] += wrong
        tracker.observe(server.reading(), float(second))
        made = tracker.windowed(15.0)
        reasons.append(made.absent.get("ttft_mean"))
        if made.ttft_mean is not None:
            assert made.ttft_mean == pytest.approx(0.2)
            assert made.ttft_requests is not None
            assert made.ttft_requests <= second
    assert "inconsistent" in reasons
    assert reasons[1] is None
    assert tracker.windowed(15.0).e2e_mean is not None  # other histograms do not suffer
    if wrong == wrong:
        assert reasons[-1] is None


def test_a_latency_older_than_the_process_is_not_believed() -> None:
    """vLLM can record the uptime of the host as a latency: buckets and sum agree, but nothing is older than its
    process."""
    server = Server(start=WALL - 600.0)
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0, wall=WALL)
    server.request(864_000.0)
    for second in range(1, 9):
        tracker.observe(server.reading(), float(second), wall=WALL + second)
        assert tracker.windowed(15.0).ttft_mean is None
    assert tracker.windowed(15.0).absent["ttft_mean"] == "inconsistent"
    slow = Server(start=WALL - 6000.0, bounds=(0.1, 1.0))
    tracker = ServerTracker("b")
    tracker.observe(slow.reading(), 0.0, wall=WALL)
    slow.request(3000.0)
    tracker.observe(slow.reading(), 1.0, wall=WALL + 1.0)
    assert tracker.windowed(15.0).ttft_mean == 3000.0


def test_sum_and_buckets_of_different_moments_are_merged() -> None:
    """A sample whose sum lags one request behind its buckets costs nothing: the next one completes the cell."""
    server = Server()
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0)
    server.request(4.0)
    torn = server.reading()
    tracker.observe(replace(torn, sums=(0.0, *torn.sums[1:])), 1.0)
    assert tracker.windowed(15.0).ttft_requests == 0
    server.request(0.2)
    tracker.observe(server.reading(), 2.0)
    made = tracker.windowed(15.0)
    assert made.ttft_requests == 2
    assert made.ttft_mean == pytest.approx(2.1)


def test_a_jump_of_the_wall_clock_changes_nothing() -> None:
    """Windows run on monotonic time: an hour forward or back on the wall clock leaves them as they are."""
    made = []
    for jump in (0.0, 3600.0, -3600.0):
        server = Server(start=WALL - 10.0)
        tracker = ServerTracker("a")
        for second in range(20):
            server.request(0.1 + 0.01 * second)
            tracker.observe(server.reading(), float(second), wall=WALL + second + (jump if second > 10 else 0.0))
        made.append(tracker.windowed(15.0))
        assert tracker.status().restarts == 0
    assert made[0] == made[1] == made[2]


def test_samples_that_are_not_later_are_ignored() -> None:
    """A second reading of the same moment adds nothing."""
    server = Server()
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 5.0)
    server.request(0.2)
    tracker.observe(server.reading(), 5.0)
    tracker.observe(server.reading(), 4.0)
    assert tracker.windowed(15.0).ttft_requests is None
    tracker.observe(server.reading(), 6.0)
    assert tracker.windowed(15.0).ttft_requests == 1


def test_a_long_gap_is_not_squeezed_into_the_window() -> None:
    """After five minutes without samples, what happened meanwhile is not counted as the last 15 or 60 seconds."""
    server = Server(start=WALL - 100.0)
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0, wall=WALL)
    for _ in range(300):
        server.request(0.2)
    server.engines["0"].counters["preemptions_total"] = 50.0
    server.engines["0"].gauges["requests_waiting"] = 4.0
    tracker.observe(server.reading(), 300.0, wall=WALL + 300.0)
    for seconds in (15.0, 60.0):
        made = tracker.windowed(seconds)
        assert made.preemptions is None
        assert made.ttft_requests is None
        assert made.absent["ttft_requests"] == "gap"
        assert made.requests_waiting_peak == 4.0  # a gauge is as it was sampled
    assert tracker.status().last_preemption == WALL + 300.0  # the event itself is not lost


def test_no_samples_is_absent_everywhere() -> None:
    """Before the first sample, and once the last one has left the window, every value is absent with a reason."""
    tracker = ServerTracker("a")
    assert tracker.windowed(15.0).absent["ttft_jitter"] == "no_samples"
    server = Server()
    tracker.observe(server.reading(), 0.0)
    tracker.fail("timeout", 20.0)
    made = tracker.windowed(15.0)
    assert made.requests_waiting_peak is None
    assert made.absent["requests_waiting_peak"] == "no_samples"


def test_what_the_server_does_not_offer_is_absent() -> None:
    """Series that this vLLM does not have give no value, and the reason tells it from "not yet"."""
    server = Server()
    tracker = ServerTracker("a")
    for second in range(3):
        tracker.observe(server.reading(), float(second))
    made = tracker.windowed(15.0)
    assert made.prompt_tokens_computed is None
    assert made.absent["prompt_tokens_computed"] == "not_offered"
    assert made.absent["prefix_hit_ratio"] == "no_queries"
    assert made.preemptions == 0.0


def test_changes_of_settings_are_counted_with_words() -> None:
    """A restart with another flag is a configuration change that says what changed; another spelling is none."""
    server = Server()
    tracker = ServerTracker("a")
    tracker.observe(server.reading(), 0.0, wall=WALL, settings={"max_num_batched_tokens": "2048", "x": "True"})
    tracker.observe(server.reading(), 1.0, wall=WALL + 1, settings={"x": "true", "new": "1"})
    assert tracker.status().config_changes == 0
    tracker.observe(server.reading(), 2.0, wall=WALL + 2, settings={"max_num_batched_tokens": "8192", "x": "true"})
    status = tracker.status()
    assert (status.config_changes, status.last_config_change) == (1, WALL + 2)
    assert status.last_change == "max_num_batched_tokens 2048 -> 8192"


HOSTILE = st.sampled_from([0.0, 1.0, 5.0, -3.0, 1e300, inf, -inf, nan, 0.5])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.lists(HOSTILE, min_size=7, max_size=53), st.sampled_from([None, 1.0, 2.0, nan])), max_size=8)
)
def test_nonsense_never_raises_and_never_shows_nonsense(bodies: list[tuple[list[float], float | None]]) -> None:
    """Whatever numbers a body holds, windows stay finite or absent, and nothing raises."""
    server = Server(bounds=(0.1, 1.0))
    tracker = ServerTracker("a")
    shape = server.reading()
    for second, (numbers, start) in enumerate(bodies):
        endless = cycle(numbers)
        reading = replace(
            shape,
            values=tuple(next(endless) for _ in shape.values),
            buckets=tuple(tuple(next(endless) for _ in counts) for counts in shape.buckets),
            sums=tuple(next(endless) for _ in shape.sums),
            process_start=start,
        )
        tracker.observe(reading, float(second), wall=(None, 0.0, 1e9)[second % 3])
        made = tracker.windowed(15.0)
        for name in (
            "ttft_mean",
            "ttft_jitter_lower",
            "ttft_jitter_upper",
            "itl_mean",
            "prefix_hit_ratio",
            "preemptions",
            "preemptions_burst_peak",
            "requests_waiting_peak",
            "kv_cache_usage_peak",
        ):
            value = getattr(made, name)
            assert value is None or 0.0 <= value < inf
        tracker.status()


def test_the_gauges_of_a_dead_engine_are_not_taken_for_samples() -> None:
    """They keep their last values: no peak, no busy time, no history comes of them; what was true before stays."""
    server = Server(start=WALL - 500.0)
    tracker = ServerTracker("a")
    for second in range(120):
        server.engines["0"].gauges.update(requests_running=3.0, requests_waiting=float(second < 30))
        tracker.observe(server.reading(), float(second), wall=WALL + second, health=200 if second < 60 else 503)
        if second in (59, 74, 119):
            made = tracker.windowed(15.0)
            if second == 59:
                assert made.requests_running_peak == 3.0
                assert not tracker.status().frozen
                continue
            assert tracker.status().frozen
            for name in ("requests_running_peak", "requests_waiting_peak", "kv_cache_usage_peak"):
                assert getattr(made, name) is None
                assert made.absent[name] == "engine_dead"
            assert made.generation_tokens == 0.0
    # Samples of the last minute before its death are as true as ever.
    assert tracker.between(30.0, 90.0).requests_running_peak == 3.0
    assert tracker.history("requests_running", 59.0) == []
    assert busy_seconds(tracker) == pytest.approx(59.0, abs=1.0)
    tracker.pending(123.0, in_flight=3.0, wall=WALL + 123.0)
    assert tracker.status().frozen
    server.restart(WALL + 124.0)
    tracker.observe(server.reading(), 126.0, wall=WALL + 126.0, health=200)
    assert not tracker.status().frozen
    assert tracker.windowed(15.0).requests_running_peak == 0.0


def busy_seconds(tracker: ServerTracker) -> float:
    """Seconds in which the server counted as busy."""
    return tracker.busy.window(0, slot_after(200.0)).bit_count() * SLOT_SECONDS
