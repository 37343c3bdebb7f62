"""Capture: every model call, step and tool is seen, once, whoever defined it and however it is called (P01 to P12)."""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import inspect
import pickle
import pkgutil
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
import smolagents
import wrapt
from smolagents import CodeAgent, Model, Tool, ToolCallingAgent, tool
from smolagents.memory import ActionStep, TaskStep
from smolagents.monitoring import Timing
from smolagents.tools import BaseTool

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings, attributes
from tests.rules import USAGE, check_all, check_parts, totals
from tests.scripted import (
    AGENT_CLASSES,
    FINAL_CALL,
    FINAL_CODE,
    Reply,
    Script,
    ScriptedModel,
    agent,
    code,
    deltas,
    make_tool,
    message,
    step_replies,
)
from tests.test_scenarios import CONSUMED, Cell, memory

TOOL_NAME = "gen_ai.tool.name"

each_class = pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda cls: cls.__name__)
each_form = pytest.mark.parametrize("consumed", CONSUMED)


# --- models ----------------------------------------------------------------------------------------------------------


def plain(script: Script) -> Callable[..., Any]:
    """A function that answers with a message."""

    def generate(messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        return message(*script.answer(messages))

    return generate


def streamed(script: Script) -> Callable[..., Iterator[Any]]:
    """A function that answers with deltas."""

    def generate_stream(messages: list[Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from deltas(*script.answer(messages))

    return generate_stream


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a method; one that is a generator stays one."""
    if inspect.isgeneratorfunction(function):

        def stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            yield from function(*args, **kwargs)

        return stream
    return lambda self, *args, **kwargs: function(*args, **kwargs)


def built_at_run_time(script: Script) -> Any:
    """A class that exists only from here on."""
    methods = {"generate": method(plain(script)), "generate_stream": method(streamed(script))}
    return type("Built", (Model,), methods)(model_id="built")


def calls_super(script: Script) -> Any:
    """P04: three levels, each calling the one above."""

    class One(ScriptedModel):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

        def generate_stream(self, *args: Any, **kwargs: Any) -> Any:
            yield from super().generate_stream(*args, **kwargs)

    class Two(One):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

        def generate_stream(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate_stream(*args, **kwargs)  # no generator function

    class Three(Two):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

        def generate_stream(self, *args: Any, **kwargs: Any) -> Any:
            yield from super().generate_stream(*args, **kwargs)

    return [cls(script) for cls in (One, Two, Three)][-1]  # of each there is one, so each is patched


def static(script: Script) -> Any:
    """Static methods."""

    class Static(Model):  # type: ignore[misc]
        generate = staticmethod(plain(script))
        generate_stream = staticmethod(streamed(script))

    return Static(model_id="static")


def decorated(script: Script) -> Any:
    """Methods behind a decorator, as one that retries."""

    def retrying(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    class Decorated(Model):  # type: ignore[misc]
        generate = retrying(method(plain(script)))
        generate_stream = retrying(method(streamed(script)))

    return Decorated(model_id="decorated")


class Delegating(Model):  # type: ignore[misc]
    """Lets another model answer, and passes its usage on or not."""

    def __init__(self, inner: Any, *, usage: bool = False) -> None:
        super().__init__(model_id="outer")
        self.inner, self.usage = inner, usage

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        answer = self.inner.generate(*args, **kwargs)
        if not self.usage:
            answer.token_usage = None
        return answer

    def generate_stream(self, *args: Any, **kwargs: Any) -> Any:
        for delta in self.inner.generate_stream(*args, **kwargs):
            if not self.usage:
                delta.token_usage = None
            yield delta


def delegating(script: Script) -> Any:
    """The outer model does not report what the inner one used."""
    return Delegating(ScriptedModel(script))


def delegating_with_usage(script: Script) -> Any:
    """Both report it."""
    return Delegating(ScriptedModel(script), usage=True)


def delegating_deeply(script: Script) -> Any:
    """Through two more, the innermost of which is no `Model`."""
    return Delegating(Delegating(no_model(script), usage=True), usage=True)


def delegating_crosswise(script: Script) -> Any:
    """Plain calls answered by a stream, and streams by a plain call."""
    inner = ScriptedModel(script)

    class Crosswise(Model):  # type: ignore[misc]
        def generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
            return smolagents.models.agglomerate_stream_deltas(list(inner.generate_stream(messages)))

        def generate_stream(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
            answer = inner.generate(messages)
            calls = [(call.function.name, call.function.arguments) for call in answer.tool_calls or ()]
            return iter(list(deltas(answer.content or calls, answer.token_usage)))

    return Crosswise(model_id="crosswise")


class NoModel:
    """Not derived from `Model`."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def generate(self, messages: list[Any], **kwargs: Any) -> Any:
        return message(*self.script.answer(messages))

    def generate_stream(self, messages: list[Any], **kwargs: Any) -> Any:
        yield from deltas(*self.script.answer(messages))


def no_model(script: Script) -> Any:
    """An object that is no `Model`, of a class that exists only from here on."""
    return type("Late", (NoModel,), dict(vars(NoModel)))(script)


def with_slots(script: Script) -> Any:
    """No `__dict__`, and no weak references."""

    class Slotted:
        __slots__ = ("script",)

        def __init__(self) -> None:
            self.script = script

        def generate(self, messages: list[Any], **kwargs: Any) -> Any:
            return message(*self.script.answer(messages))

        def generate_stream(self, messages: list[Any], **kwargs: Any) -> Any:
            yield from deltas(*self.script.answer(messages))

    return Slotted()


class MadeUp:
    """Passes everything on to something else."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_inner"], name)


def made_up(script: Script) -> Any:
    """Its methods come from `__getattr__`, and what they are methods of is no `Model` either."""
    return MadeUp(types.SimpleNamespace(generate=plain(script), generate_stream=streamed(script)))


def mocked(script: Script) -> Any:
    """What test suites use."""
    model = MagicMock()
    model.generate.side_effect = plain(script)
    model.generate_stream.side_effect = streamed(script)
    return model


def assigned_functions(script: Script) -> Any:
    """The instance has methods of its own."""
    model = ScriptedModel(Script())
    model.generate, model.generate_stream = plain(script), streamed(script)
    return model


def assigned_mocks(script: Script) -> Any:
    """As `unittest.mock.patch.object` does it."""
    model = ScriptedModel(Script())
    model.generate, model.generate_stream = MagicMock(side_effect=plain(script)), MagicMock(side_effect=streamed(script))
    return model


def assigned_lambdas(script: Script) -> Any:
    """Going on to a method of another object."""
    model, other = ScriptedModel(Script()), NoModel(script)
    model.generate = lambda messages, **kwargs: other.generate(messages)
    model.generate_stream = lambda messages, **kwargs: other.generate_stream(messages)
    return model


def answering_with_plain_objects(script: Script) -> Any:
    """P07: neither messages nor deltas of smolagents'."""

    class Plain(Model):  # type: ignore[misc]
        def generate(self, messages: list[Any], **kwargs: Any) -> Any:
            return types.SimpleNamespace(**vars(message(*script.answer(messages))))

        def generate_stream(self, messages: list[Any], **kwargs: Any) -> Any:
            for delta in deltas(*script.answer(messages)):
                yield types.SimpleNamespace(**vars(delta))

    return Plain(model_id="plain")


class Reiterable:
    """Can be iterated over, and is no iterator."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class ClosableIterator:
    """An iterator that is no generator, with a method of its own, as the streams of clients are."""

    def __init__(self, items: list[Any]) -> None:
        self._items = iter(items)
        self.closed = False

    def __iter__(self) -> ClosableIterator:
        return self

    def __next__(self) -> Any:
        return next(self._items)

    def close(self) -> None:
        self.closed = True


def streaming_as(kind: Callable[[list[Any]], Any]) -> Callable[[Script], Any]:
    """A model whose stream is no generator."""

    def build(script: Script) -> Any:
        class Streaming(ScriptedModel):
            def generate_stream(self, messages: list[Any], **kwargs: Any) -> Any:
                return kind(list(deltas(*script.answer(messages))))

        return Streaming(script)

    build.__name__ = f"streaming_as_{kind.__name__}"
    return build


MODELS = (
    ScriptedModel,
    built_at_run_time,
    calls_super,
    static,
    decorated,
    delegating,
    delegating_with_usage,
    delegating_deeply,
    delegating_crosswise,
    no_model,
    with_slots,
    made_up,
    mocked,
    assigned_functions,
    assigned_mocks,
    assigned_lambdas,
    answering_with_plain_objects,
    streaming_as(list),
    streaming_as(Reiterable),
    streaming_as(ClosableIterator),
)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("consumed", ["plain", "stream_outputs"])
@each_class
def test_every_kind_of_model(
    cls: type, consumed: str, model: Callable[[Script], Any], observed: Observed, warned: Warnings
) -> None:
    """P01, P02, P04: one span and one record of tokens for each call of the agent; the agent does as without us."""
    cell = Cell(cls, consumed)

    def run(script: Script) -> tuple[Any, Any]:
        subject = cell.agent(script, model=model(script), planning_interval=2)
        return cell.run(subject), memory(subject)

    replies = ["the plan", *cell.replies(2)]
    script, bare = Script(*replies), Script(*replies)
    result = run(script)
    check_all(observed, script.truth)
    assert [attributes(chat)[sc.CALL_TYPE] for chat in observed.chats] == ["planning", "action", "action"]
    assert warned.lines == []
    SmolagentsInstrumentor().uninstrument()
    assert result == run(bare)
    assert script.truth.calls == bare.truth.calls


@each_class
def test_both_models_report(cls: type, observed: Observed) -> None:
    """P04: what the outer model reports is what the agent was billed; inner reports are not added to it."""
    outer, inner = Script(*step_replies(cls, 2)), Script(*step_replies(cls, 2))

    class Counting(Model):  # type: ignore[misc]
        def generate(self, messages: list[Any], **kwargs: Any) -> Any:
            ScriptedModel(inner).generate(messages)
            return message(*outer.answer(messages))

    agent(cls, outer, model=Counting(model_id="counting")).run("the task")
    check_all(observed, outer.truth)


@pytest.mark.parametrize("stream", [False, True])
@each_class
def test_delegating_twice(cls: type, stream: bool, observed: Observed) -> None:
    """A model that asks twice for one answer and reports nothing: one span, with the sum of both."""
    script = Script(*[reply for reply in step_replies(cls, 2) for _ in range(2)])

    class Twice(Delegating):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            super().generate(*args, **kwargs)
            return super().generate(*args, **kwargs)

        def generate_stream(self, *args: Any, **kwargs: Any) -> Any:
            list(super().generate_stream(*args, **kwargs))
            return super().generate_stream(*args, **kwargs)

    subject = agent(cls, script, model=Twice(ScriptedModel(script)), stream_outputs=stream)
    subject.run("the task")
    assert len(observed.chats) == 2
    assert script.truth.calls == 4
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert observed.run[sc.RUN_INPUT_TOKENS] == script.truth.input_tokens


@pytest.mark.parametrize("build", [assigned_functions, assigned_mocks, assigned_lambdas, made_up, mocked])
@each_class
def test_an_instance_is_left_as_it_was(cls: type, build: Callable[[Script], Any], observed: Observed) -> None:
    """A method assigned to an instance is that very object again after the run, and after one that fails."""
    model = build(Script(*step_replies(cls, 2), ConnectionError("no model")))
    before = dict(vars(model))
    subject = agent(cls, Script(), tools=[make_tool(Script().truth)], model=model)
    subject.run("the task")
    with pytest.raises(smolagents.AgentGenerationError):
        subject.run("again")
    after = {name: value for name, value in vars(model).items() if not name.startswith(("_", "method_calls"))}
    assert {name for name, value in after.items() if before.get(name) is not value} == set()
    assert len(observed.chats) == 3


def answering(messages: list[Any], **kwargs: Any) -> Any:
    """A function that can be pickled by its name."""
    return message(FINAL_CODE)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_models_are_copied_as_without_us(clone: Callable[[Any], Any], observe: Callable[..., Observed]) -> None:
    """A model with an assigned method, copied in mid-run: the copy has the method, and needs nothing of ours."""
    clones: list[Any] = []

    def run() -> None:
        model = Model(model_id="assigned")
        model.generate = answering
        check = [lambda answer, memory, agent: clones.append(clone(agent.model)) or True]
        agent(CodeAgent, Script(), model=model, final_answer_checks=check).run("the task")

    run()
    observed = observe()
    run()
    bare, copied = clones
    assert vars(bare).keys() == vars(copied).keys()
    assert copied.generate == bare.generate
    assert pickle.dumps(copied) == pickle.dumps(bare)
    copied.model_id = "the copy"
    agent(CodeAgent, Script(), model=copied).run("the task")
    assert vars(copied)["generate"] is answering
    assert [attributes(chat)[sc.REQUEST_MODEL] for chat in observed.chats] == ["assigned", "the copy"]


def test_a_pickled_method_needs_nothing_of_ours(observed: Observed) -> None:
    """What is pickled in mid-run can be read where otel_smol is not installed."""
    pickles: list[bytes] = []
    model = Model(model_id="assigned")
    model.generate = answering
    check = [lambda answer, memory, agent: pickles.append(pickle.dumps(agent.model.generate)) or True]
    agent(CodeAgent, Script(), model=model, final_answer_checks=check).run("the task")
    assert b"otel_smol" not in pickles[0]
    assert pickle.loads(pickles[0]) is answering


@each_class
def test_agents_share_a_model(cls: type, observed: Observed, warned: Warnings) -> None:
    """Two agents use one instance at once: it stays covered until the last of them ends, and not longer."""
    script = Script(*[reply for reply in step_replies(cls, 3) for _ in range(2)])
    model = assigned_functions(script)
    original = model.generate
    together = threading.Barrier(2)

    def meet(step: Any, agent: Any) -> None:
        together.wait(timeout=10)

    subjects = [agent(cls, script, model=model, step_callbacks=[meet]) for _ in range(2)]
    threads = [threading.Thread(target=subject.run, args=("the task",)) for subject in subjects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_all(observed, script.truth)
    assert model.generate is original
    assert warned.lines == []


@each_form
@each_class
def test_models_may_change_in_mid_run(cls: type, consumed: str, observed: Observed, warned: Warnings) -> None:
    """A callback assigns the model another method, then gives the agent another model, of a class nobody has seen."""
    cell = Cell(cls, consumed)
    script = Script(*cell.replies(4))
    assigned = plain(script), streamed(script)

    def change(step: Any, agent: Any) -> None:
        if step.step_number == 1:
            agent.model.generate, agent.model.generate_stream = assigned
        elif step.step_number == 2:
            agent.model = no_model(script)

    subject = cell.agent(script, step_callbacks=[change])
    model = subject.model
    assert cell.run(subject) == "done"
    check_all(observed, script.truth)
    assert (model.generate, model.generate_stream) == assigned
    assert model.generate is assigned[0]
    assert warned.lines == []


# --- calls that are not the agent's own steps ------------------------------------------------------------------------


def parent_of(observed: Observed, span: Any) -> str | None:
    """The name of a span's parent."""
    names = {other.context.span_id: other.name for other in observed.recorder.ended if other.context}
    return names[span.parent.span_id] if span.parent else None


@pytest.mark.parametrize("form", ["called", "generate", "generate_stream"])
@pytest.mark.parametrize("place", ["tool", "callback", "check", "outside"])
@each_class
def test_calls_outside_the_agents_steps(
    cls: type, place: str, form: str, observed: Observed, warned: Warnings
) -> None:
    """P01: `model(messages)` and its like within a tool, a callback, a check of the answer, and outside of any run."""
    script = Script()

    class Own(Model):  # type: ignore[misc]
        """A model that no agent has."""

        def generate(self, messages: list[Any], **kwargs: Any) -> Any:
            return message(*script.answer(messages))

        def generate_stream(self, messages: list[Any], **kwargs: Any) -> Any:
            yield from deltas(*script.answer(messages))

    own = Own(model_id="own")

    def ask(*_: Any, **__: Any) -> bool:
        prompt = [{"role": "user", "content": "a question of its own"}]
        list(own.generate_stream(prompt)) if form == "generate_stream" else getattr(own, form.replace("called", "__call__"))(prompt)
        return True

    script.replies[:] = [] if place == "outside" else step_replies(cls, 2)
    script.replies.insert({"tool": 1, "callback": 1, "check": 2, "outside": 0}[place], "an answer")
    script._next = iter(script.replies)
    tools = [make_tool(script.truth, does=ask)] if place == "tool" else None
    callbacks = [lambda step: ask() if step.step_number == 1 else None] if place == "callback" else []
    checks = [ask] if place == "check" else []
    if place == "outside":
        ask()
        [chat] = observed.chats
        assert chat.parent is None
        assert sc.RUN_ID not in attributes(chat)
    else:
        subject = agent(cls, script, tools=tools, step_callbacks=callbacks, final_answer_checks=checks)
        assert subject.run("the task") == "done"
        [chat] = [span for span in observed.chats if attributes(span)[sc.REQUEST_MODEL] == "own"]
        assert parent_of(observed, chat) == {"tool": "execute_tool search"}.get(place, f"invoke_agent {cls.__name__}")
        assert attributes(chat)[sc.RUN_ID] == observed.run[sc.RUN_ID]
        assert observed.run[sc.RUN_INPUT_TOKENS] == script.truth.input_tokens
        check_parts(observed, script.truth)
    assert attributes(chat)[sc.CALL_TYPE] == "other"
    assert len(observed.chats) == script.truth.calls
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert warned.lines == []


@each_form
@each_class
def test_types_of_calls(cls: type, consumed: str, observed: Observed) -> None:
    """Planning, action and final-answer calls are told apart, and belong to steps of these types."""
    cell = Cell(cls, consumed)
    script = Script("plan", *cell.replies(3)[:2], "the answer")
    cell.run(cell.agent(script, planning_interval=2, max_steps=2))
    check_all(observed, script.truth)
    types_of_calls = [attributes(chat)[sc.CALL_TYPE] for chat in observed.chats]
    assert types_of_calls == ["planning", "action", "action", "final_answer"]
    for chat, kind in zip(observed.chats, types_of_calls, strict=True):
        name = "plan" if kind == "planning" else "agent_step"
        assert parent_of(observed, chat) == f"{name} {cls.__name__}"


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
    steps = [attributes(step) for step in observed.steps]
    assert [step[sc.STEP_NUMBER] for step in steps] == [1, 2, 3, 4]
    assert [step[sc.STEP_TOOL_CALLS] for step in steps] == [1, 1, 1, 1]
    replayed = [step[sc.STEP_REPLAYED_TOKENS] for step in steps]
    sent = [step[sc.STEP_REPLAYED_TOKENS] + step[sc.STEP_NEW_TOKENS] for step in steps]
    assert replayed[:2] == [0, 0]
    assert all(abs(after - before) <= 2 for before, after in zip(sent, replayed[1:], strict=False))
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
    assert [parent_of(observed, chat) for chat in observed.chats] == ["agent_step Late"] * 2
    assert warned.lines == []


@each_class
def test_a_step_that_returns_nothing(cls: type, observed: Observed) -> None:
    """A `_step_stream` that returns None: the agent's own error, and no span stays open, by hand either."""
    script = Script()
    late = type("Late", (cls,), {"_step_stream": lambda self, memory_step: None})
    subject = agent(late, script)
    for act in (lambda: subject.run("the task"), lambda: by_hand(subject)):
        with pytest.raises(TypeError, match="'NoneType' object is not iterable"):
            act()
    assert observed.recorder.open == 0
    assert len(observed.steps) == 2


@each_form
@each_class
def test_own_final_answer(cls: type, consumed: str, observed: Observed) -> None:
    """A subclass with a `provide_final_answer` of its own: a step of that type, with the calls that it makes."""

    class Late(cls):  # type: ignore[misc]
        def provide_final_answer(self, task: str) -> Any:
            self.model.generate([message("summarise")])
            return super().provide_final_answer(task)

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
    shares = [attributes(step).get(sc.HISTORY_PREFIX_SHARE) for step in observed.steps]
    assert shares[1] == 1.0
    assert shares[-1] < 1.0
    assert attributes(observed.steps[-1])[sc.HISTORY_COMPACTED_TOKENS] > 0
    assert warned.lines == []


# --- tools -----------------------------------------------------------------------------------------------------------


@tool
def decorated_tool(n: int) -> str:
    """Looks something up.

    Args:
        n: a number
    """
    return f"result {n}"


class Looks(Tool):  # type: ignore[misc]
    """What the tools below have in common."""

    name = "looks"
    description = "Looks something up."
    inputs = {"n": {"type": "integer", "description": "a number"}}  # noqa: RUF012
    output_type = "string"

    def forward(self, n: int) -> str:
        return f"result {n}"


def own_call() -> Tool:
    """`__call__` without the base class's."""

    class OwnCall(Looks):
        def __call__(self, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> Any:
            return self.forward(*args, **kwargs)

    return OwnCall()


def own_call_and_super() -> Tool:
    """`__call__` that goes on to the base class's."""

    class Logged(Looks):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    class LoggedTwice(Logged):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    return LoggedTwice()


def pipeline() -> Tool:
    """As `PipelineTool`: a base class whose `__call__` runs encode, forward and decode."""

    class Pipeline(Looks):
        skip_forward_signature_validation = True

        def __call__(self, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> Any:
            return self.decode(self.forward(self.encode(*args, **kwargs)))

        def encode(self, n: int) -> int:
            return n

        def decode(self, result: str) -> str:
            return result

    return type("Speech", (Pipeline,), {"name": "speech"})()  # type: ignore[no-any-return]


def adapter() -> Tool:
    """As the tools that smolagents makes of an MCP server's: one class for each, named by the instance."""

    class MCPAdaptTool(Tool):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.name, self.description, self.inputs, self.output_type = name, "Adapted.", Looks.inputs, "string"
            self.is_initialized = True
            self.skip_forward_signature_validation = True

        def forward(self, *args: Any, **kwargs: Any) -> str:
            return f"result {args or kwargs}"

    return MCPAdaptTool("remote_search")


def base_tool() -> BaseTool:
    """Not derived from `Tool`."""

    class Bare(BaseTool):  # type: ignore[misc]
        name, description, output_type, inputs = "bare", "Bare.", "string", Looks.inputs

        def __call__(self, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> str:
            return f"result {args or kwargs}"

        def to_code_prompt(self) -> str:
            return "def bare(n: int): ..."

        def to_tool_calling_prompt(self) -> str:
            return "bare: Bare."

    return Bare()


TOOLS = (lambda: decorated_tool, own_call, own_call_and_super, pipeline, adapter, base_tool)


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
    assert parent_of(observed, run) == "execute_tool worker"


def managed_call(cls: type, *names: str) -> Reply:
    """A reply that calls managed agents."""
    if issubclass(cls, CodeAgent):
        return code("\n".join(f'print({name}(task="part of {name}"))' for name in names))
    return [(name, {"task": f"part of {name}", "additional_args": {}}) for name in names]


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
    assert [parent_of(observed, span) for span in spans] == [
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
    assert len(observed.runs) == 1 + 3 + 7 + 14 - 4  # TODO
    assert warned.lines == []
