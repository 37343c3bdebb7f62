"""What stands in a class for a method: it is taken for the method, and stands in no class that is not smolagents'."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
import sys
import types
import unittest.mock
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from smolagents import CodeAgent, Model, MultiStepAgent, Tool
from smolagents.memory import MemoryStep

from otel_smol import SmolagentsInstrumentor
from tests.conftest import Observed, Warnings, attributes
from tests.rules import check_all
from tests.scripted import (
    AGENT_CLASSES,
    FINAL_CODE,
    Script,
    ScriptedModel,
    agent,
    code,
    each_class,
    message,
    step_replies,
)

# --- methods as values -----------------------------------------------------------------------------------------------


class Plain(Tool):  # type: ignore[misc]
    """A tool that overrides nothing."""

    name, description, output_type = "plain", "Does nothing.", "string"
    inputs: Any = {}  # noqa: RUF012

    def forward(self) -> str:
        return "nothing"


class Loud(Plain):
    """A tool with a `__call__` of its own, which smolagents writes down with it."""

    name = "loud"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return f"{super().__call__(*args, **kwargs)}!"


class Model_(ScriptedModel):
    """A model with all kinds of functions. The first argument has another name, and there are defaults."""

    def generate(this, messages: Any, *args: Any, tries: int = 1, **kwargs: Any) -> Any:
        return super().generate(messages, *args, **kwargs)

    def generate_stream(this, messages: Any, stop_sequences: Any = None, *args: Any, **kwargs: Any) -> Any:
        yield from super().generate_stream(messages, stop_sequences, *args, **kwargs)


class Async(Model):  # type: ignore[misc]
    """Answers later."""

    async def generate(self, messages: Any) -> Any:
        return messages


def looked_at(owner: Any, name: str) -> list[Any]:
    """What a program may see of a method, bound, of the class and in the class."""
    cls = type(owner)
    bound, unbound = getattr(owner, name), getattr(cls, name)
    definer = next(base for base in cls.__mro__ if name in vars(base))
    seen: list[Any] = [type(bound), bound.__self__ is owner, bound.__func__ is unbound, vars(definer)[name] is unbound]
    seen += [unbound is getattr(base, name) for base in cls.__mro__ if hasattr(base, name)]
    seen += [weakref.WeakMethod(bound)() == bound, repr(unbound), repr(bound), callable(unbound)]
    seen += [copy.copy(unbound) is unbound, copy.deepcopy(unbound) is unbound, isinstance(unbound, types.FunctionType)]
    for method in (bound, unbound):
        seen += [method.__code__, method.__defaults__, method.__kwdefaults__, method.__name__, method.__qualname__]
        seen += [method.__module__, method.__doc__, inspect.signature(method), inspect.getfullargspec(method)]
        seen += [inspect.getsource(method), inspect.isgeneratorfunction(method), inspect.iscoroutinefunction(method)]
        seen += [inspect.isasyncgenfunction(method), inspect.isroutine(method), inspect.ismethod(method)]
    return seen


@each_class
def test_a_method_looks_the_same(cls: type, observe: Callable[..., Observed]) -> None:
    """Signal libraries hold methods by `weakref.WeakMethod`; frameworks ask by `is` whether one is overridden, and
    what kind of function it is."""
    script = Script(*step_replies(cls, 2, "plain"))
    subject = agent(cls, script, model=Model_(script), tools=[Plain(), Loud()])
    methods = [(subject, name) for name in ("run", "step", "_step_stream", "provide_final_answer", "_finalize_step")]
    methods += [(subject.model, "generate"), (subject.model, "generate_stream"), (Async(), "generate")]
    methods += [(tool, "__call__") for tool in (Plain(), Loud())]
    bare = [looked_at(owner, name) for owner, name in methods]
    observe()
    subject.run("the task")
    assert [looked_at(owner, name) for owner, name in methods] == bare
    assert Plain.__call__ is Tool.__call__
    assert cls.run is MultiStepAgent.run  # type: ignore[attr-defined]


@pytest.mark.parametrize("watched", [False, True])
def test_what_smolagents_writes_down(watched: bool, observe: Callable[..., Observed]) -> None:
    """A tool is saved with the methods that it has of its own, whatever stands for them."""
    if watched:
        observe()
    written = Loud().to_dict()["code"]
    assert ("def __call__" in written, "def forward" in written) == (True, False)
    assert "__call__" not in Plain().to_dict()["code"]


def test_the_instance_by_name(observed: Observed, warned: Warnings) -> None:
    """A method may be called with its instance by name, or wrongly: both as without us."""
    script = Script("one", "two")
    model: Any = Model_(script)
    assert Model_.generate(this=model, messages=[]).content == "one"
    assert Model_.generate(model, []).content == "two"
    with pytest.raises(TypeError, match=r"generate\(\) missing 2 required positional arguments: 'this' and 'messages'"):
        Model_.generate()  # type: ignore[call-arg]
    assert warned.lines == []


def test_a_mock_with_the_methods_of_a_model(observed: Observed) -> None:
    """`create_autospec` knows what they take."""
    model = unittest.mock.create_autospec(Model_, instance=True)
    model.generate([], tries=2)
    with pytest.raises(TypeError):
        model.generate()


# --- classes that are written down whole -----------------------------------------------------------------------------


@dataclasses.dataclass
class Note(MemoryStep):  # type: ignore[misc]
    """A user's kind of memory step."""

    def to_messages(self, summary_mode: bool = False) -> list[Any]:
        return []


def local_classes() -> list[type]:
    """Classes that nobody finds by name, as those of `__main__` are nobody's in another process."""

    class Functions(Model):  # type: ignore[misc]
        def generate(self, messages: Any, **kwargs: Any) -> Any:
            return "answer"

        def generate_stream(self, messages: Any, **kwargs: Any) -> Any:
            yield "answer"

    class Others(Model):  # type: ignore[misc]
        generate = staticmethod(lambda messages, **kwargs: "answer")
        generate_stream = functools.partialmethod(lambda self, how, messages: "answer", "streamed")

    class Properties(Model):  # type: ignore[misc]
        generate = property(lambda self: lambda messages: "answer")

    class Steps(Note):
        def to_messages(self, summary_mode: bool = False) -> list[Any]:
            return []

    return [Functions, Others, Properties, Steps]


def test_classes_pickled_by_value(observe: Callable[..., Observed]) -> None:
    """dill and cloudpickle write down a class of `__main__` with all that is in it: the originals, and nothing of
    ours, so that it can be read where we are not."""
    classes = local_classes()
    bare = [dict(vars(cls)) for cls in classes]
    observe()
    subject = agent(CodeAgent, Script(FINAL_CODE))
    for cls in classes[:3]:
        cls()
    subject.memory.steps.append(classes[3]())
    subject.run("the task", reset=False)
    for cls, before in zip(classes, bare, strict=True):
        changed = {name: value for name, value in vars(cls).items() if before[name] is not value}
        assert changed
        for name, value in changed.items():
            make, arguments = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            assert make(*arguments) is before[name]
            assert not make.__module__.startswith("otel_smol")


def test_functions_of_main(observe: Callable[..., Observed], monkeypatch: pytest.MonkeyPatch) -> None:
    """pickle finds those by their names, as ever. Only where dill is, which does not, they go as they are."""
    monkeypatch.setattr(Model_.generate, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Model_", Model_, raising=False)
    original = Model_.generate
    observe()
    agent(CodeAgent, Script(FINAL_CODE), model=Model_(Script(FINAL_CODE))).run("the task")
    assert vars(Model_)["generate"] is not original
    assert pickle.loads(pickle.dumps(vars(Model_)["generate"])) is Model_.generate
    monkeypatch.setitem(sys.modules, "dill", types.ModuleType("dill"))
    make, arguments = vars(Model_)["generate"].__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    assert make(*arguments) is original


# --- properties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [False, True])
def test_a_property_that_can_be_set(watched: bool, observe: Callable[..., Observed], warned: Warnings) -> None:
    """`generate` as a property: its setter and its deleter are called after a run as before one."""
    observed = observe() if watched else None
    script = Script(FINAL_CODE, FINAL_CODE)
    told = []

    class Swappable(ScriptedModel):
        backend: Any = None

        @property
        def generate(self) -> Any:
            return self.backend

        @generate.setter
        def generate(self, value: Any) -> None:
            told.append("set")
            self.backend = value

        @generate.deleter
        def generate(self) -> None:
            told.append("deleted")
            self.backend = None

    def answer(messages: Any, **kwargs: Any) -> Any:
        return ScriptedModel.generate(model, messages, **kwargs)

    model: Any = Swappable(script)
    for _ in range(2):
        model.generate = answer
        assert agent(CodeAgent, script, model=model).run("the task") == "done"
    del model.generate
    assert told == ["set", "set", "deleted"]
    assert model.generate is None
    assert "generate" not in vars(model)
    assert Swappable.generate is vars(Swappable)["generate"]
    assert isinstance(Swappable.generate, property)
    if observed is not None:
        check_all(observed, script.truth)
    assert warned.lines == []


# --- base classes of others ------------------------------------------------------------------------------------------


class Layer:
    """As `torch.nn.Module`: of a library's, and the base of much that is no tool."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)  # type: ignore[attr-defined]

    @staticmethod
    def static(messages: Any, **kwargs: Any) -> Any:
        return "static", messages

    @classmethod
    def of_class(cls, messages: Any, **kwargs: Any) -> Any:
        return cls, messages


class Linear(Layer):
    """One that is no tool."""

    def forward(self, n: int) -> int:
        return n


def embed() -> Any:
    """A tool that is a network, of a class that exists only from here on."""

    class Embed(Layer, Tool):  # type: ignore[misc]
        name, description, output_type = "search", "Embeds something.", "string"
        inputs = {"n": {"type": "integer", "description": "a number"}}  # noqa: RUF012
        skip_forward_signature_validation = True

        def __init__(self) -> None:
            Tool.__init__(self)
            self.layers = [Linear() for _ in range(50)]

        def forward(self, n: int, sanitize_inputs_outputs: bool = False) -> str:
            for layer in self.layers:
                n = layer(n)
            return str(n)

    return Embed()


@each_class
def test_a_base_of_others_is_left_alone(cls: type, observe: Callable[..., Observed], warned: Warnings) -> None:
    """A tool with a library's `__call__` has one span; the library's other classes have none, nor a wrapper."""
    tool = embed()
    of_layer, of_tool = dict(vars(Layer)), dict(vars(type(tool)))
    bare = looked_at(tool, "__call__")
    observed = observe()
    agent(cls, Script(*step_replies(cls, 2)), tools=[tool]).run("the task")
    assert [span.name for span in observed.tools].count("execute_tool search") == 1
    assert not any("Linear" in span.name for span in observed.spans)
    assert attributes(observed.steps[0])["smolagents.step.tool_calls"] == 1
    assert dict(vars(Layer)) == of_layer
    assert type(tool).__call__ is Layer.__call__
    of_function = 2  # the place of `__func__` in what is seen: that of the bound method is ours
    now = looked_at(tool, "__call__")
    assert [*now[:of_function], *now[of_function + 2 :]] == [*bare[:of_function], *bare[of_function + 2 :]]
    assert not callable(vars(type(tool))["__call__"])  # else smolagents would write it down with the tool
    make, arguments = vars(type(tool))["__call__"].__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    assert make(*arguments) is Layer.__call__
    SmolagentsInstrumentor().uninstrument()
    assert dict(vars(type(tool))) == of_tool
    assert warned.lines == []


def test_a_base_that_changes(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the base becomes later is what is called, through two classes, and through a class made of the first."""
    tool = embed()
    below = type("Below", (type(tool),), {})
    agent(CodeAgent, Script(code("print(search(1))"), FINAL_CODE), tools=[tool, make_named(below)]).run("the task")
    again = type("Again", type(tool).__bases__, dict(vars(type(tool))))
    held, original = weakref.WeakMethod(tool.__call__), Layer.__call__
    monkeypatch.setattr(Layer, "__call__", lambda self, *args, **kwargs: "patched")
    assert [tool(1), below()(1), held()(1)] == ["patched"] * 3  # type: ignore[misc]
    assert again().__call__.__func__ is original


def make_named(cls: Any) -> Any:
    """A tool of a class, under another name."""
    cls.name = "below"
    return cls()


@pytest.mark.parametrize("kind", ["function", "static", "of_class", "property"])
def test_a_model_with_a_base_of_others(kind: str, observe: Callable[..., Observed], warned: Warnings) -> None:
    """An object that is no `Model` and has `generate` from a base is seen; what a property gives there is not."""

    class Base(Layer):
        def function(self, messages: Any, **kwargs: Any) -> Any:
            return self, messages

    given = property(lambda self: lambda messages, **kwargs: messages)
    Base.generate = given if kind == "property" else vars(Base if kind == "function" else Layer)[kind]  # type: ignore[attr-defined]
    model: Any = type("Duck", (Base,), {})()
    before, bare = dict(vars(type(model))), model.generate([])
    bases = [dict(vars(cls)) for cls in (Base, Layer)]
    observed = observe()
    with pytest.raises(Exception):  # noqa: B017, PT011 - the answer is no message
        agent(CodeAgent, Script(), model=model, max_steps=1).run("the task")
    seen = len(observed.chats)
    assert model.generate([]) == bare
    assert len(observed.chats) - seen == (kind != "property")
    assert [dict(vars(cls)) for cls in (Base, Layer)] == bases
    SmolagentsInstrumentor().uninstrument()
    assert dict(vars(type(model))) == before
    assert warned.of("failed") == []


@pytest.mark.parametrize("cls", AGENT_CLASSES)
def test_a_stranger_over_what_goes_on_to_a_base(cls: type, observe: Callable[..., Observed], warned: Warnings) -> None:
    """Somebody wraps the class's method once we have: it works on, seen while we are on and only then."""
    tool = embed()

    def calls() -> int:
        before = len(observed.tools)
        agent(cls, Script(*step_replies(cls, 2)), tools=[tool]).run("the task")
        return [span.name for span in observed.tools[before:]].count("execute_tool search")

    observed = observe()
    assert calls() == 1
    inner = vars(type(tool))["__call__"]

    @functools.wraps(inner)
    def outer(self: Any, *args: Any, **kwargs: Any) -> Any:
        return inner.__get__(self)(*args, **kwargs)

    type(tool).__call__ = outer
    assert calls() == 1
    SmolagentsInstrumentor().uninstrument()
    assert vars(type(tool))["__call__"] is outer
    assert calls() == 0
    observed.instrument()
    assert calls() == 1
    assert warned.lines == []


def test_mocks_of_a_class_with_a_base_of_others(observed: Observed) -> None:
    """They have the signature of what is inherited; and its function goes on to other objects."""

    class Base:
        def generate(self, messages: Any) -> Any:
            return self, messages

    duck, other = type("Duck", (Base,), {})(), Base()
    with pytest.raises(Exception):  # noqa: B017, PT011 - the answer is no message
        agent(CodeAgent, Script(), model=duck, max_steps=1).run("the task")
    assert "generate" in vars(type(duck))
    unittest.mock.create_autospec(type(duck), instance=True).generate(["a message"])
    with unittest.mock.patch.object(type(duck), "generate", autospec=True) as mocked:
        duck.generate(["a message"])
        mocked.assert_called_once_with(duck, ["a message"])
    function = duck.generate.__func__
    assert types.MethodType(function, other)([]) == (other, [])
    assert function(self=other, messages=[]) == (other, [])
    with pytest.raises(TypeError):
        function()


def test_a_class_that_lets_nothing_be_set(observe: Callable[..., Observed]) -> None:
    """Its models are not observed; all others are."""

    class Sealed(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise RuntimeError("sealed")

    class SealedModel(ScriptedModel, metaclass=Sealed):
        def generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            return message(*self.script.answer(messages))

    script = Script(FINAL_CODE)
    observed = observe()
    assert agent(CodeAgent, script, model=SealedModel(script)).run("the task") == "done"
    assert observed.chats == []
    agent(CodeAgent, Script(FINAL_CODE)).run("the task")
    assert len(observed.chats) == 1
