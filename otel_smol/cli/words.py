"""The sentences that explain a run, with its numbers put in. Lines are rich markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape

from otel_smol.cli.chart import Curve
from otel_smol.cli.numbers import count, percent, times, tokens
from otel_smol.curve import overpay
from otel_smol.records import RunRecord
from otel_smol.semconv import FIXED_SOURCES

PARTS = (
    "[yellow]fixed[/]: instructions, tools, task: the same in every call. [green]new[/]: what the last step left (the "
    "model's words, the tool's result), sent for the first time. [magenta]replayed[/]: sent by earlier calls already. "
    "Every call pays for all three."
)

NEXT = [
    "[bold]Now your own agent[/], its code unchanged; any OpenTelemetry backend will do:",
    "  pip install otel-smol",
    "  export OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317",
    "  opentelemetry-instrument python agent.py",
]

CAUSES = "[bold]What caused it[/]: tokens a step added × calls that sent them, share of the input"

KINDS = {
    **dict.fromkeys(FIXED_SOURCES, "fixed prompt"),
    **dict.fromkeys(("assistant", "tool_call"), "the model's own words"),
    "observation": "tool results",
    "plan": "plans",
    "error": "error messages",
    "image": "images",
    "other": "other",
}
"""The sources of a prompt as a reader knows them."""
SMALLEST_SHARE = 0.01
"""Tools and kinds below it are not named."""


def opening(run: RunRecord, curve: Curve | None) -> str:
    """What happened, in one sentence."""
    agent, steps = escape(run.agent), count(len(run.action_steps), "step")
    if run.input_tokens is None or curve is None:
        return f"The agent {agent} took {steps}, and its model did not say how many tokens each call took."
    sent = f"The agent {agent} took {steps} and sent its model {tokens(run.input_tokens)} input tokens"
    if run.managed:
        sent += f" ({tokens(run.total_input_tokens or 0)} with its managed agents)"
    if curve.steps == 1:
        return f"{sent}: with a single step nothing is sent twice."
    return (
        f"{sent}, {times(curve.total / curve.expected)} times what {curve.steps} steps like the first would come to "
        f"({tokens(curve.expected)}), because every step sends again all that came before it."
    )


def formula(run: RunRecord, curve: Curve) -> list[str]:
    """P and s, the formula with numbers put in, overpay, replay share, forecast."""
    n, base, growth = curve.steps, round(curve.fit.base_tokens), round(curve.fit.growth_tokens)
    if n == 1:
        return ["There is no curve yet: from the second step on the memory is sent again. Try --steps 12."]
    by_hand = n * base + growth * n * (n - 1) // 2
    lines = [
        f"[bold]Why it bends[/]: every call sends about P = [bold]{tokens(base)}[/] tokens, and every step adds about "
        f"s = [bold]{tokens(growth)}[/] that all later calls send too. So n steps take",
        "  n × P + s × n × (n-1) / 2",
        f"  = {n} × {tokens(base)} + {tokens(growth)} × {n} × {n - 1} / 2",
        f"  = [bold]{tokens(by_hand)}[/] (measured: {tokens(curve.total)})",
    ]
    if run.overpay is not None:
        lines.append(
            f"[bold]Overpay {times(run.overpay)}[/]: on average, what a step left behind was sent "
            f"{times(run.overpay)} times. {_overpay_of_equal_steps(n)}"
        )
    if run.replay_share is not None:
        lines.append(
            f"[bold]Replayed {percent(run.replay_share)}[/] of the input: the model had been sent these tokens before."
        )
    return [*lines, _forecast(run)]


def _overpay_of_equal_steps(n: int) -> str:
    return f"For {n} equal steps it is (n-1)/2 = {times(overpay(n))}: it grows with every step."


def _forecast(run: RunRecord) -> str:
    if run.forecast_half_way is None or not run.input_tokens:
        return "[bold]No forecast[/]: it is made from the third call on, and compared here from half way."
    steps = len(run.action_steps)
    predicted = f"[bold]{tokens(run.forecast_half_way)}[/] for all {run.max_steps} steps"
    forecast = f"Forecast after step {(steps + 1) // 2}: {predicted}."
    if steps != run.max_steps:
        return f"{forecast} The run ended after {steps}."
    difference = run.forecast_half_way / run.input_tokens - 1
    off = f"{percent(abs(difference))} too {'high' if difference > 0 else 'low'}" if difference else "exact"
    return f"{forecast} It was {off}."


def by_kind(run: RunRecord) -> str:
    """The whole bill by kind, and the tools' results by tool."""
    total = run.input_tokens or 1
    tools = ", ".join(f"{share} {name}" for name, share in _shares(run.input_by_tool(), total))
    kinds: dict[str, int] = {}
    for source, n in run.input_by_source().items():
        kinds[KINDS[source]] = kinds.get(KINDS[source], 0) + n
    by_tool = {KINDS["observation"]: f" ({tools})"} if tools else {}
    parts = [f"[bold]{share}[/] {kind}{by_tool.get(kind, '')}" for kind, share in _shares(kinds, total)]
    return f"Of the whole input: {', '.join(parts)}."


def _shares(numbers: Mapping[str, int], total: int) -> list[tuple[str, str]]:
    ranked = sorted(numbers.items(), key=lambda item: -item[1])
    return [(escape(name), percent(n / total)) for name, n in ranked if n >= SMALLEST_SHARE * total]


def managed(run: RunRecord, by_agent: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Own and total."""
    own = f"{tokens(run.input_tokens or 0)} own"
    others = [f"{tokens(_input(inner))} {escape(agent)}" for agent, inner in by_agent.items()]
    return [
        f"[bold]Managed agents[/]: {' + '.join([own, *others])} = [bold]{tokens(run.total_input_tokens or 0)}[/] input "
        "tokens in total. Each of their runs begins with an empty memory: what it reads is replayed within that run "
        "only, and whoever called it replays nothing but the answer.",
    ]


def managed_agent(agent: str, inner: Sequence[RunRecord]) -> str:
    """One managed agent over all its runs."""
    total = _input(inner)
    replayed = sum(one.replayed_tokens or 0 for one in inner)
    share = f", {percent(replayed / total)} of it replayed" if total else ""
    return f"[bold]{escape(agent)}[/], {count(len(inner), 'run')}: {tokens(total)} input tokens{share}"


def _input(inner: Sequence[RunRecord]) -> int:
    return sum(one.input_tokens or 0 for one in inner)
