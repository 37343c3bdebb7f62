"""Scripted models, counting tools and agents made of them: what every test builds its runs from.

A `Script` is what the models of one test say, and the truth that all totals are held against: it counts what was
asked of it. The usage that it reports is `characters // 4`, so a test knows it without us.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import smolagents
from smolagents import CodeAgent, LogLevel, Model, Tool, ToolCallingAgent
from smolagents.models import (
    ChatMessage,
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    MessageRole,
)
from smolagents.monitoring import TokenUsage

Reply = str | list[tuple[str, dict[str, Any]]] | BaseException
"""Text, tool calls as (name, arguments), or something to raise."""

VERSION = tuple(int(part) for part in smolagents.__version__.split(".")[:2])
FINAL_CALL: Reply = [("final_answer", {"answer": "done"})]


def code(text: str) -> str:
    """A CodeAgent's reply that runs this code."""
    return f"Thought: next.\n<code>\n{text}\n</code>"


FINAL_CODE = code('final_answer("done")')


def characters(messages: Iterable[Any]) -> int:
    """Characters of the text in a prompt, whatever form its messages have."""
    total = 0
    for message in messages:
        content = message["content"] if isinstance(message, dict) else message.content
        parts = [content] if isinstance(content, str) else content or ()
        for part in parts:
            total += len(part) if isinstance(part, str) else len(part.get("text") or "")
    return total


@dataclass
class Truth:
    """What was really asked of the models, and what they reported."""

    calls: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    prompts: list[list[Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def called(self, messages: Sequence[Any]) -> None:
        with self._lock:
            self.calls += 1
            self.prompts.append(list(messages))

    def reported(self, usage: TokenUsage | None) -> None:
        if usage is not None:
            with self._lock:
                self.input_tokens += usage.input_tokens
                self.output_tokens += usage.output_tokens

    def tool_called(self) -> None:
        with self._lock:
            self.tool_calls += 1


class Script:
    """The replies of one or more models, in order, and the truth about them."""

    def __init__(self, *replies: Reply, truth: Truth | None = None, usage: bool | Callable[..., Any] = True) -> None:
        self.replies, self.truth, self._usage = list(replies), truth or Truth(), usage
        self._next = iter(self.replies)
        self._lock = threading.Lock()

    def answer(self, messages: Sequence[Any]) -> tuple[Reply, TokenUsage | None]:
        self.truth.called(messages)
        with self._lock:
            reply = next(self._next)
        if isinstance(reply, BaseException):
            self.truth.failed += 1
            raise reply
        usage = self._report(messages, reply)
        self.truth.reported(usage)
        return reply, usage

    def _report(self, messages: Sequence[Any], reply: Reply) -> TokenUsage | None:
        if callable(self._usage):
            return self._usage(messages, reply)
        if not self._usage:
            return None
        text = reply if isinstance(reply, str) else json.dumps(reply)
        return TokenUsage(characters(messages) // 4, len(text) // 4)


class ScriptedModel(Model):  # type: ignore[misc]
    """A user's own model class, plain and streamed."""

    def __init__(self, script: Script, model_id: str | None = "scripted", **kwargs: Any) -> None:
        super().__init__(model_id=model_id, **kwargs)
        self.script = script

    def generate(
        self,
        messages: list[Any],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: list[Any] | None = None,
        **kwargs: Any,
    ) -> ChatMessage:
        reply, usage = self.script.answer(messages)
        return message(reply, usage)

    def generate_stream(
        self,
        messages: list[Any],
        stop_sequences: list[str] | None = None,
        response_format: dict[str, str] | None = None,
        tools_to_call_from: list[Any] | None = None,
        **kwargs: Any,
    ) -> Generator[ChatMessageStreamDelta, None, None]:
        reply, usage = self.script.answer(messages)
        yield from deltas(reply, usage)


class RawModel(ScriptedModel):
    """Hands a provider's own response on, as smolagents' API models do."""

    def __init__(self, script: Script, raw: Any, **kwargs: Any) -> None:
        super().__init__(script, **kwargs)
        self.raw = raw

    def generate(self, messages: list[Any], *args: Any, **kwargs: Any) -> ChatMessage:
        reply, usage = self.script.answer(messages)
        return message(reply, usage, self.raw)


def message(reply: Reply, usage: TokenUsage | None = None, raw: Any = None) -> ChatMessage:
    """A reply as the message that a model returns."""
    calls = [
        ChatMessageToolCall(
            function=ChatMessageToolCallFunction(name=name, arguments=arguments), id=f"call_{i}", type="function"
        )
        for i, (name, arguments) in enumerate(reply if isinstance(reply, list) else ())
    ]
    text = reply if isinstance(reply, str) else None
    return ChatMessage(role=MessageRole.ASSISTANT, content=text, tool_calls=calls or None, raw=raw, token_usage=usage)


def deltas(reply: Reply, usage: TokenUsage | None = None) -> Generator[ChatMessageStreamDelta, None, None]:
    """A reply in pieces, its usage on the last one."""
    if isinstance(reply, str):
        for start in range(0, len(reply), 16):
            yield ChatMessageStreamDelta(content=reply[start : start + 16])
    elif isinstance(reply, list):
        calls = [
            ChatMessageToolCallStreamDelta(
                index=i,
                id=f"call_{i}",
                type="function",
                function=ChatMessageToolCallFunction(name=name, arguments=json.dumps(arguments)),
            )
            for i, (name, arguments) in enumerate(reply)
        ]
        yield ChatMessageStreamDelta(content="", tool_calls=calls)
    if usage is not None:
        yield ChatMessageStreamDelta(content="", token_usage=usage)


def make_tool(truth: Truth, name: str = "search", size: int = 400, does: Callable[[int], Any] | None = None) -> Tool:
    """A tool with one number for an argument that returns `size` characters, or what `does` returns."""

    class Counted(Tool):  # type: ignore[misc]
        description = "Looks something up."
        inputs = {"n": {"type": "integer", "description": "a number"}}  # noqa: RUF012
        output_type = "any" if does else "string"
        skip_forward_signature_validation = True

        def forward(self, n: int) -> Any:
            truth.tool_called()
            return does(n) if does else (f"result {n} " + "word " * (size // 5 + 1))[:size]

    Counted.name = name
    return Counted()


def agent(cls: type, script: Script, tools: Sequence[Any] | None = None, **kwargs: Any) -> Any:
    """An agent of a class, quiet, with a scripted model and the tool `search` unless others are given."""
    kwargs.setdefault("model", ScriptedModel(script))
    return cls(
        tools=[make_tool(script.truth)] if tools is None else list(tools), verbosity_level=LogLevel.OFF, **kwargs
    )


def step_replies(cls: type, steps: int, tool: str = "search") -> list[Reply]:
    """Replies for `steps` steps: a tool call in each but the last, which answers."""
    if issubclass(cls, CodeAgent):
        return [*(code(f"print({tool}({i}))") for i in range(1, steps)), FINAL_CODE]
    return [*([(tool, {"n": i})] for i in range(1, steps)), FINAL_CALL]


def managed_call(cls: type, *names: str) -> Reply:
    """A reply that calls managed agents."""
    if issubclass(cls, CodeAgent):
        return code("\n".join(f'print({name}(task="part of {name}"))' for name in names))
    return [(name, {"task": f"part of {name}", "additional_args": {}}) for name in names]


@dataclass
class Cell:
    """One cell of the matrix: how to build agents in it, and how to run them."""

    cls: type
    consumed: str

    def agent(self, script: Script, **kwargs: Any) -> Any:
        return agent(self.cls, script, stream_outputs=self.consumed == "stream_outputs", **kwargs)

    def run(self, subject: Any, task: str = "the task", **kwargs: Any) -> Any:
        if self.consumed == "stream":
            return getattr(list(subject.run(task, stream=True, **kwargs))[-1], "output", None)
        return subject.run(task, **kwargs)

    def replies(self, steps: int, tool: str = "search") -> list[Reply]:
        return step_replies(self.cls, steps, tool)

    @property
    def final(self) -> Reply:
        return FINAL_CODE if self.cls is CodeAgent else FINAL_CALL


def memory(subject: Any) -> list[Any]:
    """What an agent remembers, without times and object identities."""
    return [
        [
            type(step).__name__,
            getattr(step, "observations", None),
            repr(getattr(step, "error", None)),
            getattr(step, "model_output", None),
            getattr(step, "plan", None),
            getattr(step, "token_usage", None),
        ]
        for step in subject.memory.steps
    ]


def raised(act: Callable[[], Any]) -> tuple[type, str]:
    """The class and text of the exception that something raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        act()
    return type(caught.value), str(caught.value)


AGENT_CLASSES = (CodeAgent, ToolCallingAgent)
CONSUMED = ("plain", "stream", "stream_outputs")
"""How the answers and the steps of a run are had: at once, step by step, or word by word."""

each_class = pytest.mark.parametrize("cls", AGENT_CLASSES, ids=lambda cls: cls.__name__)
each_form = pytest.mark.parametrize("consumed", CONSUMED)
