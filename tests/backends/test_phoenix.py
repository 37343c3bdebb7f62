"""Arize Phoenix as the backend: every span arrives as it was sent, and the totals that it shows are the truth."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_smol.otlp import SpanData
from tests.backends.agents import CONTENT, IN_PARTS, RUNS, TRACES, run_everything
from tests.backends.received import Tokens, billed, billed_by_trace
from tests.backends.relay import Relay
from tests.backends.servers import post_json
from tests.stack.programs import get, wait_for

TOTALS = """
query Totals {
  projects {
    edges {
      node {
        name
        tokenCountPrompt
        tokenCountCompletion
        spans(first: 1000, filterCondition: "parent_id is None") {
          edges { node { name trace { traceId } cumulativeTokenCountPrompt cumulativeTokenCountCompletion } }
        }
      }
    }
  }
}
"""


def stored_spans(phoenix: str, project: str) -> list[dict[str, Any]]:
    """What Phoenix has of a project, as its REST API gives it."""
    status, body = get(f"{phoenix}/v1/projects/{project}/spans?limit=1000")
    return list(json.loads(body)["data"]) if status == 200 else []


@dataclass(frozen=True)
class Shown:
    """What Phoenix's own pages show of a project: its tokens, and those of each trace."""

    total: Tokens
    by_trace: dict[str, Tokens]


def shown(phoenix: str, project: str) -> Shown:
    """Asks as the pages do. A project begins with its first span; before that nothing is shown."""
    edges = post_json(f"{phoenix}/graphql", {"query": TOTALS})["data"]["projects"]["edges"]
    node = next((edge["node"] for edge in edges if edge["node"]["name"] == project), None)
    if node is None:
        return Shown(Tokens(0, 0), {})
    roots = [edge["node"] for edge in node["spans"]["edges"]]
    return Shown(
        Tokens(node["tokenCountPrompt"], node["tokenCountCompletion"]),
        {
            root["trace"]["traceId"]: Tokens(root["cumulativeTokenCountPrompt"], root["cumulativeTokenCountCompletion"])
            for root in roots
        },
    )


def check_span(span: dict[str, Any], sent: SpanData) -> None:
    """One span is as it was sent, each attribute with its type. Phoenix adds some of its own."""
    assert (span["name"], span["context"]["trace_id"]) == (sent.name, sent.trace_id)
    assert span["parent_id"] == (sent.parent_span_id or None)
    assert span["status_code"].lower() == sent.status
    stored = {name: span["attributes"].get(name) for name in sent.attributes}
    assert json.dumps(stored, sort_keys=True) == json.dumps(sent.attributes, sort_keys=True)


def test_all_arrives_as_it_was_sent(phoenix: tuple[str, str], tmp_path: Path) -> None:
    """P41: nothing is lost or changed on the way, and whoever adds up tokens, Phoenix included, gets the truth."""
    url, project = phoenix[0], "over-http"
    with Relay(url) as relay:
        truth = run_everything(
            tmp_path,
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{relay.url}/v1/traces",
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
            OTEL_RESOURCE_ATTRIBUTES=f"openinference.project.name={project}",
            **CONTENT,
            **IN_PARTS,
        )
    sent = {span.span_id: span for span in relay.spans()}
    assert len([span for span in sent.values() if span.name.startswith("invoke_agent ")]) == RUNS
    wait_for(lambda: len(stored_spans(url, project)) >= len(sent), f"{len(sent)} spans in Phoenix")
    stored = {span["context"]["span_id"]: span for span in stored_spans(url, project)}
    assert stored.keys() == sent.keys()
    for span_id, span in stored.items():
        check_span(span, sent[span_id])
    attributes = [span["attributes"] for span in stored.values()]
    assert billed(attributes) == truth
    expected = Shown(truth, billed_by_trace(list(sent.values())))
    # It keeps a sum that it has been asked for, until it hears of new spans.
    wait_for(lambda: shown(url, project) == expected, lambda: f"{expected}: {shown(url, project)}")
    assert len(expected.by_trace) == TRACES
    calls = [span["attributes"] for span in stored.values() if span["span_kind"] == "LLM"]
    assert all("llm.input_messages.0.message.role" in call for call in calls), "prompts are shown as messages"
    answered = [call for call in calls if "gen_ai.output.messages" in call]
    assert len(answered) == len(calls) - 1  # one model failed
    assert all("llm.output_messages.0.message.role" in call for call in answered), "answers are shown as messages"


def test_grpc(phoenix: tuple[str, str], tmp_path: Path) -> None:
    """gRPC is what the exporters speak by default; an endpoint and a project's name are all that is set."""
    (url, grpc), project = phoenix, "over-grpc"
    truth = run_everything(
        tmp_path,
        OTEL_EXPORTER_OTLP_ENDPOINT=grpc,
        OTEL_RESOURCE_ATTRIBUTES=f"openinference.project.name={project}",
    )
    # The last trace has no tokens: with the sum alone it may not be there yet.
    wait_for(lambda: len(shown(url, project).by_trace) == TRACES, f"{TRACES} traces in Phoenix")
    wait_for(lambda: shown(url, project).total == truth, f"{truth} in Phoenix")
