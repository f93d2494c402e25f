"""A small healthy fleet as promtool input: two hosts with equal server names, everything measured, nothing wrong.

Cases change single series of it.  Three properties are meant to catch wrong rules:

* host ``a`` and host ``b`` both have a server ``chat`` (joins that forget ``instance`` double or mix up);
* ``chat`` has two engines (rules that forget to sum them show half);
* the 15 s windows, other states, other ``reason`` and ``le`` values hold numbers that would fire if a rule forgot its
  matcher.

Samples lie at multiples of 5.001 s, evaluations at multiples of 15 s, and the first sample is missing: no sample ever
lies on the edge of a range, where Prometheus 2 and 3 differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

STEP = 5.001
"""Seconds between samples."""

Series = dict[tuple[str, tuple[tuple[str, str], ...]], str]
"""(name, sorted labels) -> values in the short notation of :func:`expand`"""

STATES = (
    "starting",
    "ready",
    "busy",
    "late",
    "stuck",
    "stale_gauges",
    "unknown_progress",
    "engine_dead",
    "sleeping",
    "gone",
    "failing",
)

MIB = 2**20
GIB = 2**30

_SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_SEGMENT = re.compile(r"^(_|stale|-?[\d.e]+)(?:([+-][\d.e]+))?(?:x(\d+))?$")


def key(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """``name{a="b"}`` -> (name with the prefix, sorted labels)."""
    match = _SERIES.match(text)
    assert match is not None, text
    name, inner = match.groups()
    if name != "up" and ":" not in name and not name.startswith("vllmeter_"):
        name = f"vllmeter_{name}"
    return name, tuple(sorted(_LABEL.findall(inner or "")))


def expand(values: str, samples: int) -> str:
    """Short notation -> promtool's, ``samples`` long, without a sample at time 0.

    ``1x10`` is ten samples of 1, ``5+2x10`` ten samples from 5 in steps of 2, ``_x3`` three missing ones; the last
    segment goes on to the end (a number stays, a slope continues).
    """
    out, count = ["_"], 0
    parts = values.split()
    for index, part in enumerate(parts):
        match = _SEGMENT.match(part)
        assert match is not None, part
        value, slope, times = match.groups()
        length = int(times or 1)
        if index == len(parts) - 1:
            length = max(samples - count, 1)
        count += length
        if value == "_":
            out.append(f"_x{length}")
        elif value == "stale":
            out.append("stale")
        else:
            out.append(f"{value}{slope or '+0'}x{length - 1}")
    return " ".join(out)


def per_second(rate: float, start: float = 0.0) -> str:
    """A counter that grows by ``rate`` a second."""
    return f"{start:g}+{rate * STEP:.9g}"


def steps(seconds: float) -> int:
    """How many samples lie in the first ``seconds``."""
    return int(seconds / STEP)


def host_labels(host: str) -> dict[str, str]:
    return {"job": "vllmeter", "instance": f"{host}:9877", "host": host}


def histogram(
    out: Series, name: str, labels: Mapping[str, str], shares: Iterable[tuple[str, float]], rate: float, mean: float
) -> None:
    """Cumulative buckets: ``rate`` observations a second, of which ``shares`` (cumulative) lie at or below a bound."""
    for le, share in (*shares, ("+Inf", 1.0)):
        out[key_of(f"{name}_bucket", {**labels, "le": le})] = per_second(rate * share)
    out[key_of(f"{name}_count", labels)] = per_second(rate)
    out[key_of(f"{name}_sum", labels)] = per_second(rate * mean)


def key_of(name: str, labels: Mapping[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    return (name if name == "up" else f"vllmeter_{name}"), tuple(sorted(labels.items()))


TTFT = (("0.1", 0.5), ("0.5", 0.9), ("1.0", 0.98), ("2.5", 0.999), ("10.0", 1.0))
ITL = (("0.01", 0.5), ("0.05", 0.95), ("0.1", 1.0))
E2E = (("0.3", 0.2), ("1.0", 0.6), ("5.0", 0.97), ("60.0", 1.0))
QUEUE = (("0.3", 0.9), ("1.0", 1.0))


def server(out: Series, host: str, name: str, *, busy: bool, engines: tuple[str, ...], gpu: str = "0") -> None:
    """One healthy server; ``busy`` gives it 2 requests a second (per engine: shared evenly)."""
    own = {**host_labels(host), "server": name}
    card = {**own, "gpu": gpu, "uuid": f"GPU-{host}{gpu}"}

    def put(family: str, value: str | float, labels: Mapping[str, str] = own, **extra: str) -> None:
        out[key_of(family, {**labels, **extra})] = value if isinstance(value, str) else f"{value:.12g}"

    current = "busy" if busy else "ready"
    for one in STATES:
        put("server_state", float(one == current), state=one)
    put("server_up", 1)
    put("server_healthy", 1)
    put("server_info", 1, model_name=f"org/{name}", version="0.26.0", url=f"http://127.0.0.1/{name}")
    put("server_engine_metrics", 1)
    put("server_restarts_total", 0)
    put("unmapped_families", 0)
    put("sample_age_seconds", 0.4)
    put("scrape_in_flight_seconds", 0.1)
    put("attribution_info", 1, state="measured", method="port", reason="")

    put("server_gpu_memory_used_bytes", 5 * GIB, card, source="nvml")
    put("server_gpu_memory_budget_bytes", 6 * GIB, card, source="log")
    put("server_gpu_memory_allowance_bytes", 600 * MIB, card, source="computed")
    put("server_gpu_memory_high_water_bytes", 5 * GIB, card)
    put("server_gpu_memory_part_bytes", 600 * MIB, card, part="context", source="computed")
    put("server_gpu_memory_part_bytes", 30 * GIB, card, part="weights", source="log")
    put("kv_cache_capacity_tokens", 40000, source="label")

    rate = 2.0 if busy else 0.0
    for engine in engines:
        each = {**own, "engine": engine}
        share = rate / len(engines)
        put("requests_running", 3 if busy else 0, each)
        put("requests_waiting", 0, each)
        put("requests_waiting_by_reason", 0, each, reason="capacity")
        put("requests_waiting_by_reason", 0, each, reason="deferred")
        put("kv_cache_usage_ratio", 0.3 if busy else 0, each)
        put("requests_finished_total", per_second(share), each, reason="stop")
        put("requests_finished_total", 0, each, reason="error")
        put("requests_corrupted_total", 0, each)
        put("prompt_tokens_total", per_second(share * 100), each)
        put("prompt_tokens_by_source_total", per_second(share * 40), each, source="local_compute")
        put("prompt_tokens_by_source_total", per_second(share * 60), each, source="local_cache_hit")
        put("generation_tokens_total", per_second(share * 50), each)
        put("prefix_cache_queries_tokens_total", per_second(share * 100), each)
        put("prefix_cache_hits_tokens_total", per_second(share * 60), each)
        put("external_prefix_cache_queries_tokens_total", per_second(share * 40), each)
        put("external_prefix_cache_hits_tokens_total", per_second(share * 10), each)
        put("preemptions_total", per_second(share * 0.01), each)
        put("server_sleep_state", 1, each, state="awake")
        put("server_sleep_state", 0, each, state="weights_offloaded")
        put("server_sleep_state", 0, each, state="discard_all")
        histogram(out, "ttft_seconds", each, TTFT, share, 0.25)
        histogram(out, "inter_token_latency_seconds", each, ITL, share * 49, 0.02)
        histogram(out, "e2e_latency_seconds", each, E2E, share, 1.5)
        histogram(out, "queue_time_seconds", each, QUEUE, share, 0.05)
        histogram(out, "prefill_time_seconds", each, QUEUE, share, 0.2)
        histogram(out, "decode_time_seconds", each, QUEUE, share, 1.25)
        histogram(out, "time_per_output_token_seconds", each, ITL, share, 0.021)
    for handler in ("/v1/chat/completions", "/v1/completions"):
        http = {**own, "handler": handler, "method": "POST"}
        put("http_requests_total", per_second(rate / 2), http, status="2xx")
        put("http_requests_total", per_second(rate / 40), http, status="4xx")

    put("requests_waiting_peak", 0, window="60s")
    put("requests_waiting_peak", 40, window="15s")
    put("kv_cache_usage_peak_ratio", 0.35, window="60s")
    put("kv_cache_usage_peak_ratio", 0.99, window="15s")
    put("preemptions_window", 0, window="60s")
    put("preemptions_window", 50, window="15s")
    if not busy:
        return
    # 15 s values are absurd on purpose: a rule that forgets its window takes the larger one.
    for seconds, jitter, mean, requests in (("60s", 0.05, 0.25, 120), ("15s", 90, 30, 900)):
        put("ttft_jitter_lower_seconds", jitter, window=seconds)
        put("ttft_window_mean_seconds", mean, window=seconds)
        put("ttft_window_requests", requests, window=seconds)
    for seconds, share_over in (("60s", 0.001), ("15s", 0.002)):
        put("ttft_window_share_over_ratio", share_over, window=seconds, bound="2.5")
        put("ttft_window_share_over_ratio", 0.9, window=seconds, bound="0.1")
    put("inter_token_latency_window_mean_seconds", 0.02, window="60s")
    put("inter_token_latency_window_mean_seconds", 9, window="15s")
    put("prompt_tokens_computed_window", 800, window="60s")
    put("prompt_tokens_computed_window", 9000, window="15s")
    for seconds, ratio, contended, clear, requests in (("60s", 0.3, 0.27, 0.25, 50), ("15s", 0.99, 90, 80, 500)):
        put("gpu_contention_ratio", ratio, card, window=seconds)
        put("ttft_contended_mean_seconds", contended, card, window=seconds)
        put("ttft_contended_requests", requests, card, window=seconds)
        put("ttft_clear_mean_seconds", clear, card, window=seconds)
        put("ttft_clear_requests", requests + 10, card, window=seconds)


def exporter(out: Series, host: str, *, gpu: str = "0") -> None:
    """The host's exporter and its card: 24 GiB, of which 21 are used."""
    own = host_labels(host)
    card = {**own, "gpu": gpu, "uuid": f"GPU-{host}{gpu}"}

    def put(family: str, value: str | float, labels: Mapping[str, str] = own, **extra: str) -> None:
        out[key_of(family, {**labels, **extra})] = value if isinstance(value, str) else f"{value:.12g}"

    put("up", 1)
    put("config_last_reload_successful", 1)
    put("nvml_up", 1)
    put("nvml_sample_age_seconds", 0.5)
    put("gpu_memory_total_bytes", 24 * GIB, card)
    put("gpu_memory_reserved_bytes", 500 * MIB, card)
    put("gpu_memory_used_bytes", 20 * GIB, card)
    put("gpu_memory_free_bytes", 24 * GIB - 500 * MIB - 20 * GIB, card)
    put("gpu_memory_used_peak_bytes", 21 * GIB, card, window="60s")
    put("gpu_memory_used_peak_bytes", 24 * GIB, card, window="15s")
    put("gpu_memory_cuda_total_bytes", 24 * GIB - 500 * MIB, card, source="computed")
    put("gpu_memory_committed_bytes", 20 * GIB, card)
    put("gpu_memory_unattributed_bytes", 20 * MIB, card)
    put("gpu_memory_other_bytes", 700 * MIB, card, program="Xorg", orphan="false")
    put("gpu_ecc_errors_total", 0, card, kind="uncorrected")
    put("gpu_ecc_errors_total", per_second(1), card, kind="corrected")
    for reason in ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown"):
        put("gpu_throttle", 0, card, reason=reason)
    put("gpu_throttle", 1, card, reason="sw_power_cap")


def fleet(*, busy: bool = True) -> Series:
    """Hosts a (chat, embed) and b (chat)."""
    out: Series = {}
    for host in ("a", "b"):
        exporter(out, host)
        server(out, host, "chat", busy=busy, engines=("0", "1"))
    server(out, "a", "embed", busy=busy, engines=("0",))
    # The embedder gives no first tokens in the sense of a chat and half of the traffic; its memory is its own.
    return out


def change(series: Series, changes: Mapping[str, str | None]) -> Series:
    """A copy with changes: every series whose labels include those named gets the values, or is dropped (None).

    Without a ``host`` the change is for host a, without a ``server`` for chat; a series that did not exist is added.
    """
    out = dict(series)
    for text, values in changes.items():
        name, pairs = key(text)
        wanted = dict(pairs)
        explicit_all = wanted.pop("all", None)
        if explicit_all is None:
            wanted.setdefault("host", "a")
        matching = [
            one
            for one in out
            if one[0] == name
            and wanted.items() <= dict(one[1]).items()
            and (explicit_all or "server" in wanted or dict(one[1]).get("server", "chat") == "chat")
        ]
        if values is None:
            assert matching, f"nothing matches {text}"
            for one in matching:
                del out[one]
        elif matching:
            for one in matching:
                out[one] = values
        else:
            labels = {**host_labels(wanted["host"]), **wanted}
            out[(name, tuple(sorted(labels.items())))] = values
    return out


def write_series(series: Series, samples: int) -> list[dict[str, str]]:
    """promtool's ``input_series``."""
    return [
        {
            "series": name + "{" + ", ".join(f'{k}="{v}"' for k, v in labels) + "}",
            "values": expand(values, samples),
        }
        for (name, labels), values in sorted(series.items())
    ]
