"""Model calls, caught where the agent makes them: one span for each, whatever the model does inside.

Classes are patched when a model of them turns up, so models that are defined later, or that are no `Model` at all,
are seen too. What is assigned to an instance, or made up by its `__getattr__`, is covered on the instance while a run
uses it.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import wrapt

from otel_smol import content
from otel_smol.context import Scope, attached, current_scope, in_scope
from otel_smol.garbage import is_collected
from otel_smol.guard import guarded
from otel_smol.patches.exchange import set_request, set_response
from otel_smol.patches.generator import follow
from otel_smol.patches.nested import Around, NestedStreamWatch, OpenCalls, generate_nested, or_inner
from otel_smol.patches.prompt import Prompt, is_the_agents_own, schema_characters
from otel_smol.patches.wrap import Wrapper, Wraps, argument, definer
from otel_smol.provider import ModelFacts, describe_model
from otel_smol.spans.call import CallSpan
from otel_smol.spans.run import RunSpan
from otel_smol.usage import UNKNOWN, StreamUsage, Usage, combine, from_message
from otel_smol.weak import WeakIdMap

if TYPE_CHECKING:
    from otel_smol.patches import Patches

PLAIN, STREAMED = "generate", "generate_stream"


class Models:
    """Wraps model classes and instances."""

    def __init__(self, patches: Patches, wraps: Wraps) -> None:
        self._patches, self._wraps = patches, wraps
        self._plain, self._streamed = generate(patches), generate_stream(patches)
        self._facts: WeakIdMap[tuple[Any, ModelFacts, bool]] = WeakIdMap()
        self._held: dict[int, int] = {}
        self.open_calls = OpenCalls()
        self._lock = threading.Lock()

    def observe_class(self, cls: type) -> None:
        """Wrap the methods of a model class where they are defined."""
        self._wraps.wrap_definer(cls, PLAIN, self._plain)
        self._wraps.wrap_definer(cls, STREAMED, self._streamed)
        called = definer(cls, "__call__")
        if called is not None and not called.__module__.startswith("smolagents."):  # smolagents' goes to `generate`
            self._wraps.wrap_definer(cls, "__call__", self._plain)

    def hold(self, model: Any) -> Callable[[], None]:
        """Cover what only the instance has, until the returned function is called."""
        with guarded("observing a model"):
            self.observe_class(type(model))
        with self._lock:
            self._held[id(model)] = self._held.get(id(model), 0) + 1
            with guarded("observing a model's own attributes"):
                self._cover(model)  # again, if it is held already: it may have been given another method since
        return partial(self._release, model)

    def made(self, wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wrap `Model.__init__`: a model that no agent has, as a tool's own, is first seen when it is made."""
        if not is_collected():
            with guarded("observing a model"):
                self.observe_class(type(model))
        return wrapped(*args, **kwargs)

    def facts(self, model: Any) -> tuple[ModelFacts, bool]:
        """What spans say of a model, and whether all below it is to be silent; read again when its id has changed."""
        model_id = getattr(model, "model_id", None)
        known = self._facts.get(model)
        if known is None or known[0] != model_id:
            facts = describe_model(model)
            known = model_id, facts, facts.provider == "aws.bedrock" or _needs_silence(model)
            with suppress(TypeError):  # no weak references to it: read again at the next call
                self._facts.set(model, known)
        return known[1:]

    def _cover(self, model: Any) -> None:
        own = getattr(model, "__dict__", None)
        if not isinstance(own, dict):
            return
        for name, wrapper in ((PLAIN, self._plain), (STREAMED, self._streamed)):
            cover = own.get(name)
            if type(cover) is _Cover and cover.model is model:
                continue
            _uncover(own, name)  # came along when another model was copied
            if name in own:
                method = own[name]
            elif definer(type(model), name) is None:
                method = _made_up(model, name)
            else:
                continue
            if callable(method):
                own[name] = _Cover(method, wrapper, model, name in own)

    def _release(self, model: Any) -> None:
        with self._lock:
            self._held[id(model)] -= 1
            if self._held[id(model)]:
                return
            del self._held[id(model)]
            own = getattr(model, "__dict__", {})
            for name in (PLAIN, STREAMED):
                _uncover(own, name)


def model_of(agent: Any) -> Any:
    """An agent's model; None where a property makes it up: to read it may change what the agent gets next."""
    return None if isinstance(getattr(type(agent), "model", None), property) else agent.model


def _uncover(own: dict[str, Any], name: str) -> None:
    cover = own.get(name)
    if type(cover) is not _Cover:
        return
    if cover.was_there:
        own[name] = cover.__wrapped__
    else:
        del own[name]


def _made_up(model: Any, name: str) -> Any:
    """What a model's `__getattr__` has to offer, if anything."""
    try:
        return getattr(model, name, None)
    except Exception:  # if the agent asks for it too, it meets this by itself
        return None


class _Cover(wrapt.ObjectProxy[Any]):
    """An instance's own method while a run uses it. It copies and pickles as what it covers."""

    def __init__(self, method: Any, wrapper: Wrapper, model: Any, was_there: bool) -> None:
        super().__init__(method)
        self._self_wrapper, self._self_model, self._self_was_there = wrapper, model, was_there

    @property
    def model(self) -> Any:
        """Whose method it is."""
        return self._self_model

    @property
    def was_there(self) -> bool:
        """Whether the instance had the method in its own `__dict__`."""
        return bool(self._self_was_there)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_wrapper(self.__wrapped__, self._self_model, args, kwargs)

    def __copy__(self) -> Any:
        return self.__wrapped__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from copy import deepcopy

        return deepcopy(self.__wrapped__, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return operator.getitem, ((self.__wrapped__,), 0)  # nothing of ours, so it can be read without us


def generate(patches: Patches) -> Wrapper:
    """Wrap a method that answers with a message."""

    def wrapper(wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        around = patches.models.open_calls.around(model, args, kwargs)
        if around is not None:  # even where the call around this one has silenced all instrumentations
            return generate_nested(around, partial(_late, patches, around, model, args, kwargs), wrapped, args, kwargs)
        if not patches.active:
            return wrapped(*args, **kwargs)
        call: CallSpan | None = None
        with guarded("starting a model call"):
            call = begin_call(patches, model, args, kwargs)
        if call is None:
            return wrapped(*args, **kwargs)
        try:
            with attached(call.context):
                result = wrapped(*args, **kwargs)
        except BaseException as error:
            usage = UNKNOWN
            call.inner_usages.end()
            with guarded("reading an inner model's usage"):
                usage = combine(call.inner_usages)
            with guarded("ending a model call that failed"):
                call.finish(usage, error, answered=False)
            raise
        usage = UNKNOWN
        call.inner_usages.end()
        try:
            with guarded("reading a model's answer"):
                usage = _read_answer(call, result)
        finally:  # an interrupt may come at any moment
            with guarded("ending a model call"):
                call.finish(usage, answered=True)
        return result

    return wrapper


def generate_stream(patches: Patches) -> Wrapper:
    """Wrap a method that answers with deltas."""

    def wrapper(wrapped: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if current_scope().around is None and not patches.active:
            return wrapped(*args, **kwargs)
        return follow(wrapped, args, kwargs, partial(_watch_stream, patches, model, args, kwargs))

    return wrapper


class StreamWatch:
    """Follows one streamed answer."""

    def __init__(self, call: CallSpan) -> None:
        self._call, self._usage, self._text = call, StreamUsage(), content.StreamedText()
        self.context = call.context
        call.streamed(self.closed)

    def item(self, item: Any) -> None:
        self._call.chunk()
        self._usage.add(getattr(item, "token_usage", None))
        if self._call.telemetry.captures_content:
            self._text.add(item)

    def finish(self, result: object) -> None:
        self._end(None, answered=True)

    def fail(self, error: BaseException) -> None:
        with guarded("reading a streamed usage"):
            self._call.partial = self._usage.result() != UNKNOWN
        self._end(error, answered=False)

    def closed(self) -> None:
        self._call.partial = True
        self._end(None, answered=True)

    def _end(self, error: BaseException | None, *, answered: bool) -> None:
        if self._call.telemetry.captures_content:
            with guarded("capturing a streamed answer"):
                self._call.invocation.output_messages = self._text.messages()
        usage = UNKNOWN
        self._call.inner_usages.end()
        with guarded("reading a streamed usage"):
            usage = or_inner(self._usage.result(), self._call.inner_usages)
        self._call.finish(usage, error, answered=answered)


def begin_call(patches: Patches, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSpan:
    """Start the span of a call and size up its prompt."""
    patches.look_around()
    scope, messages = current_scope(), argument(args, kwargs, 0, "messages")
    facts, silence, step = ModelFacts(), False, scope.own_step
    with guarded("reading a model"):
        facts, silence = patches.models.facts(model)
    with guarded("comparing a prompt with the memory"):
        step = step if step is not None and is_the_agents_own(messages, step) else None
    call = CallSpan(patches.telemetry, facts, scope, step, suppress_all=silence)
    try:
        with guarded("noting what a model was asked"):
            patches.models.open_calls.note(call, scope, model, messages)
        with guarded("reading a prompt"):
            _read_prompt(patches, call, messages, argument(args, kwargs, 3, "tools_to_call_from"))
        with guarded("reading request parameters"):
            set_request(call.invocation, model, args, kwargs)
    except BaseException as error:
        call.finish(UNKNOWN, error, answered=False)
        raise
    return call


def _read_prompt(patches: Patches, call: CallSpan, messages: Any, tools: Any) -> None:
    if isinstance(messages, Iterator) or isinstance(tools, Iterator):
        return  # it can be read once, and that is for the model to do: the call goes without sizes
    prompt = Prompt(messages or (), call.facts.type, call.step, patches.memory_steps)
    schemas = schema_characters(call.run, tools, patches.tool_schema)
    call.ledger.measure(call.facts, prompt.bodies, prompt.describe, schemas)
    if patches.telemetry.captures_content:
        content.set_prompt(call, prompt.messages, tools, full=patches.config.full_input_messages)


def _needs_silence(model: Any) -> bool:
    """Whether an instrumentation below writes `gen_ai.usage.*` too and steps aside for nothing but a general order.

    So it is with all for Bedrock but the official one, and with OpenInference's when told to write that attribute.
    """
    if os.environ.get("OPENINFERENCE_ENABLE_GENAI_SEMCONV", "").lower() == "true":
        return True
    own = getattr(model, "__dict__", None)
    if not isinstance(own, dict):
        return False
    return any(type(value).__name__ == "BedrockRuntime" for value in own.values())  # boto3 makes up its classes


def _read_answer(call: CallSpan, result: Any) -> Usage:
    with guarded("reading a model's response"):
        set_response(call.invocation, result)
    if call.telemetry.captures_content:
        with guarded("capturing a model's answer"):
            call.invocation.output_messages = content.output_messages(result)
    return or_inner(from_message(result), call.inner_usages)


def _watch_stream(
    patches: Patches, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> StreamWatch | NestedStreamWatch | None:
    around = patches.models.open_calls.around(model, args, kwargs)
    if around is not None:
        return NestedStreamWatch(around, partial(_late, patches, around, model, args, kwargs))
    if not patches.active:
        return None
    call = begin_call(patches, model, args, kwargs)
    try:
        return StreamWatch(call)
    except BaseException:
        call.finish(UNKNOWN, answered=True)
        raise


def _late(
    patches: Patches, around: Around, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], usage: Usage
) -> None:
    """A time limit has run out, or another answer came first: what was used for this one is billed all the same."""
    run = around.scope.run
    over = isinstance(run, RunSpan) and run.finished
    scope = Scope(None if over else run, inner_usages=around.usages)
    with attached(in_scope(scope)):
        if patches.active:
            begin_call(patches, model, args, kwargs).finish(usage, answered=True)
