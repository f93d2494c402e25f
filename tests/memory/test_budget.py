"""Budgets: every regime, every source, and the real H200 recording computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmeter.memory.budget import (
    ACTIVATION_ASSUMED,
    CONTEXT_ASSUMED,
    GRAPHS_ASSUMED,
    NCCL_ASSUMED,
    BudgetFacts,
    ConfiguredBudget,
    ServerBudget,
    budget_of,
    committed,
    cuda_total,
    held_estimate,
    merge_workers,
    over_budget,
)
from vllmeter.memory.flags import parse_arguments
from vllmeter.memory.startup_log import GIB, StartupFacts, StartupLog, WorkerFacts
from vllmeter.snapshot import GpuReading, Quantity

LOGS = Path(__file__).resolve().parents[1] / "captures" / "logs"
MIB = 1 << 20

# Readings of the real recording (bytes)
H200_TOTAL = 150_754_820_096
H200_RESERVED = 644_939_776
H200_CUDA_TOTAL = 150_109_880_320  # total − reserved; CUDA itself reported the same number
H200 = GpuReading(
    index=0,
    uuid="GPU-1",
    name="NVIDIA H200",
    memory_total_bytes=H200_TOTAL,
    memory_used_bytes=9_898_557_440,
    memory_free_bytes=140_211_322_880,
    memory_reserved_bytes=H200_RESERVED,
)
CONTEXT = 612 * MIB  # 641,728,512: measured on that card


def nvml(value: int) -> Quantity:
    return Quantity(float(value), "nvml")


def use(
    reading: GpuReading = H200, used: int | None = None, high: int | None = None
) -> tuple[GpuReading, Quantity, Quantity]:
    return (
        reading,
        nvml(used) if used is not None else Quantity(None, reason="test"),
        nvml(high) if high is not None else Quantity(None, reason="test"),
    )


def labels(**values: str) -> dict[str, dict[str, str]]:
    base = {
        "block_size": "16",
        "cache_dtype": "auto",
        "num_gpu_blocks_override": "None",
        "kv_cache_memory_bytes": "None",
    }
    return {"0": {**base, **values}}


def chat_starts() -> tuple[StartupFacts, StartupFacts]:
    log = StartupLog()
    log.feed_all((LOGS / "vllm-0.26.0__h200__chat-two-starts.log").read_text().splitlines())
    assert log.previous is not None
    return log.previous, log.facts


CHAT_LABELS = labels(
    gpu_memory_utilization="0.06",
    num_gpu_blocks="700",
    num_gpu_blocks_override="700",
    kv_cache_size_tokens="11200",
    kv_cache_max_concurrency="2.734375",
)
QWEN3_1_7B = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 2048,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "sliding_window": None,
}


def only(budget: ServerBudget):  # type: ignore[no-untyped-def]
    (row,) = budget.rows
    return row


def test_the_chat_model_of_the_real_recording() -> None:
    """Budget, expected, parts and head room of Qwen3-1.7B at fraction 0.06 equal the figures computed by hand."""
    first, _ = chat_starts()
    result = budget_of(
        BudgetFacts(version="0.26.0", labels=CHAT_LABELS, startup=first, model_config=QWEN3_1_7B),
        [use(used=5_897_191_424, high=5_897_191_424)],
    )
    row = only(result)
    # budget: 0.06 × 150,109,880,320 = 9,006,592,819.2, rounded up (8.39 GiB, as the log says)
    assert row.budget == replace(row.budget, value=9_006_592_820.0, source="label", estimate=False)
    # KV: 700 blocks ordered of 2817 that fitted into 4.82 GiB = 5,175,435,592 B -> 1,286,050,733 B.
    # By the formula: 11,200 tokens × 28 × 8 × 256 × 2 = 114,688 B = 1,284,505,600 B: they agree within 0.2 %.
    assert row.parts["kv_cache"].value == pytest.approx(5_175_435_592 * 700 / 2817)
    assert row.parts["kv_cache"].value == pytest.approx(1_284_505_600, rel=0.002)
    assert result.findings == ()
    # weights 3.22 GiB = 3,457,448,673; activation peak 0.13 GiB = 139,586,437; non-torch 0.22 GiB = 236,223,201
    assert row.parts["weights"] == Quantity(3_457_448_673.0, "log")
    assert row.parts["activation_peak"].value == 139_586_437
    assert row.parts["non_torch"].value == 236_223_201
    assert row.parts["cuda_graphs"].value == 0
    # the rest of 5,897,191,424 measured: 777,882,380 B = 742 MiB: context 612, cuBLAS 70, late allocations
    assert row.parts["context"].value == pytest.approx(777_882_380, abs=2)
    # expected: parts + bare context = 5,761,037,556: 2.3 % below the 5,897,191,424 that were measured
    assert row.expected.value == pytest.approx(5_761_037_556, abs=2)
    assert row.expected.value == pytest.approx(5_897_191_424, rel=0.025)
    assert row.allowance == Quantity(float(CONTEXT), "measured", False, "context 612 MiB")
    # 5,897,191,424 − 9,006,592,820 − 641,728,512: far below
    assert over_budget(row) == 5_897_191_424 - 9_006_592_820 - 641_728_512
    assert row.budget_suspended is None
    assert result.kv.tokens == Quantity(11_200.0, "label")
    assert result.kv.max_concurrency == 2.734375


def test_the_chat_model_after_its_restart_with_8192_tokens() -> None:
    """The second start has its own activation peak and its own high water."""
    _, second = chat_starts()
    row = only(budget_of(BudgetFacts("0.26.0", CHAT_LABELS, second), [use(used=6_272_581_632, high=6_272_581_632)]))
    # activation peak 0.44 GiB = 472,446,403; KV 4.51 GiB × 700/2639 = 1,284,502,819
    assert row.parts["activation_peak"].value == 472_446_403
    assert row.parts["kv_cache"].value == pytest.approx(1_284_502_819, abs=2)
    # expected 3,457,448,673 + 1,284,502,819 + 472,446,403 + 236,223,201 + 641,728,512
    # = 6,092,349,608: 2.9 % below what was measured
    assert row.expected.value == pytest.approx(6_092_349_608, abs=2)
    assert row.expected.value == pytest.approx(6_272_581_632, rel=0.03)


@pytest.mark.parametrize(
    ("name", "fraction", "budget", "weights", "high", "context"),
    [
        # 0.02 × 150,109,880,320 = 3,002,197,606.4; weights 0.53 GiB; 1,698,693,120 − 569,083,167 = 1,129,609,953
        ("rerank", "0.02", 3_002_197_607, 569_083_167, 1_698_693_120, 1_129_609_953),
        # 0.03 × 150,109,880,320 = 4,503,296,409.6; weights 1.06 GiB; 2,281,701,376 − 1,138,166,333 = 1,143,535,043
        ("embed", "0.03", 4_503_296_410, 1_138_166_333, 2_281_701_376, 1_143_535_043),
    ],
)
def test_the_encoders_of_the_real_recording(
    name: str, fraction: str, budget: int, weights: int, high: int, context: int
) -> None:
    """Encoders have no KV cache, stay far below their budget, and what is not logged stays unknown."""
    log = StartupLog()
    log.feed_all((LOGS / f"vllm-0.26.0__h200__{name}.log").read_text().splitlines())
    row = only(
        result := budget_of(
            BudgetFacts(
                "0.26.0",
                labels(gpu_memory_utilization=fraction, num_gpu_blocks="1", kv_cache_size_tokens="None"),
                log.facts,
            ),
            [use(used=high, high=high)],
        )
    )
    assert row.budget.value == budget
    assert row.budget.source == "label"
    assert row.parts["weights"].value == weights
    assert (row.parts["kv_cache"].value, row.parts["kv_cache"].reason) == (None, "no KV cache: the model is an encoder")
    assert row.parts["activation_peak"].value is None
    # expected: weights + bare context, marked as an estimate that lacks the activations
    assert row.expected.value == weights + CONTEXT
    assert row.expected.estimate
    assert "activation_peak" in (row.expected.reason or "")
    assert row.parts["context"].value == context
    assert "activation_peak" in (row.parts["context"].reason or "")
    assert result.kv.none
    over = over_budget(row)
    assert over is not None
    assert over < 0


def test_the_sum_of_the_real_card() -> None:
    """Σ budgets + contexts of the three servers: 16,512,086,837 + 3 × 641,728,512 = 18,437,272,373 bytes."""
    rows = []
    for fraction in (0.02, 0.03, 0.06):
        facts = BudgetFacts("0.26.0", labels(gpu_memory_utilization=str(fraction)))
        facts = replace(facts, command=parse_arguments(["m", "--enforce-eager"]))
        rows.extend(budget_of(facts, [use()]).rows)
    total = committed(rows)
    assert total.value == 3_002_197_607 + 4_503_296_410 + 9_006_592_820 + 3 * CONTEXT
    assert committed([]).value is None


# --------------------------------------------------------------------------- CUDA total


def test_cuda_total_is_exact_where_log_and_nvml_agree() -> None:
    """139.8 GiB in the log and 150,109,880,320 from NVML are the same number: the exact one counts."""
    logged = round(139.8 * GIB)
    found = cuda_total(H200, logged=logged)
    assert (found.value, found.source, found.estimate) == (H200_CUDA_TOTAL, "nvml", False)


def test_cuda_total_follows_the_log_where_they_disagree() -> None:
    """In a MIG slice or a container that limits memory, what vLLM logged counts."""
    found = cuda_total(H200, logged=round(70.0 * GIB))
    assert (found.value, found.source) == (round(70.0 * GIB), "log")


def test_cuda_total_on_wsl2_is_nvml_total_and_marked() -> None:
    """WSL2 reports the whole card to CUDA: NVML total, marked as assumed."""
    found = cuda_total(H200, wsl=True)
    assert (found.value, found.estimate) == (H200_TOTAL, True)
    assert "WSL2" in (found.reason or "")


def test_cuda_total_without_reserved_is_marked() -> None:
    """Old drivers give no reserved memory: total is too much and says so."""
    found = cuda_total(replace(H200, memory_reserved_bytes=None))
    assert (found.value, found.estimate) == (H200_TOTAL, True)


def test_cuda_total_unknown_has_a_reason() -> None:
    """Neither NVML nor a log: absent, not 0."""
    found = cuda_total(None)
    assert found.value is None
    assert found.reason


# --------------------------------------------------------------------------- regimes and allowances


SMALL = GpuReading(
    index=0,
    uuid="GPU-2",
    name="NVIDIA GeForce RTX 4070",
    memory_total_bytes=8 * GIB,
    memory_used_bytes=0,
    memory_free_bytes=8 * GIB - 225 * MIB,
    memory_reserved_bytes=225 * MIB,
)
SMALL_TOTAL = 8 * GIB - 225 * MIB


@pytest.mark.parametrize(
    ("version", "environment", "fraction", "context", "graphs"),
    [
        # version, environment, default fraction, context outside, graphs outside
        ("0.4.0", {}, 0.9, True, True),
        ("0.6.3", {}, 0.9, True, True),
        ("0.6.4", {}, 0.9, False, True),
        ("0.6.6.post1", {}, 0.9, True, True),
        ("0.7.3", {}, 0.9, True, True),
        ("0.7.3", {"VLLM_USE_V1": "1"}, 0.9, False, True),
        ("0.8.5", {}, 0.9, False, True),
        ("0.8.5", {"VLLM_USE_V1": "0"}, 0.9, True, True),
        ("0.9.0", {}, 0.9, False, True),
        ("0.9.1", {}, 0.9, True, True),
        ("0.10.2", {}, 0.9, True, True),
        ("0.11.0", {}, 0.9, True, True),
        ("0.17.0", {}, 0.9, True, True),
        ("0.18.0", {}, 0.9, True, True),
        ("0.18.0", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1"}, 0.9, True, False),
        ("0.19.0", {}, 0.9, True, True),
        ("0.20.0", {}, 0.92, True, False),
        ("0.20.0", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, 0.92, True, True),
        ("0.26.0", {}, 0.92, True, False),
        ("0.27.0", {}, 0.92, True, False),
        ("0.33.0", {}, 0.92, True, False),
        ("0.34.0", {}, 0.92, True, False),
        (None, {}, 0.92, True, False),
    ],
)
def test_default_budget_and_allowance_by_release(
    version: str | None, environment: dict[str, str], fraction: float, context: bool, graphs: bool
) -> None:
    """The default fraction and what comes on top of it follow the release and its switches."""
    facts = BudgetFacts(version, command=parse_arguments(["m"]), environment=environment)
    row = only(budget_of(facts, [use(SMALL)]))
    assert row.budget.value == pytest.approx(fraction * SMALL_TOTAL, abs=1)
    assert (row.budget.source, row.budget.estimate) == ("default", True)
    assert row.allowance.value == context * CONTEXT_ASSUMED + graphs * GRAPHS_ASSUMED
    if context or graphs:
        assert row.allowance.estimate


def test_a_release_newer_than_any_read_is_marked() -> None:
    """0.34 is treated like 0.33, and the budget says that this is assumed."""
    row = only(budget_of(BudgetFacts("0.34.0", labels(gpu_memory_utilization="0.5")), [use()]))
    assert "newer than" in (row.budget.reason or "")


def test_whole_device_releases_are_marked() -> None:
    """In 0.6.4 and V1 up to 0.9.0 the fraction is a limit for the card: the budget is marked and says so."""
    result = budget_of(BudgetFacts("0.8.5", labels(gpu_memory_utilization="0.5")), [use()])
    assert result.whole_device
    assert only(result).budget.estimate
    assert "neighbours included" in (only(result).budget.reason or "")


def test_the_engine_in_the_log_decides_over_the_default() -> None:
    """A V0 engine in 0.8.5 does not count neighbours, whatever the default of the release is."""
    facts = BudgetFacts("0.8.5", labels(gpu_memory_utilization="0.5"), StartupFacts(number=1, engine="V0"))
    assert not budget_of(facts, [use()]).whole_device


def test_graphs_outside_use_the_logged_size() -> None:
    """Before 0.20 graphs come on top: with their logged size the allowance is exact."""
    worker = WorkerFacts("EngineCore", 1, weights=GIB, kv_available=GIB, graphs_actual=300 * MIB)
    facts = BudgetFacts("0.15.0", labels(gpu_memory_utilization="0.5"), StartupFacts(number=1, workers=(worker,)))
    row = only(budget_of(facts, [use()]))
    assert row.allowance.value == CONTEXT + 300 * MIB
    assert not row.allowance.estimate


def test_eager_servers_have_no_graphs() -> None:
    """With --enforce-eager nothing comes on top for graphs, and the part is a known 0."""
    facts = BudgetFacts(
        "0.15.0", labels(gpu_memory_utilization="0.5"), command=parse_arguments(["m", "--enforce-eager"])
    )
    row = only(budget_of(facts, [use()]))
    assert row.allowance.value == CONTEXT
    assert row.parts["cuda_graphs"] == Quantity(0.0, "computed", False, "none: eager mode")


@pytest.mark.parametrize(("version", "nccl"), [("0.10.2", False), ("0.11.0", True), ("0.26.0", True)])
def test_nccl_comes_on_top_since_0_11_when_gpus_work_together(version: str, nccl: bool) -> None:
    """Two cards per server: NCCL's buffers are outside the budget since 0.11, marked as assumed."""
    facts = BudgetFacts(
        version, labels(gpu_memory_utilization="0.5"), command=parse_arguments(["m", "-tp", "2", "--enforce-eager"])
    )
    row = only(budget_of(facts, [use()]))
    assert row.allowance.value == CONTEXT + (NCCL_ASSUMED if nccl else 0)
    assert row.allowance.estimate is nccl


# --------------------------------------------------------------------------- kv_cache_memory_bytes, explicit, override


def test_kv_cache_memory_bytes_sets_the_budget_from_parts() -> None:
    """With --kv-cache-memory-bytes the fraction does not size anything: budget = weights + K (+ parts logged)."""
    worker = WorkerFacts("EngineCore", 1, weights=3 * GIB, kv_reserved=2 * GIB)
    facts = BudgetFacts(
        "0.26.0",
        labels(gpu_memory_utilization="0.92", kv_cache_memory_bytes=str(2 * GIB), kv_cache_size_tokens="18724"),
        StartupFacts(number=1, workers=(worker,), enforce_eager=True),
    )
    row = only(budget_of(facts, [use(used=6 * GIB, high=6 * GIB)]))
    assert row.budget.value == 5 * GIB
    assert (row.budget.source, row.budget.estimate) == ("computed", True)
    # context 612 MiB measured, activations assumed because profiling was skipped
    assert row.allowance.value == CONTEXT + ACTIVATION_ASSUMED
    assert row.expected.value == 5 * GIB + CONTEXT
    assert over_budget(row) == 6 * GIB - 5 * GIB - CONTEXT - ACTIVATION_ASSUMED


def test_kv_cache_memory_bytes_without_weights_has_no_budget() -> None:
    """Without a log the weights are unknown: the budget is absent with the remedy, not K alone."""
    facts = BudgetFacts("0.26.0", labels(kv_cache_memory_bytes=str(2 * GIB)))
    row = only(budget_of(facts, [use(used=6 * GIB, high=6 * GIB)]))
    assert row.budget.value is None
    assert "start-up log" in (row.budget.reason or "")
    assert row.allowance.value is None
    assert over_budget(row) is None
    assert row.parts["kv_cache"] == Quantity(2.0 * GIB, "label")


def test_kv_cache_memory_bytes_from_the_command_line() -> None:
    """Without labels (statistics off) the flag on the command line counts, as vLLM reads it: 2G = 2^31."""
    command = parse_arguments(["m", "--kv-cache-memory-bytes", "2G"])
    row = only(budget_of(BudgetFacts("0.26.0", command=command), [use()]))
    assert row.parts["kv_cache"] == Quantity(2.0 * GIB, "flags")


def test_a_label_of_none_means_the_flag_is_not_in_force() -> None:
    """The label is effective: "None" there overrules a command line that was edited since the start."""
    facts = BudgetFacts(
        "0.26.0",
        labels(gpu_memory_utilization="0.5"),
        command=parse_arguments(["m", "--kv-cache-memory-bytes", "2G"]),
    )
    assert only(budget_of(facts, [use()])).budget.source == "label"


def test_an_explicit_budget_in_bytes_is_a_hard_limit() -> None:
    """A number of bytes in the configuration is the budget as it stands, nothing comes on top."""
    facts = BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.5"), configured=ConfiguredBudget(bytes=GIB))
    row = only(budget_of(facts, [use(used=GIB + 5, high=GIB + 5)]))
    assert row.budget == Quantity(float(GIB), "config")
    assert row.allowance.value == 0
    assert over_budget(row) == 5


def test_an_explicit_fraction_counts_and_a_difference_is_reported() -> None:
    """The operator's fraction is the budget; that the server runs with another one is a finding."""
    facts = BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.9"), configured=ConfiguredBudget(fraction=0.57))
    result = budget_of(facts, [use()])
    assert only(result).budget.value == pytest.approx(0.57 * H200_CUDA_TOTAL, abs=1)
    assert only(result).budget.source == "config"
    assert len(result.findings) == 1
    assert "0.57" in result.findings[0]
    assert "0.9" in result.findings[0]


def test_nothing_known_gives_no_budget() -> None:
    """No label, log, command line or configuration: absent with a reason, not the default of some release."""
    row = only(budget_of(BudgetFacts(), [use(used=GIB, high=GIB)]))
    assert row.budget.value is None
    assert row.budget.reason
    assert row.expected.value is None
    assert over_budget(row) is None


def test_an_unread_config_file_leaves_the_fraction_unknown() -> None:
    """`--config FILE` that could not be read may hold the fraction: the default would be a guess."""
    command = parse_arguments(["m", "--config", "/etc/x.yaml"])
    row = only(budget_of(BudgetFacts("0.26.0", command=command), [use()]))
    assert row.budget.value is None
    assert "/etc/x.yaml" in (row.budget.reason or "")


def test_fraction_sources_in_order_of_trust() -> None:
    """Label before log before command line before default."""
    worker = WorkerFacts("EngineCore", 1, fraction=0.4)
    startup = StartupFacts(number=1, workers=(worker,))
    command = parse_arguments(["m", "--gpu-memory-utilization", "0.3"])
    found = [
        budget_of(BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.5"), startup, command), []).fraction,
        budget_of(BudgetFacts("0.26.0", {}, startup, command), []).fraction,
        budget_of(BudgetFacts("0.26.0", {}, None, command), []).fraction,
        budget_of(BudgetFacts("0.26.0", {}, None, parse_arguments(["m"])), []).fraction,
    ]
    assert [(q.value, q.source) for q in found] == [(0.5, "label"), (0.4, "log"), (0.3, "flags"), (0.92, "default")]


# --------------------------------------------------------------------------- states


@pytest.mark.parametrize("state", ["weights_offloaded", "discard_all"])
def test_a_sleeping_server_is_not_compared(state: str) -> None:
    """Asleep, a server gives its memory back and a neighbour may use it: the comparison is suspended."""
    facts = BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.01"), sleep_state=state)
    row = only(budget_of(facts, [use(used=50 * GIB, high=50 * GIB)]))
    assert row.budget_suspended is not None
    assert "asleep" in row.budget_suspended
    assert over_budget(row) is None
    assert row.budget.value is not None


def test_a_starting_server_is_not_compared() -> None:
    """While it starts, a server holds less or (loading) more than later."""
    row = only(budget_of(BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.01"), starting=True), [use(used=1)]))
    assert row.budget_suspended is not None


def test_estimated_memory_is_never_called_over_budget() -> None:
    """Under WSL2 the used memory is an estimate made of the same parts: comparing it proves nothing."""
    estimate = Quantity(50.0 * GIB, "estimate", True)
    facts = BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.01"), wsl=True)
    row = only(budget_of(facts, [(H200, estimate, estimate)]))
    assert over_budget(row) is None


# --------------------------------------------------------------------------- several GPUs


def test_tensor_parallel_servers_get_one_row_per_gpu() -> None:
    """Each card has its own budget and the parts of the worker that runs there."""
    workers = (
        WorkerFacts("Worker_TP0", 21, 0, weights=4 * GIB, kv_available=2 * GIB, cuda_total=round(139.8 * GIB)),
        WorkerFacts("Worker_TP1", 22, 1, weights=5 * GIB, kv_available=2 * GIB, cuda_total=round(139.8 * GIB)),
    )
    startup = StartupFacts(number=1, workers=workers, tensor_parallel_size=2, enforce_eager=True)
    second = replace(H200, index=1, uuid="GPU-9")
    facts = BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.5", kv_cache_size_tokens="1000"), startup)
    pids = {"GPU-1": frozenset({21}), "GPU-9": frozenset({22, 500})}
    rows = budget_of(facts, [use(), use(second)], namespace_pids=pids).rows
    assert [(row.gpu, row.parts["weights"].value) for row in rows] == [("0", 4 * GIB), ("1", 5 * GIB)]
    assert [row.parts["weights"].estimate for row in rows] == [False, False]
    assert {row.budget.value for row in rows} == {float(-(-H200_CUDA_TOTAL // 2))}
    # without the pids nobody knows which worker is where: the largest, marked
    (row,) = budget_of(facts, [use()]).rows
    assert row.parts["weights"] == Quantity(5.0 * GIB, "log", True, "largest of several workers")


def test_workers_that_agree_merge_without_a_guess() -> None:
    """Equal figures, up to the log's rounding, are no guess."""
    same = [WorkerFacts("a", 1, weights=GIB), WorkerFacts("b", 2, weights=GIB + 5, kv_available=7)]
    merged, guessed = merge_workers(same)
    assert merged is not None
    assert (merged.weights, merged.kv_available, guessed) == (GIB + 5, 7, False)
    assert merge_workers([]) == (None, False)


def test_consumed_memory_of_0_27_gives_non_torch_as_the_difference() -> None:
    """0.27 and later print weights and non-torch together: the rest is computed and says so."""
    worker = WorkerFacts("EngineCore", 1, weights=9 * GIB, consumed=10 * GIB, activation_peak=GIB, kv_available=GIB)
    facts = BudgetFacts("0.27.0", labels(gpu_memory_utilization="0.5"), StartupFacts(number=1, workers=(worker,)))
    parts = only(budget_of(facts, [use()])).parts
    assert parts["non_torch"] == Quantity(1.0 * GIB, "computed", False, "consumed memory − weights")


def test_parts_that_exceed_what_is_used_leave_no_context() -> None:
    """Before the first big batch the activation peak is not allocated: no negative context is invented."""
    worker = WorkerFacts(
        "EngineCore", 1, weights=GIB, kv_available=GIB, activation_peak=GIB, non_torch=0, graphs_actual=0
    )
    facts = BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.5"), StartupFacts(number=1, workers=(worker,)))
    context = only(budget_of(facts, [use(used=2 * GIB, high=2 * GIB)])).parts["context"]
    assert context.value is None
    assert context.reason


@given(
    fraction=st.floats(min_value=0.01, max_value=1.0),
    used=st.integers(min_value=0, max_value=140 * GIB),
    version=st.sampled_from(["0.6.4", "0.9.0", "0.15.0", "0.26.0", "0.33.0", None]),
    weights=st.one_of(st.none(), st.integers(min_value=0, max_value=100 * GIB)),
    kv=st.one_of(st.none(), st.integers(min_value=-GIB, max_value=100 * GIB)),
)
def test_every_row_says_where_its_numbers_come_from(
    fraction: float, used: int, version: str | None, weights: int | None, kv: int | None
) -> None:
    """A number always has a source, an absent one always has a reason, and parts never are negative."""
    worker = WorkerFacts("EngineCore", 1, weights=weights, kv_available=kv)
    facts = BudgetFacts(
        version, labels(gpu_memory_utilization=str(fraction)), StartupFacts(number=1, workers=(worker,))
    )
    row = only(budget_of(facts, [use(used=used, high=used)]))
    for quantity in (row.budget, row.expected, row.allowance, row.used, row.high_water, *row.parts.values()):
        assert (quantity.value is None and quantity.reason) or (quantity.value is not None and quantity.source)
    assert all((quantity.value or 0) >= 0 for quantity in row.parts.values())
    assert row.budget.value is not None
    assert row.budget.value <= H200_CUDA_TOTAL


def test_the_log_of_another_server_is_not_used() -> None:
    """A log that names other models than /metrics: its figures are dropped and the mistake is a finding."""
    first, _ = chat_starts()
    facts = BudgetFacts("0.26.0", labels(gpu_memory_utilization="0.03"), first, model_names=("bge-m3",))
    result = budget_of(facts, [use(used=2 * GIB, high=2 * GIB)])
    row = only(result)
    assert (row.parts["weights"].value, row.expected.value, result.kv.tokens.value) == (None, None, None)
    assert row.budget.value == 4_503_296_410
    assert "Qwen3-1.7B" in result.findings[0]
    assert "bge-m3" in result.findings[0]
    assert held_estimate(facts).value is None
    own = budget_of(replace(facts, model_names=("Qwen3-1.7B",)), [use(used=2 * GIB)])
    assert own.findings == ()
    assert only(own).parts["weights"].value == 3_457_448_673


def test_the_log_of_another_start_is_not_used() -> None:
    """The real second start was written by pid 1851; while pid 1137 holds the GPU its figures are not this one's."""
    first, second = chat_starts()
    running = {"GPU-1": frozenset({1137})}
    stale = budget_of(BudgetFacts("0.26.0", CHAT_LABELS, second), [use(used=6 * GIB)], namespace_pids=running)
    assert only(stale).parts["activation_peak"].value is None
    assert "pid 1851" in stale.findings[0]
    assert "pid 1137" in stale.findings[0]
    assert not stale.log_used
    right = budget_of(BudgetFacts("0.26.0", CHAT_LABELS, first), [use(used=6 * GIB)], namespace_pids=running)
    assert right.findings == ()
    assert right.log_used
    assert only(right).parts["activation_peak"].value == 139_586_437


@pytest.mark.parametrize(
    "workers",
    [
        (WorkerFacts("", None, weights=GIB),),  # older releases log no pid
        (WorkerFacts("RayWorkerWrapper", 5, weights=GIB),),  # runs elsewhere
        (WorkerFacts("EngineCore", 5, weights=GIB), WorkerFacts("", None, weights=GIB)),
    ],
)
def test_logs_whose_processes_cannot_be_compared_still_count(workers: tuple[WorkerFacts, ...]) -> None:
    """Without comparable pids there is no evidence against a log."""
    facts = BudgetFacts("0.26.0", labels(), StartupFacts(number=1, workers=workers))
    found = budget_of(facts, [use(used=GIB)], namespace_pids={"GPU-1": frozenset({99})})
    assert found.findings == ()
    assert only(found).parts["weights"].value == GIB


def test_what_a_server_holds_where_the_driver_tells_nothing() -> None:
    """Under WSL2 the log and the labels give an estimate per GPU, the same sum as `expected`; without a log nothing."""
    first, _ = chat_starts()
    facts = BudgetFacts("0.26.0", CHAT_LABELS, first, wsl=True)
    found = held_estimate(facts, "NVIDIA H200")
    assert (found.value, found.source, found.estimate) == (pytest.approx(5_761_037_556, abs=2), "estimate", True)
    assert held_estimate(facts).value == pytest.approx(5_761_037_556 - CONTEXT + CONTEXT_ASSUMED, abs=2)
    nothing = held_estimate(BudgetFacts("0.26.0", CHAT_LABELS))
    assert nothing.value is None
    assert "weights" in (nothing.reason or "")
