"""Make `docs/reference.md` from the code: every attribute, metric, variable and command.

    python tools/reference.py [--check]

With `--check` nothing is written; exit code 1 says that the page is stale.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from otel_smol import metrics
from otel_smol import semconv as sc
from otel_smol.cli import COMMANDS, parser_of
from otel_smol.config import OPTIONS, PREFIX, Limits

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"

SPANS = {
    "run": ("`invoke_agent {agent}`", "INTERNAL", "one `agent.run(...)`, until its last item if it is streamed"),
    "plan": ("`plan {agent}`", "INTERNAL", "a planning step"),
    "step": ("`agent_step {agent}`", "INTERNAL", "an action step, or the extra one for a final answer at `max_steps`"),
    "chat": ("`chat {model}`", "CLIENT", "one model call as the agent sees it, with all its retries"),
    "tool": ("`execute_tool {tool}`", "INTERNAL", "a call of a tool, or of a managed agent, whose run is below it"),
}
VARIABLES_OF_OTHERS = (
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "Where to send. Default: `http://localhost:4317` (gRPC)."),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "`grpc` (default of the distro) or `http/protobuf`; both are installed."),
    ("OTEL_SERVICE_NAME", "The name of your program in every backend."),
    (
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        "Content, off by default: `SPAN_ONLY`, `EVENT_ONLY` or `SPAN_AND_EVENT` sends prompts, answers, arguments, "
        "results and the text of exceptions. At most 200,000 characters of an attribute, 100,000 of one text and about "
        "10,000 nested values are captured; what is cut says how much is left out (`… [1,234 more characters]`). "
        "A lower `OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT` cuts further.",
    ),
    (
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS",
        "`otel_smol` switches us off; `smolagents` the two packages of that name.",
    ),
    ("OTEL_SDK_DISABLED", "`true`: nothing is recorded. One line says so."),
    (
        "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED",
        "`true`: the SDK counts what it processes and what it drops. Without it the dashboard's panel Operations / "
        "Dropped by the SDK is empty.",
    ),
)


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            "# Reference",
            "",
            "Made from the code by `make reference`; a test fails when it is stale, and another when something is "
            "emitted that is not here.",
            "",
            *_spans(),
            *_attributes(),
            *_metrics(),
            *_variables(),
            *_commands(),
        ]
    )


def _spans() -> Iterable[str]:
    yield from ("## Spans", "", "| span | kind | what it is |", "| --- | --- | --- |")
    for name, kind, meaning in SPANS.values():
        yield f"| {name} | {kind} | {meaning} |"
    yield ""


def _attributes() -> Iterable[str]:
    yield "## Attributes"
    yield ""
    yield "An attribute is absent where its value is unknown; those in **bold** are on every such span."
    for kind, (name, _, _) in SPANS.items():
        yield from ("", f"### {name}", "", "| attribute | type | meaning |", "| --- | --- | --- |")
        for attribute in sc.ATTRIBUTES.values():
            if kind in attribute.spans:
                shown = f"**`{attribute.name}`**" if attribute.always else f"`{attribute.name}`"
                yield f"| {shown} | {attribute.type} | {attribute.brief} |"
    yield ""


def _metrics() -> Iterable[str]:
    yield from (
        "## Metrics",
        "",
        "| metric | instrument | unit | attributes | meaning |",
        "| --- | --- | --- | --- | --- |",
    )
    for metric in sc.METRICS.values():
        names = ", ".join(f"`{name}`" for name in metric.attributes)
        yield f"| `{metric.name}` | {metric.instrument} | `{metric.unit}` | {names} | {metric.brief} |"
    yield from (
        "",
        f"On metrics, `{sc.STEP_NUMBER}` {sc.LAST_STEP_NUMBER} means {sc.LAST_STEP_NUMBER} and later, and "
        f"`{sc.OVERFLOW}` stands for the names beyond a cap ({metrics.AGENTS} agents, {metrics.MODELS} models, "
        f"{metrics.TOOLS} tools, {metrics.ERROR_TYPES} error types, {metrics.SERVERS} servers, first come). Beyond "
        f"its cap a server has `{sc.SERVER_ADDRESS}` `{sc.OVERFLOW}` and `{sc.SERVER_PORT}` 0. Spans keep all names "
        "but those of error types. No metric has a run, trace or conversation id.",
        "",
        "From `opentelemetry-util-genai`, with the convention's buckets: "
        + ", ".join(f"`{name}` (`{unit}`)" for name, unit in sc.CONVENTION_METRICS.items())
        + ".",
        "",
        "Buckets of the histograms:",
        "",
        "| metric | boundaries |",
        "| --- | --- |",
    )
    for metric in sc.METRICS.values():
        if metric.buckets:
            yield f"| `{metric.name}` | {', '.join(map(_exact, metric.buckets))} |"
    yield ""


def _exact(bound: float) -> str:
    """To be copied: 1048576, and not 1.04858e+06."""
    return str(int(bound) if bound == int(bound) else bound)


def _variables() -> Iterable[str]:
    yield from (
        "## Variables",
        "",
        "Each is an argument of `SmolagentsInstrumentor().instrument(...)` as well, and the argument wins. A value "
        "that cannot be used gets one warning, and the default stands; an argument or a variable that begins with "
        f"`{PREFIX}` and is not known gets one, too. In code a limit may also be a number or a mapping: "
        '`token_budget={"researcher": 500_000, "*": 200_000}`. Names hold no comma, and `*` stands for all others.',
        "",
        "| variable | argument | value | default | meaning |",
        "| --- | --- | --- | --- | --- |",
    )
    for option in OPTIONS:
        default = "none" if isinstance(option.default, Limits) else f"`{str(option.default).lower()}`"
        yield f"| `{option.variable}` | `{option.name}` | {option.form} | {default} | {option.brief} |"
    yield from ("", "Of OpenTelemetry's own, those that matter most:", "", "| variable | meaning |", "| --- | --- |")
    for name, meaning in VARIABLES_OF_OTHERS:
        yield f"| `{name}` | {meaning} |"
    yield ""


def _commands() -> Iterable[str]:
    yield from ("## Commands", "")
    for name in COMMANDS:
        yield from (f"### `otel-smol {name}`", "", "```", parser_of(name).format_help().strip(), "```", "")


def main() -> int:
    """Write the page, or say whether it is stale."""
    os.environ["COLUMNS"] = "100"  # argparse wraps its help at the terminal's width
    made = page()
    if "--check" in sys.argv[1:]:
        stale = not PAGE.exists() or PAGE.read_text() != made
        print("docs/reference.md is stale: run `make reference`" if stale else "docs/reference.md is up to date")
        return int(stale)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
