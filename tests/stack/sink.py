"""An OTLP/HTTP backend in process: the judge of what a collector sends, with a switch for being down."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from .ports import free_ports
from .programs import wait_for

Value = Any
"""str, bool, int, float, a list of them, or None: what an attribute can hold."""


def value_of(value: AnyValue) -> Value:
    """As Python value, so that the type on the wire is the type in the test."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "array_value":
            return [value_of(each) for each in value.array_value.values]
        case _:
            return None


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: value_of(pair.value) for pair in pairs}


class Sink:
    """Keeps what it is sent. `stop()` and `start()` are the backend that goes down and comes back on the same port."""

    def __init__(self) -> None:
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.resource_spans: list[ResourceSpans] = []
        self.resource_metrics: list[ResourceMetrics] = []
        self.resource_logs: list[ResourceLogs] = []
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> Sink:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                sink.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # with 5, the default, a connection can wait for seconds

        def bound() -> bool:
            """After a stop, a program that another thread is starting may hold the port until it is loaded."""
            try:
                self._server = Server(("127.0.0.1", self.port), Handler)
            except OSError:
                return False
            return True

        wait_for(bound, f"port {self.port}")
        assert self._server is not None
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def take(self, path: str, body: bytes) -> None:
        with self._lock:
            if path.endswith("/v1/traces"):
                self.resource_spans += ExportTraceServiceRequest.FromString(body).resource_spans
            elif path.endswith("/v1/metrics"):
                self.resource_metrics += ExportMetricsServiceRequest.FromString(body).resource_metrics
            elif path.endswith("/v1/logs"):
                self.resource_logs += ExportLogsServiceRequest.FromString(body).resource_logs

    def spans(self) -> list[Span]:
        with self._lock:
            return [s for r in self.resource_spans for scope in r.scope_spans for s in scope.spans]

    def logs(self) -> list[LogRecord]:
        with self._lock:
            return [record for r in self.resource_logs for scope in r.scope_logs for record in scope.log_records]

    def metrics(self) -> list[tuple[Mapping[str, Value], Metric]]:
        """Each metric with the attributes of its resource."""
        with self._lock:
            return [
                (attributes_of(r.resource.attributes), metric)
                for r in self.resource_metrics
                for scope in r.scope_metrics
                for metric in scope.metrics
            ]

    def wait_for_spans(self, count: int) -> list[Span]:
        wait_for(lambda: len(self.spans()) >= count, lambda: f"{count} spans; {len(self.spans())} came")
        return self.spans()
