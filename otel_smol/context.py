"""Where in a run the current code is. Kept in the OpenTelemetry context, never on an agent.

Agents are shared between threads, copied, pickled and called from generated code; the context follows the call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.context import Context, attach, create_key, detach, get_current, get_value, set_value

if TYPE_CHECKING:
    from otel_smol.spans.owner import Owner
    from otel_smol.spans.step import StepSpan
    from otel_smol.usage import Usage

_SCOPE = create_key("otel_smol.scope")
_CONVERSATION = create_key("otel_smol.conversation")


_lock = threading.Lock()


class InnerUsages(list["Usage"]):
    """What models used that were asked inside one call. It notes when the call is over: a thread that was started in it
    may keep its context for ever."""

    over = False

    def note(self, usage: Usage) -> bool:
        """Add what one of them used. False if the call is over, and has been counted without."""
        with _lock:
            if not self.over:
                self.append(usage)
            return not self.over

    def end(self) -> None:
        """The call is over."""
        with _lock:
            self.over = True


class Scope(NamedTuple):
    """The run, step, tool and model call that the current code belongs to, where there are such."""

    run: Owner | None = None
    step: StepSpan | None = None
    tool: object | None = None
    """The tool (or managed agent) whose call is going on."""
    inner_usages: InnerUsages | None = None
    """Inside a model call: where other models that it calls note what they used. The agent sees one call, whatever
    goes on in it."""

    @property
    def own_step(self) -> StepSpan | None:
        """The step that does this itself: what a tool does within it is the tool's."""
        return self.step if self.tool is None else None

    @property
    def around(self) -> InnerUsages | None:
        """`inner_usages`, if that call still goes on."""
        inner = self.inner_usages
        return None if inner is None or inner.over else inner


_NOWHERE = Scope()


def current_scope() -> Scope:
    """The scope of the current context."""
    scope = get_value(_SCOPE)
    return scope if isinstance(scope, Scope) else _NOWHERE


def in_scope(scope: Scope, context: Context | None = None) -> Context:
    """A context like the given one (default: the current one) with this scope."""
    return set_value(_SCOPE, scope, context)


class attached:
    """Make a context current inside the block. Never hold it across a `yield` to the user's code.

    Code inside may go back to a context of before the block, as one does that detaches at the end of a generator what
    it has attached before the start. That context then stays, as it would without us.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        self._token = attach(self._context)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._token is None:
            return
        now = get_current()
        if now is self._context or get_value(_SCOPE, now) is get_value(_SCOPE, self._context):
            detach(self._token)


@contextmanager
def conversation(conversation_id: str) -> Iterator[None]:
    """Name the conversation that the runs inside the block belong to: `gen_ai.conversation.id` on their spans.

    The convention forbids made-up ids there, so without this the attribute is absent.
    """
    with attached(set_value(_CONVERSATION, conversation_id)):
        yield


def current_conversation() -> str | None:
    """The id given by `conversation`, if any."""
    value = get_value(_CONVERSATION)
    return value if isinstance(value, str) else None
