"""The seams with smolagents: one file each. They look at what passes, and return it untouched."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_smol.config import Config
from otel_smol.garbage import is_collected, settle
from otel_smol.guard import guarded
from otel_smol.patches.executor import patch_pools
from otel_smol.patches.memory import (
    MemorySteps,
    defines_to_messages,
    to_messages,
    write_memory_to_messages,
)
from otel_smol.patches.model import Models
from otel_smol.patches.run import RunWatch, Turns, new_turns, run
from otel_smol.patches.step import (
    finalize_step,
    owner_by_hand,
    planning_step,
    provide_final_answer,
    step,
    step_stream,
)
from otel_smol.patches.tool import call_tool
from otel_smol.patches.wrap import Wraps, missing
from otel_smol.spans.owner import Owner
from otel_smol.surroundings import look_around
from otel_smol.weak import WeakIdMap

if TYPE_CHECKING:
    from otel_smol.telemetry import Telemetry


class Patches:
    """All patches on smolagents, and what they share."""

    def __init__(self, telemetry: Telemetry, config: Config) -> None:
        self.telemetry, self.config = telemetry, config
        self.memory_steps = MemorySteps()
        self.open_runs: set[RunWatch] = set()
        self.tool_schema: Callable[[Any], Any] | None = None
        self._agent: type | None = None
        """smolagents' base class of agents."""
        self._on = False
        self._wraps = Wraps()
        self._turns: WeakIdMap[Turns] = WeakIdMap()
        self._by_hand: WeakIdMap[Owner] = WeakIdMap()
        self.models = Models(self, self._wraps)
        self._agent_seams = {
            "step": step(self),
            "_step_stream": step_stream(self),
            "_finalize_step": finalize_step(self),
            "_generate_planning_step": planning_step(self),
            "provide_final_answer": provide_final_answer(self),
            "write_memory_to_messages": write_memory_to_messages(self),
            "__call__": call_tool(self, managed=True),
        }
        self._tool_call = call_tool(self, managed=False)

    @property
    def active(self) -> bool:
        """Whether anything is to be observed here and now. False makes every wrapper pass through."""
        return self._on and is_instrumentation_enabled() and not is_collected()

    def apply(self) -> None:
        """Patch smolagents, which has been imported. What is missing in this version is skipped with a warning."""
        agents, memory = _module("agents"), _module("memory")
        models, tools = _module("models"), _module("tools")
        base = _target(agents, "MultiStepAgent")
        if base is None:
            return
        self._agent = base
        self.tool_schema = _target(models, "get_tool_json_schema")
        self._wraps.wrap_required(base, "run", run(self))
        for name, wrapper in self._agent_seams.items():
            if name != "_step_stream":
                self._wraps.wrap_required(base, name, wrapper)
        for cls in _family(base):
            self._observe_agent_class(cls)
        for cls in _family(_target(memory, "MemoryStep")):
            self.observe_memory_step(cls)
        model, tool = _target(models, "Model"), _target(tools, "Tool")
        if model is not None:
            self._wraps.wrap_required(model, "__init__", self.models.made)
        for cls in _family(model):
            self.models.observe_class(cls)
        if tool is not None:
            self._wraps.wrap_required(tool, "__call__", self._tool_call)
        for cls in _family(tool):
            self.observe_tool_class(cls)
        patch_pools(self._wraps, [module for module in (agents, _module("local_python_executor")) if module])
        self._on = True

    def remove(self) -> None:
        """Take all patches off. Runs that go on do so unobserved; their spans end here."""
        self._on = False
        settle()
        for watch in list(self.open_runs):
            with guarded("ending a run"):
                watch.closed()
        self._wraps.remove()

    def observe_agent(self, agent: Any) -> None:
        """See to an agent that is about to run: its class, its model's, its tools', its managed agents'."""
        with guarded("observing an agent's class"):
            self._observe_agent_class(type(agent))
        with guarded("observing an agent's tools"):
            for tool in agent.tools.values():
                self.observe_tool_class(type(tool))
        with guarded("observing managed agents"):
            for managed in agent.managed_agents.values():
                self._observe_agent_class(type(managed))

    def observe_tool_class(self, cls: type) -> None:
        """Wrap `__call__` where a tool's class gets it from."""
        self._wraps.wrap_definer(cls, "__call__", self._tool_call)

    def observe_memory_step(self, cls: type) -> None:
        """Wrap `to_messages` where a kind of memory step gets it from."""
        owner = defines_to_messages(cls)
        if owner is not None:  # the whole memory passes there, at each step
            self._wraps.wrap(owner, "to_messages", to_messages, light=owner.__module__.startswith("smolagents."))

    def hold_model(self, model: Any) -> Callable[[], None]:
        """Cover a model for the length of a run (see `Models.hold`)."""
        return self.models.hold(model)

    def turns(self, agent: Any, reset: bool) -> Turns:
        """The conversation of an agent; a new one after a reset."""
        known = None if reset else self._turns.get(agent)
        if known is None:
            known = new_turns()
            self._turns.set(agent, known)
        return known

    def by_hand(self, agent: Any) -> Owner:
        """What the steps of an agent belong to that somebody drives by hand."""
        return self._by_hand.setdefault(agent, lambda: owner_by_hand(self, agent))

    def look_around(self) -> None:
        """Is there an SDK, and are we alone? Looked up once, when something is about to be observed."""
        look_around(self.telemetry)

    def _observe_agent_class(self, cls: type) -> None:
        """Of what only stands for an agent nothing but the call is what it is called for."""
        is_agent = self._agent is not None and issubclass(cls, self._agent)
        for name, wrapper in self._agent_seams.items():
            if is_agent or name == "__call__":
                self._wraps.wrap_definer(cls, name, wrapper)


def _target(module: ModuleType | None, name: str) -> Any:
    """Something of smolagents', or None and one warning."""
    found = getattr(module, name, None)
    if found is None and module is not None:
        missing(f"{module.__name__.removeprefix('smolagents.')}.{name}")
    return found


def _family(cls: type | None) -> list[type]:
    """A class and all that derive from it so far."""
    if cls is None:
        return []
    family: list[type] = [cls]
    children: list[type] = cls.__subclasses__()
    for child in children:
        family.extend(_family(child))
    return family


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"smolagents.{name}")
    except ImportError:
        missing(f"module smolagents.{name}")
        return None
