"""Command lines whose meaning is known because they are built from it, and any others."""

from __future__ import annotations

import json
import math
import shlex
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fuzz.damage import WORDS
from fuzz.source import Source
from vllmeter.memory import serve_flags
from vllmeter.memory.flags import (
    NEVER_EXISTED,
    OLDER_OPTIONS,
    ServeCommand,
    config_file_arguments,
    find_server,
    parse_arguments,
    parse_command,
    with_environment,
)

VALUES = ("a", "0.57", "1", "8002", "x/y", "é", "a b", "{}", '{"a": {"b": 1}}', "=", "a=b", "-1", "-0.5", "", "'", '"')
SIZES = ("4096", "2g", "2G", "25.6k", "1K", "0.5m", "3T", "1t")
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
KNOWN = (
    "gpu_memory_utilization", "max_model_len", "kv_cache_memory_bytes", "port", "tensor_parallel_size", "runner",
    "task", "enforce_eager", "optimization_level", "compilation_config", "served_model_name", "max_num_seqs", "model",
)  # fmt: skip


@lru_cache(maxsize=1)
def _options() -> tuple[tuple[tuple[str, ...], str], ...]:
    return tuple(
        (names, kind) for names, kind in serve_flags.OPTIONS if names[0] not in ("--config", "--help", "--model")
    )


@lru_cache(maxsize=1)
def _negated() -> frozenset[str]:
    return frozenset(name for names, _ in serve_flags.OPTIONS for name in names if name.startswith("--no-"))


@lru_cache(maxsize=4096)
def _short(name: str) -> str:
    """The shortest prefix that is this option alone."""
    every = [other for names, _ in serve_flags.OPTIONS for other in names]
    older = (*OLDER_OPTIONS, *NEVER_EXISTED)
    for size in range(4, len(name)):
        prefix = name[:size]
        if prefix in older or prefix in every or sum(other.startswith(prefix) for other in every) != 1:
            continue
        return prefix
    return name


def known(source: Source) -> tuple[list[str], dict[str, Any], str | None]:
    """(words after ``vllm serve``, what they mean, the model)."""
    words: list[str] = []
    meaning: dict[str, Any] = {}
    model = source.pick(("Qwen/Qwen3-1.7B", "/models/a b", None))
    if model is not None:
        words.append(model)
    for _ in range(source.number(8)):
        names, kind = source.pick(_options())
        if source.number(3) == 0:
            wanted = "--" + source.pick(KNOWN[:5]).replace("_", "-")
            names, kind = next(pair for pair in _options() if wanted == pair[0][0])
        name = names[0]
        key = name.lstrip("-").replace("-", "_")
        value: Any
        if kind == "none":
            chosen = source.pick(names)
            if not chosen.startswith("--"):
                chosen = name
            meaning[key] = not (chosen.startswith("--no-") and not name.startswith("--no-"))
            words.append(_spelt(source, chosen))
            continue
        if kind == "size":
            value = source.pick(SIZES)
        elif key == "port":
            value = str(1 + source.number(65535))
        elif key == "gpu_memory_utilization":
            value = source.pick(("0.57", "1", "0.9", f"0.{1 + source.number(9999)}"))
        else:
            value = source.pick(VALUES)
        if kind == "many":
            values = (value, *(source.pick(VALUES[:4]) for _ in range(source.number(3))))
            words += [_spelt(source, name), *values]
            meaning[key] = values
            if words and model is not None:
                continue
        elif source.number(2) and name.startswith("--"):
            words.append(f"{_spelt(source, name)}={value}")
            meaning[key] = value
        else:
            words += [_spelt(source, name), value]
            meaning[key] = value
    return words, meaning, model


def _spelt(source: Source, name: str) -> str:
    """The option with underscores, or abbreviated."""
    if not name.startswith("--"):
        return name
    kind = source.number(4)
    if kind == 1:
        return "--" + name[2:].replace("-", "_")
    return _short(name) if kind == 2 else name


def size_of(text: str) -> int:
    """Exactly what a size says."""
    return int(Fraction(text[:-1]) * SUFFIXES[text[-1]]) if text[-1] in SUFFIXES else int(text)


def use(command: ServeCommand) -> None:
    """Everything that others ask of a command: answers that can be true."""
    for name in KNOWN:
        command.text(name)
        command.switch(name)
        command.nested(name)
        command.number(name)
        command.integer(name)
    assert 1 <= command.port <= 65535, command.port
    assert isinstance(command.pooling, bool)
    assert isinstance(command.eager, bool)
    assert all(isinstance(name, str) for name in command.served_names)
    assert len(command.problems) <= 10_000
    if command.fraction is not None and not 0 < command.fraction <= 1:
        assert any(problem.flag == "--gpu-memory-utilization" for problem in command.problems)
    if "port" in command.options and str(command.port) != str(command.options["port"]).strip().lstrip("0"):
        assert any(problem.flag in ("--port", "port") for problem in command.problems), command.options["port"]


def _wrapped(source: Source, words: list[str]) -> tuple[Any, dict[str, str]]:
    """A command line that runs the words, and the environment that it sets."""
    kind = source.number(7)
    argv = ["vllm", "serve", *words]
    if kind == 1:
        return ["/usr/bin/python3", "/usr/local/bin/vllm", "serve", *words], {}
    if kind == 2:
        return ["python3", "-m", "vllm.entrypoints.cli.main", "serve", *words], {}
    if kind == 3:
        return shlex.join(argv), {}
    if kind == 4:
        return ["sh", "-c", f"cd /x && A=1 VLLM_USE_V1=0 {shlex.join(argv)} ; echo"], {"A": "1", "VLLM_USE_V1": "0"}
    if kind == 5:
        return ["/bin/bash", "-lc", shlex.join(argv)], {}
    if kind == 6:
        return ["env", "B=2", "nsys", "profile", *argv], {"B": "2"}
    return argv, {}


def _odd_words(source: Source) -> list[str]:
    words: list[str] = []
    for _ in range(source.number(12)):
        kind = source.number(10)
        names, _ = source.pick(_options())
        name = source.pick(names)
        if kind == 0:
            name = source.pick((*OLDER_OPTIONS, *NEVER_EXISTED))
        elif kind == 1:
            name = name[: 3 + source.number(8)]
        elif kind == 2:
            name += source.pick((".a", ".a.b", "+", ".a+", "." + "a." * 60, "..", "."))
        elif kind == 3:
            name = source.pick(("-O", "-O2", "-O=3", "-cc", "--", "-", "--config", "--port", "-O{}", "--no-port", "-x"))
        elif kind == 4:
            words.append(source.pick((*WORDS, *VALUES, *SIZES)))
            continue
        joined = source.number(3)
        value = source.pick((*WORDS, *VALUES, *SIZES, "1.5G", "9" * 400 + "k", "[" * 3000, "4GiB", "&&", "|"))
        words += [f"{name}={value}"] if joined == 0 else [name, value] if joined == 1 else [name]
    return words


def _file(source: Source) -> dict[str, Any] | None:
    if source.number(2):
        return None
    out: dict[str, Any] = {}
    for _ in range(source.number(5)):
        names, _ = source.pick(_options())
        out[source.pick(names).lstrip("-")] = source.pick(
            (
                True,
                False,
                None,
                1,
                0.5,
                "x",
                [1, "a"],
                [],
                {"a": {"b": 1}},
                {1: 2},
                {(1, 2): b"x"},
                float("nan"),
                *WORDS,
            )
        )
    return out


def command_line(data: bytes) -> bool:
    """A command line that was built from its meaning is read as meant; any other is read without a crash."""
    source = Source(data)
    if source.wild or source.lot % 4 == 2:
        words = _odd_words(source)
        argv, environment = _wrapped(source, words)
        if source.number(4) == 0 and isinstance(argv, list):
            argv = [word for word in argv if source.often(6)]
        command = parse_command(argv, config=_file(source), environment=environment)
        if command is None:
            return False
        use(with_environment(command, {"VLLM_CPU_OFFLOAD_GB": "1"}))
        return True
    words, meaning, model = known(source)
    argv, environment = _wrapped(source, words)
    command = parse_command(argv)
    assert command is not None, argv
    _as_meant(command, meaning, model)
    for name, value in environment.items():
        assert command.environment[name] == value
    found = find_server(argv if isinstance(argv, list) else shlex.split(argv))
    assert found is not None
    assert parse_arguments(found.arguments, entry=found.entry).options == command.options
    # The same as the content of a --config file, which the command line would overrule
    front = {
        key.replace("_", "-"): value for key, value in meaning.items() if value != "" and "-" not in str(value)[:1]
    }
    spelt = config_file_arguments(
        {key: list(value) if isinstance(value, tuple) else value for key, value in front.items()}
    )
    from_file = parse_arguments(["--config", "f", *words], config={key: "0" for key in front if key == "port"})
    assert from_file.options.get("port", "0") == meaning.get("port", "0"), "the command line wins"
    assert len(spelt) >= len(front) - sum(value is False for value in front.values())
    use(command)
    return True


def _as_meant(command: ServeCommand, meaning: dict[str, Any], model: str | None) -> None:
    # Options with several values take every word that follows, also the model of a server that comes after them
    assert command.model == model, (command.model, model)
    assert dict(command.options) == meaning, (dict(command.options), meaning)
    for key, value in meaning.items():
        if key in ("max_model_len", "kv_cache_memory_bytes", "max_num_batched_tokens"):
            assert command.integer(key) == size_of(value), (key, value)
        elif key == "gpu_memory_utilization":
            assert command.fraction is not None
            assert math.isclose(command.fraction, float(Fraction(value)))
        elif key == "port":
            assert command.port == int(value)
        elif isinstance(value, str) and value.startswith("{"):
            assert command.nested(key) == json.loads(value)
    bad = [problem for problem in command.problems if problem.kind not in ("environment",)]
    assert not bad, bad
