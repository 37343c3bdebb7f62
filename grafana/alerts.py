"""The alert rules as data, with every threshold in one place.

    python -m grafana.alerts [--check]

writes `grafana/rules/` (for Prometheus) and, from the same rules, `grafana/provisioning/alerting/` (for Grafana). With
`--check` nothing is written; exit code 1 names what is stale.

Totals come from `grafana.queries`. Which process a series is of never becomes a label of an alert: an alert is of one
agent (`gen_ai_agent_name`) of one service (`job`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grafana import queries, traceql
from grafana.build import names
from otel_smol import semconv as sc

HERE = Path(__file__).resolve().parent
RULES = HERE / "rules" / "otel-smol.rules.yaml"
OFF_BY_DEFAULT = HERE / "rules" / "off-by-default" / "otel-smol.rules.yaml"
"""In a folder of its own: Prometheus loads `rules/*.rules.yaml`."""
GRAFANA = HERE / "provisioning" / "alerting" / "otel-smol.yaml"

GRAFANA_URL = "http://localhost:3000"
RUNBOOK = "grafana/runbook.md"
"""Both are replaced by `otel-smol bundle --grafana-url … --runbook-url …`. The second is no address before that, but
says which file and section to open."""

# --- thresholds ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Threshold:
    """A number that decides whether an alert fires. Without alerts it has a say in all totals."""

    name: str
    value: str
    alerts: tuple[str, ...]
    meaning: str

    def __str__(self) -> str:
        return self.value

    def row(self) -> str:
        """As it stands in grafana/README.md."""
        alerts = ", ".join(f"`{alert}`" for alert in self.alerts) or "all totals"
        return f"| `{self.name}` | {self.value} | {alerts} | {self.meaning} |"


THRESHOLDS: list[Threshold] = []


def _threshold(name: str, value: str, alerts: tuple[str, ...], meaning: str) -> Threshold:
    THRESHOLDS.append(Threshold(name, value, alerts, meaning))
    return THRESHOLDS[-1]


OVER_BUDGET, SPIKE, FORECAST, REPLAY, OVERPAY, WINDOW, USAGE, STALLED, GONE = (
    "SmolagentsRunOverBudget",
    "SmolagentsRunTokenSpike",
    "SmolagentsRunForecastOverBudget",
    "SmolagentsReplayShareHigh",
    "SmolagentsOverpayHigh",
    "SmolagentsContextWindowNearlyFull",
    "SmolagentsCallsWithoutUsage",
    "SmolagentsRunStalled",
    "SmolagentsTelemetryGone",
)

BUDGET_RECENT = _threshold(
    "budget_recent",
    "10m",
    (OVER_BUDGET,),
    "a crossing counts for so long; the budget itself is `OTEL_SMOL_TOKEN_BUDGET`",
)
SPIKE_FACTOR = _threshold("spike_factor", "3", (SPIKE,), "a run counts as a spike from so many times the usual run on")
USUAL_WINDOW = _threshold("usual_window", "1d", (SPIKE,), "the usual run is the median of this time")
USUAL_RUNS = _threshold("usual_runs", "20", (SPIKE,), "nothing is usual before the agent has made so many runs in it")
SPIKE_RECENT = _threshold("spike_recent", "10m", (SPIKE,), "a run that has ended counts for so long")
FORECAST_USED = _threshold("forecast_used", "0.5", (FORECAST,), "no forecast before so much of the budget is used")
FORECAST_HOLD = _threshold(
    "forecast_hold", "5m", (FORECAST,), "fires on for so long, so that a wavering forecast is one alert"
)
REPLAY_SHARE = _threshold("replay_share", "0.7", (REPLAY,), "replayed tokens ÷ input tokens")
SHARE_WINDOW = _threshold("share_window", "1h", (SPIKE, REPLAY, OVERPAY), "shares and means are those of this time")
SHARE_TOKENS = _threshold("share_tokens", "50000", (REPLAY, OVERPAY), "below so many input tokens in it, no verdict")
SHARE_WAIT = _threshold("share_wait", "5m", (REPLAY, OVERPAY), "must hold for so long")
SHARE_HOLD = _threshold("share_hold", "30m", (REPLAY, OVERPAY), "fires on for so long after it was last true")
OVERPAY_MEAN = _threshold("overpay", "12", (OVERPAY,), "mean overpay of runs that have ended: that of 25 equal steps")
OVERPAY_SHARE = _threshold("overpay_share", "0.5", (OVERPAY,), "only where at least so much of the input is replayed")
WINDOW_SHARE = _threshold("window_share", "0.8", (WINDOW,), "prompt ÷ context window (`OTEL_SMOL_CONTEXT_WINDOW`)")
WINDOW_HOLD = _threshold(
    "window_hold", "10m", (WINDOW,), "fires on for so long, so that a row of such runs is one alert"
)
USAGE_WINDOW = _threshold("usage_window", "1h", (USAGE,), "one call without a token count in this time is enough")
STALLED_AFTER = _threshold("stalled_after", "20m", (STALLED,), "a run goes on, and no token was counted for so long")
GONE_AFTER = _threshold("gone_after", "15m", (GONE,), "a service has sent nothing for so long")
GONE_KNOWN = _threshold("gone_known", "1d", (GONE,), "and had sent something within this time")
CACHED_SHARE = _threshold(
    "cached_share", "0.5", (REPLAY, OVERPAY), "silent where more of the input than this came from the prompt cache"
)
CACHED_WEIGHT = _threshold(
    "cached_weight", "0.1", (SPIKE,), "a token from the prompt cache counts as so much of one, about what it costs"
)
GAP = _threshold("gap", "1d", (), "so long may telemetry be missing before a process counts as a new one")

# --- names in Prometheus ---------------------------------------------------------------------------------------------


AGENT, MODEL, STATE = names.label(sc.AGENT_NAME), names.label(sc.REQUEST_MODEL), names.label(sc.RUN_STATE)
SOURCE = names.label(sc.HISTORY_SOURCE)
SUBJECT = ("job", AGENT)
"""Whom an alert is about."""
PROCESS = ("job", "instance", AGENT)

INPUT = names.metric(sc.HISTORY_INPUT_TOKENS_METRIC)
REPLAYED = names.metric(sc.HISTORY_REPLAYED_TOKENS_METRIC)
CACHED = names.metric(sc.HISTORY_CACHED_TOKENS_METRIC)
RUN_INPUT = names.metric(sc.RUN_INPUT_TOKENS_METRIC)
RUN_OVERPAY = names.metric(sc.RUN_OVERPAY_METRIC)
CROSSINGS = names.metric(sc.RUN_BUDGET_EXCEEDED_METRIC)
WITHOUT_USAGE = names.metric(sc.CALLS_WITHOUT_USAGE_METRIC)
ACTIVE = names.metric(sc.ACTIVE_RUNS_METRIC)
SO_FAR = names.metric(sc.ACTIVE_INPUT_TOKENS_METRIC)
FORECAST_TOKENS = names.metric(sc.ACTIVE_FORECAST_METRIC)
FULLEST = names.metric(sc.ACTIVE_CONTEXT_WINDOW_METRIC)
BUDGET = names.metric(sc.TOKEN_BUDGET_METRIC)

# --- expressions -----------------------------------------------------------------------------------------------------


START = f"[{queries.LOOKBACK}] offset "
"""Where the form of `grafana.queries` looks for the value at which a window began."""


def cautious(form: str) -> str:
    """That form as alerts need it: it looks for the beginning further back.

    After a pause in the telemetry a dashboard takes all that a process has ever counted for new, and an alert must not.
    """
    return form.replace(START, f"[{GAP}] offset ")


def total(metric: str, window: Threshold, by: tuple[str, ...] = SUBJECT) -> str:
    """In words that every Prometheus knows (`resets=False`): one unknown word, and no rule is loaded."""
    return cautious(queries.total(metric, str(window), by, resets=False))


def mean(histogram: str, window: Threshold, by: tuple[str, ...] = SUBJECT) -> str:
    return cautious(queries.mean(histogram, str(window), by, resets=False))


def quantile(q: float, histogram: str, window: Threshold, by: tuple[str, ...] = SUBJECT) -> str:
    return cautious(queries.quantile(q, histogram, str(window), by, resets=False))


def replayed_above(share: Threshold) -> str:
    least = float(str(SHARE_TOKENS))
    ratio = queries.ratio(REPLAYED, INPUT, str(SHARE_WINDOW), SUBJECT, at_least=least, resets=False)
    return f"{in_lines(cautious(ratio))}\n> {share}"


def cached_share(window: Threshold) -> str:
    """What of the input came from the provider's prompt cache. Nothing where the provider does not say."""
    return in_lines(cautious(queries.ratio(CACHED, INPUT, str(window), SUBJECT, resets=False)))


def unless_cached(expression: str, window: Threshold) -> str:
    """Replay from the cache costs a fraction of what it looks like: where it is most of the input, let it be."""
    return f"{expression}\nunless {ON_SUBJECT}\n{cached_share(window)}\n> {CACHED_SHARE}"


def indented(text: str, by: int) -> str:
    return text.replace("\n", "\n" + " " * by)


def in_lines(ratio: str) -> str:
    return ratio.replace(") / (", ")\n/ (")


ON_SUBJECT = f"on ({', '.join(SUBJECT)})"


def over_budget() -> str:
    """The budget where a run has crossed it just now, or goes on above it: the lowest, if processes differ."""
    return f"""\
min by ({", ".join(SUBJECT)}) (last_over_time({BUDGET}[{BUDGET_RECENT}]))
and {ON_SUBJECT}
(
  {total(CROSSINGS, BUDGET_RECENT)} > 0
  or
  max by ({", ".join(SUBJECT)}) ({SO_FAR} > {BUDGET})
)"""


def spike() -> str:
    """The most expensive of the agent's runs that go on or have just ended, where it is far above the usual one.

    Of a run that goes on, the tokens are exact. Of runs that no export has seen alive we know the mean per process,
    which is exact for a script, and the bucket of the largest, which it has at least half filled: the bounds double.

    Where the provider tells what came from its cache, the limit is the higher, the more did: a run that is mostly cache
    reads is silent, and a runaway is seen all the same. Simply to be silent above a share would silence every agent
    whose provider caches, since that share rises with the length of the run. The share is that of the last hour: a run
    that waits for something sends nothing.
    """
    runs = total(f"{RUN_INPUT}_count", USUAL_WINDOW)
    return f"""\
max by ({", ".join(SUBJECT)}) (
  max_over_time({SO_FAR}[{SPIKE_RECENT}])
  or
  max by ({", ".join(SUBJECT)}) (
    {indented(in_lines(mean(RUN_INPUT, SPIKE_RECENT, PROCESS)), 4)}
  )
  or
  {quantile(1, RUN_INPUT, SPIKE_RECENT, (*SUBJECT, STATE))} / 2
)
> {ON_SUBJECT}
{SPIKE_FACTOR} * {quantile(0.5, RUN_INPUT, USUAL_WINDOW)}
/ {ON_SUBJECT} (
  1 - (1 - {CACHED_WEIGHT}) *
  {indented(cached_share(SHARE_WINDOW), 2)}
  or {ON_SUBJECT}
  {runs} * 0 + 1
)
and {ON_SUBJECT}
{runs} >= {USUAL_RUNS}"""


def forecast_over_budget() -> str:
    """The forecast, between the time when it can be trusted and the crossing itself."""
    return f"""\
max by ({", ".join(SUBJECT)}) (
  {FORECAST_TOKENS} > {BUDGET}
  and
  {SO_FAR} > {FORECAST_USED} * {BUDGET}
  and
  {SO_FAR} <= {BUDGET}
)"""


def overpay_high() -> str:
    """Overpay alone says how long runs are; it is money where the history is most of the bill."""
    high = f"""\
{in_lines(mean(RUN_OVERPAY, SHARE_WINDOW))}
> {OVERPAY_MEAN}
and {ON_SUBJECT}
{replayed_above(OVERPAY_SHARE)}"""
    return unless_cached(high, SHARE_WINDOW)


def stalled() -> str:
    """Processes with a run that was there all the time, while no agent of the same process used a token.

    Progress is read from a gauge, not from the counters: where a collector adds processes up, only gauges still say
    which process they are of. Of an agent whose calls have no usage nothing can be said.
    """
    return f"""\
count by ({", ".join(SUBJECT)}) (
  min_over_time({ACTIVE}[{STALLED_AFTER}]) > 0
  and
  {ACTIVE} offset {STALLED_AFTER} > 0
  and
  {ACTIVE} > 0
  unless on (job, instance)
  changes({SO_FAR}[{STALLED_AFTER}]) > 0
)
unless {ON_SUBJECT}
{total(WITHOUT_USAGE, STALLED_AFTER)} > 0"""


def gone() -> str:
    return f"""\
count by (job) (last_over_time({ACTIVE}[{GONE_KNOWN}]))
unless on (job)
count by (job) (last_over_time({ACTIVE}[{GONE_AFTER}]))"""


# --- alerts ----------------------------------------------------------------------------------------------------------

WHO = f"Agent {{{{ $labels.{AGENT} }}}} of {{{{ $labels.job }}}}"
VALUE, SHARE, NUMBER = "{{ $value | humanize }}", "{{ $value | humanizePercentage }}", '{{ printf "%.0f" $value }}'
"""Annotations are Go templates, in Prometheus as in Grafana."""
SERVICE = '{{ reReplaceAll "^.+/" "" $labels.job | urlquery }}'
"""`job` is `namespace/name` where there is a namespace; the dashboards go by the name."""
NEW, AGAIN, FROM_CACHE = "<new>", "<replayed>", "<cached>"
"""Further numbers in a text: each side has its own way to ask for them."""
THREE_KINDS = (
    f"Input tokens of that time: new {NEW} (history sent for the first time), replayed {AGAIN} (history that an "
    "earlier call of the same run has sent already, billed again with every step), cached "
    f"{FROM_CACHE} (what of all input the provider says it read from its prompt cache, at a lower price)."
)
OF_AGENT = str(traceql.Condition(sc.AGENT_NAME, "=", f"{{{{ $labels.{AGENT} }}}}"))


def three_kinds(by: tuple[str, ...], *matchers: str) -> dict[str, str]:
    """The expressions of `THREE_KINDS`. Where the provider does not say, nothing was cached as far as anybody knows."""

    def tokens(metric: str, *more: str) -> str:
        return total(f"{metric}{{{', '.join((*matchers, *more))}}}".replace("{}", ""), SHARE_WINDOW, by)

    history = tokens(INPUT, f'{SOURCE}!~"{"|".join(sorted(sc.FIXED_SOURCES))}"')
    again = tokens(REPLAYED)
    return {NEW: f"{history} - {again}", AGAIN: again, FROM_CACHE: f"{tokens(CACHED)} or {tokens(INPUT)} * 0"}


def spans(condition: str, *shown: str) -> str:
    """A TraceQL query for the agent's steps and runs; of those that go on, the steps are there as they end."""
    selected = ", ".join(f"span.{name}" for name in (*shown, sc.RUN_ID))
    return f"{{ {OF_AGENT} && span.{condition} }} | select({selected})"


OVERVIEW, RUN, OPERATIONS = "otel-smol-overview", "otel-smol-run", "otel-smol-ops"
RUNS_THAT_GO_ON = (OVERVIEW, "Runs that go on: the dearest of each agent")


@dataclass(frozen=True)
class Alert:
    """One rule. `summary`, `description` and `traces` (a TraceQL query that finds the run) are templates; `panel` is
    where Grafana draws when it fired."""

    name: str
    severity: str
    expr: str
    summary: str
    description: str
    traces: str
    panel: tuple[str, str]
    dashboard: str = RUN
    wait: str = "0s"
    hold: str = "0s"
    off: bool = False

    @property
    def uid(self) -> str:
        words = "".join(f"-{c.lower()}" if c.isupper() else c for c in self.name.removeprefix("Smolagents"))
        return f"otel-smol{words}"

    @property
    def labels(self) -> dict[str, str]:
        return {"severity": self.severity}

    @property
    def annotations(self) -> dict[str, str]:
        variables = f"&var-service={SERVICE}"
        if f"$labels.{AGENT}" in self.summary:
            variables += f"&var-agent={{{{ $labels.{AGENT} | urlquery }}}}"
        return {
            "summary": self.summary,
            "description": self.description,
            "dashboard": f"{GRAFANA_URL}/d/{self.dashboard}?from=now-1h&to=now{variables}",
            "runbook_url": f"{RUNBOOK}#{self.name.lower()}",
            "trace_query": self.traces,
        }


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated together."""

    name: str
    interval: str
    alerts: tuple[Alert, ...]


LIVE = Group(
    "otel-smol-live",
    "15s",
    (
        Alert(
            OVER_BUDGET,
            "warning",
            over_budget(),
            f"{WHO}: a run has passed its budget of {VALUE} input tokens",
            "Input tokens of the run and of the managed agents within it, cached ones included, against "
            "OTEL_SMOL_TOKEN_BUDGET. Nothing was stopped: it may still go on. Fires while such a run goes on, and for "
            f"{BUDGET_RECENT} after the crossing.",
            f"{{ {OF_AGENT} }} && {traceql.expensive_traces(NUMBER)}",
            (OVERVIEW, "Runs over budget"),
        ),
        Alert(
            FORECAST,
            "info",
            forecast_over_budget(),
            f"{WHO}: a run that goes on is heading for {VALUE} input tokens, above its budget",
            f"More than {float(FORECAST_USED.value):.0%} of the budget is used, and if it takes all of max_steps, the "
            "run's own calls will pass it. There is time to look, or to stop it.",
            spans(f"{sc.FORECAST_INPUT_TOKENS} >= {NUMBER}", sc.STEP_NUMBER, sc.RUN_INPUT_TOKENS),
            RUNS_THAT_GO_ON,
            hold=str(FORECAST_HOLD),
        ),
        Alert(
            WINDOW,
            "warning",
            f"max by ({', '.join(SUBJECT)}) ({FULLEST}) > {WINDOW_SHARE}",
            f"{WHO}: a prompt takes {SHARE} of the context window",
            "The prompt of a run that goes on is near the size that the model can take (OTEL_SMOL_CONTEXT_WINDOW). It "
            "grows with every step; beyond 100% the provider refuses the call and the run dies.",
            spans(f"{sc.CONTEXT_WINDOW_SHARE} > {WINDOW_SHARE}", sc.STEP_NUMBER),
            (OVERVIEW, "Fullest context window"),
            hold=str(WINDOW_HOLD),
        ),
    ),
)

WINDOWS = Group(
    "otel-smol-windows",
    "1m",
    (
        Alert(
            SPIKE,
            "warning",
            spike(),
            f"{WHO}: a run has used {VALUE} input tokens or more, over {SPIKE_FACTOR} times the usual",
            f"Against the median run of this agent in the last {USUAL_WINDOW}; a token from the provider's prompt "
            f"cache counts as {CACHED_WEIGHT}. A run that goes on is seen at once; one that has ended counts for "
            f"{SPIKE_RECENT}.",
            spans(f"{sc.RUN_INPUT_TOKENS} >= {NUMBER}", sc.STEP_NUMBER),
            (OVERVIEW, "Tokens per run"),
        ),
        Alert(
            REPLAY,
            "info",
            unless_cached(replayed_above(REPLAY_SHARE), SHARE_WINDOW),
            f"{WHO}: {SHARE} of the input tokens of the last {SHARE_WINDOW} were replayed",
            f"Every step sends the whole memory again. {THREE_KINDS}",
            spans(f"{sc.RUN_REPLAY_SHARE} > {REPLAY_SHARE}", sc.RUN_INPUT_TOKENS, sc.RUN_REPLAYED_TOKENS),
            (OVERVIEW, "Replay share"),
            dashboard=OVERVIEW,
            wait=str(SHARE_WAIT),
            hold=str(SHARE_HOLD),
        ),
        Alert(
            OVERPAY,
            "info",
            overpay_high(),
            f"{WHO}: what a step left behind was sent {VALUE} times on average",
            "Overpay is history tokens sent ÷ history tokens that exist, (n-1)/2 for a run of n equal steps: the mean "
            f"of the runs that ended in the last {SHARE_WINDOW}. {THREE_KINDS}",
            spans(f"{sc.RUN_OVERPAY} > {OVERPAY_MEAN}", sc.RUN_INPUT_TOKENS),
            (OVERVIEW, "Overpay"),
            dashboard=OVERVIEW,
            wait=str(SHARE_WAIT),
            hold=str(SHARE_HOLD),
        ),
        Alert(
            USAGE,
            "info",
            f"{total(WITHOUT_USAGE, USAGE_WINDOW, (*SUBJECT, MODEL))} > 0",
            f"{WHO}: {NUMBER} calls of {{{{ $labels.{MODEL} }}}} came back without a token count",
            f"In the last {USAGE_WINDOW}. Unknown is not zero: totals, shares and budgets of this agent are too low "
            "until the provider reports usage.",
            spans(f'{sc.HISTORY_ESTIMATOR} = "characters"', sc.STEP_NUMBER),
            (OPERATIONS, "Which calls report no usage"),
            dashboard=OPERATIONS,
        ),
        Alert(
            STALLED,
            "warning",
            stalled(),
            f"{WHO}: a run goes on, but no token was counted for {STALLED_AFTER}",
            f"Processes in which no call of any agent has come back for {STALLED_AFTER}: {NUMBER}. A tool that hangs, "
            "a model that does not answer, or somebody who is being waited for.",
            traceql.running(f"{{{{ $labels.{AGENT} }}}}"),
            RUNS_THAT_GO_ON,
        ),
    ),
)

ALWAYS_ON = Group(
    "otel-smol-always-on",
    "1m",
    (
        Alert(
            GONE,
            "warning",
            gone(),
            f"Service {{{{ $labels.job }}}} has sent no telemetry for {GONE_AFTER}",
            f"It had within the last {GONE_KNOWN}. Only for services that are always on: a script that has ended looks "
            "the same.",
            f'{{ resource.service.name = "{SERVICE.replace(" | urlquery", "")}" }}',
            (OPERATIONS, "Series and processes"),
            dashboard=OPERATIONS,
            off=True,
        ),
    ),
)

FILES = {RULES: (LIVE, WINDOWS), OFF_BY_DEFAULT: (ALWAYS_ON,)}
GROUPS = (LIVE, WINDOWS, ALWAYS_ON)
ALERTS = tuple(alert for group in GROUPS for alert in group.alerts)

# --- files -----------------------------------------------------------------------------------------------------------

HEAD = """\
# Made by `python -m grafana.alerts`; thresholds and what each alert means: grafana/README.md.
"""
ALWAYS_ON_HEAD = """\
# Off by default: Prometheus loads rules/*.rules.yaml, not this folder. For services that are always on, add this file
# to `rule_files`.
"""
GRAFANA_HEAD = """\
# The same rules for Grafana's own alerting. Contact points and policies are yours.
# SmolagentsTelemetryGone is paused: take `isPaused` out where every service is always on.
"""


def prometheus_rule(alert: Alert) -> dict[str, Any]:
    """As Prometheus reads it."""
    rule: dict[str, Any] = {"alert": alert.name, "expr": alert.expr}
    if alert.wait != "0s":
        rule["for"] = alert.wait
    if alert.hold != "0s":
        rule["keep_firing_for"] = alert.hold
    annotations = {name: prometheus_template(text) for name, text in alert.annotations.items()}
    return {**rule, "labels": alert.labels, "annotations": annotations}


def prometheus_template(text: str) -> str:
    """Its templates can ask Prometheus, here about the alert's own agent."""
    for number, expression in three_kinds((), "job=%[1]q", f"{AGENT}=%[2]q").items():
        asked = f"printf `{expression}` $labels.job $labels.{AGENT} | query"
        text = text.replace(number, f"{{{{ with {asked} }}}}{{{{ . | first | value | humanize }}}}{{{{ end }}}}")
    return text


def prometheus_file(groups: Iterable[Group]) -> dict[str, Any]:
    return {
        "groups": [
            {"name": group.name, "interval": group.interval, "rules": [prometheus_rule(a) for a in group.alerts]}
            for group in groups
        ]
    }


def grafana_rule(alert: Alert) -> dict[str, Any]:
    """As Grafana's provisioning reads it. A rule's query keeps only what is above its threshold, so all that is left
    to ask is whether there is anything."""
    condition = {
        "refId": "B",
        "type": "threshold",
        "expression": "A",
        "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
    }
    return {
        "uid": alert.uid,
        "title": alert.name,
        "condition": "B",
        "data": [
            grafana_query("A", alert.expr),
            {"refId": "B", "datasourceUid": "__expr__", "model": condition},
            *(
                grafana_query(ref, expression)
                for (number, expression), ref in zip(three_kinds(SUBJECT).items(), TOLD, strict=True)
                if number in alert.description
            ),
        ],
        "for": alert.wait,
        "keepFiringFor": alert.hold,
        "noDataState": "OK",
        "execErrState": "Error",
        **({"isPaused": True} if alert.off else {}),
        "labels": alert.labels,
        "annotations": {name: grafana_template(text) for name, text in alert.annotations.items()},
        "dashboardUid": alert.panel[0],
        "panelId": panel_id(*alert.panel),
    }


TOLD = ("C", "D", "E")


def grafana_query(ref: str, expression: str) -> dict[str, Any]:
    """None may be empty while the condition is not: Grafana would take that for a rule without data."""
    model = {"refId": ref, "expr": expression, "instant": True, "range": False, "editorMode": "code"}
    times = {"from": 600, "to": 0}
    return {"refId": ref, "relativeTimeRange": times, "datasourceUid": "prometheus", "model": model}


def panel_id(dashboard: str, title: str) -> int:
    """The panel's number in the dashboard as it is committed."""
    panels = json.loads((HERE / "dashboards" / f"{dashboard}.json").read_text())["panels"]
    (found,) = (panel["id"] for panel in panels if panel["title"] == title)
    return int(found)


def grafana_template(text: str) -> str:
    """Grafana's `$value` is a sentence about all queries; the number is that of query A. The others have their own."""
    for number, ref in zip((NEW, AGAIN, FROM_CACHE), TOLD, strict=True):
        text = text.replace(number, f"{{{{ $values.{ref}.Value | humanize }}}}")
    return text.replace("$value |", "$values.A.Value |").replace("$value }}", "$values.A.Value }}")


def grafana_file() -> dict[str, Any]:
    groups = [
        {
            "orgId": 1,
            "name": group.name,
            "folder": "otel_smol",
            "interval": group.interval,
            "rules": [grafana_rule(alert) for alert in group.alerts],
        }
        for group in GROUPS
    ]
    return {"apiVersion": 1, "groups": groups}


class _Dumper(yaml.SafeDumper):
    """Several lines as a block, sentences in quotes, no references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if " " in text or "{" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(content: Mapping[str, Any]) -> str:
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True)
    return text


def files() -> dict[Path, str]:
    """Every file with its text."""
    return {
        RULES: HEAD + as_yaml(prometheus_file(FILES[RULES])),
        OFF_BY_DEFAULT: HEAD + ALWAYS_ON_HEAD + as_yaml(prometheus_file(FILES[OFF_BY_DEFAULT])),
        GRAFANA: HEAD + GRAFANA_HEAD + as_yaml(grafana_file()),
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say which are stale."""
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    if "--check" in (sys.argv[1:] if arguments is None else arguments):
        for path in stale:
            print(f"{path.relative_to(HERE.parent)} is stale: run python -m grafana.alerts")
        return int(bool(stale))
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
