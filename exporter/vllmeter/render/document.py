"""Snapshot -> plain data for ``/snapshot.json``, the live page, ``check --format json`` and run records.  Pure.

Every field of the snapshot appears under its own name; ``reading`` is written as families with labels, so that a
script needs no knowledge of layouts.  Absent values are ``null`` and their reasons stand beside them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from vllmeter.snapshot import ServerReading, Snapshot

SCHEMA = 1
"""Version of the document; a change of meaning raises it."""


def snapshot_document(snapshot: Snapshot, *, readings: bool = True) -> dict[str, Any]:
    """The whole snapshot as JSON-ready data; ``readings=False`` leaves out the servers' own families."""
    document = _plain(snapshot, readings)
    assert isinstance(document, dict)
    return {"schema": SCHEMA, **document}


def reading_document(reading: ServerReading) -> dict[str, Any]:
    """One reading: ``scalars`` {family: [{labels, value}]}, ``histograms`` {family: [{labels, bounds, buckets, …}]}.

    ``buckets`` are cumulative, one per bound plus +Inf.
    """
    scalars: dict[str, list[dict[str, Any]]] = {}
    for ref, value in zip(reading.layout.scalars, reading.values, strict=True):
        scalars.setdefault(ref.family, []).append({"labels": dict(ref.labels), "value": _number(value)})
    histograms: dict[str, list[dict[str, Any]]] = {}
    for index, href in enumerate(reading.layout.histograms):
        histograms.setdefault(href.family, []).append(
            {
                "labels": dict(href.labels),
                "bounds": list(href.bounds),
                "buckets": [_number(count) for count in reading.buckets[index]],
                "sum": _number(reading.sums[index]),
            }
        )
    return {
        "model_names": list(reading.layout.model_names),
        "engines": list(reading.layout.engines),
        "engine_metrics": reading.layout.engine_metrics,
        "unmapped": list(reading.layout.unmapped),
        "notes": list(reading.layout.notes),
        "scalars": scalars,
        "histograms": histograms,
    }


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1 << 53 else value


def _plain(value: Any, readings: bool) -> Any:
    if isinstance(value, ServerReading):
        return reading_document(value) if readings else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _number(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), readings) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item, readings) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(_plain(item, readings) for item in value)
    if isinstance(value, Sequence):
        return [_plain(item, readings) for item in value]
    raise TypeError(f"no JSON form for {type(value).__name__}")
