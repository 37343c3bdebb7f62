"""SVG elements, the width of text, and numbers in Grafana's units."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from otel_smol.cli.numbers import short

NARROW, WIDE = frozenset("ijlt.,:;|!'`()[]fr/ -"), frozenset("mwMW@%_")

LIGHT = {
    "ground": "#f4f5f7",
    "panel": "#ffffff",
    "edge": "#dfe3e8",
    "ink": "#1f2328",
    "soft": "#59636e",
    "grid": "#e8ebef",
}
DARK = {
    "ground": "#111217",
    "panel": "#181b1f",
    "edge": "#2c3037",
    "ink": "#e6e8eb",
    "soft": "#9fa7b3",
    "grid": "#262a31",
}

SHAPES = """\
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.title{font-weight:600;font-size:14px}.head{font-size:22px;font-weight:600}.small{font-size:12px}
.end{text-anchor:end}.middle{text-anchor:middle}.line{fill:none;stroke-linejoin:round}"""
COLOURS = """\
text{{fill:{ink}}}.soft{{fill:{soft}}}.ground{{fill:{ground}}}.panel{{fill:{panel};stroke:{edge}}}
.grid{{stroke:{grid};fill:none}}.axis{{stroke:{soft};fill:none}}.dot{{stroke:{panel}}}"""
# no CSS variables: what converts pictures does not know them
STYLE = f"{SHAPES}\n{COLOURS.format(**LIGHT)}\n@media(prefers-color-scheme:dark){{{COLOURS.format(**DARK)}}}"


def width(words: str, size: float = 13, bold: bool = False) -> float:
    """About how wide a text is, in a rather wide font."""
    ems = (0.36 if c in NARROW else 0.92 if c in WIDE else 0.7 if c.isupper() else 0.62 for c in words)
    return size * sum(ems) * (1.1 if bold else 1)


def fit(words: str, room: float, size: float = 13, bold: bool = False) -> str:
    """As much of a text as there is room for."""
    if width(words, size, bold) <= room + 1:
        return words
    while words and width(words + "…", size, bold) > room:
        words = words[:-1]
    return words.rstrip() + "…"


def wrap(words: str, room: float, size: float = 13) -> list[str]:
    """A text in lines."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if width(longer, size) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def text(x: float, y: float, words: str, kind: str = "", style: str = "") -> str:
    """Text on a baseline; `style` beats the style sheet."""
    named = (f' class="{kind}"' if kind else "") + (f' style="{style}"' if style else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(words)}</text>'


def box(
    x: float, y: float, w: float, h: float, kind: str = "", fill: str = "", opacity: float = 1, round: int = 0
) -> str:
    """A rectangle."""
    parts = [f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0):.1f}" height="{max(h, 0):.1f}"']
    parts += [f' class="{kind}"'] * bool(kind) + [f' fill="{fill}"'] * bool(fill)
    parts += [f' opacity="{opacity:.2f}"'] * (opacity < 1) + [f' rx="{round}"'] * bool(round)
    return "".join([*parts, "/>"])


def path(points: Sequence[tuple[float, float]], colour: str, thick: float = 2, dashed: bool = False) -> str:
    """A line through points."""
    drawn = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="7 5"' if dashed else ""
    return f'<path class="line" d="M{drawn}" stroke="{colour}" stroke-width="{thick:g}"{dash}/>'


def area(points: Sequence[tuple[float, float]], bottom: float, colour: str, opacity: float) -> str:
    """What lies below a line."""
    outline = [*points, (points[-1][0], bottom), (points[0][0], bottom)]
    drawn = "L".join(f"{x:.1f},{y:.1f}" for x, y in outline)
    return f'<path d="M{drawn}Z" fill="{colour}" opacity="{opacity:.2f}"/>'


def dot(x: float, y: float, colour: str, radius: float = 3.5) -> str:
    """A point."""
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def shown(value: float | str | bool | None, unit: str, decimals: int | None = None) -> str:
    """A value in one of the units that the panels use."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return str(value)
    if unit == "percentunit":
        return f"{value:.{decimals or 0}%}"
    if unit.startswith("suffix:"):
        return f"{value:.{1 if decimals is None else decimals}f}{unit.removeprefix('suffix:')}"
    if unit == "s":
        return f"{value:.2g} s" if value >= 1 else f"{value * 1000:.3g} ms"
    if unit == "ns":
        return shown(value / 1e9, "s")
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    if unit == "none" and value == int(value):
        return f"{value:,.0f}"
    return short(value) if decimals is None else f"{value:.{decimals}f}"
