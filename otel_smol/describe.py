"""Ledger facts as span attributes."""

from __future__ import annotations

from collections.abc import Mapping

from otel_smol import semconv as sc
from otel_smol.history import top
from otel_smol.ledger import Call, RunLedger

AttributeValue = str | bool | int | float | list[str] | list[int]


def history_attributes(call: Call) -> dict[str, AttributeValue]:
    """`smolagents.history.*` of one prompt. The same keys whatever the step, so the size of a span does not grow."""
    sizes = call.sizes
    if sizes is None or call.tokens is None:
        return {}
    attributes: dict[str, AttributeValue] = {}
    tools = top(call.by_tool)
    if tools:
        attributes[sc.HISTORY_TOOL_NAMES] = [name for name, _ in tools]
        attributes[sc.HISTORY_TOOL_TOKENS] = [n for _, n in tools]
    if sizes.prefix_share is not None:
        attributes[sc.HISTORY_PREFIX_SHARE] = sizes.prefix_share
    if call.context_share is not None:
        attributes[sc.CONTEXT_WINDOW_SHARE] = call.context_share
    for source, characters in sizes.characters.items():
        attributes[sc.HISTORY_SOURCE_CHARACTERS[source]] = characters
    for source, tokens in call.by_source.items():  # behind the characters: a small limit drops the oldest
        if tokens:
            attributes[sc.HISTORY_SOURCE_TOKENS[source]] = tokens
    if call.compacted_tokens:
        attributes[sc.HISTORY_COMPACTED_TOKENS] = call.compacted_tokens
    attributes |= {
        sc.HISTORY_ESTIMATOR: "billed" if call.billed else "characters",
        sc.HISTORY_MESSAGES: sizes.messages,
        sc.HISTORY_CHARACTERS: sizes.total_characters,
        sc.HISTORY_IMAGES: sizes.images,
        sc.HISTORY_TOKENS: call.tokens,
    }
    return attributes


def fit_attributes(ledger: RunLedger) -> dict[str, AttributeValue]:
    """`smolagents.fit.*`: the line through the prompts, where there is one."""
    fit = ledger.fit
    if fit is None:
        return {}
    attributes: dict[str, AttributeValue] = {
        sc.FIT_BASE_TOKENS: fit.base_tokens,
        sc.FIT_GROWTH_TOKENS: fit.growth_tokens,
        sc.FIT_CALLS: fit.calls,
    }
    if fit.r_squared is not None:
        attributes[sc.FIT_R_SQUARED] = fit.r_squared
    return attributes


def ratios(ledger: RunLedger) -> dict[str, AttributeValue]:
    """Overpay and replay share, once there is something to divide by."""
    values: Mapping[str, float | None] = {sc.RUN_OVERPAY: ledger.overpay, sc.RUN_REPLAY_SHARE: ledger.replay_share}
    return {name: value for name, value in values.items() if value is not None}
