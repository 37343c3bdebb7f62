"""Overview: what a run adds up to, what it is made of, and which agents, tools and models it goes to."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import dashboard as model

from grafana.build import board, names, panels, words
from grafana.build import transform as t
from grafana.build.ask import MODEL, STEP, Ask, gauge, highest, largest, of_live_runs
from grafana.build.panels import Place
from otel_smol import semconv as sc

say = words.of("overview")

STATES = {
    "success": panels.GREEN,
    "max_steps": panels.AMBER,
    "error": panels.RED,
    "interrupted": panels.MAGENTA,
    "abandoned": panels.GREY,
}
SOURCES = {
    "system_prompt": panels.AMBER,
    "tool_schema": "#c9852b",
    "task": "#f2cc60",
    "plan": "#6cc5d9",
    "assistant": panels.BLUE,
    "tool_call": "#8ab8ff",
    "observation": panels.MAGENTA,
    "error": panels.RED,
    "image": "#a371f7",
    "other": panels.GREY,
}

STEP_NUMBER = names.label(sc.STEP_NUMBER)
AGENT_NAME = names.label(sc.AGENT_NAME)
MODEL_NAME = names.label(sc.REQUEST_MODEL)
INPUT: dict[str, Any] = {names.TOKEN_TYPE: "input"}
OUTPUT: dict[str, Any] = {names.TOKEN_TYPE: "output"}

THIS_STEP = "this step alone"
SO_FAR = "all steps so far: what the run adds up to"
SENT, CACHED = "sent before", "cached"
EXPECTED = "what one expects: every step like the first"


def build(ask: Ask) -> model.Dashboard:
    """The first screen."""
    start = board.dashboard(
        board.OVERVIEW,
        "smolagents: overview",
        "What agent runs cost in tokens, and why: every step sends the whole memory of the run again.",
        [board.service(), board.agent(), board.models("Only the table Models goes by it.")],
    )
    return board.add(
        start, [curve(ask), *numbers(ask), *parts(ask), *spread(ask), agents(ask), *now(ask), *models(ask)]
    )


def curve(ask: Ask) -> panels.AnyPanel:
    """The panel that the product is for."""
    text = say("Input tokens per step (mean of all runs), and what they add up to")
    chain = [
        t.numbers(STEP_NUMBER),
        t.merge(),
        t.sort(STEP_NUMBER),
        t.running_total("Value #A", SO_FAR),
        t.compute(STEP_NUMBER, "*", "Value #B", EXPECTED),
        t.columns(
            {STEP_NUMBER: "step", "Value #A": THIS_STEP, EXPECTED: EXPECTED, SO_FAR: SO_FAR},
            hidden=("Time", "Value #B"),
        ),
    ]
    later = {"type": "value", "options": {str(sc.LAST_STEP_NUMBER): {"text": f"{sc.LAST_STEP_NUMBER}+", "index": 0}}}
    looks: list[panels.Override] = [
        (THIS_STEP, panels.bar(panels.MAGENTA)),
        (EXPECTED, panels.line(panels.AMBER, dashed=True)),
        (SO_FAR, panels.line(panels.BLUE, width=3, fill=8)),
        ("step", {"unit": "none", "decimals": 0, "mappings": [later]}),
    ]
    targets = [panels.row(ask.curve(), "A"), panels.row(ask.first_step(), "B")]
    return panels.against_step(text, Place(0, 0, 16, 12), targets, "step", chain, looks)


def numbers(ask: Ask) -> list[panels.AnyPanel]:
    """Beside it: the totals."""
    return [
        panels.number(
            say("Input tokens"),
            Place(16, 0, 4, 3),
            [panels.instant(ask.total(sc.HISTORY_INPUT_TOKENS_METRIC))],
        ),
        panels.number(
            say("Output tokens"),
            Place(20, 0, 4, 3),
            [panels.instant(ask.total(sc.RUN_OUTPUT_TOKENS_METRIC, part="_sum"))],
        ),
        panels.number(
            say("× the straight line", panels.TIMES),
            Place(16, 3, 4, 3),
            [panels.instant(ask.against_the_line())],
            warn_above=3,
            decimals=1,
        ),
        panels.number(
            say("Replay share", panels.SHARE),
            Place(20, 3, 4, 3),
            [
                panels.instant(ask.ratio(sc.HISTORY_REPLAYED_TOKENS_METRIC, sc.HISTORY_INPUT_TOKENS_METRIC), "A", SENT),
                panels.instant(ask.ratio(sc.HISTORY_CACHED_TOKENS_METRIC, sc.HISTORY_INPUT_TOKENS_METRIC), "B", CACHED),
            ],
            warn_above=0.5,
            decimals=0,
            overrides=[(CACHED, {"color": {"mode": "fixed", "fixedColor": panels.GREEN}})],
        ),
        panels.number(
            say("Overpay", panels.TIMES),
            Place(16, 6, 4, 3),
            [panels.instant(ask.mean(sc.RUN_OVERPAY_METRIC))],
            warn_above=4,
            decimals=1,
        ),
        panels.number(
            say("Runs", panels.COUNT),
            Place(20, 6, 4, 3),
            [panels.instant(ask.total(sc.RUN_STEPS_METRIC, part="_count"))],
        ),
        panels.number(
            say("Calls without usage", panels.COUNT),
            Place(16, 9, 4, 3),
            [panels.instant(ask.total(sc.CALLS_WITHOUT_USAGE_METRIC))],
            warn_above=1,
        ),
        panels.number(
            say("Runs over budget", panels.COUNT),
            Place(20, 9, 4, 3),
            [
                panels.instant(
                    f"{ask.total(sc.RUN_BUDGET_EXCEEDED_METRIC)} and on () ({highest(sc.TOKEN_BUDGET_METRIC)} > 0)"
                )
            ],
            warn_above=1,
        ),
    ]


def parts(ask: Ask) -> list[panels.AnyPanel]:
    """Where the tokens go, and how runs end."""
    return [
        panels.bars(
            say("Where the input tokens go"),
            Place(0, 12, 8, 8),
            [
                panels.instant(
                    largest(len(sc.SOURCES), ask.total(sc.HISTORY_INPUT_TOKENS_METRIC, sc.HISTORY_SOURCE)),
                    legend="{{" + names.label(sc.HISTORY_SOURCE) + "}}",
                )
            ],
            SOURCES,
        ),
        panels.bars(
            say("Tools whose results cost the most"),
            Place(8, 12, 8, 8),
            [
                panels.instant(
                    largest(10, ask.total(sc.HISTORY_TOOL_INPUT_TOKENS_METRIC, sc.TOOL_NAME)),
                    legend="{{" + names.label(sc.TOOL_NAME) + "}}",
                )
            ],
            colour=panels.MAGENTA,
        ),
        panels.bars(
            say("How runs ended", panels.COUNT),
            Place(16, 12, 8, 8),
            [
                panels.instant(
                    largest(len(sc.RUN_STATES), ask.total(sc.RUN_STEPS_METRIC, sc.RUN_STATE, part="_count")),
                    legend="{{" + names.label(sc.RUN_STATE) + "}}",
                )
            ],
            STATES,
        ),
    ]


def spread(ask: Ask) -> list[panels.AnyPanel]:
    """How runs differ, and when they were."""
    return [
        panels.distribution(
            say("Tokens per run"),
            Place(0, 20, 12, 9),
            ask.total(sc.RUN_INPUT_TOKENS_METRIC, "le", part="_bucket", window=STEP),
        ),
        panels.over_time(
            say("Input tokens over time, by agent"),
            Place(12, 20, 12, 9),
            [
                panels.series(
                    ask.total(sc.HISTORY_INPUT_TOKENS_METRIC, sc.AGENT_NAME, window=STEP),
                    legend="{{" + AGENT_NAME + "}}",
                )
            ],
            stacked_bars=True,
            max_points=200,
        ),
    ]


def agents(ask: Ask) -> panels.AnyPanel:
    """Which agent it is."""
    text = say("Agents")
    wanted = {
        "A": ("runs", ask.total(sc.RUN_STEPS_METRIC, sc.AGENT_NAME, part="_count")),
        "B": ("input tokens", ask.total(sc.HISTORY_INPUT_TOKENS_METRIC, sc.AGENT_NAME)),
        "C": ("tokens per run", ask.mean(sc.RUN_INPUT_TOKENS_METRIC, sc.AGENT_NAME)),
        "D": ("usual run", ask.quantile(0.5, sc.RUN_INPUT_TOKENS_METRIC, sc.AGENT_NAME)),
        "E": ("steps per run", ask.mean(sc.RUN_STEPS_METRIC, sc.AGENT_NAME)),
        "F": (
            "replay share",
            ask.ratio(sc.HISTORY_REPLAYED_TOKENS_METRIC, sc.HISTORY_INPUT_TOKENS_METRIC, sc.AGENT_NAME),
        ),
        "G": (CACHED, ask.ratio(sc.HISTORY_CACHED_TOKENS_METRIC, sc.HISTORY_INPUT_TOKENS_METRIC, sc.AGENT_NAME)),
        "H": ("overpay", ask.mean(sc.RUN_OVERPAY_METRIC, sc.AGENT_NAME)),
    }
    renamed = {AGENT_NAME: "agent", **{f"Value #{ref}": name for ref, (name, _) in wanted.items()}}
    kept = "&".join(f"${{{name}:queryparam}}" for name in ("prometheus", "tempo", "service", "model"))
    to_agent = f"/d/{board.OVERVIEW}?{kept}"
    looks: list[panels.Override] = [
        ("agent", panels.link("Only this agent", to_agent + "&var-agent=${__value.raw}&${__url_time_range}")),
        ("runs", {"unit": panels.COUNT}),
        ("steps per run", {"decimals": 1}),
        ("replay share", {"unit": panels.SHARE, "decimals": 0, "min": 0, "max": 1}),
        (CACHED, {"unit": panels.SHARE, "decimals": 0, "min": 0, "max": 1}),
        ("overpay", {"unit": panels.TIMES, "decimals": 1}),
    ]
    targets = [panels.row(expression, ref) for ref, (_, expression) in wanted.items()]
    chain = [t.merge(), t.columns(renamed, hidden=("Time",)), t.sort("input tokens", descending=True)]
    return panels.rows(text, Place(0, 29, 24, 6), targets, chain, looks)


def now(ask: Ask) -> list[panels.AnyPanel]:
    """What goes on at this moment, and what the limits say."""
    by = sc.AGENT_NAME
    legend = "{{" + AGENT_NAME + "}}"
    return [
        panels.over_time(
            say("Runs that go on: the dearest of each agent"),
            Place(0, 35, 12, 8),
            [
                panels.series(of_live_runs(sc.ACTIVE_INPUT_TOKENS_METRIC, by), "A", f"{legend}: so far"),
                panels.series(of_live_runs(sc.ACTIVE_FORECAST_METRIC, by), "B", f"{legend}: forecast"),
                panels.series(gauge(sc.TOKEN_BUDGET_METRIC, by), "C", f"{legend}: budget"),
            ],
            overrides=[
                ("/: forecast$/", {"custom.lineStyle": {"fill": "dash", "dash": [8, 6]}, "custom.fillOpacity": 0}),
                (
                    "/: budget$/",
                    {
                        "color": {"mode": "fixed", "fixedColor": panels.RED},
                        "custom.fillOpacity": 0,
                        "custom.hideFrom": {"legend": True, "tooltip": False, "viz": False},
                    },
                ),
            ],
        ),
        panels.number(
            say("Fullest context window", panels.SHARE),
            Place(12, 39, 12, 4),
            [panels.instant(highest(sc.ACTIVE_CONTEXT_WINDOW_METRIC))],
            warn_above=0.8,
            decimals=0,
        ),
        panels.number(
            say("A usual run, and a dear one"),
            Place(12, 35, 12, 4),
            [
                panels.instant(ask.quantile(0.5, sc.RUN_INPUT_TOKENS_METRIC), "A", "usual run (median)"),
                panels.instant(ask.quantile(0.95, sc.RUN_INPUT_TOKENS_METRIC), "B", "one in twenty is above"),
            ],
        ),
    ]


def models(ask: Ask) -> list[panels.AnyPanel]:
    """Which model it is, and what goes wrong on the way."""
    usage, duration = "gen_ai.client.token.usage", "gen_ai.client.operation.duration"
    by = sc.REQUEST_MODEL
    wanted = {
        "A": ("calls", ask.total(duration, by, part="_count", scope=MODEL)),
        "B": ("input tokens", ask.total(usage, by, part="_sum", scope=MODEL, **INPUT)),
        "C": ("output tokens", ask.total(usage, by, part="_sum", scope=MODEL, **OUTPUT)),
        "D": ("mean duration", ask.mean(duration, by, scope=MODEL)),
        "E": ("slow: one in twenty", ask.quantile(0.95, duration, by, scope=MODEL)),
    }
    renamed = {MODEL_NAME: "model", **{f"Value #{ref}": name for ref, (name, _) in wanted.items()}}
    looks: list[panels.Override] = [
        ("calls", {"unit": panels.COUNT}),
        ("mean duration", {"unit": panels.SECONDS}),
        ("slow: one in twenty", {"unit": panels.SECONDS}),
    ]
    with_error: dict[str, Any] = {sc.ERROR_TYPE: "!="}
    errors = ask.total(sc.STEP_DURATION_METRIC, sc.ERROR_TYPE, part="_count", **with_error)
    return [
        panels.rows(
            say("Models"),
            Place(0, 43, 12, 6),
            [panels.row(expression, ref) for ref, (_, expression) in wanted.items()],
            [t.merge(), t.columns(renamed, hidden=("Time",)), t.sort("input tokens", descending=True)],
            looks,
        ),
        panels.bars(
            say("Steps that ended in an error", panels.COUNT),
            Place(12, 43, 12, 6),
            [panels.instant(largest(10, errors), legend="{{" + names.label(sc.ERROR_TYPE) + "}}")],
            colour=panels.RED,
        ),
    ]
