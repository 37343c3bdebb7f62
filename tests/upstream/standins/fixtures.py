"""Fixtures that smolagents' tests ask for and its source distribution does not ship; loaded with `-p`.

Names, and whatever a test asserts about a fixture, are given by the tests; the rest is our own.
"""

# smolagents has no types, and its tools declare their inputs in a plain class attribute.
# mypy: disable-error-code="import-untyped,misc,untyped-decorator,var-annotated"
# ruff: noqa: RUF012

import copy
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from smolagents import EMPTY_PROMPT_TEMPLATES, LogLevel, MultiStepAgent, Tool, tool

# The one picture that the tests open, by the name that they open it by.
PICTURE = "000000039769.png"


@pytest.fixture(scope="session", autouse=True)
def quiet_agents() -> Iterator[None]:
    """Make agents silent unless a test names a verbosity, as one of the tests expects.

    It changes the default value and does not replace the method, so that it adds no layer of its own
    to what an instrumentation may have wrapped.
    """
    init: Any = inspect.unwrap(MultiStepAgent.__init__)
    before = init.__defaults__
    names = [p.name for p in inspect.signature(init).parameters.values() if p.default is not p.empty]
    init.__defaults__ = tuple(
        LogLevel.OFF if name == "verbosity_level" else value for name, value in zip(names, before, strict=True)
    )
    yield
    init.__defaults__ = before


@pytest.fixture
def shared_datadir(tmp_path: Path) -> Path:
    """A folder with a small picture; stands in for pytest-datadir and the missing data folder."""
    folder = tmp_path / "shared_data"
    folder.mkdir()
    Image.linear_gradient("L").resize((64, 48)).convert("RGB").save(folder / PICTURE)
    return folder


@pytest.fixture
def get_agent_dict() -> Callable[[str], dict[str, Any]]:
    """A saved agent as a given smolagents version would have written it, newer versions with more keys."""

    def build(version: str) -> dict[str, Any]:
        prompts: Any = copy.deepcopy(EMPTY_PROMPT_TEMPLATES)
        prompts["system_prompt"] = "dummy system prompt"
        saved: dict[str, Any] = {
            "tools": [],
            "model": {"class": "InferenceClientModel", "data": {"model_id": "Qwen/Qwen2.5-Coder-32B-Instruct"}},
            "managed_agents": {},
            "prompt_templates": prompts,
            "max_steps": 10,
            "verbosity_level": 2,
            "planning_interval": 2,
            "name": "test_agent",
            "description": "dummy description",
            "authorized_imports": ["pandas"],
            "requirements": ["smolagents", "pandas"],
        }
        if version != "v1.9":
            saved |= {"executor_type": "local", "executor_kwargs": {}, "max_print_outputs_length": None}
        if version not in ("v1.9", "v1.10"):
            saved |= {"class": "CodeAgent"}
        return saved

    return build


# The tools below are defined inside their fixtures because smolagents reads a tool's source when saving it,
# and then wants everything the tool uses inside the tool itself.


@pytest.fixture
def test_tool() -> Any:
    class EchoTool(Tool):
        name = "test_tool"
        description = "Says what it was given"
        inputs = {"input": {"type": "string", "description": "What to say; 'error' makes the tool fail"}}
        output_type = "string"

        def forward(self, input: str) -> str:
            if input == "error":
                raise ValueError("asked to fail")
            return f"Processed: {input}"

    return EchoTool()


@pytest.fixture
def example_tool() -> Any:
    @tool
    def shout(text: str) -> str:
        """Write a text in capitals.

        Args:
            text: The text.
        """
        return text.upper()

    return shout


@pytest.fixture
def no_input_tool() -> Any:
    class NoInputTool(Tool):
        name = "no_input_tool"
        description = "Tool with no inputs"
        inputs = {}
        output_type = "string"

        def forward(self) -> str:
            return "nothing"

    return NoInputTool()


@pytest.fixture
def single_input_tool() -> Any:
    class SingleInputTool(Tool):
        name = "single_input_tool"
        description = "Tool with one input"
        inputs = {"text": {"type": "string", "description": "Input text"}}
        output_type = "string"

        def forward(self, text: str) -> str:
            return text

    return SingleInputTool()


@pytest.fixture
def multi_input_tool() -> Any:
    class MultiInputTool(Tool):
        name = "multi_input_tool"
        description = "Tool with multiple inputs"
        inputs = {
            "text": {"type": "string", "description": "Text input"},
            "count": {"type": "integer", "description": "Number count"},
        }
        output_type = "object"

        def forward(self, text: str, count: int) -> object:
            return [text] * count

    return MultiInputTool()


@pytest.fixture
def multiline_description_tool() -> Any:
    class MultilineDescriptionTool(Tool):
        name = "multiline_description_tool"
        description = "This is a tool with\nmultiple lines\nin the description"
        inputs = {"input": {"type": "string", "description": "Some input"}}
        output_type = "string"

        def forward(self, input: str) -> str:
            return input

    return MultilineDescriptionTool()


@pytest.fixture
def boolean_default_tool_class() -> Any:
    class FlagTool(Tool):
        name = "flag_tool"
        description = "Reads a flag"
        inputs = {
            "text": {"type": "string", "description": "A text"},
            "flag": {"type": "boolean", "description": "A flag", "nullable": True},
        }
        output_type = "string"

        def forward(self, text: str, flag: bool = False) -> str:
            return f"{text} {flag}"

    return FlagTool()


@pytest.fixture
def boolean_default_tool_function() -> Any:
    @tool
    def flag_tool(text: str, flag: bool = False) -> str:
        """Read a flag.

        Args:
            text: A text.
            flag: A flag.
        """
        return f"{text} {flag}"

    return flag_tool


@pytest.fixture
def optional_input_tool_class() -> Any:
    class OptionalTool(Tool):
        name = "optional_tool"
        description = "Takes a second text or none"
        inputs = {
            "text": {"type": "string", "description": "A text"},
            "optional_text": {"type": "string", "description": "Another one", "nullable": True},
        }
        output_type = "string"

        def forward(self, text: str, optional_text: str | None = None) -> str:
            return f"{text} {optional_text}"

    return OptionalTool()


@pytest.fixture
def optional_input_tool_function() -> Any:
    @tool
    def optional_tool(text: str, optional_text: str | None = None) -> str:
        """Take a second text or none.

        Args:
            text: A text.
            optional_text: Another one.
        """
        return f"{text} {optional_text}"

    return optional_tool
