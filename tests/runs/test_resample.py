"""Effective sample size and block resampling."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.runs.importers import read_result
from vllmeter.runs.resample import (
    _resampled_quantiles,
    as_arrays,
    choose_blocks,
    clusters,
    estimate,
    intra_cluster,
    quantile,
)

FIXTURES = Path(__file__).parent / "fixtures"


def of_file(phase: str):  # type: ignore[no-untyped-def]
    (result,) = read_result(FIXTURES / f"vllm-bench-{phase}.json.gz")
    starts = [each.started or 0.0 for each in result.requests]
    labels = clusters(starts, [each.first_token or 0.0 for each in result.requests])
    order = sorted(range(len(labels)), key=labels.__getitem__)
    return as_arrays([result.requests[i].ttft or 0.0 for i in order], [labels[i] for i in order])


@pytest.mark.parametrize(
    ("phase", "waves"), [("base-2048-short", 6), ("base-2048-long", 4), ("prefix-shared", 4), ("cand-8192-short", 6)]
)
def test_batches_of_the_real_clients_are_found(phase: str, waves: int) -> None:
    """With concurrency 4 (16) every batch of 4 (16) requests is one cluster, also where its prefill took 1.2 s."""
    _, labels = of_file(phase)
    sizes = np.bincount(labels)
    assert len(sizes) == waves
    assert set(sizes) == {len(labels) // waves}


def test_design_effect_of_the_real_capture() -> None:
    """Requests in lockstep are worth a fraction of their number: design effects from about 2.5 to above 13."""
    effects = {}
    for phase in (
        "base-2048-short",
        "base-2048-long",
        "pressure-64",
        "prefix-shared",
        "cand-8192-short",
        "cand-8192-long",
    ):
        values, labels = of_file(phase)
        effects[phase] = intra_cluster(values, labels)[1]
    assert 2.0 < min(effects.values()) < 3.0
    assert effects["prefix-shared"] > 12
    values, labels = of_file("base-2048-short")
    assert estimate(values, labels).effective < 7


def test_independent_requests_keep_nearly_their_number() -> None:
    """Without batches the effective n stays near n (blocks cost some of it, they never add)."""
    generator = np.random.default_rng(1)
    ratios = []
    for _ in range(30):
        values = np.exp(generator.normal(size=400) * 0.3)
        one = estimate(values, np.arange(400))
        assert one.icc is None
        assert one.effective <= 400
        ratios.append(one.effective / 400)
    assert np.median(ratios) > 0.7


@pytest.mark.parametrize("batch", [4, 8, 16])
def test_copies_add_nothing(batch: int) -> None:
    """A batch of identical values counts as one request: the design effect is the batch size or more."""
    generator = np.random.default_rng(2)
    values = np.repeat(np.exp(generator.normal(size=60) * 0.3), batch)
    one = estimate(values, np.repeat(np.arange(60), batch))
    assert one.icc == 1.0
    assert one.design >= batch - 1e-9
    assert one.effective <= 60 + 1e-9


def test_a_single_batch_is_one_observation() -> None:
    """One batch cannot show that its requests are independent."""
    one = estimate(np.linspace(0.1, 0.2, 16), np.zeros(16, dtype=np.int64))
    assert one.effective == pytest.approx(1.0)
    assert one.error is None


def test_slow_waves_lengthen_the_blocks() -> None:
    """Correlation over many batches (queueing) makes blocks of several batches and lowers the effective n."""
    generator = np.random.default_rng(3)
    noise = generator.normal(size=1000)
    values = np.empty(1000)
    level = 0.0
    for index in range(1000):
        level = 0.95 * level + noise[index]
        values[index] = math.exp(0.1 * level)
    blocks, _ = choose_blocks(values, np.arange(1000))
    assert int(blocks.max()) + 1 < 200
    assert estimate(values, np.arange(1000)).effective < 150


def test_the_error_has_the_right_size() -> None:
    """The error from resampled batches agrees with the spread over repeated runs; single requests would be off by 2."""
    generator = np.random.default_rng(4)
    errors, means = [], []
    labels = np.repeat(np.arange(50), 8)
    for _ in range(200):
        logs = math.sqrt(0.7) * np.repeat(generator.normal(size=50), 8) + math.sqrt(0.3) * generator.normal(size=400)
        values = np.exp(0.3 * logs)
        one = estimate(values, labels, resamples=200)
        assert one.error is not None
        errors.append(one.error)
        means.append(math.log(one.value))
    truth = float(np.std(means))
    assert np.median(errors) == pytest.approx(truth, rel=0.25)


def test_the_same_run_gives_the_same_interval() -> None:
    """Resampling is seeded: a report does not change from call to call."""
    values, labels = of_file("pressure-64")
    assert estimate(values, labels, 0.95) == estimate(values, labels, 0.95)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_quantile_is_an_order_statistic(values: list[float], q: float) -> None:
    """The quantile is one of the values, with at least q of all at or below it."""
    found = quantile(np.array(values), q)
    assert found in values
    assert sum(value <= found for value in values) >= q * len(values) - 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.floats(0.02, 0.99), st.integers(0, 1000))
def test_resampled_quantiles_are_those_of_the_resamples(n: int, k: int, q: float, seed: int) -> None:
    """The shortcut over values near the quantile gives what repeating the drawn blocks and sorting gives."""
    generator = np.random.default_rng(seed)
    values = np.round(generator.lognormal(size=n), 2)
    _, blocks = np.unique(np.sort(generator.integers(0, k, n)), return_inverse=True)
    count = int(blocks.max()) + 1
    drawn = generator.multinomial(count, np.full(count, 1.0 / count), size=8).astype(np.float64)
    found = _resampled_quantiles(values, blocks, drawn, q)
    for number in range(8):
        assert found[number] == quantile(np.repeat(values, drawn[number][blocks].astype(int)), q)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0.001, 20)), min_size=1, max_size=50))
def test_clusters_are_numbered_in_time(requests: list[tuple[float, float]]) -> None:
    """Numbers begin at 0, have no gap, and never fall as first tokens get later."""
    starts = [start for start, _ in requests]
    firsts = [start + ttft for start, ttft in requests]
    labels = clusters(starts, firsts)
    assert sorted(set(labels)) == list(range(max(labels) + 1))
    ordered = [label for _, _, label in sorted(zip(firsts, starts, labels, strict=True))]
    assert ordered == sorted(ordered)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 40), st.integers(1, 6), st.floats(0.05, 2.0), st.integers(0, 1000))
def test_effective_n_is_never_more_than_n(groups: int, size: int, sigma: float, seed: int) -> None:
    """Whatever the data, resampling never finds more information than there are requests."""
    generator = np.random.default_rng(seed)
    values = np.exp(sigma * generator.normal(size=groups * size))
    for q in (None, 0.95):
        one = estimate(values, np.repeat(np.arange(groups), size), q, resamples=50)
        assert 0 < one.effective <= len(values) * (1 + 1e-9)


def test_serving_never_loads_numpy() -> None:
    """The exporter loads baselines at start: that must not cost numpy's memory."""
    import subprocess
    import sys

    code = (
        "import sys, vllmeter.wiring, vllmeter.runs.baseline, vllmeter.runs.measures, vllmeter.cli.app; "
        "sys.exit('numpy' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode
        == 0
    )
