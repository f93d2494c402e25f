#!/usr/bin/env python3
"""Writes grafana/dashboards/*.json from the files beside it; ``--check`` only compares.

    grafana/source/build.py [--check] [--out FOLDER] [--servers NAME,NAME,...]

``--servers`` gives your own server names fixed colours, in the order of the palette.
Needs Python 3.11 and grafana-foundation-sdk 0.0.21 (the dependency group ``dashboards``).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

import layout
import panels

DASHBOARDS = Path(__file__).resolve().parents[1] / "dashboards"
BOARDS = (
    "overview",
    "latency_and_jitter",
    "memory_and_budgets",
    "cache_and_evictions",
    "load_test",
    "tuning_levers",
    "exporter_health",
)
"""One module each, with a function ``board``; in the order in which they are read."""


def documents() -> dict[str, str]:
    """File name -> JSON of every dashboard."""
    out = {}
    for name in BOARDS:
        board = importlib.import_module(name).board()
        model = layout.build(board)
        out[f"{board.name}.json"] = (
            json.dumps(model, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        )
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 when something is not current")
    parser.add_argument("--out", type=Path, default=DASHBOARDS, help="folder of the JSON files")
    parser.add_argument("--servers", help="names of servers that get fixed colours, separated by commas")
    arguments = parser.parse_args()
    if arguments.servers:
        panels.use_servers(tuple(name.strip() for name in arguments.servers.split(",") if name.strip()))
    new = documents()
    old = {path.name: path.read_text(encoding="utf-8") for path in arguments.out.glob("*.json")}
    stale = sorted(name for name in new if new[name] != old.get(name))
    if arguments.check:
        if arguments.out == DASHBOARDS:
            stale += sorted(old.keys() - new.keys())
        for name in stale:
            print(
                f"{arguments.out / name} is not what grafana/source makes; run grafana/source/build.py", file=sys.stderr
            )
        return 1 if stale else 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (arguments.out / name).write_text(new[name], encoding="utf-8")
    print(f"{len(new)} dashboards, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
