"""The dashboards on metrics that `collector/span-metrics.yaml` made: real agents that send traces only."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.grafana import answers
from tests.grafana.answers import Table, View
from tests.grafana.rig import BILLED, ENDED, PATIENCE, Stack, run_script, stack, wait_for_spans
from tests.grafana.truth import Truth
from tests.stack.programs import PARTS, wait_for

TRACES_ONLY = {"OTEL_METRICS_EXPORTER": "none"}
FLEET = ("researcher caller", "silent planner")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack, after all agents have run."""
    with stack(tmp_path_factory.mktemp("stack"), PARTS / "span-metrics.yaml") as running:
        for scenarios in FLEET:
            running.runs += run_script(running.collector.otlp, scenarios, TRACES_ONLY)
        wait_for(lambda: running.prometheus.value(ENDED) == len(running.runs), "all runs in Prometheus", PATIENCE)
        wait_for(lambda: running.prometheus.value(BILLED) == running.billed(), "all tokens in Prometheus", PATIENCE)
        wait_for_spans(running)
        yield running


@pytest.fixture(scope="module")
def truth(real: Stack) -> Truth:
    return Truth(real.runs, answers.recorded(real.traces))


def drawn(real: Stack, board: str, id: int, **chosen: str) -> list[Table]:
    """What a panel draws of the last quarter of an hour."""
    panel = answers.panel(answers.load(board), id)
    return answers.show(panel, answers.ask_prometheus(real.prometheus, panel, View(900, time.time(), chosen)))


def numbers(real: Stack, board: str, id: int, **chosen: str) -> dict[str, float]:
    """The numbers of a stat by their names."""
    columns = [table.columns for table in drawn(real, board, id, **chosen)]
    return {name: values[-1] for each in columns for name, values in each.items() if name != "Time"}


@pytest.mark.parametrize("board", ["overview", "run", "ops"])
def test_the_variables_offer_what_is_there(board: str, real: Stack, truth: Truth) -> None:
    """Agents whose provider tells nothing are among them."""
    offered: dict[str, set[str]] = {}
    for variable in answers.load(board)["templating"]["list"]:
        if variable["type"] == "query":
            asked, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            matching, now = {"match[]": View().fill(asked)}, time.time()
            found = real.prometheus.ask(f"label/{label}/values", **matching, start=now - 900, end=now)
            offered[variable["name"]] = set(found)
    assert offered == {"service": {"agents"}, "agent": set(truth.agents), "model": {"small-model", "big-model"}}


def test_calls_without_usage(real: Stack, truth: Truth) -> None:
    """0, and not nothing, where every call was told of."""
    for board, panel in (("overview", 7), ("ops", 1)):
        assert list(numbers(real, board, panel).values()) == [truth.without_usage]
        assert list(numbers(real, board, panel, agent="researcher").values()) == [0]
    (table,) = drawn(real, "ops", 10)
    assert table.rows() == [{"agent": "silent", "model": "small-model", "calls without usage": truth.without_usage}]


def test_what_was_cached(real: Stack, truth: Truth) -> None:
    """Known where the provider says, and nothing (not 0) where it does not."""
    only = truth.of("caller")
    assert only.cached
    found = numbers(real, "overview", 4, agent="caller")
    assert found == pytest.approx({"sent before": only.replayed / only.input, "cached": only.cached / only.input})
    assert set(numbers(real, "overview", 4, agent="researcher")) == {"sent before"}


def test_processes_are_one_for_each_service(real: Stack) -> None:
    """As its description says: the collector has added them up."""
    panel = answers.panel(answers.load("ops"), 12)
    view = View(300, time.time(), interval=1)
    found = {
        name: max(values)
        for table in answers.show(panel, answers.ask_prometheus(real.prometheus, panel, view))
        for name, values in table.columns.items()
        if name != "Time"
    }
    assert found["processes"] == 1
    assert found["series"] > 100
