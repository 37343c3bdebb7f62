"""Reads what a program exposes for Prometheus."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from .programs import get, wait_for

Labels = frozenset[tuple[str, str]]
Samples = dict[tuple[str, Labels], float]

# As Prometheus asks, so that exemplars and start times are there.
OPEN_METRICS = "application/openmetrics-text;version=1.0.0"

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(url: str) -> Samples:
    """Every series of this moment with its value."""
    status, text = get(url, accept=OPEN_METRICS)
    assert status == 200, url
    found: Samples = {}
    for line in text.splitlines():
        if (match := _LINE.match(line)) is not None:
            labels = frozenset(_LABEL.findall(match["labels"] or ""))
            assert (match["name"], labels) not in found, f"twice: {line}"
            found[match["name"], labels] = float(match["value"])
    return found


def settled(url: str, condition: Callable[[Samples], bool], what: str) -> Samples:
    """Every series once the condition holds and nothing more is added: twice the same, a moment apart.

    A look may meet the collector in the middle of a request, with one metric counted and the next one not yet.
    """
    found: Samples = {}

    def at_rest() -> bool:
        nonlocal found
        found = samples(url)
        if not condition(found):
            return False
        time.sleep(0.3)
        return samples(url) == found

    wait_for(at_rest, what)
    return found


def total(found: Samples, name: str, **labels: str) -> float:
    """The sum over all series of this name that have these labels."""
    return sum(value for (n, have), value in found.items() if n == name and labels.items() <= dict(have).items())


def series(found: Samples) -> set[tuple[str, Labels]]:
    """All but the exposition's own `target_info`."""
    return {key for key in found if key[0] != "target_info"}
