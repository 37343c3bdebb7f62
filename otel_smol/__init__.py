"""OpenTelemetry for smolagents: see, per step, what the whole memory of a run costs, while the run goes on.

smolagents sends the whole memory of a run to the model at every step, so a run of n steps with P fixed tokens and s
tokens added per step bills `n*P + s*n*(n-1)/2` input tokens. This package measures that curve, says which step and
tool caused it, forecasts where it ends, and ships all of it over OTLP.

Without a line of code::

    opentelemetry-instrument python agent.py

or with one::

    from otel_smol import SmolagentsInstrumentor

    SmolagentsInstrumentor().instrument()
"""

from otel_smol.context import conversation
from otel_smol.instrumentor import SmolagentsInstrumentor
from otel_smol.version import __version__

__all__ = ["SmolagentsInstrumentor", "__version__", "conversation"]
