"""Two configurations of the real H200 recording, turned into runs by our own code and compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from vllmeter.runs.compare import Comparison, Section, compare
from vllmeter.runs.importers import read_result
from vllmeter.runs.measures import Side, client_side, server_side
from vllmeter.runs.model import Run
from vllmeter.runs.recorded import import_phase, phases, samples
from vllmeter.runs.store import RunStore, StoreError
from vllmeter.runs.verdict import Word

HERE = Path(__file__).parent
RECORDING = HERE.parent / "captures" / "vllm-0.26.0-h200-three-instances.vmrec"
LOADS = ("base-2048-short", "base-2048-long", "pressure-64", "prefix-shared", "cand-8192-short", "cand-8192-long")
SERVER = "vllm-qwen3"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    store = RunStore(tmp_path_factory.mktemp("state"))
    recorded = list(samples(RECORDING))
    for phase in phases(RECORDING):
        if phase[0] in LOADS:
            name, _, scenario = phase[0].rpartition("-")
            results = read_result(HERE / "fixtures" / f"vllm-bench-{phase[0]}.json.gz")
            import_phase(store, recorded, phase, name=name, scenario=scenario, server=SERVER, results=results)
    return store


@pytest.fixture(scope="module")
def comparison(store: RunStore) -> Comparison:
    return compare(store, ["base-2048", "cand-8192"])


def section(comparison: Comparison, scenario: str) -> Section:
    (found,) = [each for each in comparison.sections if each.scenario == scenario]
    return found


def sides(store: RunStore, name: str, scenario: str) -> tuple[Run, Side, Side]:
    (run,) = [each for each in store.find(name) if each.scenario == scenario]
    recorded, problem = store.samples(run.id)
    assert problem is None
    return run, server_side(run, recorded, SERVER), client_side(run, store.results(run.id))


@pytest.mark.parametrize(("scenario", "requests"), [("short", 24), ("long", 16)])
def test_24_and_16_requests_are_not_enough_for_a_p95_verdict(
    comparison: Comparison, scenario: str, requests: int
) -> None:
    """p95 gets no verdict, whatever it shows (+48 % for short), and the report says how many would be needed."""
    (row,) = [row for row in section(comparison, scenario).rows if row.metric.id == "client.ttft_p95"]
    (verdict,) = row.verdicts
    assert verdict is not None
    assert verdict.word is Word.NOT_ENOUGH_REQUESTS
    assert verdict.effective_b is not None
    assert verdict.effective_b < requests
    assert verdict.needed_requests is not None
    assert 200 < verdict.needed_requests < 1000
    for each in section(comparison, scenario).rows:
        assert all(v is None or v.word not in (Word.BETTER, Word.WORSE) for v in each.verdicts)
    (conclusion,) = section(comparison, scenario).conclusions
    assert conclusion.word == "not enough evidence"
    assert any("requests a side" in reason for reason in conclusion.reasons)
    assert any("one run a side cannot show run-to-run noise" in reason for reason in conclusion.reasons)
    assert not comparison.regression


@pytest.mark.parametrize("scenario", ["short", "long"])
def test_the_single_changed_flag_is_found(comparison: Comparison, scenario: str) -> None:
    """Out of all settings, software, load, neighbours and warm-up exactly one thing differs."""
    (conclusion,) = section(comparison, scenario).conclusions
    assert conclusion.attribution.word == "single change"
    assert [(each.name, each.a, each.b) for each in conclusion.attribution.counting] == [
        ("max_num_batched_tokens", "2048", "8192")
    ]
    assert conclusion.attribution.unknown == ()


def test_the_cold_start_of_the_first_run_is_warm_up(store: RunStore, comparison: Comparison) -> None:
    """The first batch (0.58 to 1.76 s, kernel compilation) is left out on both sides and named in the report."""
    _, server, client = sides(store, "base-2048", "short")
    assert (client.cold.requests, server.cold.requests) == (4, 4)
    assert client.cold.slowest == pytest.approx(1.758, abs=0.001)
    measure = client.measures["ttft_p95"].value
    assert measure is not None
    assert measure < 0.1
    assert any("cold start: the first 4 requests (up to 1.76 s" in note for note in section(comparison, "short").notes)


def test_a_later_run_of_a_warm_server_has_no_cold_start(store: RunStore) -> None:
    """The long runs followed the short ones: nothing is left out."""
    for name in ("base-2048", "cand-8192"):
        _, server, client = sides(store, name, "long")
        assert client.cold.requests == server.cold.requests == 0
        assert client.requests == server.requests == 16


@pytest.mark.parametrize("phase", LOADS)
def test_server_values_hold_what_the_client_saw(store: RunStore, phase: str) -> None:
    """Bounds of jitter and quantiles contain the client's truth (give or take the client's own few ms)."""
    name, _, scenario = phase.rpartition("-")
    run, server, _ = sides(store, name, scenario)
    (result,) = store.results(run.id)
    ttfts = sorted(each.ttft for each in result.requests if each.ttft is not None)
    skipped = server.cold.requests
    kept = [
        each.ttft
        for each in sorted(result.requests, key=lambda r: r.first_token or 0)[skipped:]
        if each.ttft is not None
    ]
    assert server.requests == len(ttfts) - skipped
    mean = sum(kept) / len(kept)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in kept) / len(kept))
    jitter = server.measures["ttft_jitter"]
    assert jitter.low is not None
    assert jitter.high is not None
    assert jitter.low - 0.003 <= deviation <= jitter.high + 0.003
    measured = server.measures["ttft_mean"].value
    assert measured is not None
    # the client's clock starts before the request is on its way
    assert mean - max(0.02, 0.02 * mean) < measured < mean
    if "ttft_p95" in server.measures:
        bounds = server.measures["ttft_p95"]
        assert bounds.low is not None
        assert bounds.high is not None
        assert bounds.low - 0.03 <= sorted(kept)[math.ceil(0.95 * len(kept)) - 1] <= bounds.high + 0.03
    e2e, client_e2e = server.measures["e2e_mean"].value, [each.e2e or 0 for each in result.requests]
    assert e2e is not None
    if not skipped:
        assert e2e == pytest.approx(sum(client_e2e) / len(client_e2e), rel=0.02)
    assert server.measures["finished"].value == len(ttfts)


def test_pressure_and_caching_show_in_the_counters(store: RunStore) -> None:
    """19 preemptions under pressure; 14,000 hit tokens with shared prefixes; memory against the budget."""
    _, pressure, _ = sides(store, "pressure", "64")
    assert pressure.measures["preemptions"].value == 19
    waiting, usage = pressure.measures["waiting_peak"].value, pressure.measures["kv_peak"].value
    assert waiting is not None
    assert usage is not None
    assert waiting > 5
    assert usage > 0.9
    _, shared, _ = sides(store, "prefix", "shared")
    hit = shared.measures["prefix_hit"].value
    assert hit is not None
    assert 0.8 < hit < 0.95
    memory = pressure.measures["memory_of_budget"].value
    assert memory is not None
    assert 0.5 < memory < 0.8


def test_neighbours_under_load_are_seen(store: RunStore) -> None:
    """Embedding and reranking worked beside the pressure phase, and not beside the others: co-tenant load differs."""
    _, pressure, _ = sides(store, "pressure", "64")
    assert pressure.neighbours["vllm-embed"].busy_ratio > 0.2
    _, short, _ = sides(store, "base-2048", "short")
    assert short.neighbours["vllm-embed"].busy_ratio < 0.05


def test_a_missing_phase_or_server_is_one_clear_message(store: RunStore) -> None:
    """The message lists what there is."""
    recorded = list(samples(RECORDING))
    with pytest.raises(StoreError, match="it holds vllm-embed, vllm-qwen3, vllm-reranker"):
        import_phase(store, recorded, phases(RECORDING)[2], name="x", scenario="short", server="chat")
