"""The state of one run: what its calls sent, what they were billed for, and where that is going.

Pure: facts go in, numbers come out. Tools may call models from several threads, so every change is made under a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from otel_smol.curve import Fit, OnlineFit, Planning, forecast, overpay_of
from otel_smol.history import (
    CHARACTERS_PER_TOKEN,
    Body,
    Cell,
    History,
    Message,
    PromptSizes,
    by_source,
    by_tool,
    split,
)
from otel_smol.semconv import FIXED_SOURCES
from otel_smol.usage import UNKNOWN, Usage


@dataclass(slots=True)
class TokenCount:
    """Tokens of one or more calls. `fixed + new + replayed == input`, exactly."""

    input: int = 0
    output: int = 0
    fixed: int = 0
    new: int = 0
    replayed: int = 0

    def add(self, other: TokenCount) -> None:
        self.input += other.input
        self.output += other.output
        self.fixed += other.fixed
        self.new += other.new
        self.replayed += other.replayed


@dataclass(slots=True)
class Call:
    """One model call as the agent sees it."""

    type: str
    step: Step | None = None
    sizes: PromptSizes | None = None
    """None when the prompt could not be read."""
    usage: Usage = UNKNOWN
    tokens: int | None = None
    """Of the prompt: billed, or estimated where `billed` says so."""
    billed: bool = False
    cells: dict[Cell, int] = field(default_factory=dict)
    """The same by source, tool and age."""
    by_source: dict[str, int] = field(default_factory=dict)
    by_tool: dict[str, int] = field(default_factory=dict)
    """Of observations only."""
    compacted_tokens: int = 0
    context_share: float | None = None
    answered: bool = False

    count: TokenCount = field(default_factory=TokenCount)
    """The split of `tokens`, once the call has ended."""


@dataclass(slots=True)
class Step:
    """One action, planning or final-answer step, and its own calls."""

    type: str
    number: int | None
    billed: TokenCount = field(default_factory=TokenCount)
    calls: int = 0
    unknown_input: bool = False
    unknown_output: bool = False
    tool_outputs: list[tuple[str, int]] = field(default_factory=list)
    """Tools that the step called, with the length of what each returned."""


class RunLedger:
    """What one run knows of itself. Tokens are the run's own, without managed agents, unless named `total_*`."""

    def __init__(
        self,
        max_steps: int | None,
        planning_interval: int | None = None,
        token_budget: int | None = None,
        context_window: int | None = None,
    ) -> None:
        self.max_steps = max_steps
        self.token_budget = token_budget
        self.context_window = context_window
        self.history = History()
        self.billed = TokenCount()
        self.total_input = 0
        self.total_output = 0
        self.calls = 0
        self.calls_without_usage = 0
        self.calls_with_usage = 0
        self.steps = 0
        self.planning_steps = 0
        self.recovered_errors = 0
        self._lock = threading.Lock()
        self._tokens_per_character: float | None = None
        self._sent: int = 0
        self._added: int = 0
        self._pending_characters = 0
        self._fit = OnlineFit()
        self._fit_broken = False
        self._line: Fit | None = None
        self._planning = Planning(planning_interval)
        self._other_input = 0
        self._fitted_steps = 0
        self._fitted_step: Step | None = None
        self._forecast: int | None = None
        self._forecasts: list[int | None] = []
        self._over_budget = False
        self._fullest_share: float | None = None
        self._pending_call: Call | None = None

    # --- calls -------------------------------------------------------------------------------------------------------

    def begin_call(self, type: str, step: Step | None) -> Call:
        """Count a call that is about to be made."""
        with self._lock:
            self.calls += 1
        return Call(type, step)

    def measure(
        self, call: Call, bodies: Sequence[Body], describe: Callable[[int], Message], schema_characters: int = 0
    ) -> None:
        """Size up the prompt of a call, before it is made (see `History.measure`)."""
        with self._lock:
            call.sizes = self.history.measure(call.type, bodies, describe, schema_characters)
            self._set_tokens(call, round(call.sizes.weight * self._ratio()))
            self._pending_call = call

    def end_call(self, call: Call, usage: Usage, answered: bool) -> None:
        """Book what the provider reported. A call that failed has nothing to report and is no call without usage."""
        with self._lock:
            call.usage, call.answered = usage, answered
            if usage.input_tokens is not None:
                call.billed = True
                known = self._tokens_per_character is not None
                if call.sizes is not None and call.sizes.weight and not (known and call.type == "other"):
                    self._tokens_per_character = usage.input_tokens / call.sizes.weight
                self._set_tokens(call, usage.input_tokens)
            self._split(call)
            if call.context_share is not None:
                self._fullest_share = max(self._fullest_share or 0.0, call.context_share)
            if self._pending_call is call:
                self._pending_call = None
            if answered or usage != UNKNOWN:
                self._book(call, usage)
            self._note_history(call)

    def add_total(self, input_tokens: int, output_tokens: int) -> bool:
        """Add a call of this run or of a managed agent within it. True when this crosses the token budget."""
        with self._lock:
            self.total_input += input_tokens
            self.total_output += output_tokens
            over = self.token_budget is not None and self.total_input > self.token_budget
            crossed = over and not self._over_budget
            self._over_budget = over
            return crossed

    def end_step(self, step: Step, pending_characters: int) -> None:
        """Count a finished step. `pending_characters`: what it leaves in the memory, until the next call sends it."""
        with self._lock:
            if step.type == "planning":
                self.planning_steps += 1
            elif step.type == "action":
                self.steps += 1
            self._pending_characters = pending_characters

    # --- derived -----------------------------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether any call has reported its input."""
        return self.calls_with_usage > 0

    @property
    def replay_share(self) -> float | None:
        """Replayed tokens ÷ input tokens."""
        return self.billed.replayed / self.billed.input if self.billed.input else None

    @property
    def overpay(self) -> float | None:
        """History tokens sent ÷ history tokens that exist; what the last step left behind exists, though nobody sent
        it."""
        pending = round(self._pending_characters * self._ratio())
        return overpay_of([self._sent], [self._added, pending])

    @property
    def fit(self) -> Fit | None:
        """The line through the action prompts. None when one of them was answered without usage: it would not be the
        bill's."""
        return self._line

    @property
    def forecast(self) -> int | None:
        """Own input tokens if the run uses all its steps, as things stand; None before the third action call, and once
        there is no fit."""
        return self._forecast

    @property
    def forecast_half_way(self) -> int | None:
        """The forecast as it stood when half of the action calls had been made."""
        return self._forecasts[(len(self._forecasts) - 1) // 2] if self._forecasts else None

    @property
    def max_context_share(self) -> float | None:
        """Share of the context window that the fullest prompt took: as billed, and for a call that goes on an
        estimate."""
        pending = self._pending_call
        shares = (self._fullest_share, pending.context_share if pending is not None else None)
        return max((share for share in shares if share is not None), default=None)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _ratio(self) -> float:
        return self._tokens_per_character or 1 / CHARACTERS_PER_TOKEN

    def _set_tokens(self, call: Call, tokens: int) -> None:
        call.tokens = tokens
        call.context_share = tokens / self.context_window if self.context_window else None

    def _split(self, call: Call) -> None:
        sizes, tokens = call.sizes, call.tokens or 0
        call.cells = {Cell("other", None, False): tokens} if sizes is None else split(sizes.cells, tokens)
        if sizes is not None and sizes.compacted and sizes.weight:
            call.compacted_tokens = round(sizes.compacted * tokens / sizes.weight)
        call.by_source, call.by_tool = by_source(call.cells), by_tool(call.cells)
        count = call.count = TokenCount(tokens, call.usage.output_tokens or 0)
        for cell, n in call.cells.items():
            if cell.source in FIXED_SOURCES:
                count.fixed += n
            elif cell.replayed:
                count.replayed += n
            else:
                count.new += n

    def _book(self, call: Call, usage: Usage) -> None:
        count = call.count
        if not call.billed:
            count = TokenCount(output=count.output)
            self.calls_without_usage += call.answered
        else:
            self.calls_with_usage += 1
        self.billed.add(count)
        self._note_curve(call)
        step = call.step
        if step is not None:
            step.billed.add(count)
            step.calls += 1
            step.unknown_input |= not call.billed
            step.unknown_output |= usage.output_tokens is None

    def _note_history(self, call: Call) -> None:
        if call.type == "other" or call.sizes is None or not (call.answered or call.billed):
            return
        self._sent += call.count.new + call.count.replayed
        self._added += call.count.new
        if call.type == "action":
            self._pending_characters = 0

    def _note_curve(self, call: Call) -> None:
        tokens = call.tokens or 0
        if call.type == "action":
            if call.billed:
                self._fit.add(tokens)
                self._fitted_steps += call.step is not self._fitted_step
                self._fitted_step = call.step
            else:
                self._fit_broken = True
            self._line = None if self._fit_broken else self._fit.fit()
        elif not call.billed:
            return
        elif call.type == "planning":
            self._planning.add(call.step.number if call.step and call.step.number else 1, tokens)
        else:
            self._other_input += tokens
        self._forecast = forecast(
            self._line, self.max_steps, self._planning, other_tokens=self._other_input, steps=self._fitted_steps
        )
        if call.type == "action":
            self._forecasts.append(self._forecast)
