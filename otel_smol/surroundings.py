"""Who else is there: an SDK to send to, another instrumentation of smolagents. Each is said once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace

from otel_smol.guard import guarded, warn_once

if TYPE_CHECKING:
    from otel_smol.telemetry import Telemetry

_looked: list[object] = []


def look_around(telemetry: Telemetry) -> None:
    """Look once per `instrument()`, when something is about to be observed: by then all are there who will be."""
    if _looked and _looked[0] is telemetry:
        return
    _looked[:] = [telemetry]
    with guarded("looking for an SDK"):
        _warn_without_sdk(telemetry)
    with guarded("looking for other instrumentations"):
        _warn_of_others()


def auto_instrumented() -> bool:
    """Whether `opentelemetry-instrument` set the SDK up, and not the program."""
    return "opentelemetry.instrumentation.auto_instrumentation" in sys.modules


def _warn_without_sdk(telemetry: Telemetry) -> None:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        if auto_instrumented():
            warn_once("sdk", "otel_smol: OTEL_SDK_DISABLED is true, so nothing is recorded.")
        return
    providers = (
        telemetry.tracer_provider or trace.get_tracer_provider(),
        telemetry.meter_provider or metrics.get_meter_provider(),
    )
    if all("Proxy" in type(provider).__name__ for provider in providers):  # the API's stand-ins
        warn_once(
            "sdk",
            "otel_smol: no OpenTelemetry SDK is set up, so nothing is recorded. Start the program with "
            "`opentelemetry-instrument` (it needs the packages opentelemetry-distro and opentelemetry-exporter-otlp), "
            "or set a tracer and a meter provider.",
        )


def _warn_of_others() -> None:
    others = sorted(set(_foreign_wrappers()))
    if others:
        warn_once(
            "others",
            "otel_smol: smolagents is instrumented by %s as well: each run gives a second tree of spans. "
            "To switch that one off under opentelemetry-instrument, set "
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=smolagents. The numbers of otel_smol are not affected.",
            ", ".join(others),
        )


def _foreign_wrappers() -> list[str]:
    agents = sys.modules.get("smolagents.agents")
    layer: Any = vars(getattr(agents, "MultiStepAgent", object)).get("run")
    found = []
    for _ in range(20):
        if layer is None or not hasattr(layer, "__wrapped__"):
            break
        wrapper = getattr(layer, "_self_wrapper", layer)
        module = getattr(wrapper, "__module__", None) or type(wrapper).__module__
        if not module.startswith(("otel_smol", "smolagents")):
            found.append(module)
        layer = layer.__wrapped__
    return found
