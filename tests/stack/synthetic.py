"""Runs of agents as OTLP, with the names of `otel_smol.semconv`: what the instrumentation sends, without an agent.

A run of n steps sends `base + (k - 1) * growth` tokens in step k.
"""

from __future__ import annotations

import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from otel_smol import semconv

Plain = str | bool | int | float | Sequence[str] | Sequence[int]
SCOPE = InstrumentationScope(name="otel_smol", version="0.1.0")
SECOND = 1_000_000_000


def any_value(value: Plain) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(array_value=ArrayValue(values=[any_value(each) for each in value]))


def pairs(attributes: Mapping[str, Plain]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def resource(service: str = "agents", instance: str = "one") -> Resource:
    return Resource(attributes=pairs({"service.name": service, "service.instance.id": instance}))


@dataclass
class Run:
    """One run of an agent; `spans()` gives them in the order in which they end, the run's own last."""

    steps: int = 3
    base: int = 1000
    growth: int = 100
    agent: str = "researcher"
    model: str = "test-model"
    state: str = "success"
    overpay: float = 1.0
    failed: bool = False
    trace_id: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))

    def step_tokens(self, number: int) -> int:
        return self.base + (number - 1) * self.growth

    @property
    def input_tokens(self) -> int:
        return sum(self.step_tokens(k) for k in range(1, self.steps + 1))

    def spans(self) -> list[Span]:
        root = secrets.token_bytes(8)
        end = time.time_ns()
        begin = end - self.steps * SECOND
        found: list[Span] = []
        for number in range(1, self.steps + 1):
            found += self._step(number, root, begin + (number - 1) * SECOND)
        return [*found, self._run(root, begin, end)]

    def _span(
        self,
        name: str,
        kind: Span.SpanKind.ValueType,
        parent: bytes,
        begin: int,
        end: int,
        attributes: Mapping[str, Plain],
    ) -> Span:
        common: dict[str, Plain] = {semconv.AGENT_NAME: self.agent, semconv.RUN_ID: self.run_id}
        return Span(
            trace_id=self.trace_id,
            span_id=secrets.token_bytes(8),
            parent_span_id=parent,
            name=name,
            kind=kind,
            start_time_unix_nano=begin,
            end_time_unix_nano=end,
            attributes=pairs({**common, **attributes}),
        )

    def _step(self, number: int, root: bytes, begin: int) -> list[Span]:
        tokens = self.step_tokens(number)
        step = self._span(
            f"agent_step {self.agent}",
            Span.SpanKind.SPAN_KIND_INTERNAL,
            root,
            begin,
            begin + SECOND,
            {
                semconv.STEP_TYPE: "action",
                semconv.STEP_NUMBER: number,
                semconv.STEP_INPUT_TOKENS: tokens,
                semconv.RUN_INPUT_TOKENS: sum(self.step_tokens(k) for k in range(1, number + 1)),
            },
        )
        fixed = min(self.base, tokens)
        chat = self._span(
            f"chat {self.model}",
            Span.SpanKind.SPAN_KIND_CLIENT,
            step.span_id,
            begin,
            begin + SECOND // 2,
            {
                semconv.OPERATION_NAME: "chat",
                semconv.PROVIDER_NAME: "openai",
                semconv.REQUEST_MODEL: self.model,
                semconv.CALL_TYPE: "action",
                semconv.STEP_NUMBER: number,
                semconv.USAGE_INPUT_TOKENS: tokens,
                semconv.USAGE_OUTPUT_TOKENS: 50,
                semconv.HISTORY_ESTIMATOR: "billed",
                semconv.HISTORY_SOURCE_TOKENS["system_prompt"]: fixed,
                semconv.HISTORY_SOURCE_TOKENS["observation"]: tokens - fixed,
                semconv.HISTORY_TOOL_NAMES: ["web_search", "_OTHER"],
                semconv.HISTORY_TOOL_TOKENS: [200, 10],
            },
        )
        return [chat, step]

    def _run(self, root: bytes, begin: int, end: int) -> Span:
        span = self._span(
            f"invoke_agent {self.agent}",
            Span.SpanKind.SPAN_KIND_INTERNAL,
            b"",
            begin,
            end,
            {
                semconv.OPERATION_NAME: "invoke_agent",
                semconv.REQUEST_MODEL: self.model,
                semconv.RUN_STATE: self.state,
                semconv.RUN_STEPS: self.steps,
                semconv.RUN_INPUT_TOKENS: self.input_tokens,
                semconv.RUN_OUTPUT_TOKENS: 50 * self.steps,
                semconv.RUN_TOTAL_INPUT_TOKENS: self.input_tokens,
                semconv.RUN_REPLAYED_TOKENS: self.input_tokens - self.base * self.steps,
                semconv.RUN_OVERPAY: self.overpay,
                semconv.RUN_REPLAY_SHARE: 0.5,
                semconv.RUN_CALLS_WITHOUT_USAGE: 0,
            },
        )
        span.span_id = root
        if self.failed:
            span.status.CopyFrom(Status(code=Status.StatusCode.STATUS_CODE_ERROR, message="the model gave up"))
        return span


def traces(spans: Iterable[Span], where: Resource | None = None) -> ExportTraceServiceRequest:
    scope = ScopeSpans(scope=SCOPE, spans=spans)
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=where or resource(), scope_spans=[scope])])


def counter(name: str, unit: str, value: int, attributes: Mapping[str, Plain], start_ns: int) -> Metric:
    """A cumulative sum as the SDK exports it."""
    point = NumberDataPoint(
        as_int=value, attributes=pairs(attributes), start_time_unix_nano=start_ns, time_unix_nano=time.time_ns()
    )
    temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    return Metric(
        name=name, unit=unit, sum=Sum(data_points=[point], aggregation_temporality=temporality, is_monotonic=True)
    )


def gauge(name: str, unit: str, value: int, attributes: Mapping[str, Plain]) -> Metric:
    point = NumberDataPoint(as_int=value, attributes=pairs(attributes), time_unix_nano=time.time_ns())
    return Metric(name=name, unit=unit, gauge=Gauge(data_points=[point]))


def metrics(found: Iterable[Metric], where: Resource | None = None) -> ExportMetricsServiceRequest:
    scope = ScopeMetrics(scope=SCOPE, metrics=found)
    return ExportMetricsServiceRequest(
        resource_metrics=[ResourceMetrics(resource=where or resource(), scope_metrics=[scope])]
    )


def send(otlp: str, message: ExportTraceServiceRequest | ExportMetricsServiceRequest) -> int:
    """Posts once, without retry, and returns the status: 200 is the collector's word that it has it."""
    signal = "traces" if isinstance(message, ExportTraceServiceRequest) else "metrics"
    request = urllib.request.Request(
        f"{otlp}/v1/{signal}", message.SerializeToString(), {"Content-Type": "application/x-protobuf"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # the collector writes to the disk first
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
