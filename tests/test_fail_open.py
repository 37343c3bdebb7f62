"""Fail-open: whatever breaks, in smolagents or in us, the agent does what it would do without us (P07)."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import smolagents
from opentelemetry.sdk.metrics import Counter as SDKCounter
from opentelemetry.sdk.metrics import Histogram as SDKHistogram
from opentelemetry.sdk.trace import Span as SDKSpan
from opentelemetry.sdk.trace import Tracer as SDKTracer
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.invocation import GenAIInvocation
from smolagents import AgentGenerationError, CodeAgent, Model, MultiStepAgent, Tool, ToolCallingAgent

import otel_smol
from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from otel_smol.metrics import forget_live_runs
from tests import scripted
from tests.conftest import CONTENT_VARIABLE, Observed, Warnings, attributes
from tests.scripted import (
    AGENT_CLASSES,
    Cell,
    Reply,
    Script,
    ScriptedModel,
    agent,
    code,
    each_class,
    each_form,
    make_tool,
    managed_call,
    memory,
    step_replies,
)

SHORT_PROMPTS = {
    "system_prompt": "the system prompt",
    "planning": {"initial_plan": "plan", "update_plan_pre_messages": "old", "update_plan_post_messages": "new plan"},
    "managed_agent": {"task": "{{task}}", "report": "{{final_answer}}"},
    "final_answer": {"pre_messages": "answer", "post_messages": "{{task}}"},
}
"""Most of an agent's time goes into the templates of its prompts."""


class Answering(ScriptedModel):
    """Answers as a provider does, with a raw response."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().generate(*args, **kwargs)
        answer.raw = Raw()
        return answer


class Raw:
    """A provider's response."""

    id, model, stopReason, choices = "id", "model", None, ()
    usage = None


class Search(Tool):  # type: ignore[misc]
    """A tool."""

    name, description, output_type = "search", "Looks something up.", "string"
    inputs = {"n": {"type": "integer", "description": "a number"}}  # noqa: RUF012

    def forward(self, n: int) -> str:
        return f"result {n}"


def build(cls: Any, make: Callable[[type], type] = lambda kind: kind) -> tuple[Script, Any]:
    """An agent that plans, calls a tool and a managed agent, fails once, and comes to the end of its steps.

    `make` stands for what becomes of each class that it is built from.
    """
    script = Script()
    streamed = cls is ToolCallingAgent

    def member(cls: Any, replies: list[Reply], **kwargs: Any) -> Any:
        own = Script(*replies, truth=script.truth)
        kwargs.setdefault("prompt_templates", SHORT_PROMPTS)
        return agent(make(cls), own, model=make(Answering)(own), stream_outputs=streamed, **kwargs)

    checks = [lambda answer, memory, agent: len(memory.steps) > 1]  # not at the first attempt
    replies = step_replies(cls, 1) * 2
    worker = member(cls, replies, tools=[], name="worker", description="works", final_answer_checks=checks)
    calls = [("search", {"n": 1}), ("search", {"n": 2})] if streamed else code("print(search(1), search(2))")
    replies = ["a plan", calls, "no code, no call", "a new plan", managed_call(cls, "worker")]
    boss = member(
        cls,
        [*replies, "as far as I got"],
        tools=[make(Search)()],
        managed_agents=[worker],
        planning_interval=2,
        max_steps=3,
    )
    return script, boss


def run(cls: Any, make: Callable[[type], type] = lambda kind: kind) -> tuple[Any, ...]:
    """What such an agent does: its result, its memory, the calls that it made."""
    script, boss = build(cls, make)
    [worker] = boss.managed_agents.values()
    result = list(boss.run("the task", stream=True))[-1].output if cls is ToolCallingAgent else boss.run("the task")
    return result, repr(memory(boss)), repr(memory(worker)), script.truth.calls, script.truth.input_tokens


@cache
def without_us() -> dict[Any, tuple[Any, ...]]:
    """What such agents do by themselves."""
    assert not SmolagentsInstrumentor().is_instrumented_by_opentelemetry
    return {cls: run(cls) for cls in AGENT_CLASSES}


def calls_without_us() -> int:
    """Model calls of both, and of their managed agents."""
    return sum(calls for *_, calls, _ in without_us().values())


def check_unchanged(make: Callable[[type], type] = lambda kind: kind) -> None:
    """They do the same with us."""
    for cls, expected in without_us().items():
        different = [pair for pair in zip(run(cls, make), expected, strict=True) if pair[0] != pair[1]]
        assert not different


@pytest.fixture(autouse=True)
def done_without_us() -> None:
    """See what they do by themselves before we are switched on."""
    without_us()


# --- reading what is smolagents' or the user's -----------------------------------------------------------------------

READ = {
    "agent": "description managed_agents max_steps memory model name planning_interval state step_number tools",
    "memory": "steps",
    "model": "__dict__ kwargs model_id",
    "tool": "description name",
    "message": "__dict__ content raw role token_usage tool_calls",
    "delta": "content plan token_usage tool_calls",
    "usage": "cache_creation_input_tokens cache_read_input_tokens cache_read_tokens cache_write_tokens "
    "cached_input_tokens input_tokens output_tokens",
    "raw": "choices id model stopReason usage",
    "action step": "error is_final_answer model_output observations plan step_number tool_calls",
    "planning step": "plan",
    "tool call": "arguments id name",
    "output": "is_final_answer output",
}
"""What the instrumentation reads of which object. `test_all_reads_are_known` holds it against the truth."""

READS = [(kind, name) for kind, names in READ.items() for name in names.split()]
SILENT = {
    ("message", "token_usage"),
    ("message", "raw"),
    *((kind, name) for kind, name in READS if kind in ("usage", "raw")),
}
"""Read by what never complains: anything may be there, and a call whose usage is unknown is counted as such."""

Read = Callable[[str, str], None]


def watched(cls: Any, kind: str, read: Read) -> Any:
    """A class like this one that tells of each attribute that we read of its instances, and of no other reader."""

    class Watched(cls):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            reader = sys._getframe(1).f_globals["__name__"]
            if reader.startswith("otel_smol") and (name == "__dict__" or not name.startswith("__")):
                read(kind, name)
            return super().__getattribute__(name)

    Watched.__name__, Watched.__qualname__ = cls.__name__, cls.__qualname__
    return Watched


PLACES = {
    "memory": ["agents.AgentMemory"],
    "message": ["models.ChatMessage", "memory.ChatMessage", "agents.ChatMessage"],
    "delta": ["models.ChatMessageStreamDelta"],
    "usage": ["monitoring.TokenUsage", "models.TokenUsage", "agents.TokenUsage"],
    "action step": ["agents.ActionStep"],
    "planning step": ["agents.PlanningStep"],
    "tool call": ["agents.ToolCall"],
    "output": ["agents.ActionOutput", "agents.FinalAnswerStep"],
}
"""Where smolagents takes the classes from whose instances it makes itself."""


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Read], Callable[[Any], Any]]:
    """Have smolagents make watched objects only; and the function that makes them of the user's classes."""
    monkeypatch.setenv(CONTENT_VARIABLE, "SPAN_ONLY")

    def start(read: Read) -> Callable[[Any], Any]:
        for kind, places in PLACES.items():
            for place in places:
                module_name, name = place.split(".")
                module = importlib.import_module(f"smolagents.{module_name}")
                cls = watched(getattr(module, name), kind, read)
                monkeypatch.setattr(module, name, cls)
                monkeypatch.setattr(scripted, name, cls, raising=False)
        monkeypatch.setattr(sys.modules[__name__], "Raw", watched(Raw, "raw", read))
        own = {MultiStepAgent: "agent", ScriptedModel: "model", Tool: "tool"}
        return lambda cls: watched(cls, next(kind for base, kind in own.items() if issubclass(cls, base)), read)

    return start


def test_all_reads_are_known(watch: Callable[[Read], Any], observe: Callable[..., Observed]) -> None:
    """P07: the table is complete: these attributes are read, and no other."""
    found: set[tuple[str, str]] = set()
    make = watch(lambda kind, name: found.add((kind, name)))
    observe()
    for cls in AGENT_CLASSES:
        run(cls, make)
    assert found == set(READS)


@pytest.mark.parametrize("error", [RuntimeError, AttributeError], ids=["raising", "missing"])
@pytest.mark.parametrize(("kind", "name"), READS)
def test_reads_that_fail(
    kind: str,
    name: str,
    error: type[Exception],
    watch: Callable[[Read], Any],
    observe: Callable[..., Observed],
    warned: Warnings,
) -> None:
    """P07: each attribute that we read raises, or is missing: the agent does the same, with one line at most."""
    faults = 0

    def fail(of: str, what: str) -> None:
        nonlocal faults
        if (of, what) == (kind, name):
            faults += 1
            raise error("broken")

    make = watch(fail)
    observed = observe()
    check_unchanged(make)
    assert faults
    assert observed.recorder.open == 0
    assert len(observed.runs) == 4
    assert len(observed.chats) == calls_without_us()
    if error is RuntimeError and (kind, name) not in SILENT:
        assert len(warned.lines) == 1
    assert len(warned.lines) <= 1


def test_a_failing_run_of_a_broken_agent(observe: Callable[..., Observed], warned: Warnings) -> None:
    """P07: how a run ended cannot be read: it has ended all the same, with the agent's error."""

    def fail(kind: str, name: str) -> None:
        if name == "interrupt_switch":
            raise RuntimeError("broken")

    observed = observe()
    script = Script(*step_replies(CodeAgent, 2))
    subject = agent(watched(CodeAgent, "agent", fail), script, step_callbacks=[lambda step, agent: agent.interrupt()])
    with pytest.raises(smolagents.AgentError, match="interrupted"):
        subject.run("the task")
    assert observed.run[sc.RUN_STATE] == "error"
    assert observed.recorder.open == 0
    assert len(warned.lines) == 1


# --- our own faults --------------------------------------------------------------------------------------------------

OURS = (
    "patches",
    "content",
    "curve",
    "history",
    "ledger",
    "metrics",
    "provider",
    "spans",
    "telemetry",
    "usage",
    "weak",
)


def our_functions() -> Iterator[tuple[str, Any, str]]:
    """Every function and method that runs on behalf of an agent: its name, who has it, under which name."""
    for info in pkgutil.walk_packages(otel_smol.__path__, "otel_smol."):
        if info.name.split(".")[1] in OURS:
            module = importlib.import_module(info.name)
            classes = [cls for cls in vars(module).values() if inspect.isclass(cls)]
            for holder in (module, *classes):
                for name, value in vars(holder).items():
                    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                    if inspect.isfunction(function) and function.__code__.co_filename == module.__file__:
                        yield f"{info.name}.{function.__qualname__}".removeprefix("otel_smol."), holder, name


PASSED_THROUGH = {
    "patches.Patches.active",
    "patches.generator._advance",
    "patches.generator._drive",
    "patches.generator.drive",
    "patches.generator.follow",
    "patches.generator.followed_items",
    "patches.memory.to_messages",
    "patches.model.Models.made",
    "patches.generator._advance_within",
    "garbage._note",
    "garbage.apart",
    "garbage.is_collected",
    "patches.nested.OpenCalls.around",
    "patches.nested.generate_nested",
    "patches.proxies.Function.__call__",
    "patches.proxies.Function.__get__",
    "patches.wrap.argument",
}
"""What the agent's own work passes through, unguarded: kept so small that there is nothing in it to break."""

ENDING = {
    "patches.model.StreamWatch._end",
    "spans.call.CallSpan.finish",
    "spans.run.RunSpan.finish",
    "spans.step.StepSpan.finish",
    "telemetry.Telemetry.error",
    "spans.tool.ToolSpan.finish",
    "spans.owner.end",
    "GenAIInvocation.stop",
    "GenAIInvocation.fail",
}
"""What ends spans, or is needed to: where it breaks, a span stays open."""

FUNCTIONS = {name: (holder, attribute) for name, holder, attribute in our_functions() if name not in PASSED_THROUGH}
FUNCTIONS |= {
    f"{holder.__name__}.{name}": (holder, name)
    for holder, names in (
        (TelemetryHandler, ("inference", "tool", "invoke_local_agent", "should_capture_content")),
        (GenAIInvocation, ("stop", "fail", "record_stream_chunk", "_record_client_metrics")),
        (SDKTracer, ("start_span",)),
        (SDKSpan, ("set_attributes", "set_attribute", "set_status")),
        (SDKCounter, ("add",)),
        (SDKHistogram, ("record",)),
    )
    for name in names
}


@pytest.fixture
def forgetful() -> Iterator[None]:
    """What a fault has left behind is not the next test's."""
    yield
    forget_live_runs()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_our_own_faults(
    function: str, observe: Callable[..., Observed], warned: Warnings, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P07: any function of ours, or that we build on, raises: the agent does the same, with one line; no span leaks."""
    monkeypatch.setenv(CONTENT_VARIABLE, "SPAN_ONLY")
    faults = 0

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal faults
        faults += 1
        raise RuntimeError("a fault of ours")

    holder, name = FUNCTIONS[function]
    original = inspect.getattr_static(holder, name)
    if inspect.ismodule(holder):
        for module in [module for key, module in list(sys.modules.items()) if key.startswith("otel_smol")]:
            for alias, value in list(vars(module).items()):
                if value is original:
                    monkeypatch.setattr(module, alias, fail)
    else:
        monkeypatch.setattr(holder, name, property(fail) if isinstance(original, property) else fail)
    observed = observe()
    check_unchanged()
    monkeypatch.undo()
    SmolagentsInstrumentor().uninstrument()
    assert len(warned.lines) == bool(faults)
    assert observed.recorder.open == 0 or function in ENDING


# --- what is missing -------------------------------------------------------------------------------------------------


TARGETS = {
    **{
        f"MultiStepAgent.{name}": MultiStepAgent
        for name in (
            *("run", "step", "provide_final_answer", "write_memory_to_messages", "__call__"),
            *("_finalize_step", "_generate_planning_step"),
        )
    },
    "Tool.__call__": Tool,
    "Model.__init__": Model,
    "agents.MultiStepAgent": smolagents.agents,
    "memory.MemoryStep": smolagents.memory,
    "models.Model": smolagents.models,
    "models.get_tool_json_schema": smolagents.models,
    "tools.Tool": smolagents.tools,
}


@pytest.mark.parametrize("target", TARGETS)
def test_missing_targets(
    target: str, observe: Callable[..., Observed], warned: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P07: what a version of smolagents lacks is skipped, with one line that names it; the rest is observed."""
    with monkeypatch.context() as patch:
        patch.delattr(TARGETS[target], target.split(".")[1])
        observed = observe()
    check_unchanged()
    assert observed.recorder.open == 0
    if target != "agents.MultiStepAgent":
        assert len(observed.chats) == calls_without_us()
    [line] = warned.lines
    assert f"no {target}:" in line


def test_all_missing(observe: Callable[..., Observed], warned: Warnings, monkeypatch: pytest.MonkeyPatch) -> None:
    """P07: several at once: one line for each."""
    with monkeypatch.context() as patch:
        methods = [target for target, holder in TARGETS.items() if inspect.isclass(holder)]
        for target in methods:
            patch.delattr(TARGETS[target], target.split(".")[1])
        observe()
    check_unchanged()
    assert len(warned.lines) == len(methods)


# --- what is not ours to swallow -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("model", KeyboardInterrupt),
        ("tool", SystemExit),
        ("callback", asyncio.CancelledError),
        ("check", GeneratorExit),
        ("tool", KeyboardInterrupt),
    ],
)
@each_form
@each_class
def test_interrupts_pass(
    cls: type, consumed: str, place: str, error: type[BaseException], observed: Observed, warned: Warnings
) -> None:
    """P07: Ctrl-C and its like in the agent's own code: the very object comes out, and all spans have ended."""
    raised = error("now")

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        raise raised

    cell = Cell(cls, consumed)
    script = Script(raised) if place == "model" else Script(*cell.replies(2))
    tools = [make_tool(script.truth, does=interrupt)] if place == "tool" else None
    callbacks = [lambda step: interrupt()] if place == "callback" else []
    checks = [interrupt] if place == "check" else []
    subject = cell.agent(script, tools=tools, step_callbacks=callbacks, final_answer_checks=checks)
    with pytest.raises(error) as caught:
        cell.run(subject)
    assert caught.value is raised
    assert observed.run[sc.RUN_STATE] == "interrupted"
    assert attributes(observed.runs[0])[sc.ERROR_TYPE].endswith(error.__name__)
    assert observed.recorder.open == 0
    assert warned.lines == []


IN_OUR_CODE = (
    ("otel_smol.patches.model", "_read_prompt"),
    ("otel_smol.patches.model", "_read_answer"),
    ("otel_smol.patches.step", "characters_left"),
    ("otel_smol.metrics", "Metrics.step_ended"),
    ("otel_smol.metrics", "Metrics.run_ended"),
    ("otel_smol.metrics", "Metrics.call_ended"),
    ("otel_smol.ledger", "RunLedger.end_call"),
    ("otel_smol.spans.step", "StepSpan._attributes"),
    ("otel_smol.spans.run", "RunSpan._attributes"),
)
"""Where an interrupt may catch us at work."""


@pytest.fixture
def interrupt_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[str, str], Callable[[], None]], None]:
    """Make something happen whenever a function of ours is called."""

    def arrange(place: tuple[str, str], act: Callable[[], None]) -> None:
        holder: Any = importlib.import_module(place[0])
        *path, name = place[1].split(".")
        for each in path:
            holder = getattr(holder, each)
        original = getattr(holder, name)

        def caught(*args: Any, **kwargs: Any) -> Any:
            act()
            return original(*args, **kwargs)

        monkeypatch.setattr(holder, name, caught)

    return arrange


@pytest.mark.parametrize("place", IN_OUR_CODE, ids=lambda place: place[1])
@each_class
def test_an_interrupt_within_our_code(
    cls: type,
    place: tuple[str, str],
    interrupt_in: Callable[..., None],
    observed: Observed,
) -> None:
    """P07: Ctrl-C while we are at work goes through to the program; no span stays open, and no run is live."""
    pending = [KeyboardInterrupt("now")]

    def interrupt() -> None:
        if pending:
            raise pending.pop()

    interrupt_in(place, interrupt)
    script = Script(*step_replies(cls, 2))
    with pytest.raises(KeyboardInterrupt, match="now"):
        agent(cls, script).run("the task")
    assert observed.recorder.open == 0
    assert observed.total("smolagents.active_runs") == 0


class TimeIsUp(Exception):
    """What libraries raise from a signal handler: celery's `SoftTimeLimitExceeded`, for one."""


class Limit:
    """Handlers of all kinds."""

    def method(self, number: int, frame: object) -> None:
        raise TimeIsUp

    def __call__(self, number: int, frame: object) -> None:
        raise TimeIsUp


@pytest.mark.parametrize("handler", [Limit().method, Limit(), functools.partial(Limit.method, Limit())])
@pytest.mark.parametrize("place", IN_OUR_CODE, ids=lambda place: place[1])
@each_class
def test_a_time_limit_within_our_code(
    cls: type, place: tuple[str, str], handler: Any, interrupt_in: Callable[..., None], observed: Observed
) -> None:
    """P07: a signal handler that raises is the program's: it is not taken for a fault of ours, where it comes in."""
    pending = [True]

    def interrupt() -> None:
        if pending and pending.pop():
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        interrupt_in(place, interrupt)
        subject = agent(cls, Script(*step_replies(cls, 2)))
        with pytest.raises((TimeIsUp, AgentGenerationError)) as caught:  # what smolagents makes of it in a model call
            subject.run("the task")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(caught.value, TimeIsUp) or isinstance(caught.value.__cause__, TimeIsUp)
    assert observed.recorder.open == 0
