#!/usr/bin/env python3
"""Draws a dashboard as one picture, from its JSON and a Prometheus: for contributors without Grafana.

    grafana/source/preview.py DASHBOARD.json URL [--out FILE.png] [--from UNIX] [--to UNIX] [--set NAME=VALUE]

Shows layout, series, colours, legends, units, thresholds, tables and texts as Grafana would, near enough to judge
whether a page can be understood.  It is no replacement for looking at Grafana: interaction, exact fonts and axis
choices differ.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import fill_in
import preview_panels

WIDTH = 1366
"""Pixels: the narrowest screen that the dashboards are made for."""
UNIT, GAP, HEAD = 38, 8, 64
"""Pixels of a grid unit in height, of the gap between panels, of the bar with the variables."""
DPI = 100


def draw(dashboard: Mapping[str, Any], source: fill_in.Source, filled: fill_in.Filled) -> bytes:
    """PNG of the whole dashboard."""
    placed = list(fill_in.unrolled(dashboard, filled))
    height = HEAD + max(p.y + p.h for p in placed) * UNIT + GAP
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor=preview_panels.PAGE)
    _head(figure, dashboard, filled, height)
    events = preview_panels.events(dashboard, source, filled)
    column = (WIDTH - 2 * GAP) / 24
    for p in placed:
        x, y = GAP + p.x * column, HEAD + p.y * UNIT
        w, h = p.w * column - GAP, p.h * UNIT - GAP
        box = (x / WIDTH, 1 - (y + h) / height, w / WIDTH, h / height)
        title = filled.into(p.panel.get("title", ""), p.scoped, words=True)
        if p.panel["type"] == "row":
            figure.text(
                box[0],
                box[1] + box[3] / 2,
                "▾ " + title,
                color=preview_panels.TEXT,
                size=11,
                weight="bold",
                va="center",
            )
            continue
        figure.add_artist(
            Rectangle(
                box[:2],
                box[2],
                box[3],
                facecolor=preview_panels.PANEL,
                edgecolor=preview_panels.EDGE,
                lw=0.8,
                zorder=-2,
            )
        )
        frame = preview_panels.Frame(figure, box, w, h, height)
        frame.title(title)
        preview_panels.draw_panel(frame, p, source, filled, events)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor=figure.get_facecolor())
    return _small(buffer.getvalue())


def _head(figure: Any, dashboard: Mapping[str, Any], filled: fill_in.Filled, height: float) -> None:
    figure.text(
        GAP / WIDTH,
        1 - 18 / height,
        dashboard["title"],
        color=preview_panels.BRIGHT,
        size=13,
        weight="bold",
        va="center",
    )
    begin, end = (time.strftime("%H:%M:%S", time.gmtime(at)) for at in (filled.view.begin, filled.view.end))
    figure.text(
        1 - GAP / WIDTH,
        1 - 18 / height,
        f"{begin} to {end} UTC",
        color=preview_panels.TEXT,
        size=9,
        va="center",
        ha="right",
    )
    x = GAP
    for variable in dashboard["templating"]["list"]:
        if variable.get("hide") == 2:
            continue
        text = f"{variable.get('label') or variable['name']}: {filled.values[variable['name']].text}"
        figure.text(
            x / WIDTH,
            1 - 44 / height,
            text,
            color=preview_panels.TEXT,
            size=8.5,
            va="center",
            bbox={
                "boxstyle": "round,pad=0.35",
                "facecolor": preview_panels.PANEL,
                "edgecolor": preview_panels.EDGE,
                "lw": 0.8,
            },
        )
        x += 30 + len(text) * 6.4


LARGEST = 190_000
"""Bytes: pictures live in the repository."""


def _small(png: bytes) -> bytes:
    """The same picture with as many colours as fit into :data:`LARGEST` bytes."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    out = io.BytesIO()
    for colours in (256, 160, 96, 48):
        out = io.BytesIO()
        few = image.quantize(colors=colours, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(out, format="PNG", optimize=True)
        if out.tell() <= LARGEST:
            break
    return out.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description="Draws a dashboard as one picture.")
    parser.add_argument("dashboard", type=Path)
    parser.add_argument("url", help="Prometheus")
    parser.add_argument("--out", type=Path, help="picture; default: the dashboard's name with .png, here")
    parser.add_argument("--from", dest="begin", type=float, help="Unix time; default 30 minutes before --to")
    parser.add_argument("--to", dest="end", type=float, help="Unix time; default now")
    parser.add_argument("--step", type=float, help="seconds between points; default: 400 points")
    parser.add_argument("--scrape", type=float, default=5.0, help="scrape interval of Prometheus in seconds")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="value of a variable")
    arguments = parser.parse_args()
    end = arguments.end or time.time()
    begin = arguments.begin or end - 1800
    step = arguments.step or max(1.0, round((end - begin) / 400))
    chosen = dict(one.split("=", 1) for one in arguments.set)
    dashboard = json.loads(arguments.dashboard.read_text(encoding="utf-8"))
    source = fill_in.Remote(arguments.url)
    filled = fill_in.fill(dashboard, source, fill_in.View(begin, end, step, arguments.scrape), chosen)
    out = arguments.out or Path(arguments.dashboard.stem + ".png")
    out.write_bytes(draw(dashboard, source, filled))
    print(out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
