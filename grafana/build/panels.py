"""Panels: what every one of them has, and one function per kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import bargauge, common, heatmap, stat, table, timeseries, trend
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus as prometheus_build
from grafana_foundation_sdk.builders import tempo as tempo_build
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import tempo as tempo_model
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    BarGaugeDisplayMode,
    BarGaugeNamePlacement,
    BarGaugeValueMode,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    DataSourceRef,
    GraphDrawStyle,
    HeatmapCellLayout,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)

from grafana.traceql import SPANS_PER_TRACE, Search

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${prometheus}")
TEMPO = DataSourceRef(type_val="tempo", uid="${tempo}")

BLUE, AMBER, GREEN, MAGENTA, RED, GREY = "#3d8bfd", "#e0a32e", "#3fb950", "#d65db1", "#e5534b", "#8b949e"
"""Sent, fixed, new, replayed, failed, the rest: the same as in docs/curve.svg."""

TOKENS, SHARE, TIMES, COUNT, SECONDS = "short", "percentunit", "suffix:×", "none", "s"
"""Units."""

MIN_STEP = "1m"
"""Points of a time series are at least as far apart as the SDK's exports."""


@dataclass(frozen=True)
class Text:
    """What every panel says of itself."""

    id: int
    title: str
    description: str
    """What it shows, and what to do when it looks wrong."""
    no_value: str
    """What it says when there is nothing, naming the switch that is missing."""
    unit: str = TOKENS


@dataclass(frozen=True)
class Place:
    """Where it stands on the grid of 24 columns."""

    x: int
    y: int
    w: int
    h: int


Panel = TypeVar(
    "Panel", trend.Panel, stat.Panel, bargauge.Panel, timeseries.Panel, heatmap.Panel, table.Panel, build.Panel
)
AnyPanel = trend.Panel | stat.Panel | bargauge.Panel | timeseries.Panel | heatmap.Panel | table.Panel | build.Panel
Target = prometheus_build.Dataquery | tempo_build.Dataquery
Override = tuple[str, dict[str, object]]
"""A field's name, and what is different for it."""


def _common(
    panel: Panel,
    text: Text,
    place: Place,
    targets: Sequence[Target],
    transformations: Sequence[model.DataTransformerConfig],
) -> Panel:
    source = TEMPO if isinstance(targets[0], tempo_build.Dataquery) else PROMETHEUS
    panel.id(text.id).title(text.title).description(text.description).datasource(source)
    panel.grid_pos(model.GridPos(h=place.h, w=place.w, x=place.x, y=place.y))
    panel.unit(text.unit).no_value(text.no_value)
    panel.targets(list(targets))
    if transformations:
        panel.transformations(list(transformations))
    return panel


def _override(panel: Panel, overrides: Sequence[Override]) -> Panel:
    for name, properties in overrides:
        values = [model.DynamicConfigValue(id_val=id, value=value) for id, value in properties.items()]
        if name.startswith("/"):
            panel.override_by_regexp(name, values)
        else:
            panel.override_by_name(name, values)
    return panel


# --- queries ---------------------------------------------------------------------------------------------------------


def _query(expression: str, ref: str) -> prometheus_build.Dataquery:
    query = prometheus_build.Dataquery().ref_id(ref).expr(expression).datasource(PROMETHEUS)
    return query.editor_mode(prometheus_model.QueryEditorMode.CODE)


def instant(expression: str, ref: str = "A", legend: str = "") -> prometheus_build.Dataquery:
    """The answer for the whole range."""
    return _query(expression, ref).instant().legend_format(legend or "__auto")


def row(expression: str, ref: str = "A") -> prometheus_build.Dataquery:
    """The same as a table: labels are columns."""
    return _query(expression, ref).instant().format(prometheus_model.PromQueryFormat.TABLE)


def series(expression: str, ref: str = "A", legend: str = "") -> prometheus_build.Dataquery:
    """The answer over time."""
    return _query(expression, ref).range().legend_format(legend or "__auto")


def buckets(expression: str) -> prometheus_build.Dataquery:
    """A histogram over time, with its exemplars."""
    query = _query(expression, "A").range().exemplar(True).legend_format("{{le}}")
    return query.format(prometheus_model.PromQueryFormat.HEATMAP)


def spans(search: Search, ref: str = "A") -> tempo_build.Dataquery:
    """Spans as a table: attributes are columns."""
    return traceql(str(search), ref).limit(search.traces).spss(SPANS_PER_TRACE)


def traceql(query: str, ref: str = "A") -> tempo_build.Dataquery:
    """Any TraceQL, or the id of a trace."""
    found = tempo_build.Dataquery().ref_id(ref).query(query).query_type("traceql").datasource(TEMPO)
    return found.table_type(tempo_model.SearchTableType.SPANS).filters([])


# --- kinds of panels -------------------------------------------------------------------------------------------------


def number(
    text: Text,
    place: Place,
    targets: Sequence[Target],
    *,
    warn_above: float | None = None,
    decimals: int | None = None,
    transformations: Sequence[model.DataTransformerConfig] = (),
    overrides: Sequence[Override] = (),
    fields: str = "",
) -> stat.Panel:
    """One number, or a few, large. Above `warn_above` it is amber."""
    panel = _common(stat.Panel(), text, place, targets, transformations)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields(fields).values(False))
    panel.graph_mode(BigValueGraphMode.NONE).color_mode(BigValueColorMode.VALUE)
    panel.text_mode(BigValueTextMode.VALUE_AND_NAME if len(targets) > 1 or fields else BigValueTextMode.VALUE)
    panel.orientation(VizOrientation.AUTO).thresholds(_thresholds(BLUE, warn_above))
    if decimals is not None:
        panel.decimals(decimals)
    return _override(panel, overrides)


def bars(
    text: Text, place: Place, targets: Sequence[Target], colours: dict[str, str] | None = None, colour: str = BLUE
) -> bargauge.Panel:
    """A bar for each series, the longest first."""
    panel = _common(bargauge.Panel(), text, place, targets, ())
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    panel.orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC).min(0)
    panel.value_mode(BarGaugeValueMode.TEXT).name_placement(BarGaugeNamePlacement.LEFT).show_unfilled(False)
    panel.color_scheme(_fixed(colour)).thresholds(_thresholds(colour, None))
    named = colours or {}
    return _override(panel, [(name, {"color": {"mode": "fixed", "fixedColor": c}}) for name, c in named.items()])


def against_step(
    text: Text,
    place: Place,
    targets: Sequence[Target],
    x: str,
    transformations: Sequence[model.DataTransformerConfig],
    overrides: Sequence[Override],
    *,
    stacked_bars: bool = False,
) -> trend.Panel:
    """Lines, or stacked bars, against the step number. Wants one table whose `x` is a rising number."""
    panel = _common(trend.Panel(), text, place, targets, transformations)
    panel.x_field(x).legend(_legend()).tooltip(_tooltip()).min(0)
    panel.draw_style(GraphDrawStyle.BARS if stacked_bars else GraphDrawStyle.LINE)
    panel.line_width(1 if stacked_bars else 2).fill_opacity(75 if stacked_bars else 0)
    panel.show_points(VisibilityMode.NEVER if stacked_bars else VisibilityMode.ALWAYS).point_size(5)
    panel.axis_placement(AxisPlacement.AUTO).span_nulls(not stacked_bars)
    if stacked_bars:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    return _override(panel, overrides)


def over_time(
    text: Text,
    place: Place,
    targets: Sequence[Target],
    *,
    stacked_bars: bool = False,
    overrides: Sequence[Override] = (),
    max_points: int | None = None,
) -> timeseries.Panel:
    """Lines, or stacked bars that add up to the total of the range."""
    panel = _common(timeseries.Panel(), text, place, targets, ())
    panel.legend(_legend()).tooltip(_tooltip()).min(0).interval(MIN_STEP)
    panel.draw_style(GraphDrawStyle.BARS if stacked_bars else GraphDrawStyle.LINE)
    panel.fill_opacity(75 if stacked_bars else 10).line_width(1)
    panel.show_points(VisibilityMode.AUTO).span_nulls(False)
    if stacked_bars:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if max_points:
        panel.max_data_points(max_points)
    return _override(panel, overrides)


def distribution(text: Text, place: Place, expression: str) -> heatmap.Panel:
    """A histogram over time; each dot is a run and leads to its trace."""
    panel = _common(heatmap.Panel(), text, place, [buckets(expression)], ())
    colour = heatmap.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME).scheme("Blues").steps(32)
    colour.exponent(0.5).fill(BLUE).scale(heatmap_model.HeatmapColorScale.EXPONENTIAL).reverse(True)
    panel.calculate(False).color(colour).cell_gap(2).show_legend().interval(MIN_STEP).max_data_points(120)
    panel.exemplars_color("rgba(224,163,46,0.9)").show_value(VisibilityMode.NEVER)
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.AUTO))
    panel.y_axis(heatmap.YAxisConfig().unit(text.unit).axis_placement(AxisPlacement.LEFT))
    panel.cell_values(heatmap.CellValues().unit(COUNT))
    panel.tooltip(heatmap.HeatmapTooltip().mode(TooltipDisplayMode.SINGLE).y_histogram(False))
    panel.scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LINEAR))
    return panel


def rows(
    text: Text,
    place: Place,
    targets: Sequence[Target],
    transformations: Sequence[model.DataTransformerConfig],
    overrides: Sequence[Override] = (),
    sort_by: str = "",
) -> table.Panel:
    """A table."""
    panel = _common(table.Panel(), text, place, targets, transformations)
    if sort_by:
        panel.sort_by([common.TableSortByFieldState().display_name(sort_by).desc(True)])
    return _override(panel, overrides)


def trace_view(text: Text, place: Place, query: str) -> build.Panel:
    """A trace, span by span."""
    return _common(build.Panel().type("traces"), text, place, [traceql(query)], ())


def link(title: str, url: str) -> dict[str, object]:
    """A field's links, as an override's value."""
    return {"links": [{"title": title, "url": url, "targetBlank": False}]}


def line(colour: str, *, dashed: bool = False, width: int = 2, fill: int = 0) -> dict[str, object]:
    """How one line looks."""
    style: dict[str, object] = {"fill": "dash", "dash": [8, 6]} if dashed else {"fill": "solid"}
    return {
        "color": {"mode": "fixed", "fixedColor": colour},
        "custom.lineWidth": width,
        "custom.lineStyle": style,
        "custom.fillOpacity": fill,
        "custom.showPoints": "never" if dashed else "always",
    }


def bar(colour: str) -> dict[str, object]:
    """How bars among lines look."""
    return {
        "color": {"mode": "fixed", "fixedColor": colour},
        "custom.drawStyle": "bars",
        "custom.fillOpacity": 60,
        "custom.lineWidth": 0,
        "custom.showPoints": "never",
    }


def _fixed(colour: str) -> build.FieldColor:
    return build.FieldColor().mode(model.FieldColorModeId.FIXED).fixed_color(colour)


def _thresholds(colour: str, warn_above: float | None) -> build.ThresholdsConfig:
    steps = [model.Threshold(value=None, color=colour)]
    if warn_above is not None:
        steps.append(model.Threshold(value=warn_above, color=AMBER))
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    return legend.show_legend(True).calcs([])


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
