"""Fixtures of the stack tests. Whatever a test starts is stopped when it ends, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from .programs import Collector, Process, require
from .sink import Sink

HERE = Path(__file__).parent

StartCollector = Callable[..., Collector]
StartProcess = Callable[[str, Sequence[str]], Process]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stack: needs the real programs of `make stack`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.stack)


@pytest.fixture
def at_the_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def sink(at_the_end: ExitStack) -> Sink:
    """A backend that is up."""
    backend = Sink().start()
    at_the_end.callback(backend.stop)
    return backend


@pytest.fixture
def make_collector(tmp_path: Path, at_the_end: ExitStack) -> StartCollector:
    """Makes a collector with parts of `collector/` and variables; the test starts it."""

    def make(*parts: Path, name: str = "collector", program: str = "otelcol-contrib", **variables: str) -> Collector:
        collector = Collector(tmp_path / name, program=require(program), parts=parts, **variables)
        at_the_end.callback(collector.process.stop)
        return collector

    return make


@pytest.fixture
def start_process(tmp_path: Path, at_the_end: ExitStack) -> StartProcess:
    """Starts any other program. Its data go with it, so it is not asked to end in good order."""

    def start(name: str, command: Sequence[str]) -> Process:
        process = Process(command, tmp_path / f"{name}.log")
        at_the_end.callback(process.kill)
        process.start()
        return process

    return start
