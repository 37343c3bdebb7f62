"""P71: forked processes count from 0, over connections of their own, and hear SIGTERM wherever they are.

What else a fork may meet: locks that other threads hold, an outage, an SDK that is built otherwise, forks within forks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_smol import forks
from tests.programs import PATIENCE, PROGRAM_SECONDS, command, environment, run
from tests.stack.sink import Sink

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")

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

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64  # many processes may send in the same instant

    with Server(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", ports
        http.shutdown()


@pytest.mark.parametrize("mend", [True, False], ids=["mended", "the SDK alone"])
def test_parent_and_child_do_not_share_a_connection(mend: bool) -> None:
    """Requests of two processes on one connection meet and are refused; the second case shows that they would."""
    with server() as (address, ports):
        done = subprocess.run(
            command(PROGRAM),
            # From Python 3.12 on a fork beside other threads is warned of; the SDK always has some.
            env=environment(address, OTEL_SMOL_MEND_FORKS=str(mend).lower(), PYTHONWARNINGS="ignore"),
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    if not mend and len(ports) == 1:
        return  # SDK 1.43: the two have even one instance id
    parent, child = ports.values()
    assert bool(parent & child) is not mend


def counted(reader: InMemoryMetricReader) -> dict[str, float]:
    """The sum of each scope."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        scope.scope.name: point.value  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


@pytest.fixture
def counting() -> Iterator[tuple[MeterProvider, InMemoryMetricReader]]:
    """An SDK in which otel_smol and somebody else have counted 5 each."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    for scope in ("otel_smol", "other"):
        provider.get_meter(scope).create_counter("c").add(5)
    yield provider, reader
    provider.shutdown()


def test_only_our_sums_begin_again(counting: tuple[MeterProvider, InMemoryMetricReader]) -> None:
    """The names that are relied on are those of this SDK, and others' instruments keep what they have."""
    provider, reader = counting
    forks.check([provider], "otel_smol")
    assert counted(reader) == {"otel_smol": 5, "other": 5}
    forks.begin_anew([provider], "otel_smol")
    for scope in ("otel_smol", "other"):
        provider.get_meter(scope).create_counter("c").add(1)
    assert counted(reader) == {"otel_smol": 1, "other": 6}


RENAMED = {
    "_measurement_consumer": lambda provider: provider,
    "_reader_storages": lambda provider: provider._measurement_consumer,
    "_lock": lambda provider: next(iter(provider._measurement_consumer._reader_storages.values())),
    "_instrument_view_instrument_matches": lambda provider: next(
        iter(provider._measurement_consumer._reader_storages.values())
    ),
}
"""What an SDK might call otherwise, and what has it."""


@pytest.mark.parametrize("name", RENAMED)
def test_an_sdk_built_otherwise_is_left_alone(name: str, counting: tuple[MeterProvider, InMemoryMetricReader]) -> None:
    """The parent finds out, and a child that tried all the same would have changed nothing."""
    provider, reader = counting
    consumer: Any = provider._measurement_consumer
    locks = [consumer._lock, *(storage._lock for storage in consumer._reader_storages.values())]
    owner: Any = RENAMED[name](provider)
    kept = vars(owner).pop(name)
    for attempt in (forks.check, forks.begin_anew):
        with pytest.raises(AttributeError, match=name):
            attempt([provider], "otel_smol")
    setattr(owner, name, kept)
    assert [consumer._lock, *(storage._lock for storage in consumer._reader_storages.values())] == locks
    assert counted(reader) == {"otel_smol": 5, "other": 5}


def test_what_is_no_sdk_is_left_alone() -> None:
    """Providers of other kinds, and the API's stand-ins."""
    strangers = [None, object()]
    forks.check(strangers, "otel_smol")
    forks.begin_anew(strangers, "otel_smol")
    truce = forks.Truce()
    truce.begin(strangers)
    truce.end()


class Signed(requests.Session):
    """A session with something of its own, as clouds have them."""

    secret: object = None


class Pinned(requests.adapters.HTTPAdapter):
    """An adapter that cannot be copied."""

    def __init__(self, pin: str) -> None:
        self.pin = pin
        super().__init__()

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **more: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, assert_fingerprint=self.pin, **more)


def test_the_user_s_session_stays_as_it_is() -> None:
    """Only the connections are new: session, adapters, and what they know, are the user's."""
    session, adapter = Signed(), Pinned("pin")
    session.mount("https://", adapter)
    session.auth, session.verify, session.secret = ("user", "password"), "/a/file", object()
    session.cookies.set("a", "1")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter("http://127.0.0.1:9", session=session)))
    kept = {name: vars(session)[name] for name in vars(session) if name != "cookies"}
    adapters: list[Any] = list(session.adapters.values())
    pools = [each.poolmanager for each in adapters]
    forks.begin_anew([provider], "otel_smol")
    provider.shutdown()
    assert {name: vars(session)[name] for name in kept} == kept
    assert session.adapters["https://"] is adapter
    assert adapter.poolmanager.connection_pool_kw["assert_fingerprint"] == "pin"
    assert session.cookies.get_dict() == {"a": "1"}
    assert not {id(each.poolmanager) for each in adapters} & {id(each) for each in pools}


# --- programs that fork ----------------------------------------------------------------------------------------------

START = """
import os, signal, subprocess, sys, threading, time
from tests.scripted import Truth
from tests.stack.programs_under_test.common import one_run

def forked(act):
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # a child that hangs ends by that
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

one_run(Truth())
"""
NOWHERE = {f"OTEL_{each}_EXPORTER": "none" for each in ("TRACES", "METRICS", "LOGS")}
AS_PYTHON_WARNS = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
"""From Python 3.12 on a fork beside other threads is warned of; the SDK always has some."""


def ends_well(folder: Path, source: str, endpoint: str | None = None, **variables: str) -> str:
    """Run a program under `opentelemetry-instrument`; what it printed. It must not say a word on stderr."""
    nowhere = {} if endpoint else NOWHERE
    done = run(folder, START + source, endpoint, **nowhere, **AS_PYTHON_WARNS, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_locks_that_other_threads_hold(tmp_path: Path) -> None:
    """A server's thread counts, or looks a model up, while another one forks: the child's agents do not wait for it."""
    source = """
import gc
locks = [(type(each), name) for each in gc.get_objects() if str(type(each).__module__).startswith("otel_smol")
         for name, value in getattr(each, "__dict__", {}).items() if hasattr(value, "acquire") and value.acquire(False)]
modules = [(name, key) for name, module in sys.modules.items() if name.startswith("otel_smol")
           for key, value in vars(module).items() if hasattr(value, "acquire") and value.acquire(False)]
from opentelemetry import metrics
consumer = metrics.get_meter_provider()._measurement_consumer
for storage in consumer._reader_storages.values():
    for matches in storage._instrument_view_instrument_matches.values():
        for match in matches:
            match._lock.acquire()
def hold():  # an RLock is another thread's
    for storage in consumer._reader_storages.values():
        storage._lock.acquire()
    held.set()
    time.sleep(600)
held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
assert held.wait(60)
def child():
    threading.Thread(target=one_run, args=(Truth(),)).run()
    print(len(locks), len(modules), "done", flush=True)
assert forked(child) == 0
os._exit(0)
"""
    with server() as (address, _):
        held, of_modules, done = ends_well(tmp_path, source, address).split()
    assert done == "done"
    assert int(held) >= 5
    assert int(of_modules) >= 2


def test_forks_in_an_outage_are_not_slow(tmp_path: Path) -> None:
    """An export that goes on for long is waited for once, a quarter of a second, and not at each fork.

    Told by the fork in the middle: on a busy machine any of them may take longer than that by itself.
    """
    source = """
from opentelemetry import trace
(processor,) = trace.get_tracer_provider()._active_span_processor._span_processors
processor._batch_processor._export_lock.acquire()  # an export that hangs
seconds = []
for _ in range(30):
    began = time.monotonic()
    assert forked(lambda: None) == 0
    seconds.append(time.monotonic() - began)
print(seconds[0], sorted(seconds[1:])[len(seconds) // 2])
os._exit(0)
"""
    with server() as (address, _):
        first, usual = map(float, ends_well(tmp_path, source, address).split())
    assert first > 0.2  # the control: it did wait
    assert usual < 0.2


def test_an_unknown_sdk_is_said_once(tmp_path: Path) -> None:
    """Three forks, and forks of the children: one line in all, and every child runs its agent."""
    source = """
from opentelemetry.sdk.metrics._internal.metric_reader_storage import MetricReaderStorage as Storage
from opentelemetry import metrics
for storage in metrics.get_meter_provider()._measurement_consumer._reader_storages.values():
    vars(storage)["_renamed"] = vars(storage).pop("_instrument_view_instrument_matches")
Storage._instrument_view_instrument_matches = property(lambda self: {}[self])  # whoever asks gets a KeyError
Storage.consume_measurement = lambda *_: None
Storage.collect = lambda *_: None
def child():
    one_run(Truth())
    assert forked(lambda: None) == 0
for _ in range(3):
    assert forked(child) == 0
"""
    with server() as (address, _):
        done = run(tmp_path, START + source, address, **AS_PYTHON_WARNS)
        quiet = run(tmp_path, START + source, address, OTEL_SMOL_MEND_FORKS="false", **AS_PYTHON_WARNS)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "OTEL_SMOL_MEND_FORKS=false" in line
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_a_child_that_leaves_at_once(tmp_path: Path) -> None:
    """`os.fork` and `os._exit`, from the main thread and from another: the child's code is the parent's to read."""
    source = """
def leave():
    os._exit(7)
codes = [forked(leave)]
thread = threading.Thread(target=lambda: codes.append(forked(leave)))
thread.start()
thread.join()
print(codes)
"""
    with server() as (address, ports):
        assert ends_well(tmp_path, source, address) == "[7, 7]\n"
    assert len(ports) == 1  # the parent's


def test_other_processes_are_untouched(tmp_path: Path) -> None:
    """`subprocess` and spawned workers are no forks: nothing of ours happens before them."""
    source = """
import multiprocessing
from otel_smol import forks
forks.Truce.begin = lambda *_: print("fork", flush=True)
if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    worker = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert forked(lambda: None) == 0
"""
    printed = ends_well(tmp_path, source).split()
    assert printed == ["child", "spawned", "fork"]  # the control: a fork is seen


def test_no_thread_where_nothing_is_sent(tmp_path: Path) -> None:
    """Nor a warning of Python's at a fork; the SDK with exporters has threads of its own (the control)."""
    source = "print(threading.active_count(), forked(lambda: None))"
    done = run(tmp_path, START + source, None, **NOWHERE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 0\n", "")
    with server() as (address, _):
        threads, code = ends_well(tmp_path, source, address).split()
    assert int(threads) > 1
    assert code == "0"


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_an_exporter_that_came_late(end: str, tmp_path: Path) -> None:
    """No exporter by variables, but one by the program's own code: it sends what is there at the end all the same."""
    source = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor
address = sys.argv[1] + "/v1/traces"
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter(address)))
one_run(Truth())
"""
    sink = Sink().start()
    try:
        done = run(tmp_path, f"{START}{source}{end}", None, sink.url, **NOWHERE)
    finally:
        sink.stop()
    assert (done.returncode, done.stderr) == (0 if "exit" in end else -signal.SIGTERM, "")
    assert len(sink.spans()) == 10


def test_a_worker_does_not_hear_its_children_s_signals(tmp_path: Path) -> None:
    """A process that a `multiprocessing` worker forks is ended by SIGTERM: that is not the worker's."""
    source = """
import multiprocessing
def work():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(9))  # in Python, so that it is written into the pipe
        os.write(writer, b"!")
        for _ in range(6000):
            time.sleep(0.1)  # one long sleep would sleep over a signal that comes just before it
        os._exit(0)
    os.read(reader, 1)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    time.sleep(0.5)
    print("worker", flush=True)
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
print(worker.exitcode)
"""
    assert ends_well(tmp_path, source).split() == ["9", "worker", "0"]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_of_an_sdk_that_the_program_set_up(method: str, tmp_path: Path) -> None:
    """Without `opentelemetry-instrument` a worker sends what it has, too, before it ends."""
    source = """
import multiprocessing, sys
from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from otel_smol import SmolagentsInstrumentor
from tests.scripted import Truth
from tests.stack.programs_under_test.common import one_run

provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(sys.argv[1] + "/v1/metrics"))])
SmolagentsInstrumentor().instrument(meter_provider=provider)

def work():
    one_run(Truth())

if __name__ == "__main__":
    workers = [multiprocessing.get_context(sys.argv[2]).Process(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
"""
    program = tmp_path / "program.py"
    program.write_text(source)
    with server() as (address, ports):
        done = subprocess.run(
            [sys.executable, str(program), address, method],
            env=environment(None, **AS_PYTHON_WARNS),
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(ports) == 2


def test_a_worker_that_alone_imports_smolagents(tmp_path: Path) -> None:
    """The parent has never heard of agents, so nothing of ours was there when it forked."""
    source = """
import multiprocessing, sys

def work():
    from tests.scripted import Truth
    from tests.stack.programs_under_test.common import one_run
    one_run(Truth())

if __name__ == "__main__":
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert "smolagents" not in sys.modules
"""
    with server() as (address, ports):
        done = run(tmp_path, source, address, **AS_PYTHON_WARNS)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(ports) == 1


DEAF = """
import os, signal, sys, threading, time
from otel_smol import forks

begun = threading.RLock()

def handler(*_):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    with begun:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("handler", flush=True)
    time.sleep(0.3)  # it sends what there is
    print("sent", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

def sleep():
    os.read(0, 1)

def asleep():  # others see it in the second line only when it has let go of the interpreter there, so in the read
    frame = sys._current_frames()[main]
    return frame.f_code is sleep.__code__ and frame.f_lineno > frame.f_code.co_firstlineno

def watch():
    while not asleep():
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(600)

main = threading.get_ident()
signal.signal(signal.SIGTERM, handler)
forks.when_signalled(signal.SIGTERM, handler, begun, lambda: print("acted", flush=True))
threading.Thread(target=watch, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # the main thread does not hear it, as in the race
sleep()
"""


def test_sigterm_is_heard_while_the_main_thread_sleeps() -> None:
    """What is to be sent is sent at once; the main thread is woken as soon as it can be, and ends in peace."""
    with subprocess.Popen(
        [sys.executable, "-c", DEAF], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGTERM)
        assert program.stdout.readline() == "acted\n"  # while the main thread sleeps: it does so until it is told
        program.stdin.close()
        assert program.stdout.readline() == "handler\n"
        assert program.stdout.readline() == "sent\n"
        assert program.wait(PATIENCE) == -signal.SIGTERM
