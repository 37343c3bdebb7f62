"""The curve of a run as a picture, for a page or a README: plain SVG, readable on light and dark ground."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

from otel_smol.cli.chart import Curve
from otel_smol.cli.numbers import percent, short, step_ticks, ticks, times, tokens
from otel_smol.records import RunRecord, StepRecord

WIDTH, HEIGHT = 840, 560
LEFT, RIGHT = 64, 24
CURVE = (78, 330)
"""Top and bottom of the upper plot."""
BARS = (398, 506)
"""Top and bottom of the lower plot."""
MOST_MARKS = 60
"""Longer runs draw no dot per step, and no gap between bars."""

STYLE = """\
text{font:14px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.title{font-size:19px;font-weight:600}.small{font-size:12px;fill:var(--soft)}.strong{font-weight:600}
.end{text-anchor:end}.middle{text-anchor:middle}
.axis{stroke:var(--soft);stroke-width:1}.grid{stroke:var(--line);stroke-width:1}
.gap{fill:var(--replayed);opacity:.16}
.curve{fill:none;stroke:var(--curve);stroke-width:3;stroke-linejoin:round}.dot{fill:var(--curve)}
.line{fill:none;stroke:var(--fixed);stroke-width:2.5;stroke-dasharray:7 5}
.fixed{fill:var(--fixed)}.new{fill:var(--new)}.replayed{fill:var(--replayed)}.measured{fill:var(--curve)}
.ground{fill:var(--ground)}
svg{--ground:#fff;--ink:#1f2328;--soft:#59636e;--line:#e4e8ec;--curve:#0b62c4;--fixed:#b97a00;--new:#1a7f37;--replayed:#b8359b}
@media(prefers-color-scheme:dark){svg{--ground:#0d1117;--ink:#e6edf3;--soft:#9aa4af;--line:#262c34;--curve:#58a6ff;
--fixed:#e0a32e;--new:#3fb950;--replayed:#e667c6}}"""


def curve(run: RunRecord) -> str | None:
    """The picture; None when the size of a prompt is unknown, so that there is no curve to draw."""
    drawn = Curve.of(run)
    if drawn is None:
        return None
    steps = run.action_steps
    replayed = sum(step.replayed_tokens or 0 for step in steps)
    title = f"{tokens(drawn.total)} input tokens in {drawn.steps} steps"
    description = (
        f"Input tokens that an agent sent to its model. Upper panel: the sum over all calls up to each step, measured, "
        f"ends at {tokens(drawn.total)}; a straight line for {drawn.steps} steps like the first ends at "
        f"{tokens(drawn.expected)}. Lower panel: one bar per step, stacked from the fixed prompt, new history and "
        f"replayed history. Replayed in all: {tokens(replayed)}."
    )
    body = [*_heading(drawn, title), *_curve_panel(drawn, replayed), *_bar_panel(steps)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'aria-labelledby="title description">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="description">{escape(description)}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
            *body,
            "</svg>\n",
        ]
    )


# --- panels ----------------------------------------------------------------------------------------------------------


def _heading(drawn: Curve, title: str) -> Iterable[str]:
    factor = times(drawn.total / drawn.expected)
    yield _text(LEFT, 34, title, "title")
    yield _text(
        LEFT,
        56,
        f"Every step sends the whole memory again: {factor} times what {drawn.steps} first steps cost.",
        "small",
    )


def _curve_panel(drawn: Curve, replayed: int) -> Iterable[str]:
    top, bottom = CURVE
    scale = _Scale(drawn.steps, drawn.total, top, bottom)
    yield from _grid(scale)
    points = [(0.0, 0.0), *((float(n), float(value)) for n, value in enumerate(drawn.measured, 1))]
    line = [(0.0, 0.0), (float(drawn.steps), float(drawn.expected))]
    yield f'<path class="gap" d="{scale.path([*points, *reversed(line)])}Z"/>'
    yield f'<path class="line" d="{scale.path(line)}"/>'
    yield f'<path class="curve" d="{scale.path(points)}"/>'
    if drawn.steps <= MOST_MARKS:
        for n, value in points[1:]:
            yield f'<circle class="dot" cx="{scale.x(n):.1f}" cy="{scale.y(value):.1f}" r="4.5"/>'
    yield from _curve_labels(drawn, replayed, scale)


def _curve_labels(drawn: Curve, replayed: int, scale: _Scale) -> Iterable[str]:
    n = drawn.steps
    right = WIDTH - RIGHT
    yield _text(right - 14, scale.y(drawn.total) + 5, f"measured: {tokens(drawn.total)}", "strong measured end")
    expected = f"what one expects: {n} × the first step = {tokens(drawn.expected)}"
    yield _text(right, min(scale.y(drawn.expected) + 24, CURVE[1] - 6), expected, "strong fixed end")
    middle = (scale.y(drawn.total) + scale.y(drawn.expected)) / 2
    share = percent(replayed / drawn.total)
    yield _text(right - 12, middle + 20, f"{tokens(replayed)} tokens ({share})", "strong replayed end")
    yield _text(right - 12, middle + 38, "had been sent before", "replayed end")


def _bar_panel(steps: Sequence[StepRecord]) -> Iterable[str]:
    top, bottom = BARS
    highest = max(step.input_tokens or 0 for step in steps)
    scale = _Scale(len(steps), highest, top, bottom)
    yield _text(LEFT, top - 22, "Each step's input:", "strong")
    x = LEFT + 140
    for name, meaning in (("fixed", "fixed prompt"), ("new", "new"), ("replayed", "replayed")):
        yield f'<rect class="{name}" x="{x}" y="{top - 33}" width="12" height="12" rx="2"/>'
        yield _text(x + 18, top - 22, meaning, "")
        x += 48 + 7 * len(meaning)
    yield from _grid(scale, about=2)
    slot = scale.x(1) - scale.x(0)
    width = slot if len(steps) > MOST_MARKS else min(slot * 0.7, 44)
    for i, step in enumerate(steps, 1):
        yield from _bar(scale, scale.x(i) - slot / 2 - width / 2, width, step)
    for number in step_ticks(len(steps), 24):
        yield _text(scale.x(number) - slot / 2, bottom + 18, str(number), "small middle")
    yield _text(LEFT - 8, bottom + 18, "step", "small end")


def _bar(scale: _Scale, x: float, width: float, step: StepRecord) -> Iterable[str]:
    below = 0
    for name, part in (("fixed", step.fixed_tokens), ("new", step.new_tokens), ("replayed", step.replayed_tokens)):
        if part:
            y, height = scale.y(below + part), scale.y(below) - scale.y(below + part)
            yield f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
            below += part


# --- geometry and elements -------------------------------------------------------------------------------------------


class _Scale:
    """Where step n and a number of tokens lie on the picture."""

    def __init__(self, steps: int, highest: float, top: int, bottom: int) -> None:
        self.steps, self.highest, self.top, self.bottom = steps, max(highest, 1), top, bottom

    def x(self, step: float) -> float:
        return LEFT + step / self.steps * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - value / self.highest * (self.bottom - self.top)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in points)


def _grid(scale: _Scale, about: int = 4) -> Iterable[str]:
    for value in ticks(scale.highest, about):
        y = f"{scale.y(value):.1f}"
        kind = "grid" if value else "axis"
        yield f'<line class="{kind}" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>'
        yield _text(LEFT - 8, scale.y(value) + 4, short(value), "small end")


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class={quoteattr(kind)}>{escape(words)}</text>'
