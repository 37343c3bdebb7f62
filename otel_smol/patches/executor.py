"""smolagents' thread pools: generated code and parallel tool calls see the caller's OpenTelemetry context.

`local_python_executor.timeout` runs code in a pool thread without it (smolagents#1961), so a tool called there would
start a trace of its own. Other context variables (the precision of `decimal`, say) stay what they are without us. Only
the name in smolagents' modules is replaced; no other pool of the process is touched.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from opentelemetry.context import get_current

from otel_smol.context import attached
from otel_smol.guard import guarded
from otel_smol.patches.wrap import Wraps


def patch_pools(wraps: Wraps, modules: list[ModuleType]) -> None:
    """Make every pool of these modules carry the context on at `submit`. Versions without a pool need none."""
    for module in modules:
        with guarded("patching an executor"):
            original = getattr(module, "ThreadPoolExecutor", None)
            if isinstance(original, type):
                wraps.replace(module, "ThreadPoolExecutor", _carrying(original))


def _carrying(pool: type) -> type:
    class ThreadPoolExecutor(pool):  # type: ignore[misc]
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            context = get_current()

            def within() -> Any:
                with attached(context):
                    return fn(*args, **kwargs)

            return super().submit(within)

    ThreadPoolExecutor.__module__ = pool.__module__
    ThreadPoolExecutor.__qualname__ = pool.__qualname__
    return ThreadPoolExecutor
