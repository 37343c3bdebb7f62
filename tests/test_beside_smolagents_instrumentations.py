"""Beside other instrumentations of smolagents: our numbers do not change, and one warning names who is there (P06)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import smolagents
from opentelemetry import trace
from opentelemetry.context import Context, attach
from smolagents import MultiStepAgent

from otel_smol import SmolagentsInstrumentor
from otel_smol import semconv as sc
from tests.conftest import Observed, Warnings, attributes
from tests.kinds import assigned_functions, delegating, no_model
from tests.rules import check_parts, check_registry, check_truth
from tests.scripted import (
    Cell,
    Reply,
    Script,
    ScriptedModel,
    each_class,
    each_form,
    managed_call,
    memory,
)

OpenInference = pytest.importorskip("openinference.instrumentation.smolagents").SmolagentsInstrumentor
GenAI = pytest.importorskip("opentelemetry.instrumentation.genai.smolagents").SmolagentsInstrumentor

OTHERS = {
    "openinference": ([OpenInference], ["openinference.instrumentation.smolagents"]),
    "genai": ([GenAI], ["opentelemetry.instrumentation.genai.smolagents"]),
    "both": (
        [OpenInference, GenAI],
        ["openinference.instrumentation.smolagents", "opentelemetry.instrumentation.genai.smolagents"],
    ),
}


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back after the test what the others do not: two of them together leave their wrappers behind."""
    classes = [value for value in vars(smolagents).values() if inspect.isclass(value)]
    for cls in (*classes, MultiStepAgent):
        for name in {"run", "_step_stream", "__call__", "generate", "generate_stream"} & vars(cls).keys():
            monkeypatch.setattr(cls, name, vars(cls)[name])


@pytest.fixture(params=OTHERS)
def others(request: pytest.FixtureRequest, restored: None) -> Iterator[Any]:
    """The other instrumentations, off; and how they are named in the warning."""
    instrumentors, names = OTHERS[request.param]
    yield [instrumentor() for instrumentor in instrumentors], names
    for instrumentor in instrumentors:
        if instrumentor().is_instrumented_by_opentelemetry:
            instrumentor().uninstrument()
    if request.param == "both":  # each of the two leaves the context of the other behind, with us and without us
        attach(Context())


def switch_on(observed: Observed, others: list[Any], order: str, provider: Any) -> None:
    """All of them, with ours first or last."""
    if order == "first":
        observed.instrument()
    for other in others:
        other.instrument(tracer_provider=provider)
    if order == "last":
        observed.instrument()


def team(cell: Cell, model: Callable[[Script], Any] = ScriptedModel) -> tuple[Script, Any]:
    """An agent that plans, calls a tool and a managed agent."""
    script = Script()

    def member(replies: list[Reply], **kwargs: Any) -> Any:
        own = Script(*replies, truth=script.truth)
        return cell.agent(own, model=model(own), **kwargs)

    worker = member(cell.replies(2), name="worker", description="works")
    replies = ["a plan", cell.replies(2)[0], managed_call(cell.cls, "worker"), cell.final]
    return script, member(replies, managed_agents=[worker], planning_interval=5)


@pytest.mark.parametrize("order", ["first", "last"])
@each_form
@each_class
def test_our_numbers_are_the_same(cls: type, consumed: str, order: str, others: Any, warned: Warnings) -> None:
    """P06: with one or two others on, before us or after us: totals are the truth, in one trace, with one warning."""
    instrumentors, names = others
    cell = Cell(cls, consumed)
    script, boss = team(cell)
    bare = cell.run(boss), repr(memory(boss))
    observed = Observed()
    switch_on(observed, instrumentors, order, observed.tracer_provider)
    script, boss = team(cell)
    same = (cell.run(boss), repr(memory(boss))) == bare
    assert same
    check_truth(observed, script.truth)
    check_parts(observed, script.truth)
    check_registry(observed)
    counts = [len(spans) for spans in (observed.runs, observed.steps, observed.plans, observed.chats)]
    assert counts == [2, 5, 1, script.truth.calls]
    assert {attributes(run)[sc.RUN_STATE] for run in observed.runs} == {"success"}
    assert len({span.context.trace_id for span in observed.spans if span.context}) == 1
    assert len(observed.recorder.ended) > len(observed.spans)  # the others were there
    [line] = [line for line in warned.lines if line.startswith("otel_smol")]
    assert all(name in line for name in names)
    assert "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=smolagents" in line


@pytest.mark.parametrize("others", ["openinference", "genai"], indirect=True)
@pytest.mark.parametrize("order", ["first", "last"])
@each_class
def test_the_consumers_context(cls: type, order: str, others: Any) -> None:
    """P06, P21: after a streamed run nothing of the others' is current that would not be without us."""
    observed = Observed()
    switch_on(observed, others[0], order, observed.tracer_provider)
    _, boss = team(Cell(cls, "plain"))
    with observed.tracer().start_as_current_span("consumer") as consumer:
        list(boss.run("the task", stream=True))
        assert trace.get_current_span() is consumer


@pytest.mark.parametrize("model", [assigned_functions, delegating, no_model], ids=lambda model: model.__name__)
@each_class
def test_models_that_the_others_do_not_expect(
    cls: type, model: Callable[[Script], Any], others: Any, observed: Observed
) -> None:
    """P06: a model that the others wrap elsewhere, or not at all, is seen by us, once."""
    instrumentors, _ = others
    for instrumentor in instrumentors:
        instrumentor.instrument(tracer_provider=observed.tracer_provider)
    script, boss = team(Cell(cls, "plain"), model)
    assert boss.run("the task") == "done"
    check_truth(observed, script.truth)
    check_parts(observed, script.truth)


@pytest.mark.parametrize("others", ["openinference", "genai"], indirect=True)
@pytest.mark.parametrize(("order", "off"), [("first", "ours"), ("last", "ours"), ("first", "theirs")])
@each_class
def test_switching_off(cls: type, order: str, off: str, others: Any) -> None:
    """P06: when one is off the other goes on, and when both are, nobody sees anything.

    Not so where they came before us and leave before us: then they take our wrapper off, and leave their own on.
    """
    instrumentors, _ = others
    observed, theirs = Observed(), Observed()
    switch_on(observed, instrumentors, order, theirs.tracer_provider)
    first, second = [SmolagentsInstrumentor()], instrumentors
    if off == "theirs":
        first, second = second, first
    cell = Cell(cls, "plain")

    def seen() -> tuple[int, int]:
        before = len(observed.spans), len(theirs.recorder.ended)
        _, boss = team(cell)
        assert boss.run("the task") == "done"
        assert observed.recorder.open == 0
        return len(observed.spans) - before[0], len(theirs.recorder.ended) - before[1]

    assert all(seen())
    for instrumentor in first:
        instrumentor.uninstrument()
    by_us, by_them = seen()
    assert (by_us == 0) == (off == "ours")
    assert (by_them == 0) == (off == "theirs")
    for instrumentor in second:
        instrumentor.uninstrument()
    assert seen() == (0, 0)
