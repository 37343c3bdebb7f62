"""Below a model call: the client libraries' own instrumentations, which step aside or hand over what they have seen."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from opentelemetry.context import Context, get_current, set_value
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.util.genai.invocation import CLIENT_INFERENCE_CONTEXT_KEY, InferenceData

from otel_smol.context import Scope
from otel_smol.usage import Usage, combine

SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION = "suppress_language_model_instrumentation"
"""The key by which Traceloop's client instrumentations step aside for an outer one."""

_MADE_ANEW = [(each.name, each.default_factory) for each in fields(InferenceData) if callable(each.default_factory)]


class Below(InferenceData):
    """What client instrumentations have seen of the requests of one call: they hand it over and make no span.

    util-genai keeps the last request only; a model that reports no usage itself may have made several. Two layers may
    report one and the same, so only answers with ids of their own add up.
    """

    def __init__(self) -> None:
        for name, make in _MADE_ANEW:  # all other fields are what the class says: forty assignments less for each call
            setattr(self, name, make())
        self._usages: dict[str | None, Usage] = {}

    @property
    def saw_something(self) -> bool:
        """Whether any request was handed over."""
        return bool(self._usages)

    def merge(self, other: Any, *, overwrite: bool = True) -> None:
        """Take in one request."""
        super().merge(other, overwrite=overwrite)
        self._usages[other.response_id] = Usage(
            other.usage_input_tokens or None,
            other.usage_output_tokens,
            other.usage_cache_read_input_tokens,
            other.usage_cache_write_input_tokens,
            other.usage_reasoning_output_tokens,
        )

    def usage(self) -> Usage:
        """Of all requests."""
        return combine(self._usages.values())


def without_ended_call(context: Context, scope: Scope) -> Context:
    """The context, but not of a call that is over: what is asked now is no part of it."""
    if scope.inner_usages is None or not scope.inner_usages.over:
        return context
    return set_value(CLIENT_INFERENCE_CONTEXT_KEY, None, context)


def client_context(suppress_all: bool) -> Context:
    """Ours is the one chat span of this call: tell the client libraries' instrumentations, in their own words.

    `suppress_all` also silences HTTP spans below; it is for clients whose instrumentation knows no other word.
    """
    if not suppress_all:
        return set_value(SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION, True)
    with suppress_instrumentation():
        return set_value(SUPPRESS_LANGUAGE_MODEL_INSTRUMENTATION, True, get_current())
