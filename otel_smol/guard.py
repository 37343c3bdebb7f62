"""Our own faults: logged once, never raised into the agent."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from types import TracebackType

logger = logging.getLogger("otel_smol")

_seen: set[str] = set()
_lock = threading.RLock()  # the collector runs when it likes, and what it finalizes may warn, too


class Guard:
    """Swallows what goes wrong inside the block and logs it once per `what`, cause and process.

    Only `Exception` is swallowed: an interrupt is the agent's, and so is what a signal handler raises, a time limit for
    one. The text of the exception may hold prompts or results, and log records may be exported, so the line names its
    type only; where it came from is at DEBUG.
    """

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if exc is None or not isinstance(exc, Exception) or _from_a_signal(tb):
            return False
        warn_once(
            (f"guard:{self.what}", f"cause:{_cause(exc)}"),
            "otel_smol: %s failed (%s); the agent is not affected, but telemetry is incomplete. "
            "Later faults of this kind are not logged.",
            self.what,
            type(exc).__name__,
        )
        logger.debug("otel_smol: %s failed here:\n%s", self.what, "".join(traceback.format_tb(tb)))
        return True


@cache
def guarded(what: str) -> Guard:
    """`with guarded("reading the prompt"): …`. A guard holds nothing of the block, so one serves all."""
    return Guard(what)


def warn_once(key: str | tuple[str, ...], message: str, *args: object) -> None:
    """Log a warning unless `key`, or one of several, has been warned of in this process."""
    keys = {key} if isinstance(key, str) else set(key)
    with _lock:
        known = not keys.isdisjoint(_seen)
        _seen.update(keys)
    if not known:
        logger.warning(message, *args)


def _cause(exc: BaseException) -> str:
    """Where a fault comes from: one thing that is missing or broken is met at many places of ours, and told once."""
    if isinstance(exc, AttributeError) and exc.name is not None:
        return f"no attribute {exc.name}"
    tb = exc.__traceback__
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return f"{tb.tb_frame.f_code.co_filename}:{tb.tb_lineno}" if tb is not None else repr(type(exc))


def _from_a_signal(tb: TracebackType | None) -> bool:
    """Whether a signal handler of the program's has raised: it came in between, and we had no fault. It alone is given
    the frame that it has interrupted, which is the one that called it."""
    while tb is not None:
        frame, tb = tb.tb_frame, tb.tb_next
        if frame.f_back is not None and any(value is frame.f_back for value in _flat(frame.f_locals.values())):
            return True
    return False


def _flat(values: Iterable[object]) -> Iterator[object]:
    for value in values:
        yield from value if type(value) is tuple else (value,)  # of `*args`


def forget_warnings() -> None:
    """Let every warning be given again (`uninstrument()` does)."""
    with _lock:
        _seen.clear()
