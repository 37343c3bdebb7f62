"""A list of messages as the model gets it, in the terms of `history`: bodies, sources, sizes.

Forms seen in the wild: `ChatMessage` objects and dicts, content as text or as a list of parts, roles as text or as
enum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from otel_smol.history import Body, Message, share_among
from otel_smol.patches.memory import MemorySteps, Origin, origins, role
from otel_smol.spans.owner import Owner
from otel_smol.spans.step import StepSpan

_TASK, _OBSERVATION = "New task:\n", "Observation:\n"
_SOURCES_BY_KIND = {"SystemPromptStep": "system_prompt", "TaskStep": "task", "PlanningStep": "plan"}


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
    return "image" if isinstance(part, dict) and is_image(part) else "other", _identity(part)


def _identity(value: Any) -> object:
    """What tells a picture, a sound, a file from another, in containers that are built anew for each prompt."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return tuple((key, _identity(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_identity, value))
    return id(value)


def is_image(part: dict[str, Any]) -> bool:
    """Whether a part of a message's content is a picture."""
    return part.get("type") in ("image", "image_url", "input_image")


def measures(body: Body) -> tuple[int, int]:
    """Characters and images of a body."""
    if isinstance(body, str):
        return len(body), 0
    characters = sum(len(part) for part in body if isinstance(part, str))
    return characters, sum(isinstance(part, tuple) and part[0] == "image" for part in body)


def is_the_agents_own(messages: Any, step: StepSpan) -> bool:
    """Whether a prompt is the agent's own, and not one that something within the step asks beside it: a judge, say.

    The agent's own has messages that it was given as its memory for this step, or that its memory steps wrote, or
    copies of these. An agent that has never asked with any of them so far makes prompts by other means, and asks what
    it likes.
    """
    if step.facts.type != "action" or not isinstance(messages, (list, tuple)):
        return True
    if _comes_from(step.given, [group for _, group in step.written], messages):
        step.run.asks_with_its_memory = True
    elif step.run.asks_with_its_memory:
        return False
    return True


def _comes_from(given: Sequence[Any], written: Sequence[Sequence[Any]], messages: Sequence[Any]) -> bool:
    if given and messages and given[-1] is messages[-1]:  # nearly always
        return True
    asked = set(map(id, messages))
    if any(not asked.isdisjoint(map(id, group)) for group in (given, *reversed(written))):
        return True
    said = {body for group in written[1:] for body in bodies(group)}  # a judge may have the same system prompt
    return not said.isdisjoint(bodies(messages))


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
        source = self._source(index, message, body, origin)
        characters, images = measures(body)
        tools = self._tools(origin, characters) if source == "observation" else ()
        if origin is None:
            return Message(source, ("text", source, body), characters, images, tools)
        return Message(source, (origin.serial, origin.role, origin.nth), characters, images, tools)

    def _source(self, index: int, message: Any, body: Body, origin: Origin | None) -> str:
        if self._call_type == "other":
            return "other"
        if origin is not None:
            return _source_of_step(origin, body)
        said_by = role(message)
        if said_by == "system":
            return "system_prompt"
        if self._call_type != "action":  # templates around a planning or final-answer prompt: no step left them behind
            return "task"
        return self._source_by_role(index, said_by, body)

    def _source_by_role(self, index: int, said_by: str, body: Body) -> str:
        """For agents that write their own prompts: nothing tells where a message is from but itself."""
        text = body if isinstance(body, str) else next((part for part in body if isinstance(part, str)), "")
        if said_by == "user":
            first = not any(role(other) == "user" for other in self.messages[:index])
            return "task" if first or text.startswith(_TASK) else "other"
        if said_by in ("tool-response", "tool"):
            return "observation" if text.startswith(_OBSERVATION) or "Error:\n" not in text else "error"
        return {"assistant": "assistant", "tool-call": "tool_call"}.get(said_by, "other")

    def _tools(self, origin: Origin | None, characters: int) -> tuple[tuple[str, int], ...]:
        if origin is None:
            return ()
        facts = self._memory_steps.facts(origin.memory_step)
        outputs, remainder = facts.outputs, facts.remainder
        if not outputs and remainder is None:  # a step of an earlier turn, or not of ours: who it called is all we know
            calls = getattr(origin.memory_step, "tool_calls", None) or ()
            outputs = tuple((str(call.name), 1) for call in calls)
        return share_among(characters, outputs, remainder)


def _source_of_step(origin: Origin, body: Body) -> str:
    if origin.kind != "ActionStep":
        return _SOURCES_BY_KIND.get(origin.kind or "", "other")
    if origin.role == "assistant":
        return "assistant"
    if origin.role == "tool-call":
        return "tool_call"
    if origin.role == "tool-response":
        observed = isinstance(body, str) and body.startswith(_OBSERVATION)
        return "observation" if observed or getattr(origin.memory_step, "error", None) is None else "error"
    characters, images = measures(body)
    return "image" if images and not characters else "other"


def schema_characters(owner: Owner | None, tools: Sequence[Any] | None, schema: Any) -> int:
    """Characters of the tool schemas sent beside the messages, as JSON. Sized once per run and set of tools."""
    if not tools or schema is None:
        return 0
    key = tuple(map(id, tools))
    known = owner.schema_characters if owner is not None else {}
    if key not in known:
        known[key] = sum(len(json.dumps(schema(tool), default=str)) for tool in tools)
    return known[key]
