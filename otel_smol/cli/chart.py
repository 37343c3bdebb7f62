"""The curve of a run, drawn with characters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from rich.text import Text

from otel_smol.cli.numbers import short, step_ticks, ticks, tokens
from otel_smol.curve import Fit, input_tokens
from otel_smol.records import RunRecord

Row = list[tuple[str, str]]
"""Characters with their style, from left to right."""

STYLES = {"measured": "bold cyan", "fitted": "cyan", "expected": "yellow"}


@dataclass(frozen=True)
class Curve:
    """What is drawn of a run: its action steps."""

    measured: list[int]
    """Input tokens of all action steps up to and including each."""
    first: int
    """The first prompt; `n * first` is the straight line that people expect."""
    fit: Fit
    """The parabola."""

    @staticmethod
    def of(run: RunRecord) -> Curve | None:
        """The curve of a run; None when the size of a prompt is unknown."""
        prompts = [step.input_tokens for step in run.action_steps]
        known = [n for n in prompts if n is not None]
        if run.fit is None or not known or len(known) < len(prompts):
            return None
        return Curve(list(accumulate(known)), known[0], run.fit)

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.measured)

    @property
    def total(self) -> int:
        """What was measured in the end."""
        return self.measured[-1]

    @property
    def expected(self) -> int:
        """What the straight line comes to in the end."""
        return self.first * self.steps

    def fitted(self, steps: float) -> float:
        """The formula, between whole steps as well."""
        return input_tokens(self.fit.base_tokens, self.fit.growth_tokens, steps)


@dataclass(frozen=True)
class Marks:
    """The characters to draw with."""

    measured: str = "●"
    fitted: str = "∙"
    expected: str = "─"
    axis: str = "│"
    corner: str = "└"
    gap: str = "…"

    @staticmethod
    def of(encoding: str) -> Marks:
        """What a terminal of this encoding can show."""
        try:
            "".join(vars(Marks()).values()).encode(encoding)
        except (UnicodeError, LookupError):
            return Marks("o", ".", "-", "|", "+", "...")
        return Marks()


def draw(curve: Curve, width: int, height: int, marks: Marks) -> list[Text]:
    """The lines of the chart with its axes, `width` characters wide; the plot is `height` rows high."""
    labels = {_row(value, curve, height): short(value) for value in ticks(curve.total)}
    margin = max(5, max(map(len, labels.values())) + 2)
    plot = _plot(curve, width - margin, height, marks)
    lines = []
    for number in reversed(range(height)):
        line = Text().append(f"{labels.get(number, ''):>{margin - 2}} {marks.axis}", "dim")
        for character, style in plot[number]:
            line.append(character, style)
        line.rstrip()
        lines.append(line)
    lines.append(Text(" " * (margin - 1) + marks.corner + marks.expected * (width - margin), style="dim"))
    lines.append(Text(f"{'step':<{margin}}{_step_labels(curve.steps, width - margin)}", style="dim"))
    return lines


def legend(marks: Marks, width: int) -> list[Text]:
    """What is drawn and the marks it is drawn with: in one line where they fit, else one below the other."""
    parts = [Text("Input tokens so far:", style="bold")]
    for mark, style, meaning in (
        (marks.measured, "measured", "measured"),
        (marks.fitted * 2, "fitted", "formula below"),
        (marks.expected * 2, "expected", "every step like the first"),
    ):
        parts.append(Text.assemble((mark, STYLES[style]), f" {meaning}"))
    line = Text("  ").join(parts)
    return [line] if line.cell_len <= width else parts


def _plot(curve: Curve, width: int, height: int, marks: Marks) -> list[Row]:
    """Rows from the bottom."""
    rows: list[Row] = [[(" ", "")] * width for _ in range(height)]
    for column in range(width):
        step = column / (width - 1) * curve.steps
        _put(rows, column, _row(curve.first * step, curve, height), marks.expected, STYLES["expected"])
    for column in range(width):
        step = column / (width - 1) * curve.steps
        _put(rows, column, _row(curve.fitted(step), curve, height), marks.fitted, STYLES["fitted"])
    for number, value in enumerate(curve.measured, 1):
        column = _column(number, curve.steps, width)
        _put(rows, column, _row(value, curve, height), marks.measured, STYLES["measured"])
    _label_ends(rows, curve, height)
    return rows


def _label_ends(rows: list[Row], curve: Curve, height: int) -> None:
    """Say at the ends of curve and line what they come to, where there is room."""
    start = next(i for i, (character, _) in enumerate(rows[-1]) if character != " ")
    _write(rows[-1], start - 2, tokens(curve.total), STYLES["measured"])
    line = _row(curve.expected, curve, height)
    for row in (line - 1, line - 2, line + 1):
        if 0 <= row < height and _write(rows[row], len(rows[0]), tokens(curve.expected), STYLES["expected"]):
            break


def _write(row: Row, end: int, text: str, style: str) -> bool:
    cells = slice(end - len(text), end)
    free = cells.start >= 0 and all(character == " " for character, _ in row[cells])
    if free:
        row[cells] = [(character, style) for character in text]
    return free


def _put(rows: list[Row], column: int, row: int, mark: str, style: str) -> None:
    if 0 <= row < len(rows):
        rows[row][column] = (mark, style)


def _row(value: float, curve: Curve, height: int) -> int:
    return round(value / max(curve.total, 1) * (height - 1))


def _column(step: int, steps: int, width: int) -> int:
    return round(step / steps * (width - 1))


def _step_labels(steps: int, width: int) -> str:
    line = [" "] * width
    for number in step_ticks(steps, most=width // 6):
        text = str(number)
        start = min(_column(number, steps, width) - len(text) // 2, width - len(text))
        line[start : start + len(text)] = text
    return "".join(line)
