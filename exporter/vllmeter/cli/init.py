"""``vllmeter init``: writes a configuration from a Compose file or from what runs on this host.  Executes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from vllmeter.config.values import parse_size
from vllmeter.memory.budget import context_size, cuda_total
from vllmeter.memory.compose_file import (
    ComposeError,
    ServerBlock,
    blocks_of,
    card_findings,
    parse_env_file,
    plan_of,
    read_compose,
    render_config,
)
from vllmeter.memory.findings import Finding, PlannedServer, ordered, plan_findings, worst
from vllmeter.memory.flags import parse_command
from vllmeter.snapshot import HostProcess, NvmlReading, ProcessTable, Quantity

_LARGEST_FILE = 4 << 20
_SMALLEST_CARD = 256 << 20
"""A GPU with less cannot hold a CUDA context and a model: the unit was forgotten."""


def init(
    from_compose: Annotated[
        Path | None, typer.Option("--from-compose", help="Compose file with vLLM services.", show_default=False)
    ] = None,
    from_processes: Annotated[
        bool, typer.Option("--from-processes", help="vLLM servers that run on this host now.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default standard output.")
    ] = None,
    profile: Annotated[list[str] | None, typer.Option("--profile", help="Active Compose profile; repeatable.")] = None,
    inside: Annotated[
        bool, typer.Option("--inside", help="The exporter runs in the same Compose network: use service names.")
    ] = False,
    gpu_total: Annotated[
        str | None,
        typer.Option("--gpu-total", help="CUDA total of the card, for example 7.78GiB; default: read from NVML."),
    ] = None,
) -> None:
    """Writes a commented vllmeter.yaml with servers, URLs, budgets and log sources, and says what will not work.

    Exit code 1 when no vLLM server is found, 2 when a file cannot be read or written.
    """
    if (from_compose is None) != from_processes:
        typer.echo("give either --from-compose FILE or --from-processes", err=True)
        raise typer.Exit(2)
    if from_compose is not None and _read_text(from_compose) is None:
        why = "too large, a folder, or no text" if from_compose.exists() else "it does not exist"
        typer.echo(f"{from_compose}: no file that can be read ({why}); give the path of your compose.yaml", err=True)
        raise typer.Exit(2)
    total, context = _card(gpu_total)
    if from_compose is not None:
        text, findings, count = _from_compose(from_compose, profile or [], inside, total, context)
    else:
        text, findings, count = _from_processes(total, context)
    if output is None:
        typer.echo(text, nl=False)
    else:
        try:
            with output.open("x", encoding="utf-8") as out:
                out.write(text)
        except FileExistsError:
            typer.echo(f"{output}: exists already; name another file or remove it", err=True)
            raise typer.Exit(2) from None
        except OSError as error:
            typer.echo(f"{output}: cannot be written: {error.strerror}; name another file", err=True)
            raise typer.Exit(2) from None
    place = f" -> {output}" if output is not None else ""
    said = (
        f"{len(findings)} findings, the worst: {worst(findings)} (comments at the end)" if findings else "no findings"
    )
    typer.echo(f"{count} servers{place}; {said}", err=True)


# --------------------------------------------------------------------------- the card


def _card(given: str | None) -> tuple[Quantity, Quantity | None]:
    """(CUDA total, context size) of the card that the plan is judged against; the total is absent when unknown."""
    if given is not None:
        try:
            size = parse_size(given)
            if size < _SMALLEST_CARD:
                raise ValueError(f"{given} is {size} bytes, no card is that small; write for example 24GiB")
            return Quantity(float(size), "config"), None
        except ValueError as error:
            typer.echo(f"--gpu-total: {error}", err=True)
            raise typer.Exit(2) from None
    return card_of(_read_gpus())


def _read_gpus() -> NvmlReading:
    import time

    from vllmeter.config.settings import Settings
    from vllmeter.wiring import build_sources

    source = build_sources(Settings()).gpu
    assert source is not None
    try:
        return source.read(time.monotonic(), time.time())
    finally:
        source.close()


def card_of(nvml: NvmlReading) -> tuple[Quantity, Quantity | None]:
    """(CUDA total, context) when all cards are alike; otherwise no total, since the plan names no card."""
    totals = [cuda_total(reading) for reading in nvml.gpus]
    values = {total.value for total in totals}
    if not nvml.up or len(values) != 1 or None in values:
        return Quantity(None, reason=nvml.reason or "cards of different sizes, or none"), None
    return totals[0], context_size(nvml.gpus[0].name)


# --------------------------------------------------------------------------- Compose


def _read_text(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _read_yaml(path: Path) -> Mapping[str, Any] | None:
    text = _read_text(path)
    if text is None:
        return None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return data if isinstance(data, dict) else None


def _from_compose(
    path: Path, profiles: Sequence[str], inside: bool, total: Quantity, context: Quantity | None
) -> tuple[str, tuple[Finding, ...], int]:
    text = _read_text(path)
    if text is None:
        typer.echo(f"{path}: no file that can be read", err=True)
        raise typer.Exit(2)
    folder = path.resolve().parent
    variables = {**parse_env_file(_read_text(folder / ".env") or ""), **os.environ}
    if not profiles:  # as Compose: the option, else the environment, else .env
        profiles = [name for part in variables.get("COMPOSE_PROFILES", "").split(",") if (name := part.strip())]
    try:
        compose = read_compose(
            text,
            name=str(path),
            project=os.environ.get("COMPOSE_PROJECT_NAME") or folder.name,
            variables=variables,
            read=lambda name: _read_text(folder / name),
            profiles=profiles,
            config_loader=lambda name: _read_yaml(folder / name),
        )
    except ComposeError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if not compose.servers:
        typer.echo(f"{path}: no service runs vLLM (looked for `vllm serve` and vllm-openai images)", err=True)
        raise typer.Exit(1)
    active = set(profiles)
    plan = [plan_of(server, active=active) for server in compose.servers]
    findings = ordered([*compose.findings, *card_findings(plan, total, context=context)])
    for note in compose.notes:
        typer.echo(f"note: {note}", err=True)
    if compose.unresolved:
        typer.echo(f"note: no value for {', '.join(compose.unresolved)}: taken as empty, as Compose does", err=True)
    blocks = blocks_of(compose, inside=inside, active=active)
    if off := [server.name for server, planned in zip(compose.servers, plan, strict=True) if planned.inactive]:
        typer.echo(f"note: off, and not judged: {', '.join(off)}; give the profile with --profile", err=True)
    return render_config(blocks, source=path.name, findings=findings), findings, len(blocks)


# --------------------------------------------------------------------------- processes


def blocks_of_processes(table: ProcessTable) -> tuple[tuple[ServerBlock, ...], tuple[PlannedServer, ...]]:
    """Entries for the vLLM servers among the processes of this host, and what they were started with."""
    roots: list[HostProcess] = []
    for process in table.processes.values():
        parent = table.processes.get(process.ppid)
        if _command_of(process) is not None and (parent is None or _command_of(parent) is None):
            roots.append(process)
    blocks: list[ServerBlock] = []
    plans: list[PlannedServer] = []
    names: set[str] = set()
    for process in sorted(roots, key=lambda p: (p.listening_ports or (0,), p.pid)):
        command = _command_of(process)
        assert command is not None
        service = process.unit if process.unit and process.unit.endswith(".service") else None
        served = command.served_names[0].rstrip("/").rpartition("/")[2] if command.served_names else ""
        base = service.removesuffix(".service") if service else served or f"vllm-{command.port}"
        base = re.sub(r"[^A-Za-z0-9_.:/-]", "-", base).lstrip("_.:/-")[:60] or f"vllm-{command.port}"
        name, number = base, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.add(name)
        ports = process.listening_ports
        port = command.port if ports is None or command.port in ports or not ports else min(ports)
        short = process.container_id[:12] if process.container_id else None
        note = f"pid {process.pid}"
        if short:
            note += f", in container {short}: use the published port"
        elif ports is None:
            note += ", sockets not readable: port from its command line"
        log: tuple[str, str] | None = None
        match: tuple[str, str] = ("port", str(port))
        if short:
            match, log = ("container", short), ("docker", short)
        elif service:
            match, log = ("unit", service), ("journal", service)
        fraction = command.fraction
        kv_bytes = command.integer("kv_cache_memory_bytes")
        blocks.append(
            ServerBlock(
                name=name,
                url=f"http://127.0.0.1:{port}",
                url_note=note,
                fraction=fraction if kv_bytes is None and fraction is not None and 0 < fraction <= 1 else None,
                budget_note="--gpu-memory-utilization"
                if kv_bytes is None and fraction is not None
                else "read from the server and its log",
                match=match,
                log=log,
                comment=(command.model or "model not on its command line",),
            )
        )
        devices = command.environment.get("CUDA_VISIBLE_DEVICES", "")
        gpus = tuple(part.strip() for part in devices.split(",") if part.strip())
        plans.append(PlannedServer(name=name, command=command, gpus=gpus, place=process.container_id or ""))
    return tuple(blocks), tuple(plans)


def _command_of(process: HostProcess) -> Any:
    if not process.argv:
        return None
    return parse_command(process.argv, environment=process.environ)


def _from_processes(total: Quantity, context: Quantity | None) -> tuple[str, tuple[Finding, ...], int]:
    import time

    from vllmeter.host.proc import ProcReader

    table = ProcReader(Path("/proc")).read(time.monotonic(), [])
    blocks, plans = blocks_of_processes(table)
    if not blocks:
        why = f" ({table.reason})" if table.reason else ""
        typer.echo(f"no vLLM server runs on this host{why}", err=True)
        raise typer.Exit(1)
    # they run already: the order in which they started is no question any more
    found = [finding for finding in plan_findings(plans) if finding.id != "start-order"]
    findings = ordered([*found, *card_findings(plans, total, context=context)])
    return render_config(blocks, source="the processes of this host", findings=findings), findings, len(blocks)
