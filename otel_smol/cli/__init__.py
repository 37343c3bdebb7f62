"""The command `otel-smol`. Results go to stdout, talk and progress to stderr.

A command is a module of this package with `configure(parser)` and `run(arguments) -> exit status`; it is imported only
when it is asked for. Arguments that cannot be used end with status 2 and one line that says what to do.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from otel_smol.cli.output import show
from otel_smol.version import __version__

COMMANDS = {
    "demo": "run a real agent with a scripted model, and see what its steps cost",
    "bundle": "write dashboards, alerts, collector and compose files into a folder",
}
"""Name and summary; the module has the same name."""

USAGE_ERROR = 2
PLAIN = {"×": "x", "…": "..."}


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        sys.stderr.write(f"{self.prog}: {message}; see {self.prog} --help\n")
        raise SystemExit(USAGE_ERROR)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """The end of --help and --version: what they have written may not get out."""
        super().exit(status or show(self.prog, lambda: None), message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; returns the exit status."""
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        return _run(given[0], given[1:])
    parser = _parser()
    if given and not given[0].startswith("-"):
        parser.error(f"there is no command {given[0]!r}, only {', '.join(COMMANDS)}")
    parser.parse_args(given)
    return show(parser.prog, parser.print_help)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for a character that the terminal cannot show."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser of one command, as `otel-smol COMMAND --help` shows it."""
    module = _module(command)
    parser = OneLineParser(
        prog=f"otel-smol {command}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    return parser


def _run(command: str, arguments: Sequence[str]) -> int:
    status: int = _module(command).run(parser_of(command).parse_args(arguments))
    return status


def _module(command: str) -> Any:
    return importlib.import_module(f"otel_smol.cli.{command}")


def _parser() -> OneLineParser:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = OneLineParser(
        prog="otel-smol",
        usage="otel-smol COMMAND [options]",
        description="OpenTelemetry for smolagents: what each step of an agent sends to the model, and what that costs.",
        epilog=f"commands:\n{commands}\n\notel-smol COMMAND --help says more about one of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"otel-smol {__version__}")
    return parser
