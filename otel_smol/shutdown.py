"""The end of the process: runs that go on are closed, and what is there is exported.

An ordinary exit, an exception and Ctrl-C unwind the stack, so most runs end by themselves; what is left (a stream
that nobody reads any more) ends at exit, before the SDK shuts down. SIGTERM unwinds nothing: by default the process
is gone, and with it whatever the SDK has not exported yet, up to five seconds of spans and a minute of metrics.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace

from otel_smol.guard import guarded
from otel_smol.metrics import forget_live_runs

if TYPE_CHECKING:
    from otel_smol.patches import Patches

FLUSH_SECONDS = 5.0


class Ending:
    """Sees to the end of the process for one set of patches."""

    def __init__(self, patches: Patches) -> None:
        self._patches: Patches | None = patches
        self._flush_on_sigterm = patches.config.flush_on_sigterm and _auto_instrumented()

    def watch(self) -> None:
        """Register what has to happen. The handler is ours only where the program has none."""
        atexit.register(self._end_runs)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        in_main = threading.current_thread() is threading.main_thread()
        if self._flush_on_sigterm and in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)

    def forget(self) -> None:
        """uninstrument(): leave no trace."""
        self._patches = None
        atexit.unregister(self._end_runs)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _end_runs(self) -> None:
        if self._patches is not None:
            for watch in list(self._patches.open_runs):
                with guarded("ending a run at exit"):
                    watch.interrupt()

    def _forked(self) -> None:
        """Runs that went on at the fork are the parent's; the child must not end or count them too."""
        if self._patches is not None:
            self._patches.open_runs.clear()
            forget_live_runs()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # The main thread, which runs this, may hold any lock at this moment: work elsewhere, and do not wait for ever.
        _within(FLUSH_SECONDS, self._end_runs, _flush)
        os.kill(os.getpid(), signal.SIGTERM)  # and end as without us


def _flush() -> None:
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        with guarded("flushing at SIGTERM"):
            flush = getattr(provider, "force_flush", None)
            if flush is not None:
                flush(int(FLUSH_SECONDS * 1000))


def _within(seconds: float, *acts: Callable[[], None]) -> None:
    def work() -> None:
        for act in acts:
            act()

    thread = threading.Thread(target=work, daemon=True, name="otel_smol-flush")
    thread.start()
    thread.join(seconds)


def _auto_instrumented() -> bool:
    return "opentelemetry.instrumentation.auto_instrumentation" in sys.modules
