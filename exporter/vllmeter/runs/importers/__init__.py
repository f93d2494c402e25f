"""Importers of load-test results: one file per tool and one explicit table, chosen by content.

:func:`read_result` is all that others need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vllmeter.runs.importers import aiperf, guidellm, k6, locust, vllm_bench
from vllmeter.runs.importers.checking import DAMAGED, checked, masked
from vllmeter.runs.importers.reading import ResultFile, open_result
from vllmeter.runs.results import ClientResult

__all__ = ["IMPORTERS", "Importer", "read_file", "read_result"]


@dataclass(frozen=True, slots=True)
class Importer:
    """One file format: its name for messages, a cheap test on the content, and the reader."""

    name: str
    recognises: Callable[[ResultFile], bool]
    read: Callable[[ResultFile], tuple[ClientResult, ...]]


IMPORTERS: Final = (
    Importer("guidellm JSON", guidellm.recognises, guidellm.read),
    Importer("aiperf records (profile_export.jsonl)", aiperf.recognises_records, aiperf.read_records),
    Importer("aiperf JSON", aiperf.recognises_json, aiperf.read_json),
    Importer("aiperf CSV", aiperf.recognises_csv, aiperf.read_csv),
    Importer("k6 --out json", k6.recognises_points, k6.read_points),
    Importer("k6 summary", k6.recognises_summary, k6.read_summary),
    Importer("locust stats CSV", locust.recognises_stats, locust.read_stats),
    Importer("locust history CSV", locust.recognises_history, locust.read_history),
    Importer("locust failures CSV", locust.recognises_other, locust.read_other),
    Importer("vllm bench serve --save-result", vllm_bench.recognises, vllm_bench.read),
)
"""Tried in this order; the first that recognises the content reads the file."""


def read_result(path: Path) -> tuple[ClientResult, ...]:
    """All benchmarks in one result file, in the file's order (guidellm sweeps hold several).

    Keys, tokens and passwords in its error texts are masked.
    Raises :class:`~vllmeter.runs.results.ResultFileError` that names the file, the line or field, and the remedy.
    """
    return read_file(open_result(path))


def read_file(file: ResultFile) -> tuple[ClientResult, ...]:
    """All benchmarks in the text of a result file; what :func:`read_result` does after it has read it."""
    for importer in IMPORTERS:
        if importer.recognises(file):
            try:
                return masked(checked(file, importer.read(file)))
            except OverflowError:
                raise file.fail("", "holds numbers larger than any that a tool writes", DAMAGED) from None
    known = "; ".join(importer.name for importer in IMPORTERS if importer.name != "locust failures CSV")
    raise file.fail(
        "line 1",
        f"not a known load-test result (starts with {file.first_line[:60]!r})",
        f"Known are: {known}",
    )
