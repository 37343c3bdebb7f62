"""What an instrumented run emits, recorded call by call, and the bare SDK emitting the same again: the floor.

The floor is emitted where it belongs, step by step between the agent's own work: in a loop of its own it would run
from a warm cache, which no instrumentation of an agent ever does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


Row = tuple[str, SpanKind, int | None, dict[str, Any]]
"""A span: name, kind, position of its parent in the same part, attributes."""


@dataclass
class Part:
    """What one step emitted."""

    spans: list[Row] = field(default_factory=list)
    measurements: list[tuple[Measurement, int | None]] = field(default_factory=list)
    """With the position of the span that each was recorded in."""


class Emission:
    """Everything that one run emitted, step by step, ready to be emitted again."""

    def __init__(self, spans: Sequence[ReadableSpan], measurements: Sequence[Measurement]) -> None:
        by_id = {span.context.span_id: span for span in spans if span.context}
        ordered = sorted(spans, key=lambda span: (span.start_time or 0, -(span.end_time or 0)))
        roots = [span for span in ordered if span.parent is None or _parent(span, by_id) is None]
        run_ids = {span.context.span_id for span in roots if span.context}
        self._parts: dict[int, Part] = {}
        positions: dict[int, tuple[int, int]] = {}
        for span in ordered:
            if span.context is None:
                continue
            part = self._parts.setdefault(_step_id(span, by_id, run_ids), Part())
            parent = positions.get(span.parent.span_id) if span.parent else None
            positions[span.context.span_id] = id(part), len(part.spans)
            within = parent[1] if parent is not None and parent[0] == id(part) else None
            part.spans.append((span.name, span.kind, within, dict(span.attributes or {})))
        for measurement in measurements:
            within_span = by_id.get(measurement[6])
            step = _step_id(within_span, by_id, run_ids) if within_span is not None else next(iter(self._parts))
            position = positions[measurement[6]][1] if within_span is not None else None
            self._parts[step].measurements.append((measurement, position))

    def replay(self, tracer_provider: TracerProvider, meter_provider: MeterProvider) -> Callable[[], None]:
        """A function that emits the next step's part at each call, with nothing left to compute.

        The first part (the run's own) goes out with the first step's.
        """
        tracer, meter = tracer_provider.get_tracer("floor"), meter_provider.get_meter("floor")
        heads = [head for part in self._parts.values() for head, _ in part.measurements]
        instruments = {head[1]: _instrument(meter, head) for head in heads}
        parts = list(self._parts.values())
        batches = iter([parts[:2], *([part] for part in parts[2:])])

        def emit() -> None:
            for part in next(batches, ()):
                _emit(part, tracer, instruments)

        return emit


def _emit(part: Part, tracer: Any, instruments: dict[str, Any]) -> None:
    contexts: list[Context] = []
    open_spans = []
    for name, kind, parent, attributes in part.spans:
        span = tracer.start_span(name, contexts[parent] if parent is not None else None, kind)
        contexts.append(set_span_in_context(span))
        span.set_attributes(attributes)
        open_spans.append(span)
    for (kind_name, name, _, _, value, attributes, _), position in part.measurements:
        context = contexts[position] if position is not None else None
        instrument = instruments[name]
        (instrument.add if kind_name == "counter" else instrument.record)(value, attributes, context)
    for span in reversed(open_spans):
        span.end()


def _instrument(meter: metrics.Meter, head: Measurement) -> Any:
    kind_name, name, unit, buckets = head[:4]
    if kind_name == "counter":
        return meter.create_counter(name, unit)
    return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=list(buckets) or None)


def _parent(span: ReadableSpan, by_id: dict[int, ReadableSpan]) -> ReadableSpan | None:
    return by_id.get(span.parent.span_id) if span.parent else None


def _step_id(span: ReadableSpan, by_id: dict[int, ReadableSpan], run_ids: set[int]) -> int:
    """The span below the run that this one belongs to; the run's own id for the run."""
    current, parent = span, _parent(span, by_id)
    while parent is not None and parent.context and parent.context.span_id not in run_ids:
        current, parent = parent, _parent(parent, by_id)
    return current.context.span_id if current.context else 0
