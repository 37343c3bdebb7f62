"""What a prompt consists of: its parts by source, which of them are new, and what editing the memory saved.

Pure: no smolagents, no OpenTelemetry. A `History` lives as long as one run. It is told of every prompt before the
call and looks only at what is not an unchanged prefix of the previous prompt of the same kind, so its work per call
does not grow with the length of the run (but for one comparison of lists, done in C).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from otel_smol.semconv import FIXED_SOURCES, OVERFLOW, TOP_TOOLS

Body: TypeAlias = str | tuple[object, ...]
"""What a message says, comparable: its text, or a tuple of its parts (an image stands as its identity)."""

IMAGE_WEIGHT = 3060
"""Characters that one image weighs in the split of the billed tokens: 765 tokens, what a 1024 × 1024 picture in high
detail costs at OpenAI, at 4 characters per token. It is no part of any count of characters."""

CHARACTERS_PER_TOKEN = 4.0
"""Used only while no call of the run has reported its usage."""

K = TypeVar("K", bound=Hashable)


class Message(NamedTuple):
    """One message of a prompt, described when it is first seen."""

    source: str
    key: Hashable
    """Tells this message from all others of the run, whatever its text becomes."""
    characters: int
    images: int = 0
    tools: tuple[tuple[str, int], ...] = ()
    """An observation's characters by the tool that caused them; they add up to `characters`."""


class Cell(NamedTuple):
    """A share of a prompt that is counted as one: same source, same tool, same age."""

    source: str
    tool: str | None
    replayed: bool


_SCHEMA = Cell("tool_schema", None, False)


class _Part:
    """A message that has been sent, with what it weighs in each cell: made once, used at every call that sends it."""

    __slots__ = ("body", "first", "message", "number", "replayed")

    def __init__(self, message: Message, body: Body, number: int) -> None:
        self.message, self.body, self.number = message, body, number
        weights = _weights(message)
        self.first = [(Cell(source, tool, False), weight) for source, tool, weight in weights]
        """As new, in the first prompt that has it."""
        self.replayed = [(Cell(source, tool, source not in FIXED_SOURCES), weight) for source, tool, weight in weights]
        """As replayed, in every later one."""


@dataclass(slots=True)
class _View:
    """The previous prompt of one kind. Planning calls see another list than action calls, so each kind has its own."""

    bodies: list[Body] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)
    cells: dict[Cell, int] = field(default_factory=dict)
    """Its weights, all as replayed: what they are in the next prompt."""
    weight: int = 0
    characters: dict[str, int] = field(default_factory=dict)
    images: int = 0
    ranges: list[list[int]] = field(default_factory=list)
    """Numbers of the parts as inclusive ranges."""

    def append(self, part: _Part) -> None:
        self.bodies.append(part.body)
        self.parts.append(part)
        self._weigh(part, 1)
        if self.ranges and self.ranges[-1][1] == part.number - 1:
            self.ranges[-1][1] = part.number
        else:
            self.ranges.append([part.number, part.number])

    def truncate(self, length: int) -> list[_Part]:
        removed = self.parts[length:]
        del self.parts[length:], self.bodies[length:]
        for part in removed:
            self._weigh(part, -1)
            self.ranges[-1][1] -= 1
            if self.ranges[-1][1] < self.ranges[-1][0]:
                self.ranges.pop()
        return removed

    def _weigh(self, part: _Part, sign: int) -> None:
        for cell, weight in part.replayed:
            self.weight += sign * weight
            _add(self.cells, cell, sign * weight)
        _add(self.characters, part.message.source, sign * part.message.characters)
        self.images += sign * part.message.images


class PromptSizes(NamedTuple):
    """The sizes of one prompt, in characters. `split` turns them into tokens."""

    messages: int
    characters: Mapping[str, int]
    """By source; what the model received, to the character."""
    images: int
    cells: Mapping[Cell, int]
    """Weights: characters, and `IMAGE_WEIGHT` for each image."""
    compacted: int
    """Weight that editing the memory has saved since the previous prompt of this kind; 0 when it was only added to."""
    prefix_share: float | None
    """Share of the previous prompt of this kind that is an unchanged prefix of this one. None for the first."""
    new_messages: tuple[int, ...]
    """Positions of the messages that no earlier prompt of the run contained."""
    refs: str
    """The whole prompt as ranges into the run's numbered messages."""
    weight: int
    """All cells together."""

    @property
    def total_characters(self) -> int:
        return sum(self.characters.values())


class History:
    """All that one run has sent so far."""

    def __init__(self) -> None:
        self._views: dict[str, _View] = {}
        self._sent: dict[Hashable, _Part] = {}
        self._numbers = 0

    def measure(
        self,
        kind: str,
        bodies: Sequence[Body],
        describe: Callable[[int], Message],
        schema_characters: int = 0,
    ) -> PromptSizes:
        """Take note of a prompt that is about to be sent.

        Args:
            kind: the call's type; prompts are compared with the previous one of the same kind.
            bodies: the messages, in the order sent.
            describe: gives the `Message` at a position. Asked only for those behind the unchanged prefix.
            schema_characters: characters of the tool schemas sent beside the messages.
        """
        if kind == "other":  # a tool's or a callback's own prompt: no part of the conversation
            return self._measure_alone(bodies, describe, schema_characters)
        view = self._views.setdefault(kind, _View())
        first = not view.bodies
        previous = view.weight
        unchanged = _common_prefix(view.bodies, bodies)
        removed = view.truncate(unchanged)
        prefix, cells = view.weight, view.cells.copy()
        start = self._numbers
        tail = [self._enter(view, bodies[i], describe(i), cells, start) for i in range(unchanged, len(bodies))]
        self._forget(removed, view)
        characters = view.characters.copy()
        _add(cells, _SCHEMA, schema_characters)
        _add(characters, "tool_schema", schema_characters)
        return PromptSizes(
            messages=len(bodies),
            characters=characters,
            images=view.images,
            cells=cells,
            compacted=_saved(removed, [part for part, _ in tail]),
            prefix_share=None if first or not previous else prefix / previous,
            new_messages=tuple(unchanged + i for i, (_, new) in enumerate(tail) if new),
            refs=_as_text(view.ranges),
            weight=view.weight + schema_characters,
        )

    def _measure_alone(
        self, bodies: Sequence[Body], describe: Callable[[int], Message], schema_characters: int
    ) -> PromptSizes:
        cells: dict[Cell, int] = {}
        view = _View()
        for i, body in enumerate(bodies):
            part = _Part(describe(i), body, self._numbers)
            self._numbers += 1
            view.append(part)
            for cell, weight in part.first:
                _add(cells, cell, weight)
        _add(cells, _SCHEMA, schema_characters)
        _add(view.characters, "tool_schema", schema_characters)
        weight = view.weight + schema_characters
        positions, refs = tuple(range(len(bodies))), _as_text(view.ranges)
        return PromptSizes(len(bodies), view.characters, view.images, cells, 0, None, positions, refs, weight)

    def _enter(
        self, view: _View, body: Body, message: Message, cells: dict[Cell, int], start: int
    ) -> tuple[_Part, bool]:
        """Add a message to a view. `start`: numbers from here on were given for this very prompt, which may say a thing
        twice. Also tells whether the message got a number of its own."""
        part = self._sent.get(message.key)
        known = part is not None and part.body == body
        if part is None or not known:
            part = self._sent[message.key] = _Part(message, body, self._numbers)
            self._numbers += 1
        view.append(part)
        for cell, weight in part.replayed if part.number < start else part.first:
            _add(cells, cell, weight)
        return part, not known

    def _forget(self, removed: Sequence[_Part], view: _View) -> None:
        """No longer hold what has gone: a run that trims its memory wants it freed. Put back, it counts as new."""
        if removed:
            for key in {part.message.key for part in removed} - {part.message.key for part in view.parts}:
                self._sent.pop(key, None)


def _saved(removed: Sequence[_Part], tail: Sequence[_Part]) -> int:
    """Weight of the history that went away, less what took its place.

    What took its place: the same messages with another text, and unknown messages that stand before one that was
    there already or come from no known kind of step (a summary). What a step has just added is neither.
    """
    gone = [part.message for part in removed if part.message.source not in FIXED_SOURCES]
    if not gone:
        return 0
    keys = {message.key for message in gone}
    last_kept = max((i for i, part in enumerate(tail) if part.message.key in keys), default=-1)
    in_their_place = [
        part.message
        for i, part in enumerate(tail)
        if part.message.source not in FIXED_SOURCES and (i <= last_kept or part.message.source == "other")
    ]
    return max(sum(map(_weight, gone)) - sum(map(_weight, in_their_place)), 0)


def split(cells: Mapping[Cell, int], tokens: int) -> dict[Cell, int]:
    """Tokens by cell, in proportion to the weights; whole numbers that add up to `tokens` exactly."""
    if not any(cells.values()):
        return {Cell("other", None, False): tokens} if tokens else {}
    return apportion(cells, tokens)


def apportion(weights: Mapping[K, int], total: int) -> dict[K, int]:
    """Divide `total` in proportion to the weights by the method of the largest remainder.

    Whole numbers, none off its exact share by 1 or more, that add up to `total`.
    Raises `ZeroDivisionError` when all weights are 0.
    """
    whole = sum(weights.values())
    shares = {key: divmod(total * weight, whole) for key, weight in weights.items()}
    result = {key: share[0] for key, share in shares.items()}
    missing = total - sum(result.values())
    if missing:
        for key in sorted(shares, key=lambda key: -shares[key][1])[:missing]:
            result[key] += 1
    return result


def by_source(tokens: Mapping[Cell, int]) -> dict[str, int]:
    """Tokens by source."""
    result: dict[str, int] = {}
    for cell, n in tokens.items():
        result[cell.source] = result.get(cell.source, 0) + n
    return result


def by_tool(tokens: Mapping[Cell, int]) -> dict[str, int]:
    """Tokens of observations by the tool that caused them."""
    result: dict[str, int] = {}
    for cell, n in tokens.items():
        if cell.tool is not None:
            result[cell.tool] = result.get(cell.tool, 0) + n
    return result


def top(tools: Mapping[str, int], limit: int = TOP_TOOLS) -> list[tuple[str, int]]:
    """The largest entries, the largest first; all others together as `_OTHER`."""
    ranked = sorted(((name, n) for name, n in tools.items() if n), key=lambda item: (-item[1], item[0]))
    head, rest = ranked[:limit], ranked[limit:]
    return [*head, (OVERFLOW, sum(n for _, n in rest))] if rest else head


def share_among(
    characters: int, outputs: Sequence[tuple[str, int]], remainder: str | None
) -> tuple[tuple[str, int], ...]:
    """Which tool an observation's characters came from.

    Args:
        characters: length of the observation as sent.
        outputs: the tools that the step called, with the length of each result.
        remainder: who stands for what no tool returned (the code's own prints); None: the tools, in proportion.
    """
    sizes: dict[str, int] = {}
    for name, size in outputs:
        sizes[name] = sizes.get(name, 0) + size
    returned = sum(sizes.values())
    if remainder is not None and returned < characters:
        sizes[remainder] = sizes.get(remainder, 0) + characters - returned
    if not sizes:
        return ()
    if not any(sizes.values()):
        sizes = dict.fromkeys(sizes, 1)
    return tuple(apportion(sizes, characters).items())


def _weights(message: Message) -> list[tuple[str, str | None, int]]:
    """What a message weighs, by source and tool."""
    if message.tools:
        weights: list[tuple[str, str | None, int]] = [(message.source, tool, n) for tool, n in message.tools]
    else:
        weights = [(message.source, None, message.characters)]
    if message.images:
        given = message.source in FIXED_SOURCES  # with the task: every call sends them
        source = message.source if given else "image"
        weights.append((source, None, message.images * IMAGE_WEIGHT))
    return weights


def _weight(message: Message) -> int:
    return message.characters + message.images * IMAGE_WEIGHT


def _add(sums: dict[K, int], key: K, n: int) -> None:
    """Add to one of several sums; those that are 0 are not there."""
    if n:
        total = sums[key] = sums.get(key, 0) + n
        if not total:
            del sums[key]


def _as_text(ranges: Sequence[Sequence[int]]) -> str:
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _common_prefix(old: Sequence[Body], new: Sequence[Body]) -> int:
    if len(old) <= len(new) and old == new[: len(old)]:  # the usual case, compared in C
        return len(old)
    for i, (a, b) in enumerate(zip(old, new, strict=False)):
        if a != b:
            return i
    return min(len(old), len(new))
