"""For every tool alike: what no load test can have measured is refused, so that a damaged file never becomes a wrong
number, and secrets in its texts are masked before they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vllmeter.memory.argv import mask_text
from vllmeter.runs.importers.reading import ResultFile
from vllmeter.runs.results import ClientResult, RequestRecord

DAMAGED: Final = "The file may be damaged: export it again"
_MOST: Final = 1e15
"""Above every time in seconds and every number of tokens; whole numbers up to here are exact."""


def checked(file: ResultFile, results: tuple[ClientResult, ...]) -> tuple[ClientResult, ...]:
    """The results as they are; an error for a negative, endless or absurd number in them."""
    for result in results:
        for place, value in _numbers(result):
            if value is not None and not 0 <= value <= _MOST:
                raise file.fail(place, f"cannot be {value:g}", DAMAGED)
        for index, record in enumerate(result.requests):
            for value in (
                record.ttft, record.e2e, record.itl, record.itl_max, record.prompt_tokens, record.output_tokens,
            ):  # fmt: skip
                if value is not None and not 0 <= value <= _MOST:
                    raise file.fail(f"request {index}", f"has a time or a number of tokens of {value:g}", DAMAGED)
            if record.started is not None and not math.isfinite(record.started):
                raise file.fail(f"request {index}, started", f"cannot be {record.started:g}", DAMAGED)
    return results


def masked(results: tuple[ClientResult, ...]) -> tuple[ClientResult, ...]:
    """The results without keys, tokens and passwords in the texts that the tool took over from the server."""
    known: dict[str, str] = {}  # thousands of requests fail with few texts

    def text(value: str) -> str:
        if value not in known:
            known[value] = mask_text(value)
        return known[value]

    def request(record: RequestRecord) -> RequestRecord:
        return record if record.error is None else replace(record, error=text(record.error))

    return tuple(
        replace(
            result,
            load={key: text(value) for key, value in result.load.items()},
            notes=tuple(text(note) for note in result.notes),
            requests=tuple(request(record) for record in result.requests),
        )
        for result in results
    )


def _numbers(result: ClientResult) -> Iterator[tuple[str, float | None]]:
    for name in (
        "duration", "completed", "failed", "prompt_tokens", "output_tokens", "request_rate", "output_token_rate",
    ):  # fmt: skip
        yield name, getattr(result, name)
    for name, summary in result.summaries.items():
        for part in ("mean", "deviation", "minimum", "maximum", "count"):
            yield f"{name} {part}", getattr(summary, part)
        for share, value in summary.percentiles.items():
            yield f"{name} percentile {share * 100:g}", value
