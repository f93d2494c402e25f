"""``vllmeter replay``: serves a recording over HTTP, with its GPUs and processes."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer


def replay(
    file: Annotated[Path, typer.Argument(help="Recording (.vmrec).")],
    speed: Annotated[float, typer.Option(help="2 = twice as fast as recorded.")] = 1.0,
    loop: Annotated[bool, typer.Option("--loop/--no-loop", help="Begin again at the end.")] = True,
    copies: Annotated[int, typer.Option(help="Serve every server that many times (load tests).")] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    base_port: Annotated[
        int | None, typer.Option("--base-port", help="First port; default: the recorded ports where free.")
    ] = None,
    control_port: Annotated[int, typer.Option("--control-port", help="Port of /replay/…; 0 = any.")] = 0,
    control_host: Annotated[
        str, typer.Option("--control-host", help="Address of /replay/…, which can break things: keep it private.")
    ] = "127.0.0.1",
    start: Annotated[str | None, typer.Option("--start", help="Second or phase to begin at.")] = None,
    config: Annotated[
        Path | None, typer.Option("--write-config", help="Write the vllmeter.yaml for this replay to a file.")
    ] = None,
    info: Annotated[bool, typer.Option("--info", help="Say what is in the recording and end.")] = False,
) -> None:
    """Serves FILE as if its servers were running, and prints the vllmeter.yaml to watch them with.

    Ctrl-C ends it. Exit code 1 when FILE is no recording or a port cannot be used.
    """
    from vllmeter.recording.format import RecordingError, summarise
    from vllmeter.recording.replay import ReplayError, ReplayServer

    try:
        summary = summarise(file)
        if info:
            typer.echo(describe(summary))
            return
        server = ReplayServer(
            file,
            speed=speed,
            loop=loop,
            copies=copies,
            host=host,
            base_port=base_port,
            control_port=control_port,
            control_host=control_host,
            start=_start(summary, start),
        )
        server.start()
    except (RecordingError, ReplayError, ValueError) as error:
        _fail(str(error))
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    try:
        if summary.truncated:
            typer.echo(f"note: {summary.truncated}", err=True)
        for endpoint in server.endpoints:
            if endpoint.port != endpoint.recorded.port and base_port is None and not endpoint.copy:
                taken = endpoint.recorded.port
                typer.echo(f"note: port {taken} is taken, {endpoint.name} is on {endpoint.port}", err=True)
        text = server.config()
        if config is not None:
            config.write_text(text, encoding="utf-8")
            typer.echo(f"wrote {config}", err=True)
        typer.echo("# vllmeter.yaml for this replay; control: " + server.control_url)
        typer.echo(text, nl=False)
        sys.stdout.flush()
        _watch(server, done)
    except OSError as error:
        _fail(f"{config}: cannot be written: {error.strerror}")
    finally:
        server.stop()


def _watch(server: Any, done: threading.Event) -> None:
    """Progress until a signal, or the end when not looping."""
    terminal = sys.stderr.isatty()
    last = ""
    while not done.wait(0.5):
        state = server.position()
        up = sum(item["up"] for item in state["servers"].values())
        faults = sum(item["fault"] != "none" for item in state["servers"].values())
        line = (
            f"{state['position']:6.1f} of {state['duration']:.0f} s  {state['phase'] or '-'}"
            f"  servers up {up}/{len(state['servers'])}  loop {state['loop'] + 1}"
            f"{f'  faults {faults}' if faults else ''}"
        )
        if terminal:
            typer.echo("\r" + line + "  (Ctrl-C ends)\x1b[K", nl=False, err=True)
        elif state["phase"] != last:
            last = state["phase"]
            typer.echo(line, err=True)
        if state["ended"]:
            break
    if terminal:
        typer.echo("", err=True)


def _start(summary: Any, start: str | None) -> float:
    if start is None:
        return 0.0
    for t, name in summary.phases:
        if name == start:
            return float(t)
    try:
        return float(start)
    except ValueError:
        names = ", ".join(dict.fromkeys(name for _, name in summary.phases)) or "none"
        raise ValueError(f"--start {start}: no second and no phase; phases: {names}") from None


def describe(summary: Any) -> str:
    """What is in a recording, for a person."""
    from vllmeter.recording.record import flags_line

    header = summary.header
    lines = [
        f"{summary.duration:.0f} s, {summary.records} records, {summary.bytes / 1024:.0f} kB",
        f"made by {header.software or '?'}",
        f"vLLM {header.vllm or '?'}; GPU {', '.join(header.gpus) or 'none'}; driver {header.driver or '-'}",
    ]
    if header.state:
        lines.append(header.state)
    for server in header.servers:
        lines.append(
            f"  {server.name} port {server.port} {server.model or '?'}: {summary.answers.get(server.name, 0)} answers"
        )
        if server.flags:
            lines.append(f"    {flags_line(server.flags)}")
    if summary.phases:
        lines.append("phases: " + ", ".join(f"{name} at {t:.0f} s" for t, name in summary.phases))
    lines += [f"masked: {text}" for text in header.masked]
    lines += [f"note: {text}" for text in header.notes]
    if summary.truncated:
        lines.append(f"cut: {summary.truncated}")
    return "\n".join(lines)


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)
