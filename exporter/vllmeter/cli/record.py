"""``vllmeter record``: a recording of live servers and GPUs, for bug reports, tests and demos."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from vllmeter.config.load import ConfigError, load_config
from vllmeter.config.settings import Server, Settings
from vllmeter.config.values import parse_duration


def record(
    file: Annotated[Path, typer.Argument(help="Recording to write, for example problem.vmrec.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration whose servers are recorded.")
    ] = None,
    url: Annotated[
        list[str] | None, typer.Option("--url", "-u", help="vLLM server to record; may be given several times.")
    ] = None,
    duration: Annotated[str | None, typer.Option(help="How long, for example 5m; default until Ctrl-C.")] = None,
    interval: Annotated[str, typer.Option(help="Time between two answers of a server.")] = "1s",
    nvml: Annotated[bool, typer.Option("--nvml/--no-nvml", help="Record GPUs and processes too.")] = True,
    mask: Annotated[
        list[str] | None, typer.Option("--mask", help="Further word that must not appear; several allowed.")
    ] = None,
    state: Annotated[str, typer.Option(help="What goes on, in words; stands in the recording.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    copy: Annotated[
        Path | None, typer.Option("--copy", help="Write an existing recording again (smaller, repaired or cut).")
    ] = None,
    start: Annotated[float, typer.Option("--from", help="With --copy: first second to keep.")] = 0.0,
    stop: Annotated[float | None, typer.Option("--to", help="With --copy: second at which to end.")] = None,
) -> None:
    """Records endpoints, GPUs and processes into FILE; keys, home folders, hosts and addresses are masked.

    Exit code 1 when nothing can be recorded or no server answered; what was recorded before an error is kept.
    """
    if copy is not None:
        _copy(copy, file, start, stop, force)
        return
    try:
        seconds = None if duration is None else parse_duration(duration)
        pause = parse_duration(interval)
        settings = _settings(config, url or [])
    except (ConfigError, ValueError) as error:
        _fail(str(error))
    _record(file, settings, seconds, pause, nvml=nvml, words=mask or [], state=state, force=force)


def _settings(config: Path | None, urls: list[str]) -> Settings:
    from vllmeter.recording.record import split_url, unique_names

    if config is None and not urls and Path("vllmeter.yaml").exists():
        config = Path("vllmeter.yaml")
    settings = load_config(config) if config is not None else Settings()
    if urls:
        bases = [split_url(text) for text in urls]
        names = unique_names([f"vllm-{port}" for _, port in bases])
        servers = tuple(Server(name=name, url=base) for name, (base, _) in zip(names, bases, strict=True))
        settings = settings.model_copy(update={"servers": (*settings.servers, *servers)})
    if not settings.servers:
        raise ValueError("no server to record; give --url http://127.0.0.1:8000 or --config vllmeter.yaml")
    return settings


def _record(
    file: Path,
    settings: Settings,
    seconds: float | None,
    pause: float,
    *,
    nvml: bool,
    words: list[str],
    state: str,
    force: bool,
) -> None:
    from vllmeter.recording.masking import Masker
    from vllmeter.recording.record import Progress, Recorder, Target, boot_time, describe, split_url
    from vllmeter.recording.words import host_names, user_names
    from vllmeter.scrape.client import ScrapeClient
    from vllmeter.wiring import build_sources

    if file.exists() and not force:
        _fail(f"{file}: exists; give another name, or --force to overwrite it")
    sources = build_sources(settings) if nvml else None
    targets = [
        Target(
            server.name,
            (server.match.port if server.match and server.match.port else split_url(server.url)[1]),
            ScrapeClient(server),
        )
        for server in settings.servers
    ]
    try:
        stat = (settings.nvml.proc / "stat").read_text()
    except OSError:
        stat = ""
    try:
        recorder = Recorder(
            file,
            targets,
            gpu=sources.gpu if sources else None,
            processes=sources.processes if sources else None,
            masker=Masker(host_names(), [*user_names(), *words]),
            interval=pause,
            overwrite=force,
            boot=boot_time(stat),
            state=state,
        )
    except FileExistsError:
        _fail(f"{file}: exists; give another name, or --force to overwrite it")
    except OSError as error:
        _fail(f"{file}: cannot be written: {error.strerror}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: recorder.stop())
    terminal = sys.stderr.isatty()

    def show(progress: Progress) -> None:
        if terminal:
            typer.echo("\r" + describe(progress) + "  (Ctrl-C ends)\x1b[K", nl=False, err=True)
        elif int(progress.seconds) % 30 == 0:
            typer.echo(describe(progress), err=True)

    typer.echo(f"recording {len(targets)} servers into {file}", err=True)
    recorder.run(seconds, show)
    if sources is not None and sources.gpu is not None:
        sources.gpu.close()
    if terminal:
        typer.echo("", err=True)
    progress = recorder.progress()
    if recorder.error is not None:
        why = recorder.error.strerror
        _fail(f"{file}: writing stopped after {progress.seconds:.0f} s: {why}; the part before is kept")
    typer.echo(f"{file}: {progress.seconds:.0f} s, {progress.answers} answers, {progress.bytes / 1024:.0f} kB. ")
    typer.echo(f"Look at it before you share it: xzcat {file} | less; play it: vllmeter replay {file}")
    if not progress.answers:
        _fail("no server answered; the recording holds only failures")


def _copy(source: Path, target: Path, start: float, stop: float | None, force: bool) -> None:
    from vllmeter.recording.format import RecordingError, summarise
    from vllmeter.recording.format import copy as copy_recording

    if target.exists() and not force:
        _fail(f"{target}: exists; give another name, or --force to overwrite it")
    if stop is not None and stop <= start:
        _fail(f"--to {stop:g} is not later than --from {start:g}")
    if not source.is_file():  # before anything is overwritten
        _fail(f"{source}: cannot be opened (no such file); check the path")
    if target.exists() and target.samefile(source):
        _fail(f"{target}: is the source itself; give another name")
    try:
        target.unlink(missing_ok=True)
        problem = copy_recording(source, target, start=start, stop=stop)
        summary = summarise(target)
    except RecordingError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{target}: {error.strerror}")
    if problem:
        typer.echo(f"not whole: {problem}", err=True)
    typer.echo(f"{target}: {summary.duration:.0f} s, {summary.records} records, {summary.bytes / 1024:.0f} kB")


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)
