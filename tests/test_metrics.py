"""Metrics: right, bounded, there before the first value, independent of sampling; errors and turns; names."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import StatusCode
from smolagents import CodeAgent, Tool, ToolCallingAgent
from smolagents.memory import ActionStep, ToolCall
from smolagents.monitoring import Timing, TokenUsage

from otel_smol import conversation
from otel_smol import semconv as sc
from otel_smol.metrics import AGENTS, MODELS, SERVERS, TOOLS, Cap
from tests.conftest import Observed, Warnings, attributes
from tests.rules import check_all
from tests.scripted import (
    FINAL_CALL,
    FINAL_CODE,
    Cell,
    RawModel,
    Reply,
    Script,
    ScriptedModel,
    Truth,
    agent,
    characters,
    code,
    each_class,
    each_form,
    make_tool,
    managed_call,
    raised,
    step_replies,
)


def quick_run(name: str | None = None, steps: int = 1, model: str | None = "scripted", **kwargs: Any) -> Script:
    """A run of a ToolCallingAgent, which is quick to make."""
    script = Script(*step_replies(ToolCallingAgent, steps), truth=kwargs.pop("truth", None))
    kwargs.setdefault("model", ScriptedModel(script, model))
    agent(ToolCallingAgent, script, name=name, max_steps=steps + 1, **kwargs).run("the task")
    return script


def by_agent(observed: Observed, name: str) -> dict[str, float]:
    """The sum of a metric's series per agent."""
    agents = {point[sc.AGENT_NAME] for point, _ in observed.points(name)}
    return {agent: observed.total(name, gen_ai__agent__name=agent) for agent in agents}


def all_points(observed: Observed) -> list[tuple[str, dict[str, Any], Any]]:
    """Every point of every metric: its name, its attributes, itself."""
    return [(m.name, dict(p.attributes or {}), p) for m in observed.metrics() for p in m.data.data_points]


def values_of(observed: Observed, *attributes: str) -> set[Any]:
    """All values that these attributes (or all) have on any metric."""
    points = all_points(observed)
    return {value for _, values, _ in points for key, value in values.items() if not attributes or key in attributes}


def counters(observed: Observed, counted: bool) -> set[tuple[str, frozenset[Any]]]:
    """The series of our counters that have counted something, or nothing yet."""
    return {
        (name, frozenset(values.items()))
        for name, values, point in all_points(observed)
        if name in sc.METRICS and sc.METRICS[name].instrument == "counter" and bool(point.value) == counted
    }


# --- H: buckets, series, sampling ------------------------------------------------------------------------------------


def quantile(point: Any, share: float) -> tuple[float, float]:
    """The bucket that a quantile of a histogram lies in."""
    bounds = [0.0, *point.explicit_bounds, float("inf")]
    seen = 0
    for i, count in enumerate(point.bucket_counts):
        seen += count
        if seen >= share * point.count:
            return bounds[i], bounds[i + 1]
    raise AssertionError(point)


def test_buckets_reach_into_the_millions(observed: Observed) -> None:
    """P62: runs of 12 thousand, 300 thousand and 2 million tokens: each token histogram has room for them, and their
    95th percentile is not the 10,000 of the SDK's default buckets."""
    for tokens in (12_000, 300_000, 2_000_000):
        script = Script(*step_replies(ToolCallingAgent, 2), usage=lambda *_: TokenUsage(tokens // 2, 1))  # noqa: B023
        agent(ToolCallingAgent, script, name="same").run("the task")
    bounds = {
        metric.name: metric.data.data_points[0].explicit_bounds
        for metric in observed.metrics()
        if metric.unit == "{token}" and type(metric.data).__name__ == "Histogram"
    }
    assert bounds.keys() == {
        "smolagents.run.input_tokens",
        "smolagents.run.output_tokens",
        "smolagents.step.new_tokens",
        "gen_ai.client.token.usage",
    }
    assert all(max(of_one) > 1_000_000 for of_one in bounds.values())
    [(_, point)] = observed.points("smolagents.run.input_tokens")
    low, high = quantile(point, 0.95)
    assert low < 2_000_000 <= high
    assert high <= 2 * low


def three_agents(runs: int) -> list[Any]:
    """Two agents, one without a name, and one with a managed agent; replies for this many runs of two steps."""
    two_steps = step_replies(ToolCallingAgent, 2) * runs
    worker = agent(ToolCallingAgent, Script(*[FINAL_CALL] * runs), name="worker", description="works")
    asks = [managed_call(ToolCallingAgent, "worker"), FINAL_CALL] * runs
    return [
        agent(ToolCallingAgent, Script(*two_steps), name="first"),
        agent(ToolCallingAgent, Script(*two_steps)),
        agent(ToolCallingAgent, Script(*asks), name="boss", managed_agents=[worker]),
    ]


def test_series_do_not_grow_with_the_runs(observed: Observed) -> None:
    """P65: 500 runs of 3 agents make as many series as 5 do, and no value on any of them comes from a single run."""
    agents = three_agents(167)
    series = []
    for i in range(167):
        for subject in agents:
            subject.run(f"task {i}")
        if i in (1, 166):
            series.append(observed.series())
    assert len(observed.runs) == 167 * 4
    assert series[0] == series[1]
    ids = {attributes(span)[sc.RUN_ID] for span in observed.runs} | {
        format(span.context.trace_id, "032x") for span in observed.runs if span.context
    }
    texts = set(map(str, values_of(observed)))
    assert not ids & texts
    assert not any(text.startswith("task ") for text in texts)


def test_step_numbers_end_at_33(observed: Observed) -> None:
    """P65: on metrics step 33 stands for itself and all later ones; on spans the number goes on."""
    quick_run(steps=36)
    calls = {point[sc.STEP_NUMBER]: value for point, value in observed.points("smolagents.step.calls")}
    assert calls == {**dict.fromkeys(range(1, 33), 1), 33: 4}
    assert [attributes(span)[sc.STEP_NUMBER] for span in observed.steps] == list(range(1, 37))


def test_caps_on_agents_and_models(observed: Observed, warned: Warnings) -> None:
    """P65: the 33rd agent and the 17th model share the series `_OTHER`, on every metric; spans keep their names, sums
    stay true, and each cap is said once."""
    truth = Truth()
    for i in range(AGENTS + 2):
        quick_run(f"agent_{i}", model=f"model_{i}", truth=truth)
    agents, models = values_of(observed, sc.AGENT_NAME), values_of(observed, sc.REQUEST_MODEL)
    assert agents == {*(f"agent_{i}" for i in range(AGENTS)), sc.OVERFLOW}
    assert models == {*(f"model_{i}" for i in range(MODELS)), sc.OVERFLOW}
    assert {attributes(span)[sc.AGENT_NAME] for span in observed.runs} == {f"agent_{i}" for i in range(AGENTS + 2)}
    assert {attributes(span)[sc.REQUEST_MODEL] for span in observed.chats} == {f"model_{i}" for i in range(AGENTS + 2)}
    check_all(observed, truth)
    assert observed.total("smolagents.run.steps", gen_ai__agent__name=sc.OVERFLOW) == 2
    assert len(warned.of("more than 32 agents")) == len(warned.of("more than 16 models")) == 1
    assert len(warned.lines) == 2


def test_caps_on_servers(observed: Observed, warned: Warnings) -> None:
    """P65: the 17th server shares one series with all later ones; spans keep its address."""
    for i in range(SERVERS + 2):
        script = Script(*step_replies(CodeAgent, 1))
        model = ScriptedModel(script)
        model.api_base = f"http://host-{i}.example.org:{8000 + i}/v1"
        agent(CodeAgent, script, model=model).run("the task")
    hosts = [f"host-{i}.example.org" for i in range(SERVERS + 2)]
    assert values_of(observed, sc.SERVER_ADDRESS) == {*hosts[:SERVERS], sc.OVERFLOW}
    assert values_of(observed, sc.SERVER_PORT) == {*(8000 + i for i in range(SERVERS)), 0}
    assert [attributes(span)[sc.SERVER_ADDRESS] for span in observed.chats] == hosts
    assert len(warned.of("more than 16 servers")) == len(warned.lines) == 1


def test_a_cap_says_what_it_does_to_spans(warned: Warnings) -> None:
    """A class of exception beyond the cap is `_OTHER` on spans as well; any other name stays on them."""
    for cap in (Cap("things", 1), Cap("errors", 1, on_spans=True)):
        assert [cap(name) for name in "aba"] == ["a", sc.OVERFLOW, "a"]
    assert len(warned.of("more than 1 things: further ones are called _OTHER on metrics; spans keep their names")) == 1
    assert len(warned.of("more than 1 errors: further ones are called _OTHER on metrics, and on spans as well")) == 1


def test_caps_on_tools(observed: Observed, warned: Warnings) -> None:
    """P65: the 49th tool shares the series `_OTHER`; its span keeps its name."""
    tools = [make_tool(Truth(), f"tool_{i}") for i in range(TOOLS + 2)]
    script = Script(*([(tool.name, {"n": 1})] for tool in tools), FINAL_CALL)
    agent(ToolCallingAgent, script, tools, max_steps=99).run("the task")
    names = values_of(observed, sc.TOOL_NAME)
    assert names == {*(f"tool_{i}" for i in range(TOOLS)), sc.OVERFLOW}
    assert {attributes(span)[sc.TOOL_NAME] for span in observed.tools} == {
        *(tool.name for tool in tools),
        "final_answer",
    }
    in_history = attributes(observed.chats[-1])[sc.HISTORY_SOURCE_TOKENS["observation"]]
    assert observed.total("smolagents.history.tool.input_tokens") > in_history
    assert len(warned.of("more than 48 tools")) == len(warned.lines) == 1


def test_tool_names_that_a_model_makes_up(observed: Observed) -> None:
    """P65: a tool that the agent does not have is no series: neither one that the model asks for, nor one that stands
    in a memory from elsewhere."""
    made_up = ActionStep(
        1, Timing(0.0, 1.0), tool_calls=[ToolCall("imported", {"n": 1}, "call_1")], observations="from elsewhere " * 20
    )
    script = Script(*([(f"made_up_{i}", {"n": 1})] for i in range(5)), *step_replies(ToolCallingAgent, 2))
    subject = agent(ToolCallingAgent, script)
    subject.memory.steps.append(made_up)
    subject.run("the task", reset=False)
    assert values_of(observed, sc.TOOL_NAME) <= {"search", "final_answer", sc.OVERFLOW}
    assert observed.total("smolagents.history.tool.input_tokens", gen_ai__tool__name=sc.OVERFLOW) > 0
    assert "imported" in attributes(observed.chats[0])[sc.HISTORY_TOOL_NAMES]


def test_models_that_a_provider_names(observed: Observed) -> None:
    """P65: what a provider answers as its model's name, new in each answer, makes no series of its own."""
    truth = Truth()
    for i in range(MODELS + 9):
        script = Script(FINAL_CALL, truth=truth)
        model = RawModel(script, SimpleNamespace(model=f"snapshot-{i}", id="id"))
        agent(ToolCallingAgent, script, model=model).run("the task")
    assert len(values_of(observed, sc.RESPONSE_MODEL)) <= MODELS + 1
    assert len({attributes(span)[sc.RESPONSE_MODEL] for span in observed.chats}) == MODELS + 9


def test_errors_that_a_program_makes_up(observed: Observed) -> None:
    """P65: exception classes made at run time do not make series without end."""

    def fail(n: int) -> Any:
        raise type(f"Error{n}", (Exception,), {})(n)

    script = Script(*([("fails", {"n": i})] for i in range(40)), FINAL_CALL)
    agent(ToolCallingAgent, script, [make_tool(Truth(), "fails", does=fail)], max_steps=99).run("the task")
    kinds = values_of(observed, sc.ERROR_TYPE)
    assert len(kinds) < 30


class Caller(Tool):  # type: ignore[misc]
    """Calls what generated code gives it."""

    name, description, output_type = "caller", "Calls a function.", "any"
    inputs = {"function": {"type": "any", "description": "what to call"}}  # noqa: RUF012

    def forward(self, function: Any) -> Any:
        return function()


def test_errors_that_a_model_makes_up(observed: Observed) -> None:
    """P56: the name of an exception's class that generated code defines is the model's word."""
    made_up = "class Confidential(Exception):\n    pass\ndef fail():\n    raise Confidential('no')\ncaller(fail)"
    agent(CodeAgent, Script(code(made_up), FINAL_CODE), tools=[Caller()]).run("the task")
    assert attributes(observed.tools[0])[sc.ERROR_TYPE] == sc.OVERFLOW
    assert sc.OVERFLOW in {point.get(sc.ERROR_TYPE) for point, _ in observed.points("gen_ai.execute_tool.duration")}
    assert "Confidential" not in str([attributes(span) for span in observed.spans]) + str(observed.metrics())


def test_errors_without_a_module(observed: Observed, warned: Warnings) -> None:
    """P88: a class that does not say where it is from has a name all the same."""
    homeless = type("Homeless", (Exception,), {"__module__": None})

    def fail(n: int) -> Any:
        raise homeless(n)

    agent(ToolCallingAgent, Script([("fails", {"n": 1})], FINAL_CALL), [make_tool(Truth(), "fails", does=fail)]).run(
        "x"
    )
    assert "Homeless" in attributes(observed.tools[0])[sc.ERROR_TYPE]
    assert warned.lines == []


@each_class
def test_agents_apart_by_metrics_alone(cls: type, observed: Observed) -> None:
    """P67: two named agents and one without a name on one model: three series with the right sums, in each of our
    metrics; the one without goes by its class."""
    truths = {name: Truth() for name in ("planner", "searcher", None)}
    for name, truth in truths.items():
        agent(cls, Script(*step_replies(cls, 3), truth=truth), name=name).run("the task")
    billed = {name or cls.__name__: truth.input_tokens for name, truth in truths.items()}
    for metric in ("smolagents.run.input_tokens", "smolagents.step.input_tokens", "smolagents.history.input_tokens"):
        assert by_agent(observed, metric) == billed, metric
    for name, values, _ in all_points(observed):
        assert values.get(sc.AGENT_NAME) in billed or not name.startswith("smolagents."), name


@pytest.mark.parametrize("switch", [True, False])
def test_agent_names_on_the_conventions_metrics(switch: bool, observe: Callable[..., Observed]) -> None:
    """P67: `gen_ai.agent.name` on `gen_ai.client.*` only when asked for."""
    observed = observe(agent_name_on_client_metrics=switch)
    for name in ("planner", "searcher"):
        quick_run(name)
    for metric in ("gen_ai.client.token.usage", "gen_ai.client.operation.duration"):
        agents = {point.get(sc.AGENT_NAME) for point, _ in observed.points(metric)}
        assert agents == ({"planner", "searcher"} if switch else {None})


@each_class
@each_form
@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(TraceIdRatioBased(0.1))], ids=["off", "ratio"])
def test_metrics_do_not_depend_on_sampling(
    cls: type, consumed: str, sampler: Sampler, observe: Callable[..., Observed], warned: Warnings
) -> None:
    """P74: whatever the sampler lets through, metric totals are the truth."""
    observed = observe(sampler)
    cell = Cell(cls, consumed)
    truth = Truth()
    for _ in range(5):
        worker = cell.agent(Script(*cell.replies(2), truth=truth), name="worker", description="works")
        script = Script("a plan", managed_call(cls, "worker"), *cell.replies(2), truth=truth)
        cell.run(cell.agent(script, managed_agents=[worker], planning_interval=9))
    for name in ("smolagents.step.input_tokens", "smolagents.history.input_tokens", "smolagents.run.input_tokens"):
        assert observed.total(name) == truth.input_tokens, name
    assert observed.total("smolagents.run.output_tokens") == truth.output_tokens
    assert observed.total("gen_ai.client.token.usage", gen_ai__token__type="input") == truth.input_tokens
    assert observed.total("smolagents.run.steps") == 5 * 5
    assert len(observed.spans) < truth.calls * 3
    assert sampler is not ALWAYS_OFF or observed.spans == []
    assert warned.lines == []


# --- counters from the start, live gauges, exemplars -----------------------------------------------------------------


def watching(observed: Observed, look: Callable[[], Any], script: Script) -> tuple[Tool, list[Any]]:
    """A tool that looks at the metrics while a run goes on, and what it saw."""
    seen: list[Any] = []

    def peek(n: int) -> str:
        seen.append(look())
        return "x" * 400

    return make_tool(script.truth, does=peek), seen


@each_class
@each_form
def test_counters_are_there_before_their_first_value(cls: type, consumed: str, observed: Observed) -> None:
    """Every counter is exported with 0 before it counts, so that a reader sees 0 → n and not a series born at n."""
    cell = Cell(cls, consumed)
    zeros: set[tuple[str, frozenset[Any]]] = set()

    def report(prompt: Any, reply: Any) -> TokenUsage:  # while the call goes on
        zeros.update(counters(observed, counted=False))
        return TokenUsage(100, 7)

    usages = iter([report, report, lambda *_: None, report, report])
    script = Script("a plan", *cell.replies(4), usage=lambda *call: next(usages)(*call))
    cell.run(cell.agent(script, planning_interval=9))
    counted = counters(observed, counted=True)
    assert {name for name, _ in counted} >= {
        "smolagents.step.input_tokens",
        "smolagents.step.calls",
        "smolagents.history.input_tokens",
        "smolagents.history.replayed_tokens",
        "smolagents.history.tool.input_tokens",
        "smolagents.calls.without_usage",
    }
    assert counted <= zeros


@each_class
@each_form
def test_a_budget_is_crossed_while_the_run_goes_on(
    cls: type, consumed: str, observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter goes up at the crossing, once, with the budget's series there before; the run goes on."""
    monkeypatch.setenv("OTEL_SMOL_TOKEN_BUDGET", "boss=250,*=999999")
    observed = observe()
    cell = Cell(cls, consumed)
    script = Script(*cell.replies(6), usage=lambda *_: TokenUsage(100, 1))
    tool, seen = watching(observed, lambda: dict(by_agent(observed, "smolagents.run.budget_exceeded")), script)
    assert cell.run(cell.agent(script, tools=[tool], name="boss")) == "done"
    assert seen == [{"boss": 0}, {"boss": 0}, *[{"boss": 1}] * 3]
    cell.run(cell.agent(Script(*cell.replies(2)), name="other"))
    assert by_agent(observed, "smolagents.run.budget_exceeded") == {"boss": 1, "other": 0}
    assert by_agent(observed, "smolagents.run.token_budget") == {"boss": 250, "other": 999_999}


@each_class
@each_form
def test_managed_agents_count_for_the_budget(cls: type, consumed: str, observe: Callable[..., Observed]) -> None:
    """A budget is crossed by what a managed agent uses, while it still works; agents without a budget cross none."""
    observed = observe(token_budget="boss=250")
    cell = Cell(cls, consumed)

    def usage(*_: Any) -> TokenUsage:
        return TokenUsage(100, 1)

    worker_script = Script(*cell.replies(4), usage=usage)
    tool, seen = watching(observed, lambda: by_agent(observed, "smolagents.run.budget_exceeded"), worker_script)
    worker = cell.agent(worker_script, tools=[tool], name="worker", description="works")
    boss_script = Script(managed_call(cls, "worker"), cell.final, usage=usage)
    cell.run(cell.agent(boss_script, tools=[], managed_agents=[worker], name="boss"))
    assert seen == [{"boss": 0, "worker": 0}, {"boss": 1, "worker": 0}, {"boss": 1, "worker": 0}]
    assert by_agent(observed, "smolagents.run.token_budget") == {"boss": 250}


@each_class
@each_form
def test_gauges_of_the_runs_that_go_on(cls: type, consumed: str, observe: Callable[..., Observed]) -> None:
    """While a run goes on its input, forecast and share of the window are there to alert on; afterwards the agent has
    0 runs and nothing else."""
    observed = observe(context_window=1000)
    cell = Cell(cls, consumed)
    names = (
        "smolagents.active_runs",
        "smolagents.active_run.max_input_tokens",
        "smolagents.active_run.max_forecast_input_tokens",
        "smolagents.active_run.max_context_window_share",
    )

    def look() -> list[float | None]:
        return [next((value for _, value in observed.points(name)), None) for name in names]

    prompts = iter([100, 200, 300, 400, 500])
    script = Script(*cell.replies(5), usage=lambda *_: TokenUsage(next(prompts), 1))
    tool, seen = watching(observed, look, script)
    cell.run(cell.agent(script, tools=[tool], name="boss", max_steps=10))
    whole = sum(range(100, 1001, 100))
    assert [values[0] for values in seen] == [1, 1, 1, 1]
    assert [values[1] for values in seen] == [100, 300, 600, 1000]
    assert [values[2] for values in seen] == [None, None, whole, whole]
    assert [values[3] for values in seen] == [0.1, 0.2, 0.3, 0.4]
    assert look() == [0, None, None, None]


def test_gauges_show_the_most_expensive_run(observed: Observed) -> None:
    """Of two runs of one agent that go on at once the gauge shows the more expensive one."""
    inner_script = Script(FINAL_CALL, usage=lambda *_: TokenUsage(900, 1))
    seen: list[Any] = []

    def run_another(n: int) -> str:
        for tokens in (900, 50):
            script = Script(*step_replies(ToolCallingAgent, 2), usage=lambda *_: TokenUsage(tokens, 1))  # noqa: B023
            tool, looked = watching(
                observed,
                lambda: (
                    by_agent(observed, "smolagents.active_runs"),
                    by_agent(observed, "smolagents.active_run.max_input_tokens"),
                ),
                script,
            )
            agent(ToolCallingAgent, script, [tool], name="same").run("the task")
            seen.extend(looked)
        return "done"

    script = Script(*step_replies(ToolCallingAgent, 2), usage=lambda *_: TokenUsage(100, 1))
    agent(ToolCallingAgent, script, [make_tool(inner_script.truth, does=run_another)], name="same").run("the task")
    assert seen == [({"same": 2}, {"same": 900}), ({"same": 2}, {"same": 100})]


@each_class
@each_form
def test_exemplars_lead_to_the_run(cls: type, consumed: str, observed: Observed) -> None:
    """P83: the exemplars of a run's histograms carry the trace and span of that run, those of a step's its step's."""
    cell = Cell(cls, consumed)
    cell.run(cell.agent(Script(*cell.replies(3)), name="boss"))
    expected = {
        **dict.fromkeys(
            [
                "smolagents.run.input_tokens",
                "smolagents.run.output_tokens",
                "smolagents.run.steps",
                "smolagents.run.overpay",
                "smolagents.run.replay_share",
            ],
            observed.runs,
        ),
        "smolagents.step.duration": observed.steps,
    }
    exported = {metric.name: metric for metric in observed.metrics()}  # once: reading takes exemplars away
    for name, spans in expected.items():
        ids = {(span.context.trace_id, span.context.span_id) for span in spans if span.context}
        found = [exemplar for point in exported[name].data.data_points for exemplar in point.exemplars]
        assert found, name
        assert {(exemplar.trace_id, exemplar.span_id) for exemplar in found} <= ids, name


# --- what the provider cached ----------------------------------------------------------------------------------------


class CachingModel(RawModel):
    """Says how much of each prompt it read from its cache, in OpenAI's words; None if it does not say."""

    def __init__(self, script: Script, cached: list[int | None]) -> None:
        super().__init__(script, None)
        self.cached = iter(cached)

    def generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        cached = next(self.cached)
        details = None if cached is None else SimpleNamespace(cached_tokens=cached)
        usage = SimpleNamespace(
            prompt_tokens=characters(messages) // 4, completion_tokens=5, prompt_tokens_details=details
        )
        self.raw = SimpleNamespace(usage=usage)
        return super().generate(messages, *args, **kwargs)


@pytest.mark.parametrize(
    ("told", "counted"),
    [([0, 300, 450], [750]), ([0, 0, 0], [0]), ([None, 300, None], [300]), ([None, None, None], [])],
    ids=["told", "none", "once", "not told"],
)
def test_cached_tokens(told: list[int | None], counted: list[int], observe: Callable[..., Observed]) -> None:
    """The sum over the calls that say it, as on their spans; 0 only if the provider says 0, and else no series."""
    observed = observe()
    script = Script(*step_replies(CodeAgent, 3))
    agent(CodeAgent, script, model=CachingModel(script, told), name="helper").run("the task")
    points = observed.points(sc.HISTORY_CACHED_TOKENS_METRIC.name)
    assert [value for _, value in points] == counted
    assert all(point == {sc.AGENT_NAME: "helper", sc.REQUEST_MODEL: "scripted"} for point, _ in points)
    on_spans = [attributes(span).get(sc.USAGE_CACHE_READ_TOKENS, 0) for span in observed.chats]
    assert on_spans == [tokens or 0 for tokens in told]
    assert sum(counted) <= observed.total(sc.HISTORY_INPUT_TOKENS_METRIC.name)


# --- K: errors, names, turns -----------------------------------------------------------------------------------------


@each_class
@each_form
def test_errors_that_an_agent_recovers_from(cls: type, consumed: str, observed: Observed) -> None:
    """P88: step 2 cannot be parsed, the tool of step 3 fails, step 4 answers: the steps carry the errors, the run is
    not failed and counts two; the errors' text, sent again, is history of the source `error`."""

    def fail(n: int) -> Any:
        raise ValueError(f"nothing for {n}")

    cell = Cell(cls, consumed)
    script = Script(cell.replies(2)[0], "neither code nor call", cell.replies(2, "fails")[0], cell.final)
    tools = [make_tool(script.truth), make_tool(script.truth, "fails", does=fail)]
    assert cell.run(cell.agent(script, tools=tools)) == "done"
    check_all(observed, script.truth)
    [run] = observed.runs
    assert run.status.status_code is not StatusCode.ERROR
    assert (observed.run[sc.RUN_STATE], observed.run[sc.RUN_RECOVERED_ERRORS]) == ("success", 2)
    kinds = [attributes(span).get(sc.ERROR_TYPE, "").rpartition(".")[2] for span in observed.steps]
    failed = "AgentExecutionError" if cls is CodeAgent else "AgentToolExecutionError"
    assert kinds == ["", "AgentParsingError", failed, ""]
    errors = [span.status.status_code is StatusCode.ERROR for span in observed.steps]
    assert errors == [False, True, True, False]
    [tool] = [span for span in observed.tools if attributes(span)[sc.TOOL_NAME] == "fails"]
    assert attributes(tool)[sc.ERROR_TYPE] == "ValueError"
    shown = [sc.HISTORY_SOURCE_TOKENS["error"] in attributes(span) for span in observed.chats]
    assert shown == [False, False, True, True]
    durations = [
        point.get(sc.ERROR_TYPE, "").rpartition(".")[2] for point, _ in observed.points("smolagents.step.duration")
    ]
    assert sorted(durations) == sorted(["", "AgentParsingError", failed])


@each_class
@each_form
def test_an_error_that_ends_the_run(cls: type, consumed: str, observed: Observed) -> None:
    """P88: a model that cannot be reached fails its call, its step and the run; none of it counts as recovered."""
    cell = Cell(cls, consumed)
    script = Script(cell.replies(2)[0], ConnectionError("no model"))
    raised(lambda: cell.run(cell.agent(script)))
    for span in (observed.runs[0], observed.steps[1], observed.chats[1]):
        assert span.status.status_code is StatusCode.ERROR
        assert sc.ERROR_TYPE in attributes(span)
    assert attributes(observed.chats[1])[sc.ERROR_TYPE] == "ConnectionError"
    assert attributes(observed.steps[1])[sc.ERROR_TYPE].endswith("AgentGenerationError")
    assert (observed.run[sc.RUN_STATE], observed.run[sc.RUN_RECOVERED_ERRORS]) == ("error", 0)
    assert observed.total("smolagents.run.steps", smolagents__run__state="error") == 2


NEWER_NAMES = {
    "gen_ai.conversation.compacted",
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.usage.cache_write.input_tokens",
}
"""In the convention of November 2026 (`semantic-conventions-genai`), and not yet in Python's package of its
names, which is frozen at 1.41."""


def test_no_names_of_ours_in_the_conventions_namespace() -> None:
    """P89: every `gen_ai.*` name that we use is in the convention; the rest begins with `smolagents.`, but for the few
    general ones."""
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)} | NEWER_NAMES
    assert {name for name in (*sc.ATTRIBUTES, *sc.METRICS) if name.startswith("gen_ai.")} <= known
    others = {name for name in (*sc.ATTRIBUTES, *sc.METRICS) if not name.startswith(("gen_ai.", "smolagents."))}
    assert others == {"error.type", "server.address", "server.port"}


@each_class
@each_form
def test_nothing_outside_of_the_registry_is_emitted(cls: type, consumed: str, observed: Observed) -> None:
    """P89: the step span has a name of its own and no `gen_ai.operation.name`; made-up ones would collide later."""
    cell = Cell(cls, consumed)
    script = Script("a plan", *cell.replies(3))
    cell.run(cell.agent(script, planning_interval=9))
    check_all(observed, script.truth)
    assert {span.name.split(" ")[0] for span in observed.spans} == {
        *("invoke_agent", "agent_step", "plan", "chat", "execute_tool"),
    }
    assert not any(sc.OPERATION_NAME in attributes(span) for span in observed.steps)


@each_class
@each_form
def test_turns_of_one_conversation(cls: type, consumed: str, observed: Observed) -> None:
    """P90: five turns are five traces with one grouping id, each linked to the one before; another agent has another
    id, a reset begins a new one; the id is on no metric."""
    cell = Cell(cls, consumed)
    first, second = (cell.agent(Script(*cell.replies(2) * 7)) for _ in range(2))
    for turn in range(5):
        cell.run(first, f"turn {turn}", reset=turn == 0)
    cell.run(second, "alone", reset=False)
    cell.run(first, "anew")
    cell.run(first, "and on", reset=False)
    turns, alone, anew, on = observed.runs[:5], *observed.runs[5:]
    groups = [attributes(span)[sc.TURN_GROUP] for span in observed.runs]
    assert len(set(groups[:5])) == 1
    assert len({groups[0], groups[5], groups[6]}) == 3
    assert groups[6] == groups[7]
    assert len({span.context.trace_id for span in observed.runs if span.context}) == 8
    assert [[link.context for link in span.links] for span in turns] == [[], *([span.context] for span in turns[:4])]
    assert (alone.links, anew.links) == ((), ())
    assert [link.context for link in on.links] == [anew.context]
    assert not any(sc.CONVERSATION_ID in attributes(span) for span in observed.spans)
    assert not values_of(observed) & set(groups)


@each_class
@each_form
def test_a_conversation_that_the_application_names(cls: type, consumed: str, observed: Observed) -> None:
    """P90: inside of `conversation(...)` runs and calls carry the application's id, managed agents included; after it
    none does."""
    cell = Cell(cls, consumed)
    worker = cell.agent(Script(*cell.replies(2)), name="worker", description="works")
    script = Script(managed_call(cls, "worker"), cell.final)
    with conversation("thread-7"):
        cell.run(cell.agent(script, managed_agents=[worker]))
    inside = [*observed.runs, *observed.chats]
    assert len(inside) == 2 + 4
    assert {attributes(span).get(sc.CONVERSATION_ID) for span in inside} == {"thread-7"}
    cell.run(cell.agent(Script(cell.final)))
    outside = [span for span in [*observed.runs, *observed.chats] if span not in inside]
    assert len(outside) == 2
    assert not any(sc.CONVERSATION_ID in attributes(span) for span in outside)
    assert not values_of(observed, sc.CONVERSATION_ID)


def test_all_steps_of_a_code_agents_retry(observed: Observed) -> None:
    """P88: an error in generated code is the step's; the tool that it called before did not fail."""
    replies: list[Reply] = [code("print(search(1))\nraise ValueError('after it')"), *step_replies(CodeAgent, 1)]
    agent(CodeAgent, Script(*replies)).run("the task")
    [tool] = [span for span in observed.tools if attributes(span)[sc.TOOL_NAME] == "search"]
    assert tool.status.status_code is StatusCode.UNSET
    assert observed.steps[0].status.status_code is StatusCode.ERROR
    assert observed.run[sc.RUN_RECOVERED_ERRORS] == 1
