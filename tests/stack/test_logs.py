"""Log records: a program sends none unless it is told to, and `collector/logs.yaml` is the place for those."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run

from .conftest import StartCollector
from .programs import PARTS, Collector, wait_for
from .sink import Sink

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
KEY = "sk-proj-" + "Ab1_" * 8
AGENT = f"""
from smolagents import CodeAgent
from tests.scripted import Script, agent, step_replies
agent(CodeAgent, Script(*step_replies(CodeAgent, 3)), name="helper").run("use {KEY} for it")
"""
PROTOCOLS = ["http/protobuf", "grpc"]


def address(collector: Collector, protocol: str) -> str:
    return collector.otlp if protocol != "grpc" else f"http://127.0.0.1:{collector.grpc}"


def says(folder: Path, collector: Collector, protocol: str, **variables: str) -> list[str]:
    """What the agent's program says on stderr, sending here; it ends well."""
    done = run(folder, AGENT, address(collector, protocol), **{"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, **variables})
    assert done.returncode == 0
    return done.stderr.splitlines()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_word_of_logs_by_default(protocol: str, make_collector: StartCollector, sink: Sink, tmp_path: Path) -> None:
    """The distro exports logs by default and the collector takes none: nobody notices. With events one line says so."""
    collector = make_collector(OTELCOL_TRACES_ENDPOINT=sink.url, OTELCOL_METRICS_ENDPOINT=sink.url).start()
    for variables in ({}, {"OTEL_LOGS_EXPORTER": "otlp"}, {CONTENT: "SPAN_ONLY"}):
        assert says(tmp_path, collector, protocol, **variables) == []
    (line,) = says(tmp_path, collector, protocol, **{CONTENT: "EVENT_ONLY"})  # the control
    assert "Failed to export logs" in line


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_content_as_events(protocol: str, make_collector: StartCollector, sink: Sink, tmp_path: Path) -> None:
    """With the part every call's event arrives, prompts and all, and a secret in them is masked."""
    collector = make_collector(
        PARTS / "logs.yaml",
        OTELCOL_TRACES_ENDPOINT=sink.url,
        OTELCOL_METRICS_ENDPOINT=sink.url,
        OTELCOL_LOGS_ENDPOINT=sink.url,
    ).start()
    assert says(tmp_path, collector, protocol, **{CONTENT: "EVENT_ONLY"}) == []
    wait_for(lambda: len(sink.logs()) == 3, "an event of each call")
    text = "".join(str(record) for record in sink.logs())
    assert "use **** for it" in text
    assert KEY not in text
