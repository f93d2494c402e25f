"""``vllmeter import``: a result file of a load-test tool, or a phase of a recording, as a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllmeter.cli.runs import ConfigOption, StateOption, fail, open_store

if TYPE_CHECKING:
    from vllmeter.runs.store import RunStore


def import_(
    file: Annotated[
        Path, typer.Argument(help="Result file of vllm bench, guidellm, aiperf, k6 or locust; or a .vmrec.")
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name of the run; default: the file's name.")] = None,
    scenario: Annotated[str, typer.Option("--scenario", help="short, medium, long or any word.")] = "default",
    server: Annotated[str, typer.Option("--server", "-s", help="Server that was under load.")] = "",
    run: Annotated[str | None, typer.Option("--run", help="Id of a stored run that these results belong to.")] = None,
    phase: Annotated[str | None, typer.Option("--phase", help="Recordings: which phase to import.")] = None,
    client: Annotated[Path | None, typer.Option("--client", help="Recordings: result file of that phase.")] = None,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Stores a result file as a run of its own, or adds it to one (--run).

    Exit code 1 when a file or run cannot be used, 2 for a mistake in the options.
    """
    from vllmeter.recording.format import SUFFIX, RecordingError
    from vllmeter.runs.results import ResultFileError
    from vllmeter.runs.store import StoreError

    store = open_store(state, config)
    try:
        if file.name.endswith(SUFFIX):
            _recording(store, file, name, scenario, server, phase, client)
        else:
            _results(store, file, name, scenario, server, run)
    except (ResultFileError, StoreError, RecordingError) as error:
        fail(str(error), 1)


def stem(file: Path) -> str:
    """The file's name without its endings, made fit for a run name."""
    text = re.sub(r"(\.(json|jsonl|ndjson|csv|gz|vmrec))+$", "", file.name)
    return re.sub(r"[^A-Za-z0-9._:/ -]+", "-", text).strip("-. ")[:100] or "run"


def _results(store: RunStore, file: Path, name: str | None, scenario: str, server: str, run: str | None) -> None:
    from vllmeter.runs.importers import read_result
    from vllmeter.runs.model import FINISHED, Run

    results = read_result(file)
    if run is not None:
        found = store.find(run)
        if len(found) > 1:
            fail(f"{run} names {len(found)} runs: give the id of one")
        store.save_results(found[0].id, results)
        typer.echo(f"added {results[0].tool} results to {found[0].id}")
        return
    for result in results:
        label = scenario if len(results) == 1 else re.sub(r"[^A-Za-z0-9_.:/ -]+", "-", result.label) or scenario
        started = min((each.started for each in result.requests if each.started is not None), default=None)
        # a monotonic clock (vllm bench) says nothing about the date: then the file's own time counts
        when = started if started is not None and started > 1e9 else file.stat().st_mtime
        made = store.create(
            Run(
                id="",
                name=name or stem(file),
                scenario=label,
                server=server,
                state=FINISHED,
                started=when,
                ended=when + (result.duration or 0.0),
                notes=(f"imported from {file.name}",),
            )
        )
        store.save_results(made.id, (result,))
        store.save(made)
        typer.echo(f"{made.id}: {result.tool}, {result.completed if result.completed is not None else '?'} requests")
        for note in result.notes:
            typer.echo(f"  {note}")


def _recording(
    store: RunStore,
    file: Path,
    name: str | None,
    scenario: str,
    server: str,
    phase: str | None,
    client: Path | None,
) -> None:
    from vllmeter.runs import recorded
    from vllmeter.runs.importers import read_result

    found = recorded.phases(file)
    chosen = next((each for each in found if each[0] == phase), None)
    if chosen is None:
        names = ", ".join(each[0] for each in found) or "none"
        fail(f"{file}: choose a phase with --phase; it has: {names}")
    results = read_result(client) if client is not None else ()
    made = recorded.import_phase(
        store,
        list(recorded.samples(file)),
        chosen,
        name=name or stem(file),
        scenario=scenario,
        server=server,
        results=results,
        source=f"recording {file.name}",
    )
    typer.echo(f"{made.id}: phase {phase}, {(made.ended or 0) - made.started:.0f} s")
