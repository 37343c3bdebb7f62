"""The questions that panels ask of Prometheus: in the one form of `grafana.queries`, about the chosen agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana import queries
from grafana.build import names
from otel_smol import semconv as sc

RANGE = "$__range"
"""The whole time range that is looked at."""
STEP = "$__interval"
"""From one point of a time series to the next. Totals over it add up to the total over the range."""

Matchers = dict[str, Any]
"""Labels and what they must be, in the words of `queries.selector`. All are text."""

SERVICE: Matchers = {"job": "=~(.+/)?$service"}
"""`job` is there however the data came; with a namespace it is `namespace/name`, and traces know the name only."""
AGENT: Matchers = {**SERVICE, names.label(sc.AGENT_NAME): "=~$agent"}
MODEL: Matchers = {**SERVICE, names.label(sc.REQUEST_MODEL): "=~$model"}

EVERY_RUN = sc.CALLS_WITHOUT_USAGE_METRIC
"""Every run has it from its start on, mostly as 0; and it is there where metrics are made from spans."""

Metric = sc.Metric | str


@dataclass(frozen=True)
class Ask:
    """Makes expressions. `resets`: see counters begin again; needs Prometheus 3.16 (see `grafana.queries`)."""

    resets: bool = True

    def total(
        self, metric: Metric, *by: str, part: str = "", window: str = RANGE, scope: Matchers = AGENT, **where: str
    ) -> str:
        """What a counter, or `part` of a histogram, counted in the window."""
        name = names.metric(metric) + part
        return queries.total(name, window, _labels(by), resets=self.resets, **_matchers(scope, where))

    def ratio(self, over: Metric, under: Metric, *by: str, **where: str) -> str:
        """One total over another within the range."""
        return queries.ratio(
            names.metric(over),
            names.metric(under),
            RANGE,
            _labels(by),
            resets=self.resets,
            **_matchers(AGENT, where),
        )

    def mean(self, histogram: Metric, *by: str, scope: Matchers = AGENT) -> str:
        """The mean of what a histogram recorded within the range."""
        return queries.mean(names.metric(histogram), RANGE, _labels(by), resets=self.resets, **scope)

    def quantile(self, q: float, histogram: Metric, *by: str, scope: Matchers = AGENT) -> str:
        """A quantile of it, good to one bucket."""
        return queries.quantile(q, names.metric(histogram), RANGE, _labels(by), resets=self.resets, **scope)

    def curve(self) -> str:
        """Mean input tokens of each action step: calls of other types have a curve of their own."""
        return self.ratio(sc.STEP_INPUT_TOKENS_METRIC, sc.STEP_CALLS_METRIC, sc.STEP_NUMBER, **{sc.STEP_TYPE: "action"})

    def first_step(self) -> str:
        """The mean of the first step, for every step that the curve has."""
        return f"{self.curve()} * 0 + scalar({self._first()})"

    def against_the_line(self) -> str:
        """What all steps of the curve add up to ÷ as many steps like the first."""
        return f"sum({self.curve()}) / (count({self.curve()}) * scalar({self._first()}))"

    def _first(self) -> str:
        first = {sc.STEP_TYPE: "action", sc.STEP_NUMBER: "1"}
        return self.ratio(sc.STEP_INPUT_TOKENS_METRIC, sc.STEP_CALLS_METRIC, **first)

    def collector(self, metric: str, *by: str, window: str = RANGE) -> str:
        """What a counter of the collector counted. Its series live as long as the collector does."""
        assert metric in names.COLLECTOR, metric
        return queries.total(metric, window, by, resets=self.resets)

    def dropped_by_sdk(self, *by: str) -> str:
        """Spans that never left the agents' processes."""
        where = _matchers(SERVICE, {sc.ERROR_TYPE: "!="})
        return queries.total(names.SDK_PROCESSED_SPANS, RANGE, _labels(by), resets=self.resets, **where)


def gauge(metric: sc.Metric, *by: str) -> str:
    """The highest value of a gauge, as it stands."""
    return f"max{_by(by)} ({queries.selector(names.metric(metric), **AGENT)})"


def of_live_runs(metric: sc.Metric, *by: str) -> str:
    """The same of a gauge that is there only while a run goes on.

    Prometheus goes on with the last value for five minutes. The number of live runs, however, is told once more when a
    process ends, and is 0 then.
    """
    live = queries.selector(names.metric(sc.ACTIVE_RUNS_METRIC), **AGENT)
    same = ", ".join(("job", "instance", names.label(sc.AGENT_NAME)))
    return f"max{_by(by)} ({queries.selector(names.metric(metric), **AGENT)} and on ({same}) {live} > 0)"


def highest(metric: sc.Metric) -> str:
    """The highest value of a gauge within the range."""
    return f"max(max_over_time({queries.selector(names.metric(metric), **AGENT)}[{RANGE}]))"


def largest(count: int, expression: str) -> str:
    """The largest values, the largest first, and none that are 0."""
    return f"sort_desc(topk({count}, {expression} > 0))"


def _by(attributes: Sequence[str]) -> str:
    return f" by ({', '.join(_labels(attributes))})" if attributes else ""


def _labels(attributes: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(names.label, attributes))


def _matchers(scope: Matchers, where: Mapping[str, str]) -> Matchers:
    return {**scope, **{names.label(attribute): value for attribute, value in where.items()}}
