"""Runs in a pool of processes: `pool.py fork|spawn|terminate RUNS_BEFORE RUNS_IN_THE_POOL`.

`terminate` is `multiprocessing.Pool`, whose workers get SIGTERM when its `with` block ends; the others are
`ProcessPoolExecutor`, whose workers end by themselves. Before the pool the parent may do runs of its own; it
has exported them when it forks.
"""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.scripted import Truth
from tests.stack.programs_under_test.common import export, one_run, tell


def work(_: int) -> tuple[int, int, int]:
    truth = Truth()
    one_run(truth)
    return truth.input_tokens, truth.output_tokens, truth.calls


def main(kind: str, before: int, count: int) -> None:
    truth = Truth()
    for _ in range(before):
        one_run(truth)
    if before:
        export()
    context = multiprocessing.get_context("spawn" if kind == "spawn" else "fork")
    if kind == "terminate":
        with context.Pool(3) as pool:
            report(truth, before, pool.map(work, range(count), chunksize=1))
    else:
        with ProcessPoolExecutor(3, mp_context=context) as executor:
            report(truth, before, list(executor.map(work, range(count))))


def report(truth: Truth, before: int, done: list[tuple[int, int, int]]) -> None:
    """The truth, while the workers are still there."""
    for input_tokens, output_tokens, calls in done:
        truth.input_tokens += input_tokens
        truth.output_tokens += output_tokens
        truth.calls += calls
    tell(truth, before + len(done))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
