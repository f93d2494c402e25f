"""Start-up logs: every text variant, the real logs, several workers, restarts and reasons of death."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.memory.startup_log import GIB, StartupFacts, StartupLog, WorkerFacts, describe, parse

LOGS = Path(__file__).resolve().parents[1] / "captures" / "logs"
PREFIX = "(EngineCore pid=367) INFO 08-14 14:07:22 [gpu_worker.py:563] "


def gib(value: float) -> int:
    return round(value * GIB)


def only_worker(facts: StartupFacts) -> WorkerFacts:
    (worker,) = facts.workers
    return worker


# (releases, text, field of the worker, value)
WORKER_TEXTS = [
    ("0.4-0.7", "Loading model weights took 7.5123 GB", "weights", gib(7.5123)),
    ("0.8.0", "Model loading took 2.8871 GB and 1.234567 seconds", "weights", gib(2.8871)),
    ("0.8.5-0.11", "Model loading took 2.8871 GiB and 1.234567 seconds", "weights", gib(2.8871)),
    ("0.12-0.13", "Model loading took 2.8871 GiB memory and 1.234567 seconds", "weights", gib(2.8871)),
    ("0.14+", "Model loading took 3.22 GiB memory and 1.606758 seconds", "weights", gib(3.22)),
    (
        "0.6.5-0.10 V0",
        (
            "model weights take 7.51GiB; non_torch_memory takes 0.39GiB; PyTorch activation peak memory takes "
            "2.53GiB; the rest of the memory reserved for KV Cache is 3.76GiB."
        ),
        "kv_available",
        gib(3.76),
    ),
    ("0.6.5-0.10 V0", "model weights take 7.51GiB; non_torch_memory takes 0.39GiB;", "weights", gib(7.51)),
    ("0.6.5-0.10 V0", "model weights take 7.51GiB; non_torch_memory takes 0.39GiB;", "non_torch", gib(0.39)),
    ("0.6.5-0.10 V0", "PyTorch activation peak memory takes 2.53GiB; the rest", "activation_peak", gib(2.53)),
    (
        "0.6.5-0.10 V0",
        "the current vLLM instance can use total_gpu_memory (15.77GiB) x gpu_memory_utilization (0.90) = 14.20GiB",
        "requested",
        gib(14.20),
    ),
    (
        "0.6.4 V0",
        (
            "Memory profiling results: total_gpu_memory=23.68GiB initial_memory_usage=5.20GiB "
            "peak_torch_memory=6.01GiB memory_usage_post_profile=5.43GiB non_torch_memory=0.41GiB "
            "kv_cache_size=14.88GiB gpu_memory_utilization=0.90"
        ),
        "kv_available",
        gib(14.88),
    ),
    ("0.9.1-0.13", "Available KV cache memory: 18.78 GiB", "kv_available", gib(18.78)),
    ("0.14+", "Available KV cache memory: 4.7 GiB", "kv_available", gib(4.7)),
    ("0.14+", "Available KV cache memory: -3.21 GiB", "kv_available", gib(-3.21)),
    (
        "0.10.2+",
        (
            "Initial free memory 76.43 GiB, reserved 2.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes "
            "config and skipped memory profiling. This does not respect the gpu_memory_utilization config."
        ),
        "kv_reserved",
        gib(2.0),
    ),
    ("0.18+", "Estimated CUDA graph memory: 0.42 GiB total", "graphs_estimated", gib(0.42)),
    ("0.6.6+", "Graph capturing finished in 19 secs, took 0.81 GiB", "graphs_actual", gib(0.81)),
    (
        "0.18+",
        "CUDA graph pool memory: 0.39 GiB (actual), 0.42 GiB (estimated), difference: 0.03 GiB (7.1%).",
        "graphs_actual",
        gib(0.39),
    ),
    (
        "0.18+",
        (
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
            "--gpu-memory-utilization=0.8200 is equivalent to --gpu-memory-utilization=0.8013 without it"
        ),
        "fraction",
        0.82,
    ),
    ("0.10-0.26 DEBUG", "torch peak memory increase: 1.25GiB; non-torch forward", "activation_peak", gib(1.25)),
    ("sleep", "CuMemAllocator: sleep freed 5.91 GiB memory in total, of which 3 GiB", "sleep_freed", gib(5.91)),
    ("0.32+", "Weights are held outside this process: 3.5 GiB of the budget", "held_outside", gib(3.5)),
]


@pytest.mark.parametrize(("releases", "text", "field", "value"), WORKER_TEXTS)
@pytest.mark.parametrize("shape", ["plain", "prefixed", "ansi", "json"])
def test_every_text_of_a_worker(releases: str, text: str, field: str, value: float, shape: str) -> None:
    """Each release's text gives its figure whatever stands around it: prefix, colours, or a JSON record."""
    line = {
        "plain": text,
        "prefixed": PREFIX + text,
        "ansi": f"\x1b[0;36m(EngineCore pid=367)\x1b[0;0m INFO 08-14 [x.py:1] {text}",
        "json": json.dumps({"level": "INFO", "message": text}),
    }[shape]
    worker = only_worker(parse(line))
    assert getattr(worker, field) == value, releases


# (releases, text, field of the start, value)
START_TEXTS = [
    ("V0", "# GPU blocks: 2771, # CPU blocks: 512", "num_gpu_blocks", 2771),
    ("V0", "# GPU blocks: 2771, # CPU blocks: 512", "num_cpu_blocks", 512),
    ("V0 0.7", "# cuda blocks: 319, # CPU blocks: 128", "num_gpu_blocks", 319),
    ("V1 to 0.7", "# GPU blocks: 10991", "num_gpu_blocks", 10991),
    ("0.8.0-0.27", "GPU KV cache size: 175,856 tokens", "kv_tokens_total", 175_856),
    (
        "0.28+",
        "GPU KV cache size: 175,856 tokens, Maximum concurrency for 40,960 tokens per request: 4.29x",
        "kv_tokens_total",
        175_856,
    ),
    (
        "0.28+",
        "GPU KV cache size: 175,856 tokens, Maximum concurrency for 40,960 tokens per request: 4.29x",
        "max_concurrency",
        4.29,
    ),
    ("0.30+", "CPU KV cache size: 3,840 tokens, Maximum concurrency for 2,048", "kv_device", "CPU"),
    ("0.30+", "XPU KV cache size: 3,840 tokens", "kv_device", "XPU"),
    ("0.30+ HiSparse", "GPU + host KV cache size: 1,003,840 tokens", "kv_device", "GPU + host"),
    ("0.6.6", "Maximum concurrency for 8192 tokens per request: 3.57x", "max_concurrency_tokens", 8192),
    ("0.8+", "Maximum concurrency for 40,960 tokens per request: 4.29x", "max_concurrency_tokens", 40_960),
    ("to 0.19", "init engine (profile, create kv cache, warmup model) took 26.08 seconds", "engine_seconds", 26.08),
    (
        "0.20+",
        "init engine (profile, create kv cache, warmup model) took 26.08 s (compilation: 12.1 s)",
        "engine_seconds",
        26.08,
    ),
    ("all", "Overriding num_gpu_blocks=2817 with num_gpu_blocks_override=700", "blocks_override", (2817, 700)),
    (
        "0.17+",
        "WARNING 04-21 12:32:10 [envs.py:1744] Unknown vLLM environment variable detected: VLLM_CPU_OFFLOAD_GB",
        "unknown_environment",
        ("VLLM_CPU_OFFLOAD_GB",),
    ),
    ("the image", "Unknown vLLM environment variable detected: VLLM_BUILD_COMMIT", "unknown_environment", ()),
    ("0.7+", "Sleep mode freed 5.91 GiB memory, 1.20 GiB memory is still in use.", "sleep_still_in_use", gib(1.2)),
    ("0.26+", "Applying persisted startup plan: kv_cache_memory_bytes=1", "startup_plan", True),
    ("V0", "Initializing an LLM engine (v0.6.3.post1) with config: model='m', dtype=torch.float16", "engine", "V0"),
    ("V1", "Initializing a V1 LLM engine (v0.9.1) with config: model='m', tensor_parallel_size=2,", "engine", "V1"),
    ("V1", "Initializing a V1 LLM engine (v0.9.1) with config: x, tensor_parallel_size=2,", "tensor_parallel_size", 2),
    ("V0", "vLLM API server version 0.6.3.post1", "version", "0.6.3.post1"),
    ("0.8+", "Supported_tasks: ['embed']", "pooling", True),
    ("0.2x", "Supported tasks: ['generate']", "pooling", False),
]


@pytest.mark.parametrize(("releases", "text", "field", "value"), START_TEXTS)
@pytest.mark.parametrize("prefix", ["", PREFIX, "Dec  1 12:00:00 host vllm[12]: "])
def test_every_text_of_a_start(releases: str, text: str, field: str, value: object, prefix: str) -> None:
    """Facts of the whole start: tokens, blocks, concurrency, versions, warnings."""
    assert getattr(parse(prefix + text), field) == value, releases


SUMMARY_26 = (
    "Free memory on device (136.19/139.8 GiB) on startup. Desired GPU memory utilization is (0.06, 8.39 GiB). "
    "Actual usage is 3.22 GiB for weight, 0.13 GiB for peak activation, 0.22 GiB for non-torch memory, and 0.25 GiB "
    "for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=5013293876` (4.67 GiB) to "
    "fit into requested memory, or `--kv-cache-memory=142241044480` (132.47 GiB) to fully utilize gpu memory. "
    "Current kv cache memory in use is 4.82 GiB."
)
SUMMARY_27 = (
    "Free memory on device (17.06/22.04 GiB) on startup. Desired GPU memory utilization is (0.62, 13.66 GiB). "
    "Actual usage is 10.29 GiB for consumed memory (weights + non-torch), 0.27 GiB for peak activation, and 0.78 GiB "
    "for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1` (2 GiB) to fit into "
    "requested memory. Current kv cache memory in use is 3.1 GiB."
)


def test_the_summary_line_until_0_26() -> None:
    """One line gives total, fraction, request and all parts."""
    worker = only_worker(parse(PREFIX + SUMMARY_26))
    assert (worker.free_at_start, worker.cuda_total) == (gib(136.19), gib(139.8))
    assert (worker.fraction, worker.requested) == (0.06, gib(8.39))
    assert (worker.weights, worker.activation_peak, worker.non_torch) == (gib(3.22), gib(0.13), gib(0.22))
    assert (worker.graphs_actual, worker.kv_available, worker.consumed) == (gib(0.25), gib(4.82), None)


def test_the_summary_line_since_0_27() -> None:
    """Weights and non-torch come as one figure: it is kept as such and never split."""
    worker = only_worker(parse(PREFIX + SUMMARY_27))
    assert (worker.consumed, worker.weights, worker.non_torch) == (gib(10.29), None, None)
    assert (worker.activation_peak, worker.graphs_actual, worker.kv_available) == (gib(0.27), gib(0.78), gib(3.1))


def test_the_summary_is_not_the_refusal() -> None:
    """The same beginning is a summary or a ValueError: only the second is a failure."""
    assert parse(PREFIX + SUMMARY_26).failure is None
    refusal = (
        "ValueError: Free memory on device cuda:0 (12.18/23.56 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 21.67 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    facts = parse(PREFIX + refusal)
    assert facts.failure is not None
    assert facts.failure.kind == "free_memory"
    assert "12.18 of 23.56 GiB" in facts.failure.message
    assert "21.67 GiB" in facts.failure.message
    assert facts.workers == ()


FAILURES = [
    (
        (
            "ValueError: Free memory on device (5.1/7.78 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 7.0 GiB). Decrease"
        ),
        "free_memory",
        "5.1 of 7.78 GiB",
    ),
    (
        (
            "AssertionError: Error in memory profiling. Initial free memory 58.23 GiB, current free memory 59.34 GiB. "
            "This happens when other processes sharing the same container release GPU memory"
        ),
        "profiling_disturbed",
        "from 58.23 to 59.34",
    ),
    (
        "AssertionError: Error in memory profiling. Initial free memory 39909924864, current free memory 47541829632.",
        "profiling_disturbed",
        "from 39909924864 to 47541829632",
    ),
    ("ValueError: No available memory for the cache blocks. Try increasing", "no_kv_memory", "KV cache"),
    (
        (
            "ValueError: To serve at least one request with the models's max seq len (40960), (4.38 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (1.21 GiB). Based on the available memory"
        ),
        "max_model_len",
        "40960 tokens needs 4.38 GiB",
    ),
    (
        (
            "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be "
            "stored in KV cache (5104). Try increasing"
        ),
        "max_model_len",
        "5104 tokens",
    ),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.", "cuda_oom", "out of memory"),
    (
        "vllm: error: unrecognized arguments: --prefix-caching-memory-percentage 0.1",
        "arguments",
        "--prefix-caching-memory-percentage",
    ),
]


@pytest.mark.parametrize(("text", "kind", "part"), FAILURES)
def test_why_a_start_failed(text: str, kind: str, part: str) -> None:
    """The first specific reason is kept; the follow-up errors of the traceback do not replace it."""
    log = StartupLog()
    log.feed("(EngineCore pid=7) INFO Initializing a V1 LLM engine (v0.26.0) with config: model='m'")
    log.feed(f"(EngineCore pid=7) ERROR 12-01 12:00:00 [core.py:1] {text}")
    log.feed("(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.")
    assert log.facts.failure is not None
    assert log.facts.failure.kind == kind
    assert part in log.facts.failure.message
    assert log.facts.failure.remedy
    log.feed("(APIServer pid=9) INFO non-default args: {'model': 'm'}")
    assert log.facts.failure is None
    assert log.last_failure is not None
    assert log.last_failure.kind == kind


def test_a_failure_without_a_known_reason_is_still_one() -> None:
    """The generic error alone is reported as such; a specific one found later replaces it."""
    log = StartupLog()
    log.feed("(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.")
    assert log.facts.failure is not None
    assert log.facts.failure.kind == "engine_init"
    log.feed("ValueError: No available memory for the cache blocks.")
    assert log.facts.failure.kind == "no_kv_memory"


def test_the_real_log_of_the_chat_model_with_two_starts() -> None:
    """vLLM 0.26.0 on an H200: the second start resets everything, an orderly stop is no failure."""
    log = StartupLog()
    seen = []
    for line in (LOGS / "vllm-0.26.0__h200__chat-two-starts.log").read_text().splitlines():
        if log.feed(line):
            seen.append(log.facts)
    assert log.facts.number == 2
    assert log.previous is not None
    first, second = log.previous, log.facts
    assert (first.version, first.engine, first.model) == ("0.26.0", "V1", "/models/Qwen3-1.7B")
    assert first.arguments["max_num_batched_tokens"] == 2048
    assert second.arguments["max_num_batched_tokens"] == 8192
    assert only_worker(first) == WorkerFacts(
        name="EngineCore",
        pid=1137,
        weights=gib(3.22),
        activation_peak=gib(0.13),
        non_torch=gib(0.22),
        kv_available=gib(4.82),
        graphs_actual=0,
        free_at_start=gib(136.19),
        cuda_total=gib(139.8),
        fraction=0.06,
        requested=gib(8.39),
    )
    assert only_worker(second).pid == 1851
    assert only_worker(second).activation_peak == gib(0.44)
    assert (first.blocks_override, second.blocks_override) == ((2817, 700), (2639, 700))
    assert (second.kv_tokens_total, second.max_concurrency, second.max_concurrency_tokens) == (11_200, 2.73, 4096)
    assert (second.dtype, second.max_model_len, second.enforce_eager) == ("bfloat16", 4096, True)
    assert (first.ready, first.stopped, first.failure) == (True, True, None)
    assert (log.last_failure, second.pooling) == (None, False)
    assert seen[-1] is second


@pytest.mark.parametrize(("name", "weights"), [("embed", 1.06), ("rerank", 0.53)])
def test_the_real_logs_of_pooling_models(name: str, weights: float) -> None:
    """Encoders log their weights and nothing about a KV cache: that stays unknown, not 0."""
    facts = parse((LOGS / f"vllm-0.26.0__h200__{name}.log").read_text())
    worker = only_worker(facts)
    assert worker.weights == gib(weights)
    assert (worker.kv_available, worker.activation_peak, worker.cuda_total) == (None, None, None)
    assert (facts.pooling, facts.kv_tokens_total, facts.ready) == (True, None, True)
    assert facts.arguments["gpu_memory_utilization"] in (0.02, 0.03)


def test_the_real_log_of_a_cpu_server() -> None:
    """vLLM 0.32.0 on CPU: one line with tokens and concurrency, and no GPU figures."""
    facts = parse((LOGS / "vllm-0.32.0__cpu__chat.log").read_text())
    assert (facts.version, facts.kv_device, facts.kv_tokens_total) == ("0.32.0", "CPU", 3840)
    assert (facts.max_concurrency, facts.max_concurrency_tokens) == (1.88, 2048)
    assert facts.blocks_override == (8192, 30)
    assert facts.workers == ()
    assert facts.ready


def test_tensor_parallel_workers_are_kept_apart() -> None:
    """With tensor parallelism lines come once per worker: each keeps its own figures and rank."""
    log = StartupLog()
    log.feed("(EngineCore_DP0 pid=11) INFO Initializing a V1 LLM engine (v0.11.0) with config: model='m'")
    log.feed("(Worker_TP0 pid=21) INFO Model loading took 4.0 GiB and 1.0 seconds")
    log.feed("(Worker_TP1 pid=22) INFO Model loading took 4.5 GiB and 1.0 seconds")
    log.feed("(VllmWorker rank=3 pid=23) INFO Model loading took 5.0 GiB and 1.0 seconds")
    log.feed("(EngineCore_DP0 pid=11) (RayWorkerWrapper pid=24, ip=10.0.0.9) INFO Model loading took 6 GiB and 1 s")
    ranks = [(worker.name, worker.pid, worker.rank, worker.weights) for worker in log.facts.workers]
    assert ranks == [
        ("Worker_TP0", 21, 0, gib(4.0)),
        ("Worker_TP1", 22, 1, gib(4.5)),
        ("VllmWorker", 23, 3, gib(5.0)),
        ("RayWorkerWrapper", 24, None, gib(6.0)),
    ]
    assert log.facts.worker_for(22) is log.facts.workers[1]
    assert log.facts.worker_for(99) is None


def test_data_parallel_engines_add_up_and_one_engine_takes_its_smallest() -> None:
    """Tokens of several engines are summed; several lines of one engine (per worker) give the smallest."""
    log = StartupLog()
    for rank in (0, 1):
        log.feed(f"(EngineCore_DP{rank} pid={30 + rank}) INFO Initializing a V1 LLM engine (v0.11.0) with config: x")
    log.feed("(EngineCore_DP0 pid=30) INFO GPU KV cache size: 10,000 tokens")
    log.feed("(EngineCore_DP0 pid=30) INFO GPU KV cache size: 9,000 tokens")
    log.feed("(EngineCore_DP1 pid=31) INFO GPU KV cache size: 11,000 tokens")
    assert log.facts.number == 1
    assert dict(log.facts.kv_tokens) == {"EngineCore_DP0": 9_000, "EngineCore_DP1": 11_000}
    assert log.facts.kv_tokens_total == 20_000


def test_a_log_that_begins_in_the_middle_still_counts() -> None:
    """A rotated log without the banner gives what it has; nothing else is invented."""
    facts = parse(
        "(EngineCore pid=5) INFO GPU KV cache size: 100 tokens\n(APIServer pid=1) Application startup complete."
    )
    assert (facts.number, facts.kv_tokens_total, facts.ready) == (1, 100, True)
    assert (facts.version, facts.model, facts.workers) == (None, None, ())


def test_an_engine_that_starts_again_without_banner_is_a_new_start() -> None:
    """After `ready`, a new engine line means a new start even when the banner was cut off."""
    log = StartupLog()
    log.feed("INFO Initializing a V1 LLM engine (v0.26.0) with config: x")
    log.feed("INFO Application startup complete.")
    log.feed("INFO Initializing a V1 LLM engine (v0.27.0) with config: x")
    assert (log.facts.number, log.facts.version, log.facts.ready) == (2, "0.27.0", False)


def test_the_engine_dying_while_serving_is_a_failure_and_an_orderly_stop_is_none() -> None:
    """EngineDeadError counts, but not after a shutdown was asked for (the real log shows one then)."""
    dead = "(APIServer pid=1) ERROR vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    log = StartupLog()
    log.feed("INFO Application startup complete.")
    log.feed("INFO Initializing a V1 LLM engine (v0.26.0) with config: x")
    log.feed(dead)
    assert log.facts.failure is not None
    assert log.facts.failure.kind == "engine_dead"
    other = StartupLog()
    other.feed("INFO Initializing a V1 LLM engine (v0.26.0) with config: x")
    other.feed("(EngineCore pid=2) INFO [shutdown] EngineCore: trigger received signal=SIGTERM")
    other.feed(dead)
    assert other.facts.failure is None


def test_what_clients_send_is_never_read_as_a_fact() -> None:
    """A logged prompt that quotes vLLM's own texts changes nothing."""
    log = StartupLog()
    log.feed("(EngineCore pid=5) INFO Available KV cache memory: 4.0 GiB")
    log.feed("INFO Application startup complete.")
    before = log.facts
    log.feed("INFO Received request cmpl-1: prompt: 'Available KV cache memory: 99 GiB', params: x")
    log.feed("INFO Received request cmpl-2: prompt: 'vLLM API server version 9.9.9'")
    log.feed("INFO something Available KV cache memory: 99 GiB")
    assert log.facts is before


def test_secrets_among_the_arguments_are_dropped() -> None:
    """API keys and tokens in vLLM's own argument line are not kept."""
    facts = parse("INFO non-default args: {'model': 'm', 'api_key': ['s3cret'], 'hf_token': 'hf_x'}")
    assert dict(facts.arguments) == {"model": "m"}


def test_an_argument_line_that_is_no_literal_is_ignored() -> None:
    """Objects in the argument line cannot be read; the start still counts."""
    facts = parse("INFO non-default args: {'model': 'm', 'x': <object at 0x1>}")
    assert (facts.number, dict(facts.arguments)) == (1, {})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=60), st.sampled_from([t for _, t, _, _ in WORKER_TEXTS])), max_size=12))
def test_no_line_ever_raises(lines: list[str]) -> None:
    """Any mixture of text gives facts, never an exception."""
    assert isinstance(StartupLog().feed_all(lines), StartupFacts)


def test_very_long_lines_are_cut() -> None:
    """A line of megabytes costs no more than its first 64 KiB."""
    assert parse("x" * 1_000_000 + " Available KV cache memory: 4 GiB").workers == ()


def test_facts_in_words_say_only_what_was_logged() -> None:
    """The page shows logged figures; what an encoder does not log does not appear."""
    first = parse((LOGS / "vllm-0.26.0__h200__chat-two-starts.log").read_text())
    words = describe(first)
    assert words["weights"] == "3.22 GiB"
    assert words["version"] == "0.26.0 (V1)"
    assert words["KV tokens"] == "11,200"
    assert words["max concurrency"] == "2.73 × 4096 tokens"
    encoder = describe(parse((LOGS / "vllm-0.26.0__h200__embed.log").read_text()))
    assert encoder["weights"] == "1.06 GiB"
    assert not {"KV available", "KV tokens", "activation peak", "failure"} & set(encoder)
    assert describe(StartupFacts()) == {}
