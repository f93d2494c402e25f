"""KV capacity: labels by release, the log, the formula, and where computing is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vllmeter.memory.kv import kv_capacity, kv_shape, tokens_from_labels
from vllmeter.memory.startup_log import GIB, StartupFacts, WorkerFacts
from vllmeter.snapshot import Quantity


def model(layers: int, heads: int, kv_heads: int, head: int, **extra: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "torch_dtype": "bfloat16",
        **extra,
    }


@pytest.mark.parametrize(
    ("config", "per_token"),
    [
        (model(24, 14, 2, 64), 12_288),  # Qwen2.5-0.5B: 24 × 2 × 128 × 2
        (model(28, 12, 2, 128), 28_672),  # Qwen2.5-1.5B: 28 × 2 × 256 × 2
        (model(16, 32, 8, 64), 32_768),  # Llama-3.2-1B: 16 × 8 × 128 × 2
        (model(28, 16, 8, 128), 114_688),  # Qwen3-1.7B: 28 × 8 × 256 × 2
        (model(32, 32, 8, 128), 131_072),  # Llama-3.1-8B: 32 × 8 × 256 × 2
    ],
)
def test_bytes_per_token_of_known_models(config: dict[str, Any], per_token: int) -> None:
    """The formula gives the published figures of five models in bf16."""
    assert kv_shape(config).bytes_per_token == per_token


def test_the_formula_against_a_public_log() -> None:
    """Qwen3-1.7B: a public log has 18.78 GiB for 175,856 tokens = 114,666 B per token; the formula says 114,688."""
    shape = kv_shape(model(28, 16, 8, 128))
    assert shape.bytes_per_token == pytest.approx(18.78 * GIB / 175_856, rel=0.0003)


def test_head_size_follows_from_the_hidden_size() -> None:
    """Older configurations name no head size: hidden size / heads."""
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256, "torch_dtype": "float16"}
    assert kv_shape(config).bytes_per_token == 2 * 4 * 128 * 2


@pytest.mark.parametrize(
    ("tensor", "pipeline", "factor"),
    [(1, 1, 1.0), (2, 1, 0.5), (8, 1, 0.125), (16, 1, 0.125), (1, 2, 0.5), (2, 2, 0.25)],
)
def test_parallel_servers_split_heads_and_layers(tensor: int, pipeline: int, factor: float) -> None:
    """Per GPU: KV heads are split over TP (never below one head), layers over PP."""
    shape = kv_shape(model(32, 32, 8, 128), tensor_parallel=tensor, pipeline_parallel=pipeline)
    assert shape.bytes_per_token == 131_072 * factor


@pytest.mark.parametrize(
    ("dtype", "size"), [("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("bfloat16", 2), ("float16", 2), ("auto", 2)]
)
def test_cache_dtypes(dtype: str, size: int) -> None:
    """fp8 halves the bytes, auto is the model's dtype."""
    assert kv_shape(model(28, 16, 8, 128), cache_dtype=dtype).bytes_per_token == 28 * 8 * 256 * size


@pytest.mark.parametrize(
    ("config", "kwargs", "part"),
    [
        (model(28, 16, 8, 128, kv_lora_rank=512), {}, "latent"),
        (model(28, 16, 8, 128, layer_types=["full_attention", "sliding_attention"]), {}, "layer_types"),
        (model(28, 16, 8, 128, sliding_window=4096), {}, "sliding window"),
        (model(28, 16, 8, 128, attn_layer_period=8), {}, "attn_layer_period"),
        (model(28, 16, 8, 128, full_attention_interval=4), {}, "full_attention_interval"),
        (model(28, 16, 8, 128, is_encoder_decoder=True), {}, "encoder-decoder"),
        (model(28, 16, 8, 128, architectures=["XLMRobertaModel"]), {}, "encoder model"),
        (model(28, 16, 8, 128), {"cache_dtype": "nvfp4"}, "packed"),
        (model(28, 16, 8, 128), {"cache_dtype": "fp8_per_token_head"}, "packed"),
        (model(28, 16, 8, 128), {"cache_dtype": "fp8_ds_mla"}, "packed"),
        (model(28, 16, 8, 128, torch_dtype="float32"), {}, "--dtype"),
        (model(27, 16, 8, 128), {"pipeline_parallel": 2}, "not split evenly"),
        ({"architectures": ["X"]}, {}, "names no layers"),
        (None, {}, "model_config_file"),
    ],
)
def test_what_the_formula_does_not_describe_is_refused(
    config: dict[str, Any] | None, kwargs: dict[str, Any], part: str
) -> None:
    """MLA, hybrid, sliding-window, packed dtypes and broken files give a reason instead of a number."""
    shape = kv_shape(config, **kwargs)
    assert shape.bytes_per_token is None
    assert part in (shape.reason or "")


def test_a_full_attention_model_with_layer_types_is_computed() -> None:
    """Qwen3 lists its layers: all full attention is the simple case; sliding_window without use is none."""
    config = model(28, 16, 8, 128, layer_types=["full_attention"] * 28, sliding_window=4096, use_sliding_window=False)
    assert kv_shape(config).bytes_per_token == 114_688


def test_multimodal_configurations_are_read_from_their_text_part() -> None:
    """The language model's figures stand under text_config."""
    assert kv_shape({"text_config": model(28, 16, 8, 128), "torch_dtype": "bfloat16"}).bytes_per_token == 114_688


# --------------------------------------------------------------------------- tokens from labels


@pytest.mark.parametrize(
    ("version", "labels", "tokens"),
    [
        ("0.26.0", {"0": {"kv_cache_size_tokens": "11200", "num_gpu_blocks": "700", "block_size": "16"}}, 11_200),
        ("0.32.0", {"0": {"kv_cache_size_tokens": "100"}, "1": {"kv_cache_size_tokens": "120"}}, 220),
        ("0.10.2", {"0": {"num_gpu_blocks": "700", "block_size": "16"}}, 11_200),
        # data parallel: the block count is the sum over engines, repeated on each
        ("0.10.2", {e: {"num_gpu_blocks": "700", "block_size": "16"} for e in ("0", "1")}, 11_200),
        ("0.6.3", {"": {"num_gpu_blocks": "700", "block_size": "16"}}, 11_200),
    ],
)
def test_tokens_from_labels(version: str, labels: dict[str, dict[str, str]], tokens: int) -> None:
    """Sizes in tokens are per engine and summed; before them blocks × size counts where vLLM itself says so."""
    assert tokens_from_labels(labels, version) == Quantity(float(tokens), "label")


@pytest.mark.parametrize(
    ("version", "labels", "part"),
    [
        ("0.15.0", {"0": {"num_gpu_blocks": "700", "block_size": "16"}}, "grouped"),
        (None, {"0": {"num_gpu_blocks": "700", "block_size": "16"}}, "grouped"),
        ("0.8.5", {"": {"num_gpu_blocks": "None", "block_size": "16"}}, "None"),
        ("0.26.0", {"0": {"kv_cache_size_tokens": "None", "num_gpu_blocks": "1", "block_size": "16"}}, "None"),
        ("0.26.0", {"0": {"kv_cache_size_tokens": "5"}, "1": {"kv_cache_size_tokens": "None"}}, "None"),
        ("0.26.0", {}, "no vllm:cache_config_info"),
        ("0.10.0", {"0": {"num_gpu_blocks": "x", "block_size": "nan"}}, "None"),
    ],
)
def test_tokens_that_labels_do_not_give(version: str | None, labels: dict[str, dict[str, str]], part: str) -> None:
    """Where blocks × size would be wrong or a label is "None", the capacity is absent with the reason."""
    found = tokens_from_labels(labels, version)
    assert found.value is None
    assert part in (found.reason or "")


# --------------------------------------------------------------------------- capacity


def facts(**values: Any) -> StartupFacts:
    return StartupFacts(number=1, **values)


def test_bytes_of_the_log_are_confirmed_by_the_formula() -> None:
    """When log and formula agree there is nothing to report, and the log counts."""
    worker = WorkerFacts("EngineCore", 1, kv_available=round(18.78 * GIB))
    found = kv_capacity(
        {"0": {"kv_cache_size_tokens": "175856", "cache_dtype": "auto"}},
        version="0.26.0",
        startup=facts(kv_tokens={"EngineCore": 175_856}),
        worker=worker,
        config=model(28, 16, 8, 128),
    )
    assert found.tokens == Quantity(175_856.0, "label")
    assert found.bytes_per_gpu == Quantity(float(round(18.78 * GIB)), "log")
    assert found.findings == ()


def test_a_disagreement_in_bytes_is_reported() -> None:
    """A log of another model (or a wrong config.json) does not go unnoticed."""
    found = kv_capacity(
        {"0": {"kv_cache_size_tokens": "175856"}},
        version="0.26.0",
        worker=WorkerFacts("EngineCore", 1, kv_available=round(9.0 * GIB)),
        config=model(28, 16, 8, 128),
    )
    (finding,) = found.findings
    assert "9.00 GiB" in finding
    assert "18.78 GiB" in finding


def test_a_disagreement_in_tokens_is_reported() -> None:
    """Label and log of different starts: the label counts, the difference is said."""
    found = kv_capacity(
        {"0": {"kv_cache_size_tokens": "11200"}}, version="0.26.0", startup=facts(kv_tokens={"EngineCore": 5000})
    )
    assert found.tokens.value == 11_200
    assert "5,000" in found.findings[0]


def test_without_log_the_formula_is_an_estimate() -> None:
    """Tokens × bytes per token from config.json is marked as an estimate and shows its formula."""
    found = kv_capacity({"0": {"kv_cache_size_tokens": "11200"}}, version="0.26.0", config=model(28, 16, 8, 128))
    assert (found.bytes_per_gpu.value, found.bytes_per_gpu.estimate) == (1_284_505_600, True)
    assert "28 layers × 8 KV heads" in (found.bytes_per_gpu.reason or "")


def test_data_parallel_bytes_are_per_gpu() -> None:
    """Two engines hold their tokens on different cards: bytes per GPU are those of one engine."""
    labels = {engine: {"kv_cache_size_tokens": "11200"} for engine in ("0", "1")}
    found = kv_capacity(labels, version="0.26.0", config=model(28, 16, 8, 128))
    assert (found.tokens.value, found.bytes_per_gpu.value) == (22_400, 1_284_505_600)


def test_an_overridden_block_count_is_not_the_reserved_label() -> None:
    """kv_cache_memory_bytes with num_gpu_blocks_override: the label is not what is allocated."""
    labels = {
        "0": {
            "kv_cache_memory_bytes": "1073741824",
            "num_gpu_blocks_override": "30",
            "num_gpu_blocks": "30",
            "kv_cache_size_tokens": "3840",
        }
    }
    assert kv_capacity(labels, version="0.32.0").bytes_per_gpu.value is None
    computed = kv_capacity(labels, version="0.32.0", config=model(2, 4, 2, 32))
    assert computed.bytes_per_gpu.value == 3840 * 2 * 2 * 64 * 2


def test_negative_available_memory_is_no_capacity() -> None:
    """A failed profiling logs a negative number: no capacity follows from it."""
    worker = WorkerFacts("EngineCore", 1, kv_available=-3 * GIB)
    assert kv_capacity({}, version="0.26.0", worker=worker).bytes_per_gpu.value is None


def test_nothing_known_has_a_reason() -> None:
    """No source at all: both absent, both with a reason."""
    found = kv_capacity({})
    assert found.tokens.value is None
    assert found.tokens.reason
    assert found.bytes_per_gpu.value is None
    assert found.bytes_per_gpu.reason
    assert not found.none


def test_a_pooling_decoder_has_a_kv_cache() -> None:
    """An embedding model built on a decoder has a KV size like any other."""
    found = kv_capacity(
        {"0": {"kv_cache_size_tokens": "5000", "num_gpu_blocks": "312"}}, version="0.26.0", pooling=True
    )
    assert found.tokens.value == 5000
    assert not found.none


def test_concurrency_from_label_then_log() -> None:
    """vLLM's own figure: the label is exact, the log rounded."""
    startup = facts(max_concurrency=2.73)
    with_label = {"0": {"kv_cache_size_tokens": "1", "kv_cache_max_concurrency": "2.734375"}}
    assert kv_capacity(with_label, version="0.26.0", startup=startup).max_concurrency == 2.734375
    without = {"0": {"kv_cache_size_tokens": "1", "kv_cache_max_concurrency": "None"}}
    assert kv_capacity(without, version="0.26.0", startup=startup).max_concurrency == 2.73
    assert kv_capacity({}, version="0.26.0").max_concurrency is None
