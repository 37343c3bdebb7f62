"""An OTLP/HTTP receiver on loopback that keeps what arrives in memory.

    with Receiver() as receiver:
        run_something(OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
        receiver.wait_for(lambda r: any(s.name.startswith("invoke_agent") for s in r.spans()), timeout=10)

It takes protobuf, plain or compressed, and binds to a free port of 127.0.0.1 only.
"""

from __future__ import annotations

import logging
import socketserver
import threading
import zlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_smol import otlp
from otel_smol.otlp import LogData, MetricPoint, SpanData

logger = logging.getLogger("otel_smol")

CONTENT_TYPE = "application/x-protobuf"
MAX_BYTES = 64 * 1024 * 1024
"""The largest body, before and after decompression."""
_WINDOW_BITS = {"gzip": 31, "deflate": 15}
_IDLE_SECONDS = 60
"""When a connection that says nothing is given up."""


class Refused(Exception):
    """A request that cannot be taken, with the answer it gets."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Receiver:
    """Takes traces, metrics and logs. Thread-safe: what it hands out is a copy."""

    def __init__(self) -> None:
        self._spans: list[SpanData] = []
        self._points: list[MetricPoint] = []
        self._logs: list[LogData] = []
        self._callbacks: list[Callable[[Sequence[SpanData]], object]] = []
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Handler, bind_and_activate=True)
        self._server.receiver = self
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Receiver:
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), name="otel-smol-receiver", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` has to say."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def spans(self) -> list[SpanData]:
        """All spans so far, in the order they arrived."""
        with self._changed:
            return list(self._spans)

    def metrics(self) -> list[MetricPoint]:
        """All metric points so far: every export of a series is one."""
        with self._changed:
            return list(self._points)

    def logs(self) -> list[LogData]:
        """All log records so far."""
        with self._changed:
            return list(self._logs)

    def wait_for(self, predicate: Callable[[Receiver], bool], timeout: float) -> bool:
        """Wait until the predicate holds, asked again after every request; False when the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: predicate(self), timeout)

    def on_spans(self, callback: Callable[[Sequence[SpanData]], object]) -> None:
        """Call with the spans of every request, in the thread that took it, once they are in `spans()`."""
        with self._changed:
            self._callbacks.append(callback)

    def take(self, path: str, body: bytes) -> None:
        """Take the body of a request. Raises `Refused`, and then keeps nothing of it."""
        if path == "/v1/traces":
            self._take_spans(list(otlp.spans(_parse(ExportTraceServiceRequest(), body))))
        elif path == "/v1/metrics":
            points = list(otlp.metric_points(_parse(ExportMetricsServiceRequest(), body)))
            self._keep(self._points, points)
        elif path == "/v1/logs":
            self._keep(self._logs, list(otlp.log_records(_parse(ExportLogsServiceRequest(), body))))
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "only /v1/traces, /v1/metrics and /v1/logs are here")

    def _take_spans(self, spans: list[SpanData]) -> None:
        self._keep(self._spans, spans)
        with self._changed:
            callbacks = list(self._callbacks)
        for callback in callbacks:
            _call(callback, spans)

    def _keep(self, store: list[Any], items: list[Any]) -> None:
        with self._changed:
            store += items
            self._changed.notify_all()


def _call(callback: Callable[[Sequence[SpanData]], object], spans: Sequence[SpanData]) -> None:
    try:
        callback(spans)
    except Exception:  # the sender has done nothing wrong, and must not send again
        logger.exception("otel_smol: a callback of the receiver failed")


def _parse(request: Any, body: bytes) -> Any:
    try:
        request.ParseFromString(body)
    except DecodeError:
        raise Refused(HTTPStatus.BAD_REQUEST, "the body is no OTLP protobuf message of this kind") from None
    return request


def decompress(body: bytes, encoding: str) -> bytes:
    """The body as it was before `Content-Encoding`. Raises `Refused`."""
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW_BITS:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding must be gzip, deflate or identity")
    stream = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        plain = stream.decompress(body, MAX_BYTES)
    except zlib.error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the body is not {encoding}") from None
    if stream.unconsumed_tail:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {MAX_BYTES} bytes")
    if not stream.eof:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the {encoding} body is cut short")
    return plain


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the default of 5 resets connections when many processes send at once
    receiver: Receiver

    def server_bind(self) -> None:
        # HTTPServer looks up the host's name as well, which takes seconds where name resolution is broken
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is nobody's business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        try:
            body = self._body()
            kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
            if kind != CONTENT_TYPE:
                raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {CONTENT_TYPE}")
            encoding = self.headers.get("Content-Encoding", "").strip().lower()
            self.server.receiver.take(self.path.partition("?")[0], decompress(body, encoding))
        except Refused as refused:
            self._answer(refused.status, "text/plain; charset=utf-8", refused.reason.encode())
        else:
            self._answer(HTTPStatus.OK, CONTENT_TYPE, b"")  # an empty message: everything was accepted

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True  # where the body ends is unknown
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing or is no number")
        if int(length) > MAX_BYTES:
            self.close_connection = True
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {MAX_BYTES} bytes")
        return self.rfile.read(int(length))

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: stderr is the user's."""
