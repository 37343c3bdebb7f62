"""`MultiStepAgent.run`: one run span, plain or streamed, until the last item or the last word."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanContext

from otel_smol import content
from otel_smol import semconv as sc
from otel_smol.context import attached, current_scope
from otel_smol.guard import guarded
from otel_smol.ledger import RunLedger
from otel_smol.patches.generator import followed_items
from otel_smol.patches.model import model_of
from otel_smol.patches.wrap import Wrapper, argument
from otel_smol.provider import public_model_id
from otel_smol.spans.owner import AgentFacts, Owner
from otel_smol.spans.run import RunSpan

if TYPE_CHECKING:
    from otel_smol.patches import Patches


@dataclass(slots=True)
class Turns:
    """The conversation that an agent's runs make up."""

    group: str
    last: SpanContext | None = None


def run(patches: Patches) -> Wrapper:
    """Wrap `run(task, stream=False, reset=True, …)`."""

    def wrapper(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not patches.active:
            return wrapped(*args, **kwargs)
        begin = partial(_begin, patches, agent, args, kwargs)
        if argument(args, kwargs, 1, "stream", False):
            stream = wrapped(*args, **kwargs)
            return followed_items(stream, begin) if isinstance(stream, Iterator) else stream
        watch: RunWatch | None = None
        with guarded("starting a run"):
            watch = begin()
        if watch is None:
            return wrapped(*args, **kwargs)
        try:
            with attached(watch.context):
                result = wrapped(*args, **kwargs)
        except BaseException as error:
            with guarded("following a run that failed"):
                watch.fail(error)
            raise
        with guarded("following a run to its end"):
            watch.finish(result)
        return result

    return wrapper


class RunWatch:
    """Follows one run."""

    def __init__(self, patches: Patches, agent: Any, span: RunSpan, turns: Turns) -> None:
        self._patches, self._agent, self._span = patches, agent, span
        self.context = span.context
        turns.last = span.span.get_span_context()
        self._last: object = None
        self._release: Callable[[], None] | None = None
        with guarded("observing a run's model"):
            self._release = patches.hold_model(model_of(agent))
        patches.open_runs.add(self)

    def item(self, item: object) -> None:
        self._last = item

    def finish(self, result: object) -> None:
        if self._span.telemetry.captures_content:
            with guarded("capturing the final answer"):
                answer: Any = getattr(self._last, "output", None) if result is None else result
                if type(answer).__name__ == "RunResult":  # of `return_full_result`
                    answer = answer.output
                self._span.set_answer(content.answer(answer))
        self._end("max_steps" if self._span.reached_max_steps else "success")

    def fail(self, error: BaseException) -> None:
        if self._span.last_error is error:  # not recovered from after all
            self._span.ledger.recovered_errors -= 1
        state = "error"
        with guarded("reading how a run ended"):
            state = _state(self._agent, error)
        self._end(state, error)

    def closed(self) -> None:
        self._end("abandoned")

    def interrupt(self) -> None:
        """The process is being ended."""
        self._end("interrupted")

    def _end(self, state: str, error: BaseException | None = None) -> None:
        self._patches.open_runs.discard(self)
        release, self._release = self._release, None
        if release is not None:
            with guarded("letting a run's model go"):
                release()
        self._span.finish(state, error)


def _state(agent: Any, error: BaseException) -> str:
    if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit, a task's cancellation
        return "interrupted"
    if type(error).__name__ == "AgentError" and getattr(agent, "interrupt_switch", False) is True:
        return "interrupted"
    return "error"


def _begin(patches: Patches, agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunWatch | None:
    if not patches.active:
        return None
    patches.look_around()
    patches.observe_agent(agent)
    reset = bool(argument(args, kwargs, 2, "reset", True))
    turns = patches.turns(agent, reset)
    facts = agent_facts(agent, argument(args, kwargs, 5, "max_steps"), turns.group)
    parent: Owner | None = current_scope().run
    ledger = new_ledger(patches, agent, facts)
    span = RunSpan(patches.telemetry, facts, ledger, parent, agent, None if reset else turns.last)
    try:
        watch = RunWatch(patches, agent, span, turns)
    except BaseException:
        span.finish("error")
        raise
    if patches.telemetry.captures_content:
        with guarded("capturing the task"):
            span.set_task(content.task(argument(args, kwargs, 0, "task")))
    return watch


def new_turns() -> Turns:
    """A new conversation."""
    return Turns(uuid.uuid4().hex)


def new_ledger(patches: Patches, agent: Any, facts: AgentFacts) -> RunLedger:
    """The ledger of a run that is about to begin."""
    interval: Any = None
    with guarded("reading an agent's planning_interval"):
        interval = getattr(agent, "planning_interval", None)
    return RunLedger(
        facts.max_steps,
        interval if isinstance(interval, int) else None,
        patches.config.token_budget.get(facts.name),
        patches.config.context_window.get(facts.model_id),
    )


def agent_facts(agent: Any, max_steps: Any, turn_group: str) -> AgentFacts:
    """Read what a span says of an agent. What cannot be read is left out."""
    facts: dict[str, Any] = {}
    with guarded("reading an agent's name"):
        name = getattr(agent, "name", None)
        facts["name"] = name if isinstance(name, str) and name else None
    with guarded("reading an agent's max_steps"):
        limit = max_steps or agent.max_steps
        facts["max_steps"] = limit if isinstance(limit, int) and limit < sc.INTEGERS else None
    with guarded("reading an agent's model"):
        model_id = getattr(model_of(agent), "model_id", None)
        facts["model_id"] = public_model_id(model_id) if isinstance(model_id, str) else None
    with guarded("reading an agent's description"):
        description = getattr(agent, "description", None)
        facts["description"] = description if isinstance(description, str) else None
    with guarded("reading an agent's tools"):
        facts["tools"] = frozenset(map(str, [*agent.tools, *agent.managed_agents]))
    return AgentFacts(
        name=facts.get("name") or type(agent).__name__,
        type=type(agent).__name__,
        max_steps=facts.get("max_steps"),
        model_id=facts.get("model_id"),
        description=facts.get("description"),
        tools=facts.get("tools", frozenset()),
        turn_group=turn_group,
    )
