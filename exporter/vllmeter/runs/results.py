"""What a load-test tool measured at the client, in one form for all tools.

Units are seconds, tokens and requests; ``None`` means that the tool's file does not say it.  Client times are not
server times: they include the network, proxies and the client's own scheduling, so reports show both side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

LATENCIES: Final = ("ttft", "itl", "tpot", "e2e")
"""Latency names in results: time to first token, inter-token latency, time per output token after the first
(vLLM's meaning), end-to-end latency."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as the client saw it.

    ``started`` is in seconds on the tool's own clock (monotonic or Unix): only differences within one file mean
    something.  ``itl`` is the mean gap between tokens of this request, ``itl_max`` the longest one.
    """

    started: float | None = None
    ttft: float | None = None
    e2e: float | None = None
    itl: float | None = None
    itl_max: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    ok: bool = True
    error: str | None = None

    @property
    def first_token(self) -> float | None:
        """When the first token came, on the clock of ``started``; None when either part is unknown."""
        return None if self.started is None or self.ttft is None else self.started + self.ttft


@dataclass(frozen=True, slots=True)
class Summary:
    """A latency as the tool summed it up: seconds; ``percentiles`` maps 0-1 to seconds."""

    mean: float | None = None
    deviation: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    count: int | None = None
    percentiles: Mapping[float, float] = field(default_factory=dict)

    def quantile(self, q: float) -> float | None:
        """The tool's own percentile, when the file has exactly that one."""
        return self.percentiles.get(q)


@dataclass(frozen=True, slots=True)
class ClientResult:
    """One benchmark of one result file.

    ``summaries`` has keys of :data:`LATENCIES`; ``requests`` is empty when the tool only wrote statistics.
    ``load`` describes what was asked of the server (concurrency, rate, prompt tokens, …) as text, for comparing runs;
    ``notes`` says in words what was assumed or left out on import.
    """

    tool: str
    tool_version: str | None = None
    label: str = ""
    model: str | None = None
    duration: float | None = None
    completed: int | None = None
    failed: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    request_rate: float | None = None
    output_token_rate: float | None = None
    summaries: Mapping[str, Summary] = field(default_factory=dict)
    requests: tuple[RequestRecord, ...] = ()
    load: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def success_ratio(self) -> float | None:
        """Completed over all finished requests, 0-1; None when the file does not count both."""
        if self.completed is None or self.failed is None or self.completed + self.failed == 0:
            return None
        return self.completed / (self.completed + self.failed)


class ResultFileError(Exception):
    """A result file cannot be used; the message names the file, the place in it, the cause and the remedy."""

    def __init__(self, path: str, place: str, cause: str, remedy: str) -> None:
        self.path, self.place, self.cause, self.remedy = path, place, cause, remedy
        where = f"{path}: {place}" if place else path
        super().__init__(f"{where}: {cause}. {remedy}")
