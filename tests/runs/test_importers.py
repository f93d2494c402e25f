"""Result files of five load-test tools, most of them written by the real tools (see fixtures/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from runs.synthetic import add_run, lockstep_requests
from vllmeter.runs.importers import IMPORTERS, read_result
from vllmeter.runs.importers.reading import open_result
from vllmeter.runs.model import result_from_json, result_to_json
from vllmeter.runs.results import LATENCIES, ClientResult, ResultFileError
from vllmeter.runs.store import RunStore

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(path.name for path in FIXTURES.iterdir() if path.name not in ("README.md", "locust_failures.csv"))


def one(name: str) -> ClientResult:
    (result,) = read_result(FIXTURES / name)
    return result


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_recognised_by_exactly_one_importer(name: str) -> None:
    """Detection by content never depends on the order of the table."""
    file = open_result(FIXTURES / name)
    assert len([each.name for each in IMPORTERS if each.recognises(file)]) == 1


@pytest.mark.parametrize("name", FILES)
def test_results_survive_storage(name: str) -> None:
    """What is imported reads the same after it was stored as JSON."""
    for result in read_result(FIXTURES / name):
        assert result_from_json(json.loads(json.dumps(result_to_json(result), allow_nan=False))) == result


@pytest.mark.parametrize("name", FILES)
def test_units_are_seconds_and_counts_fit(name: str) -> None:
    """No latency comes out in milliseconds, and completed + failed is what the file holds."""
    for result in read_result(FIXTURES / name):
        assert set(result.summaries) <= set(LATENCIES)
        for summary in result.summaries.values():
            assert summary.mean is not None
            assert 0 <= summary.mean < 15
            ordered = [value for _, value in sorted(summary.percentiles.items())]
            assert ordered == sorted(ordered)
        if result.requests:
            assert len(result.requests) == (result.completed or 0) + (result.failed or 0)
            for each in result.requests:
                assert (each.error is None) == each.ok
                assert each.ttft is None or 0 < each.ttft < 15
                if each.ttft is not None and each.e2e is not None:
                    assert each.ttft <= each.e2e


def test_vllm_bench_detailed_keeps_every_request() -> None:
    """The per-request lists give the same mean as the tool's own summary."""
    result = one("vllm-bench-base-2048-short.json.gz")
    assert (result.tool, result.model, result.completed, result.failed) == ("vllm bench serve", "Qwen3-1.7B", 24, 0)
    ttfts = [each.ttft for each in result.requests if each.ttft is not None]
    assert sum(ttfts) / 24 == pytest.approx(0.3049853658)
    assert result.summaries["ttft"].mean == pytest.approx(0.3049853658)
    assert result.summaries["ttft"].quantile(0.95) == pytest.approx(1.7576762619)
    assert result.summaries["e2e"].mean == pytest.approx(3.3408118579)
    assert sum(each.e2e or 0 for each in result.requests) / 24 == pytest.approx(3.3408118579, rel=1e-4)
    assert result.load["max_concurrency"] == "4"
    assert result.load["mean_input_tokens"] == "128"


def test_vllm_bench_without_details_says_what_is_missing() -> None:
    """A file without --save-detailed has statistics, its failures, and a note instead of requests."""
    result = one("vllm-bench-cpu-0.32.0.json.gz")
    assert (result.completed, result.failed, result.requests) == (165, 5, ())
    assert result.success_ratio == pytest.approx(165 / 170)
    assert any("--save-detailed" in note for note in result.notes)


def test_vllm_bench_failed_requests_have_no_latency(tmp_path: Path) -> None:
    """A failed request is written with ttft 0: that is no first token after 0 s."""
    data = json.loads(gzip.decompress((FIXTURES / "vllm-bench-base-2048-long.json.gz").read_bytes()))
    data["ttfts"][3], data["itls"][3], data["errors"][3] = 0.0, [], "Traceback …\nServerDisconnectedError: gone"
    data["completed"], data["failed"] = 15, 1
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    (result,) = read_result(path)
    failed = [each for each in result.requests if not each.ok]
    assert [(each.ttft, each.error) for each in failed] == [(None, "ServerDisconnectedError: gone")]


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("401: Incorrect API key provided: s3cret", "401: Incorrect API key provided: ***"),
        (
            "Unauthorized, headers {'Authorization': 'Bearer s3cret'}",
            "Unauthorized, headers {'Authorization': 'Bearer ***'}",
        ),
        ("refused sk-proj-s3cret0123456789abcdef for m", "refused sk-*** for m"),
        ("Cannot connect to http://bob:s3cret@gpu1:8000", "Cannot connect to http://***@gpu1:8000"),
        ("POST /v1/completions?api_key=s3cret failed", "POST /v1/completions?api_key=*** failed"),
        ("Connection reset by peer [errno 104]", "Connection reset by peer [errno 104]"),
    ],
)
def test_error_texts_hold_no_secret(tmp_path: Path, error: str, kept: str) -> None:
    """A server or a proxy repeats the key that it refused: it is not stored with the run."""
    with gzip.open(FIXTURES / "vllm-bench-base-2048-short.json.gz") as file:
        data = json.load(file)
    data["ttfts"][3], data["itls"][3], data["errors"][3] = 0.0, [], f"Traceback …\n{error}"
    path = tmp_path / "failed.json"
    path.write_text(json.dumps(data))
    store = RunStore(tmp_path / "state")
    run = add_run(store, "x", lockstep_requests(1, 8))
    store.save_results(run.id, read_result(path))
    assert [each.error for each in store.results(run.id)[0].requests if not each.ok] == [kept]
    assert b"s3cret" not in gzip.decompress((store.folder / run.id / "client.json.gz").read_bytes())


def test_vllm_bench_appended_results_are_several(tmp_path: Path) -> None:
    """--append-result writes one object a line; each is a result of its own."""
    line = json.dumps(json.loads(gzip.decompress((FIXTURES / "vllm-bench-cpu-0.32.0.json.gz").read_bytes())))
    path = tmp_path / "r.json"
    path.write_text(f"{line}\n{line}\n")
    assert len(read_result(path)) == 2


def test_guidellm_report() -> None:
    """guidellm writes ms for TTFT and ITL but s for the latency; its own TPOT is another quantity and left out."""
    result = one("guidellm-0.8.1.json.gz")
    assert (result.tool_version, result.label, result.completed, result.failed) == ("0.8.1", "concurrent@4", 18, 2)
    assert result.summaries["ttft"].mean == pytest.approx(0.0218348900)
    assert result.summaries["e2e"].mean == pytest.approx(0.0531768401)
    assert "tpot" not in result.summaries
    assert [each.ok for each in result.requests].count(False) == 2
    first = result.requests[0]
    assert first.started == pytest.approx(1796134367.411, abs=0.001)
    assert first.itl == pytest.approx(0.002056678)


def test_aiperf_says_the_same_in_all_three_exports() -> None:
    """JSON, CSV (rounded) and per-request lines of one benchmark agree."""
    full, table, lines = one("aiperf-0.13.0.json.gz"), one("aiperf-0.13.0.csv"), one("aiperf-0.13.0-records.jsonl.gz")
    for result in (full, table, lines):
        assert (result.completed, result.failed) == (18, 2)
    for key in ("ttft", "itl", "e2e"):
        mean = full.summaries[key].mean
        assert mean is not None
        assert table.summaries[key].mean == pytest.approx(mean, abs=1e-5)
        values = [getattr(each, key) for each in lines.requests if each.ok]
        assert sum(values) / len(values) == pytest.approx(mean, rel=1e-6)
    assert lines.duration == pytest.approx(full.duration or 0, abs=1e-3)
    assert {each.error for each in lines.requests if not each.ok} == {"500 Internal Server Error"}


def test_locust_http_time_below_ttft_is_not_an_end_to_end_latency() -> None:
    """For a streamed answer locust times the headers (1.7 ms here against a TTFT of 22 ms)."""
    for name in ("locust_stats.csv", "locust_stats_history.csv"):
        result = one(name)
        assert result.summaries["ttft"].mean == pytest.approx(0.0216179, abs=1e-6)
        assert "e2e" not in result.summaries
        assert (result.completed, result.failed) == (380, 48)
        assert any("headers" in note for note in result.notes)


def test_locust_without_ttft_rows_keeps_the_http_time_with_a_warning(tmp_path: Path) -> None:
    """Without a TTFT row nothing contradicts the HTTP time, so it is taken, and the assumption is written down."""
    lines = (FIXTURES / "locust_stats.csv").read_text().splitlines()
    path = tmp_path / "s.csv"
    path.write_text("\n".join(line for line in lines if not line.startswith("TTFT")) + "\n")
    (result,) = read_result(path)
    assert result.summaries["e2e"].mean == pytest.approx(0.0017469512)
    assert any("stream=True" in note for note in result.notes)


def test_locust_rows_are_merged_without_inventing_percentiles(tmp_path: Path) -> None:
    """Means of several rows combine exactly; percentiles do not, so they are absent."""
    header, row = (FIXTURES / "locust_stats.csv").read_text().splitlines()[:2]
    path = tmp_path / "s.csv"
    path.write_text(f"{header}\n{row}\n{row.replace('/v1/completions', '/v1/chat')}\n")
    (result,) = read_result(path)
    assert result.summaries["e2e"].percentiles == {}
    assert result.summaries["e2e"].count == 856


def test_k6_summary_export() -> None:
    """k6's trends are ms; http_req_failed counts failures as passes; http_req_waiting is not TTFT."""
    result = one("k6-summary-export.json")
    assert (result.completed, result.failed) == (57, 3)
    assert result.summaries["ttft"].mean == pytest.approx(0.0845)
    assert result.summaries["e2e"].quantile(0.95) == pytest.approx(0.6551)
    assert any("does not say its unit" in note for note in result.notes)
    nested = one("k6-handle-summary.json")
    assert nested.summaries["ttft"].mean == pytest.approx(0.0845)
    assert nested.duration == pytest.approx(30.2005)


def test_k6_points_pair_ttft_with_their_requests() -> None:
    """Points carry the end of a request; failed ones have no latency."""
    result = one("k6-points.ndjson")
    assert (result.completed, result.failed, len(result.requests)) == (10, 2, 12)
    good = [each for each in result.requests if each.ok]
    assert all(each.ttft is not None and each.e2e is not None and each.ttft < each.e2e for each in good)
    assert good[0].started == pytest.approx(1796122800.0, abs=1e-3)
    assert result.load == {"max_virtual_users": "4"}


def test_k6_ttft_in_an_implausible_unit_is_refused(tmp_path: Path) -> None:
    """A TTFT trend in microseconds would come out larger than the whole request: refused, not imported."""
    data = json.loads((FIXTURES / "k6-summary-export.json").read_text())
    data["metrics"]["ttft"] = {key: value * 1000 for key, value in data["metrics"]["ttft"].items()}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ResultFileError, match=r"mean of 84\.5 s, above the mean http_req_duration"):
        read_result(path)


def test_k6_unpaired_ttft_points_are_kept_apart(tmp_path: Path) -> None:
    """When points and requests differ in number nothing is paired by guess."""
    lines = [line for line in (FIXTURES / "k6-points.ndjson").read_text().splitlines() if line]
    index = max(number for number, line in enumerate(lines) if '"metric": "ttft"' in line)
    path = tmp_path / "p.ndjson"
    path.write_text("\n".join(lines[:index] + lines[index + 1 :]))
    (result,) = read_result(path)
    assert all(each.e2e is None for each in result.requests)
    assert any("differ in number" in note for note in result.notes)


BROKEN = [
    ("missing.json", None, r"missing\.json: no such file"),
    ("empty.json", b"", "is empty"),
    ("text.json", b"hello world\n", "not a known load-test result"),
    ("binary.json", b"\xff\xfe\x00\x01", r"byte 0: is not UTF-8 text"),
    ("gzip.json", b"\x1f\x8bbroken", "broken gzip data"),
    (
        "cut.json",
        b'{"completed": 3, "request_throughput": 1, "total_output_tokens": 4,\n "x": [1,',
        r"line 2, column \d+: not valid JSON",
    ),
    (
        "type.json",
        b'{"completed": "three", "request_throughput": 1, "total_output_tokens": 4}',
        r'field completed: should be a number, found "three"',
    ),
    (
        "lists.json",
        b'{"completed": 2, "request_throughput": 1, "total_output_tokens": 4, "ttfts": [1, 2], "start_times": [1]}',
        r"field start_times: should be a list of 2 numbers",
    ),
    (
        "guide.json",
        b'{"benchmarks": [], "x": "time_to_first_token_ms" , "time_to_first_token_ms": 1}',
        "field benchmarks: is empty",
    ),
    (
        "points.ndjson",
        b'{"metric":"http_req_duration","type":"Point","data":{"time":"2026-12-01T12:00:00Z","value":3}}\n{"metric":',
        r"line 2, column \d+: not valid JSON",
    ),
    (
        "time.ndjson",
        b'{"metric":"http_req_duration","type":"Point","data":{"time":"noon","value":3}}\n',
        r"line 1, field data\.time: is no time stamp",
    ),
    (
        "locust.csv",
        b"Type,Name,Request Count,Failure Count,Average Response Time\nPOST,/v1,ten,0,3\n",
        r"line 2, column 'Request Count': should be a number, found 'ten'",
    ),
    ("cut.csv", b"Type,Name,Request Count,Failure Count\nPOST,/v1\n", r"line 2: has 2 columns, its header 4"),
    ("cut2.csv", b"Metric,avg,min,max\nRequest Latency (ms),1,1,1\n", 'has no "Metric,Value" table'),
    (
        "unit.csv",
        b"Metric,avg,min,max\nRequest Latency (fortnights),1,1,1\n\nMetric,Value\nRequest Count,1\n",
        r"unit 'fortnights', which is not a known time unit",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_unreadable_files_name_the_place_and_a_remedy(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    """One clear message with file, line or field, cause and remedy."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ResultFileError, match=message) as caught:
        read_result(path)
    assert name in str(caught.value)
    assert caught.value.remedy.endswith(caught.value.remedy.strip())
    assert len(caught.value.remedy) > 10


def test_locust_failures_point_to_the_right_file() -> None:
    """The file of failures holds no times: the message names the one that does."""
    with pytest.raises(ResultFileError, match=r"_stats\.csv"):
        read_result(FIXTURES / "locust_failures.csv")


def test_fixtures_are_small() -> None:
    """No fixture above 60 kB gets into the repository."""
    assert max(path.stat().st_size for path in FIXTURES.iterdir()) < 60_000
