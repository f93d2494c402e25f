"""``vllmeter run``: wraps a load test and records what the servers did meanwhile."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllmeter.cli.exporter_options import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    PasswordFileOption,
    ServerNameOption,
    TokenFileOption,
    UrlOption,
    UsernameOption,
    access_from,
    own_address,
)
from vllmeter.cli.runs import ConfigOption, StateOption, fail, open_store
from vllmeter.memory.argv import mask_text

if TYPE_CHECKING:
    from vllmeter.runs.sources import Announcer, SampleSource
    from vllmeter.runs.store import RunStore

SCENARIO = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/ -]{0,59}")
INVALID_EXIT = 3

AccessOptions = tuple[Path | None, Path | None, Path | None, str | None, str | None, Path | None, Path | None]
"""--ca-file, --cert-file, --key-file, --server-name, --username, --password-file, --token-file"""


@dataclass(frozen=True, slots=True)
class Step:
    """One repetition of one candidate and load."""

    name: str
    scenario: str
    command: tuple[str, ...]
    setup: str
    repetition: int


def run(
    name: Annotated[str, typer.Argument(help="Name of the run; repetitions share it.")],
    command: Annotated[list[str] | None, typer.Argument(help="The load test, after --")] = None,
    server: Annotated[str, typer.Option("--server", "-s", help="Server under load; default: all.")] = "",
    scenario: Annotated[str, typer.Option("--scenario", help="short, medium, long or any word.")] = "default",
    warmup: Annotated[
        str | None, typer.Option("--warmup", help="What to leave out at the start: 20s, 2m or a number of requests.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Repetitions; candidates take turns.")] = 1,
    level: Annotated[str | None, typer.Option("--level", help="L1 server, L2 business flow, L3 functional.")] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option("--candidate", help="LABEL=SETUP: run SETUP, wait for the server, then the load. Repeatable."),
    ] = None,
    load: Annotated[
        list[str] | None, typer.Option("--load", help="SCENARIO=COMMAND, instead of the command after --. Repeatable.")
    ] = None,
    results: Annotated[
        list[Path] | None, typer.Option("--results", help="Result file of the tool; default: new files that are known.")
    ] = None,
    ready_timeout: Annotated[float, typer.Option("--ready-timeout", help="Seconds to wait after a SETUP.")] = 600.0,
    pause: Annotated[float, typer.Option("--pause", help="Seconds between repetitions.")] = 3.0,
    exporter: UrlOption = None,
    grafana: Annotated[
        str | None, typer.Option("--grafana", envvar="VLLMETER_GRAFANA_URL", help="Grafana to annotate.")
    ] = None,
    grafana_ca_file: Annotated[
        Path | None,
        typer.Option(
            "--grafana-ca-file",
            envvar="VLLMETER_GRAFANA_CA_FILE",
            help="CA that signed Grafana's certificate; default: the public ones.",
        ),
    ] = None,
    config: ConfigOption = None,
    state: StateOption = None,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
    server_name: ServerNameOption = None,
    username: UsernameOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """Runs a load test and records every server beside it.

    Samples come from the running exporter (default: where vllmeter.yaml lets it listen); without one, they are taken
    here. With several --candidate the repetitions take turns: A B C, C B A, A B C. The token for --grafana is read from
    VLLMETER_GRAFANA_TOKEN. The exit code is that of the load test; 3 when a run is invalid, 2 for a mistake in the
    options, 1 when the exporter cannot be used or nothing can be stored; 130 when it was stopped.
    """
    from vllmeter.runs.model import LEVELS
    from vllmeter.runs.store import StoreError, check_name

    if level is not None and level not in LEVELS:
        fail(f"--level {level}: use L1, L2 or L3")
    try:
        check_name(name)
    except StoreError as error:
        fail(str(error))
    seconds, requests = parse_warmup(warmup)
    steps = plan_steps(name, tuple(command or ()), scenario, repeat, tuple(candidate or ()), tuple(load or ()))
    store = open_store(state, config)
    announcers: list[Announcer] = []
    if grafana:
        from vllmeter.remote import GRAFANA_TOKEN_VARIABLE, AccessError

        token = os.environ.get(GRAFANA_TOKEN_VARIABLE, "")
        if not token:
            fail(f"--grafana needs a token in {GRAFANA_TOKEN_VARIABLE}")
        from vllmeter.runs.sources import GrafanaAnnouncer

        try:
            announcers.append(GrafanaAnnouncer(grafana, token, grafana_ca_file))
        except AccessError as error:
            fail(str(error))
    access = (ca_file, cert_file, key_file, server_name, username, password_file, token_file)
    with _source(exporter, config, announcers, access) as source:
        code = _run_all(
            steps, store, source, announcers, server, level, seconds, requests, results, ready_timeout, pause
        )
    raise typer.Exit(code)


def _run_all(
    steps: Sequence[Step],
    store: RunStore,
    source: SampleSource,
    announcers: Sequence[Announcer],
    server: str,
    level: str | None,
    warmup_seconds: float | None,
    warmup_requests: int | None,
    results: Sequence[Path] | None,
    ready_timeout: float,
    pause: float,
) -> int:
    from vllmeter.runs.sources import SourceError
    from vllmeter.runs.store import StoreError
    from vllmeter.runs.wrap import Plan, record

    session = secrets.token_hex(4) if len(steps) > 1 else ""
    code = 0
    for position, step in enumerate(steps, start=1):
        if len(steps) > 1:
            typer.echo(f"[{position}/{len(steps)}] {step.name} {step.scenario}, repetition {step.repetition}", err=True)
        if step.setup:
            _prepare(step, source, server, ready_timeout)
        plan = Plan(
            name=step.name,
            command=step.command,
            scenario=step.scenario,
            server=server,
            level=level,
            warmup_seconds=warmup_seconds,
            warmup_requests=warmup_requests,
            repetition=step.repetition,
            session=session,
            position=position,
            results=tuple(results) if results else None,
        )
        try:
            outcome = record(plan, store, source, announcers)
        except (SourceError, StoreError) as error:
            fail(str(error), 1)
        code = code or _report(outcome.run.id, outcome.run.exit_code, outcome.run.invalid, outcome.messages)
        if outcome.stopped:
            return code or 130
        if position < len(steps) and pause > 0:
            time.sleep(pause)
    return code


def _report(run_id: str, exit_code: int | None, invalid: Sequence[str], messages: Sequence[str]) -> int:
    for message in messages:
        typer.echo(f"note: {message}", err=True)
    for reason in invalid:
        typer.echo(f"invalid: {reason}", err=True)
    typer.echo(f"run {run_id} stored, exit code {exit_code}", err=True)
    return exit_code or (INVALID_EXIT if invalid else 0)


def parse_warmup(text: str | None) -> tuple[float | None, int | None]:
    """("20s" -> (20.0, None), "100" -> (None, 100), None -> (None, None)); ends with exit code 2 otherwise."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m)", text.strip())
    if match:
        return float(match[1]) * (60 if match[2] == "m" else 1), None
    if not text.strip().isdigit():
        fail(f"--warmup {text}: use seconds (20s), minutes (2m) or a number of requests (100)")
    return None, int(text)


def plan_steps(
    name: str, command: tuple[str, ...], scenario: str, repeat: int, candidates: Sequence[str], loads: Sequence[str]
) -> list[Step]:
    """All repetitions in the order in which they run.

    Candidates take turns and the order is reversed every round (A B C, C B A, …): a drift over time then falls on all
    of them alike.
    """
    if bool(command) == bool(loads):
        fail("give the load test either after -- or as --load SCENARIO=COMMAND")
    tests = [_split(each, "--load") for each in loads] or [(scenario, "")]
    setups = [_split(each, "--candidate") for each in candidates] or [("", "")]
    for word in [test for test, _ in tests] + [label for label, _ in setups if label]:
        if not SCENARIO.fullmatch(word):
            fail(f"{word!r}: letters, digits and _ . : / - or spaces, beginning with a letter or digit, at most 60")
    steps = []
    for repetition in range(1, repeat + 1):
        order = setups if repetition % 2 else list(reversed(setups))
        for label, setup in order:
            for number, (test, line) in enumerate(tests if repetition % 2 else list(reversed(tests))):
                words = command or tuple(shlex.split(line))
                if not words:
                    fail(f"--load {test}=: the command is empty")
                full = f"{name}-{label}" if label else name
                steps.append(Step(full, test, words, setup if number == 0 else "", repetition))
    return steps


def _split(text: str, option: str) -> tuple[str, str]:
    label, equals, rest = text.partition("=")
    if not equals or not label.strip():
        fail(f"{option} {text}: write it as NAME=COMMAND")
    return label.strip(), rest.strip()


def _prepare(step: Step, source: SampleSource, server: str, timeout: float) -> None:
    """Runs the set-up of a candidate and waits until the server (all servers) answers again."""
    from vllmeter.remote import without_secrets
    from vllmeter.runs.sources import SourceError

    typer.echo(f"set-up: {mask_text(step.setup)}", err=True)
    begun = time.time()
    # the user's own command line, as typed: it may use pipes and variables
    code = subprocess.run(step.setup, shell=True, check=False, env=without_secrets(os.environ)).returncode  # noqa: S602
    if code:
        fail(f"the set-up of {step.name} failed with exit code {code}: nothing is compared", code)
    deadline = time.monotonic() + timeout
    steady = 0
    missing = "the exporter"
    while time.monotonic() < deadline:
        try:
            sample = source.sample()
        except SourceError:
            steady = 0
        else:
            wanted = {server: sample.servers.get(server)} if server else dict(sample.servers)
            waiting = [key for key, each in wanted.items() if each is None or each.wall is None or each.wall < begun]
            missing = ", ".join(waiting)
            steady = 0 if waiting else steady + 1
            if steady >= 3:
                return
        time.sleep(1.0)
    fail(f"after the set-up of {step.name}, {missing} did not answer within {timeout:.0f} s", 1)


@contextmanager
def _source(
    exporter: str | None, config: Path | None, announcers: list[Announcer], options: AccessOptions
) -> Iterator[SampleSource]:
    """The running exporter, else sampling by this process.

    An exporter that is there but does not let us in is not passed over: its page and its alerts would not know of
    the run.
    """
    from vllmeter.cli.serve import DEFAULT_CONFIG, read_settings
    from vllmeter.remote import RemoteError, RemoteExporter
    from vllmeter.runs.sources import ExporterSource, SnapshotSource, SourceError

    path = config if config is not None else DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None
    settings = read_settings(path, None)
    access = access_from(exporter or own_address(settings), *options)
    url = access.url
    remote = ExporterSource(RemoteExporter(access))
    try:
        remote.sample()
    except SourceError as error:
        kind = error.__cause__.kind if isinstance(error.__cause__, RemoteError) else "refused"
        if exporter is not None:
            leave = "; or leave --exporter (VLLMETER_URL) out to sample here" if kind == "absent" else ""
            fail(f"{error}{leave}", 1)
        if kind in ("tls", "credentials"):
            fail(str(error), 1)
        note = f"no exporter at {url}" if kind == "absent" else str(error)
    else:
        announcers.insert(0, remote)
        yield remote
        return
    from vllmeter.discovery.discoverer import Discoverer
    from vllmeter.wiring import Exporter, build_discovery

    typer.echo(f"{note}: sampling here", err=True)
    local = Exporter(settings, config_path=path)
    discoverer = Discoverer(build_discovery(settings), local.adopt)
    local.start()
    discoverer.start()
    try:
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline and not (local.ready()[0] and local.snapshot().servers):
            time.sleep(0.2)
        if not local.snapshot().servers:
            fail(
                "no vLLM server found: name them in vllmeter.yaml, or start `vllmeter serve` and use --exporter URL", 1
            )
        time.sleep(1.2)
        yield SnapshotSource(local.snapshot)
    finally:
        discoverer.stop()
        local.stop()
