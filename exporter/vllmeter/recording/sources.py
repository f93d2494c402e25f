"""GPU and process sources that read a replay: over its control port, or in the same process on any clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import requests

from vllmeter.recording.documents import DocumentError, nvml_from_json, processes_from_json
from vllmeter.recording.player import Player
from vllmeter.snapshot import NvmlReading, ProcessTable

TIMEOUT_SECONDS = 2.0


class _Client:
    """GETs JSON from a control port; loopback, so no proxies and no retries."""

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._session = requests.Session()
        self._session.trust_env = False

    def get(self, path: str) -> Any:
        """:raises requests.RequestException: no answer, or not JSON"""
        try:
            answer = self._session.get(self._url + path, timeout=self._timeout)
        except requests.ConnectionError:
            # The kept connection may have been closed while idle: one more try on a new one.
            answer = self._session.get(self._url + path, timeout=self._timeout)
        answer.raise_for_status()
        return answer.json()

    def close(self) -> None:
        self._session.close()


class ReplayGpuSource:
    """:class:`vllmeter.gpu.source.GpuSource` that asks a replay's control port (``nvml: {replay: URL}``)."""

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._client = _Client(url, timeout)

    def read(self, at: float, wall: float) -> NvmlReading:
        """The replayed NVML reading; ``up=False`` with reason ``replay_unreachable`` when there is no answer."""
        begun = time.perf_counter()
        try:
            reading = nvml_from_json(self._client.get("/replay/nvml"), at=at, wall=wall)
        except (requests.RequestException, DocumentError):
            return NvmlReading(at=at, wall=wall, up=False, reason="replay_unreachable")
        return replace(reading, duration_seconds=time.perf_counter() - begun)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class ReplayProcessSource:
    """:class:`vllmeter.host.source.ProcessSource` that asks a replay's control port."""

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._client = _Client(url, timeout)

    def read(self, at: float, pids: Sequence[int]) -> ProcessTable:
        """The replayed table (all recorded processes, whatever ``pids`` says)."""
        try:
            return processes_from_json(self._client.get("/replay/processes"), at=at)
        except (requests.RequestException, DocumentError):
            return ProcessTable(at=at, processes={}, reason="replay_unreachable")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class PlayerGpuSource:
    """In-process GPU source for tests: plays ``player`` at ``elapsed(at)`` seconds (default: ``at`` itself)."""

    def __init__(self, player: Player, elapsed: Callable[[float], float] | None = None) -> None:
        self._player = player
        self._elapsed = elapsed or float

    def read(self, at: float, wall: float) -> NvmlReading:
        """The reading that was in force at that moment of the recording."""
        self._player.advance(self._elapsed(at))
        return self._player.nvml(at, wall) or NvmlReading(at=at, wall=wall, up=False, reason="not_recorded")

    def close(self) -> None:
        """The player belongs to whoever made it."""


class PlayerProcessSource:
    """In-process process source for tests: plays ``player`` at ``elapsed(at)`` seconds (default: ``at`` itself)."""

    def __init__(self, player: Player, elapsed: Callable[[float], float] | None = None) -> None:
        self._player = player
        self._elapsed = elapsed or float

    def read(self, at: float, pids: Sequence[int]) -> ProcessTable:
        """The table that was in force at that moment of the recording."""
        self._player.advance(self._elapsed(at))
        return self._player.processes(at) or ProcessTable(at=at, processes={}, reason="not recorded")
