"""A recording made by the running exporter, from the page: what comes now, masked, and it plays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from fakes.stepper import request
from vllmeter.config.settings import Settings
from vllmeter.recording.format import summarise
from vllmeter.recording.player import Player
from vllmeter.recording.replay import ReplayServer
from vllmeter.web.app import create_app
from vllmeter.wiring import Exporter

PRESSURE = Path(__file__).resolve().parents[1] / "captures" / "vllm-0.26.0-h200-pressure.vmrec"


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """A real exporter on a replay."""
    with ReplayServer(PRESSURE, start=20.0) as replay:
        settings = Settings.model_validate(yaml.safe_load(replay.config()))
        made = Exporter(settings, state_dir=tmp_path_factory.mktemp("state"))
        made.start()
        try:
            yield made
        finally:
            made.stop()


def test_a_recording_of_the_next_seconds_plays(exporter: Exporter, tmp_path: Path) -> None:
    """Every server answers in it, GPU and processes are there, and nothing of it is left on the disk here."""
    response = request(create_app(exporter), "POST", "/api/recording", json={"seconds": 2.5}, timeout=60)
    assert response.status_code == 200, response.text
    assert response.headers["content-disposition"].endswith('.vmrec"')
    file = tmp_path / "report.vmrec"
    file.write_bytes(response.content)
    summary = summarise(file)
    assert set(summary.answers) == {"vllm-reranker", "vllm-embed", "vllm-qwen3"}
    assert all(count >= 2 for count in summary.answers.values())
    assert summary.truncated is None
    with Player(file, loop=False) as player:
        moment = player.at(2.0)
        assert moment.nvml is not None
        assert moment.nvml.gpus[0].memory_used_bytes
        assert moment.processes is not None
        assert moment.servers["vllm-qwen3"].body


def test_one_server_and_one_at_a_time(exporter: Exporter, tmp_path: Path) -> None:
    """Only what was asked for; a second recording meanwhile is refused in words."""
    app = create_app(exporter)

    async def both() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:

            async def ask(wait: float) -> httpx.Response:
                await asyncio.sleep(wait)
                return await client.post("/api/recording", json={"seconds": 2, "servers": ["vllm-embed"]})

            return list(await asyncio.gather(ask(0), ask(1)))

    good, refused = asyncio.run(both())
    assert (good.status_code, refused.status_code) == (200, 409)
    assert "one at a time" in refused.text
    file = tmp_path / "one.vmrec"
    file.write_bytes(good.content)
    assert set(summarise(file).answers) == {"vllm-embed"}


@pytest.mark.parametrize(
    ("body", "status"),
    [({"seconds": 0}, 422), ({"seconds": 1e9}, 422), ({"servers": ["nobody"]}, 404), ({"path": "/etc/passwd"}, 422)],
)
def test_wrong_wishes_are_refused(exporter: Exporter, body: dict[str, object], status: int) -> None:
    """No other length than two minutes, no unknown server, no place to write to."""
    assert request(create_app(exporter), "POST", "/api/recording", json=body).status_code == status
