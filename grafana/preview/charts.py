"""Charts: lines and bars against the step number and against time, and the distribution."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from grafana.preview.common import (
    DOT,
    GREY,
    PALETTE,
    Axes,
    Json,
    Room,
    Svg,
    colour_of,
    is_bar,
    is_dashed,
    is_thin,
    legend,
    look,
    plot,
    series_of,
    value_shown,
)
from grafana.preview.shapes import area, box, dot, path, shown, text
from otel_smol.cli.numbers import step_ticks, ticks

BETWEEN = 10_000
"""Milliseconds from one point in time to the next; `collect` asks so."""


def trend(panel: Json, found: Json, room: Room, answered: Json) -> Svg:
    """Lines, bars, or stacked bars against a number."""
    (table,) = found["tables"]
    columns = dict(table["columns"])
    xs = columns.pop(panel["options"]["xField"])
    looks = {name: look(panel, name) for name in columns}
    free = cycle(PALETTE)
    colours = {name: colour_of(looks[name]) or next(free) for name in columns}
    stacked = (panel["fieldConfig"]["defaults"]["custom"].get("stacking") or {}).get("mode") == "normal"
    sums = [sum(column[i] or 0 for column in columns.values()) for i in range(len(xs))]
    top = max(sums) if stacked else max(v for column in columns.values() for v in column if v is not None)
    kinds = {name: "bar" if is_bar(how) else "dash" if is_dashed(how) else "line" for name, how in looks.items()}
    thin = [] if stacked else [name for name, how in looks.items() if is_thin(how)]
    entries = [(name, colours[name], kinds[name]) for name in columns if name not in thin]
    if thin:
        entries.append((f"{len(thin)} runs of the last ten traces", GREY, "line"))
        colours |= dict.fromkeys(thin, GREY)
    lines, drawn = legend(room, entries)
    inner = plot(room, lines)
    half = 0.5 if stacked or "bar" in kinds.values() else 0.0
    axes = Axes(inner, xs[0] - half, xs[-1] + half, top * 1.04)
    yield from axes.grid(looks[next(iter(columns))].get("unit", "short"))
    for step in step_ticks(int(xs[-1]), 16):
        yield text(axes.x(step), inner.bottom + 17, str(step), "small soft middle")
    yield text(inner.x - 12, inner.bottom + 17, "step", "small soft end")
    below = [0.0] * len(xs)
    for name, column in columns.items():
        if is_bar(looks[name]):
            yield from bar_columns(axes, xs, column, below, colours[name], stacked)
            if stacked:
                below = [b + (v or 0) for b, v in zip(below, column, strict=True)]
    for name, column in columns.items():
        if not is_bar(looks[name]):
            yield from line(axes, list(zip(xs, column, strict=True)), looks[name], colours[name])
    if not stacked:
        yield from end_labels(axes, xs, columns, looks, colours)
    yield from drawn


def bar_columns(
    axes: Axes, xs: Sequence[float], column: Sequence[float | None], below: Sequence[float], colour: str, stacked: bool
) -> Svg:
    """One bar for each x."""
    wide = min(axes.room.w / (axes.high - axes.low) * 0.68, 40)
    for x, value, base in zip(xs, column, below, strict=True):
        if value:
            top = axes.y(base + value)
            opacity = 0.85 if stacked else 0.7
            yield box(axes.x(x) - wide / 2, top, wide, axes.y(base) - top, fill=colour, opacity=opacity)


def line(axes: Axes, points: Sequence[tuple[float, float | None]], how: Json, colour: str) -> Svg:
    """A line, with its points and what lies below it if wanted."""
    known = [(axes.x(x), axes.y(y)) for x, y in points if y is not None]
    if not known:
        return
    fill = how.get("custom.fillOpacity") or 0
    if fill and len(known) > 1:
        yield area(known, axes.room.bottom, colour, fill / 100)
    if len(known) > 1:
        yield path(known, colour, how.get("custom.lineWidth", 2), is_dashed(how))
    if how.get("custom.showPoints") == "always" or len(known) == 1:
        yield from (dot(x, y, colour) for x, y in known)


def end_labels(
    axes: Axes, xs: Sequence[float], columns: dict[str, list[Any]], looks: dict[str, Json], colours: dict[str, str]
) -> Svg:
    """What each thick or dashed line comes to, at its end, unless another one says so there already."""
    taken: list[float] = []
    for name, column in sorted(columns.items(), key=lambda item: is_dashed(looks[item[0]])):
        how = looks[name]
        if is_bar(how) or column[-1] is None or not (is_dashed(how) or how.get("custom.lineWidth", 1) >= 3):
            continue
        y = max(axes.y(column[-1]) - 9, axes.room.y + 10)
        if any(abs(y - other) < 18 for other in taken):
            continue
        taken.append(y)
        style = f"font-weight:700;font-size:15px;fill:{colours[name]}"
        yield text(axes.x(xs[-1]) - 10, y, value_shown(how, column[-1]), "end", style)


def over_time(panel: Json, found: Json, room: Room, answered: Json) -> Svg:
    """Lines, or stacked bars, against time."""
    named = [(name, list(zip(times, column, strict=True))) for name, times, column in series_of(found)]
    named = [(name, points) for name, points in named if any(value for _, value in points)] or named[:3]
    stacked = (panel["fieldConfig"]["defaults"]["custom"].get("stacking") or {}).get("mode") == "normal"
    families = {name: name.rpartition(": ")[0] or name for name, _ in named}
    order = list(dict.fromkeys(families.values()))
    free = {family: PALETTE[i % len(PALETTE)] for i, family in enumerate(order)}
    colours = {name: colour_of(look(panel, name)) or free[family] for name, family in families.items()}
    kinds = {name: "bar" if stacked else "dash" if is_dashed(look(panel, name)) else "line" for name, _ in named}
    listed = [name for name, _ in named if not (look(panel, name).get("custom.hideFrom") or {}).get("legend")]
    lines, drawn = legend(room, [(name, colours[name], kinds[name]) for name in listed])
    right = {name for name, _ in named if look(panel, name).get("custom.axisPlacement") == "right"}
    inner = plot(room, lines)
    if right:
        inner = Room(inner.x, inner.y, inner.w - 30, inner.h)
    sums: dict[float, float] = {}
    for _, points in named:
        for moment, value in points:
            sums[moment] = sums.get(moment, 0) + (value or 0)
    top = max(sums.values()) if stacked else max(v for name, points in named if name not in right for _, v in points)
    end = answered["end"] * 1000
    axes = Axes(inner, end - answered["seconds"] * 1000, end, (top or 1) * 1.06)
    yield from axes.grid(panel["fieldConfig"]["defaults"]["unit"])
    yield from clock(axes)
    most = max((value for name, points in named if name in right for _, value in points), default=1)
    of_right = Axes(inner, axes.low, axes.high, 1.06 * most)
    if right:
        whole = all(look(panel, name).get("decimals") == 0 for name in right)
        for value in (each for each in ticks(of_right.top) if each == int(each) or not whole):
            yield text(inner.right + 6, of_right.y(value) + 4, shown(value, "none"), "small soft")
    below: dict[float, float] = {}
    wide = inner.w * BETWEEN / (axes.high - axes.low) * 0.8
    for name, points in named:
        if not stacked:
            for run in unbroken(points):
                yield from line(of_right if name in right else axes, run, look(panel, name), colours[name])
            continue
        for moment, value in points:
            base = below.get(moment, 0)
            y = axes.y(base + value)
            yield box(axes.x(moment) - wide, y, wide, axes.y(base) - y, fill=colours[name], opacity=0.85)
            below[moment] = base + value
    yield from drawn


def unbroken(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The stretches of a series in which no point is missing."""
    runs: list[list[tuple[float, float]]] = []
    for moment, value in points:
        if not runs or moment - runs[-1][-1][0] > 1.5 * BETWEEN:
            runs.append([])
        runs[-1].append((moment, value))
    return runs


def clock(axes: Axes) -> Svg:
    """Times of the day below the axis."""
    last = min(4, max(1, int(axes.room.w / 110)))
    for i in range(last + 1):
        moment = axes.low + (axes.high - axes.low) * i / last
        kind = "small soft" + (" middle" if 0 < i < last else " end" if i == last else "")
        words = time.strftime("%H:%M:%S", time.gmtime(moment / 1000))
        yield text(axes.x(moment), axes.room.bottom + 17, words, kind)


def heatmap(panel: Json, found: Json, room: Room, answered: Json) -> Svg:
    """Cells by time and bucket, the darker the more runs; a dot is one run."""
    (table,) = found["tables"]
    columns = {name: column for name, column in table["columns"].items() if name != "Time"}
    bounds = [float(name.replace("Inf", "inf")) for name in columns]
    used = [i for i, column in enumerate(columns.values()) if any(column)]
    first, last = max(min(used) - 1, 0), max(used)
    shown_bounds = bounds[first : last + 1]
    inner = plot(room, 1)
    end = answered["end"] * 1000
    axes = Axes(inner, end - answered["seconds"] * 1000, end, len(shown_bounds))
    high = inner.h / len(shown_bounds)
    for i, bound in enumerate(shown_bounds):
        y = inner.bottom - (i + 1) * high
        yield f'<path class="grid" d="M{inner.x:.1f},{y:.1f}H{inner.right:.1f}"/>'
        yield text(inner.x - 6, y + 4, shown(bound, "short"), "small soft end")
    yield from clock(axes)
    most = max(value for column in columns.values() for value in column)
    wide = inner.w * BETWEEN / (axes.high - axes.low)
    for i, column in enumerate(list(columns.values())[first : last + 1]):
        for moment, value in zip(table["columns"]["Time"], column, strict=True):
            if value:
                x, y = axes.x(moment) - wide, inner.bottom - (i + 1) * high
                yield box(x + 1, y + 1, wide - 2, high - 2, fill=PALETTE[2], opacity=0.25 + 0.6 * value / most)
    for moment, value in found["dots"]:
        i = next(i for i, bound in enumerate(bounds) if value <= bound)
        lower = bounds[i - 1] if i else 0.0
        share = (value - lower) / (bounds[i] - lower) if bounds[i] < float("inf") else 0.5
        yield dot(axes.x(moment * 1000), inner.bottom - (i - first + share) * high, DOT, 4)
    cells, dots = ("runs of this size", PALETTE[2], "bar"), ("a dot is one run and leads to its trace", DOT, "bar")
    yield from legend(room, [cells, dots])[1]
