"""What a growing memory costs: the curve of a run, who made it grow, and what editing it saves."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from PIL import Image
from smolagents import AgentGenerationError, CodeAgent
from smolagents.memory import ActionStep, MemoryStep, PlanningStep, SystemPromptStep, TaskStep
from smolagents.models import ChatMessage, MessageRole, get_tool_json_schema
from smolagents.monitoring import TokenUsage

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from otel_smol.curve import OnlineFit, input_tokens, overpay
from tests.conftest import Observed, attributes
from tests.rules import USAGE, check_all, check_parts, totals
from tests.scripted import (
    VERSION,
    Cell,
    RawModel,
    Reply,
    Script,
    Truth,
    agent,
    characters,
    code,
    each_class,
    each_form,
    make_tool,
    raised,
    step_replies,
)

SIZE = 2000
"""Characters that the tool of these runs returns."""


def schema_size(subject: Any) -> int:
    """Characters of the tool schemas that an agent sends beside its messages."""
    tools = getattr(subject, "tools_and_managed_agents", ())
    return sum(len(json.dumps(get_tool_json_schema(tool))) for tool in tools)


def exact_run(cls: type, replies: Sequence[Reply], tools: Sequence[Any] = (), **kwargs: Any) -> Script:
    """A run whose model bills one token for each character that it gets, tool schemas included: tokens are then sizes,
    without rounding."""
    schema = 0
    script = Script(*replies, usage=lambda prompt, _: TokenUsage(characters(prompt) + schema, 1))
    kwargs.setdefault("max_steps", len(replies))
    subject = agent(cls, script, [make_tool(script.truth, size=SIZE), *tools], **kwargs)
    schema = schema_size(subject)
    subject.run("the task")
    return script


def test_pictures_of_the_task_are_no_history(observed: Observed) -> None:
    """P45: every call sends them, from the first on: they are fixed, and nothing of them is new or replayed."""
    for images in ([], [Image.new("RGB", (8, 8))]):
        script = Script(*step_replies(CodeAgent, 6))
        agent(CodeAgent, script).run("the task", images=images)
    first = [attributes(span) for span in observed.steps if attributes(span)[sc.STEP_NUMBER] == 1]
    assert [step[sc.STEP_NEW_TOKENS] for step in first] == [0, 0]
    plain, pictured = first
    assert pictured[sc.HISTORY_IMAGES] == 1
    assert pictured[sc.HISTORY_SOURCE_TOKENS["task"]] > 5 * plain[sc.HISTORY_SOURCE_TOKENS["task"]]
    assert sc.HISTORY_SOURCE_TOKENS["image"] not in pictured
    ends = [attributes(run)[sc.RUN_OVERPAY] for run in observed.runs]
    assert ends[1] == pytest.approx(ends[0], rel=0.02)


@each_class
def test_the_forecast_knows_of_several_calls_per_step(cls: type, observed: Observed) -> None:
    """P48: an agent that drafts before each step makes two calls in each, and the forecast says so from half way on."""

    class Drafting(cls):  # type: ignore[misc]
        def _step_stream(self, memory_step: Any) -> Any:
            self.model.generate(self.write_memory_to_messages())
            yield from super()._step_stream(memory_step)

    replies = [reply for reply in step_replies(cls, 11)[:10] for reply in ("a draft", reply)]
    script = Script(*replies, "the end")
    agent(Drafting, script, tools=[make_tool(script.truth, size=SIZE)], max_steps=10).run("the task")
    actions = [attributes(span) for span in observed.steps if attributes(span)[sc.STEP_TYPE] == "action"]
    billed = actions[-1][sc.RUN_INPUT_TOKENS]
    for step in actions[4:]:
        assert step[sc.FORECAST_INPUT_TOKENS] == pytest.approx(billed, rel=0.05)


def equal_steps(cls: type, steps: int) -> list[Reply]:
    """Replies for steps that add the same to the memory, the last one too, but for some ten characters."""
    if issubclass(cls, CodeAgent):
        return [*[code("print(search(1))")] * (steps - 1), code("final_answer(search(1))")]
    # An answer stands in the memory twice, as argument and as observation; in 1.20 as the model's output too.
    answer = "a" * (SIZE // (3 if VERSION < (1, 21) else 2))
    return [*[[("search", {"n": 1})]] * (steps - 1), [("final_answer", {"answer": answer})]]


def series(observed: Observed, name: str) -> list[Any]:
    """One attribute of all action steps, in their order."""
    return [attributes(span)[name] for span in observed.steps]


def history_of(values: dict[str, Any]) -> int:
    """Tokens of a prompt that earlier steps left behind."""
    names = [name for source, name in sc.HISTORY_SOURCE_TOKENS.items() if source not in sc.FIXED_SOURCES]
    return sum(values.get(name, 0) for name in names)


# --- the curve -------------------------------------------------------------------------------------------------------


# --- what is asked beside it -----------------------------------------------------------------------------------------


class Reflecting(CodeAgent):  # type: ignore[misc]
    """Asks its model about each step, with a prompt of its own."""

    def _step_stream(self, memory_step: Any) -> Any:
        yield from super()._step_stream(memory_step)
        self.model.generate([{"role": "user", "content": f"Was this step good? {memory_step.observations}"}])


class ReflectingAsItself(CodeAgent):  # type: ignore[misc]
    """The same under the agent's own system prompt."""

    def _step_stream(self, memory_step: Any) -> Any:
        yield from super()._step_stream(memory_step)
        system = self.memory.system_prompt.to_messages()
        self.model.generate([*copy.deepcopy(system), {"role": "user", "content": "Was this step good?"}])


class CopyingReflecting(Reflecting):
    """The same, and whoever asks for its memory gets a copy."""

    def write_memory_to_messages(self, *args: Any, **kwargs: Any) -> Any:
        return copy.deepcopy(super().write_memory_to_messages(*args, **kwargs))


class ReflectingBefore(CodeAgent):  # type: ignore[misc]
    """Asks before its own prompt is written."""

    def _step_stream(self, memory_step: Any) -> Any:
        if memory_step.step_number > 1:
            self.model.generate([{"role": "user", "content": "Is there a better way?"}])
        yield from super()._step_stream(memory_step)


@pytest.mark.parametrize("cls", [Reflecting, ReflectingAsItself, CopyingReflecting, ReflectingBefore])
@each_form
def test_a_prompt_beside_the_agents_own(cls: type, consumed: str, observe: Callable[..., Observed]) -> None:
    """P45, P54: a step asks a model something else on the way: the history stays what it is, and nothing is compacted.
    The call is of type `other`, like one that a tool makes."""
    steps = 6

    def told(cls: type, *between: str) -> tuple[Any, ...]:
        observed, cell = observe(), Cell(cls, consumed)
        replies = [reply for each in cell.replies(steps) for reply in (each, *between)]
        script = Script(*replies)
        cell.run(cell.agent(script))
        SmolagentsInstrumentor().uninstrument()
        assert totals(observed.chats, *USAGE) == (script.truth.input_tokens, script.truth.output_tokens)
        assert observed.run[sc.RUN_INPUT_TOKENS] == script.truth.input_tokens
        assert observed.total("smolagents.history.compacted_tokens") == 0
        kinds = [attributes(chat)[sc.CALL_TYPE] for chat in observed.chats]
        assert kinds == (["action", *["other"] * len(between)] * steps)[: len(kinds)]
        assert kinds.count("action") == steps
        shares = [attributes(step).get(sc.HISTORY_PREFIX_SHARE) for step in observed.steps]
        curve = [attributes(step)[sc.STEP_INPUT_TOKENS] for step in observed.steps]
        run = observed.run
        return shares, curve, *(run[name] for name in (sc.RUN_REPLAYED_TOKENS, sc.RUN_OVERPAY, sc.FIT_GROWTH_TOKENS))

    assert told(cls, "yes") == told(CodeAgent)


def said(messages: Sequence[ChatMessage]) -> str:
    """What messages say, as one text."""
    return "\n".join(str(part["text"]) for message in messages for part in message.content)


class Flattening(CodeAgent):  # type: ignore[misc]
    """Sends its whole memory as one text, as for a model without chat."""

    def write_memory_to_messages(self, *args: Any, **kwargs: Any) -> Any:
        written = super().write_memory_to_messages(*args, **kwargs)
        return [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": said(written)}])]


class FlatteningTheRest(CodeAgent):  # type: ignore[misc]
    """The same below the system prompt, as dicts; in the first step that rest is the task as the memory wrote it."""

    def write_memory_to_messages(self, *args: Any, **kwargs: Any) -> Any:
        system, *rest = super().write_memory_to_messages(*args, **kwargs)
        return [{"role": "system", "content": said([system])}, {"role": "user", "content": said(rest)}]


class Summarising(CodeAgent):  # type: ignore[misc]
    """From the third step on a summary stands for all that was."""

    def write_memory_to_messages(self, *args: Any, **kwargs: Any) -> Any:
        written = super().write_memory_to_messages(*args, **kwargs)
        if len(written) < 6:
            return written
        summary = {"role": "user", "content": f"What was done in {len(written)} messages."}
        return [{"role": "system", "content": said(written[:1])}, summary]


@pytest.mark.parametrize("cls", [Flattening, FlatteningTheRest, Summarising])
@each_form
def test_an_agent_that_makes_its_prompts_by_other_means(cls: type, consumed: str, observed: Observed) -> None:
    """P45: little or nothing of what the memory wrote is in its prompts, and they are its own all the same."""
    cell = Cell(cls, consumed)
    script = Script(*cell.replies(6))
    cell.run(cell.agent(script))
    check_all(observed, script.truth)
    assert {attributes(chat)[sc.CALL_TYPE] for chat in observed.chats} == {"action"}
    assert observed.run[sc.FIT_CALLS] == 6


@each_class
@pytest.mark.parametrize("steps", [5, 10, 20, 40])
def test_history_is_linear_and_its_replay_quadratic(cls: type, steps: int, observed: Observed) -> None:
    """P45: per step the history grows by the same; what has been replayed so far is s(k-1)(k-2)/2."""
    script = exact_run(cls, equal_steps(cls, steps))
    check_all(observed, script.truth)
    history = [history_of(attributes(span)) for span in observed.steps]
    steps_sizes = {after - before for before, after in pairwise(history)}
    assert max(steps_sizes) - min(steps_sizes) <= 1  # CodeAgent's ids of calls get longer: call_9, call_10
    line = OnlineFit()
    for tokens in history:
        line.add(tokens)
    fit = line.fit()
    assert fit is not None
    assert fit.r_squared == pytest.approx(1, abs=0.001)
    assert observed.run[sc.FIT_R_SQUARED] == pytest.approx(1, abs=0.001)
    assert observed.run[sc.FIT_GROWTH_TOKENS] == pytest.approx(fit.growth_tokens, abs=1)
    expected = [0, *(input_tokens(0, fit.growth_tokens, k) for k in range(1, steps))]
    assert series(observed, sc.RUN_REPLAYED_TOKENS) == pytest.approx(expected, rel=0.001)


@each_class
def test_twice_the_steps_replay_four_times_as_much(cls: type, observed: Observed) -> None:
    """P45: 80 steps replay 3.8 to 4.2 times what 40 steps do. (The exact quotient is (2n-1)(2n-2)/((n-1)(n-2)); it is
    within these bounds from 33 steps on.)"""
    for steps in (40, 80):
        exact_run(cls, equal_steps(cls, steps))
    few, many = (attributes(span)[sc.RUN_REPLAYED_TOKENS] for span in observed.runs)
    assert 3.8 < many / few < 4.2
    assert many / few == pytest.approx(79 * 78 / (39 * 38), rel=0.001)


@each_class
@each_form
def test_the_replay_of_a_call_is_the_history_of_the_one_before(cls: type, consumed: str, observed: Observed) -> None:
    """P45: in a memory that is only added to, a step replays exactly the history of the step before."""
    cell = Cell(cls, consumed)
    script = Script(*cell.replies(7), usage=lambda prompt, _: TokenUsage(characters(prompt) + schema, 1))
    subject = cell.agent(script)
    schema = schema_size(subject)
    cell.run(subject)
    check_all(observed, script.truth)
    histories = [history_of(attributes(span)) for span in observed.steps]
    assert series(observed, sc.STEP_REPLAYED_TOKENS) == [0, *histories[:-1]]
    assert series(observed, sc.STEP_NEW_TOKENS) == [now - before for before, now in pairwise([0, *histories])]
    assert [attributes(span).get(sc.HISTORY_PREFIX_SHARE) for span in observed.steps] == [None, *[1.0] * 6]


@each_class
def test_more_tools_change_only_the_fixed_part(cls: type, observed: Observed) -> None:
    """P46: with 0, 5 and 30 further tools the same script has the same history, and a larger fixed part."""
    for further in (0, 5, 30):
        exact_run(cls, equal_steps(cls, 4), [make_tool(Truth(), f"tool_{i}") for i in range(further)])
    runs = [[attributes(step) for step in observed.steps[i : i + 4]] for i in (0, 4, 8)]
    histories = [[history_of(values) for values in run] for run in runs]
    fixed = [[values[sc.STEP_FIXED_TOKENS] for values in run] for run in runs]
    assert histories[0] == histories[1] == histories[2]
    assert all(len(set(values)) == 1 for values in fixed)
    assert fixed[0][0] < fixed[1][0] < fixed[2][0]
    growth = [attributes(span)[sc.FIT_GROWTH_TOKENS] for span in observed.runs]
    assert growth == pytest.approx([growth[0]] * 3)


def said_by(message: ChatMessage) -> str:
    """The source of a message of an action prompt, told from nothing but itself."""
    [part] = message.content
    text = part.get("text", "")
    if message.role == MessageRole.SYSTEM:
        return "system_prompt"
    if message.role == MessageRole.TOOL_CALL:
        return "tool_call"
    if message.role == MessageRole.TOOL_RESPONSE:
        return "observation" if text.startswith("Observation:\n") else "error"
    if text.startswith(("Here are the facts I know", "I still need to solve the task", "Now proceed and carry out")):
        return "plan"
    if message.role == MessageRole.ASSISTANT:
        return "assistant"
    return "task" if text.startswith("New task:\n") else "image"


@each_class
@each_form
def test_the_sources_of_every_prompt(cls: type, consumed: str, observed: Observed) -> None:
    """P46: over two turns with plans, an error and pictures, each message of each prompt counts under its source."""
    cell = Cell(cls, consumed)
    replies = cell.replies(4)
    turn = ["a plan", replies[0], "neither code nor call", "a plan", *replies[1:3], "a plan", replies[3]]
    script = Script(*turn, *turn)

    def attach(step: ActionStep) -> None:
        step.observations_images = [Image.new("RGB", (9, 9))]

    subject = cell.agent(script, planning_interval=2, step_callbacks=[attach])
    cell.run(subject)
    cell.run(subject, "go on", reset=False)
    actions = [
        (attributes(span), prompt)
        for span, prompt in zip(observed.chats, script.truth.prompts, strict=True)
        if attributes(span)[sc.CALL_TYPE] == "action"
    ]
    for values, prompt in actions:
        sources = {source: values.get(name, 0) for source, name in sc.HISTORY_SOURCE_CHARACTERS.items()}
        del sources["tool_schema"]
        assert sources == {s: characters(m for m in prompt if said_by(m) == s) for s in sources}
        assert values[sc.HISTORY_IMAGES] == sum(said_by(m) == "image" for m in prompt)
    seen = {said_by(message) for _, prompt in actions for message in prompt}
    assert seen == {*sc.SOURCES} - {"tool_schema", "other"}


@each_class
@pytest.mark.parametrize("steps", [4, 8, 12, 20])
def test_overpay_of_equal_steps(cls: type, steps: int, observed: Observed) -> None:
    """P45: equal steps are paid (n-1)/2 times: 1.5, 3.5, 5.5, 9.5.

    Within 1 %: no call sends what the last step left behind, so its size is estimated from its fields, and it differs
    from the other steps in some ten characters.
    """
    exact_run(cls, equal_steps(cls, steps))
    assert observed.run[sc.RUN_OVERPAY] == pytest.approx(overpay(steps), rel=0.01)
    [(_, point)] = observed.points("smolagents.run.overpay")
    assert point.sum == observed.run[sc.RUN_OVERPAY]


@each_class
@each_form
def test_the_fit_keeps_the_bill(cls: type, consumed: str, observed: Observed) -> None:
    """P45: P and s, put into n*P + s*n(n-1)/2, give the action prompts' sum, with plans and unequal steps around."""
    cell = Cell(cls, consumed)
    replies = cell.replies(6)
    script = Script("a plan", *replies[:3], "another plan", *replies[3:])
    cell.run(cell.agent(script, planning_interval=3))
    actions = [span for span in observed.chats if attributes(span)[sc.CALL_TYPE] == "action"]
    assert observed.run[sc.FIT_CALLS] == len(actions) == 6
    total = input_tokens(observed.run[sc.FIT_BASE_TOKENS], observed.run[sc.FIT_GROWTH_TOKENS], 6)
    assert total == pytest.approx(sum(attributes(span)[sc.USAGE_INPUT_TOKENS] for span in actions), abs=1e-6)


@each_class
@pytest.mark.parametrize("steps", [6, 12, 20])
def test_the_forecast_comes_true(cls: type, steps: int, observed: Observed) -> None:
    """P45: from the third call on the forecast for `max_steps` is what a run that uses them all ends at, but for the
    characters by which CodeAgent's ids of calls get longer."""
    script = exact_run(cls, equal_steps(cls, steps))
    forecasts = [attributes(span).get(sc.FORECAST_INPUT_TOKENS) for span in observed.steps]
    assert forecasts[:2] == [None, None]
    assert forecasts[2:] == pytest.approx([script.truth.input_tokens] * (steps - 2), rel=0.001)
    assert observed.run[sc.FORECAST_INPUT_TOKENS] == forecasts[(steps - 1) // 2]


@each_class
@pytest.mark.parametrize("interval", [1, 2, 4])
def test_the_forecast_with_planning(cls: type, interval: int, observed: Observed) -> None:
    """P52: with plans the forecast as of half way meets the outcome within 5 %: the first plan is made from another
    template, and plans see the memory without the model's own words, so they are not on the line of the actions."""
    replies = equal_steps(cls, 12)
    with_plans = [
        reply for i, action in enumerate(replies) for reply in ([f"plan {i}"] * (i % interval == 0) + [action])
    ]
    script = exact_run(cls, with_plans, max_steps=12, planning_interval=interval)
    assert (observed.run[sc.RUN_STEPS], observed.run[sc.RUN_PLANNING_STEPS]) == (12, 12 // interval)
    assert observed.run[sc.FORECAST_INPUT_TOKENS] == pytest.approx(script.truth.input_tokens, rel=0.05)


@each_class
@each_form
def test_plans_are_no_part_of_the_curve(cls: type, consumed: str, observed: Observed) -> None:
    """P52: with a plan at every second of 6 steps the actions are a series that rises, the plans another one."""
    cell = Cell(cls, consumed)
    replies = cell.replies(6)
    script = Script(*(reply for i in (0, 2, 4) for reply in (f"plan {i}", *replies[i : i + 2])))
    cell.run(cell.agent(script, planning_interval=2))
    check_all(observed, script.truth)

    def curve(step_type: str) -> list[float]:
        points = observed.points("smolagents.step.input_tokens")
        found = {a[sc.STEP_NUMBER]: value for a, value in points if a[sc.STEP_TYPE] == step_type}
        return [found[number] for number in sorted(found)]

    assert curve("action") == series(observed, sc.STEP_INPUT_TOKENS)
    assert curve("action") == sorted(curve("action"))
    assert curve("planning") == [attributes(span)[sc.STEP_INPUT_TOKENS] for span in observed.plans]
    assert observed.run[sc.FIT_R_SQUARED] > 0.99
    assert observed.run[sc.FIT_CALLS] == 6
    assert [attributes(span)[sc.STEP_NUMBER] for span in observed.plans] == [1, 3, 5]


# --- the window ------------------------------------------------------------------------------------------------------


class ContextLengthError(Exception):
    """The prompt is longer than the model can take."""


def overflowing_run(cell: Cell, window: int) -> Script:
    """Steps until the prompt does not fit any more."""

    def report(prompt: Sequence[Any], reply: Reply) -> TokenUsage:
        if characters(prompt) // 4 > window:
            raise ContextLengthError(window)
        return TokenUsage(characters(prompt) // 4, 9)

    script = Script(*cell.replies(40), usage=report)
    subject = cell.agent(script, tools=[make_tool(script.truth, size=1000)], max_steps=40)
    kind, _ = raised(lambda: cell.run(subject))
    assert kind is AgentGenerationError
    return script


@each_class
@each_form
def test_share_of_the_context_window(
    cls: type, consumed: str, observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P48: with the window configured each step shows its share of it; 0.8 is passed before the step that fails, whose
    own prompt shows more than 1."""
    monkeypatch.setenv("OTEL_SMOL_CONTEXT_WINDOW", "other=9,scripted=4000")
    observed = observe()
    overflowing_run(Cell(cls, consumed), 4000)
    shares = series(observed, sc.CONTEXT_WINDOW_SHARE)
    assert shares == sorted(shares)
    assert shares[0] < 0.8 < shares[-2] <= 1 < shares[-1]
    assert sc.ERROR_TYPE in attributes(observed.steps[-1])
    failed = attributes(observed.chats[-1])
    assert failed[sc.CONTEXT_WINDOW_SHARE] == shares[-1]
    assert failed[sc.HISTORY_TOKENS] == attributes(observed.steps[-1])[sc.HISTORY_TOKENS] > 4000
    assert observed.run[sc.RUN_STATE] == "error"


@each_class
def test_no_window_is_guessed(cls: type, observed: Observed) -> None:
    """P48: without a configured window nothing says what the share is."""
    overflowing_run(Cell(cls, "plain"), 4000)
    assert not any(sc.CONTEXT_WINDOW_SHARE in attributes(span) for span in observed.spans)
    assert observed.points("smolagents.active_run.max_context_window_share") == []


# --- who made it grow ------------------------------------------------------------------------------------------------


@each_class
def test_who_made_the_history_big(cls: type, observed: Observed) -> None:
    """P50: of 10 steps the second reads 20,000 characters: its tool is the largest contributor, at what it added times
    the 8 calls that sent it; the step that sent it first has by far the most that is new."""
    truth = Truth()
    replies = equal_steps(cls, 10)
    replies[1] = code("print(read_page(1))") if issubclass(cls, CodeAgent) else [("read_page", {"n": 1})]
    exact_run(cls, replies, [make_tool(truth, "read_page", 20_000)])
    paid = {values[sc.TOOL_NAME]: n for values, n in observed.points("smolagents.history.tool.input_tokens")}
    assert max(paid, key=paid.__getitem__) == "read_page"
    assert paid["read_page"] == pytest.approx(20_000 * 8, rel=0.01)
    assert paid["search"] == pytest.approx(SIZE * sum(k - 1 - (k > 2) for k in range(2, 11)), rel=0.02)
    for span in observed.steps[2:]:
        values = attributes(span)
        tools = dict(zip(values[sc.HISTORY_TOOL_NAMES], values[sc.HISTORY_TOOL_TOKENS], strict=True))
        assert values[sc.HISTORY_TOOL_NAMES][0] == "read_page"
        assert tools["read_page"] == pytest.approx(20_000, rel=0.01)
        assert sum(tools.values()) == values[sc.HISTORY_SOURCE_TOKENS["observation"]]
    new = series(observed, sc.STEP_NEW_TOKENS)
    assert new.index(max(new)) == 2
    [tool] = [span for span in observed.tools if attributes(span)[sc.TOOL_NAME] == "read_page"]
    assert attributes(tool)[sc.TOOL_OUTPUT_CHARACTERS] == 20_000


@each_class
def test_tools_of_one_step_share_its_observation(cls: type, observed: Observed) -> None:
    """P50: three tools in one step: each is charged with the part of the observation that it returned."""
    sizes = {"small": 100, "middle": 1000, "large": 5000}
    tools = [make_tool(Truth(), name, size) for name, size in sizes.items()]
    together: Reply = [(name, {"n": 1}) for name in sizes]
    if issubclass(cls, CodeAgent):
        together = code("print(small(1), middle(1), large(1))")
    exact_run(cls, [together, equal_steps(cls, 1)[0]], tools)
    paid = {values[sc.TOOL_NAME]: n for values, n in observed.points("smolagents.history.tool.input_tokens")}
    for name, size in sizes.items():
        assert paid[name] == pytest.approx(size, rel=0.02), name


# --- edits -----------------------------------------------------------------------------------------------------------


def trimmed_run(cls: type, observed: Observed, edit: Callable[[ActionStep, Any], None]) -> Script:
    """Eight equal steps, after each of which a callback edits the memory."""
    script = exact_run(cls, equal_steps(cls, 8), step_callbacks=[edit])
    check_parts(observed, script.truth)
    return script


def trim_once(step: ActionStep, agent: Any) -> None:
    """After step 4 cut the observation of step 2 to 50 characters."""
    if step.step_number == 4:
        old = agent.memory.steps[2]
        old.observations = old.observations[:50]


def trim_always(step: ActionStep, agent: Any) -> None:
    """After each step cut the observation of the step before the last."""
    if step.step_number > 2:
        old = agent.memory.steps[-2]
        old.observations = old.observations[:50]


@each_class
def test_compaction_is_seen_and_sized(cls: type, observed: Observed) -> None:
    """P54: the call after the edit carries the convention's flag, and what was saved: size before less size after."""
    kept = {}

    def edit(step: ActionStep, agent: Any) -> None:
        kept[step.step_number] = len(step.observations or "")
        trim_once(step, agent)

    trimmed_run(cls, observed, edit)
    saved = kept[2] - 50
    compacted = [attributes(span).get(sc.HISTORY_COMPACTED_TOKENS) for span in observed.steps]
    assert compacted == [*[None] * 4, saved, *[None] * 3]
    flags = [attributes(span).get(sc.CONVERSATION_COMPACTED) for span in observed.chats]
    assert flags == [*[None] * 4, True, *[None] * 3]
    assert observed.total("smolagents.history.compacted_tokens") == saved
    before, after = (history_of(attributes(observed.steps[i])) for i in (3, 4))
    assert after == before - saved + series(observed, sc.STEP_NEW_TOKENS)[4] - 50 - len("Observation:\n")


@each_class
def test_prefix_share_falls_where_an_old_message_changed(cls: type, observed: Observed) -> None:
    """P53: 1.0 while the memory is only added to; at the call after the edit it is what stands before the message that
    changed, tool schemas apart."""
    script = trimmed_run(cls, observed, trim_once)
    shares = [attributes(span).get(sc.HISTORY_PREFIX_SHARE) for span in observed.steps]
    previous, edited = script.truth.prompts[3:5]
    unchanged = next(i for i, (a, b) in enumerate(zip(previous, edited, strict=False)) if a.content != b.content)
    expected = characters(previous[:unchanged]) / characters(previous)
    assert 0 < expected < 0.95
    assert shares == [None, 1.0, 1.0, 1.0, expected, 1.0, 1.0, 1.0]


@each_class
def test_trimming_at_each_step_breaks_the_prefix_at_each_step(cls: type, observed: Observed) -> None:
    """P53: a boundary that slides along saves tokens on every call, and no call continues the prompt before it: what it
    saves in tokens it may lose in cached reads, which stand beside it."""
    trimmed_run(cls, observed, trim_always)
    shares = [attributes(span)[sc.HISTORY_PREFIX_SHARE] for span in observed.steps[1:]]
    assert shares[:2] == [1.0, 1.0]
    assert all(share < 1 for share in shares[2:])
    saved = [attributes(span).get(sc.HISTORY_COMPACTED_TOKENS, 0) for span in observed.steps]
    assert saved[:3] == [0, 0, 0]
    assert min(saved[3:]) > SIZE * 0.9


def test_cached_reads_stand_beside_the_prefix(observed: Observed) -> None:
    """P53: where the provider reports cached reads, the chat span has them next to the prefix share."""
    raw = {"usage": {"prompt_tokens": 900, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 600}}}
    script = Script(*equal_steps(CodeAgent, 3), usage=lambda *_: TokenUsage(900, 9))
    agent(CodeAgent, script, model=RawModel(script, raw)).run("the task")
    for span in observed.chats[1:]:
        values = attributes(span)
        assert (values[sc.HISTORY_PREFIX_SHARE], values[sc.USAGE_CACHE_READ_TOKENS]) == (1.0, 600)


class Notes(MemoryStep):  # type: ignore[misc]
    """A kind of step that is new to everybody. It counts how often it is asked, and fails when asked too often."""

    def __init__(self, most: int | None = None) -> None:
        self.asked, self.most = 0, most

    def to_messages(self, summary_mode: bool = False) -> list[ChatMessage]:
        self.asked += 1
        if self.most is not None and self.asked > self.most:
            raise RuntimeError("asked once more than smolagents asks")
        return [ChatMessage(MessageRole.USER, [{"type": "text", "text": "notes " * 50}])]


def run_with_notes(cls: type, notes: Notes) -> Script:
    def insert(step: ActionStep, agent: Any) -> None:
        if step.step_number == 1:
            agent.memory.steps.insert(1, notes)

    return exact_run(cls, equal_steps(cls, 5), step_callbacks=[insert])


@each_class
def test_unknown_steps_are_sized_and_not_asked_again(cls: type, observed: Observed) -> None:
    """P55: a memory step of an unknown kind counts as `other`, from the messages sent: it is asked exactly as often as
    without us."""
    SmolagentsInstrumentor().uninstrument()
    bare = Notes()
    run_with_notes(cls, bare)
    observed.instrument()
    script = run_with_notes(cls, Notes(most=bare.asked))
    check_all(observed, script.truth)
    assert bare.asked == 4
    other = [attributes(span).get(sc.HISTORY_SOURCE_CHARACTERS["other"]) for span in observed.steps]
    assert other == [None, *[len("notes " * 50)] * 4]


@each_class
@each_form
def test_no_step_is_asked_more_often_than_without_us(
    cls: type, consumed: str, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P55: `to_messages` of every kind of step is called as often as by a bare smolagents, with the same arguments."""
    SmolagentsInstrumentor().uninstrument()
    asked: list[tuple[str, Any, Any]] = []

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def to_messages(step: Any, *args: Any, **kwargs: Any) -> Any:
            asked.append((type(step).__name__, args, kwargs))
            return original(step, *args, **kwargs)

        return to_messages

    for kind in (ActionStep, PlanningStep, SystemPromptStep, TaskStep):
        monkeypatch.setattr(kind, "to_messages", counting(kind.to_messages))
    cell = Cell(cls, consumed)

    def run() -> list[tuple[str, Any, Any]]:
        asked.clear()
        replies = cell.replies(4)
        cell.run(cell.agent(Script("a plan", *replies[:2], "a plan", *replies[2:]), planning_interval=2))
        return list(asked)

    bare = run()
    observed.instrument()
    assert run() == bare
    SmolagentsInstrumentor().uninstrument()


def test_errors_that_are_replayed_are_history(observed: Observed) -> None:
    """P88: the text of an error counts under the source `error`, at every call that sends it."""
    script = exact_run(CodeAgent, ["no code", *equal_steps(CodeAgent, 3)])
    shown = [attributes(span).get(sc.HISTORY_SOURCE_CHARACTERS["error"]) for span in observed.steps]
    texts = [characters([m]) for m in script.truth.prompts[-1] if "Error:\n" in m.content[0]["text"][:40]]
    assert shown == [None, *texts * 3]
