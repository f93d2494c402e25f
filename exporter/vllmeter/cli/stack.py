"""``vllmeter stack``: exporter, Prometheus and Alertmanager of this host, from what is installed."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllmeter.cli.assets import assets_root
from vllmeter.cli.exporter_options import (
    CaFileOption,
    CertFileOption,
    KeyFileOption,
    PasswordFileOption,
    ServerNameOption,
    TokenFileOption,
    UsernameOption,
    access_from,
    own_address,
)
from vllmeter.cli.serve import DEFAULT_CONFIG, read_settings
from vllmeter.demo import stack as s
from vllmeter.wiring import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllmeter.remote import Access


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
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
    server_name: ServerNameOption = None,
    username: UsernameOption = None,
    password_file: PasswordFileOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """Runs the exporter with the Prometheus and the Alertmanager that are installed here, on 127.0.0.1.

    Data stays in the folder for the next start. Ctrl-C stops everything that was started. With a web_config,
    Prometheus gets in with the options below. Exit code 1 when something does not start or ends, 2 for a mistake in
    configuration or options. For a service that starts with the machine: deploy/systemd.
    """
    path = config if config is not None else DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None
    settings = read_settings(path, None)
    if not settings.listen_port:
        settings = settings.model_copy(update={"listen": f"{settings.listen_host}:{s.free_port(9877)}"})
    access = access_from(
        own_address(settings), ca_file, cert_file, key_file, server_name, username, password_file, token_file
    )
    if access.password or access.token:
        typer.echo(
            "Prometheus reads its credentials from a file: give --password-file or --token-file instead of "
            "VLLMETER_PASSWORD or VLLMETER_TOKEN",
            err=True,
        )
        raise typer.Exit(2)
    if not re.fullmatch(r"(\d+(ms|[smhdwy]))+", retention):
        typer.echo(f"--retention {retention}: use for example 15d, 30d or 1y", err=True)
        raise typer.Exit(2)
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
    try:
        started = s.Stack(place)
    except OSError as error:
        typer.echo(f"{place}: cannot be a folder for data: {error.strerror}; name another with --folder", err=True)
        raise typer.Exit(1) from error
    try:
        _start(started, program, path, access, (settings.listen_host, settings.listen_port), retention,
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
    access: Access,
    listen: tuple[str, int],
    retention: str,
    ports: tuple[int, int],
) -> None:
    """Alertmanager, exporter, Prometheus; each is ready before the next."""
    assets = assets_root()
    host, port = listen
    host = "127.0.0.1" if host in ("", "0.0.0.0", "::", "localhost") else host  # noqa: S104 - compared, not bound
    manager = s.find_program(s.ALERTMANAGER_NAMES)
    manager_port = s.free_port(ports[1])
    if manager is None:
        typer.echo("  alertmanager not installed; alerts are shown by Prometheus only")
    else:
        command = s.alertmanager_command(manager, assets / "alerts" / "alertmanager.yml", started.folder, manager_port)
        started.start("alertmanager", command, f"http://127.0.0.1:{manager_port}/-/ready")
        typer.echo(f"  alertmanager http://127.0.0.1:{manager_port}")
    exporter = s.exporter_command(config) if config is not None else s.exporter_command(Path("-"))[:-2]
    shown = f"[{host}]" if ":" in host else host
    started.start("exporter", [*exporter, "--listen", f"{shown}:{port}"], exporter_ready(access))
    typer.echo(f"  live page    {access.url}/")
    source = s.prometheus_config(
        assets / "prometheus" / "prometheus.yml",
        started.folder,
        port,
        manager_port,
        host=host,
        scrape=scrape_keys(access),
    )
    own = s.free_port(ports[0])
    command = [word for word in s.prometheus_command(program, source, started.folder, own) if "retention" not in word]
    command += [f"--storage.tsdb.retention.time={retention}", "--web.enable-remote-write-receiver"]
    started.start("prometheus", command, f"http://127.0.0.1:{own}/-/ready", patience=120.0)
    typer.echo(f"  prometheus   http://127.0.0.1:{own}\n\nCtrl-C stops everything.")


def exporter_ready(access: Access) -> Callable[[], bool]:
    """Asks whether the exporter lets us, and so Prometheus, in.

    The question raises DemoError when it never will.
    """
    from vllmeter.remote import RemoteError, RemoteExporter

    remote = RemoteExporter(access)

    def ready() -> bool:
        try:
            remote.healthy(2.0)
        except RemoteError as error:
            if error.kind in ("tls", "credentials"):
                raise s.DemoError(str(error)) from error
            return False
        return True

    return ready


def scrape_keys(access: Access) -> dict[str, object]:
    """What Prometheus' job needs to get in; names of files, no secret."""
    found: dict[str, object] = {}
    if access.secure:
        files = {
            "ca_file": access.ca_file,
            "cert_file": access.cert_file,
            "key_file": access.key_file or access.cert_file,
        }
        tls = {key: str(path.resolve()) for key, path in files.items() if path is not None}
        if access.server_name is not None:
            tls["server_name"] = access.server_name
        found = {"scheme": "https", "tls_config": tls}
    if access.username is not None and access.password_file is not None:
        found["basic_auth"] = {"username": access.username, "password_file": str(access.password_file.resolve())}
    elif access.token_file is not None:
        found["authorization"] = {"credentials_file": str(access.token_file.resolve())}
    return found
