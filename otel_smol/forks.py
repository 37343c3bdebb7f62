"""Forked processes: each counts from 0, speaks over connections of its own, and sends what it has before it ends.

The SDK gives a forked child a `service.instance.id` and exporting threads of its own. Four things it leaves as they
are (tests/stack/test_totals.py measures what comes of them):

- the child begins with the sums of the parent, and exports them as its own: with one run before the fork and two
  workers every total is too high by two runs;
- parent and children share one kept-alive connection: requests that meet on it are refused as 400 and lost;
- a fork in the middle of an export copies locks that nobody in the child will ever open (seen in one of 25 pools: an
  import within `requests`), and the child exports nothing;
- a `multiprocessing` worker ends by `os._exit`, so nothing is exported: of a pool's runs none arrived.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider

MOST_SECONDS_BEFORE_FORK = 0.25

_left_behind: list[Any] = []


class Truce:
    """No export goes on while a process forks, if it can be awaited in a quarter of a second."""

    def __init__(self) -> None:
        self._held: dict[int, list[Any]] = {}

    def begin(self, providers: list[Any]) -> None:
        """Before the fork: wait for the exports that go on, and hold new ones up."""
        until = time.monotonic() + MOST_SECONDS_BEFORE_FORK
        held = self._held[threading.get_ident()] = list[Any]()
        for sender in _senders(providers):
            lock = getattr(sender, "_export_lock", None)
            if lock is not None and lock.acquire(timeout=max(0.0, until - time.monotonic())):
                held.append(lock)

    def end(self) -> None:
        """After it, in the parent. In the child the locks are new ones."""
        for lock in self._held.pop(threading.get_ident(), ()):
            lock.release()


def count_from_zero(provider: Any, scope: str) -> None:
    """In a forked child: forget what the instruments of this scope had counted in the parent.

    There is no public way. The names are those of opentelemetry-sdk 1.43 to 1.45; a test holds them.
    """
    if not isinstance(provider, MeterProvider):
        return
    consumer: Any = provider._measurement_consumer
    consumer._lock = threading.Lock()  # another thread of the parent may have held it
    for reader, storage in consumer._reader_storages.items():
        storage._lock = threading.RLock()
        kept = {
            instrument: matches
            for instrument, matches in storage._instrument_view_instrument_matches.items()
            if instrument.instrumentation_scope.name != scope
        }
        storage._instrument_view_instrument_matches = kept
        if hasattr(reader, "_export_lock"):
            reader._export_lock = threading.Lock()  # held if the parent was exporting at the fork


def drop_connections(providers: list[Any]) -> None:
    """In a forked child: give every OTLP/HTTP exporter a session of its own, set up like the parent's.

    The parent's is not closed but kept out of the way: another thread may have held its locks at the fork.
    """
    for sender in _senders(providers):
        exporter = getattr(sender, "_exporter", None)
        owner: Any = getattr(getattr(exporter, "_client", None), "_transport", exporter)
        session = getattr(owner, "_session", None)
        if owner is not None and session is not None and hasattr(session, "adapters"):
            _left_behind.append(session)
            fresh = copy.copy(session)
            fresh.adapters = type(session.adapters)((at, copy.copy(each)) for at, each in session.adapters.items())
            owner._session = fresh


def _senders(providers: list[Any]) -> Iterator[Any]:
    """What calls the exporters: periodic readers and batch processors."""
    for provider in providers:
        yield from getattr(provider, "_metric_readers", ())
        for holder, name in (
            ("_active_span_processor", "_span_processors"),
            ("_multi_log_record_processor", "_log_record_processors"),
        ):
            for processor in getattr(getattr(provider, holder, None), name, ()):
                yield getattr(processor, "_batch_processor", None)


def when_worker(owner: object, act: Callable[[Any, Any], None]) -> None:
    """In a forked child, right after the fork: if it becomes a `multiprocessing` worker, run `act(owner, util)` when it
    begins, with `multiprocessing.util`. Finalizers of the parent are thrown away just before that.
    """
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(owner, lambda owner: act(owner, util))


def when_signalled(number: signal.Signals, handler: Any, act: Callable[[], None]) -> None:
    """Run `act` in a thread as soon as the signal comes, wherever the main thread is; only in a worker.

    A handler in Python waits until the main thread is back in the interpreter. `Pool.terminate()` comes just when a
    worker goes to sleep on a lock of the pool, and if it comes between the last look and the sleep, the worker sleeps
    for ever (seen in one of twenty pools). So the thread also wakes the main thread, as long as the handler is ours.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if others != -1:  # an event loop's; it wakes by itself
        signal.set_wakeup_fd(others)
        return
    arguments = (reader, number, handler, act)
    threading.Thread(target=_wait_for, args=arguments, name="otel_smol-signal", daemon=True).start()


def _wait_for(reader: int, number: signal.Signals, handler: Any, act: Callable[[], None]) -> None:
    with suppress(OSError):  # somebody closed the pipe
        while came := os.read(reader, 64):
            if number in came and signal.getsignal(number) == handler:
                act()
                while signal.getsignal(number) == handler:  # until it has begun
                    time.sleep(0.05)
                    signal.pthread_kill(threading.main_thread().ident or 0, number)
                return
