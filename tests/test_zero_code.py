"""Without a line of code: real programs under the real `opentelemetry-instrument`, to a receiver on loopback."""

from __future__ import annotations

import importlib.metadata
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_smol import semconv as sc
from otel_smol.otlp import SpanData
from otel_smol.receiver import Receiver
from tests.programs import (
    PATIENT,
    PROGRAM_SECONDS,
    TOOL,
    GrpcReceiver,
    agent_program,
    environment,
    run,
    start,
    write,
)

SLOW_STEPS = """
import sys, time
from smolagents import CodeAgent
from tests.scripted import Script, agent, make_tool, step_replies

def search(n):
    print("step", n, flush=True)
    {act}
    return "found"

script = Script(*step_replies(CodeAgent, 6))
subject = agent(CodeAgent, script, tools=[make_tool(script.truth, does=search)], **{extra})
subject.run("the task")
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An OTLP receiver on loopback."""
    with Receiver() as receiver:
        yield receiver


def truth(done: subprocess.CompletedProcess[str]) -> tuple[int, int, int]:
    """Calls, input and output tokens, as the program printed them."""
    calls, input_tokens, output_tokens = map(int, done.stdout.splitlines()[-1].split())
    return calls, input_tokens, output_tokens


def named(spans: list[SpanData], kind: str) -> list[SpanData]:
    """Spans of one kind."""
    return [span for span in spans if span.name.split(" ")[0] == kind]


def summed(spans: list[SpanData], attribute: str) -> int:
    """Sum of an attribute."""
    values: list[Any] = [span.attributes.get(attribute, 0) for span in spans]
    return sum(values)


def test_http(receiver: Receiver, tmp_path: Path) -> None:
    """P68: spans and metrics of an unchanged script arrive over OTLP/HTTP, and their totals are the truth."""
    done = run(tmp_path, agent_program(), receiver.endpoint)
    assert (done.returncode, done.stderr) == (0, "")
    calls, input_tokens, output_tokens = truth(done)
    spans = receiver.spans()
    assert len(named(spans, "chat")) == calls
    assert summed(spans, sc.USAGE_INPUT_TOKENS) == input_tokens
    assert summed(spans, sc.USAGE_OUTPUT_TOKENS) == output_tokens
    assert len({span.trace_id for span in spans}) == 1
    billed = [point for point in receiver.metrics() if point.name == "smolagents.history.input_tokens"]
    assert sum(point.value or 0 for point in billed) == input_tokens


def test_grpc_is_the_default(tmp_path: Path) -> None:
    """P68: with nothing but an endpoint set, the installed exporters speak gRPC, and everything arrives."""
    with GrpcReceiver() as receiver:
        program = write(tmp_path, agent_program())
        # The stderr is asserted on: what gRPC's own core has to say of the machine is not meant.
        quiet = {"OTEL_LOGS_EXPORTER": "none", "GRPC_VERBOSITY": "NONE", **PATIENT}
        clean = environment(None, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint, **quiet)
        done = subprocess.run(
            [str(TOOL), sys.executable, str(program)],
            env=clean,
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert summed(receiver.spans(), sc.USAGE_INPUT_TOKENS) == truth(done)[1]
        assert "smolagents.run.input_tokens" in {point.name for point in receiver.metrics()}


def test_entry_point_has_a_name_of_its_own() -> None:
    """P06: two other packages are called `smolagents`; ours can be switched off by itself."""
    ours = [
        entry
        for entry in importlib.metadata.entry_points(group="opentelemetry_instrumentor")
        if entry.value.startswith("otel_smol")
    ]
    assert [entry.name for entry in ours] == ["otel_smol"]


def test_switched_off_by_name(receiver: Receiver, tmp_path: Path) -> None:
    """P06: OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=otel_smol leaves no span of ours."""
    done = run(tmp_path, agent_program(), receiver.endpoint, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="otel_smol")
    assert done.returncode == 0
    assert receiver.spans() == []


def test_disabled_sdk_is_said_in_one_line(receiver: Receiver, tmp_path: Path) -> None:
    """OTEL_SDK_DISABLED=true: the agent runs, nothing is sent, and one line says so."""
    done = run(tmp_path, agent_program(), receiver.endpoint, OTEL_SDK_DISABLED="true")
    assert done.returncode == 0
    assert receiver.spans() == []
    [line] = done.stderr.splitlines()
    assert "OTEL_SDK_DISABLED" in line


def test_missing_sdk_is_said_in_one_line(tmp_path: Path) -> None:
    """P68: without a provider, as without the distro package, one line says what is missing; no traceback."""
    source = "from otel_smol import SmolagentsInstrumentor\nSmolagentsInstrumentor().instrument()\n" + agent_program()
    done = subprocess.run(
        [sys.executable, str(write(tmp_path, source))],
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert done.returncode == 0
    [line] = done.stderr.splitlines()
    assert "opentelemetry-distro" in line
    assert "opentelemetry-instrument" in line


def test_no_content_from_a_default_run(receiver: Receiver, tmp_path: Path) -> None:
    """P56: nothing of task, code or results is in what was sent, not even as an argument of the program."""
    source = "import sys\n" + agent_program().replace('"the task"', "sys.argv[1]")
    done = run(tmp_path, source, receiver.endpoint, "canary-in-the-task")
    assert done.returncode == 0
    sent = repr((receiver.spans(), receiver.metrics(), receiver.logs()))
    for canary in ("canary-in-the-task", "print(search", "result 1 word", "final_answer(", "Thought:"):
        assert canary not in sent


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_SMOL_TOKEN_BUDGET", "a lot"), ("OTEL_SMOL_CONTEXT_WINDOW", "-1"), ("OTEL_SMOL_FULL_INPUT_MESSAGES", "2")],
)
def test_bad_variable(variable: str, value: str, receiver: Receiver, tmp_path: Path) -> None:
    """An unusable value gets one line that names the variable, the value and what is used; the agent runs, watched."""
    done = run(tmp_path, agent_program(), receiver.endpoint, **{variable: value})
    assert done.returncode == 0
    assert named(receiver.spans(), "invoke_agent")
    [line] = done.stderr.splitlines()
    assert variable in line
    assert value in line
    assert "Using" in line


# --- P70: hard exits -------------------------------------------------------------------------------------------------

WAITS_IN_STEP_3 = "sys.stdin.read() if n == 3 else None"
"""Until its input is closed: a signal that was sent before finds it there, however long the machine stood still."""
ENDINGS = {
    "ctrl-c": (signal.SIGINT, -signal.SIGINT, "interrupted"),
    "sigterm": (signal.SIGTERM, -signal.SIGTERM, "interrupted"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_signals(ending: str, receiver: Receiver, tmp_path: Path) -> None:
    """P70: Ctrl-C and SIGTERM: earlier steps are exported, the run is `interrupted`, the exit code as without us."""
    number, code, state = ENDINGS[ending]
    program = start(tmp_path, SLOW_STEPS.format(act=WAITS_IN_STEP_3, extra={}), receiver.endpoint)
    assert program.stdout is not None
    for line in program.stdout:
        if line.strip() == "step 3":
            break
    program.send_signal(number)
    assert ends(program)
    assert program.returncode == code
    [end] = named(receiver.spans(), "invoke_agent")
    assert end.attributes[sc.RUN_STATE] == state
    steps = {span.attributes[sc.STEP_NUMBER] for span in named(receiver.spans(), "agent_step")}
    assert {1, 2} <= steps


@pytest.mark.parametrize(
    ("act", "extra", "code"),
    [
        ("(_ for _ in ()).throw(KeyError) if n == 3 else None", {}, 0),
        ("sys.exit(3) if n == 3 else None", {}, 3),
    ],
    ids=["recovered", "sys.exit"],
)
def test_exits_from_within(act: str, extra: dict[str, str], code: int, receiver: Receiver, tmp_path: Path) -> None:
    """P70: `sys.exit(3)` in a tool ends the program with 3, and the steps before it are exported."""
    done = run(tmp_path, SLOW_STEPS.format(act=act, extra=extra), receiver.endpoint)
    bare = run(
        tmp_path,
        SLOW_STEPS.format(act=act, extra=extra),
        receiver.endpoint,
        OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="otel_smol",
    )
    assert done.returncode == bare.returncode == code
    steps = {span.attributes[sc.STEP_NUMBER] for span in named(receiver.spans(), "agent_step")}
    assert {1, 2} <= steps


def test_exception_out_of_main(receiver: Receiver, tmp_path: Path) -> None:
    """P70: an exception after the run ends the program with 1 and its traceback, and all of the run is exported."""
    done = run(tmp_path, agent_program() + "\nraise LookupError('after')\n", receiver.endpoint)
    assert done.returncode == 1
    assert re.search(r"LookupError: after$", done.stderr.strip())
    assert named(receiver.spans(), "invoke_agent")


def test_stream_left_open(receiver: Receiver, tmp_path: Path) -> None:
    """A stream that nobody reads to its end before the program ends is exported, as what it is."""
    source = agent_program().replace(
        'print(subject.run("the task"))', 'next(s := subject.run("the task", stream=True))'
    )
    done = run(tmp_path, source.rsplit("\n", 2)[0], receiver.endpoint)
    assert done.returncode == 0
    [end] = named(receiver.spans(), "invoke_agent")
    assert end.attributes[sc.RUN_STATE] in ("interrupted", "abandoned")


def test_own_sigterm_handler_stays(receiver: Receiver, tmp_path: Path) -> None:
    """P70: a program with a SIGTERM handler of its own keeps it."""
    source = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    program = start(tmp_path, source + SLOW_STEPS.format(act=WAITS_IN_STEP_3, extra={}), receiver.endpoint)
    assert program.stdout is not None
    for line in program.stdout:
        if line.strip() == "step 3":
            break
    program.send_signal(signal.SIGTERM)
    assert ends(program)
    assert program.returncode == 7


def ends(program: subprocess.Popen[str]) -> bool:
    """Close its input, and wait for its end."""
    try:
        program.communicate(timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()
        return False
    return True


# --- P71: forks ------------------------------------------------------------------------------------------------------

FORKS = """
import multiprocessing, sys
from smolagents import CodeAgent
from tests.scripted import Script, agent, step_replies

def work(n):
    script = Script(*step_replies(CodeAgent, 3))
    agent(CodeAgent, script, name=f"worker_{n}").run("the task")
    from opentelemetry import trace, metrics
    trace.get_tracer_provider().force_flush()
    metrics.get_meter_provider().force_flush()
    return script.truth.input_tokens

if __name__ == "__main__":
    before = Script(*step_replies(CodeAgent, 2))
    agent(CodeAgent, before, name="parent").run("the task")
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(sum(pool.map(work, range(3), chunksize=1)) + before.truth.input_tokens)
"""


def test_forked_workers(receiver: Receiver, tmp_path: Path) -> None:
    """P71: a forking pool ends in time, every worker's run arrives, and their metrics do not overwrite each other."""
    done = run(tmp_path, FORKS, receiver.endpoint)
    assert done.returncode == 0, done.stderr
    billed = int(done.stdout.split()[-1])
    spans = receiver.spans()
    assert len(named(spans, "invoke_agent")) == 4
    assert summed(spans, sc.USAGE_INPUT_TOKENS) == billed
    latest: dict[object, float] = {}
    for point in receiver.metrics():
        if point.name == "smolagents.history.input_tokens":
            latest[point.resource["service.instance.id"], tuple(sorted(point.attributes.items()))] = point.value or 0
    own = {key: value for key, value in latest.items() if value}
    assert sum(own.values()) >= billed


# --- P73: versions ---------------------------------------------------------------------------------------------------

PRETEND = """
import importlib.metadata, logging
real = importlib.metadata.version
importlib.metadata.version = lambda name: "{version}" if name == "smolagents" else real(name)
from otel_smol import SmolagentsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.metrics import MeterProvider
SmolagentsInstrumentor().instrument(tracer_provider=TracerProvider(), meter_provider=MeterProvider())
"""


@pytest.mark.parametrize(
    ("version", "lines"), [("1.20.0", 0), ("1.26.0", 0), ("1.27.0.dev0", 0), ("2.0.0", 1), ("1.3.0", 1)]
)
def test_versions_of_smolagents(version: str, lines: int, tmp_path: Path) -> None:
    """P73: within the tested range silence; outside one warning that names both versions, and a watched agent."""
    source = PRETEND.format(version=version) + agent_program()
    done = subprocess.run(
        [sys.executable, str(write(tmp_path, source))],
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert done.returncode == 0
    found = done.stderr.splitlines()
    assert len(found) == lines
    assert all(version in line and ">=1.20,<2" in line for line in found)


def test_without_smolagents(tmp_path: Path) -> None:
    """P73: a program that never imports smolagents hears nothing of us, and smolagents is not imported for it."""
    source = "import sys\nprint('smolagents' in sys.modules, 'otel_smol' in sys.modules)\n"
    done = run(
        tmp_path, source, None, OTEL_TRACES_EXPORTER="none", OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["False", "True"]
