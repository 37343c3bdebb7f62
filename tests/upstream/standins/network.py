"""Refuses to look up any host but this machine; loaded with `-p`.

Some tests reach for model hubs and web pages. Without this they would pass, fail or wait depending on the
machine's network; with it they fail at once, and the same way in every pass.
"""

import socket
from typing import Any

import pytest

LOCAL = frozenset({None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0"})
_lookup = socket.getaddrinfo


def _local_lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if name not in LOCAL:
        raise socket.gaierror(socket.EAI_NONAME, f"no network in this test run ({name})")
    return _lookup(host, *args, **kwargs)


def pytest_configure(config: pytest.Config) -> None:
    socket.getaddrinfo = _local_lookup


def pytest_unconfigure(config: pytest.Config) -> None:
    socket.getaddrinfo = _lookup
