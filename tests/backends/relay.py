"""A thin HTTP relay on loopback: it passes requests on, and remembers what was sent and what was answered.

In front of a model server it knows what was billed; in front of a backend it knows which spans were sent.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_smol import otlp
from otel_smol.otlp import SpanData

SECONDS = 120.0
"""How long one answer may take."""
_HEADERS = ("Accept", "Authorization", "Content-Encoding", "Content-Type", "x-mlflow-experiment-id")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks the server itself, whatever proxy the machine is set up with."""


@dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True)
class Exchange:
    """One request and its answer."""

    path: str
    request: bytes
    answer: Answer


class Relay:
    """Passes POST requests on to one server."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream.rstrip("/")
        self._exchanges: list[Exchange] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.relay = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where to send what the server is to get."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def exchanges(self) -> list[Exchange]:
        """All so far, in the order in which they were answered."""
        with self._lock:
            return list(self._exchanges)

    def spans(self) -> list[SpanData]:
        """The spans in all requests so far that the server took."""
        bodies = [each.request for each in self.exchanges() if each.path == "/v1/traces" and each.answer.status == 200]
        return [span for body in bodies for span in otlp.spans(ExportTraceServiceRequest.FromString(body))]

    def pass_on(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Ask the server, and remember its answer."""
        request = urllib.request.Request(f"{self._upstream}{path}", body, dict(headers), method="POST")
        try:
            with _DIRECT.open(request, timeout=SECONDS) as response:
                answer = Answer(response.status, response.headers.get("Content-Type", ""), response.read())
        except urllib.error.HTTPError as refusal:
            answer = Answer(refusal.code, refusal.headers.get("Content-Type", ""), refusal.read())
        with self._lock:
            self._exchanges.append(Exchange(path, body, answer))
        return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    relay: Relay

    def handle_error(self, request: object, client_address: object) -> None:
        """A program that was stopped does not wait for its answer; whatever matters fails the test elsewhere."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, _Server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name: self.headers[name] for name in _HEADERS if name in self.headers}
        answer = self.server.relay.pass_on(self.path, headers, body)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


# --- in front of a model server --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bill:
    """What a model server says that one answer cost. None: it does not say."""

    input: int | None
    output: int | None


def bills(relay: Relay) -> list[Bill]:
    """One for each answer of the model server."""
    return [_bill(exchange.answer) for exchange in relay.exchanges() if exchange.answer.status == 200]


def _bill(answer: Answer) -> Bill:
    found = [usage for part in _parts(answer) if (usage := part.get("usage"))]
    return Bill(found[-1]["prompt_tokens"], found[-1]["completion_tokens"]) if found else Bill(None, None)


def _parts(answer: Answer) -> Iterator[dict[str, Any]]:
    """The answer itself, or the parts of a streamed one."""
    if not answer.content_type.startswith("text/event-stream"):
        yield json.loads(answer.body)
        return
    for line in answer.body.decode().splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


class StreamingRelay(Relay):
    """Makes streams with the usage on their last part, as `stream_options` asks for, of a server that leaves it out.

    The server is asked for the whole answer; its text and its bill are passed on in parts, as gateways do it.
    """

    def pass_on(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        asked = json.loads(body)
        with_usage = (asked.pop("stream_options", None) or {}).get("include_usage")
        if not asked.pop("stream", False):
            return super().pass_on(path, headers, body)
        whole = super().pass_on(path, headers, json.dumps(asked).encode())
        if whole.status != 200:
            return whole
        parts = [*stream_of(json.loads(whole.body), with_usage=bool(with_usage)), "[DONE]"]
        lines = [part if isinstance(part, str) else json.dumps(part) for part in parts]
        return Answer(200, "text/event-stream", "".join(f"data: {line}\n\n" for line in lines).encode())


def stream_of(whole: dict[str, Any], *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """The parts of a whole answer, in the shape of OpenAI's streams."""
    head = {"id": whole["id"], "object": "chat.completion.chunk", "created": whole["created"], "model": whole["model"]}
    [choice] = whole["choices"]
    message = choice["message"]
    text = message.get("content") or ""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text[start : start + 12]} for start in range(0, len(text), 12)]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(message.get("tool_calls") or ())]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if with_usage:
        yield {**head, "choices": [], "usage": whole["usage"]}
