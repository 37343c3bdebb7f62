"""What Grafana makes of a panel, without Grafana: variables filled in, answers as frames, transformations.

The frames have the shape that Grafana's data sources give them, as their code has it (state of 2026); the
transformations are run by `@grafana/data` itself. Panels are drawn by nobody here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from grafana import traceql
from tests.grafana.rig import Prometheus
from tests.stack.programs import ROOT
from tests.stack.sink import Sink, Value, attributes_of

Json = dict[str, Any]
Frame = dict[str, Any]
HERE = Path(__file__).parent
DASHBOARDS = ROOT / "grafana" / "dashboards"
NODE_FOLDER = ROOT / ".cache" / "grafana-node"


# --- dashboards and variables ----------------------------------------------------------------------------------------


def load(name: str, folder: Path = DASHBOARDS) -> Json:
    """A dashboard of the committed ones: `overview`, `run` or `ops`."""
    found: Json = json.loads((folder / f"otel-smol-{name}.json").read_text())
    return found


def panel(board: Json, id: int) -> Json:
    """A panel by its id."""
    (found,) = (each for each in board["panels"] if each["id"] == id)
    return dict(found)


@dataclass(frozen=True)
class View:
    """A time range, and what is chosen above the panels."""

    seconds: int = 900
    end: float = 0
    chosen: Mapping[str, str] = field(default_factory=dict)
    interval: int = 60

    def at(self, moment: float) -> View:
        return replace(self, end=moment)

    def fill(self, text: str) -> str:
        """Put the variables in, as the data sources do: `All` is `.*`, several values are `(a|b)`."""
        values = {
            "__range": f"{self.seconds}s",
            "__interval": f"{self.interval}s",
            "service": ".*",
            "agent": ".*",
            "model": ".*",
            "run": "",
            "trace": "",
            **self.chosen,
        }
        return re.sub(r"\$(\w+)", lambda match: values[match[1]], text)


# --- Prometheus ------------------------------------------------------------------------------------------------------


def field_of(name: str, type: str, values: Iterable[Any], **more: Any) -> Json:
    return {"name": name, "type": type, "values": list(values), "config": {}, **more}


def number(text: str) -> float:
    return float(text.replace("Inf", "inf"))


def ask_prometheus(prometheus: Prometheus, panel: Json, view: View) -> list[Frame]:
    """The frames of all queries of a panel."""
    tables = sum(target.get("format") == "table" for target in panel["targets"])
    frames: list[Frame] = []
    for target in panel["targets"]:
        expression = view.fill(target["expr"])
        if target.get("instant"):
            answer = prometheus.instant(expression, view.end)
            for each in answer:
                each["values"] = [each["value"]]
        else:
            start = (view.end - view.seconds) // view.interval * view.interval
            answer = prometheus.ask("query_range", query=expression, start=start, end=view.end, step=view.interval)[
                "result"
            ]
        if target.get("format") == "table":
            frames += as_table(target["refId"], answer, "Value" if tables == 1 else f"Value #{target['refId']}")
        elif target.get("format") == "heatmap":
            frames += as_heatmap(target["refId"], answer)
        else:
            frames += as_series(target, answer)
    return frames


def as_table(ref: str, answer: Sequence[Json], value: str) -> list[Frame]:
    """One table: time, the labels in order, the value. Nothing at all when there is no answer."""
    if not answer:
        return []
    labels = sorted({label for each in answer for label in each["metric"]})
    cells = [(each["metric"], moment, text) for each in answer for moment, text in each["values"]]
    fields = [
        field_of("Time", "time", (moment * 1000 for _, moment, _ in cells)),
        *(field_of(label, "string", (metric.get(label, "") for metric, _, _ in cells)) for label in labels),
        field_of(value, "number", (number(text) for _, _, text in cells)),
    ]
    return [{"refId": ref, "fields": fields, "length": len(cells)}]


def as_series(target: Json, answer: Sequence[Json]) -> list[Frame]:
    """A frame for each series, named by the legend."""
    return [
        {
            "refId": target["refId"],
            "fields": [
                field_of("Time", "time", (moment * 1000 for moment, _ in each["values"])),
                field_of(
                    "Value",
                    "number",
                    (number(text) for _, text in each["values"]),
                    labels=each["metric"],
                    config={"displayNameFromDS": legend(target["legendFormat"], each["metric"])},
                ),
            ],
        }
        for each in answer
    ]


def legend(form: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), form)


def as_heatmap(ref: str, answer: Sequence[Json]) -> list[Frame]:
    """One frame: time, and for each bucket, from the lowest, what is in it alone."""
    ordered = sorted(answer, key=lambda each: number(each["metric"]["le"]))
    below: list[float] = []
    fields = [field_of("Time", "time", (moment * 1000 for moment, _ in ordered[0]["values"]))] if ordered else []
    for each in ordered:
        reached = [number(text) for _, text in each["values"]]
        fields.append(
            field_of(
                each["metric"]["le"],
                "number",
                (a - b for a, b in zip(reached, below or [0] * len(reached), strict=True)),
            )
        )
        below = reached
    return [{"refId": ref, "fields": fields}] if ordered else []


# --- Tempo -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A recorded span, as the collector sent it on."""

    trace_id: str
    span_id: str
    name: str
    start: int
    duration: int
    attributes: dict[str, Value]
    resource: dict[str, Value]

    def get(self, attribute: str, scope: str = "span") -> Value:
        return (self.resource if scope == "resource" else self.attributes).get(attribute)


def recorded(sink: Sink) -> list[Span]:
    """Everything that the trace backend was sent."""
    return [
        Span(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.name,
            span.start_time_unix_nano,
            span.end_time_unix_nano - span.start_time_unix_nano,
            attributes_of(span.attributes),
            attributes_of(each.resource.attributes),
        )
        for each in sink.resource_spans
        for scope in each.scope_spans
        for span in scope.spans
    ]


SEARCHES = {str(search): search for search in traceql.SEARCHES.values()}


def ask_tempo(spans: Sequence[Span], panel: Json, view: View) -> list[Frame]:
    """The frames of all searches of a panel."""
    return [frame for target in panel["targets"] for frame in search(spans, target, view)]


def search(spans: Sequence[Span], target: Json, view: View) -> list[Frame]:
    """Answer a search from recorded spans: the latest traces that have such spans, and all such spans of theirs."""
    asked = SEARCHES[target["query"]]
    found = [span for span in spans if all(holds(each, span, view) for each in asked.conditions)]
    latest: dict[str, int] = {}
    for span in found:
        latest[span.trace_id] = max(latest.get(span.trace_id, 0), span.start)
    kept = sorted(latest, key=lambda trace: -latest[trace])[: target["limit"]]
    chosen = [span for trace in kept for span in found if span.trace_id == trace]
    return as_spans(target["refId"], chosen, asked.attributes)


def holds(condition: traceql.Condition, span: Span, view: View) -> bool:
    actual = span.get(condition.attribute, condition.scope)
    if condition.value is None:
        assert condition.operator == "!="
        return actual is not None
    wanted = view.fill(str(condition.value))
    if condition.operator == "=":
        return str(actual) == wanted
    assert condition.operator == "=~", condition
    return actual is not None and re.fullmatch(wanted.strip("()"), str(actual)) is not None


def as_spans(ref: str, spans: Sequence[Span], attributes: Sequence[str], *, as_text: bool = False) -> list[Frame]:
    """The table of spans. `as_text`: all attributes are strings, as in older Grafana and with streaming."""
    present = [name for name in sorted(attributes) if any(span.get(name) is not None for span in spans)]
    fields = [
        field_of("traceIdHidden", "string", (span.trace_id for span in spans)),
        field_of("traceService", "string", (span.resource.get("service.name") for span in spans)),
        field_of("traceName", "string", (span.name for span in spans)),
        field_of("spanID", "string", (span.span_id for span in spans)),
        field_of("time", "time", (span.start // 1_000_000 for span in spans)),
        field_of("name", "string", (span.name for span in spans)),
        *(attribute_field(name, [span.get(name) for span in spans], as_text) for name in present),
        field_of("duration", "number", (span.duration for span in spans), config={"unit": "ns"}),
    ]
    return [{"refId": ref, "name": "Spans", "fields": fields}]


def attribute_field(name: str, values: list[Value], as_text: bool) -> Json:
    if as_text:
        return field_of(name, "string", (None if value is None else str(value) for value in values))
    kind = next(value for value in values if value is not None)
    return field_of(name, "string" if isinstance(kind, str) else "number", values)


# --- Grafana's own code ----------------------------------------------------------------------------------------------


@functools.cache
def node_modules() -> Path:
    """A folder with Grafana's packages, installed once from the lock file. Without node the test is skipped."""
    if shutil.which("npm") is None:
        message = "needs Node 20 and npm: the transformations are run by Grafana's own code"
        if os.environ.get("OTEL_SMOL_REQUIRE_STACK") == "1":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    lock = (HERE / "node" / "package-lock.json").read_bytes()
    folder = NODE_FOLDER.with_name(f"{NODE_FOLDER.name}-{hashlib.sha256(lock).hexdigest()[:12]}")
    if not folder.exists():
        install(folder)
    return folder


def install(folder: Path) -> None:
    """Beside the place first, then moved there whole: several test processes may be at it at once."""
    NODE_FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=NODE_FOLDER.parent) as unfinished:
        made = Path(unfinished) / "made"
        made.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / "node" / name, made / name)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=5"]
        done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        with contextlib.suppress(OSError):  # another one was faster
            made.rename(folder)


@functools.cache
def node() -> subprocess.Popen[str]:
    """`node/answer.cjs`, started once: loading Grafana's packages takes a second. It ends with this process."""
    command = ["node", str(HERE / "node" / "answer.cjs"), str(node_modules())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def ask_node(questions: Json) -> Json:
    """Ask it. What is no number is null, as in Grafana's own answers."""
    process = node()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(questions).replace("NaN", "null").replace("Infinity", "null") + "\n")
    process.stdin.flush()
    answers: Json = json.loads(process.stdout.readline())
    assert "error" not in answers, answers["error"]
    return answers


@dataclass(frozen=True)
class Table:
    """A frame that is ready to be drawn."""

    columns: dict[str, list[Any]]
    types: dict[str, str]

    def rows(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*self.columns.values(), strict=True)]

    def by(self, column: str) -> dict[Any, dict[str, Any]]:
        """The rows by the value of a column that identifies them."""
        found = {row[column]: row for row in self.rows()}
        assert len(found) == len(self.rows()), f"{column} is not unique"
        return found


def transform(chains: Sequence[tuple[list[Frame], list[Json]]]) -> list[list[Table]]:
    """Run chains of transformations."""
    questions = [{"frames": frames, "transformations": chain} for frames, chain in chains]
    answers = ask_node({"transform": questions})["transform"]
    return [
        [
            Table(
                {each["name"]: each["values"] for each in frame["fields"]},
                {each["name"]: each["type"] for each in frame["fields"]},
            )
            for frame in frames
        ]
        for frames in answers
    ]


def show(panel: Json, frames: list[Frame]) -> list[Table]:
    """What a panel gets to draw."""
    if panel.get("transformations"):
        return transform([(frames, panel["transformations"])])[0]
    return [as_it_is(frame["fields"]) for frame in frames]


def as_it_is(fields: Sequence[Json]) -> Table:
    named = {each["config"].get("displayNameFromDS", each["name"]): each for each in fields}
    return Table(
        {name: each["values"] for name, each in named.items()}, {name: each["type"] for name, each in named.items()}
    )


def now() -> View:
    """The last quarter of an hour."""
    return View(end=time.time())
