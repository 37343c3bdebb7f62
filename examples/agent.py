"""A small agent, to see otel_smol at work: it looks up what three heating systems cost and says which is cheapest.

    opentelemetry-instrument python examples/agent.py

It sends to a collector on this machine; docs/backends.md says how to have one. No key is needed: a model that follows a
script stands in, and counts a token for every four characters. With OPENAI_API_KEY set, and OPENAI_BASE_URL for any
server that speaks that protocol, a real one answers: MODEL names it.
"""

from __future__ import annotations

import os
from typing import Any

from smolagents import ChatMessage, CodeAgent, Model, OpenAIModel, tool
from smolagents.models import MessageRole
from smolagents.monitoring import TokenUsage

QUESTION = "Which of air heat pump, ground heat pump and district heating is cheapest over fifteen years?"

PAGES = {
    "air heat pump": "An air-source heat pump costs 103,000 to install and 13,900 a year. " * 20,
    "ground heat pump": "A ground-source heat pump costs 188,000 to install and 11,500 a year. " * 20,
    "district heating": "A connection costs 41,000 and the heat 20,900 a year. " * 25,
}


@tool
def look_up(topic: str) -> str:
    """Returns what is known about a heating system.

    Args:
        topic: The system's name.
    """
    return PAGES.get(topic, f"Nothing is known about {topic}.")


class ScriptedModel(Model):  # type: ignore[misc]
    """Looks up one page after the other, then answers."""

    def __init__(self) -> None:
        super().__init__(model_id="scripted")
        topics = [f'print(look_up("{topic}"))' for topic in PAGES]
        self._replies = iter([*topics, 'final_answer("The air heat pump: 311,500.")'])

    def generate(self, messages: list[ChatMessage], *args: Any, **kwargs: Any) -> ChatMessage:
        reply = f"Thought: one thing at a time.\n<code>\n{next(self._replies)}\n</code>"
        sent = sum(len(part.get("text", "")) for message in messages for part in message.content)
        usage = TokenUsage(input_tokens=sent // 4, output_tokens=len(reply) // 4)
        return ChatMessage(role=MessageRole.ASSISTANT, content=reply, token_usage=usage)


def main() -> None:
    model = OpenAIModel(os.environ.get("MODEL", "gpt-4o-mini")) if "OPENAI_API_KEY" in os.environ else ScriptedModel()
    agent = CodeAgent(tools=[look_up], model=model, name="heating_advisor", max_steps=8)
    result = agent.run(QUESTION, return_full_result=True)
    print(result.output)
    usage = result.token_usage
    if usage is not None:
        print(f"billed: {usage.input_tokens} input and {usage.output_tokens} output tokens")


if __name__ == "__main__":
    main()
