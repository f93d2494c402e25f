"""The exporter beside programs that only scrape and store: the same replayed endpoints, the same seconds, 1 Hz.

They do different things: a peer stores every sample of every body; we parse, normalise, keep windows, read NVML and
``/proc`` and serve one body.  The ratio says whether one more process on the host is a burden, no more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml
from benchmarks import live
from benchmarks.registry import Figure

TITLE = "exporter beside Prometheus and VictoriaMetrics scraping the same endpoints at 1 Hz"
ORDER = 60

SERVERS = (3, 100)


def scrape_config(replay: live.Replayed, servers: int, path: Path) -> Path:
    """Configuration that both peers read."""
    job = {"job_name": "vllm", "static_configs": [{"targets": replay.targets(servers)}]}
    settings = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    path.write_text(yaml.safe_dump({"global": settings, "scrape_configs": [job]}))
    return path


@contextlib.contextmanager
def peer(name: str, program: str, replay: live.Replayed, servers: int) -> Iterator[live.Running]:
    """A peer that scrapes the first servers of the replay."""
    port = live.free_ports(1)
    config = scrape_config(replay, servers, replay.folder / f"{name}-{servers}.yml")
    data, log = replay.folder / f"{name}-{servers}-data", replay.folder / f"{name}-{servers}.log"
    address = f"127.0.0.1:{port}"
    command = {
        "prometheus": [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={address}"],
        "victoria-metrics": [
            *(f"-promscrape.config={config}", f"-storageDataPath={data}", f"-httpListenAddr={address}"),
            "-memory.allowedPercent=5",
        ],
    }[name]
    path = {"prometheus": "/-/ready", "victoria-metrics": "/health"}[name]
    with live.process([program, *command], log, dict(os.environ)) as started:
        live.until(name, lambda: live.get(port, path) == 200, 60, log)
        yield live.Running(started.pid, port, log)


def programs() -> dict[str, str]:
    """Peers that are here: Prometheus on the PATH or built by the legs, VictoriaMetrics as built by the legs."""
    found = {}
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "vllmeter" / "tools"
    for name in ("prometheus", "victoria-metrics"):
        built = sorted(cache.glob(f"{name}-*/{name}"))
        program = str(built[-1]) if built else shutil.which(name)
        if program is not None:
            found[name] = program
    return found


def run(quick: bool) -> list[Figure]:
    """CPU and memory of each, and our share of theirs."""
    figures = []
    peers = programs()
    for servers in SERVERS:
        with contextlib.ExitStack() as stack:
            replay = stack.enter_context(live.replayed(servers))
            ours = stack.enter_context(live.exporter(replay, servers))
            others = {
                name: stack.enter_context(peer(name, program, replay, servers)) for name, program in peers.items()
            }
            live.costs([ours], 5 if quick else 15)
            stack.enter_context(live.scraped(ours, every=15.0))
            mine, *theirs = live.costs([ours, *others.values()], 20 if quick else 90)
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
