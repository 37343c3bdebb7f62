"""`execute_tool {tool}`: one tool, or managed agent called as one."""

from __future__ import annotations

from opentelemetry.util.genai.invocation import ToolInvocation

from otel_smol import semconv as sc
from otel_smol.context import Scope, in_scope
from otel_smol.guard import guarded
from otel_smol.spans.owner import Owner, end


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
            end(self._invocation.span)
