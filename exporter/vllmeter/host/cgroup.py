"""What a process's cgroup path says: container, runtime, Kubernetes pod, systemd unit.  Pure.

Forms of the path (cgroup v2 has one line ``0::PATH``, v1 one per controller, hybrid both):

* Docker ``/docker/ID`` and ``/system.slice/docker-ID.scope``; Podman ``libpod-ID.scope`` with ``/container`` below,
  ``libpod-payload-ID`` under a unit (quadlets), ``/libpod_parent/libpod-ID``;
* Kubernetes with containerd ``cri-containerd-ID.scope``, CRI-O ``crio-ID.scope``, cgroupfs ``/kubepods/…/podUID/ID``;
* nested engines (kind, Docker in Docker) have several ids in one path: the last is the process's own;
* from another private cgroup namespace paths start with ``/../``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ID: Final = re.compile(r"^(?:(?P<prefix>.*?)[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?$")
_POD: Final = re.compile(
    r"(?:^|[-/])pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:$|:)"
)
_NOT_A_UNIT: Final = re.compile(r"^(?:user@\d+\.service|session-.*\.scope|init\.scope)$")
_RUNTIMES: Final = (
    ("cri-containerd", "containerd"),
    ("crio", "cri-o"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("nerdctl", "containerd"),
    ("buildkit", "buildkit"),
)


@dataclass(frozen=True, slots=True)
class CgroupFacts:
    """What the path says; empty fields where it says nothing."""

    path: str = ""
    container_id: str | None = None
    """64 hex digits"""
    runtime: str | None = None
    """docker, podman, containerd, cri-o, cri (Kubernetes without saying which), unknown"""
    pod_uid: str | None = None
    """with dashes, or 32 hex digits for static pods"""
    unit: str | None = None
    """systemd unit as systemctl shows it; user services too"""


def parse_path(path: str) -> CgroupFacts:
    """Read one cgroup path."""
    container = runtime = pod = unit = None
    before = ""
    for segment in path.split("/"):
        found = _POD.search(segment)
        if found:
            pod = found["uid"].replace("_", "-")
        match = _ID.match(segment)
        if match:
            prefix = match["prefix"] or ""
            if "conmon" not in prefix:
                container = match["id"]
                runtime = _runtime(prefix, before, pod is not None)
        elif segment.endswith((".service", ".scope")) and not _NOT_A_UNIT.match(segment):
            unit = segment
        if segment:
            before = segment
    return CgroupFacts(path, container, runtime, pod, unit)


def _runtime(prefix: str, before: str, in_pod: bool) -> str:
    for word, runtime in _RUNTIMES:
        if word in prefix:
            return runtime
    if before == "docker":
        return "docker"
    return "cri" if in_pod else "unknown"


def parse_cgroup(text: str) -> CgroupFacts:
    """Read ``/proc/PID/cgroup``.

    Of several lines the first with a container counts, else the first with a unit, else the v2 (or the longest) path.
    """
    best = CgroupFacts()
    rank = -1
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        facts = parse_path(parts[2])
        if facts.container_id:
            mine = 3
        elif facts.unit:
            mine = 2
        elif facts.path not in ("", "/"):
            mine = 1
        else:
            mine = 0
        if mine > rank:
            best, rank = facts, mine
    return best
