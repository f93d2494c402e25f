"""Modules of grafana/source, which is no package: it is a folder of scripts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "grafana" / "source"


def module(name: str) -> Any:
    """A module of grafana/source by its name."""
    if str(SOURCE) not in sys.path:
        sys.path.insert(0, str(SOURCE))
    found: ModuleType = importlib.import_module(name)
    return found


fill_in = module("fill_in")
