"""Compose files with vLLM services become a configuration that loads, with findings."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.config.load import parse_config
from vllmeter.memory.compose_file import (
    ComposeError,
    ComposeFile,
    ComposeServer,
    ServerBlock,
    blocks_of,
    card_findings,
    parse_env_file,
    plan_of,
    read_compose,
    render_config,
)
from vllmeter.memory.findings import Finding
from vllmeter.snapshot import Quantity

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "three-services.compose.yaml"
GIB = 1 << 30


def compose(service: dict[str, Any] | str, **kwargs: Any) -> ComposeFile:
    """A file with one service `a`, given as a mapping or as YAML text."""
    if isinstance(service, str):
        service = yaml.safe_load(service)
    return read_compose(yaml.safe_dump({"services": {"a": service}}), **kwargs)


def only(found: ComposeFile) -> ComposeServer:
    (server,) = found.servers
    return server


def ids(findings: tuple[Finding, ...] | list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


IMAGE = "vllm/vllm-openai:v0.26.0"


@pytest.mark.parametrize(
    "service",
    [
        {"image": IMAGE, "command": "--model m --port 9000 --gpu-memory-utilization 0.3"},
        {"image": IMAGE, "command": ["--model", "m", "--port=9000", "--gpu_memory_utilization", "0.3"]},
        {"image": IMAGE, "command": "m --port 9000 --gpu-memory-util 0.3"},
        {"image": "registry.example/team/vllm-openai:v0.26.0", "command": "--model m --port 9000 --gpu-mem 0.3"},
        {"image": "x", "command": "vllm serve m --port 9000 --gpu-memory-utilization=0.3"},
        {"image": "x", "entrypoint": ["vllm", "serve"], "command": "m --port 9000 --gpu-memory-utilization=0.3"},
        {"image": "x", "entrypoint": "vllm serve m", "command": ["--port", "9000", "--gpu-memory-utilization", "0.3"]},
        {
            "image": "x",
            "entrypoint": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
            "command": "--model m --port 9000 --gpu-memory-utilization 0.3",
        },
        {"image": "x", "entrypoint": ["/bin/sh", "-c"], "command": ["vllm serve m --port 9000 --gpu-mem 0.3"]},
        {"image": "x", "command": ["bash", "-c", "sleep 5 && exec vllm serve m --port 9000 --gpu-mem 0.3"]},
        {"build": ".", "command": "vllm serve m --port 9000 --gpu-memory-utilization 0.3"},
    ],
)
def test_every_way_to_write_the_command(service: dict[str, Any]) -> None:
    """String, list, entrypoint, shell, arguments only: the same server comes out."""
    server = only(compose(service))
    assert (server.command.model, server.command.port, server.command.fraction) == ("m", 9000, 0.3)
    assert server.command.problems == ()


def test_a_folded_scalar_is_one_command() -> None:
    """`command: >` over several lines is one command line."""
    text = "services:\n  a:\n    image: vllm/vllm-openai:v0.26.0\n    command: >\n      --model m\n      --port 9000\n"
    server = only(read_compose(text))
    assert (server.command.model, server.command.port, server.version) == ("m", 9000, "0.26.0")


@pytest.mark.parametrize(
    "service",
    [
        {"image": "redis"},
        {"image": "x", "command": "python train.py"},
        {"image": IMAGE, "entrypoint": ["sleep"], "command": "100"},
        {"image": "vllm-proxy-something/nginx:1"},
        {"image": "grafana/grafana", "command": ["--config", "x"]},
    ],
)
def test_other_services_are_left_out(service: dict[str, Any]) -> None:
    """Services without a vLLM server do not appear."""
    assert compose(service).servers == ()


def test_an_image_without_a_command_runs_with_defaults() -> None:
    """The image alone is a server on port 8000 with the default fraction."""
    server = only(compose({"image": "vllm/vllm-openai"}))
    assert (server.command.port, server.version, server.command.fraction) == (8000, None, None)


@pytest.mark.parametrize(
    ("ports", "published"),
    [
        (["8002:8000"], ("127.0.0.1", 8002)),
        (["127.0.0.1:8002:8000"], ("127.0.0.1", 8002)),
        (["0.0.0.0:8002:8000/tcp"], ("0.0.0.0", 8002)),
        (["[::1]:8002:8000"], ("::1", 8002)),
        (["9000-9002:7999-8001"], ("127.0.0.1", 9001)),
        (["9:9", "8002:8000"], ("127.0.0.1", 8002)),
        ([{"target": 8000, "published": "8002"}], ("127.0.0.1", 8002)),
        ([{"target": 8000, "published": 8002, "host_ip": "10.0.0.1"}], ("10.0.0.1", 8002)),
        (["8000"], None),
        ([{"target": 8000}], None),
        (["8002:8001"], None),
        ([], None),
    ],
)
def test_published_ports(ports: list[Any], published: tuple[str, int] | None) -> None:
    """Short and long form, addresses, ranges; another container port is not the server's."""
    assert only(compose({"image": IMAGE, "ports": ports})).published == published


def test_ports_are_never_read_as_numbers_in_base_60() -> None:
    """`- 8000:22` without quotes stays what was written."""
    text = "services:\n  a:\n    image: vllm/vllm-openai\n    command: --port 22\n    ports:\n      - 40:22\n"
    assert only(read_compose(text)).published == ("127.0.0.1", 40)


@pytest.mark.parametrize(
    ("service", "inside", "url"),
    [
        ({"image": IMAGE, "ports": ["8002:8000"]}, False, "http://127.0.0.1:8002"),
        ({"image": IMAGE, "ports": ["0.0.0.0:8002:8000"]}, False, "http://127.0.0.1:8002"),
        ({"image": IMAGE, "ports": ["[::1]:8002:8000"]}, False, "http://[::1]:8002"),
        ({"image": IMAGE, "ports": ["8002:8000"]}, True, "http://a:8000"),
        ({"image": IMAGE, "network_mode": "host", "command": "--port 8005"}, False, "http://127.0.0.1:8005"),
        ({"image": IMAGE, "network_mode": "host", "command": "--port 8005"}, True, "http://127.0.0.1:8005"),
        ({"image": IMAGE}, False, "http://a:8000"),
    ],
)
def test_urls(service: dict[str, Any], inside: bool, url: str) -> None:
    """Published ports from outside, the service name from inside, the port itself on the host network."""
    (block,) = blocks_of(compose(service), inside=inside)
    assert block.url == url


@pytest.mark.parametrize("form", ["map", "list", "env_file", "env_file_long"])
def test_environment_in_every_form(form: str) -> None:
    """Map, list, and env_file (the service's own environment wins) all reach the server."""
    service: dict[str, Any] = {"image": IMAGE}
    files = {"vllm.env": "# comment\nexport VLLM_CPU_OFFLOAD_GB='4'\nX=1 # note\n"}
    if form == "map":
        service["environment"] = {"VLLM_CPU_OFFLOAD_GB": 4, "X": None}
    elif form == "list":
        service["environment"] = ["VLLM_CPU_OFFLOAD_GB=4"]
    elif form == "env_file":
        service["env_file"] = "vllm.env"
    else:
        service["env_file"] = [{"path": "vllm.env", "required": True}]
    found = compose(service, read=files.get)
    assert only(found).command.environment["VLLM_CPU_OFFLOAD_GB"] == "4"
    assert "unknown-environment" in ids(found.findings)


def test_env_files_that_cannot_be_read_are_noted_unless_optional() -> None:
    """A missing env file is a note; `required: false` makes it none."""
    assert compose({"image": IMAGE, "env_file": "gone.env"}).notes == ("a: env_file gone.env could not be read",)
    assert compose({"image": IMAGE, "env_file": [{"path": "gone.env", "required": False}]}).notes == ()


@pytest.mark.parametrize(
    ("line", "value"),
    [("A=1", "1"), ("A='x y'", "x y"), ('A="x # y"', "x # y"), ("A=x # y", "x"), ("export A=2", "2"), ("A=", "")],
)
def test_env_file_lines(line: str, value: str) -> None:
    """Quotes, comments and `export` as Compose reads them."""
    assert parse_env_file(line + "\n# B=1\nnonsense\n1X=3\n") == {"A": value}


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("${FRACTION}", 0.4),
        ("$FRACTION", 0.4),
        ("${FRACTION:-0.2}", 0.4),
        ("${NOPE:-0.2}", 0.2),
        ("${EMPTY:-0.2}", 0.2),
        ("${NOPE-0.2}", 0.2),
        ("${FRACTION:+0.7}", 0.7),
        ("${FRACTION:?must be set}", 0.4),
        ("${NOPE:-${FRACTION}}", None),
    ],
)
def test_variables_are_filled_in_as_compose_does(text: str, fraction: float | None) -> None:
    """`${VAR}`, defaults and alternatives; nothing is run."""
    found = compose(
        {"image": IMAGE, "command": ["--gpu-memory-utilization", text]}, variables={"FRACTION": "0.4", "EMPTY": ""}
    )
    if fraction is not None:
        assert only(found).command.fraction == fraction


def test_unset_variables_are_named_and_dollars_can_be_escaped() -> None:
    """A variable without a value is reported; `$$` is a dollar sign."""
    found = compose({"image": IMAGE, "command": ["--model", "${MODEL}", "--served-model-name", "a$$b"]})
    assert found.unresolved == ("MODEL",)
    assert only(found).command.served_names == ("a$b",)


def test_anchors_merge_keys_and_extends() -> None:
    """The usual ways to share settings between services."""
    text = """
x-common: &common
  image: vllm/vllm-openai:v0.26.0
  environment: &env {A: "1"}
services:
  base:
    <<: *common
    command: --model base
    profiles: [never]
  a:
    extends: {service: base}
    command: --model a --gpu-memory-utilization 0.4
    environment: {<<: *env, B: "2"}
    profiles: []
  b:
    extends: base
    ports: !override ["8002:8000"]
"""
    servers = {server.service: server for server in read_compose(text).servers}
    assert servers["a"].command.model == "a"
    assert dict(servers["a"].command.environment) == {"A": "1", "B": "2"}
    assert servers["a"].version == "0.26.0"
    assert servers["b"].published == ("127.0.0.1", 8002)
    assert servers["b"].profiles == ("never",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services: [1]", "no `services:`"),
        ("a: 1", "no `services:`"),
        ("- x", "no `services:`"),
        ("", "no `services:`"),
        ("services:\n  a: {image: x\n", r"f.yaml:3: not valid YAML"),
        ("services:\n  a: x\n", "services.a: expected settings, found str"),
        ("services:\n  a: {extends: b}\n", "no service 'b'"),
        ("services:\n  a: {extends: b}\n  b: {extends: a}\n", "to extend"),
        ('services:\n  a: {image: x, command: "a \'b"}\n', "services.a.command: a quote is not closed"),
        ("services:\n  a: {image: x, command: {a: b}}\n", "expected text or a list"),
    ],
)
def test_what_is_no_compose_file_is_one_clear_message(text: str, message: str) -> None:
    """Place, cause and remedy, never a traceback."""
    with pytest.raises(ComposeError, match=message):
        read_compose(text, name="f.yaml")


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_data_is_read_or_refused(data: object) -> None:
    """Whatever stands in a service, it is read or refused with a ComposeError."""
    service = {"image": IMAGE, "command": data, "ports": data if isinstance(data, list) else [], "environment": data}
    with contextlib.suppress(ComposeError):
        compose(service)


# --------------------------------------------------------------------------- findings


def two(first: str, second: str, **extra: Any) -> ComposeFile:
    services = {
        "a": {"image": IMAGE, "command": f"--model a {first}", **extra.get("a", {})},
        "b": {"image": IMAGE, "command": f"--model b {second}", **extra.get("b", {})},
    }
    return read_compose(yaml.safe_dump({"services": services}))


def test_servers_that_start_together_are_a_risk() -> None:
    """Two servers on one card without health-gated order: they profile at once."""
    fractions = ("--gpu-memory-utilization 0.4", "--gpu-memory-utilization 0.4")
    assert "start-order" in ids(two(*fractions).findings)
    gated = {"depends_on": {"a": {"condition": "service_healthy"}}}
    assert "start-order" not in ids(two(*fractions, b=gated).findings)
    started = {"depends_on": {"a": {"condition": "service_started"}}}
    assert "start-order" in ids(two(*fractions, b=started).findings)


def test_servers_on_different_cards_do_not_disturb_each_other() -> None:
    """Device ids keep them apart."""
    apart = {name: {"environment": {"NVIDIA_VISIBLE_DEVICES": str(n)}} for n, name in enumerate("ab")}
    found = two("--gpu-memory-utilization 0.9", "--kv-cache-memory-bytes 2G", **apart)
    assert found.findings == ()
    assert [server.gpus for server in found.servers] == [("0",), ("1",)]


def test_flags_that_do_not_exist_and_missing_statistics() -> None:
    """The wrong flags of circulating advice are errors with what to use instead."""
    found = compose({"image": IMAGE, "command": "--model m --prefix-caching-memory-percentage 0.1 --disable-log-stats"})
    assert ids(found.findings) == ["flag-does-not-exist", "log-stats-disabled"]
    assert {finding.severity for finding in found.findings} == {"error"}


def test_kv_bytes_with_the_default_fraction_on_a_shared_card() -> None:
    """The start-up check still compares the default fraction with the free memory."""
    assert "kv-bytes-with-default-fraction" in ids(
        two("--kv-cache-memory-bytes 2G", "--gpu-memory-utilization 0.3").findings
    )
    alone = compose({"image": IMAGE, "command": "--model m --kv-cache-memory-bytes 2G"})
    assert "kv-bytes-with-default-fraction" not in ids(alone.findings)


def test_the_same_multiprocess_directory_only_when_it_is_really_shared() -> None:
    """Two containers with the same path are apart, unless a volume makes it one directory."""
    environment = {"environment": {"PROMETHEUS_MULTIPROC_DIR": "/prom/x"}}
    flags = ("--gpu-memory-utilization 0.3", "--gpu-memory-utilization 0.3")
    assert "shared-multiproc-dir" not in ids(two(*flags, a=environment, b=environment).findings)
    mounted = {**environment, "volumes": ["metrics:/prom"]}
    assert "shared-multiproc-dir" in ids(two(*flags, a=mounted, b=mounted).findings)


def test_an_exporter_without_pid_host_in_the_same_file() -> None:
    """Without `pid: host` the driver shows the exporter no processes."""
    services = {"m": {"image": "ghcr.io/x/vllmeter:1"}, "a": {"image": IMAGE}}
    assert "no-pid-host" in ids(read_compose(yaml.safe_dump({"services": services})).findings)
    services["m"]["pid"] = "host"
    assert "no-pid-host" not in ids(read_compose(yaml.safe_dump({"services": services})).findings)


def test_replicas_are_several_servers() -> None:
    """One URL reaches only one replica, and each takes the budget."""
    assert "replicas" in ids(compose({"image": IMAGE, "deploy": {"replicas": 2}}).findings)


def test_the_three_services_of_the_example_may_not_fit_and_a_set_that_does() -> None:
    """1.0 + 1.5 + 4.5 GiB on a card with 7.78 GiB: on paper yes, with three contexts no; the proposal fits."""
    found = read_compose(EXAMPLE.read_text(), name=EXAMPLE.name)
    assert found.findings == ()
    planned = [plan_of(server, active=set()) for server in found.servers]
    total = 7.78 * GIB
    (finding,) = card_findings(planned, Quantity(total, "config"))
    assert finding.id == "over-commit-with-contexts"
    assert finding.severity == "error"
    # 0.129 × 7.78 + 0.193 × 7.78 + 0.578 × 7.78 = 1.00 + 1.50 + 4.50 = 7.00 GiB
    assert "vllm-qwen3 4.50 GiB + vllm-m3 1.50 GiB + vllm-reranker 1.00 GiB = 7.00 GiB of 7.78 GiB" in finding.message
    # contexts: 3 × 300 MiB = 0.88 GiB to 3 × 700 MiB = 2.05 GiB -> 7.88 to 9.05 GiB
    assert "0.88 GiB to 2.05 GiB on top, 7.88 GiB to 9.05 GiB in all" in finding.message
    # the encoders keep theirs; the chat model: 7.78 − 2.05 − 1.50 − 1.00 = 3.22 GiB -> 0.41 (3.19 GiB)
    assert "vllm-qwen3 0.41 (3.19 GiB), vllm-m3 0.193 (1.50 GiB), vllm-reranker 0.129 (1.00 GiB)" in finding.remedy
    assert (0.41 + 0.193 + 0.129) * total + 3 * 700 * 2**20 <= total


def test_without_a_card_only_the_sum_of_fractions_is_judged() -> None:
    """No GPU at hand: fractions above 1 are an error, above 0.9 a warning, else silence."""
    unknown = Quantity(None, reason="no GPU")

    def judged(first: float, second: float) -> list[str]:
        found = two(f"--gpu-memory-utilization {first}", f"--gpu-memory-utilization {second}")
        return ids(card_findings([plan_of(server, active=set()) for server in found.servers], unknown))

    assert judged(0.6, 0.5) == ["over-commit"]
    assert judged(0.5, 0.45) == ["over-commit-with-contexts"]
    assert judged(0.4, 0.4) == []


def test_services_of_inactive_profiles_do_not_count() -> None:
    """A profile that is off takes no memory; switched on it does, and in the file it is a comment."""
    found = two("--gpu-memory-utilization 0.6", "--gpu-memory-utilization 0.6", b={"profiles": ["big"]})
    off = [plan_of(server, active=set()) for server in found.servers]
    on = [plan_of(server, active={"big"}) for server in found.servers]
    unknown = Quantity(None, reason="no GPU")
    assert card_findings(off, unknown) == []
    assert ids(card_findings(on, unknown)) == ["over-commit"]
    text = render_config(blocks_of(found), source="x")
    assert [server.name for server in parse_config(text).servers] == ["a"]
    assert "# off: profile big" in text
    both = render_config(blocks_of(found, active={"big"}), source="x")
    assert [server.name for server in parse_config(both).servers] == ["a", "b"]


# --------------------------------------------------------------------------- the written file


def test_the_example_becomes_a_configuration_that_loads() -> None:
    """Names, URLs, budgets, containers and logs of the three services, as the configuration reads them."""
    found = read_compose(EXAMPLE.read_text(), name=EXAMPLE.name)
    planned = [plan_of(server, active=set()) for server in found.servers]
    findings = [*found.findings, *card_findings(planned, Quantity(7.78 * GIB, "config"))]
    text = render_config(blocks_of(found), source=EXAMPLE.name, findings=findings)
    loaded = parse_config(text)
    rows = [
        (
            s.name,
            s.url,
            s.budget and s.budget.fraction,
            s.match and s.match.container,
            s.log and s.log.docker,
            s.version,
        )
        for s in loaded.servers
    ]
    assert rows == [
        ("vllm-qwen3", "http://127.0.0.1:8002", 0.578, "vllm-qwen3", "vllm-qwen3", "0.26.0"),
        ("vllm-m3", "http://127.0.0.1:8001", 0.193, "vllm-m3", "vllm-m3", "0.26.0"),
        ("vllm-reranker", "http://127.0.0.1:8000", 0.129, "vllm-reranker", "vllm-reranker", "0.26.0"),
    ]
    assert "# [error] vllm-qwen3, vllm-m3, vllm-reranker: the budgets fit on paper" in text
    assert "#   -> fractions that fit" in text


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("--kv-cache-memory-bytes 2G --gpu-memory-utilization 0.4", "# budget: --kv-cache-memory-bytes 2,147,483,648"),
        ("--config /x.yaml", "# budget: may stand in /x.yaml"),
        ("--model m", "budget: {fraction: 0.92}  # not set: vLLM's default"),
    ],
)
def test_budget_lines(command: str, part: str) -> None:
    """Where the fraction does not say it all, the line says why."""
    text = render_config(blocks_of(compose({"image": IMAGE, "command": command})), source="x")
    assert part in text
    assert len(parse_config(text).servers) == 1


def test_the_container_name_follows_compose() -> None:
    """Without container_name Compose calls it PROJECT-SERVICE-1, which the log needs."""
    (block,) = blocks_of(compose({"image": IMAGE}, project="My Stack"))
    assert block.log == ("docker", "mystack-a-1")
    assert block.match == ("container", "a")


@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,20}", fullmatch=True),
    container=st.text(min_size=1, max_size=12).filter(lambda text: text.isprintable()),
)
def test_odd_names_survive_the_file(name: str, container: str) -> None:
    """Names such as `on`, `1e5` or with quotes are read back as they were."""
    block = ServerBlock(name, "http://127.0.0.1:1", match=("container", container), log=("docker", container))
    (server,) = parse_config(render_config([block], source="x")).servers
    assert server.name == name
    assert server.match is not None
    assert server.match.container == container


def test_no_server_at_all_still_loads() -> None:
    """An empty list is a valid configuration."""
    assert parse_config(render_config([], source="x")).servers == ()


def test_a_comment_cannot_end_and_go_on_as_configuration() -> None:
    """A line end or control character in an image name stays within its comment."""
    text = (
        "services:\n  chat:\n    image: \"vllm/vllm-openai:v0.26.0\\nservers: [{name: evil, url: 'http://x'}]\\0\"\n"
        "    command: --model m --gpu-memory-utilization 0.5\n    ports: ['8000:8000']\n"
    )
    rendered = render_config(blocks_of(read_compose(text)), source="a\nlisten: 0.0.0.0:1")
    settings = parse_config(rendered)
    assert [server.name for server in settings.servers] == ["chat"]
    assert settings.listen == "127.0.0.1:9877"
