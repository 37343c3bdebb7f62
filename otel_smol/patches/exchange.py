"""What the convention wants to know of request and response: parameters, ids, models. No content."""

from __future__ import annotations

from typing import Any

from opentelemetry.util.genai.invocation import InferenceInvocation

from otel_smol import semconv as sc
from otel_smol.provider import public_model_id

_FLOATS = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_new_tokens")


def set_request(invocation: InferenceInvocation, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Request parameters: those of the call, else those that the model adds to each (`model.kwargs`)."""
    own = getattr(model, "kwargs", None)
    parameters = {**kwargs, **(own if isinstance(own, dict) else {})}  # in smolagents the model's own win
    for name in _FLOATS:
        if type(parameters.get(name)) in (int, float):
            setattr(invocation, name, float(parameters[name]))
    for name, value in (
        ("seed", parameters.get("seed")),
        ("top_k", parameters.get("top_k")),
        ("max_tokens", next((parameters[limit] for limit in _LIMITS if parameters.get(limit) is not None), None)),
    ):
        if type(value) is int and abs(value) < sc.INTEGERS:
            setattr(invocation, name, value)
    stops = parameters.get("stop_sequences") or (args[1] if len(args) > 1 else None)
    if isinstance(stops, (list, tuple)) and all(isinstance(stop, str) for stop in stops):
        invocation.stop_sequences = list(stops)
    if parameters.get("response_format") or (len(args) > 2 and args[2]):
        invocation.output_type = "json"


def set_response(invocation: InferenceInvocation, message: Any) -> None:
    """Id, model and reason to finish, from the provider's own answer."""
    raw = getattr(message, "raw", None)
    identity, model = _read(raw, "id"), _read(raw, "model")
    if isinstance(identity, str):
        invocation.response_id = identity
    if isinstance(model, str):
        invocation.response_model_name = public_model_id(model)
    reason = _read(raw, "stopReason") or _read(_first(_read(raw, "choices")), "finish_reason")
    if isinstance(reason, str):
        invocation.finish_reasons = [reason]


def _read(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None
