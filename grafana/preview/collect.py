"""Runs agents against the real stack and asks what the panels ask."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grafana.preview import agents as program
from grafana.preview.charts import BETWEEN
from otel_smol import semconv as sc
from tests.grafana import answers
from tests.grafana.answers import Span, View
from tests.grafana.rig import PATIENCE, Stack, run_spans, stack
from tests.programs import TOOL, environment
from tests.stack.programs import ROOT, wait_for

Json = dict[str, Any]

SECONDS = BETWEEN // 1000
"""From one point in time to the next: the pictures tell of minutes, not of hours."""

SCRIPTS: tuple[list[list[object]], ...] = (
    [["researcher", "code", 24, 1, "slow"]],
    [["researcher", "code", 12, 3, "answer"], ["support_bot", "tool-calling", 4, 3, "answer"]],
    [["editor", "code", 6, 2, "managed"], ["report_writer", "tool-calling", 8, 2, "answer"]],
    [["researcher", "code", 10, 2, "error"], ["support_bot", "tool-calling", 5, 4, "answer"]],
    [["report_writer", "tool-calling", 14, 2, "max_steps"], ["support_bot", "tool-calling", 3, 5, "answer"]],
    [["researcher", "code", 18, 1, "answer"], ["report_writer", "tool-calling", 7, 3, "answer"]],
    [["editor", "code", 6, 3, "managed"], ["support_bot", "tool-calling", 4, 6, "answer"]],
    [["researcher", "code", 16, 3, "answer"], ["support_bot", "tool-calling", 5, 3, "answer"]],
    [["report_writer", "tool-calling", 9, 3, "answer"], ["support_bot", "tool-calling", 4, 4, "answer"]],
)
"""What each process runs, one after the other, two processes at a time."""

SETTINGS = {
    "OTEL_SERVICE_NAME": "agents",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_METRIC_EXPORT_INTERVAL": "1000",
    "OTEL_SMOL_TOKEN_BUDGET": "100000",
    "OTEL_SMOL_CONTEXT_WINDOW": "40000",
    "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true",
}


def collect(folder: Path) -> Json:
    """Everything that the pictures are drawn from."""
    with stack(folder) as running:
        began = time.time()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda wanted: run_agents(running.collector.otlp, wanted), SCRIPTS))
        runs = "sum(smolagents_run_steps_count)"
        wait_for(lambda: running.prometheus.value(runs) == run_spans(running.traces) > 0, "all runs", PATIENCE)
        end = math.ceil(time.time() / SECONDS) * SECONDS
        seconds = math.ceil((end - began) / SECONDS) * SECONDS
        return {"boards": {name: ask(running, name, seconds, end) for name in ("overview", "run", "ops")}}


def run_agents(otlp: str, wanted: list[list[object]]) -> None:
    """One process."""
    command = [str(TOOL), sys.executable, "-m", program.__name__, json.dumps(wanted)]
    settings = environment(otlp, **SETTINGS)
    done = subprocess.run(command, env=settings, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def ask(running: Stack, name: str, seconds: int, end: float) -> Json:
    """A dashboard with what its panels get to draw."""
    board = answers.load(name)
    spans = answers.recorded(running.traces)
    chosen = longest(spans)
    chosen_above = {"run": str(chosen.get(sc.RUN_ID)), "trace": chosen.trace_id}
    if name == "run":
        chosen_above["agent"] = str(chosen.get(sc.AGENT_NAME))
    view = View(seconds, end, chosen_above, SECONDS)
    panels = {str(panel["id"]): ask_panel(running, panel, spans, view) for panel in board["panels"]}
    return {"board": board, "panels": panels, "seconds": seconds, "end": end}


def longest(spans: list[Span]) -> Span:
    """The run with the most steps: the one to look at."""
    return max((span for span in spans if span.get(sc.RUN_STATE)), key=lambda span: int(span.get(sc.RUN_STEPS)))


def ask_panel(running: Stack, panel: Json, spans: list[Span], view: View) -> Json:
    """Tables; dots, where there are exemplars; and a trace's spans."""
    if panel["type"] == "traces":
        return {"spans": trace(spans, view.chosen["trace"])}
    if panel["datasource"]["type"] == "tempo":
        frames = answers.ask_tempo(spans, panel, view)
    else:
        frames = answers.ask_prometheus(running.prometheus, panel, view)
    tables = [{"columns": table.columns, "types": table.types} for table in answers.show(panel, frames)]
    return {"tables": tables, "dots": dots(running, panel, view)}


def dots(running: Stack, panel: Json, view: View) -> list[tuple[float, float]]:
    """Time and value of every exemplar."""
    asked = [target["expr"] for target in panel["targets"] if target.get("exemplar")]
    start = view.end - view.seconds
    found = [
        each
        for expression in asked
        for series in running.prometheus.ask("query_exemplars", query=view.fill(expression), start=start, end=view.end)
        for each in series["exemplars"]
    ]
    return sorted({(float(each["timestamp"]), float(each["value"])) for each in found})


def trace(spans: list[Span], trace_id: str) -> list[Json]:
    """Its spans in the order in which they began, each with its depth in the tree."""
    mine = sorted((span for span in spans if span.trace_id == trace_id), key=lambda span: (span.start, -span.duration))
    found: list[Json] = []
    open_until: list[int] = []
    for span in mine:
        while open_until and open_until[-1] <= span.start:
            open_until.pop()
        found.append({"name": span.name, "start": span.start, "duration": span.duration, "depth": len(open_until)})
        open_until.append(span.start + span.duration)
    return found
