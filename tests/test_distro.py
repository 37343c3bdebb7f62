"""The end in time, and few words about an outage: `otel_smol.distro`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from otel_smol import distro
from otel_smol.distro import EXPORTERS, Exit, QuietExporters
from tests.conftest import Warnings


@pytest.fixture
def quiet() -> Iterator[QuietExporters]:
    """In force for one test."""
    quiet = QuietExporters()
    quiet.install()
    yield quiet
    quiet.remove()


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
    now = time.monotonic()
    for _ in range(20):
        fail(logger)
    (record,) = caplog.records
    assert record.getMessage().startswith("Failed to export spans batch")
    assert "refused" in record.getMessage()
    assert "OTEL_SMOL_QUIET_EXPORTERS=false" in record.getMessage()
    monkeypatch.setattr(time, "monotonic", lambda: now + 601)
    fail(logger)
    assert len(caplog.records) == 2


def test_different_failures_are_said_each(quiet: QuietExporters, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal for a wrong key is not hidden behind an outage; what is no warning passes."""
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger(EXPORTERS[0])
    fail(logger)
    logger.error("Failed to export %s batch code: %s, reason: %s", "spans", 401, "Unauthorized")
    logger.debug("closing")
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR, logging.DEBUG]
    assert "401" in caplog.records[1].getMessage()


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
    assert [record.getMessage().partition(", error details")[0] for record in caplog.records] == [
        f"Failed to export {signal} to localhost:4317, error code: {code}"
        for signal, code in (("traces", "UNAVAILABLE"), ("metrics", "UNAVAILABLE"), ("traces", "UNAUTHENTICATED"))
    ]


def test_removed_it_says_everything_again(quiet: QuietExporters, caplog: pytest.LogCaptureFixture) -> None:
    """`uninstrument()` leaves the loggers as they were."""
    quiet.remove()
    fail(logging.getLogger(EXPORTERS[-1]))
    assert len(caplog.records) > 1


class Provider:
    """An SDK that takes a while to shut down."""

    def __init__(self, seconds: float = 0) -> None:
        self.seconds, self.shut_down = seconds, False

    def shutdown(self) -> None:
        time.sleep(self.seconds)
        self.shut_down = True


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Exit, list[str]]]:
    """An `Exit` over these providers, and what it did to the runs."""

    def make(*providers: Any, seconds: float = 0.3) -> tuple[Exit, list[str]]:
        monkeypatch.setattr(distro, "providers", lambda: list(providers))
        ended: list[str] = []
        return Exit(seconds, lambda: ended.append("runs"), None), ended

    return make


def test_all_are_shut_down_at_once(leaving: Any, warned: Warnings) -> None:
    """Three that take 0.2 s each take no longer together; the runs are ended before."""
    providers = [Provider(0.2) for _ in range(3)]
    exit_, ended = leaving(*providers, seconds=5)
    began = time.monotonic()
    exit_.leave()
    assert time.monotonic() - began < 0.5
    assert ended == ["runs"]
    assert all(provider.shut_down for provider in providers)
    assert warned.lines == []


def test_what_hangs_is_left_behind(leaving: Any, warned: Warnings) -> None:
    """One that never ends does not keep the others, and one line says so."""
    slow, fast = Provider(3), Provider()
    exit_, _ = leaving(slow, fast)
    began = time.monotonic()
    exit_.leave()
    assert time.monotonic() - began < 1
    assert fast.shut_down
    assert not slow.shut_down
    (line,) = warned.lines
    assert "OTEL_SMOL_EXIT_SECONDS" in line


def test_leaving_twice(leaving: Any, warned: Warnings) -> None:
    """A signal in the middle of the end: both wait for the same, and nothing is done twice."""
    exit_, ended = leaving(Provider(0.1), seconds=5)
    other = threading.Thread(target=exit_.leave)
    other.start()
    exit_.leave()
    other.join()
    assert ended == ["runs"]
    assert warned.lines == []


def test_dismissed(leaving: Any) -> None:
    """`uninstrument()`: the threads end, and the SDK stays as it is."""
    before = threading.active_count()
    provider = Provider()
    exit_, ended = leaving(provider)
    deadline = time.monotonic() + 5
    while threading.active_count() < before + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before + 2
    exit_.dismiss()
    exit_.leave()
    assert (ended, provider.shut_down) == ([], False)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


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
    exit_, ended = leaving(*providers, seconds=5)
    exit_.leave()
    assert ended == ["runs"]
    assert all(provider.shut_down for provider in providers)
    assert warned.lines == []
