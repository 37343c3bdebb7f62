"""`tools/stack/build.py`: what it takes for there, what it says when something is missing, and that versions agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .programs import CONFIG, ROOT
from .test_compose import services

STACK = ROOT / "tools" / "stack"


def build(path: Path, *arguments: str, stack: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The script on a machine whose PATH is this folder alone."""
    variables = {"PATH": str(path), "OTEL_SMOL_STACK_DIR": str(stack or path / "stack")}
    command = [sys.executable, str(STACK / "build.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60, check=False)


def put(folder: Path, name: str, output: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{output}'\n")
    program.chmod(0o755)


def test_without_go_one_line_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    for arguments in (["jaeger", "--check"], ["jaeger"]):
        done = build(tmp_path, *arguments)
        assert done.returncode == 1
        (line,) = (done.stdout + done.stderr).splitlines()
        assert re.search(r"Missing: jaeger\..*Go 1\.\d+.*make stack.*PATH", line)


@pytest.mark.parametrize(
    ("says", "serves"),
    [
        ("otelcol-contrib version 0.161.0", True),
        ("otelcol-contrib version 1.0.0", True),
        ("otelcol-contrib version 0.160.0", False),
        ("no number", False),
    ],
)
def test_a_program_on_the_path_serves_if_it_is_new_enough(tmp_path: Path, says: str, serves: bool) -> None:
    put(tmp_path, "otelcol-contrib", says)
    done = build(tmp_path, "otelcol-contrib", "otelcol-gateway", "--check")
    assert (done.returncode == 0) is serves
    assert done.stdout.count(str(tmp_path / "otelcol-contrib")) == (2 if serves else 0)


def test_nothing_is_built_when_all_is_there(tmp_path: Path) -> None:
    """A `go` that would fail is not even asked."""
    put(tmp_path, "jaeger", '{"gitVersion":"v2.13.0"}')
    put(tmp_path, "go", "called")
    done = build(tmp_path, "jaeger")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho 'no such module' >&2\nexit 1\n")
    (tmp_path / "go").chmod(0o755)
    done = build(tmp_path, "jaeger")
    assert done.returncode == 1
    assert "no such module" in done.stderr
    assert [f.name for f in (tmp_path / "stack").rglob("*") if f.is_file()] == [".gitignore"]


def test_a_program_is_built_again_when_its_go_files_change(tmp_path: Path) -> None:
    """The cache knows what it was built from, other modules of the folder included."""
    copy = tmp_path / "tools" / "stack"
    shutil.copytree(STACK, copy)
    # A compiler that writes whatever it is asked for: the last argument but one is the file.
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\necho built > "$1"\n')
    go.chmod(0o755)

    def built() -> bool:
        command = [sys.executable, str(copy / "build.py"), "otelcol-gateway"]
        variables = {"PATH": str(tmp_path), "OTEL_SMOL_STACK_DIR": str(tmp_path / "stack")}
        done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60, check=True)
        return "building otelcol-gateway" in done.stdout

    assert built()
    assert not built()
    with (copy / "collector" / "parts" / "parts.go").open("a") as file:
        file.write("// changed\n")
    assert built()
    assert not built()


def required(module: str, path: str) -> str:
    """The version of a module in a go.mod."""
    found = re.search(rf"{re.escape(path)} v(\S+)", (STACK / module / "go.mod").read_text())
    assert found is not None, path
    return found[1]


CONTRIB = "github.com/open-telemetry/opentelemetry-collector-contrib"


def test_one_collector_release_everywhere() -> None:
    """go.mod, what the program says of itself, the image, and the first line of the configuration."""
    release = required("collector", "go.opentelemetry.io/collector/otelcol")
    modules = [
        m
        for name in ("collector", "gateway")
        for m in re.findall(rf"{CONTRIB}/\S+ v\S+", (STACK / name / "go.mod").read_text())
    ]
    components = [m for m in modules if re.search(r"/(connector|exporter|extension|processor)/", m)]
    assert {m.rpartition(" v")[2] for m in components} == {release}
    assert f'version = "{release}"' in (STACK / "collector" / "parts" / "parts.go").read_text()
    assert services(ROOT / "compose.yaml")["collector"]["image"].endswith(f":{release}")
    assert f"tested with {release}" in CONFIG.read_text().splitlines()[0]


def test_one_prometheus_release_everywhere() -> None:
    """The Go module v0.316.0 is the release 3.16.0."""
    _, minor, patch = required("prometheus", "github.com/prometheus/prometheus").split(".")
    release = f"{minor[0]}.{minor[1:]}.{patch}"
    assert services(ROOT / "compose.yaml")["prometheus"]["image"].endswith(f":v{release}")
    assert f"={release}" in (STACK / "build.py").read_text()


def test_one_alertmanager_release_everywhere() -> None:
    """go.mod, what both programs say of themselves, and the README's table."""
    release = required("alertmanager", "github.com/prometheus/alertmanager")
    assert (STACK / "build.py").read_text().count(f"={release}") == 2
    assert f"| {release} | `alertmanager/` |" in (STACK / "README.md").read_text()


def test_a_program_is_found_by_its_other_name(tmp_path: Path) -> None:
    """Debian calls Alertmanager prometheus-alertmanager; its own name comes first."""
    put(tmp_path, "prometheus-alertmanager", "alertmanager, version 0.25.0")
    assert "prometheus-alertmanager" in build(tmp_path, "alertmanager", "--check").stdout
    put(tmp_path, "alertmanager", "alertmanager, version 0.28.0")
    assert "prometheus-alertmanager" not in build(tmp_path, "alertmanager", "--check").stdout


def test_no_module_names_a_place_of_this_machine() -> None:
    for file in [*STACK.rglob("go.mod"), *STACK.rglob("*.go")]:
        text = file.read_text()
        assert os.sep + "root" not in text
        assert os.sep + "work" not in text
