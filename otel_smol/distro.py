"""Defaults under `opentelemetry-instrument` that the SDK does not have: an end in time, and few words about an outage.

With a collector that is gone, the SDK's own exit takes as long as its retries, one signal after the other: 7 to 20 s;
and each retry is a line on stderr, 20 to 32 of them in a minute. Both can be switched off (`OTEL_SMOL_EXIT_SECONDS=0`,
`OTEL_SMOL_QUIET_EXPORTERS=false`).
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry._logs import get_logger_provider

from otel_smol import forks
from otel_smol.guard import guarded, logger

if TYPE_CHECKING:
    from _thread import LockType as Lock

SECONDS_OF_SILENCE = 600.0
"""How long the same failure is not said again."""

BIRTH_SECONDS = 0.002
"""Between the last value and the last export: a histogram that was born within the same millisecond would have no zero
before it in Prometheus, so a restart under the same instance id could not be told from going on."""

EXPORTERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.sdk._shared_internal",
)
"""The loggers that speak when something cannot be sent; the last one says when spans are thrown away meanwhile."""


def providers() -> list[Any]:
    """The process's SDK: traces, metrics and logs. Not the API's stand-ins, which have nothing to send."""
    found = (trace.get_tracer_provider(), metrics.get_meter_provider(), get_logger_provider())
    return [provider for provider in found if hasattr(provider, "shutdown")]


class QuietExporters(logging.Filter):
    """Lets an exporter's failure through once in ten minutes, and no retry at all."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""
        """The last one that an exporter gave for a retry; its final word does not have it."""
        self._said: dict[tuple[str, str], float] = {}

    def install(self) -> None:
        for name in EXPORTERS:
            logging.getLogger(name).addFilter(self)

    def remove(self) -> None:
        for name in EXPORTERS:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        if text.startswith(("Transient error", "Shutdown in progress")):
            self.reason = text
            return False
        key, now = (record.name, _what_failed(text)), time.monotonic()
        if now - self._said.get(key, -SECONDS_OF_SILENCE) < SECONDS_OF_SILENCE:
            return False
        self._said[key] = now
        because = f" ({self.reason[:300]})" if self.reason else ""
        record.args = ()
        record.msg = (
            f"{text}{because} The program goes on without it. otel_smol: not said again for "
            f"{SECONDS_OF_SILENCE / 60:g} minutes; OTEL_SMOL_QUIET_EXPORTERS=false shows every failure."
        )
        return True


def _what_failed(text: str) -> str:
    """Signal, endpoint and code, which tell one failure from another; not its details, sizes and ports."""
    return re.sub(r"\d{4,}", "#", text.partition(", error details")[0])


class Exit:
    """Ends the runs that are left and shuts the SDK down, all signals at once and in a given time.

    The threads that do it wait from the beginning: since Python 3.12 none can be started when the process ends, and a
    signal handler may have interrupted the main thread within any lock. So whoever leaves opens one lock and looks at
    a list, and takes no lock that another could hold.
    """

    def __init__(self, seconds: float, end_runs: Callable[[], None], quiet: QuietExporters | None) -> None:
        self.seconds, self._end_runs, self._quiet = seconds, end_runs, quiet
        self.prepare()

    def prepare(self) -> None:
        """Start the threads; again in a forked child, to which they do not come along. Only one is waited for.

        None as long as nothing can be sent: from Python 3.12 on whoever forks beside another thread is warned.
        """
        self._begun, self._dismissed, self._done = False, False, list[Any]()
        self._gate, self._gates, self._count = _closed(), [(_closed(), each) for each in providers()], 0
        if self._sends():
            self._count = len(self._gates)
            _start(self._coordinate)

    def begin(self) -> None:
        """Let the threads go. Safe to call twice, from a signal handler too."""
        if not self._begun:
            self._begun = True
            with suppress(RuntimeError):  # another thread has just done the same, or the process ends already
                if not self._count and not self._dismissed and self._sends():  # the program gave it an exporter since
                    start_new_thread(self._coordinate, ())  # one that takes no lock
                    self._count = len(self._gates)
                self._gate.release()

    def _sends(self) -> bool:
        return not all(forks.idle(provider) for _, provider in self._gates)

    def dismiss(self) -> None:
        """Let the threads go home: nothing is to be done."""
        self._dismissed = True
        self.begin()

    def leave(self, *, aloud: bool = True) -> None:
        """Send what is there. What is not sent in time is lost, and one line says so."""
        self.begin()
        until = time.monotonic() + self.seconds
        while len(self._done) < self._count:
            if time.monotonic() > until:
                if aloud:
                    self._complain()
                return
            time.sleep(0.005)

    def _complain(self) -> None:
        reason = self._quiet.reason if self._quiet is not None else ""
        logger.warning(
            "otel_smol: not all telemetry could be sent within %g s of the end, the rest is lost "
            "(OTEL_SMOL_EXIT_SECONDS). %s",
            self.seconds,
            reason[:300],
        )

    def _coordinate(self) -> None:
        gates = self._gates
        alone = [each for each in gates if not _starts(self._shut_down, *each)]
        self._gate.acquire()
        if not self._dismissed:
            self._end_runs()
            time.sleep(BIRTH_SECONDS)
        for opened, _ in gates:
            opened.release()
        for each in alone:
            self._shut_down(*each)

    def _shut_down(self, gate: Lock, provider: Any) -> None:
        gate.acquire()
        if not self._dismissed:
            with guarded("shutting the SDK down"):
                atexit.unregister(provider.shutdown)  # the SDK's own, which would wait for its retries
                provider.shutdown()
        self._done.append(provider)


def _closed() -> Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _start(act: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=act, args=arguments, name="otel_smol-exit", daemon=True).start()


def _starts(act: Callable[..., None], *arguments: Any) -> bool:
    """False if the process ends already, and no thread can be started."""
    try:
        _start(act, *arguments)
    except RuntimeError:
        return False
    return True
