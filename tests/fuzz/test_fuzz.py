"""Bounded fuzzing in CI; scripts/fuzz runs the same targets for millions of inputs, led by coverage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_documents_raise_nothing_unexpected(name: str) -> None:
    """Whatever comes in: a reading, or the reader's own error; never a crash, never a value that cannot be true."""

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.binary(max_size=300))
    def check(data: bytes) -> None:
        TARGETS[name](data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_at_least_half_of_the_inputs_parse(name: str) -> None:
    """Otherwise only the front doors would be tested."""
    chance = random.Random(name)
    rounds = 200
    parsed = sum(TARGETS[name](chance.randbytes(chance.randrange(300))) for _ in range(rounds))
    assert parsed >= rounds / 2, f"{parsed} of {rounds}"


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name[:8]}")
def test_inputs_that_once_found_something(path: Path) -> None:
    """Kept inputs: findings that are fixed, and those that reach rare branches."""
    TARGETS[path.parent.name](path.read_bytes())
