"""Where the results of `otel-smol` cannot go: a full disk, a pipe that nobody reads any more, folders of others."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_smol.cli import demo, main

PROGRAM = [sys.executable, "-c", "import sys; from otel_smol.cli import main; sys.exit(main())"]
COMMANDS = {
    "demo": ["demo", "--steps", "1"],
    "bundle": ["bundle", "{folder}"],
    "the list of commands": [],
    "help": ["demo", "--help"],
    "version": ["--version"],
}


def run(command: str, folder: Path, stdout: int) -> subprocess.CompletedProcess[str]:
    """Run a command, its stdout buffered as it is for most users."""
    arguments = [argument.format(folder=folder) for argument in COMMANDS[command]]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [*PROGRAM, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_full(command: str, tmp_path: Path) -> None:
    """One line that says what to do, and status 1."""
    with open("/dev/full", "wb") as full:
        done = run(command, tmp_path / "folder", full.fileno())
    assert done.returncode == 1
    assert done.stderr.endswith(": cannot write to stdout: No space left on device; send it somewhere else\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_closed_pipe(command: str, tmp_path: Path) -> None:
    """As after `| head -1`: no word, and status 1."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(command, tmp_path / "folder", writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_bundle_is_complete_all_the_same(tmp_path: Path) -> None:
    """What could not be said has been written; what was left is still named, on stderr."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "compose.yaml").write_text("theirs")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("bundle", folder, writer)
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert done.stderr.startswith("otel-smol bundle: left as you have changed them: compose.yaml;")
    again = run("bundle", folder, subprocess.PIPE)
    assert again.stdout == ""
    assert (folder / "grafana" / "runbook.md").exists()


@pytest.mark.parametrize("command", ["demo", "bundle"])
def test_no_stdout(command: str, tmp_path: Path) -> None:
    """As with `>&-`, which services do: nobody is there to read, and that is no error."""
    folder = tmp_path / "folder"
    arguments = [argument.format(folder=folder) for argument in COMMANDS[command]]
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *PROGRAM, *arguments]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# --- files and folders ------------------------------------------------------------------------------------------------

NOBODY = 65534


@contextlib.contextmanager
def locked() -> Iterator[Path]:
    """A folder that we may not look into: we become nobody where the tests run as root."""
    importlib.import_module("otel_smol.cli.bundle")  # `main` imports it when asked for: nobody might not find it
    with tempfile.TemporaryDirectory() as name:  # pytest's folders are below one that is closed to nobody
        folder = Path(name)
        (folder / "there").mkdir()
        folder.chmod(0)
        if os.getuid() == 0:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            os.seteuid(os.getuid())
            folder.chmod(0o700)
            assert list(folder.rglob("*")) == [folder / "there"]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["demo", "--svg", "{folder}/new.svg"], "Permission denied; give another file"),
        (["demo", "--svg", "{folder}/there/x.svg"], "give a file in a folder that exists"),
        (["demo", "--svg", "/proc/x.svg"], "cannot write '/proc/x.svg': No such file or directory; give another file"),
        (["demo", "--svg", "/proc/version"], "Permission denied; give another file"),
        (["bundle", "{folder}/new"], "Permission denied; give another folder"),
        (["bundle", "{folder}/there"], "Permission denied; give another folder"),
        (["bundle", "{folder}"], "Permission denied; give another folder"),
    ],
)
def test_folders_of_others(arguments: list[str], remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and one line that says what to do, before any work is done."""
    with locked() as folder:
        try:
            status: object = main([argument.format(folder=folder) for argument in arguments])
        except SystemExit as exit:
            status = exit.code
    assert status == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert remedy in err


def test_trying_a_picture_leaves_no_trace(tmp_path: Path) -> None:
    """A file that is there stays as it is, one that is not there is not made, and a pipe is not opened."""
    (tmp_path / "there.svg").write_text("mine")
    (tmp_path / "link.svg").symlink_to("later.svg")
    os.mkfifo(tmp_path / "pipe")
    before = {file: file.lstat() for file in tmp_path.iterdir()}
    for name in ("there.svg", "link.svg", "pipe", "new.svg"):
        assert demo._writable(str(tmp_path / name)) == tmp_path / name
    assert {file: file.lstat() for file in tmp_path.iterdir()} == before
    assert (tmp_path / "there.svg").read_text() == "mine"
