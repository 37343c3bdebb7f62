"""The committed dashboards: as generated, without a misspelt key, and with nothing to complain about."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("promql_parser", reason="needs the extra `grafana`")

from grafana import queries
from grafana.build import names
from otel_smol import semconv as sc
from otel_smol.metrics import AGENTS, ERROR_TYPES, MODELS, TOOLS
from tests.grafana import lint
from tests.grafana.lint import Json
from tests.stack.programs import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")

FILES = sorted((ROOT / "grafana").glob("dashboards*/*.json"))
BOARDS: dict[str, Json] = {str(path.relative_to(ROOT / "grafana")): json.loads(path.read_text()) for path in FILES}
OVERVIEW = "dashboards/otel-smol-overview.json"
RUN = "dashboards/otel-smol-run.json"
OPERATIONS = "dashboards/otel-smol-ops.json"


def test_both_sets_are_there() -> None:
    assert sorted(BOARDS) == sorted(
        f"{folder}/otel-smol-{name}.json"
        for folder in ("dashboards", "dashboards-portable")
        for name in ("overview", "run", "ops")
    )


# --- generated ---------------------------------------------------------------------------------------------------


def test_the_files_are_as_generated() -> None:
    """`python -m grafana.build` writes them anew."""
    pytest.importorskip("grafana_foundation_sdk", reason="needs the extra `grafana` and Python 3.11")
    from grafana.build.__main__ import files

    expected = files()
    assert set(FILES) == set(expected)
    for path, text in expected.items():
        assert path.read_text() == text, f"{path.name} differs: python -m grafana.build"


def through_the_sdk(board: Json) -> Json:
    """Read by the SDK's own models and written again: what these do not know is lost on the way."""
    pytest.importorskip("grafana_foundation_sdk", reason="needs the extra `grafana` and Python 3.11")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    again: Json = json.loads(json.dumps(Dashboard.from_json(copy.deepcopy(board)), cls=JSONEncoder))
    return again


@pytest.mark.parametrize("name", BOARDS)
def test_no_key_is_misspelt(name: str) -> None:
    assert through_the_sdk(BOARDS[name]) == BOARDS[name]


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (lambda panel: panel["options"].update(xFeild="step"), "xFeild"),
        (lambda panel: panel["targets"][0].update(exprr="1"), "exprr"),
        (lambda panel: panel["fieldConfig"]["defaults"].update(untit="s"), "untit"),
        (lambda panel: panel["fieldConfig"]["defaults"]["custom"].update(drawStile="bars"), "drawStile"),
    ],
)
def test_a_misspelt_key_is_seen(change: Callable[[Json], None], lost: str) -> None:
    """The test above tells something."""
    board = copy.deepcopy(BOARDS[OVERVIEW])
    change(board["panels"][0])
    assert lost not in json.dumps(through_the_sdk(board))


# --- linted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOARDS)
def test_nothing_to_complain_about(name: str) -> None:
    assert lint.lint(BOARDS[name]) == []


def asks(text: str) -> Callable[[Json], None]:
    """The second panel's query is this one."""
    return lambda board: board["panels"][1]["targets"][0].update(expr=text)


def panel(number: int, *path: str, **values: Any) -> Callable[[Json], None]:
    """These values are set somewhere in a panel."""

    def change(board: Json) -> None:
        at = board["panels"][number]
        for key in path:
            at = at[key]
        at.update(values)

    return change


def panel_link(old: str, new: str) -> Callable[[Json], None]:
    """The link in the table of agents has this instead of that."""

    def change(board: Json) -> None:
        (link,) = (
            each["value"][0]
            for panel in board["panels"]
            for override in panel["fieldConfig"]["overrides"]
            for each in override["properties"]
            if each["id"] == "links"
        )
        assert old in link["url"]
        link["url"] = link["url"].replace(old, new)

    return change


def spare_variable(board: Json) -> None:
    board["templating"]["list"].append({"name": "spare", "type": "textbox", "query": ""})


def linked_variable(board: Json) -> None:
    spare_variable(board)
    panel_link("&${model:queryparam}", "&${model:queryparam}&${spare:queryparam}")(board)


AGENT, JOB = 'gen_ai_agent_name=~"$agent"', 'job=~"(.+/)?$service"'
CHOSEN = f"{{{JOB}, {AGENT}}}"
RUNS, ACTIVE = f"smolagents_run_steps_count{CHOSEN}", f"smolagents_active_runs{CHOSEN}"
LAST_HOUR = queries.total("smolagents_run_steps_count", "1h", job="=~(.+/)?$service", gen_ai_agent_name="=~$agent")
DEFAULTS = ("fieldConfig", "defaults")

MISTAKES: dict[str, tuple[str, Callable[[Json], Any]]] = {
    "an id": ("identity: id", lambda board: board.update(id=7)),
    "an import input": ("identity: asks", lambda board: board.update(__inputs=[])),
    "a fixed data source": ("data_sources", panel(0, "datasource", uid="prometheus")),
    "a query's data source": ("data_sources", lambda board: board["panels"][0]["targets"][0].pop("datasource")),
    "no title": ("words", panel(0, title="")),
    "no advice": ("words", panel(0, description="Tokens.")),
    "nothing but advice": ("words", panel(0, description="**Rising**: stop the run.")),
    "no unit": ("words", panel(0, *DEFAULTS, unit="")),
    "no words for nothing": ("words", panel(0, *DEFAULTS, noValue="")),
    "too many words for nothing": ("words", panel(1, *DEFAULTS, noValue="No data. " * 10)),
    "a description for nothing": ("words", panel(0, *DEFAULTS, noValue="No data.\n\nWhat a step sends.")),
    "no query": ("questions", panel(0, targets=[])),
    "two queries A": ("questions", lambda board: board["panels"][0]["targets"][1].update(refId="A")),
    "a syntax error": ("syntax: ", asks("sum(")),
    "a literal window": ("windows", asks(LAST_HOUR)),
    "a literal offset": ("windows", asks(f"{ACTIVE} offset 1d")),
    "plain increase": ("totals: Input tokens: plain", asks(f"sum(increase({RUNS}[$__range]))")),
    "a rate": ("totals: Input tokens: rate", asks(f"sum(rate({RUNS}[$__range]))")),
    "a counter as it is": ("totals: Input tokens: the counter", asks(f"sum({RUNS})")),
    "an unknown metric": ("known_names: Input tokens: unknown metric", asks(f"smolagents_active_run{CHOSEN}")),
    "an unknown label": ("known_names", asks(f'smolagents_active_runs{{{JOB}, {AGENT}, agent="a"}}')),
    "an unknown group": ("known_names", asks(f"sum by (agent) ({ACTIVE})")),
    "an unknown legend": ("known_names", lambda board: board["panels"][1]["targets"][0].update(legendFormat="{{a}}")),
    "a run's id": ("no_ids", asks(f'smolagents_active_runs{{{JOB}, {AGENT}, smolagents_run_id="1"}}')),
    "all agents": ("variables: Input tokens: smolagents_active_runs without", asks(f"smolagents_active_runs{{{JOB}}}")),
    "all agents, counted": (
        "variables: Input tokens: smolagents_active_runs without",
        asks(f"count by (job) (smolagents_active_runs{{{JOB}}})"),
    ),
    "all services": ("variables: Input tokens: smolagents_active_runs of", asks(f"smolagents_active_runs{{{AGENT}}}")),
    "an unused variable": ("variables: variable spare is not used", spare_variable),
    "a variable for nothing but links": ("variables: variable spare is offered, and no panel", linked_variable),
    "an absent variable": (
        "variables: variable model is not there",
        lambda board: board["templating"]["list"].pop(),
    ),
    "a panel upon another": ("layout: ", panel(1, "gridPos", x=15)),
    "a panel too far right": ("layout: ", panel(2, "gridPos", x=23)),
    "an id twice": ("layout: two", panel(1, id=1)),
    "a link that forgets the model": ("links: link /d/otel-smol-overview", panel_link("&${model:queryparam}", "")),
    "a link that forgets the time": ("links: link /d/otel-smol-overview", panel_link("&${__url_time_range}", "")),
    "a link without time": ("links", lambda board: board["links"][0].update(keepTime=False)),
}
"""What the linter must say, and the mistake."""


@pytest.mark.parametrize("name", MISTAKES)
def test_the_linter_sees(name: str) -> None:
    """Each rule finds the mistake that it is there for, in a dashboard that is fine otherwise."""
    complaint, change = MISTAKES[name]
    board = copy.deepcopy(BOARDS[OVERVIEW])
    change(board)
    assert any(complaint in each for each in lint.lint(board)), lint.lint(board)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("span.smolagents.run.state", "span.smolagents.run.status"),
        ("resource.service.name", "resource.app"),
        ('"targetField": "smolagents.step.number"', '"targetField": "smolagents.step.no"'),
    ],
)
def test_the_linter_sees_an_unknown_attribute(old: str, new: str) -> None:
    """In a query, and in a transformation."""
    text = json.dumps(BOARDS[RUN])
    assert old in text
    assert any(each.startswith("known_attributes") for each in lint.lint(json.loads(text.replace(old, new))))


def test_every_rule_has_a_mistake() -> None:
    seen = {complaint.partition(":")[0] for complaint, _ in MISTAKES.values()} | {"known_attributes"}
    assert {rule.__name__ for rule in lint.RULES} <= seen


# --- complete ----------------------------------------------------------------------------------------------------

NOT_SHOWN = {
    sc.HISTORY_COMPACTED_TOKENS_METRIC.name: "only for those who edit the memory",
    sc.RUN_REPLAY_SHARE_METRIC.name: "the quotient of two counters is exact, a histogram is not",
    sc.STEP_NEW_TOKENS_METRIC.name: "the Run dashboard has it per step",
    "gen_ai.client.operation.time_to_first_chunk": "the convention's, not about tokens",
    "gen_ai.client.operation.time_per_output_chunk": "the convention's, not about tokens",
    "gen_ai.invoke_agent.duration": "the convention's, not about tokens",
    "gen_ai.execute_tool.duration": "the convention's, not about tokens",
}


def test_every_metric_is_shown_or_left_out_on_purpose() -> None:
    shown = {selector.name for name in (OVERVIEW, OPERATIONS) for _, selector, _ in lint.selectors(BOARDS[name])}
    for metric in [*sc.METRICS, *sc.CONVENTION_METRICS]:
        base = names.metric(sc.METRICS.get(metric, metric))
        used = any(
            each and each.startswith(base) and each.removeprefix(base) in ("", *names.HISTOGRAM_PARTS) for each in shown
        )
        assert used is (metric not in NOT_SHOWN), metric


def test_money_is_not_shown_before_it_is_known() -> None:
    """No panel without data: `smolagents.run.cost` is not emitted yet."""
    assert not any("cost" in metric for metric in sc.METRICS)
    assert all("_cost" not in expression for board in BOARDS.values() for _, expression in lint.expressions(board))


@pytest.mark.parametrize("name", BOARDS)
def test_what_is_chosen_goes_from_dashboard_to_dashboard(name: str) -> None:
    """Grafana hands on what both sides have, so all have the same: also Run, which shows no model to choose."""
    hidden = {each["name"]: each.get("hide", 0) for each in BOARDS[name]["templating"]["list"]}
    assert {"prometheus", "tempo", "service", "agent", "model"} <= hidden.keys()
    assert [each for each in hidden if hidden[each]] == (["model"] if name.endswith("run.json") else [])
    assert not any(each.get("skipUrlSync") for each in BOARDS[name]["templating"]["list"])


def test_the_caps_in_the_words_are_the_instrumentation_s() -> None:
    (text,) = (each["description"] for each in BOARDS[OPERATIONS]["panels"] if each["title"] == "Series and processes")
    assert f"are capped ({AGENTS}, {MODELS}, {TOOLS}, {ERROR_TYPES})" in text


# --- provisioned -------------------------------------------------------------------------------------------------


def provisioned(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / "grafana" / "provisioning" / name).read_text())


def test_the_data_sources_that_come_with_the_stack() -> None:
    """The uids that the variables begin with, the way from a dot to its trace and back, and no streaming."""
    prometheus, tempo = provisioned("datasources/otel-smol.yaml")["datasources"]
    assert (prometheus["uid"], prometheus["type"]) == ("prometheus", "prometheus")
    assert (tempo["uid"], tempo["type"]) == ("tempo", "tempo")
    for name, board in BOARDS.items():
        first = {
            each["name"]: each["current"]["value"]
            for each in board["templating"]["list"]
            if each["type"] == "datasource"
        }
        assert first == {"prometheus": "prometheus", "tempo": "tempo"}, name
    assert prometheus["jsonData"]["exemplarTraceIdDestinations"] == [{"name": "trace_id", "datasourceUid": "tempo"}]
    assert tempo["jsonData"]["streamingEnabled"] == {"search": False, "metrics": False}


def test_the_way_from_a_trace_to_its_metrics() -> None:
    """The query of the link is in the one form; `$` is written twice, since Grafana reads these files' variables."""
    _, tempo = provisioned("datasources/otel-smol.yaml")["datasources"]
    link = tempo["jsonData"]["tracesToMetrics"]
    assert link["datasourceUid"] == "prometheus"
    assert {each["key"]: each["value"] for each in link["tags"]} == {sc.AGENT_NAME: names.label(sc.AGENT_NAME)}
    (query,) = link["queries"]
    metric = names.metric(sc.HISTORY_INPUT_TOKENS_METRIC)
    plain = queries.total(metric, "$__range", (names.label(sc.HISTORY_SOURCE),)).replace(metric, f"{metric}{{$__tags}}")
    assert query["query"] == plain.replace("$", "$$")


def test_the_dashboards_are_provided_from_where_compose_mounts_them() -> None:
    (provider,) = provisioned("dashboards/otel-smol.yaml")["providers"]
    folder = provider["options"]["path"]
    assert f"./grafana/dashboards:{folder}:ro" in (ROOT / "compose.yaml").read_text()
    assert (provider["type"], provider["folder"], provider["allowUiUpdates"]) == ("file", "otel_smol", False)
    assert not provider["options"].get("foldersFromFilesStructure")


def test_no_machine_is_named() -> None:
    for path in [*FILES, *(ROOT / "grafana" / "provisioning").rglob("*.yaml")]:
        assert not re.search(r"/(home|root|Users)/", path.read_text()), path


def test_the_lock_file_names_no_registry() -> None:
    assert "resolved" not in Path(ROOT / "tests" / "grafana" / "node" / "package-lock.json").read_text()


# --- drawn -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [OVERVIEW, RUN, OPERATIONS])
def test_there_is_a_picture(name: str) -> None:
    """It shows every panel of the dashboard, says that it is no screenshot, and is small enough for a README."""
    path = (ROOT / "grafana" / "preview" / Path(name).name).with_suffix(".svg")
    words = [element.text or "" for element in ElementTree.parse(path).iter() if element.tag.endswith("text")]
    (note,) = (each for each in words if each.startswith("Not a screenshot of Grafana"))
    assert ("a real Prometheus" in note, "no Tempo" in note) == ((False, True) if name == RUN else (True, False))
    for panel in BOARDS[name]["panels"]:
        assert any(each and panel["title"].startswith(each.rstrip("…")) for each in words), panel["title"]
    assert path.stat().st_size <= 150_000
