"""Ledger facts to spans and metrics: the only module that emits.

`chat`, `execute_tool` and `invoke_agent` go through `opentelemetry-util-genai`; steps, plans and everything named
`smolagents.*` directly through the API. No span is current longer than a call of ours lasts: whoever runs
something inside one attaches `context` around it.
"""

from __future__ import annotations

import sys
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context, get_current, set_value
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.util.genai.completion_hook import load_completion_hook
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.invocation import (
    CLIENT_INFERENCE_CONTEXT_KEY,
    Error,
    InferenceInvocation,
    LocalAgentInvocation,
    ToolInvocation,
)
from opentelemetry.util.genai.types import ContentCapturingMode, InputMessage, OutputMessage
from opentelemetry.util.genai.utils import fq_exception_type, get_content_capturing_mode

from otel_smol import semconv as sc
from otel_smol.below import Below, client_context, without_ended_call
from otel_smol.config import Config
from otel_smol.content import text
from otel_smol.context import InnerUsages, Scope, current_conversation, current_scope, in_scope
from otel_smol.describe import AttributeValue, fit_attributes, history_attributes, ratios
from otel_smol.guard import guarded
from otel_smol.ledger import Call, RunLedger, Step
from otel_smol.metrics import AGENTS, MODELS, SERVERS, Cap, LiveRun, Metrics
from otel_smol.provider import ModelFacts
from otel_smol.usage import Usage
from otel_smol.version import __version__

SCOPE = "otel_smol"
_NOWHERE = Context()
"""A context holds the scope, and the scope the span that made it: what has ended lets go of its context, or each step
would be a cycle that keeps a whole prompt alive until the collector comes round."""


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What a run's span says of its agent."""

    name: str
    type: str
    max_steps: int | None
    model_id: str | None
    description: str | None
    tools: frozenset[str]
    turn_group: str


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


class Owner:
    """Whom steps and calls belong to: a run, or an agent whose steps are driven by hand and that has no run."""

    def __init__(
        self, telemetry: Telemetry, agent: AgentFacts, ledger: RunLedger, parent: Owner | None, subject: object
    ) -> None:
        self.telemetry, self.agent, self.ledger, self.parent = telemetry, agent, ledger, parent
        self._subject = weakref.ref(subject)
        self.last_error: BaseException | None = None
        """The last one that a step ended with."""
        self.id = uuid.uuid4().hex
        self.metric_name = telemetry.agent_cap(agent.name)
        self.open_steps: list[StepSpan] = []
        self.open_streams: list[CallSpan] = []
        """Calls whose answer is being streamed. smolagents does not close a stream when its own consumer leaves."""
        self.asks_with_its_memory = False
        """Whether a prompt of the agent's had messages that its memory wrote."""
        self.schema_characters: dict[tuple[int, ...], int] = {}
        """Sizes of tool schemas by the tools offered: the same at each step."""

    @property
    def subject(self) -> Any:
        """The agent object itself."""
        return self._subject()

    def step_context(self) -> Context:
        """What a step's span is a child of."""
        return in_scope(Scope(self))

    def leave_streams(self, step: StepSpan | None = None) -> None:
        """End the calls of a step, or all, whose streams nobody will read on: with what they have reported so far."""
        for call in list(self.open_streams):
            if step is None or call.step is step:
                call.leave()

    def metric_tool_name(self, tool: str) -> str:
        """A tool's name on metrics: its own only if the agent really has it."""
        if tool in self.agent.tools or tool == "python_interpreter":
            return self.telemetry.metrics.tool_cap(tool)
        return sc.OVERFLOW


class RunSpan(Owner):
    """`invoke_agent {agent}`: one run, from its first step to the end of its generator."""

    def __init__(
        self,
        telemetry: Telemetry,
        agent: AgentFacts,
        ledger: RunLedger,
        parent: Owner | None,
        subject: object,
        previous: SpanContext | None,
    ) -> None:
        super().__init__(telemetry, agent, ledger, parent, subject)
        self.reached_max_steps = False
        self.finished = False
        self._invocation: LocalAgentInvocation = telemetry.handler.invoke_local_agent(
            request_model=agent.model_id,
            agent_name=agent.name,
            context=without_ended_call(get_current(), current_scope()),
            conversation_id=current_conversation(),
        )
        self._invocation.suspend()
        self.span = self._invocation.span
        self.context = in_scope(Scope(self), self._invocation.context)
        if previous is not None:
            self.span.add_link(previous)
        self._live: LiveRun | None = None
        with guarded("recording the start of a run"):
            self._invocation.metric_attributes[sc.AGENT_NAME] = self.metric_name
            if agent.model_id:
                self._invocation.metric_attributes[sc.REQUEST_MODEL] = telemetry.model_cap(agent.model_id)
            self._live = telemetry.metrics.run_started(self.metric_name, agent.model_id, ledger)

    def set_task(self, messages: Sequence[InputMessage]) -> None:
        """Content: the task."""
        self._invocation.input_messages = list(messages)

    def set_answer(self, messages: Sequence[OutputMessage]) -> None:
        """Content: the final answer."""
        self._invocation.output_messages = list(messages)

    def step_context(self) -> Context:
        return super().step_context() if self.finished else self.context

    def finish(self, state: str, exception: BaseException | None = None) -> None:
        """End the run, once; whatever step is still open ends with it."""
        if self.finished:
            return
        self.finished = True
        try:
            self._finish(state, exception)
        finally:  # an interrupt may come at any moment
            self.telemetry.metrics.forget(self._live)
            _end(self.span)
            self.context = _NOWHERE

    def _finish(self, state: str, exception: BaseException | None) -> None:
        for step in list(self.open_steps):
            with guarded("ending a run's step"):
                step.finish()
        with guarded("leaving a run's streams"):
            self.leave_streams()
        invocation = self._invocation
        with guarded("describing a run"):
            if state == "max_steps":
                invocation.finish_reasons = ["max_steps"]
            for message in invocation.output_messages:
                message.finish_reason = "max_steps" if state == "max_steps" else "stop"
            if self.telemetry.content_on_spans:
                invocation.agent_description = text(self.agent.description)
            invocation.attributes.update(self._attributes(state))
        with guarded("recording a run's metrics"):
            if self._live is not None:
                self.telemetry.metrics.run_ended(self._live, state, self.context)
        with guarded("ending a run's span"):
            if exception is None:
                invocation.stop()
            else:
                invocation.fail(self.telemetry.error(exception))

    def _attributes(self, state: str) -> dict[str, AttributeValue]:
        ledger, billed = self.ledger, self.ledger.billed
        attributes: dict[str, AttributeValue] = {
            sc.AGENT_TYPE: self.agent.type,
            sc.TURN_GROUP: self.agent.turn_group,
            sc.RUN_ID: self.id,
            sc.RUN_STATE: state,
            sc.RUN_STEPS: ledger.steps,
            sc.RUN_PLANNING_STEPS: ledger.planning_steps,
            sc.RUN_CALLS: ledger.calls,
            sc.RUN_CALLS_WITHOUT_USAGE: ledger.calls_without_usage,
            sc.RUN_RECOVERED_ERRORS: ledger.recovered_errors,
        }
        if self.agent.max_steps is not None:
            attributes[sc.MAX_STEPS] = self.agent.max_steps
        attributes.update(fit_attributes(ledger))
        if ledger.forecast_half_way is not None:
            attributes[sc.FORECAST_INPUT_TOKENS] = ledger.forecast_half_way
        if ledger.known:
            attributes |= {
                sc.RUN_INPUT_TOKENS: billed.input,
                sc.RUN_OUTPUT_TOKENS: billed.output,
                sc.RUN_FIXED_TOKENS: billed.fixed,
                sc.RUN_NEW_TOKENS: billed.new,
                sc.RUN_REPLAYED_TOKENS: billed.replayed,
            }
        if ledger.total_input or ledger.known:
            attributes |= {
                sc.RUN_TOTAL_INPUT_TOKENS: ledger.total_input,
                sc.RUN_TOTAL_OUTPUT_TOKENS: ledger.total_output,
            }
        attributes.update(ratios(ledger))
        return attributes


class StepSpan:
    """`agent_step {agent}` or `plan {agent}`."""

    def __init__(self, run: Owner, type: str, number: int | None, memory_step: object | None = None) -> None:
        telemetry = run.telemetry
        self.run, self.memory_step = run, memory_step
        self.written: list[tuple[object, Any]] = []
        """Memory steps and the messages that each wrote for this step's prompt."""
        self.given: list[Any] = []
        """What the agent got for a prompt, whoever has changed it on the way."""
        self.history: dict[str, AttributeValue] = {}
        """`smolagents.history.*` of its last own call."""
        self.failed_call: BaseException | None = None
        """Raised by the last model call; smolagents does not let each such error through."""
        self.facts = Step(type, number)
        self.is_final_answer = False
        self.tool_calls = 0
        self.pending_tool_calls: dict[object, tuple[str, object]] = {}
        """Tool calls that the model asked for and that have not begun: name and arguments by id."""
        self.release: Callable[[], None] | None = None
        """Called when the step has ended."""
        self.pending_characters = 0
        self.finished = False
        self.exception: BaseException | None = None
        name = "plan" if type == "planning" else "agent_step"
        attributes: dict[str, AttributeValue] = {sc.AGENT_NAME: run.agent.name}
        if type == "planning":
            attributes[sc.OPERATION_NAME] = "plan"
        base = run.step_context()
        self.span = telemetry.tracer.start_span(
            f"{name} {run.agent.name}", base, SpanKind.INTERNAL, attributes=attributes
        )
        self.context = in_scope(Scope(run, self), set_span_in_context(self.span, base))
        self._started = time.perf_counter()
        run.open_steps.append(self)
        with guarded("recording the start of a step"):
            telemetry.metrics.step_started(run.metric_name, self.facts)

    def finish(self) -> None:
        """End the step, once, with the error noted on it, if any."""
        if self.finished:
            return
        self.finished = True
        try:
            self._finish()
        finally:
            _end(self.span)
            self.written, self.given, self.context = [], [], _NOWHERE

    def _finish(self) -> None:
        run = self.run
        if self in run.open_steps:
            run.open_steps.remove(self)
        with guarded("leaving a step's streams"):
            run.leave_streams(self)
        if self.release is not None:
            with guarded("letting a step's model go"):
                self.release()
        error = self.run.telemetry.error(self.exception) if self.exception is not None else None
        with guarded("describing a step"):
            run.ledger.end_step(self.facts, self.pending_characters)
            if self.span.is_recording():
                self.span.set_attributes(self._attributes())
            if error is not None:
                self.span.set_attribute(sc.ERROR_TYPE, error.type)
                self.span.set_status(Status(StatusCode.ERROR, error.message or None))
        with guarded("recording a step's metrics"):
            seconds = time.perf_counter() - self._started
            run.telemetry.metrics.step_ended(
                run.metric_name, self.facts, seconds, error.type if error else None, self.context
            )

    def _attributes(self) -> dict[str, AttributeValue]:
        facts, billed, ledger = self.facts, self.facts.billed, self.run.ledger
        attributes: dict[str, AttributeValue] = {sc.RUN_ID: self.run.id, sc.STEP_TYPE: facts.type}
        if facts.number is not None:
            attributes[sc.STEP_NUMBER] = facts.number
        if facts.type != "planning":
            attributes[sc.STEP_IS_FINAL_ANSWER] = self.is_final_answer
            attributes[sc.STEP_TOOL_CALLS] = self.tool_calls
        attributes.update(fit_attributes(ledger))
        if ledger.forecast is not None:
            attributes[sc.FORECAST_INPUT_TOKENS] = ledger.forecast
        attributes.update(self.history)
        if ledger.known:
            attributes[sc.RUN_INPUT_TOKENS] = ledger.billed.input
            attributes[sc.RUN_REPLAYED_TOKENS] = ledger.billed.replayed
        attributes.update(ratios(ledger))
        if facts.calls and not facts.unknown_output:
            attributes[sc.STEP_OUTPUT_TOKENS] = billed.output
        if facts.calls and not facts.unknown_input:
            attributes |= {
                sc.STEP_INPUT_TOKENS: billed.input,
                sc.STEP_FIXED_TOKENS: billed.fixed,
                sc.STEP_NEW_TOKENS: billed.new,
                sc.STEP_REPLAYED_TOKENS: billed.replayed,
            }
        return attributes


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
            _end(self.span)
            self.context = _NOWHERE

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


class ToolSpan:
    """`execute_tool {tool}`: a tool or managed agent that runs within a run."""

    def __init__(self, scope: Scope, run: Owner, tool: object, name: str, *, managed: bool) -> None:
        step = scope.own_step
        self.run, self.step, self.name = run, step, name
        self.finished = False
        self._invocation: ToolInvocation = run.telemetry.handler.tool(
            name, tool_type="function", agent_name=run.agent.name
        )
        self._invocation.suspend()
        self.context = in_scope(Scope(scope.run, scope.step, tool, scope.inner_usages), self._invocation.context)
        self._invocation.metric_attributes[sc.AGENT_NAME] = run.metric_name
        self._invocation.attributes[sc.RUN_ID] = run.id
        if managed:
            self._invocation.attributes[sc.TOOL_MANAGED_AGENT] = True
        if step is not None:
            step.tool_calls += 1
        with guarded("recording the start of a tool call"):
            metric_name = run.metric_tool_name(name)
            self._invocation.metric_attributes[sc.TOOL_NAME] = metric_name
            run.telemetry.metrics.tool_started(run.metric_name, metric_name)

    @property
    def invocation(self) -> ToolInvocation:
        """Where call id, description, arguments and result go."""
        return self._invocation

    def finish(self, characters: int | None, exception: BaseException | None = None) -> None:
        """End the tool's span, once. `characters`: length of the result as text."""
        if self.finished:
            return
        self.finished = True
        if characters is not None:
            self._invocation.attributes[sc.TOOL_OUTPUT_CHARACTERS] = characters
            if self.step is not None:
                self.step.facts.tool_outputs.append((self.name, characters))
        try:
            if exception is None:
                self._invocation.stop()
            else:
                self._invocation.fail(self.run.telemetry.error(exception))
        finally:
            _end(self._invocation.span)


def _of_generated_code(cls: type) -> bool:
    """Whether the model has written this class, and its name. smolagents' interpreter makes such, and keeps none."""
    return str(cls.__module__).startswith("smolagents.") and not hasattr(sys.modules.get(cls.__module__), cls.__name__)


def _end(span: Span) -> None:
    """End a span, if nothing has ended it yet: what was to do so may have failed, or have been interrupted."""
    if span.is_recording():
        span.end()


def _say_why_it_ended(invocation: InferenceInvocation) -> None:
    """In each message, too: the library has deprecated the reason there and writes null, but readers of the schema want
    one. Phoenix shows no answer without.
    """
    if not invocation.output_messages:
        return
    invocation.finish_reasons = invocation.finish_reasons or []  # else the attribute would be taken from the messages
    for message in invocation.output_messages:
        message.finish_reason = next(iter(invocation.finish_reasons), "unknown")
