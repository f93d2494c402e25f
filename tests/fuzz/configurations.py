"""Configurations that are right, with every setting; what is read is compared with YAML and arithmetic of their own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import yaml

from fuzz.damage import DUMPER, LOADER, as_yaml, damaged_text, mutate
from fuzz.source import Source
from vllmeter.config.load import ConfigError, parse_config
from vllmeter.config.settings import Server, Settings
from vllmeter.config.values import parse_duration

URLS = (
    "http://127.0.0.1:8002/",
    "https://[::1]:8443/base/",
    "http://x/",
    "http://é.example:1/a%20b",
    "https://h:65535/",
)
NAMES = ("a", "A.b_c:d/e-f", "0", "x" * 60)
TEXTS = ("a", "é", " ", "'\"", "x: y", "#", "0", "null", "on", "22:22", "\\", "-", "1e3", "~", "{", "a\nb", "\x7f")
SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}
BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "": 1}


def duration(source: Source, low: int = 0) -> Any:
    """More than ``low`` seconds, at most a few minutes or hours."""
    whole = 1 + low + source.number(90)
    kind = source.number(6)
    if kind == 0:
        return whole
    if kind == 1:
        return whole + source.number(1000) / 1000
    unit = source.pick(("s", "ms", "m", "h") if not low else ("s", "m"))
    part = f".{source.number(100000)}" if source.number(2) else ""
    whole = min(whole, 14) if low and unit == "m" else whole
    return f"{whole}{'' if low and unit == 'm' else part}{' ' if source.number(4) == 1 else ''}{unit}"


def size(source: Source) -> Any:
    """A number of bytes in any form."""
    whole = 1 + source.number(5000)
    if source.number(4) == 0:
        return whole * 1024
    return f"{whole}{f'.{source.number(1000)}' if source.number(2) else ''}{source.pick(list(BYTES))}"


def _some(source: Source, choices: Mapping[str, Any]) -> dict[str, Any]:
    return {name: make() for name, make in choices.items() if source.number(3) == 0}


def _server(source: Source, number: int) -> dict[str, Any]:
    port = lambda: 1 + source.number(65535)  # noqa: E731
    word = lambda: source.pick(TEXTS)  # noqa: E731
    made = {"name": source.pick(NAMES) + str(number), "url": f"{source.pick(URLS)}{number}"}
    auth = (
        {"bearer_token_env": "T"},
        {"bearer_token_file": "/t"},
        {"username": word(), "password_env": "P"},
        {"username": word(), "password_file": "/p"},
    )
    match = ({"container": word()}, {"unit": "a.service"}, {"port": port()}, {"command": "a.*b"}, {"pod": word()})
    return made | _some(
        source,
        {
            "advertise_url": lambda: source.pick(URLS),
            "metrics_path": lambda: source.pick(("/metrics", "/", "/é")),
            "interval": lambda: duration(source),
            "timeout": lambda: {key: duration(source) for key in ("connect", "read", "total") if source.number(2)},
            "max_body": lambda: size(source),
            "auth": lambda: source.pick(auth),
            "tls": lambda: source.pick(({"ca_file": "/ca"}, {"cert_file": "/c", "key_file": "/k"}, {})),
            "budget": lambda: (
                {
                    "bytes": source.pick(
                        (f"{1 + source.number(90)}.{source.number(1000)}GiB", 2**30 + source.number(65536))
                    )
                }
                if source.number(2)
                else {"fraction": source.pick((1, 1.0, 0.57, 0.1 + source.number(9000) / 10000, "0.5"))}
            ),
            "match": lambda: source.pick(match),
            "log": lambda: source.pick(({"docker": word()}, {"file": "/l"}, {"journal": word()})),
            "model_config_file": lambda: "/m/config.json",
            "version": lambda: source.pick(("0.26.0", "v1")),
            "expose": lambda: {"without": source.pick(([], ["ttft_seconds", "iteration_tokens"]))},
            "canary": lambda: bool(source.number(2)),
        },
    )


def right(source: Source) -> dict[str, Any]:
    """A configuration without mistakes."""
    port = lambda: 1 + source.number(65535)  # noqa: E731
    made = _some(
        source,
        {
            "listen": lambda: source.pick(("127.0.0.1:0", "[::]:9877", "0.0.0.0:65535", f"h:{source.number(65536)}")),
            "interval": lambda: duration(source),
            "windows": lambda: [duration(source, 2) for _ in range(source.number(5))],
            "nvml": lambda: {
                "enabled": bool(source.number(2)),
                "interval": duration(source),
                "processes_every": duration(source),
            },
            "docker": lambda: source.pick(({}, {"socket": "/s"})),
            "discovery": lambda: _some(
                source,
                {
                    "processes": lambda: bool(source.number(2)),
                    "file": lambda: {"files": ["/x/*.json"], "every": duration(source)},
                    "http": lambda: {"url": "http://x", "every": duration(source)},
                    "dns": lambda: {"name": "vllm", "port": port(), "every": duration(source)},
                    "kubernetes": lambda: {"port": port(), "every": duration(source)},
                },
            ),
            "prometheus": lambda: {"url": "http://127.0.0.1:9090"},
            "state_dir": lambda: "/s",
            "web_config": lambda: "/w",
        },
    )
    made["servers"] = [_server(source, number) for number in range(source.number(4))]
    return made


# --------------------------------------------------------------------------- an independent reading


def seconds(value: Any) -> float:
    """What a duration says, exactly."""
    if isinstance(value, str):
        number, unit = re.fullmatch(r"\s*([\d.]+)\s*(\w+)\s*", value).groups()  # type: ignore[union-attr]
        return float(Fraction(number) * SECONDS[unit])
    return float(value)


def bytes_of(value: Any) -> int:
    """What a size says, exactly."""
    if isinstance(value, str):
        number, unit = re.fullmatch(r"\s*([\d.]+)\s*(\w*)\s*", value).groups()  # type: ignore[union-attr]
        return math.floor(Fraction(number) * (2**40 if unit == "TiB" else 10**12 if unit == "TB" else BYTES[unit]))
    return int(value)


def _close(ours: float | None, said: Any) -> None:
    assert ours is not None
    assert math.isclose(ours, seconds(said), rel_tol=1e-12), (ours, said)


def _said(value: Any) -> Any:
    """The document without what is null: that is the same as not saying it."""
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item is not None}
    return [_said(item) for item in value] if isinstance(value, list) else value


def _compare(settings: Settings, said: Mapping[str, Any]) -> None:
    if "interval" in said:
        _close(settings.interval, said["interval"])
    for ours, each in zip(settings.windows, said.get("windows", ()), strict=True):
        _close(ours, each)
    nvml = said.get("nvml", {})
    for key in ("interval", "processes_every"):
        if key in nvml:
            _close(getattr(settings.nvml, key), nvml[key])
    for kind, found in said.get("discovery", {}).items():
        ours_of = getattr(settings.discovery, kind)
        if isinstance(found, dict):
            if "every" in found:
                _close(ours_of.every, found["every"])
            if "port" in found:
                assert ours_of.port == int(found["port"])
    servers = said.get("servers", ())
    assert len(servers) == len(settings.servers)
    for server, found in zip(settings.servers, servers, strict=True):
        _compare_server(server, found)


def _compare_server(server: Server, said: Mapping[str, Any]) -> None:
    assert server.name == said["name"]
    assert server.url == said["url"].rstrip("/")
    if "interval" in said:
        _close(server.interval, said["interval"])
    for key, value in said.get("timeout", {}).items():
        _close(getattr(server.timeout, key), value)
    if "max_body" in said:
        assert abs(server.max_body - bytes_of(said["max_body"])) <= 1
    budget = said.get("budget") or {}
    if "bytes" in budget:
        assert server.budget is not None
        assert server.budget.bytes is not None
        assert abs(server.budget.bytes - bytes_of(budget["bytes"])) <= 1
    if "fraction" in budget:
        assert server.budget is not None
        assert server.budget.fraction == float(budget["fraction"])
        assert not isinstance(budget["fraction"], bool)
    match = said.get("match") or {}
    for key, value in match.items():
        assert getattr(server.match, key) == (int(value) if key == "port" else value)


def _same_nodes(one: yaml.Node, other: yaml.Node, depth: int = 0) -> None:
    """libyaml and PyYAML read the same tags, values and lines."""
    assert type(one) is type(other)
    assert one.tag == other.tag
    # Where nothing stands after a "?" at the very end, libyaml names the line after it
    assert one.start_mark.line == other.start_mark.line or one.value == "", (one, other)
    if depth > 20:
        return
    if isinstance(one, yaml.ScalarNode):
        assert one.value == other.value, (one.value, other.value)
        return
    assert len(one.value) == len(other.value)
    for mine, theirs in zip(one.value, other.value, strict=True):
        for a, b in zip(mine, theirs, strict=True) if isinstance(mine, tuple) else ((mine, theirs),):
            _same_nodes(a, b, depth + 1)


def config(data: bytes) -> bool:
    """A configuration is read as it says, or refused with a line for each mistake."""
    source = Source(data)
    document = right(source)
    damage = source.damage()
    if source.wild:
        document = mutate(damage, document)
    text = as_yaml(source, document)
    if source.wild and source.lot % 3 == 0:
        text = damaged_text(damage, text)
    if source.lot % 32 in (0, 3) and len(text) < 5000:
        _both_loaders(text)
    try:
        settings = parse_config(text, "f.yaml")
    except ConfigError as error:
        assert source.wild, ("a configuration without mistakes is refused", error.problems)
        assert error.problems
        for problem in error.problems:
            assert problem.startswith("f.yaml:"), problem
            assert problem.split(":")[1].isdigit(), problem
        return False
    assert len({server.name for server in settings.servers}) == len(settings.servers)
    try:
        said = yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, AttributeError, LookupError, ValueError):
        assert source.wild
    else:
        if "!!" not in text:  # what a tag makes of a mapping is no concern of the settings
            _compare(settings, _said(said or {}))
    labels = settings.all_windows()
    assert len({label for label, _ in labels}) == len(labels), labels
    assert all(parse_duration(label) == value for label, value in labels), labels
    if source.lot % 8 == 0:
        again = yaml.dump(settings.model_dump(mode="json", exclude_none=True), Dumper=DUMPER)
        assert parse_config(again, "again.yaml").servers == settings.servers
    return True


def _both_loaders(text: str) -> None:
    try:
        one, other = yaml.compose(text, Loader=LOADER), yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return
    if one is None or other is None:
        assert one is other
        return
    _same_nodes(one, other)
