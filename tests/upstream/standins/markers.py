"""Laid into the unpacked suite as `tests/utils/markers.py`, which its test files import and the archive lacks."""

from importlib.util import find_spec

import pytest


def _needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"needs {module}")


# These tests call real services (models, sandboxes, web search) or run containers.
require_run_all = pytest.mark.skip(reason="needs network, keys or containers")
require_torch = _needs("torch")
require_soundfile = _needs("soundfile")
