"""Forked processes: each counts from 0, speaks over connections of its own, and sends what it has before it ends.

The SDK gives a forked child exporting threads of its own and, from 1.44 on, a `service.instance.id` of its own; this
module sees to the latter with 1.43. Five things the SDK leaves as they are (tests/stack/test_totals.py and
tests/test_forks.py show what comes of them):

- the child begins with the sums of the parent, and exports them as its own: with one run before the fork and two
  workers every total is too high by two runs;
- parent and children share one kept-alive connection: requests that meet on it are refused as 400 and lost;
- a fork in the middle of an export copies locks that nobody in the child will ever open (seen in one of 25 pools: an
  import within `requests`), and the child exports nothing;
- so does a fork while another thread counts, and the child's agent would wait for ever when it counts itself;
- a `multiprocessing` worker ends by `os._exit`, so nothing is exported: of a pool's runs none arrived.

There is no public way to do any of this. `check` looks in the parent, before each fork, whether the SDK is built as
those we know; if not, the child is left as the SDK made it.
"""

from __future__ import annotations

import copy
import functools
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from threading import RLock

MOST_SECONDS_BEFORE_FORK = 0.25
SECONDS_WITHOUT_WAITING = 60.0
"""After it waited in vain: in an outage every export lasts seconds, and a program that forks often must not notice."""

SENDERS = (
    ("opentelemetry.sdk.metrics", "MeterProvider", ("_measurement_consumer", "_reader_storages")),
    ("opentelemetry.sdk.trace", "TracerProvider", ("_active_span_processor", "_span_processors")),
    ("opentelemetry.sdk._logs", "LoggerProvider", ("_multi_log_record_processor", "_log_record_processors")),
)
"""Where a provider of the SDK keeps what calls the exporters: periodic readers and batch processors."""

OTLP_OVER_HTTP = "opentelemetry.exporter.otlp.proto.http."

_LOCKS = type(threading.Lock()), type(threading.RLock())

_left_behind: list[Any] = []
_wakeup: int | None = None


class Truce:
    """No export goes on while a process forks, if it can be awaited in a quarter of a second."""

    def __init__(self) -> None:
        self._held: dict[int, list[Any]] = {}
        self._patient_from = 0.0

    def begin(self, providers: Iterable[Any]) -> None:
        """Before the fork: wait for the exports that go on, and hold new ones up."""
        began = time.monotonic()
        until = began + (MOST_SECONDS_BEFORE_FORK if began >= self._patient_from else 0)
        held = self._held[threading.get_ident()] = list[Any]()
        for sender in _senders(providers):
            lock = getattr(sender, "_export_lock", None)
            if lock is None:
                continue
            if lock.acquire(timeout=max(0.0, until - time.monotonic())):
                held.append(lock)
            else:
                self._patient_from = time.monotonic() + SECONDS_WITHOUT_WAITING

    def end(self) -> None:
        """After it, in the parent and in the child."""
        for lock in self._held.pop(threading.get_ident(), ()):
            lock.release()


class Change(NamedTuple):
    """An attribute that is to have another value in a forked child."""

    owner: Any
    name: str
    value: Any


def check(providers: Iterable[Any], scope: str) -> None:
    """In the parent, changing nothing. Raises `AttributeError` or the like where the SDK is not built as we know it."""
    for provider in providers:
        _new_beginning(provider, scope)
    for sender in _senders(providers):
        _sessions(sender)


def begin_anew(providers: Iterable[Any], scope: str) -> None:
    """In a forked child: the instruments of this scope count from 0, and every exporter has connections of its own."""
    # First all that can fail, then the changes: half of them would be worse than none.
    changes = [change for provider in providers for change in _new_beginning(provider, scope)]
    sessions = [session for sender in _senders(providers) for session in _sessions(sender)]
    for owner, name, value in changes:
        setattr(owner, name, value)
    for session in sessions:
        _leave_connections(session)


def _new_beginning(provider: Any, scope: str) -> list[Change]:
    """What lets a meter provider forget what the parent's instruments had counted, and the locks of its threads.

    The names are those of opentelemetry-sdk 1.43 to 1.45; a test holds them.
    """
    sdk: Any = sys.modules.get("opentelemetry.sdk.metrics")
    if sdk is None or not isinstance(provider, sdk.MeterProvider):
        return []
    consumer = provider._measurement_consumer
    changes = [_change(consumer, "_lock", threading.Lock())]
    for reader, storage in list(consumer._reader_storages.items()):
        kept = {
            instrument: matches
            for instrument, matches in list(storage._instrument_view_instrument_matches.items())
            if instrument.instrumentation_scope.name != scope
        }
        changes += [
            _change(storage, "_lock", threading.RLock()),
            _change(storage, "_instrument_view_instrument_matches", kept),
        ]
        if hasattr(reader, "_export_lock"):
            changes.append(_change(reader, "_export_lock", threading.Lock()))  # held if the parent was exporting
    if not hasattr(provider, "_handle_fork"):  # before 1.44 the SDK left the child the parent's instance id
        config = provider._sdk_config
        own = type(config.resource)({"service.instance.id": str(uuid.uuid4())})
        changes.append(_change(config, "resource", config.resource.merge(own)))
    return changes


def _change(owner: Any, name: str, value: Any) -> Change:
    getattr(owner, name)  # what is not there must not be made
    return Change(owner, name, value)


def idle(provider: Any) -> bool:
    """Whether this is a provider of the SDK that nothing was given to send with."""
    for module, name, path in SENDERS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(provider, kind):
            with suppress(AttributeError):
                return not functools.reduce(getattr, path, provider)
    return False


def _senders(providers: Iterable[Any]) -> Iterator[Any]:
    for provider in providers:
        for module, name, path in SENDERS:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None and isinstance(provider, kind):
                for each in list(functools.reduce(getattr, path, provider)):
                    yield getattr(each, "_batch_processor", each)


def _sessions(sender: Any) -> list[Any]:
    """The `requests.Session` of an OTLP/HTTP exporter. gRPC sees to its connections itself."""
    exporter: Any = getattr(sender, "_exporter", None)
    if not any(str(base.__module__).startswith(OTLP_OVER_HTTP) for base in type(exporter).__mro__):
        return []
    owner = exporter
    if hasattr(exporter, "_client"):  # from 1.45 on
        owner = exporter._client._transport
        if not str(type(owner).__module__).startswith("opentelemetry.") or hasattr(owner, "_pool"):
            return []  # a transport that is not the SDK's, or not its usual one
    return [owner._session] if hasattr(owner._session, "adapters") else []


def _leave_connections(session: Any) -> None:
    """Give a session connections of its own, and its user's settings and adapters as they are.

    The parent's are not closed but kept out of the way: another thread may have held their locks at the fork.
    """
    _left_behind.append(session.cookies)
    session.cookies = copy.copy(session.cookies)
    for adapter in session.adapters.values():
        if hasattr(adapter, "init_poolmanager"):
            _left_behind.append((adapter.poolmanager, adapter.proxy_manager))
            adapter.proxy_manager = {}
            adapter.init_poolmanager(adapter._pool_connections, adapter._pool_maxsize, block=adapter._pool_block)


def own_locks(root: object) -> list[tuple[Any, str]]:
    """The locks of our modules, and of what the root leads to by attributes: who has them, and by which name."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("otel_smol.")]
    seen, found, locks = set[int](), [*modules, root], []
    while found:
        owner = found.pop()
        if id(owner) not in seen:
            seen.add(id(owner))
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                if isinstance(value, _LOCKS):
                    locks.append((owner, name))
                elif str(type(value).__module__).startswith("otel_smol."):
                    found.append(value)
    return locks


def open_locks(locks: Iterable[tuple[Any, str]]) -> None:
    """In a forked child. Whoever of the parent held one stayed behind, and the agent would wait for it."""
    for owner, name in locks:
        lock = threading.Lock() if isinstance(getattr(owner, name), _LOCKS[0]) else threading.RLock()
        setattr(owner, name, lock)


def when_worker(owner: object, act: Callable[[Any, Any], None]) -> None:
    """In a forked child, right after the fork: if it becomes a `multiprocessing` worker, run `act(owner, util)` when it
    begins, with `multiprocessing.util`. Finalizers of the parent are thrown away just before that.
    """
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.register_after_fork(owner, lambda owner: act(owner, util))


def in_worker(owner: object, act: Callable[[Any, Any], None]) -> None:
    """The same in a worker that imports smolagents itself: its fork is past, or there was none."""
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is not None and util is not None:
        if process.parent_process() is not None:
            act(owner, util)
        elif getattr(process.current_process(), "_inheriting", False):  # it imports the main module, and then begins
            when_worker(owner, act)


def when_signalled(number: signal.Signals, handler: Any, begun: RLock, act: Callable[[], None]) -> None:
    """Run `act` in a thread as soon as the signal comes, wherever the main thread is; only in a worker.

    A handler in Python waits until the main thread is back in the interpreter. `Pool.terminate()` comes just when a
    worker goes to sleep on a lock of the pool, and if it comes between the last look and the sleep, the worker sleeps
    for ever (seen in one of twenty pools). So the thread also wakes the main thread, as long as the handler is ours.
    The handler holds `begun` while it gives itself up: the signal that wakes must not come after that, and end all.
    """
    global _wakeup
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if others != -1:  # an event loop's; it wakes by itself
        signal.set_wakeup_fd(others)
        os.close(reader)
        os.close(writer)
        return
    _wakeup = writer
    arguments = (reader, number, handler, begun, act)
    threading.Thread(target=_wait_for, args=arguments, name="otel_smol-signal", daemon=True).start()


def leave_signals() -> None:
    """In a forked child of a worker: its signals are not the worker's, but the pipe is."""
    global _wakeup
    if _wakeup is not None:
        others = signal.set_wakeup_fd(-1)
        if others not in (-1, _wakeup):
            signal.set_wakeup_fd(others)
        _wakeup = None


def _wait_for(reader: int, number: signal.Signals, handler: Any, begun: RLock, act: Callable[[], None]) -> None:
    main = threading.main_thread().ident or 0
    with suppress(OSError):  # somebody closed the pipe
        while came := os.read(reader, 64):
            if number in came and signal.getsignal(number) == handler:
                act()
                while _wake(main, number, handler, begun):
                    time.sleep(0.05)
                return


def _wake(main: int, number: signal.Signals, handler: Any, begun: RLock) -> bool:
    with begun:
        if signal.getsignal(number) != handler:
            return False
        signal.pthread_kill(main, number)
        return True
