"""`collector/tail-sampling.yaml`: what matters is kept whole, and a run that lasts long is not decided too early."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .conftest import StartCollector
from .exposition import samples, total
from .programs import PARTS, Collector, wait_for
from .sink import Sink
from .synthetic import Run, send, traces

# The shipped waits are 15 minutes and 10 seconds.
SHORT: dict[str, str | int] = {"decision_wait": "60s", "decision_wait_after_root_received": "1s"}


def sampling(make: StartCollector, sink: Sink, waits: Mapping[str, str | int], percent: str = "0") -> Collector:
    collector = make(PARTS / "tail-sampling.yaml", OTELCOL_TRACES_ENDPOINT=sink.url, OTELCOL_KEEP_PERCENT=percent)
    collector.overlay("waits", {"processors": {"tail_sampling": waits}})
    return collector.start()


KEPT = {
    "failed": Run(steps=3, failed=True, state="error"),
    "interrupted": Run(steps=3, state="interrupted"),
    "out of steps": Run(steps=20, state="max_steps"),
    "expensive": Run(steps=20, base=12_000),
    "overpaid": Run(steps=9, overpay=4.0),
}
CHEAP = [Run(steps=3), Run(steps=19, base=10_000, growth=0), Run(steps=8, overpay=3.9)]


def wait_for_decisions(collector: Collector, count: int) -> None:
    """So many traces have been decided on, whichever way."""
    name = "otelcol_processor_tail_sampling_global_count_traces_sampled"
    wait_for(lambda: total(samples(collector.own_metrics_url), name) == count, f"{count} decisions")


def in_pieces(collector: Collector, spans: list[Span]) -> None:
    """The steps as they end, the run last and after the decision: the order in which they come from an agent."""
    assert send(collector.otlp, traces(spans[: len(spans) // 2])) == 200
    assert send(collector.otlp, traces(spans[len(spans) // 2 : -1])) == 200
    wait_for_decisions(collector, 1)
    assert send(collector.otlp, traces(spans[-1:])) == 200


def test_keeps_what_matters_whole_and_drops_the_rest(make_collector: StartCollector, sink: Sink) -> None:
    """The steps wait for their run, also when it comes later than the wait after a root span."""
    collector = sampling(make_collector, sink, SHORT)
    sent = [run.spans() for run in (*KEPT.values(), *CHEAP)]
    for spans in sent:
        assert send(collector.otlp, traces(spans[:-1])) == 200
    time.sleep(2.5)
    assert sink.spans() == []
    for spans in sent:
        assert send(collector.otlp, traces(spans[-1:])) == 200

    expected = Counter({spans[0].trace_id: len(spans) for spans in sent[: len(KEPT)]})
    sink.wait_for_spans(expected.total())
    time.sleep(2)
    assert Counter(s.trace_id for s in sink.spans()) == expected


def test_deciding_after_a_fixed_wait_loses_a_long_run(make_collector: StartCollector, sink: Sink) -> None:
    """The control, and the reason for the waits: with a wait shorter than the run its failure comes too late."""
    collector = sampling(make_collector, sink, {"decision_wait": "1s", "decision_wait_after_root_received": "0s"})
    in_pieces(collector, Run(steps=3, failed=True, state="error").spans())
    quick = Run(steps=2, failed=True, state="error").spans()
    assert send(collector.otlp, traces(quick)) == 200
    sink.wait_for_spans(len(quick))
    assert {s.trace_id for s in sink.spans()} == {quick[0].trace_id}


def test_late_spans_follow_the_decision(make_collector: StartCollector, sink: Sink) -> None:
    """A span that arrives when its trace is long decided and forgotten makes no second, broken trace."""
    collector = sampling(make_collector, sink, {**SHORT, "num_traces": 2})
    kept, dropped = Run(steps=2, failed=True).spans(), Run(steps=2).spans()
    for spans in (kept[1:], dropped[1:]):
        assert send(collector.otlp, traces(spans)) == 200
    sink.wait_for_spans(len(kept) - 1)
    wait_for_decisions(collector, 2)
    # Two more traces take the room of the first two.
    others = [Run(steps=1, failed=True).spans() for _ in range(2)]
    for spans in others:
        assert send(collector.otlp, traces(spans)) == 200
    sink.wait_for_spans(len(kept) - 1 + sum(map(len, others)))
    for spans in (dropped, kept):
        assert send(collector.otlp, traces(spans[:1])) == 200
    wait_for(lambda: kept[0].span_id in {s.span_id for s in sink.spans()}, "the late span")
    assert dropped[0].trace_id not in {s.trace_id for s in sink.spans()}


@pytest.mark.parametrize(("percent", "arrived"), [("100", 10), ("0", 0)])
def test_the_share_of_the_rest_is_a_variable(
    make_collector: StartCollector, sink: Sink, percent: str, arrived: int
) -> None:
    collector = sampling(make_collector, sink, SHORT, percent)
    for _ in range(10):
        assert send(collector.otlp, traces(Run(steps=1).spans())) == 200
    marker = Run(steps=1, failed=True).spans()
    assert send(collector.otlp, traces(marker)) == 200
    wait_for_decisions(collector, 11)
    wait_for(lambda: marker[0].trace_id in {s.trace_id for s in sink.spans()}, "the failed run")
    wait_for(lambda: len({s.trace_id for s in sink.spans()}) == arrived + 1, f"{arrived} other runs")
