"""A model provider on loopback, so that smolagents' HTTP model classes are tested through their real clients.

    with ModelServer([code("x = 6 * 7"), code("final_answer(x)")]) as server:
        agent = CodeAgent(tools=[], model=openai_model(server))
        assert agent.run("Multiply.") == 42
        assert agent.monitor.total_input_token_count == server.truth.input_tokens

The server answers from a script and reports one token for every four characters of prompt and of answer. It speaks chat
completions (whole or streamed, on OpenAI's and on Azure's path) and Bedrock's Converse. The last part of this file
makes the model objects that talk to it, with every kind of retry off unless asked for.

The server itself needs the standard library only. smolagents and the providers' clients are imported when a model is
asked for, so a test may instrument before that.
"""

from __future__ import annotations

import inspect
import ipaddress
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias
from unittest import mock
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType

    from smolagents.models import (
        AmazonBedrockModel,
        AzureOpenAIModel,
        InferenceClientModel,
        LiteLLMModel,
        LiteLLMRouterModel,
        Model,
        OpenAIModel,
    )

# LiteLLM fetches a price list from the internet while it is being imported, unless told not to.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

JSON: TypeAlias = dict[str, Any]

OPENAI_MODEL = "gpt-4o"
BEDROCK_MODEL = "us.amazon.nova-pro-v1:0"
HUGGING_FACE_MODEL = "Qwen/Qwen3-Next-80B-A3B-Thinking"
SERVED_MODEL = "gpt-4o-2024-08-06"  # how answers name their model: not quite what was asked for, as in real life

_HOST = "127.0.0.1"
_PIECE = 12  # characters in a streamed chunk


# --- The script -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    """One answer of the model, and how it is delivered."""

    text: str = ""
    tool_calls: tuple[tuple[str, JSON], ...] = ()
    """(name, arguments) of each. Converse writes them as text: smolagents neither offers nor reads tools there."""
    usage: Literal["final", "running", "zero", "absent"] = "final"
    """`running`: on every chunk of a stream, counted up to there, as some providers do. `zero`: 0 tokens in, 0 out."""
    cache_read: int | None = None
    """Prompt tokens that came from the provider's cache. None: the answer has no such field. So with the next two."""
    cache_write: int | None = None
    """Prompt tokens that went into the cache."""
    reasoning: int | None = None
    """How many of the output tokens were spent on reasoning. Chat completions only."""
    finish_reason: str | None = None
    hang_up: bool = False
    """Break the connection half way through the answer."""
    pause: float = 0.0
    """Seconds before every chunk. An answer that is not streamed counts as one chunk."""


@dataclass(frozen=True)
class Failure:
    """An HTTP error in place of an answer."""

    status: int
    message: str = "The model is not available."


Entry: TypeAlias = Reply | Failure
Script: TypeAlias = "Sequence[Entry] | Callable[[Request], Entry]"
"""What to answer, in the order of the requests; or a function of the request, where threads leave the order open."""


def text(content: str, **delivery: Any) -> Reply:
    """Plain text: a plan, or something that no agent can parse."""
    return Reply(content, **delivery)


def code(source: str, thought: str = "Let me see.", **delivery: Any) -> Reply:
    """An action of a CodeAgent."""
    return Reply(f"Thought: {thought}\n<code>\n{source}\n</code>", **delivery)


def tool_call(name: str, arguments: JSON | None = None, **delivery: Any) -> Reply:
    """An action of a ToolCallingAgent. Several calls in one action: `Reply(tool_calls=(…, …))`."""
    return Reply(tool_calls=((name, arguments or {}),), **delivery)


def final_answer(answer: Any, **delivery: Any) -> Reply:
    """The last action of a ToolCallingAgent."""
    return tool_call("final_answer", {"answer": answer}, **delivery)


def rate_limited(times: int = 1) -> list[Entry]:
    """What a client hears that asks too often: `[*rate_limited(2), code(…)]`."""
    return [Failure(429, "Too many requests.")] * times


# --- What arrived, and what it cost -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A model call as it came over the wire."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: JSON

    @property
    def prompt(self) -> str:
        """All text in the messages. Images and tool schemas are not part of it: this provider gives them away."""
        return "".join(part for message in self.body["messages"] for part in _texts(message["content"]))


def _texts(content: str | list[JSON] | None) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    else:
        yield from (part.get("text", "") for part in content or ())


@dataclass(frozen=True)
class Truth:
    """What the model did and what it said that this cost. Every total is held against it."""

    attempts: int = 0
    """Requests, whatever became of them."""
    calls: int = 0
    """Requests that got an answer, even if only half of it."""
    calls_with_usage: int = 0
    """Answers sent up to the place where they say what they cost. Only these add to the tokens. To a client that stops
    reading but keeps the connection open, as LiteLLM does, the whole answer is sent all the same."""
    input_tokens: int = 0
    """The whole prompt, cached or not."""
    output_tokens: int = 0
    reasoning: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def calls_without_usage(self) -> int:
        return self.calls - self.calls_with_usage


def tokens(content: str) -> int:
    """The tokenizer of this provider."""
    return len(content) // 4


# --- The server -------------------------------------------------------------------------------------------------------


class ModelServer:
    """Answers model calls on loopback, from a script, as long as its `with` block lasts."""

    def __init__(self, script: Script, *, model: str = SERVED_MODEL) -> None:
        self.model = model
        self.requests: list[Request] = []
        self.faults: list[BaseException] = []
        self._script = script if callable(script) else _in_order(script)
        self._truth = Truth()
        self._lock = threading.RLock()
        self._http = _HTTPServer(self)
        # The interval is how long leaving the block may have to wait.
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._http.server_port}"

    @property
    def truth(self) -> Truth:
        """As of now: the object does not change afterwards."""
        return self._truth

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        if self.faults:
            raise self.faults[0] from error

    def next_entry(self, request: Request) -> tuple[int, Entry]:
        """The number of this attempt, and what the script says to it."""
        with self._lock:
            self.requests.append(request)
            entry = self._script(request)
            self._add(attempts=1, calls=int(isinstance(entry, Reply)))
            return self._truth.attempts, entry

    def add_usage(self, usage: _Usage) -> None:
        """To be called before the bytes that say it go out: once the client has them, a test may look at the truth."""
        self._add(calls_with_usage=1, **_only_known(asdict(usage)))

    def _add(self, **more: int) -> None:
        with self._lock:
            sums = {name: getattr(self._truth, name) + amount for name, amount in more.items()}
            self._truth = replace(self._truth, **sums)


def _in_order(entries: Sequence[Entry]) -> Callable[[Request], Entry]:
    left = iter(entries)
    # No client repeats a request after a 400, so a script that is too short shows at once.
    return lambda request: next(left, Failure(400, "The script has no reply left."))


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for answers that are still under way: afterwards the truth stands
    request_queue_size = 64  # many agents may start in the same instant

    def __init__(self, models: ModelServer) -> None:
        self.models = models
        super().__init__((_HOST, 0), _Handler)

    def server_bind(self) -> None:
        """Without the look-up of its own name that HTTPServer makes, which may ask a name server and take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = _HOST, int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Keeps the error for the test. That one side leaves in the middle is none: tests do that on purpose."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError):
            self.models.faults.append(error)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request and closes the connection: none is left over when the server stops."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # for a client that connects and says nothing
    disable_nagle_algorithm = True  # a stream is many small writes
    server: _HTTPServer

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing. Tests read `ModelServer.requests`."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        api = next((api for api in _APIS if api.path.fullmatch(urlsplit(self.path).path)), None)
        if api is None:
            self._send_json(404, {"message": f"Nothing is served at {self.path}."})
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        models, request = self.server.models, Request(self.path, headers, body)
        number, entry = models.next_entry(request)
        if isinstance(entry, Failure):
            self._send_json(entry.status, api.error(entry))
        else:
            self._send_answer(api.answer(request, entry, f"call-{number}", models.model), entry)

    def _send_answer(self, answer: _Answer, reply: Reply) -> None:
        if isinstance(answer.content, list):
            self._send_stream(answer.content, answer.usage, reply)
            return
        time.sleep(reply.pause)
        if answer.usage and not reply.hang_up:
            self.server.models.add_usage(answer.usage)
        self._send_json(200, answer.content, hang_up=reply.hang_up)

    def _send_stream(self, chunks: list[JSON], usage: _Usage | None, reply: Reply) -> None:
        # In HTTP chunks, so that the client can tell the end of the answer from a broken connection.
        self._send_head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        for number, chunk in enumerate(chunks, start=1):
            time.sleep(reply.pause)
            if reply.hang_up and number > len(chunks) // 2:
                raise ConnectionAbortedError
            if usage and number == len(chunks):
                self.server.models.add_usage(usage)
            self._send_event(json.dumps(chunk))
        self._send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _send_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))

    def _send_json(self, status: int, content: JSON, *, hang_up: bool = False) -> None:
        data = json.dumps(content).encode()
        self._send_head(status, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        if hang_up:
            self.wfile.write(data[: len(data) // 2])
            raise ConnectionAbortedError
        self.wfile.write(data)

    def _send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        # OpenAI's client would wait half a second before it tries again, but does as the server wishes.
        for name, value in {**headers, "Connection": "close", "Retry-After-Ms": "1"}.items():
            self.send_header(name, value)
        self.end_headers()


# --- What goes over the wire ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Usage:
    """What an answer costs, in the words of `Truth`. None: this answer has no such field."""

    input_tokens: int
    output_tokens: int
    reasoning: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


@dataclass(frozen=True)
class _Answer:
    """A reply in the words of an API."""

    content: JSON | list[JSON]
    """One object, or the chunks of a stream."""
    usage: _Usage | None
    """What the content says that the call cost; in a stream, with its last chunk. None: it does not say."""


class _Api(Protocol):
    path: re.Pattern[str]

    def answer(self, request: Request, reply: Reply, call_id: str, model: str) -> _Answer: ...

    def error(self, failure: Failure) -> JSON: ...


def _told(content: JSON, reply: Reply, usage: _Usage) -> _Usage | None:
    return usage if "usage" in content and reply.usage != "zero" else None


def _only_known(amounts: dict[str, int | None]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount is not None}


def _measure(request: Request, reply: Reply) -> _Usage:
    written = reply.text + "".join(name + json.dumps(arguments) for name, arguments in reply.tool_calls)
    return _Usage(tokens(request.prompt), tokens(written), reply.reasoning, reply.cache_read, reply.cache_write)


class _ChatCompletions:
    """OpenAI's API, which most servers speak. Azure has its own path to it, and Hugging Face's client finds it here."""

    path = re.compile(r"(/v1|/openai/deployments/[^/]+)/chat/completions")

    def answer(self, request: Request, reply: Reply, call_id: str, model: str) -> _Answer:
        reply = replace(reply, text=_until(request.body.get("stop"), reply.text))
        usage = _measure(request, reply)
        head = {"id": f"chatcmpl-{call_id}", "created": int(time.time()), "model": model}
        if request.body.get("stream"):
            chunks = list(self._chunks(head, reply, usage, request.body.get("stream_options") or {}))
            return _Answer(chunks, _told(chunks[-1], reply, usage))
        whole = self._whole(head, reply, usage)
        return _Answer(whole, _told(whole, reply, usage))

    def error(self, failure: Failure) -> JSON:
        return {"error": {"message": failure.message, "type": "error", "code": str(failure.status)}}

    def _whole(self, head: JSON, reply: Reply, usage: _Usage) -> JSON:
        message: JSON = {"role": "assistant", "content": reply.text}
        if reply.tool_calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [
                _function(head, index, name, json.dumps(arguments))
                for index, (name, arguments) in enumerate(reply.tool_calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply)}
        return {**head, "object": "chat.completion", "choices": [choice], **_chat_usage(reply, usage)}

    def _chunks(self, head: JSON, reply: Reply, usage: _Usage, options: JSON) -> Iterator[JSON]:
        head = {**head, "object": "chat.completion.chunk"}
        written = ""
        for delta, more in _deltas(head, reply):
            written += more
            so_far = replace(usage, output_tokens=tokens(written), reasoning=None)
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            yield {**head, "choices": [choice], **(_chat_usage(reply, so_far) if reply.usage == "running" else {})}
        choice = {"index": 0, "delta": {}, "finish_reason": _finish_reason(reply)}
        if reply.usage == "running":
            yield {**head, "choices": [choice], **_chat_usage(reply, usage)}
            return
        yield {**head, "choices": [choice]}
        if options.get("include_usage") and reply.usage != "absent":
            yield {**head, "choices": [], **_chat_usage(reply, usage)}


def _deltas(head: JSON, reply: Reply) -> Iterator[tuple[JSON, str]]:
    """What the chunks of a stream add, and the text of the model in it."""
    yield {"role": "assistant", "content": ""}, ""
    for piece in _pieces(reply.text):
        yield {"content": piece}, piece
    for index, (name, arguments) in enumerate(reply.tool_calls):
        yield {"tool_calls": [{"index": index, **_function(head, index, name, "")}]}, name
        for piece in _pieces(json.dumps(arguments)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, piece


def _pieces(content: str) -> list[str]:
    return [content[start : start + _PIECE] for start in range(0, len(content), _PIECE)]


def _function(head: JSON, index: int, name: str, arguments: str) -> JSON:
    return {"id": f"{head['id']}-{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _chat_usage(reply: Reply, usage: _Usage) -> JSON:
    if reply.usage == "absent":
        return {}
    if reply.usage == "zero":
        return {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
    said: JSON = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    cache = _only_known({"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write})
    if cache:
        said["prompt_tokens_details"] = cache
    if usage.reasoning is not None:
        said["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return {"usage": said}


def _until(stop: str | list[str] | None, content: str) -> str:
    """Real models end at a stop sequence, and do not charge for what would have come after it."""
    for sequence in [stop] if isinstance(stop, str) else stop or ():
        content = content.split(sequence)[0]
    return content


_CONVERSE_ERRORS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}


class _Converse:
    """Bedrock's API. smolagents uses it without streams and without tools."""

    path = re.compile(r"/model/[^/]+/converse")

    def answer(self, request: Request, reply: Reply, call_id: str, model: str) -> _Answer:
        reply = replace(reply, text=_with_tool_calls(reply), tool_calls=(), reasoning=None)
        usage = _measure(request, reply)
        content: JSON = {
            "output": {"message": {"role": "assistant", "content": [{"text": reply.text}]}},
            "stopReason": reply.finish_reason or "end_turn",
            "metrics": {"latencyMs": 1},
            **_converse_usage(reply, usage),
        }
        return _Answer(content, _told(content, reply, usage))

    def error(self, failure: Failure) -> JSON:
        return {"__type": _CONVERSE_ERRORS.get(failure.status, "ModelErrorException"), "message": failure.message}


def _with_tool_calls(reply: Reply) -> str:
    """As smolagents' own prompt teaches it to models that know of no tools. One call at most can be read back."""
    calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in reply.tool_calls]
    return reply.text + "".join(f"Action:\n{call}" for call in calls)


def _converse_usage(reply: Reply, usage: _Usage) -> JSON:
    if reply.usage == "absent":
        return {}
    if reply.usage == "zero":
        return {"usage": {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}}
    # Unlike OpenAI's, Bedrock's input tokens leave out those that were read from or written to the cache.
    cached = (usage.cache_read or 0) + (usage.cache_write or 0)
    said = {
        "inputTokens": usage.input_tokens - cached,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
    }
    cache = {"cacheReadInputTokens": usage.cache_read, "cacheWriteInputTokens": usage.cache_write}
    return {"usage": {**said, **_only_known(cache)}}


_APIS: tuple[_Api, ...] = (_ChatCompletions(), _Converse())


# --- The model classes of smolagents ----------------------------------------------------------------------------------
#
# All take `retry` (whether smolagents tries again when it is rate limited; how often and when, it reads from its module
# at this moment) and any argument of the class. Those whose client can try again on its own take `client_retries`.


def openai_model(
    server: ModelServer, model_id: str = OPENAI_MODEL, *, retry: bool = False, client_retries: int = 0, **options: Any
) -> OpenAIModel:
    from smolagents import OpenAIModel

    return OpenAIModel(
        model_id=model_id,
        api_base=f"{server.url}/v1",
        api_key="unused",
        client_kwargs={"max_retries": client_retries},
        **_retry(retry),
        **options,
    )


def azure_model(
    server: ModelServer, model_id: str = OPENAI_MODEL, *, retry: bool = False, client_retries: int = 0, **options: Any
) -> AzureOpenAIModel:
    from smolagents import AzureOpenAIModel

    return AzureOpenAIModel(
        model_id=model_id,
        azure_endpoint=server.url,
        api_key="unused",
        api_version="2024-10-21",
        client_kwargs={"max_retries": client_retries},
        **_retry(retry),
        **options,
    )


def litellm_model(
    server: ModelServer, model_id: str = OPENAI_MODEL, *, retry: bool = False, client_retries: int = 0, **options: Any
) -> LiteLLMModel:
    from smolagents import LiteLLMModel

    return LiteLLMModel(
        model_id=f"openai/{model_id}",
        api_base=f"{server.url}/v1",
        api_key="unused",
        max_retries=client_retries,
        **_retry(retry),
        **options,
    )


def litellm_router_model(
    server: ModelServer, model_id: str = OPENAI_MODEL, *, retry: bool = False, client_retries: int = 0, **options: Any
) -> LiteLLMRouterModel:
    from smolagents import LiteLLMRouterModel

    place = {"api_base": f"{server.url}/v1", "api_key": "unused"}
    deployment = {"model": f"openai/{model_id}", "max_retries": 0, **place}
    return LiteLLMRouterModel(
        model_id="group",
        model_list=[{"model_name": "group", "litellm_params": deployment}],
        client_kwargs={"num_retries": client_retries},
        # Again, since the class sends these with every call, None or not, and what is sent outweighs the deployment's.
        **place,
        **_retry(retry),
        **options,
    )


def inference_client_model(
    server: ModelServer, model_id: str = HUGGING_FACE_MODEL, *, retry: bool = False, **options: Any
) -> InferenceClientModel:
    from huggingface_hub import InferenceClient, constants
    from smolagents import InferenceClientModel

    constants.HF_HUB_DISABLE_TELEMETRY = True  # otherwise it asks the Hub how to tell which program it runs in
    # Made by hand: given a `base_url`, the class passes it on together with a model, which its client refuses.
    client = InferenceClient(base_url=server.url, api_key="unused")
    return InferenceClientModel(model_id=model_id, client=client, **_retry(retry), **options)


def bedrock_model(
    server: ModelServer,
    model_id: str = BEDROCK_MODEL,
    *,
    retry: bool = False,
    client_retries: int = 0,
    mended: bool = True,
    **options: Any,
) -> AmazonBedrockModel:
    """Mended, since the class as it is cannot be used at all; `mended=False` shows that."""
    from botocore.config import Config
    from smolagents import AmazonBedrockModel

    client_kwargs = {
        "region_name": "us-east-1",
        "endpoint_url": server.url,
        "aws_access_key_id": "unused",
        "aws_secret_access_key": "unused",
        "config": Config(retries={"total_max_attempts": 1 + client_retries, "mode": "standard"}),
    }
    model = AmazonBedrockModel(model_id=model_id, client_kwargs=client_kwargs, **_retry(retry), **options)
    if mended:
        _mend(model.client)
    return model


def _mend(client: Any) -> None:
    """Makes up for two faults of the class where it meets its client.

    Since 1.23 it insists on an entry of the answer that Bedrock does not have (huggingface/smolagents#1941), and it has
    always passed the tools of a ToolCallingAgent on under names that the client refuses (huggingface/smolagents#1432).
    """

    def drop_tools(params: JSON, **_: object) -> None:
        params.pop("tools", None)
        params.pop("tool_choice", None)

    def add_tool_calls(parsed: JSON, **_: object) -> None:
        if "output" in parsed:
            parsed["output"]["message"].setdefault("tool_calls", None)

    client.meta.events.register("before-parameter-build.bedrock-runtime.Converse", drop_tools)
    client.meta.events.register("after-call.bedrock-runtime.Converse", add_tool_calls)


def _retry(wanted: bool) -> JSON:
    from smolagents.models import ApiModel

    # Before 1.23 smolagents never tried again, and took the argument for one of the provider.
    return {"retry": wanted} if "retry" in inspect.signature(ApiModel.__init__).parameters else {}


MODELS: dict[str, Callable[..., Model]] = {
    "openai": openai_model,
    "azure": azure_model,
    "litellm": litellm_model,
    "litellm_router": litellm_router_model,
    "inference_client": inference_client_model,
    "bedrock": bedrock_model,
}
"""For parametrized tests."""


# --- The guard --------------------------------------------------------------------------------------------------------


@contextmanager
def loopback_only() -> Iterator[None]:
    """Whatever leaves this machine fails, even the look-up of a name. A proxy is not used for loopback."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse_unless_loopback(address[0])
        connect(self, address)

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_unless_loopback(host)
        return look_up(host, *args, **kwargs)

    with (
        mock.patch.object(socket.socket, "connect", guarded_connect),
        mock.patch.object(socket, "getaddrinfo", guarded_look_up),
        mock.patch.dict(os.environ, {"NO_PROXY": _HOST, "no_proxy": _HOST}),
    ):
        yield


def _refuse_unless_loopback(host: str | bytes | None) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "localhost"):
        return
    try:
        local = ipaddress.ip_address(str(name)).is_loopback
    except ValueError:
        local = False
    if not local:
        raise OSError(f"This test may talk to loopback only, not to {name}.")
