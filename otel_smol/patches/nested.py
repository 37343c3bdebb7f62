"""Model calls within a model call: the agent sees one, and all that was used for it is that one's.

A model may delegate to others, ask several and take the best answer, or ask in threads of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from otel_smol.context import InnerUsages, Scope, attached, current_scope, in_scope
from otel_smol.guard import guarded
from otel_smol.patches.wrap import argument
from otel_smol.spans.call import CallSpan
from otel_smol.usage import UNKNOWN, StreamUsage, Usage, combine, from_message


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """A call that goes on, and with what it was made."""

    call: CallSpan
    scope: Scope
    model: Any
    messages: Any


class Around(NamedTuple):
    """The call that another one is a part of."""

    usages: InnerUsages
    """Where to note what is used within it."""
    scope: Scope
    """Of that call."""


class OpenCalls:
    """The calls of runs that go on."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []

    def around(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Around | None:
        """The model call that this one is a part of: that of the context; for a thread of the model's own, which has
        none (a time limit for each answer, say), the call that was given these very messages."""
        scope = current_scope()
        if scope.around is not None:
            return Around(scope.around, scope)
        if scope.run is None and self._asked:
            with guarded("looking for the call around a model call"):
                messages = argument(args, kwargs, 0, "messages")
                for asked in list(self._asked):
                    # A prompt of the agent's own is made for one call; any other may be a constant of the program's.
                    if (asked.call.step is not None or asked.model is model) and _same(asked.messages, messages):
                        return Around(asked.call.inner_usages, asked.scope)
        return None

    def note(self, call: CallSpan, scope: Scope, model: Any, messages: Any) -> None:
        """Note what a call of a run was given, until it ends."""
        if call.run is not None:
            asked = Asked(call, scope, model, messages)
            self._asked.append(asked)
            call.release = partial(self._asked.remove, asked)


def _same(given: Any, messages: Any) -> bool:
    """Whether these are the very same messages, in the same list or in another."""
    if given is messages:
        return given is not None
    if type(given) is not list or type(messages) is not list or not given or len(given) != len(messages):
        return False
    return all(map(operator.is_, given, messages))


class NestedStreamWatch:
    """Follows a streamed answer that a model makes on behalf of another: only its usage counts."""

    def __init__(self, around: Around, late: Callable[[Usage], None]) -> None:
        self._around, self._late = around.usages, late
        self._usage, self._inner, self._ended = StreamUsage(), InnerUsages(), False
        self.context = in_scope(current_scope()._replace(inner_usages=self._inner))

    def item(self, item: Any) -> None:
        self._usage.add(getattr(item, "token_usage", None))

    def finish(self, result: object) -> None:
        if not self._ended:
            self._ended = True
            _note(self._around, self._late, self._usage.result(), self._inner)

    def fail(self, error: BaseException) -> None:
        self.finish(None)

    def closed(self) -> None:
        self.finish(None)


def generate_nested(
    around: Around, late: Callable[[Usage], None], wrapped: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Let a model answer within another call. `late` is told what it used if that call is over by then."""
    inner, usage = InnerUsages(), UNKNOWN
    try:
        with attached(in_scope(current_scope()._replace(inner_usages=inner))):
            result = wrapped(*args, **kwargs)
        with guarded("reading an inner model's usage"):
            usage = from_message(result)
        return result
    finally:
        with guarded("noting an inner model's usage"):
            _note(around.usages, late, usage, inner)


def _note(around: InnerUsages, late: Callable[[Usage], None], usage: Usage, inner: InnerUsages) -> None:
    """Tell the call around of an inner one; where that has outlived it, it is a call of its own after all."""
    inner.end()
    used = or_inner(usage, inner)
    if not around.note(used) and used != UNKNOWN:
        late(used)


def or_inner(usage: Usage, inner: list[Usage]) -> Usage:
    """What the model reported; if those that it asked reported more, what they did together.

    All of that is billed: the best of three answers, one that came after a bad one.
    """
    if not inner:
        return usage
    asked = combine(inner)
    return asked if (asked.input_tokens or 0) > (usage.input_tokens or 0) else usage
