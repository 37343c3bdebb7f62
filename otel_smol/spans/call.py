"""`chat {model}`: one model call."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.context import set_value
from opentelemetry.util.genai.invocation import CLIENT_INFERENCE_CONTEXT_KEY, InferenceInvocation

from otel_smol import semconv as sc
from otel_smol.below import Below, client_context, without_ended_call
from otel_smol.context import InnerUsages, Scope, current_conversation, in_scope
from otel_smol.describe import AttributeValue, history_attributes
from otel_smol.guard import guarded
from otel_smol.ledger import Call, RunLedger
from otel_smol.provider import ModelFacts
from otel_smol.spans.owner import NOWHERE, end
from otel_smol.spans.step import StepSpan
from otel_smol.telemetry import Telemetry
from otel_smol.usage import Usage


class CallSpan:
    """`chat {model}`: one model call as the agent sees it."""

    def __init__(
        self,
        telemetry: Telemetry,
        model: ModelFacts,
        scope: Scope,
        step: StepSpan | None,
        *,
        suppress_all: bool,
    ) -> None:
        run = scope.run
        call_type = step.facts.type if step is not None else "other"
        self.telemetry, self.model, self.run, self.step = telemetry, model, run, step
        self.ledger = run.ledger if run is not None else RunLedger(max_steps=1)
        self.facts: Call = self.ledger.begin_call(call_type, step.facts if step is not None else None)
        self.inner_usages = InnerUsages()
        """Of calls made inside this one, by a model that delegates."""
        self.finished = False
        self.partial = False
        self.release: Callable[[], None] | None = None
        """Called when the call has ended."""
        self._leave: Callable[[], None] | None = None
        self._below = Below()
        self._invocation: InferenceInvocation = telemetry.handler.inference(
            model.provider,
            request_model=model.model_id,
            server_address=model.server_address,
            server_port=model.server_port,
            context=without_ended_call(client_context(suppress_all), scope),
            conversation_id=current_conversation(),
        )
        self._invocation.suspend()
        self.span = self._invocation.span
        self.context = set_value(
            CLIENT_INFERENCE_CONTEXT_KEY,
            self._below,
            in_scope(Scope(scope.run, scope.step, scope.tool, self.inner_usages), self._invocation.context),
        )
        with guarded("naming a model on metrics"):
            metric = self._invocation.metric_attributes
            if model.model_id:
                metric[sc.REQUEST_MODEL] = telemetry.model_cap(model.model_id)
            if (
                model.server_address
                and telemetry.server_cap(f"{model.server_address}:{model.server_port}") == sc.OVERFLOW
            ):
                metric[sc.SERVER_ADDRESS], metric[sc.SERVER_PORT] = sc.OVERFLOW, 0
            if run is not None and telemetry.config.agent_name_on_client_metrics:
                metric[sc.AGENT_NAME] = run.metric_name

    @property
    def invocation(self) -> InferenceInvocation:
        """Where request and response facts go."""
        return self._invocation

    def streamed(self, leave: Callable[[], None]) -> None:
        """The answer is a stream. `leave` ends this call where nobody reads it to its end."""
        self._leave = leave
        if self.run is not None:
            self.run.open_streams.append(self)

    def leave(self) -> None:
        """End the call of a stream that nobody will read on."""
        if self._leave is not None:
            with guarded("leaving a stream"):
                self._leave()

    def chunk(self) -> None:
        """A chunk of a streamed answer has arrived."""
        self._invocation.record_stream_chunk()

    def finish(self, usage: Usage, exception: BaseException | None = None, *, answered: bool) -> None:
        """End the call, once, and book its usage here and with every run around it."""
        if self.finished:
            return
        self.finished = True
        self.inner_usages.end()
        try:
            self._finish(usage, exception, answered)
        finally:
            end(self.span)
            self.context = NOWHERE

    def _finish(self, usage: Usage, exception: BaseException | None, answered: bool) -> None:
        self._leave = None
        if self.run is not None and self in self.run.open_streams:
            self.run.open_streams.remove(self)
        if self.release is not None:
            with guarded("letting a call's messages go"):
                self.release()
        invocation = self._invocation
        below = self._below
        with guarded("taking in what a client instrumentation has seen"):
            if below.saw_something and not usage.known:
                seen = below.usage()
                usage = seen if seen.known else usage
        with guarded("booking a model call"):
            self.ledger.end_call(self.facts, usage, answered)
            self._book_totals(usage)
        with guarded("describing a model call"):
            if usage.input_tokens is not None:
                invocation.input_tokens = usage.input_tokens
            if usage.output_tokens is not None:
                invocation.output_tokens = usage.output_tokens
            invocation.cache_read_input_tokens = usage.cache_read_tokens
            invocation.cache_write_input_tokens = usage.cache_write_tokens
            invocation.thinking_tokens = usage.reasoning_tokens
            if self.facts.compacted_tokens:
                invocation.conversation_compacted = True
            self.span.set_attributes(self._attributes())  # before the library's: a small limit drops the oldest
        with guarded("adding what a client instrumentation has seen"):
            if below.saw_something:
                invocation.enrich_from_context(below)
            if invocation.response_model_name:
                invocation.metric_attributes[sc.RESPONSE_MODEL] = self.telemetry.response_model_cap(
                    invocation.response_model_name
                )
        with guarded("noting why an answer ended"):
            _say_why_it_ended(invocation)
        with guarded("recording a model call's metrics"):
            if self.run is not None:
                self.telemetry.metrics.call_ended(
                    self.run.metric_name, self.model.model_id, self.facts, self.run.metric_tool_name
                )
        if self.step is not None:
            self.step.failed_call = exception
        with guarded("ending a model call's span"):
            if exception is None:
                invocation.stop()
            else:
                invocation.fail(self.telemetry.error(exception))

    def _book_totals(self, usage: Usage) -> None:
        run = self.run
        while run is not None:
            if run.ledger.add_total(usage.input_tokens or 0, usage.output_tokens or 0):
                self.telemetry.metrics.budget_exceeded(run.metric_name)
            run = run.parent

    def _attributes(self) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {sc.CALL_TYPE: self.facts.type}
        if self.run is not None:
            attributes[sc.AGENT_NAME] = self.run.agent.name
            attributes[sc.RUN_ID] = self.run.id
        if self.model.inference_provider:
            attributes[sc.INFERENCE_PROVIDER] = self.model.inference_provider
        if self.partial:
            attributes[sc.CALL_PARTIAL] = True
        if self.step is not None and self.step.facts.number is not None:
            attributes[sc.STEP_NUMBER] = self.step.facts.number
        history = history_attributes(self.facts)
        attributes.update(history)
        if self.step is not None:
            self.step.history = history
        return attributes


def _say_why_it_ended(invocation: InferenceInvocation) -> None:
    """In each message, too: the library has deprecated the reason there and writes null, but readers of the schema want
    one. Phoenix shows no answer without.
    """
    if not invocation.output_messages:
        return
    invocation.finish_reasons = invocation.finish_reasons or []  # else the attribute would be taken from the messages
    for message in invocation.output_messages:
        message.finish_reason = next(iter(invocation.finish_reasons), "unknown")
