"""Driving the agent's generators: our context around each advance, and never across a `yield`.

A token attached before a `yield` would be seen by the consumer, and be detached wherever the consumer happens to go
on: in another thread, task or context. So each advance attaches and detaches by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from opentelemetry.context import Context

from otel_smol.context import attached
from otel_smol.guard import guarded


class Watch(Protocol):
    """Who follows a generator. Each method is called guarded; `finish`, `fail` and `closed` end it, once."""

    context: Context

    def item(self, item: object) -> None:
        """The generator has yielded this."""

    def finish(self, result: object) -> None:
        """It has come to its end."""

    def fail(self, error: BaseException) -> None:
        """It has raised this."""

    def closed(self) -> None:
        """Its consumer has left before the end."""


def drive(inner: Iterator[Any], begin: Callable[[], Watch | None]) -> Generator[Any, Any, Any]:
    """A generator that behaves exactly as `inner`, watched from its first advance on."""
    driver = _drive(inner, begin)
    for name in ("__name__", "__qualname__"):  # seen in reprs and in "exception ignored in" lines
        if isinstance(getattr(inner, name, None), str):
            setattr(driver, name, getattr(inner, name))
    return driver


def _drive(inner: Iterator[Any], begin: Callable[[], Watch | None]) -> Generator[Any, Any, Any]:
    watch: Watch | None = None
    with guarded("starting to follow a generator"):
        watch = begin()
    if watch is None:
        return (yield from inner)
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            with attached(watch.context):
                item = _advance(inner, sent, thrown)
        except StopIteration as stop:
            with guarded("following a generator to its end"):
                watch.finish(stop.value)
            return stop.value
        except BaseException as error:
            left = thrown is error and isinstance(error, GeneratorExit)
            thrown = None  # else the frame holds an exception whose traceback holds the frame
            with guarded("following a generator that failed"):
                if left:
                    watch.closed()
                else:
                    watch.fail(error)
            raise
        with guarded("following a generator"):
            if isinstance(thrown, GeneratorExit):  # ignored by the agent, which Python tells the consumer
                watch.closed()
            else:
                watch.item(item)
        sent = thrown = None
        try:
            sent = yield item
        except BaseException as error:
            thrown = error


def _advance(inner: Iterator[Any], sent: Any, thrown: BaseException | None) -> Any:
    if thrown is not None:
        if isinstance(inner, Generator):
            return inner.throw(thrown)
        raise thrown
    if sent is not None and isinstance(inner, Generator):
        return inner.send(sent)
    return next(inner)
