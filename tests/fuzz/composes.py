"""Compose files whose services are known because the file is built from them, with variables one within another."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from fuzz.damage import WORDS, as_yaml, damaged_text, mutate
from fuzz.source import Source
from vllmeter.config.load import parse_config
from vllmeter.memory.compose_file import (
    ComposeError,
    ComposeFile,
    blocks_of,
    parse_env_file,
    read_compose,
    render_config,
)

IMAGES = (
    ("vllm/vllm-openai:v0.26.0", "0.26.0"),
    ("vllm/vllm-openai", None),
    ("vllm/vllm-openai:latest", None),
    ("registry:5000/vllm/vllm-openai-cpu:0.11.1", "0.11.1"),
    ("ghcr.io/x/vllm@sha256:aa", None),
)
MODELS = ("Qwen/Qwen3-1.7B", "BAAI/bge-m3", "/m/x", "a b", "é", "a$b")


@dataclass(slots=True)
class Service:
    """What a service is, before it is written."""

    model: str
    port: int = 8000
    published: tuple[str, int] | None = None
    fraction: float | None = None
    gpus: tuple[str, ...] = ()
    replicas: int = 1
    version: str | None = None
    host_network: bool = False
    container_name: str | None = None
    variables: dict[str, str] = field(default_factory=dict)


def expression(source: Source, value: str, variables: dict[str, str], depth: int = 0) -> str:
    """Text that Compose turns into ``value``."""
    plain = value.replace("$", "$$")
    kind = source.number(10 if depth < 3 and "}" not in value else 1)
    name = f"V{len(variables)}"
    if kind in (1, 2, 3):
        variables[name] = value
        return f"${{{name}}}" if kind == 1 or value == "" else f"${{{name}:-no}}" if kind == 2 else f"${{{name}?err}}"
    if kind in (4, 5):
        inner = expression(source, value, variables, depth + 1)
        return f"${{UNSET{':' if kind == 4 else ''}-{inner}}}"
    if kind == 6:
        variables["EMPTY"] = ""
        return f"${{EMPTY:-{expression(source, value, variables, depth + 1)}}}${{EMPTY-no}}${{EMPTY:+no}}"
    if kind == 7:
        variables["SET"] = "1"
        return f"${{SET:+{expression(source, value, variables, depth + 1)}}}${{UNSET+no}}"
    if kind == 8 and len(value) > 1:
        variables[name] = value[:1]
        return f"${{{name}}}" + value[1:].replace("$", "$$")
    return plain


def service(source: Source, number: int) -> tuple[dict[str, Any], Service]:
    """A service as it stands in the file, and what it is."""
    known = Service(model=source.pick(MODELS))
    image, known.version = source.pick(IMAGES)

    def said(value: object) -> str:
        return expression(source, str(value), known.variables)

    words: list[Any] = ["--model", said(known.model)]
    if source.number(2):
        known.port = 1024 + source.number(60000)
        words += ["--port", said(known.port)] if source.number(2) else [f"--port={said(known.port)}"]
    if source.number(2):
        known.fraction = source.pick((0.57, 0.9, 1.0, (1 + source.number(9999)) / 10000))
        words += ["--gpu-memory-utilization", known.fraction if source.number(2) else said(known.fraction)]
    made: dict[str, Any] = {"image": said(image)}
    if source.number(3) == 0:
        made["entrypoint"] = ["vllm", "serve"] if source.number(2) else "vllm serve"
    # Text is split into words after its variables have been replaced
    split = source.number(2) and " " not in known.model and "$" not in known.model
    made["command"] = " ".join(map(str, words)) if split else words
    _publish(source, made, known, said)
    if source.number(3) == 0:
        known.gpus = source.pick((("0",), ("0", "1"), ("GPU-aa",)))
        if source.number(2):
            made["environment"] = source.pick(({"CUDA_VISIBLE_DEVICES": ",".join(known.gpus)}, None)) or [
                f"NVIDIA_VISIBLE_DEVICES={said(','.join(known.gpus))}"
            ]
        else:
            device = {"driver": "nvidia", "device_ids": list(known.gpus), "capabilities": ["gpu"]}
            made["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    if source.number(4) == 0:
        known.replicas = 1 + source.number(5)
        made.setdefault("deploy", {})["replicas"] = known.replicas if source.number(2) else said(known.replicas)
    if source.number(3) == 0:
        known.container_name = f"c{number}.x"
        made["container_name"] = said(known.container_name)
    return made, known


def _publish(source: Source, made: dict[str, Any], known: Service, said: Any) -> None:
    kind = source.number(7)
    host = 1024 + source.number(60000)
    if kind == 0:
        return
    if kind == 1:
        made["network_mode"] = "host"
        known.host_network = True
        return
    known.published = ("127.0.0.1", host)
    made["ports"] = {
        2: [f"{said(host)}:{known.port}"],
        3: [{"target": known.port, "published": said(host)}, {"target": known.port, "published": 1}],
        4: [f"0.0.0.0:{host}:{known.port}/tcp"],
        5: [f"{host}:{known.port}/udp", f"[::1]:{host}:{known.port}"],
        6: ["22:22", f"{host - 1}-{host + 1}:{known.port - 1}-{known.port + 1}"],
    }[kind]
    if kind == 4:
        known.published = ("0.0.0.0", host)
    if kind == 5:
        known.published = ("::1", host)


def compose(data: bytes) -> bool:
    """A Compose file is read as it was built, or refused; what init writes from it says the same."""
    source = Source(data)
    services: dict[str, Any] = {}
    known: dict[str, Service] = {}
    variables: dict[str, str] = {"X": "y"}
    for number in range(1 + source.number(3)):
        name = source.pick(("chat", "embed", "1x", "on", "a.b", "_A-")) + str(number)
        made, facts = service(source, number)
        # Each service has names of its own
        renamed = {f"V{at}": f"S{number}_{at}" for at in range(len(facts.variables) + 1)}
        text = json.dumps(made)
        for old, new in reversed(list(renamed.items())):
            text = text.replace("${" + old, "${" + new)
        services[name] = json.loads(text)
        variables |= {renamed.get(key, key): value for key, value in facts.variables.items()}
        known[name] = facts
    document: dict[str, Any] = {"services": services}
    if source.number(2):
        document["name"] = "demo"
    damage = source.damage()
    if source.wild:
        first = next(iter(services))
        services["other"] = damage.pick(
            ({"extends": first}, {"extends": {"service": "other"}}, {"image": "x"}, None, "x")
        )
        services[first]["env_file"] = damage.pick((".env", [".env"], [{"path": ".env", "required": False}], 1))
        services[first]["depends_on"] = {"other": {"condition": "service_healthy"}}
        services[first]["volumes"] = ["./m:/m", {"source": "v", "target": "/p"}]
        services[first]["profiles"] = damage.pick((["a"], ["b"], "a"))
        document = mutate(damage, document)
    text = as_yaml(source, document)
    if source.wild and source.lot % 3 == 0:
        text = damaged_text(damage, text)
    env = "A=1\nB\nexport C='x'\nPROMETHEUS_MULTIPROC_DIR=/p/x\n" + (source.pick(WORDS) if source.wild else "")
    assert parse_env_file(env)["C"] == "x"
    try:
        found = read_compose(text, read=lambda _path: env, variables=variables, profiles=("a",))
    except ComposeError as error:
        assert source.wild, ("a Compose file without mistakes is refused", str(error))
        assert str(error).startswith(("compose.yaml:", "services")), str(error)
        return False
    if not source.wild:
        _as_built(found, known)
    _rendered(found)
    return True


def _as_built(found: ComposeFile, known: dict[str, Service]) -> None:
    assert [server.service for server in found.servers] == list(known)
    for server in found.servers:
        facts = known[server.service]
        ours = (server.command.model, server.command.port, server.published, server.command.fraction, server.gpus)
        assert ours == (facts.model, facts.port, facts.published, facts.fraction, facts.gpus), (ours, facts)
        rest = (server.replicas, server.version, server.host_network, server.container_name)
        assert rest == (facts.replicas, facts.version, facts.host_network, facts.container_name), (rest, facts)
        assert not server.command.problems, server.command.problems
    assert set(found.unresolved) <= {"EMPTY"}, found.unresolved


def _rendered(found: ComposeFile) -> None:
    """What init writes is a configuration with the same servers, ports and fractions."""
    for inside in (False, True):
        blocks = blocks_of(found, inside=inside)
        urls = [block.url for block in blocks if block.disabled is None]
        if not blocks or len(set(urls)) != len(urls) or len({block.name for block in blocks}) != len(blocks):
            continue  # two services at one address: init says so, and the configuration is refused
        settings = parse_config(render_config(blocks, source="compose.yaml", findings=found.findings), "rendered.yaml")
        enabled = [block for block in blocks if block.disabled is None]
        assert [server.name for server in settings.servers] == [block.name for block in enabled]
        for server, block in zip(settings.servers, enabled, strict=True):
            assert server.url == block.url
            assert (server.budget.fraction if server.budget else None) == block.fraction
            assert server.version == block.version
            if block.match is not None:
                assert server.match is not None
                assert getattr(server.match, block.match[0]) == block.match[1], (server.match, block)
            if block.log is not None:
                assert server.log is not None
                assert str(getattr(server.log, block.log[0])) == block.log[1], (server.log, block)
