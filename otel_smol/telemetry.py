"""What all spans and metrics of one pair of providers share."""

from __future__ import annotations

import sys
from typing import Any

from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import TracerProvider, get_tracer
from opentelemetry.util.genai.completion_hook import load_completion_hook
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.invocation import Error
from opentelemetry.util.genai.types import ContentCapturingMode
from opentelemetry.util.genai.utils import fq_exception_type, get_content_capturing_mode

from otel_smol import semconv as sc
from otel_smol.config import Config
from otel_smol.content import text
from otel_smol.guard import guarded
from otel_smol.metrics import AGENTS, MODELS, SERVERS, Cap, Metrics
from otel_smol.version import __version__

SCOPE = "otel_smol"


class Telemetry:
    """Makes the spans of one pair of providers."""

    def __init__(
        self,
        config: Config,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: Any = None,
    ) -> None:
        self.config = config
        self.tracer_provider, self.meter_provider = tracer_provider, meter_provider
        self.handler = TelemetryHandler(
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            logger_provider=logger_provider,
            completion_hook=load_completion_hook(),
            instrumentation_scope_name=SCOPE,
            instrumentation_scope_version=__version__,
        )
        self.captures_content = False
        """Whether the user has switched content on."""
        with guarded("reading whether to capture content"):
            self.captures_content = self.handler.should_capture_content()
        on_spans = (ContentCapturingMode.SPAN_ONLY, ContentCapturingMode.SPAN_AND_EVENT)
        self.content_on_spans = self.captures_content and get_content_capturing_mode() in on_spans
        """Whether it may stand on spans. Not so where events alone, or a completion hook, are to have it."""
        self.tracer = get_tracer(SCOPE, __version__, tracer_provider)
        self.agent_cap, self.model_cap = Cap("agents", AGENTS), Cap("models", MODELS)
        self.response_model_cap = Cap("models by the name that a provider answers with", MODELS)
        self.server_cap = Cap("servers", SERVERS)
        self.metrics = Metrics(
            get_meter(SCOPE, __version__, meter_provider=meter_provider), self.agent_cap, self.model_cap
        )

    def error(self, exception: BaseException) -> Error:
        """What a span says of an exception: its class, and its text only with content on spans."""
        message, kind = "", sc.OVERFLOW if _of_generated_code(type(exception)) else fq_exception_type(exception)
        if self.content_on_spans:
            with guarded("reading an exception's text"):
                message = text(str(exception)) or ""
        with guarded("capping error types"):
            kind = self.metrics.error_cap(kind)
        return Error(message=message, type=kind)


def _of_generated_code(cls: type) -> bool:
    """Whether the model has written this class, and its name. smolagents' interpreter makes such, and keeps none."""
    return str(cls.__module__).startswith("smolagents.") and not hasattr(sys.modules.get(cls.__module__), cls.__name__)
