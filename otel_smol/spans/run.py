"""`invoke_agent {agent}`: one run."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context, get_current
from opentelemetry.trace import SpanContext
from opentelemetry.util.genai.invocation import LocalAgentInvocation
from opentelemetry.util.genai.types import InputMessage, OutputMessage

from otel_smol import semconv as sc
from otel_smol.below import without_ended_call
from otel_smol.content import text
from otel_smol.context import Scope, current_conversation, current_scope, in_scope
from otel_smol.describe import AttributeValue, fit_attributes, ratios
from otel_smol.guard import guarded
from otel_smol.ledger import RunLedger
from otel_smol.metrics import LiveRun
from otel_smol.spans.owner import NOWHERE, AgentFacts, Owner, end
from otel_smol.telemetry import Telemetry


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
            end(self.span)
            self.context = NOWHERE

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
