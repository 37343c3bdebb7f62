"""Switching otel_smol on and off."""

from __future__ import annotations

import atexit
import importlib.metadata
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import wrapt
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from otel_smol.config import Config
from otel_smol.guard import forget_warnings, guarded, warn_once

if TYPE_CHECKING:
    from otel_smol.patches import Patches
    from otel_smol.shutdown import Ending

SUPPORTED_SMOLAGENTS = ">=1.20,<2"
"""With other versions we try, after a warning. The tests run with the oldest of these and the newest."""


class SmolagentsInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments every smolagents agent of the process.

    `opentelemetry-instrument` does this by itself; in code it is one line::

        SmolagentsInstrumentor().instrument(tracer_provider=…, meter_provider=…)

    Arguments: `tracer_provider`, `meter_provider`, `logger_provider` (default: the global ones), and every option of
    `otel_smol.config.OPTIONS` by its name. smolagents is patched when the program imports it, and not before:
    `opentelemetry-instrument` starts us in every child interpreter, most of which never do.
    """

    configuration = Config
    """Validates options that come from a declarative configuration file."""

    # `BaseInstrumentor` is a singleton whose `__init__` may run again, so what is on is kept on the class.
    _patches: Patches | None = None
    _ending: Ending | None = None
    _arguments: dict[str, Any] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: the loader would skip us in silence. `SUPPORTED_SMOLAGENTS` is checked when smolagents is imported."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        cls = SmolagentsInstrumentor
        cls._arguments = kwargs
        atexit.register(_leave)  # now: what was registered first comes last, and only the SDK was before us
        if "smolagents" in sys.modules:
            _apply(sys.modules["smolagents"])
        else:
            wrapt.register_post_import_hook(_apply, "smolagents")

    def _uninstrument(self, **kwargs: Any) -> None:
        cls = SmolagentsInstrumentor
        atexit.unregister(_leave)
        cls._arguments = None  # a hook that has not fired yet does nothing when it does
        if cls._ending is not None:
            cls._ending.forget()
            cls._ending = None
        if cls._patches is not None:
            cls._patches.remove()
            cls._patches = None
        forget_warnings()


def _apply(module: Any) -> None:
    """smolagents has been imported."""
    cls = SmolagentsInstrumentor
    if cls._arguments is None or cls._patches is not None:
        return
    with guarded("instrumenting smolagents"):
        _check_version()
        arguments = cls._arguments
        config = Config.load(arguments)
        from otel_smol.patches import Patches  # late: they need much that a process without smolagents does not
        from otel_smol.shutdown import Ending
        from otel_smol.telemetry import Telemetry

        telemetry = Telemetry(
            config,
            arguments.get("tracer_provider"),
            arguments.get("meter_provider"),
            arguments.get("logger_provider"),
        )
        cls._patches = Patches(telemetry, config)
        cls._patches.apply()
        cls._ending = Ending(cls._patches)
        cls._ending.watch()


def _leave() -> None:
    if SmolagentsInstrumentor._ending is not None:
        SmolagentsInstrumentor._ending.leave()


def _check_version() -> None:
    from packaging.specifiers import SpecifierSet

    installed = importlib.metadata.version("smolagents")
    if not SpecifierSet(SUPPORTED_SMOLAGENTS).contains(installed, prereleases=True):
        warn_once(
            "version",
            "otel_smol: smolagents %s is installed, supported are %s. Trying all the same: "
            "what this version lacks is not observed.",
            installed,
            SUPPORTED_SMOLAGENTS,
        )
