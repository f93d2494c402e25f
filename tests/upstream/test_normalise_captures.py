"""Every number of a reading agrees with the body it came from, counted again in another way."""

from __future__ import annotations

import math

import pytest

from upstream import bodies
from upstream.recount import recount
from vllmeter.exposition.parse import Parser
from vllmeter.snapshot import ServerReading
from vllmeter.upstream.normalise import Normaliser

_POOLING = {
    "generation_tokens_total",
    "request_generation_tokens",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "decode_time_seconds",
    "kv_cache_usage_ratio",
    "prefix_cache_queries_tokens_total",
    "prefix_cache_hits_tokens_total",
}
_ESTIMATES = {"estimated_flops_total", "estimated_read_bytes_total", "estimated_write_bytes_total"}


def _absent_on_purpose(name: str) -> set[str]:
    """Families of a capture that have samples upstream and still must not be shown."""
    out = set() if "mfu" in name else set(_ESTIMATES)
    if "embed" in name or "rerank" in name:
        out |= _POOLING
    if "api-server-count-2" in name:
        out.add("iteration_tokens")
    return out


def read(name: str) -> ServerReading:
    body = bodies.load(name)
    return Normaliser().normalise(Parser().parse(body.text.encode(), body.content_type))


@pytest.mark.parametrize("name", bodies.names())
def test_reading_agrees_with_the_body(name: str) -> None:
    """Each scalar and each bucket equals what prometheus_client's parser finds, and nothing is missing."""
    wanted = recount(bodies.load(name))
    absent = _absent_on_purpose(name)
    reading = read(name)

    scalars = {
        (ref.family, tuple(sorted(ref.labels))): value
        for ref, value in zip(reading.layout.scalars, reading.values, strict=True)
    }
    assert scalars == {key: value for key, value in wanted.scalars.items() if key[0] not in absent}
    assert len(scalars) == len(reading.values)

    histograms = {
        (ref.family, ref.labels): (dict(zip((*ref.bounds, math.inf), buckets, strict=True)), total)
        for ref, buckets, total in zip(reading.layout.histograms, reading.buckets, reading.sums, strict=True)
    }
    assert histograms == {key: value for key, value in wanted.histograms.items() if key[0] not in absent}
    assert len(histograms) == len(reading.buckets)


@pytest.mark.parametrize("name", bodies.names())
def test_no_name_of_a_real_server_is_unmapped(name: str) -> None:
    """The name table knows every engine family of the captured versions."""
    assert read(name).layout.unmapped == ()


@pytest.mark.parametrize("name", bodies.names())
def test_what_is_left_out_has_a_note(name: str) -> None:
    """A family that has samples and is absent is named in the notes."""
    notes = " ".join(read(name).layout.notes)
    wanted = recount(bodies.load(name))
    present = {family for family, _ in (*wanted.scalars, *wanted.histograms)}
    for family in _absent_on_purpose(name) & present:
        assert family in notes or family.startswith("estimated_"), family
    if _ESTIMATES & present and "mfu" not in name:
        assert "estimated_*" in notes


def test_openmetrics_body_gives_the_same_reading_as_text() -> None:
    """The two formats of one server state say the same, though OpenMetrics spells its samples ``vllm_``."""
    text = read("vllm-0.32.0-cpu-generate-after-load.prom")
    other = read("vllm-0.32.0-cpu-generate-after-load.openmetrics")
    assert [(ref.family, ref.labels) for ref in text.layout.scalars] == [
        (ref.family, ref.labels) for ref in other.layout.scalars
    ]
    engine = [i for i, ref in enumerate(text.layout.scalars) if ref.family != "http_requests_total"]
    assert [text.values[i] for i in engine] == [other.values[i] for i in engine]
    assert text.buckets == other.buckets
    assert text.sums == other.sums
    assert text.layout.cache_config == other.layout.cache_config
    assert text.created == other.created
    assert other.layout.sources["ttft_seconds"] == "vllm_time_to_first_token_seconds"


def test_two_engines_stay_apart() -> None:
    """Data-parallel engines keep their own series and are listed."""
    reading = read("vllm-0.32.0-cpu-generate-dp2-under-load.prom")
    assert reading.layout.engines == ("0", "1")
    assert reading.scalar("requests_running", engine="1") == 8
    assert reading.total("requests_running") == 16
    assert reading.maximum("kv_cache_usage_ratio") == pytest.approx(16 / 29)
    assert set(reading.layout.cache_config) == {"0", "1"}


def test_disabled_statistics_are_seen() -> None:
    """A server without engine metrics is told from one with zeros, and its HTTP counters still count."""
    reading = read("vllm-0.32.0-cpu-generate-disable-log-stats.prom")
    assert not reading.layout.engine_metrics
    assert {ref.family for ref in reading.layout.scalars} == {"http_requests_total"}
    assert "--disable-log-stats" in reading.layout.notes[0]
    assert reading.process_start is not None
    assert reading.total("requests_running") is None


def test_gauges_without_samples_are_absent() -> None:
    """Before the first request two API servers declare their gauges without a value: absent, not 0."""
    reading = read("vllm-0.32.0-cpu-generate-api-server-count-2-idle.prom")
    assert reading.layout.engine_metrics
    assert reading.scalar("requests_running") is None
    assert reading.scalar("kv_cache_usage_ratio") is None
    assert reading.scalar("prompt_tokens_total") == 0
    assert reading.process_start is None
    assert reading.created is None


def test_pooling_server_has_ttft_and_nothing_of_generation() -> None:
    """An embedder shows time to the result and no ITL, TPOT, decode time or generated tokens."""
    reading = read("vllm-0.26.0-h200-embed-under-pressure.prom")
    families = {ref.family for ref in reading.layout.refs}
    assert "ttft_seconds" in families
    assert "e2e_latency_seconds" in families
    assert not families & _POOLING
    assert any("time to the pooled result" in note for note in reading.layout.notes)


def test_idle_chat_server_shows_its_zeros() -> None:
    """Before the first request a chat server's counters are 0 and exposed, so its first event counts in a rate."""
    reading = read("vllm-0.32.0-cpu-generate-idle.prom")
    assert reading.scalar("generation_tokens_total") == 0
    assert reading.scalar("preemptions_total") == 0
    itl = [i for i, ref in enumerate(reading.layout.histograms) if ref.family == "inter_token_latency_seconds"]
    assert [reading.buckets[i][-1] for i in itl] == [0]


def test_facts_of_the_pressure_capture() -> None:
    """Model, engine, cache configuration and start times are read, and strings stay strings."""
    reading = read("vllm-0.26.0-h200-chat-under-pressure.prom")
    assert reading.layout.model_names == ("Qwen3-1.7B",)
    assert reading.layout.engines == ("0",)
    config = reading.layout.cache_config["0"]
    assert config["num_gpu_blocks"] == "700"
    assert config["kv_cache_memory_bytes"] == "None"
    assert "engine" not in config
    assert reading.process_start is not None
    assert reading.created is not None
    assert reading.created > reading.process_start
    assert reading.scalar("requests_waiting_by_reason", reason="capacity") == 16


def test_offload_counters_before_the_first_transfer() -> None:
    """vLLM announces the new names without series then; its older names are there with 0, which is a true sum.

    What has no older name (failed allocations, the pinned share) is absent until it happens.
    """
    body = bodies.load("vllm-0.32.0-cpu-kv-offload-synthetic-idle.prom")
    assert "# TYPE vllm:kv_offload_load_bytes_total counter" in body.text
    assert "\nvllm:kv_offload_load_bytes_total{" not in body.text
    reading = Normaliser().normalise(Parser().parse(body.text.encode(), body.content_type), "0.32.0")
    found = {
        ref.family: (ref.source, value)
        for ref, value in zip(reading.layout.scalars, reading.values, strict=True)
        if ref.family.startswith("kv_offload")
    }
    assert found == {
        "kv_offload_load_bytes_total": ("vllm:kv_offload_total_bytes_total", 0.0),
        "kv_offload_store_bytes_total": ("vllm:kv_offload_total_bytes_total", 0.0),
        "kv_offload_load_time_seconds_total": ("vllm:kv_offload_total_time_total", 0.0),
        "kv_offload_store_time_seconds_total": ("vllm:kv_offload_total_time_total", 0.0),
    }
