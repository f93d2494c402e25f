"""Golden ``/metrics``: every capture through the real app, compared byte for byte; the diff is the review.

``pytest tests/test_golden.py --update-golden`` rewrites the files.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.stepper import Stepper, settings_for, settings_of
from vllmeter.recording.player import Player

HERE = Path(__file__).parent
CAPTURES = HERE / "captures"
GOLDEN = HERE / "golden"

LEFT_OUT = ("vllmeter_build_info",)
"""Families that depend on the machine or the day the test runs: the Python version."""


def static(stem: str, name: str) -> Callable[[], Stepper]:
    """One recorded body, shown twice a second apart as a server that rests shows it."""

    def build() -> Stepper:
        text = gzip.decompress((CAPTURES / "bodies" / f"{stem}.gz").read_bytes())
        content_type = "text/plain; version=1.0.0"
        for line in text.decode().splitlines()[:8]:
            if line.startswith("# capture: content-type: "):
                content_type = line.removeprefix("# capture: content-type: ")
        version = stem.removeprefix("vllm-").split("-")[0]
        stepper = Stepper(settings_for(name), {name: version})
        for _ in range(2):
            stepper.body(name, text, content_type)
            stepper.at += 1.0
        stepper.at -= 1.0
        return stepper

    return build


def played(
    begin: str | float, end: str | float, offset: float = 0.0, capture: str = "vllm-0.26.0-h200-three-instances"
) -> Callable[[], Stepper]:
    """An H200 recording from one phase (or second) to another, ``offset`` seconds further."""

    def build() -> Stepper:
        player = Player(CAPTURES / f"{capture}.vmrec", loop=False)
        first, last = (x if isinstance(x, float) else player.phase_start(x) for x in (begin, end))
        stepper = Stepper(settings_of(player), {s.name: "0.26.0" for s in player.header.servers})
        stepper.play(player, first, last + offset)
        return stepper

    return build


CASES: dict[str, Callable[[], Stepper]] = {
    "cpu-generate-idle": static("vllm-0.32.0-cpu-generate-idle.prom", "chat"),
    "cpu-generate-under-load": static("vllm-0.32.0-cpu-generate-under-load.prom", "chat"),
    "cpu-generate-after-load": static("vllm-0.32.0-cpu-generate-after-load.prom", "chat"),
    "cpu-generate-openmetrics": static("vllm-0.32.0-cpu-generate-after-load.openmetrics", "chat"),
    "cpu-generate-mfu": static("vllm-0.32.0-cpu-generate-api-key-root-path-mfu.prom", "chat"),
    "cpu-dp2": static("vllm-0.32.0-cpu-generate-dp2-under-load.prom", "chat"),
    "cpu-api-server-count-2-idle": static("vllm-0.32.0-cpu-generate-api-server-count-2-idle.prom", "chat"),
    "cpu-api-server-count-2": static("vllm-0.32.0-cpu-generate-api-server-count-2.prom", "chat"),
    "cpu-disable-log-stats": static("vllm-0.32.0-cpu-generate-disable-log-stats.prom", "chat"),
    "cpu-embed": static("vllm-0.32.0-cpu-embed-after-load.prom", "embed"),
    "cpu-rerank": static("vllm-0.32.0-cpu-rerank-after-load.prom", "rerank"),
    "cpu-kv-offload-synthetic": static("vllm-0.32.0-cpu-kv-offload-synthetic-active.prom", "chat"),
    "h200-idle": played("idle", "idle", 6.0),
    "h200-pressure": played("pressure-64", "pressure-64", 30.0),
    "h200-prefix-shared": played("pressure-64", "cooldown", 2.0),
    "h200-restarting": played("cooldown", "restart-8192", 10.0),
    "h200-restarted": played("cooldown", "cand-8192-short", 3.0),
    "h200-orphan": played(60.0, 127.0, capture="vllm-0.26.0-h200-orphan-and-hang"),
    "h200-stopped-engine": played(60.0, 150.0, capture="vllm-0.26.0-h200-orphan-and-hang"),
}


def exposition(stepper: Stepper) -> str:
    """The body without what depends on the machine."""
    return "".join(
        line for line in stepper.get("/metrics").splitlines(keepends=True) if not any(name in line for name in LEFT_OUT)
    )


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    """The exposition of each capture is what was reviewed."""
    got = exposition(CASES[name]())
    path = GOLDEN / f"{name}.metrics"
    if request.config.getoption("--update-golden"):
        path.write_text(got, encoding="utf-8")
    assert path.exists(), "new capture: review its output with --update-golden"
    assert got == path.read_text(encoding="utf-8")


def test_no_golden_file_without_a_case() -> None:
    """A renamed case leaves no stale file behind."""
    assert {p.stem for p in GOLDEN.glob("*.metrics")} == set(CASES)
