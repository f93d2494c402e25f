"""What stands beside the dashboards: pictures, documentation, provisioning."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.boards import NAMES, ROOT, board, panels, pictures
from grafana.from_source import fill_in, module

PAGE = ROOT / "docs" / "dashboards.md"


@pytest.mark.parametrize("name", NAMES)
def test_every_dashboard_has_a_picture(name: str) -> None:
    """As wide as the narrowest screen, small enough for the repository, and shown in the documentation."""
    path = pictures() / f"{name}.png"
    data = path.read_bytes()
    width, _ = struct.unpack(">II", data[16:24])
    assert width == 1366
    assert len(data) < 200_000
    assert f"(pictures/{name}.png)" in PAGE.read_text(encoding="utf-8")


def test_no_picture_without_dashboard() -> None:
    """Pictures of dashboards that are gone go too."""
    assert {path.stem for path in pictures().glob("*.png")} >= set(NAMES)
    shown = set(re.findall(r"\(pictures/([a-z-]+)\.png\)", PAGE.read_text(encoding="utf-8")))
    assert shown == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_documentation_names_title_and_uid(name: str) -> None:
    """Each dashboard has a section with its title, its file and its uid."""
    text = PAGE.read_text(encoding="utf-8")
    assert f"## {board(name)['title'].removeprefix('vllmeter / ')}" in text
    assert f"`{board(name)['uid']}`" in text


def test_alerts_link_to_their_runbooks() -> None:
    """The overview's list of alerts opens the same address as the alert itself, and that page exists."""
    panel = next(p for p in panels("overview") if p["title"] == "Alerts that fire")
    override = next(o for o in panel["fieldConfig"]["overrides"] if o["matcher"]["options"] == "Alert")
    (links,) = [p["value"] for p in override["properties"] if p["id"] == "links"]
    pattern = links[0]["url"]
    seen = 0
    for path in (ROOT / "alerts").glob("*.alerts.yaml"):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                assert pattern.replace("${__value.raw}", rule["alert"]) == rule["annotations"]["runbook_url"]
                assert (ROOT / "docs" / "runbooks" / f"{rule['alert']}.md").is_file()
                seen += 1
    assert seen > 40


def test_provisioning_fits_compose() -> None:
    """Data source and dashboards lie where compose.yaml mounts them, and the address comes from its environment."""
    (source,) = load("datasources")["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "$PROMETHEUS_URL"
    assert source["isDefault"] is True
    (provider,) = load("dashboards")["providers"]
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in compose
    assert "./grafana/provisioning:/etc/grafana/provisioning:ro" in compose
    assert re.search(r"PROMETHEUS_URL: http://", compose)
    scrape = yaml.safe_load((ROOT / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))["global"]
    assert source["jsonData"]["timeInterval"] == scrape["scrape_interval"]
    assert f'default="{source["uid"]}"' in (ROOT / "scripts" / "grafana-smoke").read_text(encoding="utf-8")


def load(kind: str) -> Any:
    """The one provisioning file of a kind."""
    (path,) = (ROOT / "grafana" / "provisioning" / kind).glob("*.yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


class Canned:
    """A Prometheus with one series for every range query and one for every instant query."""

    def get(self, path: str, **parameters: Any) -> Any:
        return ["vllm-qwen3"] if "bound" not in path else ["1.0"]

    def instant(self, expr: str, at: float) -> list[dict[str, Any]]:
        return [{"metric": {"server": "vllm-qwen3", "state": "busy", "uuid": "GPU-1"}, "value": [at, "0.5"]}]

    def range(self, expr: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        times = [begin, begin + step, begin + 4 * step]
        metric = {"server": "vllm-qwen3", "host": "h", "le": "0.5", "gpu": "0"}
        return [{"metric": metric, "values": [[at, "0.25"] for at in times]}]


@pytest.mark.parametrize("name", NAMES)
def test_preview_draws_every_kind_of_panel(name: str, tmp_path: Path) -> None:
    """preview.py draws the whole dashboard, also one without any data."""
    pytest.importorskip("matplotlib", reason="matplotlib is part of the group `dashboards`")
    preview = module("preview")
    view = fill_in.View(1_800_000_000, 1_800_000_600, 30)
    for source in (Canned(), Silent()):
        png = preview.draw(board(name), source, fill_in.fill(board(name), source, view))
        assert png.startswith(b"\x89PNG")
        assert struct.unpack(">I", png[16:20]) == (1366,)


class Silent(Canned):
    """A Prometheus without data."""

    def get(self, path: str, **parameters: Any) -> Any:
        return []

    def instant(self, expr: str, at: float) -> list[dict[str, Any]]:
        return []

    def range(self, expr: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        return []


def test_text_without_data_is_what_the_picture_shows() -> None:
    """A panel without data shows its own text, a table what its description says after `Empty:`."""
    panel_module = module("preview_panels")
    said: list[str] = []

    class Frame:
        """Keeps what is written."""

        width, height = 400, 200

        def no_data(self, text: str) -> None:
            said.append(text)

    view = fill_in.View(0, 60, 15)
    filled = fill_in.Filled(view)
    for panel in panels("cache-and-evictions") + panels("memory-and-budgets"):
        place = panel["gridPos"]
        placed = fill_in.Placed(panel, place["x"], place["y"], place["w"], place["h"], {})
        panel_module.draw_panel(Frame(), placed, Silent(), filled, [])
    assert any("--kv-cache-metrics" in text for text in said)
    assert any(text.startswith("No data: ") for text in said)


@pytest.mark.parametrize(
    "value, unit, expected",
    [
        (0.0, "s", "0 s"),
        (0.0123, "s", "12.3 ms"),
        (1.5, "s", "1.5 s"),
        (8.39 * 2**30, "bytes", "8.39 GiB"),
        (0.443, "percentunit", "44.3%"),
        (14_600.0, "short", "14.6 K"),
        (7.0, "none", "7"),
        (float("nan"), "s", ""),
    ],
)
def test_units(value: float, unit: str, expected: str) -> None:
    """Numbers look as in Grafana."""
    assert module("units").shown(value, unit) == expected
