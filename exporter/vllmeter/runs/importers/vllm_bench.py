"""``vllm bench serve --save-result [--save-detailed]``: one JSON object, times in ms in the summary, s in the lists.

Field names as vLLM 0.26 and 0.32 write them (``ttfts``, ``itls``, ``start_times``, ``mean_ttft_ms``, ``p95_e2el_ms``).
With ``--append-result`` the file holds one object per line.
"""

from __future__ import annotations

import re
from typing import Final

from vllmeter.runs.importers.reading import Node, ResultFile, decode, is_finite, parse_json, percentile
from vllmeter.runs.results import ClientResult, RequestRecord, Summary

NAME: Final = "vllm bench serve"
_LATENCIES: Final = {"ttft": "ttft", "itl": "itl", "tpot": "tpot", "e2el": "e2e"}
_LOAD: Final = (
    "request_rate",
    "burstiness",
    "max_concurrency",
    "num_prompts",
    "backend",
    "endpoint_type",
    "ramp_up_strategy",
)


def recognises(file: ResultFile) -> bool:
    """An object with the fields that only this benchmark writes together."""
    head = file.text.lstrip()
    return head.startswith("{") and all(
        f'"{key}"' in file.text for key in ("completed", "request_throughput", "total_output_tokens")
    )


def read(file: ResultFile) -> tuple[ClientResult, ...]:
    lines = [line for line in file.text.splitlines() if line.strip()]
    if len(lines) > 1 and all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines):
        results = []
        for number, line in enumerate(lines, start=1):
            found = decode(file, line, number, "Remove the broken line or run the benchmark again")
            results.append(_result(Node(file, found, f"line {number}")))
        return tuple(results)
    return (_result(Node(file, parse_json(file))),)


def _result(node: Node) -> ClientResult:
    notes: list[str] = []
    summaries = {}
    for theirs, ours in _LATENCIES.items():
        percentiles = {}
        for key in node.value:
            match = re.fullmatch(rf"p(.+)_{theirs}_ms", key)
            share = percentile(match[1]) if match else None
            value = node.number(key) if share is not None else None
            if share is not None and value is not None:
                percentiles[share] = value / 1000
        median = node.number(f"median_{theirs}_ms")
        if median is not None:
            percentiles.setdefault(0.5, median / 1000)
        mean, deviation = node.number(f"mean_{theirs}_ms"), node.number(f"std_{theirs}_ms")
        if mean is not None:
            summaries[ours] = Summary(
                mean=mean / 1000,
                deviation=None if deviation is None else deviation / 1000,
                percentiles=dict(sorted(percentiles.items())),
            )
    requests = _requests(node, notes)
    completed = node.integer("completed")
    failed = node.integer("failed")
    prompts = node.integer("num_prompts")
    if failed is None and completed is not None and prompts is not None:
        failed = max(0, prompts - completed)
        notes.append("the file does not count failures: taken as num_prompts - completed")
    load = {key: str(node.value[key]) for key in _LOAD if node.value.get(key) is not None}
    if completed:
        for key in ("total_input_tokens", "total_output_tokens"):
            tokens = node.number(key)
            if tokens is not None:
                load[key.replace("total_", "mean_")] = f"{tokens / completed:.0f}"
    if not requests:
        notes.append("no per-request times: run it with --save-detailed to get intervals and an effective sample size")
    return ClientResult(
        tool=NAME,
        label=node.text("label") or "",
        model=node.text("model_id"),
        duration=node.number("duration"),
        completed=completed,
        failed=failed,
        prompt_tokens=node.integer("total_input_tokens"),
        output_tokens=node.integer("total_output_tokens"),
        request_rate=node.number("request_throughput"),
        output_token_rate=node.number("output_throughput"),
        summaries=summaries,
        requests=requests,
        load=load,
        notes=tuple(notes),
    )


def _requests(node: Node, notes: list[str]) -> tuple[RequestRecord, ...]:
    ttfts = node.numbers("ttfts")
    if not ttfts:
        return ()
    count = len(ttfts)
    itls = node.items("itls") or [[] for _ in ttfts]
    if len(itls) != count:
        node.numbers("itls", count)
    starts: list[float | None] = list(node.numbers("start_times", count)) if node.has("start_times") else [None] * count
    if not node.has("start_times"):
        notes.append("no start_times (an old vLLM): requests cannot be grouped into lockstep batches")
    errors = [str(each or "") for each in node.items("errors")] or [""] * count
    inputs: list[float | None] = list(node.numbers("input_lens", count)) if node.has("input_lens") else [None] * count
    outputs: list[float | None] = (
        list(node.numbers("output_lens", count)) if node.has("output_lens") else [None] * count
    )
    records = []
    for index, ttft in enumerate(ttfts):
        gaps = itls[index]
        if not isinstance(gaps, list) or not all(is_finite(gap) and gap >= 0 for gap in gaps):
            raise node.file.fail(f"field itls[{index}]", "should be a list of seconds", "Run the benchmark again")
        if not is_finite(ttft + sum(gaps)):
            raise node.file.fail(f"field itls[{index}]", "adds up to no finite time", "Run the benchmark again")
        error = errors[index] if index < len(errors) else ""
        # A failed request is written with ttft 0 and no gaps; an empty error text with ttft 0 is a failure as well.
        ok = not error and ttft > 0
        prompt, output = inputs[index], outputs[index]
        records.append(
            RequestRecord(
                started=starts[index],
                ttft=ttft if ok else None,
                e2e=ttft + sum(gaps) if ok else None,
                itl=sum(gaps) / len(gaps) if ok and gaps else None,
                itl_max=max(gaps) if ok and gaps else None,
                prompt_tokens=None if prompt is None else int(prompt),
                output_tokens=None if output is None else int(output),
                ok=ok,
                error=None if ok else (error.strip().splitlines() or ["no first token"])[-1],
            )
        )
    return tuple(records)
