"""The questions that ``vllmeter demo --check`` asks Prometheus, and what the recording says the answers are.  Pure.

The expected answers are worked out from the recorded bodies and NVML readings by other means than the exporter's:
straight from the text through prometheus_client's parser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Answers = dict[str, float]
"""label value (server, or "" for a single answer) -> value"""


@dataclass(frozen=True, slots=True)
class Truth:
    """What the recording holds at the moment of the questions, and the largest values on the way there.

    ``bodies``: server -> body; ``peaks``: server -> family -> largest sum over its series; ``process_bytes``:
    server -> GPU memory; ``used_bytes``: device; ``cuda_total``: NVML total − reserved.
    """

    bodies: Mapping[str, str]
    peaks: Mapping[str, Mapping[str, float]]
    process_bytes: Mapping[str, int]
    used_bytes: int
    cuda_total: int
    fractions: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Question:
    """One question: PromQL, how to show the value, and the expected answer with the tolerance allowed.

    ``tolerance`` is relative; it is above 0 only where the answer depends on the second in which we sampled.
    """

    text: str
    query: str
    unit: str
    expected: Callable[[Truth], Answers]
    label: str = "server"
    tolerance: float = 1e-9


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the answer table."""

    question: Question
    key: str
    answer: float | None
    expected: float
    ok: bool


def total(body: str, sample: str, **labels: str) -> float | None:
    """Sum of the samples of a name in a body, read by prometheus_client; None when there is none."""
    found = [
        s.value
        for family in text_string_to_metric_families(body)
        for s in family.samples
        if s.name == sample and labels.items() <= s.labels.items()
    ]
    return sum(found) if found else None


def _each(name: str, only: Sequence[str] | None = None) -> Callable[[Truth], Answers]:
    def expected(truth: Truth) -> Answers:
        out = {}
        for server, body in truth.bodies.items():
            value = total(body, name)
            if value is not None and (only is None or server in only):
                out[server] = value
        return out

    return expected


def _ratio(over: str, under: str) -> Callable[[Truth], Answers]:
    def expected(truth: Truth) -> Answers:
        out = {}
        for server, body in truth.bodies.items():
            a, b = total(body, over), total(body, under)
            if a is not None and b:
                out[server] = a / b
        return out

    return expected


def _peak(family: str) -> Callable[[Truth], Answers]:
    return lambda truth: {s: p[family] for s, p in truth.peaks.items() if p.get(family)}


QUESTIONS: tuple[Question, ...] = (
    Question("Is each server up?", "vllmeter_server_up", "", lambda t: dict.fromkeys(t.bodies, 1.0)),
    Question(
        "How much GPU memory does each server hold?",
        "sum without (gpu, uuid, source) (vllmeter_server_gpu_memory_used_bytes)",
        "bytes",
        lambda t: {s: float(v) for s, v in t.process_bytes.items()},
    ),
    Question(
        "What may it take by its budget?",
        "sum without (gpu, uuid, source) (vllmeter_server_gpu_memory_budget_bytes)",
        "bytes",
        lambda t: {s: f * t.cuda_total for s, f in t.fractions.items()},
    ),
    Question(
        "How much of its budget is that?",
        "sum without (gpu, uuid, source) (vllmeter_server_gpu_memory_used_bytes)"
        " / sum without (gpu, uuid, source) (vllmeter_server_gpu_memory_budget_bytes)",
        "ratio",
        lambda t: {s: t.process_bytes[s] / (f * t.cuda_total) for s, f in t.fractions.items()},
    ),
    Question(
        "How much memory of the card belongs to no process?",
        "vllmeter_gpu_memory_unattributed_bytes",
        "bytes",
        lambda t: {"": float(t.used_bytes - sum(t.process_bytes.values()))},
        label="",
    ),
    Question(
        "How long did the queue get (1 s samples)?",
        "max_over_time(vllmeter_requests_waiting_peak{window='60s'}[10m:1s]) > 0",
        "requests",
        _peak("vllm:num_requests_waiting"),
        tolerance=0.15,
    ),
    Question(
        "How full did the KV cache get?",
        "max_over_time(vllmeter_kv_cache_usage_peak_ratio{window='60s'}[10m:1s]) > 0",
        "ratio",
        _peak("vllm:kv_cache_usage_perc"),
        tolerance=0.05,
    ),
    Question(
        "How many requests were preempted?",
        "sum without (engine) (vllmeter_preemptions_total) > 0",
        "requests",
        lambda t: {s: v for s, v in _each("vllm:num_preemptions_total")(t).items() if v > 0},
    ),
    Question(
        "What share of prompt tokens came from the prefix cache?",
        "sum without (engine) (vllmeter_prefix_cache_hits_tokens_total)"
        " / (sum without (engine) (vllmeter_prefix_cache_queries_tokens_total) > 0)",
        "ratio",
        _ratio("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ),
    Question(
        "What was the mean TTFT?",
        "sum without (engine) (vllmeter_ttft_seconds_sum) / (sum without (engine) (vllmeter_ttft_seconds_count) > 0)",
        "seconds",
        _ratio("vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"),
    ),
    Question(
        "How many tokens were generated?",
        "sum without (engine) (vllmeter_generation_tokens_total) > 0",
        "tokens",
        lambda t: {s: v for s, v in _each("vllm:generation_tokens_total")(t).items() if v > 0},
    ),
    Question(
        "How many requests finished?",
        "sum without (engine, reason) (vllmeter_requests_finished_total)",
        "requests",
        _each("vllm:request_success_total"),
    ),
    Question(
        "How many prompt tokens were really computed?",
        "sum without (engine, source) (vllmeter_prompt_tokens_by_source_total{source='local_compute'})",
        "tokens",
        lambda t: {
            s: v
            for s, body in t.bodies.items()
            if (v := total(body, "vllm:prompt_tokens_by_source_total", source="local_compute")) is not None
        },
    ),
)


def judge(question: Question, answer: Sequence[Mapping[str, Any]], truth: Truth) -> list[Verdict]:
    """Compares a Prometheus instant vector (``data.result``) with what the recording says: one row per key.

    An answer that is missing, or that nobody expected, is wrong.
    """
    got = {
        str(item["metric"].get(question.label, "") if question.label else ""): float(item["value"][1])
        for item in answer
    }
    expected = question.expected(truth)
    rows = []
    for key in sorted({*got, *expected}):
        value, want = got.get(key), expected.get(key)
        if want is None:
            rows.append(Verdict(question, key, value, float("nan"), ok=False))
        else:
            ok = value is not None and abs(value - want) <= question.tolerance * max(abs(want), 1e-12)
            rows.append(Verdict(question, key, value, want, ok))
    return rows or [Verdict(question, "", None, float("nan"), ok=False)]


def show(value: float | None, unit: str) -> str:
    """A value for people: ``5.49 GiB``, ``38 %``, ``77 ms``."""
    if value is None:
        return "no data"
    if value != value:  # noqa: PLR0124 - NaN
        return "nothing"
    if unit == "bytes":
        return f"{value / 2**30:.2f} GiB" if abs(value) >= 2**29 else f"{value / 2**20:.1f} MiB"
    if unit == "ratio":
        return f"{value * 100:.1f} %"
    if unit == "seconds":
        return f"{value * 1000:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"
    return f"{value:,.0f}" + (f" {unit}" if unit else "")
