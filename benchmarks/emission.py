"""What an instrumented run emits, recorded call by call, and the bare SDK emitting the same again: the floor.

The floor is emitted where and when it belongs, each call's with the call and each tool's by the tool, in whatever
thread that runs: in a loop of its own it would run from a warm cache, which no instrumentation of an agent ever does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from opentelemetry import metrics
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, get_current_span, set_span_in_context
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.invocation import InferenceInvocation, ToolInvocation

T = TypeVar("T")
Measurement = tuple[str, str, str, tuple[float, ...], float, dict[str, Any], int]
"""Kind of instrument, name, unit, buckets, value, attributes, and the id of the span it was recorded in (exemplars)."""


class KeepSpans(SpanProcessor):
    """Keeps ended spans while asked to; spans are made and dropped otherwise."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] | None = None

    def on_end(self, span: ReadableSpan) -> None:
        if self.spans is not None:
            self.spans.append(span)


def providers() -> tuple[TracerProvider, MeterProvider, KeepSpans]:
    """A real SDK whose spans and points go nowhere."""
    keep, tracer_provider = KeepSpans(), TracerProvider()
    tracer_provider.add_span_processor(keep)
    return tracer_provider, MeterProvider([InMemoryMetricReader()]), keep


class RecordingMeterProvider(metrics.MeterProvider):
    """Notes every measurement; aggregates nothing."""

    def __init__(self) -> None:
        self.measurements: list[Measurement] = []

    def get_meter(self, name: str, *args: Any, **kwargs: Any) -> metrics.Meter:
        return _RecordingMeter(self.measurements)


class _RecordingMeter(metrics.NoOpMeter):
    def __init__(self, measurements: list[Measurement]) -> None:
        super().__init__("benchmark")
        self._measurements = measurements

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        return _Recording(self._measurements, "counter", name, unit, ())

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> Any:
        return _Recording(self._measurements, "histogram", name, unit, tuple(explicit_bucket_boundaries_advisory or ()))


class _Recording:
    def __init__(
        self, measurements: list[Measurement], kind: str, name: str, unit: str, buckets: tuple[float, ...]
    ) -> None:
        self._measurements, self._head = measurements, (kind, name, unit, buckets)

    def record(self, value: float, attributes: Any = None, context: Context | None = None) -> None:
        span_id = get_current_span(context).get_span_context().span_id
        self._measurements.append((*self._head, value, dict(attributes or {}), span_id))

    add = record


@dataclass
class Planned:
    """A span to be emitted, with the measurements recorded in it."""

    name: str
    kind: SpanKind
    attributes: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)


@dataclass
class Part:
    """What one step emitted."""

    step: Planned
    calls: list[Planned] = field(default_factory=list)
    tools: list[Planned] = field(default_factory=list)


class Emission:
    """Everything that one run emitted, step by step, ready to be emitted again."""

    def __init__(self, spans: Sequence[ReadableSpan], measurements: Sequence[Measurement]) -> None:
        planned: dict[int, Planned] = {}
        self.parts: list[Part] = []
        parts: dict[int, Part] = {}
        for span in sorted(spans, key=lambda span: (span.start_time or 0, -(span.end_time or 0))):
            if span.context is None:
                continue
            each = planned[span.context.span_id] = Planned(span.name, span.kind, dict(span.attributes or {}))
            if span.parent is None:
                self.run = each
            elif span.parent.span_id in parts:
                part = parts[span.parent.span_id]
                (part.tools if span.name.startswith("execute_tool") else part.calls).append(each)
            else:
                parts[span.context.span_id] = Part(each)
                self.parts.append(parts[span.context.span_id])
        for measurement in measurements:
            planned.get(measurement[6], self.run).measurements.append(measurement)


class Replay:
    """Emits a run once more, with nothing left to compute: the agent's script says when."""

    def __init__(self, emission: Emission, tracer_provider: TracerProvider, meter_provider: MeterProvider) -> None:
        tracer, meter = tracer_provider.get_tracer("floor"), meter_provider.get_meter("floor")
        steps = [each for part in emission.parts for each in (part.step, *part.calls, *part.tools)]
        heads = {head[1]: head for each in (emission.run, *steps) for head in each.measurements}
        self._tracer, self._instruments = tracer, {name: _instrument(meter, head) for name, head in heads.items()}
        self._run, self._parts = emission.run, iter(emission.parts)
        self._run_span = tracer.start_span(self._run.name, None, self._run.kind)
        self._run_context = set_span_in_context(self._run_span)
        self._step: tuple[Planned, Any] | None = None
        self._context = self._run_context
        self._tools: list[Planned] = []

    def call(self, messages: T) -> T:
        """The model is asked: the step before ends, this one begins, with its call."""
        self.end_step()
        part = next(self._parts)
        span = self._tracer.start_span(part.step.name, self._run_context, part.step.kind)
        self._step, self._context, self._tools = (part.step, span), set_span_in_context(span), part.tools
        for each in part.calls:
            self._emit(each)
        return messages

    def tool(self, *arguments: T) -> tuple[T, ...]:
        """The step's tools run."""
        tools, self._tools = self._tools, []
        for each in tools:
            self._emit(each)
        return arguments

    def end_step(self) -> None:
        """The step is over, and what is left of it."""
        self.tool()
        if self._step is not None:
            self._end(*self._step, self._context)
            self._step = None

    def end(self) -> None:
        """The run is over."""
        self.end_step()
        self._end(self._run, self._run_span, self._run_context)

    def _emit(self, planned: Planned) -> None:
        span = self._tracer.start_span(planned.name, self._context, planned.kind)
        self._end(planned, span, set_span_in_context(span))

    def _end(self, planned: Planned, span: Any, context: Context) -> None:
        span.set_attributes(planned.attributes)
        for measurement in planned.measurements:
            self._record(measurement, context)
        span.end()

    def _record(self, measurement: Measurement, context: Context) -> None:
        kind, name, _, _, value, attributes, _ = measurement
        instrument = self._instruments[name]
        (instrument.add if kind == "counter" else instrument.record)(value, attributes, context)


class LibraryReplay(Replay):
    """The same with the spans and the metrics of calls and tools made by opentelemetry-util-genai, as ours are."""

    def __init__(self, emission: Emission, tracer_provider: TracerProvider, meter_provider: MeterProvider) -> None:
        super().__init__(emission, tracer_provider, meter_provider)
        self._handler = TelemetryHandler(tracer_provider=tracer_provider, meter_provider=meter_provider)

    def _emit(self, planned: Planned) -> None:
        token = attach(self._context)
        invocation = self._begin(planned.attributes)
        invocation.suspend()
        detach(token)
        invocation.attributes.update(planned.attributes)
        for measurement in planned.measurements:
            if measurement[1].startswith("smolagents."):
                self._record(measurement, invocation.context)
        invocation.stop()

    def _begin(self, attributes: dict[str, Any]) -> InferenceInvocation | ToolInvocation:
        if "gen_ai.tool.name" in attributes:
            return self._handler.tool(attributes["gen_ai.tool.name"], tool_type="function")
        model = attributes.get("gen_ai.request.model")
        call = self._handler.inference(attributes["gen_ai.provider.name"], request_model=model)
        call.input_tokens = attributes.get("gen_ai.usage.input_tokens")
        call.output_tokens = attributes.get("gen_ai.usage.output_tokens")
        return call


def _instrument(meter: metrics.Meter, head: Measurement) -> Any:
    kind_name, name, unit, buckets = head[:4]
    if kind_name == "counter":
        return meter.create_counter(name, unit)
    return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=list(buckets) or None)
