"""What the terminal shows of a run, for a reader who has never heard of the formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from otel_smol.cli import tables, words
from otel_smol.cli.chart import Curve, Marks, draw, legend
from otel_smol.records import RunRecord

NARROWEST = 60
"""A terminal that says it is narrower breaks the lines itself: better than numbers that are cut."""
PROSE_WIDTH = 110
"""Longer lines are hard to read."""
CHART_WIDTH, CHART_HEIGHT = 100, 10
CHART_STEPS = 3
"""Fewer make no curve."""


def show(run: RunRecord, console: Console, note: str = "") -> None:
    """Print what there is to say of a run and the runs within it. `note`: where it comes from."""
    console.width = max(console.width, NARROWEST)
    for section in _sections(run, console, note):
        for part in section:
            console.print(part, highlight=False)
        console.print()


def _sections(run: RunRecord, console: Console, note: str) -> Iterator[Iterable[RenderableType]]:
    marks, curve = Marks.of(console.encoding), Curve.of(run)
    yield prose([f"[bold]{words.opening(run, curve)}[/]", *([f"[dim]{note}[/]"] if note else [])], console)
    yield [tables.steps(run, console.width, marks), *prose([words.PARTS], console)]
    if curve is not None and curve.steps >= CHART_STEPS:
        chart = draw(curve, min(console.width, CHART_WIDTH), CHART_HEIGHT, marks)
        yield [*legend(marks, console.width), *chart]
    if curve is not None:
        yield prose(words.formula(run, curve), console)
    if run.causes() and run.input_tokens:
        yield [*prose([words.CAUSES], console), tables.causes(run), *prose([words.by_kind(run)], console)]
    if run.managed:
        yield from _managed(run, console)
    yield prose(words.NEXT, console)


def _managed(run: RunRecord, console: Console) -> Iterator[Iterable[RenderableType]]:
    by_agent: dict[str, list[RunRecord]] = {}
    for inner in list(run.walk())[1:]:
        by_agent.setdefault(inner.agent, []).append(inner)
    yield prose(words.managed(run, by_agent), console)
    for agent, inner_runs in by_agent.items():
        yield [*prose([words.managed_agent(agent, inner_runs)], console), tables.managed(inner_runs)]


def prose(lines: Iterable[str], console: Console) -> list[Text]:
    """Lines with markup, wrapped."""
    return [part for line in lines for part in wrap(Text.from_markup(line), console)]


def wrap(text: Text, console: Console) -> list[Text]:
    """Wrapped, without the padding to the full width that rich adds; what wraps keeps the indent of its line."""
    indent = len(text.plain) - len(text.plain.lstrip())
    wrapped = text[indent:].wrap(console, min(console.width, PROSE_WIDTH) - indent)
    for line in wrapped:
        line.rstrip()
    return [Text(" " * indent).append_text(line) for line in wrapped]
