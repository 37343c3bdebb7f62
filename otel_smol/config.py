"""What the user can set: arguments of `instrument()`, else `OTEL_SMOL_*` variables, else the defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from otel_smol.guard import logger

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """A number per name, and one for all others. Written `200000` or `researcher=500000,*=200000`."""

    default: int | None = None
    by_name: Mapping[str, int] = field(default_factory=dict)

    def get(self, name: str | None) -> int | None:
        """The limit for this name, or None where there is none."""
        return self.by_name.get(name or "", self.default)

    @staticmethod
    def parse(text: str) -> Limits:
        """Raises `ValueError` for anything but positive whole numbers in one of the two forms."""
        default, by_name = None, {}
        for item in text.split(","):
            name, _, number = item.rpartition("=")
            value = int(number)
            if value <= 0:
                raise ValueError(number)
            if name.strip() in ("", "*"):
                default = value
            else:
                by_name[name.strip()] = value
        return Limits(default, by_name)


@dataclass(frozen=True)
class Option:
    """One setting: argument, variable, meaning."""

    name: str
    variable: str
    default: Any
    form: str
    brief: str
    parse: Callable[[str], Any]


def _boolean(text: str) -> bool:
    value = text.strip().lower()
    if value in ("true", "1", "yes", "on"):
        return True
    if value in ("false", "0", "no", "off"):
        return False
    raise ValueError(text)


OPTIONS = (
    Option(
        "token_budget",
        "OTEL_SMOL_TOKEN_BUDGET",
        Limits(),
        "a positive number, or `agent=number,*=number`",
        "Input tokens that one run may use, managed agents included. Nothing is stopped: crossing it counts "
        "`smolagents.run.budget_exceeded` while the run goes on.",
        Limits.parse,
    ),
    Option(
        "context_window",
        "OTEL_SMOL_CONTEXT_WINDOW",
        Limits(),
        "a positive number, or `model=number,*=number`",
        "Tokens that the model can take. With it each step shows `smolagents.context_window.share`; "
        "without it nothing is guessed.",
        Limits.parse,
    ),
    Option(
        "full_input_messages",
        "OTEL_SMOL_FULL_INPUT_MESSAGES",
        False,
        "`true` or `false`",
        "With content capture: put all messages of every prompt on its chat span, as the convention has it. "
        "The telemetry then grows with the square of the steps, like the bill.",
        _boolean,
    ),
    Option(
        "agent_name_on_client_metrics",
        "OTEL_SMOL_AGENT_NAME_ON_CLIENT_METRICS",
        False,
        "`true` or `false`",
        "Add `gen_ai.agent.name` to the convention's `gen_ai.client.*` metrics, which do not have it by themselves.",
        _boolean,
    ),
    Option(
        "flush_on_sigterm",
        "OTEL_SMOL_FLUSH_ON_SIGTERM",
        True,
        "`true` or `false`",
        "Under `opentelemetry-instrument`, and only where the program has no handler of its own: on SIGTERM "
        "close the runs that go on, export what is there (5 seconds at most), then end by the signal as before.",
        _boolean,
    ),
)
"""All settings. The reference page is made from this table."""


@dataclass(frozen=True)
class Config:
    """The settings in force. See `OPTIONS` for their meaning."""

    token_budget: Limits = Limits()
    context_window: Limits = Limits()
    full_input_messages: bool = False
    agent_name_on_client_metrics: bool = False
    flush_on_sigterm: bool = True

    @staticmethod
    def load(arguments: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Config:
        """An argument beats its variable. What cannot be used is named in one warning, and the default stands."""
        environment = os.environ if environment is None else environment
        values = {option.name: _value(option, arguments, environment) for option in OPTIONS}
        return Config(**values)


def _value(option: Option, arguments: Mapping[str, object], environment: Mapping[str, str]) -> Any:
    if arguments.get(option.name) is not None:
        given, origin = arguments[option.name], f"argument {option.name}"
    elif environment.get(option.variable, "").strip():
        given, origin = environment[option.variable], option.variable
    else:
        return option.default
    if isinstance(given, type(option.default)):
        return given
    try:
        return option.parse(str(given))
    except (ValueError, TypeError):
        logger.warning(
            "otel_smol: %s=%r cannot be used: it must be %s. Using %s instead.",
            origin,
            given,
            option.form.replace("`", ""),
            _shown(option.default),
        )
        return option.default


def _shown(value: object) -> str:
    return "no limit" if value == Limits() else str(value).lower()
