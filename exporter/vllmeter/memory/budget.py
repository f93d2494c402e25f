"""What a server may take on a GPU, what it will really hold, and of what parts: one row per server and GPU.

* **budget**: what the operator or the server's own flags allow: a number of bytes, a fraction of CUDA total, or,
  with ``--kv-cache-memory-bytes``, the parts that vLLM then takes.
* **expected**: what it will hold once warm: weights + KV cache as allocated + activation peak + non-torch +
  graphs + context.  Far below the budget for encoders and with ``--num-gpu-blocks-override``.
* **allowance**: what normally comes on top of the budget in that release: CUDA context, NCCL buffers, graphs.
* **over** = high water − budget − allowance.

Every figure says where it comes from; what had to be assumed is marked as an estimate with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from vllmeter.memory.flags import ServeCommand
from vllmeter.memory.kv import KvCapacity, kv_capacity
from vllmeter.memory.regimes import Regime, regime_of
from vllmeter.memory.startup_log import ROUNDING, StartupFacts, WorkerFacts, foreign_log, other_start
from vllmeter.snapshot import GpuMemory, GpuReading, Quantity

MIB: Final = 1 << 20
GIB: Final = 1 << 30

CONTEXT_MEASURED: Final[Mapping[str, int]] = {
    "NVIDIA H200": 612 * MIB,  # measured: a process with one tensor element, driver 580.159.04
    "NVIDIA B200": 612 * MIB,  # public report of the same measurement
}
CONTEXT_ASSUMED: Final = 700 * MIB
"""Bare CUDA context where the card was not measured.  Small cards often need less: 0.3 to 0.5 GiB."""
ACTIVATION_ASSUMED: Final = 512 * MIB
"""Activation peak and workspaces where nothing logged them (--kv-cache-memory-bytes skips profiling)."""
GRAPHS_ASSUMED: Final = 1 * GIB
"""CUDA graphs outside the budget, not logged: older releases themselves warn of 1 to 3 GiB."""
NCCL_ASSUMED: Final = 512 * MIB
"""NCCL's start-up buffers per GPU, outside the budget since 0.11 when several GPUs work together."""

PARTS: Final = ("weights", "kv_cache", "activation_peak", "non_torch", "cuda_graphs", "context")


@dataclass(frozen=True, slots=True)
class ConfiguredBudget:
    """``budget:`` of a server in vllmeter.yaml; at most one is set."""

    fraction: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """All that is known about one server, from outside, for its budget.

    ``labels``: ``vllm:cache_config_info`` by engine.  ``command``: its command line, if found.  ``model_config``:
    the model's config.json.  ``sleep_state``: awake, weights_offloaded, discard_all or None.  ``starting``: not
    ready yet.  ``environment``: of the server's process, where readable.  ``model_names``: what ``/metrics`` says
    the server serves; a log that names others is not its own.
    """

    version: str | None = None
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    startup: StartupFacts | None = None
    command: ServeCommand | None = None
    configured: ConfiguredBudget | None = None
    model_config: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    sleep_state: str | None = None
    starting: bool = False
    wsl: bool = False
    model_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerBudget:
    """Budget rows of one server on its GPUs and what follows for the whole server."""

    rows: tuple[GpuMemory, ...]
    kv: KvCapacity
    regime: Regime
    fraction: Quantity
    findings: tuple[str, ...] = ()
    log_used: bool = True
    """False when the start-up log is another server's or another start's: nothing of it may be shown either"""

    @property
    def whole_device(self) -> bool:
        """The fraction is a limit for the whole card in this release, neighbours included."""
        return self.regime.whole_device


# --------------------------------------------------------------------------- single figures


def cuda_total(reading: GpuReading | None, *, logged: int | None = None, wsl: bool = False) -> Quantity:
    """Memory that CUDA calls the total of a card: what every fraction is a fraction of.

    vLLM logs it (two decimals of GiB).  On Linux it is NVML total − reserved, exact to the byte on an H200; where
    the log agrees, that exact figure is taken.  Under WSL2 NVML's total is taken and marked.
    """
    total = reading.memory_total_bytes if reading is not None else None
    reserved = reading.memory_reserved_bytes if reading is not None else None
    exact = None if total is None or reserved is None or wsl else total - reserved
    if logged is not None:
        if exact is not None and abs(exact - logged) <= ROUNDING:
            return Quantity(float(exact), "nvml", reason="NVML total − reserved, and the log agrees")
        return Quantity(float(logged), "log", reason="as vLLM logged it, to 0.01 GiB")
    if exact is not None:
        unified = reading is not None and reading.unified_memory
        if unified:
            return Quantity(float(exact), "nvml", True, "unified memory: total of the host, assumed")
        return Quantity(float(exact), "nvml", reason="NVML total − reserved")
    if total is not None:
        why = "WSL2: NVML total, assumed" if wsl else "NVML gives no reserved memory: its total, 1-3 % too much"
        return Quantity(float(total), "nvml", True, why)
    return Quantity(None, reason="no reading of the GPU and no start-up log")


def context_size(gpu_name: str | None) -> Quantity:
    """Size of a bare CUDA context on a card: measured where somebody measured it, else assumed and marked."""
    if gpu_name is not None:
        for name, size in CONTEXT_MEASURED.items():
            if gpu_name == name or gpu_name.startswith(name + " "):
                return Quantity(float(size), "measured", reason=f"bare CUDA context measured on {name}")
    return Quantity(
        float(CONTEXT_ASSUMED), "assumed", True, f"bare CUDA context not measured on {gpu_name or 'this card'}"
    )


def merge_workers(workers: Iterable[WorkerFacts]) -> tuple[WorkerFacts | None, bool]:
    """One set of figures for a GPU of a server with several workers, and whether it had to be guessed.

    Equal or missing figures merge exactly; where workers differ the largest counts and the result is a guess.
    """
    found = list(workers)
    if not found:
        return None, False
    guessed = False
    values: dict[str, Any] = {}
    for item in fields(WorkerFacts):
        if item.name in ("name", "pid", "rank", "dp_rank"):
            continue
        seen = [value for worker in found if (value := getattr(worker, item.name)) is not None]
        if not seen:
            continue
        values[item.name] = max(seen)
        guessed = guessed or (max(seen) - min(seen) > ROUNDING and item.name != "free_at_start")
    return WorkerFacts(name=found[0].name, pid=found[0].pid if len(found) == 1 else None, **values), guessed


def fraction_in_force(facts: BudgetFacts, regime: Regime) -> Quantity:
    """The share of the card that the server was started with: label, log, command line, else the default."""
    for labels in facts.labels.values():
        text = labels.get("gpu_memory_utilization")
        if text not in (None, "", "None"):
            try:
                return Quantity(float(text), "label")
            except (TypeError, ValueError):
                break
    if facts.startup is not None:
        for worker in facts.startup.workers:
            if worker.fraction is not None:
                return Quantity(worker.fraction, "log")
        logged = facts.startup.arguments.get("gpu_memory_utilization")
        if isinstance(logged, int | float) and not isinstance(logged, bool):
            return Quantity(float(logged), "log")
    if facts.command is not None:
        given = facts.command.fraction
        if given is not None and 0 < given <= 1:
            return Quantity(given, "flags")
        if any(problem.flag == "--config" for problem in facts.command.problems):
            return Quantity(None, reason=f"it may stand in {facts.command.config_file}, which was not read")
    if facts.command is None and facts.startup is None and not facts.labels:
        return Quantity(None, reason="neither labels nor log nor command line of the server are known")
    return Quantity(regime.default_fraction, "default", True, f"vLLM's default, releases {regime.releases}")


def kv_bytes_in_force(facts: BudgetFacts) -> Quantity:
    """``--kv-cache-memory-bytes`` in force, absent when the fraction decides."""
    for labels in facts.labels.values():
        text = labels.get("kv_cache_memory_bytes")
        if text not in (None, "", "None"):
            try:
                return Quantity(float(text), "label")
            except (TypeError, ValueError):
                break
    if facts.startup is not None:
        for worker in facts.startup.workers:
            if worker.kv_reserved is not None:
                return Quantity(float(worker.kv_reserved), "log")
    if not facts.labels and facts.command is not None:
        given = facts.command.integer("kv_cache_memory_bytes")
        if given is not None:
            return Quantity(float(given), "flags")
    return Quantity(None, reason="not set: --gpu-memory-utilization decides")


def _sizes(facts: BudgetFacts) -> tuple[int, int]:
    """(tensor, pipeline) parallel sizes: log, else command line, else 1."""
    startup, command = facts.startup, facts.command
    tensor = startup.tensor_parallel_size if startup else None
    pipeline = startup.pipeline_parallel_size if startup else None
    if tensor is None and command is not None:
        tensor = command.integer("tensor_parallel_size")
    if pipeline is None and command is not None:
        pipeline = command.integer("pipeline_parallel_size")
    return max(1, tensor or 1), max(1, pipeline or 1)


def _eager(facts: BudgetFacts) -> bool:
    if facts.startup is not None and facts.startup.enforce_eager is not None:
        return facts.startup.enforce_eager
    return facts.command is not None and facts.command.eager


def _pooling(facts: BudgetFacts) -> bool:
    if facts.startup is not None and facts.startup.pooling is not None:
        return facts.startup.pooling
    return facts.command is not None and facts.command.pooling


def _amount(value: int | None, source: str, *, estimate: bool = False, reason: str | None = None) -> Quantity:
    return Quantity(float(value), source, estimate, reason) if value is not None else Quantity(None, reason=reason)


def _parts(facts: BudgetFacts, worker: WorkerFacts | None, guessed: bool, kv: KvCapacity) -> dict[str, Quantity]:
    """All parts but the context."""
    note = "largest of several workers" if guessed else None
    parts: dict[str, Quantity] = {}
    if worker is None:
        missing = "no start-up log (`log:` in the configuration)" if facts.startup is None else "not logged"
        parts = {name: Quantity(None, reason=missing) for name in ("weights", "activation_peak", "non_torch")}
    else:
        parts["weights"] = _amount(worker.weights, "log", estimate=guessed, reason=note or "not logged")
        if worker.weights is not None and not guessed:
            parts["weights"] = Quantity(float(worker.weights), "log")
        parts["activation_peak"] = (
            Quantity(float(worker.activation_peak), "log", guessed, note)
            if worker.activation_peak is not None
            else Quantity(None, reason="not logged by this kind of server")
        )
        if worker.non_torch is not None:
            parts["non_torch"] = Quantity(float(worker.non_torch), "log", guessed, note)
        elif worker.consumed is not None and worker.weights is not None:
            rest = worker.consumed - worker.weights
            parts["non_torch"] = (
                Quantity(float(rest), "computed", guessed, "consumed memory − weights")
                if rest >= 0
                else Quantity(None, reason="consumed memory is logged below the weights")
            )
        else:
            parts["non_torch"] = Quantity(None, reason="not logged by this kind of server")
    parts["kv_cache"] = kv.bytes_per_gpu
    if worker is not None and worker.graphs_actual is not None:
        parts["cuda_graphs"] = Quantity(float(worker.graphs_actual), "log", guessed, note)
    elif _eager(facts):
        parts["cuda_graphs"] = Quantity(0.0, "computed", reason="none: eager mode")
    elif worker is not None and worker.graphs_estimated is not None:
        parts["cuda_graphs"] = Quantity(float(worker.graphs_estimated), "log", True, "vLLM's own estimate")
    else:
        parts["cuda_graphs"] = Quantity(None, reason="not logged")
    return parts


def _sum(items: Iterable[tuple[str, Quantity]]) -> tuple[float, bool, tuple[str, ...]]:
    """(sum of the known, whether any is an estimate, names of the unknown)."""
    total, estimate, missing = 0.0, False, []
    for name, quantity in items:
        if quantity.value is None:
            missing.append(name)
        else:
            total += quantity.value
            estimate = estimate or quantity.estimate
    return total, estimate, tuple(missing)


def _expected(parts: Mapping[str, Quantity], kv: KvCapacity, bare: Quantity) -> tuple[Quantity, float, tuple[str, ...]]:
    """(what it will hold, sum of the known parts without context, names of the unknown ones).

    What an encoder does not have (a KV cache) is not missing.
    """
    wanted = [(name, parts[name]) for name in PARTS if name != "context" and not (name == "kv_cache" and kv.none)]
    known, estimate, missing = _sum(wanted)
    lacking = [name for name in ("weights", "kv_cache") if name in missing]
    if lacking:
        reasons = "; ".join(f"{name}: {parts[name].reason}" for name in lacking)
        return Quantity(None, reason=f"{' and '.join(lacking)} not known ({reasons})"), known, missing
    note = f"without {', '.join(missing)} (not logged)" if missing else "sum of the parts and a bare context"
    total = known + (bare.value or 0.0)
    return Quantity(total, "computed", estimate or bool(missing) or bare.estimate, note), known, missing


def held_estimate(facts: BudgetFacts, gpu_name: str | None = None) -> Quantity:
    """What a server holds per GPU by its log and labels alone, where the driver tells nothing (WSL2, WDDM).

    The same sum as ``expected``, always marked as an estimate; absent with the reason when a big part is unknown.
    """
    distrust = _distrust(facts)
    if distrust is not None:
        return Quantity(None, reason=distrust)
    worker, guessed = merge_workers(facts.startup.workers if facts.startup else ())
    kv = _kv(facts, worker)
    expected, _, _ = _expected(_parts(facts, worker, guessed, kv), kv, context_size(gpu_name))
    if expected.value is None:
        return expected
    return Quantity(expected.value, "estimate", True, expected.reason)


def _kv(facts: BudgetFacts, worker: WorkerFacts | None) -> KvCapacity:
    tensor, pipeline = _sizes(facts)
    kv_bytes = kv_bytes_in_force(facts)
    dtype = facts.command.text("dtype") if facts.command else None
    return kv_capacity(
        facts.labels,
        version=facts.version or (facts.startup.version if facts.startup else None),
        startup=facts.startup,
        worker=worker,
        config=facts.model_config,
        model_dtype=None if dtype in (None, "auto") else dtype,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        kv_bytes_flag=int(kv_bytes.value) if kv_bytes.value is not None and kv_bytes.source == "flags" else None,
        pooling=_pooling(facts),
    )


def _distrust(facts: BudgetFacts, pids: frozenset[int] = frozenset()) -> str | None:
    """Why the log does not count: another server's, or another start; None when it does."""
    if facts.startup is None:
        return None
    return foreign_log(facts.startup, facts.model_names) or other_start(facts.startup, pids)


def budget_of(
    facts: BudgetFacts,
    gpus: Iterable[tuple[GpuReading, Quantity, Quantity]],
    *,
    namespace_pids: Mapping[str, frozenset[int]] | None = None,
) -> ServerBudget:
    """Budget rows of one server.

    ``gpus``: (reading, used now, high water: the most that was measured of its processes) of every GPU it is on.
    ``namespace_pids``: uuid -> its processes there as its own container numbers them (as its log does): they tell
    which worker logged for that GPU.
    """
    findings: list[str] = []
    pids_now = frozenset().union(*(namespace_pids or {}).values())
    distrust = _distrust(facts, pids_now)
    if distrust is not None:
        findings.append(f"{distrust}; nothing of it is used")
        facts = replace(facts, startup=None)
    startup, command = facts.startup, facts.command
    environment = {**(command.environment if command else {}), **facts.environment}
    version = facts.version or (startup.version if startup else None)
    regime = regime_of(version, engine=startup.engine if startup else None, environment=environment)
    fraction = fraction_in_force(facts, regime)
    kv_bytes = kv_bytes_in_force(facts)
    tensor, pipeline = _sizes(facts)
    everyone, guessed_all = merge_workers(startup.workers if startup else ())
    kv = _kv(facts, everyone)
    findings.extend(kv.findings)
    configured = facts.configured
    if (
        configured is not None
        and configured.fraction is not None
        and fraction.value is not None
        and fraction.source in ("label", "log")
        and abs(configured.fraction - fraction.value) > 1e-6
    ):
        findings.append(
            f"the configuration says fraction {configured.fraction:g}, the server runs with "
            f"--gpu-memory-utilization {fraction.value:g} ({fraction.source})"
        )
    rows = []
    for use in gpus:
        worker, guessed = everyone, guessed_all
        pids = (namespace_pids or {}).get(use[0].uuid)
        if pids and startup is not None:
            own = [candidate for candidate in startup.workers if candidate.pid in pids]
            if own:
                worker, guessed = merge_workers(own)
        rows.append(_row(facts, regime, fraction, kv_bytes, kv, worker, guessed, use, several=tensor * pipeline > 1))
    return ServerBudget(tuple(rows), kv, regime, fraction, tuple(findings), log_used=distrust is None)


def _row(
    facts: BudgetFacts,
    regime: Regime,
    fraction: Quantity,
    kv_bytes: Quantity,
    kv: KvCapacity,
    worker: WorkerFacts | None,
    guessed: bool,
    use: tuple[GpuReading, Quantity, Quantity],
    *,
    several: bool,
) -> GpuMemory:
    reading, used, high_water = use
    total = cuda_total(reading, logged=worker.cuda_total if worker else None, wsl=facts.wsl)
    parts = _parts(facts, worker, guessed, kv)
    bare = context_size(reading.name)
    eager_or_none = parts["cuda_graphs"].value == 0.0

    expected, sum_known, missing = _expected(parts, kv, bare)

    # --- budget
    graphs_inside = regime.graphs_inside
    budget = _budget(facts, regime, fraction, kv_bytes, kv, total, parts)

    # --- allowance
    allowance_items: list[tuple[str, Quantity]] = []
    by_bytes = facts.configured is not None and facts.configured.bytes is not None
    if not by_bytes:
        if not regime.context_inside:
            allowance_items.append(("context", bare))
        if several and not regime.nccl_inside:
            allowance_items.append(("NCCL", Quantity(float(NCCL_ASSUMED), "assumed", True)))
        from_parts = kv_bytes.value is not None and (facts.configured is None or facts.configured.fraction is None)
        if not eager_or_none and (not graphs_inside or from_parts):
            graphs = parts["cuda_graphs"]
            allowance_items.append(
                ("graphs", graphs if graphs.value is not None else Quantity(float(GRAPHS_ASSUMED), "assumed", True))
            )
        if from_parts and (parts["activation_peak"].value is None or parts["non_torch"].value is None):
            allowance_items.append(("activations", Quantity(float(ACTIVATION_ASSUMED), "assumed", True)))
    allowed, allowed_estimate, _ = _sum(allowance_items)
    names = [name for name, _ in allowance_items]
    if budget.value is None:
        allowance = Quantity(None, reason="no budget to come on top of")
    else:
        detail = " + ".join(f"{name} {(q.value or 0) / MIB:.0f} MiB" for name, q in allowance_items)
        single = allowance_items[0][1].source if len(names) == 1 else "computed"
        allowance = Quantity(allowed, single if names else "computed", allowed_estimate, detail or "nothing on top")

    # --- context: the rest of what is measured
    measured = high_water if high_water.value is not None else used
    if measured.value is None or measured.estimate:
        parts["context"] = bare
    elif "weights" in missing or "kv_cache" in missing:
        parts["context"] = Quantity(bare.value, bare.source, bare.estimate, bare.reason)
    else:
        rest = measured.value - sum_known
        if rest < 0:
            parts["context"] = Quantity(None, reason="the logged parts add up to more than is used so far")
        else:
            unknown = f", with {', '.join(missing)}" if missing else ""
            parts["context"] = Quantity(rest, "computed", True, f"what is left of the measured memory{unknown}")

    suspended = None
    if facts.sleep_state not in (None, "awake"):
        suspended = f"asleep ({facts.sleep_state}): its memory is given back, a neighbour may use it"
    elif facts.starting:
        suspended = "starting: it has not taken its memory yet"
    return GpuMemory(
        gpu=reading.gpu,
        uuid=reading.uuid,
        used=used,
        budget=budget,
        expected=expected,
        allowance=allowance,
        high_water=high_water,
        parts={name: parts[name] for name in PARTS},
        budget_suspended=suspended,
    )


def _budget(
    facts: BudgetFacts,
    regime: Regime,
    fraction: Quantity,
    kv_bytes: Quantity,
    kv: KvCapacity,
    total: Quantity,
    parts: Mapping[str, Quantity],
) -> Quantity:
    configured = facts.configured
    if configured is not None and configured.bytes is not None:
        return Quantity(float(configured.bytes), "config")
    share = fraction
    if configured is not None and configured.fraction is not None:
        share = Quantity(configured.fraction, "config")
    elif kv_bytes.value is not None:
        known, estimate, missing = _sum(
            (name, parts[name]) for name in ("weights", "kv_cache", "activation_peak", "non_torch")
        )
        if "weights" in missing or "kv_cache" in missing:
            return Quantity(
                None,
                reason="--kv-cache-memory-bytes sets only the KV cache: weights are not known without the start-up log",
            )
        lacking = f", {' and '.join(missing)} not logged" if missing else ""
        return Quantity(
            known, "computed", estimate or bool(missing), f"weights + kv_cache_memory_bytes + parts logged{lacking}"
        )
    if share.value is None:
        return Quantity(None, reason=share.reason)
    if total.value is None:
        return Quantity(None, reason=f"CUDA total is not known: {total.reason}")
    # Rounded up as vLLM does (0.27 and later; below it the difference is under one byte)
    amount = float(math.ceil(share.value * total.value))
    notes = [f"{share.value:g} × {total.value:,.0f} B ({total.source})"]
    estimate = total.estimate
    if share.source == "default":
        notes.append(share.reason or "default")
        estimate = True
    if regime.whole_device:
        notes.append(f"in releases {regime.releases} a limit for the whole card, neighbours included")
        estimate = True
    if regime.assumed:
        notes.append(regime.assumed)
    if total.estimate and total.reason:
        notes.append(total.reason)
    return Quantity(amount, share.source, estimate, "; ".join(notes))


# --------------------------------------------------------------------------- comparisons


def over_budget(row: GpuMemory) -> float | None:
    """Bytes above budget + allowance (≤ 0: within); None when it cannot or must not be compared now."""
    if row.budget_suspended is not None or row.budget.value is None or row.allowance.value is None:
        return None
    held = row.high_water if row.high_water.value is not None else row.used
    if held.value is None or held.estimate:
        return None
    return held.value - row.budget.value - row.allowance.value


def committed(rows: Iterable[GpuMemory]) -> Quantity:
    """Σ budgets and allowances of the servers on one GPU; absent when none is known, estimate when one is missing."""
    total, known, estimate, missing = 0.0, 0, False, 0
    for row in rows:
        if row.budget.value is None:
            missing += 1
            continue
        known += 1
        total += row.budget.value + (row.allowance.value or 0.0)
        estimate = estimate or row.budget.estimate or row.allowance.estimate
    if known == 0:
        return Quantity(None, reason="no server with a known budget here")
    note = f"without {missing} server(s) whose budget is not known" if missing else None
    return Quantity(total, "computed", estimate or missing > 0, note)
