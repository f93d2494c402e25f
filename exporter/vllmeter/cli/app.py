"""The command line: every command in one list."""

from __future__ import annotations

from typing import Annotated

import typer

from vllmeter import __version__
from vllmeter.cli import (
    assets,
    baseline,
    check,
    compare,
    demo,
    importing,
    init,
    record,
    replay,
    run,
    runs,
    serve,
    stack,
    top,
)

app = typer.Typer(
    name="vllmeter",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Observability for vLLM instances that share a GPU.",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"vllmeter {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Observability for vLLM instances that share a GPU."""


app.command("serve")(serve.serve)
app.command("check")(check.check)
app.command("init")(init.init)
app.command("demo")(demo.demo)
app.command("stack")(stack.stack)
app.command("top")(top.top)
app.command("record")(record.record)
app.command("replay")(replay.replay)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("import")(importing.import_)
app.command("runs")(runs.runs)
app.add_typer(baseline.app, name="baseline")
app.add_typer(assets.app, name="assets")


def main() -> None:
    """Entry point of the ``vllmeter`` command."""
    app()
