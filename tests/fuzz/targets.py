"""What is fuzzed: everything that reads what others wrote.  Each target takes bytes and says whether they parsed.

Structure-aware: a target builds a document that is valid but for a few changes, so that most inputs get past the front
door.  An AssertionError or any exception but the reader's own is a finding.
"""

from __future__ import annotations

import copy
import gzip
import json
import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from fuzz.source import Source
from vllmeter.config.load import ConfigError, parse_config
from vllmeter.exposition.parse import ParseError, Parser
from vllmeter.memory.compose_file import ComposeError, blocks_of, read_compose, render_config
from vllmeter.memory.startup_log import StartupLog, describe
from vllmeter.render.text import ServerText, document
from vllmeter.runs.importers import IMPORTERS
from vllmeter.runs.importers.reading import ResultFile
from vllmeter.runs.results import ResultFileError
from vllmeter.snapshot import ServerReading
from vllmeter.upstream.normalise import Normaliser
from vllmeter.windows.tracker import ServerTracker

TESTS = Path(__file__).resolve().parents[1]
TEXT = "text/plain; version=0.0.4"

VALUES = (
    "0",
    "1",
    "2.5",
    "1e3",
    "12345678901234567890",
    "NaN",
    "+Inf",
    "-Inf",
    "-1",
    "1e308",
    "5e-324",
    "0.30000000000000004",
)
BAD_VALUES = ("", "x", "0x10", "1_0", "1,5", "--1", "1e", "nan nan")
LABEL_VALUES = ("0", "m", "", "a b", "é", '\\"', "\\\\", "\\n", "{", "}", ",", "=", "#", "\\", '{a=\\"b\\"}', "x" * 300)
WORDS = (
    "None",
    "True",
    "0.9",
    "auto",
    "-1",
    "1e400",
    "[]",
    "{}",
    "é",
    "\x00",
    "9" * 40,
    "a: b",
    "${X}",
    "&a",
    "*a",
    "!!x",
)


# --------------------------------------------------------------------------- /metrics


@lru_cache(maxsize=1)
def _real_lines() -> tuple[tuple[str, ...], ...]:
    """Families of captured bodies: each a block of lines."""
    blocks: dict[str, list[str]] = {}
    for path in sorted((TESTS / "captures" / "bodies").glob("*.prom.gz")):
        block: list[str] = []
        for line in gzip.decompress(path.read_bytes()).decode().split("\n"):
            if line.startswith("# HELP"):
                block = blocks.setdefault(line.split(" ")[2], [])
                if block:
                    block = []  # known already
            block.append(line)
    return tuple(tuple(block) for block in blocks.values() if len(block) < 60)


def exposition_text(source: Source) -> str:
    """Families of real bodies with other values, labels, orders and now and then a broken line."""
    lines: list[str] = []
    seen = set()
    tame = source.often(4)
    for _ in range(1 + source.number(5)):
        block = source.pick(_real_lines())
        if block in seen:
            continue
        seen.add(block)
        changed = list(block)
        for _ in range(source.number(4)):
            _change(source, changed, broken=not tame)
        lines += changed
    if not tame and not source.often(4):
        source_line = source.text(40).decode("utf-8", "replace")
        lines.insert(source.number(len(lines) + 1), source_line)
    return "\n".join(line for line in lines if line or source.often()) + "\n"


def _change(source: Source, lines: list[str], *, broken: bool) -> None:
    """Changes one line; ``broken`` also in ways that a body does not survive."""
    if not lines:
        return
    at = source.number(len(lines))
    line = lines[at]
    kind = source.number(16 if broken else 12)
    head, blank, _ = line.rpartition(" ")
    if kind < 8 and not line.startswith("#") and blank:
        lines[at] = f"{head} {source.pick(VALUES)}"
    elif kind < 10 and '="' in line:
        before, _, rest = line.partition('="')
        _, quote, after = rest.partition('"')
        lines[at] = f'{before}="{source.pick(LABEL_VALUES)}{quote}{after}'
    elif kind == 10:
        del lines[at]
    elif kind == 11:
        lines[at] = line + source.pick(("", " 1600000000000", " 0", "  "))
    elif kind == 12:
        lines[at], lines[-1] = lines[-1], lines[at]  # a TYPE line after its samples
    elif kind == 13 and blank and not line.startswith("#"):
        lines[at] = f"{head} {source.pick(BAD_VALUES)}"
    elif kind == 14:
        lines.insert(at, line)
    elif kind == 15:
        cut = source.number(len(line) + 1)
        lines[at] = line[:cut] + source.pick(('"', "{", "}", " ", "\\", "#", "é", "1", "\x00", "\r")) + line[cut:]


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def exposition(data: bytes) -> bool:
    """Parser against the oracle, warm against cold, and all steps behind it up to our own body."""
    source = Source(data)
    first, second = exposition_text(source), exposition_text(source)
    warm = Parser()
    parsed = False
    normaliser, tracker, text = Normaliser(), ServerTracker("s"), ServerText("s")
    for number, body in enumerate((first, second, first)):
        try:
            said = warm.parse(body.encode("utf-8", "surrogateescape"), TEXT)
        except ParseError:
            assert _refused(body), "a parser that saw other bodies refuses what a new one takes"
            continue
        parsed = True
        ours = [(s.name, dict(s.labels), value) for s, value in zip(said.series, said.values, strict=True)]
        _against_oracle(body, ours)
        reading = normaliser.normalise(said, None)
        _sound(reading)
        tracker.observe(reading, float(number), wall=1.8e9 + number)
        tracker.windowed(60.0)
        _renders(text, reading)
    return parsed


def _refused(body: str) -> bool:
    try:
        Parser().parse(body.encode("utf-8", "surrogateescape"), TEXT)
    except ParseError:
        return True
    return False


def _against_oracle(body: str, ours: list[tuple[str, dict[str, str], float]]) -> None:
    """Where prometheus_client reads a body too, it reads the same."""
    if "\r" in body or "\x00" in body:
        return  # it splits and strips what Unicode calls a line end or a blank; the format knows \n only
    try:
        theirs = [(s.name, s.labels, s.value) for f in text_string_to_metric_families(body) for s in f.samples]
    except (ValueError, IndexError, KeyError, AttributeError, TypeError):
        return  # it refuses, or breaks on, lines of which the format says that they are comments
    assert len(ours) == len(theirs)
    for (name, labels, value), (other_name, other_labels, other_value) in zip(ours, theirs, strict=True):
        assert name == other_name
        assert labels == other_labels, (labels, other_labels)
        assert _same(value, float(other_value)), (name, value, other_value)


def _sound(reading: ServerReading) -> None:
    """What leaves the normaliser can be true."""
    layout = reading.layout
    assert len(reading.values) == len(layout.scalars)
    assert len(reading.buckets) == len(reading.sums) == len(layout.histograms)
    for ref, value in zip(layout.scalars, reading.values, strict=True):
        if ref.family.endswith("_total"):
            assert 0 <= value < math.inf, (ref, value)
        if ref.family.endswith("_ratio"):
            assert 0 <= value <= 1 or math.isnan(value), (ref, value)
    for ref_, counts in zip(layout.histograms, reading.buckets, strict=True):
        assert len(counts) == len(ref_.bounds) + 1
        assert all(low <= high for low, high in pairwise(counts)), (ref_, counts)
        assert all(low < high for low, high in pairwise(ref_.bounds)), ref_


def _renders(text: ServerText, reading: ServerReading) -> None:
    """Our own body is valid, says each series once, and the values of the reading."""
    body = document([text.render(reading)], openmetrics=False).decode()
    series = set()
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in series, key
            series.add(key)
            assert sample.labels["server"] == "s"
    assert len(series) == text.series


# --------------------------------------------------------------------------- YAML and JSON


def _mutate(source: Source, value: Any, depth: int = 0) -> Any:
    """The document with some nodes replaced, dropped, doubled or retyped; often unchanged."""
    if depth > 8 or source.empty:
        return value
    if isinstance(value, dict) and value:
        out = {key: _mutate(source, item, depth + 1) for key, item in value.items()} if source.often(2) else dict(value)
        if not source.often(10):
            key = source.pick(list(out))
            action = source.number(4)
            if action == 0:
                del out[key]
            elif action == 1:
                out[key] = _odd(source)
            elif action == 2:
                out[source.pick(("x", "url", "name", "servers", "services", "command", "metrics", ""))] = out[key]
            else:
                out[key] = [out[key], copy.copy(out[key])]
        return out
    if isinstance(value, list) and value:
        out_list = [_mutate(source, item, depth + 1) for item in value[:40]]
        if not source.often(10):
            out_list[source.number(len(out_list))] = _odd(source)
        return out_list
    return value if source.often(40) else _odd(source)


def _odd(source: Source) -> Any:
    return source.pick(
        (None, True, 0, -1, 1.5, 1e308, "", "x", [], {}, [[]], {"a": None}, 10**30, 10**400, float("inf"), *WORDS)
    )


CONFIGS: tuple[dict[str, Any], ...] = (
    {
        "listen": "127.0.0.1:9877",
        "interval": "1s",
        "servers": [
            {
                "name": "chat",
                "url": "http://127.0.0.1:8002",
                "budget": {"fraction": 0.57},
                "match": {"container": "chat"},
                "log": {"docker": "chat"},
                "timeout": {"read": "10s"},
                "auth": {"bearer_token_env": "T"},
                "tls": {"ca_file": "/ca.pem"},
            },
            {"name": "embed", "url": "http://127.0.0.1:8001", "budget": {"bytes": "1.5GiB"}, "interval": "500ms"},
        ],
        "windows": ["5m"],
        "nvml": {"processes_every": "2s"},
        "discovery": {"file": {"files": ["/x/*.json"]}, "dns": {"name": "vllm", "port": 8000}},
        "prometheus": {"url": "http://127.0.0.1:9090"},
    },
)


GOOD: dict[str, tuple[Any, ...]] = {
    "interval": ("1s", "500ms", 2, "0.25s", "1h"),
    "fraction": (0.01, 0.57, 1, 1.0),
    "bytes": ("4.5GiB", "1MB", 1, 2**40),
    "url": ("http://127.0.0.1:8002", "https://[::1]:8443/base/", "http://x"),
    "name": ("a", "A.b_c:d/e-f", "0", "x" * 63),
    "windows": ([], ["5m"], ["2s", "15m", "90s"]),
    "listen": ("127.0.0.1:0", "[::]:9877", "0.0.0.0:65535"),
    "port": (1, 65535),
    "read": ("1ms", "7d"),
    "container": ("a", "é", " ", "'\"", "x: y", "#", "0"),
}


def _varied(source: Source, value: Any, key: str = "") -> Any:
    """Other values that are right."""
    if key in GOOD and source.number(2):
        return source.pick(GOOD[key])
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if name in ("name", "url", "port") or source.often(6)}
        out = {name: _varied(source, item, name) for name, item in kept.items()}
        return out if out or not value else value
    return [_varied(source, item) for item in value] if isinstance(value, list) else value


def config(data: bytes) -> bool:
    """A configuration is read, or refused with a line for each mistake."""
    source = Source(data)
    base = source.pick(CONFIGS)
    text = _as_yaml(source, _mutate(source, base)) if source.number(4) == 3 else yaml.safe_dump(_varied(source, base))
    try:
        settings = parse_config(text, "f.yaml")
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.startswith("f.yaml:"), problem
            assert problem.split(":")[1].isdigit(), problem
        return False
    assert len({server.name for server in settings.servers}) == len(settings.servers)
    again = yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True))
    assert parse_config(again, "again.yaml").servers == settings.servers
    return True


def _as_yaml(source: Source, document_: Any) -> str:
    text = yaml.safe_dump(document_, sort_keys=False, allow_unicode=True)
    if not source.often(10):
        at = source.number(len(text) + 1)
        text = (
            text[:at]
            + source.pick((":", "-", "\t", "{", "&a ", "*a", "<<: ", "!!python/object:x ", "\n", "'"))
            + text[at:]
        )
    return text


COMPOSES: tuple[dict[str, Any], ...] = (
    {
        "name": "demo",
        "services": {
            "chat": {
                "image": "vllm/vllm-openai:v0.26.0",
                "command": ["--model", "Qwen/Qwen3-1.7B", "--gpu-memory-utilization", "0.57", "--port", "8002"],
                "ports": ["8002:8002"],
                "environment": {"HF_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "0"},
                "deploy": {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": 1}]}}},
                "depends_on": {"embed": {"condition": "service_healthy"}},
            },
            "embed": {
                "image": "vllm/vllm-openai",
                "command": "--model BAAI/bge-m3 --runner pooling --kv-cache-memory-bytes 1G",
                "ports": [{"target": 8000, "published": "8001"}],
                "env_file": [".env"],
                "volumes": ["./m:/m"],
                "extends": {"service": "chat"},
                "profiles": ["a"],
            },
        },
    },
)


def compose(data: bytes) -> bool:
    """A Compose file is read or refused; what init writes from it is a valid configuration."""
    source = Source(data)
    text = _as_yaml(source, _mutate(source, source.pick(COMPOSES)))
    try:
        found = read_compose(text, read=lambda _path: "A=1\nB\n", variables={"X": "y"}, profiles=("a",))
    except ComposeError as error:
        assert str(error).startswith(("compose.yaml:", "services."))
        return False
    blocks = blocks_of(found)
    if blocks:
        rendered = render_config(blocks, source="compose.yaml")
        parse_config(rendered, "rendered.yaml")
    return True


# --------------------------------------------------------------------------- start-up logs


@lru_cache(maxsize=1)
def _log_lines() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(lines that say something, all lines) of real logs."""
    lines: dict[str, None] = {}
    telling: dict[str, None] = {}
    for path in sorted((TESTS / "captures" / "logs").glob("*.log")):
        log = StartupLog()
        for line in path.read_text(errors="replace").split("\n"):
            lines[line] = None
            if log.feed(line):
                telling[line] = None
    return tuple(telling), tuple(lines)


def startup_log(data: bytes) -> bool:
    """Lines of real logs in any order, with other numbers and damage."""
    source = Source(data)
    log = StartupLog()
    changed = False
    for _ in range(1 + source.number(30)):
        telling, every = _log_lines()
        line = source.pick(telling if source.often(3) else every)
        kind = source.number(6)
        if kind == 4:
            digits = [at for at, c in enumerate(line) if c.isdigit()]
            if digits:
                at = source.pick(digits)
                line = line[:at] + source.pick(("", "9" * 30, "-", ".", "0", "e9", "é")) + line[at + 1 :]
        elif kind == 5:
            at = source.number(len(line) + 1)
            line = line[:at] + source.text(20).decode("utf-8", "replace") + line[at:]
        changed = log.feed(line) or changed
    for words in describe(log.facts).values():
        assert isinstance(words, str)
    for worker in log.facts.workers:
        assert worker.cuda_total is None or worker.cuda_total > 0
    return changed


# --------------------------------------------------------------------------- results of load tests


@lru_cache(maxsize=1)
def _results() -> tuple[tuple[str, Any], ...]:
    """(name, JSON document or text) of small results."""
    found: list[tuple[str, Any]] = []
    for path in sorted((TESTS / "runs" / "fixtures").iterdir()):
        if path.suffix == ".md" or path.stat().st_size > 9000:
            continue
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        if ".json" in path.name and ".jsonl" not in path.name:
            found.append((path.name, _shortened(json.loads(text))))
        else:
            found.append((path.name, "\n".join(text.split("\n")[:30]) + "\n"))
    return tuple(found)


def _shortened(value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(item) for item in value[:12]]
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return value


def results(data: bytes) -> bool:
    """A result is read or refused with its place; numbers that are read are finite."""
    source = Source(data)
    name, document_ = source.pick(_results())
    if isinstance(document_, str):
        lines = document_.split("\n")
        for _ in range(source.number(4)):
            at = source.number(len(lines))
            cut = source.number(len(lines[at]) + 1)
            lines[at] = (
                lines[at][:cut]
                + source.pick(("", ",", '"', "-1", "NaN", "é", "\n", "{", "1e999"))
                + lines[at][cut + 1 :]
            )
        text = "\n".join(lines)
    else:
        text = json.dumps(_mutate(source, document_))
    file = ResultFile(name, text)
    try:
        importer = next((one for one in IMPORTERS if one.recognises(file)), None)
        if importer is None:
            return False
        read = importer.read(file)
    except ResultFileError as error:
        assert str(error).startswith(name)
        return False
    for result in read:
        for record in result.requests:
            for value in (record.ttft, record.e2e):
                assert value is None or 0 <= value < math.inf, record
    return True


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "exposition": exposition,
    "config": config,
    "compose": compose,
    "startup_log": startup_log,
    "results": results,
}
