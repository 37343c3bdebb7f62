"""`collector/span-metrics.yaml`: the instrumentation's metrics, made from spans."""

from __future__ import annotations

import pytest

from otel_smol import semconv

from .conftest import StartCollector
from .exposition import Samples, samples, series, settled, total
from .programs import PARTS, Collector, wait_for
from .sink import Sink
from .synthetic import Run, counter, metrics, pairs, send, traces

RUNS = "smolagents_run_input_tokens_count"
WITHOUT_USAGE = "smolagents_calls_without_usage_total"
BY_STEP = {"smolagents_step_input_tokens_total", "smolagents_step_calls_total"}


@pytest.fixture
def collector(make_collector: StartCollector, sink: Sink) -> Collector:
    return make_collector(
        PARTS / "span-metrics.yaml", OTELCOL_TRACES_ENDPOINT=sink.url, OTELCOL_METRICS_ENDPOINT=sink.url
    ).start()


def after(collector: Collector, run: Run, runs: int) -> Samples:
    """What is exposed once this run, the `runs`-th, has been counted."""
    assert send(collector.otlp, traces(run.spans())) == 200
    return counted(collector, runs)


def counted(collector: Collector, runs: int) -> Samples:
    """What is exposed once so many runs have been counted."""
    return settled(collector.scrape_url, lambda found: total(found, RUNS) == runs, f"{runs} runs")


def test_as_many_series_for_200_steps_as_for_5(collector: Collector) -> None:
    """P76; by step number there are 33 at most, as in the instrumentation."""
    short = after(collector, Run(steps=5), 1)
    long = after(collector, Run(steps=200), 2)
    longer = after(collector, Run(steps=2000), 3)

    def without_step(found: Samples) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return {key for key in series(found) if key[0] not in BY_STEP}

    assert without_step(long) == without_step(short)
    assert len(series(long) - without_step(long)) == len(BY_STEP) * semconv.LAST_STEP_NUMBER
    assert series(longer) == series(long)


def test_totals_equal_the_runs(collector: Collector) -> None:
    """Tokens, calls, sources and histograms of three different runs."""
    runs = [Run(steps=3), Run(steps=7, base=4000), Run(steps=40, growth=250)]
    found: Samples = {}
    for number, run in enumerate(runs, start=1):
        found = after(collector, run, number)
    tokens = sum(run.input_tokens for run in runs)
    steps = sum(run.steps for run in runs)
    assert total(found, "smolagents_step_input_tokens_total") == tokens
    assert total(found, "smolagents_step_calls_total") == steps
    assert total(found, "smolagents_step_calls_total", smolagents_step_number="33") == 8
    assert total(found, "smolagents_run_input_tokens_sum") == tokens
    assert total(found, "smolagents_run_steps_sum") == steps
    assert total(found, "smolagents_history_input_tokens_total") == tokens
    assert total(found, "smolagents_history_input_tokens_total", smolagents_history_source="system_prompt") == sum(
        run.base * run.steps for run in runs
    )
    assert total(found, "smolagents_step_duration_seconds_count") == steps
    assert total(found, "gen_ai_client_token_usage_sum", gen_ai_token_type="input") == tokens
    assert total(found, "gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 50 * steps
    assert total(found, "gen_ai_client_operation_duration_seconds_count") == steps
    assert total(found, "gen_ai_invoke_agent_duration_seconds_count") == len(runs)
    assert total(found, "smolagents_run_overpay_sum") == 3.0


def test_every_run_has_its_count_of_calls_without_usage(collector: Collector) -> None:
    """0 as well, as in the instrumentation: the dashboards offer the agents that have this metric."""
    found = after(collector, Run(agent="told"), 1)
    assert {value for (name, _), value in found.items() if name == WITHOUT_USAGE} == {0.0}
    silent = Run(agent="silent").spans()
    (of_run,) = (each for each in silent[-1].attributes if each.key == semconv.RUN_CALLS_WITHOUT_USAGE)
    of_run.value.int_value = 3
    assert send(collector.otlp, traces(silent)) == 200
    found = counted(collector, 2)
    assert total(found, WITHOUT_USAGE, gen_ai_agent_name="told", gen_ai_request_model="test-model") == 0
    assert total(found, WITHOUT_USAGE, gen_ai_agent_name="silent", gen_ai_request_model="test-model") == 3


def test_cached_tokens_only_where_the_provider_says(collector: Collector) -> None:
    """A provider that is silent has no such series, and one that read nothing has 0. An estimate is no bill."""
    after(collector, Run(agent="silent"), 1)
    for agent, cached, estimator in (("cold", 0, "billed"), ("warm", 700, "billed"), ("guessed", 700, "characters")):
        spans = Run(agent=agent).spans()
        for chat in spans[:-1:2]:
            chat.attributes.extend(pairs({semconv.USAGE_CACHE_READ_TOKENS: cached}))
            (how,) = (each for each in chat.attributes if each.key == semconv.HISTORY_ESTIMATOR)
            how.value.string_value = estimator
        assert send(collector.otlp, traces(spans)) == 200
    found = {
        (labels["gen_ai_agent_name"], labels["gen_ai_request_model"]): value
        for (name, have), value in counted(collector, 4).items()
        if name == "smolagents_history_cached_tokens_total" and (labels := dict(have))
    }
    assert found == {("cold", "test-model"): 0, ("warm", "test-model"): 3 * 700}


def test_the_instrumentation_s_own_metrics_do_not_count_twice(collector: Collector, sink: Sink) -> None:
    """A metric that is made here is dropped where it comes in, any other passes."""
    dropped = counter(semconv.STEP_INPUT_TOKENS_METRIC.name, "{token}", 9, {semconv.AGENT_NAME: "a"}, 1)
    passes = counter(semconv.RUN_BUDGET_EXCEEDED_METRIC.name, "{run}", 1, {semconv.AGENT_NAME: "a"}, 1)
    assert send(collector.otlp, metrics([dropped, passes])) == 200
    wait_for(lambda: len(sink.metrics()) > 0, "a metric")
    assert [metric.name for _, metric in sink.metrics()] == [semconv.RUN_BUDGET_EXCEEDED_METRIC.name]
    assert total(samples(collector.scrape_url), "smolagents_step_input_tokens_total") == 0


def test_spans_still_arrive_and_keep_their_step_number(collector: Collector, sink: Sink) -> None:
    """The cap is for metrics only."""
    spans = Run(steps=40).spans()
    assert send(collector.otlp, traces(spans)) == 200
    arrived = sink.wait_for_spans(len(spans))
    numbers = {a.value.int_value for s in arrived for a in s.attributes if a.key == semconv.STEP_NUMBER}
    assert numbers == set(range(1, 41))


def test_a_strange_span_costs_nothing_but_itself(collector: Collector, sink: Sink) -> None:
    """A token count that is text: the other spans of the request are counted all the same."""
    strange = Run(steps=1).spans()[1]
    for attribute in strange.attributes:
        if attribute.key == semconv.STEP_INPUT_TOKENS:
            attribute.value.string_value = "many"
    assert send(collector.otlp, traces([strange, *Run(steps=2).spans()])) == 200
    found = counted(collector, 1)
    assert total(found, "smolagents_step_calls_total") >= 2
    assert total(found, "smolagents_step_input_tokens_total") == Run(steps=2).input_tokens
