"""A parent that has exported, and so keeps a connection open, and a child that it forks and waits for."""

import os
import sys

from tests.scripted import Truth
from tests.stack.programs_under_test.common import export, one_run

if __name__ == "__main__":
    one_run(Truth())
    export()
    if os.fork() == 0:
        one_run(Truth())
        export()
        sys.exit(0)
    os.wait()
    one_run(Truth())
    export()
