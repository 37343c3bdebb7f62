"""TraceQL: parsed by Grafana's grammar, answered from recorded spans, and one definition for each query."""

from __future__ import annotations

import pytest

from grafana import traceql
from otel_smol import semconv as sc
from tests.grafana import answers, fleet
from tests.grafana.answers import View
from tests.grafana.recorded import record
from tests.stack.programs import ROOT

VIEW = View(chosen={"run": "0123456789abcdef0123456789abcdef", "service": "agents|shop", "agent": ".*"})


def every_query() -> dict[str, str]:
    found = {name: VIEW.fill(str(search)) for name, search in traceql.SEARCHES.items()}
    return {
        **found,
        "expensive traces": traceql.expensive_traces(200_000),
        "running": traceql.running('agent "smith"'),
    }


def test_the_syntax() -> None:
    """No error node in the tree that `@grafana/lezer-traceql` makes."""
    queries = every_query()
    errors = answers.ask_node({"syntax": list(queries.values())})["syntax"]
    assert dict(zip(queries, errors, strict=True)) == {name: [] for name in queries}


@pytest.mark.parametrize(
    "mistake",
    [
        '{ span.smolagents.run.id = "a" | select(span.x)',
        "{ span.smolagents.run.id =~ } | select(span.x)",
        '{ span.smolagents.run.id == "a" }',
        "{ } | selct(span.x)",
    ],
)
def test_a_mistake_is_seen(mistake: str) -> None:
    """The test above tells something."""
    ((error, *_),) = answers.ask_node({"syntax": [mistake]})["syntax"]
    assert error


def test_the_dashboards_have_no_query_of_their_own() -> None:
    """All are in grafana/traceql.py."""
    known = {*map(str, traceql.SEARCHES.values()), traceql.TRACE}
    used = {
        target["query"]
        for board in ("overview", "run", "ops")
        for panel in answers.load(board)["panels"]
        for target in panel["targets"]
        if "query" in target
    }
    assert used == known


@pytest.mark.parametrize(
    ("folder", "spans"),
    [("dashboards", traceql.SPANS_PER_TRACE), ("dashboards-portable", traceql.BY_DEFAULT)],
)
def test_searches_ask_for_whole_runs(folder: str, spans: int) -> None:
    """P79: not for the editor's 3 spans per trace, but for no more than that Tempo gives, and for as many traces."""
    for panel in answers.load("run", ROOT / "grafana" / folder)["panels"]:
        for target in panel["targets"]:
            if target["query"] != traceql.TRACE:
                assert target["spss"] == spans
                assert target["limit"] == answers.SEARCHES[target["query"]].traces
                assert target["tableType"] == "spans"
                assert "most_recent=true" in target["query"]


def test_the_stack_s_tempo_gives_whole_runs() -> None:
    """0 is no limit."""
    yaml = pytest.importorskip("yaml")
    tempo = yaml.safe_load((ROOT / "deploy" / "tempo.yaml").read_text())
    assert tempo["query_frontend"]["search"]["max_spans_per_span_set"] == 0


def test_what_is_asked_for_is_there() -> None:
    """Every search finds spans of real runs, and each attribute that it selects is on one of them."""
    runs, spans = record(fleet.manager, fleet.planner, fleet.clumsy, fleet.caller, fleet.endless)
    assert runs
    attributes: dict[str, set[str]] = {}
    for run in (span for span in spans if span.get(sc.RUN_STATE) is not None):
        view = View(chosen={"run": str(run.get(sc.RUN_ID))})
        for name, search in traceql.SEARCHES.items():
            found = [span for span in spans if all(answers.holds(each, span, view) for each in search.conditions)]
            assert found, name
            attributes.setdefault(name, set()).update(key for span in found for key in span.attributes)
    for name, search in traceql.SEARCHES.items():
        absent = set(search.attributes) - attributes[name]
        # no image and no tool schema was sent here, nor anything that has no source
        rare = {sc.HISTORY_SOURCE_TOKENS[source] for source in ("image", "other")}
        assert absent <= (rare if name == "sources" else set()), name


def test_the_totals_of_traces_count_each_call_once() -> None:
    """`expensive_traces` adds up an attribute that only `chat` spans carry."""
    runs, spans = record(fleet.manager)
    summed = sum(span.get(sc.USAGE_INPUT_TOKENS) or 0 for span in spans)
    assert summed == sum(call.input or 0 for run in runs for call in run.calls)
    assert {span.name.split(" ")[0] for span in spans if span.get(sc.USAGE_INPUT_TOKENS) is not None} == {"chat"}


def test_quotes_do_not_end_a_value() -> None:
    assert traceql.running('a"b').startswith('{ span.gen_ai.agent.name = "a\\"b" && ')
