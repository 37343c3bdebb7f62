"""A script that hangs in its third step: it prints the truth so far, and waits for its end.

Ctrl-C comes through only when the tool returns, here when the input is closed: smolagents waits for the thread that it
runs code in.
"""

import sys

from smolagents import CodeAgent

from tests.scripted import Script, Truth, agent, make_tool, step_replies
from tests.stack.programs_under_test.common import tell

truth = Truth()


def search(n: int) -> str:
    if n == 3:
        tell(truth, 1)
        sys.stdin.read()
    return "found " * 100


script = Script(*step_replies(CodeAgent, 6), truth=truth)
agent(CodeAgent, script, tools=[make_tool(truth, does=search)], name="helper").run("the task")
