"""A made-up host for attribution tests: processes, containers and one NVML reading, built in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fakes.fake_proc import hexid
from vllmeter.memory.attribute import AttributionResult, IdentityMemory, MatchRule, ServerFacts, attribute
from vllmeter.snapshot import (
    ContainerFacts,
    ContainerTable,
    GpuProcess,
    GpuReading,
    HostProcess,
    NvmlReading,
    ProcessTable,
    Quantity,
)

MIB = 1 << 20
GIB = 1 << 30
HOST_NET = 1
INIT = HostProcess(1, 0, 1, "systemd", argv=("/sbin/init",), net_namespace=HOST_NET)


def process(pid: int, ppid: int, argv: Sequence[str] | None, comm: str | None = None, **more: Any) -> HostProcess:
    """One process in the host's network; ``start_ticks`` is 1000 + pid."""
    name = comm or (argv[0].rsplit("/", 1)[-1] if argv else "p")[:15]
    base = HostProcess(
        pid,
        ppid,
        1000 + pid,
        name,
        argv=tuple(argv) if argv is not None else None,
        net_namespace=HOST_NET,
        listening_ports=(),
        cpu_seconds=1.0,
        rss_bytes=100,
        shared_bytes=10,
        threads=2,
    )
    return replace(base, **more)


def server(pid: int, port: int, *arguments: str, ppid: int = 1, **more: Any) -> HostProcess:
    """A `vllm serve` process that listens on ``port``."""
    argv = ("/venv/bin/python3", "/venv/bin/vllm", "serve", "/m/model", "--port", str(port), *arguments)
    values: dict[str, Any] = {"listening_ports": (port,)} | more
    return process(pid, ppid, argv, "vllm", **values)


def engine(pid: int, ppid: int, title: str = "VLLM::EngineCore", **more: Any) -> HostProcess:
    """A process that vLLM renamed."""
    return process(pid, ppid, (title,), title[:15], **more)


def in_container(name: str, pid: int, inner: int = 1, net: int | None = None, **more: Any) -> dict[str, Any]:
    """Fields of a process in a container: pass as ``**in_container(…)``."""
    return {
        "container_id": hexid(name),
        "container_runtime": "docker",
        "namespace_pids": (pid, inner),
        "net_namespace": 100 + sum(name.encode()) if net is None else net,
    } | more


def container(name: str, pid: int | None = None, **more: Any) -> ContainerFacts:
    """Facts of the container that ``in_container(name, …)`` means."""
    return replace(ContainerFacts(hexid(name), name, pid), **more)


def compose(service: str) -> dict[str, str]:
    """Labels of a Compose service."""
    return {"com.docker.compose.project": "demo", "com.docker.compose.service": service}


def gpu(
    processes: Iterable[tuple[int, int | None]] | Iterable[GpuProcess] | None,
    *,
    used: int | None = None,
    index: int = 0,
    uuid: str | None = None,
    **more: Any,
) -> GpuReading:
    """One GPU of 80 GiB; ``used`` defaults to the sum of its processes and 20 MiB that are nobody's."""
    rows: tuple[GpuProcess, ...] | None = None
    if processes is not None:
        rows = tuple(row if isinstance(row, GpuProcess) else GpuProcess(row[0], row[1]) for row in processes)
    if used is None:
        used = sum(row.used_bytes or 0 for row in rows or ()) + 20 * MIB
    reading = GpuReading(
        index,
        uuid or f"GPU-{index}",
        "NVIDIA H200",
        memory_total_bytes=80 * GIB,
        memory_used_bytes=used,
        memory_free_bytes=80 * GIB - used - GIB,
        memory_reserved_bytes=GIB,
        processes=rows,
    )
    return replace(reading, **more)


def nvml(*gpus: GpuReading, **more: Any) -> NvmlReading:
    """A reading that is up, by a driver that translates pids."""
    return replace(NvmlReading(1.0, 1.0, up=True, gpus=gpus, driver_version="580.159.04"), **more)


def table(*processes: HostProcess, at: float = 1.0, **more: Any) -> ProcessTable:
    """A host's process table with its init, seen from the host."""
    every = {one.pid: one for one in (INIT, *processes)}
    base = ProcessTable(at, every, host_pid_namespace=True, net_namespace=HOST_NET)
    return replace(base, **more)


def facts(name: str, port: int = 8000, host: str = "127.0.0.1", **more: Any) -> ServerFacts:
    """A configured server."""
    return replace(ServerFacts(name, host, port), **more)


def matched(name: str, **rule: Any) -> ServerFacts:
    """A configured server with a match rule and a URL that leads nowhere."""
    return ServerFacts(name, "203.0.113.9", 1, match=MatchRule(**rule))


def split(
    reading: NvmlReading,
    processes: ProcessTable,
    *servers: ServerFacts,
    containers: Sequence[ContainerFacts] | ContainerTable | None = None,
    memory: IdentityMemory | None = None,
) -> AttributionResult:
    """Attribute, and check on every GPU that the parts add up."""
    engine_table = (
        containers
        if isinstance(containers, ContainerTable) or containers is None
        else ContainerTable({one.id: one for one in containers})
    )
    result = attribute(reading, processes, servers, containers=engine_table, memory=memory)
    adds_up(reading, result)
    return result


def adds_up(reading: NvmlReading, result: AttributionResult) -> None:
    """Σ servers + other + unattributed = used, or the remainder is absent with a reason; every GPU has a split."""
    for one in reading.gpus:
        found = result.gpus[one.uuid]
        if found.unattributed_bytes is None:
            assert found.reason, one.uuid
            continue
        rows = [usage.used[one.uuid] for usage in result.servers.values() if one.uuid in usage.used]
        servers = sum(int(row.value or 0) for row in rows)
        other = sum(row.used_bytes or 0 for row in found.other)
        assert servers + other + found.unattributed_bytes == one.memory_used_bytes, one.uuid
    for usage in result.servers.values():
        assert usage.attribution.state in ("measured", "estimated", "unavailable")
        if usage.attribution.state != "measured":
            assert usage.attribution.reason
        for quantity in usage.used.values():
            assert quantity.value is not None or quantity.reason


def used(result: AttributionResult, name: str) -> dict[str, float | None]:
    """uuid -> bytes of a server."""
    return {uuid: quantity.value for uuid, quantity in result.servers[name].used.items()}


def others(result: AttributionResult, uuid: str = "GPU-0") -> dict[tuple[str, bool], int | None]:
    """(program, orphan) -> bytes on a GPU."""
    return {(row.program, row.orphan): row.used_bytes for row in result.gpus[uuid].other}


def estimate(value: float, source: str = "log") -> Quantity:
    """What a server's log adds up to."""
    return Quantity(value, source)
