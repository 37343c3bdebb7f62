"""Prometheus with the flags of `compose.yaml` and the files of `deploy/`, behind the real collector."""

from __future__ import annotations

import json
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from otel_smol import semconv

from .conftest import StartCollector, StartProcess
from .exposition import samples, total
from .ports import free_ports
from .programs import PARTS, ROOT, get_json, require, run, wait_for
from .synthetic import Plain, counter, metrics, pairs, resource, send

TOKENS = "smolagents_history_replayed_tokens_total"


class Prometheus:
    """The address to send to, and questions in PromQL."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.otlp = f"{self.url}/api/v1/otlp"

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        question = {"query": expression, **({"time": str(at)} if at else {})}
        answer = get_json(f"{self.url}/api/v1/query?{urllib.parse.urlencode(question)}")
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def value(self, expression: str, at: float | None = None) -> float | None:
        """The only value of an answer; None when there is none yet."""
        found = self.query(expression, at)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def wait_for_value(self, expression: str, expected: float) -> None:
        wait_for(lambda: self.value(expression) == expected, f"{expression} = {expected}")

    def samples(self, selector: str) -> list[float]:
        """What was stored in the last ten minutes, in order."""
        (found,) = self.query(f"{selector}[10m]")
        return [float(value) for _, value in found["values"]]


def flags_of_the_stack() -> list[str]:
    done = run([require("docker-compose"), "-f", str(ROOT / "compose.yaml"), "config", "--format", "json"])
    command: list[str] = json.loads(done.stdout)["services"]["prometheus"]["command"]
    return command


def with_targets(file: Path, folder: Path, **ports: int) -> Path:
    """A shipped file with the addresses of the containers replaced by ports on loopback, scraped every second."""
    text = file.read_text().replace("15s", "1s").replace("/etc/prometheus", str(folder))
    for name, port in ports.items():
        text = text.replace(f"collector:{name.removeprefix('port_')}", f"127.0.0.1:{port}")
    target = folder / file.name
    target.write_text(text)
    return target


@pytest.fixture
def start_prometheus(tmp_path: Path, start_process: StartProcess) -> Any:
    def start(*, own_metrics: int, sums: int | None = None) -> Prometheus:
        (port,) = free_ports(1)
        config = with_targets(ROOT / "deploy" / "prometheus.yml", tmp_path, port_8888=own_metrics)
        if sums is not None:
            (tmp_path / "scrape.d").mkdir()
            shipped = with_targets(ROOT / "deploy" / "scrape-sums.yml", tmp_path, port_8889=sums)
            shipped.rename(tmp_path / "scrape.d" / shipped.name)
        ours = {"--config.file": str(config), "--storage.tsdb.path": str(tmp_path / "prometheus")}
        flags = [f"{name}={ours[name]}" if (name := f.partition("=")[0]) in ours else f for f in flags_of_the_stack()]
        command = [require("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"]
        process = start_process("prometheus", command)
        process.wait_until_ready(f"http://127.0.0.1:{port}/-/ready")
        assert "Unknown option" not in process.output()
        return Prometheus(port)

    return start


def test_promtool_takes_the_files_and_refuses_a_mistake(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "scrape-sums.yml"):
        text = (ROOT / "deploy" / name).read_text()
        for content, taken in ((text, True), (text.replace("scrape_configs", "scrape_cnfigs"), False)):
            copy = tmp_path / name
            copy.write_text(content)
            done = run([require("promtool"), "check", "config", "--syntax-only", str(copy)])
            assert (done.returncode == 0) is taken, done.stdout + done.stderr


def one_run(otlp: str) -> str:
    """A run as the SDK records it, with its span current; the trace's id."""
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{otlp}/v1/metrics", timeout=60), 600_000)
    where = Resource.create({"service.name": "agents", "service.version": "1.2", "service.instance.id": "one"})
    meters = MeterProvider([reader], where)
    meter = meters.get_meter("otel_smol")
    name = semconv.RUN_INPUT_TOKENS_METRIC.name
    buckets = semconv.RUN_INPUT_TOKENS_METRIC.buckets
    histogram = meter.create_histogram(name, "{token}", explicit_bucket_boundaries_advisory=buckets)
    attributes: dict[str, str] = {semconv.AGENT_NAME: "a", semconv.RUN_STATE: "success"}
    with TracerProvider().get_tracer("otel_smol").start_as_current_span("invoke_agent a") as span:
        histogram.record(7_000, attributes)
        trace_id = f"{span.get_span_context().trace_id:032x}"
    meters.shutdown()
    return trace_id


def test_a_run_s_metrics_and_its_exemplar_arrive(make_collector: StartCollector, start_prometheus: Any) -> None:
    """Names, labels and buckets as the dashboards expect them; the exemplar leads to the run's trace."""
    (hole,) = free_ports(1)
    prometheus = start_prometheus(own_metrics=hole)
    collector = make_collector(OTELCOL_METRICS_ENDPOINT=prometheus.otlp).start()
    trace_id = one_run(collector.otlp)
    prometheus.wait_for_value("smolagents_run_input_tokens_sum", 7_000)
    # Pushed, the bound is written as here; scraped (one writer) it is 8000.0.
    assert prometheus.value('smolagents_run_input_tokens_bucket{le="8000"}') == 1
    assert prometheus.value('smolagents_run_input_tokens_bucket{le="4000"}') == 0
    (series,) = prometheus.query("smolagents_run_input_tokens_count")
    labels = dict(series["metric"])
    assert {labels.pop(name) for name in list(labels) if name.startswith("otel_scope")} <= {"otel_smol", ""}
    assert labels == {
        "__name__": "smolagents_run_input_tokens_count",
        "gen_ai_agent_name": "a",
        "smolagents_run_state": "success",
        "instance": "one",
        "job": "agents",
        "service_name": "agents",
        "service_version": "1.2",
    }
    question = {"query": "smolagents_run_input_tokens_bucket", "start": time.time() - 600, "end": time.time() + 5}
    address = f"{prometheus.url}/api/v1/query_exemplars?{urllib.parse.urlencode(question)}"
    wait_for(lambda: get_json(address)["data"] != [], "an exemplar")
    assert {e["labels"]["trace_id"] for s in get_json(address)["data"] for e in s["exemplars"]} == {trace_id}


def test_a_counter_that_comes_once_has_a_zero_before_it(make_collector: StartCollector, start_prometheus: Any) -> None:
    """A script exports once, at its end. Its start time becomes the zero sample that makes the value an increase."""
    (hole,) = free_ports(1)
    prometheus = start_prometheus(own_metrics=hole)
    collector = make_collector(OTELCOL_METRICS_ENDPOINT=prometheus.otlp).start()
    begin = time.time_ns() - 20_000_000_000
    attributes: dict[str, Plain] = {semconv.AGENT_NAME: "a"}
    metric = counter(semconv.HISTORY_REPLAYED_TOKENS_METRIC.name, "{token}", 500, attributes, begin)
    assert send(collector.otlp, metrics([metric])) == 200
    prometheus.wait_for_value(TOKENS, 500)
    assert prometheus.samples(TOKENS) == [0, 500]


def test_data_that_waited_for_hours_are_taken(start_prometheus: Any) -> None:
    """The collector keeps data while a backend is away; Prometheus must not call them too old afterwards."""
    (hole,) = free_ports(1)
    prometheus = start_prometheus(own_metrics=hole)
    hours = 3 * 3600 * 1_000_000_000
    a_minute_later = time.time() - 3 * 3600 + 60
    for instance, age in (("new", 0), ("late", hours)):
        metric = counter(semconv.HISTORY_REPLAYED_TOKENS_METRIC.name, "{token}", 7, {}, time.time_ns() - 2 * hours)
        metric.sum.data_points[0].time_unix_nano -= age
        assert send(prometheus.otlp, metrics([metric], resource("agents", instance))) == 200
        prometheus.wait_for_value("count(scrape_samples_scraped) or vector(1)", 1)
    selector = f'{TOKENS}{{instance="late"}}'
    wait_for(lambda: prometheus.value(selector, a_minute_later) == 7, "the late sample")


def test_the_sums_of_many_scripts_are_scraped(make_collector: StartCollector, start_prometheus: Any) -> None:
    """One writer: one series under the agents' own `job`, with a zero before the first script's value."""
    collector = make_collector(PARTS / "one-writer.yaml").start()
    for instance in ("first", "second"):
        where = resource("scripts", instance)
        where.attributes.extend(pairs({"process.pid": 7}))
        metric = counter(
            semconv.HISTORY_REPLAYED_TOKENS_METRIC.name, "{token}", 500, {semconv.AGENT_NAME: "a"}, time.time_ns()
        )
        time.sleep(0.01)
        metric.sum.data_points[0].time_unix_nano = time.time_ns()
        assert send(collector.otlp, metrics([metric], where)) == 200
    # Before the first scrape: one that met the birth of the sum would store the zero after the value.
    wait_for(lambda: total(samples(collector.scrape_url), TOKENS) == 1_000, "both scripts")
    own = int(collector.own_metrics_url.rpartition(":")[2].partition("/")[0])
    prometheus = start_prometheus(own_metrics=own, sums=collector.scrape)
    prometheus.wait_for_value(f'{TOKENS}{{job="scripts"}}', 1_000)
    assert prometheus.samples(TOKENS)[0] == 0
    prometheus.wait_for_value('otelcol_receiver_accepted_metric_points{job="otelcol"}', 2)
