"""Questions to what arrived over OTLP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from otel_smol import semconv as sc
from otel_smol.otlp import MetricPoint, SpanData, Value


@dataclass(frozen=True)
class Tokens:
    """Input and output."""

    input: float
    output: float


def of_kind(spans: Iterable[SpanData], kind: str) -> list[SpanData]:
    """Spans of one kind (`chat`, `agent_step`, …), in the order in which they began."""
    return sorted((span for span in spans if span.name.split(" ")[0] == kind), key=lambda span: span.start)


def summed(attributes: Iterable[Mapping[str, Value]], name: str) -> int:
    """Sum of a whole number over the attributes of several spans. Absent counts nothing; any other type fails."""
    values = [each[name] for each in attributes if name in each]
    assert all(type(value) is int for value in values), f"{name}: {values}"
    return sum(value for value in values if isinstance(value, int))


def total(points: Sequence[MetricPoint], name: str, **where: str) -> float:
    """A metric's total: the last point of each of its series, added up (dots in attribute names as `__`)."""
    wanted = {key.replace("__", "."): value for key, value in where.items()}
    last: dict[object, MetricPoint] = {}
    for point in points:
        if point.name == name and wanted.items() <= point.attributes.items():
            last[repr(sorted(point.attributes.items()))] = point
    return sum((point.histogram.sum if point.histogram else point.value) or 0 for point in last.values())


def billed(attributes: Sequence[Mapping[str, Value]]) -> Tokens:
    """What anybody gets who adds up `gen_ai.usage.*` over spans."""
    return Tokens(summed(attributes, sc.USAGE_INPUT_TOKENS), summed(attributes, sc.USAGE_OUTPUT_TOKENS))


def billed_by_trace(spans: Sequence[SpanData]) -> dict[str, Tokens]:
    """The same for each trace. 0 where nothing is known."""
    traces = {span.trace_id for span in spans}
    return {trace: billed([span.attributes for span in spans if span.trace_id == trace]) for trace in traces}
