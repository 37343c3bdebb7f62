"""Emits every kind of span and nearly every attribute: planning, a managed agent, a stream, errors, two turns, an
image, a shortened memory, a model called outside of a run. The models are OpenAIModels, to a server on loopback.
"""

from contextlib import suppress
from typing import Any

from PIL import Image
from smolagents import CodeAgent, LogLevel, ToolCallingAgent

from otel_smol import conversation
from tests.model_server import ModelServer, Reply, code, final_answer, openai_model, rate_limited, text, tool_call
from tests.scripted import Truth, make_tool

QUIET = {"verbosity_level": LogLevel.OFF}


def forget_the_first_observation(step: Any, agent: Any) -> None:
    """What a user does to save tokens."""
    if step.step_number == 3:
        next(each for each in agent.memory.steps if getattr(each, "observations", None)).observations = "forgotten"


def a_manager_that_plans() -> None:
    """CodeAgent: plans, a tool that fails, a managed agent, provider's details, request parameters."""
    answers = [
        text("Look it up, then ask."),
        code("print(search(1))", cache_read=100, cache_write=20, reasoning=3),
        code("print(broken(1))"),
        text("Ask now."),
        code('print(researcher(task="part"))'),
        tool_call("search", {"n": 2}),
        final_answer("found"),
        code("print(search(3))"),
        text("Finish."),
        code('final_answer("done")'),
    ]
    with ModelServer(answers) as server:
        tools = [make_tool(Truth()), make_tool(Truth(), "broken", does=lambda n: 1 / 0)]
        researcher = ToolCallingAgent(
            tools=tools[:1], model=openai_model(server), name="researcher", description="Researches.", **QUIET
        )
        penalties: dict[str, Any] = {"frequency_penalty": 0.1, "presence_penalty": 0.2}
        model = openai_model(server, temperature=0.5, top_p=0.9, max_tokens=500, seed=7, client_retries=0, **penalties)
        agent = CodeAgent(
            tools=tools,
            model=model,
            managed_agents=[researcher],
            planning_interval=2,
            step_callbacks=[forget_the_first_observation],
            name="manager",
            description="Manages.",
            **QUIET,
        )
        with conversation("support-42"):
            agent.run("the task")


def a_stream_to_the_limit() -> None:
    """ToolCallingAgent, streamed: ends at `max_steps`, goes on in a second turn, is left in the middle of a third."""
    answers = [
        tool_call("search", {"n": 1}, usage="running"),
        Reply("no call at all"),
        text("out of steps"),
        *rate_limited(1),
    ]
    with ModelServer(answers) as server:
        agent = ToolCallingAgent(
            tools=[make_tool(Truth())],
            model=openai_model(server),
            stream_outputs=True,
            max_steps=2,
            name="reader",
            description="Reads.",
            **QUIET,
        )
        list(agent.run("the task", stream=True))
        with suppress(Exception):  # the server refuses
            list(agent.run("and now?", stream=True, reset=False))


def show_a_picture(step: Any, agent: Any) -> None:
    """What a browser's tool does; a picture that is given with the task counts as the task."""
    if step.step_number == 1:
        step.observations_images = [Image.new("RGB", (8, 8))]


def a_picture() -> None:
    """Structured answers, and a picture among the observations."""
    answers = [
        Reply('{"thought": "look", "code": "print(1)"}'),
        Reply('{"thought": "done", "code": "final_answer(1)"}'),
    ]
    with ModelServer(answers) as server:
        agent = CodeAgent(
            tools=[],
            model=openai_model(server),
            use_structured_outputs_internally=True,
            step_callbacks=[show_a_picture],
            name="seer",
            **QUIET,
        )
        agent.run("the task", images=[Image.new("RGB", (8, 8))])


def a_call_outside() -> None:
    with ModelServer([text("hello"), text("half of this")]) as server:
        openai_model(server).generate([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
        stream = openai_model(server).generate_stream([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
        next(iter(stream))
        stream.close()


if __name__ == "__main__":
    a_manager_that_plans()
    a_stream_to_the_limit()
    a_picture()
    a_call_outside()
