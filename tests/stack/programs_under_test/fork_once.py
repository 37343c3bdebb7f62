"""A parent that has exported, and so keeps a connection open, and a child that it forks and waits for."""

import os
import sys

from opentelemetry import metrics, trace

from tests.scripted import Truth
from tests.stack.programs_under_test.common import one_run


def export() -> None:
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        provider.force_flush()  # type: ignore[union-attr]


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
