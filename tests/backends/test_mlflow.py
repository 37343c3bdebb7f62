"""MLflow as the backend: every span arrives as it was sent, and `mlflow.trace.tokenUsage` is the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_smol import otlp
from otel_smol.otlp import Scope, SpanData, Value
from tests.backends.agents import CONTENT, IN_PARTS, RUNS, TRACES, run_everything
from tests.backends.received import Tokens, billed, billed_by_trace
from tests.backends.relay import Relay
from tests.backends.servers import post_json
from tests.stack.programs import get_json


def new_experiment(mlflow: str, name: str) -> str:
    """Its id."""
    return str(post_json(f"{mlflow}/api/2.0/mlflow/experiments/create", {"name": name})["experiment_id"])


def stored_traces(mlflow: str, experiment: str) -> list[dict[str, Any]]:
    """What MLflow shows of each trace in its list."""
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    return list(post_json(f"{mlflow}/api/3.0/mlflow/traces/search", {"locations": [place]})["traces"])


def stored_spans(mlflow: str, trace_id: str) -> list[SpanData]:
    """The spans of a trace. MLflow gives them out as OTLP in JSON."""
    trace = get_json(f"{mlflow}/api/3.0/mlflow/traces/get?trace_id={trace_id}")["trace"]
    return [otlp.span(ParseDict(span, Span()), {}, Scope()) for span in trace["spans"]]


def token_usage(trace: dict[str, Any]) -> Tokens | None:
    """What MLflow has added up; None where it has nothing to add up."""
    text = trace.get("trace_metadata", {}).get("mlflow.trace.tokenUsage")
    usage = json.loads(text) if text else None
    return Tokens(usage["input_tokens"], usage["output_tokens"]) if usage else None


def as_mlflow_reads(value: Value) -> Value:
    """Text that is JSON, as messages are, comes back as what it stands for."""
    return json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else value


def check_span(stored: SpanData, sent: SpanData) -> None:
    """One span is as it was sent, each attribute with its type. MLflow adds some of its own."""
    for field in ("name", "trace_id", "span_id", "parent_span_id", "start", "end", "status"):
        assert getattr(stored, field) == getattr(sent, field), field
    kept = {name: stored.attributes.get(name) for name in sent.attributes}
    expected = {name: as_mlflow_reads(value) for name, value in sent.attributes.items()}
    assert json.dumps(kept, sort_keys=True) == json.dumps(expected, sort_keys=True)


def test_all_arrives_as_it_was_sent(mlflow: str, tmp_path: Path) -> None:
    """P41: nothing is lost or changed, and MLflow's own sum over a trace, managed agents included, is the truth."""
    experiment = new_experiment(mlflow, "agents")
    with Relay(mlflow) as relay:
        truth = run_everything(
            tmp_path,
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{relay.url}/v1/traces",
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_TRACES_HEADERS=f"x-mlflow-experiment-id={experiment}",
            **CONTENT,
            **IN_PARTS,
        )
    sent = {span.span_id: span for span in relay.spans()}
    assert len([span for span in sent.values() if span.name.startswith("invoke_agent ")]) == RUNS
    traces = stored_traces(mlflow, experiment)
    assert len(traces) == TRACES
    stored = {span.span_id: span for trace in traces for span in stored_spans(mlflow, trace["trace_id"])}
    assert stored.keys() == sent.keys()
    for span_id, span in stored.items():
        check_span(span, sent[span_id])
    assert billed([span.attributes for span in stored.values()]) == truth
    by_trace = {trace["trace_id"].removeprefix("tr-"): token_usage(trace) for trace in traces}
    known = {trace: tokens for trace, tokens in by_trace.items() if tokens is not None}
    sums = billed_by_trace(list(sent.values()))
    assert known == {trace: tokens for trace, tokens in sums.items() if tokens != Tokens(0, 0)}
    assert len(known) == TRACES - 1, "of the model that reports no usage nothing is known, and MLflow shows nothing"
    calls = [span.attributes for span in stored.values() if span.name.startswith("chat ")]
    assert all("mlflow.spanInputs" in call for call in calls), "prompts are shown as inputs"
