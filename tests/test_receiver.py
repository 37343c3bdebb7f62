"""The receiver: what it takes, what it refuses, and what it makes of it."""

from __future__ import annotations

import gzip
import http.client
import threading
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_smol import receiver as receiver_module
from otel_smol.otlp import MetricPoint, Scope
from otel_smol.receiver import CONTENT_TYPE, Receiver
from tests.programs import PATIENCE

RESOURCE = Resource({"service.name": "test", "process.pid": 7})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def post(
    receiver: Receiver, path: str, body: bytes, content_type: str = CONTENT_TYPE, **headers: str
) -> tuple[int, bytes]:
    """Status and body of the answer."""
    connection = http.client.HTTPConnection(urlsplit(receiver.endpoint).netloc, timeout=PATIENCE)
    try:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request("POST", path, body, {"Content-Type": content_type, **named})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def one_span(name: str = "a") -> bytes:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(name=name)
    return bytes(request.SerializeToString())


# --- what the exporters send -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(Compression))
def test_spans(receiver: Receiver, compression: Compression) -> None:
    """A span arrives whole: ids, times, status, links, events, and attributes of every type."""
    provider = TracerProvider(resource=RESOURCE)
    exporter = OTLPSpanExporter(f"{receiver.endpoint}/v1/traces", compression=compression, timeout=PATIENCE)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("scope", "1.2")
    values: dict[str, Any] = {"s": "x", "b": True, "i": 3, "d": 3.0, "n": [1, 2], "t": ["x", "y"]}
    with tracer.start_as_current_span("parent") as parent:
        other = trace.Link(parent.get_span_context(), {"why": "test"})
        with tracer.start_as_current_span("child", kind=trace.SpanKind.CLIENT, links=[other], attributes=values) as one:
            one.add_event("happened", {"n": 1}, timestamp=5)
            one.set_status(trace.StatusCode.ERROR, "text")
    provider.shutdown()
    child, root = receiver.spans()
    assert (child.name, child.kind, child.status, child.status_message) == ("child", "client", "error", "text")
    assert child.attributes == values
    assert [type(child.attributes[key]) for key in "bid"] == [bool, int, float]
    assert (child.parent_span_id, root.parent_span_id) == (root.span_id, "")
    assert child.trace_id == root.trace_id == f"{parent.get_span_context().trace_id:032x}"
    assert child.links[0].span_id == root.span_id
    assert child.links[0].attributes == {"why": "test"}
    assert (child.events[0].name, child.events[0].time, child.events[0].attributes) == ("happened", 5, {"n": 1})
    assert 0 < root.start <= child.start <= child.end <= root.end
    assert child.scope == Scope("scope", "1.2")
    assert child.resource == {"service.name": "test", "process.pid": 7}


def metrics_of(receiver: Receiver, **arguments: Any) -> dict[str, MetricPoint]:
    """The points of one counter, one gauge and one histogram, sent by the SDK."""
    exporter = OTLPMetricExporter(f"{receiver.endpoint}/v1/metrics", timeout=PATIENCE)
    reader = PeriodicExportingMetricReader(exporter)
    provider = MeterProvider([reader], resource=RESOURCE, **arguments)
    meter = provider.get_meter("scope")
    meter.create_counter("count", "{thing}").add(2, {"k": "v"})
    meter.create_gauge("level").set(0.5)
    tracer = TracerProvider().get_tracer("application")
    with tracer.start_as_current_span("current"):
        histogram = meter.create_histogram("sizes", "By", explicit_bucket_boundaries_advisory=[1.0, 10.0])
        for value in (0.5, 5.0, 50.0):
            histogram.record(value)
    provider.shutdown()
    return {point.name: point for point in receiver.metrics()}


def test_metrics(receiver: Receiver) -> None:
    """A counter, a gauge and a histogram arrive with unit, attributes, times and exemplars."""
    points = metrics_of(receiver)
    count, level, sizes = points["count"], points["level"], points["sizes"]
    assert (count.kind, count.unit, count.value, count.attributes) == ("sum", "{thing}", 2, {"k": "v"})
    assert (count.temporality, count.monotonic, type(count.value)) == ("cumulative", True, int)
    assert 0 < count.start <= count.time
    assert (level.kind, level.value, level.temporality) == ("gauge", 0.5, "")
    assert sizes.value is None
    assert sizes.histogram is not None
    assert (sizes.histogram.count, sizes.histogram.sum) == (3, 55.5)
    assert (sizes.histogram.bounds, sizes.histogram.bucket_counts) == ([1.0, 10.0], [1, 1, 1])
    assert (sizes.histogram.min, sizes.histogram.max) == (0.5, 50.0)
    assert {exemplar.value for exemplar in sizes.exemplars} == {0.5, 5.0, 50.0}
    assert all(len(exemplar.trace_id) == 32 for exemplar in sizes.exemplars)
    assert sizes.resource["service.name"] == "test"


def test_exponential_histogram(receiver: Receiver) -> None:
    """Of an exponential histogram count and sum are kept."""
    sizes = metrics_of(
        receiver, views=[View(instrument_name="sizes", aggregation=ExponentialBucketHistogramAggregation())]
    )["sizes"]
    assert sizes.kind == "exponential_histogram"
    assert sizes.histogram is not None
    assert (sizes.histogram.count, sizes.histogram.sum, sizes.histogram.bucket_counts) == (3, 55.5, ())


def test_summary_and_metric_without_data(receiver: Receiver) -> None:
    """A summary gives count and sum; a metric without data gives nothing."""
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add(name="nothing")
    metrics.add(name="old").summary.data_points.add(count=2, sum=3.0)
    assert post(receiver, "/v1/metrics", request.SerializeToString())[0] == 200
    [point] = receiver.metrics()
    assert point.histogram is not None
    assert (point.name, point.kind, point.histogram.count, point.histogram.sum) == ("old", "summary", 2, 3.0)


def test_logs(receiver: Receiver) -> None:
    """A log record arrives, with a nested body."""
    provider = LoggerProvider(RESOURCE)
    exporter = OTLPLogExporter(f"{receiver.endpoint}/v1/logs", timeout=PATIENCE)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    provider.get_logger("scope").emit(event_name="event", body={"a": [1, {"b": None}]}, attributes={"n": 1})
    provider.shutdown()
    [record] = receiver.logs()
    assert (record.event_name, record.body, record.attributes) == ("event", {"a": [1, {"b": None}]}, {"n": 1})
    assert record.time > 0


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/traces", b"\xff\xff no protobuf", {}, 400),
        ("/v1/metrics", b"\xff\xff no protobuf", {}, 400),
        ("/v1/logs", b"\xff\xff no protobuf", {}, 400),
        ("/v1/traces", one_span(), {"Content_Encoding": "gzip"}, 400),
        ("/v1/traces", gzip.compress(one_span(), mtime=0)[:-9], {"Content_Encoding": "gzip"}, 400),
        ("/v1/traces", gzip.compress(b"\xff\xff no protobuf", mtime=0), {"Content_Encoding": "gzip"}, 400),
        ("/v1/traces", one_span(), {"Content_Encoding": "br"}, 415),
        ("/v1/traces", b"{}", {"content_type": "application/json"}, 415),
        ("/v1/traces", b"", {"Content_Length": "many"}, 411),
        ("/v1/traces", b"", {"Content_Length": str(receiver_module.MAX_BYTES + 1)}, 413),
        ("/v2/traces", one_span(), {}, 404),
    ],
)
def test_refused(receiver: Receiver, path: str, body: bytes, headers: dict[str, str], status: int) -> None:
    """What it cannot take is refused with the right status and a sentence, nothing is kept, and it goes on."""
    found, reason = post(receiver, path, body, **headers)
    assert found == status
    assert reason
    assert not receiver.spans()
    assert post(receiver, "/v1/traces", one_span()) == (200, b"")
    assert len(receiver.spans()) == 1


def test_bomb(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small body that becomes a large one is refused before it does."""
    monkeypatch.setattr(receiver_module, "MAX_BYTES", 10_000)
    bomb = zlib.compress(b"\0" * 1_000_000)
    assert post(receiver, "/v1/traces", bomb, Content_Encoding="deflate")[0] == 413


def test_only_post(receiver: Receiver) -> None:
    """There is nothing to get."""
    connection = http.client.HTTPConnection(urlsplit(receiver.endpoint).netloc, timeout=PATIENCE)
    connection.request("GET", "/v1/traces")
    assert connection.getresponse().status == 501
    connection.close()


def test_connection_is_kept(receiver: Receiver) -> None:
    """Several requests, a refused one among them, go over one connection."""
    connection = http.client.HTTPConnection(urlsplit(receiver.endpoint).netloc, timeout=PATIENCE)
    statuses = []
    for body in (one_span(), b"\xff", one_span()):
        connection.request("POST", "/v1/traces", body, {"Content-Type": CONTENT_TYPE})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    assert statuses == [200, 400, 200]


# --- waiting and watching --------------------------------------------------------------------------------------------


def test_wait_for(receiver: Receiver) -> None:
    """Waiting ends when the predicate holds, or when the time is up."""
    assert not receiver.wait_for(lambda r: bool(r.spans()), timeout=0.01)
    timer = threading.Timer(0.05, post, (receiver, "/v1/traces", one_span()))
    timer.start()
    assert receiver.wait_for(lambda r: bool(r.spans()), timeout=PATIENCE)
    timer.join()


def test_on_spans(receiver: Receiver) -> None:
    """A callback sees each batch; one that fails harms neither the sender nor the next one."""
    seen: list[str] = []
    receiver.on_spans(lambda spans: 1 / 0)
    receiver.on_spans(lambda spans: seen.extend(span.name for span in spans))
    assert post(receiver, "/v1/traces", one_span("a"))[0] == 200
    assert post(receiver, "/v1/traces", one_span("b"))[0] == 200
    assert seen == ["a", "b"]


def test_many_at_once(receiver: Receiver) -> None:
    """Nothing is lost when several processes send at once."""
    threads = [threading.Thread(target=lambda: post(receiver, "/v1/traces", one_span())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receiver.spans()) == 16


def test_without_context_manager() -> None:
    """One that was never started can be closed."""
    receiver = Receiver()
    assert receiver.endpoint.startswith("http://127.0.0.1:")
    receiver.__exit__(None, None, None)
