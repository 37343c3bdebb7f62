"""What all pictures of panels share: how a field looks, scales, legends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grafana.preview.shapes import box, fit, path, shown, text, width
from otel_smol.cli.numbers import ticks

Json = dict[str, Any]
Svg = Iterator[str]

PALETTE = ("#3fb950", "#d6a11a", "#3d8bfd", "#e0752d", "#d65db1", "#6cc5d9", "#a371f7", "#e5534b")
GREY, DOT = "#8b949e", "#e0a32e"
LINE = 22
"""Height of a line of a legend."""


@dataclass(frozen=True)
class Room:
    """Where a panel's content goes."""

    x: float
    y: float
    w: float
    h: float

    @property
    def right(self) -> float:
        return self.x + self.w

    @property
    def bottom(self) -> float:
        return self.y + self.h


@dataclass(frozen=True)
class Axes:
    """Two scales, and the part of the room that they span."""

    room: Room
    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.room.x + share * self.room.w

    def y(self, value: float) -> float:
        return self.room.bottom - value / self.top * self.room.h

    def grid(self, unit: str) -> Svg:
        """Lines and their numbers."""
        for value in ticks(self.top):
            y = self.y(value)
            kind = "grid" if value else "axis"
            yield f'<path class="{kind}" d="M{self.room.x:.1f},{y:.1f}H{self.room.right:.1f}"/>'
            yield text(self.room.x - 6, y + 4, shown(value, unit), "small soft end")


def plot(room: Room, legend_lines: int) -> Room:
    """The room without what axes and legend take."""
    return Room(room.x + 44, room.y + 4, room.w - 52, room.h - 26 - legend_lines * LINE)


def legend(room: Room, entries: Sequence[tuple[str, str, str]]) -> tuple[int, list[str]]:
    """Names with their colours, in as few lines as they need. The kind is `bar`, `line` or `dash`."""
    x, line, placed = room.x, 0, []
    for name, colour, kind in entries:
        wide = width(name, 12) + 40
        if x + wide > room.right and x > room.x:
            x, line = room.x, line + 1
        placed.append((x, line, name, colour, kind))
        x += wide
    lines = line + 1
    drawn = []
    for x, line, name, colour, kind in placed:
        y = room.bottom - (lines - line) * LINE + 18
        mark = box(x, y - 9, 16, 10, fill=colour, round=2)
        if kind != "bar":
            mark = path([(x, y - 4), (x + 18, y - 4)], colour, 3, kind == "dash")
        drawn += [mark, text(x + 23, y, fit(name, room.w - 24, 12), "small")]
    return lines, drawn


def look(panel: Json, name: str) -> Json:
    """Unit, colour and style of a field: the defaults, and what the overrides say."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = {f"custom.{key}": value for key, value in (defaults.get("custom") or {}).items()}
    found = {**custom, **{key: value for key, value in defaults.items() if key != "custom"}}
    for override in panel["fieldConfig"]["overrides"]:
        wanted = override["matcher"]["options"]
        pattern = wanted.strip("/") if wanted.startswith("/") else None
        if wanted == name or (pattern is not None and re.search(pattern, name)):
            found |= {each["id"]: each["value"] for each in override["properties"]}
    return found


def colour_of(how: Json) -> str | None:
    """A fixed colour, if there is one."""
    colour = how.get("color") or {}
    return colour.get("fixedColor") if colour.get("mode") == "fixed" else None


def threshold_colour(how: Json, value: float) -> str:
    """The colour of the last threshold that the value reaches."""
    steps = how["thresholds"]["steps"]
    return str([each["color"] for each in steps if each["value"] is None or value >= each["value"]][-1])


def value_shown(how: Json, value: Any) -> str:
    """A value in its unit."""
    return shown(value, how.get("unit", "short"), how.get("decimals"))


def series_of(found: Json) -> list[tuple[str, list[float], list[Any]]]:
    """Name, times and values of every series."""
    return [
        (name, table["columns"]["Time"], column)
        for table in found["tables"]
        for name, column in table["columns"].items()
        if name != "Time"
    ]


def is_thin(how: Json) -> bool:
    return bool(how.get("custom.showPoints") == "never" and how["custom.lineWidth"] == 1)


def is_bar(how: Json) -> bool:
    return bool(how.get("custom.drawStyle") == "bars")


def is_dashed(how: Json) -> bool:
    return bool((how.get("custom.lineStyle") or {}).get("fill") == "dash")
