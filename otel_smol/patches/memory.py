"""Where each message of a prompt comes from: the memory step that wrote it.

`write_memory_to_messages` asks every memory step for its messages. We look at what passes and return it untouched;
nothing is asked a second time, and unknown kinds of steps are sized like all others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_smol.context import current_scope
from otel_smol.guard import guarded
from otel_smol.patches.wrap import Wrapper, definer
from otel_smol.weak import WeakIdMap

if TYPE_CHECKING:
    from otel_smol.patches import Patches

_writing: ContextVar[list[tuple[object, Any]] | None] = ContextVar("otel_smol_writing", default=None)
_serial = count(1)

STEP_KINDS = ("SystemPromptStep", "TaskStep", "PlanningStep", "ActionStep")


class Origin(NamedTuple):
    """The memory step that a message comes from."""

    memory_step: object
    serial: int
    kind: str | None
    """One of `STEP_KINDS`, or None for a kind that we do not know."""
    role: str
    nth: int
    """Which of the step's messages of this role it is, counted from 0."""


@dataclass(slots=True)
class StepFacts:
    """What is kept beside a memory step of smolagents'."""

    serial: int
    outputs: tuple[tuple[str, int], ...] = ()
    remainder: str | None = None


class MemorySteps:
    """Facts about memory steps, for as long as these live."""

    def __init__(self) -> None:
        self._facts: WeakIdMap[StepFacts] = WeakIdMap()

    def facts(self, memory_step: object) -> StepFacts:
        """The facts of a step; its serial number is given at first sight."""
        try:
            return self._facts.get(memory_step) or self._facts.setdefault(memory_step, lambda: StepFacts(next(_serial)))
        except TypeError:  # no weak references to it: told from others while it lives, and nothing kept
            return StepFacts(-id(memory_step))


def to_messages(wrapped: Callable[..., Any], memory_step: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`MemoryStep.to_messages`: note whose messages these are, while a prompt is being written."""
    messages = wrapped(*args, **kwargs)
    writing = _writing.get()
    if writing is not None:
        writing.append((memory_step, messages))
    return messages


def write_memory_to_messages(patches: Patches) -> Wrapper:
    """`MultiStepAgent.write_memory_to_messages` of a step that we follow."""

    def wrapper(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step = current_scope().step if patches.active else None
        if step is None or step.run.subject is not agent or _writing.get() is not None:
            return wrapped(*args, **kwargs)
        with guarded("looking at the memory"):
            for kind in set(map(type, agent.memory.steps)):
                patches.observe_memory_step(kind)
        written: list[tuple[object, Any]] = []
        token = _writing.set(written)
        try:
            messages = wrapped(*args, **kwargs)
        finally:
            _writing.reset(token)
        step.written = written
        step.given = messages if isinstance(messages, list) else []
        return messages

    return wrapper


def origins(memory_steps: MemorySteps, written: list[tuple[object, Any]], messages: list[Any]) -> dict[int, Origin]:
    """Origins of these messages, by their identity. From the end: what is asked for is usually the last step's."""
    wanted = {id(message) for message in messages}
    found: dict[int, Origin] = {}
    for memory_step, group in reversed(written):
        if not wanted:
            break
        if wanted.isdisjoint(map(id, group)):
            continue
        serial, kind = memory_steps.facts(memory_step).serial, step_kind(type(memory_step))
        seen: dict[str, int] = {}
        for message in group:
            name = role(message)
            nth = seen[name] = seen.get(name, -1) + 1
            if id(message) in wanted:  # smolagents adds all others to the list that the system prompt came in
                found[id(message)] = Origin(memory_step, serial, kind, name, nth)
                wanted.discard(id(message))
    return found


def role(message: Any) -> str:
    """A message's role as text, whether the message is an object or a dict and the role text or an enum."""
    value = message.get("role") if isinstance(message, dict) else message.role
    return str(getattr(value, "value", value))


def step_kind(cls: type) -> str | None:
    """Which of smolagents' kinds of memory step a class is."""
    return next((base.__name__ for base in cls.__mro__ if base.__name__ in STEP_KINDS), None)


def defines_to_messages(cls: type) -> type | None:
    """The class whose `to_messages` a kind of step uses."""
    return definer(cls, "to_messages")


def characters_left(memory_step: Any) -> int:
    """About how many characters a finished step will add to the next prompt.

    From the lengths of its fields, with the few words that `to_messages` puts around them: asking the step itself would
    be one call of `to_messages` more than the agent makes. The next prompt brings the exact number.
    """
    characters = 0
    output = getattr(memory_step, "model_output", None)
    if isinstance(output, str):
        characters += len(output)
    for call in getattr(memory_step, "tool_calls", None) or ():
        arguments = getattr(call, "arguments", "")
        characters += 100 + (len(arguments) if isinstance(arguments, str) else len(str(arguments)))
    observations = getattr(memory_step, "observations", None)
    if isinstance(observations, str):
        characters += len("Observation:\n") + len(observations)
    error = getattr(memory_step, "error", None)
    if error is not None:
        characters += 150 + len(str(error))
    plan = getattr(memory_step, "plan", None)
    if isinstance(plan, str):
        characters += len(plan)
    return characters
