"""Numbers, bars, tables and traces."""

from __future__ import annotations

import time
from typing import Any

from grafana.preview.common import PALETTE, Json, Room, Svg, colour_of, look, series_of, threshold_colour, value_shown
from grafana.preview.shapes import box, fit, shown, text, width


def stat(panel: Json, found: Json, room: Room, answered: Json) -> Svg:
    """Large numbers side by side."""
    values = [
        (name, column[-1])
        for table in found["tables"]
        for name, column in table["columns"].items()
        if table["types"][name] != "time" and column
    ]
    each = room.w / len(values)
    for i, (name, value) in enumerate(values):
        how = look(panel, name)
        words = value_shown(how, value)
        number = isinstance(value, int | float)
        colour = colour_of(how) or (threshold_colour(how, value) if number else PALETTE[2])
        size = min(38.0, room.h * 0.62, 38 * (each - 14) / width(words, 38, bold=True))
        middle = room.x + each * (i + 0.5)
        y = room.y + room.h / 2 + size * 0.36 - (10 if len(values) > 1 else 6)
        yield text(middle, y, words, "middle", f"font-size:{size:.0f}px;font-weight:600;fill:{colour}")
        if len(values) > 1:
            yield text(middle, room.bottom - 2, fit(name, each - 8, 12), "small soft middle")


def bargauge(panel: Json, found: Json, room: Room, answered: Json) -> Svg:
    """A bar for each series."""
    bars = [(name, column[-1]) for name, _, column in series_of(found)]
    most = max(value for _, value in bars)
    names = min(max(width(name) for name, _ in bars) + 10, room.w * 0.62)
    high = min(room.h / len(bars), 40)
    longest = room.w - names - max(width(value_shown(look(panel, name), value)) for name, value in bars) - 8
    for i, (name, value) in enumerate(bars):
        how = look(panel, name)
        y = room.y + i * high
        yield text(room.x + names - 10, y + high / 2 + 4, fit(name, names - 10), "end")
        yield box(room.x + names, y + 3, longest * value / most, high - 6, fill=colour_of(how) or PALETTE[2], round=2)
        yield text(room.x + names + longest * value / most + 6, y + high / 2 + 4, value_shown(how, value))


def table_of(panel: Json, found: Json, room: Room, answered: Json) -> Svg:
    """Rows and columns, as many as there is room for."""
    (table,) = found["tables"]
    types = table["types"]
    columns = {name: each for name, each in table["columns"].items() if not look(panel, name).get("custom.hidden")}
    cells = {name: [cell(panel, name, types[name], value) for value in each] for name, each in columns.items()}
    wanted = {name: max(width(name, 12), *(width(words) for words in column)) + 22 for name, column in cells.items()}
    scale = room.w / sum(wanted.values())
    x = room.x
    fitting = int((room.h - 24) / 24)
    for name, column in cells.items():
        wide = wanted[name] * scale
        number = types[name] == "number"
        edge = x + wide - 12 if number else x
        yield text(edge, room.y + 12, fit(name, wide - 12, 12), "small soft" + (" end" if number else ""))
        gauge = (look(panel, name).get("custom.cellOptions") or {}).get("type") == "gauge"
        most = max((value for value in columns[name] if isinstance(value, int | float)), default=1) or 1
        for i, words in enumerate(column[:fitting]):
            y = room.y + 34 + i * 24
            if gauge and columns[name][i]:
                long = (wide - 24) * columns[name][i] / most
                yield box(x + 6, y - 13, long, 17, fill=PALETTE[2], opacity=0.3, round=2)
            yield text(edge, y, fit(words, wide - 10), "end" if number else "")
        x += wide
    yield f'<path class="grid" d="M{room.x:.1f},{room.y + 18:.1f}H{room.right:.1f}"/>'


def cell(panel: Json, name: str, type: str, value: Any) -> str:
    """A table's cell."""
    if type == "time":
        return time.strftime("%H:%M:%S", time.gmtime(value / 1000))
    if name == "duration":
        return shown(value, "ns")
    return value_shown(look(panel, name), value)


def waterfall(panel: Json, found: Json, room: Room, answered: Json) -> Svg:
    """The first spans of a trace, as long as they took."""
    spans = found["spans"]
    begin, end = spans[0]["start"], max(span["start"] + span["duration"] for span in spans)
    names = room.w * 0.3
    fitting = int(room.h / 22) - 1
    kinds = ("agent_step", "execute_tool", "invoke_agent", "plan", "chat")
    colours = dict(zip(kinds, PALETTE, strict=False))
    for i, span in enumerate(spans[:fitting]):
        y = room.y + i * 22
        left = room.x + names + (room.w - names) * (span["start"] - begin) / (end - begin)
        long = (room.w - names) * span["duration"] / (end - begin)
        yield text(room.x + span["depth"] * 16, y + 15, fit(span["name"], names - span["depth"] * 16 - 8))
        yield box(left, y + 4, max(long, 2), 13, fill=colours[span["name"].split(" ")[0]], round=2)
        words = shown(span["duration"], "ns")
        fits = left + long + width(words, 12) + 8 < room.right
        yield text(left + long + 6 if fits else left - 6, y + 15, words, "small soft" + ("" if fits else " end"))
    if len(spans) > fitting:
        yield text(room.x, room.y + fitting * 22 + 15, f"… and {len(spans) - fitting} more", "soft")
