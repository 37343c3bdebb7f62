"""The agents in the pictures: those of `otel-smol demo`, under several names and with several ends.

    opentelemetry-instrument python -m grafana.preview.agents '[["researcher", "code", 12, 2, "answer"]]'

Each entry: name, kind of agent, steps, runs, and how they end: `answer`, `max_steps`, `error` or `managed`; or `slow`,
an answer that takes its time. The large model says what it read from its prompt cache, the small one does not.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

from otel_smol.cli import demo_agent

PAUSE, LONG_PAUSE = 0.25, 2.5
"""Seconds that a model takes to answer."""
LARGE, SMALL = "large-model", "small-model"
BLOCK = 1024
"""A prompt is cached in pieces of so many tokens."""
SIZES = (1.0, 0.55, 1.4, 0.8, 1.15)
"""What the tools find is larger in one run than in another."""


def slow_down(agent: Any, fail_at: int | None, pause: float) -> None:
    """Let the model take its time, cache what it was sent, and fail for good if it has to."""
    answer = agent.model.generate
    calls = sent = 0

    def generate(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls, sent
        calls += 1
        time.sleep(pause)
        if calls == fail_at:
            raise RuntimeError("the provider is down")
        message = answer(*args, **kwargs)
        if agent.model.model_id == LARGE:
            details = SimpleNamespace(cached_tokens=sent // BLOCK * BLOCK)
            message.raw = SimpleNamespace(usage=SimpleNamespace(prompt_tokens_details=details))
        sent = message.token_usage.input_tokens
        return message

    agent.model.generate = generate


def run(name: str, kind: str, steps: int, end: str, size: float) -> None:
    """One run."""
    agent: Any = demo_agent.make_agent(steps, kind, managed=end == "managed")
    agent.name = name
    model = LARGE if steps > 8 else SMALL
    for each in (agent, *agent.managed_agents.values()):
        each.model.model_id = model
        for tool in each.tools.values():
            sizes = getattr(tool, "sizes", {})
            sizes.update({subject: round(characters * size) for subject, characters in sizes.items()})
    slow_down(agent, steps - 1 if end == "error" else None, LONG_PAUSE if end == "slow" else PAUSE)
    if end == "max_steps":
        agent.max_steps = steps - 2
    with contextlib.suppress(Exception):
        agent.run("Find out what our agents cost, and why.")


def main() -> None:
    """All runs of this process, one after the other."""
    sizes = itertools.cycle(SIZES)
    for name, kind, steps, runs, end in json.loads(sys.argv[1]):
        for _ in range(runs):
            run(name, kind, steps, end, next(sizes))


if __name__ == "__main__":
    main()
