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

    for cls in (One, Two, Three):  # each is used by some agent, so each is patched
        SmolagentsInstrumentor._patches and SmolagentsInstrumentor._patches.models.observe_class(cls)
    return Three(script)


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
