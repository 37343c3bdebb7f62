"""Agents driven by a real language model under `opentelemetry-instrument`: what the server billed is the truth.

The model is so small that few of its answers are of use. Its runs are what users' bad runs look like: code that fails,
replies that cannot be parsed, tool calls that lead nowhere, and an end at `max_steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from otel_smol import semconv as sc
from otel_smol.receiver import Receiver
from tests.backends.received import of_kind, summed, total
from tests.backends.relay import Bill, Relay, StreamingRelay, bills
from tests.backends.servers import ALONE, OFFLINE
from tests.programs import run

STEPS = 3
REAL_AGENT = """
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

@tool
def temperature(city: str) -> str:
    \"\"\"Tells how warm it is.

    Args:
        city: the name of a city
    \"\"\"
    return "12 degrees"

# Much shorter than smolagents' own, which a model on one core would read for half a minute.
prompts = {{
    "system_prompt": "Write a very short Python program.",
    "planning": {{
        "initial_plan": "Write a plan of one line for this task: {{{{task}}}}",
        "update_plan_pre_messages": "Here is what was done so far.",
        "update_plan_post_messages": "Write a new plan of one line.",
    }},
    "managed_agent": {{"task": "{{{{task}}}}", "report": "{{{{final_answer}}}}"}},
    "final_answer": {{"pre_messages": "Here is what was done.", "post_messages": "Now answer: {{{{task}}}}"}},
}}
model = OpenAIModel(
    "smollm2", api_base="{url}/v1", api_key="none", flatten_messages_as_text=True, max_tokens=40, temperature=0.0,
    {options}
)
agent = {cls}(
    [temperature], model, name="helper", max_steps={steps}, stream_outputs={streamed}, planning_interval={planning},
    prompt_templates=prompts, verbosity_level=LogLevel.OFF, {agent_options}
)
agent.run("{task}")
"""


@dataclass(frozen=True)
class Kind:
    """One agent class, with a task that the model can make a step of."""

    cls: str
    task: str
    options: str = ""
    agent_options: str = ""


CODE = Kind("CodeAgent", "Write Python code that prints 17 times 23.", agent_options='code_block_tags="markdown"')
# Left to itself the model calls no tool. Forced to, it fills in the arguments.
TOOLS = Kind(
    "ToolCallingAgent",
    "How warm is it in Oslo?",
    'tool_choice={"type": "function", "function": {"name": "temperature"}}',
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An OTLP receiver on loopback."""
    with Receiver() as receiver:
        yield receiver


def drive(
    folder: Path, receiver: Receiver, relay: Relay, kind: Kind, *, streamed: bool, planning: int | None = None
) -> list[Bill]:
    """Run the agent with its model behind the relay; what the model server billed, call by call."""
    source = REAL_AGENT.format(url=relay.url, steps=STEPS, streamed=streamed, planning=planning, **asdict(kind))
    done = run(folder, source, receiver.endpoint, **ALONE, **OFFLINE)
    assert (done.returncode, done.stderr) == (0, "")
    assert {exchange.answer.status for exchange in relay.exchanges()} == {200}
    return bills(relay)


def check_totals(receiver: Receiver, billed: list[Bill]) -> None:
    """Each call, each step, the run and the metrics have what the server billed, to the token."""
    spans, points = receiver.spans(), receiver.metrics()
    calls = [span.attributes for span in of_kind(spans, "chat")]
    assert [Bill(call[sc.USAGE_INPUT_TOKENS], call[sc.USAGE_OUTPUT_TOKENS]) for call in calls] == billed  # type: ignore[arg-type]
    inputs, outputs = sum(bill.input or 0 for bill in billed), sum(bill.output or 0 for bill in billed)
    assert inputs > 0
    assert outputs > 0
    everything = [span.attributes for span in spans]
    assert summed(everything, sc.USAGE_INPUT_TOKENS) == summed(everything, sc.STEP_INPUT_TOKENS) == inputs
    assert summed(everything, sc.USAGE_OUTPUT_TOKENS) == summed(everything, sc.STEP_OUTPUT_TOKENS) == outputs
    [end] = of_kind(spans, "invoke_agent")
    assert (end.attributes[sc.RUN_INPUT_TOKENS], end.attributes[sc.RUN_OUTPUT_TOKENS]) == (inputs, outputs)
    assert (end.attributes[sc.RUN_CALLS], end.attributes[sc.RUN_CALLS_WITHOUT_USAGE]) == (len(billed), 0)
    assert total(points, sc.HISTORY_INPUT_TOKENS_METRIC.name) == inputs
    assert total(points, sc.STEP_INPUT_TOKENS_METRIC.name) == inputs
    assert total(points, sc.RUN_INPUT_TOKENS_METRIC.name) == inputs
    assert total(points, sc.RUN_OUTPUT_TOKENS_METRIC.name) == outputs
    assert total(points, "gen_ai.client.token.usage", gen_ai__token__type="input") == inputs
    assert total(points, "gen_ai.client.token.usage", gen_ai__token__type="output") == outputs


@pytest.mark.parametrize(("kind", "planning"), [(CODE, None), (TOOLS, 2)], ids=["code", "tools, plans"])
def test_whole_answers(kind: Kind, planning: int | None, llama: str, receiver: Receiver, tmp_path: Path) -> None:
    """P01, P31: what arrived over OTLP equals what llama.cpp's server billed, plans included."""
    with Relay(llama) as relay:
        billed = drive(tmp_path, receiver, relay, kind, streamed=False, planning=planning)
    check_totals(receiver, billed)
    assert len(of_kind(receiver.spans(), "plan")) == (2 if planning else 0)


@pytest.mark.parametrize("kind", [CODE, TOOLS], ids=["code", "tools"])
def test_streams_with_usage(kind: Kind, llama: str, receiver: Receiver, tmp_path: Path) -> None:
    """P02: of streams that end with their bill, as `stream_options` asks for, the totals are as true."""
    with StreamingRelay(llama) as relay:
        billed = drive(tmp_path, receiver, relay, kind, streamed=True)
    check_totals(receiver, billed)
    assert sc.TIME_TO_FIRST_CHUNK in of_kind(receiver.spans(), "chat")[0].attributes


def test_streams_without_usage(llama: str, receiver: Receiver, tmp_path: Path) -> None:
    """P34: llama.cpp's Python server bills no stream, whatever `stream_options` says: unknown, and not zero.

    Only the call at `max_steps`, which smolagents never streams, is billed. The run says of how many calls it knows
    nothing, so nobody takes the rest for the whole.
    """
    with Relay(llama) as relay:
        billed = drive(tmp_path, receiver, relay, CODE, streamed=True)
    streamed = [b"data: " in exchange.answer.body for exchange in relay.exchanges()]
    assert [bill == Bill(None, None) for bill in billed] == streamed, "this server bills its streams now"
    spans, points = receiver.spans(), receiver.metrics()
    for call, bill in zip(of_kind(spans, "chat"), billed, strict=True):
        assert call.attributes.get(sc.USAGE_INPUT_TOKENS) == bill.input
        assert call.attributes.get(sc.USAGE_OUTPUT_TOKENS) == bill.output
        assert call.attributes[sc.HISTORY_ESTIMATOR] == ("billed" if bill.input else "characters")
    known, unknown = [bill for bill in billed if bill.input], streamed.count(True)
    assert unknown >= 1
    inputs = sum(bill.input or 0 for bill in known)
    [end] = of_kind(spans, "invoke_agent")
    assert end.attributes[sc.RUN_CALLS] == len(billed)
    assert end.attributes[sc.RUN_CALLS_WITHOUT_USAGE] == unknown
    assert end.attributes.get(sc.RUN_INPUT_TOKENS) == (inputs if known else None)
    steps = [step.attributes.get(sc.STEP_INPUT_TOKENS) for step in of_kind(spans, "agent_step")]
    assert steps == [bill.input for bill in billed]
    assert total(points, sc.CALLS_WITHOUT_USAGE_METRIC.name) == unknown
    assert total(points, sc.HISTORY_INPUT_TOKENS_METRIC.name) == inputs
    assert total(points, "gen_ai.client.token.usage", gen_ai__token__type="input") == inputs
