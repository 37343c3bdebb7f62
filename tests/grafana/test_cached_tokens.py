"""What came from the provider's prompt cache is counted, so that alerts can keep still; what nobody told is not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from smolagents import CodeAgent

from otel_smol import semconv as sc
from tests.conftest import Observed, attributes
from tests.scripted import RawModel, Script, agent, characters, step_replies


class CachingModel(RawModel):
    """Says how much of each prompt it read from its cache, in OpenAI's words; None if it does not say."""

    def __init__(self, script: Script, cached: list[int | None]) -> None:
        super().__init__(script, None)
        self.cached = iter(cached)

    def generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> Any:
        cached = next(self.cached)
        details = None if cached is None else SimpleNamespace(cached_tokens=cached)
        usage = SimpleNamespace(
            prompt_tokens=characters(messages) // 4, completion_tokens=5, prompt_tokens_details=details
        )
        self.raw = SimpleNamespace(usage=usage)
        return super().generate(messages, *args, **kwargs)


@pytest.mark.parametrize(
    ("told", "counted"),
    [([0, 300, 450], [750]), ([0, 0, 0], [0]), ([None, 300, None], [300]), ([None, None, None], [])],
    ids=["told", "none", "once", "not told"],
)
def test_cached_tokens(told: list[int | None], counted: list[int], observe: Callable[..., Observed]) -> None:
    """The sum over the calls that say it, as on their spans; 0 only if the provider says 0, and else no series."""
    observed = observe()
    script = Script(*step_replies(CodeAgent, 3))
    agent(CodeAgent, script, model=CachingModel(script, told), name="helper").run("the task")
    points = observed.points(sc.HISTORY_CACHED_TOKENS_METRIC.name)
    assert [value for _, value in points] == counted
    assert all(point == {sc.AGENT_NAME: "helper", sc.REQUEST_MODEL: "scripted"} for point, _ in points)
    on_spans = [attributes(span).get(sc.USAGE_CACHE_READ_TOKENS, 0) for span in observed.chats]
    assert on_spans == [tokens or 0 for tokens in told]
    assert sum(counted) <= observed.total(sc.HISTORY_INPUT_TOKENS_METRIC.name)
