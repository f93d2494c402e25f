"""NVML readings and process tables as JSON documents and back (pure; exact round trip, default values left out)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from vllmeter.snapshot import GpuProcess, GpuReading, HostProcess, NvmlReading, ProcessTable

Json = Any


class DocumentError(ValueError):
    """A JSON document is not what it should be; the message names the field."""


def _plain(value: Any) -> Json:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (GpuProcess, GpuReading, HostProcess)):
        # A moment of the past would be a wrong one when it is played back.
        return _record(value, skip=("xid_last_at",))
    return value


def _record(value: Any, skip: tuple[str, ...] = ()) -> dict[str, Json]:
    """Every field that differs from its default."""
    out: dict[str, Json] = {}
    for spec in fields(value):
        if spec.name in skip:
            continue
        item = getattr(value, spec.name)
        default = spec.default_factory() if spec.default_factory is not MISSING else spec.default
        if item != default:
            out[spec.name] = _plain(item)
    return out


def nvml_to_json(reading: NvmlReading) -> dict[str, Json]:
    """Without ``at`` and ``wall``: whoever plays it back says when."""
    return _record(reading, skip=("at", "wall"))


def nvml_from_json(document: Json, at: float, wall: float) -> NvmlReading:
    """:raises DocumentError: unknown or missing fields, wrong shapes."""
    try:
        values = dict(document)
        values["gpus"] = tuple(_gpu(gpu) for gpu in values.get("gpus", ()))
        return NvmlReading(at=at, wall=wall, **values)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise DocumentError(f"not an NVML reading: {exc}") from exc


def _gpu(document: Mapping[str, Json]) -> GpuReading:
    values = dict(document)
    if values.get("processes") is not None:
        values["processes"] = tuple(
            GpuProcess(**{**item, **({"kinds": frozenset(item["kinds"])} if "kinds" in item else {})})
            for item in values["processes"]
        )
    return GpuReading(**values)


def processes_to_json(table: ProcessTable) -> dict[str, Json]:
    """Without ``at``: whoever plays it back says when."""
    return _record(table, skip=("at",))


def processes_from_json(document: Json, at: float) -> ProcessTable:
    """:raises DocumentError: unknown or missing fields, wrong shapes."""
    try:
        values = dict(document)
        values["processes"] = {int(pid): _process(item) for pid, item in values["processes"].items()}
        return ProcessTable(at=at, **values)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise DocumentError(f"not a process table: {exc}") from exc


def _process(document: Mapping[str, Json]) -> HostProcess:
    values = dict(document)
    for name in ("argv", "namespace_pids", "listening_ports"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    return HostProcess(**values)
