"""What ``--gpu-memory-utilization`` means, release by release.

It is always a fraction of CUDA total, per GPU.  What is subtracted from it, what lies outside, and whether
neighbours count changed several times; every row here was read in the released sources (docs/budgets.md has the
table with its references).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NEWEST_READ: Final = (0, 33)
"""Newest minor release whose source was read; later ones are treated like it and marked assumed."""

Version = tuple[int, int, int, int]
"""(major, minor, patch, post)"""


@dataclass(frozen=True, slots=True)
class Regime:
    """How one range of releases accounts for GPU memory.

    ``whole_device``: memory of neighbours counts against the fraction, so it is a limit for the whole card and
    not this instance's budget (a second instance needs a larger number).
    ``start_check``: the start is refused when less than fraction × total is free.
    ``context_inside``, ``nccl_inside``: CUDA context and NCCL's start-up buffers are part of the budget.
    ``graphs_inside``: CUDA graphs are estimated and taken off the KV cache; else they come on top.
    ``assumed``: why this row was chosen without knowing the release; None when it is known.
    """

    releases: str
    whole_device: bool
    start_check: bool
    context_inside: bool
    nccl_inside: bool
    graphs_inside: bool
    default_fraction: float
    kv_bytes_flag: bool
    assumed: str | None = None


def parse_version(text: str | None) -> Version | None:
    """(major, minor, patch, post) of ``0.6.4.post1``, ``v0.26.0``, ``0.11.0rc2.dev3+gabc``; None when it is none."""
    if text is None:
        return None
    match = re.match(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.post(\d+))?", text)
    if match is None:
        return None
    return (int(match.group(1)), int(match.group(2)), int(match.group(3) or 0), int(match.group(4) or 0))


def graphs_estimated(version: Version, environment: Mapping[str, str] | None = None) -> bool:
    """Whether the graph estimate is taken off the KV cache: default since 0.20.0, opt-in in 0.18 and 0.19."""
    if version < (0, 18, 0, 0):
        return False
    switch = (environment or {}).get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    if switch is not None and switch.strip().isdigit():
        return int(switch) != 0
    return version >= (0, 20, 0, 0)


def default_engine(version: Version, environment: Mapping[str, str] | None = None) -> str:
    """``V0`` or ``V1``: the environment decides where both exist, else V1 is the default since 0.8.0."""
    if version < (0, 7, 0, 0):
        return "V0"
    if version >= (0, 11, 0, 0):
        return "V1"
    switch = (environment or {}).get("VLLM_USE_V1")
    if switch is not None and switch.strip().isdigit():
        return "V1" if int(switch) else "V0"
    return "V1" if version >= (0, 8, 0, 0) else "V0"


def regime_of(
    version: str | None, *, engine: str | None = None, environment: Mapping[str, str] | None = None
) -> Regime:
    """The regime of a release.

    ``engine`` is what the log says (``V0``/``V1``); without it the release's default counts.  An unknown or newer
    release gets the newest regime that was read, with ``assumed`` saying so.
    """
    parsed = parse_version(version)
    assumed = None
    if parsed is None:
        assumed = "the vLLM version is not known"
        parsed = (*NEWEST_READ, 0, 0)
    elif parsed[:2] > NEWEST_READ:
        assumed = f"vLLM {version} is newer than {NEWEST_READ[0]}.{NEWEST_READ[1]}, the newest release that was read"
    engine = engine or default_engine(parsed, environment)
    default = 0.92 if parsed >= (0, 20, 0, 0) else 0.9
    kv_flag = parsed >= (0, 10, 2, 0)

    def make(
        releases: str, *, whole: bool = False, check: bool = False, context: bool = False, nccl: bool = True
    ) -> Regime:
        return Regime(
            releases=releases,
            whole_device=whole,
            start_check=check,
            context_inside=context,
            nccl_inside=nccl,
            graphs_inside=graphs_estimated(parsed, environment),
            default_fraction=default,
            kv_bytes_flag=kv_flag,
            assumed=assumed,
        )

    if engine == "V0" and parsed < (0, 11, 0, 0):
        if parsed < (0, 4, 0, 0):
            return make("before 0.4.0", whole=True, context=True)
        if parsed < (0, 6, 4, 0):
            return make("0.4.0 to 0.6.3")
        if parsed < (0, 6, 5, 0):
            return make("0.6.4", whole=True, context=True)
        return make("V0, 0.6.5 to 0.10")
    if parsed < (0, 9, 1, 0):
        return make("V1, 0.7 to 0.9.0", whole=True, context=True)
    if parsed < (0, 11, 0, 0):
        return make("V1, 0.9.1 to 0.10", check=True)
    if parsed < (0, 27, 0, 0):
        return make("0.11 to 0.26", check=True, nccl=False)
    return make("0.27 to 0.33", check=True, nccl=False)
