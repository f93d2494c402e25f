"""The kinds of panel that the dashboards are made of, with the house style applied.

Every function returns an :class:`Item`; where it lies is decided by layout.py.  ``no_data`` is what the panel says when
nothing comes back: what would make the data appear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import common as c
from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.builders import heatmap as hm
from grafana_foundation_sdk.builders import prometheus as p
from grafana_foundation_sdk.builders import stat as st
from grafana_foundation_sdk.builders import statetimeline as sl
from grafana_foundation_sdk.builders import table as tb
from grafana_foundation_sdk.builders import text as tx
from grafana_foundation_sdk.builders import timeseries as ts
from grafana_foundation_sdk.models import common as mc
from grafana_foundation_sdk.models import dashboard as md
from grafana_foundation_sdk.models import heatmap as mh
from grafana_foundation_sdk.models import prometheus as mp
from grafana_foundation_sdk.models import text as mt

from house import DATASOURCE, DEFAULT_SERVERS, SPAN_NULLS, STATE_COLOURS, server_colours

_REFS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Query:
    """One target.  ``legend`` may hold ``{{label}}``; ``ref`` defaults to the next letter."""

    expr: str
    legend: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """How the series whose legend matches ``pattern`` (a regular expression) are drawn."""

    pattern: str
    colour: str | None = None
    dashed: bool = False
    dotted: bool = False
    """for limits: a line that nothing was measured for"""
    fill: float | None = None
    width: float | None = None
    stacked: bool | None = None
    below_to: str | None = None
    unit: str | None = None
    right: str | None = None
    """label of a second axis on the right"""
    points: bool = False
    hidden_in_legend: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """A panel and its size in grid units."""

    builder: Any
    width: int
    height: int


def _described(text: str, no_data: str) -> str:
    """With what an empty panel means: tables and state timelines do not show ``noValue``."""
    return f"{text}\n\nEmpty: {no_data}"


def _reference() -> mc.DataSourceRef:
    return mc.DataSourceRef(type_val="prometheus", uid=DATASOURCE)


def _targets(queries: Sequence[Query], *, instant: bool, table: bool, heat: bool = False) -> list[p.Dataquery]:
    out = []
    for number, query in enumerate(queries):
        ref = query.ref or _REFS[number]
        target = (
            p.Dataquery().ref_id(ref).expr(query.expr).datasource(_reference()).editor_mode(mp.QueryEditorMode.CODE)
        )
        kind = mp.PromQueryFormat.TIME_SERIES
        if table:
            kind = mp.PromQueryFormat.TABLE
        elif heat:
            kind = mp.PromQueryFormat.HEATMAP
        target = target.format(kind)
        target = target.instant() if instant else target.range()
        if query.legend:
            target = target.legend_format(query.legend)
        out.append(target)
    return out


def _property(name: str, value: Any) -> md.DynamicConfigValue:
    return md.DynamicConfigValue(id_val=name, value=value)


def _look(look: Look) -> list[md.DynamicConfigValue]:
    out = []
    if look.colour is not None:
        out.append(_property("color", {"mode": "fixed", "fixedColor": look.colour}))
    if look.dashed:
        out.append(_property("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}))
    if look.dotted:
        out.append(_property("custom.lineStyle", {"fill": "dot", "dash": [0, 6]}))
    if look.fill is not None:
        out.append(_property("custom.fillOpacity", look.fill))
    if look.width is not None:
        out.append(_property("custom.lineWidth", look.width))
    if look.stacked is not None:
        out.append(_property("custom.stacking", {"mode": "normal" if look.stacked else "none", "group": "A"}))
    if look.below_to is not None:
        out.append(_property("custom.fillBelowTo", look.below_to))
    if look.unit is not None:
        out.append(_property("unit", look.unit))
    if look.right is not None:
        out += [_property("custom.axisPlacement", "right"), _property("custom.axisLabel", look.right)]
    if look.points:
        out += [_property("custom.drawStyle", "points"), _property("custom.pointSize", 5)]
    if look.hidden_in_legend:
        out.append(_property("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}))
    return out


def named(colours: Mapping[str, str]) -> tuple[Look, ...]:
    """Series that are called, or begin with, one of these words."""
    return tuple(Look(f"/^{name}( |$)/", colour) for name, colour in colours.items())


_servers: tuple[str, ...] = DEFAULT_SERVERS


def use_servers(servers: Sequence[str]) -> None:
    """Names that get fixed colours in everything built afterwards."""
    global _servers  # noqa: PLW0603 - one build writes for one set of names
    _servers = tuple(servers)


def _server_looks() -> tuple[Look, ...]:
    return tuple(
        Look("/^" + name.replace(".", r"\.") + "( |$)/", colour) for name, colour in server_colours(_servers).items()
    )


def _no_colour() -> d.FieldColor:
    return d.FieldColor().mode(md.FieldColorModeId.PALETTE_CLASSIC_BY_NAME)


def _steps(steps: Sequence[tuple[float | None, str]]) -> d.ThresholdsConfig:
    return (
        d.ThresholdsConfig()
        .mode(md.ThresholdsMode.ABSOLUTE)
        .steps([md.Threshold(value=value, color=colour) for value, colour in steps])
    )


_PLAIN: Final = ((None, "text"),)
"""No thresholds: one step, in the colour of text."""


def series(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    no_data: str,
    width: int = 8,
    height: int = 8,
    looks: Sequence[Look] = (),
    by_server: bool = True,
    stacked: bool = False,
    fill: float = 0,
    line: float = 1.5,
    minimum: float | None = 0,
    maximum: float | None = None,
    decimals: int | None = None,
    legend_values: Sequence[str] | None = None,
    steps: Sequence[tuple[float | None, str]] = (),
    bars: bool = False,
    log: bool = False,
    soft_max: float | None = None,
) -> Item:
    """Lines over time.  ``by_server``: legends begin with the server's name, whose colour is fixed."""
    if legend_values is None:
        # Several lines a server: with two numbers each, the legend would be larger than the graph.
        legend_values = ("max",) if by_server and len(queries) > 1 else ("lastNotNull", "max")
    b = (
        ts.Panel()
        .title(title)
        .description(_described(description, no_data))
        .datasource(_reference())
        .targets(_targets(queries, instant=False, table=False))
        .unit(unit)
        .no_value(no_data)
        .color_scheme(_no_colour())
        .line_width(line)
        .fill_opacity(fill)
        .span_nulls(SPAN_NULLS)
        .show_points(mc.VisibilityMode.AUTO)
        .point_size(4)
        .thresholds(_steps(steps or _PLAIN))
        .legend(
            c.VizLegendOptions()
            .display_mode(mc.LegendDisplayMode.LIST)
            .placement(mc.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(list(legend_values))
        )
        .tooltip(c.VizTooltipOptions().mode(mc.TooltipDisplayMode.MULTI).sort(mc.SortOrder.DESCENDING))
    )
    if bars:
        b = b.draw_style(mc.GraphDrawStyle.BARS).fill_opacity(80).line_width(0)
    if steps:
        b = b.thresholds_style(c.GraphThresholdsStyleConfig().mode(mc.GraphThresholdsStyleMode.DASHED))
    if stacked:
        b = b.stacking(c.StackingConfig().mode(mc.StackingMode.NORMAL).group("A"))
        if not bars:
            b = b.fill_opacity(fill or 70)
    if log:
        b = b.scale_distribution(c.ScaleDistributionConfig().type(mc.ScaleDistribution.LOG).log(10))
    elif minimum is not None:
        b = b.min(minimum)
    if maximum is not None:
        b = b.max(maximum)
    if soft_max is not None:
        b = b.axis_soft_max(soft_max)
    if decimals is not None:
        b = b.decimals(decimals)
    for look in (*(_server_looks() if by_server else ()), *looks):
        b = b.override_by_regexp(look.pattern, _look(look))
    return Item(b, width, height)


def stat(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    no_data: str,
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    steps: Sequence[tuple[float | None, str]] = (),
    mappings: Mapping[float, tuple[str, str]] | None = None,
    names: bool = False,
    looks: Sequence[Look] = (),
) -> Item:
    """A number (or one per series with ``names``), as of the end of the time range."""
    b = (
        st.Panel()
        .title(title)
        .description(_described(description, no_data))
        .datasource(_reference())
        .targets(_targets(queries, instant=True, table=False))
        .unit(unit)
        .no_value(no_data)
        .thresholds(_steps(steps or _PLAIN))
        .color_scheme(d.FieldColor().mode(md.FieldColorModeId.THRESHOLDS))
        .color_mode(mc.BigValueColorMode.VALUE if steps or mappings else mc.BigValueColorMode.NONE)
        .graph_mode(mc.BigValueGraphMode.NONE)
        .text_mode(mc.BigValueTextMode.VALUE_AND_NAME if names else mc.BigValueTextMode.VALUE)
        .reduce_options(c.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
    )
    if decimals is not None:
        b = b.decimals(decimals)
    if mappings:
        b = b.mappings([_value_map(mappings)])
    for look in looks:
        b = b.override_by_regexp(look.pattern, _look(look))
    return Item(b, width, height)


def _value_map(mappings: Mapping[float, tuple[str, str]]) -> md.ValueMap:
    return md.ValueMap(
        options={
            f"{value:g}": md.ValueMappingResult(text=text, color=colour, index=number)
            for number, (value, (text, colour)) in enumerate(mappings.items())
        }
    )


def state_mapping() -> dict[float, tuple[str, str]]:
    """Numbers of :func:`state_number` to words and colours."""
    return {float(n): (name, colour) for n, (name, colour) in enumerate(STATE_COLOURS.items())}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the label, or ``Value #REF`` of a query, and how it is shown."""

    source: str
    title: str
    unit: str | None = None
    decimals: int | None = None
    gauge: bool = False
    maximum: float | None = None
    steps: Sequence[tuple[float | None, str]] = ()
    mappings: Mapping[float, tuple[str, str]] | None = None
    words: Mapping[str, str] | None = None
    """text -> colour, for columns that hold words"""
    link: tuple[str, str] | Sequence[tuple[str, str]] | None = None
    """title, url; several of them open a menu"""
    width: int | None = None


def _column(column: Column) -> list[md.DynamicConfigValue]:
    out = []
    if column.unit is not None:
        out.append(_property("unit", column.unit))
    if column.decimals is not None:
        out.append(_property("decimals", column.decimals))
    if column.maximum is not None:
        out += [_property("min", 0), _property("max", column.maximum)]
    if column.steps:
        out.append(
            _property(
                "thresholds",
                {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in column.steps]},
            )
        )
        out.append(_property("color", {"mode": "thresholds"}))
    if column.gauge:
        out.append(_property("custom.cellOptions", {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}))
    elif column.steps or column.mappings or column.words:
        out.append(_property("custom.cellOptions", {"type": "color-text"}))
    if column.mappings:
        out.append(
            _property(
                "mappings",
                [
                    {
                        "type": "value",
                        "options": {
                            f"{value:g}": {"text": text, "color": colour, "index": number}
                            for number, (value, (text, colour)) in enumerate(column.mappings.items())
                        },
                    }
                ],
            )
        )
    if column.words:
        out.append(
            _property(
                "mappings",
                [
                    {
                        "type": "value",
                        "options": {
                            text: {"text": text, "color": colour, "index": number}
                            for number, (text, colour) in enumerate(column.words.items())
                        },
                    }
                ],
            )
        )
    if column.link:
        links = [column.link] if isinstance(column.link[0], str) else column.link
        out.append(_property("links", [{"title": title, "url": url} for title, url in links]))
    if column.width is not None:
        out.append(_property("custom.width", column.width))
    return out


def table(
    title: str,
    description: str,
    queries: Sequence[Query],
    columns: Sequence[Column],
    *,
    no_data: str,
    width: int = 24,
    height: int = 8,
    sort: str | None = None,
) -> Item:
    """Instant queries merged on the labels that they share; only ``columns`` are shown, in their order."""
    b = (
        tb.Panel()
        .title(title)
        .description(_described(description, no_data))
        .datasource(_reference())
        .targets(_targets(queries, instant=True, table=True))
        .unit("none")
        .no_value("–")
        .color_scheme(d.FieldColor().mode(md.FieldColorModeId.FIXED).fixed_color("text"))
        .cell_height(mc.TableCellHeight.SM)
        .thresholds(_steps(_PLAIN))
    )
    if len(queries) > 1:
        b = b.with_transformation(md.DataTransformerConfig(id_val="merge", options={}))
    b = b.with_transformation(
        md.DataTransformerConfig(
            id_val="filterFieldsByName", options={"include": {"names": [column.source for column in columns]}}
        )
    )
    b = b.with_transformation(
        md.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {},
                "indexByName": {column.source: number for number, column in enumerate(columns)},
                "renameByName": {column.source: column.title for column in columns},
            },
        )
    )
    if sort:
        b = b.sort_by([c.TableSortByFieldState().display_name(sort.lstrip("-")).desc(sort.startswith("-"))])
    for column in columns:
        properties = _column(column)
        if properties:
            b = b.override_by_name(column.title, properties)
    return Item(b, width, height)


def heat(title: str, description: str, query: str, *, no_data: str, width: int = 12, height: int = 8) -> Item:
    """Requests by latency bucket over time; the rows are the server's own bucket bounds."""
    b = (
        hm.Panel()
        .title(title)
        .description(_described(description, no_data))
        .datasource(_reference())
        .targets(_targets([Query(query, "{{le}}")], instant=False, table=False, heat=True))
        .unit("reqps")
        .no_value(no_data)
        .calculate(False)
        .cell_gap(1)
        .color(
            hm.HeatmapColorOptions()
            .mode(mh.HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .scale(mh.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .reverse(False)
        )
        .y_axis(hm.YAxisConfig().unit("s"))
        .rows_frame(hm.RowsHeatmapOptions().layout(mc.HeatmapCellLayout.AUTO))
        .filter_values(hm.FilterValueRange().le(1e-9))
        .tooltip(hm.HeatmapTooltip().mode(mc.TooltipDisplayMode.SINGLE).y_histogram(True))
        .show_legend()
    )
    return Item(b, width, height)


def states(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    mappings: Mapping[float, tuple[str, str]],
    no_data: str,
    width: int = 24,
    height: int = 6,
) -> Item:
    """One bar per series, coloured by state over time."""
    b = (
        sl.Panel()
        .title(title)
        .description(_described(description, no_data))
        .datasource(_reference())
        .targets(_targets(queries, instant=False, table=False))
        .unit("none")
        .no_value(no_data)
        .mappings([_value_map(mappings)])
        .thresholds(_steps(_PLAIN))
        .color_scheme(d.FieldColor().mode(md.FieldColorModeId.THRESHOLDS))
        .fill_opacity(85)
        .line_width(0)
        .row_height(0.8)
        .merge_values(True)
        .show_value(mc.VisibilityMode.AUTO)
        .legend(
            c.VizLegendOptions()
            .display_mode(mc.LegendDisplayMode.LIST)
            .placement(mc.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(c.VizTooltipOptions().mode(mc.TooltipDisplayMode.SINGLE).sort(mc.SortOrder.NONE))
    )
    return Item(b, width, height)


def words(title: str, content: str, *, width: int = 6, height: int = 8) -> Item:
    """Markdown."""
    b = tx.Panel().title(title).description(title).mode(mt.TextMode.MARKDOWN).content(content)
    return Item(b, width, height)
