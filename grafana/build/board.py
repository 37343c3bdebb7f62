"""What all dashboards share: variables, links, times."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model

from grafana import queries
from grafana.build import names
from grafana.build.ask import AGENT, EVERY_RUN, SERVICE, Matchers
from grafana.build.panels import PROMETHEUS, AnyPanel
from otel_smol import semconv as sc

TAG = "otel_smol"
OVERVIEW, RUN, OPERATIONS = "otel-smol-overview", "otel-smol-run", "otel-smol-ops"
"""The uids. Alerts and links refer to them."""

CHOSEN = ("prometheus", "tempo", "service", "agent", "model")
VARIABLES = "&".join([*(f"${{{name}:queryparam}}" for name in CHOSEN), "${__url_time_range}"])
"""What a link hands on."""

EVERYTHING = ".*"


def dashboard(
    uid: str, title: str, description: str, variables: Sequence[build.QueryVariable | build.TextBoxVariable]
) -> build.Dashboard:
    """An empty dashboard."""
    board = build.Dashboard(title).uid(uid).description(description).tags([TAG]).editable()
    board.tooltip(model.DashboardCursorSync.CROSSHAIR).timezone("browser").time("now-6h", "now").refresh("1m")
    board.timepicker(build.TimePicker().refresh_intervals(["15s", "1m", "5m", "15m", "1h"]))
    others = build.DashboardLink("otel_smol").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
    board.links([others.keep_time(True).include_vars(True).as_dropdown(False)])
    for kind in ("prometheus", "tempo"):
        board.with_variable(_source(kind))
    for variable in variables:
        board.with_variable(variable)
    return board


def add(board: build.Dashboard, panels: Sequence[AnyPanel]) -> model.Dashboard:
    """The finished dashboard."""
    for panel in panels:
        board.with_panel(panel)
    return board.build()


def _source(kind: str) -> build.DatasourceVariable:
    variable = build.DatasourceVariable(kind).label(kind.capitalize()).type(kind)
    current = model.VariableOption(text=kind.capitalize(), value=kind)
    return variable.description(f"The {kind.capitalize()} that has the agents' telemetry.").current(current)


def service() -> build.QueryVariable:
    """Services that ran agents. `job` is `namespace/name` where a namespace is set; the name is what is offered."""
    variable = _chosen("service", "Service", "The agents' service.name.")
    return variable.query(_values(EVERY_RUN, {}, "job")).regex("/(?:.+\\/)?(.+)/")


def agent() -> build.QueryVariable:
    """Agents of the chosen services."""
    variable = _chosen("agent", "Agent", "An agent's name, or its class when it has none.")
    return variable.query(_values(EVERY_RUN, SERVICE, names.label(sc.AGENT_NAME)))


def models(used_by: str) -> build.QueryVariable:
    """Models of the chosen agents, with the panels that go by them."""
    variable = _chosen("model", "Model", f"The model that was asked. {used_by}")
    return variable.query(_values(sc.HISTORY_REPLAYED_TOKENS_METRIC, AGENT, names.label(sc.REQUEST_MODEL)))


def models_handed_on() -> build.QueryVariable:
    """The same for a dashboard that does not go by them: out of sight, so that links keep what was chosen elsewhere."""
    return models("Nothing here goes by it; links hand it on.").hide(model.VariableHide.HIDE_VARIABLE)


def text_box(name: str, label: str, description: str) -> build.TextBoxVariable:
    """A variable that links set, or a user types."""
    return build.TextBoxVariable(name).label(label).description(description).default_value("")


def _chosen(name: str, label: str, description: str) -> build.QueryVariable:
    everything = model.VariableOption(selected=True, text="All", value="$__all")
    variable = build.QueryVariable(name).label(label).description(description).datasource(PROMETHEUS)
    variable.multi(True).include_all(True).all_value(EVERYTHING).current(everything)
    return variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)


def _values(metric: sc.Metric, matchers: Matchers, label: str) -> dict[str, object]:
    query = f"label_values({queries.selector(names.metric(metric), **matchers)}, {label})"
    return {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
