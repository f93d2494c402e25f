"""Golden ``/metrics``: every capture through the real app, compared byte for byte; the diff is the review.

``pytest tests/test_golden.py --update-golden`` rewrites the files.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.stepper import Stepper, settings_for, settings_of
from upstream.bodies import load
from upstream.recount import recount
from vllmeter.catalogue import BY_NAME
from vllmeter.memory.startup_log import StartupLog
from vllmeter.recording.player import Player
from vllmeter.snapshot import Baseline

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
        player.close()
        return stepper

    return build


def annotated() -> Stepper:
    """The pressure phase with start-up logs, a load-test run under way, baselines and an XID error."""
    stepper = played("pressure-64", "pressure-64", 2.0)()
    for name, log in (("vllm-qwen3", "chat-two-starts"), ("vllm-embed", "embed"), ("vllm-reranker", "rerank")):
        parser = StartupLog()
        for line in (CAPTURES / "logs" / f"vllm-0.26.0__h200__{log}.log").read_text(encoding="utf-8").splitlines():
            if log == "chat-two-starts" and "max-num-batched-tokens 8192" in line:
                break  # the second start comes later
            parser.feed(line)
        stepper.store.log_facts(name, parser.facts, parser.last_failure)
    stepper.mark_run("base-2048", "short", "vllm-qwen3", start=True)
    stepper.mark_run("base-2048", "short", "vllm-qwen3", start=False)
    stepper.mark_run("base-2048", "long", "vllm-qwen3", start=True)
    stepper.store.baselines = (
        Baseline("vllm-qwen3", "long", "base-2048", stepper.wall, {"mean": 0.085, "p95": 0.12}, {"mean": 3.1}, 164.2),
    )
    nvml = stepper.snapshot().nvml
    assert nvml is not None
    stepper.gpu(
        replace(nvml, gpus=tuple(replace(g, xid_last=31, xid_last_at=nvml.wall) for g in nvml.gpus)),
        stepper.snapshot_table(),
    )
    return stepper


RARE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0
# TYPE vllm:num_requests_swapped gauge
vllm:num_requests_swapped{engine="0",model_name="m"} 2
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0
# TYPE vllm:corrupted_requests_total counter
vllm:corrupted_requests_total{engine="0",model_name="m"} 1
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 21
"""
"""Families that no recording holds; made up, not captured."""


def rare() -> Stepper:
    """A made-up body of rare families; its server is asleep on a GPU."""
    player = Player(CAPTURES / "vllm-0.26.0-h200-three-instances.vmrec", loop=False)
    stepper = Stepper(settings_for("asleep", first_port=8002))
    moment = player.at(5.0)
    player.close()
    assert moment.nvml is not None
    for _ in range(2):
        stepper.gpu(moment.nvml, moment.processes)
        stepper.body("asleep", RARE)
        stepper.at += 1.0
    stepper.at -= 1.0
    return stepper


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
    "h200-annotated": annotated,
    "made-rare-families": rare,
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


STATIC = {
    "cpu-generate-idle": "vllm-0.32.0-cpu-generate-idle.prom",
    "cpu-generate-under-load": "vllm-0.32.0-cpu-generate-under-load.prom",
    "cpu-generate-after-load": "vllm-0.32.0-cpu-generate-after-load.prom",
    "cpu-generate-openmetrics": "vllm-0.32.0-cpu-generate-after-load.openmetrics",
    "cpu-generate-mfu": "vllm-0.32.0-cpu-generate-api-key-root-path-mfu.prom",
    "cpu-dp2": "vllm-0.32.0-cpu-generate-dp2-under-load.prom",
    "cpu-api-server-count-2-idle": "vllm-0.32.0-cpu-generate-api-server-count-2-idle.prom",
    "cpu-api-server-count-2": "vllm-0.32.0-cpu-generate-api-server-count-2.prom",
    "cpu-embed": "vllm-0.32.0-cpu-embed-after-load.prom",
    "cpu-rerank": "vllm-0.32.0-cpu-rerank-after-load.prom",
    "cpu-kv-offload-synthetic": "vllm-0.32.0-cpu-kv-offload-synthetic-active.prom",
}
"""golden file -> the body behind it"""


@pytest.mark.parametrize("name", STATIC)
def test_every_engine_sample_of_a_golden_file_agrees_with_its_body(name: str) -> None:
    """Worked out a second time from the body, by prometheus_client and a list of names written apart from the table."""
    told = recount(load(STATIC[name]))
    text = (GOLDEN / f"{name}.metrics").read_text(encoding="utf-8")
    compared = 0
    for family in text_string_to_metric_families(text):
        ours = BY_NAME.get(family.name.removeprefix("vllmeter_")) or BY_NAME.get(
            family.name.removeprefix("vllmeter_") + "_total"
        )
        if ours is None or ours.origin != "engine":
            continue
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("server", "le")}
            key = tuple(sorted(labels.items()))
            if ours.kind != "histogram":
                assert sample.value == told.scalars[ours.name, key], (ours.name, key)
            else:
                buckets, total = told.histograms[ours.name, key]
                if sample.name.endswith("_bucket"):
                    assert sample.value == buckets[float(sample.labels["le"])]
                elif sample.name.endswith("_sum"):
                    assert sample.value == total
                else:
                    assert sample.value == buckets[float("inf")]
            compared += 1
    assert compared > 5


def test_no_golden_file_without_a_case() -> None:
    """A renamed case leaves no stale file behind."""
    assert {p.stem for p in GOLDEN.glob("*.metrics")} == set(CASES)
