"""smolagents' own model classes: those that speak HTTP, through their real clients, against a server on loopback that
knows what it has answered and charged; and those that run in process, over stand-ins for the libraries they need.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import json
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import smolagents
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util.genai.utils import fq_exception_type
from smolagents import CodeAgent, LogLevel, ToolCallingAgent, models, tool
from smolagents.models import ChatMessage, MessageRole

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests import model_server
from tests.conftest import Observed, Warnings, attributes
from tests.model_server import (
    BEDROCK_MODEL,
    HUGGING_FACE_MODEL,
    MODELS,
    OPENAI_MODEL,
    SERVED_MODEL,
    Entry,
    Failure,
    ModelServer,
    Reply,
    Request,
    code,
    final_answer,
    loopback_only,
    rate_limited,
    text,
    tool_call,
)
from tests.programs import PATIENCE
from tests.rules import check_all, check_registry, check_tree, check_truth, totals
from tests.scripted import AGENT_CLASSES, Truth
from tests.stack.programs import wait_for

CLIENTS = {
    "openai": "openai",
    "azure": "openai",
    "litellm": "litellm",
    "litellm_router": "litellm",
    "inference_client": "huggingface_hub",
    "bedrock": "boto3",
}
"""The models of `model_server.MODELS`, and the library each speaks through."""
PROVIDERS = {
    "openai": ("openai", OPENAI_MODEL),
    "azure": ("azure.ai.openai", OPENAI_MODEL),
    "litellm": ("openai", f"openai/{OPENAI_MODEL}"),
    "litellm_router": ("litellm", "group"),
    "inference_client": ("huggingface", HUGGING_FACE_MODEL),
    "bedrock": ("aws.bedrock", BEDROCK_MODEL),
}
"""`gen_ai.provider.name` and `gen_ai.request.model` of each."""
CLASSES = {
    "openai": "OpenAIModel",
    "azure": "AzureOpenAIModel",
    "litellm": "LiteLLMModel",
    "litellm_router": "LiteLLMRouterModel",
    "inference_client": "InferenceClientModel",
    "bedrock": "AmazonBedrockModel",
    "transformers": "TransformersModel",
    "vllm": "VLLMModel",
    "mlx": "MLXModel",
}
OPENAI_LIKE = ("openai", "azure", "litellm", "litellm_router", "inference_client")
"""Those that can stream."""
LITELLM = ("litellm", "litellm_router")
CONSUMED = ("plain", "stream", "stream_outputs")
ANSWERED = ("plain", "stream_outputs")
"""How the model's answers are consumed, whatever the run's."""
HELLO = [ChatMessage(MessageRole.USER, [{"type": "text", "text": "Say hello, please, and nothing else."}])]
PLAN = text("1. Look it up.\n2. Say how long it is.\n<end_plan>")
ANSWER = "20"


def cell(name: str, *more: Any) -> Any:
    """Parameters of a test that begin with a model's name. Skipped where its client is not installed."""
    missing = pytest.mark.skipif(find_spec(CLIENTS[name]) is None, reason=f"{CLIENTS[name]} is not installed")
    return pytest.param(name, *more, marks=missing)


def cells(names: Iterable[str], consumed: Iterable[str]) -> list[Any]:
    """Models × ways to consume an answer, as far as they can stream."""
    return [cell(name, how) for name in names for how in consumed if name in OPENAI_LIKE or how != "stream_outputs"]


ALL = [cell(name) for name in MODELS]
STREAMING = [cell(name) for name in OPENAI_LIKE]


@pytest.fixture(scope="module", autouse=True)
def clients() -> Iterator[None]:
    """The client libraries are big: `clean` collects garbage after each test, and need not look at them each time."""
    with loopback_only():
        for make in MODELS.values():
            with contextlib.suppress(ImportError), ModelServer([text("Ready.")]) as server:
                make(server).generate(HELLO)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def guard() -> Iterator[None]:
    """Nothing but loopback, and no streamed text on the terminal."""
    with loopback_only(), contextlib.redirect_stdout(io.StringIO()):
        yield


@tool  # type: ignore[untyped-decorator]
def lookup(word: str) -> str:
    """Looks a word up.

    Args:
        word: The word.
    """
    return word * 10


def replies(cls: type, **delivery: Any) -> list[Entry]:
    """Two steps: the tool, and the answer."""
    if issubclass(cls, CodeAgent):
        return [code("print(lookup('ab'))", **delivery), code(f"final_answer('{ANSWER}')", **delivery)]
    return [tool_call("lookup", {"word": "ab"}, **delivery), final_answer(ANSWER, **delivery)]


def answer(cls: type, **delivery: Any) -> Reply:
    """The answer at once."""
    reply = replies(cls, **delivery)[1]
    assert isinstance(reply, Reply)
    return reply


def make_agent(cls: type, model: Any, consumed: str = "plain", **kwargs: Any) -> Any:
    kwargs.setdefault("stream_outputs", consumed == "stream_outputs")
    return cls(tools=[lookup], model=model, verbosity_level=LogLevel.OFF, **kwargs)


def run(subject: Any, consumed: str = "plain") -> Any:
    if consumed == "stream":
        return list(subject.run("Look it up.", stream=True))[-1].output
    return subject.run("Look it up.")


def memory(subject: Any) -> str:
    """What the agent remembers, less times and the ids that smolagents makes up."""
    names = ("model_output", "observations", "plan", "token_usage", "action_output")
    steps = [[type(step).__name__, *(getattr(step, name, None) for name in names)] for step in subject.memory.steps]
    return re.sub(r"\w{8}(-\w{4}){3}-\w{12}", "(id)", repr(steps))


def prompts(observed: Observed, requests: Sequence[Request]) -> list[list[dict[str, str]]]:
    """What the server got as prompts, less the line break that smolagents puts where it joins two messages of one role.

    Only their sizes matter to the rules.
    """
    sizes = []
    for span, request in zip(observed.chats, requests, strict=True):
        parts = [message["content"] for message in request.body["messages"]]
        pieces = sum(1 if isinstance(content, str) else len(content or ()) for content in parts)
        sizes.append(len(request.prompt) - (attributes(span)[sc.HISTORY_MESSAGES] - pieces))
    return [[{"content": "x" * size}] for size in sizes]


def check(observed: Observed, server: ModelServer, requests: Sequence[Request] | None = None) -> None:
    """Every rule, with the server as the truth. `requests`: one for each call, where some were tried again."""
    requests = server.requests if requests is None else requests
    truth = server.truth
    check_all(
        observed,
        Truth(
            calls=len(requests),
            input_tokens=truth.input_tokens,
            output_tokens=truth.output_tokens,
            prompts=prompts(observed, requests),
        ),
    )
    port = int(server.url.rpartition(":")[2])
    for span in observed.chats:
        values = attributes(span)
        assert (values[sc.SERVER_ADDRESS], values[sc.SERVER_PORT]) == ("127.0.0.1", port)


def only_chat(observed: Observed) -> dict[str, Any]:
    [span] = observed.chats
    return attributes(span)


# --- what every class does -------------------------------------------------------------------------------------------


def test_every_class_of_smolagents_is_here() -> None:
    """The nine classes that smolagents 1.26 has are all tested below; the other names are aliases of them."""
    if hasattr(models, "MODEL_REGISTRY"):
        assert set(models.MODEL_REGISTRY) == set(CLASSES.values())
    for alias, cls in (("OpenAIServer", "OpenAI"), ("AzureOpenAIServer", "AzureOpenAI"), ("AmazonBedrockServer",) * 2):
        known = getattr(smolagents, f"{alias}Model")
        assert known is getattr(smolagents, f"{cls.removesuffix('Server')}Model")


@pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize(("name", "consumed"), cells(MODELS, CONSUMED))
def test_matrix(name: str, cls: type, consumed: str, observed: Observed, warned: Warnings) -> None:
    """Model class × agent class × how it is consumed, with a plan before each action: what the server charged is what
    every total says, the parts add up to what it received, to the character, each call is one span, and the agent does
    what it does without us. (P28, P31; the server does not charge for tool schemas.)
    """
    script = [entry for action in replies(cls) for entry in (PLAN, action)]

    def go() -> tuple[Any, Any, ModelServer]:
        with ModelServer(script) as server:
            subject = make_agent(cls, MODELS[name](server), consumed, planning_interval=1)
            return run(subject, consumed), memory(subject), server

    result, remembered, server = go()
    assert result == ANSWER
    assert server.truth.calls_with_usage == len(script)
    check(observed, server)
    assert observed.run[sc.RUN_CALLS_WITHOUT_USAGE] == 0
    assert [attributes(span)[sc.CALL_TYPE] for span in observed.chats] == ["planning", "action"] * 2
    assert warned.lines == []
    SmolagentsInstrumentor().uninstrument()
    bare_result, bare_memory, bare_server = go()
    assert (result, remembered) == (bare_result, bare_memory)
    assert server.truth == bare_server.truth


@pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize(("name", "consumed"), cells(MODELS, ANSWERED))
def test_facts(name: str, consumed: str, cls: type, observed: Observed) -> None:
    """A chat span names provider, model and server, and of a plain answer its id, model and reason to finish. Deltas of
    a stream do not tell these, so they are absent there, unless a client instrumentation below fills them in
    (test_beside_clients). Converse answers have no id and no model. Of a cache and of reasoning this provider says
    nothing, which leaves no attribute, rather than a zero (P37).
    """
    with ModelServer([answer(cls)]) as server:
        options = {"temperature": 0.5, "max_tokens": 99} if name != "bedrock" else {}
        model = MODELS[name](server, **options)
        run(make_agent(cls, model, consumed))
    check(observed, server)
    [span] = observed.chats
    values = attributes(span)
    provider, requested = PROVIDERS[name]
    assert (span.name, span.kind) == (f"chat {requested}", SpanKind.CLIENT)
    assert span.status.status_code is StatusCode.UNSET
    assert values[sc.OPERATION_NAME] == "chat"
    assert (values[sc.PROVIDER_NAME], values[sc.REQUEST_MODEL]) == (provider, requested)
    if name != "bedrock":
        assert (values[sc.REQUEST_TEMPERATURE], values[sc.REQUEST_MAX_TOKENS]) == (0.5, 99)
    found = (values.get(sc.RESPONSE_ID), values.get(sc.RESPONSE_MODEL), values.get(sc.FINISH_REASONS))
    if consumed == "stream_outputs":
        assert values[sc.REQUEST_STREAM] is True
        assert values[sc.TIME_TO_FIRST_CHUNK] > 0
        assert found == (None, None, None)
    elif name == "bedrock":
        assert found == (None, None, ("end_turn",))
    else:
        assert sc.REQUEST_STREAM not in values
        assert found == ("chatcmpl-call-1", SERVED_MODEL, ("stop" if cls is CodeAgent else "tool_calls",))
    for absent in (sc.USAGE_CACHE_READ_TOKENS, sc.USAGE_CACHE_WRITE_TOKENS, sc.USAGE_REASONING_TOKENS):
        assert absent not in values
    [(point, duration)] = observed.points("gen_ai.client.operation.duration")
    assert duration.count == 1
    assert (point[sc.PROVIDER_NAME], point[sc.REQUEST_MODEL]) == (provider, requested)
    assert (point[sc.SERVER_ADDRESS], point[sc.SERVER_PORT]) == (values[sc.SERVER_ADDRESS], values[sc.SERVER_PORT])


def test_an_answer_says_why_it_ended(observed_content: Observed) -> None:
    """With content on, the message has the provider's own reason, too."""
    with ModelServer([text("Hello.")]) as server:
        MODELS["openai"](server)(HELLO)
    values = only_chat(observed_content)
    [message] = json.loads(str(values[sc.OUTPUT_MESSAGES]))
    assert (message["finish_reason"], values[sc.FINISH_REASONS]) == ("stop", ("stop",))


@pytest.mark.parametrize("name", ALL)
def test_direct_call(name: str, observed: Observed) -> None:
    """A model called by hand, `model(messages)`, is one span of type `other`, without a run."""
    with ModelServer([text("Hello.")]) as server:
        model = MODELS[name](server)
        said = model(HELLO)
    assert said.content == "Hello."
    values = only_chat(observed)
    assert values[sc.CALL_TYPE] == "other"
    assert sc.RUN_ID not in values
    assert (values[sc.USAGE_INPUT_TOKENS], values[sc.USAGE_OUTPUT_TOKENS]) == (
        server.truth.input_tokens,
        server.truth.output_tokens,
    )
    assert observed.recorder.open == 0


@pytest.mark.parametrize(("name", "consumed"), cells(OPENAI_LIKE, ANSWERED))
def test_parallel_tool_calls(name: str, consumed: str, observed: Observed) -> None:
    """Three tool calls in one answer: one chat span, three tool spans below the step, each with the model's id of it.
    (P15)
    """
    together = Reply(tool_calls=tuple(("lookup", {"word": word}) for word in ("a", "b", "c")))
    with ModelServer([together, final_answer(ANSWER)]) as server:
        assert run(make_agent(ToolCallingAgent, MODELS[name](server), consumed), consumed) == ANSWER
    check(observed, server)
    first = min(observed.steps, key=lambda span: span.start_time or 0)
    tools = [span for span in observed.tools if span.name == "execute_tool lookup"]
    assert {span.parent.span_id for span in tools if span.parent} == {first.context.span_id if first.context else 0}
    assert {attributes(span)[sc.TOOL_CALL_ID] for span in tools} == {f"chatcmpl-call-1-{i}" for i in range(3)}
    assert attributes(first)[sc.STEP_TOOL_CALLS] == 3


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", ALL)
def test_cached_and_reasoning_tokens(name: str, cls: type, observed: Observed) -> None:
    """Cached tokens are within the input, whether the provider counts them inside (OpenAI) or outside (Bedrock), and
    reasoning tokens within the output. They change no total. (P37, P39)
    """
    kinds = {"cache_read": 40, "cache_write": 7}
    reasoning = {} if name == "bedrock" else {"reasoning": 5}
    with ModelServer(replies(cls, **kinds, **reasoning)) as server:
        run(make_agent(cls, MODELS[name](server)))
    check(observed, server)
    truth = server.truth
    assert (truth.cache_read, truth.cache_write) == (80, 14)
    names = (sc.USAGE_CACHE_READ_TOKENS, sc.USAGE_CACHE_WRITE_TOKENS, sc.USAGE_REASONING_TOKENS)
    assert totals(observed.chats, *names) == (truth.cache_read, truth.cache_write, truth.reasoning)
    for span in observed.chats:
        values = attributes(span)
        assert values[sc.USAGE_CACHE_READ_TOKENS] + values[sc.USAGE_CACHE_WRITE_TOKENS] < values[sc.USAGE_INPUT_TOKENS]


@pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", STREAMING)
def test_running_usage(name: str, cls: type, observed: Observed) -> None:
    """A provider that puts the tokens so far on every chunk: the prompt counts once, and the output to its end, though
    smolagents itself adds them all up. (P28)
    """
    with ModelServer(replies(cls, usage="running")) as server:
        subject = make_agent(cls, MODELS[name](server), "stream_outputs")
        assert run(subject) == ANSWER
    check(observed, server)
    assert observed.run[sc.RUN_CALLS_WITHOUT_USAGE] == 0
    if name not in LITELLM:  # LiteLLM makes one report of them
        assert subject.monitor.total_input_token_count > 3 * server.truth.input_tokens


UNKNOWN = [
    *(cell(name, "zero", how) for name in MODELS for how in ANSWERED if name != "bedrock" or how == "plain"),
    *(cell(name, "absent", "stream_outputs") for name in ("openai", "azure", "inference_client")),
    *(cell(name, "absent", "plain") for name in LITELLM),  # which makes it 0 and 0; for the others see below
]


@pytest.mark.parametrize(("name", "usage", "consumed"), UNKNOWN)
def test_unknown(name: str, usage: str, consumed: str, observed: Observed) -> None:
    """An answer that does not say what it cost, or claims 0 tokens in and 0 out, is unknown: no zero is recorded, the
    calls are counted, and the size of the prompt is there in characters. (P34)
    """
    with ModelServer(replies(CodeAgent, usage=usage)) as server:
        assert run(make_agent(CodeAgent, MODELS[name](server), consumed)) == ANSWER
    assert server.truth.calls_without_usage == 2
    check(observed, server)
    run_span = observed.run
    assert run_span[sc.RUN_CALLS_WITHOUT_USAGE] == 2
    assert sc.RUN_INPUT_TOKENS not in run_span
    for span in observed.chats:
        values = attributes(span)
        assert sc.USAGE_INPUT_TOKENS not in values
        assert sc.USAGE_OUTPUT_TOKENS not in values
        assert values[sc.HISTORY_ESTIMATOR] == "characters"
        assert values[sc.HISTORY_TOKENS] > 0
    assert observed.total("smolagents.calls.without_usage") == 2
    assert observed.points("gen_ai.client.token.usage") == []


@pytest.mark.parametrize("name", [cell(name) for name in LITELLM])
def test_litellm_invents_usage(name: str, observed: Observed) -> None:
    """What we cannot see: LiteLLM fills a stream's missing usage in with an estimate of its own tokenizer, on a chunk
    like that of a provider. Nothing tells the two apart, so the call counts as one with usage, and the totals are
    LiteLLM's estimate, as in smolagents' own monitor. (P34)
    """
    with ModelServer(replies(CodeAgent, usage="absent")) as server:
        subject = make_agent(CodeAgent, MODELS[name](server), "stream_outputs")
        assert run(subject) == ANSWER
    assert server.truth.calls_without_usage == 2
    assert server.truth.input_tokens == 0
    assert observed.run[sc.RUN_CALLS_WITHOUT_USAGE] == 0
    monitor = subject.monitor
    assert totals(observed.chats, sc.USAGE_INPUT_TOKENS, sc.USAGE_OUTPUT_TOKENS) == (
        monitor.total_input_token_count,
        monitor.total_output_token_count,
    )
    characters = totals(observed.chats, sc.HISTORY_CHARACTERS)[0]
    assert characters / 6 < observed.run[sc.RUN_INPUT_TOKENS] < characters / 3  # an estimate of the right size


@pytest.mark.parametrize("name", [cell(name) for name in MODELS if name not in LITELLM])
def test_plain_answer_without_usage(name: str, observed: Observed) -> None:
    """These classes do not survive a plain answer without usage: the call and the run fail as they do without us, and
    no token is made up. (P34)
    """
    with ModelServer([answer(CodeAgent, usage="absent")]) as server, pytest.raises(Exception) as caught:  # noqa: PT011
        run(make_agent(CodeAgent, MODELS[name](server)))
    check_failed(observed, caught.value)
    assert only_chat(observed)[sc.ERROR_TYPE] == ("KeyError" if name == "bedrock" else "AttributeError")
    assert server.truth.calls_without_usage == 1
    assert observed.points("gen_ai.client.token.usage") == []


def test_one_call_without_usage_among_others(observed: Observed) -> None:
    """Usage missing in one of three calls: the total is that of the two others, and says that one is missing. (P34)"""
    pytest.importorskip("openai")
    first, last = replies(CodeAgent)
    assert isinstance(first, Reply)
    with ModelServer([first, replace(first, usage="absent"), last]) as server:
        run(make_agent(CodeAgent, MODELS["openai"](server), "stream_outputs"))
    assert server.truth.calls_without_usage == 1
    check(observed, server)
    assert observed.run[sc.RUN_CALLS_WITHOUT_USAGE] == 1
    assert observed.total("smolagents.calls.without_usage") == 1


# --- retries and errors ----------------------------------------------------------------------------------------------


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds that smolagents waits in all before its third attempt; a minute and more otherwise."""
    if "retry" not in inspect.signature(models.ApiModel.__init__).parameters:
        pytest.skip("this smolagents does not try again")
    monkeypatch.setattr(models, "RETRY_WAIT", 0.02)
    monkeypatch.setattr(models, "RETRY_JITTER", False)
    return 0.02 * 2 + 0.02 * 4


@pytest.mark.parametrize(("name", "consumed"), cells(MODELS, ANSWERED))
def test_retried_by_smolagents(name: str, consumed: str, quick_retries: float, observed: Observed) -> None:
    """Told twice to slow down, then answered: smolagents' own retries are one call. One span and one duration, with
    the waiting, and the tokens once, of the answer. (P40)
    """
    with ModelServer([*rate_limited(2), answer(CodeAgent)]) as server:
        model = MODELS[name](server, retry=True)
        assert run(make_agent(CodeAgent, model, consumed)) == ANSWER
    check_retried(observed, server, 3)
    [span] = observed.chats
    assert seconds(span) > quick_retries
    assert observed.total("gen_ai.client.operation.duration") > quick_retries


@pytest.mark.parametrize(("name", "consumed"), cells(("openai", "azure", "litellm", "bedrock"), ANSWERED))
def test_retried_by_client(name: str, consumed: str, observed: Observed) -> None:
    """The same when the client library tries again by itself. (P40)"""
    with ModelServer([*rate_limited(1), answer(CodeAgent)]) as server:
        model = MODELS[name](server, client_retries=1)
        assert run(make_agent(CodeAgent, model, consumed)) == ANSWER
    check_retried(observed, server, 2)


def check_retried(observed: Observed, server: ModelServer, attempts: int) -> None:
    assert (server.truth.attempts, server.truth.calls) == (attempts, 1)
    check(observed, server, server.requests[-1:])
    [span] = observed.chats
    assert span.status.status_code is StatusCode.UNSET
    assert sc.ERROR_TYPE not in attributes(span)
    assert observed.run[sc.RUN_CALLS] == 1
    tokens = [point for _, point in observed.points("gen_ai.client.token.usage")]
    assert [point.count for point in tokens] == [1, 1]


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(("name", "consumed"), cells(MODELS, ANSWERED))
def test_refused(name: str, consumed: str, status: int, observed: Observed) -> None:
    """HTTP 400 or 500: the chat span is an error of the class that the client raised, the run of the one that the agent
    raised, and no message of the server gets out. (design 3; P34)
    """
    failure = Failure(status, "the secret text of the server")
    with ModelServer([answer(CodeAgent), failure]) as server:
        subject = make_agent(CodeAgent, MODELS[name](server), consumed)
        run(subject)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            run(subject)
    assert observed.recorder.open == 0
    first, second = observed.runs
    assert attributes(first)[sc.RUN_STATE] == "success"
    assert attributes(second)[sc.RUN_STATE] == "error"
    failed = observed.chats[1]
    assert_failed(failed, caught.value.__cause__)
    assert_failed(second, caught.value)
    assert sc.USAGE_INPUT_TOKENS not in attributes(failed)
    assert sc.RUN_INPUT_TOKENS not in attributes(second)
    assert attributes(second)[sc.RUN_CALLS_WITHOUT_USAGE] == 0  # it was not answered at all
    check_truth(observed, Truth(2, 0, server.truth.input_tokens, server.truth.output_tokens))
    assert "secret text" not in everything(observed)


def assert_failed(span: ReadableSpan, error: BaseException | None) -> None:
    assert error is not None
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None or str(error) not in span.status.description
    assert attributes(span)[sc.ERROR_TYPE] == fq_exception_type(error)
    assert not span.events


def check_failed(observed: Observed, error: BaseException) -> None:
    """One run of one call that failed."""
    [chat], [run_span] = observed.chats, observed.runs
    assert_failed(chat, error.__cause__)
    assert_failed(run_span, error)
    assert observed.run[sc.RUN_STATE] == "error"
    assert observed.recorder.open == 0
    check_tree(observed)
    check_registry(observed)


@pytest.mark.parametrize("name", ALL)
def test_hung_up_on_plain(name: str, observed: Observed) -> None:
    """The connection breaks within a plain answer: an error, and no tokens."""
    with ModelServer([answer(CodeAgent, hang_up=True)]) as server, pytest.raises(Exception) as caught:  # noqa: PT011
        run(make_agent(CodeAgent, MODELS[name](server)))
    check_failed(observed, caught.value)
    assert sc.USAGE_INPUT_TOKENS not in only_chat(observed)
    assert observed.points("gen_ai.client.token.usage") == []


@pytest.mark.parametrize("usage", ["final", "running"])
@pytest.mark.parametrize("name", STREAMING)
def test_hung_up_on_stream(name: str, usage: str, observed: Observed) -> None:
    """The connection breaks in the middle of a stream: an error. What had been reported by then counts, and is marked
    as partial; usage that would have come at the end is not made up.
    """
    script = [answer(CodeAgent, hang_up=True, usage=usage)]
    with ModelServer(script) as server, pytest.raises(Exception) as caught:  # noqa: PT011
        run(make_agent(CodeAgent, MODELS[name](server), "stream_outputs"))
    check_failed(observed, caught.value)
    values = only_chat(observed)
    if usage == "running" and name not in LITELLM:
        assert values[sc.CALL_PARTIAL] is True
        assert values[sc.USAGE_INPUT_TOKENS] == model_server.tokens(server.requests[0].prompt)
        assert observed.run[sc.RUN_INPUT_TOKENS] == values[sc.USAGE_INPUT_TOKENS]
    else:
        assert sc.USAGE_INPUT_TOKENS not in values
        assert observed.points("gen_ai.client.token.usage") == []


@pytest.mark.parametrize("usage", ["final", "running"])
@pytest.mark.parametrize("name", STREAMING)
def test_left_early(name: str, usage: str, observed: Observed, warned: Warnings) -> None:
    """The consumer of a run leaves while an answer is being streamed: both spans end, the run as abandoned, with what
    had been reported by then; usage at the end of the stream was never seen, and that is said. (P22, P34)
    """
    with ModelServer([answer(CodeAgent, thought="Long. " * 40, usage=usage)]) as server:
        stream = make_agent(CodeAgent, MODELS[name](server), "stream_outputs").run("Look it up.", stream=True)
        for item in stream:
            if getattr(item, "content", None):
                break
        del item
        with contextlib.suppress(RuntimeError):  # smolagents ignores GeneratorExit here
            stream.close()
    assert observed.recorder.open == 0
    values, run_span = only_chat(observed), observed.run
    assert run_span[sc.RUN_STATE] == "abandoned"
    assert values[sc.CALL_PARTIAL] is True
    if usage == "running" and name not in LITELLM:
        assert values[sc.USAGE_INPUT_TOKENS] == model_server.tokens(server.requests[0].prompt)
        assert run_span[sc.RUN_INPUT_TOKENS] == values[sc.USAGE_INPUT_TOKENS]
        assert run_span[sc.RUN_CALLS_WITHOUT_USAGE] == 0
    else:
        assert sc.USAGE_INPUT_TOKENS not in values
        assert run_span[sc.RUN_CALLS_WITHOUT_USAGE] == 1
    check_tree(observed)
    check_registry(observed)
    assert warned.lines == []


def seconds(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - (span.start_time or 0)) / 1e9


# --- privacy ---------------------------------------------------------------------------------------------------------

SECRETS = ("sk-hunter2hunter2hunter2", "hunter2", "AKIAHUNTER2HUNTER2AB")


def with_credentials(server: ModelServer) -> str:
    return server.url.replace("http://", f"http://user:{SECRETS[1]}@")


def secretive(name: str, server: ModelServer) -> Any:
    """A model whose key is a secret, and where it takes one its address too."""
    key, url = SECRETS[0], with_credentials(server)
    if name == "bedrock":
        from botocore.config import Config

        return smolagents.AmazonBedrockModel(
            model_id=BEDROCK_MODEL,
            client_kwargs={
                "region_name": "us-east-1",
                "endpoint_url": server.url,
                "aws_access_key_id": SECRETS[2],
                "aws_secret_access_key": key,
                "config": Config(retries={"total_max_attempts": 1}),
            },
        )
    if name == "azure":
        return smolagents.AzureOpenAIModel(
            model_id=OPENAI_MODEL, azure_endpoint=url, api_key=key, api_version="2024-10-21", **once(openai=True)
        )
    if name == "openai":
        return smolagents.OpenAIModel(model_id=OPENAI_MODEL, api_base=f"{url}/v1", api_key=key, **once(openai=True))
    if name == "litellm":
        return smolagents.LiteLLMModel(
            model_id=f"openai/{OPENAI_MODEL}", api_base=f"{url}/v1", api_key=key, max_retries=0, **once()
        )
    if name == "litellm_router":
        place = {"api_base": f"{url}/v1", "api_key": key}
        deployment = {"model": f"openai/{OPENAI_MODEL}", "max_retries": 0, **place}
        return smolagents.LiteLLMRouterModel(
            model_id="group",
            model_list=[{"model_name": "group", "litellm_params": deployment}],
            client_kwargs={"num_retries": 0},
            **place,
            **once(),
        )
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True
    return smolagents.InferenceClientModel(model_id=url, token=key, **once())


def once(openai: bool = False) -> dict[str, Any]:
    """Arguments by which neither smolagents nor the client tries again."""
    retry = {"retry": False} if "retry" in inspect.signature(models.ApiModel.__init__).parameters else {}
    return {**retry, "client_kwargs": {"max_retries": 0}} if openai else retry


@pytest.mark.parametrize("refused", [False, True], ids=["answered", "refused"])
@pytest.mark.parametrize("name", ALL)
def test_no_credentials(name: str, refused: bool, observed: Observed) -> None:
    """Keys, and addresses with user and password in them, are in no span, metric or log record, neither of a call that
    works nor of one whose error message repeats the key. (P56; design 5.5)
    """
    denied = Failure(401, f"Incorrect API key provided: {SECRETS[0]}.")
    with ModelServer([denied if refused else answer(CodeAgent)]) as server:
        model = secretive(name, server)
        with contextlib.suppress(Exception):
            run(make_agent(CodeAgent, model))
    assert server.truth.attempts == 1
    values = only_chat(observed)
    if refused or name != "bedrock":  # since 1.23 that class cannot read answers, and here it is not mended
        assert (sc.ERROR_TYPE in values) is refused
    assert values[sc.SERVER_ADDRESS] == "127.0.0.1"
    assert values[sc.SERVER_PORT] == int(server.url.rpartition(":")[2])
    told = everything(observed)
    assert "127.0.0.1" in told
    for secret in SECRETS:
        assert secret not in told


def everything(observed: Observed) -> str:
    """All that would be exported, as text."""
    spans = [span.to_json() for span in observed.recorder.ended]
    data = observed.reader.get_metrics_data()
    logs = [repr(record) for record in observed.log_exporter.get_finished_logs()]
    return "\n".join([*spans, data.to_json() if data else "", *logs])


# --- in process, over stand-ins --------------------------------------------------------------------------------------


class Library:
    """What the three in-process classes need of their libraries: it "loads" a model that follows a script, and counts.

    A token is four characters of the prompt, and a piece of four characters of the answer.
    """

    def __init__(self, script: Sequence[str]) -> None:
        self.truth = Truth()
        self._script = iter(script)
        self.reply = ""

    def prompt(self, messages: Sequence[Any]) -> list[int]:
        """A prompt's ids. The answer to it is known from here on."""
        self.truth.called(messages)
        self.reply = next(self._script)
        written = "".join(part if isinstance(part, str) else part["text"] for part in _contents(messages))
        ids = [0] * (len(written) // 4)
        self.truth.input_tokens += len(ids)
        return ids

    def pieces(self) -> list[str]:
        """The answer, token by token. Not yet charged: whoever makes them may be stopped."""
        return [self.reply[start : start + 4] for start in range(0, len(self.reply), 4)]

    def generate(self) -> list[str]:
        """The answer, charged as a whole."""
        pieces = self.pieces()
        self.truth.output_tokens += len(pieces)
        return pieces


def _contents(messages: Sequence[Any]) -> Iterator[Any]:
    for message in messages:
        content = message["content"]
        yield from [content] if isinstance(content, str) else content


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """Put a stand-in where `import` finds it, and smolagents too."""
    monkeypatch.setattr(models, "_is_package_available", lambda name: name in sys.modules)
    stand_in = ModuleType(name)
    stand_in.__spec__ = ModuleSpec(name, None, is_package=True)
    stand_in.__path__ = []
    vars(stand_in).update(contents)
    monkeypatch.setitem(sys.modules, name, stand_in)


def make_vllm(library: Library, monkeypatch: pytest.MonkeyPatch) -> Any:
    class Tokenizer:
        def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> list[int]:
            return library.prompt(messages)  # vLLM gets the text; the stand-in passes its size on

    class LLM:
        def __init__(self, model: str) -> None:
            self.model = model

        def generate(self, prompt: list[int], sampling_params: Any, **_: Any) -> Any:
            pieces = library.generate()
            output = SimpleNamespace(text="".join(pieces), token_ids=pieces)
            return [SimpleNamespace(prompt_token_ids=prompt, outputs=[output])]

    module(monkeypatch, "vllm", LLM=LLM, SamplingParams=SimpleNamespace)
    module(monkeypatch, "vllm.sampling_params", StructuredOutputsParams=dict, GuidedDecodingParams=dict)
    module(monkeypatch, "vllm.transformers_utils")
    module(monkeypatch, "vllm.transformers_utils.tokenizer", get_tokenizer=lambda model_id: Tokenizer())
    return smolagents.VLLMModel(model_id="tiny/model")


def make_mlx(library: Library, monkeypatch: pytest.MonkeyPatch) -> Any:
    class Tokenizer:
        def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> list[int]:
            return library.prompt(messages)

    def stream_generate(model: Any, tokenizer: Any, prompt: list[int], **_: Any) -> Iterator[Any]:
        for piece in library.pieces():
            library.truth.output_tokens += 1
            yield SimpleNamespace(text=piece)

    module(monkeypatch, "mlx_lm", load=lambda *args, **kwargs: (object(), Tokenizer()), stream_generate=stream_generate)
    return smolagents.MLXModel(model_id="tiny/model", max_tokens=77)


class Ids:
    """As much of a tensor as smolagents touches: a batch of one, `shape`, `out[0, n:]`."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.shape = items, (1, len(items))

    def __getitem__(self, key: Any) -> Any:
        return self if key == "input_ids" else self.items[key[1]]

    def to(self, device: str) -> Ids:
        return self


def make_transformers(library: Library, monkeypatch: pytest.MonkeyPatch) -> Any:
    class Tokenizer:
        def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> Ids:
            return Ids(library.prompt(messages))

        def decode(self, tokens: list[str], **_: Any) -> str:
            return "".join(tokens)

    class Loaded:
        device = "cpu"

        def generate(self, inputs: Ids, streamer: Any = None, **_: Any) -> Ids:
            if not isinstance(inputs, Ids):
                raise TypeError("inputs must be ids")
            pieces = library.generate()
            if streamer is not None:
                for piece in [*pieces, None]:
                    streamer.queue.put(piece)
            return Ids([*inputs.items, *pieces])

    class Streamer:
        def __init__(self, tokenizer: Any, **_: Any) -> None:
            self.queue: queue.Queue[str | None] = queue.Queue()

        def __iter__(self) -> Iterator[str]:
            return iter(self.queue.get, None)

    class NoVision:
        @staticmethod
        def from_pretrained(model_id: str, **_: Any) -> Any:
            raise ValueError("Unrecognized configuration class")

    def loads(thing: Callable[[], Any]) -> Any:
        return SimpleNamespace(from_pretrained=lambda model_id, **_: thing())

    module(monkeypatch, "torch", cuda=SimpleNamespace(is_available=lambda: False))
    module(
        monkeypatch,
        "transformers",
        AutoModelForCausalLM=loads(Loaded),
        AutoModelForImageTextToText=NoVision,
        AutoProcessor=NoVision,
        AutoTokenizer=loads(Tokenizer),
        TextIteratorStreamer=Streamer,
        StoppingCriteria=object,
        StoppingCriteriaList=list,
    )
    return smolagents.TransformersModel(model_id="tiny/model", max_new_tokens=77)


@dataclass(frozen=True)
class Local:
    """An in-process class, and what its spans say."""

    make: Callable[[Library, pytest.MonkeyPatch], Any]
    provider: str
    limit: int | None


LOCALS = {
    "transformers": Local(make_transformers, "huggingface", 77),
    "vllm": Local(make_vllm, "vllm", None),
    "mlx": Local(make_mlx, "mlx", 77),
}


def local_replies(cls: type) -> list[str]:
    if issubclass(cls, CodeAgent):
        return ["Thought: a.\n<code>\nprint(lookup('ab'))\n</code>", f"<code>\nfinal_answer('{ANSWER}')\n</code>"]
    return [
        'Action:\n{"name": "lookup", "arguments": {"word": "ab"}}',
        f'Action:\n{{"name": "final_answer", "arguments": {{"answer": "{ANSWER}"}}}}',
    ]


LOCAL_CELLS = [
    *((name, cls, how) for name in LOCALS for cls in AGENT_CLASSES for how in ("plain", "stream")),
    ("transformers", CodeAgent, "stream_outputs"),  # the only one that can stream, though not tool calls
]


@pytest.mark.parametrize(("name", "cls", "consumed"), LOCAL_CELLS)
def test_in_process(
    name: str, cls: type, consumed: str, observed: Observed, warned: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TransformersModel, VLLMModel and MLXModel: the constructor, `generate` and `generate_stream` are smolagents' own,
    the libraries under them (transformers and torch, vllm, mlx_lm) are stand-ins that follow a script. Every rule
    holds; the provider is named, there is no server, and an answer has no id.
    """
    local = LOCALS[name]
    script = [entry for action in local_replies(cls) for entry in ("1. Look.\n<end_plan>", action)]

    def go() -> tuple[Any, Any, Library]:
        library = Library(script)
        model = local.make(library, monkeypatch)
        prompts: list[list[Any]] = []
        subject = make_agent(cls, model, consumed, planning_interval=1)
        write = model._prepare_completion_kwargs

        def prepare(messages: list[Any], **kwargs: Any) -> Any:
            prompts.append(list(messages))
            return write(messages=messages, **kwargs)

        model._prepare_completion_kwargs = prepare
        result = run(subject, consumed)
        library.truth.prompts = prompts
        return result, memory(subject), library

    result, remembered, library = go()
    assert result == ANSWER
    check_all(observed, library.truth)
    for span in observed.chats:
        values = attributes(span)
        assert (values[sc.PROVIDER_NAME], values[sc.REQUEST_MODEL]) == (local.provider, "tiny/model")
        assert values.get(sc.REQUEST_MAX_TOKENS) == local.limit
        assert (values.get(sc.REQUEST_STREAM) is True) is (consumed == "stream_outputs")
        for absent in (sc.SERVER_ADDRESS, sc.SERVER_PORT, sc.RESPONSE_ID, sc.RESPONSE_MODEL):
            assert absent not in values
    assert warned.lines == []
    SmolagentsInstrumentor().uninstrument()
    bare_result, bare_memory, bare_library = go()
    assert (result, remembered) == (bare_result, bare_memory)
    assert library.truth.calls == bare_library.truth.calls


def test_in_process_stream_left_early(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    """`TransformersModel.generate_stream` (over stand-ins) reports the prompt with its first token and one token with
    each: a stream left early has the whole prompt and the tokens read so far. (P28)
    """
    library = Library(["some words that go on and on"])
    model = make_transformers(library, monkeypatch)
    before = set(threading.enumerate())
    stream = model.generate_stream(HELLO)
    for _ in range(3):
        next(stream)
    stream.close()
    values = only_chat(observed)
    assert values[sc.USAGE_INPUT_TOKENS] == library.truth.input_tokens
    assert values[sc.USAGE_OUTPUT_TOKENS] == 3 < library.truth.output_tokens
    assert values[sc.CALL_PARTIAL] is True
    assert observed.recorder.open == 0
    wait_for(lambda: set(threading.enumerate()) <= before, "the end of the thread that generates", PATIENCE)
