"""k6: ``--summary-export`` JSON, ``handleSummary`` data, and ``--out json`` (NDJSON, one point per line).

Written from the documented formats.  k6's own trends are in milliseconds.  ``http_req_duration`` runs from the first
byte sent to the last byte received, which is the end-to-end latency of an answer; ``http_req_waiting`` ends with the
headers, which vLLM sends before the first token, so it is *not* TTFT.  TTFT needs a custom Trend whose name holds
"ttft" or "time_to_first_token"; ITL one that holds "itl" or "inter_token_latency".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from vllmeter.runs.importers.reading import Node, ResultFile, decode, parse_json, percentile
from vllmeter.runs.results import ClientResult, RequestRecord, Summary

NAME: Final = "k6"
_PERCENTILE: Final = re.compile(r"p\((.+)\)")


def recognises_summary(file: ResultFile) -> bool:
    """``--summary-export`` or ``handleSummary`` data."""
    head = file.text.lstrip()
    return head.startswith("{") and '"metrics"' in file.text and '"root_group"' in file.text


def recognises_points(file: ResultFile) -> bool:
    """``--out json``: lines with a metric and a type of Metric or Point."""
    line = file.first_line
    return line.startswith("{") and '"metric"' in line and re.search(r'"type"\s*:\s*"(Metric|Point)"', line) is not None


def _meaning(metric: str) -> str | None:
    """Which latency a trend is, by its name."""
    name = metric.lower().replace("-", "_").replace(" ", "_")
    if name == "http_req_duration":
        return "e2e"
    if "ttft" in name or "time_to_first_token" in name:
        return "ttft"
    if re.search(r"(^|_)itl($|_)", name) or "inter_token_latency" in name:
        return "itl"
    return None


def _scale(metric: str, contains: str | None, notes: list[str]) -> float:
    """Seconds per unit of a trend.  A custom Trend without ``isTime`` has no unit: its name decides, else ms."""
    name = metric.lower()
    if contains == "time" or metric == "http_req_duration" or name.endswith(("_ms", "_millis", "_milliseconds")):
        return 1e-3
    if name.endswith(("_s", "_sec", "_seconds")):
        return 1.0
    note = f"trend {metric} does not say its unit: taken as milliseconds (make it new Trend({metric!r}, true))"
    if note not in notes:
        notes.append(note)
    return 1e-3


def _plausible(file: ResultFile, summaries: Mapping[str, Summary], *, stretch: float = 1.0) -> None:
    """A mean TTFT above the mean end-to-end latency means a wrong unit: refuse rather than import a wrong number.

    ``stretch``: how much longer than said the answered requests may have taken.
    """
    ttft, e2e = summaries.get("ttft"), summaries.get("e2e")
    if ttft and e2e and ttft.mean is not None and e2e.mean is not None and ttft.mean > 1.05 * stretch * e2e.mean:
        raise file.fail(
            "trend for TTFT",
            f"has a mean of {ttft.mean:.3g} s, above the mean http_req_duration of {e2e.mean:.3g} s",
            "Its unit is probably not milliseconds: name the trend ttft_seconds or ttft_ms",
        )


def read_summary(file: ResultFile) -> tuple[ClientResult, ...]:
    root = Node(file, parse_json(file))
    metrics = root.node("metrics")
    if metrics is None:
        raise file.fail("field metrics", "is missing", "Write the file with k6 run --summary-export FILE")
    notes: list[str] = ["statistics only: use k6 run --out json=FILE for intervals and an effective sample size"]
    summaries = {}
    for name in metrics.value:
        meaning = _meaning(name)
        node = metrics.node(name)
        if meaning is None or node is None:
            continue
        # handleSummary data nests the numbers in "values", --summary-export does not
        values = node.node("values") or node
        summaries[meaning] = _summary(values, _scale(name, node.text("contains"), notes))
    requests = metrics.node("http_reqs")
    requests = (requests.node("values") or requests) if requests else None
    failed_node = metrics.node("http_req_failed")
    failed_node = (failed_node.node("values") or failed_node) if failed_node else None
    total = requests.integer("count") if requests else None
    # http_req_failed is a Rate of failures: its "passes" are the requests that failed
    failed = failed_node.integer("passes") if failed_node else None
    answered = metrics.node("http_req_duration{expected_response:true}")
    if answered is not None:
        e2e = _summary(answered.node("values") or answered, 1e-3)
        _plausible(file, {**summaries, "e2e": e2e})
    elif total is None or failed is None or total > failed:
        # Failures that end at once pull the mean of all requests down, at most as far as if they had taken no time
        _plausible(file, summaries, stretch=total / (total - failed) if total and failed else 1.0)
    rate = requests.number("rate") if requests else None
    state = root.node("state")
    duration = state.number("testRunDurationMs") if state else None
    seconds = duration / 1000 if duration is not None else (total / rate if total and rate else None)
    load = {}
    users = metrics.node("vus_max")
    users = (users.node("values") or users) if users else None
    if users and users.integer("max") is not None:
        load["max_virtual_users"] = str(users.integer("max"))
    if not summaries:
        raise file.fail(
            "field metrics", "holds no http_req_duration and no TTFT trend", "Run a script that sends requests"
        )
    result = ClientResult(
        tool=NAME,
        duration=seconds,
        completed=None if total is None or failed is None else total - failed,
        failed=failed,
        # http_reqs counts failures too
        request_rate=(total - failed) / seconds if total is not None and failed is not None and seconds else rate,
        summaries=summaries,
        load=load,
        notes=tuple(notes),
    )
    return (result,)


def _summary(node: Node, scale: float) -> Summary:
    def seconds(key: str) -> float | None:
        value = node.number(key)
        return None if value is None else value * scale

    percentiles = {
        share: value
        for key in node.value
        if (match := _PERCENTILE.fullmatch(key))
        and (share := percentile(match[1])) is not None
        and (value := seconds(key)) is not None
    }
    median = seconds("med")
    if median is not None:
        percentiles.setdefault(0.5, median)
    return Summary(
        mean=seconds("avg"),
        minimum=seconds("min"),
        maximum=seconds("max"),
        count=node.integer("count"),
        percentiles=dict(sorted(percentiles.items())),
    )


def read_points(file: ResultFile) -> tuple[ClientResult, ...]:
    contains: dict[str, str] = {}
    notes: list[str] = []
    points: dict[str, list[tuple[float, float, Mapping[str, Any]]]] = {}
    failures: list[float] = []
    users = 0.0
    for number, line in enumerate(file.text.splitlines(), start=1):
        if not line.strip():
            continue
        remedy = "k6 may have been killed while writing: delete the cut last line, then import again"
        found = decode(file, line, number, remedy)
        node = Node(file, found if isinstance(found, dict) else {}, f"line {number}")
        metric, data = node.text("metric"), node.node("data")
        if metric is None or data is None:
            raise file.fail(f"line {number}", "has no metric or data", "Write the file with k6 run --out json=FILE")
        if node.value.get("type") == "Metric":
            contains[metric] = data.text("contains") or ""
            continue
        value = data.number("value")
        if value is None:
            raise file.fail(
                f"line {number}, field data.value", "is missing", "Write the file with k6 run --out json=FILE"
            )
        if metric == "http_req_failed":
            failures.append(value)
        elif metric == "vus_max":
            users = max(users, value)
        elif _meaning(metric):
            tags = data.value.get("tags")
            points.setdefault(metric, []).append(
                (_when(file, number, data), value, tags if isinstance(tags, dict) else {})
            )
    scaled: dict[str, list[tuple[float, float, Mapping[str, Any]]]] = {}
    for metric, found_points in points.items():
        scale = _scale(metric, contains.get(metric), notes)
        scaled.setdefault(_meaning(metric) or "", []).extend(
            (when, value * scale, tags) for when, value, tags in found_points
        )
    if not scaled:
        raise file.fail("", "holds no http_req_duration and no TTFT trend", "Run a script that sends requests")
    records = _records(scaled, notes)
    answered = {key: [value for _, value, tags in each if _expected(tags)] for key, each in scaled.items()}
    _plausible(file, {key: Summary(mean=sum(each) / len(each)) for key, each in answered.items() if each})
    every = [when for each in scaled.values() for when, _, _ in each]
    starts = [each.started for each in records if each.started is not None]
    duration = max(every) - min(starts) if starts else None
    failed = sum(1 for value in failures if value) if failures else sum(1 for each in records if not each.ok)
    completed = (len(failures) if failures else len(records)) - failed
    result = ClientResult(
        tool=NAME,
        duration=duration or None,
        completed=completed,
        failed=failed,
        request_rate=completed / duration if duration else None,
        requests=records,
        load={"max_virtual_users": f"{users:.0f}"} if users else {},
        notes=tuple(notes),
    )
    return (result,)


def _when(file: ResultFile, number: int, data: Node) -> float:
    text = data.text("time") or ""
    # Python 3.10 reads at most microseconds and no "Z"
    trimmed = re.sub(r"(\.\d{6})\d+", r"\1", text.replace("Z", "+00:00"))
    trimmed = re.sub(r"\.(\d{1,5})(?=[+-])", lambda m: "." + m[1].ljust(6, "0"), trimmed)
    try:
        return datetime.fromisoformat(trimmed).timestamp()
    except (ValueError, OverflowError):
        raise file.fail(
            f"line {number}, field data.time",
            f"is no time stamp: {text[:40]!r}",
            "Write it with k6 run --out json=FILE",
        ) from None


def _expected(tags: Mapping[str, Any]) -> bool:
    """Whether the answer was one that the script expected; custom points do not say."""
    return str(tags.get("expected_response", "true")) != "false"


def _records(
    points: Mapping[str, list[tuple[float, float, Mapping[str, Any]]]], notes: list[str]
) -> tuple[RequestRecord, ...]:
    """Requests from points.  k6 stamps a request's point when it ends; a custom point when the script adds it.

    The points of one virtual user follow one another, but k6 does not link a custom point to its request: they are
    paired one to one in order only when there are equally many, else kept as records of their own.
    """
    e2e, ttft = points.get("e2e", []), points.get("ttft", [])
    good = [point for point in e2e if _expected(point[2])]
    if e2e and ttft and len(ttft) == len(good):
        records = []
        pairs = iter(ttft)
        for when, value, tags in e2e:
            if not _expected(tags):
                records.append(RequestRecord(started=when - value, ok=False, error=f"status {tags.get('status', '?')}"))
                continue
            records.append(RequestRecord(started=when - value, e2e=value, ttft=next(pairs)[1]))
        # Paired in file order: right for one user, and in distribution for several.
        if any(each.ttft is not None and each.e2e is not None and each.ttft > each.e2e for each in records):
            notes.append("TTFT points could not be matched to their requests: they are kept as separate records")
        else:
            return tuple(sorted(records, key=lambda each: each.started or 0.0))
    if ttft:
        if not any("separate records" in note for note in notes):
            notes.append(
                "TTFT and request points differ in number: requests are taken from the TTFT points, placed in time by "
                "when the script added them"
            )
        return tuple(
            sorted(
                (RequestRecord(started=when - value, ttft=value) for when, value, _ in ttft),
                key=lambda r: r.started or 0.0,
            )
        )
    return tuple(
        sorted(
            (
                RequestRecord(started=when - value, e2e=value)
                if _expected(tags)
                else RequestRecord(started=when - value, ok=False, error=f"status {tags.get('status', '?')}")
                for when, value, tags in e2e
            ),
            key=lambda each: each.started or 0.0,
        )
    )
