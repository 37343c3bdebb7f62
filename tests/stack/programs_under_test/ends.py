"""A script that ends in an unusual way after one whole run and two steps of another: `ends.py raise|exit|os_exit`.

It prints the truth before the end. `os_exit` waits until the input is closed: the test sees first what was exported.
"""

import os
import sys

from smolagents import CodeAgent

from tests.scripted import Script, Truth, agent, make_tool, step_replies
from tests.stack.programs_under_test.common import one_run, tell


class Abort(BaseException):
    """Nothing that an agent recovers from."""


def end(how: str) -> None:
    if how == "raise":
        raise Abort
    if how == "exit":
        sys.exit(3)
    sys.stdin.read()
    os._exit(4)


def main(how: str) -> None:
    truth = Truth()

    def search(n: int) -> str:
        if n == 3:
            tell(truth, 2)
            end(how)
        return "found " * 100

    one_run(truth)
    script = Script(*step_replies(CodeAgent, 6), truth=truth)
    agent(CodeAgent, script, tools=[make_tool(truth, does=search)], name="helper").run("the task")


if __name__ == "__main__":
    main(sys.argv[1])
