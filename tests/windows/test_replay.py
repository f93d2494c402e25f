"""The recordings of real servers: numbers that are known from elsewhere must come out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from vllmeter.windows.jitter import jitter, part_of
from vllmeter.windows.tracker import ServerTracker
from windows.replayed import CPU_CAPTURE, GPU_CAPTURE, Replay, steps

CHAT = "vllm-qwen3"

# Standard deviation of the per-request TTFT that the load client wrote down, per phase of the recording.
TRUTH = {
    "base-2048-short": (24, 0.5584, (0.558, 0.599), 3),
    "base-2048-long": (16, 0.0217, (0.0171, 0.0303), 1),
    "pressure-64": (60, 2.4532, (2.383, 2.689), 3),
    "prefix-shared": (64, 0.0205, (0.0198, 0.0497), 38),
    "cand-8192-short": (24, 0.0595, (0.0541, 0.0616), -3),
    "cand-8192-long": (16, 0.0230, (0.0206, 0.0426), 21),
}


@pytest.fixture(scope="module")
def played() -> Replay:
    """The three-instances recording, played to the end."""
    replay = Replay(GPU_CAPTURE)
    for _ in replay.play():
        pass
    return replay


@pytest.mark.parametrize("phase", TRUTH)
def test_jitter_of_each_phase(played: Replay, phase: str) -> None:
    """The bounds hold the client's truth and the point estimate is off by what the design states (per cent)."""
    requests, truth, (lower, upper), off = TRUTH[phase]
    times = [step.t for step in steps(GPU_CAPTURE) if step.phase == phase]
    cells = [cell for cell in played.trackers[CHAT].cells() if times[0] < cell.end <= times[-1]]
    made = jitter(part_of(cell) for cell in cells)
    assert made.requests == requests
    assert made.lower == pytest.approx(lower, rel=0.01)
    assert made.upper == pytest.approx(upper, rel=0.01)
    assert made.lower is not None
    assert made.upper is not None
    assert made.lower <= truth <= made.upper
    assert made.estimate is not None
    assert made.error_ratio is not None
    assert 100 * (made.estimate / truth - 1) == pytest.approx(off, abs=1.0)
    assert abs(made.estimate - truth) <= made.error_ratio * truth


def test_pressure_shows_its_19_preemptions_second_by_second() -> None:
    """19 preemptions, at most two between two samples, in the sixteen seconds in which they came."""
    replay = Replay(GPU_CAPTURE)
    burst_at = []
    windows = []
    for step in replay.play():
        if step.server == CHAT and step.phase == "pressure-64":
            windows.append(replay.trackers[CHAT].windowed(60.0))
            burst_at.append((step.t, replay.trackers[CHAT].windowed(15.0).preemptions_burst_peak))
    assert windows[-1].preemptions == 19.0
    history = [(t, n) for t, n in replay.trackers[CHAT].history("preemptions") if n]
    assert sum(n for _, n in history) == 19.0
    assert max(n for _, n in history) == 2.0
    first, last = history[0][0], history[-1][0]
    assert last - first == pytest.approx(14.0, abs=1.1)
    # The burst is seen with the very sample that shows it and for 15 s after it.
    for at, peak in burst_at:
        in_reach = [n for t, n in history if at - 15.0 < t <= at]
        assert peak == max(in_reach, default=0.0)
    status = replay.trackers[CHAT].status()
    assert status.last_preemption is not None


def test_prefix_phase_shows_its_hit_ratio() -> None:
    """800 of about 900 tokens per prompt are shared: the window's ratio is that, and absent before any query."""
    replay = Replay(GPU_CAPTURE)
    ratios = []
    for step in replay.play():
        if step.server == CHAT:
            made = replay.trackers[CHAT].windowed(15.0)
            if step.phase == "idle":
                assert made.prefix_hit_ratio is None
            elif step.phase == "prefix-shared" and made.prefix_hit_ratio is not None:
                ratios.append((made.prefix_hit_ratio, made.prompt_tokens_cached, made.prompt_tokens_computed))
    ratio, cached, computed = ratios[-1]
    assert ratio == pytest.approx(0.876, abs=0.002)
    assert cached is not None
    assert computed is not None
    assert cached / (cached + computed) == pytest.approx(ratio, abs=0.002)


def test_the_restart_is_seen_once_and_changes_no_window_for_the_worse(played: Replay) -> None:
    """The chat model was stopped and started: one restart, none for the neighbours, and gone in between."""
    status = played.trackers[CHAT].status()
    assert status.restarts == 1
    assert status.last_restart == status.start_timestamp
    assert [played.trackers[name].status().restarts for name in ("vllm-embed", "vllm-reranker")] == [0, 0]
    replay = Replay(GPU_CAPTURE)
    states = set()
    for step in replay.play():
        if step.server == CHAT and step.phase == "restart-8192":
            states.add(replay.trackers[CHAT].status().state)
    assert states == {"gone", "ready"}


@pytest.mark.parametrize("since", [110.0, 117.5, 126.0, 150.5, 230.0])
def test_exporter_restarted_in_the_middle_never_shows_a_spike(played: Replay, since: float) -> None:
    """An exporter started in the middle of the load sees at no moment more than the one that ran all along."""
    replay = Replay(GPU_CAPTURE)
    whole = Replay(GPU_CAPTURE)
    everything = whole.play()
    for step in replay.play(since):
        for other in everything:
            if other is step:
                break
        if not step.server:
            continue
        for seconds in (15.0, 60.0):
            mine = replay.trackers[step.server].windowed(seconds)
            theirs = whole.trackers[step.server].windowed(seconds)
            for name in (
                "ttft_requests",
                "preemptions",
                "preemptions_burst_peak",
                "generation_tokens",
                "prompt_tokens",
                "requests_finished",
                "requests_waiting_peak",
                "kv_cache_usage_peak",
                "itl_count",
            ):
                value, most = getattr(mine, name), getattr(theirs, name)
                assert value is None or value <= most, (name, step.t)


def test_embed_and_rerank_load_is_contention_for_the_chat_model() -> None:
    """In the pressure phase both neighbours compute beside the chat model; in the phases before they rest."""
    replay = Replay(GPU_CAPTURE)
    ratios: dict[str, list[float]] = {}
    for step in replay.play():
        if step.nvml is None or CHAT not in replay.trackers:
            continue
        for made in replay.host.windowed(CHAT, 15.0).contention.values():
            if made.ratio is not None:
                ratios.setdefault(step.phase, []).append(made.ratio)
    assert max(ratios["pressure-64"]) == 1.0
    # A window of the base phases holds no second of the neighbours (they only answer the warm-up before).
    assert max(ratios["base-2048-long"][15:] or [0.0]) <= 0.1
    assert max(ratios["cand-8192-long"]) == 0.0


def test_gaps_of_the_cpu_recording_lose_nothing() -> None:
    """Answers come up to 4.4 s late; the counters of the last sample are all accounted for."""
    tracker = ServerTracker("chat")
    taken = [step for step in steps(CPU_CAPTURE) if step.reading is not None]
    for step in taken:
        assert step.reading is not None
        tracker.observe(step.reading, step.t, wall=step.wall)
    gaps = [after.t - before.t for before, after in pairwise(taken)]
    assert max(gaps) == pytest.approx(4.44, abs=0.01)
    first, last = taken[0].reading, taken[-1].reading
    assert first is not None
    assert last is not None
    for column, family in (("preemptions", "preemptions_total"), ("generation_tokens", "generation_tokens_total")):
        grown = (last.total(family) or 0.0) - (first.total(family) or 0.0)
        assert sum(value for _, value in tracker.history(column)) == grown
    assert tracker.windowed(60.0).preemptions_burst_peak is not None
    assert (tracker.windowed(60.0).preemptions_burst_peak or 0.0) <= max(v for _, v in tracker.history("preemptions"))
    assert tracker.status().restarts == 0


def test_windows_keep_their_length_in_gaps() -> None:
    """A window never covers more than one and a half times its length."""
    tracker = ServerTracker("chat")
    for step in steps(CPU_CAPTURE):
        if step.reading is None:
            continue
        tracker.observe(step.reading, step.t, wall=step.wall)
        for seconds in (15.0, 60.0):
            span = tracker.windowed(seconds).ttft_span_seconds
            assert span is None or span <= 1.5 * seconds
