"""Spans of real runs, recorded in this process."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.sdk.trace import ReadableSpan

from otel_smol import SmolagentsInstrumentor
from tests.conftest import Observed
from tests.grafana import fleet
from tests.grafana.answers import Span


def record(*scenarios: Callable[[], list[fleet.Run]]) -> tuple[list[fleet.Run], list[Span]]:
    """Run scenarios; what the models counted, and the spans."""
    observed = Observed()
    observed.instrument()
    try:
        runs = [run for scenario in scenarios for run in scenario()]
    finally:
        SmolagentsInstrumentor().uninstrument()
    return runs, [as_answered(span) for span in observed.spans]


def as_answered(span: ReadableSpan) -> Span:
    """A span as the trace backend has it."""
    assert span.context is not None
    assert span.start_time is not None
    assert span.end_time is not None
    attributes = {
        name: list(value) if isinstance(value, tuple) else value for name, value in (span.attributes or {}).items()
    }
    return Span(
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
        span.name,
        span.start_time,
        span.end_time - span.start_time,
        attributes,
        {"service.name": "agents"},
    )
