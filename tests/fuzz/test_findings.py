"""What fuzzing found, as documents: bytes of the corpus mean something else as soon as a generator changes."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
import yaml

from vllmeter.config.load import ConfigError, parse_config
from vllmeter.config.values import format_duration, parse_duration
from vllmeter.memory.compose_file import ComposeError, read_compose
from vllmeter.memory.flags import config_file_arguments, parse_arguments
from vllmeter.memory.startup_log import StartupLog
from vllmeter.runs.importers import read_file
from vllmeter.runs.importers.reading import ResultFile
from vllmeter.runs.results import ResultFileError

SERVER = "servers: [{name: a, url: 'http://x'"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + chr(ord(name) - 1)] * 9)}]\n" for name in "bcdefghi"
)


# --------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{[a]: b}", "f:1: a key is text"),
        ("servers:\n- {name: a, ? {b: c}: d, url: 'http://x'}", "f:2: servers[0]: a key is text"),
        ("interval: !!bool 5", "f:1: interval: '5' is no duration"),
        ("interval: !!timestamp x", "f:1: interval: 'x' is no duration"),
        ("[" * 5000, "f:1: nested too deeply"),
        ("interval: 1s\n" + BOMB, "more than 100000 values"),
        ("listen: 'a:²'", "is no HOST:PORT"),
        (f"{SERVER}, budget: {{fraction: yes}}}}]", "servers[0].budget.fraction: True is a truth value"),
        (f"{SERVER}, match: {{port: true}}}}]", "servers[0].match.port: True is a truth value"),
    ],
)
def test_configurations_that_crashed_or_meant_something_else(text: str, message: str) -> None:
    """Each is refused at once, with its line."""
    begun = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f")
    assert message in str(caught.value)
    assert time.perf_counter() - begun < 5


def test_windows_of_almost_the_same_length_have_labels_of_their_own() -> None:
    """Otherwise /metrics would hold one series twice."""
    labels = dict(parse_config("windows: [2.0000001s, 2.0000002s, 61.5s]").all_windows())
    assert labels == {"15s": 15, "60s": 60, "2000.0001ms": 2.0000001, "2000.0002ms": 2.0000002, "61500ms": 61.5}


@pytest.mark.parametrize("seconds", [0.1, 1 / 3, 2.5e-7, 604799.9999999999, 5e-324, 0.30000000000000004])
def test_every_duration_is_formatted_to_what_reads_back(seconds: float) -> None:
    """To the last bit."""
    assert parse_duration(format_duration(seconds)) == seconds


def test_both_yaml_readers_give_the_same_lines_and_messages() -> None:
    """libyaml's is only faster: what it refuses is explained by the other one, as where it is missing."""
    with pytest.raises(ConfigError, match="f:2: not valid YAML: expected the node content, but found '<stream end>'"):
        parse_config("listen: a:1\nservers: [", "f")
    with pytest.raises(ConfigError) as caught:
        parse_config("interval: 1s\n\nservers:\n- name: a\n  url: ftp://x\n", "f")
    assert str(caught.value).startswith("f:5: servers[0].url:")


# --------------------------------------------------------------------------- Compose files


def _compose(service: dict[str, Any], **variables: str) -> Any:
    text = yaml.safe_dump({"services": {"a": {"image": "vllm/vllm-openai", **service}}})
    return read_compose(text, variables=variables).servers[0]


@pytest.mark.parametrize(
    ("text", "variables", "value"),
    [
        ("${A:-${B:-x}}", {}, "x"),
        ("${A:-${B:-x}}", {"B": "b"}, "b"),
        ("${A:-${B:-${C-x}}}y", {"C": "c"}, "cy"),
        ("${A:+${B}}-${A+1}", {"A": "1", "B": "b"}, "b-1"),
        ("${A:+${B}}", {}, ""),
        ("${A:-$$x}", {}, "$x"),
        ("${A", {}, "${A"),
        ("$1 ${é} $", {}, "$1 ${é} $"),
    ],
)
def test_variables_stand_one_within_another(text: str, variables: dict[str, str], value: str) -> None:
    """As Compose replaces them; before, the inner one stayed as it was written."""
    assert _compose({"command": ["--model", text]}, **variables).command.model == value


def test_replicas_may_come_from_a_variable() -> None:
    """They were read as one server."""
    assert _compose({"deploy": {"replicas": "${N:-3}"}}).replicas == 3
    assert _compose({"scale": 2}).replicas == 2
    assert _compose({"deploy": {"replicas": True}}).replicas == 1


def test_truth_values_are_those_of_compose() -> None:
    """`on` and `no` are words there, not truth values as in YAML 1.1."""
    found = read_compose("services:\n  on:\n    image: vllm/vllm-openai\n    command: [--runner, off]\n")
    (server,) = found.servers
    assert server.service == "on"
    assert server.command.text("runner") == "off"


@pytest.mark.parametrize(
    "ports",
    [
        ["8001:8000/udp"],
        ["²:8000"],
        ["1²:8000"],
        ["99999:8000"],
        ["a?b:8001:8000"],
        ["[x#]:8001:8000"],
        [{"target": 8000, "published": 8001, "host_ip": "a/b"}],
        ["65530-65540:7995-8005"],
        [{"target": 8000, "published": "²"}],
        [{"target": 8000, "published": 8001, "protocol": "udp"}],
        [f"{'9' * 5000}:8000"],
    ],
)
def test_ports_at_which_no_server_is_reached(ports: list[Any]) -> None:
    """Neither a crash nor an address that leads nowhere."""
    assert _compose({"ports": ports}).published is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services: {a: !!bool 5}", "not valid YAML"),
        ("services: {a: {image: !!timestamp x}}", "not valid YAML"),
        (BOMB + "services: {a: {image: vllm/vllm-openai, x: *i}}", "more than 100000 values"),
        ("services: {a: &a {image: vllm/vllm-openai, x: *a}}", "nested too deeply"),
        ("services: {a: " + "[" * 5000, "not valid YAML"),
        ("services: {'a?b': {image: vllm/vllm-openai}}", "no name that Compose takes"),
        ("services: {é: {image: vllm/vllm-openai}}", "no name that Compose takes"),
    ],
)
def test_compose_files_that_crashed_or_hung(text: str, message: str) -> None:
    """One clear message, at once."""
    begun = time.perf_counter()
    with pytest.raises(ComposeError, match=message):
        read_compose(text)
    assert time.perf_counter() - begun < 5


# --------------------------------------------------------------------------- command lines


@pytest.mark.parametrize(
    "words",
    [
        ["--max-model-len", "9" * 400 + "k"],
        ["--kv-cache-memory-bytes", "9" * 5000],
        ["--compilation-config", "[" * 100_000],
        ["--compilation-config.a", "[" * 100_000],
        ["--compilation-config." + "a." * 5000 + "b", "1"],
        ["--port", "70000"],
        ["--port", "0"],
        ["--port", "²"],
        ["--port", "8k"],
    ],
)
def test_command_lines_that_crashed_or_gave_a_wrong_number(words: list[str]) -> None:
    """Processes of any user are read: no crash, and no port that is none."""
    command = parse_arguments(words)
    assert command.port == 8000
    assert command.nested("compilation_config") == {} or len(words[0]) < 50
    assert command.integer("max_model_len") is None
    if words[0] == "--port":
        assert any("is no port" in problem.message for problem in command.problems)


def test_only_sizes_have_suffixes() -> None:
    """vLLM refuses `--max-num-seqs 1k`; it was read as 1000."""
    command = parse_arguments(["--max-num-seqs", "1k", "--max-num-batched-tokens", "1k"])
    assert command.integer("max_num_seqs") is None
    assert command.integer("max_num_batched_tokens") == 1000


def test_a_configuration_of_vllm_may_hold_what_json_does_not_know() -> None:
    """Dates, keys and loops of YAML are no crash."""
    loop: dict[str, Any] = {}
    loop["x"] = loop
    for value in (yaml.safe_load("a: 2001-01-01"), {(1, 2): 3}, loop):
        assert config_file_arguments({"hf-overrides": value})[0] == "--hf-overrides"


# --------------------------------------------------------------------------- logs


@pytest.mark.parametrize(
    "line",
    [
        "Model loading took " + "9" * 400 + " GiB and 1 seconds",
        "GPU KV cache size: " + "9" * 5000 + " tokens",
        "# GPU blocks: " + "9" * 5000,
        "(EngineCore pid=" + "9" * 5000 + ") Available KV cache memory: 1.00 GiB",
        "Initializing a V1 LLM engine (v0.11.0) with config: max_seq_len=" + "9" * 5000,
        "Overriding num_gpu_blocks=" + "9" * 5000 + " with num_gpu_blocks_override=1",
        "non-default args: {[1]: 2}",
        "Actual usage is " * 4000 + " GiB",
        "Memory profiling results: " * 2400,
        "args: Namespace(" * 4000,
        "non-default args: {" * 3400,
    ],
    ids=lambda line: line[:24],
)
def test_damaged_log_lines_are_no_facts_no_crash_and_no_wait(line: str) -> None:
    """Quadratic patterns once took ten seconds for one hostile line of 64 KiB."""
    log = StartupLog()
    begun = time.perf_counter()
    log.feed(line)
    assert time.perf_counter() - begun < 2
    assert log.facts.kv_tokens_total is None
    assert log.facts.num_gpu_blocks is None
    assert all(worker.weights is None for worker in log.facts.workers)


# --------------------------------------------------------------------------- results of load tests


def _result(text: str, name: str = "r.json") -> Any:
    return read_file(ResultFile(name, text))


def _vllm(**changes: Any) -> str:
    made: dict[str, Any] = {"completed": 2, "failed": 0, "request_throughput": 1.0, "total_output_tokens": 5}
    return json.dumps({**made, **changes})


def _guidellm(record: dict[str, Any], percentiles: dict[str, Any] | None = None) -> str:
    statistic = {"count": 1, "mean": 10.0, "percentiles": percentiles or {}}
    metrics = {"request_totals": {"successful": 1, "errored": 0}, "time_to_first_token_ms": {"successful": statistic}}
    benchmark = {"duration": 1.0, "metrics": metrics, "requests": {"successful": [record], "errored": []}}
    return json.dumps({"benchmarks": [benchmark]})


def _k6(**metrics: Any) -> str:
    trend = {"avg": 500.0, "p(95)": 600.0}
    return json.dumps({"root_group": {}, "metrics": {"http_req_duration": trend, **metrics}})


LOCUST = (
    "Type,Name,Request Count,Failure Count,Median Response Time,Average Response Time,Min Response Time,"
    "Max Response Time,Average Content Size,Requests/s,50%,99.9%\n"
)


@pytest.mark.parametrize(
    "text",
    [
        _vllm(completed=-1),
        _vllm(total_output_tokens=1e300),
        _vllm(mean_ttft_ms=-5.0),
        '{"completed": ' + "9" * 5000 + ', "request_throughput": 1, "total_output_tokens": 1}',
        '{"completed": 1, "request_throughput": 1, "total_output_tokens": ' + "[" * 100_000,
        _guidellm({"time_to_first_token_ms": -1.0}),
        _guidellm({"request_latency": -1.0}),
        _guidellm({"prompt_tokens": 1e308, "output_tokens": 1e308}),
        _k6(http_reqs={"count": 1, "rate": 1.0}, http_req_failed={"passes": 2}),
        LOCUST + "POST,/v1,10,20,1,1,1,1,1,1,1,1\n",
        LOCUST + "POST,/v1,10,,1,1,1,1,1,1,1,1\n",
    ],
    ids=lambda text: text[:40],
)
def test_results_that_no_load_test_can_have(text: str) -> None:
    """Negative times and counts, missing counts of failures, and numbers without end are refused, not imported."""
    with pytest.raises(ResultFileError, match=r"^r\.json"):
        _result(text)


def test_percentiles_are_those_that_are_said() -> None:
    """p999 of 100 is no 9.99, p100 of guidellm no 0.1, and what is no number is no percentile."""
    names = {"p50_ttft_ms": 1.0, "p99.9_ttft_ms": 2.0, "p999_ttft_ms": 3.0, "p9.9.9_ttft_ms": 4.0, "p²_ttft_ms": 5.0}
    (result,) = _result(_vllm(mean_ttft_ms=1.0, **names))
    assert result.summaries["ttft"].percentiles == {0.5: 0.001, 0.999: 0.002}
    (result,) = _result(_guidellm({}, {"p50": 10.0, "p999": 20.0, "p100": 30.0, "p²": 1.0}))
    assert result.summaries["ttft"].percentiles == {0.5: 0.01, 0.999: 0.02, 1.0: 0.03}
    (result,) = _result(_k6(ttft={"avg": 1.0, "p(200)": 5.0, "p(99)": 2.0}))
    assert result.summaries["ttft"].percentiles == {0.99: 0.002}


def test_k6_with_requests_that_failed_at_once_is_read() -> None:
    """Failures without work pull the mean duration below the TTFT of the others: no sign of a wrong unit."""
    durations = {"http_req_duration": {"avg": 100.0}, "http_reqs": {"count": 10, "rate": 1.0}}
    (result,) = _result(_k6(**durations, ttft={"avg": 400.0}, http_req_failed={"passes": 8}))
    assert result.summaries["ttft"].mean == 0.4
    with pytest.raises(ResultFileError, match="unit"):
        _result(_k6(**durations, ttft={"avg": 600.0}, http_req_failed={"passes": 8}))
    answered = {"http_req_duration{expected_response:true}": {"avg": 300.0}}
    with pytest.raises(ResultFileError, match="unit"):
        _result(_k6(**durations, **answered, ttft={"avg": 400.0}, http_req_failed={"passes": 8}))
    assert math.isclose(result.success_ratio, 0.2)
