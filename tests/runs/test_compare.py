"""Comparisons of synthetic runs: verdicts, attribution, levels, the table of candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.synthetic import START, add_run, add_sweep, lockstep_requests, result_of
from vllmeter.runs.baseline import set_baseline
from vllmeter.runs.compare import Comparison, Conclusion, Section, compare
from vllmeter.runs.results import ClientResult, RequestRecord, Summary
from vllmeter.runs.store import RunStore, StoreError
from vllmeter.runs.verdict import Word


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path)


def pair(store: RunStore, factor: float, **changes: object) -> None:
    """Three interleaved runs of a and b (A B B A A B)."""
    for position, name in enumerate("abbaab"):
        records = lockstep_requests(
            position + 10, 400, icc=0.5, sigma=0.2, median=0.1 * (factor if name == "b" else 1.0)
        )
        values = {"settings": {"max_num_batched_tokens": "2048" if name == "a" else "8192"}}
        add_run(store, name, records, started=START + 2000 * position, **{**values, **(changes if name == "b" else {})})  # type: ignore[arg-type]


def only(comparison: Comparison) -> tuple[Section, Conclusion]:
    (section,) = comparison.sections
    (conclusion,) = section.conclusions
    return section, conclusion


def test_a_slower_candidate_is_a_regression(store: RunStore) -> None:
    """+30 % TTFT over three interleaved runs a side is worse, on both sides, and put down to the one change."""
    pair(store, 1.3)
    comparison = compare(store, ["a", "b"])
    section, conclusion = only(comparison)
    assert comparison.regression
    assert conclusion.word == "worse"
    assert conclusion.attribution.text() == "single change: max_num_batched_tokens: 2048 -> 8192"
    words = {row.metric.id: row.verdicts[0].word for row in section.rows if row.verdicts[0] is not None}
    assert words["client.ttft_mean"] is words["server.ttft_mean"] is words["client.ttft_p95"] is Word.WORSE
    assert words["client.output_rate"] is Word.NO_DIFFERENCE


def test_a_faster_candidate_is_better_and_no_regression(store: RunStore) -> None:
    """The other direction."""
    pair(store, 0.75)
    comparison = compare(store, ["a", "b"])
    assert only(comparison)[1].word == "better"
    assert not comparison.regression


def test_equal_sides_show_no_difference(store: RunStore) -> None:
    """Neither better nor worse, with the range that a difference could still have."""
    pair(store, 1.0)
    assert only(compare(store, ["a", "b"]))[1].word == "no difference shown"


def test_two_changes_are_confounded(store: RunStore) -> None:
    """Another flag or load on a neighbour beside the change under test: the numbers stay, the cause is open."""
    pair(store, 1.3, neighbour_rate=900.0)
    _, conclusion = only(compare(store, ["a", "b"]))
    assert conclusion.attribution.word == "confounded"
    assert {each.category for each in conclusion.attribution.counting} == {"configuration", "co-tenant load"}
    assert conclusion.attribution.text().startswith("confounded: 2 things changed")


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        ({"software": {"driver": "590"}}, "software"),
        ({"warmup_seconds": 5.0}, "warm-up"),
        ({"host": "another-host"}, "software"),
        ({"result": result_of(lockstep_requests(3, 400), load={"max_concurrency": "8"})}, "load"),
    ],
    ids=["driver", "warm-up", "host", "load"],
)
def test_what_else_differs_is_found(store: RunStore, changes: dict[str, object], category: str) -> None:
    """Software, warm-up, host and load are compared as well."""
    pair(store, 1.0, **changes)
    _, conclusion = only(compare(store, ["a", "b"]))
    assert category in {each.category for each in conclusion.attribution.counting}


def test_a_failed_functional_run_forbids_good(store: RunStore) -> None:
    """However fast: when L3 failed the candidate is not good, and CI fails."""
    pair(store, 0.5)
    add_run(store, "b", lockstep_requests(99, 20), started=START + 50_000, level="L3", exit_code=1)
    comparison = compare(store, ["a", "b"])
    _, conclusion = only(comparison)
    assert conclusion.word == "failed"
    assert "L3" in conclusion.reasons[0]
    assert comparison.regression


def test_a_passed_functional_run_changes_nothing(store: RunStore) -> None:
    """It measures no speed and is left out of the numbers."""
    pair(store, 0.7)
    add_run(store, "b", lockstep_requests(99, 20, median=5.0), started=START + 50_000, level="L3")
    assert only(compare(store, ["a", "b"]))[1].word == "better"


def test_failed_invalid_and_cut_runs_are_left_out_with_reasons(store: RunStore) -> None:
    """A run that may not be compared is named, not silently used."""
    pair(store, 1.0)
    slow = lockstep_requests(5, 400, median=9.0)
    add_run(store, "b", slow, started=START + 30_000, exit_code=2)
    add_run(store, "b", slow, started=START + 32_000, invalid=("chat restarted during the run",))
    add_run(store, "b", slow, started=START + 34_000, state="running", pid=1, host="elsewhere")
    section, conclusion = only(compare(store, ["a", "b"]))
    assert conclusion.word == "no difference shown"
    notes = "\n".join(section.notes)
    assert "exit code 2" in notes
    assert "chat restarted during the run" in notes
    assert "still running" in notes


def test_faster_with_more_failures_is_not_called_better(store: RunStore) -> None:
    """Requests that fail have no latency: a falling success rate takes the good word away."""
    for position, name in enumerate("abbaab"):
        records = lockstep_requests(position + 10, 400, icc=0.5, sigma=0.2, median=0.1 * (0.6 if name == "b" else 1.0))
        if name == "b":
            records = tuple(
                RequestRecord(each.started, ok=False, error="500") if index % 10 == 0 else each
                for index, each in enumerate(records)
            )
        add_run(store, name, records, started=START + 2000 * position)
    comparison = compare(store, ["a", "b"])
    _, conclusion = only(comparison)
    assert conclusion.word == "mixed"
    assert any("success rate fell from 100.0% to 90.0%" in reason for reason in conclusion.reasons)
    assert comparison.regression


def test_a_stored_spread_judges_single_runs(store: RunStore) -> None:
    """One run a side is enough for a verdict once the baseline's repetitions gave a spread."""
    for position in range(3):
        add_run(store, "base", lockstep_requests(position, 800, icc=0.5, sigma=0.2), started=START + 3000 * position)
    set_baseline(store, store.find("base"))
    add_run(store, "old", lockstep_requests(20, 800, icc=0.5, sigma=0.2), started=START + 20_000)
    add_run(store, "new", lockstep_requests(21, 800, icc=0.5, sigma=0.2, median=0.16), started=START + 23_000)
    section, conclusion = only(compare(store, ["old", "new"]))
    assert section.spread == "base"
    assert conclusion.word == "worse"


def test_summaries_alone_need_many_requests_and_runs(store: RunStore) -> None:
    """Locust-like results: statistics without request times are judged from whole runs with 1600 requests a side."""

    def summary(mean: float, count: int) -> ClientResult:
        return ClientResult(
            "locust", completed=count, failed=0, summaries={"ttft": Summary(mean, percentiles={0.95: mean * 1.5})}
        )

    for count, name, word in ((100, "few", "not enough evidence"), (900, "many", "worse")):
        for position, side in enumerate("abbaab"):
            mean = 0.1 * (1.4 if side == "b" else 1.0) * (1 + 0.002 * position)
            add_run(
                store, f"{name}-{side}", lockstep_requests(1, 8), started=START + 1000 * position,
                with_samples=False, result=summary(mean, count),
            )  # fmt: skip
        assert only(compare(store, [f"{name}-a", f"{name}-b"]))[1].word == word


def test_the_table_marks_the_best_only_with_evidence(store: RunStore) -> None:
    """2048/4096/8192 × short/medium/long: a star where one candidate beats every other one, else the reason."""
    add_sweep(
        store,
        {
            "2048": {"short": 1.0, "medium": 1.0, "long": 1.0},
            "4096": {"short": 1.01, "medium": 0.75, "long": 0.8},
            "8192": {"short": 1.3, "medium": 1.0, "long": 0.5},
        },
        n=400,
        sigma=0.15,
        icc=0.3,
    )
    comparison = compare(store, ["2048", "4096", "8192"])
    (table,) = [each for each in comparison.tables if each.metric.id == "client.ttft_mean"]
    assert table.scenarios == ("short", "medium", "long")
    best = {scenario: name for (name, scenario), cell in table.cells.items() if cell.best}
    assert best == {"medium": "4096", "long": "8192"}
    assert any(note.startswith("short: 2048 leads, but against 4096: no difference shown") for note in table.notes)
    words = {(s.scenario, c.candidate): c.word for s in comparison.sections for c in s.conclusions}
    assert words["short", "8192"] == "worse"
    assert words["long", "8192"] == "better"


def test_the_deciding_metrics_can_be_chosen(store: RunStore) -> None:
    """--metric replaces the headline metrics; an unknown one lists the known."""
    pair(store, 1.3)
    assert only(compare(store, ["a", "b"], metrics=["client.output_rate"]))[1].word == "no difference shown"
    with pytest.raises(StoreError, match=r"no metric 'ttft'; known: client\.ttft_mean"):
        compare(store, ["a", "b"], metrics=["ttft"])


def test_warm_up_that_was_asked_for_is_cut_on_both_sides(store: RunStore) -> None:
    """--warmup in seconds or requests replaces the automatic cold start detection."""
    records = lockstep_requests(1, 200)
    add_run(store, "a", records, warmup_seconds=30.0)
    add_run(store, "b", records, warmup_requests=40, started=START + 1000)
    section, _ = only(compare(store, ["a", "b"]))
    sides = [(column.side("client")[0], column.side("server")[0]) for column in section.columns]
    assert [client.requests for client, _ in sides] == [160, 160]
    assert [server.requests for _, server in sides] == pytest.approx([160, 160], abs=4)


def test_names_without_common_scenario_cannot_be_compared(store: RunStore) -> None:
    """The message says what is missing where."""
    add_run(store, "a", lockstep_requests(1, 40), scenario="short")
    add_run(store, "b", lockstep_requests(1, 40), scenario="long")
    with pytest.raises(StoreError, match="nothing to compare: scenario short: no usable run of b"):
        compare(store, ["a", "b"])
    with pytest.raises(StoreError, match="at least two names"):
        compare(store, ["a"])


def test_damaged_parts_cost_only_themselves(store: RunStore) -> None:
    """Without readable client results the server side is still compared, and the damage is named."""
    pair(store, 1.3)
    for run in store.find("b"):
        (store.folder / run.id / "client.json.gz").write_bytes(b"broken")
    section, _ = only(compare(store, ["a", "b"]))
    assert any("client.json.gz is damaged" in note for note in section.notes)
    words = {row.metric.id: row.verdicts[0] for row in section.rows}
    found = words["server.ttft_mean"]
    assert found is not None
    assert found.word is Word.WORSE
    assert words["client.ttft_mean"] is None


def test_without_a_named_server_the_one_that_worked_is_compared(store: RunStore) -> None:
    """Neighbours that served nothing get no section; with several busy servers nobody knows whose the client's are."""
    for position, name in enumerate("ab"):
        add_run(store, name, lockstep_requests(position, 80), started=START + 2000 * position, server="")
    section, _ = only(compare(store, ["a", "b"]))
    assert section.server == "chat"
    assert section.columns[0].subjects[0].client.requests == 80
    for position, name in enumerate("cd"):
        started = START + 10_000 + 2000 * position
        add_run(store, name, lockstep_requests(position, 80), started=started, server="", neighbour_rate=500.0)
    section, _ = only(compare(store, ["c", "d"]))
    assert section.columns[0].subjects[0].client.requests == 0
    assert any("name one with --server" in note for note in section.notes)
