"""Baselines: what is stored, exported and used."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from runs.synthetic import START, add_run, lockstep_requests
from vllmeter.runs.baseline import clear_baselines, load_baselines, load_stored, set_baseline
from vllmeter.runs.measures import server_side
from vllmeter.runs.store import RunStore, StoreError


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path)


def test_a_baseline_holds_the_servers_own_numbers(store: RunStore) -> None:
    """TTFT mean is exact, p95 the upper bound of the buckets: a value above it is truly above."""
    run = add_run(store, "base", lockstep_requests(1, 400))
    set_baseline(store, [run])
    (baseline,) = load_baselines(store.state)
    assert (baseline.server, baseline.scenario, baseline.run) == ("chat", "short", "base")
    side = server_side(run, store.samples(run.id)[0], "chat")
    assert baseline.ttft["mean"] == pytest.approx(side.measures["ttft_mean"].value or 0)
    assert baseline.ttft["p95"] == side.measures["ttft_p95"].high
    assert baseline.ttft["mean"] < baseline.ttft["p95"]
    assert baseline.throughput == pytest.approx(side.measures["output_rate"].value or 0)
    assert "mean" in baseline.e2e


def test_repetitions_give_the_mean_and_a_spread(store: RunStore) -> None:
    """Three runs: mean of their values, run-to-run spread with two degrees of freedom; one run has none."""
    runs = [add_run(store, "base", lockstep_requests(i, 400), started=START + 2000 * i) for i in range(3)]
    (stored,) = set_baseline(store, runs)
    means = [server_side(run, store.samples(run.id)[0], "chat").measures["ttft_mean"].value or 0 for run in runs]
    assert stored.baseline.ttft["mean"] == pytest.approx(sum(means) / 3)
    assert stored.spreads["client.ttft_mean"].freedom == 2
    assert 0 < stored.spreads["client.ttft_p95"].deviation < 0.5
    (single,) = set_baseline(store, runs[:1])
    assert single.spreads == {}


def test_baselines_survive_and_replace_only_their_own(store: RunStore) -> None:
    """Another scenario stays; the same one is replaced; removing the run keeps the baseline."""
    short = add_run(store, "base", lockstep_requests(1, 200))
    long = add_run(store, "base", lockstep_requests(2, 200), scenario="long", started=START + 1000)
    newer = add_run(store, "newer", lockstep_requests(3, 200), started=START + 2000)
    set_baseline(store, [short])
    set_baseline(store, [long])
    set_baseline(store, [newer])
    assert [(each.scenario, each.run) for each in load_baselines(store.state)] == [("long", "base"), ("short", "newer")]
    store.delete(newer.id)
    assert load_stored(RunStore(store.state).state)[1].run_ids == (newer.id,)
    assert len(load_baselines(store.state)) == 2


def test_clear_takes_what_is_named(store: RunStore) -> None:
    """By scenario, by server, all."""
    set_baseline(store, [add_run(store, "a", lockstep_requests(1, 200))])
    set_baseline(store, [add_run(store, "b", lockstep_requests(2, 200), scenario="long", started=START + 1000)])
    assert clear_baselines(store.state, scenario="medium") == 0
    assert clear_baselines(store.state, server="chat", scenario="long") == 1
    assert clear_baselines(store.state) == 1
    assert load_baselines(store.state) == ()


def test_what_cannot_be_a_baseline_says_why(store: RunStore) -> None:
    """Invalid, unfinished, mixed and empty runs."""
    invalid = add_run(store, "a", lockstep_requests(1, 40), invalid=("chat restarted during the run",))
    with pytest.raises(StoreError, match=r"is invalid \(chat restarted"):
        set_baseline(store, [invalid])
    with pytest.raises(StoreError, match="only a finished run"):
        set_baseline(store, [add_run(store, "a", lockstep_requests(1, 40), state="interrupted", started=START + 1000)])
    mixed = [add_run(store, "m", lockstep_requests(1, 40), scenario=s, started=START + 2000) for s in ("short", "long")]
    with pytest.raises(StoreError, match="different scenarios"):
        set_baseline(store, mixed)
    with pytest.raises(StoreError, match="hold no first token on server 'embed'"):
        set_baseline(store, mixed[:1], "embed")


def test_a_damaged_file_never_stops_the_exporter(store: RunStore, caplog: pytest.LogCaptureFixture) -> None:
    """It gives no baselines and one log line with what to do; the commands refuse with the same words."""
    assert load_baselines(store.state) == ()
    for content in (
        "{",
        '{"schema": 1}',
        '{"schema": 1, "baselines": [{"server": "a"}]}',
        '{"schema": 99, "baselines": []}',
    ):
        (store.state / "baselines.json").write_text(content)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert load_baselines(store.state) == ()
        assert len(caplog.records) == 1
        with pytest.raises(StoreError, match=r"baselines\.json (is damaged|has schema 99)"):
            load_stored(store.state)
