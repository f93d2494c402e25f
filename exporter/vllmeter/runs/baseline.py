"""Baselines: one or more runs that later runs, dashboards and alerts compare with; per server and scenario.

They are kept in ``<state>/baselines.json`` and hold all numbers they need: removing the runs keeps the baseline.
TTFT and e2e are the server's own (what the alerts compare with): ``mean`` is exact, ``p50`` and ``p95`` are the upper
bounds that the buckets allow, so that a value above them is truly above.  Client values are used only where the run has
no server samples.  Several runs also give a run-to-run spread, which lets ``compare`` judge single runs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vllmeter.runs.measures import Measure, Side, client_side, server_side
from vllmeter.runs.model import FINISHED, Run, to_json
from vllmeter.runs.store import RunStore, StoreError, disk_message, load_document, write_atomic
from vllmeter.runs.verdict import Spread
from vllmeter.snapshot import Baseline

log = logging.getLogger("vllmeter.runs")

FILE: Final = "baselines.json"
SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class StoredBaseline:
    """A baseline with what ``compare`` needs beyond the exported numbers."""

    baseline: Baseline
    run_ids: tuple[str, ...] = ()
    source: str = "server"
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """metric id -> run-to-run spread of ln(value)"""


def load_baselines(state_dir: Path) -> tuple[Baseline, ...]:
    """What the exporter shows.  A damaged file is logged with what to do and gives none: it must not stop serving."""
    try:
        return tuple(each.baseline for each in load_stored(state_dir))
    except StoreError as error:
        log.warning("no baselines: %s", error)
        return ()


def load_stored(state_dir: Path) -> tuple[StoredBaseline, ...]:
    """All baselines, in order of server and scenario.  Raises :class:`StoreError` for a damaged file."""
    path = state_dir / FILE
    document = load_document(path)
    if document is None:
        return ()
    try:
        if document["schema"] > SCHEMA:
            raise StoreError(
                f"{path} has schema {document['schema']}, this vllmeter reads {SCHEMA}: use a newer vllmeter"
            )
        found = [_from_json(each) for each in document["baselines"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"{path} is damaged ({type(error).__name__}: {error}): move it away and set the baselines again"
        ) from error
    return tuple(sorted(found, key=lambda each: (each.baseline.server, each.baseline.scenario)))


def _from_json(data: Any) -> StoredBaseline:
    return StoredBaseline(
        Baseline(
            server=str(data["server"]),
            scenario=str(data["scenario"]),
            run=str(data["run"]),
            recorded=float(data["recorded"]),
            ttft={str(key): float(value) for key, value in data.get("ttft", {}).items()},
            e2e={str(key): float(value) for key, value in data.get("e2e", {}).items()},
            throughput=None if data.get("throughput") is None else float(data["throughput"]),
        ),
        run_ids=tuple(data.get("run_ids", ())),
        source=str(data.get("source", "server")),
        spreads={
            key: Spread(float(each["deviation"]), int(each["freedom"])) for key, each in data.get("spreads", {}).items()
        },
    )


def _save(state_dir: Path, baselines: Sequence[StoredBaseline]) -> None:
    import json

    document = {
        "schema": SCHEMA,
        "baselines": [
            {
                **to_json(each.baseline),
                "run_ids": list(each.run_ids),
                "source": each.source,
                "spreads": to_json(each.spreads),
            }
            for each in baselines
        ],
    }
    path = state_dir / FILE
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document, indent=1).encode())
    except OSError as error:
        raise StoreError(disk_message(error, path)) from error


def set_baseline(store: RunStore, runs: Sequence[Run], server: str | None = None) -> list[StoredBaseline]:
    """Makes ``runs`` (repetitions of one test) the baseline of their server and scenario; returns what was set.

    Raises :class:`StoreError` when a run is invalid, unfinished, or measured nothing on that server.
    """
    for run in runs:
        if run.invalid:
            raise StoreError(f"run {run.id} is invalid ({run.invalid[0]}): it cannot be a baseline")
        if run.state != FINISHED:
            raise StoreError(f"run {run.id} is {run.state}: only a finished run can be a baseline")
    scenarios = {run.scenario for run in runs}
    if len(scenarios) > 1:
        raise StoreError(
            f"the runs have different scenarios ({', '.join(sorted(scenarios))}): set one baseline per scenario"
        )
    servers = {server} if server else set(servers_of(runs))
    made = []
    for name in sorted(servers):
        one = _measure(store, runs, name)
        if one is not None:
            made.append(one)
    if not made:
        which = f"server {server!r}" if server else "any server"
        raise StoreError(f"the runs hold no first token on {which}: nothing to take a baseline from")
    keys = {(each.baseline.server, each.baseline.scenario) for each in made}
    kept = [each for each in load_stored(store.state) if (each.baseline.server, each.baseline.scenario) not in keys]
    _save(store.state, sorted([*kept, *made], key=lambda each: (each.baseline.server, each.baseline.scenario)))
    return made


def servers_of(runs: Sequence[Run]) -> list[str]:
    """Names of the servers that runs are about: the one they name, else all that were configured."""
    named = sorted({run.server for run in runs if run.server})
    return named or sorted({name for run in runs for name in run.before})


def clear_baselines(state_dir: Path, server: str | None = None, scenario: str | None = None) -> int:
    """Removes baselines (all, or of one server and/or scenario); returns how many."""
    stored = load_stored(state_dir)
    kept = [
        each
        for each in stored
        if (server is not None and each.baseline.server != server)
        or (scenario is not None and each.baseline.scenario != scenario)
    ]
    if len(kept) != len(stored):
        _save(state_dir, kept)
    return len(stored) - len(kept)


def _measure(store: RunStore, runs: Sequence[Run], server: str) -> StoredBaseline | None:
    sides: list[tuple[Side, Side]] = []
    for run in runs:
        samples, _ = store.samples(run.id)
        sides.append((server_side(run, samples, server), client_side(run, store.results(run.id))))
    from_server = all("ttft_mean" in server_part.measures for server_part, _ in sides)
    chosen = [server_part if from_server else client for server_part, client in sides]
    # Client results belong to the server that was under load: with several servers nobody knows which.
    mine = servers_of(runs) in ([server], [])
    if not from_server and not (mine and all("ttft_mean" in each.measures for each in chosen)):
        return None
    baseline = Baseline(
        server=server,
        scenario=runs[0].scenario,
        run=runs[0].name,
        recorded=time.time(),
        ttft=_stats(chosen, "ttft"),
        e2e=_stats(chosen, "e2e"),
        throughput=_mean([each.measures.get("output_rate") for each in chosen]),
    )
    return StoredBaseline(
        baseline, tuple(run.id for run in runs), "server" if from_server else "client", _spreads(sides)
    )


def _stats(sides: Sequence[Side], name: str) -> dict[str, float]:
    found = {}
    for stat in ("mean", "p50", "p95"):
        value = _mean([side.measures.get(f"{name}_{stat}") for side in sides])
        if value is not None:
            found[stat] = value
    return found


def _mean(measures: Sequence[Measure | None]) -> float | None:
    values = []
    for each in measures:
        value = None if each is None else (each.high if each.high is not None else each.value)
        if value is None:
            return None
        values.append(value)
    return sum(values) / len(values) if values else None


def _spreads(sides: Sequence[tuple[Side, Side]]) -> dict[str, Spread]:
    """Run-to-run spread of ln(value) of each judged metric; {} for a single run."""
    if len(sides) < 2:
        return {}
    found = {}
    for side_name, index in (("server", 0), ("client", 1)):
        for key in sides[0][index].measures:
            each = [side[index].measures.get(key) for side in sides]
            logs = [math.log(one.judged.value) for one in each if one is not None and one.judged is not None]
            if len(logs) == len(sides):
                mean = sum(logs) / len(logs)
                variance = sum((log_value - mean) ** 2 for log_value in logs) / (len(logs) - 1)
                found[f"{side_name}.{key}"] = Spread(math.sqrt(variance), len(logs) - 1)
    return found
