"""Our metric instruments: names and buckets from `semconv`, series bounded by construction.

Recorded by the instrumentation itself, so sampling does not touch them. Every counter whose total matters is touched
with 0 before its first value: only then does its start time lie before it, and a reader can tell 0 → n from "born at
n".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

from otel_smol import semconv as sc
from otel_smol.guard import warn_once

if TYPE_CHECKING:
    from otel_smol.ledger import Call, RunLedger, Step

AGENTS, MODELS, TOOLS, ERROR_TYPES, SERVERS = 32, 16, 48, 24, 16
"""First-come caps: how many names become series of their own."""


class Cap:
    """Lets the first `limit` names through; every later one is `_OTHER`."""

    def __init__(self, what: str, limit: int, *, on_spans: bool = False) -> None:
        self.what, self.limit, self._on_spans = what, limit, on_spans
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, name: str) -> str:
        if name in self._known:
            return name
        with self._lock:
            if len(self._known) < self.limit:
                self._known.add(name)
                return name
        warn_once(
            f"cap:{self.what}",
            "otel_smol: more than %d %s: further ones are called %s on metrics%s.",
            self.limit,
            self.what,
            sc.OVERFLOW,
            ", and on spans as well" if self._on_spans else "; spans keep their names",
        )
        return sc.OVERFLOW


class LiveRun:
    """A run that goes on, as the gauges see it."""

    __slots__ = ("agent", "ledger")

    def __init__(self, agent: str, ledger: RunLedger) -> None:
        self.agent, self.ledger = agent, ledger


_live: set[LiveRun] = set()
_ever: set[str] = set()
_budgets: dict[str, int] = {}
_lock = threading.Lock()
# Shared by all `Metrics` of the process: an observable callback cannot be taken back, so one that was registered
# before uninstrument() has to go on telling the truth after the next instrument().


def forget_live_runs() -> None:
    """In a forked child: the runs that went on are the parent's."""
    global _lock
    _lock = threading.Lock()  # whoever held it stayed behind
    _live.clear()


class Metrics:
    """All instruments of one meter provider."""

    def __init__(self, meter: Meter, agent_cap: Cap, model_cap: Cap) -> None:
        self.agent_cap, self.model_cap = agent_cap, model_cap
        self.tool_cap, self.error_cap = Cap("tools", TOOLS), Cap("error types", ERROR_TYPES, on_spans=True)
        self._step_input = _counter(meter, sc.STEP_INPUT_TOKENS_METRIC)
        self._step_calls = _counter(meter, sc.STEP_CALLS_METRIC)
        self._step_duration = _histogram(meter, sc.STEP_DURATION_METRIC)
        self._step_new = _histogram(meter, sc.STEP_NEW_TOKENS_METRIC)
        self._history_input = _counter(meter, sc.HISTORY_INPUT_TOKENS_METRIC)
        self._replayed = _counter(meter, sc.HISTORY_REPLAYED_TOKENS_METRIC)
        self._cached = _counter(meter, sc.HISTORY_CACHED_TOKENS_METRIC)
        self._tool_input = _counter(meter, sc.HISTORY_TOOL_INPUT_TOKENS_METRIC)
        self._compacted = _counter(meter, sc.HISTORY_COMPACTED_TOKENS_METRIC)
        self._run_input = _histogram(meter, sc.RUN_INPUT_TOKENS_METRIC)
        self._run_output = _histogram(meter, sc.RUN_OUTPUT_TOKENS_METRIC)
        self._run_steps = _histogram(meter, sc.RUN_STEPS_METRIC)
        self._run_overpay = _histogram(meter, sc.RUN_OVERPAY_METRIC)
        self._run_replay_share = _histogram(meter, sc.RUN_REPLAY_SHARE_METRIC)
        self._budget_exceeded = _counter(meter, sc.RUN_BUDGET_EXCEEDED_METRIC)
        self._without_usage = _counter(meter, sc.CALLS_WITHOUT_USAGE_METRIC)
        with _lock:  # what an earlier `instrument()` was told is over; its runs that still go on are not
            _budgets.clear()
            _ever.clear()
        _gauge(meter, sc.ACTIVE_RUNS_METRIC, _active_runs)
        _gauge(meter, sc.ACTIVE_INPUT_TOKENS_METRIC, lambda: _highest(_input_so_far))
        _gauge(meter, sc.ACTIVE_FORECAST_METRIC, lambda: _highest(lambda ledger: ledger.forecast))
        _gauge(meter, sc.ACTIVE_CONTEXT_WINDOW_METRIC, lambda: _highest(lambda ledger: ledger.max_context_share))
        _gauge(meter, sc.TOKEN_BUDGET_METRIC, lambda: dict(_budgets))

    # --- runs --------------------------------------------------------------------------------------------------------

    def touch(self, agent: str, model: str | None) -> None:
        """Let the counters of a run begin at 0."""
        attributes = {sc.AGENT_NAME: agent}
        by_model = self._with_model(attributes, model)
        for source in sc.SOURCES:
            self._history_input.add(0, {**attributes, sc.HISTORY_SOURCE: source})
        self._replayed.add(0, by_model)
        self._without_usage.add(0, by_model)
        self._compacted.add(0, attributes)
        self._budget_exceeded.add(0, attributes)

    def run_started(self, agent: str, model: str | None, ledger: RunLedger) -> LiveRun:
        """Touch the run's counters and show it among the live ones until `run_ended`."""
        self.touch(agent, model)
        live = LiveRun(agent, ledger)
        with _lock:
            _live.add(live)
            if ledger.token_budget is not None:
                _budgets[agent] = ledger.token_budget
        return live

    def forget(self, live: LiveRun | None) -> None:
        """No longer show a run among the live ones."""
        if live is not None:
            with _lock:
                _live.discard(live)

    def run_ended(self, live: LiveRun, state: str, context: Context) -> None:
        """Record the run's histograms in its own context, so that exemplars lead to its trace."""
        ledger = live.ledger
        attributes = {sc.AGENT_NAME: live.agent, sc.RUN_STATE: state}
        if ledger.known:
            self._run_input.record(ledger.billed.input, attributes, context)
            self._run_output.record(ledger.billed.output, attributes, context)
        self._run_steps.record(ledger.steps, attributes, context)
        for histogram, value in (
            (self._run_overpay, ledger.overpay),
            (self._run_replay_share, ledger.replay_share),
        ):
            if value is not None:
                histogram.record(value, attributes, context)

    def budget_exceeded(self, agent: str) -> None:
        """A run has just passed its budget."""
        self._budget_exceeded.add(1, {sc.AGENT_NAME: agent})

    # --- steps and calls ---------------------------------------------------------------------------------------------

    def step_started(self, agent: str, step: Step) -> None:
        """Touch the counters of this step number, and of no number that never comes."""
        attributes = _numbered(agent, step)
        self._step_input.add(0, attributes)
        self._step_calls.add(0, attributes)

    def step_ended(self, agent: str, step: Step, seconds: float, error_type: str | None, context: Context) -> None:
        """Record how long a step took."""
        attributes = {sc.AGENT_NAME: agent, sc.STEP_TYPE: step.type}
        if error_type is not None:
            attributes[sc.ERROR_TYPE] = error_type
        self._step_duration.record(seconds, attributes, context)

    def tool_started(self, agent: str, tool: str) -> None:
        """Touch the counter of a tool before its first observation is billed."""
        self._tool_input.add(0, {sc.AGENT_NAME: agent, sc.TOOL_NAME: tool})

    def call_ended(self, agent: str, model: str | None, call: Call, tool_name: Callable[[str], str]) -> None:
        """Count what a call was billed for; a call without usage is only counted as such."""
        attributes = {sc.AGENT_NAME: agent}
        if not call.billed:
            if call.answered:
                self._without_usage.add(1, self._with_model(attributes, model))
            return
        count = call.count
        for source, tokens in call.by_source.items():
            if tokens:
                self._history_input.add(tokens, {**attributes, sc.HISTORY_SOURCE: source})
        if count.replayed:
            self._replayed.add(count.replayed, self._with_model(attributes, model))
        if call.usage.cache_read_tokens is not None:  # nor touched before: 0 would claim that the provider has told
            self._cached.add(call.usage.cache_read_tokens, self._with_model(attributes, model))
        for tool, tokens in call.by_tool.items():
            if tokens:
                self._tool_input.add(tokens, {**attributes, sc.TOOL_NAME: tool_name(tool)})
        if call.compacted_tokens:
            self._compacted.add(call.compacted_tokens, attributes)
        if call.step is not None:
            numbered = _numbered(agent, call.step)
            self._step_input.add(count.input, numbered)
            self._step_calls.add(1, numbered)
            if (
                call.type == "action" and call.sizes is not None and call.sizes.prefix_share is not None
            ):  # nothing comes before the first
                self._step_new.record(count.new, attributes)

    def _with_model(self, attributes: Mapping[str, str], model: str | None) -> dict[str, str]:
        return {**attributes, sc.REQUEST_MODEL: self.model_cap(model)} if model else dict(attributes)


def _numbered(agent: str, step: Step) -> dict[str, str | int]:
    number = min(step.number or 1, sc.LAST_STEP_NUMBER)
    return {sc.AGENT_NAME: agent, sc.STEP_TYPE: step.type, sc.STEP_NUMBER: number}


def _live_by_agent() -> dict[str, list[RunLedger]]:
    with _lock:
        runs = list(_live)
    result: dict[str, list[RunLedger]] = {}
    for run in runs:
        result.setdefault(run.agent, []).append(run.ledger)
    return result


def _active_runs() -> dict[str, int]:
    live = _live_by_agent()
    _ever.update(live)  # an agent whose runs have ended has 0 of them, not none at all
    return {agent: len(live.get(agent, ())) for agent in _ever}


def _highest(read: Callable[[RunLedger], float | None]) -> dict[str, float]:
    result: dict[str, float] = {}
    for agent, ledgers in _live_by_agent().items():
        values = [value for value in map(read, ledgers) if value is not None]
        if values:
            result[agent] = max(values)
    return result


def _input_so_far(ledger: RunLedger) -> int | None:
    """Unknown is not zero: a run whose calls have reported nothing says nothing."""
    return ledger.billed.input if ledger.known or not ledger.calls_without_usage else None


def _counter(meter: Meter, metric: sc.Metric) -> Counter:
    return meter.create_counter(metric.name, metric.unit, metric.brief)


def _histogram(meter: Meter, metric: sc.Metric) -> Histogram:
    return meter.create_histogram(
        metric.name, metric.unit, metric.brief, explicit_bucket_boundaries_advisory=list(metric.buckets)
    )


def _gauge(meter: Meter, metric: sc.Metric, read: Callable[[], Mapping[str, float]]) -> None:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, {sc.AGENT_NAME: agent}) for agent, value in read().items()]

    meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.brief)
