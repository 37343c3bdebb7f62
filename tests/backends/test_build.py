"""`tools/backends/build.py`: what it takes for there, and what it says of what is missing. No program is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import ROOT

BACKENDS = ROOT / "tools" / "backends"


def check(name: str, stack: Path, script: Path = BACKENDS / "build.py") -> subprocess.CompletedProcess[str]:
    """`build.py --check` with an empty place for environments."""
    command = [sys.executable, str(script), name, "--check"]
    variables = {"OTEL_SMOL_STACK_DIR": str(stack)}
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60, check=False)


@pytest.mark.parametrize("name", ["llama", "phoenix", "mlflow"])
def test_what_is_missing_is_said_in_one_line(name: str, tmp_path: Path) -> None:
    """And how to get it."""
    done = check(name, tmp_path)
    assert done.returncode == 1
    [line] = done.stdout.splitlines()
    assert line.startswith(f"Missing: {name}. `python tools/backends/build.py")


def test_an_environment_is_there_until_its_files_change(tmp_path: Path) -> None:
    """Half an environment, which has no stamp, is none."""
    tools, venv = tmp_path / "backends", tmp_path / "venvs" / "llama"
    shutil.copytree(BACKENDS, tools, ignore=shutil.ignore_patterns("__pycache__"))
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    assert check("llama", tmp_path, tools / "build.py").returncode == 1
    made_from = "import build; print(build.fingerprint(build.ENVIRONMENTS[0]))"
    stamp = subprocess.run([sys.executable, "-c", made_from], cwd=tools, capture_output=True, text=True, check=True)
    (venv / ".made-from").write_text(f"{stamp.stdout.strip()} 1.2.3")
    there = check("llama", tmp_path, tools / "build.py")
    assert there.stdout.split() == ["llama", "1.2.3", str(venv / "bin" / "python")]
    with (tools / "llama.cmake").open("a") as file:
        file.write("# changed\n")
    assert check("llama", tmp_path, tools / "build.py").returncode == 1


def test_every_package_is_pinned() -> None:
    """Nothing is resolved at installation, and README and `.in` name the release that is installed."""
    for file in BACKENDS.glob("*.txt"):
        lines = file.read_text().splitlines()
        assert [line for line in lines if not re.match(r"[\w.-]+==[\w.]+( ; .+)?$", line)] == []
    readme = (BACKENDS / "README.md").read_text()
    for name, package in (("llama", "llama-cpp-python"), ("phoenix", "arize-phoenix"), ("mlflow", "mlflow")):
        [release] = re.findall(rf"^{package}==(\S+)", (BACKENDS / f"{name}.txt").read_text(), re.MULTILINE)
        assert f"=={release}" in (BACKENDS / f"{name}.in").read_text()
        assert f"{package} {release}" in readme
