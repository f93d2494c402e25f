"""``vllmeter demo``: a real recording of three vLLM instances on one GPU, the exporter and Prometheus on it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from vllmeter.cli.assets import assets_root

if TYPE_CHECKING:
    from vllmeter.demo.questions import Truth, Verdict
    from vllmeter.demo.stack import Stack
    from vllmeter.recording.replay import ReplayServer

RECORDING = "vllm-0.26.0-h200-three-instances.vmrec"
CHECK_BEGIN = "pressure-64"
CHECK_END = "cooldown"
"""The check plays the phases from the memory pressure to the shared prefixes and asks in the quiet after them."""


def demo(
    check: Annotated[
        bool,
        typer.Option("--check", help="Play the recording's pressure phases, ask Prometheus, print the answers, end."),
    ] = False,
    speed: Annotated[float, typer.Option(help="2 = twice as fast as recorded.")] = 1.0,
    recording: Annotated[Path | None, typer.Option(help="Another recording (not with --check).")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the exporter; default 127.0.0.1:9877.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where logs and data go; default a temporary folder.")] = None,
) -> None:
    """Replays three real vLLM instances, runs the exporter on them and lets a real Prometheus scrape it.

    Ctrl-C stops everything that was started. Exit code of --check: 0 when all answers agree with the recording,
    else 1; 2 for a mistake in the options.
    """
    from vllmeter.demo.stack import DemoError, Stack

    file = recording or find_recording()
    if not speed > 0:
        _mistake(f"--speed {speed:g}: use a number above 0")
    if listen is not None and not re.fullmatch(r".+:\d{1,5}", listen):
        _mistake(f"--listen {listen}: no HOST:PORT, for example 127.0.0.1:9877")
    if not file.is_file():
        _mistake(f"{file}: no such recording; check the path")
    keep = folder is not None
    place = folder or Path(tempfile.mkdtemp(prefix="vllmeter-demo-"))
    try:
        stack = Stack(place)
    except OSError as error:
        _mistake(f"{place}: cannot be a folder for logs and data: {error.strerror}; name another with --folder")
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    code = 1
    try:
        code = _run(stack, file, check, speed, listen, interrupted)
    except DemoError as error:
        typer.echo(f"\n{error}", err=True)
    finally:
        if began := bool(stack.started):
            typer.echo("stopping …")
        stack.stop()
        if not keep and (code == 0 or not began):
            shutil.rmtree(place, ignore_errors=True)
        elif code:
            typer.echo(f"logs are in {place}", err=True)
    raise typer.Exit(code)


def _mistake(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def find_recording() -> Path:
    """The demo's recording: inside the installed package, or in the checkout."""
    packaged = assets_root() / RECORDING
    return packaged if packaged.is_file() else assets_root() / "tests" / "captures" / RECORDING


def _step(text: str) -> None:
    typer.echo(f"  {text}")


def _run(stack: Stack, file: Path, check: bool, speed: float, listen: str | None, interrupted: threading.Event) -> int:
    from vllmeter.demo import stack as s
    from vllmeter.recording.format import RecordingError
    from vllmeter.recording.replay import ReplayServer

    assets = assets_root()
    exporter_port = int(listen.rpartition(":")[2]) if listen else s.free_port(9877)
    exporter_host = listen.rpartition(":")[0] if listen else "127.0.0.1"
    typer.echo("vllmeter demo: three vLLM 0.26.0 instances on one GPU, recorded on an H200")
    try:
        replay = ReplayServer(file, speed=speed, loop=not check)
    except (RecordingError, ValueError) as error:
        raise s.DemoError(str(error)) from error
    begin = replay.player.phase_start(CHECK_BEGIN) - 5 if check else 0.0
    replay.start()
    if begin:
        replay.seek(begin)
    try:
        _step("replay       " + ", ".join(f"{e.name} {e.url}" for e in replay.endpoints))
        config = stack.folder / "vllmeter.yaml"
        config.write_text(f"listen: {exporter_host}:{exporter_port}\n" + replay.config(), encoding="utf-8")
        exporter = f"http://{'127.0.0.1' if exporter_host == '0.0.0.0' else exporter_host}:{exporter_port}"  # noqa: S104
        stack.start("exporter", s.exporter_command(config), exporter + "/-/healthy")
        _step(f"exporter     {exporter}")
        prometheus = _start_prometheus(stack, assets, exporter_port)
        if check:
            if prometheus is None:
                raise s.DemoError("--check needs Prometheus: apt-get install prometheus")
            return _check(replay, file, prometheus, interrupted, stack)
        _where_to_look(exporter, prometheus)
        while not interrupted.wait(0.5):
            if (ended := stack.ended()) is not None:
                raise s.DemoError(f"{ended.name} ended with {ended.process.returncode}:\n{ended.tail()}")
            _progress(replay)
        return 0
    finally:
        replay.stop()


def _start_prometheus(stack: Stack, assets: Path, exporter_port: int) -> str | None:
    from vllmeter.demo import stack as s

    program = s.find_program(s.PROMETHEUS_NAMES)
    if program is None:
        _step("prometheus   not installed (Debian/Ubuntu: apt-get install prometheus); going on without")
        return None
    manager_port = s.free_port(9093)
    manager = s.find_program(s.ALERTMANAGER_NAMES)
    if manager is not None:
        stack.start(
            "alertmanager",
            s.alertmanager_command(manager, assets / "alerts" / "alertmanager.yml", stack.folder, manager_port),
            f"http://127.0.0.1:{manager_port}/-/ready",
        )
    port = s.free_port(9090)
    config = s.prometheus_config(assets / "prometheus" / "prometheus.yml", stack.folder, exporter_port, manager_port)
    stack.start(
        "prometheus", s.prometheus_command(program, config, stack.folder, port), f"http://127.0.0.1:{port}/-/ready"
    )
    _step(f"prometheus   http://127.0.0.1:{port}")
    if manager is not None:
        _step(f"alertmanager http://127.0.0.1:{manager_port}")
    return f"http://127.0.0.1:{port}"


def _where_to_look(exporter: str, prometheus: str | None) -> None:
    from vllmeter.demo.stack import alerts_page

    typer.echo("\nWhere to look:")
    _step(f"live page    {exporter}/")
    _step(f"metrics      {exporter}/metrics")
    if prometheus:
        query = urllib.parse.quote("vllmeter_server_gpu_memory_used_bytes")
        _step(f"a query      {prometheus}/graph?g0.expr={query}&g0.tab=0&g0.range_input=10m")
        _step(f"alerts       {alerts_page(prometheus)}")
    _step("terminal     vllmeter top")
    typer.echo("\nCtrl-C stops everything.\n")


def _progress(replay: ReplayServer) -> None:
    if sys.stdout.isatty():
        p = replay.position()
        typer.echo(f"\r  recording {p['position']:5.0f} of {p['duration']:.0f} s  phase {p['phase']:<18}", nl=False)


def _check(replay: ReplayServer, file: Path, prometheus: str, interrupted: threading.Event, stack: Stack) -> int:
    from vllmeter.demo import stack as s
    from vllmeter.demo.questions import QUESTIONS, judge
    from vllmeter.demo.truth import read_truth

    begin = replay.player.phase_start(CHECK_BEGIN) - 5
    # Two seconds into the quiet the last sample of every server is of the quiet; nothing changes until its end.
    end = replay.player.phase_start(CHECK_END) + 2
    names = {e.recorded.name: e.name for e in replay.endpoints}
    truth = read_truth(file, lambda name: names[name], begin, end)
    typer.echo(f"\nplaying seconds {begin:.0f} to {end:.0f} of the recording …")
    shown = -10.0
    while (position := replay.position())["position"] < end:
        if interrupted.wait(0.2):
            return 130
        if (ended := stack.ended()) is not None:
            raise s.DemoError(f"{ended.name} ended with {ended.process.returncode}:\n{ended.tail()}")
        if position["position"] - shown >= 10:
            shown = position["position"]
            _step(f"{shown:4.0f} s  {position['phase']}")
    # The exporter may be a second behind the replay, Prometheus one scrape (5 s) behind the exporter.  The recording
    # is held at this moment meanwhile.
    replay.hold()
    if interrupted.wait(8.0):
        return 130
    rows: list[Verdict] = []
    for question in QUESTIONS:
        rows += judge(question, ask(prometheus, question.query), truth)
    _table(rows, truth)
    wrong = [row for row in rows if not row.ok]
    if wrong:
        typer.echo(f"\n{len(wrong)} of {len(rows)} answers are missing or wrong against the recording", err=True)
        return 1
    typer.echo(f"\nall {len(rows)} answers agree with the recording")
    return 0


def ask(prometheus: str, query: str) -> list[dict[str, Any]]:
    """Instant query; [] when there is no data.

    :raises DemoError: Prometheus refuses the query.
    """
    from vllmeter.demo.stack import DemoError

    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query, 'time': time.time()})}"
    with contextlib.ExitStack() as guard:
        try:
            response = guard.enter_context(urllib.request.urlopen(url, timeout=20))  # noqa: S310 - loopback
            data = json.load(response)
        except (OSError, ValueError) as error:
            raise DemoError(f"Prometheus does not answer {query!r}: {error}") from error
    result: list[dict[str, Any]] = data["data"]["result"]
    return result


def _table(rows: list[Verdict], truth: Truth) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from vllmeter.demo.questions import show

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("question")
    table.add_column("server")
    table.add_column("Prometheus", justify="right")
    table.add_column("recording", justify="right")
    table.add_column("")
    last = ""
    for row in rows:
        text = row.question.text
        table.add_row(
            "" if text == last else text,
            row.key,
            show(row.answer, row.question.unit),
            show(row.expected, row.question.unit),
            "ok" if row.ok else "WRONG",
        )
        last = text
    Console(width=None if sys.stdout.isatty() else 120).print(table)
