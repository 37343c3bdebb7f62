"""Run a real smolagents agent and see what its steps cost.

The agent's model follows a script: no key, no network and no server are needed. It runs in a process of its own under
opentelemetry-instrument, as yours would, and sends OpenTelemetry data to this command, which shows what arrived.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from otel_smol import semconv as sc
from otel_smol.cli import child, screen, svg
from otel_smol.cli.demo_script import MANAGER, RESEARCHER
from otel_smol.cli.output import show
from otel_smol.otlp import SpanData
from otel_smol.rebuild import kind, runs
from otel_smol.receiver import Receiver
from otel_smol.records import RunRecord

AGENT_MODULE = "otel_smol.cli.demo_agent"
SERVICE = "otel-smol-demo"
DEFAULT_STEPS, MAX_STEPS = 12, 500
ARRIVAL_SECONDS = 5
"""How long to wait for the last spans. They are sent before the child ends, so this is for slow machines only."""
INTERRUPTED = 130
NOTE = (
    "A real smolagents agent under opentelemetry-instrument; its model is scripted (4 characters = 1 token). All "
    "numbers come from the OpenTelemetry data it sent."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--steps",
        type=_steps,
        default=DEFAULT_STEPS,
        metavar="N",
        help=f"how many steps the agent takes, 1 to {MAX_STEPS} (default: {DEFAULT_STEPS})",
    )
    parser.add_argument(
        "--agent",
        type=_agent,
        default="code",
        metavar="KIND",
        help="code or tool-calling: smolagents' CodeAgent or ToolCallingAgent (default: code)",
    )
    parser.add_argument("--managed", action="store_true", help="let a second agent work for the first")
    parser.add_argument("--svg", type=_writable, metavar="FILE", help="also write the curve as a picture")


def _steps(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_STEPS:
        raise argparse.ArgumentTypeError(f"give a whole number from 1 to {MAX_STEPS}, not {text!r}")
    return int(text)


def _agent(text: str) -> str:
    if text not in ("code", "tool-calling"):
        raise argparse.ArgumentTypeError(f"give code or tool-calling, not {text!r}")
    return text


def _writable(text: str) -> Path:
    path = Path(text)
    if os.path.isdir(path) or not os.path.isdir(path.parent):  # not Path's: they raise where we may not look
        raise argparse.ArgumentTypeError(f"give a file in a folder that exists, not {text!r}")
    try:
        _try_to_write(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error.strerror}; give another file") from None
    return path


def _try_to_write(path: Path) -> None:
    """Raise what writing would raise, before the run is made. Leaves no trace."""
    if path.is_file():
        os.close(os.open(path, os.O_WRONLY))
    elif path.exists():  # a device or a pipe: to open it may be noticed
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    else:
        real = Path(os.path.realpath(path))  # a link may lead to where nothing is yet
        real.open("xb").close()
        real.unlink()


def run(arguments: argparse.Namespace) -> int:
    """Run the agent, show what arrived; returns the exit status."""
    try:
        record = measure(arguments.steps, arguments.agent, arguments.managed, Console(stderr=True))
    except child.ChildError as error:
        sys.stderr.write(f"otel-smol demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    status = 0 if arguments.svg is None else _write(arguments.svg, svg.curve(record))
    return max(status, show("otel-smol demo", lambda: screen.show(record, Console(), NOTE)))


def measure(steps: int, agent: str, managed: bool, talk: Console) -> RunRecord:
    """Run the agent in a child process and return what its telemetry says. Raises `ChildError`."""
    with Receiver() as receiver:
        with _progress(receiver, MANAGER if managed else RESEARCHER, steps, talk):
            options = [str(steps), agent, *(["managed"] if managed else [])]
            child.run(AGENT_MODULE, options, receiver.endpoint, SERVICE)
            receiver.wait_for(lambda r: bool(_finished(r.spans())), ARRIVAL_SECONDS)
        found = _finished(receiver.spans())
    if not found:
        raise child.ChildError("the agent has run, but its telemetry did not arrive: is loopback (127.0.0.1) blocked?")
    return found[0]


def _finished(spans: Sequence[SpanData]) -> list[RunRecord]:
    return [run for run in runs(spans) if run.state is not None]


@contextlib.contextmanager
def _progress(receiver: Receiver, agent: str, steps: int, talk: Console) -> Iterator[None]:
    """Show how far the agent is, from the spans of its steps; nothing where there is no terminal."""
    if not talk.is_terminal:
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=talk, transient=True) as progress:
        task = progress.add_task("the agent runs, step", total=steps)

        def advance(spans: Sequence[SpanData]) -> None:
            progress.advance(task, sum(kind(s) == "step" and s.attributes.get(sc.AGENT_NAME) == agent for s in spans))

        receiver.on_spans(advance)
        yield


def _write(path: Path, text: str | None) -> int:
    if text is None:
        sys.stderr.write("otel-smol demo: no curve to draw, a prompt's size is unknown\n")
        return 1
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"otel-smol demo: cannot write {path}: {error.strerror}\n")
        return 1
    sys.stderr.write(f"The curve is in {path}.\n")
    return 0
