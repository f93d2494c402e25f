"""What a benchmark is, and how the files of this folder are found.

A benchmark is one file here with ``TITLE``, ``ORDER`` (place in the listing) and ``run(quick)``, which returns its
figures; a file without ``TITLE`` serves the others.  Ratios against a peer are measured in one run, turn by turn, so
that a busy machine slows both sides.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent
PROJECT = FOLDER.parent.parent
CAPTURES = PROJECT / "tests" / "captures"


@dataclass(frozen=True)
class Figure:
    """One measured number.

    ``value`` None = not measured, ``note`` says why.  ``target`` is what docs promise, in words; ``met`` None = no
    promise (then nothing can fail).
    """

    what: str
    value: float | None
    unit: str
    target: str = ""
    met: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class Benchmark:
    """One file of this folder."""

    name: str
    title: str
    order: int
    run: Callable[[bool], Sequence[Figure]]


def find() -> list[Benchmark]:
    """All benchmarks in the order of their listing."""
    for folder in (str(PROJECT / "exporter"), str(FOLDER.parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    out = []
    for item in pkgutil.iter_modules([str(FOLDER)]):
        if item.name != "registry":
            module: ModuleType = importlib.import_module(f"benchmarks.{item.name}")
            if hasattr(module, "TITLE"):
                out.append(Benchmark(item.name, module.TITLE, module.ORDER, module.run))
    return sorted(out, key=lambda benchmark: (benchmark.order, benchmark.name))
