"""``vllmeter compare``: did the change help?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from vllmeter.cli.runs import ConfigOption, StateOption, fail, open_store

FORMATS = ("terminal", "markdown", "json", "html")
REGRESSION_EXIT = 4


def compare(
    names: Annotated[list[str], typer.Argument(help="Baseline first, then candidates: run names or ids.")],
    output_format: Annotated[
        str, typer.Option("--format", "-f", help="terminal, markdown, json or html.")
    ] = "terminal",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of the terminal.")
    ] = None,
    server: Annotated[str | None, typer.Option("--server", "-s", help="Only this server.")] = None,
    scenario: Annotated[str | None, typer.Option("--scenario", help="Only this scenario.")] = None,
    effect: Annotated[float, typer.Option("--effect", help="Smallest relevant effect in percent.")] = 5.0,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Metric that decides, such as client.ttft_p95. Repeatable.")
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option("--fail-on", help="regression: exit code 4 when a candidate is worse.")
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Compares runs: numbers side by side, what changed besides, and a verdict where the evidence allows one.

    Exit code 1 when a run cannot be found or read, 2 for a mistake in the options, 4 for --fail-on regression.
    """
    from vllmeter.runs.compare import compare as make
    from vllmeter.runs.store import StoreError

    if output_format not in FORMATS:
        fail(f"--format {output_format}: use {', '.join(FORMATS)}")
    if fail_on not in (None, "regression"):
        fail(f"--fail-on {fail_on}: use regression")
    if not 0 < effect < 100:
        fail(f"--effect {effect}: use percent above 0 and below 100")
    store = open_store(state, config)
    try:
        found = make(store, names, server=server, scenario=scenario, relevant=effect / 100, metrics=metric or ())
    except StoreError as error:
        fail(str(error), 1)
    except ImportError as error:
        fail(f"compare needs numpy ({error}): install vllmeter again with its dependencies", 1)
    if output_format == "terminal":
        from rich.console import Console

        from vllmeter.runs.report.terminal import show

        if output is None:
            show(found, Console(width=None if sys.stdout.isatty() else 160))
        else:
            try:
                with output.open("w", encoding="utf-8") as file:
                    show(found, Console(file=file, width=160))
            except OSError as error:
                fail(f"{output}: cannot be written ({error.strerror or error}): name another file", 1)
    else:
        _write(_text(found, output_format), output)
    if fail_on == "regression" and found.regression:
        raise typer.Exit(REGRESSION_EXIT)


def _text(found: object, output_format: str) -> str:
    from vllmeter.runs.compare import Comparison

    assert isinstance(found, Comparison)
    if output_format == "markdown":
        from vllmeter.runs.report.markdown import markdown

        return markdown(found)
    if output_format == "json":
        from vllmeter.runs.report.document import document

        return json.dumps(document(found), indent=1, allow_nan=False) + "\n"
    from vllmeter.runs.report.html import html

    return html(found)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{output}: cannot be written ({error.strerror or error}): name another file", 1)
    typer.echo(f"wrote {output}", err=True)
