"""The run commands as an application of their own, for tests."""

from __future__ import annotations

import typer

from vllmeter.cli import baseline, compare, importing, run, runs

app = typer.Typer(pretty_exceptions_enable=False)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("import")(importing.import_)
app.command("runs")(runs.runs)
app.add_typer(baseline.app, name="baseline")

if __name__ == "__main__":
    app()
