"""Starting an agent in a child process under the real `opentelemetry-instrument`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

COMMAND = "opentelemetry-instrument"
ENTRY_POINT = "otel_smol"
STDERR_LINES = 15
"""How much of a failed child's stderr is shown."""


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
    return found


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
        "NO_PROXY": "127.0.0.1",  # loopback is not to go through a proxy
        "no_proxy": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def run(module: str, arguments: Sequence[str], endpoint: str, service: str) -> None:
    """Run a module to its end, its stdout hidden. Raises `ChildError`."""
    command = [find_command(), sys.executable, "-m", module, *arguments]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(os.environ, endpoint, service),
    )
    try:
        _, stderr = child.communicate()
    except BaseException:  # Ctrl-C: it has got one as well, but may take its time
        child.kill()
        child.wait()
        raise
    if child.returncode:
        tail = "\n".join(stderr.splitlines()[-STDERR_LINES:])
        raise ChildError(f"the agent ended with status {child.returncode}, and said last:\n{tail}")
