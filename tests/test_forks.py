"""P71: forked processes count from 0, over connections of their own, and hear SIGTERM wherever they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_smol import forks
from tests.programs import command, environment

PROGRAM = Path(__file__).parent / "stack" / "programs_under_test" / "fork_once.py"


@contextmanager
def server() -> Iterator[tuple[str, dict[str, set[int]]]]:
    """Keeps connections open, and notes over which each process (by its instance id) sends metrics."""
    ports: dict[str, set[int]] = defaultdict(set)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("/metrics"):
                for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for attribute in each.resource.attributes:
                        if attribute.key == "service.instance.id":
                            ports[attribute.value.string_value].add(self.client_address[1])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", ports
        http.shutdown()


@pytest.mark.parametrize("mend", [True, False], ids=["mended", "the SDK alone"])
def test_parent_and_child_do_not_share_a_connection(mend: bool) -> None:
    """Requests of two processes on one connection meet and are refused; the second case shows that they would."""
    with server() as (address, ports):
        done = subprocess.run(
            command(PROGRAM),
            env=environment(address, OTEL_SMOL_MEND_FORKS=str(mend).lower()),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    parent, child = ports.values()
    assert bool(parent & child) is not mend


def test_only_our_sums_begin_again() -> None:
    """The names that `count_from_zero` relies on are those of this SDK, and others' instruments keep what they have."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    ours, others = (provider.get_meter(scope).create_counter("c") for scope in ("otel_smol", "other"))
    for counter in (ours, others):
        counter.add(5)
    forks.count_from_zero(provider, "otel_smol")
    for counter in (ours, others):
        counter.add(1)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        scope.scope.name: point.value  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert found == {"otel_smol": 1, "other": 6}


def test_what_is_no_sdk_is_left_alone() -> None:
    """Providers of other kinds, and the API's stand-ins."""
    for provider in (None, object()):
        forks.count_from_zero(provider, "otel_smol")
        forks.drop_connections([provider])
        truce = forks.Truce()
        truce.begin([provider])
        truce.end()


DEAF = """
import signal, threading, time
from otel_smol import forks

def handler(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("handler", flush=True)

signal.signal(signal.SIGTERM, handler)
forks.when_signalled(signal.SIGTERM, handler, lambda: print("acted", flush=True))
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # the main thread does not hear it, as in the race
print("ready", flush=True)
time.sleep(2)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_sigterm_is_heard_while_the_main_thread_sleeps() -> None:
    """What is to be sent is sent at once, and the main thread is woken as soon as it can be."""
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.3)  # the main thread sleeps
        began = time.monotonic()
        program.send_signal(signal.SIGTERM)
        assert program.stdout.readline() == "acted\n"
        assert time.monotonic() - began < 1
        assert program.stdout.readline() == "handler\n"
        assert time.monotonic() - began > 1
