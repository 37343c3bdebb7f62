"""Every name that otel_smol puts on the wire: attributes, metrics, units, buckets and enum values.

Names that begin with ``gen_ai.`` or ``error.`` are those of OpenTelemetry's GenAI semantic conventions
(``open-telemetry/semantic-conventions-genai``, state of November 2026); everything of our own begins with
``smolagents.``. The reference page (``docs/reference.md``) is made from the two registries below, and a test holds
what is really emitted against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

SpanKind = Literal["run", "step", "plan", "chat", "tool"]
AttributeType = Literal["string", "int", "double", "boolean", "string[]", "int[]"]

RUN: Final = ("run",)
STEP: Final = ("step", "plan")
CHAT: Final = ("chat",)
TOOL: Final = ("tool",)
ALL: Final = ("run", "step", "plan", "chat", "tool")
HISTORY: Final = ("step", "plan", "chat")


@dataclass(frozen=True)
class Attribute:
    """One span attribute: where it stands, of which type it is and what it means."""

    name: str
    type: AttributeType
    spans: tuple[SpanKind, ...]
    brief: str
    always: bool = False
    """Present on every such span, not only where the value is known."""


@dataclass(frozen=True)
class Metric:
    """One metric instrument of ours, or one of the convention's that we see to."""

    name: str
    instrument: Literal["counter", "histogram", "gauge"]
    unit: str
    attributes: tuple[str, ...]
    brief: str
    buckets: tuple[float, ...] = ()


INTEGERS: Final = 1 << 63
"""OTLP carries integers below this, and none below its negative."""

ATTRIBUTES: Final[dict[str, Attribute]] = {}
METRICS: Final[dict[str, Metric]] = {}


def _attribute(name: str, type: AttributeType, spans: tuple[SpanKind, ...], brief: str, *, always: bool = False) -> str:
    ATTRIBUTES[name] = Attribute(name, type, spans, brief, always)
    return name


def _metric(
    name: str,
    instrument: Literal["counter", "histogram", "gauge"],
    unit: str,
    attributes: tuple[str, ...],
    brief: str,
    buckets: tuple[float, ...] = (),
) -> Metric:
    metric = METRICS[name] = Metric(name, instrument, unit, attributes, brief, buckets)
    return metric


# --- enum values -----------------------------------------------------------------------------------------------------

RUN_STATES: Final = ("success", "max_steps", "error", "interrupted", "abandoned")
SOURCES: Final = (
    "system_prompt",
    "tool_schema",
    "task",
    "plan",
    "assistant",
    "tool_call",
    "observation",
    "error",
    "image",
    "other",
)
FIXED_SOURCES: Final = frozenset({"system_prompt", "tool_schema", "task"})
OVERFLOW: Final = "_OTHER"
"""Stands for all values beyond a cap, as in the convention's ``error.type``."""

LAST_STEP_NUMBER: Final = 33
"""On metrics, step 33 means 33 and later."""
TOP_TOOLS: Final = 8
"""Tools named on a span; the rest goes under ``_OTHER``."""

# --- the convention's attributes that we set or read -----------------------------------------------------------------

OPERATION_NAME: Final = _attribute(
    "gen_ai.operation.name",
    "string",
    ("run", "plan", "chat", "tool"),
    "`invoke_agent`, `plan`, `chat` or `execute_tool`. The step span has none: the convention has no name for it yet.",
    always=True,
)
AGENT_NAME: Final = _attribute(
    "gen_ai.agent.name",
    "string",
    ALL,
    "The agent's `name`, or its class name when it has none.",
    always=True,
)
AGENT_DESCRIPTION: Final = _attribute(
    "gen_ai.agent.description", "string", RUN, "The agent's description. Only with content capture."
)
CONVERSATION_ID: Final = _attribute(
    "gen_ai.conversation.id",
    "string",
    ("run", "chat"),
    "The conversation as the application named it (`otel_smol.conversation`). Never made up.",
)
PROVIDER_NAME: Final = _attribute(
    "gen_ai.provider.name", "string", CHAT, "From the model's class and the host it speaks to.", always=True
)
REQUEST_MODEL: Final = _attribute("gen_ai.request.model", "string", ("run", "chat"), "`model_id`, without credentials.")
REQUEST_STREAM: Final = _attribute("gen_ai.request.stream", "boolean", CHAT, "True when the answer was streamed.")
REQUEST_TEMPERATURE: Final = _attribute("gen_ai.request.temperature", "double", CHAT, "Request parameter.")
REQUEST_TOP_P: Final = _attribute("gen_ai.request.top_p", "double", CHAT, "Request parameter.")
REQUEST_TOP_K: Final = _attribute("gen_ai.request.top_k", "int", CHAT, "Request parameter.")
REQUEST_MAX_TOKENS: Final = _attribute("gen_ai.request.max_tokens", "int", CHAT, "Request parameter.")
REQUEST_SEED: Final = _attribute("gen_ai.request.seed", "int", CHAT, "Request parameter.")
REQUEST_FREQUENCY_PENALTY: Final = _attribute("gen_ai.request.frequency_penalty", "double", CHAT, "Request parameter.")
REQUEST_PRESENCE_PENALTY: Final = _attribute("gen_ai.request.presence_penalty", "double", CHAT, "Request parameter.")
REQUEST_STOP_SEQUENCES: Final = _attribute(
    "gen_ai.request.stop_sequences", "string[]", CHAT, "The stop sequences smolagents asks for."
)
OUTPUT_TYPE: Final = _attribute(
    "gen_ai.output.type", "string", CHAT, "`json` when smolagents asks for structured output."
)
RESPONSE_ID: Final = _attribute("gen_ai.response.id", "string", CHAT, "From the provider's answer.")
RESPONSE_MODEL: Final = _attribute("gen_ai.response.model", "string", CHAT, "From the provider's answer.")
FINISH_REASONS: Final = _attribute(
    "gen_ai.response.finish_reasons",
    "string[]",
    ("run", "chat"),
    "From the provider's answer; on a run `max_steps` when that is how it ended.",
)
TIME_TO_FIRST_CHUNK: Final = _attribute(
    "gen_ai.response.time_to_first_chunk", "double", CHAT, "Seconds, streamed calls only."
)
USAGE_INPUT_TOKENS: Final = _attribute(
    "gen_ai.usage.input_tokens",
    "int",
    CHAT,
    "Billed input including cached tokens. Only on chat spans: backends add this attribute up over all spans.",
)
USAGE_OUTPUT_TOKENS: Final = _attribute("gen_ai.usage.output_tokens", "int", CHAT, "Billed output including reasoning.")
USAGE_CACHE_READ_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_read.input_tokens", "int", CHAT, "Part of the input that came from the prompt cache."
)
USAGE_CACHE_WRITE_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_write.input_tokens", "int", CHAT, "Part of the input that was written to the prompt cache."
)
USAGE_REASONING_TOKENS: Final = _attribute(
    "gen_ai.usage.reasoning.output_tokens", "int", CHAT, "Part of the output that was reasoning."
)
CONVERSATION_COMPACTED: Final = _attribute(
    "gen_ai.conversation.compacted",
    "boolean",
    CHAT,
    "True on the call before which the memory was shortened; absent otherwise.",
)
SERVER_ADDRESS: Final = _attribute(
    "server.address", "string", CHAT, "Host of the model server, for models that speak HTTP."
)
SERVER_PORT: Final = _attribute("server.port", "int", CHAT, "Its port.")
ERROR_TYPE: Final = _attribute(
    "error.type",
    "string",
    ALL,
    "Qualified class name of the exception. On a step it is there for errors that the agent recovers from as well.",
)
TOOL_NAME: Final = _attribute(
    "gen_ai.tool.name", "string", TOOL, "The name under which the agent has the tool.", always=True
)
TOOL_TYPE: Final = _attribute("gen_ai.tool.type", "string", TOOL, "Always `function`.", always=True)
TOOL_CALL_ID: Final = _attribute(
    "gen_ai.tool.call.id", "string", TOOL, "The model's id of the call (ToolCallingAgent only)."
)
TOOL_DESCRIPTION: Final = _attribute(
    "gen_ai.tool.description", "string", TOOL, "The tool's description. Only with content capture."
)
TOOL_ARGUMENTS: Final = _attribute("gen_ai.tool.call.arguments", "string", TOOL, "JSON. Only with content capture.")
TOOL_RESULT: Final = _attribute("gen_ai.tool.call.result", "string", TOOL, "JSON. Only with content capture.")
INPUT_MESSAGES: Final = _attribute(
    "gen_ai.input.messages",
    "string",
    ("run", "chat"),
    "JSON. Only with content capture. On a chat span the messages that no earlier call of the run has sent "
    "(all of them with `OTEL_SMOL_FULL_INPUT_MESSAGES`); on a run the task.",
)
OUTPUT_MESSAGES: Final = _attribute(
    "gen_ai.output.messages",
    "string",
    ("run", "chat"),
    "JSON. Only with content capture. The model's answer; on a run the final answer.",
)
TOOL_DEFINITIONS: Final = _attribute(
    "gen_ai.tool.definitions",
    "string",
    CHAT,
    "JSON, names only. Only with content capture, on the first call that offers these tools.",
)

# --- our own attributes ----------------------------------------------------------------------------------------------

RUN_ID: Final = _attribute(
    "smolagents.run.id",
    "string",
    ALL,
    "One per `agent.run(...)`. Absent on a model call outside of any run.",
)
AGENT_TYPE: Final = _attribute("smolagents.agent.type", "string", RUN, "The agent's class name.", always=True)
MAX_STEPS: Final = _attribute(
    "smolagents.max_steps", "int", RUN, "The limit that this run has. Absent where it is no whole number."
)
TURN_GROUP: Final = _attribute(
    "smolagents.conversation.id",
    "string",
    RUN,
    "Groups the turns of one agent: runs with `reset=False` share it, `reset=True` begins a new one.",
    always=True,
)
CALL_TYPE: Final = _attribute(
    "smolagents.call.type",
    "string",
    CHAT,
    "`action`, `planning`, `final_answer` (the extra call at `max_steps`) or `other` (made by a tool, by a callback, "
    "by a step beside the agent's own prompt, or outside of a run).",
    always=True,
)
CALL_PARTIAL: Final = _attribute(
    "smolagents.call.partial", "boolean", CHAT, "True when a streamed answer was not read to its end; absent otherwise."
)
INFERENCE_PROVIDER: Final = _attribute(
    "smolagents.inference_provider",
    "string",
    CHAT,
    "`InferenceClientModel` only: the provider that the hub routes to.",
)
STEP_NUMBER: Final = _attribute(
    "smolagents.step.number", "int", ("step", "plan", "chat"), "1 for the first step of a run. Not capped on spans."
)
STEP_TYPE: Final = _attribute(
    "smolagents.step.type", "string", STEP, "`action`, `planning` or `final_answer`.", always=True
)
STEP_IS_FINAL_ANSWER: Final = _attribute(
    "smolagents.step.is_final_answer", "boolean", ("step",), "Whether the step gave the final answer.", always=True
)
STEP_TOOL_CALLS: Final = _attribute(
    "smolagents.step.tool_calls", "int", ("step",), "Tools and managed agents that the step really called.", always=True
)
STEP_INPUT_TOKENS: Final = _attribute(
    "smolagents.step.input_tokens", "int", STEP, "Billed input of this step's own calls. Absent when one reported none."
)
STEP_OUTPUT_TOKENS: Final = _attribute("smolagents.step.output_tokens", "int", STEP, "Billed output, likewise.")
STEP_FIXED_TOKENS: Final = _attribute(
    "smolagents.step.fixed_tokens", "int", STEP, "Its share for system prompt, tool schemas and task."
)
STEP_NEW_TOKENS: Final = _attribute(
    "smolagents.step.new_tokens", "int", STEP, "Its share for history that no earlier call of the run has sent."
)
STEP_REPLAYED_TOKENS: Final = _attribute(
    "smolagents.step.replayed_tokens", "int", STEP, "Its share for history that an earlier call has already sent."
)
RUN_INPUT_TOKENS: Final = _attribute(
    "smolagents.run.input_tokens",
    "int",
    ("run", "step", "plan"),
    "Billed input of the run's own calls; on a step the running total at its end. A lower bound when "
    "`smolagents.run.calls_without_usage` is not 0.",
)
RUN_OUTPUT_TOKENS: Final = _attribute("smolagents.run.output_tokens", "int", RUN, "Billed output of its own calls.")
RUN_FIXED_TOKENS: Final = _attribute(
    "smolagents.run.fixed_tokens", "int", RUN, "Input for system prompt, tool schemas and task."
)
RUN_NEW_TOKENS: Final = _attribute("smolagents.run.new_tokens", "int", RUN, "Input for history sent the first time.")
RUN_REPLAYED_TOKENS: Final = _attribute(
    "smolagents.run.replayed_tokens", "int", ("run", "step", "plan"), "Input for history sent again."
)
RUN_TOTAL_INPUT_TOKENS: Final = _attribute(
    "smolagents.run.total_input_tokens", "int", RUN, "Billed input with the managed agents called within the run."
)
RUN_TOTAL_OUTPUT_TOKENS: Final = _attribute(
    "smolagents.run.total_output_tokens", "int", RUN, "Billed output with managed agents."
)
RUN_OVERPAY: Final = _attribute(
    "smolagents.run.overpay",
    "double",
    ("run", "step", "plan"),
    "History tokens sent ÷ history tokens that exist: `(n-1)/2` for equal steps.",
)
RUN_REPLAY_SHARE: Final = _attribute(
    "smolagents.run.replay_share", "double", ("run", "step", "plan"), "Replayed tokens ÷ input tokens."
)
RUN_STATE: Final = _attribute(
    "smolagents.run.state",
    "string",
    RUN,
    "`success`, `max_steps`, `error`, `interrupted` or `abandoned`.",
    always=True,
)
RUN_STEPS: Final = _attribute("smolagents.run.steps", "int", RUN, "Action steps.", always=True)
RUN_PLANNING_STEPS: Final = _attribute("smolagents.run.planning_steps", "int", RUN, "Planning steps.", always=True)
RUN_CALLS: Final = _attribute("smolagents.run.calls", "int", RUN, "Own model calls, failed ones included.", always=True)
RUN_CALLS_WITHOUT_USAGE: Final = _attribute(
    "smolagents.run.calls_without_usage",
    "int",
    RUN,
    "Own calls that were answered without a token count. Not 0: the run's totals are a lower bound.",
    always=True,
)
RUN_RECOVERED_ERRORS: Final = _attribute(
    "smolagents.run.recovered_errors", "int", RUN, "Errors of steps after which the run went on.", always=True
)
HISTORY_MESSAGES: Final = _attribute(
    "smolagents.history.messages", "int", HISTORY, "Messages in the prompt. On a step: of its last own call."
)
HISTORY_CHARACTERS: Final = _attribute(
    "smolagents.history.characters", "int", HISTORY, "Characters of the whole prompt, tool schemas included."
)
HISTORY_IMAGES: Final = _attribute("smolagents.history.images", "int", HISTORY, "Images in the prompt.")
HISTORY_TOKENS: Final = _attribute(
    "smolagents.history.tokens",
    "int",
    HISTORY,
    "Tokens of the whole prompt: billed, or estimated where `smolagents.history.estimator` says so.",
)
HISTORY_SOURCE_TOKENS: Final = {
    source: _attribute(
        f"smolagents.history.{source}.tokens",
        "int",
        HISTORY,
        f"Tokens of the prompt that are `{source}`. Left out when 0.",
    )
    for source in SOURCES
}
HISTORY_SOURCE_CHARACTERS: Final = {
    source: _attribute(
        f"smolagents.history.{source}.characters",
        "int",
        HISTORY,
        f"Characters of the prompt that are `{source}`. Left out when 0.",
    )
    for source in SOURCES
    if source != "image"
}
HISTORY_TOOL_NAMES: Final = _attribute(
    "smolagents.history.observation.tool.names",
    "string[]",
    HISTORY,
    "Tools whose observations are in the prompt, the largest first: at most 8, the rest as `_OTHER`.",
)
HISTORY_TOOL_TOKENS: Final = _attribute(
    "smolagents.history.observation.tool.tokens", "int[]", HISTORY, "What each of them takes, in the same order."
)
HISTORY_ESTIMATOR: Final = _attribute(
    "smolagents.history.estimator",
    "string",
    HISTORY,
    "How tokens were obtained: `billed` (characters scaled to the billed input) or `characters` (an estimate).",
)
HISTORY_COMPACTED_TOKENS: Final = _attribute(
    "smolagents.history.compacted_tokens",
    "int",
    HISTORY,
    "The memory was edited since the last call of this kind: what that saved on this call. Absent otherwise.",
)
HISTORY_PREFIX_SHARE: Final = _attribute(
    "smolagents.history.prefix_share",
    "double",
    HISTORY,
    "Share of the previous prompt of this kind that is an unchanged prefix of this one: what a prompt cache can reuse.",
)
FIT_BASE_TOKENS: Final = _attribute(
    "smolagents.fit.base_tokens",
    "double",
    ("run", "step", "plan"),
    "P: fixed tokens per action call, by least squares.",
)
FIT_GROWTH_TOKENS: Final = _attribute(
    "smolagents.fit.growth_tokens", "double", ("run", "step", "plan"), "s: tokens that one step adds."
)
FIT_R_SQUARED: Final = _attribute(
    "smolagents.fit.r_squared", "double", ("run", "step", "plan"), "How straight the measured points lie."
)
FIT_CALLS: Final = _attribute("smolagents.fit.calls", "int", ("run", "step", "plan"), "Action calls in the fit.")
FORECAST_INPUT_TOKENS: Final = _attribute(
    "smolagents.forecast.input_tokens",
    "int",
    ("run", "step", "plan"),
    "Own input tokens if the run uses all of `max_steps`, from the third action call on. On a run: as of half way.",
)
CONTEXT_WINDOW_SHARE: Final = _attribute(
    "smolagents.context_window.share",
    "double",
    HISTORY,
    "Prompt ÷ context window. Only when `OTEL_SMOL_CONTEXT_WINDOW` gives the window.",
)
TOOL_OUTPUT_CHARACTERS: Final = _attribute(
    "smolagents.tool.output.characters", "int", TOOL, "Length of the result as text."
)
TOOL_MANAGED_AGENT: Final = _attribute(
    "smolagents.tool.managed_agent", "boolean", TOOL, "True when the tool is an agent; absent otherwise."
)
INPUT_MESSAGES_REFS: Final = _attribute(
    "smolagents.input.messages.refs",
    "string",
    CHAT,
    "Only with content capture: the whole prompt, in the order sent, as ranges into the run's numbered messages "
    "(`0-7,9`).",
)

# --- metrics ---------------------------------------------------------------------------------------------------------

_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS = tuple(float(4**k) for k in range(14))
_RUN_TOKENS = tuple(1000.0 * 2**k for k in range(13))
_STEPS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_OVERPAY = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)
_SHARE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

HISTORY_SOURCE: Final = "smolagents.history.source"
"""Metric attribute: one of `SOURCES`."""

STEP_INPUT_TOKENS_METRIC: Final = _metric(
    "smolagents.step.input_tokens",
    "counter",
    "{token}",
    (AGENT_NAME, STEP_TYPE, STEP_NUMBER),
    "Input tokens by step. Of type `action` and divided by `smolagents.step.calls` it is the curve, exactly.",
)
STEP_CALLS_METRIC: Final = _metric(
    "smolagents.step.calls",
    "counter",
    "{call}",
    (AGENT_NAME, STEP_TYPE, STEP_NUMBER),
    "Calls of steps with known usage.",
)
STEP_DURATION_METRIC: Final = _metric(
    "smolagents.step.duration",
    "histogram",
    "s",
    (AGENT_NAME, STEP_TYPE, ERROR_TYPE),
    "Duration of steps and planning steps.",
    _SECONDS,
)
STEP_NEW_TOKENS_METRIC: Final = _metric(
    "smolagents.step.new_tokens",
    "histogram",
    "{token}",
    (AGENT_NAME,),
    "What one action step added to the history, as its next call sends it.",
    _TOKENS,
)
HISTORY_INPUT_TOKENS_METRIC: Final = _metric(
    "smolagents.history.input_tokens",
    "counter",
    "{token}",
    (AGENT_NAME, HISTORY_SOURCE),
    "Input tokens by source, over all calls within runs. Sums to their input bill.",
)
HISTORY_REPLAYED_TOKENS_METRIC: Final = _metric(
    "smolagents.history.replayed_tokens",
    "counter",
    "{token}",
    (AGENT_NAME, REQUEST_MODEL),
    "Input tokens for history that an earlier call of the run had already sent.",
)
HISTORY_CACHED_TOKENS_METRIC: Final = _metric(
    "smolagents.history.cached_tokens",
    "counter",
    "{token}",
    (AGENT_NAME, REQUEST_MODEL),
    "Input tokens that the provider read from its prompt cache, a part of the input. Absent where it does not say.",
)
HISTORY_TOOL_INPUT_TOKENS_METRIC: Final = _metric(
    "smolagents.history.tool.input_tokens",
    "counter",
    "{token}",
    (AGENT_NAME, TOOL_NAME),
    "What a tool's observations cost over all the calls that sent them.",
)
HISTORY_COMPACTED_TOKENS_METRIC: Final = _metric(
    "smolagents.history.compacted_tokens",
    "counter",
    "{token}",
    (AGENT_NAME,),
    "Tokens that editing the memory saved on the next call.",
)
RUN_INPUT_TOKENS_METRIC: Final = _metric(
    "smolagents.run.input_tokens",
    "histogram",
    "{token}",
    (AGENT_NAME, RUN_STATE),
    "Own input tokens of a run. Not recorded when every call was without usage.",
    _RUN_TOKENS,
)
RUN_OUTPUT_TOKENS_METRIC: Final = _metric(
    "smolagents.run.output_tokens",
    "histogram",
    "{token}",
    (AGENT_NAME, RUN_STATE),
    "Own output tokens of a run.",
    _RUN_TOKENS,
)
RUN_STEPS_METRIC: Final = _metric(
    "smolagents.run.steps", "histogram", "{step}", (AGENT_NAME, RUN_STATE), "Action steps of a run.", _STEPS
)
RUN_OVERPAY_METRIC: Final = _metric(
    "smolagents.run.overpay",
    "histogram",
    "1",
    (AGENT_NAME, RUN_STATE),
    "History tokens sent ÷ history tokens that exist.",
    _OVERPAY,
)
RUN_REPLAY_SHARE_METRIC: Final = _metric(
    "smolagents.run.replay_share",
    "histogram",
    "1",
    (AGENT_NAME, RUN_STATE),
    "Replayed tokens ÷ input tokens of a run.",
    _SHARE,
)
RUN_BUDGET_EXCEEDED_METRIC: Final = _metric(
    "smolagents.run.budget_exceeded",
    "counter",
    "{run}",
    (AGENT_NAME,),
    "Runs that passed their token budget (input, managed agents included), counted at the crossing.",
)
CALLS_WITHOUT_USAGE_METRIC: Final = _metric(
    "smolagents.calls.without_usage",
    "counter",
    "{call}",
    (AGENT_NAME, REQUEST_MODEL),
    "Calls that were answered without a token count.",
)
ACTIVE_RUNS_METRIC: Final = _metric(
    "smolagents.active_runs", "gauge", "{run}", (AGENT_NAME,), "Runs that go on in this process."
)
ACTIVE_INPUT_TOKENS_METRIC: Final = _metric(
    "smolagents.active_run.max_input_tokens",
    "gauge",
    "{token}",
    (AGENT_NAME,),
    "Own input tokens so far of the most expensive run that goes on.",
)
ACTIVE_FORECAST_METRIC: Final = _metric(
    "smolagents.active_run.max_forecast_input_tokens",
    "gauge",
    "{token}",
    (AGENT_NAME,),
    "Highest forecast among the runs that go on.",
)
ACTIVE_CONTEXT_WINDOW_METRIC: Final = _metric(
    "smolagents.active_run.max_context_window_share",
    "gauge",
    "1",
    (AGENT_NAME,),
    "Fullest context window among the runs that go on.",
)
TOKEN_BUDGET_METRIC: Final = _metric(
    "smolagents.run.token_budget",
    "gauge",
    "{token}",
    (AGENT_NAME,),
    "The budget of one run, for agents that have run. Only when `OTEL_SMOL_TOKEN_BUDGET` gives one.",
)

CONVENTION_METRICS: Final = {
    "gen_ai.client.operation.duration": "s",
    "gen_ai.client.operation.time_to_first_chunk": "s",
    "gen_ai.client.operation.time_per_output_chunk": "s",
    "gen_ai.client.token.usage": "{token}",
    "gen_ai.invoke_agent.duration": "s",
    "gen_ai.execute_tool.duration": "s",
}
"""Histograms that `opentelemetry-util-genai` records for us, by unit. The convention renamed some of them in autumn
2026; ours follow the library."""
