"""Exported spans, through the real OTLP encoding, to records."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from smolagents import CodeAgent, ToolCallingAgent

from otel_smol import otlp, rebuild, telemetry
from otel_smol import semconv as sc
from otel_smol.records import CallRecord, RunRecord, StepRecord, ToolRecord
from tests.conftest import Observed
from tests.scripted import AGENT_CLASSES, FINAL_CALL, FINAL_CODE, Script, agent, code, make_tool, step_replies


def sent(spans: Iterable[ReadableSpan]) -> list[otlp.SpanData]:
    """What a receiver would see."""
    return list(otlp.spans(encode_spans(list(spans))))


def records(observed: Observed) -> list[RunRecord]:
    return rebuild.runs(sent(observed.recorder.ended))


def one(observed: Observed) -> RunRecord:
    [run] = records(observed)
    return run


def test_registered() -> None:
    """The scope is the one that telemetry uses, and each field stands for an attribute of the right spans."""
    assert rebuild.SCOPE == telemetry.SCOPE
    for cls, kinds in ((CallRecord, {"chat"}), (ToolRecord, {"tool"}), (StepRecord, {"step"}), (RunRecord, {"run"})):
        for one in fields(cls):
            if "attribute" in one.metadata:
                assert kinds <= set(sc.ATTRIBUTES[one.metadata["attribute"]].spans), one.name


@pytest.mark.parametrize("cls", AGENT_CLASSES)
def test_run(observed: Observed, cls: type) -> None:
    """A run and its steps say what the model was really sent."""
    script = Script(*step_replies(cls, 6))
    agent(cls, script, max_steps=6).run("the task")
    run, truth = one(observed), script.truth
    assert (run.agent, run.agent_type, run.model, run.state) == (cls.__name__, cls.__name__, "scripted", "success")
    assert (run.input_tokens, run.output_tokens, run.calls_without_usage) == (
        truth.input_tokens,
        truth.output_tokens,
        0,
    )
    assert (run.total_input_tokens, run.total_output_tokens) == (truth.input_tokens, truth.output_tokens)
    assert run.error_type is None
    assert [step.number for step in run.steps] == [1, 2, 3, 4, 5, 6]
    assert [step.is_final_answer for step in run.steps] == [False] * 5 + [True]
    assert [step.main_tool for step in run.steps] == ["search"] * 5 + ["final_answer"]
    assert all(step.fixed_tokens and len(step.calls) == 1 for step in run.steps)
    so_far = 0
    for step in run.steps:
        [call] = step.calls
        assert call.type == "action"
        assert call.step == step.number
        assert call.input_tokens == step.input_tokens == sum(call.sources.values())
        assert step.input_tokens == (step.fixed_tokens or 0) + (step.new_tokens or 0) + (step.replayed_tokens or 0)
        so_far += step.input_tokens
        assert step.run_input_tokens == so_far
    assert run.fit is not None
    assert round(run.fit.total(6)) == run.input_tokens
    assert run.forecast_half_way == run.steps[2].forecast
    assert run.start <= run.steps[0].start <= (run.steps[-1].end or 0) <= (run.end or 0)


def test_sums(observed: Observed) -> None:
    """Input by tool and by source is what the metrics say, and the sources add up to the bill."""
    script = Script()
    tools = [make_tool(script.truth, "search", 300), make_tool(script.truth, "read", 900)]
    script = Script(
        code("print(search(1))"),
        code("print(read(2))"),
        code("print(search(3), read(4))"),
        FINAL_CODE,
        truth=script.truth,
    )
    agent(CodeAgent, script, tools).run("the task")
    run = one(observed)
    assert run.action_steps[2].main_tool == "read"
    assert list(run.input_by_tool())[:2] == ["read", "search"]
    for tool, tokens in run.input_by_tool().items():
        assert tokens == observed.total("smolagents.history.tool.input_tokens", gen_ai__tool__name=tool)
    for source, tokens in run.input_by_source().items():
        assert tokens == observed.total("smolagents.history.input_tokens", smolagents__history__source=source)
    assert sum(run.input_by_source().values()) == run.input_tokens


def test_causes(observed: Observed) -> None:
    """The step with the large result comes first; all causes add up to the history that was sent."""
    script = Script(*step_replies(CodeAgent, 6))
    sizes = {1: 100, 2: 4000, 3: 100, 4: 100, 5: 100}
    tools = [make_tool(script.truth, does=lambda n: "x" * sizes[n])]
    agent(CodeAgent, script, tools).run("the task")
    run = one(observed)
    worst = run.causes()[0]
    assert (worst.step.number, worst.times_sent, worst.tokens) == (2, 4, 4 * worst.added)
    assert worst.added == run.steps[2].new_tokens
    assert worst.added > 1000
    history = (run.new_tokens or 0) + (run.replayed_tokens or 0)
    assert sum(cause.tokens for cause in run.causes()) == pytest.approx(history, rel=0.01)


def test_planning_and_max_steps(observed: Observed) -> None:
    """Plans and the extra call for an answer are steps of their own type."""
    replies = step_replies(CodeAgent, 4)
    script = Script("plan", *replies[:2], "the answer")
    agent(CodeAgent, script, planning_interval=3, max_steps=2).run("the task")
    run = one(observed)
    assert run.state == "max_steps"
    assert [step.type for step in run.steps] == ["planning", "action", "action", "final_answer"]
    assert [step.type for step in run.action_steps] == ["action", "action"]
    assert [call.type for call in run.calls] == ["planning", "action", "action", "final_answer"]


@pytest.mark.parametrize("cls", AGENT_CLASSES)
def test_managed(observed: Observed, cls: type) -> None:
    """Managed runs lie in the steps that called them; own and total are told apart."""
    script = Script()
    inner = agent(cls, Script(*step_replies(cls, 2), truth=script.truth), name="inner", description="d")
    middle_replies = _asking(cls, "inner")
    middle = agent(
        cls, Script(*middle_replies, truth=script.truth), [], name="middle", description="d", managed_agents=[inner]
    )
    agent(cls, Script(*_asking(cls, "middle"), truth=script.truth), [], managed_agents=[middle]).run("the task")
    run = one(observed)
    assert [one.agent for one in run.walk()] == [cls.__name__, "middle", "inner"]
    assert run.steps[0].runs[0].agent == "middle"
    assert run.steps[0].tools[0].is_agent
    assert run.total_input_tokens == script.truth.input_tokens == sum(one.input_tokens or 0 for one in run.walk())
    assert [len(one.steps) for one in run.walk()] == [2, 2, 2]
    assert len({one.trace_id for one in run.walk()}) == 1


def _asking(cls: type, name: str) -> list[Any]:
    if cls is CodeAgent:
        return [code(f'print({name}(task="part"))'), FINAL_CODE]
    return [[(name, {"task": "part", "additional_args": {}})], FINAL_CALL]


def test_unknown_is_none(observed: Observed) -> None:
    """Without usage the totals are unknown, not zero, and so are the causes by tool."""
    agent(CodeAgent, Script(*step_replies(CodeAgent, 3), usage=False)).run("the task")
    run = one(observed)
    assert (run.input_tokens, run.total_input_tokens, run.fit, run.replay_share) == (None, None, None, None)
    assert run.calls_without_usage == 3
    assert run.input_by_tool() == run.input_by_source() == {}
    assert {call.estimator for call in run.calls} == {"characters"}
    assert all(step.input_tokens is None for step in run.steps)


def test_errors(observed: Observed) -> None:
    """An error is on the step and the run that ended with it."""
    script = Script(step_replies(ToolCallingAgent, 2)[0], ConnectionError("no model"))
    with pytest.raises(Exception, match="no model"):
        agent(ToolCallingAgent, script).run("the task")
    run = one(observed)
    assert run.state == "error"
    assert run.error_type is not None
    assert [step.error_type is not None for step in run.steps] == [False, True]


def test_calls_of_tools(observed: Observed) -> None:
    """A call that a tool makes belongs to the step, one outside of any run to nobody."""
    script = Script(step_replies(CodeAgent, 2)[0], "from the tool", FINAL_CODE, "outside")
    subject = agent(CodeAgent, script, [])
    ask = make_tool(script.truth, does=lambda n: subject.model([{"role": "user", "content": "?"}]).content)
    subject.tools["search"] = ask
    subject.run("the task")
    subject.model([{"role": "user", "content": "?"}])
    run = one(observed)
    assert [call.type for call in run.steps[0].calls] == ["action", "other"]
    assert len(run.calls) == 3


def test_several_runs_in_any_order(observed: Observed) -> None:
    """Runs come in the order they began, whatever the order in which their spans arrived."""
    script = Script(*step_replies(CodeAgent, 3) * 2)
    subject = agent(CodeAgent, script)
    subject.run("one")
    subject.run("two", reset=False)
    in_order = records(observed)
    assert len(in_order) == 2
    assert in_order[0].conversation == in_order[1].conversation
    spans = sent(observed.recorder.ended)
    random.Random(1).shuffle(spans)
    assert rebuild.runs(spans) == in_order


def test_run_that_goes_on(observed: Observed) -> None:
    """Before its own span arrives, a run has the totals of its last step and no state."""
    agent(CodeAgent, Script(*step_replies(CodeAgent, 4))).run("the task")
    spans = sent(observed.recorder.ended)
    [whole] = rebuild.runs(spans)
    [run] = rebuild.runs([span for span in spans if rebuild.kind(span) != "run"])
    assert (run.state, run.end, run.agent) == (None, None, "CodeAgent")
    assert (run.id, run.trace_id) == (whole.id, whole.trace_id)
    assert (run.input_tokens, run.replayed_tokens, run.fit) == (whole.input_tokens, whole.replayed_tokens, whole.fit)
    assert run.steps == whole.steps
    [only_call] = rebuild.runs([span for span in spans if rebuild.kind(span) == "chat"])
    assert len(only_call.other_calls) == 4


def test_strangers_and_wrong_types_are_left_out(observed: Observed) -> None:
    """Spans of other scopes are no records, and a value of the wrong type is unknown."""
    with observed.tracer().start_as_current_span("invoke_agent other", attributes={sc.OPERATION_NAME: "invoke_agent"}):
        pass
    assert records(observed) == []
    tracer = observed.tracer_provider.get_tracer(rebuild.SCOPE)
    values: dict[str, Any] = {sc.OPERATION_NAME: "invoke_agent", sc.RUN_ID: "r", sc.RUN_INPUT_TOKENS: "many"}
    tracer.start_span("invoke_agent a", attributes=values).end()
    run = one(observed)
    assert (run.id, run.input_tokens, run.agent) == ("r", None, "")
