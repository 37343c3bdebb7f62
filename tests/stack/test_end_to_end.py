"""`opentelemetry-instrument python …`, the collector, Prometheus and Jaeger, all real: all arrives as it was sent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from otel_smol import semconv as sc
from tests.model_server import ModelServer, code
from tests.programs import environment

from .e2e import EXAMPLE, FORMS, ONCE, PROGRAMS, RUN_TOKENS, TOKENS, Stack, Truth, running, truth_in
from .jaeger import Jaeger, StoredSpan
from .programs import get_json, wait_for

NOT_EMITTED = {
    "gen_ai.request.top_k",  # OpenAI's client has no such parameter
    "smolagents.inference_provider",  # InferenceClientModel only
    "smolagents.history.other.tokens",  # prompts of models that a tool calls
}
"""Attributes that `programs_under_test/everything.py` cannot have."""

KINDS = {"invoke_agent", "agent_step", "plan", "chat", "execute_tool"}
TYPES = {"string": str, "int": int, "double": float, "boolean": bool}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("stack"), traces=True) as stack:
        yield stack


def jaeger(stack: Stack) -> Jaeger:
    assert stack.jaeger is not None
    return stack.jaeger


# --- spans -----------------------------------------------------------------------------------------------------------


def spans_printed(lines: list[str]) -> list[dict[str, Any]]:
    """What the SDK's console exporter has printed: the same spans, not sent anywhere."""
    text, found, at = "\n".join(lines), [], 0
    decoder = json.JSONDecoder()
    while (at := text.find('{\n"name"', at)) >= 0:
        span, at = decoder.raw_decode(text, at)
        found.append(span)
    return found


def test_every_span_and_attribute_arrives_with_its_type(stack: Stack) -> None:
    """Every kind of span, all but three attributes of `semconv`, content too: Jaeger has what the SDK was given."""
    program = stack.start(
        "everything.py",
        service=stack.service(),
        OTEL_TRACES_EXPORTER="otlp,console",
        OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="SPAN_ONLY",
        OTEL_SMOL_CONTEXT_WINDOW="8000",
    )
    sent = spans_printed(program.end())
    assert (program.code, program.stderr()) == (0, [])
    assert {span["name"].split(" ")[0] for span in sent} == KINDS
    assert {name for span in sent for name in span["attributes"]} == set(sc.ATTRIBUTES) - NOT_EMITTED

    traces = {bytes.fromhex(span["context"]["trace_id"][2:]) for span in sent}
    wait_for(lambda: sum(len(jaeger(stack).trace(each)) for each in traces) == len(sent), "every span in Jaeger")
    stored = {span_id: span for each in traces for span_id, span in jaeger(stack).trace(each).items()}
    for span in sent:
        assert_same(span, stored[span["context"]["span_id"][2:]])


def assert_same(sent: dict[str, Any], stored: StoredSpan) -> None:
    """Name, parent, and every attribute with its value and the type that `semconv` says it has."""
    assert stored.name == sent["name"]
    assert stored.parent == (sent["parent_id"] or "0x")[2:]
    assert stored.attributes == sent["attributes"]
    for name, value in stored.attributes.items():
        kind = sc.ATTRIBUTES[name].type
        for each in value if kind.endswith("[]") else [value]:
            assert type(each) is TYPES[kind.removesuffix("[]")], name


# --- the example -----------------------------------------------------------------------------------------------------


def billed(lines: list[str]) -> int:
    """Input tokens, as examples/agent.py prints them."""
    (found,) = [match for line in lines if (match := re.match(r"billed: (\d+) input", line))]
    return int(found[1])


def test_the_example_and_its_exemplar(stack: Stack) -> None:
    """The shipped example: its bill by PromQL in both forms, and from the histogram of runs to the trace of the run."""
    service, begin = stack.service(), time.time()
    program = stack.start(EXAMPLE, service=service)
    lines = program.end()
    assert (program.code, program.stderr()) == (0, [])
    tokens = billed(lines)
    for form in FORMS:
        assert stack.wait_for_last(form, service, tokens)
        assert stack.wait_for_last(form, service, tokens, RUN_TOKENS)  # counted last, so an export later perhaps
        assert stack.total(form, service, begin=begin) == tokens
    wait_for(lambda: len(exemplars(stack, service, begin)) == len(FORMS), "exemplars of both forms")
    (trace_id,) = set.union(*exemplars(stack, service, begin).values())

    def spans() -> list[StoredSpan]:
        return list(jaeger(stack).trace(bytes.fromhex(trace_id)).values())

    def runs() -> list[StoredSpan]:
        return [span for span in spans() if span.name == "invoke_agent heating_advisor"]

    def usage() -> int:
        return sum(span.attributes.get(sc.USAGE_INPUT_TOKENS, 0) for span in spans())

    wait_for(lambda: len(runs()) > 0 and usage() >= tokens, "the trace in Jaeger")
    (run,) = runs()
    assert run.attributes[sc.RUN_INPUT_TOKENS] == usage() == tokens


def exemplars(stack: Stack, service: str, begin: float) -> dict[str, set[str]]:
    """Trace ids on the histogram of run tokens, of the pushed series and of the scraped one, by their instance."""
    query = f'smolagents_run_input_tokens_bucket{{job="{service}"}}'
    question = urllib.parse.urlencode({"query": query, "start": begin - 1, "end": time.time() + 1})
    found: dict[str, set[str]] = {}
    for series in get_json(f"{stack.prometheus.url}/api/v1/query_exemplars?{question}")["data"]:
        ids = found.setdefault(series["seriesLabels"]["instance"], set())
        ids |= {each["labels"]["trace_id"] for each in series["exemplars"]}
    return found


def test_the_example_with_a_model_behind_http(stack: Stack) -> None:
    """OPENAI_API_KEY and OPENAI_BASE_URL: the same with smolagents' OpenAIModel; the server's bill is the truth."""
    service, begin = stack.service(), time.time()
    answers = [code('print(look_up("air heat pump"))'), code('final_answer("the air heat pump")')]
    with ModelServer(answers) as server:
        program = stack.start(EXAMPLE, service=service, OPENAI_API_KEY="unused", OPENAI_BASE_URL=f"{server.url}/v1")
        lines = program.end()
        assert (program.code, program.stderr()) == (0, [])
        assert billed(lines) == server.truth.input_tokens
        assert stack.wait_for_last("push", service, server.truth.input_tokens)
    assert stack.total("push", service, begin=begin) == server.truth.input_tokens


def test_straight_to_the_backends(stack: Stack) -> None:
    """Without a collector: the variables of docs/backends.md, traces to Jaeger and metrics to Prometheus."""
    service, begin = stack.service(), time.time()
    program = stack.start(
        EXAMPLE,
        service=service,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{jaeger(stack).otlp}/v1/traces",
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{stack.prometheus.otlp}/v1/metrics",
        OTEL_TRACES_EXPORTER="otlp,console",
    )
    lines = program.end()
    assert (program.code, program.stderr()) == (0, [])
    tokens = next(int(match[1]) for line in lines if (match := re.search(r"billed: (\d+) input", line)))
    assert stack.wait_for_last("push", service, tokens)
    assert stack.total("push", service, begin=begin) == tokens
    sent = spans_printed(lines)
    (trace,) = {bytes.fromhex(span["context"]["trace_id"][2:]) for span in sent}
    wait_for(lambda: len(jaeger(stack).trace(trace)) == len(sent), "every span in Jaeger")


# --- series ----------------------------------------------------------------------------------------------------------


def test_as_many_series_after_500_runs_as_after_5(stack: Stack) -> None:
    """P65: the series of a process depend on its agents, models and tools, not on how often they run."""
    service = stack.service()
    program = stack.start("runs.py", service=service)
    for count in (5, 495):
        truth = program.runs(count)
        wait_for_all(stack, service, truth)
        if count == 5:
            few = {form: stack.series(form, service) for form in FORMS}
    program.end()
    assert truth.runs == 500
    assert min(few.values()) > 100
    assert {form: stack.series(form, service) for form in FORMS} == few


def wait_for_all(stack: Stack, service: str, truth: Truth) -> None:
    """Both forms have what was billed, in the counters and in the histograms of runs, and all that comes with it."""
    for metric in (TOKENS, RUN_TOKENS):
        assert all(stack.wait_for_last(form, service, truth.input, metric) for form in FORMS)
    stack.wait_for_a_scrape()


SCRIPTS = 200
"""docs/backends.md names this number."""


def test_as_many_series_for_200_scripts_as_for_5(stack: Stack) -> None:
    """One writer: the series do not grow with the scripts, and nothing is lost. Pushed, each script brings its own."""
    service, begin = stack.service(), time.time()
    truth = many_scripts(stack, service, 5)
    wait_for_all(stack, service, truth)
    few = {form: stack.series(form, service) for form in FORMS}
    truth += many_scripts(stack, service, SCRIPTS - 5)
    wait_for_all(stack, service, truth)
    many = {form: stack.series(form, service) for form in FORMS}
    assert many["one writer"] == few["one writer"]
    assert many["push"] == pytest.approx(few["push"] / 5 * SCRIPTS)
    assert {form: stack.total(form, service, TOKENS, begin=begin) for form in FORMS} == dict.fromkeys(
        FORMS, truth.input
    )


def many_scripts(stack: Stack, service: str, count: int) -> Truth:
    """Scripts that begin and end, forked from one interpreter that has imported smolagents."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "many.py"), str(count)],
        env=environment(None, **stack.variables(service, **ONCE)),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return truth_in(done.stdout)
