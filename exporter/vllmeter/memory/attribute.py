"""Whose memory is it: GPU processes -> process tree -> container, unit or root -> configured server.  Pure.

For every GPU it holds that ``sum(servers) + other + unattributed == memory used`` (NVML v2), in bytes, or the
remainder is absent with a reason; a process is never counted for two servers and never guessed by model name.
docs/attribution.md tells the rules in the order in which they apply (:mod:`vllmeter.memory.ownership`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from vllmeter.memory.argv import program_name, title_role
from vllmeter.memory.ownership import (
    Claim,
    HostView,
    KnownRoot,
    MatchRule,
    Ownership,
    ProcessKey,
    ServerFacts,
    command_of,
    own,
    roles_of,
    signature,
)
from vllmeter.snapshot import (
    Attribution,
    ContainerTable,
    GpuProcess,
    GpuReading,
    HostProcess,
    NvmlReading,
    OtherMemory,
    ProcessTable,
    Quantity,
    RoleUsage,
)

__all__ = [
    "MISFIT_BYTES",
    "AttributionResult",
    "GpuSplit",
    "IdentityMemory",
    "Known",
    "MatchRule",
    "ProcessKey",
    "ServerFacts",
    "ServerUsage",
    "attribute",
    "misfit",
]

MISFIT_BYTES: Final = 64 * 1024 * 1024
"""A remainder below minus this means that memory and process list are not of the same moment."""

INVISIBLE_BYTES: Final = 64 * 1024 * 1024
"""Used memory above which an empty process list cannot be true (a bare CUDA context takes several hundred MiB)."""

TRANSLATING_DRIVER: Final = (535, 113, 1)
"""First driver that answers in the caller's PID namespace; older ones give host PIDs to everybody."""

REMEMBER: Final = 30.0
"""Seconds for which a process that vanished from /proc is remembered while NVML still lists it."""

OWN_NAMESPACE: Final = (
    "this exporter runs in its own PID namespace, where the driver hides other containers' processes; "
    "give it `pid: host` (Kubernetes: hostPID: true)"
)


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """The part of one server.

    ``used`` holds one row per GPU (key: uuid) that its processes are on.  ``identity`` are its processes: when none
    of an earlier tick is among them, the server was restarted, whatever its counters say.
    """

    attribution: Attribution
    used: Mapping[str, Quantity] = field(default_factory=dict)
    sm_utilization: Mapping[str, float] = field(default_factory=dict)
    roles: tuple[RoleUsage, ...] = ()
    root: ProcessKey | None = None
    identity: frozenset[ProcessKey] = frozenset()
    argv: tuple[str, ...] | None = None
    """command line of the server's process, keys masked: a source of its flags"""
    environ: Mapping[str, str] | None = None
    container: str | None = None
    """container name, else its id's first 12 digits"""
    unit: str | None = None
    left_over: frozenset[ProcessKey] = frozenset()
    """engine processes of an earlier life of this server that outlived their API server"""


@dataclass(frozen=True, slots=True)
class GpuSplit:
    """Where one GPU's used memory is.  ``unattributed_bytes`` None comes with ``reason``; it may be negative."""

    gpu: str
    uuid: str
    other: tuple[OtherMemory, ...] = ()
    unattributed_bytes: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier tick knew about a process."""

    start_ticks: int
    server: str
    root: ProcessKey | None
    """the server's process then; None for the server's process itself"""
    last_seen: float


@dataclass(frozen=True, slots=True)
class ExitedCpu:
    """CPU seconds of one role of a server: of exited processes (sum), and the last value of each living one."""

    exited: float
    living: Mapping[ProcessKey, float]


@dataclass(frozen=True, slots=True)
class IdentityMemory:
    """What :func:`attribute` carries from tick to tick; start with an empty one.

    ``processes``: pid -> what it was; dropped when the start time says that the pid is another process now.
    ``roots``: server -> its process, how it was found, and for which configuration.
    ``cpu``: (server, its process, role) -> CPU of exited processes, so that the counter does not fall.
    """

    processes: Mapping[int, Known] = field(default_factory=dict)
    roots: Mapping[str, KnownRoot] = field(default_factory=dict)
    cpu: Mapping[tuple[str, ProcessKey | None, str], ExitedCpu] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttributionResult:
    """Everything about memory owners at one tick."""

    servers: Mapping[str, ServerUsage]
    gpus: Mapping[str, GpuSplit]
    """uuid -> split"""
    memory: IdentityMemory
    findings: tuple[str, ...] = ()
    """sentences for ``check`` and the page: conflicts, a missing ``pid: host``, orphans"""


def attribute(
    nvml: NvmlReading,
    processes: ProcessTable,
    servers: Sequence[ServerFacts],
    *,
    containers: ContainerTable | None = None,
    memory: IdentityMemory | None = None,
) -> AttributionResult:
    """Split the used memory of every GPU between configured servers, other programs and the remainder.

    ``nvml`` must hold memory and process lists of one tick; ``processes`` the GPU users among them with their
    ancestors.  Server names must be unique.
    """
    memory = memory or IdentityMemory()
    view = HostView(processes, containers)
    ownership = own(view, servers, memory.roots)
    blind = _blind(nvml, processes)
    # Under WSL2 an empty list says nothing about who holds memory
    lists_missing = (
        _Blind("WSL2 gives no memory per process")
        if processes.wsl and not any(gpu.processes for gpu in nvml.gpus)
        else None
    )
    owners = _Owners(view, ownership, memory, processes.at)
    findings = list(ownership.findings)
    if blind is not None and blind.finding:
        findings.append(blind.reason)

    splits: dict[str, GpuSplit] = {}
    used: dict[str, dict[str, Quantity]] = {server.name: {} for server in servers}
    sm: dict[str, dict[str, float]] = {server.name: {} for server in servers}
    gpu_pids: dict[str, set[int]] = {server.name: set() for server in servers}
    for gpu in nvml.gpus:
        mine = _by_owner(gpu, owners) if blind is None else {}
        for name, rows in mine.items():
            if name is None:
                continue
            gpu_pids[name].update(row.pid for row in rows)
            used[name][gpu.uuid] = _total(rows)
            busy = [row.sm_utilization_ratio for row in rows if row.sm_utilization_ratio is not None]
            if busy:
                # Samples of different processes may overlap a little
                sm[name][gpu.uuid] = min(1.0, sum(busy))
        splits[gpu.uuid] = _split(gpu, mine, owners, blind or lists_missing)

    result: dict[str, ServerUsage] = {}
    left_over = _left_over(view, owners, memory)
    cpu = dict(memory.cpu)
    live_cpu: dict[tuple[str, ProcessKey | None, str], ExitedCpu] = {}
    for server in servers:
        claim = ownership.claims.get(server.name)
        attribution, rows_used = _state(
            server, claim, used[server.name], nvml, view, ownership, blind, gpu_pids[server.name]
        )
        left = left_over.get(server.name, frozenset())
        if claim is None:
            result[server.name] = ServerUsage(attribution, rows_used, left_over=left)
            continue
        usage = _usage(
            view, server.name, claim, attribution, rows_used, sm[server.name], gpu_pids[server.name], cpu, live_cpu
        )
        result[server.name] = replace(usage, left_over=left) if left else usage
    findings.extend(_orphan_findings(splits))
    listed = {row.pid for gpu in nvml.gpus for row in gpu.processes or ()}
    for name, keys in left_over.items():
        if not any(pid in listed for pid, _ in keys):
            pids = ", ".join(str(pid) for pid, _ in sorted(keys))
            findings.append(f"{name}: its API server died, its engine processes live on (pid {pids}); end them by pid")
    if processes.reason:
        findings.append(processes.reason)
    remembered = _remember(view, servers, ownership, memory, live_cpu, processes.at)
    return AttributionResult(result, splits, remembered, tuple(dict.fromkeys(findings)))


def misfit(result: AttributionResult) -> str | None:
    """Why this tick must be dropped and counted (memory and process list of different moments); None when it fits.

    A slightly negative remainder is real (buffers shared between processes) and stays; below -64 MiB
    (:data:`MISFIT_BYTES`) the two readings do not belong together.
    """
    for split in result.gpus.values():
        if split.unattributed_bytes is not None and split.unattributed_bytes < -MISFIT_BYTES:
            return (
                f"GPU {split.gpu}: its processes hold {-split.unattributed_bytes:,} bytes more than the GPU has in use"
            )
    return None


# --------------------------------------------------------------------------- who owns a GPU process


class _Owners:
    """Owner, program and orphan state of a GPU process."""

    def __init__(self, view: HostView, ownership: Ownership, memory: IdentityMemory, at: float) -> None:
        self._view = view
        self._memory = memory
        self._at = at
        self._orphans = ownership.orphans
        self._claims = ownership.claims
        self._owner = {pid: name for name, claim in ownership.claims.items() for pid in claim.pids}

    def server(self, pid: int) -> str | None:
        """The configured server that a GPU process belongs to."""
        owner = self._owner.get(pid)
        if owner is not None or pid in self._view.processes:
            return owner
        # Not in /proc (any more): it may have ended between the two readings; then its server, if that lives on
        known = self._memory.processes.get(pid)
        if known is None or self._at - known.last_seen > REMEMBER or known.server not in self._claims:
            return None
        claim = self._claims[known.server]
        process = self._view.processes.get(claim.root) if claim.root is not None else None
        if process is None or known.root != (process.pid, process.start_ticks):
            return None
        return known.server

    def other(self, pid: int) -> tuple[str, bool, str]:
        """(program, orphan, detail) of a GPU process that is no server's."""
        process = self._view.processes.get(pid)
        known = self._memory.processes.get(pid)
        if process is None:
            if known is not None and self._at - known.last_seen <= REMEMBER:
                return f"ended process of {known.server}", False, "gone from /proc; the driver is still freeing it"
            return "unknown", False, "its pid is not visible in /proc"
        if known is not None and known.start_ticks != process.start_ticks:
            known = None  # the pid was given to another process
        container = self._view.container_name(process.container_id)
        where = f" in container {container}" if container else f" in {process.unit}" if process.unit else ""
        if pid in self._orphans or (known is not None and self.lost(known)):
            former = f"; was part of {known.server}" if known is not None else ""
            return (
                "vllm engine",
                True,
                f"pid {pid}{where}: the server that started it is dead, its memory is still held{former}",
            )
        if process.comm.startswith("nvidia-cuda-mps"):
            return "mps-server", False, "the MPS server's own part"
        root = self._view.root_of(pid)
        if root is not None:
            argv = self._view.processes[root].argv
            command = command_of(argv) if argv else None
            if command is not None:
                names = [name.rstrip("/").rsplit("/", 1)[-1] for name in command.served_names[:1]]
                title = " ".join(("vllm serve", *names))
                return title[:80], False, f"pid {root}{where}: a server that is not configured, port {command.port}"
            return "vllm serve", False, f"pid {root}{where}: a server that is not configured"
        if title_role(process.argv, process.comm) in ("engine_core", "worker"):
            return "vllm engine", False, f"pid {pid}{where}: belongs to no configured server"
        return program_name(process.argv, process.comm), False, f"pid {pid}{where}"

    def lost(self, known: Known) -> bool:
        """A former part of a server whose process is gone while this one lives: an orphan, whatever its title says."""
        if known.root is None:
            return False
        living = self._view.processes.get(known.root[0])
        return living is None or living.start_ticks != known.root[1]


def _left_over(view: HostView, owners: _Owners, memory: IdentityMemory) -> dict[str, frozenset[ProcessKey]]:
    """Server name -> its former engine processes that live on without their API server, on a GPU or not."""
    found: dict[str, set[ProcessKey]] = {}
    for pid, known in memory.processes.items():
        process = view.processes.get(pid)
        if process is None or process.start_ticks != known.start_ticks or process.state in ("Z", "X"):
            continue
        if title_role(process.argv, process.comm) not in ("engine_core", "worker"):
            continue
        if owners.server(pid) is None and owners.lost(known):
            found.setdefault(known.server, set()).add((pid, known.start_ticks))
    return {name: frozenset(keys) for name, keys in found.items()}


def _by_owner(gpu: GpuReading, owners: _Owners) -> dict[str | None, list[GpuProcess]]:
    out: dict[str | None, list[GpuProcess]] = {}
    for row in gpu.processes or ():
        out.setdefault(owners.server(row.pid), []).append(row)
    return out


def _total(rows: Sequence[GpuProcess]) -> Quantity:
    if any(row.used_bytes is None for row in rows):
        return Quantity(None, reason="the driver gives no memory per process")
    return Quantity(float(sum(row.used_bytes or 0 for row in rows)), "nvml")


# --------------------------------------------------------------------------- what cannot be seen at all


@dataclass(frozen=True, slots=True)
class _Blind:
    """Why the process lists of this tick cannot be used."""

    reason: str
    finding: bool = False


def driver_numbers(version: str | None) -> tuple[int, ...]:
    """ "535.104.05" -> (535, 104, 5); empty when unknown."""
    numbers = []
    for word in (version or "").split("."):
        if not word.isdigit():
            break
        numbers.append(int(word))
    return tuple(numbers)


def _blind(nvml: NvmlReading, table: ProcessTable) -> _Blind | None:
    """Reasons for which no process of any list may be believed."""
    if not nvml.up:
        return _Blind(f"NVML is down ({nvml.reason})" if nvml.reason else "NVML is down")
    if not nvml.gpus:
        return _Blind("NVML lists no GPU")
    driver = driver_numbers(nvml.driver_version)
    old = bool(driver) and driver < TRANSLATING_DRIVER
    separate = table.host_pid_namespace is False
    if not table.same_pid_namespace and not old:
        return _Blind(
            "the mounted /proc is the host's, but the driver answers in this container's own PID namespace; "
            "give the exporter `pid: host` (Kubernetes: hostPID: true)",
            finding=True,
        )
    if separate and table.same_pid_namespace and old:
        return _Blind(
            f"driver {nvml.driver_version} gives host PIDs, which mean other processes in this exporter's own PID "
            "namespace; give it `pid: host` (Kubernetes: hostPID: true)",
            finding=True,
        )
    lists = [gpu.processes for gpu in nvml.gpus if gpu.processes is not None]
    in_use = sum(gpu.memory_used_bytes or 0 for gpu in nvml.gpus if not gpu.unified_memory)
    if lists and not any(lists) and in_use > INVISIBLE_BYTES and not table.wsl:
        if separate:
            return _Blind(OWN_NAMESPACE, finding=True)
        return _Blind(
            "the driver lists no process although memory is in use; is this a container without `pid: host`?",
            finding=True,
        )
    return None


# --------------------------------------------------------------------------- state of a server


def _state(
    server: ServerFacts,
    claim: Claim | None,
    used: Mapping[str, Quantity],
    nvml: NvmlReading,
    view: HostView,
    ownership: Ownership,
    blind: _Blind | None,
    gpu_pids: set[int],
) -> tuple[Attribution, Mapping[str, Quantity]]:
    """State, method and reason of one server, and its rows (measured, estimated, or absent with a reason).

    Reasons end up in a label: no byte counts, no times, nothing that changes from tick to tick.
    """
    table = view.table
    method = claim.method if claim is not None else "none"
    pids = tuple(sorted(gpu_pids)) or ((claim.root,) if claim is not None and claim.root is not None else ())
    if not nvml.up or not nvml.gpus:
        assert blind is not None
        return Attribution("unavailable", method, blind.reason, pids), {}
    if _no_process_memory(nvml, table):
        return _estimated(server, claim, used, nvml, view, method, pids)
    if blind is not None:
        return Attribution("unavailable", method, blind.reason, pids), {}
    if claim is None:
        reason = ownership.missing.get(server.name, "no process of it was found")
        if table.host_pid_namespace is False:
            reason = f"{reason}; {OWN_NAMESPACE}"
        return Attribution("unavailable", "none", reason), {}
    if used:
        unknown = [quantity.reason for quantity in used.values() if quantity.value is None]
        if unknown:
            return Attribution("unavailable", method, unknown[0] or "", pids), used
        notes = [claim.note] if claim.note else []
        if any(gpu.unified_memory and gpu.uuid in used for gpu in nvml.gpus):
            notes.append("unified memory: the GPU's total and used are the host's")
        return Attribution("measured", method, "; ".join(notes), pids), used
    unreadable = [gpu for gpu in nvml.gpus if _is_holder(gpu) and gpu.processes is None]
    if unreadable:
        words = unreadable[0].absent.get("processes", "not readable")
        kind = "MIG instance" if unreadable[0].gpu_instance is not None else "GPU"
        return Attribution("unavailable", method, f"process list of {kind} {unreadable[0].gpu}: {words}", pids), {}
    if _mps_only(nvml, table):
        return (
            Attribution(
                "unavailable",
                method,
                "its memory is inside nvidia-cuda-mps-server: before Volta MPS clients have none of their own",
                pids,
            ),
            {},
        )
    reason = "its processes hold no GPU memory (starting, ended, or not on a GPU)"
    return Attribution("measured", method, "; ".join(filter(None, (reason, claim.note))), pids), {}


def _is_holder(gpu: GpuReading) -> bool:
    """False for the parent row of a MIG GPU, whose memory is on the rows of its instances."""
    return not (gpu.mig_mode and gpu.gpu_instance is None)


def _no_process_memory(nvml: NvmlReading, table: ProcessTable) -> bool:
    """WSL2 and WDDM: lists may be there, but hold no memory; under WSL2 they may also be empty or unsupported."""
    rows = [row for gpu in nvml.gpus for row in gpu.processes or ()]
    if rows:
        return all(row.used_bytes is None for row in rows)
    return table.wsl


def _mps_only(nvml: NvmlReading, table: ProcessTable) -> bool:
    """The MPS server holds memory and lists no client beside it: clients have no memory of their own there."""
    for gpu in nvml.gpus:
        rows = gpu.processes or ()
        if any("mps" in row.kinds for row in rows):
            continue
        for row in rows:
            process = table.processes.get(row.pid)
            # The server's own part is some 70 MB where clients have their own memory (measured on an H200)
            if process is not None and process.comm.startswith("nvidia-cuda-mps") and (row.used_bytes or 0) > 1 << 28:
                return True
    return False


def _estimated(
    server: ServerFacts,
    claim: Claim | None,
    used: Mapping[str, Quantity],
    nvml: NvmlReading,
    view: HostView,
    method: str,
    pids: tuple[int, ...],
) -> tuple[Attribution, Mapping[str, Quantity]]:
    """Without memory per process: what the server's log or parts say, marked as estimate; or nothing."""
    system = "WSL2" if view.table.wsl else "this driver model (WDDM)"
    here = view.namespaces_of(server) is not None
    why = f"{system} gives no memory per process"
    holders = [gpu for gpu in nvml.gpus if _is_holder(gpu)]
    uuids = sorted(used) or ([holders[0].uuid] if len(holders) == 1 else [])
    absent = dict.fromkeys(uuids, Quantity(None, reason=why)) if claim is not None else {}
    if server.estimate is None or server.estimate.value is None:
        more = (server.estimate.reason if server.estimate is not None else None) or "there is no log to estimate from"
        return Attribution("unavailable", method, f"{why}; {more}", pids), absent
    if claim is None and not here:
        return Attribution("unavailable", method, f"{why}, and {server.host} is not known to be this host", pids), {}
    if not uuids:
        reason = f"{why}, and which of {len(holders)} GPUs it uses is unknown"
        return Attribution("unavailable", method, reason, pids), {}
    origin = server.estimate.source or "its parts"
    row = Quantity(server.estimate.value, "estimate", estimate=True, reason=f"{why}; taken from {origin}")
    return (
        Attribution("estimated", method if method != "none" else "configuration", f"{why}; taken from {origin}", pids),
        dict.fromkeys(uuids, row),
    )


# --------------------------------------------------------------------------- one GPU


def _split(
    gpu: GpuReading, mine: Mapping[str | None, Sequence[GpuProcess]], owners: _Owners, blind: _Blind | None
) -> GpuSplit:
    """Other programs and the remainder of one GPU."""
    if not _is_holder(gpu):
        return GpuSplit(gpu.gpu, gpu.uuid, reason="MIG is on: memory is on the rows of its instances")
    if blind is not None:
        return GpuSplit(gpu.gpu, gpu.uuid, reason=blind.reason)
    if gpu.processes is None:
        words = gpu.absent.get("processes", "not readable")
        return GpuSplit(gpu.gpu, gpu.uuid, reason=f"process list: {words}")
    grouped: dict[tuple[str, bool], list[tuple[GpuProcess, str]]] = {}
    for row in mine.get(None, ()):
        program, orphan, detail = owners.other(row.pid)
        grouped.setdefault((program, orphan), []).append((row, detail))
    other = tuple(
        OtherMemory(
            gpu.gpu,
            gpu.uuid,
            program,
            None if any(row.used_bytes is None for row, _ in rows) else sum(row.used_bytes or 0 for row, _ in rows),
            orphan,
            "; ".join(dict.fromkeys(detail for _, detail in rows)),
        )
        for (program, orphan), rows in sorted(grouped.items())
    )
    if gpu.unified_memory:
        return GpuSplit(gpu.gpu, gpu.uuid, other, reason="unified memory: used is the whole host's")
    if gpu.memory_used_bytes is None:
        words = gpu.absent.get("memory_used_bytes", "not readable")
        return GpuSplit(gpu.gpu, gpu.uuid, other, reason=f"used memory: {words}")
    listed = 0
    for row in gpu.processes:
        if row.used_bytes is None:
            return GpuSplit(gpu.gpu, gpu.uuid, other, reason="the driver gives no memory per process")
        listed += row.used_bytes
    reason = None
    if gpu.memory_reserved_bytes is None and "memory_reserved_bytes" in gpu.absent:
        reason = "includes what the driver reserves (only memory v1 here)"
    return GpuSplit(gpu.gpu, gpu.uuid, other, gpu.memory_used_bytes - listed, reason)


def _orphan_findings(splits: Mapping[str, GpuSplit]) -> list[str]:
    return [
        f"GPU {split.gpu}: an orphaned vLLM engine holds memory ({other.detail}); end it by its pid"
        for split in splits.values()
        for other in split.other
        if other.orphan
    ]


# --------------------------------------------------------------------------- host side and memory


def _usage(
    view: HostView,
    name: str,
    claim: Claim,
    attribution: Attribution,
    used: Mapping[str, Quantity],
    sm: Mapping[str, float],
    gpu_pids: set[int],
    cpu: Mapping[tuple[str, ProcessKey | None, str], ExitedCpu],
    live_cpu: dict[tuple[str, ProcessKey | None, str], ExitedCpu],
) -> ServerUsage:
    root = view.processes.get(claim.root) if claim.root is not None else None
    root_key = (root.pid, root.start_ticks) if root is not None else None
    roles = []
    by_role = roles_of(view, claim, frozenset(gpu_pids)).by_role
    for role in sorted(by_role):
        key = (name, root_key, role)
        roles.append(_role(role, by_role[role], cpu.get(key), key, live_cpu))
    inside = [view.processes[pid] for pid in claim.pids if pid in view.processes]
    home = root or (inside[0] if inside else None)
    return ServerUsage(
        attribution=attribution,
        used=used,
        sm_utilization=sm,
        roles=tuple(roles),
        root=root_key,
        identity=frozenset((process.pid, process.start_ticks) for process in inside),
        argv=root.argv if root is not None else None,
        environ=root.environ if root is not None else None,
        container=view.container_name(home.container_id) if home is not None else None,
        unit=home.unit if home is not None else None,
    )


def _role(
    role: str,
    processes: Sequence[HostProcess],
    before: ExitedCpu | None,
    key: tuple[str, ProcessKey | None, str],
    live_cpu: dict[tuple[str, ProcessKey | None, str], ExitedCpu],
) -> RoleUsage:
    """Sums over the processes of a role; a sum with an unknown part is unknown."""
    reason = None
    for process in processes:
        for field_name in ("cpu_seconds", "rss_bytes", "shared_bytes", "threads"):
            if getattr(process, field_name) is None:
                reason = process.absent.get(field_name, "not readable")

    def total(values: Sequence[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    living = {
        (process.pid, process.start_ticks): process.cpu_seconds
        for process in processes
        if process.cpu_seconds is not None
    }
    seconds: float | None = None
    if len(living) == len(processes):
        exited = 0.0
        if before is not None:
            # The last value of a process that is gone stays in the counter
            exited = before.exited + sum(value for one, value in before.living.items() if one not in living)
        live_cpu[key] = ExitedCpu(exited, living)
        seconds = exited + sum(living.values())
    elif before is not None:
        live_cpu[key] = before
    return RoleUsage(
        role,
        len(processes),
        seconds,
        total([process.rss_bytes for process in processes]),
        total([process.shared_bytes for process in processes]),
        total([process.threads for process in processes]),
        reason,
    )


def _remember(
    view: HostView,
    servers: Sequence[ServerFacts],
    ownership: Ownership,
    memory: IdentityMemory,
    live_cpu: Mapping[tuple[str, ProcessKey | None, str], ExitedCpu],
    at: float,
) -> IdentityMemory:
    """What the next tick needs to know."""
    known: dict[int, Known] = {}
    for pid, one in memory.processes.items():
        process = view.processes.get(pid)
        if process is None:
            if at - one.last_seen <= REMEMBER:
                known[pid] = one
        elif process.start_ticks == one.start_ticks:
            known[pid] = replace(one, last_seen=at)
    configured = {server.name: server for server in servers}
    roots = {name: root for name, root in memory.roots.items() if name in configured}
    for name, claim in ownership.claims.items():
        process = view.processes.get(claim.root) if claim.root is not None else None
        key = (process.pid, process.start_ticks) if process is not None else None
        if key is not None:
            roots[name] = KnownRoot(key, claim.method, signature(configured[name]))
        for pid in claim.pids:
            member = view.processes.get(pid)
            if member is not None:
                known[pid] = Known(member.start_ticks, name, None if pid == claim.root else key, at)
    cpu = dict(live_cpu)
    for place, one_cpu in memory.cpu.items():
        # A server that was not found this time keeps its counter while its process lives
        root = place[1]
        living = view.processes.get(root[0]) if root is not None else None
        if place not in cpu and living is not None and root == (living.pid, living.start_ticks):
            cpu[place] = one_cpu
    return IdentityMemory(known, roots, cpu)
