"""The tables of the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from otel_smol.cli.chart import Marks
from otel_smol.cli.numbers import percent, times, tokens
from otel_smol.records import RunRecord, StepRecord

ALL_STEPS = 24
"""Longer runs show their first and last `ENDS` steps."""
ENDS = 8
TOP_CAUSES = 3
TOOL_WIDTH = 18
TOOL_COLUMN_FROM = 76
"""In a narrower terminal the steps stand without their tools."""
STYLES = {"= fixed": "yellow", "+ new": "green", "+ replayed": "magenta"}
STEP_NAMES = {"planning": "plan", "final_answer": "end"}


def steps(run: RunRecord, width: int, marks: Marks) -> Table:
    """One row per step; the middle of a long run is left out."""
    with_tool = width >= TOOL_COLUMN_FROM
    table = _table(show_footer=True)
    table.add_column("step", "all", justify="right", no_wrap=True)
    if with_tool:
        table.add_column("tool called", no_wrap=True, overflow="ellipsis", max_width=TOOL_WIDTH)
    _add_numbers(table, {"input": run.input_tokens, **_parts(run)})
    _add_numbers(table, {"so far": run.input_tokens})
    for step in _shown(run.steps):
        if step is None:
            left_out = f"{len(run.steps) - 2 * ENDS} more"
            cells = [left_out, *[marks.gap] * 5] if with_tool else [left_out, *[marks.gap] * 4]
            table.add_row(*(f"[dim]{cell}[/]" for cell in [marks.gap, *cells]))
        else:
            table.add_row(*_row(step, with_tool))
    return table


def causes(run: RunRecord) -> Table:
    """The steps whose results cost most."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=TOOL_WIDTH)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    for cause in run.causes()[:TOP_CAUSES]:
        table.add_row(
            f"  step {cause.step.number}",
            _tools(cause.step) or "no tool",
            f"{tokens(cause.added)} × {cause.times_sent}",
            f"= [bold]{tokens(cause.tokens)}[/]",
            percent(cause.tokens / (run.input_tokens or 1)),
        )
    return table


def managed(inner: Sequence[RunRecord]) -> Table:
    """One row per run of a managed agent."""
    table = _table()
    table.add_column("  run", justify="right", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    _add_numbers(table, dict.fromkeys(("input", *STYLES)))
    table.add_column("overpay", justify="right", no_wrap=True)
    for i, one in enumerate(inner[:ALL_STEPS], 1):
        overpay = times(one.overpay) if one.overpay is not None else "?"
        numbers = map(number, (one.input_tokens, *_parts(one).values()))
        table.add_row(str(i), str(len(one.action_steps)), *numbers, overpay)
    if len(inner) > ALL_STEPS:
        table.add_row(f"[dim]{len(inner) - ALL_STEPS} more[/]")
    return table


def number(value: int | None) -> str:
    """A token count in a table: unknown is not zero."""
    return "?" if value is None else tokens(value) if value else "-"


def _table(show_footer: bool = False) -> Table:
    return Table(
        box=None,
        padding=(0, 0, 0, 2),
        pad_edge=False,
        show_footer=show_footer,
        header_style="bold",
        footer_style="bold",
    )


def _parts(record: RunRecord | StepRecord) -> dict[str, int | None]:
    return dict(zip(STYLES, (record.fixed_tokens, record.new_tokens, record.replayed_tokens), strict=True))


def _add_numbers(table: Table, totals: dict[str, int | None]) -> None:
    for name, total in totals.items():
        table.add_column(name, number(total), justify="right", no_wrap=True, style=STYLES.get(name, ""))


def _shown(all_steps: Sequence[StepRecord]) -> Iterator[StepRecord | None]:
    if len(all_steps) <= ALL_STEPS:
        yield from all_steps
    else:
        yield from all_steps[:ENDS]
        yield None
        yield from all_steps[-ENDS:]


def _row(step: StepRecord, with_tool: bool) -> list[str]:
    name = STEP_NAMES.get(step.type) or str(step.number)
    tool = [_tools(step)] if with_tool else []
    return [name, *tool, *map(number, (step.input_tokens, *_parts(step).values(), step.run_input_tokens))]


def _tools(step: StepRecord) -> str:
    """The tool that returned most, and how many others the step called."""
    others = len(step.tools) - 1
    return escape(step.main_tool or "") + (f" +{others}" if others > 0 else "")
