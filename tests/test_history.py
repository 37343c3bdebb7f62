"""The history of a run: parts, ages, numbers and savings, held against oracles in random scripts of memory edits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from PIL import Image
from smolagents.memory import ActionStep, MemoryStep
from smolagents.models import ChatMessage, MessageRole

from otel_smol import semconv as sc
from otel_smol.history import (
    IMAGE_WEIGHT,
    Body,
    Cell,
    History,
    Message,
    PromptSizes,
    apportion,
    by_source,
    by_tool,
    share_among,
    split,
    top,
)
from otel_smol.ledger import Call, RunLedger, Step
from otel_smol.patches.memory import MemorySteps
from otel_smol.patches.prompt import Prompt
from otel_smol.usage import UNKNOWN, Usage
from tests.conftest import Observed, attributes
from tests.rules import check_parts
from tests.scripted import Script, agent, characters, each_class, make_tool, step_replies

KINDS = ("action", "planning", "final_answer", "other")
HISTORY_SOURCES = tuple(sorted({*sc.SOURCES} - sc.FIXED_SOURCES - {"image"}))
TOOLS = ("search", "python_interpreter")

tool_weights = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(0, 10**6), min_size=1)


# --- what a prompt consists of ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A message in the memory of an imaginary agent. Its body is text, or text and pictures."""

    key: int
    source: str
    body: Body

    @property
    def texts(self) -> list[str]:
        return [part for part in ([self.body] if isinstance(self.body, str) else self.body) if isinstance(part, str)]

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))

    @property
    def images(self) -> int:
        return 0 if isinstance(self.body, str) else len(self.body) - len(self.texts)

    @property
    def weight(self) -> int:
        return self.characters + IMAGE_WEIGHT * self.images

    @property
    def is_history(self) -> bool:
        return self.source not in sc.FIXED_SOURCES

    @property
    def message(self) -> Message:
        tools = share_among(self.characters, [(TOOLS[0], 7)], TOOLS[1]) if self.source == "observation" else ()
        return Message(self.source, self.key, self.characters, self.images, tools)


def measure(history: History, kind: str, entries: Sequence[Entry], schema: int = 0) -> PromptSizes:
    return history.measure(kind, [entry.body for entry in entries], lambda i: entries[i].message, schema)


def history_weight(sizes: PromptSizes) -> int:
    return sum(weight for cell, weight in sizes.cells.items() if cell.source not in sc.FIXED_SOURCES)


def expand(refs: str) -> list[int]:
    """Numbers of the messages that `smolagents.input.messages.refs` names: `0-3,7` is 0, 1, 2, 3, 7."""
    numbers: list[int] = []
    for part in refs.split(",") if refs else ():
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


class Memory(RuleBasedStateMachine):
    """An agent's memory that is added to and edited at will, and sent again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.keys = count()
        self.entries = [Entry(next(self.keys), "system_prompt", "You are." * 9), Entry(next(self.keys), "task", "Do.")]
        self.previous: dict[str, list[Entry]] = {}
        self.sent: set[tuple[int, Body]] = set()
        """What earlier calls have sent. No edit brings back what was there before."""
        self.log: list[Body] = []
        """The captured messages, by number."""

    # --- edits

    @rule(source=st.sampled_from(HISTORY_SOURCES), size=st.integers(0, 40), images=st.integers(0, 2))
    def add(self, source: str, size: int, images: int) -> None:
        self.entries.append(self._new(source, size, images))

    @rule(data=st.data())
    def insert_of_unknown_kind(self, data: st.DataObject) -> None:
        self.entries.insert(data.draw(self._position()), self._new("other", data.draw(st.integers(0, 30))))

    @precondition(lambda self: len(self.entries) > 2)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        i = data.draw(self._index())
        entry = self.entries[i]
        if isinstance(entry.body, str) and entry.body.endswith("x"):
            least = len(f"{entry.key}:")  # so that no two messages say the same: then only the keys tell them apart
            shorter = replace(entry, body=entry.body[: data.draw(st.integers(least, len(entry.body) - 1))])
            self.entries = [shorter if other.key == entry.key else other for other in self.entries]

    @precondition(lambda self: len(self.entries) > 2)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        del self.entries[data.draw(self._index())]

    @rule(kept=st.integers(0, 4))
    def keep_the_last(self, kept: int) -> None:
        self.entries = self.entries[:2] + self.entries[2:][-kept:] if kept else self.entries[:2]

    @precondition(lambda self: len(self.entries) > 2)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.entries.append(self.entries[data.draw(self._index())])

    # --- calls

    @rule(kind=st.sampled_from(KINDS), schema=st.sampled_from([0, 100]), tokens=st.integers(0, 10**6))
    def send(self, kind: str, schema: int, tokens: int) -> None:
        """Every size, age and number of a prompt is what a look at the whole of it says."""
        prompt = [e for e in self.entries if kind != "planning" or e.source != "assistant"]  # smolagents' summary mode
        sizes = measure(self.history, kind, prompt, schema)
        self._check_sizes(sizes, prompt, schema)
        self._check_numbers(sizes, prompt)
        check_split(sizes, tokens)
        if kind == "other":
            assert (sizes.compacted, sizes.prefix_share) == (0, None)
            assert not any(cell.replayed for cell in sizes.cells)
            return
        self._check_ages(sizes, prompt)
        self._check_edits(sizes, prompt, self.previous.get(kind, []))
        self.sent |= {(entry.key, entry.body) for entry in prompt}
        self.previous[kind] = prompt

    @invariant()
    def nothing_is_kept_that_no_prompt_holds(self) -> None:
        """What is gone from the memory, and from every last prompt, is not held by us either."""
        held = {entry.key for prompt in self.previous.values() for entry in prompt}
        assert set(self.history._sent) <= held | {entry.key for entry in self.entries}

    # --- oracles

    def _check_sizes(self, sizes: PromptSizes, prompt: list[Entry], schema: int) -> None:
        sources = {entry.source for entry in prompt} | ({"tool_schema"} if schema else set())
        texts = {s: sum(e.characters for e in prompt if e.source == s) + schema * (s == "tool_schema") for s in sources}
        images = sum(entry.images for entry in prompt)
        assert sizes.messages == len(prompt)
        assert {s: n for s, n in sizes.characters.items() if n} == {s: n for s, n in texts.items() if n}
        assert sizes.total_characters == sum(entry.characters for entry in prompt) + schema
        assert sizes.images == images
        assert sizes.weight == sizes.total_characters + IMAGE_WEIGHT * images
        weights = dict(texts)
        weights["image"] = weights.get("image", 0) + IMAGE_WEIGHT * images
        assert by_source(sizes.cells) == {s: n for s, n in weights.items() if n}
        assert sum(by_tool(sizes.cells).values()) == texts.get("observation", 0)

    def _check_ages(self, sizes: PromptSizes, prompt: list[Entry]) -> None:
        again = [entry for entry in prompt if entry.is_history and (entry.key, entry.body) in self.sent]
        assert sum(w for cell, w in sizes.cells.items() if cell.replayed) == sum(entry.weight for entry in again)
        assert not any(cell.replayed for cell in sizes.cells if cell.source in sc.FIXED_SOURCES)

    def _check_edits(self, sizes: PromptSizes, prompt: list[Entry], before: list[Entry]) -> None:
        old, new = [entry.body for entry in before], [entry.body for entry in prompt]
        unchanged = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        whole = sum(entry.weight for entry in before)
        expected = sum(entry.weight for entry in before[:unchanged]) / whole if whole else None
        assert sizes.prefix_share == expected
        gone = {entry.key for entry in before[unchanged:] if entry.is_history}
        kept = max((i for i, entry in enumerate(prompt) if i >= unchanged and entry.key in gone), default=-1)
        took_its_place = [e for i, e in enumerate(prompt) if i >= unchanged and (i <= kept or e.source == "other")]
        went = sum(entry.weight for entry in before[unchanged:] if entry.is_history)
        saved = went - sum(entry.weight for entry in took_its_place if entry.is_history)
        assert sizes.compacted == (max(saved, 0) if gone else 0)

    def _check_numbers(self, sizes: PromptSizes, prompt: list[Entry]) -> None:
        self.log += [prompt[i].body for i in sizes.new_messages]
        assert [self.log[number] for number in expand(sizes.refs)] == [entry.body for entry in prompt]

    # --- inside

    def _new(self, source: str, size: int, images: int = 0) -> Entry:
        key = next(self.keys)
        text = f"{key}:" + "x" * size
        pictures: tuple[object, ...] = tuple(("image", (key, i)) for i in range(images))
        return Entry(key, source, (text, *pictures) if pictures else text)

    def _index(self) -> st.SearchStrategy[int]:
        return st.integers(2, len(self.entries) - 1)

    def _position(self) -> st.SearchStrategy[int]:
        return st.integers(2, len(self.entries))


def check_split(sizes: PromptSizes, tokens: int) -> None:
    """Tokens by cell are whole, add up to the bill, and follow the weights."""
    parts = split(sizes.cells, tokens)
    assert sum(parts.values()) == tokens
    for cell, weight in sizes.cells.items():
        assert abs(parts.get(cell, 0) - tokens * weight / sizes.weight) < 1


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=80, stateful_step_count=30)


@given(st.lists(st.lists(st.tuples(st.sampled_from(HISTORY_SOURCES), st.integers(0, 500)), max_size=4), max_size=12))
def test_what_is_only_added_to(steps: list[list[tuple[str, int]]]) -> None:
    """P53: an append-only memory has prefix share 1.0 and saves nothing; call k replays the history of call k-1."""
    history, keys = History(), count()
    entries = [Entry(next(keys), "system_prompt", "You are."), Entry(next(keys), "task", "Do.")]
    before = measure(history, "action", entries)
    assert before.prefix_share is None
    for step in steps:
        entries += [Entry(next(keys), source, "x" * size) for source, size in step]
        sizes = measure(history, "action", entries, 50)
        assert (sizes.prefix_share, sizes.compacted) == (1.0, 0)
        replayed = sum(weight for cell, weight in sizes.cells.items() if cell.replayed)
        assert replayed == history_weight(before)
        assert sizes.new_messages == tuple(range(before.messages, sizes.messages))
        assert sizes.refs == f"0-{len(entries) - 1}"
        before = sizes


def test_only_what_is_behind_the_unchanged_prefix_is_looked_at() -> None:
    """P45: at the 50th call of a growing prompt one new message is described, as at the second."""
    history, asked = History(), []
    entries = [Entry(0, "system_prompt", "You are.")]

    def describe(i: int) -> Message:
        asked.append(i)
        return entries[i].message

    for key in range(1, 50):
        history.measure("action", [entry.body for entry in entries], describe)
        entries.append(Entry(key, "assistant", f"step {key}"))
    assert asked == list(range(49))


def test_compaction_in_numbers() -> None:
    """P54: an old observation of 4000 characters cut to 100 saves 3900, and the prefix ends before it."""
    history = History()
    entries = [Entry(0, "task", "t" * 100), Entry(1, "observation", "o" * 4000), Entry(2, "assistant", "a" * 900)]
    measure(history, "action", entries)
    entries[1] = replace(entries[1], body="o" * 100)
    sizes = measure(history, "action", [*entries, Entry(3, "observation", "n" * 500)])
    assert sizes.compacted == 3900
    assert sizes.prefix_share == 100 / 5000
    assert {cell: n for cell, n in sizes.cells.items() if cell.source == "assistant"} == {
        Cell("assistant", None, True): 900
    }


def test_a_message_that_stands_twice_in_its_first_prompt_is_new_twice() -> None:
    """P45: new is what no earlier call has sent, also where one prompt says it twice; its text is captured once."""
    history, entry = History(), Entry(1, "assistant", "same")
    sizes = measure(history, "action", [entry, entry])
    assert sizes.cells == {Cell("assistant", None, False): 8}
    assert (sizes.new_messages, sizes.refs) == ((0,), "0,0")
    assert measure(history, "action", [entry, entry, entry]).cells == {Cell("assistant", None, True): 12}


# --- shares ----------------------------------------------------------------------------------------------------------


@given(tool_weights.filter(lambda weights: any(weights.values())), st.integers(0, 10**7))
def test_apportion(weights: dict[str, int], total: int) -> None:
    """Whole shares that add up to the total, each off its exact value by less than 1, none for a weight of 0."""
    shares = apportion(weights, total)
    assert sum(shares.values()) == total
    for name, weight in weights.items():
        assert abs(shares[name] - total * weight / sum(weights.values())) < 1
        assert weight or not shares[name]


def test_nothing_to_divide_by() -> None:
    """An empty prompt that was billed all the same goes under `other`; without weights nothing can be apportioned."""
    assert split({}, 7) == {Cell("other", None, False): 7}
    assert split({}, 0) == {}
    with pytest.raises(ZeroDivisionError):
        apportion({"a": 0}, 1)


@given(st.integers(0, 5000), st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3000)), max_size=5))
def test_an_observation_is_shared_among_the_tools_that_caused_it(size: int, outputs: list[tuple[str, int]]) -> None:
    """P50: the shares add up to the observation; what no tool returned is the code's own, where there is code."""
    known = {name for name, _ in outputs}
    for remainder in (None, "python_interpreter"):
        shares = dict(share_among(size, outputs, remainder))
        assert set(shares) <= known | {remainder}
        assert sum(shares.values()) == (size if shares else 0)
    returned = sum(n for _, n in outputs)
    if returned <= size:
        exact = {name: sum(n for other, n in outputs if other == name) for name in known}
        assert {name: n for name, n in shares.items() if name in known} == exact


@given(tool_weights, st.integers(1, 4))
def test_top(tools: dict[str, int], limit: int) -> None:
    """P50: the largest first, the rest together as `_OTHER`, nothing lost and nothing that is 0."""
    ranked = top(tools, limit)
    assert sum(n for _, n in ranked) == sum(tools.values())
    assert all(n for _, n in ranked)
    named = [n for name, n in ranked if name != sc.OVERFLOW]
    assert named == sorted(tools.values(), reverse=True)[: len(named)]
    assert len(named) <= limit


# --- the ledger ------------------------------------------------------------------------------------------------------

usages = st.one_of(
    st.builds(Usage, st.integers(1, 10**6), st.integers(0, 10**4)),
    st.builds(Usage, st.none(), st.integers(1, 10**4)),
    st.just(UNKNOWN),
)
calls = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 400), usages, st.booleans()), max_size=25)


@given(calls, st.booleans())
def test_the_ledger_keeps_every_token(script: list[tuple[str, int, Usage, bool]], read: bool) -> None:
    """P34: whatever calls report, wholly or before they fail, read or not: it is booked, split exactly, once."""
    ledger, entries = RunLedger(max_steps=30), [Entry(0, "system_prompt", "You are." * 20)]
    steps: list[Step] = []
    for number, (kind, size, usage, failed) in enumerate(script, 1):
        entries.append(Entry(number, "observation", "x" * size))
        steps.append(Step(kind, number))
        call = book(ledger, kind, entries if read else None, usage, steps[-1], answered=not failed)
        split_count = call.count
        assert split_count.fixed + split_count.new + split_count.replayed == split_count.input == (call.tokens or 0)
        assert sum(call.cells.values()) == (call.tokens or 0)
        assert call.tokens == usage.input_tokens or not call.billed
        assert ledger.forecast is None or ledger.forecast >= ledger.billed.input
    reported = [usage for _, _, usage, _ in script]
    billed = ledger.billed
    assert billed.input == sum(usage.input_tokens or 0 for usage in reported)
    assert billed.output == sum(usage.output_tokens or 0 for usage in reported)
    assert billed.fixed + billed.new + billed.replayed == billed.input
    assert sum(step.billed.input for step in steps) == billed.input
    assert ledger.calls == len(script)
    assert ledger.calls_without_usage == sum(not usage.known and not failed for _, _, usage, failed in script)
    for step, (_, _, usage, failed) in zip(steps, script, strict=True):
        assert step.unknown_input == (not usage.known and (usage != UNKNOWN or not failed))


def book(
    ledger: RunLedger,
    kind: str,
    entries: list[Entry] | None,
    usage: Usage,
    step: Step | None = None,
    answered: bool = True,
) -> Call:
    """One call, from its prompt to its bill."""
    call = ledger.begin_call(kind, step)
    if entries is not None:
        ledger.measure(call, [entry.body for entry in entries], lambda i: entries[i].message)
    ledger.end_call(call, usage, answered)
    return call


def grow(ledger: RunLedger, usages: Iterable[Usage]) -> list[Call]:
    """Action calls whose prompts grow by 100 characters a step, with these usages."""
    entries = [Entry(0, "system_prompt", "x" * 100)]
    booked = []
    for number, usage in enumerate(usages, 1):
        booked.append(book(ledger, "action", list(entries), usage))
        entries.append(Entry(number, "observation", "x" * 100))
    return booked


def test_no_forecast_once_a_call_was_without_usage() -> None:
    """P34: a hole in the bill ends fit and forecast; what was forecast half way, before it, stands."""
    ledger = RunLedger(max_steps=10)
    grow(ledger, [Usage(100 * n, 1) for n in range(1, 4)])
    half_way = ledger.forecast
    assert half_way is not None
    grow(ledger, [UNKNOWN])
    assert (ledger.fit, ledger.forecast) == (None, None)
    grow(ledger, [Usage(90_000, 1), Usage(95_000, 1)])
    assert (ledger.fit, ledger.forecast, ledger.forecast_half_way) == (None, None, half_way)


def test_forecast_keeps_up_with_calls_that_are_no_actions() -> None:
    """P52: a plan or a final answer that was billed is in the forecast at once, not only after the next action."""
    ledger = RunLedger(max_steps=3)
    grow(ledger, [Usage(100, 1)] * 3)
    for kind in ("planning", "final_answer", "other"):
        book(ledger, kind, [], Usage(1000, 1), Step(kind, 3))
        assert ledger.forecast == ledger.billed.input


@given(st.integers(3, 30))
def test_forecast_half_way(calls: int) -> None:
    """P45: the forecast that a finished run shows is the one that stood after half of its action calls."""
    ledger, seen = RunLedger(max_steps=30), []
    for n in range(calls):
        grow(ledger, [Usage(100 + 7 * n * n, 1)])
        seen.append(ledger.forecast)
    assert ledger.forecast_half_way == seen[(calls - 1) // 2]


def test_context_share_is_of_the_bill_once_there_is_one() -> None:
    """P48: an estimate made before the first bill does not outlive it; the fullest prompt of the run counts."""
    ledger = RunLedger(max_steps=10, context_window=1000)
    prompt = [Entry(0, "system_prompt", "x" * 3600)]
    call = ledger.begin_call("action", None)
    ledger.measure(call, ["x" * 3600], lambda i: prompt[i].message)
    assert ledger.max_context_share == 0.9
    ledger.end_call(call, Usage(450, 1), answered=True)
    assert ledger.max_context_share == 0.45
    book(ledger, "planning", [Entry(1, "task", "x" * 80)], Usage(10, 1))
    assert ledger.max_context_share == 0.45


@given(st.integers(1, 10**6), st.lists(st.integers(0, 10**5), max_size=30))
def test_the_budget_is_crossed_once(budget: int, inputs: list[int]) -> None:
    """P48: the call that takes the total over the budget says so; none before it, none after it."""
    ledger = RunLedger(max_steps=1, token_budget=budget)
    crossings = [ledger.add_total(tokens, 0) for tokens in inputs]
    over = [sum(inputs[: i + 1]) > budget for i in range(len(inputs))]
    assert crossings == [is_over and not was for is_over, was in zip(over, [False, *over], strict=False)]


# --- messages in every form ------------------------------------------------------------------------------------------

texts = st.text(max_size=30)
parts = st.one_of(
    texts.map(lambda text: {"type": "text", "text": text}),
    texts,
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,xxxx"}}),
    st.builds(lambda size: {"type": "image", "image": Image.new("RGB", (size, size))}, st.integers(1, 4)),
    st.just({"type": "input_audio", "input_audio": {"data": "xxxx", "format": "wav"}}),
)
contents = st.one_of(texts, st.none(), st.lists(parts, max_size=4))
roles = st.sampled_from([*MessageRole, *(role.value for role in MessageRole)])
messages = st.one_of(
    st.builds(lambda role, content: {"role": role, "content": content}, roles, contents),
    st.builds(lambda role, content: ChatMessage(role=role, content=content), roles, contents),
)


@given(st.lists(messages, max_size=6), st.sampled_from(KINDS))
def test_prompts_in_every_form(prompt: list[Any], kind: str) -> None:
    """P55: text, parts, dicts, objects, roles as text or enum: sized to the character, pictures counted apart."""
    read = Prompt(prompt, kind, None, MemorySteps())
    sizes = History().measure(kind, read.bodies, read.describe)
    assert sizes.total_characters == characters(prompt)
    assert sizes.images == sum(is_image(part) for message in prompt for part in content_parts(message))
    assert set(sizes.characters) <= set(sc.SOURCES)


@given(st.lists(messages, max_size=6))
def test_a_prompt_written_anew_is_the_same_prompt(prompt: list[Any]) -> None:
    """P53: the same messages in new objects, as smolagents writes them at each call, are an unchanged prefix."""
    history = History()
    for _ in range(2):
        read = Prompt([rewritten(message) for message in prompt], "action", None, MemorySteps())
        sizes = history.measure("action", read.bodies, read.describe)
    assert sizes.new_messages == ()
    assert sizes.prefix_share in (1.0, None)


def content_parts(message: Any) -> list[Any]:
    content = message["content"] if isinstance(message, dict) else message.content
    return [] if content is None else [content] if isinstance(content, str) else content


def is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type", "").startswith("image")


def rewritten(value: Any) -> Any:
    """New containers around the same text and pictures."""
    if isinstance(value, dict):
        return {key: rewritten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rewritten(item) for item in value]
    return ChatMessage(value.role, rewritten(value.content)) if isinstance(value, ChatMessage) else value


# --- the same with real agents ---------------------------------------------------------------------------------------


class Summary(MemoryStep):  # type: ignore[misc]
    """A kind of memory step that nobody has heard of, with messages in every form."""

    def __init__(self, text: str) -> None:
        self.text = text

    def to_messages(self, summary_mode: bool = False) -> list[Any]:
        return [
            {"role": "user", "content": self.text},
            ChatMessage(MessageRole.ASSISTANT, [{"type": "text", "text": self.text}, {"type": "text", "text": "and"}]),
            ChatMessage(MessageRole.USER, f"so far: {self.text}"),
        ]


def trim_all(steps: list[Any]) -> list[Any]:
    for step in steps:
        if isinstance(step, ActionStep) and step.observations:
            step.observations = step.observations[:20]
    return steps


def add_picture(steps: list[Any]) -> list[Any]:
    steps[-1].observations_images = [Image.new("RGB", (3, 2))]
    return steps


EDITS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "nothing": lambda steps: steps,
    "trim": trim_all,
    "delete": lambda steps: steps[:1] + steps[2:],
    "window": lambda steps: steps[:1] + steps[-2:],
    "summarise": lambda steps: [steps[0], Summary(f"{len(steps)} steps"), steps[-1]],
    "picture": add_picture,
    "repeat": lambda steps: [*steps, steps[-1]],
    "forget": lambda steps: steps[:1],
}


@pytest.mark.parametrize("planning_interval", [None, 2])
@each_class
def test_memory_edits_of_real_agents(cls: type, planning_interval: int | None, observed_content: Observed) -> None:
    """P54, P55: however a memory is edited, parts add up to what the model received and to the bill, and references
    and captured messages tell every prompt."""

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    @given(st.lists(st.sampled_from(sorted(EDITS)), min_size=4, max_size=4))
    def run(edits: list[str]) -> None:
        observed_content.recorder.ended.clear()
        replies = step_replies(cls, len(edits) + 1)
        if planning_interval:
            replies = [reply for i, two in enumerate(pairs(replies)) for reply in (f"plan {i}", *two)]
        script = Script(*replies)

        def edit(step: ActionStep, agent: Any) -> None:
            if step.step_number <= len(edits):  # the step itself is appended only after its callbacks
                agent.memory.steps = EDITS[edits[step.step_number - 1]](list(agent.memory.steps))

        tools = [make_tool(script.truth, size=50)]
        agent(cls, script, tools, step_callbacks=[edit], planning_interval=planning_interval).run("the task")
        check_parts(observed_content, script.truth)
        check_references(observed_content, script.truth.prompts)

    run()


def pairs(items: list[Any]) -> list[list[Any]]:
    return [items[i : i + 2] for i in range(0, len(items), 2)]


def check_references(observed: Observed, prompts: list[list[Any]]) -> None:
    """The captured messages of all calls, numbered through, tell every prompt by its references."""
    log: list[Any] = []
    for span, prompt in zip(observed.chats, prompts, strict=True):
        values = attributes(span)
        log += json.loads(values.get(sc.INPUT_MESSAGES, "[]"))
        told = [log[number] for number in expand(values[sc.INPUT_MESSAGES_REFS])]
        assert [[part.get("content", part["type"]) for part in message["parts"]] for message in told] == [
            [part if isinstance(part, str) else part.get("text", part["type"]) for part in content_parts(message)]
            for message in prompt
        ]
