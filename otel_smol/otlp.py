"""OTLP requests to plain Python: one dataclass and one function per level of nesting.

What the exporter sent is all that is read here; nothing is interpreted. Attribute values keep their types: an
integer stays an integer, an array becomes a list, a key-value list a dict. Ids are lowercase hexadecimal, as
backends show them, and empty where there is none. Times are nanoseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

Value = str | bool | int | float | bytes | None | list["Value"] | dict[str, "Value"]
Attributes = dict[str, Value]
MetricKind = Literal["gauge", "sum", "histogram", "exponential_histogram", "summary"]

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")
TEMPORALITIES = ("unspecified", "delta", "cumulative")


@dataclass(frozen=True, slots=True)
class Scope:
    """The instrumentation that made a signal."""

    name: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span."""

    name: str
    time: int
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Another span that this one refers to."""

    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class SpanData:
    """One ended span."""

    name: str
    kind: str
    """One of `KINDS`."""
    trace_id: str
    span_id: str
    parent_span_id: str
    """Empty for the root of a trace."""
    start: int
    end: int
    status: str
    """One of `STATUSES`."""
    status_message: str
    attributes: Attributes
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()
    resource: Attributes = field(default_factory=dict)
    """The attributes of the process that sent it."""
    scope: Scope = field(default_factory=Scope)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution. `bucket_counts` has one item more than `bounds`: what lies above the last one.

    The buckets of an exponential histogram are left out.
    """

    count: int
    sum: float | None
    bucket_counts: Sequence[int] = ()
    bounds: Sequence[float] = ()
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One recorded value of a metric, with the span that was current."""

    value: int | float
    time: int
    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One series of a metric at one time."""

    name: str
    kind: MetricKind
    unit: str
    attributes: Attributes
    value: int | float | None
    """None where there is a histogram."""
    histogram: Histogram | None
    start: int
    time: int
    exemplars: Sequence[Exemplar] = ()
    temporality: str = ""
    """One of `TEMPORALITIES`; empty for a gauge and a summary, which have none."""
    monotonic: bool = False
    resource: Attributes = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)


@dataclass(frozen=True, slots=True)
class LogData:
    """One log record or event."""

    body: Value
    event_name: str
    severity: str
    time: int
    trace_id: str
    span_id: str
    attributes: Attributes
    resource: Attributes = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)


# --- attributes ------------------------------------------------------------------------------------------------------


def attributes(pairs: Iterable[common_pb2.KeyValue]) -> Attributes:
    """Key-value pairs as a dict."""
    return {pair.key: value(pair.value) for pair in pairs}


def value(any_value: common_pb2.AnyValue) -> Value:
    """One value, its type kept; None when it is not set."""
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in any_value.array_value.values]
    if kind == "kvlist_value":
        return dict(attributes(any_value.kvlist_value.values))
    plain: Value = getattr(any_value, kind) if kind else None
    return plain


def _scope(scope: common_pb2.InstrumentationScope) -> Scope:
    return Scope(scope.name, scope.version)


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else names[0]


# --- traces ----------------------------------------------------------------------------------------------------------


def spans(request: ExportTraceServiceRequest) -> Iterator[SpanData]:
    """All spans of a request."""
    for resource_spans in request.resource_spans:
        resource = attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            scope = _scope(scope_spans.scope)
            for one in scope_spans.spans:
                yield span(one, resource, scope)


def span(one: trace_pb2.Span, resource: Attributes, scope: Scope) -> SpanData:
    """One span."""
    return SpanData(
        name=one.name,
        kind=_named(KINDS, one.kind),
        trace_id=one.trace_id.hex(),
        span_id=one.span_id.hex(),
        parent_span_id=one.parent_span_id.hex(),
        start=one.start_time_unix_nano,
        end=one.end_time_unix_nano,
        status=_named(STATUSES, one.status.code),
        status_message=one.status.message,
        attributes=attributes(one.attributes),
        events=[SpanEvent(e.name, e.time_unix_nano, attributes(e.attributes)) for e in one.events],
        links=[SpanLink(x.trace_id.hex(), x.span_id.hex(), attributes(x.attributes)) for x in one.links],
        resource=resource,
        scope=scope,
    )


# --- metrics ---------------------------------------------------------------------------------------------------------


def metric_points(request: ExportMetricsServiceRequest) -> Iterator[MetricPoint]:
    """All points of all metrics of a request."""
    for resource_metrics in request.resource_metrics:
        resource = attributes(resource_metrics.resource.attributes)
        for scope_metrics in resource_metrics.scope_metrics:
            scope = _scope(scope_metrics.scope)
            for metric in scope_metrics.metrics:
                yield from _metric(metric, resource, scope)


def _metric(metric: metrics_pb2.Metric, resource: Attributes, scope: Scope) -> Iterator[MetricPoint]:
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    data = getattr(metric, kind)
    temporality = (
        _named(TEMPORALITIES, data.aggregation_temporality) if hasattr(data, "aggregation_temporality") else ""
    )
    for point in data.data_points:
        yield MetricPoint(
            name=metric.name,
            kind=kind,
            unit=metric.unit,
            attributes=attributes(point.attributes),
            value=_number(point) if isinstance(point, metrics_pb2.NumberDataPoint) else None,
            histogram=None if isinstance(point, metrics_pb2.NumberDataPoint) else _histogram(point),
            start=point.start_time_unix_nano,
            time=point.time_unix_nano,
            exemplars=[_exemplar(e) for e in getattr(point, "exemplars", ())],
            temporality=temporality,
            monotonic=getattr(data, "is_monotonic", False),
            resource=resource,
            scope=scope,
        )


def _number(point: metrics_pb2.NumberDataPoint | metrics_pb2.Exemplar) -> int | float:
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def _histogram(
    point: metrics_pb2.HistogramDataPoint | metrics_pb2.ExponentialHistogramDataPoint | metrics_pb2.SummaryDataPoint,
) -> Histogram:
    if isinstance(point, metrics_pb2.SummaryDataPoint):
        return Histogram(point.count, point.sum)
    explicit = isinstance(point, metrics_pb2.HistogramDataPoint)
    return Histogram(
        count=point.count,
        sum=point.sum if point.HasField("sum") else None,
        bucket_counts=list(point.bucket_counts) if explicit else (),
        bounds=list(point.explicit_bounds) if explicit else (),
        min=point.min if point.HasField("min") else None,
        max=point.max if point.HasField("max") else None,
    )


def _exemplar(one: metrics_pb2.Exemplar) -> Exemplar:
    kept = attributes(one.filtered_attributes)
    return Exemplar(_number(one), one.time_unix_nano, one.trace_id.hex(), one.span_id.hex(), kept)


# --- logs ------------------------------------------------------------------------------------------------------------


def log_records(request: ExportLogsServiceRequest) -> Iterator[LogData]:
    """All log records of a request."""
    for resource_logs in request.resource_logs:
        resource = attributes(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            scope = _scope(scope_logs.scope)
            for one in scope_logs.log_records:
                yield _log(one, resource, scope)


def _log(one: logs_pb2.LogRecord, resource: Attributes, scope: Scope) -> LogData:
    return LogData(
        body=value(one.body),
        event_name=one.event_name,
        severity=one.severity_text,
        time=one.time_unix_nano or one.observed_time_unix_nano,
        trace_id=one.trace_id.hex(),
        span_id=one.span_id.hex(),
        attributes=attributes(one.attributes),
        resource=resource,
        scope=scope,
    )
