"""Messages, arguments and results, for users who have switched content on. Nothing here is called otherwise.

A chat span gets the messages that no earlier call of its run has sent, and `smolagents.input.messages.refs` for the
whole: with a full list per call the telemetry would grow with the square of the steps, like the bill.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
        ToolCallRequestPart(
            arguments=tool_arguments_to_any_value(call.function.arguments), name=call.function.name, id=call.id
        )
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
        parts: list[Any] = [TextPart(content="".join(self._text))] if self._text else []
        parts.extend(
            ToolCallRequestPart(
                arguments=tool_arguments_to_any_value(call["arguments"]), name=call["name"], id=call["id"] or None
            )
            for call in self._calls.values()
        )
        return [OutputMessage(role="assistant", parts=parts)]


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a tool call."""
    given = {key: value for key, value in kwargs.items() if key != "sanitize_inputs_outputs"}
    if args and not given:
        return any_value(args[0] if len(args) == 1 else list(args))
    return any_value({**({"args": list(args)} if args else {}), **given})


def any_value(value: Any) -> Any:
    """A value as OTLP can carry it; pictures and other objects by their type only."""
    if isinstance(value, str):
        return text(value)
    if _is_picture(value):
        return f"[{type(value).__name__}]"
    return object_to_any_value(value)


def text(value: Any) -> str | None:
    """Text that UTF-8 can carry: lone surrogates, which a model may well produce, become `?`."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return text(value) or ""
    converted = any_value(value)
    return converted if isinstance(converted, str) else json.dumps(converted, default=str)


def _input_message(message: Any) -> InputMessage:
    fields = message if isinstance(message, dict) else vars(message)
    role = fields.get("role")
    name = str(getattr(role, "value", role))
    return InputMessage(role=_ROLES.get(name, name), parts=_parts(fields.get("content")))


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [TextPart(content=content)]
    return [_part(part) for part in content or ()]


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return TextPart(content=part)
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return TextPart(content=part["text"])
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


def _is_picture(value: Any) -> bool:
    return type(value).__module__.startswith(("PIL.", "torch", "numpy")) or type(value).__name__ in (
        "AgentImage",
        "AgentAudio",
    )
