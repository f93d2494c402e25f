"""``vllmeter runs``: what is stored; and what the run commands share."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from vllmeter.runs.store import RunStore, StoredRun

StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="State folder; default: state_dir of the configuration, VLLMETER_STATE, XDG."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file; default vllmeter.yaml when it is here.")
]


def fail(message: str, code: int = 2) -> NoReturn:
    """One line on standard error, then the exit code."""
    typer.echo(message, err=True)
    raise typer.Exit(code)


def open_store(state: Path | None, config: Path | None) -> RunStore:
    """The store: --state, else state_dir of the configuration, else the default of this user."""
    from vllmeter.cli.serve import DEFAULT_CONFIG, read_settings
    from vllmeter.runs.store import RunStore

    if state is None:
        path = config if config is not None else DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None
        if path is not None:
            state = read_settings(path, None).state_dir
    store = RunStore(state)
    if store.state.exists() and not store.state.is_dir():
        fail(f"{store.state}: is no folder: give the state folder with --state or VLLMETER_STATE")
    return store


def runs(
    name: Annotated[str | None, typer.Argument(help="Only runs of this name.")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Remove runs by --older and/or --keep-size.")] = False,
    older: Annotated[str | None, typer.Option("--older", help="With --prune: older than 30d, 12h.")] = None,
    keep_size: Annotated[
        str | None, typer.Option("--keep-size", help="With --prune: remove the oldest until all fit in 500MB, 2GiB.")
    ] = None,
    delete: Annotated[str | None, typer.Option("--delete", help="Remove the run with this id.")] = None,
    close: Annotated[
        str | None, typer.Option("--close", help="Close the run with this id whose process was killed.")
    ] = None,
    show: Annotated[str | None, typer.Option("--show", help="Print run.json of the run with this id.")] = None,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Lists stored runs, oldest first; removes them on request. Runs of baselines are never pruned.

    Exit code 1 when there is no such run, 2 for a mistake in the options.
    """
    from vllmeter.runs.baseline import load_stored
    from vllmeter.runs.store import StoreError

    store = open_store(state, config)
    try:
        if delete is not None:
            store.delete(delete)
            typer.echo(f"removed {delete}")
            return
        if close is not None:
            closed = store.close_interrupted(close)
            typer.echo(f"closed {close} after {(closed.ended or 0.0) - closed.started:.0f} s")
            return
        if show is not None:
            path = store.folder / show / "run.json"
            if "/" in show or not path.is_file():
                fail(f"no run with the id {show!r} in {store.folder}", 1)
            typer.echo(path.read_text("utf-8"))
            return
        if prune:
            if older is None and keep_size is None:
                fail("--prune needs --older and/or --keep-size")
            kept = {each for baseline in load_stored(store.state) for each in baseline.run_ids}
            removed = store.prune(
                now=time.time(),
                older=None if older is None else _age(older),
                keep_bytes=None if keep_size is None else _size(keep_size),
                keep=kept.__contains__,
            )
            typer.echo(f"removed {len(removed)} runs, {sum(each.bytes for each in removed) / 1e6:.1f} MB")
            return
        _list(store, [each for each in store.all() if name is None or (each.run is not None and each.run.name == name)])
    except StoreError as error:
        fail(str(error), 1)


def _list(store: RunStore, found: list[StoredRun]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    if not found:
        console.print(f"no runs in {store.folder}; record one with `vllmeter run NAME -- COMMAND`", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("id", "name", "scenario", "server", "started (UTC)", "took", "exit", "size", "state"):
        table.add_column(title, justify="right" if title in ("took", "exit", "size") else "left", no_wrap=title == "id")
    for each in found:
        run = each.run
        size = f"{each.bytes / 1e6:.1f} MB" if each.bytes >= 1e5 else f"{each.bytes / 1e3:.0f} kB"
        if run is None:
            table.add_row(each.id, "", "", "", "", "", "", size, "damaged")
            continue
        took = "" if run.ended is None else f"{run.ended - run.started:.0f} s"
        state = "invalid" if run.invalid else run.state
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run.started))
        code = "" if run.exit_code is None else str(run.exit_code)
        level = f" {run.level}" if run.level else ""
        table.add_row(run.id, run.name + level, run.scenario, run.server or "all", started, took, code, size, state)
    console.print(table)
    for each in found:
        if each.problem:
            typer.echo(f"{each.id}: {each.problem}", err=True)
        elif each.run is not None:
            for reason in each.run.invalid:
                typer.echo(f"{each.id}: invalid: {reason}", err=True)
    console.print(
        f"{len(found)} runs, {sum(each.bytes for each in found) / 1e6:.1f} MB in {store.folder}", soft_wrap=True
    )


def _age(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|d|w)", text.strip())
    if not match:
        fail(f"--older {text}: use for example 12h, 30d, 8w")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}[match[2]]


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?i?B?)", text.strip())
    factors = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    factors |= {"KiB": 2**10, "kiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    if not match or match[2] not in factors:
        fail(f"--keep-size {text}: use for example 500MB or 2GiB")
    return int(float(match[1]) * factors[match[2]])
