"""The exporter beside programs that only scrape: the same replayed endpoints, the same seconds, 1 Hz.

They do different things: Prometheus and VictoriaMetrics store every sample of every body, the OpenTelemetry Collector
turns it into its own form and throws it away (exporter ``nop``); we parse, normalise, keep windows, read NVML and
``/proc`` and serve one body.  The ratio says whether one more process on the host is a burden, no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import yaml
from benchmarks import live
from benchmarks.registry import PROJECT, Figure

TITLE = "exporter beside Prometheus, VictoriaMetrics and an OpenTelemetry Collector scraping the same at 1 Hz"
ORDER = 60

SERVERS = (3, 100)
PEERS = {"prometheus": "/-/ready", "victoria-metrics": "/health", "otel-collector": "/metrics"}
"""Name of the tool (scripts/lib/tools.sh) and the path that answers when it runs"""
LEAST_POINTS = 20
"""A replayed body has more samples than this; a collector that takes fewer a second from each server misses some."""


def scrape_config(replay: live.Replayed, servers: int) -> dict[str, Any]:
    """Configuration in the form of Prometheus, which all peers read."""
    job = {"job_name": "vllm", "static_configs": [{"targets": replay.targets(servers)}]}
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}


def collector_config(scrapes: dict[str, Any], port: int) -> dict[str, Any]:
    """A collector whose one pipeline ends in nothing; it tells its own numbers at the port."""
    pull = {"pull": {"exporter": {"prometheus": {"host": "127.0.0.1", "port": port}}}}
    return {
        "receivers": {"prometheus": {"config": scrapes}},
        "exporters": {"nop": {}},
        "service": {
            "telemetry": {"metrics": {"readers": [pull]}, "logs": {"level": "warn"}},
            "pipelines": {"metrics": {"receivers": ["prometheus"], "exporters": ["nop"]}},
        },
    }


@contextlib.contextmanager
def peer(name: str, program: str, replay: live.Replayed, servers: int) -> Iterator[live.Running]:
    """A peer that scrapes the first servers of the replay."""
    port = live.free_ports(1)
    config = replay.folder / f"{name}-{servers}.yml"
    data, log = replay.folder / f"{name}-{servers}-data", replay.folder / f"{name}-{servers}.log"
    scrapes, address = scrape_config(replay, servers), f"127.0.0.1:{port}"
    config.write_text(yaml.safe_dump(collector_config(scrapes, port) if name == "otel-collector" else scrapes))
    command = {
        "prometheus": [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}"],
        "victoria-metrics": [
            *(f"-promscrape.config={config}", f"-storageDataPath={data}", f"-httpListenAddr={address}"),
            "-memory.allowedPercent=5",
        ],
        "otel-collector": [f"--config={config}"],
    }[name]
    with live.process([program, *command], log, dict(os.environ)) as started:
        live.until(name, lambda: live.get(port, PEERS[name]) == 200, 60, log)
        yield live.Running(started.pid, port, log)


def taken(name: str, running: live.Running) -> float:
    """What the peer has: servers that answer it now; of the collector all points so far."""
    if name == "otel-collector":
        lines = live.body(running.port, "/metrics").splitlines()
        found = [line for line in lines if line.startswith("otelcol_receiver_accepted_metric_points")]
        return sum(float(line.split()[-1]) for line in found)
    targets = json.loads(live.body(running.port, "/api/v1/targets?state=active"))["data"]["activeTargets"]
    return float(sum(target["health"] == "up" for target in targets))


def idle(name: str, servers: int, seconds: float, before: float, after: float) -> bool:
    """Whether the peer did not do the work that it was measured for."""
    if name == "otel-collector":
        return (after - before) / seconds / servers < LEAST_POINTS
    # one of three servers is restarted in the recording and may be away in the end
    return before < servers or after < servers / 2


def programs() -> tuple[dict[str, str], dict[str, str]]:
    """Peers that are here or that Go can build (minutes, once), and for the others the reason."""
    found, lacking = {}, {}
    ask = 'tool_ready "$1" || printf "%s\n" "$TOOL_REASON" >&2; printf "%s\n" "$TOOL_PATH"'
    script = f". scripts/lib/say.sh; . scripts/lib/tools.sh; {ask}"
    for name in PEERS:
        answer = subprocess.run(
            ["bash", "-c", script, "bench", name], cwd=PROJECT, capture_output=True, text=True, check=False
        )
        program = answer.stdout.strip() or shutil.which(name)
        if program:
            found[name] = program
        else:
            lacking[name] = (answer.stderr.strip().splitlines() or ["?"])[-1]
    return found, lacking


def run(quick: bool) -> list[Figure]:
    """CPU and memory of each, and our share of theirs."""
    seconds = 20 if quick else 90
    peers, lacking = programs()
    figures = [Figure(f"{name}: not compared", None, "", note=reason) for name, reason in lacking.items()]
    for servers in SERVERS:
        with contextlib.ExitStack() as stack:
            replay = stack.enter_context(live.replayed(servers))
            ours = stack.enter_context(live.exporter(replay, servers, live.NVML))
            others = {
                name: stack.enter_context(peer(name, program, replay, servers)) for name, program in peers.items()
            }
            live.costs([ours], 5 if quick else 15)
            stack.enter_context(live.scraped(ours, every=15.0))
            before = {name: taken(name, other) for name, other in others.items()}
            mine, *theirs = live.costs([ours, *others.values()], seconds)
            for name, other in others.items():
                after = taken(name, other)
                if idle(name, servers, seconds, before[name], after):
                    raise RuntimeError(
                        f"{name} does not scrape all {servers} servers: {before[name]:g}, then {after:g}"
                    )
        figures += [
            Figure(f"{servers} servers: vllmeter, CPU", 100 * mine.share, "%", note=live.load_note()),
            Figure(f"{servers} servers: vllmeter, memory", mine.memory / 1e6, "MB"),
        ]
        for name, cost in zip(others, theirs, strict=True):
            figures += [
                Figure(f"{servers} servers: {name}, CPU", 100 * cost.share, "%"),
                Figure(f"{servers} servers: {name}, memory", cost.memory / 1e6, "MB"),
                Figure(f"{servers} servers: vllmeter's CPU against {name}'s", mine.share / cost.share, "x"),
                Figure(f"{servers} servers: vllmeter's memory against {name}'s", mine.memory / cost.memory, "x"),
            ]
    return figures
