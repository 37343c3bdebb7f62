"""The agent that `otel-smol demo` runs: real smolagents, real tools, and a model that follows a script.

It knows nothing of OpenTelemetry. `otel-smol demo` starts it, as a user would their own, with

    opentelemetry-instrument python -m otel_smol.cli.demo_agent 12 code
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from smolagents import CodeAgent, LogLevel, Model, MultiStepAgent, Tool, ToolCallingAgent
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    get_tool_json_schema,
)
from smolagents.monitoring import TokenUsage

from otel_smol.cli import demo_script as script

AGENT_CLASSES: dict[str, type[Any]] = {"code": CodeAgent, "tool-calling": ToolCallingAgent}
CHARACTERS_PER_TOKEN = 4

Turn = tuple[str, str, dict[str, Any]]
"""Thought, tool and arguments."""


class ScriptedModel(Model):  # type: ignore[misc]
    """Says one turn after the other, as code or as tool calls, and reports what a provider would bill for it."""

    def __init__(self, turns: Iterator[Turn], as_code: bool) -> None:
        super().__init__(model_id="scripted-model")
        self._turns, self._as_code = turns, as_code
        self.billed_input = 0
        self.billed_output = 0

    def generate(
        self,
        messages: list[ChatMessage],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: list[Tool] | None = None,
        **kwargs: Any,
    ) -> ChatMessage:
        """The next turn."""
        thought, tool, arguments = next(self._turns)
        reply = ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: {thought}")
        if self._as_code:
            reply.content += f"\n<code>\n{_as_code(tool, arguments)}\n</code>"
        else:
            call = ChatMessageToolCallFunction(name=tool, arguments=arguments)
            reply.tool_calls = [ChatMessageToolCall(function=call, id=f"call_{self.billed_output}", type="function")]
        schemas = [get_tool_json_schema(tool) for tool in tools_to_call_from or ()]
        reply.token_usage = self._bill(messages, schemas, len(reply.content) + len(json.dumps(arguments)))
        return reply

    def _bill(self, messages: list[ChatMessage], schemas: list[Any], said: int) -> TokenUsage:
        characters = sum(len(part.get("text", "")) for message in messages for part in message.content or ())
        characters += sum(len(json.dumps(schema)) for schema in schemas)
        usage = TokenUsage(characters // CHARACTERS_PER_TOKEN, said // CHARACTERS_PER_TOKEN)
        self.billed_input += usage.input_tokens
        self.billed_output += usage.output_tokens
        return usage


def _as_code(tool: str, arguments: dict[str, Any]) -> str:
    call = f"{tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return call if tool == "final_answer" else f"result = {call}\nprint(result)"


class Finder(Tool):  # type: ignore[misc]
    """A tool that finds as much as the script says it does."""

    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, name: str, argument: str, description: str, meaning: str) -> None:
        self.name, self.description = name, description
        self.inputs = {argument: {"type": "string", "description": meaning}}
        self.sizes: dict[str, int] = {}
        super().__init__()

    def forward(self, **arguments: str) -> str:
        """What is found for the one argument."""
        [subject] = arguments.values()
        return script.found(self.name, subject, self.sizes[subject])


def make_tools(moves: list[script.Move]) -> dict[str, Finder]:
    """The tools, prepared for what will be asked of them."""
    tools = [
        Finder("web_search", "query", "Searches the web and returns the ten best results.", "What to search for."),
        Finder("visit_page", "url", "Reads the page at an address and returns it as Markdown.", "The page's address."),
        Finder("read_file", "path", "Reads a text file from the project's folder.", "Path within the folder."),
    ]
    by_name = {tool.name: tool for tool in tools}
    for move in moves:
        by_name[move.tool].sizes[move.argument] = move.characters
    return by_name


def make_agent(steps: int, kind: str, managed: bool = False) -> MultiStepAgent:
    """An agent that answers at its last step."""
    cls = AGENT_CLASSES[kind]
    moves = list(script.moves(steps))
    tools = make_tools(moves)
    turns = (_ask(i) if managed and script.question(i) else _use(tools, move) for i, move in enumerate(moves))
    return cls(
        tools=list(tools.values()),
        model=ScriptedModel(_then(turns, _answer(script.ANSWER)), cls is CodeAgent),
        managed_agents=[make_researcher(cls)] if managed else None,
        name=script.MANAGER if managed else script.RESEARCHER,
        max_steps=steps,
        verbosity_level=LogLevel.OFF,
    )


def make_researcher(cls: type[Any]) -> MultiStepAgent:
    """A managed agent that does the same research whenever it is asked."""
    tools = make_tools(list(script.RESEARCH))

    def turns() -> Iterator[Turn]:
        while True:
            yield from _then((_use(tools, move) for move in script.RESEARCH), _answer(script.REPORT))

    return cls(
        tools=list(tools.values()),
        model=ScriptedModel(turns(), cls is CodeAgent),
        name=script.RESEARCHER,
        description="Reads up on one question and reports what it found.",
        max_steps=len(script.RESEARCH) + 1,
        verbosity_level=LogLevel.OFF,
    )


def _use(tools: dict[str, Finder], move: script.Move) -> Turn:
    [argument] = tools[move.tool].inputs
    return move.thought, move.tool, {argument: move.argument}


def _ask(step_index: int) -> Turn:
    arguments: dict[str, Any] = {"task": script.question(step_index), "additional_args": {}}
    return "I leave this question to the researcher and continue when I have the report.", script.RESEARCHER, arguments


def _answer(text: str) -> Turn:
    return "I have what I need.", "final_answer", {"answer": text}


def _then(turns: Iterator[Turn], last: Turn) -> Iterator[Turn]:
    yield from turns
    yield last


def main(arguments: list[str]) -> None:
    """`STEPS KIND [managed]`."""
    steps, kind, *rest = arguments
    make_agent(int(steps), kind, bool(rest)).run(script.TASK)


if __name__ == "__main__":
    main(sys.argv[1:])
