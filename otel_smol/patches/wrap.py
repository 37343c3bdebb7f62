"""Putting wrappers on, and taking exactly those off again."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import wrapt

from otel_smol.guard import guarded, warn_once
from otel_smol.patches import proxies
from otel_smol.patches.proxies import Inherited, is_on

Wrapper: TypeAlias = proxies.Wrapper

_FEW = 200
"""Wrappers that may be on before any is looked at for whether its class has gone."""


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

        `light` is for what is called very often (see `proxies.light`).
        """
        method = vars(cls).get(name)
        if method is None or is_on(method, wrapper):
            return method is not None
        with self._lock:
            method = vars(cls).get(name)
            if method is None or is_on(method, wrapper):
                return method is not None
            return self._put_on(cls, name, (proxies.light if light else proxies.full)(method, wrapper))

    def wrap_required(self, cls: type, name: str, wrapper: Wrapper) -> None:
        """Wrap a method that smolagents should have; warn once if this version has not."""
        if not self.wrap(cls, name, wrapper):
            missing(f"{cls.__name__}.{name}")

    def wrap_definer(self, cls: type, name: str, wrapper: Wrapper) -> None:
        """Wrap a method where the MRO first defines it, if anywhere; never in the standard library.

        A mock's `__call__` is that of every mock in the process, and that of somebody's base class may be that of every
        layer of a network: such a base is left alone, and the class itself gets what goes on to it.
        """
        owner = definer(cls, name)
        method = None if owner is None else vars(owner)[name]
        if owner is None or method is None or is_on(method, wrapper) or _of_the_standard_library(owner):
            return
        if owner is cls or _of_smolagents(owner):
            self.wrap(owner, name, wrapper)
        elif not proxies.is_told(method):
            with self._lock:
                if name not in vars(cls):
                    place: Any = Inherited(cls, name, method, wrapper)
                    if name != "__call__" and type(method) is FunctionType:
                        place = proxies.InheritedFunction(place)
                    self._put_on(cls, name, place)

    def _put_on(self, cls: type, name: str, proxy: Any) -> bool:
        try:
            setattr(cls, name, proxy)
        except Exception:  # a C type; or a metaclass that lets nothing be set
            return False
        if len(self._on) >= self._look_again_at:  # for classes that have gone
            self._on = [entry for entry in self._on if entry[0]() is not None]
            self._look_again_at = 2 * len(self._on) + _FEW
        self._on.append((weakref.ref(cls), name, weakref.ref(proxy)))
        return True

    def replace(self, module: ModuleType, name: str, value: object) -> None:
        """Replace a module's attribute."""
        original = getattr(module, name)
        setattr(module, name, value)
        self._replaced.append((module, name, original, value))

    def remove(self) -> None:
        """Put the originals back: the very same objects.

        A wrapper that a stranger has covered with something other than wrapt stays; it passes everything through.
        So does one that goes on to a base, whatever covers it.
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
        outermost = vars(cls).get(name) is proxy
        if type(proxy) in (Inherited, proxies.InheritedFunction):
            if outermost:
                delattr(cls, name)
        elif outermost:
            setattr(cls, name, proxy.__wrapped__)
        else:
            with suppress(wrapt.WrapperNotOutermostError):
                wrapt.unwrap_object(cls, name, proxy, missing_ok=True)


def _of_smolagents(cls: type) -> bool:
    """Whether a class is smolagents' or derives from one."""
    return any(str(base.__module__).partition(".")[0] == "smolagents" for base in cls.__mro__)


def _of_the_standard_library(cls: type) -> bool:
    """Whether a class is defined there; one made by calling `abc.ABCMeta`, say, only looks like it."""
    module = str(cls.__module__)
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
