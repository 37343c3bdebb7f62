"""The end of the process: runs that go on are closed, and what is there is exported.

An ordinary exit, an exception and Ctrl-C unwind the stack, so most runs end by themselves; what is left (a stream
that nobody reads any more) ends at exit, before the SDK shuts down. SIGTERM unwinds nothing: by default the process
is gone, and with it whatever the SDK has not exported yet, up to five seconds of spans and a minute of metrics.

What comes of forks is in `forks`, how long the end may take in `distro`.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from otel_smol import distro, forks, garbage
from otel_smol.guard import guarded, warn_once
from otel_smol.metrics import forget_live_runs
from otel_smol.surroundings import auto_instrumented
from otel_smol.telemetry import SCOPE

if TYPE_CHECKING:
    from otel_smol.patches import Patches

FLUSH_SECONDS = 5.0


class Ending:
    """Sees to the end of the process for one set of patches."""

    def __init__(self, patches: Patches) -> None:
        self._patches: Patches | None = patches
        config, automatic = patches.config, auto_instrumented()
        self._flush_on_sigterm = config.flush_on_sigterm and automatic
        self._quiet = distro.QuietExporters() if config.quiet_exporters and automatic else None
        self._mends = config.mend_forks
        self._truce, self._begun = forks.Truce(), threading.RLock()
        self._locks: list[tuple[Any, str]] = []
        self._leaves_in_time = bool(config.exit_seconds)
        self._exit = (
            distro.Exit(config.exit_seconds or FLUSH_SECONDS, self._end_runs, self._quiet) if automatic else None
        )

    def watch(self) -> None:
        """Register what has to happen. The handler is ours only where the program has none."""
        atexit.register(self._end_runs)
        if self._quiet is not None:
            self._quiet.install()
        if hasattr(os, "register_at_fork"):
            self._locks = forks.own_locks(self._patches)
            os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._forked)
        in_main = threading.current_thread() is threading.main_thread()
        if self._flush_on_sigterm and in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)
        if self._mends:
            with guarded("watching for the end of a worker"):
                forks.in_worker(self, Ending._worker_began)

    def forget(self) -> None:
        """uninstrument(): leave no trace."""
        self._patches = None
        self._locks.clear()
        if self._exit is not None:
            self._exit.dismiss()
            self._exit = None
        atexit.unregister(self._end_runs)
        if self._quiet is not None:
            self._quiet.remove()
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _end_runs(self) -> None:
        if self._patches is not None:
            garbage.settle()
            for watch in list(self._patches.open_runs):
                with guarded("ending a run at exit"):
                    watch.interrupt()

    def _before_fork(self) -> None:
        if self._mends and self._patches is not None:
            providers = self._providers()
            try:
                forks.check(providers, SCOPE)
            except Exception as unknown:
                self._mends = False
                warn_once(
                    "forks",
                    "otel_smol: this OpenTelemetry SDK is not built like those we know (%s), so forked processes are "
                    "left as it makes them: of their runs some may be missing, or counted twice. "
                    "OTEL_SMOL_MEND_FORKS=false says so by choice.",
                    unknown,
                )
                return
            with guarded("waiting for exports before a fork"):
                self._truce.begin(providers)

    def _after_fork(self) -> None:
        self._truce.end()

    def _providers(self) -> list[Any]:
        """The process's own, and those that `instrument()` was given."""
        telemetry = self._patches.telemetry if self._patches is not None else None
        given = (telemetry.tracer_provider, telemetry.meter_provider) if telemetry is not None else ()
        return list(dict.fromkeys([each for each in given if each is not None] + distro.providers()))

    def _forked(self) -> None:
        """Runs that went on at the fork are the parent's; the child must not end or count them too."""
        self._truce.end()
        self._truce, self._begun = forks.Truce(), threading.RLock()
        forks.open_locks(self._locks)
        forks.leave_signals()
        if self._patches is None:
            return
        self._patches.open_runs.clear()
        forget_live_runs()
        garbage.forget()
        if self._mends:
            self._mend_fork()
        if self._exit is not None:
            with guarded("preparing the end of a forked process"):
                self._exit.prepare()

    def _mend_fork(self) -> None:
        with guarded("beginning anew after a fork"):
            forks.begin_anew(self._providers(), SCOPE)
        with guarded("watching for the end of a worker"):
            forks.when_worker(self, Ending._worker_began)

    def _worker_began(self, util: Any) -> None:
        with guarded("watching for the end of a worker"):
            util.Finalize(None, self._leave_worker, exitpriority=-100)  # after all others
            if self._exit is not None and signal.getsignal(signal.SIGTERM) == self._terminate:
                forks.when_signalled(signal.SIGTERM, self._terminate, self._begun, self._exit.begin)

    def _leave_worker(self) -> None:
        """A `multiprocessing` worker ends: it has no `atexit`."""
        if self._exit is not None:
            self._exit.leave()
        else:
            self._end_runs()
            _flush(self._providers())

    def leave(self) -> None:
        """The very end, after the program's own `atexit` handlers: the SDK is shut down."""
        if self._exit is not None and self._leaves_in_time:
            self._exit.leave()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        with self._begun:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._exit is not None:
            self._exit.leave(aloud=False)
        os.kill(os.getpid(), signal.SIGTERM)  # and end as without us


def _flush(providers: list[Any]) -> None:
    """All at once, and not longer than is waited for them: the SDK's own limits are per signal, and longer."""

    def flush(provider: Any) -> None:
        with guarded("flushing at the end of a worker"):
            provider.force_flush(int(FLUSH_SECONDS * 1000))

    # From Python 3.13 on a worker runs its `atexit` handlers first, and the SDK's may be one of them.
    running = [each for each in providers if not getattr(each, "_shutdown", False)]
    threads = [threading.Thread(target=flush, args=(provider,), daemon=True) for provider in running]
    until = time.monotonic() + FLUSH_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
