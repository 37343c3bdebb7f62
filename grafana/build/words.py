"""Reads what panels say from the Markdown beside this file: titles, descriptions, and what stands in an empty panel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from grafana.build.panels import TOKENS, Text

HERE = Path(__file__).parent
PANEL = re.compile(r"- panel: (?P<id>\d+)\n- empty: (?P<empty>[^\n]+)\n\n(?P<description>.+)", re.DOTALL)


def of(dashboard: str) -> Callable[..., Text]:
    """The words of a dashboard: `say(title)` or `say(title, unit)` gives those of a panel."""
    _, *sections = (HERE / f"{dashboard}.md").read_text().split("\n## ")
    known = dict(section.split("\n\n", 1) for section in sections)

    def say(title: str, unit: str = TOKENS) -> Text:
        found = PANEL.fullmatch(known[title].strip())
        assert found is not None, title
        paragraphs = found["description"].split("\n\n")
        description = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
        return Text(int(found["id"]), title, description, found["empty"], unit)

    return say
