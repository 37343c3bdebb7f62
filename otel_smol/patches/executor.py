"""smolagents' thread pools: generated code and parallel tool calls see the caller's context.

`local_python_executor.timeout` runs code in a pool thread without it (smolagents#1961), so a tool called there would
start a trace of its own. Only the name in smolagents' modules is replaced; no other pool of the process is touched.
"""

from __future__ import annotations

from contextvars import copy_context
from types import ModuleType
from typing import Any

from otel_smol.guard import guarded
from otel_smol.patches.wrap import Wraps


def patch_pools(wraps: Wraps, modules: list[ModuleType]) -> None:
    """Make every pool of these modules copy the context at `submit`. Versions without a pool need none."""
    for module in modules:
        with guarded("patching an executor"):
            original = getattr(module, "ThreadPoolExecutor", None)
            if isinstance(original, type):
                wraps.replace(module, "ThreadPoolExecutor", _copying(original))


def _copying(pool: type) -> type:
    class ThreadPoolExecutor(pool):  # type: ignore[misc]
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return super().submit(copy_context().run, fn, *args, **kwargs)

    ThreadPoolExecutor.__module__ = pool.__module__
    ThreadPoolExecutor.__qualname__ = pool.__qualname__
    return ThreadPoolExecutor
