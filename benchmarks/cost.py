"""What watching costs: CPU per step over the bare agent, against the floor; exported bytes per step; start of a child.

    python -m benchmarks.cost [--steps 5,20,80,160] [--repeats 7] [--agent code|tool-calling] [--profile]

The floor is the bare SDK emitting the very spans, attributes and metric points of the same run, precomputed: what
nobody can do without. The second floor makes the spans of calls and tools with opentelemetry-util-genai, which we build
on: what lies between the two is the library's. The last ratio has the agent on both sides: what the whole process takes
watched, to what it takes with the floor. All are measured in one process, in turns, and the fastest of the
repeats counts. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.emission import Emission, RecordingMeterProvider, Replay

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
LIMIT, GROWTH, CHILD_MS = 1.5, 1.05, 100.0
"""The bounds: ratio to the floor, exponent of the bytes, milliseconds that a child interpreter may take longer."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="5,20,80,160", help="numbers of steps, with commas")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--agent", choices=("code", "tool-calling"), default="code")
    parser.add_argument("--profile", action="store_true", help="profile the instrumented run of the most steps instead")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    steps = [int(n) for n in arguments.steps.split(",")]
    if arguments.child or arguments.profile:
        if arguments.profile:
            profile(arguments.agent, max(steps))
        else:
            print(json.dumps(measure(arguments.agent, steps, arguments.repeats)))
        return 0
    return report(arguments, steps)


def report(arguments: argparse.Namespace, steps: list[int]) -> int:
    """Measure in children, print tables, and say whether the bounds hold."""
    console, fine = Console(), True
    for content in ("NO_CONTENT", "SPAN_ONLY"):
        rows = _child(arguments, content)
        fine &= print_cost(console, content, rows)
    fine &= print_start(console)
    return 0 if fine else 1


def print_cost(console: Console, content: str, rows: dict[str, dict[str, float]]) -> bool:
    """One table: a row for each number of steps."""
    table = Table(title=f"µs of CPU per step, {'content on' if content == 'SPAN_ONLY' else 'content off'}")
    for name in ("steps", "bare agent", "added", "floor", "÷ floor", "floor with util-genai", "÷ it", "agent ÷ agent"):
        table.add_column(name, justify="right")
    table.add_column("bytes per step", justify="right")
    worst = worst_whole = 0.0
    for n, row in rows.items():
        added, floor, library = (row[name] - row["bare"] for name in ("watched", "floor", "library"))
        whole = row["watched"] / row["floor"]
        worst, worst_whole = max(worst, added / floor), max(worst_whole, whole)
        table.add_row(
            n,
            *(f"{value:,.0f}" for value in (row["bare"], added, floor)),
            f"{added / floor:.2f}",
            f"{library:,.0f}",
            f"{added / library:.2f}",
            f"{whole:.2f}",
            f"{row['bytes'] / int(n):,.0f}",
        )
    console.print(table)
    exponent = growth({int(n): row["bytes"] for n, row in rows.items()})
    console.print(f"highest ratio {worst:.2f} (bound {LIMIT}), with the agent on both sides {worst_whole:.2f}")
    console.print(f"bytes grow as steps^{exponent:.3f} (bound {GROWTH})\n")
    return worst <= LIMIT and exponent <= GROWTH


def growth(sizes: dict[int, float]) -> float:
    """The exponent e of size ~ steps^e between a quarter of the largest number of steps and the largest."""
    high = max(sizes)
    low = max((n for n in sizes if n <= high / 4), default=min(sizes))
    return math.log(sizes[high] / sizes[low]) / math.log(high / low) if high != low else 1.0


def print_start(console: Console) -> bool:
    """How much longer an interpreter takes to start that has nothing to do with smolagents."""
    bare, watched = (_start_time(disabled) for disabled in ("otel_smol", ""))
    added = (watched - bare) * 1000
    console.print(
        f"a child interpreter under opentelemetry-instrument: {bare * 1000:,.0f} ms without otel_smol, "
        f"{added:+,.0f} ms with it (bound {CHILD_MS:.0f})"
    )
    return added < CHILD_MS


def _start_time(disabled: str) -> float:
    tool = os.path.join(os.path.dirname(sys.executable), "opentelemetry-instrument")
    installed = entry_points(group="opentelemetry_instrumentor")
    others = [entry.name for entry in installed if entry.name != "otel_smol"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")} | {
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ",".join([*others, disabled]),
        **{f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")},
    }
    times = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([tool, sys.executable, "-c", "pass"], env=environment, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def _child(arguments: argparse.Namespace, content: str) -> dict[str, dict[str, float]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")} | {CONTENT: content}
    command = [sys.executable, "-m", "benchmarks.cost", "--child", "--steps", arguments.steps]
    command += ["--repeats", str(arguments.repeats), "--agent", arguments.agent]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(agent: str, steps: list[int], repeats: int) -> dict[str, dict[str, float]]:
    """µs of CPU per step: bare, watched, with either floor; and the bytes of the run's spans as OTLP."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    from benchmarks.emission import Emission, LibraryReplay, RecordingMeterProvider, Replay, providers
    from otel_smol import SmolagentsInstrumentor

    tracer_provider, meter_provider, keep = providers()
    instrumentor = SmolagentsInstrumentor()
    found: dict[str, dict[str, float]] = {}
    for n in steps:
        recording = RecordingMeterProvider()
        instrumentor.instrument(tracer_provider=tracer_provider, meter_provider=recording)
        spans: list[Any] = []
        keep.spans = spans
        run_agent(agent, n)
        keep.spans = None
        instrumentor.uninstrument()
        emission, floor = Emission(spans, recording.measurements), providers()
        check(agent, n, emission, len(spans), recording)
        times: dict[str, list[float]] = {"bare": [], "watched": [], "floor": [], "library": []}
        for _ in range(repeats):
            times["bare"].append(_cpu(partial(run_agent, agent, n)))
            instrumentor.instrument(tracer_provider=tracer_provider, meter_provider=meter_provider)
            times["watched"].append(_cpu(partial(run_agent, agent, n)))
            instrumentor.uninstrument()
            for name, replay in (("floor", Replay), ("library", LibraryReplay)):
                times[name].append(_cpu(partial(_replayed, agent, n, replay(emission, floor[0], floor[1]))))
        found[str(n)] = {name: min(values) / n * 1e6 for name, values in times.items()}
        found[str(n)]["bytes"] = len(encode_spans(spans).SerializeToString())
    return found


def check(agent: str, steps: int, emission: Emission, spans: int, recorded: RecordingMeterProvider) -> None:
    """The floor emits as many spans and measurements as the run did."""
    from benchmarks.emission import RecordingMeterProvider, Replay, providers

    again, (tracer_provider, _, keep) = RecordingMeterProvider(), providers()
    keep.spans = []
    _replayed(agent, steps, Replay(emission, tracer_provider, again))  # type: ignore[arg-type]
    assert (len(keep.spans), len(again.measurements)) == (spans, len(recorded.measurements))


def profile(agent: str, steps: int) -> None:
    """Where the time of an instrumented run goes."""
    import cProfile
    import pstats

    from benchmarks.emission import providers
    from otel_smol import SmolagentsInstrumentor

    tracer_provider, meter_provider, _ = providers()
    SmolagentsInstrumentor().instrument(tracer_provider=tracer_provider, meter_provider=meter_provider)
    run_agent(agent, 3)
    profiler = cProfile.Profile()
    profiler.enable()
    run_agent(agent, steps)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("cumulative").print_stats("otel_smol|opentelemetry", 60)


def _cpu(act: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    act()
    return time.process_time() - start


def _replayed(agent: str, steps: int, replay: Replay) -> None:
    run_agent(agent, steps, replay)
    replay.end()


def run_agent(agent: str, steps: int, replay: Replay | None = None) -> None:
    from smolagents import CodeAgent, ToolCallingAgent

    from tests.scripted import Script, make_tool, step_replies
    from tests.scripted import agent as make_agent

    cls = CodeAgent if agent == "code" else ToolCallingAgent
    script = Script(*step_replies(cls, steps))
    tool = make_tool(script.truth, size=2000)
    if replay is not None:
        answer, forward = script.answer, tool.forward
        script.answer = lambda messages: answer(replay.call(messages))  # type: ignore[method-assign]
        tool.forward = lambda *args: forward(*replay.tool(*args))
    make_agent(cls, script, tools=[tool], max_steps=steps + 1).run("the task")


if __name__ == "__main__":
    sys.exit(main())
