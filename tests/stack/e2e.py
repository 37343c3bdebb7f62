"""The whole way: a user's program, the shipped collector configuration, Prometheus and Jaeger, all real.

One collector carries both forms at once, so that every situation is run once: the push pipeline of
`collector-config.yaml` and the summing pipeline of `collector/one-writer.yaml`, each unchanged.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from grafana.queries import total
from tests.programs import PATIENCE, PATIENT, command, environment

from .jaeger import Jaeger
from .ports import free_ports
from .programs import PARTS, ROOT, Collector, Process, require, wait_for
from .test_prometheus import Prometheus, flags_of_the_stack, with_targets

T = TypeVar("T")

PROGRAMS = Path(__file__).parent / "programs_under_test"
EXAMPLE = ROOT / "examples" / "agent.py"

Form = Literal["push", "one writer"]
FORMS: tuple[Form, ...] = ("push", "one writer")

TOKENS = "smolagents_history_input_tokens_total"
"""A counter: the input bill, by source."""
RUN_TOKENS = "smolagents_run_input_tokens_sum"
"""A histogram's sum: the same bill, counted when a run ends."""

QUICK = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "500"}
"""A process that lives shows itself every second here, not every minute."""
ONCE = {"OTEL_METRIC_EXPORT_INTERVAL": "600000"}
"""A script exports its metrics once, at its end, as with the SDK's own minute; none lives for ten."""


@dataclass(frozen=True)
class Truth:
    """What a program was billed, by its own count."""

    input: int = 0
    output: int = 0
    calls: int = 0
    runs: int = 0

    def __add__(self, other: Truth) -> Truth:
        return Truth(
            self.input + other.input, self.output + other.output, self.calls + other.calls, self.runs + other.runs
        )

    def __sub__(self, other: Truth) -> Truth:
        return Truth(
            self.input - other.input, self.output - other.output, self.calls - other.calls, self.runs - other.runs
        )


def truth_in(line: str) -> Truth:
    """From the line that the programs print."""
    found: dict[str, int] = json.loads(line)
    return Truth(**found)


class Program:
    """A program of `programs_under_test/` under `opentelemetry-instrument`, spoken to by its input and output."""

    def __init__(self, script: Path, arguments: tuple[str, ...], variables: Mapping[str, str], errors: Path) -> None:
        self.errors = errors
        self.began = time.time()
        self._lines: list[str] = []
        with errors.open("ab") as sink:
            self._running = subprocess.Popen(
                command(script, *arguments),
                env=environment(None, **variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
            )

    @property
    def pid(self) -> int:
        return self._running.pid

    def line(self) -> str:
        """The next line that it prints; empty when it has ended."""
        assert self._running.stdout is not None
        text = self._running.stdout.readline()
        self._lines.append(text)
        return text.strip()

    def tell(self, text: str) -> None:
        """Hand it a line."""
        assert self._running.stdin is not None
        self._running.stdin.write(f"{text}\n")
        self._running.stdin.flush()

    def say(self, text: str) -> str:
        """Hand it a line, and return what it answers."""
        self.tell(text)
        return self.line()

    def runs(self, count: int) -> Truth:
        """Let `runs.py` do so many runs; what it was billed in all."""
        return truth_in(self.say(str(count)))

    def send(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    def end(self, seconds: float = 300.0) -> list[str]:
        """Close its input and wait for its end; every line that it has printed."""
        assert self._running.stdin is not None
        self._running.stdin.close()
        return self.wait(seconds)

    def wait(self, seconds: float = 300.0) -> list[str]:
        """Wait for its end, and kill it if that does not come; every line that it has printed."""
        reader = threading.Thread(target=self._read_on)  # a program that prints much must not wait for us
        reader.start()
        try:
            self._running.wait(seconds)
        finally:
            self._running.kill()
        reader.join(60)
        return [line.strip() for line in self._lines]

    def _read_on(self) -> None:
        assert self._running.stdout is not None
        self._lines += self._running.stdout.read().splitlines()

    @property
    def code(self) -> int | None:
        return self._running.poll()

    def stderr(self) -> list[str]:
        return self.errors.read_text(errors="replace").splitlines()


class Stack:
    """A collector with both forms, a Prometheus and, if wanted, a Jaeger behind it."""

    def __init__(self, folder: Path, at_the_end: ExitStack, *, traces: bool = False) -> None:
        self.folder = folder
        self._at_the_end = at_the_end
        self._numbers = itertools.count(1)
        (prometheus_port,) = free_ports(1)
        self.prometheus = Prometheus(prometheus_port)
        self.jaeger = Jaeger(folder, self._start) if traces else None
        self.collector = Collector(
            folder / "collector",
            program=require("otelcol-contrib"),
            parts=[PARTS / "one-writer.yaml"],
            OTELCOL_METRICS_ENDPOINT=self.prometheus.otlp,
            **({"OTELCOL_TRACES_ENDPOINT": self.jaeger.otlp} if self.jaeger else {}),
        )
        # `one-writer.yaml` pushes gauges only; here the push pipeline is that of `collector-config.yaml`, beside it.
        self.collector.overlay("both", {"service": {"pipelines": {"metrics": {"processors": ["memory_limiter"]}}}})
        self._at_the_end.callback(self.collector.process.stop)
        self._prometheus = self._start_prometheus(prometheus_port)
        self.collector.start()
        wait_for(lambda: self.prometheus.value("count(up == 1)") == 2, "the first scrapes")

    def _start(self, name: str, line: Any) -> Process:
        process = Process(line, self.folder / f"{name}.log")
        self._at_the_end.callback(process.kill)
        process.start()
        return process

    def _start_prometheus(self, port: int) -> Process:
        own = int(self.collector.own_metrics_url.rpartition(":")[2].partition("/")[0])
        config = with_targets(ROOT / "deploy" / "prometheus.yml", self.folder, port_8888=own)
        (self.folder / "scrape.d").mkdir()
        sums = with_targets(ROOT / "deploy" / "scrape-sums.yml", self.folder, port_8889=self.collector.scrape)
        sums.rename(self.folder / "scrape.d" / sums.name)
        ours = {"--config.file": str(config), "--storage.tsdb.path": str(self.folder / "prometheus")}
        flags = [f"{name}={ours[name]}" if (name := f.partition("=")[0]) in ours else f for f in flags_of_the_stack()]
        process = self._start("prometheus", [require("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"])
        process.wait_until_ready(f"{self.prometheus.url}/-/ready")
        return process

    @contextmanager
    def prometheus_held(self) -> Iterator[None]:
        """Prometheus stands still meanwhile, so that no scrape meets what the collector does."""
        os.kill(self._prometheus.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._prometheus.pid, signal.SIGCONT)

    def wait_for_a_scrape(self) -> None:
        """A scrape that began after this moment: the one before may have met a request half counted."""
        now, up = time.time(), 'up{job="otel_smol"}'
        wait_for(lambda: (self.prometheus.value(f"timestamp({up}) and {up} == 1") or 0) > now, "the next scrape")

    # --- programs ----------------------------------------------------------------------------------------------------

    def service(self) -> str:
        """A name that no other situation has, those in other threads included: the `job` of its series."""
        return f"service-{next(self._numbers)}"

    def variables(self, service: str, **more: str) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.otlp,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_SERVICE_NAME": service,
            **QUICK,
            **PATIENT,
            **more,
        }

    def start(self, script: str | Path, *arguments: str, service: str, **variables: str) -> Program:
        """Start a program under `opentelemetry-instrument`, sending here."""
        errors = self.folder / f"{service}.err"
        return launch(self._at_the_end, script, *arguments, errors=errors, **self.variables(service, **variables))

    # --- questions ---------------------------------------------------------------------------------------------------

    def matchers(self, form: Form, service: str) -> dict[str, str]:
        """What tells the two forms apart: scraped series have the address they were scraped from for an instance."""
        return {"job": service, "instance": f"{'!=' if form == 'push' else ''}127.0.0.1:{self.collector.scrape}"}

    def total(
        self,
        form: Form,
        service: str,
        metric: str = TOKENS,
        *,
        begin: float,
        end: float | None = None,
        query: Callable[..., str] = total,
    ) -> float:
        """A total over the window between two moments, in the PromQL that dashboards and rules use. Nothing is 0."""
        end = end or time.time()
        window = f"{max(1, round((end - begin) * 1000))}ms"
        expression = query(metric, window, **self.matchers(form, service))
        return self.prometheus.value(expression, end) or 0.0

    def wait_for_last(
        self, form: Form, service: str, expected: float, metric: str = TOKENS, seconds: float = PATIENCE
    ) -> bool:
        """Wait until the newest values of all series of a service add up to this; False when they do not in time."""
        expression = f"sum(last_over_time({metric}{{{self._selector(form, service)}}}[10m]))"
        until = time.monotonic() + seconds
        while self.prometheus.value(expression) != expected:
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    def series(self, form: Form, service: str) -> float:
        """How many series a service has had. Not the gauges of live runs: they show only if an export meets a run."""
        names = "target_info|smolagents_active_.*"
        expression = f'count(last_over_time({{__name__!~"{names}", {self._selector(form, service)}}}[1h]))'
        return self.prometheus.value(expression) or 0.0

    def _selector(self, form: Form, service: str) -> str:
        instance = f"127.0.0.1:{self.collector.scrape}"
        return f'job="{service}", instance{"!=" if form == "push" else "="}"{instance}"'


class Row(Protocol):
    """One row of a table, by its name."""

    @property
    def name(self) -> str: ...


class Rows(Generic[T]):
    """What came of each row, which is brought about once; an exception belongs to the tests of its row alone."""

    def __init__(self) -> None:
        self._found: dict[str, T | BaseException] = {}

    def note(self, row: Row, act: Callable[[], T]) -> None:
        """Bring a row about."""
        try:
            self._found[row.name] = act()
        except BaseException as failure:
            self._found[row.name] = failure

    def came_about(self, rows: Iterable[Row]) -> list[T]:
        """Those of these rows that raised nothing."""
        return [found for row in rows if not isinstance(found := self._found[row.name], BaseException)]

    def __getitem__(self, row: Row) -> T:
        found = self._found[row.name]
        if isinstance(found, BaseException):
            raise found
        return found


def launch(at_the_end: ExitStack, script: str | Path, *arguments: str, errors: Path, **variables: str) -> Program:
    """Start a program under `opentelemetry-instrument`; it does not outlive the test."""
    path = PROGRAMS / script if isinstance(script, str) else script
    program = Program(path, arguments, variables, errors)
    at_the_end.callback(_kill, program)
    return program


def _kill(program: Program) -> None:
    if program.code is None:
        program.send(signal.SIGKILL)


@contextmanager
def running(folder: Path, *, traces: bool = False) -> Iterator[Stack]:
    """The stack while it runs; whatever was started is stopped at the end, however that comes."""
    with ExitStack() as at_the_end:
        yield Stack(folder, at_the_end, traces=traces)
