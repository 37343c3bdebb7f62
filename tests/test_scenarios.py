"""The matrix: agent class × how it is consumed × what happens in the run. Every rule holds in every cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from smolagents import CodeAgent

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings, attributes
from tests.rules import check_all
from tests.scripted import (
    AGENT_CLASSES,
    CONSUMED,
    Cell,
    Reply,
    Script,
    code,
    make_tool,
    memory,
    raised,
)


@dataclass
class Outcome:
    """What a scenario did, for comparison with the uninstrumented run, and what it should look like."""

    script: Script
    result: Any
    memory: Any
    state: str = "success"
    runs: int = 1
    steps: int = 0
    plans: int = 0
    recovered: int = 0


def plain(cell: Cell) -> Outcome:
    """Three steps with a tool, and the answer."""
    script = Script(*cell.replies(4))
    subject = cell.agent(script)
    return Outcome(script, cell.run(subject), memory(subject), steps=4)


def planning(cell: Cell) -> Outcome:
    """A plan before the first and the third step."""
    replies = cell.replies(4)
    script = Script("first plan", *replies[:2], "second plan", *replies[2:])
    subject = cell.agent(script, planning_interval=2)
    return Outcome(script, cell.run(subject), memory(subject), steps=4, plans=2)


def managed(cell: Cell) -> Outcome:
    """A managed agent, called twice."""
    script = Script()
    worker_script = Script(*cell.replies(2) * 2, truth=script.truth)
    worker = cell.agent(worker_script, name="worker", description="works")
    ask: list[Reply] = [[("worker", {"task": f"part {i}", "additional_args": {}})] for i in range(2)]
    if cell.cls is CodeAgent:
        ask = [code(f'print(worker(task="part {i}"))') for i in range(2)]
    boss_script = Script(*ask, cell.final, truth=script.truth)
    boss = cell.agent(boss_script, tools=[], managed_agents=[worker])
    return Outcome(script, cell.run(boss), [memory(boss), memory(worker)], runs=3, steps=7)


def parallel_tools(cell: Cell) -> Outcome:
    """Several tools in one step."""
    script = Script()
    tools = [make_tool(script.truth, name) for name in ("search", "look_up", "fetch")]
    together: Reply = [(tool.name, {"n": i}) for i, tool in enumerate(tools)]
    if cell.cls is CodeAgent:
        together = code("print(search(1), look_up(2), fetch(3))")
    script = Script(together, cell.final, truth=script.truth)
    subject = cell.agent(script, tools=tools)
    return Outcome(script, cell.run(subject), memory(subject), steps=2)


def max_steps(cell: Cell) -> Outcome:
    """The limit is reached, and an extra call makes the answer."""
    script = Script(*cell.replies(4)[:2], "as far as I got")
    subject = cell.agent(script, max_steps=2)
    return Outcome(script, cell.run(subject), memory(subject), state="max_steps", steps=3, recovered=0)


def failing(cell: Cell) -> Outcome:
    """The model fails in the second step, and the run with it."""
    script = Script(cell.replies(2)[0], ConnectionError("no model"))
    subject = cell.agent(script)
    return Outcome(script, raised(lambda: cell.run(subject)), memory(subject), state="error", steps=2)


def recovering(cell: Cell) -> Outcome:
    """A reply that cannot be parsed, a tool that fails, and an answer."""
    script = Script()

    def fail(n: int) -> Any:
        raise ValueError(f"no result for {n}")

    script = Script("no code, no call", cell.replies(2)[0], cell.final, truth=script.truth)
    subject = cell.agent(script, tools=[make_tool(script.truth, does=fail)])
    return Outcome(script, cell.run(subject), memory(subject), steps=3, recovered=2)


def interrupted(cell: Cell) -> Outcome:
    """`agent.interrupt()` after the second step."""
    script = Script(*cell.replies(4))

    def stop(step: Any, agent: Any = None) -> None:
        if step.step_number == 2:
            agent.interrupt()

    subject = cell.agent(script, step_callbacks=[stop])
    return Outcome(script, raised(lambda: cell.run(subject)), memory(subject), state="interrupted", steps=2)


def multi_turn(cell: Cell) -> Outcome:
    """Three turns of one conversation."""
    script = Script(*cell.replies(2) * 3)
    subject = cell.agent(script)
    results = [cell.run(subject, f"turn {i}", reset=i == 0) for i in range(3)]
    return Outcome(script, results, memory(subject), runs=3, steps=6)


SCENARIOS = (plain, planning, managed, parallel_tools, max_steps, failing, recovering, interrupted, multi_turn)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("consumed", CONSUMED)
@pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda c: c.__name__)
def test_matrix(
    cls: type, consumed: str, scenario: Callable[[Cell], Outcome], observed: Observed, warned: Warnings
) -> None:
    """Truth, parts, tree and types hold; nothing is logged, nothing leaks; the agent does what it does without us."""
    cell = Cell(cls, consumed)
    outcome = scenario(cell)
    check_all(observed, outcome.script.truth)
    assert len(observed.runs) == outcome.runs
    assert len(observed.steps) == outcome.steps
    assert len(observed.plans) == outcome.plans
    assert {attributes(span)[sc.RUN_STATE] for span in observed.runs} == {outcome.state}
    assert sum(attributes(span)[sc.RUN_RECOVERED_ERRORS] for span in observed.runs) == outcome.recovered
    assert warned.lines == []
    SmolagentsInstrumentor().uninstrument()
    bare = scenario(cell)
    assert (outcome.result, outcome.memory) == (bare.result, bare.memory)
    assert outcome.script.truth.calls == bare.script.truth.calls


@pytest.mark.parametrize("consumed", ["stream", "stream_outputs"])
@pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda c: c.__name__)
def test_abandoned(cls: type, consumed: str, observed: Observed, warned: Warnings) -> None:
    """A stream that its consumer leaves after the second step ends as `abandoned`, with the tokens so far."""
    cell = Cell(cls, consumed)
    script = Script(*cell.replies(4))
    stream = cell.agent(script).run("the task", stream=True)
    for item in stream:
        if type(item).__name__ == "ActionStep" and item.step_number == 2:
            break
    del item
    stream.close()
    check_all(observed, script.truth)
    assert observed.run[sc.RUN_STATE] == "abandoned"
    assert observed.run[sc.RUN_STEPS] == 2
    assert warned.lines == []
