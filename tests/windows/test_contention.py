"""Contention: slots against brute force, a neighbour without effect, and one with."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.windows.contention import SLOT_SECONDS, SlotMask, contention, others, slot_after
from vllmeter.windows.tracker import GpuSample, HostTracker, ServerTracker
from windows.simulated import Server

GPU = "GPU-1"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 9.0), st.booleans()), max_size=60), st.floats(0.0, 1e6))
def test_slots_are_a_set_of_middles(steps: list[tuple[float, bool]], start: float) -> None:
    """Marking stretches equals testing the middle of each slot, and successive stretches share none."""
    mask = SlotMask()
    now = start
    marked = []
    for step, on in steps:
        if on:
            mask.mark(now, now + step)
            marked.append((now, now + step))
        now += step
    first, stop = slot_after(now - 60.0), slot_after(now)
    bits = mask.window(first, stop)
    for slot in range(first, stop):
        middle = (slot + 0.5) * SLOT_SECONDS
        expected = any(begin < middle <= end for begin, end in marked)
        assert bool(bits >> (stop - 1 - slot) & 1) == expected


@given(st.lists(st.integers(0, 255), max_size=6))
def test_others_is_the_union_without_oneself(computed: list[int]) -> None:
    """For each server: the slots in which at least one of the rest computed."""
    for index, bits in enumerate(others(computed)):
        expected = 0
        for other, its in enumerate(computed):
            if other != index:
                expected |= its
        assert bits == expected


def test_old_slots_are_forgotten() -> None:
    """The mask keeps 15 minutes, however long it runs."""
    mask = SlotMask()
    for second in range(0, 10_000, 2):
        mask.mark(float(second), second + 1.0)
    assert mask.bits.bit_length() <= 900 / SLOT_SECONDS


def test_never_busy_has_no_ratio() -> None:
    """Without a busy second there is nothing to divide by."""
    made = contention(0, 0b1111, [], 0, 4)
    assert (made.ratio, made.reason) == (None, "never_busy")


def play(effect: float, seconds: int = 60) -> HostTracker:
    """Chat requests every second; a neighbour that computes three seconds on, three off, and slows them by
    ``effect``."""
    rng = random.Random(7)
    chat, embed = Server(), Server()
    host = HostTracker()
    trackers = [ServerTracker("chat"), ServerTracker("embed")]
    for tracker in trackers:
        host.add(tracker)
    for second in range(seconds + 1):
        loaded = second % 6 < 3
        if loaded:
            embed.request(0.02)
        for _ in range(2):
            chat.request(rng.lognormvariate(-2.0, 0.3) + (effect if loaded else 0.0))
        trackers[0].observe(chat.reading(), float(second))
        # Samples of different servers never come at the same moment.
        trackers[1].observe(embed.reading(), second + 0.13)
        host.observe(second + 0.2, memory={"chat": {GPU: 5e9}, "embed": {GPU: 2e9}})
    return host


def test_a_neighbour_without_effect_shows_overlap_but_no_difference() -> None:
    """Half of the seconds are shared, and TTFT is the same in both kinds."""
    made = play(effect=0.0).windowed("chat", 60.0).contention[GPU]
    assert made.ratio == pytest.approx(0.5, abs=0.05)
    assert made.contended_mean is not None
    assert made.clear_mean is not None
    assert made.contended_mean == pytest.approx(made.clear_mean, rel=0.1)


def test_a_neighbour_with_effect_shows_it() -> None:
    """0.2 s more in shared seconds is what the two means differ by."""
    made = play(effect=0.2).windowed("chat", 60.0).contention[GPU]
    assert made.contended_mean is not None
    assert made.clear_mean is not None
    assert made.contended_mean - made.clear_mean == pytest.approx(0.2, abs=0.03)
    assert (made.contended_requests or 0) + (made.clear_requests or 0) == pytest.approx(120, abs=4)


def test_too_few_requests_on_one_side_give_no_means() -> None:
    """With fewer than ten requests on either side both means are absent; the counts say why."""
    made = play(effect=0.0, seconds=8).windowed("chat", 60.0).contention[GPU]
    assert (made.contended_mean, made.clear_mean, made.reason) == (None, None, "too_few_requests")
    assert made.contended_requests


def test_alone_on_the_gpu_is_not_zero_contention() -> None:
    """Without a known neighbour there is no ratio, which is not a ratio of 0."""
    host = HostTracker()
    tracker = ServerTracker("chat")
    host.add(tracker)
    server = Server()
    for second in range(5):
        server.request(0.1)
        tracker.observe(server.reading(), float(second))
        host.observe(second + 0.1, memory={"chat": {GPU: None}})
    made = host.windowed("chat", 15.0)
    assert (made.contention[GPU].ratio, made.contention[GPU].reason) == (None, "alone_on_gpu")
    assert made.absent[f"gpu_memory_peak[{GPU}]"] == "not_known"


def test_sm_time_counts_as_computing() -> None:
    """A neighbour in a long prefill moves no counter, but its SM time shows it."""
    host = HostTracker()
    chat, embed = Server(), Server()
    trackers = {"chat": ServerTracker("chat"), "embed": ServerTracker("embed")}
    for tracker in trackers.values():
        host.add(tracker)
    for second in range(20):
        chat.request(0.1)
        trackers["chat"].observe(chat.reading(), float(second))
        trackers["embed"].observe(embed.reading(), float(second))
        sm = 0.5 if second > 10 else 0.02
        host.observe(
            float(second), memory={name: {GPU: 1.0} for name in trackers}, sm={"embed": {GPU: sm}, "chat": {GPU: 0.9}}
        )
    made = host.windowed("chat", 15.0).contention[GPU]
    assert made.ratio == pytest.approx(9 / 15, abs=0.02)
    assert host.windowed("embed", 15.0).contention[GPU].reason == "never_busy"


def test_peaks_of_memory_and_utilisation() -> None:
    """VRAM and utilisation peaks of a second are kept for the window and forgotten after it."""
    host = HostTracker()
    tracker = ServerTracker("chat")
    host.add(tracker)
    for second in range(30):
        spike = second == 12
        tracker.observe(Server().reading(), float(second))
        host.observe(
            float(second),
            gpus={GPU: GpuSample(9e9 if spike else 5e9, 0.99 if spike else 0.1)},
            memory={"chat": {GPU: 4e9 if spike else 3e9}},
        )
        if second == 20:
            assert host.windowed("chat", 15.0).gpu_memory_peak == {GPU: 4e9}
            assert host.gpu_windowed(GPU, 15.0).used_peak == 9e9
            assert host.gpu_windowed(GPU, 15.0).utilization_peak == 0.99
    assert host.windowed("chat", 15.0).gpu_memory_peak == {GPU: 3e9}
    assert host.gpu_windowed(GPU, 15.0).used_peak == 5e9
    assert host.gpu_windowed("other", 15.0).reason == "no_samples"
    assert max(value for _, value in host.gpu_history(GPU, "memory_used_bytes")) == 9e9
    assert max(value for _, value in host.memory_history("chat", GPU)) == 4e9


def test_readers_of_one_tick_see_one_object() -> None:
    """The completed window is the identical object until the server or the host ticks."""
    host = play(effect=0.0, seconds=5)
    first = host.windowed("chat", 15.0)
    assert host.windowed("chat", 15.0) is first
    host.observe(100.0, memory={})
    assert host.windowed("chat", 15.0) is not first


def test_a_removed_server_is_forgotten() -> None:
    """After removal the server has no windows and is nobody's neighbour."""
    host = play(effect=0.0, seconds=5)
    host.remove("embed")
    host.observe(6.5, memory={"chat": {GPU: 1.0}})
    with pytest.raises(KeyError):
        host.windowed("embed", 15.0)
    assert host.windowed("chat", 15.0).contention[GPU].reason == "alone_on_gpu"
