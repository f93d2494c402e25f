"""What ``/proc`` and NVML show about one server's processes -> evidence for its state machine.  Pure."""

from __future__ import annotations

from collections.abc import Collection

from vllmeter.memory.attribute import ServerUsage
from vllmeter.snapshot import HostProcess, ProcessTable
from vllmeter.windows.state import NOTHING, Evidence


def is_engine(process: HostProcess, gpu_pids: Collection[int]) -> bool:
    """True for processes that run the model: by title (vLLM >= 0.10.1 renames them), or because they use a GPU."""
    title = process.argv[0] if process.argv else process.comm
    return "::EngineCor" in title or "::Worker" in title or process.pid in gpu_pids


def evidence_of(
    usage: ServerUsage | None,
    table: ProcessTable | None,
    *,
    gpu_pids: Collection[int],
    own_connections: int,
    had_engine: bool,
) -> Evidence:
    """Evidence for one server at one tick.

    ``own_connections``: connections to its port that are ours.  ``had_engine``: an engine process of the same server
    process was seen before; only then does "none found" mean that it is gone (older releases are not told apart).
    """
    if usage is None or table is None:
        return NOTHING
    if not usage.identity:
        left = [table.processes[pid].state for pid, _ in usage.left_over if pid in table.processes]
        states = tuple(state for state in left if state is not None)
        return Evidence(api_alive=False, engine_states=states) if states else NOTHING
    tree = [table.processes[pid] for pid, _ in usage.identity if pid in table.processes]
    if not tree:
        return NOTHING
    root = table.processes.get(usage.root[0]) if usage.root is not None else None
    engines = [p for p in tree if p is not root and is_engine(p, gpu_pids)] or [p for p in tree if p.pid in gpu_pids]
    states = tuple(p.state for p in engines if p.state is not None)
    cpu = [p.cpu_seconds for p in engines if p.cpu_seconds is not None]
    connections = [p.connections for p in tree if p.connections is not None]
    return Evidence(
        api_alive=None if root is None else root.state not in ("Z", "X"),
        start_ticks=tuple(sorted(usage.identity)),
        api_state=None if root is None else root.state,
        engine_states=states if states or had_engine else None,
        engine_cpu_seconds=sum(cpu) if cpu else None,
        # API-server processes of one server share the socket: the largest count is the socket's.
        connections=max(0, max(connections) - own_connections) if connections else None,
        sm_utilization_ratio=max(usage.sm_utilization.values(), default=None),
    )
