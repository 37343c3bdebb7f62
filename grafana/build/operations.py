"""Operations: is what the other screens show complete?"""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as model

from grafana import queries
from grafana.build import board, names, panels, words
from grafana.build import transform as t
from grafana.build.ask import AGENT, EVERY_RUN, MODEL, RANGE, SERVICE, STEP, Ask, largest
from grafana.build.panels import Place
from otel_smol import semconv as sc

say = words.of("operations")


OURS = '{__name__=~"smolagents_.+|gen_ai_.+", job=~"(.+/)?$service"}'
"""All series of the instrumentation."""


def build(ask: Ask) -> model.Dashboard:
    """The screen for who runs the stack."""
    start = board.dashboard(
        board.OPERATIONS,
        "smolagents: operations",
        "Whether the telemetry of the agents is complete: in the process, in the collector, in Prometheus.",
        [board.service(), board.agent(), board.models("Only the panels about calls without usage go by it.")],
    )
    return board.add(start, [*complete(ask), *collector(ask), *usage(ask), *series()])


def complete(ask: Ask) -> list[panels.AnyPanel]:
    """What is missing, in the order in which it can go missing. All should be 0."""
    usage = ask.total(sc.CALLS_WITHOUT_USAGE_METRIC, scope={**AGENT, **MODEL})
    return [
        panels.number(
            say("Calls without usage", panels.COUNT),
            Place(0, 0, 5, 4),
            [panels.instant(usage)],
            warn_above=1,
        ),
        panels.number(
            say("Dropped by the SDK", panels.COUNT),
            Place(5, 0, 5, 4),
            [panels.instant(f"{ask.dropped_by_sdk()} or on () {_sdk_tells(ask)} * 0")],
            warn_above=1,
        ),
        panels.number(
            say("Refused by the collector", panels.COUNT),
            Place(10, 0, 5, 4),
            [panels.instant(_both(ask, "otelcol_receiver_refused"))],
            warn_above=1,
        ),
        panels.number(
            say("Lost by the collector", panels.COUNT),
            Place(15, 0, 5, 4),
            [panels.instant(_both(ask, "otelcol_exporter_send_failed"))],
            warn_above=1,
        ),
        panels.number(
            say("Fullest queue", panels.SHARE),
            Place(20, 0, 4, 4),
            [
                panels.instant(
                    f"max(max_over_time(otelcol_exporter_queue_size[{RANGE}]) "
                    f"/ max_over_time(otelcol_exporter_queue_capacity[{RANGE}]))"
                )
            ],
            warn_above=0.5,
            decimals=1,
        ),
    ]


def collector(ask: Ask) -> list[panels.AnyPanel]:
    """The collector's health."""
    return [
        panels.over_time(
            say("Through the collector"),
            Place(0, 4, 12, 8),
            [
                panels.series(ask.collector(f"otelcol_{part}_{what}", window=STEP), ref, f"{shown} {words}")
                for ref, part, what, shown, words in (
                    ("A", "receiver_accepted", "spans", "spans", "in"),
                    ("B", "exporter_sent", "spans", "spans", "out"),
                    ("C", "receiver_accepted", "metric_points", "data points", "in"),
                    ("D", "exporter_sent", "metric_points", "data points", "out"),
                )
            ],
        ),
        panels.over_time(
            say("Queues of the collector"),
            Place(12, 4, 6, 8),
            [panels.series("max by (exporter) (otelcol_exporter_queue_size)", "A", "{{exporter}}")],
        ),
        panels.over_time(
            say("Memory of the collector", "bytes"),
            Place(18, 4, 6, 8),
            [panels.series("max by (instance) (otelcol_process_memory_rss)", "A", "{{instance}}")],
        ),
        panels.rows(
            say("Failures by exporter", panels.COUNT),
            Place(0, 12, 12, 6),
            [
                panels.row(f"{ask.collector(f'otelcol_exporter_{how}_failed_{what}', 'exporter')} > 0", ref)
                for ref, how, what in (
                    ("A", "send", "spans"),
                    ("B", "send", "metric_points"),
                    ("C", "enqueue", "spans"),
                    ("D", "enqueue", "metric_points"),
                )
            ],
            [
                t.merge(),
                t.columns(
                    {
                        "exporter": "exporter",
                        "Value #A": "lost: spans",
                        "Value #B": "lost: data points",
                        "Value #C": "refused: spans",
                        "Value #D": "refused: data points",
                    },
                    hidden=("Time",),
                ),
            ],
        ),
    ]


def usage(ask: Ask) -> list[panels.AnyPanel]:
    """Who reports no usage."""
    without = ask.total(sc.CALLS_WITHOUT_USAGE_METRIC, sc.AGENT_NAME, sc.REQUEST_MODEL, scope={**AGENT, **MODEL})
    named = {
        names.label(sc.AGENT_NAME): "agent",
        names.label(sc.REQUEST_MODEL): "model",
        "Value": "calls without usage",
    }
    return [
        panels.rows(
            say("Which calls report no usage", panels.COUNT),
            Place(12, 12, 12, 6),
            [panels.row(largest(20, without))],
            [t.columns(named, hidden=("Time",))],
        )
    ]


def series() -> list[panels.AnyPanel]:
    """What it costs Prometheus."""
    processes = queries.selector(names.metric(EVERY_RUN), **SERVICE)
    return [
        panels.number(
            say("Series in this time range", panels.COUNT),
            Place(0, 18, 6, 8),
            [panels.instant(f"count(last_over_time({OURS}[{RANGE}]))")],
        ),
        panels.over_time(
            say("Series and processes", panels.COUNT),
            Place(6, 18, 9, 8),
            [
                panels.series(f"count({OURS})", "A", "series"),
                panels.series(f"count(count by (job, instance) ({processes}))", "B", "processes"),
            ],
            overrides=[("processes", {"custom.axisPlacement": "right", "decimals": 0})],
        ),
        panels.bars(
            say("Metrics with the most series", panels.COUNT),
            Place(15, 18, 9, 8),
            [
                panels.instant(
                    f"sort_desc(topk(10, count by (__name__) (last_over_time({OURS}[{RANGE}]))))", legend="{{__name__}}"
                )
            ],
        ),
    ]


def _both(ask: Ask, counter: str) -> str:
    """Spans and data points together: 0 before the first of them, nothing without the collector's metrics."""
    there = f"max(last_over_time(otelcol_process_uptime[{RANGE}])) * 0"
    return " + ".join(f"({ask.collector(f'{counter}_{what}')} or {there})" for what in ("spans", "metric_points"))


def _sdk_tells(ask: Ask) -> str:
    return queries.total(names.SDK_PROCESSED_SPANS, RANGE, resets=ask.resets, **SERVICE)
