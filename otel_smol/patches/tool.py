"""Tools, and managed agents called as tools: one span for each call within a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from otel_smol import content
from otel_smol.context import Scope, attached, current_scope
from otel_smol.guard import guarded
from otel_smol.patches.wrap import Wrapper
from otel_smol.spans.owner import Owner
from otel_smol.spans.step import StepSpan
from otel_smol.spans.tool import ToolSpan

if TYPE_CHECKING:
    from otel_smol.patches import Patches

_MAX_NODES, _MAX_CHARACTERS = 2_000, 200_000
"""What is larger than this, and no text, is not written out just to be measured."""


def call_tool(patches: Patches, *, managed: bool) -> Wrapper:
    """Wrap `__call__` of a tool class, or of an agent class (`managed`)."""

    def wrapper(wrapped: Callable[..., Any], tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = current_scope()
        if not patches.active or scope.run is None or scope.tool is tool:  # the last: called by way of super()
            return wrapped(*args, **kwargs)
        span: ToolSpan | None = None
        with guarded("starting a tool call"):
            span = _begin(patches, scope.run, scope, tool, args, kwargs, managed)
        if span is None:
            return wrapped(*args, **kwargs)
        try:
            with attached(span.context):
                result = wrapped(*args, **kwargs)
        except BaseException as error:
            with guarded("ending a tool call that failed"):
                span.finish(None, error)
            raise
        characters: int | None = None
        with guarded("reading a tool's result"):
            characters = _length(result)
            if patches.telemetry.captures_content:
                span.invocation.tool_result = content.any_value(result)
        with guarded("ending a tool call"):
            span.finish(characters)
        return result

    return wrapper


def _begin(
    patches: Patches, run: Owner, scope: Scope, tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any], managed: bool
) -> ToolSpan:
    name = _name(run, tool)
    span = ToolSpan(scope, run, tool, name, managed=managed)
    if span.step is not None:
        with guarded("matching a tool call"):
            span.invocation.tool_call_id = _call_id(span.step, name, args, kwargs)
    if patches.telemetry.captures_content:
        with guarded("capturing a tool's arguments"):
            if patches.telemetry.content_on_spans:
                span.invocation.tool_description = content.text(getattr(tool, "description", None))
            span.invocation.arguments = content.arguments(args, kwargs)
    return span


def _name(run: Owner, tool: Any) -> str:
    """The name that the model uses: the key under which the agent has the tool."""
    own = getattr(tool, "name", None)
    own = own if isinstance(own, str) and own else type(tool).__name__
    with guarded("looking up a tool's name"):
        for tools in (run.subject.tools, run.subject.managed_agents) if run.subject is not None else ():
            if tools.get(own) is tool:
                return own
            for key, value in tools.items():
                if value is tool:
                    return str(key)
    return own


def _call_id(step: StepSpan, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The id of the model's call that this one carries out; of several of one name the one with these arguments."""
    pending = step.pending_tool_calls  # other threads take from it as well
    candidates = {key: asked for key, (called, asked) in list(pending.items()) if called == name}
    if len(candidates) > 1:
        given = {key: value for key, value in kwargs.items() if key != "sanitize_inputs_outputs"} or (
            args[0] if args else {}
        )
        state = getattr(step.run.subject, "state", None) or {}
        likely = [key for key, asked in candidates.items() if _equal(_substituted(asked, state), given)]
        candidates = dict.fromkeys([*likely, *candidates])
    chosen = next((key for key in candidates if pending.pop(key, None) is not None), None)
    return chosen if isinstance(chosen, str) else None


def _substituted(asked: Any, state: dict[str, Any]) -> Any:
    """As smolagents does it: a value that names an entry of the agent's state stands for that entry."""
    if not isinstance(asked, dict):
        return asked
    return {key: state.get(value, value) if isinstance(value, str) else value for key, value in asked.items()}


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays and the like, which have no one answer to this
        return False


def _length(value: Any) -> int | None:
    """Length of a result as text; None for what is costly to write out or is not text in any sense."""
    if isinstance(value, str):
        return str.__len__(value)
    if value is None or type(value) in (int, float, bool, list, tuple, dict, set):
        return len(str(value)) if _small(value) else None
    return None


def _small(value: Any) -> bool:
    nodes = characters = 0
    stack = [value]
    while stack:
        item = stack.pop()
        nodes += 1
        if isinstance(item, str):
            characters += len(item)
        elif type(item) is dict:
            stack.extend(item.keys())
            stack.extend(item.values())
        elif type(item) in (list, tuple, set):
            stack.extend(item)
        elif type(item) is int and item.bit_length() > content.MAX_BITS:
            return False
        elif item is not None and type(item) not in (int, float, bool):
            return False  # somebody's object: writing it out may run their code
        if nodes + len(stack) > _MAX_NODES or characters > _MAX_CHARACTERS:
            return False
    return True
