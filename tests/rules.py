"""What must hold for every run, whatever its scenario: truth, parts, tree, types, no leaks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from otel_smol import semconv as sc
from tests.conftest import Observed, attributes
from tests.scripted import Truth, characters

USAGE = (sc.USAGE_INPUT_TOKENS, sc.USAGE_OUTPUT_TOKENS)
PARENTS = {
    "agent_step": {"invoke_agent"},
    "plan": {"invoke_agent"},
    "chat": {"agent_step", "plan", "execute_tool", "invoke_agent"},
    "execute_tool": {"agent_step", "execute_tool"},
}


def check_all(observed: Observed, truth: Truth) -> None:
    """Every rule at once."""
    check_truth(observed, truth)
    check_parts(observed, truth)
    check_tree(observed)
    check_registry(observed)
    assert observed.recorder.open == 0, "a span is still open"


def check_truth(observed: Observed, truth: Truth) -> None:
    """Every published total equals what the models reported (design, invariant 1)."""
    billed = truth.input_tokens, truth.output_tokens
    assert len(observed.chats) == truth.calls
    assert totals(observed.chats, *USAGE) == billed
    assert not [span for span in observed.spans if span not in observed.chats and set(USAGE) & set(attributes(span))]
    assert totals(observed.runs, sc.RUN_INPUT_TOKENS, sc.RUN_OUTPUT_TOKENS) == billed
    outermost = [span for span in observed.runs if not _within_run(span, observed)]
    assert totals(outermost, sc.RUN_TOTAL_INPUT_TOKENS, sc.RUN_TOTAL_OUTPUT_TOKENS) == billed
    steps = [*observed.steps, *observed.plans]
    assert totals(steps, sc.STEP_INPUT_TOKENS, sc.STEP_OUTPUT_TOKENS) == billed
    for name in ("smolagents.step.input_tokens", "smolagents.history.input_tokens", "smolagents.run.input_tokens"):
        assert observed.total(name) == billed[0], name
    assert observed.total("smolagents.run.output_tokens") == billed[1]
    assert observed.total("gen_ai.client.token.usage", gen_ai__token__type="input") == billed[0]
    assert observed.total("gen_ai.client.token.usage", gen_ai__token__type="output") == billed[1]


def check_parts(observed: Observed, truth: Truth) -> None:
    """On every call the parts add up to the prompt, to the character, and to the billed input (invariant 2)."""
    sent = sorted(characters(prompt) for prompt in truth.prompts)
    schemas = [attributes(span).get(sc.HISTORY_SOURCE_CHARACTERS["tool_schema"], 0) for span in observed.chats]
    found = [attributes(span)[sc.HISTORY_CHARACTERS] for span in observed.chats]
    assert sorted(total - schema for total, schema in zip(found, schemas, strict=True)) == sent
    for span in [*observed.chats, *observed.steps, *observed.plans]:
        values = attributes(span)
        if sc.HISTORY_TOKENS not in values:
            continue
        by_source = [values.get(name, 0) for name in sc.HISTORY_SOURCE_TOKENS.values()]
        assert sum(by_source) == values[sc.HISTORY_TOKENS]
        in_characters = [values.get(name, 0) for name in sc.HISTORY_SOURCE_CHARACTERS.values()]
        assert sum(in_characters) == values[sc.HISTORY_CHARACTERS]
        if values.get(sc.USAGE_INPUT_TOKENS) is not None:
            assert values[sc.HISTORY_TOKENS] == values[sc.USAGE_INPUT_TOKENS]
        if sc.STEP_INPUT_TOKENS in values:
            split = values[sc.STEP_FIXED_TOKENS] + values[sc.STEP_NEW_TOKENS] + values[sc.STEP_REPLAYED_TOKENS]
            assert split == values[sc.STEP_INPUT_TOKENS]


def check_tree(observed: Observed) -> None:
    """Spans are children of what the design says, and one outermost run is one trace."""
    by_id = {span.context.span_id: span for span in observed.recorder.ended if span.context}
    for span in observed.spans:
        kind = span.name.split(" ")[0]
        parent = by_id.get(span.parent.span_id) if span.parent else None
        if kind in PARENTS:
            assert parent is not None, f"{span.name} has no parent"
            assert parent.name.split(" ")[0] in PARENTS[kind], f"{span.name} below {parent.name}"
    outermost = [span for span in observed.runs if not _within_run(span, observed)]
    traces = {span.context.trace_id for span in observed.spans if span.context}
    assert len(traces) == len({span.context.trace_id for span in outermost if span.context})


def check_registry(observed: Observed) -> None:
    """Every attribute and metric is registered, with its type, its spans and its unit."""
    kinds = {"invoke_agent": "run", "agent_step": "step", "plan": "plan", "chat": "chat", "execute_tool": "tool"}
    for span in observed.spans:
        kind = kinds[span.name.split(" ")[0]]
        values = attributes(span)
        for name, value in values.items():
            known = sc.ATTRIBUTES[name]
            assert kind in known.spans, f"{name} on {span.name}"
            assert _has_type(value, known.type), f"{name}={value!r} is no {known.type}"
        for known in sc.ATTRIBUTES.values():
            if known.always and kind in known.spans and not _outside_run(span):
                assert known.name in values, f"{known.name} is missing on {span.name}"
    for name in observed.metric_names():
        assert name in sc.METRICS or name in sc.CONVENTION_METRICS, name


def totals(spans: Iterable[ReadableSpan], *names: str) -> tuple[int, ...]:
    """Sums of attributes over spans; what is absent counts nothing."""
    found = [attributes(span) for span in spans]
    return tuple(sum(values.get(name, 0) for values in found) for name in names)


def _within_run(span: ReadableSpan, observed: Observed) -> bool:
    by_id = {other.context.span_id: other for other in observed.recorder.ended if other.context}
    parent = span.parent
    while parent is not None and parent.span_id in by_id:
        if by_id[parent.span_id] in observed.runs:
            return True
        parent = by_id[parent.span_id].parent
    return False


def _outside_run(span: ReadableSpan) -> bool:
    return sc.RUN_ID not in attributes(span)


def _has_type(value: Any, type_name: str) -> bool:
    if type_name.endswith("[]"):
        return isinstance(value, tuple) and all(_has_type(item, type_name[:-2]) for item in value)
    kinds = {"string": str, "int": int, "double": float, "boolean": bool}
    return type(value) is kinds[type_name]
