"""What the panels should say, from what the models themselves counted and, for parts of prompts, from recorded spans.

That the parts on spans are right is proved elsewhere, to the character (tests/test_history.py and others).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from otel_smol import semconv as sc
from tests.grafana import fleet
from tests.grafana.answers import Span


@dataclass(frozen=True)
class Truth:
    """Of all runs, or of those that are looked at."""

    runs: Sequence[fleet.Run]
    spans: Sequence[Span]

    def of(self, *agents: str) -> Truth:
        """Of these agents only."""
        spans = [span for span in self.spans if span.get(sc.AGENT_NAME) in agents]
        return Truth([run for run in self.runs if run.agent in agents], spans)

    # --- calls and runs, from the models

    @property
    def agents(self) -> list[str]:
        return sorted({run.agent for run in self.runs})

    @property
    def calls(self) -> list[fleet.Call]:
        return [call for run in self.runs for call in run.calls]

    @property
    def input(self) -> int:
        return sum(call.input or 0 for call in self.calls)

    @property
    def cached(self) -> int | None:
        """None where no provider said."""
        said = [call.cached for call in self.calls if call.cached is not None]
        return sum(said) if said else None

    @property
    def output(self) -> int:
        return sum(call.output or 0 for call in self.calls)

    @property
    def without_usage(self) -> int:
        return sum(call.answered and call.input is None for call in self.calls)

    @property
    def states(self) -> dict[str, int]:
        return dict(Counter(run.state for run in self.runs))

    def run_inputs(self) -> list[int]:
        """Input of each run that has any."""
        known = [[call.input for call in run.calls if call.input is not None] for run in self.runs]
        return [sum(inputs) for inputs in known if inputs]

    def curve(self) -> dict[int, float]:
        """Mean input of each action step."""
        found: dict[int, list[int]] = defaultdict(list)
        for call in self.calls:
            if call.kind == "action" and call.input is not None:
                found[call.step].append(call.input)
        return {step: mean(inputs) for step, inputs in sorted(found.items())}

    def steps(self) -> list[int]:
        """Action steps of each run."""
        return [sum(call.kind == "action" for call in run.calls) for run in self.runs]

    def by_agent(self, value: Callable[[Truth], float]) -> dict[str, float]:
        return {agent: value(self.of(agent)) for agent in self.agents}

    # --- parts of prompts, from spans

    def run_spans(self) -> list[Span]:
        return [span for span in self.spans if span.get(sc.RUN_STATE) is not None]

    def chats(self) -> list[Span]:
        """Model calls that were billed."""
        return [span for span in self.spans if span.get(sc.HISTORY_ESTIMATOR) == "billed" and span.get(sc.CALL_TYPE)]

    @property
    def replayed(self) -> int:
        return sum(span.get(sc.RUN_REPLAYED_TOKENS) or 0 for span in self.run_spans())

    @property
    def overpay(self) -> float:
        return mean(span.get(sc.RUN_OVERPAY) for span in self.run_spans() if span.get(sc.RUN_OVERPAY) is not None)

    def sources(self) -> dict[str, int]:
        sums = {
            source: sum(span.get(attribute) or 0 for span in self.chats())
            for source, attribute in sc.HISTORY_SOURCE_TOKENS.items()
        }
        return {source: tokens for source, tokens in sums.items() if tokens}

    def tools(self) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for span in self.chats():
            sums.update(
                dict(zip(span.get(sc.HISTORY_TOOL_NAMES) or (), span.get(sc.HISTORY_TOOL_TOKENS) or (), strict=True))
            )
        return {tool: tokens for tool, tokens in sums.items() if tokens}

    def errors(self) -> dict[str, int]:
        """Steps by the error that they ended with."""
        steps = (span for span in self.spans if span.get(sc.STEP_TYPE) is not None)
        return dict(Counter(span.get(sc.ERROR_TYPE) for span in steps if span.get(sc.ERROR_TYPE) is not None))


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else float("nan")
