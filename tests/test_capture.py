"""Model calls: every call of an agent is seen, once, whoever wrote the model and however it is called (P01 to P07)."""

from __future__ import annotations

import copy
import pickle
import threading
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest
import smolagents
from smolagents import CodeAgent, Model

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings, attributes
from tests.kinds import (
    MODELS,
    Delegating,
    assigned_functions,
    assigned_lambdas,
    assigned_mocks,
    delegating,
    made_up,
    made_up_of_a_dict,
    method,
    mocked,
    no_model,
    plain,
    streamed,
)
from tests.programs import PATIENCE
from tests.rules import USAGE, check_all, check_parts, totals
from tests.scripted import (
    FINAL_CODE,
    VERSION,
    Cell,
    Script,
    ScriptedModel,
    agent,
    deltas,
    each_class,
    each_form,
    make_tool,
    memory,
    message,
    step_replies,
)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("consumed", ["plain", "stream_outputs"])
@each_class
def test_every_kind_of_model(
    cls: type, consumed: str, model: Callable[[Script], Any], observed: Observed, warned: Warnings
) -> None:
    """P01, P02, P04: one span and one record of tokens for each call of the agent; the agent does as without us."""
    if model is delegating and VERSION < (1, 21):
        pytest.skip("this smolagents fails on a plan without usage")
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


@pytest.mark.parametrize(
    "build", [assigned_functions, assigned_mocks, assigned_lambdas, made_up, made_up_of_a_dict, mocked]
)
@each_class
def test_an_instance_is_left_as_it_was(
    cls: type, build: Callable[[Script], Any], observed: Observed, warned: Warnings
) -> None:
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
    assert len(warned.lines) == (build is made_up_of_a_dict)  # of which no more can be read


def answering(messages: list[Any], **kwargs: Any) -> Any:
    """A function that can be pickled by its name."""
    return message(FINAL_CODE)


def in_mid_run(act: Callable[[Any], Any]) -> Any:
    """What comes of doing something with a model that has an assigned method, while an agent runs with it."""
    done: list[Any] = []

    def check(*_: Any, **__: Any) -> bool:
        done.append(act(model))
        return True

    model = Model(model_id="assigned")
    model.generate = answering
    agent(CodeAgent, Script(), model=model, final_answer_checks=[check]).run("the task")
    return done[0]


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_models_are_copied_as_without_us(clone: Callable[[Any], Any], observe: Callable[..., Observed]) -> None:
    """A model with an assigned method, copied in mid-run: the copy has the method, and needs nothing of ours."""
    bare = in_mid_run(clone)
    observed = observe()
    copied = in_mid_run(clone)
    assert vars(bare).keys() == vars(copied).keys()
    assert copied.generate == bare.generate
    assert vars(pickle.loads(pickle.dumps(copied)))["generate"] is answering
    copied.model_id = "the copy"
    agent(CodeAgent, Script(), model=copied).run("the task")
    assert vars(copied)["generate"] is answering
    assert [attributes(chat)[sc.REQUEST_MODEL] for chat in observed.chats] == ["assigned", "the copy"]


def test_a_pickled_method_needs_nothing_of_ours(observed: Observed) -> None:
    """What is pickled in mid-run can be read where otel_smol is not installed."""
    pickled = in_mid_run(lambda model: pickle.dumps(model.generate))
    assert b"otel_smol" not in pickled
    assert pickle.loads(pickled) is answering


@each_class
def test_agents_share_a_model(cls: type, observed: Observed, warned: Warnings) -> None:
    """Two agents use one instance at once: it stays covered until the last of them ends, and not longer."""
    script = Script(*[reply for reply in step_replies(cls, 3) for _ in range(2)])
    model = assigned_functions(script)
    original = model.generate
    together = threading.Barrier(2)

    def meet(step: Any, agent: Any) -> None:
        together.wait(PATIENCE)

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


@each_class
def test_a_class_may_change_between_runs(cls: type, observed: Observed, warned: Warnings) -> None:
    """As test suites do it: a method of a class that has been seen is replaced for a while. All calls are seen."""
    script = Script(*step_replies(cls, 2) * 3)
    late = type("Late", (Model,), {"generate": method(plain(script))})
    original = vars(late)["generate"]
    subject = agent(cls, script, model=late(model_id="late"))
    subject.run("the task")
    with unittest.mock.patch.object(late, "generate", method(plain(script))):
        subject.run("the task")
    subject.run("the task")
    check_all(observed, script.truth)
    assert len(observed.chats) == 6
    SmolagentsInstrumentor().uninstrument()
    assert vars(late)["generate"] is original
    assert warned.lines == []


# --- calls that are not the agent's own steps ------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["called", "generate", "generate_stream"])
@pytest.mark.parametrize("place", ["tool", "callback", "check", "outside"])
@each_class
def test_calls_outside_the_agents_steps(cls: type, place: str, form: str, observed: Observed, warned: Warnings) -> None:
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
        if form == "called":
            own(prompt)
        elif form == "generate":
            own.generate(prompt)
        else:
            list(own.generate_stream(prompt))
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
        assert observed.parent(chat) == {"tool": "execute_tool search"}.get(place, f"invoke_agent {cls.__name__}")
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
        assert observed.parent(chat) == f"{name} {cls.__name__}"
