"""Starts the heavy programs on 127.0.0.1, with everything switched off that would look for a network."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.programs import ROOT
from tests.stack.programs import get, wait_for

OFFLINE = {
    "DO_NOT_TRACK": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_MODEL_CATALOG_URI": "",  # or the first trace waits for a price list from the network
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "NO_PROXY": "127.0.0.1",
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    "PHOENIX_ENABLE_MCP_SERVER": "false",
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "no_proxy": "127.0.0.1",
}
"""For servers and agents alike."""

_INSTRUMENTATIONS = {point.name for point in importlib.metadata.entry_points(group="opentelemetry_instrumentor")}
ALONE = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ",".join(sorted(_INSTRUMENTATIONS - {"otel_smol"}))}
"""For agents: whatever else is installed beside the tests adds spans of its own."""

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1

START_SECONDS = 300.0
"""Phoenix and MLflow need 15 to 35 seconds on two idle cores, and more when these have other things to do."""


@functools.cache
def _look_up(name: str) -> tuple[Path | None, str]:
    """The environment's Python, or None and the line that says how to get it, both in the words of `build.py`."""
    command = [sys.executable, str(ROOT / "tools" / "backends" / "build.py"), "--check", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return Path(lines[0].split(maxsplit=2)[2]), ""
    return None, lines[-1] if lines else done.stderr


def require(name: str) -> Path:
    """The environment's Python. Without it the test is skipped; in CI (OTEL_SMOL_REQUIRE_BACKENDS=1) it fails."""
    python, how_to_get = _look_up(name)
    if python is not None:
        return python
    if os.environ.get("OTEL_SMOL_REQUIRE_BACKENDS") == "1":
        pytest.fail(how_to_get, pytrace=False)
    pytest.skip(how_to_get)


def _end_with_parent() -> None:
    """A test run that is killed cleans nothing up: let the kernel do it, where it can."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    """A running program and its children, all of which end with it. Its output goes to a file."""

    def __init__(self, command: Sequence[str | Path], folder: Path, **variables: str) -> None:
        self._command, self._folder, self._variables = command, folder, variables
        self._running: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        # Nothing of the developer's own settings, and a home of its own: these programs keep caches and ids there.
        ours = ("MLFLOW_", "OTEL_", "PHOENIX_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        with (self._folder / "server.log").open("wb") as output:
            self._running = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**kept, **OFFLINE, "HOME": str(self._folder), **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Ask, wait, then end whatever is left of it."""
        if self._running is None:
            return
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._running.wait(10)
        self._signal(signal.SIGKILL)
        self._running.wait(60)  # it may be writing to a slow disk

    def wait_for_answer(self, url: str) -> None:
        """Waits until it answers with 200; fails with its output when it ends, or does not answer in time."""

        def answers() -> bool:
            if self._running is None or self._running.poll() is not None:
                pytest.fail(f"{self._command[0]} ended at once:\n{self.output()}")
            return get(url, 10.0)[0] == 200

        wait_for(answers, lambda: f"an answer of {url}\n{self.output()}", START_SECONDS)

    def output(self) -> str:
        """The end of what it printed."""
        return (self._folder / "server.log").read_text(errors="replace")[-3000:]

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._running is not None:
                os.killpg(self._running.pid, number)


def post_json(url: str, question: dict[str, Any]) -> Any:
    """Ask a server in JSON."""
    request = urllib.request.Request(url, json.dumps(question).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)
