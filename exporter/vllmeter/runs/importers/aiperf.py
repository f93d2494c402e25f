"""aiperf's exports: ``profile_export_aiperf.json`` and ``.csv`` (statistics), ``profile_export.jsonl`` (per request).

Every value carries its unit; units that are not known here are an error, never a guess.  Read from aiperf 0.13.0
(JSON schema 1.4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from vllmeter.runs.importers.reading import Node, ResultFile, Row, decode, parse_csv, parse_json, percentile
from vllmeter.runs.results import ClientResult, RequestRecord, Summary

NAME: Final = "aiperf"
_SECONDS: Final[Mapping[str, float]] = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_LATENCIES: Final = {"ttft": "time_to_first_token", "itl": "inter_token_latency", "e2e": "request_latency"}
_TITLES: Final = {"ttft": "Time to First Token", "itl": "Inter Token Latency", "e2e": "Request Latency"}


def recognises_json(file: ResultFile) -> bool:
    """The statistics as JSON."""
    return file.text.lstrip().startswith("{") and '"aiperf_version"' in file.text and '"request_latency"' in file.text


def recognises_records(file: ResultFile) -> bool:
    """The per-request lines."""
    return file.first_line.startswith('{"metadata"') and '"benchmark_phase"' in file.first_line


def recognises_csv(file: ResultFile) -> bool:
    """The statistics as CSV."""
    return file.first_line.startswith("Metric,avg,min,max") and "Request Latency (" in file.text


def _scale(file: ResultFile, place: str, unit: str | None) -> float:
    scale = _SECONDS.get(unit or "")
    if scale is None:
        raise file.fail(place, f"has the unit {unit!r}, which is not a known time unit", "Report it with the file")
    return scale


def read_json(file: ResultFile) -> tuple[ClientResult, ...]:
    node = Node(file, parse_json(file))
    summaries = {}
    for ours, theirs in _LATENCIES.items():
        found = node.node(theirs)
        if found:
            summaries[ours] = _summary(found, _scale(file, f"field {theirs}.unit", found.text("unit")))
    completed = _average(node, "request_count")
    errors = _average(node, "error_request_count")
    if errors is None:
        # completed_request_count is "success + error" (its title in the CSV)
        both = _average(node, "completed_request_count")
        errors = None if both is None or completed is None else both - completed
    duration = _average(node, "benchmark_duration")
    load = {}
    config = node.node("input_config")
    if config:
        load.update(_load(config))
    for key, theirs in (
        ("mean_prompt_tokens", "input_sequence_length"),
        ("mean_output_tokens", "output_sequence_length"),
    ):
        value = _average(node, theirs)
        if value is not None:
            load[key] = f"{value:.0f}"
    notes = ["statistics only: import profile_export.jsonl for intervals and an effective sample size"]
    if node.value.get("was_cancelled"):
        notes.append("aiperf says the benchmark was cancelled")
    prompt, output = _average(node, "total_isl"), _average(node, "total_osl")
    result = ClientResult(
        tool=NAME,
        tool_version=node.text("aiperf_version"),
        model=_model(config),
        duration=duration,
        completed=None if completed is None else round(completed),
        failed=None if errors is None else round(errors),
        prompt_tokens=None if prompt is None else round(prompt),
        output_tokens=None if output is None else round(output),
        request_rate=_average(node, "request_throughput"),
        output_token_rate=_average(node, "output_token_throughput"),
        summaries=summaries,
        load=load,
        notes=tuple(notes),
    )
    return (result,)


def _average(node: Node, key: str) -> float | None:
    found = node.node(key)
    return found.number("avg") if found else None


def _model(config: Node | None) -> str | None:
    models = config.node("models") if config else None
    names = [each.text("name") for each in models.nodes("items")] if models else []
    return names[0] if names else None


def _load(config: Node) -> dict[str, str]:
    """Concurrency and rate, wherever the profiling phase states them."""
    found = {}
    for phase in config.nodes("phases") if isinstance(config.value.get("phases"), list) else []:
        for key in ("type", "concurrency", "request_rate", "rate", "requests"):
            value = phase.value.get(key)
            if isinstance(value, (str, int, float)):
                found[key] = str(value)
    return found


def _summary(node: Node, scale: float) -> Summary:
    def seconds(key: str) -> float | None:
        value = node.number(key)
        return None if value is None else value * scale

    percentiles = {
        share: value
        for key in node.value
        if key.startswith("p") and (share := percentile(key[1:])) is not None and (value := seconds(key)) is not None
    }
    return Summary(
        mean=seconds("avg"),
        deviation=seconds("std"),
        minimum=seconds("min"),
        maximum=seconds("max"),
        count=node.integer("count"),
        percentiles=percentiles,
    )


def read_records(file: ResultFile) -> tuple[ClientResult, ...]:
    records = []
    ends = []
    phases = set()
    for number, line in enumerate(file.text.splitlines(), start=1):
        if not line.strip():
            continue
        found = decode(file, line, number, "The file may be cut off: let aiperf finish, then import it again")
        node = Node(file, found if isinstance(found, dict) else {}, f"line {number}")
        metadata, metrics = node.node("metadata"), node.node("metrics")
        if metadata is None or metrics is None:
            raise file.fail(f"line {number}", "has no metadata or metrics", "Give aiperf's profile_export.jsonl")
        phase = metadata.text("benchmark_phase") or ""
        phases.add(phase)
        if phase != "profiling":
            continue
        start, end = metadata.number("request_start_ns"), metadata.number("request_end_ns")
        failure = node.node("error")
        ok = failure is None and not metadata.value.get("was_cancelled")
        records.append(
            RequestRecord(
                started=None if start is None else start / 1e9,
                ttft=_time(metrics, "time_to_first_token"),
                e2e=_time(metrics, "request_latency"),
                itl=_time(metrics, "inter_token_latency"),
                prompt_tokens=_count(metrics, "input_sequence_length"),
                output_tokens=_count(metrics, "output_sequence_length"),
                ok=ok,
                error=None if ok else _error(failure),
            )
        )
        if end is not None:
            ends.append(end / 1e9)
    if not records:
        raise file.fail("", "holds no request of the profiling phase", "Run aiperf with at least one request")
    starts = [each.started for each in records if each.started is not None]
    duration = max(ends) - min(starts) if ends and starts else None
    ok_records = [each for each in records if each.ok]
    output = [each.output_tokens for each in ok_records if each.output_tokens is not None]
    prompt = [each.prompt_tokens for each in ok_records if each.prompt_tokens is not None]
    load = {}
    for key, tokens in (("mean_prompt_tokens", prompt), ("mean_output_tokens", output)):
        if tokens:
            load[key] = f"{sum(tokens) / len(tokens):.0f}"
    notes = []
    if len(phases) > 1:
        notes.append(
            f"only requests of the profiling phase are used, not of {', '.join(sorted(phases - {'profiling'}))}"
        )
    result = ClientResult(
        tool=NAME,
        duration=duration,
        completed=len(ok_records),
        failed=len(records) - len(ok_records),
        prompt_tokens=sum(prompt) if prompt else None,
        output_tokens=sum(output) if output else None,
        request_rate=len(ok_records) / duration if duration else None,
        output_token_rate=sum(output) / duration if duration and output else None,
        requests=tuple(sorted(records, key=lambda each: each.started or 0.0)),
        load=load,
        notes=tuple(notes),
    )
    return (result,)


def _time(metrics: Node, key: str) -> float | None:
    found = metrics.node(key)
    value = found.number("value") if found else None
    if found is None or value is None:
        return None
    return value * _scale(found.file, f"field {found.path}.unit", found.text("unit"))


def _count(metrics: Node, key: str) -> int | None:
    found = metrics.node(key)
    return found.integer("value") if found else None


def _error(failure: Node | None) -> str:
    if failure is None:
        return "cancelled"
    return " ".join(part for part in (failure.text("code"), failure.text("type")) if part) or "failed"


def read_csv(file: ResultFile) -> tuple[ClientResult, ...]:
    summaries = {}
    lengths: dict[str, float] = {}
    for row in parse_csv(file):
        title, unit = _title(row)
        for ours, theirs in _TITLES.items():
            if title == theirs:
                summaries[ours] = _csv_summary(row, _scale(file, f"line {row.line}, column 'Metric'", unit))
        for key, theirs in (
            ("mean_prompt_tokens", "Input Sequence Length"),
            ("mean_output_tokens", "Output Sequence Length"),
        ):
            average = row.number("avg") if title == theirs else None
            if average is not None:
                lengths[key] = average
    values: dict[str, float] = {}
    lines = file.text.splitlines()
    header = next((n for n, line in enumerate(lines, start=1) if line.strip() == "Metric,Value"), None)
    if header is None:
        raise file.fail("", 'has no "Metric,Value" table', "The file may be cut off: export it again")
    for row in parse_csv(file, header):
        value = row.number("Value")
        if value is not None:
            values[_title(row)[0]] = value
    completed = values.get("Request Count")
    both = values.get("Completed Requests")
    failed = None if completed is None or both is None else both - completed
    result = ClientResult(
        tool=NAME,
        duration=values.get("Benchmark Duration"),
        completed=None if completed is None else round(completed),
        failed=None if failed is None else round(failed),
        prompt_tokens=_rounded(values.get("Total Input Sequence Length")),
        output_tokens=_rounded(values.get("Total Output Sequence Length")),
        request_rate=values.get("Request Throughput"),
        output_token_rate=values.get("Output Token Throughput"),
        summaries=summaries,
        load={key: f"{value:.0f}" for key, value in lengths.items()},
        notes=("statistics only: import profile_export.jsonl for intervals and an effective sample size",),
    )
    return (result,)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _title(row: Row) -> tuple[str, str | None]:
    """ "Request Latency (ms)" -> ("Request Latency", "ms")."""
    match = re.fullmatch(r"(.*?) \(([^()]*)\)", row.text("Metric"))
    return (match[1], match[2]) if match else (row.text("Metric"), None)


def _csv_summary(row: Row, scale: float) -> Summary:
    def seconds(column: str) -> float | None:
        value = row.number(column)
        return None if value is None else value * scale

    percentiles = {
        share: value
        for column in row.cells
        if column.startswith("p")
        and (share := percentile(column[1:])) is not None
        and (value := seconds(column)) is not None
    }
    return Summary(
        mean=seconds("avg"),
        deviation=seconds("std"),
        minimum=seconds("min"),
        maximum=seconds("max"),
        percentiles=percentiles,
    )
