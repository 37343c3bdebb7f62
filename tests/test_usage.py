"""What the provider reported: one answer, a stream, several calls seen as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import accumulate, zip_longest
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_smol.usage import UNKNOWN, StreamUsage, Usage, combine, from_message

# smolagents' own classes; it ships no types.
ChatMessage: Any = import_module("smolagents.models").ChatMessage
TokenUsage: Any = import_module("smolagents.monitoring").TokenUsage

tokens = st.integers(min_value=1, max_value=10**7)
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**6),
    st.floats(allow_nan=True),
    st.text(max_size=3),
    st.binary(max_size=3),
)


def message(token_usage: object = None, raw: object = None) -> object:
    return ChatMessage(role="assistant", content="done", token_usage=token_usage, raw=raw)


def as_dicts(shape: dict[str, Any]) -> Any:
    return shape


def as_objects(shape: dict[str, Any]) -> Any:
    return SimpleNamespace(**{k: as_objects(v) if isinstance(v, dict) else v for k, v in shape.items()})


def stream(deltas: Iterable[object]) -> Usage:
    usage = StreamUsage()
    for delta in deltas:
        usage.add(delta)
    return usage.result()


def pairs(counts: Iterable[tuple[int, int]]) -> Usage:
    return stream(TokenUsage(input_tokens, output_tokens) for input_tokens, output_tokens in counts)


OPENAI_CHAT = {
    "usage": {
        "prompt_tokens": 1000,
        "completion_tokens": 1970,
        "prompt_tokens_details": {"cached_tokens": 800},
        "completion_tokens_details": {"reasoning_tokens": 956},
    }
}
OPENAI_RESPONSES = {
    "usage": {
        "input_tokens": 1000,
        "output_tokens": 1970,
        "input_tokens_details": {"cached_tokens": 800},
        "output_tokens_details": {"reasoning_tokens": 956},
    }
}
LITELLM = {
    "usage": {
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 800},
        "cache_read_input_tokens": 800,
        "cache_creation_input_tokens": 150,
    }
}
ANTHROPIC = {
    "usage": {
        "input_tokens": 50,
        "output_tokens": 50,
        "cache_read_input_tokens": 800,
        "cache_creation_input_tokens": 150,
    }
}
BEDROCK = {
    "usage": {"inputTokens": 50, "outputTokens": 50, "cacheReadInputTokens": 800, "cacheWriteInputTokens": 150},
    "output": {"message": {}},
}
SHAPES = [
    pytest.param(OPENAI_CHAT, 1000, Usage(1000, 1970, 800, None, 956), id="openai-chat"),
    pytest.param(OPENAI_RESPONSES, 1000, Usage(1000, 1970, 800, None, 956), id="openai-responses"),
    pytest.param(LITELLM, 1000, Usage(1000, 50, 800, 150), id="litellm"),
    pytest.param(ANTHROPIC, 50, Usage(1000, 50, 800, 150), id="anthropic"),
    pytest.param(BEDROCK, 50, Usage(1000, 50, 800, 150), id="bedrock"),
]


# --- one answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [as_dicts, as_objects])
@pytest.mark.parametrize(("shape", "copied", "expected"), SHAPES)
def test_cached_tokens_come_from_the_response(
    shape: dict[str, Any], copied: int, expected: Usage, build: Callable[[dict[str, Any]], Any]
) -> None:
    """P37: every provider's usage comes out alike, cached tokens within the input, from objects and from dicts."""
    raw = build(shape)
    assert expected.output_tokens is not None
    assert from_message(message(TokenUsage(copied, expected.output_tokens), raw)) == expected
    assert from_message(message(None, raw)) == expected


def test_cache_is_absent_without_a_response() -> None:
    """P37: without a raw response the cached tokens are unknown, not 0."""
    assert from_message(message(TokenUsage(100, 5))) == Usage(100, 5)


def test_a_reported_zero_stays_zero() -> None:
    """P37: a response that reports no cached tokens says 0, and no output says 0."""
    shape = {"usage": {"prompt_tokens": 9, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}}
    assert from_message(message(TokenUsage(9, 0), shape)) == Usage(9, 0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_read_input_tokens": 80, "cache_creation_input_tokens": 15},
        {"cache_read_tokens": 80, "cache_write_tokens": 15},
        {"cached_input_tokens": 80, "cache_write_tokens": 15},
    ],
)
def test_future_token_usage_fields(fields: dict[str, int]) -> None:
    """P37: cache fields that a future `TokenUsage` may have are read under each proposed name, streamed or not."""
    usage = SimpleNamespace(input_tokens=100, output_tokens=5, **fields)
    assert from_message(message(usage)) == Usage(100, 5, 80, 15)
    assert stream([None, usage]) == Usage(100, 5, 80, 15)


def test_future_cache_fields_apart_from_the_input_are_added() -> None:
    """P37: more cached tokens than input can only mean that they were counted apart."""
    usage = SimpleNamespace(input_tokens=5, output_tokens=5, cache_read_tokens=80, cache_write_tokens=15)
    assert from_message(message(usage)) == Usage(100, 5, 80, 15)
    assert stream([usage]) == Usage(100, 5, 80, 15)
    assert from_message(message(usage, BEDROCK)).input_tokens == 5 + 800 + 150  # the response comes first


def test_future_cache_fields_that_are_both_zero_are_defaults() -> None:
    """P37: the proposed fields default to 0, so two zeros are unknown; one zero beside a number is a report."""
    usage = SimpleNamespace(input_tokens=100, output_tokens=5, cache_read_tokens=0, cache_write_tokens=0)
    assert from_message(message(usage)) == Usage(100, 5)
    usage.cache_read_tokens = 10
    assert from_message(message(usage)) == Usage(100, 5, 10, 0)


def test_future_token_usage_with_a_normalised_input_is_not_added_to_twice() -> None:
    """P37: when `TokenUsage` already holds the cached tokens and the response counts them apart, they count once."""
    assert from_message(message(TokenUsage(1000, 50), BEDROCK)) == Usage(1000, 50, 800, 150)


def test_a_fully_cached_prompt_is_known() -> None:
    """P37: Bedrock reports 0 input tokens for a prompt that came from the cache as a whole."""
    raw = {"usage": {"inputTokens": 0, "outputTokens": 7, "cacheReadInputTokens": 900}}
    assert from_message(message(TokenUsage(0, 7), raw)) == Usage(900, 7, 900)


def test_reasoning_is_a_part_of_the_output() -> None:
    """P39: output 1970 with 956 of reasoning is 1970."""
    usage = from_message(message(TokenUsage(1000, 1970), OPENAI_CHAT))
    assert (usage.output_tokens, usage.reasoning_tokens) == (1970, 956)


def test_a_models_own_count_wins_over_the_response() -> None:
    """A model that sums inner calls hands on the last response only: its own count is the truth."""
    assert from_message(message(TokenUsage(3000, 90), OPENAI_CHAT)) == Usage(3000, 90, 800, None, 956)


@pytest.mark.parametrize("raw", [None, "text", ["text"], 7, {"out": "text"}, {"usage": None}, {"usage": "?"}, object()])
def test_responses_without_usage(raw: object) -> None:
    """P34: a response that carries no usage leaves the count as it is, and unknown without a count."""
    assert from_message(message(TokenUsage(10, 2), raw)) == Usage(10, 2)
    assert from_message(message(None, raw)) == UNKNOWN


@pytest.mark.parametrize("token_usage", [None, TokenUsage(0, 0), SimpleNamespace(), MagicMock(), "12"])
def test_no_usage_is_unknown(token_usage: object) -> None:
    """P34: no usage, or 0/0, is unknown and not zero."""
    usage = from_message(message(token_usage))
    assert usage == UNKNOWN
    assert not usage.known
    assert stream([token_usage]) == UNKNOWN


def test_zero_zero_is_filled_from_the_response() -> None:
    """P34: 0/0 says nothing, so the response's usage counts."""
    assert from_message(message(TokenUsage(0, 0), ANTHROPIC)) == Usage(1000, 50, 800, 150)
    assert from_message(message(None, {"usage": {"prompt_tokens": 0, "completion_tokens": 0}})) == UNKNOWN


def test_output_without_input() -> None:
    """P34: an output beside an input of 0 or None is known, the input is not."""
    for input_tokens in (0, None):
        usage = from_message(message(SimpleNamespace(input_tokens=input_tokens, output_tokens=8)))
        assert usage == Usage(None, 8)
        assert not usage.known


@pytest.mark.parametrize(
    "value", [True, 1.0, "1", -1, MagicMock(), MagicMock(spec=int), [1]], ids=lambda value: type(value).__name__
)
def test_only_plain_integers_are_reports(value: object) -> None:
    """P34: a value that is not a count is as good as none, and does not hide the other fields."""
    assert from_message(message(SimpleNamespace(input_tokens=value, output_tokens=8))) == Usage(None, 8)
    assert from_message(message(SimpleNamespace(input_tokens=8, output_tokens=value))) == Usage(8, None)
    raw = {"usage": {"prompt_tokens": 8, "completion_tokens": 2, "cache_creation_input_tokens": value}}
    assert from_message(message(None, raw)) == Usage(8, 2)


def test_a_field_that_raises_does_not_hide_the_others() -> None:
    """P34: reading a field may fail; the rest is still reported."""

    class Broken:
        output_tokens = 3

        @property
        def input_tokens(self) -> int:
            raise RuntimeError

    class BrokenMessage:
        token_usage = Broken()

        @property
        def raw(self) -> object:
            raise RuntimeError

    assert from_message(BrokenMessage()) == Usage(None, 3)
    assert stream([Broken()]) == Usage(None, 3)


@given(st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "cache_read_tokens"]), anything), anything)
def test_no_message_raises_and_parts_stay_within_the_whole(fields: dict[str, object], raw: object) -> None:
    """Whatever a message holds, reading it does not fail and cached tokens never exceed the input."""
    usage = from_message(SimpleNamespace(token_usage=fields, raw={"usage": fields | {"prompt_tokens": raw}}))
    if usage.input_tokens is not None:
        assert usage.input_tokens >= max(1, (usage.cache_read_tokens or 0) + (usage.cache_write_tokens or 0))
    assert from_message(raw) == UNKNOWN


@given(uncached=tokens, read=tokens, write=tokens, output=tokens)
def test_providers_come_out_alike(uncached: int, read: int, write: int, output: int) -> None:
    """P37: the same call through LiteLLM, Anthropic and Bedrock gives the same usage."""
    total = uncached + read + write
    cache = {"cache_read_input_tokens": read, "cache_creation_input_tokens": write}
    bedrock_cache = {"cacheReadInputTokens": read, "cacheWriteInputTokens": write}
    litellm = {"prompt_tokens": total, "completion_tokens": output} | cache
    anthropic = {"input_tokens": uncached, "output_tokens": output} | cache
    bedrock = {"inputTokens": uncached, "outputTokens": output} | bedrock_cache
    copies = [(total, litellm), (uncached, anthropic), (uncached, bedrock)]
    usages = [from_message(message(TokenUsage(copied, output), {"usage": raw})) for copied, raw in copies]
    assert usages == [Usage(total, output, read, write)] * 3


# --- a stream --------------------------------------------------------------------------------------------------------


def shapes(prompt: int, increments: Sequence[int]) -> dict[str, list[object]]:
    """The same call as its deltas would report it in each of the shapes that are told apart."""
    total = sum(increments)
    silent: list[object] = [None] * len(increments)
    firsts = zip_longest([prompt], increments, fillvalue=0)
    return {
        "first": [TokenUsage(prompt, total), *silent],
        "last": [*silent, TokenUsage(prompt, total)],
        "per delta": [TokenUsage(first, increment) for first, increment in firsts],
        "running total": [TokenUsage(prompt, so_far) for so_far in accumulate(increments)],
        "input first, output last": [TokenUsage(prompt, 0), *silent, TokenUsage(0, total)],
    }


@given(prompt=tokens, increments=st.lists(st.integers(1, 50), min_size=1))
def test_streams_of_every_shape_give_the_truth(prompt: int, increments: list[int]) -> None:
    """P28: usage on the first delta, on the last, per delta or as a running total: the same, true numbers."""
    for shape, deltas in shapes(prompt, increments).items():
        assert stream(deltas) == Usage(prompt, sum(increments)), shape


@given(prompt=tokens, chunks=st.integers(1, 200))
def test_the_prompt_counts_once_when_every_delta_repeats_it(prompt: int, chunks: int) -> None:
    """P28: the prompt count on every delta, one output token each: the same as on the first delta only."""
    assert pairs([(prompt, 1)] * chunks) == pairs([(prompt, 1)] + [(0, 1)] * (chunks - 1)) == Usage(prompt, chunks)


def test_usage_on_the_first_delta_only() -> None:
    """P30: a stream that reports on its first delta does not end at 0."""
    assert stream([TokenUsage(494, 20), None, None]) == Usage(494, 20)


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([(100, 0), (100, 3), (100, 3), (100, 9)], 9),  # a running total that stands still at times
        ([(100, 7), (100, 7), (100, 7)], 7),  # one total, repeated
        ([(100, 4), (100, 2), (100, 5)], 11),  # increments
        ([(100, 4), (100, 0), (100, 5)], 9),  # increments, one empty
        ([(100, 4), (0, 2), (0, 5)], 11),  # increments, the input once
        ([(0, 4), (0, 4), (100, 4)], 12),  # the same, the input last
        ([(0, 0), (0, 0), (100, 20)], 20),  # 0/0 says nothing
        ([(100, 5), (0, 0), (100, 8)], 8),
        ([(100, 0), (100, 0)], 0),
    ],
)
def test_output_rules(deltas: list[tuple[int, int]], expected: int) -> None:
    """P28: what the deltas' outputs mean follows from how they move and on how many the input stands."""
    assert pairs(deltas) == Usage(100, expected)


def test_stream_without_input() -> None:
    """P34: output increments without an input leave the input unknown."""
    assert pairs([(0, 1), (0, 1)]) == Usage(None, 2)
    assert stream([]) == stream([None, None]) == pairs([(0, 0), (0, 0)]) == UNKNOWN


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100))))
def test_stream_bounds(deltas: list[tuple[int, int]]) -> None:
    """P28: in any order, the input is the largest count seen and the output between the largest and the sum."""
    usage = pairs(deltas)
    outputs = [output for _, output in deltas]
    assert (usage.input_tokens or 0) == max((prompt for prompt, _ in deltas), default=0)
    assert max(outputs, default=0) <= (usage.output_tokens or 0) <= sum(outputs)


@given(st.lists(anything), st.lists(anything))
def test_no_delta_raises(inputs: list[object], outputs: list[object]) -> None:
    """Whatever the deltas hold, adding them does not fail."""
    stream(inputs)
    for prompt, output in zip(inputs, outputs, strict=False):
        stream([{"input_tokens": prompt, "output_tokens": output}])


def test_stream_keeps_no_deltas() -> None:
    """A stream takes constant memory: after many deltas its state is still a handful of numbers."""
    usage = StreamUsage()
    for _ in range(1000):
        usage.add(TokenUsage(100, 1))
    assert not hasattr(usage, "__dict__")
    assert all(isinstance(getattr(usage, name), int | None) for name in StreamUsage.__slots__)


# --- several calls seen as one ---------------------------------------------------------------------------------------


def test_combine_sums_what_is_known() -> None:
    """Usage of inner calls adds up field by field; what none reported stays unknown."""
    assert combine([Usage(10, 2, 5, 0, 1), UNKNOWN, Usage(20, 3, 6)]) == Usage(30, 5, 11, 0, 1)
    assert combine([Usage(None, 4), Usage(None, 1)]) == Usage(None, 5)


@pytest.mark.parametrize("usages", [[], [UNKNOWN], [UNKNOWN, UNKNOWN]])
def test_combine_of_unknown_is_unknown(usages: list[Usage]) -> None:
    """P34: no known usage among the inner calls gives no known usage."""
    assert combine(usages) == UNKNOWN


def test_usage_is_a_value() -> None:
    """Usages compare by value and cannot be changed."""
    assert len({Usage(1, 2), Usage(1, 2)}) == 1
    with pytest.raises(AttributeError):
        Usage().input_tokens = 1  # type: ignore[misc]


class Whole(int):
    """A whole number of another type, as numpy's are."""


def test_whole_numbers_of_other_types_count() -> None:
    """What a model in this process counts with numpy is a count, and comes out as a plain number; a boolean is none."""
    usage = from_message(SimpleNamespace(token_usage=SimpleNamespace(input_tokens=Whole(7), output_tokens=Whole(3))))
    assert usage == Usage(7, 3)
    assert type(usage.input_tokens) is type(usage.output_tokens) is int
    assert from_message(SimpleNamespace(token_usage=SimpleNamespace(input_tokens=True, output_tokens=3))) == Usage(
        None, 3
    )
