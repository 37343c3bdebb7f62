"""What our names are called in Prometheus (`UnderscoreEscapingWithSuffixes`, the default of its OTLP receiver)."""

from __future__ import annotations

from otel_smol import semconv as sc

HISTOGRAM_PARTS = ("_bucket", "_count", "_sum")

TOKEN_TYPE = "gen_ai.token.type"
"""The convention's attribute on `gen_ai.client.token.usage`: `input` or `output`."""

SDK_PROCESSED_SPANS = "otel_sdk_processor_span_processed_total"
"""The Python SDK's own count of the spans it was done with; `error.type` names those it dropped."""

COLLECTOR = (
    "otelcol_exporter_enqueue_failed_metric_points",
    "otelcol_exporter_enqueue_failed_spans",
    "otelcol_exporter_queue_capacity",
    "otelcol_exporter_queue_size",
    "otelcol_exporter_send_failed_metric_points",
    "otelcol_exporter_send_failed_spans",
    "otelcol_exporter_sent_metric_points",
    "otelcol_exporter_sent_spans",
    "otelcol_process_memory_rss",
    "otelcol_process_uptime",
    "otelcol_receiver_accepted_metric_points",
    "otelcol_receiver_accepted_spans",
    "otelcol_receiver_refused_metric_points",
    "otelcol_receiver_refused_spans",
)
"""The collector's own metrics that we ask for, as `collector-config.yaml` has them exposed: no `_total`, no units."""


def label(attribute: str) -> str:
    """An attribute's name as a label."""
    return attribute.replace(".", "_")


def metric(of: sc.Metric | str) -> str:
    """A metric's name; of a histogram without `_bucket`, `_count` or `_sum`."""
    if isinstance(of, str):
        return _named(of, "histogram", sc.CONVENTION_METRICS[of])
    return _named(of.name, of.instrument, of.unit)


def _named(name: str, instrument: str, unit: str) -> str:
    suffix = {"s": "_seconds", "1": "_ratio" if instrument == "gauge" else ""}.get(unit, "")
    return label(name) + suffix + ("_total" if instrument == "counter" else "")


def series() -> frozenset[str]:
    """All series names that the instrumentation sends."""
    plain = {metric(each) for each in sc.METRICS.values() if each.instrument != "histogram"}
    histograms = [metric(each) for each in sc.METRICS.values() if each.instrument == "histogram"]
    histograms += [metric(name) for name in sc.CONVENTION_METRICS]
    return frozenset(plain | {name + part for name in histograms for part in HISTOGRAM_PARTS})


def labels() -> frozenset[str]:
    """All labels that may stand in a query: attributes of our metrics, and what Prometheus adds to every series."""
    ours = {label(attribute) for each in sc.METRICS.values() for attribute in each.attributes}
    convention = {
        label(name) for name in (sc.REQUEST_MODEL, sc.OPERATION_NAME, sc.ERROR_TYPE, sc.TOOL_NAME, TOKEN_TYPE)
    }
    return frozenset(ours | convention | {"job", "instance", "le"})
