"""Streams: a run lives as long as its generator, which behaves as without us however it is consumed (P20 to P27)."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any

import pytest
import smolagents
from opentelemetry import trace
from smolagents.memory import ActionStep
from smolagents.monitoring import Timing, TokenUsage

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings, attributes
from tests.kinds import ClosableIterator, streaming_as
from tests.rules import USAGE, check_all, totals
from tests.scripted import (
    Script,
    ScriptedModel,
    agent,
    deltas,
    each_class,
    memory,
    step_replies,
)

streamed_outputs = pytest.mark.parametrize("stream_outputs", [False, True], ids=["items", "chunks"])

Happened = list[Any]


def advance(stream: Any, happened: Happened, times: int = 1) -> None:
    """Ask for the next items, and note what comes."""
    for _ in range(times):
        attempt(lambda: happened.append(type(next(stream)).__name__), happened)


def attempt(act: Callable[[], Any], happened: Happened) -> None:
    """Do something, and note what it raises."""
    try:
        act()
    except BaseException as error:
        context = error.__context__
        happened.append((type(error), str(error), type(error.__cause__), type(context), str(context)))


# --- consumers: each reads a stream in its way -----------------------------------------------------------------------


def reads_all(stream: Any, happened: Happened) -> None:
    """To the end, and once more."""
    happened.extend(type(item).__name__ for item in stream)
    advance(stream, happened, 2)


def closes_early(stream: Any, happened: Happened) -> None:
    """After the first item, in the middle of a step; twice."""
    advance(stream, happened)
    attempt(stream.close, happened)
    attempt(stream.close, happened)


def closes_between_steps(stream: Any, happened: Happened) -> None:
    """After the first step."""
    while "ActionStep" not in happened:
        advance(stream, happened)
    attempt(stream.close, happened)


def closes_before_the_start(stream: Any, happened: Happened) -> None:
    """Before anything was asked for, which is no error."""
    attempt(stream.close, happened)
    advance(stream, happened)


def closes_after_the_end(stream: Any, happened: Happened) -> None:
    """When there is nothing left."""
    happened.extend(type(item).__name__ for item in stream)
    attempt(stream.close, happened)


def goes_on_after_close(stream: Any, happened: Happened) -> None:
    """smolagents ignores the close, so that one can go on."""
    advance(stream, happened, 2)
    attempt(stream.close, happened)
    advance(stream, happened, 50)


def breaks(stream: Any, happened: Happened) -> None:
    """Out of a loop, and forgets the stream."""
    for item in stream:
        happened.append(type(item).__name__)
        break


def fails(stream: Any, happened: Happened) -> None:
    """With an exception of its own."""

    def fail() -> None:
        for item in stream:
            raise LookupError(type(item).__name__)

    attempt(fail, happened)


def throws(error: BaseException | type[BaseException]) -> Callable[[Any, Happened], None]:
    """An exception into the stream, which takes it as its own; then goes on."""

    def throw(stream: Any, happened: Happened) -> None:
        advance(stream, happened, 2)
        attempt(lambda: happened.append(type(stream.throw(error)).__name__), happened)
        advance(stream, happened, 50)

    throw.__name__ = f"throws_{getattr(error, '__name__', type(error).__name__)}"
    return throw


def throws_at_the_start(stream: Any, happened: Happened) -> None:
    """Before anything was asked for."""
    attempt(lambda: stream.throw(LookupError("early")), happened)
    advance(stream, happened)


def sends(stream: Any, happened: Happened) -> None:
    """A value to a stream that does not look at it; at the start that is an error."""
    attempt(lambda: stream.send("early"), happened)
    attempt(lambda: happened.append(type(stream.send(None)).__name__), happened)
    attempt(lambda: happened.append(type(stream.send("value")).__name__), happened)
    advance(stream, happened, 50)


def delegates(stream: Any, happened: Happened) -> None:
    """From a generator of its own, which is closed."""

    def passing() -> Generator[Any, None, None]:
        yield from stream

    own = passing()
    advance(own, happened, 2)
    attempt(own.close, happened)


def forgets(stream: Any, happened: Happened) -> None:
    """Lets go of the stream after two items."""
    advance(stream, happened, 2)


def never_reads(stream: Any, happened: Happened) -> None:
    """Lets go of it at once."""


CONSUMERS = (
    reads_all,
    closes_early,
    closes_between_steps,
    closes_before_the_start,
    closes_after_the_end,
    goes_on_after_close,
    breaks,
    fails,
    throws(LookupError("thrown")),
    throws(KeyboardInterrupt),
    throws(GeneratorExit),
    throws_at_the_start,
    sends,
    delegates,
    forgets,
    never_reads,
)
COMPLETE = {reads_all, closes_after_the_end, sends}
UNREAD = {closes_before_the_start, throws_at_the_start, never_reads}


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Happened:
    """What Python says of exceptions that it cannot raise, as when a generator is let go of."""
    seen: Happened = []

    def hook(raised: Any) -> None:
        seen.append((raised.exc_type, str(raised.exc_value), getattr(raised.object, "__qualname__", None)))

    monkeypatch.setattr(sys, "unraisablehook", hook)
    return seen


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda consumer: consumer.__name__)
@streamed_outputs
@each_class
def test_behaviour_is_the_same(
    cls: type,
    stream_outputs: bool,
    consumer: Callable[[Any, Happened], None],
    observed: Observed,
    warned: Warnings,
    unraisable: Happened,
) -> None:
    """P22: items, exceptions and memory are those of a bare agent; all spans end, with the tokens so far."""

    def consume(script: Script) -> tuple[Happened, Any, Happened]:
        happened: Happened = []
        subject = agent(cls, script, stream_outputs=stream_outputs)
        consumer(subject.run("the task", stream=True), happened)
        gc.collect()
        ignored, unraisable[:] = list(unraisable), []
        return happened, memory(subject), ignored

    script, bare = Script(*step_replies(cls, 3)), Script(*step_replies(cls, 3))
    result = consume(script)
    assert observed.recorder.open == 0
    assert len(observed.chats) == script.truth.calls
    assert len(observed.runs) == (0 if consumer in UNREAD else 1)
    if consumer in COMPLETE:
        check_all(observed, script.truth)
    elif consumer not in UNREAD:
        assert observed.run[sc.RUN_STATE] == state_after(consumer)
        assert totals(observed.runs, sc.RUN_INPUT_TOKENS) == totals(observed.chats, sc.USAGE_INPUT_TOKENS)
    assert not trace.get_current_span().get_span_context().is_valid
    assert warned.lines == []
    SmolagentsInstrumentor().uninstrument()
    assert result == consume(bare)
    assert script.truth.calls == bare.truth.calls


def state_after(consumer: Callable[..., None]) -> str:
    """How a run ends that is left in this way."""
    return {"throws_LookupError": "error", "throws_KeyboardInterrupt": "interrupted"}.get(
        consumer.__name__, "abandoned"
    )


def closing(ending: str) -> Callable[..., Any]:
    """A `_run_stream` that knows what to do when its consumer leaves, as the open fixes have it; or goes on."""

    def _run_stream(self: Any, task: str, max_steps: int, images: Any = None) -> Any:
        for number in range(1, max_steps + 1):
            step = ActionStep(step_number=number, timing=Timing(time.time()))
            try:
                yield from self._step_stream(step)
            except GeneratorExit:
                self._finalize_step(step)
                if ending == "returns":
                    return
                if ending == "raises anew":
                    raise GeneratorExit from None
            self._finalize_step(step)
            self.memory.steps.append(step)
            yield step

    return _run_stream


@pytest.mark.parametrize("ending", ["returns", "raises anew"])
@streamed_outputs
@each_class
def test_a_stream_that_can_be_closed(
    cls: type, stream_outputs: bool, ending: str, observed: Observed, warned: Warnings, unraisable: Happened
) -> None:
    """P22: after the fix a close is no error; the run is abandoned, not a success."""
    late = type("Late", (cls,), {"_run_stream": closing(ending)})
    script = Script(*step_replies(cls, 3))
    stream = agent(late, script, stream_outputs=stream_outputs).run("the task", stream=True)
    while type(next(stream)).__name__ != "ActionStep":
        pass
    next(stream)
    stream.close()
    assert list(stream) == []
    assert observed.run[sc.RUN_STATE] == "abandoned"
    assert observed.recorder.open == 0
    assert len(observed.steps) == 2
    assert len(observed.chats) == script.truth.calls == 2
    assert (warned.lines, unraisable) == ([], [])


@streamed_outputs
@each_class
def test_a_stream_that_goes_on(cls: type, stream_outputs: bool, observed: Observed, warned: Warnings) -> None:
    """P22: an agent that ignores the close: the run has ended then; what it does later is in its trace all the same."""
    late = type("Late", (cls,), {"_run_stream": closing("goes on")})
    script = Script(*step_replies(cls, 3))
    stream = agent(late, script, stream_outputs=stream_outputs, max_steps=3).run("the task", stream=True)
    next(stream)
    with pytest.raises(RuntimeError, match="generator ignored GeneratorExit"):
        stream.close()
    assert observed.run[sc.RUN_STATE] == "abandoned"
    assert len(list(stream)) > 3
    assert observed.recorder.open == 0
    assert len({span.context.trace_id for span in observed.spans if span.context}) == 1
    assert len(observed.chats) == script.truth.calls == 3
    assert warned.lines == []


# --- the run span and the trace --------------------------------------------------------------------------------------


@streamed_outputs
@each_class
def test_one_trace(cls: type, stream_outputs: bool, observed: Observed) -> None:
    """P20: the run span lives until the generator ends: it is the root of one trace and longer than all its steps."""
    script = Script(*step_replies(cls, 3))
    for _ in agent(cls, script, stream_outputs=stream_outputs).run("the task", stream=True):
        time.sleep(0.001)
    check_all(observed, script.truth)
    [run] = observed.runs
    assert len({span.context.trace_id for span in observed.spans if span.context}) == 1
    assert run.parent is None
    assert observed.spans[-1] is run
    assert seconds(run) >= sum(map(seconds, observed.steps))
    assert seconds(run) > 0.001 * 3


def seconds(span: Any) -> float:
    """How long a span lasted."""
    return float(span.end_time - span.start_time) / 1e9


@each_class
def test_the_generator_looks_the_same(cls: type, observed: Observed) -> None:
    """P22: a generator, with the names of the agent's."""

    def looks() -> list[Any]:
        stream = agent(cls, Script(*step_replies(cls, 1))).run("the task", stream=True)
        before = [inspect.isgenerator(stream), stream.__name__, stream.__qualname__, inspect.getgeneratorstate(stream)]
        next(stream)
        during = [inspect.getgeneratorstate(stream), repr(stream).split(" at ")[0]]
        list(stream)
        return [*before, *during, inspect.getgeneratorstate(stream)]

    watched = looks()
    SmolagentsInstrumentor().uninstrument()
    assert watched == looks()


@pytest.mark.parametrize("use", [lambda stream: None, lambda stream: stream.close()], ids=["forgotten", "closed"])
@each_class
def test_never_started(cls: type, use: Callable[[Any], Any], observed: Observed) -> None:
    """P27: a generator that nobody reads is no run: no span, no metric, no context."""
    subject = agent(cls, Script())
    before = observed.metric_names()
    stream = subject.run("the task", stream=True)
    use(stream)
    del stream
    assert (observed.spans, observed.recorder.open) == ([], 0)
    assert observed.metric_names() == before
    assert observed.total("smolagents.active_runs") == 0
    assert not trace.get_current_span().get_span_context().is_valid


@each_class
def test_a_model_stream_that_nobody_reads(cls: type, observed: Observed, warned: Warnings) -> None:
    """P27: of a generator function nothing has happened; a function that has done its work at once made a call."""
    script = Script("an answer", "an answer")
    lazy, eager = ScriptedModel(script), streaming_as(ClosableIterator)(script)
    lazy.generate_stream([{"role": "user", "content": "a question"}])
    assert observed.recorder.open == script.truth.calls == 0
    stream = eager.generate_stream([{"role": "user", "content": "a question"}])
    assert observed.recorder.open == script.truth.calls == 1
    del stream
    gc.collect()
    [chat] = observed.chats
    assert attributes(chat)[sc.CALL_PARTIAL] is True
    assert observed.recorder.open == 0
    assert warned.lines == []


# --- the consumer's context ------------------------------------------------------------------------------------------


class Consumer:
    """Looks at the current span between two items, and makes one of its own there."""

    def __init__(self, observed: Observed) -> None:
        self.tracer = observed.tracer()
        self.span = trace.get_current_span()
        self.found: list[Any] = []

    def look(self) -> None:
        self.found.append(trace.get_current_span())
        with self.tracer.start_as_current_span("between"):
            pass


@pytest.fixture
def consumer(observed: Observed) -> Iterator[Consumer]:
    """A consumer within a span of its own."""
    with observed.tracer().start_as_current_span("consumer") as span:
        consumer = Consumer(observed)
        yield consumer
    between = [span for span in observed.recorder.ended if span.name == "between"]
    assert len(between) == len(consumer.found) > 0
    assert {observed.parent(span) for span in between} == {"consumer"}
    assert set(consumer.found) == {span}


@streamed_outputs
@each_class
def test_between_items_the_consumer_is_current(
    cls: type, stream_outputs: bool, observed: Observed, consumer: Consumer, warned: Warnings
) -> None:
    """P21, P25: between two items, and two chunks, the consumer has its own context; its spans are its own."""
    script = Script(*step_replies(cls, 3))
    for _ in agent(cls, script, stream_outputs=stream_outputs).run("the task", stream=True):
        consumer.look()
    assert [run.parent for run in observed.runs] == [consumer.span.get_span_context()]
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert warned.lines == []


def test_between_chunks_of_a_model(observed: Observed, consumer: Consumer, warned: Warnings) -> None:
    """P25: a second model call between two chunks of a first is no part of it."""
    script = Script("a long answer, in several chunks", *["short"] * 10)
    model = ScriptedModel(script)
    prompt = [{"role": "user", "content": "a question"}]
    for _ in model.generate_stream(prompt):
        consumer.look()
        model.generate(prompt)
    assert len(observed.chats) == script.truth.calls > 3
    assert all(chat.parent == consumer.span.get_span_context() for chat in observed.chats)
    assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
    assert warned.lines == []


@streamed_outputs
@each_class
def test_a_thread_for_each_item(
    cls: type, stream_outputs: bool, observed: Observed, consumer: Consumer, warned: Warnings
) -> None:
    """P21: as a web framework does it: every item is asked for in a thread of its own."""
    script = Script(*step_replies(cls, 3))
    stream = agent(cls, script, stream_outputs=stream_outputs).run("the task", stream=True)
    items: list[Any] = []

    def ask() -> None:
        items.append(next(stream, None))
        assert not trace.get_current_span().get_span_context().is_valid

    while not items or items[-1] is not None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        consumer.look()
    assert items[-2].output == "done"
    assert len({span.context.trace_id for span in observed.spans if span.context}) == 1
    assert totals(observed.runs, sc.RUN_INPUT_TOKENS) == (script.truth.input_tokens,)
    assert warned.lines == []


@pytest.mark.parametrize("leaves", ["cancelled", "at the end"])
@streamed_outputs
@each_class
def test_a_task_that_reads_in_threads(
    cls: type, stream_outputs: bool, leaves: str, observed: Observed, warned: Warnings, unraisable: Happened
) -> None:
    """P21: an asyncio task asks for each item through `to_thread`, to the end or until it is cancelled."""
    script = Script(*step_replies(cls, 3))
    subject = agent(cls, script, stream_outputs=stream_outputs)
    consumer = Consumer(observed)

    async def read(stream: Any, started: asyncio.Event) -> None:
        while await asyncio.to_thread(next, stream, None) is not None:
            consumer.look()
            started.set()

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(read(subject.run("the task", stream=True), started))
        await started.wait()
        if leaves == "cancelled":
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() == (leaves == "cancelled")

    asyncio.run(main())
    gc.collect()
    assert observed.run[sc.RUN_STATE] == ("abandoned" if leaves == "cancelled" else "success")
    assert {span.get_span_context().is_valid for span in consumer.found} == {False}
    assert observed.recorder.open == 0
    assert len(observed.chats) == script.truth.calls
    assert warned.lines == []


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["run", "stream"])
@streamed_outputs
@each_class
def test_errors_of_the_model(
    cls: type, stream_outputs: bool, stream: bool, observed: Observed, warned: Warnings
) -> None:
    """P24: a model that fails in the second step: ERROR on call, step and run, and its exception reaches the caller."""
    original = ConnectionError("no model")
    script = Script(step_replies(cls, 2)[0], original)
    subject = agent(cls, script, stream_outputs=stream_outputs)
    with pytest.raises(smolagents.AgentGenerationError) as raised:
        list(subject.run("the task", stream=stream))
    assert raised.value.__cause__ is original
    [run] = observed.runs
    for span in (run, observed.steps[-1], observed.chats[-1]):
        assert span.status.status_code is trace.StatusCode.ERROR
    assert attributes(observed.chats[-1])[sc.ERROR_TYPE] == "ConnectionError"
    assert attributes(run)[sc.ERROR_TYPE] == "smolagents.utils.AgentGenerationError"
    assert attributes(run)[sc.RUN_STATE] == "error"
    assert (attributes(run)[sc.RUN_STEPS], attributes(run)[sc.RUN_RECOVERED_ERRORS]) == (2, 0)
    assert not [span for span in (observed.steps[0], observed.chats[0]) if not span.status.is_unset]
    assert totals(observed.runs, sc.RUN_INPUT_TOKENS) == (script.truth.input_tokens,)
    assert warned.lines == []


@pytest.mark.parametrize("kind", [ConnectionError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("chunks", [None, 0, 1], ids=["plain", "at once", "after a chunk"])
def test_an_error_is_the_same_object(
    chunks: int | None, kind: type[BaseException], observed: Observed, warned: Warnings
) -> None:
    """P24: what a model raises comes out as that very object, with the cause and the context that it had."""
    error = kind("raised by the model")

    class Failing(ScriptedModel):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            raise error

        def generate_stream(self, *args: Any, **kwargs: Any) -> Any:
            yield from islice(deltas("some text"), chunks)
            raise error

    model = Failing(Script())
    with pytest.raises(kind) as raised:
        model.generate([]) if chunks is None else list(model.generate_stream([]))
    assert raised.value is error
    assert (error.__context__, error.__cause__) == (None, None)
    [chat] = observed.chats
    assert attributes(chat)[sc.ERROR_TYPE] == kind.__name__
    assert chat.status.status_code is trace.StatusCode.ERROR
    assert warned.lines == []


# --- partial answers -------------------------------------------------------------------------------------------------


class Counting(ScriptedModel):
    """Reports what it has used so far with every chunk."""

    def generate_stream(self, *args: Any, **kwargs: Any) -> Any:
        for i, delta in enumerate(deltas("an answer in a good many chunks, of which not all are read"), 1):
            delta.token_usage = TokenUsage(100, 10 * i)
            yield delta


def leave_by_closing(stream: Any) -> None:
    """`close()`."""
    stream.close()


def leave_by_throwing(stream: Any) -> None:
    """An error in the consumer, thrown into the stream."""
    with pytest.raises(LookupError):
        stream.throw(LookupError("enough"))


@pytest.mark.parametrize("leave", [leave_by_closing, leave_by_throwing, lambda stream: None])
def test_a_partial_answer(leave: Callable[[Any], None], observed: Observed, warned: Warnings) -> None:
    """P25: a stream left after two chunks: the tokens seen so far, and a mark that this is not all."""
    stream = Counting(Script()).generate_stream([{"role": "user", "content": "a question"}])
    next(stream)
    next(stream)
    leave(stream)
    del stream
    gc.collect()
    [chat] = observed.chats
    assert totals([chat], *USAGE) == (100, 20)
    assert attributes(chat)[sc.CALL_PARTIAL] is True
    assert observed.total("gen_ai.client.token.usage") == 120
    assert observed.recorder.open == 0
    assert warned.lines == []


@each_class
def test_a_run_left_in_the_middle_of_an_answer(
    cls: type, observed: Observed, warned: Warnings, unraisable: Happened
) -> None:
    """P22, P25: the run's totals hold what the call in progress had reported; its step has ended before the run."""
    subject = agent(cls, Script(), model=Counting(Script()), stream_outputs=True)
    stream = subject.run("the task", stream=True)
    next(stream)
    next(stream)
    del stream
    gc.collect()
    [chat] = observed.chats
    assert attributes(chat)[sc.CALL_PARTIAL] is True
    assert (
        (observed.run[sc.RUN_INPUT_TOKENS], observed.run[sc.RUN_OUTPUT_TOKENS]) == totals([chat], *USAGE) == (100, 20)
    )
    assert [span.name.split()[0] for span in observed.spans] == ["chat", "agent_step", "invoke_agent"]
    assert observed.run[sc.RUN_STATE] == "abandoned"
    assert warned.lines == []


def test_partial_without_usage(observed: Observed) -> None:
    """P25: a stream left before its usage came: unknown, not zero, and counted."""
    stream = ScriptedModel(Script("an answer in several chunks")).generate_stream([])
    next(stream)
    stream.close()
    [chat] = observed.chats
    assert attributes(chat)[sc.CALL_PARTIAL] is True
    assert not set(USAGE) & set(attributes(chat))


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_output_is_reported(stream: bool, observed: Observed) -> None:
    """P25: a provider that counts only what it wrote: that much is known, and the call counts as one without usage."""
    model = ScriptedModel(Script("an answer", usage=lambda messages, reply: TokenUsage(0, 7)))
    prompt = [{"role": "user", "content": "a question"}]
    list(model.generate_stream(prompt)) if stream else model.generate(prompt)
    [chat] = observed.chats
    assert attributes(chat)[sc.USAGE_OUTPUT_TOKENS] == 7
    assert sc.USAGE_INPUT_TOKENS not in attributes(chat)


def test_a_clients_stream_keeps_its_ways(observed: Observed, warned: Warnings) -> None:
    """P25: an iterator that is no generator is like itself in all else: attributes, `close()`, `iter()`."""
    stream = streaming_as(ClosableIterator)(Script("an answer in several chunks")).generate_stream([])
    assert isinstance(stream, ClosableIterator)
    assert iter(stream) is stream
    assert next(stream).content == "an answer in sev"
    stream.close()
    assert stream.closed
    assert len(list(stream)) == 2
    with pytest.raises(StopIteration):
        next(stream)
    [chat] = observed.chats
    assert sc.CALL_PARTIAL not in attributes(chat)
    assert warned.lines == []
