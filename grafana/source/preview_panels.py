"""How preview.py draws each kind of panel."""

from __future__ import annotations

import colorsys
import hashlib
import math
import re
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from fill_in import Filled, Placed, Source
from units import shown

PAGE, PANEL, EDGE = "#111217", "#181B1F", "#2C3035"
TEXT, BRIGHT, DIM = "#CCCCDC", "#FFFFFF", "#8E8E99"
GRID = "#2A2D33"


@dataclass(slots=True)
class Frame:
    """The place of one panel in the figure; sizes in pixels."""

    figure: Any
    box: tuple[float, float, float, float]
    width: float
    height: float
    page: float

    def title(self, text: str) -> None:
        self.text(8, 14, _cut(text, self.width - 16, 6.3), size=8.8, color=BRIGHT, weight="bold")

    def text(self, x: float, y: float, text: str, **how: Any) -> Any:
        """Text at pixels from the panel's upper left corner."""
        how.setdefault("va", "center")
        fx = self.box[0] + x / self.width * self.box[2]
        fy = self.box[1] + (1 - y / self.height) * self.box[3]
        return self.figure.text(fx, fy, text, **how)

    def axes(self, left: float, top: float, right: float, bottom: float) -> Any:
        """Axes with margins in pixels."""
        x, y, w, h = self.box
        place = (
            x + left / self.width * w,
            y + bottom / self.height * h,
            w * (self.width - left - right) / self.width,
            h * (self.height - top - bottom) / self.height,
        )
        axes = self.figure.add_axes(place, facecolor=PANEL)
        axes.tick_params(colors=DIM, labelsize=7, length=2, width=0.5, pad=2)
        for side in axes.spines.values():
            side.set_visible(False)
        return axes

    def rectangle(self, x: float, y: float, w: float, h: float, colour: str, alpha: float = 1.0) -> None:
        fx = self.box[0] + x / self.width * self.box[2]
        fy = self.box[1] + (1 - (y + h) / self.height) * self.box[3]
        self.figure.add_artist(
            Rectangle(
                (fx, fy),
                w / self.width * self.box[2],
                h / self.height * self.box[3],
                facecolor=colour,
                lw=0,
                alpha=alpha,
            )
        )

    def no_data(self, text: str) -> None:
        wide = max(20, int(self.width / 6.2))
        lines = textwrap.wrap(text, wide)[: max(1, int((self.height - 30) / 13))]
        self.text(self.width / 2, self.height / 2 + 8, "\n".join(lines), size=8, color=DIM, ha="center", style="italic")


def _cut(text: str, pixels: float, per: float) -> str:
    most = max(3, int(pixels / per))
    return text if len(text) <= most else text[: most - 1] + "…"


def _colour(name: str) -> str:
    """Any colour of the JSON; ``text`` is the theme's text colour."""
    return {"text": TEXT, "green": "#73BF69", "red": "#F2495C"}.get(name, name)


def _by_name(name: str) -> str:
    """A colour for a series without an override, the same wherever the name is the same."""
    hue = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32
    return "#" + "".join(f"{int(c * 255):02x}" for c in colorsys.hls_to_rgb(hue, 0.62, 0.6))


# ---------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Event:
    """An annotation: a moment, or a stretch."""

    begin: float
    end: float
    colour: str
    text: str


def events(dashboard: Mapping[str, Any], source: Source, filled: Filled) -> list[Event]:
    """The annotations in view."""
    view = filled.view
    out: dict[tuple[str, str, float], Event] = {}
    for query in dashboard["annotations"]["list"]:
        if "expr" not in query or not query.get("expr"):
            continue
        for series in source.range(filled.into(query["expr"]), view.begin, view.end, view.step):
            text = legend(query["titleFormat"], series["metric"])
            times = [(float(at), float(value)) for at, value in series["values"]]
            if query.get("useValueForTime"):
                for _, value in times:
                    at = value / 1000
                    if view.begin <= at <= view.end:
                        out[query["name"], text, round(at)] = Event(at, at, query["iconColor"], text)
                continue
            start = times[0][0]
            for (one, _), (two, _) in zip(times, [*times[1:], (math.inf, 0.0)], strict=True):
                if two - one > 1.5 * view.step:
                    out[query["name"], text, start] = Event(start, one, query["iconColor"], text)
                    start = two
    return list(out.values())


# ---------------------------------------------------------------------------- series


def legend(pattern: str, labels: Mapping[str, str]) -> str:
    """``{{label}}`` filled in; without a pattern, the labels themselves."""
    if not pattern:
        return ", ".join(f"{k}={v}" for k, v in labels.items() if k != "__name__") or "Value"
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), pattern)


@dataclass(slots=True)
class Line:
    """One series, and how it is drawn."""

    name: str
    x: np.ndarray
    y: np.ndarray
    style: dict[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> float:
        good = self.y[~np.isnan(self.y)]
        return float(good[-1]) if len(good) else math.nan

    @property
    def peak(self) -> float:
        return float(np.nanmax(self.y)) if len(self.y) else math.nan


def _matches(override: Mapping[str, Any], name: str) -> bool:
    matcher = override["matcher"]
    if matcher["id"] == "byName":
        return bool(matcher["options"] == name)
    pattern = re.fullmatch(r"/(.*)/", matcher["options"])
    return re.search(pattern[1] if pattern else matcher["options"], name) is not None


def _style(panel: Mapping[str, Any], name: str) -> dict[str, Any]:
    defaults = panel["fieldConfig"]["defaults"]
    style = {"unit": defaults.get("unit", ""), "decimals": defaults.get("decimals")}
    style |= {f"custom.{k}": v for k, v in (defaults.get("custom") or {}).items()}
    for override in panel["fieldConfig"].get("overrides", []):
        if _matches(override, name):
            style |= {p["id"]: p["value"] for p in override["properties"]}
    return style


def lines_of(p: Placed, source: Source, filled: Filled) -> list[Line]:
    """All series of a panel, gaps as NaN."""
    view = filled.view
    grid = np.arange(view.begin, view.end + view.step / 2, view.step)
    out = []
    for target in p.panel["targets"]:
        for series in source.range(filled.into(target["expr"], p.scoped), view.begin, view.end, view.step):
            y = np.full(len(grid), np.nan)
            for at, value in series["values"]:
                index = round((float(at) - view.begin) / view.step)
                if 0 <= index < len(grid):
                    y[index] = float(value)
            if np.isinf(y).any():
                y[np.isinf(y)] = np.nan
            name = filled.into(legend(target.get("legendFormat", ""), series["metric"]), p.scoped)
            out.append(Line(name, grid, y, _style(p.panel, name)))
    return out


def _clock(axes: Any, begin: float, end: float) -> None:
    span = end - begin
    step = next((s for s in (15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400) if span / s <= 6), 86400)
    ticks = np.arange(math.ceil(begin / step) * step, end + 1, step)
    form = "%H:%M:%S" if step < 60 else "%H:%M"
    axes.set_xticks(ticks, [time.strftime(form, time.gmtime(t)) for t in ticks])
    axes.set_xlim(begin, end)


def draw_panel(frame: Frame, p: Placed, source: Source, filled: Filled, marks: Sequence[Event]) -> None:
    """Draws one panel."""
    kind = p.panel["type"]
    if kind == "timeseries":
        _timeseries(frame, p, source, filled, marks)
    elif kind == "stat":
        _stat(frame, p, source, filled)
    elif kind == "table":
        _table(frame, p, source, filled)
    elif kind == "heatmap":
        _heatmap(frame, p, source, filled)
    elif kind == "state-timeline":
        _states(frame, p, source, filled)
    elif kind == "text":
        _words(frame, p, filled)
    else:
        raise ValueError(f"preview.py cannot draw {kind} panels")


def _line_colour(line: Line) -> str:
    colour = line.style.get("color")
    return _colour(colour["fixedColor"]) if colour else _by_name(line.name)


def _timeseries(frame: Frame, p: Placed, source: Source, filled: Filled, marks: Sequence[Event]) -> None:
    lines = [line for line in lines_of(p, source, filled) if not np.isnan(line.y).all()]
    defaults = p.panel["fieldConfig"]["defaults"]
    if not lines:
        frame.no_data(filled.into(defaults.get("noValue", "No data"), p.scoped))
        return
    rows = _legend_rows(frame, p, lines)
    right = any(line.style.get("custom.axisPlacement") == "right" for line in lines)
    axes = frame.axes(56, 26, 58 if right else 12, 26 + rows * 14)
    other = axes.twinx() if right else None
    axes.grid(True, color=GRID, lw=0.5)
    axes.set_axisbelow(True)
    base: dict[str, np.ndarray] = {}
    for line in lines:
        _one_line(
            other if line.style.get("custom.axisPlacement") == "right" and other is not None else axes,
            line,
            lines,
            base,
        )
    for number, one in enumerate(a for a in (axes, other) if a is not None):
        mine = [line for line in lines if (line.style.get("custom.axisPlacement") == "right") == (number == 1)] or lines
        _axis(one, mine, defaults, base)
        if number == 1:
            label = mine[0].style.get("custom.axisLabel", "")
            one.set_ylabel(label, color=DIM, size=7, labelpad=2)
            for side in one.spines.values():
                side.set_visible(False)
            one.tick_params(colors=DIM, labelsize=7, length=2, width=0.5, pad=2)
    if any(step.get("value") is not None for step in defaults["thresholds"]["steps"]):
        for step in defaults["thresholds"]["steps"]:
            if step.get("value") is not None:
                axes.axhline(step["value"], color=_colour(step["color"]), lw=0.8, ls="--")
    _clock(axes, filled.view.begin, filled.view.end)
    for mark in marks:
        if mark.end > mark.begin and "run" in mark.text:
            axes.axvspan(mark.begin, mark.end, ymin=0, ymax=0.025, color=_colour(mark.colour), lw=0)
        axes.axvline(mark.begin, color=_colour(mark.colour), lw=0.7, ls=":")


def _one_line(axes: Any, line: Line, lines: Sequence[Line], base: dict[str, np.ndarray]) -> None:
    style, colour = line.style, _line_colour(line)
    stacking = style.get("custom.stacking") or {}
    fill = (style.get("custom.fillOpacity") or 0) / 100
    width = style.get("custom.lineWidth", 1.5)
    pattern = {"dash": (0, (5, 3)), "dot": (0, (1, 2))}.get((style.get("custom.lineStyle") or {}).get("fill"), "-")
    if stacking.get("mode") == "normal":
        low = base.get("A", np.zeros(len(line.y)))
        high = low + np.nan_to_num(line.y)
        base["A"] = high
        shown_high = np.where(np.isnan(line.y), np.nan, high)
        axes.fill_between(line.x, low, shown_high, color=colour, alpha=max(fill, 0.3), lw=0, step=None)
        axes.plot(line.x, shown_high, color=colour, lw=width * 0.7)
        return
    if style.get("custom.drawStyle") == "points":
        axes.plot(line.x, line.y, ".", color=colour, ms=3.5)
        return
    axes.plot(line.x, line.y, color=colour, lw=width * 0.85, ls=pattern)
    alone = ~np.isnan(line.y) & np.isnan(np.r_[np.nan, line.y[:-1]]) & np.isnan(np.r_[line.y[1:], np.nan])
    if alone.any():
        axes.plot(line.x[alone], line.y[alone], ".", color=colour, ms=4)
    below = style.get("custom.fillBelowTo")
    partner = next((one for one in lines if one.name == below), None)
    if partner is not None:
        axes.fill_between(line.x, partner.y, line.y, color=colour, alpha=max(fill, 0.2), lw=0)
    elif fill:
        axes.fill_between(line.x, 0, line.y, color=colour, alpha=fill, lw=0)


def _axis(axes: Any, lines: Sequence[Line], defaults: Mapping[str, Any], base: Mapping[str, np.ndarray]) -> None:
    unit, decimals = lines[0].style["unit"], lines[0].style.get("decimals")
    if (lines[0].style.get("custom.scaleDistribution") or {}).get("type") == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit, decimals))
        axes.minorticks_off()
        return
    top = max(
        [line.peak for line in lines if not math.isnan(line.peak)] + [float(np.max(b)) for b in base.values()] + [0.0]
    )
    low = min(float(np.nanmin(line.y)) for line in lines)
    lower = defaults.get("min")
    upper = defaults.get("max") if lines[0].style["unit"] == defaults.get("unit") else None
    bottom = lower if lower is not None else low - (top - low) * 0.08 - (1e-9 if top == low else 0)
    ceiling = upper if upper is not None else top + (top - bottom) * 0.08
    if ceiling <= bottom:
        ceiling = bottom + 1
    axes.set_ylim(bottom, ceiling)
    ticks = _ticks(bottom, ceiling, 1024 if unit == "bytes" else 10)
    axes.set_yticks(ticks, [shown(t, unit, decimals if decimals and unit != "bytes" else None) for t in ticks])


def _ticks(low: float, high: float, base: int) -> list[float]:
    raw = (high - low) / 4
    scale = float(base) ** math.floor(math.log(raw, base)) if raw > 0 else 1.0
    nice = tuple(2**n for n in range(11)) if base == 1024 else (1, 2, 2.5, 5, 10)
    step = next((n * scale for n in nice if n * scale >= raw), nice[-1] * scale)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _legend_rows(frame: Frame, p: Placed, lines: Sequence[Line]) -> int:
    calcs = p.panel["options"].get("legend", {}).get("calcs", [])
    entries = []
    for line in lines:
        if (line.style.get("custom.hideFrom") or {}).get("legend"):
            continue
        text = line.name
        unit, decimals = line.style["unit"], line.style.get("decimals")
        if "lastNotNull" in calcs:
            text += f"  last {shown(line.last, unit, decimals)}"
        if "max" in calcs:
            text += f"  max {shown(line.peak, unit, decimals)}"
        entries.append((text, line))
    placed: list[list[tuple[float, str, Line]]] = [[]]
    x = 10.0
    for text, line in entries:
        wide = 26 + len(text) * 5.6
        if x + wide > frame.width - 6 and placed[-1]:
            placed.append([])
            x = 10.0
        placed[-1].append((x, _cut(text, frame.width - 34, 5.6), line))
        x += wide
    most = max(1, int((frame.height - 130) / 14))
    shown_rows = placed[:most]
    for number, row in enumerate(shown_rows):
        y = frame.height - 10 - (len(shown_rows) - 1 - number) * 14
        for left, text, line in row:
            frame.rectangle(left, y - 1.5, 12, 3, _line_colour(line))
            fill = (line.style.get("custom.lineStyle") or {}).get("fill")
            for gap in {"dash": (5,), "dot": (2, 5, 8)}.get(fill, ()):
                frame.rectangle(left + gap, y - 1.5, 2.5 if fill == "dash" else 1.5, 3, PANEL)
            frame.text(left + 16, y, text, size=6.9, color=TEXT)
    return len(shown_rows)


# ---------------------------------------------------------------------------- numbers


def _threshold(steps: Sequence[Mapping[str, Any]], value: float) -> str:
    colour = steps[0]["color"]
    for step in steps:
        if step.get("value") is not None and value >= step["value"]:
            colour = step["color"]
    return _colour(colour)


def _mapped(mappings: Sequence[Mapping[str, Any]], value: Any) -> tuple[str, str] | None:
    key = f"{value:g}" if isinstance(value, float) else str(value)
    for mapping in mappings or ():
        found = mapping["options"].get(key)
        if found:
            return found.get("text", key), _colour(found.get("color", "text"))
    return None


def _stat(frame: Frame, p: Placed, source: Source, filled: Filled) -> None:
    defaults = p.panel["fieldConfig"]["defaults"]
    values = []
    for target in p.panel["targets"]:
        for series in source.instant(filled.into(target["expr"], p.scoped), filled.view.end):
            name = filled.into(legend(target.get("legendFormat", ""), series["metric"]), p.scoped)
            values.append((name, float(series["value"][1])))
    values = [one for one in values if not math.isnan(one[1])]
    if not values:
        frame.no_data(defaults.get("noValue", "No data"))
        return
    names = p.panel["options"].get("textMode") == "value_and_name"
    room = (frame.height - 26) / len(values)
    wide = frame.width > frame.height * 1.8 and len(values) > 1
    for number, (name, value) in enumerate(values):
        style = _style(p.panel, name)
        mapped = _mapped(defaults.get("mappings", []), value)
        text, colour = mapped or (
            shown(value, style["unit"], style.get("decimals")),
            _threshold(defaults["thresholds"]["steps"], value),
        )
        if wide:
            x, y, tall = (number + 0.5) * frame.width / len(values), 26 + (frame.height - 26) / 2, frame.height - 26
        else:
            x, y, tall = frame.width / 2, 26 + room * (number + 0.5), room
        size = min(22, tall * 0.30, frame.width / (len(values) if wide else 1) / max(len(text), 4) * 1.05)
        if names:
            frame.text(x, y - tall * 0.22, _cut(name, frame.width, 5.5), size=8, color=TEXT, ha="center")
        frame.text(x, y + (tall * 0.16 if names else 0), text, size=size, color=colour, ha="center", weight="bold")


# ---------------------------------------------------------------------------- tables


def rows_of(p: Placed, source: Source, filled: Filled) -> list[dict[str, Any]]:
    """Rows of a table after ``merge``; columns are labels and ``Value #REF`` (``Value`` for a single query)."""
    targets = p.panel["targets"]
    frames = []
    for target in targets:
        value = f"Value #{target['refId']}" if len(targets) > 1 else "Value"
        found = []
        for series in source.instant(filled.into(target["expr"], p.scoped), filled.view.end):
            row: dict[str, Any] = {k: v for k, v in series["metric"].items() if k != "__name__"}
            row[value] = float(series["value"][1])
            found.append(row)
        if found:
            frames.append(found)
    merged: list[dict[str, Any]] = []
    for found in frames:
        for row in found:
            for old in merged:
                if all(old[k] == row[k] for k in old.keys() & row.keys()):
                    old.update(row)
                    break
            else:
                merged.append(dict(row))
    return merged


def _table(frame: Frame, p: Placed, source: Source, filled: Filled) -> None:
    rows = rows_of(p, source, filled)
    if not rows:
        text = p.panel.get("description", "").rpartition("Empty: ")[2]
        frame.no_data("No data: " + filled.into(text, p.scoped))
        return
    organize = next(t["options"] for t in p.panel["transformations"] if t["id"] == "organize")
    order = sorted(organize["indexByName"], key=organize["indexByName"].__getitem__)
    columns = [
        (source_name, organize["renameByName"][source_name], _style(p.panel, organize["renameByName"][source_name]))
        for source_name in order
        if any(source_name in row for row in rows)
    ]
    sort = (p.panel["options"].get("sortBy") or [{}])[0]
    key = next((name for name, title, _ in columns if title == sort.get("displayName")), None)
    if key is not None:
        rows.sort(key=lambda row: str(row.get(key, "")), reverse=bool(sort.get("desc")))
    fixed = sum(style.get("custom.width", 0) for _, _, style in columns)
    free = [name for name, _, style in columns if not style.get("custom.width")]
    share = (frame.width - 16 - fixed) / max(1, len(free))
    y, line = 36.0, 21.0
    most = int((frame.height - 44) / line)
    x = 8.0
    for _, title, style in columns:
        wide = style.get("custom.width") or share
        frame.text(x + 3, y, _cut(title, wide - 6, 6.2), size=7.6, color="#6E9FFF", weight="bold")
        x += wide
    for number, row in enumerate(rows[:most]):
        y = 36 + line * (number + 1)
        frame.rectangle(8, y - line / 2, frame.width - 16, 0.8, EDGE)
        x = 8.0
        for name, _, style in columns:
            wide = style.get("custom.width") or share
            _cell(frame, x, y, wide, row.get(name), style, p.panel["fieldConfig"]["defaults"])
            x += wide
    if len(rows) > most:
        frame.text(frame.width - 10, 14, f"{most} of {len(rows)} rows shown", size=7, color=DIM, ha="right")


def _cell(
    frame: Frame, x: float, y: float, wide: float, value: Any, style: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        frame.text(x + 3, y, defaults.get("noValue", ""), size=7.6, color=DIM)
        return
    mapped = _mapped(style.get("mappings", []), value)
    if mapped:
        text, colour = mapped
    elif isinstance(value, float):
        text = shown(value, style["unit"] if style["unit"] != "none" else "", style.get("decimals"))
        steps = (style.get("thresholds") or {}).get("steps")
        colour = _threshold(steps, value) if steps else TEXT
    else:
        text, colour = str(value), TEXT
    if style.get("links") and not mapped and colour == TEXT:
        colour = "#8AB8FF"
    options = style.get("custom.cellOptions") or {}
    if options.get("type") == "gauge" and isinstance(value, float):
        room = wide - 54
        frame.rectangle(x + 3, y - 6, room, 12, EDGE)
        frame.rectangle(x + 3, y - 6, room * min(1.0, value / style.get("max", 1)), 12, colour, 0.85)
        frame.text(x + room + 8, y, text, size=7.6, color=colour)
        return
    frame.text(x + 3, y, _cut(text, wide - 4, 6.0), size=7.6, color=colour)


# ---------------------------------------------------------------------------- others


def _heatmap(frame: Frame, p: Placed, source: Source, filled: Filled) -> None:
    view = filled.view
    found = source.range(filled.into(p.panel["targets"][0]["expr"], p.scoped), view.begin, view.end, view.step)
    grid = np.arange(view.begin, view.end + view.step / 2, view.step)
    bounds = sorted({float(s["metric"]["le"].replace("+Inf", "inf")) for s in found if "le" in s["metric"]})
    cells = np.full((len(bounds), len(grid)), np.nan)
    for series in found:
        for at, value in series["values"]:
            index = round((float(at) - view.begin) / view.step)
            if 0 <= index < len(grid):
                cells[bounds.index(float(series["metric"]["le"].replace("+Inf", "inf"))), index] = float(value)
    counts = np.diff(np.vstack([np.zeros(len(grid)), cells]), axis=0) if bounds else cells
    counts[counts <= 1e-9] = np.nan
    used = np.where(~np.isnan(counts).all(axis=1))[0] if bounds else []
    if not len(used):
        frame.no_data(p.panel["fieldConfig"]["defaults"].get("noValue", "No data"))
        return
    low, high = max(0, used[0] - 1), min(len(bounds) - 1, used[-1] + 1)
    axes = frame.axes(64, 26, 70, 26)
    colours = LinearSegmentedColormap.from_list("blues", ["#12304F", "#2E77B8", "#7FC0F0", "#E8F4FF"])
    shown_cells = counts[low : high + 1]
    edges = np.r_[grid - view.step / 2, grid[-1] + view.step / 2]
    mesh = axes.pcolormesh(edges, np.arange(high - low + 2), np.sqrt(shown_cells), cmap=colours, vmin=0)
    labels = ["Inf" if math.isinf(b) else shown(b, "s") for b in bounds[low : high + 1]]
    axes.set_yticks(np.arange(1, high - low + 2), labels)
    axes.grid(True, axis="y", color=GRID, lw=0.4)
    _clock(axes, view.begin, view.end)
    peak = float(np.nanmax(shown_cells))
    for number, share in enumerate((0.0, 0.25, 1.0)):
        frame.rectangle(frame.width - 62, 36 + 18 * number, 10, 10, mesh.cmap(math.sqrt(share)))  # type: ignore[arg-type]
        frame.text(frame.width - 48, 41 + 18 * number, _cut(shown(peak * share, "reqps"), 50, 4.6), size=6.5, color=DIM)


def _states(frame: Frame, p: Placed, source: Source, filled: Filled) -> None:
    lines = lines_of(p, source, filled)
    defaults = p.panel["fieldConfig"]["defaults"]
    if not lines:
        frame.no_data(defaults.get("noValue", "No data"))
        return
    axes = frame.axes(150, 28, 12, 40)
    used: dict[str, str] = {}
    half = filled.view.step / 2
    for row, line in enumerate(lines):
        start = 0
        for index in range(1, len(line.y) + 1):
            if index < len(line.y) and (
                line.y[index] == line.y[start] or (np.isnan(line.y[index]) and np.isnan(line.y[start]))
            ):
                continue
            if not np.isnan(line.y[start]):
                text, colour = _mapped(defaults["mappings"], float(line.y[start])) or (f"{line.y[start]:g}", TEXT)
                used[text] = colour
                left, right = line.x[start] - half, line.x[index - 1] + half
                axes.barh(row, right - left, left=left, height=0.7, color=colour, lw=0)
                if (right - left) / (filled.view.end - filled.view.begin) * frame.width > len(text) * 7:
                    axes.text((left + right) / 2, row, text, ha="center", va="center", size=7, color="#000000")
            start = index
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    _clock(axes, filled.view.begin, filled.view.end)
    x = 10.0
    for text, colour in used.items():
        frame.rectangle(x, frame.height - 13, 10, 6, colour)
        frame.text(x + 14, frame.height - 10, text, size=7, color=TEXT)
        x += 30 + len(text) * 5.2


def _words(frame: Frame, p: Placed, filled: Filled) -> None:
    content = re.sub(r"[*`]", "", filled.into(p.panel["options"]["content"], p.scoped))
    content = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", content)
    wide = max(16, int((frame.width - 16) / 6.1))
    out: list[str] = []
    for paragraph in content.split("\n"):
        out += [paragraph] if paragraph.startswith("    ") else textwrap.wrap(paragraph, wide) or [""]
    most = int((frame.height - 30) / 14)
    frame.text(8, 28, "\n".join(out[:most]), size=7.8, color=TEXT, va="top", linespacing=1.45)
