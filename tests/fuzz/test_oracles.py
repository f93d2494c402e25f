"""The fuzz targets notice wrong numbers: a mistake is put into a reader, and some input must show it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fuzz.targets import TARGETS
from vllmeter.config import values
from vllmeter.exposition import parse
from vllmeter.memory import compose_file, flags, startup_log
from vllmeter.runs.importers import guidellm, k6, locust

MISTAKES: tuple[tuple[str, Any, str, Any], ...] = (
    ("config", values, "_SECONDS", {**values._SECONDS, "m": 61.0}),
    ("config", values, "_BYTES", {**values._BYTES, "GiB": 10**9}),
    ("compose", compose_file, "_closing", lambda text, start: text.find("}", start) if "}" in text[start:] else None),
    ("compose", compose_file, "_whole", lambda value: value if isinstance(value, int) else None),
    ("command_line", flags, "_BINARY", flags._DECIMAL | {key.upper(): size for key, size in flags._DECIMAL.items()}),
    ("command_line", flags, "_dashes", lambda name: name),
    ("startup_log", startup_log, "GIB", 10**9),
    ("results", guidellm, "_LATENCIES", {**guidellm._LATENCIES, "e2e": ("request_latency", 1000.0)}),
    ("results", k6, "_expected", lambda _tags: True),
    ("results", locust, "_METHODS", ("GET",)),
    ("exposition", parse, "float", lambda text: float(text) + 1.0),
)


@pytest.mark.parametrize(
    ("target", "module", "name", "mistake"), MISTAKES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_mistake_in_a_reader_is_noticed(
    monkeypatch: pytest.MonkeyPatch, target: str, module: Any, name: str, mistake: Any
) -> None:
    """Without this, a target that compares nothing would look as good as one that does."""
    monkeypatch.setattr(module, name, mistake, raising=False)
    with pytest.raises((AssertionError, TypeError)):
        _many(target)


def _many(target: str) -> None:
    chance = random.Random(1)
    for _ in range(1500):
        TARGETS[target](chance.randbytes(chance.randrange(300)))
