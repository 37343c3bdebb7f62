"""Beside instrumentations of the client libraries: whoever adds up `gen_ai.usage.*` over all spans, or the
`gen_ai.client.token.usage` metric over all scopes, gets what the provider charged, once.

A client instrumentation steps aside for us by one of three keys in the OpenTelemetry context (docs/how-it-works.md).
What it would otherwise have reported stays its own: calls that no smolagents model makes.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from opentelemetry.util.genai.utils import fq_exception_type
from smolagents import CodeAgent, LogLevel, Model, Tool, ToolCallingAgent
from smolagents.models import ChatMessage, MessageRole

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings, attributes
from tests.model_server import (
    BEDROCK_MODEL,
    MODELS,
    OPENAI_MODEL,
    SERVED_MODEL,
    Entry,
    Failure,
    ModelServer,
    bedrock_model,
    code,
    final_answer,
    loopback_only,
    openai_model,
    rate_limited,
    text,
    tool_call,
)
from tests.programs import PATIENCE
from tests.rules import check_tree, check_truth, totals
from tests.scripted import AGENT_CLASSES, Truth

ANSWER = "20"
ASK = "Say hello, please, and nothing else."
OPENAI_MODELS = ("openai", "azure", "litellm")
"""Models below which, in the end, the openai client speaks. Since some version LiteLLM goes round its methods that the
official and Traceloop's instrumentation wrap; those then do not see its calls."""
LITELLM_MODELS = ("litellm", "litellm_router")
STREAMED = "stream_outputs"


@dataclass(frozen=True)
class Client:
    """An instrumentation of a client library."""

    module: str
    instrumentor: str
    models: tuple[str, ...]
    """The models of `model_server.MODELS` that speak through that library."""
    steps_aside: bool = True
    """It makes no span for a call that we have one for."""
    writes_usage: bool = True
    """It writes `gen_ai.usage.*` on its spans."""
    records_usage: bool = True
    """It records `gen_ai.client.token.usage`."""

    @property
    def installed(self) -> bool:
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def make(self) -> Any:
        return getattr(import_module(self.module), self.instrumentor)()


CLIENTS = {
    "genai-openai": Client("opentelemetry.instrumentation.genai.openai", "OpenAIInstrumentor", OPENAI_MODELS),
    "traceloop-openai": Client("opentelemetry.instrumentation.openai", "OpenAIInstrumentor", OPENAI_MODELS),
    "openinference-openai": Client(
        "openinference.instrumentation.openai",
        "OpenAIInstrumentor",
        OPENAI_MODELS,
        steps_aside=False,
        writes_usage=False,
        records_usage=False,
    ),
    "traceloop-litellm": Client("opentelemetry.instrumentation.litellm", "LiteLLMInstrumentor", LITELLM_MODELS),
    "openinference-litellm": Client(
        "openinference.instrumentation.litellm",
        "LiteLLMInstrumentor",
        LITELLM_MODELS,
        steps_aside=False,
        writes_usage=False,
        records_usage=False,
    ),
    "genai-bedrock": Client("opentelemetry.instrumentation.genai.bedrock", "BedrockInstrumentor", ("bedrock",)),
    "botocore": Client("opentelemetry.instrumentation.botocore", "BotocoreInstrumentor", ("bedrock",)),
    "traceloop-bedrock": Client("opentelemetry.instrumentation.bedrock", "BedrockInstrumentor", ("bedrock",)),
    "openinference-bedrock": Client(
        "openinference.instrumentation.bedrock",
        "BedrockInstrumentor",
        ("bedrock",),
        writes_usage=False,
        records_usage=False,
    ),
}
SEMCONV_VARIABLE = "OPENINFERENCE_ENABLE_GENAI_SEMCONV"
OPENINFERENCE = tuple(name for name in CLIENTS if name.startswith("openinference"))


def cell(name: str, *more: Any) -> Any:
    """Parameters that begin with an instrumentation's name. Skipped where it, or its library, is not installed."""
    library = {"bedrock": "boto3", "openai": "openai"}.get(CLIENTS[name].models[0], "litellm")
    reason = f"{CLIENTS[name].module} and {library} are not both installed"
    there = CLIENTS[name].installed and find_spec(library) is not None
    return pytest.param(name, *more, marks=pytest.mark.skipif(not there, reason=reason))


def answered(name: str) -> tuple[str, ...]:
    """How answers can be consumed with a model."""
    return ("plain",) if name == "bedrock" else ("plain", STREAMED)


EACH = [cell(name, client.models[0]) for name, client in CLIENTS.items()]
"""Each instrumentation, with one model."""
MATRIX = [
    cell(name, model, how) for name, client in CLIENTS.items() for model in client.models for how in answered(model)
]


@pytest.fixture(scope="module", autouse=True)
def clients() -> Iterator[None]:
    """The client libraries are big: `clean` collects garbage after each test, and need not look at them each time."""
    hello = [ChatMessage(MessageRole.USER, [{"type": "text", "text": ASK}])]
    with loopback_only():
        for make in MODELS.values():
            with contextlib.suppress(ImportError), ModelServer([text("Ready.")]) as server:
                make(server).generate(hello)
        for client in CLIENTS.values():
            if client.installed:
                client.make()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def patched_places() -> list[Any]:
    """Where client instrumentations put their wrappers."""
    # Of a copy: LiteLLM's worker threads may import something meanwhile.
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("openai.resources") and module]
    found: list[Any] = [member for module in modules for member in vars(module).values() if inspect.isclass(member)]
    for name in ("openai:OpenAI", "openai:AsyncOpenAI", "litellm", "litellm.main"):
        module, _, member = name.partition(":")
        if module in sys.modules:
            found.append(getattr(sys.modules[module], member) if member else sys.modules[module])
    for name in ("client:BaseClient", "client:ClientCreator", "endpoint:Endpoint"):
        module, _, member = f"botocore.{name}".partition(":")
        if module in sys.modules:
            found.append(getattr(sys.modules[module], member))
    return found


@pytest.fixture(autouse=True)
def guard() -> Iterator[None]:
    """Nothing but loopback, no streamed text on the terminal, and no wrapper left behind.

    Not all instrumentors take theirs off: Traceloop's for openai leaves them on, and what stays on counts again.
    """
    before = [(place, dict(vars(place))) for place in patched_places()]
    with loopback_only(), contextlib.redirect_stdout(io.StringIO()):
        yield
    for place, members in before:
        for name, member in members.items():
            if callable(member) and vars(place).get(name) is not member:
                setattr(place, name, member)


@contextlib.contextmanager
def beside(observed: Observed, *names: str, ours: str | None = "last", **arguments: Any) -> Iterator[None]:
    """Switch client instrumentations on, and ours before or after them, if at all."""
    instrumentors = [CLIENTS[name].make() for name in names]
    if ours == "first":
        observed.instrument()
    for instrumentor in instrumentors:
        instrumentor.instrument(
            tracer_provider=observed.tracer_provider,
            meter_provider=observed.meter_provider,
            logger_provider=observed.logger_provider,
            **arguments,
        )
        assert instrumentor.is_instrumented_by_opentelemetry
    if ours == "last":
        observed.instrument()
    try:
        yield
    finally:
        for instrumentor in reversed(instrumentors):
            instrumentor.uninstrument()


class Asking(Tool):  # type: ignore[misc]
    """A tool that calls a model by the user's own client, not through smolagents."""

    name = "ask"
    description = "Asks another model."
    inputs = {"n": {"type": "integer", "description": "a number"}}  # noqa: RUF012
    output_type = "string"

    def __init__(self, ask: Callable[[], str]) -> None:
        super().__init__()
        self._ask = ask

    def forward(self, n: int) -> str:
        return self._ask()


def by_hand(name: str, server: ModelServer) -> Callable[[], str]:
    """A call of the client library that an instrumentation is for."""
    library = CLIENTS[name].models[0]
    if library == "bedrock":
        client = bedrock_model(server).client
        prompt = [{"role": "user", "content": [{"text": ASK}]}]
        return lambda: str(client.converse(modelId=BEDROCK_MODEL, messages=prompt)["output"])
    messages = [{"role": "user", "content": ASK}]
    if library == "litellm":
        import litellm

        place = {"api_base": f"{server.url}/v1", "api_key": "unused"}
        return lambda: str(litellm.completion(model=f"openai/{OPENAI_MODEL}", messages=messages, **place))
    client = openai_model(server).client
    return lambda: str(client.chat.completions.create(model=OPENAI_MODEL, messages=messages))


def replies(cls: type, tool: str = "ask", between: Sequence[Entry] = (), **delivery: Any) -> list[Entry]:
    """Two steps, the first with a tool call, during which the server hears of other calls."""
    if issubclass(cls, CodeAgent):
        first, last = code(f"print({tool}(1))", **delivery), code(f"final_answer('{ANSWER}')", **delivery)
    else:
        first, last = tool_call(tool, {"n": 1}, **delivery), final_answer(ANSWER, **delivery)
    return [first, *between, last]


def make_agent(cls: type, model: Any, consumed: str = "plain", ask: Callable[[], str] = lambda: "result") -> Any:
    return cls(tools=[Asking(ask)], model=model, verbosity_level=LogLevel.OFF, stream_outputs=consumed == STREAMED)


def memory(subject: Any) -> list[Any]:
    """What the agent remembers, less times and ids."""
    names = ("model_output", "observations", "token_usage", "action_output")
    return [[type(step).__name__, *(getattr(step, name, None) for name in names)] for step in subject.memory.steps]


def foreign(observed: Observed) -> list[ReadableSpan]:
    """Spans of others."""
    return [span for span in observed.recorder.ended if span not in observed.spans]


def naive(observed: Observed) -> tuple[int, ...]:
    """What a backend adds up over all spans."""
    return totals(observed.recorder.ended, sc.USAGE_INPUT_TOKENS, sc.USAGE_OUTPUT_TOKENS)


def recorded(observed: Observed) -> tuple[float, ...]:
    """What it adds up over the metric of all scopes. Traceloop's for LiteLLM has a name of its own for the type."""
    points = observed.points("gen_ai.client.token.usage")
    types = [point.get("gen_ai.token.type") or point["gen_ai.usage.token_type"] for point, _ in points]
    return tuple(
        sum(value.sum for type, (_, value) in zip(types, points, strict=True) if type == kind)
        for kind in ("input", "output")
    )


def charged(server: ModelServer) -> tuple[int, int]:
    return server.truth.input_tokens, server.truth.output_tokens


def check(observed: Observed, server: ModelServer, calls: int | None = None) -> None:
    """The sums are the truth, once, and our own totals as well."""
    truth = server.truth
    assert naive(observed) == recorded(observed) == charged(server)
    check_truth(observed, Truth(truth.calls if calls is None else calls, 0, truth.input_tokens, truth.output_tokens))
    check_tree(observed)
    assert observed.recorder.open == 0


def parent(span: ReadableSpan, spans: Iterable[ReadableSpan]) -> ReadableSpan | None:
    return next((other for other in spans if span.parent and other.context == span.parent), None)


# --- every instrumentation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", ["first", "last"])
@pytest.mark.parametrize(("name", "model", "consumed"), MATRIX)
def test_sums(name: str, model: str, consumed: str, ours: str, warned: Warnings) -> None:
    """Instrumentation × model × plain or streamed × who was switched on first: the sums over all spans and over the
    metric of all scopes are what was charged, once; the other one makes no span of its own for our calls, except for
    OpenInference, whose extra span has no `gen_ai.usage.*`; the agent does what it does without either. (issue 3, 10)
    """
    observed = Observed()

    def go() -> tuple[Any, Any, ModelServer]:
        with ModelServer(replies(CodeAgent, cache_read=12, cache_write=5)) as server:
            subject = make_agent(CodeAgent, MODELS[model](server), consumed)
            return subject.run("Ask."), memory(subject), server

    with beside(observed, name, ours=ours):
        result, remembered, server = go()
    assert result == ANSWER
    check(observed, server)
    assert [line for line in warned.lines if line.startswith("otel_smol")] == []
    others = foreign(observed)
    assert len(others) == (0 if CLIENTS[name].steps_aside else 2)
    for span in others:
        above = parent(span, observed.chats)
        assert above is not None
    if ours == "first":
        return  # the agent sees no difference between the two
    SmolagentsInstrumentor().uninstrument()
    bare_result, bare_memory, bare_server = go()
    assert (result, remembered, server.truth) == (bare_result, bare_memory, bare_server.truth)


@pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize(("name", "model"), EACH)
def test_call_of_the_user_in_a_tool(name: str, model: str, cls: type) -> None:
    """A tool that calls a model by the user's own client is out of our reach: the client instrumentation reports it as
    ever, below the tool's span, and the sums are still the truth. (issue 3, 10; P13)
    """
    observed, client = Observed(), CLIENTS[name]
    with beside(observed, name), ModelServer(replies(cls, between=[text("Hello.")])) as server:
        subject = make_agent(cls, MODELS[model](server), ask=by_hand(name, server))
        assert subject.run("Ask.") == ANSWER
    assert server.truth.calls == 3
    assert len(observed.chats) == 2
    theirs = [span for span in foreign(observed) if parent(span, observed.tools) is not None]
    assert len(theirs) == 1
    parents = {getattr(parent(span, observed.tools), "name", None) for span in theirs}
    assert parents == {"execute_tool ask"}
    own = totals(observed.chats, sc.USAGE_INPUT_TOKENS, sc.USAGE_OUTPUT_TOKENS)
    assert naive(observed) == (charged(server) if client.writes_usage else own)
    assert recorded(observed) == (charged(server) if client.records_usage else own)
    assert observed.run[sc.RUN_INPUT_TOKENS] == own[0] < charged(server)[0]
    check_tree(observed)
    assert observed.recorder.open == 0


@pytest.mark.parametrize(("name", "model"), [each for each in EACH if "bedrock" not in each.values])
def test_call_of_the_consumer_between_two_deltas(name: str, model: str) -> None:
    """A model call that the consumer of a streamed run makes between two deltas is the consumer's: it is reported by
    the client instrumentation, not swallowed as a part of ours, and not our child. (issue 3, 7; P25)
    """
    observed = Observed()
    with beside(observed, name), ModelServer(replies(CodeAgent, between=[text("Hello.")])) as server:
        ask, asked = by_hand(name, server), False
        for item in make_agent(CodeAgent, MODELS[model](server), STREAMED).run("Ask.", stream=True):
            if getattr(item, "content", None) and not asked:
                asked = True
                ask()
    assert server.truth.calls == 3
    assert len(observed.chats) == 2
    [theirs] = [span for span in foreign(observed) if span.parent is None]
    client = CLIENTS[name]
    if client.writes_usage:
        assert naive(observed) == charged(server)
        assert attributes(theirs)[sc.USAGE_INPUT_TOKENS] > 0
    if client.records_usage:
        assert recorded(observed) == charged(server)
    assert observed.recorder.open == 0


@pytest.mark.parametrize(("name", "model"), EACH)
def test_failed_call(name: str, model: str) -> None:
    """A call that the provider refuses is one span of ours, an error of the class the client raised, and no tokens."""
    observed = Observed()
    with beside(observed, name), ModelServer([Failure(400)]) as server, pytest.raises(Exception) as caught:  # noqa: PT011
        make_agent(CodeAgent, MODELS[model](server)).run("Ask.")
    [chat] = observed.chats
    cause = caught.value.__cause__
    assert cause is not None
    assert chat.status.status_code is StatusCode.ERROR
    assert attributes(chat)[sc.ERROR_TYPE] == fq_exception_type(cause)
    assert naive(observed) == recorded(observed) == (0, 0)
    assert observed.recorder.open == 0


@pytest.mark.parametrize(("name", "model"), EACH)
def test_ours_switched_off(name: str, model: str) -> None:
    """With ours off again, the client instrumentation reports the calls of the agents itself, as before."""
    observed, client = Observed(), CLIENTS[name]
    with beside(observed, name, ours="first"):
        SmolagentsInstrumentor().uninstrument()
        with ModelServer(replies(CodeAgent)) as server:
            assert make_agent(CodeAgent, MODELS[model](server)).run("Ask.") == ANSWER
    assert observed.spans == []
    assert len(foreign(observed)) == 2
    if client.writes_usage:
        assert naive(observed) == charged(server)
    if client.records_usage:
        assert recorded(observed) == charged(server)


@pytest.mark.parametrize("consumed", ["plain", STREAMED])
@pytest.mark.parametrize("model", ["openai", "litellm"])
def test_all_at_once(model: str, consumed: str) -> None:
    """Three instrumentations of the openai client and two of LiteLLM at once: the sums are still the truth, once."""
    names = [name for name in CLIENTS if name.endswith(("-openai", "-litellm")) and CLIENTS[name].installed]
    if len(names) < 2 or find_spec(model) is None:
        pytest.skip("fewer than two are installed, or their client is not")
    observed = Observed()
    with beside(observed, *names), ModelServer(replies(ToolCallingAgent)) as server:
        assert make_agent(ToolCallingAgent, MODELS[model](server), consumed).run("Ask.") == ANSWER
    check(observed, server)


# --- what the official ones add --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "model"), [cell("genai-openai", "openai"), cell("genai-openai", "azure")])
def test_streams_are_enriched(name: str, model: str) -> None:
    """smolagents' deltas tell neither id, model and reason to finish of an answer nor its cached and reasoning tokens.
    The official instrumentation of the openai client sees them, and hands them to our span. (P37, P39)
    """
    observed = Observed()
    with (
        beside(observed, name),
        ModelServer(replies(ToolCallingAgent, cache_read=12, cache_write=5, reasoning=3)) as server,
    ):
        assert make_agent(ToolCallingAgent, MODELS[model](server), STREAMED).run("Ask.") == ANSWER
    check(observed, server)
    for number, span in enumerate(observed.chats, start=1):
        values = attributes(span)
        assert values[sc.RESPONSE_ID] == f"chatcmpl-call-{number}"
        assert values[sc.RESPONSE_MODEL] == SERVED_MODEL
        assert values[sc.FINISH_REASONS] == ("tool_calls",)
        assert values[sc.USAGE_CACHE_READ_TOKENS] == 12
        assert values[sc.USAGE_REASONING_TOKENS] == 3
        assert values[sc.PROVIDER_NAME] != "unknown"


@pytest.mark.parametrize("name", [cell("genai-openai")])
def test_retries(name: str) -> None:
    """Attempts below one call, which the official instrumentation sees one by one, stay one span with the tokens of the
    answer, and no error. (P40)
    """
    observed = Observed()
    with beside(observed, name), ModelServer([*rate_limited(2), *replies(CodeAgent)]) as server:
        assert make_agent(CodeAgent, openai_model(server, client_retries=2)).run("Ask.") == ANSWER
    check(observed, server)
    assert {span.status.status_code for span in observed.chats} == {StatusCode.UNSET}
    assert not [span for span in observed.chats if sc.ERROR_TYPE in attributes(span)]


@pytest.mark.parametrize("name", [cell("genai-openai"), cell("traceloop-openai")])
def test_stream_left_early(name: str) -> None:
    """A streamed run that its consumer leaves within an answer leaves no span open, nor does the other one."""
    observed = Observed()
    with beside(observed, name), ModelServer(replies(CodeAgent, usage="running")) as server:
        stream = make_agent(CodeAgent, openai_model(server), STREAMED).run("Ask.", stream=True)
        for item in stream:
            if getattr(item, "content", None):
                break
        del item
        with contextlib.suppress(RuntimeError):  # smolagents ignores GeneratorExit here
            stream.close()
        assert observed.recorder.open == 0
        [chat] = observed.chats
        del stream
        gc.collect()
    assert attributes(chat)[sc.CALL_PARTIAL] is True
    assert naive(observed) == recorded(observed)
    assert naive(observed)[0] == observed.run[sc.RUN_INPUT_TOKENS] > 0
    assert foreign(observed) == []


class Silent(Model):  # type: ignore[misc]
    """A user's own model class over a client of their own: `requests` for each call, and no word of what it cost."""

    def __init__(self, ask: Callable[[str], str], requests: int = 1, **kwargs: Any) -> None:
        super().__init__(model_id="silent", **kwargs)
        self._ask, self._requests = ask, requests

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        prompt = "\n".join(part["text"] for message in messages for part in message.content)
        said = [self._ask(prompt) for _ in range(self._requests)]
        return ChatMessage(role=MessageRole.ASSISTANT, content=said[-1])


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", [cell("genai-openai")])
def test_model_that_reports_no_usage(name: str, streamed: bool, requests: int) -> None:
    """A user's own model that reports no usage, over a client that the official instrumentation watches: it hands us
    what each request cost, one or several, and so the call is known, in the sums and in our totals alike. (P34)
    """
    observed = Observed()
    script = [entry for entry in replies(CodeAgent) for _ in range(requests)]
    with beside(observed, name), ModelServer(script) as server:
        client = openai_model(server).client

        def ask(prompt: str) -> str:
            messages = [{"role": "user", "content": prompt}]
            if not streamed:
                answer = client.chat.completions.create(model=OPENAI_MODEL, messages=messages)
                return str(answer.choices[0].message.content)
            options = {"stream": True, "stream_options": {"include_usage": True}}
            chunks = client.chat.completions.create(model=OPENAI_MODEL, messages=messages, **options)
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

        assert make_agent(CodeAgent, Silent(ask, requests)).run("Ask.") == ANSWER
    assert server.truth.calls == 2 * requests
    check(observed, server, calls=2)
    assert observed.run[sc.RUN_CALLS_WITHOUT_USAGE] == 0


# --- those that step aside for a general order only ------------------------------------------------------------------


@pytest.mark.parametrize("name", [cell(name) for name in CLIENTS if CLIENTS[name].models == ("bedrock",)])
def test_bedrock_below_a_model_of_the_user(name: str) -> None:
    """A user's own class over boto3, as many have while smolagents' own cannot read Bedrock's answers
    (huggingface/smolagents#1941): its client gives it away, so the sums are the truth here too.
    """
    observed = Observed()

    class Mine(Model):  # type: ignore[misc]
        def __init__(self, client: Any) -> None:
            super().__init__(model_id=BEDROCK_MODEL)
            self.runtime = client

        def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
            prompt = [{"role": "user", "content": [{"text": part["text"]} for m in messages for part in m.content]}]
            answer = self.runtime.converse(modelId=BEDROCK_MODEL, messages=prompt)
            content = answer["output"]["message"]["content"][0]["text"]
            return ChatMessage(role=MessageRole.ASSISTANT, content=content, raw=answer)

    with beside(observed, name), ModelServer(replies(CodeAgent)) as server:
        assert make_agent(CodeAgent, Mine(bedrock_model(server).client)).run("Ask.") == ANSWER
    check(observed, server)
    assert foreign(observed) == []


@pytest.mark.parametrize(
    ("name", "model", "consumed"), [each for each in MATRIX if str(each.values[0]).startswith("openinference")]
)
def test_openinference_with_genai_names(name: str, model: str, consumed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenInference told by its variable to write `gen_ai.usage.*` as well would count every call a second time. It
    knows no softer word than the general order to be silent, so it gets that one. (The price: HTTP spans below these
    calls are silent too.)
    """
    monkeypatch.setenv(SEMCONV_VARIABLE, "true")
    observed = Observed()
    with beside(observed, name), ModelServer(replies(CodeAgent, between=[text("Hello.")])) as server:
        subject = make_agent(CodeAgent, MODELS[model](server), consumed, ask=by_hand(name, server))
        assert subject.run("Ask.") == ANSWER
    assert naive(observed) == charged(server)  # with the call of the tool, which is theirs
    assert len(foreign(observed)) == 1
    assert observed.run[sc.RUN_INPUT_TOKENS] < charged(server)[0]


@pytest.mark.parametrize("name", [cell("openinference-openai")])
def test_openinference_with_genai_names_set_in_code(name: str) -> None:
    """What we do not see: the same asked for in code, `TraceConfig(enable_genai_semconv=True)`. Measured: the sum over
    spans is twice the truth; the metric and our own totals are right. The remedy is the variable, which we see.
    """
    config = import_module("openinference.instrumentation").TraceConfig(enable_genai_semconv=True)
    observed = Observed()
    with beside(observed, name, config=config), ModelServer(replies(CodeAgent)) as server:
        assert make_agent(CodeAgent, openai_model(server)).run("Ask.") == ANSWER
    assert naive(observed) == tuple(2 * tokens for tokens in charged(server))
    assert recorded(observed) == charged(server)
    check_truth_of_ours(observed, server)


def check_truth_of_ours(observed: Observed, server: ModelServer) -> None:
    assert totals(observed.chats, sc.USAGE_INPUT_TOKENS, sc.USAGE_OUTPUT_TOKENS) == charged(server)
    assert totals(observed.runs, sc.RUN_INPUT_TOKENS, sc.RUN_OUTPUT_TOKENS) == charged(server)


def test_litellm_reporting_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody can silence: LiteLLM's own OpenTelemetry callback, set as an object. It runs in LiteLLM's worker
    threads, after the call and without its context. Measured: for streams it makes a second root span, and the sum over
    spans is twice the truth; plain, it tries to write on our ended span. The metric and our totals are right.
    """
    litellm = pytest.importorskip("litellm")
    otel = import_module("litellm.integrations.opentelemetry")
    observed = Observed()
    config = otel.OpenTelemetryConfig(exporter="in_memory")
    callback = otel.OpenTelemetry(
        config=config, tracer_provider=observed.tracer_provider, meter_provider=observed.meter_provider
    )
    for name in ("callbacks", "success_callback", "failure_callback", "_async_success_callback"):
        monkeypatch.setattr(litellm, name, list(getattr(litellm, name)))
    litellm.callbacks.append(callback)
    observed.instrument()
    with ModelServer(replies(CodeAgent)) as server:
        assert make_agent(CodeAgent, MODELS["litellm"](server), STREAMED).run("Ask.") == ANSWER
    theirs = wait_for(lambda: [span for span in foreign(observed) if sc.USAGE_INPUT_TOKENS in attributes(span)], 2)
    assert {span.name for span in theirs} == {"litellm_request"}
    assert naive(observed) == tuple(2 * tokens for tokens in charged(server))
    assert recorded(observed) == charged(server)
    check_truth_of_ours(observed, server)


def wait_for(look: Callable[[], list[Any]], count: int) -> list[Any]:
    """What a worker thread is about to do."""
    deadline = time.monotonic() + PATIENCE
    while len(look()) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return look()


# --- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumed", ["plain", STREAMED])
@pytest.mark.parametrize("model", ["openai", "inference_client"])
def test_http_spans_stay(model: str, consumed: str) -> None:
    """Instrumentations of HTTP clients go on as before: a span per request, below our chat span, and the trace goes on
    to the server. Only the tokens are ours.
    """
    httpx = pytest.importorskip("opentelemetry.instrumentation.httpx")
    pytest.importorskip("openai")
    observed = Observed()
    names = [name for name in ("HTTPXClientInstrumentor", "HTTPX2ClientInstrumentor") if hasattr(httpx, name)]
    instrumentors = [getattr(httpx, name)() for name in names]
    for instrumentor in instrumentors:
        instrumentor.instrument(tracer_provider=observed.tracer_provider, meter_provider=observed.meter_provider)
    observed.instrument()
    try:
        with ModelServer(replies(CodeAgent)) as server:
            assert make_agent(CodeAgent, MODELS[model](server), consumed).run("Ask.") == ANSWER
    finally:
        for instrumentor in instrumentors:
            instrumentor.uninstrument()
    check(observed, server)
    requests = foreign(observed)
    assert len(requests) == 2
    for span, request in zip(requests, server.requests, strict=True):
        above = parent(span, observed.chats)
        assert above is not None
        assert span.context is not None
        assert request.headers["traceparent"].split("-")[1:3] == [
            f"{span.context.trace_id:032x}",
            f"{span.context.span_id:016x}",
        ]
