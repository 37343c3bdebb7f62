"""All TraceQL there is: what the Run dashboard asks of Tempo, and what the alerts link to.

A question is held as its parts, so that tests can answer it from recorded spans as well as check its syntax.

- Steps are asked for, not model calls: one span per step, while calls of several kinds share a step's number.
- A run is `smolagents.run.id`, not a trace: several runs can share one (managed agents, two runs under one parent).
- Without `select` an answer has no attributes; without a high `SPANS_PER_TRACE` it has three spans of each trace.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from otel_smol import semconv as sc

SPANS_PER_TRACE, BY_DEFAULT = 1000, 100
"""How many spans of a trace to ask for. Tempo refuses to answer with more than `max_spans_per_span_set`, which
deploy/tempo.yaml lifts and which is `BY_DEFAULT` elsewhere."""

RUN, SERVICE, AGENT = "$run", "$service", "$agent"
"""Variables of the dashboards. One with several values arrives as `a|b`, and `All` as `.*`: hence `=~`."""


@dataclass(frozen=True)
class Condition:
    """A comparison of one attribute; `!= None` asks whether it is there."""

    attribute: str
    operator: str
    value: str | int | None
    scope: str = "span"

    def __str__(self) -> str:
        value = "nil" if self.value is None else json.dumps(self.value)
        return f"{self.scope}.{self.attribute} {self.operator} {value}"


@dataclass(frozen=True)
class Search:
    """Spans for which all conditions hold, with some of their attributes, those of the latest traces."""

    conditions: tuple[Condition, ...]
    attributes: tuple[str, ...]
    traces: int

    def __str__(self) -> str:
        conditions = " && ".join(map(str, self.conditions))
        attributes = ", ".join(f"span.{name}" for name in self.attributes)
        return f"{{ {conditions} }} | select({attributes}) with (most_recent=true)"


_CHOSEN = (Condition("service.name", "=~", SERVICE, "resource"), Condition(sc.AGENT_NAME, "=~", AGENT))
_THIS_RUN = Condition(sc.RUN_ID, "=", RUN)
_ACTION = Condition(sc.STEP_TYPE, "=", "action")
_ANY_STEP = Condition(sc.STEP_TYPE, "!=", None)
_RUN_SPAN = Condition(sc.RUN_STATE, "!=", None)

RUN_COLUMNS = (
    sc.AGENT_NAME,
    sc.REQUEST_MODEL,
    sc.RUN_ID,
    sc.RUN_STATE,
    sc.RUN_STEPS,
    sc.RUN_INPUT_TOKENS,
    sc.RUN_TOTAL_INPUT_TOKENS,
    sc.RUN_OUTPUT_TOKENS,
    sc.RUN_REPLAY_SHARE,
    sc.RUN_OVERPAY,
    sc.RUN_CALLS_WITHOUT_USAGE,
)

RUNS = Search((*_CHOSEN, _RUN_SPAN), RUN_COLUMNS, traces=50)
"""Runs that have ended."""

ONE_RUN = Search((_THIS_RUN, _RUN_SPAN), RUN_COLUMNS, traces=1)
"""The totals of the chosen run."""

STEPS = Search(
    (_THIS_RUN, _ACTION),
    (
        sc.STEP_NUMBER,
        sc.STEP_INPUT_TOKENS,
        sc.STEP_FIXED_TOKENS,
        sc.STEP_NEW_TOKENS,
        sc.STEP_REPLAYED_TOKENS,
    ),
    traces=1,
)
"""The curve of the chosen run."""

PROGRESS = Search((_THIS_RUN, _ACTION), (sc.STEP_NUMBER, sc.RUN_INPUT_TOKENS, sc.FORECAST_INPUT_TOKENS), traces=1)
"""How far the chosen run was at the end of each step, and where it then seemed to end."""

LAST_RUNS = Search((*_CHOSEN, _ACTION), (sc.STEP_NUMBER, sc.STEP_INPUT_TOKENS, sc.RUN_ID), traces=10)
"""The curves of the last ten runs, also of those that still go on."""

SOURCES = Search((_THIS_RUN, _ACTION), (sc.STEP_NUMBER, *sc.HISTORY_SOURCE_TOKENS.values()), traces=1)
"""What the prompt of each step consisted of."""

CAUSES = Search((_THIS_RUN, _ANY_STEP), (sc.STEP_NUMBER, sc.STEP_TYPE, sc.STEP_NEW_TOKENS), traces=1)
"""What each call sent for the first time: that is what the step before it left behind."""

TOOLS = Search(
    (_THIS_RUN, Condition(sc.OPERATION_NAME, "=", "execute_tool")),
    (sc.TOOL_NAME, sc.TOOL_OUTPUT_CHARACTERS, sc.ERROR_TYPE),
    traces=1,
)
"""The tools that the chosen run called."""

SEARCHES = {
    "runs": RUNS,
    "one run": ONE_RUN,
    "steps": STEPS,
    "progress": PROGRESS,
    "last runs": LAST_RUNS,
    "sources": SOURCES,
    "causes": CAUSES,
    "tools": TOOLS,
}

TRACE = "$trace"
"""A trace by its id, which is a query as well."""


def expensive_traces(tokens: int | str) -> str:
    """Traces that sent more input tokens than this. Right because only `chat` spans carry `gen_ai.usage.*`."""
    return f"{{ }} | sum(span.{sc.USAGE_INPUT_TOKENS}) > {tokens}"


def running(agent: str) -> str:
    """The steps of an agent's runs, also while they go on: what an alert can link to."""
    return f"{{ {Condition(sc.AGENT_NAME, '=', agent)} && {_ACTION} }} | select(span.{sc.RUN_INPUT_TOKENS})"
