"""What the demo's agents do and what their tools find: made up, but of the sizes that real research has.

Everything follows from the step number, so every run of the demo gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MANAGER, RESEARCHER = "manager", "researcher"
"""Names of the agents: the researcher works alone, or for the manager."""

TASK = """\
Our town library (1,900 m2, built in 1974, open six days a week) has to replace its gas boiler before next winter.
Compare an air-source heat pump, a ground-source heat pump and a connection to the district heating network.
For each of them find what it costs to install, what it costs to run for fifteen years, how long the building would
have to close, and what grants there are. The building's figures are in notes/building.md and notes/meters.md.
Answer with one recommendation, a table of the three options with sources, and the two facts that would change it."""

ANSWER = """\
Recommendation: the air-source heat pump, with the existing radiators kept. Over fifteen years it costs 312,000, the
district heating connection 355,000 and the ground-source heat pump 361,000, grants included. It can be installed
while the library stays open. It would be another option if the network offered its tariff for public buildings for
ten years, or if the roof could not carry 1.2 tonnes."""

REPORT = """\
### 1. Task outcome (short version)
The option is feasible for this building and eligible for a grant of 30 %.
### 2. Task outcome (extremely detailed version)
Installation takes three to five weeks, of which the building is closed for at most four days. Offers in comparable
buildings were between 84,000 and 131,000; the median of nine was 103,000. Running costs depend on the flow
temperature: at 55 degrees the seasonal performance factor was 3.1 in measured systems, at 45 degrees 3.7. Maintenance
contracts were between 600 and 1,100 a year. Two of the nine systems had to be repaired within the first five years.
### 3. Additional context (if relevant)
The grant has to be applied for before the contract is signed. Figures are from the reports that were read in full;
the newest is from last year. Prices do not include work on the radiators."""


@dataclass(frozen=True)
class Move:
    """One step: what the model thinks, the tool it calls, and how much that returns."""

    thought: str
    tool: str
    argument: str
    characters: int


CYCLE = (
    Move(
        "I start with an overview of what such a replacement costs in buildings of this size.",
        "web_search",
        "replace gas boiler public library heat pump cost per square metre",
        3400,
    ),
    Move(
        "The second result is about a library of the same age. I read it in full.",
        "visit_page",
        "https://example.org/cases/library-air-source",
        5200,
    ),
    Move(
        "It refers to the measured data of nine systems. I need the installation costs from that report.",
        "visit_page",
        "https://example.org/reports/nine-systems-measured/full",
        12500,
    ),
    Move(
        "Now the same for ground-source systems, where drilling makes the difference.",
        "web_search",
        "ground source heat pump borehole cost town centre permit duration",
        2100,
    ),
    Move(
        "Before I compare, I need the heat demand of our own building.",
        "read_file",
        "notes/building.md",
        3100,
    ),
    Move(
        "The demand is higher than in the examples. I check how flow temperature changes the running costs.",
        "visit_page",
        "https://example.org/guides/flow-temperature",
        5200,
    ),
    Move(
        "District heating is the third option. The operator publishes its tariffs.",
        "visit_page",
        "https://example.org/district-heating/tariffs",
        4600,
    ),
    Move(
        "The tariff depends on a grant scheme that I do not know yet.",
        "web_search",
        "grant scheme public building heating replacement conditions",
        2300,
    ),
    Move(
        "The conditions are only in the full text of the scheme, so I read that.",
        "visit_page",
        "https://example.org/grants/heating-scheme/full-text",
        14800,
    ),
    Move(
        "I need the monthly consumption to put the running costs together.",
        "read_file",
        "notes/meters.md",
        2700,
    ),
    Move(
        "One figure is missing: how long each kind of work keeps the building closed.",
        "web_search",
        "heating replacement closure days library school experience",
        1900,
    ),
)

QUESTIONS = (
    "Find out what an air-source heat pump costs in comparable buildings: installation, running costs, closure.",
    "Find out what a ground-source heat pump costs in comparable buildings: drilling, permits, running costs, closure.",
    "Find out what connecting to the district heating network costs: connection fee, tariff, contract, closure.",
)
"""What a manager asks its researcher, in this order."""
RESEARCH = (CYCLE[0], CYCLE[2], CYCLE[5])
"""What the researcher does for each question, before it reports."""
ASK_EVERY = 3
"""A manager asks at its first step and at every third one after it, until it has no more questions."""


def moves(steps: int) -> Iterator[Move]:
    """What an agent does before its last step, which gives the answer."""
    for i in range(steps - 1):
        move = CYCLE[i % len(CYCLE)]
        # later rounds find a little more or less, so that a long run is not a staircase
        scale = 100 + (i // len(CYCLE) * 37 + i * 11) % 41 - 20 if i >= len(CYCLE) else 100
        yield Move(move.thought, move.tool, _variant(move.argument, i), move.characters * scale // 100)


def question(step_index: int) -> str | None:
    """What a manager asks its researcher at this step, counted from 0; None when it works itself."""
    number, rest = divmod(step_index, ASK_EVERY)
    return QUESTIONS[number] if rest == 0 and number < len(QUESTIONS) else None


def _variant(argument: str, i: int) -> str:
    again = i // len(CYCLE)
    return f"{argument}{'?' if '://' in argument else ' '}part={again + 1}" if again else argument


# --- what the tools find ---------------------------------------------------------------------------------------------

SENTENCES = (
    "The system was measured over three heating seasons at intervals of five minutes.",
    "At an outside temperature of -12 degrees the heat pump covered {a} % of the demand.",
    "Installation took {b} working days, of which the reading room was closed for two.",
    "The offers differed by {a} %, mostly because of the electrical connection.",
    "Radiators of type {b} could be kept; those in the basement were replaced.",
    "The seasonal performance factor was 3.{c}, against 2.{b} in the manufacturer's data sheet.",
    "Running costs in the second year were {a},{c}40 including maintenance.",
    "The permit for drilling was granted after {b} weeks.",
    "Noise at the nearest window was {a} dB(A) at night, below the limit.",
    "The grant covers {a} % of the eligible costs, up to a ceiling of {b}0,000.",
    "Applications have to be made before a contract is signed.",
    "The operator guarantees the tariff for {c} years and adjusts it by two indices afterwards.",
    "Night setback saved less than {c} % and caused complaints on Monday mornings.",
    "Heat losses through the glazed front make up {a} % of the total.",
    "Users rated comfort {c}.{b} out of 10, slightly better than before.",
)
"""`{a}`, `{b}`, `{c}` become numbers: two digits, one or two, one."""


def found(kind: str, subject: str, characters: int) -> str:
    """A text of exactly so many characters about a subject, in the form of what a tool of this kind returns."""
    seed = sum(map(ord, subject))
    lines, length = [_heading(kind, subject)], 0
    while length < characters:
        lines.append(_paragraph(kind, seed + len(lines)))
        length += len(lines[-1]) + 1
    return "\n".join(lines)[:characters]


def _heading(kind: str, subject: str) -> str:
    return {"web_search": "## Search Results\n", "read_file": f"# {subject}\n"}.get(kind, f"# Page: {subject}\n")


def _paragraph(kind: str, seed: int) -> str:
    if kind == "web_search":
        return f"[Result {seed % 97}](https://example.org/item/{seed})\n{_sentence(seed)} {_sentence(seed + 4)}\n"
    if kind == "read_file":
        return f"- {_sentence(seed)}"
    return " ".join(_sentence(seed * 5 + i) for i in range(5)) + "\n"


def _sentence(seed: int) -> str:
    numbers = {"a": 11 + seed * 7 % 83, "b": 2 + seed * 5 % 17, "c": 1 + seed * 3 % 9}
    return SENTENCES[seed % len(SENTENCES)].format(**numbers)
