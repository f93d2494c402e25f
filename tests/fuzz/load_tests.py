"""Results of load tests in the shape of every tool that is imported, built from requests that are known.

Each builder returns a name, a document (JSON value, or lines of text) and a check of what is read against the requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.damage import WORDS, mutate
from fuzz.source import Source
from vllmeter.runs.importers import read_file
from vllmeter.runs.importers.reading import ResultFile
from vllmeter.runs.results import ClientResult, ResultFileError

Check = Callable[[Sequence[ClientResult]], None]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: seconds and tokens; ``ok`` False = it failed."""

    started: float
    ttft: float
    e2e: float
    itl: float
    prompt: int
    output: int
    ok: bool


def requests_of(source: Source, least: int = 0) -> list[Request]:
    """A few requests, one after another."""
    out = []
    for number in range(least + source.number(6)):
        gaps = source.number(5)
        itl = source.number(50) / 1000
        ttft = (1 + source.number(500)) / 1000
        e2e = ttft + gaps * itl
        out.append(
            Request(1.8e9 + number, ttft, e2e, itl if gaps else 0.0, source.number(5000), 1 + gaps, source.often(5))
        )
    return out


def close(one: float | None, other: float | None) -> bool:
    """The same number but for the rounding of a sum; nothing only equals nothing."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _totals(result: ClientResult, requests: Sequence[Request]) -> None:
    good = [each for each in requests if each.ok]
    assert result.completed == len(good), (result.completed, len(good))
    assert result.failed == len(requests) - len(good), result.failed
    if good:
        assert result.prompt_tokens in (None, sum(each.prompt for each in good))
        assert result.output_tokens in (None, sum(each.output for each in good))


def _records(result: ClientResult, requests: Sequence[Request]) -> None:
    """Each request is there with its times, in the order of its start."""
    assert len(result.requests) == len(requests)
    for record, each in zip(result.requests, requests, strict=True):
        assert record.ok == each.ok
        assert record.started is not None
        assert abs(record.started - each.started) < 1e-4, (record.started, each.started)
        if each.ok:
            assert close(record.ttft, each.ttft), (record.ttft, each.ttft)
            assert close(record.e2e, each.e2e), (record.e2e, each.e2e)


def _statistic(values: Sequence[float], scale: float) -> dict[str, Any]:
    """A statistic as tools write it, without its names."""
    ordered = sorted(values)
    return {
        "mean": sum(ordered) / len(ordered) * scale if ordered else 0.0,
        "min": ordered[0] * scale if ordered else 0.0,
        "max": ordered[-1] * scale if ordered else 0.0,
        "p50": ordered[len(ordered) // 2] * scale if ordered else 0.0,
    }


def _summed_up(result: ClientResult, name: str, values: Sequence[float], *, tolerance: float = 1e-9) -> None:
    if not values:
        return
    summary = result.summaries[name]
    for ours, theirs in (
        (summary.mean, _mean(values)),
        (summary.minimum, min(values)),
        (summary.maximum, max(values)),
        (summary.quantile(0.5), sorted(values)[len(values) // 2]),
    ):
        if ours is not None and theirs is not None:
            assert math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=tolerance), (name, ours, theirs)


# --------------------------------------------------------------------------- guidellm


def guidellm(source: Source) -> tuple[str, Any, Check]:
    """One or more benchmarks with statistics and records."""
    runs = [requests_of(source) for _ in range(1 + source.number(3))]
    duration = 1 + source.number(100) / 10
    with_records = source.often(4)
    cut = source.number(3)

    def group(values: list[float], scale: float) -> dict[str, Any]:
        said = _statistic(values, scale)
        return {
            "successful": {
                "mean": said["mean"],
                "median": said["p50"],
                "std_dev": 0.1,
                "min": said["min"],
                "max": said["max"],
                "count": len(values),
                "total_sum": sum(values) * scale,
                "percentiles": {"p001": said["min"], "p50": said["p50"], "p999": said["max"]},
            },
            "errored": {"count": 0, "mean": 0.0},
        }

    def record(each: Request) -> dict[str, Any]:
        return {
            "request_start_time": each.started,
            "time_to_first_token_ms": each.ttft * 1000 if each.ok else None,
            "inter_token_latency_ms": each.itl * 1000,
            "request_latency": each.e2e,
            "prompt_tokens": each.prompt,
            "output_tokens": each.output,
            "info": {"error": None if each.ok else "boom\nTraceback"},
        }

    def benchmark(requests: list[Request]) -> dict[str, Any]:
        good, bad = [each for each in requests if each.ok], [each for each in requests if not each.ok]
        made = {
            "type_": "generative_benchmark",
            "config": {
                "strategy": {"type_": "concurrent", "streams": 4, "worker_count": 4},
                "backend": {"model": "chat"},
            },
            "duration": duration,
            "metrics": {
                "request_totals": {"successful": len(good), "errored": len(bad), "incomplete": cut},
                "time_to_first_token_ms": group([each.ttft for each in good], 1000),
                "inter_token_latency_ms": group([each.itl for each in good], 1000),
                "request_latency": group([each.e2e for each in good], 1),
            },
        }
        if with_records:
            made["requests"] = {
                "successful": [record(r) for r in good],
                "errored": [record(r) for r in bad],
                "incomplete": [],
            }
        return made

    def check(results: Sequence[ClientResult]) -> None:
        assert len(results) == len(runs)
        for result, requests in zip(results, runs, strict=True):
            good = [each for each in requests if each.ok]
            _totals(result, requests)
            _summed_up(result, "ttft", [each.ttft for each in good])
            _summed_up(result, "itl", [each.itl for each in good])
            _summed_up(result, "e2e", [each.e2e for each in good])
            assert close(result.request_rate, len(good) / duration)
            if with_records:
                _records(result, requests)
                assert close(result.output_token_rate, sum(r.output for r in good) / duration if good else None)

    document = {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [benchmark(run) for run in runs]}
    return "guidellm.json", document, check


# --------------------------------------------------------------------------- aiperf

_UNITS = (("ms", 1e3), ("us", 1e6), ("ns", 1e9), ("s", 1.0), ("sec", 1.0))


def aiperf_json(source: Source) -> tuple[str, Any, Check]:
    """Statistics, each with its unit."""
    requests = requests_of(source, 1)
    good = [each for each in requests if each.ok]
    unit, scale = source.pick(_UNITS)

    def metric(values: list[float], name: str = unit, factor: float = scale) -> dict[str, Any]:
        said = _statistic(values, factor)
        return {
            "unit": name,
            "avg": said["mean"],
            "p50": said["p50"],
            "min": said["min"],
            "max": said["max"],
            "count": len(values),
        }

    document: dict[str, Any] = {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "request_latency": metric([each.e2e for each in good]),
        "time_to_first_token": metric([each.ttft for each in good]),
        "inter_token_latency": metric([each.itl for each in good]),
        "request_count": {"unit": "requests", "avg": float(len(good))},
        "benchmark_duration": {"unit": "sec", "avg": 2.5},
        "total_isl": {"unit": "tokens", "avg": float(sum(each.prompt for each in good))},
        "total_osl": {"unit": "tokens", "avg": float(sum(each.output for each in good))},
        "input_config": {
            "models": {"items": [{"name": "chat"}]},
            "phases": [{"name": "profiling", "type": "concurrency", "concurrency": 4, "requests": len(requests)}],
        },
        "was_cancelled": not source.often(8),
    }
    if source.number(2):
        document["error_request_count"] = {"unit": "requests", "avg": float(len(requests) - len(good))}
    else:
        document["completed_request_count"] = {"unit": "requests", "avg": float(len(requests))}

    def check(results: Sequence[ClientResult]) -> None:
        (result,) = results
        _totals(result, requests)
        _summed_up(result, "ttft", [each.ttft for each in good])
        _summed_up(result, "itl", [each.itl for each in good])
        _summed_up(result, "e2e", [each.e2e for each in good])

    return "profile_export_aiperf.json", document, check


def aiperf_records(source: Source) -> tuple[str, Any, Check]:
    """One line per request; those of other phases do not count."""
    requests = requests_of(source, 1)
    unit, scale = source.pick(_UNITS)
    lines = []
    for each in requests:
        metadata = {
            "request_start_ns": round(each.started * 1e9),
            "request_end_ns": round((each.started + each.e2e) * 1e9),
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        }
        metrics = {
            "input_sequence_length": {"value": each.prompt, "unit": "tokens"},
            "output_sequence_length": {"value": each.output, "unit": "tokens"},
        }
        for name, value in (
            ("time_to_first_token", each.ttft),
            ("request_latency", each.e2e),
            ("inter_token_latency", each.itl),
        ):
            metrics[name] = {"value": value * scale, "unit": unit}
        line: dict[str, Any] = {"metadata": metadata, "metrics": metrics}
        if not each.ok:
            line["error"] = {"code": 500, "type": "Internal Server Error"}
        lines.append(line)
        if source.number(4) == 0:
            lines.append({"metadata": {**metadata, "benchmark_phase": "warmup"}, "metrics": metrics})

    def check(results: Sequence[ClientResult]) -> None:
        (result,) = results
        _totals(result, requests)
        _records(result, requests)
        span = max(each.started + each.e2e for each in requests) - requests[0].started
        assert result.duration is not None
        assert abs(result.duration - span) < 1e-5

    return "profile_export.jsonl", lines, check


def aiperf_csv(source: Source) -> tuple[str, Any, Check]:
    """Two tables in one file, with two decimals."""
    requests = requests_of(source, 1)
    good = [each for each in requests if each.ok] or requests[:1]
    rows = ["Metric,avg,min,max,sum,p1,p50,p99,std"]
    for title, values in (
        ("Request Latency", [each.e2e for each in good]),
        ("Time to First Token", [each.ttft for each in good]),
        ("Inter Token Latency", [each.itl for each in good]),
    ):
        said = _statistic(values, 1000)
        rows.append(f"{title} (ms),{said['mean']:.2f},{said['min']:.2f},{said['max']:.2f},,,{said['p50']:.2f},N/A,0.10")
    rows += [
        "Input Sequence Length (tokens),32.00,32.00,32.00,,,,,",
        "",
        "Metric,Value",
        f"Request Count (requests),{len(good)}.00",
        f"Completed Requests (requests),{len(requests)}.00",
        f"Total Input Sequence Length (tokens),{sum(each.prompt for each in good)}.00",
        f"Total Output Sequence Length (tokens),{sum(each.output for each in good)}.00",
        '"Benchmark Duration (sec)",2.50',
        "",
        "Endpoint,GPU_Index",
    ]

    def check(results: Sequence[ClientResult]) -> None:
        (result,) = results
        assert (result.completed, result.failed) == (len(good), len(requests) - len(good))
        assert result.prompt_tokens == sum(each.prompt for each in good)
        assert result.duration == 2.5
        for name, values in (("e2e", [r.e2e for r in good]), ("ttft", [r.ttft for r in good])):
            _summed_up(result, name, values, tolerance=6e-6)

    return "profile_export_aiperf.csv", "\n".join(rows) + "\n", check


# --------------------------------------------------------------------------- k6


def k6_summary(source: Source) -> tuple[str, Any, Check]:
    """``--summary-export``, or what ``handleSummary`` is given."""
    requests = requests_of(source, 1)
    nested = bool(source.number(2))
    unit, scale = source.pick((("ttft", 1e3), ("my_ttft_seconds", 1.0), ("time_to_first_token_ms", 1e3)))
    good = [each for each in requests if each.ok] or requests
    failed = sum(not each.ok for each in requests)

    def metric(values: dict[str, Any], contains: str) -> dict[str, Any]:
        return {"type": "trend", "contains": contains, "values": values} if nested else values

    def trend(values: list[float], factor: float) -> dict[str, Any]:
        said = _statistic(values, factor)
        return {
            "avg": said["mean"],
            "min": said["min"],
            "max": said["max"],
            "med": said["p50"],
            "p(95)": said["max"],
            "p(99.9)": said["max"],
        }

    document: dict[str, Any] = {
        "root_group": {"name": "", "groups": {}, "checks": {}},
        "metrics": {
            "http_req_duration": metric(trend([each.e2e for each in requests], 1e3), "time"),
            unit: metric(trend([each.ttft for each in good], scale), "time" if scale == 1e3 else "default"),
            "http_reqs": metric({"count": len(requests), "rate": 2.0}, "default"),
            "http_req_failed": metric({"passes": failed, "fails": len(requests) - failed, "value": 0.1}, "default"),
            "vus_max": metric({"value": 4, "max": 4}, "default"),
        },
    }
    if source.number(2):
        answered = trend([each.e2e for each in good], 1e3)
        document["metrics"]["http_req_duration{expected_response:true}"] = metric(answered, "time")
    if nested:
        document["state"] = {"testRunDurationMs": 2500.0}

    def check(results: Sequence[ClientResult]) -> None:
        (result,) = results
        assert (result.completed, result.failed) == (len(requests) - failed, failed)
        _summed_up(result, "e2e", [each.e2e for each in requests])
        _summed_up(result, "ttft", [each.ttft for each in good])
        assert close(result.duration, 2.5 if nested else len(requests) / 2.0)

    return "summary.json", document, check


def k6_points(source: Source) -> tuple[str, Any, Check]:
    """``--out json``: points of one virtual user, stamped at their ends."""
    requests = requests_of(source, 1)
    lines: list[dict[str, Any]] = [
        {"metric": name, "type": "Metric", "data": {"name": name, "type": "trend", "contains": "time"}}
        for name in ("http_req_duration", "ttft")
    ]
    zone, shift = source.pick((("Z", 0.0), ("+01:00", 3600.0), ("-05:30", -19800.0)))
    with_ttft = source.often(4)

    def point(name: str, value: float, when: float, tags: dict[str, Any]) -> dict[str, Any]:
        nanoseconds = round((when - 1.8e9) * 1e6) * 1000 + 123
        seconds = 1_800_000_000 + nanoseconds // 10**9 + shift
        text = _clock(seconds) + f".{nanoseconds % 10**9:09d}"[: source.pick((10, 7, 4))] + zone
        return {"metric": name, "type": "Point", "data": {"time": text, "value": value, "tags": tags}}

    for each in requests:
        end = each.started + each.e2e
        tags = {"status": "200" if each.ok else "500", "expected_response": "true" if each.ok else "false"}
        lines.append(point("http_req_duration", each.e2e * 1e3, end, tags))
        lines.append(point("http_req_failed", float(not each.ok), end, tags))
        if each.ok and with_ttft:
            lines.append(point("ttft", each.ttft * 1e3, end, {}))
        lines.append(point("vus_max", 4, end, {}))

    def check(results: Sequence[ClientResult]) -> None:
        (result,) = results
        good = [each for each in requests if each.ok]
        assert (result.completed, result.failed) == (len(good), len(requests) - len(good))
        assert len(result.requests) == len(requests)
        for record, each in zip(result.requests, requests, strict=True):
            assert record.ok == each.ok
            assert record.started is not None
            assert abs(record.started - each.started) < 2e-3, (record.started, each.started)
            if each.ok:
                assert close(record.e2e, each.e2e)
                assert close(record.ttft, each.ttft if with_ttft else None)

    return "points.ndjson", lines, check


def _clock(seconds: float) -> str:
    """ISO 8601 without a zone, from arithmetic of its own: days since 2027-01-15 08:00 (1.8e9)."""
    whole = int(seconds) - 1_800_000_000 + 8 * 3600
    day, rest = divmod(whole, 86400)
    return f"2027-01-{15 + day:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


# --------------------------------------------------------------------------- locust


_STATS = (
    "Type,Name,Request Count,Failure Count,Median Response Time,Average Response Time,Min Response Time,Max Response "
    "Time,Average Content Size,Requests/s,Failures/s,50%,66%,95%,99.9%,100%"
)
_HISTORY = (
    "Timestamp,User Count,Type,Name,Requests/s,Failures/s,50%,95%,100%,Total Request Count,Total Failure Count,"
    "Total Median Response Time,Total Average Response Time,Total Min Response Time,Total Max Response Time,"
    "Total Average Content Size"
)


def locust_stats(source: Source) -> tuple[str, Any, Check]:
    """The final table: rows of requests, perhaps a row for TTFT, and the row over all."""
    rows = [_STATS]
    counts = []
    names = ("/v1/completions", '"/v1/chat, x"', "a")[: 1 + source.number(3)]
    for name in names:
        count = 1 + source.number(500)
        failed = source.number(count + 1)
        counts.append((count, failed))
        rows.append(
            f"POST,{name},{count},{failed},900,{900 + count / 7},640.5,2117.4,4.1,{count / 10},0.1,"
            "900,950,1000,2000,2117"
        )
    ttft = source.number(2)
    if ttft:
        rows.append("TTFT,time to first token,380,0,21,21.5,20.25,40.75,0.0,38.0,0.0,21,22,23,41,41")
    rows.append(",Aggregated,9999,9999,1,1,1,1,1,1,1,1,1,1,1,1")

    def check(results: Sequence[ClientResult]) -> None:
        (result,) = results
        total, failed = sum(count for count, _ in counts), sum(missed for _, missed in counts)
        assert (result.completed, result.failed) == (total - failed, failed)
        e2e = result.summaries["e2e"]
        assert close(e2e.mean, sum(count * (900 + count / 7) for count, _ in counts) / total / 1000)
        assert e2e.count == total
        assert (e2e.quantile(0.95) == 1.0) == (len(counts) == 1)
        if ttft:
            assert result.summaries["ttft"].mean == 0.0215
            assert result.summaries["ttft"].quantile(0.999) == 0.041
        assert close(result.duration, 10.0)

    return "locust_stats.csv", "\n".join(rows) + "\n", check


def locust_history(source: Source) -> tuple[str, Any, Check]:
    """The table over time: totals grow."""
    rows = [_HISTORY]
    count = failed = 0
    steps = 2 + source.number(6)
    for step in range(steps):
        count, failed = count + 1 + source.number(50), failed + source.number(2)
        rows.append(
            f"{1_800_000_000 + step},{step},POST,/v1,1.0,0.0,N/A,0,0,{count},{failed},900,{900 + step},640.5,2117.4,4.1"
        )
        rows.append(
            f"{1_800_000_000 + step},{step},,Aggregated,1.0,0.0,0,0,0,{count},{failed},900,901.0,640.5,2117.4,4.1"
        )

    def check(results: Sequence[ClientResult]) -> None:
        (result,) = results
        assert (result.completed, result.failed) == (count - failed, failed)
        assert result.duration == steps - 1
        assert close(result.summaries["e2e"].mean, (900 + steps - 1) / 1000)
        assert close(result.request_rate, (count - failed) / (steps - 1))

    return "locust_stats_history.csv", "\n".join(rows) + "\n", check


# --------------------------------------------------------------------------- vllm bench serve


def vllm_bench(source: Source) -> tuple[str, Any, Check]:
    """``--save-result``, with ``--save-detailed`` or without, perhaps several appended."""
    runs = [requests_of(source, 1) for _ in range(1 + (source.number(3) if source.number(3) == 0 else 0))]
    detailed = source.often(3)

    def one(requests: list[Request]) -> dict[str, Any]:
        good = [each for each in requests if each.ok]
        made: dict[str, Any] = {
            "backend": "openai", "label": None, "model_id": "chat", "num_prompts": len(requests), "request_rate": "inf",
            "max_concurrency": 4, "duration": 2.5, "completed": len(good), "failed": len(requests) - len(good),
            "total_input_tokens": sum(each.prompt for each in good), "request_throughput": len(good) / 2.5,
            "total_output_tokens": sum(each.output for each in good), "output_throughput": 1.0,
        }  # fmt: skip
        for name, values in (("ttft", [each.ttft for each in good]), ("e2el", [each.e2e for each in good])):
            said = _statistic(values, 1000)
            made |= {f"mean_{name}_ms": said["mean"], f"median_{name}_ms": said["p50"], f"std_{name}_ms": 0.1}
            made |= {f"p99.9_{name}_ms": said["max"], f"p95_{name}_ms": said["max"]}
        if detailed:
            made |= {
                "input_lens": [each.prompt for each in requests],
                "output_lens": [each.output if each.ok else 0 for each in requests],
                "ttfts": [each.ttft if each.ok else 0.0 for each in requests],
                "itls": [[each.itl] * (each.output - 1) if each.ok else [] for each in requests],
                "start_times": [each.started for each in requests],
                "errors": ["" if each.ok else "Traceback\nboom" for each in requests],
            }
        return made

    def check(results: Sequence[ClientResult]) -> None:
        assert len(results) == len(runs)
        for result, requests in zip(results, runs, strict=True):
            good = [each for each in requests if each.ok]
            _totals(result, requests)
            _summed_up(result, "ttft", [each.ttft for each in good])
            if good:
                assert close(result.summaries["e2e"].quantile(0.999), max(each.e2e for each in good))
            if detailed:
                _records(result, requests)
            else:
                assert not result.requests

    return ("vllm.json", one(runs[0]) if len(runs) == 1 else [one(run) for run in runs], check)


BUILDERS = (
    guidellm, aiperf_json, aiperf_records, aiperf_csv, k6_summary, k6_points, locust_stats, locust_history, vllm_bench,
)  # fmt: skip


# --------------------------------------------------------------------------- the target

_DAMAGE = ("", ",", '"', "-1", "NaN", "é", "\n", "{", "1e999", "²", "-", "0", "\x00", "9" * 30)


def _text(source: Source, document: Any) -> str:
    if isinstance(document, str):
        return document
    if isinstance(document, list):
        return (
            "\n".join(json.dumps(line, separators=source.pick(((",", ":"), (", ", ": ")))) for line in document) + "\n"
        )
    return json.dumps(document, indent=source.pick((None, 1)))


def results(data: bytes) -> bool:
    """A result is read as it was built, or refused with its place; numbers that are read can be true."""
    source = Source(data)
    name, document, check = source.pick(BUILDERS)(source)
    damage = source.damage()
    if source.wild and not isinstance(document, str):
        document = (
            [mutate(damage, line) for line in document] if isinstance(document, list) else mutate(damage, document)
        )
    text = _text(source, document)
    if source.wild and (isinstance(document, str) or source.lot % 3 == 0):
        for _ in range(1 + damage.number(3)):
            at = damage.number(len(text) + 1)
            text = text[:at] + damage.pick((*_DAMAGE, *WORDS)) + text[at + damage.number(3) :]
    try:
        read = read_file(ResultFile(name, text))
    except ResultFileError as error:
        assert source.wild, ("a result without mistakes is refused", str(error))
        assert str(error).startswith(name), str(error)
        return False
    if not source.wild:
        check(read)
    for result in read:
        possible(result)
    return True


def possible(result: ClientResult) -> None:
    """No number that no load test can have measured."""
    for number in (
        result.duration, result.completed, result.failed, result.prompt_tokens, result.output_tokens,
        result.request_rate, result.output_token_rate,
    ):  # fmt: skip
        assert number is None or 0 <= number < math.inf, result
    assert result.success_ratio is None or 0 <= result.success_ratio <= 1
    for summary in result.summaries.values():
        for value in (summary.mean, summary.deviation, summary.minimum, summary.maximum, summary.count):
            assert value is None or 0 <= value < math.inf, summary
        for share, value in summary.percentiles.items():
            assert 0 <= share <= 1, summary
            assert 0 <= value < math.inf, summary
    for record in result.requests:
        assert record.started is None or math.isfinite(record.started), record
        for value in (record.ttft, record.e2e, record.itl, record.itl_max, record.prompt_tokens, record.output_tokens):
            assert value is None or 0 <= value < math.inf, record
        assert record.ok or record.error, record
