"""The curve of a run: what n calls cost when every call sends the whole memory again.

Words: P (``base``) are the tokens that every call sends, s (``growth``) those that one step adds. Call i, counted
from 0, sends ``P + s*i`` tokens, so n calls send ``n*P + s*n*(n-1)/2``. Units are tokens unless said otherwise. What
is kept of a run, and the time that a call takes, do not grow with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MIN_FORECAST_CALLS = 3
"""Action calls that a forecast needs: two points always lie on a line, the third is the first that can disagree."""


def input_tokens(base: float, growth: float, calls: float) -> float:
    """Input tokens of ``calls`` calls: ``n*P + s*n*(n-1)/2``, the sum of the line ``P + s*i`` over i = 0 … n-1. Between
    whole numbers it is the parabola through them."""
    return calls * base + growth * calls * (calls - 1) / 2


def overpay(calls: int) -> float:
    """History tokens sent ÷ history tokens that exist, for steps of equal size: ``(n-1)/2``; 0 for no or one call.

    Call i sends the i steps before it, so n calls send ``s*n*(n-1)/2`` tokens of history, and ``s*n`` exist.
    """
    return max(calls - 1, 0) / 2


def overpay_of(sent: Iterable[float], added: Iterable[float]) -> float | None:
    """The same for steps of any size, in any unit: ``sum(sent) / sum(added)``.

    ``sent``: history in the prompt of each call. ``added``: what each step added, the last step included although no
    call sends it. None when nothing was added.
    """
    total_added = sum(added)
    return sum(sent) / total_added if total_added > 0 else None


@dataclass(frozen=True, slots=True)
class Fit:
    """The line through the prompts of a run's action calls, by least squares."""

    base_tokens: float
    """P: tokens of the first prompt, on the line."""
    growth_tokens: float
    """s: tokens that one step adds. Negative when the memory was cut."""
    r_squared: float | None
    """Share of the prompts' variance that the line explains, 0 to 1. None for one call; 1 when all prompts are equal,
    as the line then meets every one of them. Two calls always give 1."""
    calls: int
    """Calls measured."""

    def prompt(self, index: int) -> float:
        """Tokens of call ``index``, counted from 0, on the line."""
        return self.base_tokens + self.growth_tokens * index

    def total(self, calls: int) -> float:
        """Tokens of ``calls`` calls on the line.

        ``total(self.calls)`` is the sum of the measured prompts: a least-squares line with an intercept goes through
        the means.
        """
        return input_tokens(self.base_tokens, self.growth_tokens, calls)


class OnlineFit:
    """Least squares over the prompts of action calls, one at a time.

    The sums are integers, so nothing is lost however long the run. Of the six that least squares needs, the number of
    calls gives those over the indices 0, 1, 2, … in closed form. A call without usage is not added: the calls after it
    move up by one.
    """

    __slots__ = ("_calls", "_index_tokens", "_tokens", "_tokens_squared")

    def __init__(self) -> None:
        self._calls = 0
        self._tokens = 0
        self._tokens_squared = 0
        self._index_tokens = 0

    def add(self, prompt_tokens: int) -> None:
        """Take in the billed input of the next action call."""
        self._index_tokens += self._calls * prompt_tokens
        self._tokens += prompt_tokens
        self._tokens_squared += prompt_tokens * prompt_tokens
        self._calls += 1

    def fit(self) -> Fit | None:
        """The line so far. None before the first call; after one call P is that prompt and s is 0."""
        n, y, xy = self._calls, self._tokens, self._index_tokens
        if n == 0:
            return None
        if n == 1:
            return Fit(float(y), 0.0, None, 1)
        x = n * (n - 1) // 2
        xx = x * (2 * n - 1) // 3
        x_spread = n * xx - x * x  # n² times the variance, and so on
        y_spread = n * self._tokens_squared - y * y
        xy_spread = n * xy - x * y
        r_squared = xy_spread * xy_spread / (x_spread * y_spread) if y_spread else 1.0
        return Fit((y * xx - x * xy) / x_spread, xy_spread / x_spread, r_squared, n)


@dataclass(slots=True)
class Planning:
    """The planning calls of a run: when they come, and what they cost so far."""

    interval: int | None = None
    """smolagents' ``planning_interval``: plans are made at steps 1, 1 + interval, 1 + 2*interval, … None: at none."""
    calls: int = 0
    """Planning calls with known usage."""
    tokens: int = 0
    """Their input."""
    step_numbers: int = 0
    """The sum of their step numbers."""
    last_step: int = 0
    """Step number of the last one."""

    def add(self, step_number: int, prompt_tokens: int) -> None:
        """Take in the billed input of the planning call at ``step_number``."""
        self.calls += 1
        self.tokens += prompt_tokens
        self.step_numbers += step_number
        self.last_step = max(self.last_step, step_number)

    def remaining(self, growth: float, steps: int, max_steps: int) -> float:
        """Predicted input of the planning calls still to come after ``steps`` action calls.

        A plan at step x is predicted as the mean of the plans so far, moved by ``growth`` per step from their mean
        step, and at least 0. With none billed there is nothing to go by: 0.
        """
        if not self.calls or self.interval is None or self.interval < 1:
            return 0.0
        done = max(self.last_step, steps)  # the plan of a step comes before its action
        next_step = 1 + self.interval * ((done - 1) // self.interval + 1)
        count = (max_steps - next_step) // self.interval + 1
        prompt = self.tokens / self.calls + growth * (next_step - self.step_numbers / self.calls)
        return _positive_sum(prompt, growth * self.interval, count)


MAX_FORECAST = 1 << 53
"""What is not below this says nothing (``max_steps`` of a billion stands for "no limit"), and OTLP cannot carry it."""


def forecast(
    fit: Fit | None,
    max_steps: int | None,
    planning: Planning | None = None,
    *,
    other_tokens: int = 0,
    steps: int | None = None,
) -> int | None:
    """Own input tokens of the run if it uses all of ``max_steps`` action steps. None before the third action call, and
    where there is no limit to speak of.

    It is what was billed, plus the prompts still to come on the line of the action calls, each at least 0; without that
    floor the action part is ``fit.total(max_steps)``. An action call without usage is among those to come: it was
    sent, although not reported. The planning calls are added (`Planning.remaining`), and ``other_tokens``, what other
    calls have cost so far. The extra call for a final answer at ``max_steps`` is not predicted. An agent that calls its
    model several times per step makes as many calls in the steps to come as in the ``steps`` so far (by default one in
    each).
    """
    if fit is None or max_steps is None or fit.calls < MIN_FORECAST_CALLS:
        return None
    per_step = fit.calls / (steps or fit.calls)
    tokens = fit.total(fit.calls) + other_tokens
    tokens += _positive_sum(fit.prompt(fit.calls), fit.growth_tokens, round(max_steps * per_step) - fit.calls)
    if planning is not None:
        tokens += planning.tokens
        tokens += planning.remaining(fit.growth_tokens * per_step, steps or fit.calls, max_steps)
    return round(tokens) if tokens < MAX_FORECAST else None


def _positive_sum(first: float, step: float, count: int) -> float:
    """Sum of ``max(0, first + step*i)`` over i = 0 … count-1, in closed form."""
    if count <= 0:
        return 0.0
    last = first + step * (count - 1)
    if last > first:  # the same terms, from the largest down
        first, last, step = last, first, -step
    if first <= 0:
        return 0.0
    if last < 0:
        count = int(first / -step) + 1  # those before the line falls below 0
    return input_tokens(first, step, count)
