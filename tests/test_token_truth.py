"""Every total equals what the models reported, or says that it does not know; and every token counts once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout  # another one up to Python 3.10
from contextlib import suppress
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest
from smolagents import AgentGenerationError, CodeAgent, Model, OpenAIModel, ToolCallingAgent
from smolagents.models import ChatMessageStreamDelta
from smolagents.monitoring import TokenUsage

from otel_smol import semconv as sc
from otel_smol.usage import Usage
from tests.conftest import Observed, Warnings, attributes
from tests.programs import PATIENCE
from tests.rules import USAGE, check_all, check_truth, totals
from tests.scripted import (
    FINAL_CODE,
    VERSION,
    Cell,
    RawModel,
    Reply,
    Script,
    ScriptedModel,
    Truth,
    agent,
    deltas,
    each_class,
    each_form,
    make_tool,
    managed_call,
    step_replies,
)
from tests.test_usage import SHAPES, as_dicts, as_objects

# --- D: token counts -------------------------------------------------------------------------------------------------

Shape = Callable[[TokenUsage, int], list[TokenUsage | None]]


def on_the_first(usage: TokenUsage, chunks: int) -> list[TokenUsage | None]:
    return [usage, *[None] * (chunks - 1)]


def on_the_last(usage: TokenUsage, chunks: int) -> list[TokenUsage | None]:
    return on_the_first(usage, chunks)[::-1]


def input_on_the_first(usage: TokenUsage, chunks: int) -> list[TokenUsage | None]:
    """The prompt on the first delta, the output in increments."""
    rest = usage.output_tokens - (chunks - 1)
    return [TokenUsage(usage.input_tokens, rest), *[TokenUsage(0, 1)] * (chunks - 1)]


def running_total(usage: TokenUsage, chunks: int) -> list[TokenUsage | None]:
    """The prompt on every delta, the output so far."""
    return [TokenUsage(usage.input_tokens, usage.output_tokens - left) for left in reversed(range(chunks))]


class ShapedStream(ScriptedModel):
    """Reports the usage of a streamed answer in one of the shapes that providers use."""

    def __init__(self, script: Script, shape: Shape) -> None:
        super().__init__(script)
        self.shape = shape

    def generate_stream(self, messages: list[Any], *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        reply, usage = self.script.answer(messages)
        pieces = [*deltas(reply), *(ChatMessageStreamDelta(content="") for _ in range(3))]
        for piece, counts in zip(pieces, self.shape(usage, len(pieces)), strict=True):
            piece.token_usage = counts
            yield piece


def some_output(messages: Sequence[Any], reply: Reply) -> TokenUsage:
    """A different prompt and more than one token of output per chunk."""
    return TokenUsage(500 + 10 * len(messages), 40)


@each_class
@pytest.mark.parametrize("shape", [on_the_first, on_the_last, input_on_the_first, running_total])
def test_streamed_usage_in_every_shape(cls: type, shape: Shape, observed: Observed) -> None:
    """P28, P30: usage on the first, the last or every delta of actions and plans: the truth, each prompt once."""
    replies = [reply for i, action in enumerate(step_replies(cls, 3)) for reply in (f"plan {i}", action)]
    script = Script(*replies, usage=some_output)
    subject = agent(cls, script, model=ShapedStream(script, shape), stream_outputs=True, planning_interval=1)
    assert subject.run("the task") == "done"
    check_all(observed, script.truth)
    assert {attributes(span)[sc.USAGE_OUTPUT_TOKENS] for span in observed.chats} == {40}
    planned = [some_output(prompt, "").input_tokens for prompt in script.truth.prompts[::2]]
    assert [attributes(span)[sc.STEP_INPUT_TOKENS] for span in observed.plans] == planned


@each_class
@each_form
def test_planning_calls_are_in_the_totals(cls: type, consumed: str, observed: Observed) -> None:
    """P31: with a plan before each of 4 steps the run's total is the truth, which smolagents' monitor falls short of,
    and each call says what it was for."""
    cell = Cell(cls, consumed)
    script = Script(*(reply for i, action in enumerate(cell.replies(4)) for reply in (f"plan {i}", action)))
    subject = cell.agent(script, planning_interval=1)
    cell.run(subject)
    check_truth(observed, script.truth)
    assert observed.run[sc.RUN_INPUT_TOKENS] == script.truth.input_tokens > subject.monitor.total_input_token_count
    assert [attributes(span)[sc.CALL_TYPE] for span in observed.chats] == ["planning", "action"] * 4
    assert (observed.run[sc.RUN_STEPS], observed.run[sc.RUN_PLANNING_STEPS]) == (4, 4)


@each_class
@each_form
def test_own_and_total_tokens_of_a_manager(cls: type, consumed: str, observed: Observed) -> None:
    """P33: a managed agent is called three times: the manager's own tokens are its own, its total has all of them, and
    no run span carries a name that backends add up."""
    cell = Cell(cls, consumed)
    worker_script = Script(*cell.replies(2) * 3)
    worker = cell.agent(worker_script, name="worker", description="works")
    boss_script = Script(*[managed_call(cls, "worker")] * 3, cell.final)
    cell.run(cell.agent(boss_script, tools=[], managed_agents=[worker], name="boss"))
    own, managed = boss_script.truth, worker_script.truth
    boss = attributes(observed.runs[-1])
    assert boss[sc.AGENT_NAME] == "boss"
    assert (boss[sc.RUN_INPUT_TOKENS], boss[sc.RUN_OUTPUT_TOKENS]) == (own.input_tokens, own.output_tokens)
    assert boss[sc.RUN_TOTAL_INPUT_TOKENS] == own.input_tokens + managed.input_tokens
    assert boss[sc.RUN_TOTAL_OUTPUT_TOKENS] == own.output_tokens + managed.output_tokens
    assert totals(observed.runs[:-1], sc.RUN_INPUT_TOKENS) == (managed.input_tokens,)
    assert not any(set(USAGE) & set(attributes(span)) for span in observed.runs)


@each_class
@each_form
@pytest.mark.parametrize("reported", [None, TokenUsage(0, 0)], ids=["none", "zeros"])
def test_no_usage_is_unknown_not_zero(
    cls: type, consumed: str, reported: TokenUsage | None, observed: Observed
) -> None:
    """P34: a provider that reports nothing, or 0/0 for a real answer: no zero anywhere, the calls counted, the history
    still sized in characters, its tokens called an estimate."""
    cell = Cell(cls, consumed)
    script = Script(*cell.replies(3), usage=lambda *_: reported)
    cell.run(cell.agent(script))
    check_all(observed, script.truth)
    for span in observed.chats:
        values = attributes(span)
        assert not set(USAGE) & set(values)
        assert values[sc.HISTORY_ESTIMATOR] == "characters"
        assert values[sc.HISTORY_TOKENS] > 0
    tokens = (sc.RUN_INPUT_TOKENS, sc.RUN_TOTAL_INPUT_TOKENS, sc.RUN_REPLAYED_TOKENS, sc.STEP_INPUT_TOKENS)
    assert not any(name in attributes(span) for span in observed.spans for name in tokens)
    assert observed.run[sc.RUN_CALLS_WITHOUT_USAGE] == 3
    assert observed.total("smolagents.calls.without_usage") == 3
    for name in ("smolagents.run.input_tokens", "smolagents.run.output_tokens", "gen_ai.client.token.usage"):
        assert observed.points(name) == [], name
    assert observed.total("smolagents.step.calls") == 0


@each_class
@each_form
def test_one_call_of_five_without_usage(cls: type, consumed: str, observed: Observed) -> None:
    """P34: the total is the sum of what is known and says how many calls it lacks; the curve and its forecast, which
    would be wrong, are absent."""
    cell = Cell(cls, consumed)
    script = Script(
        *cell.replies(5), usage=lambda prompt, _: None if len(script.truth.prompts) == 4 else TokenUsage(9, 2)
    )
    cell.run(cell.agent(script))
    check_all(observed, script.truth)
    assert (observed.run[sc.RUN_INPUT_TOKENS], observed.run[sc.RUN_CALLS_WITHOUT_USAGE]) == (4 * 9, 1)
    assert [attributes(span).get(sc.STEP_INPUT_TOKENS) for span in observed.steps] == [9, 9, 9, None, 9]
    assert [sc.FORECAST_INPUT_TOKENS in attributes(span) for span in observed.steps] == [
        *[False] * 2,
        True,
        False,
        False,
    ]
    assert [sc.FIT_CALLS in attributes(span) for span in observed.steps] == [*[True] * 3, False, False]
    assert observed.total("smolagents.calls.without_usage") == 1
    assert observed.total("smolagents.step.calls") == 4


@each_class
@each_form
def test_step_value_and_running_total_have_names_of_their_own(cls: type, consumed: str, observed: Observed) -> None:
    """P36: two steps of 10/20 and 30/40 tokens: `smolagents.step.*` is the step, `smolagents.run.*` the total."""
    cell = Cell(cls, consumed)
    counts = iter([TokenUsage(10, 20), TokenUsage(30, 40)])
    cell.run(cell.agent(Script(*cell.replies(2), usage=lambda *_: next(counts))))
    first, second = map(attributes, observed.steps)
    assert (first[sc.STEP_INPUT_TOKENS], first[sc.STEP_OUTPUT_TOKENS], first[sc.RUN_INPUT_TOKENS]) == (10, 20, 10)
    assert (second[sc.STEP_INPUT_TOKENS], second[sc.STEP_OUTPUT_TOKENS], second[sc.RUN_INPUT_TOKENS]) == (30, 40, 40)
    assert (observed.run[sc.RUN_INPUT_TOKENS], observed.run[sc.RUN_OUTPUT_TOKENS]) == (40, 60)


def run_raw(observed: Observed, raw: Any, copied: int, output: int) -> list[dict[str, Any]]:
    """Two steps whose model reports this; attributes of the chat spans."""
    script = Script(*step_replies(ToolCallingAgent, 2), usage=lambda *_: TokenUsage(copied, output))
    agent(ToolCallingAgent, script, model=RawModel(script, raw)).run("the task")
    return [attributes(span) for span in observed.chats]


@pytest.mark.parametrize("build", [as_dicts, as_objects])
@pytest.mark.parametrize(("shape", "copied", "expected"), SHAPES)
def test_cached_tokens_end_to_end(
    shape: dict[str, Any], copied: int, expected: Usage, build: Callable[[Any], Any], observed: Observed
) -> None:
    """P37: cached tokens come from the response, within an input that means the same for every provider, on spans and
    in every total."""
    assert expected.input_tokens is not None
    assert expected.output_tokens is not None
    for values in run_raw(observed, build(shape), copied, expected.output_tokens):
        assert values[sc.USAGE_INPUT_TOKENS] == values[sc.HISTORY_TOKENS] == expected.input_tokens
        assert values[sc.USAGE_CACHE_READ_TOKENS] == expected.cache_read_tokens
        assert values.get(sc.USAGE_CACHE_WRITE_TOKENS) == expected.cache_write_tokens
    assert observed.run[sc.RUN_INPUT_TOKENS] == 2 * expected.input_tokens
    assert observed.total("smolagents.history.input_tokens") == 2 * expected.input_tokens
    assert observed.total("gen_ai.client.token.usage", gen_ai__token__type="input") == 2 * expected.input_tokens


def test_without_a_response_the_cache_is_unknown(observed: Observed) -> None:
    """P37: no raw response, no cached tokens: the attributes are absent, not 0."""
    for values in run_raw(observed, None, 100, 7):
        assert not {sc.USAGE_CACHE_READ_TOKENS, sc.USAGE_CACHE_WRITE_TOKENS, sc.USAGE_REASONING_TOKENS} & set(values)


def test_reasoning_is_a_part_of_the_output(observed: Observed) -> None:
    """P39: 1970 tokens of output with 956 of reasoning are 1970, on the span, in the run and in every metric."""
    details = {"completion_tokens_details": {"reasoning_tokens": 956}}
    raw = {"usage": {"prompt_tokens": 1000, "completion_tokens": 1970, **details}}
    for values in run_raw(observed, raw, 1000, 1970):
        assert (values[sc.USAGE_OUTPUT_TOKENS], values[sc.USAGE_REASONING_TOKENS]) == (1970, 956)
    assert observed.run[sc.RUN_OUTPUT_TOKENS] == 2 * 1970
    assert observed.total("smolagents.run.output_tokens") == 2 * 1970
    assert observed.total("gen_ai.client.token.usage", gen_ai__token__type="output") == 2 * 1970


@pytest.mark.skipif(VERSION < (1, 23), reason="smolagents retries from 1.23 on")
def test_retries_are_one_call(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    """P40: two answers of "too many requests" and a good one, within smolagents' retry helper: one span that covers the
    waiting, one token record."""
    attempts: list[Any] = [RuntimeError("429 too many requests"), RuntimeError("rate limit"), None]

    def create(**kwargs: Any) -> Any:
        error = attempts.pop(0)
        if error is not None:
            raise error
        choice = SimpleNamespace(message=SimpleNamespace(role="assistant", content=FINAL_CODE, tool_calls=None))
        return SimpleNamespace(choices=[choice], usage=SimpleNamespace(prompt_tokens=70, completion_tokens=7))

    monkeypatch.setattr("smolagents.models.RETRY_WAIT", 0.02)
    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    agent(CodeAgent, Script(), tools=[], model=OpenAIModel("gpt", client=client)).run("the task")
    assert not attempts
    [span] = observed.chats
    assert attributes(span)[sc.USAGE_INPUT_TOKENS] == observed.run[sc.RUN_INPUT_TOKENS] == 70
    assert (span.end_time or 0) - (span.start_time or 0) > 0.02 * (2 + 4) * 1e9
    assert observed.run[sc.RUN_CALLS] == 1
    [(_, duration)] = observed.points("gen_ai.client.operation.duration")
    assert duration.count == 1


# --- E: every token once ---------------------------------------------------------------------------------------------


def nested_run(cls: type, truth: Truth) -> Any:
    """An agent with a managed agent, and with a tool that runs an agent of its own."""
    replies = step_replies(cls, 2)
    worker = agent(cls, Script(*replies, truth=truth), name="worker", description="works")
    inner = agent(cls, Script(*replies, truth=truth), name="inner")
    delegate = make_tool(truth, "delegate", does=lambda n: inner.run(f"the part {n}"))
    script = Script(
        managed_call(cls, "worker"), step_replies(cls, 2, "delegate")[0], step_replies(cls, 1)[0], truth=truth
    )
    return agent(cls, script, [delegate], managed_agents=[worker], name="boss")


@each_class
def test_a_sum_over_the_whole_trace_is_the_truth(cls: type, observed: Observed) -> None:
    """P41: with agents inside of tools, the summable attributes added up over all exported spans are the truth."""
    truth = Truth()
    nested_run(cls, truth).run("the task")
    assert totals(observed.recorder.ended, *USAGE) == (truth.input_tokens, truth.output_tokens)
    assert len({span.context.trace_id for span in observed.spans if span.context}) == 1
    boss = attributes(observed.runs[-1])
    assert boss[sc.RUN_TOTAL_INPUT_TOKENS] == truth.input_tokens
    check_all(observed, truth)


@each_class
def test_instruments_are_what_dashboards_expect(cls: type, observed: Observed) -> None:
    """P42: every exported metric has the kind, unit and buckets that the registry says; the convention's instruments
    are as its library records them."""
    truth = Truth()
    nested_run(cls, truth).run("the task")
    exported = {metric.name: metric for metric in observed.metrics()}
    assert exported.keys() >= {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "gen_ai.invoke_agent.duration",
        "gen_ai.execute_tool.duration",
    }
    for name, metric in exported.items():
        kind = type(metric.data).__name__
        if name in sc.CONVENTION_METRICS:
            assert (kind, metric.unit) == ("Histogram", sc.CONVENTION_METRICS[name]), name
            continue
        known = sc.METRICS[name]
        assert kind == {"counter": "Sum", "histogram": "Histogram", "gauge": "Gauge"}[known.instrument], name
        assert (metric.unit, metric.description) == (known.unit, known.brief), name
        for point in metric.data.data_points:
            assert set(point.attributes) <= set(known.attributes), name
            if known.instrument == "histogram":
                assert tuple(point.explicit_bounds) == known.buckets, name
            if known.instrument == "counter":
                assert metric.data.is_monotonic, name


@each_class
@each_form
def test_calls_are_counted_once_and_with_those_that_failed(cls: type, consumed: str, observed: Observed) -> None:
    """P44: over manager and managed agent the calls add up to those made, one of which failed; each has its own."""
    cell = Cell(cls, consumed)
    worker_script = Script(cell.replies(2)[0], ConnectionError("no model"))
    worker = cell.agent(worker_script, name="worker", description="works")
    boss_script = Script(managed_call(cls, "worker"), cell.final)
    cell.run(cell.agent(boss_script, tools=[], managed_agents=[worker], name="boss"))
    calls = {attributes(span)[sc.AGENT_NAME]: attributes(span)[sc.RUN_CALLS] for span in observed.runs}
    assert calls == {"worker": worker_script.truth.calls, "boss": boss_script.truth.calls} == {"worker": 2, "boss": 2}
    [failed] = [span for span in observed.chats if sc.ERROR_TYPE in attributes(span)]
    assert attributes(failed)[sc.ERROR_TYPE] == "ConnectionError"
    assert sum(point.count for _, point in observed.points("gen_ai.client.operation.duration")) == 4
    assert observed.total("smolagents.calls.without_usage") == 0


def test_a_tool_may_call_the_model_itself(observed: Observed) -> None:
    """P44: a model call made by a tool is the agent's own call, of type `other`, and in its totals, but no part of the
    step's curve."""
    script = Script(step_replies(CodeAgent, 2)[0], "from within", FINAL_CODE)
    model = ScriptedModel(script)
    search = make_tool(script.truth, does=lambda n: model([{"role": "user", "content": f"What is {n}?"}]).content)
    agent(CodeAgent, script, [search], model=model).run("the task")
    billed = script.truth.input_tokens
    calls = [attributes(span) for span in observed.chats]
    assert [call[sc.CALL_TYPE] for call in calls] == ["action", "other", "action"]
    inside = calls[1][sc.USAGE_INPUT_TOKENS]
    assert (observed.run[sc.RUN_CALLS], observed.run[sc.RUN_INPUT_TOKENS]) == (3, billed)
    assert observed.total("smolagents.history.input_tokens") == billed
    assert totals(observed.steps, sc.STEP_INPUT_TOKENS) == (billed - inside,)
    assert observed.total("smolagents.step.input_tokens") == billed - inside


class Slow(ScriptedModel):
    """Takes its time for the first answer: until it is let go."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.asked, self.go_on = threading.Event(), threading.Event()
        self._first = iter([True])

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        if next(self._first, False):
            self.asked.set()
            assert self.go_on.wait(PATIENCE)
        return super().generate(*args, **kwargs)


class Patient(Model):  # type: ignore[misc]
    """Asks another model in threads, with a time limit for each answer."""

    def __init__(self, inner: Slow, pool: ThreadPoolExecutor) -> None:
        super().__init__(model_id="patient")
        self.inner, self.pool = inner, pool

    def asked(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """What is the slow answer does not depend on which thread is the faster one."""
        future = self.pool.submit(self.inner.generate, *args, **kwargs)
        assert self.inner.asked.wait(PATIENCE)
        return future


class Asking(Patient):
    """Again, if an answer comes too late."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        with suppress(FutureTimeout):
            return self.asked(*args, **kwargs).result(timeout=0.05)
        return self.asked(*args, **kwargs).result()


class GivingUp(Patient):
    """Not again."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.asked(*args, **kwargs).result(timeout=0.05)


class Hedging(Patient):
    """Two at once; the first answer counts."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        both = [self.asked(*args, **kwargs) for _ in range(2)]
        return wait(both, return_when=FIRST_COMPLETED).done.pop().result()


@pytest.mark.parametrize("carried", [False, True], ids=["bare threads", "threads with the context"])
@pytest.mark.parametrize("cls", [Asking, GivingUp, Hedging])
def test_an_answer_that_comes_too_late(cls: type, carried: bool, observed: Observed, warned: Warnings) -> None:
    """P44: it is billed, although nobody waits for it: a call of its own, whatever the one around it made of it."""

    class Pool(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            return super().submit(copy_context().run, *args, **kwargs) if carried else super().submit(*args, **kwargs)

    script = Script(FINAL_CODE, FINAL_CODE)
    slow = Slow(script)
    with Pool(2) as pool:
        subject = agent(CodeAgent, script, model=cls(slow, pool))
        if cls is GivingUp:
            with pytest.raises(AgentGenerationError):
                subject.run("the task")
        else:
            assert subject.run("the task") == "done"
        slow.go_on.set()
    truth = script.truth
    assert truth.calls == (1 if cls is GivingUp else 2)
    assert totals(observed.chats, *USAGE) == (truth.input_tokens, truth.output_tokens)
    assert observed.total("gen_ai.client.token.usage", gen_ai__token__type="input") == truth.input_tokens
    assert observed.recorder.open == 0
    assert warned.lines == []


@pytest.mark.parametrize("asks", ["a tool", "somebody else"])
def test_the_same_prompt_asked_side_by_side(asks: str, observed: Observed) -> None:
    """P44: two models are asked with one list of messages, a constant of the program, at the same time: two calls."""
    question = [{"role": "user", "content": "Is the service up?"}]
    truth = Truth()
    first, second = Slow(Script("yes", truth=truth)), ScriptedModel(Script("no, it is not", truth=truth))

    def beside() -> None:
        assert first.asked.wait(PATIENCE)
        second.generate(question)
        first.go_on.set()

    def ask(n: int) -> str:
        thread = threading.Thread(target=beside)
        if asks == "a tool":
            thread.start()
        answer = str(first.generate(question).content)
        if asks == "a tool":
            thread.join()
        return answer

    other = threading.Thread(target=beside)
    if asks == "somebody else":
        other.start()
    script = Script(step_replies(CodeAgent, 2)[0], FINAL_CODE, truth=truth)
    agent(CodeAgent, script, [make_tool(truth, does=ask)]).run("the task")
    if asks == "somebody else":
        other.join()
    assert len(observed.chats) == truth.calls == 4
    assert totals(observed.chats, *USAGE) == (truth.input_tokens, truth.output_tokens)
