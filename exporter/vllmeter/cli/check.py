"""``vllmeter check``: is the configuration right, can everything be read, do the budgets fit?  Exit code for CI."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllmeter.cli.check_table import check_document, render_check
from vllmeter.cli.serve import DEFAULT_CONFIG, read_settings
from vllmeter.config.settings import Settings
from vllmeter.memory.findings import Evidence, Finding, ordered, snapshot_findings, worst
from vllmeter.snapshot import Snapshot

if TYPE_CHECKING:  # imported when it is needed: heavy
    from vllmeter.discovery.source import DiscoverySource
    from vllmeter.wiring import Exporter

SETTLE = 2.5
"""Seconds after everything answered once: two ticks of NVML and of every server."""


def check(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Configuration file; default vllmeter.yaml, else find vLLM on this host."),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for servers at most.", min=1.0)] = 15.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Add origins, states, PIDs, settings and logs.")
    ] = False,
) -> None:
    """Checks configuration, endpoints, NVML and budgets; prints one table per GPU and what to do.

    Exit codes: 0 nothing wrong, 1 an error was found (with --strict also a warning), 2 the configuration is invalid.
    """
    if format not in ("table", "json"):
        typer.echo(f"--format {format}: use table or json", err=True)
        raise typer.Exit(2)
    path = config if config is not None else DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None
    settings = read_settings(path, None)
    snapshot, evidence = collect(settings, path, wait=wait)
    findings = ordered([*snapshot_findings(snapshot, evidence), *nothing_found(snapshot, path)])
    if format == "json":
        typer.echo(json.dumps(check_document(snapshot, findings, startups=evidence.startups), indent=2))
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        typer.echo(
            render_check(snapshot, findings, startups=evidence.startups, colour=colour, verbose=verbose), nl=False
        )
    raise typer.Exit(exit_code(findings, strict=strict))


def exit_code(findings: tuple[Finding, ...], *, strict: bool) -> int:
    """1 when something is wrong: an error, or with ``strict`` a warning; information never is."""
    return int(worst(findings) in (("error", "warning") if strict else ("error",)))


def nothing_found(snapshot: Snapshot, path: Path | None) -> list[Finding]:
    """A check without any server is no success."""
    if snapshot.servers:
        return []
    where = f"{path} lists no server" if path is not None else "no vllmeter.yaml here"
    return [
        Finding(
            "no-servers",
            "error",
            f"{where} and no `vllm serve` process was found on this host",
            "write one with `vllmeter init --from-compose FILE` or `--from-processes`",
        )
    ]


def with_budgets(evidence: Evidence, settings: Settings) -> Evidence:
    """The evidence with the budgets of the configuration: servers that do not run yet are judged by them."""
    budgets = {server.name: server.budget for server in settings.servers if server.budget is not None}
    return replace(
        evidence,
        fractions={name: budget.fraction for name, budget in budgets.items() if budget.fraction is not None},
        sizes={name: float(budget.bytes) for name, budget in budgets.items() if budget.bytes is not None},
    )


def collect(settings: Settings, path: Path | None, *, wait: float) -> tuple[Snapshot, Evidence]:
    """Runs the exporter's own sampling for a few seconds: what ``serve`` would see is what is checked."""
    from vllmeter.wiring import Exporter, build_discovery

    # What these would log is a finding, and told there with its remedy.
    with at_level(logging.ERROR, "vllmeter.gpu", "vllmeter.sampler", "vllmeter.scrape"):
        return _sampled(Exporter(settings, config_path=path), settings, build_discovery(settings), wait=wait)


@contextmanager
def at_level(level: int, *names: str) -> Iterator[None]:
    """These loggers drop what is below ``level``."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.setLevel(old)


def _sampled(
    exporter: Exporter, settings: Settings, discovery: Sequence[DiscoverySource], *, wait: float
) -> tuple[Snapshot, Evidence]:
    exporter.adopt([(source.name, source.find()) for source in discovery])
    exporter.start()
    try:
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and not exporter.ready()[0]:
            time.sleep(0.05)
        time.sleep(min(SETTLE, max(0.0, deadline - time.monotonic())))
        evidence = replace(exporter.store.evidence(), unread_logs=exporter.unread_logs())
        return exporter.snapshot(), with_budgets(evidence, settings)
    finally:
        exporter.stop()
