"""What the user can set: arguments of `instrument()`, else `OTEL_SMOL_*` variables, else the defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from otel_smol.guard import logger

PREFIX = "OTEL_SMOL_"

NOT_OPTIONS = ("tracer_provider", "meter_provider", "logger_provider")
"""What else `instrument()` takes."""

OF_THE_TESTS = frozenset({"OTEL_SMOL_REQUIRE_BACKENDS", "OTEL_SMOL_REQUIRE_STACK", "OTEL_SMOL_STACK_DIR"})
"""Variables with our prefix that are no settings: whoever works on otel_smol sets them."""

OF_KUBERNETES = re.compile(r"_(SERVICE_HOST|(SERVICE_)?PORT)(_|$)")
"""Kubernetes gives every container such variables for each service, and one may be called `otel-smol`."""

MOST = 1 << 53
"""No limit is higher: what a JSON number, and so every dashboard, can still tell from its neighbour."""


@dataclass(frozen=True)
class Limits:
    """A number per name, and one for all others. Written `200000` or `researcher=500000,*=200000`."""

    default: int | None = None
    by_name: Mapping[str, int] = field(default_factory=dict)

    def get(self, name: str | None) -> int | None:
        """The limit for this name, or None where there is none."""
        return self.by_name.get(name or "", self.default)

    @staticmethod
    def parse(given: object) -> Limits:
        """From text in one of the two forms, a number, or a mapping.

        Raises `ValueError` for anything but positive whole numbers, and for two of them under one name.
        """
        text = (
            ",".join(f"{name}={number}" for name, number in given.items()) if isinstance(given, Mapping) else str(given)
        )
        limits: dict[str, int] = {}
        for item in text.split(","):
            name, equals, number = item.rpartition("=")
            name = name.strip() if equals else "*"
            if not name or name in limits or not 0 < int(number) <= MOST:
                raise ValueError(item)
            limits[name] = int(number)
        return Limits(limits.pop("*", None), limits)


@dataclass(frozen=True)
class Option:
    """One setting: argument, variable, meaning."""

    name: str
    variable: str
    form: str
    brief: str
    parse: Callable[[object], Any]

    @property
    def default(self) -> Any:
        """The one of `Config`."""
        return getattr(Config, self.name)


def _boolean(given: object) -> bool:
    value = str(given).strip().lower()
    if value in ("true", "1", "yes", "on"):
        return True
    if value in ("false", "0", "no", "off"):
        return False
    raise ValueError(value)


def _seconds(given: object) -> float:
    value = float(str(given))
    if not 0 <= value < 3600:
        raise ValueError(value)
    return value


NUMBER = "a positive whole number in digits, 2^53 at most"

OPTIONS = (
    Option(
        "token_budget",
        "OTEL_SMOL_TOKEN_BUDGET",
        f"{NUMBER}, or `agent=number,*=number`",
        "Input tokens that one run may use, managed agents included. Nothing is stopped: crossing it counts "
        "`smolagents.run.budget_exceeded` while the run goes on.",
        Limits.parse,
    ),
    Option(
        "context_window",
        "OTEL_SMOL_CONTEXT_WINDOW",
        f"{NUMBER}, or `model=number,*=number`",
        "Tokens that the model can take. With it each step shows `smolagents.context_window.share`; "
        "without it nothing is guessed.",
        Limits.parse,
    ),
    Option(
        "full_input_messages",
        "OTEL_SMOL_FULL_INPUT_MESSAGES",
        "`true` or `false`",
        "With content capture: put all messages of every prompt on its chat span, as the convention has it. "
        "The telemetry then grows with the square of the steps, like the bill.",
        _boolean,
    ),
    Option(
        "agent_name_on_client_metrics",
        "OTEL_SMOL_AGENT_NAME_ON_CLIENT_METRICS",
        "`true` or `false`",
        "Add `gen_ai.agent.name` to the convention's `gen_ai.client.*` metrics, which do not have it by themselves.",
        _boolean,
    ),
    Option(
        "flush_on_sigterm",
        "OTEL_SMOL_FLUSH_ON_SIGTERM",
        "`true` or `false`",
        "Under `opentelemetry-instrument`, and only where the program has no handler of its own: on SIGTERM "
        "close the runs that go on, export what is there (5 seconds at most), then end by the signal as before.",
        _boolean,
    ),
    Option(
        "exit_seconds",
        "OTEL_SMOL_EXIT_SECONDS",
        "a number of seconds, 0 or more and below 3600",
        "Under `opentelemetry-instrument`: how long the end of the program may take to send what is left, all signals "
        "at once. `0` leaves that to the SDK, which took 7 to 20 seconds with a collector that was gone.",
        _seconds,
    ),
    Option(
        "quiet_exporters",
        "OTEL_SMOL_QUIET_EXPORTERS",
        "`true` or `false`",
        "Under `opentelemetry-instrument`: the exporters say the same failure once in ten minutes, and nothing of "
        "retries. `false` shows every line.",
        _boolean,
    ),
    Option(
        "mend_forks",
        "OTEL_SMOL_MEND_FORKS",
        "`true` or `false`",
        "A forked child counts from 0, opens connections of its own, and a `multiprocessing` worker sends what it has "
        "before it ends. `false` leaves all three as the SDK has them.",
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
    exit_seconds: float = 5.0
    quiet_exporters: bool = True
    mend_forks: bool = True

    @staticmethod
    def load(arguments: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Config:
        """An argument beats its variable. What cannot be used is named in one warning, and the default stands.

        So is what nobody knows: a misspelt budget would be none, in silence.
        """
        environment = os.environ if environment is None else environment
        for given, meant in _unknown(arguments, environment):
            logger.warning(
                "otel_smol: %s is no setting and does nothing.%s", given, f" Did you mean {meant}?" if meant else ""
            )
        values = {option.name: _value(option, arguments, environment) for option in OPTIONS}
        return Config(**values)


def _unknown(arguments: Mapping[str, object], environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is given and not known, with what was probably meant."""
    variables = {option.name: option.variable for option in OPTIONS}
    for name, value in arguments.items():
        if value is not None and name not in variables and name not in NOT_OPTIONS:
            yield f"argument {name}", _nearest(name, (*variables, *NOT_OPTIONS))
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or not text.strip() or variable in variables.values():
            continue
        if variable not in OF_THE_TESTS and not OF_KUBERNETES.search(variable):
            nearest = _nearest(variable[len(PREFIX) :].lower(), variables)  # by the prefix all are alike
            yield variable, variables.get(nearest, "")


def _nearest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # late: nobody needs it who spells right

    return "".join(get_close_matches(name, known, 1))


def _value(option: Option, arguments: Mapping[str, object], environment: Mapping[str, str]) -> Any:
    if arguments.get(option.name) is not None:
        given, origin = arguments[option.name], f"argument {option.name}"
    elif environment.get(option.variable, "").strip():
        given, origin = environment[option.variable], option.variable
    else:
        return option.default
    if isinstance(given, (bool, Limits)) and isinstance(given, type(option.default)):
        return given
    try:
        return option.parse(given)
    except ValueError:
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
