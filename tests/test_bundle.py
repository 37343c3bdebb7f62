"""`otel-smol bundle`: from the checkout for what it does, and once from a built wheel in an environment of its own."""

from __future__ import annotations

import json
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from otel_smol.cli import bundle, main
from tests.stack.programs import require, run

ROOT = Path(__file__).resolve().parent.parent
RULES = "grafana/rules/otel-smol.rules.yaml"
OLD_RULES = "grafana/rules/old.rules.yaml"
CONFIG = "collector-config.yaml"


def written(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the manifest."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != bundle.MANIFEST)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def shipped() -> dict[str, bytes]:
    """What the project has under the names of the bundle."""
    found: dict[str, bytes] = {}
    for part in bundle.PARTS:
        path = ROOT / part
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file() and not file.name.endswith(".test.yaml"):
                found[file.relative_to(ROOT).as_posix()] = file.read_bytes()
    return found


def as_if_written_before(folder: Path, path: str, content: bytes) -> None:
    """A file as an earlier version of otel_smol wrote it."""
    (folder / path).write_bytes(content)
    manifest = bundle.Manifest.read(folder)
    manifest.files[path] = bundle._hash(content)
    manifest.write(folder)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A fresh bundle."""
    assert main(["bundle", str(tmp_path / "stack")]) == 0
    capsys.readouterr()
    return tmp_path / "stack"


def test_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dashboards, alerts, runbook, collector and compose files; stdout names them, stderr says what is next."""
    target = tmp_path / "made" / "on the way"
    assert main(["bundle", str(target)]) == 0
    assert written(target) == shipped()
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"new {path}" for path in sorted(shipped())]
    assert "docker compose up" in err
    for path in (RULES, CONFIG, "compose.yaml", "deploy/prometheus.yml", "grafana/runbook.md"):
        assert path in shipped()


def test_a_second_time_there_is_nothing_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.name != bundle.MANIFEST}
    assert main(["bundle", str(folder)]) == 0
    assert capsys.readouterr().out == ""
    after = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.name != bundle.MANIFEST}
    assert {file: when for file, when in after.items() if file.is_file()} == {
        file: when for file, when in before.items() if file.is_file()
    }


def test_brings_up_to_date_what_was_not_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_if_written_before(folder, CONFIG, b"of an older version")
    assert main(["bundle", str(folder)]) == 0
    assert written(folder) == shipped()
    assert capsys.readouterr().out == f"updated {CONFIG}\n"


def test_names_and_leaves_what_was_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is brought up to date all the same; one line says what to do. It is so the next time, too."""
    (folder / RULES).write_text("mine")
    for _ in range(2):
        as_if_written_before(folder, CONFIG, b"of an older version")
        assert main(["bundle", str(folder)]) == 1
        assert written(folder) == {**shipped(), RULES: b"mine"}
        out, err = capsys.readouterr()
        assert out == f"updated {CONFIG}\n"
        [line] = err.splitlines()
        assert RULES in line
        assert "--force" in line


def test_force_overwrites(folder: Path) -> None:
    (folder / RULES).write_text("mine")
    assert main(["bundle", str(folder), "--force"]) == 0
    assert written(folder) == shipped()
    assert main(["bundle", str(folder)]) == 0


def test_leaves_files_that_it_never_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody's own project, with a compose.yaml and a README.md."""
    (tmp_path / "compose.yaml").write_text("theirs")
    (tmp_path / "README.md").write_text("theirs")
    assert main(["bundle", str(tmp_path)]) == 1
    assert (tmp_path / "compose.yaml").read_text() == (tmp_path / "README.md").read_text() == "theirs"
    assert "compose.yaml" in capsys.readouterr().err
    assert "compose.yaml" not in bundle.Manifest.read(tmp_path).files


def test_takes_over_files_that_are_the_same_already(folder: Path) -> None:
    """A lost manifest costs nothing as long as nothing was changed."""
    for content in (None, "{", "[]", '{"files": 3}'):
        (folder / bundle.MANIFEST).unlink()
        if content is not None:
            (folder / bundle.MANIFEST).write_text(content)
        assert main(["bundle", str(folder)]) == 0
        assert bundle.Manifest.read(folder).files.keys() == shipped().keys()


def test_brings_back_what_was_deleted(folder: Path) -> None:
    (folder / RULES).unlink()
    assert main(["bundle", str(folder)]) == 0
    assert written(folder) == shipped()


@pytest.mark.parametrize("changed", [False, True])
def test_what_a_version_no_longer_has(changed: bool, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Old rules beside new ones would fire twice: they go, unless the user has changed them."""
    old = OLD_RULES
    as_if_written_before(folder, old, b"groups: []")
    if changed:
        (folder / old).write_text("mine")
    assert main(["bundle", str(folder)]) == int(changed)
    assert (folder / old).exists() is changed
    out, err = capsys.readouterr()
    assert (out == f"removed {old}\n") is not changed
    assert (old in err) is changed
    assert main(["bundle", str(folder), "--force"]) == 0
    assert written(folder) == shipped()


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """A link to a file elsewhere is the user's change: left, and with --force replaced, but never written through."""
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text("theirs")
    (folder / RULES).unlink()
    (folder / RULES).symlink_to(elsewhere)
    assert main(["bundle", str(folder)]) == 1
    assert main(["bundle", str(folder), "--force"]) == 0
    assert elsewhere.read_text() == "theirs"
    assert written(folder) == shipped()


def test_linked_folders_are_not_followed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same of a link to a folder; it is named instead of all that would be behind it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs").write_text("theirs")
    as_if_written_before(folder, OLD_RULES, b"groups: []")
    shutil.move(folder / "grafana" / "rules", elsewhere / "rules")
    shutil.rmtree(folder / "grafana")
    (folder / "grafana").symlink_to(elsewhere)
    before = written(elsewhere)
    for _ in range(2):
        assert main(["bundle", str(folder)]) == 1
        assert written(elsewhere) == before
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("otel-smol bundle: left as you have changed them: grafana; ")
    assert main(["bundle", str(folder), "--force"]) == 0
    assert written(elsewhere) == before
    assert not (folder / "grafana").is_symlink()
    assert written(folder) == shipped()


def test_files_behind_a_link_are_never_deleted(folder: Path, tmp_path: Path) -> None:
    """Not even those that this version no longer has."""
    (folder / "old").mkdir()
    as_if_written_before(folder, "old/a.yaml", b"of an older version")
    (folder / "old").rename(tmp_path / "elsewhere")
    (folder / "old").symlink_to(tmp_path / "elsewhere")
    assert main(["bundle", str(folder)]) == 1
    assert (folder / "old").is_symlink()
    assert main(["bundle", str(folder), "--force"]) == 0
    assert (tmp_path / "elsewhere" / "a.yaml").read_bytes() == b"of an older version"
    assert not (folder / "old").exists()


@pytest.mark.parametrize("path", ["compose.yaml", "grafana", "old/a.yaml"])
def test_links_to_nothing(path: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are a change of the user's like any other."""
    (folder / "old").mkdir()
    as_if_written_before(folder, "old/a.yaml", b"of an older version")
    assert main(["bundle", str(folder)]) == 0
    as_if_written_before(folder, "old/a.yaml", b"of an older version")
    capsys.readouterr()
    shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()
    (folder / path).symlink_to(tmp_path / "nothing")
    assert main(["bundle", str(folder)]) == 1
    assert (folder / path).readlink() == tmp_path / "nothing"
    assert path in capsys.readouterr().err
    assert main(["bundle", str(folder), "--force"]) == 0
    assert not (folder / path).is_symlink()
    assert not (tmp_path / "nothing").exists()
    assert written(folder) == shipped()


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    """Whoever names it means what it leads to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert main(["bundle", str(tmp_path / "link")]) == 0
    assert written(tmp_path / "real") == shipped()


def test_a_manifest_leads_nowhere_else(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text("theirs")
    for path in ("../outside.yaml", str(outside)):
        as_if_written_before(folder, path, b"theirs")
        assert main(["bundle", str(folder)]) == 0
        assert outside.exists()


def test_links_of_the_alerts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given once, they are in every alert's annotations, nowhere else, and stay there."""
    links = ["--grafana-url", "https://grafana.example/", "--runbook-url", "https://wiki.example/runbook"]
    assert main(["bundle", str(folder), *links]) == 0
    for given in ([], ["--force"]):
        assert main(["bundle", str(folder), *given]) == 0
        for path, content in written(folder).items():
            text, original = content.decode(), shipped()[path].decode()
            if path.startswith(("grafana/rules", "grafana/provisioning/alerting")):
                assert text.count("https://grafana.example/d/") == original.count("http://localhost:3000/d/") > 0
                assert text.count("https://wiki.example/runbook#") == original.count("grafana/runbook.md#") > 0
                assert "localhost" not in text
            else:
                assert text == original
    capsys.readouterr()


def test_links_of_the_alerts_can_be_taken_back(folder: Path) -> None:
    """By giving the defaults."""
    assert (
        main(["bundle", str(folder), "--grafana-url", "http://x", "--runbook-url", "https://wiki.example/p?id=3"]) == 0
    )
    assert b"https://wiki.example/p?id=3#" in (folder / RULES).read_bytes()
    defaults = ["--grafana-url", "http://localhost:3000", "--runbook-url", "grafana/runbook.md"]
    for given in (defaults, []):
        assert main(["bundle", str(folder), *given]) == 0
        assert written(folder) == shipped()


def test_no_link_is_dead(folder: Path) -> None:
    """Every link of a document leads to a file, a folder or a heading that is there; no dashboard names the docs."""
    for path in folder.rglob("*.md"):
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            target, _, heading = link.partition("#")
            there = (path.parent / target) if target else path
            assert there.exists(), f"{path.name}: {link}"
            assert there.resolve().is_relative_to(folder), f"{path.name}: {link}"
            assert not heading or heading in headings(there), f"{path.name}: {link}"
    for path in [*folder.glob("*/**/*.json"), *folder.glob("grafana/**/*.yaml")]:
        assert "docs/" not in path.read_text(), path
    for name in re.findall(r"docs/\w+\.md", (folder / CONFIG).read_text()):
        assert (folder / name).exists(), name


def headings(document: Path) -> set[str]:
    """As links name them."""
    found = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_runbook_has_what_the_alerts_link_to(folder: Path) -> None:
    for path in (folder / "grafana" / "rules").rglob("*.yaml"):
        for heading in re.findall(r"grafana/runbook\.md#(\w+)", path.read_text()):
            assert heading in headings(folder / "grafana" / "runbook.md")


NO_GRAFANA = (
    "http://",
    "https:///",
    "http://:3000",
    "http:///grafana",
    "http://user@",
    "http://[::1",
    "http://x:y",
    "http://x:99999",
    "http://x#y\\",
    "http://x\\y",
    "http://x/#",
    "http://x/?",
    "http://x/?orgId=1",
    "http://x y",
    "http://x\t",
    "http://x\u00a0y",
    " http://x",
    "ftp://x",
    "",
)
BAD = {
    "nothing": [],
    "no name": [""],
    "a file": ["{file}"],
    "a folder below a file": ["{file}/below"],
    "an unknown option": ["{folder}", "--overwrite"],
    "an option cut short": ["{folder}", "--forc"],
    "two folders": ["{folder}", "{folder}"],
    "no address": ["{folder}", "--grafana-url", "grafana"],
    "an address that YAML would not bear": ["{folder}", "--runbook-url", "https://x/'"],
    "an address that is no text": ["{folder}", "--runbook-url", "https://x/\udcff"],
    "another file as runbook": ["{folder}", "--runbook-url", "grafana/README.md"],
    "a runbook with a heading": ["{folder}", "--runbook-url", "https://x/page#top"],
    "a runbook as Grafana": ["{folder}", "--grafana-url", "grafana/runbook.md"],
    **{f"as Grafana {url!r}": ["{folder}", "--grafana-url", url] for url in NO_GRAFANA},
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments(bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, one line on stderr, nothing written."""
    (tmp_path / "file").touch()
    names = {"file": str(tmp_path / "file"), "folder": str(tmp_path / "folder")}
    try:
        status: object = main(["bundle", *(argument.format(**names) for argument in BAD[bad])])
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "folder").exists()


# --- The wheel --------------------------------------------------------------------------------------------------------


def test_the_wheel_is_told_to_carry_the_same() -> None:
    """pyproject.toml and the list in the code."""
    project = (ROOT / "pyproject.toml").read_text()
    table = project.partition("[tool.hatch.build.targets.wheel.force-include]\n")[2].partition("\n[")[0]
    carried = dict(re.findall(r'^"(.+)" = "(.+)"$', table, re.MULTILINE))
    assert carried == {part: f"otel_smol/{bundle.SHIPPED}/{part}" for part in bundle.PARTS}


@pytest.fixture(scope="module")
def from_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that an installed otel_smol wrote, far from the checkout."""
    place = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place), cwd=ROOT)
    (wheel,) = place.glob("*.whl")
    _run(sys.executable, "-m", "venv", str(place / "venv"))
    python = place / "venv" / "bin" / "python"
    # What otel_smol needs comes from the environment of the tests: what is tried here is the wheel.
    (packages,) = (place / "venv").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    _run(str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel))
    # Where the wheel is installed is asked of Python; not in the checkout, at any rate.
    where = _run(str(python), "-c", "import otel_smol; print(otel_smol.__file__)", cwd=place).stdout.strip()
    assert Path(where).is_relative_to(place / "venv")
    _run(str(place / "venv" / "bin" / "otel-smol"), "bundle", "stack", cwd=place)
    return place / "stack"


def _run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_pip_install_is_enough(from_wheel: Path) -> None:
    """The bundle of a wheel is, to the byte, what the project has."""
    assert written(from_wheel) == shipped()


def test_docker_compose_finds_all_that_it_mounts(from_wheel: Path) -> None:
    files = ["-f", str(from_wheel / "compose.yaml"), "-f", str(from_wheel / "deploy" / "one-writer.yaml")]
    done = run([require("docker-compose"), *files, "config", "--format", "json"])
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    mounted = [Path(v["source"]) for s in services.values() for v in s.get("volumes", []) if v["type"] == "bind"]
    assert [path for path in mounted if not path.exists()] == []
    assert all(path.is_relative_to(from_wheel) for path in mounted)


def test_promtool_and_collector_take_the_bundle(from_wheel: Path) -> None:
    for command in (
        [require("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(from_wheel / RULES)],
        [require("otelcol-contrib"), "validate", f"--config={from_wheel / CONFIG}"],
    ):
        done = run(command)
        assert done.returncode == 0, done.stdout + done.stderr
