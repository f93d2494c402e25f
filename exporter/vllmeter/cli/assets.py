"""``vllmeter assets``: what the package carries for an existing Prometheus and Grafana."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Rules, alerts and dashboards that come with vllmeter.")

PARTS = ("prometheus", "alerts", "grafana")


def assets_root() -> Path:
    """Where the assets lie: inside the installed package, or in the checkout when run from one."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "assets"
    return packaged if packaged.is_dir() else package.parents[1]


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="Folder to write to; made when missing.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Writes Prometheus rules, alerts and Grafana dashboards to DIRECTORY.

    Exit code 1 when a file is there already (see --force) or cannot be written.
    """
    try:
        written = _write(directory, force)
    except OSError as error:
        typer.echo(f"{error.filename or directory}: cannot be written: {error.strerror}; name another folder", err=True)
        raise typer.Exit(1) from error
    if not written:
        typer.echo("this installation carries no assets; install the wheel or run from a checkout", err=True)
        raise typer.Exit(1)
    typer.echo(f"wrote {written} files to {directory}")
    typer.echo("  prometheus/prometheus.yml    scrape job; rule_files point to rules/ and ../alerts/")
    typer.echo("  prometheus/rules/            recording rules")
    typer.echo("  alerts/                      alerts and alertmanager.yml")
    typer.echo("  grafana/                     dashboards and provisioning")


def _write(directory: Path, force: bool) -> int:
    """Number of files written."""
    written = 0
    root = assets_root()
    for part in PARTS:
        for source, target in _files(root / part, directory / part):
            if target.exists() and not force:
                typer.echo(f"{target}: exists; use --force to overwrite", err=True)
                raise typer.Exit(1)
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as reader, target.open("wb") as writer:
                shutil.copyfileobj(reader, writer)
            written += 1
    return written


def _files(source: Path, target: Path) -> list[tuple[Path, Path]]:
    if not source.is_dir():
        return []
    found: list[tuple[Path, Path]] = []
    for item in sorted(source.iterdir(), key=lambda entry: entry.name):
        if item.name in ("source", "__pycache__"):
            continue
        if item.is_dir():
            found.extend(_files(item, target / item.name))
        elif item.name.endswith((".yml", ".yaml", ".json")):
            found.append((item, target / item.name))
    return found
