"""Write dashboards, alert rules, collector configuration and compose file of this version into a folder.

Run it again after an upgrade: files that you have not changed are brought up to date, those that you have are named and
left as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from otel_smol.cli.output import show
from otel_smol.version import __version__

PARTS = (
    "collector",
    "collector-config.yaml",
    "compose.yaml",
    "deploy",
    "docs/backends.md",
    "grafana/README.md",
    "grafana/build/operations.md",
    "grafana/build/overview.md",
    "grafana/build/run.md",
    "grafana/dashboards",
    "grafana/dashboards-portable",
    "grafana/preview/otel-smol-ops.svg",
    "grafana/preview/otel-smol-overview.svg",
    "grafana/preview/otel-smol-run.svg",
    "grafana/provisioning",
    "grafana/queries.py",
    "grafana/rules",
    "grafana/runbook.md",
)
"""Files and folders of the project that the wheel carries; `pyproject.toml` puts them into it under `SHIPPED`."""
SHIPPED = "shipped"
NOT_SHIPPED = ".test.yaml"
"""promtool's tests of the rules: they are for whoever develops the rules."""
MANIFEST = ".otel-smol-bundle.json"
"""Remembers what was written, so that the next call can tell what the user has changed."""

DEFAULT_LINKS = {"grafana": "http://localhost:3000", "runbook": "grafana/runbook.md"}
"""As they stand in the alerts' annotations."""
WITH_LINKS = ("grafana/rules/", "grafana/provisioning/alerting/")
NOT_IN_LINKS = " '\"{}$\\#"

CANNOT_WRITE, LEFT_SOME = 2, 1


@dataclass
class Manifest:
    """What an earlier call has written: the hash of each file, and the links that were put into the alerts."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> Manifest:
        """That of a folder; an empty one when there is none, or none that can be read."""
        try:
            found = json.loads((folder / MANIFEST).read_text())
            files = {path: digest for path, digest in found["files"].items() if _within(path)}
            return Manifest(files, dict(found["links"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return Manifest()

    def write(self, folder: Path) -> None:
        """Put it beside the files."""
        content = {"version": __version__, "links": self.links, "files": dict(sorted(self.files.items()))}
        _put(folder / MANIFEST, (json.dumps(content, indent=2) + "\n").encode())


def _within(path: str) -> bool:
    return not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("folder", type=_folder, metavar="DIR", help="where to write; it is made if it is not there")
    parser.add_argument("--force", action="store_true", help="overwrite what you have changed, too")
    parser.add_argument(
        "--grafana-url",
        type=_grafana,
        metavar="URL",
        help=f"where the alerts' links to dashboards lead (default: {DEFAULT_LINKS['grafana']}); remembered",
    )
    parser.add_argument(
        "--runbook-url",
        type=_runbook,
        metavar="URL",
        help=f"where you serve grafana/runbook.md, for the alerts' links to it (default: {DEFAULT_LINKS['runbook']}); "
        "remembered",
    )


def _folder(text: str) -> Path:
    path = Path(text)
    if not text or (os.path.exists(path) and not os.path.isdir(path)):  # not Path's: they raise where we may not look
        raise argparse.ArgumentTypeError(f"give a folder, not {text!r}")
    return path


def _grafana(text: str) -> str:
    if not _is_address(text) or "?" in text:
        raise argparse.ArgumentTypeError(f"give an address like https://grafana.example, no ? and no #, not {text!r}")
    return text.rstrip("/")


def _runbook(text: str) -> str:
    default = DEFAULT_LINKS["runbook"]  # no address, but the way back
    if text != default and not _is_address(text):
        raise argparse.ArgumentTypeError(
            f"give an address like https://wiki.example/page, no #, or {default}, not {text!r}"
        )
    return text.rstrip("/")


def _is_address(text: str) -> bool:
    """Of HTTP, with a host; more can be appended to it, and the alerts' YAML and templates can bear it."""
    if not text.startswith(("http://", "https://")) or not text.isprintable() or set(text) & set(NOT_IN_LINKS):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0  # to ask for a port that is no number raises
    except ValueError:
        return False


def run(arguments: argparse.Namespace) -> int:
    """Write the files; returns the exit status."""
    given = {"grafana": arguments.grafana_url, "runbook": arguments.runbook_url}
    try:
        manifest = Manifest.read(arguments.folder)
        manifest.links.update({name: url for name, url in given.items() if url})
        fates = write(arguments.folder, contents(manifest.links), manifest, force=arguments.force)
    except OSError as error:
        _say(f"cannot write {error.filename or arguments.folder}: {error.strerror or error}; give another folder")
        return CANNOT_WRITE
    done = [f"{fate} {path}\n" for path, fate in fates.items() if fate in ("new", "updated", "removed")]
    status = show("otel-smol bundle", lambda: print(*done, sep="", end=""))
    if left := [path for path, fate in fates.items() if fate == "left"]:
        left = list(dict.fromkeys(_link(arguments.folder, path) or path for path in left))
        _say(
            f"left as you have changed them: {', '.join(left)}; compare with a bundle in another folder, or overwrite "
            "them with --force"
        )
        return LEFT_SOME
    if not status:
        _say(f"version {__version__} is in {arguments.folder}; start it there with docker compose up --wait")
    return status


def contents(links: Mapping[str, str]) -> dict[str, bytes]:
    """Every file of the bundle by its path in the folder, with these links in the alerts."""
    found: dict[str, bytes] = {}
    for part in PARTS:
        for path, file in _files(part):
            content = file.read_bytes()
            if path.startswith(WITH_LINKS):
                for name, default in DEFAULT_LINKS.items():
                    content = content.replace(default.encode(), links.get(name, default).encode())
            found[path] = content
    return found


def write(folder: Path, files: Mapping[str, bytes], manifest: Manifest, *, force: bool = False) -> dict[str, str]:
    """Bring the folder and its manifest up to date. Returns what became of each file: `new`, `updated`, `same`,
    `removed` or, where the user has changed it, `left`."""
    fates: dict[str, str] = {}
    for path in sorted({*files, *manifest.files}):
        target, link = folder / path, _link(folder, path)
        known = None if force else manifest.files.get(path, "")
        fate = fates[path] = _fate(target, files.get(path), known, link is not None)
        if fate == "removed":
            if os.path.lexists(target):
                (folder / (link or path)).unlink()
            del manifest.files[path]
        elif fate in ("new", "updated"):
            if link:
                (folder / link).unlink()  # not what it leads to
            _put(target, files[path])
        if fate in ("new", "updated", "same"):
            manifest.files[path] = _hash(files[path])
    manifest.write(folder)
    return fates


def _fate(target: Path, content: bytes | None, written: str | None, linked: bool) -> str:
    """What is to be done with a file. `written` is the hash of what we put there, None when that does not matter. A
    link on the way to it is the user's change."""
    there = os.path.lexists(target)
    if content is None and not there:  # this version has no such file any more
        return "removed"
    present = target.read_bytes() if target.exists() else None
    if present is not None and present == content and not (linked and written is None):
        return "same"
    if written is not None and (linked or (present is not None and written != _hash(present))):
        return "left"
    return "removed" if content is None else "updated" if there else "new"


def _link(folder: Path, path: str) -> str | None:
    """The first symbolic link on the way from the folder to a file, the file itself included."""
    way = [*reversed(PurePosixPath(path).parents[:-1]), PurePosixPath(path)]
    return next((str(part) for part in way if (folder / part).is_symlink()), None)


def _files(part: str) -> Iterator[tuple[str, Path]]:
    root = _root()
    for file in sorted((root / part).rglob("*")) if (root / part).is_dir() else [root / part]:
        if file.is_file() and not file.name.endswith(NOT_SHIPPED):
            yield file.relative_to(root).as_posix(), file


def _root() -> Path:
    """Inside the installed package, or the project's own folder when it is run from there."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / SHIPPED
    return shipped if shipped.is_dir() else package.parent


def _put(target: Path, content: bytes) -> None:
    """Never half a file, and never through a link to a file; `write` sees to links to folders."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _say(sentence: str) -> None:
    print(f"otel-smol bundle: {sentence}", file=sys.stderr)
