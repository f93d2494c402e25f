"""Reads from a recording what the demo's answers must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vllmeter.demo.questions import Truth, total
from vllmeter.recording.player import Player

_PEAKS = ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def read_truth(recording: Path, names: Callable[[str], str], begin: float, end: float) -> Truth:
    """Truth at position ``end`` (seconds), with peaks from ``begin`` on.  ``names`` maps recorded to served names."""
    player = Player(recording, loop=False, start=begin)
    peaks: dict[str, dict[str, float]] = {}
    moment = player.at(0.0)
    elapsed = 0.0
    while begin + elapsed <= end:
        moment = player.at(elapsed)
        for name, server in moment.servers.items():
            if server.body is None:
                continue
            body = server.body.decode()
            slot = peaks.setdefault(names(name), {})
            for sample in _PEAKS:
                value = total(body, sample)
                if value is not None:
                    slot[sample] = max(slot.get(sample, 0.0), value)
        elapsed += 1.0
    bodies = {names(n): s.body.decode() for n, s in moment.servers.items() if s.body is not None}
    nvml, table = moment.nvml, moment.processes
    assert nvml is not None
    gpu = nvml.gpus[0]
    assert table is not None
    assert gpu.memory_total_bytes is not None
    assert gpu.memory_reserved_bytes is not None
    assert gpu.memory_used_bytes is not None
    by_pid = {p.pid: p.used_bytes or 0 for p in gpu.processes or ()}
    process_bytes: dict[str, int] = {}
    fractions: dict[str, float] = {}
    for recorded in player.header.servers:
        # The engine is the child of the process whose command line holds the recorded port.
        roots = {
            p.pid for p in table.processes.values() if p.argv and "--port" in p.argv and str(recorded.port) in p.argv
        }
        own = {p.pid for p in table.processes.values() if p.pid in roots or p.ppid in roots}
        process_bytes[names(recorded.name)] = sum(size for pid, size in by_pid.items() if pid in own)
        if (fraction := recorded.flags.get("gpu_memory_utilization")) is not None:
            fractions[names(recorded.name)] = float(str(fraction))
    player.close()
    return Truth(
        bodies=bodies,
        peaks=peaks,
        process_bytes=process_bytes,
        used_bytes=gpu.memory_used_bytes,
        cuda_total=gpu.memory_total_bytes - gpu.memory_reserved_bytes,
        fractions=fractions,
    )
