"""The curve of a run, drawn with characters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from rich.text import Text

from otel_smol.cli.numbers import short, step_ticks, ticks
from otel_smol.curve import Fit
from otel_smol.records import RunRecord


@dataclass(frozen=True)
class Curve:
    """What is drawn: of a run's action steps, those with known usage."""

    measured: list[int]
    """Input tokens up to and including each step."""
    first: int
    """The first prompt. `n * first` is the straight line that people expect."""
    fit: Fit
    """The parabola."""

    @staticmethod
    def of(run: RunRecord) -> Curve | None:
        """The curve of a run; None when a prompt's size is unknown."""
        prompts = [step.input_tokens for step in run.action_steps]
        known = [tokens for tokens in prompts if tokens is not None]
        if run.fit is None or not known or len(known) < len(prompts):
            return None
        return Curve(list(accumulate(known)), known[0], run.fit)

    @property
    def steps(self) -> int:
        return len(self.measured)

    @property
    def total(self) -> int:
        """What was measured in the end."""
        return self.measured[-1]

    @property
    def expected(self) -> int:
        """What the straight line comes to."""
        return self.first * self.steps


@dataclass(frozen=True)
class Marks:
    """The characters to draw with, and their colours."""

    measured: str = "●"
    fitted: str = "∙"
    expected: str = "─"
    axis: str = "│"
    corner: str = "└"
    base: str = "─"

    @staticmethod
    def of(encoding: str) -> Marks:
        """What a terminal of this encoding can show."""
        try:
            "".join(vars(Marks()).values()).encode(encoding)
        except (UnicodeError, LookupError):
            return Marks("o", ".", "-", "|", "+", "-")
        return Marks()


STYLES = {"measured": "bold cyan", "fitted": "cyan", "expected": "yellow"}


def draw(curve: Curve, width: int, height: int, marks: Marks) -> list[Text]:
    """The lines of the chart, its axes included, `width` characters wide and `height` rows high."""
    labels = {_row(value, curve.total, height): short(value) for value in ticks(curve.total)}
    margin = max(5, max(map(len, labels.values())) + 2)
    plot = _plot(curve, width - margin, height, marks)
    lines = []
    for row in reversed(range(height)):
        line = Text(f"{labels.get(row, ''):>{margin - 2}} {marks.axis}", style="dim")
        for character, style in plot[row]:
            line.append(character, style)
        line.rstrip()
        lines.append(line)
    lines.append(Text(" " * (margin - 1) + marks.corner + marks.base * (width - margin), style="dim"))
    lines.append(Text(f"{'step':<{margin}}" + _step_labels(curve.steps, width - margin), style="dim"))
    return lines


def legend(curve: Curve, marks: Marks) -> list[tuple[Text, str]]:
    """The marks and what they mean."""
    return [
        (Text(marks.measured, STYLES["measured"]), "measured: input tokens of all calls up to this step"),
        (Text(marks.fitted * 2, STYLES["fitted"]), "the formula below, fitted to these calls"),
        (Text(marks.expected * 2, STYLES["expected"]), "what one would expect: each step costs what the first did"),
    ]


def _plot(curve: Curve, width: int, height: int, marks: Marks) -> list[list[tuple[str, str]]]:
    """Rows from the bottom, of (character, style)."""
    cells = [[(" ", "")] * width for _ in range(height)]

    def put(column: int, value: float, mark: str, style: str) -> None:
        row = _row(value, curve.total, height)
        if 0 <= row < height:
            cells[row][column] = (mark, STYLES[style])

    for column in range(width):
        step = column / (width - 1) * curve.steps
        put(column, curve.first * step, marks.expected, "expected")
    for column in range(width):
        step = column / (width - 1) * curve.steps
        put(column, parabola(curve.fit, step), marks.fitted, "fitted")
    for number, value in enumerate(curve.measured, 1):
        put(_column(number, curve.steps, width), value, marks.measured, "measured")
    return cells


def parabola(fit: Fit, steps: float) -> float:
    """The formula between whole steps as well."""
    return fit.base_tokens * steps + fit.growth_tokens * steps * (steps - 1) / 2


def _row(value: float, highest: float, height: int) -> int:
    return round(value / highest * (height - 1))


def _column(step: int, steps: int, width: int) -> int:
    return round(step / steps * (width - 1))


def _step_labels(steps: int, width: int) -> str:
    line = [" "] * (width + 4)
    for number in step_ticks(steps, most=max(width // 8, 2)):
        text = str(number)
        start = _column(number, steps, width) - len(text) // 2
        if number == steps:
            start = width - len(text)
        line[start : start + len(text)] = text
    return "".join(line).rstrip()
