"""Many hosts: an agents' collector and two gateways, three real collectors."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .conftest import StartCollector
from .programs import PARTS, Collector, wait_for
from .sink import Sink
from .synthetic import Run, send, traces


@dataclass
class Fleet:
    """Each gateway has a backend of its own, so that one sees which gateway a span went through."""

    agent: Collector
    gateways: list[Collector]
    sinks: list[Sink]

    def arrived(self) -> list[Span]:
        return [span for sink in self.sinks for span in sink.spans()]

    def wait_for(self, spans: Sequence[Span]) -> None:
        ids = {s.span_id for s in spans}
        wait_for(lambda: ids <= {s.span_id for s in self.arrived()}, f"{len(ids)} spans")


def fleet(make: StartCollector, at_the_end: ExitStack, *gateway_parts: Path) -> Fleet:
    sinks = [Sink().start() for _ in range(2)]
    for sink in sinks:
        at_the_end.callback(sink.stop)
    gateways = [
        make(
            PARTS / "gateway.yaml",
            *gateway_parts,
            name=f"gateway-{number}",
            OTELCOL_TRACES_ENDPOINT=sink.url,
            OTELCOL_KEEP_PERCENT="0",
        )
        for number, sink in enumerate(sinks, start=1)
    ]
    addresses = ", ".join(f"127.0.0.1:{gateway.grpc}" for gateway in gateways)
    agent = make(
        PARTS / "gateway-agent.yaml", name="agent", program="otelcol-gateway", OTELCOL_GATEWAYS=f"[{addresses}]"
    )
    # As shipped, a request may come twice after 15 seconds. A gateway that starts slowly must not use them up.
    waits = {"timeout": "120s", "protocol": {"otlp": {"timeout": "60s"}}}
    agent.overlay("waits", {"exporters": {"load_balancing": waits}})
    return Fleet(agent, gateways, sinks)


@pytest.fixture
def plain(make_collector: StartCollector, at_the_end: ExitStack) -> Fleet:
    made = fleet(make_collector, at_the_end)
    for collector in (*made.gateways, made.agent):
        collector.start()
    return made


def mixed(runs: int) -> list[Span]:
    """The spans of many runs in no order, as they come from many agents at once."""
    spans = [span for _ in range(runs) for span in Run(steps=3).spans()]
    random.Random(7).shuffle(spans)
    return spans


def send_in_pieces(collector: Collector, spans: list[Span], size: int = 25) -> None:
    for begin in range(0, len(spans), size):
        assert send(collector.otlp, traces(spans[begin : begin + size])) == 200


def test_all_spans_of_a_trace_end_at_one_gateway(plain: Fleet) -> None:
    spans = mixed(runs=40)
    send_in_pieces(plain.agent, spans)
    plain.wait_for(spans)
    where: dict[bytes, set[int]] = defaultdict(set)
    for number, sink in enumerate(plain.sinks):
        for span in sink.spans():
            where[span.trace_id].add(number)
    assert len(where) == 40
    assert {len(gateways) for gateways in where.values()} == {1}
    # Both have work, or this would prove nothing.
    assert set().union(*where.values()) == {0, 1}


def test_nothing_is_lost_while_a_gateway_is_away_and_the_agent_s_collector_dies(plain: Fleet) -> None:
    """One gateway down, data in, kill -9 of the agents' collector, all up again."""
    plain.gateways[1].process.kill()
    spans = mixed(runs=20)
    send_in_pieces(plain.agent, spans)
    # What can be delivered begins to be, the rest has been tried and waits.
    wait_for(lambda: len(plain.sinks[0].spans()) > 0, "something at the living gateway")
    assert plain.sinks[1].spans() == []
    plain.agent.process.kill()
    plain.gateways[1].start()
    plain.agent.start()
    plain.wait_for(spans)


def test_a_gateway_that_restarts_costs_nothing_and_doubles_nothing(plain: Fleet) -> None:
    """A request is made of spans for both gateways; the one that is there must not get its part again and again."""
    plain.gateways[1].process.kill()
    spans = mixed(runs=20)
    send_in_pieces(plain.agent, spans)
    time.sleep(3)
    plain.gateways[1].start()
    plain.wait_for(spans)
    time.sleep(1)
    assert len(plain.arrived()) == len(spans)


def test_gateways_keep_a_failed_run_whole(make_collector: StartCollector, at_the_end: ExitStack) -> None:
    """Tail sampling behind the load balancer: no gateway decides on half a trace."""
    made = fleet(make_collector, at_the_end, PARTS / "tail-sampling.yaml")
    waits = {"decision_wait": "60s", "decision_wait_after_root_received": "1s"}
    for gateway in made.gateways:
        gateway.overlay("waits", {"processors": {"tail_sampling": waits}})
        gateway.start()
    made.agent.start()
    failed = [Run(steps=4, failed=True, state="error").spans() for _ in range(6)]
    cheap = [Run(steps=4).spans() for _ in range(12)]
    spans = [span for run in (*failed, *cheap) for span in run]
    random.Random(7).shuffle(spans)
    send_in_pieces(made.agent, spans)
    made.wait_for([span for run in failed for span in run])
    time.sleep(1.5)
    assert Counter(s.trace_id for s in made.arrived()) == Counter({run[0].trace_id: len(run) for run in failed})
