"""``vllmeter baseline``: which run later ones are compared with, in alerts and dashboards too."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from vllmeter.cli.runs import ConfigOption, StateOption, fail, open_store

app = typer.Typer(no_args_is_help=True, help="Set, show and clear the baseline of each server and scenario.")


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="Run name (all its repetitions) or id.")],
    server: Annotated[str | None, typer.Option("--server", "-s", help="Only this server.")] = None,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Makes a run, or several repetitions of one, the baseline of its server and scenario.

    Exit code 1 when there is no usable run of that name.
    """
    from vllmeter.runs.baseline import set_baseline
    from vllmeter.runs.model import FINISHED
    from vllmeter.runs.store import StoreError

    store = open_store(state, config)
    try:
        runs = store.find(name)
        usable = [run for run in runs if not run.invalid and run.state == FINISHED and run.exit_code in (None, 0)]
        for run in runs:
            if run not in usable:
                typer.echo(f"left out: {run.id} (invalid, unfinished or failed)", err=True)
        if not usable:
            fail(f"no usable run named {name}", 1)
        made = []
        for scenario in dict.fromkeys(run.scenario for run in usable):
            made += set_baseline(store, [run for run in usable if run.scenario == scenario], server)
    except StoreError as error:
        fail(str(error), 1)
    for each in made:
        typer.echo(
            f"baseline of {each.baseline.server}, {each.baseline.scenario}: {len(each.run_ids)} run(s) of {name}"
        )
        if len(each.run_ids) < 2:
            typer.echo("  one run has no run-to-run spread: set it from --repeat 3 to let compare judge single runs")
    typer.echo("a running exporter shows it after a reload (SIGHUP or POST /-/reload)")


@app.command()
def show(config: ConfigOption = None, state: StateOption = None) -> None:
    """Lists the baselines."""
    from rich.console import Console
    from rich.table import Table

    from vllmeter.runs.baseline import load_stored
    from vllmeter.runs.report.values import NOTHING, number
    from vllmeter.runs.store import StoreError

    store = open_store(state, config)
    try:
        stored = load_stored(store.state)
    except StoreError as error:
        fail(str(error), 1)
    if not stored:
        typer.echo(f"no baselines in {store.state}; set one with `vllmeter baseline set RUN`")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in (
        "server",
        "scenario",
        "run",
        "runs",
        "TTFT mean",
        "TTFT p95",
        "e2e mean",
        "tokens/s",
        "from",
        "set (UTC)",
    ):
        table.add_column(title)
    for each in stored:
        one = each.baseline

        def seconds(values: object, stat: str) -> str:
            assert hasattr(values, "get")
            value = values.get(stat)
            return NOTHING if value is None else number(value, "s")

        table.add_row(
            one.server,
            one.scenario,
            one.run,
            str(len(each.run_ids)),
            seconds(one.ttft, "mean"),
            seconds(one.ttft, "p95"),
            seconds(one.e2e, "mean"),
            NOTHING if one.throughput is None else number(one.throughput, "tokens/s"),
            each.source,
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(one.recorded)),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command()
def clear(
    server: Annotated[str | None, typer.Option("--server", "-s", help="Only this server.")] = None,
    scenario: Annotated[str | None, typer.Option("--scenario", help="Only this scenario.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All baselines.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Removes baselines; the runs stay."""
    from vllmeter.runs.baseline import clear_baselines
    from vllmeter.runs.store import StoreError

    if server is None and scenario is None and not all_:
        fail("name --server and/or --scenario, or --all")
    store = open_store(state, config)
    try:
        typer.echo(f"removed {clear_baselines(store.state, server, scenario)} baselines")
    except StoreError as error:
        fail(str(error), 1)
