"""Content leaves the process only where the user has switched it on; on or off, telemetry stays small and linear."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log2
from types import SimpleNamespace
from typing import Any

import pytest
import smolagents
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from PIL import Image
from smolagents import CodeAgent, Tool, ToolCallingAgent
from smolagents.memory import ActionStep

from otel_smol import SmolagentsInstrumentor, content
from otel_smol import semconv as sc
from tests.conftest import CONTENT_VARIABLE, Observed, Warnings, attributes
from tests.scripted import (
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
    raised,
    step_replies,
)

MODES = ("SPAN_ONLY", "EVENT_ONLY", "SPAN_AND_EVENT")


@pytest.fixture
def capturing(observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Observed]:
    """Switch otel_smol on in a content mode."""

    def start(mode: str, **arguments: Any) -> Observed:
        monkeypatch.setenv(CONTENT_VARIABLE, mode)
        return observe(**arguments)

    return start


# --- canaries --------------------------------------------------------------------------------------------------------

CONTENT = (
    *("task", "additional_args", "system_prompt", "instructions", "tool_description", "input_description"),
    *("agent_description", "plan", "thought", "arguments", "result", "report", "answer", "second_turn", "parse_error"),
    *("tool_error", "executor_error", "check_error", "made_up_name", "model_error"),
)
"""What the user may switch on. Each name is planted as a canary in the place that it names."""
SECRETS = ("password", "api_key_in_id", "model_argument", "header", "picture", "cause", "note")
"""What goes out in no mode."""


def canary(place: str) -> str:
    return f"canary-{place.replace('_', '-')}-canary"


def planted(place: str) -> str:
    """The same as a Python name."""
    return canary(place).replace("-", "_")


class Tells(Tool):  # type: ignore[misc]
    """A tool that returns a canary, or fails with one."""

    description = f"Tells. {canary('tool_description')}"
    inputs = {"text": {"type": "string", "description": canary("input_description")}}  # noqa: RUF012
    output_type = "string"

    def __init__(self, name: str, error: bool = False) -> None:
        super().__init__()
        self.name, self._error = name, error

    def forward(self, text: str) -> str:
        if not self._error:
            return canary("result")
        failed = ValueError(canary("tool_error"))
        failed.__notes__ = [canary("note")]
        raise failed from KeyError(canary("cause"))


def call(cls: type, tool: str, **arguments: str) -> Reply:
    """A reply that calls a tool."""
    if issubclass(cls, CodeAgent):
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return code(f"# {canary('thought')}\nprint({tool}({given}))")
    return [(tool, dict(arguments))]


def answer(cls: type, text: str) -> Reply:
    return code(f"final_answer({text!r})") if issubclass(cls, CodeAgent) else [("final_answer", {"answer": text})]


def leaky_run(cell: Cell) -> Script:
    """Two turns of an agent that has a canary in every place where text can be, the second of which fails."""
    cls = cell.cls
    unknown = call(cls, planted("made_up_name"), text="x")
    wrong = code(f"raise ValueError({canary('executor_error')!r})") if cls is CodeAgent else unknown
    worker = cell.agent(Script(answer(cls, canary("report"))), name="worker", description=canary("agent_description"))
    refused: list[int] = []

    def check(final_answer: Any, memory: Any, **_: Any) -> bool:
        refused.append(1)
        if len(refused) == 1:
            raise ValueError(canary("check_error"))
        return True

    error = ConnectionError(canary("model_error"))
    error.__notes__ = [canary("note")]
    error.__cause__ = KeyError(canary("cause"))
    script = Script(
        f"plan {canary('plan')}",
        call(cls, "tells", text=canary("arguments")),
        call(cls, "fails", text=canary("arguments")),
        f"not to be parsed {canary('parse_error')} {canary('thought')}",
        wrong,
        unknown,
        managed_call(cls, "worker"),
        answer(cls, "refused"),
        answer(cls, canary("answer")),
        error,
    )
    model_id = f"https://user:{canary('password')}@host.example/model?api_key={canary('api_key_in_id')}"
    keys = {"api_key": canary("model_argument"), "extra_headers": {"authorization": canary("header")}}
    subject = cell.agent(
        script,
        tools=[Tells("tells"), Tells("fails", error=True)],
        managed_agents=[worker],
        name="boss",
        description=canary("agent_description"),
        instructions=canary("instructions"),
        model=ScriptedModel(script, model_id, **keys),
        planning_interval=20,
        final_answer_checks=[check],
    )
    templates = subject.prompt_templates
    templates["system_prompt"] = f"{templates['system_prompt']}\n{canary('system_prompt')}"
    picture = Image.new("RGB", (40, 30))
    picture.info["comment"] = canary("picture")
    cell.run(subject, f"do {canary('task')}", images=[picture], additional_args={"secret": canary("additional_args")})
    subject.planning_interval = None
    raised(lambda: cell.run(subject, canary("second_turn"), reset=False))
    return script


def wire(observed: Observed) -> dict[str, bytes]:
    """What goes over the wire."""
    measured = observed.reader.get_metrics_data()
    assert measured is not None
    return {
        "spans": encode_spans(observed.recorder.ended).SerializeToString(),
        "metrics": encode_metrics(measured).SerializeToString(),
        "logs": encode_logs(observed.log_exporter.get_finished_logs()).SerializeToString(),
    }


def found(places: tuple[str, ...], sent: bytes | str) -> set[str]:
    """The places whose canary is in what was sent."""
    data = sent if isinstance(sent, bytes) else sent.encode()
    return {place for place in places if canary(place).encode() in data or planted(place).encode() in data}


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """All that we, or OpenTelemetry, wrote into the log."""
    ours = [record for record in caplog.records if record.name.startswith(("otel_smol", "opentelemetry"))]
    return "\n".join(logging.Formatter().format(record) for record in ours)


@each_class
@each_form
@pytest.mark.parametrize("variable", [None, "NO_CONTENT", ""])
def test_no_content_by_default(
    cls: type,
    consumed: str,
    variable: str | None,
    observe: Callable[..., Observed],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P56: without the switch no text of prompt, task, argument, result, code, error, description or credential is in
    any span, event, metric or log record, or in a line that we log."""
    caplog.set_level(logging.DEBUG)
    if variable is not None:
        monkeypatch.setenv(CONTENT_VARIABLE, variable)
    observed = observe()
    leaky_run(Cell(cls, consumed))
    assert len(observed.runs) == 3
    for kind, sent in wire(observed).items():
        assert found(CONTENT + SECRETS, sent) == set(), kind
    assert found(CONTENT + SECRETS, logged(caplog)) == set()
    assert not any(span.events for span in observed.spans)
    assert observed.log_exporter.get_finished_logs() == ()


@each_class
@each_form
@pytest.mark.parametrize("mode", MODES)
def test_content_where_the_mode_wants_it(
    cls: type, consumed: str, mode: str, capturing: Callable[..., Observed], caplog: pytest.LogCaptureFixture
) -> None:
    """P56: each mode brings every text to its place, and to no other; credentials, pictures and what stands behind an
    error go out in none."""
    caplog.set_level(logging.DEBUG)
    observed = capturing(mode)
    leaky_run(Cell(cls, consumed))
    sent = wire(observed)
    possible = set(CONTENT) - ({"executor_error"} if cls is ToolCallingAgent else set())
    on_spans, in_events = mode != "EVENT_ONLY", mode != "SPAN_ONLY"
    assert found(SECRETS, b"".join(sent.values()) + logged(caplog).encode()) == set()
    assert found(CONTENT, sent["metrics"]) == found(CONTENT, logged(caplog)) == set()
    assert found(CONTENT, sent["spans"]) == (possible if on_spans else set())
    # Events are of model calls only: what no model is told, or says, is on spans alone.
    assert found(CONTENT, sent["logs"]) >= (possible - {"agent_description", "model_error"} if in_events else set())
    if not in_events:
        assert sent["logs"] == b""


@each_class
def test_where_on_spans_content_stands(cls: type, observed_content: Observed) -> None:
    """P56: every text stands where the convention wants it."""
    leaky_run(Cell(cls, "plain"))
    spans = {kind: observed_content.named(kind) for kind in ("invoke_agent", "chat", "execute_tool", "agent_step")}

    def texts(kind: str, name: str) -> str:
        return "\n".join(str(attributes(span).get(name, "")) for span in spans[kind])

    def failed(kind: str) -> str:
        return "\n".join(span.status.description or "" for span in spans[kind])

    told = {"task", "additional_args", "system_prompt", "instructions", "tool_description", "result", "report", "plan"}
    for text, places in [
        (texts("invoke_agent", sc.INPUT_MESSAGES), {"task", "second_turn"}),
        (texts("invoke_agent", sc.OUTPUT_MESSAGES), {"answer", "report"}),
        (texts("invoke_agent", sc.AGENT_DESCRIPTION), {"agent_description"}),
        (texts("chat", sc.INPUT_MESSAGES), told | {"arguments", "tool_error", "check_error"}),
        (texts("chat", sc.OUTPUT_MESSAGES), {"plan", "thought", "arguments", "answer", "report", "parse_error"}),
        (texts("execute_tool", sc.TOOL_ARGUMENTS), {"arguments", "answer"}),
        (texts("execute_tool", sc.TOOL_RESULT), {"result", "report", "answer"}),
        (texts("execute_tool", sc.TOOL_DESCRIPTION), {"tool_description", "agent_description"}),
        (failed("execute_tool"), {"tool_error"}),
        (failed("agent_step"), {"tool_error", "check_error", "made_up_name", "model_error"}),
        (failed("chat"), {"model_error"}),
        (failed("invoke_agent"), {"model_error"}),
    ]:
        assert found(CONTENT, text) >= places


@each_class
@each_form
def test_each_answer_says_why_it_ended(cls: type, consumed: str, observed_content: Observed) -> None:
    """The schema's readers want a reason in each message: the library alone writes null, and Phoenix shows no answer.
    What the provider has not told is `unknown` there, and no attribute."""
    leaky_run(Cell(cls, consumed))
    for spans, reasons in ((observed_content.chats, {"unknown"}), (observed_content.runs, {"stop"})):
        answers = [attributes(span)[sc.OUTPUT_MESSAGES] for span in spans if sc.OUTPUT_MESSAGES in attributes(span)]
        assert {message["finish_reason"] for each in answers for message in json.loads(str(each))} == reasons
    assert not any(sc.FINISH_REASONS in attributes(span) for span in observed_content.chats)


def test_an_answer_at_max_steps_says_so(observed_content: Observed) -> None:
    """The run's answer has the reason that the run has."""
    script = Script(*step_replies(CodeAgent, 3))
    agent(CodeAgent, script, max_steps=2).run("task")
    [run] = observed_content.runs
    [message] = json.loads(str(attributes(run)[sc.OUTPUT_MESSAGES]))
    assert (message["finish_reason"], attributes(run)[sc.FINISH_REASONS]) == ("max_steps", ("max_steps",))


@dataclass
class Report:
    """An answer of a program's own."""

    title: str
    output: str


@pytest.mark.parametrize("whole", [{}, {"return_full_result": True}], ids=["answer", "full result"])
def test_the_answer_is_captured_as_it_is(whole: dict[str, Any], observed_content: Observed) -> None:
    """It is what the run gives, whatever attributes that has; of smolagents' own full result it is the answer."""
    if whole and not hasattr(smolagents.agents, "RunResult"):
        pytest.skip("this smolagents has no full result")
    script = Script(code("final_answer(report(1))"))
    tool = make_tool(script.truth, "report", does=lambda n: Report("the title", "the output"))
    agent(CodeAgent, script, [tool], **whole).run("the task")
    assert "the title" in str(attributes(observed_content.runs[0])[sc.OUTPUT_MESSAGES])


@pytest.mark.parametrize("value", ["true", "yes", "SPANS"])
def test_a_mode_that_there_is_none_of(value: str, capturing: Callable[..., Observed], warned: Warnings) -> None:
    """P56: a wrong value is warned of, by the library whose variable it is, and means no content."""
    observed = capturing(value)
    leaky_run(Cell(CodeAgent, "plain"))
    for kind, sent in wire(observed).items():
        assert found(CONTENT + SECRETS, sent) == set(), kind
    assert warned.of(CONTENT_VARIABLE)


def test_events_without_content(capturing: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch) -> None:
    """P56: who asks for events and not for content gets one for each call, without any."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT", "true")
    observed = capturing("NO_CONTENT")
    leaky_run(Cell(CodeAgent, "plain"))
    assert len(observed.log_exporter.get_finished_logs()) == len(observed.chats)
    assert found(CONTENT + SECRETS, wire(observed)["logs"]) == set()


def test_faults_of_ours_are_logged_without_content(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    """P56: an object that fails when it is read, with content in its message, leaves no content in our log line."""
    caplog.set_level(logging.DEBUG)
    script = Script(*step_replies(CodeAgent, 1))

    class Odd(ScriptedModel):
        @property
        def kwargs(self) -> dict[str, Any]:
            raise RuntimeError(canary("header"))

        @kwargs.setter
        def kwargs(self, value: dict[str, Any]) -> None:
            pass

    agent(CodeAgent, script, model=Odd(script)).run(canary("task"))
    assert "failed (RuntimeError)" in logged(caplog)
    assert found(CONTENT + SECRETS, logged(caplog)) == set()


def test_a_hook_gets_content_and_spans_do_not(
    observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P56: a completion hook sees the messages in every mode; with no mode set it alone does."""
    seen: list[str] = []

    class Hook:
        def on_completion(self, **content: Any) -> None:
            seen.append(repr(content))

    monkeypatch.setattr("otel_smol.telemetry.load_completion_hook", Hook)
    observed = observe()
    leaky_run(Cell(CodeAgent, "plain"))
    assert found(CONTENT, "".join(seen)) >= {"task", "result", "answer", "system_prompt"}
    for kind, sent in wire(observed).items():
        assert found(CONTENT + SECRETS, sent) == set(), kind


# --- pictures --------------------------------------------------------------------------------------------------------


def returning(value: Any, name: str = "look") -> Tool:
    return make_tool(Script().truth, name, does=lambda n: value)


@each_class
@each_form
@pytest.mark.parametrize("mode", MODES)
def test_pictures_stay_here(cls: type, consumed: str, mode: str, capturing: Callable[..., Observed]) -> None:
    """P61: a picture at each step, and more from a tool: kind, size and count go out, never the pixels."""
    observed = capturing(mode)
    cell = Cell(cls, consumed)
    picture = Image.effect_noise((200, 200), 90)
    picture.info["exif"] = b"EXIF" * 1000

    def attach(step: ActionStep) -> None:
        step.observations_images = [picture]

    raw = b"raw bytes" * 9
    nested = {"picture": picture, "list": [picture, (raw,)], "raw": raw, "note": "a note"}
    tools = [returning(picture), returning(nested, "search"), returning(raw, "fetch")]
    replies = [*(step_replies(cls, 2, name)[0] for name in ("look", "search", "fetch")), cell.final]
    cell.run(cell.agent(Script(*replies), tools=tools, step_callbacks=[attach]), images=[picture])
    assert max(len(str(value)) for span in observed.spans for value in attributes(span).values()) < 10_000
    assert all(len(data) < 100_000 for data in wire(observed).values())
    assert [attributes(span)[sc.HISTORY_IMAGES] for span in observed.chats] == [1, 2, 3, 4]
    if mode != "EVENT_ONLY":
        assert '"type":"image","size":[200,200]' in attributes(observed.chats[0])[sc.INPUT_MESSAGES]
        results = [attributes(span)[sc.TOOL_RESULT] for span in observed.tools[:3]]
        shown = {"picture": "[Image]", "list": ["[Image]", ["[bytes]"]], "raw": "[bytes]", "note": "a note"}
        assert results[0] in ("[Image]", "[AgentImage]")
        assert (json.loads(results[1]), results[2]) == (shown, "[bytes]")


def test_results_of_all_kinds() -> None:
    """P61: whatever a tool returns is text, numbers and lists of these; data is named by its kind, loops are cut."""
    loop: list[Any] = [1]
    loop.append(loop)

    class Record:
        def __init__(self) -> None:
            self.name, self.data, self.scores = "a name", b"data", (0.5, float("nan"))

    assert content.any_value(loop) == [1, "[list]"]
    assert content.any_value({1: {"a"}, "b": None, "\ud800": "\ud800"}) == {"1": ["a"], "b": None, "?": "?"}
    assert content.any_value([Record(), bytearray(b"x"), True, 7, 1.5]) == [
        {"name": "a name", "data": "[bytes]", "scores": [0.5, None]},
        "[bytearray]",
        True,
        7,
        1.5,
    ]


def test_objects_are_not_asked_for_what_they_do_not_have() -> None:
    """P61: an object that makes up its attributes, as clients and proxies do, is asked for none, and for its text
    once."""
    asked: list[str] = []

    class Lazy:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise AttributeError(name)

        def __iter__(self) -> Iterator[int]:
            asked.append("items")
            return iter([1])

        def __str__(self) -> str:
            asked.append("text")
            return "lazy"

    assert content.any_value([Lazy()]) == ["lazy"]
    assert asked == ["text"]


def test_models_that_write_themselves_out() -> None:
    """P61: a model's own method is used, so that what it hides stays hidden; not so for tables and data sets, which it
    would read into memory, and for what is too large anyway."""

    class Answer:
        def __init__(self, rows: Any) -> None:
            self.rows = rows

        def to_dict(self) -> Any:
            return {"rows": self.rows, "secret": "***"}

    class Table(Answer):
        def __len__(self) -> int:
            return 2

    assert content.any_value(Answer([1, Answer(2)])) == {"rows": [1, {"rows": 2, "secret": "***"}], "secret": "***"}
    for large in (TABLE, shared(22), [Answer(row) for row in TABLE]):
        assert content.any_value([Answer(large)]) == ["[Answer: not written out]"]
    assert content.any_value([Table([1, 2])]) == ["[Table: not written out]"]


# --- text that cannot be encoded -------------------------------------------------------------------------------------


@each_class
@each_form
@pytest.mark.parametrize("mode", ["NO_CONTENT", *MODES])
def test_lone_surrogates_do_not_cost_the_export(
    cls: type, consumed: str, mode: str, capturing: Callable[..., Observed], warned: Warnings
) -> None:
    """P09: text that UTF-8 cannot carry, which models do produce, is replaced: it would cost the whole batch."""
    observed = capturing(mode)
    cell = Cell(cls, consumed)
    odd = "lone \ud800 surrogate"

    def fail(n: int) -> Any:
        raise ValueError(odd)

    tools = [
        returning(odd, "search"),
        returning({"deep": [odd]}, "look"),
        make_tool(Script().truth, "fails", does=fail),
    ]
    for tool in tools:
        tool.description = odd
    text_call: Reply = code("search(1) # \ud800") if cls is CodeAgent else [("search", {"n": 1, "\ud800": odd})]
    replies = [f"plan {odd}", text_call, *(step_replies(cls, 2, name)[0] for name in ("look", "fails"))]
    script = Script(*replies, odd, answer(cls, odd), RuntimeError(odd))
    subject = cell.agent(script, tools=tools, planning_interval=9, description=odd)
    cell.run(subject, odd)
    subject.planning_interval = None
    raised(lambda: cell.run(subject, odd))
    assert all(wire(observed)[kind] for kind in ("spans", "metrics"))
    assert warned.lines == []


# --- large values ----------------------------------------------------------------------------------------------------

TABLE = [{"id": i, "name": "x" * 10} for i in range(150_000)]
LONG = "long text " * 500_000
GRPC_LIMIT = 4 * 2**20
"""Bytes of a request that gRPC receivers take if they are not told otherwise."""


def shared(depth: int) -> list[Any]:
    """A list with as many leaves as 2 ** depth, all of which are one."""
    value: list[Any] = [1]
    for _ in range(depth):
        value = [value, value]
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@dataclass
class Found:
    rows: Any
    status: str = "found"


@pytest.mark.parametrize(
    "value",
    [
        *(TABLE, {"rows": TABLE}, [Found(TABLE)], dict(enumerate(TABLE)), set(range(150_000)), shared(22)),
        *(LONG, [LONG] * 50, {LONG: LONG}, "\N{GRINNING FACE}" * 5_000_000, ["\0" * 5_000_000] * 2, [10**600] * 9_000),
    ],
    ids=[
        *("table", "within", "object", "dict", "set", "shared"),
        *("text", "texts", "key", "emoji", "control characters", "numbers"),
    ],
)
def test_large_values_are_cut(value: Any) -> None:
    """P58: an attribute fits into what a receiver takes, however large the value is; what is cut says so."""
    for captured in (content.any_value(value), content.answer(value)):
        sent = json.dumps(captured, default=asdict)
        assert 15_000 < len(sent) < GRPC_LIMIT * 3 // 4
        assert re.search(r"\[[\d,]+ more( characters)?]|\[int]", sent)


def test_what_is_cut_says_how_much() -> None:
    """P58, P60: what is captured of a large value, and what is said to be missing, are the whole; what stands beside a
    long text is there."""

    def missing(said: Any) -> int:
        return int(re.findall(r"\[([\d,]+) more", said)[-1].replace(",", ""))

    *rows, more = content.any_value(TABLE)
    assert rows == TABLE[: len(rows)]
    assert len(rows) > 1_000
    assert len(rows) + missing(more) == len(TABLE)
    found = content.any_value(Found(TABLE))["rows"]
    assert len(found) - 1 + missing(found[-1]) == len(TABLE)
    numbered = content.any_value(dict.fromkeys(range(150_000)))
    assert len(numbered) - 1 + missing(numbered["…"]) == 150_000
    page = content.any_value({"page": LONG, "status": 200})
    kept, _ = page["page"].split("…")
    assert LONG.startswith(kept)
    assert (len(kept) + missing(page["page"]), page["status"]) == (len(LONG), 200)


def test_what_has_room_is_whole() -> None:
    """P58: nothing is cut below the limit: a text of half of it, a thousand rows."""
    half = "x" * (content.MAX_CHARACTERS // 2)
    assert content.any_value(half) == content.text(half) == half
    assert content.any_value(half + "y") == f"{half}… [1 more characters]"
    assert content.any_value(TABLE[:1_000]) == TABLE[:1_000]
    assert content.any_value(nested(40)) == nested(40)
    assert str(content.any_value(nested(5_000))).startswith("[[[[")


def test_large_values_are_not_read_to_their_end() -> None:
    """P58: the time that capturing takes counts against the limit of the agent's code: it does not grow with the
    value."""
    read: list[int] = []

    class Rows(list[int]):
        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                read.append(item)
                yield item

    content.any_value({"rows": Rows(range(300_000))})
    assert 1_000 < len(read) < 20_000


@each_class
@pytest.mark.parametrize("mode", ["NO_CONTENT", *MODES])
def test_large_values_do_not_cost_the_export(
    cls: type, mode: str, capturing: Callable[..., Observed], warned: Warnings
) -> None:
    """P58: whatever is large, the spans of a run go out in one request: refused, the whole batch would be lost."""
    observed = capturing(mode)

    def fail(n: int) -> Any:
        raise ValueError(LONG)

    tools = [returning(TABLE, "search"), returning(LONG, "look"), make_tool(Script().truth, "fails", does=fail)]
    replies = [step_replies(cls, 2, name)[0] for name in ("search", "look", "fails")]
    argument = LONG[:300_000]
    text_call: Reply = code(f"look({argument!r})") if cls is CodeAgent else [("look", {"n": argument})]
    agent(cls, Script(*replies, text_call, answer(cls, argument)), tools, description=LONG).run(LONG)
    assert len(observed.tools) == (5 if cls is CodeAgent else 4)
    sent = wire(observed)
    assert all(len(data) < GRPC_LIMIT for data in sent.values())
    if mode == "SPAN_ONLY":
        assert len(sent["spans"]) > 500_000
    assert warned.lines == []


def test_large_answers_of_models() -> None:
    """P58: a model's text and all its calls together fit in as well, streamed or not."""
    calls = [
        SimpleNamespace(index=i, id=f"id-{i}", function=SimpleNamespace(name="f", arguments=LONG)) for i in range(9)
    ]
    message = SimpleNamespace(content=LONG, tool_calls=calls)
    streamed = content.StreamedText()
    streamed.add(message)
    whole, parts = content.output_messages(message), streamed.messages()
    assert parts == whole
    assert len(whole[0].parts) == 10
    assert content.MAX_CHARACTERS // 2 < len(json.dumps(whole, default=asdict)) < content.MAX_CHARACTERS * 1.1


@each_class
def test_of_large_messages_each_is_there(cls: type, capturing: Callable[..., Observed]) -> None:
    """P56, P58: in a prompt that is too large each message keeps its place, and the newest most of its text."""
    observed = capturing("SPAN_ONLY", full_input_messages=True)
    first, last = "first " * 10_000, "last " * 10_000
    turns = [first, *["between " * 5_000] * 8, last]
    subject = agent(cls, Script(*[answer(cls, "done")] * len(turns)))
    for turn in turns:
        subject.run(turn, reset=False)
    messages = json.loads(attributes(observed.chats[-1])[sc.INPUT_MESSAGES])
    assert len(messages) == len(subject.model.script.truth.prompts[-1])
    texts = [part["content"] for message in messages for part in message["parts"]]
    assert any(last in text for text in texts)
    [old] = [text for text in texts if "first " in text]
    assert len(old) < 1_000
    assert "more characters]" in old


def test_opentelemetrys_own_limit_is_kept(observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch) -> None:
    """P60: who sets a limit to the length of attributes gets it: it cuts what we have left."""
    monkeypatch.setenv(CONTENT_VARIABLE, "SPAN_ONLY")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1000")
    observed = observe()
    script = Script(*step_replies(CodeAgent, 2))
    agent(CodeAgent, script, [returning(LONG, "search")]).run(LONG)
    assert attributes(observed.tools[0])[sc.TOOL_RESULT] == LONG[:1_000]
    assert max(len(text) for span in observed.spans for _, text in strings(span)) == 1_000


@pytest.mark.parametrize("mode", ["NO_CONTENT", "SPAN_ONLY"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["number", "list"])
def test_numbers_that_python_does_not_write_out(
    wrapped: bool, mode: str, capturing: Callable[..., Observed], warned: Warnings
) -> None:
    """P12: a tool may return a number of more digits than Python writes: its span has no length, and nobody is
    warned."""
    observed = capturing(mode)
    number: Any = [10**5_000] if wrapped else 10**5_000
    script = Script(code("number = search(1)\nnumber = 1"), code("final_answer('done')"))
    agent(CodeAgent, script, [returning(number, "search")]).run("the task")
    found = attributes(observed.tools[0])
    assert sc.TOOL_OUTPUT_CHARACTERS not in found
    assert found.get(sc.TOOL_RESULT) == (('["[int]"]' if wrapped else "[int]") if mode == "SPAN_ONLY" else None)
    assert warned.lines == []


# --- size ------------------------------------------------------------------------------------------------------------


def span_bytes(observed: Observed, cls: type, steps: int) -> int:
    """Bytes of all telemetry of one run."""
    observed.recorder.ended.clear()
    observed.log_exporter.clear()
    agent(cls, Script(*step_replies(cls, steps)), max_steps=steps).run("the task")
    sent = wire(observed)
    return len(sent["spans"]) + len(sent["logs"])


@each_class
@pytest.mark.parametrize("mode", ["NO_CONTENT", *MODES])
def test_telemetry_grows_with_the_steps_and_not_with_their_square(
    cls: type, mode: str, capturing: Callable[..., Observed]
) -> None:
    """P58: twice the steps, twice the bytes: growth exponent at most 1.05, content on or off."""
    observed = capturing(mode)
    few, many = (span_bytes(observed, cls, steps) for steps in (20, 40))
    assert log2(many / few) <= 1.05


@each_class
@each_form
@pytest.mark.parametrize("switch", ["argument", "variable"])
def test_the_full_list_on_request(
    cls: type, consumed: str, switch: str, capturing: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P56: with the setting every chat span carries its whole prompt, as the convention has it; otherwise each message
    once."""
    cell = Cell(cls, consumed)
    if switch == "variable":
        monkeypatch.setenv("OTEL_SMOL_FULL_INPUT_MESSAGES", "true")
    observed = capturing("SPAN_ONLY", **({"full_input_messages": True} if switch == "argument" else {}))
    script = Script(*cell.replies(4))
    cell.run(cell.agent(script))
    captured = [len(json.loads(attributes(span)[sc.INPUT_MESSAGES])) for span in observed.chats]
    assert captured == [len(prompt) for prompt in script.truth.prompts]


@each_class
def test_each_message_once(cls: type, observed_content: Observed) -> None:
    """P56: a chat span carries the messages that no earlier call has sent; over the run that is each one, once."""
    script = Script(*step_replies(cls, 5))
    agent(cls, script).run("the task")
    captured = [len(json.loads(attributes(span)[sc.INPUT_MESSAGES])) for span in observed_content.chats]
    sent = [len(prompt) for prompt in script.truth.prompts]
    assert captured == [sent[0], *(now - before for before, now in pairwise(sent))]
    definitions = [sc.TOOL_DEFINITIONS in attributes(span) for span in observed_content.chats]
    assert definitions == [cls is ToolCallingAgent, *[False] * 4]


NUMBERS = (
    *(sc.USAGE_INPUT_TOKENS, sc.USAGE_OUTPUT_TOKENS, sc.HISTORY_MESSAGES, sc.HISTORY_CHARACTERS, sc.HISTORY_TOKENS),
    *(sc.HISTORY_ESTIMATOR, *sc.HISTORY_SOURCE_TOKENS.values(), sc.RUN_INPUT_TOKENS, sc.RUN_REPLAYED_TOKENS),
    *(sc.STEP_INPUT_TOKENS, sc.STEP_OUTPUT_TOKENS, sc.STEP_FIXED_TOKENS, sc.STEP_NEW_TOKENS, sc.STEP_REPLAYED_TOKENS),
    *(sc.RUN_OVERPAY, sc.RUN_REPLAY_SHARE),
)
"""Attributes that must survive a small limit: the bill and what it consists of."""


def crowded_run(cls: type) -> None:
    """Five steps with as many attributes as there can be: plan, error, pictures, several tools, an edited memory."""
    tools = [make_tool(Script().truth, f"tool_{i}") for i in range(10)]

    def edit(step: ActionStep, agent: Any) -> None:
        step.observations_images = [Image.new("RGB", (9, 9))]
        if step.step_number == 3:
            agent.memory.steps[-1].observations = "cut"

    together: Reply = [(tool.name, {"n": 1}) for tool in tools]
    if cls is CodeAgent:
        together = code("\n".join(f"print({tool.name}(1))" for tool in tools))
    script = Script("a plan", "no call", together, together, *step_replies(cls, 2, "tool_1"))
    agent(cls, script, tools, planning_interval=9, step_callbacks=[edit]).run("the task")


@each_class
@pytest.mark.parametrize("mode", ["NO_CONTENT", *MODES])
def test_attribute_limits(
    cls: type, mode: str, observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P58: with room for 64 attributes nothing is lost; with room for 32 the bill and what it consists of are there."""
    monkeypatch.setenv(CONTENT_VARIABLE, mode)
    monkeypatch.setenv("OTEL_SMOL_CONTEXT_WINDOW", "100000")

    def crowded_spans(observed: Observed) -> list[ReadableSpan]:
        crowded_run(cls)
        return [span for span in observed.spans if span not in observed.tools]  # those end in any order

    free = crowded_spans(observe())
    expected = [{name for name in NUMBERS if name in attributes(span)} for span in free]
    assert max(len(attributes(span)) for span in free) > 40
    for limit in (64, 32):
        SmolagentsInstrumentor().uninstrument()
        limited = crowded_spans(observe(limits=SpanLimits(max_span_attributes=limit)))
        assert [span.name for span in limited] == [span.name for span in free]
        for span, numbers in zip(limited, expected, strict=True):
            assert numbers <= set(attributes(span)), (span.name, limit)
            assert not span.dropped_attributes or limit < 64


@each_class
@pytest.mark.parametrize("mode", ["NO_CONTENT", "SPAN_ONLY"])
def test_the_number_of_attributes_does_not_depend_on_the_step(
    cls: type, mode: str, capturing: Callable[..., Observed]
) -> None:
    """P58: the 40th step's spans have the attributes that the 5th step's have."""
    observed = capturing(mode)
    agent(cls, Script(*step_replies(cls, 40)), max_steps=40).run("the task")
    for spans in (observed.steps, observed.chats):
        assert set(attributes(spans[4])) == set(attributes(spans[38]))


def strings(span: ReadableSpan) -> Iterator[tuple[str, str]]:
    for name, value in attributes(span).items():
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                yield name, text


@each_class
@each_form
def test_numbers_are_numbers_and_texts_are_short(cls: type, consumed: str, observed: Observed) -> None:
    """P60: without content no attribute is longer than 256 bytes, and whatever is a number in the registry is one."""
    leaky_run(Cell(cls, consumed))
    crowded_run(cls)
    for span in observed.spans:
        for name, text in strings(span):
            assert len(text.encode()) <= 256, name
            assert sc.ATTRIBUTES[name].type in ("string", "string[]"), name
        assert all(len(name) <= 64 for name in attributes(span))
