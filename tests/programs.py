"""Programs of users, run as they would run them: `opentelemetry-instrument python agent.py`, in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent import futures
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from otel_smol import otlp
from otel_smol.otlp import MetricPoint, SpanData

ROOT = Path(__file__).resolve().parent.parent
DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
TOOL = Path(sys.executable).with_name("opentelemetry-instrument")
PATIENCE = 120.0
"""Seconds for whatever comes by itself: a fault is to be seen by them, not that the machine has other things to do."""
PROGRAM_SECONDS = 300
"""How long a program may take that should end by itself: one takes seconds, and more on a busy machine."""
PATIENT = {"OTEL_SMOL_EXIT_SECONDS": "60", "OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
"""A machine that stands still for a while is no reason to lose what a test compares."""

AGENT = """
from smolagents import CodeAgent
from tests.scripted import Script, agent, step_replies

script = Script(*step_replies(CodeAgent, {steps}))
subject = agent(CodeAgent, script, name="{name}")
print(subject.run("the task"))
print(script.truth.calls, script.truth.input_tokens, script.truth.output_tokens)
"""


def agent_program(steps: int = 4, name: str = "helper") -> str:
    """A script with one agent that runs once, and prints the truth."""
    return AGENT.format(steps=steps, name=name)


def environment(endpoint: str | None, **variables: str) -> dict[str, str]:
    """The environment of a program: nothing of OpenTelemetry's but what the test says.

    Other instrumentations that happen to be installed are switched off by name.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    http = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", **PATIENT}
    to = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **http} if endpoint else {}
    off = [entry.name for entry in entry_points(group="opentelemetry_instrumentor") if entry.name != "otel_smol"]
    off.append(variables.pop(DISABLED, ""))
    path = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", DISABLED: ",".join(filter(None, off))}
    return {**clean, **path, **to, **variables}


def command(program: Path, *arguments: str) -> list[str]:
    """`opentelemetry-instrument python program`."""
    return [str(TOOL), sys.executable, str(program), *arguments]


def run(
    folder: Path, source: str, endpoint: str | None, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    program = write(folder, source)
    return subprocess.run(
        command(program, *arguments),
        env=environment(endpoint, **variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )


def start(folder: Path, source: str, endpoint: str | None, **variables: str) -> subprocess.Popen[str]:
    """Start a program and leave it to the test. Its input is open until `communicate()`."""
    return subprocess.Popen(
        command(write(folder, source)),
        env=environment(endpoint, **variables),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write(folder: Path, source: str) -> Path:
    """Put a program into a file."""
    program = folder / "agent.py"
    program.write_text(source)
    return program


class GrpcReceiver:
    """OTLP over gRPC on loopback."""

    def __init__(self) -> None:
        self._spans: list[SpanData] = []
        self._points: list[MetricPoint] = []
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(self), self._server)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> GrpcReceiver:
        self._server.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()

    def spans(self) -> list[SpanData]:
        """All spans so far."""
        with self._lock:
            return list(self._spans)

    def metrics(self) -> list[MetricPoint]:
        """All metric points so far."""
        with self._lock:
            return list(self._points)

    def take_spans(self, request: Any) -> None:
        """Keep the spans of a request."""
        with self._lock:
            self._spans += otlp.spans(request)

    def take_points(self, request: Any) -> None:
        """Keep the metric points of a request."""
        with self._lock:
            self._points += otlp.metric_points(request)


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    def __init__(self, receiver: GrpcReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        self._receiver.take_spans(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):  # type: ignore[misc]
    def __init__(self, receiver: GrpcReceiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        self._receiver.take_points(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()
