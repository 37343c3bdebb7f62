"""Messages, arguments and results, for users who have switched content on. Nothing here is called otherwise.

A chat span gets the messages that no earlier call of its run has sent, and `smolagents.input.messages.refs` for the
whole: with a full list per call the telemetry would grow with the square of the steps, like the bill.

What goes into one attribute has a limit; what exceeds it is cut where it stands, and says how much is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, time
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any

from opentelemetry.util.genai.types import (
    FunctionToolDefinition,
    GenericPart,
    InputMessage,
    OutputMessage,
    TextPart,
    ToolCallRequestPart,
)

from otel_smol import semconv as sc

if TYPE_CHECKING:
    from otel_smol.spans.call import CallSpan

_ROLES = {"tool-call": "assistant", "tool-response": "user"}
"""What smolagents sends these roles as (`tool_role_conversions`)."""

MAX_CHARACTERS = 200_000
"""Of one attribute. gRPC receivers refuse a request of more than 4 MiB, and with it the whole batch of spans: twelve
bytes a character, which is what JSON makes of an emoji, are 2.4 MB."""
_PER_VALUE = 20
"""Characters that each value costs besides its own: to convert it takes time, which may be what an agent's code has
left. No text of up to this length is cut."""
_MAX_VALUES = MAX_CHARACTERS // _PER_VALUE
_MAX_DEPTH = 50
"""Deeper than what people nest, and far from Python's own limit."""
_DUMPS = ("model_dump", "dict", "to_dict")
"""Methods by which models write themselves out, always in whole."""
MAX_BITS = 2_000
"""Of a whole number: Python refuses to write out longer ones (above 4,300 digits, or 640 where it is told to)."""


def set_prompt(call: CallSpan, messages: Sequence[Any], tools: Sequence[Any] | None, *, full: bool) -> None:
    """Put the new messages (or all) and the references on a call's span."""
    sizes = call.facts.sizes
    if sizes is None:
        return
    positions: Iterable[int] = range(len(messages)) if full else sizes.new_messages
    budget = _Budget()  # the newest message first: of the older ones an earlier span may have more
    newest_first = [_input_message(messages[i], budget) for i in reversed(tuple(positions))]
    call.invocation.input_messages = newest_first[::-1]
    call.invocation.attributes[sc.INPUT_MESSAGES_REFS] = sizes.refs
    if tools and sizes.prefix_share is None:  # the first call of its kind
        call.invocation.tool_definitions = [
            FunctionToolDefinition(name=str(tool.name), description=None, parameters=None) for tool in tools
        ]


def task(value: Any) -> list[InputMessage]:
    """The task of a run."""
    return [InputMessage(role="user", parts=[TextPart(content=text(value) or "")])]


def answer(value: Any) -> list[OutputMessage]:
    """The final answer of a run: text as it is, anything else as JSON where that can be had."""
    return [OutputMessage(role="assistant", parts=[TextPart(content=_as_text(value))])]


def output_messages(message: Any) -> list[OutputMessage]:
    """A model's answer."""
    budget = _Budget()
    parts = _parts(getattr(message, "content", None), budget)
    parts.extend(
        _tool_call(call.function.arguments, call.function.name, call.id, budget)
        for call in getattr(message, "tool_calls", None) or ()
    )
    return [OutputMessage(role="assistant", parts=parts)]


class StreamedText:
    """A streamed answer, put together."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[Any, dict[str, str]] = {}

    def add(self, delta: Any) -> None:
        """Take in one delta."""
        content = getattr(delta, "content", None)
        if isinstance(content, str):
            self._text.append(content)
        for call in getattr(delta, "tool_calls", None) or ():
            known = self._calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
            known["id"] = call.id or known["id"]
            if call.function is not None:
                known["name"] = call.function.name or known["name"]
                arguments = call.function.arguments
                known["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments or "")

    def messages(self) -> list[OutputMessage]:
        """The answer so far."""
        budget = _Budget()
        parts = _parts("".join(self._text), budget) if self._text else []
        parts.extend(
            _tool_call(call["arguments"], call["name"], call["id"] or None, budget) for call in self._calls.values()
        )
        return [OutputMessage(role="assistant", parts=parts)]


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a tool call."""
    given = {key: value for key, value in kwargs.items() if key != "sanitize_inputs_outputs"}
    if args and not given:
        return any_value(args[0] if len(args) == 1 else list(args))
    return any_value({**({"args": list(args)} if args else {}), **given})


class _Budget:
    """What an attribute still has room for, shared by all that stands in it."""

    def __init__(self) -> None:
        self.left = MAX_CHARACTERS

    def spend(self, characters: int) -> None:
        self.left -= _PER_VALUE + characters

    def cut(self, value: str) -> str:
        """A text with at most half of what is left: what stands beside it is to be seen as well."""
        kept = value[: max(self.left // 2, _PER_VALUE)]
        self.spend(len(kept))
        more = len(value) - len(kept)
        return _encodable(f"{kept}… [{more:,} more characters]" if more else value)


def any_value(value: Any, budget: _Budget | None = None, within: frozenset[int] = frozenset()) -> Any:
    """A value as OTLP can carry it, within the limit; pictures, sound and bytes by their type only, wherever they stand
    in it."""
    budget = budget or _Budget()
    if isinstance(value, str):
        return budget.cut(value)
    budget.spend(0)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, int):
        budget.spend(value.bit_length() // 3)
        return value if value.bit_length() <= MAX_BITS else "[int]"
    looped = id(value) in within or len(within) == _MAX_DEPTH
    if looped or isinstance(value, (bytes, bytearray, memoryview)) or _is_data(value):
        return _named(value)
    inside = within | {id(value)}
    if isinstance(value, Mapping):
        entries: dict[str, Any] = {}
        for number, (key, item) in enumerate(value.items()):
            if budget.left <= 0:
                entries["…"] = f"[{len(value) - number:,} more]"
                break
            entries[budget.cut(str(key))] = any_value(item, budget, inside)
        return entries
    if isinstance(value, (list, tuple, set, frozenset)):
        items: list[Any] = []
        for number, item in enumerate(value):
            if budget.left <= 0:
                items.append(f"[{len(value) - number:,} more]")
                break
            items.append(any_value(item, budget, inside))
        return items
    return any_value(_opened(value), budget, inside)


def text(value: Any) -> str | None:
    """A text as OTLP can carry it, within the limit; None for anything else."""
    return _Budget().cut(value) if isinstance(value, str) else None


def _encodable(value: str) -> str:
    """Lone surrogates, which a model may well produce and UTF-8 cannot carry, become `?`."""
    return value.encode("utf-8", "replace").decode()


def _opened(value: Any) -> Any:
    """What an object holds, one level of it, or else says of itself; None for what neither holds nor says anything.

    Methods are looked up on the class: an object that makes up its attributes would be asked for each.
    """
    cls: Any = type(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (date, time)):
        return value.isoformat()
    if callable(value):
        return None
    try:
        if is_dataclass(value):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        dump = next((name for name in _DUMPS if callable(getattr(cls, name, None))), None)
        if dump is not None:  # with a length it is a table or a data set, which may have to be read first
            too_large = hasattr(cls, "__len__") or _is_large(value)
            return f"[{cls.__name__}: not written out]" if too_large else getattr(value, dump)()
        return _public(value) or (str(value) if cls.__str__ is not object.__str__ else None)
    except Exception:  # somebody's code
        return None


def _named(value: Any) -> str:
    return f"[{type(value).__name__}]"


def _public(value: Any) -> dict[str, Any]:
    """What an object holds in the open. What is private stays so: a secret may be in it."""
    return {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}


def _is_large(value: Any) -> bool:
    """Whether an object that can only write itself out in whole holds more than would be kept."""
    seen, stack = 0, [value]
    while stack:
        item = stack.pop()
        seen += 1
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
        else:
            stack.extend(_public(item).values())
        if seen + len(stack) > _MAX_VALUES:
            return True
    return False


def _tool_call(arguments: Any, name: Any, id: Any, budget: _Budget) -> ToolCallRequestPart:
    if isinstance(arguments, str):
        with suppress(ValueError):  # not JSON: as it is
            arguments = json.loads(arguments)
    return ToolCallRequestPart(arguments=any_value(arguments, budget), name=text(name) or "", id=text(id))


def _as_text(value: Any) -> str:
    converted = any_value(value)
    return converted if isinstance(converted, str) else json.dumps(converted, default=str)


def _input_message(message: Any, budget: _Budget) -> InputMessage:
    given = message if isinstance(message, dict) else vars(message)
    role = given.get("role")
    name = str(getattr(role, "value", role))
    return InputMessage(role=_ROLES.get(name, name), parts=_parts(given.get("content"), budget))


def _parts(content: Any, budget: _Budget) -> list[Any]:
    return [_part(part, budget) for part in ([content] if isinstance(content, str) else content or ())]


def _part(part: Any, budget: _Budget) -> Any:
    said = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
    if isinstance(said, str):
        return TextPart(content=budget.cut(said))
    kind = part.get("type") if isinstance(part, dict) else None
    return _Omitted(str(kind or "other"), _picture_size(part))


@dataclass
class _Omitted(GenericPart):
    """A part whose data stays here: pictures, sound, files. Its kind goes out, and the size of a picture."""

    size: list[int] | None = None


def _picture_size(part: Any) -> list[int] | None:
    image = part.get("image") if isinstance(part, dict) else None
    size = getattr(image, "size", None)
    return list(size) if isinstance(size, tuple) else None


def _is_data(value: Any) -> bool:
    cls = type(value)
    return cls.__module__.startswith("PIL.") or cls.__name__ in ("AgentImage", "AgentAudio", "Tensor", "ndarray")
