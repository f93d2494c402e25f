"""``vllmeter serve``: the exporter."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from vllmeter import interpreter
from vllmeter.config.addresses import is_loopback
from vllmeter.config.load import ConfigError, load_config
from vllmeter.config.settings import Settings
from vllmeter.memory.argv import mask_text

DEFAULT_CONFIG = Path("vllmeter.yaml")
log = logging.getLogger("vllmeter")


def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Configuration file; default vllmeter.yaml, else find vLLM on this host."),
    ] = None,
    listen: Annotated[str | None, typer.Option("--listen", help="HOST:PORT, instead of the one configured.")] = None,
    check_config: Annotated[
        bool, typer.Option("--check-config", help="Check the configuration and its web_config, and exit.")
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
) -> None:
    """Runs the exporter: samples every server once a second and serves /metrics and the live page.

    SIGTERM and Ctrl-C end it with 0. Exit code 1 when it cannot listen, 2 when the configuration is invalid.
    """
    setup_logging(log_level)
    path = config if config is not None else DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None
    settings = read_settings(path, listen)
    if check_config:
        check_web_config(settings)
        typer.echo(f"{path or 'no file, defaults'}: ok, {len(settings.servers)} servers")
        return
    run(settings, path, listen)


def setup_logging(level: str) -> None:
    """One line per event on standard error, key=value."""
    name = level.upper()
    if name not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        typer.echo(f"--log-level {level}: use debug, info, warning or error", err=True)
        raise typer.Exit(2)
    logging.basicConfig(
        level=name, stream=sys.stderr, format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(mask_record)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)


def mask_record(record: logging.LogRecord) -> bool:
    """Takes keys, tokens and passwords out of a log line, whoever wrote it."""
    text = record.getMessage()
    masked = mask_text(text)
    if masked != text:
        record.msg, record.args = masked, ()
    return True


def read_settings(path: Path | None, listen: str | None) -> Settings:
    """Settings of the file (defaults without one); prints every mistake and exits with 2."""
    try:
        settings = load_config(path) if path is not None else Settings()
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    if listen is not None:
        try:
            settings = Settings.model_validate({**settings.model_dump(), "listen": listen})
        except ValueError as error:
            typer.echo(f"--listen {listen}: no HOST:PORT, for example 127.0.0.1:9877", err=True)
            raise typer.Exit(2) from error
    return settings


def check_web_config(settings: Settings) -> None:
    """Reads the ``web_config`` with its files; prints what is wrong and exits with 2."""
    from vllmeter.web.web_config import load_web_config

    if settings.web_config is not None:
        try:
            load_web_config(settings.web_config)
        except ConfigError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from error


def bind(host: str, port: int) -> socket.socket:
    """The listening socket, bound before anything is started, so that a taken port is one clear message."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(1024)  # from here on clients wait instead of being refused
    except OSError as error:
        sock.close()
        typer.echo(f"listen {host}:{port}: {error.strerror}. {_remedy(error)}", err=True)
        raise typer.Exit(1) from error
    sock.set_inheritable(True)
    return sock


def _remedy(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "Use an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for all its networks."
    if error.errno == errno.EACCES:
        return "Ports below 1024 are for root: use another --listen."
    return "Use another --listen, or stop what uses the port."


def run(settings: Settings, path: Path | None, listen: str | None = None) -> None:
    """Samples and serves until SIGTERM or Ctrl-C."""
    from vllmeter.discovery.discoverer import Discoverer
    from vllmeter.web.app import create_app
    from vllmeter.web.security import Policy
    from vllmeter.web.server import build_server
    from vllmeter.wiring import Exporter, build_discovery

    try:
        policy = Policy(settings.web_config)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    loopback = is_loopback(settings.listen_host)
    sock = bind(settings.listen_host, settings.listen_port)
    exporter = Exporter(settings, config_path=path, listen=listen)
    discoverer = Discoverer(build_discovery(settings), exporter.adopt)
    server = build_server(create_app(exporter), policy, loopback=loopback)

    def on_hangup(_signal: int, _frame: FrameType | None) -> None:
        threading.Thread(target=_reload, args=(exporter,), name="reload", daemon=True).start()

    signal.signal(signal.SIGHUP, on_hangup)
    exporter.start()
    discoverer.start()
    host, port = sock.getsockname()[:2]
    scheme = "https" if policy.security.tls is not None else "http"
    address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    log.info("listening=%s page=%s/ metrics=%s/metrics servers=%d", address, address, address, len(settings.servers))
    if not loopback and not policy.security.authenticates:
        log.warning("listening beyond this host without authentication: see web_config (docs/security.md)")
    interpreter.tune()
    try:
        server.run(sockets=[sock])
    finally:
        discoverer.stop()
        exporter.stop()
        log.info("stopped")


def _reload(exporter: object) -> None:
    from vllmeter.wiring import Exporter

    assert isinstance(exporter, Exporter)
    try:
        exporter.reload()
    except ConfigError:
        return  # logged and shown in the metrics
