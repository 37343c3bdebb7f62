"""Our own faults: logged once, never raised into the agent."""

from __future__ import annotations

import logging
import threading
import traceback
from types import TracebackType

logger = logging.getLogger("otel_smol")

_seen: set[str] = set()
_lock = threading.Lock()


class Guard:
    """Swallows what goes wrong inside the block and logs it once per `what` and process.

    Only `Exception` is swallowed: an interrupt is the agent's. The text of the exception may hold prompts or
    results, and log records may be exported, so the line names its type only; where it came from is at DEBUG.
    """

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if exc is None or not isinstance(exc, Exception):
            return False
        warn_once(
            f"guard:{self.what}",
            "otel_smol: %s failed (%s); the agent is not affected, but telemetry is incomplete. "
            "Later faults of this kind are not logged.",
            self.what,
            type(exc).__name__,
        )
        logger.debug("otel_smol: %s failed here:\n%s", self.what, "".join(traceback.format_tb(tb)))
        return True


def guarded(what: str) -> Guard:
    """`with guarded("reading the prompt"): …`"""
    return Guard(what)


def warn_once(key: str, message: str, *args: object) -> None:
    """Log a warning unless `key` has been warned of in this process."""
    with _lock:
        if key in _seen:
            return
        _seen.add(key)
    logger.warning(message, *args)


def forget_warnings() -> None:
    """Let every warning be given again (`uninstrument()` does)."""
    with _lock:
        _seen.clear()
