"""A clock for what a program may take: it stands still while the machine does, or has no processor for the program."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PAUSE = 0.05
_COUNTS = 0.25
"""Seconds from one look to the next, and as how many they count at most: when it was more, the machine stood still."""


class _Clock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last, self._gone = time.monotonic(), 0.0
        threading.Thread(target=self._look_on, daemon=True).start()

    def _look_on(self) -> None:
        while True:
            time.sleep(_PAUSE)
            self.look()

    def look(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._gone += min(now - self._last, _COUNTS)
            self._last = now
            return self._gone


@functools.cache
def _clock() -> _Clock:
    return _Clock()


def going() -> float:
    """Seconds, from some moment on, in which the machine went on."""
    return _clock().look()


class Watch:
    """Measures a program from now on. What the thread that waits most, of it or a child, waits for a processor does not
    count, on Linux. Not the sum: threads wait side by side."""

    def __init__(self, pid: int) -> None:
        self._pid, self._began = pid, going()
        self._before, self._now = dict(_waited(pid)), dict[str, float]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def _look_on(self) -> None:
        while not self._over.wait(_PAUSE):
            self._now.update(_waited(self._pid))

    def seconds(self) -> float:
        """Until now, which ends it."""
        gone = going() - self._began
        self._over.set()
        self._thread.join()
        waits = (waited - self._before.get(task, 0) for task, waited in self._now.items())
        return max(0.0, gone - max(waits, default=0.0))


def _waited(pid: int) -> Iterator[tuple[str, float]]:
    """Each task of a process and its children, and the seconds that it has waited for a processor in all."""
    with suppress(OSError):  # it has ended, or there is no such file here
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                yield task.name, int((task / "schedstat").read_text().split()[1]) / 1e9
                for child in (task / "children").read_text().split():
                    yield from _waited(int(child))
