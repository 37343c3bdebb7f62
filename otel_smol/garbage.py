"""What has to wait while garbage is collected.

The collector runs wherever an object is made, also where this very thread holds a lock, of ours or of the SDK's. What
it finalizes may be an abandoned stream, whose end is to be counted: that would wait for ever for the same lock. So
nothing is begun while garbage is collected, and what ends then ends in another thread, at once.
"""

from __future__ import annotations

import _thread
import gc
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from otel_smol.guard import guarded

_here = threading.local()
_waiting: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()  # may be put to from where it is being put to
_in_turn = threading.Lock()


def _note(phase: str, _: dict[str, int], here: threading.local = _here) -> None:
    here.is_collected = phase == "start"


gc.callbacks.append(_note)  # for good: a generator may outlive `uninstrument()`


def is_collected() -> bool:
    """Whether this thread collects garbage now."""
    return getattr(_here, "is_collected", False)


def apart(act: Callable[..., Any], *args: Any) -> Any:
    """Call a function; in a copy of the context while garbage is collected.

    The collector may have interrupted a `ContextVar.set`, and CPython (seen with 3.10 and 3.11) crashes if what it
    finalizes sets a variable of the same context.
    """
    return copy_context().run(act, *args) if is_collected() else act(*args)


def afterwards(act: Callable[..., Any], *args: Any) -> None:
    """Call a function; in another thread while garbage is collected."""
    if not is_collected():
        act(*args)
        return
    _waiting.put(partial(act, *args))
    try:
        _thread.start_new_thread(settle, ())  # `Thread.start` takes locks
    except RuntimeError:  # none to be had: it waits for the next one, or for the end of the process
        return


def settle(seconds: float = 5.0) -> None:
    """Do all that waits, in its order; leave it to the thread that is at it if that takes longer than this."""
    if not _in_turn.acquire(timeout=seconds):
        return
    try:
        while True:
            act = _waiting.get_nowait()
            with guarded("ending what was garbage"):
                act()
    except queue.Empty:
        return
    finally:
        _in_turn.release()


def forget() -> None:
    """In a forked child: what waits is the parent's."""
    global _waiting
    _waiting = queue.SimpleQueue()
