"""Run smolagents' own test suite bare and with otel_smol on, and compare how each test ended.

    python tests/upstream/run.py [--workdir DIR] [--passes plain,content]

The suite comes from the source distribution of the installed smolagents version. Exits 1 when a test ended
differently, when we logged a warning, when the instrumented pass recorded hardly any span, or when so few tests
passed bare that the comparison says little. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent

LEAST_PASSED = 800
"""So many tests must pass bare. With the packages that README.md names it was 847 for smolagents 1.26.0."""
LEAST_SPANS = 100
"""An instrumented pass with no more spans than this was not really instrumented."""
TEST_SECONDS = 120
"""A test that takes this long hangs: the pass is ended, with the place it hangs at. The slowest takes 9 seconds."""
PASS_SECONDS = 900
"""For a pass that hangs elsewhere; one takes about a minute."""

NOT_RUN = {
    "tests/test_all_docs.py": "reads the documentation's pages, which the archive lacks",
    "tests/test_import.py": "installs smolagents from the package index into a new environment, and runs only there",
    "tests/test_tools.py::TestToolCollection::test_integration_from_mcp_with_streamable_http": (
        "starts a server on the fixed port 8000 and gives it one second"
    ),
    "tests/test_tools.py::TestToolCollection::test_integration_from_mcp_with_sse": (
        "starts a server on the fixed port 8000 and gives it one second"
    ),
}
"""Left out of every pass: test file or test id, and why."""

FLAKY = {
    "tests/test_agents.py::TestToolCallingAgent::test_process_tool_calls[test_case1]": (
        "expects two parallel tool calls to end in the order in which they began; smolagents yields them as they "
        "end, and two that ended are taken from a set, by their addresses"
    ),
}
"""Tests that can end either way without any instrumentation, and why. They may pass or fail by an assertion of their
own in any pass; every other ending is compared like that of all tests. Find them with `--passes again`."""

CONTENT = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}
PASSES: dict[str, dict[str, str]] = {"again": {}, "plain": {}, "content": CONTENT}
"""What the bare pass can be compared with, and the environment each needs: `again` is a second bare pass, `plain`
is instrumented with the defaults, `content` is instrumented and captures prompts and answers."""

# Variables that would make the passes differ from each other or from another machine's.
DROPPED = ("OTEL_", "PYTEST_", "PYTHONWARNINGS", "HF_", "HUGGING", "OPENAI_", "ANTHROPIC_", "AWS_", "LITELLM_")


@dataclass
class Report:
    """What one pass wrote down."""

    outcomes: dict[str, tuple[str, str]]
    warnings: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    spans: int = 0
    metrics: int = 0

    @classmethod
    def read(cls, file: Path) -> Report:
        written = json.loads(file.read_text(encoding="utf-8"))
        outcomes = {test: (ending, why) for test, (ending, why) in written.pop("outcomes").items()}
        return cls(outcomes, **written)

    def counted(self) -> str:
        """`935 tests (847 passed, 61 failed, …)`"""
        counts = Counter(ending for ending, _ in self.outcomes.values()).most_common()
        return f"{len(self.outcomes)} tests ({', '.join(f'{count} {ending}' for ending, count in counts)})"

    def passed(self) -> int:
        return sum(ending == "passed" for ending, _ in self.outcomes.values())


class Broken(Exception):
    """The suite could not be had or run; the text says why."""


# --- getting the suite ------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    return Path(os.environ.get("UPSTREAM_CACHE") or PROJECT / ".cache" / "upstream")


def pip() -> list[str]:
    """The pip to call: the environment's own, or uv's where the environment was made without one."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    if uv is None:
        raise Broken("fetching smolagents' source needs pip in this environment, or uv")
    return [uv, "tool", "run", "pip"]


def fetch(wanted: str, cache: Path) -> Path:
    """The source distribution of this smolagents version, from the cache or the package index."""
    archive = cache / f"smolagents-{wanted}.tar.gz"
    if archive.exists():
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", "smolagents", "--dest", folder]
        done = subprocess.run([*pip(), "download", *options, f"smolagents=={wanted}"], check=False)
        found = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or len(found) != 1:
            raise Broken(f"pip could not download the source distribution of smolagents {wanted}")
        found[0].replace(archive)
    return archive


def lay_out(archive: Path, folder: Path) -> None:
    """Unpack the tests afresh, so that no pass finds what another left, and put our stand-ins beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, _, inside = member.name.partition("/")
            if member.isfile() and inside.startswith("tests/") and ".." not in inside:
                content = tar.extractfile(member)
                assert content is not None  # it is for a regular file
                target = folder / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
    utils = folder / "tests" / "utils"
    utils.mkdir(parents=True, exist_ok=True)
    for package in (folder / "tests", utils):  # the tests import each other and `utils` by relative names
        (package / "__init__.py").touch()
    shutil.copy(HERE / "standins" / "markers.py", utils)


# --- running it -------------------------------------------------------------------------------------------------------


def environment(folder: Path, extra: dict[str, str]) -> dict[str, str]:
    """This process's environment without what would make passes differ, and with our plugins to import."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    paths = [str(HERE), *filter(None, [kept.get("PYTHONPATH")])]
    if find_spec("otel_smol") is None:  # not installed: the checkout's
        paths.append(str(PROJECT))
    return kept | extra | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0", "HF_HOME": str(folder / "hf")}


def command(report: Path, instrument: bool) -> list[str]:
    out = [f"--ignore={test}" if test.endswith(".py") else f"--deselect={test}" for test in NOT_RUN]
    plugins = ["-p", "standins.network", "-p", "standins.fixtures", "-p", "plugin", "-p", "no:cacheprovider"]
    # `addopts`: the suite has none here, but a settings file in a folder above could.
    options = ["-q", "-o", "addopts=", "--rootdir=.", "--tb=short", "--continue-on-collection-errors"]
    options += ["-o", f"faulthandler_timeout={TEST_SECONDS}", "-o", "faulthandler_exit_on_timeout=true"]
    asked = [f"--suite-report={report}", *(["--suite-instrument"] if instrument else [])]
    return [sys.executable, "-m", "pytest", *plugins, *options, *out, *asked, "tests"]


def last_words(printed: Path) -> str:
    """Where a test hung, innermost call first, or else the end of what pytest printed."""
    text = printed.read_text(encoding="utf-8", errors="replace")
    at = text.find("Timeout (")
    lines = text[at:].splitlines()[:40] if at >= 0 else text.splitlines()[-30:]
    return "\n".join(lines)


def run_pass(name: str, archive: Path, workdir: Path) -> Report:
    """One run of the suite in a process of its own; what pytest printed stays in the pass's folder."""
    folder = workdir / name
    lay_out(archive, folder)
    report, printed = folder / "report.json", folder / "pytest.txt"
    instrument = name in ("plain", "content")
    started = time.monotonic()
    with printed.open("w", encoding="utf-8") as out:
        try:
            done = subprocess.run(
                command(report, instrument),
                cwd=folder,
                env=environment(folder, PASSES.get(name, {})),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=PASS_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Broken(f"the {name} pass took more than {PASS_SECONDS} s; see {printed}") from None
    if done.returncode not in (0, 1) or not report.exists():
        raise Broken(f"the {name} pass broke off (exit {done.returncode}); from {printed}:\n{last_words(printed)}")
    result = Report.read(report)
    recorded = f"; {result.spans} spans, {result.metrics} metrics" if instrument else ""
    print(f"{name}: {result.counted()} in {time.monotonic() - started:.0f} s{recorded}", flush=True)
    return result


# --- comparing --------------------------------------------------------------------------------------------------------


def tolerated(test: str, ending: tuple[str, str]) -> bool:
    """Whether a flaky test ended in one of its two ways."""
    return test in FLAKY and (ending[0] == "passed" or ending[1].startswith("AssertionError"))


def differences(bare: Report, other: Report, name: str) -> list[str]:
    """One entry for each test that ended differently, whether in word or in cause."""
    lines = []
    missing = ("not run", "")
    for test in sorted(bare.outcomes.keys() | other.outcomes.keys()):
        before, after = bare.outcomes.get(test, missing), other.outcomes.get(test, missing)
        if before != after and not (tolerated(test, before) and tolerated(test, after)):
            lines.append(f"{test}\n    bare: {' - '.join(before)}\n    {name}: {' - '.join(after)}")
    return lines


def faults(bare: Report, others: dict[str, Report]) -> list[str]:
    """All that makes this run a failure, in words."""
    found = []
    if bare.passed() < LEAST_PASSED:
        found.append(f"only {bare.passed()} tests passed bare, at least {LEAST_PASSED} must")
    for name, other in others.items():
        found += differences(bare, other, name)
        found += [f"warning in the {name} pass: {line}" for line in other.warnings]
        found += [f"    logged too: {line}" for line in other.details if other.warnings]
        if name != "again" and other.spans <= LEAST_SPANS:
            found.append(f"the {name} pass recorded {other.spans} spans: was it instrumented?")
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workdir", type=Path, help="where to unpack and run (default: a folder in the cache)")
    parser.add_argument(
        "--passes",
        type=lambda text: text.split(","),
        default=["plain", "content"],
        help=f"what to compare the bare pass with, of {', '.join(PASSES)} (default: plain,content)",
    )
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.passes) - PASSES.keys():
        parser.error(f"unknown pass: {', '.join(sorted(unknown))}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    cache = cache_folder()
    workdir = (arguments.workdir or cache / "work").resolve()
    wanted = version("smolagents")
    try:
        archive = fetch(wanted, cache)
        print(f"smolagents {wanted}'s own tests; output in {workdir}", flush=True)
        for test, why in NOT_RUN.items():
            print(f"not run: {test} ({why})")
        for test, why in FLAKY.items():
            print(f"may pass or fail: {test} ({why})")
        bare = run_pass("bare", archive, workdir)
        others = {name: run_pass(name, archive, workdir) for name in arguments.passes}
    except Broken as broken:
        print(broken, file=sys.stderr)
        return 1
    if found := faults(bare, others):
        print("\n".join(found))
        print(f"not the same with and without otel_smol: {len(found)} findings")
        return 1
    compared = len(bare.outcomes.keys() - FLAKY.keys())
    if arguments.passes == ["again"]:
        print(f"{compared} tests: same outcome in two bare passes")
    else:
        print(f"{compared} tests: same outcome with and without otel_smol; 0 warnings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
