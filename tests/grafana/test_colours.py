"""Servers can be told apart by everybody: colours under the three kinds of colour blindness, and on both themes."""

from __future__ import annotations

import json
import re
from itertools import combinations

import numpy as np
import pytest

from grafana.from_source import module
from grafana.recorded import ROOT

house = module("house")

# Viénot, Brettel and Mollon (1999), on linear RGB; tritanopia after Brettel, Viénot and Mollon (1997), one plane.
SEEN = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]),
    "deuteranopia": np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]),
    "tritanopia": np.array([[1.01277, 0.13548, -0.14826], [-0.01243, 0.86812, 0.14431], [0.07589, 0.805, 0.11911]]),
}
DARK, LIGHT = "#181B1F", "#FFFFFF"
"""Panel backgrounds of Grafana's themes"""
FIRST = 5
"""Colours that must differ for everybody: that many servers on one card is a lot."""


def linear(colour: str) -> np.ndarray:
    """Linear RGB of #RRGGBB."""
    part = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of linear RGB."""
    xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    ) @ np.clip(rgb, 0, 1)
    scaled = xyz / np.array([0.95047, 1.0, 1.08883])
    f = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, two: str, sight: np.ndarray) -> float:
    """CIE76 distance as somebody with this sight sees it; about 2.3 is just noticeable."""
    return float(np.linalg.norm(lab(sight @ linear(one)) - lab(sight @ linear(two))))


def contrast(one: str, two: str) -> float:
    """WCAG contrast ratio."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    light = sorted(float(weights @ linear(colour)) for colour in (one, two))
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize("sight", SEEN)
def test_servers_differ_for_everybody(sight: str) -> None:
    """The first colours are at least four times as far apart as what is just noticeable, whatever the sight."""
    close = {
        (one, two): distance(one, two, SEEN[sight])
        for one, two in combinations(house.SERVER_PALETTE[:FIRST], 2)
        if distance(one, two, SEEN[sight]) < 9.2
    }
    assert close == {}


@pytest.mark.parametrize("group", ["PHASE_COLOURS", "QUANTILE_COLOURS", "RUN_COLOURS", "ROLE_COLOURS"])
@pytest.mark.parametrize("sight", SEEN)
def test_parts_of_one_panel_differ(group: str, sight: str) -> None:
    """Phases, quantiles, runs and roles too."""
    colours = list(getattr(house, group).values())
    assert min(distance(one, two, SEEN[sight]) for one, two in combinations(colours, 2)) > 9.2


@pytest.mark.parametrize("colour", house.SERVER_PALETTE[:FIRST])
def test_visible_on_both_themes(colour: str) -> None:
    """Lines stand out from the dark and from the light panel."""
    assert contrast(colour, DARK) > 3
    assert contrast(colour, LIGHT) > 2


PAGE = ROOT / "exporter" / "vllmeter" / "web" / "page"


def test_the_live_page_has_the_same_colours() -> None:
    """A server has one colour in Grafana and on the live page, in both themes; only yellow is olive on white."""
    sheet = (PAGE / "style.css").read_text(encoding="utf-8")
    themes: dict[str, list[str]] = {}
    for number, colour in re.findall(r"--s(\d): (#[0-9a-f]{6});", sheet):
        themes.setdefault(number, []).append(colour.upper())
    palette = [colour.upper() for colour in house.SERVER_PALETTE]
    assert [set(themes[str(number)]) for number in range(6)] == [{colour} for colour in palette[:6]]
    assert themes["6"] == ["#554B00", palette[6], palette[6]]
    script = (PAGE / "js" / "store.js").read_text(encoding="utf-8")
    names = re.search(r"const KNOWN = (\[[^\]]*\]);", script)
    count = re.search(r"const COLOURS = (\d+);", script)
    assert names is not None
    assert count is not None
    assert tuple(json.loads(names[1])) == house.DEFAULT_SERVERS
    assert int(count[1]) == len(palette) == len(themes)


@pytest.mark.parametrize("sight", SEEN)
def test_olive_on_white_differs_too(sight: str) -> None:
    """The one colour that the live page changes is still told from the others."""
    assert min(distance("#554B00", other, SEEN[sight]) for other in house.SERVER_PALETTE[:6]) > 9.2


def test_the_measure_knows_red_and_green() -> None:
    """Pure red and green of equal lightness are far apart for most people and close for some."""
    red, green = "#C04040", "#6F8A1F"
    assert distance(red, green, SEEN["normal"]) > 60
    assert distance(red, green, SEEN["deuteranopia"]) < distance(red, green, SEEN["normal"]) / 3
