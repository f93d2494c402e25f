"""``vllmeter stack``: exporter, Prometheus and Alertmanager of this host, from what is installed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from vllmeter.cli.assets import assets_root
from vllmeter.cli.serve import DEFAULT_CONFIG, read_settings
from vllmeter.demo import stack as s
from vllmeter.wiring import state_directory


def stack(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Configuration file; default vllmeter.yaml, else find vLLM on this host."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where data and logs are kept; default the state folder of the user.")
    ] = None,
    retention: Annotated[str, typer.Option(help="How long Prometheus keeps data; alerts need at least 8d.")] = "30d",
    prometheus_port: Annotated[
        int, typer.Option(help="Port of Prometheus; another free one where it is taken.")
    ] = 9090,
    alertmanager_port: Annotated[int, typer.Option(help="Port of Alertmanager; likewise.")] = 9093,
) -> None:
    """Runs the exporter with the Prometheus and the Alertmanager that are installed here, on 127.0.0.1.

    Data stays in the folder for the next start. Ctrl-C stops everything that was started. For a service that
    starts with the machine: deploy/systemd.
    """
    path = config if config is not None else DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None
    settings = read_settings(path, None)
    place = folder if folder is not None else state_directory(settings) / "stack"
    program = s.find_program(s.PROMETHEUS_NAMES)
    if program is None:
        typer.echo(
            "no Prometheus is installed. Debian, Ubuntu: apt-get install prometheus prometheus-alertmanager", err=True
        )
        raise typer.Exit(1)
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    started = s.Stack(place)
    try:
        _start(started, program, path, settings.listen_host, settings.listen_port, retention,
               (prometheus_port, alertmanager_port))  # fmt: skip
        while not interrupted.wait(0.5):
            if (ended := started.ended()) is not None:
                raise s.DemoError(f"{ended.name} ended with {ended.process.returncode}:\n{ended.tail()}")
    except s.DemoError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    finally:
        typer.echo("stopping …")
        started.stop()
    typer.echo(f"data and logs are in {place}")


def _start(
    started: s.Stack,
    program: str,
    config: Path | None,
    host: str,
    port: int,
    retention: str,
    ports: tuple[int, int],
) -> None:
    """Alertmanager, exporter, Prometheus; each is ready before the next."""
    assets = assets_root()
    host = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host  # noqa: S104 - compared, not bound
    port = port or s.free_port(9877)
    manager = s.find_program(s.ALERTMANAGER_NAMES)
    manager_port = s.free_port(ports[1])
    if manager is None:
        typer.echo("  alertmanager not installed; alerts are shown by Prometheus only")
    else:
        command = s.alertmanager_command(manager, assets / "alerts" / "alertmanager.yml", started.folder, manager_port)
        started.start("alertmanager", command, f"http://127.0.0.1:{manager_port}/-/ready")
        typer.echo(f"  alertmanager http://127.0.0.1:{manager_port}")
    exporter = s.exporter_command(config) if config is not None else s.exporter_command(Path("-"))[:-2]
    started.start("exporter", [*exporter, "--listen", f"{host}:{port}"], f"http://{host}:{port}/-/healthy")
    typer.echo(f"  live page    http://{host}:{port}/")
    source = s.prometheus_config(assets / "prometheus" / "prometheus.yml", started.folder, port, manager_port)
    own = s.free_port(ports[0])
    command = [word for word in s.prometheus_command(program, source, started.folder, own) if "retention" not in word]
    command += [f"--storage.tsdb.retention.time={retention}", "--web.enable-remote-write-receiver"]
    started.start("prometheus", command, f"http://127.0.0.1:{own}/-/ready", patience=120.0)
    typer.echo(f"  prometheus   http://127.0.0.1:{own}\n\nCtrl-C stops everything.")
