"""How many agent steps one collector takes with the shipped configuration, and what a process pays for sending them.

    python -m benchmarks.collector [--seconds 5] [--steps 5,20,80,160] [--repeats 5]

Needs the collector of `make stack`. All runs on this machine, on loopback, for about four minutes: recorded runs of a
real agent are sent as fast as four connections allow, and a backend that takes everything stands behind the collector.
They share the machine's cores, so the CPU per step says more than the steps per second. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import http.client
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from benchmarks.cost import CONTENT, growth, run_agent
from tests.programs import TOOL, environment
from tests.stack.exposition import samples, total
from tests.stack.programs import Collector, require, wait_for

RUN_STEPS = 20
"""Steps of the recorded run, which is one request."""
CONNECTIONS = 4
STEPS_PER_CHILD = 640
"""What a process does when its cost is taken: as many runs as make so many steps."""
MODULE = [sys.executable, "-m", "benchmarks.collector"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--steps", default="5,20,80,160", help="steps per run, with commas")
    parser.add_argument("--repeats", type=int, default=5, help="processes per cell, of which the cheapest counts")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        record(Path(arguments.record))
        return 0
    if arguments.work:
        print(work(arguments.work))
        return 0
    console = Console(width=100)
    steps = [int(n) for n in arguments.steps.split(",")]
    with tempfile.TemporaryDirectory() as folder, backend() as url:
        console.print(collector_table(Path(folder), url, arguments.seconds))
        console.print(process_table(Path(folder), url, steps, arguments.repeats))
    return 0


# --- the collector ---------------------------------------------------------------------------------------------------


def collector_table(folder: Path, backend_url: str, seconds: float) -> Table:
    """Steps per second and CPU per thousand steps: as shipped, with content, and without a sync for each request."""
    table = Table(title=f"one collector, {os.cpu_count()} cores, requests of {RUN_STEPS} steps")
    for name in ("", "bytes per step", "steps per s", "CPU ms per 1,000 steps", "memory, MB", "refused"):
        table.add_column(name, justify="right" if name else "left")
    for name, content, fsync in (
        ("as shipped", "NO_CONTENT", "true"),
        ("with content", "SPAN_ONLY", "true"),
        ("OTELCOL_FSYNC=false", "NO_CONTENT", "false"),
    ):
        payload = recorded_run(folder, content)
        collector = Collector(
            folder / name,
            program=require("otelcol-contrib"),
            OTELCOL_TRACES_ENDPOINT=backend_url,
            OTELCOL_METRICS_ENDPOINT=backend_url,
            OTELCOL_FSYNC=fsync,
        ).start()
        try:
            table.add_row(name, *load(collector, payload, seconds))
        finally:
            collector.process.kill()
    return table


def load(collector: Collector, payload: bytes, seconds: float) -> list[str]:
    """Send for so many seconds and wait until the backend has it all; the rate is that of the whole."""
    pid = collector.process.pid
    cpu, began = cpu_of(pid), time.monotonic()
    until = began + seconds
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        counts = list(pool.map(lambda _: send_until(collector.otlp, payload, until), range(CONNECTIONS)))
    taken, refused = (sum(each) for each in zip(*counts, strict=True))
    wait_for(lambda: _sent(collector) == _accepted(collector), "the backend to have it all", 60)
    steps, elapsed = taken * RUN_STEPS, time.monotonic() - began
    return [
        f"{len(payload) / RUN_STEPS:,.0f}",
        f"{steps / elapsed:,.0f}",
        f"{(cpu_of(pid) - cpu) / steps * 1e6:,.0f}",
        f"{memory_of(pid):,.0f}",
        f"{refused:,}",
    ]


def send_until(url: str, payload: bytes, until: float) -> tuple[int, int]:
    """One connection: requests that were taken, and those that were refused."""
    taken = refused = 0
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    while time.monotonic() < until:
        connection.request("POST", "/v1/traces", payload, {"Content-Type": "application/x-protobuf"})
        answer = connection.getresponse()
        answer.read()
        taken, refused = (taken + 1, refused) if answer.status == 200 else (taken, refused + 1)
    connection.close()
    return taken, refused


def _accepted(collector: Collector) -> float:
    return total(samples(collector.own_metrics_url), "otelcol_receiver_accepted_spans")


def _sent(collector: Collector) -> float:
    return total(samples(collector.own_metrics_url), "otelcol_exporter_sent_spans")


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    """Megabytes at its highest."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def recorded_run(folder: Path, content: str) -> bytes:
    """The spans of a real run as one request; made in a child, since content is switched by a variable."""
    file = folder / content
    if not file.exists():
        subprocess.run([*MODULE, "--record", str(file)], env={**environment(None), CONTENT: content}, check=True)
    return file.read_bytes()


def record(file: Path) -> None:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    from benchmarks.emission import providers
    from otel_smol import SmolagentsInstrumentor

    tracer_provider, meter_provider, keep = providers()
    SmolagentsInstrumentor().instrument(tracer_provider=tracer_provider, meter_provider=meter_provider)
    keep.spans = []
    run_agent("code", RUN_STEPS)
    file.write_bytes(encode_spans(keep.spans).SerializeToString())


# --- the process -----------------------------------------------------------------------------------------------------


def process_table(folder: Path, backend_url: str, steps: list[int], repeats: int) -> Table:
    """CPU of the whole process per step, exporting threads included: not watched, watched, watched and exported."""
    table = Table(title="one process, µs of CPU per step")
    for name in ("steps per run", "bare agent", "watched", "watched and exported", "export adds"):
        table.add_column(name, justify="right")
    collector = Collector(
        folder / "process",
        program=require("otelcol-contrib"),
        OTELCOL_TRACES_ENDPOINT=backend_url,
        OTELCOL_METRICS_ENDPOINT=backend_url,
    ).start()
    added = {}
    try:
        for n in steps:
            bare = min(child(n, None, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="otel_smol") for _ in range(repeats))
            watched = min(child(n, None) for _ in range(repeats))
            exported = min(child(n, collector.otlp) for _ in range(repeats))
            added[n] = exported - watched
            table.add_row(str(n), *(f"{value:,.0f}" for value in (bare, watched, exported, added[n])))
    finally:
        collector.process.kill()
    if len(added) > 1 and min(added.values()) > 0:
        exponent = growth({n: value * n for n, value in added.items()})
        table.caption = f"the cost of exporting a run grows as steps^{exponent:.2f}"
    return table


def child(steps: int, endpoint: str | None, **variables: str) -> float:
    """µs of CPU per step of a process under `opentelemetry-instrument`."""
    nowhere = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")} if not endpoint else {}
    done = subprocess.run(
        [str(TOOL), *MODULE, "--work", str(steps)],
        env=environment(endpoint, **nowhere, **variables),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def work(steps: int) -> float:
    """Runs of so many steps; their CPU, what the exporting threads took included."""
    from opentelemetry import metrics, trace

    run_agent("code", 3)
    runs = max(1, STEPS_PER_CHILD // steps)
    began = time.process_time()
    for _ in range(runs):
        run_agent("code", steps)
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        if hasattr(provider, "force_flush"):
            provider.force_flush()
    return (time.process_time() - began) / (runs * steps) * 1e6


# --- the backend -----------------------------------------------------------------------------------------------------


@contextmanager
def backend() -> Iterator[str]:
    """Takes everything and keeps nothing, in this process: the little it does is the same for every row."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
