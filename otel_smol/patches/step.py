"""Steps: `_step_stream`, planning, and the extra call for a final answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from otel_smol.context import attached, current_scope
from otel_smol.garbage import afterwards
from otel_smol.guard import guarded
from otel_smol.patches.generator import follow
from otel_smol.patches.memory import characters_left
from otel_smol.patches.model import model_of
from otel_smol.patches.run import agent_facts, new_ledger
from otel_smol.patches.wrap import Wrapper, argument
from otel_smol.spans.owner import Owner
from otel_smol.spans.run import RunSpan
from otel_smol.spans.step import StepSpan

if TYPE_CHECKING:
    from otel_smol.patches import Patches


def step(patches: Patches) -> Wrapper:
    """Wrap `step(memory_step)`: for who drives an agent by hand, whose class no run has shown us."""

    def wrapper(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if patches.active:
            patches.observe_agent(agent)
        return wrapped(*args, **kwargs)

    return wrapper


def step_stream(patches: Patches) -> Wrapper:
    """Wrap `_step_stream(memory_step)` of an agent class."""

    def wrapper(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        memory_step = argument(args, kwargs, 0, "memory_step")
        step = current_scope().step
        inherited = step is not None and step.memory_step is memory_step  # called by way of super()
        if not patches.active or inherited:
            return wrapped(*args, **kwargs)
        begin = partial(_begin_step, patches, agent, memory_step)
        return follow(wrapped, args, kwargs, begin)

    return wrapper


def planning_step(patches: Patches) -> Wrapper:
    """Wrap `_generate_planning_step(task, is_first_step, step)`."""

    def wrapper(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step = current_scope().own_step
        inherited = step is not None and step.facts.type == "planning"
        if not patches.active or inherited:
            return wrapped(*args, **kwargs)
        number = argument(args, kwargs, 2, "step")
        return follow(wrapped, args, kwargs, partial(_begin_planning, patches, agent, number))

    return wrapper


def provide_final_answer(patches: Patches) -> Wrapper:
    """Wrap `provide_final_answer(task)`: the extra call at `max_steps`.

    smolagents turns a failure of the model into an answer here, so the step takes its error from the call.
    """

    def wrapper(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = current_scope()
        inherited = scope.step is not None and scope.step.facts.type == "final_answer"
        if not patches.active or inherited:
            return wrapped(*args, **kwargs)
        step: StepSpan | None = None
        with guarded("starting a final-answer step"):
            step = _begin(patches, agent, "final_answer", getattr(agent, "step_number", None))
            if isinstance(step.run, RunSpan):
                step.run.reached_max_steps = True
        if step is None:
            return wrapped(*args, **kwargs)
        try:
            with attached(step.context):
                result = wrapped(*args, **kwargs)
        except BaseException as error:
            with guarded("ending a final-answer step"):
                _end(step, error)
            raise
        with guarded("ending a final-answer step"):
            text = getattr(result, "content", None)
            step.pending_characters = len(text) if isinstance(text, str) else 0
            step.is_final_answer = True
            _end(step, step.failed_call)
        return result

    return wrapper


def finalize_step(patches: Patches) -> Wrapper:
    """Wrap `_finalize_step(memory_step)`: the end of a step whose generator was left early.

    That is how a failed check of the final answer looks from within: the error is on the memory step by now.
    """

    def wrapper(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with guarded("finalizing a step"):
            memory_step = argument(args, kwargs, 0, "memory_step")
            run = current_scope().run
            for step in list(run.open_steps) if run is not None else ():
                if step.memory_step is memory_step and memory_step is not None:
                    afterwards(_finalized, step)
        return wrapped(*args, **kwargs)

    return wrapper


def _finalized(step: StepSpan) -> None:
    step.is_final_answer = getattr(step.memory_step, "is_final_answer", False) is True
    step.pending_characters = characters_left(step.memory_step)
    error = getattr(step.memory_step, "error", None)
    _end(step, error if isinstance(error, BaseException) else None)


class StepWatch:
    """Follows an action step."""

    def __init__(self, patches: Patches, step: StepSpan) -> None:
        self._patches, self._step = patches, step
        self.context = step.context
        self._observed: list[tuple[str, int]] = []

    def item(self, item: Any) -> None:
        kind = type(item).__name__
        if kind == "ToolOutput" and isinstance(item.observation, str):
            self._observed.append((item.tool_call.name, len(item.observation)))
        elif kind == "ToolCall":
            self._step.pending_tool_calls[item.id] = item.name, item.arguments
            if item.name == "python_interpreter":  # has no span that would begin its series
                run = self._step.run
                run.telemetry.metrics.tool_started(run.metric_name, run.metric_tool_name(item.name))
        elif kind in ("ActionOutput", "FinalOutput"):
            self._step.is_final_answer = getattr(item, "is_final_answer", False) is True

    def finish(self, result: object) -> None:
        self._end(None)

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def closed(self) -> None:
        self._keep_outputs()
        if not isinstance(self._step.run, RunSpan):  # else `_finalize_step` follows, or the end of the run
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._keep_outputs()
        with guarded("sizing a finished step"):
            self._step.pending_characters = characters_left(self._step.memory_step)
        _end(self._step, error)

    def _keep_outputs(self) -> None:
        memory_step, outputs = self._step.memory_step, self._observed or self._step.facts.tool_outputs
        with guarded("noting what a step's tools returned"):
            facts = self._patches.memory_steps.facts(memory_step)
            facts.outputs = tuple(outputs)
            names = [name for name, _ in self._step.pending_tool_calls.values()]
            facts.remainder = "python_interpreter" if "python_interpreter" in names else None


class PlanWatch:
    """Follows a planning step."""

    def __init__(self, step: StepSpan) -> None:
        self._step = step
        self.context = step.context

    def item(self, item: Any) -> None:
        plan = getattr(item, "plan", None)
        if isinstance(plan, str):
            self._step.pending_characters = len(plan)

    def finish(self, result: object) -> None:
        _end(self._step, None)

    def fail(self, error: BaseException) -> None:
        _end(self._step, error)

    def closed(self) -> None:
        _end(self._step, None)


def _end(step: StepSpan, error: BaseException | None) -> None:
    if step.finished:
        return
    step.exception = error
    if error is not None:
        step.run.ledger.recovered_errors += 1  # taken back if it ends the run
        step.run.last_error = error
    step.finish()


def _begin_step(patches: Patches, agent: Any, memory_step: Any) -> StepWatch | None:
    if not patches.active:
        return None
    number = getattr(memory_step, "step_number", None)
    return StepWatch(patches, _begin(patches, agent, "action", number, memory_step))


def _begin_planning(patches: Patches, agent: Any, number: Any) -> PlanWatch | None:
    if not patches.active:
        return None
    return PlanWatch(_begin(patches, agent, "planning", number))


def _begin(patches: Patches, agent: Any, type: str, number: Any, memory_step: Any = None) -> StepSpan:
    step = StepSpan(_owner(patches, agent), type, number if isinstance(number, int) else None, memory_step)
    try:
        with guarded("observing a step's model"):  # it may be another one, or have another method, than at the start
            step.release = patches.hold_model(model_of(agent))
    except BaseException:
        step.finish()
        raise
    return step


def _owner(patches: Patches, agent: Any) -> Owner:
    """The run that the step belongs to; for steps driven by hand, what stands for it as long as the agent lives."""
    run = current_scope().run
    if run is not None and run.subject is agent:
        return run
    patches.look_around()
    owner = patches.by_hand(agent)
    owner.parent = run  # now: the agent may outlive the run within which it was first driven
    return owner


def owner_by_hand(patches: Patches, agent: Any) -> Owner:
    """What steps belong to that somebody drives by hand (`agent.step(...)`)."""
    facts = agent_facts(agent, None, patches.turns(agent, reset=False).group)
    owner = Owner(patches.telemetry, facts, new_ledger(patches, agent, facts), None, agent)
    patches.telemetry.metrics.touch(owner.metric_name, facts.model_id)
    return owner
