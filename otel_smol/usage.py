"""What the provider reported for one model call: tokens, or unknown.

smolagents' ``TokenUsage`` holds two counts, copied from the provider's response; cached and reasoning tokens are only
in the response itself (``ChatMessage.raw``). Providers disagree on whether cached tokens are part of the input. Here
they always are, as the GenAI conventions want it for ``gen_ai.usage.input_tokens``. Unknown is None, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TypeVar, cast

_T = TypeVar("_T")

# Cache fields of responses (Anthropic and LiteLLM, Bedrock), and those proposed for `TokenUsage` in smolagents PR 2120
# and 2155 (as Anthropic) and 2143 (short).
_READ_NAMES = ("cache_read_input_tokens", "cacheReadInputTokens")
_WRITE_NAMES = ("cache_creation_input_tokens", "cacheWriteInputTokens")
_OWN_READ_NAMES = ("cache_read_input_tokens", "cache_read_tokens", "cached_input_tokens")
_OWN_WRITE_NAMES = ("cache_creation_input_tokens", "cache_write_tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the provider reported for one call. None means not reported.

    Cached tokens are a part of the input and reasoning tokens a part of the output: never add them to it.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def known(self) -> bool:
        """Whether the input was reported. A call without it counts as a call without usage."""
        return self.input_tokens is not None


UNKNOWN = Usage()
"""Nothing was reported."""


def from_message(message: object) -> Usage:
    """Usage of one answer, from a smolagents ``ChatMessage`` or anything like it.

    ``token_usage`` is what the agent sees and wins over the response in ``raw``, which completes it. Where the two
    show the same input, the one is a copy of the other, and the cached tokens that the provider counts apart are added.
    Where they differ, the model counted for itself (a sum over inner calls, or already with cached tokens) and is taken
    at its word. Never raises.
    """
    own = _from_token_usage(_read(message, "token_usage"))
    raw = _read(message, "raw")
    if raw is None:
        return _usage(own.input_tokens, own.output_tokens, own.cache_read_tokens, own.cache_write_tokens, None)
    response, written = _from_response(raw)
    copied = own.input_tokens is None or own.input_tokens == written
    return _usage(
        response.input_tokens if copied else own.input_tokens,
        _first(own.output_tokens, response.output_tokens),
        _first(response.cache_read_tokens, own.cache_read_tokens),
        _first(response.cache_write_tokens, own.cache_write_tokens),
        response.reasoning_tokens,
    )


class StreamUsage:
    """Usage of one streamed answer, from the ``token_usage`` of each delta, in constant memory.

    Models report in different shapes, and nothing says in which. The input is the largest count seen: a prompt is
    sent, and billed, once, however many deltas repeat its size. The output depends on where the input stands:

    - On at most one delta (the first, the last, or none): outputs are increments and are added up.
    - On several deltas:

      - outputs never fall and rise at least once: a running total, the last one counts;
      - every output is 1: one token per delta, added up;
      - every output is the same other number: one total, repeated;
      - outputs fall somewhere: increments, added up.

    A delta without usage, or with 0/0, says nothing. Some shapes cannot be told from these and come out wrong: a count
    at the start followed by a total without input (Anthropic's own events, which no model of smolagents passes on) is
    added up, and increments that never fall, each with the input, are read as a total.
    """

    __slots__ = ("_cache_read", "_cache_write", "_falls", "_input", "_last", "_prompts", "_rises", "_sum")

    def __init__(self) -> None:
        self._input: int | None = None
        self._cache_read: int | None = None
        self._cache_write: int | None = None
        self._prompts = 0  # deltas that gave the input
        self._last: int | None = None
        self._sum = 0
        self._rises = False
        self._falls = False

    def add(self, token_usage: object) -> None:
        """Take in one delta's ``token_usage``; None if it has none. Never raises."""
        delta = _from_token_usage(token_usage)
        if delta.input_tokens is not None:
            self._prompts += 1
        self._input = _largest(self._input, delta.input_tokens)
        self._cache_read = _largest(self._cache_read, delta.cache_read_tokens)
        self._cache_write = _largest(self._cache_write, delta.cache_write_tokens)
        if delta.output_tokens is not None:
            self._add_output(delta.output_tokens)

    def result(self) -> Usage:
        """Usage of the deltas so far. Of a stream that was not read to its end: what had been reported by then."""
        return _usage(self._input, self._output(), self._cache_read, self._cache_write, None)

    def _add_output(self, tokens: int) -> None:
        if self._last is not None:
            self._rises |= tokens > self._last
            self._falls |= tokens < self._last
        self._last = tokens
        self._sum += tokens

    def _output(self) -> int | None:
        if self._last is None:
            return None
        increments = self._prompts <= 1 or self._falls or (self._last == 1 and not self._rises)
        return self._sum if increments else self._last


def combine(usages: Iterable[Usage]) -> Usage:
    """Sum of several calls that the agent sees as one, for a model that delegates to others.

    Each field is the sum of what was reported: a lower bound if some calls reported nothing, unknown if none did.
    """
    calls = tuple(usages)
    return Usage(
        input_tokens=_sum(call.input_tokens for call in calls),
        output_tokens=_sum(call.output_tokens for call in calls),
        cache_read_tokens=_sum(call.cache_read_tokens for call in calls),
        cache_write_tokens=_sum(call.cache_write_tokens for call in calls),
        reasoning_tokens=_sum(call.reasoning_tokens for call in calls),
    )


def _from_token_usage(token_usage: object) -> Usage:
    """Counts of a ``TokenUsage``. Cached tokens are left as they stand to the input."""
    input_tokens = _count(token_usage, "input_tokens") or None  # no prompt is empty: 0 stands for not reported
    output_tokens = _count(token_usage, "output_tokens")
    if input_tokens is None and not output_tokens:
        return UNKNOWN
    cache_read = _count(token_usage, *_OWN_READ_NAMES)
    cache_write = _count(token_usage, *_OWN_WRITE_NAMES)
    if not cache_read and not cache_write:
        # The proposed fields default to 0, also for providers that report no cache: nothing is said by two zeros.
        cache_read = cache_write = None
    return Usage(input_tokens, output_tokens, cache_read, cache_write)


def _from_response(raw: object) -> tuple[Usage, int | None]:
    """Usage in a provider's response, and the input as written there, which is what smolagents copies.

    The shapes, and where their cached tokens are:

    - OpenAI chat and LiteLLM: ``prompt_tokens``, cached within, in ``prompt_tokens_details`` and LiteLLM's own fields;
    - OpenAI Responses: ``input_tokens``, cached within, in ``input_tokens_details``;
    - Anthropic: ``input_tokens``, cached apart, in ``cache_read_input_tokens`` and ``cache_creation_input_tokens``;
    - Bedrock Converse: ``inputTokens``, cached apart, in ``cacheReadInputTokens`` and ``cacheWriteInputTokens``.
    """
    usage = _read(raw, "usage")
    details = _first(_read(usage, "prompt_tokens_details"), _read(usage, "input_tokens_details"))
    output_details = _first(_read(usage, "completion_tokens_details"), _read(usage, "output_tokens_details"))
    prompt = _count(usage, "prompt_tokens")
    cached = _count(details, "cached_tokens")
    within = prompt is not None or cached is not None
    written = _first(prompt, _count(usage, "input_tokens", "inputTokens"))
    read = _largest(cached, _count(usage, *_READ_NAMES))
    write = _largest(_count(details, "cache_write_tokens", "cache_creation_tokens"), _count(usage, *_WRITE_NAMES))
    return Usage(
        input_tokens=written if within or written is None else written + (read or 0) + (write or 0),
        output_tokens=_count(usage, "completion_tokens", "output_tokens", "outputTokens"),
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=_count(output_details, "reasoning_tokens"),
    ), written


def _usage(
    input_tokens: int | None,
    output_tokens: int | None,
    cache_read: int | None,
    cache_write: int | None,
    reasoning: int | None,
) -> Usage:
    """A `Usage` that keeps its promises: 0/0 is unknown, no input is 0, cached tokens are within the input."""
    if not input_tokens and not output_tokens:
        return UNKNOWN
    cached = (cache_read or 0) + (cache_write or 0)
    if input_tokens is not None and cached > input_tokens:
        input_tokens += cached  # more than the whole: they were counted apart
    return Usage(input_tokens or None, output_tokens, cache_read, cache_write, reasoning)


def _read(obj: object, name: str) -> object:
    """Attribute or item ``name``; None where there is none or reading it fails.

    The attribute first: huggingface_hub's answers are both, and as items they lack what their types do not know.
    """
    try:
        value = getattr(obj, name, None)
        if value is None and isinstance(obj, Mapping):
            value = obj.get(name)
        return value
    except Exception:  # objects of the user's own model: anything may happen
        return None


def _count(obj: object, *names: str) -> int | None:
    """The number of tokens under one of ``names``, the largest if there are several.

    Only a whole number of 0 or more is a report (numpy's are): mocks, floats, strings and booleans are not.
    """
    largest: int | None = None
    for name in names:
        value = _read(obj, name)
        if type(value) is not int:
            if type(value) is bool or not issubclass(type(value), Integral):
                continue
            value = int(cast("Integral", value))
        if value >= (largest or 0):
            largest = value
    return largest


def _first(one: _T | None, other: _T | None) -> _T | None:
    return other if one is None else one


def _largest(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
