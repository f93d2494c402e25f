"""Small plots as inline SVG, drawn by hand: no library, no script, colours from the page's style sheet (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 62, 14, 10, 34
MOST_POINTS, MOST_STEPS = 4000, 500
"""Of more points only every k-th is drawn; the numbers beside the plots use all."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one line or cloud; ``css`` is its class in the style sheet (``s0`` …).  None breaks the line."""

    name: str
    css: str
    points: Sequence[tuple[float, float | None]]
    hollow: bool = False


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span [low, high]."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / max(1, count)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9) * step
    found = []
    value = first
    while value <= high + step * 1e-6:
        found.append(round(value, 12))
        value += step
    return found


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers within [low, high] on a log scale: as dense as gives at most eight."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for factors in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1,)):
        found = [round(factor * 10.0**exponent, 15) for exponent in exponents for factor in factors]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) <= 8:
            break
    return found


def _text(css: str, x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


class _Axes:
    """Scales and frame of a plot."""

    def __init__(
        self, width: int, height: int, x: tuple[float, float], y: tuple[float, float], *, log_y: bool = False
    ) -> None:
        self.width, self.height, self.log_y = width, height, log_y
        self.x0, self.x1 = x if x[1] > x[0] else (x[0], x[0] + 1)
        self.y0, self.y1 = y if y[1] > y[0] else (y[0], y[0] * 2 or 1.0)

    def px(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (self.width - LEFT - RIGHT)

    def py(self, value: float) -> float:
        if self.log_y:
            value = max(value, self.y0)
            share = (math.log(value) - math.log(self.y0)) / (math.log(self.y1) - math.log(self.y0))
        else:
            share = (value - self.y0) / (self.y1 - self.y0)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)

    def frame(self, x_name: str, y_name: str, format_y: Callable[[float], str]) -> list[str]:
        parts = []
        for value in log_ticks(self.y0, self.y1) if self.log_y else ticks(self.y0, self.y1, 4):
            y = self.py(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(_text("tick", LEFT - 6, y + 3.5, "end", format_y(value)))
        for value in ticks(self.x0, self.x1, 6):
            x = self.px(value)
            parts.append(_text("tick", x, self.height - BOTTOM + 14, "middle", f"{value:g}"))
        bottom = self.height - BOTTOM
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        middle = (LEFT + self.width - RIGHT) / 2
        parts.append(_text("name", middle, self.height - 4, "middle", x_name))
        if y_name:
            parts.append(_text("name", LEFT, TOP - 1, "start", y_name))
        return parts


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title, quote=True)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def lines(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    format_y: Callable[[float], str],
    width: int = 520,
    height: int = 190,
    y_max: float | None = None,
) -> str:
    """Lines over x; a None value breaks its line, so that absent looks absent."""
    xs = [x for each in series for x, _ in each.points]
    ys = [y for each in series for _, y in each.points if y is not None]
    if not xs or not ys:
        return ""
    axes = _Axes(width, height, (min(0.0, *xs), max(xs)), (0.0, y_max or max(max(ys) * 1.08, 1e-9)))
    parts = axes.frame(x_name, "", format_y)
    for each in series:
        path: list[str] = []
        pen = False
        alone = []
        previous: tuple[float, float] | None = None
        for x, y in each.points:
            if y is None:
                if previous is not None and path and path[-1].startswith("M"):
                    alone.append(previous)
                pen, previous = False, None
                continue
            path.append(f"{'L' if pen else 'M'}{axes.px(x):.1f} {axes.py(y):.1f}")
            pen, previous = True, (x, y)
        if previous is not None and path and path[-1].startswith("M"):
            alone.append(previous)
        parts.append(f'<path class="line {each.css}" d="{" ".join(path)}"/>')
        parts += [
            f'<circle class="dot {each.css}" cx="{axes.px(x):.1f}" cy="{axes.py(y):.1f}" r="2"/>' for x, y in alone
        ]
    return _svg(width, height, title, parts)


def cloud(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    format_y: Callable[[float], str],
    width: int = 520,
    height: int = 220,
) -> str:
    """Single points, y on a log scale."""
    points = [(x, y) for each in series for x, y in each.points if y is not None and y > 0]
    if not points:
        return ""
    low, high = min(y for _, y in points), max(y for _, y in points)
    axes = _Axes(width, height, (0.0, max(x for x, _ in points)), (low * 0.8, high * 1.25), log_y=True)
    parts = axes.frame(x_name, "", format_y)
    for each in series:
        shown = [(axes.px(x), axes.py(y)) for x, y in each.points if y is not None and y > 0]
        shown = shown[:: max(1, len(shown) // MOST_POINTS)]
        if each.hollow:
            parts += [f'<circle class="ring {each.css}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in shown]
        else:
            # round caps of lines without length: a tenth of the size of circles
            parts.append(f'<path class="dots {each.css}" d="{"".join(f"M{x:.1f} {y:.1f}h0" for x, y in shown)}"/>')
    return _svg(width, height, title, parts)


def steps(
    title: str,
    series: Sequence[tuple[str, str, Sequence[float]]],
    *,
    format_x: Callable[[float], str],
    width: int = 520,
    height: int = 220,
) -> str:
    """Empirical distribution functions: (name, class, values) each; x on a log scale, p95 marked."""
    values = [value for _, _, each in series for value in each if value > 0]
    if not values:
        return ""
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = max(0.02, 0.04 * (high - low))
    axes = _Axes(width, height, (low - pad, high + pad), (0.0, 1.0))
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 0.95):
        y = axes.py(share)
        css = "grid mark" if share == 0.95 else "grid"
        parts.append(f'<line class="{css}" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text("tick", LEFT - 6, y + 3.5, "end", f"{share:.0%}"))
    tick_values = log_ticks(10 ** (low - pad), 10 ** (high + pad)) or [10**low, 10**high]
    for value in tick_values:
        x = axes.px(math.log10(value))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        parts.append(_text("tick", x, height - BOTTOM + 14, "middle", format_x(value)))
    for _, css, each in series:
        ordered = sorted(value for value in each if value > 0)
        if not ordered:
            continue
        x, y = axes.px(math.log10(ordered[0])), axes.py(0.0)
        path = [f"M{x:.1f} {y:.1f}"]
        every = max(1, len(ordered) // MOST_STEPS)
        for rank, value in enumerate(ordered, start=1):
            if rank % every and rank != len(ordered):
                continue
            path.append(f"H{axes.px(math.log10(value)):.1f} V{axes.py(rank / len(ordered)):.1f}")
        parts.append(f'<path class="line {css}" d="{" ".join(path)}"/>')
    return _svg(width, height, title, parts)


def intervals(
    title: str,
    rows: Sequence[tuple[str, float, float | None, float | None, str, str]],
    *,
    relevant: float,
    width: int = 860,
) -> str:
    """Differences with intervals, one row each: (label, ratio, low, high, class, text at the right).

    The band of the smallest relevant effect is shaded; intervals that leave the picture end in an arrow.
    """
    if not rows:
        return ""
    left, right, row_height = 250, 150, 24
    height = TOP + row_height * len(rows) + BOTTOM
    reach = [abs(value - 1) for _, ratio, low, high, _, _ in rows for value in (ratio, low, high) if value is not None]
    limit = min(1.0, max(0.15, *reach) * 1.05)

    def px(ratio: float) -> float:
        share = (min(max(ratio - 1, -limit), limit) + limit) / (2 * limit)
        return left + share * (width - left - right)

    bottom = TOP + row_height * len(rows)
    band, wide = px(1 - relevant), px(1 + relevant) - px(1 - relevant)
    parts = [f'<rect class="band" x="{band:.1f}" width="{wide:.1f}" y="{TOP}" height="{bottom - TOP}"/>']
    for value in ticks(-limit * 100, limit * 100, 6):
        x = px(1 + value / 100)
        css = "axis" if value == 0 else "grid"
        parts.append(f'<line class="{css}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(_text("tick", x, bottom + 14, "middle", f"{value:+.0f} %"))
    for number, (label, ratio, low, high, css, text) in enumerate(rows):
        y = TOP + row_height * (number + 0.5)
        parts.append(_text("label", left - 8, y + 4, "end", label))
        if low is not None and high is not None:
            x_low, x_high = px(low), px(high)
            parts.append(f'<line class="bar {css}" x1="{x_low:.1f}" x2="{x_high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            for value, x, sign in ((low, x_low, -1), (high, x_high, 1)):
                if abs(value - 1) > limit:
                    parts.append(f'<path class="tip {css}" d="M{x:.1f} {y - 5:.1f} l{sign * 7} 5 l{-sign * 7} 5 z"/>')
                else:
                    parts.append(
                        f'<line class="bar {css}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 5:.1f}" y2="{y + 5:.1f}"/>'
                    )
        parts.append(f'<circle class="mean {css}" cx="{px(ratio):.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(_text(f"label {css}", width - right + 10, y + 4, "start", text))
    parts.append(_text("name", (left + width - right) / 2, height - 4, "middle", "difference to the baseline"))
    return _svg(width, height, title, parts)
