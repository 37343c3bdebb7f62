"""Runs, steps and calls as exported spans tell of them.

Whatever the commands and the viewer show comes from these, so what a user sees locally is what a team sees in its
backend. `rebuild.runs` makes them. What a span does not say is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from otel_smol import semconv as sc
from otel_smol.curve import Fit


def _from(attribute: str, default: Any = None) -> Any:
    """A field that is read from a span attribute; `default` where that is absent or of another type."""
    return field(default=default, metadata={"attribute": attribute})


@dataclass(slots=True)
class Timed:
    """What every record says."""

    start: int = 0
    """When it began, in nanoseconds since 1970."""
    end: int | None = None
    """When it ended; None while it goes on."""
    agent: str = _from(sc.AGENT_NAME, "")
    """The agent's name, or its class when it has none."""
    error_type: str | None = _from(sc.ERROR_TYPE)
    """Class of the exception that it ended with. On a step also one that the agent recovered from."""


@dataclass(slots=True)
class CallRecord(Timed):
    """One model call, from its `chat` span."""

    type: str = _from(sc.CALL_TYPE, "other")
    """`action`, `planning`, `final_answer` or `other`."""
    step: int | None = _from(sc.STEP_NUMBER)
    """Number of the step that made it."""
    model: str | None = _from(sc.REQUEST_MODEL)
    """The model that was asked for."""
    input_tokens: int | None = _from(sc.USAGE_INPUT_TOKENS)
    """Billed input. None when the provider reported none."""
    output_tokens: int | None = _from(sc.USAGE_OUTPUT_TOKENS)
    """Billed output, likewise."""
    cache_read_tokens: int | None = _from(sc.USAGE_CACHE_READ_TOKENS)
    """Part of the input that came from the prompt cache."""
    prompt_tokens: int | None = _from(sc.HISTORY_TOKENS)
    """Tokens of the whole prompt: billed, or an estimate where `estimator` says so."""
    estimator: str | None = _from(sc.HISTORY_ESTIMATOR)
    """How `prompt_tokens` and its parts were obtained: `billed` or `characters`."""
    compacted_tokens: int | None = _from(sc.HISTORY_COMPACTED_TOKENS)
    """What editing the memory before this call saved."""
    sources: dict[str, int] = field(default_factory=dict)
    """Prompt tokens by source; they add up to `prompt_tokens`."""
    tools: dict[str, int] = field(default_factory=dict)
    """Prompt tokens that are observations, by the tool that caused them; beyond eight tools `_OTHER`."""


@dataclass(slots=True)
class ToolRecord(Timed):
    """One tool or managed agent that a step called, from its `execute_tool` span."""

    name: str = _from(sc.TOOL_NAME, "")
    """As the agent calls it."""
    characters: int | None = _from(sc.TOOL_OUTPUT_CHARACTERS)
    """Length of what it returned."""
    is_agent: bool = _from(sc.TOOL_MANAGED_AGENT, False)
    """Whether it is a managed agent."""


@dataclass(slots=True)
class StepRecord(Timed):
    """One action, planning or final-answer step, from its span and those below it."""

    type: str = _from(sc.STEP_TYPE, "action")
    """`action`, `planning` or `final_answer`."""
    number: int | None = _from(sc.STEP_NUMBER)
    """1 for the first step of a run."""
    is_final_answer: bool = _from(sc.STEP_IS_FINAL_ANSWER, False)
    """Whether it gave the final answer."""
    input_tokens: int | None = _from(sc.STEP_INPUT_TOKENS)
    """Billed input of its own calls: `fixed + new + replayed`, exactly."""
    output_tokens: int | None = _from(sc.STEP_OUTPUT_TOKENS)
    """Billed output of its own calls."""
    fixed_tokens: int | None = _from(sc.STEP_FIXED_TOKENS)
    """Its share for system prompt, tool schemas and task."""
    new_tokens: int | None = _from(sc.STEP_NEW_TOKENS)
    """Its share for history that no earlier call had sent."""
    replayed_tokens: int | None = _from(sc.STEP_REPLAYED_TOKENS)
    """Its share for history that an earlier call had already sent."""
    run_input_tokens: int | None = _from(sc.RUN_INPUT_TOKENS)
    """Billed input of the run up to the end of this step."""
    run_replayed_tokens: int | None = _from(sc.RUN_REPLAYED_TOKENS)
    """The replayed part of it."""
    run_overpay: float | None = _from(sc.RUN_OVERPAY)
    """`RunRecord.overpay` up to here."""
    run_replay_share: float | None = _from(sc.RUN_REPLAY_SHARE)
    """`RunRecord.replay_share` up to here."""
    forecast: int | None = _from(sc.FORECAST_INPUT_TOKENS)
    """Input of the whole run if it uses all its steps, as it looked at the end of this step."""
    fit: Fit | None = None
    """The line through the prompts so far."""
    calls: list[CallRecord] = field(default_factory=list)
    """Its model calls, in order."""
    tools: list[ToolRecord] = field(default_factory=list)
    """The tools it called, in order."""
    runs: list[RunRecord] = field(default_factory=list)
    """Runs of managed agents that it started, in order."""

    @property
    def main_tool(self) -> str | None:
        """The tool that returned most; None when it called none."""
        return max(self.tools, key=lambda tool: tool.characters or 0).name if self.tools else None


@dataclass(frozen=True, slots=True)
class Cause:
    """What one step left behind, and what that came to."""

    step: StepRecord
    """The step."""
    added: int
    """Tokens that it added to the history."""
    times_sent: int
    """How many later calls sent them."""

    @property
    def tokens(self) -> int:
        """Input tokens that they came to."""
        return self.added * self.times_sent


@dataclass(slots=True)
class RunRecord(Timed):
    """One `agent.run(...)`, from its span and all below it.

    Tokens are its own, without managed agents, unless named `total_*`. They are a lower bound when
    `calls_without_usage` is not 0.
    """

    id: str = _from(sc.RUN_ID, "")
    """One per run."""
    trace_id: str = ""
    """The trace that it is part of."""
    agent_type: str | None = _from(sc.AGENT_TYPE)
    """The agent's class."""
    model: str | None = _from(sc.REQUEST_MODEL)
    """The model that it was run with."""
    state: str | None = _from(sc.RUN_STATE)
    """One of `semconv.RUN_STATES`; None while it goes on."""
    max_steps: int | None = _from(sc.MAX_STEPS)
    """The limit that it had."""
    conversation: str | None = _from(sc.TURN_GROUP)
    """Shared by the turns of one conversation."""
    input_tokens: int | None = _from(sc.RUN_INPUT_TOKENS)
    """Billed input."""
    output_tokens: int | None = _from(sc.RUN_OUTPUT_TOKENS)
    """Billed output."""
    fixed_tokens: int | None = _from(sc.RUN_FIXED_TOKENS)
    """Input for system prompt, tool schemas and task."""
    new_tokens: int | None = _from(sc.RUN_NEW_TOKENS)
    """Input for history sent the first time."""
    replayed_tokens: int | None = _from(sc.RUN_REPLAYED_TOKENS)
    """Input for history sent again."""
    total_input_tokens: int | None = _from(sc.RUN_TOTAL_INPUT_TOKENS)
    """Billed input with managed agents."""
    total_output_tokens: int | None = _from(sc.RUN_TOTAL_OUTPUT_TOKENS)
    """Billed output with managed agents."""
    calls_without_usage: int | None = _from(sc.RUN_CALLS_WITHOUT_USAGE)
    """Calls that were answered without a token count."""
    overpay: float | None = _from(sc.RUN_OVERPAY)
    """How often, on average, a token of the history was sent."""
    replay_share: float | None = _from(sc.RUN_REPLAY_SHARE)
    """Replayed tokens ÷ input tokens."""
    forecast_half_way: int | None = _from(sc.FORECAST_INPUT_TOKENS)
    """What the forecast was when half of the action calls had been made."""
    fit: Fit | None = None
    """The line through the prompts of its action calls: P and s."""
    steps: list[StepRecord] = field(default_factory=list)
    """Its steps of all types, in order."""
    other_calls: list[CallRecord] = field(default_factory=list)
    """Its model calls outside of any step."""

    @property
    def action_steps(self) -> list[StepRecord]:
        """The steps that fit and formula speak of."""
        return [step for step in self.steps if step.type == "action"]

    @property
    def calls(self) -> list[CallRecord]:
        """All its own model calls."""
        return [*(call for step in self.steps for call in step.calls), *self.other_calls]

    @property
    def managed(self) -> list[RunRecord]:
        """Runs that its own steps started."""
        return [run for step in self.steps for run in step.runs]

    def walk(self) -> Iterator[RunRecord]:
        """This run and all managed ones, however deep."""
        yield self
        for run in self.managed:
            yield from run.walk()

    def input_by_tool(self) -> dict[str, int]:
        """What each tool's observations came to over all the calls that sent them, the largest first."""
        return _summed(call.tools for call in self.calls if call.estimator == "billed")

    def input_by_source(self) -> dict[str, int]:
        """The bill by source, the largest first."""
        return _summed(call.sources for call in self.calls if call.estimator == "billed")

    def causes(self) -> list[Cause]:
        """Tokens added × times sent, by step, the largest first.

        What a step added is what the next call sent as new. Every later call is taken to have sent it again, which
        holds unless the memory was edited.
        """
        later = zip(self.steps, self.steps[1:], range(len(self.steps) - 1, 0, -1), strict=False)
        causes = [Cause(step, after.new_tokens, times) for step, after, times in later if after.new_tokens]
        return sorted(causes, key=lambda cause: -cause.tokens)


def _summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, tokens in part.items():
            total[name] = total.get(name, 0) + tokens
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
