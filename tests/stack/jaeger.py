"""Jaeger v2 in memory, and its traces as OTLP: the second judge of what the collector sends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .conftest import StartProcess
from .ports import free_ports
from .programs import get, require
from .sink import Value


def configuration(otlp: int, query: int, query_grpc: int, health: int) -> dict[str, Any]:
    return {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query", "healthcheckv2"],
            "pipelines": {
                "traces": {"receivers": ["otlp"], "processors": [], "exporters": ["jaeger_storage_exporter"]}
            },
            "telemetry": {"metrics": {"level": "none"}},
        },
        "extensions": {
            "healthcheckv2": {"use_v2": True, "http": {"endpoint": f"127.0.0.1:{health}"}},
            "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 100_000}}}},
            "jaeger_query": {
                "storage": {"traces": "memory"},
                "http": {"endpoint": f"127.0.0.1:{query}"},
                "grpc": {"endpoint": f"127.0.0.1:{query_grpc}"},
            },
        },
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{otlp}"}}}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
    }


class Jaeger:
    def __init__(self, folder: Path, start: StartProcess) -> None:
        otlp, query, query_grpc, health = free_ports(4)
        self.otlp = f"http://127.0.0.1:{otlp}"
        self.url = f"http://127.0.0.1:{query}"
        config = folder / "jaeger.yaml"
        config.write_text(json.dumps(configuration(otlp, query, query_grpc, health)))
        process = start("jaeger", [require("jaeger"), f"--config={config}"])
        process.wait_until_ready(f"http://127.0.0.1:{health}/status")

    def trace(self, trace_id: bytes) -> dict[str, StoredSpan]:
        """The spans of a trace by their id; none while it is not there."""
        status, body = get(f"{self.url}/api/v3/traces/{trace_id.hex()}")
        return spans_in(json.loads(body)["result"]) if status == 200 else {}


@dataclass(frozen=True)
class StoredSpan:
    name: str
    parent: str
    attributes: dict[str, Value]


def spans_in(otlp_json: Mapping[str, Any]) -> dict[str, StoredSpan]:
    """OTLP as JSON, as Jaeger and Tempo answer and the collector's `file` exporter writes it."""
    return {
        span["spanId"]: StoredSpan(
            span["name"],
            span.get("parentSpanId", ""),
            {each["key"]: value_in(each["value"]) for each in span.get("attributes", [])},
        )
        for resource in otlp_json.get("resourceSpans", [])
        for scope in resource.get("scopeSpans", [])
        for span in scope.get("spans", [])
    }


def value_in(value: Mapping[str, Any]) -> Value:
    """64-bit integers are text in JSON; the key says what they are."""
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "doubleValue":
        return float(content)
    if kind == "arrayValue":
        return [value_in(each) for each in content.get("values", [])]
    return content
