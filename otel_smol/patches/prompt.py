"""A list of messages as the model gets it, in the terms of `history`: bodies, sources, sizes.

Forms seen in the wild: `ChatMessage` objects and dicts, content as text or as a list of parts, roles as text or as
enum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from otel_smol.history import Body, Message, share_among
from otel_smol.patches.memory import MemorySteps, Origin, origins
from otel_smol.telemetry import Owner, StepSpan

_TASK, _OBSERVATION = "New task:\n", "Observation:\n"


def bodies(messages: Sequence[Any]) -> list[Body]:
    """What each message says, comparable with `==`. The loop runs over the whole prompt at each call: keep it short."""
    result: list[Body] = []
    for message in messages:
        content = message.content if not isinstance(message, dict) else message.get("content")
        if type(content) is list and len(content) == 1:
            part = content[0]
            text = part.get("text") if type(part) is dict else None
            result.append(text if type(text) is str else _body(content))
        else:
            result.append(_body(content))
    return result


def _body(content: Any) -> Body:
    if isinstance(content, str):
        return content
    if not content:
        return ""
    return tuple(_part(part) for part in content)


def _part(part: Any) -> object:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return part["text"]
    if isinstance(part, dict) and is_image(part):
        image = part.get("image", part.get("image_url"))
        return "image", image if isinstance(image, str) else id(image)
    return "other", id(part)


def is_image(part: dict[str, Any]) -> bool:
    """Whether a part of a message's content is a picture."""
    return part.get("type") in ("image", "image_url", "input_image")


def measures(body: Body) -> tuple[int, int]:
    """Characters and images of a body."""
    if isinstance(body, str):
        return len(body), 0
    characters = sum(len(part) for part in body if isinstance(part, str))
    return characters, sum(isinstance(part, tuple) and part[0] == "image" for part in body)


class Prompt:
    """The prompt of one call, with the origins of its messages as far as the step knows them."""

    def __init__(
        self, messages: Sequence[Any], call_type: str, step: StepSpan | None, memory_steps: MemorySteps
    ) -> None:
        self.messages = messages
        self.bodies = bodies(messages)
        self._call_type = call_type
        self._written = step.written if step is not None else []
        self._memory_steps = memory_steps
        self._origins: dict[int, Origin] | None = None

    def describe(self, index: int) -> Message:
        """The message at a position, as `history` wants it."""
        if self._origins is None:  # asked for the first message behind the unchanged prefix
            self._origins = origins(self._memory_steps, self._written, list(self.messages[index:]))
        message, body = self.messages[index], self.bodies[index]
        origin = self._origins.get(id(message))
        source = self._source(index, role(message), body, origin)
        characters, images = measures(body)
        tools = self._tools(origin, characters) if source == "observation" else ()
        if origin is None:
            return Message(source, ("text", source, body), characters, images, tools)
        before = sum(role(other) == role(message) for other in origin.group[: origin.position])
        return Message(source, (origin.serial, role(message), before), characters, images, tools)

    def _source(self, index: int, role: str, body: Body, origin: Origin | None) -> str:
        if self._call_type == "other":
            return "other"
        if origin is not None:
            return _source_of_step(origin, role, body)
        if role == "system":
            return "system_prompt"
        if self._call_type != "action":
            return (
                "task"  # the templates around a planning or final-answer prompt: told to the model, not left by steps
            )
        return self._source_by_role(index, role, body)

    def _source_by_role(self, index: int, role: str, body: Body) -> str:
        """For agents that write their own prompts: nothing tells where a message is from but itself."""
        text = body if isinstance(body, str) else next((part for part in body if isinstance(part, str)), "")
        if role == "user":
            first = not any(_role_is(other, "user") for other in self.messages[:index])
            return "task" if first or text.startswith(_TASK) else "other"
        if role == "tool-response" or role == "tool":
            return "observation" if text.startswith(_OBSERVATION) or "Error:\n" not in text else "error"
        return {"assistant": "assistant", "tool-call": "tool_call"}.get(role, "other")

    def _tools(self, origin: Origin | None, characters: int) -> tuple[tuple[str, int], ...]:
        if origin is None:
            return ()
        facts = self._memory_steps.facts(origin.memory_step)
        outputs, remainder = facts.outputs, facts.remainder
        if not outputs and remainder is None:  # a step of an earlier turn, or not of ours: who it called is all we know
            calls = getattr(origin.memory_step, "tool_calls", None) or ()
            outputs = tuple((str(call.name), 1) for call in calls)
        return share_among(characters, outputs, remainder)


def _source_of_step(origin: Origin, role: str, body: Body) -> str:
    if origin.kind == "SystemPromptStep":
        return "system_prompt"
    if origin.kind == "TaskStep":
        return "task"
    if origin.kind == "PlanningStep":
        return "plan"
    if origin.kind != "ActionStep":
        return "other"
    if role == "assistant":
        return "assistant"
    if role == "tool-call":
        return "tool_call"
    if role == "tool-response":
        observed = isinstance(body, str) and body.startswith(_OBSERVATION)
        return "observation" if observed or getattr(origin.memory_step, "error", None) is None else "error"
    return "image" if measures(body)[1] else "other"


def role(message: Any) -> str:
    """A message's role as text."""
    value = message.get("role") if isinstance(message, dict) else message.role
    return str(getattr(value, "value", value))


def _role_is(message: Any, wanted: str) -> bool:
    return role(message) == wanted


def schema_characters(owner: Owner | None, tools: Sequence[Any] | None, schema: Any) -> int:
    """Characters of the tool schemas sent beside the messages, as JSON. Sized once per run and set of tools."""
    if not tools or schema is None:
        return 0
    key = tuple(map(id, tools))
    known = owner.schema_characters if owner is not None else {}
    if key not in known:
        known[key] = sum(len(json.dumps(schema(tool), default=str)) for tool in tools)
    return known[key]
