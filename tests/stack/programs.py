"""Finds, starts and stops the real programs. Everything listens on 127.0.0.1, on ports of `ports.py`."""

from __future__ import annotations

import functools
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.programs import PATIENCE

from .ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "collector-config.yaml"
PARTS = ROOT / "collector"


@functools.cache
def _look_up(name: str) -> tuple[str | None, str]:
    """The program's path, or None and the line that says how to get it, both in the words of `build.py`."""
    command = [sys.executable, str(ROOT / "tools" / "stack" / "build.py"), "--check", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return lines[0].split(maxsplit=2)[2], ""
    return None, lines[-1] if lines else done.stderr


def require(name: str) -> str:
    """The program's path. Without it the test is skipped, and in CI (OTEL_SMOL_REQUIRE_STACK=1) it fails."""
    path, how_to_get = _look_up(name)
    if path is not None:
        return path
    if os.environ.get("OTEL_SMOL_REQUIRE_STACK") == "1":
        pytest.fail(how_to_get, pytrace=False)
    pytest.skip(how_to_get)


def wait_for(condition: Callable[[], bool], what: str | Callable[[], str], seconds: float = PATIENCE) -> None:
    """Polls until the condition holds; fails the test with `what`, as it is by then, when it does not in time."""
    until = time.monotonic() + seconds
    while True:
        late = time.monotonic() > until  # the last look comes after that: the machine may have stood still
        if condition():
            return
        if late:
            pytest.fail(f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.05)


def get(url: str, timeout: float = 60.0, accept: str = "*/*") -> tuple[int, str]:
    """Status and body; status 0 when nobody answers."""
    try:
        request = urllib.request.Request(url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""


def get_json(url: str) -> Any:
    status, body = get(url)
    assert status == 200, f"{url}: {status} {body[:300]}"
    return json.loads(body)


@dataclass
class Process:
    """One running program with its output in a file."""

    command: Sequence[str]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    _running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # Nothing of the developer's own settings may reach the programs.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OTELCOL_", "OTEL_SMOL_"))}
        with self.log.open("ab") as output:
            self._running = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**kept, **self.variables}
            )

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.pid

    def alive(self) -> bool:
        return self._running is not None and self._running.poll() is None

    def kill(self) -> None:
        """SIGKILL, as the kernel does it when memory is short."""
        if self._running is not None:
            self._running.kill()
            self._running.wait(60)  # it may be writing to a slow disk

    def stop(self) -> None:
        if self._running is None or not self.alive():
            return
        self._running.terminate()
        try:
            self._running.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_until_ready(self, url: str, seconds: float = PATIENCE) -> None:
        def ready() -> bool:
            if not self.alive():
                pytest.fail(f"{self.command[0]} ended at once:\n{self.output()[-3000:]}")
            return get(url, 10.0)[0] == 200

        wait_for(ready, lambda: f"{url} of {self.command[0]}\n{self.output()[-3000:]}", seconds)


class Collector:
    """The shipped configuration, unchanged, in a real collector; ports and folders come by its own variables."""

    def __init__(self, folder: Path, *, program: str, parts: Sequence[Path] = (), **variables: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.grpc, self.http, health, own, scrape = free_ports(5)
        self.otlp = f"http://127.0.0.1:{self.http}"
        self.health_url = f"http://127.0.0.1:{health}/"
        self.own_metrics_url = f"http://127.0.0.1:{own}/metrics"
        self.scrape = scrape
        self.scrape_url = f"http://127.0.0.1:{scrape}/metrics"
        configs = [f"--config={path}" for path in (CONFIG, *parts)]
        self.process = Process(
            [program, *configs],
            folder / "collector.log",
            {
                "OTELCOL_BIND": "127.0.0.1",
                "OTELCOL_ADMIN_BIND": "127.0.0.1",
                "OTELCOL_SCRAPE_BIND": "127.0.0.1",
                "OTELCOL_GRPC_PORT": str(self.grpc),
                "OTELCOL_HTTP_PORT": str(self.http),
                "OTELCOL_HEALTH_PORT": str(health),
                "OTELCOL_METRICS_PORT": str(own),
                "OTELCOL_SCRAPE_PORT": str(scrape),
                "OTELCOL_STORAGE_DIR": str(folder / "queue"),
                # A port where nobody listens, so that a test that needs no backend names none.
                "OTELCOL_TRACES_ENDPOINT": "http://127.0.0.1:9",
                "OTELCOL_METRICS_ENDPOINT": "http://127.0.0.1:9",
                **variables,
            },
        )

    def start(self) -> Collector:
        self.process.start()
        self.process.wait_until_ready(self.health_url)
        return self

    def overlay(self, name: str, content: Mapping[str, Any]) -> None:
        """Adds a test's own configuration on top. JSON is YAML."""
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(content))
        self.process.command = [*self.process.command, f"--config={path}"]


def run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **(variables or {})}
    )
