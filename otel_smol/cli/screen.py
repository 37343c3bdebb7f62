"""What `otel-smol demo` shows of a run: for a reader who has never heard of the formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from otel_smol.cli.chart import Curve, Marks, draw, legend
from otel_smol.cli.numbers import percent, times, tokens
from otel_smol.records import RunRecord, StepRecord

PROSE_WIDTH = 108
"""Lines longer than this are hard to read."""
CHART_WIDTH, CHART_HEIGHT = 92, 11
ALL_STEPS = 24
"""Longer runs show their first and last `ENDS` steps only."""
ENDS = 10
TOP_CAUSES = 3
TOOL_COLUMN_WIDTH = 72
"""Below this terminal width the table does without the tools' names."""

STYLES = {"fixed": "blue", "new": "green", "replayed": "magenta"}


def show(run: RunRecord, console: Console) -> None:
    """Print everything about one run and the runs within it."""
    marks = Marks.of(console.encoding)
    curve = Curve.of(run)
    for section in _sections(run, curve, console.width, marks):
        console.print(section)
        console.print()


def _sections(run: RunRecord, curve: Curve | None, width: int, marks: Marks) -> Iterator[RenderableType]:
    prose = min(width, PROSE_WIDTH)
    yield _prose(opening(run, curve), prose)
    yield Group(step_table(run, width), _prose(TABLE_WORDS, prose))
    if curve is not None and curve.steps > 2:
        yield Group(*_chart(curve, min(width, CHART_WIDTH), marks))
    if curve is not None:
        yield _prose(formula(run, curve), prose)
    if run.causes():
        yield _prose(causes(run), prose)
    if run.managed:
        yield managed(run, prose)
    yield _prose(NEXT, prose)


def _prose(text: str, width: int) -> RenderableType:
    """Text with markup, wrapped at `width`; a line that begins with spaces keeps them when it wraps."""
    lines = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        lines.append(Padding(Text.from_markup(line.lstrip()), (0, 0, 0, indent)))
    return Padding(Group(*lines), 0, expand=False) if False else _Narrow(Group(*lines), width)


class _Narrow:
    def __init__(self, inner: RenderableType, width: int) -> None:
        self.inner, self.width = inner, width

    def __rich_console__(self, console, options):  # type: ignore
        yield from console.render(self.inner, options.update_width(min(options.max_width, self.width)))


# --- words -----------------------------------------------------------------------------------------------------------


def opening(run: RunRecord, curve: Curve | None) -> str:
    """What happened, in one sentence."""
    steps = _count(len(run.action_steps), "step")
    if run.input_tokens is None or curve is None:
        return f"[bold]The agent took {steps}, and the model did not say how many tokens it was sent.[/]"
    sent = f"sent the model {tokens(run.input_tokens)} input tokens"
    if curve.steps == 1:
        return f"[bold]The agent took one step and {sent}: a single step repeats nothing, so this is the least a run costs.[/]"
    return (
        f"[bold]The agent took {steps} and {sent}, {times(curve.total / curve.expected)} times what {curve.steps} steps "
        f"like its first would take ({tokens(curve.expected)}): every step sends everything that came before it again.[/]"
    )


TABLE_WORDS = """\
[blue]fixed[/]: instructions, tools and task, the same in every call.  [green]new[/]: what the step before left behind \
(the model's words and the tool's result), sent for the first time.  [magenta]replayed[/]: what earlier calls have \
already sent. Providers charge for all three, every time."""


def formula(run: RunRecord, curve: Curve) -> str:
    """P and s, the formula with numbers, overpay, replay share, forecast."""
    n, fit = curve.steps, curve.fit
    if n == 1:
        return (
            "With one step there is no curve. From the second step on the memory is sent again: "
            "[bold]otel-smol demo --steps 12[/] shows what that comes to."
        )
    base, growth = round(fit.base_tokens), round(fit.growth_tokens)
    by_hand = n * base + growth * n * (n - 1) // 2
    lines = [
        "[bold]Why it bends[/]",
        f"Every call sends P = [bold]{tokens(base)}[/] tokens, and one step adds s = [bold]{tokens(growth)}[/] that all "
        "later calls send too (the straight line that fits these calls best"
        + (f", R² {fit.r_squared:.2f})." if fit.r_squared is not None else ")."),
        "  n × P + s × n × (n - 1) / 2",
        f"  {n} × {tokens(base)} + {tokens(growth)} × {n} × {n - 1} / 2  =  {tokens(by_hand)}   "
        f"(measured: {tokens(curve.total)})",
    ]
    if run.overpay is not None:
        lines.append(
            f"Overpay [bold]{times(run.overpay)}[/]: a token that a step left behind was sent {times(run.overpay)} times "
            f"on average. For {n} equal steps it is (n - 1) / 2 = {times((n - 1) / 2)}; it grows with every step."
        )
    if run.replay_share is not None:
        lines.append(
            f"Replayed [bold]{percent(run.replay_share)}[/] of the input: tokens that the model had already been sent."
        )
    lines.append(_forecast(run))
    return "\n".join(lines)


def _forecast(run: RunRecord) -> str:
    if run.forecast_half_way is None or not run.input_tokens:
        return "Forecast: none, the run was too short (it is made from the third call on, and compared half way)."
    half = (len(run.action_steps) + 1) // 2
    difference = run.forecast_half_way / run.input_tokens - 1
    off = "exactly right" if difference == 0 else f"{percent(abs(difference))} too {'high' if difference > 0 else 'low'}"
    return (
        f"Forecast after step {half}, for all {run.max_steps} steps: [bold]{tokens(run.forecast_half_way)}[/]. "
        f"It became {tokens(run.input_tokens)}: the forecast was {off}."
    )


def causes(run: RunRecord) -> str:
    """The steps and tools that most of the history came from."""
    total = run.input_tokens or 0
    lines = ["[bold]What caused it[/]  (tokens that a step added × calls that sent them)"]
    for cause in run.causes()[:TOP_CAUSES]:
        share = f"  {percent(cause.tokens / total)} of the input" if total else ""
        lines.append(
            f"  step {cause.step.number}, {cause.step.main_tool or 'no tool'}: {tokens(cause.added)} × {cause.times_sent} = "
            f"[bold]{tokens(cause.tokens)}[/]{share}"
        )
    by_tool = [f"{name} {tokens(n)} ({percent(n / total)})" for name, n in run.input_by_tool().items() if total]
    if by_tool:
        lines.append(f"Results of all calls of a tool came to: {', '.join(by_tool)}.")
    return "\n".join(lines)


NEXT = """\
[bold]Now your own agent[/]: no change to its code, and any OpenTelemetry backend.
  pip install otel-smol
  export OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317
  opentelemetry-instrument python agent.py"""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# --- table and chart -------------------------------------------------------------------------------------------------


def step_table(run: RunRecord, width: int) -> Table:
    """One row per step, the middle of a long run left out."""
    with_tool = width >= TOOL_COLUMN_WIDTH
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", show_footer=True, footer_style="bold")
    table.add_column("step", "all", justify="right", no_wrap=True)
    if with_tool:
        table.add_column("calls", no_wrap=True, overflow="ellipsis", max_width=20)
    columns = (("input", run.input_tokens, ""), ("= fixed", run.fixed_tokens, STYLES["fixed"]))
    columns += (("+ new", run.new_tokens, STYLES["new"]), ("+ replayed", run.replayed_tokens, STYLES["replayed"]))
    for name, total, style in columns:
        table.add_column(name, _tokens(total), justify="right", no_wrap=True, style=style)
    table.add_column("input so far", justify="right", no_wrap=True)
    for step in _shown(run.steps):
        if step is None:
            left_out = len(run.steps) - 2 * ENDS
            table.add_row("…", *([f"{left_out} steps left out"] if with_tool else []), *["…"] * 5)
        else:
            table.add_row(*_row(step, with_tool))
    return table


def _shown(steps: Sequence[StepRecord]) -> Iterator[StepRecord | None]:
    if len(steps) <= ALL_STEPS:
        yield from steps
    else:
        yield from steps[:ENDS]
        yield None
        yield from steps[-ENDS:]


def _row(step: StepRecord, with_tool: bool) -> list[str]:
    names = {"planning": "plan", "final_answer": "final"}
    number = names.get(step.type) or str(step.number)
    parts = (step.input_tokens, step.fixed_tokens, step.new_tokens, step.replayed_tokens, step.run_input_tokens)
    return [number, *([step.main_tool or ""] if with_tool else []), *map(_tokens, parts)]


def _tokens(number: int | None) -> str:
    return "?" if number is None else tokens(number) if number else "-"


def _chart(curve: Curve, width: int, marks: Marks) -> Iterator[RenderableType]:
    yield Text("Input tokens of all calls up to a step", style="bold")
    yield from draw(curve, width, CHART_HEIGHT, marks)
    for mark, meaning in legend(curve, marks):
        yield Text("  ").append(mark).append(f"  {meaning}")


def managed(run: RunRecord, width: int) -> RenderableType:
    return Text("")
