"""guidellm's JSON report: one or more benchmarks, each with statistics and per-request records.

Read from reports of guidellm 0.8.1 (``metadata.version`` 2); older reports use the same names for what is used here.
guidellm's ``time_per_output_token_ms`` divides the whole latency by all tokens, which is not vLLM's TPOT: left out.
"""

from __future__ import annotations

import re
from typing import Final

from vllmeter.runs.importers.reading import Node, ResultFile, parse_json
from vllmeter.runs.results import ClientResult, RequestRecord, Summary

NAME: Final = "guidellm"
_LATENCIES: Final = {
    "ttft": ("time_to_first_token_ms", 1000.0),
    "itl": ("inter_token_latency_ms", 1000.0),
    "e2e": ("request_latency", 1.0),
}


def recognises(file: ResultFile) -> bool:
    """An object with ``benchmarks`` and guidellm's metric names."""
    head = file.text.lstrip()
    return head.startswith("{") and '"benchmarks"' in file.text and '"time_to_first_token_ms"' in file.text


def read(file: ResultFile) -> tuple[ClientResult, ...]:
    root = Node(file, parse_json(file))
    metadata = root.node("metadata")
    version = metadata.text("guidellm_version") if metadata else None
    benchmarks = root.nodes("benchmarks")
    if not benchmarks:
        raise file.fail("field benchmarks", "is empty", "guidellm finished no benchmark; see its output")
    return tuple(_result(node, version) for node in benchmarks)


def _result(node: Node, version: str | None) -> ClientResult:
    metrics = node.node("metrics")
    if metrics is None:
        raise node.file.fail(
            f"field {node.path}.metrics", "is missing", "Export the report again with --output kind=json"
        )
    summaries = {}
    for ours, (theirs, scale) in _LATENCIES.items():
        group = metrics.node(theirs)
        found = group.node("successful") if group else None
        summary = _summary(found, scale) if found else None
        if summary:
            summaries[ours] = summary
    totals = metrics.node("request_totals")
    lists = node.node("requests")
    records: list[RequestRecord] = []
    if lists:
        for kind in ("successful", "errored"):
            records.extend(_record(each, kind == "successful") for each in lists.nodes(kind))
    notes = []
    incomplete = totals.integer("incomplete") if totals else None
    if incomplete:
        notes.append(f"{incomplete} requests were cut off when the benchmark ended and are not counted")
    if not records:
        notes.append("no per-request records in the report: no intervals, no effective sample size")
    records.sort(key=lambda each: each.started if each.started is not None else 0.0)
    config = node.node("config")
    strategy = config.node("strategy") if config else None
    load = {}
    if strategy:
        load = {key: str(value) for key, value in strategy.value.items() if value is not None and key != "worker_count"}
    ok = [each for each in records if each.ok]
    for key in ("prompt_tokens", "output_tokens"):
        tokens = [value for each in ok if (value := getattr(each, key)) is not None]
        if tokens:
            load[f"mean_{key}"] = f"{sum(tokens) / len(tokens):.0f}"
    prompt = [each.prompt_tokens for each in ok if each.prompt_tokens is not None]
    output = [each.output_tokens for each in ok if each.output_tokens is not None]
    duration = node.number("duration")
    completed = totals.integer("successful") if totals else None
    backend = config.node("backend") if config else None
    return ClientResult(
        tool=NAME,
        tool_version=version,
        label=_label(strategy),
        model=backend.text("model") if backend else None,
        duration=duration,
        completed=completed,
        failed=totals.integer("errored") if totals else None,
        prompt_tokens=sum(prompt) if prompt else None,
        output_tokens=sum(output) if output else None,
        request_rate=completed / duration if completed is not None and duration else None,
        output_token_rate=sum(output) / duration if output and duration else None,
        summaries=summaries,
        requests=tuple(records),
        load=load,
        notes=tuple(notes),
    )


def _label(strategy: Node | None) -> str:
    if strategy is None:
        return ""
    kind = strategy.text("type_") or ""
    for key in ("streams", "rate"):
        if strategy.value.get(key) is not None:
            return f"{kind}@{strategy.value[key]}"
    return kind


def _summary(node: Node, scale: float) -> Summary | None:
    count = node.integer("count")
    if not count:
        return None  # guidellm writes zeros for a statistic without values

    def seconds(key: str, source: Node = node) -> float | None:
        value = source.number(key)
        return None if value is None else value / scale

    percentiles = {}
    table = node.node("percentiles")
    if table:
        for key in table.value:
            value = seconds(key, table)
            if value is not None and re.fullmatch(r"p[0-9]{1,9}", key):
                # p50 = 0.5, p95 = 0.95, p001 = 0.001, p999 = 0.999
                percentiles[1.0 if key == "p100" else float(f"0.{key[1:]}")] = value
    return Summary(
        mean=seconds("mean"),
        deviation=seconds("std_dev"),
        minimum=seconds("min"),
        maximum=seconds("max"),
        count=count,
        percentiles=dict(sorted(percentiles.items())),
    )


def _record(node: Node, ok: bool) -> RequestRecord:
    ttft, itl = node.number("time_to_first_token_ms"), node.number("inter_token_latency_ms")
    started = node.number("request_start_time")
    if started is None:
        started = node.number("start_time")
    error = None
    if not ok:
        info = node.node("info")
        error = (info.text("error") if info else None) or node.text("error") or "failed"
    return RequestRecord(
        started=started,
        ttft=ttft / 1000 if ok and ttft is not None else None,
        e2e=node.number("request_latency") if ok else None,
        itl=itl / 1000 if ok and itl is not None else None,
        prompt_tokens=node.integer("prompt_tokens"),
        output_tokens=node.integer("output_tokens"),
        ok=ok,
        error=error.splitlines()[0] if error else None,
    )
