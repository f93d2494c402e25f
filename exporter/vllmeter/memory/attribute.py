"""Whose memory is it: GPU processes -> process tree -> container, unit or root -> configured server.  Pure.

For every GPU it holds that ``sum(servers) + other + unattributed == memory used`` (NVML v2), in bytes, or the
remainder is absent with a reason; a process is never counted for two servers and never guessed by model name.
docs/attribution.md tells the rules in the order in which they apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vllmeter.snapshot import (
    Attribution,
    ContainerTable,
    NvmlReading,
    OtherMemory,
    ProcessTable,
    Quantity,
    RoleUsage,
)

MISFIT_BYTES: Final = 64 * 1024 * 1024
"""A remainder below minus this means that memory and process list are not of the same moment."""

ProcessKey = tuple[int, int]
"""(pid, start_ticks): a process for good, since PIDs are reused."""


@dataclass(frozen=True, slots=True)
class MatchRule:
    """A configured match; it overrides everything else, and all given parts must hold."""

    container: str | None = None
    """name, id (12 or more hex digits), or Compose service"""
    unit: str | None = None
    port: int | None = None
    command: str | None = None
    """regular expression searched in the command line of the server's process"""
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known about one configured server before its processes are looked for.

    ``addresses``: IP addresses that the URL's host stands for (the peer of our own connection), so that a
    container's name in a URL can be found; without them only a literal address or localhost is understood.
    ``estimate``: bytes per GPU that its log or its parts add up to, for platforms without per-process memory.
    """

    name: str
    host: str
    port: int
    match: MatchRule | None = None
    addresses: tuple[str, ...] = ()
    model_names: tuple[str, ...] = ()
    estimate: Quantity | None = None


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """The part of one server.

    ``used`` holds one row per GPU (key: uuid) that its processes are on.  ``identity`` changes when the server
    was restarted (its processes are others), whatever its counters say.
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
    role: str
    last_seen: float


@dataclass(frozen=True, slots=True)
class IdentityMemory:
    """What :func:`attribute` carries from tick to tick; start with an empty one.

    ``processes``: pid -> what it was; dropped when the start time says that the pid is another process now.
    ``cpu``: CPU seconds of exited processes per (server, role), so that the counter does not fall.
    """

    processes: Mapping[int, Known] = field(default_factory=dict)
    cpu: Mapping[tuple[str, str], tuple[ProcessKey | None, float, Mapping[ProcessKey, float]]] = field(
        default_factory=dict
    )


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
    """Split the used memory of every GPU between configured servers, other programs and the remainder."""
    raise NotImplementedError


def misfit(result: AttributionResult) -> str | None:
    """Why this tick must be dropped and counted (memory and process list of different moments); None when it fits.

    A slightly negative remainder is real (buffers shared between processes) and stays; below -64 MiB
    (:data:`MISFIT_BYTES`) the two readings do not belong together.
    """
    raise NotImplementedError
