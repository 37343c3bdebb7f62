"""Draws a dashboard from the JSON that is committed and the answers that its panels got."""

from __future__ import annotations

from html import escape

from grafana.preview.charts import heatmap, over_time, trend
from grafana.preview.common import Json, Room, Svg
from grafana.preview.shapes import STYLE, box, fit, text, wrap
from grafana.preview.simple import bargauge, stat, table_of, waterfall

COLUMN, ROW, GAP, TOP = 50, 38, 8, 84
DRAWN = "Not a screenshot of Grafana: drawn by `python -m grafana.preview` from"
NOTES = {
    "prometheus": f"{DRAWN} what a real Prometheus, fed by real agents, answered to these panels' own queries.",
    "tempo": f"{DRAWN} real agents' spans, as Tempo would answer with them; the tests' own code answered, no Tempo.",
}
"""Where the answers came from, by the data source that the panels ask."""
KINDS = {
    "stat": stat,
    "bargauge": bargauge,
    "trend": trend,
    "timeseries": over_time,
    "heatmap": heatmap,
    "table": table_of,
    "traces": waterfall,
}


def picture(answered: Json) -> str:
    """The whole dashboard."""
    board = answered["board"]
    note = note_of(board)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    w, h = 24 * COLUMN + GAP, TOP + rows * ROW + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" role="img" '
        'aria-labelledby="title description">',
        f'<title id="title">{escape(board["title"])}</title>',
        f'<desc id="description">{escape(board["description"])} {escape(note)}</desc>',
        f"<style>{STYLE}</style>",
        box(0, 0, w, h, "ground"),
        text(14, 32, board["title"], "head"),
        text(14, 54, board["description"], "soft"),
        text(14, 73, note, "small soft"),
    ]
    for panel in board["panels"]:
        parts += panel_of(panel, answered["panels"][str(panel["id"])], answered)
    return "\n".join([*parts, "</svg>\n"])


def note_of(board: Json) -> str:
    """What is true of all its panels."""
    (asked,) = {panel["datasource"]["type"] for panel in board["panels"]}
    return NOTES[asked]


def panel_of(panel: Json, found: Json, answered: Json) -> Svg:
    """A frame, its title, and what is in it."""
    at = panel["gridPos"]
    x, y, w, h = at["x"] * COLUMN + GAP, TOP + at["y"] * ROW, at["w"] * COLUMN - GAP, at["h"] * ROW - GAP
    yield box(x, y, w, h, "panel", round=3)
    yield text(x + 12, y + 21, fit(panel["title"], w - 24, 14, bold=True), "title")
    room = Room(x + 12, y + 34, w - 24, h - 44)
    tables = [table for table in found.get("tables", []) if any(table["columns"].values())]
    if not tables and not found.get("spans"):
        yield from nothing(panel, room)
        return
    yield from KINDS[panel["type"]](panel, found, room, answered)


def nothing(panel: Json, room: Room) -> Svg:
    """What the panel says when there is no value."""
    lines = wrap(panel["fieldConfig"]["defaults"]["noValue"], room.w - 20)
    for i, line in enumerate(lines):
        y = room.y + room.h / 2 + (i - (len(lines) - 1) / 2) * 18
        yield text(room.x + room.w / 2, y, line, "soft middle")
