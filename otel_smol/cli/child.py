"""Starting an agent in a child process under the real `opentelemetry-instrument`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

COMMAND = "opentelemetry-instrument"
ENTRY_POINT = "otel_smol"
STDERR_LINES = 15
"""How much of a failed child's stderr is shown."""
SIGNALLED = 128
"""The exit status after a signal is this and its number, as in a shell."""
ROOT = Path(__file__).resolve().parent.parent.parent
"""The folder that has otel_smol in it."""


class ChildError(Exception):
    """The child could not be started or failed; the text is for the user."""


def find_command() -> str:
    """The `opentelemetry-instrument` that belongs to this Python, not any other on the path."""
    folders = (Path(sys.executable).parent, sysconfig.get_path("scripts"), Path(sys.argv[0]).parent)
    found = shutil.which(COMMAND, path=os.pathsep.join(map(str, folders)))
    if found is None:
        raise ChildError(
            f"{COMMAND} is not installed beside {Path(sys.executable).name}: "
            "pip install --force-reinstall opentelemetry-instrumentation brings it"
        )
    return os.path.abspath(found)  # the child is started in another folder


def environment(user: Mapping[str, str], endpoint: str, service: str) -> dict[str, str]:
    """The user's environment without anything that could send telemetry elsewhere, and with our endpoint."""
    kept = {name: value for name, value in user.items() if not name.startswith("OTEL_")}
    others = sorted({point.name for point in entry_points(group="opentelemetry_instrumentor")} - {ENTRY_POINT})
    return kept | {
        "OTEL_SERVICE_NAME": service,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_BSP_MAX_QUEUE_SIZE": "16384",  # a long run is over before the exporter has begun
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ",".join(others),
        "PYTHONPATH": _python_path(user.get("PYTHONPATH", "")),
        "NO_PROXY": "127.0.0.1",  # loopback is not to go through a proxy
        "no_proxy": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def _python_path(user: str) -> str:
    """The user's PYTHONPATH as it has to be in another folder."""
    entries = [entry for entry in user.split(os.pathsep) if entry]
    try:
        here = Path.cwd()
    except FileNotFoundError:  # deleted, and what was in it as well
        return os.pathsep.join(filter(os.path.isabs, entries))
    from_checkout = [str(ROOT)] if here.resolve() == ROOT else []  # it may be found nowhere else
    return os.pathsep.join([*from_checkout, *(str(here / entry) for entry in entries)])


def run(module: str, arguments: Sequence[str], endpoint: str, service: str) -> None:
    """Run a module to its end, its stdout hidden. Raises `ChildError`."""
    command = [find_command(), sys.executable, "-m", module, *arguments]
    child: subprocess.Popen[str] | None = None
    signals: list[int] = []

    def end(number: int, _: object) -> None:
        signals.append(number)
        if child is not None:
            child.kill()

    try:
        # In a folder of its own: Python would import from the user's, and take their queue.py for the standard one.
        with _on_signals(end), tempfile.TemporaryDirectory(prefix="otel-smol-", ignore_cleanup_errors=True) as folder:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment(os.environ, endpoint, service),
                cwd=folder,
            )
            if signals:  # one came while the child was being started
                child.kill()
            stderr = _wait(child)
    except OSError as error:
        raise ChildError(f"cannot start the agent: {error}") from error
    if signals:
        raise SystemExit(SIGNALLED + signals[0])
    if child.returncode:
        tail = "\n".join(stderr.splitlines()[-STDERR_LINES:])
        raise ChildError(f"the agent ended with status {child.returncode}, and said last:\n{tail}")


def _wait(child: subprocess.Popen[str]) -> str:
    """Until the end; returns its stderr."""
    try:
        _, stderr = child.communicate()
    except BaseException:  # Ctrl-C: it has got one as well, but may take its time
        child.kill()
        child.wait()
        raise
    return stderr


@contextlib.contextmanager
def _on_signals(handler: Callable[[int, object], None]) -> Iterator[None]:
    """SIGTERM and SIGHUP go to the handler, unless they are ignored (`nohup`) or somebody handles them already."""
    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
