"""Messages, arguments and results, for users who have switched content on. Nothing here is called otherwise.

A chat span gets the messages that no earlier call of its run has sent, and `smolagents.input.messages.refs` for the
whole: with a full list per call the telemetry would grow with the square of the steps, like the bill.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.util.genai.types import (
    FunctionToolDefinition,
    GenericPart,
    InputMessage,
    OutputMessage,
    TextPart,
    ToolCallRequestPart,
)
from opentelemetry.util.genai.utils import object_to_any_value, tool_arguments_to_any_value

from otel_smol import semconv as sc

if TYPE_CHECKING:
    from otel_smol.telemetry import CallSpan

_ROLES = {"tool-call": "assistant", "tool-response": "user"}
"""What smolagents sends these roles as (`tool_role_conversions`)."""


def set_prompt(call: CallSpan, messages: Sequence[Any], tools: Sequence[Any] | None, *, full: bool) -> None:
    """Put the new messages (or all) and the references on a call's span."""
    sizes = call.facts.sizes
    if sizes is None:
        return
    positions: Iterable[int] = range(len(messages)) if full else sizes.new_messages
    call.invocation.input_messages = [_input_message(messages[i]) for i in positions]
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
    parts: list[Any] = _parts(getattr(message, "content", None))
    parts.extend(
        _tool_call(call.function.arguments, call.function.name, call.id)
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
        parts: list[Any] = _parts("".join(self._text)) if self._text else []
        parts.extend(_tool_call(call["arguments"], call["name"], call["id"] or None) for call in self._calls.values())
        return [OutputMessage(role="assistant", parts=parts)]


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a tool call."""
    given = {key: value for key, value in kwargs.items() if key != "sanitize_inputs_outputs"}
    if args and not given:
        return any_value(args[0] if len(args) == 1 else list(args))
    return any_value({**({"args": list(args)} if args else {}), **given})


def any_value(value: Any, within: frozenset[int] = frozenset()) -> Any:
    """A value as OTLP can carry it; pictures, sound and bytes by their type only, wherever they stand in it."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, (bytes, bytearray, memoryview)) or _is_data(value) or id(value) in within:
        return f"[{type(value).__name__}]"
    inside = within | {id(value)}
    if isinstance(value, Mapping):
        return {_encodable(str(key)): any_value(item, inside) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [any_value(item, inside) for item in value]
    plain = object_to_any_value(value)
    return any_value(plain, inside) if isinstance(plain, (str, bytes, dict, list)) else plain


def text(value: Any) -> str | None:
    """A text as OTLP can carry it; None for anything else."""
    return _encodable(value) if isinstance(value, str) else None


def _encodable(value: str) -> str:
    """Lone surrogates, which a model may well produce and UTF-8 cannot carry, become `?`."""
    return value.encode("utf-8", "replace").decode()


def _tool_call(arguments: Any, name: Any, id: Any) -> ToolCallRequestPart:
    given = any_value(tool_arguments_to_any_value(arguments))
    return ToolCallRequestPart(arguments=given, name=text(name) or "", id=text(id))


def _as_text(value: Any) -> str:
    converted = any_value(value)
    return converted if isinstance(converted, str) else json.dumps(converted, default=str)


def _input_message(message: Any) -> InputMessage:
    fields = message if isinstance(message, dict) else vars(message)
    role = fields.get("role")
    name = str(getattr(role, "value", role))
    return InputMessage(role=_ROLES.get(name, name), parts=_parts(fields.get("content")))


def _parts(content: Any) -> list[Any]:
    return [_part(part) for part in ([content] if isinstance(content, str) else content or ())]


def _part(part: Any) -> Any:
    said = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
    if isinstance(said, str):
        return TextPart(content=_encodable(said))
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
