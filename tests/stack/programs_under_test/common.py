"""What the programs share: a run of a scripted agent, and the truth about it on one line."""

from __future__ import annotations

import json

from opentelemetry import metrics, trace
from smolagents import CodeAgent

from tests.scripted import Script, Truth, agent, step_replies

_runs = 0


def one_run(truth: Truth, steps: int = 3, name: str = "helper") -> None:
    """An agent that runs once; the truth grows."""
    global _runs
    agent(CodeAgent, Script(*step_replies(CodeAgent, steps), truth=truth), name=name).run("the task")
    _runs += 1


def told(truth: Truth, runs: int | None = None) -> str:
    """The truth as the tests read it; the runs of this process, or as many as there were in all."""
    count = _runs if runs is None else runs
    return json.dumps({"input": truth.input_tokens, "output": truth.output_tokens, "calls": truth.calls, "runs": count})


def tell(truth: Truth, runs: int | None = None) -> None:
    """Print it."""
    print(told(truth, runs), flush=True)


def export() -> None:
    """Send what there is, so that a connection is open when the process forks."""
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        provider.force_flush()  # type: ignore[union-attr]
