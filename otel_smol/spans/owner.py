"""Whom steps and calls belong to."""

from __future__ import annotations

import uuid
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import Span

from otel_smol import semconv as sc
from otel_smol.context import Scope, in_scope
from otel_smol.ledger import RunLedger
from otel_smol.telemetry import Telemetry

if TYPE_CHECKING:
    from otel_smol.spans.call import CallSpan
    from otel_smol.spans.step import StepSpan

NOWHERE = Context()
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


def end(span: Span) -> None:
    """End a span, if nothing has ended it yet: what was to do so may have failed, or have been interrupted."""
    if span.is_recording():
        span.end()
