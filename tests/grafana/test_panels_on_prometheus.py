"""Every panel on Prometheus: its queries, asked of the real one about real agents, against the truth.

What a panel gets to draw is compared, so after its transformations, which Grafana's own code makes.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from otel_smol import semconv as sc
from tests.grafana import answers
from tests.grafana.answers import Json, Table, View
from tests.grafana.rig import PATIENCE, Prometheus, Stack, run_fleet, stack, start_prometheus
from tests.grafana.truth import Truth, mean
from tests.programs import run
from tests.stack.exposition import samples, total
from tests.stack.ports import free_ports
from tests.stack.programs import ROOT, Collector, require, wait_for
from tests.stack.synthetic import Plain, Run, counter, metrics, resource, send, traces

OFTEN = {
    "OTEL_METRIC_EXPORT_INTERVAL": "300",
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true",
    "OTEL_BSP_SCHEDULE_DELAY": "200",
}
LIMITS = {"OTEL_SMOL_TOKEN_BUDGET": "5000", "OTEL_SMOL_CONTEXT_WINDOW": "10000"}
FLEET: tuple[tuple[str, dict[str, str]], ...] = (
    ("researcher", {}),
    ("slow", {**OFTEN, **LIMITS}),
    ("planner manager caller", {}),
    ("researcher", {}),
    ("unlucky clumsy endless silent", {}),
)
"""Five scripts: two of the same agent, one that lasts longer than an export interval."""

MINUTES = 60
VIEWS = {
    "now, 15 minutes": (15 * MINUTES, 0),
    "now, 7 days": (7 * 24 * 60 * MINUTES, 0),
    "20 minutes later, 1 hour": (60 * MINUTES, 20 * MINUTES),
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack, after all agents have run."""
    with stack(tmp_path_factory.mktemp("stack")) as running:
        run_fleet(running, FLEET)
        yield running


@pytest.fixture(scope="module")
def truth(real: Stack) -> Truth:
    return Truth(real.runs, answers.recorded(real.traces))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus with nothing in it."""
    with ExitStack() as ends:
        yield start_prometheus(tmp_path, ends, *free_ports(1))


@pytest.fixture(params=VIEWS, scope="module")
def view(request: pytest.FixtureRequest, real: Stack) -> View:
    """A time range in which all runs lie."""
    seconds, later = VIEWS[request.param]
    interval = 60 if seconds < 86_400 else 3600
    # Grafana asks as far as the last full interval: at its end all is there
    return View(seconds, math.ceil((time.time() + later) / interval) * interval, interval=interval)


def drawn(real: Stack, board: str, id: int, view: View) -> list[Table]:
    """What a panel draws."""
    panel = answers.panel(answers.load(board), id)
    return answers.show(panel, answers.ask_prometheus(real.prometheus, panel, view))


def numbers(real: Stack, board: str, id: int, view: View) -> dict[str, float]:
    """The numbers of a stat or a bar gauge by their names; of a single one under its only name."""
    found: dict[str, float] = {}
    for table in drawn(real, board, id, view):
        ((name, values),) = ((name, values) for name, values in table.columns.items() if name != "Time")
        found[name] = values[-1]
    return found


def number(real: Stack, board: str, id: int, view: View) -> float | None:
    """The one number of a stat."""
    found = numbers(real, board, id, view)
    assert len(found) <= 1, found
    return next(iter(found.values()), None)


def close(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> bool:
    """The same names with the same numbers."""
    return found.keys() == expected.keys() and all(
        (found[name] is None and math.isnan(expected[name])) or math.isclose(found[name], expected[name], rel_tol=1e-9)
        for name in expected
    )


# --- Overview --------------------------------------------------------------------------------------------------------


def check_curve(real: Stack, truth: Truth, view: View) -> None:
    (table,) = drawn(real, "overview", 1, view)
    curve = truth.curve()
    step, alone, expected, so_far = table.columns
    assert table.columns[step] == list(curve)
    assert set(table.types.values()) == {"number"}
    assert table.columns[alone] == pytest.approx(list(curve.values()))
    assert table.columns[expected] == pytest.approx([k * curve[1] for k in curve])
    assert table.columns[so_far] == pytest.approx([sum(v for n, v in curve.items() if n <= k) for k in curve])


def test_the_curve(real: Stack, truth: Truth, view: View) -> None:
    """Mean of all action steps by number, the line of equal steps, and the sum."""
    check_curve(real, truth, view)


def test_the_curve_of_chosen_agents(real: Stack, truth: Truth, view: View) -> None:
    """P52: with planning calls between them, action steps only grow. Two agents are `(a|b)` in the query."""
    for chosen in (("planner",), ("caller", "researcher")):
        only = View(view.seconds, view.end, {"agent": f"({'|'.join(chosen)})"})
        check_curve(real, truth.of(*chosen), only)
    curve = list(truth.of("planner").curve().values())
    assert curve == sorted(curve)


TOTALS: dict[str, tuple[int, Callable[[Truth], float]]] = {
    "input tokens": (2, lambda truth: truth.input),
    "output tokens": (3, lambda truth: truth.output),
    "overpay": (5, lambda truth: truth.overpay),
    "runs": (6, lambda truth: len(truth.runs)),
    "calls without usage": (7, lambda truth: truth.without_usage),
    "times the straight line": (
        20,
        lambda truth: sum(truth.curve().values()) / (len(truth.curve()) * truth.curve()[1]),
    ),
}


@pytest.mark.parametrize("name", TOTALS)
def test_a_total(name: str, real: Stack, truth: Truth, view: View) -> None:
    id, expected = TOTALS[name]
    assert number(real, "overview", id, view) == pytest.approx(expected(truth))
    for agent in ("researcher", "endless"):
        only = View(view.seconds, view.end, {"agent": agent})
        assert number(real, "overview", id, only) == pytest.approx(expected(truth.of(agent)))


def test_shares(real: Stack, truth: Truth, view: View) -> None:
    """What was sent before and what was cached; nothing (not 0) of the latter where no provider says."""
    found = numbers(real, "overview", 4, view)
    assert found == pytest.approx(shares(truth))
    only = numbers(real, "overview", 4, View(view.seconds, view.end, {"agent": "caller"}))
    assert only == pytest.approx(shares(truth.of("caller")))
    assert only["cached"] > 0.5
    silent = numbers(real, "overview", 4, View(view.seconds, view.end, {"agent": "researcher"}))
    assert silent == pytest.approx({"sent before": shares(truth.of("researcher"))["sent before"]})


def shares(truth: Truth) -> dict[str, float]:
    return {"sent before": truth.replayed / truth.input, "cached": (truth.cached or 0) / truth.input}


PARTS: dict[str, tuple[int, Callable[[Truth], dict[str, int]]]] = {
    "sources": (8, Truth.sources),
    "tools": (9, Truth.tools),
    "states": (10, lambda truth: truth.states),
    "errors": (19, Truth.errors),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts(name: str, real: Stack, truth: Truth, view: View) -> None:
    """Bars: the same names, the same numbers, the largest first, none that is 0."""
    id, expected = PARTS[name]
    found = numbers(real, "overview", id, view)
    assert found == expected(truth)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_the_sources_add_up_to_the_input(real: Stack, truth: Truth, view: View) -> None:
    assert sum(numbers(real, "overview", 8, view).values()) == truth.input


def test_the_distribution_of_runs(real: Stack, truth: Truth, view: View) -> None:
    """All cells of a bucket together are the runs whose input lies in it."""
    (table,) = drawn(real, "overview", 11, view)
    found = {name: sum(values) for name, values in table.columns.items() if name != "Time" and any(values)}
    buckets = [*sc.RUN_INPUT_TOKENS_METRIC.buckets, math.inf]
    expected: dict[str, int] = {}
    for tokens in truth.run_inputs():
        bound = next(bound for bound in buckets if tokens <= bound)
        expected[f"{bound:g}"] = expected.get(f"{bound:g}", 0) + 1
    assert {f"{float(name):g}": count for name, count in found.items()} == expected


def test_dots_lead_to_the_runs(real: Stack, truth: Truth) -> None:
    """P83: the exemplars of the distribution's own query are traces that hold a run."""
    (target,) = answers.panel(answers.load("overview"), 11)["targets"]
    assert target["exemplar"] is True
    view = View(15 * MINUTES, time.time())
    found = real.prometheus.ask(
        "query_exemplars", query=view.fill(target["expr"]), start=view.end - view.seconds, end=view.end
    )
    traces = {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}
    assert len(traces) >= 5
    assert traces <= {span.trace_id for span in truth.run_spans()}


def test_bars_over_time_add_up(real: Stack, truth: Truth, view: View) -> None:
    found: dict[str, float] = {}
    for table in drawn(real, "overview", 12, view):
        ((name, values),) = ((name, values) for name, values in table.columns.items() if name != "Time")
        found[name] = sum(values)
    assert found == truth.by_agent(lambda only: only.input)


def test_agents(real: Stack, truth: Truth, view: View) -> None:
    (table,) = drawn(real, "overview", 13, view)
    rows = table.by("agent")
    assert rows.keys() == set(truth.agents)
    columns: dict[str, Callable[[Truth], float]] = {
        "runs": lambda only: len(only.runs),
        "input tokens": lambda only: only.input,
        "tokens per run": lambda only: mean(only.run_inputs()),
        "steps per run": lambda only: mean(only.steps()),
        "replay share": lambda only: only.replayed / only.input if only.input else math.nan,
        "cached": lambda only: only.cached / only.input if only.cached is not None else math.nan,
        "overpay": lambda only: only.overpay,
    }
    for column, expected in columns.items():
        assert table.types[column] == "number"
        assert close({agent: row[column] for agent, row in rows.items()}, truth.by_agent(expected)), column
    for agent, row in rows.items():
        within_a_bucket(row["usual run"], truth.of(agent).run_inputs(), 0.5)
    inputs = table.columns["input tokens"]
    assert inputs == sorted(inputs, reverse=True)


def within_a_bucket(found: float | None, runs: list[int], q: float) -> None:
    """A quantile lies in the bucket in which the true one lies."""
    if not runs:
        assert found is None
        return
    true = sorted(runs)[math.ceil(q * len(runs)) - 1]
    bounds = [0.0, *sc.RUN_INPUT_TOKENS_METRIC.buckets]
    upper = next(i for i, bound in enumerate(bounds) if true <= bound)
    assert found is not None
    assert bounds[upper - 1] <= found <= bounds[upper]


def test_quantiles(real: Stack, truth: Truth, view: View) -> None:
    found = numbers(real, "overview", 17, view)
    within_a_bucket(found["usual run (median)"], truth.run_inputs(), 0.5)
    within_a_bucket(found["one in twenty is above"], truth.run_inputs(), 0.95)


def test_models(real: Stack, truth: Truth, view: View) -> None:
    """Calls of each model, those that failed or reported nothing included."""
    big = truth.of("manager", "caller")
    small = truth.of(*(agent for agent in truth.agents if agent not in ("manager", "caller")))
    (table,) = drawn(real, "overview", 18, view)
    rows = table.by("model")
    for name, only in {"small-model": small, "big-model": big}.items():
        assert rows[name]["calls"] == len(only.calls)
        assert rows[name]["input tokens"] == only.input
        assert rows[name]["output tokens"] == only.output
        # The model's own seconds lie within what is measured, and that within the span; clocks differ a little
        spans = [span.duration / 1e9 for span in only.spans if span.get(sc.CALL_TYPE) is not None]
        own = [call.seconds for call in only.calls]
        assert mean(own) - 0.001 <= rows[name]["mean duration"] <= mean(spans) + 0.001
        assert 0 < rows[name]["slow: one in twenty"] <= 2 * max(spans) + 0.01
    (only_one,) = drawn(real, "overview", 18, View(view.seconds, view.end, {"model": "big-model"}))
    assert only_one.columns["model"] == ["big-model"]


def in_seconds(real: Stack) -> View:
    """All the time since the stack was started, second by second: what is there only for a moment is seen."""
    return View(math.ceil(time.time() - real.began) + 1, time.time(), interval=1)


def test_runs_that_went_on(real: Stack, truth: Truth) -> None:
    """Gauges of the one run that lasted longer than an export interval: never more than it came to in the end."""
    fine = in_seconds(real)
    (run,) = truth.of("slow").run_inputs()
    found = {}
    for table in drawn(real, "overview", 14, fine):
        ((name, values),) = ((name, values) for name, values in table.columns.items() if name != "Time")
        found[name] = max(values)
    assert set(found) == {"slow: so far", "slow: forecast", "slow: budget"}
    assert 0 < found["slow: so far"] <= run
    assert found["slow: forecast"] > run  # max_steps was not used up
    assert found["slow: budget"] == 5000


def test_budget_and_window(real: Stack, truth: Truth, view: View) -> None:
    """Known where a limit is set, and nothing (not 0) where none is."""
    assert number(real, "overview", 15, view) == 1
    largest = max(call.input or 0 for call in truth.of("slow").calls)
    share = number(real, "overview", 16, view)
    assert share is not None
    assert 0 < share <= largest / 10_000
    without = View(view.seconds, view.end, {"agent": "researcher"})
    assert number(real, "overview", 15, without) is None
    assert number(real, "overview", 16, without) is None


def test_what_ended_before_the_range_is_not_in_it(real: Stack) -> None:
    """Half an hour later, the last 15 minutes are empty: nothing goes on with its last value."""
    later = View(15 * MINUTES, time.time() + 30 * MINUTES)
    for panel in answers.load("overview")["panels"]:
        assert values_in(answers.ask_prometheus(real.prometheus, panel, later)) == {}, panel["title"]


# --- the other set -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("board", ["overview", "ops"])
def test_the_portable_set_says_the_same(board: str, real: Stack, view: View) -> None:
    """As long as no process restarts under its old id. What it asks is plain PromQL."""
    portable = answers.load(board, ROOT / "grafana" / "dashboards-portable")
    assert "anchored" not in json.dumps(portable)
    for panel in portable["panels"]:
        expected, found = at_one_moment(real, view, answers.panel(answers.load(board), panel["id"]), panel)
        assert found == pytest.approx(expected), panel["title"]


def at_one_moment(real: Stack, view: View, one: Json, other: Json) -> list[dict[str, float]]:
    """What two panels answer while nothing is scraped: the collector's queues and memory move on every second."""
    until = time.monotonic() + PATIENCE
    while True:
        *both, again = [values_in(answers.ask_prometheus(real.prometheus, panel, view)) for panel in (one, other, one)]
        if again == both[0] or time.monotonic() > until:
            return both


def values_in(frames: list[Json]) -> dict[str, float]:
    """Every number of an answer, by the labels and the time that it belongs to: rows come in any order."""
    found: dict[str, float] = {}
    for frame in frames:
        columns = {(field["name"], field["type"]): field["values"] for field in frame["fields"]}
        labels = [str(field.get("labels")) for field in frame["fields"]]
        for row in range(len(next(iter(columns.values())))):
            known = [str(values[row]) for (_, kind), values in columns.items() if kind != "number"]
            for (name, kind), values in columns.items():
                if kind == "number" and not math.isnan(values[row]):
                    found[" ".join([frame["refId"], name, *labels, *known])] = values[row]
    return found


# --- what was there before the range -----------------------------------------------------------------------------


def test_a_process_that_lives_for_long(alone: Prometheus) -> None:
    """Its lifetime total is large; the range holds only what was billed within it, also across a restart."""
    now, minute = time.time_ns(), 60_000_000_000
    attributes: dict[str, Plain] = {sc.AGENT_NAME: "veteran", sc.HISTORY_SOURCE: "task"}
    values = [*range(1_000_000, 1_000_000 + 1000 * 55, 1000), 300, 700]  # a minute ago it began again
    for i, value in enumerate(values):
        metric = counter(sc.HISTORY_INPUT_TOKENS_METRIC.name, "{token}", value, attributes, now - 90 * minute)
        point = metric.sum.data_points[0]
        point.time_unix_nano = now - (len(values) - 1 - i) * minute
        if value < 1000:
            point.start_time_unix_nano = now - 2 * minute + 1_000_000
        assert send(alone.otlp, metrics([metric], resource("service", "always the same"))) == 200
    latest = 'smolagents_history_input_tokens_total{gen_ai_agent_name="veteran"}'
    wait_for(lambda: alone.value(latest) == 700, "the last sample", PATIENCE)
    panel = answers.panel(answers.load("overview"), 2)
    portable = answers.panel(answers.load("overview", ROOT / "grafana" / "dashboards-portable"), 2)
    # 13 minutes of 1000 before the restart, and 700 since
    assert the_number(alone, panel, View(15 * MINUTES, now / 1e9 + 1)) == 13_700
    before = View(15 * MINUTES, now / 1e9 - 4 * MINUTES + 1)
    assert the_number(alone, panel, before) == 15_000
    assert the_number(alone, portable, before) == 15_000  # right too, as long as nothing restarts
    assert the_number(alone, portable, View(15 * MINUTES, now / 1e9 + 1)) == 700  # too little, but no negative total


def the_number(prometheus: Prometheus, panel: Json, view: View) -> float:
    """The one number that a panel answers."""
    (answer,) = answers.ask_prometheus(prometheus, panel, view)
    (value,) = answer["fields"][1]["values"]
    return float(value)


# --- Operations ------------------------------------------------------------------------------------------------------


def test_nothing_is_missing(real: Stack, truth: Truth, view: View) -> None:
    """What was not reported is counted; nothing was dropped, refused or lost."""
    assert number(real, "ops", 1, view) == truth.without_usage
    assert [number(real, "ops", id, view) for id in (2, 3, 4)] == [0, 0, 0]
    fullest = number(real, "ops", 5, view)
    assert fullest is not None
    assert 0 <= fullest < 0.5
    assert drawn(real, "ops", 9, view) == []
    (table,) = drawn(real, "ops", 10, view)
    assert table.rows() == [{"agent": "silent", "model": "small-model", "calls without usage": truth.without_usage}]


def test_what_went_through_the_collector(real: Stack, view: View) -> None:
    """As the collector itself says, in all bars together."""
    own = samples(real.collector.own_metrics_url)
    found: dict[str, float] = {}
    for table in drawn(real, "ops", 6, view):
        ((name, values),) = ((name, values) for name, values in table.columns.items() if name != "Time")
        found[name] = sum(values)
    assert found["spans in"] == total(own, "otelcol_receiver_accepted_spans") == len(real.traces.spans())
    assert found["spans out"] == found["spans in"]
    assert found["data points out"] == found["data points in"] > 0


def test_the_collector_s_state(real: Stack) -> None:
    fine = in_seconds(real)
    queues = {name for table in drawn(real, "ops", 7, fine) for name in table.columns} - {"Time"}
    assert queues == {"otlp_http/traces", "otlp_http/metrics"}
    (memory,) = drawn(real, "ops", 8, fine)
    assert 10_000_000 < max(v for name, values in memory.columns.items() if name != "Time" for v in values) < 1e9


def test_a_backend_that_is_away(tmp_path: Path) -> None:
    """The queue fills, then the collector refuses: as much as it says itself, and as much as it was sent in vain."""
    with ExitStack() as ends:
        collector = Collector(tmp_path / "collector", program=require("otelcol-contrib"), OTELCOL_QUEUE_SIZE="1000")
        prometheus = watched(collector, tmp_path, ends)
        sent = [Run(steps=150).spans() for _ in range(5)]
        refused = sum(len(spans) for spans in sent if send(collector.otlp, traces(spans)) != 200)
        taken = sum(map(len, sent)) - refused
        assert refused
        assert taken
        view = View(15 * MINUTES)
        panel = answers.panel(answers.load("ops"), 3)
        wait_for(
            lambda: the_number(prometheus, panel, view.at(time.time())) == refused, f"{refused} refused spans", PATIENCE
        )
        view = view.at(time.time())
        assert the_number(prometheus, answers.panel(answers.load("ops"), 4), view) == 0
        assert the_number(prometheus, answers.panel(answers.load("ops"), 5), view) == taken / 1000
        failures = answers.panel(answers.load("ops"), 9)
        (table,) = answers.show(failures, answers.ask_prometheus(prometheus, failures, view))
        assert table.rows() == [{"exporter": "otlp_http/traces", "refused: spans": refused}]


def test_a_backend_that_says_no(tmp_path: Path) -> None:
    """What it calls wrong for good is lost, and counted."""
    with ExitStack() as ends:
        server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # answers POST with 501
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ends.callback(server.server_close)
        ends.callback(server.shutdown)
        wrong = f"http://127.0.0.1:{server.server_port}"
        collector = Collector(tmp_path / "collector", program=require("otelcol-contrib"), OTELCOL_TRACES_ENDPOINT=wrong)
        prometheus = watched(collector, tmp_path, ends)
        spans = Run(steps=7).spans()
        assert send(collector.otlp, traces(spans)) == 200
        panel = answers.panel(answers.load("ops"), 4)
        view = View(15 * MINUTES)
        wait_for(lambda: the_number(prometheus, panel, view.at(time.time())) == len(spans), "the lost spans", PATIENCE)
        assert the_number(prometheus, answers.panel(answers.load("ops"), 3), view.at(time.time())) == 0


def watched(collector: Collector, folder: Path, ends: ExitStack) -> Prometheus:
    """Start a collector, and a Prometheus that scrapes it."""
    prometheus = start_prometheus(folder, ends, int(urllib.parse.urlsplit(collector.own_metrics_url).port or 0))
    ends.callback(collector.process.stop)
    collector.start()
    wait_for(lambda: bool(prometheus.instant("otelcol_process_uptime")), "the collector's own metrics", PATIENCE)
    return prometheus


MANY_SPANS = """
import time
from opentelemetry import trace
tracer = trace.get_tracer("application")
for _ in range(3000):
    tracer.start_span("s").end()
time.sleep(1)
"""


def test_spans_that_never_left_the_process(tmp_path: Path) -> None:
    """The SDK says what it dropped if it is told to; without the switch the panel is empty, not 0."""
    panel = answers.panel(answers.load("ops"), 2)
    tight = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8", "OTEL_LOGS_EXPORTER": "none"}
    with stack(tmp_path) as empty:
        assert answers.ask_prometheus(empty.prometheus, panel, View(900, time.time())) == []
        done = run(tmp_path, MANY_SPANS, empty.collector.otlp, **{**OFTEN, **tight})
        assert done.returncode == 0, done.stderr
        wait_for(
            lambda: bool(answers.ask_prometheus(empty.prometheus, panel, View(900, time.time()))),
            "SDK metrics",
            PATIENCE,
        )

        def dropped() -> float:
            return the_number(empty.prometheus, panel, View(900, time.time()))

        # until the last export has come, and the collector's last batch
        wait_for(lambda: abs(3000 - len(empty.traces.spans()) - dropped()) <= 10, "the other spans", PATIENCE)
        assert dropped() > 1000


def test_series(real: Stack, view: View) -> None:
    """Counted by Prometheus in another way: by listing them."""
    listed = real.prometheus.ask(
        "series", **{"match[]": '{__name__=~"smolagents_.+|gen_ai_.+"}'}, start=view.end - view.seconds, end=view.end
    )
    assert number(real, "ops", 11, view) == len(listed)
    by_name: dict[str, int] = {}
    for each in listed:
        by_name[each["__name__"]] = by_name.get(each["__name__"], 0) + 1
    shown = numbers(real, "ops", 13, view)
    assert len(shown) == 10
    assert shown == {name: by_name[name] for name in shown}
    assert min(shown.values()) >= max(count for name, count in by_name.items() if name not in shown)


def test_series_and_processes_over_time(real: Stack) -> None:
    fine = in_seconds(real)
    found = {}
    for table in drawn(real, "ops", 12, fine):
        ((name, values),) = ((name, values) for name, values in table.columns.items() if name != "Time")
        found[name] = max(values)
    assert found["processes"] >= len(FLEET)
    assert found["series"] <= (number(real, "ops", 11, fine) or 0)


# --- variables -------------------------------------------------------------------------------------------------------


def test_the_variables_offer_what_is_there(real: Stack, truth: Truth, view: View) -> None:
    offered = {}
    for variable in answers.load("overview")["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            found = real.prometheus.ask(
                f"label/{label}/values",
                **{"match[]": view.fill(selector)},
                start=view.end - view.seconds,
                end=view.end,
            )
            offered[variable["name"]] = set(found)
    assert "agents" in offered["service"]
    assert offered["agent"] == set(truth.agents)
    assert offered["model"] == {"small-model", "big-model"}


def test_a_service_with_a_namespace_is_found_by_its_name(alone: Prometheus) -> None:
    """`job` is then `namespace/name`; traces know the name only, so that is what the variable holds."""
    where = resource("shop", "one")
    where.attributes.add(key="service.namespace").value.string_value = "acme"
    point = counter(sc.CALLS_WITHOUT_USAGE_METRIC.name, "{call}", 0, {sc.AGENT_NAME: "clerk"}, time.time_ns())
    assert send(alone.otlp, metrics([point], where)) == 200
    variables = {each["name"]: each for each in answers.load("overview")["templating"]["list"]}
    selector = variables["agent"]["query"]["query"].removeprefix("label_values(").rpartition(", ")[0]
    chosen = View(900, time.time(), {"service": "shop"}).fill(selector)
    wait_for(lambda: bool(alone.instant(chosen)), "the namespaced service", PATIENCE)
    (found,) = alone.instant(chosen)
    assert found["metric"]["job"] == "acme/shop"
    offered = re.search(variables["service"]["regex"].strip("/"), found["metric"]["job"])
    assert offered is not None
    assert offered[1] == "shop"
    assert alone.instant(View(900, time.time(), {"service": "hop"}).fill(selector)) == []
