"""Driving the agent's generators: our context around each advance, and never across a `yield`.

A token attached before a `yield` would be seen by the consumer, and be detached wherever the consumer happens to go
on: in another thread, task or context. So each advance attaches and detaches by itself.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import wrapt
from opentelemetry.context import Context

from otel_smol.context import attached
from otel_smol.garbage import afterwards, apart
from otel_smol.guard import guarded


class Watch(Protocol):
    """Who follows a generator. Each method is called guarded.

    The first of `finish`, `fail` and `closed` ends it; more may follow, from a consumer that asks again.
    """

    context: Context

    def item(self, item: object) -> None:
        """The generator has yielded this."""

    def finish(self, result: object) -> None:
        """It has come to its end."""

    def fail(self, error: BaseException) -> None:
        """It has raised this."""

    def closed(self) -> None:
        """Its consumer has left before the end."""


def follow(
    wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], begin: Callable[[], Watch | None]
) -> Any:
    """Call something that returns items to iterate over. It is watched from where its work begins.

    A generator function does nothing before the first item is asked for; any other may do all its work at once.
    """
    if inspect.isgeneratorfunction(wrapped):
        return drive(wrapped(*args, **kwargs), begin)
    watch: Watch | None = None
    with guarded("starting to follow a generator"):
        watch = begin()
    if watch is None:
        return wrapped(*args, **kwargs)
    try:
        with attached(watch.context):
            items = wrapped(*args, **kwargs)
    except BaseException as error:
        with guarded("following a generator that failed"):
            watch.fail(error)
        raise
    if isinstance(items, list | tuple) or not hasattr(items, "__iter__"):
        with guarded("following what was done at once"):
            for item in items if isinstance(items, list | tuple) else ():
                watch.item(item)
            watch.finish(items)
        return items
    followed = followed_items(items, lambda: watch)
    weakref.finalize(followed, _left, watch).atexit = False  # if nobody asks for an item, nothing else ends it
    return followed


def followed_items(items: Any, begin: Callable[[], Watch | None]) -> Any:
    """What behaves exactly as these items, watched from the first one on."""
    if isinstance(items, Generator):
        return drive(items, begin)
    return _FollowedIterator(items, begin) if isinstance(items, Iterator) else _Followed(items, begin)


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
            item = apart(_advance_within, watch.context, inner, sent, thrown)
        except StopIteration as stop:
            with guarded("following a generator to its end"):
                if isinstance(thrown, GeneratorExit):  # caught by the agent, which then came to its end
                    afterwards(watch.closed)
                else:
                    afterwards(watch.finish, stop.value)
            return stop.value
        except BaseException as error:
            left = isinstance(thrown, GeneratorExit) and isinstance(error, GeneratorExit)
            thrown = None  # else the frame holds an exception whose traceback holds the frame
            with guarded("following a generator that failed"):
                if left:
                    afterwards(watch.closed)
                else:
                    afterwards(watch.fail, error)
            raise
        with guarded("following a generator"):
            if isinstance(thrown, GeneratorExit):  # ignored by the agent, which Python tells the consumer
                afterwards(watch.closed)
            else:
                afterwards(watch.item, item)
        sent = thrown = None
        try:
            sent = yield item
        except BaseException as error:
            thrown = error


def _advance_within(context: Context, inner: Iterator[Any], sent: Any, thrown: BaseException | None) -> Any:
    with attached(context):
        return _advance(inner, sent, thrown)


def _advance(inner: Iterator[Any], sent: Any, thrown: BaseException | None) -> Any:
    if thrown is not None:
        if isinstance(inner, Generator):
            return inner.throw(thrown)
        raise thrown
    if sent is not None and isinstance(inner, Generator):
        return inner.send(sent)
    return next(inner)


class _Followed(wrapt.ObjectProxy[Any]):
    """Something to iterate over that is no generator: like it in all else."""

    def __init__(self, items: Any, begin: Callable[[], Watch | None]) -> None:
        super().__init__(items)
        self._self_begin = begin

    def __iter__(self) -> Iterator[Any]:
        return drive(iter(self.__wrapped__), self._self_begin)


class _FollowedIterator(_Followed):
    """The same for an iterator."""

    def __init__(self, items: Iterator[Any], begin: Callable[[], Watch | None]) -> None:
        super().__init__(items, begin)
        self._self_driver = drive(items, begin)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._self_driver)


def _left(watch: Watch) -> None:
    with guarded("following a generator that nobody read"):
        afterwards(watch.closed)
