"""`collector/one-writer.yaml`: many short processes, as many series as one."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from otel_smol import semconv

from .conftest import StartCollector
from .exposition import Samples, samples, series, settled, total
from .programs import PARTS, Collector, wait_for
from .sink import Sink
from .synthetic import counter, metrics, resource, send

TOKENS = "smolagents_history_replayed_tokens_total"
RUNS = "smolagents_run_input_tokens_count"
EACH = 500


@pytest.fixture
def collector(make_collector: StartCollector, sink: Sink) -> Collector:
    return make_collector(PARTS / "one-writer.yaml", OTELCOL_METRICS_ENDPOINT=sink.url).start()


def short_process(otlp: str) -> None:
    """What a script does to the SDK: its own id, one run, export at the end."""
    exporter = OTLPMetricExporter(endpoint=f"{otlp}/v1/metrics", timeout=60)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
    # The SDK makes one id per process.
    own = Resource.create({"service.name": "scripts", "service.instance.id": str(uuid.uuid4())})
    provider = MeterProvider([reader], own)
    meter = provider.get_meter("otel_smol")
    agent = {semconv.AGENT_NAME: "a", semconv.REQUEST_MODEL: "m"}
    tokens = meter.create_counter(semconv.HISTORY_REPLAYED_TOKENS_METRIC.name, "{token}")
    tokens.add(0, agent)
    run = meter.create_histogram(
        semconv.RUN_INPUT_TOKENS_METRIC.name,
        "{token}",
        explicit_bucket_boundaries_advisory=semconv.RUN_INPUT_TOKENS_METRIC.buckets,
    )

    def active(_: CallbackOptions) -> list[Observation]:
        return [Observation(1, {semconv.AGENT_NAME: "a"})]

    meter.create_observable_gauge(semconv.ACTIVE_RUNS_METRIC.name, [active], "{run}")
    tokens.add(EACH, agent)
    run.record(1500, {semconv.AGENT_NAME: "a", semconv.RUN_STATE: "success"})
    provider.shutdown()


def run_scripts(collector: Collector, count: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(short_process, [collector.otlp] * count))


def wait_for_total(collector: Collector, expected: float) -> None:
    wait_for(
        lambda: total(samples(collector.scrape_url), TOKENS) == expected,
        lambda: f"{expected}; last seen {total(samples(collector.scrape_url), TOKENS)}",
    )


def after(collector: Collector, scripts: int) -> Samples:
    """What is exposed once so many scripts have been counted."""
    return settled(collector.scrape_url, lambda found: total(found, TOKENS) == scripts * EACH, f"{scripts} scripts")


def test_series_do_not_grow_with_the_processes_and_no_token_is_lost(collector: Collector, sink: Sink) -> None:
    run_scripts(collector, 5)
    few = series(after(collector, 5))
    run_scripts(collector, 35)
    found = after(collector, 40)
    assert series(found) == few
    assert total(found, RUNS) == 40
    assert total(found, "smolagents_run_input_tokens_bucket", le="2000.0") == 40
    assert {dict(labels).get("job") for _, labels in few} == {"scripts"}
    assert {dict(labels).get("instance", "") for _, labels in few} == {""}


def test_gauges_keep_their_process(collector: Collector, sink: Sink) -> None:
    """The last of several writers is no answer to "how many runs go on"."""
    run_scripts(collector, 3)
    wait_for(lambda: len({where["service.instance.id"] for where, _ in sink.metrics()}) == 3, "three gauges")
    assert {metric.name for _, metric in sink.metrics()} == {semconv.ACTIVE_RUNS_METRIC.name}
    assert not any(name.startswith("smolagents_active_runs") for name, _ in samples(collector.scrape_url))


def test_a_long_process_beside_the_short_ones(collector: Collector) -> None:
    """It exports its growing total again and again; only what is new is added."""
    attributes = {semconv.AGENT_NAME: "a", semconv.REQUEST_MODEL: "m"}
    begin = time.time_ns()
    for value in (0, 100, 100, 250, 900):
        metric = counter(semconv.HISTORY_REPLAYED_TOKENS_METRIC.name, "{token}", value, attributes, begin)
        assert send(collector.otlp, metrics([metric], resource("scripts", "long"))) == 200
        short_process(collector.otlp)
    wait_for_total(collector, 900 + 5 * EACH)


def test_many_writers_at_once(collector: Collector) -> None:
    """Requests that overtake each other: nothing is dropped as out of order."""
    attributes = {semconv.AGENT_NAME: "a", semconv.REQUEST_MODEL: "m"}
    begin = time.time_ns()

    def writer(number: int) -> None:
        for value in range(1, 51):
            metric = counter(semconv.HISTORY_REPLAYED_TOKENS_METRIC.name, "{token}", value, attributes, begin)
            assert send(collector.otlp, metrics([metric], resource("scripts", f"writer {number}"))) == 200

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(writer, range(16)))
    wait_for_total(collector, 16 * 50)


def test_two_versions_of_a_service_do_not_overwrite_each_other(collector: Collector) -> None:
    """During a rollout both send; what tells them apart must be a label."""
    begin = time.time_ns()
    for version, value in (("1", 30), ("2", 12)):
        where = resource("scripts", f"v{version}")
        where.attributes.add(key="service.version").value.string_value = version
        where.attributes.add(key="process.pid").value.int_value = int(version)
        metric = counter(semconv.HISTORY_REPLAYED_TOKENS_METRIC.name, "{token}", value, {}, begin)
        assert send(collector.otlp, metrics([metric], where)) == 200
    wait_for_total(collector, 42)
    assert total(samples(collector.scrape_url), TOKENS, service_version="1") == 30
