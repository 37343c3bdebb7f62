"""Settings: by argument, by variable, and what cannot be used."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smolagents import CodeAgent

from otel_smol import SmolagentsInstrumentor
from otel_smol.config import MOST, NOT_OPTIONS, OF_THE_TESTS, OPTIONS, Config, Limits, Option
from tests.conftest import Observed, Warnings
from tests.scripted import Script, agent, step_replies

each_option = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)

USABLE: dict[str, list[tuple[Any, Any]]] = {
    "token_budget": [("200000", Limits(200_000)), ("a=5, *=7", Limits(7, {"a": 5})), (" 9 ", Limits(9))],
    "context_window": [("org/model=8,*=16", Limits(16, {"org/model": 8})), ("gpt-4o=1", Limits(None, {"gpt-4o": 1}))],
    "full_input_messages": [("true", True), ("TRUE", True), ("1", True), ("off", False), ("no", False)],
    "agent_name_on_client_metrics": [("yes", True), ("false", False)],
    "flush_on_sigterm": [("0", False), ("on", True)],
    "exit_seconds": [("0", 0.0), ("2.5", 2.5), (" 10 ", 10.0)],
    "quiet_exporters": [("0", False)],
    "mend_forks": [("off", False)],
}
UNUSABLE = {
    "token_budget": [
        "many",
        "0",
        "-5",
        "1.5",
        "a=",
        "a=0",
        "a,b=3",
        "1,",
        "=",
        "=5",
        "5,6",
        "a=1,a=2",
        "*=1,2",
        "9" * 30,
        "1e6",
        "200000.0",
        "99999999999999999",
    ],
    "context_window": ["128k", "gpt=128k", "inf", "٣x"],
    "full_input_messages": ["maybe", "2", "tru"],
    "agent_name_on_client_metrics": ["y"],
    "flush_on_sigterm": ["never"],
    "exit_seconds": ["soon", "-1", "nan", "inf", "5s", "3600"],
    "quiet_exporters": ["quiet"],
    "mend_forks": ["2"],
}
each_usable = pytest.mark.parametrize(
    ("option", "text", "value"), [(o, text, value) for o in OPTIONS for text, value in USABLE[o.name]]
)
each_unusable = pytest.mark.parametrize(("option", "text"), [(o, text) for o in OPTIONS for text in UNUSABLE[o.name]])


def test_every_option_is_a_field_with_its_default() -> None:
    """The table of options and the dataclass say the same."""
    assert {field.name: field.default for field in fields(Config)} == {o.name: o.default for o in OPTIONS}
    assert {o.variable for o in OPTIONS} == {f"OTEL_SMOL_{o.name.upper()}" for o in OPTIONS}
    assert set(USABLE) == set(UNUSABLE) == {o.name for o in OPTIONS}


@each_usable
def test_a_variable_or_the_same_text_as_an_argument(option: Option, text: str, value: Any, warned: Warnings) -> None:
    """A setting means the same wherever it is made; the other settings keep their defaults."""
    expected = Config(**{option.name: value})
    assert Config.load({}, {option.variable: text}) == expected
    assert Config.load({option.name: text}, {}) == expected
    assert Config.load({option.name: value}, {}) == expected
    assert warned.lines == []


@each_unusable
def test_what_cannot_be_used_is_named_once(option: Option, text: str, warned: Warnings) -> None:
    """One warning names the variable, the value and what is used instead: the default."""
    assert Config.load({}, {option.variable: text}) == Config()
    [line] = warned.lines
    instead = "no limit" if option.default == Limits() else str(option.default).lower()
    assert option.variable in line
    assert repr(text) in line
    assert f"Using {instead} instead" in line


@each_option
def test_an_argument_beats_its_variable(option: Option, warned: Warnings) -> None:
    """With both given the argument counts, and the variable is not even looked at."""
    text, value = USABLE[option.name][0]
    assert Config.load({option.name: text}, {option.variable: "unusable"}) == Config(**{option.name: value})
    assert warned.lines == []


@each_option
@pytest.mark.parametrize("nothing", ["", "  "])
def test_an_empty_variable_is_none(option: Option, nothing: str, warned: Warnings) -> None:
    """An empty variable means the default, and so does an argument that is None; nobody is warned."""
    assert Config.load({option.name: None}, {option.variable: nothing}) == Config()
    assert warned.lines == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [(200_000, Limits(200_000)), ({"a": 5, "*": 7}, Limits(7, {"a": 5})), ({"a": 5}, Limits(None, {"a": 5}))],
)
def test_limits_as_python_values(given: Any, expected: Limits, warned: Warnings) -> None:
    """In code a limit may be a number, or a mapping from names to numbers."""
    assert Config.load({"token_budget": given}, {}).token_budget == expected
    assert warned.lines == []


@pytest.mark.parametrize("given", [True, -1, 0, 2.5, [1], {"a": "x"}, {"a": 0}, {}, {1, 2}], ids=repr)
def test_arguments_that_cannot_be_used(given: Any, warned: Warnings) -> None:
    """An argument that makes no sense is named as an argument, and the default stands."""
    assert Config.load({"token_budget": given}, {}) == Config()
    [line] = warned.of("argument token_budget")
    assert "Using no limit instead" in line


@pytest.mark.parametrize("given", [-1.0, float("inf"), float("nan"), 3600.0])
def test_seconds_that_cannot_be_used(given: float, warned: Warnings) -> None:
    """A number of the right type is looked at like a text."""
    assert Config.load({"exit_seconds": given}, {}) == Config()
    assert len(warned.of("argument exit_seconds")) == 1


@pytest.mark.parametrize("name", ["token_budget", "context_window"])
def test_the_rule_for_limits(name: str, warned: Warnings) -> None:
    """The warning says the rule, and the rule is as it says: a whole number in digits, from 1 to 2^53."""
    assert getattr(Config.load({name: f"a=1,b={2**53}"}, {}), name) == Limits(None, {"a": 1, "b": MOST})
    assert warned.lines == []
    for text in ("1e6", "1.5", "200000.0", "99999999999999999", str(2**53 + 1), "0"):
        Config.load({name: text}, {})
        assert "it must be a positive whole number in digits, 2^53 at most, or " in warned.lines.pop()


def test_the_rule_for_seconds(warned: Warnings) -> None:
    """The warning says the rule, and the rule is as it says."""
    assert [Config.load({"exit_seconds": text}, {}).exit_seconds for text in ("0", "3599.9")] == [0, 3599.9]
    assert warned.lines == []
    for text in ("-0.1", "3600"):
        Config.load({"exit_seconds": text}, {})
        assert "it must be a number of seconds, 0 or more and below 3600." in warned.lines.pop()


# --- what is no setting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("token_bugdet", "argument token_bugdet is no setting and does nothing. Did you mean token_budget?"),
        ("tracer_provder", "argument tracer_provder is no setting and does nothing. Did you mean tracer_provider?"),
        ("zzz", "argument zzz is no setting and does nothing."),
        (
            "OTEL_SMOL_TOKEN_BUGDET",
            "OTEL_SMOL_TOKEN_BUGDET is no setting and does nothing. Did you mean OTEL_SMOL_TOKEN_BUDGET?",
        ),
        ("OTEL_SMOL_FORKS", "OTEL_SMOL_FORKS is no setting and does nothing. Did you mean OTEL_SMOL_MEND_FORKS?"),
        ("OTEL_SMOL_ZZZ", "OTEL_SMOL_ZZZ is no setting and does nothing."),
    ],
)
def test_a_misspelt_setting_is_named_once(
    given: str, said: str, observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch, warned: Warnings
) -> None:
    """One warning names it and what is nearest, its value is nobody's business, and the agent runs on."""
    arguments = {} if given.isupper() else {given: "secret"}
    if given.isupper():
        monkeypatch.setenv(given, "secret")
    observed = observe(**arguments)
    for _ in range(2):
        assert agent(CodeAgent, Script(*step_replies(CodeAgent, 1))).run("the task") == "done"
    assert len(observed.runs) == 2
    assert warned.lines == [f"otel_smol: {said}"]


def test_what_others_may_set_is_no_fault(observe: Callable[..., Observed], warned: Warnings) -> None:
    """Neither what OpenTelemetry itself passes to `instrument()`, nor empty ones, nor what Kubernetes makes up."""
    observed = observe(skip_dep_check=True, raise_exception_on_conflict=True, event_logger_provider=None)
    assert agent(CodeAgent, Script(*step_replies(CodeAgent, 1))).run("the task") == "done"
    assert len(observed.runs) == 1
    variables = {
        "OTEL_SMOL_BUDGET": " ",
        "OTEL_SMOL_SERVICE_HOST": "10.0.0.1",
        "OTEL_SMOL_SERVICE_PORT": "4317",
        "OTEL_SMOL_SERVICE_PORT_OTLP": "4317",
        "OTEL_SMOL_PORT": "tcp://10.0.0.1:4317",
        "OTEL_SMOL_COLLECTOR_PORT_4317_TCP_ADDR": "10.0.0.1",
        "OTEL_SERVICE_NAME": "ours",
    }
    assert Config.load({name: object() for name in NOT_OPTIONS}, variables) == Config()
    assert warned.lines == []


def test_variables_of_the_tests_are_no_fault(warned: Warnings) -> None:
    """Whatever of our prefix tests, tools and CI use is a setting, or known to be none."""
    root = Path(__file__).resolve().parent.parent
    sources = [root / ".ci" / "run", *(root / "tests").rglob("*.py"), *(root / "tools").rglob("*.py")]
    text = "\n".join(source.read_text() for source in sources if source != Path(__file__).resolve())
    used = set(re.findall(r"\bOTEL_SMOL_[A-Z_]*[A-Z]\b", text))
    assert used >= OF_THE_TESTS, "one that nobody uses is known"
    assert used - {option.variable for option in OPTIONS} == OF_THE_TESTS
    assert Config.load({}, dict.fromkeys(OF_THE_TESTS, "1")) == Config()
    assert warned.lines == []


@each_unusable
def test_the_agent_runs_with_a_bad_variable(
    option: Option, text: str, observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch, warned: Warnings
) -> None:
    """A bad variable costs one warning for the whole process, and nothing else."""
    monkeypatch.setenv(option.variable, text)
    observed = observe()
    for _ in range(2):
        assert agent(CodeAgent, Script(*step_replies(CodeAgent, 1))).run("the task") == "done"
    assert len(observed.runs) == 2
    assert len(warned.of(option.variable)) == len(warned.lines) == 1


def test_a_new_instrument_reads_its_settings_anew(observe: Callable[..., Observed]) -> None:
    """Settings belong to one `instrument()`; after `uninstrument()` the next ones count, also where there are none."""
    for budget in ({"token_budget": 5}, {}):
        observed = observe(**budget)
        agent(CodeAgent, Script(*step_replies(CodeAgent, 1))).run("the task")
        crossed = observed.total("smolagents.run.budget_exceeded")
        shown = [value for _, value in observed.points("smolagents.run.token_budget")]
        assert (crossed, shown) == ((1, [5]) if budget else (0, []))
        SmolagentsInstrumentor().uninstrument()


# --- limits ----------------------------------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=10).filter(lambda name: name == name.strip() != "*" and "," not in name)
numbers = st.integers(1, 10**12)


@given(st.dictionaries(names, numbers, max_size=4), st.none() | numbers)
def test_limits_are_read_as_they_are_written(by_name: dict[str, int], default: int | None) -> None:
    """Names may hold anything but a comma; each has its own limit, and `*` or nothing stands for all others."""
    items = [f"{name}={number}" for name, number in by_name.items()]
    for star in ("*=", ""):
        text = ",".join([*items, *([f"{star}{default}"] if default else [])])
        if text:
            limits = Limits.parse(text)
            assert limits == Limits(default, by_name)
            assert all(limits.get(name) == number for name, number in by_name.items())
            assert limits.get("an,other") == limits.get(None) == default


@given(st.text("ab*=,01 -.", max_size=12))
def test_limits_are_positive_or_refused(text: str) -> None:
    """Whatever the text: positive whole numbers, or `ValueError`."""
    try:
        limits = Limits.parse(text)
    except ValueError:
        return
    given_numbers = [*limits.by_name.values(), *([limits.default] if limits.default is not None else [])]
    assert given_numbers
    assert all(type(number) is int and number > 0 for number in given_numbers)
    assert len(given_numbers) == len(text.split(",")), "each item counts"
