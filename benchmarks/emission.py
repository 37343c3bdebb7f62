"""What an instrumented run emits, recorded call by call, and the bare SDK emitting the same again: the floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, get_current_span, set_span_in_context

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
class Emission:
    """Everything that one run emitted, ready to be emitted again."""

    spans: list[tuple[str, SpanKind, int | None, dict[str, Any]]] = field(default_factory=list)
    """Name, kind, position of the parent, attributes; in the order started."""
    measurements: list[tuple[Measurement, int | None]] = field(default_factory=list)
    """With the position of the span that each was recorded in."""

    @staticmethod
    def of(spans: Sequence[ReadableSpan], measurements: list[Measurement]) -> Emission:
        """From what was recorded of a run."""
        ordered = sorted(spans, key=lambda span: (span.start_time or 0, -(span.end_time or 0)))
        positions = {span.context.span_id: i for i, span in enumerate(ordered) if span.context}
        rows = [
            (
                span.name,
                span.kind,
                positions.get(span.parent.span_id) if span.parent else None,
                dict(span.attributes or {}),
            )
            for span in ordered
        ]
        return Emission(rows, [(measurement, positions.get(measurement[6])) for measurement in measurements])

    def emit(self, tracer_provider: TracerProvider, meter_provider: MeterProvider) -> None:
        """The floor: the same spans, attributes and points through the bare SDK, nothing computed."""
        tracer, meter = tracer_provider.get_tracer("floor"), meter_provider.get_meter("floor")
        instruments: dict[str, Any] = {}
        contexts: list[Context] = []
        open_spans = []
        for name, kind, parent, attributes in self.spans:
            span = tracer.start_span(name, contexts[parent] if parent is not None else None, kind)
            contexts.append(set_span_in_context(span))
            span.set_attributes(attributes)
            open_spans.append(span)
        for span in reversed(open_spans):
            span.end()
        for (kind_name, name, unit, buckets, value, attributes, _), position in self.measurements:
            instrument = instruments.get(name)
            if instrument is None:
                instrument = instruments[name] = (
                    meter.create_counter(name, unit)
                    if kind_name == "counter"
                    else meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=list(buckets) or None)
                )
            context = contexts[position] if position is not None else None
            (instrument.add if kind_name == "counter" else instrument.record)(value, attributes, context)
