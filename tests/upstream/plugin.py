"""A pytest plugin that writes down how each test ended and, when asked, turns the instrumentation on.

`run.py` loads it with `-p` into each pass. With `--suite-instrument` it calls `instrument()` once all plugins are
loaded, before any test is collected, and also notes every warning that we or OpenTelemetry give.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

LOGGERS = ("otel_smol", "opentelemetry")
MOST_MEMORY = 8 << 30
# Addresses, temporary paths and numbers such as ports differ between two runs of the same test.
VOLATILE = re.compile(r"0x[0-9a-f]+|/\S*|\d+")


def current_test() -> str:
    """The test that runs now, as pytest keeps it for everyone to read."""
    return os.environ.get("PYTEST_CURRENT_TEST", "between tests")


def first_line(text: str) -> str:
    """The first line that says something, without what changes from run to run."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return VOLATILE.sub("…", line)[:200]


class Outcomes:
    """How each test ended, by test id: a word, and for all but passed tests what made it so."""

    def __init__(self) -> None:
        self.by_test: dict[str, list[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        ending = self._ending(report)
        if ending is None:
            return report
        why = ""
        if call.excinfo is not None:
            why = f"{call.excinfo.typename}: {first_line(str(call.excinfo.value))}"
        before = self.by_test.get(report.nodeid)
        if before and before != ["passed", ""]:  # a failed test whose teardown fails too
            ending, why = f"{before[0]}, then {ending}", f"{before[1]}, then {why}"
        self.by_test[report.nodeid] = [ending, why]
        return report

    @staticmethod
    def _ending(report: pytest.TestReport) -> str | None:
        """A word for this phase, or None where it adds nothing to how the test ended."""
        if hasattr(report, "wasxfail"):
            return "xfailed" if report.skipped else "xpassed"
        if report.when == "call" or report.skipped:
            return report.outcome
        return "error" if report.failed else None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A test file that cannot be imported counts as one test with an error."""
        if report.outcome == "passed":
            return
        said = [line for line in str(report.longrepr).splitlines() if line.strip()]
        ending = "skipped" if report.skipped else "error"
        self.by_test[report.nodeid] = [ending, first_line(said[-1] if said else "")]


class Warned(logging.Handler):
    """What we or OpenTelemetry warned of, each text with the tests that it came up in."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.tests_by_text: dict[str, list[str]] = {}
        self.details: dict[str, None] = {}
        """What we logged below WARNING; of use only to find the cause of a warning. A dict keeps the order."""
        self._places: tuple[str, ...] = ()

    def watch(self) -> None:
        """Hang on the loggers, and know the folders that a Python warning of ours can come from."""
        import opentelemetry

        import otel_smol

        folders = [*otel_smol.__path__, *opentelemetry.__path__]
        self._places = tuple(os.path.join(folder, "") for folder in folders)
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        # The package names the place of a fault of its own at DEBUG only; to find it, we need the place.
        logging.getLogger("otel_smol").setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname} {record.name}: {record.getMessage()}"
        if record.levelno >= logging.WARNING:
            self.tests_by_text.setdefault(text, []).append(current_test())
        else:
            self.details[text] = None

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, nodeid: str) -> None:
        """A Python warning from our files, or about an exception that went through them in a thread or finalizer."""
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        if any(place in warning_message.filename or place in text for place in self._places):
            place = f"{warning_message.filename}:{warning_message.lineno}"
            self.tests_by_text.setdefault(f"{text} ({place})", []).append(nodeid)

    def told(self) -> list[str]:
        """One line for each text, with the first test that it came up in."""
        return [f"{text} [{len(tests)} times, first in {tests[0]}]" for text, tests in self.tests_by_text.items()]


class Instrumented:
    """The instrumentation on, with SDK providers that keep all they get in memory."""

    def __init__(self) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from otel_smol import SmolagentsInstrumentor

        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider(metric_readers=[self._reader])
        SmolagentsInstrumentor().instrument(tracer_provider=tracers, meter_provider=meters)

    def counts(self) -> dict[str, int]:
        """How many spans ended, and how many metrics have a value."""
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {
            "spans": len(self._spans.get_finished_spans()),
            "metrics": len({metric.name for scope in scopes for metric in scope.metrics}),
        }


class Recorder:
    """One pass: sets up what was asked for and writes the report at the end."""

    def __init__(self, report: Path, instrument: bool) -> None:
        self._report = report
        self._instrument = instrument
        self._outcomes = Outcomes()
        self._warned = Warned()
        self._counts: Callable[[], dict[str, int]] = dict

    def start(self, plugins: pytest.PytestPluginManager) -> None:
        plugins.register(self._outcomes)
        plugins.register(self)
        if self._instrument:
            self._warned.watch()
            plugins.register(self._warned)
            self._counts = Instrumented().counts

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """The last hook: until here a warning can come. Without this file `run.py` knows that the pass broke off."""
        written: dict[str, Any] = {
            "outcomes": self._outcomes.by_test,
            **self._counts(),
            "warnings": self._warned.told(),
            "details": list(self._warned.details),
        }
        self._report.write_text(json.dumps(written, indent=1), encoding="utf-8")


def limit_memory() -> None:
    """Let a test that gathers memory without end fail by itself, before it takes the machine down.

    A stand-in such as a MagicMock answers everything, an endless stream too: code that reads it whole never stops.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):  # not every system has such a limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite")
    group.addoption("--suite-report", type=Path, help="file to write the outcomes to")
    group.addoption("--suite-instrument", action="store_true", help="run with the instrumentation on")


def pytest_configure(config: pytest.Config) -> None:
    report: Path | None = config.getoption("--suite-report")
    if report is not None:
        limit_memory()
        Recorder(report, config.getoption("--suite-instrument")).start(config.pluginmanager)
