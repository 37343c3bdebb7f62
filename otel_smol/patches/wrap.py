"""Putting wrappers on, and taking exactly those off again."""

from __future__ import annotations

import copy
import functools
import pkgutil
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import wrapt

from otel_smol.guard import guarded, warn_once

Wrapper: TypeAlias = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""A wrapt wrapper function: wrapped, instance, args, kwargs."""


_MOST_LAYERS = 20
"""A method with more wrappers than these is left alone."""
_FEW = 200
"""Wrappers that may be on before any is looked at for whether its class has gone."""


class _Bound(wrapt.BoundFunctionWrapper[Any, Any]):
    """A method of an object, or of a class. It copies and pickles as without us: by its owner and its name."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        method = self.__wrapped__
        owner = getattr(method, "__self__", None)
        if owner is None:
            path = f"{method.__module__}:{method.__qualname__.rpartition('.')[0]}"
            return getattr, (pkgutil.resolve_name(path), method.__name__)
        return getattr, (owner, method.__name__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)


class _FunctionWrapper(wrapt.FunctionWrapper[Any, Any]):
    __bound_function_wrapper__ = _Bound


_functions: weakref.WeakKeyDictionary[Any, Wrapper] = weakref.WeakKeyDictionary()
"""Wrappers that are functions. A mark on them would not do: `functools.wraps` copies marks."""


def _as_function(method: Callable[..., Any], wrapper: Wrapper) -> Any:
    @functools.wraps(method)
    def watched(instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        return wrapper(MethodType(method, instance), instance, args, kwargs)

    _functions[watched] = wrapper
    return watched


def definer(cls: type, name: str) -> type | None:
    """The class in the MRO that defines an attribute, or None."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base
    return None


class Wraps:
    """The wrappers that are on. Classes are held weakly: those built at run time may go."""

    def __init__(self) -> None:
        self._on: list[tuple[weakref.ref[type], str, weakref.ref[Any]]] = []
        self._look_again_at = _FEW
        self._replaced: list[tuple[ModuleType, str, object, object]] = []
        self._lock = threading.Lock()

    def wrap(self, cls: type, name: str, wrapper: Wrapper, *, light: bool = False) -> bool:
        """Wrap a method that this very class defines, once. False if it does not, or cannot be patched (C types).

        `light` is for what is called very often: a function, where the method is one, and not a proxy that passes for
        it in all respects. That takes half the time.
        """
        method = vars(cls).get(name)
        if method is None or _is_on(method, wrapper):
            return method is not None
        with self._lock:
            method = vars(cls).get(name)
            if method is None or _is_on(method, wrapper):
                return method is not None
            as_function = light and type(method) is FunctionType
            proxy: Any = _as_function(method, wrapper) if as_function else _FunctionWrapper(method, wrapper)
            try:
                setattr(cls, name, proxy)
            except (AttributeError, TypeError):
                return False
            if len(self._on) >= self._look_again_at:  # for classes that have gone
                self._on = [entry for entry in self._on if entry[0]() is not None]
                self._look_again_at = 2 * len(self._on) + _FEW
            self._on.append((weakref.ref(cls), name, weakref.ref(proxy)))
            return True

    def wrap_required(self, cls: type, name: str, wrapper: Wrapper) -> None:
        """Wrap a method that smolagents should have; warn once if this version has not."""
        if not self.wrap(cls, name, wrapper):
            missing(f"{cls.__name__}.{name}")

    def wrap_definer(self, cls: type, name: str, wrapper: Wrapper) -> None:
        """Wrap a method where the MRO first defines it, if anywhere; never in the standard library.

        A mock's `__call__` is that of every mock in the process.
        """
        owner = definer(cls, name)
        if owner is None or _is_on(owner.__dict__[name], wrapper) or _of_the_standard_library(owner):
            return
        self.wrap(owner, name, wrapper)

    def replace(self, module: ModuleType, name: str, value: object) -> None:
        """Replace a module's attribute."""
        original = getattr(module, name)
        setattr(module, name, value)
        self._replaced.append((module, name, original, value))

    def remove(self) -> None:
        """Put the originals back: the very same objects.

        A wrapper that a stranger has covered with something other than wrapt stays; it passes everything through.
        """
        for class_ref, name, proxy_ref in reversed(self._on):  # the last put on comes off first
            cls, proxy = class_ref(), proxy_ref()
            if cls is None or proxy is None:
                continue
            with guarded(f"taking the patch off {name}"):
                self._remove(cls, name, proxy)
        for module, name, original, value in reversed(self._replaced):
            if getattr(module, name, None) is value:
                setattr(module, name, original)
        self._on.clear()
        self._replaced.clear()

    @staticmethod
    def _remove(cls: type, name: str, proxy: Any) -> None:
        original = proxy.__wrapped__
        if vars(cls).get(name) is proxy:
            setattr(cls, name, original)
            return
        with suppress(wrapt.WrapperNotOutermostError):
            wrapt.unwrap_object(cls, name, proxy, missing_ok=True)


def _is_on(method: Any, wrapper: Wrapper) -> bool:
    """Whether our wrapper is on a method, on top or below what others have put over it."""
    for _ in range(_MOST_LAYERS):
        if type(method) is FunctionType and _functions.get(method) is wrapper:
            return True
        if not isinstance(method, wrapt.FunctionWrapper):
            return False  # a function that `functools.wraps` has given `__wrapped__`, say: it may do what it likes
        if getattr(method, "_self_wrapper", None) is wrapper:
            return True
        method = method.__wrapped__
    return True


def _of_the_standard_library(cls: type) -> bool:
    """Whether a class is defined there; one made by calling `abc.ABCMeta`, say, only looks like it."""
    module = cls.__module__
    known = module.partition(".")[0] in sys.stdlib_module_names
    return known and getattr(sys.modules.get(module), cls.__qualname__, None) is cls


def missing(target: str) -> None:
    """Say once that a patch target is not there."""
    warn_once(
        f"missing:{target}",
        "otel_smol: this version of smolagents has no %s: what it does is not observed.",
        target,
    )


def argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, name: str, default: Any = None) -> Any:
    """An argument, however it was passed."""
    return kwargs[name] if name in kwargs else args[position] if len(args) > position else default
