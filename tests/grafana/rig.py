"""The real stack with real agents behind it: collector, Prometheus and a trace backend in process."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.grafana import fleet
from tests.programs import TOOL, environment
from tests.stack.ports import free_ports
from tests.stack.programs import ROOT, Collector, Process, get_json, require, wait_for
from tests.stack.sink import Sink
from tests.stack.test_prometheus import flags_of_the_stack, with_targets

PATIENCE = 180
"""Seconds to wait for what has to come: a busy machine takes its time, and nobody waits longer than it takes."""
BILLED = "sum(last_over_time(smolagents_history_input_tokens_total[1h]))"
ENDED = "sum(last_over_time(smolagents_run_steps_count[1h]))"
"""Of all processes, also of those that ended a while ago."""


class Prometheus:
    """Answers of the HTTP API, as they are."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.otlp = f"{url}/api/v1/otlp"

    def ask(self, path: str, **question: str | float) -> Any:
        return get_json(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(question)}")["data"]

    def instant(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expression, time=at or time.time())["result"]
        return found

    def value(self, expression: str, at: float | None = None) -> float | None:
        """The only value of an answer; None when there is none."""
        found = self.instant(expression, at)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None


@dataclass
class Stack:
    """What runs, and what the agents say they cost."""

    collector: Collector
    prometheus: Prometheus
    traces: Sink
    runs: list[fleet.Run] = field(default_factory=list)
    began: float = field(default_factory=time.time)

    def calls(self) -> list[fleet.Call]:
        return [call for run in self.runs for call in run.calls]

    def billed(self) -> int:
        return sum(call.input or 0 for call in self.calls())


def start_prometheus(folder: Path, ends: ExitStack, own_metrics: int, sums: int | None = None) -> Prometheus:
    """With the flags of compose.yaml and the files of deploy/, the second where the collector adds up."""
    (port,) = free_ports(1)
    if sums is not None:
        (folder / "scrape.d").mkdir()
        shipped = with_targets(ROOT / "deploy" / "scrape-sums.yml", folder, port_8889=sums)
        shipped.rename(folder / "scrape.d" / shipped.name)
    config = with_targets(ROOT / "deploy" / "prometheus.yml", folder, port_8888=own_metrics)
    ours = {"--config.file": str(config), "--storage.tsdb.path": str(folder / "prometheus")}
    flags = [
        f"{name}={ours[name]}" if (name := flag.partition("=")[0]) in ours else flag for flag in flags_of_the_stack()
    ]
    process = Process(
        [require("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log"
    )
    ends.callback(process.kill)
    process.start()
    process.wait_until_ready(f"http://127.0.0.1:{port}/-/ready", PATIENCE)
    return Prometheus(f"http://127.0.0.1:{port}")


@contextmanager
def stack(folder: Path, *adding_up: Path) -> Iterator[Stack]:
    """The shipped configuration, with nothing in it yet; with a part of `collector/` in which it adds up."""
    with ExitStack() as ends:
        traces = Sink().start()
        ends.callback(traces.stop)
        collector = Collector(
            folder / "collector",
            program=require("otelcol-contrib"),
            parts=adding_up,
            OTELCOL_TRACES_ENDPOINT=traces.url,
        )
        own = int(urllib.parse.urlsplit(collector.own_metrics_url).port or 0)
        prometheus = start_prometheus(folder, ends, own, collector.scrape if adding_up else None)
        collector.process.variables = {**collector.process.variables, "OTELCOL_METRICS_ENDPOINT": prometheus.otlp}
        ends.callback(collector.process.stop)
        collector.start()
        yield Stack(collector, prometheus, traces)


def run_script(otlp: str, scenarios: str, variables: Mapping[str, str]) -> list[fleet.Run]:
    """Scenarios in a script of their own, under the real `opentelemetry-instrument`."""
    settings = {"OTEL_SERVICE_NAME": "agents", "OTEL_LOGS_EXPORTER": "none", **variables}
    command = [str(TOOL), sys.executable, "-m", "tests.grafana.fleet", *scenarios.split()]
    done = subprocess.run(
        command,
        env=environment(otlp, **settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return list(fleet.read(done.stdout.splitlines()[-1]))


def run_fleet(stack: Stack, scripts: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """All scripts, each its scenarios and variables, two at a time, until everything they sent has arrived."""
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda script: run_script(stack.collector.otlp, *script), scripts))
    stack.runs += [run for runs in told for run in runs]
    expected = stack.billed()
    wait_for(lambda: stack.prometheus.value(BILLED) == expected, f"{expected} tokens in Prometheus", PATIENCE)
    wait_for(
        lambda: stack.prometheus.value(ENDED) == len(stack.runs), f"{len(stack.runs)} runs in Prometheus", PATIENCE
    )
    wait_for_spans(stack)
    wait_for(lambda: sent_on(stack, "metric_points") is not None, "the collector's own last word", PATIENCE)


def wait_for_spans(stack: Stack) -> None:
    """Until every span has arrived: of each run its own, and all that the collector has taken."""
    wait_for(lambda: run_spans(stack.traces) == len(stack.runs), "the span of every run", PATIENCE)
    wait_for(
        lambda: sent_on(stack, "spans") == len(stack.traces.spans()), "all spans that the collector took", PATIENCE
    )


def sent_on(stack: Stack, what: str) -> float | None:
    """How much, once Prometheus knows that the collector has sent on all that it was sent; None before."""
    ask = stack.prometheus.value
    sent = ask(f"sum(otelcol_exporter_sent_{what})")
    return sent if sent == ask(f"sum(otelcol_receiver_accepted_{what})") else None


def run_spans(traces: Sink) -> int:
    """How many run spans have arrived."""
    return sum(span.name.startswith("invoke_agent ") for span in traces.spans())
