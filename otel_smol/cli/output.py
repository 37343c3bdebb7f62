"""Writing to stdout, which may be a pipe that nobody reads any more, or a disk that is full."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

NOT_SHOWN = 1


def show(prog: str, write: Callable[[], object]) -> int:
    """Call what writes to stdout. Returns the exit status: 0, or 1 if not all of it could be written."""
    try:
        write()
        if sys.stdout is not None:  # Python's own way to say that it was closed before we began
            sys.stdout.flush()
    except OSError as error:
        # Python tries to write the rest when it ends, and would fail once more, with a traceback.
        with suppress(OSError, ValueError):  # it may have no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # who closes a pipe has seen enough, as with `head`
            sys.stderr.write(f"{prog}: cannot write to stdout: {error.strerror}; send it somewhere else\n")
        return NOT_SHOWN
    return 0
