"""locust's ``--csv`` files: ``*_stats.csv`` (final) and ``*_stats_history.csv`` (its last lines).

Times are milliseconds.  TTFT is a row that the locustfile fires itself, with "ttft" or "first token" in its type or
name.  For a streamed answer locust times the *headers* (about 1 ms), not the answer: an HTTP time below the TTFT is
therefore no end-to-end latency and is left out.
"""

from __future__ import annotations

from typing import Final

from vllmeter.runs.importers.reading import ResultFile, Row, parse_csv, percentile
from vllmeter.runs.results import ClientResult, Summary

NAME: Final = "locust"
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")


def recognises_stats(file: ResultFile) -> bool:
    """The final table."""
    return file.first_line.startswith("Type,Name,Request Count,Failure Count")


def recognises_history(file: ResultFile) -> bool:
    """The table over time."""
    return file.first_line.startswith("Timestamp,User Count,Type,Name")


def recognises_other(file: ResultFile) -> bool:
    """Locust's failure and exception tables, which hold no times."""
    return file.first_line.startswith(("Method,Name,Error,Occurrences", "Count,Message,Traceback"))


def read_other(file: ResultFile) -> tuple[ClientResult, ...]:
    raise file.fail(
        "line 1", "is locust's list of failures, without times", "Import the file ending in _stats.csv instead"
    )


def read_stats(file: ResultFile) -> tuple[ClientResult, ...]:
    return (_result(file, list(parse_csv(file)), "Request Count", "Failure Count", ""),)


def read_history(file: ResultFile) -> tuple[ClientResult, ...]:
    """The last state of each row: totals are cumulative, so the last line of a name holds the whole test.

    The percentile columns are those of the last seconds only, so they are left out.
    """
    rows = list(parse_csv(file))
    last: dict[tuple[str, str], Row] = {}
    for row in rows:
        last[(row.text("Type"), row.text("Name"))] = row
    result = _result(file, list(last.values()), "Total Request Count", "Total Failure Count", "Total ")
    times = [value for row in rows if (value := row.number("Timestamp")) is not None]
    users = [value for row in rows if (value := row.number("User Count")) is not None]
    duration = max(times) - min(times) if len(times) > 1 else None
    return (
        ClientResult(
            tool=result.tool,
            duration=duration or None,
            completed=result.completed,
            failed=result.failed,
            request_rate=result.completed / duration if duration and result.completed is not None else None,
            summaries=result.summaries,
            load={"max_users": f"{max(users):.0f}"} if users else {},
            notes=result.notes,
        ),
    )


def _result(file: ResultFile, rows: list[Row], requests: str, failures: str, prefix: str) -> ClientResult:
    notes = ["statistics only: locust writes no per-request times, so no intervals and no effective sample size"]
    ttft: list[tuple[float, Summary]] = []
    http: list[tuple[float, Summary]] = []
    total = failed = 0.0
    rate: float | None = None
    found_http = False
    for row in rows:
        kind, name = row.text("Type"), row.text("Name")
        if not kind and name == "Aggregated":
            continue
        count = row.number(requests)
        if count is None:
            raise file.fail(f"line {row.line}, column {requests!r}", "is missing", "Export it again with locust --csv")
        summary = _summary(row, prefix)
        text = f"{kind} {name}".lower().replace("_", " ")
        if "ttft" in text or "first token" in text:
            ttft.append((count, summary))
        elif kind.upper() in _METHODS:
            found_http = True
            http.append((count, summary))
            total += count
            missed = row.number(failures)
            if missed is None:
                raise file.fail(
                    f"line {row.line}, column {failures!r}", "is missing", "Export it again with locust --csv"
                )
            failed += missed
            per_second = row.number("Requests/s") if not prefix else None
            if per_second is not None:
                rate = (rate or 0.0) + per_second
    summaries = {}
    if ttft:
        summaries["ttft"] = _merge(ttft, "TTFT", notes)
    if http:
        merged = _merge(http, "HTTP", notes)
        first = summaries.get("ttft")
        if first and first.mean is not None and merged.mean is not None and merged.mean < first.mean:
            notes.append(
                "the HTTP time is below the TTFT, so it is the time to the headers of a streamed answer: "
                "not used as end-to-end latency"
            )
        else:
            summaries["e2e"] = merged
            if not first:
                notes.append("HTTP time taken as end-to-end latency: wrong if the locustfile streams (stream=True)")
    if not summaries:
        raise file.fail("", "holds no request row", "Let the test send at least one request")
    if failed and "e2e" in summaries:
        notes.append("locust's times include failed requests")
    # with --csv, Requests/s of the final table is over the whole test
    duration = total / rate if rate and not prefix else None
    return ClientResult(
        tool=NAME,
        duration=duration,
        completed=round(total - failed) if found_http else None,
        failed=round(failed) if found_http else None,
        request_rate=(total - failed) / duration if duration else None,
        summaries=summaries,
        notes=tuple(notes),
    )


def _summary(row: Row, prefix: str) -> Summary:
    def seconds(column: str) -> float | None:
        value = row.number(column)
        return None if value is None else value / 1000

    percentiles: dict[float, float] = {}
    if not prefix:
        for column in row.cells:
            share = percentile(column[:-1]) if column.endswith("%") else None
            value = seconds(column) if share is not None and share < 1 else None
            if share is not None and value is not None:
                percentiles[share] = value
    else:
        median = seconds("Total Median Response Time")
        if median is not None:
            percentiles[0.5] = median
    count = row.number("Total Request Count" if prefix else "Request Count")
    return Summary(
        mean=seconds(f"{prefix}Average Response Time"),
        minimum=seconds(f"{prefix}Min Response Time"),
        maximum=seconds(f"{prefix}Max Response Time"),
        count=None if count is None else round(count),
        percentiles=percentiles,
    )


def _merge(rows: list[tuple[float, Summary]], what: str, notes: list[str]) -> Summary:
    """One row as it is; of several only what adds up exactly: count, mean, extremes (percentiles do not)."""
    if len(rows) == 1:
        return rows[0][1]
    notes.append(f"{len(rows)} {what} rows are merged: their percentiles cannot be combined and are left out")
    counted = [(count, summary.mean) for count, summary in rows if summary.mean is not None and count]
    count = sum(each for each, _ in counted)
    lows = [summary.minimum for _, summary in rows if summary.minimum is not None]
    highs = [summary.maximum for _, summary in rows if summary.maximum is not None]
    return Summary(
        mean=sum(each * mean for each, mean in counted) / count if count else None,
        minimum=min(lows, default=None),
        maximum=max(highs, default=None),
        count=round(count),
    )
