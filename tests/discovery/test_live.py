"""A running exporter over discovery: 200 recorded servers appear, disappear and come back without a restart."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from vllmeter.config.settings import Settings
from vllmeter.discovery.discoverer import Discoverer
from vllmeter.host.proc import ProcReader
from vllmeter.recording.replay import Endpoint, ReplayServer
from vllmeter.sampler import HostSources
from vllmeter.wiring import Exporter, build_discovery

RECORDING = Path(__file__).parents[1] / "captures" / "vllm-0.26.0-h200-three-instances.vmrec"


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[Endpoint, ...]]:
    """200 servers on ports of 127.0.0.1."""
    with ReplayServer(RECORDING, copies=67, base_port=None, start=10.0) as replay:
        yield replay.endpoints[:200]


def write(file: Path, endpoints: Sequence[Endpoint]) -> None:
    """The list, renamed into its place as a careful writer does."""
    groups = [
        {"targets": [endpoint.url.removeprefix("http://")], "labels": {"server": endpoint.name}}
        for endpoint in endpoints
    ]
    new = file.with_suffix(".new")
    new.write_text(json.dumps(groups))
    new.rename(file)


def up(exporter: Exporter) -> set[str]:
    """Names of the servers whose last scrape was good."""
    return set(re.findall(r'^vllmeter_server_up\{server="([^"]+)"\} 1$', body(exporter), re.M))


def body(exporter: Exporter) -> str:
    return exporter.metrics(openmetrics=False).decode()


def wait(condition: Callable[[], bool], patience: float = 40.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def test_two_hundred_servers_come_and_go(endpoints: tuple[Endpoint, ...], tmp_path: Path) -> None:
    """All are sampled, those that leave the list leave every series, and those that stay keep their history."""
    file = tmp_path / "servers.json"
    write(file, endpoints)
    settings = Settings.model_validate(
        {"interval": "3s", "nvml": {"enabled": False}, "discovery": {"file": {"files": [str(file)], "every": "500ms"}}}
    )
    exporter = Exporter(settings, sources=HostSources(None, ProcReader()), state_dir=tmp_path)
    discoverer = Discoverer(build_discovery(settings), exporter.adopt)
    exporter.start()
    discoverer.start()
    names = [endpoint.name for endpoint in endpoints]
    try:
        wait(lambda: len(up(exporter)) == 200)
        assert up(exporter) == set(names)

        write(file, endpoints[:50])
        gone = names[50:]
        wait(lambda: f'server="{gone[-1]}"' not in body(exporter))
        text = body(exporter)
        assert {server for server in gone if f'server="{server}"' in text} == set()
        assert up(exporter) == set(names[:50])
        assert exporter.ready()[0]

        write(file, endpoints[:60])
        wait(lambda: len(up(exporter)) == 60)
        # A server that stayed was not started anew: its restarts are still counted from the first sight.
        assert f'vllmeter_server_restarts_total{{server="{names[0]}"}} 0' in body(exporter)

        file.unlink()
        wait(lambda: "vllmeter_server_up{" not in body(exporter))
    finally:
        discoverer.stop()
        exporter.stop()


def test_a_list_that_turns_bad_keeps_the_servers(endpoints: tuple[Endpoint, ...], tmp_path: Path) -> None:
    """A broken list is a line in the log, not the end of the monitoring."""
    file = tmp_path / "servers.json"
    write(file, endpoints[:2])
    settings = Settings.model_validate(
        {"nvml": {"enabled": False}, "discovery": {"file": {"files": [str(file)], "every": "500ms"}}}
    )
    exporter = Exporter(settings, sources=HostSources(None, ProcReader()), state_dir=tmp_path)
    discoverer = Discoverer(build_discovery(settings), exporter.adopt)
    exporter.start()
    discoverer.start()
    try:
        wait(lambda: len(up(exporter)) == 2)
        file.write_text("[{")
        time.sleep(1.5)
        assert len(up(exporter)) == 2
    finally:
        discoverer.stop()
        exporter.stop()
