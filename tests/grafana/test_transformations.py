"""The transformations of every panel, run by Grafana's own code (`@grafana/data`): columns, types and values.

Panels on Tempo get recorded spans of real runs, in the shape of Tempo's answers. Those on Prometheus get small answers
here; with answers of the real Prometheus they are run in test_panels_on_prometheus.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from otel_smol import semconv as sc
from tests.grafana import answers, fleet
from tests.grafana.answers import Frame, Json, Span, Table, View
from tests.grafana.recorded import record

RUN = answers.load("run")
CHOOSE, TOTALS, STEPS, PROGRESS, LAST_RUNS, SOURCES, CAUSES, TOOLS = range(1, 9)


class Recorded:
    """Runs, their spans, and the run that is looked at."""

    def __init__(self, runs: list[fleet.Run], spans: list[Span], agent: str) -> None:
        self.runs, self.spans = runs, spans
        self.run = next(span for span in spans if span.name == f"invoke_agent {agent}")
        self.truth = next(run for run in runs if run.agent == agent)
        self.id = str(self.run.get(sc.RUN_ID))

    def of_run(self, attribute: str) -> list[Span]:
        """Spans of this run that have an attribute, in the order in which they began."""
        found = [span for span in self.spans if span.get(sc.RUN_ID) == self.id and span.get(attribute) is not None]
        return sorted(found, key=lambda span: span.start)

    def steps(self) -> list[Span]:
        return [span for span in self.of_run(sc.STEP_TYPE) if span.get(sc.STEP_TYPE) == "action"]

    def frames(self, panel: int, **chosen: str) -> list[Frame]:
        view = View(chosen={"run": self.id, "trace": self.run.trace_id, **chosen})
        return answers.ask_tempo(self.spans, answers.panel(RUN, panel), view)

    def table(self, panel: int, **chosen: str) -> Table:
        (table,) = answers.show(answers.panel(RUN, panel), self.frames(panel, **chosen))
        return table


def long() -> list[fleet.Run]:
    """40 steps."""
    return fleet.one("long", fleet.steps(40), "success", max_steps=50)


@pytest.fixture(scope="module")
def all_runs() -> tuple[list[fleet.Run], list[Span]]:
    return record(fleet.researcher, fleet.planner, fleet.manager, fleet.unlucky, fleet.silent, fleet.caller, long)


@pytest.fixture(params=["planner", "manager", "caller", "long"], scope="module")
def recorded(request: pytest.FixtureRequest, all_runs: tuple[list[fleet.Run], list[Span]]) -> Recorded:
    """One run of each kind is looked at in turn, with all others around it."""
    return Recorded(*all_runs, request.param)


def test_runs_to_choose_from(recorded: Recorded) -> None:
    """One row per run, the latest first, with the id and the trace that a click hands on."""
    table = recorded.table(CHOOSE)
    rows = table.by("run")
    assert len(rows) == len(recorded.runs)
    assert table.columns["began"] == sorted(table.columns["began"], reverse=True)
    row = rows[recorded.id]
    assert row["traceIdHidden"] == recorded.run.trace_id
    assert row["input"] == sum(call.input or 0 for call in recorded.truth.calls)
    assert row["state"] == "success"
    assert row["with managed"] == recorded.run.get(sc.RUN_TOTAL_INPUT_TOKENS)
    assert {table.types[name] for name in ("steps", "input", "output", "overpay", "replay share")} == {"number"}
    (silent,) = (row for row in rows.values() if row["agent"] == "silent")
    assert silent["input"] is None  # unknown is not zero
    assert silent["no usage"] == 3


def test_the_totals_of_one_run(recorded: Recorded) -> None:
    (row,) = recorded.table(TOTALS).rows()
    assert row["agent"] == recorded.truth.agent
    assert row["input tokens"] == sum(call.input or 0 for call in recorded.truth.calls)
    assert row["output tokens"] == sum(call.output or 0 for call in recorded.truth.calls)
    assert row["steps"] == sum(call.kind == "action" for call in recorded.truth.calls)


def test_the_curve(recorded: Recorded) -> None:
    """P79: a row per action step however many there are, all columns numbers, the parts adding up to what was sent."""
    table = recorded.table(STEPS)
    actions = [call for call in recorded.truth.calls if call.kind == "action"]
    assert table.columns["step"] == [call.step for call in actions]
    assert table.columns["sent"] == [call.input for call in actions]
    assert set(table.types.values()) == {"number"}
    for row in table.rows():
        assert row["fixed"] + row["new"] + row["replayed"] == row["sent"]


def test_the_progress(recorded: Recorded) -> None:
    """P36: the running total is another column, and ends at what the run had sent by then."""
    table = recorded.table(PROGRESS)
    so_far, total = [], 0
    for call in recorded.truth.calls:
        total += call.input or 0
        if call.kind == "action":
            so_far.append(total)
    assert table.columns["so far"] == so_far
    assert table.types["forecast"] == "number"
    assert table.columns["forecast"][:2] == [None, None]
    assert table.columns["forecast"][2:] == [span.get(sc.FORECAST_INPUT_TOKENS) for span in recorded.steps()[2:]]


def test_this_run_among_the_last_ten(recorded: Recorded) -> None:
    """One column for this run, and one for every run of the last ten traces, cut to six letters of its id."""
    table = recorded.table(LAST_RUNS)
    assert set(table.types.values()) == {"number"}
    steps = table.columns["step"]
    assert steps == sorted(set(steps))
    mine = {row["step"]: row["this run"] for row in table.rows() if row["this run"] is not None}
    assert mine == {call.step: call.input for call in recorded.truth.calls if call.kind == "action"}
    ids = {str(span.get(sc.RUN_ID)) for span in recorded.spans if span.get(sc.RUN_STATE) is not None}
    assert set(table.columns) - {"step", "this run"} == {id[:6] for id in ids}
    assert {row["step"]: row[recorded.id[:6]] for row in table.rows() if row[recorded.id[:6]] is not None} == mine


def test_the_last_ten_when_no_run_is_chosen(recorded: Recorded) -> None:
    found = answers.show(answers.panel(RUN, LAST_RUNS), recorded.frames(LAST_RUNS, run=""))
    (table,) = (each for each in found if each.rows())
    assert "step" in table.columns
    assert len(table.columns) == len(recorded.runs) + 1


def test_the_sources(recorded: Recorded) -> None:
    """The parts of a step's prompt add up to it; a source that is not there is a gap, not a string."""
    table = recorded.table(SOURCES)
    assert set(table.types.values()) == {"number"}
    for row, span in zip(table.rows(), recorded.steps(), strict=True):
        parts = {name: value for name, value in row.items() if name != "step" and value is not None}
        assert sum(parts.values()) == span.get(sc.HISTORY_TOKENS)
        assert parts == {
            source: span.get(attribute)
            for source, attribute in sc.HISTORY_SOURCE_TOKENS.items()
            if span.get(attribute) is not None
        }


def test_the_causes(recorded: Recorded) -> None:
    """As `RunRecord.causes`: what a step left behind is what the next call sent as new, times the calls since."""
    table = recorded.table(CAUSES)
    calls = recorded.of_run(sc.STEP_TYPE)
    expected = []
    for i, (step, after) in enumerate(itertools.pairwise(calls)):
        left, times = after.get(sc.STEP_NEW_TOKENS), len(calls) - 1 - i
        expected.append((step.get(sc.STEP_NUMBER), step.get(sc.STEP_TYPE), left, times, left * times))
    found = [
        tuple(row[name] for name in ("step", "type", "left behind", "times sent", "caused")) for row in table.rows()
    ]
    assert sorted(found) == sorted(expected)
    assert table.columns["caused"] == sorted(table.columns["caused"], reverse=True)
    assert table.types["caused"] == "number"


def test_the_tools(recorded: Recorded) -> None:
    table = recorded.table(TOOLS)
    called = recorded.of_run(sc.TOOL_NAME)
    assert sorted(table.columns["tool"]) == sorted(str(span.get(sc.TOOL_NAME)) for span in called)
    assert table.columns["characters"] == sorted((span.get(sc.TOOL_OUTPUT_CHARACTERS) for span in called), reverse=True)


@pytest.mark.parametrize("panel", [CHOOSE, TOTALS, STEPS, PROGRESS, LAST_RUNS, SOURCES, CAUSES, TOOLS])
def test_attributes_that_come_as_text(panel: int, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older Grafana, and any with streaming on, hands on every attribute as a string: the picture is the same."""
    expected = recorded.table(panel)

    def as_text(ref: str, spans: Any, attributes: Any) -> list[Frame]:
        return as_numbers(ref, spans, attributes, as_text=True)

    as_numbers = answers.as_spans
    monkeypatch.setattr(answers, "as_spans", as_text)
    found = recorded.table(panel)
    assert found.types == expected.types
    assert found.columns == expected.columns


@pytest.mark.parametrize("panel", [CHOOSE, TOTALS, STEPS, PROGRESS, LAST_RUNS, SOURCES, CAUSES, TOOLS])
def test_nothing_found_is_no_error(panel: int) -> None:
    """Neither no table nor an empty one breaks a chain: the panel then says what is missing."""
    wanted = answers.panel(RUN, panel)
    empty = [frame for target in wanted["targets"] for frame in answers.as_spans(target["refId"], [], [])]
    for frames in ([], empty):
        assert not any(table.rows() for table in answers.show(wanted, frames))


# --- on Prometheus ---------------------------------------------------------------------------------------------------


def vector(label: str, **values: str) -> list[Json]:
    """An instant answer."""
    return [{"metric": {label: name.strip("_")}, "values": [[1_700_000_000, value]]} for name, value in values.items()]


def test_the_curve_of_all_runs() -> None:
    """Labels arrive as text and in no order; a step that nobody reported usage for is left out, not counted as 0."""
    panel = answers.panel(answers.load("overview"), 1)
    label = "smolagents_step_number"
    frames = [
        *answers.as_table("A", vector(label, _10="900", _2="300", _1="200", _4="500"), "Value #A"),
        *answers.as_table("B", vector(label, _2="200", _10="200", _4="200", _1="200"), "Value #B"),
    ]
    (table,) = answers.show(panel, frames)
    step, alone, expected, so_far = table.columns
    assert step == panel["options"]["xField"]
    assert set(table.types.values()) == {"number"}
    assert table.columns[step] == [1, 2, 4, 10]
    assert table.columns[alone] == [200, 300, 500, 900]
    assert table.columns[expected] == [200, 400, 800, 2000]
    assert table.columns[so_far] == [200, 500, 1000, 1900]
    named = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
    assert named == set(table.columns)


def test_an_agent_without_usage_has_gaps() -> None:
    panel = answers.panel(answers.load("overview"), 13)
    frames = [
        *answers.as_table("A", vector("gen_ai_agent_name", a="2", b="1"), "Value #A"),
        *answers.as_table("B", vector("gen_ai_agent_name", a="700", b="0"), "Value #B"),
        *answers.as_table("C", vector("gen_ai_agent_name", a="350"), "Value #C"),
    ]
    (table,) = answers.show(panel, frames)
    assert table.by("agent")["b"] == {"agent": "b", "runs": 1, "input tokens": 0, "tokens per run": None}


@pytest.mark.parametrize("board", ["overview", "run", "ops"])
def test_what_is_styled_is_there(board: str) -> None:
    """Names in overrides are names that the transformations give, or that the queries' legends give."""
    for panel in answers.load(board)["panels"]:
        given = {
            name
            for step in panel.get("transformations", [])
            for name in [
                *step["options"].get("renameByName", {}).values(),
                *step["options"].get("includeByName", {}),
                *step["options"].get("indexByName", {}),
                step["options"].get("alias", ""),
            ]
        }
        legends = {target.get("legendFormat", "") for target in panel["targets"]}
        values = {*sc.SOURCES, *sc.RUN_STATES}
        for override in panel["fieldConfig"]["overrides"]:
            name = override["matcher"]["options"]
            assert name in given | legends | values or name.startswith("/"), f"{panel['title']}: {name}"
