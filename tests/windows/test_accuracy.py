"""The accuracy report: truths lie inside their bounds, and the page says what the code gives."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    """scripts/accuracy as a module."""
    loader = SourceFileLoader("accuracy_report", str(ROOT / "scripts" / "accuracy"))
    spec = spec_from_loader("accuracy_report", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["accuracy_report"] = module
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def test_no_truth_lies_outside(accuracy: ModuleType) -> None:
    """Lognormal, bimodal, drifting, queueing and lockstep streams at four rates: never outside."""
    lines, windows, outside = accuracy.simulated(2)
    assert windows == 40
    assert outside == 0
    assert len(lines) == 22


def test_shorter_intervals_do_not_break_the_bounds(accuracy: ModuleType) -> None:
    """The bounds hold at every sampling interval."""
    assert accuracy.by_interval(1)[1] == 0


def test_the_page_shows_the_recording(accuracy: ModuleType) -> None:
    """The table of the real recording in the documentation is what the code gives now."""
    lines, wrong = accuracy.recorded()
    assert wrong == 0
    page = (ROOT / "docs" / "accuracy.md").read_text()
    for line in lines:
        assert line in page
