"""The end in time, and few words about an outage: `otel_smol.distro`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from otel_smol import distro
from otel_smol.distro import EXPORTERS, Exit, QuietExporters
from tests.conftest import Warnings
from tests.programs import PATIENCE
from tests.stack.programs import wait_for


@pytest.fixture
def quiet() -> Iterator[QuietExporters]:
    """In force for one test."""
    quiet = QuietExporters()
    quiet.install()
    yield quiet
    quiet.remove()


def said(caplog: pytest.LogCaptureFixture, logger: logging.Logger) -> list[logging.LogRecord]:
    """What this logger let through; not what else a thread of an earlier test may say meanwhile."""
    return [record for record in caplog.records if record.name == logger.name]


def fail(logger: logging.Logger) -> None:
    """What an exporter says of one batch."""
    for _ in range(3):
        logger.warning("Transient error %s encountered while exporting %s, retrying in %.2fs.", "refused", "spans", 1.0)
    logger.error("Failed to export %s batch due to timeout, max retries or shutdown.", "spans")


@pytest.mark.parametrize("name", EXPORTERS)
def test_a_failure_is_said_once_in_ten_minutes(
    name: str, quiet: QuietExporters, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twenty batches one line, with the reason; after ten minutes another."""
    logger = logging.getLogger(name)
    for _ in range(20):
        fail(logger)
    (record,) = said(caplog, logger)
    assert record.getMessage().startswith("Failed to export spans batch")
    assert "refused" in record.getMessage()
    assert "OTEL_SMOL_QUIET_EXPORTERS=false" in record.getMessage()
    now = time.monotonic()
    monkeypatch.setattr(distro, "time", SimpleNamespace(monotonic=lambda: now + 601))
    fail(logger)
    assert len(said(caplog, logger)) == 2


def test_different_failures_are_said_each(quiet: QuietExporters, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal for a wrong key is not hidden behind an outage; what is no warning passes."""
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger(EXPORTERS[0])
    fail(logger)
    logger.error("Failed to export %s batch code: %s, reason: %s", "spans", 401, "Unauthorized")
    logger.debug("closing")
    records = said(caplog, logger)
    assert [record.levelno for record in records] == [logging.ERROR, logging.ERROR, logging.DEBUG]
    assert "401" in records[1].getMessage()


def test_failures_with_the_same_words_are_said_each(
    quiet: QuietExporters, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC has one sentence for all signals and codes; the details of one failure may differ from batch to batch."""
    logger = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
    monkeypatch.setattr(logger, "filters", [quiet])  # the SDK's own lets a sentence through once in a minute
    words = "Failed to export %s to %s, error code: %s, error details: %s"
    for signal, code in (("traces", "UNAVAILABLE"), ("metrics", "UNAVAILABLE"), ("traces", "UNAUTHENTICATED")):
        for port in (50123, 50124):
            logger.error(words, signal, "localhost:4317", code, f"from port {port}")
    assert [record.getMessage().partition(", error details")[0] for record in said(caplog, logger)] == [
        f"Failed to export {signal} to localhost:4317, error code: {code}"
        for signal, code in (("traces", "UNAVAILABLE"), ("metrics", "UNAVAILABLE"), ("traces", "UNAUTHENTICATED"))
    ]


def test_removed_it_says_everything_again(quiet: QuietExporters, caplog: pytest.LogCaptureFixture) -> None:
    """`uninstrument()` leaves the loggers as they were."""
    quiet.remove()
    logger = logging.getLogger(EXPORTERS[-1])
    fail(logger)
    assert len(said(caplog, logger)) > 1


class Provider:
    """An SDK; it has shut down once it need not wait any more."""

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self.wait, self.shut_down = wait, False

    def shutdown(self) -> None:
        self.wait()
        self.shut_down = True


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Exit, list[str]]]:
    """An `Exit` over these providers, and what it did to the runs."""

    def make(*providers: Any, seconds: float = PATIENCE) -> tuple[Exit, list[str]]:
        monkeypatch.setattr(distro, "providers", lambda: list(providers))
        ended: list[str] = []
        return Exit(seconds, lambda: ended.append("runs"), None), ended

    return make


def test_all_are_shut_down_at_once(leaving: Any, warned: Warnings) -> None:
    """Three that each wait until all are being shut down come to their end; the runs are ended before."""
    together = threading.Barrier(3, timeout=PATIENCE)
    providers = [Provider(together.wait) for _ in range(3)]
    exit_, ended = leaving(*providers)
    exit_.leave()
    assert ended == ["runs"]
    assert all(provider.shut_down for provider in providers)
    assert warned.lines == []


def test_what_hangs_is_left_behind(leaving: Any, warned: Warnings) -> None:
    """One that never ends does not keep the others, and one line says so."""
    go_on = threading.Event()
    slow, fast = Provider(go_on.wait), Provider()
    exit_, _ = leaving(slow, fast, seconds=0.3)
    exit_.leave()
    wait_for(lambda: fast.shut_down, "the end of the other one", PATIENCE)
    assert not slow.shut_down
    go_on.set()
    (line,) = warned.lines
    assert "OTEL_SMOL_EXIT_SECONDS" in line


def test_leaving_twice(leaving: Any, warned: Warnings) -> None:
    """A signal in the middle of the end: both wait for the same, and nothing is done twice."""
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(PATIENCE)

    exit_, ended = leaving(Provider(wait))
    others = [threading.Thread(target=exit_.leave) for _ in range(2)]
    for other in others:
        other.start()
        assert begun.wait(PATIENCE)
    assert all(other.is_alive() for other in others)
    go_on.set()
    for other in others:
        other.join()
    assert ended == ["runs"]
    assert warned.lines == []


def test_dismissed(leaving: Any) -> None:
    """`uninstrument()`: the threads end, and the SDK stays as it is."""
    before = set(threading.enumerate())

    def waiting() -> int:
        """Threads that were not there: those of earlier tests may end meanwhile."""
        return len(set(threading.enumerate()) - before)

    provider = Provider()
    exit_, ended = leaving(provider)
    wait_for(lambda: waiting() == 2, lambda: f"two threads, but {waiting()}", PATIENCE)
    exit_.dismiss()
    exit_.leave()
    assert (ended, provider.shut_down) == ([], False)
    wait_for(lambda: waiting() == 0, lambda: f"the end of {waiting()} threads", PATIENCE)


def test_no_thread_can_be_started_any_more(leaving: Any, warned: Warnings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.12, when the process ends: a child that ends right after its fork sends what it has."""
    start = distro._start
    starts = iter([start])

    def only_once(act: Callable[..., None], *arguments: Any) -> None:
        for each in starts:
            each(act, *arguments)
            return
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(distro, "_start", only_once)
    providers = [Provider(), Provider()]
    exit_, ended = leaving(*providers)
    exit_.leave()
    assert ended == ["runs"]
    assert all(provider.shut_down for provider in providers)
    assert warned.lines == []
