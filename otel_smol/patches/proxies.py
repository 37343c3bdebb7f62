"""What stands in a class for a method that is watched. Whoever looks at it, copies or pickles it finds the method."""

from __future__ import annotations

import copy
import functools
import operator
import pkgutil
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import wrapt

Wrapper: TypeAlias = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""A wrapt wrapper function: wrapped, instance, args, kwargs."""

_MOST_LAYERS = 20
"""A method with more wrappers than these is left alone."""


class Function(wrapt.FunctionWrapper[Any, Any]):
    """A function. Bound, it is a method like any other, and a class shows the same object each time.

    wrapt's own bound wrappers are neither: `weakref.WeakMethod` does not take them, and by `is` every method would look
    overridden.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not args or args[0] is None:  # passed by name, or not at all: that is between the two
            return self.__wrapped__(*args, **kwargs)
        wrapper: Any = self._self_wrapper  # no annotation on the class: it would be taken for the function's
        return wrapper(MethodType(self.__wrapped__, args[0]), args[0], args[1:], kwargs)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        method = self.__wrapped__
        # dill writes classes of `__main__` down with all that is in them, and so with this.
        return _only(method) if method.__module__ == "__main__" and "dill" in sys.modules else _by_name(method)


class _Bound(wrapt.BoundFunctionWrapper[Any, Any]):
    """What is no plain method, of an object or of a class. It copies and pickles by its owner and its name."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        method = self.__wrapped__
        owner = getattr(method, "__self__", None)
        return _by_name(method) if owner is None else (getattr, (owner, method.__name__))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)


class Other(wrapt.FunctionWrapper[Any, Any]):
    """What is no function: a static or class method, an object to call, what others have wrapped."""

    __bound_function_wrapper__ = _Bound

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _only(self.__wrapped__)


class Property(wrapt.BaseObjectProxy[Any]):
    """A property, or anything else that is told when its attribute is set. What it gives is watched."""

    def __init__(self, wrapped: Any, wrapper: Wrapper) -> None:
        super().__init__(wrapped)
        self._self_wrapper = wrapper

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        found = self.__wrapped__.__get__(instance, owner)
        if found is self.__wrapped__:
            return self
        return _bound(found, instance, self._self_wrapper) if instance is not None and callable(found) else found

    def __set__(self, instance: Any, value: Any) -> None:
        self.__wrapped__.__set__(instance, value)

    def __delete__(self, instance: Any) -> None:
        self.__wrapped__.__delete__(instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _only(self.__wrapped__)


class Inherited:
    """In a class whose method comes from a base of others: it goes on to what the base has by then.

    It cannot be called, and the class shows what the base does: smolagents writes the source of a tool from what is in
    the class and can be called.
    """

    def __init__(self, cls: type, name: str, method: Any, wrapper: Wrapper) -> None:
        self.cls, self.name, self.method, self.wrapper = cls, name, method, wrapper
        self._function = _GoingOn(self)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        of: Any = owner if instance is None else instance
        if not isinstance(of, self.cls) and not (isinstance(of, type) and issubclass(of, self.cls)):
            return self.method.__get__(instance, owner)  # another class that was made of what is in this one
        method = getattr(super(self.cls, of), self.name)
        if instance is None:
            return method
        if type(method) is MethodType and method.__self__ is instance:
            return MethodType(self._function, instance)
        return _bound(method, instance, self.wrapper)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _only(self.method)


class _GoingOn(Function):
    """The function of a method that is inherited so."""

    def __init__(self, place: Inherited) -> None:
        super().__init__(place.method, place.wrapper)
        self._self_place = place

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        place = self._self_place
        if not args or not isinstance(args[0], place.cls):
            return place.method(*args, **kwargs)
        return place.wrapper(getattr(super(place.cls, args[0]), place.name), args[0], args[1:], kwargs)


class InheritedFunction(_GoingOn):
    """`Inherited` that passes for the function that it stands for, where it does not matter that it can be called."""

    def __init__(self, place: Inherited) -> None:
        super().__init__(place)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self._self_place.__get__(instance, owner)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _only(self.__wrapped__)


_functions: weakref.WeakKeyDictionary[Any, Wrapper] = weakref.WeakKeyDictionary()
"""Wrappers that are functions. A mark on them would not do: `functools.wraps` copies marks."""


def light(method: Any, wrapper: Wrapper) -> Any:
    """For smolagents' own that is called very often: a real function takes half the time.

    It passes for the method in most respects, but not for dill, which writes down the classes of `__main__` whole.
    """
    if type(method) is not FunctionType:
        return full(method, wrapper)

    @functools.wraps(method)
    def watched(instance: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        if instance is None:  # passed by name, or not at all
            return method(*args, **kwargs)
        return wrapper(MethodType(method, instance), instance, args, kwargs)

    _functions[watched] = wrapper
    return watched


def full(method: Any, wrapper: Wrapper) -> Any:
    """What can stand for a method in all respects."""
    if type(method) in (FunctionType, Function):
        return Function(method, wrapper)
    return Property(method, wrapper) if is_told(method) else Other(method, wrapper)


def is_told(method: Any) -> bool:
    """Whether a thing in a class is told when the attribute is set: a property, say."""
    return hasattr(type(method), "__set__") or hasattr(type(method), "__delete__")


def is_on(method: Any, wrapper: Wrapper) -> bool:
    """Whether our wrapper is on a method, on top or below what others have put over it."""
    for _ in range(_MOST_LAYERS):
        if type(method) is InheritedFunction:
            method = method._self_place
        if type(method) is Inherited:
            return bool(method.wrapper is wrapper)
        if type(method) is FunctionType and _functions.get(method) is wrapper:
            return True
        if not isinstance(method, (wrapt.FunctionWrapper, Property)):
            return False  # a function that `functools.wraps` has given `__wrapped__`, say: it may do what it likes
        if getattr(method, "_self_wrapper", None) is wrapper:
            return True
        method = method.__wrapped__
    return True


def _bound(method: Any, instance: Any, wrapper: Wrapper) -> Any:
    return _Bound(method, instance, wrapper)  # type: ignore[call-arg]


def _by_name(method: Any) -> Any:
    """To be unpickled as what its class has by then; alone, where it is not found so: within a function, say."""
    with suppress(Exception):
        owner = pkgutil.resolve_name(f"{method.__module__}:{method.__qualname__.rpartition('.')[0]}")
        if getattr(owner, method.__name__).__wrapped__ is method:
            return getattr, (owner, method.__name__)
    return _only(method)


def _only(method: Any) -> Any:
    """To be unpickled as the method alone: it can be read without us."""
    return operator.getitem, ((method,), 0)
