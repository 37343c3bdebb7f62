"""Totals by PromQL against the truth: real programs, the shipped collector configuration, Prometheus.

The truth is what the models of a program say they have billed. Every situation is run once, and both forms see it: each
process's own series, pushed (`collector-config.yaml`), and one writer, scraped (`collector/one-writer.yaml`). What a
form loses is part of the expectation, and docs/backends.md has the same numbers.
"""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from grafana.queries import mean, quantile, ratio, selector, total
from tests.programs import PATIENCE

from .e2e import FORMS, ONCE, RUN_TOKENS, TOKENS, Form, Rows, Stack, Truth, running, truth_in
from .programs import ROOT

DOCUMENT = ROOT / "docs" / "backends.md"
WITHIN = 0.01
POD = {"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=pod-0"}
AS_THE_SDK = {"OTEL_SMOL_MEND_FORKS": "false", "OTEL_TRACES_EXPORTER": "none", **ONCE}
"""Nothing is exported before the fork: what comes of a connection or a lock that was in use then is anybody's guess."""


@dataclass
class Outcome:
    """What a situation was billed, when, and what the two forms should show of it."""

    service: str
    begin: float
    truth: Truth
    end: float = 0
    """When everything was there."""
    between: dict[Form, tuple[float, float]] = field(default_factory=dict)
    """Input tokens that a form shows at least and at most, where that is not the truth."""
    middle: tuple[float, Truth] | None = None
    """A moment in its life, and what it was billed by then."""

    def least(self, form: Form) -> float:
        return self.between.get(form, (self.truth.input, 0))[0]


# --- the situations --------------------------------------------------------------------------------------------------


def scripts(stack: Stack, *steps: int, **variables: str) -> Outcome:
    """So many scripts, one after the other, each with one run of so many steps, which export once, at their end."""
    service, begin, truth = stack.service(), time.time(), Truth()
    for count in steps:
        program = stack.start("runs.py", str(count), service=service, **ONCE, **variables)
        truth += program.runs(1)
        program.end()
        assert program.stderr() == []
    return Outcome(service, begin, truth)


def sigterm_half_way(stack: Stack) -> Outcome:
    """SIGTERM in the third step: three calls are billed."""
    service, begin = stack.service(), time.time()
    program = stack.start("half_way.py", service=service)
    truth = truth_in(program.line())
    assert truth.calls == 3
    program.send(signal.SIGTERM)
    program.wait()
    assert program.code == -signal.SIGTERM
    return Outcome(service, begin, truth)


def long_lived(stack: Stack) -> Outcome:
    """A process that exports every second: in all, and in a window that begins and one that ends in its middle."""
    service, begin = stack.service(), time.time()
    program = stack.start("runs.py", service=service)
    half = Truth()
    for _ in range(3):
        half = program.runs(2)
        time.sleep(0.7)
    assert all(stack.wait_for_last(form, service, half.input) for form in FORMS)
    middle = time.time()
    for _ in range(3):
        truth = program.runs(2)
        time.sleep(0.7)
    program.end()
    return Outcome(service, begin, truth, middle=(middle, half))


def pool(stack: Stack, kind: str, before: int, count: int = 6, **variables: str) -> Outcome:
    """Runs in a pool of three processes, and perhaps one in the parent before."""
    service, begin = stack.service(), time.time()
    program = stack.start("pool.py", kind, str(before), str(count), service=service, **variables)
    truth = truth_in(program.end()[-1])
    assert program.code == 0
    assert program.stderr() == []
    return Outcome(service, begin, truth)


def server(stack: Stack, before: int, **variables: str) -> Outcome:
    """A server with two workers forked in advance; SIGTERM ends it right after the last of eight requests."""
    service, begin, requests = stack.service(), time.time(), 8
    program = stack.start("server.py", "2", str(before), service=service, **variables)
    done_before = truth_in(program.line())
    address = f"http://127.0.0.1:{program.line()}/"
    with ThreadPoolExecutor(2) as clients:
        answers = list(clients.map(_post, [address] * requests))
    truth = sum(map(truth_in, answers), done_before)
    program.send(signal.SIGTERM)
    program.wait()
    assert program.code == 0
    return Outcome(service, begin, truth)


def _post(address: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(address, b"", method="POST"), timeout=120) as answer:
        return str(answer.read().decode())


def server_as_the_sdk(stack: Stack) -> Outcome:
    """The SDK alone: each worker exports what the parent had counted before the fork as its own."""
    outcome = server(stack, 1, **AS_THE_SDK)
    one_run = outcome.truth.input / outcome.truth.runs
    outcome.between = dict.fromkeys(FORMS, (outcome.truth.input + 2 * one_run,) * 2)
    return outcome


def collector_killed(stack: Stack, **variables: str) -> Outcome:
    """The collector is killed with -9 while a process lives and works on, and started again.

    The one writer begins to count a process with the first export after its own start: what a process counted between
    its last export before the kill and its first after that is lost, here up to two runs of six. A process that exports
    what is new (delta) sends that again, for ten seconds; Prometheus itself does not take such exports.
    """
    service, begin = stack.service(), time.time()
    delta = bool(variables)
    program = stack.start("runs.py", service=service, **variables)
    first = program.runs(2)
    assert stack.wait_for_last("one writer", service, first.input)
    stack.collector.process.kill()
    second = program.runs(2)
    # A scrape that meets the birth of a sum stores its zero after its first value (grafana/queries.py), and where there
    # was a sum of that name before, the value then counts twice.
    with stack.prometheus_held():
        stack.collector.start()
        program.say("export")
        time.sleep(1)  # the collector gathers for 0.2 seconds before it adds up
    if delta:
        assert stack.wait_for_last("one writer", service, (second - first).input)
    else:
        assert stack.wait_for_last("push", service, second.input)
    third = program.runs(2)
    program.end()
    outcome = Outcome(service, begin, third)
    whole = float(third.input)
    outcome.between = {"push": (0, 0)} if delta else {"one writer": (whole - (second - first).input, whole)}
    return outcome


@dataclass(frozen=True)
class Situation:
    """One row of the table: how it is run, and what the two forms show as a share of the truth."""

    name: str
    run: Callable[[Stack], Outcome]
    push: str = "1.00"
    one_writer: str = "1.00"

    @property
    def row(self) -> str:
        return f"| {self.name} | {self.push} | {self.one_writer} |"


SITUATIONS = [
    Situation("one short script", lambda stack: scripts(stack, 3)),
    Situation("five short scripts, one after the other", lambda stack: scripts(stack, 2, 3, 4, 3, 2)),
    Situation("a script with sampling off", lambda stack: scripts(stack, 3, OTEL_TRACES_SAMPLER="always_off")),
    Situation("a script ended by SIGTERM half way", sigterm_half_way),
    Situation("a process that lives", long_lived),
    Situation("restarts under the same `service.instance.id`", lambda stack: scripts(stack, 2, 4, 4, 3, **POD)),
    Situation("a pool of processes, forked", lambda stack: pool(stack, "fork", 0)),
    Situation("a pool forked after a run of the parent", lambda stack: pool(stack, "fork", 1)),
    Situation("`multiprocessing.Pool`, ended by SIGTERM", lambda stack: pool(stack, "terminate", 1)),
    Situation("a pool of processes, spawned", lambda stack: pool(stack, "spawn", 1, 4)),
    Situation("a server forked before the first run", lambda stack: server(stack, 0)),
    Situation("a server forked after a run", lambda stack: server(stack, 1)),
    Situation("the same with `OTEL_SMOL_MEND_FORKS=false`", server_as_the_sdk, "1.22", "1.22"),
]
KILLED = [
    Situation("the collector killed under a process that lives", collector_killed, "1.00", "0.67 to 1.00"),
    Situation(
        "the same, the process exports delta",
        lambda stack: collector_killed(stack, OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="delta"),
        "0.00",
        "1.00",
    ),
]


# --- running them once -----------------------------------------------------------------------------------------------


class Measured(Rows[Outcome]):
    """All situations, run."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._run, SITUATIONS))
        self._settle(SITUATIONS)
        for situation in KILLED:
            self._run(situation)
        self._settle(KILLED)

    def _run(self, situation: Situation) -> None:
        self.note(situation, lambda: situation.run(self.stack))

    def _settle(self, situations: list[Situation]) -> None:
        """Wait until every total is there, then for what might come on top of it."""
        outcomes = self.came_about(situations)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not all(map(self._is_there, outcomes)):
            time.sleep(0.2)
        self.stack.wait_for_a_scrape()  # with whatever else there is of a process
        time.sleep(2.5)
        for outcome in outcomes:
            outcome.end = time.time()

    def _is_there(self, outcome: Outcome) -> bool:
        return all(
            self.stack.total(form, outcome.service, metric, begin=outcome.begin) >= outcome.least(form) * (1 - WITHIN)
            for form in FORMS
            for metric in (TOKENS, RUN_TOKENS)
        )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with running(tmp_path_factory.mktemp("totals")) as stack:
        yield Measured(stack)


each_situation = pytest.mark.parametrize("situation", [*SITUATIONS, *KILLED], ids=lambda situation: situation.name)
each_form = pytest.mark.parametrize("form", FORMS)


# --- the tests -------------------------------------------------------------------------------------------------------


@each_form
@each_situation
def test_total_is_the_truth(situation: Situation, form: Form, measured: Measured) -> None:
    """P71, P74: input tokens by counter and by histogram, each within 1 % of what the form should show."""
    outcome = measured[situation]
    truth = outcome.truth.input
    least, most = outcome.between.get(form, (truth, truth))
    for metric in (TOKENS, RUN_TOKENS):
        found = measured.stack.total(form, outcome.service, metric, begin=outcome.begin, end=outcome.end)
        assert least * (1 - WITHIN) <= found <= most * (1 + WITHIN), f"{metric}: {found} of {truth}"
    documented = situation.push if form == "push" else situation.one_writer
    assert documented == " to ".join(f"{share / truth:.2f}" for share in dict.fromkeys((least, most)))


@each_form
def test_windows_within_a_life(form: Form, measured: Measured) -> None:
    """A window that begins, and one that ends, in the middle of a process's life holds what was billed within it."""
    outcome = measured[_named("a process that lives")]
    assert outcome.middle is not None
    middle, half = outcome.middle
    for begin, end, truth in ((outcome.begin, middle, half), (middle, outcome.end, outcome.truth - half)):
        found = measured.stack.total(form, outcome.service, begin=begin, end=end)
        assert found == pytest.approx(truth.input, rel=WITHIN)


@each_form
@pytest.mark.parametrize("situation", SITUATIONS[:5], ids=lambda situation: situation.name)
def test_twenty_minutes_later(situation: Situation, form: Form, measured: Measured) -> None:
    """P64: an hour's total still holds runs whose series ended twenty minutes ago."""
    outcome = measured[situation]
    later = outcome.end + 1200
    found = measured.stack.total(form, outcome.service, begin=later - 3600, end=later)
    assert found == pytest.approx(outcome.truth.input, rel=WITHIN)


@each_form
def test_ratio_mean_and_quantile(form: Form, measured: Measured) -> None:
    """Tokens per run from the histogram, and per call from the two counters of the curve."""
    outcome = measured[_named("five short scripts, one after the other")]
    stack, truth = measured.stack, outcome.truth
    window = f"{round((outcome.end - outcome.begin) * 1000)}ms"
    where: dict[str, Any] = stack.matchers(form, outcome.service)
    at = outcome.end
    per_run = mean("smolagents_run_input_tokens", window, **where)
    assert stack.prometheus.value(per_run, at) == pytest.approx(truth.input / truth.runs)
    per_call = ratio("smolagents_step_input_tokens_total", "smolagents_step_calls_total", window, **where)
    assert stack.prometheus.value(per_call, at) == pytest.approx(truth.input / truth.calls)
    median = stack.prometheus.value(quantile(0.5, "smolagents_run_input_tokens", window, **where), at)
    assert median is not None
    assert 4_000 <= median <= 8_000  # each run is billed about 7,000: the bucket, no more can be asked


def test_why_not_increase(measured: Measured) -> None:
    """The control: what `grafana/queries.py` says of the other forms is so."""
    stack = measured.stack

    def share(name: str, form: Form, metric: str, query: Callable[..., str]) -> float:
        outcome = measured[_named(name)]
        found = stack.total(form, outcome.service, metric, begin=outcome.begin, end=outcome.end, query=query)
        return found / outcome.truth.input

    def increase(metric: str, window: str, **where: str) -> str:
        return f"sum(increase({selector(metric, **where)}[{window}]))"

    # Two samples: the zero of its birth, and the value. Half the time between them is added after the last one.
    assert share("one short script", "push", TOKENS, increase) == pytest.approx(1.5)
    last_less_start = partial(total, resets=False)
    assert share("one short script", "push", TOKENS, last_less_start) == pytest.approx(1)
    assert share("restarts under the same `service.instance.id`", "push", TOKENS, last_less_start) < 0.3


def test_the_document_has_the_table() -> None:
    """docs/backends.md: a row for each situation, with these numbers."""
    text = DOCUMENT.read_text()
    assert [situation.row for situation in (*SITUATIONS, *KILLED) if situation.row not in text] == []


def _named(name: str) -> Situation:
    return next(situation for situation in SITUATIONS if situation.name == name)
