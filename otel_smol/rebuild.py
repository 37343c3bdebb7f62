"""Exported spans to records: by parent span, and by `smolagents.run.id` where a parent is yet to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from otel_smol import semconv as sc
from otel_smol.curve import Fit
from otel_smol.otlp import SpanData, Value
from otel_smol.records import CallRecord, RunRecord, StepRecord, Timed, ToolRecord

SCOPE = "otel_smol"
"""The scope of our spans. Not taken from `telemetry`, which is slow to import; a test holds them equal."""

OPERATIONS = {"invoke_agent": "run", "plan": "plan", "chat": "chat", "execute_tool": "tool"}
TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "int": (int,),
    "double": (float, int),
    "boolean": (bool,),
    "string[]": (list,),
    "int[]": (list,),
}
R = TypeVar("R", bound=Timed)


def runs(spans: Iterable[SpanData]) -> list[RunRecord]:
    """The outermost runs among these spans, in the order they began; managed ones are within their steps.

    Spans may come in any order. While a run goes on its own span has not arrived: it is put together from its steps,
    and a managed run stands beside it until the step around it has ended.
    """
    ours = sorted((span for span in spans if span.scope.name == SCOPE), key=lambda span: (span.start, span.end))
    by_id = {span.span_id: span for span in ours}
    found = {run_id(span): _run(span) for span in ours if kind(span) == "run"}
    steps: dict[str, StepRecord] = {}
    for span in ours:
        if kind(span) in ("step", "plan") and run_id(span):
            steps[span.span_id] = step = _step(span)
            found.setdefault(run_id(span), _unfinished(span)).steps.append(step)
    inner = set()
    for span in ours:
        above = _step_above(span, by_id, steps)
        _place(span, above, found)
        if above is not None and kind(span) == "run":
            inner.add(run_id(span))
    for run in found.values():
        if run.state is None:
            _take_totals_of_last_step(run)
    return sorted((run for id, run in found.items() if id not in inner), key=lambda run: run.start)


def kind(span: SpanData) -> str | None:
    """`run`, `step`, `plan`, `chat` or `tool`; None for any other span."""
    operation = span.attributes.get(sc.OPERATION_NAME)
    if isinstance(operation, str):
        return OPERATIONS.get(operation)
    return "step" if sc.STEP_TYPE in span.attributes else None


def run_id(span: SpanData) -> str:
    """The run that a span is part of; empty outside of any run."""
    return str(span.attributes.get(sc.RUN_ID, ""))


def _step_above(span: SpanData, by_id: Mapping[str, SpanData], steps: Mapping[str, StepRecord]) -> StepRecord | None:
    """The nearest step that a span lies within; for a managed run it is a step of the run around it."""
    id = span.parent_span_id
    while id not in steps and id in by_id and kind(by_id[id]) != "run":
        id = by_id[id].parent_span_id
    return steps.get(id)


def _place(span: SpanData, step: StepRecord | None, found: dict[str, RunRecord]) -> None:
    what = kind(span)
    if what == "chat" and step is not None:
        step.calls.append(_call(span))
    elif what == "chat" and run_id(span):
        found.setdefault(run_id(span), _unfinished(span)).other_calls.append(_call(span))
    elif what == "tool" and step is not None:
        step.tools.append(_read(ToolRecord, span))
    elif what == "run" and step is not None:
        step.runs.append(found[run_id(span)])


def _run(span: SpanData) -> RunRecord:
    run = _read(RunRecord, span)
    run.trace_id, run.fit = span.trace_id, _fit(span)
    return run


def _unfinished(span: SpanData) -> RunRecord:
    """A run of which only a step or a call is known as yet."""
    agent = str(span.attributes.get(sc.AGENT_NAME, ""))
    return RunRecord(start=span.start, agent=agent, id=run_id(span), trace_id=span.trace_id)


def _take_totals_of_last_step(run: RunRecord) -> None:
    if run.steps:
        last = run.steps[-1]
        run.input_tokens, run.replayed_tokens = last.run_input_tokens, last.run_replayed_tokens
        run.overpay, run.replay_share, run.fit = last.run_overpay, last.run_replay_share, last.fit


def _step(span: SpanData) -> StepRecord:
    step = _read(StepRecord, span)
    step.fit = _fit(span)
    return step


def _call(span: SpanData) -> CallRecord:
    call = _read(CallRecord, span)
    sources = {source: span.attributes.get(name) for source, name in sc.HISTORY_SOURCE_TOKENS.items()}
    call.sources = {source: tokens for source, tokens in sources.items() if isinstance(tokens, int)}
    names, tokens = span.attributes.get(sc.HISTORY_TOOL_NAMES), span.attributes.get(sc.HISTORY_TOOL_TOKENS)
    if isinstance(names, list) and isinstance(tokens, list):
        call.tools = {str(name): n for name, n in zip(names, tokens, strict=False) if isinstance(n, int)}
    return call


def _fit(span: SpanData) -> Fit | None:
    base, growth = _value(span, sc.FIT_BASE_TOKENS), _value(span, sc.FIT_GROWTH_TOKENS)
    calls = _value(span, sc.FIT_CALLS)
    if base is None or growth is None or calls is None:
        return None
    return Fit(base, growth, _value(span, sc.FIT_R_SQUARED), calls)


def _read(cls: type[R], span: SpanData) -> R:
    """A record with the fields that stand for an attribute filled in."""
    record = cls(start=span.start, end=span.end)
    for one in fields(cls):
        found = _value(span, one.metadata["attribute"]) if "attribute" in one.metadata else None
        if found is not None:
            setattr(record, one.name, found)
    return record


def _value(span: SpanData, name: str) -> Any:
    """An attribute, if it is there and of the type that it should have."""
    value: Value = span.attributes.get(name)
    return value if isinstance(value, TYPES[sc.ATTRIBUTES[name].type]) else None
