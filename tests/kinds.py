"""Kinds of models and tools, as users write them: each is made when asked for, so some classes exist only then."""

from __future__ import annotations

import functools
import inspect
import queue
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import MagicMock

import smolagents
from smolagents import Model, Tool, tool

from tests.scripted import VERSION, Script, ScriptedModel, deltas, message

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


def _pumped(items: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Items that a thread without the caller's context makes."""
    passed: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def pump() -> None:
        for item in items():
            passed.put(item)
        passed.put(None)

    threading.Thread(target=pump).start()
    yield from iter(passed.get, None)


def time_limited(script: Script) -> Any:
    """P01: answers in a thread of its own, as for a time limit per answer; such a thread has no context."""

    class TimeLimited(ScriptedModel):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(super().generate, *args, **kwargs).result()

        def generate_stream(self, *args: Any, **kwargs: Any) -> Any:
            yield from _pumped(partial(super().generate_stream, *args, **kwargs))

    return TimeLimited(script)


def delegating_to_a_thread(script: Script) -> Any:
    """P01: the same with another model in the thread, and the messages in a list of its own."""
    inner = ScriptedModel(script)

    class Delegating(Model):  # type: ignore[misc]
        def generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(inner.generate, list(messages), *args, **kwargs).result()

        def generate_stream(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
            yield from _pumped(partial(inner.generate_stream, list(messages), *args, **kwargs))

    return Delegating(model_id="delegating")


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


def made_up_of_a_dict(script: Script) -> Any:
    """Its `__getattr__` knows `generate` alone, and raises what it should not for anything else."""

    class OfADict:
        def __init__(self) -> None:
            self.methods = {"generate": plain(script), "model_id": "of a dict", "__deepcopy__": None}

        def __getattr__(self, name: str) -> Any:
            return self.__dict__["methods"][name]

    return OfADict()


def mocked(script: Script) -> Any:
    """What test suites use."""
    model = MagicMock()
    model.generate.side_effect = plain(script)
    model.generate_stream.side_effect = streamed(script)
    return model


def assigned(generate: Callable[..., Any], generate_stream: Callable[..., Any]) -> Any:
    """A model whose instance has methods of its own."""
    model: Any = ScriptedModel(Script())
    model.generate, model.generate_stream = generate, generate_stream
    return model


def assigned_functions(script: Script) -> Any:
    """Plain functions."""
    return assigned(plain(script), streamed(script))


def assigned_mocks(script: Script) -> Any:
    """As `unittest.mock.patch.object` does it."""
    return assigned(MagicMock(side_effect=plain(script)), MagicMock(side_effect=streamed(script)))


def assigned_lambdas(script: Script) -> Any:
    """Going on to a method of another object."""
    other = NoModel(script)
    return assigned(
        lambda messages, **kwargs: other.generate(messages), lambda messages, **kwargs: other.generate_stream(messages)
    )


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
            def generate_stream(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
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
    time_limited,
    delegating_to_a_thread,
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


# --- tools -----------------------------------------------------------------------------------------------------------


@tool  # type: ignore[untyped-decorator]
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

    class Speech(Pipeline):
        name = "speech"

    return Speech()


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


def base_tool() -> Any:
    """Not derived from `Tool`."""

    class Bare(smolagents.tools.BaseTool):  # type: ignore[misc]
        name, description, output_type, inputs = "bare", "Bare.", "string", Looks.inputs

        def __call__(self, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> str:
            return f"result {args or kwargs}"

        def to_code_prompt(self) -> str:
            return "def bare(n: int): ..."

        def to_tool_calling_prompt(self) -> str:
            return "bare: Bare."

    return Bare()


TOOLS: tuple[Callable[[], Any], ...] = (lambda: decorated_tool, own_call, own_call_and_super, pipeline, adapter)
if VERSION >= (1, 21):
    TOOLS = (*TOOLS, base_tool)
