"""Many scripts: `many.py COUNT` forks so many children, three at a time, each of which does what
`opentelemetry-instrument` does in a new interpreter, runs one agent and ends. All that they import is imported once.
"""

import importlib
import os
import sys

from opentelemetry.instrumentation.auto_instrumentation import initialize

from tests.scripted import Truth
from tests.stack.programs_under_test.common import one_run, tell

AT_A_TIME = 3
IMPORTED_ONCE = (
    "opentelemetry.distro",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "otel_smol.patches",
    "otel_smol.shutdown",
    "requests",
)


def script() -> None:
    initialize()
    one_run(Truth())
    sys.exit(0)  # through `atexit`, as any script


def main(count: int) -> None:
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    running = 0
    for _ in range(count):
        if running == AT_A_TIME:
            os.wait()
            running -= 1
        if os.fork() == 0:
            script()
        running += 1
    for _ in range(running):
        os.wait()
    truth = Truth()
    one_run(truth)  # not instrumented: only to know what one is billed
    for name in ("input_tokens", "output_tokens", "calls"):
        setattr(truth, name, getattr(truth, name) * count)
    tell(truth, count)


if __name__ == "__main__":
    main(int(sys.argv[1]))
