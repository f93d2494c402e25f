"""From panels to a dashboard: rows, positions, ids, links, variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.models import dashboard as m

import house
from annotations import all_annotations
from panels import Item


@dataclass(frozen=True, slots=True)
class Section:
    """A row with lines of panels.  Each line is as wide as the grid and all its panels are of one height."""

    title: str
    lines: Sequence[Sequence[Item]]
    repeat: str | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """What a dashboard's file gives."""

    name: str
    """kebab-case: the file's name"""
    uid: str
    """after the prefix; alerts link to it, so it never changes"""
    title: str
    description: str
    sections: Sequence[Section]
    variables: Sequence[Any] = field(default_factory=tuple)
    time_from: str = house.TIME_FROM


class LayoutError(ValueError):
    """Panels that do not fill their line."""


def build(board: Board) -> m.Dashboard:
    """The dashboard's model.

    :raises LayoutError: a line of panels leaves a hole or is wider than the grid
    """
    b = (
        d.Dashboard(f"vllmeter / {board.title}")
        .uid(house.UID_PREFIX + board.uid)
        .description(board.description)
        .tags([house.TAG])
        .timezone("browser")
        .readonly()
        .tooltip(m.DashboardCursorSync.CROSSHAIR)
        .time(board.time_from, house.TIME_TO)
        .timepicker(d.TimePicker().refresh_intervals(list(house.REFRESH_CHOICES)))
        .refresh(house.REFRESH)
        .version(1)
        .links(
            [
                d.DashboardLink("vllmeter")
                .type(m.DashboardLinkType.DASHBOARDS)
                .tags([house.TAG])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
                .icon("external link")
            ]
        )
        .variables(list(board.variables))
        .annotations(all_annotations())
    )
    panel_id, y = 0, 0
    for section in board.sections:
        if section.title:
            panel_id += 1
            row = d.Row(section.title).id(panel_id).collapsed(False).grid_pos(m.GridPos(h=1, w=house.GRID, x=0, y=y))
            if section.repeat:
                row = row.repeat(section.repeat)
            b = b.with_row(row)
            y += 1
        for line in section.lines:
            _check(board.name, section.title, line)
            x = 0
            for item in line:
                panel_id += 1
                place = m.GridPos(h=item.height, w=item.width, x=x, y=y)
                b = b.with_panel(item.builder.id(panel_id).grid_pos(place))
                x += item.width
            y += line[0].height
    model = b.build()
    model.schema_version = house.SCHEMA_VERSION
    return model


def _check(board: str, section: str, line: Sequence[Item]) -> None:
    where = f"{board}, row {section!r}"
    widths = [item.width for item in line]
    if sum(widths) != house.GRID:
        raise LayoutError(f"{where}: widths {widths} add up to {sum(widths)}, not {house.GRID}")
    if len({item.height for item in line}) > 1:
        raise LayoutError(f"{where}: heights {[item.height for item in line]} differ within a line")
    if min(widths) < house.MIN_WIDTH:
        raise LayoutError(f"{where}: a panel is narrower than {house.MIN_WIDTH} columns")
