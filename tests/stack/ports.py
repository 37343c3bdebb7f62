"""Ports for programs that take theirs as a setting.

A port that the system gave and took back may be anybody's a moment later: the kernel hands it to the next outgoing
connection, another test process to its own program. So these come from below the range of outgoing connections, and
each is locked for as long as this process lives.
"""

from __future__ import annotations

import random
import socket
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

# Linux takes 32768 and above for outgoing connections, other systems begin higher.
_CANDIDATES = range(16384, 32768)
_LOCKS = Path(tempfile.gettempdir()) / "otel-smol-test-ports"
_held: list[FileLock] = []


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _is_ours(port: int) -> bool:
    lock = FileLock(_LOCKS / str(port))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    _held.append(lock)
    return _is_free(port)


def free_ports(count: int) -> list[int]:
    """Different ports that nobody else uses, or gets from here, while this process lives."""
    _LOCKS.mkdir(exist_ok=True)
    found: list[int] = []
    for port in random.SystemRandom().sample(_CANDIDATES, len(_CANDIDATES)):
        if len(found) == count:
            return found
        if _is_ours(port):
            found.append(port)
    raise RuntimeError(f"no {count} free ports between {_CANDIDATES.start} and {_CANDIDATES.stop}")
