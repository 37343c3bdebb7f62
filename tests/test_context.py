"""Context: one trace per run, and every span where it belongs, whatever threads and executors are used (P13 to P18)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from typing import Any

import pytest
import smolagents.local_python_executor as local_executor
from opentelemetry import propagate, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from smolagents import CodeAgent, ToolCallingAgent

from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings, attributes
from tests.programs import PATIENCE
from tests.rules import USAGE, check_all, totals
from tests.scripted import FINAL_CALL, FINAL_CODE, Reply, Script, agent, code, each_class, make_tool, step_replies

CALL_ID = "gen_ai.tool.call.id"

timed = pytest.mark.skipif(not hasattr(local_executor, "timeout"), reason="this smolagents has no timeout")


def traces(observed: Observed) -> set[int]:
    """The traces that our spans are in."""
    return {span.context.trace_id for span in observed.spans if span.context}


@pytest.fixture
def outer() -> Iterator[Any]:
    """A span of the application's, current during the test; exported elsewhere."""
    with TracerProvider().get_tracer("application").start_as_current_span("outer") as span:
        yield span


# --- executors -------------------------------------------------------------------------------------------------------


def copying_timeout(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """smolagents' `timeout` as its open fixes have it: the pool's thread gets a copy of the context."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with local_executor.ThreadPoolExecutor(max_workers=1) as pool:
                return pool.submit(copy_context().run, function, *args, **kwargs).result(timeout=seconds)

        return call

    return decorate


@pytest.mark.parametrize(
    "timeout", ["default", pytest.param("none", marks=timed), pytest.param("copying", marks=timed)]
)
def test_generated_code_sees_the_context(
    timeout: str, observed: Observed, outer: Any, warned: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P13: a tool that generated code calls belongs to the step, whether the executor copies the context or not."""
    if timeout == "copying":
        monkeypatch.setattr(local_executor, "timeout", copying_timeout)
    current: list[Any] = []
    script = Script(*step_replies(CodeAgent, 3))
    tools = [make_tool(script.truth, does=lambda n: current.append(trace.get_current_span()))]
    executor = {"timeout_seconds": None} if timeout == "none" else {}
    agent(CodeAgent, script, tools=tools, executor_kwargs=executor).run("the task")
    check_all(observed, script.truth)
    assert traces(observed) == {outer.get_span_context().trace_id}
    assert {observed.parent(span) for span in observed.tools} == {"agent_step CodeAgent"}
    assert [attributes(step)[sc.STEP_TOOL_CALLS] for step in observed.steps] == [1, 1, 1]
    spans = [span.context.span_id for span in observed.tools if span.context]
    assert [span.get_span_context().span_id for span in current] == spans[:2]
    assert warned.lines == []


def leaving_timeout(began: threading.Event) -> Callable[[float], Callable[..., Any]]:
    """smolagents' `timeout` once it returns in time: the code goes on in its thread.

    The time is up once the code has begun what lasts long, and only then: a busy machine is slow at everything.
    """

    def timeout(seconds: float) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                pool = local_executor.ThreadPoolExecutor(max_workers=1)
                future: Future[Any] = pool.submit(function, *args, **kwargs)
                pool.shutdown(wait=False)
                while not future.done():
                    if began.wait(0.01):
                        began.clear()
                        raise local_executor.ExecutionTimeoutError(f"not within {seconds} seconds")
                return future.result()

            return call

        return decorate

    return timeout


@timed
@pytest.mark.parametrize("ended", ["step", "run"])
def test_code_that_goes_on_after_its_timeout(
    ended: str, observed: Observed, outer: Any, warned: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P17: a tool that ends after its step, or its run, has ended, and one that begins then: right trace and parent."""
    began, go_on, came_to_end = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(local_executor, "timeout", leaving_timeout(began))
    script = Script(code("slow(1)\nlate(2)"), FINAL_CODE)

    def wait(n: int) -> str:
        began.set()
        assert go_on.wait(PATIENCE)
        return "slow result"

    def end(n: int) -> str:
        came_to_end.set()
        return "late result"

    def let_go(step: Any) -> None:
        if ended == "step" and step.step_number == 1:
            go_on.set()
            assert came_to_end.wait(PATIENCE)

    tools = [make_tool(script.truth, "slow", does=wait), make_tool(script.truth, "late", does=end)]
    subject = agent(CodeAgent, script, tools=tools, step_callbacks=[let_go], max_steps=2)
    assert subject.run("the task") == "done"
    go_on.set()
    assert came_to_end.wait(PATIENCE)
    while observed.recorder.open:
        threading.Event().wait(0.01)
    first = next(step for step in observed.steps if attributes(step)[sc.STEP_NUMBER] == 1)
    late = {attributes(span)["gen_ai.tool.name"]: span for span in observed.tools}
    for name in ("slow", "late"):
        assert late[name].parent == first.context
        assert attributes(late[name])[sc.TOOL_OUTPUT_CHARACTERS] == len(f"{name} result")
    assert traces(observed) == {outer.get_span_context().trace_id}
    assert attributes(first)[sc.ERROR_TYPE].endswith("AgentExecutionError")
    assert warned.lines == []


@timed
def test_a_timeout_as_it_is_today(observed: Observed, warned: Warnings, monkeypatch: pytest.MonkeyPatch) -> None:
    """P17: the error comes when the code has ended; the tool's span ends before its step's."""
    time_is_up = threading.Event()

    class Pool(local_executor.ThreadPoolExecutor):  # type: ignore[misc]
        """Left before the code has ended: smolagents gives up, and waits here."""

        def __exit__(self, *raised: Any) -> bool:
            time_is_up.set()
            return bool(super().__exit__(*raised))

    def relent(step: Any, agent: Any) -> None:
        agent.python_executor.timeout_seconds = PATIENCE  # on a busy machine the answer takes its time, too

    monkeypatch.setattr(local_executor, "ThreadPoolExecutor", Pool)
    script = Script(code("slow(1)"), FINAL_CODE)
    tools = [make_tool(script.truth, "slow", does=lambda n: time_is_up.wait(PATIENCE))]
    executor = {"timeout_seconds": 0.02}
    agent(CodeAgent, script, tools=tools, executor_kwargs=executor, step_callbacks=[relent]).run("the task")
    check_all(observed, script.truth)
    assert observed.run[sc.RUN_RECOVERED_ERRORS] == 1
    assert warned.lines == []


# --- parallel tools --------------------------------------------------------------------------------------------------


def team(threads: int | None) -> tuple[Script, Any]:
    """A ToolCallingAgent that calls two tools and two managed agents in one step, and one of them again."""
    script = Script()
    workers = []
    for name in ("worker", "helper"):
        own = Script(*step_replies(ToolCallingAgent, 2) * 2, truth=script.truth)
        workers.append(agent(ToolCallingAgent, own, name=name, description="works", max_tool_threads=threads))
    task = {"task": "a part", "additional_args": {}}
    together: Reply = [("search", {"n": 1}), ("worker", task), ("search", {"n": 2}), ("helper", task)]
    script.replies[:] = [together, [("worker", task)], FINAL_CALL]
    script._next = iter(script.replies)
    return script, agent(ToolCallingAgent, script, managed_agents=workers, max_tool_threads=threads)


def tree(observed: Observed) -> Counter[tuple[str, str | None]]:
    """All spans with their parents, by name."""
    return Counter((span.name, observed.parent(span)) for span in observed.spans)


@pytest.mark.parametrize("threads", [1, 2, 8, None])
def test_parallel_tools(threads: int | None, observe: Callable[..., Observed], warned: Warnings) -> None:
    """P15: four calls in one step, two of them managed agents: siblings under the step, each with its own tokens."""
    observed = observe()
    script, subject = team(threads)
    assert subject.run("the task") == "done"
    check_all(observed, script.truth)
    found = tree(observed)
    first, _, _ = [step for step in observed.steps if step.name == "agent_step ToolCallingAgent"]
    assert attributes(first)[sc.STEP_TOOL_CALLS] == 4
    assert found["execute_tool search", "agent_step ToolCallingAgent"] == 2
    for name, runs in (("worker", 2), ("helper", 1)):
        assert found[f"execute_tool {name}", "agent_step ToolCallingAgent"] == runs
        assert found[f"invoke_agent {name}", f"execute_tool {name}"] == runs
        assert found["execute_tool search", f"agent_step {name}"] == runs
        own = [chat for chat in observed.chats if attributes(chat)[sc.AGENT_NAME] == name]
        ran = [run for run in observed.runs if run.name == f"invoke_agent {name}"]
        assert totals(own, *USAGE) == totals(ran, sc.RUN_INPUT_TOKENS, sc.RUN_OUTPUT_TOKENS)
        assert len(own) == 2 * runs
    assert len(traces(observed)) == 1
    assert warned.lines == []


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_ids_of_parallel_calls(threads: int, observed_content: Observed, warned: Warnings) -> None:
    """P15: calls of one tool in one step are told apart by their arguments, also by those that stand in the state."""
    values: list[Any] = ["first", "second", "third", 4, 4, [1.0]]
    asked: Reply = [("search", {"n": value}) for value in values]
    script = Script(asked, FINAL_CALL)
    state = {"first": 10, "second": Incomparable(), "third": Incomparable()}
    together = threading.Barrier(min(threads, 2))
    search = make_tool(script.truth, does=lambda n: together.wait(PATIENCE) and None)
    search.inputs = {"n": {"type": "any", "description": "anything"}}
    subject = agent(ToolCallingAgent, script, tools=[search], max_tool_threads=threads)
    subject.run("the task", additional_args=state)
    check_all(observed_content, script.truth)
    called = [attributes(span) for span in observed_content.tools if attributes(span)[sc.TOOL_NAME] == "search"]
    assert sorted(call[CALL_ID] for call in called) == [f"call_{i}" for i in range(6)]
    arguments = {call[CALL_ID]: call[sc.TOOL_ARGUMENTS] for call in called}
    assert arguments["call_0"] == '{"n":10}'
    assert arguments["call_3"] == arguments["call_4"] == '{"n":4}'
    assert arguments["call_5"] == '{"n":[1.0]}'
    assert warned.lines == []


class Incomparable:
    """As an array: whether two are equal has no one answer."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


# --- the caller's span -----------------------------------------------------------------------------------------------


@each_class
def test_runs_are_children_of_the_callers_span(cls: type, observed: Observed, warned: Warnings) -> None:
    """P18: under an outer span its children; in a pool with a copied context too; without one, each a root."""
    script = Script(*step_replies(cls, 2) * 3)
    with observed.tracer().start_as_current_span("outer") as outer:
        agent(cls, script).run("the first task")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(copy_context().run, agent(cls, script).run, "the second task").result()
    agent(cls, script).run("the third task")
    assert [observed.parent(run) for run in observed.runs] == ["outer", "outer", None]
    assert len(traces(observed)) == 2
    assert observed.runs[0].context is not None
    assert observed.runs[0].context.trace_id == outer.get_span_context().trace_id
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert warned.lines == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_remote_parent(stream: bool, observed: Observed) -> None:
    """P18: the parent is in another process, known by its `traceparent`."""
    carrier = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    script = Script(*step_replies(CodeAgent, 2))
    token = attach(propagate.extract(carrier))
    try:
        answer = agent(CodeAgent, script).run("the task", stream=stream)
        list(answer)
    finally:
        detach(token)
    [run] = observed.runs
    assert run.parent is not None
    assert f"{run.parent.trace_id:032x}-{run.parent.span_id:016x}" in carrier["traceparent"]
    assert traces(observed) == {run.parent.trace_id}


# --- several at once -------------------------------------------------------------------------------------------------


def meeting(barrier: threading.Barrier) -> Callable[[Any], None]:
    """A callback that lets several runs proceed step by step together."""

    def meet(step: Any) -> None:
        barrier.wait(PATIENCE)

    return meet


def check_apart(observed: Observed, *scripts: Script) -> None:
    """Each run is a trace of its own with the tokens of its own script."""
    assert len(traces(observed)) == len(observed.runs) == len(scripts)
    found = {}
    for run in observed.runs:
        values = attributes(run)
        own = [chat for chat in observed.chats if attributes(chat)[sc.RUN_ID] == values[sc.RUN_ID]]
        assert run.context is not None
        assert {chat.context.trace_id for chat in own if chat.context} == {run.context.trace_id}
        assert totals(own, *USAGE) == (values[sc.RUN_INPUT_TOKENS], values[sc.RUN_OUTPUT_TOKENS])
        found[values[sc.AGENT_NAME]] = len(own), values[sc.RUN_INPUT_TOKENS]
    if len(found) == len(scripts):
        assert list(dict(sorted(found.items())).values()) == [
            (script.truth.calls, script.truth.input_tokens) for script in scripts
        ]


@pytest.mark.parametrize("way", ["threads", "to_thread"])
@each_class
def test_agents_side_by_side(cls: type, way: str, observed: Observed, warned: Warnings) -> None:
    """Three agents in threads, and in `asyncio.to_thread`, step by step together: nothing gets mixed up."""
    barrier = threading.Barrier(3)
    scripts = [Script(*step_replies(cls, 3)) for _ in range(3)]
    runs = [
        partial(agent(cls, script, name=f"agent_{i}", step_callbacks=[meeting(barrier)]).run, f"task {'x' * i}")
        for i, script in enumerate(scripts)
    ]
    if way == "threads":
        with ThreadPoolExecutor(3) as pool:
            results = [future.result() for future in [pool.submit(run) for run in runs]]
    else:

        async def gather() -> list[Any]:
            return await asyncio.gather(*(asyncio.to_thread(run) for run in runs))

        results = asyncio.run(gather())
    assert results == ["done"] * 3
    check_apart(observed, *scripts)
    assert warned.lines == []


@each_class
def test_one_agent_in_two_threads(cls: type, observed: Observed, warned: Warnings) -> None:
    """One agent object runs twice at once, on one memory: two runs, two traces, every call in one of them."""
    barrier = threading.Barrier(2)
    script = Script(*[reply for reply in step_replies(cls, 3) for _ in range(2)])
    subject = agent(cls, script, step_callbacks=[meeting(barrier)])
    with ThreadPoolExecutor(2) as pool:
        results = [future.result() for future in [pool.submit(subject.run, f"task {i}") for i in range(2)]]
    assert results == ["done"] * 2
    check_all(observed, script.truth)
    assert len(traces(observed)) == len(observed.runs) == 2
    assert [attributes(run)[sc.RUN_STEPS] for run in observed.runs] == [3, 3]
    assert warned.lines == []
