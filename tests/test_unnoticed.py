"""Programs that would notice a wrapper: what they do with methods, contexts and arguments, they do as without us."""

from __future__ import annotations

import copy
import dataclasses
import decimal
import functools
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any

import pytest
import smolagents.local_python_executor as local_executor
from smolagents import CodeAgent, Model, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, MessageRole

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings, attributes
from tests.programs import PATIENCE, PROGRAM_SECONDS, ROOT, environment
from tests.rules import USAGE, totals
from tests.scripted import (
    FINAL_CODE,
    Script,
    ScriptedModel,
    agent,
    code,
    each_class,
    make_tool,
    managed_call,
    step_replies,
)

# --- arguments -------------------------------------------------------------------------------------------------------


class Reading(Model):  # type: ignore[misc]
    """Says how much it was sent."""

    def generate(self, messages: Iterable[Any], tools_to_call_from: Iterable[Any] = (), **kwargs: Any) -> ChatMessage:
        sizes = len(list(messages)), len(list(tools_to_call_from))
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"{sizes[0]} messages, {sizes[1]} tools")


def test_what_can_be_read_once_is_left_to_the_model(observed_content: Observed, warned: Warnings) -> None:
    """Messages and tools may be iterators: the model gets them whole. Their sizes are unknown, and nothing is wrong."""
    message, tool = {"role": "user", "content": "hi"}, make_tool(Script().truth)
    model = Reading(model_id="reading")
    assert model.generate(iter([message] * 3), tools_to_call_from=[tool]).content == "3 messages, 1 tools"
    assert model.generate([message], tools_to_call_from=iter([tool] * 2)).content == "1 messages, 2 tools"
    assert model(map(dict, [message] * 2)).content == "2 messages, 0 tools"
    assert len(observed_content.chats) == 3
    assert not any(sc.HISTORY_MESSAGES in attributes(chat) for chat in observed_content.chats)
    assert warned.of("failed") == []


# --- context variables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [False, True])
def test_generated_code_sees_no_other_context_variable(watched: bool, observe: Callable[..., Observed]) -> None:
    """The precision of `decimal` is a context variable of the program's thread: a tool in a pool thread has its own."""
    if watched:
        observe()
    script = Script()
    tool = make_tool(script.truth, does=lambda n: str(decimal.Decimal(n) / 3))
    script = Script(code("final_answer(search(1))"), truth=script.truth)
    with decimal.localcontext() as mine:
        mine.prec = 6
        result = agent(CodeAgent, script, tools=[tool]).run("the task")
    pooled = hasattr(local_executor, "timeout")  # smolagents 1.20 runs the code in the program's thread
    assert len(result) == len("0.") + (28 if pooled else 6)


def run_alone(source: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    command = [sys.executable, "-c", source]
    return subprocess.run(
        command, cwd=ROOT, env=environment(None), capture_output=True, text=True, timeout=PROGRAM_SECONDS
    )


ABANDONED = """
import contextvars, gc, sys
from opentelemetry.context import attach, detach, get_current, set_value
from smolagents import CodeAgent
from otel_smol import SmolagentsInstrumentor
from tests.scripted import Script, agent, step_replies

SmolagentsInstrumentor().instrument()
sys.unraisablehook = lambda _: None
variables = [contextvars.ContextVar(f"v{i}") for i in range(40)]
for variable in variables:
    variable.set(object())
for i in range(60):
    gc.collect()
    gc.disable()
    stream = agent(CodeAgent, Script(*step_replies(CodeAgent, 3))).run("the task", stream=True)
    next(stream)
    cycle = [stream]
    cycle.append(cycle)
    del stream, cycle
    context = set_value("key", [i])
    gc.set_threshold(gc.get_count()[0] + i % 12 + 1, 1000, 1000)
    gc.enable()
    token = attach(context)  # the collector runs within
    assert get_current() is context
    detach(token)
    gc.set_threshold(700, 10, 10)
print("survived")
"""


def test_a_stream_that_is_collected_while_a_variable_is_set() -> None:
    """The collector may finalize an abandoned stream within a `ContextVar.set`. Up to 3.11 Python crashes if that
    sets a variable of the same context."""
    done = run_alone(ABANDONED)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["survived"]), done.stderr[-2000:]


COLLECTED = """
import faulthandler, gc, random, sys
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from smolagents import CodeAgent, ToolCallingAgent
from otel_smol import SmolagentsInstrumentor
from tests.scripted import Script, agent, step_replies

faulthandler.dump_traceback_later(240, exit=True)
sys.unraisablehook = lambda _: None
reader = InMemoryMetricReader()
SmolagentsInstrumentor().instrument(tracer_provider=TracerProvider(), meter_provider=MeterProvider([reader]))
at = random.Random(1)
for i in range(200):
    gc.disable()
    stream = agent(CodeAgent, Script(*step_replies(CodeAgent, 3))).run("the task", stream=True)
    next(stream)
    cycle = [stream]
    cycle.append(cycle)
    del stream, cycle
    other = agent(ToolCallingAgent, Script(*step_replies(ToolCallingAgent, 3)))
    gc.set_threshold(gc.get_count()[0] + {soon}, 1_000_000, 1_000_000)
    gc.enable()
    {meanwhile}  # the collector runs within
    gc.set_threshold(700, 10, 10)
    gc.collect()
print("survived")
"""


@pytest.mark.parametrize(
    ("meanwhile", "soon"),
    [("reader.get_metrics_data()", "5 + 3 * i"), ('other.run("the task")', "at.randrange(10, 1500)")],
    ids=["metrics are read", "another agent runs"],
)
def test_a_stream_that_is_collected_while_a_lock_is_held(meanwhile: str, soon: str) -> None:
    """P22: the collector may finalize an abandoned stream where its thread holds a lock of the SDK's or of ours. What
    then ends is counted under the same locks: neither is waited for by itself."""
    source = COLLECTED.format(meanwhile=meanwhile, soon=soon)
    done = run_alone(source)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["survived"]), done.stderr[-2000:]


LATE = """
import sys
from otel_smol import SmolagentsInstrumentor

SmolagentsInstrumentor().instrument()

class Session:
    def __del__(self):
        self.rows = [[i] for i in range(50_000)]

session = Session()
sys.excepthook = lambda *args, session=session: session
del session
"""


def test_garbage_of_the_very_end() -> None:
    """An object that goes when all modules are empty already, and lets the collector run once more: not a word."""
    done = run_alone(LATE)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_that_garbage_makes(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer may make one, where this thread is about to wrap another class and holds our lock."""

    class Made(Reading):
        def generate(self, *args: Any, **kwargs: Any) -> ChatMessage:
            return super().generate(*args, **kwargs)

    method = vars(Made)["generate"]
    monkeypatch.setattr("otel_smol.patches.model.is_collected", lambda: True)
    Made(model_id="made")
    assert vars(Made)["generate"] is method


# --- methods as values -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Settings:
    """A program's own, with a method of a model in it."""

    ask: Callable[..., Any]


@each_class
def test_methods_copy_and_pickle(cls: type, observed: Observed) -> None:
    """A bound method of a model or an agent goes to a process pool or into a deep copy as without us."""
    subject = cls(tools=[], model=Reading(model_id="reading"))
    for method in (subject.model.generate, subject.run, subject.step, subject.write_memory_to_messages):
        assert copy.copy(method).__self__ is method.__self__
    assert copy.deepcopy([subject.model.generate])[0].__self__ is not subject.model
    assert dataclasses.asdict(Settings(subject.model.generate))["ask"].__self__ is not subject.model
    assert pickle.loads(pickle.dumps(Reading.generate))(Reading(), []).content == "0 messages, 0 tools"
    bound = pickle.loads(pickle.dumps(Reading(model_id="reading").generate))
    SmolagentsInstrumentor().uninstrument()
    assert bound([]).content == "0 messages, 0 tools"


# --- borrowed names --------------------------------------------------------------------------------------------------


def retried(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as many libraries have it."""

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except ConnectionError:
            return method(*args, **kwargs)

    return wrapper


@each_class
def test_functools_wraps_hides_nothing(cls: type, observed: Observed, warned: Warnings) -> None:
    """P01, P04: a method to which `functools.wraps` gave the `__wrapped__` of one that we cover is one of its own."""
    script = Script(ConnectionError("once"), *step_replies(cls, 2))

    original: Any = ScriptedModel.generate

    class Borrowing(Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(model_id="scripted")
            self.script, self.usage = script, True

        @functools.wraps(original)
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return original.__wrapped__(self, *args, **kwargs)

    class Retrying(Borrowing):
        generate: Any = retried(Borrowing.generate)

    class Stepping(cls):  # type: ignore[misc]
        @functools.wraps(vars(cls)["_step_stream"])
        def _step_stream(self, memory_step: Any) -> Any:
            yield from super()._step_stream(memory_step)

    class Borrowed(Tool):  # type: ignore[misc]
        name, description, output_type = "search", "Looks something up.", "string"
        inputs = {"n": {"type": "integer", "description": "a number"}}  # noqa: RUF012

        def forward(self, n: int) -> str:
            script.truth.tool_called()
            return "found"

        @functools.wraps(Tool.__call__)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    agent(Stepping, script, tools=[Borrowed()], model=Retrying()).run("the task")
    assert (len(observed.chats), len(observed.steps)) == (2, 2)
    assert "execute_tool search" in {span.name for span in observed.spans}
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert warned.lines == []


# --- properties ------------------------------------------------------------------------------------------------------


def test_a_property_is_read_as_often_as_without_us(observe: Callable[..., Observed]) -> None:
    """An agent that takes turns between models, by a property, takes the same turns."""

    class Turning(CodeAgent):  # type: ignore[misc]
        @property
        def model(self) -> Any:
            self.reads = getattr(self, "reads", 0) + 1
            return self.models[self.reads % len(self.models)]

        @model.setter
        def model(self, value: Any) -> None:
            self.models = [value, ScriptedModel(value.script), ScriptedModel(value.script)]

    def reads() -> int:
        subject = agent(Turning, Script(*step_replies(CodeAgent, 4)))
        subject.run("the task")
        return int(subject.reads)

    bare = reads()
    observed = observe()
    assert reads() == bare
    assert len(observed.chats) == 4


# --- what is billed --------------------------------------------------------------------------------------------------


@each_class
def test_all_that_a_model_asks_for_is_billed(cls: type, observed: Observed, warned: Warnings) -> None:
    """The best of three answers costs three, whatever the one that is returned says."""
    script = Script(*(reply for reply in step_replies(cls, 2) for _ in range(3)))

    class BestOfThree(ScriptedModel):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            ask = super().generate
            return [ask(*args, **kwargs) for _ in range(3)][-1]

    agent(cls, script, model=BestOfThree(script)).run("the task")
    assert len(observed.chats) == 2
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert totals(observed.runs, sc.RUN_INPUT_TOKENS) == (script.truth.input_tokens,)
    assert warned.lines == []


@each_class
def test_what_a_thread_does_after_the_call_that_started_it(cls: type, observed: Observed, warned: Warnings) -> None:
    """A thread keeps the context of the model call that started it, and makes calls and runs of its own when that
    is long over: each has its span."""
    jobs: queue.Queue[Callable[[], Any] | None] = queue.Queue()
    threads: list[threading.Thread] = []

    def work() -> None:
        while (job := jobs.get()) is not None:
            job()

    class Starting(ScriptedModel):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            if not threads:
                threads.append(threading.Thread(target=copy_context().run, args=(work,)))
                threads[0].start()
            return super().generate(*args, **kwargs)

    script = Script(*step_replies(cls, 2), *step_replies(cls, 2), "judged")
    model = Starting(script)
    agent(cls, script, model=model).run("the task")
    later = agent(cls, script, model=model)
    for job in (lambda: later.run("later"), lambda: model.generate([{"role": "user", "content": "judge"}]), None):
        jobs.put(job)
    threads[0].join(PATIENCE)
    assert (len(observed.runs), len(observed.chats)) == (2, 5)
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert observed.total("gen_ai.client.token.usage", gen_ai__token__type="input") == script.truth.input_tokens
    assert warned.lines == []


def test_what_an_object_became_is_its_tools(observed: Observed) -> None:
    """Of two tools in a step, one returns an object that the model sees as 10,000 characters: it is its, not the
    other's."""

    class Table:
        def __str__(self) -> str:
            return "row " * 2500

    script = Script()
    tools = [
        make_tool(script.truth, "table", does=lambda n: Table()),
        make_tool(script.truth, "ping", does=lambda n: "pong"),
    ]
    replies = [[("table", {"n": 1}), ("ping", {"n": 1})], *step_replies(ToolCallingAgent, 1)]
    agent(ToolCallingAgent, Script(*replies, truth=script.truth), tools=tools).run("the task")
    last = attributes(observed.chats[-1])
    shares = dict(zip(last[sc.HISTORY_TOOL_NAMES], last[sc.HISTORY_TOOL_TOKENS], strict=True))
    assert shares["table"] > 100 * shares["ping"]


# --- numbers that mean "no limit" ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [10**9, sys.maxsize, 10**30, float("inf")])
def test_no_limit_to_speak_of(limit: Any, observed: Observed, warned: Warnings) -> None:
    """Such a `max_steps` gives no forecast that OTLP could not carry, and breaks no export."""
    script = Script(*step_replies(CodeAgent, 6))
    agent(CodeAgent, script, tools=[make_tool(script.truth, size=40_000)], max_steps=limit).run("the task")
    for span in observed.spans:
        numbers = [value for value in attributes(span).values() if isinstance(value, int)]
        assert all(abs(number) < 1 << 63 for number in numbers)
    [run] = observed.runs
    assert attributes(run).get(sc.MAX_STEPS) == (limit if limit in (10**9, sys.maxsize) else None)
    assert warned.lines == []


def test_a_seed_that_otlp_cannot_carry(observed: Observed, warned: Warnings) -> None:
    """It is left out; the span is whole."""
    script = Script(FINAL_CODE)
    model = ScriptedModel(script)
    model.kwargs = {"seed": 1 << 63, "top_k": 40}
    agent(CodeAgent, script, model=model).run("the task")
    [chat] = observed.chats
    assert sc.REQUEST_SEED not in attributes(chat)
    assert attributes(chat)[sc.REQUEST_TOP_K] == 40
    assert warned.lines == []


# --- what only stands for an agent -----------------------------------------------------------------------------------


class Robot:
    """Called like a managed agent, and no agent of smolagents': its `step` is something else."""

    name, description = "robot", "Walks."

    def __call__(self, task: str, **kwargs: Any) -> str:
        return f"{self.step(2)} for {task}"

    def step(self, length: int) -> str:
        return f"{length} metres"


@each_class
def test_what_only_stands_for_an_agent(cls: type, observed: Observed, warned: Warnings) -> None:
    """It is seen where it is called as one, and left alone in all else."""
    script = Script(managed_call(cls, "robot"), step_replies(cls, 1)[0])
    subject = agent(cls, script, tools=[], managed_agents=[Robot()])
    subject.run("the task")
    assert Robot().step(3) == "3 metres"
    assert "execute_tool robot" in {span.name for span in observed.tools}
    assert len(observed.steps) == 2
    assert warned.lines == []
