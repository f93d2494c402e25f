"""What no load test can have measured: refused for every tool, so that a damaged file never becomes a wrong number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from vllmeter.runs.importers.reading import ResultFile
from vllmeter.runs.results import ClientResult

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
