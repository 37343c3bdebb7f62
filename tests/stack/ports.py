"""Ports for programs that take theirs as a setting.

A port that the system gave and took back may be anybody's a moment later: the kernel hands it to the next outgoing
connection, another test process to its own program. So these come from below the range of outgoing connections, and
are locked for as long as this process lives: some at a time, since each lock is an open file.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from filelock import FileLock, Timeout

# Linux takes 32768 and above for outgoing connections, other systems begin higher.
_LOWEST, _HIGHEST, _AT_A_TIME = 16384, 32768, 64
_LOCKS = Path(tempfile.gettempdir()) / "otel-smol-test-ports"
_held: list[FileLock] = []
_ours: list[int] = []
_one_thread = threading.Lock()

_PROBE = """\
import socket, sys
for port in range(int(sys.argv[1]), int(sys.argv[2])):
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            continue
    print(port)
"""


def _free(first: int, end: int) -> list[int]:
    """Asked for by a process of its own: a program that another thread starts meanwhile inherits our open sockets until
    it is loaded, and would keep the port for as long."""
    command = [sys.executable, "-S", "-c", _PROBE, str(first), str(end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return [int(line) for line in done.stdout.split()]


def _lock_some() -> None:
    """Ports that no other test process gets."""
    _LOCKS.mkdir(exist_ok=True)
    firsts = range(_LOWEST, _HIGHEST, _AT_A_TIME)
    for first in random.SystemRandom().sample(firsts, len(firsts)):
        lock = FileLock(_LOCKS / f"{first}-{first + _AT_A_TIME - 1}")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        _held.append(lock)
        _ours.extend(_free(first, first + _AT_A_TIME))
        return
    raise RuntimeError(f"no free ports between {_LOWEST} and {_HIGHEST}")


def free_ports(count: int) -> list[int]:
    """Different ports that nobody else uses, or gets from here, while this process lives."""
    with _one_thread:
        while len(_ours) < count:
            _lock_some()
        return [_ours.pop() for _ in range(count)]
