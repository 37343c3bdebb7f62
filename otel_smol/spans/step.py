"""`agent_step {agent}` and `plan {agent}`: one step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from otel_smol import semconv as sc
from otel_smol.context import Scope, in_scope
from otel_smol.describe import AttributeValue, fit_attributes, ratios
from otel_smol.guard import guarded
from otel_smol.ledger import Step
from otel_smol.spans.owner import NOWHERE, Owner, end


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
            end(self.span)
            self.written, self.given, self.context = [], [], NOWHERE

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
