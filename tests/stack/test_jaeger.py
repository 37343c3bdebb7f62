"""The way of a trace: collector with the shipped configuration, Jaeger behind it."""

from __future__ import annotations

from pathlib import Path

from .conftest import StartCollector, StartProcess
from .jaeger import Jaeger
from .programs import wait_for
from .sink import attributes_of
from .synthetic import Run, send, traces


def test_a_run_arrives_whole_and_with_its_types(
    make_collector: StartCollector, start_process: StartProcess, tmp_path: Path
) -> None:
    jaeger = Jaeger(tmp_path, start_process)
    collector = make_collector(OTELCOL_TRACES_ENDPOINT=jaeger.otlp).start()
    run = Run(steps=12)
    spans = run.spans()
    assert send(collector.otlp, traces(spans)) == 200
    wait_for(lambda: len(jaeger.trace(run.trace_id)) == len(spans), "the whole trace in Jaeger")
    arrived = jaeger.trace(run.trace_id)
    for span in spans:
        stored = arrived[span.span_id.hex()]
        assert stored.attributes == attributes_of(span.attributes)
        assert (stored.name, stored.parent) == (span.name, span.parent_span_id.hex())
