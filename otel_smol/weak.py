"""Facts about objects of the user's, kept beside them: weakly, and by identity.

Agents and memory steps are not ours to put attributes on, and many of them cannot be hashed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from otel_smol.guard import guarded

V = TypeVar("V")


class WeakIdMap(Generic[V]):
    """A mapping from object identity to a value that goes when the object goes."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[object], V]] = {}
        self._lock = threading.RLock()  # an entry may go while one is added: the collector runs when it likes

    def get(self, obj: object) -> V | None:
        """The value kept for this object, or None."""
        entry = self._entries.get(id(obj))
        return entry[1] if entry is not None and entry[0]() is obj else None

    def set(self, obj: object, value: V) -> None:
        """Keep a value. Raises `TypeError` for objects that cannot be referred to weakly."""
        key = id(obj)
        guard = guarded("letting go of an object's facts")  # now: at the very end the module is empty

        def let_go(gone: weakref.ref[object]) -> None:
            with guard:
                self._drop(key, gone)

        reference = weakref.ref(obj, let_go)
        with self._lock:
            self._entries[key] = (reference, value)

    def setdefault(self, obj: object, make: Callable[[], V]) -> V:
        """The value kept for this object; a new one if there is none."""
        with self._lock:
            value = self.get(obj)
            if value is None:
                value = make()
                self.set(obj, value)
            return value

    def __len__(self) -> int:
        return len(self._entries)

    def _drop(self, key: int, gone: weakref.ref[object]) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry[0] is gone:
                del self._entries[key]
