"""Agents for the dashboards: scripted runs of all kinds, each told with what it really cost.

    opentelemetry-instrument python -m tests.grafana.fleet planner caller

runs these scenarios in one process and prints the truth as the last line: every model call with its kind, its step and
what the model reported, as the model itself counted it. Nothing here knows of OpenTelemetry.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

from smolagents import CodeAgent, LogLevel, ToolCallingAgent

from tests.scripted import FINAL_CALL, FINAL_CODE, Reply, Script, ScriptedModel, code, make_tool

PLAN = "Here are the facts: none. Here is the plan: 1. search 2. answer <end_plan>"
APART = 0.002
"""Seconds that a model thinks, so that no two spans start in the same millisecond."""


@dataclass
class Call:
    """One model call and its bill; None where the model reports none."""

    agent: str
    kind: str
    step: int
    input: int | None = None
    output: int | None = None
    answered: bool = False
    cached: int | None = None
    seconds: float = 0.0


@dataclass
class Run:
    """One run: how it ended and what it called."""

    agent: str
    state: str
    calls: list[Call]


Line = tuple[str, int, Reply]
"""Kind of the call, number of its step, and what the model says."""


class Teller(ScriptedModel):
    """Says its lines in order and writes down what each cost."""

    def __init__(
        self, agent: str, lines: Sequence[Line], model_id: str, usage: bool = True, caches: bool = False
    ) -> None:
        super().__init__(Script(*(reply for _, _, reply in lines), usage=usage), model_id)
        self.caches = caches
        self.calls = [Call(agent, kind, step) for kind, step, _ in lines]
        self.said = 0

    def generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        call = self.calls[self.said]
        self.said += 1
        try:
            time.sleep(APART)
            message = super().generate(messages, *args, **kwargs)
        finally:
            call.seconds = time.perf_counter() - began
        call.answered = True
        if message.token_usage is not None:
            call.input, call.output = message.token_usage.input_tokens, message.token_usage.output_tokens
        if self.caches:  # all that the call before it sent, as a provider's own response says it
            call.cached = self.calls[self.said - 2].input if self.said > 1 else 0
            details = SimpleNamespace(cached_tokens=call.cached)
            message.raw = SimpleNamespace(usage=SimpleNamespace(prompt_tokens_details=details))
        return message

    def made(self) -> list[Call]:
        """The calls so far."""
        return self.calls[: self.said]


def steps(count: int, tool: str = "search", start: int = 1) -> list[Line]:
    """A tool call in each step but the last, which answers."""
    tools: list[Line] = [("action", k, code(f"print({tool}({k}))")) for k in range(start, count)]
    return [*tools, ("action", count, FINAL_CODE)]


def one(
    name: str,
    lines: Sequence[Line],
    state: str,
    usage: bool = True,
    size: int = 400,
    does: Callable[[int], Any] | None = None,
    **kwargs: Any,
) -> list[Run]:
    """One run of a CodeAgent."""
    model = Teller(name, lines, "small-model", usage)
    tool = make_tool(model.script.truth, size=size, does=does)
    kwargs.setdefault("max_steps", 20)
    agent = CodeAgent(tools=[tool], model=model, name=name, verbosity_level=LogLevel.OFF, **kwargs)
    with contextlib.suppress(Exception):
        agent.run("the task")
    return [Run(name, state, model.made())]


def researcher() -> list[Run]:
    """Two runs of different length in one process."""
    return [*one("researcher", steps(8), "success"), *one("researcher", steps(5), "success", size=900)]


def planner() -> list[Run]:
    """Plans at steps 1, 3 and 5."""
    lines: list[Line] = []
    for line in steps(6):
        lines += [("planning", line[1], PLAN)] * (line[1] % 2) + [line]
    return one("planner", lines, "success", planning_interval=2)


def manager() -> list[Run]:
    """A manager that asks a managed agent twice."""
    inner = Teller("assistant", [*steps(3), *steps(3)], "small-model")
    assistant = CodeAgent(
        tools=[make_tool(inner.script.truth)],
        model=inner,
        name="assistant",
        description="Looks things up.",
        verbosity_level=LogLevel.OFF,
    )
    ask = code('print(assistant(task="a part of it"))')
    outer = Teller("manager", [("action", 1, ask), ("action", 2, ask), ("action", 3, FINAL_CODE)], "big-model")
    CodeAgent(tools=[], model=outer, managed_agents=[assistant], name="manager", verbosity_level=LogLevel.OFF).run(
        "the task"
    )
    calls = inner.made()
    return [
        Run("assistant", "success", calls[:3]),
        Run("assistant", "success", calls[3:]),
        Run("manager", "success", outer.made()),
    ]


def unlucky() -> list[Run]:
    """The model fails for good in step 3."""
    lines: list[Line] = [*steps(3)[:2], ("action", 3, RuntimeError("the provider is down"))]
    return one("unlucky", lines, "error")


def clumsy() -> list[Run]:
    """Step 2 is code that fails, and in step 3 the tool does; the agent recovers."""

    def search(n: int) -> str:
        if n == 3:
            raise ValueError("nothing found")
        return "result"

    lines = steps(5)
    lines[1] = ("action", 2, code("print(1 / 0)"))
    return one("clumsy", lines, "success", does=search)


def endless() -> list[Run]:
    """Runs out of steps and is asked for a final answer."""
    lines: list[Line] = [*steps(5)[:4], ("final_answer", 5, "That is all I know.")]
    return one("endless", lines, "max_steps", max_steps=4)


def silent() -> list[Run]:
    """A provider that reports no usage."""
    return one("silent", steps(3), "success", usage=False)


def caller() -> list[Run]:
    """A ToolCallingAgent with two tools of different size, and a provider that says what it cached."""
    tools = ["search", "read_page", "search", "read_page"]
    lines: list[Line] = [("action", k, [(tool, {"n": k})]) for k, tool in enumerate(tools, 1)]
    model = Teller("caller", [*lines, ("action", 5, FINAL_CALL)], "big-model", caches=True)
    truth = model.script.truth
    agent = ToolCallingAgent(
        tools=[make_tool(truth, size=200), make_tool(truth, name="read_page", size=3000)],
        model=model,
        name="caller",
        verbosity_level=LogLevel.OFF,
    )
    agent.run("the task")
    return [Run("caller", "success", model.made())]


def slow() -> list[Run]:
    """Long enough to be seen while it goes on, if metrics are exported often: there is a forecast for five seconds."""

    def search(n: int) -> str:
        time.sleep(1.2 if n < 4 else 4)
        return "word " * 80

    return one("slow", steps(5), "success", does=search)


SCENARIOS: dict[str, Callable[[], list[Run]]] = {
    each.__name__: each for each in (researcher, planner, manager, unlucky, clumsy, endless, silent, caller, slow)
}


def read(line: str) -> Iterator[Run]:
    """The truth that a process printed."""
    for run in json.loads(line):
        yield Run(run["agent"], run["state"], [Call(**call) for call in run["calls"]])


if __name__ == "__main__":
    print(json.dumps([asdict(run) for name in sys.argv[1:] for run in SCENARIOS[name]()]))
