"""The curve of a run: closed form, overpay, fit and forecast."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_smol.curve import Fit, OnlineFit, Planning, forecast, input_tokens, overpay, overpay_of

prompts = st.integers(0, 2_000_000)
bases = st.integers(0, 200_000)
growths = st.integers(0, 50_000)
many = st.integers(3, 200)


def online(tokens: list[int]) -> OnlineFit:
    fit = OnlineFit()
    for prompt in tokens:
        fit.add(prompt)
    return fit


def fitted(tokens: list[int]) -> Fit:
    fit = online(tokens).fit()
    assert fit is not None
    return fit


def line(base: int, growth: int, calls: int) -> list[int]:
    return [base + growth * index for index in range(calls)]


# --- closed form -----------------------------------------------------------------------------------------------------


@given(bases, growths, st.integers(0, 200))
def test_closed_form_is_the_sum_of_the_prompts(base: int, growth: int, calls: int) -> None:
    """P45: n calls send n*P + s*n*(n-1)/2 tokens."""
    assert input_tokens(base, growth, calls) == sum(line(base, growth, calls))


@given(st.integers(1, 50_000), st.integers(33, 500))
def test_twice_the_steps_four_times_the_replay(step: int, calls: int) -> None:
    """P45: the replayed total is quadratic: twice the steps replay four times as much, within 5 % from 33 steps on."""

    def replayed(n: int) -> int:
        history = line(0, step, n)  # in the prompt of each call
        seen = [0, *accumulate(history, max)]  # sent by an earlier call
        return sum(min(sent, before) for sent, before in zip(history, seen, strict=False))

    assert replayed(calls) == input_tokens(0, step, calls - 1)  # the first step is never sent before call 2
    assert replayed(2 * calls) / replayed(calls) == pytest.approx(4, abs=0.2)


@pytest.mark.parametrize(("calls", "expected"), [(0, 0.0), (1, 0.0), (4, 1.5), (8, 3.5), (12, 5.5), (20, 9.5)])
def test_overpay(calls: int, expected: float) -> None:
    """P45: with equal steps every token of history is sent (n-1)/2 times."""
    assert overpay(calls) == expected


@given(st.integers(1, 50_000), st.integers(1, 300))
def test_overpay_of_equal_steps_is_the_closed_form(step: int, calls: int) -> None:
    """P45: measured overpay and closed form agree where steps are equal."""
    assert overpay_of(line(0, step, calls), [step] * calls) == pytest.approx(overpay(calls))


def test_overpay_of_nothing_is_unknown() -> None:
    """Without any history there is nothing to overpay."""
    assert overpay_of([], []) is None
    assert overpay_of([0, 0], [0, 0]) is None
    assert overpay_of((x for x in [0, 10, 30]), (x for x in [10, 20, 30])) == pytest.approx(40 / 60)


# --- fit -------------------------------------------------------------------------------------------------------------


def test_fit_of_none_and_one() -> None:
    """No call gives no line; one call gives P only."""
    assert OnlineFit().fit() is None
    assert fitted([500]) == Fit(500.0, 0.0, None, 1)


@given(st.lists(prompts, min_size=1, max_size=200))
def test_fit_keeps_the_bill(tokens: list[int]) -> None:
    """P45: whatever the prompts, the line adds up to what was billed."""
    fit = fitted(tokens)
    assert fit.calls == len(tokens)
    assert fit.total(fit.calls) == pytest.approx(sum(tokens), abs=1e-3)
    assert sum(fit.prompt(index) for index in range(fit.calls)) == pytest.approx(sum(tokens), abs=1e-3)


@given(bases, growths, st.integers(2, 200))
def test_fit_recovers_a_line(base: int, growth: int, calls: int) -> None:
    """P45: prompts on a line give back its P and s, with R² 1."""
    fit = fitted(line(base, growth, calls))
    assert (fit.base_tokens, fit.growth_tokens, fit.r_squared, fit.calls) == (base, growth, 1.0, calls)


@given(st.lists(prompts, min_size=2, max_size=50))
def test_fit_is_least_squares(tokens: list[int]) -> None:
    """No line nearby fits better, and R² is 1 minus the residuals' share of the variance."""
    fit = fitted(tokens)

    def residuals(base: float | Fraction, growth: float) -> Fraction:
        """Exactly: in floats, what is left of large squares may be nothing but rounding."""
        return sum(((y - Fraction(base) - Fraction(growth) * x) ** 2 for x, y in enumerate(tokens)), Fraction(0))

    best = residuals(fit.base_tokens, fit.growth_tokens)
    for base, growth in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)):
        assert best <= residuals(fit.base_tokens + base, fit.growth_tokens + growth)
    spread = residuals(Fraction(sum(tokens), len(tokens)), 0.0)
    assert fit.r_squared is not None
    assert 0.0 <= fit.r_squared <= 1.0
    assert fit.r_squared * float(spread) == pytest.approx(float(spread - best), rel=1e-6, abs=1e-2)


@given(prompts, st.integers(2, 50))
def test_fit_of_equal_prompts(prompt: int, calls: int) -> None:
    """Equal prompts are a perfect flat line: s 0 and R² 1, not a division by zero."""
    assert fitted([prompt] * calls) == Fit(float(prompt), 0.0, 1.0, calls)


def test_fit_is_not_bent_by_a_constant_prompt() -> None:
    """P46: a larger fixed prompt moves P and leaves s."""
    small, large = (fitted([base + x for x in (0, 433, 866, 1300)]) for base in (8494, 80_494))
    assert large.growth_tokens == pytest.approx(small.growth_tokens)
    assert large.base_tokens == pytest.approx(small.base_tokens + 72_000)


# --- forecast --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [[], [100], [100, 200]])
def test_no_forecast_before_the_third_call(tokens: list[int]) -> None:
    """P48: two points always lie on a line, so no forecast from them."""
    assert forecast(online(tokens).fit(), 20) is None


@given(bases, growths, many, st.integers(0, 300))
def test_forecast_of_a_line_is_the_closed_form(base: int, growth: int, calls: int, max_steps: int) -> None:
    """P45: prompts on a line: the forecast is the closed form, or the bill once the steps are used up."""
    fit = fitted(line(base, growth, calls))
    assert forecast(fit, max_steps) == input_tokens(base, growth, max(calls, max_steps))


@given(st.lists(prompts, min_size=3, max_size=50), st.integers(0, 100))
def test_forecast_is_the_bill_and_what_the_line_predicts(tokens: list[int], max_steps: int) -> None:
    """P48: never below what was billed, and equal to a call-by-call sum with each prompt at least 0."""
    fit = fitted(tokens)
    predicted = forecast(fit, max_steps)
    assert predicted is not None
    assert predicted >= sum(tokens)
    to_come = sum(max(0.0, fit.prompt(index)) for index in range(len(tokens), max_steps))
    assert predicted == pytest.approx(sum(tokens) + to_come, abs=1)


def test_forecast_after_compaction() -> None:
    """P48: a falling line predicts no negative prompts, and fewer of them than there are steps."""
    fit = fitted([1000, 800, 600])
    assert fit.growth_tokens == -200
    assert forecast(fit, 100) == 1000 + 800 + 600 + 400 + 200


@given(bases, growths, st.integers(2, 50), st.integers(1, 5), st.integers(0, 300))
def test_forecast_of_several_calls_per_step(base: int, growth: int, steps: int, per_step: int, max_steps: int) -> None:
    """An agent that calls its model several times in each step goes on to do so."""
    calls = steps * per_step
    fit = fitted(line(base, growth, calls))
    expected = input_tokens(base, growth, max(calls, max_steps * per_step)) if calls >= 3 else None
    assert forecast(fit, max_steps, steps=steps) == expected


@pytest.mark.parametrize("max_steps", [None, 10**9, 10**30])
def test_no_forecast_without_a_limit(max_steps: int | None) -> None:
    """A billion steps stand for no limit: what they would cost says nothing, and may be more than OTLP can carry."""
    assert forecast(fitted([1000, 2000, 3000]), max_steps) is None


def test_forecast_adds_other_calls() -> None:
    """Calls of no step count with what they have cost, and are not predicted."""
    assert forecast(fitted([100, 200, 300]), 4, other_tokens=50) == 1000 + 50


# --- planning --------------------------------------------------------------------------------------------------------


@given(
    base=bases,
    growth=growths,
    planning_base=bases,
    interval=st.integers(1, 10),
    steps=st.integers(3, 40),
    max_steps=st.integers(3, 60),
)
def test_forecast_with_planning(
    base: int, growth: int, planning_base: int, interval: int, steps: int, max_steps: int
) -> None:
    """P52: action and planning prompts on two parallel lines: the forecast is the exact bill of all steps."""

    def plans(last: int) -> dict[int, int]:
        return {step: planning_base + growth * step for step in range(1, last + 1, interval)}

    planning = Planning(interval)
    for step, prompt in plans(steps).items():
        planning.add(step, prompt)
    last = max(steps, max_steps)
    expected = sum(line(base, growth, last)) + sum(plans(last).values())
    assert forecast(fitted(line(base, growth, steps)), max_steps, planning) == expected


def test_forecast_between_a_plan_and_its_action() -> None:
    """P52: a plan that is billed already is not predicted once more before its action call."""
    planning = Planning(interval=3)
    planning.add(1, 100)
    planning.add(4, 130)
    fit = fitted([1000, 1010, 1020])
    assert forecast(fit, 7, planning) == input_tokens(1000, 10, 7) + 100 + 130 + 160


def test_planning_does_not_bend_the_action_curve() -> None:
    """P52: one plan, then others off the line: only the planning part moves."""
    planning = Planning(interval=2)
    planning.add(1, 10)
    planning.add(3, 500)
    alone = forecast(fitted([100, 200, 300]), 6)
    both = forecast(fitted([100, 200, 300]), 6, planning)
    assert alone is not None
    assert both == alone + 510 + 255 + 100 * (5 - 2)


@pytest.mark.parametrize("interval", [None, 0, -1])
def test_without_an_interval_only_billed_plans_count(interval: int | None) -> None:
    """P52: no planning interval: what was billed counts and nothing is predicted."""
    planning = Planning(interval)
    planning.add(1, 77)
    assert forecast(fitted([100, 200, 300]), 4, planning) == 1000 + 77


def test_without_a_billed_plan_none_is_predicted() -> None:
    """P34: planning calls without usage leave nothing to predict from, and no error."""
    assert forecast(fitted([100, 200, 300]), 4, Planning(interval=1)) == 1000


def test_falling_plans_stop_at_zero() -> None:
    """P48: a negative growth predicts no negative plans."""
    planning = Planning(interval=1)
    for step, prompt in ((1, 500), (2, 300), (3, 100)):
        planning.add(step, prompt)
    assert forecast(fitted([1000, 800, 600]), 50, planning) == 3000 + 900


@given(
    tokens=st.lists(prompts, min_size=3, max_size=30),
    plans=st.lists(prompts, min_size=1, max_size=10),
    interval=st.integers(1, 5),
    max_steps=st.integers(0, 80),
)
def test_forecast_is_never_below_the_bill(tokens: list[int], plans: list[int], interval: int, max_steps: int) -> None:
    """P48: whatever the calls, the forecast covers everything billed so far."""
    planning = Planning(interval)
    for index, prompt in enumerate(plans):
        planning.add(1 + index * interval, prompt)
    predicted = forecast(fitted(tokens), max_steps, planning, other_tokens=9)
    assert predicted is not None
    assert predicted >= sum(tokens) + sum(plans) + 9
