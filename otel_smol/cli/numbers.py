"""How numbers are written, and which ones stand on an axis."""

from __future__ import annotations

import math


def tokens(number: float) -> str:
    """A whole number with thousands apart."""
    return f"{round(number):,}"


def short(number: float) -> str:
    """A rounded number for an axis: `950`, `9.5k`, `120k`, `1.2M`."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:.3g}"


def percent(share: float) -> str:
    """A share as a whole percentage; `<1%` rather than `0%` for what is there."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def times(number: float) -> str:
    """A factor with one decimal."""
    return f"{number:.1f}"


def count(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def ticks(highest: float, about: int = 4) -> list[float]:
    """Round numbers from 0 to at most `highest`, about so many steps."""
    if highest <= 0:
        return [0.0]
    rough = highest / about
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= rough)
    return [step * i for i in range(int(highest / step + 1e-9) + 1)]


def step_ticks(steps: int, most: int = 12) -> list[int]:
    """Step numbers to write on an axis: the first, the last, and round ones between."""
    every = next(n for n in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500) if steps / n <= most)
    inner = [n for n in range(every, steps, every) if n > 1 and steps - n >= every / 2]
    return sorted({1, *inner, steps})
