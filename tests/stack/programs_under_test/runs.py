"""A process that lives: each line of its input is a number of runs, each line of its output the truth so far.

The line `export` sends what there is, and is answered when it has arrived or is given up.
"""

import sys

from tests.scripted import Truth
from tests.stack.programs_under_test.common import export, one_run, tell

truth = Truth()
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3
for line in iter(sys.stdin.readline, ""):
    if line.strip() == "export":
        export()
    else:
        for _ in range(int(line)):
            one_run(truth, steps)
            truth.prompts.clear()
    tell(truth)
