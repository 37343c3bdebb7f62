"""Fixtures: otel_smol switched on with exporters in memory, and what must hold after every test."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler

from otel_smol import SmolagentsInstrumentor, garbage
from otel_smol.metrics import _live
from tests.programs import PATIENCE

CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
OF_THE_SHELL = (
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "TERM"),
    *("PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONUNBUFFERED"),
)
"""Variables by which rich and Python would write otherwise, here and in the programs that tests start."""

# How long an example takes says something of the machine only, and every run has to try the same ones. To look for
# others: `--hypothesis-profile=default`.
settings.register_profile("otel_smol", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("otel_smol")


def pytest_configure() -> None:
    """Where the tests are started from makes no difference, neither to them nor to the programs they start.

    A shell that starts them in the background, for one, lets them ignore Ctrl-C.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in OF_THE_SHELL:
        os.environ.pop(name, None)


class Recorder(SpanProcessor):
    """Keeps ended spans in order, and counts those that were only started. Before it tells, what was garbage ends."""

    def __init__(self) -> None:
        self._ended: list[ReadableSpan] = []
        self._open = 0

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self._open += 1

    def on_end(self, span: ReadableSpan) -> None:
        self._ended.append(span)
        self._open -= 1  # last: who waits in another thread until none is open finds them all

    @property
    def ended(self) -> list[ReadableSpan]:
        garbage.settle(PATIENCE)
        return self._ended

    @property
    def open(self) -> int:
        garbage.settle(PATIENCE)
        return self._open


class Observed:
    """What came out of a test: spans, metrics, log records."""

    def __init__(self, sampler: Sampler | None = None, limits: SpanLimits | None = None) -> None:
        self.recorder, self.reader, self.log_exporter = Recorder(), InMemoryMetricReader(), InMemoryLogRecordExporter()
        self.tracer_provider = TracerProvider(sampler=sampler, span_limits=limits)
        self.tracer_provider.add_span_processor(self.recorder)
        self.meter_provider = MeterProvider([self.reader])
        self.logger_provider = LoggerProvider()
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self.log_exporter))

    def instrument(self, **arguments: Any) -> None:
        SmolagentsInstrumentor().instrument(
            tracer_provider=self.tracer_provider,
            meter_provider=self.meter_provider,
            logger_provider=self.logger_provider,
            **arguments,
        )

    # --- spans

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans of ours, in the order they ended."""
        return [span for span in self.recorder.ended if _scope(span) == "otel_smol"]

    def named(self, prefix: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name.split(" ")[0] == prefix]

    @property
    def runs(self) -> list[ReadableSpan]:
        return self.named("invoke_agent")

    @property
    def run(self) -> dict[str, Any]:
        """Attributes of the one run."""
        [span] = self.runs
        return attributes(span)

    @property
    def steps(self) -> list[ReadableSpan]:
        return self.named("agent_step")

    @property
    def plans(self) -> list[ReadableSpan]:
        return self.named("plan")

    @property
    def chats(self) -> list[ReadableSpan]:
        return self.named("chat")

    @property
    def tools(self) -> list[ReadableSpan]:
        return self.named("execute_tool")

    def parent(self, span: ReadableSpan) -> str | None:
        """The name of a span's parent."""
        names = {other.context.span_id: other.name for other in self.recorder.ended if other.context}
        return names[span.parent.span_id] if span.parent else None

    def tracer(self) -> trace.Tracer:
        """The application's own tracer."""
        return self.tracer_provider.get_tracer("application")

    # --- metrics

    def metrics(self) -> list[Any]:
        """All metrics as a reader sees them now."""
        garbage.settle(PATIENCE)
        data = self.reader.get_metrics_data()
        resources = data.resource_metrics if data else ()
        return [metric for resource in resources for scope in resource.scope_metrics for metric in scope.metrics]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """All points of a metric: attributes, and value (a histogram's is its point)."""
        found = [point for metric in self.metrics() if metric.name == name for point in metric.data.data_points]
        return [(dict(point.attributes or {}), getattr(point, "value", point)) for point in found]

    def total(self, name: str, **where: Any) -> float:
        """Sum of a counter, or of a histogram's values, over the points with these attributes (dots as `__`)."""
        wanted = {key.replace("__", "."): value for key, value in where.items()}
        values: list[float] = [
            getattr(value, "sum", value)
            for point, value in self.points(name)
            if all(point.get(key) == expected for key, expected in wanted.items())
        ]
        return sum(values)

    def metric_names(self) -> set[str]:
        return {metric.name for metric in self.metrics()}

    def series(self) -> int:
        """How many series there are in all."""
        return sum(len(metric.data.data_points) for metric in self.metrics())


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """A span's attributes as a plain dict."""
    return dict(span.attributes or {})


def _scope(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope else ""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Every test begins and ends uninstrumented, with no span current and no run alive."""
    gc.freeze()  # what is there already is not searched again at the end: it would be most of a test's time
    yield
    if SmolagentsInstrumentor().is_instrumented_by_opentelemetry:
        SmolagentsInstrumentor().uninstrument()
    gc.collect()
    garbage.settle(PATIENCE)
    assert not trace.get_current_span().get_span_context().is_valid, "a span is still current"
    assert not _live, "a run is still counted as live"


@pytest.fixture
def observe() -> Callable[..., Observed]:
    """Make an `Observed` and switch otel_smol on with it."""

    def start(sampler: Sampler | None = None, limits: SpanLimits | None = None, **arguments: Any) -> Observed:
        observed = Observed(sampler, limits)
        observed.instrument(**arguments)
        return observed

    return start


@pytest.fixture
def observed(observe: Callable[..., Observed]) -> Observed:
    """otel_smol switched on, without content."""
    return observe()


@pytest.fixture
def observed_content(observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch) -> Observed:
    """otel_smol switched on, with content on spans."""
    monkeypatch.setenv(CONTENT_VARIABLE, "SPAN_ONLY")
    return observe()


class Warnings(logging.Handler):
    """Collects warnings of otel_smol and of OpenTelemetry."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(("otel_smol", "opentelemetry")):
            self.lines.append(record.getMessage())

    def of(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]


@pytest.fixture
def warned() -> Iterator[Warnings]:
    """Warnings logged during the test."""
    handler = Warnings()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)
