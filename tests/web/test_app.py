"""The HTTP side over a stepped exporter: formats, health, reload, discovery, runs."""

from __future__ import annotations

import json

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fakes.stepper import Stepper, request, settings_for
from vllmeter.config.load import ConfigError
from vllmeter.config.settings import Server, Settings
from vllmeter.web.app import discovery_targets, wants_openmetrics

BODY = b"""# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m\\"x"} 4
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m\\"x"} 12
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.25",model_name="m\\"x"} 1
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m\\"x"} 2
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m\\"x"} 0.75
vllm:time_to_first_token_seconds_count{engine="0",model_name="m\\"x"} 2
"""


@pytest.fixture
def stepper() -> Stepper:
    s = Stepper(settings_for("a", "b"))
    s.body("a", BODY)
    return s


def test_text_by_default_and_openmetrics_where_preferred(stepper: Stepper) -> None:
    """Both formats hold the same samples; the library's parsers read them."""
    text = stepper.get("/metrics")
    classic = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_text(text) for s in f.samples}
    om = stepper.get("/metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert om.endswith("# EOF\n")
    modern = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_openmetrics(om) for s in f.samples}
    assert classic == modern
    key = ("vllmeter_generation_tokens_total", (("engine", "0"), ("server", "a")))
    assert classic[key] == 12
    assert classic[("vllmeter_ttft_seconds_bucket", (("engine", "0"), ("le", "0.25"), ("server", "a")))] == 1


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.8", False),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.2", True),
        ("application/openmetrics-text;q=x,text/plain", False),
    ],
)
def test_content_negotiation(accept: str, expected: bool) -> None:
    """Prometheus' own Accept headers and broken ones."""
    assert wants_openmetrics(accept) is expected


def test_families_are_grouped_and_declared_once(stepper: Stepper) -> None:
    """The format wants all lines of a family together, whatever the number of servers."""
    stepper.body("b", BODY)
    text = stepper.get("/metrics")
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))
    seen: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            for suffix in ("_bucket", "_sum", "_count"):
                if name.removesuffix(suffix) in declared:
                    name = name.removesuffix(suffix)
            if not seen or seen[-1] != name:
                seen.append(name)
    assert len(seen) == len(set(seen))


def test_a_server_without_a_sample_has_health_but_no_values(stepper: Stepper) -> None:
    """Absent is not zero."""
    text = stepper.get("/metrics")
    assert 'vllmeter_server_up{server="b"} 0' in text
    assert 'vllmeter_requests_waiting{server="b"' not in text


def test_snapshot_json_is_strict_json_with_reasons(stepper: Stepper) -> None:
    """Scripts need no knowledge of layouts; no NaN appears."""
    document = json.loads(stepper.get("/snapshot.json"), parse_constant=pytest.fail)
    assert document["schema"] == 1
    first = document["servers"][0]
    assert first["reading"]["scalars"]["requests_waiting"] == [{"labels": {"engine": "0"}, "value": 4}]
    assert first["reading"]["histograms"]["ttft_seconds"][0]["buckets"] == [1, 2]
    assert document["servers"][1]["reading"] is None
    assert document["nvml"] is None
    assert document["nvml_reason"]


def test_discovery_hands_loopback_addresses_only_to_this_host() -> None:
    """Another host would scrape itself."""
    settings = Settings(
        servers=(
            Server(name="a", url="http://127.0.0.1:8000"),
            Server(name="b", url="http://127.0.0.1:8001", advertise_url="https://gpu7:8443/gen"),
            Server(name="c", url="http://[::1]:8002"),
            Server(name="d", url="http://10.0.0.5"),
        )
    )
    near = discovery_targets(settings, same_host=True)
    assert [g["targets"][0] for g in near] == ["127.0.0.1:8000", "gpu7:8443", "[::1]:8002", "10.0.0.5:80"]
    far = discovery_targets(settings, same_host=False)
    assert [g["labels"]["server"] for g in far] == ["b", "d"]
    assert far[0]["labels"] == {"server": "b", "__metrics_path__": "/gen/metrics", "__scheme__": "https"}


def test_a_reload_that_fails_keeps_the_old_configuration_and_says_why(stepper: Stepper) -> None:
    """400 with every mistake."""

    def refuse() -> None:
        raise ConfigError(["vllmeter.yaml:3: servers[0].url: missing"])

    stepper.reload = refuse  # type: ignore[method-assign]
    response = request(stepper.app(), "POST", "/-/reload")
    assert response.status_code == 400
    assert "vllmeter.yaml:3" in response.text
    assert request(stepper.app(), "GET", "/-/reload").status_code == 405


def test_runs_are_marked_and_shown(stepper: Stepper) -> None:
    """Start, conflict, unknown server, stop; the metric follows."""
    app = stepper.app()

    def post(**body: object) -> int:
        return request(app, "POST", "/api/runs", json=body).status_code

    assert post(run="r1", scenario="short", server="a", action="start") == 200
    assert 'vllmeter_run_active{server="a",scenario="short",run="r1"} 1' in stepper.get("/metrics")
    assert post(run="r1", scenario="short", server="a", action="start") == 409
    assert post(run="r2", server="nobody", action="start") == 409
    assert post(run="r1", server="a", action="stop") == 200
    assert "vllmeter_run_active" not in stepper.get("/metrics")
    assert post(run="", action="start") == 422
    assert post(run="r1", action="start", more=1) == 422


def test_health_endpoints(stepper: Stepper) -> None:
    """Plain words, right codes."""
    assert stepper.get("/-/healthy") == "ok\n"
    assert stepper.get("/-/ready") == "ok\n"
    stepper.healthy = lambda: (False, "driver was upgraded: restart this process")  # type: ignore[method-assign]
    response = request(stepper.app(), "GET", "/-/healthy")
    assert (response.status_code, response.text) == (503, "driver was upgraded: restart this process\n")


def test_histograms_can_be_left_out_per_server() -> None:
    """``expose.without`` saves series; windows still work from the same samples."""
    settings = Settings.model_validate(
        {
            "servers": [
                {"name": "a", "url": "http://127.0.0.1:1", "expose": {"without": ["ttft_seconds"]}},
                {"name": "b", "url": "http://127.0.0.1:2"},
            ]
        }
    )
    s = Stepper(settings)
    s.body("a", BODY)
    s.body("b", BODY)
    text = s.get("/metrics")
    assert 'vllmeter_ttft_seconds_bucket{server="b"' in text
    assert 'vllmeter_ttft_seconds_bucket{server="a"' not in text
    assert 'vllmeter_generation_tokens_total{server="a"' in text
    assert 'vllmeter_requests_waiting_peak{server="a"' in text
