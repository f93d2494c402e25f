"""Frozen data that every step speaks: readings, views and the snapshot that all outputs render.

Nothing here does I/O and nothing here is ever changed after it is made.  The flow is::

    scrape -> exposition.parse -> upstream.normalise -> ServerReading ─┐
    gpu.nvml  -> NvmlReading ───────────────────────────────────────────┼─> join -> Snapshot -> render
    host.proc -> ProcessTable ──────────────────────────────────────────┘

Rules that hold everywhere:

* bytes, seconds, ratios 0-1, tokens; never a percentage, never a MiB;
* ``None`` means "not known" and always comes with a reason nearby; it is never written as 0;
* a number that was not measured says so (:class:`Quantity`, ``estimate``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

Labels = tuple[tuple[str, str], ...]
"""Label pairs in catalogue order, without ``server`` (which is the reading's own)."""

EMPTY: Final[Mapping[str, str]] = MappingProxyType({})

# --------------------------------------------------------------------------- one scrape of one server


@dataclass(frozen=True, slots=True)
class ScalarRef:
    """A counter or gauge series of one server.

    ``family`` is the catalogue name without prefix (``requests_running``), ``source`` the upstream family.
    """

    family: str
    labels: Labels
    source: str


@dataclass(frozen=True, slots=True)
class HistogramRef:
    """A histogram of one server; ``bounds`` are the finite upper bounds, ascending, without +Inf."""

    family: str
    labels: Labels
    source: str
    bounds: tuple[float, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """Which series a server's body holds.  Shared by all readings of one body shape (compare with ``is``).

    ``cache_config`` holds the labels of ``vllm:cache_config_info`` per engine, as strings ("None" is a string);
    the engine is "" where vLLM gives no ``engine`` label.
    """

    scalars: tuple[ScalarRef, ...]
    histograms: tuple[HistogramRef, ...]
    model_names: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    cache_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unmapped: tuple[str, ...] = ()
    """Upstream engine families that the name table does not know, sorted."""
    engine_metrics: bool = True
    """False when the body parsed but holds no engine metric at all (``--disable-log-stats``)."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """family -> upstream family it was taken from."""
    notes: tuple[str, ...] = ()
    """What was left out on purpose and why, in words (for ``/snapshot.json`` and ``check``)."""

    @property
    def max_concurrency(self) -> float | None:
        """Requests of full length that the KV cache holds at once, as the labels say; None when none says it.

        Engines of a data-parallel server each hold so many: they add up.
        """
        found = []
        for labels in self.cache_config.values():
            try:
                found.append(float(labels.get("kv_cache_max_concurrency", "None")))
            except ValueError:
                continue
        return sum(found) if found else None

    @property
    def refs(self) -> tuple[ScalarRef | HistogramRef, ...]:
        """All series, scalars first."""
        return (*self.scalars, *self.histograms)


@dataclass(frozen=True, eq=False, slots=True)
class ServerReading:
    """One normalised ``/metrics`` body in base units.

    ``values`` runs parallel to ``layout.scalars``.  ``buckets[i]`` are the *cumulative* counts of
    ``layout.histograms[i]``, one per bound plus +Inf; ``sums[i]`` its ``_sum``.
    ``process_start`` is upstream's ``process_start_time_seconds`` (Unix time; ``None`` in multiprocess mode) and
    ``created`` the largest ``_created`` seen: both are read to detect restarts and never exposed as they are.
    """

    layout: Layout
    values: Sequence[float]
    buckets: Sequence[Sequence[float]]
    sums: Sequence[float]
    process_start: float | None = None
    created: float | None = None

    def without(self, families: Collection[str]) -> ServerReading:
        """The reading without the scalar series of ``families``."""
        layout = self.layout
        kept = [index for index, ref in enumerate(layout.scalars) if ref.family not in families]
        shown = replace(
            layout,
            scalars=tuple(layout.scalars[index] for index in kept),
            sources={family: source for family, source in layout.sources.items() if family not in families},
        )
        return replace(self, layout=shown, values=[self.values[index] for index in kept])

    def scalar(self, family: str, **labels: str) -> float | None:
        """The value of the one series of ``family`` whose labels include ``labels``; None when absent."""
        wanted = labels.items()
        for ref, value in zip(self.layout.scalars, self.values, strict=True):
            if ref.family == family and wanted <= dict(ref.labels).items():
                return value
        return None

    def total(self, family: str, **labels: str) -> float | None:
        """Sum over all series of ``family`` whose labels include ``labels`` (engines, reasons); None when absent."""
        wanted = labels.items()
        found = [
            value
            for ref, value in zip(self.layout.scalars, self.values, strict=True)
            if ref.family == family and wanted <= dict(ref.labels).items()
        ]
        return sum(found) if found else None

    def maximum(self, family: str, **labels: str) -> float | None:
        """Largest over all series of ``family`` (KV usage over engines: never a sum); None when absent."""
        wanted = labels.items()
        found = [
            value
            for ref, value in zip(self.layout.scalars, self.values, strict=True)
            if ref.family == family and wanted <= dict(ref.labels).items()
        ]
        return max(found) if found else None


# --------------------------------------------------------------------------- NVML


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on one GPU as NVML lists it.  ``used_bytes`` None = the driver does not say (WDDM, MIG parent)."""

    pid: int
    used_bytes: int | None
    kinds: frozenset[str] = frozenset({"compute"})
    gpu_instance: int | None = None
    compute_instance: int | None = None
    sm_utilization_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU (or one MIG GPU instance) at one tick.  Missing values are None with a reason in ``absent``.

    ``memory_used_bytes`` is v2's (allocated only): total = used + free + reserved.  Where only v1 exists, used
    includes reserved, ``memory_reserved_bytes`` is None and ``absent["memory_reserved_bytes"]`` says so.
    """

    index: int
    uuid: str
    name: str
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    """None = the list could not be read; () = it was read and is empty."""
    utilization_ratio: float | None = None
    memory_bandwidth_utilization_ratio: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    clock_hertz: Mapping[str, float] = field(default_factory=dict)
    """domain ("sm", "memory", …) -> Hz"""
    throttle: Mapping[str, bool] = field(default_factory=dict)
    """reason -> active now; empty when unknown"""
    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    """"corrected" / "uncorrected" -> volatile count"""
    xid_last: int | None = None
    mig_parent_uuid: str | None = None
    mig_mode: bool | None = None
    unified_memory: bool = False
    bus_id: str | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    """field name -> why it is absent"""
    gpu_instance: int | None = None
    """MIG GPU instance that this row is; None for a whole GPU"""
    xid_last_at: float | None = None
    """Unix time of the tick that read ``xid_last``"""

    @property
    def gpu(self) -> str:
        """Label ``gpu``: the NVML index; "1:3" for GPU instance 3 of GPU 1 under MIG."""
        return str(self.index) if self.gpu_instance is None else f"{self.index}:{self.gpu_instance}"


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """All GPUs at one tick.  ``up`` False: ``reason`` says why and ``gpus`` is empty.

    ``at`` is monotonic seconds, ``wall`` Unix time of the tick.
    """

    at: float
    wall: float
    up: bool
    reason: str | None = None
    gpus: tuple[GpuReading, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    duration_seconds: float | None = None


# --------------------------------------------------------------------------- host processes


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process as ``/proc`` shows it.  What may not be read (other user, hidepid) is None with a reason.

    ``start_ticks`` (field 22 of ``stat``) identifies a process together with its pid: PIDs are reused.
    ``argv`` is the command line; for processes that renamed themselves (``VLLM::EngineCore``) it is the title only.
    """

    pid: int
    ppid: int
    start_ticks: int
    comm: str
    argv: tuple[str, ...] | None = None
    uid: int | None = None
    state: str | None = None
    """one letter, as in ``/proc/PID/stat`` (R, S, D, T, Z)"""
    namespace_pids: tuple[int, ...] = ()
    """``NSpid``: outermost first, container-local last"""
    cgroup: str | None = None
    container_id: str | None = None
    container_runtime: str | None = None
    pod_uid: str | None = None
    unit: str | None = None
    listening_ports: tuple[int, ...] | None = None
    connections: int | None = None
    """established connections to its listening ports, where known"""
    environ: Mapping[str, str] | None = None
    """only the variables we use (see host.proc), secrets never kept"""
    cpu_seconds: float | None = None
    rss_bytes: int | None = None
    shared_bytes: int | None = None
    threads: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    net_namespace: int | None = None
    """inode of its network namespace: the same port can be open in several"""


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """Processes of interest (GPU users, vLLM trees, their parents) at one tick."""

    at: float
    processes: Mapping[int, HostProcess]
    host_pid_namespace: bool | None = None
    """True = we see the host's PIDs; False = own namespace (then an empty NVML list means nothing)."""
    wsl: bool = False
    reason: str | None = None
    same_pid_namespace: bool = True
    """False = ``processes`` is numbered in another PID namespace than ours (a bind-mounted host /proc)."""
    net_namespace: int | None = None
    """our own network namespace: what 127.0.0.1 in a server's URL means"""
    namespace_addresses: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """network namespace -> its local IP addresses, where known"""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What a container engine says about one running container.  Secrets are never kept."""

    id: str
    """64 hex digits"""
    name: str
    pid: int | None = None
    """host PID of its first process; None when the engine runs in a VM or does not say"""
    image: str = ""
    command: tuple[str, ...] = ()
    """entrypoint and arguments, keys masked"""
    labels: Mapping[str, str] = field(default_factory=dict)
    """compose and Kubernetes labels only"""
    published_ports: tuple[tuple[str, int, int], ...] = ()
    """(host address, host port, container port), TCP only"""
    addresses: tuple[str, ...] = ()
    """its IP addresses in container networks"""
    started: float | None = None
    """Unix time"""
    pid_mode: str = ""

    @property
    def service(self) -> str | None:
        """Compose service name; Podman's compose sets its own label."""
        return self.labels.get("com.docker.compose.service") or self.labels.get("io.podman.compose.service")


@dataclass(frozen=True, slots=True)
class ContainerTable:
    """Running containers by full id; ``reason`` says why the list is empty or old."""

    containers: Mapping[str, ContainerFacts] = field(default_factory=dict)
    reason: str | None = None


# --------------------------------------------------------------------------- memory of a server on a GPU


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its origin, or its absence with a reason.

    ``source`` is one word: ``nvml``, ``log``, ``label``, ``config``, ``computed``, ``assumed``, ``estimate``.
    """

    value: float | None
    source: str = ""
    estimate: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of one server on one GPU: one row of the budget table (bytes)."""

    gpu: str
    """NVML index as text (label ``gpu``); "1:3" for GPU instance 3 of GPU 1 under MIG"""
    uuid: str
    used: Quantity
    budget: Quantity
    expected: Quantity
    allowance: Quantity
    """what may come on top of the budget before it counts as over: context, graphs outside the budget"""
    high_water: Quantity
    """most that was measured since the server's processes started, or since the exporter did if that was later"""
    parts: Mapping[str, Quantity] = field(default_factory=dict)
    """weights, kv_cache, activation_peak, non_torch, cuda_graphs, context"""
    sm_utilization_ratio: float | None = None
    """SM time of the server's processes in their newest NVML sample"""
    budget_suspended: str | None = None
    """reason when the comparison makes no sense now (asleep, starting)"""


@dataclass(frozen=True, slots=True)
class Attribution:
    """How a server's processes were found.  ``state``: measured, estimated, unavailable."""

    state: str
    method: str
    reason: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherMemory:
    """GPU memory of programs that are no configured server.  ``orphan``: an engine whose parent died."""

    gpu: str
    uuid: str
    program: str
    used_bytes: int | None
    orphan: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RoleUsage:
    """Host side of one process role of a server: ``api_server``, ``engine_core``, ``worker``, ``other``."""

    role: str
    processes: int
    cpu_seconds: float | None
    rss_bytes: int | None
    shared_bytes: int | None
    threads: int | None
    reason: str | None = None


# --------------------------------------------------------------------------- views: what outputs render


SERVER_STATES: Final = (
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
"""Exactly one is 1 in ``server_state``.  ``failing``: answers, but the body cannot be used (parse, 500, auth)."""


@dataclass(frozen=True, slots=True)
class ScrapeStatus:
    """Health of the sampling of one server.  Times in seconds."""

    up: bool
    reason: str | None = None
    """why the last finished scrape failed: a key of scrape.outcome.FAILURE_REASONS"""
    detail: str | None = None
    healthy: bool | None = None
    """``/health`` answered 200 or otherwise; None = not probed, no answer, or asked again and not answered yet"""
    health: int | str | None = None
    """its HTTP status, or why there was no answer (as ``reason``); None = not probed"""
    sample_age: float | None = None
    interval: float = 1.0
    duration: float | None = None
    in_flight: float | None = None
    body_bytes: int | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    consecutive_failures: int = 0


@dataclass(frozen=True, slots=True)
class ServerView:
    """One configured server at one moment, ready to be shown."""

    name: str
    url: str
    """without credentials"""
    scrape: ScrapeStatus
    state: str
    state_reason: str = ""
    state_since: float | None = None
    """Unix time"""
    reading: ServerReading | None = None
    """None when there is none or it is too old: then nothing of it is shown"""
    reading_wall: float | None = None
    model_name: str | None = None
    version: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """effective settings by vLLM flag name (dashes as underscores), from labels, log or command line"""
    settings_source: Mapping[str, str] = field(default_factory=dict)
    setting_values: Mapping[str, float] = field(default_factory=dict)
    """those of ``settings`` that are numbers (see memory.effective.setting_number)"""
    start_timestamp: float | None = None
    restarts: int = 0
    config_changes: int = 0
    last_restart: float | None = None
    last_config_change: float | None = None
    last_change: str = ""
    """what changed, in words: "max_num_batched_tokens 2048 -> 8192" """
    last_preemption: float | None = None
    sleep_state: str | None = None
    windows: Mapping[str, Windowed] = field(default_factory=dict)
    attribution: Attribution = Attribution("unavailable", "none", "not looked at yet")
    memory: tuple[GpuMemory, ...] = ()
    kv_capacity_tokens: Quantity = Quantity(None, reason="not known yet")
    kv_capacity_bytes: Quantity = Quantity(None, reason="not known yet")
    host: tuple[RoleUsage, ...] = ()
    startup: Mapping[str, str] = field(default_factory=dict)
    """facts of the start-up log in words (for the page)"""
    findings: tuple[str, ...] = ()
    exposed_series: int = 0
    """series of its own families on /metrics"""
    gauges_withheld: bool = False
    """its engine is dead: ``reading`` holds counters and histograms (true sums), not the gauges (frozen)"""


@dataclass(frozen=True, slots=True)
class Windowed:
    """Values over one window of one server.  None = absent; ``absent`` says why by field name."""

    seconds: float
    ttft_requests: int | None = None
    ttft_span_seconds: float | None = None
    """time really covered by the cells (may differ from the window by an interval)"""
    ttft_mean: float | None = None
    ttft_jitter_lower: float | None = None
    ttft_jitter_upper: float | None = None
    ttft_jitter: float | None = None
    ttft_jitter_error_ratio: float | None = None
    ttft_jitter_ratio: float | None = None
    """point estimate over mean"""
    ttft_quantiles: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """"0.95" -> (lower, upper)"""
    ttft_share_over: Mapping[str, float] = field(default_factory=dict)
    """bound as printed ("0.25") -> share of requests above it, exact"""
    itl_mean: float | None = None
    itl_count: int | None = None
    e2e_mean: float | None = None
    e2e_requests: int | None = None
    requests_waiting_peak: float | None = None
    requests_running_peak: float | None = None
    kv_cache_usage_peak: float | None = None
    preemptions: float | None = None
    preemptions_burst_peak: float | None = None
    prefix_hit_ratio: float | None = None
    prompt_tokens_computed: float | None = None
    prompt_tokens_cached: float | None = None
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    requests_finished: float | None = None
    gpu_memory_peak: Mapping[str, float] = field(default_factory=dict)
    """uuid -> bytes"""
    contention: Mapping[str, Contention] = field(default_factory=dict)
    """uuid -> contention with the other servers on that GPU"""
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contention:
    """Server A against its co-tenants on one GPU in one window (association, not cause)."""

    ratio: float | None
    """overlapped busy seconds over busy seconds; None when never busy"""
    contended_mean: float | None = None
    contended_requests: int | None = None
    clear_mean: float | None = None
    clear_requests: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU with what was worked out about it."""

    reading: GpuReading
    gpu: str
    cuda_total: Quantity = Quantity(None, reason="not known")
    committed: Quantity = Quantity(None, reason="no server with a known budget here")
    """sum of budgets and allowances of the servers on it"""
    unattributed_bytes: int | None = None
    other: tuple[OtherMemory, ...] = ()
    used_peak: Mapping[str, float] = field(default_factory=dict)
    """window -> bytes"""
    utilization_peak: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunMark:
    """A load-test run that is active now."""

    run: str
    scenario: str
    server: str
    """"" = all servers"""
    started: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """Stored reference of one server and scenario (see runs.baseline)."""

    server: str
    scenario: str
    run: str
    recorded: float
    ttft: Mapping[str, float] = field(default_factory=dict)
    """stat (mean, p50, p95) -> seconds"""
    e2e: Mapping[str, float] = field(default_factory=dict)
    throughput: float | None = None


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """Result of the last configuration load."""

    last_reload_ok: bool = True
    last_success: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known at ``wall`` (Unix time) / ``at`` (monotonic seconds)."""

    at: float
    wall: float
    version: str
    servers: tuple[ServerView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    nvml: NvmlReading | None = None
    nvml_reason: str | None = "not read yet"
    nvml_words: str = ""
    """``nvml_reason`` in words, with the remedy"""
    ownership_notes: tuple[str, ...] = ()
    """sentences about memory owners: orphans, a server configured twice, a missing ``pid: host``"""
    nvml_age: float | None = None
    nvml_ticks_dropped: int = 0
    host_pid_namespace: bool | None = None
    runs: tuple[RunMark, ...] = ()
    ended_runs: tuple[tuple[RunMark, float], ...] = ()
    """runs that ended a short while ago, with the Unix time of their end; the newest last"""
    baselines: tuple[Baseline, ...] = ()
    config: ConfigStatus = ConfigStatus()
