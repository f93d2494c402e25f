"""A dead engine's /metrics stays a 200 with its last values: what is "now" in it is withheld, what is a sum stays."""

from __future__ import annotations

import json
import socket
import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from fakes import fault_server as f
from fakes.stepper import Stepper, settings_for
from vllmeter.catalogue import BY_NAME, ENGINE_GAUGES, PREFIX
from vllmeter.config.settings import Server, Settings
from vllmeter.render.metrics import render_metrics
from vllmeter.scrape.loop import TargetLoop
from vllmeter.scrape.outcome import Fetch
from vllmeter.scrape.target import Target
from vllmeter.store import Store

LOADED = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 100
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="1.0"} 4
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="+Inf"} 4
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4
"""


def stepped(seconds: int, health: int, stepper: Stepper | None = None) -> Stepper:
    """A loaded server that answers the same body for ``seconds``."""
    made = stepper or Stepper(settings_for("chat"))
    for _ in range(seconds):
        made.at += 1.0
        made.fetch("chat", Fetch(0.01, body=LOADED, content_type="text/plain", status=200), health=health)
    return made


def families(text: str) -> set[str]:
    """Names of our families with a series of ``chat``, as the catalogue writes them."""
    return {
        sample.name.removeprefix(PREFIX)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("server") == "chat"
    }


def test_every_gauge_of_a_dead_engine_vanishes_and_every_sum_stays() -> None:
    """From the first 503 on, in both formats, in the windows and in the snapshot; its reason says so."""
    stepper = stepped(5, 200)
    before = families(stepper.get("/metrics"))
    gauges = {"requests_running", "requests_waiting", "kv_cache_usage_ratio", "server_sleep_state"}
    assert gauges <= before
    stepped(1, 503, stepper)
    at_once = families(stepper.get("/metrics"))
    assert at_once & ENGINE_GAUGES == set()
    assert "requests_running_peak" in at_once  # of the samples before its death
    stepped(60, 503, stepper)
    after = families(stepper.get("/metrics"))
    assert before - after == gauges | {"requests_running_peak", "requests_waiting_peak", "kv_cache_usage_peak_ratio"}
    assert after - before == set()
    assert {"generation_tokens_total", "ttft_seconds_bucket", "ttft_seconds_sum", "ttft_seconds_count"} <= after
    text = stepper.get("/metrics", accept="application/openmetrics-text")
    named = {family.name.removeprefix(PREFIX) for family in openmetrics_families(text)}
    assert "generation_tokens" in named
    assert not named & ENGINE_GAUGES
    (chat,) = json.loads(stepper.get("/snapshot.json?readings=true"))["servers"]
    assert chat["state"] == "engine_dead"
    assert chat["state_reason"] == "/health answers 503; its gauges are frozen and not shown"
    assert chat["gauges_withheld"] is True
    assert chat["sleep_state"] is None
    assert chat["windows"]["60s"]["absent"]["requests_running_peak"] == "engine_dead"
    assert "num_requests_running" not in json.dumps(chat)


def test_what_the_exporter_says_of_its_series_fits_what_it_shows() -> None:
    """exposed_series counts the lines that are there, before and after."""
    for health in (200, 503):
        stepper = stepped(2, health)
        shown = [
            sample
            for family in text_string_to_metric_families(stepper.get("/metrics"))
            for sample in family.samples
            if _origin(sample.name) == "engine"
        ]
        (view,) = stepper.snapshot().servers
        assert view.exposed_series == len(shown) > 0


def _origin(exposed: str) -> str:
    name = exposed.removeprefix(PREFIX)
    for end in ("", "_bucket", "_sum", "_count"):
        known = BY_NAME.get(name.removesuffix(end))
        if known is not None:
            return known.origin
    return ""


def test_gauges_stay_away_while_the_next_answer_is_awaited_and_come_back_with_a_new_engine() -> None:
    """The last sample stands while an answer is pending, but not the frozen part of it."""
    stepper = stepped(3, 503)
    stepper.at += 1.0
    stepper.targets["chat"].begin(stepper.at)
    stepper.at += 2.5
    stepper.store.pending(stepper.at, stepper.wall)
    assert stepper.snapshot().servers[0].reading is not None
    assert stepper.snapshot().servers[0].state == "engine_dead"
    assert not families(stepper.get("/metrics")) & ENGINE_GAUGES
    stepped(1, 200, stepper)
    assert "requests_running" in families(stepper.get("/metrics"))


def test_over_the_wire_with_a_server_whose_engine_dies() -> None:
    """A real loop against a real socket: 200, then 503 beside a frozen 200 of /metrics."""
    status = {"/health": "200 OK"}

    def behaviour(sock: socket.socket, path: str) -> bool:
        if path.endswith("/health"):
            return f.status(status["/health"])(sock, path)
        return f.content_type("text/plain", LOADED)(sock, path)

    with f.FaultServer(behaviour) as endpoint:
        server = Server(name="chat", url=endpoint.url)
        store = Store(Settings(servers=(server,)))
        target = Target(server, 0.2)
        store.add(target)
        loop = TargetLoop(target, store.observed, store.hold)
        loop.start()

        def shown(state: str) -> set[str]:
            deadline = time.monotonic() + 10.0
            while True:
                snapshot = store.snapshot(time.monotonic(), time.time(), max_age=0.0)
                if snapshot.servers[0].state == state or time.monotonic() > deadline:
                    assert snapshot.servers[0].state == state, snapshot.servers[0].state_reason
                    return families(render_metrics(snapshot, store.blocks()).decode())
                time.sleep(0.02)

        try:
            alive = shown("busy")
            status["/health"] = "503 Service Unavailable"
            dead = shown("engine_dead")
        finally:
            loop.stop(2.0)
    assert {"requests_running", "requests_waiting", "kv_cache_usage_ratio"} <= alive
    assert not dead & ENGINE_GAUGES
    assert "generation_tokens_total" in dead
