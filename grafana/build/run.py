"""Run: one run, step by step, from its trace."""

from __future__ import annotations

import re

from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import tempo

from grafana import traceql
from grafana.build import board, panels, words
from grafana.build import transform as t
from grafana.build.overview import SOURCES
from grafana.build.panels import Place
from otel_smol import semconv as sc

say = words.of("run")


MATRIX = f"{sc.STEP_NUMBER}\\{sc.RUN_ID}"
"""What `groupingToMatrix` calls its first column."""


def build(spans_per_trace: int = traceql.SPANS_PER_TRACE) -> model.Dashboard:
    """The screen for one run."""
    start = board.dashboard(
        board.RUN,
        "smolagents: run",
        "One run of an agent, step by step: what each step sent, what it consisted of, and which step caused it.",
        [
            board.service(),
            board.agent(),
            # Not part of the search: an attribute that is not there matches nothing, so `.*` would hide such runs.
            board.models_handed_on(),
            board.text_box("run", "Run", "smolagents.run.id. Set by a click on a run in the table."),
            board.text_box("trace", "Trace", "The run's trace. Set together with the run."),
        ],
    )
    shown = [runs(), totals(), steps(), progress(), last_runs(), sources(), causes(), tools(), trace()]
    for panel in shown:
        for target in panel.build().targets or ():
            if isinstance(target, tempo.Dataquery) and target.spss:
                target.spss = spans_per_trace
    return board.add(start, shown)


def runs() -> panels.AnyPanel:
    """To choose from."""
    text = say("Runs: click an id")
    named = {
        "time": "began",
        sc.AGENT_NAME: "agent",
        sc.RUN_ID: "run",
        sc.RUN_STATE: "state",
        sc.RUN_STEPS: "steps",
        sc.RUN_INPUT_TOKENS: "input",
        sc.RUN_TOTAL_INPUT_TOKENS: "with managed",
        sc.RUN_OUTPUT_TOKENS: "output",
        sc.RUN_REPLAY_SHARE: "replay share",
        sc.RUN_OVERPAY: "overpay",
        sc.RUN_CALLS_WITHOUT_USAGE: "no usage",
        sc.REQUEST_MODEL: "model",
        "duration": "duration",
        "traceIdHidden": "traceIdHidden",
    }
    choose = f"/d/{board.RUN}?{board.VARIABLES}" + "&var-run=${__value.raw}&var-trace=${__data.fields.traceIdHidden}"
    looks: list[panels.Override] = [
        ("run", {**panels.link("Show this run", choose), "custom.width": 290}),
        ("traceIdHidden", {"custom.hidden": True}),
        ("steps", {"unit": panels.COUNT}),
        ("no usage", {"unit": panels.COUNT}),
        ("replay share", {"unit": panels.SHARE, "decimals": 0}),
        ("overpay", {"unit": panels.TIMES, "decimals": 1}),
    ]
    chain = [
        t.numbers(*_numeric(traceql.RUN_COLUMNS)),
        t.columns(named, exactly=True),
        t.sort("began", descending=True),
    ]
    return panels.rows(text, Place(0, 0, 24, 8), [panels.spans(traceql.RUNS)], chain, looks)


def totals() -> panels.AnyPanel:
    """The chosen run in one line."""
    text = say("This run")
    named = {
        sc.AGENT_NAME: "agent",
        sc.RUN_STATE: "state",
        sc.RUN_STEPS: "steps",
        sc.RUN_INPUT_TOKENS: "input tokens",
        sc.RUN_TOTAL_INPUT_TOKENS: "with managed",
        sc.RUN_OUTPUT_TOKENS: "output tokens",
        sc.RUN_REPLAY_SHARE: "replay share",
        sc.RUN_OVERPAY: "overpay",
        sc.RUN_CALLS_WITHOUT_USAGE: "no usage",
    }
    looks: list[panels.Override] = [
        ("steps", {"unit": panels.COUNT}),
        ("no usage", {"unit": panels.COUNT}),
        ("replay share", {"unit": panels.SHARE, "decimals": 0}),
        ("overpay", {"unit": panels.TIMES, "decimals": 1}),
    ]
    chain = [t.numbers(*_numeric(traceql.RUN_COLUMNS)), t.columns(named, exactly=True)]
    return panels.number(
        text,
        Place(0, 8, 24, 4),
        [panels.spans(traceql.ONE_RUN)],
        transformations=chain,
        overrides=looks,
        fields="/.*/",
    )


def steps() -> panels.AnyPanel:
    """Its curve."""
    text = say("This run: what each step sent")
    named = {
        sc.STEP_NUMBER: "step",
        sc.STEP_INPUT_TOKENS: "sent",
        sc.STEP_FIXED_TOKENS: "fixed",
        sc.STEP_NEW_TOKENS: "new",
        sc.STEP_REPLAYED_TOKENS: "replayed",
    }
    looks: list[panels.Override] = [
        ("sent", panels.line(panels.BLUE, width=3)),
        ("fixed", panels.line(panels.AMBER)),
        ("new", panels.line(panels.GREEN)),
        ("replayed", panels.line(panels.MAGENTA)),
        ("step", {"unit": "none", "decimals": 0}),
    ]
    return panels.against_step(text, Place(0, 12, 12, 9), [panels.spans(traceql.STEPS)], "step", _by_step(named), looks)


def progress() -> panels.AnyPanel:
    """Where it was going."""
    text = say("This run so far, and where it would end")
    named = {sc.STEP_NUMBER: "step", sc.RUN_INPUT_TOKENS: "so far", sc.FORECAST_INPUT_TOKENS: "forecast"}
    looks: list[panels.Override] = [
        ("so far", panels.line(panels.BLUE, width=3, fill=8)),
        ("forecast", panels.line(panels.GREY, dashed=True)),
        ("step", {"unit": "none", "decimals": 0}),
    ]
    return panels.against_step(
        text, Place(12, 12, 12, 9), [panels.spans(traceql.PROGRESS)], "step", _by_step(named), looks
    )


def last_runs() -> panels.AnyPanel:
    """Whether it is unusual."""
    text = say("This run and the last ten")
    x, value = "step", "this run"
    chain = [
        t.numbers(sc.STEP_NUMBER, sc.STEP_INPUT_TOKENS),
        # of the chosen run: step and tokens
        t.columns({sc.STEP_NUMBER: x, sc.STEP_INPUT_TOKENS: value}, only="B", exactly=True),
        # of the last ten: step, and a column for each run
        t.matrix(sc.STEP_NUMBER, sc.RUN_ID, sc.STEP_INPUT_TOKENS, only="A"),
        t.numbers(MATRIX),  # text in Grafana 11
        t.rename(f"^{re.escape(MATRIX)}$", x),
        t.join(x),
        t.sort(x),
        t.rename("^([0-9a-f]{6})[0-9a-f]{26}$", "$1"),
    ]
    looks: list[panels.Override] = [
        ("/^[0-9a-f]{6}$/", {"custom.lineWidth": 1, "custom.showPoints": "never"}),
        (value, panels.line(panels.BLUE, width=4)),
        (x, {"unit": "none", "decimals": 0}),
    ]
    targets = [panels.spans(traceql.LAST_RUNS, "A"), panels.spans(traceql.STEPS, "B")]
    return panels.against_step(text, Place(0, 21, 12, 9), targets, x, chain, looks)


def sources() -> panels.AnyPanel:
    """What it consisted of."""
    text = say("This run: what each prompt consisted of")
    named = {sc.STEP_NUMBER: "step", **{sc.HISTORY_SOURCE_TOKENS[source]: source for source in sc.SOURCES}}
    looks: list[panels.Override] = [
        (source, {"color": {"mode": "fixed", "fixedColor": colour}}) for source, colour in SOURCES.items()
    ]
    looks.append(("step", {"unit": "none", "decimals": 0}))
    return panels.against_step(
        text,
        Place(12, 21, 12, 9),
        [panels.spans(traceql.SOURCES)],
        "step",
        _by_step(named),
        looks,
        stacked_bars=True,
    )


def causes() -> panels.AnyPanel:
    """Who is to blame."""
    text = say("This run: steps ranked by what they caused")
    # Rows from the last call to the first: how many calls came later is the row's number. What a call sent for the
    # first time (A) was left behind by the step before it, which stands one row further down (B).
    chain = [
        t.numbers(sc.STEP_NUMBER, sc.STEP_NEW_TOKENS),
        t.sort("time", descending=True),
        t.row_number("later"),
        t.compute("later", "-", "1", "sent by", only="B"),
        t.columns({"sent by": "sent by", sc.STEP_NUMBER: "step", sc.STEP_TYPE: "type"}, only="B", exactly=True),
        t.columns({"later": "sent by", sc.STEP_NEW_TOKENS: "left behind"}, only="A", exactly=True),
        t.join("sent by", "inner"),
        t.compute("sent by", "+", "1", "times sent"),
        t.compute("left behind", "*", "times sent", "caused"),
        t.columns({name: name for name in ("step", "type", "left behind", "times sent", "caused")}, exactly=True),
        t.sort("caused", descending=True),
    ]
    targets = [panels.spans(traceql.CAUSES, "A"), panels.spans(traceql.CAUSES, "B")]
    looks: list[panels.Override] = [
        ("step", {"unit": panels.COUNT}),
        ("times sent", {"unit": panels.COUNT}),
        ("caused", {"min": 0, "custom.cellOptions": {"type": "gauge", "mode": "basic"}}),
    ]
    return panels.rows(text, Place(0, 30, 12, 9), targets, chain, looks)


def tools() -> panels.AnyPanel:
    """What its tools returned."""
    text = say("This run: what its tools returned")
    named = {
        "time": "began",
        sc.TOOL_NAME: "tool",
        sc.TOOL_OUTPUT_CHARACTERS: "characters",
        "duration": "duration",
        sc.ERROR_TYPE: "error",
    }
    chain = [
        t.numbers(sc.TOOL_OUTPUT_CHARACTERS),
        t.columns(named, exactly=True),
        t.sort("characters", descending=True),
    ]
    return panels.rows(text, Place(12, 30, 12, 9), [panels.spans(traceql.TOOLS)], chain)


def trace() -> panels.AnyPanel:
    """All of it."""
    text = say("The trace")
    return panels.trace_view(text, Place(0, 39, 24, 16), traceql.TRACE)


def _by_step(named: dict[str, str]) -> list[model.DataTransformerConfig]:
    """Numbers, in the order of the steps, under these names."""
    return [t.numbers(*named), t.columns(named, exactly=True), t.sort("step")]


def _numeric(attributes: tuple[str, ...]) -> list[str]:
    return [name for name in attributes if sc.ATTRIBUTES[name].type in ("int", "double")]
