"""The documents say what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import otel_smol
from otel_smol import semconv as sc
from otel_smol.config import OPTIONS, Config

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_reference_page_is_fresh() -> None:
    """docs/reference.md is what `make reference` makes."""
    command = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_reference_page_has_every_name() -> None:
    """Every attribute, metric and variable is on the page."""
    page = (ROOT / "docs" / "reference.md").read_text()
    names = [*sc.ATTRIBUTES, *sc.METRICS, *sc.CONVENTION_METRICS, *(option.variable for option in OPTIONS)]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_reference_page_has_exact_buckets() -> None:
    """Boundaries can be copied from the page: they are the very numbers, written out."""
    page = (ROOT / "docs" / "reference.md").read_text()
    shown = dict(re.findall(r"^\| `([a-z_.]+)` \| ([0-9., ]+) \|$", page, re.MULTILINE))
    given = {name: metric.buckets for name, metric in sc.METRICS.items() if metric.buckets}
    assert {name: tuple(map(float, text.split(", "))) for name, text in shown.items()} == given


def test_cases_are_listed() -> None:
    """Each case whose number a test cites is in tests/CASES.md, once."""
    listed = re.findall(r"^\| (P\d\d) \|", (ROOT / "tests" / "CASES.md").read_text(), re.MULTILINE)
    sources = [
        path
        for folder in ("tests", "benchmarks", "grafana")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml")
    ]
    cited = {case for source in sources for case in re.findall(r"\bP\d\d\b", source.read_text())}
    assert len(cited) > 50
    assert cited - set(listed) == set()
    assert listed == sorted(set(listed))


def test_names_in_the_documents_exist() -> None:
    """No document speaks of an attribute, metric or variable that is not there."""
    known = {*sc.ATTRIBUTES, *sc.METRICS, *sc.CONVENTION_METRICS, sc.HISTORY_SOURCE}
    variables = {option.variable for option in OPTIONS}
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r"`((?:smolagents|gen_ai)\.[a-z_.]+[a-z])`", text):
            assert name in known, f"{page.name}: {name}"
        for name in re.findall(r"OTEL_SMOL_[A-Z_]*[A-Z]", text):
            assert name in variables, f"{page.name}: {name}"


def test_links_lead_somewhere() -> None:
    """Every relative link of a document is a file."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_make_targets_in_the_documents_exist() -> None:
    """Every `make …` that a document names is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"


def test_public_names() -> None:
    """`__all__` is all that a user can import from the package, but for its modules."""
    public = {name for name, value in vars(otel_smol).items() if not name.startswith("_") and not _is_module(value)}
    assert public | {"__version__"} == set(otel_smol.__all__)


def _is_module(value: object) -> bool:
    return isinstance(value, ModuleType)


def test_options_are_the_configuration() -> None:
    """Each option is a field of `Config` with the same default."""
    assert {option.name: option.default for option in OPTIONS} == vars(Config())


def test_oldest_versions_are_the_floors() -> None:
    """tests/oldest.txt pins what pyproject.toml declares as the floor of each dependency."""
    project = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert block is not None
    floors = dict(re.findall(r'"([a-z-]+)(?:>=|~=)([0-9.b]+)', block[1]))
    pins = dict(re.findall(r"^([a-z-]+)==([0-9.b]+)$", (ROOT / "tests" / "oldest.txt").read_text(), re.MULTILINE))
    assert floors.keys() == pins.keys()
    for name, floor in floors.items():
        assert pins[name].startswith(floor), f"{name}: {pins[name]} is tested, {floor} is declared"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_readable(page: Path) -> None:
    """Prose is wrapped; tables, pictures and code may be longer."""
    if page.name == "reference.md":  # made from the code, mostly tables
        return
    for number, line in enumerate(page.read_text().splitlines(), 1):
        assert len(line) <= 130 or line.startswith(("|", "!", " ")), f"{page.name}:{number}"
