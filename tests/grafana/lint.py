"""A linter for dashboards: each rule takes a dashboard and yields what is wrong with it.

python -m tests.grafana.lint grafana/dashboards/*.json
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql

from grafana import queries
from grafana.build import names
from otel_smol import semconv as sc

Json = dict[str, Any]

BUILT_IN = {"__all", "__range", "__interval", "__rate_interval", "__value", "__data", "__url_time_range"}
"""Variables that Grafana has by itself."""

LABELS = names.labels() | {"exporter", "__name__"}
FUNCTIONS_OF_COUNTERS = {"last_over_time", "min_over_time", "increase"}
"""`grafana.queries.total` needs these. Anything else does not give the total of a script that exports once."""


# --- reading ---------------------------------------------------------------------------------------------------------


def targets(board: Json) -> Iterator[tuple[str, Json]]:
    """Every query, with the title of its panel."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target


def expressions(board: Json) -> Iterator[tuple[str, str]]:
    """Every PromQL, with where it stands: in panels, and in variables."""
    yield from ((title, target["expr"]) for title, target in targets(board) if "expr" in target)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]["query"]
            yield f"variable {variable['name']}", query.removeprefix("label_values(").rpartition(", ")[0]


def parsed(expression: str) -> Any:
    """The syntax tree. Variables are filled in; the parser does not know `anchored` yet, so that goes."""
    text = re.sub(r"\$__(range|interval|rate_interval)", "7m", expression.replace(" anchored", ""))
    return promql.parse(re.sub(r"\$\w+", "x", text))


def nodes(tree: Any, inside: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every node, with those around it."""
    yield tree, inside
    for part in ("lhs", "rhs", "expr", "param", "args", "vector_selector"):
        found = getattr(tree, part, None)
        for child in found if isinstance(found, list) else [found]:
            if child is not None:
                yield from nodes(child, (*inside, tree))


def selectors(board: Json) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Every selector of series, with where it stands and the nodes around it."""
    for where, expression in expressions(board):
        for node, inside in nodes(parsed(expression)):
            if isinstance(node, promql.VectorSelector):
                yield where, node, inside


def matchers(selector: Any) -> dict[str, str]:
    """Labels, and what they must be."""
    return {each.name: each.value for each in selector.matchers.matchers}


def strings(value: Any) -> Iterator[str]:
    """All text in a piece of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def variables_in(value: Any) -> set[str]:
    """Names of the variables that are used in a piece of JSON."""
    found = itertools.chain.from_iterable(re.findall(r"\$\{?(\w+)", text) for text in strings(value))
    return {name for name in found if not name.isdigit()}  # `$1` is a group of a regular expression


# --- rules -----------------------------------------------------------------------------------------------------------


def identity(board: Json) -> Iterator[str]:
    """P78: it can be loaded into any Grafana, under a uid that stays."""
    if board.get("id") is not None:
        yield "id is not null"
    if not re.fullmatch(r"otel-smol-\w+", board.get("uid") or ""):
        yield "no uid of ours"
    if "__inputs" in board or "${DS_" in json.dumps(board):
        yield "asks for inputs at import"
    if not 36 <= board["schemaVersion"] <= 42:
        yield f"schema version {board['schemaVersion']}"


def data_sources(board: Json) -> Iterator[str]:
    """P78: every panel, query and variable takes its data source from a variable."""
    right = {"prometheus": "${prometheus}", "tempo": "${tempo}"}
    holders: list[tuple[str, Json]] = [(panel["title"], panel) for panel in board["panels"]]
    holders += targets(board)
    holders += [(each["name"], each) for each in board["templating"]["list"] if each["type"] == "query"]
    for where, holder in holders:
        source = holder.get("datasource") or {}
        if source.get("uid") != right.get(source.get("type", "")) or not source:
            yield f"{where}: data source {source}"
    for name in right:
        if not any(each["type"] == "datasource" and each["name"] == name for each in board["templating"]["list"]):
            yield f"no variable for {name}"


def words(board: Json) -> Iterator[str]:
    """Every panel says what it is, what to do, in which unit, and what is missing when it is empty."""
    for panel in board["panels"]:
        defaults = panel.get("fieldConfig", {}).get("defaults", {})
        if not panel.get("title"):
            yield f"panel {panel['id']}: no title"
        shows, _, advice = panel.get("description", "").partition("**")
        if not advice:
            yield f"{panel.get('title')}: the description does not say what to do"
        if not shows:
            yield f"{panel.get('title')}: the description does not say what it is"
        if not defaults.get("unit"):
            yield f"{panel.get('title')}: no unit"
        nothing = defaults.get("noValue")
        if not nothing:
            yield f"{panel.get('title')}: says nothing when there is no value"
        elif "\n" in nothing or len(nothing) > 15 * panel["gridPos"]["w"]:
            yield f"{panel.get('title')}: says too much when there is no value"


def questions(board: Json) -> Iterator[str]:
    """Every panel asks something, and its queries have names of their own."""
    for panel in board["panels"]:
        refs = [target["refId"] for target in panel.get("targets", [])]
        if not refs:
            yield f"{panel['title']}: no query"
        if len(set(refs)) < len(refs):
            yield f"{panel['title']}: two queries of one name"


def syntax(board: Json) -> Iterator[str]:
    """PromQL parses."""
    yield from (f"{where}: {wrong}: {text}" for where, text in expressions(board) if (wrong := syntax_error(text)))


def syntax_error(expression: str) -> str:
    """What the parser says, or nothing."""
    try:
        parsed(expression)
    except ValueError as error:
        return str(error)
    return ""


def windows(board: Json) -> Iterator[str]:
    """P82: windows are those of the time picker, but for the look back to the value at a window's beginning."""
    for where, expression in expressions(board):
        rest = re.sub(rf"\[{queries.LOOKBACK}\] offset \$__\w+", "", expression)
        for window in re.findall(r"\[([^\]]*)\]", rest):
            if not re.fullmatch(r"\$__(range|interval|rate_interval)", window):
                yield f"{where}: literal window [{window}]"
        for offset in re.findall(r"offset\s+(\S+)", rest):
            yield f"{where}: offset {offset}"


def is_counter(name: str) -> bool:
    """A counter, or a part of a histogram."""
    counters = {each for each in names.COLLECTOR if re.search("_(accepted|refused|sent|failed)_|_failed$", each)}
    return name.endswith(("_total", *names.HISTOGRAM_PARTS)) or name in counters


def totals(board: Json) -> Iterator[str]:
    """A counter is read by `queries.total` only, or its series are counted."""
    for where, expression in expressions(board):
        if re.search(r"\bincrease\s*\([^\]]*\](?! anchored\))", expression):
            yield f"{where}: plain increase()"
        if re.search(r"\bi?rate\s*\(", expression):
            yield f"{where}: rate()"
    for where, selector, inside in selectors(board):
        if where.startswith("variable") or not selector.name or not is_counter(selector.name):
            continue
        counted = any(isinstance(each, promql.AggregateExpr) and str(each.op) == "count" for each in inside)
        called = {each.func.name for each in inside if isinstance(each, promql.Call)}
        if not counted and not called & FUNCTIONS_OF_COUNTERS:
            yield f"{where}: the counter {selector.name} as it is"


def known_names(board: Json) -> Iterator[str]:
    """Every metric and label is one that the instrumentation, the collector or the SDK emits."""
    known = names.series() | {*names.COLLECTOR, names.SDK_PROCESSED_SPANS}
    for where, selector, _ in selectors(board):
        if selector.name and selector.name not in known:
            yield f"{where}: unknown metric {selector.name}"
        for label in matchers(selector):
            if label not in LABELS:
                yield f"{where}: unknown label {label}"
    for where, expression in expressions(board):
        for node, _ in nodes(parsed(expression)):
            grouped = getattr(getattr(node, "modifier", None), "labels", None) or ()
            for label in grouped:
                if label not in LABELS:
                    yield f"{where}: unknown label {label}"
    for where, target in targets(board):
        for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", "")):
            if label not in LABELS:
                yield f"{where}: unknown label {label} in the legend"


def known_attributes(board: Json) -> Iterator[str]:
    """Every span attribute is one that the instrumentation sets."""
    for where, target in targets(board):
        for attribute in re.findall(r"span\.([\w.]+)", target.get("query", "")):
            if attribute not in sc.ATTRIBUTES:
                yield f"{where}: unknown attribute {attribute}"
        for attribute in re.findall(r"resource\.([\w.]+)", target.get("query", "")):
            if attribute != "service.name":
                yield f"{where}: unknown resource attribute {attribute}"
    for panel in board["panels"]:
        for text in strings(panel.get("transformations", [])):
            plain = text.replace("\\", " ")
            for attribute in re.findall(r"(?:smolagents|gen_ai|error)\.[a-z_.]+[a-z]", plain):
                if attribute not in sc.ATTRIBUTES and plain == text:
                    yield f"{panel['title']}: unknown attribute {attribute} in a transformation"


def no_ids(board: Json) -> Iterator[str]:
    """P65: no run, trace or conversation is asked of Prometheus."""
    for where, expression in expressions(board):
        for word in re.findall(r"\w*(?:run_id|trace_id|span_id|conversation_id|instance_id)\w*", expression):
            yield f"{where}: {word}"


def variables(board: Json) -> Iterator[str]:
    """Every variable is used, and every one that is used is there; what is only handed on is out of sight. What is
    chosen above counts in every query."""
    there = {each["name"]: each for each in board["templating"]["list"]}
    rest = {**board, "templating": {"list": [{**each, "name": ""} for each in there.values()]}, "annotations": {}}
    used = variables_in(rest)
    for name in there.keys() - used:
        if there[name]["type"] != "datasource":  # that one is also for the links
            yield f"variable {name} is not used"
    asked = variables_in([panel.get("targets", []) for panel in board["panels"]])
    for name, each in there.items():
        if name not in asked and not each.get("hide") and each["type"] != "datasource":
            yield f"variable {name} is offered, and no panel goes by it"
    for name in used - there.keys() - BUILT_IN:
        yield f"variable {name} is not there"
    for where, selector, inside in selectors(board):
        if selector.name in names.series() and not where.startswith("variable"):
            found = matchers(selector)
            if "x" not in found.get("job", "").split("?")[-1]:
                yield f"{where}: {selector.name} of all services"
            needs = names.label(sc.REQUEST_MODEL if selector.name.startswith("gen_ai_client") else sc.AGENT_NAME)
            if found.get(needs) != "x" and not _counts_processes(inside):
                yield f"{where}: {selector.name} without {needs}"


def _counts_processes(inside: tuple[Any, ...]) -> bool:
    """The one question that is about processes, not about agents."""
    counted = [each for each in inside if isinstance(each, promql.AggregateExpr) and str(each.op) == "count"]
    return any(each.modifier and set(each.modifier.labels) == {"job", "instance"} for each in counted)


def layout(board: Json) -> Iterator[str]:
    """Panels lie within the grid and not upon each other, and have ids of their own."""
    places = [(panel["title"], panel["gridPos"]) for panel in board["panels"]]
    for title, at in places:
        if at["x"] < 0 or at["x"] + at["w"] > 24 or min(at["w"], at["h"]) < 1:
            yield f"{title}: outside of the grid"
    for (title, a), (other, b) in itertools.combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        if not beside and not below:
            yield f"{title} lies upon {other}"
    ids = [panel["id"] for panel in board["panels"]]
    if len(set(ids)) < len(ids):
        yield "two panels of one id"


def links(board: Json) -> Iterator[str]:
    """Links keep the time and what is chosen."""
    for link in board.get("links") or [{}]:
        if not (link.get("keepTime") and link.get("includeVars")):
            yield f"dashboard link {link.get('title')} loses time or variables"
    for text in strings(board["panels"]):
        if text.startswith("/d/"):
            own = {each["name"] for each in board["templating"]["list"]} if f"/{board['uid']}?" in text else set()
            kept = variables_in(text) | set(re.findall(r"[?&]var-(\w+)=", text))
            for lost in sorted({"__url_time_range", "prometheus", "tempo", *own} - kept):
                yield f"link {text} loses {lost}"


RULES: tuple[Callable[[Json], Iterable[str]], ...] = (
    identity,
    data_sources,
    words,
    questions,
    syntax,
    windows,
    totals,
    known_names,
    known_attributes,
    no_ids,
    variables,
    layout,
    links,
)


def lint(board: Json) -> list[str]:
    """All that is wrong."""
    needs_syntax = (windows, totals, known_names, no_ids, variables)
    rules = [rule for rule in RULES if rule not in needs_syntax] if any(syntax(board)) else RULES
    return [f"{rule.__name__}: {each}" for rule in rules for each in rule(board)]


if __name__ == "__main__":
    complaints = [f"{path}: {each}" for path in sys.argv[1:] for each in lint(json.loads(Path(path).read_text()))]
    print("\n".join(complaints) or "nothing to complain about")
    sys.exit(bool(complaints))
