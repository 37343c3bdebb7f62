"""Builds the real programs that the tests drive: collector, Prometheus, Alertmanager, Jaeger, docker-compose.

``python tools/stack/build.py`` builds what is missing into ``.stack/bin`` (or ``$OTEL_SMOL_STACK_DIR/bin``), once: a
program is built again only when the Go files it comes from have changed. A program on the PATH serves as well if it is
new enough. Only the standard library is used, so that ``make stack`` works before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
STACK_DIR = Path(os.environ.get("OTEL_SMOL_STACK_DIR") or HERE.parents[1] / ".stack")
BIN = STACK_DIR / "bin"
GO_NEEDED = "1.26.7"

Version = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """One binary: the Go module that pins it, and what may stand in for it on the PATH."""

    name: str
    module: str
    package: str
    minimum: Version
    """The oldest release on the PATH that does what the tests and the shipped files ask for."""
    version: str = ""
    """`variable=value` for the linker: what the program says of itself. The same number as in go.mod."""
    version_arguments: tuple[str, ...] = ("--version",)
    tags: str = ""
    uses: tuple[str, ...] = ()
    """Further modules of this folder that it is made of."""
    path_name: str = ""
    """A further name on the PATH."""


PROMETHEUS = "github.com/prometheus/prometheus/cmd"
ALERTMANAGER = "github.com/prometheus/alertmanager/cmd"
COMMON_VERSION = "github.com/prometheus/common/version.Version"

PROGRAMS = (
    Program("otelcol-contrib", "collector", ".", (0, 161)),
    Program("otelcol-gateway", "gateway", ".", (0, 161), uses=("collector",), path_name="otelcol-contrib"),
    # 3.16: `increase(x[R] anchored)` needs no flag any more. The tag leaves out service discovery, most of the build.
    Program(
        "prometheus",
        "prometheus",
        f"{PROMETHEUS}/prometheus",
        (3, 16),
        f"{COMMON_VERSION}=3.16.0",
        tags="remove_all_sd",
    ),
    Program(
        "promtool", "prometheus", f"{PROMETHEUS}/promtool", (3, 16), f"{COMMON_VERSION}=3.16.0", tags="remove_all_sd"
    ),
    Program(
        "docker-compose",
        "compose",
        "github.com/docker/compose/v2/cmd",
        (2, 20),
        "github.com/docker/compose/v2/internal.Version=2.40.3",
        ("version", "--short"),
    ),
    Program(
        "jaeger",
        "jaeger",
        "github.com/jaegertracing/jaeger/cmd/jaeger",
        (2,),
        "github.com/jaegertracing/jaeger/internal/version.latestVersion=v2.13.0",
        ("version",),
    ),
    # 0.31: the last one whose web page is in its module; later ones cannot be built from it.
    Program(
        "alertmanager",
        "alertmanager",
        f"{ALERTMANAGER}/alertmanager",
        (0, 25),
        f"{COMMON_VERSION}=0.31.1",
        path_name="prometheus-alertmanager",  # as Debian calls it
    ),
    Program("amtool", "alertmanager", f"{ALERTMANAGER}/amtool", (0, 25), f"{COMMON_VERSION}=0.31.1"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"only these: {', '.join(p.name for p in PROGRAMS)}")
    parser.add_argument("--check", action="store_true", help="build nothing; say what is there, and what is missing")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {p.name for p in PROGRAMS}:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    wanted = [p for p in PROGRAMS if not options.names or p.name in options.names]
    return check(wanted) if options.check else build(wanted)


def check(wanted: Iterable[Program]) -> int:
    """One line for each program: name, version, path; then one line on what is missing."""
    missing = []
    for program in wanted:
        if path := find(program):
            version = version_of(path, program.version_arguments) or ()
            print(f"{program.name:15} {'.'.join(map(str, version)) or '?':8} {path}")
        else:
            missing.append(program)
    if missing:
        print(how_to_get(missing))
    return 1 if missing else 0


def build(wanted: Iterable[Program]) -> int:
    missing = [program for program in wanted if find(program) is None]
    if missing and shutil.which("go") is None:
        print(how_to_get(missing), file=sys.stderr)
        return 1
    for program in missing:
        print(f"building {program.name} ...", flush=True)
        began = time.monotonic()
        if not go_build(program):
            print(f"{program.name} was not built; Go's own message stands above.", file=sys.stderr)
            return 1
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return 0


def go_build(program: Program) -> bool:
    """Builds beside the target and renames, so that an interrupted build never leaves half a program."""
    BIN.mkdir(parents=True, exist_ok=True)
    (STACK_DIR / ".gitignore").write_text("*\n")
    fresh = BIN / f".{program.name}.{os.getpid()}"
    linker = "-s -w" + (f" -X {program.version}" if program.version else "")
    # -trimpath keeps this machine's paths out of the program.
    options = ["-trimpath", "-buildvcs=false", f"-ldflags={linker}", f"-tags={program.tags}", "-o", str(fresh)]
    try:
        done = subprocess.run(
            ["go", "build", *options, program.package],
            cwd=HERE / program.module,
            env={**os.environ, "CGO_ENABLED": "0"},  # then no C compiler is needed
            check=False,
        )
        if done.returncode:
            return False
        fresh.replace(BIN / program.name)
    finally:
        fresh.unlink(missing_ok=True)
    stamp(program).write_text(fingerprint(program))
    return True


def find(program: Program) -> Path | None:
    """The program as built from the present Go files, else a new enough one on the PATH."""
    ours = BIN / program.name
    if ours.is_file() and stamp(program).is_file() and stamp(program).read_text() == fingerprint(program):
        return ours
    on_path = shutil.which(program.name) or shutil.which(program.path_name or program.name)
    if on_path and (version := version_of(Path(on_path), program.version_arguments)) and version >= program.minimum:
        return Path(on_path)
    return None


def stamp(program: Program) -> Path:
    return BIN / f".{program.name}.sha256"


def fingerprint(program: Program) -> str:
    """Changes when anything changes that the program is built from."""
    digest = hashlib.sha256(f"{program.package} {program.tags} {program.version}".encode())
    for module in (program.module, *program.uses):
        for file in sorted((HERE / module).rglob("*")):
            if file.suffix in {".go", ".mod", ".sum"}:
                digest.update(f"{file.relative_to(HERE).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def version_of(path: Path, arguments: Sequence[str]) -> Version | None:
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", done.stdout + done.stderr)
    return tuple(int(part) for part in found.groups()) if found else None


def how_to_get(missing: Iterable[Program]) -> str:
    names = ", ".join(p.name for p in missing)
    if shutil.which("go"):
        return f"Missing: {names}. `make stack` builds what is missing (all of it once: some 15 minutes on two cores)."
    return f"Missing: {names}. Install Go {GO_NEEDED} or newer and run `make stack`, or put them on the PATH."


if __name__ == "__main__":
    sys.exit(main())
