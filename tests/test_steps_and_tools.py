"""Steps and tools: each is seen once, whoever wrote it, with the names of its agent and its own (P09 to P12)."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import smolagents
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from smolagents import CodeAgent, Model, ToolCallingAgent
from smolagents.memory import ActionStep, TaskStep
from smolagents.monitoring import Timing

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import CONTENT_VARIABLE, Observed, Warnings, attributes
from tests.kinds import TOOLS, no_model
from tests.rules import USAGE, check_all, check_parts, check_registry, totals
from tests.scripted import (
    Cell,
    Script,
    ScriptedModel,
    agent,
    each_class,
    each_form,
    make_tool,
    managed_call,
    memory,
    message,
    step_replies,
)

TOOL_NAME = "gen_ai.tool.name"


# --- steps -----------------------------------------------------------------------------------------------------------


def by_hand(subject: Any, most: int = 10) -> Any:
    """The loop of smolagents' guide "inspect runs": one step at a time."""
    subject.memory.steps.append(TaskStep(task="the task", task_images=[]))
    if hasattr(subject, "python_executor"):
        subject.python_executor.send_tools({**subject.tools, **subject.managed_agents})
    for number in range(1, most):
        step = ActionStep(step_number=number, timing=Timing(0.0), observations_images=[])
        last = subject.step(step)
        subject.memory.steps.append(step)
        if last.is_final_answer:
            return last.output
    return None


@pytest.mark.parametrize("stream", [False, True])
@each_class
def test_steps_by_hand(cls: type, stream: bool, observed: Observed, warned: Warnings) -> None:
    """`agent.step()` in a loop, with classes that nobody has seen: all steps and calls, and what each replays."""

    def run(script: Script) -> tuple[Any, Any]:
        late = type("Late", (cls,), {"_step_stream": method_calling_super(cls)})
        subject = agent(late, script, model=no_model(script), stream_outputs=stream)
        return by_hand(subject), memory(subject)

    script, bare = Script(*step_replies(cls, 4)), Script(*step_replies(cls, 4))
    result = run(script)
    assert (len(observed.steps), len(observed.chats), observed.runs) == (4, 4, [])
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert totals(observed.steps, sc.STEP_INPUT_TOKENS) == (script.truth.input_tokens,)
    check_parts(observed, script.truth)
    agent(cls, Script(*step_replies(cls, 4))).run("the task")
    names = (sc.STEP_NUMBER, sc.STEP_TOOL_CALLS, sc.STEP_FIXED_TOKENS, sc.STEP_NEW_TOKENS, sc.STEP_REPLAYED_TOKENS)
    steps = [[attributes(step)[name] for name in names] for step in observed.steps]
    assert steps[:4] == steps[4:]
    assert observed.recorder.open == 0
    assert warned.lines == []
    SmolagentsInstrumentor().uninstrument()
    assert result == run(bare)


def method_calling_super(cls: Any) -> Callable[..., Any]:
    """A `_step_stream` that goes on to that of a class."""

    def _step_stream(self: Any, memory_step: Any) -> Any:
        yield from cls._step_stream(self, memory_step)

    return _step_stream


def method_returning_an_iterator(cls: Any) -> Callable[..., Any]:
    """A `_step_stream` that does its work at once."""
    return lambda self, memory_step: iter(list(cls._step_stream(self, memory_step)))


def method_returning_a_list(cls: Any) -> Callable[..., Any]:
    """A `_step_stream` that returns what can be iterated over."""
    return lambda self, memory_step: list(cls._step_stream(self, memory_step))


def method_of_its_own(cls: Any) -> Callable[..., Any]:
    """A `_step_stream` written anew: it reads the memory, asks the model, calls a tool."""

    def _step_stream(self: Any, memory_step: Any) -> Any:
        memory_step.model_input_messages = self.write_memory_to_messages()
        answer = self.model.generate(memory_step.model_input_messages)
        memory_step.token_usage, memory_step.model_output = answer.token_usage, str(answer.content)
        number = memory_step.step_number
        memory_step.observations = self.tools["search"](n=number)
        yield smolagents.agents.ActionOutput(output="done", is_final_answer=number == 2)

    return _step_stream


@pytest.mark.parametrize(
    "stepping", [method_calling_super, method_returning_an_iterator, method_returning_a_list, method_of_its_own]
)
@each_form
@each_class
def test_own_step_stream(
    cls: type, consumed: str, stepping: Callable[[Any], Callable[..., Any]], observed: Observed, warned: Warnings
) -> None:
    """A subclass with a `_step_stream` of its own: one span a step, whatever the method returns."""
    cell = Cell(cls, consumed)
    script = Script(*cell.replies(2))
    late = type("Late", (cls,), {"_step_stream": stepping(cls)})
    subject = Cell(late, consumed).agent(script)
    assert cell.run(subject) == "done"
    check_all(observed, script.truth)
    assert (len(observed.steps), len(observed.tools)) == (2, 2)
    assert [observed.parent(chat) for chat in observed.chats] == ["agent_step Late"] * 2
    assert warned.lines == []


@each_class
def test_a_step_that_returns_nothing(cls: type, observed: Observed) -> None:
    """A `_step_stream` that returns None: the agent's own error, and no span stays open, by hand either."""
    script = Script()
    late = type("Late", (cls,), {"_step_stream": lambda self, memory_step: None})
    subject = agent(late, script)
    with pytest.raises(TypeError, match="'NoneType' object is not iterable"):
        subject.run("the task")
    with pytest.raises(TypeError, match="'NoneType' object is not iterable"):
        by_hand(subject)
    assert observed.recorder.open == 0
    assert len(observed.steps) == 2


@each_form
@each_class
def test_own_final_answer(cls: type, consumed: str, observed: Observed) -> None:
    """A subclass with a `provide_final_answer` of its own: a step of that type, with the calls that it makes."""

    class Late(cls):  # type: ignore[misc]
        def provide_final_answer(self, *args: Any) -> Any:
            self.model.generate([message("summarise")])
            return super().provide_final_answer(*args)

    cell = Cell(cls, consumed)
    script = Script(*cell.replies(3)[:2], "a summary", "the answer")
    assert cell.run(Cell(Late, consumed).agent(script, max_steps=2)) == "the answer"
    check_all(observed, script.truth)
    assert [attributes(chat)[sc.CALL_TYPE] for chat in observed.chats][2:] == ["final_answer"] * 2
    assert len(observed.steps) == 3


@each_form
@each_class
def test_own_memory_that_trims(cls: type, consumed: str, observed: Observed, warned: Warnings) -> None:
    """A subclass whose `write_memory_to_messages` leaves out the oldest steps: sizes of what was really sent."""

    class Late(cls):  # type: ignore[misc]
        def write_memory_to_messages(self, summary_mode: bool = False) -> Any:
            messages = super().write_memory_to_messages(summary_mode)
            return messages[:2] + messages[2:][-3:]

    cell = Cell(cls, consumed)
    script = Script(*cell.replies(5))
    cell.run(Cell(Late, consumed).agent(script))
    check_all(observed, script.truth)
    shares = [attributes(step)[sc.HISTORY_PREFIX_SHARE] for step in observed.steps[1:]]
    assert shares[0] == 1.0
    assert shares[-1] < 1.0
    assert attributes(observed.steps[-1])[sc.HISTORY_COMPACTED_TOKENS] > 0
    assert warned.lines == []


@each_class
def test_driven_by_hand_within_a_run(cls: type, observed: Observed, warned: Warnings) -> None:
    """A tool that drives an agent by hand, in one run and in the next: its steps and tokens are within that run."""
    script = Script(*step_replies(cls, 2) * 2)
    worker_script = Script(*step_replies(cls, 1) * 2, truth=script.truth)
    worker = agent(cls, worker_script, tools=[], name="worker")

    def drive(n: int) -> Any:
        worker.memory.reset()
        return by_hand(worker)

    subject = agent(cls, script, tools=[make_tool(script.truth, does=drive)])
    for _ in range(2):
        assert subject.run("the task") == "done"
    own = [step for step in observed.steps if step.name == "agent_step worker"]
    assert {observed.parent(step) for step in own} == {"execute_tool search"}
    by_worker = totals(own, sc.STEP_INPUT_TOKENS)[0] // 2
    for run in map(attributes, observed.runs):
        assert run[sc.RUN_TOTAL_INPUT_TOKENS] == run[sc.RUN_INPUT_TOKENS] + by_worker
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert observed.recorder.open == 0
    assert warned.lines == []


class Note:
    """A memory step of the user's that is no `MemoryStep` and that nothing can refer to weakly."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def to_messages(self, summary_mode: bool = False) -> list[Any]:
        return [message(self.text)]


@each_form
@each_class
def test_memory_steps_of_any_kind(cls: type, consumed: str, observed: Observed, warned: Warnings) -> None:
    """A callback puts something of its own among the memory's steps: it is sized, and replayed, like all others."""

    def remember(step: Any, agent: Any) -> None:
        agent.memory.steps.append(Note(f"note {step.step_number}"))

    cell = Cell(cls, consumed)
    script = Script(*cell.replies(3))
    cell.run(cell.agent(script, step_callbacks=[remember]))
    check_all(observed, script.truth)
    notes = [attributes(step).get(sc.HISTORY_SOURCE_CHARACTERS["other"]) for step in observed.steps]
    assert notes == [None, len("note 1"), len("note 1note 2")]
    last = attributes(observed.steps[-1])
    assert last[sc.HISTORY_PREFIX_SHARE] == 1.0
    assert warned.lines == []


# --- tools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", TOOLS, ids=["decorated", *(build.__name__ for build in TOOLS[1:])])
@each_class
def test_every_kind_of_tool(cls: type, build: Callable[[], Any], observed: Observed, warned: Warnings) -> None:
    """P12: one span, with the name that the model used and the length of the result."""
    subject_tool = build()
    name = subject_tool.name
    script = Script(*step_replies(cls, 2, name))
    subject = agent(cls, script, tools=[subject_tool])
    subject.run("the task")
    check_all(observed, script.truth)
    called, answer = (attributes(span) for span in observed.tools)
    assert called[TOOL_NAME] == name
    result = subject_tool(1) if cls is CodeAgent else subject_tool(n=1)
    assert called[sc.TOOL_OUTPUT_CHARACTERS] == len(result)
    assert (answer[TOOL_NAME], answer[sc.TOOL_OUTPUT_CHARACTERS]) == ("final_answer", len("done"))
    assert observed.total("smolagents.history.tool.input_tokens", gen_ai__tool__name=name) > 0
    assert warned.lines == []


@each_class
def test_a_managed_agent_is_a_tool(cls: type, observed: Observed) -> None:
    """P12: a managed agent's call is a tool call that holds a run."""
    worker_script = Script(*step_replies(cls, 1))
    worker = agent(cls, worker_script, tools=[], name="worker", description="works")
    script = Script(managed_call(cls, "worker"), step_replies(cls, 1)[0], truth=worker_script.truth)
    agent(cls, script, tools=[], managed_agents=[worker]).run("the task")
    check_all(observed, script.truth)
    [span] = [span for span in observed.tools if attributes(span).get(sc.TOOL_MANAGED_AGENT)]
    assert attributes(span)[TOOL_NAME] == "worker"
    assert attributes(span)[sc.TOOL_OUTPUT_CHARACTERS] > len("done")
    [run] = [run for run in observed.runs if run.name == "invoke_agent worker"]
    assert observed.parent(run) == "execute_tool worker"


@each_class
def test_tools_call_tools(cls: type, observed: Observed) -> None:
    """A tool that calls another, which calls the first again: each call is a span in the one that made it."""
    script = Script(*step_replies(cls, 2, "first"))
    first = make_tool(script.truth, "first", does=lambda n: second(n=n) if n else "the bottom")
    second = make_tool(script.truth, "second", does=lambda n: first(n=n - 1))
    agent(cls, script, tools=[first, second]).run("the task")
    check_all(observed, script.truth)
    spans = [span for span in observed.tools if attributes(span)[TOOL_NAME] != "final_answer"]
    assert [span.name.split()[1] for span in spans] == ["first", "second", "first"]
    assert [observed.parent(span) for span in spans] == [
        "execute_tool second",
        "execute_tool first",
        f"agent_step {cls.__name__}",
    ]
    assert attributes(observed.steps[0])[sc.STEP_TOOL_CALLS] == 1


@each_class
def test_an_unknown_tool(cls: type, observed: Observed, warned: Warnings) -> None:
    """A tool that the model made up: an error that the agent recovers from, no tool span, no series of that name."""
    script = Script(*step_replies(cls, 2, "made_up_by_the_model"))
    subject = agent(cls, script)
    assert subject.run("the task") == "done"
    check_all(observed, script.truth)
    assert [attributes(span)[TOOL_NAME] for span in observed.tools] == ["final_answer"]
    assert observed.run[sc.RUN_RECOVERED_ERRORS] == 1
    series = {str(point) for name in observed.metric_names() for point, _ in observed.points(name)}
    assert not [point for point in series if "made_up_by_the_model" in point]
    assert warned.lines == []


@each_class
def test_a_renamed_tool(cls: type, observed: Observed) -> None:
    """P12: the key in `agent.tools` is the name that the model uses, whatever the tool calls itself."""
    script = Script(*step_replies(cls, 2, "renamed"))
    subject = agent(cls, script)
    subject.tools = {"renamed": subject.tools.pop("search"), **subject.tools}
    subject.run("the task")
    check_all(observed, script.truth)
    assert [attributes(span)[TOOL_NAME] for span in observed.tools] == ["renamed", "final_answer"]


@pytest.mark.parametrize(
    ("result", "characters"),
    [("text", 4), (12, 2), (None, 4), ([1, "a"], 8), ({"a": 1.5}, 10), (object(), None), ("x" * 10**6, 10**6)],
    ids=["text", "number", "none", "list", "dict", "object", "large"],
)
def test_output_characters(result: Any, characters: int | None, observed: Observed) -> None:
    """P12: the length of a tool's result as text; absent where writing it out would run somebody's code."""
    script = Script(*step_replies(CodeAgent, 2))
    agent(CodeAgent, script, tools=[make_tool(script.truth, does=lambda n: result)]).run("the task")
    assert attributes(observed.tools[0]).get(sc.TOOL_OUTPUT_CHARACTERS) == characters


def test_a_failing_tool(observed: Observed) -> None:
    """A tool that raises: its span has the error's class, and the step goes on to be the agent's."""
    script = Script(*step_replies(ToolCallingAgent, 2))

    def fail(n: int) -> Any:
        raise LookupError("nothing there")

    agent(ToolCallingAgent, script, tools=[make_tool(script.truth, does=fail)]).run("the task")
    check_all(observed, script.truth)
    assert attributes(observed.tools[0])[sc.ERROR_TYPE] == "LookupError"
    assert not observed.tools[0].status.is_ok


# --- names and values ------------------------------------------------------------------------------------------------


def team(cls: type, script: Script, levels: int = 3) -> Any:
    """An agent that calls two managed agents, one of which does the same, and so on down; twice each."""
    name = f"level_{levels}"
    if not levels:
        return agent(cls, Script(*step_replies(cls, 2) * 100, truth=script.truth), name=name, description="works")
    below = team(cls, script, levels - 1)
    helper_script = Script(*step_replies(cls, 1) * 100, truth=script.truth)
    helper = agent(cls, helper_script, tools=[], name=f"helper_{levels}", description="helps")
    replies = [managed_call(cls, below.name, helper.name), managed_call(cls, below.name), *step_replies(cls, 1)]
    own = Script(*replies * 100, truth=script.truth)
    return agent(cls, own, tools=[], managed_agents=[below, helper], name=name, description="leads")


@each_class
def test_every_span_names_its_agent(cls: type, observed: Observed, warned: Warnings) -> None:
    """P10: three levels of managed agents, two at each, called repeatedly and in parallel: every span says whose it is.

    And the names of spans are the agents', tools' and models' alone: no number, no id, no text of the model's.
    """
    script = Script()
    team(cls, script).run("the task")
    check_all(observed, script.truth)
    by_id = {span.context.span_id: span for span in observed.spans if span.context}
    for span in observed.spans:
        owner = span if span.name.startswith("invoke_agent") else by_id[span.parent.span_id] if span.parent else span
        while not owner.name.startswith("invoke_agent"):
            assert owner.parent is not None
            owner = by_id[owner.parent.span_id]
        assert f"invoke_agent {attributes(span)[sc.AGENT_NAME]}" == owner.name
    agents = {"level_0", "level_1", "level_2", "level_3", "helper_1", "helper_2", "helper_3"}
    tools = {f"execute_tool {name}" for name in (agents - {"level_3"}) | {"search", "final_answer"}}
    expected = {f"{kind} {name}" for kind in ("invoke_agent", "agent_step") for name in agents}
    assert {span.name for span in observed.spans} == expected | tools | {"chat scripted"}
    assert len(observed.runs) == (1 + 2 + 4 + 8) + (1 + 2 + 4)
    assert warned.lines == []


class Odd(Model):  # type: ignore[misc]
    """A model of which nothing is as one would expect."""

    def __init__(self) -> None:
        super().__init__(temperature="warm", top_p=None, seed=1.5, stop=object(), max_tokens="9", presence_penalty=True)
        self.model_id = object()
        self.client_kwargs = {"base_url": 7, "provider": object()}

    def generate(self, messages: list[Any], **kwargs: Any) -> Any:
        usage = types.SimpleNamespace(input_tokens="many", output_tokens=None)
        raw = {"id": 7, "model": b"bytes", "choices": [], "usage": {"prompt_tokens": -1}}
        content = [{"type": "text", "text": "lone \ud800"}, {"type": "audio"}, None, 3]
        return types.SimpleNamespace(content=content, tool_calls=(), token_usage=usage, raw=raw)

    def generate_stream(self, messages: list[Any], **kwargs: Any) -> Any:
        yield types.SimpleNamespace(content=None, tool_calls=None, token_usage=object())
        yield types.SimpleNamespace(content=3, tool_calls=[types.SimpleNamespace(index=None, id=None, function=None)])
        yield "text"


def odd_messages() -> list[Any]:
    """Content in every form, and some in none."""
    return [
        {"role": "user", "content": None},
        {"role": None, "content": [{"type": "text", "text": None}, {"type": "audio"}, "text", 3, None]},
        message("lone surrogate \ud800"),
        message(""),
        {"role": "user", "content": [{"type": "image", "image": object()}]},
        {"content": "without a role"},
        {},
    ]


@pytest.mark.parametrize("content", [False, True])
@each_class
def test_odd_values(
    cls: type, content: bool, observe: Callable[..., Observed], warned: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P09: odd content, no model id, an agent without a name: only legal values, None nowhere, and nothing logged."""
    if content:
        monkeypatch.setenv(CONTENT_VARIABLE, "SPAN_ONLY")
    observed = observe()
    script = Script("plan", *step_replies(cls, 2))

    def ask(step: Any) -> None:
        if step.step_number == 2:
            odd = {"temperature": object(), "stop_sequences": [1, None], "response_format": {"a": object()}}
            Odd().generate(odd_messages(), **odd)
            list(Odd().generate_stream(messages=odd_messages(), tools_to_call_from=[], **odd))

    odd_result = {"key": object(), "surrogate": "\ud800", 3: [None, b"bytes", float("nan")]}
    tools = [make_tool(script.truth, does=lambda n: odd_result)]
    model = ScriptedModel(script, model_id=None)
    subject = agent(cls, script, tools=tools, model=model, planning_interval=5, step_callbacks=[ask])
    assert subject.run("the \ud800 task") == "done"
    check_registry(observed)
    assert len(observed.chats) == 5
    assert {run.name for run in observed.runs} == {f"invoke_agent {cls.__name__}"}
    assert {chat.name for chat in observed.chats} == {"chat"}
    for span in observed.spans:
        assert None not in attributes(span).values()
    encode_spans(observed.spans)  # as the exporters do
    assert warned.lines == []
