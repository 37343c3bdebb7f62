"""The curve of a run as a picture, for a page or a README: plain SVG, readable on light and on dark ground."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from xml.sax.saxutils import escape

from otel_smol.cli.chart import Curve
from otel_smol.cli.numbers import count, percent, short, step_ticks, ticks, times, tokens
from otel_smol.records import RunRecord, StepRecord

WIDTH, HEIGHT = 880, 570
LEFT, RIGHT = 62, 160
CURVE, BARS = (84, 340), (412, 516)
"""Top and bottom of the two plots."""
MOST_MARKS = 48
"""Of longer runs every so-manieth step is drawn, without a dot and without a gap between bars."""
EXACT_BELOW = 1_000_000
"""Larger numbers are rounded beside the curve; the title has the total in full."""
LINES = {
    "curve": "measured: input tokens of all steps so far",
    "line": "what one would expect: every step like the first",
}
PARTS = {
    "fixed": "fixed: instructions, tools, task",
    "new": "new: sent for the first time",
    "replayed": "replayed: sent before",
}
"""Classes of `STYLE`, and what they mean."""

LIGHT = {
    "ground": "#fff",
    "ink": "#1f2328",
    "soft": "#59636e",
    "grid": "#e4e8ec",
    "curve": "#0b62c4",
    "fixed": "#a86f00",
    "new": "#1a7f37",
    "replayed": "#b8359b",
}
DARK = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "soft": "#9aa4af",
    "grid": "#262c34",
    "curve": "#58a6ff",
    "fixed": "#e0a32e",
    "new": "#3fb950",
    "replayed": "#e667c6",
}
SHAPES = """\
text{font:13.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.title{font-size:20px;font-weight:600}.small{font-size:12px}.strong{font-weight:600;font-size:14px}
.end{text-anchor:end}.middle{text-anchor:middle}.area{opacity:.22}
.curve{fill:none;stroke-width:3;stroke-linejoin:round}
.line{fill:none;stroke-width:2.5;stroke-dasharray:7 5}"""
COLOURS = """\
text{{fill:{ink}}}.ground{{fill:{ground}}}.small{{fill:{soft}}}.axis{{stroke:{soft}}}.grid{{stroke:{grid}}}
.fixed{{fill:{fixed}}}.new{{fill:{new}}}.replayed{{fill:{replayed}}}.measured{{fill:{curve}}}
.curve{{stroke:{curve}}}.line{{stroke:{fixed}}}"""
# no CSS variables: what converts pictures does not know them
STYLE = f"{SHAPES}\n{COLOURS.format(**LIGHT)}\n@media(prefers-color-scheme:dark){{{COLOURS.format(**DARK)}}}"


def curve(run: RunRecord) -> str | None:
    """The picture; None when the size of a prompt is unknown, so that there is no curve to draw."""
    drawn = Curve.of(run)
    if drawn is None:
        return None
    steps = run.action_steps
    title = f"An agent's {count(drawn.steps, 'step')}: {tokens(drawn.total)} input tokens sent to the model"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(_description(drawn, steps))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
            _text(LEFT, 36, title, "title"),
            _text(LEFT, 58, _subtitle(drawn), "small"),
            *_curve_panel(drawn, steps),
            *_bar_panel(steps),
            "</svg>\n",
        ]
    )


def _subtitle(drawn: Curve) -> str:
    if drawn.steps == 1:
        return "With a single step nothing is sent twice."
    return (
        "Every step sends the whole memory of the run again. That makes "
        f"{times(drawn.total / drawn.expected)} times what {drawn.steps} steps like the first would take."
    )


def _description(drawn: Curve, steps: Sequence[StepRecord]) -> str:
    return (
        f"Upper panel: input tokens of all calls up to each step. The measured curve ends at {tokens(drawn.total)}, "
        f"a straight line for steps like the first at {tokens(drawn.expected)}. Lower panel: the input of each step, "
        f"stacked from fixed prompt, new history and replayed history; {tokens(_sums(steps)['replayed'])} are replayed."
    )


# --- the curve -------------------------------------------------------------------------------------------------------


def _curve_panel(drawn: Curve, steps: Sequence[StepRecord]) -> Iterable[str]:
    scale = _Scale(drawn.steps, drawn.total, *CURVE)
    yield from _grid(scale, about=4)
    yield from _areas(scale, steps)
    expected = [drawn.first * n for n in range(1, drawn.steps + 1)]
    yield f'<path class="line" d="M{scale.points(expected)}"/>'
    yield f'<path class="curve" d="M{scale.points(drawn.measured)}"/>'
    if drawn.steps <= MOST_MARKS:
        for n, value in enumerate(drawn.measured, 1):
            yield f'<circle class="measured" cx="{scale.x(n):.1f}" cy="{scale.y(value):.1f}" r="4.5"/>'
    if drawn.steps > 1:
        for i, (name, words) in enumerate(LINES.items()):
            mark = f'<path class="{name}" d="M0,0h26"/>'
            yield from _legend(LEFT + 16, CURVE[0] + 14 + 22 * i, [(mark, words)])
    yield from _end_labels(scale, drawn, steps)


def _areas(scale: _Scale, steps: Sequence[StepRecord]) -> Iterable[str]:
    below = [0] * len(steps)
    for name, parts in zip(PARTS, zip(*map(_parts, steps), strict=True), strict=True):
        above = [a + b for a, b in zip(below, accumulate(parts), strict=True)]
        outline = f"M{scale.points(above)}L{scale.points(below, backwards=True)}Z"
        yield f'<path class="{name} area" d="{outline}"/>'
        below = above


def _end_labels(scale: _Scale, drawn: Curve, steps: Sequence[StepRecord]) -> Iterable[str]:
    """What each curve and area comes to, beside its end; pushed up where two would overlap."""
    sums = _sums(steps)
    below_replayed = drawn.total - sums["replayed"]
    labels = [
        _Label(drawn.expected, drawn.expected, "expected", f"{drawn.steps} × the first", "fixed"),
        _Label(below_replayed - sums["new"] / 2, sums["new"], "new", "", "new"),
        _Label(
            below_replayed + sums["replayed"] / 2,
            sums["replayed"],
            "replayed",
            f"{percent(sums['replayed'] / drawn.total)}: sent before",
            "replayed",
        ),
        _Label(drawn.total, drawn.total, "measured", "", "measured"),
    ]
    x, lowest = scale.x(drawn.steps) + 14, scale.bottom + 6.0
    for label in [label for label in labels if label.number] if drawn.steps > 1 else labels[-1:]:
        y = min(scale.y(label.height) + 5, lowest - (16 if label.small else 0))
        shown = tokens(label.number) if label.number < EXACT_BELOW else short(label.number)
        yield _text(x, y, f"{shown} {label.words}", f"strong {label.kind}")
        if label.small:
            yield _text(x, y + 16, label.small, "small")
        lowest = y - 20


@dataclass(frozen=True)
class _Label:
    height: float
    """Where on the axis."""
    number: int
    words: str
    small: str
    kind: str


# --- the steps -------------------------------------------------------------------------------------------------------


def _bar_panel(steps: Sequence[StepRecord]) -> Iterable[str]:
    top, bottom = BARS
    scale = _Scale(len(steps), max(sum(_parts(step)) for step in steps), top, bottom)
    yield _text(LEFT, top - 24, "Input of each step", "strong")
    square = '<rect class="{}" y="-6" width="12" height="12" rx="2"/>'
    yield from _legend(LEFT + 150, top - 29, [(square.format(name), words) for name, words in PARTS.items()], 18)
    yield from _grid(scale, about=4)
    width = scale.slot * scale.every if len(steps) > MOST_MARKS else min(scale.slot * 0.7, 44)
    for n in scale.drawn():
        yield from _bar(scale, scale.x(n) - width / 2, width, steps[n - 1])
    yield _text(LEFT - 8, bottom + 20, "step", "small end")
    for n in step_ticks(len(steps), most=20):
        yield _text(scale.x(n), bottom + 20, str(n), "small middle")


def _bar(scale: _Scale, x: float, width: float, step: StepRecord) -> Iterable[str]:
    below = 0
    for name, part in zip(PARTS, _parts(step), strict=True):
        if part:
            y, height = scale.y(below + part), scale.y(below) - scale.y(below + part)
            yield f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        below += part


def _parts(step: StepRecord) -> tuple[int, int, int]:
    return step.fixed_tokens or 0, step.new_tokens or 0, step.replayed_tokens or 0


def _sums(steps: Sequence[StepRecord]) -> dict[str, int]:
    return dict(zip(PARTS, map(sum, zip(*map(_parts, steps), strict=True)), strict=True))


# --- geometry and elements -------------------------------------------------------------------------------------------


class _Scale:
    """Where step n and a number of tokens lie: each step has a slot of the width, and lies in its middle."""

    def __init__(self, steps: int, highest: float, top: int, bottom: int) -> None:
        self.highest, self.top, self.bottom = max(highest, 1), top, bottom
        self.slot = (WIDTH - LEFT - RIGHT) / steps
        self.steps, self.every = steps, -(-steps // MOST_MARKS)

    def drawn(self) -> list[int]:
        """The steps that are drawn, the first and the last among them."""
        return [*range(1, self.steps, self.every), self.steps]

    def x(self, step: int) -> float:
        return LEFT + (step - 0.5) * self.slot

    def y(self, value: float) -> float:
        return self.bottom - value / self.highest * (self.bottom - self.top)

    def points(self, values: Sequence[float], backwards: bool = False) -> str:
        points = [f"{self.x(n):.1f},{self.y(values[n - 1]):.1f}" for n in self.drawn()]
        return "L".join(reversed(points) if backwards else points)


def _grid(scale: _Scale, about: int) -> Iterable[str]:
    for value in ticks(scale.highest, about):
        y = f"{scale.y(value):.1f}"
        yield f'<path class="{"grid" if value else "axis"}" d="M{LEFT},{y}H{WIDTH - RIGHT}"/>'
        yield _text(LEFT - 8, scale.y(value) + 4, short(value), "small end")


def _legend(x: float, y: float, items: Iterable[tuple[str, str]], gap: int = 34) -> Iterable[str]:
    for mark, words in items:
        yield f'<g transform="translate({x:.0f},{y:.0f})">{mark}</g>'
        yield _text(x + gap, y + 5, words, "")
        x += gap + 6.8 * len(words) + 14


def _text(x: float, y: float, words: str, kind: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(words)}</text>'
