"""How much KV cache a server has: tokens and bytes, each from the best source, cross-checked.

Order of trust: labels of ``vllm:cache_config_info`` (effective values), the start-up log, then the model's
``config.json`` (computed, an estimate).  Computing is refused wherever the simple formula does not hold (MLA,
hybrid and sliding-window models, packed dtypes): then only measured figures count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllmeter.memory.regimes import parse_version
from vllmeter.memory.startup_log import ROUNDING, StartupFacts, WorkerFacts
from vllmeter.snapshot import Quantity

_DTYPE_BYTES: Final = {
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "bf16": 2,
    "fp16": 2,
    "float32": 4,
    "float": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
_MLA_KEYS: Final = ("kv_lora_rank", "q_lora_rank")
_HYBRID_KEYS: Final = (
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_layer_period",
    "attn_type_list",
    "full_attention_interval",
    "full_attn_idxs",
    "mamba_d_state",
    "mamba_expand",
    "ssm_cfg",
    "ssm_state_size",
    "linear_num_key_heads",
    "linear_attn_config",
    "num_kv_shared_layers",
    "attention_chunk_size",
    "sliding_window_pattern",
    "global_attn_every_n_layers",
    "cross_attention_layers",
    "index_topk",
)


def _text(labels: Mapping[str, str], name: str) -> str | None:
    value = labels.get(name)
    return None if value in (None, "", "None", "none") else value


def _whole(labels: Mapping[str, str], name: str) -> int | None:
    text = _text(labels, name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token costs per GPU, or why that is not computed."""

    bytes_per_token: float | None
    reason: str | None = None
    formula: str = ""
    layers: int | None = None


def kv_shape(
    config: Mapping[str, Any] | None,
    *,
    cache_dtype: str | None = None,
    model_dtype: str | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> KvShape:
    """Bytes of KV cache per token and GPU from the model's ``config.json``.

    ``layers / PP × kv heads per TP rank × (head size of K + head size of V) × bytes per element`` with kv heads per
    rank = max(1, kv_heads / TP) (they are replicated when there are fewer heads than ranks).  ``cache_dtype`` is
    vLLM's ``--kv-cache-dtype``; ``auto`` is the model's dtype, ``model_dtype`` where vLLM changed it.
    Refuses with a reason what the formula does not describe.
    """
    if config is None:
        return KvShape(None, "no config.json of the model was given (model_config_file)")
    text = config
    for name in ("text_config", "llm_config", "language_config"):
        nested = config.get(name)
        if isinstance(nested, Mapping) and "num_hidden_layers" in nested:
            text = nested
            break
    if any(text.get(key) for key in _MLA_KEYS):
        return KvShape(None, "the model uses multi-head latent attention: measured figures only")
    for key in _HYBRID_KEYS:
        if text.get(key) not in (None, False, 0, [], ""):
            return KvShape(None, f"the model's layers differ ({key}): measured figures only")
    kinds = text.get("layer_types")
    if isinstance(kinds, list | tuple) and set(kinds) - {"full_attention"}:
        return KvShape(None, "the model mixes kinds of attention (layer_types): measured figures only")
    if text.get("sliding_window") not in (None, 0) and text.get("use_sliding_window", True):
        return KvShape(None, "the model uses a sliding window: measured figures only")
    names = " ".join(str(name) for name in config.get("architectures") or ())
    if text.get("is_encoder_decoder"):
        return KvShape(None, "encoder-decoder model: measured figures only")
    if any(part in names for part in ("Bert", "Roberta", "MPNet", "Electra")):
        return KvShape(None, "encoder model: it has no KV cache")
    layers = text.get("num_hidden_layers") or text.get("n_layer")
    heads = text.get("num_attention_heads") or text.get("n_head")
    kv_heads = text.get("num_key_value_heads") or heads
    if text.get("multi_query") and not text.get("num_key_value_heads"):
        kv_heads = 1
    hidden = text.get("hidden_size") or text.get("n_embd")
    head = text.get("head_dim")
    if head is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head = hidden // heads
    if not all(isinstance(value, int) and value > 0 for value in (layers, kv_heads, head)):
        return KvShape(None, "config.json names no layers, heads or head size")
    assert isinstance(layers, int)
    assert isinstance(kv_heads, int)
    assert isinstance(head, int)
    dtype = (cache_dtype or "auto").lower()
    if dtype == "auto":
        dtype = str(model_dtype or text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "")
        dtype = dtype.removeprefix("torch.").lower()
        if model_dtype is None and dtype in ("float32", "float"):
            return KvShape(
                None, "the model is float32, which vLLM serves in 16 bits unless told otherwise: set --dtype"
            )
    size = _DTYPE_BYTES.get(dtype)
    if size is None:
        return KvShape(None, f"KV cache dtype {dtype or 'unknown'!r} is packed or has scales: measured figures only")
    if layers % max(1, pipeline_parallel):
        return KvShape(None, f"{layers} layers are not split evenly over {pipeline_parallel} pipeline stages")
    per_rank = max(1, kv_heads // max(1, tensor_parallel))
    stage = layers // max(1, pipeline_parallel)
    return KvShape(
        float(stage * per_rank * 2 * head * size),
        None,
        f"{stage} layers × {per_rank} KV heads × {2 * head} × {size} B",
        layers,
    )


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """KV capacity of a server.

    ``tokens``: over all engines.  ``bytes_per_gpu``: what is allocated on each of its GPUs.  ``none``: it is known
    that the server has no KV cache (an encoder).  ``findings``: disagreements between sources, in words.
    """

    tokens: Quantity
    bytes_per_gpu: Quantity
    max_concurrency: float | None = None
    none: bool = False
    findings: tuple[str, ...] = ()


def tokens_from_labels(labels_by_engine: Mapping[str, Mapping[str, str]], version: str | None) -> Quantity:
    """KV tokens over all engines from ``vllm:cache_config_info``.

    ``kv_cache_size_tokens`` (0.24 and later) is per engine and is summed.  Before it, blocks × block size is what
    vLLM itself calls its size up to 0.10; later releases can group layers, so there it stays absent.
    ``num_gpu_blocks`` of data-parallel servers is already the sum over engines, repeated on each.
    """
    if not labels_by_engine:
        return Quantity(None, reason="no vllm:cache_config_info")
    sizes = [_whole(labels, "kv_cache_size_tokens") for labels in labels_by_engine.values()]
    if any("kv_cache_size_tokens" in labels for labels in labels_by_engine.values()):
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            return Quantity(None, reason="vLLM gives no KV size for this server (kv_cache_size_tokens is None)")
        return Quantity(float(sum(known)), "label")
    first = next(iter(labels_by_engine.values()))
    blocks, size = _whole(first, "num_gpu_blocks"), _whole(first, "block_size")
    if blocks is None or size is None:
        return Quantity(None, reason="num_gpu_blocks or block_size is None in vllm:cache_config_info")
    parsed = parse_version(version)
    if parsed is None or parsed >= (0, 11, 0, 0):
        return Quantity(
            None,
            reason="blocks × block size is not the capacity where layers are grouped (0.11 to 0.23); see the log",
        )
    return Quantity(float(blocks * size), "label")


def kv_capacity(
    labels_by_engine: Mapping[str, Mapping[str, str]],
    *,
    version: str | None = None,
    startup: StartupFacts | None = None,
    worker: WorkerFacts | None = None,
    config: Mapping[str, Any] | None = None,
    model_dtype: str | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    kv_bytes_flag: int | None = None,
    pooling: bool = False,
) -> KvCapacity:
    """Tokens and bytes of KV cache, with sources, and every disagreement between them.

    ``worker`` is the one whose GPU is asked for (any, when all log the same).  ``kv_bytes_flag`` is
    ``--kv-cache-memory-bytes`` from the command line, used when neither label nor log has it.
    """
    findings: list[str] = []
    first = next(iter(labels_by_engine.values()), {})
    engines = max(1, len(labels_by_engine))
    labelled = tokens_from_labels(labels_by_engine, version)
    logged = startup.kv_tokens_total if startup else None
    tokens = labelled
    if tokens.value is None and logged is not None:
        tokens = Quantity(float(logged), "log")
    elif tokens.value is not None and logged is not None and abs(tokens.value - logged) > 1:
        findings.append(
            f"KV capacity: vllm:cache_config_info says {tokens.value:,.0f} tokens, the log says {logged:,}; "
            "the label counts"
        )

    cache_dtype = _text(first, "cache_dtype") or (startup.kv_cache_dtype if startup else None)
    shape = kv_shape(
        config,
        cache_dtype=cache_dtype,
        model_dtype=(startup.dtype if startup else None) or model_dtype,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
    )

    # An encoder: newer releases give a block count of 0 or 1 and no size in tokens
    blocks = _whole(first, "num_gpu_blocks")
    encoder = shape.reason == "encoder model: it has no KV cache"
    if "kv_cache_size_tokens" in first and _whole(first, "kv_cache_size_tokens") is None and blocks in (0, 1):
        encoder = True
    if startup is not None and startup.ready and pooling and logged is None and worker is not None:
        encoder = encoder or (worker.kv_available is None and worker.kv_reserved is None)
    if encoder and tokens.value is None:
        absent = Quantity(None, reason="no KV cache: the model is an encoder")
        return KvCapacity(absent, absent, none=True, findings=tuple(findings))

    override = _whole(first, "num_gpu_blocks_override")
    fitted = startup.blocks_override if startup else None
    reserved = _whole(first, "kv_cache_memory_bytes")
    candidates: list[Quantity] = []
    if reserved is not None and override is None and fitted is None:
        candidates.append(Quantity(float(reserved), "label"))
    if worker is not None and worker.kv_reserved is not None and fitted is None:
        candidates.append(Quantity(float(worker.kv_reserved), "log"))
    if worker is not None and worker.kv_available is not None and worker.kv_available > 0:
        if fitted is not None and fitted[0] > 0:
            # so many blocks fitted into what was available: bytes per block to within one block
            candidates.append(
                Quantity(worker.kv_available * fitted[1] / fitted[0], "log", reason="blocks ordered of blocks fitted")
            )
        elif override is None and worker.kv_reserved is None:
            candidates.append(Quantity(float(worker.kv_available), "log"))
    if kv_bytes_flag is not None and not candidates and override is None and fitted is None:
        candidates.append(Quantity(float(kv_bytes_flag), "flags"))
    computed = None
    if shape.bytes_per_token is not None and tokens.value is not None:
        computed = Quantity(shape.bytes_per_token * tokens.value / engines, "computed", True, shape.formula)
    chosen = candidates[0] if candidates else computed
    if chosen is None:
        why = shape.reason or tokens.reason or "neither label, log nor config.json gives it"
        chosen = Quantity(None, reason=f"not logged, not a label; {why}")
    if candidates and computed is not None and candidates[0].value and computed.value is not None:
        measured = float(candidates[0].value)
        # one block of slack (and the precision of the log): the pool is rounded down to whole blocks
        block = _whole(first, "block_size") or 16
        slack = ROUNDING + (shape.bytes_per_token or 0.0) * block * 2
        if abs(measured - computed.value) > max(slack, 0.02 * measured):
            findings.append(
                f"KV capacity: {candidates[0].source} gives {measured / 2**30:.2f} GiB per GPU, "
                f"tokens × {shape.formula} gives {computed.value / 2**30:.2f} GiB; the {candidates[0].source} counts"
            )
    concurrency_text = _text(first, "kv_cache_max_concurrency")
    try:
        concurrency = float(concurrency_text) if concurrency_text else None
    except ValueError:
        concurrency = None
    if concurrency is None and startup is not None:
        concurrency = startup.max_concurrency
    return KvCapacity(tokens, chosen, concurrency, False, tuple(findings))
