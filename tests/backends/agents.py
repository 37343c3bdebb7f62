"""Programs whose telemetry the backends get: real agents, scripted models, and the truth printed at the end."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.backends.received import Tokens
from tests.backends.servers import ALONE, OFFLINE
from tests.programs import PATIENT, run

EVERYTHING = """
from contextlib import suppress
from smolagents import CodeAgent, ToolCallingAgent
from tests.scripted import FINAL_CALL, FINAL_CODE, Script, Truth, agent, code, make_tool, step_replies

truth = Truth()

def script(*replies):
    return Script(*replies, truth=truth)

# A plan, and a managed agent that is called twice.
worker = agent(CodeAgent, script(*step_replies(CodeAgent, 2) * 2), name="worker", description="works")
asks = [code(f'print(worker(task="part {n}"))') for n in (1, 2)]
manager = agent(
    CodeAgent, script("a plan", *asks, FINAL_CODE), tools=[], managed_agents=[worker], name="manager",
    planning_interval=5,
)
manager.run("the task")

# Two tools at once, streamed.
tools = [make_tool(truth, name) for name in ("search", "look_up")]
together = [(tool.name, {"n": 1}) for tool in tools]
streamer = agent(ToolCallingAgent, script(together, FINAL_CALL), tools, name="streamer", stream_outputs=True)
list(streamer.run("the task", stream=True))

# Two turns of one conversation, the second one linked to the first.
talker = agent(CodeAgent, script(*step_replies(CodeAgent, 2) * 2), name="talker")
talker.run("turn 1")
talker.run("turn 2", reset=False)

# A model that fails in the second step.
failing = agent(CodeAgent, script(step_replies(CodeAgent, 2)[0], ConnectionError("no model")), name="failing")
with suppress(Exception):
    failing.run("the task")

# A model that says nothing of tokens.
agent(CodeAgent, Script(*step_replies(CodeAgent, 2), usage=False), name="unbilled").run("the task")

print(f"\\n{truth.input_tokens} {truth.output_tokens}")  # below what was streamed
"""
RUNS = 8
"""Of which two are the managed agent's."""
TRACES = 6
IN_PARTS = {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16"}
"""The manager's trace comes in several requests, its root in the last, as with every run of more than a few seconds."""
CONTENT = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}
"""Switches prompts and answers on."""


def truth_of(done: subprocess.CompletedProcess[str]) -> Tokens:
    """What the models reported in all, as the program printed it."""
    assert (done.returncode, done.stderr) == (0, "")
    return Tokens(*map(int, done.stdout.splitlines()[-1].split()))


def run_everything(folder: Path, **variables: str) -> Tokens:
    """Run all of them, with the variables that a backend needs. Metrics and logs go nowhere: it takes traces only."""
    traces_only = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    return truth_of(run(folder, EVERYTHING, None, **traces_only, **PATIENT, **ALONE, **OFFLINE, **variables))
