"""Switching on and off: `uninstrument()` leaves nothing behind, whoever else has wrapped what we have (P04)."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
import unittest.mock
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import smolagents
import wrapt
from smolagents import CodeAgent
from smolagents.memory import ActionStep

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings
from tests.kinds import Looks, assigned_functions, mocked, own_call_and_super
from tests.rules import USAGE, check_all, totals
from tests.scripted import (
    AGENT_CLASSES,
    Cell,
    Script,
    ScriptedModel,
    agent,
    each_class,
    each_form,
    make_tool,
    memory,
    step_replies,
)

FAMILIES = ("smolagents", "tests", "unittest.mock")


def everything() -> dict[tuple[str, str], object]:
    """Every attribute of every module of smolagents' and of every class in it, of our models, tools and of mocks."""
    names = [info.name for info in pkgutil.iter_modules(smolagents.__path__, "smolagents.")]
    for name in (*names, "smolagents.prompts"):  # the last is a folder of YAML, imported when the first agent is made
        with suppress(ImportError):  # what needs packages that are not here
            importlib.import_module(name)
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "smolagents"]
    found = {(module.__name__, name): value for module in modules for name, value in vars(module).items()}
    classes = {cls for cls in found.values() if isinstance(cls, type) and cls.__module__.startswith(FAMILIES)}
    for cls in (*classes, ScriptedModel, Looks, unittest.mock.CallableMixin):
        found |= {(f"{cls.__module__}.{cls.__qualname__}", name): value for name, value in vars(cls).items()}
    return found


def changed(before: dict[tuple[str, str], object]) -> set[tuple[str, str]]:
    """What is no longer the very same object."""
    after = everything()
    return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}


def test_uninstrument_restores_everything(observe: Callable[..., Observed], warned: Warnings) -> None:
    """P04: after `uninstrument()` every attribute of smolagents is the very same object as before."""

    class Alias(ScriptedModel):
        generate = ScriptedModel.generate

    before, alias = everything(), dict(vars(Alias))
    observe()
    for cls in AGENT_CLASSES:
        script = Script(*step_replies(cls, 2), *step_replies(cls, 2))
        agent(cls, script, model=Alias(script), tools=[own_call_and_super(), make_tool(script.truth)]).run("the task")
        agent(cls, script, model=mocked(script)).run("the task")
    assert len(changed(before)) > 20
    SmolagentsInstrumentor().uninstrument()
    assert changed(before) == set()
    assert dict(vars(Alias)) == alias
    assert warned.lines == []


def test_instrument_twice(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    """P04: a second `instrument()` changes nothing; one `uninstrument()` is enough."""
    observed.instrument()
    script = Script(*step_replies(CodeAgent, 2))
    agent(CodeAgent, script).run("the task")
    assert isinstance(vars(smolagents.MultiStepAgent)["run"], wrapt.BaseObjectProxy)
    check_all(observed, script.truth)
    SmolagentsInstrumentor().uninstrument()
    assert not isinstance(vars(smolagents.MultiStepAgent)["run"], wrapt.BaseObjectProxy)
    assert not isinstance(vars(ScriptedModel)["generate"], wrapt.BaseObjectProxy)


def wrapped_by_wrapt(monkeypatch: pytest.MonkeyPatch, cls: Any, name: str) -> Any:
    """A stranger's wrapper, as other instrumentations put it on."""
    wrapper = wrapt.FunctionWrapper(vars(cls)[name], lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))
    monkeypatch.setattr(cls, name, wrapper)
    return wrapper


def wrapped_by_closure(monkeypatch: pytest.MonkeyPatch, cls: Any, name: str) -> Any:
    """A stranger's wrapper, as users write it."""
    inner = vars(cls)[name]

    @functools.wraps(inner)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return inner.__get__(self)(*args, **kwargs)

    monkeypatch.setattr(cls, name, wrapper)
    return wrapper


@pytest.mark.parametrize("stranger", [wrapped_by_wrapt, wrapped_by_closure])
@each_class
def test_a_stranger_on_top(
    cls: type, stranger: Callable[..., Any], observe: Callable[..., Observed], warned: Warnings, monkeypatch: Any
) -> None:
    """Somebody else wraps over us: all is seen while we are on, nothing when we are off, and again when we are on."""
    original, to_messages = vars(smolagents.MultiStepAgent)["run"], vars(ActionStep)["to_messages"]
    first = observe()
    wrapper = stranger(monkeypatch, smolagents.MultiStepAgent, "run")
    stranger(monkeypatch, ScriptedModel, "generate")
    of_steps = stranger(monkeypatch, ActionStep, "to_messages")

    def run() -> Script:
        script = Script(*step_replies(cls, 2))
        assert agent(cls, script).run("the task") == "done"
        return script

    check_all(first, run().truth)
    SmolagentsInstrumentor().uninstrument()
    assert vars(smolagents.MultiStepAgent)["run"] is wrapper
    seen = len(first.spans)
    run()
    assert len(first.spans) == seen
    if stranger is wrapped_by_wrapt:
        assert wrapper.__wrapped__ is original
        assert of_steps.__wrapped__ is to_messages
    second = observe()
    check_all(second, run().truth)
    assert len(first.spans) == seen
    lines = [line for line in warned.lines if "instrumented by" not in line]  # that somebody is there is said once
    assert lines == []


@each_form
@each_class
def test_uninstrument_in_mid_run(cls: type, consumed: str, observed: Observed, warned: Warnings) -> None:
    """Switched off by a callback: the agent goes on, what was seen until then is there, and nothing stays behind."""
    cell = Cell(cls, consumed)

    def run(script: Script, *, stop: bool) -> Any:
        def off(step: Any) -> None:
            if stop and step.step_number == 2:
                SmolagentsInstrumentor().uninstrument()

        model = assigned_functions(script)
        methods = model.generate, model.generate_stream
        subject = cell.agent(script, model=model, step_callbacks=[off])
        result = cell.run(subject), memory(subject)
        assert (model.generate, model.generate_stream) == methods
        assert not isinstance(model.generate, wrapt.ObjectProxy)
        return result

    result = run(Script(*cell.replies(4)), stop=True)
    assert observed.run[sc.RUN_STATE] == "abandoned"
    assert (len(observed.steps), len(observed.chats)) == (2, 2)
    assert observed.run[sc.RUN_INPUT_TOKENS] == totals(observed.chats, *USAGE)[0]
    assert observed.recorder.open == 0
    assert warned.lines == []
    assert result == run(Script(*cell.replies(4)), stop=False)
